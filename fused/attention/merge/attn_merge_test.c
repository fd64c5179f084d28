// SPDX-License-Identifier: Apache-2.0
/*
 * attn_merge_test - named cases, a grid of shapes, pairs of features, ends of tiles, bench rows
 *
 * The grid crosses states, head_dim and rows; heads, dtypes, layouts and flags rotate. EXACT gives equal lse
 * to some states, whose number is a power of two, and no weight to all others; its sums have 16 to 22 bits,
 * most of which cancel. EXTREME has lse around the cut-off, near the largest number and almost equal, and
 * zeros, whose signs are checked. POISON has NaN in all states without weight. Gaps always hold NaN.
 */
#include "conformance/harness.h"
#include "conformance/suite/draw.h"
#include "conformance/suite/pairs.h"

#include <stdio.h>
#include <stdlib.h>

#include "fused/attention/merge/attn_merge.h"

enum {
	LSE = 1,		/* lse_out is wanted */
	COUNTS = 2,		/* counts of 0..n and outside */
	EMPTY = 4,		/* a third of the states, and all of every seventh row and head, are empty */
	NONE = 8,		/* all states are empty */
	SPREAD = 16,		/* lse of -1e4 to 1e4 */
	EQUAL = 32,		/* equal lse */
	BAD = 64,		/* NaN or infinity in lse or o of some rows and heads */
	IN_PLACE = 128,		/* out is o, lse_out is lse */
	GAPS = 256,		/* gaps between states, rows and heads */
	ROWS_FIRST = 512,	/* [rows, states, heads, head_dim] */
	HEADS_FIRST = 1024,	/* [states, heads, rows, head_dim] */
	BENCH = 2048, DEVICE = 4096,
	FAR = 8192,		/* the last states begin past 2^31 and 2^32 elements */
	ONE = 16384,		/* counts are 1, and BAD spoils state 0 */
	LOW = 32768,		/* every second lse is 60 to 79 below the others */
	SINK = 65536,		/* every head has a sink */
	BAD_SINK = 131072,	/* sinks of some heads are NaN or infinities */
	OWN = 262144,		/* every row has an own key */
	CAPPED = 524288,	/* own keys have a softcap */
	BAD_OWN = 1048576,	/* NaN or infinities in some q and v */
};

struct shape {
	const char *name;	/* start of the case's name; NULL: none */
	int n, rows, heads, dim, dtype, out;
	unsigned flags;
	int pair;		/* number of a pair case, or 0 */
	int kv;			/* with OWN: heads of k and v */
};

#define S(name_, n_, rows_, heads_, dim_, dtype_, out_) \
	.name = name_, .n = n_, .rows = rows_, .heads = heads_, .dim = dim_, .dtype = CAIRN_##dtype_, \
	.out = CAIRN_##out_

