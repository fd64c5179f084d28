// SPDX-License-Identifier: Apache-2.0
/*
 * w4_test - checkpoints whose matrices are stored in 4 bits: logits, memory, shares of ranks, refusals,
 * mutants
 *
 * The expected logits are those of model_ref, which decodes the stored words by rules of its own;
 * forward_test compares it with transformers.
 */
#include <stdlib.h>

#include "conformance/harness.h"
#include "serving/model/forward/forward_test.h"
#include "serving/model/quant/stored_test.h"

/* A variant of a golden checkpoint. kind: replaces the kind of its matrices in the recipe, unless NULL. */
struct variant {
	const char *title, *name, *kind, *from, *to;
};

static const struct variant variants[] = {
	{ "awq", "qwen3_awq_tiny", NULL, "", "" },
	{ "awq with a scale for a row", "qwen3_awq_tiny", "awq0", "\"group_size\": 64",
	  "\"group_size\": -1" },
	{ "gptq", "qwen2_gptq_tiny", NULL, "", "" },
	{ "gptq, second version", "qwen2_gptq_tiny", NULL, "\"gptq\"", "\"gptq_v2\"" },
	{ "gptq with g_idx in order", "qwen2_gptq_tiny", "gptq64",
	  "\"desc_act\": false,\n    \"group_size\": 32", "\"desc_act\": true,\n    \"group_size\": 64" },
	{ "packed", "mistral_w4a16_tiny", NULL, "", "" },
	{ "packed with zero points", "mistral_w4a16_tiny", "packz128", "\"symmetric\": true",
	  "\"symmetric\": false" },
	{ "packed with a scale for a row", "mistral_w4a16_tiny", "pack0", "\"strategy\": \"group\"",
	  "\"strategy\": \"channel\"" },
	{ "awq, with experts", "qwen3_moe_tiny", "awq64",
	  RECIPE_STORED("qwen3_moe", "\"quant_method\": \"awq\", \"group_size\": 64") },
	{ "gptq, with experts", "qwen3_moe_tiny", "gptq32",
	  RECIPE_STORED("qwen3_moe", "\"quant_method\": \"gptq\", \"group_size\": 32") },
	{ "nvfp4", "qwen3_tiny", "v16", RECIPE_STORED("qwen3", RECIPE_NVFP4) },
	{ "nvfp4, with experts", "qwen3_moe_tiny", "v16", RECIPE_STORED("qwen3_moe", RECIPE_NVFP4) },
	{ "awq, with Mixtral's experts and a scale for a row", "mixtral_tiny", "awq0",
	  RECIPE_STORED("mixtral", "\"quant_method\": \"awq\", \"group_size\": -1") },
};

static int open_variant(struct cairn_test *t, const struct variant *v, struct golden *g)
{
	char dir[PATH_MAX];

	if (open_golden(t, g, v->name) || (v->kind && recipe_as(t, v->name, v->kind, 0)))
		return -1;
	return altered_checkpoint(t, g->dir, v->from, v->to, dir);
}

/* Opens a variant on a table, with the expected logits of its first tokens. */
static int open_stored(struct cairn_test *t, struct fixture *f, const char *table, const struct variant *v)
{
	memset(f, 0, sizeof(*f));
	f->table = table;
	if (open_table(t, table, &f->impl) || open_variant(t, v, &f->g))
		return -1;
	f->g.num_tokens = 12;
	if (load_fixture(t, f, f->g.dir, 0, CAIRN_WEIGHTS_PLAIN))
		return -1;
	EXPECT(t, f->m->weights == CAIRN_WEIGHTS_W4);
	return judge_by(t, f, v->title, f->g.dir, 0, CAIRN_WEIGHTS_PLAIN);
}

/* Passes of one row and of up to 8 use exact elements; a table may round those of more rows (gemm_w4.h). */
static void logits(struct cairn_test *t, const char *table)
{
	static const int whole[] = { 1 << 20 }, parts[] = { 9, 1 };

	for (size_t i = 0; i < ARRAY_SIZE(variants); i++) {
		struct fixture f;

		if (!open_stored(t, &f, table, &variants[i])) {
			judge_passes(t, &f, variants[i].title, whole, 1);
			judge_passes(t, &f, variants[i].title, parts, 2);
		}
		close_fixture(&f);
	}
}

