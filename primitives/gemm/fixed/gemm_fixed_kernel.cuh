/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gemm_fixed_kernel - the kernel of gemm_fixed: persistent tiles of up to 128 x 256, two warpgroups by wgmma
 *
 * Tiles, ring and warps: gemm_fixed_ring.cuh. Ends of tiles: gemm_fixed_write.cuh.
 *
 * SILU_MUL: the end of a tile takes about 1300 clocks more. There the second warpgroup begins LAG stages
 * behind the first one, so that one multiplies while the other one writes its results. Without SILU_MUL both
 * begin at once, because a lag keeps slots of the ring.
 *
 * Order of sums: a thread's sums are the accumulators of wgmma, to which each step adds 16 products; steps
 * follow k. Rows and columns outside of the matrices arrive as zeros and change no other sum.
 */
#ifndef CAIRN_GEMM_FIXED_KERNEL_CUH
#define CAIRN_GEMM_FIXED_KERNEL_CUH

#include "primitives/gemm/fixed/gemm_fixed_write.cuh"
#include "primitives/ptx/wgmma.cuh"

#define LAG		2		/* stages; the ring has more */
#define LAG_BARRIER	1

/* Returns the stage after which the first warpgroup calls let_loose(), or -1. The second one waits for it. */
TILE int begin_in_turn(const struct cairn_gemm_fixed_args &g, const struct gemm_fixed_plan &p)
{
	if (g.epilogue != CAIRN_GEMM_FIXED_SILU_MUL || p.groups == 1)
		return -1;
	if (threadIdx.x < 128)
		return min(LAG, p.stages) - 1;
	ptx_bar_sync(LAG_BARRIER, CONSUMERS);
	return -1;
}

TILE void let_loose(void)
{
	ptx_bar_arrive(LAG_BARRIER, CONSUMERS);
}

/*
 * d: the sums of this warpgroup's 64 rows and `width` columns. After stage `mark` this warpgroup lets the
 * second one begin (let_loose()); -1: no warpgroup waits for it.
 */
template <int dtype, int width>
TILE void multiply(const struct gemm_fixed_plan &p, const struct mine &s, struct turn *t, int mark,
		   float *d)
{
	const uint32_t group = threadIdx.x / 128;
	int before = 0;

	for (int i = 0; i < p.stages; i++) {
		const uint32_t at = s.ring + t->slot * s.stage_bytes;
		const uint64_t a = wgmma_desc(at + group * GROUP_BYTES, 0);
		const uint64_t b = wgmma_desc(at + p.rows_a * ROW_BYTES, 0);

		ptx_mbarrier_wait(s.full + t->slot * 8, t->parity);
		wgmma_keep<width / 2>(d);
		ptx_wgmma_fence();
#pragma unroll
		for (int step = 0; step < GEMM_FIXED_STAGE_K / 16; step++)
			ptx_wgmma_ss<dtype, width>(d, a + 2 * step, b + 2 * step, 1);
		ptx_wgmma_commit_group();
		wgmma_keep<width / 2>(d);
		ptx_wgmma_wait_group<1>();
		if (i == mark)
			let_loose();
		if (i)
			release(s, p.pair, before);
		before = t->slot;
		advance(t, p.slots);
	}
	ptx_wgmma_wait_group<0>();
	wgmma_keep<width / 2>(d);
	release(s, p.pair, before);
}

template <int dtype>
TILE void consume(const struct cairn_gemm_fixed_args &g, const struct maps &maps,
		  const struct gemm_fixed_plan &p, const struct mine &s)
{
	const int32_t units = p.rows * p.cols;
	struct turn turn = { 0, 0 };
	int mark = begin_in_turn(g, p);

	ptx_griddepcontrol_wait();	/* the preceding kernel may read out's memory */
	for (int unit = s.cluster; unit < units; unit += p.clusters) {
		const struct tile t = find_tile(g, p, s, unit);
		float d[MOST_SUMS] = {};

#define WIDTH(n) \
		case n: \
			multiply<dtype, n>(p, s, &turn, mark, d); \
			break
		switch (p.width) {
		WIDTH(16);
		WIDTH(32);
		WIDTH(48);
		WIDTH(64);
		WIDTH(80);
		WIDTH(96);
		WIDTH(112);
		WIDTH(128);
		WIDTH(144);
		WIDTH(160);
		WIDTH(176);
		WIDTH(192);
		WIDTH(208);
		WIDTH(224);
		WIDTH(240);
		WIDTH(256);
		}
#undef WIDTH
		write_tile<dtype, MOST_SUMS>(g, maps, p, s, t, d);
		mark = -1;
	}
	end_sends();
}

template <int dtype>
static __global__ void __launch_bounds__(THREADS, 1)
gemm_fixed_kernel(const __grid_constant__ struct cairn_gemm_fixed_args g,
		  const __grid_constant__ struct maps maps, const __grid_constant__ struct gemm_fixed_plan p)
{
	extern __shared__ __align__(1024) unsigned char s_mem[];

	run_tiles<232, 40>(g, maps, p, s_mem, [&](const struct mine &s) { consume<dtype>(g, maps, p, s); });
}

#endif
