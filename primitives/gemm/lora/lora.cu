/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lora.cu - two kernels: t = x a^T to the workspace, then y += scale t b^T
 *
 * Both take ROWS consecutive rows per CTA. Neighbouring rows mostly have the same adapter, which is then
 * loaded once for all of them; the test for that is uniform in the CTA. A CTA none of whose rows has an
 * adapter ends at once, so that a pass without adapters pays for two empty launches.
 *
 * shrink   grid (groups of rows, num_parts * rank / WARPS); a warp computes one element of t for each of its
 *          rows. Lanes stride over k in vectors of 8 elements; the butterfly of row_warp_sum() ends the sum.
 * expand   grid (groups of rows, columns / THREADS); a thread has one column, and reads the rows of t from
 *          shared memory, where all threads read the same word at a time.
 *
 * shared memory   expand: s_t   ROWS x 192 x 4 bytes
 * barriers        expand: one __syncthreads, after s_t is filled
 *
 * Floor: one row of 4096 with rank 16 reads 393 KB of a for q, k and v, and 197 KB of b for 6144 columns: 0.2
 * us of the read stream. Nearly all of the time is that of two launches (0.8 us each in a graph) and latency.
 */
#include "primitives/base/launch.h"
#include "primitives/gemm/lora/lora.h"
#include "primitives/rows/row.cuh"

#define ROWS	8
#define WARPS	8
#define THREADS	(32 * WARPS)
#define MOST_T	(CAIRN_LORA_MAX_PARTS * CAIRN_LORA_MAX_RANK)
#define VEC	8

/* Loads the slots of the group's rows, -1 for rows without an adapter. Returns whether any has one. */
static __device__ __forceinline__ bool load_slots(const struct cairn_lora_args &a, int64_t first,
						  int slot[ROWS])
{
	bool any = false;

#pragma unroll
	for (int r = 0; r < ROWS; r++) {
		slot[r] = first + r < a.m ? a.slot[first + r] : -1;
		if (slot[r] >= a.num_slots)
			slot[r] = -1;
		any |= slot[r] >= 0;
	}
	return any;
}

template <int dtype>
__global__ void __launch_bounds__(THREADS)
lora_shrink_kernel(const __grid_constant__ struct cairn_lora_args a)
{
	const int all = a.num_parts * a.rank, lane = threadIdx.x % 32;
	const int q = blockIdx.y * WARPS + threadIdx.x / 32;
	const int64_t first = (int64_t)blockIdx.x * ROWS, vecs = a.k / VEC;
	const uint4 *x = (const uint4 *)a.x + first * vecs, *w = (const uint4 *)a.a + q * vecs;
	float *t = (float *)a.workspace + first * all + q;
	float sum[ROWS] = { 0 }, f[VEC], g[VEC];
	int slot[ROWS];

	ptx_griddepcontrol_wait();
	ptx_griddepcontrol_launch_dependents();
	if (!load_slots(a, first, slot))
		return;
	for (int64_t v = lane; v < vecs; v += 32) {
		int loaded = -1;

#pragma unroll
		for (int r = 0; r < ROWS; r++) {
			if (slot[r] < 0)
				continue;
			if (slot[r] != loaded)
				row_unpack<dtype>(w[slot[r] * (all * vecs) + v], g);
			loaded = slot[r];
			row_unpack<dtype>(x[r * vecs + v], f);
#pragma unroll
			for (int e = 0; e < VEC; e++)
				sum[r] = fmaf(f[e], g[e], sum[r]);
		}
	}
#pragma unroll
	for (int r = 0; r < ROWS; r++) {
		float v = row_warp_sum(sum[r]);

		if (lane == 0 && slot[r] >= 0)
			t[(int64_t)r * all] = v;
	}
}

