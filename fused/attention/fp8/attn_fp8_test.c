// SPDX-License-Identifier: Apache-2.0
/*
 * attn_fp8_test - named edge cases, pairs of features, ends of tiles, outliers, bench rows
 *
 * EXACT has integers whose sums fit 13 bits: either all logits are equal and out is the mean of V, or one key
 * outweighs all others and out is its V. NORMAL quantises normal numbers. It checks the bounds, which allow
 * the worst rounding of P, and the root mean square of the errors. Scales always differ from block to block.
 * The cases outliers_* take normal numbers with rare large ones, quantise them with the reference of
 * attn_quant, and check the error against attention over the original numbers (FlashAttention-3, table 3).
 */
#include <stdio.h>
#include <stdlib.h>

#include "conformance/harness.h"
#include "conformance/suite/draw.h"
#include "conformance/suite/pairs.h"
#include "fused/attention/base/attn_ends.h"
#include "fused/attention/base/attn_lengths.h"
#include "fused/attention/fp8/attn_fp8_batch.h"
#include "fused/attention/fp8/attn_fp8_inputs.h"
#include "fused/attention/fp8/attn_quant.h"

#define FIELD(f)	offsetof(struct cairn_attn_fp8_args, f)
#define LENS(...)	(const int[]){ __VA_ARGS__ }
#define BLOCK		ATTN_FP8_BLOCK

enum {
	CAUSAL = 1, LSE = 2, F16 = 4, BENCH = 8, DEVICE = 16, PADDED = 32, RAGGED = 64,
	FAR_Q = 128, FAR_KV = 256,		/* the second head begins past 2^31 bytes */
	ROTATED = 512,
};

/* Patterns of EXTREME and, where named, of a case. */
enum {
	PLAIN, LARGEST_CODES, SUBNORMAL_CODES, NEGATIVE, HUGE_LOGITS, LARGE_V, TINY_V, SMALL_P, NUM_PATTERNS,
	OUTLIERS, APART
};

struct shape {
	const char *name;
	int batch, qo, kv, hq, hkv, dim;
	unsigned flags;
	int pattern, sms;
	const int *qo_lens, *kv_lens;
	/* pair, ends: number of the case among the pairs, or the ends of tiles, or 0 */
	int pair, ends, equal;
	int one_sign;				/* EXACT has equal logits and no negative value */
};

#define N(name_, batch_, qo_, kv_, hq_, hkv_, dim_) \
	.name = name_, .batch = batch_, .qo = qo_, .kv = kv_, .hq = hq_, .hkv = hkv_, .dim = dim_
#define BOTH		(CAUSAL | LSE)
#define BENCH_CAUSAL	(BENCH | CAUSAL | DEVICE)

