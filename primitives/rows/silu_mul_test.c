// SPDX-License-Identifier: Apache-2.0
/*
 * silu_mul_test - cases of silu_mul.h
 *
 * EXACT: most gates are integers so large that the sigmoid is 1, or 0, and the product of gate and up is an
 * integer of up to 24 bits. The pair cases combine types, activations and sizes, and the cases ends_* sizes
 * at the ends of tiles (ends.h).
 */
#include "conformance/harness.h"
#include "conformance/suite/draw.h"
#include "conformance/suite/ends.h"
#include "conformance/suite/pairs.h"

#include <stdio.h>

#include "primitives/rows/quant_out/quant_out_test.h"

#define FIELD(f)	offsetof(struct cairn_silu_mul_args, f)

struct shape {
	int32_t rows, dim, dtype, bench, gelu, far;
	int32_t q;		/* enum quant_out */
};

static const int32_t grid_rows[] = { 1, 19, 99 };
static const int32_t grid_dims[] = { 128, 1024, 2048, 4096, 11008, 14336, 16384 };
static const int32_t dtypes[] = { CAIRN_BF16, CAIRN_F16, CAIRN_F32 };
#define NUM_GRID (ARRAY_SIZE(grid_rows) * ARRAY_SIZE(grid_dims) * ARRAY_SIZE(dtypes))

static const struct shape singles[] = {
	{ .rows = 3, .dim = 8, .dtype = CAIRN_BF16 },
	{ .rows = 3, .dim = 8, .dtype = CAIRN_F16 },
	{ .rows = 3, .dim = 8, .dtype = CAIRN_F32 },
	{ .rows = 5, .dim = 1000, .dtype = CAIRN_BF16 },
	{ .rows = 5, .dim = 1000, .dtype = CAIRN_F32 },
	{ .rows = 37, .dim = 2056, .dtype = CAIRN_F16 },
	{ .rows = 3, .dim = 3080, .dtype = CAIRN_BF16 },
	{ .rows = 2, .dim = 3592, .dtype = CAIRN_F32 },
	{ .rows = 2, .dim = 7176, .dtype = CAIRN_F16, .gelu = 1 },
	{ .rows = 15, .dim = 4104, .dtype = CAIRN_F32, .gelu = 1 },
	{ .rows = 65541, .dim = 8, .dtype = CAIRN_F16 },
	{ .rows = 2, .dim = 28672, .dtype = CAIRN_BF16 },
	{ .rows = 0, .dim = 512, .dtype = CAIRN_BF16 },
	{ .rows = 512, .dim = 128, .dtype = CAIRN_F16 },
	{ .rows = 512, .dim = 2048, .dtype = CAIRN_F32 },
	{ .rows = 512, .dim = 11008, .dtype = CAIRN_BF16 },
	{ .rows = 128, .dim = 14336, .dtype = CAIRN_BF16, .bench = 1 },
	{ .rows = 1024, .dim = 14336, .dtype = CAIRN_BF16, .bench = 1 },
	{ .rows = 3, .dim = 8, .dtype = CAIRN_BF16, .gelu = 1 },
	{ .rows = 5, .dim = 1000, .dtype = CAIRN_F16, .gelu = 1 },
	{ .rows = 19, .dim = 1024, .dtype = CAIRN_F32, .gelu = 1 },
	{ .rows = 2, .dim = 9216, .dtype = CAIRN_BF16, .gelu = 1 },
	{ .rows = 99, .dim = 9216, .dtype = CAIRN_BF16, .gelu = 1 },
	{ .rows = 0, .dim = 512, .dtype = CAIRN_BF16, .gelu = 1 },
	{ .rows = 128, .dim = 9216, .dtype = CAIRN_BF16, .bench = 1, .gelu = 1 },
	{ .rows = (1 << 17) + 4, .dim = 16384, .dtype = CAIRN_BF16, .far = 1 },
};

#define FIRST_PAIR	((int)(NUM_GRID + ARRAY_SIZE(singles)))
#define NUM_PAIRS	20

static const int32_t pair_rows[] = { 1, 2, 7, 33 }, pair_dims[] = { 8, 24, 72, 136, 520 };
static struct cairn_pairs pairs = { .num_factors = 4, .levels = { 3, 2, 4, 5 } };

