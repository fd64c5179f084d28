// SPDX-License-Identifier: Apache-2.0
/* The prefix tree, armed. */
#include "kv_mutants.h"

#include "prefix_tree.c"
#include "prefix_tree_query.c"
