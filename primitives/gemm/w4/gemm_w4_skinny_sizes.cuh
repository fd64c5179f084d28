/* SPDX-License-Identifier: Apache-2.0 */
/* gemm_w4_skinny_sizes.cuh - warps, stages and shared memory of gemm_w4_skinny */
#ifndef CAIRN_GEMM_W4_SKINNY_SIZES_CUH
#define CAIRN_GEMM_W4_SKINNY_SIZES_CUH

#include "primitives/gemm/w4/gemm_w4.cuh"
#include "primitives/ptx/elect.cuh"
#include "primitives/ptx/ptx_copy.cuh"

#define WARPS		16	/* that multiply */
#define THREADS		((WARPS + 2) * 32)
#define MAX_RING	6	/* rounds */
#define STAGE_K		128
#define STEPS		(STAGE_K / 16)
#define TILES		(STAGE_K / CAIRN_W4_TILE_K)
#define CODE_BYTES	(TILES * CAIRN_W4_TILE_BYTES)
#define ROWS		CAIRN_W4_ROWS
#define BUFFERS		4
#define MOST_TEAMS	4
#define BARRIERS	(2 * MAX_RING + MOST_TEAMS * 2 * BUFFERS)
#define SUMS_AT		384
#define SMEM_LIMIT	(227 * 1024)
#define SMEM_HALF	(228 * 1024 / 2 - 1024)	/* of an SM's 228 KiB; each CTA takes 1 KiB more */

static_assert(BARRIERS * 8 <= SUMS_AT, "mbarriers end before the totals");

/* Where a lies in shared memory, behind the totals of m rows */
__host__ __device__ constexpr int a_place(int m)
{
	return SUMS_AT + BUFFERS * WARPS * ROWS * (int)sizeof(float) * m;
}

extern __shared__ __align__(128) unsigned char s_mem[];

/* Sizes along k, and how the groups of a stage lie */
struct sizes {
	int units, tiles, stages;
	int team, rounds;		/* warps that share a unit; rounds of a unit */
	int team_shift, teams;		/* logarithm of team; teams of a CTA */
	int sets, longer;		/* sets of units of a CTA; the first CTAs, which have one more */
	int cells;			/* bytes of the cells of a unit */
	int stage_cells;		/* bytes of the cells of a stage; 0: a unit has one */
	int last_codes, last_cells;	/* bytes of a unit's last round */
	int stage_bytes;		/* of codes and cells, in the ring */
	int round_cells;		/* bytes of the cells of a team's round, but for the last */
	int ring, ring_at;		/* rounds in the ring; where it lies in shared memory */
	uint32_t round_bytes, ring_bytes;	/* of a round of all teams in the ring, and of all rounds */
	int pitch;			/* bytes of a row of a in shared memory; 0: a does not fit */
};

/* Keeps x in a register: the compiler would compute it anew in each stage, but cannot repeat a shuffle. */
W4 uint32_t pinned(uint32_t x)
{
	return __shfl_sync(0xffffffff, x, threadIdx.x % 32);
}

/*
 * Waits for the preceding kernel, but only after x has been computed; otherwise the compiler would move that
 * computation behind the wait. x, as an int32_t, is never negative, so the predicate x >= 0 of the wait
 * always holds, but the compiler does not know this and must compute x first.
 */
W4 void wait_behind(uint32_t x)
{
	asm volatile("{.reg .pred always;\n\t"
		     "setp.ge.s32 always, %0, 0;\n\t"
		     "@always griddepcontrol.wait;}" : : "r"(x) : "memory");
}

#endif