static const struct shape named[] = {
	/* N(name, batch, query rows, keys, query heads, KV heads, head_dim), other members */
	{ N("one_key", 1, 1, 1, 1, 1, 64), .flags = LSE },
	{ N("batch_0", 0, 1, 1, 4, 2, 64), .flags = LSE },
	{ N("no_rows", 3, 0, 40, 4, 2, 64), .flags = LSE },
	{ N("no_keys", 3, 2, 0, 4, 2, 128), .flags = LSE },
	{ N("no_keys_causal", 2, 130, 0, 4, 2, 64), .flags = BOTH },
	{ N("empty_requests", 6, 1, 1, 4, 2, 64), .flags = LSE,
		.qo_lens = LENS(0, 1, 2, 0, 40, 0), .kv_lens = LENS(9, 0, 33, 0, 17, 5) },
	{ N("more_queries_than_keys", 2, 150, 97, 4, 2, 128), .flags = BOTH | F16 },
	{ N("one_key_many_queries", 1, 129, 1, 2, 1, 64), .flags = BOTH },
	{ N("padded_graph", 4, 1, 1, 4, 2, 64), .flags = BOTH | PADDED,
		.qo_lens = LENS(40, 1, 0, 0), .kv_lens = LENS(90, 33, 0, 7) },
	{ N("mixed_lengths", 7, 1, 1, 8, 2, 128), .flags = BOTH,
		.qo_lens = LENS(1, 70, 1, 17, 3, 1, 129), .kv_lens = LENS(300, 70, 33, 54, 3, 1, 257) },
	{ N("mixed_lengths_d64", 5, 1, 1, 6, 3, 64), .flags = BOTH | F16,
		.qo_lens = LENS(64, 5, 130, 1, 65), .kv_lens = LENS(64, 200, 131, 90, 65) },
	/* rows and keys around multiples of the sizes of tiles and blocks */
	{ N("rows_64_keys_64", 1, 64, 64, 2, 2, 128), .flags = BOTH },
	{ N("rows_65_keys_65", 1, 65, 65, 2, 2, 128), .flags = BOTH },
	{ N("rows_127_keys_128", 1, 127, 128, 2, 1, 128), .flags = BOTH },
	{ N("rows_128_keys_128", 1, 128, 128, 2, 1, 128), .flags = LSE | F16 },
	{ N("rows_129_keys_129", 1, 129, 129, 2, 1, 128), .flags = BOTH },
	{ N("rows_193_keys_193_d64", 1, 193, 193, 2, 1, 64), .flags = BOTH },
	{ N("keys_255", 1, 20, 255, 2, 1, 128), .flags = LSE },
	{ N("keys_256", 1, 20, 256, 2, 1, 128), .flags = LSE | F16 },
	{ N("keys_257", 1, 20, 257, 2, 1, 128), .flags = LSE },
	{ N("keys_1025", 1, 3, 1025, 2, 1, 128), .flags = BOTH },
	/* so many results that another order of the sums would change at least one bit */
	{ N("keys_1500_rows_30", 1, 30, 1500, 4, 2, 128), .flags = LSE | F16 },
	/*
	 * 517 blocks of values of one sign, whose sum needs more bits than tensor cores keep of e4m3 products
	 */
	{ N("keys_past_2e16", 1, 1, 66100, 1, 1, 64), .flags = LSE | F16, .one_sign = 1 },
	{ N("group_17", 2, 9, 97, 17, 1, 128), .flags = BOTH },
	{ N("group_64", 1, 9, 150, 64, 1, 64), .flags = BOTH },
	{ N("kv_heads_7", 2, 40, 97, 7, 7, 64), .flags = BOTH },
	{ N("codes_largest", 2, 40, 197, 4, 2, 128), .flags = BOTH, .pattern = LARGEST_CODES },
	{ N("codes_subnormal", 2, 40, 197, 4, 2, 128), .flags = BOTH, .pattern = SUBNORMAL_CODES },
	{ N("logits_below_minus_5e4", 2, 140, 192, 4, 2, 64), .flags = BOTH, .pattern = NEGATIVE },
	{ N("logits_huge", 2, 40, 197, 4, 2, 128), .flags = LSE | F16, .pattern = HUGE_LOGITS },
	{ N("values_near_largest", 2, 40, 197, 4, 2, 128), .flags = BOTH, .pattern = LARGE_V },
	{ N("values_small", 2, 40, 197, 4, 2, 64), .flags = BOTH, .pattern = TINY_V },
	{ N("weights_small", 1, 20, 900, 2, 1, 128), .flags = LSE, .pattern = SMALL_P },
	{ N("sms_1", 3, 70, 150, 4, 2, 128), .flags = BOTH, .sms = 1 },
	{ N("sms_24", 5, 140, 200, 8, 2, 64), .flags = BOTH | RAGGED, .sms = 24 },
	{ N("far_q", 1, 3, 40, 2, 1, 64), .flags = CAUSAL | FAR_Q },
	{ N("far_kv", 1, 3, 3, 2, 2, 64), .flags = BOTH | FAR_KV },
	{ N("outliers_rotated", 1, 128, 1024, 2, 1, 128), .flags = LSE | BENCH | ROTATED,
		.pattern = OUTLIERS },
	{ N("outliers_plain", 1, 128, 1024, 2, 1, 128), .flags = LSE | BENCH, .pattern = OUTLIERS },
	/* too large for host implementations */
	{ N("large_4224", 1, 4224, 4224, 8, 2, 128), .flags = LSE | DEVICE },
	{ N("large_mixed", 40, 700, 3000, 16, 4, 128), .flags = BOTH | DEVICE | RAGGED },
	{ N("large_short_requests", 1000, 5, 90, 32, 8, 64), .flags = BOTH | DEVICE | RAGGED },
	/* bench rows: bytes are those of k, v, q and out */
	{ N("h16_d128_b4_s4096_causal_bf16", 4, 4096, 4096, 16, 16, 128), .flags = BENCH_CAUSAL },
	{ N("h16_d128_b1_s16384_causal_bf16", 1, 16384, 16384, 16, 16, 128), .flags = BENCH_CAUSAL },
	{ N("h16_d128_b4_s4096_bf16", 4, 4096, 4096, 16, 16, 128), .flags = BENCH | DEVICE },
	{ N("h16_d128_b1_s16384_bf16", 1, 16384, 16384, 16, 16, 128), .flags = BENCH | DEVICE },
	{ N("h32_8_d128_b4_s4096_causal_bf16", 4, 4096, 4096, 32, 8, 128), .flags = BENCH_CAUSAL },
	{ N("h32_d64_b4_s4096_causal_bf16", 4, 4096, 4096, 32, 32, 64), .flags = BENCH_CAUSAL },
	{ N("h32_d64_b1_s16384_bf16", 1, 16384, 16384, 32, 32, 64), .flags = BENCH | DEVICE },
};

