// SPDX-License-Identifier: Apache-2.0
/*
 * search_mutants_test - checks that the tests of schedules and plans notice every fault of search_fault.h
 *
 * A schedule is right if the parts of the pass as they should be, the simulation and the search that tries
 * everything agree with it. Without a fault all schedules and plans must be right, with one wrong.
 */
#include <limits.h>

#include "conformance/harness.h"
#include "serving/plan/plan_engine_test.h"
#include "serving/plan/plan_file_test.h"
#include "serving/search/search_brute_test.h"
#include "serving/search/search_fault.h"
#include "serving/search/search_test.h"

extern int cairn_search_fault;
void mutant_search_list_parts(const struct cairn_search_problem *problem, int32_t nanos,
			    struct cairn_search_parts *parts);
int mutant_search_stage1(const struct cairn_search_problem *problem, const struct cairn_search_parts *parts,
		       const struct cairn_search_limits *limits, struct cairn_search_schedule *schedule);
int mutant_search_stage2(const struct cairn_search_problem *problem, const struct cairn_search_parts *parts,
		       const struct cairn_search_limits *limits, struct cairn_search_schedule *schedule);
int mutant_search_plan_read(struct cairn_plan_file **out, const char *path,
			  const struct cairn_plan_file_for *want);
void mutant_search_plan_free(struct cairn_plan_file *plan);
const struct cairn_plan_file_entry *mutant_search_plan_pick(const struct cairn_plan_file *plan, int32_t rows,
							   int32_t decode, int32_t context);
int mutant_search_plan_lanes_make(struct cairn_plan_lanes *out, const struct cairn_plan_file *file,
				  int32_t entry, const struct cairn_search_pipeline *pipeline);
void mutant_search_plan_lanes_free(struct cairn_plan_lanes *lanes);

static const struct tiny chain = {
	.name = "chain", .rows = 512, .num_ops = 3, .cache = 1,
	.ops = { { C, 0.1, 0.1, 0.05 }, { M, 0.05, 0.25 }, { C, 0.1, 0.2, 0.1 } } };
static const struct tiny memory = {
	.name = "memory", .rows = 512, .num_ops = 3, .cache = 1,
	.ops = { { C, 0.05, 0.1 }, { M, 0.1, 0.4 }, { C, 0.03, 0.05 } } };
static const struct tiny whole = {
	.name = "whole", .rows = 512, .num_ops = 3, .cache = 1,
	.ops = { { C, 0.05, 0.1 }, { M, 0.05, 0.2 }, { C, 0.3, 0.1, .whole = 1 } } };
/*
 * sizes that are no multiples of 256 are cheap, so one nano-batch is small, and would take most decoding rows
 */
static const struct tiny decode = {
	.name = "decode", .rows = 512, .decode = 300, .num_ops = 3, .cache = 1, .base_ms = 0.02,
	.request_ms = 0.006,
	.ops = { { C, 0.05, 0.3 }, { M, .attention = 1 }, { C, 0.3, 0.3, .step = -0.25 } } };
static const struct tiny network = {
	.name = "network", .rows = 512, .num_ops = 3,
	.ops = { { C, 0.4, .whole = 1 }, { M, 0.9, .whole = 1 }, { N, 0.5, .whole = 1 } } };

static int is_near(double a, double b, double allowed)
{
	return fabs(a - b) <= 1e-6 * b + allowed;
}

static int rows_are_right(const struct cairn_search_problem *p, const struct cairn_search_schedule *s)
{
	int rows = 0, decodes = 0;

	for (int i = 0; i < s->nanos; i++) {
		if (s->decode[i] > s->size[i])
			return 0;
		rows += s->size[i];
		decodes += s->decode[i];
	}
	return rows == p->pass.rows && decodes == p->pass.decode;
}

/*
 * Whether the period that a stage claims is that of the schedule with the right parts, and the shortest one.
 */
static int is_right(const struct cairn_search_problem *p, const struct cairn_search_parts *parts,
		    struct cairn_search_schedule *s, double best)
{
	double claimed = s->period_ms, simulated = 0, rounding = p->pass.decode ? p->request_ms : 0;

