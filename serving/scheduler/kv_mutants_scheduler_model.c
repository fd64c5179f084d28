// SPDX-License-Identifier: Apache-2.0
/* kv_mutants_scheduler_model - the scheduler's model, compiled against the scheduler with faults */
#include "serving/kv/kv_mutants.h"

#include "serving/scheduler/kv_model_engine.c"
#include "serving/scheduler/kv_model_scheduler.c"