/* added later: the cases before them keep their numbers */
static const struct shape last[] = {
	{ N("value_scales_apart", 3, 9, 460, 2, 1, 64), .flags = LSE, .pattern = APART },
	{ N("value_scales_apart_causal", 2, 300, 300, 2, 1, 128), .flags = BOTH, .pattern = APART },
	{ N("rows_257", 1, 257, 257, 1, 1, 64), .flags = BOTH },
	{ N("rows_321_of_groups_of_3", 1, 107, 130, 3, 1, 64), .flags = BOTH },
	{ N("group_6", 2, 5, 20, 6, 1, 64), .flags = BOTH },
	{ N("group_7", 1, 5, 20, 14, 2, 64), .flags = BOTH | F16 },
	{ N("group_9", 1, 5, 20, 9, 1, 128), .flags = LSE },
	{ N("group_12", 1, 3, 20, 24, 2, 64), .flags = BOTH },
	{ N("heads_130", 1, 2, 9, 130, 130, 64), .flags = BOTH },
	{ N("heads_260_of_2", 1, 2, 9, 260, 2, 64), .flags = BOTH | F16 },
	{ N("batch_300", 300, 2, 3, 2, 1, 64), .flags = BOTH | RAGGED },
	{ N("sms_3", 1, 17, 40, 10, 5, 64), .flags = BOTH, .sms = 3 },
};

#define NUM_NAMED	((int)ARRAY_SIZE(named))
#define NUM_LAST	((int)ARRAY_SIZE(last))
#define NUM_PAIRS	40

enum {
	PAIR_LENGTHS, PAIR_GROUP, PAIR_HEADS, PAIR_DIM, PAIR_DTYPE, PAIR_CAUSAL, PAIR_LSE, PAIR_PADDED,
	PAIR_EQUAL, PAIR_SMS, NUM_PAIR_FACTORS
};

static const int pair_group[] = { 1, 2, 3, 5, 8 }, pair_heads[] = { 1, 2, 3 };
static struct cairn_pairs pair_table = {
	.num_factors = NUM_PAIR_FACTORS, .levels = { 8, 5, 3, 2, 2, 2, 2, 2, 2, 2 },
};

/* Batches with several blocks, in addition to those of attn_lengths.h, which have one or two. */
static const int long_lens[][2][3] = {
	{ { 130, 1, 40 }, { 257, 5, 127 } }, { { 1, 30, 66 }, { 300, 1, 256 } },
	{ { 129, 0, 2 }, { 0, 400, 3 } },
};

static void pair_at(int i, struct shape *s)
{
	const int8_t *level = cairn_pairs_row(&pair_table, i);
	int lens = level[PAIR_LENGTHS];

	memset(s, 0, sizeof(*s));
	s->pair = i + 1;
	s->batch = lens < 5 ? attn_lengths[lens].batch : 3;
	s->qo_lens = lens < 5 ? attn_lengths[lens].qo : long_lens[lens - 5][0];
	s->kv_lens = lens < 5 ? attn_lengths[lens].kv : long_lens[lens - 5][1];
	s->hkv = pair_heads[level[PAIR_HEADS]];
	s->hq = s->hkv * pair_group[level[PAIR_GROUP]];
	s->dim = level[PAIR_DIM] ? 128 : 64;
	s->equal = level[PAIR_EQUAL] == 0;
	s->sms = level[PAIR_SMS] ? 2 : 0;
	s->flags = (level[PAIR_DTYPE] ? F16 : 0) | (level[PAIR_CAUSAL] ? CAUSAL : 0) |
		   (level[PAIR_LSE] ? LSE : 0) | (level[PAIR_PADDED] ? PADDED : 0);
}

#define FIRST_ENDS	(NUM_NAMED + NUM_PAIRS + NUM_LAST)
#define NUM_ENDS	124

/* The operation has no window. */
static int ends_forbidden(const int8_t *level)
{
	return level[ENDS_WINDOW] > 0 || attn_ends_logits(level) > 17000;
}

static struct cairn_pairs ends_table = {
	.num_factors = ATTN_ENDS_FACTORS, .levels = { ATTN_ENDS_LEVELS }, .forbidden = ends_forbidden,
};

static struct shape ends_at(int i)
{
	const int8_t *level = cairn_pairs_row(&ends_table, i);

	return (struct shape){
		.ends = i + 1, .batch = 2, .qo = attn_ends_rows[level[ENDS_ROWS]].qo,
		.kv = attn_ends_keys[level[ENDS_KEYS]], .hq = attn_ends_qo_heads(level),
		.hkv = attn_ends_kv_heads(level), .dim = level[ENDS_FEATURES] & ENDS_THIRD ? 128 : 64,
		.flags = (level[ENDS_FEATURES] & ENDS_NOT_CAUSAL ? 0 : CAUSAL) |
			 (level[ENDS_FEATURES] & ENDS_F16 ? F16 : 0) | LSE,
	};
}

#define NUM_CASES	(FIRST_ENDS + NUM_ENDS)

