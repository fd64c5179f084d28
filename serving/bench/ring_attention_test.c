// SPDX-License-Identifier: Apache-2.0
/*
 * ring_attention_test - ring attention with zig-zag and with contiguous pieces: rows of `cairn bench`
 *
 *   n2_8k, n2_32k, n2_128k, n4_8k, ...
 *	llama32-1b with random weights on so many GPUs, a prompt of so many tokens (128K: 130048) in one pass,
 *	so that all keys travel. Attention is four fifths of the computation at 128K. one_ms is the time of
 *	one GPU in the same run; ideal_pct: one_ms / n in percent of zigzag_ms; over_contiguous: contiguous_ms
 *	/ zigzag_ms, at most 1.5 for attention alone and two ranks.
 */
#include "conformance/harness.h"
#include "serving/bench/ranks_load_test.h"

static double first_ms(struct cairn_test *t, int32_t ranks, enum cairn_exchange exchange, int32_t tokens)
{
	const struct ranks_model m = { .impl = "cuda", .shape = "llama32-1b", .cp = ranks,
				       .exchange = exchange };
	const struct ranks_load l = { .batch = 1, .tokens = tokens, .rows = tokens, .runs = 3 };
	struct ranks_times times;

	return ranks_measure(t, &m, &l, 1, &times) ? 0 : (double)times.first_ns * 1e-6;
}

static void measure(struct cairn_test *t, int32_t ranks, int32_t k)
{
	const int32_t tokens = k == 128 ? 130048 : k << 10;	/* room for an answer in 131072 positions */
	double zigzag = first_ms(t, ranks, CAIRN_EXCHANGE_RING, tokens), contiguous, one;
	char name[64];

	if (!zigzag)
		return;
	contiguous = first_ms(t, ranks, CAIRN_EXCHANGE_BLOCKS, tokens);
	one = first_ms(t, 1, CAIRN_EXCHANGE_AUTO, tokens);
	if (!EXPECT(t, one > 0 && contiguous > 0))
		return;
	snprintf(name, sizeof(name), "llama32_1b_%dk_n%d", k, ranks);
	cairn_row(t, name, "cuda",
		  "\"prompt_tokens\":%d,\"ranks\":%d,\"one_ms\":%.2f,\"zigzag_ms\":%.2f,"
		  "\"contiguous_ms\":%.2f,\"ideal_pct\":%.1f,\"over_contiguous\":%.3f", tokens, ranks, one,
		  zigzag, contiguous, 100 * one / zigzag / ranks, contiguous / zigzag);
}

#define MEASURE(ranks, num)							\
	static void n##ranks##_##num##k(struct cairn_test *t)			\
	{									\
		measure(t, ranks, num);						\
	}
#define UNIT(ranks, num)		{ "n" #ranks "_" #num "k", n##ranks##_##num##k },
#define LENGTHS(X, ranks)	X(ranks, 8) X(ranks, 32) X(ranks, 128)
#define ALL(X)			LENGTHS(X, 2) LENGTHS(X, 4) LENGTHS(X, 8)

ALL(MEASURE)

static const struct cairn_unit measures[] = { ALL(UNIT) };

const struct cairn_family cairn_ring_attention_family = {
	.stage = "serving", .name = "ring_attention",
	.measures = measures, .num_measures = ARRAY_SIZE(measures),
	.timeout_s = 120,
};
