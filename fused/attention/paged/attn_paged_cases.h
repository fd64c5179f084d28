/* SPDX-License-Identifier: Apache-2.0 */
/*
 * attn_paged_cases - the shapes that attn_paged_test.c runs: named edge cases, two grids of small shapes,
 * ends of tiles, windows, keys of 8 bits, bench rows, and what may be drawn
 *
 * Include conformance/harness.h, conformance/suite/draw.h, conformance/suite/pairs.h, attn_paged.h and
 * paged_test.h first.
 */
#ifndef CAIRN_ATTN_PAGED_CASES_H
#define CAIRN_ATTN_PAGED_CASES_H

enum {
	CAUSAL = PAGED_FLAGS, LSE = CAUSAL << 1, F16 = CAUSAL << 2,
	PACKED = CAUSAL << 3,		/* q is a slice of packed rows of q, k and v */
	BENCH = CAUSAL << 4, DEVICE = CAUSAL << 5,
	FAR_ROWS = CAUSAL << 7,		/* rows of q begin past 2^31 and 2^32 elements */
	FAR_OUT = CAUSAL << 8,		/* q and out have more than 2^31 elements, in many rows */
	FP8 = CAUSAL << 9,		/* e4m3 pages, with the scales that follow */
	K_SCALE = CAUSAL << 10, V_SCALE = CAUSAL << 11, SCALES = FP8 | K_SCALE | V_SCALE,
	KEYS_KNOWN = CAUSAL << 12,	/* nnz_kv is the number of keys, not 0 */
	DECODES = CAUSAL << 6,		/* requests after the first have one query row */
	KNOWN_BENCH = KEYS_KNOWN | BENCH | DEVICE,
};

#define FAR_POOL	((1 << 21) + 40)	/* pages */

struct shape {
	const char *name;			/* NULL: derived from the shape */
	/* query rows and keys of each request, slots of a page, query heads, KV heads, head_dim */
	int batch, qo, kv, page, hq, hkv, dim;
	unsigned flags;
	int logits;				/* with kind EXTREME; 0: chosen by the case index */
	const int *qo_lens, *kv_lens;		/* [batch], replaces qo and kv; may be NULL */
	int window;
	float cap;
	int sms;
	int pool;				/* pages with PAGED_HIGH; 0: 5000 */
	/* attn_paged_pairs.h: number of the case, or 0 */
	int pair;
	float scale;				/* sm_scale; 0: by the case index */
	int gap, explicit_stride;		/* elements between rows of q; q_stride is not 0 */
	int equal;				/* EXACT has equal logits */
	int roundings;				/* cairn_case.roundings */
	int ends;				/* attn_paged_ends.h: number of the case, or 0 */
};

#define LENS(...)	(const int[]){ __VA_ARGS__ }
#define N(name_, batch_, qo_, kv_, page_, hq_, hkv_, dim_) \
	.name = name_, .batch = batch_, .qo = qo_, .kv = kv_, .page = page_, .hq = hq_, .hkv = hkv_, \
	.dim = dim_
#define BOTH		(CAUSAL | LSE)
/* Continuous batching: chunks of prompts among requests that decode. */
#define MIX_QO	LENS(1, 1, 700, 1, 1, 1, 1, 1, 1, 1, 333, 1, 1, 1, 1, 1, 1, 1, 1, 1, 5, 1, 1, 1, 1, 1, 1, 1, \
		     1, 1, 17, 1, 1, 1, 1, 1, 1, 0, 1, 1, 129)
#define MIX_KV	LENS(1300, 7, 1900, 1024, 2048, 1, 999, 31, 64, 1500, 333, 1, 2, 3, 16, 17, 1300, 1300, 800, \
		     1, 5, 1300, 1200, 1100, 1000, 900, 800, 700, 600, 500, 400, 300, 200, 100, 90, 80, 70, \
		     60, 50, 40, 4129)

