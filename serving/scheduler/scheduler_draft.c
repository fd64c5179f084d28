// SPDX-License-Identifier: Apache-2.0
/*
 * scheduler_draft - gives sequences drafted rows, and discards those whose draft was wrong
 *
 *   tokens      known ... last | draft 0  draft 1  draft 2
 *   rows                  0       1        2        3
 *   draws             t0      t1       t2       t3            t[i] is drawn after row i
 *
 * In this chain, if t0 equals draft 0, t1 is the token after it, and so on. In a tree, drafts 1 and 2 might
 * both follow row 1, and at most one of them is drawn. With n drafts drawn, n + 1 tokens are new. When the
 * plan is reported, rows 0 .. n hold the keys and values of tokens that the sequence really has (of a tree:
 * because the engine has moved them there), and the rows behind them are cut off again. The token drawn last
 * has no row yet, as after any decoding row.
 *
 * A sequence never has more drafts than its answer can have further tokens, so that the rows of a tree find a
 * place in the context, too.
 */
#include <string.h>

#include "serving/scheduler/scheduler_impl.h"

/* Returns how many drafts q could have in the plan being formed. */
static int32_t room_of(const struct cairn_scheduler *s, const struct sched_seq *q)
{
	int32_t room = q->req->num_prompt + q->req->max_new - q->num_known - !FAULT(DRAFT_TOO_LONG);
	int32_t most = s->opt.max_drafts < s->opt.draft_rows ? s->opt.max_drafts : s->opt.draft_rows;

	if (!q->speculates || q->is_held || q->in_flight || q->num_known <= q->req->num_prompt ||
	    q->num_known != q->computed + 1)
		return 0;
	return room < most ? room : most;
}

int sched_propose(struct cairn_scheduler *s)
{
	int32_t num = 0;

	for (int32_t i = 0; i < s->num_running; i++) {
		struct sched_seq *q = s->running[i];
		int32_t room = room_of(s, q);

		q->proposal = -1;
		if (room < 1)
			continue;
		q->proposal = num;
		for (int32_t k = 0; k < room; k++)
			s->parents[num * s->opt.max_drafts + k] = k;
		s->proposals[num] = (struct cairn_sched_draft){
			.request = q->req->id, .index = q->index, .kv = q->kv, .tokens = q->tokens,
			.num_tokens = q->num_known + FAULT(DRAFT_BEYOND), .num_prompt = q->req->num_prompt,
			.drafts = s->drafts + (size_t)num * (size_t)s->opt.max_drafts,
			.parents = s->parents + (size_t)num * (size_t)s->opt.max_drafts, .room = room,
			.depth = room,
		};
		num++;
	}
	return num ? s->opt.draft(s->opt.draft_ctx, s->proposals, num) : 0;
}

int sched_add_drafts(struct cairn_scheduler *s, struct plan_buffer *b, struct sched_seq *q)
{
	struct cairn_step_plan *p = &b->plan;
	struct cairn_step_item *item = &b->items[p->num_items - 1];
	const struct cairn_sched_draft *d = q->proposal >= 0 ? &s->proposals[q->proposal] : NULL;
	int32_t num = d ? d->num : 0;
	int ret = -ENOSPC;

	if (num > s->opt.draft_rows - b->num_drafts)
		num = s->opt.draft_rows - b->num_drafts;
	/* Drafts take free pages and cached ones, but preempt nobody. */
	for (; num > 0 && (ret = sched_grow(s, q, q->computed + num, SCHED_CACHED)) == -ENOSPC; num /= 2)
		;
	if (num < 1)
		return 0;
	CAIRN_TRY(ret);
	b->draws[item->draw].num_drafts = num;
	b->draws[item->draw].ids_at = p->num_rows;
	memcpy(b->ids + p->num_rows, d->drafts, (size_t)num * sizeof(*b->ids));
	memcpy(b->parents + p->num_rows, d->parents, (size_t)num * sizeof(*b->parents));
	item->num_rows += num;
	item->num_drafts = num;
	p->num_rows += num;
	p->num_draws += num;
	b->num_drafts += num;
	q->computed += num;
	q->drafted = num;
	s->stats.drafts++;
	s->stats.draft_tokens += num;
	return 0;
}

int sched_settle(struct cairn_scheduler *s, struct sched_seq *q, int32_t accepted)
{
	int32_t wrong = q->drafted - accepted - FAULT(DRAFT_ROW_TOO_MANY);

	s->stats.accepted_tokens += accepted;
	if (!q->drafted)		/* preempted meanwhile: it has no rows at all */
		return 0;
	q->drafted = 0;
	if (FAULT(DRAFT_KV_KEPT) || wrong < 0)
		return 0;
	q->computed -= wrong;
	return cairn_kv_pool_resize(s->device.pool, q->kv, q->computed, NULL);
}
