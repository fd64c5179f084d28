// SPDX-License-Identifier: Apache-2.0
/*
 * logprobs_test - cases of logprobs.h
 *
 * Distributions of logits, in the order of enum dist: normal, of standard deviation 1 and 5; a dozen values,
 * which gives ties; all equal; one in a thousand far above the rest; rising and falling with the index, so
 * that the likeliest tokens are adjacent; all but a few -INFINITY; one in three NaN; the largest and smallest
 * magnitudes of fp32; zeros of both signs; only -INFINITY and NaN. EXACT, with its small integers, has ties.
 * In later cases the k-th largest logit of a row occurs several times (dist KTH), and the last ones have, for
 * every k, logits that differ in their last bits (NEAR).
 * The pair cases combine distributions, k, sizes and wanted; in some, every second row is NaN. The cases
 * ends_* combine sizes at the ends of tiles (ends.h); the cases after them have NaN in long rows.
 */
#include "conformance/harness.h"
#include "conformance/suite/draw.h"
#include "conformance/suite/ends.h"
#include "conformance/suite/pairs.h"

#include <stdio.h>

enum dist { NORMAL1, NORMAL5, TIES, EQUAL, PEAK, RISING, FALLING, FEW, HOLES, HUGE_RANGE, ZEROS, NOTHING,
	    NUM_DISTS, KTH = NUM_DISTS, NEAR };
static const char *const dist_names[] = { "normal1", "normal5", "ties", "equal", "peak", "rising", "falling",
					  "few", "holes", "huge", "zeros", "nothing", "kth", "near" };

#define FAR	2

struct shape {
	int32_t rows, vocab, k, dist, wanted, bench;
};

static const int32_t grid_vocabs[] = { 7, 111, 4099, 32000 }, grid_ks[] = { 0, 1, 5, 20 };
#define NUM_GRID	(NUM_DISTS * 4)

static const struct shape singles[] = {
	{ .rows = 0, .vocab = 100, .k = 5, .dist = NORMAL1 },
	{ .rows = 3, .vocab = 1, .k = 20, .dist = NORMAL1 },
	{ .rows = 2, .vocab = 1, .k = 1, .dist = NOTHING },
	{ .rows = 4, .vocab = 19, .k = 20, .dist = NORMAL1, .wanted = 1 },
	{ .rows = 4, .vocab = 20, .k = 20, .dist = TIES },
	{ .rows = 4, .vocab = 21, .k = 20, .dist = EQUAL },
	{ .rows = 40, .vocab = 1000, .k = 32, .dist = NORMAL1, .wanted = 1 },
	{ .rows = 3, .vocab = 128256, .k = 32, .dist = TIES },
	{ .rows = 9, .vocab = 2049, .k = 20, .dist = TIES, .wanted = 1 },
	{ .rows = 5, .vocab = 16383, .k = 20, .dist = FALLING },
	{ .rows = 5, .vocab = 16385, .k = 20, .dist = RISING },
	{ .rows = 3, .vocab = 50257, .k = 20, .dist = NORMAL5, .wanted = 1 },
	{ .rows = 2, .vocab = 128256, .k = 20, .dist = NORMAL1 },
	{ .rows = 2, .vocab = 128256, .k = 20, .dist = RISING },
	{ .rows = 2, .vocab = 128256, .k = 1, .dist = TIES },
	{ .rows = 2, .vocab = 128256, .k = 7, .dist = FEW },
	{ .rows = 1, .vocab = 151936, .k = 20, .dist = NORMAL1 },
	{ .rows = 1, .vocab = 262144, .k = 20, .dist = NORMAL1 },
	{ .rows = 1, .vocab = 262147, .k = 20, .dist = TIES },
	{ .rows = 1, .vocab = 1 << 20, .k = 20, .dist = NORMAL1 },
	{ .rows = 1, .vocab = (1 << 20) - 1, .k = 20, .dist = RISING },
	{ .rows = 99, .vocab = 128256, .k = 20, .dist = TIES },
	{ .rows = 300, .vocab = 32003, .k = 20, .dist = NORMAL1, .wanted = 1 },
	{ .rows = 600, .vocab = 50257, .k = 5, .dist = NORMAL5, .wanted = 1 },
	{ .rows = 1, .vocab = 128256, .k = 20, .dist = NORMAL1, .bench = 1 },
	{ .rows = 1, .vocab = 128256, .dist = NORMAL1, .bench = 1 },
	{ .rows = 64, .vocab = 128256, .dist = NORMAL1, .bench = 1 },
	{ .rows = 64, .vocab = 128256, .k = 5, .dist = NORMAL1, .bench = 1 },
	{ .rows = 64, .vocab = 128256, .k = 20, .dist = NORMAL1, .bench = 1 },
	{ .rows = 256, .vocab = 128256, .k = 20, .dist = NORMAL1, .bench = 1 },
	{ .rows = 64, .vocab = 32000, .k = 20, .dist = NORMAL1, .bench = 1 },
	/* the last rows begin past 2^31 elements; three rows are wanted */
	{ .rows = 65600, .vocab = 32768, .k = 3, .dist = NORMAL1, .wanted = FAR },
};

