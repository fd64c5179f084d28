/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fp8.cuh - e4m3 to the 16-bit types of tensor cores, exactly
 *
 * f16 by the instruction for it. bf16 has none: moved to where bf16 has its exponent a value is 2^-120 of
 * what it should be, subnormal or not, and one product sets that right, two values at a time. NaN codes are
 * not looked for.
 */
#ifndef CAIRN_FP8_CUH
#define CAIRN_FP8_CUH

#include <stdint.h>

#include "primitives/base/dtype.h"

#define FP8 static __device__ __forceinline__

/* Values 0 and 1 of four to *lo, 2 and 3 to *hi. */
template <int dtype> FP8 void fp8_widen(uint32_t four, uint32_t *lo, uint32_t *hi)
{
	if (dtype == CAIRN_F16) {
		asm("{.reg .b16 l, h;\n\t"
		    "mov.b32 {l, h}, %2;\n\t"
		    "cvt.rn.f16x2.e4m3x2 %0, l;\n\t"
		    "cvt.rn.f16x2.e4m3x2 %1, h;}" : "=r"(*lo), "=r"(*hi) : "r"(four));
	} else {
		const uint32_t scale = 0x7b807b80;	/* 2^120 twice */
		uint32_t l = __byte_perm(four, 0, 0x1404), h = __byte_perm(four, 0, 0x3424);

		l = (l & 0x80008000u) | (l >> 4 & 0x07f007f0u);
		h = (h & 0x80008000u) | (h >> 4 & 0x07f007f0u);
		asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(*lo) : "r"(l), "r"(scale));
		asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(*hi) : "r"(h), "r"(scale));
	}
}

/*
 * Values 0 and 2 of four to *even, 1 and 3 to *odd: for bf16 in nine instructions, five of them of the ALU's,
 * where fp8_widen() takes ten and eight. Of f16, too, bits are moved, and a product sets exponents right.
 */
template <int dtype> FP8 void fp8_widen_even_odd(uint32_t four, uint32_t *even, uint32_t *odd)
{
	const int shift = dtype == CAIRN_F16 ? 1 : 4;	/* exponents of 5 and of 8 bits */
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
 * The order that is cheapest, 0 and 2, 1 and 3 with bf16; what they are multiplied with is put into it by
 * fp8_reorder().
 */
template <int dtype> FP8 void fp8_widen_any(uint32_t four, uint32_t *lo, uint32_t *hi)
{
	if (dtype == CAIRN_F16)
		fp8_widen<dtype>(four, lo, hi);
	else
		fp8_widen_even_odd<dtype>(four, lo, hi);
}

/* Four elements of dtype, 0 and 1, 2 and 3, into its order. */
template <int dtype> FP8 void fp8_reorder(uint32_t *lo, uint32_t *hi)
{
	if (dtype != CAIRN_F16) {
		uint32_t l = __byte_perm(*lo, *hi, 0x5410);

		*hi = __byte_perm(*lo, *hi, 0x7632);
		*lo = l;
	}
}

/* Two values, nearest, ties to even, at most 448: x in the low byte. */
FP8 uint32_t fp8_narrow(float x, float y)
{
	uint16_t v;

	asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(v) : "f"(y), "f"(x));
	return v;
}

#endif
