// SPDX-License-Identifier: Apache-2.0
/*
 * gemm_fixed_test - cases of gemm_fixed.h
 *
 * Shapes lie at the limits of the tiles (64 and 128 rows, 32 to 256 columns, 64 of k), and sms makes the
 * kernel choose among them: with one SM the tiles are large, with all of them small. Every case that costs
 * little is called with other sms, with a part of its rows and beside other rows, and must keep its bits. The
 * pair cases combine types, bias, epilogue, sizes, strides and sms; the cases ends_* combine sizes at the
 * ends of tiles (ends.h), the cases long_* do so for sums of many stages. The
 * bench rows are the projections of
 * Llama-3-8B (fused QKV 6144; gate and up 28672, also with SILU_MUL; down) for prompts, on 132, 96 and 64
 * SMs, and for decoding.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "conformance/harness.h"
#include "conformance/suite/draw.h"
#include "conformance/suite/ends.h"
#include "conformance/suite/pairs.h"
#include "primitives/gemm/fixed/gemm_fixed_plan.h"

#define FIELD(f)	offsetof(struct cairn_gemm_fixed_args, f)

enum strides { PACKED, VECTORS, ODD };	/* gaps of whole 16-byte vectors, or not (only in out) */

struct row {
	int m, n, k, sms, silu, bias, dtype, out_dtype, strides;
	int bench, far, device_only, pair, ends;
};

#define BF16(m, n, k, ...)	{ m, n, k, .dtype = CAIRN_BF16, .out_dtype = CAIRN_BF16, ##__VA_ARGS__ }
#define F16(m, n, k, ...)	{ m, n, k, .dtype = CAIRN_F16, .out_dtype = CAIRN_F16, ##__VA_ARGS__ }

static const struct row named[] = {
	BF16(1, 1, 8), BF16(1, 7, 64), BF16(1, 8, 4096), BF16(2, 33, 72), BF16(3, 1000, 200),
	BF16(63, 31, 56), BF16(64, 32, 64), BF16(65, 65, 72), BF16(127, 127, 120), BF16(128, 128, 128),
	BF16(129, 193, 136), BF16(191, 255, 64), BF16(192, 256, 72), BF16(193, 257, 200),
	BF16(256, 520, 192), BF16(257, 513, 320),
	/* one SM, or a few: large tiles, several for each CTA, a ring that wraps */
	BF16(129, 520, 520, .sms = 1), BF16(300, 600, 264, .sms = 1), BF16(300, 600, 264, .sms = 3),
	BF16(385, 772, 136, .sms = 4), BF16(64, 2048, 328, .sms = 2), BF16(500, 384, 72, .sms = 6),
	BF16(2100, 96, 40, .sms = 2), BF16(2500, 1, 24, .sms = 3),
	F16(1, 32, 264, .silu = 1), F16(40, 96, 72, .bias = 1), F16(130, 384, 136, .silu = 1, .sms = 1),
	F16(200, 1008, 72, .silu = 1, .bias = 1), BF16(129, 16, 64, .silu = 1),
	BF16(260, 784, 200, .silu = 1, .sms = 2), BF16(70, 512, 4096, .silu = 1),
	BF16(5, 24, 16392), F16(66, 40, 28680),
	BF16(300, 4100, 1032, .device_only = 1), BF16(1000, 1536, 520, .device_only = 1, .silu = 1),
	BF16(2048, 6144, 264, .device_only = 1), F16(4500, 1000, 136, .device_only = 1, .sms = 96),
	/* b, a, and out of more than 2^32 elements */
	BF16(1, (1 << 18) + 4, 16384, .far = 1), BF16((1 << 18) + 4, 1, 16384, .far = 1),
	BF16((1 << 18) + 4, 16384, 8, .far = 1, .device_only = 1),
};

/* ---- bench rows ---- */

