/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gemm_gated - the product for gate and up of a feed-forward block and its activation, for few rows
 *
 *   y[i,j] = sum_l a[i,l] * b[j,l] + bias[j], rounded to dtype      j < 2 n
 *   out[i,j] = silu(y[i,j]) * y[i,n+j]                              j < n
 *
 *   argument   dtype  shape     notes
 *   out        dtype  [m, n]    out, 16-byte aligned, may not alias an input
 *   a          dtype  [m, k]    in, 16-byte aligned
 *   b          dtype  [2 n, k]  in, 16-byte aligned: rows of gate, then rows of up
 *   bias       dtype  [2 n]     in, optional (NULL)
 *
 * Supported:   dtype f16, bf16; m 1..CAIRN_GEMM_GATED_M; n a multiple of 8, at most 2^30; k >= 1, a multiple
 *              of 8. Anything else -EOPNOTSUPP.
 * Numerics:    those of gemm (gemm.h) with out_dtype = dtype, followed by silu_mul (silu_mul.h). Our tables
 *              give the bits of their gemm and silu_mul.
 * Tolerance:   that of both, see gemm_gated_ref.c.
 * NaN:         as in gemm.h and silu_mul.h.
 * sms, Constant b, Determinism: as in gemm.h.
 * Errors:      -EINVAL (null pointer, misaligned, size < 1, sms < 0), -EOPNOTSUPP, -EIO.
 */
#ifndef CAIRN_GEMM_GATED_H
#define CAIRN_GEMM_GATED_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "primitives/gemm/gemm.h"

#define CAIRN_GEMM_GATED_M	48	/* the most rows for which gemm uses the same kernels */

struct cairn_gemm_gated_args {
	size_t size;			/* sizeof(struct cairn_gemm_gated_args) */
	void *out;
	const void *a, *b, *bias;
	int32_t m, n, k;
	int32_t dtype;			/* enum cairn_dtype */
	int32_t sms;			/* SMs that the call may use at a time; 0: all */
};

/* Returns the product for gate and up, with out as it is. */
static inline struct cairn_gemm_args cairn_gemm_gated_product(const struct cairn_gemm_gated_args *g)
{
	struct cairn_gemm_args product;

	memset(&product, 0, sizeof(product));
	product.size = sizeof(product);
	product.out = g->out;
	product.a = g->a;
	product.b = g->b;
	product.bias = g->bias;
	product.m = g->m;
	product.n = 2 * g->n;
	product.k = g->k;
	product.dtype = product.out_dtype = g->dtype;
	product.sms = g->sms;
	return product;
}

#ifdef __cplusplus
extern "C" {
#endif

int cairn_gemm_gated(const struct cairn_gemm_gated_args *args, void *stream);
int cairn_gemm_gated_cpu(const struct cairn_gemm_gated_args *args, void *stream);
int cairn_gemm_gated_ref(const struct cairn_gemm_gated_args *args, void *stream);
/* The argument checks that all of our tables run first: 0, -EINVAL or -EOPNOTSUPP. */
int cairn_gemm_gated_check(const struct cairn_gemm_gated_args *args);
/*
 * Fills exact[0] for out. If m * n * k is above 2^31, only a fixed pseudo-random 1 in 1021 of the
 * elements is judged.
 */
int cairn_gemm_gated_exact(const struct cairn_gemm_gated_args *args, struct cairn_exact *exact);

#ifdef __cplusplus
}
#endif
#endif
