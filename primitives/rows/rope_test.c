// SPDX-License-Identifier: Apache-2.0
/*
 * rope_test - cases of rope.h
 *
 * The pair cases combine types, orders, heads, sizes, strides of q and k, norms, eps, scales and positions.
 * The cases ends_* combine sizes at the ends of tiles (ends.h). The cases gaps_* have both strides in every
 * combination, each with every combination of heads and rotated share.
 */
#include "conformance/harness.h"
#include "conformance/suite/draw.h"
#include "conformance/suite/ends.h"
#include "conformance/suite/pairs.h"
#include "primitives/rows/rmsnorm.h"

#include <math.h>
#include <stdio.h>

struct shape {
	int32_t nnz, num_qo_heads, num_kv_heads /* 0: no k */, head_dim, rotary_dim, interleaved, dtype;
	int32_t offset;			/* first position */
	int32_t gap;			/* elements between rows; 0: contiguous */
	int32_t bench;
	float scale;
	int32_t norm;			/* Q, K or both; 0: no norm */
	float eps;			/* of the norm */
};

enum { Q = 1, K = 2, QK = 3 };

#define FAR_GAP	(1 << 30)

/* All combinations of nnz, head_dim, rotated share, order and dtype; offsets, strides and heads alternate. */
static const int32_t grid_nnz[] = { 1, 19, 99 };
static const int32_t grid_dims[] = { 64, 128, 256 };
static const int32_t grid_parts[] = { 4, 8, 16 };	/* sixteenths of head_dim that are rotated */
static const int32_t dtypes[] = { CAIRN_BF16, CAIRN_F16, CAIRN_F32 };
#define NUM_GRID                                                                                             \
	(2 * ARRAY_SIZE(grid_nnz) * ARRAY_SIZE(grid_dims) * ARRAY_SIZE(grid_parts) * ARRAY_SIZE(dtypes))

