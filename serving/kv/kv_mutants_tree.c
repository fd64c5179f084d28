// SPDX-License-Identifier: Apache-2.0
/* kv_mutants_tree - the prefix tree, with faults */
#include "serving/kv/kv_mutants.h"

#include "serving/kv/prefix_tree.c"
#include "serving/kv/prefix_tree_query.c"
