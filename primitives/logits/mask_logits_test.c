// SPDX-License-Identifier: Apache-2.0
/*
 * mask_logits_test - cases of mask_logits.h
 *
 * Masks are full, empty, dense and sparse by turns, and random bits fill the last word past the vocabulary.
 * Slots fall as rows rise; some are shared, some rows have none, and some lie past the last one. EXTREME:
 * logits of all magnitudes, infinite, NaN. POISON: logits of rows without a mask are NaN, and slots that no
 * row uses have all bits set. In the untouched_* case, rows without a mask lie in memory that a host table
 * cannot access.
 */
#include "conformance/harness.h"
#include "conformance/suite/draw.h"
#include "conformance/suite/ends.h"
#include "conformance/suite/pairs.h"

#include <stdio.h>
#include <string.h>

enum { NO_MASK = 1, SHARED = 2, BEYOND = 4, NO_SLOTS = 8, BENCH = 16, DEVICE = 32, FAR = 64, UNTOUCHED = 128,
       DENSE = 256 /* most tokens are allowed */ };

#define FAR_SLOTS	4194400	/* of 1024 words: the last ones begin past 2^32 words */

static const struct shape {
	int32_t rows, vocab;
	unsigned flags;
} shapes[] = {
	{ 0, 100, 0 },
	{ 1, 1, 0 },
	{ 3, 7, 0 },
	{ 4, 31, NO_MASK },
	{ 4, 32, SHARED },
	{ 4, 33, BEYOND },
	{ 5, 111, NO_MASK | SHARED | BEYOND },
	{ 5, 1000, NO_SLOTS },
	{ 6, 1001, NO_MASK },
	{ 7, 2050, SHARED },
	{ 9, 4099, NO_MASK | BEYOND },
	{ 3, 32000, DENSE },
	{ 2, 131105, NO_MASK },
	{ 2000, 40, NO_MASK | SHARED },		/* many short rows */
	{ 3, 32768, FAR },
	{ 12, 2048, NO_MASK | UNTOUCHED },
	{ 1, 1 << 20, DEVICE },
	{ 300, 50257, DEVICE | NO_MASK },
	{ 1, 128256, BENCH },
	{ 64, 128256, BENCH | DEVICE },
	{ 256, 128256, BENCH | DEVICE },
	{ 64, 128256, BENCH | DEVICE | DENSE },
	{ 256, 128256, BENCH | DEVICE | DENSE },
};

#define FIRST_PAIR	((int)ARRAY_SIZE(shapes))
#define NUM_PAIRS	15

static const int32_t pair_rows[] = { 1, 2, 9 }, pair_vocabs[] = { 2, 29, 64, 259, 1030 };
static struct cairn_pairs pairs = { .num_factors = 5, .levels = { 3, 5, 2, 2, 2 } };

#define FIRST_ENDS	(FIRST_PAIR + NUM_PAIRS)
#define NUM_ENDS	60

/* sizes at the ends of tiles (ends.h) */
static struct cairn_pairs ends = { .num_factors = 5, .levels = { CAIRN_FEW_ENDS, CAIRN_NUM_ENDS, 2, 2, 2 } };

#define NUM_CASES	(FIRST_ENDS + NUM_ENDS)

static const struct cairn_draw_axis axes[] = {
	CAIRN_DRAW_SIZE(struct shape, rows, 1, 70000, 1),
	CAIRN_DRAW_SIZE(struct shape, vocab, 1, 270000, 1),
	CAIRN_DRAW_ONE_OF(struct shape, flags, 0, NO_MASK),
	CAIRN_DRAW_ONE_OF(struct shape, flags, 0, SHARED),
	CAIRN_DRAW_ONE_OF(struct shape, flags, 0, BEYOND),
	CAIRN_DRAW_ONE_OF(struct shape, flags, 0, DENSE),
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
	const int8_t *level;
	struct shape s;

	if (i < FIRST_PAIR)
		return shapes[i];
	if (i >= NUM_CASES) {
		cairn_draw_shape(&draws, i - NUM_CASES, &s);
		return s;
	}
	if (i >= FIRST_ENDS) {
		level = cairn_pairs_row(&ends, i - FIRST_ENDS);
		return (struct shape){ cairn_ends[level[0]], cairn_ends[level[1]], (level[2] ? NO_MASK : 0) |
				       (level[3] ? SHARED : 0) | (level[4] ? DENSE : 0) };
	}
	level = cairn_pairs_row(&pairs, i - FIRST_PAIR);
	return (struct shape){ pair_rows[level[0]], pair_vocabs[level[1]],
			       (level[2] ? NO_MASK : 0) | (level[3] ? SHARED : 0) | (level[4] ? BEYOND : 0) };
}