static const struct cairn_draw_axis axes[] = {
	CAIRN_DRAW_SIZE(struct shape, batch, 1, 70, 1),
	CAIRN_DRAW_SIZE(struct shape, qo, 1, 700, 1),
	CAIRN_DRAW_SIZE(struct shape, kv, 1, 3000, 1),
	CAIRN_DRAW_SIZE(struct shape, hkv, 1, 20, 1),
	CAIRN_DRAW_SIZE(struct shape, hq, 1, 40, 1),	/* of a KV head, see allowed() */
	CAIRN_DRAW_ONE_OF(struct shape, dim, 64, 128),
	CAIRN_DRAW_ONE_OF(struct shape, equal, 0, 1),
	CAIRN_DRAW_ONE_OF(struct shape, sms, 0, 0, 0, 1, 2, 24),
	CAIRN_DRAW_ONE_OF(struct shape, flags, CAUSAL, 0),
	CAIRN_DRAW_ONE_OF(struct shape, flags, LSE, 0),
	CAIRN_DRAW_ONE_OF(struct shape, flags, 0, F16),
	CAIRN_DRAW_ONE_OF(struct shape, flags, 0, 0, PADDED),
	CAIRN_DRAW_ONE_OF(struct shape, flags, 0, RAGGED),
};

static int allowed(void *shape, int room)
{
	struct shape *s = shape;

	s->pair = 1;
	s->hq *= s->hkv;
	return (int64_t)s->batch * s->qo * (s->kv + 16) * s->hq * s->dim <= room * 4000000 &&
	       (int64_t)s->batch * (s->kv + BLOCK) * s->hkv * s->dim <= room * 500000 &&
	       (int64_t)s->batch * (s->qo + BLOCK) * s->hq * s->dim <= room * 500000;
}

static const struct cairn_draw draws = {
	.shape_bytes = sizeof(struct shape), .axes = axes, .num_axes = ARRAY_SIZE(axes),
	.allowed = allowed, .many = 2200,
};

static struct shape shape_at(int i)
{
	struct shape s;

	if (i < NUM_NAMED) {
		s = named[i];
		s.equal = s.one_sign || i % 2;
		return s;
	}
	if (i >= NUM_CASES) {
		cairn_draw_shape(&draws, i - NUM_CASES, &s);
		return s;
	}
	if (i >= FIRST_ENDS)
		return ends_at(i - FIRST_ENDS);
	if (i >= NUM_NAMED + NUM_PAIRS)
		return last[i - NUM_NAMED - NUM_PAIRS];
	pair_at(i - NUM_NAMED, &s);
	return s;
}

static void describe(int i, struct cairn_case *c)
{
	struct shape s = shape_at(i);
	double pairs = (double)s.qo * s.kv;

	if (s.pair)
		snprintf(c->name, sizeof(c->name), "pair_%d_h%d_%d_d%d_%s%s", s.pair, s.hq, s.hkv, s.dim,
			 s.flags & F16 ? "f16" : "bf16", s.flags & CAUSAL ? "_causal" : "");
	else if (s.ends)
		snprintf(c->name, sizeof(c->name), "ends_qo%d_kv%d_h%d_%d_d%d_%s%s", s.qo, s.kv, s.hq, s.hkv,
			 s.dim, s.flags & F16 ? "f16" : "bf16", s.flags & CAUSAL ? "_causal" : "");
	else
		snprintf(c->name, sizeof(c->name), "%s", s.name);
	c->bench = !!(s.flags & BENCH);
	c->device_only = !!(s.flags & DEVICE);
	c->far = !!(s.flags & (FAR_Q | FAR_KV));
	if (s.ends || s.pattern == OUTLIERS || s.flags & (DEVICE | FAR_Q | FAR_KV))
		c->kinds = CAIRN_KIND_BIT(CAIRN_KIND_NORMAL);
	else if (s.pattern)
		c->kinds = CAIRN_KIND_BIT(CAIRN_KIND_EXTREME);
	else
		c->kinds = CAIRN_KIND_BIT(CAIRN_KIND_NORMAL) | CAIRN_KIND_BIT(CAIRN_KIND_EXACT) |
			   (s.pair ? CAIRN_KIND_BIT(CAIRN_KIND_EXTREME) : 0);
	if (s.flags & CAUSAL)
		pairs = s.qo > s.kv ? 0.5 * s.kv * (s.kv + 1.0) : pairs - 0.5 * s.qo * (s.qo - 1.0);
	c->flops = 4.0 * s.batch * pairs * s.hq * s.dim;
	c->bytes = (double)s.batch * s.dim * (2.0 * s.kv * s.hkv + 3.0 * s.qo * s.hq);
}

/* Fills an indptr; returns the largest length. */
static int set_indptr(struct cairn_op *op, const struct shape *s, int32_t *indptr, int len, const int *lens)
{
	int most = 0;

	indptr[0] = 0;
	for (int b = 0; b < s->batch; b++) {
		int n = lens ? lens[b] : b && s->flags & RAGGED ? (int)cairn_op_range(op, 0, len) : len;

		indptr[b + 1] = indptr[b] + n;
		most = n > most ? n : most;
	}
	return most;
}

