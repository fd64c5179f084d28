/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gemm_fixed_kernel - the kernel of gemm_fixed: persistent tiles of up to 128 x 256, two warpgroups by wgmma
 *
 * Warps: two warpgroups multiply, each 64 rows of a by the whole width of the tile, and write their results;
 * one thread of the third fetches by TMA. It runs ahead as far as the ring allows, into the next tile too, so
 * that stages arrive while results are written. The second warpgroup begins LAG stages behind the first one.
 * With up to 64 rows of a only one warpgroup multiplies.
 *
 * Pairs. The two CTAs of a cluster have tiles one below the other. Each fetches its rows of a and one half of
 * the rows of b, which it multicasts to both. A slot is therefore free when the consumers of both CTAs have
 * left it; each warp tells both producers. No CTA exits before the other one has sent its last signal.
 *
 * Order of sums: a thread's sums are the accumulators of wgmma, to which each step adds 16 products; steps
 * follow k. Rows and columns outside of the matrices arrive as zeros and change no other sum.
 *
 * SILU_MUL: in a tile, eight rows of gate and the same eight rows of up alternate, so that both sums of a
 * result are in one thread. The map of b has these as dimensions: k, eight rows, gate and up, and the eights.
 * Another epilogue goes beside it in write_tile().
 *
 * Results go through 2 KiB of shared memory of each warp (16 rows of 128 bytes), so that a warp's stores are
 * whole 128-byte lines. A bulk store would save instructions, but cannot send rows to places of their own,
 * which an epilogue that appends keys to pages needs.
 *
 * Shared memory (dynamic), rows of 128 bytes, swizzled by 128 bytes:
 *	the ring	slots of	[64 * groups rows of a], [width rows of b]	208 KiB at most
 *	results		[8 warps][16 rows]						16 KiB
 *	barriers	full, empty [MAX_SLOTS]
 * mbarriers: full: one arrival, and bytes; empty: one arrival of each warp that multiplies, of both CTAs.
 * Registers: 168 at the start, then 232 a consumer thread (128 of them sums), 40 in the producer warpgroup.
 *
 * Programmatic dependent launch: the ring is filled with rows of b before griddepcontrol.wait.
 */
#ifndef CAIRN_GEMM_FIXED_KERNEL_CUH
#define CAIRN_GEMM_FIXED_KERNEL_CUH

#include <cuda.h>

#include "primitives/gemm/fixed/gemm_fixed.h"
#include "primitives/gemm/fixed/gemm_fixed_plan.h"
#include "primitives/ptx/elect.cuh"
#include "primitives/ptx/ptx_copy.cuh"
#include "primitives/ptx/wgmma.cuh"
#include "primitives/rows/act_mul.cuh"

#define CONSUMERS	256
#define THREADS		(CONSUMERS + 128)
#define CONSUMER_REGS	232
#define PRODUCER_REGS	40
#define ROW_BYTES	128
#define GROUP_BYTES	(GEMM_FIXED_GROUP_ROWS * ROW_BYTES)
#define WARP_ROWS	16
#define STAGED_BYTES	(WARP_ROWS * ROW_BYTES)
#define MOST_SUMS	128		/* of a thread */
#define SMEM_BYTES	(GEMM_FIXED_RING_BYTES + CONSUMERS / 32 * STAGED_BYTES + 2 * GEMM_FIXED_MAX_SLOTS * 8)

/*
 * Stages by which the second warpgroup begins later than the first one, so that one multiplies while the
 * other one writes its results. The ring has more stages. 0: both begin at once.
 */
#define LAG		2
#define LAG_BARRIER	1

#define TILE		static __device__ __forceinline__

/*
 * Boxes: 64 of k, and the rows of a of a tile, or half the rows of b of a tile. b has four dimensions, of
 * which PLAIN uses two.
 */
struct maps {
	CUtensorMap a, b;
};

/* Shared addresses, and this CTA's place; peer_empty: `empty` of the other CTA of a pair */
struct mine {
	uint32_t ring, staged, full, empty, peer_empty;
	int32_t rank, cluster, stage_bytes;
};

/* Where a tile lies: its first row of a, its columns of out, where the two halves of its rows of b begin. */
struct tile {
	int32_t row, col, end;
	int32_t b[2];			/* rows, or with SILU_MUL eights of rows */
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
		t.b[0] = t.col / 8;
		t.b[1] = t.b[0] + p.width / 32;
	} else {
		t.col = t.b[0] = col * p.width;
		t.end = min(g.n, t.col + p.width);
		t.b[1] = t.b[0] + p.width / 2;
	}
	return t;
}

