/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sliced - runs a pass of a model slice by slice, with its attention elsewhere (slices.h, attn_link.h)
 *
 * Activations lie where the steps of the slices allow it: a storage is free for others once its last step has
 * run, not once its last operation in the graph has.
 *
 * Results: with a link that attends to all keys, those of cairn_forward(), bitwise, if the table's products
 * do not depend on n, or with CAIRN_SLICED_ROWS. With one that attends to previous keys, the results differ
 * by what attn_merge.h allows, and by the rounding of two partial results to the model's dtype.
 *
 * Errors: -EINVAL, naming the member; -EOPNOTSUPP (the table lacks what merging needs); those of the table's
 * operations and of the link.
 */
#ifndef CAIRN_SLICED_H
#define CAIRN_SLICED_H

#include "serving/model/forward/forward.h"
#include "serving/slices/attn_link.h"
#include "serving/slices/slices.h"

enum cairn_sliced_form {
	/* q first: the product for q, k and v runs twice, first for the columns of q */
	CAIRN_SLICED_PARTS,
	/* whole rows: the product runs once, before q is sent */
	CAIRN_SLICED_ROWS
};

struct cairn_sliced;

/* Reads a file that `cairn convert-slices` wrote for this model; error texts name `path`. */
int cairn_sliced_load(struct cairn_slices **out, const struct cairn_model *model, const char *path);
/*
 * Makes the slices of the scratch's model ready for passes over this scratch, which then holds the
 * activations of its passes, too. The slices must have been checked (slices.h) and must outlive the result.
 * If the activations need more memory, they move: no pass may be in flight, and passes captured earlier hold
 * stale addresses.
 */
int cairn_sliced_create(struct cairn_sliced **out, struct cairn_scratch *scratch,
			const struct cairn_slices *slices, enum cairn_sliced_form form);
void cairn_sliced_destroy(struct cairn_sliced *s);	/* NULL is legal */

/* As cairn_scratch_reserve(), for passes over this link. */
int cairn_sliced_reserve(struct cairn_sliced *s, const struct cairn_batch *batch,
			 const struct cairn_attn_link *link, void *stream, int *moved);
/*
 * Runs a pass slice by slice, so that others can run between two of them: begin checks the pass and runs its
 * first slice, each turn runs the next one. *left: the slices that are left. *batch and what it points to
 * must stay as they are. A sliced model has one pass at a time.
 */
int cairn_sliced_begin(struct cairn_sliced *s, const struct cairn_batch *batch,
		       const struct cairn_attn_link *link, void *stream, int32_t *left);
int cairn_sliced_turn(struct cairn_sliced *s, int32_t *left);
/* Runs the pass: asynchronous on stream; allocates nothing. The batch's lists of pages are not read. */
int cairn_sliced_forward(struct cairn_sliced *s, const struct cairn_batch *batch,
			 const struct cairn_attn_link *link, void *stream);

#endif