static const struct shape named[] = {
	/* N(name, batch, query rows, keys, page size, query heads, KV heads, head_dim), other members */
	{ N("one_key", 1, 1, 1, 1, 1, 1, 64), .flags = LSE },
	{ N("batch_0", 0, 1, 1, 16, 4, 2, 64), .flags = LSE },
	{ N("no_rows", 3, 0, 40, 16, 4, 2, 64), .flags = LSE },
	{ N("no_keys", 3, 2, 0, 16, 4, 2, 128), .flags = LSE },
	{ N("no_keys_causal", 2, 70, 0, 16, 4, 2, 64), .flags = BOTH },
	{ N("empty_requests", 6, 1, 1, 8, 4, 2, 64), .flags = LSE,
		.qo_lens = LENS(0, 1, 2, 0, 40, 0), .kv_lens = LENS(9, 0, 33, 0, 17, 5) },
	{ N("more_queries_than_keys", 2, 9, 3, 16, 4, 4, 64), .flags = BOTH },
	{ N("more_queries_than_keys_prefill", 2, 150, 97, 16, 4, 2, 128), .flags = BOTH | F16 },
	{ N("one_key_many_queries", 1, 129, 1, 16, 2, 1, 64), .flags = BOTH },
	{ N("first_row_sees_one_key", 1, 64, 64, 16, 2, 1, 64), .flags = BOTH },
	{ N("single_page", 3, 1, 13, 64, 8, 2, 128), .flags = LSE },
	{ N("last_page_full", 3, 1, 64, 16, 8, 2, 128), .flags = LSE },
	{ N("last_page_one_slot", 3, 1, 65, 16, 8, 2, 128), .flags = LSE },
	{ N("last_page_but_one_slot", 3, 1, 63, 16, 8, 2, 128), .flags = LSE },
	{ N("duplicate_pages", 4, 1, 150, 8, 8, 2, 128), .flags = LSE | PAGED_DUPLICATE },
	{ N("duplicate_pages_prefill", 2, 50, 150, 8, 4, 2, 64), .flags = BOTH | PAGED_DUPLICATE },
	{ N("all_pages_identical", 3, 2, 130, 16, 8, 2, 128), .flags = LSE | PAGED_SAME },
	{ N("all_pages_identical_prefill", 2, 40, 130, 16, 4, 1, 64), .flags = BOTH | PAGED_SAME },
	{ N("high_page_ids", 2, 1, 40, 4, 4, 1, 64), .flags = LSE | PAGED_HIGH },
	{ N("no_spare_page", 3, 1, 40, 8, 4, 2, 64), .flags = LSE | PAGED_FULL },
	{ N("page_1000", 2, 3, 1203, 1000, 4, 2, 64), .flags = BOTH },
	{ N("padded_graph_decode", 8, 1, 1, 16, 8, 2, 128), .flags = LSE | PAGED_PADDED,
		.qo_lens = LENS(1, 1, 1, 1, 1, 0, 0, 0), .kv_lens = LENS(97, 16, 1, 0, 200, 0, 0, 1) },
	{ N("padded_graph_prefill", 4, 1, 1, 16, 4, 2, 64), .flags = BOTH | PAGED_PADDED,
		.qo_lens = LENS(40, 1, 0, 0), .kv_lens = LENS(90, 33, 0, 7) },
	{ N("mixed_prefill_decode", 6, 1, 1, 16, 8, 2, 128), .flags = BOTH,
		.qo_lens = LENS(1, 70, 1, 17, 3, 1), .kv_lens = LENS(300, 70, 33, 54, 3, 1) },
	{ N("mixed_group_7", 4, 1, 1, 5, 14, 2, 64), .flags = BOTH | F16,
		.qo_lens = LENS(1, 30, 2, 5), .kv_lens = LENS(97, 61, 16, 5) },
	/* packed rows around the numbers at which tiles and kernels change */
	{ N("rows_16", 2, 4, 97, 16, 8, 2, 64), .flags = BOTH },
	{ N("rows_17", 2, 17, 97, 16, 2, 2, 64), .flags = BOTH },
	{ N("rows_32", 2, 8, 97, 16, 8, 2, 128), .flags = BOTH },
	{ N("rows_33", 2, 33, 97, 16, 2, 2, 128), .flags = BOTH },
	{ N("rows_63", 1, 9, 97, 16, 14, 2, 64), .flags = BOTH },
	{ N("rows_65", 1, 65, 97, 16, 2, 2, 64), .flags = BOTH },
	{ N("rows_128", 1, 32, 97, 16, 8, 2, 64), .flags = BOTH },
	{ N("rows_129", 1, 43, 97, 16, 6, 2, 64), .flags = BOTH },
	{ N("group_5", 2, 1, 97, 16, 10, 2, 128), .flags = LSE },
	{ N("group_12", 2, 1, 97, 16, 12, 1, 128), .flags = LSE },
	{ N("group_16", 2, 1, 97, 16, 16, 1, 128), .flags = LSE | F16 },
	{ N("group_17", 2, 1, 97, 16, 17, 1, 128), .flags = LSE },
	{ N("group_33", 2, 1, 97, 16, 33, 1, 64), .flags = LSE },
	{ N("group_48", 2, 3, 54, 16, 48, 1, 64), .flags = BOTH },
	{ N("kv_63", 1, 1, 63, 16, 4, 2, 256), .flags = LSE },
	{ N("kv_64", 1, 1, 64, 16, 4, 2, 256), .flags = LSE },
	{ N("kv_65", 1, 1, 65, 16, 4, 2, 256), .flags = LSE | F16 },
	{ N("kv_1023", 1, 1, 1023, 16, 8, 2, 128), .flags = LSE },
	{ N("kv_1024", 1, 1, 1024, 16, 8, 2, 128), .flags = LSE },
	{ N("kv_1025", 1, 1, 1025, 16, 8, 2, 128), .flags = LSE },
	{ N("kv_2048_one_head", 1, 1, 2048, 8, 4, 1, 64), .flags = LSE | F16 },
	{ N("kv_4999_group_2", 1, 3, 4999, 16, 2, 1, 64), .flags = BOTH },
	{ N("logits_any", 2, 3, 97, 16, 4, 2, 128), .flags = BOTH, .logits = ANY },
	{ N("logits_any_f16", 2, 40, 97, 16, 4, 2, 64), .flags = LSE | F16, .logits = ANY },
	{ N("logits_equal", 2, 3, 97, 16, 4, 2, 64), .flags = BOTH, .logits = EQUAL },
	{ N("logits_one_dominates", 2, 40, 97, 16, 4, 2, 128), .flags = BOTH, .logits = TOP },
	{ N("logits_below_minus_5e4", 2, 1, 97, 16, 4, 2, 128), .flags = LSE, .logits = NEGATIVE },
	{ N("logits_below_minus_5e4_f16", 2, 40, 97, 16, 4, 2, 64), .flags = BOTH | F16, .logits = NEGATIVE },
	{ N("logits_huge", 2, 1, 97, 16, 4, 2, 128), .flags = LSE, .logits = HUGE_LOGITS },
	{ N("logits_huge_f16", 2, 40, 97, 16, 4, 2, 64), .flags = LSE | F16, .logits = HUGE_LOGITS },
	{ N("values_near_largest", 2, 3, 97, 16, 4, 2, 128), .flags = BOTH, .logits = LARGE_V },
	{ N("values_near_largest_f16", 2, 40, 97, 16, 4, 2, 64), .flags = BOTH | F16, .logits = LARGE_V },
	{ N("values_subnormal_f16", 2, 3, 97, 16, 4, 2, 64), .flags = BOTH | F16, .logits = TINY_V },
	{ N("prefill_577", 1, 577, 577, 16, 4, 1, 64), .flags = BOTH },
	{ N("append_127_to_1921", 1, 127, 2048, 16, 4, 1, 64), .flags = BOTH | F16 },
	/*
	 * windows of one key, less than a page, a page, one key more than a page, across tiles, wider than
	 * all keys
	 */
	{ N("window_1", 3, 1, 97, 16, 8, 2, 128), .flags = BOTH, .window = 1 },
	{ N("window_5_page_64", 3, 2, 200, 64, 8, 2, 128), .flags = BOTH, .window = 5 },
	{ N("window_16_page_16", 2, 3, 150, 16, 6, 1, 64), .flags = BOTH | F16, .window = 16 },
	{ N("window_17_page_16", 2, 8, 150, 16, 8, 2, 256), .flags = BOTH, .window = 17 },
	{ N("window_100_page_1", 2, 1, 333, 1, 8, 2, 128), .flags = BOTH, .window = 100 },
	{ N("window_777_kv_2900", 1, 1, 2900, 16, 8, 2, 128), .flags = BOTH, .window = 777 },
	{ N("window_130_d256", 3, 1, 700, 16, 8, 4, 256), .flags = BOTH, .window = 130 },
	{ N("window_wider_than_kv", 3, 2, 90, 16, 4, 2, 128), .flags = BOTH, .window = 1000 },
	{ N("window_all_but_one", 2, 1, 90, 16, 4, 2, 128), .flags = BOTH, .window = 89 },
	{ N("window_largest", 2, 40, 90, 16, 4, 2, 128), .flags = BOTH, .window = 0x7fffffff },
	{ N("window_full_decode", 2, 1, 150, 16, 8, 2, 128), .flags = LSE, .window = 40 },
	{ N("window_full_prefill", 2, 70, 190, 16, 4, 2, 64), .flags = LSE, .window = 40 },
	{ N("window_1_prefill", 1, 150, 150, 16, 4, 2, 128), .flags = BOTH, .window = 1 },
	{ N("window_33_prefill", 1, 300, 300, 16, 4, 1, 128), .flags = BOTH, .window = 33 },
	{ N("window_64_prefill_page_64", 2, 200, 330, 64, 4, 2, 64), .flags = BOTH | F16, .window = 64 },
	{ N("window_127_prefill_page_1", 1, 257, 290, 1, 2, 1, 128), .flags = BOTH, .window = 127 },
	{ N("window_129_prefill_d256", 1, 260, 515, 16, 4, 2, 256), .flags = BOTH, .window = 129 },
	{ N("window_smaller_than_chunk", 1, 200, 500, 16, 4, 2, 128), .flags = BOTH, .window = 60 },
	{ N("window_larger_than_chunk", 1, 100, 700, 16, 4, 2, 128), .flags = BOTH, .window = 350 },
	{ N("window_queries_without_keys", 2, 90, 50, 16, 4, 2, 128), .flags = BOTH, .window = 20 },
	{ N("window_mixed", 6, 1, 1, 16, 8, 2, 128), .flags = BOTH | PAGED_PADDED, .window = 48,
		.qo_lens = LENS(1, 70, 1, 17, 3, 1), .kv_lens = LENS(300, 170, 33, 54, 3, 1) },
	/* caps: almost without effect, Gemma's 50, saturating all logits, saturating huge logits */
	{ N("cap_50", 3, 1, 97, 16, 8, 4, 256), .flags = BOTH, .cap = 50 },
	{ N("cap_50_prefill", 1, 90, 97, 16, 8, 4, 256), .flags = BOTH, .cap = 50 },
	{ N("cap_30_f16", 2, 3, 150, 16, 8, 2, 128), .flags = BOTH | F16, .cap = 30 },
	{ N("cap_1_prefill", 2, 70, 150, 16, 4, 2, 128), .flags = BOTH, .cap = 1 },
	{ N("cap_small", 2, 3, 97, 16, 4, 2, 64), .flags = BOTH, .cap = 0.05f },
	{ N("cap_small_prefill", 1, 90, 97, 16, 4, 2, 64), .flags = BOTH | F16, .cap = 0.05f },
	{ N("cap_large", 2, 1, 97, 16, 4, 2, 128), .flags = BOTH, .cap = 1e4f },
	{ N("cap_50_logits_any", 2, 3, 97, 16, 4, 2, 128), .flags = BOTH, .logits = ANY, .cap = 50 },
	{ N("cap_50_logits_any_prefill", 2, 40, 97, 16, 4, 2, 64), .flags = BOTH, .logits = ANY, .cap = 50 },
	{ N("cap_9_logits_any_d256", 1, 40, 97, 16, 4, 2, 256), .flags = BOTH, .logits = ANY, .cap = 9 },
	{ N("cap_50_one_dominates", 2, 40, 97, 16, 4, 2, 128), .flags = BOTH, .logits = TOP, .cap = 50 },
	{ N("cap_50_logits_huge", 2, 1, 97, 16, 4, 2, 128), .flags = LSE, .logits = HUGE_LOGITS, .cap = 50 },
	{ N("cap_50_below_minus_5e4", 2, 40, 97, 16, 4, 2, 64), .flags = BOTH | F16, .logits = NEGATIVE,
		.cap = 50 },
	{ N("cap_50_no_keys", 2, 70, 33, 16, 4, 2, 64), .flags = BOTH, .cap = 50 },
	{ N("cap_50_window_40", 3, 1, 150, 16, 8, 4, 256), .flags = BOTH, .window = 40, .cap = 50 },
	{ N("cap_50_window_40_prefill", 2, 90, 150, 16, 8, 4, 256), .flags = BOTH, .window = 40, .cap = 50 },
	{ N("cap_2_window_100_d128", 2, 150, 250, 16, 4, 2, 128), .flags = BOTH, .window = 100, .cap = 2 },
	/* too large for host implementations */
	{ N("large_window_1000", 12, 577, 2048, 16, 32, 8, 128), .flags = BOTH | DEVICE | PAGED_RAGGED,
		.window = 1000 },
	{ N("large_gemma", 5, 700, 3000, 16, 8, 4, 256), .flags = BOTH | DEVICE | PAGED_RAGGED,
		.window = 1024, .cap = 50 },
	{ N("large_serving_mix", 41, 1, 1, 16, 32, 8, 128), .flags = BOTH | DEVICE,
		.qo_lens = MIX_QO, .kv_lens = MIX_KV },
	{ N("large_b128_kv999", 128, 1, 999, 16, 32, 4, 128), .flags = LSE | DEVICE | PAGED_RAGGED },
	{ N("large_b1_kv32789", 1, 1, 32789, 16, 32, 8, 128), .flags = LSE | DEVICE },
	{ N("large_b12_kv16384_page1", 12, 1, 16384, 1, 8, 1, 128), .flags = LSE | DEVICE | PAGED_RAGGED },
	{ N("large_qo577_kv2048", 12, 577, 2048, 16, 32, 8, 128), .flags = BOTH | DEVICE | PAGED_RAGGED },
	{ N("large_qo1023_kv1024_d64", 2, 1023, 1024, 16, 28, 4, 64), .flags = BOTH | DEVICE },
	{ N("large_qo1024_kv1023_d256", 2, 1024, 1023, 5, 8, 2, 256), .flags = BOTH | DEVICE | F16 },
	{ N("large_qo4224_kv4224", 1, 4224, 4224, 64, 8, 2, 128), .flags = LSE | DEVICE },
	{ N("large_mixed", 73, 17, 4096, 16, 32, 8, 128), .flags = BOTH | DEVICE | PAGED_RAGGED },
	{ N("large_page_ids_past_2e31_elements", 2, 1, 100, 16, 4, 1, 64),
		.flags = LSE | DEVICE | PAGED_HIGH },
	/* bench rows: bytes are those of K, V, q and out */
	{ N("decode_h32_8_b1_kv1024_bf16", 1, 1, 1024, 16, 32, 8, 128), .flags = BENCH },
	{ N("decode_h32_8_b1_kv4096_bf16", 1, 1, 4096, 16, 32, 8, 128), .flags = BENCH },
	{ N("decode_h32_8_b1_kv16384_bf16", 1, 1, 16384, 16, 32, 8, 128), .flags = BENCH | DEVICE },
	{ N("decode_h32_8_b16_kv1024_bf16", 16, 1, 1024, 16, 32, 8, 128), .flags = BENCH | DEVICE },
	{ N("decode_h32_8_b16_kv4096_bf16", 16, 1, 4096, 16, 32, 8, 128), .flags = BENCH | DEVICE },
	{ N("decode_h32_8_b16_kv16384_bf16", 16, 1, 16384, 16, 32, 8, 128), .flags = BENCH | DEVICE },
	{ N("decode_h32_8_b64_kv1024_bf16", 64, 1, 1024, 16, 32, 8, 128), .flags = BENCH | DEVICE },
	{ N("decode_h32_8_b64_kv4096_bf16", 64, 1, 4096, 16, 32, 8, 128), .flags = BENCH | DEVICE },
	{ N("decode_h32_8_b128_kv1024_bf16", 128, 1, 1024, 16, 32, 8, 128), .flags = BENCH | DEVICE },
	{ N("decode_h32_8_b128_kv4096_bf16", 128, 1, 4096, 16, 32, 8, 128), .flags = BENCH | DEVICE },
	{ N("decode_h32_32_b1_kv1024_f16", 1, 1, 1024, 16, 32, 32, 128), .flags = BENCH | F16 },
	{ N("decode_h32_32_b1_kv4096_f16", 1, 1, 4096, 16, 32, 32, 128), .flags = BENCH | F16 | DEVICE },
	{ N("decode_h32_32_b16_kv4096_f16", 16, 1, 4096, 16, 32, 32, 128), .flags = BENCH | F16 | DEVICE },
	{ N("decode_h28_4_b32_kv4096_bf16", 32, 1, 4096, 16, 28, 4, 128), .flags = BENCH | DEVICE },
	{ N("decode_h32_8_d64_b64_kv4096_bf16", 64, 1, 4096, 16, 32, 8, 64), .flags = BENCH | DEVICE },
	{ N("decode_h16_8_d256_b16_kv4096_bf16", 16, 1, 4096, 16, 16, 8, 256), .flags = BENCH | DEVICE },
	{ N("prefill_h32_8_b16_s1024_causal_bf16", 16, 1024, 1024, 16, 32, 8, 128),
		.flags = BENCH | CAUSAL | DEVICE },
	{ N("prefill_h32_8_b4_s4096_causal_bf16", 4, 4096, 4096, 16, 32, 8, 128),
		.flags = BENCH | CAUSAL | DEVICE },
	{ N("prefill_h32_8_b1_s16384_causal_bf16", 1, 16384, 16384, 16, 32, 8, 128),
		.flags = BENCH | CAUSAL | DEVICE },
	{ N("prefill_h32_8_b4_s4096_bf16", 4, 4096, 4096, 16, 32, 8, 128), .flags = BENCH | DEVICE },
	{ N("prefill_h32_8_d64_b4_s4096_causal_bf16", 4, 4096, 4096, 16, 32, 8, 64),
		.flags = BENCH | CAUSAL | DEVICE },
	{ N("prefill_h16_8_d256_b4_s4096_causal_bf16", 4, 4096, 4096, 16, 16, 8, 256),
		.flags = BENCH | CAUSAL | DEVICE },
	{ N("append_h32_8_b8_qo512_kv8192_causal_bf16", 8, 512, 8192, 16, 32, 8, 128),
		.flags = BENCH | CAUSAL | DEVICE },
	/*
	 * typical calls of a serving engine: a chunk of a prompt, alone and in one call with requests that
	 * decode
	 */
	{ N("chunk_h32_8_qo2048_kv2048_causal_bf16", 1, 2048, 2048, 16, 32, 8, 128),
		.flags = BENCH | CAUSAL | DEVICE },
	{ N("chunk_h32_8_page64_qo2048_kv2048_causal_bf16", 1, 2048, 2048, 64, 32, 8, 128),
		.flags = BENCH | CAUSAL | DEVICE },
	{ N("mix_h32_8_qo512_b65_kv1300_causal_bf16", 65, 512, 1300, 16, 32, 8, 128),
		.flags = BENCH | CAUSAL | DEVICE | DECODES },
	/* a window should cost as much as a cache of only that many keys; Gemma 2 */
	{ N("decode_h32_8_b4_kv16384_window4096_bf16", 4, 1, 16384, 16, 32, 8, 128),
		.flags = BENCH | CAUSAL | DEVICE, .window = 4096 },
	{ N("decode_h8_4_d256_b16_kv4096_cap50_bf16", 16, 1, 4096, 16, 8, 4, 256),
		.flags = BENCH | CAUSAL | DEVICE, .cap = 50 },
	{ N("chunk_h8_4_d256_qo2048_kv2048_cap50_causal_bf16", 1, 2048, 2048, 16, 8, 4, 256),
		.flags = BENCH | CAUSAL | DEVICE, .cap = 50 },
};

