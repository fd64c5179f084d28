/* SPDX-License-Identifier: Apache-2.0 */
/*
 * argmax.cu - a cluster shares a row: every CTA scans a part, and rank 0 combines the results
 *
 * Schedule: the 16-byte vectors of a row are split into contiguous parts, one per CTA. Rank 0 takes the
 * elements before the first aligned address, the last rank those after the last whole vector. Threads scan in
 * strides of THREADS vectors with UNROLL loads in flight. Every comparison is by value, then by lower index,
 * so the result does not depend on the split. A warp reduces by shuffles, a CTA over its warps, and each CTA
 * stores (value, index) as one 64-bit word into the shared memory of rank 0, which picks the winner after a
 * cluster barrier.
 *
 * shared memory   s_best    WARPS x 8 bytes: the winner of each warp
 *                 s_ranks   16 x 8 bytes: the winner of each CTA, used in rank 0 only
 * barriers        cluster (arrive at the start, wait before the first remote store: the peer must have
 *                 started), one __syncthreads, cluster again (release and acquire the stores)
 *
 * Cluster size: the smallest that gives about one CTA per SM with parts of at least MIN_PART elements.
 * Floor: one row of 128256 f32 is 0.5 MB and bound by latency, not bandwidth: launch 0.8 us, memory 0.5 us,
 * cluster barrier 0.2 us; 256 rows are 131 MB, 29 us at the read stream's speed.
 */
#include "primitives/draw/argmax.h"
#include "primitives/base/launch.h"
#include "primitives/rows/row.cuh"

#define THREADS		1024
#define WARPS		(THREADS / 32)
#define UNROLL		4
#define MAX_CLUSTER	16
#define MIN_PART	2048	/* elements per part from which on a larger cluster pays off */

struct best {
	float value;
	int index;		/* INT32_MAX: none yet */
};

ROW void better(struct best *b, float value, int index)
{
	if (value > b->value || (value == b->value && index < b->index)) {	/* both false for NaN */
		b->value = value;
		b->index = index;
	}
}

ROW void reduce_warp(struct best *b)
{
#pragma unroll
	for (int step = 16; step > 0; step /= 2) {
		float value = __shfl_xor_sync(0xffffffffu, b->value, step);
		int index = __shfl_xor_sync(0xffffffffu, b->index, step);

		better(b, value, index);
	}
}

ROW uint64_t to_word(const struct best *b)
{
	return (uint64_t)__float_as_uint(b->value) << 32 | (uint32_t)b->index;
}

ROW void from_word(struct best *b, uint64_t word)
{
	better(b, __uint_as_float((uint32_t)(word >> 32)), (int)(uint32_t)word);
}

template <int dtype> ROW void scan(struct best *b, const void *row, int vocab, int rank, int size)
{
	constexpr int vec = row_vec(dtype), esize = 16 / vec;
	int head = (int)((16 - ((uintptr_t)row & 15)) % 16 / esize);
	int vecs, part, end, tail, v;
	const uint4 *x;

	head = head < vocab ? head : vocab;
	x = (const uint4 *)((const char *)row + head * esize);
	vecs = (vocab - head) / vec;
	part = (vecs + size - 1) / size;
	end = (rank + 1) * part < vecs ? (rank + 1) * part : vecs;
	tail = head + vecs * vec;
	if (rank == 0 && threadIdx.x < head)
		better(b, row_element<dtype>(row, threadIdx.x), threadIdx.x);
	for (v = rank * part + threadIdx.x; v + (UNROLL - 1) * THREADS < end; v += UNROLL * THREADS) {
		uint4 packed[UNROLL];
		float f[vec];

#pragma unroll
		for (int k = 0; k < UNROLL; k++)
			packed[k] = ptx_ld_global_nc_no_allocate_v4(x + v + k * THREADS);
#pragma unroll
		for (int k = 0; k < UNROLL; k++) {
			row_unpack<dtype>(packed[k], f);
#pragma unroll
			for (int j = 0; j < vec; j++)
				better(b, f[j], head + (v + k * THREADS) * vec + j);
		}
	}
	for (; v < end; v += THREADS) {
		float f[vec];

		row_unpack<dtype>(ptx_ld_global_nc_no_allocate_v4(x + v), f);
#pragma unroll
		for (int j = 0; j < vec; j++)
			better(b, f[j], head + v * vec + j);
	}
	if (rank == size - 1 && tail + threadIdx.x < vocab)
		better(b, row_element<dtype>(row, tail + threadIdx.x), tail + threadIdx.x);
}

