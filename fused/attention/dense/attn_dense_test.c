// SPDX-License-Identifier: Apache-2.0
/*
 * attn_dense_test - named edge cases, a grid of dimensions and lengths, pairs of features, ends of tiles,
 * bench rows
 *
 * The patterns of the inputs are those of attn_inputs.h. EXACT has equal logits (out is the mean of small
 * integers), one key that outweighs all others (out is its V) or, in the pairs, integers of 22 bits.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "conformance/harness.h"
#include "conformance/suite/draw.h"
#include "conformance/suite/pairs.h"
#include "fused/attention/base/attn_lengths.h"
#include "fused/attention/dense/attn_dense.h"

#define ARGS	struct cairn_attn_dense_args
#include "fused/attention/dense/attn_dense_inputs.h"
#include "fused/attention/dense/attn_dense_ends.h"

#define LENS(...)	(const int[]){ __VA_ARGS__ }
#define N(name_, batch_, qo_, kv_, hq_, hkv_, qk_, v_) \
	.name = name_, .batch = batch_, .qo = qo_, .kv = kv_, .hq = hq_, .hkv = hkv_, .qk = qk_, .v = v_
#define BOTH		(CAUSAL | LSE)
#define BENCH_CAUSAL	(BENCH | CAUSAL | DEVICE)

static const struct shape named[] = {
	/* N(name, batch, query rows, keys, query heads, KV heads, qk_dim, v_dim), other members */
	{ N("one_key", 1, 1, 1, 1, 1, 64, 64), .flags = LSE },
	{ N("batch_0", 0, 1, 1, 4, 2, 64, 64), .flags = LSE },
	{ N("no_rows", 3, 0, 40, 4, 2, 64, 64), .flags = LSE },
	{ N("no_keys", 3, 2, 0, 4, 2, 128, 128), .flags = LSE },
	{ N("no_keys_causal", 2, 130, 0, 4, 2, 64, 80), .flags = BOTH },
	{ N("empty_requests", 6, 1, 1, 4, 2, 64, 64), .flags = LSE,
		.qo_lens = LENS(0, 1, 2, 0, 40, 0), .kv_lens = LENS(9, 0, 33, 0, 17, 5) },
	{ N("more_queries_than_keys", 2, 150, 97, 4, 2, 128, 128), .flags = BOTH | F16 },
	{ N("one_key_many_queries", 1, 129, 1, 2, 1, 64, 64), .flags = BOTH },
	{ N("lone_token_of_7_heads", 1, 129, 131, 7, 1, 64, 64), .flags = BOTH },
	{ N("padded_graph", 4, 1, 1, 4, 2, 64, 64), .flags = BOTH | PAGED_PADDED,
		.qo_lens = LENS(40, 1, 0, 0), .kv_lens = LENS(90, 33, 0, 7) },
	{ N("mixed_lengths", 7, 1, 1, 8, 2, 128, 128), .flags = BOTH,
		.qo_lens = LENS(1, 70, 1, 17, 3, 1, 129), .kv_lens = LENS(300, 70, 33, 54, 3, 1, 257) },
	{ N("mixed_lengths_192_128", 5, 1, 1, 6, 3, 192, 128), .flags = BOTH | F16, .layout = HEAD_GAPS,
		.qo_lens = LENS(64, 5, 130, 1, 65), .kv_lens = LENS(64, 200, 131, 90, 65) },
	/* rows and keys around multiples of a tile's size */
	{ N("rows_63_keys_63", 1, 63, 63, 2, 2, 128, 128), .flags = BOTH },
	{ N("rows_64_keys_64", 1, 64, 64, 2, 2, 128, 128), .flags = BOTH },
	{ N("rows_65_keys_65", 1, 65, 65, 2, 2, 128, 128), .flags = BOTH },
	{ N("rows_127_keys_128", 1, 127, 128, 2, 1, 128, 128), .flags = BOTH },
	{ N("rows_128_keys_128", 1, 128, 128, 2, 1, 128, 128), .flags = LSE | F16 },
	{ N("rows_129_keys_129", 1, 129, 129, 2, 1, 128, 128), .flags = BOTH },
	{ N("rows_128_keys_192_d256", 1, 128, 192, 1, 1, 256, 256), .flags = BOTH },
	{ N("rows_193_keys_193_d64", 1, 193, 193, 2, 1, 64, 64), .flags = BOTH },
	{ N("keys_175", 1, 20, 175, 2, 1, 128, 128), .flags = LSE },
	{ N("keys_176", 1, 20, 176, 2, 1, 128, 128), .flags = LSE | F16 },
	{ N("keys_177", 1, 20, 177, 2, 1, 128, 128), .flags = LSE },
	{ N("keys_352", 1, 20, 352, 2, 1, 128, 128), .flags = LSE },
	{ N("keys_1025", 1, 3, 1025, 2, 1, 128, 128), .flags = BOTH },
	/* so many results that another order of the sums would change at least one bit */
	{ N("keys_1500_rows_30", 1, 30, 1500, 4, 2, 128, 128), .flags = LSE | F16 },
	{ N("group_17", 2, 9, 97, 17, 1, 128, 128), .flags = BOTH },
	{ N("kv_heads_7", 2, 40, 97, 7, 7, 64, 64), .flags = BOTH },
	{ N("logits_any", 2, 40, 97, 4, 2, 128, 128), .flags = BOTH, .logits = ANY },
	{ N("logits_equal", 2, 3, 97, 4, 2, 112, 80), .flags = BOTH, .logits = EQUAL },
	{ N("logits_one_dominates", 2, 40, 97, 4, 2, 128, 128), .flags = BOTH, .logits = TOP },
	{ N("logits_below_minus_5e4", 2, 1, 97, 4, 2, 128, 128), .flags = LSE, .logits = NEGATIVE },
	{ N("logits_below_minus_5e4_f16", 2, 140, 192, 4, 2, 64, 64), .flags = BOTH | F16,
		.logits = NEGATIVE },
	{ N("logits_huge", 2, 1, 97, 4, 2, 128, 128), .flags = LSE, .logits = HUGE_LOGITS },
	{ N("logits_huge_f16", 2, 40, 97, 4, 2, 192, 128), .flags = LSE | F16, .logits = HUGE_LOGITS },
	{ N("values_near_largest", 2, 3, 97, 4, 2, 128, 128), .flags = BOTH, .logits = LARGE_V },
	{ N("values_near_largest_f16", 2, 40, 97, 4, 2, 64, 96), .flags = BOTH | F16, .logits = LARGE_V },
	{ N("values_subnormal_f16", 2, 3, 97, 4, 2, 64, 64), .flags = BOTH | F16, .logits = TINY_V },
	{ N("nan_in_a_query", 3, 40, 60, 6, 2, 128, 128), .flags = BOTH, .logits = NAN_Q },
	{ N("nan_in_a_key", 3, 40, 60, 6, 2, 80, 128), .flags = LSE | F16, .logits = NAN_K },
	{ N("nan_in_a_value", 3, 40, 60, 6, 2, 128, 80), .flags = LSE, .logits = NAN_V },
	{ N("nan_in_a_value_causal", 3, 40, 60, 6, 2, 64, 64), .flags = BOTH, .logits = NAN_V },
	/* windows of one key, less than a tile, a tile, one key more than a tile, more than all keys */
	{ N("window_1", 1, 150, 150, 4, 2, 128, 128), .flags = BOTH, .window = 1 },
	{ N("window_33", 1, 300, 300, 2, 1, 128, 128), .flags = BOTH, .window = 33 },
	{ N("window_127", 1, 257, 290, 2, 1, 128, 128), .flags = BOTH, .window = 127 },
	{ N("window_128", 1, 257, 290, 2, 1, 128, 128), .flags = BOTH | F16, .window = 128 },
	{ N("window_129_d256", 1, 260, 515, 2, 1, 256, 256), .flags = BOTH, .window = 129 },
	{ N("window_without_causal", 2, 70, 190, 4, 2, 64, 64), .flags = LSE, .window = 40 },
	{ N("window_wider_than_keys", 3, 20, 90, 4, 2, 96, 96), .flags = BOTH, .window = 1000 },
	{ N("window_largest", 2, 40, 90, 4, 2, 128, 128), .flags = BOTH, .window = 0x7fffffff },
	{ N("window_queries_without_keys", 2, 90, 50, 4, 2, 128, 128), .flags = BOTH, .window = 20 },
	{ N("window_mixed", 6, 1, 1, 8, 2, 128, 128), .flags = BOTH | PAGED_PADDED, .window = 48,
		.qo_lens = LENS(1, 70, 1, 17, 3, 1), .kv_lens = LENS(300, 170, 33, 54, 3, 1) },
	{ N("keys_past_2e16", 1, 1, 66100, 1, 1, 64, 64), .flags = LSE, .window = 65590 },
	/* caps: Gemma's 50, caps that saturate all logits, caps almost without effect */
	{ N("cap_50_d256", 1, 90, 97, 4, 2, 256, 256), .flags = BOTH, .cap = 50 },
	{ N("cap_1", 2, 70, 150, 4, 2, 128, 128), .flags = BOTH, .cap = 1 },
	{ N("cap_small", 1, 90, 97, 4, 2, 64, 64), .flags = BOTH | F16, .cap = 0.05f },
	{ N("cap_large", 2, 3, 97, 4, 2, 128, 128), .flags = BOTH, .cap = 1e4f },
	{ N("cap_50_logits_any", 2, 40, 97, 4, 2, 64, 64), .flags = BOTH, .logits = ANY, .cap = 50 },
	{ N("cap_50_below_minus_5e4", 2, 40, 97, 4, 2, 64, 64), .flags = BOTH | F16, .logits = NEGATIVE,
		.cap = 50 },
	/* so many keys that an implementation may split them and merge results of capped logits */
	{ N("cap_30_keys_1100", 2, 3, 1100, 4, 2, 64, 64), .flags = BOTH, .cap = 30 },
	{ N("cap_30_keys_700_prefill", 1, 70, 700, 4, 2, 128, 128), .flags = LSE | F16, .cap = 30 },
	{ N("cap_5_window_600_keys_1300", 1, 5, 1300, 4, 1, 64, 64), .flags = BOTH, .cap = 5, .window = 600 },
	{ N("cap_50_window_40", 2, 90, 150, 4, 2, 256, 256), .flags = BOTH, .window = 40, .cap = 50 },
	/* a share of the device */
	{ N("sms_1", 3, 70, 150, 4, 2, 128, 128), .flags = BOTH, .sms = 1 },
	{ N("sms_24", 5, 140, 200, 8, 2, 64, 64), .flags = BOTH | PAGED_RAGGED, .sms = 24 },
	/* offsets that do not fit 32 bits */
	{ N("far_q", 1, 3, 40, 4, 2, 64, 64), .flags = LSE | FAR_Q },
	{ N("far_k", 1, 3, 3, 4, 2, 64, 64), .flags = BOTH | FAR_K },
	{ N("far_v", 1, 3, 3, 4, 2, 64, 64), .flags = BOTH | FAR_V | F16 },
	{ N("far_k_heads", 1, 3, 3, 3, 3, 64, 64), .flags = BOTH | FAR_K, .layout = HEADS_FIRST },
	{ N("far_v_heads", 1, 3, 3, 3, 3, 64, 64), .flags = BOTH | FAR_V, .layout = HEADS_FIRST },
	/* only the last three rows see a key */
	{ N("rows_past_2_gi_elements", 1, 65540, 3, 128, 2, 256, 256), .flags = CAUSAL | LSE | FAR_OUT },
	/* too large for host implementations */
	{ N("large_4224", 1, 4224, 4224, 8, 2, 128, 128), .flags = LSE | DEVICE },
	{ N("large_mixed", 40, 700, 3000, 16, 4, 128, 128), .flags = BOTH | DEVICE | PAGED_RAGGED },
	{ N("large_mixed_192_128", 12, 900, 900, 16, 16, 192, 128), .flags = BOTH | DEVICE | PAGED_RAGGED },
	{ N("large_window_d256", 5, 700, 3000, 8, 4, 256, 256), .flags = BOTH | DEVICE | PAGED_RAGGED,
		.window = 1024, .cap = 50 },
	{ N("large_short_requests", 1000, 5, 90, 32, 8, 128, 128), .flags = BOTH | DEVICE | PAGED_RAGGED },
	/* so many keys that an implementation may choose other tiles */
	{ N("keys_8203", 1, 70, 8203, 2, 1, 128, 128), .flags = BOTH },
	/* bench rows: bytes are those of K, V, q and out */
	{ N("h16_d128_b16_s1024_causal_bf16", 16, 1024, 1024, 16, 16, 128, 128), .flags = BENCH_CAUSAL },
	/* FlashAttention against standard attention; the last is GPT-2 medium */
	{ N("h16_d64_b32_s512_bf16", 32, 512, 512, 16, 16, 64, 64), .flags = BENCH | DEVICE },
	{ N("h16_d64_b16_s1024_bf16", 16, 1024, 1024, 16, 16, 64, 64), .flags = BENCH | DEVICE },
	{ N("h16_d64_b8_s2048_bf16", 8, 2048, 2048, 16, 16, 64, 64), .flags = BENCH | DEVICE },
	{ N("h16_d64_b64_s1024_causal_bf16", 64, 1024, 1024, 16, 16, 64, 64), .flags = BENCH_CAUSAL },
	{ N("h16_d128_b4_s4096_causal_bf16", 4, 4096, 4096, 16, 16, 128, 128), .flags = BENCH_CAUSAL },
	{ N("h16_d128_b1_s16384_causal_bf16", 1, 16384, 16384, 16, 16, 128, 128), .flags = BENCH_CAUSAL },
	{ N("h16_d128_b4_s4096_bf16", 4, 4096, 4096, 16, 16, 128, 128), .flags = BENCH | DEVICE },
	{ N("h16_d128_b1_s16384_bf16", 1, 16384, 16384, 16, 16, 128, 128), .flags = BENCH | DEVICE },
	{ N("h32_8_d128_b4_s4096_causal_bf16", 4, 4096, 4096, 32, 8, 128, 128), .flags = BENCH_CAUSAL },
	{ N("h32_d64_b4_s4096_causal_bf16", 4, 4096, 4096, 32, 32, 64, 64), .flags = BENCH_CAUSAL },
	{ N("h32_d64_b1_s16384_bf16", 1, 16384, 16384, 32, 32, 64, 64), .flags = BENCH | DEVICE },
	{ N("h8_d256_b4_s4096_causal_bf16", 4, 4096, 4096, 8, 8, 256, 256), .flags = BENCH_CAUSAL },
	{ N("h8_d256_b1_s16384_bf16", 1, 16384, 16384, 8, 8, 256, 256), .flags = BENCH | DEVICE },
	{ N("h16_d192_128_b1_s8192_causal_bf16", 1, 8192, 8192, 16, 16, 192, 128), .flags = BENCH_CAUSAL },
	{ N("h32_d80_b4_s4096_causal_bf16", 4, 4096, 4096, 32, 32, 80, 80), .flags = BENCH_CAUSAL },
};