static const struct shape singles[] = {
	/* qo, kv: heads; dim: head_dim; rot: rotary_dim; il: interleaved */
	/* nnz   qo   kv  dim  rot  il       dtype    offset       gap  bench    scale  norm    eps */
	{    5,   8,   2,  80,  80,  0, CAIRN_BF16,        0,        0,     0,       1,    0,     0 },
	{    5,   8,   2, 112, 112,  0,  CAIRN_F16,       99,        0,     0,       1,    0,     0 },
	{    5,   8,   2, 160, 160,  1, CAIRN_BF16,        0,        0,     0,       1,    0,     0 },
	{    5,   8,   2, 192, 192,  0,  CAIRN_F32,       15,        0,     0,       1,    0,     0 },
	{    5,   8,   2, 192,  64,  1, CAIRN_BF16,       15,        0,     0,       1,    0,     0 },
	{    2,   3,   1,  16,  16,  0, CAIRN_BF16,        3,        0,     0,       1,    0,     0 },
	{    3,   1,   1, 512, 512,  0,  CAIRN_F32,        7,        8,     0,       1,    0,     0 },
	{    3,   2,   1, 512, 512,  1,  CAIRN_F16,        7,        0,     0,       1,    0,     0 },
	{   17,  71,   1,  64,  64,  0, CAIRN_BF16,       40,        0,     0,       1,    0,     0 },
	{    4, 128, 128, 128, 128,  0, CAIRN_BF16,        0,        0,     0,       1,    0,     0 },
	/* large angles: the argument reduction of sine and cosine */
	{   37,   4,   4, 128, 128,  0,  CAIRN_F32,   131000,        0,     0,       1,    0,     0 },
	{   37,   4,   4, 128, 128,  1,  CAIRN_F32,  1048000,        0,     0,       1,    0,     0 },
	{   37,   4,   4,  64,  64,  0,  CAIRN_F32, 16777000,        0,     0,       1,    0,     0 },
	{    7,   3,   1,  64,  64,  1,  CAIRN_F32, 16777300,        0,     0,       1,    0,     0 },
	{    5,   3,   1,  64,  64,  0,  CAIRN_F32, INT32_MAX - 10,  0,     0,       1,    0,     0 },
	/* slices of one packed row of 32 + 8 + 8 heads; the heads of the other slices are the gap */
	{   19,  32,   8, 128, 128,  0, CAIRN_BF16,       15, 16 * 128,     0,       1,    0,     0 },
	{   19,  32,   8,  64,  64,  0,  CAIRN_F16,       99,  16 * 64,     0,       1,    0,     0 },
	{    9,   4,   0, 128, 128,  0, CAIRN_BF16,        1,        0,     0,       1,    0,     0 },
	{    9,   4,   0, 128,  64,  1,  CAIRN_F32,        1,       24,     0,       1,    0,     0 },
	{    9,   4,   4, 128, 128,  0,  CAIRN_F32,        1,        0,     0, 1.2079f,    0,     0 },
	{    9,   4,   2,  64,  64,  1, CAIRN_BF16,        1,        8,     0,    0.5f,    0,     0 },
	{   11,   3,   2,  64,  48,  0,  CAIRN_F16,        1,        8,     0,  -1.25f,    0,     0 },
	{    6,   3,   2,  48,  48,  1,  CAIRN_F32,        1,        8,     0,   -0.5f,   QK, 0.25f },
	{    0,   4,   4,  64,  64,  0, CAIRN_BF16,        0,        0,     0,       1,    0,     0 },
	{  989,  32,   8, 128, 128,  0, CAIRN_BF16,        0,        0,     0,       1,    0,     0 },
	{  989,   8,   8, 256, 128,  1,  CAIRN_F16,       15,       64,     0,       1,    0,     0 },
	{  989,   4,   4,  64,  64,  0,  CAIRN_F32,       99,        0,     0,       1,    0,     0 },
	{    1,  32,   8, 128, 128,  0, CAIRN_BF16,     4000,        0,     1,       1,    0,     0 },
	{  128,  32,   8, 128, 128,  0, CAIRN_BF16,        0,        0,     1,       1,    0,     0 },
	{ 8192,  32,   8, 128, 128,  0, CAIRN_BF16,        0,        0,     1,       1,    0,     0 },
	/* with a norm: all dimensions, partial rotation, both orders, q and k or one of them */
	{   19,  32,   8, 128, 128,  0, CAIRN_BF16,       15, 16 * 128,     0,       1,   QK, 1e-6f },
	{    9,   4,   2,  64,  64,  0,  CAIRN_F16,        3,        0,     0,       1,   QK, 1e-6f },
	{    9,   4,   2,  64,  64,  1,  CAIRN_F32,        3,        0,     0,       1,   QK,  1.0f },
	{    9,   4,   2, 128,  64,  0, CAIRN_BF16,       99,       24,     0,       1,   QK,  1.0f },
	{    9,   4,   2, 128,  32,  1,  CAIRN_F16,       99,        8,     0, 1.2079f,   QK,  1.0f },
	{    7,   3,   1, 256, 256,  0, CAIRN_BF16,        7,        0,     0,       1,   QK,  1.0f },
	{    7,   3,   1, 256, 128,  0,  CAIRN_F32,        7,        0,     0,    0.5f,   QK, 0.25f },
	{    5,   8,   2,  80,  80,  0, CAIRN_BF16,        2,        0,     0,       1,   QK,  1.0f },
	{    5,   8,   2, 112,  48,  1,  CAIRN_F16,        2,        0,     0,       1,   QK, 1e-5f },
	{    5,   2,   1, 192, 192,  0, CAIRN_BF16,        2,       16,     0,       1,   QK,  1.0f },
	{    3,   2,   1, 512, 512,  0,  CAIRN_F32,        7,        0,     0,       1,   QK, 1e-6f },
	{    3,   2,   1, 512, 512,  1, CAIRN_BF16,        7,        0,     0,       1,   QK,  1.0f },
	{    3,   3,   1, 512, 128,  0, CAIRN_BF16,        7,        0,     0,       1,   QK,  1.0f },
	{    2,   3,   1, 320, 160,  1,  CAIRN_F16,        7,        8,     0,       1,   QK, 1e-6f },
	{    2,   3,   1,  16,  16,  0, CAIRN_BF16,        3,        0,     0,       1,   QK,  1.0f },
	{   17,  71,   1,  64,  64,  0, CAIRN_BF16,       40,        0,     0,       1,   QK, 1e-6f },
	{    9,   4,   2, 128, 128,  0, CAIRN_BF16,        5,        0,     0,       1,    Q,  1.0f },
	{    9,   4,   2, 128, 128,  0,  CAIRN_F16,        5,        8,     0,       1,    K,  1.0f },
	{    9,   4,   0, 128, 128,  0, CAIRN_BF16,        5,        0,     0,       1,    Q, 1e-6f },
	{    0,   4,   4,  64,  64,  0, CAIRN_BF16,        0,        0,     0,       1,   QK, 1e-6f },
	{  989,  32,   8, 128, 128,  0, CAIRN_BF16,        0,        0,     0,       1,   QK, 1e-6f },
	{    1,  32,   8, 128, 128,  0, CAIRN_BF16,     4000,        0,     1,       1,   QK, 1e-6f },
	{  128,  32,   8, 128, 128,  0, CAIRN_BF16,        0,        0,     1,       1,   QK, 1e-6f },
	{ 8192,  32,   8, 128, 128,  0, CAIRN_BF16,        0,        0,     1,       1,   QK, 1e-6f },
	/* the third row begins past 2^31 elements, the fifth past 2^32 */
	{ .nnz = 5, .num_qo_heads = 4, .num_kv_heads = 2, .head_dim = 64, .rotary_dim = 64,
	  .dtype = CAIRN_BF16, .offset = 70000, .gap = FAR_GAP, .scale = 1 },
	/* scale 0; more heads of k than of q; more rows than 16 bits can count */
	{    3,   2,   1,  32,  32,  0,  CAIRN_F32,        1,        0,     0,       0,    0,     0 },
	{    3,   2,   1,  32,  32,  1, CAIRN_BF16,        1,        0,     0,       0,   QK,  1.0f },
	{    3,   1,   5,  32,  32,  0,  CAIRN_F16,        1,        8,     0,       1,    0,     0 },
	{    3,   2,   3,  48,  32,  1, CAIRN_BF16,        1,        0,     0,       1,   QK,  1.0f },
	{ 65541,  1,   0,  16,  16,  0, CAIRN_BF16,        0,        0,     0,       1,    0,     0 },
	{ 65541,  1,   0,  16,  16,  0, CAIRN_BF16,        0,        0,     0,       1,    Q,  1.0f },
	/* many rows with gaps between them */
	{ 1300,   2,   1,  32,  32,  0, CAIRN_BF16,        1,        8,     0,       1,    0,     0 },
	{ 1300,   1,   2,  16,  16,  1,  CAIRN_F16,        1,       24,     0,       1,   QK,  1.0f },
};