#define FIRST_PAIR	((int)(NUM_GRID + ARRAY_SIZE(singles)))
#define NUM_PAIRS	40

static const struct shape last[] = {
	{ .rows = 9, .vocab = 2047, .k = 1, .dist = KTH },
	{ .rows = 9, .vocab = 4099, .k = 5, .dist = KTH },
	{ .rows = 6, .vocab = 32000, .k = 20, .dist = KTH },
	{ .rows = 4, .vocab = 128256, .k = 5, .dist = KTH },
	{ .rows = 3, .vocab = 131071, .k = 32, .dist = KTH },
	/* the last rows begin past 2^32 elements */
	{ .rows = 32772, .vocab = 131072, .k = 3, .dist = NORMAL1, .wanted = FAR },
	/* enough short rows that several threads work on them at the same time */
	{ .rows = 1500, .vocab = 111, .k = 5, .dist = NORMAL1 },
};

static const int32_t pair_dists[] = { NORMAL5, TIES, EQUAL, FALLING, HOLES, HUGE_RANGE, ZEROS, NOTHING };
static const int32_t pair_ks[] = { 0, 1, 5, 20, 32 }, pair_vocabs[] = { 2, 19, 33, 257, 1030 };
static const int32_t pair_rows[] = { 1, 2, 9 };
static struct cairn_pairs pairs = { .num_factors = 6, .levels = { 8, 5, 5, 3, 2, 2 } };

static int is_pair(int i)
{
	return i >= FIRST_PAIR && i < FIRST_PAIR + NUM_PAIRS;
}

static int has_nan_rows(int i)
{
	return is_pair(i) && cairn_pairs_row(&pairs, i - FIRST_PAIR)[5];
}

#define NUM_LAST	((int)ARRAY_SIZE(last))
#define NUM_NEAR	31

#define FIRST_ENDS	(FIRST_PAIR + NUM_PAIRS + NUM_LAST + NUM_NEAR)
#define NUM_ENDS	60

static struct cairn_pairs ends = { .num_factors = 5, .levels = { CAIRN_FEW_ENDS, CAIRN_NUM_ENDS, 5, 4, 2 } };

/* NaN in long rows: some of the rows wanted, and k at its limits */
static const struct shape holes[] = {
	{ .rows = 4, .vocab = 65553, .dist = HOLES, .wanted = 1 },
	{ .rows = 4, .vocab = 131075, .k = 1, .dist = HOLES },
	{ .rows = 2, .vocab = 140003, .k = 32, .dist = HOLES, .wanted = 1 },
};

#define FIRST_HOLES	(FIRST_ENDS + NUM_ENDS)
#define NUM_CASES	(FIRST_HOLES + (int)ARRAY_SIZE(holes))

static const struct cairn_draw_axis axes[] = {
	CAIRN_DRAW_SIZE(struct shape, rows, 1, 70000, 1),
	CAIRN_DRAW_SIZE(struct shape, vocab, 1, 270000, 1),
	CAIRN_DRAW_ONE_OF(struct shape, k, 0, 1, 2, 3, 5, 7, 8, 9, 15, 16, 17, 20, 31, 32),
	CAIRN_DRAW_ONE_OF(struct shape, dist, NORMAL1, NORMAL5, TIES, EQUAL, PEAK, RISING, FALLING, FEW,
			  HOLES, HUGE_RANGE, ZEROS, NOTHING, KTH, KTH),
	CAIRN_DRAW_ONE_OF(struct shape, wanted, 0, 1),
};

static int allowed(void *shape, int room)
{
	const struct shape *s = shape;

	return (int64_t)s->rows * s->vocab <= room * 270000 && (s->dist != KTH || (s->k && s->vocab > 100));
}

