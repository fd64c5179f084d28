/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gemm_fp8w - matrix product with an e4m3 weight and fp32 scales
 *
 *   out[i,j] = sum_l a[i,l] * b[j,l] * s(j,l) + bias[j]
 *
 *   scale_kind 0:  s(j,l) = b_scale[j]                                          one scale per row of b
 *   scale_kind 1:  s(j,l) = b_scale[j / 128 * ceil(k / 128) + l / 128]          one scale per 128 x 128 block
 *
 *   argument   dtype      shape            notes
 *   out        out_dtype  [m, n]           out, 16-byte aligned, may not alias an input
 *   a          dtype      [m, k]           in, 16-byte aligned
 *   b          e4m3       [n, k]           in, 16-byte aligned, one byte each; no NaN (0x7f, 0xff)
 *   b_scale    f32        as above         in; quant_fp8w.h computes b and b_scale
 *   bias       dtype      [n]              in, optional (NULL)
 *   workspace             bytes            gemm_fp8w_workspace() bytes, 256-byte aligned, contents undefined
 *
 * Supported:   dtype f16, bf16; out_dtype = dtype, or f32; m, n, k >= 1; k a multiple of 16. Anything else
 *              -EOPNOTSUPP.
 * Numerics:    products exact, sums in fp32 in any fixed order, scales applied to sums in fp32, one rounding
 *              to out_dtype. Above m = CAIRN_GEMM_FP8W_EXACT_M an implementation may instead round b * s to
 *              dtype and continue as in gemm.h.
 * Tolerance:   |out - ref| <= (k + 8) 2^-24 (sum_l |a b s| + |bias|) + u |ref| (+ half the smallest subnormal
 *              of out_dtype), u the unit roundoff of out_dtype; a subnormal a counts as the smallest normal
 *              number, as in gemm.h. Above CAIRN_GEMM_FP8W_EXACT_M the bound grows by sum_l |a| (v |b s| +
 *              half the smallest subnormal of dtype), v the unit roundoff of dtype (derivation in
 *              gemm_fp8w_ref.c).
 * Range:       a scale may be any finite float, also 0 or subnormal; it multiplies a sum, so |a s| and |b s|
 *              need not fit fp32. An element of out is defined if every sum fits, in whatever order it is
 *              formed: sum_l |a b| < 2^128 over the elements that share a scale (a row, or 128 columns of
 *              it), and sum_l |a b s| + |bias| < 2^128 over all of k. Above CAIRN_GEMM_FP8W_EXACT_M, |b s|
 *              must also be in the range of dtype.
 * NaN:         a NaN in a or bias has the effect described in gemm.h. Scales are finite.
 * sms:         as in gemm.h.
 * Determinism: bitwise repeatable for equal arguments; the grouping of sums may depend on sms above m = 8.
 *              The tables cpu and cuda promise more, as for gemm (gemm_rows_test.c): the bits of a row of out
 *              depend neither on the other rows of a nor on the row's place among them, but may depend on m.
 * Constant b:  b, b_scale and bias are weights, as in gemm.h: their writer must be separated from this call
 *              by a full ordering point of the stream. They may be other ones in the next call, so nothing
 *              that is made of them may be kept by their address.
 * Errors:      -EINVAL (null pointer, size < 1, sms < 0), -EOPNOTSUPP, -EIO.
 */
#ifndef CAIRN_GEMM_FP8W_H
#define CAIRN_GEMM_FP8W_H

#include <stddef.h>
#include <stdint.h>

#include "primitives/rows/quant_fp8w.h"

#define CAIRN_GEMM_FP8W_EXACT_M	256

struct cairn_gemm_fp8w_args {
	size_t size;			/* sizeof(struct cairn_gemm_fp8w_args) */
	void *out;
	const void *a;
	const uint8_t *b;
	const float *b_scale;
	const void *bias;
	void *workspace;
	size_t workspace_bytes;
	int32_t m, n, k;
	int32_t dtype, out_dtype, scale_kind;	/* enum cairn_dtype; enum cairn_fp8_scale */
	int32_t sms;			/* SMs that the call may use at a time; 0: all */
};

#ifdef __cplusplus
extern "C" {
#endif

int cairn_gemm_fp8w(const struct cairn_gemm_fp8w_args *args, void *stream);
/*
 * Writes the workspace that args need to *bytes; pointers in args are ignored. Also prepares cuBLASLt for
 * the shape if cairn_gemm_fp8w() will call it, as cairn_gemm_workspace() does.
 */
int cairn_gemm_fp8w_workspace(const struct cairn_gemm_fp8w_args *args, size_t *bytes);
int cairn_gemm_fp8w_cpu(const struct cairn_gemm_fp8w_args *args, void *stream);
int cairn_gemm_fp8w_ref(const struct cairn_gemm_fp8w_args *args, void *stream);
/* Fills exact[0] for out. If m*n*k is above 2^31, only a fixed pseudo-random 1 in 1021 elements is judged. */
int cairn_gemm_fp8w_exact(const struct cairn_gemm_fp8w_args *args, struct cairn_exact *exact);
/* Checks args for every implementation here: 0, -EINVAL or -EOPNOTSUPP with the error text set. */
int cairn_gemm_fp8w_check(const struct cairn_gemm_fp8w_args *args);
/* The part of cairn_gemm_fp8w_check() that reads only the scalars, for workspace queries. */
int cairn_gemm_fp8w_check_shape(const struct cairn_gemm_fp8w_args *args);

#ifdef __cplusplus
}
#endif
#endif
