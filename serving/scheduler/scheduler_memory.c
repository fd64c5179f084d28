// SPDX-License-Identifier: Apache-2.0
/*
 * scheduler_memory - allocates pages, preempts sequences and predicts the memory needed
 */
#include <stdlib.h>
#include <string.h>

#include "serving/scheduler/scheduler_impl.h"

int sched_move(struct cairn_scheduler *s, struct move_list *list, int kind, int32_t page, int32_t to)
{
	if (list->num == list->room) {
		int32_t room = list->room ? 2 * list->room : 64;
		struct cairn_move *moves = realloc(list->moves, (size_t)room * sizeof(*moves));

		if (!moves)
			return cairn_error(ENOMEM, "scheduler: no memory for %d moves", room);
		list->moves = moves;
		list->room = room;
	}
	list->moves[list->num++] = (struct cairn_move){ .kind = kind, .page = page, .to = to };
	s->stats.moves[kind]++;
	return 0;
}

/*
 * Chooses the youngest running sequence that is younger than q and has no rows in the plan being formed;
 * otherwise a held one. A held sequence makes no progress until the other beams have drawn, and q may be one
 * of them. If held sequences could not be preempted, q might be preempted again and again in favour of one.
 */
static struct sched_seq *choose_victim(struct cairn_scheduler *s, const struct sched_seq *q)
{
	for (int32_t i = s->num_running - 1; i >= 0 && sched_younger(s->running[i], q); i--) {
		if (s->running[i]->planned != s->plan_number + 1 || FAULT(VICTIM_PLANNED))
			return s->running[i];
	}
	for (int32_t i = s->num_running - 1; i >= 0; i--) {
		if (s->running[i]->is_held && s->running[i]->planned != s->plan_number + 1)
			return s->running[i];
	}
	return NULL;
}

/*
 * Makes a sequence len tokens long. Missing pages come from the tree first, then, as far as `from` allows,
 * from reservations, from younger sequences, and from held ones. Finally, a sequence that runs alone may drop
 * its pin on the prefix that it found, so that it owns its last page alone and need not copy it. The oldest
 * sequence thus always makes progress, because it can get the whole pool. -ENOSPC: all of this was not
 * enough.
 */
int sched_grow(struct cairn_scheduler *s, struct sched_seq *q, int64_t len, enum sched_from from)
{
	struct cairn_kv_copy copy;
	struct sched_seq *victim;
	int32_t leaf, before;
	int ret;

	while ((ret = cairn_kv_pool_resize(s->device.pool, q->kv, len, &copy)) == -ENOSPC) {
		leaf = s->device.tree ? cairn_prefix_tree_victim(s->device.tree) : CAIRN_PREFIX_NONE;
		if (leaf != CAIRN_PREFIX_NONE) {
			before = cairn_kv_pool_free_pages(s->device.pool);
			CAIRN_TRY(cairn_prefix_tree_remove(s->device.tree, leaf));
			s->stats.evicted_pages += cairn_kv_pool_free_pages(s->device.pool) - before;
			continue;
		}
		if (from >= SCHED_RESERVED && sched_revoke(s))
			continue;
		victim = from >= SCHED_RUNNING ? choose_victim(s, q) : NULL;
		if (victim) {
			CAIRN_TRY(sched_preempt(s, victim));
			continue;
		}
		if (q->node == CAIRN_PREFIX_NONE || s->num_running > 1)
			return ret;
		cairn_prefix_tree_unpin(s->device.tree, q->node);
		q->node = CAIRN_PREFIX_NONE;
	}
	if (!ret && copy.from >= 0)
		ret = sched_move(s, &s->before, CAIRN_MOVE_COPY, copy.from, copy.to);
	return ret;
}

/* Preempts q: moves it back to the queue and releases its pages. */
int sched_preempt(struct cairn_scheduler *s, struct sched_seq *q)
{
	int32_t computed = q->computed - (FAULT(DRAFT_SWAPPED) ? 0 : q->drafted);
	int64_t ps = s->opt.page_size, pages = (computed + ps - 1) / ps, out = pages;
	int swapped = 0;

	if (q->shadow >= 0)
		out -= cairn_kv_pool_len(s->host.pool, q->shadow) / ps;
	if (s->host.pool && computed &&
	    (out + pages) * s->opt.swap_ns < (computed - q->adopted * ps) * s->opt.recompute_ns) {
		int ret = sched_swap_out(s, q, computed);

		if (ret && ret != -ENOSPC)
			return ret;
		swapped = !ret;
	}
	s->stats.swapped += swapped;
	s->stats.recomputed += !swapped;
	sched_unpin(s, q);
	CAIRN_TRY(cairn_kv_pool_close(s->device.pool, q->kv));
	q->kv = NOWHERE;
	q->computed = q->adopted = q->drafted = 0;
	sched_remove_running(s, q);
	q->was_running = 1;
	sched_enqueue(s, q);
	return 0;
}

/* Takes back the draws of the last plan, which was not carried out. */
static void undo_plan(struct cairn_scheduler *s)
{
	const int place = sched_buffer(s->plan_number);
	struct plan_buffer *b = &s->plans[place];

	for (int32_t i = 0; i < b->plan.num_draws; i++) {
		struct sched_seq *q = b->draws[i].seq;

		if (q) {		/* NULL: the sequence has ended */
			q->in_flight -= !FAULT(RESET_DRAW_KEPT);
			q->draw[place] = -1;
		}
		i += b->draws[i].num_drafts;
	}
	s->plan_number -= !FAULT(RESET_NUMBER_KEPT);
	s->unreported--;
}

