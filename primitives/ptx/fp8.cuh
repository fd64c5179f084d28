/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fp8.cuh - converts e4m3 exactly to the 16-bit types of the tensor cores, and fp32 to e4m3
 *
 * For f16 there is a conversion instruction. For bf16 there is none: with its bits shifted to the exponent
 * and mantissa fields of bf16, an e4m3 value, subnormal or not, reads as 2^-120 times itself, and one
 * multiplication corrects two values at a time. PRMT extends the sign of a byte to 16 bits, so that one shift
 * and one mask place sign, exponent and mantissa. NaN codes are not handled.
 */
#ifndef CAIRN_FP8_CUH
#define CAIRN_FP8_CUH

#include <stdint.h>

#include "primitives/base/dtype.h"

#define FP8 static __device__ __forceinline__

/* Selects bytes as __byte_perm(), but bit 3 of a selector fills the byte with the selected byte's sign. */
FP8 uint32_t fp8_select(uint32_t four, uint32_t selectors)
{
	uint32_t r;

	asm("prmt.b32 %0, %1, 0, %2;" : "=r"(r) : "r"(four), "r"(selectors));
	return r;
}

/* Converts the four e4m3 values in `four`: values 0 and 1 go to *lo, 2 and 3 to *hi. */
template <int dtype> FP8 void fp8_widen(uint32_t four, uint32_t *lo, uint32_t *hi)
{
	if (dtype == CAIRN_F16) {
		asm("{.reg .b16 l, h;\n\t"
		    "mov.b32 {l, h}, %2;\n\t"
		    "cvt.rn.f16x2.e4m3x2 %0, l;\n\t"
		    "cvt.rn.f16x2.e4m3x2 %1, h;}" : "=r"(*lo), "=r"(*hi) : "r"(four));
	} else {
		const uint32_t scale = 0x7b807b80;	/* two bf16 of 2^120 */
		uint32_t l = fp8_select(four, 0x9180) << 4 & 0x87f087f0u;
		uint32_t h = fp8_select(four, 0xb3a2) << 4 & 0x87f087f0u;

		asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(*lo) : "r"(l), "r"(scale));
		asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(*hi) : "r"(h), "r"(scale));
	}
}

/*
 * Converts the four e4m3 values in `four`: values 0 and 2 go to *even, 1 and 3 to *odd. For bf16 it takes
 * nine instructions, and fp8_widen() takes eight. For f16 it also uses shifts and one multiplication.
 */
template <int dtype> FP8 void fp8_widen_even_odd(uint32_t four, uint32_t *even, uint32_t *odd)
{
	const int shift = dtype == CAIRN_F16 ? 1 : 4;	/* f16 has 5 bits of exponent, bf16 has 8 */
	const uint32_t rest = dtype == CAIRN_F16 ? 0x3f803f80 : 0x07f007f0;
	const uint32_t scale = dtype == CAIRN_F16 ? 0x5c005c00 : 0x7b807b80;	/* 2^8, 2^120 */
	uint32_t e = (four << 8 & 0x80008000u) | (four << (8 - shift) & rest);
	uint32_t o = (four & 0x80008000u) | (four >> shift & rest);

	if (dtype == CAIRN_F16) {
		asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(*even) : "r"(e), "r"(scale));
		asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(*odd) : "r"(o), "r"(scale));
	} else {
		asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(*even) : "r"(e), "r"(scale));
		asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(*odd) : "r"(o), "r"(scale));
	}
}

/*
 * Places the bits of four e4m3 values in bf16, values 0 and 2 in *even, 1 and 3 in *odd: each reads as 2^-120
 * times itself, subnormals too. Six instructions.
 */
#define FP8_PLACED	120

FP8 void fp8_place_even_odd(uint32_t four, uint32_t *even, uint32_t *odd)
{
	*even = fp8_select(four, 0xa280) << 4 & 0x87f087f0u;
	*odd = fp8_select(four, 0xb391) << 4 & 0x87f087f0u;
}

/*
 * Converts four e4m3 values in the cheapest order: 0, 1 | 2, 3 with f16, 0, 2 | 1, 3 with bf16.
 * fp8_reorder() puts the other factor into the same order.
 */
template <int dtype> FP8 void fp8_widen_any(uint32_t four, uint32_t *lo, uint32_t *hi)
{
	if (dtype == CAIRN_F16)
		fp8_widen<dtype>(four, lo, hi);
	else
		fp8_widen_even_odd<dtype>(four, lo, hi);
}

/* Permutes four elements of dtype, 0 and 1 in *lo, 2 and 3 in *hi, into the order of fp8_widen_any(). */
template <int dtype> FP8 void fp8_reorder(uint32_t *lo, uint32_t *hi)
{
	if (dtype != CAIRN_F16) {
		uint32_t l = __byte_perm(*lo, *hi, 0x5410);

		*hi = __byte_perm(*lo, *hi, 0x7632);
		*lo = l;
	}
}

/* Converts to e4m3, to nearest even, saturated at 448; the result has x in the low byte, y in the next. */
FP8 uint32_t fp8_narrow(float x, float y)
{
	uint16_t v;

	asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(v) : "f"(y), "f"(x));
	return v;
}

/* Converts four, the first to the lowest byte. The second conversion merges the result of the first. */
FP8 uint32_t fp8_narrow_4(float x, float y, float z, float w)
{
	uint32_t v;

	asm("{.reg .b16 l, h;\n\t"
	    "cvt.rn.satfinite.e4m3x2.f32 l, %2, %1;\n\t"
	    "cvt.rn.satfinite.e4m3x2.f32 h, %4, %3;\n\t"
	    "mov.b32 %0, {l, h};}" : "=r"(v) : "f"(x), "f"(y), "f"(z), "f"(w));
	return v;
}

#endif