static const int decode_batch[] = { 1, 2, 12, 17 }, decode_kv[] = { 1, 15, 16, 17, 54, 97, 512 };
static const int pages[] = { 1, 5, 8, 16, 32, 64 };
static const int prefill_qo[] = { 2, 3, 17, 37, 127 }, prefill_kv[] = { 15, 54, 97, 211 };
#define NUM_DECODE	(4 * 7 * 6)
#define NUM_PREFILL	(5 * 4 * 6)
#define NUM_NAMED	((int)ARRAY_SIZE(named))
#define NUM_SMS		((int)ARRAY_SIZE(with_sms))

/* a share of the device, for decoding, for prompts and for both */
static const struct shape with_sms[] = {
	{ N("sms_1_decode", 2, 1, 300, 16, 8, 2, 128), .flags = LSE, .sms = 1 },
	{ N("sms_24_decode", 7, 1, 700, 16, 32, 8, 64), .flags = LSE | F16 | PAGED_RAGGED, .sms = 24 },
	{ N("sms_3_prefill", 1, 300, 300, 16, 4, 2, 64), .flags = BOTH, .sms = 3 },
	{ N("sms_64_mixed", 5, 1, 1, 16, 8, 2, 128), .flags = BOTH, .sms = 64,
		.qo_lens = LENS(1, 70, 1, 40, 1), .kv_lens = LENS(300, 70, 33, 90, 1) },
	{ N("sms_1_mixed", 5, 1, 1, 16, 8, 2, 128), .flags = BOTH, .sms = 1,
		.qo_lens = LENS(1, 70, 1, 40, 1), .kv_lens = LENS(300, 70, 33, 90, 1) },
	/* offsets that do not fit 32 bits; pages of 2048 elements */
	{ N("far_pages_decode", 2, 1, 40, 16, 8, 2, 64), .flags = LSE | PAGED_FAR },
	{ N("far_pages_prefill", 1, 70, 90, 16, 4, 2, 64), .flags = BOTH | F16 | PAGED_FAR },
	{ N("far_q_stride", 3, 1, 40, 16, 4, 2, 64), .flags = LSE | FAR_ROWS },
	/* only the last three rows see a key */
	{ N("rows_past_2_gi_elements", 1, 65540, 3, 16, 128, 2, 256), .flags = CAUSAL | LSE | FAR_OUT },
};