int cairn_scheduler_reset(struct cairn_scheduler *s, int undo)
{
	int32_t leaf;

	if (s->failed || s->host.pool || undo < 0 || undo > s->unreported)
		return cairn_error(EINVAL, "scheduler: reset: %s", s->failed ? "an earlier call has failed" :
				   s->host.pool ? "the host tier holds keys" : "fewer plans are unreported");
	s->failed = 1;
	for (; undo > 0; undo -= FAULT(RESET_ONE_PLAN) ? undo : 1)
		undo_plan(s);
	while (s->num_running) {
		struct sched_seq *q = s->running[s->num_running - 1];

		CAIRN_TRY(sched_preempt(s, q));
		q->planned = 0;
		q->is_cached = 0;
	}
	while (sched_revoke(s))
		;
	while (s->device.tree && !FAULT(RESET_TREE_KEPT)) {
		leaf = cairn_prefix_tree_victim(s->device.tree);
		if (leaf == CAIRN_PREFIX_NONE)
			break;
		CAIRN_TRY(cairn_prefix_tree_remove(s->device.tree, leaf));
	}
	for (struct sched_seq *q = s->queue; q; q = q->next)
		q->planned = q->put_off = 0;	/* the number of the plan undone is used again */
	s->before.num = s->after.num = 0;
	s->failed = 0;
	return 0;
}

/*
 * Returns how many tokens an answer is expected to have beyond its first `given`: the mean less `given`, but
 * at least a quarter of the mean, because a long answer tends to become longer still.
 */
static int32_t expect_left(const struct cairn_scheduler *s, int32_t given, int32_t max_new)
{
	double left = s->expected_new - given;

	if (left < s->expected_new / 4)
		left = s->expected_new / 4;
	if (left < 1)
		left = 1;
	return left < max_new - given ? (int32_t)left : max_new - given;
}

void sched_expect(struct cairn_scheduler *s, const struct sched_seq *q)
{
	s->expected_new += (q->num_known - q->req->num_prompt - s->expected_new) / 32;
}

static void add_demand(struct cairn_scheduler *s, int32_t left, int32_t own)
{
	int32_t at = s->num_demands++;

	for (; at && s->demands[at - 1].left < left; at--)
		s->demands[at] = s->demands[at - 1];
	s->demands[at] = (struct demand){ left, own };
}

/* Adds the demands of q and of the answers to be forked from it, beyond the `found` tokens they share. */
static void add_demands(struct cairn_scheduler *s, const struct sched_seq *q, int32_t found)
{
	int32_t len = q->num_known + q->in_flight, given = len - q->req->num_prompt;

	add_demand(s, expect_left(s, given, q->req->max_new), len - found);
	for (int32_t i = 0; i < q->req->unforked; i++)
		add_demand(s, expect_left(s, 0, q->req->max_new), 0);
}

/* Collects the demands of the running sequences; once for each plan that may admit requests. */
void sched_forecast(struct cairn_scheduler *s)
{
	s->num_demands = 0;
	for (int32_t i = 0; i < s->num_running; i++)
		add_demands(s, s->running[i], s->running[i]->adopted * s->opt.page_size);
}

/*
 * Returns whether the running sequences and q fit at the peak; the tree has `found` tokens of q.
 *
 * Memory is fullest when some sequence is about to end. Sort the sequences by remaining tokens, most first.
 * When sequence k ends, those before it have grown by left[k] as well, and those after it are gone:
 * 	max over k of sum(own[0 .. k]) + (k + 1) * left[k]
 * Add a page less one token for each, because its last page may be partly filled, but count no more than the
 * pages that each sequence has at its own end. Shared pages, which no single sequence owns, count once, at
 * their present number. Reserved pages count only with `reserved`: an admitted sequence may take them back.
 * If q fits, its demand stays in the list.
 */
int sched_fits(struct cairn_scheduler *s, const struct sched_seq *q, int32_t found, int reserved)
{
	int64_t ps = s->opt.page_size, shared, sum = 0, ends = 0, peak = 0;
	struct cairn_kv_pool_stats st;
	int fits;

	cairn_kv_pool_stats(s->device.pool, &st);
	shared = st.table_pages + found / ps - (reserved ? 0 : s->num_reserved_pages);
	for (int32_t i = 0; i < s->num_running; i++) {
		int32_t n = 0;

		cairn_kv_pool_pages(s->device.pool, s->running[i]->kv, &n);
		shared -= n - s->running[i]->adopted;
	}
	add_demands(s, q, (int32_t)(found / ps * ps));
	for (int32_t k = 0; k < s->num_demands; k++) {
		const struct demand *d = &s->demands[k];
		int64_t then;

		sum += d->own + ps - 1;
		ends += (d->own + d->left + ps - 1) / ps * ps;
		then = sum + (int64_t)(k + 1) * d->left;
		then = then < ends ? then : ends;
		if (then > peak)
			peak = then;
	}
	fits = (shared > 0 ? shared : 0) * ps + peak <= (int64_t)s->opt.num_pages * ps;
	if (!fits)		/* remove q's demand again */
		sched_forecast(s);
	return fits;
}
