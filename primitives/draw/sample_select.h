/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sample_select - the arithmetic by which sample_cpu.c and sample.cu choose, shared to the bit
 *
 * A row is reduced to two monotone functions of its logits:
 *   key     the float as an unsigned integer that sorts alike: what top-k, top-p and ties go by;
 *   depth   (max - logit) / temperature in powers of two: the token's weight is 2^-depth.
 * Weights are held in fixed point, 40 bits for the most probable token's 1. Sums of integers do not
 * depend on their order: any number of threads, CTAs or atomics gives the same token. 2^20 weights of
 * 2^40 fit 64 bits with room to spare; the rounding of one, 2^-41, times 2^20 is below fp32's own.
 *
 * A threshold (the k-th largest key, the key at which the sum reaches top_p) is found by counting
 * or weighing into SAMPLE_BINS bins, taking the bin in which the running sum crosses the target, and
 * going on inside it: first bins of depth, 48 to an octave, which spread any logits that matter; then up
 * to three times bins of the key itself, until a bin holds a single key. Among equal keys the lowest
 * indices stay.
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
#define SAMPLE_DEAD 40.5f /* from this depth on a token is impossible; before it weighs 1 or more */
#define SAMPLE_ONE		0x1p40f		/* the weight of depth 0 */
#define SAMPLE_MAX_VOCAB	(1 << 20)

/* NaN is -INFINITY, +INFINITY the largest finite, -0 is +0. */
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
 * Depth of one unit of (max - logit). Temperature 0 makes everything below the maximum dead, or (where the
 * difference is subnormal) far behind it: with top_k 1 that is the argmax.
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

/* Only for depth < SAMPLE_DEAD. */
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

/* top_p of a total: what the running sum must reach. */
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
