// SPDX-License-Identifier: Apache-2.0
/*
 * penalize_test - cases of penalize.h
 *
 * Bias, counters and forbidden tokens apply to the same tokens, at the ends of rows and of the ranges into
 * which a kernel may cut them. Some rows have no step, neutral parameters, or no slot. EXTREME: logits of all
 * magnitudes, infinite, NaN with payloads, zeros of both signs; saturated counters. POISON: slots that no row
 * uses have all bits set; list entries that no row uses are NaN, and so are rows without any step. In the
 * untouched_* case, such rows lie in memory that a host table cannot access. The pair cases combine the
 * steps, with each penalty on and off separately, empty lists, and sizes. The cases ends_* combine sizes at
 * the ends of tiles (ends.h), and the cases lists_* lengths of lists and numbers of slots.
 */
#include "conformance/harness.h"
#include "conformance/suite/draw.h"
#include "conformance/suite/ends.h"
#include "conformance/suite/pairs.h"

#include <stdio.h>

enum { CAP = 1, COUNTS = 2, BIAS = 4, FORBIDDEN = 8, BENCH = 16, IDLE_ROWS = 32, SPARSE = 64, DEVICE = 128,
       FAR = 256, UNTOUCHED = 512 /* with IDLE_ROWS: in memory that may not be accessed */, ONE_SLOT = 1024 };
#define ALL	(CAP | COUNTS | BIAS | FORBIDDEN)

static const struct shape {
	int32_t rows, vocab, list;	/* list: upper bound of the entries of a row's list */
	unsigned flags;
} shapes[] = {
	{ 0, 100, 0, COUNTS },
	{ 1, 1, 1, ALL },
	{ 3, 7, 3, ALL },
	{ 4, 111, 9, ALL | IDLE_ROWS },
	{ 2, 1000, 20, CAP },
	{ 5, 1000, 20, COUNTS },
	{ 5, 1001, 20, COUNTS | IDLE_ROWS },
	{ 5, 1000, 300, BIAS },
	{ 5, 1000, 20, FORBIDDEN | IDLE_ROWS },
	{ 6, 1003, 20, CAP | COUNTS },
	{ 6, 1000, 40, BIAS | COUNTS | FORBIDDEN | IDLE_ROWS },
	{ 33, 4099, 30, ALL | IDLE_ROWS },
	{ 7, 2047, 3, ALL },
	{ 7, 2049, 3, ALL | IDLE_ROWS },
	{ 19, 16385, 10, COUNTS | BIAS | FORBIDDEN | SPARSE },
	{ 3, 32000, 40, ALL | SPARSE },
	{ 2, 128256, 40, ALL | SPARSE | IDLE_ROWS },
	{ 1, 1 << 20, 4, ALL | SPARSE | DEVICE },
	{ 300, 50257, 8, ALL | SPARSE | DEVICE | IDLE_ROWS },
	{ 1, 128256, 16, COUNTS | SPARSE | BENCH },
	{ 64, 128256, 16, COUNTS | SPARSE | BENCH | DEVICE },
	{ 256, 128256, 16, COUNTS | SPARSE | BENCH | DEVICE },
	{ 64, 128256, 16, COUNTS | BIAS | FORBIDDEN | SPARSE | BENCH | DEVICE },
	{ 64, 128256, 16, CAP | BENCH | DEVICE },
	{ 64, 128256, 16, BIAS | FORBIDDEN | BENCH | DEVICE },
	{ 64, 128256, 16, ALL | SPARSE | BENCH | DEVICE },
	{ 4, 2000, 1500, BIAS | FORBIDDEN },	/* the lists are longer than a CTA has threads */
	{ 3, 100, 3, COUNTS | FORBIDDEN | ONE_SLOT },	/* rows share the only slot */
	{ 3, 32768, 0, COUNTS | FAR },		/* the last slots begin past 2^32 counters */
	/* the ends of long lists, one kind at a time, because -INFINITY would hide a token's bias */
	{ 4, 2000, 1500, BIAS }, { 4, 2000, 1500, FORBIDDEN },
};

