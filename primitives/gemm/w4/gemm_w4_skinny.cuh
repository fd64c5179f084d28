/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gemm_w4_skinny.cuh - the warp of gemm_w4_skinny that fetches, and the mbarriers of all warps
 *
 * A round's slot of the ring is full when its copies have
 * arrived, and empty when all 16 warps have read their parts of it. A buffer of a team is full when all its
 * warps have put their totals into it, and empty when these are added up.
 */
#ifndef CAIRN_GEMM_W4_SKINNY_CUH
#define CAIRN_GEMM_W4_SKINNY_CUH

#include "primitives/gemm/w4/gemm_w4_skinny_a.cuh"

/* A round's slot: its mbarrier, its first byte in the ring, the parity of the ring's turns so far */
struct slot {
	uint32_t full, from, parity;
};

W4 uint32_t empty_of(const struct slot &s)
{
	return s.full + MAX_RING * 8;
}

/* Goes on to the next slot. It is in PTX because what the compiler makes of an if was slower. */
W4 void next_slot(const struct sizes &z, struct slot *s)
{
	asm("{.reg .pred wraps;\n\t"
	    "add.u32 %0, %0, 8;\n\t"
	    "add.u32 %1, %1, %3;\n\t"
	    "setp.eq.u32 wraps, %1, %4;\n\t"
	    "@wraps sub.u32 %0, %0, %5;\n\t"
	    "@wraps mov.u32 %1, 0;\n\t"
	    "@wraps xor.b32 %2, %2, 1;}"
	    : "+r"(s->full), "+r"(s->from), "+r"(s->parity)
	    : "r"(z.round_bytes), "r"(z.ring_bytes), "r"(z.ring * 8));
}

/* Arrives at an mbarrier for the warp, as elected_arrive() does. lane: of the thread, pinned */
W4 void arrive_from(uint32_t lane, uint32_t mbar)
{
	__syncwarp();
	if (lane < ELECTED_LANES)
		ptx_mbarrier_arrive(mbar);
}

/* The units of a CTA are in sets, one for each team. Returns a team's unit in the set of unit `first`. */
W4 int unit_of(int first, int team)
{
	return first + team * gridDim.x;
}

/* Returns the number of sets of the CTA. */
W4 int num_sets(const struct sizes &z)
{
	return z.sets + ((int)blockIdx.x < z.longer);
}

/* What the fetching warp copies next. Each of its first lanes copies for a team. */
struct fetch {
	const uint8_t *codes, *cells;
	struct slot slot;
	int unit, rounds;		/* the team's unit; rounds that are left of it */
	int teams;			/* that have a unit in this set */
	bool present;			/* whether the lane's team is one of them */
};

W4 void begin_unit(const struct cairn_gemm_w4_args &g, const struct sizes &z, struct fetch *f, int unit)
{
	f->unit = unit;
	f->rounds = z.rounds;
	f->present = threadIdx.x % 32 < z.teams && unit < z.units;
	f->teams = __popc(__ballot_sync(0xffffffff, f->present));
	f->codes = g.b + (int64_t)unit * z.tiles * CAIRN_W4_TILE_BYTES;
	f->cells = g.b_scale + (int64_t)unit * z.cells;
}

/* Starts the copies of a round. */
W4 void fetch_round(const struct cairn_gemm_w4_args &g, const struct sizes &z, struct fetch *f)
{
	const int lane = threadIdx.x % 32, whole = z.team * CODE_BYTES;
	const bool last = f->rounds == 1;
	const int codes = last ? z.last_codes : whole, cells = last ? z.last_cells : z.round_cells;
	const uint32_t to = ptx_smem(s_mem) + z.ring_at + lane * z.team * z.stage_bytes + f->slot.from;

	if (lane == 0)
		ptx_mbarrier_arrive_expect_tx(f->slot.full, f->teams * (codes + cells));
	if (f->present) {
		ptx_cp_async_bulk_g2s(to, f->codes, codes, f->slot.full);
		ptx_cp_async_bulk_g2s(to + whole, f->cells, cells, f->slot.full);
	}
	f->codes += whole;
	f->cells += z.team * z.stage_cells;
	next_slot(z, &f->slot);
	if (--f->rounds == 0)
		begin_unit(g, z, f, f->unit + z.teams * gridDim.x);
}

/* Returns the number of rounds of the CTA. */
W4 int num_rounds(const struct sizes &z)
{
	return num_sets(z) * z.rounds;
}

/*
 * Runs in the warp that fetches, before all warps meet: prepares the mbarriers of the ring, and starts the
 * first copies, so that they wait for no other warp. b is constant, so no copy waits for the preceding
 * kernel.
 */
W4 void begin_fetching(const struct cairn_gemm_w4_args &g, const struct sizes &z, struct fetch *f)
{
	const uint32_t smem = ptx_smem(s_mem);

	f->slot = { smem, 0, 1 };
	if (threadIdx.x % 32 == 0) {
		for (int i = 0; i < z.ring; i++) {
			ptx_mbarrier_init(smem + i * 8, 1);
			ptx_mbarrier_init(smem + (MAX_RING + i) * 8, WARPS * ELECTED_LANES);
		}
		ptx_fence_mbarrier_init_release_cluster();
	}
	__syncwarp();
	ptx_fence_proxy_async_shared_cta();
	begin_unit(g, z, f, unit_of(blockIdx.x, threadIdx.x % 32));
	for (int i = 0; i < z.ring && i < num_rounds(z); i++)
		fetch_round(g, z, f);
}

/* Runs in the warp that fetches, when all warps have met. */
W4 void fetch_others(const struct cairn_gemm_w4_args &g, const struct sizes &z, struct fetch *f)
{
	for (int i = z.ring; i < num_rounds(z); i++) {
		ptx_mbarrier_wait(empty_of(f->slot), f->slot.parity);
		fetch_round(g, z, f);
	}
}

/* Shared address of the mbarrier that says that a team's buffer is full; BUFFERS further: that it is empty */
W4 uint32_t buffer_full(int team, int buf)
{
	return ptx_smem(s_mem) + (2 * MAX_RING + team * 2 * BUFFERS + buf) * 8;
}

/* Runs in the last warp, before all warps meet: prepares the mbarriers of the buffers. */
W4 void init_buffers(const struct sizes &z)
{
	if (threadIdx.x % 32)
		return;
	for (int i = 0; i < z.teams * 2 * BUFFERS; i++)
		ptx_mbarrier_init(buffer_full(0, i), (i / BUFFERS % 2 ? 1 : z.team) * ELECTED_LANES);
	ptx_fence_mbarrier_init_release_cluster();
}

#endif