static const struct {
	int n, k, silu;
} llama[] = { { 6144, 4096, 0 }, { 4096, 4096, 0 }, { 28672, 4096, 0 }, { 28672, 4096, 1 },
	      { 4096, 14336, 0 } };
static const struct {
	int m, sms;
} loads[] = { { 16, 0 }, { 64, 0 }, { 512, 0 }, { 512, 96 }, { 512, 64 }, { 1024, 0 }, { 1024, 96 },
	      { 1024, 64 }, { 2048, 0 }, { 2048, 96 }, { 2048, 64 } };

#define NUM_BENCH	((int)(ARRAY_SIZE(llama) * ARRAY_SIZE(loads)))

static void bench_row(int i, struct row *r)
{
	int shape = i % (int)ARRAY_SIZE(llama), load = i / (int)ARRAY_SIZE(llama);

	*r = (struct row){ loads[load].m, llama[shape].n, llama[shape].k, .sms = loads[load].sms,
			   .silu = llama[shape].silu, .dtype = CAIRN_BF16, .out_dtype = CAIRN_BF16,
			   .bench = 1, .device_only = 1 };
}

/* ---- pairs ---- */

static const int pair_types[][2] = { { CAIRN_F16, CAIRN_F16 }, { CAIRN_BF16, CAIRN_BF16 },
				     { CAIRN_F16, CAIRN_F32 }, { CAIRN_BF16, CAIRN_F32 } };
static const int pair_m[] = { 1, 7, 33, 64, 65, 130, 200 }, pair_n[] = { 2, 24, 34, 72, 130, 264, 520 };
static const int pair_k[] = { 8, 24, 64, 136, 264, 520 }, pair_sms[] = { 0, 1, 2, 5 };
static struct cairn_pairs pairs = { .num_factors = 8, .levels = { 4, 2, 2, 7, 7, 6, 3, 4 } };

static void pair_row(int i, struct row *r)
{
	const int8_t *level = cairn_pairs_row(&pairs, i);

	*r = (struct row){ .dtype = pair_types[level[0]][0], .out_dtype = pair_types[level[0]][1],
			   .bias = level[1], .silu = level[2], .m = pair_m[level[3]], .n = pair_n[level[4]],
			   .k = pair_k[level[5]], .strides = level[6], .sms = pair_sms[level[7]], .pair = 1 };
	if (r->silu)
		r->n = (r->n + 15) / 16 * 16;
}

static const int ends_k[] = { 8, 56, 64, 72, 120, 136 };
static struct cairn_pairs ends = {
	.num_factors = 5, .levels = { CAIRN_NUM_ENDS, CAIRN_NUM_ENDS, 6, 4, 12 },
};

static void ends_row(int i, struct row *r)
{
	const int8_t *level = cairn_pairs_row(&ends, i);

	*r = (struct row){ .m = cairn_ends[level[0]], .n = cairn_ends[level[1]], .k = ends_k[level[2]],
			   .dtype = pair_types[level[3]][0], .out_dtype = pair_types[level[3]][1],
			   .bias = level[4] % 2, .silu = level[4] / 2 % 2, .strides = level[4] / 4,
			   .ends = 1 };
	if (r->silu)
		r->n = (r->n + 15) / 16 * 16;
}

static const int long_k[] = { 520, 1016, 2056, 4104 }, long_n[] = { 1, 17, 33 };
static struct cairn_pairs longs = { .num_factors = 5, .levels = { CAIRN_FEW_ENDS, 8, 4, 3, 3 } };

static void long_row(int i, struct row *r)
{
	const int8_t *level = cairn_pairs_row(&longs, i);

	*r = (struct row){ .m = cairn_ends[level[0]], .n = long_n[level[3]], .k = long_k[level[2]],
			   .dtype = pair_types[level[1] / 2][0], .out_dtype = pair_types[level[1] / 2][1],
			   .bias = level[1] % 2, .strides = level[4], .ends = 2 };
}

/* ---- many columns, and whole stages of k; only results in fp32 show how sums are grouped ---- */

