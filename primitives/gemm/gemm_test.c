// SPDX-License-Identifier: Apache-2.0
/*
 * gemm_test - cases of gemm.h
 *
 * Shapes lie at the limits of the kernels: one row, one row more than a tensor-core tile, columns that do not
 * fill a tile, k of one vector, k that is no multiple of any unrolling. Every shape runs in bf16; small
 * shapes run in all types, with and without bias, with and without output in fp32. The bench rows are the
 * projections of Llama models (fused QKV 6144, MLP 14336 and its two halves together 28672, head 128256;
 * Llama 2: 11008) at the batch sizes of decoding, those of a layer of 70B, and the square products whose rate
 * is the ceiling of arithmetic. EXACT has sums of up to 24 bits, see fill_operand(). The pair cases combine
 * types, bias, sizes and sms; their POISON has NaN and infinities in some rows of a and b. The cases ends_*
 * combine sizes at the ends of tiles (ends.h), the cases long_* do so for sums that a kernel may split. Two
 * of the last cases have more tiles than a device has SMs, in two directions. The very last one is so large
 * in f32 that a kernel may take its tensor cores, and with TF32 factors still be within the bound; the errors
 * of all cases of f32 must therefore have the mean square that roundings of the sums explain (bias.c).
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "conformance/harness.h"
#include "conformance/suite/draw.h"
#include "conformance/suite/ends.h"
#include "conformance/suite/pairs.h"

#define FIELD(f)	offsetof(struct cairn_gemm_args, f)
#define SMALL	300000		/* m n k up to which all variants run */

struct shape {
	int m, n, k, bench, device_only;	/* bench: a bench row; device_only: skipped on the CPU */
	int sms;
};

/* The columns are m, n, k. ON_DEVICE: too large for the CPU implementations. */
#define SHAPE(m, n, k)		{ m, n, k, .bench = 0, .device_only = 0 }
#define ON_DEVICE(m, n, k)	{ m, n, k, .bench = 0, .device_only = 1 }
#define BENCH(m, n, k)		{ m, n, k, .bench = 1, .device_only = 1 }
#define BENCH_CPU(m, n, k)	{ m, n, k, .bench = 1, .device_only = 0 }	/* runs on the CPU too */

