/* SPDX-License-Identifier: Apache-2.0 */
/*
 * qkv_append - for few rows: the product for queries, keys and values, their rotation, and the append
 *
 *   1. y[i,j] = sum_l a[i,l] * b[j,l] + bias[j], rounded to dtype. Its columns are num_qo_heads heads of
 *      queries, num_kv_heads of keys and as many of values, of head_dim each.
 *   2. rope (rope.h) of each head of queries and keys, over all of head_dim, with interleaved 0 and scale 1
 *   3. kv_append (kv_append.h) of the keys and values
 *
 *   argument          dtype  shape                         notes
 *   q                 dtype  [m, num_qo_heads, head_dim]   out; row i starts at q + i * q_stride elements
 *   a                 dtype  [m, k]                        in
 *   b                 dtype  [n, k]                        in, n = (num_qo_heads + 2 num_kv_heads) head_dim
 *   bias              dtype  [n]                           in, optional (NULL)
 *   inv_freq          f32    [head_dim / 2]                in, finite
 *   positions         int32  [m]                           in, >= 0
 *   qo_indptr         int32  [kv.batch + 1]                in, ascending from 0
 *   kv                struct cairn_kv_view                 in, kv_view.h; max_len ignored
 *     k_pages, v_pages  of dtype, or e4m3 with kv_fp8      out (new rows only)
 *   k_scale, v_scale  f32    [num_kv_heads]                in, optional (1), > 0, finite; with kv_fp8
 *
 * q, a, b and the pages are 16-byte aligned and do not overlap. q_stride is in elements, a multiple of 8 and
 * at least num_qo_heads * head_dim; 0 means exactly that. Gaps between rows of q are neither read nor
 * written. m is an upper bound of the rows that are appended: those from qo_indptr[kv.batch] on get queries,
 * but their keys and values are dropped. What kv_append does not check is not checked here either.
 *
 * Supported:   dtype f16, bf16; m 1..CAIRN_QKV_APPEND_M; k >= 1, a multiple of 8; head_dim a multiple of 16
 *              up to 512; at most 2^16 heads in all; any page_size >= 1; kv_fp8 0 or 1. Anything else
 *              -EOPNOTSUPP. kv.batch 0 is legal: nothing is appended.
 * Numerics:    those of gemm.h with out_dtype = dtype, rope.h and kv_append.h, one after the other. Our
 *              tables give the bits of their three operations.
 * Tolerance:   that of all three, see qkv_append_ref.c.
 * NaN:         as there: a NaN in a row of a makes the results of that row NaN, one in a row of b those of
 *              its column and of the column's partner.
 * sms, Constant b, Determinism: as in gemm.h; inv_freq is a weight, too.
 * Errors:      -EINVAL (null pointer, misaligned, negative or contradictory size, sms < 0), -EOPNOTSUPP,
 *              -EIO.
 */
#ifndef CAIRN_QKV_APPEND_H
#define CAIRN_QKV_APPEND_H

#include <stddef.h>
#include <stdint.h>

#include "fused/cache/kv_view.h"

struct cairn_exact;

#define CAIRN_QKV_APPEND_M	48	/* rows, at most: those for which gemm uses the same kernels */

struct cairn_qkv_append_args {
	size_t size;			/* sizeof(struct cairn_qkv_append_args) */
	void *q;
	const void *a, *b, *bias;
	const float *inv_freq;
	const int32_t *positions, *qo_indptr;
	struct cairn_kv_view kv;
	const float *k_scale, *v_scale;
	int64_t q_stride;
	int32_t m, k, num_qo_heads, num_kv_heads, head_dim;
	int32_t dtype;			/* of q, a, b and bias */
	int32_t kv_fp8;			/* 1: the pages hold e4m3 */
	int32_t sms;			/* SMs that the call may use at a time; 0: all */
};

/* Returns the columns of the product. */
static inline int32_t cairn_qkv_append_n(const struct cairn_qkv_append_args *a)
{
	return (a->num_qo_heads + 2 * a->num_kv_heads) * a->head_dim;
}

static inline int64_t cairn_qkv_append_q_stride(const struct cairn_qkv_append_args *a)
{
	return a->q_stride ? a->q_stride : (int64_t)a->num_qo_heads * a->head_dim;
}

#ifdef __cplusplus
extern "C" {
#endif

int cairn_qkv_append(const struct cairn_qkv_append_args *args, void *stream);
int cairn_qkv_append_cpu(const struct cairn_qkv_append_args *args, void *stream);
int cairn_qkv_append_ref(const struct cairn_qkv_append_args *args, void *stream);
/* The argument checks that all of our tables run first: 0, -EINVAL or -EOPNOTSUPP. Reads no array. */
int cairn_qkv_append_check(const struct cairn_qkv_append_args *args);
/*
 * exact[0]: q, exact[1]: kv.k_pages, exact[2]: kv.v_pages, with kv_fp8 as numbers of codes. Entries of what
 * is not written keep their values.
 */
int cairn_qkv_append_exact(const struct cairn_qkv_append_args *args, struct cairn_exact *exact);

#ifdef __cplusplus
}
#endif
#endif
