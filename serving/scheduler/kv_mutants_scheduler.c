// SPDX-License-Identifier: Apache-2.0
/* The scheduler, armed: requests and plans. */
#include "serving/kv/kv_mutants.h"

#include "serving/scheduler/scheduler.c"
#include "serving/scheduler/scheduler_plan.c"
