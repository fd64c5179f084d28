// SPDX-License-Identifier: Apache-2.0
/* scheduler_memory_test - the scheduler when memory is short: preemption and resumption, admission by
 * predicted memory, deadlines, and beams */
#include "conformance/harness.h"

#include "serving/kv/kv_lengths_test.h"
#include "serving/scheduler/scheduler_sim_test.h"

static struct sim sim;

/*
 * When two sequences grow beyond the prediction, the younger is preempted. By the rule in scheduler.h it is
 * swapped out if its pages are cheap to move, and recomputed if its tokens are cheap to compute; it resumes
 * either way.
 */
static void the_younger_gives_way(struct cairn_test *t)
{
	for (int swap = 0; swap < 2; swap++) {
		struct cairn_scheduler_options o = sim_small();
		struct cairn_scheduler_stats st;
		int64_t out = 0, in = 0;

		o.num_pages = 12;
		o.max_context = 48;
		o.host_pages = 16;
		o.recompute_ns = 10;
		o.swap_ns = swap ? 15 : 25;	/* at 20, two moves of a page cost as much as its 4 tokens */
		if (!sim_create(t, &sim, &o, 2))
			return;
		for (int32_t i = 0; i < 2; i++) {
			sim_prompt(t, &sim, i, 16, 28);
			EXPECT(t, sim_submit(&sim, i) == 0);
		}
		for (int k = 0; k < 200 && sim.num_ended < 2; k++) {
			const struct cairn_step_plan *p = sim_step(t, &sim);

			out += sim_moves(p, CAIRN_MOVE_OUT);
			in += sim_moves(p, CAIRN_MOVE_IN);
			EXPECT(t, cairn_scheduler_verify(sim.s) == 0);
		}
		cairn_scheduler_stats(sim.s, &st);
		EXPECT(t, swap ? st.swapped == 1 && !st.recomputed : !st.swapped && st.recomputed == 1);
		EXPECT(t, swap ? out == 6 && in == 6 && st.loaded_tokens > 20 : out == 0 && in == 0);
		EXPECT(t, sim.num_ended == 2 && sim.requests[0].told == 28 && sim.requests[1].told == 28);
		EXPECT(t, sim.requests[0].step_ended < sim.requests[1].step_ended);
		EXPECT(t, st.host.num_seqs == 0 && st.device.num_seqs == 0);
		sim_destroy(t, &sim);
	}
}

/* When three sequences outgrow the pool and the first needs a page, the last is preempted, not the second. */
static void the_youngest_is_first(struct cairn_test *t)
{
	struct cairn_scheduler_options o = sim_small();
	const struct cairn_step_plan *p = NULL;
	struct cairn_scheduler_stats st = { 0 };

	o.num_pages = 12;
	o.dense_rows = 64;
	o.max_context = 40;
	o.expected_new = 1;
	if (!sim_create(t, &sim, &o, 3))
		return;
	for (int32_t i = 0; i < 3; i++) {
		sim_prompt(t, &sim, i, 12, 24);
		EXPECT(t, sim_submit(&sim, i) == 0);
	}
	for (int k = 0; k < 100 && !st.recomputed; k++) {
		p = sim_step(t, &sim);
		cairn_scheduler_stats(sim.s, &st);
		EXPECT(t, st.recomputed || st.num_running + st.num_waiting == 3);
	}
	EXPECT(t, p && p->num_items == 2 && p->items[0].request == 0 && p->items[1].request == 1);
	sim_run(t, &sim, 200);
	EXPECT(t, sim.num_ended == 3);
	sim_destroy(t, &sim);
}

