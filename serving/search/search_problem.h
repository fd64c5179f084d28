/* SPDX-License-Identifier: Apache-2.0 */
/*
 * search_problem - a pass to be scheduled, its nano-operations, and schedules of them
 *
 * A pass of `rows` rows is cut into K nano-batches. A nano-operation, or part, is an operation for the rows
 * of one nano-batch, or a whole operation for all rows. Every layer takes one period. Times within a period
 * are shares of it; part p of layer n runs from n + start[p] on, and start[p] may be more than 1: the parts
 * of a nano-batch may lag behind those of another one by whole layers.
 */
#ifndef CAIRN_SEARCH_PROBLEM_H
#define CAIRN_SEARCH_PROBLEM_H

#include "serving/search/search_pipeline.h"

#define CAIRN_SEARCH_MOST_SPLIT	4	/* nano-batches */
#define CAIRN_SEARCH_MOST_PARTS	(CAIRN_SEARCH_MOST_OPS * CAIRN_SEARCH_MOST_SPLIT)
#define CAIRN_SEARCH_MOST_SIZES	32
#define CAIRN_SEARCH_MOST_LEVELS	32
#define CAIRN_SEARCH_MOST_ARCS	(CAIRN_SEARCH_MOST_PARTS * CAIRN_SEARCH_MOST_PARTS + 512)
#define CAIRN_SEARCH_TILE		128	/* sizes of nano-batches are multiples of it */

struct cairn_search_problem {
	struct cairn_search_op ops[CAIRN_SEARCH_MOST_OPS];
	struct cairn_search_edge edges[CAIRN_SEARCH_MOST_EDGES];
	int32_t num_ops, num_edges, num_layers;
	struct cairn_search_pass pass;
	enum cairn_search_kind kinds[CAIRN_SEARCH_MOST_OPS];
	/* sizes that a nano-batch may have, ascending, and the time of each operation alone for that size */
	int32_t sizes[CAIRN_SEARCH_MOST_SIZES];
	int32_t num_sizes;
	double ms[CAIRN_SEARCH_MOST_OPS][CAIRN_SEARCH_MOST_SIZES];	/* not of attention */
	double whole_ms[CAIRN_SEARCH_MOST_OPS];			/* for all rows; not of attention */
	/* attention takes base_ms + request_ms * decoding requests + row_ms * rows of prompts */
	double base_ms, request_ms, row_ms;
	/* levels[kind][0] has R = P = 1 (search_profile.h) */
	struct cairn_search_level levels[CAIRN_NUM_SEARCH_KINDS][CAIRN_SEARCH_MOST_LEVELS];
	int32_t num_levels[CAIRN_NUM_SEARCH_KINDS];
	/*
	 * Speeds as shares of the operation's speed alone. keeps[kind][i][op]: of `op`, which is bound by
	 * arithmetic, beside an operation of `kind` at level i. speed[op][i]: of any `op` at level i of its
	 * own kind.
	 */
	double keeps[CAIRN_NUM_SEARCH_KINDS][CAIRN_SEARCH_MOST_LEVELS][CAIRN_SEARCH_MOST_OPS];
	double speed[CAIRN_SEARCH_MOST_OPS][CAIRN_SEARCH_MOST_LEVELS];
};

/*
 * Fills the members that depend on profile and pass. hows: bits of the ways to run pairs that may be used.
 * The levels of operations bound by arithmetic are those that leave another kind one of its levels.
 * Errors: -EINVAL: the profile lacks a row; the text names it.
 */
int cairn_search_problem(struct cairn_search_problem *out, const struct cairn_search_pipeline *pipeline,
			 const struct cairn_model_config *config, const struct cairn_search_profile *profile,
			 const struct cairn_search_pass *pass, unsigned hows);

/* Sets the levels of operations bound by arithmetic from those of the other kinds, and all speeds. */
void cairn_search_compute_levels(struct cairn_search_problem *problem);

double cairn_search_attn_ms(const struct cairn_search_problem *problem, int32_t rows, int32_t decode);
/* Returns the time of a layer if all operations run one after another, uncut. */
double cairn_search_sequential_ms(const struct cairn_search_problem *problem);

struct cairn_search_part {
	int32_t op, nano;	/* nano 0 also for a whole operation */
};
/* Part `to` of layer n + lag begins after part `from` of layer n has ended. */
struct cairn_search_dep {
	int32_t from, to, lag;
};

