/* SPDX-License-Identifier: Apache-2.0 */
/*
 * buffers - places the activations of a graph in one piece of memory
 *
 * Two values may share bytes only if no operation needs both: the lifetimes of their storages
 * (cairn_op_graph_lifetime()) have no operation in common. Values of a chain of in-place operations have one
 * place. Chains that contain a value of the caller (input, cache, output) lie in the caller's memory.
 *
 * The largest storages are placed first, each as low as possible ("greedy by size", Pisarchyk and Lee 2020).
 */
#ifndef CAIRN_BUFFERS_H
#define CAIRN_BUFFERS_H

#include "serving/graph/op_cost.h"

#define CAIRN_BUFFER_ALIGNMENT	256

struct cairn_buffers {
	int64_t *offset;	/* [num_values]; multiples of the alignment; -1: not in this memory */
	int64_t bytes;		/* of all */
	int64_t least;		/* bytes in use during the busiest operation: no placement needs fewer */
};

/* sizes: upper bounds; only dims, element, num_tokens and num_logits are read. -ENOMEM. */
int cairn_buffers_place(struct cairn_buffers *buffers, const struct cairn_op_graph *g,
			const struct cairn_pass_sizes *sizes);
/* Does nothing if *buffers is zeroed. */
void cairn_buffers_free(struct cairn_buffers *buffers);

#endif
