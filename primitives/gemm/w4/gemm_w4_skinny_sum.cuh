/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gemm_w4_skinny_sum.cuh - the warp of gemm_w4_skinny that adds up
 *
 * It also looks for rows of a that must not be scaled, because one of their magnitudes is 2^27 or more. What
 * the other warps computed for them is of no use: this warp computes their totals again, from global memory,
 * in the order of the other forms. That is many times slower, but no activation of a sound model is as large.
 * Looking for such rows before scaling would need one more barrier of all warps.
 */
#ifndef CAIRN_GEMM_W4_SKINNY_SUM_CUH
#define CAIRN_GEMM_W4_SKINNY_SUM_CUH

#include "primitives/gemm/w4/gemm_w4_skinny_stage.cuh"

/* Returns in each 16-bit half the larger of that half of most and the magnitude in that half of x. */
W4 uint32_t larger(uint32_t most, uint32_t x)
{
	return __vmaxu2(most, x & 0x7fff7fff);
}

/*
 * Returns the rows of a, as bits, that have a magnitude of 2^27 or more. All rows must lie scaled in shared
 * memory.
 */
W4 uint32_t large_rows(const struct cairn_gemm_w4_args &g, const struct sizes &z)
{
	const uint32_t s_a = ptx_smem(s_mem) + a_place(g.m);
	uint32_t rows = 0;

	for (int i = 0; i < g.m; i++) {
		uint32_t most = 0;

#pragma unroll 4
		for (int at = threadIdx.x % 32 * 16; at < z.stages * STAGE_K * 2; at += 32 * 16) {
			const uint4 x = ptx_ld_shared_v4(s_a + i * z.pitch + at);

			most = larger(larger(larger(larger(most, x.x), x.y), x.z), x.w);
		}
		most = max(most >> 16, most & 0xffff);
		rows |= (uint32_t)__any_sync(0xffffffff, most >= A_LIMIT) << i;
	}
	return rows;
}

/*
 * Adds to total the scaled products of a stage of a unit that multiply_stage() adds to its total `nth`, but
 * reads all from global memory.
 */
template <int format, int dtype, int group>
W4 void add_again(const struct cairn_gemm_w4_args &g, const struct sizes &z, int unit, int stage, int nth,
		  float total[4])
{
	const int lane = threadIdx.x % 32;
	const uint16_t *a = (const uint16_t *)g.a + (int64_t)min(lane / 4, g.m - 1) * g.k + lane % 4 * 2;
	const uint8_t *words = g.b + (int64_t)unit * z.tiles * CAIRN_W4_TILE_BYTES + lane * 16;
	const uint8_t *cells = g.b_scale + (int64_t)unit * z.cells + lane / 4 * 2;
	float part[4];

#pragma unroll 1
	for (int i = 2 * nth; i < 2 * nth + 2; i++) {
		const int at = stage * STAGE_K + i * 16;
		struct w4_scales s;
		uint32_t word, w[4], x[2];

		if (at >= g.k)
			break;
		x[0] = *(const uint32_t *)(a + at);
		x[1] = *(const uint32_t *)(a + at + 8);
		word = *(const uint32_t *)(words + at / CAIRN_W4_TILE_K * CAIRN_W4_TILE_BYTES + i % 4 * 4);
		s = w4_decode_scales<format, dtype>(*(const uint16_t *)(cells + at / group * ROWS), 0);
		w4_decode<format, dtype>(word, s, w);
		for (int e = 0; e < 4 && at % group == 0; e++)
			part[e] = 0;
		multiply_16<dtype>(part, w, x);
		for (int e = 0; e < 4 && (at + 16) % group == 0; e++)
			total[e] += s.s[e / 2] * part[e];
	}
}

/* Computes the totals of a unit again for some rows of a, and puts them into its team's buffer, s_sum. */
template <int format, int dtype, int group>
W4 void sum_again(const struct cairn_gemm_w4_args &g, const struct sizes &z, uint32_t rows, int unit,
		  float *s_sum)
{
	const int quad = threadIdx.x % 32 / 4, t = threadIdx.x % 4;

#pragma unroll 1
	for (int warp = 0; warp < z.team; warp++) {
#pragma unroll 1
		for (int half = 0; half < 2; half++) {
			float pair[4] = {};

#pragma unroll 1
			for (int nth = 2 * half; nth < 2 * half + 2; nth++) {
				float total[4] = {};

#pragma unroll 1
				for (int stage = warp; stage < z.stages; stage += z.team)
					add_again<format, dtype, group>(g, z, unit, stage, nth, total);
				for (int e = 0; e < 4; e++)
					pair[e] += total[e];
			}
			for (int e = 0; e < 4; e++) {
				float *to = s_sum + (warp * g.m + 2 * t + e % 2) * ROWS + e / 2 * 8 + quad;

				if (rows >> (2 * t + e % 2) & 1)
					*to = (half ? *to : 0) + pair[e];
			}
		}
	}
	__syncwarp();
}

/* Adds up the totals of a team for a unit, and writes its elements of out. large: rows that are not scaled */
template <int format, int dtype, int form>
W4 void write_unit(const struct cairn_gemm_w4_args &g, const float *s_sum, int team, int unit, uint32_t large)
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
		if (!(large >> i & 1))
			sum *= missing<format, dtype, form>();
		if (j < g.n)
			row_store(g.out, g.out_dtype, (int64_t)i * g.n + j, w4_finish(g, j, sum));
	}
}

/* Adds up and writes all units. large: rows whose totals must be computed again */
template <int format, int dtype, int group, int form, bool again>
W4 void write_units(const struct cairn_gemm_w4_args &g, const struct sizes &z, uint32_t large)
{
	float *s_sum = (float *)(s_mem + SUMS_AT);

	for (int nth = 0, set = blockIdx.x; set < z.units; nth++, set += z.teams * gridDim.x) {
		const int buf = nth % BUFFERS, parity = nth / BUFFERS & 1;

		for (int i = 0; i < z.teams && unit_of(set, i) < z.units; i++) {
			float *s_team = s_sum + (buf * WARPS + i * z.team) * g.m * ROWS;

			ptx_mbarrier_wait(buffer_full(i, buf), parity);
			if (again)
				sum_again<format, dtype, group>(g, z, large, unit_of(set, i), s_team);
			write_unit<format, dtype, form>(g, s_team, z.team, unit_of(set, i), large);
			elected_arrive(buffer_full(i, buf) + BUFFERS * 8);
		}
	}
}

/* A function of its own, so that the registers of this rare case do not take those of the others */
template <int format, int dtype, int group, int form>
static __device__ __noinline__ void write_units_again(const struct cairn_gemm_w4_args &g,
						      const struct sizes &z, uint32_t large)
{
	write_units<format, dtype, group, form, true>(g, z, large);
}

/* Runs in the last warp. */
template <int format, int dtype, int group, int form>
W4 void add_units(const struct cairn_gemm_w4_args &g, const struct sizes &z)
{
	uint32_t large = 0;

	ptx_griddepcontrol_wait();
	if constexpr (a_is_scaled(dtype, form)) {
		/* before its first totals, all warps have copied their parts of a */
		ptx_mbarrier_wait(buffer_full(0, 0), 0);
		large = large_rows(g, z);
		if (large) {
			write_units_again<format, dtype, group, form>(g, z, large);
			return;
		}
	}
	write_units<format, dtype, group, form, false>(g, z, 0);
}

#endif