/* The expected length of an answer is a running mean over about 32 normally ended answers. */
static void answers_tell(struct cairn_test *t)
{
	static const int32_t lengths[] = { 20, 1, 9 };
	struct cairn_scheduler_options o = sim_small();
	struct cairn_scheduler_stats st;
	double want = o.expected_new;

	if (!sim_create(t, &sim, &o, 4))
		return;
	for (int32_t i = 0; i < 4; i++) {
		sim_prompt(t, &sim, i, 8, i < 3 ? lengths[i] : 30);
		EXPECT(t, sim_submit(&sim, i) == 0);
		if (i < 3) {
			sim_run(t, &sim, 100);
			want += (lengths[i] - want) / 32;
		} else {		/* a cancelled answer does not count */
			sim_step(t, &sim);
			EXPECT(t, cairn_scheduler_cancel(sim.s, 3) == 0);
		}
		cairn_scheduler_stats(sim.s, &st);
		EXPECT(t, st.expected_new == want);
	}
	sim_destroy(t, &sim);
}

/*
 * Answers of 10 tokens are expected. With prompts of 8 and 12 tokens and up to 3 unused token slots in each
 * last page, the peak comes when both have grown by 10: 8 + 12 + 6 + 20 = 46 slots, less one for each token
 * that the first has generated or has in flight when the second is considered. But 18 and 22 tokens need at
 * most 11 pages of 4. So with 11 pages both start at once; with 10, the second starts in the plan in which
 * the first generates its sixth token; with 9, when the first has ended. The same holds with two more pages
 * if the first prompt begins with two pages that are in the tree.
 */
static void the_peak_decides(struct cairn_test *t)
{
	static const int32_t plans[] = { 11, 6, 1 };

	for (int k = 0; k < 6; k++) {
		int shared = k / 3, begins = 0;
		struct cairn_scheduler_options o = sim_small();

		o.num_pages = 9 + k % 3 + 2 * shared;
		o.dense_rows = 64;
		o.max_context = 36;
		o.expected_new = 10;
		o.grain = 4;
		if (!sim_create(t, &sim, &o, 3))
			return;
		sim_prompt(t, &sim, 0, 8, 10);
		sim_prompt(t, &sim, 1, shared ? 16 : 8, 10);
		sim_prompt(t, &sim, 2, 12, 10);
		if (shared)
			memcpy(sim.requests[1].prompt, sim.requests[0].prompt, 8 * sizeof(int32_t));
		EXPECT(t, sim_submit(&sim, 0) == 0);
		sim_run(t, &sim, 100);
		EXPECT(t, sim_submit(&sim, 1) == 0 && sim_submit(&sim, 2) == 0);
		for (int i = 1; i <= 20 && !begins; i++) {
			const struct cairn_step_plan *p = sim_step(t, &sim);

			begins = p && p->num_items && p->items[p->num_items - 1].request == 2 ? i : 0;
		}
		EXPECT(t, begins == plans[k % 3]);
		sim_run(t, &sim, 100);
		sim_destroy(t, &sim);
	}
}

/*
 * After many short answers the scheduler expects four tokens of each and admits too many long ones; all of
 * them must still end correctly.
 */
static void a_wrong_expectation_is_survived(struct cairn_test *t)
{
	struct cairn_scheduler_options o = sim_small();
	struct cairn_scheduler_stats st;

	o.num_pages = 400;
	o.max_seqs = 64;
	o.dense_rows = 128;
	o.max_context = 1024;
	o.max_queued = 1024;
	o.ahead = 1;
	o.host_pages = 200;
	o.recompute_ns = 20000;
	o.swap_ns = 10000;
	o.grain = 4;
	if (!sim_create(t, &sim, &o, 300))
		return;
	for (int32_t i = 0; i < 300; i++) {
		sim_prompt(t, &sim, i, 8 + i % 32, i < 150 ? 4 : draw_length(t, 150) % 900 + 1);
		EXPECT(t, sim_submit(&sim, i) == 0);
	}
	sim_run(t, &sim, 50000);
	cairn_scheduler_stats(sim.s, &st);
	cairn_note(t, "%lld swapped, %lld recomputed; 4 tokens expected, then %.0f",
		   (long long)st.swapped, (long long)st.recomputed, st.expected_new);
	EXPECT(t, sim.num_ended == 300 && st.swapped + st.recomputed > 5 && st.swapped > 0);
	for (int32_t i = 0; i < 300; i++)
		EXPECT(t, sim.requests[i].told == sim.requests[i].answer && sim.requests[i].ended == 1);
	sim_destroy(t, &sim);
}

