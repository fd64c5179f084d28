// SPDX-License-Identifier: Apache-2.0
/*
 * argmax_test - cases of argmax.h
 *
 * The pair cases combine types, sizes, the place of the largest logit, and the rest of its row: equal logits,
 * smaller ones that differ in the last bits, infinities, NaN. The cases ends_* combine sizes at the ends of
 * tiles (ends.h).
 */
#include "conformance/harness.h"
#include "conformance/suite/draw.h"
#include "conformance/suite/ends.h"
#include "conformance/suite/pairs.h"

#include <math.h>
#include <stdio.h>

#define FIELD(f)	offsetof(struct cairn_argmax_args, f)

struct shape {
	int32_t rows, vocab, dtype, bench, far, large;
};

static const int32_t grid_vocabs[] = { 1, 7, 111, 1000, 4099, 32000, 65537, 128256 };
static const int32_t grid_rows[] = { 1, 5, 33 };
static const int32_t dtypes[] = { CAIRN_F32, CAIRN_BF16, CAIRN_F16 };
#define NUM_GRID (ARRAY_SIZE(grid_rows) * ARRAY_SIZE(grid_vocabs) * ARRAY_SIZE(dtypes))

static const struct shape singles[] = {
	{ .rows = 0, .vocab = 100, .dtype = CAIRN_F32 },
	{ .rows = 300, .vocab = 9, .dtype = CAIRN_F16 },
	{ .rows = 65541, .vocab = 3, .dtype = CAIRN_BF16 },
	{ .rows = 2, .vocab = 262144, .dtype = CAIRN_BF16 },
	{ .rows = 1, .vocab = 1048602, .dtype = CAIRN_F32 },
	{ .rows = 99, .vocab = 128256, .dtype = CAIRN_F32 },
	{ .rows = 989, .vocab = 32003, .dtype = CAIRN_BF16 },
	{ .rows = 300, .vocab = 50257, .dtype = CAIRN_F32 },
	{ .rows = 64, .vocab = 128256, .dtype = CAIRN_F32, .bench = 1 },
	{ .rows = 256, .vocab = 128256, .dtype = CAIRN_F32, .bench = 1 },
	{ .rows = 33490, .vocab = 128256, .dtype = CAIRN_BF16, .far = 1 },
	{ .rows = 1, .vocab = (1 << 24) + 41, .dtype = CAIRN_F16, .large = 1 },
};

#define FIRST_PAIR	((int)(NUM_GRID + ARRAY_SIZE(singles)))
#define NUM_PAIRS	54

enum { TIE_BEHIND, TIE_IN_VECTOR, TIE_AT_END, ONE_BIT, ALL_EQUAL, NAN_FIRST, NAN_ELSE, PLUS_INFINITY,
       ONLY_MINUS_INFINITY, NUM_ROWS, NAN_LAST = NUM_ROWS, TINY };
static const char *const row_names[] = { "tie", "tie_near", "tie_at_end", "one_bit", "equal", "nan_first",
					 "nan", "infinity", "minus_infinity" };
enum { FIRST, SECOND, MIDDLE, LAST, NUM_PLACES };
static const char *const place_names[] = { "first", "second", "middle", "last" };
static const int32_t pair_rows[] = { 1, 2, 5 }, pair_vocabs[] = { 2, 9, 127, 1000, 1027, 4101 };
static struct cairn_pairs pairs = { .num_factors = 5, .levels = { 3, 3, 6, NUM_ROWS, NUM_PLACES } };

/*
 * The last cases: vocabularies that end a few tokens past a multiple of 64 or 1024, or before it. They have a
 * row for all combinations of the last two factors of the pairs, and rows that end with a NaN.
 */
#define FIRST_TAIL	(FIRST_PAIR + NUM_PAIRS)
#define NUM_TAILS	30
static const int32_t tail_vocabs[] = { 59, 66, 71, 77, 97, 135, 1035, 2110, 1029, 4100 };

#define FIRST_ENDS	(FIRST_TAIL + NUM_TAILS)
#define NUM_ENDS	60

static struct cairn_pairs ends = { .num_factors = 3, .levels = { CAIRN_FEW_ENDS, CAIRN_NUM_ENDS, 3 } };

/* long rows of all kinds of the pairs, the largest logit at the end or anywhere */
static const struct shape longs[] = {
	{ .rows = NUM_ROWS, .vocab = 131099, .dtype = CAIRN_F32 },
	{ .rows = NUM_ROWS, .vocab = 151943, .dtype = CAIRN_F16 },
};