#define HISTORY	1500	/* about the number of nonzero counters of a row if SPARSE */

#define FIRST_PAIR	((int)ARRAY_SIZE(shapes))
#define NUM_PAIRS	19

/* The last case: enough short rows that several threads work on them at the same time */
static const struct shape many = { 2000, 40, 6, ALL };

/* The case before it. A row fills whole pages of memory. */
static const struct shape untouched = { 12, 2048, 4, COUNTS | BIAS | FORBIDDEN | IDLE_ROWS | UNTOUCHED };

enum { F_CAP, F_COUNTS, F_REPETITION, F_FREQUENCY, F_PRESENCE, F_BIAS, F_FORBIDDEN, F_IDLE, F_VOCAB, F_ROWS,
       NUM_FACTORS };
/* F_COUNTS: no counters, few nonzero ones in a row, or many */
static const unsigned pair_counts[] = { 0, COUNTS | SPARSE, COUNTS };
static const float pair_caps[] = { 0, 30, 1.5f };
static const float pair_penalties[3][3] = { { 1, 1.3f, 1e-4f }, { 0, 0.75f, -0.3f }, { 0, 1.1f, -2 } };
static const int32_t pair_vocabs[] = { 2, 33, 257, 2049 }, pair_rows[] = { 1, 2, 7 };

/* Without counters there are no penalties. */
static int pair_forbidden(const int8_t *level)
{
	return level[F_COUNTS] == 0 &&
	       (level[F_REPETITION] > 0 || level[F_FREQUENCY] > 0 || level[F_PRESENCE] > 0);
}

static struct cairn_pairs pairs = { .num_factors = NUM_FACTORS, .levels = { 3, 3, 3, 3, 3, 3, 3, 2, 4, 3 },
				    .forbidden = pair_forbidden };

/* Returns the levels of a pair case, or NULL. */
static const int8_t *levels_of(int i)
{
	return i < FIRST_PAIR || i >= FIRST_PAIR + NUM_PAIRS ? NULL : cairn_pairs_row(&pairs, i - FIRST_PAIR);
}

#define FIRST_ENDS	(FIRST_PAIR + NUM_PAIRS + 2)
#define NUM_ENDS	60

/* sizes at the ends of tiles (ends.h) */
static struct cairn_pairs ends = { .num_factors = 3, .levels = { CAIRN_FEW_ENDS, CAIRN_NUM_ENDS, 6 } };

static struct shape ends_of(int i)
{
	static const unsigned flags[] = { COUNTS, ALL, BIAS | FORBIDDEN, CAP, COUNTS | IDLE_ROWS,
					 ALL | SPARSE };
	const int8_t *level = cairn_pairs_row(&ends, i);

	return (struct shape){ cairn_ends[level[0]], cairn_ends[level[1]], 9, flags[level[2]] };
}

#define FIRST_LISTS	(FIRST_ENDS + NUM_ENDS)
#define NUM_LISTS	72

/* length of the lists; steps; rows; vocab is so small that the lists are full */
static struct cairn_pairs lists = { .num_factors = 4, .levels = { 9, 8, 5, 2 } };

static struct shape lists_of(int i)
{
	static const int32_t lens[] = { 17, 63, 65, 96, 127, 129, 191, 255, 257 };
	static const int32_t rows[] = { 1, 14, 30, 62, 3 };	/* 17, 33 and 65 slots */
	static const unsigned flags[] = { BIAS, FORBIDDEN, BIAS | CAP, FORBIDDEN | CAP, BIAS | COUNTS,
					 FORBIDDEN | COUNTS, ALL, COUNTS };
	const int8_t *level = cairn_pairs_row(&lists, i);
	const int32_t len = lens[level[0]];

	return (struct shape){ rows[level[2]], level[3] ? 2 * len : len + 7, len, flags[level[1]] };
}

/* vocabularies past 2^17, with some of the features */
static const struct shape wide[] = {
	{ 3, 131099, 40, COUNTS | SPARSE }, { 2, 262147, 40, COUNTS }, { 2, 151939, 40, ALL | IDLE_ROWS },
};