#define FIRST_PAIR	((int)(NUM_GRID + ARRAY_SIZE(singles)))
#define NUM_PAIRS	34
#define FIRST_LAST	(FIRST_PAIR + NUM_PAIRS)

/* The last cases: the smallest eps, and elements of the size of its root; the first head is 0. */
static const struct shape last[] = {
	{ 5, 3, 2, 48, 32, 0, CAIRN_F32, 7, 0, 0, 1, QK, CAIRN_EPS_MIN },
	{ 5, 4, 1, 64, 64, 1, CAIRN_BF16, 7, 8, 0, 1, Q, CAIRN_EPS_MIN },
	/* a negative scale with a norm */
	{ 5, 3, 2, 64, 48, 0, CAIRN_F32, 7, 8, 0, -0.75f, QK, 1e-6f },
	{ 5, 3, 2, 32, 32, 0, CAIRN_BF16, 7, 0, 0, -0.5f, K, 1e-6f },
	{ 5, 3, 2, 48, 32, 1, CAIRN_F16, 7, 0, 0, -0.5f, Q, 1e-6f },
};

enum { F_TYPE, F_ORDER, F_HEADS, F_DIM, F_ROTARY, F_Q_GAP, F_K_GAP, F_NORM, F_EPS, F_SCALE, F_OFFSET,
       F_ROWS, NUM_FACTORS };
static const int32_t pair_heads[][2] = { { 1, 1 }, { 5, 3 }, { 6, 2 }, { 7, 0 }, { 12, 4 } };
static const int32_t pair_dims[] = { 16, 48, 80, 128, 192 }, pair_rotary[] = { 16, 8, 4 };
static const int32_t pair_gaps[] = { 0, 16, 8 }, pair_norms[] = { 0, Q, K, QK }, pair_rows[] = { 1, 5, 13 };
static const int32_t pair_offsets[] = { 0, 99, 70000 };
static const float pair_eps[] = { 1, 1e-6f, 1e-12f }, pair_scales[] = { 1, 0.5f, 1.2079f };

static int pair_forbidden(const int8_t *level)
{
	return (level[F_HEADS] == 3 && (level[F_K_GAP] > 0 || level[F_NORM] > 1)) ||	/* there is no k */
	       (level[F_NORM] == 0 && level[F_EPS] > 0);
}

static struct cairn_pairs pairs = { .num_factors = NUM_FACTORS, .forbidden = pair_forbidden,
				    .levels = { 3, 2, 5, 5, 3, 2, 3, 4, 3, 3, 3, 3 } };

static struct shape pair_of(int i)
{
	const int8_t *level = cairn_pairs_row(&pairs, i);
	struct shape s = {
		.dtype = dtypes[level[F_TYPE]], .interleaved = level[F_ORDER],
		.num_qo_heads = pair_heads[level[F_HEADS]][0], .num_kv_heads = pair_heads[level[F_HEADS]][1],
		.head_dim = pair_dims[level[F_DIM]], .gap = pair_gaps[level[F_Q_GAP]],
		.norm = pair_norms[level[F_NORM]], .eps = pair_eps[level[F_EPS]],
		.scale = pair_scales[level[F_SCALE]],
		.offset = pair_offsets[level[F_OFFSET]], .nnz = pair_rows[level[F_ROWS]],
	};

	s.rotary_dim = (s.head_dim * pair_rotary[level[F_ROTARY]] / 16 + 15) / 16 * 16;
	return s;
}

#define FIRST_ENDS	(FIRST_LAST + (int)ARRAY_SIZE(last))
#define NUM_ENDS	30

static const int32_t ends_q_heads[] = { 1, 3, 7, 9, 17 }, ends_k_heads[] = { 1, 3, 7, 9 };
static const int32_t ends_dims[] = { 16, 48, 64, 128 };
static struct cairn_pairs ends = { .num_factors = 8, .levels = { CAIRN_FEW_ENDS, 5, 4, 2, 3, 4, 2, 3 } };

static struct shape ends_of(int i)
{
	const int8_t *level = cairn_pairs_row(&ends, i);

	return (struct shape){ .nnz = cairn_ends[level[0]], .num_qo_heads = ends_q_heads[level[1]],
			       .num_kv_heads = ends_k_heads[level[2]], .interleaved = level[3],
			       .dtype = dtypes[level[4]], .head_dim = ends_dims[level[5]],
			       .rotary_dim = ends_dims[level[5]], .norm = level[6] ? QK : 0,
			       .gap = pair_gaps[level[7]], .eps = 1, .offset = 99, .scale = 1 };
}

