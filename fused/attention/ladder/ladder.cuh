/* SPDX-License-Identifier: Apache-2.0 */
/* ladder - device code that several forward steps share: lookup of a request, mask, the store of O */
#ifndef CAIRN_LADDER_CUH
#define CAIRN_LADDER_CUH

#include "fused/attention/base/attn_softmax.cuh"
#include "fused/attention/base/attn_tile.h"
#include "fused/attention/ladder/ladder.h"
#include "primitives/base/error.h"
#include "primitives/rows/row.cuh"

/* The work of a CTA: a tile of query rows of one head of one request. */
struct ladder_tile {
	int32_t qo_first, qo_len, kv_first, kv_len;	/* the request's rows in q and in K and V */
	int32_t head, kv_head;
	int32_t row0;			/* the tile's first row in the request; >= qo_len: no such tile */
	int32_t end;			/* end of the keys that the tile's last row sees */
};

/* Finds the CTA's tile. The last tile comes first, because the later rows of a causal call see more keys. */
ATTN_DEV struct ladder_tile ladder_find(const struct cairn_attn_dense_args &a, int rows)
{
	struct ladder_tile t;

	t.qo_first = a.qo_indptr[blockIdx.z];
	t.qo_len = a.qo_indptr[blockIdx.z + 1] - t.qo_first;
	t.kv_first = a.kv_indptr[blockIdx.z];
	t.kv_len = a.kv_indptr[blockIdx.z + 1] - t.kv_first;
	t.head = blockIdx.y;
	t.kv_head = t.head / (a.num_qo_heads / a.num_kv_heads);
	t.row0 = (gridDim.x - 1 - blockIdx.x) * rows;
	t.end = attn_visible(min(t.row0 + rows, t.qo_len) - 1, t.qo_len, t.kv_len, a.causal);
	return t;
}

/* Returns a row's index among all rows and heads, which is its row of out and its element of lse. */
ATTN_DEV int64_t ladder_row_at(const struct cairn_attn_dense_args &a, const struct ladder_tile &t, int row)
{
	return (int64_t)(t.qo_first + row) * a.num_qo_heads + t.head;
}

/* Sets the logits of keys that a lane's two rows do not see to -inf. key: the first key of s. */
template <int tiles>
ATTN_DEV void ladder_mask(const struct cairn_attn_dense_args &a, const struct ladder_tile &t, float (*s)[4],
			  int row, int key)
{
	key += threadIdx.x % 4 * 2;
#pragma unroll
	for (int half = 0; half < 2; half++) {
		int end = attn_visible(row + half * 8, t.qo_len, t.kv_len, a.causal);

#pragma unroll
		for (int i = 0; i < tiles * 2; i++)
			if (key + i / 2 * 8 + i % 2 >= end)
				s[i / 2][2 * half + i % 2] = -CUDART_INF_F;
	}
}

/* Writes O / l and lse of a warp's 16 rows from fragments. row: the lane's first row. */
template <int dtype>
ATTN_DEV void ladder_store(const struct cairn_attn_dense_args &a, const struct ladder_tile &t, float (*o)[4],
			   const float m[2], const float l[2], int row)
{
#pragma unroll
	for (int half = 0; half < 2; half++, row += 8) {
		float sum = attn_quad_sum(l[half]), inverse = sum > 0 ? 1 / sum : 0;
		int64_t at = ladder_row_at(a, t, row);
		uint4 *out = (uint4 *)a.out + at * (LADDER_DIM / 8);

#pragma unroll
		for (int i = 0; i < LADDER_DIM / 8; i += 4) {
			uint32_t x[4];
			uint4 eight;

#pragma unroll
			for (int j = 0; j < 4; j++)
				x[j] = attn_pack<dtype>(o[i + j][2 * half] * inverse,
							o[i + j][2 * half + 1] * inverse);
			eight = attn_gather_quad(x);
			if (row < t.qo_len)
				out[i + threadIdx.x % 4] = eight;
		}
		if (a.lse && threadIdx.x % 4 == 0 && row < t.qo_len)
			a.lse[at] = attn_lse(m[half], sum, a.sm_scale);
	}
}

#endif
