/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kv_lengths_test - random request lengths that resemble those of known data sets
 *
 * Lengths are log-normal with sigma 1, clamped to 1..1024. The means are those of the two data sets in the
 * vLLM paper, in tokens of prompt and answer: ShareGPT 161 and 338, Alpaca 19 and 58.
 */
#ifndef CAIRN_KV_LENGTHS_TEST_H
#define CAIRN_KV_LENGTHS_TEST_H

#include <math.h>
#include <stdint.h>


struct lengths {
	const char *name;
	double prompt, answer;		/* means, in tokens */
};

static const struct lengths sharegpt = { "ShareGPT-like", 161, 338 }, alpaca = { "Alpaca-like", 19, 58 };

static inline double uniform(struct cairn_test *t)
{
	return ((double)(cairn_rand(t) >> 11) + 0.5) * 0x1p-53;
}

static inline int32_t draw_length(struct cairn_test *t, double mean)
{
	double normal = sqrt(-2 * log(uniform(t))) * cos(2 * M_PI * uniform(t));
	double len = mean * exp(normal - 0.5);		/* the mean of exp(normal) is exp(1/2) */

	return len < 1 ? 1 : len > 1024 ? 1024 : (int32_t)len;
}

#endif
