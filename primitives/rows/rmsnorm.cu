/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rmsnorm.cu - one pass over memory: a row stays in registers between its sum and its scaling
 *
 * Schedule: blockDim.x threads process a row, each at most items_of() vectors of 16 bytes; short rows share a
 * CTA (blockDim.y rows). Every thread loads its weights before griddepcontrol.wait (no kernel writes
 * weights), then x and residual, with all loads in flight before the first use. Squares are summed within the
 * thread, by a butterfly within the warp, and over the warps in a fixed order from shared memory. Between sum
 * and scaling, the row is kept in its dtype; this halves the registers and rounds the residual sum at no
 * cost.
 *
 * With q the results stay in registers too, in their dtype, until the largest magnitude of the row or piece
 * is known (quant_row.cuh).
 *
 * shared memory   s_part   32 x 4 bytes: a partial sum per warp
 *                 s_max    32 x 4 bytes: the bits of the largest magnitude per warp, only with scales of rows
 * barriers        one __syncthreads for each, only if a row has more than one warp
 *
 * Floor: the bytes of the tensors in rmsnorm.h at the read stream's speed. 128 x 4096 bf16 moves 2 MiB in 0.5
 * us, less than the launch (0.8 us in a graph), one memory round trip (0.4 us) and the reduction take.
 */
#include "primitives/base/args.h"
#include "primitives/base/launch.h"
#include "primitives/rows/quant_row.cuh"
#include "primitives/rows/rmsnorm.h"

#define MAX_DIM	16384
#define NO_Q	(-1)	/* in place of q_kind */

/* vectors per thread */
static __host__ __device__ constexpr int items_of(int dtype)
{
	return dtype == CAIRN_F32 ? 4 : 2;	/* 1024 threads hold a row of MAX_DIM */
}

/* Both quantise the vectors r of the thread's row. Threads without a row call them as well. */
template <int dtype>
ROW void quantise_pieces(const struct cairn_rmsnorm_args &a, int row, const uint4 r[items_of(dtype)])
{
	const int vecs = row < a.rows ? a.dim / 8 : 0;
	uint8_t *q = a.q + (int64_t)row * a.dim;

#pragma unroll
	for (int k = 0; k < items_of(dtype); k++)
		quant_store_piece<dtype>(q, a.q_scale + row, a.rows, threadIdx.x + k * blockDim.x, vecs,
					 r[k]);
}

template <int dtype>
ROW void quantise_row(const struct cairn_rmsnorm_args &a, int row, const uint4 r[items_of(dtype)])
{
	const int vecs = row < a.rows ? a.dim / 8 : 0, warps = blockDim.x / 32, lane = threadIdx.x % 32;
	uint8_t *q = a.q + (int64_t)row * a.dim;
	__shared__ uint32_t s_max[32];
	uint32_t max2 = 0;
	float scale, inverse;

#pragma unroll
	for (int k = 0; k < items_of(dtype); k++)
		max2 = quant_max2(max2, r[k]);
	max2 = quant_warp_max2(max2);
	if (warps > 1) {
		uint32_t *part = s_max + threadIdx.y * warps;

		if (lane == 0)
			part[threadIdx.x / 32] = max2;
		__syncthreads();
		max2 = quant_warp_max2(lane < warps ? part[lane] : 0);
	}
	scale = quant_scale(quant_magnitude<dtype>(max2));
	inverse = quant_inverse(scale);
	if (threadIdx.x == 0 && vecs)
		a.q_scale[row] = scale;
#pragma unroll
	for (int k = 0; k < items_of(dtype); k++)
		if (threadIdx.x + k * blockDim.x < vecs)
			quant_store<dtype>(q, threadIdx.x + k * blockDim.x, r[k], scale, inverse);
}

