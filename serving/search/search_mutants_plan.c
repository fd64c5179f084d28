// SPDX-License-Identifier: Apache-2.0
/* search_mutants_plan - plan files, with faults */
#include "serving/search/search_mutants.h"

#include "serving/plan/plan_file.c"
#include "serving/plan/plan_file_read.c"
#include "serving/plan/plan_lanes.c"
