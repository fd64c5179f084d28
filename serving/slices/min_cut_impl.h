/* SPDX-License-Identifier: Apache-2.0 */
/* min_cut_impl - the arcs and the flow of a min_cut, for the solver and for the tests of its certificate */
#ifndef CAIRN_MIN_CUT_IMPL_H
#define CAIRN_MIN_CUT_IMPL_H

#include "serving/slices/min_cut.h"

/* Arcs 2 i and 2 i + 1 are the i-th arc and its reverse; `left` is what the flow leaves of the capacity. */
struct arc {
	int32_t to, next;	/* next: another arc from the same node, or -1 */
	int64_t left;
};

struct cairn_min_cut {
	struct arc *arcs;
	int64_t *capacity;		/* [num_arcs / 2] */
	int32_t *first;			/* [num_nodes]: an arc from the node, or -1 */
	int32_t *level;			/* distance from the source in arcs that have room left; -1: none */
	int32_t *current;		/* arcs before this one lead nowhere in this phase */
	int32_t *list;			/* a queue of nodes, or a path of arcs */
	int32_t num_nodes, num_arcs, room;
	int32_t source, sink;
	int64_t flow, finite;		/* finite: sum of the finite capacities */
};

#endif
