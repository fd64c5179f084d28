// SPDX-License-Identifier: Apache-2.0
/*
 * scheduler_plan - forms a plan
 *
 *   1. Requests whose deadline has passed end.
 *   2. Each decoding sequence gets its row, in order of arrival, and drafted rows if it speculates. A
 *      sequence that finds neither a page nor a younger sequence to preempt is preempted itself.
 *   3. Prompts already started, and resumed sequences, get rows until the step is full.
 *   4. Unless this plan has preempted a sequence, waiting requests are admitted and get rows until the step
 *      is full. A request that shares its prefix with a prompt being computed is held back.
 *   5. Prompts that are now computed are inserted into the tree; full pages are copied to the host.
 *
 * With repeat_chunk, plans alternate between the rows of step 2 and those of steps 3 and 4, which then give
 * one chunk to one prompt. An answer that is recomputed counts as decoding. With `separate` they alternate,
 * too.
 *
 * With lanes, all of this looks at the sequences of one lane only, except that any sequence may expire or be
 * preempted.
 *
 * A prompt with several answers is computed except for its last token and then forked. Each answer computes
 * that last row itself and draws its first token from it.
 */
#include <stdlib.h>
#include <string.h>

#include "serving/scheduler/scheduler_impl.h"

#define MOST_PUT_OFF	8		/* maximum requests held back per plan for a prompt being computed */

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

/* Returns how many rows of a sequence could be computed now; < 1: none, as always with drafts in flight. */
static int32_t rest(const struct sched_seq *q)
{
	int32_t len = q->num_known + q->in_flight;

	int waits = q->req->lockstep || q->speculates;

	if (len - q->req->num_prompt >= q->req->max_new || q->is_held || (waits && q->in_flight))
		return 0;
	return len - q->computed - (q->req->unforked > 0);
}

static int is_decoding(const struct cairn_scheduler *s, const struct sched_seq *q)
{
	if (s->opt.repeat_chunk && !FAULT(REPEAT_REPLAY))
		return q->computed >= q->req->num_prompt;
	return q->num_known + q->in_flight > q->req->num_prompt &&
	       q->num_known + q->in_flight - q->computed == 1;
}

/* Adds rows of q to the plan; its page list is already long enough. */
static int put_rows(struct plan_buffer *b, struct sched_seq *q, int32_t num_rows)
{
	struct cairn_step_plan *p = &b->plan;
	struct cairn_step_item *item = &b->items[p->num_items++];
	int place = sched_buffer(p->number);

	*item = (struct cairn_step_item){
		.request = q->req->id, .index = q->index, .kv = q->kv, .first = q->computed,
		.num_rows = num_rows, .ids_at = p->num_rows, .follows = -1, .draw = -1,
	};
	for (int32_t k = 0; k < num_rows; k++) {
		int32_t at = q->computed + k;

		if (at >= q->num_known) {	/* the previous plan draws it but is not reported yet */
			item->follows = q->draw[sched_buffer(p->number - 1)];
			if (item->follows < 0)
				return cairn_error(EIO, "scheduler: no plan draws token %d of a sequence",
						   at);
		}
		b->ids[p->num_rows++] = at < q->num_known ? q->tokens[at] : -1;
	}
	q->computed += num_rows;
	q->planned = p->number;
	if (q->computed == q->num_known + q->in_flight) {
		item->draw = p->num_draws++;
		q->draw[place] = item->draw;
		p->in_turn |= q->speculates;
		q->in_flight++;
		b->draws[item->draw].seq = q;
		b->draws[item->draw].request = q->req->id;
		b->draws[item->draw].index = q->index;
		b->draws[item->draw].num_drafts = 0;
	}
	return 0;
}

/* Returns q's index in running[]. It was i, but held sequences before q may have been preempted since. */
static int32_t place_of(const struct cairn_scheduler *s, const struct sched_seq *q, int32_t i)
{
	while (i >= s->num_running || s->running[i] != q)
		i--;
	return i;
}

