// SPDX-License-Identifier: Apache-2.0
/*
 * tp_prefill_test - time to the first token with tensor parallelism: rows of `cairn bench`
 *
 *   llama3_8b_n1, ... llama3_70b_n8
 *	random weights of the shape on so many GPUs; a prompt of 8192 tokens in one pass. first_ms: the median
 *	of three runs after a warm-up; first_min_ms: the least.
 */
#include "conformance/harness.h"
#include "serving/bench/ranks_load_test.h"

#define TOKENS	8192

static void measure(struct cairn_test *t, const char *shape, const char *label, int32_t ranks)
{
	const struct ranks_model m = { .impl = "cuda", .shape = shape, .tp = ranks };
	const struct ranks_load l = { .batch = 1, .tokens = TOKENS, .rows = TOKENS, .runs = 4 };
	struct ranks_times times;
	char name[64];

	if (ranks_measure(t, &m, &l, 1, &times))
		return;
	snprintf(name, sizeof(name), "%s_8k_n%d", label, ranks);
	cairn_row(t, name, "cuda", "\"prompt_tokens\":%d,\"ranks\":%d,\"first_ms\":%.2f,"
		  "\"first_min_ms\":%.2f",
		  TOKENS, ranks, (double)times.first_ns * 1e-6, (double)times.first_min_ns * 1e-6);
}

#define MEASURE(label, shape, ranks)						\
	static void label##_n##ranks(struct cairn_test *t)			\
	{									\
		measure(t, shape, #label, ranks);				\
	}
#define UNIT(label, shape, ranks)	{ #label "_n" #ranks, label##_n##ranks },

#define RANKS(X, label, shape)							\
	X(label, shape, 1) X(label, shape, 2) X(label, shape, 4) X(label, shape, 8)
#define ALL(X)	RANKS(X, llama3_8b, "llama3-8b") RANKS(X, llama3_70b, "llama3-70b")

ALL(MEASURE)

static const struct cairn_unit measures[] = { ALL(UNIT) };

const struct cairn_family cairn_tp_prefill_family = {
	.stage = "serving", .name = "tp_prefill",
	.measures = measures, .num_measures = ARRAY_SIZE(measures),
	.timeout_s = 120,
};
