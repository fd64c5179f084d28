/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sample_select - the arithmetic of the selection, bit for bit the same in sample_cpu.c and sample.cu
 *
 * Two monotone functions of a logit decide:
 *   key     the float as an unsigned integer of the same order, for top-k, top-p and ties;
 *   depth   (max - logit) / temperature in powers of two: the token's weight is 2^-depth.
 * Weights are fixed-point integers, 2^40 for the most probable token. Integer sums do not depend on their
 * order, so any number of threads and CTAs, with atomics in any order, gives the same token. A sum of 2^20
 * weights of 2^40 fits 64 bits. The rounding error of one weight is 2^-41 of the largest weight; 2^20 times
 * that is below the rounding error of fp32.
 *
 * The search for a threshold (the k-th largest key, or the key at which the sum reaches top_p) counts or
 * weighs tokens into SAMPLE_BINS bins, picks the bin in which the running sum crosses the target, and repeats
 * this inside the bin. The first bins are of depth, 48 to an octave, which spreads all logits that matter; up
 * to three further passes have bins of the key itself, until a bin holds a single key. Among equal keys the
 * lowest indices are kept.
 */
#ifndef CAIRN_SAMPLE_SELECT_H
#define CAIRN_SAMPLE_SELECT_H

#include <float.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

#include "primitives/draw/philox.h"

#define SAMPLE_LOG_BINS		11
#define SAMPLE_BINS		(1 << SAMPLE_LOG_BINS)
#define SAMPLE_BINS_PER_OCTAVE	48.0f
/*
 * A token of at least this depth is dead, that is, never drawn; a token of smaller depth weighs at least 1.
 */
#define SAMPLE_DEAD 40.5f
#define SAMPLE_ONE		0x1p40f		/* the weight of depth 0 */
#define SAMPLE_MAX_VOCAB	(1 << 20)

/* Returns the logit as the contract counts it: NaN as -INFINITY, +INFINITY as FLT_MAX, and -0 as +0. */
static inline CAIRN_HOST_DEVICE float sample_clean(float logit)
{
	float v = logit < FLT_MAX ? logit : FLT_MAX;

	return (logit == logit ? v : -INFINITY) + 0.0f;
}

static inline CAIRN_HOST_DEVICE uint32_t sample_key(float clean)
{
	uint32_t bits;

	memcpy(&bits, &clean, sizeof(bits));
	return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

static inline CAIRN_HOST_DEVICE float sample_unkey(uint32_t key)
{
	uint32_t bits = key & 0x80000000u ? key & 0x7fffffffu : ~key;
	float f;

	memcpy(&f, &bits, sizeof(f));
	return f;
}

/*
 * Returns the depth of one unit of (max - logit). With temperature 0 every token below the maximum is dead,
 * or (if the difference is subnormal) at least has a greater depth: with top_k 1 the result is the argmax.
 */
static inline CAIRN_HOST_DEVICE float sample_slope(float temperature)
{
	float slope = 1.44269504f / temperature;

	return temperature > 0 && slope < FLT_MAX ? slope : FLT_MAX;
}

static inline CAIRN_HOST_DEVICE float sample_depth(float max, float clean, float slope)
{
	return (max - clean) * slope;
}

/* Returns the bin of a depth, which must be < SAMPLE_DEAD. */
static inline CAIRN_HOST_DEVICE uint32_t sample_bin(float depth)
{
	return (uint32_t)(depth * SAMPLE_BINS_PER_OCTAVE);
}

/* Returns how many bits to drop from (hi - key) so that the keys lo..hi fall into SAMPLE_BINS bins. */
static inline CAIRN_HOST_DEVICE int sample_shift(uint32_t lo, uint32_t hi)
{
	uint32_t span = (hi - lo) >> SAMPLE_LOG_BINS;
	int shift = 0;

	while (span) {
		span >>= 1;
		shift++;
	}
	return shift;
}

/* Returns the target of the running sum for top_p: top_p times the total, rounded up, at least 1. */
static inline CAIRN_HOST_DEVICE uint64_t sample_target(float top_p, uint64_t total)
{
	double t = ceil((double)top_p * (double)total);

	return t < 1 ? 1 : t < (double)total ? (uint64_t)t : total;
}

/* floor(a * b / 2^64) */
static inline CAIRN_HOST_DEVICE uint64_t sample_mulhi(uint64_t a, uint64_t b)
{
#ifdef __CUDA_ARCH__
	return __umul64hi(a, b);
#else
	return (uint64_t)((unsigned __int128)a * b >> 64);
#endif
}

#endif
