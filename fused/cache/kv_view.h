/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kv_view - the paged KV cache as operations see it: memory, page lists and lengths of a batch
 *
 * Request b owns the pages indices[indptr[b]] .. indices[indptr[b+1] - 1] and, among them,
 *   kv_len[b] = (indptr[b+1] - indptr[b] - 1) * page_size + last_page_len[b]  (0 without a page)
 * keys. Key j lies in page indices[indptr[b] + j / page_size], slot j % page_size.
 *
 *   member            dtype  shape                                           notes
 *   k_pages, v_pages  dtype  [num_pages, page_size, num_kv_heads, head_dim]  NHD, 16-byte aligned; with the
 *                                                                            operation's kv_fp8: e4m3, where
 *                                                                            a code c of head g stands for
 *                                                                            c * k_scale[g], c * v_scale[g]
 *   k_pages           dtype  [num_pages, page_size, kv_lora_rank + rope_dim] latent attention, 16-byte
 *                                                                            aligned; v_pages is NULL
 *   indptr            int32  [batch + 1]                                     ascending, in pages; a view of
 *                                                                            some requests of a longer list
 *                                                                            need not begin at 0
 *   indices           int32  [indptr[batch]]                                 0 <= id < num_pages; ids may
 *                                                                            repeat
 *   last_page_len     int32  [batch]                                         0 .. page_size; ignored without
 *                                                                            a page
 *
 * The other numbers of the geometry (dtype, heads, dimensions, scales) belong to the operation. Slots past
 * last_page_len and pages that no list names may hold NaN: no operation reads them into a result. The host
 * reads the scalars. Only the device reads the arrays, so a captured graph also serves other lists and
 * lengths, within the bounds batch and max_len. The contents of the arrays are not checked.
 */
#ifndef CAIRN_KV_VIEW_H
#define CAIRN_KV_VIEW_H

#include <stdint.h>

struct cairn_kv_view {
	void *k_pages, *v_pages;
	const int32_t *indptr, *indices, *last_page_len;
	int32_t num_pages, page_size;	/* page_size in tokens */
	int32_t batch;			/* requests */
	int32_t max_len;		/* an upper bound of kv_len; ignored by operations that only append */
};

/* kv_len of request b; for arrays in host memory. */
static inline int64_t cairn_kv_len(const struct cairn_kv_view *kv, int32_t b)
{
	int32_t pages = kv->indptr[b + 1] - kv->indptr[b];

	return pages > 0 ? (int64_t)(pages - 1) * kv->page_size + kv->last_page_len[b] : 0;
}

/* The slot, counted from page 0 on, of key j of request b; for arrays in host memory. */
static inline int64_t cairn_kv_slot(const struct cairn_kv_view *kv, int32_t b, int64_t j)
{
	return (int64_t)kv->indices[kv->indptr[b] + j / kv->page_size] * kv->page_size + j % kv->page_size;
}

/* The view of request b alone. */
static inline struct cairn_kv_view cairn_kv_one(struct cairn_kv_view kv, int32_t b)
{
	kv.indptr += b;
	kv.last_page_len += b;
	kv.batch = 1;
	return kv;
}

#endif
