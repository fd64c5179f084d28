// SPDX-License-Identifier: Apache-2.0
/* model_test - rope frequencies, refused checkpoints, the memory layout, and random models */
#include "serving/model/model.h"

#include <math.h>
#include <stdlib.h>

#include "conformance/harness.h"
#include "serving/model/model_test.h"

/* Computes the published rule in double: the frequencies of long wavelengths are divided by the factor, those
 * of short ones are kept, with a ramp between. */
static void rope_frequencies(struct cairn_test *t)
{
	struct cairn_model_config c;
	float f[64];

	if (!EXPECT(t, cairn_model_shape("llama32-1b", &c) == 0))
		return;
	for (int scaling = CAIRN_ROPE_NONE; scaling <= CAIRN_ROPE_LLAMA3; scaling++) {
		c.rope.scaling = scaling;
		cairn_rope_frequencies(&c, f);
		for (int i = 0; i < c.head_dim / 2; i++) {
			double want = pow(500000, -2.0 * i / c.head_dim), turns = 8192 * want / (2 * M_PI);
			double keep = fmin(fmax((turns - 1) / (4 - 1), 0), 1);

			if (scaling == CAIRN_ROPE_LINEAR)
				want /= 32;
			else if (scaling == CAIRN_ROPE_LLAMA3)
				want *= keep + (1 - keep) / 32;
			EXPECT(t, fabs((double)f[i] / want - 1) < 2e-6);
		}
	}
}

static void bad_checkpoints(struct cairn_test *t)
{
	static const struct { const char *from, *to, *text; int want;
	} rows[] = {
		{ "\"num_hidden_layers\": 2", "\"num_hidden_layers\": 3", "model.layers.2.", -EINVAL },
		{ "\"intermediate_size\": 128", "\"intermediate_size\": 120", "gate_proj", -EINVAL },
		{ "\"vocab_size\": 192", "\"vocab_size\": 191", "embed_tokens", -EINVAL },
		{ "\"num_key_value_heads\": 2", "\"num_key_value_heads\": 4", "k_proj", -EINVAL },
		{ "\"hidden_size\": 64", "\"hidden_size\": 60", "hidden_size", -EOPNOTSUPP },
		{ "\"attention_bias\": false", "\"attention_bias\": true", "q_proj.bias", -EINVAL },
		{ "\"tie_word_embeddings\": true", "\"tie_word_embeddings\": false", "lm_head.weight",
		  -EINVAL },
	};
	char dir[PATH_MAX], path[PATH_MAX];
	struct cairn_impl impl;
	struct golden g;

	if (open_table(t, "cpu", &impl) || open_golden(t, &g, "llama3_tiny"))
		return;
	for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
		if (!altered_checkpoint(t, g.dir, rows[i].from, rows[i].to, dir))
			refuses(t, &impl, dir, rows[i].want, rows[i].text);
	}
	snprintf(path, sizeof(path), "%s/model.safetensors", cairn_tmpdir(t));
	unlink(path);
	cairn_tmpfile(t, path, sizeof(path), "model.safetensors", "\10\0\0\0\0\0\0\0{}", 10);
	refuses(t, &impl, dir, -EINVAL, "model.safetensors");
	refuses(t, &impl, "/nonexistent", -EIO, "/nonexistent");
	impl.rope = NULL;
	refuses(t, &impl, g.dir, -EOPNOTSUPP, "no operation rope");
	close_golden(&g);
}

/* Checks the place of a tensor of the crafted checkpoint, and that each value was rounded exactly once. */
static void expect_part(struct cairn_test *t, const struct cairn_model *m, enum cairn_weight w, int64_t first,
			const char *name, int64_t count)
{
	const void *p = cairn_model_weight(m, 0, w);
	int bad = 0;

	for (int64_t i = 0; i < count; i++)
		bad += cairn_load(p, CAIRN_BF16, first + i) !=
		       (double)cairn_bf16_to_float(cairn_double_to_bf16((double)crafted_value(name, i, 0)));
	if (!EXPECT(t, bad == 0))
		cairn_note(t, "%s: %d of %lld values", name, bad, (long long)count);
}

