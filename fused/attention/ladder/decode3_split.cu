// SPDX-License-Identifier: Apache-2.0
/*
 * decode3_split - step 3: the keys of a request are split over CTAs (flash-decoding)
 *
 * Each CTA attends over one split of the keys as in step 2, and writes its state (o, m, l) to the
 * workspace. A second kernel merges the states of each query head, one thread a column. There are enough
 * splits to fill the device (ladder_splits). Their number depends on the bounds of the batch, and their ends
 * depend on each request's own length.
 *
 * Floor: that of step 2, now for any batch. The price is a second launch and the traffic of the states, 2 x
 * 520 bytes for each query head and split.
 */
#include "fused/attention/ladder/decode_group.cuh"
#include "primitives/base/launch.h"

template <int dtype, int rows>
static __global__ __launch_bounds__(THREADS, CTAS(rows)) void
split_kernel(const __grid_constant__ struct cairn_attn_paged_args a, struct decode_splits to, int group)
{
	__shared__ struct decode_states<TEAMS, rows> states;
	struct attn_request r = attn_load_request(a, blockIdx.y, blockIdx.x, group, attn_magic(group));
	int share = attn_div_up(r.kv_len, to.splits), first = blockIdx.z * share;

	if (!r.qo_len)
		return;
	group_attend<dtype, rows>(a, r, first, min(r.kv_len, first + share), &states);
	decode_put_split(a, to, states, group);
}

template <int dtype>
static __global__ __launch_bounds__(LADDER_DIM) void
merge_kernel(const __grid_constant__ struct cairn_attn_paged_args a, struct decode_splits from)
{
	int64_t first = ((int64_t)blockIdx.y * a.num_qo_heads + blockIdx.x) * from.splits;
	int row = a.qo_indptr[blockIdx.y];
	float o = 0, m = -CUDART_INF_F, l = 0;

	if (row == a.qo_indptr[blockIdx.y + 1])
		return;
#pragma unroll 8
	for (int i = 0; i < from.splits; i++)
		m = fmaxf(m, from.ml[first + i].x);
#pragma unroll 8
	for (int i = 0; i < from.splits; i++) {
		float2 ml = from.ml[first + i];
		float weight = decode_weight(ml.x, m, a.sm_scale * ATTN_LOG2E);

		l += weight * ml.y;
		o += weight * from.o[(first + i) * LADDER_DIM + threadIdx.x];
	}
	decode_write<dtype>(a, (int64_t)row * a.num_qo_heads + blockIdx.x, threadIdx.x, o, m, l);
}

int ladder_merge(const struct cairn_attn_paged_args *args, int splits, void *stream)
{
	struct cairn_launch l = { {}, { LADDER_DIM } };
	struct decode_splits from = decode_splits_of(args, splits);
	struct cairn_attn_paged_args a = *args;
	void *params[] = { &a, &from };

	l.grid[0] = (unsigned int)a.num_qo_heads;
	l.grid[1] = (unsigned int)a.kv.batch;
	l.stream = stream;
	return cairn_launch(a.dtype == CAIRN_F16 ? (const void *)merge_kernel<CAIRN_F16> :
			    (const void *)merge_kernel<CAIRN_BF16>, &l, params);
}

int ladder_decode3(const struct cairn_attn_paged_args *args, void *stream)
{
	static const void *const kernels[2][4] = {
		{ (const void *)split_kernel<CAIRN_F16, 1>, (const void *)split_kernel<CAIRN_F16, 2>,
		  (const void *)split_kernel<CAIRN_F16, 4>, (const void *)split_kernel<CAIRN_F16, 8> },
		{ (const void *)split_kernel<CAIRN_BF16, 1>, (const void *)split_kernel<CAIRN_BF16, 2>,
		  (const void *)split_kernel<CAIRN_BF16, 4>, (const void *)split_kernel<CAIRN_BF16, 8> },
	};
	struct cairn_launch l = { {}, { THREADS } };
	struct cairn_attn_paged_args a;
	struct decode_splits to;
	int group, busy;
	void *params[] = { &a, &to, &group };

	CAIRN_TRY(ladder_check_split(args, &busy));
	if (!busy)
		return 0;
	a = *args;
	group = a.num_qo_heads / a.num_kv_heads;
	to = decode_splits_of(args, ladder_splits(args, LADDER_CTAS));
	l.grid[0] = (unsigned int)a.num_kv_heads;
	l.grid[1] = (unsigned int)a.kv.batch;
	l.grid[2] = (unsigned int)to.splits;
	l.stream = stream;
	CAIRN_TRY(cairn_launch(kernels[a.dtype == CAIRN_BF16][group_kernel(group)], &l, params));
	return ladder_merge(args, to.splits, stream);
}
