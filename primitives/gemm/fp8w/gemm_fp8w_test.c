// SPDX-License-Identifier: Apache-2.0
/*
 * gemm_fp8w_test - cases of gemm_fp8w.h
 *
 * Shapes lie at the limits of the kernels, as in gemm_test.c: rows around 8, 16, 32, 64, 128, 256 and 512,
 * columns that do not fill a tile or a block, k of one vector, k that ends within a stage or a block. b
 * holds all codes except NaN. EXACT has sums of up to 24 bits, see plan_exact(). Every small shape runs with
 * both kinds of scales and all types; the bench rows, the projections of Llama 3 8B, run in bf16 with row
 * scales, and some with block scales. The pair cases combine types, bias, scales, sizes and sms; their POISON
 * has NaN in some rows of a and some elements of bias. The cases ends_* combine sizes at the ends of tiles
 * (ends.h); the cases range_* have scales near the largest and the
 * smallest float, which only a whole sum can be multiplied by.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "conformance/harness.h"
#include "conformance/suite/draw.h"
#include "conformance/suite/ends.h"
#include "conformance/suite/pairs.h"
#include "primitives/base/fp8.h"

#define FIELD(f)	offsetof(struct cairn_gemm_fp8w_args, f)

struct shape {
	int32_t m, n, k, bench, device_only;	/* bench: a bench row; device_only: skipped on the CPU */
	int32_t sms;
};

/* The columns are m, n, k. ON_DEVICE: too large for the CPU implementations. */
#define SHAPE(m, n, k)		{ m, n, k, .bench = 0, .device_only = 0 }
#define ON_DEVICE(m, n, k)	{ m, n, k, .bench = 0, .device_only = 1 }
#define BENCH(m, n, k)		{ m, n, k, .bench = 1, .device_only = 1 }

static const struct shape shapes[] = {
	SHAPE(1, 1, 16), SHAPE(1, 8, 48), SHAPE(1, 96, 64), SHAPE(1, 320, 208),
	SHAPE(1, 200, 4112),
	SHAPE(2, 130, 272), SHAPE(3, 17, 1040), SHAPE(5, 300, 128), SHAPE(7, 33, 4096),
	SHAPE(8, 1, 208), SHAPE(8, 257, 144), SHAPE(8, 65, 6016),
	SHAPE(9, 96, 208), SHAPE(9, 130, 16), SHAPE(15, 65, 128), SHAPE(16, 129, 4096),
	SHAPE(17, 8, 64), SHAPE(31, 257, 400), SHAPE(32, 131, 656), SHAPE(33, 320, 144),
	SHAPE(63, 255, 112), SHAPE(64, 96, 208), SHAPE(65, 134, 1296), SHAPE(127, 63, 240),
	SHAPE(128, 64, 272), SHAPE(129, 40, 272), SHAPE(255, 36, 144), SHAPE(256, 33, 64),
	SHAPE(257, 40, 80), SHAPE(300, 132, 272),
	ON_DEVICE(16, 500, 2048), ON_DEVICE(64, 256, 4096), ON_DEVICE(100, 1000, 4112),
	ON_DEVICE(128, 514, 1936),
	ON_DEVICE(200, 17000, 144), ON_DEVICE(513, 520, 1168), ON_DEVICE(700, 1000, 1024),
	/* bench rows */
	BENCH(1, 4096, 4096), BENCH(1, 6144, 4096), BENCH(1, 14336, 4096), BENCH(1, 28672, 4096),
	BENCH(1, 4096, 14336), BENCH(1, 128256, 4096),
	BENCH(4, 4096, 4096), BENCH(8, 4096, 4096), BENCH(8, 28672, 4096), BENCH(8, 4096, 14336),
	BENCH(16, 4096, 4096), BENCH(16, 28672, 4096), BENCH(16, 4096, 14336),
	BENCH(32, 28672, 4096),
	BENCH(64, 4096, 4096), BENCH(64, 6144, 4096), BENCH(64, 28672, 4096),
	BENCH(64, 4096, 14336),
	BENCH(128, 28672, 4096), BENCH(256, 28672, 4096), BENCH(256, 4096, 14336),
	BENCH(2048, 28672, 4096),
	BENCH(128, 4096, 14336), BENCH(512, 28672, 4096), BENCH(512, 4096, 14336),
};

