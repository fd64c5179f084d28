/* SPDX-License-Identifier: Apache-2.0 */
/*
 * screen_words - the inputs of screen: what every table computes from a seed, on the host and in kernels
 *
 * Word i of a round is cairn_screen_word(key, inputs, i), with the key of (seed, program, round).
 *   tensor programs  word w (0..127) of row r of A is i = CAIRN_SCREEN_A(r, w), that of B CAIRN_SCREEN_B(r,
 *                    w). cairn_screen_elements() makes the elements of a word of a tile from it.
 *   the others       word n of part p in step s is i = CAIRN_SCREEN_STEP(p, s) + n.
 *                    F32, F64    chain j of a lane starts from n = 64 j + lane, its parameter is made from n
 *                                = 64 j + 32 + lane
 *                    INT         word j of a lane starts as n = 32 j + lane
 *                    SPECIAL     function f of a lane takes its arguments from n = 32 f + lane
 *                    MEMORY      word n of the march
 */
#ifndef CAIRN_SCREEN_WORDS_H
#define CAIRN_SCREEN_WORDS_H

#include <string.h>

#include "primitives/machine/screen.h"

#define CAIRN_SCREEN_ROWS_A	64
#define CAIRN_SCREEN_ROWS_B	128
#define CAIRN_SCREEN_ROW_WORDS	128	/* 32-bit words of a row of A or B */
#define CAIRN_SCREEN_SLICES	16
#define CAIRN_SCREEN_A(r, w)	((r) * CAIRN_SCREEN_ROW_WORDS + (w))
#define CAIRN_SCREEN_B(r, w)	CAIRN_SCREEN_A(CAIRN_SCREEN_ROWS_A + (r), w)
#define CAIRN_SCREEN_STEP(p, s)	(((s) * CAIRN_SCREEN_PARTS + (p)) * CAIRN_SCREEN_WORDS)

#ifdef __CUDACC__
#define CAIRN_SCREEN_INLINE static __host__ __device__ __forceinline__
#else
#define CAIRN_SCREEN_INLINE static inline
#endif

/* Every bit of x changes about half of the result's bits; the function is a bijection. */
CAIRN_SCREEN_INLINE uint32_t cairn_screen_hash(uint32_t x)
{
	x = (x ^ x >> 16) * 0x85ebca6bu;
	x = (x ^ x >> 13) * 0xc2b2ae35u;
	return x ^ x >> 16;
}

CAIRN_SCREEN_INLINE uint64_t cairn_screen_key(uint64_t seed, int32_t program, int64_t round)
{
	uint64_t x = (seed ^ (uint64_t)(program + 1) << 56) * 0x9e3779b97f4a7c15ull + (uint64_t)round;

	x = (x ^ x >> 32) * 0xd6e8feb86659fd93ull;
	x = (x ^ x >> 32) * 0xd6e8feb86659fd93ull;
	return x ^ x >> 32;
}

/* TOGGLE: eight words hold one of three patterns, the next eight its complement. */
CAIRN_SCREEN_INLINE uint32_t cairn_screen_word(uint64_t key, int32_t inputs, uint32_t i)
{
	uint32_t low = (uint32_t)key, high = (uint32_t)(key >> 32), pattern;

	if (inputs != CAIRN_SCREEN_TOGGLE)
		return cairn_screen_hash(cairn_screen_hash(i + low) + high);
	pattern = cairn_screen_hash(cairn_screen_hash((i >> 4) + low) + high) % 3;
	pattern = pattern == 0 ? 0x55555555 : pattern == 1 ? 0x33333333 : 0x0f0f0f0f;
	return i & 8 ? ~pattern : pattern;
}

CAIRN_SCREEN_INLINE uint32_t cairn_screen_float_bits(float x)
{
	uint32_t bits;

	memcpy(&bits, &x, sizeof(bits));
	return bits;
}

CAIRN_SCREEN_INLINE float cairn_screen_float(uint32_t bits)
{
	float x;

	memcpy(&x, &bits, sizeof(x));
	return x;
}

/* Returns the code of a small integer in a tensor program's type, which holds it exactly. */
CAIRN_SCREEN_INLINE uint32_t cairn_screen_code(int32_t program, int32_t v)
{
	uint32_t bits = cairn_screen_float_bits((float)v), size = bits & 0x7fffffff, sign = bits >> 31;

	if (program == CAIRN_SCREEN_S8)
		return (uint32_t)v & 0xff;
	if (program == CAIRN_SCREEN_TF32)
		return bits;
	if (program == CAIRN_SCREEN_BF16)
		return bits >> 16;
	if (v == 0)
		return 0;
	/* the exponent's bias is 127 in fp32, 15 in f16 and e5m2, 7 in e4m3 */
	if (program == CAIRN_SCREEN_F16)
		return sign << 15 | (size - (112u << 23)) >> 13;
	if (program == CAIRN_SCREEN_E5M2)
		return sign << 7 | (size - (112u << 23)) >> 21;
	return sign << 7 | (size - (120u << 23)) >> 20;
}

CAIRN_SCREEN_INLINE int cairn_screen_element_bits(int32_t program)
{
	return program <= CAIRN_SCREEN_BF16 ? 16 : program == CAIRN_SCREEN_TF32 ? 32 : 8;
}

