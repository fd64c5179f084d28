// SPDX-License-Identifier: Apache-2.0
/*
 * scheduler_plan - forming a plan
 *
 *   1. Requests whose deadline has passed end.
 *   2. Each decoding sequence gets its row, in order of arrival. One that finds no page, with no younger
 *      one to take from, is set back itself.
 *   3. Prompts that have been begun, and sequences that were set back, get rows until the step is full.
 *   4. Waiting requests are admitted, and get rows, until the step is full, unless somebody has just been set
 *      back for want of memory. One that begins as a prompt does which is being computed waits for that.
 *   5. Prompts that are now computed go into the tree; pages that are full, to the host.
 *
 * Each prompt whose answers are several is computed but for its last token, and then forked: every answer
 * computes that one row by itself, and draws its first token from it.
 */
#include <stdlib.h>
#include <string.h>

#include "serving/scheduler/scheduler_impl.h"

#define MOST_PUT_OFF	8		/* candidates whose prompts are compared with those being computed */

static int expire(struct cairn_scheduler *s, int64_t now)
{
	int64_t next = INT64_MAX;

	if (now < s->next_deadline)
		return 0;
	for (int32_t i = s->num_running - 1; i >= 0; i--) {
		struct sched_seq *q = s->running[i];

		if (q->req->deadline_ns && q->req->deadline_ns <= now && !FAULT(DEADLINE_LATE))
			CAIRN_TRY(sched_finish(s, q, CAIRN_SCHED_EXPIRED, -1));
		else if (q->req->deadline_ns && q->req->deadline_ns < next)
			next = q->req->deadline_ns;
	}
	for (struct sched_seq *q = s->queue, *after; q; q = after) {
		after = q->next;
		if (q->req->deadline_ns && q->req->deadline_ns <= now)
			CAIRN_TRY(sched_finish(s, q, CAIRN_SCHED_EXPIRED, -1));
		else if (q->req->deadline_ns && q->req->deadline_ns < next)
			next = q->req->deadline_ns;
	}
	s->next_deadline = next;
	return 0;
}

/* How many rows a sequence could give now. */
static int32_t rest(const struct sched_seq *q)
{
	int32_t len = q->num_known + q->in_flight;

	if (len - q->req->num_prompt >= q->req->max_new || q->is_held || (q->req->lockstep && q->in_flight))
		return 0;
	return len - q->computed - (q->req->unforked > 0);
}

static int is_decoding(const struct sched_seq *q)
{
	return q->num_known + q->in_flight > q->req->num_prompt &&
	       q->num_known + q->in_flight - q->computed == 1;
}

/* Rows that q has grown for. */
static int put_rows(struct plan_buffer *b, struct sched_seq *q, int32_t num_rows)
{
	struct cairn_step_plan *p = &b->plan;
	struct cairn_step_item *item = &b->items[p->num_items++];
	int parity = (int)(p->number & 1);

	*item = (struct cairn_step_item){
		.request = q->req->id, .index = q->index, .kv = q->kv, .first = q->computed,
		.num_rows = num_rows, .ids_at = p->num_rows, .follows = -1, .draw = -1,
	};
	for (int32_t k = 0; k < num_rows; k++) {
		int32_t at = q->computed + k;

		if (at >= q->num_known) {	/* drawn by the plan before, and nobody knows it yet */
			item->follows = q->draw[!parity];
			if (item->follows < 0)
				return cairn_error(EIO, "scheduler: token %d of a sequence is drawn nowhere",
						   at);
		}
		b->ids[p->num_rows++] = at < q->num_known ? q->tokens[at] : -1;
	}
	q->computed += num_rows;
	q->planned = p->number;
	if (q->computed == q->num_known + q->in_flight) {
		item->draw = p->num_draws++;
		q->draw[parity] = item->draw;
		q->in_flight++;
		b->draws[item->draw].seq = q;
		b->draws[item->draw].request = q->req->id;
		b->draws[item->draw].index = q->index;
	}
	return 0;
}

/* Where q is that was at i: held ones before it may have given way. */
static int32_t place_of(const struct cairn_scheduler *s, const struct sched_seq *q, int32_t i)
{
	while (i >= s->num_running || s->running[i] != q)
		i--;
	return i;
}

static int decodes(struct cairn_scheduler *s, struct plan_buffer *b)
{
	for (int32_t i = 0; i < s->num_running; i++) {
		struct sched_seq *q = s->running[i];
		int ret;

		if (!is_decoding(q) || rest(q) < 1)
			continue;
		ret = sched_grow(s, q, q->computed + 1, 1);
		if (ret == -ENOSPC) {
			CAIRN_TRY(sched_preempt(s, q));
			i--;
			continue;
		}
		CAIRN_TRY(ret);
		CAIRN_TRY(put_rows(b, q, 1));
		i = place_of(s, q, i);
	}
	b->plan.num_decodes = b->plan.num_items;
	return 0;
}

/* Rows of a sequence that has more of them to give than one: as many as are left in the step and find
 * pages. */