/* added later: the cases before them keep their numbers */
static const struct shape last[] = {
	{ N("stairs", 2, 70, 700, 4, 4, 64, 64), .flags = BOTH, .logits = STAIRS },
	{ N("stairs_few_rows", 2, 3, 1500, 4, 4, 128, 128), .flags = BOTH, .logits = STAIRS },
	{ N("stairs_f16", 2, 70, 700, 4, 4, 64, 64), .flags = BOTH | F16, .logits = STAIRS },
	{ N("stairs_d256", 2, 40, 400, 4, 4, 256, 256), .flags = BOTH, .logits = STAIRS },
	{ N("stairs_cap_50", 2, 70, 700, 4, 4, 64, 64), .flags = BOTH, .logits = STAIRS, .cap = 50 },
	{ N("masked_above_all", 3, 70, 150, 4, 2, 128, 128), .flags = BOTH, .logits = EDGES },
	{ N("masked_above_all_window", 3, 70, 190, 4, 2, 64, 64), .flags = BOTH | F16, .logits = EDGES,
		.window = 48 },
	{ N("last_key_decides_4097", 1, 2, 4097, 2, 1, 64, 64), .flags = BOTH, .logits = EDGES },
	{ N("batch_96_with_holes", 96, 2, 130, 2, 1, 64, 64), .flags = BOTH, .kv_lens = LENS(ATTN_HOLES_96) },
	{ N("batch_2100", 2100, 2, 5, 2, 1, 64, 64), .flags = BOTH | PAGED_RAGGED },
	/* only one stride is not 0 */
	{ N("k_stride_alone", 2, 9, 40, 4, 2, 64, 64), .flags = BOTH, .layout = LONE_K },
	{ N("v_stride_alone", 2, 9, 40, 4, 2, 64, 64), .flags = BOTH, .layout = LONE_V },
	{ N("k_head_stride_alone", 2, 9, 40, 4, 2, 64, 64), .flags = BOTH, .layout = LONE_K_HEAD },
	{ N("v_head_stride_alone", 2, 9, 40, 4, 2, 64, 64), .flags = BOTH, .layout = LONE_V_HEAD },
	/* a tile that also has rows without keys: their positions precede the first key */
	{ N("window_rows_without_keys", 1, 9, 4, 1, 1, 64, 64), .flags = BOTH, .window = 2 },
	{ N("window_rows_without_keys_93", 2, 93, 50, 4, 2, 128, 128), .flags = BOTH, .window = 20 },
	{ N("window_rows_without_keys_all", 2, 93, 50, 4, 2, 128, 128), .flags = LSE, .window = 20 },
	/* windows of the rows of a tile begin on both sides of 256, 512 and 1024 keys */
	{ N("window_80_of_600", 1, 16, 600, 2, 2, 64, 64), .flags = BOTH, .window = 80 },
	{ N("window_61_of_1100", 1, 430, 1100, 1, 1, 64, 64), .flags = BOTH, .window = 61 },
	{ N("window_59_of_1100_group_3", 1, 150, 1100, 3, 1, 64, 64), .flags = BOTH | F16, .window = 59 },
	{ N("window_1_of_1100_d256", 1, 120, 1100, 1, 1, 256, 256), .flags = LSE, .window = 1 },
	{ N("rows_257", 1, 257, 257, 1, 1, 64, 64), .flags = BOTH },
	{ N("rows_190_window_cap", 3, 190, 190, 2, 2, 64, 64), .flags = BOTH | F16, .window = 60, .cap = 3,
		.qo_lens = LENS(190, 7, 0), .kv_lens = LENS(190, 0, 95) },
	{ N("rows_321_of_groups_of_3", 1, 107, 130, 3, 1, 64, 64), .flags = BOTH },
	{ N("group_6", 2, 5, 20, 6, 1, 64, 64), .flags = BOTH },
	{ N("group_7", 1, 5, 20, 14, 2, 64, 80), .flags = BOTH | F16 },
	{ N("group_9", 1, 5, 20, 9, 1, 128, 64), .flags = LSE },
	{ N("group_12", 1, 3, 20, 24, 2, 64, 64), .flags = BOTH },
	{ N("heads_130", 1, 2, 9, 130, 130, 64, 64), .flags = BOTH },
	{ N("heads_260_of_2", 1, 2, 9, 260, 2, 64, 64), .flags = BOTH | F16 },
	/* keys past 2^16 that decide the result */
	{ N("last_key_decides_66100", 1, 1, 66100, 1, 1, 64, 64), .flags = LSE, .logits = EDGES },
	{ N("k_and_v_in_one_buffer", 2, 9, 40, 6, 2, 80, 64), .flags = BOTH, .layout = JOINED },
	{ N("v_is_k", 2, 9, 40, 6, 2, 64, 64), .flags = LSE | F16, .layout = SAME },
	{ N("group_33_cap_window", 2, 3, 97, 33, 1, 64, 64), .flags = BOTH, .window = 40, .cap = 3 },
	/* numbers of SMs that are odd, or no divisor of the work */
	{ N("sms_3", 1, 17, 40, 10, 5, 64, 64), .flags = BOTH, .sms = 3 },
	{ N("sms_5_of_7", 2, 20, 50, 7, 7, 64, 64), .flags = LSE, .sms = 5 },
	{ N("sms_7_one_row", 1, 1, 700, 2, 1, 64, 64), .flags = BOTH, .sms = 7 },
	/* many keys of similar weight: errors of independent roundings cancel, others do not (bias.c) */
	{ N("even_weights", 2, 9, 1100, 4, 2, 128, 128), .flags = LSE, .scale = 0.02f, .roundings = 4 },
	{ N("even_weights_prefill", 1, 70, 700, 1, 1, 64, 64), .flags = LSE | F16, .scale = 0.03f,
		.roundings = 4 },
	{ N("even_weights_cap", 1, 70, 700, 1, 1, 128, 64), .flags = LSE, .scale = 0.02f, .cap = 5,
		.roundings = 4 },
	/* many rows and many keys, of which those at the limits of a row's range decide */
	{ N("limits_2200", 1, 130, 2200, 1, 1, 64, 64), .flags = BOTH | F16, .logits = LIMITS },
	{ N("limits_4133_of_group_2", 1, 33, 4133, 2, 1, 128, 128), .flags = BOTH, .logits = LIMITS },
	{ N("limits_window_1024", 1, 66, 2180, 1, 1, 80, 64), .flags = BOTH, .logits = LIMITS,
		.window = 1024 },
	{ N("limits_window_128_d256", 1, 66, 1100, 1, 1, 256, 256), .flags = LSE | F16, .logits = LIMITS,
		.window = 128 },
};

