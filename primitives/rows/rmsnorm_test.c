// SPDX-License-Identifier: Apache-2.0
/*
 * rmsnorm_test - cases of rmsnorm.h
 *
 * EXACT has integers whose squares add up to as much as 2^24. The pair cases combine types, residual, offset,
 * eps and sizes; the elements of x are about sqrt(eps), so that every eps matters. The cases ends_* combine
 * sizes at the ends of tiles (ends.h).
 */
#include "conformance/harness.h"
#include "conformance/suite/draw.h"
#include "conformance/suite/ends.h"
#include "conformance/suite/pairs.h"
#include "primitives/rows/quant_out/quant_out_test.h"
#include "primitives/rows/rmsnorm.h"

#include <float.h>
#include <math.h>
#include <stdio.h>

#define FIELD(f)	offsetof(struct cairn_rmsnorm_args, f)

struct shape {
	int32_t rows, dim, dtype, residual;
	float offset, eps;
	const char *tag;	/* end of the case's name; NULL: none */
	int bench, far;
	int sparse;		/* all elements but every sparse-th are 0, so that the bound is narrow */
	int32_t q;		/* enum quant_out */
	int32_t in_place;	/* out is x */
};

/* All shapes of the grid, each in four variants; then the single cases and the bench rows. */
static const int32_t grid_rows[] = { 1, 19, 99 };
static const int32_t grid_dims[] = { 64, 512, 1024, 3072, 3584, 4096, 8192, 16384 };
static const struct { int32_t dtype, residual; float offset; } flavours[] = {
	{ CAIRN_BF16, 0, 0 }, { CAIRN_BF16, 1, 1 }, { CAIRN_F16, 1, 0 }, { CAIRN_F32, 0, 1 },
};
#define NUM_GRID (ARRAY_SIZE(grid_rows) * ARRAY_SIZE(grid_dims) * ARRAY_SIZE(flavours))

static const struct shape singles[] = {
	{ .rows = 3, .dim = 8, .dtype = CAIRN_BF16, .eps = 1e-6f, .tag = "smallest" },
	{ .rows = 3, .dim = 8, .dtype = CAIRN_F32, .residual = 1, .eps = 1e-6f, .tag = "smallest" },
	{ .rows = 5, .dim = 24, .dtype = CAIRN_F16, .residual = 1, .offset = 1, .eps = 1e-5f },
	{ .rows = 7, .dim = 1000, .dtype = CAIRN_BF16, .residual = 1, .eps = 1e-5f },
	{ .rows = 7, .dim = 2056, .dtype = CAIRN_F32, .residual = 1, .offset = 1, .eps = 1e-5f },
	{ .rows = 4, .dim = 16376, .dtype = CAIRN_F32, .residual = 1, .eps = 1e-5f },
	{ .rows = 3, .dim = 4104, .dtype = CAIRN_F32, .eps = 1e-5f },
	{ .rows = 19, .dim = 512, .dtype = CAIRN_F32, .eps = 1.0f,
	  .tag = "eps1" },	/* so large that adding it in the wrong place shows */
	{ .rows = 19, .dim = 512, .dtype = CAIRN_BF16, .residual = 1, .eps = 0.25f, .tag = "eps025" },
	{ .rows = 5, .dim = 64, .dtype = CAIRN_BF16, .eps = 1e-20f, .tag = "eps1e20" },
	{ .rows = 5, .dim = 64, .dtype = CAIRN_F32, .residual = 1, .eps = 100, .tag = "eps100" },
	{ .rows = 33, .dim = 192, .dtype = CAIRN_F16, .eps = 1e-2f, .tag = "eps001" },
	{ .rows = 9, .dim = 136, .dtype = CAIRN_F16, .residual = 1, .offset = -1.5f, .eps = 1e-5f,
	  .tag = "minus" },
	{ .rows = 13, .dim = 200, .dtype = CAIRN_F32, .offset = -1, .eps = 1e-5f, .tag = "minus" },
	{ .rows = 65541, .dim = 8, .dtype = CAIRN_BF16, .residual = 1, .eps = 1e-5f },
	{ .rows = 0, .dim = 512, .dtype = CAIRN_BF16, .residual = 1, .eps = 1e-5f, .tag = "empty" },
	{ .rows = (1 << 18) + 4, .dim = 16384, .dtype = CAIRN_BF16, .residual = 1, .eps = 1e-5f, .far = 1 },
	{ .rows = 989, .dim = 64, .dtype = CAIRN_BF16, .residual = 1, .offset = 1, .eps = 1e-6f },
	{ .rows = 989, .dim = 512, .dtype = CAIRN_F32, .eps = 1e-6f },
	{ .rows = 989, .dim = 1024, .dtype = CAIRN_F16, .residual = 1, .eps = 1e-5f },
	{ .rows = 989, .dim = 3072, .dtype = CAIRN_BF16, .eps = 1e-5f },
	{ .rows = 989, .dim = 3584, .dtype = CAIRN_BF16, .residual = 1, .offset = 1, .eps = 1e-6f },
	{ .rows = 989, .dim = 4096, .dtype = CAIRN_F16, .eps = 1e-5f },
	{ .rows = 989, .dim = 8192, .dtype = CAIRN_F32, .residual = 1, .eps = 1e-5f },
	{ .rows = 989, .dim = 16384, .dtype = CAIRN_BF16, .residual = 1, .eps = 1e-5f },
	{ .rows = 128, .dim = 4096, .dtype = CAIRN_BF16, .eps = 1e-5f, .tag = "bench", .bench = 1 },
	{ .rows = 128, .dim = 4096, .dtype = CAIRN_BF16, .residual = 1, .eps = 1e-5f, .tag = "bench",
	  .bench = 1 },
	{ .rows = 4096, .dim = 4096, .dtype = CAIRN_BF16, .residual = 1, .eps = 1e-5f, .tag = "bench",
	  .bench = 1 },
};

