/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gemm_fp8 - matrix product of two e4m3 matrices with fp32 scales
 *
 *   out[i,j] = sum_l a[i,l] * sa(i,l) * b[j,l] * sb(j,l) + bias[j]
 *
 *   scale_kind CAIRN_FP8_SCALE_ROWS:    sa(i,l) = a_scale[i]                  one scale for each row of a
 *                                       sb(j,l) = b_scale[j]                  one for each row of b
 *   scale_kind CAIRN_FP8_SCALE_BLOCKS:  sa(i,l) = a_scale[l / 128 * a_scale_stride + i]
 *                                                                             one for 1 x 128 of a
 *                                       sb(j,l) = b_scale[j / 128 * ceil(k / 128) + l / 128]
 *                                                                             one for 128 x 128 of b
 *   scale_kind CAIRN_FP8_SCALE_TENSOR:  sa(i,l) = a_scale[0], sb(j,l) = b_scale[0]
 *
 *   argument   dtype      shape            notes
 *   out        out_dtype  [m, n]           out, 16-byte aligned, may not alias an input
 *   a          e4m3       [m, k]           in, 16-byte aligned, one byte each
 *   b          e4m3       [n, k]           in, 16-byte aligned, one byte each
 *   a_scale    f32        [m], [ceil(k/128), m] or [1]              in; quant_fp8w.h computes a and a_scale.
 *                                                                   BLOCKS: rows a_scale_stride apart
 *   b_scale    f32        [n], [ceil(n/128), ceil(k/128)] or [1]    in; likewise b and b_scale
 *   bias       dtype      [n]              in, optional (NULL)
 *   workspace             bytes            gemm_fp8_workspace() bytes, 256-byte aligned, contents undefined
 *
 * Supported:   dtype (of bias and out) f16, bf16; out_dtype = dtype, or f32; m, n, k >= 1; k a multiple of
 *              16. Anything else -EOPNOTSUPP.
 * Numerics:    products exact. The products of CAIRN_GEMM_FP8_CHUNK consecutive l, from a multiple of it on,
 *              may be summed by tensor cores, whose sums have fewer than 24 bits: Hopper's align the 32
 *              products of a step and the sum so far to the largest exponent among them, and truncate what
 *              lies below 2^-13 of it. These sums are scaled and added in fp32. One rounding to out_dtype.
 * Tolerance:   |out - ref| <= sum over chunks of |sa sb| T + (k / 128 + 8) 2^-23 (sum_l |a sa b sb| +
 *              |bias|) + u |ref| (+ half the smallest subnormal of out_dtype), u the unit roundoff of
 *              out_dtype. T, of a chunk, is 0 if sum |a b| is at most 2^13 times the lowest bit of any
 *              product, otherwise what truncation can cost: at least 2^-11 sum |a b|, and not much more
 *              unless most products have one sign (derivation in gemm_fp8_ref.c).
 * Range:       a scale may be any finite float; for every i, j and l the product sa sb must be 0 or of a
 *              magnitude from 2^-100 to 2^100, and every sum must fit fp32.
 * NaN:         a NaN code (0x7f, 0xff) makes each result NaN whose sum contains it, whatever the scale; other
 *              rows and columns are not affected. Scales are finite.
 * Bits:        the bits of out[i,j] depend on row i of a, row j of b, their scales and bias, k, the types and
 *              scale_kind, and on nothing else, as in gemm_fixed.h. One implementation on one kind of device
 *              is meant.
 * sms:         as in gemm_fixed.h.
 * Constant b:  b, b_scale and bias are weights, as in gemm.h.
 * Stream:      asynchronous; no allocation, no synchronisation; can be captured in a graph.
 * Errors:      -EINVAL (null pointer, misaligned, size < 1, short stride, sms < 0, unknown scale_kind),
 *              -EOPNOTSUPP, -EIO.
 * Source:      DeepSeek-AI 2024 (DeepSeek-V3), section 3.3.2: scales of blocks, sums promoted to fp32 every
 *              128 of k.
 */
#ifndef CAIRN_GEMM_FP8_H
#define CAIRN_GEMM_FP8_H

#include <stddef.h>
#include <stdint.h>

#include "primitives/rows/quant_fp8w.h"

#define CAIRN_GEMM_FP8_CHUNK	128
#define CAIRN_GEMM_FP8_JUDGED	0x1p26	/* products of a case of which every element is judged */

