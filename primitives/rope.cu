/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rope.cu - a CTA rotates all heads of blockDim.y rows
 *
 * Schedule: an item is 8 pairs of one head, two vectors of 16 bytes (four in f32): p .. p+7 and their
 * partners, half a head away or interleaved. A thread asks for its first item, then helps to fill
 * the row's table of cosines and sines, which all heads share, and only then, after the barrier, looks
 * at what it asked for. Further items follow in a loop (more than 512 items a row: many or long heads).
 *
 * shared memory   [blockDim.y][2][rotary_dim / 2] floats: cosines times scale, sines times scale
 * barriers        one __syncthreads
 *
 * Floor: 128 rows of 32 + 8 heads of 128 bf16 are 1.3 MB in and out: 0.6 us, less than the launch (0.8); what
 * is left is the chain position -> angle -> table -> barrier -> store behind one trip to memory.
 */
#include "angle.cuh"
#include "launch.h"
#include "rope.h"
#include "row.cuh"

#define MAX_THREADS 512

struct item {
	void *at[2];		/* of the two halves of its elements */
	int pair;		/* the first of 8 */
};

template <int dtype, int interleaved>
ROW void place(const struct cairn_rope_args &a, int row, int i, struct item *item)
{
	constexpr int esize = dtype == CAIRN_F32 ? 4 : 2;
	int per_head = a.rotary_dim / 16, h = i / per_head;
	char *x;

	item->pair = 8 * (i - h * per_head);
	if (h < a.num_qo_heads)
		x = (char *)a.q + (row * a.q_stride + (int64_t)h * a.head_dim) * esize;
	else
		x = (char *)a.k + (row * a.k_stride + (int64_t)(h - a.num_qo_heads) * a.head_dim) * esize;
	x += item->pair * (interleaved ? 2 : 1) * esize;
	item->at[0] = x;
	item->at[1] = x + (interleaved ? 8 : a.rotary_dim / 2) * esize;
}

template <int dtype> ROW void load(const struct item *item, uint4 *v)
{
	constexpr int n = 8 / row_vec(dtype);

#pragma unroll
	for (int k = 0; k < 2 * n; k++)
		v[k] = ((const uint4 *)item->at[k / n])[k % n];
}

template <int dtype, int interleaved>
ROW void rotate(const struct item *item, const uint4 *v, const float *s_cos, const float *s_sin)
{
	constexpr int vec = row_vec(dtype), n = 8 / vec;
	float f[16], c[8], s[8];

#pragma unroll
	for (int k = 0; k < 2 * n; k++)
		row_unpack<dtype>(v[k], f + k * vec);
#pragma unroll
	for (int j = 0; j < 8; j += 4) {
		*(float4 *)(c + j) = *(const float4 *)(s_cos + item->pair + j);
		*(float4 *)(s + j) = *(const float4 *)(s_sin + item->pair + j);
	}
#pragma unroll
	for (int j = 0; j < 8; j++) {
		int ia = interleaved ? 2 * j : j, ib = interleaved ? 2 * j + 1 : j + 8;
		float xa = f[ia], xb = f[ib];

		f[ia] = xa * c[j] - xb * s[j];
		f[ib] = xb * c[j] + xa * s[j];
	}
#pragma unroll
	for (int k = 0; k < 2 * n; k++)
		((uint4 *)item->at[k / n])[k % n] = row_pack<dtype>(f + k * vec);
}

template <int dtype, int interleaved>
__global__ void __launch_bounds__(MAX_THREADS) rope_kernel(const __grid_constant__ struct cairn_rope_args a)
{
	extern __shared__ float4 s_table[];
	const int row = blockIdx.x * blockDim.y + threadIdx.y, half = a.rotary_dim / 2;
	const int items = (a.num_qo_heads + a.num_kv_heads) * (a.rotary_dim / 16);
	float *s_cos = (float *)s_table + 2 * threadIdx.y * half, *s_sin = s_cos + half;
	float freq = threadIdx.x < half ? a.inv_freq[threadIdx.x] : 0;
	uint4 v[16 / row_vec(dtype)];
	struct item item;
	int i = threadIdx.x;

	ptx_griddepcontrol_wait();
	ptx_griddepcontrol_launch_dependents();
	if (row < a.nnz) {
		float position = (float)a.positions[row];

		if (i < items) {
			place<dtype, interleaved>(a, row, i, &item);
			load<dtype>(&item, v);
		}
		for (int p = threadIdx.x; p < half; p += blockDim.x) {
			float c, s;

			angle_cos_sin(__fmul_rn(position, p == threadIdx.x ? freq : a.inv_freq[p]), &c, &s);
			s_cos[p] = c * a.scale;
			s_sin[p] = s * a.scale;
		}
	}
	__syncthreads();
	if (row >= a.nnz)
		return;
	while (i < items) {
		rotate<dtype, interleaved>(&item, v, s_cos, s_sin);
		i += blockDim.x;
		if (i < items) {
			place<dtype, interleaved>(a, row, i, &item);
			load<dtype>(&item, v);
		}
	}
}

extern "C" int cairn_rope(const struct cairn_rope_args *args, void *stream)
{
	struct cairn_launch l = { .pdl = 1, .stream = stream };
	struct cairn_rope_args a;
	void *params[] = { &a };
	const void *kernel;
	int items, rows;

	CAIRN_TRY(cairn_rope_check(args));
	if (args->nnz == 0)
		return 0;
	a = *args;
	if (!a.k)
		a.num_kv_heads = 0;
	if (!a.q_stride)
		a.q_stride = (int64_t)a.num_qo_heads * a.head_dim;
	if (!a.k_stride)
		a.k_stride = (int64_t)a.num_kv_heads * a.head_dim;
	items = (a.num_qo_heads + a.num_kv_heads) * (a.rotary_dim / 16);
	l.block[0] = items < MAX_THREADS ? (items + 31) / 32 * 32 : MAX_THREADS;
	rows = l.block[0] < 128 ? 128 / l.block[0] : 1;
	l.block[1] = rows;
	l.grid[0] = (a.nnz + rows - 1) / rows;
	l.smem = (size_t)rows * a.rotary_dim * sizeof(float);
	switch (2 * a.dtype + !!a.interleaved) {
	case 2 * CAIRN_F32:
		kernel = (const void *)rope_kernel<CAIRN_F32, 0>;
		break;
	case 2 * CAIRN_F32 + 1:
		kernel = (const void *)rope_kernel<CAIRN_F32, 1>;
		break;
	case 2 * CAIRN_F16:
		kernel = (const void *)rope_kernel<CAIRN_F16, 0>;
		break;
	case 2 * CAIRN_F16 + 1:
		kernel = (const void *)rope_kernel<CAIRN_F16, 1>;
		break;
	case 2 * CAIRN_BF16:
		kernel = (const void *)rope_kernel<CAIRN_BF16, 0>;
		break;
	default:
		kernel = (const void *)rope_kernel<CAIRN_BF16, 1>;
	}
	return cairn_launch(kernel, &l, params);
}