static const struct row wide[] = {
	{ 40, 24, 512, .dtype = CAIRN_BF16, .out_dtype = CAIRN_F32 },
	{ 3, 4136, 72, .dtype = CAIRN_BF16, .out_dtype = CAIRN_F32 },
	{ 1, 32800, 8, .dtype = CAIRN_F16, .out_dtype = CAIRN_F32 },
	/* one column past whole tiles */
	{ 6, 33, 136, .dtype = CAIRN_BF16, .out_dtype = CAIRN_F32 },
	{ 6, 129, 136, .dtype = CAIRN_F16, .out_dtype = CAIRN_F32 },
};

/* The family needs constants; counts() compares them with the tables above. */
#define NUM_NAMED	40
#define NUM_PAIRS	50
#define FIRST_WIDE	(NUM_NAMED + NUM_PAIRS + 55)
#define FIRST_ENDS	(FIRST_WIDE + 5)
#define NUM_ENDS	128
#define FIRST_LONG	(FIRST_ENDS + NUM_ENDS)
#define NUM_LONG	48
#define NUM_CASES	(FIRST_LONG + NUM_LONG)

static const struct cairn_draw_axis axes[] = {
	CAIRN_DRAW_SIZE(struct row, m, 1, 5000, 1),
	CAIRN_DRAW_SIZE(struct row, n, 1, 70000, 1),
	CAIRN_DRAW_SIZE(struct row, k, 8, 30000, 8),
	CAIRN_DRAW_ONE_OF(struct row, sms, 0, 0, 0, 0, 1, 2, 5, 24, 64),
	CAIRN_DRAW_ONE_OF(struct row, silu, 0, 1),
	CAIRN_DRAW_ONE_OF(struct row, bias, 0, 1),
	CAIRN_DRAW_ONE_OF(struct row, dtype, CAIRN_F16, CAIRN_BF16),
	CAIRN_DRAW_ONE_OF(struct row, out_dtype, CAIRN_F32, CAIRN_BF16),
	CAIRN_DRAW_ONE_OF(struct row, strides, PACKED, VECTORS, ODD),
};

static int allowed(void *shape, int room)
{
	struct row *r = shape;

	if (r->out_dtype != CAIRN_F32)
		r->out_dtype = r->dtype;
	if (r->silu)
		r->n = (r->n + 15) / 16 * 16;
	return (int64_t)r->m * r->n * r->k <= room * (1 << 23) && (int64_t)r->m * r->n <= room * 1000000;
}

static const struct cairn_draw draws = {
	.shape_bytes = sizeof(struct row), .axes = axes, .num_axes = ARRAY_SIZE(axes),
	.allowed = allowed, .many = 1400,
};

static struct row row_of(int i)
{
	struct row r;

	if (i >= NUM_CASES)
		cairn_draw_shape(&draws, i - NUM_CASES, &r);
	else if (i < NUM_NAMED)
		r = named[i];
	else if (i < NUM_NAMED + NUM_PAIRS)
		pair_row(i - NUM_NAMED, &r);
	else if (i < FIRST_WIDE)
		bench_row(i - NUM_NAMED - NUM_PAIRS, &r);
	else if (i < FIRST_ENDS)
		r = wide[i - FIRST_WIDE];
	else if (i < FIRST_LONG)
		ends_row(i - FIRST_ENDS, &r);
	else
		long_row(i - FIRST_LONG, &r);
	return r;
}

static int64_t width_of(const struct row *r)
{
	return r->silu ? r->n / 2 : r->n;
}

