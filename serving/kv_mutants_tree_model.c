// SPDX-License-Identifier: Apache-2.0
/* The model of the prefix tree, over the armed one. */
#include "kv_mutants.h"

#include "kv_model_tree.c"
