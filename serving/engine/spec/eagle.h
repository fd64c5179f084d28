/* SPDX-License-Identifier: Apache-2.0 */
/*
 * eagle - drafts by an EAGLE-3 head
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
#ifndef CAIRN_EAGLE_H
#define CAIRN_EAGLE_H

#include "serving/engine/spec/eagle_head.h"
#include "serving/scheduler/scheduler.h"

struct cairn_eagle;

/*
 * worker: that of the target, with the head's taps; its options but for max_batch, the maximum sequences.
 * head must not be in use by another drafter.
 */
int cairn_eagle_create(struct cairn_eagle **out, struct cairn_eagle_head *head,
		       const struct cairn_worker *worker, const struct cairn_worker_options *options,
		       int32_t branches);
void cairn_eagle_destroy(struct cairn_eagle *e);	/* NULL is legal */
/*
 * As cairn_draft_model_propose(). pool: the scheduler's; the rows of all tokens but the last have been
 * computed by the target.
 */
int cairn_eagle_propose(struct cairn_eagle *e, struct cairn_kv_pool *pool, struct cairn_sched_draft *drafts,
			int32_t num, int *caught_up);
void cairn_eagle_end(struct cairn_eagle *e, uint64_t request, int32_t index);

#endif