/* The last cases: the smallest eps, and elements of the size of its root; rows of zeros, except for a few. */
static const struct shape last[] = {
	{ .rows = 40, .dim = 8, .dtype = CAIRN_F32, .eps = CAIRN_EPS_MIN, .tag = "eps_smallest" },
	{ .rows = 40, .dim = 64, .dtype = CAIRN_BF16, .residual = 1, .eps = CAIRN_EPS_MIN,
	  .tag = "eps_smallest" },
	{ .rows = 40, .dim = 24, .dtype = CAIRN_F16, .offset = 1, .eps = CAIRN_EPS_MIN,
	  .tag = "eps_smallest" },
	{ .rows = 9, .dim = 1024, .dtype = CAIRN_F32, .residual = 1, .eps = CAIRN_EPS_MIN,
	  .tag = "eps_smallest" },
	{ .rows = 5, .dim = 16376, .dtype = CAIRN_F32, .eps = 1e-5f, .tag = "sparse", .sparse = 1021 },
	{ .rows = 5, .dim = 1000, .dtype = CAIRN_F32, .eps = 1e-5f, .tag = "sparse", .sparse = 97 },
	/* hundreds of results: some lie near the middle of two neighbours, where any error shows */
	{ .rows = 5, .dim = 16376, .dtype = CAIRN_BF16, .eps = 1e-5f, .tag = "sparse", .sparse = 97 },
	{ .rows = 3, .dim = 16360, .dtype = CAIRN_F16, .residual = 1, .eps = 1e-5f, .tag = "sparse",
	  .sparse = 97 },
};

/*
 * Outputs in e4m3, then what the first norm of a layer of Llama-3-8B gives, and how long out takes; at the
 * end calls in place, as other libraries fuse the residual.
 */