/* added later, so that the cases before them keep their numbers; then come attn_paged_pairs.h and last[] */
static const struct shape later[] = {
	{ N("page_ids_past_2e16", 2, 1, 40, 1, 2, 1, 64), .flags = LSE | PAGED_HIGH, .pool = 66000 },
	/* more keys, and a larger window, than 16 bits count; POISON: keys before the window are NaN */
	{ N("keys_past_2e16", 1, 1, 66100, 64, 1, 1, 64), .flags = LSE, .window = 65590 },
	/* so many results that another order of the sums would change at least one bit */
	{ N("keys_1500_rows_30", 1, 30, 1500, 16, 4, 2, 128), .flags = LSE | F16 },
	{ N("nan_in_a_query", 3, 2, 97, 16, 6, 2, 128), .flags = BOTH, .logits = NAN_Q },
	{ N("nan_in_a_key", 3, 2, 97, 16, 6, 2, 128), .flags = BOTH, .logits = NAN_K },
	{ N("nan_in_a_value", 3, 2, 97, 16, 6, 2, 128), .flags = BOTH, .logits = NAN_V },
	{ N("nan_in_a_query_prefill", 3, 40, 60, 16, 6, 2, 64), .flags = LSE | F16, .logits = NAN_Q },
	{ N("nan_in_a_key_prefill", 3, 40, 60, 16, 6, 2, 64), .flags = LSE | F16, .logits = NAN_K },
	{ N("nan_in_a_value_prefill", 3, 40, 60, 16, 6, 2, 64), .flags = LSE | F16, .logits = NAN_V },
	{ N("nan_in_a_key_decode_cap", 5, 1, 70, 32, 3, 3, 64), .flags = LSE, .logits = NAN_K, .cap = 30,
		.window = 64 },
	/* page sizes whose reciprocal, as a float, is a little too small */
	{ N("page_41", 2, 3, 85, 41, 4, 2, 64), .flags = BOTH },
	{ N("page_83_prefill", 2, 70, 170, 83, 4, 2, 64), .flags = BOTH },
	/* requests long enough to be split, before requests that a second call shortens */
	{ N("long_before_long", 6, 1, 1, 16, 4, 2, 64), .flags = BOTH,
		.qo_lens = LENS(1, 1, 1, 1, 1, 1), .kv_lens = LENS(700, 900, 600, 800, 1100, 3000) },
	{ N("short_before_long", 6, 1, 1, 16, 4, 2, 64), .flags = BOTH,
		.qo_lens = LENS(1, 1, 1, 1, 1, 1), .kv_lens = LENS(200, 240, 150, 220, 170, 600) },
	{ N("long_before_long_prefill", 4, 1, 1, 16, 2, 1, 64), .flags = BOTH | F16,
		.qo_lens = LENS(40, 33, 37, 1), .kv_lens = LENS(500, 700, 600, 2500) },
	{ N("stairs_decode", 2, 1, 1100, 16, 8, 4, 64), .flags = BOTH, .logits = STAIRS },
	{ N("stairs_decode_f16", 2, 2, 1500, 16, 4, 4, 64), .flags = BOTH | F16, .logits = STAIRS },
	{ N("stairs_decode_cap_50", 2, 1, 3000, 16, 4, 4, 64), .flags = BOTH, .logits = STAIRS, .cap = 50 },
	{ N("stairs_prefill", 2, 70, 700, 16, 4, 4, 64), .flags = BOTH, .logits = STAIRS },
	{ N("stairs_prefill_d256", 2, 40, 400, 16, 4, 4, 256), .flags = BOTH, .logits = STAIRS },
	{ N("stairs_prefill_cap_50", 2, 70, 700, 16, 4, 4, 64), .flags = BOTH, .logits = STAIRS, .cap = 50 },
	{ N("masked_above_all_decode", 3, 2, 97, 16, 4, 2, 64), .flags = BOTH, .logits = EDGES },
	{ N("masked_above_all_window", 3, 40, 150, 16, 4, 2, 128), .flags = BOTH, .logits = EDGES,
		.window = 48 },
	{ N("masked_above_all_f16", 3, 70, 150, 16, 4, 2, 64), .flags = BOTH | F16, .logits = EDGES },
	{ N("last_key_decides_4097", 2, 1, 4097, 16, 2, 1, 64), .flags = BOTH, .logits = EDGES },
	{ N("last_key_decides_4161", 1, 2, 4161, 16, 1, 1, 128), .flags = BOTH | F16, .logits = EDGES },
	{ N("batch_97_with_holes", 97, 1, 130, 16, 2, 1, 64), .flags = BOTH,
	  .kv_lens = LENS(ATTN_HOLES_96, 17) },
	{ N("batch_2100", 2100, 2, 5, 4, 1, 1, 64), .flags = BOTH | PAGED_RAGGED },
};