#define FIRST_WIDE	(FIRST_LISTS + NUM_LISTS)
#define NUM_CASES	(FIRST_WIDE + (int)ARRAY_SIZE(wide))

static const struct cairn_draw_axis axes[] = {
	CAIRN_DRAW_SIZE(struct shape, rows, 1, 3000, 1),
	CAIRN_DRAW_SIZE(struct shape, vocab, 1, 270000, 1),
	CAIRN_DRAW_SIZE(struct shape, list, 1, 1500, 1),
	CAIRN_DRAW_ONE_OF(struct shape, flags, 0, CAP),
	CAIRN_DRAW_ONE_OF(struct shape, flags, 0, COUNTS, COUNTS | SPARSE, COUNTS | ONE_SLOT),
	CAIRN_DRAW_ONE_OF(struct shape, flags, 0, BIAS),
	CAIRN_DRAW_ONE_OF(struct shape, flags, 0, FORBIDDEN),
	CAIRN_DRAW_ONE_OF(struct shape, flags, 0, IDLE_ROWS),
};

static int allowed(void *shape, int room)
{
	const struct shape *s = shape;

	return (int64_t)s->rows * s->vocab <= room * 200000 && (int64_t)s->rows * s->list <= room * 50000 &&
	       s->flags & ALL;
}

static const struct cairn_draw draws = {
	.shape_bytes = sizeof(struct shape), .axes = axes, .num_axes = ARRAY_SIZE(axes),
	.allowed = allowed, .many = 4200,
};

static struct shape shape_of(int i)
{
	const int8_t *level = levels_of(i);
	struct shape s;

	if (i >= NUM_CASES) {
		cairn_draw_shape(&draws, i - NUM_CASES, &s);
		return s;
	}
	if (i >= FIRST_WIDE)
		return wide[i - FIRST_WIDE];
	if (i >= FIRST_LISTS)
		return lists_of(i - FIRST_LISTS);
	if (i >= FIRST_ENDS)
		return ends_of(i - FIRST_ENDS);
	if (!level)
		return i < FIRST_PAIR ? shapes[i] : i == FIRST_PAIR + NUM_PAIRS ? untouched : many;
	return (struct shape){ pair_rows[level[F_ROWS]], pair_vocabs[level[F_VOCAB]], 9,
			       pair_counts[level[F_COUNTS]] | (level[F_CAP] ? CAP : 0) |
			       (level[F_BIAS] ? BIAS : 0) | (level[F_FORBIDDEN] ? FORBIDDEN : 0) |
			       (level[F_IDLE] ? IDLE_ROWS : 0) };
}

static void name_pair(char *name, size_t len, const struct shape *s, const int8_t *level)
{
	static const char *const caps[] = { "", "_cap30", "_cap1" };
	static const char *const counts[] = { "", "_sparse", "_counts" };
	static const char *const repetition[] = { "", "_rep", "_rep_below_1" };
	static const char *const frequency[] = { "", "_freq", "_freq_below_0" };
	static const char *const presence[] = { "", "_pres", "_pres_below_0" };
	static const char *const bias[] = { "", "_bias", "_bias_empty" };
	static const char *const forbidden[] = { "", "_forbidden", "_forbidden_empty" };

	snprintf(name, len, "pair_rows%d_vocab%d%s%s%s%s%s%s%s%s", s->rows, s->vocab, caps[level[F_CAP]],
		 counts[level[F_COUNTS]], repetition[level[F_REPETITION]], frequency[level[F_FREQUENCY]],
		 presence[level[F_PRESENCE]], bias[level[F_BIAS]], forbidden[level[F_FORBIDDEN]],
		 level[F_IDLE] ? "_idle" : "");
}