static const struct shape quantised[] = {
	{ .rows = 3, .dim = 16, .dtype = CAIRN_BF16, .eps = 1e-6f, .q = OUT_AND_ROWS },
	{ .rows = 5, .dim = 48, .dtype = CAIRN_F16, .residual = 1, .offset = 1, .eps = 1e-5f,
	  .q = ONLY_ROWS },
	{ .rows = 6, .dim = 144, .dtype = CAIRN_BF16, .eps = 1e-5f, .q = OUT_AND_PIECES },
	{ .rows = 5, .dim = 272, .dtype = CAIRN_F16, .residual = 1, .eps = 1e-3f, .q = ONLY_PIECES },
	{ .rows = 9, .dim = 1008, .dtype = CAIRN_BF16, .residual = 1, .offset = 1, .eps = 1e-6f,
	  .q = OUT_AND_PIECES },
	{ .rows = 7, .dim = 1024, .dtype = CAIRN_F16, .eps = 1e-5f, .q = OUT_AND_ROWS },
	{ .rows = 37, .dim = 512, .dtype = CAIRN_BF16, .residual = 1, .eps = 1e-5f, .q = OUT_AND_ROWS },
	{ .rows = 3, .dim = 4112, .dtype = CAIRN_BF16, .eps = 1e-5f, .q = ONLY_ROWS },
	{ .rows = 2, .dim = 16384, .dtype = CAIRN_F16, .residual = 1, .eps = 1e-5f, .q = OUT_AND_ROWS },
	{ .rows = 2, .dim = 16368, .dtype = CAIRN_BF16, .eps = 1e-5f, .q = ONLY_PIECES },
	{ .rows = 0, .dim = 512, .dtype = CAIRN_BF16, .eps = 1e-5f, .q = ONLY_ROWS },
	{ .rows = 989, .dim = 1024, .dtype = CAIRN_F16, .residual = 1, .eps = 1e-5f, .q = OUT_AND_PIECES },
	{ .rows = 989, .dim = 8192, .dtype = CAIRN_BF16, .eps = 1e-5f, .q = OUT_AND_ROWS },
	{ .rows = 1024, .dim = 4096, .dtype = CAIRN_BF16, .residual = 1, .eps = 1e-5f, .q = ONLY_ROWS,
	  .bench = 1 },
	{ .rows = 1024, .dim = 4096, .dtype = CAIRN_BF16, .residual = 1, .eps = 1e-5f, .q = ONLY_PIECES,
	  .bench = 1 },
	{ .rows = 1024, .dim = 4096, .dtype = CAIRN_BF16, .residual = 1, .eps = 1e-5f, .bench = 1 },
	{ .rows = 5, .dim = 1024, .dtype = CAIRN_F16, .residual = 1, .eps = 1e-5f, .in_place = 1 },
	{ .rows = 128, .dim = 4096, .dtype = CAIRN_BF16, .residual = 1, .eps = 1e-5f, .in_place = 1,
	  .bench = 1 },
	{ .rows = 4096, .dim = 4096, .dtype = CAIRN_BF16, .residual = 1, .eps = 1e-5f, .in_place = 1,
	  .bench = 1 },
};

#define FIRST_PAIR	((int)(NUM_GRID + ARRAY_SIZE(singles)))
#define NUM_PAIRS	28
#define FIRST_LAST	(FIRST_PAIR + NUM_PAIRS)
#define FIRST_ENDS	(FIRST_LAST + (int)ARRAY_SIZE(last))
#define NUM_ENDS	120

static const int32_t pair_dtypes[] = { CAIRN_BF16, CAIRN_F16, CAIRN_F32 }, pair_rows[] = { 1, 2, 5, 37 };
static const int32_t pair_dims[] = { 8, 24, 64, 200, 1016, 1024 };
static const float pair_offsets[] = { 0, 1, 0.25f }, pair_eps[] = { 1e-12f, 1e-6f, 1e-3f, 1 };
static const char *const pair_tags[] = { "eps1e12", "eps1e6", "eps1e3", "eps1", "025_eps1e12",
					 "025_eps1e6", "025_eps1e3", "025_eps1" };
static struct cairn_pairs pairs = { .num_factors = 6, .levels = { 3, 2, 3, 4, 6, 4 } };

