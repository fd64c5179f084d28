// SPDX-License-Identifier: Apache-2.0
/* search_sim - simulates a schedule, event by event */
#include "serving/search/search_sim.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "primitives/base/error.h"

enum { FIRST_LAYERS = 128, MOST_LAYERS = 8192, MOST_CYCLE = 12 };

struct sim {
	const struct cairn_search_problem *problem;
	const struct cairn_search_parts *parts;
	const struct cairn_search_schedule *schedule;
	enum cairn_search_rates rates;
	struct cairn_search_dep *arcs;
	int32_t num_arcs, layers;
	double work[CAIRN_SEARCH_MOST_PARTS];	/* ms of a part alone */
	/* state: layers that a part has begun and ended, work left of the one that runs; the time */
	int32_t begun[CAIRN_SEARCH_MOST_PARTS], ended[CAIRN_SEARCH_MOST_PARTS];
	double left[CAIRN_SEARCH_MOST_PARTS];
	double now;
	double *starts;				/* [layers][parts] */
};

static const char *op_name(const struct sim *s, int32_t part)
{
	return s->problem->ops[s->parts->parts[part].op].name;
}

/* Returns whether everything that the next layer of a part waits for has ended. */
static int is_ready(const struct sim *s, int32_t part)
{
	int32_t layer = s->begun[part];

	if (layer == s->layers || s->begun[part] > s->ended[part])
		return 0;
	for (int32_t a = 0; a < s->num_arcs; a++) {
		int32_t before = layer - s->arcs[a].lag;

		if (s->arcs[a].to == part && before >= 0 && before < s->layers &&
		    s->ended[s->arcs[a].from] <= before)
			return 0;
	}
	return 1;
}

static int begin_ready(struct sim *s)
{
	int32_t num = s->parts->num_parts, running = 0;

	for (int32_t p = 0; p < num; p++) {
		if (is_ready(s, p)) {
			s->starts[(size_t)s->begun[p] * (size_t)num + (size_t)p] = s->now;
			s->begun[p]++;
			s->left[p] = s->work[p];
		}
		running += s->begun[p] > s->ended[p];
	}
	return running;
}

static int check_shares(const struct sim *s)
{
	double r = 0;
	int32_t by_kind[CAIRN_NUM_SEARCH_KINDS] = { -1, -1, -1 };

	for (int32_t p = 0; p < s->parts->num_parts; p++) {
		enum cairn_search_kind kind = s->problem->kinds[s->parts->parts[p].op];

		if (s->begun[p] == s->ended[p])
			continue;
		if (by_kind[kind] >= 0)
			return cairn_error(EINVAL, "simulation: %s and %s run at the same time, and both are "
					   "bound by %s", op_name(s, by_kind[kind]), op_name(s, p),
					   cairn_search_kind_names[kind]);
		by_kind[kind] = p;
		r += s->schedule->ideal ? 0 : cairn_search_level_of(s->problem, s->parts, s->schedule, p)->r;
	}
	return r <= 1 + 1e-6 ? 0 : cairn_error(EINVAL, "simulation: operations at the same time have R = %g",
					       r);
}

static double rate_of(const struct sim *s, int32_t part, int running)
{
	if (s->schedule->ideal || (running == 1 && s->rates == CAIRN_SEARCH_FLUID))
		return 1;
	return cairn_search_speed(s->problem, s->parts, s->schedule, part);
}

/* Advances the time to the next end. */
static int advance(struct sim *s, int running)
{
	double step = INFINITY;
	int32_t num = s->parts->num_parts;

	for (int32_t p = 0; p < num; p++)
		if (s->begun[p] > s->ended[p])
			step = fmin(step, s->left[p] / rate_of(s, p, running));
	if (!(step >= 0 && step < INFINITY))
		return cairn_error(EINVAL, "simulation: a part takes %g ms", step);
	for (int32_t p = 0; p < num; p++) {
		if (s->begun[p] == s->ended[p])
			continue;
		s->left[p] -= step * rate_of(s, p, running);
		if (s->left[p] <= 1e-12 * s->work[p])
			s->ended[p]++;
	}
	s->now += step;
	return 0;
}

