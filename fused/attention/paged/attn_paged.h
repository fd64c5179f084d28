/* SPDX-License-Identifier: Apache-2.0 */
/*
 * attn_paged - attention over a paged KV cache (decode, append and prefill)
 *
 *   out[i,h,:] = sum_j p[j] * v_scale[g] * v[j,g,:],   p = softmax_j(s[j])
 *   lse[i,h]   = ln sum_j exp(s[j])
 *   s[j]       = x[j] without a softcap, softcap * tanh(x[j] / softcap) with one
 *   x[j]       = sm_scale * k_scale[g] * dot(q[i,h,:], k[j,g,:])
 *   g          = h / (num_qo_heads / num_kv_heads)
 *
 * Request b owns the qo_len query rows qo_indptr[b] .. qo_indptr[b+1]-1 and kv_len keys; kv_view.h defines
 * where in the pages they lie. Query row i has
 *
 *   position   = i - qo_indptr[b] + kv_len - qo_len    so that the last query sees the last key
 *
 * Row i sees the keys j < kv_len; with causal, only those with j <= position; with a window > 0, only those
 * with j > position - window, that is, its own key, the window - 1 keys before it and, without causal, all
 * keys behind it.
 *
 *   argument          dtype  shape                                           notes
 *   out               dtype  [nnz_qo, num_qo_heads, head_dim]                out, may not alias q
 *   lse               f32    [nnz_qo, num_qo_heads]                          out, optional (NULL)
 *   q                 dtype  [nnz_qo, num_qo_heads, head_dim]                in, row i at i * q_stride
 *   qo_indptr         int32  [kv.batch + 1]                                  in, ascending from 0
 *   kv                struct cairn_kv_view                                   in, kv_view.h; pages of dtype,
 *                                                                            or of e4m3 with kv_fp8
 *   k_scale, v_scale  f32    [num_kv_heads]                                  in, optional (1), > 0; with
 *                                                                            kv_fp8
 *   workspace                [workspace_bytes]                               256-byte aligned
 *
 * out, q and the pages are 16-byte aligned. q_stride is in elements, a multiple of 8 and at least
 * num_qo_heads * head_dim; 0 means exactly num_qo_heads * head_dim. workspace_bytes comes from
 * attn_paged_workspace(); if that is 0, workspace may be NULL. The contents of the index arrays are not
 * checked.
 *
 * nnz_qo, max_qo_len and kv.max_len are upper bounds over the batch, and nnz_kv is one of the sum of kv_len
 * (0: unknown). With nnz_kv, a batch of a few long requests among many short ones is faster, since the long
 * ones are cut into more pieces, or the keys of all into equal shares. The host reads the bounds to lay out
 * the grid; only the device reads the index arrays, so a captured graph also serves other lengths within the
 * same bounds. Rows past qo_indptr[kv.batch] are neither read nor written. A request may have no query or no
 * key. With causal, it may have more queries than keys; its first rows then see no key.
 *
 * Plan:        a call with planned 0 leaves in the workspace how it was divided. A call with planned 1 may
 *              use this instead of making its own plan, so that the layers of a model share one. It must have
 *              the same workspace, the same scalars except sm_scale and softcap, and index arrays of the same
 *              contents, wherever they lie; nothing else may have written to the workspace, but other calls
 *              may have been made in other workspaces. out, lse, q, the pages and the
 *              scales may be others. A table may ignore `planned`.
 * sms:         as in gemm.h.
 * Supported:   dtype f16, bf16; head_dim 64, 128, 256; num_qo_heads any multiple of num_kv_heads; any
 *              page_size >= 1; any window >= 0 (0: none), causal or not; kv_fp8 0 or 1. Anything else
 *              -EOPNOTSUPP.
 *              kv.batch 0 and nnz_qo 0 are legal and do nothing.
 * Numerics:    products exact, sums in fp32; the sum of p takes unrounded p, P is rounded to dtype before
 *              P*V, out is rounded once. Magnitudes below 2^-126 may be flushed to 0. A row that sees no key
 *              has lse -INFINITY and an all-zero output. sm_scale is finite and > 0. Equal, all-negative and
 *              very large logits are legal as long as q.k, before and after the scale, fits fp32;
 *              kv_len * max |v| must fit fp32 too. softcap is finite and >= 0 (0: none); the absolute error
 *              of tanh is at most 4 * 2^-23. If q and k are integers and sum |q k| <= 2^24, q.k is exact. If
 *              all logits of a row are 0, its P is 1. With kv_fp8, e4m3 is converted exactly, subnormal
 *              codes included, and each scale adds a rounding in fp32; out times v_scale must fit fp32.
 * Not numbers: a NaN or an infinity in a query leaves its own row and head undefined; one in a key or a value
 *              that a row sees leaves the rows of its request undefined, in the heads that share the KV head.
 *              All other results are unaffected.
 * Tolerance:   derived in attn_exact.c from the above; about 2^-8 (bf16) or 2^-11 (f16) of
 *              sum_j p[j] |v[j]|, plus the same fraction of |out|.
 * Determinism: bitwise repeatable for equal arguments. A row's result depends on its own request only, but
 *              the grouping of its sums may depend on the four bounds, on kv.batch, on sms, on whether the
 *              stream has a part of the device (stream_create_part in abi.h) and, with nnz_kv, on the
 *              lengths of all requests.
 * Unused memory: slots past last_page_len, unlisted pages, keys outside every row's window, and gaps
 *              between rows may hold NaN and never reach a result. Keys outside the windows cost no time,
 *              except in tiles that a window covers only in part.
 * Errors:      -EINVAL (null pointer, misaligned, negative or contradictory size), -EOPNOTSUPP, -EIO.
 * Source:      Dao 2023 (FlashAttention-2), algorithm 1; Kwon et al. 2023 (paging).
 */
