// SPDX-License-Identifier: Apache-2.0
/* search_stage - the columns and rows of a periodic schedule (NOTES.md) */
#include "serving/search/search_stage.h"

#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "primitives/base/error.h"
#include "serving/search/search_fault.h"

/* Returns the text of a part in a ring of buffers, so that a call of printf may name two. */
const char *cairn_search_part_name(const struct cairn_search_milp *m, int32_t part)
{
	static _Thread_local char ring[4][CAIRN_SEARCH_NAME + 8];
	static _Thread_local int next;
	const struct cairn_search_part *p = &m->parts->parts[part];
	char *text = ring[next++ & 3];

	/* The number of the operation leads, because a long name is cut. */
	snprintf(text, sizeof(ring[0]), "%d%.10s_%d", p->op, m->problem->ops[p->op].name, p->nano);
	return text;
}

/* Returns a period in which all parts, however the rows are cut, can run one after the other. */
static double slowest_ms(const struct cairn_search_problem *p, int32_t nanos)
{
	double ms = 0;

	for (int32_t o = 0; o < p->num_ops; o++) {
		double most = p->ops[o].attention ? cairn_search_attn_ms(p, p->pass.rows, p->pass.decode) : 0;

		for (int32_t b = 0; b < p->num_sizes && !p->ops[o].attention && !p->ops[o].whole; b++)
			most = fmax(most, p->ms[o][b]);
		ms += p->ops[o].whole ? p->whole_ms[o] : nanos * most;
	}
	return ms;
}

int cairn_search_milp_open(struct cairn_search_milp *m, const struct cairn_search_problem *problem,
			   const struct cairn_search_parts *parts, double most_rate)
{
	int32_t most_lag = 2 * parts->nanos;

	m->problem = problem;
	m->parts = parts;
	m->unit_ms = cairn_search_sequential_ms(problem);
	CAIRN_TRY(cairn_lp_create(&m->lp));
	/* a rate of 0 could be best where a pass has few layers, whose spans weigh as much as the period */
	m->rate = cairn_lp_col(m->lp, m->unit_ms / slowest_ms(problem, parts->nanos), most_rate, false,
			       "rate");
	for (int32_t p = 0; p < parts->num_parts; p++) {
		const char *name = cairn_search_part_name(m, p);
		/*
		 * Schedules that differ by a rotation are equal, so the first part starts at 0. Its lag is 1,
		 * so that others may start before it; parts that never run beside it have its lag, because
		 * they lie between it and its successor in the next layer.
		 */
		int fixed = p == 0 || !parts->together[0][p];

		m->start[p] = cairn_lp_col(m->lp, 0, p ? 1 : 0, false, "s_%s", name);
		m->lag[p] = cairn_lp_col(m->lp, fixed ? 1 : 0, fixed ? 1 : most_lag, true, "k_%s", name);
		m->share[p] = cairn_lp_col(m->lp, 0, 1, false, "d_%s", name);
		cairn_lp_start(m->lp, m->lag[p], 1);
	}
	return 0;
}

void cairn_search_milp_deps(struct cairn_search_milp *m, double span)
{
	struct cairn_lp *lp = m->lp;
	int32_t first = -1, last = -1;

	cairn_lp_cost(lp, m->rate, -1);
	for (int32_t i = 0; i < m->parts->num_deps; i++) {
		const struct cairn_search_dep *d = &m->parts->deps[i];

		cairn_lp_row(lp, '>', -d->lag, "after_%d", i);
		cairn_lp_term(lp, m->start[d->to], 1);
		cairn_lp_term(lp, m->lag[d->to], 1);
		cairn_lp_term(lp, m->start[d->from], -1);
		cairn_lp_term(lp, m->lag[d->from], -1);
		cairn_lp_term(lp, m->share[d->from], -1);
		/* follows, because starts are within 0 .. 1 and shares are positive; it helps the solver */
		cairn_lp_row(lp, '>', -d->lag, "lag_%d", i);
		cairn_lp_term(lp, m->lag[d->to], 1);
		cairn_lp_term(lp, m->lag[d->from], -1);
	}
	if (!(span > 0))
		return;
	first = cairn_lp_col(lp, 0, 2 * m->parts->nanos + 1, false, "first");
	last = cairn_lp_col(lp, 0, 2 * m->parts->nanos + 2, false, "last");
	cairn_lp_cost(lp, last, span);
	cairn_lp_cost(lp, first, -span);
	for (int32_t p = 0; p < m->parts->num_parts; p++) {
		cairn_lp_row(lp, '>', 0, "last_%s", cairn_search_part_name(m, p));
		cairn_lp_term(lp, last, 1);
		cairn_lp_term(lp, m->start[p], -1);
		cairn_lp_term(lp, m->lag[p], -1);
		cairn_lp_term(lp, m->share[p], -1);
		cairn_lp_row(lp, '<', 0, "first_%s", cairn_search_part_name(m, p));
		cairn_lp_term(lp, first, 1);
		cairn_lp_term(lp, m->start[p], -1);
		cairn_lp_term(lp, m->lag[p], -1);
	}
}

int32_t cairn_search_milp_apart(struct cairn_search_milp *m, int32_t p, int32_t q, int32_t overlap)
{
	struct cairn_lp *lp = m->lp;
	int32_t x = cairn_lp_col(lp, 0, 1, true, "x_%d_%d", p, q);
	double wrap = FAULT(NO_WRAP) ? 2 : 1;

	for (int second = 0; second < 2; second++) {
		int32_t a = second ? q : p, b = second ? p : q;

		/* the first of the two ends before the other begins, and the other before the next period */
		cairn_lp_row(lp, '<', second ? 0 : wrap, "apart_%d_%d", a, b);
		cairn_lp_term(lp, m->start[a], 1);
		cairn_lp_term(lp, m->share[a], 1);
		cairn_lp_term(lp, m->start[b], -1);
		cairn_lp_term(lp, x, second ? -wrap : wrap);
		if (overlap >= 0)
			cairn_lp_term(lp, overlap, -1);
	}
	return x;
}

void cairn_search_milp_kinds(struct cairn_search_milp *m)
{
	for (int kind = 0; kind < CAIRN_NUM_SEARCH_KINDS; kind++) {
		int used = 0;

		for (int32_t p = 0; p < m->parts->num_parts; p++) {
			if ((int)m->problem->kinds[m->parts->parts[p].op] != kind)
				continue;
			if (!used++)
				cairn_lp_row(m->lp, '<', 1, "fill_%s", cairn_search_kind_names[kind]);
			cairn_lp_term(m->lp, m->share[p], 1);
		}
	}
}

int cairn_search_milp_solve(struct cairn_search_milp *m, const struct cairn_search_limits *limits,
			    const char *stage, struct cairn_search_schedule *s, struct cairn_lp_answer *a)
{
	struct cairn_lp_limits lp = { .seconds = limits->seconds, .gap = limits->gap };
	char path[PATH_MAX];

	if (limits->dump) {
		snprintf(path, sizeof(path), "%s_%s.lp", limits->dump, stage);
		lp.dump = path;
	}
	CAIRN_TRY(cairn_lp_solve(m->lp, &lp, a));
	for (int32_t p = 0; p < m->parts->num_parts; p++)
		s->start[p] = a->values[m->start[p]] + a->values[m->lag[p]];
	s->seconds = a->seconds;
	s->period_ms = m->unit_ms / a->values[m->rate];
	s->gap = isfinite(a->bound) ? fmax(0, (a->cost - a->bound) / fabs(a->cost)) : INFINITY;
	return 0;
}
