// SPDX-License-Identifier: Apache-2.0
/*
 * ladder1_naive - step 1: a thread computes a row
 *
 * For each key that the row sees, the thread computes s = q k, p = e^(s - m), l += p, o += p v, where m is
 * the largest s so far. When m grows, l and o are multiplied by e^(old m - new m). This is the online
 * softmax, which needs each key only once. q and o, of 128 numbers each, are all in the thread's registers.
 *
 * Floor: 2 x 128 fused multiply-adds for each row and key, at 128 of them a clock and SM: 60 TFLOP/s. This
 * kernel stays far below it. All 32 threads of a warp load the same 16 bytes of K or V and use each number
 * once. So for each instruction that computes with a number, the warp executes another one to load and widen
 * it, and the two warps of each scheduler cannot hide the latency of the loads.
 */
#include "fused/attention/ladder/ladder.cuh"

#define THREADS	128
#define CHUNKS	(LADDER_DIM / 8)	/* 16 bytes each */

template <int dtype>
static __global__ __launch_bounds__(THREADS) void
naive_kernel(const __grid_constant__ struct cairn_attn_dense_args a)
{
	struct ladder_tile t = ladder_find(a, THREADS);
	int row = t.row0 + threadIdx.x, end = attn_visible(row, t.qo_len, t.kv_len, a.causal);
	const uint4 *k = (const uint4 *)a.k + (t.kv_first * a.k_stride + t.kv_head * a.k_head_stride) / 8;
	const uint4 *v = (const uint4 *)a.v + (t.kv_first * a.v_stride + t.kv_head * a.v_head_stride) / 8;
	const float scale_log2 = a.sm_scale * ATTN_LOG2E;
	float o[LADDER_DIM] = {}, m = -CUDART_INF_F, l = 0, inverse, x[8], y[8];
	uint4 q[CHUNKS], *out;

	if (row >= t.qo_len)
		return;
#pragma unroll
	for (int i = 0; i < CHUNKS; i++)
		q[i] = ((const uint4 *)a.q)[((t.qo_first + row) * a.q_stride + t.head * LADDER_DIM) / 8 + i];
	for (int key = 0; key < end; key++) {
		float s = 0, p;

#pragma unroll
		for (int i = 0; i < CHUNKS; i++) {
			row_unpack<dtype>(q[i], x);
			row_unpack<dtype>(k[i], y);
#pragma unroll
			for (int j = 0; j < 8; j++)
				s += x[j] * y[j];
		}
		if (s > m) {
			float keep = ptx_ex2_approx_ftz((m - s) * scale_log2);

			m = s;
			l *= keep;
#pragma unroll
			for (int i = 0; i < LADDER_DIM; i++)
				o[i] *= keep;
		}
		p = ptx_ex2_approx_ftz((s - m) * scale_log2);
		l += p;
#pragma unroll
		for (int i = 0; i < CHUNKS; i++) {
			row_unpack<dtype>(v[i], y);
#pragma unroll
			for (int j = 0; j < 8; j++)
				o[i * 8 + j] += p * y[j];
		}
		k += a.k_stride / 8;
		v += a.v_stride / 8;
	}
	inverse = l > 0 ? 1 / l : 0;
	out = (uint4 *)a.out + ladder_row_at(a, t, row) * CHUNKS;
#pragma unroll
	for (int i = 0; i < CHUNKS; i++) {
#pragma unroll
		for (int j = 0; j < 8; j++)
			x[j] = o[i * 8 + j] * inverse;
		out[i] = row_pack<dtype>(x);
	}
	if (a.lse)
		a.lse[ladder_row_at(a, t, row)] = attn_lse(m, l, a.sm_scale);
}

int ladder_attn1(const struct cairn_attn_dense_args *args, void *stream)
{
	const struct ladder_kernel k = {
		{ (const void *)naive_kernel<CAIRN_F16>, (const void *)naive_kernel<CAIRN_BF16> },
		THREADS, THREADS, 0
	};
	struct cairn_attn_dense_args a;
	void *params[] = { &a };

	CAIRN_TRY(ladder_take(args, &a));
	return ladder_launch(&k, &a, params, stream);
}
