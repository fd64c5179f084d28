// SPDX-License-Identifier: Apache-2.0
/*
 * all_reduce_norm_test - cases of all_reduce_norm.h
 *
 * Every number of ranks occurs with every type. EXACT has integers whose sums are exact, and
 * some cancel, so that the residual must be equal in every bit. In POISON, a third of the rows have a NaN
 * or an infinity in the x of one rank. Cases that exceed a mailbox take several rounds. The cases of trouble
 * have no other inputs. The cases ends_* combine sizes at the ends of tiles (ends.h).
 */
#include "conformance/harness.h"
#include "conformance/suite/draw.h"
#include "conformance/suite/ends.h"
#include "conformance/suite/pairs.h"
#include "primitives/comm/all_reduce_norm.h"

#include <math.h>
#include <stdio.h>

#define FIELD(f)	offsetof(struct cairn_all_reduce_norm_args, f)

struct shape {
	int32_t ranks, rows, dim, dtype, residual;
	float offset, eps;
	const char *tag;	/* end of the case's name; NULL: none */
	int sparse;		/* all elements but every sparse-th are 0, so that the bound is narrow */
	enum cairn_trouble trouble;
	int device_only;
};

static const struct shape flavours[] = {
	{ .rows = 5, .dim = 64, .dtype = CAIRN_BF16, .residual = 1, .eps = 1e-5f },
	{ .rows = 3, .dim = 1000, .dtype = CAIRN_F16, .offset = 1, .eps = 1e-6f },
	{ .rows = 4, .dim = 24, .dtype = CAIRN_F32, .residual = 1, .eps = 1e-2f },
};
#define NUM_GRID	(CAIRN_COMM_MAX_RANKS * (int)ARRAY_SIZE(flavours))

static const struct shape singles[] = {
	{ .ranks = 2, .rows = 1, .dim = 8, .dtype = CAIRN_BF16, .eps = 1e-5f, .tag = "smallest" },
	{ .ranks = 3, .rows = 1, .dim = 8, .dtype = CAIRN_F32, .residual = 1, .eps = 1e-5f,
	  .tag = "smallest" },
	{ .ranks = 2, .rows = 1, .dim = 8192, .dtype = CAIRN_BF16, .residual = 1, .eps = 1e-5f },
	{ .ranks = 2, .rows = 9, .dim = 4096, .dtype = CAIRN_BF16, .residual = 1, .eps = 1e-5f },
	{ .ranks = 3, .rows = 9, .dim = 3584, .dtype = CAIRN_BF16, .residual = 1, .offset = 1, .eps = 1e-6f },
	{ .ranks = 2, .rows = 2, .dim = 16384, .dtype = CAIRN_F32, .residual = 1, .eps = 1e-5f },
	{ .ranks = 2, .rows = 3, .dim = 16376, .dtype = CAIRN_F16, .eps = 1e-5f },
	{ .ranks = 4, .rows = 37, .dim = 136, .dtype = CAIRN_F32, .offset = -1, .eps = 1e-5f },
	{ .ranks = 2, .rows = 300, .dim = 64, .dtype = CAIRN_BF16, .residual = 1, .eps = 1e-5f },
	{ .ranks = 2, .rows = 33, .dim = 2056, .dtype = CAIRN_F16, .residual = 1, .eps = 1.0f,
	  .tag = "eps1" },
	{ .ranks = 3, .rows = 20, .dim = 512, .dtype = CAIRN_F32, .residual = 1, .eps = CAIRN_EPS_MIN,
	  .tag = "eps_smallest" },
	{ .ranks = 2, .rows = 0, .dim = 512, .dtype = CAIRN_BF16, .residual = 1, .eps = 1e-5f,
	  .tag = "empty" },
	/* larger than a mailbox, of a host table and of a device */
	{ .ranks = 2, .rows = 40, .dim = 16384, .dtype = CAIRN_BF16, .residual = 1, .eps = 1e-5f },
	{ .ranks = 2, .rows = 1100, .dim = 2048, .dtype = CAIRN_F16, .residual = 1, .eps = 1e-5f,
	  .device_only = 1 },
	{ .ranks = 2, .rows = 128, .dim = 4096, .dtype = CAIRN_BF16, .residual = 1, .eps = 1e-5f,
	  .device_only = 1 },
	{ .ranks = 2, .rows = 3, .dim = 16376, .dtype = CAIRN_BF16, .eps = 1e-5f, .tag = "sparse",
	  .sparse = 97 },
	/* a row is a page, at which a rank can be held (ranks.h) */
	{ .ranks = 3, .rows = 3, .dim = 2048, .dtype = CAIRN_BF16, .residual = 1, .eps = 1e-5f },
	/* more ranks, and more than a mailbox of a host table */
	{ .ranks = 3, .rows = 35, .dim = 16384, .dtype = CAIRN_F16, .eps = 1e-5f },
	/* large: several launches; rows that CTAs share unevenly; two words a thread */
	{ .ranks = 2, .rows = 2100, .dim = 4096, .dtype = CAIRN_BF16, .residual = 1, .eps = 1e-5f,
	  .device_only = 1 },
	{ .ranks = 2, .rows = 270, .dim = 2056, .dtype = CAIRN_F32, .residual = 1, .eps = 1e-5f,
	  .device_only = 1 },
	{ .ranks = 2, .rows = 101, .dim = 16376, .dtype = CAIRN_F16, .offset = 1, .eps = 1e-5f,
	  .device_only = 1 },
	/* the longest and the shortest rows that bulk copies move, and more peers */
	{ .ranks = 2, .rows = 140, .dim = 8192, .dtype = CAIRN_BF16, .offset = 1, .eps = 1e-5f,
	  .device_only = 1 },
	{ .ranks = 2, .rows = 140, .dim = 8184, .dtype = CAIRN_F16, .residual = 1, .eps = 1e-5f,
	  .device_only = 1 },
	{ .ranks = 2, .rows = 530, .dim = 2048, .dtype = CAIRN_F16, .residual = 1, .eps = 1e-5f,
	  .device_only = 1 },
	{ .ranks = 3, .rows = 270, .dim = 4096, .dtype = CAIRN_BF16, .residual = 1, .eps = 1e-5f,
	  .device_only = 1 },
};
#define FIRST_TROUBLE	(NUM_GRID + (int)ARRAY_SIZE(singles))

