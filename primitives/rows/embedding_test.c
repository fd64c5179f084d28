// SPDX-License-Identifier: Apache-2.0
/*
 * embedding_test - cases of embedding.h
 *
 * The pair cases combine types, scales and sizes, the cases ends_* sizes at the ends of tiles (ends.h).
 * Some rows that an id selects hold NaNs and infinities. A copied NaN must keep its payload, even if it is
 * signalling.
 */
#include "conformance/harness.h"
#include "conformance/suite/draw.h"
#include "conformance/suite/ends.h"
#include "conformance/suite/pairs.h"

#include <math.h>
#include <stdio.h>

#define FIELD(f)	offsetof(struct cairn_embedding_args, f)

struct shape {
	int32_t rows, dim, vocab, dtype, bench;
	float scale;
	int32_t far;			/* rows of the table begin past 2^31 or 2^32 elements */
	int32_t far_out;		/* rows of out begin past 2^31 elements */
	/* the table holds 3, 5 and 7: a product with the scale is rounded to a tie, and then to dtype */
	int32_t ties;
};

static const struct shape shapes[] = {
	{ .rows = 7, .dim = 64, .vocab = 100, .dtype = CAIRN_BF16 },
	{ .rows = 1, .dim = 8, .vocab = 1, .dtype = CAIRN_BF16 },
	{ .rows = 1, .dim = 8, .vocab = 1, .dtype = CAIRN_F32 },
	{ .rows = 19, .dim = 8, .vocab = 5, .dtype = CAIRN_F16 },
	{ .rows = 19, .dim = 24, .vocab = 7, .dtype = CAIRN_F32 },
	{ .rows = 11, .dim = 8, .vocab = 5, .dtype = CAIRN_F32 },
	{ .rows = 13, .dim = 16, .vocab = 5, .dtype = CAIRN_F16 },
	{ .rows = 15, .dim = 8, .vocab = 5, .dtype = CAIRN_BF16 },
	{ .rows = 30, .dim = 40, .vocab = 9, .dtype = CAIRN_BF16 },
	{ .rows = 1, .dim = 512, .vocab = 1000, .dtype = CAIRN_BF16 },
	{ .rows = 19, .dim = 512, .vocab = 1000, .dtype = CAIRN_F16 },
	{ .rows = 99, .dim = 512, .vocab = 1000, .dtype = CAIRN_F32 },
	{ .rows = 989, .dim = 64, .vocab = 4096, .dtype = CAIRN_BF16 },
	{ .rows = 989, .dim = 64, .vocab = 4096, .dtype = CAIRN_F32 },
	{ .rows = 5, .dim = 1000, .vocab = 300, .dtype = CAIRN_BF16 },
	{ .rows = 5, .dim = 3072, .vocab = 300, .dtype = CAIRN_F16 },
	{ .rows = 5, .dim = 4096, .vocab = 300, .dtype = CAIRN_BF16 },
	{ .rows = 3, .dim = 16384, .vocab = 50, .dtype = CAIRN_BF16 },
	{ .rows = 3, .dim = 16384, .vocab = 50, .dtype = CAIRN_F32 },
	{ .rows = 2, .dim = 24576, .vocab = 20, .dtype = CAIRN_F16 },
	{ .rows = 0, .dim = 64, .vocab = 100, .dtype = CAIRN_BF16 },
	{ .rows = 1, .dim = 4096, .vocab = 8192, .dtype = CAIRN_BF16, .bench = 1 },
	{ .rows = 128, .dim = 4096, .vocab = 8192, .dtype = CAIRN_BF16, .bench = 1 },
	{ .rows = 4096, .dim = 4096, .vocab = 8192, .dtype = CAIRN_BF16, .bench = 1 },
	/* scales: sqrt(2304) = 48; sqrt(2048) and sqrt(3584) in bf16; products that fp32 rounds before
	 * dtype does */
	{ .rows = 7, .dim = 2304, .vocab = 100, .dtype = CAIRN_BF16, .scale = 48 },
	{ .rows = 19, .dim = 2048, .vocab = 300, .dtype = CAIRN_BF16, .scale = 45.25f },
	{ .rows = 5, .dim = 3584, .vocab = 300, .dtype = CAIRN_BF16, .scale = 59.75f },
	{ .rows = 19, .dim = 512, .vocab = 1000, .dtype = CAIRN_F16, .scale = 22.625f },
	{ .rows = 19, .dim = 24, .vocab = 7, .dtype = CAIRN_F32, .scale = 4.8989794855663558f },
	{ .rows = 989, .dim = 64, .vocab = 4096, .dtype = CAIRN_BF16, .scale = -8 },
	{ .rows = 19, .dim = 1000, .vocab = 300, .dtype = CAIRN_BF16, .scale = 31.622776f },
	{ .rows = 19, .dim = 1000, .vocab = 300, .dtype = CAIRN_F16, .scale = 0x1.9p-13f },
	{ .rows = 9, .dim = 24, .vocab = 4, .dtype = CAIRN_F16, .scale = 0x1.001556p0f, .ties = 1 },
	{ .rows = 9, .dim = 24, .vocab = 4, .dtype = CAIRN_BF16, .scale = 0x1.026666p0f, .ties = 1 },
	{ .rows = 4096, .dim = 3584, .vocab = 8192, .dtype = CAIRN_BF16, .bench = 1, .scale = 59.75f },
	{ .rows = 66000, .dim = 8, .vocab = 100, .dtype = CAIRN_BF16 },
	{ .rows = 2000, .dim = 8, .vocab = 70000, .dtype = CAIRN_BF16 },
	/* the scale is subnormal in fp32 */
	{ .rows = 7, .dim = 24, .vocab = 9, .dtype = CAIRN_F32, .scale = 0x1p-130f },
	/* fp32 cannot represent the largest id */
	{ .rows = 5, .dim = 8, .vocab = (1 << 24) + 4, .dtype = CAIRN_BF16, .far = 1 },
	{ .rows = 5, .dim = 16384, .vocab = 270000, .dtype = CAIRN_BF16, .far = 1 },
	{ .rows = (1 << 17) + 4, .dim = 16384, .vocab = 30, .dtype = CAIRN_BF16, .far_out = 1 },
	/* the same with a scale, because a kernel may have separate code for it */
	{ .rows = 5, .dim = 16384, .vocab = 270000, .dtype = CAIRN_BF16, .far = 1, .scale = 45.25f },
	{ .rows = 5, .dim = 8200, .vocab = 270000, .dtype = CAIRN_F32, .far = 1, .scale = 0.5f },
	{ .rows = (1 << 17) + 4, .dim = 16384, .vocab = 30, .dtype = CAIRN_BF16, .far_out = 1,
	  .scale = 2 },
	/* long rows that end within a vector of 64 bytes, and within one of 32 */
	{ .rows = 5, .dim = 4104, .vocab = 30, .dtype = CAIRN_BF16 },
	{ .rows = 3, .dim = 8216, .vocab = 9, .dtype = CAIRN_F16 },
	{ .rows = 3, .dim = 2056, .vocab = 9, .dtype = CAIRN_F32 },
};