/* The last cases: rows that end 8 elements past a power of two, or 8 before it. */
static const struct shape last[] = {
	{ .rows = 3, .dim = 264, .dtype = CAIRN_F32, .gelu = 1 },
	{ .rows = 3, .dim = 504, .dtype = CAIRN_F16 },
	{ .rows = 3, .dim = 1032, .dtype = CAIRN_BF16 },
	{ .rows = 3, .dim = 2040, .dtype = CAIRN_F32 },
	{ .rows = 3, .dim = 4088, .dtype = CAIRN_F16, .gelu = 1 },
	{ .rows = 2, .dim = 8200, .dtype = CAIRN_BF16 },
};

/* Outputs in e4m3: of more rows than CTAs, of the longest rows, and those of Llama-3-8B. */
static const struct shape quantised[] = {
	{ .rows = 3, .dim = 16, .dtype = CAIRN_BF16, .q = OUT_AND_ROWS },
	{ .rows = 5, .dim = 48, .dtype = CAIRN_F16, .q = ONLY_ROWS },
	{ .rows = 6, .dim = 144, .dtype = CAIRN_BF16, .gelu = 1, .q = OUT_AND_PIECES },
	{ .rows = 5, .dim = 272, .dtype = CAIRN_F16, .q = ONLY_PIECES },
	{ .rows = 9, .dim = 1008, .dtype = CAIRN_BF16, .q = OUT_AND_PIECES },
	{ .rows = 7, .dim = 1040, .dtype = CAIRN_F16, .gelu = 1, .q = OUT_AND_ROWS },
	{ .rows = 37, .dim = 512, .dtype = CAIRN_BF16, .q = OUT_AND_ROWS },
	{ .rows = 2, .dim = 8208, .dtype = CAIRN_BF16, .gelu = 1, .q = ONLY_ROWS },
	{ .rows = 1, .dim = 14336, .dtype = CAIRN_BF16, .q = OUT_AND_ROWS },
	{ .rows = 2, .dim = 28672, .dtype = CAIRN_F16, .q = ONLY_ROWS },
	{ .rows = 3, .dim = 32768, .dtype = CAIRN_BF16, .q = OUT_AND_ROWS },
	{ .rows = 0, .dim = 512, .dtype = CAIRN_BF16, .q = ONLY_PIECES },
	{ .rows = 9001, .dim = 16, .dtype = CAIRN_BF16, .q = ONLY_ROWS },
	{ .rows = 989, .dim = 2048, .dtype = CAIRN_F16, .q = OUT_AND_ROWS },
	{ .rows = 989, .dim = 2064, .dtype = CAIRN_BF16, .gelu = 1, .q = OUT_AND_PIECES },
	{ .rows = 300, .dim = 28672, .dtype = CAIRN_BF16, .q = ONLY_ROWS },
	{ .rows = 300, .dim = 32768, .dtype = CAIRN_BF16, .gelu = 1, .q = OUT_AND_ROWS },
	{ .rows = 128, .dim = 14336, .dtype = CAIRN_BF16, .q = ONLY_ROWS, .bench = 1 },
	{ .rows = 1024, .dim = 14336, .dtype = CAIRN_BF16, .q = ONLY_ROWS, .bench = 1 },
	{ .rows = 1024, .dim = 14336, .dtype = CAIRN_BF16, .q = ONLY_PIECES, .bench = 1 },
};
#define FIRST_LAST	(FIRST_PAIR + NUM_PAIRS)
#define FIRST_ENDS	(FIRST_LAST + (int)ARRAY_SIZE(last))
#define NUM_ENDS	120

static const int32_t ends_dims[] = { 8, 24, 56, 72, 120, 136, 248, 264, 504, 520, 1016, 1032 };
static struct cairn_pairs ends = { .num_factors = 3, .levels = { CAIRN_NUM_ENDS, 12, 6 } };

#define FIRST_Q		(FIRST_ENDS + NUM_ENDS)
#define NUM_CASES	(FIRST_Q + (int)ARRAY_SIZE(quantised))