static const struct {
	const char *name;
	enum cairn_trouble trouble;
	int32_t ranks;
} troubles[] = {
	{ "absent_of_2", CAIRN_TROUBLE_ABSENT, 2 }, { "absent_of_3", CAIRN_TROUBLE_ABSENT, 3 },
	{ "abort_of_2", CAIRN_TROUBLE_ABORT, 2 }, { "abort_of_3", CAIRN_TROUBLE_ABORT, 3 },
	{ "killed_of_2", CAIRN_TROUBLE_KILLED, 2 }, { "killed_of_3", CAIRN_TROUBLE_KILLED, 3 },
};

#define FIRST_ENDS	(FIRST_TROUBLE + (int)ARRAY_SIZE(troubles))
#define NUM_ENDS	52

/* rows, dim, ranks; type, residual and offset */
static struct cairn_pairs ends = { .num_factors = 4, .levels = { CAIRN_FEW_ENDS, 8, 5, 6 } };

static void ends_at(int i, struct shape *s)
{
	static const int32_t ends_dims[] = { 8, 24, 56, 72, 120, 136, 264, 1016 };
	static const int32_t ends_ranks[] = { 2, 3, 4, 5, 8 };
	static const int32_t dtypes[] = { CAIRN_BF16, CAIRN_F16, CAIRN_F32 };
	const int8_t *level = cairn_pairs_row(&ends, i);

	*s = (struct shape){
		.rows = cairn_ends[level[0]], .dim = ends_dims[level[1]], .ranks = ends_ranks[level[2]],
		.dtype = dtypes[level[3] % 3], .residual = level[3] / 3, .offset = level[3] == 4 ? 1 : 0,
		.eps = 1e-5f,
	};
}

#define NUM_CASES	(FIRST_ENDS + NUM_ENDS)

static const struct cairn_draw_axis axes[] = {
	CAIRN_DRAW_SIZE(struct shape, ranks, 1, 8, 1),
	CAIRN_DRAW_SIZE(struct shape, rows, 1, 3000, 1),
	CAIRN_DRAW_SIZE(struct shape, dim, 8, 16384, 8),
	CAIRN_DRAW_ONE_OF(struct shape, dtype, CAIRN_BF16, CAIRN_F16, CAIRN_F32),
	CAIRN_DRAW_ONE_OF(struct shape, residual, 0, 1),
	CAIRN_DRAW_ONE_OF(struct shape, offset, 0, 1, -1),
	CAIRN_DRAW_ONE_OF(struct shape, eps, 1e-5f, 1e-6f, 1e-2f, 1),
};

static int allowed(void *shape, int room)
{
	const struct shape *s = shape;

	return (int64_t)s->ranks * s->rows * s->dim <= room * 200000;
}

static const struct cairn_draw draws = {
	.shape_bytes = sizeof(struct shape), .axes = axes, .num_axes = ARRAY_SIZE(axes),
	.allowed = allowed, .many = 500, .few = 1,
};

