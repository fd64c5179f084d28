/* SPDX-License-Identifier: Apache-2.0 */
/*
 * attn_bsr_cases - the shapes that attn_bsr_test.c runs: named cases, a grid of block sizes, pairs of
 * features (attn_bsr_pairs.h), ends of tiles and of blocks (attn_bsr_ends.h), bench rows, what may be drawn
 *
 * Include conformance/harness.h, conformance/suite/draw.h, conformance/suite/pairs.h, attn_lengths.h and
 * attn_bsr_inputs.h first.
 */
#ifndef CAIRN_ATTN_BSR_CASES_H
#define CAIRN_ATTN_BSR_CASES_H

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
	{ N("farther_blocks", 3, 4, 2, 64), PARTS({ 1, 4, 12 }), .flags = LSE | FAR_KV | FARTHER | WHOLE },
	/* rows of q that lie far apart and fill a row tile */
	{ N("far_q_of_full_tiles", 8, 16, 1, 64), PARTS({ 8, 4, 12 }), .flags = LSE | FAR_Q | WHOLE },
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

#endif
