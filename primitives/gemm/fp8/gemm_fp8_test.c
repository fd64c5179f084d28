// SPDX-License-Identifier: Apache-2.0
/*
 * gemm_fp8_test - cases of gemm_fp8.h
 *
 * Shapes lie at the limits of the tiles (64 and 128 rows, 64 to 256 columns), of blocks of scales and of
 * stages (128 of k); sms makes the kernel choose among tiles. Every case that costs little is called with
 * other sms, with a part of its rows and beside other rows, and must keep its bits. Codes are of any value
 * except NaN; NORMAL of bench rows has those of normal numbers, since power depends on them. EXACT has sums
 * of up to 24 bits, and chunks of at most 2^13 times the lowest bit. POISON has NaN codes in some rows of a
 * and b. The cases range_* have scales near the largest and the smallest float. The bench rows are the
 * projections of Llama-3-8B and DeepSeek-V3 for prompts.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "conformance/harness.h"
#include "conformance/suite/draw.h"
#include "conformance/suite/ends.h"
#include "conformance/suite/pairs.h"
#include "primitives/base/fp8.h"
#include "primitives/gemm/fp8/gemm_fp8_parts.h"

#define FIELD(f)	offsetof(struct cairn_gemm_fp8_args, f)
#define ROWS		CAIRN_FP8_SCALE_ROWS
#define BLOCKS		CAIRN_FP8_SCALE_BLOCKS
#define TENSOR		CAIRN_FP8_SCALE_TENSOR

struct row {
	int m, n, k, kind, sms, bias, dtype, out_dtype, stride;
	int bench, far, device_only, pair, ends, range;	/* range: number in ranges[], from 1 on */
};