static const struct cairn_draw draws = {
	.shape_bytes = sizeof(struct shape), .axes = axes, .num_axes = ARRAY_SIZE(axes),
	.allowed = allowed, .many = 4300,
};

static struct shape shape_of(int i)
{
	struct shape s = { .rows = 5, .dist = i % NUM_DISTS };

	if (i >= NUM_CASES) {
		cairn_draw_shape(&draws, i - NUM_CASES, &s);
		return s;
	}
	if (i >= FIRST_HOLES)
		return holes[i - FIRST_HOLES];
	if (i >= FIRST_ENDS) {
		const int8_t *level = cairn_pairs_row(&ends, i - FIRST_ENDS);

		return (struct shape){ .rows = cairn_ends[level[0]], .vocab = cairn_ends[level[1]],
				       .k = pair_ks[level[2]], .dist = pair_dists[level[3]],
				       .wanted = level[4] };
	}
	if (i >= FIRST_PAIR + NUM_PAIRS + NUM_LAST) {
		s.k = 1 + i - FIRST_PAIR - NUM_PAIRS - NUM_LAST;
		return (struct shape){ .rows = 3, .vocab = 40 + 9 * s.k, .k = s.k, .dist = NEAR };
	}
	if (i >= FIRST_PAIR + NUM_PAIRS)
		return last[i - FIRST_PAIR - NUM_PAIRS];
	if (is_pair(i)) {
		const int8_t *level = cairn_pairs_row(&pairs, i - FIRST_PAIR);

		return (struct shape){ .dist = pair_dists[level[0]], .k = pair_ks[level[1]],
				       .vocab = pair_vocabs[level[2]], .rows = pair_rows[level[3]],
				       .wanted = level[4] };
	}

	if (i >= (int)NUM_GRID)
		return singles[i - NUM_GRID];
	s.vocab = grid_vocabs[i / NUM_DISTS];
	s.k = grid_ks[(i + i / NUM_DISTS) % 4];
	s.wanted = i % 3 == 0;
	return s;
}

static void describe(int i, struct cairn_case *c)
{
	struct shape s = shape_of(i);

	snprintf(c->name, sizeof(c->name), "%srows%d_vocab%d_k%d_%s%s%s%s",
		 is_pair(i) ? "pair_" : i >= FIRST_ENDS && i < FIRST_HOLES ? "ends_" : "",
		 s.rows, s.vocab, s.k, dist_names[s.dist], s.wanted ? "_wanted" : "", s.bench ? "_bench" : "",
		 has_nan_rows(i) ? "_nan_rows" : "");
	c->far = s.wanted == FAR;
	c->device_only = (double)s.rows * s.vocab > 1.2e6 && !c->far;
	c->kinds = CAIRN_KIND_BIT(CAIRN_KIND_NORMAL);
	if ((double)s.rows * s.vocab < 50000 && s.dist != KTH && (i < FIRST_ENDS || i >= NUM_CASES))
		c->kinds |= CAIRN_KIND_BIT(CAIRN_KIND_EXACT) | CAIRN_KIND_BIT(CAIRN_KIND_POISON);
	c->bench = s.bench;
	c->bytes = 4.0 * (c->far ? 3 : s.rows) * s.vocab + s.rows * (8.0 * s.k + 8);
}

static float logit(struct cairn_op *op, int dist, float place, float normal)
{
	switch (dist) {
	case NORMAL5:
		return 5 * normal;
	case TIES:
		return roundf(2 * normal) / 2;
	case EQUAL:
		return -2.5f;
	case PEAK:
		return normal + (cairn_op_rand(op) % 1000 ? 0.0f : 30.0f);
	case RISING:
		return 20 * place + 0.001f * normal;
	case FALLING:
		return -20 * place;
	case FEW:
		return cairn_op_rand(op) % 500 ? -INFINITY : normal;
	case HOLES:
		return cairn_op_rand(op) % 3 ? normal : NAN;
	case HUGE_RANGE:
		return cairn_op_rand(op) % 3 ? 1e37f * normal : cairn_op_rand(op) % 2 ? 1e-40f * normal :
			INFINITY;
	case ZEROS:
		return cairn_op_rand(op) % 2 ? 0.0f : -0.0f;
	case NEAR:
		return 4 + 0x1p-21f * (float)cairn_op_range(op, 0, 400);
	case NOTHING:
		return cairn_op_rand(op) % 2 ? -INFINITY : NAN;
	}
	return normal;
}

