// SPDX-License-Identifier: Apache-2.0
/*
 * fp8_test - models whose matrices are quantised when they are loaded
 *
 * Two separate checks: with quantised matrices (the reference quantises, too) the engine must be as accurate
 * as with plain ones; and its result must be as close to the unquantised model as rounding errors of e4m3 in
 * every element allow.
 */
#include "conformance/harness.h"
#include "serving/engine/engine_test.h"
#include "serving/model/forward/forward_test.h"

static void logits(struct cairn_test *t, const char *table, const char *name, enum cairn_weights weights,
		   int f16)
{
	static const int whole[] = { 1 << 20 }, chunks[] = { 7, 16, 33, 1, 23 }, prompt[] = { 13, 1 };
	double *plain = NULL, *bound = NULL, worst = 0, moved = 0, size = 0;
	struct fixture f = { 0 };
	size_t n;

	if (open_fixture(t, &f, table, name, f16, weights))
		goto out;
	EXPECT(t, f.m->weights == weights && cairn_model_scale(f.m, 0, CAIRN_W_O) != NULL);
	judge_passes(t, &f, "in one pass", whole, 1);
	judge_passes(t, &f, "in chunks", chunks, (int)ARRAY_SIZE(chunks));
	judge_passes(t, &f, "a prompt, then token by token", prompt, 2);
	if (strcmp(table, "ref"))	/* the other tables have been compared with the reference above */
		goto out;
	n = (size_t)(f.g.num_tokens * f.vocab);
	plain = malloc(n * sizeof(*plain));
	bound = malloc(n * sizeof(*bound));
	if (!EXPECT(t, plain && bound) ||
	    !EXPECT(t, cairn_model_ref_fp8_bound(f.g.dir, weights, f.g.tokens, f.g.num_tokens, plain,
						 bound) == 0))
		goto out;
	for (size_t i = 0; i < n; i++) {
		double off = fabs((double)f.logits[i] - plain[i]);

		worst = fmax(worst, off / (bound[i] + f.bound[i]));
		moved += off * off / (double)n;
		size += plain[i] * plain[i] / (double)n;
	}
	cairn_note(t, "from plain weights: worst err/bound %.2f, root mean square %.3f of logits of %.2f",
		   worst, sqrt(moved), sqrt(size));
	EXPECT(t, worst <= 1);
	EXPECT(t, moved > 0);
out:
	free(plain);
	free(bound);
	close_fixture(&f);
}

/*
 * A checkpoint stored in 8 bits with values that the model's dtype does not represent. The expected logits
 * are computed from the stored values, so that quantising them again would show.
 */
static void stored(struct cairn_test *t, const char *table)
{
	static const int whole[] = { 1 << 20 }, prompt[] = { 4, 1 };
	struct fixture f = { 0 };

	if (open_checkpoint(t, &f, table, "deepseek_v3_fp8_tiny", 0) || whole_blocks(t, &f.g))
		goto out;
	f.g.num_tokens = 6;	/* every matrix is used; the reference is slow */
	if (load_fixture(t, &f, f.g.dir, 0, CAIRN_WEIGHTS_FP8_BLOCKS) ||
	    judge_by(t, &f, "deepseek_v3_fp8_tiny with whole blocks", f.g.dir, 0, CAIRN_WEIGHTS_PLAIN))
		goto out;
	judge_passes(t, &f, "in one pass", whole, 1);
	judge_passes(t, &f, "a prompt, then token by token", prompt, 2);
out:
	close_fixture(&f);
}

/* The same for scales of rows, or of whole matrices. */
static void stored_rows(struct cairn_test *t, const char *table)
{
	static const struct { const char *kind, *name; } rows[] = {
		{ "rows3", "qwen3_fp8_rows_tiny with rows3" },
		{ "tensor3", "qwen3_fp8_rows_tiny with tensor3" },
	};
	static const int prompt[] = { 9, 1 };

	for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
		struct fixture f = { 0 };

		if (open_checkpoint(t, &f, table, "qwen3_fp8_rows_tiny", 0) ||
		    inexact_rows(t, &f.g, rows[i].kind))
			return;
		f.g.num_tokens = 12;
		if (!load_fixture(t, &f, f.g.dir, 0, CAIRN_WEIGHTS_FP8) &&
		    !judge_by(t, &f, rows[i].name, f.g.dir, 0, CAIRN_WEIGHTS_PLAIN))
			judge_passes(t, &f, rows[i].name, prompt, 2);
		close_fixture(&f);
	}
}

