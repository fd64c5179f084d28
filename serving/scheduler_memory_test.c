// SPDX-License-Identifier: Apache-2.0
/*
 * The scheduler when memory is short, or when there is more of it than the device's: giving way, coming back,
 * waiting one's turn, time running out, beams.
 */
#include "../conformance/harness.h"

#include "kv_lengths_test.h"
#include "scheduler_sim_test.h"

static struct sim sim;

static struct cairn_scheduler_options small(void)
{
	return (struct cairn_scheduler_options) {
		.dense_rows = 16,
		.max_seqs = 4,
		.max_context = 64,
		.page_size = 4,
		.num_pages = 16,
		.grain = 0,
		.max_queued = 64,
		.max_passes = 3,
		.expected_new = 4,
	};
}

static int64_t num_moves(const struct cairn_step_plan *p, int kind)
{
	int64_t num = 0;

	for (int32_t i = 0; p && i < p->num_moves; i++)
		num += p->moves[i].kind == kind;
	return num;
}

/*
 * Two sequences that grow beyond what was expected: the younger gives way. By the rule in scheduler.h it is
 * swapped when its pages are cheap to move, computed again when its tokens are cheap, and comes back either
 * way.
 */
static void the_younger_gives_way(struct cairn_test *t)
{
	for (int swap = 0; swap < 2; swap++) {
		struct cairn_scheduler_options o = small();
		struct cairn_scheduler_stats st;
		int64_t out = 0, in = 0;

		o.num_pages = 12;
		o.max_context = 48;
		o.host_pages = 16;
		o.recompute_ns = 10;
		o.swap_ns = swap ? 15 : 25;	/* 2 moves of a page against its 4 tokens: even at 20 */
		if (!sim_create(t, &sim, &o, 2))
			return;
		for (int32_t i = 0; i < 2; i++) {
			sim_prompt(t, &sim, i, 16, 28);
			EXPECT(t, sim_submit(&sim, i) == 0);
		}
		for (int k = 0; k < 200 && sim.num_ended < 2; k++) {
			const struct cairn_step_plan *p = sim_step(t, &sim);

			out += num_moves(p, CAIRN_MOVE_OUT);
			in += num_moves(p, CAIRN_MOVE_IN);
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

/* Three that outgrow the pool: when the first wants a page, the last gives way, not the second. */
static void the_youngest_is_first(struct cairn_test *t)
{
	struct cairn_scheduler_options o = small();
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

/* What is expected of an answer is a mean over about 32 of those that ended by themselves. */
static void answers_tell(struct cairn_test *t)
{
	static const int32_t lengths[] = { 20, 1, 9 };
	struct cairn_scheduler_options o = small();
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
		} else {		/* of one that is cancelled nothing is known */
			sim_step(t, &sim);
			EXPECT(t, cairn_scheduler_cancel(sim.s, 3) == 0);
		}
		cairn_scheduler_stats(sim.s, &st);
		EXPECT(t, st.expected_new == want);
	}
	sim_destroy(t, &sim);
}

/*
 * Answers of 10 tokens are expected. With prompts of 8 and 12, and 3 places lost in each one's last page, the
 * worst is when both have grown by 10: 8 + 12 + 6 + 20 = 46 places; one less for each token that the first
 * has given, or has in flight, when the second is looked at. But to hold 18 and 22 tokens they need 11 pages
 * and no more. So both begin at once; with 10 pages the second begins in the plan in which the first gives
 * its sixth token, with 9 when it has ended. The same with two pages more when the first's prompt begins
 * with two that are in the tree.
 */
static void the_peak_decides(struct cairn_test *t)
{
	static const int32_t plans[] = { 11, 6, 1 };

	for (int k = 0; k < 6; k++) {
		int shared = k / 3, begins = 0;
		struct cairn_scheduler_options o = small();

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

/* Expecting four tokens of each after many short answers, it admits long ones too boldly: all end all
 * the same. */
static void a_wrong_expectation_is_survived(struct cairn_test *t)
{
	struct cairn_scheduler_options o = small();
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
	cairn_note(t, "%lld swapped, %lld computed again; 4 tokens expected, then %.0f",
		   (long long)st.swapped, (long long)st.recomputed, st.expected_new);
	EXPECT(t, sim.num_ended == 300 && st.swapped + st.recomputed > 5 && st.swapped > 0);
	for (int32_t i = 0; i < 300; i++)
		EXPECT(t, sim.requests[i].told == sim.requests[i].answer && sim.requests[i].ended == 1);
	sim_destroy(t, &sim);
}

/* A stream of requests that share a prefix, and one that shares nothing: it is overtaken three times, no
 * more. */
static void nobody_waits_for_ever(struct cairn_test *t)
{
	struct cairn_scheduler_options o = small();
	int32_t overtaken = 0;

	o.grain = 4;
	o.max_seqs = 1;
	o.num_pages = 64;
	if (!sim_create(t, &sim, &o, 20))
		return;
	for (int32_t i = 0; i < 20; i++) {
		sim_prompt(t, &sim, i, 16, 2);
		if (i != 1)
			memcpy(sim.requests[i].prompt, sim.requests[0].prompt, 12 * sizeof(int32_t));
	}
	for (int32_t i = 0; i < 2; i++)
		EXPECT(t, sim_submit(&sim, i) == 0);
	for (int32_t i = 2; i < 20; i++)
		EXPECT(t, sim_submit(&sim, i) == 0);
	sim_run(t, &sim, 400);
	for (int32_t i = 2; i < 20; i++)
		overtaken += sim.requests[i].step_first < sim.requests[1].step_first;
	EXPECT(t, sim.num_ended == 20 && overtaken == 3);
	sim_destroy(t, &sim);
}

/* Twelve requests with one long prompt, at once: it is computed once. */
static void a_burst_shares_its_prompt(struct cairn_test *t)
{
	struct cairn_scheduler_options o = small();
	struct cairn_scheduler_stats st;

	o.grain = 4;
	o.max_seqs = 12;
	o.num_pages = 200;
	o.max_context = 100;
	o.max_passes = 16;
	if (!sim_create(t, &sim, &o, 12))
		return;
	for (int32_t i = 0; i < 12; i++) {
		sim_prompt(t, &sim, i, 70, 3);
		memcpy(sim.requests[i].prompt, sim.requests[0].prompt, 68 * sizeof(int32_t));
		EXPECT(t, sim_submit(&sim, i) == 0);
	}
	sim_run(t, &sim, 100);
	cairn_scheduler_stats(sim.s, &st);
	EXPECT(t, sim.num_ended == 12 && st.hit_tokens == 11 * 68);
	EXPECT(t, st.rows == 70 + 11 * 2 + 12 * 2);
	sim_destroy(t, &sim);
}

/* A conversation goes on after the device has forgotten it: its pages come back, in slots that lie side
 * by side. */
static void a_conversation_comes_back(struct cairn_test *t)
{
	for (int disk = 0; disk < 2; disk++) {
		struct cairn_scheduler_options o = small();
		const struct cairn_step_plan *p = NULL;
		struct cairn_scheduler_stats st;
		int64_t offloads = 0, runs = 0;

		o.grain = 4;
		o.host_pages = disk ? 16 : 64;
		o.disk_pages = disk ? 64 : 0;
		o.max_context = 60;
		if (!sim_create(t, &sim, &o, 6))
			return;
		for (int32_t i = 0; i < 6; i++) {
			sim_prompt(t, &sim, i, i == 5 ? 48 : 40, 4);
			sim.requests[i].keep = 1;
		}
		memcpy(sim.requests[5].prompt, sim.requests[0].prompt, 40 * sizeof(int32_t));
		for (int32_t i = 0; i < 5; i++) {
			EXPECT(t, sim_submit(&sim, i) == 0);
			for (int k = 0; k < 50 && sim.num_ended == i; k++)
				offloads += num_moves(sim_step(t, &sim), CAIRN_MOVE_OFFLOAD);
		}
		EXPECT(t,
		       offloads == 5 * 10); /* each page as it is filled; the last three tokens fill none */
		EXPECT(t, sim_submit(&sim, 5) == 0);
		if (disk) {
			/* no row before it is there: the step would wait for the disk */
			EXPECT(t, cairn_scheduler_plan(sim.s, 0, &p) == 0 && p->num_items == 0);
			EXPECT(t, num_moves(p, CAIRN_MOVE_FETCH) == 10);
			EXPECT(t, cairn_scheduler_fetched(sim.s, 5) == 0);
		}
		p = sim_step(t, &sim);
		EXPECT(t,
		       p && p->num_rows == 8 && p->items[0].first == 40 && num_moves(p, CAIRN_MOVE_IN) == 10);
		for (int32_t i = 0; p && i < p->num_moves;
		     i += cairn_move_run(p->moves + i, p->num_moves - i))
			runs += p->moves[i].kind == CAIRN_MOVE_IN;
		cairn_note(t, "%s: 10 pages come back in %lld contiguous pieces",
			   disk ? "by way of the disk" : "from the host", (long long)runs);
		EXPECT(t, disk || runs == 1);
		sim_run(t, &sim, 100);
		cairn_scheduler_stats(sim.s, &st);
		EXPECT(t, st.loaded_tokens == 40 && sim.num_ended == 6);
		sim_destroy(t, &sim);
	}
}

/* A prefix that was found on the device leaves for the host in portions, none longer than a step's rows. */
static void offload_in_portions(struct cairn_test *t)
{
	struct cairn_scheduler_options o = small();
	int64_t total = 0, most = 0;

	o.grain = 4;
	o.host_pages = 64;
	if (!sim_create(t, &sim, &o, 2))
		return;
	sim_prompt(t, &sim, 0, 41, 2);
	sim_prompt(t, &sim, 1, 44, 12);
	memcpy(sim.requests[1].prompt, sim.requests[0].prompt, 40 * sizeof(int32_t));
	sim.requests[1].keep = 1;
	EXPECT(t, sim_submit(&sim, 0) == 0);
	sim_run(t, &sim, 100);
	EXPECT(t, sim_submit(&sim, 1) == 0);
	for (int k = 0; k < 50 && sim.num_ended < 2; k++) {
		int64_t num = num_moves(sim_step(t, &sim), CAIRN_MOVE_OFFLOAD);

		total += num;
		most = num > most ? num : most;
	}
	EXPECT(t, total == 13 && most == 5);	/* 16 rows fill 4 pages, and end one that was begun */
	sim_run(t, &sim, 100);
	sim_destroy(t, &sim);
}

static void deadlines_are_kept(struct cairn_test *t)
{
	struct cairn_scheduler_options o = small();
	const struct cairn_sched_event *ev;
	const struct cairn_step_plan *p;
	struct cairn_scheduler *s = NULL;
	int32_t tokens[4] = { 0 }, num;

	o.max_seqs = 1;
	if (!EXPECT(t, cairn_scheduler_create(&s, &o) == 0))
		return;
	for (uint64_t id = 1; id <= 3; id++) {	/* one runs, two wait; the second has time */
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

/* Two beams by hand: fork, another last token, give one up. They share all pages but the last. */
static void beams_are_forked(struct cairn_test *t)
{
	struct cairn_scheduler_options o = small();
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
	EXPECT(t, cairn_scheduler_plan(s, 0, &p) == 0 && p->num_items == 0);	/* and it waits for it */
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
	EXPECT(t, st.expected_new == o.expected_new);	/* a beam that is given up is no answer */
	EXPECT(t, cairn_scheduler_set_last(s, 2, 0, 1) == -ENOENT);
	EXPECT(t, cairn_scheduler_cancel(s, 1) == 0 && cairn_scheduler_verify(s) == 0);
	cairn_scheduler_destroy(s);
}

#define UNIT(name)	{ #name, name }
static const struct cairn_unit units[] = {
	UNIT(the_younger_gives_way),     UNIT(the_youngest_is_first),           UNIT(answers_tell),
	UNIT(the_peak_decides),          UNIT(a_wrong_expectation_is_survived), UNIT(nobody_waits_for_ever),
	UNIT(a_burst_shares_its_prompt), UNIT(a_conversation_comes_back),       UNIT(deadlines_are_kept),
	UNIT(offload_in_portions),       UNIT(beams_are_forked),
};

const struct cairn_family cairn_scheduler_memory_family = {
	.stage = "serving",
	.name = "scheduler_memory",
	.units = units,
	.num_units = ARRAY_SIZE(units),
};
