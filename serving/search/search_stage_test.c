// SPDX-License-Identifier: Apache-2.0
/*
 * search_stage_test - compares both stages with a search that tries everything, and schedules with their
 * simulation
 */
#include "conformance/harness.h"
#include "serving/search/search_brute_test.h"
#include "serving/search/search_test.h"

static const struct tiny tinies[] = {
	{ .name = "two", .rows = 512, .num_ops = 2, .ops = { { C, 0.1, 0.2 }, { M, 0.05, 0.15 } } },
	{ .name = "two with keys", .rows = 512, .num_ops = 2, .cache = 1,
	  .ops = { { C, 0.1, 0.2 }, { M, 0.05, 0.21 } } },
	{ .name = "three", .rows = 512, .num_ops = 3, .cache = 1,
	  .ops = { { C, 0.1, 0.1, 0.05 }, { M, 0.05, 0.25 }, { C, 0.1, 0.2, 0.1 } } },
	{ .name = "four", .rows = 640, .num_ops = 4, .cache = 1,
	  .ops = { { C, 0.05, 0.1 }, { M, 0.02, 0.2 }, { C, 0.03, 0.05 }, { C, 0.1, 0.3, 0.1 } } },
	{ .name = "long memory", .rows = 512, .num_ops = 3, .cache = 1,
	  .ops = { { C, 0.05, 0.1 }, { M, 0.1, 0.4 }, { C, 0.03, 0.05 } } },
	{ .name = "whole", .rows = 512, .num_ops = 3, .cache = 1,
	  .ops = { { C, 0.05, 0.1 }, { M, 0.05, 0.2 }, { C, 0.3, 0.1, .whole = 1 } } },
	{ .name = "network", .rows = 512, .num_ops = 3,
	  .ops = { { C, 0.1, 0.2 }, { M, 0.05, 0.15 }, { N, 0.05, 0.1 } } },
};

/* Solves both stages. Returns whether every step succeeded. */
static int solve(struct cairn_test *t, const struct cairn_search_problem *p,
		 const struct cairn_search_parts *parts, struct cairn_search_schedule *one,
		 struct cairn_search_schedule *two)
{
	int ret = cairn_search_stage1(p, parts, &tiny_limits, one);

	if (!ret)
		ret = cairn_search_tighten(p, parts, one);
	*two = *one;
	if (!ret)
		ret = cairn_search_stage2(p, parts, &tiny_limits, two);
	if (ret)
		cairn_note(t, "%s", cairn_last_error());
	return EXPECT(t, ret == 0);
}

static void near(struct cairn_test *t, const char *name, const char *what, double got, double want)
{
	if (!EXPECT(t, fabs(got - want) <= 1e-6 * want))
		cairn_note(t, "%s: %s: %.9f instead of %.9f", name, what, got, want);
}

/* Both stages and the simulation agree with the search that tries everything. */
static void check_tiny(struct cairn_test *t, const struct tiny *tiny)
{
	static struct cairn_search_problem p;
	static struct cairn_search_parts parts;
	struct cairn_search_schedule one, two;
	double period = 0, stage2;

	tiny_problem(tiny, &p);
	cairn_search_list_parts(&p, 2, &parts);
	if (!solve(t, &p, &parts, &one, &two))
		return;
	near(t, tiny->name, "stage 1", one.period_ms, search_brute_stage1(&p, 2, 1));
	EXPECT(t, cairn_search_sim_period(&p, &parts, &one, CAIRN_SEARCH_FIXED, &period) == 0);
	near(t, tiny->name, "simulated stage 1", period, one.period_ms);
	stage2 = two.period_ms;
	near(t, tiny->name, "stage 2", stage2, search_brute_stage2(&p, 2, &one));
	EXPECT(t, cairn_search_tighten(&p, &parts, &two) == 0);
	near(t, tiny->name, "tightened stage 2", two.period_ms, stage2);
	if (!EXPECT(t, cairn_search_sim_period(&p, &parts, &two, CAIRN_SEARCH_FIXED, &period) == 0))
		cairn_note(t, "%s: %s", tiny->name, cairn_last_error());
	near(t, tiny->name, "simulated stage 2", period, stage2);
	EXPECT(t, cairn_search_sim_period(&p, &parts, &two, CAIRN_SEARCH_FLUID, &period) == 0 &&
		  period <= stage2 * (1 + 1e-9));
	cairn_note(t, "%s: sequential %.4f, stage 1 %.4f, stage 2 %.4f", tiny->name,
		   cairn_search_sequential_ms(&p),
		   one.period_ms, stage2);
}

static void everything(struct cairn_test *t)
{
	if (!has_solver(t))
		return;
	for (size_t i = 0; i < ARRAY_SIZE(tinies); i++)
		check_tiny(t, &tinies[i]);
}

/* With three nano-batches, attention of the third also waits for the keys of the first. */
static void three_nanos(struct cairn_test *t)
{
	static struct cairn_search_problem p;
	static struct cairn_search_parts parts;
	struct cairn_search_schedule one;
	double period = 0;

	tiny_problem(&tinies[1], &p);
	cairn_search_list_parts(&p, 3, &parts);
	if (!has_solver(t) || !EXPECT(t, cairn_search_stage1(&p, &parts, &tiny_limits, &one) == 0))
		return;
	near(t, "three nano-batches", "stage 1", one.period_ms, search_brute_stage1(&p, 3, 1));
	EXPECT(t, cairn_search_tighten(&p, &parts, &one) == 0);
	EXPECT(t, cairn_search_sim_period(&p, &parts, &one, CAIRN_SEARCH_FIXED, &period) == 0);
	near(t, "three nano-batches", "simulation", period, one.period_ms);
}