static void stored_values_cpu(struct cairn_test *t)
{
	stored(t, "cpu");
	stored_rows(t, "cpu");
}

static void stored_values_cuda(struct cairn_test *t)
{
	stored(t, "cuda");
	stored_rows(t, "cuda");
}

/* Without qwen3_moe with row scales: at position 48 a router's choice depends on rounding. */
#define EACH(what) \
	what(llama3_rows, "llama3_tiny", CAIRN_WEIGHTS_FP8, 0) \
	what(llama3_blocks_f16, "llama3_tiny", CAIRN_WEIGHTS_FP8_BLOCKS, 1) \
	what(mistral_rows_f16, "mistral_tiny", CAIRN_WEIGHTS_FP8, 1) \
	what(mistral_blocks, "mistral_tiny", CAIRN_WEIGHTS_FP8_BLOCKS, 0) \
	what(qwen2_rows, "qwen2_tiny", CAIRN_WEIGHTS_FP8, 0) \
	what(qwen3_rows, "qwen3_tiny", CAIRN_WEIGHTS_FP8, 0) \
	what(gemma2_rows, "gemma2_tiny", CAIRN_WEIGHTS_FP8, 0) \
	what(mixtral_rows, "mixtral_tiny", CAIRN_WEIGHTS_FP8, 0) \
	what(mixtral_blocks_f16, "mixtral_tiny", CAIRN_WEIGHTS_FP8_BLOCKS, 1) \
	what(qwen3_moe_blocks, "qwen3_moe_tiny", CAIRN_WEIGHTS_FP8_BLOCKS, 0) \
	what(deepseek_blocks, "deepseek_tiny", CAIRN_WEIGHTS_FP8_BLOCKS, 0) \
	what(deepseek_q_rows_f16, "deepseek_q_tiny", CAIRN_WEIGHTS_FP8, 1) \
	what(llama3_w8a8, "llama3_tiny", CAIRN_WEIGHTS_W8A8, 0) \
	what(mistral_w8a8_blocks_f16, "mistral_tiny", CAIRN_WEIGHTS_W8A8_BLOCKS, 1) \
	what(deepseek_w8a8_blocks, "deepseek_tiny", CAIRN_WEIGHTS_W8A8_BLOCKS, 0)
/* stored in 8 bits; not on ref, where a comparison with plain weights would show nothing else */
#define STORED(what) \
	what(deepseek_v3_fp8_blocks, "deepseek_v3_fp8_tiny", CAIRN_WEIGHTS_FP8_BLOCKS, 0) \
	what(qwen3_fp8_rows_blocks, "qwen3_fp8_rows_tiny", CAIRN_WEIGHTS_FP8_BLOCKS, 0) \
	what(qwen3_fp8_rows, "qwen3_fp8_rows_tiny", CAIRN_WEIGHTS_FP8, 0)
/* All host tables are one unit, because the references and their bounds take most of the time. */
#define DEFINE(unit, name, weights, f16) \
	static void unit##_host(struct cairn_test *t) \
	{ \
		logits(t, "ref", name, weights, f16); \
		logits(t, "cpu", name, weights, f16); \
	} \
	static void unit##_cuda(struct cairn_test *t) { logits(t, "cuda", name, weights, f16); }
#define DEFINE_STORED(unit, name, weights, f16) \
	static void unit##_cpu(struct cairn_test *t) { logits(t, "cpu", name, weights, f16); } \
	static void unit##_cuda(struct cairn_test *t) { logits(t, "cuda", name, weights, f16); }
#define LIST_HOST(unit, name, weights, f16) { #unit "_host", unit##_host },
#define LIST_CPU(unit, name, weights, f16) { #unit "_cpu", unit##_cpu },
#define LIST_CUDA(unit, name, weights, f16) { #unit "_cuda", unit##_cuda },
EACH(DEFINE)
STORED(DEFINE_STORED)

/* Checks that each token is the most likely after its predecessors, within the reference's bounds. */
static void judge_greedy(struct cairn_test *t, const struct golden *g, enum cairn_weights weights,
			 const struct answer *a, const struct cairn_model *m)
{
	int rows = g->num_tokens + a->num_ids - 1, vocab = m->config.vocab_size;
	double *exact = malloc(sizeof(*exact) * (size_t)(2 * rows * vocab)), *bound = exact + rows * vocab;
	int32_t *ids = malloc(sizeof(*ids) * (size_t)rows);

	if (!EXPECT(t, exact && ids))
		goto out;
	for (int i = 0; i < rows; i++)
		ids[i] = i < g->num_tokens ? g->tokens[i] : a->ids[i - g->num_tokens];
	if (!EXPECT(t, cairn_model_ref_bound_as(g->dir, weights, ids, rows, m->dtype, exact, bound) == 0))
		goto out;
	for (int i = 0; i < a->num_ids; i++) {
		const double *l = exact + (g->num_tokens - 1 + i) * vocab, *b = bound + (l - exact);
		int id = a->ids[i];

		for (int v = 0; v < vocab; v++)
			EXPECT(t, l[v] - b[v] <= l[id] + b[id]);
	}
out:
	free(exact);
	free(ids);
}

