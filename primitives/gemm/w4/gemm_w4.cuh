/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gemm_w4.cuh - shared by the kernels of gemm_w4: codes become pairs of dtype, scales become floats
 *
 * INT: the low byte of a half has two codes, which are decoded differently.
 * - The code in bits 0 to 3 is placed in the lowest bits of the mantissa of 32 (bf16) or 1024 (f16), so that
 *   the half reads as 32 + code / 4 or 1024 + code. Subtracting 32 + zero / 4 or 1024 + zero is exact.
 * - The code in bits 4 to 7 is not shifted. In bf16, whose mantissa has 7 bits, it reads as code 2^-129, a
 *   tiny number. One fused multiply-add multiplies by 2^127 and subtracts zero / 4, exactly. In f16 the code
 *   is placed in the mantissa of 1024 and reads as 1024 + 16 code; a sixteenth of that, minus 64 + zero,
 *   is exact.
 * With bf16 all values are therefore a quarter of code - zero, and the scales are four times as large.
 *
 * e2m1: the sign goes to the sign bit, and the other three bits go to the lowest bits of the exponent and the
 * highest of the mantissa (cairn_w4_pairs() for bf16, and three bits higher for f16). The result, also if it
 * is subnormal, reads as 2^-126 (bf16) or 2^-14 (f16) times the value, exactly. w4_decode() corrects each
 * code by a multiplication. decode_small() does not; callers that use it directly correct the sums.
 */
#ifndef CAIRN_GEMM_W4_CUH
#define CAIRN_GEMM_W4_CUH

#include "primitives/gemm/w4/gemm_w4.h"
#include "primitives/gemm/w4/gemm_w4_layout.h"
#include "primitives/ptx/ptx.cuh"
#include "primitives/rows/row.cuh"

#define W4 static __device__ __forceinline__

/*
 * A lane's rows g and g + 8: their scales and, for INT, zero[0], which is subtracted from the codes of row g,
 * and zero[1], which is added to those of row g + 8; both halves of a zero are equal
 */
struct w4_scales {
	float s[2];
	uint32_t zero[2];
};

/* Returns word i of a lane's 16 bytes of a tile. */
W4 uint32_t w4_word(const uint4 &v, int i)
{
	return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w;
}

template <int dtype> W4 uint32_t sub2(uint32_t x, uint32_t y)
{
	uint32_t r;

	if (dtype == CAIRN_F16)
		asm("sub.rn.f16x2 %0, %1, %2;" : "=r"(r) : "r"(x), "r"(y));
	else
		asm("sub.rn.bf16x2 %0, %1, %2;" : "=r"(r) : "r"(x), "r"(y));
	return r;
}

template <int dtype> W4 uint32_t fma2(uint32_t x, uint32_t y, uint32_t z)
{
	uint32_t r;

	if (dtype == CAIRN_F16)
		asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(r) : "r"(x), "r"(y), "r"(z));
	else
		asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(r) : "r"(x), "r"(y), "r"(z));
	return r;
}

template <int dtype> W4 uint32_t mul2(uint32_t x, uint32_t y)
{
	uint32_t r;

	if (dtype == CAIRN_F16)
		asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(r) : "r"(x), "r"(y));
	else
		asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(r) : "r"(x), "r"(y));
	return r;
}

/* (x & mask) | y. Of the expression with two constants, the compiler makes two instructions. */
template <uint32_t mask> W4 uint32_t and_or(uint32_t x, uint32_t y)
{
	uint32_t r;

	asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(r) : "r"(x), "n"(mask), "r"(y));
	return r;
}

/* Decodes codes 0 and 4 of a word of INT, which belong to row g, and codes 1 and 5, of row g + 8. */
template <int dtype> W4 void decode_int(uint32_t w, const struct w4_scales &s, uint32_t x[2])
{
	const bool f16 = dtype == CAIRN_F16;
	const uint32_t low = and_or<0x000f000f>(w, f16 ? 0x64006400 : 0x42004200);
	const uint32_t high = f16 ? and_or<0x00f000f0>(w, 0x64006400) : w & 0x00f000f0;

	x[0] = sub2<dtype>(low, s.zero[0]);
	x[1] = fma2<dtype>(high, f16 ? 0x2c002c00 : 0x7f007f00, s.zero[1]);
}

/* Decodes a lane's word of e2m1 to operand A, times 2^-126 (bf16) or 2^-14 (f16). */
template <int dtype> W4 void decode_small(uint32_t w, uint32_t x[4])
{
	cairn_w4_pairs(w, x);
#pragma unroll
	for (int i = 0; i < 4 && dtype == CAIRN_F16; i++)
		x[i] += 7 * (x[i] & 0x01c001c0);	/* three bits higher */
}

