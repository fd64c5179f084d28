// SPDX-License-Identifier: Apache-2.0
/* replay_test - replays a trace on an engine, against a plain loop, and on lanes; memory limits */
#include "conformance/harness.h"
#include "serving/disagg/disagg_test.h"
#include "serving/disagg/figures.h"

static void expect_right(struct cairn_test *t, const char *why)
{
	if (why)
		cairn_note(t, "%s: %s", why, cairn_last_error());
	EXPECT(t, !why);
}

static void engine(struct cairn_test *t)
{
	expect_right(t, replay_is_the_loop());
}

static void lanes(struct cairn_test *t)
{
	expect_right(t, replay_shares_out());
}

/* Weights and keys that do not fit are refused; a request of exactly the room is not. */
static void memory(struct cairn_test *t)
{
	struct cairn_trace_request request = { 9000, 216 };	/* 576 pages of 16 */
	struct cairn_trace trace = { &request, 1, 216, 9216, 9000, 216 };
	struct cairn_disagg_gpu small = plain_gpu;
	struct cairn_disagg_model m = { .graph = NULL };
	struct cairn_disagg_system s = { &m, &plain_gpu, &small, plain_link, 1, 1, 2 };
	struct cairn_replay_options opt = { .lanes = 1, .page_size = 16, .most_rows = 8, .memory_share = 1 };
	struct cairn_replay_result r;

	if (!EXPECT(t, !open_8b(&m)))
		return;
	small.memory_gb = 9216 * 65536 * 1e-9;	/* each of two has four of eight heads */
	EXPECT(t, cairn_replay(&trace, &s, &opt, &r) == 0 && r.room == 576 && r.tokens == 216);
	small.memory_gb *= 0.999;
	EXPECT(t, cairn_replay(&trace, &s, &opt, &r) == -ERANGE);
	EXPECT_CONTAINS(t, cairn_last_error(), "the longest request, 9216 tokens");
	s.model_gpu = &small;
	EXPECT(t, cairn_replay(&trace, &s, &opt, &r) == -ERANGE);
	EXPECT_CONTAINS(t, cairn_last_error(), "the weights, 16.1 GB on each of 1");
	cairn_disagg_model_close(&m);
}

/* Times that picoseconds in 64 bits cannot hold are errors: of one operation, and of all passes together. */
static void too_slow(struct cairn_test *t)
{
	struct cairn_trace_request request = { 100, 30000 };
	const struct cairn_trace trace = { .requests = &request, .num_requests = 1, .longest = 30100,
					   .longest_answer = 30000 };
	struct cairn_disagg_gpu gpu = plain_gpu;
	struct cairn_disagg_model m = { .graph = NULL };
	struct cairn_disagg_system s = { &m, &gpu, &gpu, plain_link, 1, 1, 0 };
	const struct cairn_replay_options opt = { .lanes = 1, .page_size = 16, .most_rows = 1,
						  .memory_share = 1 };
	struct cairn_replay_result r;

	if (!EXPECT(t, !open_8b(&m)))
		return;
	gpu.slice = (struct cairn_disagg_points){ { 1, 2 }, { 9e6, 9e6 }, 2 };
	EXPECT(t, cairn_replay(&trace, &s, &opt, &r) == -ERANGE);
	EXPECT_CONTAINS(t, cairn_last_error(), "the trace takes more than 92 days");
	gpu.slice.us[0] = 1e300;
	EXPECT(t, cairn_replay(&trace, &s, &opt, &r) == -ERANGE);
	EXPECT_CONTAINS(t, cairn_last_error(), "a slice takes 1e+294 s; more than 10 s are not simulated");
	EXPECT(t, isnan(cairn_disagg_pass_us(&s, 1, 1, 1024)));
	cairn_disagg_model_close(&m);
}

#define UNIT(name)	{ #name, name }
static const struct cairn_unit units[] = { UNIT(engine), UNIT(lanes), UNIT(memory), UNIT(too_slow) };

const struct cairn_family cairn_disagg_replay_family = {
	.stage = "serving",
	.name = "disagg_replay",
	.units = units,
	.num_units = ARRAY_SIZE(units),
};
