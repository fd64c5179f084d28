// SPDX-License-Identifier: Apache-2.0
/* search_brute_test - finds the shortest period by trying everything */
#include "serving/search/search_brute_test.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MOST = 12, MOST_PAIRS = MOST * MOST, FREE = 1 << 20 };

struct pair {
	int p, q;
	int may_overlap;	/* else the two must be apart */
};

struct brute {
	const struct cairn_search_problem *problem;
	struct cairn_search_parts parts;
	int num, num_pairs, nanos;
	double ms[MOST], r[MOST];	/* of the parts at their levels */
	struct pair pairs[MOST_PAIRS];
	/* ahead[p][q]: the last p that starts before q of layer n is that of layer n + ahead; FREE: none */
	int ahead[MOST][MOST];
	double period;
	/* stage 2: starts within the period of stage 1; NULL: any order */
	const double *first;
	double best;
};

typedef double paths[MOST][MOST];	/* [u][v]: the least time from the start of u to that of v */

/* Adds the constraint that v starts at least w after u. Returns whether the constraints can still be met. */
static int add_wait(const struct brute *b, paths d, int u, int v, double w)
{
	if (d[v][u] + w > 1e-12 * b->period)
		return 0;
	if (w <= d[u][v])
		return 1;
	for (int i = 0; i < b->num; i++)
		for (int j = 0; j < b->num; j++)
			if (d[i][u] + w + d[v][j] > d[i][j])
				d[i][j] = d[i][u] + w + d[v][j];
	return 1;
}

static int kind_of(const struct brute *b, int part)
{
	return (int)b->problem->kinds[b->parts.parts[part].op];
}

/* Stage 2 keeps the order of the first part's kind. */
static int keeps_order(const struct brute *b, int p, int q, int ahead)
{
	int of_p, of_q;

	if (!b->first || kind_of(b, p) != kind_of(b, 0) || kind_of(b, q) != kind_of(b, 0) || p == 0)
		return 1;
	of_p = b->parts.together[0][p] ? b->ahead[0][p] : 0;
	of_q = b->parts.together[0][q] ? b->ahead[0][q] : 0;
	return ahead == of_q - of_p - !(b->first[p] < b->first[q]);
}

/* Three parts of three kinds whose shares exceed 1 must not overlap in all pairs. */
static int triples_fit(const struct brute *b)
{
	for (int p = 0; p < b->num; p++)
		for (int q = p + 1; q < b->num; q++)
			for (int n = q + 1; n < b->num; n++) {
				int kinds = 1 << kind_of(b, p) | 1 << kind_of(b, q) | 1 << kind_of(b, n);

				if (kinds == 7 && b->r[p] + b->r[q] + b->r[n] > 1 + 1e-9 &&
				    b->parts.together[p][q] && b->parts.together[p][n] &&
				    b->parts.together[q][n] && b->ahead[p][q] == FREE &&
				    b->ahead[p][n] == FREE && b->ahead[q][n] == FREE)
					return 0;
			}
	return 1;
}

/* Returns whether the pairs from the i-th on can be ordered. */
static int can_order(struct brute *b, int i, const paths so_far)
{
	const struct pair *x = &b->pairs[i];
	int lo, hi;

	if (i == b->num_pairs)
		return triples_fit(b);
	b->ahead[x->p][x->q] = FREE;
	if (x->may_overlap && can_order(b, i + 1, so_far))
		return 1;
	lo = isfinite(so_far[x->p][x->q]) ?
	     (int)floor((so_far[x->p][x->q] + b->ms[x->q]) / b->period - 1 - 1e-9) : -b->nanos - 1;
	hi = isfinite(so_far[x->q][x->p]) ?
	     (int)ceil((-so_far[x->q][x->p] - b->ms[x->p]) / b->period + 1e-9) : b->nanos + 1;
	for (int ahead = lo; ahead <= hi; ahead++) {
		paths d;

		if (!keeps_order(b, x->p, x->q, ahead))
			continue;
		memcpy(d, so_far, sizeof(d));
		b->ahead[x->p][x->q] = ahead;
		if (add_wait(b, d, x->p, x->q, b->ms[x->p] + ahead * b->period) &&
		    add_wait(b, d, x->q, x->p, b->ms[x->q] - (ahead + 1) * b->period) &&
		    can_order(b, i + 1, (const double (*)[MOST])d))
			return 1;
	}
	return 0;
}

