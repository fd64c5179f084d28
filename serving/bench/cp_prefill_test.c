// SPDX-License-Identifier: Apache-2.0
/*
 * cp_prefill_test - time to the first token of long prompts with context parallelism: rows of `cairn bench`
 *
 *   n2, n4, n8
 *	llama31-8b with random weights on so many GPUs, prompts of 8K, 32K and 128K tokens in passes of at
 *	most 8192 rows: heads and ring are the ways of --cp-exchange, tensors is --tp, and both is --tp with
 *	--cp. one_ms is the time of one GPU in the same run. ideal_pct: one_ms / n in percent of first_ms.
 */
#include "conformance/harness.h"
#include "serving/bench/ranks_times_test.h"

#define ROWS	8192

static const struct way {
	const char *name, *exchange;
	int tp, cp;			/* whether there are ranks */
} ways[] = {
	{ "heads", "heads", 0, 1 }, { "ring", "ring", 0, 1 }, { "tensors", NULL, 1, 0 },
	{ "both", NULL, 1, 1 },
};

static void run_ways(struct cairn_test *t, int n)
{
	static const int lengths[] = { 8192, 32768, 130048 };	/* the last: with room for an answer */
	char name[64];

	if (ranks_lack_gpus(t, n))
		return;
	for (size_t l = 0; l < ARRAY_SIZE(lengths); l++) {
		struct ranks_run run = { .impl = "cuda", .shape = "llama31-8b", .tokens = lengths[l],
					 .rows = ROWS };
		const double one = ranks_first_ms(t, &run);

		for (size_t i = 0; i < ARRAY_SIZE(ways) && one > 0; i++) {
			double ms;

			run.tp = ways[i].tp * n;
			run.cp = ways[i].cp * n;
			run.exchange = ways[i].exchange;
			ms = ranks_first_ms(t, &run);
			if (!EXPECT(t, ms > 0))
				return;
			snprintf(name, sizeof(name), "llama31_8b_%dk_n%d_%s", (lengths[l] + 1023) / 1024, n,
				 ways[i].name);
			cairn_row(t, name, "cuda",
				  "\"prompt_tokens\":%d,\"ranks\":%d,\"pass_rows\":%d,\"one_ms\":%.2f,"
				  "\"first_ms\":%.2f,\"speedup\":%.3f,\"ideal_pct\":%.1f", lengths[l], n,
				  ROWS, one, ms, one / ms, 100 * one / ms / n);
		}
	}
}

static void n2(struct cairn_test *t)
{
	run_ways(t, 2);
}

static void n4(struct cairn_test *t)
{
	run_ways(t, 4);
}

static void n8(struct cairn_test *t)
{
	run_ways(t, 8);
}

static const struct cairn_unit measures[] = {
	{ "n2", n2 }, { "n4", n4 }, { "n8", n8 },
};

const struct cairn_family cairn_cp_prefill_family = {
	.stage = "serving", .name = "cp_prefill",
	.measures = measures, .num_measures = ARRAY_SIZE(measures),
	.timeout_s = 1800,
};