	if (!rows_are_right(p, s) || cairn_search_tighten(p, parts, s) ||
	    cairn_search_sim_period(p, parts, s, CAIRN_SEARCH_FIXED, &simulated))
		return 0;
	return is_near(s->period_ms, claimed, rounding) && is_near(simulated, s->period_ms, 0) &&
	       (p->pass.decode || is_near(claimed, best, 0));
}

/* Runs both stages under the current fault. Returns whether what they find is right, or -1: cbc failed. */
static int schedules(const struct tiny *tiny)
{
	static struct cairn_search_problem p;
	static struct cairn_search_parts parts, faulty;
	struct cairn_search_schedule one, two;
	int brute = !tiny->decode, ret;

	tiny_problem(tiny, &p);
	cairn_search_list_parts(&p, 2, &parts);
	mutant_search_list_parts(&p, 2, &faulty);
	ret = mutant_search_stage1(&p, &faulty, &tiny_limits, &one);
	if (ret)
		return ret == -EINVAL ? 0 : -1;
	if (!is_right(&p, &parts, &one, brute ? search_brute_stage1(&p, 2, 1) : 0))
		return 0;
	two = one;
	ret = mutant_search_stage2(&p, &faulty, &tiny_limits, &two);
	if (ret)
		return ret == -EINVAL ? 0 : -1;
	return is_right(&p, &parts, &two, brute ? search_brute_stage2(&p, 2, &one) : 0);
}

static void notice(struct cairn_test *t, int fault, const struct tiny *tiny)
{
	if (!has_solver(t))
		return;
	cairn_search_fault = fault;
	EXPECT(t, schedules(tiny) == 0);
	cairn_search_fault = FAULT_NONE;
	EXPECT(t, schedules(tiny) == 1);
}

/* Attention of a nano-batch waits for the keys of all nano-batches up to it. */
static int keys_are_right(void)
{
	static struct cairn_search_problem p;
	static struct cairn_search_parts parts;
	int waits[3][3] = { { 0 } };

	tiny_problem(&chain, &p);
	mutant_search_list_parts(&p, 3, &parts);
	for (int d = 0; d < parts.num_deps; d++)
		if (parts.parts[parts.deps[d].from].op == 0 && parts.parts[parts.deps[d].to].op == 1)
			waits[parts.parts[parts.deps[d].from].nano][parts.parts[parts.deps[d].to].nano]++;
	for (int i = 0; i < 3; i++)
		for (int j = 0; j < 3; j++)
			if (waits[i][j] != (i <= j))
				return 0;
	return 1;
}

/*
 * The list of dependencies itself is judged: nano-batches are alike in stage 1, so it does not shorten the
 * period if one may run before another whose keys it needs.
 */
static void notice_keys(struct cairn_test *t, int fault)
{
	cairn_search_fault = fault;
	EXPECT(t, !keys_are_right());
	cairn_search_fault = FAULT_NONE;
	EXPECT(t, keys_are_right());
}

/*
 * Three operations of three kinds that do not depend on one another. Each kind has one level below the full
 * GPU. Any two of these fit the GPU, and all three do not.
 */
static int three_kinds(struct cairn_test *t)
{
	static struct cairn_search_problem p;
	static struct cairn_search_parts parts;
	struct cairn_search_schedule s;
	int right;

	tiny_problem(&network, &p);
	p.num_edges = 0;
	cairn_search_list_parts(&p, 2, &parts);
	p.levels[C][1] = (struct cairn_search_level){ 0.4, 0.4, CAIRN_SEARCH_QUEUE, 52, 80 };
	p.levels[N][1] = p.levels[N][2];
	p.num_levels[C] = p.num_levels[M] = p.num_levels[N] = 2;
	for (int32_t o = 0; o < p.num_ops; o++)
		p.speed[o][1] = p.levels[p.kinds[o]][1].p;
	if (mutant_search_stage1(&p, &parts, &tiny_limits, &s) ||
	    mutant_search_stage2(&p, &parts, &tiny_limits, &s))
		return 0;
	right = is_right(&p, &parts, &s, search_brute_stage2(&p, 2, &s));
	cairn_note(t, "a layer of %.4f ms, %s", s.period_ms, right ? "simulated" : "which cannot be run");
	return right;
}

