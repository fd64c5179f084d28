// SPDX-License-Identifier: Apache-2.0
/* disagg_mutants - the simulation with fault injection (disagg_fault.h) */
#include "serving/disagg/disagg_mutants.h"

#include "serving/disagg/disagg_fault.h"

int cairn_disagg_fault;

#include "serving/disagg/advise.c"
#include "serving/disagg/replay.c"
#include "serving/disagg/costs.c"
#include "serving/disagg/lanes.c"