template <int dtype>
__global__ void __launch_bounds__(THREADS)
lora_expand_kernel(const __grid_constant__ struct cairn_lora_args a)
{
	const int all = a.num_parts * a.rank, j = blockIdx.y * THREADS + threadIdx.x, vecs = a.rank / VEC;
	const int64_t first = (int64_t)blockIdx.x * ROWS, rows = min((int64_t)ROWS, a.m - first);
	const int part = (a.num_parts > 1 && j >= a.part_end[0]) + (a.num_parts > 2 && j >= a.part_end[1]);
	const float *t = (const float *)a.workspace + first * all;
	const uint4 *b = (const uint4 *)a.b + (int64_t)j * vecs;
	__shared__ float s_t[ROWS * MOST_T];
	float sum[ROWS] = { 0 }, g[VEC];
	int slot[ROWS];

	ptx_griddepcontrol_wait();
	ptx_griddepcontrol_launch_dependents();
	if (!load_slots(a, first, slot))
		return;
	for (int e = threadIdx.x; e < rows * all; e += THREADS)
		s_t[e] = t[e];
	__syncthreads();
	if (j >= a.n)
		return;
	for (int v = 0; v < vecs; v++) {
		int loaded = -1;

#pragma unroll
		for (int r = 0; r < ROWS; r++) {
			if (slot[r] < 0)
				continue;
			if (slot[r] != loaded)
				row_unpack<dtype>(b[slot[r] * ((int64_t)a.n * vecs) + v], g);
			loaded = slot[r];
#pragma unroll
			for (int e = 0; e < VEC; e++)
				sum[r] = fmaf(s_t[r * all + part * a.rank + v * VEC + e], g[e], sum[r]);
		}
	}
#pragma unroll
	for (int r = 0; r < ROWS; r++) {
		int64_t at = (first + r) * a.n + j;

		if (slot[r] >= 0)
			row_store(a.y, dtype, at,
				  fmaf(a.scale[slot[r]], sum[r], row_element<dtype>(a.y, at)));
	}
}

extern "C" int cairn_lora_workspace(const struct cairn_lora_args *a, size_t *bytes)
{
	CAIRN_TRY(cairn_lora_check_shape(a));
	*bytes = (size_t)a->m * (size_t)(a->num_parts * a->rank) * sizeof(float);
	return 0;
}

extern "C" int cairn_lora(const struct cairn_lora_args *a, void *stream)
{
	struct cairn_launch l = { .block = { THREADS }, .pdl = 1, .stream = stream };
	void *params[] = { (void *)a };
	const void *shrink, *expand;
	size_t bytes;

	CAIRN_TRY(cairn_lora_check(a));
	if (!a->m)
		return 0;
	CAIRN_TRY(cairn_lora_workspace(a, &bytes));
	if (!a->workspace || a->workspace_bytes < bytes || (uintptr_t)a->workspace % 256)
		return cairn_error(EINVAL, "lora: workspace: %zu bytes at %p, %zu are needed, 256-byte "
				   "aligned", a->workspace_bytes, a->workspace, bytes);
	shrink = a->dtype == CAIRN_BF16 ? (const void *)lora_shrink_kernel<CAIRN_BF16> :
		 (const void *)lora_shrink_kernel<CAIRN_F16>;
	expand = a->dtype == CAIRN_BF16 ? (const void *)lora_expand_kernel<CAIRN_BF16> :
		 (const void *)lora_expand_kernel<CAIRN_F16>;
	l.grid[0] = (unsigned int)(((int64_t)a->m + ROWS - 1) / ROWS);
	l.grid[1] = (unsigned int)(a->num_parts * a->rank / WARPS);
	CAIRN_TRY(cairn_launch(shrink, &l, params));
	l.grid[1] = (unsigned int)(((int64_t)a->n + THREADS - 1) / THREADS);
	if (l.grid[1] > 65535)
		return cairn_error(EOPNOTSUPP, "lora: n: %d is too large", a->n);
	return cairn_launch(expand, &l, params);
}