static void logits_cpu(struct cairn_test *t)
{
	logits(t, "cpu");
}

static void logits_ref(struct cairn_test *t)
{
	logits(t, "ref");
}

static void logits_cuda(struct cairn_test *t)
{
	logits(t, "cuda");
}

/* ---- memory ---- */

/* Bytes that a step reads: codes take half a byte, and each group of a row two bytes and a zero point. */
static void bytes(struct cairn_test *t)
{
	struct cairn_model *plain = NULL, *w4 = NULL, *again = NULL;
	struct cairn_model_config c;
	struct cairn_impl impl;
	const int64_t matrices = 512 * 256 + 256 * 256 + 640 * 256 + 256 * 320;

	if (open_small(t, &impl, &c))
		return;
	if (!EXPECT(t, cairn_model_random(&plain, &impl, &c, 5) == 0) ||
	    !EXPECT(t, cairn_model_random_as(&w4, &impl, &c, CAIRN_WEIGHTS_W4, CAIRN_KV_PLAIN, 5) == 0) ||
	    !EXPECT(t, cairn_model_random_as(&again, &impl, &c, CAIRN_WEIGHTS_W4, CAIRN_KV_PLAIN, 5) == 0))
		goto out;
	/* the last group of the 320 columns of down is shorter than 128 */
	EXPECT(t, cairn_model_step_bytes(plain, 3, 10) - cairn_model_step_bytes(w4, 3, 10) ==
		  2 * (2 * matrices - matrices / 2 - 3 * (2 * (512 + 256 + 640) + 3 * 256)));
	EXPECT(t, w4->bytes == again->bytes && !memcmp(w4->base, again->base, w4->bytes));
	EXPECT(t, cairn_model_scale_w4(w4, 1, CAIRN_W_QKV) && !cairn_model_scale(w4, 1, CAIRN_W_QKV));
	EXPECT(t, !cairn_model_scale_w4(w4, 1, CAIRN_W_MLP_NORM));
	EXPECT(t, !cairn_model_scale_w4(plain, 1, CAIRN_W_QKV));
	EXPECT(t, memcmp(cairn_model_weight(w4, 0, CAIRN_W_O), cairn_model_weight(w4, 1, CAIRN_W_O), 4096));
out:
	cairn_model_free(plain);
	cairn_model_free(w4);
	cairn_model_free(again);
}

/* ---- shares ---- */

/* Compares rows of `bytes` bytes of a share with those of the whole, which are `apart` bytes apart. */
static int is_part(const void *share, const void *whole, int rows, size_t bytes, size_t apart)
{
	int same = 1;

	for (int i = 0; i < rows; i++)
		same &= !memcmp((const char *)share + (size_t)i * bytes,
				(const char *)whole + (size_t)i * apart, bytes);
	return same;
}

/*
 * The share of a rank has the codes, scales and zero points of the whole: tiles of 16 rows x 64 columns have
 * 512 bytes, and cells of 16 rows and a group 48.
 */