static const struct cairn_draw_axis axes[] = {
	CAIRN_DRAW_SIZE(struct shape, rows, 1, 70000, 1),
	CAIRN_DRAW_SIZE(struct shape, dim, 8, 30000, 8),
	CAIRN_DRAW_ONE_OF(struct shape, dtype, CAIRN_BF16, CAIRN_F16, CAIRN_F32),
	CAIRN_DRAW_ONE_OF(struct shape, gelu, 0, 1),
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
	.allowed = allowed, .many = 8000,
};

static struct shape shape_of(int i)
{
	struct shape s = { 0 };

	if (i >= NUM_CASES) {
		cairn_draw_shape(&draws, i - NUM_CASES, &s);
		return s;
	}
	if (i >= FIRST_Q)
		return quantised[i - FIRST_Q];
	if (i >= FIRST_ENDS) {
		const int8_t *level = cairn_pairs_row(&ends, i - FIRST_ENDS);

		return (struct shape){ .rows = cairn_ends[level[0]], .dim = ends_dims[level[1]],
				       .dtype = dtypes[level[2] / 2], .gelu = level[2] % 2 };
	}
	if (i >= FIRST_LAST)
		return last[i - FIRST_LAST];
	if (i >= FIRST_PAIR) {
		const int8_t *level = cairn_pairs_row(&pairs, i - FIRST_PAIR);

		return (struct shape){ .dtype = dtypes[level[0]], .gelu = level[1],
				       .rows = pair_rows[level[2]], .dim = pair_dims[level[3]] };
	}

	if (i >= (int)NUM_GRID)
		return singles[i - NUM_GRID];
	s.dtype = dtypes[i % ARRAY_SIZE(dtypes)];
	i /= ARRAY_SIZE(dtypes);
	s.dim = grid_dims[i % ARRAY_SIZE(grid_dims)];
	s.rows = grid_rows[i / ARRAY_SIZE(grid_dims)];
	s.bench = s.rows == 1 && s.dim == 14336 && s.dtype == CAIRN_BF16;
	return s;
}

static void describe(int i, struct cairn_case *c)
{
	struct shape s = shape_of(i);
	double elements = (double)s.rows * s.dim;

	snprintf(c->name, sizeof(c->name), "%srows%d_dim%d_%s%s%s",
		 i >= FIRST_ENDS && i < FIRST_Q ? "ends_" : i >= FIRST_PAIR && i < FIRST_LAST ? "pair_" : "",
		 s.rows, s.dim, cairn_dtype_name(s.dtype), s.gelu ? "_gelu" : "", quant_out_tag(s.q));
	c->kinds = CAIRN_KIND_BIT(CAIRN_KIND_NORMAL);
	if (elements < 25000 && !s.bench && (i < FIRST_ENDS || i >= FIRST_Q))
		c->kinds = CAIRN_ALL_KINDS;
	c->bench = s.bench;
	c->device_only = elements > 300000 && s.rows < 65536;
	c->far = s.far;
	c->bytes = (2 + quant_out_has_out(s.q)) * elements * (double)cairn_dtype_bytes(s.dtype) +
		   quant_out_bytes(s.q, s.rows, s.dim);
	c->flops = elements * 5;
}

/* Returns whether the results of both activations are finite numbers of dtype. */
static int result_fits(double g, double up, int dtype)
{
	const double most = dtype == CAIRN_F16 ? 65000 : 0x1.fp127;
	const double z = 0.7978845608 * g * (1 + 0.044715 * g * g);

	return isinf(g) || (fabs(up * g / (1 + exp(-g))) < most && fabs(up * g / (1 + exp(-2 * z))) < most);
}

/*
 * Gates at which exp overflows, underflows or is subnormal, and the infinities; combined with ups from
 * subnormal to very large. In every third column the product may exceed dtype, so that it is infinite.
 */