/* ---- the producer, one thread ---- */

/* Fetches the rows of b of a stage: both halves, or in a pair this CTA's half for both CTAs. */
TILE void fetch_b(const struct cairn_gemm_fixed_args &g, const struct maps &maps,
		  const struct gemm_fixed_plan &p, const struct mine &s, const struct tile &t, int stage,
		  int slot)
{
	const bool silu = g.epilogue == CAIRN_GEMM_FIXED_SILU_MUL;
	const int32_t half = p.width / 2 * ROW_BYTES, k = stage * GEMM_FIXED_STAGE_K;
	const uint32_t to = s.ring + slot * s.stage_bytes + p.groups * GROUP_BYTES, full = s.full + slot * 8;

	ptx_mbarrier_arrive_expect_tx(full, s.stage_bytes);
#pragma unroll
	for (int i = 0; i < 2; i++) {
		const int32_t row = silu ? 0 : t.b[i], eight = silu ? t.b[i] : 0;

		if (p.pair == 1)
			ptx_cp_async_bulk_tensor_4d_g2s(to + i * half, &maps.b, k, row, 0, eight, full);
		else if (i == s.rank)
			ptx_cp_async_bulk_tensor_4d_g2s_multicast(to + i * half, &maps.b, k, row, 0, eight,
								  full, 3);
	}
}

TILE void fetch_a(const struct maps &maps, const struct mine &s, const struct tile &t, int stage, int slot)
{
	ptx_cp_async_bulk_tensor_2d_g2s(s.ring + slot * s.stage_bytes, &maps.a, stage * GEMM_FIXED_STAGE_K,
					t.row, s.full + slot * 8);
}

/* b does not depend on the preceding kernel: the first stages get b before that kernel has ended, then a. */
TILE void fetch(const struct cairn_gemm_fixed_args &g, const struct maps &maps,
		const struct gemm_fixed_plan &p, const struct mine &s)
{
	const int32_t units = p.rows * p.cols, early = min(p.slots, p.stages);
	struct turn turn = { early % p.slots, (uint32_t)(early < p.slots) };
	struct tile t = find_tile(g, p, s, s.cluster);
	int i;

	for (i = 0; i < early; i++)
		fetch_b(g, maps, p, s, t, i, i);
	ptx_griddepcontrol_wait();
	for (i = 0; i < early; i++)
		fetch_a(maps, s, t, i, i);
	for (int unit = s.cluster; unit < units; unit += p.clusters) {
		t = find_tile(g, p, s, unit);
		for (; i < p.stages; i++) {
			ptx_mbarrier_wait_cluster(s.empty + turn.slot * 8, turn.parity);
			fetch_b(g, maps, p, s, t, i, turn.slot);
			fetch_a(maps, s, t, i, turn.slot);
			advance(&turn, p.slots);
		}
		i = 0;
	}
}

/* ---- the consumers: sums ---- */

/* Tells the producers of all CTAs of the cluster that this warp has left the slot. */
TILE void release(const struct mine &s, int pair, int slot)
{
	elected_arrive(s.empty + slot * 8);
	if (pair > 1 && threadIdx.x % 32 < ELECTED_LANES)
		ptx_mbarrier_arrive_relaxed_cluster(s.peer_empty + slot * 8);
}

/*
 * d: the sums of this warpgroup's 64 rows and `width` columns. After stage `mark` the second warpgroup is let
 * loose; -1: none.
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
		const uint64_t b = wgmma_desc(at + p.groups * GROUP_BYTES, 0);

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
			ptx_bar_arrive(LAG_BARRIER, CONSUMERS);
		if (i)
			release(s, p.pair, before);
		before = t->slot;
		advance(t, p.slots);
	}
	ptx_wgmma_wait_group<0>();
	wgmma_keep<width / 2>(d);
	release(s, p.pair, before);
}

/* ---- the consumers: epilogues ---- */