/* Gives the rows of a pair case the penalties and lists of its levels. */
static void set_pair(struct cairn_penalize_args *a, const int8_t *level)
{
	float *values[] = { (float *)a->repetition, (float *)a->frequency, (float *)a->presence };

	if (a->softcap > 0)
		a->softcap = pair_caps[level[F_CAP]];
	for (int32_t i = 0; i < a->rows; i++) {
		for (int f = 0; f < 3 && a->counts; f++)
			values[f][i] = pair_penalties[f][level[F_REPETITION + f]];
		if (level[F_BIAS] == 2)
			((int32_t *)a->num_bias)[i] = 0;
		if (level[F_FORBIDDEN] == 2)
			((int32_t *)a->num_forbidden)[i] = 0;
	}
}

static void describe(int i, struct cairn_case *c)
{
	struct shape shape = shape_of(i), *s = &shape;
	double elements = (double)s->rows * s->vocab;

	if (levels_of(i))
		name_pair(c->name, sizeof(c->name), s, levels_of(i));
	else
		snprintf(c->name, sizeof(c->name), "%s%s%srows%d_vocab%d%s%s%s%s%s",
			 i >= FIRST_WIDE ? "wide_" : i >= FIRST_LISTS ? "lists_" :
			 i >= FIRST_ENDS ? "ends_" : "",
			 s->flags & FAR ? "far_" : "",
			 s->flags & UNTOUCHED ? "untouched_" : "", s->rows, s->vocab,
			 s->flags & CAP ? "_cap" : "", s->flags & COUNTS ? "_counts" : "",
			 s->flags & BIAS ? "_bias" : "", s->flags & FORBIDDEN ? "_forbidden" : "",
			 s->flags & IDLE_ROWS ? "_idle" : "");
	c->kinds = CAIRN_ALL_KINDS & ~CAIRN_KIND_BIT(CAIRN_KIND_EXACT);
	c->far = !!(s->flags & (FAR | UNTOUCHED));
	if (s->flags & (BENCH | DEVICE | FAR | UNTOUCHED) || (i >= FIRST_ENDS && i < NUM_CASES))
		c->kinds = CAIRN_KIND_BIT(i >= FIRST_WIDE && i < NUM_CASES ? CAIRN_KIND_EXTREME :
					  CAIRN_KIND_NORMAL);
	c->bench = !!(s->flags & BENCH);
	c->device_only = !!(s->flags & DEVICE);
	c->sparse = 1;
	/* Counters are read once. With a cap all logits are read and written, else sectors of 32 bytes around
	 * the logits that change. */
	c->bytes = s->flags & COUNTS ? 2 * elements : 0;
	if (s->flags & CAP)
		c->bytes += 8 * elements;
	else if (s->flags & COUNTS)
		c->bytes += 64.0 * s->rows * HISTORY;
	if (!(s->flags & (CAP | COUNTS)))
		c->bytes += 64.0 * s->rows * s->list * 2;
}

/* Returns whether a row of an UNTOUCHED case has no step: neither a slot nor lists, or neutral penalties. */
static int is_idle(const struct shape *s, int32_t row)
{
	return s->flags & UNTOUCHED && (row % 5 == 1 || row % 5 == 3);
}

static void fill_logits(struct cairn_op *op, const struct shape *s, float *x)
{
	static const float odd[] = { INFINITY, -INFINITY, NAN, 0.0f, -0.0f, 1e30f, -1e-40f, 60.0f };
	int64_t count = (int64_t)s->rows * s->vocab;

	if (!(s->flags & UNTOUCHED))
		cairn_fill(op, x, CAIRN_F32, count, 4);
	for (int64_t i = 0; i < count && s->flags & UNTOUCHED; i += s->vocab) {
		if (is_idle(s, (int32_t)(i / s->vocab)))
			continue;
		cairn_touch(op, x, i, s->vocab);
		cairn_fill(op, x + i, CAIRN_F32, s->vocab, 4);
	}
	for (int64_t i = 0; op->kind == CAIRN_KIND_EXTREME && i < count; i++)
		if (cairn_op_rand(op) % 4 == 0)
			x[i] = odd[cairn_op_rand(op) % ARRAY_SIZE(odd)];
	for (int64_t i = 0; op->kind == CAIRN_KIND_EXTREME && i < count; i++)
		if (isnan(x[i]))	/* make it quiet or signalling, of either sign */
			((uint32_t *)x)[i] = 0x7f800001 | (uint32_t)i * 2654435761u >> 9 |
					     (uint32_t)i << 31;
}

