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

/*
 * As cairn_block_attn(), without the last rounding of out, k and v. If err is NULL in all three: values only.
 */
int cairn_block_attn_unrounded(const struct cairn_cluster_attn_args *a, int b, struct block_row x,
			       struct block_row out, struct block_row k, struct block_row v);

#endif
