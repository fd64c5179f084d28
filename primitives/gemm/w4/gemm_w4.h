/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gemm_w4 - matrix product with a 4-bit weight and a scale for each group along k
 *
 *   out[i,j] = scale * sum_l a[i,l] * c(j,l) * s(j, l / group) + bias[j]
 *
 *   format           c(j,l)                         s                         group
 *   CAIRN_W4_INT     code - zero(j, l / group)      f16                       32, 64, 128, or 0: all of k
 *   CAIRN_W4_MX      e2m1                           e8m0: 2^(byte - 127)      32
 *   CAIRN_W4_NV      e2m1                           e4m3                      16
 *
 * INT is the format of AWQ and GPTQ checkpoints, with zero points from 0 to 16. The magnitudes of e2m1 are 0,
 * 1/2, 1, 3/2, 2, 3, 4 and 6; bit 3 of a code is its sign. NVFP4's scale for the tensor goes to `scale`.
 *
 *   argument   dtype      shape                   notes
 *   out        out_dtype  [m, n]                  out, 16-byte aligned, may not alias an input
 *   a          dtype      [m, k]                  in, 16-byte aligned
 *   b          bytes      cairn_w4_code_bytes()   in, 16-byte aligned, laid out as gemm_w4_layout.h says
 *   b_scale    bytes      cairn_w4_scale_bytes()  in, 16-byte aligned, likewise; gemm_w4_pack.h makes both
 *   bias       dtype      [n]                     in, optional (NULL)
 *   workspace             bytes                   gemm_w4_workspace() bytes, 256-byte aligned, undefined
 *
 * Supported:   dtype f16, bf16; out_dtype = dtype, or f32; m, n, k >= 1; k a multiple of 32; a last group
 *              that k ends within. Anything else -EOPNOTSUPP.
 * Numerics:    products a c exact, sums in fp32 in any fixed order, scales applied to sums in fp32, one
 *              rounding to out_dtype. Above m = CAIRN_GEMM_W4_EXACT_M an implementation may instead round s
 *              and c s to dtype, with or without `scale`, and continue as in gemm.h.
 * Tolerance:   |out - ref| <= (k + 12) 2^-24 (sum_l |a b| + |bias|) + u |ref| (+ half the smallest subnormal
 *              of out_dtype), b = scale c s, u the unit roundoff of out_dtype; a subnormal a counts as the
 *              smallest normal number, as in gemm.h. Above CAIRN_GEMM_W4_EXACT_M the bound grows by sum_l |a|
 *              (((1 + v)^3 - 1) |b| + (1 + 17 |scale|) w), v the unit roundoff and w half the smallest
 *              subnormal of dtype. Up to it, that of MX and NV grows by 2^r (2^-148 sum_l |b| + 2^-150 k
 *              |scale|), since sums may be computed 2^r too small: r is 14 with f16, 26 with bf16
 *              (derivations in gemm_w4_ref.c).
 * Range:       an element of out is defined if the sum of |a c| over each group, and those of |a c s| and
 *              |a b| over k, plus |bias|, are below 2^128. Above CAIRN_GEMM_W4_EXACT_M, |c s|, |s| and |b|
 *              must also be in the range of dtype.
 * NaN:         a NaN in a or bias has the effect described in gemm.h. A scale that is NaN (e8m0 255, e4m3
 *              127, f16) makes its column of out NaN.
 * sms:         as in gemm.h.
 * Determinism: bitwise repeatable for equal arguments; above m = 8 the grouping of sums may depend on sms.
 *              The bits of a row of out depend neither on the other rows of a nor on the row's place among
 *              them, but may depend on m. The tables cpu and cuda give a row the same bits for every m from 1
 *              to 8; cuda does so for MX and NV with bf16 only if no sum that is computed 2^26 too small (see
 *              Tolerance), which it does for one and two rows, becomes subnormal.
 * Speed:       with MX and NV and bf16, cuda computes one or two rows of a that have a magnitude of 2^27 or
 *              more by one warp of each CTA, which is many times slower. For more than 256 rows, unless out
 *              is small, cuda widens b to 16 bits in the workspace, 2 n k bytes (gemm_w4_widen.h).
 * Constant b:  b, b_scale and bias are weights, as in gemm.h: their writer must be separated from this call
 *              by a full ordering point of the stream.
 * Unused:      places of b and b_scale that belong to no element may hold anything, also scales that are NaN.
 * Errors:      -EINVAL (null pointer, size < 1, sms < 0, format, scale), -EOPNOTSUPP, -EIO.
 */
#ifndef CAIRN_GEMM_W4_H
#define CAIRN_GEMM_W4_H

#include <stddef.h>
#include <stdint.h>

struct cairn_exact;

#define CAIRN_GEMM_W4_EXACT_M	8

enum cairn_w4_format {
	CAIRN_W4_INT,
	CAIRN_W4_MX,
	CAIRN_W4_NV,
};

struct cairn_gemm_w4_args {
	size_t size;			/* sizeof(struct cairn_gemm_w4_args) */
	void *out;
	const void *a;
	const uint8_t *b;
	const uint8_t *b_scale;
	const void *bias;
	void *workspace;
	size_t workspace_bytes;
	int32_t m, n, k;
	int32_t dtype, out_dtype;	/* enum cairn_dtype */
	int32_t format, group;		/* enum cairn_w4_format; elements that share a scale, or 0: all */
	float scale;			/* finite; 1 but for NVFP4 */
	int32_t sms;			/* SMs that the call may use at a time; 0: all */
};

#ifdef __cplusplus
extern "C" {
#endif

int cairn_gemm_w4(const struct cairn_gemm_w4_args *args, void *stream);
/* Writes the workspace that args need to *bytes, as cairn_gemm_fp8w_workspace() does. */
int cairn_gemm_w4_workspace(const struct cairn_gemm_w4_args *args, size_t *bytes);
int cairn_gemm_w4_cpu(const struct cairn_gemm_w4_args *args, void *stream);
int cairn_gemm_w4_ref(const struct cairn_gemm_w4_args *args, void *stream);
/* Fills exact[0] for out. If m*n*k is above 2^31, only a fixed pseudo-random 1 in 1021 elements is judged. */
int cairn_gemm_w4_exact(const struct cairn_gemm_w4_args *args, struct cairn_exact *exact);
/* The same for the unfused chain, whose weights are rounded to dtype for every m: the bound above m = 8 */
int cairn_gemm_w4_peer_exact(const struct cairn_gemm_w4_args *args, struct cairn_exact *exact);
/* Checks args for every implementation here: 0, -EINVAL or -EOPNOTSUPP with the error text set. */
int cairn_gemm_w4_check(const struct cairn_gemm_w4_args *args);
/* The part of cairn_gemm_w4_check() that reads only the scalars, for workspace queries. */
int cairn_gemm_w4_check_shape(const struct cairn_gemm_w4_args *args);

#ifdef __cplusplus
}
#endif
#endif
