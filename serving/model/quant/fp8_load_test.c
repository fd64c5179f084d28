// SPDX-License-Identifier: Apache-2.0
/* fp8_load_test - memory layout of models with 8-bit weights, checkpoints stored in 8 bits, refused models */
#include <math.h>
#include <stdlib.h>

#include "conformance/harness.h"
#include "primitives/base/fp8.h"
#include "serving/model/quant/stored_test.h"

/* Bytes that a step reads: quantised matrices take half, plus their scales. */
static void bytes(struct cairn_test *t)
{
	struct cairn_model *plain = NULL, *rows = NULL, *blocks = NULL, *again = NULL;
	struct cairn_model_config c;
	struct cairn_impl impl;
	int64_t matrices, n;

	if (open_small(t, &impl, &c))
		return;
	if (!EXPECT(t, cairn_model_random(&plain, &impl, &c, 5) == 0) ||
	    !EXPECT(t, cairn_model_random_as(&rows, &impl, &c, CAIRN_WEIGHTS_FP8, CAIRN_KV_PLAIN, 5) == 0) ||
	    !EXPECT(t, cairn_model_random_as(&again, &impl, &c, CAIRN_WEIGHTS_FP8, CAIRN_KV_PLAIN, 5) == 0) ||
	    !EXPECT(t, cairn_model_random_as(&blocks, &impl, &c, CAIRN_WEIGHTS_FP8_BLOCKS, CAIRN_KV_PLAIN,
					      5) == 0))
		goto out;
	n = 512 + 256 + 640 + 256;		/* rows of the four matrices */
	matrices = 512 * 256 + 256 * 256 + 640 * 256 + 256 * 320;
	EXPECT(t, cairn_model_step_bytes(plain, 3, 10) - cairn_model_step_bytes(rows, 3, 10) ==
		  2 * (matrices - 4 * n));
	EXPECT(t, cairn_model_step_bytes(plain, 3, 10) - cairn_model_step_bytes(blocks, 3, 10) ==
		  2 * (matrices - 4 * (4 * 2 + 2 * 2 + 5 * 2 + 2 * 3)));
	EXPECT(t, rows->bytes == again->bytes && !memcmp(rows->base, again->base, rows->bytes));
	for (int64_t i = 0; i < 512 * 256; i++)		/* random weights contain no NaN */
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

/* A narrower DeepSeek-V2-Lite: bytes that a token reads from two layers, the first of which is dense. */
static void bytes_of_experts(struct cairn_test *t)
{
	/* Matrices by group: 0: Q, KV_A and O of a layer; 1: the dense MLP;
	 * 2: an expert; 3: the shared expert. */
	static const struct { int of, n, k; } matrices[] = {
		{ 0, 384, 192 }, { 0, 576, 192 }, { 0, 192, 256 }, { 1, 640, 192 }, { 1, 192, 320 },
		{ 2, 128, 192 }, { 2, 192, 64 }, { 3, 256, 192 }, { 3, 192, 128 },
	};
	static const int times[] = { 2, 1, 6, 1 };
	struct cairn_model *plain = NULL, *rows = NULL, *blocks = NULL;
	int64_t saved = 0, row_scales = 0, block_scales = 0;
	struct cairn_model_config c;
	struct cairn_impl impl;
	const uint8_t *codes;

	if (open_table(t, "cpu", &impl) || !EXPECT(t, cairn_model_shape("dsv2lite", &c) == 0))
		return;
	c.hidden_size = 192;
	c.intermediate_size = 320;
	c.num_hidden_layers = 2;
	c.vocab_size = 40;
	c.num_attention_heads = c.num_key_value_heads = 2;
	c.experts.num_experts = 16;
	c.experts.intermediate_size = 64;
	c.experts.shared_intermediate_size = 128;
	if (!EXPECT(t, cairn_model_random(&plain, &impl, &c, 5) == 0) ||
	    !EXPECT(t, cairn_model_random_as(&rows, &impl, &c, CAIRN_WEIGHTS_FP8, CAIRN_KV_PLAIN, 5) == 0) ||
	    !EXPECT(t, cairn_model_random_as(&blocks, &impl, &c, CAIRN_WEIGHTS_FP8_BLOCKS, CAIRN_KV_PLAIN,
					      5) == 0))
		goto out;
	for (size_t i = 0; i < ARRAY_SIZE(matrices); i++) {
		int n = matrices[i].n, k = matrices[i].k, num = times[matrices[i].of];

		saved += (int64_t)num * n * k;
		row_scales += num * n;
		block_scales += num * ((n + 127) / 128) * ((k + 127) / 128);
	}
	EXPECT(t, cairn_model_step_bytes(plain, 1, 10) - cairn_model_step_bytes(rows, 1, 10) ==
		  saved - 4 * row_scales);
	EXPECT(t, cairn_model_step_bytes(plain, 1, 10) - cairn_model_step_bytes(blocks, 1, 10) ==
		  saved - 4 * block_scales);
	codes = cairn_model_weight(rows, 1, CAIRN_W_EXPERTS_DOWN);
	for (int i = 0; i < 16 * 192 * 64; i++)
		EXPECT(t, (codes[i] & 0x7f) != 0x7f);
	for (int i = 0; i < 16 * 192; i++)	/* each expert has its own scales */
		EXPECT(t, cairn_model_scale(rows, 1, CAIRN_W_EXPERTS_DOWN)[i] > 0);
	EXPECT(t, memcmp(codes, codes + 192 * 64, 192 * 64));
	EXPECT(t, cairn_model_scale(rows, 1, CAIRN_W_KV_A) && cairn_model_scale(rows, 1, CAIRN_W_Q));
	EXPECT(t, !cairn_model_scale(rows, 1, CAIRN_W_KV_B) && !cairn_model_scale(rows, 1, CAIRN_W_ROUTER));
out:
	cairn_model_free(plain);
	cairn_model_free(rows);
	cairn_model_free(blocks);
}

static int no_fp8(const struct cairn_moe_args *args, size_t *size)
{
	*size = 0;
	return args->fp8w ? cairn_error(EOPNOTSUPP, "moe: fp8w: not supported") : 0;
}

static void refuses_as(struct cairn_test *t, const struct cairn_impl *impl, const char *name,
		       enum cairn_weights weights, const char *text)
{
	struct cairn_model *m = NULL;
	struct golden g;

	if (open_golden(t, &g, name))
		return;
	EXPECT(t, cairn_model_load_as(&m, impl, g.dir, weights, CAIRN_KV_PLAIN, NULL, NULL) == -EOPNOTSUPP);
	EXPECT_CONTAINS(t, cairn_last_error(), text);
	EXPECT(t, m == NULL);
	close_golden(&g);
}

static void refuses_fp8(struct cairn_test *t, const struct cairn_impl *impl, const char *name,
			const char *text)
{
	refuses_as(t, impl, name, CAIRN_WEIGHTS_FP8, text);
}

static void refused(struct cairn_test *t)
{
	struct cairn_impl impl, without;

	if (open_table(t, "cpu", &impl))
		return;
	without = impl;
	without.moe_workspace = no_fp8;
	refuses_fp8(t, &without, "deepseek_tiny", "cpu: moe_workspace: moe: fp8w: not supported");
	refuses_fp8(t, &without, "mixtral_tiny", "cpu: moe_workspace: moe: fp8w: not supported");
	without.mla_paged = NULL;	/* decode_step would suffice for plain weights */
	refuses_fp8(t, &without, "deepseek_tiny", "no operation mla_paged");
	without = impl;
	without.gemm_fp8w = NULL;
	refuses_fp8(t, &without, "llama3_tiny", "no operation gemm_fp8w");
	without.gemm_fp8 = NULL;
	refuses_as(t, &without, "llama3_tiny", CAIRN_WEIGHTS_W8A8, "no operation gemm_fp8");
	without.quant_fp8w = NULL;
	refuses_fp8(t, &without, "llama3_tiny", "no operation quant_fp8w");
}

#define STORED	"deepseek_v3_fp8_tiny"

/* Checks that each element is loaded as its code times its block's factor; bf16 represents the products. */
static void expect_widened(struct cairn_test *t, const struct cairn_safetensors *st, const void *w,
			   int64_t first, const char *name)
{
	const struct cairn_tensor *codes, *factors;
	char full[112];
	int bad = 0;

	codes = cairn_safetensors_find(st, name);
	snprintf(full, sizeof(full), "%s_scale_inv", name);
	factors = cairn_safetensors_find(st, full);
	if (!EXPECT(t, w && codes && factors) || !EXPECT(t, codes->dtype == CAIRN_ST_F8_E4M3))
		return;
	for (int64_t i = 0; i < codes->shape[0] * codes->shape[1]; i++) {
		int64_t block = i / codes->shape[1] / 128 * factors->shape[1] + i % codes->shape[1] / 128;
		double want = (double)cairn_e4m3_to_float(((const uint8_t *)codes->data)[i]) *
			      cairn_load(factors->data, CAIRN_F32, block);

		bad += cairn_load(w, CAIRN_BF16, first + i) != want;
	}
	if (!EXPECT(t, bad == 0))
		cairn_note(t, "%s: %d elements differ", name, bad);
}

static void stored_in_8_bits(struct cairn_test *t)
{
	const struct cairn_tensor *bias;
	struct cairn_model *m = NULL;
	struct cairn_impl impl;
	struct cairn_safetensors *st = NULL;
	struct golden g;

	if (open_table(t, "cpu", &impl) || open_golden(t, &g, STORED))
		return;
	if (!EXPECT(t, cairn_model_verify(g.dir) == 0) ||
	    !EXPECT(t, cairn_model_load(&m, &impl, g.dir, NULL, NULL) == 0) ||
	    !EXPECT(t, cairn_safetensors_open(g.dir, &st) == 0))
		goto out;
	expect_widened(t, st, cairn_model_weight(m, 0, CAIRN_W_Q_A), 0,
		       "model.layers.0.self_attn.q_a_proj.weight");
	expect_widened(t, st, cairn_model_weight(m, 0, CAIRN_W_KV_B), 0,
		       "model.layers.0.self_attn.kv_b_proj.weight");
	expect_widened(t, st, cairn_model_weight(m, 1, CAIRN_W_KV_A), 0,	/* 576 rows: a block is cut */
		       "model.layers.1.self_attn.kv_a_proj_with_mqa.weight");
	expect_widened(t, st, cairn_model_weight(m, 0, CAIRN_W_DOWN), 0,
		       "model.layers.0.mlp.down_proj.weight");
	expect_widened(t, st, cairn_model_weight(m, 1, CAIRN_W_EXPERTS_GATE_UP), (2 * 5 + 1) * 64 * 128,
		       "model.layers.1.mlp.experts.5.up_proj.weight");
	bias = cairn_safetensors_find(st, "model.layers.1.mlp.gate.e_score_correction_bias");
	EXPECT(t, bias && bias->dtype == CAIRN_ST_F32 &&
		  !memcmp(bias->data, cairn_model_weight(m, 1, CAIRN_W_ROUTE_BIAS), bias->num_bytes));
out:
	cairn_safetensors_close(st);
	cairn_model_free(m);
	close_golden(&g);
}

/* Checks that a matrix has the codes and factors of the checkpoint. first_row: in the whole weight. */
static void expect_kept(struct cairn_test *t, const struct cairn_safetensors *st, const struct cairn_model *m,
			int32_t layer, enum cairn_weight w, int64_t first_row, const char *name)
{
	const struct cairn_tensor *codes, *factors;
	const uint8_t *kept = cairn_model_weight(m, layer, w);
	const float *scale = cairn_model_scale(m, layer, w);
	char full[128];

	snprintf(full, sizeof(full), "model.layers.%d.%s.weight", layer, name);
	codes = cairn_safetensors_find(st, full);
	snprintf(full, sizeof(full), "model.layers.%d.%s.weight_scale_inv", layer, name);
	factors = cairn_safetensors_find(st, full);
	if (!EXPECT(t, kept && scale && codes && factors))
		return;
	scale += first_row / 128 * factors->shape[1];
	if (!EXPECT(t, !memcmp(kept + first_row * codes->shape[1], codes->data, codes->num_bytes)) ||
	    !EXPECT(t, !memcmp(scale, factors->data, factors->num_bytes)))
		cairn_note(t, "%s", full);
}

static void codes_are_kept(struct cairn_test *t)
{
	struct cairn_model *m = NULL;
	struct cairn_safetensors *st = NULL;
	struct cairn_impl impl;
	struct golden g;
	char name[64];

	if (open_table(t, "cpu", &impl) || open_golden(t, &g, STORED))
		return;
	if (whole_blocks(t, &g) || !EXPECT(t, cairn_safetensors_open(g.dir, &st) == 0) ||
	    !EXPECT(t, cairn_model_load_as(&m, &impl, g.dir, CAIRN_WEIGHTS_FP8_BLOCKS, CAIRN_KV_PLAIN,
					    NULL, NULL) == 0))
		goto out;
	for (int32_t l = 0; l < 2; l++) {
		expect_kept(t, st, m, l, CAIRN_W_Q_A, 0, "self_attn.q_a_proj");
		expect_kept(t, st, m, l, CAIRN_W_Q, 0, "self_attn.q_b_proj");
		expect_kept(t, st, m, l, CAIRN_W_KV_A, 0, "self_attn.kv_a_proj_with_mqa");
		expect_kept(t, st, m, l, CAIRN_W_O, 0, "self_attn.o_proj");
	}
	expect_kept(t, st, m, 0, CAIRN_W_GATE_UP, 0, "mlp.gate_proj");
	expect_kept(t, st, m, 0, CAIRN_W_GATE_UP, 256, "mlp.up_proj");
	expect_kept(t, st, m, 0, CAIRN_W_DOWN, 0, "mlp.down_proj");
	for (int e = 0; e < 8; e++) {
		snprintf(name, sizeof(name), "mlp.experts.%d.gate_proj", e);
		expect_kept(t, st, m, 1, CAIRN_W_EXPERTS_GATE_UP, 256 * e, name);
		snprintf(name, sizeof(name), "mlp.experts.%d.up_proj", e);
		expect_kept(t, st, m, 1, CAIRN_W_EXPERTS_GATE_UP, 256 * e + 128, name);
		snprintf(name, sizeof(name), "mlp.experts.%d.down_proj", e);
		expect_kept(t, st, m, 1, CAIRN_W_EXPERTS_DOWN, 128 * e, name);
	}
	expect_kept(t, st, m, 1, CAIRN_W_SHARED_GATE_UP, 128, "mlp.shared_experts.up_proj");
	expect_kept(t, st, m, 1, CAIRN_W_SHARED_DOWN, 0, "mlp.shared_experts.down_proj");
out:
	cairn_safetensors_close(st);
	cairn_model_free(m);
	close_golden(&g);
}

/* A rank that has some columns of a matrix keeps their codes, and the scales of all rows. */
static void columns_are_kept(struct cairn_test *t, const struct cairn_impl *impl, const struct golden *g,
			     const struct cairn_safetensors *st, int one_scale)
{
	static const char name[] = "model.layers.1.self_attn.o_proj.weight";
	const struct cairn_tensor *codes = cairn_safetensors_find(st, name), *factors;
	struct cairn_model *m = NULL;
	const uint8_t *kept;
	const float *scale;
	char full[64];

	snprintf(full, sizeof(full), "%s_scale", name);
	factors = cairn_safetensors_find(st, full);
	if (!EXPECT(t, cairn_model_load_rank(&m, impl, g->dir, 1, 2, CAIRN_WEIGHTS_FP8, CAIRN_KV_PLAIN, NULL,
					     NULL) == 0) || !EXPECT(t, codes && factors))
		return;
	kept = cairn_model_weight(m, 1, CAIRN_W_O);
	scale = cairn_model_scale(m, 1, CAIRN_W_O);
	for (int r = 0; r < 128; r++) {
		EXPECT(t, !memcmp(kept + 128 * r, (const uint8_t *)codes->data + 256 * r + 128, 128));
		EXPECT(t, (double)scale[r] == cairn_load(factors->data, CAIRN_F32, one_scale ? 0 : r));
	}
	cairn_model_free(m);
}

/* The form fp8 keeps codes and scales of rows, and repeats the one scale of a matrix. */
static void rows_are_kept(struct cairn_test *t)
{
	static const struct { enum cairn_weight weight; int first, rows, cols; const char *name; } parts[] = {
		{ CAIRN_W_QKV, 0, 256, 128, "self_attn.q_proj" },
		{ CAIRN_W_QKV, 320, 64, 128, "self_attn.v_proj" },
		{ CAIRN_W_O, 0, 128, 256, "self_attn.o_proj" },
		{ CAIRN_W_GATE_UP, 128, 128, 128, "mlp.up_proj" },
		{ CAIRN_W_DOWN, 0, 128, 128, "mlp.down_proj" },
	};
	static const char *const kinds[] = { "rows3", "tensor3" };

	for (size_t k = 0; k < ARRAY_SIZE(kinds); k++) {
		struct cairn_model *m = NULL;
		struct cairn_safetensors *st = NULL;
		struct cairn_impl impl;
		struct golden g;

		if (open_table(t, "cpu", &impl) || open_golden(t, &g, "qwen3_fp8_rows_tiny"))
			return;
		if (inexact_rows(t, &g, kinds[k]) || !EXPECT(t, cairn_safetensors_open(g.dir, &st) == 0) ||
		    !EXPECT(t, cairn_model_load_as(&m, &impl, g.dir, CAIRN_WEIGHTS_FP8, CAIRN_KV_PLAIN,
						    NULL, NULL) == 0))
			cairn_note(t, "%s", cairn_last_error());
		for (size_t i = 0; m && i < ARRAY_SIZE(parts); i++) {
			const float *scale = cairn_model_scale(m, 1, parts[i].weight) + parts[i].first;
			const uint8_t *kept = cairn_model_weight(m, 1, parts[i].weight);
			const struct cairn_tensor *codes, *factors;
			char name[96];

			snprintf(name, sizeof(name), "model.layers.1.%s.weight", parts[i].name);
			codes = cairn_safetensors_find(st, name);
			snprintf(name, sizeof(name), "model.layers.1.%s.weight_scale", parts[i].name);
			factors = cairn_safetensors_find(st, name);
			if (!EXPECT(t, codes && factors))
				continue;
			EXPECT(t, !memcmp(kept + parts[i].first * parts[i].cols, codes->data,
					  (size_t)(parts[i].rows * parts[i].cols)));
			for (int r = 0; r < parts[i].rows; r++)
				EXPECT(t, (double)scale[r] == cairn_load(factors->data, CAIRN_F32,
									 k ? 0 : r));
		}
		columns_are_kept(t, &impl, &g, st, k);
		cairn_safetensors_close(st);
		cairn_model_free(m);
		close_golden(&g);
	}
}

/* Codes to be kept are refused if one is NaN or has a value that overflows the model's dtype. */
static void refused_codes(struct cairn_test *t)
{
	static const uint8_t codes[] = { 0, 8, 0xff };
	static const float factors[] = { 1e38f, -INFINITY, NAN };
	static const struct { const char *name; const void *bytes; size_t count; int32_t element; } rows[] = {
		{ "model.layers.1.self_attn.q_a_proj.weight", codes, sizeof(codes), 2 },
		{ "model.layers.0.mlp.down_proj.weight_scale_inv", &factors[0], sizeof(float), -1 },
		{ "model.layers.0.mlp.down_proj.weight_scale_inv", &factors[1], sizeof(float), -1 },
		{ "model.layers.0.mlp.down_proj.weight_scale_inv", &factors[2], sizeof(float), -1 },
	};
	struct cairn_model *m = NULL;
	struct cairn_impl impl;
	struct golden g;
	char text[64];

	if (open_table(t, "cpu", &impl))
		return;
	for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
		if (open_golden(t, &g, STORED))
			return;
		if (overwrite(t, &g, rows[i].name, rows[i].bytes, rows[i].count))
			continue;
		for (int w = CAIRN_WEIGHTS_PLAIN; w <= CAIRN_WEIGHTS_FP8_BLOCKS; w++) {
			EXPECT(t, cairn_model_load_as(&m, &impl, g.dir, (enum cairn_weights)w,
						      CAIRN_KV_PLAIN, NULL, NULL) ==
				  -EINVAL);
			snprintf(text, sizeof(text), rows[i].element < 0 ? ": element " : ": element %d,",
				 rows[i].element);
			EXPECT_CONTAINS(t, cairn_last_error(), text);
			EXPECT_CONTAINS(t, cairn_last_error(), "a code times its factor, is not a number");
		}
		close_golden(&g);
	}
	EXPECT(t, m == NULL);
}