static void shape_of(int i, struct shape *s)
{
	if (i >= NUM_CASES) {
		cairn_draw_shape(&draws, i - NUM_CASES, s);
	} else if (i >= FIRST_ENDS) {
		ends_at(i - FIRST_ENDS, s);
	} else if (i >= FIRST_TROUBLE) {
		*s = flavours[1];
		s->trouble = troubles[i - FIRST_TROUBLE].trouble;
		s->ranks = troubles[i - FIRST_TROUBLE].ranks;
		s->tag = troubles[i - FIRST_TROUBLE].name;
	} else if (i >= NUM_GRID) {
		*s = singles[i - NUM_GRID];
	} else {
		*s = flavours[i % (int)ARRAY_SIZE(flavours)];
		s->ranks = i / (int)ARRAY_SIZE(flavours) + 1;
	}
}

static int32_t ranks(int i)
{
	struct shape s;

	shape_of(i, &s);
	return s.ranks;
}

static enum cairn_trouble trouble(int i)
{
	struct shape s;

	shape_of(i, &s);
	return s.trouble;
}

static void describe(int i, struct cairn_case *c)
{
	double elements;
	struct shape s;

	shape_of(i, &s);
	elements = (double)s.rows * s.dim;
	c->kinds = elements < 40000 ? CAIRN_ALL_KINDS :
		   CAIRN_KIND_BIT(CAIRN_KIND_NORMAL) | CAIRN_KIND_BIT(CAIRN_KIND_EXACT);
	if (i >= FIRST_ENDS && i < NUM_CASES)
		c->kinds = CAIRN_KIND_BIT(CAIRN_KIND_EXACT);
	c->device_only = s.device_only;
	c->bytes = elements * (double)cairn_dtype_bytes(s.dtype) * (s.residual ? 4 : 2);
	c->flops = elements * (s.ranks + 4) * s.ranks;
	if (s.trouble) {
		snprintf(c->name, sizeof(c->name), "%s", s.tag);
		c->kinds = CAIRN_KIND_BIT(CAIRN_KIND_NORMAL);
		return;
	}
	snprintf(c->name, sizeof(c->name), "%sn%d_rows%d_dim%d_%s%s%s%s%s",
		 i >= FIRST_ENDS ? "ends_" : "", s.ranks, s.rows, s.dim, cairn_dtype_name(s.dtype),
		 s.residual ? "_residual" : "", s.offset ? "_offset" : "",
		 s.tag ? "_" : "", s.tag ? s.tag : "");
}

/* Each row has one magnitude, from subnormal to large; sums over the ranks and of squares still fit. */
static void fill_extreme(struct cairn_op *op, void *p, const struct shape *s)
{
	const double sizes[] = { 0, cairn_dtype_tiny(s->dtype) * 6,
				 s->dtype == CAIRN_F16 ? 0x1p-14 : 0x1p-126, 1,
				 s->dtype == CAIRN_F16 ? 58000.0 / (s->ranks + 1) : 0x1p53 };

	for (int32_t i = 0; i < s->rows; i++) {
		double size = sizes[cairn_op_range(op, 0, 4)];
		int mixed = cairn_op_range(op, 0, 1);

		for (int32_t j = 0; j < s->dim; j++)
			cairn_store(p, s->dtype, (int64_t)i * s->dim + j,
				    mixed ? size * (double)cairn_op_range(op, -16, 16) / 16 : size);
	}
}

static void fill(struct cairn_op *op, void *p, const struct shape *s, double scale)
{
	int64_t most = cairn_exact_most(s->dim) / (s->ranks + 1);
	int64_t held = s->dtype == CAIRN_BF16 ? 256 / (s->ranks + 1) : 2048 / (s->ranks + 1);

	if (s->eps < 1e-12f)		/* so small that eps matters */
		scale *= sqrt((double)s->eps);
	if (op->kind == CAIRN_KIND_EXTREME)
		fill_extreme(op, p, s);
	else
		cairn_fill_exact(op, p, s->dtype, (int64_t)s->rows * s->dim, scale,
				 most < held ? most : held);
	for (int64_t k = 0; s->sparse && k < (int64_t)s->rows * s->dim; k++)
		if ((k % s->dim + k / s->dim) % s->sparse)
			cairn_store(p, s->dtype, k, 0);
}

/*
 * Makes every third element of the residual large. The x of rank 0 cancels it, so that the sum shows whether
 * the sum of the ranks has kept the lowest bits of the others.
 */
static void fill_large(struct cairn_op *op, void *r, const struct shape *s)
{
	const double size = s->dtype == CAIRN_F16 ? 0x1p12 : 0x1p18;

	for (int64_t k = 0; k < (int64_t)s->rows * s->dim; k += 3)
		cairn_store(r, s->dtype, k, size * (double)cairn_op_range(op, -15, 15));
}

