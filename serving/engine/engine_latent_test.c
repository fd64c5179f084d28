// SPDX-License-Identifier: Apache-2.0
/*
 * engine_latent_test - latent-attention models: prompts long enough for mla_prefill, and tables that lack
 * operations of their operation list
 *
 * On such a table every pass is a decode_step, and a prompt is computed token by token.
 */
#include "conformance/harness.h"
#include "serving/engine/engine_test.h"

static int is_golden(const struct answer *a, const struct golden *g, int num)
{
	return a->num_ids == num && a->why == CAIRN_FINISH_LENGTH && a->num_finished == 1 &&
	       !memcmp(a->ids, g->greedy, (size_t)num * sizeof(*g->greedy));
}

static int open_latent(struct cairn_test *t, const char *table, const char *name, struct cairn_impl *impl,
		       struct golden *g, struct cairn_model **m)
{
	if (open_table(t, table, impl) || open_golden(t, g, name))
		return -1;
	impl->mla_paged = NULL;
	if (EXPECT(t, cairn_model_load(m, impl, g->dir, NULL, NULL) == 0))
		return 0;
	close_golden(g);
	return -1;
}

/*
 * Greedy tokens match transformers, in one pass per token except the last. A table need not have the
 * persistent form for such models, but must refuse it when the engine is created.
 */
static void greedy(struct cairn_test *t, const char *table, const char *name)
{
	static const struct cairn_engine_options opts[] = {
		{ .max_batch = 1, .max_context = 64 },
		{ .max_batch = 1, .max_context = 64, .max_rows = 7, .page_size = 1,
		  .decode = CAIRN_DECODE_GRAPH },
		{ .max_batch = 1, .max_context = 48, .page_size = 5, .no_graphs = 1,
		  .decode = CAIRN_DECODE_PERSISTENT },
	};
	struct cairn_engine_stats stats;
	struct cairn_model *m;
	struct cairn_impl impl;
	struct golden g;
	int passes, ret;

	if (open_latent(t, table, name, &impl, &g, &m))
		return;
	passes = g.num_tokens + g.num_greedy - 1;
	for (size_t i = 0; i < ARRAY_SIZE(opts); i++) {
		struct answer a;
		struct cairn_request r = request(&g, g.num_tokens, g.num_greedy, &a);
		struct cairn_engine *e;

		ret = cairn_engine_create(&e, m, &opts[i]);
		if (ret == -EOPNOTSUPP && opts[i].decode == CAIRN_DECODE_PERSISTENT) {
			EXPECT_CONTAINS(t, cairn_last_error(), "decode_step: form: ");
			continue;
		}
		if (!EXPECT(t, ret == 0))
			continue;
		EXPECT(t, cairn_engine_submit(e, &r) == 0);
		EXPECT(t, cairn_engine_run(e) == 0);
		EXPECT(t, is_golden(&a, &g, g.num_greedy));
		cairn_engine_stats(e, &stats);
		EXPECT(t, stats.prompt_tokens == g.num_tokens && stats.new_tokens == g.num_greedy);
		EXPECT(t, stats.steps == passes && stats.fused_steps == passes);
		/* the first pass warms up, the second captures */
		EXPECT(t, stats.graph_steps ==
			  (on_device(&impl) && !opts[i].no_graphs ? passes - 1 : 0));
		cairn_engine_destroy(e);
	}
	close_model(m, &g);
}

/*
 * Requests start and end at different times, so a pass draws for only some of its rows. Greedy requests must
 * still get their tokens, and sampled requests the tokens of their seed.
 */
