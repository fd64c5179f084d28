// SPDX-License-Identifier: Apache-2.0
/*
 * attn_bsr_test - named cases, a grid of block sizes, pairs of features (attn_bsr_pairs.h), ends of tiles
 * (attn_bsr_ends.h), bench rows
 *
 * Parts are drawn by attn_bsr_inputs.h. The patterns of logits and values are those of attn_inputs.h, over
 * all slots of a part.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "conformance/harness.h"
#include "conformance/suite/draw.h"
#include "conformance/suite/pairs.h"
#include "fused/attention/bsr/attn_bsr.h"
#include "fused/attention/base/attn_inputs.h"
#include "fused/attention/base/attn_lengths.h"
#include "primitives/base/fp8.h"

#include "fused/attention/bsr/attn_bsr_inputs.h"

#define N(name_, tokens_, hq_, hkv_, dim_) \
	.name = name_, .tokens = tokens_, .hq = hq_, .hkv = hkv_, .dim = dim_
/* Parts: { block_m, block_n, keys, mask_mode, own, lens } */
#define PARTS(...)	.part = { __VA_ARGS__ }

static const struct shape named[] = {
	/* N(name, tokens, query heads, KV heads, head_dim), PARTS({ block_m, block_n, keys, mask }, ...) */
	{ N("one_key", 1, 1, 1, 64), PARTS({ 1, 1, 1 }), .flags = LSE | WHOLE },
	{ N("no_tokens", 0, 4, 2, 64), PARTS({ 1, 16, 40 }), .flags = LSE },
	{ N("no_rows", 7, 4, 2, 64), PARTS({ 4, 16, 40 }), .flags = LSE | NO_ROWS },
	{ N("no_keys", 7, 4, 2, 128), PARTS({ 4, 16, 0 }), .flags = LSE },
	{ N("second_part_empty", 20, 4, 2, 64), PARTS({ 4, 16, 60, 1 }, { 1, 1, 0 }), .flags = LSE },
	{ N("first_part_empty", 20, 4, 2, 64), PARTS({ 4, 16, 0 }, { 20, 8, 90 }), .flags = LSE },
	{ N("fewer_tokens_than_nnz", 11, 4, 2, 64), PARTS({ 3, 16, 60, 1 }, { 1, 4, 9 }),
		.flags = LSE | RAGGED | PADDED },
	/* tokens that one part holds and another does not, in both directions */
	{ N("tokens_of_two_parts", 33, 4, 2, 64), PARTS({ 5, 16, 70 }, { 3, 8, 40 }),
		.flags = LSE | LEFT_OUT },
	{ N("tokens_of_three_parts", 60, 4, 2, 128), PARTS({ 7, 16, 50 }, { 4, 1, 33 }, { 60, 8, 90 }),
		.flags = LSE | LEFT_OUT | RAGGED | SHUFFLED },
	{ N("no_rows_in_part_1", 21, 4, 2, 64), PARTS({ 4, 16, 60 }, { 4, 16, 60 }, { 6, 8, 30 }),
		.flags = LSE | PART_1_EMPTY },
	{ N("one_row_of_all_tokens", 150, 2, 1, 64), PARTS({ 150, 16, 150, 1 }), .flags = LSE | WHOLE },
	{ N("rows_past_1024", 1030, 1, 1, 64), PARTS({ 1, 1, 3 }), .flags = LSE },
	{ N("list_of_1025", 2, 2, 1, 64), PARTS({ 1, 1, 1025 }), .flags = LSE | WHOLE },
	{ N("keys_past_2e16", 1, 1, 1, 64), PARTS({ 1, 16, 65600 }), .flags = LSE | WHOLE | REPEATED },
	{ N("group_17", 9, 17, 1, 128), PARTS({ 3, 16, 97, 1 }), .flags = LSE },
	/* a prefix that all requests share, followed by each request's own keys; four levels of prefixes */
	{ N("prefix_and_suffix", 24, 4, 2, 128), PARTS({ 24, 16, 192 }, { 1, 16, 40, 1 }),
		.flags = LSE | Q_POS | WHOLE },
	{ N("four_levels", 32, 4, 2, 64),
		PARTS({ 32, 16, 128 }, { 16, 16, 64 }, { 4, 16, 32 }, { 1, 8, 24, 1 }),
		.flags = LSE | WHOLE | F16 },
	/* draft tokens after a context, each of which sees its ancestors */
	{ N("tree_1", 1, 4, 2, 64), PARTS({ 1, 16, 64, 2 }), .flags = LSE | TREE | WHOLE },
	{ N("tree_8", 8, 4, 2, 128), PARTS({ 8, 16, 64, 2 }), .flags = LSE | TREE | WHOLE },
	{ N("tree_8_of_3_requests", 24, 4, 2, 128), PARTS({ 8, 16, 90, 2 }), .flags = LSE | TREE },
	{ N("tree_64", 64, 4, 2, 64), PARTS({ 64, 1, 200, 2 }), .flags = LSE | TREE | WHOLE | F16 },
	{ N("tree_40_causal_bits", 40, 2, 1, 64), PARTS({ 40, 16, 100, 3 }), .flags = LSE | TREE | WHOLE },
	/* each KV head, or each token, has its own choice of keys */
	{ N("top_32_of_each_head", 20, 8, 4, 64), PARTS({ 1, 1, 32 }), .flags = LSE | WHOLE | HEAD_LISTS },
	{ N("top_8_blocks_of_each_head", 12, 6, 3, 128), PARTS({ 4, 16, 128 }), .flags = LSE | HEAD_LISTS },
	{ N("window_5", 30, 4, 2, 64), PARTS({ 6, 16, 70, 1 }), .flags = LSE, .window = 5 },
	{ N("window_without_causal", 30, 4, 2, 64), PARTS({ 6, 16, 70 }), .flags = LSE, .window = 20 },
	{ N("window_of_two_parts", 30, 4, 2, 64), PARTS({ 30, 16, 70, 1 }, { 3, 8, 30, 1 }),
		.flags = LSE | Q_POS | POS0, .window = 25 },
	{ N("cap_30", 30, 4, 2, 256), PARTS({ 6, 16, 70, 1 }), .flags = LSE, .cap = 30 },
	{ N("fp8", 30, 4, 2, 128), PARTS({ 6, 16, 130, 1 }), .flags = LSE | FP8 | SCALES },
	{ N("fp8_f16_cap", 30, 4, 2, 64), PARTS({ 6, 64, 130, 1 }, { 1, 1, 20 }), .cap = 20,
		.flags = LSE | FP8 | SCALES | F16 },
	{ N("logits_any", 20, 4, 2, 128), PARTS({ 4, 16, 97, 1 }), .flags = LSE, .logits = ANY },
	{ N("logits_equal", 20, 4, 2, 64), PARTS({ 4, 16, 97, 1 }), .flags = LSE, .logits = EQUAL },
	{ N("logits_one_dominates", 20, 4, 2, 64), PARTS({ 4, 16, 97 }, { 2, 8, 30 }), .flags = LSE,
		.logits = TOP },
	{ N("logits_below_minus_5e4", 20, 4, 2, 64), PARTS({ 4, 16, 97 }, { 2, 8, 30 }), .flags = LSE | F16,
		.logits = NEGATIVE },
	{ N("logits_huge", 20, 4, 2, 64), PARTS({ 4, 16, 97 }, { 2, 8, 30 }), .flags = LSE,
		.logits = HUGE_LOGITS },
	{ N("values_near_largest", 20, 4, 2, 64), PARTS({ 4, 16, 97, 1 }), .flags = LSE, .logits = LARGE_V },
	{ N("values_subnormal_f16", 20, 4, 2, 64), PARTS({ 4, 16, 97, 1 }), .flags = LSE | F16,
		.logits = TINY_V },
	{ N("nan_in_a_query", 20, 6, 2, 64), PARTS({ 4, 16, 40, 1 }, { 20, 16, 20 }), .flags = LSE | WHOLE,
		.logits = NAN_Q },
	{ N("nan_in_a_key", 20, 6, 2, 64), PARTS({ 4, 16, 40, 1 }, { 20, 16, 20 }), .flags = LSE | WHOLE,
		.logits = NAN_K },
	{ N("nan_in_a_value", 20, 6, 2, 128), PARTS({ 5, 1, 40, 1 }), .flags = LSE | WHOLE, .logits = NAN_V },
	{ N("sms_1", 30, 4, 2, 64), PARTS({ 6, 16, 70, 1 }, { 30, 64, 100 }), .flags = LSE, .sms = 1 },
	{ N("sms_24", 60, 4, 2, 64), PARTS({ 6, 16, 300, 1 }), .flags = LSE | RAGGED, .sms = 24 },
	/* the second block begins past 2^31 elements, the third past 2^32; so do the heads */
	{ N("far_blocks", 3, 4, 2, 64), PARTS({ 1, 4, 12 }), .flags = LSE | FAR_KV | WHOLE },
	{ N("far_heads", 3, 3, 3, 64), PARTS({ 1, 4, 12 }), .flags = LSE | FAR_KV | WHOLE,
		.layout = HEADS_FIRST },
	{ N("far_bits", 30, 4, 2, 64), PARTS({ 10, 16, 40, 2 }), .flags = LSE | FAR_BITS },
	{ N("far_q", 3, 4, 2, 64), PARTS({ 1, 4, 12 }), .flags = LSE | FAR_Q | WHOLE },
	/* too large for host implementations */
	{ N("large_pages", 4096, 32, 8, 128), PARTS({ 512, 16, 4096, 1 }), .flags = LSE | DEVICE | RAGGED },
	{ N("large_tree", 2048, 32, 8, 128), PARTS({ 64, 16, 2000, 2 }), .flags = LSE | DEVICE | TREE },
	{ N("large_top_k_of_heads", 256, 32, 8, 128), PARTS({ 1, 1, 2048 }),
		.flags = LSE | DEVICE | HEAD_LISTS },
	{ N("large_prefix", 128, 32, 8, 128), PARTS({ 128, 16, 8192 }, { 1, 16, 512, 1 }),
		.flags = LSE | DEVICE | Q_POS },
	/*
	 * bench rows: bytes are those of q, out, and the listed blocks, once for each row that lists them.
	 * The lists of a case name the same blocks: with 4096 keys these are 17 MB, which fit the L2.
	 */
	{ N("page1_h32_8_b64_kv4096_bf16", 64, 32, 8, 128), PARTS({ 1, 1, 4096 }),
		.flags = BENCH | DEVICE | WHOLE },
	{ N("page16_h32_8_b64_kv4096_bf16", 64, 32, 8, 128), PARTS({ 1, 16, 4096 }),
		.flags = BENCH | DEVICE | WHOLE },
	{ N("page16_h32_8_b64_kv4096_fp8", 64, 32, 8, 128), PARTS({ 1, 16, 4096 }),
		.flags = BENCH | DEVICE | WHOLE | FP8 | SCALES },
	{ N("prefix32768_suffix128_h32_8_b64_bf16", 64, 32, 8, 128), PARTS({ 64, 16, 32768 }, { 1, 16, 128 }),
		.flags = BENCH | DEVICE | WHOLE },
	{ N("tree64_h32_8_b16_kv4096_bf16", 1024, 32, 8, 128), PARTS({ 64, 16, 4096, 2 }),
		.flags = BENCH | DEVICE | WHOLE | TREE },
	{ N("quest16_h32_b1_s4096_keys1024_bf16", 4096, 32, 32, 128), PARTS({ 128, 16, 1024 }),
		.flags = BENCH | DEVICE | WHOLE | HEAD_LISTS },
	{ N("page16_h32_8_b4_s4096_causal_bf16", 16384, 32, 8, 128), PARTS({ 4096, 16, 4096, 1 }),
		.flags = BENCH | DEVICE | WHOLE },
};

