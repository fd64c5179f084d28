// SPDX-License-Identifier: Apache-2.0
/* The model of the scheduler, over the armed one. */
#include "kv_mutants.h"

#include "kv_model_engine.c"
#include "kv_model_scheduler.c"
