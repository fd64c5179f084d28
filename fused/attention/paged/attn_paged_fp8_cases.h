/* SPDX-License-Identifier: Apache-2.0 */
/*
 * attn_paged_fp8_cases - the cases of attn_paged with pages of e4m3
 *
 * attn_paged_test.c includes this after attn_paged_pairs.h. First come the named cases, then an array in
 * which every two features occur together. It has those factors of attn_paged_pairs.h that affect pages of 8
 * bits, and one for the scales.
 */
#ifndef CAIRN_ATTN_PAGED_FP8_CASES_H
#define CAIRN_ATTN_PAGED_FP8_CASES_H

#define FP8_BENCH	(BENCH | DEVICE | SCALES)

static const struct shape fp8_named[] = {
	/* N(name, batch, query rows, keys, page size, query heads, KV heads, head_dim), other members */
	{ N("fp8_one_key", 1, 1, 1, 1, 1, 1, 64), .flags = LSE | SCALES },
	{ N("fp8_no_keys", 3, 2, 0, 16, 4, 2, 128), .flags = LSE | SCALES },
	{ N("fp8_no_keys_prefill", 2, 70, 0, 16, 4, 2, 64), .flags = BOTH | SCALES },
	{ N("fp8_empty_requests", 6, 1, 1, 8, 4, 2, 64), .flags = LSE | SCALES,
		.qo_lens = LENS(0, 1, 2, 0, 40, 0), .kv_lens = LENS(9, 0, 33, 0, 17, 5) },
	{ N("fp8_more_queries_than_keys", 2, 150, 97, 16, 4, 2, 128), .flags = BOTH | F16 | SCALES },
	{ N("fp8_no_scales", 2, 3, 97, 16, 4, 2, 128), .flags = BOTH | FP8 },
	{ N("fp8_no_scales_prefill", 2, 40, 97, 16, 4, 2, 128), .flags = BOTH | FP8 },
	{ N("fp8_k_scale_alone", 2, 3, 97, 16, 4, 2, 64), .flags = BOTH | FP8 | K_SCALE },
	{ N("fp8_v_scale_alone", 2, 40, 97, 16, 4, 2, 64), .flags = BOTH | FP8 | V_SCALE },
	{ N("fp8_all_pages_identical", 3, 2, 130, 16, 8, 2, 128), .flags = LSE | SCALES | PAGED_SAME },
	{ N("fp8_duplicate_pages_prefill", 2, 50, 150, 8, 4, 2, 64),
		.flags = BOTH | SCALES | PAGED_DUPLICATE },
	{ N("fp8_padded_graph_decode", 8, 1, 1, 16, 8, 2, 128), .flags = LSE | SCALES | PAGED_PADDED,
		.qo_lens = LENS(1, 1, 1, 1, 1, 0, 0, 0), .kv_lens = LENS(97, 16, 1, 0, 200, 0, 0, 1) },
	{ N("fp8_padded_graph_prefill", 4, 1, 1, 16, 4, 2, 64), .flags = BOTH | SCALES | PAGED_PADDED,
		.qo_lens = LENS(40, 1, 0, 0), .kv_lens = LENS(90, 33, 0, 7) },
	{ N("fp8_mixed", 6, 1, 1, 16, 8, 2, 128), .flags = BOTH | SCALES,
		.qo_lens = LENS(1, 70, 1, 17, 3, 1), .kv_lens = LENS(300, 70, 33, 54, 3, 1) },
	{ N("fp8_mixed_group_7", 4, 1, 1, 5, 14, 2, 64), .flags = BOTH | F16 | SCALES,
		.qo_lens = LENS(1, 30, 2, 5), .kv_lens = LENS(97, 61, 16, 5) },
	{ N("fp8_rows_16", 2, 4, 97, 16, 8, 2, 64), .flags = BOTH | SCALES },
	{ N("fp8_rows_17", 2, 17, 97, 16, 2, 2, 64), .flags = BOTH | SCALES },
	{ N("fp8_rows_33", 2, 33, 97, 16, 2, 2, 128), .flags = BOTH | SCALES },
	{ N("fp8_rows_129", 1, 43, 97, 16, 6, 2, 64), .flags = BOTH | SCALES },
	{ N("fp8_group_17", 2, 1, 97, 16, 17, 1, 128), .flags = LSE | SCALES },
	{ N("fp8_group_33_d256", 2, 1, 97, 16, 33, 1, 256), .flags = LSE | SCALES },
	/* keys around the numbers at which tiles, shares and rings end */
	{ N("fp8_kv_15", 2, 1, 15, 16, 4, 2, 128), .flags = LSE | SCALES },
	{ N("fp8_kv_17_d256", 2, 1, 17, 16, 4, 2, 256), .flags = LSE | SCALES | F16 },
	{ N("fp8_kv_1023", 1, 1, 1023, 16, 8, 2, 128), .flags = LSE | SCALES },
	{ N("fp8_kv_1025", 1, 1, 1025, 16, 8, 2, 256), .flags = LSE | SCALES },
	{ N("fp8_kv_2048_one_head", 1, 1, 2048, 8, 4, 1, 64), .flags = LSE | F16 | SCALES },
	{ N("fp8_kv_4999_group_2", 1, 3, 4999, 16, 2, 1, 64), .flags = BOTH | SCALES },
	{ N("fp8_kv_128_prefill", 1, 130, 128, 32, 2, 1, 128), .flags = BOTH | SCALES },
	{ N("fp8_kv_129_prefill_d256", 1, 40, 129, 64, 2, 1, 256), .flags = BOTH | SCALES },
	{ N("fp8_prefill_577", 1, 577, 577, 16, 4, 1, 64), .flags = BOTH | SCALES },
	{ N("fp8_append_127_to_1921", 1, 127, 2048, 16, 4, 1, 128), .flags = BOTH | F16 | SCALES },
	{ N("fp8_page_1000", 2, 3, 1203, 1000, 4, 2, 64), .flags = BOTH | SCALES },
	{ N("fp8_page_41", 2, 3, 85, 41, 4, 2, 64), .flags = BOTH | SCALES },
	{ N("fp8_page_83_prefill", 2, 70, 170, 83, 4, 2, 64), .flags = BOTH | SCALES },
	/* patterns of logits and values, which one scale for each head does not spoil */
	{ N("fp8_logits_any", 2, 3, 97, 16, 4, 2, 128), .flags = BOTH | SCALES, .logits = ANY },
	{ N("fp8_logits_any_f16", 2, 40, 97, 16, 4, 2, 64), .flags = LSE | F16 | SCALES, .logits = ANY },
	{ N("fp8_logits_equal", 2, 3, 97, 16, 4, 2, 64), .flags = BOTH | SCALES, .logits = EQUAL },
	{ N("fp8_one_dominates", 2, 40, 97, 16, 4, 2, 128), .flags = BOTH | SCALES, .logits = TOP },
	{ N("fp8_below_minus_5e4", 2, 1, 97, 16, 4, 2, 128), .flags = LSE | SCALES, .logits = NEGATIVE },
	{ N("fp8_values_largest", 2, 3, 97, 16, 4, 2, 128), .flags = BOTH | SCALES, .logits = LARGE_V },
	{ N("fp8_values_largest_f16", 2, 40, 97, 16, 4, 2, 64), .flags = BOTH | F16 | FP8 | K_SCALE,
		.logits = LARGE_V },
	{ N("fp8_values_subnormal", 2, 3, 97, 16, 4, 2, 64), .flags = BOTH | SCALES, .logits = TINY_V },
	{ N("fp8_values_subnormal_f16", 2, 40, 97, 16, 4, 2, 128), .flags = BOTH | F16 | SCALES,
		.logits = TINY_V },
	{ N("fp8_masked_above_all", 3, 2, 97, 16, 4, 2, 64), .flags = BOTH | SCALES, .logits = EDGES },
	{ N("fp8_masked_above_all_prefill", 3, 40, 150, 16, 4, 2, 128), .flags = BOTH | SCALES,
		.logits = EDGES, .window = 48 },
	{ N("fp8_last_key_decides_4097", 2, 1, 4097, 16, 2, 1, 64), .flags = BOTH | SCALES, .logits = EDGES },
	{ N("fp8_nan_in_a_key", 3, 2, 97, 16, 6, 2, 128), .flags = BOTH | SCALES, .logits = NAN_K },
	{ N("fp8_nan_in_a_value_prefill", 3, 40, 60, 16, 6, 2, 64), .flags = LSE | F16 | SCALES,
		.logits = NAN_V },
	{ N("fp8_window_100_page_1", 2, 1, 333, 1, 8, 2, 128), .flags = BOTH | SCALES, .window = 100 },
	{ N("fp8_window_33_prefill", 1, 300, 300, 16, 4, 1, 128), .flags = BOTH | SCALES, .window = 33 },
	{ N("fp8_window_129_prefill_d256", 1, 260, 515, 16, 4, 2, 256), .flags = BOTH | SCALES,
		.window = 129 },
	{ N("fp8_window_rows_without_keys", 2, 93, 50, 16, 4, 2, 128), .flags = BOTH | SCALES,
		.window = 20 },
	{ N("fp8_cap_50", 3, 1, 97, 16, 8, 4, 256), .flags = BOTH | SCALES, .cap = 50 },
	{ N("fp8_cap_1_prefill", 2, 70, 150, 16, 4, 2, 128), .flags = BOTH | SCALES, .cap = 1 },
	{ N("fp8_cap_9_any_d256", 1, 40, 97, 16, 4, 2, 256), .flags = BOTH | SCALES, .logits = ANY,
		.cap = 9 },
	/* limits of sizes */
	{ N("fp8_high_page_ids", 2, 1, 40, 4, 4, 1, 64), .flags = LSE | SCALES | PAGED_HIGH },
	{ N("fp8_page_ids_past_2e16", 2, 1, 40, 1, 2, 1, 64), .flags = LSE | SCALES | PAGED_HIGH,
		.pool = 66000 },
	{ N("fp8_keys_past_2e16", 1, 1, 66100, 64, 1, 1, 64), .flags = LSE | SCALES, .window = 65590 },
	{ N("fp8_heads_40", 1, 1, 33, 16, 40, 40, 64), .flags = LSE | SCALES },
	{ N("fp8_heads_40_prefill", 1, 40, 33, 16, 40, 40, 64), .flags = LSE | SCALES },
	{ N("fp8_batch_96_with_holes", 96, 1, 130, 16, 2, 1, 64), .flags = BOTH | SCALES,
		.kv_lens = LENS(ATTN_HOLES_96) },
	{ N("fp8_batch_2100", 2100, 2, 5, 4, 1, 1, 64), .flags = BOTH | SCALES | PAGED_RAGGED },
	{ N("fp8_far_pages_decode", 2, 1, 40, 16, 8, 2, 64), .flags = LSE | FP8 | PAGED_FAR },
	{ N("fp8_far_pages_prefill", 1, 70, 90, 16, 4, 2, 64), .flags = BOTH | F16 | FP8 | PAGED_FAR },
	{ N("fp8_far_q_stride", 3, 1, 40, 16, 4, 2, 64), .flags = LSE | SCALES | FAR_ROWS },
	{ N("fp8_sms_1_decode", 2, 1, 300, 16, 8, 2, 128), .flags = LSE | SCALES, .sms = 1 },
	{ N("fp8_sms_3_prefill", 1, 300, 300, 16, 4, 2, 64), .flags = BOTH | SCALES, .sms = 3 },
	{ N("fp8_sms_64_mixed", 5, 1, 1, 16, 8, 2, 128), .flags = BOTH | SCALES, .sms = 64,
		.qo_lens = LENS(1, 70, 1, 40, 1), .kv_lens = LENS(300, 70, 33, 90, 1) },
	/* too large for host implementations */
	{ N("fp8_large_b128_kv999", 128, 1, 999, 16, 32, 4, 128),
		.flags = LSE | DEVICE | SCALES | PAGED_RAGGED },
	{ N("fp8_large_b1_kv32789", 1, 1, 32789, 16, 32, 8, 128), .flags = LSE | DEVICE | SCALES },
	{ N("fp8_large_qo577_kv2048", 12, 577, 2048, 16, 32, 8, 128),
		.flags = BOTH | DEVICE | SCALES | PAGED_RAGGED },
	{ N("fp8_large_gemma", 5, 700, 3000, 16, 8, 4, 256), .flags = BOTH | DEVICE | SCALES | PAGED_RAGGED,
		.window = 1024, .cap = 50 },
	{ N("fp8_large_serving_mix", 41, 1, 1, 16, 32, 8, 128), .flags = BOTH | DEVICE | SCALES,
		.qo_lens = MIX_QO, .kv_lens = MIX_KV },
	{ N("decode_h32_8_b1_kv4096_fp8", 1, 1, 4096, 16, 32, 8, 128), .flags = FP8_BENCH },
	{ N("decode_h32_8_b1_kv16384_fp8", 1, 1, 16384, 16, 32, 8, 128), .flags = FP8_BENCH },
	{ N("decode_h32_8_b16_kv1024_fp8", 16, 1, 1024, 16, 32, 8, 128), .flags = FP8_BENCH },
	{ N("decode_h32_8_b16_kv4096_fp8", 16, 1, 4096, 16, 32, 8, 128), .flags = FP8_BENCH },
	{ N("decode_h32_8_b16_kv16384_fp8", 16, 1, 16384, 16, 32, 8, 128), .flags = FP8_BENCH },
	{ N("decode_h32_8_b64_kv4096_fp8", 64, 1, 4096, 16, 32, 8, 128), .flags = FP8_BENCH },
	{ N("decode_h32_8_b128_kv4096_fp8", 128, 1, 4096, 16, 32, 8, 128), .flags = FP8_BENCH },
	{ N("decode_h32_8_d64_b64_kv4096_fp8", 64, 1, 4096, 16, 32, 8, 64), .flags = FP8_BENCH },
	{ N("decode_h16_8_d256_b16_kv4096_fp8", 16, 1, 4096, 16, 16, 8, 256), .flags = FP8_BENCH },
	{ N("prefill_h32_8_b4_s4096_causal_fp8", 4, 4096, 4096, 16, 32, 8, 128),
		.flags = FP8_BENCH | CAUSAL },
	{ N("chunk_h32_8_qo2048_kv2048_causal_fp8", 1, 2048, 2048, 16, 32, 8, 128),
		.flags = FP8_BENCH | CAUSAL },
	{ N("mix_h32_8_qo512_b65_kv1300_causal_fp8", 65, 512, 1300, 16, 32, 8, 128),
		.flags = FP8_BENCH | CAUSAL | DECODES },
};

