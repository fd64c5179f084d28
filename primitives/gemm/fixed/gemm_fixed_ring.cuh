/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gemm_fixed_ring - tiles and the ring of operands that gemm_fixed and gemm_fp8 share: all but the products
 *
 * Warps: up to two warpgroups multiply, each 64 rows of a by the whole width of the tile, and write their
 * results; a thread of the third fetches by TMA. It runs ahead as far as the ring allows, into the next
 * tile too, so that stages arrive while results are written. With up to 64 rows of a only one warpgroup
 * multiplies, and four threads take stages in turn, because stages are small and a thread needs about 120
 * clocks to start a copy.
 *
 * A stage is 128 bytes of each row: 64 elements of 16 bits, or 128 of 8 bits, which count here as 64 pairs.
 * With up to 64 rows of a, a stage has room only for these, rounded up to eight. wgmma then takes what lies
 * behind them as the other rows of a. Whatever that is, the results of those rows are not written.
 *
 * Pairs. The two CTAs of a cluster have tiles one below the other. Each fetches its rows of a and one half of
 * the rows of b, which it multicasts to both. A slot is therefore free when the consumers of both CTAs have
 * left it; each warp tells both producers. No CTA exits before the other one has sent its last signal.
 *
 * SILU_MUL: in a tile, eight rows of gate and the same eight rows of up alternate, so that both sums of a
 * result are in one thread. The map of b has these as dimensions: k, eight rows, gate and up, and the eights.
 *
 * Shared memory (dynamic), rows of 128 bytes, swizzled by 128 bytes:
 *	the ring	slots of	[rows of a], [width rows of b]			208 KiB at most
 *	results		[warps][2][16 rows]						16 KiB a warpgroup
 *	barriers	full, empty [MAX_SLOTS]
 * mbarriers: full: one arrival, and bytes; empty: one arrival of each warp that multiplies, of both CTAs.
 * Registers: 168 at the start, then the kernel's choice for consumer threads (128 of them sums) and
 * producers.
 *
 * Programmatic dependent launch: the ring is filled with rows of b before griddepcontrol.wait.
 */
#ifndef CAIRN_GEMM_FIXED_RING_CUH
#define CAIRN_GEMM_FIXED_RING_CUH

#include <cuda.h>

#include "primitives/gemm/fixed/gemm_fixed.h"
#include "primitives/gemm/fixed/gemm_fixed_plan.h"
#include "primitives/ptx/elect.cuh"
#include "primitives/ptx/ptx_copy.cuh"

#define CONSUMERS	256
#define PRODUCERS	4		/* the ring has at least as many slots */
#define THREADS		(CONSUMERS + PRODUCERS * 32)
#define ROW_BYTES	128
#define GROUP_BYTES	(GEMM_FIXED_GROUP_ROWS * ROW_BYTES)
#define WARP_ROWS	16
#define STAGED_BYTES	(WARP_ROWS * ROW_BYTES)
#define MOST_SUMS	128		/* of a thread */
#define SMEM_BYTES	(GEMM_FIXED_DATA_BYTES + 2 * GEMM_FIXED_MAX_SLOTS * 8)

#define TILE		static __device__ __forceinline__

/*
 * Boxes: 64 of k, and the rows of a of a tile, or the rows of b, in a pair half of them. b has four
 * dimensions, of which PLAIN uses two.
 */
struct maps {
	CUtensorMap a, b;
	CUtensorMap out;		/* if results leave by TMA: 16 rows of 64 columns */
};

/* Shared addresses, and this CTA's place; peer_empty: `empty` of the other CTA of a pair */
struct mine {
	uint32_t ring, staged, full, empty, peer_empty;
	int32_t rank, cluster, stage_bytes;
};

/*
 * Where a tile lies: its first row of a, its columns of out, its first row of b and the first one of the
 * second half (with SILU_MUL eights of rows).
 */
struct tile {
	int32_t row, col, end;
	int32_t b, half;
};

/* Position in the ring; the producer starts with parity 1, consumers with parity 0. */
struct turn {
	int32_t slot;
	uint32_t parity;
};

TILE void advance(struct turn *t, int slots)
{
	if (++t->slot == slots) {
		t->slot = 0;
		t->parity ^= 1;
	}
}

TILE struct tile find_tile(const struct cairn_gemm_fixed_args &g, const struct gemm_fixed_plan &p,
			   const struct mine &s, int unit)
{
	int32_t row, col;
	struct tile t;

	gemm_fixed_unit(&p, unit, &row, &col);
	t.row = (row * p.pair + s.rank) * p.groups * GEMM_FIXED_GROUP_ROWS;
	if (g.epilogue == CAIRN_GEMM_FIXED_SILU_MUL) {
		t.col = col * (p.width / 2);
		t.end = min(g.n / 2, t.col + p.width / 2);
		t.b = t.col / 8;
		t.half = t.b + p.width / 32;
	} else {
		t.col = t.b = col * p.width;
		t.end = min(g.n, t.col + p.width);
		t.half = t.b + p.width / 2;
	}
	return t;
}

/* ---- the producers, one thread each ---- */