static const struct variant {
	int32_t dtype, out_dtype, bias, scale_kind;
} variants[] = {
	{ CAIRN_BF16, CAIRN_BF16, 0, 0 },	/* for all shapes */
	{ CAIRN_BF16, CAIRN_BF16, 1, 1 },	/* this and the following: for all except bench rows */
	{ CAIRN_F16, CAIRN_F32, 1, 0 },
	{ CAIRN_F16, CAIRN_F16, 0, 1 },
	{ CAIRN_BF16, CAIRN_F32, 0, 1 },	/* also for some bench rows, to bf16 */
};

#define NUM_SHAPES	ARRAY_SIZE(shapes)
#define NUM_TESTED	37	/* shapes that are not bench rows */
#define NUM_BLOCKS	9	/* bench rows that also run with block scales */
#define NUM_UNLIMITED	(NUM_TESTED * 5 + (NUM_SHAPES - NUM_TESTED) + NUM_BLOCKS)
#define NUM_PAIRS	38
#define FIRST_PAIR	((int)NUM_UNLIMITED + 2 * (int)ARRAY_SIZE(with_sms))
#define FAR_CASE	(FIRST_PAIR + NUM_PAIRS)
#define FIRST_RANGE	(FAR_CASE + 1)
#define NUM_RANGES	(ARRAY_SIZE(ranges) * ARRAY_SIZE(range_m) * 2)
#define FIRST_ENDS	(FIRST_RANGE + (int)NUM_RANGES)
#define NUM_ENDS	161
#define FIRST_LONG	(FIRST_ENDS + NUM_ENDS)
#define NUM_LONG	48
#define TALL_CASE	(FIRST_LONG + NUM_LONG)
#define NUM_CASES	(TALL_CASE + 1)

/* b of more than 2^31 codes; behind the pair cases */
static const struct shape far_shape = SHAPE(1, (1 << 18) + 4, 16384);

/* more rows than 16 bits count */
static const struct shape tall_shape = SHAPE(65600, 4, 16);

/* a share of the device, with scales of rows and of blocks */
static const struct shape with_sms[] = {
	{ 1, 320, 208, .sms = 1 }, { 8, 257, 144, .sms = 24 }, { 17, 500, 400, .sms = 1 },
	{ 64, 257, 2064, .sms = 24 }, { 128, 3000, 144, .sms = 24 }, { 300, 132, 272, .sms = 64 },
};

/* indices in `shapes`, less NUM_TESTED */
static const int32_t with_blocks[NUM_BLOCKS] = { 0, 3, 4, 8, 11, 14, 16, 17, 18 };

static const int32_t pair_m[] = { 1, 2, 7, 9, 17, 33 }, pair_n[] = { 1, 7, 40, 129, 257 };
static const int32_t pair_k[] = { 16, 48, 128, 144, 272 }, pair_sms[] = { 0, 2 };
static const int32_t pair_types[][2] = { { CAIRN_BF16, CAIRN_BF16 }, { CAIRN_F16, CAIRN_F16 },
					 { CAIRN_BF16, CAIRN_F32 }, { CAIRN_F16, CAIRN_F32 } };
static struct cairn_pairs pairs = { .num_factors = 7, .levels = { 4, 2, 2, 6, 5, 5, 2 } };

/* ends of tiles (ends.h) */
static const int32_t ends_k[] = { 16, 112, 128, 144, 240, 272 };
static struct cairn_pairs ends = {
	.num_factors = 4, .levels = { CAIRN_NUM_ENDS, CAIRN_NUM_ENDS, 6, 16 },
};

/*
 * Elements of a have magnitudes from 2^a to 2^(a+1), as have the scales of every other row of b, or row of
 * blocks (2^scale to 2^(scale+1)); the other scales are near 1. If `few`, one in four codes is at most 2^-8
 * in magnitude, and the others are 0. The product of a scale and a code (huge_scale, tiny_scale), or of a
 * scale and an element of a (huge_scaled_a, tiny_scaled_a), overflows or loses bits as a subnormal number.
 * The sums and the scaled sums are in range.
 */
