// SPDX-License-Identifier: Apache-2.0
/* gemm_tile - gemm for 5 to 64 rows of a, by the kernel of gemm_tile.cuh */
#include "primitives/gemm/gemm_tile.cuh"

extern "C" int cairn_gemm_tile(const struct cairn_gemm_args *g, const void *residual, void *stream)
{
	return gemm_tile<CAIRN_GEMM_OWN_M>(g, gemm_plain{ residual }, stream);
}
