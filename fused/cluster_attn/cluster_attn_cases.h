/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cluster_attn_cases - the shapes that cluster_attn_test.c runs: named edge cases, full-size models and bench
 * rows; then two generated series, of dataflows by cluster size and of shapes, whose other dimensions rotate
 * through lists
 *
 * Include conformance/harness.h, conformance/suite/draw.h and paged_test.h first.
 */
#ifndef CAIRN_CLUSTER_ATTN_CASES_H
#define CAIRN_CLUSTER_ATTN_CASES_H

#include <string.h>

#include "fused/cluster_attn/cluster_attn.h"

enum {
	F16 = PAGED_FLAGS, BIAS = F16 << 1, ALIAS = F16 << 2,
	SHARED = F16 << 3,		/* the other requests use the full pages of the first one too */
	ZERO_LAST = F16 << 4,		/* the second request has a page without a key */
	LARGE_EPS = F16 << 5, OFFCHIP = F16 << 6, BENCH = F16 << 7, DEVICE = F16 << 8,
	BIAS_QKV = F16 << 9, BIAS_OUT = F16 << 10,	/* one bias alone */
	MEAN = F16 << 11,		/* kind NORMAL, with enough elements for bias.c */
	SUMS = F16 << 12,		/* kind EXACT, with sums of many bits, most of whose terms cancel */
};

/*
 * What an EXTREME input distorts. The values from TOP on need biases. The values after NUM_BENT are for
 * single cases: LATE, the keys from 2^16 on have all the weight; DEEP, all logits are lower by 10240;
 * BALANCE, the values of one key and those of all others, whose logits are lower by 40 or 9, nearly cancel;
 * EARLY, the first key has all the weight; STAIRS, logits rise and fall (attn_stairs.h).
 */
enum { PLAIN, LARGE_X, TINY_X, LARGE_V, TINY_V, EQUAL, TOP, NEW_TOP, NEGATIVE, HUGE_LOGITS, NUM_BENT,
       LATE, DEEP, BALANCE, EARLY, STAIRS };

enum {
	AUTO = CAIRN_CLUSTER_ATTN_AUTO, TOKEN = CAIRN_CLUSTER_ATTN_SPLIT_TOKEN,
	HEAD = CAIRN_CLUSTER_ATTN_SPLIT_HEAD,
};

struct shape {
	const char *name;		/* NULL: generated from the numbers */
	/* kv: kv_len of the longest request; page: page_size; hq, hkv: query and KV heads */
	int batch, kv, page, hq, hkv, dim, hidden;
	unsigned flags;
	int dataflow, cluster, bent;
	const int *kv_lens;		/* [batch]; NULL: from kv */
	int sms;
	/* cluster_attn_pairs.h */
	int pair;			/* number of the case, or 0 */
	int ends;			/* cluster_attn_ends.h: number of the case, or 0 */
	double eps, size;		/* size: deviation of x */
	float scale;			/* sm_scale; 0: from head_dim */
	int near;			/* all positions are 0 */
	const int32_t *positions;	/* [batch]; NULL: drawn */
};

#define LENS(...)	(const int[]){ __VA_ARGS__ }
#define N(case_name, requests, kv_len, page_size, qo_heads, kv_heads, head_dim, hidden_dim) \
	.name = case_name, .batch = requests, .kv = kv_len, .page = page_size, .hq = qo_heads, \
	.hkv = kv_heads, .dim = head_dim, .hidden = hidden_dim
/* bench rows: the attention block of Llama 2 7B, of Llama 3 8B, and of a model with `heads` heads */
#define LLAMA2(case_name, requests, kv_len) \
	N(case_name, requests, kv_len, 16, 32, 32, 128, 4096), .flags = F16 | BENCH | DEVICE
#define LLAMA3(case_name, requests, kv_len) \
	N(case_name, requests, kv_len, 16, 32, 8, 128, 4096), .flags = BENCH | DEVICE
#define HEADS(case_name, heads) \
	N(case_name, 1, 4096, 16, heads, heads, 128, 4096), .flags = F16 | BENCH | DEVICE
