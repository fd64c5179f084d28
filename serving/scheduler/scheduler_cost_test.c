// SPDX-License-Identifier: Apache-2.0
/*
 * scheduler_cost_test - measures the host time of a plan: rows of `cairn bench`
 *
 *   decode_256	256 sequences decode, one step ahead; no request waits
 *   dense_256	256 sequences, 512 rows; as answers end, prompts that share a prefix of 512 tokens are
 * 			admitted; 300 wait
 *   keep_256	as dense_256, with KV copied to the host tier
 *
 * The cost of a step is that of the report (tokens, ends, prefix tree) plus that of the plan. A median below
 * 100 us is hidden behind the previous pass, so that the device never waits.
 */
#include "conformance/harness.h"

#include "serving/scheduler/scheduler_sim_test.h"

enum { BATCH = 256, WARM = 600, STEPS = 3000, SHARED = 512 };

static int by_value(const void *a, const void *b)
{
	int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;

	return (x > y) - (x < y);
}

static void submit_next(struct cairn_test *t, struct sim *sim, int32_t i, int32_t answer, int keep)
{
	struct sim_request *r = &sim->requests[i];

	sim_prompt(t, sim, i, SHARED + 64 + (int32_t)(cairn_rand(t) % 512), answer);
	for (int32_t k = 0; k < SHARED; k++)
		r->prompt[k] = k;
	r->keep = keep;
	EXPECT(t, sim_submit(sim, i) == 0);
}

static void measure(struct cairn_test *t, const char *name, int dense, int keep)
{
	struct cairn_scheduler_options opt = {
		.dense_rows = dense ? 2 * BATCH : BATCH,
		.max_seqs = BATCH,
		.max_context = 8192,
		.page_size = 16,
		.num_pages = 90000,
		.host_pages = keep ? 60000 : 0,
		.grain = 16,
		.ahead = 1,
		.max_queued = 4096,
		.max_passes = 32,
	};
	static int64_t plans[STEPS], steps[STEPS];
	struct cairn_scheduler_stats st;
	static struct sim sim;
	int32_t next = 0;
	double rows;

	if (!sim_create(t, &sim, &opt, 16384))
		return;
	for (int k = -WARM; k < STEPS; k++) {
		cairn_scheduler_stats(sim.s, &st);
		for (; next < sim.num_requests && (dense ? st.num_waiting < 300 : next < BATCH);
		     st.num_waiting++, next++)
			submit_next(t, &sim, next, dense ? 128 + (int32_t)(cairn_rand(t) % 256) : 7000, keep);
		if (!EXPECT(t, sim_step(t, &sim)))
			break;
		if (k < 0)
			continue;
		plans[k] = sim.plan_ns;
		steps[k] = sim.plan_ns + sim.report_ns;
	}
	cairn_scheduler_stats(sim.s, &st);
	rows = (double)st.rows / (double)st.plans;
	qsort(plans, STEPS, sizeof(plans[0]), by_value);
	qsort(steps, STEPS, sizeof(steps[0]), by_value);
	if (!EXPECT(t, st.num_running > BATCH * 3 / 4))
		cairn_note(t, "%s: %d running", name, st.num_running);
	EXPECT(t, steps[STEPS / 2] < 100000);
	cairn_host_row(t, name, "host",
		       "\"median_ns\":%lld,\"p95_ns\":%lld,\"p99_ns\":%lld,\"max_ns\":%lld,"
		       "\"plan_median_ns\":%lld,\"plan_p95_ns\":%lld,\"n\":%d,\"batch\":%d,\"rows\":%.0f,"
		       "\"admitted\":%lld",
		       (long long)steps[STEPS / 2], (long long)steps[STEPS * 95 / 100],
		       (long long)steps[STEPS * 99 / 100], (long long)steps[STEPS - 1],
		       (long long)plans[STEPS / 2], (long long)plans[STEPS * 95 / 100], STEPS, BATCH, rows,
		       (long long)st.admitted);
	sim_destroy(t, &sim);
}

void scheduler_plan_cost(struct cairn_test *t)
{
	measure(t, "decode_256", 0, 0);
	measure(t, "dense_256", 1, 0);
	measure(t, "keep_256", 1, 1);
}
