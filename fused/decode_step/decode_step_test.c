// SPDX-License-Identifier: Apache-2.0
/*
 * decode_step_test - the cases: small models of one to four layers (named edge cases, latent attention and
 * experts), layers of published models, bench rows; then two generated series, decode_step_pairs.h, more
 * named cases, and decode_step_ends.h
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "conformance/harness.h"
#include "conformance/suite/draw.h"
#include "conformance/suite/pairs.h"
#include "fused/cache/paged_test.h"
#include "fused/decode_step/decode_step_test.h"
#include "fused/decode_step/decode_step_ends.h"
#include "fused/decode_step/decode_step_pairs.h"
#include "primitives/rows/rmsnorm.h"

#define LENS(...)	(const int[]){ __VA_ARGS__ }
#define N(case_name, num_layers, requests, kv_len, page_size, hidden_dim, mlp_dim, qo_heads, kv_heads, \
	  head_dim, vocab_size) \
	.name = case_name, .layers = num_layers, .batch = requests, .kv = kv_len, .page = page_size, \
	.hidden = hidden_dim, .inter = mlp_dim, .hq = qo_heads, .hkv = kv_heads, .dim = head_dim, \
	.vocab = vocab_size
/* multi-head latent attention */
#define M(case_name, num_layers, requests, kv_len, page_size, hidden_dim, mlp_dim, num_heads, q_lora_rank, \
	  vocab_size) \
	N(case_name, num_layers, requests, kv_len, page_size, hidden_dim, mlp_dim, num_heads, 1, 192, \
	  vocab_size), .lora = q_lora_rank
#define E(num_experts, experts_per_token, expert_dim, shared_dim, dense_layers) \
	.experts = num_experts, .top = experts_per_token, .expert_inter = expert_dim, .shared = shared_dim, \
	.dense = dense_layers
#define DSV2LITE	E(64, 6, 1408, 2816, 1)
/* hidden_dim, mlp_dim, qo_heads, kv_heads, head_dim, vocab_size */
#define LLAMA2_7B	4096, 11008, 32, 32, 128, 1024
#define LLAMA3_8B	4096, 14336, 32, 8, 128, 1024
#define LLAMA32_1B	2048, 8192, 32, 8, 64, 1024
#define QWEN2_7B	3584, 18944, 28, 4, 128, 1024
/* A layer of a published model, in both forms, with one request and as a batch. */
#define LAYER(n, f, ...) \
	{ N("layer_" n "_b1_kv1024", 1, 1, 1024, 16, __VA_ARGS__), .flags = DEVICE | BENCH | (f) }, \
	{ N("layer_" n "_b1_kv1024_graph", 1, 1, 1024, 16, __VA_ARGS__), \
		.flags = DEVICE | BENCH | GRAPH | (f) }, \
	{ N("layer_" n "_b1_kv1024_persistent", 1, 1, 1024, 16, __VA_ARGS__), \
		.flags = DEVICE | BENCH | PERSISTENT | (f) }, \
	{ N("layer_" n "_b1_kv9001_graph", 1, 1, 9001, 16, __VA_ARGS__), .flags = DEVICE | GRAPH | (f) }, \
	{ N("layer_" n "_b1_kv9001_persistent", 1, 1, 9001, 16, __VA_ARGS__), \
		.flags = DEVICE | PERSISTENT | (f) }, \
	{ N("layer_" n "_b8_kv777_graph", 1, 8, 777, 16, __VA_ARGS__), \
		.flags = DEVICE | GRAPH | PAGED_RAGGED | (f) }, \
	{ N("layer_" n "_b8_kv777_persistent", 1, 8, 777, 16, __VA_ARGS__), \
		.flags = DEVICE | PERSISTENT | PAGED_RAGGED | (f) }

/* The dense layer of DeepSeek-V2-Lite and one layer with experts. */
#define DSV2LITE_LAYERS(suffix, requests, kv_len, f) \
	{ M("layers_dsv2lite_" suffix, 2, requests, kv_len, 16, 2048, 10944, 16, 0, 1024), DSV2LITE, \
		.flags = DEVICE | POOL | LATENT | (f) }