#define KV4096(flow, c) \
	{ LLAMA2("llama2_7b_b1_kv4096_" flow "_c" #c, 1, 4096), .cluster = c
#define BY_HEADS(h, c) \
	{ HEADS("heads" #h "_b1_kv4096_token_c" #c, h), .dataflow = TOKEN, .cluster = c }
#define BY_LENGTH(k) \
	{ LLAMA2("llama2_7b_b1_kv" #k "_token_c4", 1, k), .dataflow = TOKEN, .cluster = 4 }, \
	{ LLAMA2("llama2_7b_b1_kv" #k "_head_c4", 1, k), .dataflow = HEAD, .cluster = 4 }
#define OFFCHIP_KV4096(flow, df, c) \
	{ N("llama2_7b_b1_kv4096_" flow "_c" #c "_offchip", 1, 4096, 16, 32, 32, 128, 4096), \
		.flags = F16 | BENCH | DEVICE | OFFCHIP, .dataflow = df, .cluster = c }

static const struct shape named[] = {
	{ N("all_in_one", 3, 70, 16, 8, 2, 64, 128),
		.flags = BIAS | F16 | PAGED_RAGGED, .dataflow = TOKEN, .cluster = 4 },
	{ N("batch_0", 0, 1, 16, 4, 2, 64, 64), .flags = F16 },
	{ N("old_length_0", 1, 1, 1, 4, 4, 64, 64), .flags = F16 },
	{ N("old_length_0_batch_16", 16, 1, 16, 8, 2, 128, 64), .flags = BIAS },
	{ N("without_a_page", 4, 1, 8, 4, 2, 64, 64), .flags = F16, .kv_lens = LENS(9, 0, 33, 0) },
	{ N("only_without_a_page", 2, 1, 8, 4, 2, 64, 64), .kv_lens = LENS(0, 0) },
	{ N("page_without_a_key", 3, 1, 8, 4, 2, 64, 64),
		.flags = F16 | ZERO_LAST, .kv_lens = LENS(9, 1, 33) },
	{ N("last_page_full", 3, 64, 16, 8, 2, 128, 64), .flags = F16 },
	{ N("last_page_one_slot", 3, 65, 16, 8, 2, 128, 64), .flags = 0 },
	{ N("page_1", 2, 77, 1, 8, 2, 64, 128), .flags = F16 | PAGED_RAGGED },
	{ N("page_1000", 2, 1203, 1000, 4, 2, 64, 64), .flags = F16 | PAGED_RAGGED },
	{ N("no_spare_page", 3, 40, 8, 4, 2, 64, 64), .flags = PAGED_FULL },
	{ N("prefix_shared", 5, 100, 8, 8, 2, 64, 64), .flags = F16 | SHARED | PAGED_RAGGED },
	{ N("high_page_ids", 2, 40, 4, 4, 1, 64, 64), .flags = F16 | PAGED_HIGH },
	{ N("padded_graph", 8, 1, 16, 8, 2, 128, 128), .flags = PAGED_PADDED | BIAS,
		.kv_lens = LENS(97, 16, 1, 0, 200, 0, 33, 1) },
	{ N("bound_of_131072", 2, 50, 16, 8, 2, 64, 64), .flags = F16 | PAGED_PADDED | PAGED_HIGH },
	{ N("in_place", 1, 40, 16, 8, 2, 64, 256), .flags = F16 | ALIAS },
	{ N("in_place_batch_5", 5, 40, 16, 4, 4, 128, 192), .flags = ALIAS | BIAS | PAGED_RAGGED },
	{ N("in_place_split_token", 3, 150, 16, 8, 8, 64, 256),
		.flags = F16 | ALIAS | PAGED_RAGGED, .dataflow = TOKEN, .cluster = 4 },
	{ N("in_place_split_head", 3, 150, 16, 8, 8, 64, 256),
		.flags = ALIAS | PAGED_RAGGED, .dataflow = HEAD, .cluster = 4 },
	{ N("eps_half", 2, 33, 16, 8, 2, 64, 192), .flags = F16 | LARGE_EPS },
	{ N("hidden_1024_bias", 2, 65, 16, 8, 2, 128, 1024), .flags = BIAS },
	{ N("hidden_3584_h28_4", 1, 17, 16, 28, 4, 64, 3584), .flags = BIAS },
	{ N("hidden_8192", 1, 5, 16, 2, 1, 64, 8192), .flags = F16 },
	{ N("hidden_16384", 2, 3, 16, 1, 1, 64, 16384), .flags = 0 },
	{ N("group_16", 2, 97, 16, 16, 1, 64, 64), .flags = F16 },
	{ N("group_13", 3, 40, 16, 13, 1, 128, 64), .flags = BIAS },
	{ N("group_7", 2, 40, 16, 14, 2, 128, 128), .flags = F16 | BIAS },
	{ N("one_head", 4, 40, 16, 1, 1, 128, 64), .flags = PAGED_RAGGED },
	{ N("heads_3", 3, 70, 16, 3, 3, 64, 192), .flags = F16 | PAGED_RAGGED },
	{ N("kv_999", 1, 999, 16, 4, 2, 128, 64), .flags = F16 },
	{ N("kv_1024", 1, 1024, 16, 8, 2, 64, 64), .flags = 0 },
	{ N("kv_1025_batch_3", 3, 1025, 16, 4, 1, 64, 64), .flags = F16 | PAGED_RAGGED },
	{ N("kv_4999_group_2", 1, 4999, 16, 2, 1, 64, 64), .flags = F16 },
	{ N("x_large", 3, 40, 16, 4, 2, 64, 256), .flags = F16, .bent = LARGE_X },
	{ N("x_large_bf16", 3, 40, 16, 4, 2, 64, 256), .bent = LARGE_X },
	{ N("x_near_zero", 4, 40, 16, 4, 2, 64, 128), .flags = F16 | BIAS, .bent = TINY_X },
	{ N("x_near_zero_bf16", 4, 40, 16, 4, 2, 128, 128), .bent = TINY_X },
	{ N("values_large", 2, 40, 16, 4, 2, 64, 128), .flags = F16, .bent = LARGE_V },
	{ N("values_large_bf16", 2, 40, 16, 4, 2, 64, 128), .bent = LARGE_V },
	{ N("values_subnormal", 2, 40, 16, 4, 2, 64, 128), .flags = F16, .bent = TINY_V },
	{ N("logits_equal", 3, 64, 16, 8, 2, 64, 128), .flags = F16, .bent = EQUAL },
	{ N("logits_one_dominates", 3, 64, 16, 8, 2, 64, 128), .flags = F16 | BIAS, .bent = TOP },
	{ N("logits_new_dominates", 3, 64, 16, 8, 2, 128, 128), .flags = BIAS, .bent = NEW_TOP },
	{ N("logits_below_minus_126", 3, 200, 16, 8, 2, 64, 128),
		.flags = F16 | BIAS | PAGED_RAGGED, .bent = NEGATIVE },
	{ N("logits_below_minus_126_bf16", 3, 200, 16, 4, 4, 128, 128), .flags = BIAS, .bent = NEGATIVE },
	{ N("logits_below_minus_126_token", 2, 200, 16, 8, 2, 64, 128),
		.flags = F16 | BIAS | PAGED_RAGGED, .bent = NEGATIVE,
		.dataflow = TOKEN, .cluster = 4 },
	{ N("logits_below_minus_126_head", 2, 200, 16, 8, 2, 64, 128),
		.flags = F16 | BIAS | PAGED_RAGGED, .bent = NEGATIVE,
		.dataflow = HEAD, .cluster = 4 },
	{ N("logits_huge", 3, 64, 16, 8, 2, 64, 128), .flags = F16 | BIAS, .bent = HUGE_LOGITS },
	{ N("logits_huge_bf16", 3, 64, 16, 8, 2, 128, 128), .flags = BIAS, .bent = HUGE_LOGITS },
	/* more requests and KV heads than CTAs: a task of fused/grid has two heads, or four (on 132 CTAs) */
	{ N("heads_by_two", 10, 70, 16, 16, 16, 64, 64), .flags = F16 | BIAS | PAGED_RAGGED },
	{ N("heads_by_two_group_4", 9, 150, 3, 64, 16, 64, 64), .flags = PAGED_RAGGED | PAGED_PADDED },
	{ N("heads_by_four", 14, 70, 16, 32, 32, 64, 64), .flags = PAGED_RAGGED },
	{ N("heads_by_four_group_2", 16, 40, 1, 64, 32, 128, 64), .flags = F16 | BIAS | PAGED_RAGGED },
	/* too large to run on the CPU */
	{ N("large_llama2_7b_b3", 3, 1025, 16, 32, 32, 128, 4096), .flags = F16 | DEVICE | PAGED_RAGGED },
	{ N("large_llama3_8b_b8", 8, 1100, 64, 32, 8, 128, 4096), .flags = DEVICE | PAGED_RAGGED },
	{ N("large_llama3_8b_b16_page1", 16, 700, 1, 32, 8, 128, 4096),
		.flags = DEVICE | PAGED_RAGGED | PAGED_PADDED },
	{ N("large_llama3_70b_b2", 2, 1000, 16, 64, 8, 128, 8192), .flags = DEVICE | PAGED_RAGGED },
	{ N("large_qwen2_7b_b4", 4, 900, 16, 28, 4, 128, 3584), .flags = BIAS | DEVICE | PAGED_RAGGED },
	{ N("large_llama32_1b_b1", 1, 1024, 16, 32, 8, 64, 2048), .flags = DEVICE },
	{ N("large_llama32_1b_b5_in_place", 5, 1024, 16, 32, 8, 64, 2048),
		.flags = DEVICE | ALIAS | PAGED_RAGGED },
	{ N("large_token_c5_b4", 4, 3000, 16, 32, 8, 128, 2048),
		.flags = F16 | DEVICE | PAGED_RAGGED, .dataflow = TOKEN, .cluster = 5 },
	{ N("large_head_c8_b2", 2, 3000, 16, 32, 8, 128, 2048),
		.flags = DEVICE | PAGED_RAGGED, .dataflow = HEAD, .cluster = 8 },
	{ N("large_kv131072", 1, 131072, 16, 8, 1, 128, 1024), .flags = DEVICE },
	{ N("large_kv131072_b2_d64", 2, 131072, 64, 4, 2, 64, 512), .flags = F16 | DEVICE | PAGED_RAGGED },
	{ N("large_kv131072_token_c16", 1, 131072, 16, 4, 1, 128, 1024),
		.flags = F16 | DEVICE, .dataflow = TOKEN, .cluster = 16 },
	{ N("large_kv131072_head_c4", 1, 131072, 16, 4, 1, 128, 1024),
		.flags = F16 | DEVICE, .dataflow = HEAD, .cluster = 4 },
	/* benched rows; a length counts the new key */
	{ LLAMA2("llama2_7b_b1_kv1024", 1, 1024) }, { LLAMA2("llama2_7b_b1_kv2048", 1, 2048) },
	{ LLAMA2("llama2_7b_b1_kv4096", 1, 4096) }, { LLAMA2("llama2_7b_b1_kv8192", 1, 8192) },
	{ LLAMA2("llama2_7b_b1_kv16384", 1, 16384) },
	{ LLAMA3("llama3_8b_b1_kv1024", 1, 1024) }, { LLAMA3("llama3_8b_b1_kv2048", 1, 2048) },
	{ LLAMA3("llama3_8b_b1_kv4096", 1, 4096) }, { LLAMA3("llama3_8b_b1_kv8192", 1, 8192) },
	{ LLAMA3("llama3_8b_b1_kv16384", 1, 16384) },
	{ LLAMA2("llama2_7b_b16_kv1024", 16, 1024) }, { LLAMA2("llama2_7b_b16_kv4096", 16, 4096) },
	KV4096("token", 1), .dataflow = TOKEN }, KV4096("token", 2), .dataflow = TOKEN },
	KV4096("token", 4), .dataflow = TOKEN }, KV4096("token", 8), .dataflow = TOKEN },
	KV4096("token", 16), .dataflow = TOKEN }, KV4096("head", 2), .dataflow = HEAD },
	KV4096("head", 4), .dataflow = HEAD }, KV4096("head", 8), .dataflow = HEAD },
	KV4096("head", 16), .dataflow = HEAD },
	OFFCHIP_KV4096("token", TOKEN, 2), OFFCHIP_KV4096("token", TOKEN, 4),
	OFFCHIP_KV4096("token", TOKEN, 8), OFFCHIP_KV4096("token", TOKEN, 16),
	OFFCHIP_KV4096("head", HEAD, 2), OFFCHIP_KV4096("head", HEAD, 4),
	OFFCHIP_KV4096("head", HEAD, 8), OFFCHIP_KV4096("head", HEAD, 16),
	BY_HEADS(32, 1), BY_HEADS(32, 2), BY_HEADS(32, 4), BY_HEADS(32, 8), BY_HEADS(32, 16),
	BY_HEADS(64, 1), BY_HEADS(64, 2), BY_HEADS(64, 4), BY_HEADS(64, 8), BY_HEADS(64, 16),
	BY_HEADS(128, 1), BY_HEADS(128, 2), BY_HEADS(128, 4), BY_HEADS(128, 8), BY_HEADS(128, 16),
	BY_LENGTH(1024), BY_LENGTH(2048), BY_LENGTH(8192), BY_LENGTH(16384),
};

