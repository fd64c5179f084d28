// SPDX-License-Identifier: Apache-2.0
/*
 * ranks_nano_test - ranks run a pass as nano-batches with the bits of their sequential pass
 *
 * All ranks make the same passes in step: their past and a sequential pass, then the same with random plans,
 * whose collectives lie on any lanes. After each pass, every rank knows how many results of all ranks differ.
 * On table late, each rank's streams advance in an order of their own as far as events allow, and each rank
 * runs another lane first. So two collectives without an order between them are confused with each other.
 */
#include <sys/wait.h>
#include <unistd.h>

#include "conformance/harness.h"
#include "conformance/suite/threads.h"
#include "serving/nano/nano_test.h"
#include "serving/ranks/ranks.h"
#include "serving/ranks/ranks_gpus_test.h"

#define PLACES	160
#define WAIT_MS	60000

/* Two decoding rows, then prompts; the cut lies inside the second prompt. */
static const struct scene_request requests[] = { { 1, 14 }, { 1, 33 }, { 12, 5 }, { 40, 7 } };
static const int32_t cut[] = { 34 };

/* Runs of a group of ranks. model NULL: a random one that three ranks can share. */
struct setting {
	const char *table;
	int ranks;
	struct {
		const char *model;
		void (*run)(struct cairn_test *t, struct scene *s, int rank);
	} of[3];
	int num;
};

/* ---- opening ---- */

static int load_share(struct scene *s, const char *model, int rank, int ranks)
{
	struct cairn_model_config c;

	if (model)
		return cairn_model_load_rank(&s->m, &s->impl, s->g.dir, rank, ranks, CAIRN_WEIGHTS_PLAIN,
					     CAIRN_KV_PLAIN, NULL, NULL);
	CAIRN_TRY(cairn_model_shape("llama32-1b", &c));
	c.hidden_size = 96;
	c.intermediate_size = 192;
	c.num_attention_heads = 6;
	c.num_key_value_heads = 3;
	c.vocab_size = 192;
	c.num_hidden_layers = 3;
	return cairn_model_random_rank(&s->m, &s->impl, &c, ranks, CAIRN_WEIGHTS_PLAIN, CAIRN_KV_PLAIN, 1);
}

/* Each rank's table late has an order of its own. */
static int open_rank(struct cairn_test *t, struct cairn_impl *impl, const char *table, struct cairn_tp *tp)
{
	const int rank = cairn_tp_rank(tp), is_late = !strcmp(table, "late");
	char name[32];

	cairn_set_threads(1);	/* the threads of the calling process do not survive the fork */
	snprintf(name, sizeof(name), is_late ? "%s%d" : "%s", table, 3 + rank);
	if (strcmp(table, "cuda") ? open_table(t, name, impl) :
	    !EXPECT(t, cairn_impl_open(table, impl) == 0 && cairn_impl_start(impl, rank) == 0))
		return -1;
	return EXPECT(t, cairn_tp_table(tp, impl, "") == 0) ? 0 : -1;
}

static int run_all(struct cairn_test *t, const struct setting *o, const struct golden *g,
		   struct cairn_tp *tp)
{
	const int rank = cairn_tp_rank(tp);
	struct cairn_impl impl;
	struct scene s;
	int ret = open_rank(t, &impl, o->table, tp);

	for (int i = 0; i < o->num && !ret; i++) {
		memset(&s, 0, sizeof(s));
		s.impl = impl;
		s.g = g[i];
		ret = !EXPECT(t, load_share(&s, o->of[i].model, rank, o->ranks) == 0) ||
		      furnish_scene(t, &s);
		if (!ret)
			o->of[i].run(t, &s, rank);
		close_scene(&s);
	}
	if (ret && cairn_last_error()[0])
		cairn_note(t, "rank %d: %s", rank, cairn_last_error());
	return ret;
}

/* Checkpoints are opened before the fork, because some are written then, one of a group at most. */
static void on_ranks(struct cairn_test *t, const struct setting *o)
{
	struct golden g[ARRAY_SIZE(o->of)] = { { .st = NULL } };
	struct cairn_tp *tp;
	int ret;

	for (int i = 0; i < o->num; i++) {
		struct golden one = { .st = NULL };

		if (o->of[i].model && open_golden(t, &one, o->of[i].model))
			return;
		g[i] = one;
	}
	if (!EXPECT(t, cairn_tp_fork(&tp, o->ranks, NULL, WAIT_MS) == 0))
		return;
	ret = run_all(t, o, g, tp);
	if (cairn_tp_rank(tp)) {
		if (ret || cairn_tp_wait(tp))
			cairn_tp_fail(tp);
		_exit(0);
	}
	cairn_tp_close(tp);
}

