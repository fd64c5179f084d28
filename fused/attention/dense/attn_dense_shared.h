/* SPDX-License-Identifier: Apache-2.0 */
/*
 * attn_dense_shared - attn_dense with keys whose last elements all heads share, for latent attention
 *
 * The rotated part of a latent key is the same for all heads. attn_dense.h wants it in the key of each head;
 * here it is a matrix of its own, which the producer fetches beside K.
 */
#ifndef CAIRN_ATTN_DENSE_SHARED_H
#define CAIRN_ATTN_DENSE_SHARED_H

#include "fused/attention/dense/attn_dense.h"

#define ATTN_DENSE_SHARED	64	/* shared elements of a key */

/*
 * As cairn_attn_dense(), whose arguments it takes, with qk_dim 192 and v_dim 128: the last 64 elements of the
 * keys of row j are those of row j of `shared`, [nnz_kv, 64] of dtype, packed, 16-byte aligned. Those in
 * args->k are not read, and may be anything. The caller has zeroed the first 4 bytes of the workspace, on the
 * stream. shared NULL: none are shared, any dimensions, and the workspace is undefined.
 */
int attn_dense_with_shared(const struct cairn_attn_dense_args *args, const void *shared, void *stream);

#endif