static const struct range {
	const char *name;
	int32_t dtype, a, scale, few;
} ranges[] = {
	{ "huge_scale_bf16", CAIRN_BF16, -30, 126, .few = 0 },
	{ "huge_scaled_a_bf16", CAIRN_BF16, 27, 100, .few = 1 },
	{ "tiny_scale_bf16", CAIRN_BF16, 100, -140, .few = 0 },
	{ "tiny_scaled_a_bf16", CAIRN_BF16, -100, -45, .few = 0 },
	{ "huge_scale_f16", CAIRN_F16, -14, 120, .few = 0 },
	{ "huge_scaled_a_f16", CAIRN_F16, 14, 113, .few = 1 },
	{ "tiny_scale_f16", CAIRN_F16, 14, -140, .few = 0 },
	{ "tiny_scaled_a_f16", CAIRN_F16, -14, -125, .few = 0 },
};

/* for each kernel up to CAIRN_GEMM_FP8W_EXACT_M */
static const int32_t range_m[] = { 3, 20, 40, 100 };

static void range_of(int i, const struct range **r, struct shape *s, struct variant *v)
{
	int32_t nth = i / (int)ARRAY_SIZE(range_m);

	*r = ranges + nth / 2;
	*s = (struct shape)SHAPE(range_m[i % (int)ARRAY_SIZE(range_m)], 130, 160);
	*v = (struct variant){ (*r)->dtype, CAIRN_F32, .scale_kind = nth % 2 };
}

static void pair_of(int i, struct shape *s, struct variant *v)
{
	const int8_t *level = cairn_pairs_row(&pairs, i);

	*s = (struct shape){ pair_m[level[3]], pair_n[level[4]], pair_k[level[5]],
			     .sms = pair_sms[level[6]] };
	*v = (struct variant){ pair_types[level[0]][0], pair_types[level[0]][1], level[1], level[2] };
}

static void ends_of(int i, struct shape *s, struct variant *v)
{
	const int8_t *level = cairn_pairs_row(&ends, i);

	*s = (struct shape)SHAPE(cairn_ends[level[0]], cairn_ends[level[1]], ends_k[level[2]]);
	*v = (struct variant){ pair_types[level[3] / 4][0], pair_types[level[3] / 4][1], level[3] % 2,
			       level[3] / 2 % 2 };
}

/* sums of many stages */
static const int32_t long_k[] = { 528, 1040, 2064, 4112 }, long_n[] = { 1, 17, 33 };
static struct cairn_pairs longs = { .num_factors = 4, .levels = { CAIRN_FEW_ENDS, 8, 4, 3 } };

static void long_of(int i, struct shape *s, struct variant *v)
{
	const int8_t *level = cairn_pairs_row(&longs, i);

	*s = (struct shape)SHAPE(cairn_ends[level[0]], long_n[level[3]], long_k[level[2]]);
	*v = (struct variant){ pair_types[level[1] / 2][0], pair_types[level[1] / 2][1], i % 2,
			       level[1] % 2 };
}

/* a drawn case */
struct row {
	struct shape s;
	struct variant v;
};

static const struct cairn_draw_axis axes[] = {
	CAIRN_DRAW_SIZE(struct row, s.m, 1, 5000, 1),
	CAIRN_DRAW_SIZE(struct row, s.n, 1, 70000, 1),
	CAIRN_DRAW_SIZE(struct row, s.k, 16, 30000, 16),
	CAIRN_DRAW_ONE_OF(struct row, s.sms, 0, 0, 0, 0, 1, 2, 3, 24, 64),
	CAIRN_DRAW_ONE_OF(struct row, v.dtype, CAIRN_F16, CAIRN_BF16),
	CAIRN_DRAW_ONE_OF(struct row, v.out_dtype, CAIRN_F32, CAIRN_BF16),
	CAIRN_DRAW_ONE_OF(struct row, v.bias, 0, 1),
	CAIRN_DRAW_ONE_OF(struct row, v.scale_kind, 0, 1),
};

