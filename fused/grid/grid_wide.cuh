/* SPDX-License-Identifier: Apache-2.0 */
/*
 * grid_wide - the products for more than 8 requests, by pairs of CTAs
 *
 * A pair, which is a cluster of two, has a share of the rows. Each CTA multiplies half of k: of every 16
 * stages of 128, rank 0 takes the first 8 and rank 1 the last 8. A unit is 32 rows, in two stages. A warp
 * reads its activations from shared memory once for both, because reads of activations limit such a product.
 *
 * The sums of a CTA's warps are added in its shared memory. Warp w adds those of requests 2 w and 2 w + 1. In
 * rank 0 warps 0 .. 3 finish their requests with the sums that rank 1 sends, and warps 4 .. 7 send theirs; in
 * rank 1 the roles are swapped. Received sums are read one unit later, when they have arrived.
 *
 * GRID_PAIR_BUFS = 4 buffers suffice. A CTA sends the sums of unit u after a CTA barrier, at which all its
 * warps had finished unit u - 2. To finish that unit they needed sums that the other CTA sent after its own
 * barrier for u - 2. By then all warps of that CTA had finished unit u - 4, whose buffer unit u reuses.
 */
#ifndef CAIRN_GRID_WIDE_CUH
#define CAIRN_GRID_WIDE_CUH

#include "fused/grid/grid.cuh"

#define TALL		GRID_TALL(GRID_WIDE)

struct pair_sums {
	uint32_t units;			/* number of units so far in this launch */
	/* stages of the last unit that are not finished; below, this thread's element of each of them */
	int open;
	int col[TALL];			/* -1: none */
	uint16_t bias[TALL], x[TALL];
	float total[TALL];
};

GRID bool pair_finishes(void)
{
	return (int)(threadIdx.x / 32) / (GRID_WARPS / 2) == grid_rank<GRID_WIDE>();
}

/*
 * Returns the address that receives this thread's element of a stage of unit `unit`; pair_mbar() returns the
 * unit's mbarrier.
 */
GRID uint32_t pair_at(const struct grid_args &a, uint32_t unit, int stage)
{
	return ptx_smem(grid_mem) + a.at_pair + 64 +
	       ((unit % GRID_PAIR_BUFS * TALL + stage) * (WORKERS / 2) + threadIdx.x % (WORKERS / 2)) * 4;
}

GRID uint32_t pair_mbar(uint32_t unit)
{
	return ptx_smem(grid_mem) + GRID_PAIR_MBARS + 8 + unit % GRID_PAIR_BUFS * 8;
}

/* Finishes the previous unit if it is open. */
template <int dtype>
GRID void pair_finish(const struct grid_args &a, struct pair_sums &pair, int phase, int kind)
{
	const uint32_t unit = pair.units - 1;

	if (!pair.open)
		return;
	ptx_mbarrier_wait(pair_mbar(unit), unit / GRID_PAIR_BUFS & 1);
#pragma unroll
	for (int i = 0; i < TALL; i++) {
		float other, total, up;

		if (i >= pair.open)
			break;
		other = __uint_as_float(ptx_ld_shared_b32(pair_at(a, unit, i)));
		total = grid_rank<GRID_WIDE>() ? other + pair.total[i] : pair.total[i] + other;
		up = __shfl_down_sync(~0u, total, 8);
		total += row_element<dtype>(&pair.bias[i], 0) + row_element<dtype>(&pair.x[i], 0);
		if (pair.col[i] >= 0)
			grid_result<dtype>(a, phase, kind, threadIdx.x / STAGE_ROWS, pair.col[i], total, up);
	}
	pair.open = 0;
}

