/* SPDX-License-Identifier: Apache-2.0 */
/*
 * attn_dense - attention over contiguous keys for a batch of requests of different lengths (FlashAttention)
 *
 *   out[i,h,:] = sum_j p[j] * v[j,g,:],   p = softmax_j(s[j])
 *   lse[i,h]   = ln sum_j exp(s[j])
 *   s[j]       = x[j] without a softcap, softcap * tanh(x[j] / softcap) with one
 *   x[j]       = sm_scale * dot(q[i,h,:], k[j,g,:])
 *   g          = h / (num_qo_heads / num_kv_heads)
 *
 * Request b owns the qo_len query rows qo_indptr[b] .. qo_indptr[b+1]-1 and the kv_len key rows kv_indptr[b]
 * .. kv_indptr[b+1]-1. Key j of the request is row kv_indptr[b] + j, and query row i has
 *
 *   position   = i - qo_indptr[b] + kv_len - qo_len    so that the last query sees the last key
 *
 * Row i sees the keys j < kv_len; with causal, only those with j <= position; with a window > 0, only those
 * with j > position - window, that is, its own key, the window - 1 keys before it and, without causal, all
 * keys behind it.
 *
 *   argument          dtype  shape                              notes
 *   out               dtype  [nnz_qo, num_qo_heads, v_dim]      out, may not alias an input
 *   lse               f32    [nnz_qo, num_qo_heads]             out, optional (NULL)
 *   q                 dtype  [nnz_qo, num_qo_heads, qk_dim]     in, row i at i * q_stride
 *   k                 dtype  [nnz_kv, num_kv_heads, qk_dim]     in, row j, head g at j * k_stride +
 *                                                               g * k_head_stride
 *   v                 dtype  [nnz_kv, num_kv_heads, v_dim]      in, the same with v_stride, v_head_stride
 *   qo_indptr         int32  [batch + 1]                        in, ascending from 0
 *   kv_indptr         int32  [batch + 1]                        in, ascending from 0
 *   workspace                [workspace_bytes]                  256-byte aligned
 *
 * out, q, k and v are 16-byte aligned. Strides are in elements and are multiples of 8. 0 means contiguous:
 * q_stride = num_qo_heads * qk_dim, k_head_stride = qk_dim, v_head_stride = v_dim, and k_stride and v_stride
 * are num_kv_heads times the head stride. Otherwise q_stride is at least num_qo_heads * qk_dim, and each of
 * the others is at least the dimension of a head. The rows of one head may follow each other (k_head_stride >
 * k_stride), and K and V may share a buffer.
 * workspace_bytes comes from attn_dense_workspace(); if that is 0, workspace may be NULL. The contents of the
 * index arrays are not checked.
 *
 * nnz_qo, nnz_kv, max_qo_len and max_kv_len are upper bounds over the batch. Only the device reads the index
 * arrays, so a captured graph also serves other lengths within the same bounds. Query rows past
 * qo_indptr[batch] are neither read nor written. A request may have no query or no key. With causal, it may
 * have more queries than keys; its first rows then see no key.
 *
 * sms:         as in gemm.h.
 * Supported:   dtype f16, bf16; qk_dim and v_dim each one of 64, 80, 96, 112, 128, 192, 256; num_qo_heads any
 *              multiple of num_kv_heads; any window >= 0 (0: none), causal or not. Anything else -EOPNOTSUPP.
 *              batch 0 and nnz_qo 0 are legal and do nothing.
 * Numerics, Not numbers, Tolerance: as in attn_paged.h.
 * Determinism: bitwise repeatable for equal arguments. A row's result depends on its own request only, but
 *              the grouping of its sums may depend on the four bounds, on batch and on sms.
 * Unused memory: rows past the last request, gaps between rows and heads, and keys outside every row's window
 *              may hold NaN and never reach a result.
 * Errors:      -EINVAL (null pointer, misaligned, negative or contradictory size), -EOPNOTSUPP, -EIO.
 * Source:      Dao et al. 2022 (FlashAttention), Dao 2023 (FlashAttention-2), Shah et al. 2024
 *              (FlashAttention-3).
 */
#ifndef CAIRN_ATTN_DENSE_H
#define CAIRN_ATTN_DENSE_H

#include <stddef.h>
#include <stdint.h>

struct cairn_exact;

struct cairn_attn_dense_args {
	size_t size;
	void *out;
	float *lse;
	const void *q, *k, *v;
	const int32_t *qo_indptr, *kv_indptr;
	void *workspace;
	size_t workspace_bytes;
	int64_t q_stride, k_stride, v_stride;
	int64_t k_head_stride, v_head_stride;
	int32_t batch, nnz_qo, nnz_kv, max_qo_len, max_kv_len;
	int32_t num_qo_heads, num_kv_heads, qk_dim, v_dim;
	int32_t dtype, causal;
	float sm_scale;
	int32_t window;			/* keys that a row may see, its own included; 0: all */
	float softcap;			/* in units of a logit; 0: none */
	int32_t sms;			/* SMs that the call may use at a time; 0: all */
};

#ifdef __cplusplus
extern "C" {
#endif

int cairn_attn_dense(const struct cairn_attn_dense_args *args, void *stream);
int cairn_attn_dense_workspace(const struct cairn_attn_dense_args *args, size_t *bytes);
int cairn_attn_dense_cpu(const struct cairn_attn_dense_args *args, void *stream);
int cairn_attn_dense_ref(const struct cairn_attn_dense_args *args, void *stream);
/* Sets exact[0] for out and exact[1] for lse (if not NULL); otherwise as cairn_attn_paged_exact(). */
int cairn_attn_dense_exact(const struct cairn_attn_dense_args *args, struct cairn_exact *exact);
/* Returns 0, or the error that all of our tables return for these arguments; reads no array. */
int cairn_attn_dense_check(const struct cairn_attn_dense_args *args);
/* The part of cairn_attn_dense_check() that reads only the scalars, for workspace queries. */
int cairn_attn_dense_check_shape(const struct cairn_attn_dense_args *args);
/* As cairn_attn_dense_check_shape(), but error texts begin with `name`; does not read args->size. */
int attn_dense_check_named(const struct cairn_attn_dense_args *args, const char *name);

#ifdef __cplusplus
}
#endif

/* These return strides in elements, with 0 replaced by the value it stands for. */
static inline int64_t cairn_attn_dense_q_stride(const struct cairn_attn_dense_args *a)
{
	return a->q_stride ? a->q_stride : (int64_t)a->num_qo_heads * a->qk_dim;
}

static inline int64_t cairn_attn_dense_k_head_stride(const struct cairn_attn_dense_args *a)
{
	return a->k_head_stride ? a->k_head_stride : a->qk_dim;
}

static inline int64_t cairn_attn_dense_v_head_stride(const struct cairn_attn_dense_args *a)
{
	return a->v_head_stride ? a->v_head_stride : a->v_dim;
}

static inline int64_t cairn_attn_dense_k_stride(const struct cairn_attn_dense_args *a)
{
	return a->k_stride ? a->k_stride : a->num_kv_heads * cairn_attn_dense_k_head_stride(a);
}

static inline int64_t cairn_attn_dense_v_stride(const struct cairn_attn_dense_args *a)
{
	return a->v_stride ? a->v_stride : a->num_kv_heads * cairn_attn_dense_v_head_stride(a);
}

#endif
