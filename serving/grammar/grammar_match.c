// SPDX-License-Identifier: Apache-2.0
/*
 * grammar_match - matchers, which take the tokens of answers and compute the masks of their next draws
 *
 * The draws of an answer are numbered, and an answer whose number differs from the engine's fails, so that a
 * mask never belongs to another draw. An answer with a token that its mask excluded fails, too. A failed
 * answer gets no more masks.
 *
 * An answer sleeps, which means that nothing constrains it, until its text `after` has appeared. The text may
 * end inside a token; the rest of the token must then satisfy the constraint, without its leading white space
 * if it does not fit with that.
 *
 * Drafts are taken one by one, with a mask before each, and then rolled back.
 */
#include <stdlib.h>
#include <string.h>

#include "serving/grammar/grammar_process.h"

#define MAX_REST	256		/* tokens of the rest of a token */

struct opened *opened_find(const struct grammar *g, uint64_t id)
{
	struct opened *o = g->buckets[id * 0x9e3779b97f4a7c15u >> 54];

	while (o && o->id != id)
		o = o->next;
	return o;
}

void opened_free(struct grammar *g, struct opened *o)
{
	for (int32_t i = 0; i < o->num_seqs; i++)
		if (o->seqs[i].matcher)
			g->lib.free_matcher(o->seqs[i].matcher);
	compiled_put(g, o->compiled);
	free(o->after);
	free(o->border);
	free(o);
}

struct opened *opened_new(uint64_t id, int32_t num_seqs, const char *after, int32_t num_after)
{
	struct opened *o = calloc(1, sizeof(*o) + (size_t)num_seqs * sizeof(o->seqs[0]));

	if (!o)
		return NULL;
	o->id = id;
	o->num_seqs = num_seqs;
	o->num_after = num_after;
	o->after = malloc((size_t)num_after + 1);
	o->border = calloc((size_t)num_after + 1, sizeof(*o->border));
	if (!o->after || !o->border) {
		free(o->after);
		free(o->border);
		free(o);
		return NULL;
	}
	memcpy(o->after, after, (size_t)num_after);
	for (int32_t i = 1, k = 0; i < num_after; i++) {
		while (k && after[i] != after[k])
			k = o->border[k - 1];
		k += after[i] == after[k];
		o->border[i] = (int16_t)k;
	}
	for (int32_t i = 0; i < num_seqs; i++)
		o->seqs[i].asleep = num_after > 0;
	return o;
}

/* Makes the answer's own copy of the constraint. */
static int wake(const struct grammar *g, const struct opened *o, struct seq *s)
{
	if (!s->matcher)
		s->matcher = g->lib.clone_matcher(o->compiled->matcher);
	s->failed |= g->lib.matcher_get_error(s->matcher) != NULL;
	return !s->failed;
}

/* Returns how many bytes of `after` the answer ends with, once `byte` follows. */
static int32_t follow(const struct opened *o, int32_t matched, char byte)
{
	while (matched && o->after[matched] != byte)
		matched = o->border[matched - 1];
	return matched + (o->after[matched] == byte);
}

/* Takes the bytes of a token that come after `after`. Returns the number of tokens they are, or -1. */
static int32_t take_rest(const struct grammar *g, struct seq *s, const uint8_t *rest, size_t num)
{
	uint32_t tokens[MAX_REST];

	for (;;) {
		size_t n = g->lib.tokenize_bytes(g->vocab.tokenizer, rest, num, tokens, MAX_REST);

		if (n <= MAX_REST &&
		    g->lib.matcher_validate_tokens(s->matcher, tokens, n) == (int32_t)n)
			return n && g->lib.matcher_consume_tokens(s->matcher, tokens, n) ? -1 : (int32_t)n;
		if (n > MAX_REST || !num || !strchr(" \t\r\n", *rest))
			return -1;
		while (num && strchr(" \t\r\n", *rest)) {
			rest++;
			num--;
		}
	}
}

/* Takes a token while the answer sleeps. Returns the number of tokens its matcher took, or -1. */
static int32_t take_asleep(const struct grammar *g, const struct opened *o, struct seq *s, uint32_t token)
{
	const uint8_t *bytes = g->vocab.bytes + g->vocab.at[token];
	size_t num = g->vocab.lens[token], i = num && bytes[0] == 0xff;

	while (i < num && s->matched < o->num_after)
		s->matched = follow(o, s->matched, (char)bytes[i++]);
	if (s->matched < o->num_after)
		return 0;
	if (!wake(g, o, s))
		return -1;
	s->asleep = 0;
	return take_rest(g, s, bytes + i, num - i);
}