static int simulate(struct sim *s, int32_t layers)
{
	int32_t num = s->parts->num_parts;
	double *starts = realloc(s->starts, (size_t)layers * (size_t)num * sizeof(*starts));

	if (!starts)
		return cairn_error(ENOMEM, "simulation: out of memory");
	s->starts = starts;
	s->layers = layers;
	s->now = 0;
	memset(s->begun, 0, sizeof(s->begun));
	memset(s->ended, 0, sizeof(s->ended));
	for (;;) {
		int running = begin_ready(s);

		if (!running)
			break;
		CAIRN_TRY(check_shares(s));
		CAIRN_TRY(advance(s, running));
	}
	for (int32_t p = 0; p < num; p++)
		if (s->ended[p] < layers)
			return cairn_error(EINVAL, "simulation: %s of layer %d waits for ever", op_name(s, p),
					   s->ended[p]);
	return 0;
}

/* Returns the period if for a few layers up to `last` all starts repeat after `cycle` layers, else 0. */
static double find_period(const struct sim *s, int32_t last, int32_t cycle)
{
	int32_t num = s->parts->num_parts;
	const double *now = s->starts + (size_t)last * (size_t)num;
	double step = now[0] - now[-(ptrdiff_t)cycle * num];

	for (int32_t i = 0; i < 3 * cycle * num; i++) {
		const double *at = now + num - 1 - i;

		if (fabs(at[0] - at[-(ptrdiff_t)cycle * num] - step) > 1e-9 * step)
			return 0;
	}
	return step / cycle;
}

static int open_sim(struct sim *s)
{
	s->arcs = malloc(CAIRN_SEARCH_MOST_ARCS * sizeof(*s->arcs));
	if (!s->arcs)
		return cairn_error(ENOMEM, "simulation: out of memory");
	s->num_arcs = cairn_search_order(s->problem, s->parts, s->schedule, s->arcs);
	for (int32_t p = 0; p < s->parts->num_parts; p++)
		s->work[p] = cairn_search_part_ms(s->problem, s->parts, s->schedule, p);
	return 0;
}

static void close_sim(struct sim *s)
{
	free(s->arcs);
	free(s->starts);
}

static int steady(struct sim *s, double *period_ms)
{
	for (int32_t layers = FIRST_LAYERS; layers <= MOST_LAYERS; layers *= 2) {
		CAIRN_TRY(simulate(s, layers));
		for (int32_t cycle = 1; cycle <= MOST_CYCLE; cycle++) {
			/* the last layers run when others have ended already */
			double period = find_period(s, layers - 1 - 4 * CAIRN_SEARCH_MOST_SPLIT, cycle);

			if (period > 0) {
				*period_ms = period;
				return 0;
			}
		}
	}
	return cairn_error(EINVAL, "simulation: no steady state within %d layers", MOST_LAYERS);
}

int cairn_search_sim_period(const struct cairn_search_problem *problem,
			    const struct cairn_search_parts *parts,
			    const struct cairn_search_schedule *schedule, enum cairn_search_rates rates,
			    double *period_ms)
{
	struct sim s = { problem, parts, schedule, rates, .arcs = NULL };
	int ret = open_sim(&s);

	if (!ret)
		ret = steady(&s, period_ms);
	close_sim(&s);
	return ret;
}

int cairn_search_sim_pass(const struct cairn_search_problem *problem, const struct cairn_search_parts *parts,
			  const struct cairn_search_schedule *schedule, enum cairn_search_rates rates,
			  double *pass_ms)
{
	struct sim s = { problem, parts, schedule, rates, .arcs = NULL };
	int ret = open_sim(&s);

	if (!ret)
		ret = simulate(&s, problem->num_layers);
	if (!ret)
		*pass_ms = s.now;
	close_sim(&s);
	return ret;
}