#define NUM_LAST	((int)ARRAY_SIZE(last))
#define NUM_NAMED	((int)ARRAY_SIZE(named))
static const int dims[] = { 64, 80, 96, 112, 128, 192, 256 };
static const int lengths[][2] = { { 1, 54 }, { 17, 17 }, { 37, 97 }, { 70, 65 }, { 130, 211 } };
#define NUM_GRID	(7 * 7 * 5)
#define NUM_PAIRS	61
#define FIRST_ENDS	(NUM_NAMED + NUM_GRID + NUM_PAIRS + NUM_LAST)

#include "fused/attention/dense/attn_dense_draws.h"
#include "fused/attention/dense/attn_dense_pairs.h"

#define NUM_CASES	(FIRST_ENDS + NUM_ENDS)

static const struct cairn_draw_axis axes[] = {
	DENSE_DRAW_SIZES,
	CAIRN_DRAW_ONE_OF(struct shape, flags, LSE, 0),
	DENSE_DRAW_FORMS,
};

static int allowed(void *shape, int room)
{
	return dense_draw_fits(shape, room, 8000000);
}

static const struct cairn_draw draws = {
	.shape_bytes = sizeof(struct shape), .axes = axes, .num_axes = ARRAY_SIZE(axes),
	.allowed = allowed, .roomy = 8, .many = 4600,
};