static const struct shape named[] = {
	/* S(name, states, rows, heads, head_dim, dtype, out_dtype), flags; reject() alters the first */
	{ S("smallest", 2, 1, 1, 8, F32, F32), .flags = LSE | COUNTS },
	{ S("no_rows", 3, 0, 4, 64, BF16, F16), .flags = LSE | COUNTS },
	{ S("one_state", 1, 5, 3, 128, F32, F32), .flags = LSE },
	{ S("one_state", 1, 5, 3, 128, F32, BF16), .flags = LSE | COUNTS | EMPTY },
	{ S("all_empty", 3, 5, 3, 64, F32, F32), .flags = LSE | NONE },
	{ S("all_empty", 64, 5, 3, 512, BF16, BF16), .flags = LSE | NONE | COUNTS },
	{ S("some_empty", 2, 19, 3, 128, F32, BF16), .flags = LSE | EMPTY },
	{ S("some_empty", 7, 19, 3, 64, F16, F16), .flags = LSE | EMPTY | COUNTS },
	{ S("some_empty", 64, 5, 3, 128, BF16, F32), .flags = LSE | EMPTY | GAPS },
	{ S("spread", 3, 19, 3, 64, F32, F32), .flags = LSE | SPREAD },
	{ S("spread", 64, 5, 3, 128, BF16, BF16), .flags = LSE | SPREAD | EMPTY },
	{ S("equal", 3, 19, 3, 64, F32, F32), .flags = LSE | EQUAL },
	{ S("equal", 64, 5, 3, 128, F16, F16), .flags = LSE | EQUAL },
	{ S("bad", 2, 19, 3, 64, F32, F32), .flags = LSE | BAD },
	{ S("bad", 7, 19, 3, 128, BF16, F16), .flags = LSE | BAD | COUNTS },
	{ S("bad", 64, 5, 4, 256, F32, BF16), .flags = LSE | BAD | EMPTY },
	{ S("in_place", 1, 5, 3, 64, F32, F32), .flags = LSE | IN_PLACE | EMPTY },
	{ S("in_place", 2, 19, 3, 128, F32, F32), .flags = LSE | IN_PLACE },
	{ S("in_place", 7, 9, 5, 128, BF16, BF16), .flags = LSE | IN_PLACE | EMPTY | COUNTS },
	{ S("in_place", 3, 9, 5, 512, F32, F32), .flags = LSE | IN_PLACE | EMPTY },
	{ S("in_place", 33, 3, 5, 512, F16, F16), .flags = IN_PLACE | COUNTS },
	/* numbers of states near those at which the use of lanes, registers and lists changes */
	{ S(NULL, 4, 5, 3, 64, F32, F32), .flags = LSE | EMPTY },
	{ S(NULL, 5, 5, 3, 64, BF16, F32), .flags = LSE | EMPTY },
	{ S(NULL, 8, 5, 3, 40, F16, F32), .flags = LSE | GAPS },
	{ S(NULL, 9, 5, 3, 40, F32, F16), .flags = LSE | EMPTY },
	{ S(NULL, 16, 5, 3, 128, F32, BF16), .flags = LSE | COUNTS },
	{ S(NULL, 17, 5, 3, 128, F16, BF16), .flags = LSE | EMPTY },
	{ S(NULL, 31, 5, 3, 96, F32, F32), .flags = LSE | GAPS },
	{ S(NULL, 32, 5, 3, 96, BF16, BF16), .flags = LSE | EMPTY },
	{ S(NULL, 33, 5, 3, 128, F32, F32), .flags = LSE | EMPTY | COUNTS },
	{ S(NULL, 63, 5, 3, 64, F32, F32), .flags = LSE | ROWS_FIRST },
	/* head_dims that leave lanes idle */
	{ S(NULL, 3, 7, 3, 16, F32, BF16), .flags = LSE | HEADS_FIRST },
	{ S(NULL, 3, 7, 3, 24, BF16, F32), .flags = LSE | GAPS },
	{ S(NULL, 3, 7, 3, 72, F16, F16), .flags = LSE },
	{ S(NULL, 5, 7, 3, 80, BF16, BF16), .flags = LSE | ROWS_FIRST },
	{ S(NULL, 5, 7, 3, 136, F32, F16), .flags = LSE | EMPTY },
	{ S(NULL, 5, 7, 3, 192, BF16, BF16), .flags = LSE | HEADS_FIRST | COUNTS },
	{ S(NULL, 3, 7, 3, 264, F16, F32), .flags = LSE | EMPTY },
	{ S(NULL, 6, 7, 3, 504, F32, F32), .flags = LSE | GAPS | COUNTS },
	{ S("rows_past_2e16", 2, 65541, 1, 8, F16, F16), .flags = LSE },
	/* grids of more than one wave */
	{ S("large", 2, 4096, 32, 128, F32, BF16), .flags = LSE | DEVICE | EMPTY },
	{ S("large", 3, 4096, 32, 64, BF16, BF16), .flags = LSE | DEVICE | GAPS | COUNTS },
	{ S("large", 7, 1000, 32, 128, F32, F32), .flags = LSE | DEVICE | IN_PLACE | EMPTY },
	{ S("large", 64, 300, 7, 128, F32, BF16), .flags = LSE | DEVICE | COUNTS | EMPTY },
	{ S("large", 64, 128, 32, 64, BF16, F32), .flags = LSE | DEVICE | ROWS_FIRST },
	{ S("large", 7, 999, 3, 512, F32, F16), .flags = LSE | DEVICE | BAD },
	{ S("large", 7, 4096, 1, 8, F16, F16), .flags = LSE | DEVICE | HEADS_FIRST },
	{ S("split", 2, 64, 32, 128, F32, BF16), .flags = LSE | BENCH },
	{ S("split", 8, 64, 32, 128, F32, BF16), .flags = LSE | BENCH | DEVICE },
	{ S("split", 32, 64, 32, 128, F32, BF16), .flags = LSE | BENCH | DEVICE },
	{ S("split", 8, 1, 32, 128, F32, BF16), .flags = LSE | BENCH },
	{ S("prefix", 2, 64, 32, 128, BF16, BF16), .flags = LSE | BENCH },
	{ S("prefix", 2, 4096, 32, 128, F32, BF16), .flags = LSE | BENCH | DEVICE },
};

/* The last cases; a row that uses one state must not be copied if that state's lse is NaN or +INFINITY. */
static const struct shape last[] = {
	{ S("far_states", 3, 2, 2, 64, BF16, BF16), .flags = LSE | FAR },
	{ S("counts_outside", 12, 40, 2, 64, F32, BF16), .flags = LSE | COUNTS },
	{ S("bad_one_state", 1, 7, 3, 64, F32, BF16), .flags = LSE | BAD },
	{ S("bad_one_state", 1, 7, 5, 128, BF16, BF16), .flags = LSE | BAD | COUNTS },
	{ S("bad_one_used", 3, 7, 5, 64, F32, F32), .flags = LSE | BAD | COUNTS | ONE },
	{ S("bad_one_used", 40, 7, 3, 256, F16, F16), .flags = LSE | BAD | COUNTS | ONE | IN_PLACE },
	/* infinities and NaN in states whose weights are close to the smallest or to the largest */
	{ S("bad_low", 2, 19, 3, 64, F32, F32), .flags = LSE | BAD | LOW },
	{ S("bad_low", 5, 19, 3, 64, BF16, BF16), .flags = LSE | BAD | LOW },
	/* in place, with more rows and heads than one CTA takes */
	{ S("in_place", 3, 70, 5, 64, BF16, BF16), .flags = LSE | IN_PLACE | EMPTY },
	{ S("in_place", 9, 300, 1, 8, F32, F32), .flags = LSE | IN_PLACE | COUNTS },
	{ S("sink_in_place", 1, 9, 8, 64, BF16, BF16), .flags = LSE | SINK | IN_PLACE },
	{ S("sink_in_place", 1, 9, 3, 64, F16, F16), .flags = SINK | IN_PLACE },
	{ S("sink_empty", 1, 7, 3, 128, F32, BF16), .flags = LSE | SINK | NONE },
	{ S("sink", 3, 7, 5, 64, F32, BF16), .flags = LSE | SINK | EMPTY | COUNTS },
	{ S("sink", 64, 5, 3, 256, BF16, F32), .flags = LSE | SINK | GAPS },
	{ S("sink_bad", 2, 7, 7, 64, F32, F32), .flags = LSE | SINK | BAD_SINK | EMPTY },
	{ S("sink_gpt_oss", 1, 4096, 64, 64, BF16, BF16), .flags = SINK | IN_PLACE | BENCH | DEVICE },
	{ S("sink_gpt_oss", 1, 8, 64, 64, BF16, BF16), .flags = SINK | IN_PLACE | BENCH },
	/* more rows than a grid's y axis holds if a CTA takes 16 of them */
	{ S("rows_past_2e20", 1, 1048640, 1, 8, F16, F16) },
};

