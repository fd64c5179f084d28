/* SPDX-License-Identifier: Apache-2.0 */
/* gemm_fp8w.cuh - the launcher of gemm_fp8w_tile.cu */
#ifndef CAIRN_GEMM_FP8W_CUH
#define CAIRN_GEMM_FP8W_CUH

#include "primitives/gemm/fp8w/gemm_fp8w.h"

/* For m >= 9; cairn_gemm_fp8w_tile_workspace() returns the bytes of workspace it needs. */
extern "C" int cairn_gemm_fp8w_tile(const struct cairn_gemm_fp8w_args *g, void *stream);
extern "C" size_t cairn_gemm_fp8w_tile_workspace(const struct cairn_gemm_fp8w_args *g);

#endif
