// SPDX-License-Identifier: Apache-2.0
/* The scheduler, armed: requests and plans. */
#include "kv_mutants.h"

#include "scheduler.c"
#include "scheduler_plan.c"
