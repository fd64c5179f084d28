// SPDX-License-Identifier: Apache-2.0
/* The scheduler, armed: memory and tiers. */
#include "serving/kv/kv_mutants.h"

#include "serving/scheduler/scheduler_memory.c"
#include "serving/scheduler/scheduler_tiers.c"
#include "serving/scheduler/scheduler_verify.c"
