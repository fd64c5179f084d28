// SPDX-License-Identifier: Apache-2.0
/* The model of the prefix tree, over the armed one. */
#include "serving/kv/kv_mutants.h"

#include "serving/kv/kv_model_tree.c"
