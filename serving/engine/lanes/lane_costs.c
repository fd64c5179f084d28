// SPDX-License-Identifier: Apache-2.0
/* lane_costs - how many lanes are best, by measured times of their turns (lane_costs.h) */
#include "serving/engine/lanes/lane_costs.h"

#include "serving/disagg/lanes.h"

#define WAITS		0.05	/* a lane waits if its wait exceeds this part of its computing time */
#define DIFFERS		1.1	/* a line has a slope only if numbers of rows differ by this factor */
#define GAIN		1.1	/* the number of lanes is changed only for a gain of more than this factor */
#define MORE		1.02	/* one lane more must be faster by more than this factor */

static void add_net(struct cairn_lane_costs *c, double rows, double net_ns)
{
	c->least = !c->net_rows || rows < c->least ? rows : c->least;
	c->most = rows > c->most ? rows : c->most;
	c->net_rows = rows;
	c->net_ns = net_ns;
	if (net_ns > 0)
		cairn_line_fit_add(&c->net, rows, net_ns);
}

/* Returns by how much t_n grows with a row. */
static double net_slope(const struct cairn_lane_costs *c)
{
	const double most = c->net_rows ? c->net_ns / c->net_rows : 0;
	struct cairn_fit_line line = { 0 };

	if (c->most < DIFFERS * c->least)
		return most;
	if (!cairn_line_fit_get(&c->net, &line))
		return 0;
	return line.slope > most ? most : line.slope;
}

void cairn_lane_costs_add(struct cairn_lane_costs *c, int32_t lanes, const struct cairn_lane_turn *t)
{
	const double cycle = lanes * (t->model_ns + t->wait_ns);
	const double net = (cycle - t->model_ns - t->attn_ns) / 2;

	if (t->model_ns <= 0 || t->rows <= 0)
		return;
	cairn_line_fit_add(&c->model, t->rows, t->model_ns);
	if (t->wait_ns > WAITS * t->model_ns)
		add_net(c, t->rows, net > 0 ? net : 0);
	c->last = *t;
}

/* Returns t_m of so many rows: from the last measurement along the line, which does not go below 0. */
static double model_ns(const struct cairn_lane_costs *c, double rows)
{
	const double most = c->last.model_ns / c->last.rows;
	struct cairn_fit_line line = { 0 };

	if (!cairn_line_fit_get(&c->model, &line))
		line.slope = 0;
	return c->last.model_ns + (line.slope > most ? most : line.slope) * (rows - c->last.rows);
}

double cairn_lane_costs_layer(const struct cairn_lane_costs *c, int32_t now, int32_t n)
{
	const double rows = c->last.rows * now, slope = net_slope(c);
	const double net = c->net_ns + slope * (rows / n - c->net_rows);
	const struct cairn_lane_times times = {
		.slice = (int64_t)(1e3 * model_ns(c, rows / n)),
		.attn = (int64_t)(1e3 * c->last.attn_ns * now / n),
		.query = net > 0 ? (int64_t)(1e3 * net) : 0, .output = net > 0 ? (int64_t)(1e3 * net) : 0,
	};
	const double cycle = cairn_lanes_cycle(n, 1, &times) * 1e-3;

	return cycle > slope * rows ? cycle : slope * rows;
}

int32_t cairn_lane_costs_best(const struct cairn_lane_costs *c, int32_t now, int32_t most)
{
	int32_t best = 1;

	if (!c->model.num || c->last.rows <= 0 || c->last.rows * now < most)	/* fewer rows than lanes */
		return now;
	for (int32_t n = 2; n <= most; n++)	/* of equal ones, the fewest */
		if (cairn_lane_costs_layer(c, now, n) * MORE < cairn_lane_costs_layer(c, now, best))
			best = n;
	return cairn_lane_costs_layer(c, now, best) * GAIN < cairn_lane_costs_layer(c, now, now) ? best : now;
}
