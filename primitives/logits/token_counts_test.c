// SPDX-License-Identifier: Apache-2.0
/*
 * token_counts_test - cases of token_counts.h
 *
 * A case mixes slots that are copied to, copied from, added to and unused; a token repeated many times in one
 * segment and in many; counters near saturation and saturated; tokens and slots outside the valid range.
 * EXTREME: all counters are 32764 to 32767. POISON: slots that are cleared, or that are targets of copies,
 * have all bits set beforehand. The pair cases combine all of this.
 */
#include "conformance/harness.h"
#include "conformance/suite/draw.h"
#include "conformance/suite/ends.h"
#include "conformance/suite/pairs.h"

#include <stdio.h>
#include <stdlib.h>

enum { INDPTR = 1, PROMPT = 2, SKEWED = 4, OUTSIDE = 8, TRAILING = 16, BENCH = 32, ONE_SLOT = 64,
       FAR = 128 };

static const struct shape {
	const char *name;
	int32_t slots, vocab, copies, tokens, segments;
	unsigned flags;
} shapes[] = {
	{ "one_token", .slots = 1, .vocab = 8, .tokens = 1, .segments = 1 },
	{ "nothing", .slots = 3, .vocab = 100 },
	{ "clear_one", .slots = 4, .vocab = 1000, .copies = 1 },
	{ "clear_copy_odd_vocab", .slots = 9, .vocab = 1003, .copies = 6 },
	{ "copies_wide", .slots = 12, .vocab = 4096, .copies = 8 },
	{ "pass_64", .slots = 64, .vocab = 1000, .tokens = 64, .segments = 64 },
	{ "pass_300_outside", .slots = 99, .vocab = 777, .tokens = 300, .segments = 300, .flags = OUTSIDE },
	{ "pass_same_slot", .slots = 2, .vocab = 64, .tokens = 500, .segments = 500,
	  .flags = SKEWED | ONE_SLOT },
	/* enough tokens that additions are lost unless they are atomic */
	{ "pass_same_slot_30000", .slots = 2, .vocab = 64, .tokens = 30000, .segments = 30000,
	  .flags = SKEWED | ONE_SLOT },
	{ "pass_after_copies", .slots = 40, .vocab = 2048, .copies = 11, .tokens = 33, .segments = 33,
	  .flags = OUTSIDE },
	{ "prompt_1", .slots = 5, .vocab = 32000, .copies = 1, .tokens = 700, .segments = 1,
	  .flags = INDPTR | PROMPT | ONE_SLOT },
	{ "prompts_7", .slots = 9, .vocab = 5003, .copies = 5, .tokens = 2000, .segments = 7,
	  .flags = INDPTR | PROMPT },
	{ "prompts_outside", .slots = 9, .vocab = 5003, .copies = 5, .tokens = 2000, .segments = 40,
	  .flags = INDPTR | PROMPT | OUTSIDE | TRAILING },
	{ "prompts_skewed", .slots = 3, .vocab = 501, .copies = 2, .tokens = 3000, .segments = 12,
	  .flags = INDPTR | PROMPT | SKEWED },
	{ "answers_7", .slots = 9, .vocab = 5003, .copies = 5, .tokens = 2000, .segments = 7,
	  .flags = INDPTR },
	{ "answers_skewed", .slots = 3, .vocab = 17, .copies = 1, .tokens = 3000, .segments = 12,
	  .flags = INDPTR | SKEWED },
	{ "answers_empty_segments", .slots = 20, .vocab = 300, .copies = 3, .tokens = 40, .segments = 90,
	  .flags = INDPTR | OUTSIDE | TRAILING },
	{ "no_segments", .slots = 4, .vocab = 64, .tokens = 5, .flags = INDPTR | TRAILING },
	{ "vocab_1", .slots = 5, .vocab = 1, .copies = 2, .tokens = 60, .segments = 60, .flags = OUTSIDE },
	{ "vocab_2_20", .slots = 2, .vocab = 1 << 20, .copies = 1, .tokens = 900, .segments = 3,
	  .flags = INDPTR },
	{ "pass_64_vocab128256", .slots = 64, .vocab = 128256, .tokens = 64, .segments = 64, .flags = BENCH },
	{ "start_vocab128256_prompt2048", .slots = 64, .vocab = 128256, .copies = 1, .tokens = 2048,
	  .segments = 1, .flags = BENCH | INDPTR | PROMPT | ONE_SLOT },
	/* the last slots begin past 2^32 counters */
	{ "far_slots", .slots = 131200, .vocab = 32768, .copies = 2, .tokens = 4, .segments = 4,
	  .flags = FAR },
	{ "large_vocab_copies_5", .slots = 12, .vocab = 128257, .copies = 5, .tokens = 40, .segments = 6,
	  .flags = INDPTR },
	/* one segment, so long that the threads which share it run at the same time */
	{ "answer_of_1000000", .slots = 2, .vocab = 64, .tokens = 1000000, .segments = 1,
	  .flags = INDPTR | ONE_SLOT },
	/* a counter of 16 bits would come back to 0 */
	{ "answer_of_65536_equal", .slots = 2, .vocab = 1, .tokens = 65536, .segments = 1,
	  .flags = INDPTR | ONE_SLOT },
	{ "copies_1100", .slots = 1400, .vocab = 8, .copies = 1100, .tokens = 1200, .segments = 1200 },
};

