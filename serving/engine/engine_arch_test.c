// SPDX-License-Identifier: Apache-2.0
/*
 * engine_arch_test - greedy tokens of every architecture through the engine match transformers
 *
 * Each request runs alone and in a batch, with its prompt whole and in chunks, on both decode paths.
 */
#include "conformance/harness.h"
#include "serving/engine/engine_test.h"

#define MOST	12

static int is_golden(const struct answer *a, const struct golden *g, int num)
{
	return a->num_ids == num && a->why == CAIRN_FINISH_LENGTH && a->num_finished == 1 &&
	       !memcmp(a->ids, g->greedy, (size_t)num * sizeof(*g->greedy));
}

/* Runs `requests` requests at once; their answers end at different times. The prefix cache is off. */
static void ask(struct cairn_test *t, struct cairn_model *m, const struct golden *g,
		struct cairn_engine_options opt, int requests)
{
	struct cairn_engine_stats stats;
	struct cairn_engine *e;
	struct answer a[MOST];
	int rows = opt.max_rows ? opt.max_rows : 1024;

	opt.cache_grain = -1;
	if (!EXPECT(t, cairn_engine_create(&e, m, &opt) == 0)) {
		cairn_note(t, "%s", cairn_last_error());
		return;
	}
	for (int k = 0; k < requests; k++) {
		struct cairn_request r = request(g, g->num_tokens, g->num_greedy - k % 3, &a[k]);

		EXPECT(t, cairn_engine_submit(e, &r) == 0);
	}
	if (!EXPECT(t, cairn_engine_run(e) == 0))
		cairn_note(t, "%s", cairn_last_error());
	for (int k = 0; k < requests; k++)
		EXPECT(t, is_golden(&a[k], g, g->num_greedy - k % 3));
	cairn_engine_stats(e, &stats);
	/* A prompt takes one pass per chunk, not one per token. */
	if (requests == 1)
		EXPECT(t, stats.steps == (g->num_tokens + rows - 1) / rows + g->num_greedy - 1);
	cairn_engine_destroy(e);
}

static void architecture(struct cairn_test *t, const char *table, const char *name)
{
	struct cairn_model *m;
	struct cairn_impl impl;
	struct golden g;

	if (open_model(t, table, name, &impl, &g, &m))
		return;
	ask(t, m, &g, (struct cairn_engine_options){ .max_batch = 1, .max_context = 128 }, 1);
	ask(t, m, &g, (struct cairn_engine_options){ .max_batch = 1, .max_context = 96, .max_rows = 16,
		.page_size = 1, .decode = CAIRN_DECODE_UNFUSED }, 1);
	ask(t, m, &g, (struct cairn_engine_options){ .max_batch = 5, .max_context = 100, .max_rows = 23,
		.page_size = 5, .no_graphs = 1 }, 7);
	ask(t, m, &g, (struct cairn_engine_options){ .max_batch = MOST, .max_context = 128,
		.max_rows = 300 }, MOST);
	close_model(m, &g);
}

#define EACH(what, table) \
	what(qwen2, table) what(qwen3, table) what(mistral, table) what(gemma2, table) what(mixtral, table) \
	what(deepseek, table) what(deepseek_q, table)
#define DEFINE(model, table) \
	static void model##_##table(struct cairn_test *t) { architecture(t, #table, #model "_tiny"); }
#define LIST(model, table) { #model "_" #table, model##_##table },
EACH(DEFINE, ref)
EACH(DEFINE, cpu)
EACH(DEFINE, cuda)
EACH(DEFINE, late)
DEFINE(gpt_oss, cpu)
DEFINE(gpt_oss, cuda)

static const struct cairn_unit units[] = {
	EACH(LIST, ref) EACH(LIST, cpu) EACH(LIST, cuda) EACH(LIST, late)
	LIST(gpt_oss, cpu) LIST(gpt_oss, cuda)
};

const struct cairn_family cairn_engine_arch_family = {
	.stage = "serving",
	.name = "engine_arch",
	.units = units,
	.num_units = ARRAY_SIZE(units),
	.cost_s = 71,
};