static struct operand declare(struct cairn_op *op, const struct shape *s, size_t codes, size_t scale,
			      const char *name, const char *scale_name, int heads, int nnz,
				      const int32_t *indptr)
{
	struct operand x = {
		.indptr = indptr, .batch = s->batch, .heads = heads, .dim = s->dim,
		.blocks = attn_fp8_blocks(nnz, s->batch), .transposed = codes == FIELD(v),
		.far = !!(s->flags & (codes == FIELD(q) ? FAR_Q : FAR_KV)),
	};
	int64_t count = (int64_t)heads * x.blocks * BLOCK * s->dim;

	x.codes = x.far ? cairn_in_far(op, codes, CAIRN_U8, count) : cairn_in(op, codes, CAIRN_U8, count);
	cairn_name(op, codes, name);
	x.scale = cairn_in(op, scale, CAIRN_F32, (int64_t)heads * x.blocks);
	cairn_name(op, scale, scale_name);
	clear_operand(op, &x);
	return x;
}

struct inputs {
	struct operand q, k, v;
};

/* Logits are q * k of one channel. One key of each request has `top`, the others have 0 down to `least`. */
static void one_on_top(struct cairn_op *op, const struct inputs *in, double q, double top, int least)
{
	int channel = (int)cairn_op_range(op, 0, in->q.dim - 1);

	fill_channel(&in->q, channel, q);
	for (int b = 0; b < in->k.batch; b++) {
		int n = len_of(&in->k, b), at = n ? (int)cairn_op_range(op, 0, n - 1) : 0;

		for (int head = 0; head < in->k.heads; head++)
			for (int j = 0; j < n; j++)
				for (int c = 0; c < in->k.dim; c++)
					set_code(&in->k, b, j, head, c, c != channel ? 0 :
						 j == at ? top : (double)cairn_op_range(op, least, 0));
	}
}

/* One key has weight 1 and value 0; all others have weight 2^-10 and value 1. */
static void small_weights(struct cairn_op *op, struct cairn_attn_fp8_args *a, const struct inputs *in)
{
	int channel = (int)cairn_op_range(op, 0, in->q.dim - 1);

	fill_integers(op, &in->q, 1, 1);
	fill_integers(op, &in->k, 1, 1);
	fill_integers(op, &in->v, 1, 1);
	for (int64_t i = 0; i < (int64_t)in->k.heads * in->k.blocks; i++)
		in->k.scale[i] = in->k.scale[i] > 0 ? 1 : NAN;
	for (int64_t i = 0; i < (int64_t)in->q.heads * in->q.blocks; i++)
		in->q.scale[i] = in->q.scale[i] > 0 ? 1 : NAN;
	fill_channel(&in->q, channel, 8);
	a->sm_scale = 0.6931471805599453f / 8;
	for (int b = 0; b < in->k.batch; b++)
		for (int head = 0; head < in->k.heads; head++)
			for (int j = 0; j < len_of(&in->k, b); j++)
				for (int c = 0; c < in->k.dim; c++) {
					set_code(&in->k, b, j, head, c, c != channel ? 0 : j ? -10 : 0);
					set_code(&in->v, b, j, head, c, j ? 1 : 0);
				}
}

static void fill_extreme(struct cairn_op *op, struct cairn_attn_fp8_args *a, const struct inputs *in,
			 int pattern)
{
	enum cairn_kind kind = op->kind;

	op->kind = CAIRN_KIND_NORMAL;
	fill_normal(op, &in->q, 1);
	fill_normal(op, &in->k, 0.5);
	fill_normal(op, &in->v, 0.5);
	op->kind = kind;
	switch (pattern) {
	case LARGEST_CODES:
		for (int64_t i = 0; i < (int64_t)in->v.heads * in->v.blocks * BLOCK * in->v.dim; i++)
			in->v.codes[i] = in->v.codes[i] & 0x7f ? in->v.codes[i] | 0x7e : in->v.codes[i];
		for (int64_t i = 0; i < (int64_t)in->k.heads * in->k.blocks * BLOCK * in->k.dim; i++)
			in->k.codes[i] = in->k.codes[i] == 0x7f ? 0x7f : (in->k.codes[i] & 0x80) | 0x7e;
		scale_operand(&in->k, 0x1p-3);
		break;
	case SUBNORMAL_CODES:	/* all magnitudes below 2^-6 */
		for (int64_t i = 0; i < (int64_t)in->v.heads * in->v.blocks * BLOCK * in->v.dim; i++)
			in->v.codes[i] &= 0x87;
		for (int64_t i = 0; i < (int64_t)in->k.heads * in->k.blocks * BLOCK * in->k.dim; i++)
			in->k.codes[i] &= in->k.codes[i] == 0x7f ? 0x7f : 0x87;
		scale_operand(&in->k, 0x1p13);
		scale_operand(&in->v, 0x1p13);
		break;
	case NEGATIVE:
		one_on_top(op, in, 256, -256, -16);
		for (int b = 0; b < in->k.batch; b++)	/* all keys close to -256: logits near -60000 */
			for (int head = 0; head < in->k.heads; head++)
				for (int j = 0; j < len_of(&in->k, b); j++)
					for (int c = 0; c < in->k.dim; c++)
						set_code(&in->k, b, j, head, c, c % 8 ? 0 : -256);
		fill_channel(&in->q, 8, 256);
		for (int64_t i = 0; i < (int64_t)in->k.heads * in->k.blocks; i++)
			in->k.scale[i] = in->k.scale[i] > 0 ? 1 : NAN;
		for (int64_t i = 0; i < (int64_t)in->q.heads * in->q.blocks; i++)
			in->q.scale[i] = in->q.scale[i] > 0 ? 1 : NAN;
		a->sm_scale = 1;
		break;
	case HUGE_LOGITS:
		one_on_top(op, in, 256, 448, -8);
		a->sm_scale = 0x1p13f;	/* logits of up to about 2^19 */
		break;
	case LARGE_V:
		scale_operand(&in->v, 0x1p110);
		break;
	case TINY_V:
		scale_operand(&in->v, 0x1p-100);
		break;
	case SMALL_P:
		small_weights(op, a, in);
		break;
	case APART:	/* the ratio of two blocks of V exceeds the range of fp32 */
		for (int64_t i = 0; i < (int64_t)in->v.heads * in->v.blocks; i++)
			in->v.scale[i] *= (float[]){ 0x1p-100f, 0x1p40f, 0x1p-30f, 0x1p60f }[i % 4];
		break;
	}
}