static void describe(int i, struct cairn_case *c)
{
	struct shape s = shape_of(i);

	snprintf(c->name, sizeof(c->name), "%s%s%srows%d_vocab%d%s%s%s%s%s",
		 i >= FIRST_ENDS ? "ends_" : i >= FIRST_PAIR ? "pair_" : "", s.flags & FAR ? "far_" : "",
		 s.flags & UNTOUCHED ? "untouched_" : "", s.rows, s.vocab,
		 s.flags & NO_MASK ? "_some" : "", s.flags & SHARED ? "_shared" : "",
		 s.flags & BEYOND ? "_beyond" : "", s.flags & NO_SLOTS ? "_no_slots" : "",
		 s.flags & DENSE ? "_dense" : "");
	c->kinds = CAIRN_ALL_KINDS & ~CAIRN_KIND_BIT(CAIRN_KIND_EXACT);
	c->far = !!(s.flags & (FAR | UNTOUCHED));
	if (s.flags & (BENCH | DEVICE | FAR | UNTOUCHED) || (i >= FIRST_ENDS && i < NUM_CASES))
		c->kinds = CAIRN_KIND_BIT(CAIRN_KIND_NORMAL);
	c->bench = !!(s.flags & BENCH);
	c->device_only = !!(s.flags & DEVICE);
	/* the words, and the excluded logits: sectors of 32 bytes where few are excluded */
	c->sparse = 1;
	c->bytes = (double)s.rows * s.vocab * (s.flags & DENSE ? 32.0 / 64 : 4) +
		   (double)s.rows * ((s.vocab + 31) / 32) * 4;
}

/* Returns whether row i has no mask. */
static int is_idle(const struct shape *s, int32_t i)
{
	return s->flags & NO_MASK && i % 3 == 1;
}

static void fill_logits(struct cairn_op *op, const struct shape *s, float *x)
{
	static const float odd[] = { INFINITY, -INFINITY, NAN, 0.0f, -0.0f, 1e30f, -1e-40f };
	int64_t count = (int64_t)s->rows * s->vocab;

	if (!(s->flags & UNTOUCHED))
		cairn_fill(op, x, CAIRN_F32, count, 4);
	for (int32_t i = 0; s->flags & UNTOUCHED && i < s->rows; i++) {
		if (is_idle(s, i))
			continue;
		cairn_touch(op, x, (int64_t)i * s->vocab, s->vocab);
		cairn_fill(op, x + (int64_t)i * s->vocab, CAIRN_F32, s->vocab, 4);
	}
	for (int64_t i = 0; op->kind == CAIRN_KIND_EXTREME && i < count; i++)
		if (cairn_op_rand(op) % 4 == 0)
			x[i] = odd[cairn_op_rand(op) % ARRAY_SIZE(odd)];
	for (int32_t i = 0; op->kind == CAIRN_KIND_POISON && i < s->rows; i++)
		if (is_idle(s, i))
			cairn_fill_nan(x, CAIRN_F32, (int64_t)i * s->vocab, s->vocab);
}

static void fill_mask(struct cairn_op *op, const struct shape *s, uint32_t *bits, int32_t slot)
{
	int32_t words = (s->vocab + 31) / 32;

	for (int32_t w = 0; w < words; w++) {
		uint32_t r = (uint32_t)cairn_op_rand(op), q = (uint32_t)cairn_op_rand(op);

		if (s->flags & DENSE)
			bits[w] = r % 2 ? UINT32_MAX : ~(1u << q % 32);
		else
			bits[w] = slot % 4 == 3 ? 0 : r % 8 == 0 ? UINT32_MAX : r % 8 < 4 ? 0 :
				  r % 8 < 6 ? q & (q >> 3) & (q << 7) : q;
	}
	if (!(s->flags & DENSE) && slot % 2) {		/* the last token alone is allowed in its word */
		bits[words - 1] &= s->vocab % 32 ? UINT32_MAX << s->vocab % 32 : 0;
		bits[words - 1] |= 1u << (s->vocab - 1) % 32;
	}
}

#define FIELD(f) offsetof(struct cairn_mask_logits_args, f)

static int32_t slot_of(const struct shape *s, int32_t i, int32_t num_slots)
{
	if (is_idle(s, i))
		return i % 2 ? -1 : INT32_MIN;
	if (s->flags & NO_SLOTS || (s->flags & BEYOND && i % 4 == 2))
		return i % 3 ? num_slots : INT32_MAX;
	if (s->flags & FAR)
		return i == 1 ? 65537 : i ? 1 : num_slots - 1;
	return num_slots - 1 - (s->flags & SHARED ? i / 2 : i);
}

