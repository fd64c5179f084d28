// SPDX-License-Identifier: Apache-2.0
/*
 * ring_attention_test - ring attention with zig-zag and with contiguous pieces: rows of `cairn bench`
 *
 *   n2, n4, n8
 *	llama32-1b with random weights on so many GPUs, prompts of 8K, 32K and 128K tokens in one pass, so
 *	that all keys travel. Attention is four fifths of the computation at 128K. one_ms is the time of one
 *	GPU in the same run; ideal_pct: one_ms / n in percent of zigzag_ms; over_contiguous: contiguous_ms /
 *	zigzag_ms, at most 1.5 for attention alone and two ranks.
 */
#include "conformance/harness.h"
#include "serving/bench/ranks_times_test.h"

static void run_rings(struct cairn_test *t, int n)
{
	static const int lengths[] = { 8192, 32768, 130048 };
	char name[64];

	if (ranks_lack_gpus(t, n))
		return;
	for (size_t l = 0; l < ARRAY_SIZE(lengths); l++) {
		struct ranks_run run = { .impl = "cuda", .shape = "llama32-1b", .tokens = lengths[l],
					 .rows = lengths[l] };
		const double one = ranks_first_ms(t, &run);
		double zigzag, contiguous;

		run.cp = n;
		run.exchange = "ring";
		zigzag = ranks_first_ms(t, &run);
		run.exchange = "blocks";
		contiguous = ranks_first_ms(t, &run);
		if (!EXPECT(t, one > 0 && zigzag > 0 && contiguous > 0))
			return;
		snprintf(name, sizeof(name), "llama32_1b_%dk_n%d", (lengths[l] + 1023) / 1024, n);
		cairn_row(t, name, "cuda",
			  "\"prompt_tokens\":%d,\"ranks\":%d,\"one_ms\":%.2f,\"zigzag_ms\":%.2f,"
			  "\"contiguous_ms\":%.2f,\"ideal_pct\":%.1f,\"over_contiguous\":%.3f", lengths[l], n,
			  one, zigzag, contiguous, 100 * one / zigzag / n, contiguous / zigzag);
	}
}

static void n2(struct cairn_test *t)
{
	run_rings(t, 2);
}

static void n4(struct cairn_test *t)
{
	run_rings(t, 4);
}

static void n8(struct cairn_test *t)
{
	run_rings(t, 8);
}

static const struct cairn_unit measures[] = {
	{ "n2", n2 }, { "n4", n4 }, { "n8", n8 },
};

const struct cairn_family cairn_ring_attention_family = {
	.stage = "serving", .name = "ring_attention",
	.measures = measures, .num_measures = ARRAY_SIZE(measures),
	.timeout_s = 1800,
};