static const struct shape shapes[] = {
	SHAPE(1, 1, 8), SHAPE(1, 8, 8), SHAPE(1, 96, 64), SHAPE(1, 320, 200),
	SHAPE(1, 1000, 4096), SHAPE(1, 4096, 64), SHAPE(1, 33, 6008),
	SHAPE(2, 1, 64), SHAPE(2, 96, 200), SHAPE(2, 1000, 64), SHAPE(2, 320, 4096),
	SHAPE(3, 8, 200), SHAPE(3, 320, 64), SHAPE(3, 1000, 8),
	SHAPE(5, 96, 4096), SHAPE(5, 1000, 200), SHAPE(5, 320, 8),
	SHAPE(8, 1, 200), SHAPE(8, 320, 64), SHAPE(8, 4096, 200), SHAPE(8, 1000, 4096),
	SHAPE(9, 96, 200), SHAPE(16, 8, 4096), SHAPE(16, 1000, 64),
	SHAPE(17, 8, 64), SHAPE(17, 320, 200), SHAPE(17, 1000, 64),
	SHAPE(64, 96, 200), SHAPE(64, 320, 64), SHAPE(64, 1000, 200),
	/* several tiles per cluster; more CTAs in a cluster than k has stages; long sums */
	SHAPE(10, 20000, 72), SHAPE(32, 9000, 520), SHAPE(29, 17000, 200), SHAPE(31, 34000, 64),
	SHAPE(3, 24, 16392), SHAPE(7, 40, 28680), SHAPE(25, 130, 6008), SHAPE(57, 257, 14344),
	ON_DEVICE(33, 5000, 10008), ON_DEVICE(64, 2050, 11008),
	SHAPE(129, 1, 8), SHAPE(129, 96, 64), SHAPE(129, 320, 200), SHAPE(129, 1000, 64),
	/* bench rows, in bf16 */
	BENCH_CPU(1, 4096, 4096), BENCH(1, 6144, 4096), BENCH(1, 14336, 4096), BENCH(1, 28672, 4096),
	BENCH(1, 4096, 14336), BENCH(1, 11008, 4096), BENCH(1, 4096, 11008),
	BENCH(1, 128256, 4096),
	BENCH(2, 4096, 4096), BENCH(4, 4096, 4096),
	BENCH(8, 4096, 4096), BENCH(8, 14336, 4096), BENCH(8, 4096, 14336),
	BENCH(16, 4096, 4096), BENCH(16, 6144, 4096), BENCH(16, 14336, 4096),
	BENCH(16, 28672, 4096), BENCH(16, 4096, 14336),
	BENCH(32, 4096, 4096), BENCH(32, 28672, 4096), BENCH(32, 4096, 14336),
	BENCH(64, 4096, 4096), BENCH(64, 6144, 4096), BENCH(64, 14336, 4096),
	BENCH(64, 28672, 4096), BENCH(64, 4096, 14336),
	BENCH(4096, 4096, 4096), BENCH(8192, 8192, 8192),
	/* a layer of Llama-3-70B */
	BENCH(1, 10240, 8192), BENCH(1, 8192, 8192), BENCH(1, 57344, 8192), BENCH(1, 8192, 28672),
	BENCH(64, 10240, 8192), BENCH(64, 8192, 8192), BENCH(64, 57344, 8192), BENCH(64, 8192, 28672),
	BENCH(96, 10240, 8192), BENCH(96, 8192, 8192), BENCH(96, 57344, 8192), BENCH(96, 8192, 28672),
	BENCH(1024, 10240, 8192), BENCH(1024, 8192, 8192), BENCH(1024, 57344, 8192),
	BENCH(1024, 8192, 28672),
	/* what gemm_w4 is compared with, besides the above */
	BENCH(4, 4096, 14336), BENCH(8, 28672, 4096), BENCH(128, 28672, 4096), BENCH(256, 28672, 4096),
	BENCH(2048, 28672, 4096),
	/* tiles of 48 rows of a, and just above; then decoding steps of a server with 40 and 48 requests */
	SHAPE(40, 9000, 200), SHAPE(48, 1000, 520), SHAPE(47, 130, 6008), SHAPE(49, 320, 72),
	BENCH(40, 4096, 4096), BENCH(40, 6144, 4096), BENCH(40, 28672, 4096), BENCH(40, 4096, 14336),
	BENCH(48, 4096, 4096), BENCH(48, 6144, 4096), BENCH(48, 28672, 4096), BENCH(48, 4096, 14336),
};

/* a share of the device, in bf16: the kernels by number of rows */
static const struct shape with_sms[] = {
	{ 1, 1000, 200, .sms = 1 }, { 8, 320, 4096, .sms = 24 }, { 1, 4096, 64, .sms = 64 },
	{ 9, 96, 200, .sms = 2 }, { 16, 1000, 4096, .sms = 24 }, { 32, 9000, 72, .sms = 24 },
	{ 57, 257, 4104, .sms = 64 }, { 129, 96, 64, .sms = 24 }, { 300, 132, 520, .sms = 64 },
	{ 32, 640, 72, .sms = 2 },
};

/* b, a, and out of more than 2^32 elements, in bf16; behind with_sms */
static const struct shape far_shapes[] = {
	SHAPE(1, (1 << 18) + 4, 16384), SHAPE((1 << 18) + 4, 1, 16384), ON_DEVICE((1 << 18) + 4, 16384, 8),
};

/* the last cases, also with kind POISON, in bf16 and f16: a kernel may compute these rows beside others */
static const struct shape with_nan[] = {
	SHAPE(39, 33, 24), SHAPE(71, 72, 136), SHAPE(103, 129, 72), SHAPE(135, 33, 24), SHAPE(263, 17, 72),
};