static const int sizes[] = { 1, 3, 16, 64, 128 };

#define EIGHT(n)	n, n + 1, n + 2, n + 3, n + 4, n + 5, n + 6, n + 7
static const int ends_of_8[] = { EIGHT(9) };
static const int ends_of_16[] = { EIGHT(113), EIGHT(121) };
static const int ends_of_32[] = { EIGHT(97), EIGHT(105), EIGHT(113), EIGHT(121) };

/* added later: the cases before them keep their numbers */
static const struct shape later[] = {
	{ N("stairs", 12, 8, 8, 64), PARTS({ 4, 16, 700, 1 }), .flags = LSE | WHOLE, .logits = STAIRS },
	{ N("stairs_of_single_keys", 4, 8, 8, 128), PARTS({ 1, 1, 900 }), .flags = LSE | WHOLE,
		.logits = STAIRS },
	{ N("stairs_f16_two_parts", 12, 8, 8, 64), PARTS({ 12, 64, 500 }, { 2, 16, 300 }),
		.flags = LSE | F16 | WHOLE, .logits = STAIRS },
	{ N("stairs_cap_50", 12, 8, 8, 64), PARTS({ 12, 16, 700 }), .flags = LSE | WHOLE, .logits = STAIRS,
		.cap = 50 },
	{ N("masked_above_all_bits", 40, 4, 2, 64), PARTS({ 8, 16, 90, 2 }), .flags = LSE, .logits = TOP },
	{ N("masked_above_all_causal", 40, 4, 2, 64), PARTS({ 40, 8, 64, 1 }), .flags = LSE | WHOLE | F16,
		.logits = TOP },
	{ N("masked_above_all_window", 40, 4, 2, 64), PARTS({ 40, 8, 90, 1 }), .flags = LSE | WHOLE,
		.logits = TOP, .window = 20 },
	/* lines of bits of the same size, which relist() exchanges */
	{ N("tree_8_of_3_requests_whole", 24, 2, 1, 64), PARTS({ 8, 16, 50, 2 }),
		.flags = LSE | TREE | WHOLE },
	/* only one stride is not 0 */
	{ N("block_stride_alone", 20, 4, 2, 64), PARTS({ 4, 16, 60, 1 }), .flags = LSE,
		.layout = LONE_BLOCK },
	{ N("slot_stride_alone", 20, 4, 2, 64), PARTS({ 4, 16, 60, 1 }), .flags = LSE, .layout = LONE_SLOT },
	{ N("window_largest", 30, 4, 2, 64), PARTS({ 6, 16, 70, 1 }), .flags = LSE, .window = 0x7fffffff },
	{ N("window_largest_less_12", 30, 4, 2, 64), PARTS({ 6, 16, 70 }, { 1, 1, 20 }), .flags = LSE | Q_POS,
		.window = 0x7fffffff - 12 },
	{ N("blocks_of_one_row_and_of_all", 12, 4, 2, 64), PARTS({ 4, 16, 150, 1, 40 }, { 1, 8, 60, 0, 60 }),
		.flags = LSE },
	/*
	 * requests that share no keys, with more keys than the L2 holds; in pages of one slot, and in one
	 * block
	 */
	{ N("own_page1_h32_8_b16_kv4096_bf16", 16, 32, 8, 128), PARTS({ 1, 1, 4096, 0, 4096 }),
		.flags = BENCH | DEVICE | WHOLE },
	{ N("own_contiguous_h32_8_b16_kv4096_bf16", 16, 32, 8, 128), PARTS({ 1, 4096, 4096, 0, 4096 }),
		.flags = BENCH | DEVICE | WHOLE },
	/* the same with equal and with unequal lengths; attn_paged has these cases, too */
	{ N("own_page16_h32_8_b16_kv1024_bf16", 16, 32, 8, 128), PARTS({ 1, 16, 1024, 0, 1024 }),
		.flags = BENCH | DEVICE | WHOLE },
	{ N("own_page16_h32_8_b16_uniform_bf16", 16, 32, 8, 128),
		PARTS({ 1, 16, 1024, 0, 1024, (const int[]){ ATTN_UNIFORM_16 } }),
		.flags = BENCH | DEVICE | WHOLE },
	{ N("own_page16_h32_8_b16_zipf_bf16", 16, 32, 8, 128),
		PARTS({ 1, 16, 8192, 0, 8192, (const int[]){ ATTN_ZIPF_16 } }),
		.flags = BENCH | DEVICE | WHOLE },
	/* samples of one prompt: a part of the prompt and one of the answers, or one list a sample of both */
	{ N("prefix4096_suffix128_h32_8_b4_bf16", 4, 32, 8, 128),
		PARTS({ 4, 16, 4096 }, { 1, 16, 128, 0, 128 }), .flags = BENCH | DEVICE | WHOLE },
	{ N("one_list_prefix4096_suffix128_h32_8_b4_bf16", 4, 32, 8, 128),
		PARTS({ 1, 16, 4224, 0, 128 }), .flags = BENCH | DEVICE | WHOLE },
	{ N("one_list_prefix32768_suffix128_h32_8_b64_bf16", 64, 32, 8, 128),
		PARTS({ 1, 16, 32896, 0, 128 }), .flags = BENCH | DEVICE | WHOLE },
	/* blocks that are copied in boxes of 8 to 128 slots, or by threads; last blocks of 1 .. all slots */
	{ N("ends_of_blocks_of_8", 8, 4, 2, 128), PARTS({ 1, 8, 16, 0, 0, ends_of_8 }),
		.flags = LSE | WHOLE },
	{ N("ends_of_blocks_of_16", 16, 2, 1, 64), PARTS({ 1, 16, 128, 0, 0, ends_of_16 }),
		.flags = LSE | WHOLE | F16 },
	{ N("ends_of_blocks_of_32", 32, 2, 1, 128), PARTS({ 1, 32, 128, 0, 0, ends_of_32 }),
		.flags = LSE | WHOLE },
	{ N("ends_of_blocks_of_32_fp8_f16", 32, 2, 1, 64), PARTS({ 1, 32, 128, 0, 0, ends_of_32 }),
		.flags = LSE | WHOLE | FP8 | SCALES | F16 },
	{ N("ends_of_blocks_of_8_fp8", 8, 4, 2, 256), PARTS({ 1, 8, 16, 0, 0, ends_of_8 }),
		.flags = LSE | WHOLE | FP8 },
	{ N("blocks_of_8_gaps", 30, 4, 2, 128), PARTS({ 6, 8, 270, 1 }), .flags = LSE, .layout = GAPS },
	{ N("blocks_of_8_heads_first_f16", 30, 6, 3, 64), PARTS({ 6, 8, 270 }), .flags = LSE | F16,
		.layout = HEADS_FIRST },
	{ N("blocks_of_12", 30, 4, 2, 128), PARTS({ 6, 12, 270, 1 }), .flags = LSE },
	{ N("blocks_of_24", 30, 4, 2, 128), PARTS({ 6, 24, 270, 1 }), .flags = LSE },
	{ N("blocks_of_24_gaps_fp8", 30, 4, 2, 128), PARTS({ 6, 24, 270, 1 }),
		.flags = LSE | FP8 | SCALES | RAGGED, .layout = GAPS },
	{ N("blocks_of_24_d256", 30, 4, 2, 256), PARTS({ 6, 24, 270 }), .flags = LSE | F16 },
	{ N("blocks_of_32_heads_first_d256", 30, 4, 2, 256), PARTS({ 6, 32, 270, 1 }), .flags = LSE,
		.layout = HEADS_FIRST },
	{ N("blocks_of_32_heads_first_fp8", 30, 6, 3, 256), PARTS({ 6, 32, 270, 1 }), .flags = LSE | FP8,
		.layout = HEADS_FIRST },
	{ N("blocks_of_64_gaps", 30, 4, 2, 64), PARTS({ 6, 64, 300, 1 }), .flags = LSE, .layout = GAPS },
	{ N("blocks_of_64_fp8", 30, 4, 2, 128), PARTS({ 6, 64, 300, 1 }), .flags = LSE | FP8 | SCALES },
	{ N("blocks_of_128_heads_first", 30, 4, 2, 128), PARTS({ 6, 128, 400, 1 }), .flags = LSE,
		.layout = HEADS_FIRST },
	{ N("blocks_of_128_d256", 30, 2, 1, 256), PARTS({ 6, 128, 400 }), .flags = LSE },
	{ N("blocks_of_384_fp8_f16", 20, 4, 2, 128), PARTS({ 4, 384, 900, 1 }), .flags = LSE | FP8 | F16 },
	/* the first key that the window admits lies within a box */
	{ N("window_in_blocks_of_64", 30, 4, 2, 128), PARTS({ 6, 64, 300, 1 }), .flags = LSE, .window = 37 },
	{ N("window_in_blocks_of_128_fp8", 30, 4, 2, 64), PARTS({ 6, 128, 400, 1 }), .flags = LSE | FP8,
		.window = 50 },
	/* boxes and threads in one call, with one CTA and with all */
	{ N("boxes_and_threads", 40, 4, 2, 128), PARTS({ 40, 64, 300 }, { 4, 1, 150 }, { 8, 24, 200, 1 },
		{ 2, 16, 90 }), .flags = LSE | Q_POS },
	{ N("boxes_and_threads_sms_1", 40, 4, 2, 64), PARTS({ 4, 1, 150 }, { 8, 32, 270, 1 }, { 2, 3, 90 },
		{ 40, 128, 300 }), .flags = LSE | Q_POS | F16, .sms = 1 },
	{ N("boxes_and_threads_fp8_sms_1", 40, 4, 2, 128), PARTS({ 4, 16, 150 }, { 8, 5, 270, 1 },
		{ 2, 8, 90 }, { 40, 128, 300 }), .flags = LSE | Q_POS | FP8 | SCALES, .sms = 1 },
	{ N("blocks_of_8_with_key_pos_and_bits", 40, 4, 2, 64), PARTS({ 4, 8, 300, 3 }, { 8, 32, 270, 1 }),
		.flags = LSE | Q_POS | KEY_POS | REPEATED },
	{ N("boxes_of_each_head", 20, 6, 3, 128), PARTS({ 4, 32, 400 }, { 20, 8, 90 }),
		.flags = LSE | HEAD_LISTS },
	/* blocks that lie far apart are copied in boxes, heads that lie far apart by threads */
	{ N("far_blocks_of_8", 3, 4, 2, 64), PARTS({ 1, 8, 24 }), .flags = LSE | FAR_KV | WHOLE },
	{ N("far_heads_of_blocks_of_8", 3, 3, 3, 64), PARTS({ 1, 8, 24 }), .flags = LSE | FAR_KV | WHOLE,
		.layout = HEADS_FIRST },
	/* boxes of 8 and 64 slots and threads, to compare with page16 and with attn_dense */
	{ N("page64_h32_8_b4_s4096_causal_bf16", 16384, 32, 8, 128), PARTS({ 4096, 64, 4096, 1 }),
		.flags = BENCH | DEVICE | WHOLE },
	{ N("page8_h32_8_b4_s4096_causal_bf16", 16384, 32, 8, 128), PARTS({ 4096, 8, 4096, 1 }),
		.flags = BENCH | DEVICE | WHOLE },
	{ N("page1_h32_8_b4_s4096_causal_bf16", 16384, 32, 8, 128), PARTS({ 4096, 1, 4096, 1 }),
		.flags = BENCH | DEVICE | WHOLE },
	{ N("own_page16_h32_8_b16_kv4096_bf16", 16, 32, 8, 128), PARTS({ 1, 16, 4096, 0, 4096 }),
		.flags = BENCH | DEVICE | WHOLE },
	{ N("own_page16_h32_8_b16_kv4096_fp8", 16, 32, 8, 128), PARTS({ 1, 16, 4096, 0, 4096 }),
		.flags = BENCH | DEVICE | WHOLE | FP8 | SCALES },
	/* windows of the rows of a tile begin on both sides of 256, 512 and 1024 keys */
	{ N("window_80_of_600", 16, 2, 2, 64), PARTS({ 16, 16, 600, 1 }), .flags = LSE | WHOLE,
		.window = 80 },
	{ N("window_61_of_1100", 430, 1, 1, 64), PARTS({ 430, 64, 1100, 1 }), .flags = LSE | WHOLE,
		.window = 61 },
	{ N("window_59_of_1100_group_3", 150, 3, 1, 64), PARTS({ 150, 1, 1100, 1 }),
		.flags = LSE | WHOLE | F16, .window = 59 },
	{ N("window_1_of_1100_fp8", 120, 1, 1, 128), PARTS({ 120, 8, 1100 }), .flags = LSE | WHOLE | FP8,
		.window = 1 },
	/* lines of bits longer than a tile of keys, or than 16 bits count */
	{ N("bits_of_1100_keys", 12, 4, 2, 64), PARTS({ 6, 16, 1100, 2 }), .flags = LSE },
	{ N("bits_of_66000_keys", 2, 1, 1, 64), PARTS({ 2, 64, 66000, 3 }), .flags = LSE | WHOLE | REPEATED },
	/* positions that do not fit 16 bits, or that are below 0 */
	{ N("positions_past_2e16", 30, 4, 2, 64), PARTS({ 6, 16, 70, 1 }, { 3, 8, 30, 1 }),
		.flags = LSE | Q_POS | POS0, .pos = 70000, .window = 25 },
	{ N("positions_past_2e16_of_keys", 30, 4, 2, 64), PARTS({ 6, 16, 70, 1 }),
		.flags = LSE | Q_POS | KEY_POS, .pos = 65500 },
	{ N("positions_past_2e30", 30, 4, 2, 64), PARTS({ 6, 16, 70, 1 }, { 3, 8, 30 }),
		.flags = LSE | Q_POS | KEY_POS, .pos = 0x7fffff00, .window = 40 },
	{ N("positions_below_0", 30, 4, 2, 64), PARTS({ 6, 16, 70, 1 }, { 3, 8, 30 }),
		.flags = LSE | Q_POS | POS0, .pos = -30, .window = 40 },
	{ N("positions_below_0_of_keys", 30, 4, 2, 64), PARTS({ 6, 16, 70, 1 }),
		.flags = LSE | Q_POS | KEY_POS, .pos = -50 },
	{ N("sms_3", 30, 5, 5, 64), PARTS({ 6, 16, 70, 1 }, { 30, 64, 100 }), .flags = LSE, .sms = 3 },
	{ N("without_lse", 20, 4, 2, 64), PARTS({ 4, 16, 60, 1 }), .flags = WHOLE },
	/* block rows of more tokens than a tile has, with bits; block rows that are larger than the call */
	{ N("bits_of_150_tokens", 150, 2, 1, 64), PARTS({ 150, 16, 90, 2 }), .flags = LSE | WHOLE },
	{ N("rows_larger_than_call", 20, 4, 2, 64), PARTS({ 64, 16, 60, 1 }, { 300, 8, 30 }),
		.flags = LSE | WHOLE },
	{ N("group_33_cap_window", 6, 33, 1, 64), PARTS({ 3, 16, 97, 1 }), .flags = LSE, .cap = 3,
		.window = 40 },
	/* many keys of similar weight: errors of independent roundings cancel, others do not (bias.c) */
	{ N("even_weights", 12, 8, 2, 128), PARTS({ 1, 16, 900 }),
		.flags = LSE | WHOLE, .scale = 0.02f, .roundings = 4 },
	{ N("even_weights_of_two_parts_f16", 64, 2, 1, 64), PARTS({ 64, 16, 300 }, { 1, 16, 300 }),
		.flags = LSE | WHOLE | F16, .scale = 0.03f, .roundings = 4 },
	/* more lists, and more units of a CTA, than the planner keeps in shared memory */
	{ N("units_past_2048_sms_1", 2100, 1, 1, 64), PARTS({ 1, 1, 3 }), .flags = LSE, .sms = 1 },
};