/* ---- outliers: the same numbers in every run, because the check generates them again ---- */

static double outlier(uint64_t *state)
{
	double u[3];

	for (int i = 0; i < 3; i++) {
		*state = *state * 6364136223846793005u + 1442695040888963407u;
		u[i] = ((double)(*state >> 11) + 0.5) * 0x1p-53;
	}
	return sqrt(-2 * log(u[0])) * cos(6.283185307179586 * u[1]) * (u[2] < 0.001 ? sqrt(101) : 1);
}

/* Sets rows of `heads` heads: N(0, 1) + N(0, 100) * Bernoulli(0.001). */
static uint16_t *make_outliers(int64_t count, uint64_t seed)
{
	uint16_t *x = malloc((size_t)count * sizeof(*x));

	if (!x)
		abort();
	for (int64_t i = 0; i < count; i++)
		x[i] = cairn_double_to_bf16(outlier(&seed));
	return x;
}

static void quantise_outliers(struct cairn_attn_fp8_args *a, const struct shape *s, const struct inputs *in,
			      uint8_t *signs)
{
	uint16_t *q = make_outliers((int64_t)s->qo * s->hq * s->dim, 1);
	uint16_t *k = make_outliers((int64_t)s->kv * s->hkv * s->dim, 2);
	uint16_t *v = make_outliers((int64_t)s->kv * s->hkv * s->dim, 3);
	struct cairn_attn_quant_args z = {
		.size = sizeof(z), .q8 = in->q.codes, .k8 = in->k.codes, .v8 = in->v.codes,
		.q_scale = in->q.scale, .k_scale = in->k.scale, .v_scale = in->v.scale, .q = q,
		.k = k, .v = v,
		.qo_indptr = in->q.indptr, .kv_indptr = in->k.indptr, .signs = signs, .batch = 1,
		.nnz_qo = a->nnz_qo, .nnz_kv = a->nnz_kv, .num_qo_heads = s->hq, .num_kv_heads = s->hkv,
		.head_dim = s->dim, .dtype = CAIRN_BF16,
	};

	if (cairn_attn_quant_ref(&z, NULL))
		abort();
	free(q);
	free(k);
	free(v);
}

/* Returns the root mean square of the errors of out against attention over the original numbers. */
static double error_of_outliers(const struct cairn_attn_fp8_args *a, const struct shape *s,
				const uint16_t *out)
{
	uint16_t *q = make_outliers((int64_t)s->qo * s->hq * s->dim, 1);
	uint16_t *k = make_outliers((int64_t)s->kv * s->hkv * s->dim, 2);
	uint16_t *v = make_outliers((int64_t)s->kv * s->hkv * s->dim, 3);
	double *p = malloc((size_t)s->kv * sizeof(*p)), squares = 0;

	if (!p)
		abort();
	for (int r = 0; r < s->qo * s->hq; r++) {
		int g = r % s->hq / (s->hq / s->hkv);
		double l = 0, o[256] = { 0 };

		for (int j = 0; j < s->kv; j++) {
			double dot = 0;

			for (int c = 0; c < s->dim; c++)
				dot += (double)cairn_bf16_to_float(q[r * s->dim + c]) *
				       (double)cairn_bf16_to_float(k[(j * s->hkv + g) * s->dim + c]);
			p[j] = exp((double)a->sm_scale * dot);
			l += p[j];
		}
		for (int j = 0; j < s->kv; j++)
			for (int c = 0; c < s->dim; c++)
				o[c] += p[j] * (double)cairn_bf16_to_float(v[(j * s->hkv + g) * s->dim + c]);
		for (int c = 0; c < s->dim; c++) {
			double error = cairn_load(out, a->dtype, (int64_t)r * s->dim + c) - o[c] / l;

			squares += error * error;
		}
	}
	free(q);
	free(k);
	free(v);
	free(p);
	return sqrt(squares / ((double)s->qo * s->hq * s->dim));
}