static const struct step_shape named[] = {
	{ N("one_key", 1, 1, 1, 1, 64, 64, 1, 1, 64, 8) },	/* the reject_* cases change this one */
	{ N("batch_0", 2, 0, 9, 16, 64, 64, 2, 1, 64, 8) },
	{ N("no_tokens", 1, 2, 9, 16, 64, 64, 2, 1, 64, 16), .flags = NO_TOKENS },
	{ N("page_full", 2, 3, 64, 16, 128, 192, 4, 2, 64, 64), .flags = BIAS },
	{ N("page_opens", 2, 3, 65, 16, 128, 192, 4, 2, 64, 64) },
	{ N("first_page_opens", 1, 2, 17, 16, 128, 192, 4, 4, 64, 64), .flags = F16 },
	{ N("no_spare_page", 2, 2, 33, 8, 128, 64, 4, 1, 64, 72), .flags = PAGED_FULL },
	{ N("page_1000", 1, 2, 1203, 1000, 128, 128, 4, 2, 64, 64) },
	{ N("lengths_apart", 2, 8, 1, 16, 128, 192, 8, 2, 64, 136), .flags = ALIAS,
		.kv_lens = LENS(1, 900, 2, 16, 17, 15, 300, 1) },
	{ N("no_keys", 2, 5, 1, 16, 128, 192, 4, 2, 64, 64), .kv_lens = LENS(33, 0, 17, 0, 5) },
	{ N("no_keys_in_a_page", 1, 3, 1, 16, 128, 64, 4, 2, 128, 64), .flags = PAGED_HELD | SAMPLE,
		.kv_lens = LENS(0, 1, 40) },
	{ N("bound_above_length", 2, 4, 40, 16, 128, 192, 4, 2, 64, 64), .flags = PAGED_PADDED },
	{ N("far_positions", 1, 3, 30, 16, 128, 64, 4, 2, 128, 64), .flags = FAR },
	{ N("group_1_wide", 1, 2, 70, 16, 64, 64, 16, 16, 64, 64), .flags = GAPS },
	{ N("group_8", 1, 2, 70, 16, 128, 64, 16, 2, 128, 64), .flags = BIAS | BIAS_O },
	{ N("all_biases", 3, 2, 40, 16, 128, 192, 4, 2, 64, 200), .flags = BIAS | BIAS_O | GAPS },
	{ N("tied", 2, 2, 40, 16, 128, 192, 4, 2, 64, 1000), .flags = TIED },
	{ N("sampled_batch_8", 1, 8, 20, 16, 128, 64, 4, 2, 64, 4000), .flags = SAMPLE | ALIAS },
	{ N("sampled_vocab_8", 1, 5, 20, 3, 64, 64, 2, 2, 64, 8), .flags = SAMPLE },
	{ N("hidden_1024", 1, 1, 100, 16, 1024, 448, 32, 8, 64, 504), .flags = F16 },
	{ N("inter_2112", 1, 3, 20, 16, 192, 2112, 4, 2, 64, 64), },
	{ N("vocab_4000_three_layers", 3, 1, 50, 64, 256, 448, 8, 2, 64, 4000), .flags = F16 | GAPS },
	{ N("biases_and_gaps", 2, 3, 33, 16, 128, 192, 4, 2, 64, 64), .flags = BIAS | GAPS },
	/* latent attention; experts (without latent attention the persistent form is optional); both */
	{ M("latent_one_key", 1, 1, 1, 1, 64, 64, 8, 0, 8), .flags = LATENT },
	{ M("latent_batch_3", 2, 3, 65, 16, 256, 192, 8, 0, 64), .flags = LATENT | PAGED_RAGGED },
	{ M("latent_no_keys", 2, 4, 1, 16, 128, 64, 8, 0, 64),
		.flags = LATENT, .kv_lens = LENS(0, 20, 0, 1) },
	{ M("latent_lora_f16", 3, 2, 33, 16, 256, 64, 16, 192, 64), .flags = LATENT | F16 | GAPS },
	{ M("latent_sampled", 1, 4, 20, 3, 128, 64, 8, 64, 1000), .flags = LATENT | SAMPLE | ALIAS },
	{ M("latent_far_graph", 2, 8, 17, 16, 128, 64, 8, 0, 64),
		.flags = LATENT | FAR | GRAPH | PAGED_PADDED },
	{ N("experts_batch_0", 2, 0, 9, 16, 64, 64, 2, 1, 64, 8), E(4, 2, 64, 64, 1) },
	{ N("experts_one_layer", 1, 1, 9, 16, 128, 0, 2, 1, 64, 64), E(4, 2, 64, 0, 0), .flags = NORMED },
	{ N("experts_mixtral_like", 2, 4, 40, 16, 256, 0, 8, 2, 64, 200), E(8, 2, 192, 0, 0),
		.flags = NORMED },
	{ N("experts_after_dense_f16", 3, 3, 40, 16, 256, 192, 4, 2, 64, 64), E(8, 2, 64, 128, 2),
		.flags = F16 | GAPS | BIAS, .scaling = 1.5f },
	{ N("experts_in_no_layer", 2, 2, 17, 16, 128, 192, 4, 2, 64, 64), E(4, 2, 64, 64, 2) },
	{ M("dsv2lite_like_b1", 3, 1, 50, 16, 256, 320, 8, 0, 64), E(8, 2, 64, 128, 1), .flags = LATENT },
	{ M("dsv2lite_like_b2_f16", 3, 2, 50, 16, 256, 320, 16, 0, 136), E(8, 2, 64, 128, 1),
		.flags = LATENT | F16 | GAPS | NO_TOKENS },
	{ M("dsv2lite_like_b4_graph", 2, 4, 65, 16, 256, 64, 8, 0, 64), E(16, 4, 64, 64, 1),
		.flags = LATENT | GRAPH | PAGED_RAGGED },
	{ M("dsv2lite_like_b3", 3, 3, 33, 1, 256, 64, 8, 0, 64), E(8, 3, 128, 64, 1),
		.flags = LATENT | ALIAS, .scaling = 2.5f },
	{ M("dsv3_like", 3, 2, 33, 16, 256, 192, 8, 64, 64), E(16, 4, 64, 64, 2), .flags = LATENT | NORMED,
		.scaling = 2.5f },
	{ M("dsv2lite_like_no_keys", 3, 4, 1, 16, 256, 192, 8, 0, 64), E(8, 2, 64, 64, 1),
		.flags = LATENT | PAGED_HELD, .kv_lens = LENS(7, 0, 33, 0) },
	{ M("dsv2lite_like_pool", 3, 2, 33, 16, 256, 192, 8, 64, 64), E(8, 2, 64, 64, 1),
		.flags = LATENT | POOL },
	{ M("latent_experts_no_dense", 2, 8, 17, 64, 128, 0, 8, 0, 64), E(8, 2, 64, 0, 0),
		.flags = LATENT | F16 | SAMPLE },
	DSV2LITE_LAYERS("b1_kv1024_graph", 1, 1024, GRAPH),
	DSV2LITE_LAYERS("b8_kv777_graph", 8, 777, GRAPH | PAGED_RAGGED),
	DSV2LITE_LAYERS("b8_kv777_persistent", 8, 777, PERSISTENT | PAGED_RAGGED),
	DSV2LITE_LAYERS("b3_kv9001_f16", 3, 9001, F16),
	/* the whole model; weights_in_pool() describes where its weights are */
	{ M("dsv2lite_b1_kv1024", 27, 1, 1024, 16, 2048, 10944, 16, 0, 102400), DSV2LITE,
		.flags = DEVICE | BENCH | POOL | LATENT },
	{ M("dsv2lite_b1_kv1024_graph", 27, 1, 1024, 16, 2048, 10944, 16, 0, 102400), DSV2LITE,
		.flags = DEVICE | BENCH | POOL | LATENT | GRAPH },
	{ M("dsv2lite_b1_kv1024_persistent", 27, 1, 1024, 16, 2048, 10944, 16, 0, 102400), DSV2LITE,
		.flags = DEVICE | BENCH | POOL | LATENT | PERSISTENT },
	LAYER("llama2_7b", F16, LLAMA2_7B),
	LAYER("llama3_8b", 0, LLAMA3_8B),
	LAYER("llama32_1b", 0, LLAMA32_1B),
	LAYER("qwen2_7b", BIAS, QWEN2_7B),
};

