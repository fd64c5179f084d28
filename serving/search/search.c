// SPDX-License-Identifier: Apache-2.0
/* search - searches the schedule of a pass */
#include "serving/search/search.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "primitives/base/error.h"
#include "serving/search/search_sim.h"

/*
 * Weight of a layer's span (from its first start to its last end, in periods) in the objective, which
 * maximises the rate. A pass of n layers takes n - 1 + span periods, so one more period of span lengthens it
 * by about 1 / n. Since rates are about 1, that is worth 1 / n of rate.
 */
static double span_weight(const struct cairn_search_problem *p)
{
	return 1.0 / p->num_layers;
}

static int try_nanos(const struct cairn_search_problem *p, const struct cairn_search_options *options,
		     double left,
		     struct cairn_search_try *t, struct cairn_search_parts *parts,
		     struct cairn_search_schedule *s)
{
	char dump[PATH_MAX];
	struct cairn_search_limits limits = { left / 4, options->gap / 10, span_weight(p), NULL };

	if (options->dump) {
		snprintf(dump, sizeof(dump), "%s_k%d", options->dump, t->nanos);
		limits.dump = dump;
	}
	cairn_search_list_parts(p, t->nanos, parts);
	CAIRN_TRY(cairn_search_stage1(p, parts, &limits, s));
	t->stage1_gap = s->gap;
	t->stage1_s = s->seconds;
	CAIRN_TRY(cairn_search_tighten(p, parts, s));
	t->stage1_ms = s->period_ms;
	limits.seconds = left / 2;
	limits.gap = options->gap;
	CAIRN_TRY(cairn_search_stage2(p, parts, &limits, s));
	t->stage2_gap = s->gap;
	t->stage2_s = s->seconds;
	CAIRN_TRY(cairn_search_tighten(p, parts, s));
	t->stage2_ms = s->period_ms;
	CAIRN_TRY(cairn_search_sim_pass(p, parts, s, CAIRN_SEARCH_FIXED, &t->pass_ms));
	return cairn_search_sim_pass(p, parts, s, CAIRN_SEARCH_FLUID, &t->fluid_ms);
}

int cairn_search(const struct cairn_search_problem *p, const struct cairn_search_options *options,
		 struct cairn_search_found *found)
{
	struct cairn_search_schedule s;
	static _Thread_local struct cairn_search_parts parts;
	double left = options->seconds;

	found->num_tries = found->best = 0;
	found->sequential_ms = cairn_search_sequential_ms(p) * p->num_layers;
	for (int32_t nanos = 2; nanos <= options->most_nanos; nanos++) {
		struct cairn_search_try *t = &found->tries[found->num_tries];
		int first = nanos == 2, ret;

		memset(t, 0, sizeof(*t));
		t->nanos = nanos;
		ret = try_nanos(p, options, left, t, &parts, &s);
		if ((ret == -ETIMEDOUT || ret == -ERANGE) && !first)
			return 0;
		if (ret)
			return ret;
		left -= t->stage1_s + t->stage2_s;
		found->num_tries++;
		if (first || t->pass_ms < found->tries[found->best].pass_ms) {
			int small = !first && t->pass_ms * 1.01 > found->tries[found->best].pass_ms;

			found->best = found->num_tries - 1;
			found->schedule = s;
			found->parts = parts;
			if (small)
				return 0;
		} else {
			return 0;
		}
	}
	return 0;
}