static const struct {
	int dtype, out_dtype, bias;
} variants[] = {
	{ CAIRN_BF16, CAIRN_BF16, 0 },	/* for all shapes */
	{ CAIRN_F16, CAIRN_F16, 1 },	/* for all except bench rows, some of which use f16 without bias */
	{ CAIRN_F32, CAIRN_F32, 0 },	/* this and the following: for small shapes */
	{ CAIRN_F32, CAIRN_F32, 1 },
	{ CAIRN_F16, CAIRN_F16, 0 },
	{ CAIRN_BF16, CAIRN_BF16, 1 },
	{ CAIRN_BF16, CAIRN_F32, 0 },
	{ CAIRN_BF16, CAIRN_F32, 1 },
	{ CAIRN_F16, CAIRN_F32, 0 },
	{ CAIRN_F16, CAIRN_F32, 1 },
};

struct row {
	struct shape s;
	int dtype, out_dtype, bias, pair, far, nan, ends;
};

static const int pair_m[] = { 1, 2, 7, 9, 17, 33 }, pair_n[] = { 1, 7, 33, 72, 129 };
static const int pair_k[] = { 8, 24, 72, 136, 520 }, pair_sms[] = { 0, 2, 3 };
static const int pair_types[][2] = { { CAIRN_F32, CAIRN_F32 }, { CAIRN_F16, CAIRN_F16 },
				     { CAIRN_BF16, CAIRN_BF16 }, { CAIRN_F16, CAIRN_F32 },
				     { CAIRN_BF16, CAIRN_F32 } };
static struct cairn_pairs pairs = { .num_factors = 6, .levels = { 5, 2, 6, 5, 5, 3 } };

static void pair_row(int i, struct row *r)
{
	const int8_t *level = cairn_pairs_row(&pairs, i);

	*r = (struct row){ .pair = 1, .bias = level[1], .dtype = pair_types[level[0]][0],
			   .out_dtype = pair_types[level[0]][1] };
	r->s = (struct shape){ pair_m[level[2]], pair_n[level[3]], pair_k[level[4]],
			       .sms = pair_sms[level[5]] };
}

static const int ends_k[] = { 8, 56, 64, 72, 120, 136, 248, 264 };
static struct cairn_pairs ends = { .num_factors = 4, .levels = { CAIRN_NUM_ENDS, CAIRN_NUM_ENDS, 8, 10 } };

static void ends_row(int i, struct row *r)
{
	const int8_t *level = cairn_pairs_row(&ends, i);

	*r = (struct row){ .ends = 1, .bias = level[3] % 2, .dtype = pair_types[level[3] / 2][0],
			   .out_dtype = pair_types[level[3] / 2][1] };
	r->s = (struct shape){ cairn_ends[level[0]], cairn_ends[level[1]], ends_k[level[2]], .sms = 0 };
}

static const int long_k[] = { 520, 1016, 2056, 4104 }, long_n[] = { 1, 17, 33 };
static struct cairn_pairs longs = { .num_factors = 4, .levels = { CAIRN_FEW_ENDS, 10, 4, 3 } };

static void long_row(int i, struct row *r)
{
	const int8_t *level = cairn_pairs_row(&longs, i);

	*r = (struct row){ .ends = 2, .bias = level[1] % 2, .dtype = pair_types[level[1] / 2][0],
			   .out_dtype = pair_types[level[1] / 2][1] };
	r->s = (struct shape){ cairn_ends[level[0]], long_n[level[3]], long_k[level[2]], .sms = 0 };
}

static int f16_row(const struct shape *s)
{
	return (s->m == 1 && s->n == 4096 && s->k == 4096) || (s->m == 1 && s->n == 14336) || s->m == 8192;
}

