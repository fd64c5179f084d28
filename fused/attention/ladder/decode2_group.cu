// SPDX-License-Identifier: Apache-2.0
/*
 * decode2_group - step 2: a CTA for each request and KV head; all query heads of the group share each key
 *
 * K and V are read once, 16 bytes a lane, and a CTA has 32 keys in flight (decode_group.cuh). That is 16 KiB;
 * step 1 has 512 bytes in flight for each warp. At the end the CTA merges its teams' states and writes the
 * rows.
 *
 * Shared memory: 4 KiB for each query head. Floor: one read of K and V. A batch of few requests does not
 * reach it, because it has fewer pairs of request and KV head than the device has SMs.
 */
#include "fused/attention/ladder/decode_group.cuh"
#include "primitives/base/launch.h"

template <int dtype, int rows>
static __global__ __launch_bounds__(THREADS, CTAS(rows)) void
group_kernel(const __grid_constant__ struct cairn_attn_paged_args a, int group)
{
	__shared__ struct decode_states<TEAMS, rows> states;
	struct attn_request r = attn_load_request(a, blockIdx.y, blockIdx.x, group, attn_magic(group));

	if (!r.qo_len)
		return;
	group_attend<dtype, rows>(a, r, 0, r.kv_len, &states);
	for (int i = threadIdx.x; i < group * LADDER_DIM; i += THREADS) {
		int row = i / LADDER_DIM, d = i % LADDER_DIM;
		float m, l, o = decode_merge(states, row, d, a.sm_scale * ATTN_LOG2E, &m, &l);

		decode_write<dtype>(a, attn_out_row(a, r, row), d, o, m, l);
	}
}

int ladder_decode2(const struct cairn_attn_paged_args *args, void *stream)
{
	static const void *const kernels[2][4] = {
		{ (const void *)group_kernel<CAIRN_F16, 1>, (const void *)group_kernel<CAIRN_F16, 2>,
		  (const void *)group_kernel<CAIRN_F16, 4>, (const void *)group_kernel<CAIRN_F16, 8> },
		{ (const void *)group_kernel<CAIRN_BF16, 1>, (const void *)group_kernel<CAIRN_BF16, 2>,
		  (const void *)group_kernel<CAIRN_BF16, 4>, (const void *)group_kernel<CAIRN_BF16, 8> },
	};
	struct cairn_launch l = { {}, { THREADS } };
	struct cairn_attn_paged_args a;
	int group, busy;
	void *params[] = { &a, &group };

	CAIRN_TRY(ladder_check_decode(args, LADDER_GROUP, &busy));
	if (!busy)
		return 0;
	a = *args;
	group = a.num_qo_heads / a.num_kv_heads;
	l.grid[0] = (unsigned int)a.num_kv_heads;
	l.grid[1] = (unsigned int)a.kv.batch;
	l.stream = stream;
	return cairn_launch(kernels[a.dtype == CAIRN_BF16][group_kernel(group)], &l, params);
}