/* ---- the case ---- */

static void fill(struct cairn_op *op, const struct shape *s, const struct inputs *in)
{
	struct cairn_attn_fp8_args *a = op->args;
	uint8_t signs[32];

	if (s->pattern == OUTLIERS) {
		for (int i = 0; i < 32; i++)
			signs[i] = (uint8_t)(i * 151 + 89);
		quantise_outliers(a, s, in, s->flags & ROTATED ? signs : NULL);
	} else if (op->kind == CAIRN_KIND_EXACT) {
		fill_integers(op, &in->q, 4, 0.5);
		fill_integers(op, &in->k, 4, 0.25);
		fill_integers(op, &in->v, 8, 0.125);
		if (s->one_sign)
			fill_positive(op, &in->v);
		if (s->equal)
			fill_channel(&in->q, 0, 0);
		else
			one_on_top(op, in, 32, 32, -32);
	} else if (op->kind == CAIRN_KIND_EXTREME) {
		fill_extreme(op, a, in, s->pattern ? s->pattern : 1 + op->case_index % (NUM_PATTERNS - 1));
	} else if (s->flags & DEVICE) {
		fill_quickly(op, &in->q, 0.5);
		fill_quickly(op, &in->k, 0.5);
		fill_quickly(op, &in->v, 0.5);
	} else {
		fill_normal(op, &in->q, 0.5);
		fill_normal(op, &in->k, 0.5);
		fill_normal(op, &in->v, 0.5);
	}
}

static void setup(struct cairn_op *op)
{
	struct cairn_attn_fp8_args *a = op->args;
	struct shape s = shape_at(op->case_index);
	int32_t *qo_indptr = cairn_in(op, FIELD(qo_indptr), CAIRN_I32, s.batch + 1);
	int32_t *kv_indptr = cairn_in(op, FIELD(kv_indptr), CAIRN_I32, s.batch + 1);
	int pad = s.flags & PADDED ? 150 : 0, dtype = s.flags & F16 ? CAIRN_F16 : CAIRN_BF16;
	struct inputs in;
	int64_t row = (int64_t)s.hq * s.dim;

	a->batch = s.batch;
	a->max_qo_len = set_indptr(op, &s, qo_indptr, s.qo, s.qo_lens) + pad;
	a->max_kv_len = set_indptr(op, &s, kv_indptr, s.kv, s.kv_lens) + 3 * pad;
	a->nnz_qo = s.flags & FAR_Q ? 1 << 25 : qo_indptr[s.batch] + pad;
	a->nnz_kv = s.flags & FAR_KV ? 1 << 25 : kv_indptr[s.batch] + 2 * pad;
	a->num_qo_heads = s.hq;
	a->num_kv_heads = s.hkv;
	a->head_dim = s.dim;
	a->dtype = dtype;
	a->causal = !!(s.flags & CAUSAL);
	a->sms = s.sms;
	a->sm_scale = (float)(1 / sqrt(s.dim));
	in.q = declare(op, &s, FIELD(q), FIELD(q_scale), "q", "q_scale", s.hq, a->nnz_qo, qo_indptr);
	in.k = declare(op, &s, FIELD(k), FIELD(k_scale), "k", "k_scale", s.hkv, a->nnz_kv, kv_indptr);
	in.v = declare(op, &s, FIELD(v), FIELD(v_scale), "v", "v_scale", s.hkv, a->nnz_kv, kv_indptr);
	fill(op, &s, &in);
	if (s.flags & FAR_Q)
		cairn_touch(op, cairn_out_far(op, FIELD(out), dtype, a->nnz_qo * row), 0, s.qo * row);
	else
		cairn_out(op, FIELD(out), dtype, a->nnz_qo * row);
	cairn_shape(op, FIELD(out), { "row", a->nnz_qo }, { "head", s.hq }, { "dim", s.dim });
	if (!(s.flags & LSE))
		return;
	cairn_out(op, FIELD(lse), CAIRN_F32, (int64_t)a->nnz_qo * s.hq);
	cairn_shape(op, FIELD(lse), { "row", a->nnz_qo }, { "head", s.hq });
}

/*
 * Compares the errors of all elements together with those of rounding P without bias. The bounds alone would
 * not detect a P with one bit less, because they allow every weight its largest error with the worst sign.
 */