static int suffices(struct brute *b, double period)
{
	paths d;

	b->period = period;
	for (int i = 0; i < MOST; i++)
		for (int j = 0; j < MOST; j++)
			d[i][j] = i == j ? 0 : -INFINITY;
	for (int i = 0; i < b->parts.num_deps; i++) {
		const struct cairn_search_dep *e = &b->parts.deps[i];

		if (!add_wait(b, d, e->from, e->to, b->ms[e->from] - e->lag * period))
			return 0;
	}
	return can_order(b, 0, (const double (*)[MOST])d);
}

/* Lists the pairs and lowers b->best to the shortest period with these durations and shares. */
static void try_durations(struct brute *b, int ideal)
{
	double lo = 0, hi = b->best * (1 - 1e-8);

	b->num_pairs = 0;
	for (int p = 0; p < b->num; p++)
		for (int q = p + 1; q < b->num; q++) {
			int same = kind_of(b, p) == kind_of(b, q);

			b->ahead[p][q] = FREE;
			if (!b->parts.together[p][q] || (ideal && !same))
				continue;
			b->pairs[b->num_pairs++] = (struct pair){ p, q, !same && b->r[p] + b->r[q] <= 1 +
								  1e-9 };
		}
	if (!suffices(b, hi))
		return;
	while (hi - lo > 1e-10 * hi) {
		double mid = 0.5 * (lo + hi);

		if (suffices(b, mid))
			hi = mid;
		else
			lo = mid;
	}
	b->best = hi;
}

static void open_brute(struct brute *b, const struct cairn_search_problem *p, int nanos)
{
	memset(b, 0, sizeof(*b));
	b->problem = p;
	b->nanos = nanos;
	cairn_search_list_parts(p, nanos, &b->parts);
	b->num = b->parts.num_parts;
}

static void try_decodes(struct brute *b, struct cairn_search_schedule *s, int nano, int left, int step)
{
	int last = nano + 1 == b->nanos;

	for (int d = last ? left : 0; d <= left && d <= s->size[nano]; d += step) {
		s->decode[nano] = d;
		if (!last) {
			try_decodes(b, s, nano + 1, left - d, step);
			continue;
		}
		for (int p = 0; p < b->num; p++)
			b->ms[p] = cairn_search_part_ms(b->problem, &b->parts, s, p);
		try_durations(b, 1);
		return;
	}
}

static void try_sizes(struct brute *b, struct cairn_search_schedule *s, int nano, int left, int step)
{
	if (nano == b->nanos) {
		if (!left)
			try_decodes(b, s, 0, b->problem->pass.decode, step);
		return;
	}
	for (int i = 0; i < b->problem->num_sizes; i++) {
		s->size[nano] = b->problem->sizes[i];
		if (s->size[nano] <= left)
			try_sizes(b, s, nano + 1, left - s->size[nano], step);
	}
}

double search_brute_stage1(const struct cairn_search_problem *p, int nanos, int decode_step)
{
	struct brute *b = malloc(sizeof(*b));
	struct cairn_search_schedule s = { .nanos = nanos };
	double best = NAN;

	if (!b)
		return best;
	open_brute(b, p, nanos);
	b->best = 4 * cairn_search_sequential_ms(p);
	try_sizes(b, &s, 0, p->pass.rows, decode_step);
	best = b->best;
	free(b);
	return best;
}

static void try_levels(struct brute *b, const struct cairn_search_schedule *s, int part)
{
	if (part == b->num) {
		try_durations(b, 0);
		return;
	}
	for (int r = 0; r < b->problem->num_levels[kind_of(b, part)]; r++) {
		const struct cairn_search_level *level = &b->problem->levels[kind_of(b, part)][r];

		b->ms[part] = cairn_search_part_ms(b->problem, &b->parts, s, part) /
			      b->problem->speed[b->parts.parts[part].op][r];
		b->r[part] = level->r;
		try_levels(b, s, part + 1);
	}
}

double search_brute_stage2(const struct cairn_search_problem *p, int nanos,
			 const struct cairn_search_schedule *stage1)
{
	struct brute *b = malloc(sizeof(*b));
	double first[MOST], best = NAN;

	if (!b)
		return best;
	open_brute(b, p, nanos);
	for (int i = 0; i < b->num; i++)
		first[i] = stage1->start[i] - stage1->start[0] - floor(stage1->start[i] - stage1->start[0] +
								       1e-9);
	b->first = first;
	b->best = 4 * cairn_search_sequential_ms(p);
	try_levels(b, stage1, 0);
	best = b->best;
	free(b);
	return best;
}
