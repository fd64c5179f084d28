// SPDX-License-Identifier: Apache-2.0
/*
 * attn_quant_test - named edge cases, pairs of features, bench rows
 *
 * EXTREME gives successive blocks of 128 rows different patterns: zeros of both signs; magnitudes around the
 * limit below which a block counts as zeros; ties between codes; one outlier; equal values, whose transform
 * has one element; values near the largest. POISON has NaN in all gaps; in the pairs it also has blocks that
 * are not finite among finite ones.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "conformance/harness.h"
#include "conformance/suite/draw.h"
#include "conformance/suite/ends.h"
#include "conformance/suite/pairs.h"
#include "fused/attention/base/attn_lengths.h"
#include "fused/attention/fp8/attn_quant.h"

#define FIELD(f)	offsetof(struct cairn_attn_quant_args, f)
#define LENS(...)	(const int[]){ __VA_ARGS__ }
#define FAR_STRIDE	(((int64_t)1 << 30) + 64)
#define BLOCK		ATTN_FP8_BLOCK

enum {
	SIGNS = 1, F16 = 2, BENCH = 4, DEVICE = 8, PADDED = 16, RAGGED = 32,
	FAR_Q = 64, FAR_K = 128, FAR_V = 256,	/* the third row begins past 2^31 elements */
	/* layouts: gaps between rows, heads of K and V alternating, all rows of a head together */
	Q_GAPS = 512, ROW_GAPS = 1024, HEAD_GAPS = 2048, HEADS_FIRST = 4096, EXPLICIT = 8192,
	NORMAL_ALONE = 16384,		/* only kind NORMAL */
};

struct shape {
	const char *name;
	int batch, qo, kv, hq, hkv, dim;
	unsigned flags;
	const int *qo_lens, *kv_lens;
	int pair, ends;			/* number of the case among the pairs, or ends (ends.h), or 0 */
};

#define N(name_, batch_, qo_, kv_, hq_, hkv_, dim_) \
	.name = name_, .batch = batch_, .qo = qo_, .kv = kv_, .hq = hq_, .hkv = hkv_, .dim = dim_

static const struct shape named[] = {
	/* N(name, batch, query rows, keys, query heads, KV heads, head_dim), other members */
	{ N("one_row", 1, 1, 1, 1, 1, 64), .flags = SIGNS },
	{ N("batch_0", 0, 1, 1, 4, 2, 64), .flags = SIGNS },
	{ N("no_rows", 3, 0, 0, 4, 2, 64) },
	{ N("rows_127", 1, 127, 127, 2, 1, 128), .flags = SIGNS },
	{ N("rows_128", 1, 128, 128, 2, 1, 128), .flags = SIGNS | F16 },
	{ N("rows_129", 1, 129, 129, 2, 1, 128), .flags = SIGNS },
	{ N("rows_300_d64", 1, 300, 300, 3, 3, 64), .flags = SIGNS },
	{ N("rows_300_plain", 1, 300, 300, 2, 2, 128) },
	{ N("rows_300_plain_f16", 1, 300, 300, 2, 2, 64), .flags = F16 },
	/* patterns of EXTREME, one in each block */
	{ N("blocks_6", 1, 6 * 128, 6 * 128, 2, 1, 128), .flags = SIGNS },
	{ N("blocks_6_f16", 1, 6 * 128, 6 * 128, 2, 1, 64), .flags = SIGNS | F16 },
	{ N("blocks_6_plain", 1, 6 * 128, 6 * 128, 1, 1, 128) },
	{ N("empty_requests", 6, 1, 1, 4, 2, 64), .flags = SIGNS,
		.qo_lens = LENS(0, 1, 200, 0, 40, 0), .kv_lens = LENS(9, 0, 133, 0, 17, 5) },
	{ N("requests_end_at_blocks", 4, 1, 1, 2, 2, 128), .flags = SIGNS,
		.qo_lens = LENS(128, 127, 1, 256), .kv_lens = LENS(127, 1, 128, 129) },
	{ N("padded_graph", 4, 1, 1, 4, 2, 64), .flags = SIGNS | PADDED,
		.qo_lens = LENS(140, 1, 0, 0), .kv_lens = LENS(90, 233, 0, 7) },
	{ N("mixed_lengths", 7, 1, 1, 8, 2, 128), .flags = SIGNS | F16 | HEAD_GAPS,
		.qo_lens = LENS(1, 70, 1, 17, 3, 1, 129), .kv_lens = LENS(300, 70, 33, 54, 3, 1, 257) },
	{ N("strides", 2, 40, 150, 4, 2, 128), .flags = SIGNS | Q_GAPS | ROW_GAPS },
	{ N("heads_first", 2, 40, 150, 4, 2, 64), .flags = SIGNS | HEADS_FIRST },
	{ N("group_17", 2, 9, 97, 17, 1, 128), .flags = SIGNS },
	{ N("far_q", 1, 3, 40, 4, 2, 64), .flags = SIGNS | FAR_Q },
	{ N("far_k", 1, 3, 3, 4, 2, 64), .flags = SIGNS | FAR_K },
	{ N("far_v", 1, 3, 3, 4, 2, 64), .flags = SIGNS | FAR_V | F16 },
	{ N("large_mixed", 40, 700, 3000, 16, 4, 128), .flags = SIGNS | DEVICE | RAGGED },
	{ N("large_short_requests", 1000, 5, 90, 32, 8, 64), .flags = SIGNS | DEVICE | RAGGED | F16 },
	{ N("h16_d128_b4_s4096_bf16", 4, 4096, 4096, 16, 16, 128), .flags = SIGNS | DEVICE | BENCH },
	{ N("h16_d128_b1_s16384_bf16", 1, 16384, 16384, 16, 16, 128), .flags = SIGNS | DEVICE | BENCH },
	{ N("h16_d128_b1_s16384_plain_bf16", 1, 16384, 16384, 16, 16, 128), .flags = DEVICE | BENCH },
	{ N("h32_d64_b4_s4096_bf16", 4, 4096, 4096, 32, 32, 64), .flags = SIGNS | DEVICE | BENCH },
};

