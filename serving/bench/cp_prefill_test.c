// SPDX-License-Identifier: Apache-2.0
/*
 * cp_prefill_test - time to the first token of long prompts with context parallelism: rows of `cairn bench`
 *
 *   n1_8k, n1_32k, n1_128k, n2_8k_heads, ... n8_128k_both
 *	llama31-8b with random weights on so many GPUs, prompts of so many tokens (128K: 130048) in passes of
 *	at most 8192 rows of a rank, whose activations then take as much memory as those of one GPU: heads and
 *	ring are the ways of --cp-exchange, tensors is --tp, and both is --tp with --cp. first_ms: the median
 *	of the runs after a warm-up.
 *
 * The check runs all ways on the cpu table, with the embedded model.
 */
#include "conformance/harness.h"
#include "serving/bench/ranks_load_test.h"

#define ROWS	8192	/* of a rank */

enum way { alone, heads, ring, tensors, both };

static const char *const names[] = { "", "_heads", "_ring", "_tensors", "_both" };

static int run(struct cairn_test *t, const char *impl, const char *shape, const struct ranks_load *l,
	       int32_t ranks, enum way way, struct ranks_times *times)
{
	const struct ranks_model m = {
		.impl = impl, .shape = shape, .tp = way == tensors || way == both ? ranks : 0,
		.cp = way == heads || way == ring || way == both ? ranks : 0,
		.exchange = way == heads ? CAIRN_EXCHANGE_HEADS : way == ring ? CAIRN_EXCHANGE_RING :
			    CAIRN_EXCHANGE_AUTO,
	};

	return ranks_measure(t, &m, l, 1, times);
}

static void measure(struct cairn_test *t, int32_t ranks, int32_t k, enum way way)
{
	/* the model has 131072 positions, which must do for an answer, too */
	const int32_t rows = way == heads || way == ring ? ROWS * ranks : ROWS;
	const struct ranks_load l = {
		.batch = 1, .tokens = k == 128 ? 130048 : k << 10, .rows = rows, .runs = k == 128 ? 2 : 3,
	};
	struct ranks_times times;
	char name[64];

	if (run(t, "cuda", "llama31-8b", &l, ranks, way, &times))
		return;
	snprintf(name, sizeof(name), "llama31_8b_%dk_n%d%s", k, ranks, names[way]);
	cairn_row(t, name, "cuda", "\"prompt_tokens\":%d,\"ranks\":%d,\"pass_rows\":%d,\"first_ms\":%.2f",
		  l.tokens, ranks, rows, (double)times.first_ns * 1e-6);
}

static void ways_on_cpu(struct cairn_test *t)
{
	const struct ranks_load l = { .batch = 1, .tokens = 64, .rows = 64, .runs = 1 };
	struct ranks_times times;

	for (int way = alone; way <= both; way++)
		EXPECT(t, !run(t, "cpu", NULL, &l, 2, (enum way)way, &times) && times.first_ns > 0);
}

#define ALONE(num)								\
	static void n1_##num##k(struct cairn_test *t)				\
	{									\
		measure(t, 1, num, alone);					\
	}
#define MEASURE(ranks, num, way)							\
	static void n##ranks##_##num##k_##way(struct cairn_test *t)		\
	{									\
		measure(t, ranks, num, way);					\
	}
#define UNIT(ranks, num, way)	{ "n" #ranks "_" #num "k_" #way, n##ranks##_##num##k_##way },

#define WAYS(X, ranks, num)							\
	X(ranks, num, heads) X(ranks, num, ring) X(ranks, num, tensors) X(ranks, num, both)
#define LENGTHS(X, ranks)	WAYS(X, ranks, 8) WAYS(X, ranks, 32) WAYS(X, ranks, 128)
#define ALL(X)			LENGTHS(X, 2) LENGTHS(X, 4) LENGTHS(X, 8)

ALONE(8)
ALONE(32)
ALONE(128)
ALL(MEASURE)

static const struct cairn_unit units[] = {
	{ "ways_on_cpu", ways_on_cpu },
};

static const struct cairn_unit measures[] = {
	{ "n1_8k", n1_8k }, { "n1_32k", n1_32k }, { "n1_128k", n1_128k },
	ALL(UNIT)
};

const struct cairn_family cairn_cp_prefill_family = {
	.stage = "serving", .name = "cp_prefill",
	.units = units, .num_units = ARRAY_SIZE(units),
	.measures = measures, .num_measures = ARRAY_SIZE(measures),
	.timeout_s = 120,
};