#define NUM_LATER	((int)ARRAY_SIZE(later))
#define NUM_NAMED	((int)ARRAY_SIZE(named))
#define NUM_GRID	25
#define NUM_PAIRS	41

#include "fused/attention/bsr/attn_bsr_pairs.h"

#include "fused/attention/bsr/attn_bsr_ends.h"

#define FIRST_ENDS	(NUM_NAMED + NUM_GRID + NUM_PAIRS + NUM_LATER)
#define FIRST_LISTS	(FIRST_ENDS + NUM_ENDS)
#define FIRST_BLOCKS	(FIRST_LISTS + NUM_LISTS)

#define NUM_CASES	(FIRST_BLOCKS + NUM_BLOCKS)

static const struct cairn_draw_axis axes[] = {
	CAIRN_DRAW_SIZE(struct shape, tokens, 1, 700, 1),
	CAIRN_DRAW_SIZE(struct shape, part[0].m, 1, 300, 1),
	CAIRN_DRAW_SIZE(struct shape, part[0].n, 1, 300, 1),
	CAIRN_DRAW_SIZE(struct shape, part[0].keys, 0, 5000, 1),
	CAIRN_DRAW_ONE_OF(struct shape, part[0].mode, 0, 1, 2, 3),
	CAIRN_DRAW_ONE_OF(struct shape, parts, 1, 1, 1, 2, 3, 4),
	CAIRN_DRAW_SIZE(struct shape, part[1].m, 1, 300, 1),
	CAIRN_DRAW_SIZE(struct shape, part[1].n, 1, 300, 1),
	CAIRN_DRAW_SIZE(struct shape, part[1].keys, 0, 500, 1),
	CAIRN_DRAW_ONE_OF(struct shape, part[1].mode, 0, 1, 2, 3),
	CAIRN_DRAW_SIZE(struct shape, hkv, 1, 20, 1),
	CAIRN_DRAW_SIZE(struct shape, hq, 1, 40, 1),	/* of a KV head, see allowed() */
	CAIRN_DRAW_ONE_OF(struct shape, dim, 64, 64, 128, 256),
	CAIRN_DRAW_SIZE(struct shape, window, 0, 2000, 1),
	CAIRN_DRAW_ONE_OF(struct shape, cap, 0, 0, 3),
	CAIRN_DRAW_ONE_OF(struct shape, layout, CONTIGUOUS, GAPS, HEADS_FIRST, LONE_BLOCK, LONE_SLOT),
	CAIRN_DRAW_ONE_OF(struct shape, q_gap, 0, 0, 8),
	CAIRN_DRAW_ONE_OF(struct shape, explicit_stride, 0, 1),
	CAIRN_DRAW_ONE_OF(struct shape, equal, 0, 1),
	CAIRN_DRAW_ONE_OF(struct shape, sms, 0, 0, 0, 1, 2, 24),
	CAIRN_DRAW_ONE_OF(struct shape, flags, 0, POS0, Q_POS, Q_POS | KEY_POS, Q_POS | POS0),
	CAIRN_DRAW_ONE_OF(struct shape, flags, 0, 0, 0, FP8, FP8 | SCALES, FP8 | K_SCALE, FP8 | V_SCALE),
	CAIRN_DRAW_ONE_OF(struct shape, flags, LSE, 0),
	CAIRN_DRAW_ONE_OF(struct shape, flags, 0, F16),
	CAIRN_DRAW_ONE_OF(struct shape, flags, 0, WHOLE),
	CAIRN_DRAW_ONE_OF(struct shape, flags, 0, HEAD_LISTS),
	CAIRN_DRAW_ONE_OF(struct shape, flags, 0, RAGGED),
	CAIRN_DRAW_ONE_OF(struct shape, flags, 0, SHUFFLED),
	CAIRN_DRAW_ONE_OF(struct shape, flags, 0, FULL_BLOCKS),
	CAIRN_DRAW_ONE_OF(struct shape, flags, 0, 0, REPEATED),
	CAIRN_DRAW_ONE_OF(struct shape, flags, 0, PADDED),
};