static void no_triple(struct cairn_test *t)
{
	if (!has_solver(t))
		return;
	cairn_search_fault = FAULT_NO_TRIPLE;
	EXPECT(t, !three_kinds(t));
	cairn_search_fault = FAULT_NONE;
	EXPECT(t, three_kinds(t));
}

/* Reads the text with `from` replaced by `to`. Returns the plan, or NULL if it is refused. */
static struct cairn_plan_file *read_plan(struct cairn_test *t, const char *from, const char *to)
{
	char *text = cairn_json_text(plan_text, from, to), path[PATH_MAX];
	struct cairn_plan_file *plan = NULL;

	if (!EXPECT(t, text))
		return NULL;
	cairn_tmpfile(t, path, sizeof(path), "plan.json", text, strlen(text));
	free(text);
	return mutant_search_plan_read(&plan, path, &plan_here) ? NULL : plan;
}

static int is_refused(struct cairn_test *t, const char *from, const char *to)
{
	struct cairn_plan_file *plan = read_plan(t, from, to);
	int refused = !plan;

	mutant_search_plan_free(plan);
	return refused;
}

/* Returns whether plans are read, refused and picked as they should be under the current fault. */
static int plans(struct cairn_test *t)
{
	struct cairn_plan_file *plan = read_plan(t, "'G'", "'G'");
	int right = plan && plan->num_entries == 4 && plan->entries[0].cuts[0] == 384 &&
		    plan->entries[3].cuts[0] == 512 && plan->entries[3].cuts[1] == 1024 &&
		    mutant_search_plan_pick(plan, 1024, 384, 1024) == &plan->entries[0] &&
		    mutant_search_plan_pick(plan, 1100, 400, 4096) == &plan->entries[2] &&
		    !mutant_search_plan_pick(plan, 1024, 768, 1024) &&
		    !mutant_search_plan_pick(plan, 1023, 384, 1024) &&
		    !mutant_search_plan_pick(plan, 1600, 600, 1024) &&
		    !mutant_search_plan_pick(plan, 1024, 200, 1024) &&
		    !mutant_search_plan_pick(plan, 1024, 384, 2048);

	mutant_search_plan_free(plan);
	return right && is_refused(t, "'G'", "'H'") && is_refused(t, "0123456789abcdef",
								  "1123456789abcdef") &&
	       is_refused(t, "4x64-0a", "4x64-0b") && is_refused(t, "'ranks': 1", "'ranks': 2");
}

static void notice_plan(struct cairn_test *t, int fault)
{
	cairn_search_fault = fault;
	EXPECT(t, !plans(t));
	cairn_search_fault = FAULT_NONE;
	EXPECT(t, plans(t));
}

/* Returns whether an entry becomes the plan that it should under the current fault. */
static int lanes(struct cairn_test *t)
{
	struct cairn_plan_file *file = open_engine_plan(t, 2, "'how': 'green', 'sms': 40", "", "");
	struct cairn_search_pipeline pipeline;
	struct cairn_plan_lanes l;
	const struct cairn_nano_place *p;
	int light = 0, right;

	if (!file || engine_pipeline(&pipeline, 2) || mutant_search_plan_lanes_make(&l, file, 0, &pipeline))
		return 0;
	right = l.plan.rows[0] * 640 == l.plan.rows[1] * 384 && l.plan.num_lanes == 5 &&
		l.plan.lanes[3].sms == -l.plan.lanes[4].sms;
	for (p = l.places; p < l.places + l.plan.num_places; p++) {
		right &= strcmp(p->op, "attn") || p->lane == (p->batch ? 1 : 3);
		right &= !strstr(p->op, "norm") || p->lane == 2;
		light += !strcmp(p->op, "rope") || !strcmp(p->op, "attn");
	}
	mutant_search_plan_lanes_free(&l);
	cairn_plan_file_free(file);
	return right && light == 4;
}

