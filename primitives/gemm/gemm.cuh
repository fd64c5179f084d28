/* SPDX-License-Identifier: Apache-2.0 */
/* gemm.cuh - shared by the kernels of gemm: the epilogues of one element, the launcher of gemm_tile.cu */
#ifndef CAIRN_GEMM_CUH
#define CAIRN_GEMM_CUH

#include "primitives/gemm/gemm.h"
#include "primitives/rows/act_mul.cuh"
#include "primitives/rows/row.cuh"

ROW void gemm_store(const struct cairn_gemm_args &g, int row, int col, float v, const void *residual)
{
	int64_t at = (int64_t)row * g.n + col;

	if (g.bias)
		v += row_load(g.bias, g.dtype, col);
	if (residual)
		v += row_load(residual, g.out_dtype, at);
	row_store(g.out, g.out_dtype, at, v);
}

/*
 * The epilogue of gemm_gated: element [row, col] of out from the sums of gate and up. g.n counts the rows of
 * both.
 */
template <int dtype>
ROW void gemm_store_gated(const struct cairn_gemm_args &g, int row, int col, float gate, float up)
{
	float y[2];

	if (g.bias) {
		gate += row_load(g.bias, dtype, col);
		up += row_load(g.bias, dtype, g.n / 2 + col);
	}
	row_unpack2<dtype>(row_pack2<dtype>(gate, up), y);
	row_store(g.out, dtype, (int64_t)row * (g.n / 2) + col, act_mul_16<0>(y[0], y[1]));
}

/*
 * For m 1..64, f16 and bf16; does not use the workspace. residual: as in cairn_gemm_own(). gated: out is that
 * of gemm_gated, whose gate and up are the rows of b.
 */
extern "C" int cairn_gemm_tile(const struct cairn_gemm_args *g, const void *residual, bool gated,
			       void *stream);
/* Computes gemm_gated by the kernels for few rows; its arguments have been checked. */
extern "C" int cairn_gemm_few_gated(const struct cairn_gemm_args *g, void *stream);

#endif
