// SPDX-License-Identifier: Apache-2.0
/* lane_costs_test - the number of lanes follows from times of an exact pipeline */
#include <math.h>

#include "conformance/harness.h"
#include "serving/engine/lanes/lane_costs.h"

/* A pipeline of `rows` rows in all: t_m = fixed + row * rows, t_a = attn * rows, t_n = net + wire * rows. */
struct pipe {
	double fixed, row, attn, net, rows, wire;
	int steady;			/* the number of requests never varies */
};

/* What a lane measures if there are n of them. */
static struct cairn_lane_turn turn_of(const struct pipe *p, int32_t n, double rows)
{
	const double m = p->fixed + p->row * rows / n, a = p->attn * rows / n;
	double cycle = m + a + 2 * (p->net + p->wire * rows / n);

	cycle = n * m > cycle ? n * m : cycle;
	cycle = n * a > cycle ? n * a : cycle;
	cycle = p->wire * rows > cycle ? p->wire * rows : cycle;
	return (struct cairn_lane_turn){ .rows = rows / n, .model_ns = m, .attn_ns = a,
					 .wait_ns = cycle / n - m };
}

/* Measures with the number of lanes chosen last, many times, from one lane on. Returns the last choice. */
static int32_t settle(const struct pipe *p, int32_t *changes)
{
	struct cairn_lane_costs c = { 0 };
	int32_t n = 1;

	*changes = 0;
	for (int i = 0; i < 60; i++) {		/* the number of requests varies at first */
		const double rows = i < 20 && !p->steady ? p->rows * (20 + i) / 40 : p->rows;
		const struct cairn_lane_turn t = turn_of(p, n, rows);
		int32_t best;

		cairn_lane_costs_add(&c, n, &t);
		best = cairn_lane_costs_best(&c, n, 3);
		*changes += best != n;
		n = best;
	}
	return n;
}

static void chosen(struct cairn_test *t)
{
	static const struct {
		struct pipe p;
		int32_t want;
	} cases[] = {
		{ { .fixed = 100, .row = 0.1, .attn = 0.1, .net = 1, .rows = 64 }, 1 },	/* weights */
		{ { .row = 10, .attn = 10, .net = 0, .rows = 64 }, 2 },		/* equal, no network */
		{ { .row = 10, .attn = 10, .net = 640, .rows = 64 }, 3 },	/* and a slow one */
		{ { .row = 10, .attn = 0.1, .net = 1, .rows = 64 }, 1 },	/* hardly any attention */
		{ { .fixed = 100, .row = 1, .attn = 20, .net = 10, .rows = 64 }, 2 },
		{ { .row = 10, .attn = 10, .net = 640, .rows = 2 }, 1 },	/* fewer rows than lanes */
		{ { .row = 1, .attn = 1, .net = 10, .wire = 20, .rows = 64 }, 3 },	/* bytes */
		{ { .row = 1, .attn = 1, .net = 640, .wire = 20, .rows = 64 }, 3 },	/* and a latency */
		{ { .row = 1, .attn = 1, .net = 10, .wire = 20, .rows = 64, .steady = 1 }, 3 },	/* tried */
	};
	int32_t changes;

	for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
		const int32_t n = settle(&cases[i].p, &changes);

		if (!EXPECT(t, n == cases[i].want && changes <= 2))
			cairn_note(t, "case %zu: %d lanes, %d changes", i, n, changes);
	}
}

/* Costs that were measured with one lane predict those with others. */
static void predicted(struct cairn_test *t)
{
	const struct pipe p = { .fixed = 50, .row = 3, .attn = 5, .net = 40, .rows = 90 };
	struct cairn_lane_costs c = { 0 };

	for (double rows = 30; rows <= 90; rows += 10) {
		const struct cairn_lane_turn turn = turn_of(&p, 1, rows);

		cairn_lane_costs_add(&c, 1, &turn);
	}
	for (int32_t n = 1; n <= 3; n++) {
		const struct cairn_lane_turn want = turn_of(&p, n, 90);
		const double cycle = n * (want.model_ns + want.wait_ns);

		EXPECT(t, fabs(cairn_lane_costs_layer(&c, 1, n) - cycle) < 1e-2);
	}
	EXPECT(t, cairn_lane_costs_best(&(struct cairn_lane_costs){ 0 }, 2, 3) == 2);
}

static const struct cairn_unit units[] = {
	{ "chosen", chosen }, { "predicted", predicted },
};

const struct cairn_family cairn_lane_costs_family = {
	.stage = "serving", .name = "lane_costs", .units = units, .num_units = ARRAY_SIZE(units),
};
