// SPDX-License-Identifier: Apache-2.0
/* search_stage2 - levels of the table from R to P, and the starts, with sizes and order kept (NOTES.md) */
#include <math.h>
#include <stdlib.h>

#include "primitives/base/error.h"
#include "serving/search/search_fault.h"
#include "serving/search/search_stage.h"

struct stage2 {
	struct cairn_search_milp m;
	const struct cairn_search_schedule *from;		/* stage 1 */
	double first[CAIRN_SEARCH_MOST_PARTS];		/* start of a part within the period of stage 1 */
	double most_rate;
	/* columns: whether a part has level r, and the rate if it has */
	int32_t is_level[CAIRN_SEARCH_MOST_PARTS][CAIRN_SEARCH_MOST_LEVELS];
	int32_t level_rate[CAIRN_SEARCH_MOST_PARTS][CAIRN_SEARCH_MOST_LEVELS];
	int32_t overlap[CAIRN_SEARCH_MOST_PARTS][CAIRN_SEARCH_MOST_PARTS];	/* -1: no column */
};

static int32_t kind_of(const struct stage2 *x, int32_t part)
{
	return x->m.problem->kinds[x->m.parts->parts[part].op];
}

/* Sets the starts within the period that begins with part 0, as cairn_search_milp_open() fixes it. */
static void take_first(struct stage2 *x)
{
	for (int32_t p = 0; p < x->m.parts->num_parts; p++) {
		double at = x->from->start[p] - x->from->start[0] + 1;

		x->first[p] = at - floor(at + 1e-9);
		cairn_lp_start(x->m.lp, x->m.lag[p], floor(at + 1e-9));
	}
}

static void add_levels(struct stage2 *x)
{
	const struct cairn_search_problem *pr = x->m.problem;
	struct cairn_lp *lp = x->m.lp;

	for (int32_t p = 0; p < x->m.parts->num_parts; p++) {
		const char *name = cairn_search_part_name(&x->m, p);
		int32_t num = pr->num_levels[kind_of(x, p)];

		for (int32_t r = 0; r < num; r++) {
			x->is_level[p][r] = cairn_lp_col(lp, num > 1 ? 0 : 1, 1, true, "w_%s_%d", name, r);
			x->level_rate[p][r] = cairn_lp_col(lp, 0, x->most_rate, false, "v_%s_%d", name, r);
			cairn_lp_start(lp, x->is_level[p][r], r == 0);
			cairn_lp_row(lp, '<', 0, "v_if_w_%s_%d", name, r);
			cairn_lp_term(lp, x->level_rate[p][r], 1);
			cairn_lp_term(lp, x->is_level[p][r], -x->most_rate);
		}
		cairn_lp_row(lp, '=', 1, "one_level_%s", name);
		for (int32_t r = 0; r < num; r++)
			cairn_lp_term(lp, x->is_level[p][r], 1);
		cairn_lp_row(lp, '=', 0, "rate_%s", name);
		for (int32_t r = 0; r < num; r++)
			cairn_lp_term(lp, x->level_rate[p][r], 1);
		cairn_lp_term(lp, x->m.rate, -1);
	}
}

static void add_durations(struct stage2 *x)
{
	const struct cairn_search_problem *pr = x->m.problem;

	for (int32_t p = 0; p < x->m.parts->num_parts; p++) {
		const struct cairn_search_level *levels = pr->levels[kind_of(x, p)];
		const double *speed = pr->speed[x->m.parts->parts[p].op];
		double ms = cairn_search_part_ms(pr, x->m.parts, x->from, p) / x->m.unit_ms;

		cairn_lp_row(x->m.lp, '=', 0, "time_%s", cairn_search_part_name(&x->m, p));
		cairn_lp_term(x->m.lp, x->m.share[p], -1);
		for (int32_t r = 0; r < pr->num_levels[kind_of(x, p)]; r++)
			cairn_lp_term(x->m.lp, x->level_rate[p][r],
				      ms / (FAULT(P_IS_R) ? levels[r].r : speed[r]));
	}
}

/*
 * At any time the R of what runs sum to at most 1, so over a period R * duration does. The rows follow from
 * the others for every solution in integers, but without them the solver's bound is far off.
 */
static void add_work(struct stage2 *x)
{
	const struct cairn_search_problem *pr = x->m.problem;

	if (FAULT(NO_RHO) || FAULT(KIND_OVERLAPS_2) || FAULT(P_IS_R) || FAULT(NO_TRIPLE))
		return;
	cairn_lp_row(x->m.lp, '<', 1, "work");
	for (int32_t p = 0; p < x->m.parts->num_parts; p++) {
		const struct cairn_search_level *levels = pr->levels[kind_of(x, p)];
		const double *speed = pr->speed[x->m.parts->parts[p].op];
		double ms = cairn_search_part_ms(pr, x->m.parts, x->from, p) / x->m.unit_ms;

		for (int32_t r = 0; r < pr->num_levels[kind_of(x, p)]; r++)
			cairn_lp_term(x->m.lp, x->level_rate[p][r], ms * levels[r].r / speed[r]);
	}
}

static void add_rho_terms(struct stage2 *x, int32_t part)
{
	int32_t kind = kind_of(x, part);

	for (int32_t r = 0; r < x->m.problem->num_levels[kind]; r++)
		cairn_lp_term(x->m.lp, x->is_level[part][r], x->m.problem->levels[kind][r].r);
}

