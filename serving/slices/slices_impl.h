/* SPDX-License-Identifier: Apache-2.0 */
/* slices_impl - the parts of cairn_slices_create() */
#ifndef CAIRN_SLICES_IMPL_H
#define CAIRN_SLICES_IMPL_H

#include "serving/slices/slices.h"

/* Finds what attention operator number `index` of the graph sends. */
int cairn_seam_find(struct cairn_seam *seam, const struct cairn_op_graph *g, int32_t index);
/*
 * Cuts the graph at seam `at`: sets after[op], [num_ops], to 1 for each operation after the cut, else to 0.
 * seams: [num_attn]; those before `at` are before the cut, the others after it.
 */
int cairn_slices_cut(uint8_t *after, const struct cairn_op_graph *g, const struct cairn_seam *seams,
		     int32_t at, const struct cairn_pass_sizes *sizes);
/* Returns whether the cut saves the value. seam: the one that is cut; what it is sent is not saved for it. */
int cairn_slices_saves(const struct cairn_op_graph *g, const struct cairn_seam *seam, int32_t value,
		       const uint8_t *after);
/* Appends the program of slice `index`. slice_of: [num_ops]. s->steps has room for it. */
int cairn_slices_program(struct cairn_slices *s, const struct cairn_op_graph *g, int32_t index,
			 const int32_t *slice_of);

static inline int cairn_seam_has(const struct cairn_seam *seam, int32_t op)
{
	return op == seam->attn || op == seam->append;
}

#endif
