// SPDX-License-Identifier: Apache-2.0
/*
 * sanitize - selects the cases that `cairn check --sanitize` runs
 *
 * compute-sanitizer may slow a kernel down a thousandfold, so each family runs only a few cheap cases, which
 * together should reach every kernel. Cases differ in the words of their names (a type, a head dimension, an
 * algorithm, a form, a length, the kind of input), and kernels are instantiated for pairs of such words. The
 * selection is therefore greedy: it repeatedly takes the case that adds the most new words and new pairs of
 * words for its cost. Cases that the family names come first. The second half of the selection goes to words
 * that many cases have but that no case taken so far has. Once the cases taken cost BUDGET together, pairs no
 * longer count, only words.
 */
#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "conformance/suite/op_case.h"
#include "conformance/suite/runner.h"

#define MAX_BYTES	(16 << 20)	/* of all buffers of a case */
#define CASE_COST	(64 << 10)	/* fixed cost of a case (its launches), in bytes moved */
#define BUDGET		(4 << 20)	/* of a family */
#define WORD_WORTH	16		/* how many pairs a new word is worth */
#define FLOPS_A_BYTE	16
#define MORE_THAN_NUMBERS 8
#define MAX_WORDS	1024		/* of a family */
#define NAME_WORDS	24

struct plan {
	const struct cairn_family *f;
	struct choice {
		struct cairn_selected s;
		short words[NAME_WORDS];
		int num_words;
		int at;			/* in the order of cairn_each() */
		int out;		/* 1: already taken, or too large */
		/*
		 * 1: cost includes the size of its buffers, which matters because a page pool is larger than
		 * what is read of it
		 */
		int made;
		double cost;
	} *choices;
	int num_choices, max_choices, num_seen, bench;
	char words[MAX_WORDS][32];
	int num_words;
	int cases[MAX_WORDS];		/* number of cases that have the word */
	uint8_t seen[MAX_WORDS];
	uint8_t together[MAX_WORDS * MAX_WORDS / 8];
	double spent;
};

static int word_number(struct plan *p, const char *word, size_t len)
{
	char name[32];

	snprintf(name, sizeof(name), "%.*s", (int)len, word);
	for (int i = 0; i < p->num_words; i++)
		if (!strcmp(p->words[i], name))
			return i;
	if (p->num_words == MAX_WORDS)
		return MAX_WORDS - 1;
	strcpy(p->words[p->num_words], name);
	return p->num_words++;
}

static void find_words(struct plan *p, struct choice *c)
{
	/* skips stage and family */
	const char *at = c->s.name + strlen(p->f->stage) + strlen(p->f->name) + 2;

	while (*at && c->num_words < NAME_WORDS) {
		size_t len = strcspn(at, "_.");

		if (len)
			p->cases[c->words[c->num_words++] = (short)word_number(p, at, len)]++;
		at += len + (at[len] != 0);
	}
}

/* Collects the cases. Benchmark cases run many rounds, so they are taken only if there are no others. */
static int collect(const struct cairn_selected *s, void *arg)
{
	struct plan *p = arg;
	struct choice *c;

	p->num_seen++;
	if (s->what != CAIRN_SEL_CASE || s->desc.device_only || s->desc.far ||
	    s->desc.bench != p->bench)
		return 0;
	if (p->num_choices == p->max_choices) {
		int more = p->max_choices ? 2 * p->max_choices : 256;

		c = realloc(p->choices, more * sizeof(*c));
		if (!c)
			return 1;
		p->choices = c;
		p->max_choices = more;
	}
	c = &p->choices[p->num_choices++];
	memset(c, 0, sizeof(*c));
	c->s = *s;
	c->at = p->num_seen - 1;
	c->cost = CASE_COST + s->desc.bytes + s->desc.flops / FLOPS_A_BYTE;
	find_words(p, c);
	return 0;
}

static uint32_t pair_of(const struct choice *c, int i, int k)
{
	return (uint32_t)c->words[i] * MAX_WORDS + (uint32_t)c->words[k];
}