/* Decoding rows may be any share of a nano-batch in the program, and are whole numbers in the schedule. */
static void decoding_rows(struct cairn_test *t)
{
	static const struct tiny tiny = { .name = "decode", .rows = 512, .decode = 160, .num_ops = 3,
					  .cache = 1,
					  .base_ms = 0.02, .request_ms = 0.006,
					  .ops = { { C, 0.05, 0.15 }, { .kind = M, .attention = 1 },
						   { C, 0.1, 0.15 } } };
	static struct cairn_search_problem p;
	static struct cairn_search_parts parts;
	struct cairn_search_schedule one;
	double best, relaxed, period = 0;

	tiny_problem(&tiny, &p);
	cairn_search_list_parts(&p, 2, &parts);
	best = search_brute_stage1(&p, 2, 1);
	if (!has_solver(t) || !EXPECT(t, cairn_search_stage1(&p, &parts, &tiny_limits, &one) == 0))
		return;
	relaxed = one.period_ms;
	EXPECT(t, one.decode[0] + one.decode[1] == 160 && one.size[0] + one.size[1] == 512);
	EXPECT(t, one.decode[0] <= one.size[0] && one.decode[1] <= one.size[1]);
	EXPECT(t, cairn_search_tighten(&p, &parts, &one) == 0);
	EXPECT(t, relaxed <= best * (1 + 1e-6) && one.period_ms >= best * (1 - 1e-6));
	/* half a row more or less of attention */
	EXPECT(t, one.period_ms <= relaxed + p.request_ms);
	EXPECT(t, cairn_search_sim_period(&p, &parts, &one, CAIRN_SEARCH_FIXED, &period) == 0);
	near(t, "decode", "simulation", period, one.period_ms);
	cairn_note(t, "decoding rows %d and %d: %.6f relaxed, %.6f in whole rows, %.6f at best",
		   one.decode[0],
		   one.decode[1], relaxed, one.period_ms, best);
}

/* The weight of the span shortens a layer from its first start to its last end, at no loss of period here. */
static void span(struct cairn_test *t)
{
	static struct cairn_search_problem p;
	static struct cairn_search_parts parts;
	struct cairn_search_limits limits = tiny_limits;
	struct cairn_search_schedule without, with;
	double pass_without = 0, pass_with = 0;

	tiny_problem(&tinies[2], &p);
	cairn_search_list_parts(&p, 2, &parts);
	if (!has_solver(t))
		return;
	limits.span = 1e-4;
	EXPECT(t, cairn_search_stage1(&p, &parts, &tiny_limits, &without) == 0);
	EXPECT(t, cairn_search_stage1(&p, &parts, &limits, &with) == 0);
	near(t, "span", "period", with.period_ms, without.period_ms);
	EXPECT(t, cairn_search_tighten(&p, &parts, &without) == 0 && cairn_search_tighten(&p, &parts,
											  &with) == 0);
	EXPECT(t, cairn_search_sim_pass(&p, &parts, &without, CAIRN_SEARCH_FIXED, &pass_without) == 0);
	EXPECT(t, cairn_search_sim_pass(&p, &parts, &with, CAIRN_SEARCH_FIXED, &pass_with) == 0);
	EXPECT(t, pass_with <= pass_without * (1 + 1e-9) && pass_with > p.num_layers * with.period_ms);
}

static void refusals(struct cairn_test *t)
{
	static struct cairn_search_problem p;
	static struct cairn_search_parts parts;
	struct cairn_search_schedule s = { .nanos = 2, .period_ms = 1, .size = { 256, 256 } };
	double ms;

	tiny_problem(&tinies[0], &p);
	cairn_search_list_parts(&p, 4, &parts);
	p.num_sizes = 2;	/* 128 and 256 */
	p.pass.rows = 1536;
	EXPECT(t, cairn_search_stage1(&p, &parts, &tiny_limits, &s) == -ERANGE);
	EXPECT_CONTAINS(t, cairn_last_error(), "1536 rows cannot be cut into 4");
	/* each of two parts begins after the other one of the same layer */
	tiny_problem(&tinies[0], &p);
	cairn_search_list_parts(&p, 2, &parts);
	parts.deps[parts.num_deps++] = (struct cairn_search_dep){ 2, 0, 0 };
	EXPECT(t, cairn_search_tighten(&p, &parts, &s) == -EINVAL);
	EXPECT_CONTAINS(t, cairn_last_error(), "contradicts itself");
	EXPECT(t, cairn_search_sim_pass(&p, &parts, &s, CAIRN_SEARCH_FIXED, &ms) == -EINVAL);
	EXPECT_CONTAINS(t, cairn_last_error(), "waits for ever");
}

static const struct cairn_unit units[] = {
	{ "everything", everything },
	{ "three_nanos", three_nanos },
	{ "decoding_rows", decoding_rows },
	{ "span", span },
	{ "refusals", refusals },
};

const struct cairn_family cairn_search_stage_family = {
	.stage = "serving",
	.name = "search_stage",
	.units = units,
	.num_units = ARRAY_SIZE(units),
	.cost_s = 3,
};