static void shape_at(int index, struct shape *s)
{
	static const int heads[][2] = { { 4, 4 }, { 6, 2 }, { 3, 1 }, { 8, 2 }, { 5, 5 } };
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
	if (i >= NUM_GRID + NUM_PAIRS) {
		*s = last[i - NUM_GRID - NUM_PAIRS];
		return;
	}
	if (i >= NUM_GRID) {
		pair_at(i - NUM_GRID, s);
		return;
	}
	memset(s, 0, sizeof(*s));
	s->qk = dims[i % 7];
	s->v = dims[i / 7 % 7];
	s->qo = lengths[i / 49][0];
	s->kv = lengths[i / 49][1];
	s->batch = s->qo > 100 ? 1 : 1 + i % 3;
	h = (i + i / 7) % (s->qo > 100 ? 3 : 5);
	s->hq = heads[h][0];
	s->hkv = heads[h][1];
	s->layout = (i + i / 49) % NUM_LAYOUTS;
	s->q_gap = i % 7 < 3 ? 16 : 0;
	s->flags = (i % 3 != 1 ? CAUSAL : 0) | (i % 2 ? F16 : 0) | (i % 5 < 3 ? LSE : 0) |
		   (i % 3 ? PAGED_RAGGED : 0) | (i % 11 < 3 ? PAGED_PADDED : 0);
}