#define FIRST_PAIR	((int)ARRAY_SIZE(shapes))
#define NUM_PAIRS	22

/* The last cases: enough short segments that several threads work on them at the same time */
static const struct shape last[] = {
	{ "pass_same_slot_100000", .slots = 2, .vocab = 64, .tokens = 100000, .segments = 100000,
	  .flags = ONE_SLOT },
	{ "answers_same_slot_50000", .slots = 2, .vocab = 64, .tokens = 100000, .segments = 50000,
	  .flags = INDPTR | ONE_SLOT },
	{ "prompts_vocab131075", .slots = 6, .vocab = 131075, .copies = 1, .tokens = 900, .segments = 12,
	  .flags = INDPTR | PROMPT },
	{ "pass_vocab151939", .slots = 3, .vocab = 151939, .tokens = 200, .segments = 200 },
};

enum { F_PROMPT, F_INDPTR, F_COPIES, F_OUTSIDE, F_SPREAD, F_TRAILING, F_VOCAB, F_SLOTS, F_TOKENS,
       NUM_FACTORS };
static const int32_t pair_vocabs[] = { 1, 17, 300, 1003, 2048 }, pair_slots[] = { 1, 3, 20 };
static const int32_t pair_tokens[] = { 0, 1, 40, 700 }, pair_spreads[] = { 0, SKEWED, ONE_SLOT };

static int pair_forbidden(const int8_t *level)
{
	return level[F_TRAILING] == 1 && level[F_INDPTR] == 0;
}

static struct cairn_pairs pairs = { .num_factors = NUM_FACTORS, .levels = { 2, 2, 3, 2, 3, 2, 5, 3, 4 },
				    .forbidden = pair_forbidden };

#define FIRST_ENDS	(FIRST_PAIR + NUM_PAIRS + (int)ARRAY_SIZE(last))
#define NUM_ENDS	100

/* sizes at the ends of tiles (ends.h): vocabularies, tokens, copies */
static const int32_t ends_copies[] = { 0, 1, 7, 9, 17, 33 };
static struct cairn_pairs ends = {
	.num_factors = 4, .levels = { CAIRN_NUM_ENDS, CAIRN_NUM_ENDS, 6, 6 },
};

static struct shape ends_of(int i)
{
	static const unsigned flags[] = { 0, INDPTR, INDPTR | PROMPT, SKEWED, OUTSIDE, INDPTR | OUTSIDE };
	const int8_t *level = cairn_pairs_row(&ends, i);
	struct shape s = { .slots = 50, .vocab = cairn_ends[level[0]], .tokens = cairn_ends[level[1]],
			   .copies = ends_copies[level[2]], .flags = flags[level[3]] };

	s.segments = s.flags & INDPTR ? (s.tokens + 6) / 7 : s.tokens;
	return s;
}

#define NUM_CASES	(FIRST_ENDS + NUM_ENDS)