static int judge_spread(const struct cairn_attn_fp8_args *want, const void *out, char *why, size_t why_len)
{
	double squares = 0, expected = 0, deviation[ATTN_MAX_DIM];
	int max_kv = 1, dim = want->head_dim, elements = 0;
	struct attn_exact_row *r;

	for (int b = 0; b < want->batch; b++)
		max_kv = want->kv_indptr[b + 1] - want->kv_indptr[b] > max_kv ?
			 want->kv_indptr[b + 1] - want->kv_indptr[b] : max_kv;
	r = attn_exact_row_new(max_kv);
	if (!r)
		abort();
	for (int b = 0; b < want->batch; b++) {
		int qo_len = want->qo_indptr[b + 1] - want->qo_indptr[b];
		int kv_len = want->kv_indptr[b + 1] - want->kv_indptr[b];

		for (int i = 0; i < qo_len; i++)
			for (int h = 0; h < want->num_qo_heads; h++) {
				int n = want->causal ? i + 1 + kv_len - qo_len : kv_len;
				int64_t row = want->qo_indptr[b] + i;
				int64_t at = (row * want->num_qo_heads + h) * dim;

				if (n <= 0)
					continue;
				attn_fp8_row(want, b, i, h, n, r, deviation);
				for (int c = 0; c < dim; c++) {
					double error = cairn_load(out, want->dtype, at + c) - r->o[c];

					squares += error * error;
					expected += deviation[c] * deviation[c];
				}
				elements += dim;
			}
	}
	free(r);
	if (elements < 4096 || squares <= 1.5 * 1.5 * expected)
		return 0;
	snprintf(why, why_len,
		 "root mean square of the errors: %.3g, expected %.3g of an unbiased rounding of P",
		 sqrt(squares / elements), sqrt(expected / elements));
	return 1;
}

static int judge(const struct cairn_op *op, const void *got, char *why, size_t why_len)
{
	const struct cairn_attn_fp8_args *a = got;
	struct shape s = shape_at(op->case_index);
	double error;

	if (s.pattern == OUTLIERS) {
		error = error_of_outliers(a, &s, a->out);
		if (error <= 1e-2 || !(s.flags & ROTATED))
			return 0;
		snprintf(why, why_len, "root mean square of the errors: %.3g, at most 1e-2", error);
		return 1;
	}
	if (op->kind != CAIRN_KIND_NORMAL || s.flags & (DEVICE | FAR_Q | FAR_KV))
		return 0;
	return judge_spread(a, a->out, why, why_len);
}

static int extra(const struct cairn_op *op, const void *got, char *json, size_t len)
{
	struct shape s = shape_at(op->case_index);
	const struct cairn_attn_fp8_args *a = got;

	*json = 0;
	if (s.pattern == OUTLIERS)
		snprintf(json, len, "\"rmse\":%.3g", error_of_outliers(a, &s, a->out));
	return 0;
}

static const char *reject(void *args, int i, int *want)
{
	struct cairn_attn_fp8_args *a = args;

	*want = i < 19 ? -EINVAL : -EOPNOTSUPP;
	switch (i) {
	case 0: a->size = 8; return "size_too_small";
	case 1: a->out = NULL; return "out_null";
	case 2: a->q = NULL; return "q_null";
	case 3: a->k_scale = NULL; return "k_scale_null";
	case 4: a->v = NULL; return "v_null";
	case 5: a->kv_indptr = NULL; return "kv_indptr_null";
	case 6: a->q += 8; return "q_misaligned";
	case 7: a->v += 4; return "v_misaligned";
	case 8: a->out = (char *)a->out + 4; return "out_misaligned";
	case 9: a->batch = -1; return "batch_negative";
	case 10: a->nnz_kv = -1; return "nnz_kv_negative";
	case 11: a->max_kv_len = -1; return "max_kv_len_negative";
	case 12: a->num_kv_heads = 0; return "num_kv_heads_0";
	case 13: a->head_dim = 0; return "head_dim_0";
	case 14: a->sm_scale = 0; return "sm_scale_0";
	case 15: a->sm_scale = NAN; return "sm_scale_nan";
	case 16: a->sms = -1; return "sms_negative";
	case 17: a->nnz_qo = -1; return "nnz_qo_negative";
	case 18: a->max_qo_len = -1; return "max_qo_len_negative";
	case 19: a->dtype = CAIRN_F32; return "dtype_f32";
	case 20: a->head_dim = 256; return "head_dim_256";
	case 21: a->head_dim = 96; return "head_dim_96";
	case 22: a->num_qo_heads = 5; a->num_kv_heads = 2; return "heads_5_over_2";
	}
	return NULL;
}

static int exact(const void *args, struct cairn_exact *e)
{
	return cairn_attn_fp8_exact(args, e);
}

static void pair_rows(struct cairn_test *t)
{
	cairn_pairs_check(t, &pair_table, NUM_PAIRS);
	cairn_pairs_check(t, &ends_table, NUM_ENDS);
}

static const struct cairn_unit units[] = { { "pair_rows", pair_rows } };

const struct cairn_family cairn_attn_fp8_family = {
	.stage = "fused", .name = "attn_fp8",
	.op = offsetof(struct cairn_impl, attn_fp8),
	.workspace_op = offsetof(struct cairn_impl, attn_fp8_workspace),
	.args_size = sizeof(struct cairn_attn_fp8_args),
	.sms_field = offsetof(struct cairn_attn_fp8_args, sms),
	.workspace_field = FIELD(workspace),
	.num_cases = NUM_CASES, .draw = &draws,
	.units = units, .num_units = ARRAY_SIZE(units),
	.describe = describe,
	.setup = setup,
	.exact = exact,
	.judge = judge,
	.extra = extra,
	.reject = reject,
	.cost_s = 10,
};