static void describe(int index, struct cairn_case *c)
{
	const unsigned far = FAR_Q | FAR_K | FAR_V | FAR_OUT;
	struct shape s;
	double pairs;

	shape_at(index, &s);
	if (s.pair)
		pair_name(&s, c->name, sizeof(c->name));
	else if (s.ends)
		ends_name(&s, c->name, sizeof(c->name));
	else if (s.name)
		snprintf(c->name, sizeof(c->name), "%s", s.name);
	else
		snprintf(c->name, sizeof(c->name), "b%d_qo%d_kv%d_h%d_%d_d%d_%d_%s_%s%s%s%s%s%s", s.batch,
			 s.qo, s.kv, s.hq, s.hkv, s.qk, s.v, layout_names[s.layout],
			 s.flags & F16 ? "f16" : "bf16",
			 s.flags & CAUSAL ? "_causal" : "", s.flags & LSE ? "_lse" : "",
			 s.q_gap ? "_gaps" : "", s.flags & PAGED_RAGGED ? "_ragged" : "",
			 s.flags & PAGED_PADDED ? "_padded" : "");
	c->bench = !!(s.flags & BENCH);
	c->device_only = !!(s.flags & DEVICE);
	c->far = !!(s.flags & far);
	c->roundings = s.roundings;
	if (s.name && s.logits)
		c->kinds = CAIRN_KIND_BIT(CAIRN_KIND_EXTREME);
	else if (s.ends || s.roundings || s.flags & (BENCH | DEVICE | far))
		c->kinds = CAIRN_KIND_BIT(CAIRN_KIND_NORMAL);
	else if (index >= NUM_CASES)
		c->kinds = CAIRN_ALL_KINDS & ~CAIRN_KIND_BIT(CAIRN_KIND_EXTREME);
	else if (s.pair)
		c->kinds = CAIRN_KIND_BIT(CAIRN_KIND_EXACT) | CAIRN_KIND_BIT(CAIRN_KIND_POISON);
	else if (s.name)
		c->kinds = CAIRN_KIND_BIT(CAIRN_KIND_NORMAL) | CAIRN_KIND_BIT(CAIRN_KIND_POISON);
	else
		c->kinds = CAIRN_KIND_BIT(index % 3) | CAIRN_KIND_BIT(CAIRN_KIND_POISON);
	pairs = (double)s.qo * s.kv;
	if (s.flags & CAUSAL)
		pairs = s.qo > s.kv ? 0.5 * s.kv * (s.kv + 1.0) : pairs - 0.5 * s.qo * (s.qo - 1.0);
	c->flops = 2.0 * s.batch * pairs * s.hq * (s.qk + s.v);
	c->bytes = 2.0 * s.batch * (s.qk + s.v) * ((double)s.kv * s.hkv + (double)s.qo * s.hq);
}

