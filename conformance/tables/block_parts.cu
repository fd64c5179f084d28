// SPDX-License-Identifier: Apache-2.0
/*
 * block_parts - rope and append; norm, rope and append; silu and multiply: for the unfused chains
 *
 * Schedule of the two appends: blockIdx.x is the request, blockIdx.y a slice of its items. An item is two
 * vectors of 16 bytes; each thread has one item. Every CTA computes the whole table of cosines and sines (up
 * to 64 threads, one entry each) while its loads are in flight. In mla_append slice 0 is the new key: 64
 * threads norm c, four rotate r.
 *
 * The time is all latency. Two chains of dependent steps run concurrently: position -> angle -> table ->
 * barrier -> store, and indptr -> page id -> slot.
 */
#include "primitives/rows/angle.cuh"
#include "primitives/base/launch.h"
#include "primitives/rows/row.cuh"
#include "fused/cache/kv_walk.h"
#include "conformance/tables/block_parts.h"

#define THREADS		128
#define MLA_RANK	512
#define MLA_ROPE	64
#define MLA_NOPE	128
#define MLA_KEY		(MLA_RANK + MLA_ROPE)
#define MLA_Q		(MLA_NOPE + MLA_ROPE)

static __device__ const int32_t counting[BLOCK_PARTS_MAX_BATCH + 1] = {
	0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16,
};

/* Returns the slot of the newest key, counted over all pages; < 0: no key, the request is skipped. */
template <class args> ROW int64_t newest_slot(const args &a, int b)
{
	int32_t first_page = a.kv.indptr[b];
	int32_t key = kv_walk_len(a.kv.indptr[b + 1] - first_page, a.kv.last_page_len[b], a.kv.page_size) - 1;
	int32_t page_shift = kv_page_shift(a.kv.page_size), page;

	if (key < 0)
		return -1;
	page = page_shift >= 0 ? key >> page_shift : key / a.kv.page_size;
	return (int64_t)a.kv.indices[first_page + page] * a.kv.page_size + (key - page * a.kv.page_size);
}

/*
 * Rotates 8 pairs. x[0] has the first elements of the pairs, x[1] the second ones; interleaved: pair after
 * pair.
 */
template <int dtype, int interleaved> ROW void rotate(uint4 x[2], const float *cosines, const float *sines)
{
	float f[16];

	row_unpack<dtype>(x[0], f);
	row_unpack<dtype>(x[1], f + 8);
#pragma unroll
	for (int j = 0; j < 8; j++) {
		int ia = interleaved ? 2 * j : j, ib = interleaved ? 2 * j + 1 : j + 8;
		float xa = f[ia], xb = f[ib];

		f[ia] = xa * cosines[j] - xb * sines[j];
		f[ib] = xb * cosines[j] + xa * sines[j];
	}
	x[0] = row_pack<dtype>(f);
	x[1] = row_pack<dtype>(f + 8);
}

ROW void make_table(float *s_cos, float *s_sin, int half, float freq, float position)
{
	if (threadIdx.x < half)
		angle_cos_sin(__fmul_rn(position, freq), s_cos + threadIdx.x, s_sin + threadIdx.x);
}