struct cairn_gemm_fp8_args {
	size_t size;			/* sizeof(struct cairn_gemm_fp8_args) */
	void *out;
	const uint8_t *a, *b;
	const float *a_scale, *b_scale;
	const void *bias;
	void *workspace;
	size_t workspace_bytes;
	int64_t a_scale_stride;		/* from one block of k to the next; 0: m */
	int32_t m, n, k;
	int32_t dtype, out_dtype, scale_kind;	/* enum cairn_dtype; enum cairn_fp8_scale */
	int32_t sms;			/* SMs that the call may use at a time; 0: all */
};

/* Returns a_scale_stride with 0 replaced by the value it stands for. */
static inline int64_t cairn_gemm_fp8_a_scale_stride(const struct cairn_gemm_fp8_args *g)
{
	return g->a_scale_stride ? g->a_scale_stride : g->m;
}

/* Returns the number of scales of a, gaps included, and of b. */
static inline int64_t cairn_gemm_fp8_a_scales(const struct cairn_gemm_fp8_args *g)
{
	const int64_t blocks_k = ((int64_t)g->k + CAIRN_FP8_BLOCK - 1) / CAIRN_FP8_BLOCK;

	return g->scale_kind == CAIRN_FP8_SCALE_TENSOR ? 1 :
	       g->scale_kind == CAIRN_FP8_SCALE_BLOCKS ? blocks_k * cairn_gemm_fp8_a_scale_stride(g) : g->m;
}

static inline int64_t cairn_gemm_fp8_b_scales(const struct cairn_gemm_fp8_args *g)
{
	const int64_t blocks_k = ((int64_t)g->k + CAIRN_FP8_BLOCK - 1) / CAIRN_FP8_BLOCK;
	const int64_t blocks_n = ((int64_t)g->n + CAIRN_FP8_BLOCK - 1) / CAIRN_FP8_BLOCK;

	return g->scale_kind == CAIRN_FP8_SCALE_TENSOR ? 1 :
	       g->scale_kind == CAIRN_FP8_SCALE_BLOCKS ? blocks_n * blocks_k : g->n;
}

/* Return the scale of a[i,l], and of b[j,l]. */
static inline float cairn_gemm_fp8_a_scale(const struct cairn_gemm_fp8_args *g, int64_t i, int64_t l)
{
	return g->a_scale[g->scale_kind == CAIRN_FP8_SCALE_TENSOR ? 0 :
			  g->scale_kind == CAIRN_FP8_SCALE_BLOCKS ?
			  l / CAIRN_FP8_BLOCK * cairn_gemm_fp8_a_scale_stride(g) + i : i];
}

static inline float cairn_gemm_fp8_b_scale(const struct cairn_gemm_fp8_args *g, int64_t j, int64_t l)
{
	const int64_t blocks_k = ((int64_t)g->k + CAIRN_FP8_BLOCK - 1) / CAIRN_FP8_BLOCK;

	return g->b_scale[g->scale_kind == CAIRN_FP8_SCALE_TENSOR ? 0 :
			  g->scale_kind == CAIRN_FP8_SCALE_BLOCKS ?
			  j / CAIRN_FP8_BLOCK * blocks_k + l / CAIRN_FP8_BLOCK : j];
}

#ifdef __cplusplus
extern "C" {
#endif

/* cairn_gemm_fp8() and the tables cpu and ref use no workspace. */
int cairn_gemm_fp8(const struct cairn_gemm_fp8_args *args, void *stream);
int cairn_gemm_fp8_cpu(const struct cairn_gemm_fp8_args *args, void *stream);
int cairn_gemm_fp8_ref(const struct cairn_gemm_fp8_args *args, void *stream);
/* The same by NVIDIA's library, for comparison; it need not keep the clauses on bits and truncation. */
int cairn_gemm_fp8_cublaslt(const struct cairn_gemm_fp8_args *args, void *stream);
int cairn_gemm_fp8_cublaslt_workspace(const struct cairn_gemm_fp8_args *args, size_t *bytes);
/*
 * Fills exact[0] for out. If m*n*k is above CAIRN_GEMM_FP8_JUDGED, only a fixed pseudo-random one in
 * ceil(m*n*k / CAIRN_GEMM_FP8_JUDGED) elements is judged.
 */
int cairn_gemm_fp8_exact(const struct cairn_gemm_fp8_args *args, struct cairn_exact *exact);
/* Checks args for every implementation here: 0, -EINVAL or -EOPNOTSUPP with the error text set. */
int cairn_gemm_fp8_check(const struct cairn_gemm_fp8_args *args);
/* The part of cairn_gemm_fp8_check() that reads only the scalars, for workspace queries. */
int cairn_gemm_fp8_check_shape(const struct cairn_gemm_fp8_args *args);

#ifdef __cplusplus
}
#endif
#endif