static int decodes(struct cairn_scheduler *s, struct plan_buffer *b)
{
	if (s->opt.max_drafts)
		CAIRN_TRY(sched_propose(s));
	for (int32_t i = 0; i < s->num_running; i++) {
		struct sched_seq *q = s->running[i];
		int ret;

		if (!is_decoding(s, q) || rest(q) < 1 ||
		    (!sched_is_of_lane(s, q) && !FAULT(LANE_IGNORED)))
			continue;
		ret = sched_grow(s, q, q->computed + 1, SCHED_RUNNING);
		if (ret == -ENOSPC) {
			CAIRN_TRY(sched_preempt(s, q));
			i--;
			continue;
		}
		CAIRN_TRY(ret);
		CAIRN_TRY(put_rows(b, q, 1));
		CAIRN_TRY(sched_add_drafts(s, b, q));
		i = place_of(s, q, i);
	}
	b->plan.num_decodes = b->plan.num_items;
	return 0;
}

/* Returns how many rows may have logits in addition to one per running sequence. */
static int32_t spare_logits(const struct cairn_scheduler *s, const struct plan_buffer *b)
{
	int32_t spare = s->opt.max_seqs - s->num_running - s->promised_seqs - b->num_extra;

	return spare < 0 ? 0 : s->queue ? spare / 2 : spare;
}

/* Returns how many rows of q, at most `rows`, one plan may have. */
static int32_t cut(const struct cairn_scheduler *s, const struct sched_seq *q, int32_t rows)
{
	int32_t chunk = s->opt.repeat_chunk, end = q->req->num_prompt;

	if (!chunk)
		return s->opt.max_chunk && rows > s->opt.max_chunk ? s->opt.max_chunk : rows;
	if (FAULT(REPEAT_REPLAY) && q->computed >= end)
		return rows;
	/* Each answer computes the last row by itself, even if the prompt is recomputed for one of them. */
	if (q->req->is_forked && q->computed < end - 1 && !FAULT(REPEAT_LAST_ROW))
		end--;
	if (end > q->computed - q->computed % chunk + chunk)
		end = q->computed - q->computed % chunk + chunk;
	return rows < end - q->computed ? rows : end - q->computed;
}

/* Returns how many rows this plan can still take. */
static int32_t room(const struct cairn_scheduler *s, const struct plan_buffer *b)
{
	if ((s->opt.repeat_chunk || s->opt.separate) && b->plan.num_items && !FAULT(REPEAT_MIXED))
		return 0;
	return s->opt.dense_rows + FAULT(OVER_COMMIT) - b->plan.num_rows;
}

/* Gives a sequence that has no rows in this plan as many as the step and the free pages allow. */
static int advance(struct cairn_scheduler *s, struct plan_buffer *b, struct sched_seq *q,
		   enum sched_from from)
{
	int scored = q->req->scored && q->computed < q->req->num_prompt;
	int32_t rows;
	int ret;

	while (q->req->unforked && q->computed == q->req->num_prompt - 1) {
		struct sched_seq *child;

		CAIRN_TRY(sched_fork(s, q, &child));
		q->req->unforked--;
		s->promised_seqs--;
		sched_insert_running(s, child);
		/* sched_insert_running() has counted the promise of q's request a second time */
		s->promised_seqs -= child->req->unforked;
	}
	rows = cut(s, q, rest(q) < room(s, b) ? rest(q) : room(s, b));
	if (scored && rows > 1 + spare_logits(s, b))
		rows = 1 + spare_logits(s, b);
	if (rows < 1)
		return 0;
	ret = sched_grow(s, q, q->computed + rows, from);
	while (ret == -ENOSPC && rows > 1 && (!s->opt.repeat_chunk || FAULT(REPEAT_HALVED))) {
		rows /= 2;
		ret = sched_grow(s, q, q->computed + rows, SCHED_RESERVED);
	}
	if (ret)
		return ret == -ENOSPC ? 0 : ret;
	b->num_extra += scored ? rows - 1 : 0;
	return put_rows(b, q, rows);
}

static int prompts(struct cairn_scheduler *s, struct plan_buffer *b)
{
	for (int32_t i = 0; i < s->num_running && room(s, b) > 0; i++) {
		struct sched_seq *q = s->running[i];

		if (q->planned != b->plan.number && (sched_is_of_lane(s, q) || FAULT(LANE_PROMPT_IGNORED)))
			CAIRN_TRY(advance(s, b, q, SCHED_RUNNING));
		i = place_of(s, q, i);
	}
	return 0;
}

