// SPDX-License-Identifier: Apache-2.0
/*
 * ladder2_tiled - step 2: tiles in shared memory, products of register tiles
 *
 * A CTA has 128 rows of one head and walks over its keys, 64 at a time, which it copies to shared memory. A
 * thread computes 8 rows x 4 keys of S and 8 rows x 8 columns of O, so a number that it has loaded and
 * widened is multiplied 4 or 8 times instead of once. Sixteen neighbouring lanes hold a row; the row's
 * maximum takes four shuffles. P goes through shared memory, because the threads that multiply it with V need
 * all keys of a row; only those sixteen lanes read it, so that a warp barrier suffices.
 *
 *   for each key tile:  barrier | copy K, V | barrier | S = Q K^T | mask, online softmax | P to shared
 *                       memory | O += P V
 *
 * Shared memory, 101 KiB: q [128], k [64] and v [64] rows of 136 elements (8 unused, so that the rows begin
 * in different banks); p [64 keys][132] f32. Floor: as step 1, 60 TFLOP/s; to reach even half of it, half the
 * instructions must be fused multiply-adds.
 */
#include "fused/attention/ladder/ladder.cuh"

#define ROWS	128
#define KEYS	64
#define THREADS	256
#define CHUNKS	(LADDER_DIM / 8)	/* 16 bytes each */

struct tiles {
	uint4 q[ROWS][CHUNKS + 1], k[KEYS][CHUNKS + 1], v[KEYS][CHUNKS + 1];
	float p[KEYS][ROWS + 4];
};

/* Copies `rows` rows of one head, of which only the first `have` exist; the others become zeros. */
ATTN_DEV void copy_tile(uint4 (*to)[CHUNKS + 1], const void *from, int64_t first, int64_t stride, int rows,
			int have)
{
	for (int i = threadIdx.x; i < rows * CHUNKS; i += THREADS) {
		int row = i / CHUNKS, chunk = i % CHUNKS;

		to[row][chunk] = make_uint4(0, 0, 0, 0);
		if (row < have)
			to[row][chunk] = ((const uint4 *)from)[(first + row * stride) / 8 + chunk];
	}
}

template <int dtype>
static __global__ __launch_bounds__(THREADS) void
tiled_kernel(const __grid_constant__ struct cairn_attn_dense_args a)
{
	extern __shared__ __align__(16) uint8_t s_all[];
	struct tiles *sm = (struct tiles *)s_all;
	struct ladder_tile t = ladder_find(a, ROWS);
	/* the thread's rows are 8 ty .. 8 ty + 7, its keys tx + 16 j, its columns 8 tx .. 8 tx + 7 */
	const int tx = threadIdx.x % 16, ty = threadIdx.x / 16;
	const float scale_log2 = a.sm_scale * ATTN_LOG2E;
	float o[8][8] = {}, m[8], l[8] = {}, x[8];

	if (t.row0 >= t.qo_len)
		return;
	for (int i = 0; i < 8; i++)
		m[i] = -CUDART_INF_F;
	copy_tile(sm->q, a.q, (t.qo_first + t.row0) * a.q_stride + t.head * LADDER_DIM, a.q_stride, ROWS,
		  t.qo_len - t.row0);
	for (int key = 0; key < t.end; key += KEYS) {
		float s[8][4] = {}, y[4][8];

		__syncthreads();	/* the previous tile has been read */
		copy_tile(sm->k, a.k, (t.kv_first + key) * a.k_stride + t.kv_head * a.k_head_stride,
			  a.k_stride, KEYS, t.kv_len - key);
		copy_tile(sm->v, a.v, (t.kv_first + key) * a.v_stride + t.kv_head * a.v_head_stride,
			  a.v_stride, KEYS, t.kv_len - key);
		__syncthreads();
		for (int c = 0; c < CHUNKS; c++) {
#pragma unroll
			for (int j = 0; j < 4; j++)
				row_unpack<dtype>(sm->k[tx + 16 * j][c], y[j]);
#pragma unroll
			for (int i = 0; i < 8; i++) {
				row_unpack<dtype>(sm->q[8 * ty + i][c], x);
				for (int d = 0; d < 8; d++)
					for (int j = 0; j < 4; j++)
						s[i][j] += x[d] * y[j][d];
			}
		}
#pragma unroll
		for (int i = 0; i < 8; i++) {
			int end = attn_visible(t.row0 + 8 * ty + i, t.qo_len, t.kv_len, a.causal);
			float top = m[i], base, keep;

			for (int j = 0; j < 4; j++) {
				if (key + tx + 16 * j >= end)
					s[i][j] = -CUDART_INF_F;
				top = fmaxf(top, s[i][j]);
			}
			for (int lane = 1; lane < 16; lane *= 2)
				top = fmaxf(top, __shfl_xor_sync(~0u, top, lane));
			base = top == -CUDART_INF_F ? 0 : top;	/* -inf: the row has seen no key yet */
			keep = ptx_ex2_approx_ftz((m[i] - base) * scale_log2);
			m[i] = top;
			l[i] *= keep;
			for (int j = 0; j < 4; j++) {
				s[i][j] = ptx_ex2_approx_ftz((s[i][j] - base) * scale_log2);
				l[i] += s[i][j];
			}
			for (int j = 0; j < 8; j++)
				o[i][j] *= keep;
		}
#pragma unroll
		for (int j = 0; j < 4; j++) {
			float4 *p = (float4 *)&sm->p[tx + 16 * j][8 * ty];

			p[0] = make_float4(s[0][j], s[1][j], s[2][j], s[3][j]);
			p[1] = make_float4(s[4][j], s[5][j], s[6][j], s[7][j]);
		}
		__syncwarp();
#pragma unroll 4
		for (int j = 0; j < KEYS; j++) {
			row_unpack<dtype>(sm->v[j][tx], y[0]);
			*(float4 *)x = *(const float4 *)&sm->p[j][8 * ty];
			*(float4 *)(x + 4) = *(const float4 *)&sm->p[j][8 * ty + 4];
			for (int i = 0; i < 8; i++)
				for (int d = 0; d < 8; d++)
					o[i][d] += x[i] * y[0][d];
		}
	}
#pragma unroll
	for (int i = 0; i < 8; i++) {
		int row = t.row0 + 8 * ty + i;

		for (int lane = 1; lane < 16; lane *= 2)
			l[i] += __shfl_xor_sync(~0u, l[i], lane);
		for (int j = 0; j < 8; j++)
			x[j] = l[i] > 0 ? o[i][j] / l[i] : 0;
		if (row >= t.qo_len)
			continue;
		((uint4 *)a.out)[ladder_row_at(a, t, row) * CHUNKS + tx] = row_pack<dtype>(x);
		if (a.lse && tx == 0)
			a.lse[ladder_row_at(a, t, row)] = attn_lse(m[i], l[i], a.sm_scale);
	}
}

int ladder_attn2(const struct cairn_attn_dense_args *args, void *stream)
{
	const struct ladder_kernel k = {
		{ (const void *)tiled_kernel<CAIRN_F16>, (const void *)tiled_kernel<CAIRN_BF16> },
		ROWS, THREADS, sizeof(struct tiles)
	};
	struct cairn_attn_dense_args a;
	void *params[] = { &a };

	CAIRN_TRY(ladder_take(args, &a));
	return ladder_launch(&k, &a, params, stream);
}
