// SPDX-License-Identifier: Apache-2.0
/* kv_mutants_memory - drafts, memory and tiers of the scheduler, with faults */
#include "serving/kv/kv_mutants.h"

#include "serving/scheduler/scheduler_draft.c"
#include "serving/scheduler/scheduler_memory.c"
#include "serving/scheduler/scheduler_tiers.c"
#include "serving/scheduler/scheduler_verify.c"
