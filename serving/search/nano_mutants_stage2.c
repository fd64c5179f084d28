// SPDX-License-Identifier: Apache-2.0
/* nano_mutants_stage2 - stage 2, with faults */
#include "serving/search/nano_mutants.h"

#include "serving/search/nano_stage2.c"
