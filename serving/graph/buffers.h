/* SPDX-License-Identifier: Apache-2.0 */
/*
 * buffers - places the activations of a graph in one piece of memory
 *
 * Two values may share bytes only if the lifetimes of their storages (cairn_op_graph_lifetime()) have no
 * operation in common. All values of an in-place chain have the same offset. A chain that contains a value
 * of the caller (input, cache, output) stays in the caller's memory.
 *
 * Storages are placed largest first, each at the lowest free offset ("greedy by size", Pisarchyk and Lee
 * 2020).
 */
#ifndef CAIRN_BUFFERS_H
#define CAIRN_BUFFERS_H

#include "serving/graph/op_cost.h"

#define CAIRN_BUFFER_ALIGNMENT	256

struct cairn_buffers {
	int64_t *offset;	/* [num_values]; multiples of the alignment; -1: not in this memory */
	int64_t bytes;		/* of the whole memory */
	int64_t least;		/* bytes in use during the busiest operation: no placement needs fewer */
};

/* sizes: upper bounds; only dims, element, num_tokens and num_logits are read. -ENOMEM. */
int cairn_buffers_place(struct cairn_buffers *buffers, const struct cairn_op_graph *g,
			const struct cairn_pass_sizes *sizes);
/* Does nothing if *buffers is zeroed. */
void cairn_buffers_free(struct cairn_buffers *buffers);

#endif
