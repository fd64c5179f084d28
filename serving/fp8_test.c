// SPDX-License-Identifier: Apache-2.0
/*
 * fp8_test - models whose matrices are quantised as they are loaded
 *
 * Two questions apart: whether the engine computes what the quantised matrices say (as closely as it does
 * with plain ones: the reference quantises too), and how far that is from the model as it was (no further
 * than errors of e4m3's size in every element carry).
 */
#include "../conformance/harness.h"
#include "engine_test.h"
#include "forward_test.h"

static void logits(struct cairn_test *t, const char *table, const char *name, enum cairn_weights weights,
		   int f16)
{
	static const int whole[] = { 1 << 20 }, chunks[] = { 7, 16, 33, 1, 23 }, prompt[] = { 13, 1 };
	double *plain = NULL, *bound = NULL, worst = 0, moved = 0, size = 0;
	struct fixture f;
	size_t n;

	if (open_fixture(t, &f, table, name, f16, weights))
		goto out;
	EXPECT(t, f.m->weights == weights && cairn_model_scale(f.m, 0, CAIRN_W_QKV) != NULL);
	judge_passes(t, &f, "in one pass", whole, 1);
	judge_passes(t, &f, "in chunks", chunks, (int)ARRAY_SIZE(chunks));
	judge_passes(t, &f, "a prompt, then token by token", prompt, 2);
	n = (size_t)(f.g.num_tokens * f.vocab);
	plain = malloc(n * sizeof(*plain));
	bound = malloc(n * sizeof(*bound));
	if (!EXPECT(t, plain && bound) ||
	    !EXPECT(t, cairn_model_ref_fp8_bound(f.g.dir, f.g.tokens, f.g.num_tokens, plain, bound) == 0))
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

#define EACH(what, table) \
	what(llama3_rows, "llama3_tiny", CAIRN_WEIGHTS_FP8, 0, table) \
	what(llama3_blocks_f16, "llama3_tiny", CAIRN_WEIGHTS_FP8_BLOCKS, 1, table) \
	what(mistral_rows_f16, "mistral_tiny", CAIRN_WEIGHTS_FP8, 1, table) \
	what(mistral_blocks, "mistral_tiny", CAIRN_WEIGHTS_FP8_BLOCKS, 0, table) \
	what(qwen2_rows, "qwen2_tiny", CAIRN_WEIGHTS_FP8, 0, table) \
	what(qwen3_rows, "qwen3_tiny", CAIRN_WEIGHTS_FP8, 0, table) \
	what(gemma2_rows, "gemma2_tiny", CAIRN_WEIGHTS_FP8, 0, table)
#define DEFINE(unit, name, weights, f16, table) \
	static void unit##_##table(struct cairn_test *t) { logits(t, #table, name, weights, f16); }
#define LIST(unit, name, weights, f16, table) { #unit "_" #table, unit##_##table },
EACH(DEFINE, ref)
EACH(DEFINE, cpu)
EACH(DEFINE, cuda)

/*
 * Through the engine: rows of blocks and rows alike, greedily, as many tokens as the plain model is sure
 * of.
 */
static void greedy(struct cairn_test *t, const char *table)
{
	struct cairn_engine_options opt = { .max_batch = 3, .max_context = 256, .max_rows = 40 };
	struct answer a[3];
	struct cairn_model *m = NULL;
	struct cairn_engine *e;
	struct cairn_impl impl;
	struct golden g;
	int same = 0;

	if (open_table(t, table, &impl) || open_golden(t, &g, "mistral_tiny"))
		return;
	if (!EXPECT(t, cairn_model_load_as(&m, &impl, g.dir, CAIRN_WEIGHTS_FP8, NULL, NULL) == 0) ||
	    !EXPECT(t, cairn_engine_create(&e, m, &opt) == 0))
		goto out;
	for (int k = 0; k < 3; k++) {
		struct cairn_request r = request(&g, g.num_tokens, g.num_greedy, &a[k]);

		EXPECT(t, cairn_engine_submit(e, &r) == 0);
	}
	EXPECT(t, cairn_engine_run(e) == 0);
	cairn_engine_destroy(e);
	while (same < g.num_greedy && a[0].ids[same] == g.greedy[same])
		same++;
	cairn_note(t, "%d of %d greedy tokens are those of the plain model", same, g.num_greedy);
	EXPECT(t, a[0].num_ids == g.num_greedy && a[1].num_ids == g.num_greedy && same > 0);
	EXPECT(t, !memcmp(a[0].ids, a[1].ids, sizeof(int32_t) * (size_t)g.num_greedy));
	EXPECT(t, !memcmp(a[0].ids, a[2].ids, sizeof(int32_t) * (size_t)g.num_greedy));
out:
	cairn_model_free(m);
	close_golden(&g);
}

static void greedy_cpu(struct cairn_test *t)
{
	greedy(t, "cpu");
}

static void greedy_cuda(struct cairn_test *t)
{
	greedy(t, "cuda");
}

/* What a step reads: half of the matrices, and their scales. */
static void bytes(struct cairn_test *t)
{
	struct cairn_model *plain = NULL, *rows = NULL, *blocks = NULL, *again = NULL;
	struct cairn_model_config c;
	struct cairn_impl impl;
	int64_t matrices, n;

	if (open_table(t, "cpu", &impl) || !EXPECT(t, cairn_model_shape("llama3-8b", &c) == 0))
		return;
	c.hidden_size = 256;
	c.intermediate_size = 320;
	c.num_hidden_layers = 2;
	c.vocab_size = 40;
	c.num_attention_heads = 2;
	c.num_key_value_heads = 1;
	if (!EXPECT(t, cairn_model_random(&plain, &impl, &c, 5) == 0) ||
	    !EXPECT(t, cairn_model_random_as(&rows, &impl, &c, CAIRN_WEIGHTS_FP8, 5) == 0) ||
	    !EXPECT(t, cairn_model_random_as(&again, &impl, &c, CAIRN_WEIGHTS_FP8, 5) == 0) ||
	    !EXPECT(t, cairn_model_random_as(&blocks, &impl, &c, CAIRN_WEIGHTS_FP8_BLOCKS, 5) == 0))
		goto out;
	n = 512 + 256 + 640 + 256;		/* rows of the four */
	matrices = 512 * 256 + 256 * 256 + 640 * 256 + 256 * 320;
	EXPECT(t, cairn_model_step_bytes(plain, 3, 10) - cairn_model_step_bytes(rows, 3, 10) ==
		  2 * (matrices - 4 * n));
	EXPECT(t, cairn_model_step_bytes(plain, 3, 10) - cairn_model_step_bytes(blocks, 3, 10) ==
		  2 * (matrices - 4 * (4 * 2 + 2 * 2 + 5 * 2 + 2 * 3)));
	EXPECT(t, rows->bytes == again->bytes && !memcmp(rows->base, again->base, rows->bytes));
	for (int64_t i = 0; i < 512 * 256; i++)		/* no NaN among random ones */
		EXPECT(t, (((uint8_t *)cairn_model_weight(rows, 1, CAIRN_W_QKV))[i] & 0x7f) != 0x7f);
	EXPECT(t, cairn_load(cairn_model_weight(rows, 1, CAIRN_W_MLP_NORM), CAIRN_BF16, 9) == 1);
	EXPECT(t, cairn_model_scale(rows, 1, CAIRN_W_MLP_NORM) == NULL);
	EXPECT(t, cairn_model_scale(plain, 1, CAIRN_W_QKV) == NULL);
out:
	cairn_model_free(plain);
	cairn_model_free(rows);
	cairn_model_free(again);
	cairn_model_free(blocks);
}

static void refuses_fp8(struct cairn_test *t, const struct cairn_impl *impl, const char *name,
			const char *text)
{
	struct cairn_model *m = NULL;
	struct golden g;

	if (open_golden(t, &g, name))
		return;
	EXPECT(t, cairn_model_load_as(&m, impl, g.dir, CAIRN_WEIGHTS_FP8, NULL, NULL) == -EOPNOTSUPP);
	EXPECT_CONTAINS(t, cairn_last_error(), text);
	EXPECT(t, m == NULL);
	close_golden(&g);
}

static void refused(struct cairn_test *t)
{
	struct cairn_impl impl, without;

	if (open_table(t, "cpu", &impl))
		return;
	refuses_fp8(t, &impl, "deepseek_tiny", "weights of 8 bits are not supported with experts");
	refuses_fp8(t, &impl, "mixtral_tiny", "weights of 8 bits are not supported with experts");
	without = impl;
	without.gemm_fp8w = NULL;
	refuses_fp8(t, &without, "llama3_tiny", "no operation gemm_fp8w");
	without.quant_fp8w = NULL;
	refuses_fp8(t, &without, "llama3_tiny", "no operation quant_fp8w");
}

static const struct cairn_unit units[] = {
	EACH(LIST, ref)
	EACH(LIST, cpu)
	EACH(LIST, cuda)
	{ "greedy_cpu", greedy_cpu }, { "greedy_cuda", greedy_cuda },
	{ "bytes", bytes }, { "refused", refused },
};

const struct cairn_family cairn_fp8_family = {
	.stage = "serving",
	.name = "fp8",
	.units = units,
	.num_units = ARRAY_SIZE(units),
};