static void deadlines_are_kept(struct cairn_test *t)
{
	struct cairn_scheduler_options o = sim_small();
	const struct cairn_sched_event *ev;
	const struct cairn_step_plan *p;
	struct cairn_scheduler *s = NULL;
	int32_t tokens[4] = { 0 }, num;

	o.max_seqs = 1;
	if (!EXPECT(t, cairn_scheduler_create(&s, &o) == 0))
		return;
	for (uint64_t id = 1; id <= 3; id++) {	/* 1 runs, 2 and 3 wait; only 2 has a late deadline */
		struct cairn_scheduler_request r = {
			.id = id, .prompt = tokens, .num_prompt = 4, .max_new_tokens = 9,
			.deadline_ns = id == 2 ? 1000 : 100,
		};

		EXPECT(t, cairn_scheduler_submit(s, &r) == 0);
	}
	EXPECT(t, cairn_scheduler_plan(s, 99, &p) == 0 && p->num_items == 1 && p->items[0].request == 1);
	EXPECT(t, cairn_scheduler_report(s, tokens, NULL) == 0);
	EXPECT(t, cairn_scheduler_plan(s, 100, &p) == 0 && p->num_items == 1 && p->items[0].request == 2);
	ev = cairn_scheduler_events(s, &num);
	EXPECT(t, num == 3 && ev[1].what == CAIRN_SCHED_EXPIRED && ev[1].request == 1 && ev[2].request == 3);
	EXPECT(t, cairn_scheduler_report(s, tokens, NULL) == 0);
	EXPECT(t, cairn_scheduler_plan(s, 1000, &p) == 0 && p->num_items == 0);
	EXPECT(t, cairn_scheduler_verify(s) == 0);
	cairn_scheduler_destroy(s);
}

static int submit_pulled(int32_t i)
{
	const struct sim_request *r = &sim.requests[i];
	const struct cairn_scheduler_request req = {
		.id = (uint64_t)i, .prompt = r->prompt, .num_prompt = r->num_prompt, .max_new_tokens = 1,
		.pulled = 1,
	};

	return cairn_scheduler_submit(sim.s, &req);
}

/* Opens the simulation with a prefix tree, and 12 pages for reservations. Returns whether it is there. */
static int open_reserving(struct cairn_test *t, int32_t max_seqs, int32_t max_reserved, int32_t requests)
{
	struct cairn_scheduler_options o = sim_small();

	o.grain = o.page_size;
	o.max_seqs = max_seqs;
	o.max_reserved = max_reserved;
	o.reserved_pages = 12;
	return sim_create(t, &sim, &o, requests);
}

/*
 * A prompt has reserved pages, and waits. The running sequence needs them when 8 of 16 pages hold its 32
 * tokens; it is not preempted. The prompt then waits no longer, and is computed. One that has no room for a
 * reservation waits no longer either.
 */
static void reservations_give_way(struct cairn_test *t)
{
	struct cairn_scheduler_stats st;
	const int32_t *pages;
	uint64_t id = 99;
	int revoked = 0;

	if (!open_reserving(t, 4, 2, 3))
		return;
	sim_prompt(t, &sim, 0, 8, 40);
	sim_prompt(t, &sim, 1, 33, 1);
	sim_prompt(t, &sim, 2, 53, 1);
	EXPECT(t, sim_submit(&sim, 0) == 0);
	sim_step(t, &sim);
	EXPECT(t, submit_pulled(1) == 0 && submit_pulled(2) == 0);
	EXPECT(t, cairn_scheduler_reserve(sim.s, 7, 0, 32, &pages) == -ENOENT);
	EXPECT(t, cairn_scheduler_reserve(sim.s, 1, 0, 32, &pages) == 0);
	EXPECT(t, cairn_scheduler_reserve(sim.s, 1, 0, 32, &pages) == -ENOENT);
	EXPECT(t, cairn_scheduler_reserve(sim.s, 2, 0, 52, &pages) == -ENOSPC);
	for (int k = 0; k < 200 && sim.num_ended < 1; k++) {
		sim_step(t, &sim);
		while (cairn_scheduler_revoked(sim.s, &id)) {
			cairn_scheduler_stats(sim.s, &st);
			EXPECT(t, id == 1 && st.num_running == 1 && st.device.num_tokens > 32);
			revoked++;
		}
	}
	cairn_scheduler_stats(sim.s, &st);
	EXPECT(t, revoked == 1 && !st.swapped && !st.recomputed);
	EXPECT(t, cairn_scheduler_import(sim.s, 1) == -ENOENT);
	sim_run(t, &sim, 200);
	EXPECT(t, sim.num_ended == 3 && !st.imported_tokens);
	sim_destroy(t, &sim);
}