/*
 * The last cases with 16-bit keys. The bench rows for numbers of KV heads (claim AT-1) and for unequal
 * lengths (claim FI-5) come first.
 */
static const struct shape last[] = {
	{ N("decode_h32_4_b16_kv4096_bf16", 16, 1, 4096, 16, 32, 4, 128), .flags = BENCH | DEVICE },
	{ N("decode_h32_1_b16_kv4096_bf16", 16, 1, 4096, 16, 32, 1, 128), .flags = BENCH | DEVICE },
	{ N("lengths_uniform_h32_8_b16_bf16", 16, 1, 1024, 16, 32, 8, 128), .flags = BENCH | DEVICE,
		.kv_lens = LENS(ATTN_UNIFORM_16) },
	{ N("lengths_zipf_h32_8_b16_bf16", 16, 1, 1024, 16, 32, 8, 128), .flags = BENCH | DEVICE,
		.kv_lens = LENS(ATTN_ZIPF_16) },
	/* a tile that also has rows without keys: their positions precede the first key */
	{ N("window_rows_without_keys", 1, 9, 4, 16, 1, 1, 64), .flags = BOTH, .window = 2 },
	{ N("window_rows_without_keys_93", 2, 93, 50, 16, 4, 2, 128), .flags = BOTH, .window = 20 },
	{ N("window_rows_without_keys_all", 2, 93, 50, 16, 4, 2, 128), .flags = LSE, .window = 20 },
};

