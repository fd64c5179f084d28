// SPDX-License-Identifier: Apache-2.0
/*
 * cp_decode_test - decoding with latents whose pages ranks share out: rows of `cairn bench`
 *
 *   n2_whole, n2_pages, n2_stripes, n4_whole, ...
 *	dsv2lite with random weights on so many GPUs, --tp with --cp, 64 sequences of 16K tokens: median_ns of
 *	a step in which every rank reads all latents (whole), in which each reads its share of the pages
 *	(pages), and in which each also holds only these (stripes).
 *
 * The check runs the same code on the cpu table, with the embedded model in a ring.
 */
#include "conformance/harness.h"
#include "serving/bench/ranks_load_test.h"

#define NEVER	1000000000000	/* keys: passes do not have so many */

enum way { whole, pages, stripes };

static const char *const names[] = { "whole", "pages", "stripes" };

static void measure(struct cairn_test *t, int32_t ranks, enum way way)
{
	const struct ranks_model m = {
		.impl = "cuda", .shape = "dsv2lite", .tp = ranks, .cp = ranks, .stripes = way == stripes,
		.context_keys = way == whole ? NEVER : way == pages ? 1 : 0,
	};
	const struct ranks_load l = { .batch = 64, .tokens = 16384, .rows = 8192, .steps = 32, .runs = 1 };
	struct ranks_times times;
	char name[64];

	if (ranks_measure(t, &m, &l, 1, &times))
		return;
	snprintf(name, sizeof(name), "dsv2lite_b64_16k_n%d_%s", ranks, names[way]);
	cairn_row(t, name, "cuda", "\"batch\":%d,\"context\":%d,\"ranks\":%d,\"median_ns\":%lld", l.batch,
		  l.tokens, ranks, (long long)times.step_ns);
}

static void smoke(struct cairn_test *t)
{
	const struct ranks_model m = { .impl = "cpu", .cp = 2, .exchange = CAIRN_EXCHANGE_RING,
				       .stripes = 1 };
	const struct ranks_load l = { .batch = 1, .tokens = 64, .rows = 64, .steps = 2, .runs = 1 };
	struct ranks_times times;

	if (!ranks_measure(t, &m, &l, 1, &times))
		EXPECT(t, times.step_ns > 0);
}

#define MEASURE(ranks, way)							\
	static void n##ranks##_##way(struct cairn_test *t)			\
	{									\
		measure(t, ranks, way);						\
	}
#define UNIT(ranks, way)	{ "n" #ranks "_" #way, n##ranks##_##way },
#define WAYS(X, ranks)		X(ranks, whole) X(ranks, pages) X(ranks, stripes)
#define ALL(X)			WAYS(X, 2) WAYS(X, 4) WAYS(X, 8)

ALL(MEASURE)

static const struct cairn_unit units[] = {
	{ "smoke", smoke },
};

static const struct cairn_unit measures[] = { ALL(UNIT) };

const struct cairn_family cairn_cp_decode_family = {
	.stage = "serving", .name = "cp_decode",
	.units = units, .num_units = ARRAY_SIZE(units),
	.measures = measures, .num_measures = ARRAY_SIZE(measures),
	.timeout_s = 120,
};
