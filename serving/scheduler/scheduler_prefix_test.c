// SPDX-License-Identifier: Apache-2.0
/*
 * scheduler_prefix_test - the scheduler when prompts share prefixes: bounded overtaking, computing a shared
 * prompt once, and conversations loaded back from host or disk
 */
#include "conformance/harness.h"

#include "serving/scheduler/scheduler_sim_test.h"

static struct sim sim;

/* Among many requests that share a prefix, a request that shares none is overtaken exactly three times. */
static void nobody_waits_for_ever(struct cairn_test *t)
{
	struct cairn_scheduler_options o = sim_small();
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

/* When twelve requests with one long prompt arrive at once, the prompt is computed once. */
static void a_burst_shares_its_prompt(struct cairn_test *t)
{
	struct cairn_scheduler_options o = sim_small();
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

/* A conversation continues after the device has evicted it: its pages are loaded back from adjacent slots. */
static void a_conversation_comes_back(struct cairn_test *t)
{
	for (int disk = 0; disk < 2; disk++) {
		struct cairn_scheduler_options o = sim_small();
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
				offloads += sim_moves(sim_step(t, &sim), CAIRN_MOVE_OFFLOAD);
		}
		EXPECT(t,
		       offloads == 5 * 10); /* each page once it is full; the last three tokens fill none */
		EXPECT(t, sim_submit(&sim, 5) == 0);
		if (disk) {
			/* no rows before the fetch is done: the step would have to wait for the disk */
			EXPECT(t, cairn_scheduler_plan(sim.s, 0, &p) == 0 && p->num_items == 0);
			EXPECT(t, sim_moves(p, CAIRN_MOVE_FETCH) == 10);
			EXPECT(t, cairn_scheduler_fetched(sim.s, 5) == 0);
		}
		p = sim_step(t, &sim);
		EXPECT(t,
		       p && p->num_rows == 8 && p->items[0].first == 40 && sim_moves(p, CAIRN_MOVE_IN) == 10);
		for (int32_t i = 0; p && i < p->num_moves;
		     i += cairn_move_run(p->moves + i, p->num_moves - i))
			runs += p->moves[i].kind == CAIRN_MOVE_IN;
		cairn_note(t, "%s: 10 pages are loaded in %lld contiguous pieces",
			   disk ? "from the disk" : "from the host", (long long)runs);
		EXPECT(t, disk || runs == 1);
		sim_run(t, &sim, 100);
		cairn_scheduler_stats(sim.s, &st);
		EXPECT(t, st.loaded_tokens == 40 && sim.num_ended == 6);
		sim_destroy(t, &sim);
	}
}

/*
 * A preempted sequence waits for the disk, too. Request 4 has found its first five pages on the device. Then
 * request 2 preempts it for one more page, and request 3 evicts those five. When request 2 has ended, there
 * is room again, but only the disk still has the five pages.
 */
static void a_preempted_one_awaits_the_disk(struct cairn_test *t)
{
	static const int32_t prompts[] = { 20, 30, 18, 18, 21 }, answers[] = { 1, 1, 4, 20, 9 };
	struct cairn_scheduler_options o = sim_small();
	const struct cairn_step_plan *p = NULL;
	struct cairn_scheduler_stats st;

	o.dense_rows = 64;
	o.grain = 4;
	o.host_pages = 8;
	o.disk_pages = 64;
	o.expected_new = 1;
	o.recompute_ns = 1;
	o.swap_ns = 1000000;
	if (!sim_create(t, &sim, &o, 5))
		return;
	for (int32_t i = 0; i < 5; i++) {
		sim_prompt(t, &sim, i, prompts[i], answers[i]);
		sim.requests[i].keep = i < 2;
	}
	memcpy(sim.requests[4].prompt, sim.requests[0].prompt, 20 * sizeof(int32_t));
	for (int32_t i = 0; i < 5; i++) {
		EXPECT(t, sim_submit(&sim, i) == 0);
		if (i < 2)
			sim_run(t, &sim, 100);
	}
	for (int k = 0; k < 9 && !sim_moves(p, CAIRN_MOVE_FETCH); k++)
		p = sim_step(t, &sim);
	cairn_scheduler_stats(sim.s, &st);
	EXPECT(t, st.recomputed == 1 && sim_moves(p, CAIRN_MOVE_FETCH) == 5);
	for (int k = 0; k < 3; k++) {
		EXPECT(t, p && p->num_items == 1 && p->items[0].request == 3);
		EXPECT(t, sim_moves(p, CAIRN_MOVE_IN) == 0);
		p = sim_step(t, &sim);
	}
	EXPECT(t, cairn_scheduler_fetched(sim.s, 4) == 0);
	p = sim_step(t, &sim);
	EXPECT(t, p && p->num_items == 2 && p->items[1].request == 4 && p->items[1].first == 20);
	EXPECT(t, sim_moves(p, CAIRN_MOVE_IN) == 5);
	sim_run(t, &sim, 100);
	EXPECT(t, sim.num_ended == 5);
	sim_destroy(t, &sim);
}

/*
 * Two answers, preempted by an older request, resume when that has ended. The first one is computed again.
 * The second one waits for the disk, and resumes when its pages are reported while the first one runs.
 */
static void one_of_two_awaits_the_disk(struct cairn_test *t)
{
	static const int32_t prompts[] = { 20, 30, 2, 21 }, answers[] = { 1, 1, 36, 99 };
	struct cairn_scheduler_options o = sim_small();
	struct cairn_scheduler_request two = {
		.id = 3, .num_prompt = 21, .max_new_tokens = 19, .num_seqs = 2,
	};
	const struct cairn_step_plan *p = NULL;

	o.dense_rows = 64;
	o.num_pages = 14;
	o.max_context = 56;
	o.grain = 4;
	o.host_pages = 6;
	o.disk_pages = 64;
	o.expected_new = 1;
	o.recompute_ns = 1;
	o.swap_ns = 1000000;
	if (!sim_create(t, &sim, &o, 4))
		return;
	for (int32_t i = 0; i < 4; i++) {
		sim_prompt(t, &sim, i, prompts[i], answers[i]);
		sim.requests[i].keep = 1;
	}
	memcpy(sim.requests[3].prompt, sim.requests[0].prompt, 20 * sizeof(int32_t));
	two.prompt = sim.requests[3].prompt;
	for (int32_t i = 0; i < 3; i++) {
		EXPECT(t, sim_submit(&sim, i) == 0);
		if (i < 2)
			sim_run(t, &sim, 100);
	}
	EXPECT(t, cairn_scheduler_submit(sim.s, &two) == 0);
	for (int k = 0; k < 60 && !sim_moves(p, CAIRN_MOVE_FETCH); k++)
		p = sim_step(t, &sim);
	EXPECT(t, sim_moves(p, CAIRN_MOVE_FETCH) == 5);
	EXPECT(t, p && p->num_items == 1 && p->items[0].request == 3 && p->items[0].index == 0);
	EXPECT(t, cairn_scheduler_fetched(sim.s, 3) == 0);
	EXPECT(t, cairn_scheduler_fetched(sim.s, 3) == -ENOENT);
	sim_run(t, &sim, 100);
	EXPECT(t, sim.num_ended == 5);
	sim_destroy(t, &sim);
}

/* A prefix found on the device is offloaded in portions of at most the pages that one step can complete. */
static void offload_in_portions(struct cairn_test *t)
{
	struct cairn_scheduler_options o = sim_small();
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
		int64_t num = sim_moves(sim_step(t, &sim), CAIRN_MOVE_OFFLOAD);

		total += num;
		most = num > most ? num : most;
	}
	EXPECT(t, total == 13 && most == 5);	/* 16 rows fill 4 pages and complete one */
	sim_run(t, &sim, 100);
	sim_destroy(t, &sim);
}

#define UNIT(name)	{ #name, name }
static const struct cairn_unit units[] = {
	UNIT(nobody_waits_for_ever), UNIT(a_burst_shares_its_prompt), UNIT(a_conversation_comes_back),
	UNIT(a_preempted_one_awaits_the_disk), UNIT(one_of_two_awaits_the_disk), UNIT(offload_in_portions),
};

const struct cairn_family cairn_scheduler_prefix_family = {
	.stage = "serving",
	.name = "scheduler_prefix",
	.units = units,
	.num_units = ARRAY_SIZE(units),
};