static int allowed(void *shape, int room)
{
	struct row *r = shape;

	if (r->v.out_dtype != CAIRN_F32)
		r->v.out_dtype = r->v.dtype;
	return (int64_t)r->s.m * r->s.n * r->s.k <= room * (1 << 23) &&
	       (int64_t)r->s.m * r->s.n <= room * 1000000;
}

static const struct cairn_draw draws = {
	.shape_bytes = sizeof(struct row), .axes = axes, .num_axes = ARRAY_SIZE(axes),
	.allowed = allowed, .many = 3500,
};

static void row_of(int i, struct shape *s, struct variant *v)
{
	int first_blocks = (int)(NUM_TESTED * 5 + NUM_SHAPES - NUM_TESTED);

	if (i >= NUM_CASES) {
		struct row r;

		cairn_draw_shape(&draws, i - NUM_CASES, &r);
		*s = r.s;
		*v = r.v;
	} else if (i == TALL_CASE) {
		*s = tall_shape;
		*v = variants[0];
	} else if (i >= FIRST_LONG) {
		long_of(i - FIRST_LONG, s, v);
	} else if (i >= FIRST_ENDS) {
		ends_of(i - FIRST_ENDS, s, v);
	} else if (i >= FIRST_RANGE) {
		const struct range *r;

		range_of(i - FIRST_RANGE, &r, s, v);
	} else if (i == FAR_CASE) {
		*s = far_shape;
		*v = variants[0];
	} else if (i >= FIRST_PAIR) {
		pair_of(i - FIRST_PAIR, s, v);
	} else if (i < NUM_TESTED * 5) {
		*s = shapes[i / 5];
		*v = variants[i % 5];
	} else if (i < first_blocks) {
		*s = shapes[i - NUM_TESTED * 5 + NUM_TESTED];
		*v = variants[0];
	} else if (i >= (int)NUM_UNLIMITED) {
		*s = with_sms[(i - (int)NUM_UNLIMITED) / 2];
		*v = variants[(i - (int)NUM_UNLIMITED) % 2];
	} else {
		*s = shapes[NUM_TESTED + with_blocks[i - first_blocks]];
		*v = variants[4];
		v->out_dtype = CAIRN_BF16;
	}
}

static void describe(int i, struct cairn_case *c)
{
	struct variant v;
	struct shape s;
	double m, n, k;

	row_of(i, &s, &v);
	m = s.m;
	n = s.n;
	k = s.k;
	snprintf(c->name, sizeof(c->name), "%sm%d_n%d_k%d_%s_%s%s%s",
		 i >= FIRST_PAIR && i < FAR_CASE ? "pair_" : i >= FIRST_LONG ? "long_" :
		 i >= FIRST_ENDS ? "ends_" : "",
		 s.m, s.n, s.k, cairn_dtype_name(v.dtype), v.scale_kind ? "blocks" : "rows",
		 v.out_dtype != v.dtype ? "_to_f32" : "", v.bias ? "_bias" : "");
	if (s.sms)
		snprintf(c->name + strlen(c->name), sizeof(c->name) - strlen(c->name), "_sms%d", s.sms);
	if (i >= FIRST_RANGE && i < FIRST_ENDS) {
		const struct range *r;

		range_of(i - FIRST_RANGE, &r, &s, &v);
		snprintf(c->name, sizeof(c->name), "range_m%d_%s_%s", s.m, r->name,
			 v.scale_kind ? "blocks" : "rows");
	}
	c->kinds = CAIRN_KIND_BIT(CAIRN_KIND_NORMAL);
	c->far = i == FAR_CASE;
	if (i < FAR_CASE && !s.bench && !s.device_only)
		c->kinds |= CAIRN_KIND_BIT(CAIRN_KIND_EXACT) | CAIRN_KIND_BIT(CAIRN_KIND_EXTREME);
	if (i >= FIRST_PAIR && i < FAR_CASE)
		c->kinds |= CAIRN_KIND_BIT(CAIRN_KIND_POISON);
	if (i >= FIRST_ENDS)
		c->kinds = i < NUM_CASES ? CAIRN_KIND_BIT(CAIRN_KIND_EXACT) : CAIRN_ALL_KINDS;
	c->bench = s.bench;
	c->device_only = s.device_only;
	c->bytes = n * k + (m * k + v.bias * n) * 2 + 4 * (v.scale_kind ? n * k / 16384 : n) +
		   m * n * (double)cairn_dtype_bytes(v.out_dtype);
	c->flops = 2 * m * n * k;
}