/*
 * Parts after the second one are like the first two with other blocks. With several, a window needs q_pos.
 * Where there is more room, most shapes have one part and few heads, but many rows with many keys.
 */
static int allowed(void *shape, int room)
{
	struct shape *s = shape;
	int64_t keys = 0, listed = 0, products, least = 0;

	s->pair = 1;
	s->hq *= s->hkv;
	s->window = s->window % 3 ? s->window : 0;
	if (room > 1 && s->tokens % 4) {
		s->parts = s->hkv = 1;
		s->hq = 1 + s->hq % 2;
		least = room * 4000000 / 6;
	}
	for (int i = 0; i < CAIRN_ATTN_PARTS; i++) {
		if (i >= 2)
			s->part[i] = s->part[i - 2];
		if (i >= 2)
			s->part[i].n += i;
		if (i >= s->parts) {
			s->part[i].m = 0;
			continue;
		}
		keys += s->part[i].keys + s->part[i].n;
		listed += (s->tokens / s->part[i].m + 3) * (int64_t)(s->part[i].keys / s->part[i].n + 2);
	}
	products = s->tokens * (keys + 16) * s->hq * s->dim;
	return products >= least && products <= room * 4000000 &&
	       keys * s->hkv * s->dim <= room * 500000 &&
	       listed * (s->flags & HEAD_LISTS ? s->hkv : 1) <= room * 30000 &&
	       !(s->parts > 1 && s->window && !(s->flags & Q_POS));
}

