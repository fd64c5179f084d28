// SPDX-License-Identifier: Apache-2.0
/* kv_append_cpu - appends rows in parallel; a binary search finds the request of each */
#include "fused/cache/kv_append.h"

#include <math.h>
#include <string.h>

#include "fused/cache/kv_walk.h"
#include "primitives/base/dtype.h"
#include "primitives/base/error.h"
#include "primitives/base/fp8.h"
#include "primitives/base/wide.h"

#define HEAD	256	/* number of elements that are converted together */

/* Writes a row, which begins at element `from` of x, as e4m3. */
static CAIRN_WIDE void put_codes(const struct cairn_kv_append_args *a, uint8_t *to, const void *x,
				 int64_t from, const float *scale)
{
	float head[HEAD];

	for (int64_t c = 0; c < (int64_t)a->num_kv_heads * a->head_dim; c += a->head_dim) {
		float s = scale ? scale[c / a->head_dim] : 1;

		for (int32_t first = 0; first < a->head_dim; first += HEAD) {
			int32_t n = a->head_dim - first < HEAD ? a->head_dim - first : HEAD;

			cairn_load_row(head, x, a->dtype, from + c + first, n);
			for (int32_t i = 0; i < n; i++)
				to[c + first + i] = isnan(head[i]) ? 0x7f : cairn_narrow_e4m3(head[i] / s);
		}
	}
}

int cairn_kv_append_cpu(const struct cairn_kv_append_args *a, void *stream)
{
	int64_t row, k_stride, v_stride;
	size_t esize;
	int rows;

	(void)stream;
	CAIRN_TRY(cairn_kv_append_check(a));
	if (!a->kv.batch || !a->nnz_qo)
		return 0;
	esize = cairn_dtype_bytes(a->dtype);
	row = (int64_t)a->num_kv_heads * a->head_dim;
	k_stride = a->k_stride ? a->k_stride : row;
	v_stride = a->v_stride ? a->v_stride : row;
	rows = a->qo_indptr[a->kv.batch];

	#pragma omp parallel for schedule(static) if (rows > 64)
	for (int i = 0; i < rows; i++) {
		int b = kv_owner(a->qo_indptr, a->kv.batch, i);
		int64_t key = cairn_kv_len(&a->kv, b) - a->qo_indptr[b + 1] + i;
		int64_t to = cairn_kv_slot(&a->kv, b, key) * row;

		if (a->kv_fp8) {
			put_codes(a, (uint8_t *)a->kv.k_pages + to, a->k, i * k_stride, a->k_scale);
			put_codes(a, (uint8_t *)a->kv.v_pages + to, a->v, i * v_stride, a->v_scale);
			continue;
		}
		memcpy((char *)a->kv.k_pages + to * esize, (const char *)a->k + i * k_stride * esize,
		       row * esize);
		memcpy((char *)a->kv.v_pages + to * esize, (const char *)a->v + i * v_stride * esize,
		       row * esize);
	}
	return 0;
}