/* Fetches the rows of b of a stage, or in a pair this CTA's half for both CTAs. */
TILE void fetch_b(const struct cairn_gemm_fixed_args &g, const struct maps &maps,
		  const struct gemm_fixed_plan &p, const struct mine &s, const struct tile &t, int stage,
		  int slot)
{
	const bool silu = g.epilogue == CAIRN_GEMM_FIXED_SILU_MUL;
	const int32_t k = stage * GEMM_FIXED_STAGE_K, first = s.rank ? t.half : t.b;
	const int32_t row = silu ? 0 : first, eight = silu ? first : 0;
	const uint32_t to = s.ring + slot * s.stage_bytes + (p.rows_a + s.rank * p.width / 2) * ROW_BYTES;
	const uint32_t full = s.full + slot * 8;

	ptx_mbarrier_arrive_expect_tx(full, s.stage_bytes);
	if (p.pair == 1)
		ptx_cp_async_bulk_tensor_4d_g2s(to, &maps.b, k, row, 0, eight, full);
	else
		ptx_cp_async_bulk_tensor_4d_g2s_multicast(to, &maps.b, k, row, 0, eight, full, 3);
}

TILE void fetch_a(const struct maps &maps, const struct mine &s, const struct tile &t, int stage, int slot)
{
	ptx_cp_async_bulk_tensor_2d_g2s(s.ring + slot * s.stage_bytes, &maps.a, stage * GEMM_FIXED_STAGE_K,
					t.row, s.full + slot * 8);
}

/*
 * Runs in producer `nth`; producers take the stages of all tiles in turn. b does not depend on the preceding
 * kernel: the first stages get b before that kernel has ended, then a.
 */
TILE void fetch(const struct cairn_gemm_fixed_args &g, const struct maps &maps,
		const struct gemm_fixed_plan &p, const struct mine &s, int nth, int producers)
{
	const int32_t units = p.rows * p.cols, early = min(p.slots, p.stages);
	struct tile t = find_tile(g, p, s, s.cluster);
	struct turn turn = { nth, 1 };
	int unit = s.cluster, i;

	for (i = nth; i < early; i += producers)
		fetch_b(g, maps, p, s, t, i, i);
	ptx_griddepcontrol_wait();
	for (i = nth; i < early; i += producers)
		fetch_a(maps, s, t, i, i);
	for (turn.slot = i;; i += producers, turn.slot += producers) {
		if (turn.slot >= p.slots) {	/* at most once: the ring has a slot for each producer */
			turn.slot -= p.slots;
			turn.parity ^= 1;
		}
		if (i >= p.stages) {
			for (; i >= p.stages; i -= p.stages)
				unit += p.clusters;
			if (unit >= units)
				return;
			t = find_tile(g, p, s, unit);
		}
		ptx_mbarrier_wait_cluster(s.empty + turn.slot * 8, turn.parity);
		fetch_b(g, maps, p, s, t, i, turn.slot);
		fetch_a(maps, s, t, i, turn.slot);
	}
}

/* ---- the consumers ---- */

/* Tells the producers of all CTAs of the cluster that this warp has left the slot. */
TILE void release(const struct mine &s, int pair, int slot)
{
	elected_arrive(s.empty + slot * 8);
	if (pair > 1 && threadIdx.x % 32 < ELECTED_LANES)
		ptx_mbarrier_arrive_relaxed_cluster(s.peer_empty + slot * 8);
}

/* ---- the frame of a kernel ---- */

TILE struct mine lay_out(const struct gemm_fixed_plan &p, const void *s_mem)
{
	struct mine s;

	s.rank = blockIdx.x % p.pair;
	s.cluster = blockIdx.x / p.pair;
	s.stage_bytes = gemm_fixed_stage_bytes(&p);
	s.ring = ptx_smem(s_mem);
	s.staged = s.ring + p.slots * s.stage_bytes;
	s.full = s.ring + GEMM_FIXED_DATA_BYTES;
	s.empty = s.full + GEMM_FIXED_MAX_SLOTS * 8;
	s.peer_empty = p.pair > 1 ? ptx_mapa(s.empty, s.rank ^ 1) : 0;
	return s;
}

/* Cluster barrier: at the start, mbarriers are ready; at the end, no CTA writes to the other one any more. */
TILE void sync_cluster(void)
{
	__syncwarp();
	ptx_barrier_cluster_arrive_release();
	ptx_barrier_cluster_wait_acquire();
}

/*
 * The body of a kernel: producers fetch, and each warpgroup that has rows calls consume(mine), which takes
 * every stage of every tile of this cluster from the ring.
 */
template <int consumer_regs, int producer_regs, class consumer>
TILE void run_tiles(const struct cairn_gemm_fixed_args &g, const struct maps &maps,
		    const struct gemm_fixed_plan &p, const void *s_mem, consumer consume)
{
	const struct mine s = lay_out(p, s_mem);
	const int producers = p.groups == 1 ? PRODUCERS : 1, nth = (threadIdx.x - CONSUMERS) / 32;

	if (threadIdx.x == 0) {
		ptx_prefetch_tensormap(&maps.a);
		ptx_prefetch_tensormap(&maps.b);
		if (p.by_tma)
			ptx_prefetch_tensormap(&maps.out);
		for (int i = 0; i < p.slots; i++) {
			ptx_mbarrier_init(s.full + i * 8, 1);
			ptx_mbarrier_init(s.empty + i * 8, p.pair * p.groups * 4 * ELECTED_LANES);
		}
		ptx_fence_mbarrier_init_release_cluster();
	}
	__syncthreads();
	ptx_griddepcontrol_launch_dependents();
	if (p.pair > 1)
		sync_cluster();
	if (threadIdx.x >= CONSUMERS) {
		ptx_setmaxnreg_dec<producer_regs>();
		if (threadIdx.x % 32 == 0 && nth < producers)
			fetch(g, maps, p, s, nth, producers);
	} else {
		ptx_setmaxnreg_inc<consumer_regs>();
		if (threadIdx.x / 128 < p.groups)
			consume(s);
	}
	if (p.pair > 1)
		sync_cluster();
}

#endif
