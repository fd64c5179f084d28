// SPDX-License-Identifier: Apache-2.0
/* search_mutants_stage2 - stage 2, with faults */
#include "serving/search/search_mutants.h"

#include "serving/search/search_stage2.c"