/* Decodes a lane's word to operand A of a product of 16 along k; x[i] has codes i and i + 4. */
template <int format, int dtype> W4 void w4_decode(uint32_t w, const struct w4_scales &s, uint32_t x[4])
{
	if (format != CAIRN_W4_INT)
		decode_small<dtype>(w, x);
#pragma unroll
	for (int i = 0; i < 4; i += 2) {
		if (format == CAIRN_W4_INT) {
			decode_int<dtype>(w >> 4 * i, s, x + i);
		} else {
			x[i] = mul2<dtype>(x[i], dtype == CAIRN_F16 ? 0x74007400 : 0x7e807e80);
			x[i + 1] = mul2<dtype>(x[i + 1], dtype == CAIRN_F16 ? 0x74007400 : 0x7e807e80);
		}
	}
}

/*
 * Returns 2^(v - 127), or NaN for v = 255. The mantissa full of ones makes 2^(v - 126) (1 - 2^-24), a
 * subnormal close to 2^-126 for 0, or NaN. Its half times 1 + 2^-23 rounds to the power of two in all cases.
 */
W4 float w4_e8m0(uint32_t v)
{
	return __uint_as_float(v * 0x800000u + 0x7fffffu) * 0x1.000002p-1f;
}

/*
 * Decodes the scales of rows g and g + 8. scales: those of a cell, 2 x 8 or, with INT, 2 x 16 bits; zeros:
 * INT's zero points, 2 x 8 bits
 */
template <int format, int dtype> W4 struct w4_scales w4_decode_scales(uint32_t scales, uint32_t zeros)
{
	struct w4_scales r = { { 0, 0 }, { 0, 0 } };

	if (format == CAIRN_W4_INT) {
		const bool f16 = dtype == CAIRN_F16;
		const uint32_t base = f16 ? 0x64006400u : 0x42004200u;
		const float by = f16 ? 1 : 4;

		asm("{.reg .b16 l, h;\n\t"
		    "mov.b32 {l, h}, %2;\n\t"
		    "cvt.f32.f16 %0, l;\n\t"
		    "cvt.f32.f16 %1, h;}" : "=f"(r.s[0]), "=f"(r.s[1]) : "r"(scales));
		r.s[0] *= by;
		r.s[1] *= by;
		/* a zero point below the upper byte of base, twice; then 32 - it or 960 - it: -(64 + zero) */
		r.zero[0] = __byte_perm(zeros, base, 0x5050);
		r.zero[1] = sub2<dtype>(f16 ? 0x63806380 : 0x42004200, __byte_perm(zeros, base, 0x5151));
	} else if (format == CAIRN_W4_MX) {
		r.s[0] = w4_e8m0(scales & 255);
		r.s[1] = w4_e8m0(scales >> 8);
	} else {
		asm("{.reg .b16 l, h;\n\t"
		    ".reg .b32 pair;\n\t"
		    "cvt.u16.u32 l, %2;\n\t"
		    "cvt.rn.f16x2.e4m3x2 pair, l;\n\t"
		    "mov.b32 {l, h}, pair;\n\t"
		    "cvt.f32.f16 %0, l;\n\t"
		    "cvt.f32.f16 %1, h;}" : "=f"(r.s[0]), "=f"(r.s[1]) : "r"(scales));
	}
	return r;
}

/* Reads the scales of rows g and g + 8 from a cell in shared or global memory. */
template <int format, int dtype> W4 struct w4_scales w4_load_scales(const unsigned char *cell, int g)
{
	if (format == CAIRN_W4_INT)
		return w4_decode_scales<format, dtype>(*(const uint32_t *)(cell + 4 * g),
						       *(const uint16_t *)(cell + 2 * CAIRN_W4_ROWS + 2 * g));
	return w4_decode_scales<format, dtype>(*(const uint16_t *)(cell + 2 * g), 0);
}

/* Decodes a lane's word and multiplies it with the scales, rounded to dtype, or with 0 if it is not valid. */
template <int format, int dtype>
W4 void w4_scaled(uint32_t w, const struct w4_scales &s, bool valid, uint32_t x[4])
{
	const uint32_t by[2] = { valid ? row_pack2<dtype>(s.s[0], s.s[0]) : 0,
				 valid ? row_pack2<dtype>(s.s[1], s.s[1]) : 0 };

	w4_decode<format, dtype>(w, s, x);
#pragma unroll
	for (int i = 0; i < 4; i++)
		x[i] = mul2<dtype>(x[i], by[i & 1]);
}

W4 float w4_finish(const struct cairn_gemm_w4_args &g, int col, float sum)
{
	const float v = sum * g.scale;

	return g.bias ? v + row_load(g.bias, g.dtype, col) : v;
}

/* A group has 2^shift elements; 0: all of k are one group. */
static inline int cairn_w4_shift(int group)
{
	int shift = 0;

	while (shift < 30 && 1 << shift != group)
		shift++;
	return shift;
}

/* For m <= 8, and for m >= 9; neither needs a workspace. */
extern "C" int cairn_gemm_w4_skinny(const struct cairn_gemm_w4_args *g, void *stream);
extern "C" int cairn_gemm_w4_tile(const struct cairn_gemm_w4_args *g, void *stream);

#endif