/* Returns the number of tokens that the matcher took, or -1: the constraint excludes the token. */
static int32_t take_token(const struct grammar *g, const struct opened *o, struct seq *s, int32_t id)
{
	uint32_t token = (uint32_t)id;

	if (id < 0 || id >= g->vocab.size)
		return -1;
	if (s->asleep)
		return take_asleep(g, o, s, token);
	if (g->lib.matcher_validate_tokens(s->matcher, &token, 1) != 1)
		return -1;
	return g->lib.matcher_consume_tokens(s->matcher, &token, 1) ? -1 : 1;
}

/* Computes the mask of the next draw. Returns whether it exists. */
static int put_mask(const struct grammar *g, struct seq *s, uint32_t *mask)
{
	size_t bytes = (size_t)g->vocab.words * sizeof(*mask);

	if (s->asleep) {
		memcpy(mask, g->vocab.all, bytes);
		return 1;
	}
	return !g->lib.matcher_compute_mask_into(s->matcher, mask, bytes);
}

/* Takes the drafts, with a mask before each and one behind the last, and rolls them back. */
static void try_drafts(const struct grammar *g, const struct opened *o, struct seq *s,
		       struct grammar_item *item)
{
	int32_t took = 0, n, matched = s->matched, asleep = s->asleep, i = 0;

	for (;; i++) {
		struct grammar_head *head = &g->memory.heads[item->first_mask + i];
		uint32_t *mask = g->memory.masks + (int64_t)(item->first_mask + i) * g->memory.words;

		if (item->wants_masks && !put_mask(g, s, mask))
			break;
		if (item->wants_masks)
			*head = (struct grammar_head){ item->id, item->draw + i, item->seq, 1 };
		item->num_valid = i;
		if (i == item->num_drafts)
			break;
		n = take_token(g, o, s, item->drafts[i]);
		if (n < 0)
			break;
		took += n;
	}
	s->failed |= item->num_valid < 0;
	if (asleep && !s->asleep) {	/* it woke in a draft: its matcher has taken nothing else */
		g->lib.free_matcher(s->matcher);
		s->matcher = NULL;
	} else if (took) {
		s->failed |= g->lib.matcher_rollback(s->matcher, (size_t)took) != 0;
	}
	s->asleep = asleep;
	s->matched = matched;
}

static int is_sound(const struct grammar *g, const struct grammar_item *item)
{
	return item->num_tokens >= 0 && item->num_tokens <= GRAMMAR_MAX_TOKENS && item->num_drafts >= 0 &&
	       item->num_drafts <= GRAMMAR_MAX_TOKENS && item->first_mask >= 0 &&
	       (!item->wants_masks || item->first_mask + item->num_drafts < g->memory.max_masks);
}

static void do_item(const struct grammar *g, struct grammar_item *item)
{
	struct opened *o = opened_find(g, item->id);
	struct seq *s = o && o->compiled && item->seq >= 0 && item->seq < o->num_seqs ?
			&o->seqs[item->seq] : NULL;

	item->num_valid = -1;
	if (!s || !is_sound(g, item) || atomic_exchange(&s->busy, 1))
		return;
	if (!s->asleep && !s->failed)
		wake(g, o, s);
	for (int32_t i = 0; !s->failed && i < item->num_tokens; i++) {
		s->failed = take_token(g, o, s, item->tokens[i]) < 0;
		s->draw++;
	}
	s->failed |= s->draw != item->draw;
	if (!s->failed)
		try_drafts(g, o, s, item);
	if (s->failed)
		item->num_valid = -1;
}

void grammar_step(struct grammar *g, int32_t num)
{
	for (int32_t i = 0; i < g->memory.max_masks; i++)
		g->memory.heads[i].is_set = 0;
	#pragma omp parallel for schedule(dynamic) num_threads(g->threads) if (num > 1)
	for (int32_t i = 0; i < num; i++) {
		struct grammar_item item = g->memory.items[i];

		do_item(g, &item);
		g->memory.items[i].num_valid = item.num_valid;
	}
	for (int32_t i = 0; i < num; i++) {
		struct opened *o = opened_find(g, g->memory.items[i].id);
		int32_t seq = g->memory.items[i].seq;

		if (o && seq >= 0 && seq < o->num_seqs)
			atomic_store(&o->seqs[seq].busy, 0);
	}
}