/* The last cases: heads of K and of V that begin past 2^31 and 2^32 elements; many requests. */
static const struct shape last[] = {
	{ N("far_k_heads", 1, 3, 3, 5, 5, 64), .flags = SIGNS | FAR_K | HEADS_FIRST },
	{ N("far_v_heads", 1, 3, 3, 5, 5, 64), .flags = FAR_V | HEADS_FIRST | F16 },
	{ N("batch_140", 140, 2, 3, 1, 1, 64), .flags = SIGNS | RAGGED | NORMAL_ALONE },
};

#define NUM_NAMED	((int)ARRAY_SIZE(named))
#define NUM_PAIRS	40

enum {
	PAIR_LENGTHS, PAIR_GROUP, PAIR_HEADS, PAIR_LAYOUT, PAIR_Q, PAIR_DIM, PAIR_DTYPE, PAIR_SIGNS,
	PAIR_PADDED,
	NUM_PAIR_FACTORS
};

static const int pair_group[] = { 1, 2, 3, 5, 8 }, pair_heads[] = { 1, 2, 3 };
static const unsigned pair_layout[] = { 0, ROW_GAPS, HEAD_GAPS, HEADS_FIRST };
static const unsigned pair_q[] = { 0, Q_GAPS, EXPLICIT };
static struct cairn_pairs pair_table = {
	.num_factors = NUM_PAIR_FACTORS, .levels = { 8, 5, 3, 4, 3, 2, 2, 2, 2 },
};

/* Batches with several blocks, in addition to those of attn_lengths.h, which have one or two. */
static const int long_lens[][2][3] = {
	{ { 257, 1, 128 }, { 384, 5, 127 } }, { { 1, 300, 130 }, { 300, 1, 256 } },
	{ { 129, 0, 2 }, { 0, 700, 3 } },
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
	s->flags = pair_layout[level[PAIR_LAYOUT]] | pair_q[level[PAIR_Q]] | (level[PAIR_DTYPE] ? F16 : 0) |
		   (level[PAIR_SIGNS] ? SIGNS : 0) | (level[PAIR_PADDED] ? PADDED : 0);
}

#define FIRST_ENDS	(NUM_NAMED + NUM_PAIRS + (int)ARRAY_SIZE(last))
#define NUM_ENDS	101

