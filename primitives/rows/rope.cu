/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rope.cu - a CTA rotates all heads of blockDim.y rows
 *
 * Schedule: an item is 8 pairs of one head, two vectors of 16 bytes (four in f32): elements p .. p+7 and
 * their partners, half a head away or interleaved. A thread issues the loads of its first item, helps to fill
 * the row's table of cosines and sines, which all heads share, and uses the loaded item only after the
 * barrier. If a row has more than 512 items (many or long heads), further items follow in a loop.
 *
 * shared memory   [blockDim.y][2][rotary_dim / 2] floats: cosines times scale, sines times scale
 * barriers        one __syncthreads
 *
 * Floor: 128 rows of 32 + 8 heads of 128 bf16 are 1.3 MB in and out. They take 0.6 us, less than the launch
 * (0.8 us), so what remains is one memory round trip and the dependent chain position -> angle -> table ->
 * barrier -> store. rope_norm.cu has the kernel for heads that are normalised first.
 */
#include "primitives/base/launch.h"
#include "primitives/rows/rope.cuh"

#define MAX_THREADS 512

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
		fill_table(a, position, freq, s_cos, s_sin);
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
	if (a.q_norm || (a.k && a.k_norm))
		return rope_norm(&a, stream);
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