#define NUM_LATER	((int)ARRAY_SIZE(later))
#define NUM_LAST	((int)ARRAY_SIZE(last))
#define NUM_FIRST	(NUM_NAMED + NUM_DECODE + NUM_PREFILL + NUM_SMS)
#define NUM_PAIRS	57
#define NUM_16BIT	(NUM_FIRST + NUM_LATER + NUM_PAIRS + NUM_LAST)

#include "fused/attention/paged/attn_paged_pairs.h"
#include "fused/attention/paged/attn_paged_fp8_cases.h"

/* The last cases of all. */
static const struct shape windows[] = {
	/* windows of the rows of a tile begin on both sides of 256, 512 and 1024 keys */
	{ N("window_80_of_600", 1, 16, 600, 16, 2, 2, 64), .flags = BOTH, .window = 80 },
	{ N("window_61_of_1100", 1, 430, 1100, 16, 1, 1, 64), .flags = BOTH, .window = 61 },
	{ N("window_59_of_1100_group_3", 1, 150, 1100, 64, 3, 1, 64), .flags = BOTH | F16, .window = 59 },
	{ N("window_1_of_1100_d256", 1, 120, 1100, 16, 1, 1, 256), .flags = LSE, .window = 1 },
	{ N("window_2_of_4_decodes", 4, 3, 1, 16, 4, 1, 64), .flags = BOTH, .window = 2,
		.kv_lens = LENS(258, 514, 1026, 2050) },
	{ N("fp8_window_80_of_600", 1, 16, 600, 16, 2, 2, 64), .flags = BOTH | SCALES, .window = 80 },
	{ N("fp8_window_61_of_1100", 1, 430, 1100, 16, 1, 1, 64), .flags = BOTH | SCALES, .window = 61 },
	{ N("rows_257", 1, 257, 257, 16, 1, 1, 64), .flags = BOTH },
	{ N("rows_321_of_groups_of_3", 1, 107, 130, 16, 3, 1, 64), .flags = BOTH | F16 },
	{ N("group_9", 1, 5, 20, 16, 9, 1, 128), .flags = LSE },
	{ N("heads_24_of_2", 1, 3, 20, 8, 24, 2, 64), .flags = BOTH },
	{ N("heads_130", 1, 2, 9, 4, 130, 130, 64), .flags = BOTH },
	{ N("heads_260_of_2", 1, 2, 9, 4, 260, 2, 64), .flags = BOTH | F16 },
	{ N("fp8_group_9", 1, 5, 20, 16, 9, 1, 128), .flags = LSE | SCALES },
	{ N("fp8_heads_130", 1, 1, 9, 4, 130, 130, 64), .flags = BOTH | SCALES },
	/* keys past 2^16 that decide the result */
	{ N("last_key_decides_66100", 1, 1, 66100, 64, 1, 1, 64), .flags = LSE, .logits = EDGES },
	{ N("fp8_window_600_of_66100", 1, 1, 66100, 64, 1, 1, 64), .flags = LSE | SCALES, .window = 600 },
	/* pages larger than a tile of keys, or than a box of TMA */
	{ N("page_256", 2, 3, 600, 256, 4, 2, 64), .flags = BOTH },
	{ N("page_512", 2, 40, 1100, 512, 2, 1, 64), .flags = LSE | F16 },
	{ N("page_2048_fp8", 2, 1, 2100, 2048, 2, 1, 64), .flags = BOTH | SCALES },
	/* groups of more heads than a tile has rows, with other features */
	{ N("group_33_cap_window", 2, 3, 97, 16, 33, 1, 64), .flags = BOTH, .window = 40, .cap = 3 },
	{ N("fp8_group_20_cap", 2, 1, 97, 16, 40, 2, 64), .flags = LSE | F16 | SCALES, .cap = 3 },
	{ N("sms_3", 5, 1, 300, 16, 10, 5, 64), .flags = BOTH, .sms = 3 },
	{ N("sms_7_fp8", 1, 17, 300, 16, 6, 3, 64), .flags = LSE | SCALES, .sms = 7 },
	/* few tasks of many keys */
	{ N("sms_131_d256", 3, 1, 1536, 16, 2, 1, 256), .flags = BOTH, .sms = 131 },
	/* many keys of similar weight: errors of independent roundings cancel, others do not (bias.c) */
	{ N("even_weights", 8, 1, 1100, 16, 8, 2, 128), .flags = BOTH, .scale = 0.02f, .roundings = 4 },
	{ N("even_weights_f16", 4, 4, 900, 64, 4, 1, 64), .flags = BOTH | F16, .scale = 0.03f,
		.roundings = 4 },
	{ N("even_weights_prefill", 1, 70, 700, 16, 1, 1, 128), .flags = BOTH, .scale = 0.02f,
		.roundings = 4 },
	{ N("even_weights_fp8", 8, 1, 700, 16, 8, 2, 128), .flags = BOTH | SCALES, .scale = 0.02f,
		.roundings = 4 },
	/* many keys, with many rows and with one, of which those at the limits of a row's range decide */
	{ N("limits_2200", 1, 130, 2200, 16, 1, 1, 64), .flags = BOTH | F16, .logits = LIMITS },
	{ N("limits_window_1024", 1, 66, 2180, 64, 1, 1, 128), .flags = BOTH, .logits = LIMITS,
		.window = 1024 },
	{ N("limits_window_512_d256", 2, 1, 4130, 16, 2, 1, 256), .flags = LSE | F16, .logits = LIMITS,
		.window = 512 },
	{ N("limits_of_8200_keys", 2, 1, 8200, 1, 4, 1, 64), .flags = BOTH, .logits = LIMITS },
	{ N("limits_fp8_window_128", 1, 66, 2180, 16, 1, 1, 64), .flags = BOTH | FP8, .logits = LIMITS,
		.window = 128 },
	/* the number of keys is known: teams of 1 to 16 CTAs, with other features */
	{ N("teams", 12, 1, 1, 16, 8, 2, 128), .flags = KEYS_KNOWN | BOTH,
		.kv_lens = LENS(9000, 3, 700, 0, 1500, 4100, 130, 64, 2600, 17, 300, 5000) },
	{ N("teams_d64_f16_page_1", 6, 1, 1, 1, 9, 3, 64), .flags = KEYS_KNOWN | LSE | F16,
		.kv_lens = LENS(1, 5200, 90, 800, 0, 2000) },
	{ N("teams_d256_cap", 4, 1, 1, 16, 5, 1, 256), .flags = KEYS_KNOWN | BOTH, .cap = 3,
		.kv_lens = LENS(40, 10, 3000, 1200) },
	{ N("teams_fp8", 5, 1, 1, 16, 8, 2, 128), .flags = KEYS_KNOWN | BOTH | SCALES,
		.kv_lens = LENS(8200, 3, 600, 2000, 129) },
	{ N("teams_fp8_f16", 5, 1, 1, 16, 6, 2, 64), .flags = KEYS_KNOWN | LSE | F16 | SCALES,
		.kv_lens = LENS(31, 3, 3000, 900, 129) },
	{ N("teams_fp8_d256", 3, 1, 1, 16, 4, 2, 256), .flags = KEYS_KNOWN | BOTH | SCALES,
		.kv_lens = LENS(31, 2000, 500) },
	{ N("teams_window", 8, 1, 1, 16, 4, 2, 128), .flags = KEYS_KNOWN | BOTH, .window = 1500,
		.kv_lens = LENS(5000, 10, 1, 20, 7, 300, 40, 16) },
	{ N("teams_mixed", 6, 1, 1, 16, 4, 2, 128), .flags = KEYS_KNOWN | BOTH,
		.qo_lens = LENS(1, 40, 8, 0, 3, 9), .kv_lens = LENS(2000, 300, 70, 900, 700, 1000) },
	{ N("teams_of_98_with_holes", 98, 1, 130, 16, 4, 2, 64), .flags = KEYS_KNOWN | BOTH,
		.kv_lens = LENS(ATTN_HOLES_96, 17, 1500) },
	{ N("teams_padded", 6, 1, 1, 16, 4, 2, 64), .flags = KEYS_KNOWN | BOTH | PAGED_PADDED,
		.kv_lens = LENS(3000, 40, 7, 600, 1, 90) },
	{ N("teams_last_key_decides", 4, 1, 1, 16, 2, 1, 64), .flags = KEYS_KNOWN | LSE, .logits = EDGES,
		.kv_lens = LENS(129, 4097, 33, 1025) },
	/* with more tasks: equal shares */
	{ N("shares", 35, 1, 1, 16, 16, 8, 128), .flags = KEYS_KNOWN | BOTH,
		.kv_lens = LENS(ATTN_UNEVEN_35) },
	{ N("shares_of_three_rows", 35, 3, 1, 16, 32, 8, 64), .flags = KEYS_KNOWN | BOTH,
		.kv_lens = LENS(ATTN_UNEVEN_35) },
	{ N("shares_d64_f16_page_1", 35, 1, 1, 1, 24, 8, 64), .flags = KEYS_KNOWN | LSE | F16,
		.kv_lens = LENS(ATTN_UNEVEN_35) },
	{ N("shares_d256_cap", 35, 1, 1, 16, 8, 8, 256), .flags = KEYS_KNOWN | BOTH, .cap = 3,
		.kv_lens = LENS(ATTN_UNEVEN_35) },
	{ N("shares_fp8", 35, 1, 1, 16, 16, 8, 128), .flags = KEYS_KNOWN | BOTH | SCALES,
		.kv_lens = LENS(ATTN_UNEVEN_35) },
	{ N("shares_fp8_f16", 35, 1, 1, 16, 16, 8, 64), .flags = KEYS_KNOWN | LSE | F16 | SCALES,
		.kv_lens = LENS(ATTN_UNEVEN_35) },
	{ N("shares_window", 35, 1, 1, 16, 8, 8, 128), .flags = KEYS_KNOWN | BOTH, .window = 1500,
		.kv_lens = LENS(ATTN_UNEVEN_35) },
	{ N("shares_mixed", 35, 1, 1, 16, 16, 8, 128), .flags = KEYS_KNOWN | BOTH,
		.qo_lens = LENS(1, 1, 40, 1, 8, 0, 9, ATTN_ONE_28), .kv_lens = LENS(ATTN_UNEVEN_35) },
	{ N("shares_of_288_with_holes", 288, 1, 130, 16, 2, 1, 64), .flags = KEYS_KNOWN | BOTH,
		.kv_lens = LENS(ATTN_HOLES_96, ATTN_HOLES_96, ATTN_HOLES_96) },
	{ N("shares_padded", 35, 1, 1, 16, 8, 8, 64), .flags = KEYS_KNOWN | BOTH | PAGED_PADDED,
		.kv_lens = LENS(ATTN_UNEVEN_35) },
	{ N("shares_last_key_decides", 35, 1, 1, 16, 8, 8, 64), .flags = KEYS_KNOWN | LSE, .logits = EDGES,
		.kv_lens = LENS(ATTN_UNEVEN_35) },
	{ N("known_zipf_h32_8_b16_bf16", 16, 1, 1024, 16, 32, 8, 128), .flags = KNOWN_BENCH,
		.kv_lens = LENS(ATTN_ZIPF_16) },
	{ N("known_one_of_32768_h32_8_b8_bf16", 8, 1, 1024, 16, 32, 8, 128), .flags = KNOWN_BENCH,
		.kv_lens = LENS(ATTN_1024_3, 32768, ATTN_1024_4) },
	{ N("known_one_of_16384_h32_8_b64_bf16", 64, 1, 1024, 16, 32, 8, 128), .flags = KNOWN_BENCH,
		.kv_lens = LENS(ATTN_1024_16, ATTN_1024_16, ATTN_1024_16, ATTN_1024_8, ATTN_1024_4,
				ATTN_1024_3, 16384) },
	{ N("known_one_of_8192_h32_8_b17_bf16", 17, 1, 1424, 16, 32, 8, 128), .flags = KNOWN_BENCH,
		.kv_lens = LENS(ATTN_1424_16, 8192) },
	{ N("known_one_of_8192_h32_8_b33_bf16", 33, 1, 1424, 16, 32, 8, 128), .flags = KNOWN_BENCH,
		.kv_lens = LENS(ATTN_1424_16, ATTN_1424_16, 8192) },
	{ N("known_zipf_h32_8_b64_bf16", 64, 1, 1024, 16, 32, 8, 128), .flags = KNOWN_BENCH,
		.kv_lens = LENS(ATTN_ZIPF_64) },
	{ N("known_zipf_h32_8_b256_bf16", 256, 1, 1024, 16, 32, 8, 128), .flags = KNOWN_BENCH,
		.kv_lens = LENS(ATTN_ZIPF_64, ATTN_ZIPF_64, ATTN_ZIPF_64, ATTN_ZIPF_64) },
	{ N("known_zipf_h32_8_b16_fp8", 16, 1, 1024, 16, 32, 8, 128),
		.flags = KNOWN_BENCH | SCALES, .kv_lens = LENS(ATTN_ZIPF_16) },
	{ N("known_zipf_h32_8_b64_fp8", 64, 1, 1024, 16, 32, 8, 128),
		.flags = KNOWN_BENCH | SCALES, .kv_lens = LENS(ATTN_ZIPF_64) },
	/* as many SMs as an H20 has, and fewer */
	{ N("decode_h32_8_b20_kv4096_sms78_bf16", 20, 1, 4096, 16, 32, 8, 128),
		.flags = BENCH | DEVICE, .sms = 78 },
	{ N("decode_h32_8_b64_kv1024_sms78_bf16", 64, 1, 1024, 16, 32, 8, 128),
		.flags = BENCH | DEVICE, .sms = 78 },
	{ N("decode_h32_8_b64_kv4096_sms78_bf16", 64, 1, 4096, 16, 32, 8, 128),
		.flags = BENCH | DEVICE, .sms = 78 },
	{ N("decode_h32_8_b64_kv4096_sms48_bf16", 64, 1, 4096, 16, 32, 8, 128),
		.flags = BENCH | DEVICE, .sms = 48 },
	{ N("decode_h32_8_b64_kv4096_sms24_bf16", 64, 1, 4096, 16, 32, 8, 128),
		.flags = BENCH | DEVICE, .sms = 24 },
	/* the next turn of a conversation, and the end of a prompt: few rows over many cached keys */
	{ N("append_h32_8_b1_qo128_kv16384_causal_bf16", 1, 128, 16384, 16, 32, 8, 128),
		.flags = BENCH | CAUSAL | DEVICE },
	{ N("append_h32_8_b1_qo16_kv8192_causal_bf16", 1, 16, 8192, 16, 32, 8, 128),
		.flags = BENCH | CAUSAL | DEVICE },
	{ N("mix_h32_8_qo16_b17_kv8192_causal_bf16", 17, 16, 8192, 16, 32, 8, 128),
		.flags = BENCH | CAUSAL | DEVICE | DECODES },
};