#define FIELD(f) offsetof(struct cairn_logprobs_args, f)

static void fill_far(struct cairn_op *op, const struct shape *s)
{
	const int32_t some[] = { 1, s->rows / 2 + 1, s->rows - 1 };
	float *x = cairn_in_far(op, FIELD(logits), CAIRN_F32, (int64_t)s->rows * s->vocab);
	int32_t *tokens = cairn_in(op, FIELD(tokens), CAIRN_I32, s->rows);
	int32_t *wanted = cairn_in(op, FIELD(wanted), CAIRN_I32, s->rows);

	memset(tokens, 0, (size_t)s->rows * sizeof(*tokens));
	memset(wanted, 0, (size_t)s->rows * sizeof(*wanted));
	for (int k = 0; k < 3; k++) {
		int64_t at = (int64_t)some[k] * s->vocab;

		wanted[some[k]] = 1;
		tokens[some[k]] = (int32_t)cairn_op_range(op, 0, s->vocab - 1);
		cairn_touch(op, x, at, s->vocab);
		cairn_fill(op, x + at, CAIRN_F32, s->vocab, 1);
	}
}

/*
 * Puts the k-th largest logit of a row into several places, the last one `apart` after the first, and k - 1
 * larger ones between them or, in every second row, after them: these push equal ones out of a full list.
 */
static void fill_kth(struct cairn_op *op, float *x, int32_t vocab, int32_t k, int32_t row)
{
	static const int32_t aparts[] = { 1, 31, 257, 1024, 4096, 16384, 65536, 99999, 1 << 30 };
	int32_t apart = aparts[(row + vocab) % (int32_t)ARRAY_SIZE(aparts)], first, at;

	if (apart > vocab - 1)		/* the ends of the row */
		apart = vocab - 1;
	first = vocab - 1 - apart < vocab / 2 ? vocab - 1 - apart : vocab / 2;
	first = (int32_t)cairn_op_range(op, 0, first);
	for (int32_t j = 0; j < vocab; j++)
		x[j] = -1 - fabsf(x[j]);
	x[first] = x[first + apart] = 2;
	for (int32_t j = first + 1024; j < first + apart; j += 1 + vocab / (k + 1))
		x[j] = 2;
	for (int32_t n = 1; n < k; n++) {
		do
			at = (int32_t)cairn_op_range(op, row % 2 ? first + 1 : 0, vocab - 1);
		while (x[at] > 0);
		x[at] = 2 + (float)n / 4;
	}
}

static void setup(struct cairn_op *op)
{
	struct shape s = shape_of(op->case_index);
	struct cairn_logprobs_args *a = op->args;
	const int32_t outside[] = { -1, s.vocab, INT32_MIN, INT32_MAX };	/* invalid tokens */
	int64_t count = (int64_t)s.rows * s.vocab;
	const int turn = op->case_index >= NUM_CASES ? op->case_index : 0;
	int32_t *tokens, *wanted = NULL;
	float *x;

	a->rows = s.rows;
	a->vocab = s.vocab;
	a->k = s.k;
	cairn_out(op, FIELD(chosen), CAIRN_F32, s.rows);
	cairn_shape(op, FIELD(chosen), { "row", s.rows });
	/* without k, the arrays are NULL or empty */
	if (s.k || op->case_index % 2) {
		cairn_out(op, FIELD(top_ids), CAIRN_I32, (int64_t)s.rows * s.k);
		cairn_out(op, FIELD(top), CAIRN_F32, (int64_t)s.rows * s.k);
		cairn_shape(op, FIELD(top_ids), { "row", s.rows }, { "rank", s.k });
		cairn_shape(op, FIELD(top), { "row", s.rows }, { "rank", s.k });
	}
	if (s.wanted == FAR) {
		fill_far(op, &s);
		return;
	}
	x = cairn_in(op, FIELD(logits), CAIRN_F32, count);
	tokens = cairn_in(op, FIELD(tokens), CAIRN_I32, s.rows);
	if (s.wanted)
		wanted = cairn_in(op, FIELD(wanted), CAIRN_I32, s.rows);
	cairn_fill(op, x, CAIRN_F32, count, 1);
	for (int32_t i = 0; s.dist == KTH && i < s.rows; i++)
		fill_kth(op, x + (int64_t)i * s.vocab, s.vocab, s.k, i);
	for (int64_t i = 0; (s.dist != NORMAL1 || op->kind == CAIRN_KIND_EXACT) && i < count; i++)
		x[i] = op->kind == CAIRN_KIND_EXACT ? x[i] :
		       logit(op, s.dist, (float)(i % s.vocab) / (float)s.vocab, x[i]);
	for (int32_t i = 0; i < s.rows; i += 2)
		if (has_nan_rows(op->case_index))
			cairn_fill_nan(x, CAIRN_F32, (int64_t)i * s.vocab, s.vocab);
	/* in drawn cases, NaN also in a stretch of up to a third of a row, whatever the other logits are */
	for (int32_t i = turn % 3; turn && op->kind == CAIRN_KIND_POISON && i < s.rows; i += 3)
		cairn_fill_nan(x, CAIRN_F32, (int64_t)i * s.vocab + cairn_op_range(op, 0, s.vocab / 2),
			       cairn_op_range(op, 0, s.vocab / 3));
	for (int32_t i = 0; i < s.rows; i++) {
		int64_t at = (int64_t)i * s.vocab;

		tokens[i] = i % 7 == 6 ? outside[(i / 7 + op->case_index) % 4] :
			    (int32_t)cairn_op_range(op, 0, s.vocab - 1);
		if (i % 7 == 1)
			tokens[i] = s.vocab - 1;
		/* the logprob of a NaN does not depend on the sum */
		while (op->case_index >= FIRST_HOLES && i % 7 < 6 && tokens[i] && isnan(x[at + tokens[i]]))
			tokens[i]--;
		if (s.dist == NEAR && i == s.rows - 1)	/* its logit would lie past the end */
			tokens[i] = s.vocab;
		if (!wanted)
			continue;
		wanted[i] = (i + turn) % 4 == 1 ? 0 : i % 4 == 2 ? -i : (i + 1) << 16;
		if (!wanted[i] && op->kind == CAIRN_KIND_POISON)
			cairn_fill_nan(x, CAIRN_F32, at, s.vocab);
	}
}