static const struct cairn_draw_axis axes[] = {
	CAIRN_DRAW_SIZE(struct shape, slots, 1, 2000, 1),
	CAIRN_DRAW_SIZE(struct shape, vocab, 1, 270000, 1),
	CAIRN_DRAW_SIZE(struct shape, tokens, 0, 70000, 1),
	CAIRN_DRAW_SIZE(struct shape, copies, 0, 1000, 1),
	CAIRN_DRAW_SIZE(struct shape, segments, 1, 2000, 1),
	CAIRN_DRAW_ONE_OF(struct shape, flags, 0, INDPTR, INDPTR | TRAILING),
	CAIRN_DRAW_ONE_OF(struct shape, flags, 0, PROMPT),
	CAIRN_DRAW_ONE_OF(struct shape, flags, 0, OUTSIDE),
	CAIRN_DRAW_ONE_OF(struct shape, flags, 0, 0, SKEWED, ONE_SLOT),
};

static int allowed(void *shape, int room)
{
	struct shape *s = shape;

	if (!(s->flags & INDPTR))
		s->segments = s->tokens;
	return (int64_t)s->slots * s->vocab <= room * 400000 && s->copies <= s->slots &&
	       s->copies + s->tokens > 0;
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
	if (i >= FIRST_ENDS)
		return ends_of(i - FIRST_ENDS);
	if (i >= FIRST_PAIR + NUM_PAIRS)
		return last[i - FIRST_PAIR - NUM_PAIRS];
	level = cairn_pairs_row(&pairs, i - FIRST_PAIR);
	s = (struct shape){ .slots = pair_slots[level[F_SLOTS]], .vocab = pair_vocabs[level[F_VOCAB]],
			    .tokens = pair_tokens[level[F_TOKENS]] };
	s.copies = level[F_COPIES] == 2 ? (2 * s.slots + 2) / 3 : level[F_COPIES];
	s.segments = level[F_INDPTR] ? (s.tokens + 6) / 7 : s.tokens;
	s.flags = (level[F_PROMPT] ? PROMPT : 0) | (level[F_INDPTR] ? INDPTR : 0) |
		  (level[F_OUTSIDE] ? OUTSIDE : 0) | (level[F_TRAILING] ? TRAILING : 0) |
		  (unsigned)pair_spreads[level[F_SPREAD]];
	return s;
}

static void describe(int i, struct cairn_case *c)
{
	struct shape shape = shape_of(i), *s = &shape;

	snprintf(c->name, sizeof(c->name), "%s", s->name ? s->name : "");
	if (!s->name)
		snprintf(c->name, sizeof(c->name), "%s_slots%d_vocab%d_copies%d_tokens%d%s%s%s%s%s%s",
			 i >= FIRST_ENDS ? "ends" : "pair", s->slots, s->vocab, s->copies, s->tokens,
			 s->flags & PROMPT ? "_prompt" : "", s->flags & INDPTR ? "_indptr" : "",
			 s->flags & OUTSIDE ? "_outside" : "",
			 s->flags & SKEWED ? "_skewed" : "", s->flags & ONE_SLOT ? "_one_slot" : "",
			 s->flags & TRAILING ? "_trailing" : "");
	c->kinds = s->flags & BENCH ? CAIRN_KIND_BIT(CAIRN_KIND_NORMAL) :
		   CAIRN_ALL_KINDS & ~CAIRN_KIND_BIT(CAIRN_KIND_EXACT);
	c->bench = !!(s->flags & BENCH);
	c->far = !!(s->flags & FAR);
	if (c->far || (i >= FIRST_ENDS && i < NUM_CASES))
		c->kinds = CAIRN_KIND_BIT(CAIRN_KIND_NORMAL);
	c->sparse = 1;
	/* a counter is read and written as a sector of 32 bytes; a cleared slot is written */
	c->bytes = 4.0 * s->tokens + 64.0 * s->tokens + 2.0 * s->copies * s->vocab;
}

static int32_t some_token(struct cairn_op *op, const struct shape *s)
{
	if (s->flags & OUTSIDE && cairn_op_rand(op) % 7 == 0)
		return cairn_op_rand(op) % 2 ? -(int32_t)cairn_op_range(op, 1, 9) :
		       s->vocab + (int32_t)cairn_op_range(op, 0, 9);
	if (s->flags & SKEWED && cairn_op_rand(op) % 2)
		return s->vocab / 2;
	if (s->vocab > 131072 && cairn_op_rand(op) % 4 == 0)	/* the ends of large vocabularies */
		return s->vocab - 1 - (int32_t)cairn_op_range(op, 0, 3);
	return (int32_t)cairn_op_range(op, 0, s->vocab - 1);
}

