// SPDX-License-Identifier: Apache-2.0
/* kv_append_cpu - rows in parallel, each with a binary search for its request */
#include "fused/cache/kv_append.h"

#include <string.h>

#include "primitives/base/dtype.h"
#include "primitives/base/error.h"
#include "fused/attention/attn_tile.h"

/* Returns the request that owns the row: the last one that begins at or before it. */
static int owner(const int32_t *indptr, int batch, int row)
{
	int lo = 0, hi = batch;

	while (hi - lo > 1) {
		int mid = (lo + hi) / 2;

		if (indptr[mid] <= row)
			lo = mid;
		else
			hi = mid;
	}
	return lo;
}

int cairn_kv_append_cpu(const struct cairn_kv_append_args *a, void *stream)
{
	int64_t k_bytes, v_bytes;
	size_t row_bytes;
	int shift, rows;

	(void)stream;
	CAIRN_TRY(cairn_kv_append_check(a));
	if (!a->batch || !a->nnz_qo)
		return 0;
	row_bytes = (size_t)a->num_kv_heads * a->head_dim * cairn_dtype_bytes(a->dtype);
	k_bytes = a->k_stride ? a->k_stride * (int64_t)cairn_dtype_bytes(a->dtype) : (int64_t)row_bytes;
	v_bytes = a->v_stride ? a->v_stride * (int64_t)cairn_dtype_bytes(a->dtype) : (int64_t)row_bytes;
	shift = attn_page_shift(a->page_size);
	rows = a->qo_indptr[a->batch];

	#pragma omp parallel for schedule(static) if (rows > 64)
	for (int i = 0; i < rows; i++) {
		int b = owner(a->qo_indptr, a->batch, i);
		int pages = a->kv_indptr[b + 1] - a->kv_indptr[b];
		int key = attn_kv_len(pages, a->kv_last_page_len[b], a->page_size) - a->qo_indptr[b + 1] + i;
		int page = shift < 0 ? key / a->page_size : key >> shift;
		int64_t slot = (int64_t)a->kv_indices[a->kv_indptr[b] + page] * a->page_size +
			       (key - page * a->page_size);

		memcpy((char *)a->k_pages + slot * row_bytes, (const char *)a->k + i * k_bytes, row_bytes);
		memcpy((char *)a->v_pages + slot * row_bytes, (const char *)a->v + i * v_bytes, row_bytes);
	}
	return 0;
}