#define FIRST_GAPS	(FIRST_ENDS + NUM_ENDS)
#define NUM_GAPS	111

/* strides of q and k (3 x 3); heads and rotated share (4 x 3); rows, dim, type and order, norm */
static struct cairn_pairs gap_table = { .num_factors = 6, .levels = { 9, 12, CAIRN_FEW_ENDS, 5, 6, 4 } };

static struct shape gaps_of(int i)
{
	static const int32_t heads[][2] = { { 1, 1 }, { 5, 3 }, { 6, 2 }, { 12, 4 } };
	const int8_t *level = cairn_pairs_row(&gap_table, i);
	struct shape s = {
		.gap = pair_gaps[level[0] / 3], .num_qo_heads = heads[level[1] / 3][0],
		.num_kv_heads = heads[level[1] / 3][1], .nnz = cairn_ends[level[2]],
		.head_dim = pair_dims[level[3]], .dtype = dtypes[level[4] % 3], .interleaved = level[4] / 3,
		.norm = pair_norms[level[5]], .eps = 1, .offset = 99, .scale = 1,
	};

	s.rotary_dim = (s.head_dim * pair_rotary[level[1] % 3] / 16 + 15) / 16 * 16;
	return s;
}

#define NUM_CASES	(FIRST_GAPS + NUM_GAPS)

/* a drawn case, whose rows of q and k have different gaps */
struct row {
	struct shape s;
	int32_t k_gap;
};

static const struct cairn_draw_axis axes[] = {
	CAIRN_DRAW_SIZE(struct row, s.nnz, 1, 70000, 1),
	CAIRN_DRAW_SIZE(struct row, s.num_qo_heads, 1, 200, 1),
	CAIRN_DRAW_SIZE(struct row, s.num_kv_heads, 0, 140, 1),
	CAIRN_DRAW_SIZE(struct row, s.head_dim, 16, 512, 16),
	CAIRN_DRAW_SIZE(struct row, s.rotary_dim, 16, 512, 16),
	CAIRN_DRAW_ONE_OF(struct row, s.interleaved, 0, 1),
	CAIRN_DRAW_ONE_OF(struct row, s.dtype, CAIRN_BF16, CAIRN_F16, CAIRN_F32),
	CAIRN_DRAW_SIZE(struct row, s.offset, 0, 1000000, 1),
	CAIRN_DRAW_ONE_OF(struct row, s.gap, 0, 0, 8, 16, 192),
	CAIRN_DRAW_ONE_OF(struct row, k_gap, 0, 0, 8, 16, 264),
	CAIRN_DRAW_ONE_OF(struct row, s.norm, 0, 0, Q, K, QK),
	CAIRN_DRAW_ONE_OF(struct row, s.eps, 1, 1e-6f, 1e-12f),
	CAIRN_DRAW_ONE_OF(struct row, s.scale, 1, 1, 0.5f, 1.2079f),
};

static int allowed(void *shape, int room)
{
	struct row *r = shape;
	struct shape *s = &r->s;

	s->rotary_dim = s->rotary_dim > s->head_dim ? s->head_dim : s->rotary_dim;
	if (!s->num_kv_heads) {
		s->norm &= Q;
		r->k_gap = 0;
	}
	return (int64_t)s->nnz * (s->num_qo_heads + s->num_kv_heads) * s->head_dim <= room * 200000;
}

static const struct cairn_draw draws = {
	.shape_bytes = sizeof(struct row), .axes = axes, .num_axes = ARRAY_SIZE(axes),
	.allowed = allowed, .many = 5700,
};

/* Returns the elements between rows of k. In pair cases k and q have different gaps. */
static int32_t k_gap_of(int i, const struct shape *s)
{
	struct row r;

	if (i >= NUM_CASES) {
		cairn_draw_shape(&draws, i - NUM_CASES, &r);
		return r.k_gap;
	}
	if (i >= FIRST_GAPS)
		return pair_gaps[cairn_pairs_row(&gap_table, i - FIRST_GAPS)[0] % 3];
	if (i < FIRST_PAIR || i >= FIRST_LAST)
		return s->gap;
	return pair_gaps[cairn_pairs_row(&pairs, i - FIRST_PAIR)[F_K_GAP]];
}

static struct shape shape_of(int i)
{
	static const int32_t offsets[] = { 0, 15, 99, 5000 }, heads[][2] = { { 4, 4 }, { 8, 2 }, { 3, 1 } };
	static const int32_t gaps[] = { 0, 0, 8, 192, 0 };
	struct shape s = { .scale = 1 };
	struct row r;
	int turn = i;

