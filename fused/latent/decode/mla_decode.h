/* SPDX-License-Identifier: Apache-2.0 */
/*
 * mla_decode - attention of absorbed queries over a paged cache of latents, for decoding and few new tokens
 *
 *   s[i,h,j] = sm_scale * (dot(q_latent[i,h], c[j]) + dot(q_rope[i,h], r[j]))
 *   out[i,h] = sum_j softmax_j(s)[i,h,j] c[j]
 *   lse[i,h] = ln sum_j exp(s[i,h,j])
 *
 * over the keys j that row i sees (attn_paged.h, causal); (c, r)[j] is key j of the row's request. If
 * num_slots > 0, row i instead sees the keys in the slots slots[i,:] of the pool, wherever these are.
 *
 *   argument          dtype  shape                                             notes
 *   out               dtype  [nnz_qo, num_heads, kv_lora_rank]                 out, may not alias an input
 *   lse               f32    [nnz_qo, num_heads]                               out, optional (NULL)
 *   q_latent          dtype  [nnz_qo, num_heads, kv_lora_rank]                 in, absorbed (mla_paged.h: ql)
 *   q_rope            dtype  [nnz_qo, num_heads, rope_dim]                     in, rotated
 *   qo_indptr, max_qo_len                                                      as in attn_paged.h
 *   kv                struct cairn_kv_view                                     in, kv_view.h; v_pages is NULL
 *     k_pages         dtype  [num_pages, page_size, kv_lora_rank + rope_dim]   in, unless kv_fp8
 *     k_pages         bytes  [num_pages, page_size, 656]                       in, if kv_fp8 (below)
 *   slots             int32  [nnz_qo, num_slots]                               in, if num_slots > 0
 *   workspace                [workspace_bytes]                                 256-byte aligned, undefined
 *
 * Row (i, h) of q_latent begins q_latent_stride elements after row (i, h - 1), or after the last head of
 * token i - 1; q_rope likewise. A stride of 0 means that there is no gap. Both may be parts of one array with
 * rows of 576 elements. Strides are multiples of 8. The other arrays are row-major without gaps. k_pages and
 * the pointers of dtype are 16-byte aligned, the other pointers 4-byte.
 *
 * kv_fp8: a key is 656 bytes: 512 codes in e4m3, four f32 scales, rope_dim elements of dtype. c[l] is code l
 * times scale l / 128, rounded to dtype; the scales are finite.
 *
 * slots: a number s >= 0 stands for slot s % page_size of page s / page_size; a number below 0 stands for no
 * key. A slot that a row lists twice counts twice. kv.indptr, kv.indices and kv.last_page_len are not read
 * and may be NULL; kv.max_len is ignored.
 *
 * nnz_qo, max_qo_len and kv.max_len are upper bounds; rows past qo_indptr[kv.batch] become 0, and their lse
 * -INFINITY.
 *
 * sms:         as in gemm.h.
 * Supported:   dtype f16, bf16; kv_lora_rank 512, rope_dim 64; num_heads 1..128; any page_size >= 1;
 *              num_slots <= 2^20. Anything else -EOPNOTSUPP. kv.batch 0 and nnz_qo 0 do nothing: without
 *              requests, not even the rows past them are written.
 * Numerics:    P is rounded to dtype; products are exact, sums in fp32; out is rounded once. A row that sees
 *              no key is 0, and its lse -INFINITY. sm_scale is finite and > 0.
 * Not numbers: a NaN or an infinity in a query leaves its own row and head undefined; one in a key leaves all
 *              rows of its request undefined, or, with `slots`, all rows that list the key. All other results
 *              are unaffected.
 * Tolerance:   derived in mla_decode_ref.c.
 * Determinism: bitwise repeatable. A row's result depends on its own request only, but the grouping of its
 *              sums may depend on the bounds, on kv.batch and on sms.
 * Unused memory: as in attn_paged.h; with `slots`, slots that no row lists may hold NaN.
 * Errors:      -EINVAL, -EOPNOTSUPP, -EIO.
 * Source:      DeepSeek-V2 2024, section 2.1 and appendix C; DeepSeek-V3.2 2025 for lists of slots.
 */
#ifndef CAIRN_LATENT_DECODE_H
#define CAIRN_LATENT_DECODE_H

#include <stddef.h>
#include <stdint.h>

#include "fused/cache/kv_view.h"

#define CAIRN_MLA_FP8_BYTES	656	/* bytes of a key if kv_fp8 */
#define CAIRN_MLA_FP8_GROUP	128	/* codes that share a scale */
#define CAIRN_MLA_MAX_SLOTS	(1 << 20)

struct cairn_exact;

struct cairn_mla_decode_args {
	size_t size;
	void *out;
	float *lse;
	const void *q_latent, *q_rope;
	const int32_t *qo_indptr, *slots;
	struct cairn_kv_view kv;
	void *workspace;
	size_t workspace_bytes;
	int64_t q_latent_stride, q_rope_stride;
	int32_t nnz_qo, max_qo_len;
	int32_t num_heads, kv_lora_rank, rope_dim, num_slots;
	int32_t dtype, kv_fp8;
	float sm_scale;
	int32_t sms;			/* SMs that the call may use at a time; 0: all */
};

#ifdef __cplusplus
extern "C" {
#endif

int cairn_mla_decode(const struct cairn_mla_decode_args *args, void *stream);
int cairn_mla_decode_workspace(const struct cairn_mla_decode_args *args, size_t *bytes);
int cairn_mla_decode_cpu(const struct cairn_mla_decode_args *args, void *stream);
int cairn_mla_decode_ref(const struct cairn_mla_decode_args *args, void *stream);
/*
 * Sets exact[0] for out and exact[1] for lse (if not NULL). Above 2^30 products it computes only a fixed
 * sample of the rows; the others need only be finite.
 */
int cairn_mla_decode_exact(const struct cairn_mla_decode_args *args, struct cairn_exact *exact);
/* The same for a table that rounds the partial results of split keys to dtype. */
int cairn_mla_decode_peer_exact(const struct cairn_mla_decode_args *args, struct cairn_exact *exact);
/* Returns 0, or the error that all of our tables return for these arguments; reads no array. */
int cairn_mla_decode_check(const struct cairn_mla_decode_args *args);
/* The part of cairn_mla_decode_check() that reads only the scalars. */
int cairn_mla_decode_check_shape(const struct cairn_mla_decode_args *args);

#ifdef __cplusplus
}
#endif

/* Elements from one row of the queries to the next. */
static inline int64_t cairn_mla_latent_stride(const struct cairn_mla_decode_args *a)
{
	return a->q_latent_stride ? a->q_latent_stride : a->kv_lora_rank;
}

static inline int64_t cairn_mla_rope_stride(const struct cairn_mla_decode_args *a)
{
	return a->q_rope_stride ? a->q_rope_stride : a->rope_dim;
}

#endif
