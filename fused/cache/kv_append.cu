// SPDX-License-Identifier: Apache-2.0
/*
 * kv_append - one CTA copies the K and V rows of one new token, 16 bytes per thread
 *
 * The CTA first finds the request that owns its row: every thread compares one qo_indptr entry (several if
 * the batch is larger than the block), and the count of entries at or before the row is the request. A binary
 * search would be a chain of dependent loads, and in a decode step the search is the whole cost.
 *
 * If the pages are e4m3, a thread converts eight elements.
 *
 * Floor: 2 * rows * num_kv_heads * head_dim elements read and as many written, at 3.99 TB/s on an H200. A
 * decode step of 64 rows of 8 x 128 bf16 is 0.5 MB, so it is bound by latency: three dependent loads (indptr,
 * page id, data). Optimisation history: NOTES.md.
 */
#include "fused/cache/kv_append.h"

#include <cuda_fp16.h>

#include "primitives/base/dtype.h"
#include "primitives/base/launch.h"
#include "primitives/ptx/fp8.cuh"
#include "primitives/ptx/ptx.cuh"
#include "fused/cache/kv_slot.h"

#define THREADS		256

/* Returns the slot of new row `row`, counted over all pages; -1: past the last request. */
static __device__ __forceinline__ int64_t slot_of(const struct cairn_kv_append_args &a, int32_t row)
{
	int32_t b = 0;

	for (int32_t i = 0; i < a.kv.batch; i += THREADS) {
		int32_t j = i + (int32_t)threadIdx.x + 1;

		b += __syncthreads_count(j <= a.kv.batch && a.qo_indptr[j] <= row);
	}
	ptx_griddepcontrol_launch_dependents();
	return b < a.kv.batch ? kv_new_slot(&a.kv, a.qo_indptr, b, row) : -1;
}

/* row_vecs: 16-byte vectors of a row; the strides have the same unit */
static __global__ __launch_bounds__(THREADS) void
kv_append_kernel(const __grid_constant__ struct cairn_kv_append_args a, int32_t row_vecs, int64_t k_stride,
		 int64_t v_stride)
{
	int32_t row = blockIdx.x;
	int64_t slot;

	ptx_griddepcontrol_wait();
	slot = slot_of(a, row);
	if (slot < 0)
		return;
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

/* Eight elements of dtype as floats. */
template <int dtype> static __device__ __forceinline__ void load_eight(float x[8], const void *from)
{
	if (dtype == CAIRN_F32) {
		const float4 lo = ((const float4 *)from)[0], hi = ((const float4 *)from)[1];

		x[0] = lo.x, x[1] = lo.y, x[2] = lo.z, x[3] = lo.w;
		x[4] = hi.x, x[5] = hi.y, x[6] = hi.z, x[7] = hi.w;
		return;
	}
	const uint4 v = *(const uint4 *)from;
	const uint32_t two[4] = { v.x, v.y, v.z, v.w };

#pragma unroll
	for (int i = 0; i < 8; i++) {
		uint16_t bits = (uint16_t)(two[i / 2] >> i % 2 * 16);

		x[i] = dtype == CAIRN_F16 ? __half2float(__ushort_as_half(bits)) :
					    __uint_as_float((uint32_t)bits << 16);
	}
}

/* As above, to pages of e4m3, eight elements per thread. The strides are in elements. */
template <int dtype>
static __global__ __launch_bounds__(THREADS) void
kv_append_fp8_kernel(const __grid_constant__ struct cairn_kv_append_args a, int32_t row_elements,
		     int64_t k_stride, int64_t v_stride)
{
	constexpr int element_bytes = dtype == CAIRN_F32 ? 4 : 2;
	int32_t row = blockIdx.x;
	int64_t slot;

	ptx_griddepcontrol_wait();
	slot = slot_of(a, row);
	if (slot < 0)
		return;
	for (int32_t i = (int32_t)threadIdx.x * 8; i < 2 * row_elements; i += THREADS * 8) {
		bool is_v = i >= row_elements;
		int32_t c = is_v ? i - row_elements : i;
		const float *scales = is_v ? a.v_scale : a.k_scale;
		float scale = scales ? scales[c / a.head_dim] : 1, x[8];
		int64_t from = row * (is_v ? v_stride : k_stride) + c, to = slot * row_elements + c;
		uint32_t two[4];

		load_eight<dtype>(x, (const char *)(is_v ? a.v : a.k) + from * element_bytes);
#pragma unroll
		for (int j = 0; j < 4; j++)
			two[j] = fp8_narrow(__fdiv_rn(x[2 * j], scale), __fdiv_rn(x[2 * j + 1], scale));
		*(uint2 *)((uint8_t *)(is_v ? a.kv.v_pages : a.kv.k_pages) + to) =
			make_uint2(two[0] | two[1] << 16, two[2] | two[3] << 16);
	}
}

static const void *fp8_kernel(int dtype)
{
	return dtype == CAIRN_F32 ? (const void *)kv_append_fp8_kernel<CAIRN_F32> :
	       dtype == CAIRN_F16 ? (const void *)kv_append_fp8_kernel<CAIRN_F16> :
				    (const void *)kv_append_fp8_kernel<CAIRN_BF16>;
}

extern "C" int cairn_kv_append(const struct cairn_kv_append_args *args, void *stream)
{
	struct cairn_launch l = {};
	int32_t per_vec, row_vecs;
	int64_t k_stride, v_stride;

	CAIRN_TRY(cairn_kv_append_check(args));
	if (!args->kv.batch || !args->nnz_qo)
		return 0;
	per_vec = args->kv_fp8 ? 1 : (int32_t)(16 / cairn_dtype_bytes(args->dtype));
	row_vecs = args->num_kv_heads * args->head_dim / per_vec;
	k_stride = args->k_stride ? args->k_stride / per_vec : row_vecs;
	v_stride = args->v_stride ? args->v_stride / per_vec : row_vecs;

	void *params[] = { (void *)args, &row_vecs, &k_stride, &v_stride };

	l.grid[0] = (unsigned int)args->nnz_qo;
	l.block[0] = THREADS;
	l.pdl = 1;
	l.stream = stream;
	return cairn_launch(args->kv_fp8 ? fp8_kernel(args->dtype) : (const void *)kv_append_kernel, &l,
			    params);
}
