/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sample_select - the arithmetic of the selection, bit for bit the same in sample_cpu.c and sample.cu
 *
 * Two monotone functions of a logit decide:
 *   key     the float as an unsigned integer of the same order, for top-k, top-p and ties;
 *   depth   (max - logit) / temperature in powers of two: the token's weight is 2^-depth.
 * Weights are fixed-point integers, 2^40 for the most probable token. Sums of integers do not depend on
 * their order: any number of threads, CTAs or atomics gives the same token. A sum of 2^20 weights of 2^40
 * fits 64 bits; the rounding error of one weight, 2^-41, times 2^20 is below the rounding error of fp32.
 *
 * A threshold (the k-th largest key, or the key at which the sum reaches top_p) is found by counting or
 * weighing tokens into SAMPLE_BINS bins, picking the bin in which the running sum crosses the target, and
 * repeating inside this bin: first with bins of depth, 48 to an octave, which spread all logits that matter;
 * then up to three times with bins of the key itself, until a bin holds a single key. Of equal keys the
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
/* A token of this depth or more is dead, that is, never drawn; with a smaller depth it weighs 1 or more. */
#define SAMPLE_DEAD 40.5f
#define SAMPLE_ONE		0x1p40f		/* the weight of depth 0 */
#define SAMPLE_MAX_VOCAB	(1 << 20)

/* The logit as the contract reads it: NaN as -INFINITY, +INFINITY as the largest finite float, -0 as +0. */
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
 * Depth of one unit of (max - logit). Temperature 0 makes every token below the maximum dead, or (if the
 * difference is subnormal) of a greater depth: with top_k 1 the result is the argmax.
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

/* Bin of a depth, which must be < SAMPLE_DEAD. */
static inline CAIRN_HOST_DEVICE uint32_t sample_bin(float depth)
{
	return (uint32_t)(depth * SAMPLE_BINS_PER_OCTAVE);
}

/* Bits to drop from (hi - key) so that the keys lo..hi fall into SAMPLE_BINS bins. */
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

/* The target of the running sum for top_p: top_p times the total, rounded up, at least 1. */
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
