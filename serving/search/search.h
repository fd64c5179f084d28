/* SPDX-License-Identifier: Apache-2.0 */
/*
 * search - searches the schedule of a pass: both stages for 2 nano-batches, then for one more as long as
 * that shortens the pass by 1%
 *
 * Source: NanoFlow (Zhu et al. 2024), section 4.1. It differs in the programs: a periodic schedule instead of
 * unrolled layers, sizes that all operations share, and decoding rows placed by the search (NOTES.md).
 */
#ifndef CAIRN_SEARCH_H
#define CAIRN_SEARCH_H

#include "serving/search/search_problem.h"

struct cairn_search_options {
	double seconds;		/* of the solver, for one pass */
	double gap;		/* relative, at which stage 2 may stop; stage 1 stops at a tenth of it */
	int32_t most_nanos;	/* 2 .. CAIRN_SEARCH_MOST_SPLIT */
	const char *dump;	/* prefix of the LP files to write; NULL: none */
};

/* The result for one number of nano-batches. A layer's times are those of the steady state. */
struct cairn_search_try {
	int32_t nanos;
	double stage1_ms, stage1_gap, stage1_s;		/* a layer without interference */
	double stage2_ms, stage2_gap, stage2_s;		/* a layer by the table from R to P */
	double pass_ms, fluid_ms;	/* all layers: with fixed rates, and if a lone part has the GPU */
};

struct cairn_search_found {
	double sequential_ms;		/* all layers, one operation after another */
	struct cairn_search_try tries[CAIRN_SEARCH_MOST_SPLIT];
	int32_t num_tries, best;	/* best: index of the shortest pass */
	struct cairn_search_schedule schedule;	/* of the best */
	struct cairn_search_parts parts;
};

/* Errors: as cairn_search_stage1(), cairn_search_sim_pass(). A later try ends the search if its time is too
 * short, or if the rows cannot be cut into so many. */
int cairn_search(const struct cairn_search_problem *problem, const struct cairn_search_options *options,
		 struct cairn_search_found *found);

#endif