#ifndef CAIRN_ATTN_PAGED_H
#define CAIRN_ATTN_PAGED_H

#include <stddef.h>
#include <stdint.h>

#include "fused/cache/kv_view.h"

struct cairn_exact;

struct cairn_attn_paged_args {
	size_t size;
	void *out;
	float *lse;
	const void *q;
	const int32_t *qo_indptr;
	struct cairn_kv_view kv;
	void *workspace;
	size_t workspace_bytes;
	int64_t q_stride;
	int32_t nnz_qo, max_qo_len;
	int32_t num_qo_heads, num_kv_heads, head_dim;
	int32_t dtype, causal;
	float sm_scale;
	int32_t window;			/* keys that a row may see, its own included; 0: all */
	float softcap;			/* in units of a logit; 0: none */
	int32_t sms;			/* SMs that the call may use at a time; 0: all */
	const float *k_scale, *v_scale;
	int32_t kv_fp8;			/* 1: the pages hold e4m3 */
	int32_t planned;		/* 1: the workspace holds the plan of these requests */
	int64_t nnz_kv;			/* keys of all requests together, at most; 0: unknown */
};

#ifdef __cplusplus
extern "C" {
#endif

int cairn_attn_paged(const struct cairn_attn_paged_args *args, void *stream);
int cairn_attn_paged_workspace(const struct cairn_attn_paged_args *args, size_t *bytes);
int cairn_attn_paged_cpu(const struct cairn_attn_paged_args *args, void *stream);
int cairn_attn_paged_ref(const struct cairn_attn_paged_args *args, void *stream);
/*
 * Sets exact[0] for out and exact[1] for lse (if not NULL); rows past qo_indptr[kv.batch] keep their values.
 * Above 2^30 products in q.k it computes only a fixed sample of the rows (see attn_batch_exact.c).
 */
int cairn_attn_paged_exact(const struct cairn_attn_paged_args *args, struct cairn_exact *exact);
/* Returns 0, or the error that all of our tables return for these arguments; reads no array. */
int cairn_attn_paged_check(const struct cairn_attn_paged_args *args);
/* The part of cairn_attn_paged_check() that reads only the scalars, for workspace queries. */
int cairn_attn_paged_check_shape(const struct cairn_attn_paged_args *args);

#ifdef __cplusplus
}
#endif
#endif