#define FIRST_LONG	(FIRST_ENDS + NUM_ENDS)
#define NUM_CASES	(FIRST_LONG + (int)ARRAY_SIZE(longs))

static const struct cairn_draw_axis axes[] = {
	CAIRN_DRAW_SIZE(struct shape, rows, 1, 70000, 1),
	CAIRN_DRAW_SIZE(struct shape, vocab, 2, 270000, 1),
	CAIRN_DRAW_ONE_OF(struct shape, dtype, CAIRN_F32, CAIRN_BF16, CAIRN_F16),
};

static int allowed(void *shape, int room)
{
	const struct shape *s = shape;

	return (int64_t)s->rows * s->vocab <= room * 300000;
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
	if (i >= FIRST_LONG)
		return longs[i - FIRST_LONG];
	if (i >= FIRST_ENDS) {
		const int8_t *level = cairn_pairs_row(&ends, i - FIRST_ENDS);

		/* some of the vocabularies have whole blocks of 1024 before their last one */
		return (struct shape){ .rows = cairn_ends[level[0]], .dtype = dtypes[level[2]],
				       .vocab = cairn_ends[level[1]] + (level[1] + 1) % 2 * 2048 };
	}
	if (i >= FIRST_TAIL)
		return (struct shape){ .dtype = dtypes[(i - FIRST_TAIL) % 3], 
				       .rows = (NUM_ROWS + 1) * NUM_PLACES,
				       .vocab = tail_vocabs[(i - FIRST_TAIL) / 3] };
	if (i >= FIRST_PAIR) {
		const int8_t *level = cairn_pairs_row(&pairs, i - FIRST_PAIR);

		return (struct shape){ .dtype = dtypes[level[0]], .rows = pair_rows[level[1]],
				       .vocab = pair_vocabs[level[2]] };
	}

	if (i >= (int)NUM_GRID)
		return singles[i - NUM_GRID];
	s.dtype = dtypes[i % ARRAY_SIZE(dtypes)];
	i /= ARRAY_SIZE(dtypes);
	s.vocab = grid_vocabs[i % ARRAY_SIZE(grid_vocabs)];
	s.rows = grid_rows[i / ARRAY_SIZE(grid_vocabs)];
	s.bench = s.rows == 1 && s.vocab == 128256 && s.dtype == CAIRN_F32;
	return s;
}

static void describe(int i, struct cairn_case *c)
{
	struct shape s = shape_of(i);
	double elements = (double)s.rows * s.vocab;

	snprintf(c->name, sizeof(c->name), "rows%d_vocab%d_%s", s.rows, s.vocab, cairn_dtype_name(s.dtype));
	if (i >= FIRST_LONG) {
		snprintf(c->name, sizeof(c->name), "long_vocab%d_%s", s.vocab, cairn_dtype_name(s.dtype));
	} else if (i >= FIRST_ENDS) {
		snprintf(c->name, sizeof(c->name), "ends_rows%d_vocab%d_%s", s.rows, s.vocab,
			 cairn_dtype_name(s.dtype));
	} else if (i >= FIRST_TAIL) {
		snprintf(c->name, sizeof(c->name), "tail_of_vocab%d_%s", s.vocab, cairn_dtype_name(s.dtype));
	} else if (i >= FIRST_PAIR) {
		const int8_t *level = cairn_pairs_row(&pairs, i - FIRST_PAIR);

		snprintf(c->name, sizeof(c->name), "pair_rows%d_vocab%d_%s_%s_%s", s.rows, s.vocab,
			 cairn_dtype_name(s.dtype), row_names[level[3]], place_names[level[4]]);
	}
	if (i >= FIRST_PAIR) {
		c->bytes = elements * (double)cairn_dtype_bytes(s.dtype);
		c->kinds = CAIRN_KIND_BIT(CAIRN_KIND_NORMAL);
		if (i < FIRST_LONG || i >= NUM_CASES)
			c->kinds |= CAIRN_KIND_BIT(CAIRN_KIND_EXACT);
		return;
	}
	c->device_only = elements > 1100000 && !s.far && !s.large;
	c->far = s.far;
	c->kinds = CAIRN_KIND_BIT(CAIRN_KIND_NORMAL);
	if (elements < 40000 && !s.bench)
		c->kinds = CAIRN_ALL_KINDS;
	c->bench = s.bench;
	c->bytes = elements * (double)cairn_dtype_bytes(s.dtype) + 4.0 * s.rows;
}

/*
 * Fills a row of a pair case: the largest logit, at `at`, and what competes with it. The largest logit is 5.5
 * with NORMAL; with EXACT it has as many bits as dtype holds.
 */
