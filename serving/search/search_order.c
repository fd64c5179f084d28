// SPDX-License-Identifier: Apache-2.0
/* search_order - the order that a schedule gives its parts, and the shortest period that this order allows */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "primitives/base/error.h"
#include "serving/search/search_problem.h"

static const double EPS = 1e-7;		/* of shares of R, and of starts */

/* Returns whether parts p and q run at the same time at some moment of the schedule. */
static int overlaps(const struct cairn_search_problem *pr, const struct cairn_search_parts *parts,
		    const struct cairn_search_schedule *s, int32_t p, int32_t q)
{
	double dp = cairn_search_level_ms(pr, parts, s, p) / s->period_ms;
	double dq = cairn_search_level_ms(pr, parts, s, q) / s->period_ms;
	double ahead = s->start[q] - s->start[p];

	ahead -= floor(ahead);
	return ahead < dp - EPS || ahead + dq > 1 + EPS;
}

/* Returns whether the schedule must keep p and q apart. */
static int apart(const struct cairn_search_problem *pr, const struct cairn_search_parts *parts,
		 const struct cairn_search_schedule *s, int32_t p, int32_t q)
{
	double rp = cairn_search_level_of(pr, parts, s, p)->r, rq = cairn_search_level_of(pr, parts, s, q)->r;
	enum cairn_search_kind kp = pr->kinds[parts->parts[p].op], kq = pr->kinds[parts->parts[q].op];

	if (kp == kq || s->ideal)
		return kp == kq;
	if (rp + rq > 1 + EPS)
		return 1;
	for (int32_t n = 0; n < parts->num_parts; n++) {
		enum cairn_search_kind kn = pr->kinds[parts->parts[n].op];

		if (kn != kp && kn != kq && rp + rq + cairn_search_level_of(pr, parts, s, n)->r > 1 + EPS &&
		    !overlaps(pr, parts, s, p, q))
			return 1;
	}
	return 0;
}

int32_t cairn_search_order(const struct cairn_search_problem *pr, const struct cairn_search_parts *parts,
			   const struct cairn_search_schedule *s, struct cairn_search_dep *arcs)
{
	int32_t num = parts->num_deps;

	memcpy(arcs, parts->deps, (size_t)num * sizeof(*arcs));
	for (int32_t p = 0; p < parts->num_parts; p++) {
		arcs[num++] = (struct cairn_search_dep){ p, p, 1 };
		for (int32_t q = p + 1; q < parts->num_parts; q++) {
			/* p of layer n + ahead is the last p that does not start after q of layer n. */
			int32_t ahead = (int32_t)floor(s->start[q] - s->start[p] + EPS);

			if (!parts->together[p][q] || !apart(pr, parts, s, p, q))
				continue;
			arcs[num++] = (struct cairn_search_dep){ p, q, -ahead };
			arcs[num++] = (struct cairn_search_dep){ q, p, ahead + 1 };
		}
	}
	return num;
}

struct search {
	const struct cairn_search_dep *arcs;
	int32_t num_arcs, num_parts;
	double ms[CAIRN_SEARCH_MOST_PARTS];	/* of each part */
	double at[CAIRN_SEARCH_MOST_PARTS];	/* earliest start in ms */
	int32_t by[CAIRN_SEARCH_MOST_PARTS];	/* the arc that sets it; -1: none */
};

/* Sets the earliest starts for `period`; returns -1, or a part on or behind a cycle that needs longer. */
static int32_t relax(struct search *x, double period)
{
	int32_t moved = -1;

	for (int32_t p = 0; p < x->num_parts; p++) {
		x->at[p] = 0;
		x->by[p] = -1;
	}
	for (int32_t round = 0; round <= x->num_parts; round++) {
		moved = -1;
		for (int32_t a = 0; a < x->num_arcs; a++) {
			const struct cairn_search_dep *d = &x->arcs[a];
			double at = x->at[d->from] + x->ms[d->from] - d->lag * period;

			if (!(at > x->at[d->to] + 1e-12 * period))
				continue;
			x->at[d->to] = at;
			x->by[d->to] = a;
			moved = d->to;
		}
		if (moved < 0)
			return -1;
	}
	return moved;
}

/* Returns the shortest period that the cycle found by going back from `part` allows, or -1 if none does. */
static double cycle_period(const struct search *x, int32_t part)
{
	int32_t lag = 0, first;
	double ms = 0;

	for (int32_t i = 0; i < x->num_parts; i++)
		part = x->arcs[x->by[part]].from;
	first = part;
	do {
		const struct cairn_search_dep *d = &x->arcs[x->by[part]];

		ms += x->ms[d->from];
		lag += d->lag;
		part = d->from;
	} while (part != first);
	return lag > 0 ? ms / lag : -1;
}

static int tighten(struct search *x, double *period)
{
	*period = 0;
	for (int32_t p = 0; p < x->num_parts; p++)
		*period = fmax(*period, x->ms[p]);
	/* Each round finds a cycle that needs a longer period, so few rounds are needed. */
	for (int round = 0; round < 10000; round++) {
		int32_t part = relax(x, *period);
		double longer;

		if (part < 0)
			return 0;
		longer = cycle_period(x, part);
		if (!(longer > *period))
			break;
		*period = longer;
	}
	return cairn_error(EINVAL, "schedule: the order of its operations contradicts itself");
}

int cairn_search_tighten(const struct cairn_search_problem *pr, const struct cairn_search_parts *parts,
			 struct cairn_search_schedule *s)
{
	struct cairn_search_dep *arcs = malloc(CAIRN_SEARCH_MOST_ARCS * sizeof(*arcs));
	struct search x = { .arcs = arcs, .num_parts = parts->num_parts };
	int ret;

	if (!arcs)
		return cairn_error(ENOMEM, "schedule: out of memory");
	x.num_arcs = cairn_search_order(pr, parts, s, arcs);
	for (int32_t p = 0; p < x.num_parts; p++)
		x.ms[p] = cairn_search_level_ms(pr, parts, s, p);
	ret = tighten(&x, &s->period_ms);
	for (int32_t p = 0; !ret && p < x.num_parts; p++)
		s->start[p] = x.at[p] / s->period_ms;
	free(arcs);
	return ret;
}
