// SPDX-License-Identifier: Apache-2.0
/*
 * pairs - makes the rows of a covering array, one after the other
 *
 * A row begins with the first two levels, in the order of factors and levels, that no row contains yet. The
 * other factors follow in order. Each takes the level that makes the most new pairs with the levels chosen
 * before. Ties rotate with the number of the row, so that all levels are used about equally often. If the
 * rest cannot be chosen without a forbidden combination, the next best level is tried. Two levels that no
 * allowed row contains count as covered. The algorithm uses neither random numbers nor floating point,
 * because the rows must never change: cases are named after them.
 */
#include "conformance/suite/pairs.h"

#include <stdlib.h>
#include <string.h>

#include "conformance/harness.h"

#define FACTORS	CAIRN_PAIRS_FACTORS
#define LEVELS	CAIRN_PAIRS_LEVELS

struct state {
	struct cairn_pairs *p;
	uint8_t seen[FACTORS][LEVELS][FACTORS][LEVELS];	/* both orders of the factors are set */
	int8_t row[FACTORS];
};

static void see(struct state *s, int f, int a, int g, int b)
{
	s->seen[f][a][g][b] = s->seen[g][b][f][a] = 1;
}

/* Returns how many new pairs level a of factor f makes with the levels chosen so far. */
static int gain(const struct state *s, int f, int a)
{
	int sum = 0;

	for (int g = 0; g < s->p->num_factors; g++)
		sum += g != f && s->row[g] >= 0 && !s->seen[f][a][g][s->row[g]];
	return sum;
}

static int allowed(const struct state *s)
{
	return !s->p->forbidden || !s->p->forbidden(s->row);
}

/* Returns the untried level of factor f with the largest gain, or -1. */
static int best_level(const struct state *s, int f, unsigned tried)
{
	int n = s->p->levels[f], best = -1, most = -1;

	for (int i = 0; i < n; i++) {
		int a = (i + s->p->num_rows + f) % n;

		if (!(tried >> a & 1) && gain(s, f, a) > most) {
			most = gain(s, f, a);
			best = a;
		}
	}
	return best;
}

/* Chooses the levels of the factors from f on. Returns whether that is possible. */
static int complete(struct state *s, int f)
{
	unsigned tried = 0;
	int a;

	while (f < s->p->num_factors && s->row[f] >= 0)
		f++;
	if (f == s->p->num_factors)
		return 1;
	while ((a = best_level(s, f, tried)) >= 0) {
		tried |= 1u << a;
		s->row[f] = (int8_t)a;
		if (allowed(s) && complete(s, f + 1))
			return 1;
	}
	s->row[f] = -1;
	return 0;
}

/* Makes the row that begins with these two levels. Returns 0 if it would be forbidden. */
static int make_row(struct state *s, int f, int a, int g, int b)
{
	memset(s->row, -1, sizeof(s->row));
	s->row[f] = (int8_t)a;
	s->row[g] = (int8_t)b;
	return allowed(s) && complete(s, 0);
}

static void add_row(struct state *s, int f, int a, int g, int b)
{
	struct cairn_pairs *p = s->p;

	see(s, f, a, g, b);
	if (!make_row(s, f, a, g, b))
		return;
	if (p->num_rows == CAIRN_PAIRS_ROWS)
		abort();	/* a mistake in a test: too many factors or levels */
	for (int i = 0; i < p->num_factors; i++)
		for (int j = 0; j < i; j++)
			see(s, i, s->row[i], j, s->row[j]);
	memcpy(p->rows[p->num_rows++], s->row, sizeof(s->row));
}

static void make_rows(struct cairn_pairs *p)
{
	struct state *s = calloc(1, sizeof(*s));

	if (!s || p->num_factors < 2 || p->num_factors > FACTORS)
		abort();
	for (int f = 0; f < p->num_factors; f++)
		if (p->levels[f] < 1 || p->levels[f] > LEVELS)
			abort();
	s->p = p;
	for (int f = 0; f < p->num_factors; f++)
		for (int g = f + 1; g < p->num_factors; g++)
			for (int a = 0; a < p->levels[f]; a++)
				for (int b = 0; b < p->levels[g]; b++)
					if (!s->seen[f][a][g][b])
						add_row(s, f, a, g, b);
	free(s);
}

int cairn_pairs_count(struct cairn_pairs *p)
{
	if (!p->num_rows)
		make_rows(p);
	return p->num_rows;
}

const int8_t *cairn_pairs_row(struct cairn_pairs *p, int i)
{
	if (i < 0 || i >= cairn_pairs_count(p))
		abort();	/* a mistake in a test */
	return p->rows[i];
}

/* Returns whether a row contains both levels. */
static int contains(const struct cairn_pairs *p, int f, int a, int g, int b)
{
	for (int i = 0; i < p->num_rows; i++)
		if (p->rows[i][f] == a && p->rows[i][g] == b)
			return 1;
	return 0;
}

void cairn_pairs_check(struct cairn_test *t, struct cairn_pairs *p, int num)
{
	int rows = cairn_pairs_count(p), missing = 0;
	struct state s = { .p = p };

	if (!EXPECT(t, rows == num))
		cairn_note(t, "%d rows", rows);
	for (int i = 0; p->forbidden && i < rows; i++)
		EXPECT(t, !p->forbidden(p->rows[i]));
	for (int f = 0; f < p->num_factors; f++)
		for (int g = f + 1; g < p->num_factors; g++)
			for (int a = 0; a < p->levels[f]; a++)
				for (int b = 0; b < p->levels[g]; b++)
					missing += !contains(p, f, a, g, b) && make_row(&s, f, a, g, b);
	EXPECT(t, missing == 0);
}
