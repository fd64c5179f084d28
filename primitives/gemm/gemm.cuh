/* SPDX-License-Identifier: Apache-2.0 */
/* gemm.cuh - shared by the kernels of gemm: the epilogue of one element, the launcher of gemm_tile.cu */
#ifndef CAIRN_GEMM_CUH
#define CAIRN_GEMM_CUH

#include "primitives/gemm/gemm.h"
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

/* For m 1..64, f16 and bf16; does not use the workspace. residual: as in cairn_gemm_own() */
extern "C" int cairn_gemm_tile(const struct cairn_gemm_args *g, const void *residual, void *stream);

#endif
