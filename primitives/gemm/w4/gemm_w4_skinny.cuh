/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gemm_w4_skinny.cuh - the warp of gemm_w4_skinny that fetches and the one that adds up
 *
 * Both share mbarriers with the warps that multiply. A round's slot of the ring is full when its copies have
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

W4 void next_slot(const struct sizes &z, struct slot *s)
{
	const bool wraps = s->from == z.last_slot;

	s->full += wraps ? 8 - z.ring * 8 : 8;
	s->from = wraps ? 0 : s->from + WARPS * z.stage_bytes;
	s->parity ^= wraps;
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
	const int step = z.teams * gridDim.x;

	return (z.units - (int)blockIdx.x + step - 1) / step;
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

/* Adds up the totals of a team for a unit, and writes its elements of out. */
template <int format, int dtype, int form>
W4 void write_unit(const struct cairn_gemm_w4_args &g, const float *s_sum, int team, int unit)
{
	for (int e = threadIdx.x & 31; e < g.m * ROWS; e += 32) {
		const int i = e / ROWS, j = unit * ROWS + e % ROWS;
		float v[WARPS], sum = 0;

#pragma unroll
		for (int w = 0; w < WARPS; w++)
			v[w] = w < team ? s_sum[w * g.m * ROWS + e] : 0;
#pragma unroll
		for (int w = 0; w < WARPS; w++)
			sum += v[w];
		if (j < g.n)
			row_store(g.out, g.out_dtype, (int64_t)i * g.n + j,
				  w4_finish(g, j, sum * missing_in<format, dtype, form>(i)));
	}
}

/* Shared address of the mbarrier that says that a team's buffer is full; BUFFERS further: that it is empty */
W4 uint32_t buffer_full(int team, int buf)
{
	return ptx_smem(s_mem) + (2 * MAX_RING + team * 2 * BUFFERS + buf) * 8;
}

/* Runs in the last warp, before all warps meet: prepares the mbarriers of the buffers, and most_of(). */
W4 void init_buffers(const struct sizes &z)
{
	if (threadIdx.x % 32)
		return;
	for (int i = 0; i < CAIRN_GEMM_W4_EXACT_M; i++)
		ptx_st_shared_b32(most_of(i), 0);
	for (int i = 0; i < z.teams * 2 * BUFFERS; i++)
		ptx_mbarrier_init(buffer_full(0, i), (i / BUFFERS % 2 ? 1 : z.team) * ELECTED_LANES);
	ptx_fence_mbarrier_init_release_cluster();
}

/* Runs in the last warp: adds up and writes all units. */
template <int format, int dtype, int form>
W4 void add_units(const struct cairn_gemm_w4_args &g, const struct sizes &z)
{
	const float *s_sum = (const float *)(s_mem + SUMS_AT);
	const int sets = num_sets(z);

	ptx_griddepcontrol_wait();
	for (int nth = 0, set = blockIdx.x; nth < sets; nth++, set += z.teams * gridDim.x) {
		const int buf = nth % BUFFERS, parity = nth / BUFFERS & 1;

		for (int i = 0; i < z.teams && unit_of(set, i) < z.units; i++) {
			ptx_mbarrier_wait(buffer_full(i, buf), parity);
			write_unit<format, dtype, form>(g, s_sum + (buf * WARPS + i * z.team) * g.m * ROWS,
							z.team, unit_of(set, i));
			elected_arrive(buffer_full(i, buf) + BUFFERS * 8);
		}
	}
}

#endif