static void setup(struct cairn_op *op)
{
	struct shape shape = shape_of(op->case_index), *s = &shape;
	struct cairn_mask_logits_args *a = op->args;
	int32_t words = (s->vocab + 31) / 32, *slot;
	int64_t count;
	uint32_t *bits;
	float *x;

	a->rows = s->rows;
	a->vocab = s->vocab;
	a->num_slots = s->flags & NO_SLOTS ? 0 : s->flags & FAR ? FAR_SLOTS : s->rows + 2;
	count = (int64_t)a->num_slots * words;
	x = s->flags & UNTOUCHED ?
	    cairn_inout_far(op, FIELD(logits), CAIRN_F32, (int64_t)s->rows * s->vocab) :
	    cairn_inout(op, FIELD(logits), CAIRN_F32, (int64_t)s->rows * s->vocab);
	cairn_shape(op, FIELD(logits), { "row", s->rows }, { "token", s->vocab });
	fill_logits(op, s, x);
	slot = cairn_in(op, FIELD(slot), CAIRN_I32, s->rows);
	for (int32_t i = 0; i < s->rows; i++)
		slot[i] = slot_of(s, i, a->num_slots);
	if (s->flags & NO_SLOTS)
		return;
	bits = s->flags & FAR ? cairn_in_far(op, FIELD(bits), CAIRN_I32, count) :
	       cairn_in(op, FIELD(bits), CAIRN_I32, count);
	for (int32_t i = 0; s->flags & FAR && i < s->rows; i++) {
		cairn_touch(op, bits, (int64_t)slot[i] * words, words);
		fill_mask(op, s, bits + (int64_t)slot[i] * words, 4 + i);
	}
	for (int32_t k = 0; !(s->flags & FAR) && k < a->num_slots; k++) {
		fill_mask(op, s, bits + (int64_t)k * words, k);
		if (op->kind == CAIRN_KIND_POISON && k < 2)
			memset(bits + (int64_t)k * words, 0xff, (size_t)words * 4);
	}
}

static int exact(const void *args, struct cairn_exact *e)
{
	return cairn_mask_logits_exact(args, e);
}

/* Turns the order of the slots around. */
static int relist(void *args)
{
	const struct cairn_mask_logits_args *a = args;
	int32_t *slot = (int32_t *)(uintptr_t)a->slot;

	for (int32_t i = 0; i < a->rows / 2; i++) {
		int32_t other = slot[a->rows - 1 - i];

		slot[a->rows - 1 - i] = slot[i];
		slot[i] = other;
	}
	return a->rows > 1;
}

static const char *reject(void *args, int i, int *want)
{
	struct cairn_mask_logits_args *a = args;

	a->rows = 1;
	*want = i < 9 ? -EINVAL : -EOPNOTSUPP;
	switch (i) {
	case 0: a->size = 8; return "old_struct";
	case 1: a->logits = NULL; return "null_logits";
	case 2: a->bits = NULL; return "null_bits";
	case 3: a->slot = NULL; return "null_slot";
	case 4: a->rows = -1; return "negative_rows";
	case 5: a->vocab = 0; return "no_vocab";
	case 6: a->num_slots = -1; return "negative_num_slots";
	case 7: a->logits = a->logits + 1; return "misaligned_logits";
	case 8: a->bits = (const uint32_t *)((const char *)a->bits + 2); return "misaligned_bits";
	case 9: a->vocab = (1 << 20) + 1; return "vocab_too_large";
	}
	return NULL;
}

static int part(void *args, int i)
{
	struct cairn_mask_logits_args *a = args;
	int32_t first;

	if (!cairn_part(a->rows, (int64_t)a->vocab * (int64_t)sizeof(float), 1, i, &first, &a->rows))
		return 0;
	a->logits += (int64_t)first * a->vocab;
	a->slot += first;
	return 1;
}

static void pairs_are_covered(struct cairn_test *t)
{
	cairn_pairs_check(t, &pairs, NUM_PAIRS);
	cairn_pairs_check(t, &ends, NUM_ENDS);
}

static const struct cairn_unit units[] = { { "pairs_are_covered", pairs_are_covered } };

const struct cairn_family cairn_mask_logits_family = {
	.stage = "primitives", .name = "mask_logits",
	.units = units, .num_units = ARRAY_SIZE(units),
	.op = offsetof(struct cairn_impl, mask_logits),
	.args_size = sizeof(struct cairn_mask_logits_args),
	.num_cases = NUM_CASES, .draw = &draws,
	.part = part,
	.describe = describe, .setup = setup, .exact = exact, .reject = reject, .relist = relist,
};