static void describe(int i, struct cairn_case *c)
{
	const struct row r = row_of(i);
	const double m = r.m, n = r.n, k = r.k;
	char sms[16] = "";

	if (r.sms)
		snprintf(sms, sizeof(sms), "_sms%d", r.sms);
	snprintf(c->name, sizeof(c->name), "%sm%d_n%d_k%d_%s%s%s%s%s%s",
		 r.pair ? "pair_" : r.ends == 2 ? "long_" : r.ends ? "ends_" : "", r.m, r.n, r.k,
		 cairn_dtype_name(r.dtype), r.out_dtype != r.dtype ? "_to_f32" : "", r.bias ? "_bias" : "",
		 r.silu ? "_silu" : "",
		 r.strides == ODD ? "_odd_stride" : r.strides == VECTORS ? "_stride" : "", sms);
	c->kinds = CAIRN_KIND_BIT(CAIRN_KIND_NORMAL);
	if (!r.bench && !r.far)
		c->kinds |= CAIRN_KIND_BIT(CAIRN_KIND_EXTREME);
	/* elements that are not judged may be NaN too */
	if (!r.bench && !r.far && m * n * k <= 0x1p31)
		c->kinds |= CAIRN_KIND_BIT(CAIRN_KIND_POISON);
	/* with SILU_MUL and a long k products of sums exceed the 24 bits of fp32 */
	if (!r.bench && !r.far && (!r.silu || r.k <= 520))
		c->kinds |= CAIRN_KIND_BIT(CAIRN_KIND_EXACT);
	if (r.ends)
		c->kinds = CAIRN_KIND_BIT(CAIRN_KIND_EXACT);
	c->bench = r.bench;
	c->device_only = r.device_only;
	c->far = r.far;
	c->bytes = (m * k + n * k + r.bias * n) * 2 + m * (double)width_of(&r) *
		   (double)cairn_dtype_bytes(r.out_dtype);
	c->flops = 2 * m * n * k;
}

/*
 * EXACT: integers. PLAIN: sums of up to 24 bits, see gemm_test.c. SILU_MUL: a is 1 or 2 and gate 5 to 8, so
 * that the sums of gate are at least 40, where silu(g) is g in double too; up is -4 to 4.
 */
static void fill_operand(struct cairn_op *op, const struct row *r, void *p, int64_t rows, int64_t step,
			 int is_b)
{
	int64_t most = r->out_dtype == CAIRN_F16 ? (int64_t)sqrt(25700 / sqrt((double)r->k)) :
		       cairn_exact_most(r->k + 1);

	cairn_fill_exact(op, p, r->dtype, rows * step, is_b ? 0.05 : 1, most);
	for (int64_t i = 0; op->kind == CAIRN_KIND_EXACT && r->silu && i < rows * step; i++)
		cairn_store(p, r->dtype, i, !is_b ? (double)cairn_op_range(op, 1, 2) :
			    i / step < rows / 2 ? (double)cairn_op_range(op, 5, 8) :
			    (double)cairn_op_range(op, -4, 4));
	for (int64_t i = 0; op->kind == CAIRN_KIND_POISON && step > r->k && i < rows; i++)
		cairn_fill_nan(p, r->dtype, i * step + r->k, step - r->k);
}

static void fill_bias(struct cairn_op *op, const struct row *r)
{
	void *bias = cairn_in(op, FIELD(bias), r->dtype, r->n);

	cairn_fill_exact(op, bias, r->dtype, r->n, 1, (1 << 24) / (r->k + 1));
	for (int64_t i = 0; op->kind == CAIRN_KIND_EXACT && r->silu && i < r->n; i++)
		cairn_store(bias, r->dtype, i, (double)cairn_op_range(op, i < r->n / 2 ? 0 : -4, 4));
}

/* About one row in four holds a NaN or an infinity. */
static void poison(struct cairn_op *op, const struct row *r, void *p, int64_t rows, int64_t step)
{
	for (int64_t i = op->case_index % 3; i < rows; i += cairn_op_range(op, 2, 6))
		cairn_store(p, r->dtype, i * step + cairn_op_range(op, 0, r->k - 1),
			    i % 2 ? (i % 4 == 1 ? -INFINITY : INFINITY) : NAN);
}