/* Refused 8-bit checkpoints: in the header of the weights, `from` is replaced by `to`. */
static void refused_stored(struct cairn_test *t)
{
	static const struct { const char *from, *to, *text; } rows[] = {
		{ "kv_b_proj.weight_scale_inv", "kv_b_proj.weight_scale_off",
		  "self_attn.kv_b_proj.weight_scale_inv" },
		{ "\"F32\",\"shape\":[1,1]", "\"I32\",\"shape\":[1,1]",
		  "weight_scale_inv: dtype I32 is not supported (F32, F16, BF16 are)" },
		{ "\"F8_E4M3\"", "\"F8_E5M2\"", "dtype F8_E5M2 is not supported" },
	};
	struct cairn_model *m = NULL;
	char dir[PATH_MAX];
	struct cairn_impl impl;
	struct golden g;

	if (open_table(t, "cpu", &impl))
		return;
	for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
		if (open_golden(t, &g, STORED))
			return;
		if (!patch(t, &g, rows[i].from, rows[i].to))
			EXPECT(t, cairn_model_load(&m, &impl, g.dir, NULL, NULL) < 0);
		EXPECT_CONTAINS(t, cairn_last_error(), rows[i].text);
		close_golden(&g);
	}
	/* scales of rows where the config announces one in all */
	if (open_golden(t, &g, "qwen3_fp8_rows_tiny"))
		return;
	if (!altered_checkpoint(t, g.dir, "\"channel\"", "\"tensor\"", dir))
		refuses(t, &impl, dir, -EINVAL, "weight_scale");
	close_golden(&g);
	/* without the announcement in config.json */
	if (open_golden(t, &g, STORED))
		return;
	if (!altered_checkpoint(t, g.dir, "\"quantization_config\"", "\"quantization_ignored\"", dir))
		refuses(t, &impl, dir, -EOPNOTSUPP, "dtype F8_E4M3 is not supported (F32, F16, BF16 are)");
	EXPECT(t, m == NULL);
	close_golden(&g);
}

static const struct cairn_unit units[] = {
	{ "stored_in_8_bits", stored_in_8_bits }, { "codes_are_kept", codes_are_kept },
	{ "rows_are_kept", rows_are_kept },
	{ "refused_stored", refused_stored }, { "refused_codes", refused_codes },
	{ "bytes", bytes }, { "bytes_of_experts", bytes_of_experts }, { "refused", refused },
};

const struct cairn_family cairn_fp8_load_family = {
	.stage = "serving",
	.name = "fp8_load",
	.units = units,
	.num_units = ARRAY_SIZE(units),
};
