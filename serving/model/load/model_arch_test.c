// SPDX-License-Identifier: Apache-2.0
/* model_arch_test - weights of DeepSeek-V2 and Qwen2: refused checkpoints, and the memory layout */
#include <math.h>
#include <stdlib.h>

#include "conformance/harness.h"
#include "serving/model/model_test.h"

/*
 * Computes YaRN's rule in double for DeepSeek-V2-Lite: within 4096 positions element 10 (of 32) turns about
 * 32 times and element 23 once; the ramp lies between them.
 */
static void yarn_frequencies(struct cairn_test *t)
{
	struct cairn_model_config c;
	float f[32];

	if (!EXPECT(t, cairn_model_shape("dsv2lite", &c) == 0) || !EXPECT(t, cairn_rope_dim(&c) == 64))
		return;
	cairn_rope_frequencies(&c, f);
	for (int i = 0; i < 32; i++) {
		double want = pow(10000, -i / 32.0), slow = fmin(fmax((i - 10) / 13.0, 0), 1);

		EXPECT(t, fabs((double)f[i] / (want * (1 - slow) + want / 40 * slow) - 1) < 2e-6);
	}
	EXPECT(t, 4096 * pow(10000, -10 / 32.0) / (2 * M_PI) > 32 &&
	       4096 * pow(10000, -11 / 32.0) / (2 * M_PI) < 32);
	EXPECT(t, 4096 * pow(10000, -22 / 32.0) / (2 * M_PI) > 1 &&
	       4096 * pow(10000, -23 / 32.0) / (2 * M_PI) < 1);
	/* With a trained length so short that no element turns often enough, nothing is divided by zero. */
	c.rope.original_max_position_embeddings = 1;
	cairn_rope_frequencies(&c, f);
	for (int i = 0; i < 32; i++)
		EXPECT(t, f[i] > 0 && f[i] <= 1);
}

static const struct { const char *name, *from, *to, *text; } rows[] = {
	{ "deepseek_tiny", "\"n_routed_experts\": 8", "\"n_routed_experts\": 9", "layers.1.mlp.gate.weight" },
	{ "deepseek_tiny", "\"moe_intermediate_size\": 64", "\"moe_intermediate_size\": 56",
	  "layers.1.mlp.experts.0.gate_proj.weight" },
	{ "deepseek_tiny", "\"n_shared_experts\": 2", "\"n_shared_experts\": 1",
	  "mlp.shared_experts.gate_proj" },
	{ "deepseek_tiny", "\"first_k_dense_replace\": 1", "\"first_k_dense_replace\": 2",
	  "layers.1.mlp.gate_proj.weight" },
	{ "deepseek_tiny", "\"q_lora_rank\": null", "\"q_lora_rank\": 64", "self_attn.q_a_proj.weight" },
	{ "deepseek_q_tiny", "\"q_lora_rank\": 64", "\"q_lora_rank\": null", "self_attn.q_proj.weight" },
	{ "deepseek_q_tiny", "\"kv_lora_rank\": 512", "\"kv_lora_rank\": 256", "kv_a_proj_with_mqa.weight" },
	{ "deepseek_q_tiny", "\"v_head_dim\": 128", "\"v_head_dim\": 64", "kv_b_proj.weight" },
	{ "qwen2_tiny", "\"num_key_value_heads\": 1", "\"num_key_value_heads\": 7", "k_proj.weight" },
};

static void bad_checkpoints(struct cairn_test *t)
{
	struct cairn_impl impl;
	char dir[PATH_MAX];
	struct golden g;

	if (open_table(t, "cpu", &impl))
		return;
	for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
		if (open_golden(t, &g, rows[i].name))
			return;
		if (!altered_checkpoint(t, g.dir, rows[i].from, rows[i].to, dir))
			refuses(t, &impl, dir, -EINVAL, rows[i].text);
		close_golden(&g);
	}
	if (open_golden(t, &g, "deepseek_tiny"))
		return;
	impl.decode_step = NULL;
	impl.mla_paged = NULL;		/* either operation would suffice */
	refuses(t, &impl, g.dir, -EOPNOTSUPP, "no operation mla_paged");
	close_golden(&g);
}