#define FIRST_PAIR	((int)ARRAY_SIZE(shapes))
#define NUM_PAIRS	20

/* The last case: enough short rows that several threads work on them at the same time */
static const struct shape many = { .rows = 30000, .dim = 16, .vocab = 300, .dtype = CAIRN_BF16,
				   .scale = 45.25f };

static const int32_t dtypes[] = { CAIRN_BF16, CAIRN_F16, CAIRN_F32 }, pair_rows[] = { 1, 2, 9, 65 };
static const int32_t pair_dims[] = { 8, 24, 72, 136, 520 }, pair_vocabs[] = { 1, 3, 257 };
static const float pair_scales[] = { 0, 45.25f, -0.3f };
static struct cairn_pairs pairs = { .num_factors = 5, .levels = { 3, 3, 4, 5, 3 } };

#define FIRST_ENDS	(FIRST_PAIR + NUM_PAIRS + 1)
#define NUM_ENDS	120

static const int32_t ends_dims[] = { 8, 24, 56, 72, 120, 136, 248, 264, 504, 520, 1016, 1032 };
static struct cairn_pairs ends = { .num_factors = 3, .levels = { CAIRN_NUM_ENDS, 12, 6 } };

#define NUM_CASES	(FIRST_ENDS + NUM_ENDS)

static const struct cairn_draw_axis axes[] = {
	CAIRN_DRAW_SIZE(struct shape, rows, 1, 70000, 1),
	CAIRN_DRAW_SIZE(struct shape, dim, 8, 20000, 8),
	CAIRN_DRAW_SIZE(struct shape, vocab, 1, 140000, 1),
	CAIRN_DRAW_ONE_OF(struct shape, dtype, CAIRN_BF16, CAIRN_F16, CAIRN_F32),
	CAIRN_DRAW_ONE_OF(struct shape, scale, 0, 0, 45.25f, -0.3f, 0x1p-130f),
	CAIRN_DRAW_ONE_OF(struct shape, ties, 0, 0, 0, 1),
};

static int allowed(void *shape, int room)
{
	const struct shape *s = shape;

	return (int64_t)s->rows * s->dim <= room * 300000 && (int64_t)s->vocab * s->dim <= room * 1200000;
}

static const struct cairn_draw draws = {
	.shape_bytes = sizeof(struct shape), .axes = axes, .num_axes = ARRAY_SIZE(axes),
	.allowed = allowed, .many = 8000,
};