static void add_pair(struct stage2 *x, int32_t p, int32_t q)
{
	struct cairn_lp *lp = x->m.lp;
	int same = kind_of(x, p) == kind_of(x, q);
	int32_t first;

	if (same && FAULT(KIND_OVERLAPS_2))
		return;
	if (!same) {
		x->overlap[p][q] = x->overlap[q][p] = cairn_lp_col(lp, 0, 1, true, "u_%d_%d", p, q);
		cairn_lp_start(lp, x->overlap[p][q], 0);
	}
	first = cairn_search_milp_apart(&x->m, p, q, x->overlap[p][q]);
	cairn_lp_start(lp, first, x->first[p] < x->first[q]);
	/*
	 * Only parts of part 0's kind keep the order of stage 1. Fixing the order of the other kinds would
	 * also keep them from moving across the start of the period (NOTES.md).
	 */
	if (same && kind_of(x, p) == kind_of(x, 0)) {
		cairn_lp_row(lp, '=', x->first[p] < x->first[q], "order_%d_%d", p, q);
		cairn_lp_term(lp, first, 1);
	}
	if (same || FAULT(NO_RHO))
		return;
	cairn_lp_row(lp, '<', 2, "shares_%d_%d", p, q);
	add_rho_terms(x, p);
	add_rho_terms(x, q);
	cairn_lp_term(lp, x->overlap[p][q], 1);
}

/* If each two of three parts overlap, all three may run at once, so their R must sum to at most 1. */
static void add_triple(struct stage2 *x, int32_t p, int32_t q, int32_t n)
{
	if (x->overlap[p][q] < 0 || x->overlap[p][n] < 0 || x->overlap[q][n] < 0 || FAULT(NO_TRIPLE) ||
	    FAULT(NO_RHO))
		return;
	cairn_lp_row(x->m.lp, '<', 7, "shares_%d_%d_%d", p, q, n);
	add_rho_terms(x, p);
	add_rho_terms(x, q);
	add_rho_terms(x, n);
	cairn_lp_term(x->m.lp, x->overlap[p][q], 2);
	cairn_lp_term(x->m.lp, x->overlap[p][n], 2);
	cairn_lp_term(x->m.lp, x->overlap[q][n], 2);
}

static void add_order(struct stage2 *x)
{
	int32_t num = x->m.parts->num_parts;

	for (int32_t p = 0; p < num; p++)
		for (int32_t q = 0; q < num; q++)
			x->overlap[p][q] = -1;
	for (int32_t p = 0; p < num; p++)
		for (int32_t q = p + 1; q < num; q++)
			if (x->m.parts->together[p][q])
				add_pair(x, p, q);
	for (int32_t p = 0; p < num; p++)
		for (int32_t q = p + 1; q < num; q++)
			for (int32_t n = q + 1; n < num; n++)
				add_triple(x, p, q, n);
}

/* Sets most_rate: each kind alone at full speed, or all parts at their least R / P. */
static void bound_rate(struct stage2 *x)
{
	const struct cairn_search_problem *pr = x->m.problem;
	double busy[CAIRN_NUM_SEARCH_KINDS] = { 0 }, most = 0;

	for (int32_t p = 0; p < x->m.parts->num_parts; p++)
		busy[kind_of(x, p)] += cairn_search_part_ms(pr, x->m.parts, x->from, p);
	for (int kind = 0; kind < CAIRN_NUM_SEARCH_KINDS; kind++)
		most = fmax(most, busy[kind]);
	x->most_rate = cairn_search_sequential_ms(pr) / most * (1 + 1e-9);
}

static void take_levels(const struct stage2 *x, const double *values, struct cairn_search_schedule *s)
{
	for (int32_t p = 0; p < x->m.parts->num_parts; p++)
		for (int32_t r = 0; r < x->m.problem->num_levels[kind_of(x, p)]; r++)
			if (values[x->is_level[p][r]] > 0.5)
				s->level[p] = r;
}

int cairn_search_stage2(const struct cairn_search_problem *p, const struct cairn_search_parts *parts,
			const struct cairn_search_limits *limits, struct cairn_search_schedule *schedule)
{
	struct stage2 *x = calloc(1, sizeof(*x));
	struct cairn_search_schedule s = *schedule;
	struct cairn_lp_answer a = { .values = NULL };
	int ret;

	if (!x)
		return cairn_error(ENOMEM, "search: out of memory");
	x->from = schedule;
	x->m.problem = p;
	x->m.parts = parts;
	bound_rate(x);
	ret = cairn_search_milp_open(&x->m, p, parts, x->most_rate);
	if (!ret) {
		take_first(x);
		add_levels(x);
		add_durations(x);
		cairn_search_milp_deps(&x->m, limits->span);
		cairn_search_milp_kinds(&x->m);
		add_work(x);
		add_order(x);
		ret = cairn_search_milp_solve(&x->m, limits, "stage2", &s, &a);
	}
	if (!ret) {
		s.ideal = false;
		take_levels(x, a.values, &s);
		*schedule = s;
	}
	free(a.values);
	cairn_lp_destroy(x->m.lp);
	free(x);
	return ret;
}
