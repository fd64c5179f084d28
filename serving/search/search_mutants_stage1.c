// SPDX-License-Identifier: Apache-2.0
/* search_mutants_stage1 - the parts of a pass and stage 1, with faults */
#include "serving/search/search_mutants.h"

#include "serving/search/search_parts.c"
#include "serving/search/search_stage.c"
#include "serving/search/search_stage1.c"

int cairn_search_fault;