static void pair_of(int i, struct shape *s)
{
	const int8_t *level = cairn_pairs_row(&pairs, i);

	*s = (struct shape){ .dtype = pair_dtypes[level[0]], .residual = level[1],
			     .offset = pair_offsets[level[2]], .eps = pair_eps[level[3]],
			     .dim = pair_dims[level[4]], .rows = pair_rows[level[5]],
			     .tag = pair_tags[level[3] + (level[2] == 2 ? 4 : 0)] };
}

static const int32_t ends_dims[] = { 8, 24, 56, 72, 120, 136, 248, 264, 504, 520, 1016, 1032 };
static struct cairn_pairs ends = { .num_factors = 3, .levels = { CAIRN_NUM_ENDS, 12, 6 } };

#define FIRST_Q		(FIRST_ENDS + NUM_ENDS)
#define NUM_CASES	(FIRST_Q + (int)ARRAY_SIZE(quantised))

static const struct cairn_draw_axis axes[] = {
	CAIRN_DRAW_SIZE(struct shape, rows, 1, 70000, 1),
	CAIRN_DRAW_SIZE(struct shape, dim, 8, 16384, 8),
	CAIRN_DRAW_ONE_OF(struct shape, dtype, CAIRN_BF16, CAIRN_F16, CAIRN_F32),
	CAIRN_DRAW_ONE_OF(struct shape, residual, 0, 1),
	CAIRN_DRAW_ONE_OF(struct shape, offset, 0, 1, 0.25f, -1.5f),
	CAIRN_DRAW_ONE_OF(struct shape, eps, 1e-5f, 1e-12f, 1e-6f, 1e-3f, 1, 100),
	CAIRN_DRAW_ONE_OF(struct shape, sparse, 0, 0, 0, 0, 0, 97),
	CAIRN_DRAW_ONE_OF(struct shape, q, 0, 0, 0, 0, OUT_AND_ROWS, OUT_AND_PIECES, ONLY_ROWS, ONLY_PIECES),
};

static int allowed(void *shape, int room)
{
	struct shape *s = shape;

	if (s->dtype == CAIRN_F32 || s->dim % 16)
		s->q = OUT_PLAIN;
	return (int64_t)s->rows * s->dim <= room * 300000;
}

static const struct cairn_draw draws = {
	.shape_bytes = sizeof(struct shape), .axes = axes, .num_axes = ARRAY_SIZE(axes),
	.allowed = allowed, .many = 7800,
};

static void shape_of(int i, struct shape *s)
{
	if (i >= NUM_CASES) {
		cairn_draw_shape(&draws, i - NUM_CASES, s);
		return;
	}
	if (i >= FIRST_Q) {
		*s = quantised[i - FIRST_Q];
		return;
	}
	if (i >= FIRST_ENDS) {
		const int8_t *level = cairn_pairs_row(&ends, i - FIRST_ENDS);

		*s = (struct shape){ .rows = cairn_ends[level[0]], .dim = ends_dims[level[1]],
				     .dtype = pair_dtypes[level[2] / 2], .residual = level[2] % 2,
				     .offset = i % 3 == 1, .eps = 1e-5f };
		return;
	}
	if (i >= FIRST_LAST) {
		*s = last[i - FIRST_LAST];
		return;
	}
	if (i >= FIRST_PAIR) {
		pair_of(i - FIRST_PAIR, s);
		return;
	}
	if (i >= (int)NUM_GRID) {
		*s = singles[i - NUM_GRID];
		return;
	}
	*s = (struct shape) { .eps = i % 2 ? 1e-6f : 1e-5f };
	s->dtype = flavours[i % ARRAY_SIZE(flavours)].dtype;
	s->residual = flavours[i % ARRAY_SIZE(flavours)].residual;
	s->offset = flavours[i % ARRAY_SIZE(flavours)].offset;
	i /= ARRAY_SIZE(flavours);
	s->dim = grid_dims[i % ARRAY_SIZE(grid_dims)];
	s->rows = grid_rows[i / ARRAY_SIZE(grid_dims)];
	s->bench = s->rows == 1 && s->dim == 4096 && s->dtype == CAIRN_BF16 && !s->residual;
}