static void mixed(struct cairn_test *t, const char *table, const char *name)
{
	static const int lengths[] = { 3, 8, 1, 8, 5, 8 };
	struct cairn_engine_options opt = { .max_batch = 3, .max_context = 64, .page_size = 4 };
	struct answer plain[ARRAY_SIZE(lengths)], hot[2];
	struct cairn_request r;
	struct cairn_engine *e;
	struct cairn_model *m;
	struct cairn_impl impl;
	struct golden g;

	if (open_latent(t, table, name, &impl, &g, &m))
		return;
	if (!EXPECT(t, cairn_engine_create(&e, m, &opt) == 0))
		goto out;
	for (size_t i = 0; i < ARRAY_SIZE(lengths); i++) {
		r = request(&g, g.num_tokens, lengths[i], &plain[i]);
		EXPECT(t, cairn_engine_submit(e, &r) == 0);
		if (i % 3)
			continue;
		r = request(&g, 11, 20, &hot[i / 3]);
		r.ignore_eos = 1;
		r.sampling = (struct cairn_sampling){ .temperature = 2, .top_p = 1, .seed = 7 };
		EXPECT(t, cairn_engine_submit(e, &r) == 0);
	}
	EXPECT(t, cairn_engine_run(e) == 0);
	for (size_t i = 0; i < ARRAY_SIZE(lengths); i++)
		EXPECT(t, is_golden(&plain[i], &g, lengths[i]));
	EXPECT(t, hot[0].num_ids == 20 && hot[1].num_ids == 20);
	EXPECT(t, memcmp(hot[0].ids, g.greedy, (size_t)g.num_greedy * sizeof(*g.greedy)));
	/* The last request reuses pages that others have freed. */
	r = request(&g, g.num_tokens, g.num_greedy, &plain[0]);
	EXPECT(t, cairn_engine_submit(e, &r) == 0 && cairn_engine_run(e) == 0);
	EXPECT(t, is_golden(&plain[0], &g, g.num_greedy));
	cairn_engine_destroy(e);
out:
	close_model(m, &g);
}

static int no_latent(const struct cairn_decode_step_args *args, size_t *bytes)
{
	(void)bytes;
	return cairn_error(EOPNOTSUPP, "decode_step: head_dim: %d is not 64 or 128", args->head_dim);
}

/* An engine refuses unsupported options when it is created. */
static void refused(struct cairn_test *t)
{
	static const struct { struct cairn_engine_options opt; const char *text; } rows[] = {
		{ { .max_batch = 1, .max_context = 64, .decode = CAIRN_DECODE_UNFUSED },
		  "cpu: decode unfused: the table lacks operations" },
		{ { .max_batch = 9, .max_context = 64 },
		  "cpu: decode_step_workspace: decode_step: kv.batch: 9" },
	};
	struct cairn_engine_options one = { .max_batch = 1, .max_context = 64 };
	struct cairn_engine *e = NULL;
	struct cairn_model *m;
	struct cairn_impl impl;
	struct golden g;

	if (open_latent(t, "cpu", "deepseek_tiny", &impl, &g, &m))
		return;
	for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
		EXPECT(t, cairn_engine_create(&e, m, &rows[i].opt) == -EOPNOTSUPP);
		EXPECT_CONTAINS(t, cairn_last_error(), rows[i].text);
	}
	/* a table built before latent attention existed */
	impl.decode_step_workspace = no_latent;
	EXPECT(t, cairn_engine_create(&e, m, &one) == -EOPNOTSUPP);
	EXPECT_CONTAINS(t, cairn_last_error(), "cpu: decode_step_workspace: decode_step: head_dim: 192");
	EXPECT(t, e == NULL);
	close_model(m, &g);
}

#define LONG	150

static int (*prefill_of_table)(const struct cairn_mla_prefill_args *args, void *stream);
static int num_prefills;

static int counted_prefill(const struct cairn_mla_prefill_args *args, void *stream)
{
	num_prefills++;
	return prefill_of_table(args, stream);
}

/*
 * Runs a short prompt and two long ones, whole or in chunks, so that passes have requests for both attention
 * operations. The short one must get its golden tokens; ids receives the tokens of the long ones.
 */