#define BF16(m, n, k, kind, ...) \
	{ m, n, k, kind, .dtype = CAIRN_BF16, .out_dtype = CAIRN_BF16, ##__VA_ARGS__ }
#define F32(m, n, k, kind, ...) \
	{ m, n, k, kind, .dtype = CAIRN_BF16, .out_dtype = CAIRN_F32, ##__VA_ARGS__ }
#define F16(m, n, k, kind, ...) \
	{ m, n, k, kind, .dtype = CAIRN_F16, .out_dtype = CAIRN_F16, ##__VA_ARGS__ }

static const struct row named[] = {
	BF16(1, 1, 16, BLOCKS), BF16(1, 1, 16, ROWS), BF16(1, 8, 48, TENSOR), BF16(2, 130, 272, BLOCKS),
	BF16(3, 17, 1040, BLOCKS), F32(7, 33, 4096, BLOCKS), F32(7, 33, 4096, ROWS),
	F16(63, 31, 112, BLOCKS, .bias = 1), F32(64, 64, 128, BLOCKS), BF16(65, 65, 144, BLOCKS),
	F32(127, 127, 240, BLOCKS, .bias = 1), BF16(128, 128, 128, BLOCKS), BF16(128, 128, 128, ROWS),
	F32(129, 193, 272, BLOCKS), F16(129, 193, 272, ROWS, .bias = 1), BF16(191, 255, 64, BLOCKS),
	F32(192, 256, 144, BLOCKS), F32(193, 257, 400, BLOCKS), F32(193, 257, 400, TENSOR, .bias = 1),
	F32(256, 520, 384, BLOCKS), F32(256, 520, 384, ROWS), F16(257, 513, 272, BLOCKS),
	/* one SM, or a few: large tiles, several for each CTA, a ring that wraps */
	F32(129, 520, 1040, BLOCKS, .sms = 1), BF16(300, 600, 528, BLOCKS, .sms = 1),
	F32(300, 600, 528, BLOCKS, .sms = 3), BF16(300, 600, 528, ROWS, .sms = 1),
	F32(385, 772, 272, BLOCKS, .sms = 4), F32(64, 2048, 656, BLOCKS, .sms = 2),
	BF16(500, 384, 144, BLOCKS, .sms = 6), F32(2100, 96, 80, BLOCKS, .sms = 2, .stride = 1),
	BF16(4100, 1, 48, BLOCKS, .sms = 3, .bias = 1), F32(260, 640, 2064, BLOCKS, .sms = 2, .stride = 1),
	F32(260, 640, 2064, ROWS, .sms = 2), F16(260, 640, 2064, TENSOR, .sms = 2, .bias = 1),
	BF16(300, 1050, 1040, ROWS, .sms = 2, .bias = 1), F32(70, 200, 16400, BLOCKS),
	F32(300, 4100, 2064, BLOCKS, .device_only = 1), F32(1000, 1536, 1040, BLOCKS, .device_only = 1),
	BF16(2048, 6144, 528, BLOCKS, .device_only = 1),
	F32(4500, 1000, 272, ROWS, .device_only = 1, .sms = 96),
	/* b, a, and out of more than 2^32 elements */
	BF16(1, (1 << 18) + 4, 16384, BLOCKS, .far = 1), BF16((1 << 18) + 4, 1, 16384, BLOCKS, .far = 1),
	BF16((1 << 18) + 4, 16384, 16, ROWS, .far = 1, .device_only = 1),
};

/*
 * Magnitudes of the scales of a and b: from 2^a to 2^(a + 1), 2^b to 2^(b + 1). Products stay in the range of
 * the contract, and results in that of f32.
 */
static const struct range {
	const char *name;
	int a, b;
} ranges[] = {
	{ "huge_a", 126, -60 }, { "huge_b", -60, 126 }, { "tiny_a", -126, 60 }, { "tiny_b", 60, -126 },
	{ "subnormal_a", -140, 100 }, { "large", 49, 49 }, { "small", -50, -49 },
};
#define NUM_RANGES	(2 * (int)ARRAY_SIZE(ranges))

static void range_row(int i, struct row *r)
{
	*r = (struct row){ .m = 70, .n = 200, .k = 272, .kind = i % 2 ? ROWS : BLOCKS, .dtype = CAIRN_BF16,
			   .out_dtype = CAIRN_F32, .range = 1 + i / 2 };
}

/* ---- bench rows ---- */

static const struct {
	int n, k, kinds;		/* kinds: 1: blocks; 2: also rows; 3: also tensor */
} layers[] = {
	/* Llama-3-8B: gate and up; down; fused QKV; O */
	{ 28672, 4096, 3 }, { 4096, 14336, 2 }, { 6144, 4096, 2 }, { 4096, 4096, 1 },
	/* DeepSeek-V3: q_a and kv_a; q_b; kv_b; O; gate and up, and down, of an expert */
	{ 2112, 7168, 1 }, { 24576, 1536, 1 }, { 32768, 512, 1 }, { 7168, 16384, 2 }, { 4096, 7168, 2 },
	{ 7168, 2048, 1 },
};
static const int prompts[] = { 1024, 2048, 4096, 8192 }, steps[] = { 1, 16, 64 };
static const int kinds_in_order[] = { BLOCKS, ROWS, TENSOR };

/* Steps of decoding have the layers of Llama-3-8B, each with both kinds. */
#define NUM_PROMPTS	((int)(ARRAY_SIZE(prompts) * (3 + 2 * 4 + 5)))
#define NUM_STEPS	((int)(ARRAY_SIZE(steps) * 4 * 2))
#define NUM_BENCH	(NUM_PROMPTS + NUM_STEPS)

static void bench_row(int i, struct row *r)
{
	int m = prompts[i % (int)ARRAY_SIZE(prompts)], at = i / (int)ARRAY_SIZE(prompts), layer = 0;

	if (i >= NUM_PROMPTS) {
		i -= NUM_PROMPTS;
		m = steps[i % (int)ARRAY_SIZE(steps)];
		layer = i / (int)ARRAY_SIZE(steps) % 4;
		at = i / (int)ARRAY_SIZE(steps) / 4;
	} else {
		for (; at >= layers[layer].kinds; layer++)
			at -= layers[layer].kinds;
	}
	*r = (struct row){ m, layers[layer].n, layers[layer].k, kinds_in_order[at], .dtype = CAIRN_BF16,
			   .out_dtype = CAIRN_BF16, .bench = 1, .device_only = 1 };
}

/* ---- pairs ---- */

static const int pair_types[][2] = { { CAIRN_F16, CAIRN_F16 }, { CAIRN_BF16, CAIRN_BF16 },
				     { CAIRN_F16, CAIRN_F32 }, { CAIRN_BF16, CAIRN_F32 } };
static const int pair_kinds[] = { BLOCKS, ROWS, TENSOR };
static const int pair_m[] = { 1, 7, 33, 64, 65, 130, 200 }, pair_n[] = { 1, 8, 34, 72, 130, 264, 520 };
static const int pair_k[] = { 16, 48, 128, 144, 272, 528 }, pair_sms[] = { 0, 1, 2, 5 };
static struct cairn_pairs pairs = { .num_factors = 8, .levels = { 4, 2, 3, 7, 7, 6, 4, 2 } };

static void pair_row(int i, struct row *r)
{
	const int8_t *level = cairn_pairs_row(&pairs, i);

	*r = (struct row){ .dtype = pair_types[level[0]][0], .out_dtype = pair_types[level[0]][1],
			   .bias = level[1], .kind = pair_kinds[level[2]], .m = pair_m[level[3]],
			   .n = pair_n[level[4]], .k = pair_k[level[5]], .sms = pair_sms[level[6]],
			   .stride = level[7] && pair_kinds[level[2]] == BLOCKS, .pair = 1 };
}

/* ---- ends of tiles (ends.h) ---- */

static const int ends_k[] = { 16, 112, 128, 144, 240, 272 };
static struct cairn_pairs ends = {
	.num_factors = 5, .levels = { CAIRN_NUM_ENDS, CAIRN_NUM_ENDS, 6, 4, 6 },
};

static void ends_row(int i, struct row *r)
{
	const int8_t *level = cairn_pairs_row(&ends, i);

	*r = (struct row){ .m = cairn_ends[level[0]], .n = cairn_ends[level[1]], .k = ends_k[level[2]],
			   .dtype = pair_types[level[3]][0], .out_dtype = pair_types[level[3]][1],
			   .bias = level[4] % 2, .kind = pair_kinds[level[4] / 2], .ends = 1 };
}

/* sums of many stages */
static const int long_k[] = { 528, 1040, 2064, 4080 }, long_n[] = { 1, 17 };
static struct cairn_pairs longs = { .num_factors = 4, .levels = { CAIRN_FEW_ENDS, 12, 4, 2 } };

static void long_row(int i, struct row *r)
{
	const int8_t *level = cairn_pairs_row(&longs, i);

	*r = (struct row){ .m = cairn_ends[level[0]], .n = long_n[level[3]], .k = long_k[level[2]],
			   .dtype = pair_types[level[1] / 3][0], .out_dtype = pair_types[level[1] / 3][1],
			   .kind = pair_kinds[level[1] % 3], .bias = i % 2, .ends = 2 };
}

/* The family needs constants; counts() compares them with the tables above. */
#define NUM_NAMED	43
#define NUM_PAIRS	52
#define FIRST_PAIR	NUM_NAMED
#define FIRST_RANGE	(FIRST_PAIR + NUM_PAIRS)
#define FIRST_BENCH	(FIRST_RANGE + 14)
#define FIRST_WIDE	(FIRST_BENCH + 88)
#define FIRST_ENDS	(FIRST_WIDE + 5)
#define NUM_ENDS	101
#define FIRST_LONG	(FIRST_ENDS + NUM_ENDS)
#define NUM_LONG	72
#define NUM_CASES	(FIRST_LONG + NUM_LONG)

/*
 * Many columns, and more than 16 rows with several whole chunks of k. Only results in fp32 show how sums are
 * grouped.
 */
static const struct row wide[] = {
	F32(1, 4144, 80, ROWS), F32(1, 4224, 272, BLOCKS), F32(1, 33000, 32, TENSOR),
	F32(40, 24, 640, BLOCKS), F32(40, 24, 640, ROWS),
};

static const struct cairn_draw_axis axes[] = {
	CAIRN_DRAW_SIZE(struct row, m, 1, 5000, 1),
	CAIRN_DRAW_SIZE(struct row, n, 1, 70000, 1),
	CAIRN_DRAW_SIZE(struct row, k, 16, 30000, 16),
	CAIRN_DRAW_ONE_OF(struct row, kind, BLOCKS, ROWS, TENSOR),
	CAIRN_DRAW_ONE_OF(struct row, sms, 0, 0, 0, 0, 1, 2, 5, 24, 64),
	CAIRN_DRAW_ONE_OF(struct row, bias, 0, 1),
	CAIRN_DRAW_ONE_OF(struct row, dtype, CAIRN_F16, CAIRN_BF16),
	CAIRN_DRAW_ONE_OF(struct row, out_dtype, CAIRN_F32, CAIRN_BF16),
	CAIRN_DRAW_ONE_OF(struct row, stride, 0, 1),
};

static int allowed(void *shape, int room)
{
	struct row *r = shape;

	if (r->out_dtype != CAIRN_F32)
		r->out_dtype = r->dtype;
	r->stride &= r->kind == BLOCKS;
	return (int64_t)r->m * r->n * r->k <= room * (1 << 23) && (int64_t)r->m * r->n <= room * 1000000;
}

static const struct cairn_draw draws = {
	.shape_bytes = sizeof(struct row), .axes = axes, .num_axes = ARRAY_SIZE(axes),
	.allowed = allowed, .many = 2100,
};

static struct row row_of(int i)
{
	struct row r;

	if (i >= NUM_CASES)
		cairn_draw_shape(&draws, i - NUM_CASES, &r);
	else if (i < FIRST_PAIR)
		r = named[i];
	else if (i < FIRST_RANGE)
		pair_row(i - FIRST_PAIR, &r);
	else if (i < FIRST_BENCH)
		range_row(i - FIRST_RANGE, &r);
	else if (i < FIRST_WIDE)
		bench_row(i - FIRST_BENCH, &r);
	else if (i < FIRST_ENDS)
		r = wide[i - FIRST_WIDE];
	else if (i < FIRST_LONG)
		ends_row(i - FIRST_ENDS, &r);
	else
		long_row(i - FIRST_LONG, &r);
	return r;
}

static const char *kind_name(int kind)
{
	return kind == BLOCKS ? "blocks" : kind == ROWS ? "rows" : "tensor";
}

static void describe(int i, struct cairn_case *c)
{
	const struct row r = row_of(i);
	const double m = r.m, n = r.n, k = r.k;
	char sms[16] = "";

	if (r.sms)
		snprintf(sms, sizeof(sms), "_sms%d", r.sms);
	if (r.range)
		snprintf(c->name, sizeof(c->name), "range_%s_%s", ranges[r.range - 1].name,
			 kind_name(r.kind));
	else
		snprintf(c->name, sizeof(c->name), "%sm%d_n%d_k%d_%s_%s%s%s%s%s",
			 r.pair ? "pair_" : r.ends == 2 ? "long_" : r.ends ? "ends_" : "", r.m, r.n, r.k,
			 cairn_dtype_name(r.dtype), kind_name(r.kind),
			 r.out_dtype != r.dtype ? "_to_f32" : "", r.bias ? "_bias" : "",
			 r.stride ? "_stride" : "", sms);
	c->kinds = CAIRN_KIND_BIT(CAIRN_KIND_NORMAL);
	if (!r.bench && !r.far && !r.range && m * n * k <= 1 << 24)	/* large shapes would show no more */
		c->kinds |= CAIRN_KIND_BIT(CAIRN_KIND_EXTREME);
	/* elements that are not judged may be NaN too */
	if (!r.bench && !r.far && !r.range && m * n * k <= CAIRN_GEMM_FP8_JUDGED)
		c->kinds |= CAIRN_KIND_BIT(CAIRN_KIND_POISON);
	if (!r.bench && !r.far && !r.range && r.k <= 4096)
		c->kinds |= CAIRN_KIND_BIT(CAIRN_KIND_EXACT);
	if (r.ends)
		c->kinds = CAIRN_KIND_BIT(CAIRN_KIND_EXACT);
	c->bench = r.bench;
	c->device_only = r.device_only;
	c->far = r.far;
	c->bytes = m * k + n * k + r.bias * n * 2 + m * n * (double)cairn_dtype_bytes(r.out_dtype) +
		   4 * (r.kind == BLOCKS ? m * k / 128 + n * k / 16384 : r.kind == ROWS ? m + n : 2);
	c->flops = 2 * m * n * k;
}

/* ---- inputs ---- */

/* EXACT: the largest integers in a and b, and the largest scale, or 0 for powers of two from 1/2 to 2 */
struct plan {
	int64_t most, scale;
};

/*
 * 49 128 is below 2^13, so no chunk is truncated; 49 49 4096 is below 2^24. If out is f16, seven standard
 * deviations of a sum of 4096 must fit it.
 */
static struct plan plan_exact(const struct cairn_op *op, const struct row *r)
{
	struct plan p = { .most = r->out_dtype == CAIRN_F16 ? 3 : 7 };

	if (r->out_dtype != CAIRN_F16 && op->case_index % 2)
		p.scale = 7;
	return p;
}

/* EXTREME: any code, often the smallest and largest. */
static uint8_t some_code(struct cairn_op *op, const struct plan *p)
{
	uint64_t r = cairn_op_rand(op);
	uint8_t v = (uint8_t)r;

	if (op->kind == CAIRN_KIND_EXACT)
		return cairn_float_to_e4m3((float)((int64_t)(r % (uint64_t)(2 * p->most + 1)) - p->most));
	if (op->kind == CAIRN_KIND_EXTREME && r >> 20 & 1)
		v = (uint8_t[]){ 0x00, 0x80, 0x01, 0x81, 0x07, 0x08, 0x7e, 0xfe }[r >> 30 & 7];
	return (v & 0x7f) == 0x7f ? v ^ 1 : v;
}

/* About normal, with a standard deviation of 127, as quantised activations have it. */
static uint8_t normal_code(struct cairn_op *op)
{
	uint64_t r = cairn_op_rand(op);
	float sum = 0;

	for (int i = 0; i < 4; i++)
		sum += (float)(r >> 16 * i & 0xffff) / 65536 - 0.5f;
	return cairn_float_to_e4m3(220 * sum);
}

static void fill_codes(struct cairn_op *op, const struct row *r, const struct plan *plan, uint8_t *p,
		       int64_t count)
{
	const int64_t block = (1 << 20) + 7;

	for (int64_t i = 0; i < count && i < block; i++)
		p[i] = r->bench ? normal_code(op) : some_code(op, plan);
	for (int64_t i = block; i < count; i += block)
		memcpy(p + i, p, (size_t)(count - i < block ? count - i : block));
}

/* From 2^exponent to 2^(exponent+1) in magnitude, of either sign */
static float some_power(struct cairn_op *op, int exponent)
{
	float v = ldexpf(1 + (float)cairn_op_range(op, 0, 1000) / 1001, exponent);

	return cairn_op_rand(op) & 1 ? -v : v;
}

/* Also 0 and, in EXTREME, large and small ones: a product of two is at most 2^32, or 2^6 for f16. */
static float some_scale(struct cairn_op *op, const struct row *r, const struct plan *p, int is_b)
{
	float sign = cairn_op_range(op, 0, 4) ? 1 : -1;

	if (r->range)
		return some_power(op, is_b ? ranges[r->range - 1].b : ranges[r->range - 1].a);
	if (op->kind == CAIRN_KIND_EXACT)
		return sign * (p->scale ? (float)cairn_op_range(op, 1, p->scale) :
			       ldexpf(1, (int)cairn_op_range(op, -1, 1)));
	if (!cairn_op_range(op, 0, 30))
		return 0;
	if (op->kind == CAIRN_KIND_EXTREME)
		return some_power(op, (int)cairn_op_range(op, -45, r->out_dtype == CAIRN_F16 ? 2 : 15));
	return sign * (0.0005f + 1e-6f * (float)cairn_op_range(op, 0, 1000));
}

/* A NaN in about one row of four */
static void poison(struct cairn_op *op, uint8_t *p, int64_t rows, int64_t k)
{
	for (int64_t i = op->case_index % 3; i < rows; i += cairn_op_range(op, 2, 6))
		p[i * k + cairn_op_range(op, 0, k - 1)] = i % 2 ? 0x7f : 0xff;
}

static void fill_scales(struct cairn_op *op, const struct row *r, const struct plan *plan)
{
	const struct cairn_gemm_fp8_args *g = op->args;
	int64_t num_a = cairn_gemm_fp8_a_scales(g), num_b = cairn_gemm_fp8_b_scales(g);
	float *a = cairn_in(op, FIELD(a_scale), CAIRN_F32, num_a);
	float *b = cairn_in(op, FIELD(b_scale), CAIRN_F32, num_b);

	for (int64_t i = 0; i < num_a; i++)
		a[i] = some_scale(op, r, plan, 0);
	for (int64_t i = 0; i < num_b; i++)
		b[i] = some_scale(op, r, plan, 1);
	for (int64_t i = 0; op->kind == CAIRN_KIND_POISON && g->a_scale_stride && i < num_a; i++)
		if (i % g->a_scale_stride >= g->m)
			a[i] = NAN;
}

/* Rows of a, or of b and so columns of one row of out, past 2^32 codes. Scales of idle rows are NaN. */
static void setup_far(struct cairn_op *op, const struct row *r)
{
	const int32_t rows = r->m > 1 ? r->m : r->n;
	const size_t far = r->m > 1 ? FIELD(a) : FIELD(b), near = r->m > 1 ? FIELD(b) : FIELD(a);
	const int64_t others = r->m > 1 ? r->n : 1;
	const struct plan any = { 0 };
	uint8_t *p, *q;
	int32_t row;

	cairn_out_rows(op, FIELD(out), r->dtype, rows, others);
	p = cairn_in_rows(op, far, CAIRN_U8, rows, r->k, 0);
	cairn_name(op, far, r->m > 1 ? "a" : "b");
	q = cairn_in(op, near, CAIRN_U8, others * r->k);
	cairn_name(op, near, r->m > 1 ? "b" : "a");
	for (int64_t i = 0; i < others * r->k; i++)
		q[i] = some_code(op, &any);
	for (int i = 0; (row = cairn_far_row(rows, i)) >= 0; i++)
		for (int32_t j = 0; j < r->k; j++)
			p[(int64_t)row * r->k + j] = some_code(op, &any);
	fill_scales(op, r, &any);
}

static void setup(struct cairn_op *op)
{
	struct cairn_gemm_fp8_args *g = op->args;
	const struct row r = row_of(op->case_index);
	const struct plan plan = plan_exact(op, &r);
	uint8_t *a, *b;
	void *bias;

	g->m = r.m;
	g->n = r.n;
	g->k = r.k;
	g->dtype = r.dtype;
	g->out_dtype = r.out_dtype;
	g->scale_kind = r.kind;
	g->sms = r.sms;
	g->a_scale_stride = r.stride ? r.m + 5 : 0;
	if (r.far) {
		setup_far(op, &r);
		return;
	}
	cairn_out(op, FIELD(out), r.out_dtype, (int64_t)r.m * r.n);
	cairn_shape(op, FIELD(out), { "row", r.m }, { "column", r.n });
	a = cairn_in(op, FIELD(a), CAIRN_U8, (int64_t)r.m * r.k);
	fill_codes(op, &r, &plan, a, (int64_t)r.m * r.k);
	b = cairn_in(op, FIELD(b), CAIRN_U8, (int64_t)r.n * r.k);
	fill_codes(op, &r, &plan, b, (int64_t)r.n * r.k);
	fill_scales(op, &r, &plan);
	if (op->kind == CAIRN_KIND_POISON) {
		poison(op, a, r.m, r.k);
		poison(op, b, r.n, r.k);
	}
	if (!r.bias)
		return;
	bias = cairn_in(op, FIELD(bias), r.dtype, r.n);
	cairn_fill_exact(op, bias, r.dtype, r.n, 1, 200);
}

static int exact(const void *args, struct cairn_exact *e)
{
	return cairn_gemm_fp8_exact(args, e);
}

static const char *reject(void *args, int i, int *want)
{
	struct cairn_gemm_fp8_args *g = args;

	*want = i < 16 ? -EINVAL : -EOPNOTSUPP;
	switch (i) {
	case 0: g->size = 8; return "old_struct";
	case 1: g->out = NULL; return "null_out";
	case 2: g->a = NULL; return "null_a";
	case 3: g->b = NULL; return "null_b";
	case 4: g->a_scale = NULL; return "null_a_scale";
	case 5: g->b_scale = NULL; return "null_b_scale";
	case 6: g->m = 0; return "m_0";
	case 7: g->n = -1; return "n_negative";
	case 8: g->k = 0; return "k_0";
	case 9: g->scale_kind = CAIRN_FP8_SCALE_PIECES; return "scale_kind_2";
	case 10: g->scale_kind = 4; return "scale_kind_4";
	case 11: g->sms = -1; return "sms_negative";
	case 12: g->b += 8; return "misaligned_b";
	case 13: g->a += 8; return "misaligned_a";
	case 14: g->m = 9; g->a_scale_stride = 8; return "a_scale_stride_short";
	case 15: g->a_scale_stride = -1; return "a_scale_stride_negative";
	case 16: g->k = 8; return "k_8";
	case 17: g->dtype = g->out_dtype = CAIRN_F32; return "dtype_f32";
	case 18: g->out_dtype = CAIRN_F16; return "bf16_to_f16";
	case 19: g->a_scale_stride = (int64_t)1 << 31; return "a_scale_stride_2_31";
	}
	return NULL;
}

/* Cuts the columns of a single row in two: bits do not depend on their number either. */
static int columns(struct cairn_gemm_fp8_args *g, int i)
{
	const int32_t block = g->scale_kind == BLOCKS ? CAIRN_FP8_BLOCK : 16, left = g->n / 2 / block * block;
	const int64_t blocks_k = ((int64_t)g->k + block - 1) / block;
	const int64_t scales = g->scale_kind == BLOCKS ? left / block * blocks_k :
			       g->scale_kind == TENSOR ? 0 : left;

	if (!left || i > 1)
		return 0;
	g->n = i ? g->n - left : left;
	if (!i)
		return 1;
	g->out = (char *)g->out + left * (int64_t)cairn_dtype_bytes(g->out_dtype);
	g->b += (int64_t)left * g->k;
	g->b_scale += scales;
	g->bias = g->bias ? (const char *)g->bias + left * 2 : NULL;
	return 1;
}

static int part(void *args, int i)
{
	struct cairn_gemm_fp8_args *g = args;
	int64_t out = (int64_t)g->n * (int64_t)cairn_dtype_bytes(g->out_dtype);
	int32_t first, m = g->m;

	if (m == 1)
		return columns(g, i);
	if (!cairn_part(m, out, 1, i, &first, &g->m))
		return 0;
	g->a_scale_stride = g->a_scale_stride ? g->a_scale_stride : m;
	g->out = (char *)g->out + first * out;
	g->a += (int64_t)first * g->k;
	g->a_scale += g->scale_kind == TENSOR ? 0 : first;
	return 1;
}

static int form(void *args, int i)
{
	static const int32_t sms[] = { 0, 1, 2, 3, 8, 40, 97 };
	struct cairn_gemm_fp8_args *g = args;

	if (i == ARRAY_SIZE(sms))
		return 0;
	g->sms = sms[i];
	return 1;
}

static void counts(struct cairn_test *t)
{
	int kinds = 0;

	for (size_t i = 0; i < ARRAY_SIZE(layers); i++)
		kinds += layers[i].kinds;
	EXPECT(t, ARRAY_SIZE(named) == NUM_NAMED);
	EXPECT(t, NUM_PROMPTS == kinds * (int)ARRAY_SIZE(prompts));
	EXPECT(t, FIRST_RANGE + NUM_RANGES == FIRST_BENCH && FIRST_BENCH + NUM_BENCH == FIRST_WIDE);
	EXPECT(t, FIRST_WIDE + ARRAY_SIZE(wide) == FIRST_ENDS);
	cairn_pairs_check(t, &pairs, NUM_PAIRS);
	cairn_pairs_check(t, &ends, NUM_ENDS);
	cairn_pairs_check(t, &longs, NUM_LONG);
}

/* Marks the columns of a part, which begins at column `first`. */
static void mark(struct cairn_test *t, unsigned char *seen, const struct gemm_fixed_plan *p, int first, int n)
{
	EXPECT(t, p->clusters >= 1);
	EXPECT(t, p->width % (CAIRN_FP8_BLOCK / 2) == 0 || CAIRN_FP8_BLOCK % p->width == 0);
	EXPECT(t, first % CAIRN_FP8_BLOCK == 0 && p->cols == (n + p->width - 1) / p->width);
	for (int j = 0; j < n; j++)
		seen[first + j]++;
}

/* One part or two have each column once, and begin at blocks of scales; the first of two has whole tiles. */
static void parts_are_whole(struct cairn_test *t)
{
	static const int ms[] = { 1, 64, 129, 700, 1024 }, ns[] = { 1, 192, 520, 1000, 2112, 7168 };
	static const int sms[] = { 1, 2, 3, 40, 97, 132 };
	static unsigned char seen[7168];
	int divided = 0, narrow = 0;

	for (size_t i = 0; i < ARRAY_SIZE(ms) * ARRAY_SIZE(ns) * ARRAY_SIZE(sms); i++) {
		const int m = ms[i % ARRAY_SIZE(ms)], multiple = CAIRN_FP8_BLOCK / 2;
		const struct gemm_fixed_shape s = {
			.m = m, .n = ns[i / ARRAY_SIZE(ms) % ARRAY_SIZE(ns)], .k = 3584,
			.sms = sms[i / ARRAY_SIZE(ms) / ARRAY_SIZE(ns)], .multiple = multiple,
			.least = m > GEMM_FIXED_GROUP_ROWS ? multiple : 16, .batch = CAIRN_FP8_BLOCK,
			.pairs = 66,
		};
		const struct gemm_fp8_parts p = gemm_fp8_choose_parts(&s);
		int bad = 0;

		memset(seen, 0, sizeof(seen));
		mark(t, seen, &p.plan[0], 0, p.n[0]);
		if (p.n[1]) {
			EXPECT(t, p.n[0] % p.plan[0].width == 0);
			mark(t, seen, &p.plan[1], p.n[0], p.n[1]);
		}
		for (int j = 0; j < s.n; j++)
			bad += seen[j] != 1;
		if (!EXPECT(t, p.n[0] + p.n[1] == s.n && !bad))
			cairn_note(t, "m %d, n %d, sms %d: %d and %d columns", s.m, s.n, s.sms, p.n[0],
				   p.n[1]);
		divided += p.n[1] > 0;
		narrow += p.n[1] > 0 && p.plan[0].width == 192;
	}
	EXPECT(t, divided > 10 && narrow > 0);
}

/* Products whose last round has few tiles are divided, on 132 SMs; others are not. */
static void parts_of_prompts(struct cairn_test *t)
{
	static const struct {
		int m, n, k, first;
	} is[] = {
		{ 2048, 7168, 16384, 6144 }, { 1024, 7168, 16384, 3072 }, { 8192, 2112, 7168, 2048 },
		{ 2048, 28672, 4096, 0 }, { 2048, 4096, 14336, 0 }, { 8192, 7168, 16384, 0 },
		{ 1024, 4096, 4096, 0 },
	};

	for (size_t i = 0; i < ARRAY_SIZE(is); i++) {
		const struct gemm_fixed_shape s = {
			.m = is[i].m, .n = is[i].n, .k = is[i].k / 2, .sms = 132, .pairs = 66,
			.multiple = CAIRN_FP8_BLOCK / 2, .least = CAIRN_FP8_BLOCK / 2,
			.batch = CAIRN_FP8_BLOCK,
		};
		const struct gemm_fp8_parts p = gemm_fp8_choose_parts(&s);

		if (!EXPECT(t, p.n[1] ? p.n[0] == is[i].first : !is[i].first))
			cairn_note(t, "m %d, n %d: %d and %d columns", s.m, s.n, p.n[0], p.n[1]);
	}
}

static void too_many_tiles(struct cairn_test *t)
{
	const struct gemm_fixed_shape s = { .m = 0x7fffff00, .n = 0x7fffff00, .k = 8, .sms = 132, .pairs = 66,
					    .multiple = CAIRN_FP8_BLOCK / 2, .least = CAIRN_FP8_BLOCK / 2,
					    .batch = CAIRN_FP8_BLOCK };

	EXPECT(t, gemm_fp8_choose_parts(&s).plan[0].clusters == 0);
}

static const struct cairn_unit units[] = {
	{ "counts", counts },
	{ "parts_are_whole", parts_are_whole },
	{ "parts_of_prompts", parts_of_prompts },
	{ "too_many_tiles", too_many_tiles },
};

const struct cairn_family cairn_gemm_fp8_family = {
	.stage = "primitives",
	.name = "gemm_fp8",
	.units = units,
	.num_units = ARRAY_SIZE(units),
	.op = offsetof(struct cairn_impl, gemm_fp8),
	.workspace_op = offsetof(struct cairn_impl, gemm_fp8_workspace),
	.args_size = sizeof(struct cairn_gemm_fp8_args),
	.sms_field = FIELD(sms),
	.workspace_field = FIELD(workspace),
	/* tensor cores truncate products towards zero */
	.errors_may_lean = 1,
	.num_cases = NUM_CASES, .draw = &draws,
	.exact_is_equal = 1,
	.company = { .rows = FIELD(m), .in = { FIELD(a) }, .out = { FIELD(out) } },
	.part = part,
	.form = form,
	.describe = describe,
	.setup = setup,
	.exact = exact,
	.reject = reject,
	.cost_s = 40,
};
