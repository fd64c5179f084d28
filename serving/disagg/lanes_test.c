// SPDX-License-Identifier: Apache-2.0
/* lanes_test - the pipeline takes as long as its closed form; rotation has no bubble (claim LA-8) */
#include <math.h>

#include "conformance/harness.h"
#include "serving/disagg/disagg_test.h"
#include "serving/disagg/figures.h"

static void formula(struct cairn_test *t)
{
	const char *why = lanes_follow_formula();

	if (why)
		cairn_note(t, "%s", why);
	EXPECT(t, !why);
}

/* Section 6: with t_m = t_a = t two lanes expose 2 t_n, and three nothing while t_n <= t / 2. */
static void exposed_network(struct cairn_test *t)
{
	struct cairn_lane_times times = { .slice = 1000, .attn = 1000, .query = 500, .output = 500 };

	EXPECT(t, steady_pass(1, 1, 24, &times) == 24 * 3000);
	EXPECT(t, steady_pass(2, 1, 24, &times) == 24 * 3000);
	EXPECT(t, steady_pass(3, 1, 24, &times) == 24 * 3000);
	times.query = times.output = 0;
	EXPECT(t, steady_pass(2, 1, 24, &times) == 24 * 2000);
}

static void rotation_has_no_bubble(struct cairn_test *t)
{
	for (int32_t n = 2; n <= CAIRN_MOST_LANES; n++) {
		struct cairn_disagg_rotation r;

		cairn_disagg_rotate(n, &r);
		EXPECT(t, r.waited == 0 && r.idle == 0 && r.is_exact);
	}
}

/* A lane that has stopped starts again at the time given, and the others run on without it. */
static void stopped_lanes(struct cairn_test *t)
{
	static const struct cairn_lane_times times = { .slice = 10, .attn = 5, .head = 7 };
	struct cairn_lanes l;

	cairn_lanes_init(&l, 2, 1, 2);
	EXPECT(t, cairn_lanes_run(&l) == -1);
	cairn_lanes_start(&l, 1, 100, &times);
	EXPECT(t, cairn_lanes_run(&l) == 1 && l.lanes[1].arrival == 137);
	EXPECT(t, cairn_lanes_run(&l) == -1);
	/* lane 0 goes first; its head waits 5 for lane 1's second slice, lane 1's then 2 for lane 0's */
	cairn_lanes_start(&l, 0, 137, &times);
	cairn_lanes_start(&l, 1, 0, &times);
	EXPECT(t, cairn_lanes_run(&l) == 0 && l.lanes[0].arrival == 184);
	EXPECT(t, cairn_lanes_run(&l) == 1 && l.lanes[1].arrival == 191);
	EXPECT(t, l.replica[0].busy == 3 * 27 && l.attn.busy == 3 * 10);
}

/* A pass of one lane is its path; two lanes that compute most of the time share the GPU. */
static void runs(struct cairn_test *t)
{
	struct cairn_disagg_model m = { .graph = NULL };
	struct cairn_disagg_system s = { &m, &plain_gpu, &plain_gpu, plain_link, 1, 1, 0 };
	struct cairn_lane_times l;
	double path;

	if (!EXPECT(t, !open_8b(&m)))
		return;
	cairn_disagg_times(&s, 64, 64 * 1024, &l);
	path = 32 * (double)(l.slice + l.attn) + (double)l.head;
	EXPECT(t, fabs(cairn_disagg_pass_us(&s, 1, 64, 1024) * 1e6 - path) < 1);
	s.b = 1;
	cairn_disagg_times(&s, 64, 64 * 1024, &l);
	path = 32 * (double)(l.slice + l.query + l.attn + l.output) + (double)l.head;
	EXPECT(t, fabs(cairn_disagg_pass_us(&s, 1, 64, 1024) * 1e6 - path) < 1);
	EXPECT(t, l.slice > l.attn + l.query + l.output);
	path = 2 * (32 * (double)l.slice + (double)l.head);
	EXPECT(t, fabs(cairn_disagg_pass_us(&s, 2, 64, 1024) * 1e6 / path - 1) < 0.01);
	cairn_disagg_model_close(&m);
}

#define UNIT(name)	{ #name, name }
static const struct cairn_unit units[] = {
	UNIT(formula), UNIT(exposed_network), UNIT(rotation_has_no_bubble), UNIT(stopped_lanes),
	UNIT(runs),
};

const struct cairn_family cairn_disagg_lanes_family = {
	.stage = "serving",
	.name = "disagg_lanes",
	.units = units,
	.num_units = ARRAY_SIZE(units),
};