static const int grid_n[] = { 1, 2, 3, 7, 64 }, grid_dim[] = { 8, 64, 128, 256, 512 };
static const int grid_rows[] = { 1, 5, 128 }, grid_heads[] = { 1, 3, 32 };
#define NUM_NAMED	((int)ARRAY_SIZE(named))
#define NUM_GRID	(5 * 5 * 3)

#define NUM_PAIRS	48

/* Every two features occur together in at least one case. */
enum {
	PAIR_STATES, PAIR_DIM, PAIR_LAYOUT, PAIR_WEIGHTS, PAIR_DTYPE, PAIR_OUT, PAIR_HEADS, PAIR_ROWS,
	PAIR_LSE, PAIR_COUNTS, PAIR_PLACE
};

/* A merge in place needs equal dtypes and no gaps in state 0. */
static int pair_forbidden(const int8_t *level)
{
	if (level[PAIR_PLACE] != 1)
		return 0;
	return level[PAIR_LAYOUT] > 0 ||
	       (level[PAIR_DTYPE] >= 0 && level[PAIR_OUT] >= 0 && level[PAIR_DTYPE] != level[PAIR_OUT]);
}

static struct cairn_pairs pair_table = {
	.num_factors = 11, .levels = { 7, 6, 4, 4, 3, 3, 3, 2, 2, 2, 2 }, .forbidden = pair_forbidden,
};

static void pair_at(int i, struct shape *s)
{
	static const int states[] = { 2, 1, 3, 5, 7, 17, 33 }, dims[] = { 64, 8, 24, 72, 128, 256 };
	static const int heads[] = { 1, 3, 5 }, rows[] = { 4, 7 };
	static const unsigned layouts[] = { 0, GAPS, ROWS_FIRST, HEADS_FIRST };
	static const unsigned weights[] = { 0, EMPTY, SPREAD, EQUAL };
	const int8_t *level = cairn_pairs_row(&pair_table, i);

	*s = (struct shape){
		.pair = i + 1, .n = states[level[PAIR_STATES]], .dim = dims[level[PAIR_DIM]],
		.heads = heads[level[PAIR_HEADS]], .rows = rows[level[PAIR_ROWS]], .dtype = level[PAIR_DTYPE],
		.out = level[PAIR_OUT],
	};
	s->flags = layouts[level[PAIR_LAYOUT]] | weights[level[PAIR_WEIGHTS]] | (level[PAIR_LSE] ? 0 : LSE) |
		   (level[PAIR_COUNTS] ? COUNTS : 0) | (level[PAIR_PLACE] ? IN_PLACE : 0);
}

static double elements_of(const struct shape *s)
{
	return (double)s->n * s->rows * s->heads * s->dim;
}

#include "fused/attention/merge/attn_merge_ends.h"

#define FIRST_ENDS	(NUM_NAMED + NUM_GRID + NUM_PAIRS + (int)ARRAY_SIZE(last))

#include "fused/attention/merge/attn_merge_own.h"

#define FIRST_OWN	(FIRST_ENDS + NUM_ENDS)

#define NUM_CASES	(FIRST_OWN + (int)ARRAY_SIZE(own_cases))

static const struct cairn_draw_axis axes[] = {
	CAIRN_DRAW_SIZE(struct shape, n, 1, 64, 1),
	CAIRN_DRAW_SIZE(struct shape, rows, 1, 3000, 1),
	CAIRN_DRAW_SIZE(struct shape, heads, 1, 140, 1),
	CAIRN_DRAW_SIZE(struct shape, dim, 8, 512, 8),
	CAIRN_DRAW_ONE_OF(struct shape, dtype, CAIRN_F32, CAIRN_F16, CAIRN_BF16),
	CAIRN_DRAW_ONE_OF(struct shape, out, CAIRN_F32, CAIRN_F16, CAIRN_BF16),
	CAIRN_DRAW_ONE_OF(struct shape, flags, 0, 0, GAPS, ROWS_FIRST, HEADS_FIRST, IN_PLACE, IN_PLACE),
	CAIRN_DRAW_ONE_OF(struct shape, flags, 0, 0, EMPTY, SPREAD, EQUAL, LOW, BAD, EMPTY | LOW),
	CAIRN_DRAW_ONE_OF(struct shape, flags, LSE, 0),
	CAIRN_DRAW_ONE_OF(struct shape, flags, 0, COUNTS),
	CAIRN_DRAW_ONE_OF(struct shape, flags, 0, 0, SINK, SINK | BAD_SINK),
	CAIRN_DRAW_ONE_OF(struct shape, flags, 0, 0, OWN, OWN | CAPPED, OWN | BAD_OWN),
	CAIRN_DRAW_ONE_OF(struct shape, kv, 1, 2, 3, 8),
};