static int has_variant(const struct shape *s, int v)
{
	if (s->bench)
		return v == 0 || (v == 4 && f16_row(s));
	return v < 2 || (double)s->m * s->n * s->k <= SMALL;
}

/* The family needs a constant; number_of_cases() below compares it with the tables above. */
#define NUM_CASES	(313 + 37 + 10 + NUM_ENDS + NUM_LONG + 3)
#define NUM_ENDS	112
#define NUM_LONG	60

static const struct cairn_draw_axis axes[] = {
	CAIRN_DRAW_SIZE(struct row, s.m, 1, 5000, 1),
	CAIRN_DRAW_SIZE(struct row, s.n, 1, 70000, 1),
	CAIRN_DRAW_SIZE(struct row, s.k, 8, 30000, 8),
	CAIRN_DRAW_ONE_OF(struct row, s.sms, 0, 0, 0, 0, 1, 2, 3, 24, 64),
	CAIRN_DRAW_ONE_OF(struct row, dtype, CAIRN_F32, CAIRN_F16, CAIRN_BF16),
	CAIRN_DRAW_ONE_OF(struct row, out_dtype, CAIRN_F32, CAIRN_BF16),
	CAIRN_DRAW_ONE_OF(struct row, bias, 0, 1),
};

static int allowed(void *shape, int room)
{
	struct row *r = shape;

	if (r->out_dtype != CAIRN_F32)
		r->out_dtype = r->dtype;
	return (int64_t)r->s.m * r->s.n * r->s.k <= room * (1 << 25) &&
	       (int64_t)r->s.m * r->s.n <= room * 6000000;
}

static const struct cairn_draw draws = {
	.shape_bytes = sizeof(struct row), .axes = axes, .num_axes = ARRAY_SIZE(axes),
	.allowed = allowed, .many = 1000,
};

/* Writes row i of the existing pairs of shapes and variants to *r; returns the number of all rows. */
static int find_row(int i, struct row *r)
{
	int count = 0;

	if (i >= NUM_CASES) {
		cairn_draw_shape(&draws, i - NUM_CASES, r);
		return NUM_CASES;
	}
	r->pair = r->far = r->nan = r->ends = 0;
	for (size_t k = 0; k < ARRAY_SIZE(shapes); k++)
		for (size_t v = 0; v < ARRAY_SIZE(variants); v++) {
			if (!has_variant(&shapes[k], v))
				continue;
			if (count++ != i)
				continue;
			r->s = shapes[k];
			r->dtype = variants[v].dtype;
			r->out_dtype = variants[v].out_dtype;
			r->bias = variants[v].bias;
		}
	for (size_t k = 0; k < ARRAY_SIZE(with_sms); k++) {
		if (count++ != i)
			continue;
		r->s = with_sms[k];
		r->dtype = r->out_dtype = CAIRN_BF16;
		r->bias = 0;
	}
	for (size_t k = 0; k < ARRAY_SIZE(far_shapes); k++)
		if (count++ == i)
			*r = (struct row){ far_shapes[k], CAIRN_BF16, CAIRN_BF16, .far = 1 };
	if (i >= count && i < count + cairn_pairs_count(&pairs))
		pair_row(i - count, r);
	count += cairn_pairs_count(&pairs);
	for (size_t k = 0; k < 2 * ARRAY_SIZE(with_nan); k++)
		if (count++ == i)
			*r = (struct row){ with_nan[k / 2], variants[k % 2].dtype, variants[k % 2].dtype,
					   .nan = 1 };
	if (i >= count && i < count + cairn_pairs_count(&ends))
		ends_row(i - count, r);
	count += cairn_pairs_count(&ends);
	if (i >= count && i < count + cairn_pairs_count(&longs))
		long_row(i - count, r);
	count += cairn_pairs_count(&longs);
	if (i == count)
		*r = (struct row){ SHAPE(129, 8705, 8), CAIRN_BF16, CAIRN_F32, .bias = 1, .ends = 1 };
	if (i == count + 1)
		*r = (struct row){ SHAPE(257, 4097, 8), CAIRN_F16, CAIRN_F32, .bias = 1, .ends = 1 };
	if (i == count + 2)
		*r = (struct row){ SHAPE(258, 1025, 1032), .dtype = CAIRN_F32, .out_dtype = CAIRN_F32 };
	return count + 3;
}