/* Rows of a, or of b and so columns of one row of out, past 2^32 elements */
static void setup_far(struct cairn_op *op, const struct row *r)
{
	int32_t rows = r->m > 1 ? r->m : r->n;
	size_t far = r->m > 1 ? FIELD(a) : FIELD(b), near = r->m > 1 ? FIELD(b) : FIELD(a);
	int64_t others = r->m > 1 ? r->n : 1;
	void *p;

	cairn_out_rows(op, FIELD(out), r->dtype, rows, others);
	cairn_in_rows(op, far, r->dtype, rows, r->k, 1);
	cairn_name(op, far, r->m > 1 ? "a" : "b");
	p = cairn_in(op, near, r->dtype, others * r->k);
	cairn_name(op, near, r->m > 1 ? "b" : "a");
	cairn_fill(op, p, r->dtype, others * r->k, 1);
}

static void setup(struct cairn_op *op)
{
	struct cairn_gemm_fixed_args *g = op->args;
	const struct row r = row_of(op->case_index);
	int64_t out_step = width_of(&r), a_step = r.k;
	void *a, *b;

	g->m = r.m;
	g->n = r.n;
	g->k = r.k;
	g->dtype = r.dtype;
	g->out_dtype = r.out_dtype;
	g->epilogue = r.silu ? CAIRN_GEMM_FIXED_SILU_MUL : CAIRN_GEMM_FIXED_PLAIN;
	g->sms = r.sms;
	if (r.far) {
		setup_far(op, &r);
		return;
	}
	if (r.strides) {
		g->a_stride = a_step += r.strides == ODD ? 8 : 24;
		g->out_stride = out_step = r.strides == ODD ? out_step + 3 : (out_step + 15) / 8 * 8;
	}
	cairn_out(op, FIELD(out), r.out_dtype, r.m * out_step);
	cairn_shape(op, FIELD(out), { "row", r.m }, { "column", width_of(&r) });
	if (r.strides)
		cairn_stride(op, FIELD(out), "row", out_step);
	a = cairn_in(op, FIELD(a), r.dtype, r.m * a_step);
	fill_operand(op, &r, a, r.m, a_step, 0);
	b = cairn_in(op, FIELD(b), r.dtype, (int64_t)r.n * r.k);
	fill_operand(op, &r, b, r.n, r.k, 1);
	if (r.bias)
		fill_bias(op, &r);
	if (op->kind != CAIRN_KIND_POISON)
		return;
	poison(op, &r, a, r.m, a_step);
	poison(op, &r, b, r.n, r.k);
}

static int exact(const void *args, struct cairn_exact *e)
{
	return cairn_gemm_fixed_exact(args, e);
}

static const char *reject(void *args, int i, int *want)
{
	struct cairn_gemm_fixed_args *g = args;

	*want = i < 9 ? -EINVAL : -EOPNOTSUPP;
	switch (i) {
	case 0: g->out = NULL; return "out_null";
	case 1: g->a = NULL; return "a_null";
	case 2: g->b = NULL; return "b_null";
	case 3: g->m = 0; return "m_0";
	case 4: g->n = -1; return "n_negative";
	case 5: g->k = 0; return "k_0";
	case 6: g->sms = -1; return "sms_negative";
	case 7: g->n = 9; g->out_stride = 8; return "out_stride_short";
	case 8: g->k = 16; g->a_stride = 8; return "a_stride_short";
	case 9: g->k = 12; return "k_12";
	case 10: g->dtype = g->out_dtype = CAIRN_F32; return "dtype_f32";
	case 11: g->out_dtype = CAIRN_F16; return "bf16_to_f16";
	case 12: g->epilogue = 2; return "epilogue_2";
	case 13: g->n = 24; g->epilogue = CAIRN_GEMM_FIXED_SILU_MUL; return "silu_n_24";
	case 14: g->a_stride = g->k + 4; return "a_stride_odd";
	}
	return NULL;
}

