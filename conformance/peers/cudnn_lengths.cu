// SPDX-License-Identifier: Apache-2.0
/* cudnn_lengths - two small kernels, one before and one after the library's; they take microseconds */
#include "conformance/peers/cudnn_lengths.h"
#include "primitives/base/launch.h"

#define THREADS		128

static __device__ bool is_kv(int tensor)
{
	return tensor == SDPA_K || tensor == SDPA_V || tensor == SDPA_DK || tensor == SDPA_DV;
}

/* One thread for each of the batch + 1 offsets. */
static __global__ void __launch_bounds__(THREADS)
lengths_kernel(const __grid_constant__ struct cudnn_lengths_args a)
{
	const int b = blockIdx.x * THREADS + threadIdx.x;
	int32_t qo, kv;

	if (b > a.batch)
		return;
	qo = a.qo_indptr[b];
	kv = a.kv_indptr[b];
#pragma unroll
	for (int t = 0; t < SDPA_OFFSETS; t++)
		if (a.offsets[t])
			a.offsets[t][b] = (is_kv(t) ? kv : qo) * a.stride[t];
	if (b == a.batch)
		return;
	a.len_q[b] = a.qo_indptr[b + 1] - qo;
	a.len_kv[b] = a.kv_indptr[b + 1] - kv;
}

int cairn_cudnn_lengths(const struct cudnn_lengths_args *args, void *stream)
{
	struct cairn_launch launch = {};
	void *params[] = { (void *)args };

	launch.grid[0] = args->batch / THREADS + 1;
	launch.block[0] = THREADS;
	launch.stream = stream;
	return cairn_launch((const void *)lengths_kernel, &launch, params);
}

/* blockIdx.x is the request. A vector of 8 elements never crosses a row. */
static __global__ void __launch_bounds__(THREADS)
keyless_kernel(const __grid_constant__ struct cudnn_keyless_args a)
{
	const int b = blockIdx.x, first = a.qo_indptr[b], rows = a.qo_indptr[b + 1] - first;
	const int64_t vecs = (int64_t)a.heads * a.v_dim / 8;

	if (a.kv_indptr[b + 1] > a.kv_indptr[b])
		return;
	for (int64_t i = threadIdx.x; i < rows * vecs; i += THREADS)
		((uint4 *)a.out)[first * vecs + i] = make_uint4(0, 0, 0, 0);
	for (int64_t i = threadIdx.x; i < (int64_t)rows * a.heads; i += THREADS)
		a.lse[(int64_t)first * a.heads + i] = -INFINITY;
}

int cairn_cudnn_keyless(const struct cudnn_keyless_args *args, void *stream)
{
	struct cairn_launch launch = {};
	void *params[] = { (void *)args };

	launch.grid[0] = args->batch;
	launch.block[0] = THREADS;
	launch.stream = stream;
	return cairn_launch((const void *)keyless_kernel, &launch, params);
}