static void declare_out(struct cairn_op *op, const struct shape *s, int dtype, int64_t rows)
{
	int64_t row = (int64_t)s->hq * s->v;

	if (s->flags & FAR_OUT)
		cairn_out_rows(op, FIELD(out), dtype, (int32_t)rows, row);
	else
		cairn_out(op, FIELD(out), dtype, rows * row);
	cairn_shape(op, FIELD(out), { "row", rows }, { "head", s->hq }, { "dim", s->v });
	if (!(s->flags & LSE))
		return;
	if (s->flags & FAR_OUT)
		cairn_out_rows(op, FIELD(lse), CAIRN_F32, (int32_t)rows, s->hq);
	else
		cairn_out(op, FIELD(lse), CAIRN_F32, rows * s->hq);
	cairn_shape(op, FIELD(lse), { "row", rows }, { "head", s->hq });
}

static void setup(struct cairn_op *op)
{
	const struct cairn_attn_dense_args *a = op->args;
	struct shape s;

	shape_at(op->case_index, &s);
	declare_inputs(op, &s);
	declare_out(op, &s, a->dtype, a->nnz_qo);
}

static int relist(void *args)
{
	const struct cairn_attn_dense_args *a = args;

	return paged_drop_key_and_row(a->kv_indptr, a->qo_indptr, a->batch);
}