/* A share of the device. Above batch 8 the grid's CTAs work in pairs, so with one SM AUTO is SPLIT_TOKEN. */
static const struct shape with_sms[] = {
	{ N("sms_1", 2, 40, 16, 8, 2, 64, 128), .sms = 1 },
	{ N("sms_24", 1, 130, 16, 8, 2, 64, 256), .sms = 24, .flags = F16 },
	{ N("sms_7_batch_5", 5, 40, 16, 8, 4, 128, 128), .sms = 7, .flags = PAGED_RAGGED },
	{ N("sms_64_batch_16", 16, 70, 16, 16, 16, 64, 64), .sms = 64, .flags = PAGED_RAGGED },
	{ N("sms_3_batch_16", 16, 40, 16, 8, 2, 64, 64), .sms = 3, .flags = F16 },
	{ N("sms_1_batch_9_one_head", 9, 40, 16, 1, 1, 64, 64), .sms = 1 },
	{ N("sms_24_token_c8", 2, 130, 16, 8, 2, 64, 128), .sms = 24, .dataflow = TOKEN, .cluster = 8 },
	{ N("sms_24_head_chosen", 2, 130, 16, 8, 4, 64, 128), .sms = 24, .dataflow = HEAD },
	/* the last pages, of 2048 elements, begin past 2^32 elements */
	{ N("far_pages", 2, 40, 16, 8, 2, 64, 64), .flags = PAGED_FAR },
	{ N("far_pages_token_c2", 2, 40, 16, 8, 2, 64, 64), .flags = PAGED_FAR, .dataflow = TOKEN,
	  .cluster = 2 },
};

