// SPDX-License-Identifier: Apache-2.0
/*
 * ladder4_wgmma - step 4: products of whole warpgroups, and a warp that only fetches
 *
 * wgmma multiplies 64 rows of a warpgroup with a whole tile of 128 keys, which it reads from shared memory
 * by itself: no ldmatrix, no fragments of K and V in registers, and the full rate of the tensor cores. A
 * producer warp (ladder_tma.cuh) keeps two stages of K and V filled, so that the two consumer warpgroups
 * issue no copies and need no CTA-wide barrier. S, P and O stay in registers, in the layout of step 3.
 *
 *   step i, a warpgroup:  wait for K(i) | S = Q K^T | release K(i) | mask, online softmax | wait for V(i) |
 *                         O += P V | release V(i)
 *
 * Registers: 156 of the 168 that 384 threads may have (S 64, O 64; P takes the place of S). Floor: 4 x 128
 * operations for each row and key at the rate of wgmma, 990 TFLOP/s by the datasheet and 680 to 790 at the
 * power limit. In each step, the tensor cores are idle during the softmax, unless the other warpgroup happens
 * to issue its products then.
 */
#include "fused/attention/ladder/ladder_tma.cuh"

template <int dtype>
static __global__ __launch_bounds__(THREADS, 1) void
wgmma_kernel(const __grid_constant__ struct cairn_attn_dense_args a,
	     const __grid_constant__ struct ladder_maps maps)
{
	extern __shared__ __align__(1024) uint8_t s_all[];
	const struct ladder_tile t = ladder_find(a, ROWS);
	const int tiles = max(1, attn_div_up(t.end, KEYS));	/* if no row sees a key: one, all masked */
	const int group = threadIdx.x / 128, row0 = t.row0 + group * 64;
	const int row = t.row0 + threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4;
	const int all_see = attn_visible(row0, t.qo_len, t.kv_len, a.causal);
	float o[LADDER_DIM / 8][4] = {}, sc[KEYS / 8][4], keep[2];
	float m[2] = { -CUDART_INF_F, -CUDART_INF_F }, l[2] = {};
	uint32_t p[KEYS / 16][4];
	struct ladder_smem s;
	uint64_t q;

	if (t.row0 >= t.qo_len)
		return;
	s = ladder_open(s_all);
	if (threadIdx.x >= CONSUMERS) {
		ladder_produce(maps, s, t, tiles);
		return;
	}
	q = wgmma_desc(s.q + group * 64 * 128, 0);
	ptx_mbarrier_wait(s.full_q, 0);
	for (int i = 0; i < tiles; i++) {
		const int stage = i % STAGES, phase = i / STAGES & 1;
		const uint64_t k = wgmma_desc(s.k + stage * TILE, 0);
		const uint64_t v = wgmma_desc(s.v + stage * TILE, PANEL);

		ptx_mbarrier_wait(s.full_k + 8 * stage, phase);
		wgmma_keep<KEYS / 2>(sc[0]);
		ptx_wgmma_fence();
#pragma unroll
		for (int c = 0; c < LADDER_DIM / 16; c++) {	/* 16 columns; four of them fill a panel */
			const int at = c / 4 * (PANEL >> 4) + c % 4 * 2;

			ptx_wgmma_ss<dtype, KEYS>(sc[0], q + at, k + at, c > 0);
		}
		ptx_wgmma_commit_group();
		wgmma_keep<KEYS / 2>(sc[0]);
		ptx_wgmma_wait_group<0>();
		wgmma_keep<KEYS / 2>(sc[0]);
		elected_arrive(s.empty_k + 8 * stage);

		if ((i + 1) * KEYS > all_see)
			ladder_mask<KEYS / 8>(a, t, sc, row, i * KEYS);
		attn_softmax<KEYS / 8>(sc, m, l, keep, a.sm_scale * ATTN_LOG2E);
		attn_rescale<LADDER_DIM>(o, keep);
#pragma unroll
		for (int j = 0; j < KEYS / 16; j++)
			attn_p_fragment<dtype>(p[j], sc + 2 * j);

		ptx_mbarrier_wait(s.full_v + 8 * stage, phase);
		wgmma_keep<LADDER_DIM / 2>(o[0]);
		ptx_wgmma_fence();
#pragma unroll
		for (int j = 0; j < KEYS / 16; j++)
			ptx_wgmma_rs<dtype, LADDER_DIM>(o[0], p[j], v + j * (16 * 128 >> 4), 1);
		ptx_wgmma_commit_group();
		wgmma_keep<LADDER_DIM / 2>(o[0]);
		ptx_wgmma_wait_group<0>();
		wgmma_keep<LADDER_DIM / 2>(o[0]);
		elected_arrive(s.empty_v + 8 * stage);
	}
	ladder_store<dtype>(a, t, o, m, l, row);
}

int ladder_attn4(const struct cairn_attn_dense_args *args, void *stream)
{
	return ladder_launch_tma((const void *)wgmma_kernel<CAIRN_F16>,
				 (const void *)wgmma_kernel<CAIRN_BF16>, args, stream);
}
