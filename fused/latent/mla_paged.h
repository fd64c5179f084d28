/* SPDX-License-Identifier: Apache-2.0 */
/*
 * mla_paged - attention over a paged cache of latents with absorbed weights, for prefill and mixed batches
 *
 *   ql[i,h]  = q[i,h,:nope_dim] w_kv_b[h,:nope_dim,:]                         nope_dim -> kv_lora_rank
 *   s[i,h,j] = sm_scale * (dot(ql[i,h], c[j]) + dot(q[i,h,nope_dim:], r[j]))
 *   o[i,h]   = sum_j softmax_j(s)[i,h,j] c[j]
 *   out[i,h] = w_kv_b[h,nope_dim:,:] o[i,h]                                   kv_lora_rank -> v_dim
 *
 * over the keys j that row i sees (attn_paged.h, causal); (c, r)[j] is key j of the row's request. This
 * equals attention with keys (w_kv_b[h,:nope_dim,:] c[j], r[j]) and values w_kv_b[h,nope_dim:,:] c[j].
 *
 *   argument          dtype  shape                                             notes
 *   out               dtype  [nnz_qo, num_heads, v_dim]                        out, may not alias q
 *   q                 dtype  [nnz_qo, num_heads, nope_dim + rope_dim]          in, rotated
 *   w_kv_b            dtype  [num_heads, nope_dim + v_dim, kv_lora_rank]       in
 *   qo_indptr, max_qo_len                                                      as in attn_paged.h
 *   kv                struct cairn_kv_view                                     in, kv_view.h
 *     k_pages         dtype  [num_pages, page_size, kv_lora_rank + rope_dim]   in; v_pages is NULL
 *   workspace                [workspace_bytes]                                 256-byte aligned, undefined
 *   lse               f32    [nnz_qo, num_heads]                               out, optional (NULL), 4-byte
 *                                                                              aligned
 *
 * lse[i,h] = ln sum_j exp(s[i,h,j]); with it, attn_merge.h can merge results over several sets of keys.
 * Arrays are row-major without gaps; pointers of dtype are 16-byte aligned. nnz_qo, max_qo_len and kv.max_len
 * are upper bounds; rows past qo_indptr[kv.batch] become 0, and their lse -INFINITY. w_kv_b counts as a
 * weight (gemm.h).
 *
 * sms:         as in gemm.h.
 * Supported:   dtype f16, bf16; kv_lora_rank 512, rope_dim 64, nope_dim 128, v_dim 128; num_heads 1..128; any
 *              page_size >= 1. Anything else -EOPNOTSUPP. kv.batch 0 and nnz_qo 0 do nothing:
 *              without requests, not even the rows past them are written.
 * Numerics:    ql, P and o are rounded to dtype; products are exact, sums in fp32; out is rounded once. A row
 *              that sees no key is 0, and its lse -INFINITY. sm_scale is finite and > 0.
 * Not numbers: a NaN or an infinity in a query leaves its own row and head undefined; one in a key leaves all
 *              rows of its request undefined. All other results are unaffected.
 * Tolerance:   derived in mla_paged_ref.c.
 * Determinism: bitwise repeatable. A row's result depends on its own request only, but the grouping of its
 *              sums may depend on the three bounds, on kv.batch and on sms.
 * Unused memory: as in attn_paged.h.
 * Errors:      -EINVAL, -EOPNOTSUPP, -EIO.
 * Source:      DeepSeek-V2 2024, section 2.1 and appendix C.
 */
#ifndef CAIRN_MLA_PAGED_H
#define CAIRN_MLA_PAGED_H

#include <stddef.h>
#include <stdint.h>

#include "fused/cache/kv_view.h"

struct cairn_exact;

struct cairn_mla_paged_args {
	size_t size;
	void *out;
	const void *q, *w_kv_b;
	const int32_t *qo_indptr;
	struct cairn_kv_view kv;
	void *workspace;
	size_t workspace_bytes;
	int32_t nnz_qo, max_qo_len;
	int32_t num_heads, kv_lora_rank, nope_dim, rope_dim, v_dim;
	int32_t dtype;
	float sm_scale;
	int32_t sms;			/* SMs that the call may use at a time; 0: all */
	/* added later: if `size` does not include lse, it counts as NULL */
	float *lse;
};

/* `size` of callers from before lse existed; it may include padding after `sms` */
#define CAIRN_MLA_PAGED_FIRST_BYTES	offsetof(struct cairn_mla_paged_args, lse)

#ifdef __cplusplus
extern "C" {
#endif

int cairn_mla_paged(const struct cairn_mla_paged_args *args, void *stream);
int cairn_mla_paged_workspace(const struct cairn_mla_paged_args *args, size_t *bytes);
int cairn_mla_paged_cpu(const struct cairn_mla_paged_args *args, void *stream);
int cairn_mla_paged_ref(const struct cairn_mla_paged_args *args, void *stream);
/*
 * Sets exact[0] for out and exact[1] for lse (if not NULL). Above 2^30 products it computes only a fixed
 * sample of the rows; the others need only be finite.
 */
int cairn_mla_paged_exact(const struct cairn_mla_paged_args *args, struct cairn_exact *exact);
/* Returns 0, or the error that all of our tables return for these arguments; reads no array. */
int cairn_mla_paged_check(const struct cairn_mla_paged_args *args);
/* The part of cairn_mla_paged_check() that reads only the scalars. */
int cairn_mla_paged_check_shape(const struct cairn_mla_paged_args *args);

#ifdef __cplusplus
}
#endif
#endif