static void notice_lanes(struct cairn_test *t, int fault)
{
	cairn_search_fault = fault;
	EXPECT(t, !lanes(t));
	cairn_search_fault = FAULT_NONE;
	EXPECT(t, lanes(t));
}

#define MUTANT(name, fault, tiny) \
	static void name(struct cairn_test *t) { notice(t, FAULT_##fault, &tiny); }
#define KEYS_MUTANT(name, fault) \
	static void name(struct cairn_test *t) { notice_keys(t, FAULT_##fault); }
#define PLAN_MUTANT(name, fault) \
	static void name(struct cairn_test *t) { notice_plan(t, FAULT_##fault); }
#define LANES_MUTANT(name, fault) \
	static void name(struct cairn_test *t) { notice_lanes(t, FAULT_##fault); }

MUTANT(no_layer_edges, NO_LAYER_EDGES, memory)
MUTANT(no_data_edges, NO_DATA_EDGES, chain)
KEYS_MUTANT(no_cache_edges, NO_CACHE_EDGES)
KEYS_MUTANT(cache_next_only, CACHE_NEXT_ONLY)
MUTANT(whole_meets_first, WHOLE_MEETS_FIRST, whole)
MUTANT(no_wrap, NO_WRAP, chain)
MUTANT(kind_overlaps, KIND_OVERLAPS, chain)
MUTANT(rows_lost, ROWS_LOST, chain)
MUTANT(decode_lost, DECODE_LOST, decode)
MUTANT(decode_unbounded, DECODE_UNBOUNDED, decode)
MUTANT(no_rho, NO_RHO, chain)
MUTANT(p_is_r, P_IS_R, chain)
MUTANT(kind_overlaps_in_stage2, KIND_OVERLAPS_2, memory)
PLAN_MUTANT(other_digest_taken, OTHER_DIGEST)
PLAN_MUTANT(other_gpu_taken, OTHER_GPU)
PLAN_MUTANT(other_shape_taken, OTHER_SHAPE)
PLAN_MUTANT(other_ranks_taken, OTHER_RANKS)
PLAN_MUTANT(cut_off_by_one, CUT_OFF_BY_ONE)
PLAN_MUTANT(gain_ignored, GAIN_IGNORED)
PLAN_MUTANT(more_rows_picked, MORE_ROWS)
PLAN_MUTANT(far_rows_picked, FAR_ROWS)
PLAN_MUTANT(any_share_picked, ANY_SHARE)
PLAN_MUTANT(any_context_picked, ANY_CONTEXT)
LANES_MUTANT(parts_share_sms, SPLIT_SMS)
LANES_MUTANT(attention_on_wrong_lane, WRONG_LANE)
LANES_MUTANT(collectives_on_wrong_lane, NETWORK_LANE)
LANES_MUTANT(cuts_equal, CUTS_EQUAL)
LANES_MUTANT(light_operations_lost, LIGHT_LOST)

#define UNIT(name)	{ #name, name }
static const struct cairn_unit units[] = {
	UNIT(no_layer_edges), UNIT(no_data_edges), UNIT(no_cache_edges), UNIT(cache_next_only),
	UNIT(whole_meets_first), UNIT(no_wrap), UNIT(kind_overlaps), UNIT(rows_lost), UNIT(decode_lost),
	UNIT(decode_unbounded), UNIT(no_rho), UNIT(no_triple), UNIT(p_is_r), UNIT(kind_overlaps_in_stage2),
	UNIT(other_digest_taken), UNIT(other_gpu_taken), UNIT(other_shape_taken), UNIT(other_ranks_taken),
	UNIT(cut_off_by_one), UNIT(gain_ignored), UNIT(more_rows_picked), UNIT(far_rows_picked),
	UNIT(any_share_picked), UNIT(any_context_picked), UNIT(parts_share_sms),
	UNIT(attention_on_wrong_lane), UNIT(collectives_on_wrong_lane), UNIT(cuts_equal),
	UNIT(light_operations_lost),
};

const struct cairn_family cairn_search_mutants_family = {
	.stage = "serving",
	.name = "search_mutants",
	.units = units,
	.num_units = ARRAY_SIZE(units),
	.cost_s = 5,
};