static int allowed(void *shape, int room)
{
	struct shape *s = shape;

	if (s->flags & IN_PLACE)
		s->out = s->dtype;
	if (s->flags & OWN && (s->dtype == CAIRN_F32 || s->dim > CAIRN_ATTN_MERGE_OWN_DIM ||
			       s->heads % s->kv))
		return 0;
	if (s->flags & BAD_OWN && s->flags & (SPREAD | LOW))
		return 0;	/* a spoiled state may be too near to the cut-off */
	return elements_of(s) < room * 60000;
}

static const struct cairn_draw draws = {
	.shape_bytes = sizeof(struct shape), .axes = axes, .num_axes = ARRAY_SIZE(axes),
	.allowed = allowed, .many = 8000,
};

static void shape_at(int index, struct shape *s)
{
	static const unsigned layouts[] = { 0, GAPS, ROWS_FIRST, HEADS_FIRST };
	int i = index - NUM_NAMED;

	if (i < 0) {
		*s = named[index];
		return;
	}
	if (index >= NUM_CASES) {
		cairn_draw_shape(&draws, index - NUM_CASES, s);
		return;
	}
	if (index >= FIRST_OWN) {
		*s = own_cases[index - FIRST_OWN];
		return;
	}
	if (index >= FIRST_ENDS) {
		ends_at(index - FIRST_ENDS, s);
		return;
	}
	if (i >= NUM_GRID + NUM_PAIRS) {
		*s = last[i - NUM_GRID - NUM_PAIRS];
		return;
	}
	if (i >= NUM_GRID) {
		pair_at(i - NUM_GRID, s);
		return;
	}
	memset(s, 0, sizeof(*s));
	s->n = grid_n[i % 5];
	s->dim = grid_dim[i / 5 % 5];
	s->rows = grid_rows[i / 25];
	s->heads = grid_heads[(i + i / 5 + i / 25) % 3];
	s->dtype = (i + i / 5) % 3;
	s->out = (i + i / 15) % 3;
	s->flags = layouts[(i + i / 5) % 4] | (i % 7 ? LSE : 0) | (i % 3 == 1 ? COUNTS : 0) |
		   (i % 4 == 2 ? EMPTY : 0);
	if (elements_of(s) > 4e5)
		s->flags |= DEVICE;
}

static void describe(int index, struct cairn_case *c)
{
	double pairs, esize, out_esize;
	char number[16] = "", own[24] = "";
	struct shape s;

	shape_at(index, &s);
	if (s.pair)
		snprintf(number, sizeof(number), "pair_%d_", s.pair);
	if (s.flags & OWN)
		snprintf(own, sizeof(own), "_kv%d%s", s.kv, s.flags & CAPPED ? "_capped" : "");
	snprintf(c->name, sizeof(c->name), "%s%s%sn%d_rows%d_h%d_d%d_%s_%s%s%s%s%s%s%s%s", number,
		 s.name ? s.name : "", s.name ? "_" : "", s.n, s.rows, s.heads, s.dim,
		 cairn_dtype_name(s.dtype), cairn_dtype_name(s.out), own, s.flags & LSE ? "" : "_nolse",
		 s.flags & COUNTS ? "_counts" : "",
		 s.flags & EMPTY ? "_empty" : "", s.flags & GAPS ? "_gaps" : "",
		 s.flags & ROWS_FIRST ? "_rowsfirst" : "", s.flags & HEADS_FIRST ? "_headsfirst" : "");
	c->bench = !!(s.flags & BENCH);
	c->device_only = !!(s.flags & DEVICE);
	c->far = !!(s.flags & FAR);
	c->kinds = CAIRN_KIND_BIT(CAIRN_KIND_NORMAL);
	if ((index < FIRST_ENDS || index >= FIRST_OWN) && !(s.flags & (BENCH | DEVICE | FAR)))
		c->kinds = elements_of(&s) < 1e5 ? CAIRN_ALL_KINDS :
			   CAIRN_KIND_BIT(CAIRN_KIND_EXTREME) | CAIRN_KIND_BIT(CAIRN_KIND_POISON);
	if (s.pair)
		c->kinds = CAIRN_KIND_BIT(s.pair % 2 ? CAIRN_KIND_EXTREME : CAIRN_KIND_EXACT) |
			   CAIRN_KIND_BIT(CAIRN_KIND_POISON);
	pairs = (double)s.rows * s.heads;
	esize = (double)cairn_dtype_bytes(s.dtype);
	out_esize = (double)cairn_dtype_bytes(s.out);
	c->bytes = pairs * (s.n * (s.dim * esize + 4) + s.dim * out_esize + (s.flags & LSE ? 4 : 0));
	c->flops = 2 * elements_of(&s);
	if (s.flags & OWN) {
		c->bytes += (double)s.rows * (s.heads + 2 * s.kv) * s.dim * esize;
		c->flops += 4 * pairs * s.dim;
	}
}

