/* SPDX-License-Identifier: Apache-2.0 */
/*
 * mla_prefill - attention of prompts over a paged cache of latents, which it first expands to keys and values
 *
 *   k[j,h]   = (w_kv_b[h,:nope_dim,:] c[j], r[j])                             kv_lora_rank -> nope_dim
 *   v[j,h]   = w_kv_b[h,nope_dim:,:] c[j]                                     kv_lora_rank -> v_dim
 *   s[i,h,j] = sm_scale * dot(q[i,h,:], k[j,h])
 *   out[i,h] = sum_j softmax_j(s)[i,h,j] v[j,h]
 *   lse[i,h] = ln sum_j exp(s[i,h,j])
 *
 * over the keys j that row i sees (attn_paged.h, causal); (c, r)[j] is key j of the row's request. mla_paged
 * computes the same results from the latents themselves. For each head, mla_paged takes 2 * (576 + 512)
 * operations for each pair of query and key; mla_prefill takes 2 * (192 + 128), and 2 * 256 * 512 more to
 * expand each key. mla_prefill is faster for requests of 128 rows or more, and for shorter prompts that do
 * not have many keys before them.
 *
 *   argument          dtype  shape                                             notes
 *   out               dtype  [nnz_qo, num_heads, v_dim]                        out, may not alias q
 *   lse               f32    [nnz_qo, num_heads]                               out, optional (NULL), 4-byte
 *                                                                              aligned
 *   q                 dtype  [nnz_qo, num_heads, nope_dim + rope_dim]          in, rotated
 *   w_kv_b            dtype  [num_heads, nope_dim + v_dim, kv_lora_rank]       in
 *   qo_indptr         int32  [kv.batch + 1]                                    in, ascending
 *   kv                struct cairn_kv_view                                     in, kv_view.h
 *     k_pages         dtype  [num_pages, page_size, kv_lora_rank + rope_dim]   in; v_pages is NULL
 *   workspace                [workspace_bytes]                                 256-byte aligned, undefined
 *
 * Request b owns the rows qo_indptr[b] - qo_indptr[0] .. qo_indptr[b+1] - qo_indptr[0] - 1. So a call can
 * take only the last requests of a batch: the caller advances the pointers to rows and to index arrays.
 * Arrays are row-major without gaps; pointers of dtype are 16-byte aligned. nnz_qo, max_qo_len, nnz_past and
 * kv.max_len are upper bounds over the batch; rows past the last request become 0, and their lse -INFINITY.
 * w_kv_b counts as a weight (gemm.h).
 *
 * Chunks:      the first kv_len - qo_len keys of a request are its past keys, the others its new keys.
 *              nnz_past is an upper bound of the number of past keys of all requests together. If it is at
 *              most chunk_keys, past and new keys are expanded together, as the only part. Otherwise the new
 *              keys are one part, and the past keys are divided, request after request, into parts of
 *              chunk_keys. The parts are expanded one after the other, and their results are merged
 *              (attn_merge.h). The workspace holds up to nnz_qo + chunk_keys expanded keys and the results of
 *              some parts. chunk_keys 0 means as many as fit CAIRN_MLA_PREFILL_BYTES, but at least 1024.
 * sms:         as in gemm.h.
 * Supported:   dtype f16, bf16; kv_lora_rank 512, rope_dim 64, nope_dim 128, v_dim 128; num_heads 1..128; any
 *              page_size >= 1; nnz_qo, nnz_past and chunk_keys below 2^30, nnz_qo * num_heads below 2^31.
 *              Anything else -EOPNOTSUPP. kv.batch 0 and nnz_qo 0 do nothing:
 *              without requests, not even the rows past them are written.
 * Numerics:    k, v and P are rounded to dtype; products are exact, sums in fp32; out is rounded once. If
 *              there are several parts, the result of each is rounded to dtype before it is merged. Parts may
 *              be merged in groups of 4 or more, and then each group's result is rounded to dtype, too. A row
 *              that sees no key is 0, and its lse -INFINITY. sm_scale is finite and > 0.
 * Not numbers: a NaN or an infinity in a query leaves its own row and head undefined; one in a key leaves all
 *              rows of its request undefined. All other results are unaffected.
 * Tolerance:   derived in mla_prefill_ref.c.
 * Determinism: bitwise repeatable. A row's result depends on its own request only, but the grouping of its
 *              sums may depend on the bounds, on kv.batch, on sms and, where there are several parts, on the
 *              number of past keys of the requests before it.
 * Unused memory: as in attn_paged.h.
 * Errors:      -EINVAL, -EOPNOTSUPP, -EIO.
 * Source:      DeepSeek-V2 2024, section 2.1.
 */
#ifndef CAIRN_MLA_PREFILL_H
#define CAIRN_MLA_PREFILL_H

#include <stddef.h>
#include <stdint.h>

#include "fused/cache/kv_view.h"

#define CAIRN_MLA_PREFILL_BYTES	(256 << 20)

struct cairn_exact;

struct cairn_mla_prefill_args {
	size_t size;
	void *out;
	float *lse;
	const void *q, *w_kv_b;
	const int32_t *qo_indptr;
	struct cairn_kv_view kv;
	void *workspace;
	size_t workspace_bytes;
	int32_t nnz_qo, max_qo_len;
	int32_t nnz_past, chunk_keys;
	int32_t num_heads, kv_lora_rank, nope_dim, rope_dim, v_dim;
	int32_t dtype;
	float sm_scale;
	int32_t sms;			/* SMs that the call may use at a time; 0: all */
};

#ifdef __cplusplus
extern "C" {
#endif

int cairn_mla_prefill(const struct cairn_mla_prefill_args *args, void *stream);
int cairn_mla_prefill_workspace(const struct cairn_mla_prefill_args *args, size_t *bytes);
int cairn_mla_prefill_cpu(const struct cairn_mla_prefill_args *args, void *stream);
int cairn_mla_prefill_ref(const struct cairn_mla_prefill_args *args, void *stream);
/* Sets exact[0] for out and exact[1] for lse (if not NULL); otherwise as cairn_attn_paged_exact(). */
int cairn_mla_prefill_exact(const struct cairn_mla_prefill_args *args, struct cairn_exact *exact);
/* Returns 0, or the error that all of our tables return for these arguments; reads no array. */
int cairn_mla_prefill_check(const struct cairn_mla_prefill_args *args);
/* The part of cairn_mla_prefill_check() that reads only the scalars. */
int cairn_mla_prefill_check_shape(const struct cairn_mla_prefill_args *args);

#ifdef __cplusplus
}
#endif

/* Returns chunk_keys, with 0 replaced by the value it stands for. */
static inline int32_t cairn_mla_prefill_chunk(const struct cairn_mla_prefill_args *a)
{
	int32_t held = CAIRN_MLA_PREFILL_BYTES / (a->num_heads * (a->nope_dim + a->v_dim) * 2);

	return a->chunk_keys ? a->chunk_keys : held > 1024 ? held : 1024;
}

/* Returns the number of parts. */
static inline int32_t cairn_mla_prefill_parts(const struct cairn_mla_prefill_args *a)
{
	int32_t chunk = cairn_mla_prefill_chunk(a);

	return a->nnz_past <= chunk ? 1 : 1 + (a->nnz_past - 1) / chunk + 1;
}

#endif
