/* SPDX-License-Identifier: Apache-2.0 */
/* kv_slot - where a new key goes, for the kernels that append */
#ifndef CAIRN_KV_SLOT_H
#define CAIRN_KV_SLOT_H

#include "fused/cache/kv_view.h"
#include "fused/cache/kv_walk.h"

/* Returns the slot, counted over all pages, of new row `row` of the batch (kv_append.h), one of request b. */
KV_FN int64_t kv_new_slot(const struct cairn_kv_view *kv, const int32_t *qo_indptr, int32_t b, int32_t row)
{
	const int32_t first = kv->indptr[b], size = kv->page_size, shift = kv_page_shift(size);
	const int32_t key = kv_walk_len(kv->indptr[b + 1] - first, kv->last_page_len[b], size) -
			    qo_indptr[b + 1] + row;
	const int32_t page = shift >= 0 ? key >> shift : key / size;

	return (int64_t)kv->indices[first + page] * size + (key - page * size);
}

#endif
