// SPDX-License-Identifier: Apache-2.0
/*
 * kv_append_ref - the reference: copies one row after the other by memcpy, or converts it element by element
 * to e4m3
 */
#include "fused/cache/kv_append.h"

#include <string.h>

#include "primitives/base/dtype.h"
#include "primitives/base/error.h"
#include "primitives/base/fp8.h"

/* Returns the index in the pages of the element at which row i of request b begins. */
static int64_t slot_of(const struct cairn_kv_append_args *a, int b, int i)
{
	int64_t key = cairn_kv_len(&a->kv, b) - (a->qo_indptr[b + 1] - a->qo_indptr[b]) + i;

	return cairn_kv_slot(&a->kv, b, key) * a->num_kv_heads * a->head_dim;
}

/* Returns the code of element c of a row that begins at element `from` of x. */
static uint8_t code_of(const struct cairn_kv_append_args *a, const void *x, int64_t from, int64_t c,
		       const float *scale)
{
	float v = (float)cairn_load(x, a->dtype, from + c);

	return cairn_float_to_e4m3(v / (scale ? scale[c / a->head_dim] : 1));
}

/* Writes a row, which begins at element `from` of x, to element `to` of the pages. */
static void put_row(const struct cairn_kv_append_args *a, void *pages, int64_t to, const void *x,
		    int64_t from, const float *scale)
{
	int64_t row = (int64_t)a->num_kv_heads * a->head_dim;
	size_t esize = cairn_dtype_bytes(a->dtype);

	if (!a->kv_fp8)
		memcpy((char *)pages + to * esize, (const char *)x + from * esize, row * esize);
	for (int64_t c = 0; a->kv_fp8 && c < row; c++)
		((uint8_t *)pages)[to + c] = code_of(a, x, from, c, scale);
}

int cairn_kv_append_ref(const struct cairn_kv_append_args *a, void *stream)
{
	int64_t row, k_stride, v_stride;

	(void)stream;
	CAIRN_TRY(cairn_kv_append_check(a));
	row = (int64_t)a->num_kv_heads * a->head_dim;
	k_stride = a->k_stride ? a->k_stride : row;
	v_stride = a->v_stride ? a->v_stride : row;
	for (int b = 0; b < a->kv.batch; b++) {
		for (int i = 0; i < a->qo_indptr[b + 1] - a->qo_indptr[b]; i++) {
			int64_t to = slot_of(a, b, i), from = a->qo_indptr[b] + i;

			put_row(a, a->kv.k_pages, to, a->k, from * k_stride, a->k_scale);
			put_row(a, a->kv.v_pages, to, a->v, from * v_stride, a->v_scale);
		}
	}
	return 0;
}

int cairn_kv_append_exact(const struct cairn_kv_append_args *a, struct cairn_exact *exact)
{
	const void *from[2] = { a->k, a->v };
	const float *scale[2] = { a->k_scale, a->v_scale };
	int64_t row = (int64_t)a->num_kv_heads * a->head_dim;
	int64_t stride[2] = { a->k_stride ? a->k_stride : row, a->v_stride ? a->v_stride : row };

	CAIRN_TRY(cairn_kv_append_check(a));
	for (int b = 0; b < a->kv.batch; b++) {
		for (int i = 0; i < a->qo_indptr[b + 1] - a->qo_indptr[b]; i++) {
			int64_t to = slot_of(a, b, i);

			for (int side = 0; side < 2; side++) {
				for (int64_t c = 0; c < row; c++) {
					int64_t at = (a->qo_indptr[b] + i) * stride[side];

					exact[side].val[to + c] = a->kv_fp8 ?
						code_of(a, from[side], at, c, scale[side]) :
						cairn_load(from[side], a->dtype, at + c);
					exact[side].bound[to + c] = 0;
				}
			}
		}
	}
	return 0;
}