#define NUM_FP8		((int)ARRAY_SIZE(fp8_named))
#define NUM_FP8_PAIRS	47

enum {
	FP8_GROUP, FP8_HEADS, FP8_PAGE, FP8_WINDOW, FP8_DIM, FP8_LENGTHS, FP8_TABLES, FP8_STRIDE, FP8_CAP,
	FP8_SCALE, FP8_SCALES, FP8_DTYPE, FP8_CAUSAL, FP8_LSE, FP8_LOGITS, FP8_SMS, NUM_FP8_FACTORS
};

static const int fp8_page[] = { 16, 128, 1, 48, 64 }, fp8_window[] = { 0, 16, 1, 33, 100 };
static const unsigned fp8_scales[] = { SCALES, FP8, FP8 | K_SCALE, FP8 | V_SCALE };

static int fp8_forbidden(const int8_t *level)
{
	return level[FP8_LENGTHS] == 3 && level[FP8_GROUP] >= 0 && level[FP8_HEADS] >= 0 &&
	       pair_group[level[FP8_GROUP]] * pair_heads[level[FP8_HEADS]] > 16;
}

static struct cairn_pairs fp8_pair_table = {
	.num_factors = NUM_FP8_FACTORS,
	.levels = { 8, 4, 5, 5, 3, 5, 4, 3, 3, 3, 4, 2, 2, 2, 2, 2 },
	.forbidden = fp8_forbidden,
};

