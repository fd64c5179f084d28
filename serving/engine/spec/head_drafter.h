/* SPDX-License-Identifier: Apache-2.0 */
/*
 * head_drafter - drafts by a head of the target model, an EAGLE-3 head or an MTP layer (draft_head.h)
 *
 * The drafter keeps the head's keys in pages of its own. In each call it first computes the places of a
 * sequence that it has not computed yet, from the target's features of their keys, then draws its most likely
 * next tokens one after the other. Places that it computed from its own states are computed again when the
 * target's features are there. Features of keys that came from host memory are not the target's; drafts made
 * from them may be worse.
 *
 * With branches > 1, the next most likely tokens are proposed beside each token of the chain.
 *
 * Not thread-safe. After an error it can only be destroyed.
 */
#ifndef CAIRN_HEAD_DRAFTER_H
#define CAIRN_HEAD_DRAFTER_H

#include "serving/engine/spec/draft_head.h"
#include "serving/scheduler/scheduler.h"

struct cairn_head_drafter;

/*
 * worker: that of the target, with the head's taps; its options but for max_batch, the maximum sequences.
 * head must not be in use by another drafter, and must outlive this one.
 */
int cairn_head_drafter_create(struct cairn_head_drafter **out, struct cairn_draft_head *head,
			      const struct cairn_worker *worker, const struct cairn_worker_options *options,
			      int32_t branches);
void cairn_head_drafter_destroy(struct cairn_head_drafter *d);	/* NULL is legal */
/*
 * As cairn_draft_model_propose(). pool: the scheduler's; the rows of all tokens but the last have been
 * computed by the target.
 */
int cairn_head_drafter_propose(struct cairn_head_drafter *d, struct cairn_kv_pool *pool,
			       struct cairn_sched_draft *drafts, int32_t num, int *caught_up);
void cairn_head_drafter_end(struct cairn_head_drafter *d, uint64_t request, int32_t index);

#endif