/* rows, keys, query heads, layout, and the combinations of three features */
static struct cairn_pairs ends_table = {
	.num_factors = 5, .levels = { CAIRN_NUM_ENDS, CAIRN_NUM_ENDS, 3, 4, 8 },
};

static struct shape ends_at(int i)
{
	const int8_t *level = cairn_pairs_row(&ends_table, i);

	return (struct shape){
		.ends = i + 1, .batch = 2, .qo = cairn_ends[level[0]], .kv = cairn_ends[level[1]],
		.hq = 1 + level[2], .hkv = 1, .dim = level[4] & 4 ? 128 : 64,
		.flags = pair_layout[level[3]] | (level[4] & 1 ? SIGNS : 0) | (level[4] & 2 ? F16 : 0),
	};
}

#define NUM_CASES	(FIRST_ENDS + NUM_ENDS)

static const struct cairn_draw_axis axes[] = {
	CAIRN_DRAW_SIZE(struct shape, batch, 1, 140, 1),
	CAIRN_DRAW_SIZE(struct shape, qo, 0, 3000, 1),
	CAIRN_DRAW_SIZE(struct shape, kv, 1, 3000, 1),
	CAIRN_DRAW_SIZE(struct shape, hkv, 1, 40, 1),
	CAIRN_DRAW_SIZE(struct shape, hq, 1, 40, 1),	/* of a KV head, see allowed() */
	CAIRN_DRAW_ONE_OF(struct shape, dim, 64, 128),
	CAIRN_DRAW_ONE_OF(struct shape, flags, 0, ROW_GAPS, HEAD_GAPS, HEADS_FIRST),
	CAIRN_DRAW_ONE_OF(struct shape, flags, 0, Q_GAPS, EXPLICIT),
	CAIRN_DRAW_ONE_OF(struct shape, flags, 0, F16),
	CAIRN_DRAW_ONE_OF(struct shape, flags, 0, SIGNS),
	CAIRN_DRAW_ONE_OF(struct shape, flags, 0, PADDED),
	CAIRN_DRAW_ONE_OF(struct shape, flags, 0, RAGGED),
};

static int allowed(void *shape, int room)
{
	struct shape *s = shape;

	s->pair = 1;
	s->hq *= s->hkv;
	return (int64_t)s->batch * s->dim * (s->qo * s->hq + 2 * s->kv * s->hkv) <= room * 200000 &&
	       (int64_t)s->batch * BLOCK * s->dim * (s->hq + s->hkv) <= room * 1000000;
}

static const struct cairn_draw draws = {
	.shape_bytes = sizeof(struct shape), .axes = axes, .num_axes = ARRAY_SIZE(axes),
	.allowed = allowed, .many = 3100,
};

static struct shape shape_at(int i)
{
	struct shape s;

	if (i < NUM_NAMED)
		return named[i];
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

	if (s.pair)
		snprintf(c->name, sizeof(c->name), "pair_%d_h%d_%d_d%d_%s%s", s.pair, s.hq, s.hkv, s.dim,
			 s.flags & F16 ? "f16" : "bf16", s.flags & SIGNS ? "_rotated" : "");
	else if (s.ends)
		snprintf(c->name, sizeof(c->name), "ends_qo%d_kv%d_h%d_d%d_%s%s", s.qo, s.kv, s.hq, s.dim,
			 s.flags & F16 ? "f16" : "bf16", s.flags & SIGNS ? "_rotated" : "");
	else
		snprintf(c->name, sizeof(c->name), "%s", s.name);
	c->bench = !!(s.flags & BENCH);
	c->device_only = !!(s.flags & DEVICE);
	c->far = !!(s.flags & (FAR_Q | FAR_K | FAR_V));
	c->kinds = s.ends || c->device_only || c->far || s.flags & NORMAL_ALONE ?
		   CAIRN_KIND_BIT(CAIRN_KIND_NORMAL) : CAIRN_ALL_KINDS;
	c->bytes = 3.0 * s.batch * s.dim * ((double)s.qo * s.hq + 2.0 * s.kv * s.hkv);
}

/* One of q, k and v, with the rows of all requests. */
struct tensor {
	size_t field;
	const char *name;
	int heads, dim, dtype, far;
	int64_t stride, head_stride;
	const int32_t *indptr;
};

