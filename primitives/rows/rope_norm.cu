/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rope_norm.cu - normalises each head, then rotates it as rope.cu does
 *
 * Schedule: a head occupies adjacent lanes, one per item of 16 elements. Their number is rounded up to a
 * power of two, and surplus lanes hold zeros, so the head's sum of squares is a butterfly of shuffles within
 * these lanes. Items are those of rope.cu, 8 pairs each; past rotary_dim an item is 16 consecutive elements,
 * which are only normalised. A thread keeps its item in registers from load to store: one pass over memory.
 *
 * shared memory   [blockDim.y][2][rotary_dim / 2] floats: the row's table
 * barriers        one __syncthreads; inv_freq is loaded before griddepcontrol.wait (no kernel writes it)
 *
 * Floor: that of rope.cu; the butterfly (3 steps for a head of 128) overlaps with filling the table.
 */
#include "primitives/base/launch.h"
#include "primitives/rows/rope.cuh"

#define MAX_THREADS	512

struct head_item {
	struct item item;
	bool live, rotated, is_k;
	int element[2];		/* indices within the head at which its two halves begin */
};

/* The item of slot i of a row; a head has 1 << lanes_log2 slots, one per lane. */
template <int dtype, int interleaved>
ROW struct head_item place(const struct cairn_rope_args &a, int row, int i, int lanes_log2)
{
	constexpr int esize = dtype == CAIRN_F32 ? 4 : 2;
	int h = i >> lanes_log2, nth = i - (h << lanes_log2);
	struct head_item p;
	char *x;

	p.live = row < a.nnz && h < a.num_qo_heads + a.num_kv_heads && nth < a.head_dim / 16;
	p.rotated = nth < a.rotary_dim / 16;
	p.is_k = h >= a.num_qo_heads;
	p.item.pair = 8 * nth;
	p.element[0] = p.rotated && !interleaved ? 8 * nth : 16 * nth;
	p.element[1] = p.element[0] + (p.rotated && !interleaved ? a.rotary_dim / 2 : 8);
	if (p.is_k)
		x = (char *)a.k + (row * a.k_stride + (int64_t)(h - a.num_qo_heads) * a.head_dim) * esize;
	else
		x = (char *)a.q + (row * a.q_stride + (int64_t)h * a.head_dim) * esize;
	p.item.at[0] = x + p.element[0] * esize;
	p.item.at[1] = x + p.element[1] * esize;
	return p;
}

/* f *= weights / root mean square of the head, if there are weights. All lanes of a warp must call this. */
template <int dtype>
ROW void normalise(const struct cairn_rope_args &a, const struct head_item *p, float *f, int lanes)
{
	const void *norm = p->is_k ? a.k_norm : a.q_norm;
	constexpr int esize = dtype == CAIRN_F32 ? 4 : 2;
	float sum = 0, w[16];

#pragma unroll
	for (int j = 0; j < 16; j++)
		sum += f[j] * f[j];
	for (int step = lanes / 2; step > 0; step /= 2)
		sum += __shfl_xor_sync(0xffffffffu, sum, step);
	if (!norm || !p->live)
		return;
	sum = rsqrtf(sum / (float)a.head_dim + a.norm_eps);
#pragma unroll
	for (int half = 0; half < 2; half++) {
		constexpr int vec = row_vec(dtype);
		const uint4 *from = (const uint4 *)((const char *)norm + p->element[half] * esize);

#pragma unroll
		for (int k = 0; k < 8 / vec; k++)
			row_unpack<dtype>(__ldg(from + k), w + half * 8 + k * vec);
	}
#pragma unroll
	for (int j = 0; j < 16; j++)
		f[j] = f[j] * sum * w[j];
}

template <int dtype, int interleaved>
__global__ void __launch_bounds__(MAX_THREADS)
	rope_norm_kernel(const __grid_constant__ struct cairn_rope_args a, int lanes_log2)
{
	extern __shared__ float4 s_table[];
	const int row = blockIdx.x * blockDim.y + threadIdx.y, half = a.rotary_dim / 2;
	const int slots = (a.num_qo_heads + a.num_kv_heads) << lanes_log2;
	float *s_cos = (float *)s_table + 2 * threadIdx.y * half, *s_sin = s_cos + half;
	float freq = threadIdx.x < half ? a.inv_freq[threadIdx.x] : 0;

	ptx_griddepcontrol_wait();
	ptx_griddepcontrol_launch_dependents();
	/* blockDim.x is a multiple of 32: all lanes of a warp iterate equally often, as shuffles require */
	for (int first = 0; first < slots; first += blockDim.x) {
		struct head_item p = place<dtype, interleaved>(a, row, first + threadIdx.x, lanes_log2);
		uint4 v[16 / row_vec(dtype)];
		float f[16];

#pragma unroll
		for (int k = 0; k < 16 / row_vec(dtype); k++)
			v[k] = make_uint4(0, 0, 0, 0);
		if (p.live)
			load<dtype>(&p.item, v);
		if (first == 0 && row < a.nnz)
			fill_table(a, (float)a.positions[row], freq, s_cos, s_sin);
		unpack<dtype>(v, f);
		normalise<dtype>(a, &p, f, 1 << lanes_log2);
		if (first == 0)
			__syncthreads();
		/* without weights the elements past rotary_dim must keep their bits */
		if (!p.live || (!p.rotated && !(p.is_k ? a.k_norm : a.q_norm)))
			continue;
		if (p.rotated)
			turn<interleaved>(f, p.item.pair, s_cos, s_sin);
		store<dtype>(&p.item, f);
	}
}

template <int interleaved> static const void *kernel_of(int dtype)
{
	switch (dtype) {
	case CAIRN_F32:
		return (const void *)rope_norm_kernel<CAIRN_F32, interleaved>;
	case CAIRN_F16:
		return (const void *)rope_norm_kernel<CAIRN_F16, interleaved>;
	default:
		return (const void *)rope_norm_kernel<CAIRN_BF16, interleaved>;
	}
}

int rope_norm(const struct cairn_rope_args *a, void *stream)
{
	int lanes_log2 = 0, heads = a->num_qo_heads + a->num_kv_heads, slots, rows;
	void *params[] = { (void *)a, &lanes_log2 };
	struct cairn_launch l = { .pdl = 1, .stream = stream };

	while (16 << lanes_log2 < a->head_dim)
		lanes_log2++;
	slots = heads << lanes_log2;
	l.block[0] = slots < MAX_THREADS ? (slots + 31) / 32 * 32 : MAX_THREADS;
	rows = l.block[0] < 128 ? 128 / l.block[0] : 1;
	l.block[1] = rows;
	l.grid[0] = (a->nnz + rows - 1) / rows;
	l.smem = (size_t)rows * a->rotary_dim * sizeof(float);
	return cairn_launch(a->interleaved ? kernel_of<1>(a->dtype) : kernel_of<0>(a->dtype), &l, params);
}
