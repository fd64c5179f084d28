// SPDX-License-Identifier: Apache-2.0
/* kv_mutants_pool - the pool and its model, with faults */
#include "serving/kv/kv_mutants.h"

#include "serving/kv/kv_model_pool.c"
#include "serving/kv/kv_pool.c"

int cairn_kv_fault;
