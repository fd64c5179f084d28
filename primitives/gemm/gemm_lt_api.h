/* SPDX-License-Identifier: Apache-2.0 */
/* gemm_lt_api - cuBLASLt's functions, loaded at run time by gemm_cublaslt.c */
#ifndef CAIRN_GEMM_LT_API_H
#define CAIRN_GEMM_LT_API_H

#include <cublasLt.h>

#define CAIRN_LT_FUNCTIONS(F) \
	F(cublasLtCreate) F(cublasLtMatmul) F(cublasLtMatmulAlgoGetHeuristic) \
	F(cublasLtMatmulDescCreate) F(cublasLtMatmulDescDestroy) F(cublasLtMatmulDescSetAttribute) \
	F(cublasLtMatrixLayoutCreate) F(cublasLtMatrixLayoutDestroy) F(cublasLtMatrixLayoutSetAttribute) \
	F(cublasLtMatmulPreferenceCreate) F(cublasLtMatmulPreferenceDestroy) \
	F(cublasLtMatmulPreferenceSetAttribute)

#define CAIRN_LT_FUNCTION(name) __typeof__(name) *name;
struct cairn_lt { CAIRN_LT_FUNCTIONS(CAIRN_LT_FUNCTION) };
#undef CAIRN_LT_FUNCTION

/* Loads the library (-EOPNOTSUPP: missing). *handle: that of the current device, whose number is *device */
int cairn_lt_open(const struct cairn_lt **api, cublasLtHandle_t *handle, int *device);

#endif
