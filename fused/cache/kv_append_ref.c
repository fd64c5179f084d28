// SPDX-License-Identifier: Apache-2.0
/* kv_append_ref - the reference: one row after the other, by memcpy */
#include "fused/cache/kv_append.h"

#include <string.h>

#include "primitives/base/dtype.h"
#include "primitives/base/error.h"

/* Returns the element of the pages at which row i of request b begins. */
static int64_t slot_of(const struct cairn_kv_append_args *a, int b, int i)
{
	int64_t key = cairn_kv_len(&a->kv, b) - (a->qo_indptr[b + 1] - a->qo_indptr[b]) + i;

	return cairn_kv_slot(&a->kv, b, key) * a->num_kv_heads * a->head_dim;
}

int cairn_kv_append_ref(const struct cairn_kv_append_args *a, void *stream)
{
	int64_t row, k_stride, v_stride;
	size_t esize;

	(void)stream;
	CAIRN_TRY(cairn_kv_append_check(a));
	esize = cairn_dtype_bytes(a->dtype);
	row = (int64_t)a->num_kv_heads * a->head_dim;
	k_stride = a->k_stride ? a->k_stride : row;
	v_stride = a->v_stride ? a->v_stride : row;
	for (int b = 0; b < a->kv.batch; b++) {
		for (int i = 0; i < a->qo_indptr[b + 1] - a->qo_indptr[b]; i++) {
			int64_t to = slot_of(a, b, i), from = a->qo_indptr[b] + i;

			memcpy((char *)a->kv.k_pages + to * esize,
			       (const char *)a->k + from * k_stride * esize,
			       row * esize);
			memcpy((char *)a->kv.v_pages + to * esize,
			       (const char *)a->v + from * v_stride * esize,
			       row * esize);
		}
	}
	return 0;
}

int cairn_kv_append_exact(const struct cairn_kv_append_args *a, struct cairn_exact *exact)
{
	const void *from[2] = { a->k, a->v };
	int64_t row = (int64_t)a->num_kv_heads * a->head_dim;
	int64_t stride[2] = { a->k_stride ? a->k_stride : row, a->v_stride ? a->v_stride : row };

	CAIRN_TRY(cairn_kv_append_check(a));
	for (int b = 0; b < a->kv.batch; b++) {
		for (int i = 0; i < a->qo_indptr[b + 1] - a->qo_indptr[b]; i++) {
			int64_t to = slot_of(a, b, i);

			for (int side = 0; side < 2; side++) {
				for (int64_t c = 0; c < row; c++) {
					exact[side].val[to + c] = cairn_load(from[side], a->dtype,
						(a->qo_indptr[b] + i) * stride[side] + c);
					exact[side].bound[to + c] = 0;
				}
			}
		}
	}
	return 0;
}