/* Returns the number of all ranks' results that differ, or -errno of any rank. */
static int64_t settle(struct scene *s, int ranks, int64_t bad)
{
	int64_t mine[2] = { bad }, all[2 * CAIRN_COMM_MAX_RANKS], sum = 0;
	struct cairn_all_to_all_args a = {
		.size = sizeof(a), .out = s->dev_logits, .x = s->dev->ids, .out_block = sizeof(mine),
		.out_stride = sizeof(mine), .x_stride = sizeof(mine), .rows = 1, .row_bytes = sizeof(mine),
	};

	CAIRN_TRY(scene_copy(s, s->dev->ids, mine, sizeof(mine), CAIRN_COPY_TO_DEVICE));
	CAIRN_TRY(s->impl.all_to_all(&a, s->stream));
	CAIRN_TRY(scene_copy(s, all, s->dev_logits, (size_t)ranks * sizeof(mine), CAIRN_COPY_TO_HOST));
	for (int r = 0; r < ranks; r++)
		sum = all[2 * r] < 0 || sum < 0 ? -EIO : sum + all[2 * r];
	return sum;
}

/* ---- the same bits ---- */

/* Cuts lie at the edges of shares or between any two rows; ranks run different lanes first. */
static void random_plans(struct cairn_test *t, struct scene *s, int rank)
{
	struct cairn_nano_place places[PLACES];

	if (run_scene(t, s, requests, ARRAY_SIZE(requests)))
		return;
	for (int i = 0; i < 4; i++) {
		const int k = 1 + i, lanes = 1 + (int)(cairn_rand(t) % 4);
		struct cairn_nano_plan plan;
		struct cairn_nano *n = NULL;
		struct cairn_nano_cuts cuts;
		int64_t bad;

		random_plan(t, s->m->graph, k, lanes, &plan, places, PLACES);
		if (i % 3 == 0)
			plan.num_places = 0;
		for (int b = 0; b < k; b++) {
			plan.rows[b] = 1 + (int32_t)(cairn_rand(t) % 9);
			plan.decodes[b] = i % 2;
		}
		s->first_lane = (i + rank) % lanes;
		if (!EXPECT(t, cairn_nano_cut(&cuts, &plan, s->host.qo_indptr, s->batch.batch,
					      s->batch.num_rows, s->num_decodes) == 0) ||
		    !EXPECT(t, cairn_nano_create(&n, s->s, &plan) == 0))
			return;
		bad = settle(s, s->m->ranks, run_nano(s, n, &cuts));
		if (!EXPECT(t, bad == 0))
			cairn_note(t, "%s, %d ranks, %d nano-batches on %d lanes: %lld bad, %s", s->impl.name,
				   s->m->ranks, k, lanes, (long long)bad, bad < 0 ? cairn_last_error() : "");
		cairn_nano_destroy(n);
	}
}

static void on_cpu(struct cairn_test *t)
{
	static const struct setting all[] = {
		/* norms of the blocks are the collectives of gemma2 */
		{ "cpu", 2, { { "llama3_tiny", random_plans }, { "gemma2_tiny", random_plans } }, 2 },
		{ "cpu", 3, { { NULL, random_plans } }, 1 },
		{ "cpu", 4, { { "deepseek_q_tiny", random_plans } }, 1 },
	};

	for (size_t i = 0; i < ARRAY_SIZE(all); i++)
		on_ranks(t, &all[i]);
}

/* ---- captured passes ---- */

/* A decoding pass is captured with its collectives, and replayed with other keys: the bits are those without
 * a graph. */
static void replays(struct cairn_test *t, struct scene *s, int rank)
{
	static const struct cairn_nano_plan plan = { .num_batches = 2, .num_lanes = 3 };
	static const int32_t at[] = { 3 };
	const int is_exact = strcmp(s->impl.name, "cuda") != 0;
	struct scene_request r[8];
	struct cairn_nano *n = NULL;
	void *graph = NULL;

	for (int step = 0; step < 3; step++) {
		struct cairn_nano_cuts cuts;
		int64_t bad;

		for (int i = 0; i < 8; i++)
			r[i] = (struct scene_request){ 1, (11 * i + 6 * step + 3) % 40 };
		if (run_scene(t, s, r, 8) || (!n && !EXPECT(t, cairn_nano_create(&n, s->s, &plan) == 0)))
			break;
		cuts = cuts_at(s, 2, at);
		bad = run_nano(s, n, &cuts);		/* the first pass also warms up the operations */
		if (bad >= 0) {
			bad = is_exact ? bad : 0;
			expect_last(s, &cuts);
		}
		if (!bad && !graph)
			bad = capture_scene(s, n, &cuts, &graph);
		if (!bad)
			bad = replay_scene(s, graph, &cuts);
		if (!EXPECT(t, settle(s, s->m->ranks, bad) == 0)) {
			cairn_note(t, "rank %d, step %d: %s", rank, step, cairn_last_error());
			break;
		}
	}
	if (graph)
		s->impl.graph_destroy(graph);
	cairn_nano_destroy(n);
}