static void describe(int i, struct cairn_case *c)
{
	double elements, esize;
	struct shape s;

	shape_of(i, &s);
	snprintf(c->name, sizeof(c->name), "%srows%d_dim%d_%s%s%s%s%s%s%s",
		 i >= FIRST_ENDS && i < FIRST_Q ? "ends_" : i >= FIRST_PAIR && i < FIRST_LAST ? "pair_" : "",
		 s.rows, s.dim, cairn_dtype_name(s.dtype), s.residual ? "_residual" : "",
		 s.offset ? "_offset" : "", s.tag && !s.bench ? "_" : "", s.tag && !s.bench ? s.tag : "",
		 quant_out_tag(s.q), s.in_place ? "_in_place" : "");
	elements = (double)s.rows * s.dim;
	esize = (double)cairn_dtype_bytes(s.dtype);
	c->kinds = CAIRN_KIND_BIT(CAIRN_KIND_NORMAL);
	if (elements < 25000 && !s.bench && (i < FIRST_ENDS || i >= FIRST_Q))
		c->kinds = CAIRN_ALL_KINDS;
	c->bench = s.bench;
	c->device_only = elements > 450000 && s.rows < 65536 && !s.far;
	c->far = s.far;
	c->bytes = elements * esize * ((s.residual ? 3 : 1) + quant_out_has_out(s.q)) + s.dim * esize +
		   quant_out_bytes(s.q, s.rows, s.dim);
	c->flops = elements * 4;
}

/* Each row has one magnitude, from subnormal to large; the sum of its squares still fits fp32. */
static void fill_extreme(struct cairn_op *op, void *p, const struct shape *s)
{
	const double sizes[] = { 0, cairn_dtype_tiny(s->dtype) * 6,
				 s->dtype == CAIRN_F16 ? 0x1p-14 : 0x1p-126, 1,
				 s->dtype == CAIRN_F16 ? 29000 : s->residual ? 0x1p55 : 0x1p56 };

	for (int32_t i = 0; i < s->rows; i++) {
		double size = sizes[cairn_op_range(op, 0, 4)];
		int mixed = cairn_op_range(op, 0, 1);

		for (int32_t j = 0; j < s->dim; j++)
			cairn_store(p, s->dtype, (int64_t)i * s->dim + j,
				    mixed ? size * (double)cairn_op_range(op, -16, 16) / 16 : size);
	}
}

/*
 * In every third row, x holds the largest number at one place, and the residual half an ulp of it, or the
 * same number again: the sum rounds to infinity.
 */
static void overflow(struct cairn_op *op, const struct shape *s, void *x, void *residual)
{
	const double most = s->dtype == CAIRN_F16 ? 65504 : s->dtype == CAIRN_BF16 ? 0x1.fep127 : FLT_MAX;
	const double half = s->dtype == CAIRN_F16 ? 16 : s->dtype == CAIRN_BF16 ? 0x1p119 : 0x1p103;

	for (int64_t i = 1; i < s->rows; i += 3) {
		int64_t at = i * s->dim + cairn_op_range(op, 0, s->dim - 1);
		double sign = i % 2 ? -1 : 1;

		cairn_store(x, s->dtype, at, sign * most);
		cairn_store(residual, s->dtype, at, sign * (i % 4 < 2 ? half : most));
	}
}

/* Fills x, or the residual, which is larger by a factor. EXACT: their sum is at most `most` in magnitude. */
static void fill(struct cairn_op *op, void *p, const struct shape *s, double factor)
{
	int64_t most = cairn_exact_most(s->dim);

	if (most > 256 && s->dtype == CAIRN_BF16)
		most = 256;
	if (!s->sparse && (op->case_index >= FIRST_PAIR || s->eps < 1e-12f || s->eps > 1))
		factor *= sqrt((double)s->eps);
	cairn_fill_exact(op, p, s->dtype, (int64_t)s->rows * s->dim, factor, s->residual ? most / 2 : most);
}

static void set_scalars(struct cairn_rmsnorm_args *a, const struct shape *s)
{
	a->rows = s->rows;
	a->dim = s->dim;
	a->dtype = s->dtype;
	a->eps = s->eps;
	a->weight_offset = s->offset;
	a->q_kind = quant_out_kind(s->q);
}

