// SPDX-License-Identifier: Apache-2.0
/* kv_mutants_scheduler - requests and plans of the scheduler, armed */
#include "serving/kv/kv_mutants.h"

#include "serving/scheduler/scheduler.c"
#include "serving/scheduler/scheduler_plan.c"