/*
 * Two ended prompts are cached, the older one is the beginning of a third, whose reservation needs more than
 * the free pages: it takes those of the other.
 */
static void reservations_keep_their_beginning(struct cairn_test *t)
{
	struct cairn_scheduler_stats st;
	const int32_t *pages;

	if (!open_reserving(t, 4, 1, 3))
		return;
	sim_prompt(t, &sim, 0, 17, 1);
	sim_prompt(t, &sim, 1, 33, 1);
	sim_prompt(t, &sim, 2, 37, 1);
	memcpy(sim.requests[2].prompt, sim.requests[0].prompt, 16 * sizeof(int32_t));
	for (int32_t i = 0; i < 2; i++) {
		EXPECT(t, sim_submit(&sim, i) == 0);
		sim_run(t, &sim, 50);
	}
	EXPECT(t, submit_pulled(2) == 0 && cairn_scheduler_reserve(sim.s, 2, 16, 36, &pages) == 0);
	EXPECT(t, cairn_scheduler_import(sim.s, 2) == 20);
	cairn_scheduler_stats(sim.s, &st);
	EXPECT(t, st.evicted_pages > 0);
	sim_run(t, &sim, 50);
	EXPECT(t, sim.num_ended == 3);
	sim_destroy(t, &sim);
}

/*
 * The last page of an imported prompt has 2 tokens of 4: only the prompt's last row is computed, and no page
 * is copied. A request that is cancelled before leaves nothing but the whole pages, which the tree has.
 */
static void only_the_last_row_is_left(struct cairn_test *t)
{
	const struct cairn_step_plan *p;
	const int32_t *pages;

	if (!open_reserving(t, 4, 1, 2))
		return;
	sim_prompt(t, &sim, 0, 39, 5);
	sim_prompt(t, &sim, 1, 15, 1);
	EXPECT(t, submit_pulled(0) == 0 && cairn_scheduler_reserve(sim.s, 0, 0, 38, &pages) == 0);
	EXPECT(t, cairn_scheduler_import(sim.s, 0) == 38 && cairn_scheduler_verify(sim.s) == 0);
	p = sim_step(t, &sim);
	EXPECT(t, p && p->num_items == 1 && p->items[0].first == 38 && p->items[0].num_rows == 1);
	EXPECT(t, p && !p->num_moves);
	sim_run(t, &sim, 50);
	EXPECT(t, submit_pulled(1) == 0 && cairn_scheduler_reserve(sim.s, 1, 0, 14, &pages) == 0);
	EXPECT(t, cairn_scheduler_import(sim.s, 1) == 14 && cairn_scheduler_cancel(sim.s, 1) == 0);
	EXPECT(t, cairn_kv_pool_free_pages(cairn_scheduler_pool(sim.s)) == 16 - 9 - 3);
	sim_destroy(t, &sim);
}

/*
 * A request waits with its tail while the running sequence takes the pages before it, which the tree has, or
 * the tail, too. Either way it is not preempted, and the whole prompt is computed afterwards.
 */