static int advance(struct cairn_scheduler *s, struct plan_buffer *b, struct sched_seq *q, int32_t room,
		   int may_preempt)
{
	int32_t rows;
	int ret;

	while (q->req->unforked && q->computed == q->req->num_prompt - 1) {
		struct sched_seq *child;

		CAIRN_TRY(sched_fork(s, q, &child));
		q->req->unforked--;
		s->promised_seqs--;
		sched_insert_running(s, child);
		s->promised_seqs -= child->req->unforked;	/* they are q's, and counted there */
	}
	rows = rest(q) < room ? rest(q) : room;
	if (s->opt.max_chunk && rows > s->opt.max_chunk)
		rows = s->opt.max_chunk;
	if (rows < 1)
		return 0;
	for (ret = sched_grow(s, q, q->computed + rows, may_preempt); ret == -ENOSPC && rows > 1;) {
		rows /= 2;
		ret = sched_grow(s, q, q->computed + rows, 0);
	}
	if (ret)
		return ret == -ENOSPC ? 0 : ret;
	return put_rows(b, q, rows);
}

static int prompts(struct cairn_scheduler *s, struct plan_buffer *b, int32_t max_rows)
{
	for (int32_t i = 0; i < s->num_running && b->plan.num_rows < max_rows; i++) {
		struct sched_seq *q = s->running[i];

		if (q->planned != b->plan.number)
			CAIRN_TRY(advance(s, b, q, max_rows - b->plan.num_rows, 1));
		i = place_of(s, q, i);
	}
	return 0;
}

static int32_t peek(struct cairn_scheduler *s, struct sched_seq *q)
{
	if (!s->device.tree)
		return 0;
	if (q->peeked_version != cairn_prefix_tree_version(s->device.tree)) {
		q->peeked_version = cairn_prefix_tree_version(s->device.tree);
		q->peeked = (int32_t)cairn_prefix_tree_peek(s->device.tree, q->req->salt, q->tokens,
							    q->num_known);
	}
	return q->peeked;
}

/* The one that may be admitted next; *found: how much of it the tree has. NULL: nobody now. */
static struct sched_seq *pick(struct cairn_scheduler *s, int32_t *found)
{
	struct sched_seq *q = s->queue, *best = NULL;
	int32_t seen = 0;

	if (s->num_preempted) {
		while (q && (!q->was_running || q->is_held))
			q = q->next;
		if (!q)
			return NULL;
		*found = peek(s, q);
		return q->in_flight ? NULL : q;
	}
	for (; q && seen < s->opt.window; q = q->next, seen++) {
		if (q->is_fetching != 1 && q->put_off != s->plan_number + 1 &&
		    (!best || peek(s, q) > peek(s, best)))
			best = q;
		/* the head has been overtaken as often as any: when it has had enough, it is its turn */
		if (q == s->queue && q->passed >= s->opt.max_passes && !FAULT(STARVATION))
			break;
	}
	if (best)
		*found = peek(s, best);
	return best;
}

/* Is a prompt being computed that will leave a page more of q in the tree than is there? Of a burst of equal
 * prompts only the first one is computed. Who has been overtaken often enough does not wait. */
static int awaits_another(const struct cairn_scheduler *s, const struct sched_seq *q, int32_t found)
{
	if (!s->device.tree || q->was_running || q->passed >= s->opt.max_passes)
		return 0;
	for (int32_t i = 0; i < s->num_running; i++) {
		const struct sched_seq *r = s->running[i];
		int32_t most = r->req->num_prompt < q->num_known ? r->req->num_prompt : q->num_known, k = 0;

		if (r->is_cached || r->req->salt.hi != q->req->salt.hi || r->req->salt.lo != q->req->salt.lo)
			continue;
		while (k < most && r->tokens[k] == q->tokens[k])
			k++;
		if (k / s->opt.page_size > found / s->opt.page_size)
			return 1;
	}
	return 0;
}

static int admit(struct cairn_scheduler *s, struct sched_seq *q)
{
	for (struct sched_seq *p = s->queue; p != q; p = p->next) {
		if (!q->was_running && !p->was_running) {
			p->passed++;
			s->stats.overtakes++;
		}
	}
	sched_dequeue(s, q);
	s->stats.admitted++;
	s->stats.prompt_tokens += q->num_known;
	if (FAULT(DOUBLE_ADMISSION))
		sched_insert_running(s, q);
	sched_insert_running(s, q);
	return sched_place(s, q);
}