	if (i >= NUM_CASES) {
		cairn_draw_shape(&draws, i - NUM_CASES, &r);
		return r.s;
	}
	if (i >= FIRST_GAPS)
		return gaps_of(i - FIRST_GAPS);
	if (i >= FIRST_ENDS)
		return ends_of(i - FIRST_ENDS);
	if (i >= FIRST_LAST)
		return last[i - FIRST_LAST];
	if (i >= FIRST_PAIR)
		return pair_of(i - FIRST_PAIR);
	if (i >= (int)NUM_GRID)
		return singles[i - NUM_GRID];
	s.dtype = dtypes[i % ARRAY_SIZE(dtypes)];
	i /= ARRAY_SIZE(dtypes);
	s.interleaved = i % 2;
	i /= 2;
	s.head_dim = grid_dims[i % ARRAY_SIZE(grid_dims)];
	i /= ARRAY_SIZE(grid_dims);
	s.rotary_dim = s.head_dim * grid_parts[i % ARRAY_SIZE(grid_parts)] / 16;
	s.nnz = grid_nnz[i / ARRAY_SIZE(grid_parts)];
	s.offset = offsets[turn % 4];
	s.num_qo_heads = heads[turn / 3 % 3][0];
	s.num_kv_heads = heads[turn / 3 % 3][1];
	s.gap = gaps[turn % 5];
	return s;
}

static void describe(int i, struct cairn_case *c)
{
	struct shape s = shape_of(i);
	double elements = (double)s.nnz * (s.num_qo_heads + s.num_kv_heads) * s.rotary_dim;
	int n = 0, pair = (i >= FIRST_PAIR && i < FIRST_LAST) || i >= FIRST_GAPS;
	char more[64] = "";

	if (s.rotary_dim != s.head_dim)
		n += snprintf(more + n, sizeof(more) - n, "_rotary%d", s.rotary_dim);
	if (s.interleaved)
		n += snprintf(more + n, sizeof(more) - n, "_interleaved");
	if (s.gap || (pair && k_gap_of(i, &s)))
		n += snprintf(more + n, sizeof(more) - n, "_gap%d", s.gap);
	if (pair && s.num_kv_heads)
		n += snprintf(more + n, sizeof(more) - n, "_%d", k_gap_of(i, &s));
	if (s.offset && !s.bench)
		n += snprintf(more + n, sizeof(more) - n, "_from%d", s.offset);
	if (s.scale != 1)
		n += snprintf(more + n, sizeof(more) - n, "_scale%s%d", s.scale < 0 ? "_minus" : "",
			      (int)fabsf(s.scale * 100));
	if (s.norm)
		n += snprintf(more + n, sizeof(more) - n, "_norm%s%s", s.norm & Q ? "q" : "",
			      s.norm & K ? "k" : "");
	if (s.norm && i >= FIRST_PAIR)
		snprintf(more + n, sizeof(more) - n, "_eps1e%d", (int)lroundf(-log10f(s.eps)));
	else if (s.norm && s.eps >= 0.1f)
		snprintf(more + n, sizeof(more) - n, "_eps%d", (int)(s.eps * 100));
	snprintf(c->name, sizeof(c->name), "%srows%d_heads%d_%d_dim%d_%s%s",
		 i >= FIRST_GAPS ? "gaps_" : pair ? "pair_" : i >= FIRST_ENDS ? "ends_" : "",
		 s.nnz, s.num_qo_heads,
		 s.num_kv_heads, s.head_dim, cairn_dtype_name(s.dtype), more);
	c->kinds = CAIRN_KIND_BIT(CAIRN_KIND_NORMAL);
	c->far = s.gap == FAR_GAP;
	if (i >= (int)NUM_GRID && !c->far && elements < 100000 && !s.bench)
		c->kinds = CAIRN_ALL_KINDS;
	else if (elements < 60000 && !s.bench && !c->far && (s.gap || s.rotary_dim < s.head_dim))
		c->kinds |= CAIRN_KIND_BIT(CAIRN_KIND_POISON);
	if (i >= FIRST_ENDS && i < NUM_CASES)
		c->kinds = CAIRN_KIND_BIT(CAIRN_KIND_NORMAL);
	if (s.norm && s.eps != 1)	/* see fill_norm() */
		c->kinds &= ~CAIRN_KIND_BIT(CAIRN_KIND_EXACT);
	if (pair && s.scale > 1 && s.dtype != CAIRN_F32)	/* its products would be rounded twice */
		c->kinds &= ~CAIRN_KIND_BIT(CAIRN_KIND_EXACT);
	c->bench = s.bench;
	c->device_only = elements > 600000 && s.nnz < 65536;
	c->bytes = 2 * elements * (double)cairn_dtype_bytes(s.dtype);
	c->flops = 3 * elements;
}

/*
 * Inputs of cases with a norm. EXACT: a quarter of the elements is 0, the others 2 or -2; the mean square is
 * 3 and, with an eps of 1, its root 2. EXTREME: heads of one magnitude each, whose sum of squares still fits
 * fp32. POISON: some heads hold NaN or infinity; the other heads must not be affected.
 */
