/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gemm_fp8w - matrix product with a weight of 8 bits (e4m3) and fp32 scales
 *
 *   out[i,j] = sum_l a[i,l] * b[j,l] * s(j,l) + bias[j]
 *
 *   scale_kind 0:  s(j,l) = b_scale[j]                                          one for each row of b
 *   scale_kind 1:  s(j,l) = b_scale[j / 128 * ceil(k / 128) + l / 128]          one for each 128 x 128 block
 *
 *   argument   dtype      shape            notes
 *   out        out_dtype  [m, n]           out, 16-byte aligned, may not alias an input
 *   a          dtype      [m, k]           in, 16-byte aligned
 *   b          e4m3       [n, k]           in, 16-byte aligned, a byte each; no NaN (0x7f, 0xff)
 *   b_scale    f32        as above         in; quant_fp8w.h makes both
 *   bias       dtype      [n]              in, optional (NULL)
 *   workspace             bytes            gemm_fp8w_workspace() bytes, 256-byte aligned, contents undefined
 *
 * Supported:   dtype f16, bf16; out_dtype = dtype, or f32; m, n, k >= 1; k a multiple of 16. Anything else
 *              -EOPNOTSUPP.
 * Numerics:    products exact, sums in fp32 in any fixed order, scales applied to sums in fp32, one rounding
 *              to out_dtype. Above m = CAIRN_GEMM_FP8W_EXACT_M an implementation may instead round b * s to
 *              dtype and go on as gemm.h does.
 * Tolerance:   |out - ref| <= (k + 8) 2^-24 (sum_l |a b s| + |bias|) + u |ref| (+ the tiny of out_dtype), u
 *              half an ulp of out_dtype; a subnormal a counts as the smallest normal number, as in gemm.h.
 *              Above CAIRN_GEMM_FP8W_EXACT_M there is sum_l |a| (v |b s| + the tiny of dtype) more, v half an
 *              ulp of dtype (gemm_fp8w_ref.c).
 * Determinism: bitwise repeatable for equal arguments.
 * Constant b:  b, b_scale and bias count as weights, as in gemm.h: whatever wrote them must be separated from
 *              this call by a point that the stream passes in full.
 * Errors:      -EINVAL (null pointer, size < 1), -EOPNOTSUPP, -EIO.
 */
#ifndef CAIRN_GEMM_FP8W_H
#define CAIRN_GEMM_FP8W_H

#include <stddef.h>
#include <stdint.h>

#include "primitives/gemm/quant_fp8w.h"

#define CAIRN_GEMM_FP8W_EXACT_M	256

struct cairn_gemm_fp8w_args {
	size_t size;
	void *out;
	const void *a;
	const uint8_t *b;
	const float *b_scale;
	const void *bias;
	void *workspace;
	size_t workspace_bytes;
	int32_t m, n, k;
	int32_t dtype, out_dtype, scale_kind;
};

#ifdef __cplusplus
extern "C" {
#endif

int cairn_gemm_fp8w(const struct cairn_gemm_fp8w_args *args, void *stream);
/* Also makes cuBLASLt ready for the shape where it will be called, as cairn_gemm_workspace() does. */
int cairn_gemm_fp8w_workspace(const struct cairn_gemm_fp8w_args *args, size_t *bytes);
int cairn_gemm_fp8w_cpu(const struct cairn_gemm_fp8w_args *args, void *stream);
int cairn_gemm_fp8w_ref(const struct cairn_gemm_fp8w_args *args, void *stream);
/* exact[0]: out. Where m*n*k is over 2^31, a fixed pseudo-random 1 in 1021 elements is judged. */
int cairn_gemm_fp8w_exact(const struct cairn_gemm_fp8w_args *args, struct cairn_exact *exact);
/* 0, -EINVAL or -EOPNOTSUPP with a text: what every implementation here checks first. */
int cairn_gemm_fp8w_check(const struct cairn_gemm_fp8w_args *args);

#ifdef __cplusplus
}
#endif
#endif