static void setup(struct cairn_op *op)
{
	struct cairn_all_reduce_norm_args *a = op->args;
	void *x, *r = NULL, *w;
	int64_t count;
	struct shape s;

	shape_of(op->case_index, &s);
	count = (int64_t)s.rows * s.dim;
	a->rows = s.rows;
	a->dim = s.dim;
	a->dtype = s.dtype;
	a->eps = s.eps;
	a->weight_offset = s.offset;
	cairn_out(op, FIELD(out), s.dtype, count);
	cairn_shape(op, FIELD(out), { "row", s.rows }, { "dim", s.dim });
	if (s.residual) {
		r = cairn_inout(op, FIELD(residual), s.dtype, count);
		cairn_shape(op, FIELD(residual), { "row", s.rows }, { "dim", s.dim });
	}
	x = cairn_in(op, FIELD(x), s.dtype, count);
	w = cairn_in(op, FIELD(weight), s.dtype, s.dim);
	for (int32_t j = 0; j < s.dim; j++)	/* about 1, some negative, to tell positions apart */
		cairn_store(w, s.dtype, j, ((double)cairn_op_range(op, 50, 150) / 100) * (j % 5 ? 1 : -1));
	if (r)
		fill(op, r, &s, 2);
	if (r && op->kind == CAIRN_KIND_EXACT)
		fill_large(op, r, &s);
	cairn_apart(op);
	fill(op, x, &s, 1);
	for (int64_t k = 0; r && op->kind == CAIRN_KIND_EXACT && op->rank == 0 && k < count; k += 3)
		cairn_store(x, s.dtype, k, -cairn_load(r, s.dtype, k));
	/* the largest numbers in every third row of f16: their sum overflows */
	for (int64_t i = 1; op->kind == CAIRN_KIND_EXTREME && s.dtype == CAIRN_F16 && i < s.rows; i += 3) {
		cairn_store(x, s.dtype, i * s.dim + i * 37 % s.dim, 65504);
		if (r)
			cairn_store(r, s.dtype, i * s.dim + i * 37 % s.dim, 65504);
	}
	for (int32_t i = 0; op->kind == CAIRN_KIND_POISON && i < s.rows; i += 3) {
		const double bad[] = { NAN, -INFINITY, INFINITY };

		if (i / 3 % op->ranks == op->rank)
			cairn_store(x, s.dtype, (int64_t)i * s.dim + i * 37 % s.dim, bad[i / 3 % 3]);
	}
}

static int exact_ranks(const void *const *args, int32_t rank, struct cairn_exact *exact)
{
	(void)rank;			/* all ranks have the same results */
	return cairn_all_reduce_norm_exact((const struct cairn_all_reduce_norm_args *const *)args, exact);
}

static const char *reject(void *args, int i, int *want)
{
	struct cairn_all_reduce_norm_args *a = args;

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
	case 8: a->comm.handle = NULL; return "no_comm";
	case 9: a->comm.rank = a->comm.ranks; return "rank_too_large";
	case 10: a->comm.rank = -1; return "negative_rank";
	case 11: a->comm.rank ^= 1; return "other_rank";
	case 12: a->comm.ranks++; return "more_ranks";
	}
	*want = -EOPNOTSUPP;
	switch (i) {
	case 13: a->dim = 12; return "dim_12";
	case 14: a->dim = 16392; return "dim_16392";
	case 15: a->dtype = CAIRN_I32; return "dtype_i32";
	case 16: a->comm.ranks = 9; return "ranks_9";
	}
	return NULL;
}

static int part(void *args, int i)
{
	struct cairn_all_reduce_norm_args *a = args;
	int64_t row = (int64_t)a->dim * (int64_t)cairn_dtype_bytes(a->dtype);
	int32_t first;

	if (!cairn_part(a->rows, row, 1, i, &first, &a->rows))
		return 0;
	a->out = (char *)a->out + first * row;
	a->x = (const char *)a->x + first * row;
	if (a->residual)
		a->residual = (char *)a->residual + first * row;
	return 1;
}

static void ends_are_covered(struct cairn_test *t)
{
	cairn_pairs_check(t, &ends, NUM_ENDS);
}

static const struct cairn_unit units[] = { { "ends_are_covered", ends_are_covered } };

const struct cairn_family cairn_all_reduce_norm_family = {
	.stage = "primitives", .name = "all_reduce_norm",
	.cost_s = 10,
	.op = offsetof(struct cairn_impl, all_reduce_norm),
	.args_size = sizeof(struct cairn_all_reduce_norm_args),
	.units = units, .num_units = ARRAY_SIZE(units),
	.num_cases = NUM_CASES, .draw = &draws,
	.may_alias = { { FIELD(out), FIELD(x) } },
	.part = part,
	.describe = describe, .setup = setup, .reject = reject,
	.comm_field = FIELD(comm), .agree = { FIELD(out), FIELD(residual) },
	.ranks = ranks, .exact_ranks = exact_ranks, .trouble = trouble,
};
