// SPDX-License-Identifier: Apache-2.0
/*
 * lanes_speed_test - measures how much of a slow network lanes hide
 *
 *   lanes_cpu_paced
 *	a tiny model on the cpu table, one attention worker, a paced link: loopback TCP whose signals show one
 *	latency later than they come (transport_tcp_pace.c). 12 requests decode together in 1, 2 and 3 lanes,
 *	and in as many as --lanes auto chooses. The rates are medians of 3 runs.
 */
#include <stdlib.h>

#include "conformance/harness.h"
#include "serving/base/clock.h"
#include "serving/engine/engine_test.h"
#include "serving/remote/lead/lead.h"

enum { PACED_REQUESTS = 12, PACED_NEW = 100, PACED_RUNS = 3 };

#define PACE		"1000:1000"	/* us, MB/s */

/* Runs all requests. Returns the tokens per second of the steps in which all decode; 0: it failed. */
static double run(struct cairn_test *t, struct cairn_model *m, struct cairn_lead *lead, int32_t lanes)
{
	const struct cairn_engine_options opt = {
		.max_context = 128, .max_batch = PACED_REQUESTS, .max_rows = 64, .page_size = 4,
		.num_pages = 400, .max_passes = 8, .attention = lead, .attends_all = 1, .lanes = lanes,
	};
	static struct answer answers[PACED_REQUESTS];
	struct cairn_engine_stats stats;
	const struct golden none = { 0 };
	int32_t prompt[8];
	struct cairn_engine *e;
	int64_t begin = 0, first = 0;
	int busy = 1, ret = cairn_engine_create(&e, m, &opt);

	if (!EXPECT(t, ret == 0))
		return 0;
	for (int i = 0; i < PACED_REQUESTS && !ret; i++) {
		struct cairn_request r = request(&none, 8, PACED_NEW, &answers[i]);

		memset(&answers[i], 0, sizeof(answers[i]));
		for (int k = 0; k < 8; k++)
			prompt[k] = 3 + 11 * i + k;
		r.prompt = prompt;
		r.ignore_eos = 1;
		ret = cairn_engine_submit(e, &r);
	}
	while (!ret && busy) {
		ret = cairn_engine_step(e, &busy);
		cairn_engine_stats(e, &stats);
		if (!begin && !stats.scheduler.num_waiting && stats.new_tokens > 4 * PACED_REQUESTS) {
			begin = cairn_clock_ns();
			first = stats.new_tokens;
		}
	}
	cairn_engine_destroy(e);
	return EXPECT(t, ret == 0 && stats.new_tokens == PACED_REQUESTS * PACED_NEW) ?
	       (double)(stats.new_tokens - first) * 1e9 / (double)(cairn_clock_ns() - begin) : 0;
}

static int by_rate(const void *a, const void *b)
{
	const double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

static void lanes_cpu_paced(struct cairn_test *t)
{
	static const int32_t lanes[] = { 1, 2, 3, CAIRN_LANES_AUTO };
	const struct cairn_lead_options o = { .attention = 1, .table = "cpu", .join_ms = 60000 };
	double rates[ARRAY_SIZE(lanes)][PACED_RUNS], median[ARRAY_SIZE(lanes)];
	struct cairn_model *m;
	struct cairn_lead *lead;
	struct cairn_impl impl;
	struct golden g;
	int ret;

	if (open_model(t, "cpu", "llama3_tiny", &impl, &g, &m))
		return;
	setenv("CAIRN_TCP_PACE", PACE, 1);
	ret = cairn_lead_create(&lead, &o);
	if (ret)
		cairn_skip(t, "%s", cairn_last_error());
	for (size_t i = 0; i < ARRAY_SIZE(lanes) && !ret; i++) {
		for (int k = 0; k < PACED_RUNS; k++)
			rates[i][k] = run(t, m, lead, lanes[i]);
		qsort(rates[i], PACED_RUNS, sizeof(rates[i][0]), by_rate);
		median[i] = rates[i][PACED_RUNS / 2];
	}
	unsetenv("CAIRN_TCP_PACE");
	if (!ret) {
		EXPECT(t, median[1] > median[0]);
		cairn_host_row(t, "lanes_cpu_paced", "cpu",
			       "\"link\":\"paced\",\"latency_us\":1000,\"mb_per_s\":1000,\"requests\":%d,"
			       "\"tokens_per_s_1\":%.0f,\"tokens_per_s_2\":%.0f,\"tokens_per_s_3\":%.0f,"
			       "\"tokens_per_s_auto\":%.0f,\"two_over_one\":%.2f,\"three_over_one\":%.2f",
			       PACED_REQUESTS, median[0], median[1], median[2], median[3],
			       median[1] / median[0], median[2] / median[0]);
		cairn_lead_destroy(lead);
	}
	close_model(m, &g);
}

static const struct cairn_unit measures[] = {
	{ "lanes_cpu_paced", lanes_cpu_paced },
};

const struct cairn_family cairn_disagg_family = {
	.stage = "serving", .name = "disagg", .measures = measures, .num_measures = ARRAY_SIZE(measures),
};