template <int dtype> static __global__ void __launch_bounds__(THREADS)
rope_append_kernel(const __grid_constant__ struct block_rope_append_args a)
{
	__shared__ __align__(16) float s_cos[64], s_sin[64];
	const int half = a.head_dim / 2, vecs = a.head_dim / 8;		/* vecs: vectors of a head */
	const int rotated = (a.num_qo_heads + a.num_kv_heads) * (half / 8),
		  items = rotated + a.num_kv_heads * vecs / 2;
	const int i = blockIdx.y * THREADS + threadIdx.x, b = blockIdx.x;
	const int head = i < rotated ? i / (half / 8) : 0, piece = i - head * (half / 8);
	uint4 *row = (uint4 *)a.qkv + (int64_t)b * (a.num_qo_heads + 2 * a.num_kv_heads) * vecs;
	/* the item's two vectors are row[at] and row[at + step] */
	const int at = i < rotated ? head * vecs + piece :
		       (a.num_qo_heads + a.num_kv_heads) * vecs + 2 * (i - rotated);
	const int step = i < rotated ? vecs / 2 : 1;
	float freq = threadIdx.x < half ? a.inv_freq[threadIdx.x] : 0;
	int64_t slot;
	uint4 x[2];

	ptx_griddepcontrol_wait();
	ptx_griddepcontrol_launch_dependents();
	slot = newest_slot(a, b);
	if (i < items) {
		x[0] = row[at];
		x[1] = row[at + step];
	}
	make_table(s_cos, s_sin, half, freq, (float)a.positions[b]);
	__syncthreads();
	if (i >= items || slot < 0)
		return;
	if (i < rotated)
		rotate<dtype, 0>(x, s_cos + piece * 8, s_sin + piece * 8);
	if (head >= a.num_qo_heads)
		row = (uint4 *)a.kv.k_pages + slot * a.num_kv_heads * vecs - a.num_qo_heads * vecs;
	if (i >= rotated)
		row = (uint4 *)a.kv.v_pages + slot * a.num_kv_heads * vecs -
		      (a.num_qo_heads + a.num_kv_heads) * vecs;
	row[at] = x[0];
	row[at + step] = x[1];
}

/* Norms, rotates and stores the new key. All threads of the CTA must call it: it contains a barrier. */

template <int dtype>
ROW void append_latent(const struct block_mla_append_args &a, int64_t slot, const uint4 x[2], uint4 weight,
		       const float *s_cos, const float *s_sin, float *s_sums)
{
	uint4 *key = (uint4 *)a.kv.k_pages + slot * (MLA_KEY / 8), v[2] = { x[0], x[1] };
	float f[8], w[8], sum = 0;

	if (threadIdx.x < MLA_RANK / 8) {
		row_unpack<dtype>(x[0], f);
#pragma unroll
		for (int j = 0; j < 8; j++)
			sum += f[j] * f[j];
		sum = row_warp_sum(sum);
		if (threadIdx.x % 32 == 0)
			s_sums[threadIdx.x / 32] = sum;
	}
	__syncthreads();
	if (slot < 0)
		return;
	if (threadIdx.x < MLA_RANK / 8) {
		float scale = rsqrtf((s_sums[0] + s_sums[1]) / MLA_RANK + a.eps);

		row_unpack<dtype>(weight, w);
#pragma unroll
		for (int j = 0; j < 8; j++)
			f[j] = f[j] * scale * w[j];
		key[threadIdx.x] = row_pack<dtype>(f);
	} else if (threadIdx.x < MLA_RANK / 8 + MLA_ROPE / 16) {
		int i = threadIdx.x - MLA_RANK / 8;

		rotate<dtype, 1>(v, s_cos + i * 8, s_sin + i * 8);
		key[MLA_RANK / 8 + 2 * i] = v[0];
		key[MLA_RANK / 8 + 2 * i + 1] = v[1];
	}
}

template <int dtype> static __global__ void __launch_bounds__(THREADS)
mla_append_kernel(const __grid_constant__ struct block_mla_append_args a)
{
	__shared__ __align__(16) float s_cos[MLA_ROPE / 2], s_sin[MLA_ROPE / 2], s_sums[2];
	const int b = blockIdx.x, i = ((int)blockIdx.y - 1) * THREADS + threadIdx.x;
	const int head = i / (MLA_ROPE / 16), piece = i % (MLA_ROPE / 16), t = threadIdx.x;
	const uint4 *kv = (const uint4 *)a.latent + b * (MLA_KEY / 8);
	uint4 *q = (uint4 *)a.q + ((int64_t)b * a.num_heads + head) * (MLA_Q / 8) + MLA_NOPE / 8 + 2 * piece;
	float freq = t < MLA_ROPE / 2 ? a.inv_freq[t] : 0;
	uint4 x[2] = { make_uint4(0, 0, 0, 0), make_uint4(0, 0, 0, 0) }, weight = x[0];
	int64_t slot;

	if (i < 0 && t < MLA_RANK / 8)
		weight = ((const uint4 *)a.kv_norm)[t];
	ptx_griddepcontrol_wait();
	ptx_griddepcontrol_launch_dependents();
	slot = newest_slot(a, b);
	if (i >= 0 && head < a.num_heads) {
		x[0] = q[0];
		x[1] = q[1];
	} else if (i < 0 && t < MLA_RANK / 8) {
		x[0] = kv[t];
	} else if (i < 0 && t < MLA_RANK / 8 + MLA_ROPE / 16) {
		x[0] = kv[2 * t - MLA_RANK / 8];
		x[1] = kv[2 * t - MLA_RANK / 8 + 1];
	}
	make_table(s_cos, s_sin, MLA_ROPE / 2, freq, (float)a.positions[b]);
	__syncthreads();
	if (blockIdx.y == 0) {
		append_latent<dtype>(a, slot, x, weight, s_cos, s_sin, s_sums);
	} else if (head < a.num_heads) {
		rotate<dtype, 1>(x, s_cos + piece * 8, s_sin + piece * 8);
		q[0] = x[0];
		q[1] = x[1];
	}
}

