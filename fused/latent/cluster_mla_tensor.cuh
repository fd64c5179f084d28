/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cluster_mla_tensor.cuh - fills cluster_mla's rings with the copy engine, through tensor maps of the weights
 *
 * This is for long streams: one instruction loads a stage. A stage of rows is stored in shared memory as
 * [row / 4][column / 32][row % 4][column % 32], so that eight lanes read 128 contiguous bytes. A stage of
 * MLA_ABSORB is [d / 32][d % 8][d % 32 / 8][16 columns], and the halves of these 32 bytes are swapped where d
 * is odd (SWIZZLE_32B), so that the eight rows of one ldmatrix are free of bank conflicts.
 *
 * Workers read a stage with ordinary loads, and the copy engine then overwrites it, so the reader must issue
 * a proxy fence before it frees the stage. Without the fence, results differ from run to run (with 8
 * requests, in every run).
 */
#ifndef CAIRN_CLUSTER_MLA_TENSOR_CUH
#define CAIRN_CLUSTER_MLA_TENSOR_CUH

#include <cuda.h>

#include "fused/latent/cluster_mla_attn.cuh"

/* Tensor maps of the weights: [0] of a whole stage, [1] of four rows; [MLA_PRODUCTS]: w2 of MLA_DOWN. */
struct mla_maps {
	CUtensorMap map[MLA_PRODUCTS + 1][2];
	int32_t used;			/* always 1: see cluster_mla_cta() */
};

/* x, z, w: first element in a row, block of 32 columns, block of rows; see make_row_maps() */
MLA void mla_tensor_copy(uint32_t dst, const void *map, int x, int z, int w, uint32_t mbar, uint64_t policy)
{
	asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
		     ".L2::cache_hint [%0], [%1, {%2, %3, %4, %5}], [%6], %7;"
		     : : "r"(dst), "l"(map), "r"(x), "r"(0), "r"(z), "r"(w), "r"(mbar), "l"(policy)
		     : "memory");
}

/* Starts the loads of a unit's stage; called by one thread. */
MLA void mla_fetch(const struct mla_maps &maps, const struct mla_matrix &m, int product, int unit, int stage,
		   uint32_t ring, uint32_t filled, uint64_t policy)
{
	int first = m.first + unit * 16, rows = min(m.count - unit * 16, 16);
	const int second = first >= m.rows;

	ptx_mbarrier_arrive_expect_tx(filled, rows * 256);
	if (product == MLA_ABSORB) {
		mla_tensor_copy(ring, &maps.map[MLA_ABSORB][0], first % RANK, 0,
				first / RANK * ((NOPE + V_DIM) / 32), filled, policy);
	} else if (rows == 16 && (second || first + 16 <= m.rows)) {
		first += product == MLA_VALUE ? (first / V_DIM + 1) * NOPE : second ? -m.rows : 0;
		mla_tensor_copy(ring, &maps.map[second ? MLA_PRODUCTS : product][0], 0, stage * 4,
				first / 4, filled, policy);
	} else {
#pragma unroll 1
		for (int i = 0; i < rows; i += 4) {
			const int next = first + i >= m.rows;

			mla_tensor_copy(ring + i * 256, &maps.map[next ? MLA_PRODUCTS : product][1], 0,
					stage * 4, (first + i - (next ? m.rows : 0)) / 4, filled, policy);
		}
	}
}

/* Replaces the feeders by one warp with a lane for each ring. */
MLA void run_tensor_feeder(const struct mla_ctx &c, const struct mla_args &g, const struct mla_maps &maps,
			   int jobs, int team, int num_teams)
{
	const uint64_t policy = ptx_createpolicy_evict_first();
	int joined = g.team == 1;
	uint32_t n = 0;			/* stages of the ring */

	if (c.lane < WARPS)
		for (int i = 0; i < STAGES; i++) {
			ptx_mbarrier_init(ptx_smem(&mla_small()->filled[c.lane][i]), 1);
			ptx_mbarrier_init(ptx_smem(&mla_small()->freed[c.lane][i]), ELECTED_LANES);
		}
	ptx_fence_mbarrier_init_release_cluster();
	__syncwarp();
	mla_bar_arrive(RINGS_BAR, WITH_FEEDERS);
	mla_bar_arrive(START_BAR, WITH_FEEDERS);
#pragma unroll 1
	for (int product = 0; product < MLA_PRODUCTS; product++) {
		struct mla_matrix m;

		mla_make_matrix(g, &m, product);
		/* join the team's barriers first: workers that wait for their team free no stage */
		if (!joined && product >= MLA_VALUE) {
			join_team(g, jobs, team, num_teams);
			joined = 1;
		}
#pragma unroll 1
		for (int group = 0; group << (4 - m.shift) < m.units; group++) {
			const int unit = (group << (4 - m.shift)) + (c.lane >> m.shift);
			const int there = c.lane < WARPS && unit < m.units;
			int stage = there ? c.lane & ((1 << m.shift) - 1) : m.stages;
#ifdef CAIRN_DEBUG
			const int64_t start = ptx_clock64();
#else
			const int64_t start = 0;
#endif

			while (__any_sync(~0u, stage < m.stages)) {
				const uint32_t slot = n % STAGES + c.lane % WARPS * STAGES;

				if (stage < m.stages &&
				    (n < STAGES ||
				     ptx_mbarrier_test_wait_parity(ptx_smem(mla_small()->freed[0] + slot),
								   (n / STAGES & 1) ^ 1))) {
					mla_fetch(maps, m, product, unit, stage,
						  mla_smem() + slot * STAGE_BYTES,
						  ptx_smem(mla_small()->filled[0] + slot), policy);
					stage += 1 << m.shift;
					n++;
				}
				ptx_spin_check(start, "free stages of a ring", n, 0);

			}
		}
	}
	if (!joined)
		join_team(g, jobs, team, num_teams);
}

#endif
