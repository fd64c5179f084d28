// SPDX-License-Identifier: Apache-2.0
/*
 * kv_append - one CTA copies the K and V row of one new token, 16 bytes a thread
 *
 * The CTA first finds the request that owns its row: every thread compares one qo_indptr entry (several if
 * the batch is larger than the block), and the count of entries at or before the row is the request. A binary
 * search would be a chain of dependent loads, and in a decode step the search is the whole cost.
 *
 * Floor: 2 * rows * num_kv_heads * head_dim elements read and as many written, at 3.99 TB/s on an H200. A
 * decode step of 64 rows of 8 x 128 bf16 is 0.5 MB, so it is bound by latency: three dependent loads (indptr,
 * page id, data). Optimisation history: NOTES.md.
 */
#include "fused/cache/kv_append.h"

#include "primitives/base/dtype.h"
#include "primitives/base/launch.h"
#include "primitives/ptx/ptx.cuh"
#include "fused/cache/kv_walk.h"

#define THREADS		256

/* row_vecs: 16-byte vectors of a row; the strides have the same unit */
static __global__ __launch_bounds__(THREADS) void
kv_append_kernel(const __grid_constant__ struct cairn_kv_append_args a, int32_t row_vecs, int64_t k_stride,
		 int64_t v_stride)
{
	int32_t row = blockIdx.x, b = 0, first_page, key, page, page_shift;
	int64_t slot;

	ptx_griddepcontrol_wait();
	for (int32_t i = 0; i < a.kv.batch; i += THREADS) {
		int32_t j = i + (int32_t)threadIdx.x + 1;

		b += __syncthreads_count(j <= a.kv.batch && a.qo_indptr[j] <= row);
	}
	ptx_griddepcontrol_launch_dependents();
	if (b >= a.kv.batch)	/* past the last request */
		return;
	first_page = a.kv.indptr[b];
	key = kv_walk_len(a.kv.indptr[b + 1] - first_page, a.kv.last_page_len[b], a.kv.page_size) -
	      a.qo_indptr[b + 1] + row;
	page_shift = kv_page_shift(a.kv.page_size);
	page = page_shift >= 0 ? key >> page_shift : key / a.kv.page_size;
	slot = (int64_t)a.kv.indices[first_page + page] * a.kv.page_size + (key - page * a.kv.page_size);
	for (int32_t i = (int32_t)threadIdx.x; i < 2 * row_vecs; i += THREADS) {
		int32_t c = i < row_vecs ? i : i - row_vecs;

		if (i < row_vecs)
			((uint4 *)a.kv.k_pages)[slot * row_vecs + c] =
				((const uint4 *)a.k)[row * k_stride + c];
		else
			((uint4 *)a.kv.v_pages)[slot * row_vecs + c] =
				((const uint4 *)a.v)[row * v_stride + c];
	}
}

extern "C" int cairn_kv_append(const struct cairn_kv_append_args *args, void *stream)
{
	struct cairn_launch l = {};
	int32_t per_vec, row_vecs;
	int64_t k_stride, v_stride;

	CAIRN_TRY(cairn_kv_append_check(args));
	if (!args->kv.batch || !args->nnz_qo)
		return 0;
	per_vec = (int32_t)(16 / cairn_dtype_bytes(args->dtype));
	row_vecs = args->num_kv_heads * args->head_dim / per_vec;
	k_stride = args->k_stride ? args->k_stride / per_vec : row_vecs;
	v_stride = args->v_stride ? args->v_stride / per_vec : row_vecs;

	void *params[] = { (void *)args, &row_vecs, &k_stride, &v_stride };

	l.grid[0] = (unsigned int)args->nnz_qo;
	l.block[0] = THREADS;
	l.pdl = 1;
	l.stream = stream;
	return cairn_launch((const void *)kv_append_kernel, &l, params);
}