ROW float silu(float x)
{
	return __fdividef(x, 1 + __expf(-x));
}

template <int dtype> static __global__ void __launch_bounds__(THREADS)
silu_mul_kernel(const __grid_constant__ struct block_silu_mul_args a)
{
	const int i = blockIdx.x * THREADS + threadIdx.x, vecs = a.dim / 4;
	const float4 *gate = (const float4 *)a.x + (int64_t)blockIdx.y * 2 * vecs + i;
	float4 g, u;

	ptx_griddepcontrol_wait();
	ptx_griddepcontrol_launch_dependents();
	if (i >= vecs)
		return;
	g = gate[0];
	u = gate[vecs];
	((uint2 *)a.out)[(int64_t)blockIdx.y * vecs + i] =
		make_uint2(row_pack2<dtype>(silu(g.x) * u.x, silu(g.y) * u.y),
			   row_pack2<dtype>(silu(g.z) * u.z, silu(g.w) * u.w));
}

extern "C" int block_rope_append(const struct block_rope_append_args *a, void *stream)
{
	struct cairn_launch l = { .pdl = 1, .stream = stream };
	void *params[] = { (void *)a };

	l.grid[0] = a->kv.batch;
	l.grid[1] = ((a->num_qo_heads + 2 * a->num_kv_heads) * a->head_dim / 16 + THREADS - 1) / THREADS;
	l.block[0] = THREADS;
	return cairn_launch(a->dtype == CAIRN_F16 ? (const void *)rope_append_kernel<CAIRN_F16> :
			    (const void *)rope_append_kernel<CAIRN_BF16>, &l, params);
}

extern "C" int block_mla_append(const struct block_mla_append_args *a, void *stream)
{
	struct cairn_launch l = { .pdl = 1, .stream = stream };
	void *params[] = { (void *)a };

	l.grid[0] = a->kv.batch;
	l.grid[1] = 1 + (a->num_heads * (MLA_ROPE / 16) + THREADS - 1) / THREADS;
	l.block[0] = THREADS;
	return cairn_launch(a->dtype == CAIRN_F16 ? (const void *)mla_append_kernel<CAIRN_F16> :
			    (const void *)mla_append_kernel<CAIRN_BF16>, &l, params);
}

extern "C" int block_silu_mul(const struct block_silu_mul_args *a, void *stream)
{
	struct cairn_launch l = { .pdl = 1, .stream = stream };
	void *params[] = { (void *)a };

	l.grid[0] = (a->dim / 4 + THREADS - 1) / THREADS;
	l.grid[1] = a->rows;
	l.block[0] = THREADS;
	return cairn_launch(a->dtype == CAIRN_F16 ? (const void *)silu_mul_kernel<CAIRN_F16> :
			    (const void *)silu_mul_kernel<CAIRN_BF16>, &l, params);
}

extern "C" int block_qo_indptr(const int32_t **indptr)
{
	CAIRN_CUDA(cudaGetSymbolAddress((void **)indptr, counting));
	return 0;
}