#define NUM_WINDOWS	((int)ARRAY_SIZE(windows))
#define NUM_WITH_FP8	(NUM_16BIT + NUM_FP8 + NUM_FP8_PAIRS)

#define FIRST_ENDS	(NUM_WITH_FP8 + NUM_WINDOWS)
#define FIRST_DECODES	(FIRST_ENDS + NUM_ENDS)

#include "fused/attention/paged/attn_paged_ends.h"

#define NUM_CASES	(FIRST_DECODES + NUM_DECODES)

static const struct cairn_draw_axis axes[] = {
	CAIRN_DRAW_SIZE(struct shape, batch, 1, 140, 1),
	CAIRN_DRAW_SIZE(struct shape, qo, 1, 700, 1),
	CAIRN_DRAW_SIZE(struct shape, kv, 1, 9000, 1),
	CAIRN_DRAW_SIZE(struct shape, page, 1, 600, 1),
	CAIRN_DRAW_SIZE(struct shape, hkv, 1, 40, 1),
	CAIRN_DRAW_SIZE(struct shape, hq, 1, 40, 1),	/* of a KV head, see allowed() */
	CAIRN_DRAW_ONE_OF(struct shape, dim, 64, 64, 128, 256),
	CAIRN_DRAW_SIZE(struct shape, window, 0, 3000, 1),
	CAIRN_DRAW_ONE_OF(struct shape, cap, 0, 0, 0, 30, 5, 0.7f),
	CAIRN_DRAW_ONE_OF(struct shape, scale, 0, 0, 0.3f, 1.3f),
	CAIRN_DRAW_ONE_OF(struct shape, gap, 0, 0, 8, 72),
	CAIRN_DRAW_ONE_OF(struct shape, explicit_stride, 0, 1),
	CAIRN_DRAW_ONE_OF(struct shape, equal, 0, 1),
	CAIRN_DRAW_ONE_OF(struct shape, logits, 0, 0, LIMITS),
	CAIRN_DRAW_ONE_OF(struct shape, sms, 0, 0, 0, 1, 2, 3, 24),
	CAIRN_DRAW_ONE_OF(struct shape, flags, CAUSAL, CAUSAL, CAUSAL, 0),
	CAIRN_DRAW_ONE_OF(struct shape, flags, LSE, 0),
	CAIRN_DRAW_ONE_OF(struct shape, flags, 0, F16),
	CAIRN_DRAW_ONE_OF(struct shape, flags, 0, 0, PACKED),
	CAIRN_DRAW_ONE_OF(struct shape, flags, 0, 0, 0, SCALES, SCALES, FP8, FP8 | K_SCALE, FP8 | V_SCALE),
	CAIRN_DRAW_ONE_OF(struct shape, flags, 0, PAGED_RAGGED),
	CAIRN_DRAW_ONE_OF(struct shape, flags, 0, 0, DECODES),
	CAIRN_DRAW_ONE_OF(struct shape, flags, 0, 0, 0, PAGED_PADDED, PAGED_SPARE, PAGED_DUPLICATE,
			  PAGED_HELD),
	CAIRN_DRAW_ONE_OF(struct shape, flags, 0, KEYS_KNOWN),
};

/* Where there is more room, most shapes have one request and few heads, but many rows with many keys. */
static int allowed(void *shape, int room)
{
	struct shape *s = shape;
	int64_t listed, rows, products, least = 0;

	s->pair = 1;
	s->hq *= s->hkv;
	s->window = s->window % 3 ? s->window : 0;
	if (room > 1 && s->batch % 4) {
		s->batch = s->hkv = 1;
		s->hq = 1 + s->hq % 2;
		least = room * 4000000 / 6;
	}
	listed = s->batch * ((int64_t)s->kv / s->page + 1);
	rows = s->flags & DECODES ? s->qo + s->batch - 1 : (int64_t)s->batch * s->qo;
	products = rows * (s->kv + 16) * s->hq * s->dim;
	return products >= least && products <= room * 4000000 &&
	       listed * s->page * s->hkv * s->dim <= room * 1000000;
}

static const struct cairn_draw draws = {
	.shape_bytes = sizeof(struct shape), .axes = axes, .num_axes = ARRAY_SIZE(axes),
	.allowed = allowed, .roomy = 8, .many = 2400,
};

#endif