static void shares(struct cairn_test *t)
{
	struct cairn_model *whole = NULL, *m = NULL;
	struct cairn_impl impl;
	struct golden g;

	if (open_table(t, "cpu", &impl) || open_golden(t, &g, "qwen3_awq_tiny") ||
	    !EXPECT(t, cairn_model_load(&whole, &impl, g.dir, NULL, NULL) == 0))
		return;
	for (int r = 0; r < 2; r++) {
		const uint8_t *o = cairn_model_weight(whole, 1, CAIRN_W_O);
		const uint8_t *o_scale = cairn_model_scale_w4(whole, 1, CAIRN_W_O);
		const uint8_t *up = cairn_model_weight(whole, 1, CAIRN_W_GATE_UP);
		const uint8_t *up_scale = cairn_model_scale_w4(whole, 1, CAIRN_W_GATE_UP);

		if (!EXPECT(t, cairn_model_load_rank(&m, &impl, g.dir, r, 2, CAIRN_WEIGHTS_W4, CAIRN_KV_PLAIN,
						     NULL, NULL) == 0))
			break;
		/* half of the 4 tiles and 4 groups along the 256 columns of o, which has 128 rows */
		EXPECT(t, is_part(cairn_model_weight(m, 1, CAIRN_W_O), o + r * 2 * 512, 8, 2 * 512, 4 * 512));
		EXPECT(t, is_part(cairn_model_scale_w4(m, 1, CAIRN_W_O), o_scale + r * 2 * 48, 8, 2 * 48,
				  4 * 48));
		/* 128 of the 256 rows of up, which follow those of gate and have 2 tiles and 2 groups */
		EXPECT(t, is_part((const char *)cairn_model_weight(m, 1, CAIRN_W_GATE_UP) + 8 * 2 * 512,
				  up + (16 + r * 8) * 2 * 512, 8, 2 * 512, 2 * 512));
		EXPECT(t, is_part(cairn_model_scale_w4(m, 1, CAIRN_W_GATE_UP) + 8 * 2 * 48,
				  up_scale + (16 + r * 8) * 2 * 48, 8, 2 * 48, 2 * 48));
		cairn_model_free(m);
		m = NULL;
	}
	cairn_model_free(whole);
	close_golden(&g);
	/* groups of 128 of mistral_w4a16_tiny: the 64 columns of down of a rank are half a group */
	if (open_golden(t, &g, "mistral_w4a16_tiny"))
		return;
	EXPECT(t, cairn_model_load_rank(&m, &impl, g.dir, 0, 2, CAIRN_WEIGHTS_PLAIN, CAIRN_KV_PLAIN, NULL,
					NULL) == -EOPNOTSUPP);
	EXPECT_CONTAINS(t, cairn_last_error(), "model.layers.0.mlp.down_proj.weight: 64 of its 128 columns "
			"for each of 2 ranks are not whole groups of 128");
	EXPECT(t, m == NULL);
	close_golden(&g);
}

/* ---- refusals ---- */

/* In the header of the weights, `from` is replaced by `to`. */
static void refused_tensors(struct cairn_test *t)
{
	static const struct { const char *name, *from, *to; int want; const char *text; } rows[] = {
		{ "qwen3_awq_tiny", "1.self_attn.o_proj.qzeros", "1.self_attn.o_proj.qzeroX", -EINVAL,
		  "model.layers.1.self_attn.o_proj.qzeros" },
		{ "qwen3_awq_tiny", "0.mlp.up_proj.scales", "0.mlp.up_proj.scaleX", -EINVAL,
		  "model.layers.0.mlp.up_proj.scales" },
		{ "qwen3_awq_tiny", "q_proj.qweight\":{\"dtype\":\"I32\",\"shape\":[128,32]",
		  "q_proj.qweight\":{\"dtype\":\"I32\",\"shape\":[32,128]", -EINVAL,
		  "model.layers.0.self_attn.q_proj.qweight" },
		{ "qwen3_awq_tiny", "q_proj.qweight\":{\"dtype\":\"I32\"",
		  "q_proj.qweight\":{\"dtype\":\"F32\"", -EOPNOTSUPP,
		  "q_proj.qweight: dtype F32 is not supported (I32 is)" },
		{ "qwen3_awq_tiny", "q_proj.scales\":{\"dtype\":\"F16\"",
		  "q_proj.scales\":{\"dtype\":\"I16\"", -EOPNOTSUPP,
		  "q_proj.scales: dtype I16 is not supported (F32, F16, BF16 are)" },
		{ "qwen3_awq_tiny", "1.self_attn.k_proj.qweight\":", "1.self_attn.k_proj.weight\" :",
		  -EOPNOTSUPP, "model.layers.1.self_attn.k_proj.weight: is stored in I32: a checkpoint that "
		  "stores only some" },
		{ "mistral_w4a16_tiny", "q_proj.weight_packed", "q_proj.weight_packeX", -EINVAL,
		  "model.layers.0.self_attn.q_proj.weight_packed" },
	};
	struct cairn_impl impl;
	struct golden g;

	if (open_table(t, "cpu", &impl))
		return;
	for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
		if (open_golden(t, &g, rows[i].name))
			return;
		if (!patch(t, &g, rows[i].from, rows[i].to))
			refuses(t, &impl, g.dir, rows[i].want, rows[i].text);
		EXPECT(t, cairn_model_verify(g.dir) == rows[i].want);
		close_golden(&g);
	}
}