/* Cuts the rows and, with PLAIN, also the columns in two: bits depend on neither number. */
static int cut(struct cairn_gemm_fixed_args *g, int i)
{
	int64_t bytes = (int64_t)cairn_dtype_bytes(g->out_dtype);
	int64_t out = cairn_gemm_fixed_out_stride(g) * bytes;
	int64_t a = cairn_gemm_fixed_a_stride(g) * 2;
	int32_t first = 0, m = g->m, left = g->epilogue == CAIRN_GEMM_FIXED_PLAIN ? g->n / 16 * 8 : 0;
	int cuts = left ? 2 : 1;

	if (!cairn_part(m, out, 1, i / cuts, &first, &g->m)) {
		/* too few rows to cut */
		if (cuts == 1 || i >= cuts || cairn_part(m, out, 1, 0, &first, &g->m))
			return 0;
		first = 0;
		g->m = m;
	}
	g->out_stride = cairn_gemm_fixed_out_stride(g);
	g->out = (char *)g->out + first * out;
	g->a = (const char *)g->a + first * a;
	if (cuts == 1)
		return 1;
	if (i % 2) {
		g->out = (char *)g->out + left * bytes;
		g->b = (const char *)g->b + (int64_t)left * g->k * 2;
		g->bias = g->bias ? (const char *)g->bias + left * 2 : NULL;
	}
	g->n = i % 2 ? g->n - left : left;
	return 1;
}

static int part(void *args, int i)
{
	struct cairn_gemm_fixed_args *g = args;

	if (!cut(g, i))
		return 0;
	if (g->m == 1)		/* so that the bits are those without gaps */
		g->a_stride = g->out_stride = 0;
	return 1;
}

static int form(void *args, int i)
{
	static const int32_t sms[] = { 0, 1, 2, 3, 8, 40, 97 };
	struct cairn_gemm_fixed_args *g = args;

	if (i == ARRAY_SIZE(sms))
		return 0;
	g->sms = sms[i];
	return 1;
}

/* ---- the plan ---- */

/* The divisor gives every quotient at its edges: multiples of d and their neighbours, up to the greatest. */
static void divides(struct cairn_test *t)
{
	static const int32_t more[] = { 99991, 1 << 20, (1 << 20) + 1, (1 << 30) - 1, 1 << 30,
					(1 << 30) + 1, INT32_MAX };

	for (int i = 1; i < 3000 + (int)ARRAY_SIZE(more); i++) {
		const int32_t d = i < 3000 ? i : more[i - 3000], most = INT32_MAX / d;
		const struct gemm_fixed_divisor by = gemm_fixed_divisor(d);
		int bad = 0;

		for (int j = 0; j < 64; j++) {
			const int32_t q = j < 32 ? j % (most + 1) : most - j % (most + 1), n = q * d;
			const int32_t up = d - 1 < INT32_MAX - n ? d - 1 : INT32_MAX - n;

			bad += gemm_fixed_divide(n, by) != q;
			bad += gemm_fixed_divide(n + up, by) != q;
		}
		if (!EXPECT(t, bad == 0))
			cairn_note(t, "d %d", d);
	}
}

/* Marks every result that some tile writes, and expects each exactly once. */
static void expect_tiles(struct cairn_test *t, const struct gemm_fixed_plan *p, int m, int n)
{
	static unsigned char seen[700 * 900];
	int bad = 0;

	if (!EXPECT(t, (size_t)m * n <= sizeof(seen)))
		return;
	memset(seen, 0, sizeof(seen));
	for (int unit = 0; unit < p->rows * p->cols; unit++) {
		int32_t row, col;

		gemm_fixed_unit(p, unit, &row, &col);
		for (int i = row * gemm_fixed_unit_rows(p); i < (row + 1) * gemm_fixed_unit_rows(p); i++)
			for (int j = col * p->width; i < m && j < (col + 1) * p->width && j < n; j++)
				seen[i * n + j]++;
	}
	for (int e = 0; e < m * n; e++)
		bad += seen[e] != 1;
	if (!EXPECT(t, bad == 0))
		cairn_note(t, "m %d, n %d, width %d, pair %d", m, n, p->width, p->pair);
}

