// SPDX-License-Identifier: Apache-2.0
/* nano_mutants_stage1 - the parts of a pass and stage 1, with faults */
#include "serving/search/nano_mutants.h"

#include "serving/search/nano_parts.c"
#include "serving/search/nano_stage.c"
#include "serving/search/nano_stage1.c"

int cairn_nano_fault;
