// SPDX-License-Identifier: Apache-2.0
/*
 * decode4_mma - step 4: tensor cores, and a ring of copies for each warp
 *
 * Step 3 spends its instructions on widening, multiplying and adding. Here the query heads of a group are the
 * rows of an m16n8k16 tile. A warp takes 16 keys at a time: S = Q K^T is 16 mma and O += P V another 16,
 * whether the group has one head or eight (the other rows are zero). cp.async fills the warp's own ring in
 * shared memory, two tiles ahead, so that loads in flight occupy no registers and the loop needs no CTA-wide
 * barrier. The page numbers of the third tile ahead are loaded while this one is computed.
 *
 *   warp, tile n:  wait for tile n | start tile n + 2 | look up tile n + 3 | S = Q K^T | mask, online softmax
 *                  | O += P V
 *
 * Shared memory, 96 KiB: [4 warps][3 stages][K, V][16 keys][256 bytes], swizzled; after the loop the warps'
 * states. Two CTAs share an SM and have 128 KiB in flight. Floor: one read of K and V.
 */
#include "fused/attention/ladder/decode_states.cuh"
#include "primitives/base/launch.h"

#define WARPS	4
#define STAGES	3
#define KEYS	16
#define STEP	(WARPS * KEYS)			/* keys from a warp's tile to its next one */
#define TILE	(KEYS * LADDER_DIM * 2)		/* bytes of K or V */
#define STAGE	(2 * TILE)

/* Loads Q as A fragments; rows past the group are zero. */
ATTN_DEV void load_q(uint32_t (*q)[4], const struct cairn_attn_paged_args &a, const struct attn_request &r)
{
	const int lane = threadIdx.x % 32;

#pragma unroll
	for (int half = 0; half < 2; half++) {
		int row = lane / 4 + half * 8;
		const uint32_t *from = (const uint32_t *)a.q + attn_q_row(a, r, row) / 2 + lane % 4;

#pragma unroll
		for (int c = 0; c < LADDER_DIM / 16; c++) {
			q[c][half] = row < r.group ? from[c * 8] : 0;
			q[c][half + 2] = row < r.group ? from[c * 8 + 4] : 0;
		}
	}
}

template <int dtype>
static __global__ __launch_bounds__(WARPS * 32, 2) void
mma_kernel(const __grid_constant__ struct cairn_attn_paged_args a, struct decode_splits to, int group)
{
	extern __shared__ __align__(1024) uint8_t s_all[];
	auto *states = (struct decode_states<WARPS, LADDER_GROUP> *)s_all;
	const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, shift = kv_page_shift(a.kv.page_size);
	const struct attn_request r = attn_load_request(a, blockIdx.y, blockIdx.x, group, attn_magic(group));
	const int share = attn_div_up(r.kv_len, to.splits), first = blockIdx.z * share;
	const int end = min(r.kv_len, first + share);
	const uint32_t ring = ptx_smem(s_all) + warp * STAGES * STAGE;
	float o[LADDER_DIM / 8][4] = {}, m[2] = { -CUDART_INF_F, -CUDART_INF_F }, l[2] = {}, keep[2];
	uint32_t q[LADDER_DIM / 16][4], p[4], b[4], slot;
	int key = first + warp * KEYS, stage = 0;

	if (!r.qo_len)
		return;
	load_q(q, a, r);
	slot = attn_slot(a, r, shift, key + lane, lane < KEYS ? end : 0);
	for (int i = 0; i < STAGES - 1; i++) {
		attn_gather<LADDER_DIM, KEYS, TILE>(a, r, ring + i * STAGE, 0, slot);
		ptx_cp_async_commit_group();
		slot = attn_slot(a, r, shift, key + (i + 1) * STEP + lane, lane < KEYS ? end : 0);
	}
	for (; key < end; key += STEP) {
		const uint32_t s_k = ring + stage * STAGE, s_v = s_k + TILE;
		const uint32_t refill = ring + (stage + STAGES - 1) % STAGES * STAGE;	/* the last step's */
		float s[2][4] = {};

		ptx_cp_async_wait_group<STAGES - 2>();
		__syncwarp();
		attn_gather<LADDER_DIM, KEYS, TILE>(a, r, refill, 0, slot);
		ptx_cp_async_commit_group();
		slot = attn_slot(a, r, shift, key + STAGES * STEP + lane, lane < KEYS ? end : 0);
#pragma unroll
		for (int c = 0; c < LADDER_DIM / 16; c++) {
			ptx_ldmatrix_x4(b, (s_k + attn_k_at<LADDER_DIM>(lane)) ^ c * 32);
			attn_mma<dtype>(s[0], q[c], b);
			attn_mma<dtype>(s[1], q[c], b + 2);
		}
#pragma unroll
		for (int i = 0; i < 8; i++)
			if (key + i / 4 * 8 + lane % 4 * 2 + i % 2 >= end)
				s[i / 4][i % 4] = -CUDART_INF_F;
		attn_softmax<2>(s, m, l, keep, a.sm_scale * ATTN_LOG2E);
		attn_rescale<LADDER_DIM>(o, keep);
		attn_p_fragment<dtype>(p, s);
#pragma unroll
		for (int c = 0; c < LADDER_DIM / 16; c++) {
			ptx_ldmatrix_x4_trans(b, (s_v + attn_v_at<LADDER_DIM>(lane)) ^ c * 32);
			attn_mma<dtype>(o[2 * c], p, b);
			attn_mma<dtype>(o[2 * c + 1], p, b + 2);
		}
		stage = (stage + 1) % STAGES;
	}
	ptx_cp_async_wait_group<0>();
	__syncthreads();	/* the states overwrite the rings */
	states->m[warp][lane / 4] = m[0];
	states->l[warp][lane / 4] = attn_quad_sum(l[0]);
#pragma unroll
	for (int i = 0; i < LADDER_DIM / 8; i++)
		*(float2 *)&states->o[warp][lane / 4][i * 8 + lane % 4 * 2] = make_float2(o[i][0], o[i][1]);
	__syncthreads();
	decode_put_split(a, to, *states, group);
}

int ladder_decode4(const struct cairn_attn_paged_args *args, void *stream)
{
	struct cairn_launch l = { {}, { WARPS * 32 } };
	struct cairn_attn_paged_args a;
	struct decode_splits to;
	int group, busy;
	void *params[] = { &a, &to, &group };

	CAIRN_TRY(ladder_check_split(args, &busy));
	if (!busy)
		return 0;
	a = *args;
	group = a.num_qo_heads / a.num_kv_heads;
	to = decode_splits_of(args, ladder_splits(args, 2));
	l.grid[0] = (unsigned int)a.num_kv_heads;
	l.grid[1] = (unsigned int)a.kv.batch;
	l.grid[2] = (unsigned int)to.splits;
	l.smem = WARPS * STAGES * STAGE;
	l.stream = stream;
	CAIRN_TRY(cairn_launch(a.dtype == CAIRN_F16 ? (const void *)mma_kernel<CAIRN_F16> :
			       (const void *)mma_kernel<CAIRN_BF16>, &l, params));
	return ladder_merge(args, to.splits, stream);
}
