// SPDX-License-Identifier: Apache-2.0
/* search_mutants_plan - plan files, with faults */
#include "serving/search/search_mutants.h"

#include "serving/search/plan_file.c"
#include "serving/search/plan_file_read.c"
