// SPDX-License-Identifier: Apache-2.0
/*
 * tp_offline_test - throughput with tensor parallelism, to compare with as many replicas: rows of `cairn
 * bench`
 *
 *   n1, n2, n4, n8
 *	random weights of llama3-8b on so many GPUs; 256 requests at once with prompts of 512 tokens and
 *	answers of 256. tokens_per_s: of prompts and answers, in the second of two runs.
 */
#include "conformance/harness.h"
#include "serving/bench/ranks_load_test.h"

static void measure(struct cairn_test *t, int32_t ranks)
{
	const struct ranks_model m = { .impl = "cuda", .shape = "llama3-8b", .tp = ranks };
	/* 16 passes of prompts, and 4 steps that are not timed, are part of an answer's 256 tokens */
	const struct ranks_load l = { .batch = 256, .tokens = 512, .rows = 8192, .steps = 235, .runs = 2 };
	struct ranks_times times;
	char name[64];

	if (ranks_measure(t, &m, &l, 1, &times))
		return;
	snprintf(name, sizeof(name), "llama3_8b_n%d", ranks);
	cairn_row(t, name, "cuda", "\"requests\":%d,\"ranks\":%d,\"tokens_per_s\":%.0f,\"first_ms\":%.2f,"
		  "\"step_ms\":%.3f", l.batch, ranks, (double)times.all_tokens * 1e9 / (double)times.all_ns,
		  (double)times.first_ns * 1e-6, (double)times.step_ns * 1e-6);
}

static void n1(struct cairn_test *t)
{
	measure(t, 1);
}

static void n2(struct cairn_test *t)
{
	measure(t, 2);
}

static void n4(struct cairn_test *t)
{
	measure(t, 4);
}

static void n8(struct cairn_test *t)
{
	measure(t, 8);
}

static const struct cairn_unit measures[] = {
	{ "n1", n1 }, { "n2", n2 }, { "n4", n4 }, { "n8", n8 },
};

const struct cairn_family cairn_tp_offline_family = {
	.stage = "serving", .name = "tp_offline",
	.measures = measures, .num_measures = ARRAY_SIZE(measures),
	.timeout_s = 120,
};