static const struct cairn_draw draws = {
	.shape_bytes = sizeof(struct shape), .axes = axes, .num_axes = ARRAY_SIZE(axes),
	.allowed = allowed, .many = 1900,
};

static void shape_at(int index, struct shape *s)
{
	int i = index - NUM_NAMED;

	if (i < 0) {
		*s = named[index];
	} else if (index >= NUM_CASES) {
		cairn_draw_shape(&draws, index - NUM_CASES, s);
	} else if (index >= FIRST_BLOCKS) {
		blocks_at(index - FIRST_BLOCKS, s);
	} else if (index >= FIRST_LISTS) {
		lists_at(index - FIRST_LISTS, s);
	} else if (index >= FIRST_ENDS) {
		ends_at(index - FIRST_ENDS, s);
	} else if (i >= NUM_GRID + NUM_PAIRS) {
		*s = later[i - NUM_GRID - NUM_PAIRS];
	} else if (i >= NUM_GRID) {
		pair_at(i - NUM_GRID, s);
	} else {
		memset(s, 0, sizeof(*s));
		s->part[0].m = sizes[i % 5];
		s->part[0].n = sizes[i / 5];
		s->part[0].keys = 40 + 11 * i;
		s->part[0].mode = i % 2;
		s->tokens = s->part[0].m > 16 ? 130 : 37;
		s->hq = 2 + 2 * (i % 3);
		s->hkv = 2;
		s->dim = i % 3 ? 64 : 128;
		s->layout = i % NUM_LAYOUTS;
		s->flags = (i % 4 < 2 ? F16 : 0) | LSE | (i % 3 == 1 ? RAGGED : 0) |
			   (i % 5 == 2 ? SHUFFLED : 0);
	}
	for (s->parts = 0; s->parts < CAIRN_ATTN_PARTS && s->part[s->parts].m; s->parts++)
		;
}

