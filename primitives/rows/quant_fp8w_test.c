// SPDX-License-Identifier: Apache-2.0
/*
 * quant_fp8w_test - cases of quant_fp8w.h, and a test of the conversions in fp8.h
 *
 * EXTREME: rows and blocks of zeros of both signs; of values so small that the scale is subnormal or 0; with
 * one value far above all others, which become subnormal or 0; with ties between neighbouring codes; near
 * the largest of dtype. POISON: in pair cases, rows that are not finite among finite ones. EXACT has integers
 * of as many bits as dtype holds. The pair cases combine types, kinds of scales and sizes around the ends of
 * blocks; the cases ends_* combine sizes at the ends of tiles (ends.h).
 */
#include "conformance/harness.h"
#include "conformance/suite/draw.h"
#include "conformance/suite/ends.h"
#include "conformance/suite/pairs.h"

#include <math.h>
#include <stdio.h>

#include "primitives/base/fp8.h"

#define FIELD(f)	offsetof(struct cairn_quant_fp8w_args, f)

static const struct shape {
	int32_t n, k, bench;
} shapes[] = {
	{ 1, 16, 0 }, { 0, 64, 0 }, { 3, 48, 0 }, { 7, 128, 0 }, { 5, 144, 0 }, { 130, 272, 0 },
	{ 128, 128, 0 }, { 257, 1040, 0 }, { 33, 4096, 0 }, { 2, 7168, 0 }, { 2, 14336, 0 }, { 2, 16400, 0 },
	{ 4096, 4096, 1 },
};
static const struct shape far_shape = { (1 << 18) + 4, 16384, 0 }, tall_shape = { 65665, 16, 0 },
	odd_shape = { 397, 1168, 0 };
/* bench rows with scales of pieces, and of rows: what the products of Llama-3-8B and DeepSeek-V3 read */
static const struct shape activations[] = { { 1024, 4096, 1 }, { 1024, 14336, 1 }, { 4096, 7168, 1 } };
static const int32_t dtypes[] = { CAIRN_BF16, CAIRN_F16, CAIRN_F32 };
#define FIRST_PAIR	((int)(ARRAY_SIZE(shapes) * ARRAY_SIZE(dtypes) * 2))
#define NUM_PAIRS	26
#define FAR_CASE	(FIRST_PAIR + NUM_PAIRS)	/* with scales of rows */
#define TALL_CASE	(FAR_CASE + 1)			/* with scales of blocks */
#define ODD_CASE	(TALL_CASE + 1)			/* likewise; no side is a multiple of 128 */
#define FIRST_PIECES	(ODD_CASE + 1)			/* all shapes with scales of pieces */
#define FIRST_ROWS	(FIRST_PIECES + (int)(ARRAY_SIZE(shapes) * ARRAY_SIZE(dtypes)))
#define FIRST_ENDS	(FIRST_ROWS + 2 * (int)ARRAY_SIZE(activations))
#define NUM_ENDS	90
#define NUM_CASES	(FIRST_ENDS + NUM_ENDS)

static const int32_t pair_n[] = { 1, 3, 127, 129, 257 }, pair_k[] = { 16, 112, 128, 144, 272 };
static struct cairn_pairs pairs = { .num_factors = 4, .levels = { 3, 2, 5, 5 } };

/* ends of tiles (ends.h) */
static const int32_t ends_k[] = { 16, 48, 112, 128, 144, 240, 256, 272 };
static struct cairn_pairs ends = { .num_factors = 3, .levels = { CAIRN_NUM_ENDS, 8, 9 } };

/* a drawn case */
struct row {
	struct shape s;
	int32_t dtype, scale_kind;
};

static const struct cairn_draw_axis axes[] = {
	CAIRN_DRAW_SIZE(struct row, s.n, 1, 70000, 1),
	CAIRN_DRAW_SIZE(struct row, s.k, 16, 30000, 16),
	CAIRN_DRAW_ONE_OF(struct row, dtype, CAIRN_BF16, CAIRN_F16, CAIRN_F32),
	CAIRN_DRAW_ONE_OF(struct row, scale_kind, 0, 1, CAIRN_FP8_SCALE_PIECES),
};

static int allowed(void *shape, int room)
{
	const struct row *r = shape;

	return (int64_t)r->s.n * r->s.k <= room * 200000;
}

static const struct cairn_draw draws = {
	.shape_bytes = sizeof(struct row), .axes = axes, .num_axes = ARRAY_SIZE(axes),
	.allowed = allowed, .many = 8000,
};

static struct shape shape_of(int i, int32_t *dtype, int32_t *scale_kind)
{
	const int8_t *level;
	struct row r;