static int admissions(struct cairn_scheduler *s, struct plan_buffer *b, int32_t max_rows, int64_t set_back)
{
	struct sched_seq *q;
	int32_t found = 0, put_off = 0;
	int ret;

	if (!s->queue || b->plan.num_rows >= max_rows ||
	    s->num_running + s->promised_seqs >= s->opt.max_seqs ||
	    set_back != s->stats.swapped + s->stats.recomputed)
		return 0;
	sched_forecast(s);
	while (b->plan.num_rows < max_rows && (q = s->queue ? pick(s, &found) : NULL)) {
		ret = sched_fetch(s, q, found);
		if (ret < 0)
			return ret;
		if (ret)
			continue;	/* it waits for the disk; somebody else may go */
		if (awaits_another(s, q, found)) {
			q->put_off = b->plan.number;
			if (++put_off < MOST_PUT_OFF)
				continue;
			break;
		}
		if (s->num_running + s->promised_seqs + 1 + q->req->unforked > s->opt.max_seqs)
			return 0;
		if (s->num_running && !sched_fits(s, q, found)) {
			if (q == s->queue || q->was_running)
				return 0;
			q = s->queue;	/* the one whose turn it is may be smaller */
			found = peek(s, q);
			if (q->is_fetching == 1 || q->put_off == b->plan.number || !sched_fits(s, q, found))
				return 0;
			if (s->num_running + s->promised_seqs + 1 + q->req->unforked > s->opt.max_seqs)
				return 0;
		}
		CAIRN_TRY(admit(s, q));
		if (s->num_running == 1)	/* nobody has asked whether it fits: it counts for the next */
			sched_forecast(s);
		CAIRN_TRY(advance(s, b, q, max_rows - b->plan.num_rows, 0));
		if (q->planned == b->plan.number)
			continue;
		if (s->num_running > 1)	/* it was expected to fit, and does not: not now, then */
			CAIRN_TRY(sched_preempt(s, q));
		return 0;
	}
	/* the other answers of the last one that was admitted */
	return prompts(s, b, max_rows);
}

/* Those that run are all held for the sake of one that has given way, and finds no room: they give way. */
static int make_way(struct cairn_scheduler *s)
{
	int waits = 0;

	for (struct sched_seq *q = s->queue; q && !waits; q = q->next)
		waits = q->was_running && !q->is_held;
	for (int32_t i = s->num_running - 1; waits && i >= 0; i--) {
		if (s->running[i]->is_held)
			return sched_preempt(s, s->running[i]);
	}
	return 0;
}

static int gather_moves(struct cairn_scheduler *s, struct plan_buffer *b)
{
	int32_t num = s->before.num + s->after.num;

	if (num > b->moves_room) {
		struct cairn_move *moves = realloc(b->moves, 2 * (size_t)num * sizeof(*moves));

		if (!moves)
			return cairn_error(ENOMEM, "scheduler: no memory for %d moves", num);
		b->moves = moves;
		b->moves_room = 2 * num;
	}
	if (s->before.num)
		memcpy(b->moves, s->before.moves, (size_t)s->before.num * sizeof(*b->moves));
	if (s->after.num)
		memcpy(b->moves + s->before.num, s->after.moves, (size_t)s->after.num * sizeof(*b->moves));
	b->plan.num_moves_before = s->before.num;
	b->plan.num_moves = num;
	s->before.num = s->after.num = 0;
	return 0;
}

static int form(struct cairn_scheduler *s, struct plan_buffer *b, int64_t now)
{
	int32_t max_rows = s->opt.dense_rows + FAULT(OVER_COMMIT);
	int64_t set_back = s->stats.swapped + s->stats.recomputed;

	CAIRN_TRY(expire(s, now));
	CAIRN_TRY(decodes(s, b));
	CAIRN_TRY(prompts(s, b, max_rows));
	CAIRN_TRY(admissions(s, b, max_rows, set_back));
	if (!b->plan.num_items && !s->unreported)
		CAIRN_TRY(make_way(s));
	for (int32_t i = 0; i < s->num_running; i++) {
		struct sched_seq *q = s->running[i];

		if (q->planned != b->plan.number)
			continue;
		CAIRN_TRY(sched_keep_prompt(s, q));
		if (s->host.tree && q->req->keep)
			CAIRN_TRY(sched_offload(s, q));
	}
	return gather_moves(s, b);
}

int cairn_scheduler_plan(struct cairn_scheduler *s, int64_t now_ns, const struct cairn_step_plan **out)
{
	struct plan_buffer *b = &s->plans[(s->plan_number + 1) & 1];
	struct cairn_step_plan *p = &b->plan;

	if (s->failed)
		return cairn_error(EINVAL, "scheduler: an earlier call has failed");
	if (s->unreported > s->opt.ahead)
		return cairn_error(EBUSY, "scheduler: plan %llu is to be reported first",
				   (unsigned long long)(s->plan_number - (uint64_t)s->unreported + 1));
	*p = (struct cairn_step_plan){ .number = s->plan_number + 1 };
	s->failed = 1;
	CAIRN_TRY(form(s, b, now_ns));
	s->failed = 0;
	p->items = b->items;
	p->ids = b->ids;
	p->moves = b->moves;
	if (p->num_items) {		/* a plan without rows leaves no trace: its number comes again */
		s->plan_number++;
		s->unreported++;
		s->stats.plans++;
		s->stats.rows += p->num_rows;
		s->stats.decode_rows += p->num_decodes;
		s->stats.draws += p->num_draws;
	}
	*out = p;
	return 0;
}