/* EXACT: the largest integers in a and b, and the largest scale, or 0 for powers of two from 1/4 to 4 */
struct plan {
	int64_t a, b, scale;
};

/*
 * k + 1 times the largest a b s is at most 2^24 times the smallest step between such products, so that sums
 * are exact in fp32 in any order and need up to 24 bits. Every other case has scales of 12 bits, which
 * neither bf16 nor TF32 can hold, except above EXACT_M, where b s may be rounded to dtype. If out is f16,
 * seven standard deviations of a sum must fit it, and scales are powers of two.
 */
static struct plan plan_exact(const struct cairn_op *op)
{
	const struct cairn_gemm_fp8w_args *g = op->args;
	struct plan p = { .a = (1 << 20) / (g->k + 1) / 15, .b = 15 };
	int64_t room = (1 << 24) / (g->k + 1) / 4095;

	if (g->out_dtype == CAIRN_F16) {
		p.a = (int64_t)(428 / sqrt(g->k));
	} else if (op->case_index % 2 && room >= 3 && g->m <= CAIRN_GEMM_FP8W_EXACT_M) {
		p.b = room < 15 ? room : 15;
		p.a = room / p.b;
		p.scale = 4095;
	}
	return p;
}

/* EXTREME: any code, often the smallest and largest. */
static uint8_t some_code(struct cairn_op *op, const struct plan *p)
{
	uint64_t r = cairn_op_rand(op);
	uint8_t v = (uint8_t)r;

	if (op->kind == CAIRN_KIND_EXACT)
		return cairn_float_to_e4m3((float)(int64_t)(r % (uint64_t)(2 * p->b + 1)) - (float)p->b);
	if (op->kind == CAIRN_KIND_EXTREME && r >> 20 & 1)
		v = (uint8_t[]){ 0x00, 0x80, 0x01, 0x81, 0x07, 0x08, 0x7e, 0xfe }[r >> 30 & 7];
	return (v & 0x7f) == 0x7f ? v ^ 1 : v;
}

static float some_scale(struct cairn_op *op, const struct plan *p)
{
	if (op->kind != CAIRN_KIND_EXACT)
		return 0.0005f + 1e-6f * (float)cairn_op_range(op, 0, 1000);
	return p->scale ? (float)cairn_op_range(op, 1, p->scale) : ldexpf(1, (int)cairn_op_range(op, -2, 2));
}

/* The scales of a pair case are 0, tiny, large for the type of the result, or of the usual size. */
static float some_factor(struct cairn_op *op, int which, int32_t out_dtype)
{
	int large = (int)cairn_op_range(op, 3, out_dtype == CAIRN_F16 ? 6 : 60);

	return which == 0 ? 0 : which == 3 ? 1 : ldexpf(1, which == 1 ? -large : large);
}

/* NaN in about one of four rows of a [rows, k] */
static void poison(struct cairn_op *op, void *p, int dtype, int64_t rows, int64_t k)
{
	for (int64_t i = op->case_index % 3; i < rows; i += cairn_op_range(op, 2, 6))
		cairn_fill_nan(p, dtype, i * k + cairn_op_range(op, 0, k - 1), 1);
}

/* Rows of b past 2^31 codes; the scales of idle rows are NaN. */
static void setup_far(struct cairn_op *op, const struct cairn_gemm_fp8w_args *g)
{
	void *a = cairn_in(op, FIELD(a), g->dtype, g->k);
	uint8_t *b = cairn_in_rows(op, FIELD(b), CAIRN_U8, g->n, g->k, 0);
	float *scale = cairn_in_rows(op, FIELD(b_scale), CAIRN_F32, g->n, 1, 0);
	const struct plan any = { 0 };
	int32_t row;

	cairn_out_rows(op, FIELD(out), g->out_dtype, g->n, 1);
	cairn_fill(op, a, g->dtype, g->k, 1);
	for (int i = 0; (row = cairn_far_row(g->n, i)) >= 0; i++) {
		scale[row] = some_scale(op, &any);
		for (int32_t j = 0; j < g->k; j++)
			b[(int64_t)row * g->k + j] = some_code(op, &any);
	}
}