static void describe(int i, struct cairn_case *c)
{
	struct row r;
	double m, n, k;
	int large;

	find_row(i, &r);
	m = r.s.m;
	n = r.s.n;
	k = r.s.k;
	snprintf(c->name, sizeof(c->name), "%sm%d_n%d_k%d_%s%s%s",
		 r.pair ? "pair_" : r.nan ? "nan_" : r.ends == 2 ? "long_" : r.ends ? "ends_" : "",
		 r.s.m, r.s.n, r.s.k,
		 cairn_dtype_name(r.dtype), r.out_dtype != r.dtype ? "_to_f32" : "",
		 r.bias ? "_bias" : "");
	if (r.s.sms)
		snprintf(c->name + strlen(c->name), sizeof(c->name) - strlen(c->name), "_sms%d", r.s.sms);
	/* a large shape has one kind: the two of its variants, NORMAL and EXACT */
	large = m * n * k > 1 << 22 && i < NUM_CASES;
	c->kinds = CAIRN_KIND_BIT(large && r.bias && !r.s.bench ? CAIRN_KIND_EXACT : CAIRN_KIND_NORMAL);
	if (!r.s.bench && !r.far && !large)
		c->kinds |= CAIRN_KIND_BIT(CAIRN_KIND_EXACT) | CAIRN_KIND_BIT(CAIRN_KIND_EXTREME);
	if (r.pair || r.nan || i >= NUM_CASES)
		c->kinds |= CAIRN_KIND_BIT(CAIRN_KIND_POISON);
	if (r.ends)
		c->kinds = CAIRN_KIND_BIT(CAIRN_KIND_EXACT);
	c->roundings = r.dtype == CAIRN_F32 ? k + 2 : 0;
	c->bench = r.s.bench;
	c->ceiling = r.s.m >= 4096;
	c->device_only = r.s.device_only;
	c->far = r.far;
	c->bytes = (m * k + n * k + r.bias * n) * cairn_dtype_bytes(r.dtype) +
		   m * n * cairn_dtype_bytes(r.out_dtype);
	c->flops = 2 * m * n * k;
}

/*
 * EXACT: integers whose products and sums, in any order, need up to the 24 bits of fp32, so that fewer bits
 * do not suffice: k + 1 times the largest product is at most 2^24. f32: one factor of a product has more than
 * 11 bits (that of a in even columns, that of b in odd ones); the other factor is -1, 0 or 1. In every second
 * case of f32 a row has only one nonzero small factor, so that the large one can have 23 bits with any k. f16
 * to f16: seven standard deviations of a sum fit f16.
 */
static void fill_operand(struct cairn_op *op, const struct row *r, void *p, int64_t rows, int is_b)
{
	int64_t k = r->s.k, most = cairn_exact_most(k + 1), wide, hot = 0;
	int one;

	if (r->out_dtype == CAIRN_F16)
		most = (int64_t)sqrt(25700 / sqrt((double)k));
	cairn_fill_exact(op, p, r->dtype, rows * k, is_b ? 0.05 : 1, most);
	if (op->kind != CAIRN_KIND_EXACT || r->dtype != CAIRN_F32)
		return;
	most = (1 << 24) / (k + 1);
	one = op->case_index % 2 && k >= 64;
	wide = one ? ((1 << 24) - most) / 2 : most;
	for (int64_t i = 0; i < rows * k; i++) {
		if (i % k == 0)
			hot = cairn_op_range(op, 0, k / 2 - 1) * 2 + !is_b;
		((float *)p)[i] = (float)(i % 2 == is_b ? cairn_op_range(op, -wide, wide) :
					  one ? (i % k == hot ? cairn_op_range(op, 0, 1) * 2 - 1 : 0) :
					  cairn_op_range(op, -1, 1));
	}
}