static void weights_lie_where_they_should(struct cairn_test *t)
{
	const float huge = 65520;	/* the smallest value that rounds to infinity in f16 */
	char dir[PATH_MAX], path[PATH_MAX + 32];
	struct cairn_model *m = NULL;
	struct cairn_impl impl;
	FILE *f;

	crafted_checkpoint(t, "float32", "F32", 0, dir);
	if (open_table(t, "cpu", &impl) || !EXPECT(t, cairn_model_load(&m, &impl, dir, NULL, NULL) == 0))
		return;
	EXPECT(t, m->dtype == CAIRN_BF16);
	expect_part(t, m, CAIRN_W_EMBED, 0, "model.embed_tokens.weight", 48 * 64);
	expect_part(t, m, CAIRN_W_LM_HEAD, 0, "lm_head.weight", 48 * 64);
	expect_part(t, m, CAIRN_W_FINAL_NORM, 0, "model.norm.weight", 64);
	expect_part(t, m, CAIRN_W_ATTN_NORM, 0, "model.layers.0.input_layernorm.weight", 64);
	expect_part(t, m, CAIRN_W_QKV, 0, "model.layers.0.self_attn.q_proj.weight", 128 * 64);
	expect_part(t, m, CAIRN_W_QKV, 128 * 64, "model.layers.0.self_attn.k_proj.weight", 64 * 64);
	expect_part(t, m, CAIRN_W_QKV, 192 * 64, "model.layers.0.self_attn.v_proj.weight", 64 * 64);
	expect_part(t, m, CAIRN_W_QKV_BIAS, 0, "model.layers.0.self_attn.q_proj.bias", 128);
	expect_part(t, m, CAIRN_W_QKV_BIAS, 128, "model.layers.0.self_attn.k_proj.bias", 64);
	expect_part(t, m, CAIRN_W_QKV_BIAS, 192, "model.layers.0.self_attn.v_proj.bias", 64);
	expect_part(t, m, CAIRN_W_O, 0, "model.layers.0.self_attn.o_proj.weight", 64 * 128);
	expect_part(t, m, CAIRN_W_O_BIAS, 0, "model.layers.0.self_attn.o_proj.bias", 64);
	expect_part(t, m, CAIRN_W_MLP_NORM, 0, "model.layers.0.post_attention_layernorm.weight", 64);
	expect_part(t, m, CAIRN_W_GATE_UP, 0, "model.layers.0.mlp.gate_proj.weight", 32 * 64);
	expect_part(t, m, CAIRN_W_GATE_UP, 32 * 64, "model.layers.0.mlp.up_proj.weight", 32 * 64);
	expect_part(t, m, CAIRN_W_GATE_UP_BIAS, 0, "model.layers.0.mlp.gate_proj.bias", 32);
	expect_part(t, m, CAIRN_W_GATE_UP_BIAS, 32, "model.layers.0.mlp.up_proj.bias", 32);
	expect_part(t, m, CAIRN_W_DOWN, 0, "model.layers.0.mlp.down_proj.weight", 64 * 32);
	expect_part(t, m, CAIRN_W_DOWN_BIAS, 0, "model.layers.0.mlp.down_proj.bias", 64);
	cairn_model_free(m);
	/* The same bytes with another dtype. */
	crafted_checkpoint(t, "float32", "I32", 0, dir);
	refuses(t, &impl, dir, -EOPNOTSUPP, "model.embed_tokens.weight: dtype I32");
	/* A value too large for f16. */
	crafted_checkpoint(t, "float16", "F32", 0, dir);
	snprintf(path, sizeof(path), "%s/model.safetensors", dir);
	f = fopen(path, "r+");
	EXPECT(t, f && !fseek(f, 8 + 4096 + 4 * 70, SEEK_SET) && fwrite(&huge, 4, 1, f) == 1 && !fclose(f));
	refuses(t, &impl, dir, -EINVAL, "lm_head.weight: element 70 is 65520, too large for f16");
}

static void random_model(struct cairn_test *t)
{
	struct cairn_model_config c;
	struct cairn_model *a = NULL, *b = NULL;
	struct cairn_impl impl;
	int64_t params;

	if (open_table(t, "cpu", &impl))
		return;
	EXPECT(t, cairn_model_shape("llama4-900b", &c) == -EINVAL);
	EXPECT_CONTAINS(t, cairn_last_error(), "llama3-8b");
	if (!EXPECT(t, cairn_model_shape("llama3-8b", &c) == 0))
		return;
	c.hidden_size = 64;
	c.intermediate_size = 96;
	c.num_hidden_layers = 2;
	c.vocab_size = 40;
	c.num_attention_heads = 2;
	c.num_key_value_heads = 1;
	if (!EXPECT(t, cairn_model_random(&a, &impl, &c, 5) == 0) ||
	    !EXPECT(t, cairn_model_random(&b, &impl, &c, 5) == 0))
		goto out;
	EXPECT(t, a->bytes == b->bytes && !memcmp(a->base, b->base, a->bytes));
	/* Rows of the embedding, layers, final norm, lm_head; then keys and values of 10 tokens. */
	params = 3 * 64 + 2 * (64 * (256 + 2 * 128) + 256 * 64 + 3 * 64 * 96 + 2 * 64) + 64 + 40 * 64;
	EXPECT(t, cairn_model_step_bytes(a, 3, 0) == 2 * params);
	EXPECT(t, cairn_model_step_bytes(a, 3, 10) == 2 * (params + 10 * 2 * 2 * 128));
	for (int i = 0; i < 64; i++)
		EXPECT(t, cairn_load(cairn_model_weight(a, 1, CAIRN_W_MLP_NORM), CAIRN_BF16, i) == 1);
out:
	cairn_model_free(a);
	cairn_model_free(b);
}