static int64_t place(const struct tensor *t, int64_t row, int head)
{
	return row * t->stride + head * t->head_stride;
}

/* Returns element c of row i of a block, by the block's pattern. */
static double extreme(struct cairn_op *op, const struct tensor *t, int block, int i, int c, double drawn)
{
	int f16 = t->dtype == CAIRN_F16;

	switch ((block + op->case_index) % 6) {
	case 0:		/* zeros of both signs */
		return drawn < 0 ? -0.0 : 0;
	case 1:		/* f16 has no numbers as small: subnormals instead */
		return f16 ? drawn * 0x1p-22 : drawn * (i == 3 && c == 5 ? 0x1.8p-100 : 0x1p-103);
	case 2:		/* without a rotation, the scale is 1 / 2, so that k + 1/2 is a tie */
		return i + c == 0 ? 224 : (double)cairn_op_range(op, -32, 31) / 4 + 0.125;
	case 3:
		return i == 77 % (c + 1) && c == 9 ? 300 : drawn * 0x1p-6;
	case 4:
		return 1;
	default:
		return f16 ? copysign(6e4, drawn) : drawn * 0x1p110;
	}
}

static void fill_block(struct cairn_op *op, const struct tensor *t, void *x, int64_t row, int rows, int block,
		       int head)
{
	for (int i = 0; i < rows; i++) {
		int64_t at = place(t, row + i, head);
		char *p = (char *)x + at * 2;

		if (op->kind == CAIRN_KIND_EXACT)
			cairn_fill_exact(op, p, t->dtype, t->dim, 1, t->dtype == CAIRN_F16 ? 2048 : 256);
		else
			cairn_fill(op, p, t->dtype, t->dim, 1);
		for (int c = 0; op->kind == CAIRN_KIND_EXTREME && c < t->dim; c++)
			cairn_store(x, t->dtype, at + c,
				    extreme(op, t, block, i, c,
					    (double)cairn_op_range(op, -1000, 1000) / 700));
	}
	/* magnitudes differ from block to block, so that no scale can stand for another */
	for (int i = 0; op->kind == CAIRN_KIND_NORMAL && i < rows; i++)
		for (int c = 0; c < t->dim; c++) {
			int64_t at = place(t, row + i, head) + c;
			int size = 1 + (block * 5 + head) % 7;

			cairn_store(x, t->dtype, at, size * cairn_load(x, t->dtype, at));
		}
}

static void declare(struct cairn_op *op, const struct shape *s, const struct tensor *t, int64_t rows)
{
	int64_t count = rows ? place(t, rows - 1, t->heads - 1) + t->dim : 0;
	void *x = t->far ? cairn_in_far(op, t->field, t->dtype, count) :
		cairn_in(op, t->field, t->dtype, count);

	cairn_name(op, t->field, t->name);
	for (int64_t i = 0; t->far && i < rows * t->heads; i++)
		cairn_touch(op, x, place(t, i / t->heads, (int)(i % t->heads)), t->dim);
	if (!t->far)
		cairn_fill_nan(x, t->dtype, 0, count);
	for (int b = 0; b < s->batch; b++)
		for (int head = 0; head < t->heads; head++)
			for (int i = t->indptr[b]; i < t->indptr[b + 1]; i += BLOCK) {
				int left = t->indptr[b + 1] - i, block = (i - t->indptr[b]) / BLOCK;

				fill_block(op, t, x, i, left < BLOCK ? left : BLOCK, block, head);
				/* one element that is not finite in some blocks */
				if (op->kind == CAIRN_KIND_POISON && s->pair && (block + head + b) % 4 == 3)
					cairn_store(x, t->dtype, place(t, i + left % BLOCK / 2, head) + 7,
						    head % 2 ? NAN : -INFINITY);
				/* a block's last row has the largest element */
				if (s->ends)
					cairn_store(x, t->dtype,
						    place(t, i + (left < BLOCK ? left : BLOCK) - 1, head), 9);
			}
}

static void declare_codes(struct cairn_op *op, size_t field, const char *name, int heads, int blocks,
			  int rows, int columns)
{
	cairn_out(op, field, CAIRN_U8, (int64_t)heads * blocks * rows * columns);
	cairn_name(op, field, name);
	cairn_shape(op, field, { "head", heads }, { "block", blocks }, { "row", rows },
		    { "column", columns });
}