/* a share of the device: all ways of the grid, both forms, latent attention, experts */
static const struct step_shape with_sms[] = {
	{ N("sms_1", 2, 1, 33, 16, 128, 192, 4, 2, 64, 136), .sms = 1 },
	{ N("sms_24_batch_2", 2, 2, 40, 16, 128, 192, 4, 2, 64, 136), .sms = 24 },
	{ N("sms_64_graph", 2, 1, 40, 16, 128, 192, 4, 2, 64, 136), .sms = 64, .flags = GRAPH | F16 },
	{ N("sms_7_batch_8", 2, 8, 40, 16, 128, 192, 8, 4, 64, 136), .sms = 7, .flags = PAGED_RAGGED },
	{ N("sms_100000", 1, 2, 40, 16, 128, 192, 4, 2, 64, 136), .sms = 100000 },
	{ M("sms_1_latent", 2, 2, 33, 16, 128, 64, 8, 64, 64), .sms = 1, .flags = LATENT },
	{ M("sms_24_dsv2lite_like_graph", 3, 2, 50, 16, 256, 320, 8, 0, 64), E(8, 2, 64, 128, 1),
		.sms = 24, .flags = LATENT | GRAPH },
	{ M("sms_64_dsv2lite_like_persistent", 3, 2, 50, 16, 256, 320, 8, 0, 64), E(8, 2, 64, 128, 1),
		.sms = 64, .flags = LATENT | PERSISTENT },
	{ N("sms_24_experts", 3, 3, 40, 16, 256, 192, 4, 2, 64, 64), E(8, 2, 64, 128, 2), .sms = 24 },
};