static void fill_extreme(struct cairn_op *op, void *x, const struct shape *s)
{
	static const double gates[] = { 0,    -0.0,   -1,        1,   -5,   5,      -16,  16,   -20,  20,
					-6,   -7,     -8.5,      -9.5, -10.5, -11.5, 7,    8.5,  1e-3, -1e-3,
					-50,  -87,    -88.5,     -90, -100, -103.5, -104, -126, -150, -200,
					-300, -60000, -INFINITY, 88,  89,   104,    300,  60000,
					0x1p-127, -0x1p-140, 0x1p-24, 1.375, 1.375, 1.375 };
	static const double ups[] = { 0,        1,        -1,       0x1p-10, -0x1p-24, 0x1p-60,
				      0x1p-126, 0x1p-140, -0x1p100, 0x1p80,  0.5,      0x1.8p127,
				      -0x1.8p127 };

	for (int64_t i = 0; i < s->rows; i++)
		for (int32_t j = 0; j < s->dim; j++) {
			double g = gates[cairn_op_range(op, 0, ARRAY_SIZE(gates) - 1)];
			double up = ups[cairn_op_range(op, 0, ARRAY_SIZE(ups) - 1)];

			if (s->dtype == CAIRN_F16 && fabs(up) > 1)
				up = copysign(fabs(up) > 0x1p120 ? 0x1.8p15 : 1, up);
			/* up times g may overflow where the result fits: 1.375 or -16 times the largest */
			if (j % 3 && !result_fits(g, up, s->dtype))
				g = -16;
			cairn_store(x, s->dtype, 2 * i * s->dim + j, g);
			cairn_store(x, s->dtype, (2 * i + 1) * s->dim + j, up);
		}
}

/* Fills gates from -4 to 4, or of at least 100. The largest product fits dtype. */
static void fill_exact(struct cairn_op *op, void *x, const struct shape *s)
{
	int64_t gate = s->dtype == CAIRN_BF16 ? 256 : s->dtype == CAIRN_F16 ? 250 : 4000;

	for (int64_t i = 0; i < s->rows; i++)
		for (int32_t j = 0; j < s->dim; j++) {
			double g = (double)cairn_op_range(op, j % 4 ? 100 : -4, j % 4 ? gate : 4);

			cairn_store(x, s->dtype, 2 * i * s->dim + j, j % 4 == 1 ? -g : g);
			cairn_store(x, s->dtype, (2 * i + 1) * s->dim + j,
				    (double)cairn_op_range(op, -gate, gate));
		}
}

static void setup(struct cairn_op *op)
{
	struct shape s = shape_of(op->case_index);
	struct cairn_silu_mul_args *a = op->args;
	int64_t count = (int64_t)s.rows * s.dim;
	void *x;

	a->rows = s.rows;
	a->dim = s.dim;
	a->dtype = s.dtype;
	a->activation = s.gelu;
	a->q_kind = quant_out_kind(s.q);
	if (s.far) {	/* rows past 2^31 elements and 2^32 bytes in both arrays */
		cairn_out_rows(op, FIELD(out), s.dtype, s.rows, s.dim);
		cairn_in_rows(op, FIELD(x), s.dtype, s.rows, 2 * s.dim, 3);
		return;
	}
	if (quant_out_has_out(s.q)) {
		cairn_out(op, FIELD(out), s.dtype, count);
		cairn_shape(op, FIELD(out), { "row", s.rows }, { "dim", s.dim });
	}
	quant_out_declare(op, s.q, FIELD(q), FIELD(q_scale), s.rows, s.dim);
	x = cairn_in(op, FIELD(x), s.dtype, 2 * count);
	if (op->kind == CAIRN_KIND_EXTREME)
		fill_extreme(op, x, &s);
	else if (op->kind == CAIRN_KIND_EXACT)
		fill_exact(op, x, &s);
	else
		cairn_fill(op, x, s.dtype, 2 * count, 3);
	/* with q, the largest element of every second row is the last one */
	for (int64_t i = 1; s.q && op->kind == CAIRN_KIND_NORMAL && i < s.rows; i += 2) {
		cairn_store(x, s.dtype, (2 * i + 1) * s.dim - 1, 12);
		cairn_store(x, s.dtype, (2 * i + 2) * s.dim - 1, i % 4 == 1 ? 12 : -12);
	}
	/*
	 * One bad element of x may affect only one element of out. A NaN in up is paired with gates that are
	 * 0 or have no weight; a NaN or an infinity in the gate is paired with an up of 0.
	 */
	for (int64_t k = 0; op->kind == CAIRN_KIND_POISON && k < 2 * count; k += cairn_op_range(op, 1, 40)) {
		cairn_store(x, s.dtype, k, k % 3 ? (double)NAN : (double)INFINITY);
		if (op->case_index >= FIRST_PAIR && k % 3 && k / s.dim % 2)
			cairn_store(x, s.dtype, k - s.dim, k % 5 < 2 ? 0 : k % 2 ? -200 : -(double)INFINITY);
		else if (op->case_index >= FIRST_PAIR && k / s.dim % 2 == 0)
			cairn_store(x, s.dtype, k + s.dim, k % 2 ? 0 : 1);
	}
}