/* POISON: about one row in four holds a NaN or, except in f32, an infinity. */
static void poison(struct cairn_op *op, const struct row *r, void *p, int64_t rows, int64_t k)
{
	for (int64_t i = op->case_index % 3; i < rows; i += cairn_op_range(op, 2, 6))
		cairn_store(p, r->dtype, i * k + cairn_op_range(op, 0, k - 1),
			    i % 2 && r->dtype != CAIRN_F32 ? -INFINITY : NAN);
}

/* Rows of a, or of b and so columns of one row of out, past 2^32 elements */
static void setup_far(struct cairn_op *op, const struct shape *s, int dtype)
{
	int32_t rows = s->m > 1 ? s->m : s->n;
	size_t far = s->m > 1 ? FIELD(a) : FIELD(b), near = s->m > 1 ? FIELD(b) : FIELD(a);
	int64_t others = s->m > 1 ? s->n : 1;
	void *p;

	cairn_out_rows(op, FIELD(out), dtype, rows, others);
	cairn_in_rows(op, far, dtype, rows, s->k, 1);
	cairn_name(op, far, s->m > 1 ? "a" : "b");
	p = cairn_in(op, near, dtype, others * s->k);
	cairn_name(op, near, s->m > 1 ? "b" : "a");
	cairn_fill(op, p, dtype, others * s->k, 1);
}

static void setup(struct cairn_op *op)
{
	struct cairn_gemm_args *g = op->args;
	void *a, *b, *bias = NULL;
	int64_t m, n, k;
	struct row r;

	find_row(op->case_index, &r);
	m = g->m = r.s.m;
	n = g->n = r.s.n;
	k = g->k = r.s.k;
	g->dtype = r.dtype;
	g->out_dtype = r.out_dtype;
	g->sms = r.s.sms;
	if (r.far) {
		setup_far(op, &r.s, r.dtype);
		return;
	}
	cairn_out(op, FIELD(out), r.out_dtype, m * n);
	cairn_shape(op, FIELD(out), { "row", m }, { "column", n });
	a = cairn_in(op, FIELD(a), r.dtype, m * k);
	fill_operand(op, &r, a, m, 0);
	b = cairn_in(op, FIELD(b), r.dtype, n * k);
	fill_operand(op, &r, b, n, 1);
	if (r.bias) {
		bias = cairn_in(op, FIELD(bias), r.dtype, n);
		cairn_fill_exact(op, bias, r.dtype, n, 1, (1 << 24) / (k + 1));
	}
	if (op->kind != CAIRN_KIND_POISON)
		return;
	poison(op, &r, a, m, k);
	poison(op, &r, b, n, k);
	/* the last row is all NaN: a later tile must not use what it left in shared memory */
	if (op->case_index % 2 && n > 1)
		cairn_fill_nan(b, r.dtype, (n - 1) * k, k);
	if (op->case_index % 4 == 2 && m > 1)
		cairn_fill_nan(a, r.dtype, (m - 1) * k, k);
	if (bias)
		poison(op, &r, bias, n, 1);
	/* a row of zeros, times what is not finite */
	for (int64_t e = 0; op->case_index % 4 < 2 && e < k; e++)
		cairn_store(a, r.dtype, m / 2 * k + e, 0);
	/* an infinity in b times a 0 is NaN, which an operation that skips zeros does not see */
	for (int64_t e = 0; op->case_index % 2 && e < n * k; e++)
		for (int64_t i = 0; isinf(cairn_load(b, r.dtype, e)) && i < m; i++)
			if (!isnan(cairn_load(a, r.dtype, i * k + e % k)))
				cairn_store(a, r.dtype, i * k + e % k, 0);
}

static int exact(const void *args, struct cairn_exact *e)
{
	return cairn_gemm_exact(args, e);
}