template <int dtype> TILE void add_bias(const struct cairn_gemm_fixed_args &g, const struct tile &t, float *d)
{
	const bool silu = g.epilogue == CAIRN_GEMM_FIXED_SILU_MUL;
	const bool pairs = g.n % 2 == 0 && (uintptr_t)g.bias % 4 == 0;

#pragma unroll
	for (int j = 0; j < MOST_SUMS / 4; j++) {
		const int col = t.col + (silu ? j / 2 : j) * 8 + threadIdx.x % 4 * 2;
		const int at = silu && j % 2 ? g.n / 2 + col : col;
		float bias[2] = { 0, 0 };

		if (pairs && col < t.end) {
			row_unpack2<dtype>(*(const uint32_t *)((const uint16_t *)g.bias + at), bias);
		} else {
			if (col < t.end)
				bias[0] = row_element<dtype>(g.bias, at);
			if (col + 1 < t.end)
				bias[1] = row_element<dtype>(g.bias, at + 1);
		}
		d[4 * j] += bias[0];
		d[4 * j + 1] += bias[1];
		d[4 * j + 2] += bias[0];
		d[4 * j + 3] += bias[1];
	}
}

/* Replaces the sums of gate and up by results, which then are the first half of d. */
TILE void apply_silu_mul(const struct tile &t, float *d)
{
#pragma unroll
	for (int j = 0; j < MOST_SUMS / 8; j++) {
		if (t.col + 8 * j >= t.end)
			break;
#pragma unroll
		for (int e = 0; e < 4; e++)
			d[4 * j + e] = act_mul<0>(d[8 * j + e], d[8 * j + 4 + e]);
	}
}

/* Writes 64 columns to the warp's 16 rows in shared memory as 16 bits. */
template <int dtype> TILE void stage_16(uint32_t staged, const float *d)
{
	const uint32_t lane = threadIdx.x % 32, row = lane % 16;

#pragma unroll
	for (int j = 0; j < 8; j += 2) {
		const uint32_t r[4] = { row_pack2<dtype>(d[4 * j], d[4 * j + 1]),
					row_pack2<dtype>(d[4 * j + 2], d[4 * j + 3]),
					row_pack2<dtype>(d[4 * j + 4], d[4 * j + 5]),
					row_pack2<dtype>(d[4 * j + 6], d[4 * j + 7]) };

		ptx_stmatrix_x4(staged + row * ROW_BYTES + (((j + lane / 16) ^ (row & 7)) << 4), r);
	}
}

/* The same for 32 columns as fp32. */
TILE void stage_32(uint32_t staged, const float *d)
{
	const uint32_t lane = threadIdx.x % 32, row = lane / 4;

#pragma unroll
	for (int j = 0; j < 4; j++) {
		const uint32_t to = staged + row * ROW_BYTES + (((j * 2 + lane % 4 / 2) ^ (row & 7)) << 4) +
				    lane % 2 * 8;

		ptx_st_shared_v2(to, make_uint2(__float_as_uint(d[4 * j]), __float_as_uint(d[4 * j + 1])));
		ptx_st_shared_v2(to + 8 * ROW_BYTES,
				 make_uint2(__float_as_uint(d[4 * j + 2]), __float_as_uint(d[4 * j + 3])));
	}
}

/* Copies an element from shared to global memory. */
TILE void copy_element(char *to, uint32_t from, int bytes)
{
	if (bytes == 2)
		*(uint16_t *)to = ptx_ld_shared_b16(from);
	else
		*(uint32_t *)to = ptx_ld_shared_b32(from);
}

/*
 * Copies the warp's 16 rows of 128 bytes from shared memory to row `row` and column `col` of out, as far as
 * they lie before row m and column `end`.
 */
TILE void copy_out(const struct cairn_gemm_fixed_args &g, uint32_t staged, int row, int col, int end)
{
	const int bytes = g.out_dtype == CAIRN_F32 ? 4 : 2, piece = threadIdx.x % 8, each = 16 / bytes;
	const int64_t step = g.out_stride * bytes;
	const int whole = step % 16 == 0 ? (end - col) / each : 0;	/* pieces that one store can write */

	__syncwarp();
#pragma unroll
	for (int i = 0; i < WARP_ROWS / 4; i++) {
		const int r = i * 4 + threadIdx.x % 32 / 8;
		const uint32_t from = staged + r * ROW_BYTES + ((piece ^ (r & 7)) << 4);
		char *to = (char *)g.out + (row + r) * step + (int64_t)(col + piece * each) * bytes;

		if (row + r >= g.m)
			continue;
		if (piece < whole)
			*(uint4 *)to = ptx_ld_shared_v4(from);
		else
#pragma unroll 1
			for (int e = 0; e < each && col + piece * each + e < end; e++)
				copy_element(to + e * bytes, from + e * bytes, bytes);
	}
	__syncwarp();
}