static uint16_t some_count(struct cairn_op *op)
{
	uint64_t r = cairn_op_rand(op);
	uint16_t n = (uint16_t)(r % 3 ? r >> 20 & 7 : op->kind == CAIRN_KIND_EXTREME ? 0x7fff : r >> 20 & 63);

	return n | (r & 1 << 8 ? 0x8000 : 0);
}

static void fill_counts(struct cairn_op *op, const struct shape *s, uint16_t *c, int used)
{
	if (!used) {
		memset(c, op->kind == CAIRN_KIND_POISON ? 0xff : 0, (size_t)s->vocab * 2);
		return;
	}
	memset(c, 0, (size_t)s->vocab * 2);
	if (s->flags & SPARSE) {
		for (int k = 0; k < HISTORY; k++)
			c[cairn_op_range(op, 0, s->vocab - 1)] = some_count(op);
	} else {
		for (int32_t j = 0; j < s->vocab; j++)
			if (cairn_op_rand(op) % 3 == 0)
				c[j] = some_count(op);
	}
	c[0] = 0x8000;
	c[s->vocab - 1] = 1;
}

/*
 * Fills a list of distinct ids: two outside the vocabulary, its last token, some others, token 0. The list of
 * an odd row begins with the last token and an id below 0.
 */
static int32_t fill_list(struct cairn_op *op, const struct shape *s, int32_t row, int32_t *ids, int32_t room)
{
	int32_t num = 0, id = row % 2 ? s->vocab - 1 : s->vocab + 1, apart = s->vocab / (room + 1);
	int32_t most = apart > 1 ? 2 * (apart - 1) : 0;	/* so that the list gets `room` entries on average */

	while (num < room && id >= 0) {
		if (num == 1 && row % 2)
			ids[num++] = -row;
		if (num == room)
			break;
		ids[num++] = id;
		id = id > s->vocab - 1 ? id - 1 :
		     id - 1 - (int32_t)cairn_op_range(op, 0, most);
		if (id < 0 && ids[num - 1] > 0)
			id = 0;
	}
	return num;
}

static float some_bias(struct cairn_op *op)
{
	static const float large[] = { INFINITY, -INFINITY, 3e4f, -1e30f };

	if (op->kind == CAIRN_KIND_EXTREME && cairn_op_rand(op) % 4 == 0)
		return large[cairn_op_rand(op) % ARRAY_SIZE(large)];
	return (float)cairn_op_range(op, -100000, 100000) / 1000;
}

/* Lets a list begin with the last token, unless that is in it already. */
static void name_last_token(int32_t *ids, int32_t num, int32_t vocab)
{
	for (int32_t k = 0; k < num; k++)
		if (ids[k] == vocab - 1)
			return;
	if (num)
		ids[0] = vocab - 1;
}