/*
 * Three greedy requests at once through the engine. decode_step does not support 8-bit weights, so every pass
 * runs the operation list.
 */
static void greedy(struct cairn_test *t, const char *table, const char *name, enum cairn_weights weights)
{
	struct cairn_engine_options opt = { .max_batch = 3, .max_context = 256, .max_rows = 40 };
	struct cairn_engine_stats stats;
	struct answer a[3];
	struct cairn_model *m = NULL;
	struct cairn_engine *e;
	struct cairn_impl impl;
	struct golden g;
	int same = 0;

	if (open_table(t, table, &impl) || open_golden(t, &g, name))
		return;
	if (!EXPECT(t, cairn_model_load_as(&m, &impl, g.dir, weights, CAIRN_KV_PLAIN, NULL, NULL) == 0) ||
	    !EXPECT(t, cairn_engine_create(&e, m, &opt) == 0))
		goto out;
	for (int k = 0; k < 3; k++) {
		struct cairn_request r = request(&g, g.num_tokens, g.num_greedy, &a[k]);

		EXPECT(t, cairn_engine_submit(e, &r) == 0);
	}
	EXPECT(t, cairn_engine_run(e) == 0);
	cairn_engine_stats(e, &stats);
	EXPECT(t, stats.steps > 0 && stats.fused_steps == 0);
	cairn_engine_destroy(e);
	while (same < g.num_greedy && a[0].ids[same] == g.greedy[same])
		same++;
	cairn_note(t, "%d of %d greedy tokens are those of the plain model", same, g.num_greedy);
	EXPECT(t, a[0].num_ids == g.num_greedy && a[1].num_ids == g.num_greedy && same > 0);
	EXPECT(t, !memcmp(a[0].ids, a[1].ids, sizeof(int32_t) * (size_t)g.num_greedy));
	EXPECT(t, !memcmp(a[0].ids, a[2].ids, sizeof(int32_t) * (size_t)g.num_greedy));
	/* table ref is the reference, and late has the logits of cpu */
	if (strcmp(table, "ref") && strcmp(table, "late"))
		judge_greedy(t, &g, weights, &a[0], m);
out:
	cairn_model_free(m);
	close_golden(&g);
}

#define GREEDY(what, table) \
	what(greedy, "mistral_tiny", CAIRN_WEIGHTS_FP8, table) \
	what(greedy_mixtral, "mixtral_tiny", CAIRN_WEIGHTS_FP8, table) \
	what(greedy_deepseek, "deepseek_tiny", CAIRN_WEIGHTS_FP8, table) \
	what(greedy_deepseek_q_blocks, "deepseek_q_tiny", CAIRN_WEIGHTS_FP8_BLOCKS, table)
#define DEFINE_GREEDY(unit, name, weights, table) \
	static void unit##_##table(struct cairn_test *t) { greedy(t, #table, name, weights); }
#define LIST_GREEDY(unit, name, weights, table) { #unit "_" #table, unit##_##table },
GREEDY(DEFINE_GREEDY, ref)
GREEDY(DEFINE_GREEDY, cpu)
GREEDY(DEFINE_GREEDY, cuda)
GREEDY(DEFINE_GREEDY, late)

static const struct cairn_unit units[] = {
	EACH(LIST_HOST)
	EACH(LIST_CUDA)
	{ "stored_values_cpu", stored_values_cpu }, { "stored_values_cuda", stored_values_cuda },
	STORED(LIST_CPU)
	STORED(LIST_CUDA)
	GREEDY(LIST_GREEDY, ref)
	GREEDY(LIST_GREEDY, cpu)
	GREEDY(LIST_GREEDY, cuda)
	GREEDY(LIST_GREEDY, late)
};

const struct cairn_family cairn_fp8_family = {
	.stage = "serving",
	.name = "fp8",
	.units = units,
	.num_units = ARRAY_SIZE(units),
	.cost_s = 50,
};