/* Copies to the last slots, and additions to slots near the beginning, past 2^16 and at the end. */
static void fill_far(struct cairn_op *op, const struct shape *s)
{
	const int32_t to[] = { s->slots - 1, s->slots - 3 }, from[] = { s->slots - 2, -1 };
	const int32_t slots[] = { 1, 65537, s->slots - 1, s->slots - 3 }, touched = 5;
	const int32_t all[] = { 1, 65537, s->slots - 3, s->slots - 2, s->slots - 1 };
	int64_t bytes = 2 * (int64_t)s->vocab;
	uint8_t *counts = cairn_inout_far(op, offsetof(struct cairn_token_counts_args, counts), CAIRN_U8,
					  s->slots * bytes);
	int32_t *tokens = cairn_in(op, offsetof(struct cairn_token_counts_args, tokens), CAIRN_I32,
				   s->tokens);

	cairn_shape(op, offsetof(struct cairn_token_counts_args, counts), { "slot", s->slots },
		    { "token", s->vocab }, { "byte", 2 });

	for (int k = 0; k < touched; k++) {
		uint16_t *c = (uint16_t *)(counts + all[k] * bytes);

		cairn_touch(op, counts, all[k] * bytes, bytes);
		for (int32_t j = 0; j < s->vocab; j++)
			c[j] = (uint16_t)cairn_op_range(op, 0, 99);
	}
	memcpy(cairn_in(op, offsetof(struct cairn_token_counts_args, copy_to), CAIRN_I32, 2), to, sizeof(to));
	memcpy(cairn_in(op, offsetof(struct cairn_token_counts_args, copy_from), CAIRN_I32, 2), from,
	       sizeof(from));
	memcpy(cairn_in(op, offsetof(struct cairn_token_counts_args, slots), CAIRN_I32, 4), slots,
	       sizeof(slots));
	for (int32_t i = 0; i < s->tokens; i++)
		tokens[i] = some_token(op, s);
}

static void setup(struct cairn_op *op)
{
	struct shape shape = shape_of(op->case_index), *s = &shape;
	struct cairn_token_counts_args *a = op->args;
	int64_t count = (int64_t)s->slots * s->vocab;
	int32_t *to, *from, *tokens, *slots, *indptr, segments = s->segments;
	uint16_t *counts;

	a->num_slots = s->slots;
	a->vocab = s->vocab;
	a->num_copies = s->copies;
	a->num_tokens = s->tokens;
	a->num_segments = segments;
	a->prompt = !!(s->flags & PROMPT);
	if (s->flags & FAR) {
		fill_far(op, s);
		return;
	}
	counts = cairn_inout(op, offsetof(struct cairn_token_counts_args, counts), CAIRN_U8, 2 * count);
	cairn_shape(op, offsetof(struct cairn_token_counts_args, counts), { "slot", s->slots },
		    { "token", s->vocab }, { "byte", 2 });
	to = cairn_in(op, offsetof(struct cairn_token_counts_args, copy_to), CAIRN_I32, s->copies);
	from = cairn_in(op, offsetof(struct cairn_token_counts_args, copy_from), CAIRN_I32, s->copies);
	tokens = cairn_in(op, offsetof(struct cairn_token_counts_args, tokens), CAIRN_I32, s->tokens);
	slots = cairn_in(op, offsetof(struct cairn_token_counts_args, slots), CAIRN_I32, segments);
	for (int64_t i = 0; i < count; i++) {
		uint64_t r = cairn_op_rand(op);

		counts[i] = (uint16_t)(r >> 32 & CAIRN_TOKEN_IN_PROMPT);
		counts[i] |= op->kind == CAIRN_KIND_EXTREME ? CAIRN_TOKEN_COUNT - r % 4 : r % 3 ? 0 : r % 99;
	}
	/* targets are slots copies - 1 .. 0, sources those after them; every second case is mirrored */
	for (int32_t c = 0; c < s->copies; c++) {
		to[c] = s->copies - 1 - c;
		from[c] = s->copies < s->slots && cairn_op_rand(op) % 2 ?
			  (int32_t)cairn_op_range(op, s->copies, s->slots - 1) : -1 - c;
		if (op->case_index % 2) {
			to[c] = s->slots - 1 - to[c];
			from[c] = from[c] < 0 ? from[c] : s->slots - 1 - from[c];
		}
		if (s->flags & OUTSIDE && c % 4 == 3) {
			*(c % 8 == 3 ? &to[c] : &from[c]) = s->slots + (c & 8 ? c : 0);
			if (c % 8 == 3 && from[c] >= s->slots)
				from[c] = -1;
		}
		if (op->kind == CAIRN_KIND_POISON && to[c] < s->slots && from[c] < s->slots)
			memset(counts + (int64_t)to[c] * s->vocab, 0xff, (size_t)s->vocab * 2);
	}
	for (int32_t i = 0; i < s->tokens; i++)
		tokens[i] = some_token(op, s);
	for (int32_t k = 0; k < segments; k++) {
		slots[k] = s->flags & ONE_SLOT ? s->slots - 1 : (int32_t)cairn_op_range(op, 0, s->slots - 1);
		if (s->flags & OUTSIDE && k % 5 == 2)
			slots[k] = k % 2 ? -1 : s->slots;
	}
	if (!(s->flags & INDPTR))
		return;
	indptr = cairn_in(op, offsetof(struct cairn_token_counts_args, indptr), CAIRN_I32, segments + 1);
	for (int32_t k = 0; k <= segments; k++)
		indptr[k] = segments ? (int32_t)((int64_t)s->tokens * k / segments) : 0;
	for (int32_t k = 1; k < segments; k++)	/* makes some segments empty and others long */
		if (k % 3 == 1)
			indptr[k] = indptr[k - 1];
	if (s->flags & TRAILING && segments)
		indptr[segments] -= (indptr[segments] - indptr[segments - 1]) / 2;
}