/* Each dataflow at each cluster size, each in both forms: on chip and off. */
static const struct {
	int dataflow, cluster;
} flows[] = {
	{ TOKEN, 1 }, { TOKEN, 2 }, { TOKEN, 3 }, { TOKEN, 4 }, { TOKEN, 5 }, { TOKEN, 6 }, { TOKEN, 7 },
	{ TOKEN, 8 }, { TOKEN, 9 }, { TOKEN, 10 }, { TOKEN, 11 }, { TOKEN, 12 }, { TOKEN, 13 }, { TOKEN, 14 },
	{ TOKEN, 15 }, { TOKEN, 16 }, { TOKEN, 0 },
	{ HEAD, 1 }, { HEAD, 2 }, { HEAD, 4 }, { HEAD, 8 }, { HEAD, 16 }, { HEAD, 0 },
};

static const int heads[][2] = { { 4, 4 }, { 8, 2 }, { 32, 32 }, { 32, 8 }, { 64, 8 }, { 28, 4 } };
static const int batches[] = { 1, 2, 3, 4, 8, 16 }, page_sizes[] = { 16, 1, 32, 3, 64 };
static const int lengths[] = { 1, 2, 15, 16, 17, 63, 64, 65, 127, 128, 129, 300 };
static const int widths[] = { 64, 192, 256, 512 };