static int exact(const void *args, struct cairn_exact *e)
{
	return cairn_silu_mul_exact(args, e);
}

static int judge(const struct cairn_op *op, const void *got, char *why, size_t why_len)
{
	const struct cairn_silu_mul_args *a = got;
	const struct cairn_quant_fp8w_args quant = {
		.size = sizeof(quant), .b = a->q, .scale = a->q_scale, .w = a->out, .n = a->rows, .k = a->dim,
		.dtype = a->dtype, .scale_kind = a->q_kind,
	};

	return a->q && a->out ? quant_out_judge(op, &quant, FIELD(q), FIELD(q_scale), why, why_len) : 0;
}

/* Asks for e4m3 in the place of out; only for calls that must be refused. */
static void ask_for_q(struct cairn_silu_mul_args *a)
{
	a->q = a->out;
	a->q_scale = a->out;
}

static const char *reject(void *args, int i, int *want)
{
	struct cairn_silu_mul_args *a = args;

	*want = -EINVAL;
	switch (i) {
	case 0: a->size = 0; return "old_struct";
	case 1: a->out = NULL; return "null_out";
	case 2: a->x = NULL; return "null_x";
	case 3: a->rows = -1; return "negative_rows";
	case 4: a->dim = -8; return "negative_dim";
	case 5: a->out = (char *)a->out + 8; return "misaligned_out";
	case 6: ask_for_q(a); a->q_scale = NULL; return "null_q_scale";
	case 7: ask_for_q(a); a->q += 8; return "misaligned_q";
	case 8: ask_for_q(a); a->q_kind = CAIRN_FP8_SCALE_BLOCKS; return "q_kind_1";
	}
	*want = -EOPNOTSUPP;
	switch (i) {
	case 9: a->dim = 12; return "dim_12";
	case 10: a->dtype = CAIRN_U8; return "dtype_u8";
	case 11: a->activation = 2; return "activation_2";
	case 12: ask_for_q(a); a->dtype = CAIRN_F32; return "q_of_f32";
	case 13: ask_for_q(a); a->dim = 24; return "q_dim_24";
	case 14: ask_for_q(a); a->dim = CAIRN_SILU_MUL_MOST_Q + 16; return "q_dim_32784";
	}
	return NULL;
}

static int part(void *args, int i)
{
	struct cairn_silu_mul_args *a = args;
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
	a->x = (const char *)a->x + 2 * first * row;
	return 1;
}

static void pairs_are_covered(struct cairn_test *t)
{
	cairn_pairs_check(t, &pairs, NUM_PAIRS);
	cairn_pairs_check(t, &ends, NUM_ENDS);
}

static const struct cairn_unit units[] = { { "pairs_are_covered", pairs_are_covered } };

const struct cairn_family cairn_silu_mul_family = {
	.stage = "primitives", .name = "silu_mul",
	.units = units, .num_units = ARRAY_SIZE(units),
	.op = offsetof(struct cairn_impl, silu_mul),
	.args_size = sizeof(struct cairn_silu_mul_args),
	.num_cases = NUM_CASES, .draw = &draws,
	.first_bytes = CAIRN_SILU_MUL_FIRST_BYTES,
	.may_omit = { { FIELD(out), 0 }, { FIELD(q), FIELD(q_scale) } },
	.part = part,
	.describe = describe, .setup = setup, .exact = exact, .judge = judge, .reject = reject,
	.cost_s = 5,
};