template <int dtype>
__global__ void __launch_bounds__(THREADS) argmax_kernel(const __grid_constant__ struct cairn_argmax_args a)
{
	const int rank = ptx_cluster_ctarank(), size = ptx_cluster_nctarank(), row = ptx_clusterid_x();
	const int64_t esize = dtype == CAIRN_F32 ? 4 : 2;
	struct best b = { -INFINITY, INT32_MAX };
	__shared__ uint64_t s_best[WARPS], s_ranks[MAX_CLUSTER];

	ptx_barrier_cluster_arrive_relaxed();
	ptx_griddepcontrol_wait();
	ptx_griddepcontrol_launch_dependents();
	scan<dtype>(&b, (const char *)a.logits + (int64_t)row * a.vocab * esize, a.vocab, rank, size);
	reduce_warp(&b);
	if (threadIdx.x % 32 == 0)
		s_best[threadIdx.x / 32] = to_word(&b);
	__syncthreads();
	ptx_barrier_cluster_wait_acquire();
	if (threadIdx.x < 32) {
		b.value = -INFINITY;
		b.index = INT32_MAX;
		if (threadIdx.x < WARPS)
			from_word(&b, s_best[threadIdx.x]);
		reduce_warp(&b);
		if (threadIdx.x == 0)
			ptx_st_relaxed_cluster_shared_b64(ptx_mapa(ptx_smem(&s_ranks[rank]), 0), to_word(&b));
	}
	ptx_barrier_cluster_arrive_release();
	ptx_barrier_cluster_wait_acquire();
	if (rank == 0 && threadIdx.x < 32) {
		if (threadIdx.x < size)
			from_word(&b, s_ranks[threadIdx.x]);
		reduce_warp(&b);
		if (threadIdx.x == 0)
			a.out[row] = b.index == INT32_MAX ? -1 : b.index;
	}
}

extern "C" int cairn_argmax(const struct cairn_argmax_args *a, void *stream)
{
	struct cairn_launch l = { .block = { THREADS }, .cluster = 1, .pdl = 1, .stream = stream };
	int sms = cairn_num_sms(), size = 1;
	void *params[] = { (void *)a };
	const void *kernel;

	CAIRN_TRY(cairn_argmax_check(a));
	if (a->rows == 0)
		return 0;
	if (sms < 0)
		return sms;
	if (a->rows > INT32_MAX / MAX_CLUSTER)
		return cairn_error(EOPNOTSUPP, "argmax: rows: %d are too many", a->rows);
	kernel = a->dtype == CAIRN_F32 ? (const void *)argmax_kernel<CAIRN_F32> :
		 a->dtype == CAIRN_F16 ? (const void *)argmax_kernel<CAIRN_F16> :
		 (const void *)argmax_kernel<CAIRN_BF16>;
	/* every device with clusters supports size 8; size 16 may be refused */
	while (size < MAX_CLUSTER && 2ll * a->rows * size <= sms && a->vocab / size > MIN_PART)
		size *= 2;
	l.cluster = size;
	l.grid[0] = a->rows * size;
	if (size > 8 && cairn_max_active_clusters(kernel, &l) < 1) {
		l.cluster = 8;
		l.grid[0] = a->rows * 8;
	}
	return cairn_launch(kernel, &l, params);
}
