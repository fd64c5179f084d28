// SPDX-License-Identifier: Apache-2.0
/* kv_append_cpu - rows in parallel, each with a binary search for its request */
#include "fused/cache/kv_append.h"

#include <string.h>

#include "primitives/base/dtype.h"
#include "primitives/base/error.h"

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
	int rows;

	(void)stream;
	CAIRN_TRY(cairn_kv_append_check(a));
	if (!a->kv.batch || !a->nnz_qo)
		return 0;
	row_bytes = (size_t)a->num_kv_heads * a->head_dim * cairn_dtype_bytes(a->dtype);
	k_bytes = a->k_stride ? a->k_stride * (int64_t)cairn_dtype_bytes(a->dtype) : (int64_t)row_bytes;
	v_bytes = a->v_stride ? a->v_stride * (int64_t)cairn_dtype_bytes(a->dtype) : (int64_t)row_bytes;
	rows = a->qo_indptr[a->kv.batch];

	#pragma omp parallel for schedule(static) if (rows > 64)
	for (int i = 0; i < rows; i++) {
		int b = owner(a->qo_indptr, a->kv.batch, i);
		int64_t key = cairn_kv_len(&a->kv, b) - a->qo_indptr[b + 1] + i;
		int64_t slot = cairn_kv_slot(&a->kv, b, key);

		memcpy((char *)a->kv.k_pages + slot * row_bytes, (const char *)a->k + i * k_bytes, row_bytes);
		memcpy((char *)a->kv.v_pages + slot * row_bytes, (const char *)a->v + i * v_bytes, row_bytes);
	}
	return 0;
}
