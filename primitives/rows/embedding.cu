/* SPDX-License-Identifier: Apache-2.0 */
/*
 * embedding.cu - copies rows in 16-byte vectors, with or without a scale
 *
 * Schedule: a CTA copies up to ITEMS * THREADS vectors of one row, with all loads in flight before the first
 * store. The unscaled copy is a separate instance, which does not depend on dtype and never unpacks elements.
 * Floor: two dependent memory round trips, for the id and then for its row; about 1.3 us with the launch.
 */
#include "primitives/rows/embedding.h"
#include "primitives/base/launch.h"
#include "primitives/rows/row.cuh"

#define THREADS	128
#define ITEMS	4

#define COPY	-1	/* template argument instead of a dtype: unscaled copy */

template <int dtype> ROW uint4 scaled(uint4 v, float scale)
{
	float f[8];

	if (dtype == COPY)
		return v;
	row_unpack<dtype>(v, f);
#pragma unroll
	for (int j = 0; j < row_vec(dtype); j++)
		f[j] *= scale;
	return row_pack<dtype>(f);
}

template <int dtype>
__global__ void __launch_bounds__(THREADS)
	embedding_kernel(const __grid_constant__ struct cairn_embedding_args a, int vecs, int chunks)
{
	const int row = blockIdx.x / chunks, first = blockIdx.x % chunks * (ITEMS * THREADS) + threadIdx.x;
	uint4 *out = (uint4 *)a.out + (int64_t)row * vecs;
	uint4 v[ITEMS];
	int32_t id;

	ptx_griddepcontrol_wait();
	ptx_griddepcontrol_launch_dependents();
	id = a.ids[row];
#pragma unroll
	for (int k = 0; k < ITEMS; k++) {
		v[k] = make_uint4(0, 0, 0, 0);
		if (first + k * THREADS < vecs && id >= 0 && id < a.vocab)
			v[k] = ptx_ld_global_nc_no_allocate_v4((const uint4 *)a.table + (int64_t)id * vecs +
							       first + k * THREADS);
	}
#pragma unroll
	for (int k = 0; k < ITEMS; k++)
		if (first + k * THREADS < vecs)
			out[first + k * THREADS] = scaled<dtype>(v[k], a.scale);
}

extern "C" int cairn_embedding(const struct cairn_embedding_args *a, void *stream)
{
	struct cairn_launch l = { .block = { THREADS }, .pdl = 1, .stream = stream };
	void *params[3] = { (void *)a };
	int vecs, chunks;

	CAIRN_TRY(cairn_embedding_check(a));
	if (a->rows == 0)
		return 0;
	vecs = a->dim / row_vec(a->dtype);
	chunks = (vecs + ITEMS * THREADS - 1) / (ITEMS * THREADS);
	if ((int64_t)a->rows * chunks > INT32_MAX)
		return cairn_error(EOPNOTSUPP, "embedding: rows: %d of %d are too many", a->rows, a->dim);
	l.grid[0] = a->rows * chunks;
	params[1] = &vecs;
	params[2] = &chunks;
	switch (a->scale == 0 ? COPY : a->dtype) {
	case COPY:
		return cairn_launch((const void *)embedding_kernel<COPY>, &l, params);
	case CAIRN_F32:
		return cairn_launch((const void *)embedding_kernel<CAIRN_F32>, &l, params);
	case CAIRN_F16:
		return cairn_launch((const void *)embedding_kernel<CAIRN_F16>, &l, params);
	default:
		return cairn_launch((const void *)embedding_kernel<CAIRN_BF16>, &l, params);
	}
}