/* The parts for K nano-batches, in the order of operations, then nano-batches; and their dependencies. */
struct cairn_search_parts {
	struct cairn_search_part parts[CAIRN_SEARCH_MOST_PARTS];
	struct cairn_search_dep deps[CAIRN_SEARCH_MOST_ARCS];
	int32_t num_parts, num_deps, nanos;
	/*
	 * together[p][q]: p and q may run at the same time, in the same layer or in different ones. Otherwise
	 * dependencies lead from p to q and back within one layer.
	 */
	uint8_t together[CAIRN_SEARCH_MOST_PARTS][CAIRN_SEARCH_MOST_PARTS];
};
void cairn_search_list_parts(const struct cairn_search_problem *problem, int32_t nanos,
		      struct cairn_search_parts *parts);

struct cairn_search_schedule {
	int32_t nanos;
	int32_t size[CAIRN_SEARCH_MOST_SPLIT];	/* rows of each nano-batch */
	int32_t decode[CAIRN_SEARCH_MOST_SPLIT];	/* those of them that are decoding requests */
	double start[CAIRN_SEARCH_MOST_PARTS];	/* shares of the period; the least start is in [0, 1) */
	int32_t level[CAIRN_SEARCH_MOST_PARTS];	/* of its kind */
	double period_ms;
	bool ideal;		/* stage 1: operations of different kinds do not slow each other */
	double gap;	/* no schedule is better by more than this share; INFINITY: not known */
	double seconds;		/* that the solver took */
};

/* Returns the time of a part alone, its speed at its level as a share of that alone, and its time there. */
double cairn_search_part_ms(const struct cairn_search_problem *problem,
			    const struct cairn_search_parts *parts,
			    const struct cairn_search_schedule *schedule, int32_t part);
double cairn_search_speed(const struct cairn_search_problem *problem, const struct cairn_search_parts *parts,
			  const struct cairn_search_schedule *schedule, int32_t part);
double cairn_search_level_ms(const struct cairn_search_problem *problem,
			     const struct cairn_search_parts *parts,
			     const struct cairn_search_schedule *schedule, int32_t part);
const struct cairn_search_level *cairn_search_level_of(const struct cairn_search_problem *problem,
						       const struct cairn_search_parts *parts,
						       const struct cairn_search_schedule *schedule,
						       int32_t part);

/*
 * Lists what the schedule orders: its dependencies, and for two parts that must not run at the same time,
 * because they are of one kind or their R exceed 1 together, the order that their starts give, with its lag.
 * Three parts of three kinds whose R exceed 1 only together are kept apart where their starts do it.
 * Returns the number of arcs; arcs has room for CAIRN_SEARCH_MOST_ARCS.
 */
int32_t cairn_search_order(const struct cairn_search_problem *problem, const struct cairn_search_parts *parts,
			   const struct cairn_search_schedule *schedule, struct cairn_search_dep *arcs);

/*
 * Sets period_ms and start to the shortest period that the order of the schedule allows, with every part as
 * early as possible. -EINVAL: the order contradicts itself.
 */
int cairn_search_tighten(const struct cairn_search_problem *problem, const struct cairn_search_parts *parts,
			 struct cairn_search_schedule *schedule);

/*
 * Solves for the sizes, decoding rows and order with the shortest period if operations of different kinds did
 * not slow each other (stage 1), and then, with sizes, rows and order kept, for the levels and starts with
 * the shortest period under the profile's table (stage 2). NOTES.md states both programs.
 *
 * seconds and gap limit the solver. dump: prefix of the LP files to write; NULL: none. span: weight of the
 * time from the first start of a layer to its last end, in periods; with 0 only the period counts.
 * Errors: as of cairn_lp_solve(); -ERANGE if the rows cannot be cut into so many sizes.
 */
struct cairn_search_limits {
	double seconds, gap, span;
	const char *dump;
};
int cairn_search_stage1(const struct cairn_search_problem *problem, const struct cairn_search_parts *parts,
			const struct cairn_search_limits *limits, struct cairn_search_schedule *schedule);
int cairn_search_stage2(const struct cairn_search_problem *problem, const struct cairn_search_parts *parts,
			const struct cairn_search_limits *limits, struct cairn_search_schedule *schedule);

#endif