/* Keeps or sends this thread's sums of a unit with `stages` stages. */
GRID void pair_exchange(const struct grid_args &a, struct pair_sums &pair, int stages,
			const struct grid_element *e, const struct grid_addend *addend, const float *total)
{
	const uint32_t mbar = pair_mbar(pair.units);

	if (pair_finishes()) {
		if (threadIdx.x % (WORKERS / 2) == 0)
			ptx_mbarrier_arrive_expect_tx(mbar, stages * (WORKERS / 2 * 4));
		pair.open = stages;
	}
#pragma unroll
	for (int i = 0; i < TALL; i++) {
		if (i >= stages)
			break;
		if (pair_finishes()) {
			pair.col[i] = e[i].mine ? e[i].col : -1;
			pair.bias[i] = addend[i].bias;
			pair.x[i] = addend[i].x;
			pair.total[i] = total[i];
		} else {
			ptx_st_async_b32(ptx_mapa(pair_at(a, pair.units, i), grid_rank<GRID_WIDE>() ^ 1),
					 __float_as_uint(total[i]),
					 ptx_mapa(mbar, grid_rank<GRID_WIDE>() ^ 1));
		}
	}
	pair.units++;
}

/* See run_product(). */
template <int dtype>
GRID void run_wide(const struct grid_args &a, struct ring &r, int phase, int kind,
		   const struct norm_left &left, struct pair_sums &pair)
{
	constexpr int way = GRID_WIDE;
	const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, quad = lane / 4, t = lane % 4;
	const int k = grid_k(a, kind), num_stages = a_padded(k) / STAGE_K,
		  batch = a.s.kv.batch, sums = batch * SUM_ROW(way);
	const uint32_t x_at[2] = { a_at(a, min(quad, batch - 1), a_part(way, k)) + t * 16,
				   a_at(a, min(quad + 8, batch - 1), a_part(way, k)) + t * 16 };
	float *s_sums = (float *)(grid_mem + GRID_SUMS),
	      *s_mine = s_sums + warp * sums + quad + 2 * t * SUM_ROW(way);
	const int2 rows = grid_shares()[kind];

	for (int unit = 0; unit < rows.y; unit += TALL * grid_unit(kind)) {
		const int stages = unit + grid_unit(kind) < rows.y ? 2 : 1;
		struct grid_element e[TALL];
		struct grid_addend addend[TALL] = {};
		float sum[TALL][2][1][4] = {}, total[TALL] = {};

#pragma unroll
		for (int i = 0; i < TALL; i++) {
			e[i] = grid_element(a, kind, rows, unit + i * grid_unit(kind), warp);
			if (e[i].mine && pair_finishes())
				addend[i] = grid_addend(a, phase, kind, e[i].row, e[i].col);
		}
		for (int stage = grid_first_stage<way>(warp); stage < num_stages;
		     stage += GRID_STAGE_STEP(way)) {
			uint4 x[2][4];

			if (unit == 0 && left.rows)
				scale_stage<dtype, way>(a, kind, phase, left, stage,
							stage / GRID_STAGE_STEP(way));
			load_fragments<way>(a, kind, k, stage, x_at, x);
#pragma unroll
			for (int i = 0; i < TALL; i++) {
				if (i >= stages)
					break;
				multiply_stage<dtype, 1>(ring_wait(r) + attn_q_at<STAGE_K>(lane), x, sum[i]);
				ring_release(r, 1);
			}
		}
#pragma unroll
		for (int i = 0; i < TALL; i++)
#pragma unroll
			for (int h = 0; h < 2; h++)
#pragma unroll
				for (int j = 0; j < 4; j++)
					if (8 * h + 2 * t + j % 2 < batch)
						s_mine[(i * GRID_WARPS * batch + 8 * h + j % 2) *
						       SUM_ROW(way) + j / 2 * 8] = sum[i][h][0][j];
		work_sync();
#pragma unroll
		for (int i = 0; i < TALL; i++)
#pragma unroll
			for (int w = 0; w < GRID_WARPS; w++)
				total[i] += s_sums[(i * GRID_WARPS + w) * sums +
						   sum_at<way>(batch, warp * 32 + lane)];
		pair_finish<dtype>(a, pair, phase, kind);
		pair_exchange(a, pair, stages, e, addend, total);
		work_sync();
	}
	pair_finish<dtype>(a, pair, phase, kind);
	end_phase<way>(a, phase);
}
#endif