#define NUM_NAMED	((int)ARRAY_SIZE(named))
#define NUM_FLOWS	((int)ARRAY_SIZE(flows) * 2)
#define NUM_SHAPES	48
#define NUM_SMS		((int)ARRAY_SIZE(with_sms))

static void flow_at(int i, struct shape *s)
{
	static const int few_heads[][2] = { { 4, 4 }, { 8, 2 }, { 4, 2 }, { 7, 1 } };
	static const int few_lengths[] = { 130, 1, 65, 300, 17, 64, 2 };

	s->dataflow = flows[i / 2].dataflow;
	s->cluster = flows[i / 2].cluster;
	s->batch = (int[]){ 1, 3, 2, 5 }[i / 2 % 4];
	s->kv = few_lengths[i % 7];
	s->page = page_sizes[i % 5];
	s->hq = few_heads[i / 2 % 4][0];
	s->hkv = few_heads[i / 2 % 4][1];
	s->dim = s->cluster == 16 || i % 3 ? 128 : 64;
	s->hidden = widths[(i + i / 4) % 3];
	s->flags = (i % 2 ? OFFCHIP : 0) | ((i + i / 2) % 2 ? F16 : 0) | (i % 3 == 1 ? BIAS : 0) |
		   (i % 4 ? PAGED_RAGGED : 0);
}

/* cases after the others; then come those of cluster_attn_pairs.h, sums[] and last[] */
static const struct shape later[] = {
	{ N("mean_error_batch_16", 16, 40, 16, 4, 2, 64, 512), .flags = MEAN },
	{ N("mean_error_batch_16_f16", 16, 40, 16, 4, 2, 64, 512), .flags = MEAN | F16 },
};

/* Logits are 0; lengths are powers of two. */
#define SUMS_OF(case_name, flow, size, more) \
	{ N(case_name, 4, 8, 16, 4, 2, 64, 128), .flags = SUMS | (more), .near = 1, .dataflow = flow, \
	  .cluster = size, .kv_lens = LENS(8, 64, 1, 2) }