	if (i >= NUM_CASES) {
		cairn_draw_shape(&draws, i - NUM_CASES, &r);
		*dtype = r.dtype;
		*scale_kind = r.scale_kind;
		return r.s;
	}
	if (i >= FIRST_ENDS) {
		level = cairn_pairs_row(&ends, i - FIRST_ENDS);
		*dtype = dtypes[level[2] / 3];
		*scale_kind = level[2] % 3;
		return (struct shape){ .n = cairn_ends[level[0]], .k = ends_k[level[1]] };
	}
	if (i >= FIRST_PIECES) {
		*dtype = i < FIRST_ROWS ? dtypes[(i - FIRST_PIECES) % 3] : CAIRN_BF16;
		*scale_kind = i < FIRST_ROWS || i % 2 ? CAIRN_FP8_SCALE_PIECES : CAIRN_FP8_SCALE_ROWS;
		return i < FIRST_ROWS ? shapes[(i - FIRST_PIECES) / 3] : activations[(i - FIRST_ROWS) / 2];
	}
	if (i >= FAR_CASE) {
		*dtype = CAIRN_BF16;
		*scale_kind = i != FAR_CASE;
		return i == ODD_CASE ? odd_shape : i == TALL_CASE ? tall_shape : far_shape;
	}
	if (i < FIRST_PAIR) {
		*dtype = dtypes[i / 2 % 3];
		*scale_kind = i % 2;
		return shapes[i / 6];
	}
	level = cairn_pairs_row(&pairs, i - FIRST_PAIR);
	*dtype = dtypes[level[0]];
	*scale_kind = level[1];
	return (struct shape){ .n = pair_n[level[2]], .k = pair_k[level[3]] };
}

static void describe(int i, struct cairn_case *c)
{
	static const char *const kinds[] = { "rows", "blocks", "pieces" };
	int32_t dtype, scale_kind;
	struct shape shape = shape_of(i, &dtype, &scale_kind), *s = &shape;

	snprintf(c->name, sizeof(c->name), "%sn%d_k%d_%s_%s",
		 i >= FIRST_ENDS ? "ends_" : i < FIRST_PAIR || i >= FAR_CASE ? "" : "pair_", s->n, s->k,
		 cairn_dtype_name(dtype), kinds[scale_kind]);
	c->far = i == FAR_CASE;
	c->kinds = s->bench || (i >= FAR_CASE && i <= ODD_CASE) ? CAIRN_KIND_BIT(CAIRN_KIND_NORMAL) :
		   CAIRN_ALL_KINDS;
	if (i >= FIRST_ENDS && i < NUM_CASES)
		c->kinds = CAIRN_KIND_BIT(CAIRN_KIND_NORMAL);
	c->bench = s->bench && dtype == CAIRN_BF16;
	c->device_only = s->bench;
	c->bytes = (double)s->n * s->k * (1.0 + (double)cairn_dtype_bytes(dtype));
}

static void setup(struct cairn_op *op)
{
	struct cairn_quant_fp8w_args *a = op->args;
	struct shape shape = shape_of(op->case_index, &a->dtype, &a->scale_kind), *s = &shape;
	int64_t count = (int64_t)s->n * s->k;
	void *w;

	a->n = s->n;
	a->k = s->k;
	if (op->case_index == FAR_CASE) {	/* rows past 2^32 elements of w and b */
		cairn_out_rows(op, FIELD(b), CAIRN_U8, s->n, s->k);
		cairn_out_rows(op, FIELD(scale), CAIRN_F32, s->n, 1);
		cairn_in_rows(op, FIELD(w), a->dtype, s->n, s->k, 0.05);
		return;
	}
	cairn_out(op, FIELD(b), CAIRN_U8, count);
	cairn_out(op, FIELD(scale), CAIRN_F32,
		  a->scale_kind == CAIRN_FP8_SCALE_PIECES ? (int64_t)((s->k + 127) / 128) * s->n :
		  a->scale_kind ? (int64_t)((s->n + 127) / 128) * ((s->k + 127) / 128) : s->n);
	cairn_shape(op, FIELD(b), { "row", s->n }, { "column", s->k });
	if (a->scale_kind == CAIRN_FP8_SCALE_PIECES)
		cairn_shape(op, FIELD(scale), { "piece", (s->k + 127) / 128 }, { "row", s->n });
	else if (a->scale_kind)
		cairn_shape(op, FIELD(scale),
			    { "block row", (s->n + 127) / 128 }, { "block", (s->k + 127) / 128 });
	else
		cairn_shape(op, FIELD(scale), { "row", s->n });
	w = cairn_in(op, FIELD(w), a->dtype, count);
	cairn_fill_exact(op, w, a->dtype, count, 0.05, 1 << 24);
	/* the largest elements lie in the last row, or in the last column */
	for (int64_t e = 0; op->case_index >= FIRST_ENDS && e < count; e++)
		if (op->case_index % 2 ? e / s->k == s->n - 1 : e % s->k == s->k - 1)
			cairn_store(w, a->dtype, e, 8 * cairn_load(w, a->dtype, e));
	for (int32_t i = 1; i < s->n && op->kind == CAIRN_KIND_POISON && op->case_index >= FIRST_PAIR;
	     i += 150)
		cairn_store(w, a->dtype, (int64_t)i * s->k + cairn_op_range(op, 0, s->k - 1),
			    i % 4 == 1 ? NAN : INFINITY);
	for (int32_t i = 0; i < s->n && op->kind == CAIRN_KIND_EXTREME; i++) {
		int what = (int)cairn_op_range(op, 0, 5);

		for (int32_t j = 0; j < s->k; j++) {
			int64_t e = (int64_t)i * s->k + j;
			double v = cairn_load(w, a->dtype, e), sign = v < 0 ? -1 : 1;

			if (what == 0)		/* zeros */
				v = sign * 0.0;
			else if (what == 1)	/* tiny values */
				v = sign * (double)(j % 5) *
				    (a->dtype == CAIRN_F16 ? 0x1p-24 :
				     a->dtype == CAIRN_F32 && op->case_index % 2 ? 0x1p-149 : 0x1p-133);
			else if (what == 2)	/* one large value; ties and values below e4m3's range */
				v = j == s->k / 2 ? 448 : sign * 0x1p-10 * (double)(j % 37);
			else if (what == 3)
				v = j == 0 ? -448 : sign * (240 + 4 * (j % 64));
			else if (what == 4)	/* values near the largest */
				v = sign * (a->dtype == CAIRN_F16 ? 1000 : 0x1p122) * (double)(j % 61 + 3);
			cairn_store(w, a->dtype, e, v);
		}
	}
}

