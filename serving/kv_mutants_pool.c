// SPDX-License-Identifier: Apache-2.0
/* The pool and its model, armed. */
#include "kv_mutants.h"

#include "kv_model_pool.c"
#include "kv_pool.c"

int cairn_kv_fault;