static void on_late(struct cairn_test *t)
{
	static const struct setting all[] = {
		{ "late", 2, { { "llama3_tiny", random_plans }, { "mixtral_tiny", random_plans },
			       { "llama3_tiny", replays } }, 3 },
		{ "late", 3, { { NULL, random_plans } }, 1 },
	};

	for (size_t i = 0; i < ARRAY_SIZE(all); i++)
		on_ranks(t, &all[i]);
}

/* ---- on two GPUs ---- */

/*
 * Sums may depend on the number of rows of a call there (nano_test.c), so all plans with the same cuts must
 * have the same bits, and one nano-batch those of the sequential pass.
 */
static void same_cuts(struct cairn_test *t, struct scene *s, int rank)
{
	struct cairn_nano_place places[PLACES];

	(void)rank;
	if (run_scene(t, s, requests, ARRAY_SIZE(requests)))
		return;
	for (int i = 0; i < 12; i++) {
		struct cairn_nano_cuts cuts = cuts_at(s, i ? 2 : 1, cut);
		struct cairn_nano_plan plan = { .num_batches = i ? 2 : 1, .num_lanes = 1 };
		struct cairn_nano *n = NULL;
		int64_t bad;

		if (i > 1) {
			random_plan(t, s->m->graph, 2, 1 + i % 4, &plan, places, PLACES);
			random_parts(t, s->m->graph, &plan);
			for (int32_t p = 0; p < plan.num_places; p++)	/* whole calls have other shapes */
				if (places[p].batch < 0)
					places[p--] = places[--plan.num_places];
		}
		if (!EXPECT(t, cairn_nano_create(&n, s->s, &plan) == 0))
			return;
		bad = run_nano(s, n, &cuts);
		if (i == 1 && bad >= 0) {
			expect_last(s, &cuts);
			bad = 0;
		}
		if (!EXPECT(t, settle(s, s->m->ranks, bad) == 0))
			cairn_note(t, "pass %d on %d lanes: %lld bad", i, plan.num_lanes, (long long)bad);
		cairn_nano_destroy(n);
	}
}

/* ---- mutants ---- */

static const struct nano_step *recorder(const struct nano_schedule *c, int32_t event)
{
	int32_t i = 0;

	while (c->steps[i].event != event)
		i++;
	return &c->steps[i];
}

static const struct cairn_graph_op *op_of(const struct scene *s, const struct nano_step *x)
{
	return &s->m->graph->ops[x->op];
}

/* Removes the waits of all steps for which is(step waited for, step that waits); returns how many. */
static int drop(const struct scene *s, struct cairn_nano *n,
		int (*is)(const struct cairn_graph_op *before, const struct cairn_graph_op *after))
{
	struct nano_schedule *c = &n->schedule;
	int dropped = 0;

	for (int32_t i = 0; i < c->num_steps; i++) {
		struct nano_step *x = &c->steps[i];

		for (int32_t k = 0; k < x->num_waits; k++) {
			const struct nano_step *from = recorder(c, c->waits[x->first_wait + k]);

			if (!is(op_of(s, from), op_of(s, x)))
				continue;
			c->waits[x->first_wait + k--] = c->waits[x->first_wait + --x->num_waits];
			dropped++;
		}
	}
	return dropped;
}

static int both_collective(const struct cairn_graph_op *before, const struct cairn_graph_op *after)
{
	return before->collective && after->collective;
}

static int to_collective(const struct cairn_graph_op *before, const struct cairn_graph_op *after)
{
	return before->kind == CAIRN_OP_GEMM && after->collective;
}

static int from_collective(const struct cairn_graph_op *before, const struct cairn_graph_op *after)
{
	return before->collective && after->kind == CAIRN_OP_GEMM;
}

/* Two collectives of different nano-batches may be under way at the same time. */
static int unordered(struct scene *s, struct cairn_nano *n, int rank)
{
	(void)rank;
	return drop(s, n, both_collective);
}

/* Partial sums are sent before they are complete. */
static int sent_early(struct scene *s, struct cairn_nano *n, int rank)
{
	(void)rank;
	return drop(s, n, to_collective);
}

