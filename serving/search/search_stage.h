/* SPDX-License-Identifier: Apache-2.0 */
/* search_stage - what the programs of both stages have in common (NOTES.md) */
#ifndef CAIRN_SEARCH_STAGE_H
#define CAIRN_SEARCH_STAGE_H

#include "serving/search/search_lp.h"
#include "serving/search/search_problem.h"

struct cairn_search_milp {
	const struct cairn_search_problem *problem;
	const struct cairn_search_parts *parts;
	struct cairn_lp *lp;
	double unit_ms;		/* the program's unit of time: a layer run sequentially */
	/* columns: the rate f in layers per unit; per part its start, its lag and its share of the period */
	int32_t rate, start[CAIRN_SEARCH_MOST_PARTS], lag[CAIRN_SEARCH_MOST_PARTS];
	int32_t share[CAIRN_SEARCH_MOST_PARTS];
};

/* Creates rate, start, lag and share. most_rate: no schedule has a higher one. */
int cairn_search_milp_open(struct cairn_search_milp *m, const struct cairn_search_problem *problem,
			   const struct cairn_search_parts *parts, double most_rate);
/* Adds the rows of the dependencies, and of the objective: max rate - span * (last end - first start). */
void cairn_search_milp_deps(struct cairn_search_milp *m, double span);
/*
 * Adds the rows that keep p and q apart, unless column `overlap` is 1; overlap -1: always. Returns the binary
 * column that is 1 if p starts first.
 */
int32_t cairn_search_milp_apart(struct cairn_search_milp *m, int32_t p, int32_t q, int32_t overlap);
/* Adds a row: the parts of a kind fill at most the period. */
void cairn_search_milp_kinds(struct cairn_search_milp *m);
/* The name of a part in names of columns and rows: "qkv_0". */
const char *cairn_search_part_name(const struct cairn_search_milp *m, int32_t part);
/* Solves, and sets starts, period, gap and seconds of the schedule. answer->values must be freed. */
int cairn_search_milp_solve(struct cairn_search_milp *m, const struct cairn_search_limits *limits,
			    const char *stage, struct cairn_search_schedule *schedule,
			    struct cairn_lp_answer *answer);

#endif