static void setup(struct cairn_op *op)
{
	struct shape shape = shape_of(op->case_index), *s = &shape;
	struct cairn_penalize_args *a = op->args;
	static const float penalties[] = { 1, 1.1f, 0.8f, 2, 1.7f };
	int32_t rows = s->rows, extra = 3;	/* number of slots and of list entries that no row uses */
	int32_t *slots, *at, *num, *ids;
	float *x, *value;
	uint16_t *counts;
	int64_t count;

#define FIELD(f) offsetof(struct cairn_penalize_args, f)
	a->rows = rows;
	a->vocab = s->vocab;
	a->softcap = !(s->flags & CAP) ? 0 : op->case_index < NUM_CASES ? 30 :
		     (float[]){ 30, 1.5f, 50, 5 }[op->case_index % 4];
	x = s->flags & UNTOUCHED ? cairn_inout_far(op, FIELD(logits), CAIRN_F32, (int64_t)rows * s->vocab) :
	    cairn_inout(op, FIELD(logits), CAIRN_F32, (int64_t)rows * s->vocab);
	cairn_shape(op, FIELD(logits), { "row", rows }, { "token", s->vocab });
	fill_logits(op, s, x);
	if (s->flags & COUNTS) {
		a->num_slots = s->flags & FAR ? 131200 : s->flags & ONE_SLOT ? 1 : rows + extra;
		count = (int64_t)a->num_slots * s->vocab * 2;
		counts = s->flags & FAR ? cairn_in_far(op, FIELD(counts), CAIRN_U8, count) :
			 cairn_in(op, FIELD(counts), CAIRN_U8, count);
		slots = cairn_in(op, FIELD(slots), CAIRN_I32, rows);
		for (int f = 0; f < 3; f++) {
			static const size_t fields[] = { FIELD(repetition), FIELD(frequency),
							FIELD(presence) };

			value = cairn_in(op, fields[f], CAIRN_F32, rows);
			cairn_name(op, fields[f], f == 0 ? "repetition" : f == 1 ? "frequency" : "presence");
			for (int32_t i = 0; i < rows; i++)
				value[i] = f ? (float)cairn_op_range(op, -12, 12) / 3 :
					   penalties[cairn_op_rand(op) % ARRAY_SIZE(penalties)];
			for (int32_t i = 0; i < rows; i++) {	/* some rows have only one penalty */
				int lone = (i + op->case_index) % 5;

				if (lone < 3 && f != lone)
					value[i] = f == 0;
			}
			for (int32_t i = 0; i < rows; i++)	/* every penalty is neutral */
				if (s->flags & IDLE_ROWS && i % 5 == 3)
					value[i] = f == 0;
		}
		for (int32_t i = 0; i < rows; i++) {	/* in falling order; some rows have none */
			slots[i] = rows + extra - 1 - i;
			if (s->flags & IDLE_ROWS && i % 5 == 1)
				slots[i] = i % 2 ? -1 : a->num_slots;
		}
		for (int32_t i = 0; i < rows && s->flags & ONE_SLOT; i++)
			slots[i] = i == 1;	/* row 1 has no counters */
		for (int32_t i = 0; i < rows && s->flags & FAR; i++) {
			slots[i] = i == 1 ? 65537 : i ? 1 : a->num_slots - 1;
			cairn_touch(op, counts, (int64_t)slots[i] * s->vocab * 2, s->vocab * 2);
			fill_counts(op, s, counts + (int64_t)slots[i] * s->vocab, 1);
		}
		for (int32_t k = 0; k < a->num_slots && !(s->flags & FAR); k++)
			fill_counts(op, s, counts + (int64_t)k * s->vocab, k >= extra || s->flags & ONE_SLOT);
	}
	for (int list = 0; list < 2; list++) {
		if (!(s->flags & (list ? FORBIDDEN : BIAS)))
			continue;
#define IN(one, other, count) \
	(list ? cairn_in(op, FIELD(one), CAIRN_I32, count) : cairn_in(op, FIELD(other), CAIRN_I32, count))
		at = IN(forbidden_at, bias_at, rows);
		num = IN(num_forbidden, num_bias, rows);
		ids = IN(forbidden_ids, bias_ids, (int64_t)rows * s->list + extra);
#undef IN
		value = list ? NULL : cairn_in(op, FIELD(bias), CAIRN_F32, (int64_t)rows * s->list + extra);
		for (int32_t i = 0; i < rows; i++) {
			at[i] = extra + (rows - 1 - i) * s->list;
			memset(ids + at[i], 0, (size_t)s->list * 4);
			num[i] = fill_list(op, s, i, ids + at[i], s->list);
			if (op->case_index >= FIRST_ENDS && !list)
				name_last_token(ids + at[i], num[i], s->vocab);
			if ((s->flags & IDLE_ROWS && i % 5 == 1) || is_idle(s, i))
				num[i] = 0;
			else if (i % 3 == 2)
				num[i] = (num[i] + 1) / 2;
			for (int32_t k = 0; value && k < s->list; k++)
				value[at[i] + k] = op->kind == CAIRN_KIND_POISON && k >= num[i] ? NAN :
						   some_bias(op);
			for (int32_t k = 0; k < extra; k++)
				ids[k] = (int32_t)k % s->vocab;
		}
	}
	if (levels_of(op->case_index))
		set_pair(a, levels_of(op->case_index));
	/* a row without any step must keep its bits, even NaN */
	for (int32_t i = 1; i < rows && op->kind == CAIRN_KIND_POISON && s->flags & IDLE_ROWS &&
	     !(s->flags & CAP); i += 5)
		cairn_fill_nan(x, CAIRN_F32, (int64_t)i * s->vocab, s->vocab);
#undef FIELD
}