static const char *reject(void *args, int i, int *want)
{
	struct cairn_attn_dense_args *a = args;

	*want = i < 29 ? -EINVAL : -EOPNOTSUPP;
	switch (i) {
	case 0: a->size = 8; return "size_too_small";
	case 1: a->out = NULL; return "out_null";
	case 2: a->q = NULL; return "q_null";
	case 3: a->k = NULL; return "k_null";
	case 4: a->v = NULL; return "v_null";
	case 5: a->qo_indptr = NULL; return "qo_indptr_null";
	case 6: a->kv_indptr = NULL; return "kv_indptr_null";
	case 7: a->q = (const char *)a->q + 8; return "q_misaligned";
	case 8: a->k = (const char *)a->k + 2; return "k_misaligned";
	case 9: a->v = (const char *)a->v + 8; return "v_misaligned";
	case 10: a->out = (char *)a->out + 4; return "out_misaligned";
	case 11: a->batch = -1; return "batch_negative";
	case 12: a->nnz_kv = -1; return "nnz_kv_negative";
	case 13: a->max_kv_len = -1; return "max_kv_len_negative";
	case 14: a->num_kv_heads = 0; return "num_kv_heads_0";
	case 15: a->v_dim = 0; return "v_dim_0";
	case 16: a->sm_scale = 0; return "sm_scale_0";
	case 17: a->sm_scale = NAN; return "sm_scale_nan";
	case 18: a->q_stride = a->qk_dim - 8; return "q_stride_short";
	case 19: a->k_stride = a->qk_dim - 8; return "k_stride_short";
	case 20: a->v_stride = a->v_dim + 4; return "v_stride_odd";
	case 21: a->k_head_stride = a->qk_dim + 2; return "k_head_stride_odd";
	case 22: a->v_head_stride = a->v_dim - 8; return "v_head_stride_short";
	case 23: a->window = -1; return "window_negative";
	case 24: a->softcap = -1; return "softcap_negative";
	case 25: a->softcap = NAN; return "softcap_nan";
	case 26: a->sms = -1; return "sms_negative";
	case 27: a->nnz_qo = -1; return "nnz_qo_negative";
	case 28: a->max_qo_len = -1; return "max_qo_len_negative";
	case 29: a->dtype = CAIRN_F32; return "dtype_f32";
	case 30: a->qk_dim = 56; return "qk_dim_56";
	case 31: a->v_dim = 48; return "v_dim_48";
	case 32: a->num_qo_heads = 5; a->num_kv_heads = 2; return "heads_5_over_2";
	}
	return NULL;
}