static const struct shape sums[] = {
	SUMS_OF("sums_of_22_bits", AUTO, 0, 0),
	SUMS_OF("sums_of_21_bits_f16", AUTO, 0, F16),
	SUMS_OF("sums_of_22_bits_token_c4", TOKEN, 4, 0),
	SUMS_OF("sums_of_21_bits_head_c4_f16", HEAD, 4, F16),
	SUMS_OF("sums_of_22_bits_head_c2_offchip", HEAD, 2, OFFCHIP),
};

/* Positions that need 16, 17, 20 and 31 bits. NO_KEY_OF: requests without a key, with out in place of x. */
#define FAR_POSITIONS	(const int32_t[]){ 40001, 65836, 131071, 1000003, 0x7fffffff }
#define NO_KEY_OF(case_name, more, flow, size) \
	{ N("in_place_without_a_page" case_name, 5, 1, 8, 4, 2, 64, 64), .flags = ALIAS | (more), \
	  .kv_lens = LENS(0, 9, 0, 33, 0), .dataflow = flow, .cluster = size }, \
	{ N("in_place_page_without_a_key" case_name, 3, 1, 8, 4, 2, 64, 64), \
	  .flags = ALIAS | ZERO_LAST | (more), .kv_lens = LENS(9, 1, 33), .dataflow = flow, .cluster = size }