static int exact(const void *args, struct cairn_exact *e)
{
	return cairn_logprobs_exact(args, e);
}

/* Inverts which rows are wanted, or changes the drawn tokens. */
static int relist(void *args)
{
	const struct cairn_logprobs_args *a = args;

	for (int32_t i = 0; i < a->rows; i++)
		if (a->wanted)
			((int32_t *)(uintptr_t)a->wanted)[i] = !a->wanted[i];
		else
			((int32_t *)(uintptr_t)a->tokens)[i] ^= 1;
	return a->rows > 0;
}

static const char *reject(void *args, int i, int *want)
{
	struct cairn_logprobs_args *a = args;

	a->k = 1;
	a->top = a->chosen;
	a->top_ids = (int32_t *)a->chosen;
	*want = i < 10 ? -EINVAL : -EOPNOTSUPP;
	switch (i) {
	case 0: a->size = 8; return "old_struct";
	case 1: a->chosen = NULL; return "null_chosen";
	case 2: a->logits = NULL; return "null_logits";
	case 3: a->tokens = NULL; return "null_tokens";
	case 4: a->top = NULL; return "null_top";
	case 5: a->top_ids = NULL; return "null_top_ids";
	case 6: a->rows = -1; return "negative_rows";
	case 7: a->vocab = 0; return "no_vocab";
	case 8: a->k = -1; return "negative_k";
	case 9: a->logits = a->logits + 1; return "misaligned_logits";
	case 10: a->k = 33; return "k_33";
	case 11: a->vocab = (1 << 20) + 1; return "vocab_too_large";
	}
	return NULL;
}

static void pairs_are_covered(struct cairn_test *t)
{
	cairn_pairs_check(t, &pairs, NUM_PAIRS);
	cairn_pairs_check(t, &ends, NUM_ENDS);
}

static const struct cairn_unit units[] = { { "pairs_are_covered", pairs_are_covered } };

const struct cairn_family cairn_logprobs_family = {
	.stage = "primitives", .name = "logprobs",
	.units = units, .num_units = ARRAY_SIZE(units),
	.op = offsetof(struct cairn_impl, logprobs),
	.args_size = sizeof(struct cairn_logprobs_args),
	.num_cases = NUM_CASES, .draw = &draws,
	.company = { .rows = FIELD(rows), .in = { FIELD(logits), FIELD(tokens) },
		     .out = { FIELD(chosen), FIELD(top_ids), FIELD(top) } },
	.describe = describe, .setup = setup, .exact = exact, .reject = reject, .relist = relist,
};