static void describe(int index, struct cairn_case *c)
{
	struct shape s;
	double pairs = 0, listed = 0;

	shape_at(index, &s);
	if (s.pair)
		pair_name(&s, c->name, sizeof(c->name));
	else if (s.ends)
		ends_name(&s, c->name, sizeof(c->name));
	else if (s.name)
		snprintf(c->name, sizeof(c->name), "%s", s.name);
	else
		snprintf(c->name, sizeof(c->name), "block_%dx%d_keys%d_h%d_%d_d%d_%s_%s%s%s%s", s.part[0].m,
			 s.part[0].n, s.part[0].keys, s.hq, s.hkv, s.dim, layout_names[s.layout],
			 s.flags & F16 ? "f16" : "bf16", s.part[0].mode ? "_causal" : "",
			 s.flags & RAGGED ? "_ragged" : "", s.flags & SHUFFLED ? "_shuffled" : "");
	c->bench = !!(s.flags & BENCH);
	c->device_only = !!(s.flags & DEVICE);
	c->roundings = s.roundings;
	c->far = !!(s.flags & (FAR_KV | FAR_Q | FAR_BITS));
	if (s.name && s.logits)
		c->kinds = CAIRN_KIND_BIT(CAIRN_KIND_EXTREME);
	else if (s.ends || s.roundings || s.flags & (BENCH | DEVICE | FAR_KV | FAR_Q | FAR_BITS))
		c->kinds = CAIRN_KIND_BIT(CAIRN_KIND_NORMAL);
	else if (s.name)
		c->kinds = CAIRN_KIND_BIT(CAIRN_KIND_NORMAL) | CAIRN_KIND_BIT(CAIRN_KIND_POISON);
	else
		c->kinds = CAIRN_KIND_BIT(CAIRN_KIND_EXACT) | CAIRN_KIND_BIT(CAIRN_KIND_POISON) |
			   (index >= NUM_CASES ? CAIRN_KIND_BIT(CAIRN_KIND_NORMAL) : 0);
	for (int i = 0; i < s.parts; i++) {
		double rows = ceil((double)s.tokens / s.part[i].m), keys = s.part[i].keys;

		if (s.part[i].lens) {		/* the mean of the lengths */
			keys = 0;
			for (int r = 0; r < (int)rows; r++)
				keys += s.part[i].lens[r] / rows;
		}
		listed += rows * keys;
		pairs += (double)s.tokens * keys;
		if (s.part[i].mode == CAIRN_ATTN_CAUSAL && s.part[i].m == keys)
			pairs -= 0.5 * rows * keys * (keys - 1);
	}
	c->flops = 4 * pairs * s.hq * s.dim;
	c->bytes = 2 * listed * s.hkv * s.dim * (s.flags & FP8 ? 1 : 2) + 4.0 * s.tokens * s.hq * s.dim;
}

#define FIELD(f)	offsetof(struct cairn_attn_bsr_args, f)

static void declare_out(struct cairn_op *op, const struct shape *s, int dtype, int64_t rows)
{
	cairn_out(op, FIELD(out), dtype, rows * s->hq * s->dim);
	cairn_shape(op, FIELD(out), { "row", rows }, { "head", s->hq }, { "dim", s->dim });
	if (s->flags & LSE) {
		cairn_out(op, FIELD(lse), CAIRN_F32, rows * s->hq);
		cairn_shape(op, FIELD(lse), { "row", rows }, { "head", s->hq });
	}
}

/* Declares q; its rows from `tokens` on, and gaps, are NaN. */
static void *declare_q(struct cairn_op *op, const struct shape *s, int dtype, int64_t rows, int64_t stride)
{
	int64_t row = (int64_t)s->hq * s->dim;
	void *q;

	if (s->flags & FAR_Q) {
		q = cairn_in_far(op, FIELD(q), dtype, (rows - 1) * stride + row);
		for (int64_t i = 0; i < rows; i++)
			cairn_touch(op, q, i * stride, row);
	} else {
		q = cairn_in(op, FIELD(q), dtype, rows * stride);
		cairn_fill_nan(q, dtype, 0, rows * stride);
	}
	for (int64_t i = 0; i < s->tokens; i++)
		cairn_fill(op, (char *)q + i * stride * (int64_t)cairn_dtype_bytes(dtype), dtype, row, 1);
	return q;
}

