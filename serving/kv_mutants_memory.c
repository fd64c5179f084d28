// SPDX-License-Identifier: Apache-2.0
/* The scheduler, armed: memory and tiers. */
#include "kv_mutants.h"

#include "scheduler_memory.c"
#include "scheduler_tiers.c"
#include "scheduler_verify.c"
