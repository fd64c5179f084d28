/* SPDX-License-Identifier: Apache-2.0 */
/* gemm.cuh - what the kernels of gemm share */
#ifndef CAIRN_GEMM_CUH
#define CAIRN_GEMM_CUH

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "dtype.h"
#include "gemm.h"

static __device__ __forceinline__ float gemm_load(const void *p, int dtype, int64_t i)
{
	if (dtype == CAIRN_F32)
		return ((const float *)p)[i];
	if (dtype == CAIRN_F16)
		return __half2float(((const __half *)p)[i]);
	return __bfloat162float(((const __nv_bfloat16 *)p)[i]);
}

static __device__ __forceinline__ void gemm_store(const struct cairn_gemm_args &g, int row, int col, float v,
						 const void *residual = NULL)
{
	int64_t at = (int64_t)row * g.n + col;

	if (g.bias)
		v += gemm_load(g.bias, g.dtype, col);
	if (residual)
		v += gemm_load(residual, g.out_dtype, at);
	if (g.out_dtype == CAIRN_F32)
		((float *)g.out)[at] = v;
	else if (g.out_dtype == CAIRN_F16)
		((__half *)g.out)[at] = __float2half_rn(v);
	else
		((__nv_bfloat16 *)g.out)[at] = __float2bfloat16_rn(v);
}

/* m 1..64, f16 and bf16; the workspace is not looked at */
extern "C" int cairn_gemm_tile(const struct cairn_gemm_args *g, void *stream);

#endif