static void set_scalars(struct cairn_attn_bsr_args *a, const struct shape *s, int case_index)
{
	a->num_parts = s->parts;
	a->num_qo_heads = s->hq;
	a->num_kv_heads = s->hkv;
	a->head_dim = s->dim;
	a->dtype = s->flags & F16 ? CAIRN_F16 : CAIRN_BF16;
	a->kv_fp8 = !!(s->flags & FP8);
	a->window = s->window;
	a->softcap = s->cap;
	a->sms = s->sms;
	a->sm_scale = s->scale > 0 ? s->scale : case_index % 4 == 1 && !s->name ? 0.3f :
		      (float)(1 / sqrt(s->dim));
}

/* Gives a part's slots the pattern of the case. */
static void set_pattern(struct cairn_op *op, const struct shape *s, const struct part_inputs *p, void *q,
			int64_t q_stride, int logits, int first)
{
	struct cairn_attn_bsr_args *a = op->args;
	const int slots[] = { p->num_blocks * p->n, p->num_blocks * p->n }, none[] = { 0, 0 };
	struct attn_inputs in = {
		.op = op, .q = q, .k = p->k, .v = p->v, .q_stride = q_stride, .dtype = a->dtype,
		.rows = first ? s->tokens : 0, .batch = 1, .heads = s->hq, .kv_heads = s->hkv,
		.qk_dim = s->dim, .v_dim = s->dim, .qo_len = none, .kv_len = slots, .of = p,
		.k_at = slot_at, .v_at = slot_at,
	};

	if (s->flags & FP8)
		return;
	if (op->kind == CAIRN_KIND_EXACT) {
		attn_fill_exact(&in, s->equal);
		if (!s->equal)
			a->sm_scale = 0.25f;
	} else if (logits == STAIRS) {
		a->sm_scale = 1;
		attn_fill_stairs(&in, s->cap);
	} else if (logits == NAN_Q && first) {
		cairn_fill_nan(q, a->dtype, 5 * q_stride + s->dim, 1);
	} else if (logits == NAN_K && first) {
		cairn_fill_nan(p->k, a->dtype, p->some_key + s->dim - 1, 1);
	} else if (logits == NAN_V && first) {
		cairn_fill_nan(p->v, a->dtype, p->some_key + s->dim - 1, 1);
	} else if (logits == LARGE_V || logits == TINY_V) {
		attn_scale_values(&in, p->count, logits);
	} else if (logits >= EQUAL && logits < LARGE_V) {
		a->sm_scale = 1;
		attn_fill_logits(&in, logits);
	}
}

static void setup(struct cairn_op *op)
{
	struct cairn_attn_bsr_args *a = op->args;
	struct part_inputs parts[CAIRN_ATTN_PARTS];
	enum cairn_kind kind = op->kind;
	struct shape s;
	int64_t stride;
	void *q;

	shape_at(op->case_index, &s);
	set_scalars(a, &s, op->case_index);
	a->nnz_qo = s.tokens + (s.flags & PADDED ? 5 : 0);
	stride = s.flags & FAR_Q ? FAR_STRIDE : (int64_t)s.hq * s.dim + s.q_gap;
	a->q_stride = s.flags & FAR_Q || s.q_gap || s.explicit_stride ? stride : 0;
	declare_out(op, &s, a->dtype, a->nnz_qo);
	if (s.logits > ANY)
		op->kind = CAIRN_KIND_NORMAL;	/* for elements that the pattern does not overwrite */
	q = declare_q(op, &s, a->dtype, a->nnz_qo, stride);
	if (s.flags & Q_POS)
		declare_q_pos(op, &s, a->nnz_qo);
	for (int i = 0; i < s.parts; i++)
		declare_part(op, &s, i, &parts[i]);
	for (int i = 0; i < s.parts; i++)
		set_pattern(op, &s, &parts[i], q, stride, s.logits, i == 0);
	op->kind = kind;
}

/*
 * Exchanges the first two blocks of the list, and removes a key from its last block if that holds several.
 * Removes the last block of the last row's list.
 */
static int relist_row(const struct cairn_attn_part *p, int list, int row)
{
	int32_t *indptr = (int32_t *)(uintptr_t)p->blk_indptr + list * (p->rows + 1) + row;
	int32_t *ids = (int32_t *)(uintptr_t)p->blk_indices + indptr[0], blocks = indptr[1] - indptr[0];
	int32_t *last = (int32_t *)(uintptr_t)p->last_len, id;
	int changed = blocks > 1 + !!last;

	if (changed) {
		id = ids[0];
		ids[0] = ids[1];
		ids[1] = id;
	}
	if (row == p->rows - 1 && blocks > 1) {
		indptr[1]--;
		changed = 1;
	}
	last = last ? last + list * p->rows + row : NULL;
	if (!last || last[0] < 2)
		return changed;
	last[0]--;
	return 1;
}

/* Exchanges the bits of the first two block rows if their sizes are equal. */
static void exchange_bits(const struct cairn_attn_part *p)
{
	const int32_t *lists = p->blk_indptr, *last = p->last_len;
	int64_t *at = (int64_t *)(uintptr_t)p->mask_indptr, first;

	if (!at || p->rows < 3 || p->row_indptr || lists[1] - lists[0] != lists[2] - lists[1] ||
	    (last && last[0] != last[1]))
		return;
	first = at[0];
	at[0] = at[1];
	at[1] = first;
}

static int relist(void *args)
{
	struct cairn_attn_bsr_args *a = args;
	int32_t *pos = (int32_t *)(uintptr_t)a->q_pos;
	int changed = 0;

	for (int k = 0; pos && k < a->nnz_qo; k++)
		pos[k] += k % 3;
	for (int i = 0; i < a->num_parts; i++) {
		const struct cairn_attn_part *p = &a->part[i];
		int32_t *begin = (int32_t *)(uintptr_t)p->row_indptr;

		for (int k = 0; k < p->index_heads * p->rows; k++)
			changed |= relist_row(p, k / p->rows, k % p->rows);
		for (int r = 0; p->kv_pos0 && r < p->rows; r++)
			((int32_t *)(uintptr_t)p->kv_pos0)[r] += r % 2;
		for (int k = 0; p->key_pos && k < p->num_blocks * p->block_n; k++)
			((int32_t *)(uintptr_t)p->key_pos)[k] += k % 2;
		exchange_bits(p);
		/* lines of bits have no room for another token */
		if (begin && p->rows > 1 && begin[1] > 1 && !(p->mask_mode & CAIRN_ATTN_BITS))
			begin[1]--;
	}
	return changed;
}

