/* SPDX-License-Identifier: Apache-2.0 */
/*
 * quant_row - the arithmetic of quant_fp8w.h on the device, for it and for kernels that quantise what they
 *             compute: scales, codes, and the largest magnitude of rows and pieces
 *
 * A kernel that quantises its results first packs them, so that the codes are those of the rounded numbers.
 */
#ifndef CAIRN_QUANT_ROW_CUH
#define CAIRN_QUANT_ROW_CUH

#include "primitives/ptx/fp8.cuh"
#include "primitives/rows/quant_fp8w.h"
#include "primitives/rows/row.cuh"

#define QUANT_PIECE_LANES	(CAIRN_FP8_BLOCK / 8)	/* threads that share a piece, each with a vector */

ROW float quant_scale(float max)
{
	float scale = __fdiv_rn(max, (float)CAIRN_FP8_MAX);

	return scale == 0 ? 1 : scale;
}

/*
 * Divides by the scale, correctly rounded, where quant_inverse() is not 0. With an exact remainder
 * q + remainder * inverse rounds to the quotient, if q is off by at most one unit in the last place. A
 * quotient below 2^-10, whose remainder may underflow, becomes the code of 0. The caller sets the sign of 0,
 * because -0 - (-0) is +0.
 */
ROW float quant_quotient(float x, float scale, float inverse)
{
	float q = x * inverse;

	return __fmaf_rn(__fmaf_rn(-q, scale, x), inverse, q);
}

/* Returns 1 / scale, correctly rounded, or 0 where the remainder of a division may not be exact. */
ROW float quant_inverse(float scale)
{
	return scale > 0x1p-90f && scale < 0x1p90f ? __frcp_rn(scale) : 0;
}

/* Returns the codes of eight elements. */
ROW uint2 quant_codes(const float f[8], float scale, float inverse)
{
	float q[8];

	if (inverse == 0) {
#pragma unroll
		for (int j = 0; j < 8; j++)
			q[j] = __fdiv_rn(f[j], scale);
	} else {
#pragma unroll
		for (int j = 0; j < 8; j++)
			q[j] = copysignf(quant_quotient(f[j], scale, inverse), f[j]);
	}
	return make_uint2(fp8_narrow(q[0], q[1]) | fp8_narrow(q[2], q[3]) << 16,
			  fp8_narrow(q[4], q[5]) | fp8_narrow(q[6], q[7]) << 16);
}

/* Returns the codes of four quotients, with the signs of the four packed elements that they come from. */
ROW uint32_t quant_signed(const float q[4], uint32_t low, uint32_t high)
{
	const uint32_t codes = fp8_narrow_4(q[0], q[1], q[2], q[3]);

	return (codes & 0x7f7f7f7f) | (__byte_perm(low, high, 0x7531) & 0x80808080);
}

/* As quant_codes(), of eight packed elements of 16 bits. inverse: not 0 */
template <int dtype> ROW uint2 quant_packed(uint4 packed, float scale, float inverse)
{
	float q[8];

	row_unpack<dtype>(packed, q);
#pragma unroll
	for (int j = 0; j < 8; j++)
		q[j] = quant_quotient(q[j], scale, inverse);
	return make_uint2(quant_signed(q, packed.x, packed.y), quant_signed(q + 4, packed.z, packed.w));
}

/* Returns the larger of max and the magnitudes of eight elements. */
ROW float quant_max(float max, const float f[8])
{
#pragma unroll
	for (int j = 0; j < 8; j++)
		max = fmaxf(max, fabsf(f[j]));
	return max;
}

/*
 * The same for eight packed elements of 16 bits, four for each half of max2. Finite magnitudes have the order
 * of their bits.
 */
ROW uint32_t quant_max2(uint32_t max2, uint4 v)
{
	const uint32_t magnitudes = 0x7fff7fff;

	max2 = __vimax3_u16x2(max2, v.x & magnitudes, v.y & magnitudes);
	return __vimax3_u16x2(max2, v.z & magnitudes, v.w & magnitudes);
}

/* Returns the bits of the largest magnitude in both halves of all lanes of the warp, in all of them. */
ROW uint32_t quant_warp_max2(uint32_t max2)
{
	return __reduce_max_sync(0xffffffffu, max(max2 & 0xffff, max2 >> 16));
}

template <int dtype> ROW float quant_magnitude(uint32_t bits)
{
	float f[2];

	row_unpack2<dtype>(bits, f);
	return f[0];
}

/* Returns the largest value of each group of `lanes` lanes, a power of two, in all of them. */
template <int lanes> ROW float quant_lanes_max(float max)
{
#pragma unroll
	for (int step = lanes / 2; step > 0; step /= 2)
		max = fmaxf(max, __shfl_xor_sync(0xffffffffu, max, step));
	return max;
}

/* Writes vector v of a row at q: the codes of eight packed elements. */
template <int dtype> ROW void quant_store(uint8_t *q, int v, uint4 packed, float scale, float inverse)
{
	float f[8];

	if (inverse != 0) {
		((uint2 *)q)[v] = quant_packed<dtype>(packed, scale, inverse);
		return;
	}
	row_unpack<dtype>(packed, f);
	((uint2 *)q)[v] = quant_codes(f, scale, inverse);
}

/*
 * Writes vector v of a row at q, and the scale of its piece at q_scale[piece * rows]. All lanes of the warp
 * call this, with consecutive v, the first of which is a multiple of a piece's vectors; a lane whose v is not
 * below vecs holds zeros.
 */
template <int dtype> ROW void quant_store_piece(uint8_t *q, float *q_scale, int rows, int v, int vecs,
						uint4 packed)
{
	float f[8], scale;

	row_unpack<dtype>(packed, f);
	scale = quant_scale(quant_lanes_max<QUANT_PIECE_LANES>(quant_max(0, f)));
	if (v >= vecs)
		return;
	if (v % QUANT_PIECE_LANES == 0)
		q_scale[(int64_t)(v / QUANT_PIECE_LANES) * rows] = scale;
	quant_store<dtype>(q, v, packed, scale, quant_inverse(scale));
}

#endif