static int exact(const void *args, struct cairn_exact *e)
{
	return cairn_penalize_exact(args, e);
}

/* Drops the first entry of lists with several entries. */
static int shorten(const int32_t *at, const int32_t *num, int32_t rows)
{
	int changed = 0;

	for (int32_t i = 0; num && i < rows; i++) {
		if (num[i] < 2)
			continue;
		((int32_t *)(uintptr_t)at)[i]++;
		((int32_t *)(uintptr_t)num)[i]--;
		changed = 1;
	}
	return changed;
}

static int relist(void *args)
{
	const struct cairn_penalize_args *a = args;
	int changed = shorten(a->bias_at, a->num_bias, a->rows);

	return shorten(a->forbidden_at, a->num_forbidden, a->rows) || changed;
}

static const char *reject(void *args, int i, int *want)
{
	struct cairn_penalize_args *a = args;

	a->rows = 1;
	*want = i < 14 ? -EINVAL : -EOPNOTSUPP;
	switch (i) {
	case 0: a->size = 8; return "old_struct";
	case 1: a->logits = NULL; return "null_logits";
	case 2: a->rows = -1; return "negative_rows";
	case 3: a->vocab = 0; return "no_vocab";
	case 4: a->slots = NULL; return "null_slots";
	case 5: a->repetition = NULL; return "null_repetition";
	case 6: a->frequency = NULL; return "null_frequency";
	case 7: a->presence = NULL; return "null_presence";
	case 8: a->num_bias = a->slots; return "null_bias";
	case 9: a->num_forbidden = a->slots; return "null_forbidden";
	case 10: a->softcap = -1; return "negative_softcap";
	case 11: a->softcap = NAN; return "nan_softcap";
	case 12: a->softcap = INFINITY; return "infinite_softcap";
	case 13: a->logits = a->logits + 1; return "misaligned_logits";
	case 14: a->vocab = (1 << 20) + 1; return "vocab_too_large";
	}
	return NULL;
}

static int part(void *args, int i)
{
	struct cairn_penalize_args *a = args;
	int32_t first;

	if (!cairn_part(a->rows, (int64_t)a->vocab * (int64_t)sizeof(float), 1, i, &first, &a->rows))
		return 0;
	a->logits += (int64_t)first * a->vocab;
	if (a->counts) {
		a->slots += first;
		a->repetition += first;
		a->frequency += first;
		a->presence += first;
	}
	if (a->num_bias) {
		a->num_bias += first;
		a->bias_at += first;
	}
	if (a->num_forbidden) {
		a->num_forbidden += first;
		a->forbidden_at += first;
	}
	return 1;
}

static void pairs_are_covered(struct cairn_test *t)
{
	cairn_pairs_check(t, &pairs, NUM_PAIRS);
	cairn_pairs_check(t, &ends, NUM_ENDS);
	cairn_pairs_check(t, &lists, NUM_LISTS);
}

static const struct cairn_unit units[] = { { "pairs_are_covered", pairs_are_covered } };

const struct cairn_family cairn_penalize_family = {
	.stage = "primitives", .name = "penalize",
	.units = units, .num_units = ARRAY_SIZE(units),
	.op = offsetof(struct cairn_impl, penalize),
	.args_size = sizeof(struct cairn_penalize_args),
	.num_cases = NUM_CASES, .draw = &draws,
	.part = part,
	.describe = describe, .setup = setup, .exact = exact, .reject = reject, .relist = relist,
};