static const char *reject(void *args, int i, int *want)
{
	struct cairn_attn_bsr_args *a = args;
	struct cairn_attn_part *p = &a->part[0];

	*want = i < 36 ? -EINVAL : -EOPNOTSUPP;
	switch (i) {
	case 0: a->size = 8; return "size_too_small";
	case 1: a->out = NULL; return "out_null";
	case 2: a->q = NULL; return "q_null";
	case 3: p->k = NULL; return "k_null";
	case 4: p->v = NULL; return "v_null";
	case 5: p->blk_indptr = NULL; return "blk_indptr_null";
	case 6: p->blk_indices = NULL; return "blk_indices_null";
	case 7: a->q = (const char *)a->q + 8; return "q_misaligned";
	case 8: p->k = (const char *)p->k + 8; return "k_misaligned";
	case 9: p->v = (const char *)p->v + 2; return "v_misaligned";
	case 10: a->out = (char *)a->out + 4; return "out_misaligned";
	case 11: a->num_parts = 0; return "num_parts_0";
	case 12: a->nnz_qo = -1; return "nnz_qo_negative";
	case 13: a->num_kv_heads = 0; return "num_kv_heads_0";
	case 14: p->rows = -1; return "rows_negative";
	case 15: p->block_m = 0; return "block_m_0";
	case 16: p->block_n = 0; return "block_n_0";
	case 17: p->index_heads = a->num_kv_heads + 1; return "index_heads_too_many";
	case 18: p->index_heads = 0; return "index_heads_0";
	case 19: p->num_blocks = -1; return "num_blocks_negative";
	case 20: p->max_keys = -1; return "max_keys_negative";
	case 21: p->mask_mode = 4; return "mask_mode_4";
	case 22: p->mask_mode = -1; return "mask_mode_negative";
	case 23: p->mask_mode = CAIRN_ATTN_BITS; p->mask = NULL; return "mask_null";
	case 24: p->slot_stride = a->head_dim - 8; return "slot_stride_short";
	case 25: p->block_stride = a->head_dim + 4; return "block_stride_odd";
	case 26: p->head_stride = a->head_dim + 2; return "head_stride_odd";
	case 27: a->sm_scale = 0; return "sm_scale_0";
	case 28: a->softcap = NAN; return "softcap_nan";
	case 29: a->window = -1; return "window_negative";
	case 30: a->q_stride = 8; return "q_stride_short";
	case 31: a->kv_fp8 = 2; return "kv_fp8_2";
	case 32: a->kv_fp8 = 0; p->k_scale = (const float *)p->k; return "k_scale_without_fp8";
	case 33: a->q_pos = NULL; p->key_pos = p->blk_indices; return "key_pos_without_q_pos";
	case 34:
		a->q_pos = NULL;
		a->part[1] = a->part[0];
		a->num_parts = 2;
		a->window = 3;
		return "window_of_two_parts_without_q_pos";
	case 35: a->planned = 2; return "planned_2";
	case 36: a->num_parts = 5; return "num_parts_5";
	case 37: p->reserved = 1; return "reserved_1";
	case 38: a->dtype = CAIRN_F32; return "dtype_f32";
	case 39: a->head_dim = 80; return "head_dim_80";
	case 40: a->num_qo_heads = 5; a->num_kv_heads = 2; p->index_heads = 1; return "heads_5_over_2";
	case 41:
		a->num_kv_heads = p->index_heads = 2;
		a->num_qo_heads = 4;
		p->mask_mode = CAIRN_ATTN_BITS;
		return "bits_of_each_head";
	}
	return NULL;
}

static int exact(const void *args, struct cairn_exact *e)
{
	return cairn_attn_bsr_exact(args, e);
}

static void pair_rows(struct cairn_test *t)
{
	cairn_pairs_check(t, &pair_table, NUM_PAIRS);
	cairn_pairs_check(t, &ends_table, NUM_ENDS);
	cairn_pairs_check(t, &lists_table, NUM_LISTS);
	cairn_pairs_check(t, &blocks_table, NUM_BLOCKS);
}

static const struct cairn_unit units[] = { { "pair_rows", pair_rows } };

/*
 * The cases of attn_plan are the cases of attn_bsr that have these names; each calls attn_bsr with the plan.
 */
static const char *const planned[] = {
	"no_rows", "fewer_tokens_than_nnz", "prefix_and_suffix", "four_levels", "tree_8_of_3_requests",
	"boxes_and_threads_sms_1", "boxes_of_each_head", "page16_h32_8_b64_kv4096_bf16",
	"own_page16_h32_8_b16_zipf_bf16", "prefix32768_suffix128_h32_8_b64_bf16",
	"page16_h32_8_b4_s4096_causal_bf16", "without_lse",
};

/* Returns the number of a planned case among those of attn_bsr. */
static int planned_case(int i)
{
	for (int k = 0; k < NUM_NAMED; k++)
		if (!strcmp(named[k].name, planned[i]))
			return k;
	for (int k = 0; k < NUM_LATER; k++)
		if (!strcmp(later[k].name, planned[i]))
			return NUM_NAMED + NUM_GRID + NUM_PAIRS + k;
	abort();
}

static void describe_plan(int index, struct cairn_case *c)
{
	describe(planned_case(index), c);
	c->bytes = c->flops = 0;
}

static void setup_plan(struct cairn_op *op)
{
	const int index = op->case_index;

	op->case_index = planned_case(index);
	setup(op);
	op->case_index = index;
	((struct cairn_attn_bsr_args *)op->args)->planned = 1;
}

const struct cairn_family cairn_attn_plan_family = {
	.stage = "fused", .name = "attn_plan",
	.op = offsetof(struct cairn_impl, attn_plan),
	.then_op = offsetof(struct cairn_impl, attn_bsr),
	.workspace_op = offsetof(struct cairn_impl, attn_bsr_workspace),
	.args_size = sizeof(struct cairn_attn_bsr_args),
	.workspace_field = FIELD(workspace),
	.num_cases = (int)ARRAY_SIZE(planned),
	.describe = describe_plan,
	.setup = setup_plan,
	.relist = relist,
	.exact = exact,
	.cost_s = 10,
};

const struct cairn_family cairn_attn_bsr_family = {
	.stage = "fused", .name = "attn_bsr",
	.op = offsetof(struct cairn_impl, attn_bsr),
	.workspace_op = offsetof(struct cairn_impl, attn_bsr_workspace),
	.args_size = sizeof(struct cairn_attn_bsr_args),
	.sms_field = offsetof(struct cairn_attn_bsr_args, sms),
	.planned_field = offsetof(struct cairn_attn_bsr_args, planned),
	.plan_op = offsetof(struct cairn_impl, attn_plan),
	.plan_scalars = { FIELD(sm_scale), FIELD(softcap) },
	.workspace_field = FIELD(workspace),
	.num_cases = NUM_CASES, .draw = &draws,
	.units = units, .num_units = ARRAY_SIZE(units),
	.describe = describe,
	.setup = setup,
	.relist = relist,
	.exact = exact,
	.reject = reject,
	.cost_s = 110,
};