static int32_t peek(struct cairn_scheduler *s, struct sched_seq *q)
{
	int64_t found;

	if (!s->device.tree)
		return 0;
	if (q->peeked_version != cairn_prefix_tree_version(s->device.tree)) {
		q->peeked_version = cairn_prefix_tree_version(s->device.tree);
		found = cairn_prefix_tree_peek(s->device.tree, q->req->salt, q->tokens, q->num_known);
		q->peeked = (int32_t)sched_usable(s, q, found);
	}
	return q->peeked;
}

/* Returns the lane's oldest request that does not wait for an import; NULL: there is none. */
static struct sched_seq *head(const struct cairn_scheduler *s)
{
	struct sched_seq *q = s->queue;

	while (q && (q->is_fetching == SCHED_PULLED || !sched_is_of_lane(s, q)))
		q = q->next;
	return q;
}

/* Returns the request to admit next, or NULL; *found: how many of its tokens the tree has. */
static struct sched_seq *pick(struct cairn_scheduler *s, int32_t *found)
{
	struct sched_seq *q = s->queue, *best = NULL;
	int32_t seen = 0;

	if (s->num_preempted) {
		while (q && (!q->was_running || q->is_held))
			q = q->next;
		if (!q || (!sched_is_of_lane(s, q) && !FAULT(LANE_RESUMED_ANYWHERE)))
			return NULL;
		if (FAULT(LANE_RESUMED_ANYWHERE))
			q->req->lane = s->lane;
		*found = peek(s, q);
		return q->in_flight || q->is_fetching == SCHED_FETCHING ? NULL : q;
	}
	for (; q && seen < s->opt.window; q = q->next) {
		if (q->is_fetching == SCHED_PULLED && !FAULT(IMPORT_UNAWAITED))
			continue;
		if (!sched_enter_lane(s, q))
			continue;
		seen++;
		if (q->is_fetching != SCHED_FETCHING && q->put_off != s->plan_number + 1 &&
		    (!best || peek(s, q) > peek(s, best)))
			best = q;
		/* it was overtaken max_passes times: nothing may overtake it again */
		if (q->passed >= s->opt.max_passes && !FAULT(STARVATION))
			break;
	}
	if (best)
		*found = peek(s, best);
	return best;
}

/*
 * Returns whether a running prompt will leave at least one more page (with repeat_chunk: chunk) of q's prefix
 * in the tree than is there now. If q waits for that prompt, only the first of a burst of equal prompts is
 * computed. A request that was overtaken max_passes times does not wait.
 */
static int awaits_another(const struct cairn_scheduler *s, const struct sched_seq *q, int32_t found)
{
	int32_t unit = s->opt.repeat_chunk ? s->opt.repeat_chunk : s->opt.page_size;

	if (!s->device.tree || q->was_running || q->passed >= s->opt.max_passes)
		return 0;
	for (int32_t i = 0; i < s->num_running; i++) {
		const struct sched_seq *r = s->running[i];
		int32_t most = r->req->num_prompt < q->num_known ? r->req->num_prompt : q->num_known, k = 0;

		if (r->is_cached || r->req->salt.hi != q->req->salt.hi || r->req->salt.lo != q->req->salt.lo)
			continue;
		while (k < most && r->tokens[k] == q->tokens[k])
			k++;
		if (k / unit > found / unit)
			return 1;
	}
	return 0;
}

