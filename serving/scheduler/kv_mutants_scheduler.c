// SPDX-License-Identifier: Apache-2.0
/* kv_mutants_scheduler - compiles the scheduler's requests, imports and plans with fault injection */
#include "serving/kv/kv_mutants.h"

#include "serving/scheduler/scheduler.c"
#include "serving/scheduler/scheduler_import.c"
#include "serving/scheduler/scheduler_lanes.c"
#include "serving/scheduler/scheduler_plan.c"