/* Sets the lse of n states of one row and head, `stride` apart. */
static void draw_lse(struct cairn_op *op, float *lse, int64_t stride, int n, unsigned flags, int all_empty)
{
	int mode = (int)cairn_op_range(op, 0, 6), start = (int)cairn_op_range(op, 0, n - 1), weights = 1;
	float base = (float)cairn_op_range(op, -20, 20);

	while (weights * 2 <= n && cairn_op_range(op, 0, 3))
		weights *= 2;
	for (int s = 0; s < n; s++) {
		float x, *to = lse + s * stride;

		cairn_fill(op, &x, CAIRN_F32, 1, 3);
		if (op->kind == CAIRN_KIND_EXACT)
			x = (s + start) % n < weights ? 0 : s % 2 ? -INFINITY : -200;
		if (op->kind == CAIRN_KIND_EXTREME) {
			int64_t k = cairn_op_range(op, -4, 4);

			x = mode == 0 ? 0 :
			    mode == 1 ? (s == start ? 0 : CAIRN_ATTN_MERGE_CUTOFF + 0x1p-17f * (float)k) :
			    mode == 2 ? (s == start ? 0 : -80 + 4 * (float)k) :
			    mode == 3 ? 2500 * (float)k :
			    mode == 4 ? (k & 1 ? 3e38f : -3e38f) :
			    mode == 5 ? 0x1p-19f * (float)k : 0x1p-149f * (float)k;
		}
		if (flags & SPREAD)
			x = (float)cairn_op_range(op, -10000, 10000);
		if (flags & EQUAL)
			x = 0;
		if (flags & LOW)
			x = s % 2 ? (float)cairn_op_range(op, -79, -60) : 0;
		/* adding the base must not round away the difference that a mode tests */
		*to = op->kind == CAIRN_KIND_EXTREME && mode && mode != 3 ? x : x + base;
		if (all_empty || (flags & NONE) || (flags & EMPTY && cairn_op_range(op, 0, 2) == 0))
			*to = -INFINITY;
	}
}

/* Sets the sinks; about one in four is an outlier, and with BAD_SINK others are no finite numbers. */
static void draw_sinks(struct cairn_op *op, float *sink, int heads, unsigned flags)
{
	static const float bad[] = { NAN, INFINITY, -INFINITY };

	for (int h = 0; h < heads; h++) {
		int64_t k = cairn_op_range(op, -20, 20);

		sink[h] = (float)k + 0.5f;
		if (k % 4 == 0)
			sink[h] = op->kind == CAIRN_KIND_EXTREME ? (k > 0 ? 3e38f : -3e38f) : (float)k * 20;
		if (flags & BAD_SINK && h % 2)
			sink[h] = bad[h / 2 % 3];
	}
}

/* Sets one lse, or one element of o, of every third row and head to NaN or an infinity. */
static void spoil(struct cairn_op *op, void *o, float *lse, unsigned flags)
{
	const double bad[] = { NAN, INFINITY, -INFINITY };
	struct cairn_attn_merge_args a = cairn_attn_merge_strides(op->args);

	for (int64_t pair = 0; pair < (int64_t)a.rows * a.num_heads; pair += 3) {
		int64_t s = flags & ONE ? 0 : cairn_op_range(op, 0, a.num_states - 1);
		int64_t c = cairn_op_range(op, 0, a.head_dim - 1);
		int64_t row = pair / a.num_heads, head = pair % a.num_heads;

		if (pair % 2)
			lse[s * a.lse_stride + pair] = (float)bad[pair / 3 % 4 / 2];
		else
			cairn_store(o, a.dtype, s * a.state_stride + row * a.row_stride +
				    head * a.head_stride + c, bad[pair / 6 % 3]);
		if (pair % 2 == 0 && pair / 6 % 2)	/* the opposite infinity, or NaN, in another state */
			cairn_store(o, a.dtype, (s + 1) % a.num_states * a.state_stride + row * a.row_stride +
				    head * a.head_stride + c, -bad[pair / 6 % 3]);
	}
}

/*
 * Sets o of the states without weight, and lse of the states past counts, to NaN; also v of own keys without
 * weight.
 */
static void poison(const struct cairn_op *op, void *o, float *lse)
{
	struct cairn_attn_merge_args a = cairn_attn_merge_strides(op->args);
	int64_t pairs = (int64_t)a.rows * a.num_heads;
	float *largest = malloc(sizeof(*largest) * (size_t)(pairs + 1));

	if (!largest)
		abort();
	for (int64_t pair = 0; pair < (int64_t)a.rows * a.num_heads; pair++) {
		int64_t at = pair / a.num_heads * a.row_stride + pair % a.num_heads * a.head_stride;
		int used = a.counts ? a.counts[pair / a.num_heads] : a.num_states;
		float max = -INFINITY;

		for (int s = 0; s < used && s < a.num_states; s++)
			max = fmaxf(max, lse[s * a.lse_stride + pair]);
		largest[pair] = max;
		if (a.q)	/* the own key's lse has an error */
			max = fmaxf(max, (float)own_lse_of(&a, pair / a.num_heads, pair % a.num_heads) - 1);
		for (int s = 0; s < a.num_states; s++) {
			float *x = &lse[s * a.lse_stride + pair], d = *x - max;

			if (s >= used || *x == -INFINITY || d < CAIRN_ATTN_MERGE_CUTOFF)
				cairn_fill_nan(o, a.dtype, s * a.state_stride + at, a.head_dim);
			if (s >= used)
				*x = NAN;
		}
	}
	if (a.q)
		poison_own(op, largest);
	free(largest);
}

static void set_strides(struct cairn_attn_merge_args *a, unsigned flags, int case_index)
{
	int64_t dim = a->head_dim;

	if (flags & GAPS) {
		a->lse_stride = (int64_t)a->rows * a->num_heads + 3;
		a->head_stride = dim + 8;
		if (case_index % 3 == 1)	/* the other strides follow from this one */
			return;
		a->row_stride = a->num_heads * a->head_stride + 16;
		if (case_index % 3 == 2)
			return;
		a->state_stride = a->rows * a->row_stride + 24;
	}
	if (flags & ROWS_FIRST) {
		a->state_stride = a->num_heads * dim;
		a->row_stride = a->num_states * a->state_stride;
	}
	if (flags & HEADS_FIRST) {
		a->row_stride = dim;
		a->head_stride = a->rows * dim;
		a->state_stride = a->num_heads * a->head_stride;
	}
	if (case_index % 2 && a->rows)
		*a = cairn_attn_merge_strides(a);
}

