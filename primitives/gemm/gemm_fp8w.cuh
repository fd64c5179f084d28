/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gemm_fp8w.cuh - shared by the kernels of gemm_fp8w: one mma on e4m3 bytes, the epilogue, the tile launcher
 */
#ifndef CAIRN_GEMM_FP8W_CUH
#define CAIRN_GEMM_FP8W_CUH

#include "primitives/ptx/fp8.cuh"
#include "primitives/gemm/gemm_fp8w.h"
#include "primitives/ptx/ptx.cuh"
#include "primitives/rows/row.cuh"

/* d += a b: a0 and a1 are two pairs of k of row lane / 4 of a; four: 4 bytes of one row of the weight. */
template <int dtype> FP8 void fp8w_mma(float d[4], uint32_t a0, uint32_t a1, uint32_t four)
{
	const uint32_t a[4] = { a0, 0, a1, 0 };
	uint32_t b[2];

	fp8_widen<dtype>(four, b, b + 1);
	if (dtype == CAIRN_BF16)
		ptx_mma_m16n8k16_bf16(d, a, b);
	else
		ptx_mma_m16n8k16_f16(d, a, b);
}

/* Applies the scale of the weight's row (scale_kind 0) and the bias to a finished sum. */
FP8 float fp8w_finish(const struct cairn_gemm_fp8w_args &g, int col, float v)
{
	if (!g.scale_kind)
		v *= g.b_scale[col];
	return g.bias ? v + row_load(g.bias, g.dtype, col) : v;
}

FP8 void fp8w_store(const struct cairn_gemm_fp8w_args &g, int row, int col, float v)
{
	row_store(g.out, g.out_dtype, (int64_t)row * g.n + col, v);
}

/* For m >= 9; cairn_gemm_fp8w_tile_workspace() returns the bytes of workspace it needs. */
extern "C" int cairn_gemm_fp8w_tile(const struct cairn_gemm_fp8w_args *g, void *stream);
extern "C" size_t cairn_gemm_fp8w_tile_workspace(const struct cairn_gemm_fp8w_args *g);

#endif