/* the last cases */
static const struct step_shape last[] = {
	{ N("lengths_around_tiles", 2, 6, 1, 256, 64, 64, 4, 2, 64, 64),
		.kv_lens = LENS(128, 129, 256, 257, 512, 513) },
	{ N("lengths_around_tiles_f16", 1, 3, 1, 128, 64, 64, 8, 2, 64, 64), .flags = F16 | BIAS,
		.kv_lens = LENS(1024, 1025, 384) },
	{ N("vocab_70000", 1, 4, 9, 16, 64, 64, 2, 1, 64, 70000), .flags = TIED },
	{ N("hidden_16384", 1, 2, 9, 16, 16384, 64, 1, 1, 64, 64), .flags = WINDOWS },
	{ N("inter_65536", 1, 2, 9, 16, 64, 65536, 2, 1, 64, 8) },
	{ N("heads_40_layers_4", 4, 7, 20, 16, 64, 64, 40, 8, 64, 72), .flags = PAGED_RAGGED | TIES },
	{ N("logits_equal_in_pairs", 1, 2, 9, 16, 64, 64, 2, 1, 64, 1000), .flags = F16 | TIES },
	{ N("gates_steep", 1, 3, 9, 16, 128, 192, 2, 1, 64, 64), .flags = STEEP },
	{ N("gates_steep_f16", 2, 2, 9, 16, 64, 64, 2, 1, 64, 64), .flags = STEEP | F16 },
	{ N("logits_below_minus_10000", 1, 3, 90, 16, 64, 64, 4, 2, 64, 64), .flags = DEEP | BIAS },
	{ M("latent_heads_24_batch_6", 1, 6, 20, 16, 128, 64, 24, 256, 64),
		.flags = LATENT | PAGED_RAGGED },
	{ N("experts_256_top_8", 2, 2, 9, 16, 256, 64, 2, 1, 64, 64), E(256, 8, 64, 64, 1),
		.flags = NORMED, .scaling = 2.5f },
	{ N("experts_batch_8", 1, 8, 9, 16, 64, 0, 2, 1, 64, 64), E(8, 2, 64, 64, 0),
		.flags = PAGED_RAGGED },
	{ N("far_layers", 2, 2, 33, 16, 64, 64, 2, 1, 64, 64), .flags = FAR_LAYERS },
	{ N("far_pages", 1, 2, 33, 16, 64, 64, 2, 1, 64, 64), .flags = PAGED_FAR },
	{ N("vocab_152064", 1, 1, 3, 16, 64, 64, 2, 1, 64, 152064), .flags = TIED },
	{ N("experts_top_11_batch_5_layers_6", 6, 5, 20, 16, 64, 64, 12, 4, 64, 64), E(16, 11, 64, 64, 5),
		.flags = PAGED_RAGGED },
	{ N("scale_of_more_bits", 1, 3, 30, 16, 64, 64, 4, 2, 64, 64), .flags = BALANCE | BIAS },
	{ N("gates_of_minus_24", 1, 3, 9, 16, 64, 64, 2, 1, 64, 64), .flags = SHUT },
	{ M("latent_gates_of_minus_24", 1, 2, 9, 16, 64, 64, 8, 0, 64), .flags = SHUT | LATENT },
	{ N("inter_33088", 1, 2, 9, 16, 64, 33088, 2, 1, 64, 8) },
	{ N("eps_smallest", 2, 3, 9, 16, 64, 64, 2, 1, 64, 64), .eps = CAIRN_EPS_MIN, .size = 0x1p-63 },
	{ N("eps_smallest_experts", 2, 3, 9, 16, 64, 64, 2, 1, 64, 64), E(4, 2, 64, 64, 1),
		.eps = CAIRN_EPS_MIN, .size = 0x1p-63 },
	{ M("latent_eps_smallest", 1, 2, 3, 16, 64, 64, 8, 64, 64), .flags = LATENT, .eps = CAIRN_EPS_MIN,
		.size = 0x1p-63 },
	/* top_k around and above the lengths of lists of candidates, and around vocab */
	{ N("sampled_top_k_600", 1, 8, 9, 16, 64, 64, 2, 1, 64, 4000), .flags = SAMPLE,
		.top_k = LENS(600, 256, 257, 3000, 1024, 3999, 4000, 4001) },
	{ N("sampled_top_k_of_vocab_f16", 1, 4, 9, 16, 64, 64, 2, 1, 64, 1000), .flags = SAMPLE | ALIAS | F16,
		.top_k = LENS(999, 1000, 1001, 0x7fffffff) },
	{ N("sampled_top_k_5000", 1, 3, 9, 16, 64, 64, 2, 1, 64, 10000), .flags = SAMPLE | TIED,
		.top_k = LENS(5000, 1025, 10000) },
	{ M("latent_sampled_top_k_600", 1, 4, 9, 16, 128, 64, 8, 0, 1000), .flags = SAMPLE | LATENT,
		.top_k = LENS(600, 257, 1000, 2000) },
};