/* From 2^exponent to 2^(exponent+1) in magnitude, of either sign */
static float some_power(struct cairn_op *op, int exponent)
{
	float v = ldexpf(1 + (float)cairn_op_range(op, 0, 1000) / 1001, exponent);

	return cairn_op_rand(op) & 1 ? -v : v;
}

static void setup_range(struct cairn_op *op, const struct cairn_gemm_fp8w_args *g)
{
	int64_t blocks = (g->k + CAIRN_FP8_BLOCK - 1) / CAIRN_FP8_BLOCK;
	int64_t scales = g->scale_kind ? (g->n + CAIRN_FP8_BLOCK - 1) / CAIRN_FP8_BLOCK * blocks : g->n;
	uint8_t *b = cairn_in(op, FIELD(b), CAIRN_U8, (int64_t)g->n * g->k);
	float *scale = cairn_in(op, FIELD(b_scale), CAIRN_F32, scales);
	void *a = cairn_in(op, FIELD(a), g->dtype, (int64_t)g->m * g->k);
	const struct plan any = { 0 };
	const struct range *r;
	struct variant v;
	struct shape s;

	range_of(op->case_index - FIRST_RANGE, &r, &s, &v);
	cairn_out(op, FIELD(out), g->out_dtype, (int64_t)g->m * g->n);
	cairn_shape(op, FIELD(out), { "row", g->m }, { "column", g->n });
	for (int64_t i = 0; i < (int64_t)g->m * g->k; i++)
		cairn_store(a, g->dtype, i, (double)some_power(op, r->a));
	for (int64_t i = 0; i < (int64_t)g->n * g->k; i++) {
		b[i] = some_code(op, &any);
		if (r->few)
			b[i] &= i % 4 ? 0x80 : 0x83;
	}
	for (int64_t i = 0; i < scales; i++) {
		int64_t row = g->scale_kind ? i / blocks : i;

		scale[i] = some_power(op, row % 2 ? 0 : r->scale);
	}
}

static void setup(struct cairn_op *op)
{
	struct cairn_gemm_fp8w_args *g = op->args;
	int64_t m, n, k, scales, block = (1 << 20) + 7;
	struct variant v;
	struct plan plan;
	struct shape s;
	void *a, *bias;
	uint8_t *b;
	float *scale;

	row_of(op->case_index, &s, &v);
	m = g->m = s.m;
	n = g->n = s.n;
	k = g->k = s.k;
	g->dtype = v.dtype;
	g->out_dtype = v.out_dtype;
	g->scale_kind = v.scale_kind;
	g->sms = s.sms;
	if (op->case_index == FAR_CASE) {
		setup_far(op, g);
		return;
	}
	if (op->case_index >= FIRST_RANGE && op->case_index < FIRST_ENDS) {
		setup_range(op, g);
		return;
	}
	plan = plan_exact(op);
	scales = v.scale_kind ? (n + 127) / 128 * ((k + 127) / 128) : n;
	cairn_out(op, FIELD(out), v.out_dtype, m * n);
	cairn_shape(op, FIELD(out), { "row", m }, { "column", n });
	a = cairn_in(op, FIELD(a), v.dtype, m * k);
	cairn_fill_exact(op, a, v.dtype, m * k, 1, plan.a);
	b = cairn_in(op, FIELD(b), CAIRN_U8, n * k);
	for (int64_t i = 0; i < n * k && i < block; i++)
		b[i] = some_code(op, &plan);
	for (int64_t i = block; i < n * k; i += block)
		memcpy(b + i, b, (size_t)(n * k - i < block ? n * k - i : block));
	scale = cairn_in(op, FIELD(b_scale), CAIRN_F32, scales);
	/* a scale may have either sign */
	for (int64_t i = 0; i < scales; i++)
		scale[i] = some_scale(op, &plan) * (i % 5 == 3 ? -1 : 1);
	for (int64_t i = 0; i < scales && op->case_index >= FIRST_PAIR; i++)
		if (op->kind == CAIRN_KIND_NORMAL || op->kind == CAIRN_KIND_POISON)
			/* above EXACT_M, the product of a code and its scale must fit dtype */
			scale[i] *= some_factor(op, (int)(i + op->case_index) % 4,
						m > CAIRN_GEMM_FP8W_EXACT_M ? v.dtype : v.out_dtype);
	if (op->kind == CAIRN_KIND_POISON)
		poison(op, a, v.dtype, m, k);
	/* the last row is all NaN: a later tile must not use what it left in shared memory */
	if (op->kind == CAIRN_KIND_POISON && op->case_index % 2 && m > 1)
		cairn_fill_nan(a, v.dtype, (m - 1) * k, k);
	if (!v.bias)
		return;
	bias = cairn_in(op, FIELD(bias), v.dtype, n);
	cairn_fill_exact(op, bias, v.dtype, n, 1, (1 << 20) / (k + 1));
	if (op->kind == CAIRN_KIND_POISON)
		poison(op, bias, v.dtype, n, 1);
}