static void declare_scale(struct cairn_op *op, size_t field, const char *name, int heads, int blocks)
{
	cairn_out(op, field, CAIRN_F32, (int64_t)heads * blocks);
	cairn_name(op, field, name);
	cairn_shape(op, field, { "head", heads }, { "block", blocks });
}

/* Fills an indptr; returns the rows of all requests. */
static int set_indptr(struct cairn_op *op, const struct shape *s, int32_t *indptr, int len, const int *lens)
{
	indptr[0] = 0;
	for (int b = 0; b < s->batch; b++)
		indptr[b + 1] = indptr[b] + (lens ? lens[b] : b && s->flags & RAGGED ?
				(int)cairn_op_range(op, 0, len) : len);
	return indptr[s->batch];
}

static void set_strides(struct cairn_attn_quant_args *a, const struct shape *s, struct tensor *q,
			struct tensor *k,
			struct tensor *v)
{
	q->stride = s->flags & FAR_Q ? FAR_STRIDE : (int64_t)s->hq * s->dim + (s->flags & Q_GAPS ? 16 : 0);
	q->head_stride = s->dim;
	a->q_stride = s->flags & (FAR_Q | Q_GAPS | EXPLICIT) ? q->stride : 0;
	k->head_stride = s->flags & HEAD_GAPS ? 2 * s->dim : s->flags & HEADS_FIRST ?
			 (int64_t)a->nnz_kv * s->dim + 8 : s->dim;
	v->head_stride = s->flags & HEAD_GAPS ? 3 * s->dim : s->flags & HEADS_FIRST ?
			 (int64_t)a->nnz_kv * s->dim : s->dim;
	k->stride = s->flags & HEADS_FIRST ? s->dim : s->hkv * k->head_stride + (s->flags & ROW_GAPS ? 8 : 0);
	v->stride = s->flags & HEADS_FIRST ? s->dim : s->hkv * v->head_stride +
		(s->flags & ROW_GAPS ? 24 : 0);
	if (s->flags & FAR_K)
		*(s->flags & HEADS_FIRST ? &k->head_stride : &k->stride) = FAR_STRIDE;
	if (s->flags & FAR_V)
		*(s->flags & HEADS_FIRST ? &v->head_stride : &v->stride) = FAR_STRIDE;
	a->k_head_stride = k->head_stride != s->dim || s->flags & EXPLICIT ? k->head_stride : 0;
	a->v_head_stride = v->head_stride != s->dim || s->flags & EXPLICIT ? v->head_stride : 0;
	/* even without a key, the stride between heads must be at least head_dim */
	if (k->head_stride < s->dim)
		a->k_head_stride = k->head_stride = s->dim;
	if (v->head_stride < s->dim)
		a->v_head_stride = v->head_stride = s->dim;
	a->k_stride = k->stride == s->hkv * k->head_stride ? 0 : k->stride;
	a->v_stride = v->stride == s->hkv * v->head_stride ? 0 : v->stride;
}