static void fill_norm(struct cairn_op *op, const struct shape *s, void *x, int32_t heads, int32_t gap)
{
	const double sizes[] = { 0, cairn_dtype_tiny(s->dtype) * 6, 1,
				 s->dtype == CAIRN_F16 ? 16000 : 0x1p56 };
	int64_t stride = (int64_t)heads * s->head_dim + gap;

	for (int32_t i = 0; i < s->nnz; i++)
		for (int32_t h = 0; h < heads; h++) {
			int64_t at = i * stride + (int64_t)h * s->head_dim;
			double size = sizes[cairn_op_range(op, 0, 3)];

			for (int32_t j = 0; j < s->head_dim; j++) {
				if (op->kind == CAIRN_KIND_EXACT)
					cairn_store(x, s->dtype, at + j, j % 4 == h % 4 ? 0 :
						    cairn_op_range(op, 0, 1) ? 2 : -2);
				if (op->kind == CAIRN_KIND_EXTREME)
					cairn_store(x, s->dtype, at + j,
						    size * (double)cairn_op_range(op, -4, 4) / 4);
			}
			if (op->kind == CAIRN_KIND_POISON && (i + h) % 3 == 0)
				cairn_store(x, s->dtype, at + cairn_op_range(op, 0, s->head_dim - 1),
					    h % 2 ? (double)INFINITY : (double)NAN);
		}
}

/* Returns the largest integer of EXACT: the largest whose product with the scale is exact. */
static int64_t most_of(const struct shape *s)
{
	return s->scale > 1 && s->dtype != CAIRN_F32 ? 4 : 1 << 22;
}

/*
 * POISON: unused elements are NaN; in pair cases without a norm an element of every third head is NaN, or
 * infinite.
 */
static void poison(struct cairn_op *op, const struct shape *s, void *x, int32_t heads, int32_t gap, int norm)
{
	int64_t stride = (int64_t)heads * s->head_dim + gap;

	for (int32_t i = 0; i < s->nnz; i++) {
		for (int32_t h = 0; h < heads && !norm; h++) {
			int64_t at = i * stride + (int64_t)h * s->head_dim;

			cairn_fill_nan(x, s->dtype, at + s->rotary_dim, s->head_dim - s->rotary_dim);
			if (op->case_index >= FIRST_PAIR && (i + h) % 3 == 0)
				cairn_store(x, s->dtype, at + cairn_op_range(op, 0, s->rotary_dim - 1),
					    (i + h) % 2 ? (double)INFINITY : (double)NAN);
		}
		cairn_fill_nan(x, s->dtype, i * stride + (int64_t)heads * s->head_dim, gap);
	}
}

static void fill(struct cairn_op *op, const struct shape *s, void *x, int32_t heads, int32_t gap, int norm)
{
	const double sizes[] = { 0, cairn_dtype_tiny(s->dtype) * 6, 1,
				 s->dtype == CAIRN_F16 ? 48000 /* a pair may overflow */ : 0x1p124 };
	int64_t count = s->nnz * ((int64_t)heads * s->head_dim + gap);

	double size = 1;

	if (norm && op->case_index >= FIRST_PAIR)
		size = sqrt((double)s->eps);	/* eps matters only if the squares have its size */
	cairn_fill_exact(op, x, s->dtype, count, size, most_of(s));
	for (int64_t k = 0; op->kind == CAIRN_KIND_EXTREME && k < count; k++)
		cairn_store(x, s->dtype, k,
			    sizes[cairn_op_range(op, 0, 3)] * (double)cairn_op_range(op, -4, 4) / 4);
	if (op->kind == CAIRN_KIND_POISON)
		poison(op, s, x, heads, gap, norm);
	if (norm && op->kind != CAIRN_KIND_NORMAL)
		fill_norm(op, s, x, heads, gap);
	if (op->case_index >= FIRST_LAST && op->case_index < FIRST_ENDS && s->nnz)
		memset(x, 0, (size_t)s->head_dim * cairn_dtype_bytes(s->dtype));
}

/* Weights: about 1, some negative, to tell positions apart; EXACT: small integers. */
static void fill_weight(struct cairn_op *op, const struct shape *s, size_t field)
{
	void *w = cairn_in(op, field, s->dtype, s->head_dim);

	cairn_name(op, field, field == offsetof(struct cairn_rope_args, q_norm) ? "q_norm" : "k_norm");
	if (op->kind == CAIRN_KIND_EXACT) {
		cairn_fill_exact(op, w, s->dtype, s->head_dim, 1, most_of(s));
		return;
	}
	for (int32_t j = 0; j < s->head_dim; j++)
		cairn_store(w, s->dtype, j, (double)cairn_op_range(op, 50, 150) / 100 * (j % 5 ? 1 : -1));
}

static void fill_far(struct cairn_op *op, const struct shape *s, size_t field, int32_t heads)
{
	/* rows end where a page ends, so that a read past a row is detected */
	int64_t row = (int64_t)heads * s->head_dim, stride = s->gap;
	char *x = cairn_inout_far(op, field, s->dtype, (s->nnz - 1) * stride + row);

	for (int32_t i = 0; i < s->nnz; i++) {
		cairn_touch(op, x, i * stride, row);
		cairn_fill(op, x + i * stride * (int64_t)cairn_dtype_bytes(s->dtype), s->dtype, row, 1);
	}
}