#define NUM_LAST	((int)ARRAY_SIZE(last))
#define NUM_SMS		((int)ARRAY_SIZE(with_sms))
#define NUM_GRID	72
#define NUM_MIXED	36		/* latent attention, experts or both */
#define NUM_NAMED	((int)ARRAY_SIZE(named))
#define FIRST_ENDS	(NUM_NAMED + NUM_GRID + NUM_MIXED + NUM_SMS + NUM_PAIRS + NUM_LAST)

static void mixed_at(int i, struct step_shape *s)
{
	static const int hidden[] = { 128, 256, 64, 192, 320 }, experts[] = { 8, 4, 16, 7, 12 };
	static const int batch[] = { 1, 2, 3, 1, 4, 8 }, kv[] = { 17, 1, 54, 15, 70 },
			 pages[] = { 16, 1, 64, 3 };
	int latent = i % 3 != 1, with_experts = i % 3 != 0;

	*s = (struct step_shape){
		.layers = 1 + (i + i / 3) % 3, .batch = batch[(i + i / 6) % 6], .kv = kv[(i + i / 5) % 5],
		.page = pages[(i + i / 4) % 4], .hidden = hidden[(i + i / 5) % 5], .inter = 64 * (1 + i % 4),
		.hq = latent ? 8 * (1 + i / 3 % 2) : 4, .hkv = latent ? 1 : 2, .dim = latent ? 192 : 64,
		.vocab = i % 2 ? 64 : 136, .lora = latent && i % 4 == 2 ? 128 : 0,
	};
	if (with_experts) {
		s->experts = experts[(i + i / 5) % 5];
		s->top = 1 + i / 2 % 3;
		s->expert_inter = i % 4 < 2 ? 64 : 128;
		s->shared = 64 * (i / 3 % 3);
		s->dense = i / 2 % 2;
		s->scaling = i % 5 == 2 ? 1.5f : 1;
	}
	s->flags = (latent ? LATENT : 0) | (i / 2 % 2 ? F16 : 0) | (i % 5 < 2 ? GAPS : 0) |
		   (i % 4 ? PAGED_RAGGED : 0) | (with_experts && i / 3 % 2 ? NORMED : 0) |
		   (i / 3 % 3 == 1 ? GRAPH : 0);
}

#define NUM_CASES	(FIRST_ENDS + NUM_ENDS)

