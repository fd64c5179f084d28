/* SPDX-License-Identifier: Apache-2.0 */
/*
 * search_sim - simulates a schedule, event by event
 *
 * Every part runs once in each layer, as soon as its dependencies have ended and the schedule's order lets
 * it. The simulation takes from the schedule what an executor takes: sizes, decoding rows, levels and order,
 * but not starts or period. It checks at every moment that no two parts of one kind run, and that the R of
 * those that run are at most 1 together.
 *
 * Fixed rates: a part runs at the P of its level throughout, as with a partition of the GPU. Fluid rates: a
 * part that runs alone has the whole GPU, as in one launch that takes its work from queues.
 *
 * Errors: -EINVAL (two parts run that must not, a part never becomes ready, or no steady state is reached;
 * the text names the parts), -ENOMEM.
 */
#ifndef CAIRN_SEARCH_SIM_H
#define CAIRN_SEARCH_SIM_H

#include "serving/search/search_problem.h"

enum cairn_search_rates { CAIRN_SEARCH_FIXED, CAIRN_SEARCH_FLUID };

/* Sets *period_ms to the time of a layer once every layer takes the same time. */
int cairn_search_sim_period(const struct cairn_search_problem *problem,
			    const struct cairn_search_parts *parts,
			    const struct cairn_search_schedule *schedule, enum cairn_search_rates rates,
			    double *period_ms);
/* Sets *pass_ms to the time of all layers of a pass, from the first start to the last end. */
int cairn_search_sim_pass(const struct cairn_search_problem *problem, const struct cairn_search_parts *parts,
			  const struct cairn_search_schedule *schedule, enum cairn_search_rates rates,
			  double *pass_ms);

#endif