static void fp8_shape_at(int i, struct shape *s)
{
	const int8_t *level;

	if (i < NUM_FP8) {
		*s = fp8_named[i];
		return;
	}
	i -= NUM_FP8;
	level = cairn_pairs_row(&fp8_pair_table, i);
	*s = (struct shape){
		.pair = i + 1, .batch = attn_lengths[level[FP8_LENGTHS]].batch,
		.qo_lens = attn_lengths[level[FP8_LENGTHS]].qo,
		.kv_lens = attn_lengths[level[FP8_LENGTHS]].kv, .page = fp8_page[level[FP8_PAGE]],
		.hkv = pair_heads[level[FP8_HEADS]], .dim = pair_dim[level[FP8_DIM]],
		.window = fp8_window[level[FP8_WINDOW]], .cap = pair_cap[level[FP8_CAP]],
		.scale = pair_scale[level[FP8_SCALE]], .gap = level[FP8_STRIDE] == 2 ? 8 : 0,
		.explicit_stride = level[FP8_STRIDE] == 1, .equal = level[FP8_LOGITS] == 0,
		.sms = level[FP8_SMS] ? 2 : 0,
	};
	s->qo = s->qo_lens[0];
	s->kv = s->kv_lens[0];
	s->hq = s->hkv * pair_group[level[FP8_GROUP]];
	s->flags = pair_tables[level[FP8_TABLES]] | fp8_scales[level[FP8_SCALES]] |
		   (level[FP8_DTYPE] ? F16 : 0) | (level[FP8_CAUSAL] ? CAUSAL : 0) |
		   (level[FP8_LSE] ? LSE : 0);
}

#endif
