// SPDX-License-Identifier: Apache-2.0
/* model_shapes - shapes of published models, for benchmarks with random weights */
#include "serving/model/checkpoint/config.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "primitives/base/error.h"

#define COUNT(a)	((int)(sizeof(a) / sizeof((a)[0])))

static const struct { const char *name; struct cairn_model_config config; } shapes[] = {
	{ "llama2-7b", {
		.hidden_size = 4096, .intermediate_size = 11008, .num_hidden_layers = 32,
		.num_attention_heads = 32, .num_key_value_heads = 32, .head_dim = 128, .vocab_size = 32000,
		/* 4096 as published; Luo et al. measure it at up to 16K. */
		.max_position_embeddings = 32768, .rope = { .theta = 10000, .factor = 1 },
	} },
	{ "llama3-8b", {
		.hidden_size = 4096, .intermediate_size = 14336, .num_hidden_layers = 32,
		.num_attention_heads = 32, .num_key_value_heads = 8, .head_dim = 128, .vocab_size = 128256,
		.max_position_embeddings = 8192, .rope = { .theta = 500000, .factor = 1 },
	} },
	{ "llama31-8b", {
		.hidden_size = 4096, .intermediate_size = 14336, .num_hidden_layers = 32,
		.num_attention_heads = 32, .num_key_value_heads = 8, .head_dim = 128, .vocab_size = 128256,
		.max_position_embeddings = 131072,
		.rope = { .theta = 500000, .scaling = CAIRN_ROPE_LLAMA3, .factor = 8, .low_freq_factor = 1,
			  .high_freq_factor = 4, .original_max_position_embeddings = 8192 },
	} },
	{ "llama-65b", {
		.hidden_size = 8192, .intermediate_size = 22016, .num_hidden_layers = 80,
		.num_attention_heads = 64, .num_key_value_heads = 64, .head_dim = 128, .vocab_size = 32000,
		.max_position_embeddings = 2048, .rope = { .theta = 10000, .factor = 1 },
	} },
	{ "llama3-70b", {
		.hidden_size = 8192, .intermediate_size = 28672, .num_hidden_layers = 80,
		.num_attention_heads = 64, .num_key_value_heads = 8, .head_dim = 128, .vocab_size = 128256,
		.max_position_embeddings = 8192, .rope = { .theta = 500000, .factor = 1 },
	} },
	{ "llama32-1b", {
		.hidden_size = 2048, .intermediate_size = 8192, .num_hidden_layers = 16,
		.num_attention_heads = 32, .num_key_value_heads = 8, .head_dim = 64, .vocab_size = 128256,
		.max_position_embeddings = 131072, .tie_word_embeddings = true,
		.rope = { .theta = 500000, .scaling = CAIRN_ROPE_LLAMA3, .factor = 32, .low_freq_factor = 1,
			  .high_freq_factor = 4, .original_max_position_embeddings = 8192 },
	} },
	{ "qwen2-7b", {
		.arch = CAIRN_ARCH_QWEN2, .hidden_size = 3584, .intermediate_size = 18944,
		.num_hidden_layers = 28, .num_attention_heads = 28, .num_key_value_heads = 4, .head_dim = 128,
		.vocab_size = 152064, .max_position_embeddings = 32768, .qkv_bias = true,
		.rope = { .theta = 1000000, .factor = 1 },
	} },
	{ "mistral-7b", {	/* v0.3 has no window */
		.arch = CAIRN_ARCH_MISTRAL, .hidden_size = 4096, .intermediate_size = 14336,
		.num_hidden_layers = 32, .num_attention_heads = 32, .num_key_value_heads = 8, .head_dim = 128,
		.vocab_size = 32768, .max_position_embeddings = 32768, .rms_norm_eps = 1e-5,
		.rope = { .theta = 1000000, .factor = 1 },
	} },
	{ "qwen3-8b", {
		.arch = CAIRN_ARCH_QWEN3, .hidden_size = 4096, .intermediate_size = 12288,
		.num_hidden_layers = 36, .num_attention_heads = 32, .num_key_value_heads = 8, .head_dim = 128,
		.vocab_size = 151936, .max_position_embeddings = 40960, .head_norms = true,
		.rope = { .theta = 1000000, .factor = 1 },
	} },
	{ "gemma2-9b", {
		.arch = CAIRN_ARCH_GEMMA2, .hidden_act = CAIRN_ACT_GELU_TANH, .hidden_size = 3584,
		.intermediate_size = 14336, .num_hidden_layers = 42, .num_attention_heads = 16,
		.num_key_value_heads = 8, .head_dim = 256, .vocab_size = 256000,
		.max_position_embeddings = 8192, .tie_word_embeddings = true, .window = 4096,
		.windowed = { 0x55, 0x55, 0x55, 0x55, 0x55, 0x01 },	/* layers 0, 2 .. 40 */
		.block_norms = true, .embed_scale = true, .norm_offset = 1, .query_scalar = 256,
		.attn_softcap = 50, .logit_softcap = 30, .rope = { .theta = 10000, .factor = 1 },
	} },
	{ "mixtral-8x7b", {
		.arch = CAIRN_ARCH_MIXTRAL, .hidden_size = 4096, .intermediate_size = 14336,
		.num_hidden_layers = 32, .num_attention_heads = 32, .num_key_value_heads = 8, .head_dim = 128,
		.vocab_size = 32000, .max_position_embeddings = 32768, .rms_norm_eps = 1e-5,
		.rope = { .theta = 1000000, .factor = 1 },
		.experts = { .num_experts = 8, .per_token = 2, .intermediate_size = 14336, .normalize = true,
			     .scaling = 1 },
	} },
	{ "qwen3-30b-a3b", {
		.arch = CAIRN_ARCH_QWEN3_MOE, .hidden_size = 2048, .intermediate_size = 6144,
		.num_hidden_layers = 48, .num_attention_heads = 32, .num_key_value_heads = 4, .head_dim = 128,
		.vocab_size = 151936, .max_position_embeddings = 40960, .head_norms = true,
		.rope = { .theta = 1000000, .factor = 1 },
		.experts = { .num_experts = 128, .per_token = 8, .intermediate_size = 768, .normalize = true,
			     .scaling = 1 },
	} },
	{ "dsv2lite", {
		.arch = CAIRN_ARCH_DEEPSEEK_V2, .hidden_size = 2048, .intermediate_size = 10944,
		.num_hidden_layers = 27, .num_attention_heads = 16, .num_key_value_heads = 16,
		.head_dim = 192, .vocab_size = 102400, .max_position_embeddings = 163840,
		.rope = { .theta = 10000, .scaling = CAIRN_ROPE_YARN, .factor = 40, .beta_fast = 32,
			  .beta_slow = 1, .mscale_all_dim = 0.707, .original_max_position_embeddings = 4096 },
		.latent = { .kv_lora_rank = 512, .nope_dim = 128, .rope_dim = 64, .v_dim = 128 },
		.experts = { .num_experts = 64, .per_token = 6, .intermediate_size = 1408,
			     .shared_intermediate_size = 2816, .dense_layers = 1, .scaling = 1 },
	} },
	{ "gpt-oss-20b", {
		.arch = CAIRN_ARCH_GPT_OSS, .stored_mxfp4 = true, .hidden_size = 2880,
		.intermediate_size = 2880, .num_hidden_layers = 24, .num_attention_heads = 64,
		.num_key_value_heads = 8, .head_dim = 64,
		.vocab_size = 201088, .max_position_embeddings = 131072, .rms_norm_eps = 1e-5,
		.rope = { .theta = 150000, .scaling = CAIRN_ROPE_YARN, .factor = 32, .beta_fast = 32,
			  .beta_slow = 1, .untruncated = true, .original_max_position_embeddings = 4096 },
		.window = 128, .windowed = { 0x55, 0x55, 0x55 },	/* layers 0, 2 .. 22 */
		.sinks = true, .qkv_bias = true, .o_bias = true,
		.experts = { .num_experts = 32, .per_token = 4, .intermediate_size = 2880, .normalize = true,
			     .scaling = 1, .biases = true, .clamp_alpha = 1.702, .clamp_limit = 7 },
	} },
	{ "dsv3", {
		.arch = CAIRN_ARCH_DEEPSEEK_V3, .hidden_size = 7168, .intermediate_size = 18432,
		.num_hidden_layers = 61, .num_attention_heads = 128, .num_key_value_heads = 128,
		.head_dim = 192, .vocab_size = 129280, .max_position_embeddings = 163840,
		.rope = { .theta = 10000, .scaling = CAIRN_ROPE_YARN, .factor = 40, .beta_fast = 32,
			  .beta_slow = 1, .mscale_all_dim = 1, .original_max_position_embeddings = 4096 },
		.latent = { .q_lora_rank = 1536, .kv_lora_rank = 512, .nope_dim = 128, .rope_dim = 64,
			    .v_dim = 128 },
		.experts = { .num_experts = 256, .per_token = 8, .intermediate_size = 2048,
			     .shared_intermediate_size = 2048, .dense_layers = 3, .normalize = true,
			     .scaling = 2.5, .sigmoid = true, .num_groups = 8, .groups_per_token = 4 },
	} },
};

int cairn_model_shape(const char *name, struct cairn_model_config *config)
{
	char names[256] = "";
	size_t at = 0;

	for (int i = 0; i < COUNT(shapes); i++) {
		if (!strcmp(name, shapes[i].name)) {
			*config = shapes[i].config;
			config->dtype = CAIRN_BF16;
			if (!(config->rms_norm_eps > 0))
				config->rms_norm_eps = config->arch == CAIRN_ARCH_LLAMA ? 1e-5 : 1e-6;
			config->rope.attention_factor = 1;
			if (config->arch == CAIRN_ARCH_GPT_OSS)
				config->rope.attention_factor = 0.1 * log(config->rope.factor) + 1;
			config->bos_token_id = -1;
			return 0;
		}
		at += (size_t)snprintf(names + at, sizeof(names) - at, "%s%s", i ? ", " : "", shapes[i].name);
	}
	return cairn_error(EINVAL, "shape: '%s' is not one of %s", name, names);
}