static void setup(struct cairn_op *op)
{
	struct cairn_attn_quant_args *a = op->args;
	struct shape s = shape_at(op->case_index);
	struct tensor q = { FIELD(q), "q", s.hq, s.dim, s.flags & F16 ? CAIRN_F16 : CAIRN_BF16,
			    !!(s.flags & FAR_Q), 0, 0, NULL };
	struct tensor k = q, v = q;
	int32_t *qo_indptr = cairn_in(op, FIELD(qo_indptr), CAIRN_I32, s.batch + 1);
	int32_t *kv_indptr = cairn_in(op, FIELD(kv_indptr), CAIRN_I32, s.batch + 1);
	int pad = s.flags & PADDED ? 150 : 0, q_blocks, kv_blocks;

	a->batch = s.batch;
	a->nnz_qo = set_indptr(op, &s, qo_indptr, s.qo, s.qo_lens) + pad;
	a->nnz_kv = set_indptr(op, &s, kv_indptr, s.kv, s.kv_lens) + 2 * pad;
	a->num_qo_heads = s.hq;
	a->num_kv_heads = s.hkv;
	a->head_dim = s.dim;
	a->dtype = q.dtype;
	q.indptr = qo_indptr;
	k.indptr = v.indptr = kv_indptr;
	k.field = FIELD(k);
	v.field = FIELD(v);
	k.name = "k";
	v.name = "v";
	k.heads = v.heads = s.hkv;
	k.far = !!(s.flags & FAR_K);
	v.far = !!(s.flags & FAR_V);
	set_strides(a, &s, &q, &k, &v);
	declare(op, &s, &q, a->nnz_qo);
	declare(op, &s, &k, a->nnz_kv);
	declare(op, &s, &v, a->nnz_kv);
	if (s.flags & SIGNS) {
		uint8_t *signs = cairn_in(op, FIELD(signs), CAIRN_U8, s.dim / 8);

		for (int i = 0; i < s.dim / 8; i++)
			signs[i] = (uint8_t)cairn_op_range(op, 0, 255);
	}
	q_blocks = attn_fp8_blocks(a->nnz_qo, a->batch);
	kv_blocks = attn_fp8_blocks(a->nnz_kv, a->batch);
	declare_codes(op, FIELD(q8), "q8", s.hq, q_blocks, BLOCK, s.dim);
	declare_codes(op, FIELD(k8), "k8", s.hkv, kv_blocks, BLOCK, s.dim);
	declare_codes(op, FIELD(v8), "v8", s.hkv, kv_blocks, s.dim, BLOCK);
	declare_scale(op, FIELD(q_scale), "q_scale", s.hq, q_blocks);
	declare_scale(op, FIELD(k_scale), "k_scale", s.hkv, kv_blocks);
	declare_scale(op, FIELD(v_scale), "v_scale", s.hkv, kv_blocks);
}

static const char *reject(void *args, int i, int *want)
{
	struct cairn_attn_quant_args *a = args;

	*want = i < 17 ? -EINVAL : -EOPNOTSUPP;
	switch (i) {
	case 0: a->size = 8; return "size_too_small";
	case 1: a->q8 = NULL; return "q8_null";
	case 2: a->v_scale = NULL; return "v_scale_null";
	case 3: a->k = NULL; return "k_null";
	case 4: a->qo_indptr = NULL; return "qo_indptr_null";
	case 5: a->q = (const char *)a->q + 8; return "q_misaligned";
	case 6: a->k8 += 8; return "k8_misaligned";
	case 7: a->batch = -1; return "batch_negative";
	case 8: a->nnz_qo = -1; return "nnz_qo_negative";
	case 9: a->nnz_kv = -1; return "nnz_kv_negative";
	case 10: a->num_kv_heads = 0; return "num_kv_heads_0";
	case 11: a->head_dim = 0; return "head_dim_0";
	case 12: a->q_stride = a->head_dim - 8; return "q_stride_short";
	case 13: a->k_stride = a->head_dim + 4; return "k_stride_odd";
	case 14: a->v_head_stride = a->head_dim - 8; return "v_head_stride_short";
	case 15: a->k_head_stride = a->head_dim + 2; return "k_head_stride_odd";
	case 16: a->v_stride = -8; return "v_stride_negative";
	case 17: a->dtype = CAIRN_F32; return "dtype_f32";
	case 18: a->head_dim = 256; return "head_dim_256";
	case 19: a->head_dim = 80; return "head_dim_80";
	case 20: a->num_qo_heads = 5; a->num_kv_heads = 2; return "heads_5_over_2";
	}
	return NULL;
}

static int exact(const void *args, struct cairn_exact *e)
{
	return cairn_attn_quant_exact(args, e);
}

static void pair_rows(struct cairn_test *t)
{
	cairn_pairs_check(t, &pair_table, NUM_PAIRS);
	cairn_pairs_check(t, &ends_table, NUM_ENDS);
}

static const struct cairn_unit units[] = { { "pair_rows", pair_rows } };

const struct cairn_family cairn_attn_quant_family = {
	.stage = "fused", .name = "attn_quant",
	.op = offsetof(struct cairn_impl, attn_quant),
	.args_size = sizeof(struct cairn_attn_quant_args),
	.num_cases = NUM_CASES, .draw = &draws,
	.units = units, .num_units = ARRAY_SIZE(units),
	.describe = describe,
	.setup = setup,
	.exact = exact,
	.reject = reject,
	.cost_s = 4,
};