/* Rows past 2^32 elements in all three arrays */
static void setup_far(struct cairn_op *op, const struct shape *s)
{
	void *w = cairn_in(op, FIELD(weight), s->dtype, s->dim);

	set_scalars(op->args, s);
	cairn_fill(op, w, s->dtype, s->dim, 1);
	cairn_out_rows(op, FIELD(out), s->dtype, s->rows, s->dim);
	cairn_inout_rows(op, FIELD(residual), s->dtype, s->rows, s->dim, 4);
	cairn_in_rows(op, FIELD(x), s->dtype, s->rows, s->dim, 1);
}

static void setup(struct cairn_op *op)
{
	int64_t count;
	struct shape s;
	void *x = NULL, *r = NULL, *w;

	shape_of(op->case_index, &s);
	if (s.far) {
		setup_far(op, &s);
		return;
	}
	count = (int64_t)s.rows * s.dim;
	set_scalars(op->args, &s);
	if (quant_out_has_out(s.q)) {
		if (s.in_place)
			x = cairn_inout(op, FIELD(out), s.dtype, count);
		else
			cairn_out(op, FIELD(out), s.dtype, count);
		cairn_shape(op, FIELD(out), { "row", s.rows }, { "dim", s.dim });
	}
	if (s.residual) {
		r = cairn_inout(op, FIELD(residual), s.dtype, count);
		cairn_shape(op, FIELD(residual), { "row", s.rows }, { "dim", s.dim });
	}
	quant_out_declare(op, s.q, FIELD(q), FIELD(q_scale), s.rows, s.dim);
	if (s.in_place)
		cairn_alias(op, FIELD(x), FIELD(out));
	else
		x = cairn_in(op, FIELD(x), s.dtype, count);
	w = cairn_in(op, FIELD(weight), s.dtype, s.dim);
	if (op->kind == CAIRN_KIND_EXTREME) {
		fill_extreme(op, x, &s);
		if (r) {
			fill_extreme(op, r, &s);
			overflow(op, &s, x, r);
		}
	} else {
		fill(op, x, &s, 1);
		if (r)
			fill(op, r, &s, 4);
	}
	/* with q, the largest element of every second row is the last one */
	for (int64_t i = 1; s.q && op->kind == CAIRN_KIND_NORMAL && i < s.rows; i += 2)
		cairn_store(x, s.dtype, (i + 1) * s.dim - 1, i % 4 == 1 ? 8 : -8);
	for (int64_t k = 0; s.sparse && k < count; k++)
		if ((k % s.dim + k / s.dim) % s.sparse) {
			cairn_store(x, s.dtype, k, 0);
			if (r)
				cairn_store(r, s.dtype, k, 0);
		}
	for (int32_t j = 0; j < s.dim; j++)	/* about 1, some negative, to tell positions apart */
		cairn_store(w, s.dtype, j, ((double)cairn_op_range(op, 50, 150) / 100) * (j % 5 ? 1 : -1));
	for (int32_t j = 5; op->case_index >= FIRST_PAIR && j < s.dim; j += 11)
		cairn_store(w, s.dtype, j, j % 2 ? 0 : 40);
	/* so large a weight that elements above the root mean square overflow */
	if (op->kind == CAIRN_KIND_EXTREME && s.dtype == CAIRN_F16)
		cairn_store(w, s.dtype, s.dim / 2, -65504);
	/* NaN or infinity in every third row; the other rows must not be affected */
	for (int32_t i = 0; op->kind == CAIRN_KIND_POISON && i < s.rows; i += 3) {
		const double bad[] = { NAN, -INFINITY, INFINITY, INFINITY };
		int64_t at = (int64_t)i * s.dim + cairn_op_range(op, 0, s.dim - 1);

		cairn_store(i % 2 && r ? r : x, s.dtype, at, bad[i % 4]);
	}
}

static int exact(const void *args, struct cairn_exact *e)
{
	return cairn_rmsnorm_exact(args, e);
}

