// SPDX-License-Identifier: Apache-2.0
/*
 * token_counts_test - cases of token_counts.h
 *
 * Slots that are copied to, copied from, added to and left alone, side by side; the same token many times,
 * from one segment and from many; counters near their end and already there; tokens and slots outside.
 * EXTREME: all counters are within a few of 32767. POISON: what a slot that is cleared or copied to held is
 * all ones.
 */
#include "conformance/harness.h"

#include <stdio.h>
#include <stdlib.h>

enum { INDPTR = 1, PROMPT = 2, SKEWED = 4, OUTSIDE = 8, TRAILING = 16, BENCH = 32, ONE_SLOT = 64 };

static const struct shape {
	const char *name;
	int32_t slots, vocab, copies, tokens, segments;
	unsigned flags;
} shapes[] = {
	{ "one_token", 1, 8, 0, 1, 1, 0 },
	{ "nothing", 3, 100, 0, 0, 0, 0 },
	{ "clear_one", 4, 1000, 1, 0, 0, 0 },
	{ "clear_copy_odd_vocab", 9, 1003, 6, 0, 0, 0 },
	{ "copies_wide", 12, 4096, 8, 0, 0, 0 },
	{ "pass_64", 64, 1000, 0, 64, 64, 0 },
	{ "pass_300_outside", 99, 777, 0, 300, 300, OUTSIDE },
	{ "pass_same_slot", 2, 64, 0, 500, 500, SKEWED | ONE_SLOT },
	{ "pass_after_copies", 40, 2048, 11, 33, 33, OUTSIDE },
	{ "prompt_1", 5, 32000, 1, 700, 1, INDPTR | PROMPT | ONE_SLOT },
	{ "prompts_7", 9, 5003, 5, 2000, 7, INDPTR | PROMPT },
	{ "prompts_outside", 9, 5003, 5, 2000, 40, INDPTR | PROMPT | OUTSIDE | TRAILING },
	{ "prompts_skewed", 3, 501, 2, 3000, 12, INDPTR | PROMPT | SKEWED },
	{ "answers_7", 9, 5003, 5, 2000, 7, INDPTR },
	{ "answers_skewed", 3, 17, 1, 3000, 12, INDPTR | SKEWED },
	{ "answers_empty_segments", 20, 300, 3, 40, 90, INDPTR | OUTSIDE | TRAILING },
	{ "no_segments", 4, 64, 0, 5, 0, INDPTR | TRAILING },
	{ "vocab_1", 5, 1, 2, 60, 60, OUTSIDE },
	{ "vocab_2_20", 2, 1 << 20, 1, 900, 3, INDPTR },
	{ "pass_64_vocab128256", 64, 128256, 0, 64, 64, BENCH },
	{ "start_vocab128256_prompt2048", 64, 128256, 1, 2048, 1, BENCH | INDPTR | PROMPT | ONE_SLOT },
};

static void describe(int i, struct cairn_case *c)
{
	const struct shape *s = &shapes[i];

	snprintf(c->name, sizeof(c->name), "%s", s->name);
	c->kinds = s->flags & BENCH ? CAIRN_KIND_BIT(CAIRN_KIND_NORMAL) :
		   CAIRN_ALL_KINDS & ~CAIRN_KIND_BIT(CAIRN_KIND_EXACT);
	c->bench = !!(s->flags & BENCH);
	c->sparse = 1;
	/* a counter is read and written by sectors of 32 bytes; a slot that is cleared is written */
	c->bytes = 4.0 * s->tokens + 64.0 * s->tokens + 2.0 * s->copies * s->vocab;
}

static int32_t some_token(struct cairn_op *op, const struct shape *s)
{
	if (s->flags & OUTSIDE && cairn_op_rand(op) % 7 == 0)
		return cairn_op_rand(op) % 2 ? -(int32_t)cairn_op_range(op, 1, 9) :
		       s->vocab + (int32_t)cairn_op_range(op, 0, 9);
	if (s->flags & SKEWED && cairn_op_rand(op) % 2)
		return s->vocab / 2;
	return (int32_t)cairn_op_range(op, 0, s->vocab - 1);
}

static void setup(struct cairn_op *op)
{
	const struct shape *s = &shapes[op->case_index];
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
	counts = cairn_inout(op, offsetof(struct cairn_token_counts_args, counts), CAIRN_U8, 2 * count);
	to = cairn_in(op, offsetof(struct cairn_token_counts_args, copy_to), CAIRN_I32, s->copies);
	from = cairn_in(op, offsetof(struct cairn_token_counts_args, copy_from), CAIRN_I32, s->copies);
	tokens = cairn_in(op, offsetof(struct cairn_token_counts_args, tokens), CAIRN_I32, s->tokens);
	slots = cairn_in(op, offsetof(struct cairn_token_counts_args, slots), CAIRN_I32, segments);
	for (int64_t i = 0; i < count; i++) {
		uint64_t r = cairn_op_rand(op);

		counts[i] = (uint16_t)(r >> 32 & CAIRN_TOKEN_IN_PROMPT);
		counts[i] |= op->kind == CAIRN_KIND_EXTREME ? CAIRN_TOKEN_COUNT - r % 4 : r % 3 ? 0 : r % 99;
	}
	/* targets are the first slots, from the last down; sources lie behind them */
	for (int32_t c = 0; c < s->copies; c++) {
		to[c] = s->copies - 1 - c;
		from[c] = s->copies < s->slots && cairn_op_rand(op) % 2 ?
			  (int32_t)cairn_op_range(op, s->copies, s->slots - 1) : -1 - c;
		if (s->flags & OUTSIDE && c % 4 == 3) {
			*(c % 8 == 3 ? &to[c] : &from[c]) = s->slots + c;
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
	for (int32_t k = 1; k < segments; k++)	/* some are empty, some long */
		if (k % 3 == 1)
			indptr[k] = indptr[k - 1];
	if (s->flags & TRAILING && segments)
		indptr[segments] -= (indptr[segments] - indptr[segments - 1]) / 2;
}

static int exact(const void *args, struct cairn_exact *e)
{
	return cairn_token_counts_exact(args, e);
}

static const char *reject(void *args, int i, int *want)
{
	struct cairn_token_counts_args *a = args;

	*want = i < 12 ? -EINVAL : -EOPNOTSUPP;
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
	case 12: a->vocab = (1 << 20) + 1; return "vocab_too_large";
	}
	return NULL;
}

const struct cairn_family cairn_token_counts_family = {
	.stage = "primitives", .name = "token_counts",
	.op = offsetof(struct cairn_impl, token_counts),
	.args_size = sizeof(struct cairn_token_counts_args),
	.num_cases = ARRAY_SIZE(shapes),
	.exact_is_equal = 1,
	.describe = describe, .setup = setup, .exact = exact, .reject = reject,
};
