/* SPDX-License-Identifier: Apache-2.0 */
/*
 * attn_dense_shared - attn_dense for keys whose last elements all heads share, as in latent attention
 *
 * The rotated part of a latent key is the same for all heads. attn_dense.h requires a copy of it in the
 * key of each head; here it is a separate matrix, which the producer fetches beside K.
 */
#ifndef CAIRN_ATTN_DENSE_SHARED_H
#define CAIRN_ATTN_DENSE_SHARED_H

#include "fused/attention/dense/attn_dense.h"

#define ATTN_DENSE_SHARED	64	/* shared elements of a key */

/*
 * As cairn_attn_dense(), but the last 64 elements of the keys in row j of K are row j of `shared`: an array
 * [nnz_kv, 64] of dtype, packed and 16-byte aligned. The last 64 elements of each key in args->k are not read
 * and may be anything. qk_dim is 192 and v_dim 128. The last request has no key, and the caller must have
 * zeroed the first 4 bytes of the workspace, on the stream. If shared is NULL, this is cairn_attn_dense().
 */
int attn_dense_with_shared(const struct cairn_attn_dense_args *args, const void *shared, void *stream);

#endif