static int peer_exact(const void *args, struct cairn_exact *e)
{
	return cairn_rmsnorm_peer_exact(args, e);
}

static int judge(const struct cairn_op *op, const void *got, char *why, size_t why_len)
{
	const struct cairn_rmsnorm_args *a = got;
	const struct cairn_quant_fp8w_args quant = {
		.size = sizeof(quant), .b = a->q, .scale = a->q_scale, .w = a->out, .n = a->rows, .k = a->dim,
		.dtype = a->dtype, .scale_kind = a->q_kind,
	};

	return a->q && a->out ? quant_out_judge(op, &quant, FIELD(q), FIELD(q_scale), why, why_len) : 0;
}

/* Asks for e4m3 in the place of out; only for calls that must be refused. */
static void ask_for_q(struct cairn_rmsnorm_args *a)
{
	a->q = a->out;
	a->q_scale = a->out;
}

static const char *reject(void *args, int i, int *want)
{
	struct cairn_rmsnorm_args *a = args;

	*want = -EINVAL;
	switch (i) {
	case 0: a->size = 8; return "old_struct";
	case 1: a->out = NULL; return "null_out";
	case 2: a->x = NULL; return "null_x";
	case 3: a->weight = NULL; return "null_weight";
	case 4: a->rows = -1; return "negative_rows";
	case 5: a->dim = 0; return "no_dim";
	case 6: a->x = (const char *)a->x + 2; return "misaligned_x";
	case 7: a->eps = 0; return "eps_zero";
	case 8: a->eps = NAN; return "eps_nan";
	case 9: a->eps = 1e-39f; return "eps_subnormal";
	case 10: ask_for_q(a); a->q_scale = NULL; return "null_q_scale";
	case 11: ask_for_q(a); a->q += 8; return "misaligned_q";
	case 12: ask_for_q(a); a->q_kind = CAIRN_FP8_SCALE_BLOCKS; return "q_kind_1";
	}
	*want = -EOPNOTSUPP;
	switch (i) {
	case 13: a->dim = 12; return "dim_12";
	case 14: a->dim = 16392; return "dim_16392";
	case 15: a->dtype = CAIRN_I32; return "dtype_i32";
	case 16: ask_for_q(a); a->dtype = CAIRN_F32; return "q_of_f32";
	case 17: ask_for_q(a); a->dim = 24; return "q_dim_24";
	}
	return NULL;
}

/* With out == x the result has the same bits as with a separate output. */
static void in_place(struct cairn_test *t)
{
	enum { ROWS = 3, DIM = 40 };
	uint16_t x[ROWS * DIM] __attribute__((aligned(16))), w[DIM] __attribute__((aligned(16)));
	uint16_t out[ROWS * DIM] __attribute__((aligned(16))), ref[ROWS * DIM] __attribute__((aligned(16)));
	struct cairn_rmsnorm_args a = { .size = sizeof(a),
					.out = out,
					.x = x,
					.weight = w,
					.rows = ROWS,
					.dim = DIM,
					.dtype = CAIRN_BF16,
					.eps = 1e-5f };

	for (int i = 0; i < ROWS * DIM; i++)
		x[i] = ref[i] = cairn_double_to_bf16((double)(int64_t)(cairn_rand(t) % 2001) / 500 - 2);
	for (int i = 0; i < DIM; i++)
		w[i] = cairn_double_to_bf16(0.5 + i * 0.01);
	EXPECT(t, cairn_rmsnorm_cpu(&a, NULL) == 0);
	a.out = x;
	EXPECT(t, cairn_rmsnorm_cpu(&a, NULL) == 0);
	EXPECT(t, !memcmp(x, out, sizeof(x)));
	a.x = a.out = ref;
	EXPECT(t, cairn_rmsnorm_ref(&a, NULL) == 0);
	for (int i = 0; i < ROWS * DIM; i++)
		EXPECT(t, fabs(cairn_bf16_to_float(ref[i]) - cairn_bf16_to_float(x[i])) <= 0x1p-7 * 4);
}

