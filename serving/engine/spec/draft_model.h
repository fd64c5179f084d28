/* SPDX-License-Identifier: Apache-2.0 */
/*
 * draft_model - drafts by a second, smaller model
 *
 * The drafter has a worker of its own, with its own keys and values in its own pool of pages. It knows a
 * sequence by the tokens it is given: it first computes those that it has not computed yet, then draws its
 * most likely next tokens one after the other. Keys and values of its own drafts that turned out wrong are
 * computed again.
 *
 * Not thread-safe. After an error it can only be destroyed.
 */
#ifndef CAIRN_DRAFT_MODEL_H
#define CAIRN_DRAFT_MODEL_H

#include "serving/engine/worker/worker.h"
#include "serving/scheduler/scheduler.h"

struct cairn_draft_model;

/*
 * max_context may exceed what the model has positions for: a sequence that is longer gets no drafts. With
 * branches > 1, up to that many tokens, the most likely ones, are proposed for each place of the chain.
 */
int cairn_draft_model_create(struct cairn_draft_model **out, struct cairn_model *model,
			     const struct cairn_worker_options *options, int32_t branches);
void cairn_draft_model_destroy(struct cairn_draft_model *d);	/* NULL is legal */

/*
 * Sets `num`, `drafts` and `parents` of all entries, up to the `room` and `depth` of each. A sequence is
 * identified by request and index, and its tokens may only grow from call to call. It gets no drafts while
 * its tokens are computed, which takes several calls if they are many, nor if the pool has no pages for it.
 * *caught_up: no entry had many tokens to compute.
 */
int cairn_draft_model_propose(struct cairn_draft_model *d, struct cairn_sched_draft *drafts, int32_t num,
			      int *caught_up);
/* Frees the pages of a sequence that has ended; does nothing if there is none. */
void cairn_draft_model_end(struct cairn_draft_model *d, uint64_t request, int32_t index);

#endif
