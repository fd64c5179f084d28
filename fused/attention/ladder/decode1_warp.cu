// SPDX-License-Identifier: Apache-2.0
/*
 * decode1_warp - step 1: a warp for each request and query head
 *
 * A lane holds four of the 128 columns. For each key the warp loads 256 bytes of K, sums the products over
 * its lanes by five shuffles, adds the logit to the online softmax and adds p v.
 *
 * Floor: one read of K and V. This kernel reads them once for each query head, although the heads of a group
 * have the same keys, and each lane loads only 8 bytes at a time. The loads of each key wait for its page
 * number, and each step of the softmax waits for the step before it.
 */
#include "fused/attention/ladder/decode_states.cuh"
#include "primitives/base/launch.h"

#define WARPS	4

/* Loads this lane's four columns of a row of 128 that begins at element `at`. */
template <int dtype> ATTN_DEV void load_four(float x[4], const void *from, int64_t at)
{
	uint2 v = ((const uint2 *)from)[at / 4 + threadIdx.x % 32];

	row_unpack2<dtype>(v.x, x);
	row_unpack2<dtype>(v.y, x + 2);
}

template <int dtype>
static __global__ __launch_bounds__(WARPS * 32) void
warp_kernel(const __grid_constant__ struct cairn_attn_paged_args a, int group)
{
	const int head = blockIdx.x * WARPS + threadIdx.x / 32, lane = threadIdx.x % 32;
	const int shift = kv_page_shift(a.kv.page_size);
	const float scale_log2 = a.sm_scale * ATTN_LOG2E;
	float q[4], k[4], v[4], o[4] = {}, m = -CUDART_INF_F, l = 0;
	struct attn_request r;

	if (head >= a.num_qo_heads)
		return;
	r = attn_load_request(a, blockIdx.y, head / group, group, attn_magic(group));
	if (!r.qo_len)
		return;
	load_four<dtype>(q, a.q, attn_q_row(a, r, head % group));
	for (int key = 0; key < r.kv_len; key++) {
		int64_t slot = attn_slot(a, r, shift, key, r.kv_len);
		int64_t at = (slot * a.num_kv_heads + r.head) * LADDER_DIM;
		float s, top, keep, p;

		load_four<dtype>(k, a.kv.k_pages, at);
		load_four<dtype>(v, a.kv.v_pages, at);
		s = row_warp_sum(q[0] * k[0] + q[1] * k[1] + q[2] * k[2] + q[3] * k[3]);
		top = fmaxf(m, s);
		keep = ptx_ex2_approx_ftz((m - top) * scale_log2);
		p = ptx_ex2_approx_ftz((s - top) * scale_log2);
		m = top;
		l = l * keep + p;
#pragma unroll
		for (int i = 0; i < 4; i++)
			o[i] = o[i] * keep + p * v[i];
	}
#pragma unroll
	for (int i = 0; i < 4; i++)
		decode_write<dtype>(a, attn_out_row(a, r, head % group), lane * 4 + i, o[i], m, l);
}

int ladder_decode1(const struct cairn_attn_paged_args *args, void *stream)
{
	struct cairn_launch l = { {}, { WARPS * 32 } };
	struct cairn_attn_paged_args a;
	int group, busy;
	void *params[] = { &a, &group };

	CAIRN_TRY(ladder_check_decode(args, 0x7fffffff, &busy));
	if (!busy)
		return 0;
	a = *args;
	group = a.num_qo_heads / a.num_kv_heads;
	l.grid[0] = (unsigned int)(a.num_qo_heads - 1) / WARPS + 1;
	l.grid[1] = (unsigned int)a.kv.batch;
	l.stream = stream;
	return cairn_launch(a.dtype == CAIRN_F16 ? (const void *)warp_kernel<CAIRN_F16> :
			    (const void *)warp_kernel<CAIRN_BF16>, &l, params);
}