static const struct cairn_draw_axis axes[] = {
	CAIRN_DRAW_SIZE(struct step_shape, layers, 1, 5, 1),
	CAIRN_DRAW_SIZE(struct step_shape, batch, 1, 8, 1),
	CAIRN_DRAW_SIZE(struct step_shape, kv, 1, 1000, 1),
	CAIRN_DRAW_SIZE(struct step_shape, page, 1, 300, 1),
	CAIRN_DRAW_SIZE(struct step_shape, hidden, 64, 512, 64),
	CAIRN_DRAW_SIZE(struct step_shape, inter, 64, 1024, 64),
	CAIRN_DRAW_SIZE(struct step_shape, hkv, 1, 8, 1),
	CAIRN_DRAW_SIZE(struct step_shape, hq, 1, 8, 1),	/* of a KV head, see allowed() */
	CAIRN_DRAW_ONE_OF(struct step_shape, dim, 64, 128),
	CAIRN_DRAW_SIZE(struct step_shape, vocab, 8, 2000, 8),
	CAIRN_DRAW_ONE_OF(struct step_shape, lora, 0, 64, 128),
	CAIRN_DRAW_ONE_OF(struct step_shape, experts, 0, 0, 4, 7, 16),
	CAIRN_DRAW_ONE_OF(struct step_shape, top, 1, 2, 3),
	CAIRN_DRAW_ONE_OF(struct step_shape, expert_inter, 64, 128),
	CAIRN_DRAW_ONE_OF(struct step_shape, shared, 0, 64, 128),
	CAIRN_DRAW_ONE_OF(struct step_shape, dense, 0, 1),
	CAIRN_DRAW_ONE_OF(struct step_shape, scaling, 1, 1.5f),
	CAIRN_DRAW_ONE_OF(struct step_shape, flags, 0, 0, 0, LATENT),
	CAIRN_DRAW_ONE_OF(struct step_shape, flags, 0, F16),
	CAIRN_DRAW_ONE_OF(struct step_shape, flags, 0, BIAS, BIAS | BIAS_O),
	CAIRN_DRAW_ONE_OF(struct step_shape, flags, 0, GAPS),
	CAIRN_DRAW_ONE_OF(struct step_shape, flags, 0, SAMPLE),
	CAIRN_DRAW_ONE_OF(struct step_shape, flags, 0, NORMED),
	CAIRN_DRAW_ONE_OF(struct step_shape, flags, 0, GRAPH, PERSISTENT),
	CAIRN_DRAW_ONE_OF(struct step_shape, flags, 0, 0, 0, ALIAS, TIED, NO_TOKENS),
	CAIRN_DRAW_ONE_OF(struct step_shape, flags, 0, PAGED_RAGGED),
	CAIRN_DRAW_ONE_OF(struct step_shape, flags, 0, 0, PAGED_PADDED, PAGED_SPARE),
};

static int allowed(void *shape, int room)
{
	struct step_shape *s = shape;

	s->hq *= s->hkv;
	if (s->flags & LATENT) {
		s->hq = s->hq % 2 ? 8 : 16;
		s->hkv = 1;
		s->dim = 192;
		s->flags &= ~(unsigned)(BIAS | BIAS_O);
	} else {
		s->lora = 0;
	}
	if (!s->experts) {
		s->top = s->expert_inter = s->shared = s->dense = 0;
		s->scaling = 0;
		s->flags &= ~(unsigned)NORMED;
	}
	return s->layers * s->hidden * (s->hq * s->dim + 3 * s->inter) <= room * 600000 &&
	       s->hidden * s->vocab <= room * 200000 &&
	       s->layers * s->experts * s->hidden * s->expert_inter <= room * 500000 &&
	       (int64_t)s->layers * s->batch * (s->kv + s->page) * s->hkv * s->dim <= room * 300000 &&
	       (int64_t)s->layers * s->batch * s->kv * s->hq * (s->flags & LATENT ? 576 : s->dim) <=
	       room * 1500000;
}

static const struct cairn_draw draws = {
	.shape_bytes = sizeof(struct step_shape), .axes = axes, .num_axes = ARRAY_SIZE(axes),
	.allowed = allowed, .many = 700,
};