template <int dtype, int q_kind>
__global__ void __launch_bounds__(MAX_DIM / row_vec(dtype) / items_of(dtype))
rmsnorm_kernel(const __grid_constant__ struct cairn_rmsnorm_args a)
{
	constexpr int vec = row_vec(dtype), items = items_of(dtype);
	const int row = blockIdx.x * blockDim.y + threadIdx.y, vecs = a.dim / vec;
	const int warp = threadIdx.x / 32, warps = blockDim.x / 32;
	const bool live = row < a.rows;
	const int64_t first = (int64_t)row * vecs;
	const uint4 *x = (const uint4 *)a.x + first, *weight = (const uint4 *)a.weight;
	uint4 *residual = (uint4 *)a.residual + first, *out = (uint4 *)a.out + first;
	uint4 w[items], r[items], old[items];
	float f[vec], g[vec], sum = 0, scale;
	__shared__ float s_part[32];

#pragma unroll
	for (int k = 0; k < items; k++) {
		int v = threadIdx.x + k * blockDim.x;

		w[k] = r[k] = old[k] = make_uint4(0, 0, 0, 0);
		if (v < vecs)
			w[k] = __ldg(weight + v);
	}
	ptx_griddepcontrol_wait();
	ptx_griddepcontrol_launch_dependents();
#pragma unroll
	for (int k = 0; k < items; k++) {
		int v = threadIdx.x + k * blockDim.x;

		if (live && v < vecs) {
			r[k] = x[v];
			if (a.residual)
				old[k] = residual[v];
		}
	}
#pragma unroll
	for (int k = 0; k < items; k++) {
		int v = threadIdx.x + k * blockDim.x;

		row_unpack<dtype>(r[k], f);
		if (a.residual) {
			row_unpack<dtype>(old[k], g);
#pragma unroll
			for (int j = 0; j < vec; j++)
				f[j] += g[j];
			r[k] = row_pack<dtype>(f);
			if (live && v < vecs)
				residual[v] = r[k];
			row_unpack<dtype>(r[k], f);
		}
#pragma unroll
		for (int j = 0; j < vec; j++)
			sum += f[j] * f[j];
	}
	sum = row_warp_sum(sum);
	if (warps > 1) {
		const float *part = s_part + threadIdx.y * warps;

		if (threadIdx.x % 32 == 0)
			s_part[threadIdx.y * warps + warp] = sum;
		__syncthreads();
		sum = 0;
		for (int k = 0; k < warps; k++)
			sum += part[k];
	}
	scale = rsqrtf(sum / (float)a.dim + a.eps);
#pragma unroll
	for (int k = 0; k < items; k++) {
		int v = threadIdx.x + k * blockDim.x;

		row_unpack<dtype>(r[k], f);
		row_unpack<dtype>(w[k], g);
#pragma unroll
		for (int j = 0; j < vec; j++)
			f[j] = f[j] * scale * (a.weight_offset + g[j]);
		if (live && v < vecs && (q_kind == NO_Q || a.out))
			out[v] = row_pack<dtype>(f);
		if (q_kind != NO_Q)
			r[k] = row_pack<dtype>(f);
	}
	if (q_kind == CAIRN_FP8_SCALE_ROWS)
		quantise_row<dtype>(a, row, r);
	if (q_kind == CAIRN_FP8_SCALE_PIECES)
		quantise_pieces<dtype>(a, row, r);
}

template <int dtype> static const void *kernel_of(const struct cairn_rmsnorm_args *a)
{
	if (!a->q)
		return (const void *)rmsnorm_kernel<dtype, NO_Q>;
	return a->q_kind == CAIRN_FP8_SCALE_ROWS ?
		(const void *)rmsnorm_kernel<dtype, CAIRN_FP8_SCALE_ROWS> :
		(const void *)rmsnorm_kernel<dtype, CAIRN_FP8_SCALE_PIECES>;
}

extern "C" int cairn_rmsnorm(const struct cairn_rmsnorm_args *args, void *stream)
{
	struct cairn_launch l = { .pdl = 1, .stream = stream };
	struct cairn_rmsnorm_args a;
	void *params[] = { &a };
	int vecs, rows, items;

	CAIRN_TRY(cairn_rmsnorm_check(args));
	cairn_copy_args(&a, args, sizeof(a));
	if (a.rows == 0)
		return 0;
	vecs = a.dim / row_vec(a.dtype);
	items = items_of(a.dtype);
	l.block[0] = (vecs + 32 * items - 1) / (32 * items) * 32;
	rows = l.block[0] < 128 ? 128 / l.block[0] : 1;
	l.block[1] = rows;
	l.grid[0] = (a.rows + rows - 1) / rows;
	switch (a.dtype) {
	case CAIRN_F32:
		return cairn_launch((const void *)rmsnorm_kernel<CAIRN_F32, NO_Q>, &l, params);
	case CAIRN_F16:
		return cairn_launch(kernel_of<CAIRN_F16>(&a), &l, params);
	default:
		return cairn_launch(kernel_of<CAIRN_BF16>(&a), &l, params);
	}
}