/* Products read sums that have not come yet. */
static int read_early(struct scene *s, struct cairn_nano *n, int rank)
{
	(void)rank;
	return drop(s, n, from_collective);
}

/* One rank launches the first layer's collectives in another order. */
static int other_order(struct scene *s, struct cairn_nano *n, int rank)
{
	struct nano_schedule *c = &n->schedule;
	int32_t first = -1, second = -1;

	for (int32_t i = 0; i < c->num_steps && second < 0; i++)
		if (op_of(s, &c->steps[i])->collective && c->steps[i].batch >= 0)
			*(first < 0 ? &first : &second) = i;
	if (second < 0 || c->steps[first].op != c->steps[second].op)
		return 0;
	if (rank) {
		const struct nano_step kept = c->steps[first];

		c->steps[first].batch = c->steps[second].batch;
		c->steps[second].batch = kept.batch;
	}
	return 1;
}

static const struct mutant {
	const char *name;
	int (*change)(struct scene *s, struct cairn_nano *n, int rank);	/* 0: there is nothing to change */
	int other_cut;			/* one rank cuts the pass a row later */
} mutants[] = {
	{ "none", NULL, 0 }, { "unordered", unordered, 0 }, { "sent_early", sent_early, 0 },
	{ "read_early", read_early, 0 }, { "other_order", other_order, 0 }, { "other_cut", NULL, 1 },
};

/* Each nano-batch has a lane for its collectives and one for everything else. */
static void apart(const struct scene *s, struct cairn_nano_plan *plan, struct cairn_nano_place *places)
{
	const struct cairn_op_graph *g = s->m->graph;
	const int32_t layer = s->m->config.num_hidden_layers - 1;

	*plan = (struct cairn_nano_plan){ .num_batches = 2, .num_lanes = 4, .places = places };
	for (int32_t o = 0; o < g->num_ops; o++)
		for (int b = 0; b < 2 && g->ops[o].layer == layer; b++)
			places[plan->num_places++] = (struct cairn_nano_place){
				.op = strrchr(g->ops[o].name, '.') + 1, .batch = b,
				.lane = 2 * b + g->ops[o].collective, .start = o * 0.01,
			};
}

/* Rank r runs another lane first than rank 0, in each of four rounds. */
static void all_noticed(struct cairn_test *t, struct scene *s, int rank)
{
	struct cairn_nano_place places[PLACES];
	struct cairn_nano_plan plan;

	apart(s, &plan, places);
	if (run_scene(t, s, requests, ARRAY_SIZE(requests)))
		return;
	for (size_t i = 0; i < ARRAY_SIZE(mutants); i++) {
		const int32_t later[] = { cut[0] + (mutants[i].other_cut && rank) };
		int64_t bad = 0;
		int round = 0;

		for (; round < 4 && !bad; round++) {
			struct cairn_nano_cuts cuts = cuts_at(s, 2, later);
			struct cairn_nano *n = NULL;

			if (!EXPECT(t, cairn_nano_create(&n, s->s, &plan) == 0))
				return;
			if (mutants[i].change)
				EXPECT(t, mutants[i].change(s, n, rank) > 0);
			s->first_lane = rank ? (round + 2) % 4 : round;
			bad = settle(s, s->m->ranks, run_nano(s, n, &cuts));
			for (int l = 1; l < plan.num_lanes; l++)
				EXPECT(t, s->impl.stream_sync(n->streams[l]) == 0);
			cairn_nano_destroy(n);
		}
		if (!rank)
			cairn_note(t, "%s: %lld bad in round %d", mutants[i].name, (long long)bad, round);
		EXPECT(t, bad >= 0 && (bad > 0) == (i > 0));
	}
}

static void mutants_late(struct cairn_test *t)
{
	static const struct setting setting = { "late", 2, { { "llama3_tiny", all_noticed } }, 1 };

	on_ranks(t, &setting);
}

static void two_cuda(struct cairn_test *t)
{
	static const struct setting setting = {
		"cuda", 2, { { "llama3_tiny", same_cuts }, { "deepseek_tiny", same_cuts },
			     { "llama3_tiny", replays } }, 3,
	};

	if (has_gpus(2))
		on_ranks(t, &setting);
	else
		cairn_skip(t, "needs 2 GPUs");
}

static const struct cairn_unit units[] = {
	{ "on_cpu", on_cpu }, { "on_late", on_late }, { "mutants_late", mutants_late },
	{ "two_cuda", two_cuda },
};

const struct cairn_family cairn_ranks_nano_family = {
	.stage = "serving", .name = "ranks_nano",
	.units = units, .num_units = ARRAY_SIZE(units),
};
