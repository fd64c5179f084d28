/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kv_append - writes new keys and values into a paged KV cache
 *
 * Request b owns the rows qo_indptr[b] .. qo_indptr[b+1]-1 and, after the append, kv_len[b] keys:
 *
 *   kv_len  = (kv_indptr[b+1] - kv_indptr[b] - 1) * page_size + kv_last_page_len[b], or 0 without a page
 *   key     = kv_len - qo_len + i               number of the key that the request's i-th new row becomes
 *   page    = kv_indices[kv_indptr[b] + key / page_size], slot key % page_size
 *
 *   argument          dtype  shape                                           notes
 *   k_pages, v_pages  dtype  [num_pages, page_size, num_kv_heads, head_dim]  out (new rows only), NHD
 *   k, v              dtype  [nnz_qo, num_kv_heads, head_dim]                in, row i at i * stride
 *   qo_indptr         int32  [batch + 1]                                     in, ascending from 0
 *   kv_indptr         int32  [batch + 1]                                     in, ascending, in pages
 *   kv_indices        int32  [kv_indptr[batch]]                              in, 0 <= id < num_pages
 *   kv_last_page_len  int32  [batch]                                         in, 0..page_size
 *
 * k, v and the pages are 16-byte aligned. Strides are in elements, multiples of 8 and at least
 * num_kv_heads * head_dim; 0 means exactly num_kv_heads * head_dim. kv_last_page_len of a request without
 * pages is ignored. nnz_qo is an upper bound: rows past qo_indptr[batch] are ignored, so one captured graph
 * serves smaller batches. Not checked: the contents of the index arrays; qo_len <= kv_len; that no slot is
 * written twice (page ids may repeat as long as only old keys are shared).
 *
 * Supported:   dtype f16, bf16, f32; head_dim a multiple of 8; any page_size >= 1. Anything else
 *              -EOPNOTSUPP. batch 0 and nnz_qo 0 are legal and do nothing.
 * Numerics:    an exact copy, NaN included; nothing else in the pages is read or changed.
 * Determinism: bitwise repeatable.
 * Errors:      -EINVAL (null pointer, misaligned, negative or contradictory size), -EOPNOTSUPP, -EIO.
 */
#ifndef CAIRN_KV_APPEND_H
#define CAIRN_KV_APPEND_H

#include <stddef.h>
#include <stdint.h>

struct cairn_exact;

struct cairn_kv_append_args {
	size_t size;
	void *k_pages, *v_pages;
	const void *k, *v;
	const int32_t *qo_indptr, *kv_indptr, *kv_indices, *kv_last_page_len;
	int64_t k_stride, v_stride;
	int32_t batch, nnz_qo, num_pages, page_size, num_kv_heads, head_dim;
	int32_t dtype;
};

#ifdef __cplusplus
extern "C" {
#endif

int cairn_kv_append(const struct cairn_kv_append_args *args, void *stream);
int cairn_kv_append_cpu(const struct cairn_kv_append_args *args, void *stream);
int cairn_kv_append_ref(const struct cairn_kv_append_args *args, void *stream);
/* exact[0]: k_pages, exact[1]: v_pages; entries of slots that are not written keep their values */
int cairn_kv_append_exact(const struct cairn_kv_append_args *args, struct cairn_exact *exact);
/* Returns 0, or the error that all of our tables return for these arguments; reads no array. */
int cairn_kv_append_check(const struct cairn_kv_append_args *args);

#ifdef __cplusplus
}
#endif
#endif