static void ask_long(struct cairn_test *t, struct cairn_model *m, const struct golden *g,
		     const int32_t *prompt, struct cairn_engine_options opt, int32_t ids[2][4])
{
	struct cairn_engine *e;
	struct answer a, longs[2];
	struct cairn_request r = request(g, g->num_tokens, g->num_greedy, &a);

	opt.max_batch = 4;
	opt.max_context = 192;
	opt.cache_grain = -1;
	if (!EXPECT(t, cairn_engine_create(&e, m, &opt) == 0))
		return;
	EXPECT(t, cairn_engine_submit(e, &r) == 0);
	for (int i = 0; i < 2; i++) {
		r = request(g, g->num_tokens, 4, &longs[i]);
		r.prompt = prompt;
		r.num_prompt = LONG - 20 * i;
		r.ignore_eos = 1;
		EXPECT(t, cairn_engine_submit(e, &r) == 0);
	}
	EXPECT(t, cairn_engine_run(e) == 0);
	EXPECT(t, is_golden(&a, g, g->num_greedy));
	for (int i = 0; i < 2; i++) {
		EXPECT(t, longs[i].num_ids == 4);
		memcpy(ids[i], longs[i].ids, 4 * sizeof(**ids));
	}
	cairn_engine_destroy(e);
}

/* Long prompts get the same tokens with and without mla_prefill. */
static void prompts(struct cairn_test *t, const char *table)
{
	static const struct cairn_engine_options opts[] = {
		{ .page_size = 16 }, { .max_rows = 100, .page_size = 1, .no_graphs = 1 },
	};
	int32_t prompt[LONG], with[2][4] = { { 0 } }, without[2][4] = { { 0 } };
	struct cairn_impl impl;
	struct cairn_model *m;
	struct golden g;

	if (open_table(t, table, &impl) || open_golden(t, &g, "deepseek_tiny"))
		return;
	for (int i = 0; i < LONG; i++)
		prompt[i] = g.tokens[(i * 7 + i / g.num_tokens) % g.num_tokens];
	for (size_t i = 0; i < ARRAY_SIZE(opts); i++) {
		prefill_of_table = impl.mla_prefill;
		if (!EXPECT(t, cairn_model_load(&m, &impl, g.dir, NULL, NULL) == 0))
			break;
		num_prefills = 0;
		impl.mla_prefill = counted_prefill;
		ask_long(t, m, &g, prompt, opts[i], with);
		EXPECT(t, num_prefills > 0);
		impl.mla_prefill = NULL;
		ask_long(t, m, &g, prompt, opts[i], without);
		EXPECT(t, !memcmp(with, without, sizeof(with)));
		impl.mla_prefill = prefill_of_table;
		cairn_model_free(m);
	}
	close_golden(&g);
}

#define TABLE(table) \
	static void prompts_##table(struct cairn_test *t) { prompts(t, #table); } \
	static void greedy_##table(struct cairn_test *t) { greedy(t, #table, "deepseek_tiny"); } \
	static void greedy_q_##table(struct cairn_test *t) { greedy(t, #table, "deepseek_q_tiny"); } \
	static void mixed_##table(struct cairn_test *t) { mixed(t, #table, "deepseek_tiny"); } \
	static void mixed_q_##table(struct cairn_test *t) { mixed(t, #table, "deepseek_q_tiny"); }
TABLE(ref)
TABLE(cpu)
TABLE(cuda)
TABLE(late)
#define UNITS(table) \
	{ "prompts_" #table, prompts_##table }, \
	{ "greedy_" #table, greedy_##table }, { "greedy_q_" #table, greedy_q_##table }, \
	{ "mixed_" #table, mixed_##table }, { "mixed_q_" #table, mixed_q_##table }

static const struct cairn_unit units[] = {
	UNITS(ref), UNITS(cpu), UNITS(cuda), UNITS(late),
	{ "refused", refused },
};

const struct cairn_family cairn_engine_latent_family = {
	.stage = "serving",
	.name = "engine_latent",
	.units = units,
	.num_units = ARRAY_SIZE(units),
	.cost_s = 7,
};