/* Fills states that are each packed but lie far from each other. */
static void fill_far(struct cairn_op *op, const struct shape *s)
{
	struct cairn_attn_merge_args *a = op->args;
	int64_t pairs = (int64_t)s->rows * s->heads, state = pairs * s->dim;
	float *lse;
	char *o;

	a->state_stride = ((int64_t)1 << 31) + 64;
	a->lse_stride = ((int64_t)1 << 31) + 4;
	o = cairn_in_far(op, offsetof(struct cairn_attn_merge_args, o), s->dtype,
			 (s->n - 1) * a->state_stride + state);
	lse = cairn_in_far(op, offsetof(struct cairn_attn_merge_args, lse), CAIRN_F32,
			   (s->n - 1) * a->lse_stride + pairs);
	for (int k = 0; k < s->n; k++) {
		cairn_touch(op, o, k * a->state_stride, state);
		cairn_fill(op, o + k * a->state_stride * (int64_t)cairn_dtype_bytes(s->dtype), s->dtype,
			   state, 1);
		cairn_touch(op, lse, k * a->lse_stride, pairs);
		cairn_fill(op, lse + k * a->lse_stride, CAIRN_F32, pairs, 1);
	}
}

/*
 * Every fourth state has large elements, and the second state after it has their negatives; the others have
 * small integers. The sum of four is small, but partial sums have 22 bits (16 if f16 must hold the elements).
 */
static void fill_exact(struct cairn_op *op, void *o)
{
	const struct cairn_attn_merge_args a = cairn_attn_merge_strides(op->args);
	double unit = a.dtype == CAIRN_F16 || a.out_dtype == CAIRN_F16 ? 0x1p11 : 0x1p17;

	for (int64_t pair = 0; pair < (int64_t)a.rows * a.num_heads; pair++) {
		int64_t at = pair / a.num_heads * a.row_stride + pair % a.num_heads * a.head_stride;

		for (int64_t i = 0; i < (int64_t)a.num_states * a.head_dim; i++) {
			int64_t s = i / a.head_dim, c = i % a.head_dim;
			double large = (double)(16 + (pair + c) % 16) * unit * ((pair ^ c) & 1 ? 1 : -1);

			cairn_store(o, a.dtype, at + s * a.state_stride + c, s % 4 == 0 ? large :
				    s % 4 == 2 ? -large : (double)cairn_op_range(op, -4, 4));
		}
	}
}

static void setup(struct cairn_op *op)
{
	struct cairn_attn_merge_args *a = op->args, full;
	int64_t pairs, count = 0, lse_count = 0;
	static const int32_t beyond[] = { 73, 256, 65537, INT32_MAX };	/* more than any number of states */
	int32_t *counts;
	struct shape s;
	float *lse;
	void *o;

	shape_at(op->case_index, &s);
	a->num_states = s.n;
	a->rows = s.rows;
	a->num_heads = s.heads;
	a->head_dim = s.dim;
	a->dtype = s.dtype;
	a->out_dtype = s.out;
	if (s.flags & OWN)
		set_own(a, &s, op->case_index);
	set_strides(a, s.flags, op->case_index);
	full = cairn_attn_merge_strides(a);
	pairs = (int64_t)s.rows * s.heads;
	if (pairs) {	/* the buffers end right after the last element */
		count = (s.n - 1) * full.state_stride + (s.rows - 1) * full.row_stride +
			(s.heads - 1) * full.head_stride + s.dim;
		lse_count = (s.n - 1) * full.lse_stride + pairs;
	}
	if (s.flags & IN_PLACE) {
		o = cairn_inout(op, offsetof(struct cairn_attn_merge_args, o), s.dtype, count);
		lse = cairn_inout(op, offsetof(struct cairn_attn_merge_args, lse), CAIRN_F32, lse_count);
		cairn_shape(op, offsetof(struct cairn_attn_merge_args, o), { "state", s.n },
			    { "row", s.rows }, { "head", s.heads }, { "dim", s.dim });
		cairn_stride(op, offsetof(struct cairn_attn_merge_args, o), "state", full.state_stride);
		cairn_stride(op, offsetof(struct cairn_attn_merge_args, o), "row", full.row_stride);
		cairn_stride(op, offsetof(struct cairn_attn_merge_args, o), "head", full.head_stride);
		cairn_shape(op, offsetof(struct cairn_attn_merge_args, lse), { "state", s.n },
			    { "row", s.rows }, { "head", s.heads });
		cairn_stride(op, offsetof(struct cairn_attn_merge_args, lse), "state", full.lse_stride);
		cairn_alias(op, offsetof(struct cairn_attn_merge_args, out),
			    offsetof(struct cairn_attn_merge_args, o));
		if (s.flags & LSE)
			cairn_alias(op, offsetof(struct cairn_attn_merge_args, lse_out),
				    offsetof(struct cairn_attn_merge_args, lse));
	} else {
		cairn_out(op, offsetof(struct cairn_attn_merge_args, out), s.out, pairs * s.dim);
		cairn_shape(op, offsetof(struct cairn_attn_merge_args, out), { "row", s.rows },
			    { "head", s.heads }, { "dim", s.dim });
		if (s.flags & LSE) {
			cairn_out(op, offsetof(struct cairn_attn_merge_args, lse_out), CAIRN_F32, pairs);
			cairn_shape(op, offsetof(struct cairn_attn_merge_args, lse_out), { "row", s.rows },
				    { "head", s.heads });
		}
		if (s.flags & FAR) {
			fill_far(op, &s);
			return;
		}
		o = cairn_in(op, offsetof(struct cairn_attn_merge_args, o), s.dtype, count);
		lse = cairn_in(op, offsetof(struct cairn_attn_merge_args, lse), CAIRN_F32, lse_count);
	}
	if (s.flags & SINK) {
		float *sink = cairn_in(op, offsetof(struct cairn_attn_merge_args, sink), CAIRN_F32, s.heads);

		draw_sinks(op, sink, s.heads, s.flags);
	}
	if (s.flags & COUNTS) {
		counts = cairn_in(op, offsetof(struct cairn_attn_merge_args, counts), CAIRN_I32, s.rows);
		for (int i = 0; i < s.rows; i++)
			counts[i] = s.flags & ONE ? 1 :
				    i % 11 == 5 ? (op->case_index % 2 ? -3 : INT32_MIN) :
				    i % 11 == 8 ? beyond[(i / 11 + op->case_index) % 4] :
				    (int32_t)cairn_op_range(op, i % 3 ? s.n / 2 : 0, s.n);
	}
	cairn_fill_nan(o, s.dtype, 0, count);
	if (s.flags & GAPS)	/* fills only the states; the gaps stay NaN */
		for (int64_t k = 0; k < s.n * pairs; k++)
			cairn_fill(op, (char *)o + (k / pairs * full.state_stride +
						    k % pairs / s.heads * full.row_stride +
						    k % s.heads * full.head_stride) *
				   (int64_t)cairn_dtype_bytes(s.dtype), s.dtype, s.dim, 1);
	else
		cairn_fill(op, o, s.dtype, count, 1);
	if (op->kind == CAIRN_KIND_EXACT)
		fill_exact(op, o);
	cairn_fill_nan(lse, CAIRN_F32, 0, lse_count);
	for (int64_t pair = 0; pair < pairs; pair++)
		draw_lse(op, lse + pair, full.lse_stride, s.n, s.flags, s.flags & EMPTY && pair % 7 == 3);
	if (s.flags & OWN)
		fill_own(op, &s, lse);
	if (s.flags & BAD)
		spoil(op, o, lse, s.flags);
	if (s.flags & BAD_OWN)
		spoil_own(op);
	if (op->kind == CAIRN_KIND_POISON || s.flags & EMPTY)
		poison(op, o, lse);
}