void step_shape_at(int index, struct step_shape *s)
{
	static const int heads[][2] = { { 4, 4 }, { 8, 2 }, { 14, 2 }, { 6, 1 }, { 32, 8 } };
	static const int hidden[] = { 64, 128, 256, 192, 512, 320 }, inter[] = { 192, 64, 448, 128, 320 };
	static const int vocab[] = { 8, 136, 1000, 56, 520 }, pages[] = { 16, 1, 64, 3 };
	static const int batch[] = { 1, 3, 8, 2, 5 }, kv[] = { 17, 1, 54, 130, 15, 300 };
	int i = index - NUM_NAMED, h;

	if (i < 0) {
		*s = named[index];
		return;
	}
	if (index >= NUM_CASES) {
		cairn_draw_shape(&draws, index - NUM_CASES, s);
		return;
	}
	if (index >= FIRST_ENDS) {
		ends_at(index - FIRST_ENDS, s);
		return;
	}
	if (i >= NUM_GRID + NUM_MIXED + NUM_SMS + NUM_PAIRS) {
		*s = last[i - NUM_GRID - NUM_MIXED - NUM_SMS - NUM_PAIRS];
		return;
	}
	if (i >= NUM_GRID + NUM_MIXED + NUM_SMS) {
		pair_at(i - NUM_GRID - NUM_MIXED - NUM_SMS, s);
		return;
	}
	if (i >= NUM_GRID + NUM_MIXED) {
		*s = with_sms[i - NUM_GRID - NUM_MIXED];
		return;
	}
	if (i >= NUM_GRID) {
		mixed_at(i - NUM_GRID, s);
		return;
	}
	memset(s, 0, sizeof(*s));
	h = (i + i / 5) % 5;
	s->layers = 1 + i % 3;
	s->batch = batch[(i + i / 15) % 5];
	s->kv = kv[(i + i / 6) % 6];
	s->page = pages[(i + i / 4) % 4];
	s->hidden = hidden[(i + i / 12) % 6];
	s->inter = inter[(i + i / 10) % 5];
	s->hq = heads[h][0];
	s->hkv = heads[h][1];
	s->dim = h == 4 || (i / 2) % 2 ? 64 : 128;
	s->vocab = vocab[(i + i / 20) % 5];
	s->flags = (i % 2 ? F16 : 0) | (i % 3 ? PAGED_RAGGED : 0) | (i % 4 == 1 ? BIAS : 0) |
		   (i % 5 < 2 ? GAPS : 0) | (i % 7 == 3 ? ALIAS : 0) | (i % 8 == 5 ? SAMPLE : 0) |
		   (i % 11 == 4 ? PAGED_PADDED : 0) |
		   (i % 13 == 6 && i % 7 != 3 ? TIED : 0) |
		   (i / 3 % 3 == 1 ? GRAPH : i / 3 % 3 == 2 ? PERSISTENT : 0);
}

/* Returns the elements of the attention weights that one layer reads. */
static double attention_weights(const struct step_shape *s)
{
	double h = s->hidden, q = (double)s->hq * s->dim;

	if (s->flags & LATENT)
		return (s->lora ? s->lora * (h + q) : h * q) + h * 576 + s->hq * 256.0 * 512 +
		       h * s->hq * 128;
	return h * (2 * q + 2.0 * s->hkv * s->dim);
}

/* Returns the elements of all weights that must be read; of the experts, those that one request chooses. */
static double weights_of(const struct step_shape *s)
{
	int dense = s->experts ? s->dense : s->layers;
	double experts = 3.0 * s->top * s->expert_inter + 3.0 * s->shared + s->experts;

	return s->layers * attention_weights(s) + dense * 3.0 * s->hidden * s->inter +
	       (s->layers - dense) * experts * s->hidden + (double)s->vocab * s->hidden;
}

