/* SPDX-License-Identifier: Apache-2.0 */
/*
 * attn_bsr_walk - finds on the host which keys a token of attn_bsr sees, and where they lie
 *
 * attn_cover_new() finds, for each part, the block row of each token and the token's ordinal in it.
 */
#ifndef CAIRN_ATTN_BSR_WALK_H
#define CAIRN_ATTN_BSR_WALK_H

#include <stdint.h>

#include "fused/attention/bsr/attn_bsr.h"
#include "fused/attention/base/attn_exact.h"

/*
 * A token's place in a part: its block row (-1: none), its ordinal in the row, and the row's number of
 * tokens.
 */
struct attn_cover {
	int32_t row, ordinal, num;
};

/* Returns an array [num_parts][nnz_qo], which the caller frees with free(); NULL: no memory. */
struct attn_cover *attn_cover_new(const struct cairn_attn_bsr_args *a);
/* Returns the number of keys in the list of a row for a KV head. */
int64_t attn_bsr_list_len(const struct cairn_attn_part *p, int32_t row, int32_t kv_head);
/* Returns key n of that list. */
struct attn_key attn_bsr_key(const struct cairn_attn_bsr_args *a, const struct cairn_attn_part *p,
			     int32_t row, int32_t kv_head, int64_t n);
/* Returns an upper bound of the number of keys that a token sees. */
int64_t attn_bsr_most_keys(const struct cairn_attn_bsr_args *a);
/*
 * Lists the keys of all parts that a token sees, in order; returns their number. *first: the position of the
 * first of them; NULL: not wanted.
 */
int attn_bsr_keys(const struct cairn_attn_bsr_args *a, const struct attn_cover *cover, int32_t token,
		  int32_t kv_head, struct attn_key *keys, int64_t *first);

#endif