static const char *reject(void *args, int i, int *want)
{
	struct cairn_gemm_args *g = args;

	*want = i < 6 || i > 8 ? -EINVAL : -EOPNOTSUPP;
	switch (i) {
	case 0:
		g->out = NULL;
		return "out_null";
	case 1:
		g->a = NULL;
		return "a_null";
	case 2:
		g->b = NULL;
		return "b_null";
	case 3:
		g->m = 0;
		return "m_0";
	case 4:
		g->n = -1;
		return "n_negative";
	case 5:
		g->k = 0;
		return "k_0";
	case 6:
		g->k = 12;
		return "k_12";
	case 7:
		g->dtype = CAIRN_I32;
		return "dtype_i32";
	case 8:
		g->dtype = CAIRN_BF16;
		g->out_dtype = CAIRN_F16;
		return "bf16_to_f16";
	case 9:
		g->sms = -1;
		return "sms_negative";
	case 10:
		g->size = 8;
		return "old_struct";
	}
	return NULL;
}

static void number_of_cases(struct cairn_test *t)
{
	struct row r;
	int n = find_row(-1, &r);

	if (!EXPECT(t, n == NUM_CASES))
		cairn_note(t, "%d cases", n);
}

/* Doubling a row of b doubles the same column of out and changes no other; this needs no reference. */
static void columns_follow_rows_of_b(struct cairn_test *t)
{
	enum { M = 3, N = 40, K = 72 };
	static float a[M * K], b[N * K], out[M * N], again[M * N];
	struct cairn_gemm_args g = { .size = sizeof(g), .out = out, .a = a, .b = b, .m = M, .n = N, .k = K,
				     .dtype = CAIRN_F32, .out_dtype = CAIRN_F32 };

	for (int i = 0; i < M * K; i++)
		a[i] = (float)(cairn_rand(t) % 17) - 8;
	for (int i = 0; i < N * K; i++)
		b[i] = (float)(cairn_rand(t) % 17) - 8;
	EXPECT(t, cairn_gemm_cpu(&g, NULL) == 0);
	for (int l = 0; l < K; l++)
		b[7 * K + l] *= 2;
	g.out = again;
	EXPECT(t, cairn_gemm_cpu(&g, NULL) == 0);
	for (int i = 0; i < M; i++)
		out[i * N + 7] *= 2;
	EXPECT(t, !memcmp(out, again, sizeof(out)));
}

static void pairs_are_covered(struct cairn_test *t)
{
	cairn_pairs_check(t, &pairs, 37);
	cairn_pairs_check(t, &ends, NUM_ENDS);
	cairn_pairs_check(t, &longs, NUM_LONG);
}

static const struct cairn_unit units[] = {
	{ "number_of_cases", number_of_cases },
	{ "pairs_are_covered", pairs_are_covered },
	{ "columns_follow_rows_of_b", columns_follow_rows_of_b },
};

/* The bits depend on sms only above m = 4, and with f32 inputs. */
static int form(void *args, int i)
{
	struct cairn_gemm_args *a = args;

	a->sms = a->sms ? 0 : 40;
	return i == 0 && a->m <= 4 && a->dtype != CAIRN_F32;
}

const struct cairn_family cairn_gemm_family = {
	.stage = "primitives",
	.name = "gemm",
	.units = units,
	.num_units = ARRAY_SIZE(units),
	.op = offsetof(struct cairn_impl, gemm),
	.workspace_op = offsetof(struct cairn_impl, gemm_workspace),
	.args_size = sizeof(struct cairn_gemm_args),
	.sms_field = offsetof(struct cairn_gemm_args, sms),
	.workspace_field = offsetof(struct cairn_gemm_args, workspace),
	.num_cases = NUM_CASES, .draw = &draws,
	.exact_is_equal = 1,
	.form = form,
	.describe = describe,
	.setup = setup,
	.exact = exact,
	.reject = reject,
	.cost_s = 74,
};
