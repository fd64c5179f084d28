// SPDX-License-Identifier: Apache-2.0
/*
 * ladder5_pingpong - step 5: softmax overlaps products, between warpgroups and within one (FlashAttention-3)
 *
 * The fetch is that of step 4. A softmax takes about half as long as a step's products, and in step 4 both
 * warpgroups may reach it at the same time. Two changes keep the tensor cores busy:
 *
 *   ping-pong  The warpgroups issue their products in turns, so that one computes its softmax while the
 *              other multiplies. The turn is a hardware barrier: one side waits, the other arrives.
 *   overlap    A warpgroup issues S = Q K(i)^T together with O += P V(i-1), which needs no result of step i.
 *              The product with V then overlaps the warpgroup's own softmax of S(i).
 *
 *   step i, a warpgroup:  wait for K(i) | wait for the turn | start S = Q K(i)^T | wait for V(i-1) |
 *                         start O += P V(i-1) | pass the turn on | wait for S | release K(i) | mask,
 *                         online softmax | wait for O | release V(i-1) | rescale O, P = S
 *
 * The product with V(i-1) is relative to the maximum before S(i), as O is, so both are rescaled together.
 * Registers: S, O and the previous P are live at once and alone take 160. So the producer's warps give
 * registers to the consumers (setmaxnreg): 40 and 232. Floor: as step 4.
 */
#include "fused/attention/ladder/ladder_tma.cuh"

#define BAR_TURN	1	/* hardware barrier BAR_TURN + i: the turn of warpgroup i */

/* racecheck miscounts after bar.arrive. The turns do not order memory, so a debug build leaves them out. */
#ifdef CAIRN_DEBUG
#define TURNS	0
#else
#define TURNS	1
#endif

/* Starts S = Q K^T for a warpgroup's 64 rows. */
template <int dtype> ATTN_DEV void start_qk(float *s, uint32_t s_q, uint32_t s_k)
{
	uint64_t q = wgmma_desc(s_q, 0), k = wgmma_desc(s_k, 0);

	wgmma_keep<KEYS / 2>(s);
	ptx_wgmma_fence();
#pragma unroll
	for (int c = 0; c < LADDER_DIM / 16; c++) {	/* 16 columns; four of them fill a panel */
		const int at = c / 4 * (PANEL >> 4) + c % 4 * 2;

		ptx_wgmma_ss<dtype, KEYS>(s, q + at, k + at, c > 0);
	}
	ptx_wgmma_commit_group();
	wgmma_keep<KEYS / 2>(s);
}

/* Starts O += P V. */
template <int dtype> ATTN_DEV void start_pv(float *o, const uint32_t (*p)[4], uint32_t s_v)
{
	uint64_t v = wgmma_desc(s_v, PANEL);

	wgmma_keep<LADDER_DIM / 2>(o);
	ptx_wgmma_fence();
#pragma unroll
	for (int j = 0; j < KEYS / 16; j++)
		ptx_wgmma_rs<dtype, LADDER_DIM>(o, p[j], v + j * (16 * 128 >> 4), 1);
	ptx_wgmma_commit_group();
	wgmma_keep<LADDER_DIM / 2>(o);
}

template <int dtype>
static __global__ __launch_bounds__(THREADS, 1) void
pingpong_kernel(const __grid_constant__ struct cairn_attn_dense_args a,
		const __grid_constant__ struct ladder_maps maps)
{
	extern __shared__ __align__(1024) uint8_t s_all[];
	const struct ladder_tile t = ladder_find(a, ROWS);
	const int tiles = max(1, attn_div_up(t.end, KEYS));	/* if no row sees a key: one, all masked */
	const int group = threadIdx.x / 128;
	const int row = t.row0 + threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4;
	const int all_see = attn_visible(t.row0 + group * 64, t.qo_len, t.kv_len, a.causal);
	const float scale_log2 = a.sm_scale * ATTN_LOG2E;
	float o[LADDER_DIM / 8][4] = {}, sc[KEYS / 8][4], keep[2];
	float m[2] = { -CUDART_INF_F, -CUDART_INF_F }, l[2] = {};
	uint32_t p[KEYS / 16][4], s_q;
	struct ladder_smem s;

	if (t.row0 >= t.qo_len)
		return;
	s = ladder_open(s_all);
	if (threadIdx.x >= CONSUMERS) {
		ptx_setmaxnreg_dec<40>();
		ladder_produce(maps, s, t, tiles);
		return;
	}
	ptx_setmaxnreg_inc<232>();
	s_q = s.q + group * 64 * 128;
	ptx_mbarrier_wait(s.full_q, 0);
	if (TURNS && group == 1)
		ptx_bar_arrive(BAR_TURN, CONSUMERS);	/* warpgroup 0 has the first turn */
	ptx_mbarrier_wait(s.full_k, 0);			/* step 0: there is no V(i-1) */
	start_qk<dtype>(sc[0], s_q, s.k);
	ptx_wgmma_wait_group<0>();
	wgmma_keep<KEYS / 2>(sc[0]);
	elected_arrive(s.empty_k);
	if (KEYS > all_see)
		ladder_mask<KEYS / 8>(a, t, sc, row, 0);
	attn_softmax<KEYS / 8>(sc, m, l, keep, scale_log2);
#pragma unroll
	for (int j = 0; j < KEYS / 16; j++)
		attn_p_fragment<dtype>(p[j], sc + 2 * j);
	for (int i = 1; i < tiles; i++) {
		const int stage = i % STAGES, before = (i - 1) % STAGES;

		ptx_mbarrier_wait(s.full_k + 8 * stage, i / STAGES & 1);
		if (TURNS)
			ptx_bar_sync(BAR_TURN + group, CONSUMERS);
		start_qk<dtype>(sc[0], s_q, s.k + stage * TILE);
		ptx_mbarrier_wait(s.full_v + 8 * before, (i - 1) / STAGES & 1);
		start_pv<dtype>(o[0], p, s.v + before * TILE);
		if (TURNS)
			ptx_bar_arrive(BAR_TURN + 1 - group, CONSUMERS);
		ptx_wgmma_wait_group<1>();
		wgmma_keep<KEYS / 2>(sc[0]);
		elected_arrive(s.empty_k + 8 * stage);
		if ((i + 1) * KEYS > all_see)
			ladder_mask<KEYS / 8>(a, t, sc, row, i * KEYS);
		attn_softmax<KEYS / 8>(sc, m, l, keep, scale_log2);
		ptx_wgmma_wait_group<0>();
		wgmma_keep<LADDER_DIM / 2>(o[0]);
		elected_arrive(s.empty_v + 8 * before);
		attn_rescale<LADDER_DIM>(o, keep);
#pragma unroll
		for (int j = 0; j < KEYS / 16; j++)
			attn_p_fragment<dtype>(p[j], sc + 2 * j);
	}
	ptx_mbarrier_wait(s.full_v + 8 * ((tiles - 1) % STAGES), (tiles - 1) / STAGES & 1);
	start_pv<dtype>(o[0], p, s.v + (tiles - 1) % STAGES * TILE);
	ptx_wgmma_wait_group<0>();
	wgmma_keep<LADDER_DIM / 2>(o[0]);
	ladder_store<dtype>(a, t, o, m, l, row);
}

int ladder_attn5(const struct cairn_attn_dense_args *args, void *stream)
{
	return ladder_launch_tma((const void *)pingpong_kernel<CAIRN_F16>,
				 (const void *)pingpong_kernel<CAIRN_BF16>, args, stream);
}