static void run_short(struct cairn_test *t, int32_t answer)
{
	struct cairn_scheduler_stats st;
	const int32_t *pages;

	if (!open_reserving(t, 1, 1, 2))
		return;
	sim_prompt(t, &sim, 0, 8, answer);
	sim_prompt(t, &sim, 1, 15, 1);
	EXPECT(t, sim_submit(&sim, 0) == 0);
	sim_step(t, &sim);
	EXPECT(t, submit_pulled(1) == 0 && cairn_scheduler_reserve(sim.s, 1, 0, 14, &pages) == 0);
	EXPECT(t, cairn_scheduler_import(sim.s, 1) == 14);
	sim_run(t, &sim, 200);
	cairn_scheduler_stats(sim.s, &st);
	EXPECT(t, sim.num_ended == 2 && !st.swapped && !st.recomputed && st.imported_tokens == 14);
	EXPECT(t, st.rows == 8 + answer - 1 + 15);
	sim_destroy(t, &sim);
}

static void tails_give_way(struct cairn_test *t)
{
	run_short(t, 52);	/* 15 of 16 pages */
	run_short(t, 56);
}

/* Drives two beams: forks, replaces the last token, discards one. The beams share all pages but the last. */
static void beams_are_forked(struct cairn_test *t)
{
	struct cairn_scheduler_options o = sim_small();
	struct cairn_scheduler_request r = { .id = 1, .num_prompt = 8, .max_new_tokens = 9, .lockstep = 1 };
	int32_t tokens[8] = { 1, 2, 3, 4, 5, 6, 7, 8 }, child = -1;
	const struct cairn_step_plan *p;
	struct cairn_scheduler_stats st;
	struct cairn_scheduler *s = NULL;

	o.ahead = 1;
	if (!EXPECT(t, cairn_scheduler_create(&s, &o) == 0))
		return;
	r.prompt = tokens;
	EXPECT(t, cairn_scheduler_submit(s, &r) == 0 && cairn_scheduler_plan(s, 0, &p) == 0);
	EXPECT(t, cairn_scheduler_fork(s, 1, 0, &child) == -EINVAL);	/* its token is in flight */
	/* the sequence waits for that token */
	EXPECT(t, cairn_scheduler_plan(s, 0, &p) == 0 && p->num_items == 0);
	EXPECT(t, cairn_scheduler_report(s, tokens, NULL) == 0);
	EXPECT(t, cairn_scheduler_fork(s, 1, 0, &child) == 0 && child == 1);
	EXPECT(t, cairn_scheduler_set_last(s, 1, 1, 42) == 0);
	EXPECT(t,
	       cairn_scheduler_plan(s, 0, &p) == 0 && p->num_items == 2 && p->ids[0] == 1 && p->ids[1] == 42);
	cairn_scheduler_stats(s, &st);
	EXPECT(t, st.device.table_entries == 6 && st.device.table_pages == 4);
	EXPECT(t, cairn_scheduler_report(s, tokens, NULL) == 0 && cairn_scheduler_stop(s, 1, 0) == 0);
	EXPECT(t, cairn_scheduler_fork(s, 1, 0, &child) == -ENOENT &&
			  cairn_scheduler_fork(s, 1, 1, &child) == 0);
	EXPECT(t, child == 2 && cairn_scheduler_verify(s) == 0);
	cairn_scheduler_stats(s, &st);
	EXPECT(t, st.expected_new == o.expected_new);	/* a discarded beam does not count as an answer */
	EXPECT(t, cairn_scheduler_set_last(s, 2, 0, 1) == -ENOENT);
	EXPECT(t, cairn_scheduler_cancel(s, 1) == 0 && cairn_scheduler_verify(s) == 0);
	cairn_scheduler_destroy(s);
}

#define UNIT(name)	{ #name, name }
static const struct cairn_unit units[] = {
	UNIT(the_younger_gives_way), UNIT(the_youngest_is_first), UNIT(answers_tell),
	UNIT(the_peak_decides), UNIT(a_wrong_expectation_is_survived), UNIT(deadlines_are_kept),
	UNIT(reservations_give_way), UNIT(reservations_keep_their_beginning),
	UNIT(only_the_last_row_is_left), UNIT(tails_give_way), UNIT(beams_are_forked),
};

const struct cairn_family cairn_scheduler_memory_family = {
	.stage = "serving",
	.name = "scheduler_memory",
	.units = units,
	.num_units = ARRAY_SIZE(units),
};