static void describe(int index, struct cairn_case *c)
{
	double weights, row;
	struct step_shape s;

	step_shape_at(index, &s);
	if (s.pair)
		pair_name(&s, c->name, sizeof(c->name));
	else if (s.name)
		snprintf(c->name, sizeof(c->name), "%s", s.name);
	else
		snprintf(c->name, sizeof(c->name), "%sl%d_b%d_kv%d_p%d_h%d_i%d_q%d_%d_d%d_v%d_%s%s%s%s%s%s",
			 s.ends ? "ends_" : "", s.layers, s.batch, s.kv, s.page, s.hidden, s.inter, s.hq,
			 s.hkv, s.dim, s.vocab,
			 s.flags & F16 ? "f16" : "bf16", s.flags & BIAS ? "_bias" : "",
			 s.flags & SAMPLE ? "_sample" : "", s.flags & GAPS ? "_gaps" : "",
			 s.flags & PAGED_RAGGED ? "_ragged" : "",
			 s.flags & GRAPH ? "_graph" : s.flags & PERSISTENT ? "_persistent" : "");
	if (!s.name && !s.pair && s.lora)
		snprintf(c->name + strlen(c->name), sizeof(c->name) - strlen(c->name), "_r%d", s.lora);
	if (!s.name && !s.pair && s.experts)
		snprintf(c->name + strlen(c->name), sizeof(c->name) - strlen(c->name),
			 "_e%d_top%d_i%d_s%d_after%d", s.experts, s.top, s.expert_inter, s.shared, s.dense);
	c->bench = !!(s.flags & BENCH);
	c->device_only = !!(s.flags & DEVICE);
	c->far = !!(s.flags & (PAGED_FAR | FAR_LAYERS));
	if (s.flags & (DEVICE | PAGED_FAR | FAR_LAYERS | STEEP | DEEP | SHUT | BALANCE) ||
	    (s.eps > 0 && !s.pair) || s.ends)
		c->kinds = CAIRN_KIND_BIT(CAIRN_KIND_NORMAL);
	else if (s.pair)
		c->kinds = CAIRN_KIND_BIT(CAIRN_KIND_POISON);
	else if (s.name)
		c->kinds = CAIRN_KIND_BIT(CAIRN_KIND_EXACT) | CAIRN_KIND_BIT(CAIRN_KIND_POISON);
	else
		c->kinds = CAIRN_KIND_BIT(index % 4);
	/* the router cannot decide on a row of zeros */
	if (s.experts && c->kinds == CAIRN_KIND_BIT(CAIRN_KIND_EXTREME))
		c->kinds = CAIRN_KIND_BIT(CAIRN_KIND_NORMAL);
	row = s.flags & LATENT ? 576 : 2.0 * s.hkv * s.dim;
	weights = weights_of(&s);
	c->bytes = 2 * (weights + (double)s.layers * s.batch * s.kv * row);
	c->flops = 2.0 * s.batch *
		   (weights + 2.0 * s.layers * s.kv * s.hq * (s.flags & LATENT ? 544 : s.dim));
}

int step_form(void *args, int i)
{
	struct cairn_decode_step_args *a = args;

	a->form = (a->form + 1 + i) % 3;
	return i < 2;
}

int step_relist(void *args)
{
	const struct cairn_decode_step_args *a = args;

	for (int32_t b = 0; b < a->kv.batch; b++)
		((int32_t *)(uintptr_t)a->ids)[b] = (a->ids[b] + 1) % a->vocab;
	return paged_relist(&a->kv, NULL) | paged_move_rows(a->positions, a->kv.batch);
}

static void pair_rows(struct cairn_test *t)
{
	cairn_pairs_check(t, &pair_table, NUM_PAIRS);
	cairn_pairs_check(t, &ends_table, NUM_ENDS);
}

static const struct cairn_unit units[] = { { "pair_rows", pair_rows } };

/* Heads of 128 dims have kernels of their own, in each form. */
static const char *const sanitized[] = {
	"l1_b1_kv15_p64_h256_i64_q6_1_d128_v8_bf16_persistent.normal",
	"pair_7_l2_p16_q4_2_d128_w64_v72_bf16_graph_experts.poison", NULL
};

const struct cairn_family cairn_decode_step_family = {
	.stage = "fused", .name = "decode_step",
	.op = offsetof(struct cairn_impl, decode_step),
	.workspace_op = offsetof(struct cairn_impl, decode_step_workspace),
	.args_size = sizeof(struct cairn_decode_step_args),
	.sms_field = offsetof(struct cairn_decode_step_args, sms),
	.workspace_field = STEP_FIELD(workspace),
	.num_cases = NUM_CASES, .draw = &draws,
	.units = units, .num_units = ARRAY_SIZE(units),
	.zeroed_workspace = 1, .refuses_small_workspace = 1,
	.may_alias = { { STEP_FIELD(tokens), STEP_FIELD(ids) } },
	.company = { .rows = STEP_FIELD(kv.batch), .in = { STEP_FIELD(ids) },
		     .out = { STEP_FIELD(logits), STEP_FIELD(tokens) } },
	.form = step_form,
	.describe = describe, .setup = step_setup, .exact = step_exact, .judge = step_judge,
	.reject = step_reject, .relist = step_relist, .sanitized = sanitized,
	.cost_s = 40, .cheap_factor = 4,	/* weights and pages of several layers */
};
