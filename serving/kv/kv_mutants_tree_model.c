// SPDX-License-Identifier: Apache-2.0
/* kv_mutants_tree_model - the prefix tree's model, compiled against the tree with faults */
#include "serving/kv/kv_mutants.h"

#include "serving/kv/kv_model_tree.c"
