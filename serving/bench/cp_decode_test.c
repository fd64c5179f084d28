// SPDX-License-Identifier: Apache-2.0
/*
 * cp_decode_test - decoding with latents whose pages ranks share out: a row of `cairn bench`
 *
 *   n2
 *	dsv2lite with random weights on two GPUs, --tp 2 --cp 2, 64 sequences of 16K tokens: the median time
 *	of a step in which every rank reads all latents (whole_ms), in which each reads half of the pages
 *	(pages_ms), and in which each also holds only these (stripes_ms).
 *
 * The check runs the same code on the cpu table, with the embedded model in a ring.
 */
#include "conformance/harness.h"
#include "serving/bench/ranks_times_test.h"

#define STEP	"median_ns"
#define NEVER	"1000000000000"		/* keys: passes do not have so many */

static void n2(struct cairn_test *t)
{
	struct ranks_run run = { .impl = "cuda", .shape = "dsv2lite", .tokens = 16384, .rows = 8192, .tp = 2,
				 .cp = 2, .batch = "64", .new_tokens = "34", .keys = NEVER };
	double whole, pages, stripes;

	if (ranks_lack_gpus(t, 2))
		return;
	whole = ranks_ms(t, &run, STEP);
	run.keys = "1";
	pages = ranks_ms(t, &run, STEP);
	run.keys = NULL;
	run.stripes = 1;
	stripes = ranks_ms(t, &run, STEP);
	if (EXPECT(t, whole > 0 && pages > 0 && stripes > 0))
		cairn_row(t, "dsv2lite_b64_16k_n2", "cuda",
			  "\"context\":%d,\"ranks\":2,\"whole_ms\":%.3f,\"pages_ms\":%.3f,\"gain\":%.3f,"
			  "\"stripes_ms\":%.3f",
			  run.tokens, whole, pages, whole / pages, stripes);
}

static void smoke(struct cairn_test *t)
{
	char model[4096];
	struct ranks_run run = { .impl = "cpu", .model = model, .tokens = 64, .rows = 64, .cp = 2,
				 .exchange = "ring", .stripes = 1, .new_tokens = "8" };

	snprintf(model, sizeof(model), "%.4000s/serving/embedded", cairn_data_dir());
	EXPECT(t, ranks_ms(t, &run, STEP) > 0);
}

static const struct cairn_unit units[] = {
	{ "smoke", smoke },
};

static const struct cairn_unit measures[] = {
	{ "n2", n2 },
};

const struct cairn_family cairn_cp_decode_family = {
	.stage = "serving", .name = "cp_decode",
	.units = units, .num_units = ARRAY_SIZE(units),
	.measures = measures, .num_measures = ARRAY_SIZE(measures),
	.timeout_s = 1800,
};