/* Every result lies in one tile, the ring fits its memory, and no more SMs are used than allowed. */
static void plan_is_complete(struct cairn_test *t)
{
	static const int ms[] = { 1, 64, 65, 128, 129, 384, 700 }, ns[] = { 1, 32, 200, 257, 900 };
	static const int sms[] = { 1, 2, 3, 7, 64, 131, 132 };

	for (size_t i = 0; i < ARRAY_SIZE(ms) * ARRAY_SIZE(ns) * ARRAY_SIZE(sms); i++) {
		const int m = ms[i % ARRAY_SIZE(ms)], multiple = 16 + (int)(i % 2) * 16;
		const struct gemm_fixed_shape s = {
			.m = m, .n = ns[i / ARRAY_SIZE(ms) % ARRAY_SIZE(ns)], .k = 520,
			.sms = sms[i / ARRAY_SIZE(ms) / ARRAY_SIZE(ns)], .multiple = multiple,
			.least = m > GEMM_FIXED_GROUP_ROWS ? 32 : multiple, .pairs = 64,
			.batch = GEMM_FIXED_MOST_WIDTH,
		};
		const struct gemm_fixed_plan p = gemm_fixed_choose(&s);

		EXPECT(t, p.clusters >= 1 && p.clusters <= p.rows * p.cols);
		EXPECT(t, p.clusters * p.pair <= s.sms);
		EXPECT(t, p.pair == 1 || p.clusters <= s.pairs);
		EXPECT(t, p.slots * gemm_fixed_stage_bytes(&p) <=
		       GEMM_FIXED_DATA_BYTES - p.groups * GEMM_FIXED_STAGED_BYTES);
		EXPECT(t, p.groups == 1 || p.slots >= 4);
		EXPECT(t, p.stages == 9 && p.width % s.multiple == 0);
		expect_tiles(t, &p, s.m, s.n);
	}
}

/* Several bands of rows, of which the last one is not whole. */
static void plan_of_bands(struct cairn_test *t)
{
	static const int ms[] = { 2049, 4500, 6200 }, sms[] = { 1, 3, 132 };

	for (size_t i = 0; i < ARRAY_SIZE(ms) * ARRAY_SIZE(sms); i++) {
		const struct gemm_fixed_shape s = {
			.m = ms[i % ARRAY_SIZE(ms)], .n = 100, .k = 64, .sms = sms[i / ARRAY_SIZE(ms)],
			.multiple = 16, .least = 32, .pairs = 64, .batch = GEMM_FIXED_MOST_WIDTH,
		};
		const struct gemm_fixed_plan p = gemm_fixed_choose(&s);

		EXPECT(t, p.band < p.rows);
		expect_tiles(t, &p, s.m, s.n);
	}
}

/* The tiles of Llama-3-8B's products fill the SMs with 1024 rows, on 132, 96 and 64 of them. */
static void plan_of_prompts(struct cairn_test *t)
{
	static const int sms[] = { 132, 96, 64 };

	for (size_t i = 0; i < ARRAY_SIZE(llama) * ARRAY_SIZE(sms); i++) {
		const int l = (int)(i / ARRAY_SIZE(sms));
		const struct gemm_fixed_shape s = {
			.m = 1024, .n = llama[l].n, .k = llama[l].k, .sms = sms[i % ARRAY_SIZE(sms)],
			.multiple = llama[l].silu ? 32 : 16, .least = 32, .pairs = 66,
			.batch = GEMM_FIXED_MOST_WIDTH,
		};
		const struct gemm_fixed_plan p = gemm_fixed_choose(&s);
		const int rounds = gemm_fixed_div_up((int64_t)p.rows * p.cols, p.clusters);
		const double busy = (double)s.m * s.n / ((double)s.sms * rounds * 128 * p.width);

		if (!EXPECT(t, p.pair == 1 + (rounds > 2) && p.groups == 2 && busy > 0.9))
			cairn_note(t, "n %d, k %d, sms %d: width %d, pair %d: %.3f", s.n, s.k, s.sms, p.width,
				   p.pair, busy);
	}
}

