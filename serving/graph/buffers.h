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
 *
 * Operations that run on several lanes (streams) at once are only partly ordered. The caller then says when
 * each storage is in use, by positions on each lane, and two storages share bytes only if all uses of one are
 * ordered before all uses of the other.
 */
#ifndef CAIRN_BUFFERS_H
#define CAIRN_BUFFERS_H

#include "serving/graph/op_cost.h"

#define CAIRN_BUFFER_ALIGNMENT	256
#define CAIRN_BUFFER_LANES	8

/*
 * When a storage is in use: the number of operations on each lane that have ended before any of its users
 * starts, and the number that have ended once all of its users have. Storage A is free before B is in use if
 * A's end is at most B's begin on every lane.
 */
struct cairn_life {
	int32_t begin[CAIRN_BUFFER_LANES], end[CAIRN_BUFFER_LANES];
};

struct cairn_buffers {
	int64_t *offset;	/* [num_values]; multiples of the alignment; -1: not in this memory */
	int64_t bytes;		/* of the whole memory */
	/* bytes in use during the busiest operation: no placement needs fewer; 0: several lanes */
	int64_t least;
};

/* sizes: upper bounds; only dims, element, num_tokens and num_logits are read. -ENOMEM. */
int cairn_buffers_place(struct cairn_buffers *buffers, const struct cairn_op_graph *g,
			const struct cairn_pass_sizes *sizes);
/*
 * The same for the storages with chosen[v] set, v being the value at the start of an in-place chain; all
 * others get offset -1. Storage v is in use during lives[v * num_parts + i], for each i: if each part of a
 * storage has memory of its own, they need no order among each other, and two storages may share bytes if
 * they may in each part.
 */
int cairn_buffers_place_lives(struct cairn_buffers *buffers, const struct cairn_op_graph *g,
			      const struct cairn_pass_sizes *sizes, const struct cairn_life *lives,
			      int32_t num_parts, const uint8_t *chosen);
/* Does nothing if *buffers is zeroed. */
void cairn_buffers_free(struct cairn_buffers *buffers);

#endif