static int is_pair(int i)
{
	return i >= FIRST_PAIR && i < FIRST_PAIR + NUM_PAIRS;
}

static struct shape shape_of(int i)
{
	const int8_t *level;
	struct shape s;

	if (i >= NUM_CASES) {
		cairn_draw_shape(&draws, i - NUM_CASES, &s);
		return s;
	}
	if (i >= FIRST_ENDS) {
		level = cairn_pairs_row(&ends, i - FIRST_ENDS);
		return (struct shape){ .rows = cairn_ends[level[0]], .dim = ends_dims[level[1]], .vocab = 33,
				       .dtype = dtypes[level[2] / 2], .scale = level[2] % 2 ? 45.25f : 0 };
	}
	if (!is_pair(i))
		return i < FIRST_PAIR ? shapes[i] : many;
	level = cairn_pairs_row(&pairs, i - FIRST_PAIR);
	return (struct shape){ .dtype = dtypes[level[0]], .scale = pair_scales[level[1]],
			       .rows = pair_rows[level[2]], .dim = pair_dims[level[3]],
			       .vocab = pair_vocabs[level[4]] };
}

static void describe(int i, struct cairn_case *c)
{
	struct shape shape = shape_of(i), *s = &shape;
	double esize = (double)cairn_dtype_bytes(s->dtype);
	const char *what = is_pair(i) ? "pair_" : i >= FIRST_ENDS ? "ends_" :
			   s->far ? "far_" : s->far_out ? "out_" : "";
	int n = snprintf(c->name, sizeof(c->name), "%srows%d_dim%d_vocab%d_%s", what, s->rows, s->dim,
			 s->vocab, cairn_dtype_name(s->dtype));

	if (is_pair(i) && s->scale != 0)
		snprintf(c->name + n, sizeof(c->name) - n, "_scale%s", s->scale < 0 ? "_minus_03" : "45");
	else if (s->scale != 0)
		snprintf(c->name + n, sizeof(c->name) - n, "_scale%s%g", s->scale < 0 ? "_minus" : "",
			 fabs((double)s->scale));
	if (s->scale != 0 && fabsf(s->scale) < 0x1p-126f)
		snprintf(c->name + n, sizeof(c->name) - n, "_scale_subnormal");
	c->far = s->far || s->far_out;
	c->device_only = (double)s->vocab * s->dim > 4e6 && !c->far;
	c->kinds = CAIRN_KIND_BIT(CAIRN_KIND_NORMAL);
	if (!c->device_only && !c->far && s->rows <= 4096 && (i < FIRST_ENDS || i >= NUM_CASES))
		c->kinds |= CAIRN_KIND_BIT(CAIRN_KIND_EXTREME) | CAIRN_KIND_BIT(CAIRN_KIND_POISON);
	c->bench = s->bench;
	c->bytes = 2.0 * s->rows * s->dim * esize + 4.0 * s->rows;
}

/* Ids above 2^16, for rows past 2^31 elements and 2^32 bytes, and id 0, whose row a wrong offset may hit. */
static void fill_far(struct cairn_op *op, const struct shape *s)
{
	const int32_t some[] = { s->vocab - 1, 65537, 0, 131072, s->vocab - 2 };
	int64_t dim = s->dim, esize = (int64_t)cairn_dtype_bytes(s->dtype);
	char *table = cairn_in_far(op, FIELD(table), s->dtype,
				   s->vocab * dim);
	int32_t *ids = cairn_in(op, FIELD(ids), CAIRN_I32, s->rows);

	for (int32_t i = 0; i < s->rows; i++) {
		ids[i] = some[i];
		cairn_touch(op, table, some[i] * dim, dim);
		cairn_fill(op, table + some[i] * dim * esize, s->dtype, dim, 1);
	}
}

/* Puts -INFINITY or a NaN at one place of the table; without a scale the NaN is negative and signalling. */
static void spoil(struct cairn_op *op, const struct shape *s, void *table, int64_t at, int infinite)
{
	uint32_t payload = (uint32_t)cairn_op_range(op, 1, 63);	/* below the quiet bit */

	if (infinite || s->scale != 0)
		cairn_store(table, s->dtype, at, infinite ? -INFINITY : NAN);
	else if (s->dtype == CAIRN_F32)
		((uint32_t *)table)[at] = 0xff800000u | payload;
	else
		((uint16_t *)table)[at] = (uint16_t)((s->dtype == CAIRN_F16 ? 0xfc00u : 0xff80u) | payload);
}