static int exact(const void *args, struct cairn_exact *e)
{
	return cairn_attn_merge_exact(args, e);
}

/* The results, and where out has the sign of an element of o. */
struct signs {
	struct cairn_attn_merge_args a;	/* strides filled in */
	const void *out;
	int64_t num;			/* elements of out */
	/* [rows * num_heads]: the element of o at which the only state with weight begins, or -1 */
	const int64_t *only;
};

static int is_bad_sign(const void *arg, int64_t i, char *why, size_t why_len)
{
	const struct signs *s = arg;
	double got, from;

	if (i >= s->num || s->only[i / s->a.head_dim] < 0)
		return 0;
	from = cairn_load(s->a.o, s->a.dtype, s->only[i / s->a.head_dim] + i % s->a.head_dim);
	got = cairn_load(s->out, s->a.out_dtype, i);
	if (why)
		snprintf(why, why_len, "got %g, want the sign of %g: no other state has weight", got, from);
	return got == 0 && !signbit(got) != !signbit(from);
}

/* Returns the element at which the only state of a row and head that has weight begins, or -1. */
static int64_t only_state(const struct cairn_attn_merge_args *a, int64_t pair)
{
	int64_t at = pair / a->num_heads * a->row_stride + pair % a->num_heads * a->head_stride, only = -1;
	int used = a->counts ? a->counts[pair / a->num_heads] : a->num_states;
	float max = -INFINITY;

	if (a->sink || a->q)
		return -1;
	used = used < a->num_states ? used : a->num_states;
	for (int s = 0; s < used; s++) {
		if (!(a->lse[s * a->lse_stride + pair] < INFINITY))
			return -1;
		max = fmaxf(max, a->lse[s * a->lse_stride + pair]);
	}
	for (int s = 0; s < used; s++) {
		float d = a->lse[s * a->lse_stride + pair] - max;

		if (!(d >= CAIRN_ATTN_MERGE_CUTOFF))
			continue;
		if (only >= 0)
			return -1;
		only = s * a->state_stride + at;
	}
	return only;
}

/* Checks the signs of zeros, which exact() does not cover. In place, out is the first state of o. */
static int judge(const struct cairn_op *op, const void *got, char *why, size_t why_len)
{
	const struct cairn_attn_merge_args *given = op->args;
	size_t field = given->out == given->o ? offsetof(struct cairn_attn_merge_args, o) :
		       offsetof(struct cairn_attn_merge_args, out);
	int64_t pairs = (int64_t)given->rows * given->num_heads;
	int64_t *only = op->kind == CAIRN_KIND_EXTREME ? malloc(sizeof(*only) * (size_t)(pairs + 1)) : NULL;
	struct signs s = { cairn_attn_merge_strides(given), ((const struct cairn_attn_merge_args *)got)->out,
			   pairs * given->head_dim, only };
	int bad;

	for (int64_t pair = 0; only && pair < pairs; pair++)
		only[pair] = only_state(&s.a, pair);
	bad = only && cairn_judge_each(op, field, is_bad_sign, &s, why, why_len);
	free(only);
	return bad;
}