static double worth(const struct plan *p, const struct choice *c)
{
	int value = 0;

	for (int i = 0; i < c->num_words; i++) {
		value += p->seen[c->words[i]] ? 0 : WORD_WORTH;
		for (int k = 0; k < i && p->spent < BUDGET; k++)
			value += !(p->together[pair_of(c, i, k) / 8] >> pair_of(c, i, k) % 8 & 1);
	}
	return value / c->cost;
}

static void mark(struct plan *p, const struct choice *c)
{
	for (int i = 0; i < c->num_words; i++) {
		p->seen[c->words[i]] = 1;
		for (int k = 0; k < i; k++)
			p->together[pair_of(c, i, k) / 8] |= 1 << pair_of(c, i, k) % 8;
	}
}

static int has_word(const struct choice *c, int word)
{
	for (int i = 0; i < c->num_words; i++)
		if (c->words[i] == word)
			return 1;
	return 0;
}

/*
 * Returns the most frequent of the words not seen yet, or -1 if there is none. Words that end in a number
 * have many variants and count less.
 */
static int common_word(const struct plan *p)
{
	int best = -1, most = 0;

	for (int i = 0; i < p->num_words; i++) {
		const char *word = p->words[i];
		int cases = p->cases[i] *
			    (isdigit((unsigned char)word[strlen(word) - 1]) ? 1 : MORE_THAN_NUMBERS);

		if (!p->seen[i] && cases > most) {
			most = cases;
			best = i;
		}
	}
	return best;
}

/* Adds the size of the case's buffers to its cost, for which setup must run. */
static void make(const struct plan *p, struct choice *c, uint64_t seed)
{
	size_t bytes = 0;

	c->made = 1;
	c->out = cairn_op_bytes(p->f, c->s.case_index, c->s.kind, seed, &bytes) || bytes > MAX_BYTES;
	c->cost += (double)bytes;
}

/* Returns the best choice among the cases that have `word`, or among all cases if word is -1. */
static struct choice *best_choice(const struct plan *p, int word)
{
	struct choice *best = NULL;
	double most = 0;

	for (int i = 0; i < p->num_choices; i++) {
		const struct choice *c = &p->choices[i];
		double w = c->out || (word >= 0 && !has_word(c, word)) ? 0 : worth(p, c);

		if (w > most) {
			most = w;
			best = &p->choices[i];
		}
	}
	return best;
}

/* Returns whether the family asks for the case, because the words of its name would not select it. */
static int asked_for(const struct cairn_family *f, const struct choice *c)
{
	const char *tail = c->s.name + strlen(f->stage) + strlen(f->name) + 2;

	for (const char *const *name = f->sanitized; name && *name; name++)
		if (!strcmp(*name, tail))
			return 1;
	return 0;
}

int cairn_sanitize_plan(const struct cairn_options *opt, const struct cairn_family *f,
			uint8_t *takes, int num)
{
	struct plan *p = calloc(1, sizeof(*p));
	int taken = 0, failed;

	if (!p)
		return -ENOMEM;
	memset(takes, 0, (size_t)num);
	p->f = f;
	failed = cairn_each(opt, f, collect, p);
	if (!failed && !p->num_choices) {
		p->num_seen = 0;
		p->bench = 1;
		failed = cairn_each(opt, f, collect, p);
	}
	for (int i = 0; !failed && i < p->num_choices; i++) {
		struct choice *c = &p->choices[i];

		if (c->at >= num || !asked_for(f, c))
			continue;
		c->out = 1;
		mark(p, c);
		takes[c->at] = 1;
		taken++;
	}
	while (!failed && taken < opt->sanitize) {
		const int word = 2 * taken < opt->sanitize ? -1 : common_word(p);
		struct choice *best = best_choice(p, word);

		if (!best && word < 0)
			break;
		if (!best) {		/* every case with this word is too large */
			p->seen[word] = 1;
			continue;
		}
		if (!best->made) {	/* now that its cost is known, it may no longer be the best */
			make(p, best, opt->seed);
			continue;
		}
		best->out = 1;
		if (best->at >= num)
			continue;
		mark(p, best);
		p->spent += best->cost;
		takes[best->at] = 1;
		taken++;
	}
	free(p->choices);
	free(p);
	return failed ? -ENOMEM : taken;
}
