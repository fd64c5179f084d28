/* SPDX-License-Identifier: Apache-2.0 */
/*
 * decode_group - the loop of decode steps 2 and 3: a CTA attends over keys for all query heads of a KV head
 *
 * A team of 16 lanes holds a row of 128 columns, 16 bytes a lane. Each of the CTA's eight teams takes four
 * keys at a time, starts all their loads, and uses each number for every query head of the group. The four
 * logits of a head are added to the online softmax together. The teams share nothing until the end, when they
 * write their states to shared memory.
 */
#ifndef CAIRN_DECODE_GROUP_CUH
#define CAIRN_DECODE_GROUP_CUH

#include "fused/attention/ladder/decode_states.cuh"

#define THREADS	128
#define TEAMS	(THREADS / 16)
#define AHEAD	4		/* keys that a team loads at a time */
/* CTAs per SM: with up to four rows there are registers for four CTAs, which hide the latency of the loads */
#define CTAS(rows)	((rows) <= 4 ? 4 : 2)

/* Attends over keys first .. end - 1 of the request. rows: the query heads of the group, rounded up. */
template <int dtype, int rows>
ATTN_DEV void group_attend(const struct cairn_attn_paged_args &a, const struct attn_request &r, int first,
			   int end, struct decode_states<TEAMS, rows> *states)
{
	const int team = threadIdx.x / 16, column = threadIdx.x % 16 * 8;
	const int shift = kv_page_shift(a.kv.page_size);
	const float scale_log2 = a.sm_scale * ATTN_LOG2E;
	const char *k_pages = (const char *)a.kv.k_pages + (r.head * LADDER_DIM + column) * 2;
	const char *v_pages = (const char *)a.kv.v_pages + (r.head * LADDER_DIM + column) * 2;
	float q[rows][8], o[rows][8] = {}, m[rows], l[rows] = {}, s[rows][AHEAD], x[8];
	uint4 k[AHEAD], v[AHEAD];

#pragma unroll
	for (int i = 0; i < rows; i++) {
		uint4 none = make_uint4(0, 0, 0, 0);
		const uint4 *from = (const uint4 *)((const uint16_t *)a.q + attn_q_row(a, r, i) + column);

		row_unpack<dtype>(i < r.group ? *from : none, q[i]);
		m[i] = -CUDART_INF_F;
	}
	for (int key = first; key < end; key += TEAMS * AHEAD) {
#pragma unroll
		for (int j = 0; j < AHEAD; j++) {
			uint32_t slot = attn_slot(a, r, shift, key + team * AHEAD + j, end);
			uint64_t at = (uint64_t)slot * (uint32_t)(a.num_kv_heads * LADDER_DIM * 2);

			k[j] = v[j] = make_uint4(0, 0, 0, 0);
			if (slot != ~0u) {
				k[j] = ptx_ld_global_nc_no_allocate_v4(k_pages + at);
				v[j] = ptx_ld_global_nc_no_allocate_v4(v_pages + at);
			}
		}
#pragma unroll
		for (int j = 0; j < AHEAD; j++) {
			row_unpack<dtype>(k[j], x);
#pragma unroll
			for (int i = 0; i < rows; i++) {
				s[i][j] = 0;
#pragma unroll
				for (int d = 0; d < 8; d++)
					s[i][j] += q[i][d] * x[d];
#pragma unroll
				for (int lane = 1; lane < 16; lane *= 2)
					s[i][j] += __shfl_xor_sync(~0u, s[i][j], lane);
				if (key + team * AHEAD + j >= end)
					s[i][j] = -CUDART_INF_F;
			}
		}
#pragma unroll
		for (int i = 0; i < rows; i++) {
			float top = m[i], base, keep;

#pragma unroll
			for (int j = 0; j < AHEAD; j++)
				top = fmaxf(top, s[i][j]);
			base = top == -CUDART_INF_F ? 0 : top;	/* -inf: the team has had no key yet */
			keep = ptx_ex2_approx_ftz((m[i] - base) * scale_log2);
			m[i] = top;
			l[i] *= keep;
#pragma unroll
			for (int d = 0; d < 8; d++)
				o[i][d] *= keep;
#pragma unroll
			for (int j = 0; j < AHEAD; j++) {
				s[i][j] = ptx_ex2_approx_ftz((s[i][j] - base) * scale_log2);
				l[i] += s[i][j];
			}
		}
#pragma unroll
		for (int j = 0; j < AHEAD; j++) {
			row_unpack<dtype>(v[j], x);
#pragma unroll
			for (int i = 0; i < rows; i++)
#pragma unroll
				for (int d = 0; d < 8; d++)
					o[i][d] += s[i][j] * x[d];
		}
	}
#pragma unroll
	for (int i = 0; i < rows; i++) {
#pragma unroll
		for (int d = 0; d < 8; d++)
			states->o[team][i][column + d] = o[i][d];
		states->m[team][i] = m[i];
		states->l[team][i] = l[i];
	}
	__syncthreads();
}

/* Returns which of the kernels for 1, 2, 4 and 8 rows serves a group. */
static inline int group_kernel(int group)
{
	return group > 4 ? 3 : group > 2 ? 2 : group - 1;
}

#endif