static const char *reject(void *args, int i, int *want)
{
	struct cairn_attn_merge_args *a = args;

	*want = i < 25 || i > 30 ? -EINVAL : -EOPNOTSUPP;
	switch (i) {
	case 0: a->size = 8; return "size_too_small";
	case 1: a->out = NULL; return "out_null";
	case 2: a->o = NULL; return "o_null";
	case 3: a->lse = NULL; return "lse_null";
	case 4: a->out = (char *)a->out + 8; return "out_misaligned";
	case 5: a->o = (const char *)a->o + 4; return "o_misaligned";
	case 6: a->lse_out = (float *)((char *)a->lse_out + 2); return "lse_out_misaligned";
	case 7: a->lse = (const float *)((const char *)a->lse + 1); return "lse_misaligned";
	case 8: a->counts = (const int32_t *)((const char *)a->counts + 2); return "counts_misaligned";
	case 9: a->rows = -1; return "rows_negative";
	case 10: a->num_heads = 0; return "num_heads_0";
	case 11: a->head_dim = 0; return "head_dim_0";
	case 12: a->num_states = 0; return "num_states_0";
	case 13: a->num_states = -1; return "num_states_negative";
	case 14: a->state_stride = -8; return "state_stride_negative";
	case 15: a->state_stride = 12; return "state_stride_odd";
	case 16: a->row_stride = -16; return "row_stride_negative";
	case 17: a->row_stride = 12; return "row_stride_odd";
	case 18: a->head_stride = -8; return "head_stride_negative";
	case 19: a->head_stride = 4; return "head_stride_short";
	case 20: a->lse_stride = -1; return "lse_stride_negative";
	case 21: a->rows = 2; a->lse_stride = 1; return "lse_stride_short";
	case 22: a->out = (void *)a->o; a->out_dtype = CAIRN_BF16; return "in_place_dtypes";
	case 23: a->out = (void *)a->o; a->head_stride = 16; return "in_place_gaps";
	case 24:
		a->out = (void *)a->o;
		a->num_heads = 2;
		a->state_stride = 8;
		return "in_place_states_overlap";
	case 25: a->dtype = CAIRN_I32; return "dtype_i32";
	case 26: a->out_dtype = CAIRN_U8; return "out_dtype_u8";
	case 27: a->head_dim = 12; return "head_dim_12";
	case 28: a->head_dim = 520; return "head_dim_520";
	case 29: a->num_states = 65; return "num_states_65";
	case 30: a->rows = 1 << 20; a->num_heads = 1 << 11; return "pairs_2e31";
	case 31: a->sink = (const float *)((const char *)a->lse + 2); return "sink_misaligned";
	case 32: a->size = CAIRN_ATTN_MERGE_FIRST_BYTES + 4; return "size_within_sink";
	case 33: a->reserved = 1; return "reserved_1";
	}
	return reject_own(a, i - 34, want);
}

static int part(void *args, int i)
{
	struct cairn_attn_merge_args *a = args;
	int64_t heads = a->num_heads;
	int32_t first;

	*a = cairn_attn_merge_strides(a);
	if (!cairn_part(a->rows, 16, 1, i, &first, &a->rows))
		return 0;
	a->out = (char *)a->out + first * heads * a->head_dim * (int64_t)cairn_dtype_bytes(a->out_dtype);
	a->o = (const char *)a->o + first * a->row_stride * (int64_t)cairn_dtype_bytes(a->dtype);
	a->lse += first * heads;
	if (a->lse_out)
		a->lse_out += first * heads;
	if (a->counts)
		a->counts += first;
	if (a->q) {
		int64_t esize = (int64_t)cairn_dtype_bytes(a->dtype);

		a->q = (const char *)a->q + first * a->q_stride * esize;
		a->k = (const char *)a->k + first * a->kv_stride * esize;
		a->v = (const char *)a->v + first * a->kv_stride * esize;
	}
	return 1;
}

static void pair_rows(struct cairn_test *t)
{
	cairn_pairs_check(t, &pair_table, NUM_PAIRS);
	cairn_pairs_check(t, &ends_table, NUM_ENDS);
}

static const struct cairn_unit units[] = { { "pair_rows", pair_rows } };

/* Returns whether rows of o are packed; only then may out be state 0. */
static int rows_are_packed(const void *args)
{
	struct cairn_attn_merge_args a = cairn_attn_merge_strides(args);

	return a.head_stride == a.head_dim && a.row_stride == (int64_t)a.num_heads * a.head_dim;
}

const struct cairn_family cairn_attn_merge_family = {
	.stage = "fused", .name = "attn_merge",
	.op = offsetof(struct cairn_impl, attn_merge),
	.args_size = sizeof(struct cairn_attn_merge_args),
	.first_bytes = CAIRN_ATTN_MERGE_FIRST_BYTES,
	.num_cases = NUM_CASES, .draw = &draws,
	.units = units, .num_units = ARRAY_SIZE(units),
	.may_alias = {
		{ offsetof(struct cairn_attn_merge_args, out), offsetof(struct cairn_attn_merge_args, o),
		  rows_are_packed },
		{ offsetof(struct cairn_attn_merge_args, lse_out),
		  offsetof(struct cairn_attn_merge_args, lse) },
	},
	.part = part,
	.describe = describe, .setup = setup, .exact = exact, .judge = judge, .reject = reject,
};
