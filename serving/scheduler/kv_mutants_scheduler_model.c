// SPDX-License-Identifier: Apache-2.0
/* The model of the scheduler, over the armed one. */
#include "serving/kv/kv_mutants.h"

#include "serving/scheduler/kv_model_engine.c"
#include "serving/scheduler/kv_model_scheduler.c"