static void setup(struct cairn_op *op)
{
	struct shape s = shape_of(op->case_index);
	int32_t k_gap = k_gap_of(op->case_index, &s);
	struct cairn_rope_args *a = op->args;
	int64_t q_count, k_count;
	int32_t *positions;
	float *inv_freq;
	double theta = s.offset % 2 ? 10000 : 500000;

	a->nnz = s.nnz;
	a->num_qo_heads = s.num_qo_heads;
	a->num_kv_heads = s.num_kv_heads;
	a->head_dim = s.head_dim;
	a->rotary_dim = s.rotary_dim;
	a->interleaved = s.interleaved;
	a->dtype = s.dtype;
	a->scale = s.scale;
	a->q_stride = s.gap ? (int64_t)s.num_qo_heads * s.head_dim + s.gap : 0;
	q_count = s.nnz * ((int64_t)s.num_qo_heads * s.head_dim + s.gap);
	k_count = s.nnz * ((int64_t)s.num_kv_heads * s.head_dim + k_gap);
	if (k_gap || op->case_index < FIRST_PAIR)
		a->k_stride = (int64_t)s.num_kv_heads * s.head_dim + k_gap;
	if (s.gap == FAR_GAP) {
		a->q_stride = a->k_stride = FAR_GAP;
		fill_far(op, &s, offsetof(struct cairn_rope_args, q), s.num_qo_heads);
		cairn_name(op, offsetof(struct cairn_rope_args, q), "q");
		fill_far(op, &s, offsetof(struct cairn_rope_args, k), s.num_kv_heads);
		cairn_name(op, offsetof(struct cairn_rope_args, k), "k");
	} else {
		fill(op, &s, cairn_inout(op, offsetof(struct cairn_rope_args, q), s.dtype, q_count),
		     s.num_qo_heads, s.gap, s.norm & Q);
	}
	if (s.num_kv_heads && s.gap != FAR_GAP)
		fill(op, &s, cairn_inout(op, offsetof(struct cairn_rope_args, k), s.dtype, k_count),
		     s.num_kv_heads, k_gap, s.norm & K);
	cairn_shape(op, offsetof(struct cairn_rope_args, q), { "row", s.nnz }, { "head", s.num_qo_heads },
		    { "dim", s.head_dim });
	cairn_stride(op, offsetof(struct cairn_rope_args, q), "row", a->q_stride);
	if (s.num_kv_heads) {
		cairn_shape(op, offsetof(struct cairn_rope_args, k), { "row", s.nnz },
			    { "head", s.num_kv_heads }, { "dim", s.head_dim });
		cairn_stride(op, offsetof(struct cairn_rope_args, k), "row", a->k_stride);
	}
	inv_freq = cairn_in(op, offsetof(struct cairn_rope_args, inv_freq), CAIRN_F32, s.rotary_dim / 2);
	/* frequencies depend on the seed, to detect an operation that keeps those of an earlier call */
	theta *= 1 + (double)cairn_op_range(op, 0, 99) / 100;
	for (int32_t p = 0; p < s.rotary_dim / 2; p++)
		inv_freq[p] = (float)pow(theta, -2.0 * p / s.rotary_dim);
	/* one pair rotates backwards, one does not rotate, and two have one frequency */
	if (op->case_index >= FIRST_PAIR) {
		inv_freq[1] = -inv_freq[1];
		inv_freq[s.rotary_dim / 2 - 1] = 0;
		inv_freq[3] = inv_freq[2];
	}
	positions = cairn_in(op, offsetof(struct cairn_rope_args, positions), CAIRN_I32, s.nnz);
	/* neither sorted nor distinct; EXACT: position 0, so that only the scale has an effect */
	for (int32_t i = 0; i < s.nnz; i++)
		positions[i] = op->kind == CAIRN_KIND_EXACT ? 0 :
			s.offset + (i % 7 == 3 ? (int32_t)cairn_op_range(op, 0, s.nnz) : i);
	a->norm_eps = s.eps;
	if (s.norm & Q)
		fill_weight(op, &s, offsetof(struct cairn_rope_args, q_norm));
	if (s.norm & K)
		fill_weight(op, &s, offsetof(struct cairn_rope_args, k_norm));
}

static int exact(const void *args, struct cairn_exact *e)
{
	return cairn_rope_exact(args, e);
}

static const char *reject(void *args, int i, int *want)
{
	struct cairn_rope_args *a = args;

	*want = -EINVAL;
	switch (i) {
	case 0: a->size = 0; return "old_struct";
	case 1: a->q = NULL; return "null_q";
	case 2: a->inv_freq = NULL; return "null_inv_freq";
	case 3: a->positions = NULL; return "null_positions";
	case 4: a->nnz = -1; return "negative_rows";
	case 5: a->num_qo_heads = 0; return "no_q_heads";
	case 6: a->num_kv_heads = 0; return "k_without_heads";
	case 7: a->rotary_dim = a->head_dim + 16; return "rotary_dim_too_large";
	case 8: a->q_stride = 8; return "stride_too_small";
	case 9: a->k_stride += 4; return "stride_not_of_8";
	case 10: a->q = (char *)a->q + 2; return "misaligned_q";
	case 11: a->scale = INFINITY; return "scale_infinite";
	case 12: a->q_norm = a->inv_freq; a->norm_eps = 0; return "norm_eps_zero";
	case 13: a->k_norm = a->inv_freq; a->norm_eps = INFINITY; return "norm_eps_infinite";
	case 14: a->k_norm = (const char *)a->inv_freq + 2; a->norm_eps = 1; return "misaligned_k_norm";
	case 15: a->q_norm = a->inv_freq; a->norm_eps = 1e-39f; return "norm_eps_subnormal";
	}
	*want = -EOPNOTSUPP;
	switch (i) {
	case 16: a->rotary_dim = 8; return "rotary_dim_8";
	case 17: a->head_dim = 72; a->k_stride = a->q_stride = 0; return "head_dim_72";
	case 18: a->head_dim = 1024; return "head_dim_1024";
	case 19: a->dtype = CAIRN_I32; return "dtype_i32";
	}
	return NULL;
}