static int exact(const void *args, struct cairn_exact *e)
{
	return cairn_quant_fp8w_exact(args, e);
}

static const char *reject(void *args, int i, int *want)
{
	struct cairn_quant_fp8w_args *a = args;

	*want = i < 9 ? -EINVAL : -EOPNOTSUPP;
	switch (i) {
	case 0: a->size = 8; return "old_struct";
	case 1: a->b = NULL; return "null_b";
	case 2: a->scale = NULL; return "null_scale";
	case 3: a->w = NULL; return "null_w";
	case 4: a->n = -1; return "negative_n";
	case 5: a->k = 0; return "no_k";
	case 6: a->scale_kind = CAIRN_FP8_SCALE_TENSOR; return "scale_kind_3";
	case 7: a->b += 8; return "misaligned_b";
	case 8: a->w = (const char *)a->w + 8; return "misaligned_w";
	case 9: a->k = 8; return "k_8";
	case 10: a->dtype = CAIRN_I32; return "dtype_i32";
	}
	return NULL;
}

/* Every code converts to float and back to itself; a value between two codes rounds to nearest even. */
static void codes(struct cairn_test *t)
{
	for (int v = 0; v < 256; v++) {
		float x = cairn_e4m3_to_float((uint8_t)v);

		if ((v & 0x7f) == 0x7f)
			EXPECT(t, isnan(x) && cairn_float_to_e4m3(x) == 0x7f);
		else
			EXPECT(t, cairn_float_to_e4m3(x) == v);
	}
	for (int v = 0; v < 0x7e; v++) {
		float lo = cairn_e4m3_to_float((uint8_t)v), hi = cairn_e4m3_to_float((uint8_t)(v + 1));
		float middle = lo + (hi - lo) / 2;

		EXPECT(t, cairn_float_to_e4m3(middle) == v + (v & 1));
		EXPECT(t, cairn_float_to_e4m3(nextafterf(middle, 0)) == v);
		EXPECT(t, cairn_float_to_e4m3(nextafterf(middle, 500)) == v + 1);
		EXPECT(t, cairn_float_to_e4m3(-nextafterf(middle, 500)) == v + 1 + 0x80);
	}
	EXPECT(t, cairn_float_to_e4m3(1e30f) == 0x7e && cairn_float_to_e4m3(-INFINITY) == 0xfe);
	EXPECT(t, cairn_e4m3_to_float(0x7e) == 448 && cairn_e4m3_to_float(0x01) == 0x1p-9f &&
	       cairn_e4m3_to_float(0x38) == 1 && cairn_e4m3_to_float(0x08) == 0x1p-6f);
}

static void pairs_are_covered(struct cairn_test *t)
{
	cairn_pairs_check(t, &pairs, NUM_PAIRS);
	cairn_pairs_check(t, &ends, NUM_ENDS);
}

static const struct cairn_unit units[] = {
	{ "codes", codes },
	{ "pairs_are_covered", pairs_are_covered },
};

const struct cairn_family cairn_quant_fp8w_family = {
	.stage = "primitives", .name = "quant_fp8w",
	.units = units, .num_units = ARRAY_SIZE(units),
	.op = offsetof(struct cairn_impl, quant_fp8w),
	.args_size = sizeof(struct cairn_quant_fp8w_args),
	.num_cases = NUM_CASES, .draw = &draws,
	.exact_is_equal = 1,
	.describe = describe, .setup = setup, .exact = exact, .reject = reject,
	.cost_s = 9,
};