/* A model is refused on load if an operation of the table does not support its sizes. */
static void sizes_no_table_runs(struct cairn_test *t)
{
	static const struct {
		const char *shape, *text;
		int32_t heads, dim, hidden, experts, vocab;
	} rows[] = {
		{ "llama3-8b", "head_dim: the table cannot run layers.0.attn: ", 2, 32, 64, 0, 40 },
		{ "llama3-8b", "head_dim: the table cannot run layers.0.", 2, 528, 64, 0, 40 },
		{ "llama3-8b", "hidden_size: the table cannot run ", 2, 64, 16400, 0, 40 },
		{ "llama3-8b", "vocab_size: the table cannot run sample: ", 2, 64, 64, 0, (1 << 20) + 8 },
		{ "mixtral-8x7b", "the number of experts: the table cannot run ", 2, 64, 64, 300, 40 },
		{ "mixtral-8x7b", "hidden_size: the table cannot run ", 2, 64, 96, 8, 40 },
	};
	static const char *const tables[] = { "cpu", "ref" };

	for (size_t i = 0; i < 2 * ARRAY_SIZE(rows); i++) {
		struct cairn_model_config c;
		struct cairn_model *m = NULL;
		struct cairn_impl impl;

		if (open_table(t, tables[i % 2], &impl) ||
		    !EXPECT(t, !cairn_model_shape(rows[i / 2].shape, &c)))
			return;
		c.num_hidden_layers = 1;
		c.num_attention_heads = rows[i / 2].heads;
		c.num_key_value_heads = 1;
		c.head_dim = rows[i / 2].dim;
		c.hidden_size = rows[i / 2].hidden;
		c.intermediate_size = 64;
		c.vocab_size = rows[i / 2].vocab;
		if (rows[i / 2].experts) {
			c.experts.num_experts = rows[i / 2].experts;
			c.experts.intermediate_size = 64;
		}
		EXPECT(t, cairn_model_random(&m, &impl, &c, 1) == -EOPNOTSUPP && !m);
		EXPECT_CONTAINS(t, cairn_last_error(), "random model/config.json: ");
		EXPECT_CONTAINS(t, cairn_last_error(), rows[i / 2].text);
		cairn_model_free(m);
		m = NULL;
	}
}

/* A checkpoint with more layers than config.json names is refused, unless the rest predict further tokens. */
static void stored_layers(struct cairn_test *t)
{
	static const struct { const char *to, *text; } rows[] = {
		{ "\"num_hidden_layers\": 1", "config.json: num_hidden_layers: is 1, but " },
		{ "\"num_hidden_layers\": 1", "model.safetensors stores layer 1 (model.layers.1." },
		{ "\"num_nextn_predict_layers\": 1, \"num_hidden_layers\": 1", NULL },
		{ "\"num_hidden_layers\": 2", NULL },
	};
	struct cairn_model *m = NULL;
	struct cairn_impl impl;
	char dir[PATH_MAX];
	struct golden g;

	if (open_table(t, "cpu", &impl) || open_golden(t, &g, "llama3_tiny"))
		return;
	for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
		if (altered_checkpoint(t, g.dir, "\"num_hidden_layers\": 2", rows[i].to, dir))
			break;
		if (rows[i].text)
			refuses(t, &impl, dir, -EINVAL, rows[i].text);
		else if (!EXPECT(t, cairn_model_load(&m, &impl, dir, NULL, NULL) == 0))
			cairn_note(t, "%s", cairn_last_error());
		EXPECT(t, cairn_model_verify(dir) == (rows[i].text ? -EINVAL : 0));
		cairn_model_free(m);
		m = NULL;
	}
	close_golden(&g);
}

static const struct cairn_unit units[] = {
	{ "rope_frequencies", rope_frequencies },
	{ "bad_checkpoints", bad_checkpoints },
	{ "weights_lie_where_they_should", weights_lie_where_they_should },
	{ "random_model", random_model },
	{ "sizes_no_table_runs", sizes_no_table_runs },
	{ "stored_layers", stored_layers },
};

const struct cairn_family cairn_model_family = {
	.stage = "serving",
	.name = "model",
	.units = units,
	.num_units = ARRAY_SIZE(units),
};