static int exact(const void *args, struct cairn_exact *e)
{
	return cairn_gemm_fp8w_exact(args, e);
}

static const char *reject(void *args, int i, int *want)
{
	struct cairn_gemm_fp8w_args *g = args;

	*want = i < 11 || i > 13 ? -EINVAL : -EOPNOTSUPP;
	switch (i) {
	case 0: g->size = 8; return "old_struct";
	case 1: g->out = NULL; return "null_out";
	case 2: g->a = NULL; return "null_a";
	case 3: g->b = NULL; return "null_b";
	case 4: g->b_scale = NULL; return "null_b_scale";
	case 5: g->m = 0; return "m_0";
	case 6: g->n = -1; return "n_negative";
	case 7: g->k = 0; return "k_0";
	case 8: g->scale_kind = 2; return "scale_kind_2";
	case 9: g->b += 8; return "misaligned_b";
	case 10: g->a = (const char *)g->a + 8; return "misaligned_a";
	case 11: g->k = 8; return "k_8";
	case 12: g->dtype = g->out_dtype = CAIRN_F32; return "dtype_f32";
	case 13: g->out_dtype = CAIRN_F16; return "bf16_to_f16";
	case 14: g->sms = -1; return "sms_negative";
	}
	return NULL;
}

static void pairs_are_covered(struct cairn_test *t)
{
	cairn_pairs_check(t, &pairs, NUM_PAIRS);
	cairn_pairs_check(t, &ends, NUM_ENDS);
	cairn_pairs_check(t, &longs, NUM_LONG);
}

static const struct cairn_unit units[] = { { "pairs_are_covered", pairs_are_covered } };

/* The bits depend on sms only above m = 8. */
static int form(void *args, int i)
{
	struct cairn_gemm_fp8w_args *a = args;

	a->sms = a->sms ? 0 : 40;
	return i == 0 && a->m <= 8;
}

const struct cairn_family cairn_gemm_fp8w_family = {
	.stage = "primitives",
	.name = "gemm_fp8w",
	.units = units,
	.num_units = ARRAY_SIZE(units),
	.op = offsetof(struct cairn_impl, gemm_fp8w),
	.workspace_op = offsetof(struct cairn_impl, gemm_fp8w_workspace),
	.args_size = sizeof(struct cairn_gemm_fp8w_args),
	.sms_field = offsetof(struct cairn_gemm_fp8w_args, sms),
	.workspace_field = offsetof(struct cairn_gemm_fp8w_args, workspace),
	/* b * s may be rounded to dtype. With a single scale, the eight significands of e4m3 have only eight
	 * different rounding errors, which shift all results together. */
	.errors_may_lean = 1,
	.num_cases = NUM_CASES, .draw = &draws,
	.exact_is_equal = 1,
	.form = form,
	.describe = describe,
	.setup = setup,
	.exact = exact,
	.reject = reject,
	.cost_s = 28,
};
