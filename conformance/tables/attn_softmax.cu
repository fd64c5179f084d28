// SPDX-License-Identifier: Apache-2.0
/*
 * attn_softmax - a CTA turns one row of S into a row of P
 *
 * A thread keeps its part of the row, VECS groups of four keys, in registers, so that S is read once. Masked
 * keys get P = 0.
 *
 * Floor: the time to read S in fp32 and to write P in dtype.
 */
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "conformance/tables/attn_standard.h"
#include "primitives/base/dtype.h"
#include "primitives/base/launch.h"

#define THREADS	256
#define WARPS	(THREADS / 32)

struct most {
	static constexpr float none = -INFINITY;
	static __device__ float of(float a, float b) { return fmaxf(a, b); }
};

struct sum {
	static constexpr float none = 0;
	static __device__ float of(float a, float b) { return a + b; }
};

/* Combines x of all threads, always in the same order. */
template <class F> static __device__ float combine(float x, float *s_part)
{
	float all = F::none;

	for (int i = 16; i; i /= 2)
		x = F::of(x, __shfl_xor_sync(~0u, x, i));
	__syncthreads();	/* the last call's parts have been read */
	if (threadIdx.x % 32 == 0)
		s_part[threadIdx.x / 32] = x;
	__syncthreads();
	for (int i = 0; i < WARPS; i++)
		all = F::of(all, s_part[i]);
	return all;
}

template <int bf16> static __device__ uint32_t pack(float x, float y)
{
	if (bf16) {
		__nv_bfloat162 v = __floats2bfloat162_rn(x, y);

		return *(uint32_t *)&v;
	}
	__half2 v = __floats2half2_rn(x, y);

	return *(uint32_t *)&v;
}

template <int bf16, int VECS> static __global__ void __launch_bounds__(THREADS)
attn_softmax_kernel(const __grid_constant__ struct attn_softmax_args a)
{
	__shared__ float s_part[WARPS];
	const int row = blockIdx.x, head = blockIdx.y;
	const int64_t first = ((int64_t)head * a.rows + row) * a.keys;
	const int seen = a.causal ? row + 1 + a.keys - a.rows : a.keys;
	float x[VECS][4], top = -INFINITY, l = 0;

#pragma unroll
	for (int i = 0; i < VECS; i++) {
		int j = (i * THREADS + threadIdx.x) * 4;
		float4 v = j < seen ? __ldcs((const float4 *)(a.s + first + j)) : make_float4(0, 0, 0, 0);

		x[i][0] = v.x;
		x[i][1] = v.y;
		x[i][2] = v.z;
		x[i][3] = v.w;
		for (int c = 0; c < 4; c++) {
			x[i][c] = j + c < seen ? a.sm_scale * x[i][c] : -INFINITY;
			top = fmaxf(top, x[i][c]);
		}
	}
	top = combine<most>(top, s_part);
#pragma unroll
	for (int i = 0; i < VECS; i++)
		for (int c = 0; c < 4; c++) {
			x[i][c] = top > -INFINITY ? expf(x[i][c] - top) : 0;
			l += x[i][c];
		}
	l = combine<sum>(l, s_part);
#pragma unroll
	for (int i = 0; i < VECS; i++) {
		int j = (i * THREADS + threadIdx.x) * 4;
		float scale = l > 0 ? 1 / l : 0;

		if (j < a.keys)
			*(uint2 *)((uint16_t *)a.p + first + j) =
				make_uint2(pack<bf16>(x[i][0] * scale, x[i][1] * scale),
					   pack<bf16>(x[i][2] * scale, x[i][3] * scale));
	}
	if (a.lse && threadIdx.x == 0)
		a.lse[(int64_t)row * a.heads + head] = l > 0 ? top + logf(l) : -INFINITY;
}

template <int bf16> static const void *choose(int32_t keys)
{
	return keys <= 1024 ? (const void *)attn_softmax_kernel<bf16, 1> :
	       keys <= 2048 ? (const void *)attn_softmax_kernel<bf16, 2> :
	       keys <= 4096 ? (const void *)attn_softmax_kernel<bf16, 4> :
			      (const void *)attn_softmax_kernel<bf16, 16>;
}

extern "C" int attn_softmax(const struct attn_softmax_args *args, void *stream)
{
	const void *kernel = args->dtype == CAIRN_BF16 ? choose<1>(args->keys) : choose<0>(args->keys);
	void *params[] = { (void *)args };
	struct cairn_launch l = {};

	l.grid[0] = (unsigned int)args->rows;
	l.grid[1] = (unsigned int)args->heads;
	l.block[0] = THREADS;
	l.stream = stream;
	return cairn_launch(kernel, &l, params);
}