/* Checks that the weight contains the checkpoint's tensor bit for bit from element `first` on. */
static void expect_tensor(struct cairn_test *t, const struct cairn_model *m,
			  const struct cairn_safetensors *st, int32_t layer, enum cairn_weight w,
			  int64_t first, const char *name)
{
	const char *p = cairn_model_weight(m, layer, w);
	const struct cairn_tensor *tensor;
	char full[96];

	snprintf(full, sizeof(full), "model.layers.%d.%s", layer, name);
	tensor = cairn_safetensors_find(st, full);
	if (!EXPECT(t, p && tensor) || !EXPECT(t, !memcmp(p + 2 * first, tensor->data, tensor->num_bytes)))
		cairn_note(t, "%s", full);
}

/* Checks that no two weights of any layers share a byte, and that all are inside the model's memory. */
static void expect_apart(struct cairn_test *t, const struct cairn_model *m)
{
	const struct cairn_experts_config *x = &m->config.experts;
	char *used = calloc(1, m->bytes);
	size_t twice = 0;

	for (int32_t layer = 0; layer < m->config.num_hidden_layers; layer++) {
		for (int w = 1; w < CAIRN_NUM_WEIGHTS; w++) {
			size_t bytes = m->elements[w] * cairn_dtype_bytes(m->dtype);
			char *p = cairn_model_weight(m, layer, (enum cairn_weight)w);
			int of_experts = w >= CAIRN_W_ROUTER && w < CAIRN_W_EMBED;
			int of_dense = w > CAIRN_W_MLP_NORM && w < CAIRN_W_ROUTER;

			if (!bytes || (layer < x->dense_layers && of_experts) ||
			    (layer && w >= CAIRN_W_EMBED) ||
			    (x->num_experts && layer >= x->dense_layers && of_dense))
				continue;
			if (!EXPECT(t, p >= m->base && p + bytes <= m->base + m->bytes))
				goto out;
			EXPECT(t, (p - m->base) % 256 == 0);
			for (size_t i = 0; i < bytes; i++)
				twice += used[p - m->base + (ptrdiff_t)i]++;
		}
	}
	EXPECT(t, twice == 0);
out:
	free(used);
}

static void experts_lie_where_they_should(struct cairn_test *t, const char *name)
{
	struct cairn_safetensors *st = NULL;
	const struct cairn_model_config *c;
	struct cairn_model *m = NULL;
	struct cairn_impl impl;
	int32_t h, inner, last;
	struct golden g;

	if (open_table(t, "cpu", &impl) || open_golden(t, &g, name))
		return;
	if (!EXPECT(t, cairn_model_load(&m, &impl, g.dir, NULL, NULL) == 0) ||
	    !EXPECT(t, cairn_safetensors_open(g.dir, &st) == 0))
		goto out;
	c = &m->config;
	h = c->hidden_size;
	inner = c->experts.intermediate_size;
	last = c->num_hidden_layers - 1;
	expect_apart(t, m);
	for (int32_t i = 0; i <= last; i++) {
		expect_tensor(t, m, st, i, CAIRN_W_KV_A, 0, "self_attn.kv_a_proj_with_mqa.weight");
		expect_tensor(t, m, st, i, CAIRN_W_KV_B, 0, "self_attn.kv_b_proj.weight");
		expect_tensor(t, m, st, i, CAIRN_W_KV_NORM, 0, "self_attn.kv_a_layernorm.weight");
		expect_tensor(t, m, st, i, CAIRN_W_Q, 0, c->latent.q_lora_rank ? "self_attn.q_b_proj.weight" :
			      "self_attn.q_proj.weight");
		expect_tensor(t, m, st, i, CAIRN_W_O, 0, "self_attn.o_proj.weight");
		expect_tensor(t, m, st, i, CAIRN_W_MLP_NORM, 0, "post_attention_layernorm.weight");
		if (i < c->experts.dense_layers) {
			expect_tensor(t, m, st, i, CAIRN_W_GATE_UP, 0, "mlp.gate_proj.weight");
			expect_tensor(t, m, st, i, CAIRN_W_GATE_UP, (int64_t)c->intermediate_size * h,
				      "mlp.up_proj.weight");
			expect_tensor(t, m, st, i, CAIRN_W_DOWN, 0, "mlp.down_proj.weight");
			continue;
		}
		expect_tensor(t, m, st, i, CAIRN_W_ROUTER, 0, "mlp.gate.weight");
		for (int e = 0; e < c->experts.num_experts; e++) {
			char gate[64], up[64], down[64];

			snprintf(gate, sizeof(gate), "mlp.experts.%d.gate_proj.weight", e);
			snprintf(up, sizeof(up), "mlp.experts.%d.up_proj.weight", e);
			snprintf(down, sizeof(down), "mlp.experts.%d.down_proj.weight", e);
			expect_tensor(t, m, st, i, CAIRN_W_EXPERTS_GATE_UP, (int64_t)2 * e * inner * h, gate);
			expect_tensor(t, m, st, i, CAIRN_W_EXPERTS_GATE_UP,
				      (int64_t)(2 * e + 1) * inner * h, up);
			expect_tensor(t, m, st, i, CAIRN_W_EXPERTS_DOWN, (int64_t)e * inner * h, down);
		}
		expect_tensor(t, m, st, i, CAIRN_W_SHARED_GATE_UP,
			      (int64_t)c->experts.shared_intermediate_size * h,
			      "mlp.shared_experts.up_proj.weight");
		expect_tensor(t, m, st, i, CAIRN_W_SHARED_DOWN, 0, "mlp.shared_experts.down_proj.weight");
	}
out:
	cairn_safetensors_close(st);
	cairn_model_free(m);
	close_golden(&g);
}