static void fill_row(struct cairn_op *op, const struct shape *s, void *x, int64_t row, int what, int32_t at)
{
	double best = op->kind == CAIRN_KIND_EXACT ? 1 / cairn_dtype_roundoff(s->dtype) - 1 : 5.5;
	double below = op->kind == CAIRN_KIND_EXACT ? best - 1 : 5.5 - 4 * 2 * cairn_dtype_roundoff(s->dtype);
	int64_t first = row * s->vocab;

	for (int32_t j = 0; j < s->vocab; j++) {
		double v = -(double)cairn_op_range(op, 0, 1 << 20) / 1024;

		if (what == ALL_EQUAL || what == ONE_BIT)
			v = what == ALL_EQUAL ? best : below;
		else if (what == NAN_FIRST || what == NAN_ELSE)
			v = what == NAN_ELSE || j < at ? NAN : v;
		else if (what == ONLY_MINUS_INFINITY)
			v = j < at ? NAN : -(double)INFINITY;
		else if ((what == TIE_BEHIND && j > at && cairn_op_range(op, 0, 2) == 0) ||
			 (what == TIE_IN_VECTOR && j > at && j < at + 8) ||
			 (what == TIE_AT_END && j == s->vocab - 1))
			v = best;
		else if (what == PLUS_INFINITY)
			v = j > at && j % 3 == 0 ? (double)INFINITY : j < at ? 6e4 : v;
		else if (what == TINY)
			v = j % 3 ? 0.0 : j % 2 ? -0.0 : -2 * cairn_dtype_tiny(s->dtype);
		if (j == at && what == TINY)
			v = 2 * cairn_dtype_tiny(s->dtype);
		else if (j == at && what != ONLY_MINUS_INFINITY)
			v = what == PLUS_INFINITY ? (double)INFINITY : best;
		if (what == NAN_LAST && j == s->vocab - 1)
			v = NAN;
		cairn_store(x, s->dtype, first + j, v);
	}
}

/* Neighbouring rows get different contents, so that a row that corrupts the next one is detected. */
static void fill_pair(struct cairn_op *op, const struct shape *s, void *x)
{
	const int tail = op->case_index >= FIRST_TAIL;
	const int8_t *level = tail ? NULL : cairn_pairs_row(&pairs, op->case_index - FIRST_PAIR);

	const int is_long = op->case_index >= FIRST_LONG && op->case_index < NUM_CASES;
	/* drawn cases of few rows begin anywhere in the list of rows and places */
	const int turn = op->case_index >= NUM_CASES ? op->case_index % 4000 : 0;

	for (int32_t i = 0; i < s->rows; i++) {
		int what = is_long ? i : tail ? (i + turn) / NUM_PLACES % (NUM_ROWS + 1) :
			   i % 2 ? (level[3] + 5) % NUM_ROWS : level[3];
		int place = is_long ? (op->case_index == FIRST_LONG ? LAST : MIDDLE) :
			    tail ? i + turn : level[4] + i;
		int32_t middle = (int32_t)cairn_op_range(op, 0, s->vocab - 1);
		int32_t places[] = { 0, 1, middle, s->vocab - 1 };

		if (op->case_index >= FIRST_ENDS && !is_long && i == s->rows - 1 && turn % 4 < 2) {
			what = ONE_BIT;		/* the last token of the last row decides */
			place = LAST;
		}
		if (op->case_index >= FIRST_ENDS && !is_long && s->rows > 2 && i == s->rows / 2) {
			what = TINY;		/* the smallest number above 0, the last token, decides */
			place = LAST;
		}
		if (what == NAN_LAST)
			places[3]--;
		fill_row(op, s, x, i, what, places[place % NUM_PLACES]);
	}
}

/*
 * EXACT has thousands of ties, as its values are small integers. EXTREME: rows of equal values, of -INFINITY,
 * of zeros of both signs, of values that differ in the last bit only, with the largest at the end of the row,
 * of subnormals.
 * POISON: NaN everywhere, or everywhere except in a few places.
 */