static const struct shape last[] = {
	{ N("positions_past_2e16", 5, 20, 16, 4, 2, 64, 64), .flags = PAGED_RAGGED,
	  .positions = FAR_POSITIONS },
	{ N("positions_past_2e16_token_c2_f16", 5, 20, 16, 4, 2, 128, 64), .flags = PAGED_RAGGED | F16,
	  .positions = FAR_POSITIONS, .dataflow = TOKEN, .cluster = 2 },
	{ N("positions_past_2e16_head_c4", 5, 20, 16, 4, 2, 64, 64), .flags = PAGED_RAGGED,
	  .positions = FAR_POSITIONS, .dataflow = HEAD, .cluster = 4 },
	{ N("keys_past_2e16", 1, 65600, 64, 1, 1, 64, 64), .flags = BIAS | PAGED_CYCLE, .bent = LATE },
	{ N("keys_past_2e16_token_c4_f16", 1, 65600, 64, 1, 1, 64, 64), .flags = F16 | BIAS | PAGED_CYCLE,
	  .bent = LATE, .dataflow = TOKEN, .cluster = 4 },
	{ N("keys_past_2e16_head_c2", 1, 65600, 64, 1, 1, 64, 64), .flags = BIAS | PAGED_CYCLE, .bent = LATE,
	  .dataflow = HEAD, .cluster = 2 },
	{ N("logits_below_minus_10000", 3, 90, 16, 4, 2, 64, 64), .flags = BIAS, .bent = DEEP },
	{ N("logits_below_minus_10000_token_c4", 3, 90, 16, 4, 2, 64, 64), .flags = BIAS, .bent = DEEP,
	  .dataflow = TOKEN, .cluster = 4 },
	{ N("logits_below_minus_10000_head_c2", 3, 90, 16, 4, 2, 64, 64), .flags = BIAS, .bent = DEEP,
	  .dataflow = HEAD, .cluster = 2 },
	/* sm_scale lies between two numbers of dtype */
	{ N("scale_of_more_bits", 3, 30, 16, 4, 2, 64, 64), .flags = BIAS, .bent = BALANCE },
	{ N("scale_of_more_bits_token_c4_f16", 3, 30, 16, 4, 2, 64, 64), .flags = BIAS | F16, .bent = BALANCE,
	  .dataflow = TOKEN, .cluster = 4 },
	{ N("scale_of_more_bits_head_c2", 3, 30, 16, 4, 2, 128, 64), .flags = BIAS, .bent = BALANCE,
	  .dataflow = HEAD, .cluster = 2 },
	NO_KEY_OF("", F16, AUTO, 0),
	NO_KEY_OF("_token_c4", 0, TOKEN, 4),
	NO_KEY_OF("_head_c4_f16", F16, HEAD, 4),
	/* more than eight requests run a separate kernel */
	{ N("in_place_without_a_page_batch_9", 9, 1, 8, 4, 2, 64, 64), .flags = ALIAS,
	  .kv_lens = LENS(0, 9, 0, 0, 33, 1, 0, 17, 0) },
	{ N("group_9_to_12_batch_13", 13, 20, 16, 10, 1, 64, 64), .flags = PAGED_RAGGED },
	{ N("group_11_f16", 2, 40, 16, 11, 1, 128, 64), .flags = F16 },
	{ N("group_12", 3, 40, 16, 24, 2, 64, 64), .flags = PAGED_RAGGED },
	{ N("heads_96", 2, 20, 16, 96, 8, 64, 64), .flags = F16 },
	{ N("sms_64_token_c4_offchip", 2, 70, 16, 8, 4, 64, 64), .flags = OFFCHIP, .sms = 64,
		.dataflow = TOKEN, .cluster = 4 },
	{ N("sms_64_head_c4_offchip", 2, 70, 16, 8, 4, 64, 64), .flags = OFFCHIP | F16, .sms = 64,
		.dataflow = HEAD, .cluster = 4 },
	{ N("head_c16_offchip_kv_300", 2, 300, 16, 4, 2, 128, 64), .flags = OFFCHIP, .dataflow = HEAD,
		.cluster = 16 },
	{ N("first_of_17000_keys_decides", 1, 17000, 64, 1, 1, 64, 64), .flags = BIAS, .bent = EARLY },
	{ N("first_of_17000_keys_decides_token_c4", 1, 17000, 64, 1, 1, 64, 64), .flags = BIAS | F16,
		.bent = EARLY, .dataflow = TOKEN, .cluster = 4 },
	{ N("stairs", 8, 300, 16, 4, 2, 64, 64), .flags = BIAS, .bent = STAIRS },
	{ N("stairs_f16", 8, 300, 16, 4, 2, 64, 64), .flags = BIAS | F16, .bent = STAIRS },
	{ N("stairs_batch_16", 16, 300, 16, 4, 2, 64, 64), .flags = BIAS, .bent = STAIRS },
	{ N("stairs_token_c4", 8, 300, 16, 4, 2, 64, 64), .flags = BIAS, .bent = STAIRS, .dataflow = TOKEN,
		.cluster = 4 },
	{ N("stairs_head_c4", 8, 300, 16, 4, 2, 64, 64), .flags = BIAS, .bent = STAIRS, .dataflow = HEAD,
		.cluster = 4 },
	{ N("batch_16_group_16_of_2", 16, 20, 16, 32, 2, 64, 64), .flags = PAGED_RAGGED },
	{ N("batch_16_group_16_of_2_f16", 16, 20, 16, 32, 2, 128, 64), .flags = PAGED_RAGGED | F16 },
	/* x has the size of the root of the smallest eps; that of the first request is 0 */
	{ N("eps_smallest", 3, 20, 16, 4, 2, 64, 64), .eps = CAIRN_EPS_MIN, .size = 0x1p-63 },
	{ N("eps_smallest_hidden_1024", 2, 20, 16, 4, 2, 64, 1024), .eps = CAIRN_EPS_MIN, .size = 0x1p-64 },
	{ N("in_place_hidden_16384", 2, 3, 16, 1, 1, 64, 16384), .flags = ALIAS },
	{ N("in_place_hidden_8256_batch_9_f16", 9, 3, 16, 1, 1, 64, 8256), .flags = ALIAS | F16 },
	{ N("page_256", 2, 300, 256, 2, 1, 64, 64), .flags = BIAS },
	{ N("page_512_f16", 1, 600, 512, 2, 1, 64, 64), .flags = F16 },
	/* two waves of requests, and no other rank */
	{ N("batch_13_group_6_token_c1", 13, 2, 255, 6, 1, 64, 576), .flags = F16, .dataflow = TOKEN,
		.cluster = 1 },
};

#define NUM_LATER	((int)ARRAY_SIZE(later))
#define NUM_LAST	((int)ARRAY_SIZE(last))
#define NUM_SUMS	((int)ARRAY_SIZE(sums))
#define NUM_FIRST	(NUM_NAMED + NUM_FLOWS + NUM_SHAPES + NUM_SMS)
#define NUM_PAIRS	43

static void pair_at(int i, struct shape *s);

#define FIRST_ENDS	(NUM_FIRST + NUM_LATER + NUM_PAIRS + NUM_SUMS + NUM_LAST)

#include "fused/cluster_attn/cluster_attn_ends.h"

#define NUM_CASES	(FIRST_ENDS + NUM_ENDS)

