/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gemm_weight - what the elements of b are in gemm_skinny.cuh: 16 bits, or e4m3 with scales
 *
 * A weight is a struct that is passed to the kernel by value and has these members:
 *
 *	bytes		of an element of b
 *	blocks		each 128 x 128 elements of b have a scale, which multiplies sums of 128 products
 *	multiply()	d += the products of 16 bytes of a row of b and as many elements of a, x: two chains
 *			of mma, which need not wait for each other
 *	scale()		blocks: that of row `row` of b and 128 elements of k
 */
#ifndef CAIRN_GEMM_WEIGHT_CUH
#define CAIRN_GEMM_WEIGHT_CUH

#include "primitives/gemm/gemm_form.cuh"
#include "primitives/ptx/fp8.cuh"
#include "primitives/ptx/ptx.cuh"
#include "primitives/rows/quant_fp8w.h"

/* d += a b for rows 0..7 of a; rows 8..15 are zero. */
template <int dtype>
static GEMM_METHOD void gemm_mma(float d[4], uint32_t a0, uint32_t a2, const uint32_t b[2])
{
	const uint32_t a[4] = { a0, 0, a2, 0 };

	if (dtype == CAIRN_BF16)
		ptx_mma_m16n8k16_bf16(d, a, b);
	else
		ptx_mma_m16n8k16_f16(d, a, b);
}

struct gemm_weight_16 {
	static constexpr int bytes = 2;
	static constexpr bool blocks = false;

	template <int dtype> GEMM_METHOD static void multiply(float d[2][4], const uint4 *x, uint4 w)
	{
		const uint32_t b[4] = { w.x, w.y, w.z, w.w };

		gemm_mma<dtype>(d[0], x->x, x->y, b);
		gemm_mma<dtype>(d[1], x->z, x->w, b + 2);
	}
};

/* The scales of rows are the form's to apply. */
struct gemm_weight_e4m3 {
	static constexpr int bytes = 1;
	static constexpr bool blocks = false;

	template <int dtype> GEMM_METHOD static void multiply(float d[2][4], const uint4 *x, uint4 w)
	{
		const uint32_t four[4] = { w.x, w.y, w.z, w.w };

#pragma unroll
		for (int i = 0; i < 4; i++) {
			const uint4 y = x[i / 2];
			uint32_t b[2];

			fp8_widen<dtype>(four[i], b, b + 1);
			gemm_mma<dtype>(d[i % 2], i % 2 ? y.z : y.x, i % 2 ? y.w : y.y, b);
		}
	}
};

struct gemm_weight_e4m3_blocks : gemm_weight_e4m3 {
	const float *scales;
	int num_blocks;		/* along k */

	static constexpr bool blocks = true;

	GEMM_METHOD float scale(int row, int block) const
	{
		return block < num_blocks ? scales[row / CAIRN_FP8_BLOCK * num_blocks + block] : 0;
	}
};

#endif