/* In config.json, `from` is replaced by `to`. */
static void refused_configs(struct cairn_test *t)
{
	static const struct { const char *name, *from, *to; int want; const char *text; } rows[] = {
		{ "qwen3_awq_tiny", "\"bits\": 4", "\"bits\": 8", -EOPNOTSUPP, "bits: 8 is not supported" },
		{ "qwen3_awq_tiny", "\"group_size\": 64", "\"group_size\": 32", -EINVAL, "q_proj.scales" },
		/* 128 and 256 columns, but the stored scales are of 2 and 4 groups */
		{ "qwen3_awq_tiny", "\"group_size\": 64", "\"group_size\": 128", -EINVAL, "q_proj.scales" },
		/* 192 columns are one and a half groups */
		{ "qwen2_gptq_tiny", "\"group_size\": 32", "\"group_size\": 128", -EOPNOTSUPP,
		  "model.layers.0.self_attn.q_proj.weight: a matrix of 192 rows and 192 columns in groups of "
		  "128 is not supported" },
		{ "qwen2_gptq_tiny", "\"group_size\": 32", "\"group_size\": 64", -EINVAL, "q_proj.scales" },
		{ "mistral_w4a16_tiny", "\"symmetric\": true", "\"symmetric\": false", -EINVAL,
		  "q_proj.weight_zero_point" },
		{ "qwen3_awq_tiny", "\"quantization_config\"", "\"quantization_ignored\"", -EINVAL,
		  "model.layers.0.self_attn.q_proj.weight" },
	};
	struct cairn_impl impl;
	struct golden g;
	char dir[PATH_MAX];

	if (open_table(t, "cpu", &impl))
		return;
	for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
		if (open_golden(t, &g, rows[i].name))
			return;
		if (!altered_checkpoint(t, g.dir, rows[i].from, rows[i].to, dir))
			refuses(t, &impl, dir, rows[i].want, rows[i].text);
		close_golden(&g);
	}
}

static void refused_values(struct cairn_test *t)
{
	static const int32_t order[] = { 1 };
	static const uint16_t infinite[] = { 0x7c00 }, huge[] = { 0x7f00 };	/* in f16; in bf16, 1.7e38 */
	static const struct { const char *name, *tensor; const void *bytes; size_t count; int want;
			      const char *text; } rows[] = {
		{ "qwen2_gptq_tiny", "model.layers.1.mlp.up_proj.g_idx", order, sizeof(order), -EOPNOTSUPP,
		  "model.layers.1.mlp.up_proj.g_idx: element 0 is in group 1: groups in another order" },
		{ "qwen2_gptq_tiny", "model.layers.1.mlp.up_proj.scales", infinite, sizeof(infinite), -EINVAL,
		  "model.layers.1.mlp.up_proj.scales: a scale is inf, not a number that f16 represents" },
		{ "mistral_w4a16_tiny", "model.layers.0.mlp.down_proj.weight_scale", huge, sizeof(huge),
		  -EINVAL, "down_proj.weight_scale: a scale is 1.7" },
	};
	struct cairn_impl impl;
	struct golden g;

	if (open_table(t, "cpu", &impl))
		return;
	for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
		if (open_golden(t, &g, rows[i].name))
			return;
		if (!overwrite(t, &g, rows[i].tensor, rows[i].bytes, rows[i].count))
			refuses(t, &impl, g.dir, rows[i].want, rows[i].text);
		close_golden(&g);
	}
}