/* With few rows, at least 60 SMs read the weights of Llama-3-8B, and a ring has room for 64 KiB of them. */
static void plan_of_steps(struct cairn_test *t)
{
	static const int ms[] = { 1, 16, 64 };

	for (size_t i = 0; i < ARRAY_SIZE(llama) * ARRAY_SIZE(ms); i++) {
		const int l = (int)(i / ARRAY_SIZE(ms)), multiple = llama[l].silu ? 32 : 16;
		const struct gemm_fixed_shape s = {
			.m = ms[i % ARRAY_SIZE(ms)], .n = llama[l].n, .k = llama[l].k, .sms = 132,
			.multiple = multiple, .least = multiple, .pairs = 66, .batch = GEMM_FIXED_MOST_WIDTH,
		};
		const struct gemm_fixed_plan p = gemm_fixed_choose(&s);
		const int bytes = p.slots * p.width * GEMM_FIXED_STAGE_K * 2;

		if (!EXPECT(t, p.groups == 1 && p.clusters >= 60 && bytes >= 64 * 1024))
			cairn_note(t, "m %d, n %d, k %d: width %d, %d clusters, %d slots", s.m, s.n, s.k,
				   p.width, p.clusters, p.slots);
	}
}

static void too_many_tiles(struct cairn_test *t)
{
	const struct gemm_fixed_shape s = { .m = 0x7fffff00, .n = 0x7fffff00, .k = 8, .sms = 132,
					    .pairs = 66, .multiple = 16, .least = 32,
					    .batch = GEMM_FIXED_MOST_WIDTH };

	EXPECT(t, gemm_fixed_choose(&s).clusters == 0);
}

static void counts(struct cairn_test *t)
{
	EXPECT(t, ARRAY_SIZE(named) == NUM_NAMED);
	EXPECT(t, NUM_NAMED + NUM_PAIRS + NUM_BENCH == FIRST_WIDE);
	EXPECT(t, FIRST_WIDE + ARRAY_SIZE(wide) == FIRST_ENDS);
	cairn_pairs_check(t, &pairs, NUM_PAIRS);
	cairn_pairs_check(t, &ends, NUM_ENDS);
	cairn_pairs_check(t, &longs, NUM_LONG);
}

static const struct cairn_unit units[] = {
	{ "counts", counts },
	{ "divides", divides },
	{ "plan_is_complete", plan_is_complete },
	{ "plan_of_bands", plan_of_bands },
	{ "plan_of_prompts", plan_of_prompts },
	{ "plan_of_steps", plan_of_steps },
	{ "too_many_tiles", too_many_tiles },
};

const struct cairn_family cairn_gemm_fixed_family = {
	.stage = "primitives",
	.name = "gemm_fixed",
	.units = units,
	.num_units = ARRAY_SIZE(units),
	.op = offsetof(struct cairn_impl, gemm_fixed),
	.workspace_op = offsetof(struct cairn_impl, gemm_fixed_workspace),
	.args_size = sizeof(struct cairn_gemm_fixed_args),
	.sms_field = FIELD(sms),
	.workspace_field = FIELD(workspace),
	.num_cases = NUM_CASES, .draw = &draws,
	.exact_is_equal = 1,
	.company = { .rows = FIELD(m), .stride = FIELD(a_stride), .in = { FIELD(a) }, .out = { FIELD(out) } },
	.part = part,
	.form = form,
	.describe = describe,
	.setup = setup,
	.exact = exact,
	.reject = reject,
	.cost_s = 40,
};
