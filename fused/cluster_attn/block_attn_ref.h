/* SPDX-License-Identifier: Apache-2.0 */
/* block_attn_ref - the fused attention block of one request in double; decode_step's reference chains it */
#ifndef CAIRN_BLOCK_ATTN_REF_H
#define CAIRN_BLOCK_ATTN_REF_H

#include "fused/block/block_ref.h"
#include "fused/cluster_attn/cluster_attn.h"

/*
 * Computes request b of a with its row of x taken from `x` (a->x and a->out are not accessed): out [hidden],
 * and the k and v [num_kv_heads * head_dim] that are appended to the cache, all rounded. Reads the pages
 * except the slot of the new token. The request must have a key. Returns -ENOMEM without memory.
 */
int cairn_block_attn(const struct cairn_cluster_attn_args *a, int b, struct block_row x, struct block_row out,
		     struct block_row k, struct block_row v);

/* The same before the last rounding of out, k and v. If err is NULL in all three, computes values only. */
int cairn_block_attn_unrounded(const struct cairn_cluster_attn_args *a, int b, struct block_row x,
			       struct block_row out, struct block_row k, struct block_row v);

/* kv_len of request b, and the element of the pages at which its key j begins. */
static inline int block_kv_len(const struct cairn_cluster_attn_args *a, int b)
{
	int pages = a->kv_indptr[b + 1] - a->kv_indptr[b];

	return pages ? (pages - 1) * a->page_size + a->kv_last_page_len[b] : 0;
}

static inline int64_t block_key_at(const struct cairn_cluster_attn_args *a, int b, int j)
{
	int64_t page = a->kv_indices[a->kv_indptr[b] + j / a->page_size];

	return (page * a->page_size + j % a->page_size) * a->num_kv_heads * a->head_dim;
}

#endif