static void experts_after_one_dense(struct cairn_test *t)
{
	experts_lie_where_they_should(t, "deepseek_tiny");
}

static void experts_after_two_dense(struct cairn_test *t)
{
	experts_lie_where_they_should(t, "deepseek_q_tiny");
}

/* A narrower V2-Lite: the size of its layers, and the bytes that a step reads from them. */
static void random_experts(struct cairn_test *t)
{
	const int64_t attn = 64 + 64 * 2 * 192 + 576 * 64 + 512 + 512 * 2 * 256 + 64 * 2 * 128 + 64;
	const int64_t dense = 3 * 64 * 512, expert = 3 * 64 * 64, router = 64 * 64, shared = 2 * expert;
	struct cairn_model_config c;
	struct cairn_model *m = NULL;
	struct cairn_impl impl;
	double active;

	if (open_table(t, "cpu", &impl) || !EXPECT(t, cairn_model_shape("dsv2lite", &c) == 0))
		return;
	c.hidden_size = 64;
	c.intermediate_size = 512;
	c.num_hidden_layers = 3;
	c.num_attention_heads = c.num_key_value_heads = 2;
	c.vocab_size = 40;
	c.experts.intermediate_size = 64;
	c.experts.shared_intermediate_size = 128;
	if (!EXPECT(t, cairn_model_random(&m, &impl, &c, 5) == 0))
		return;
	expect_apart(t, m);
	/* Only padding is wasted: the dense layer's block has no room for experts. */
	EXPECT(t, (int64_t)m->bytes -
		  2 * (3 * attn + dense + 2 * (router + 64 * expert + shared) + 64 + 2 * 40 * 64) <
		  256 * 3 * 16);
	active = (double)(3 * attn + dense + 2 * (router + 6 * expert + shared) + 64 + 40 * 64 + 64);
	EXPECT(t, cairn_model_step_bytes(m, 1, 0) == 2 * (int64_t)active);
	EXPECT(t, cairn_model_step_bytes(m, 1, 10) == 2 * ((int64_t)active + 10 * 3 * 576));
	active += 64 + 2 * (64 * (1 - pow(58.0 / 64, 2)) - 6) * (double)expert;	/* a second token */
	EXPECT(t, llabs(cairn_model_step_bytes(m, 2, 0) - (int64_t)(2 * active)) <= 2);
	EXPECT(t, cairn_load(cairn_model_weight(m, 2, CAIRN_W_KV_NORM), CAIRN_BF16, 511) == 1);
	EXPECT(t, cairn_load(cairn_model_weight(m, 2, CAIRN_W_KV_B), CAIRN_BF16, 7) != 0);
	cairn_model_free(m);
}

static const struct cairn_unit units[] = {
	{ "yarn_frequencies", yarn_frequencies },
	{ "bad_checkpoints", bad_checkpoints },
	{ "experts_after_one_dense", experts_after_one_dense },
	{ "experts_after_two_dense", experts_after_two_dense },
	{ "random_experts", random_experts },
};

const struct cairn_family cairn_model_arch_family = {
	.stage = "serving",
	.name = "model_arch",
	.units = units,
	.num_units = ARRAY_SIZE(units),
};