static int admit(struct cairn_scheduler *s, struct sched_seq *q)
{
	for (struct sched_seq *p = s->queue; p != q; p = p->next) {
		if (!q->was_running && !p->was_running && (sched_is_of_lane(s, p) || p->req->lane < 0) &&
		    (p->is_fetching != SCHED_PULLED || FAULT(IMPORT_OVERTAKEN))) {
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

static int admissions(struct cairn_scheduler *s, struct plan_buffer *b, int64_t preempted)
{
	struct sched_seq *q;
	int32_t found = 0, put_off = 0;
	int ret;

	if (!s->queue || room(s, b) < 1 ||
	    s->num_running + s->promised_seqs + b->num_extra >= s->opt.max_seqs ||
	    preempted != s->stats.swapped + s->stats.recomputed)
		return 0;
	sched_forecast(s);
	sched_weigh_lanes(s);
	while (room(s, b) > 0 && (q = s->queue ? pick(s, &found) : NULL)) {
		ret = sched_fetch(s, q, found);
		if (ret < 0)
			return ret;
		if (ret)
			continue;	/* q waits for the disk; another request may be admitted */
		if (awaits_another(s, q, found)) {
			q->put_off = b->plan.number;
			if (++put_off < MOST_PUT_OFF)
				continue;
			break;
		}
		if (s->num_running + s->promised_seqs + b->num_extra + 1 + q->req->unforked > s->opt.max_seqs)
			return 0;
		if (s->num_running && !sched_fits(s, q, found, 0)) {
			if (q == head(s) || q->was_running)
				return 0;
			q = head(s);	/* it may need less memory */
			found = peek(s, q);
			if (q->is_fetching == SCHED_FETCHING || q->put_off == b->plan.number ||
			    !sched_fits(s, q, found, 0))
				return 0;
			if (s->num_running + s->promised_seqs + b->num_extra + 1 + q->req->unforked >
			    s->opt.max_seqs)
				return 0;
		}
		CAIRN_TRY(admit(s, q));
		/* the first one was admitted without sched_fits(), so its demand is not counted yet */
		if (s->num_running == 1)
			sched_forecast(s);
		CAIRN_TRY(advance(s, b, q, SCHED_RESERVED));
		/* a swapped-in answer gets its row with the decoding ones */
		if (q->planned == b->plan.number ||
		    (s->opt.repeat_chunk && q->computed >= q->req->num_prompt))
			continue;
		if (s->num_running > 1)	/* it does not fit, against the prediction: admit it later */
			CAIRN_TRY(sched_preempt(s, q));
		return 0;
	}
	/* the other answers of the request admitted last get their rows here */
	return prompts(s, b);
}

/* If all running sequences are held and a preempted one that could run finds no room, preempts a held one. */
static int preempt_held(struct cairn_scheduler *s)
{
	int waits = 0;

	for (struct sched_seq *q = s->queue; q && !waits; q = q->next)
		waits = q->was_running && !q->is_held && q->is_fetching != SCHED_FETCHING &&
			sched_is_of_lane(s, q);
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
	int *was_prompt = &s->was_prompt[s->lane];
	int prompt_first = (s->opt.repeat_chunk || s->opt.separate) && !*was_prompt;
	int64_t preempted = s->stats.swapped + s->stats.recomputed;

	CAIRN_TRY(expire(s, now));
	sched_leave_lane(s);
	if (!prompt_first)
		CAIRN_TRY(decodes(s, b));
	CAIRN_TRY(prompts(s, b));
	CAIRN_TRY(admissions(s, b, preempted));
	*was_prompt = b->plan.num_items > b->plan.num_decodes;
	if (!b->plan.num_items && prompt_first)
		CAIRN_TRY(decodes(s, b));
	if (!b->plan.num_items && !s->unreported)
		CAIRN_TRY(preempt_held(s));
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
	return cairn_scheduler_plan_lane(s, 0, now_ns, out);
}

int cairn_scheduler_plan_lane(struct cairn_scheduler *s, int32_t lane, int64_t now_ns,
			      const struct cairn_step_plan **out)
{
	struct plan_buffer *b = &s->plans[sched_buffer(s->plan_number + 1)];
	struct cairn_step_plan *p = &b->plan;

	if (s->failed)
		return cairn_error(EINVAL, "scheduler: an earlier call has failed");
	if (lane < 0 || lane >= s->opt.lanes)
		return cairn_error(EINVAL, "scheduler: lane %d of %d", lane, s->opt.lanes);
	if (sched_blocks(s, lane))
		return cairn_error(EBUSY, "scheduler: plan %llu must be reported first",
				   (unsigned long long)sched_blocks(s, lane));
	*p = (struct cairn_step_plan){ .number = s->plan_number + 1, .lane = lane };
	s->lane = lane;
	b->num_extra = b->num_drafts = 0;
	s->failed = 1;
	CAIRN_TRY(form(s, b, now_ns));
	s->failed = 0;
	p->items = b->items;
	p->ids = b->ids;
	p->parents = b->parents;
	p->moves = b->moves;
	if (p->num_items) {		/* a plan without rows does not use up its number */
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
