/* SPDX-License-Identifier: Apache-2.0 */
/*
 * decode_states - code that the decode steps from 2 on share: states (o, m, l) over parts of a row's keys,
 * and their merge
 *
 * The state of a softmax over some keys is the maximum m, the sum l of p and the sum o of p v, both relative
 * to m. The merge of states over different keys is exact: each has the weight e^(m - largest m).
 */
#ifndef CAIRN_DECODE_STATES_CUH
#define CAIRN_DECODE_STATES_CUH

#include "fused/attention/paged/attn_paged_walk.cuh"
#include "fused/attention/ladder/ladder.h"
#include "primitives/base/error.h"
#include "primitives/rows/row.cuh"

/* The states of a CTA's members (teams of lanes, or warps) for the rows of a group, in shared memory. */
template <int members, int rows> struct decode_states {
	float o[members][rows][LADDER_DIM], m[members][rows], l[members][rows];
};

/* The states of the splits in the workspace, [request][query head][split]. */
struct decode_splits {
	float *o;			/* [...][LADDER_DIM] */
	float2 *ml;			/* m, l */
	int splits;
};

static inline struct decode_splits decode_splits_of(const struct cairn_attn_paged_args *a, int splits)
{
	int64_t states = (int64_t)a->kv.batch * a->num_qo_heads * splits;
	float *o = (float *)a->workspace;

	return { o, (float2 *)(o + states * LADDER_DIM), splits };
}

/* Returns the weight of a state with maximum m among states with maximum top. */
ATTN_DEV float decode_weight(float m, float top, float scale_log2)
{
	return m == -CUDART_INF_F ? 0 : ptx_ex2_approx_ftz((m - top) * scale_log2);
}

/* Merges column d of a row over the members; also sets the row's m and l. */
template <int members, int rows>
ATTN_DEV float decode_merge(const struct decode_states<members, rows> &s, int row, int d, float scale_log2,
			    float *m, float *l)
{
	float o = 0;

	*m = -CUDART_INF_F;
	*l = 0;
#pragma unroll
	for (int i = 0; i < members; i++)
		*m = fmaxf(*m, s.m[i][row]);
#pragma unroll
	for (int i = 0; i < members; i++) {
		float weight = decode_weight(s.m[i][row], *m, scale_log2);

		*l += weight * s.l[i][row];
		o += weight * s.o[i][row][d];
	}
	return o;
}

/* Writes column d of a finished row, whose index among all rows and heads is `at`. */
template <int dtype>
ATTN_DEV void decode_write(const struct cairn_attn_paged_args &a, int64_t at, int d, float o, float m,
			   float l)
{
	row_store(a.out, dtype, at * LADDER_DIM + d, l > 0 ? o / l : 0);
	if (a.lse && d == 0)
		a.lse[at] = attn_lse(m, l, a.sm_scale);
}

/* Merges the states of all rows of a group over the CTA's members into split blockIdx.z of the workspace. */
template <int members, int rows>
ATTN_DEV void decode_put_split(const struct cairn_attn_paged_args &a, const struct decode_splits &to,
			       const struct decode_states<members, rows> &s, int group)
{
	for (int i = threadIdx.x; i < group * LADDER_DIM; i += blockDim.x) {
		int row = i / LADDER_DIM, d = i % LADDER_DIM;
		int64_t head = (int64_t)blockIdx.y * a.num_qo_heads + blockIdx.x * group + row;
		int64_t at = head * to.splits + blockIdx.z;
		float m, l;

		to.o[at * LADDER_DIM + d] = decode_merge(s, row, d, a.sm_scale * ATTN_LOG2E, &m, &l);
		if (d == 0)
			to.ml[at] = make_float2(m, l);
	}
}

#endif