/* Columns that the tile does not have, at the end of d, are not written. */
template <int dtype>
TILE void write_tile(const struct cairn_gemm_fixed_args &g, const struct mine &s, const struct tile &t,
		     float *d)
{
	const int warp = threadIdx.x / 32, row = t.row + warp * WARP_ROWS;
	const uint32_t staged = s.staged + warp * STAGED_BYTES;

	if (g.bias)
		add_bias<dtype>(g, t, d);
	if (g.epilogue == CAIRN_GEMM_FIXED_SILU_MUL)
		apply_silu_mul(t, d);
	if (g.out_dtype == CAIRN_F32) {
#pragma unroll
		for (int c = 0; c < 2 * MOST_SUMS; c += 32) {
			if (t.col + c >= t.end)
				break;
			stage_32(staged, d + c / 2);
			copy_out(g, staged, row, t.col + c, t.end);
		}
		return;
	}
#pragma unroll
	for (int c = 0; c < 2 * MOST_SUMS; c += 64) {
		if (t.col + c >= t.end)
			break;
		stage_16<dtype>(staged, d + c / 2);
		copy_out(g, staged, row, t.col + c, t.end);
	}
}

template <int dtype>
TILE void consume(const struct cairn_gemm_fixed_args &g, const struct gemm_fixed_plan &p,
		  const struct mine &s)
{
	const int32_t units = p.rows * p.cols;
	struct turn turn = { 0, 0 };
	int mark = -1;

	if (LAG && p.groups == 2 && threadIdx.x < 128)
		mark = min(LAG, p.stages) - 1;
	else if (LAG && p.groups == 2)
		ptx_bar_sync(LAG_BARRIER, CONSUMERS);
	ptx_griddepcontrol_wait();	/* the preceding kernel may read out's memory */
	for (int unit = s.cluster; unit < units; unit += p.clusters) {
		const struct tile t = find_tile(g, p, s, unit);
		float d[MOST_SUMS] = {};

#define WIDTH(n) \
		case n: \
			multiply<dtype, n>(p, s, &turn, mark, d); \
			break
		switch (p.width) {
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
		write_tile<dtype>(g, s, t, d);
		mark = -1;
	}
}

/* ---- the kernel ---- */

TILE struct mine lay_out(const struct gemm_fixed_plan &p, const void *s_mem)
{
	struct mine s;

	s.rank = blockIdx.x % p.pair;
	s.cluster = blockIdx.x / p.pair;
	s.stage_bytes = gemm_fixed_stage_bytes(p.groups, p.width);
	s.ring = ptx_smem(s_mem);
	s.staged = s.ring + GEMM_FIXED_RING_BYTES;
	s.full = s.staged + CONSUMERS / 32 * STAGED_BYTES;
	s.empty = s.full + GEMM_FIXED_MAX_SLOTS * 8;
	s.peer_empty = p.pair > 1 ? ptx_mapa(s.empty, s.rank ^ 1) : 0;
	return s;
}

/* All threads of a cluster: the barriers are ready, or nobody writes to the other CTA any more. */
TILE void sync_cluster(void)
{
	__syncwarp();
	ptx_barrier_cluster_arrive_release();
	ptx_barrier_cluster_wait_acquire();
}

template <int dtype>
static __global__ void __launch_bounds__(THREADS, 1)
gemm_fixed_kernel(const __grid_constant__ struct cairn_gemm_fixed_args g,
		  const __grid_constant__ struct maps maps, const __grid_constant__ struct gemm_fixed_plan p)
{
	extern __shared__ __align__(1024) unsigned char s_mem[];
	const struct mine s = lay_out(p, s_mem);

	if (threadIdx.x == 0) {
		ptx_prefetch_tensormap(&maps.a);
		ptx_prefetch_tensormap(&maps.b);
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
		ptx_setmaxnreg_dec<PRODUCER_REGS>();
		if (threadIdx.x == CONSUMERS)
			fetch(g, maps, p, s);
	} else {
		ptx_setmaxnreg_inc<CONSUMER_REGS>();
		if (threadIdx.x / 128 < p.groups)
			consume<dtype>(g, p, s);
	}
	if (p.pair > 1)
		sync_cluster();
}

#endif