/* POISON: all rows of the table that no id selects are NaN; half of the ids are outside the vocabulary. */
static void setup(struct cairn_op *op)
{
	static const int32_t outside[] = { -1, INT32_MIN, INT32_MAX, -1000000 };
	struct shape shape = shape_of(op->case_index), *s = &shape;
	struct cairn_embedding_args *a = op->args;
	int poison = op->kind == CAIRN_KIND_POISON;
	int64_t count = (int64_t)s->vocab * s->dim;
	int32_t *ids;
	void *table;

	a->rows = s->rows;
	a->dim = s->dim;
	a->vocab = s->vocab;
	a->dtype = s->dtype;
	a->scale = s->scale;
	if (s->far_out)
		cairn_out_rows(op, FIELD(out), s->dtype, s->rows, s->dim);
	else
		cairn_out(op, FIELD(out), s->dtype, (int64_t)s->rows * s->dim);
	cairn_shape(op, FIELD(out), { "row", s->rows }, { "dim", s->dim });
	if (s->far) {
		fill_far(op, s);
		return;
	}
	table = cairn_in(op, FIELD(table), s->dtype, count);
	ids = cairn_in(op, FIELD(ids), CAIRN_I32, s->rows);
	if (poison)
		cairn_fill_nan(table, s->dtype, 0, count);
	else
		cairn_fill(op, table, s->dtype, count, 1);
	for (int64_t k = 0; s->ties && !poison && k < count; k++)
		cairn_store(table, s->dtype, k, (double)(3 + k % 3 * 2) * (k % 2 ? 1 : -1));
	for (int32_t i = 0; i < s->rows; i++) {
		ids[i] = (int32_t)cairn_op_range(op, 0, s->vocab - 1);
		if (i % 7 == 1)
			ids[i] = s->vocab - 1;
		if (i % 2 && poison)
			ids[i] = i % 4 == 1 ? s->vocab : outside[cairn_op_range(op, 0, 3)];
		else if (poison)
			for (int32_t j = 0; j < s->dim; j++)
				cairn_store(table, s->dtype, (int64_t)ids[i] * s->dim + j,
					    ids[i] % 50 + j % 7 - 3);
		if ((is_pair(op->case_index) || op->case_index >= NUM_CASES) && poison && i % 4 == 0)
			spoil(op, s, table, (int64_t)ids[i] * s->dim + cairn_op_range(op, 0, s->dim - 1),
			      (i / 4 + op->case_index) % 2);
	}
}

static int exact(const void *args, struct cairn_exact *e)
{
	return cairn_embedding_exact(args, e);
}

static int is_bad_copy(const void *arg, int64_t i, char *why, size_t len)
{
	const struct cairn_embedding_args *a = arg;
	size_t esize = cairn_dtype_bytes(a->dtype);
	int32_t id = a->ids[i / a->dim];
	const char *got = (const char *)a->out + i * (int64_t)esize;
	const char *want = (const char *)a->table + ((int64_t)id * a->dim + i % a->dim) * (int64_t)esize;

	if (id < 0 || id >= a->vocab || !memcmp(got, want, esize))
		return 0;
	if (why)
		snprintf(why, len, "not the bits of the table");
	return 1;
}

/* exact() has judged the values. Without a scale, a NaN must also keep its bits. */
static int judge(const struct cairn_op *op, const void *got, char *why, size_t len)
{
	const struct cairn_embedding_args *a = got;

	if (a->scale != 0 || op->kind != CAIRN_KIND_POISON)
		return 0;
	return cairn_judge_each(op, FIELD(out), is_bad_copy, a, why, len);
}

static const char *reject(void *args, int i, int *want)
{
	struct cairn_embedding_args *a = args;

	*want = -EINVAL;
	switch (i) {
	case 0: a->size -= 4; return "old_struct";
	case 1: a->out = NULL; return "null_out";
	case 2: a->table = NULL; return "null_table";
	case 3: a->ids = NULL; return "null_ids";
	case 4: a->rows = -1; return "negative_rows";
	case 5: a->vocab = 0; return "no_vocab";
	case 6: a->table = (const char *)a->table + 4; return "misaligned_table";
	case 7: a->scale = INFINITY; return "scale_infinite";
	case 8: a->scale = NAN; return "scale_nan";
	}
	*want = -EOPNOTSUPP;
	switch (i) {
	case 9: a->dim = 12; return "dim_12";
	case 10: a->dtype = CAIRN_I64; return "dtype_i64";
	}
	return NULL;
}

static void pairs_are_covered(struct cairn_test *t)
{
	cairn_pairs_check(t, &pairs, NUM_PAIRS);
	cairn_pairs_check(t, &ends, NUM_ENDS);
}

static const struct cairn_unit units[] = { { "pairs_are_covered", pairs_are_covered } };

const struct cairn_family cairn_embedding_family = {
	.stage = "primitives", .name = "embedding",
	.op = offsetof(struct cairn_impl, embedding),
	.args_size = sizeof(struct cairn_embedding_args),
	.num_cases = NUM_CASES, .draw = &draws,
	.units = units, .num_units = ARRAY_SIZE(units),
	.describe = describe, .setup = setup, .exact = exact, .judge = judge, .reject = reject,
};
