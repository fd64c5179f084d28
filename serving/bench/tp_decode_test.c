// SPDX-License-Identifier: Apache-2.0
/*
 * tp_decode_test - time of a decoding step with tensor parallelism: rows of `cairn bench`
 *
 *   llama3_8b_n1_1k, ... llama3_70b_n8_16k
 *	random weights of the shape on so many GPUs; 1 and 16 requests with so many keys each, in graphs as
 *	served. A row for each batch: median_ns of a step, tokens_per_s of all requests, and first_ms until
 *	all of them had their first token; fused: steps were one operation each.
 *
 * The check runs the same code on the cpu table, with the embedded model.
 */
#include "conformance/harness.h"
#include "serving/bench/ranks_load_test.h"

#define STEPS	48

static void measure(struct cairn_test *t, const char *shape, const char *label, int32_t ranks, int32_t keys)
{
	const struct ranks_model m = { .impl = "cuda", .shape = shape, .tp = ranks };
	const struct ranks_load loads[] = {
		{ .batch = 1, .tokens = keys, .rows = 8192, .steps = STEPS, .runs = 1 },
		{ .batch = 16, .tokens = keys, .rows = 8192, .steps = STEPS, .runs = 1 },
	};
	struct ranks_times times[ARRAY_SIZE(loads)];
	char name[64];

	if (ranks_measure(t, &m, loads, ARRAY_SIZE(loads), times))
		return;
	for (size_t i = 0; i < ARRAY_SIZE(loads); i++) {
		snprintf(name, sizeof(name), "%s_b%d_kv%d_n%d", label, loads[i].batch, keys, ranks);
		EXPECT(t, times[i].step_ns > 0);
		cairn_row(t, name, "cuda", "\"batch\":%d,\"context\":%d,\"ranks\":%d,\"median_ns\":%lld,"
			  "\"tokens_per_s\":%.1f,\"first_ms\":%.2f,\"fused\":%s", loads[i].batch, keys, ranks,
			  (long long)times[i].step_ns, loads[i].batch * 1e9 / (double)times[i].step_ns,
			  (double)times[i].first_ns * 1e-6, times[i].fused ? "true" : "false");
	}
}

/* The second of two loads has requests that begin to decode while others are computed. */
static void smoke(struct cairn_test *t)
{
	const struct ranks_model m = { .impl = "cpu", .tp = 2 };
	const struct ranks_load loads[] = {
		{ .batch = 1, .tokens = 32, .rows = 16, .steps = 2, .runs = 1 },
		{ .batch = 3, .tokens = 32, .rows = 32, .steps = 2, .runs = 2 },
	};
	struct ranks_times times[ARRAY_SIZE(loads)];

	if (!ranks_measure(t, &m, loads, ARRAY_SIZE(loads), times))
		for (size_t i = 0; i < ARRAY_SIZE(loads); i++)
			EXPECT(t, times[i].step_ns > 0 && times[i].first_ns > 0);
}

#define MEASURE(label, shape, ranks, num)						\
	static void label##_n##ranks##_##num##k(struct cairn_test *t)		\
	{									\
		measure(t, shape, #label, ranks, num << 10);			\
	}
#define UNIT(label, shape, ranks, num)	{ #label "_n" #ranks "_" #num "k", label##_n##ranks##_##num##k },

#define LENGTHS(X, label, shape, ranks)	X(label, shape, ranks, 1) X(label, shape, ranks, 16)
#define RANKS(X, label, shape)							\
	LENGTHS(X, label, shape, 1) LENGTHS(X, label, shape, 2)			\
	LENGTHS(X, label, shape, 4) LENGTHS(X, label, shape, 8)
#define ALL(X)	RANKS(X, llama3_8b, "llama3-8b") RANKS(X, llama3_70b, "llama3-70b")

ALL(MEASURE)

static const struct cairn_unit units[] = {
	{ "smoke", smoke },
};

static const struct cairn_unit measures[] = { ALL(UNIT) };

const struct cairn_family cairn_tp_decode_family = {
	.stage = "serving", .name = "tp_decode",
	.units = units, .num_units = ARRAY_SIZE(units),
	.measures = measures, .num_measures = ARRAY_SIZE(measures),
	.timeout_s = 120,
};