/*
 * Returns the word of a tile, 1, 2 or 4 elements, that word i of a tensor program's inputs stands for. EXACT:
 * odd integers, up to 127 or, in 8-bit floats, 3, whose accumulators hold 14 bits. The first element of each
 * row of A is one more, and even. An element of D is then the sum of an odd number of odd products and an
 * even one, which is never 0, so that the sign of a zero never matters.
 */
CAIRN_SCREEN_INLINE uint32_t cairn_screen_elements(int32_t program, int32_t inputs, uint32_t word, uint32_t i)
{
	int bits = cairn_screen_element_bits(program);
	int small = program == CAIRN_SCREEN_E4M3 || program == CAIRN_SCREEN_E5M2;
	uint32_t elements = 0;

	if (inputs != CAIRN_SCREEN_EXACT) {
		/* F16, E4M3, E5M2: below 2; BF16, TF32: from 2^-31 to below 2 */
		switch (program) {
		case CAIRN_SCREEN_F16:
			return word & 0xbfffbfff;
		case CAIRN_SCREEN_BF16:
			return (word & 0x8fff8fff) | 0x30003000;
		case CAIRN_SCREEN_TF32:
			return (word & 0x8fffe000) | 0x30000000;
		case CAIRN_SCREEN_E4M3:
		case CAIRN_SCREEN_E5M2:
			return word & 0xbfbfbfbf;
		}
		return word;
	}
	for (int k = 0; k < 32; k += bits) {
		int32_t v = small ? 2 * (int32_t)(word >> k & 3) - 3 : (int32_t)(word >> k & 0xfe) - 127;

		v += i < CAIRN_SCREEN_B(0, 0) && i % CAIRN_SCREEN_ROW_WORDS == 0 && k == 0;
		elements |= cairn_screen_code(program, v) << k;
	}
	return elements;
}

/*
 * F32: a word as the start of a chain, from 2 to below 4, and as its parameter a, from 1.875 to below 1.9375.
 * b = -6 a is rounded, d = 4 - 9 a is one fused multiply-add. With x = 3 + y a link is y = 1 - a y y, a
 * chaotic map. Numbers from 2 to 4 have the same spacing, so that none loses bits to a larger one.
 */
CAIRN_SCREEN_INLINE float cairn_screen_f32_start(uint32_t word)
{
	return 3 + (float)((int32_t)word >> 8) * 0x1p-23f;	/* the product is exact */
}

CAIRN_SCREEN_INLINE float cairn_screen_f32_parameter(uint32_t word)
{
	return cairn_screen_float(0x3ff00000 | word >> 13);
}

/* F64: the same in fp64 */
CAIRN_SCREEN_INLINE double cairn_screen_f64_start(uint32_t word)
{
	return 3 + (double)(int32_t)word * 0x1p-31;	/* exact */
}

CAIRN_SCREEN_INLINE double cairn_screen_f64_parameter(uint32_t word)
{
	uint64_t bits = 0x3ffe000000000000ull | (uint64_t)word << 16;
	double x;

	memcpy(&x, &bits, sizeof(x));
	return x;
}

/* MIX: the body of cairn_screen_drawn(), also for kernels. */
CAIRN_SCREEN_INLINE int32_t cairn_screen_draw(uint64_t seed, int32_t inputs, int64_t round, int32_t group)
{
	uint64_t key = cairn_screen_key(seed, CAIRN_SCREEN_MIX, round);
	uint32_t x = cairn_screen_word(key, CAIRN_SCREEN_RANDOM, (uint32_t)group);
	int32_t lanes = CAIRN_SCREEN_MEMORY - CAIRN_SCREEN_F32 + 1, drawn;

	if (group == 0)
		return (int32_t)(x % CAIRN_SCREEN_NUM_TENSOR);
	drawn = CAIRN_SCREEN_F32 + (int32_t)(x % (uint32_t)lanes);
	return drawn == CAIRN_SCREEN_SPECIAL && inputs == CAIRN_SCREEN_EXACT ? CAIRN_SCREEN_INT : drawn;
}

/*
 * INT: link i = 0, 1, ... of a lane's words x_0 to x_7, with indices mod 8, u = i mod 8 and the latest values
 * everywhere:
 *   for j = 0..7   x_j = x_j CAIRN_SCREEN_INT_FACTOR + x_(j + 1)
 *   for j = 0..7   x_j = (x_j rotated left by 7 + j) xor (x_(j + 3) and not x_(j + 6))
 *   x_u = x_u + x_(u + 1) of lane (own number xor 2^(u mod 5))
 */
#define CAIRN_SCREEN_INT_FACTOR	0x9e3779b1u

/*
 * SPECIAL: value n of a lane is function n % 8 at the argument low + width f, where f = (n / 8) / 16 + u / 2
 * and u is the word over 2^32, cut to 24 bits. Both steps are fused multiply-adds in fp32.
 */
CAIRN_SCREEN_INLINE float cairn_screen_low(int function)
{
	return function == CAIRN_SCREEN_EX2 ? -8 : function == CAIRN_SCREEN_TANH ? -4 :
	       function == CAIRN_SCREEN_SIN || function == CAIRN_SCREEN_COS ? -3 : 0x1p-4f;
}

CAIRN_SCREEN_INLINE float cairn_screen_width(int function)
{
	return function == CAIRN_SCREEN_EX2 ? 16 : function == CAIRN_SCREEN_TANH ? 8 :
	       function == CAIRN_SCREEN_SIN || function == CAIRN_SCREEN_COS ? 6 : 15;
}

#endif
