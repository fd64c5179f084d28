/* SPDX-License-Identifier: Apache-2.0 */
/* search_measure - `cairn search --measure`: measures the plans of a file on this machine */
#ifndef CAIRN_SEARCH_MEASURE_H
#define CAIRN_SEARCH_MEASURE_H

#include <stdint.h>

struct cairn_measure_options {
	const char *plan, *impl, *model, *shape, *json;
	int64_t device, turns, tp;	/* tp: number of ranks; a plan is for the share of one rank */
	float seconds;			/* of a turn */
};

/*
 * Measures each entry of the plan file against the sequential pass (nano_ablation.h), prints the times,
 * writes them into the file, and appends rows to --json. With tp > 1 it forks the other ranks, which measure
 * with it and end with it; so it must be called before threads exist. Errors: those of plan_file.h,
 * nano_ablation.h and ranks.h.
 */
int cairn_search_measure(const struct cairn_measure_options *options);

#endif