static void setup(struct cairn_op *op)
{
	struct shape s = shape_of(op->case_index);
	struct cairn_argmax_args *a = op->args;
	int64_t count = (int64_t)s.rows * s.vocab;
	void *x;

	a->rows = s.rows;
	a->vocab = s.vocab;
	a->dtype = s.dtype;
	if (s.far) {	/* rows past 2^32 elements */
		cairn_out_rows(op, FIELD(out), CAIRN_I32, s.rows, 1);
		cairn_in_rows(op, FIELD(logits), s.dtype, s.rows, s.vocab, 3);
		return;
	}
	cairn_out(op, FIELD(out), CAIRN_I32, s.rows);
	cairn_shape(op, FIELD(out), { "row", s.rows });
	x = cairn_in(op, FIELD(logits), s.dtype, count);
	if (op->case_index >= FIRST_PAIR) {
		fill_pair(op, &s, x);
		return;
	}
	if (s.large) {	/* a float cannot hold the index */
		cairn_fill(op, x, s.dtype, count, 3);
		cairn_store(x, s.dtype, (1 << 24) + 1 + 2 * cairn_op_range(op, 0, 19), 1000);
		return;
	}
	cairn_fill(op, x, s.dtype, count, 3);
	/*
	 * The largest logits are equal and far apart; in the longest row they begin past index 2^18, or there
	 * is one past 2^20.
	 */
	for (int32_t j = s.vocab <= 262144 ? 60001 : op->kind == CAIRN_KIND_NORMAL ? s.vocab - 1 : 300001;
	     s.vocab > 200000 && j < s.vocab; j += 1021)
		cairn_store(x, s.dtype, j, 30);
	for (int32_t i = 0; i < s.rows && op->kind >= CAIRN_KIND_EXTREME; i++) {
		int64_t first = (int64_t)i * s.vocab, at = first + cairn_op_range(op, 0, s.vocab - 1);
		int what = (int)cairn_op_range(op, 0, op->kind == CAIRN_KIND_POISON ? 4 : 5);
		double ulp = cairn_dtype_roundoff(s.dtype) * 2;

		if (op->kind == CAIRN_KIND_POISON) {
			cairn_fill_nan(x, s.dtype, first, s.vocab);
			for (int k = 0; k < what; k++, at = first + cairn_op_range(op, 0, s.vocab - 1))
				cairn_store(x, s.dtype, at, k == 0 ? -(double)INFINITY : -3 - k % 2);
			continue;
		}
		for (int32_t j = 0; what < 4 && j < s.vocab; j++)
			cairn_store(x, s.dtype, first + j, what == 0 ? -7 : what == 1 ? -(double)INFINITY :
				    what == 2 ? (j % 3 ? 0.0 : -0.0) : 1);
		for (int32_t j = 0; what == 5 && j < s.vocab; j++)
			cairn_store(x, s.dtype, first + j, 2 * cairn_dtype_tiny(s.dtype) *
				    (double)cairn_op_range(op, -500, j % 9 ? 0 : 500));
		if (what == 2) {	/* the first zero is -0 */
			for (int64_t k = first; k < at; k++)
				cairn_store(x, s.dtype, k, -1);
			cairn_store(x, s.dtype, at, -0.0);
		}
		if (what == 3) {
			cairn_store(x, s.dtype, at, 1 + ulp);
			cairn_store(x, s.dtype, first + s.vocab - 1, 1 + 2 * ulp);
		}
		if (what == 4)
			cairn_store(x, s.dtype, at, INFINITY);
	}
}

static int exact(const void *args, struct cairn_exact *e)
{
	return cairn_argmax_exact(args, e);
}

static const char *reject(void *args, int i, int *want)
{
	struct cairn_argmax_args *a = args;

	*want = -EINVAL;
	switch (i) {
	case 0: a->size = 0; return "old_struct";
	case 1: a->out = NULL; return "null_out";
	case 2: a->logits = NULL; return "null_logits";
	case 3: a->rows = -5; return "negative_rows";
	case 4: a->vocab = 0; return "no_vocab";
	case 5: a->logits = (const char *)a->logits + 4; return "misaligned_logits";
	case 6: a->dtype = CAIRN_I32; *want = -EOPNOTSUPP; return "dtype_i32";
	}
	return NULL;
}

static void pairs_are_covered(struct cairn_test *t)
{
	cairn_pairs_check(t, &pairs, NUM_PAIRS);
	cairn_pairs_check(t, &ends, NUM_ENDS);
}

static const struct cairn_unit units[] = { { "pairs_are_covered", pairs_are_covered } };

const struct cairn_family cairn_argmax_family = {
	.stage = "primitives", .name = "argmax",
	.units = units, .num_units = ARRAY_SIZE(units),
	.op = offsetof(struct cairn_impl, argmax),
	.args_size = sizeof(struct cairn_argmax_args),
	.num_cases = NUM_CASES, .draw = &draws,
	.describe = describe, .setup = setup, .exact = exact, .reject = reject,
	.cost_s = 4,
};
