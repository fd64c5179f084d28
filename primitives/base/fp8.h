/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fp8 - conversions between e4m3 and float on the host
 *
 * e4m3 has 4 bits of exponent (bias 7), 3 of mantissa and no infinity; 0x7f and 0xff are NaN.
 */
#ifndef CAIRN_FP8_H
#define CAIRN_FP8_H

#include <math.h>
#include <stdint.h>
#include <string.h>

static inline float cairn_e4m3_to_float(uint8_t v)
{
	/* The code's fields become a float's. There is no branch, so that loops over codes are vectorised. */
	uint32_t size = v & 0x7f, nan = -(uint32_t)(size == 0x7f) & 0x7fc00000;
	uint32_t bits = size << 20 | nan | (v & 0x80u) << 24;
	float f;

	memcpy(&f, &bits, sizeof(f));
	return f * 0x1p120f;		/* converts the exponent bias from 7 to 127; normalises subnormals */
}

/* Rounds to nearest even; magnitudes above 448 saturate to 448, NaN becomes 0x7f. */
static inline uint8_t cairn_float_to_e4m3(float x)
{
	uint8_t sign = signbit(x) ? 0x80 : 0;
	float a = fabsf(x);
	int exponent;
	float step;

	if (isnan(x))
		return 0x7f;
	if (a >= 448)
		return sign | 0x7e;
	if (a < 0x1p-6f)	/* subnormal, or rounds up to the smallest normal value */
		return sign | (uint8_t)rintf(a * 0x1p9f);
	frexpf(a, &exponent);	/* a = f 2^exponent, f in [1/2, 1) */
	step = ldexpf(a, 4 - exponent);		/* in [8, 16): its integer part holds the mantissa's bits */
	return sign | (uint8_t)(((exponent + 6) << 3) + (int)rintf(step) - 8);
}

/*
 * As cairn_float_to_e4m3() for x that is not NaN, by arithmetic that vectorises. Adding 2^23 times the
 * spacing of e4m3 at x to x rounds x to that spacing, to nearest even. The spacing is a power of two, at
 * least 2^-9, that depends only on the exponent of x.
 */
static inline uint8_t cairn_narrow_e4m3(float x)
{
	uint32_t bits, exponent, code;
	float magic, a = fabsf(x);

	a = a < 448 ? a : 448;
	memcpy(&bits, &a, sizeof(bits));
	exponent = bits >> 23;
	exponent = exponent > 121 ? exponent : 121;	/* 2^-6 */
	bits = (exponent - 3 + 23) << 23;
	memcpy(&magic, &bits, sizeof(magic));
	a = a + magic;
	memcpy(&bits, &a, sizeof(bits));		/* the low bits are a multiple of the spacing */
	code = (bits & 0x7fffff) + ((exponent - 121) << 3);
	memcpy(&bits, &x, sizeof(bits));
	return (uint8_t)(code | bits >> 31 << 7);
}

#endif