static int exact(const void *args, struct cairn_exact *e)
{
	return cairn_token_counts_exact(args, e);
}

/* Leaves out the last token and swaps the slots of two segments. */
static int relist(void *args)
{
	const struct cairn_token_counts_args *a = args;
	int32_t *indptr = (int32_t *)(uintptr_t)a->indptr, *slots = (int32_t *)(uintptr_t)a->slots;
	int32_t n = a->num_segments, end = indptr ? indptr[n] : 0, slot = n > 1 ? slots[0] : 0;

	for (int32_t s = n; end && s > 0 && indptr[s] == end; s--)
		indptr[s]--;
	if (n > 1) {
		slots[0] = slots[n - 1];
		slots[n - 1] = slot;
	}
	return end || n > 1;
}

static const char *reject(void *args, int i, int *want)
{
	static int32_t nothing[4];
	struct cairn_token_counts_args *a = args;

	*want = i < 13 ? -EINVAL : -EOPNOTSUPP;
	switch (i) {
	case 0: a->size = 0; return "old_struct";
	case 1: a->counts = NULL; return "null_counts";
	case 2: a->tokens = NULL; return "null_tokens";
	case 3: a->slots = NULL; return "null_slots";
	case 4: a->num_copies = 1; a->copy_to = NULL; return "null_copy_to";
	case 5: a->num_slots = -1; return "negative_slots";
	case 6: a->vocab = 0; return "no_vocab";
	case 7: a->num_tokens = -1; return "negative_tokens";
	case 8: a->num_tokens = 2; return "tokens_are_not_segments";
	case 9: a->prompt = 2; return "prompt_2";
	case 10: a->counts = a->counts + 1; return "misaligned_counts";
	case 11: a->num_copies = -1; return "negative_copies";
	case 12:
		a->num_tokens = 0;
		a->indptr = memset(nothing, 0, sizeof(nothing));
		a->num_segments = ARRAY_SIZE(nothing) - 1;
		a->slots = NULL;
		return "null_slots_of_empty_segments";
	case 13: a->vocab = (1 << 20) + 1; return "vocab_too_large";
	}
	return NULL;
}

static void pairs_are_covered(struct cairn_test *t)
{
	cairn_pairs_check(t, &pairs, NUM_PAIRS);
	cairn_pairs_check(t, &ends, NUM_ENDS);
}

static const struct cairn_unit units[] = { { "pairs_are_covered", pairs_are_covered } };

const struct cairn_family cairn_token_counts_family = {
	.stage = "primitives", .name = "token_counts",
	.units = units, .num_units = ARRAY_SIZE(units),
	.op = offsetof(struct cairn_impl, token_counts),
	.args_size = sizeof(struct cairn_token_counts_args),
	.num_cases = NUM_CASES, .draw = &draws,
	.exact_is_equal = 1,
	.describe = describe, .setup = setup, .exact = exact, .reject = reject, .relist = relist,
};