static const struct cairn_draw_axis axes[] = {
	CAIRN_DRAW_SIZE(struct shape, batch, 1, 16, 1),
	CAIRN_DRAW_SIZE(struct shape, kv, 1, 3000, 1),
	CAIRN_DRAW_SIZE(struct shape, page, 1, 300, 1),
	CAIRN_DRAW_SIZE(struct shape, hkv, 1, 24, 1),
	CAIRN_DRAW_SIZE(struct shape, hq, 1, 16, 1),	/* of a KV head, see allowed() */
	CAIRN_DRAW_ONE_OF(struct shape, dim, 64, 128),
	CAIRN_DRAW_SIZE(struct shape, hidden, 64, 2048, 64),
	CAIRN_DRAW_ONE_OF(struct shape, dataflow, AUTO, AUTO, TOKEN, HEAD),
	CAIRN_DRAW_ONE_OF(struct shape, cluster, 0, 1, 2, 3, 4, 5, 7, 8, 11, 16),
	CAIRN_DRAW_ONE_OF(struct shape, sms, 0, 0, 0, 24),
	CAIRN_DRAW_ONE_OF(struct shape, flags, 0, F16),
	CAIRN_DRAW_ONE_OF(struct shape, flags, 0, BIAS, BIAS_QKV, BIAS_OUT),
	CAIRN_DRAW_ONE_OF(struct shape, flags, 0, 0, ALIAS),
	CAIRN_DRAW_ONE_OF(struct shape, flags, 0, OFFCHIP),
	CAIRN_DRAW_ONE_OF(struct shape, flags, 0, 0, LARGE_EPS),
	CAIRN_DRAW_ONE_OF(struct shape, flags, 0, PAGED_RAGGED),
	CAIRN_DRAW_ONE_OF(struct shape, flags, 0, PAGED_PADDED, PAGED_SPARE),
};

static int allowed(void *shape, int room)
{
	struct shape *s = shape;

	s->hq *= s->hkv;
	if (s->dataflow == AUTO) {
		s->cluster = 0;
		s->flags &= ~(unsigned)OFFCHIP;
	}
	if (s->cluster == 16)
		s->dim = 128;
	return (s->dataflow != HEAD || (s->cluster & (s->cluster - 1)) == 0) &&
	       (int64_t)s->batch * s->kv * s->hkv * s->dim <= room * 300000 &&
	       s->hq * s->dim * s->hidden <= room * 400000 &&
	       (int64_t)s->batch * s->kv * s->hq * s->dim <= room * 1000000;
}

static const struct cairn_draw draws = {
	.shape_bytes = sizeof(struct shape), .axes = axes, .num_axes = ARRAY_SIZE(axes),
	.allowed = allowed, .many = 800,
};

static void shape_at(int index, struct shape *s)
{
	int i = index - NUM_NAMED;

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
	if (index >= NUM_FIRST + NUM_LATER + NUM_PAIRS + NUM_SUMS) {
		*s = last[index - NUM_FIRST - NUM_LATER - NUM_PAIRS - NUM_SUMS];
		return;
	}
	if (index >= NUM_FIRST + NUM_LATER + NUM_PAIRS) {
		*s = sums[index - NUM_FIRST - NUM_LATER - NUM_PAIRS];
		return;
	}
	if (index >= NUM_FIRST + NUM_LATER) {
		pair_at(index - NUM_FIRST - NUM_LATER, s);
		return;
	}
	if (index >= NUM_FIRST) {
		*s = later[index - NUM_FIRST];
		return;
	}
	memset(s, 0, sizeof(*s));
	if (i < NUM_FLOWS) {
		flow_at(i, s);
		return;
	}
	i -= NUM_FLOWS;
	if (i >= NUM_SHAPES) {
		*s = with_sms[i - NUM_SHAPES];
		return;
	}
	s->hq = heads[i % 6][0];
	s->hkv = heads[i % 6][1];
	s->batch = batches[(i + i / 6) % 6];
	s->kv = lengths[(i + i / 12) % 12];
	s->page = page_sizes[i % 5];
	s->dim = (i + i / 6) % 2 ? 64 : 128;
	s->hidden = widths[s->hq > 8 ? i / 6 % 2 : i / 2 % 4];
	s->flags = ((i + i / 12) % 2 ? F16 : 0) | (i % 5 < 2 ? BIAS : 0) | (i % 3 ? PAGED_RAGGED : 0) |
		   (i % 4 == 1 ? PAGED_PADDED : 0) | (i % 7 == 3 ? LARGE_EPS : 0) | (i % 11 == 5 ? ALIAS : 0);
	if ((double)s->batch * s->kv * s->hq * s->dim * s->dim > 1e8)
		s->batch = 1;
}

#endif