/* Factors of NVFP4 that no packed weight can have, or that are none. */
static void refused_factors(struct cairn_test *t)
{
	static const struct { float factor; int want; const char *text; } rows[] = {
		{ 3, -EOPNOTSUPP, "k_proj.weight: its weight_global_scale differs from that of the matrix" },
		{ 0, -EINVAL, "k_proj.weight_global_scale: 0 is not a scale" },
		{ NAN, -EINVAL, "k_proj.weight_global_scale: nan is not a scale" },
	};
	static const struct variant nvfp4 = { "nvfp4", "qwen3_tiny", "v16",
					RECIPE_STORED("qwen3", RECIPE_NVFP4) };
	struct cairn_impl impl;
	struct golden g;

	if (open_table(t, "cpu", &impl))
		return;
	for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
		if (open_variant(t, &nvfp4, &g))
			return;
		snprintf(g.dir, sizeof(g.dir), "%s", cairn_tmpdir(t));
		if (!overwrite(t, &g, "model.layers.1.self_attn.k_proj.weight_global_scale", &rows[i].factor,
			       sizeof(rows[i].factor)))
			refuses(t, &impl, g.dir, rows[i].want, rows[i].text);
		close_golden(&g);
	}
}

/* Forms that a checkpoint cannot have, and models and tables that do not support 4 bits. */
static void refused_forms(struct cairn_test *t)
{
	struct cairn_model *m = NULL;
	struct cairn_model_config c;
	struct cairn_impl impl;
	struct golden g;

	if (open_table(t, "cpu", &impl) || open_golden(t, &g, "qwen3_awq_tiny"))
		return;
	for (int form = CAIRN_WEIGHTS_FP8; form <= CAIRN_WEIGHTS_FP8_BLOCKS; form++) {
		EXPECT(t, cairn_model_load_as(&m, &impl, g.dir, (enum cairn_weights)form, CAIRN_KV_PLAIN,
					      NULL, NULL) == -EINVAL);
		EXPECT_CONTAINS(t, cairn_last_error(), "config.json: quantization_config: the weights are "
				"stored in 4 bits and stay so; the form fp8");
	}
	impl.gemm_w4 = NULL;
	refuses(t, &impl, g.dir, -EOPNOTSUPP, "cpu: the table has no operation gemm_w4");
	close_golden(&g);
	if (open_table(t, "cpu", &impl) || open_golden(t, &g, "llama3_tiny"))
		return;
	EXPECT(t, cairn_model_load_as(&m, &impl, g.dir, CAIRN_WEIGHTS_W4, CAIRN_KV_PLAIN, NULL, NULL) ==
		  -EINVAL);
	EXPECT_CONTAINS(t, cairn_last_error(), "the form w4 cannot keep them");
	close_golden(&g);
	EXPECT(t, !cairn_model_shape("qwen3-30b-a3b", &c));
	c.num_key_value_heads = 8;
	EXPECT(t, cairn_model_random_rank(&m, &impl, &c, 8, CAIRN_WEIGHTS_W4, CAIRN_KV_PLAIN, 1) ==
		  -EOPNOTSUPP);
	EXPECT_CONTAINS(t, cairn_last_error(), "moe_intermediate_size: experts of 768 columns in groups of "
			"128 are not divisible among 8 ranks");
	c.experts.shared_intermediate_size = 768;
	EXPECT(t, cairn_model_random_as(&m, &impl, &c, CAIRN_WEIGHTS_W4, CAIRN_KV_PLAIN, 1) == -EOPNOTSUPP);
	EXPECT_CONTAINS(t, cairn_last_error(), "weights in 4 bits are not supported with shared experts");
	EXPECT(t, !cairn_model_shape("dsv2lite", &c));
	EXPECT(t, cairn_model_random_as(&m, &impl, &c, CAIRN_WEIGHTS_W4, CAIRN_KV_PLAIN, 1) == -EOPNOTSUPP);
	EXPECT_CONTAINS(t, cairn_last_error(), "weights in 4 bits are not supported with latent attention");
	EXPECT(t, m == NULL);
}

/* ---- mutants: the calls of gemm_w4 or moe, or the loaded weight, are changed ---- */

static struct cairn_impl right;

#define CALL(name, change) \
	static int name##_call(const struct cairn_gemm_w4_args *args, void *stream) \
	{ \
		struct cairn_gemm_w4_args a = *args; \
		\
		change; \
		return right.gemm_w4(&a, stream); \
	} \
	static void name(struct fixture *f) \
	{ \
		f->impl.gemm_w4 = name##_call; \
	}

