/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lane_costs - how many lanes are best, by measured times of their turns
 *
 * With n lanes of B / n rows each, a layer of all B rows takes
 *
 *   T(n) = max(n t_m(B / n), n t_a(B / n), t_m(B / n) + t_a(B / n) + 2 t_n)
 *
 * (serving/disagg/lanes.h), where t_m is the time of a slice here, t_a that of the attention at the slowest
 * worker, and t_n one way over the network. t_a is proportional to the rows. t_m is a line through the
 * measurements; if all had the same number of rows, t_m is taken for constant, as if it went into reading
 * weights.
 *
 * t_n cannot be seen while other lanes hide it. So it is derived from the time that a lane still waits for
 * its results, and keeps its last value when no lane waits. It is a line, too: a latency, which lanes cannot
 * shorten, and the time of the bytes, s for each row. The link is busy for s B in a layer, however many lanes
 * there are, so T(n) is not less. If all measurements had the same number of rows, t_n is taken to be
 * proportional to them, so that another lane is tried: where lanes wait, it costs little.
 */
#ifndef CAIRN_LANE_COSTS_H
#define CAIRN_LANE_COSTS_H

#include <stdint.h>

#include "serving/base/line_fit.h"

/* Means over some turns. */
struct cairn_lane_turn {
	double rows;			/* of one lane */
	double model_ns, wait_ns;	/* of this process: computing; waiting for a result */
	double attn_ns;			/* of the slowest attention worker */
};

/* Zeroed: nothing is known. */
struct cairn_lane_costs {
	struct cairn_lane_turn last;
	struct cairn_line_fit model;	/* model_ns by rows */
	struct cairn_line_fit net;	/* t_n by rows */
	double net_ns, net_rows;	/* its last value, of so many rows */
	double least, most;		/* rows of its values */
};

/* Adds a measurement with so many lanes. */
void cairn_lane_costs_add(struct cairn_lane_costs *c, int32_t lanes, const struct cairn_lane_turn *turn);
/* Returns T(n), if `now` lanes have the rows of the last measurement. */
double cairn_lane_costs_layer(const struct cairn_lane_costs *c, int32_t now, int32_t n);
/* Returns the best of 1 .. most lanes; `now` unless another number is better by a tenth. */
int32_t cairn_lane_costs_best(const struct cairn_lane_costs *c, int32_t now, int32_t most);

#endif