/* q and k as slices of one packed row give the same as separate tensors; the third slice is not written. */
static void packed_slices(struct cairn_test *t)
{
	enum { ROWS = 5, HEADS = 3, DIM = 32, ROW = 3 * HEADS * DIM };
	static float packed[2][ROWS * ROW] __attribute__((aligned(16))), q[ROWS * HEADS * DIM],
		before[ROWS * ROW];
	float inv_freq[DIM / 2];
	int32_t positions[ROWS];
	struct cairn_rope_args a = { .size = sizeof(a),
				     .inv_freq = inv_freq,
				     .positions = positions,
				     .q_stride = ROW,
				     .k_stride = ROW,
				     .nnz = ROWS,
				     .num_qo_heads = HEADS,
				     .num_kv_heads = HEADS,
				     .head_dim = DIM,
				     .rotary_dim = DIM,
				     .dtype = CAIRN_F32,
				     .scale = 1 };

	for (int i = 0; i < ROWS * ROW; i++)
		packed[0][i] = packed[1][i] = before[i] = (float)(cairn_rand(t) % 1000) / 500 - 1;
	for (int p = 0; p < DIM / 2; p++)
		inv_freq[p] = 1.0f / (float)(1 + p);
	for (int i = 0; i < ROWS; i++) {
		positions[i] = 3 * i + 1;
		memcpy(q + i * HEADS * DIM, packed[0] + i * ROW, HEADS * DIM * sizeof(float));
	}
	for (int k = 0; k < 2; k++) {
		a.q = packed[k];
		a.k = packed[k] + HEADS * DIM;
		EXPECT(t, (k ? cairn_rope_cpu : cairn_rope_ref)(&a, NULL) == 0);
	}
	a.q = q;
	a.k = NULL;
	a.k_norm = (const char *)inv_freq + 2;	/* ignored without k, even if misaligned */
	a.q_stride = 0;
	EXPECT(t, cairn_rope_cpu(&a, NULL) == 0);
	for (int i = 0; i < ROWS; i++) {
		EXPECT(t, !memcmp(q + i * HEADS * DIM, packed[1] + i * ROW, HEADS * DIM * sizeof(float)));
		for (int k = 0; k < 2; k++)
			EXPECT(t, !memcmp(packed[k] + i * ROW + 2 * HEADS * DIM,
					  before + i * ROW + 2 * HEADS * DIM, HEADS * DIM * sizeof(float)));
		for (int j = 0; j < 2 * HEADS * DIM; j++)
			EXPECT(t, fabsf(packed[0][i * ROW + j] - packed[1][i * ROW + j]) <= 8 * 0x1p-24f * 2);
	}
}

static void pairs_are_covered(struct cairn_test *t)
{
	cairn_pairs_check(t, &pairs, NUM_PAIRS);
	cairn_pairs_check(t, &ends, NUM_ENDS);
	cairn_pairs_check(t, &gap_table, NUM_GAPS);
}

static const struct cairn_unit units[] = {
	{ "packed_slices", packed_slices },
	{ "pairs_are_covered", pairs_are_covered },
};

static int part(void *args, int i)
{
	struct cairn_rope_args *a = args;
	int64_t esize = (int64_t)cairn_dtype_bytes(a->dtype), dim = a->head_dim;
	int64_t q = a->q_stride ? a->q_stride : a->num_qo_heads * dim;
	int64_t k = a->k_stride ? a->k_stride : a->num_kv_heads * dim;
	int32_t first;

	if (!cairn_part(a->nnz, 16, 1, i, &first, &a->nnz))
		return 0;
	a->q = (char *)a->q + first * q * esize;
	if (a->k)
		a->k = (char *)a->k + first * k * esize;
	a->positions += first;
	return 1;
}

/* Without k, neither k_norm nor an epsilon for it alone is looked at. */
static int form(void *args, int i)
{
	struct cairn_rope_args *a = args;

	if (i || a->k)
		return 0;
	a->k_norm = (const void *)(uintptr_t)2;
	if (!a->q_norm)
		a->norm_eps = 0;
	return 1;
}

const struct cairn_family cairn_rope_family = {
	.stage = "primitives", .name = "rope",
	.units = units, .num_units = ARRAY_SIZE(units),
	.op = offsetof(struct cairn_impl, rope),
	.args_size = sizeof(struct cairn_rope_args),
	.num_cases = NUM_CASES, .draw = &draws,
	.exact_is_equal = 1,
	.part = part, .form = form,
	.describe = describe, .setup = setup, .exact = exact, .reject = reject,
};