CALL(scales_of_the_next_rows, a.b_scale += 48)
CALL(codes_of_the_next_rows, if (a.n > 64) a.b += 512 * ((a.k + 63) / 64))
CALL(bias_forgotten, a.bias = NULL)
CALL(another_factor, a.scale = 0.5f)

/* Changes zero points of the MLP by one, as a checkpoint_format taken for the other would. */
static void zeros_off_by_1(struct fixture *f)
{
	uint8_t *cell = (uint8_t *)(uintptr_t)cairn_model_scale_w4(f->m, 0, CAIRN_W_DOWN);

	for (int i = 0; i < 16; i++)
		cell[32 + i]++;
}

static void rows_swapped(struct fixture *f)
{
	uint8_t *tile = cairn_model_weight(f->m, 0, CAIRN_W_GATE_UP), kept[16];

	memcpy(kept, tile, 16);		/* of rows 0 and 8 */
	memcpy(tile, tile + 64, 16);	/* of rows 1 and 9 */
	memcpy(tile + 64, kept, 16);
}

static int no_factors(const struct cairn_moe_args *args, void *stream)
{
	struct cairn_moe_args a = *args;

	a.down_factor = NULL;
	return right.moe(&a, stream);
}

static void factors_forgotten(struct fixture *f)
{
	f->impl.moe = no_factors;
}

static void factors_of_the_next_matrix(struct fixture *f)
{
	float *factors = (float *)(uintptr_t)cairn_model_expert_factors(f->m, 1, CAIRN_W_EXPERTS_GATE_UP);

	memmove(factors, factors + 1, 15 * sizeof(*factors));
}

static const struct variant gptq = { "gptq", "qwen2_gptq_tiny", NULL, "", "" };
static const struct variant nvfp4_experts = { "nvfp4, with experts", "qwen3_moe_tiny", "v16",
					      RECIPE_STORED("qwen3_moe", RECIPE_NVFP4) };
static const struct mutant {
	const char *name;
	const struct variant *of;
	void (*change)(struct fixture *f);
} mutants[] = {
	{ "none", &gptq, NULL },
	{ "scales_of_the_next_rows", &gptq, scales_of_the_next_rows },
	{ "codes_of_the_next_rows", &gptq, codes_of_the_next_rows },
	{ "bias_forgotten", &gptq, bias_forgotten },
	{ "another_factor", &gptq, another_factor },
	{ "zeros_off_by_1", &gptq, zeros_off_by_1 },
	{ "rows_swapped", &gptq, rows_swapped },
	{ "factors_forgotten", &nvfp4_experts, factors_forgotten },
	{ "factors_of_the_next_matrix", &nvfp4_experts, factors_of_the_next_matrix },
};

static void noticed(struct cairn_test *t)
{
	for (size_t i = 0; i < ARRAY_SIZE(mutants); i++) {
		struct fixture f;
		int wrong = 0;

		if (!open_stored(t, &f, "cpu", mutants[i].of)) {
			right = f.impl;
			if (mutants[i].change)
				mutants[i].change(&f);
			EXPECT(t, run_pass(&f, 0, f.g.num_tokens) == 0);
			for (int k = 0; k < f.g.num_tokens * f.vocab; k++)
				wrong += !(fabs((double)f.logits[k] - f.exact[k]) <= f.bound[k]);
			cairn_note(t, "%s: %d logits of %d", mutants[i].name, wrong,
				   f.g.num_tokens * f.vocab);
			EXPECT(t, mutants[i].change ? wrong > 0 : wrong == 0);
		}
		close_fixture(&f);
	}
}

static const struct cairn_unit units[] = {
	{ "logits_cpu", logits_cpu }, { "logits_ref", logits_ref }, { "logits_cuda", logits_cuda },
	{ "bytes", bytes }, { "shares", shares },
	{ "refused_tensors", refused_tensors }, { "refused_configs", refused_configs },
	{ "refused_values", refused_values }, { "refused_factors", refused_factors },
	{ "refused_forms", refused_forms },
	{ "noticed", noticed },
};

const struct cairn_family cairn_w4_family = {
	.stage = "serving",
	.name = "w4",
	.units = units,
	.num_units = ARRAY_SIZE(units),
	.cost_s = 2,
};