/* A norm of the sum before it is rounded keeps the peers' bound, and one that is 4% off does not. */
static void peers_bound(struct cairn_test *t)
{
	enum { DIM = 512 };
	uint16_t x[DIM] __attribute__((aligned(16))), residual[DIM] __attribute__((aligned(16)));
	uint16_t w[DIM] __attribute__((aligned(16)));
	double val[2][DIM], bound[2][DIM], sum = 0;
	struct cairn_exact e[2] = { { .val = val[0], .bound = bound[0] },
				    { .val = val[1], .bound = bound[1] } };
	const struct cairn_rmsnorm_args a = { .size = sizeof(a), .out = x, .residual = residual, .x = x,
					      .weight = w, .rows = 1, .dim = DIM, .dtype = CAIRN_BF16,
					      .eps = 1e-5f };
	int outside = 0;

	for (int j = 0; j < DIM; j++) {
		x[j] = cairn_double_to_bf16((double)(int64_t)(cairn_rand(t) % 2001) / 500 - 2);
		residual[j] = cairn_double_to_bf16((double)(int64_t)(cairn_rand(t) % 2001) / 50 - 20);
		w[j] = cairn_double_to_bf16(1 + j * 0.01);
		sum += pow((double)cairn_bf16_to_float(x[j]) + (double)cairn_bf16_to_float(residual[j]), 2);
	}
	EXPECT(t, cairn_rmsnorm_peer_exact(&a, e) == 0);
	for (int j = 0; j < DIM; j++) {
		double r = (double)cairn_bf16_to_float(x[j]) + (double)cairn_bf16_to_float(residual[j]);
		double out = r / sqrt(sum / DIM + 1e-5) * (double)cairn_bf16_to_float(w[j]);
		double rounded = (double)cairn_bf16_to_float(cairn_double_to_bf16(out));

		EXPECT(t, fabs(rounded - val[0][j]) <= bound[0][j]);
		outside += fabs(rounded * 1.04 - val[0][j]) > bound[0][j];
		EXPECT(t, bound[1][j] == 0);
	}
	EXPECT(t, outside > DIM / 2);
}

static void pairs_are_covered(struct cairn_test *t)
{
	cairn_pairs_check(t, &pairs, NUM_PAIRS);
	cairn_pairs_check(t, &ends, NUM_ENDS);
}

static const struct cairn_unit units[] = {
	{ "in_place", in_place }, { "peers_bound", peers_bound },
	{ "pairs_are_covered", pairs_are_covered },
};

static int part(void *args, int i)
{
	struct cairn_rmsnorm_args *a = args;
	int64_t row = (int64_t)a->dim * (int64_t)cairn_dtype_bytes(a->dtype);
	int32_t first;

	/* the scales of pieces of some rows do not lie as those of all */
	if (a->q && a->q_kind == CAIRN_FP8_SCALE_PIECES)
		return 0;
	if (!cairn_part(a->rows, row, 1, i, &first, &a->rows))
		return 0;
	if (a->out)
		a->out = (char *)a->out + first * row;
	if (a->q) {
		a->q += (int64_t)first * a->dim;
		a->q_scale += first;
	}
	a->x = (const char *)a->x + first * row;
	if (a->residual)
		a->residual = (char *)a->residual + first * row;
	return 1;
}

const struct cairn_family cairn_rmsnorm_family = {
	.stage = "primitives", .name = "rmsnorm",
	.units = units, .num_units = ARRAY_SIZE(units),
	.op = offsetof(struct cairn_impl, rmsnorm),
	.args_size = sizeof(struct cairn_rmsnorm_args),
	.num_cases = NUM_CASES, .draw = &draws,
	.first_bytes = CAIRN_RMSNORM_FIRST_BYTES,
	.may_alias = { { FIELD(out), FIELD(x) } },
	.may_omit = { { FIELD(out), 0 }, { FIELD(q), FIELD(q_scale) } },
	.part = part,
	.describe = describe, .setup = setup, .exact = exact, .peer_exact = peer_exact, .judge = judge,
	.reject = reject,
	.cost_s = 10,
};