static int exact(const void *args, struct cairn_exact *e)
{
	return cairn_attn_dense_exact(args, e);
}

static void pair_rows(struct cairn_test *t)
{
	cairn_pairs_check(t, &pair_table, NUM_PAIRS);
	cairn_pairs_check(t, &ends_table, NUM_ENDS);
}

static const struct cairn_unit units[] = { { "pair_rows", pair_rows } };

const struct cairn_family cairn_attn_dense_family = {
	.stage = "fused", .name = "attn_dense",
	.op = offsetof(struct cairn_impl, attn_dense),
	.workspace_op = offsetof(struct cairn_impl, attn_dense_workspace),
	.args_size = sizeof(struct cairn_attn_dense_args),
	.sms_field = offsetof(struct cairn_attn_dense_args, sms),
	.workspace_field = FIELD(workspace),
	.num_cases = NUM_CASES, .draw = &draws,
	.units = units, .num_units = ARRAY_SIZE(units),
	.company = {
		.rows = FIELD(nnz_qo), .requests = FIELD(batch), .indptr = FIELD(qo_indptr),
		.stride = FIELD(q_stride), .in = { FIELD(q) }, .out = { FIELD(out), FIELD(lse) },
		.keys = FIELD(kv_indptr),
	},
	.describe = describe,
	.setup = setup,
	.relist = relist,
	.exact = exact,
	.reject = reject,
	.cost_s = 20,
};
