/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gemm_w4_skinny_stage.cuh - the products of a stage, for the warps of gemm_w4_skinny that multiply
 *
 * multiply_stage() has rows of a as columns of its products. multiply_groups(), for e2m1 and up to 2 rows,
 * has room for the sums of 4 groups side by side in the 8 columns, so that each lane decodes and applies only
 * the scales of its own sums: a quarter as many. Both add up in the same order.
 */
#ifndef CAIRN_GEMM_W4_SKINNY_STAGE_CUH
#define CAIRN_GEMM_W4_SKINNY_STAGE_CUH

#include "primitives/gemm/w4/gemm_w4_skinny.cuh"

/* Shared addresses of a lane's part of the warp's first stage, in the ring and in a; the lane's number */
struct lane {
	uint32_t codes, scales, zeros, a, lane;
};

/*
 * What a lane holds of a stage: codes of each tile; scales and, with INT, zero points of each cell, or with
 * A_BY_GROUP of those that its sums belong to
 */
struct held {
	uint4 codes[TILES];
	uint32_t scales[STAGE_K / 16], zeros[STAGE_K / 16];
};

/* Waits for the stage in a slot, and holds it. */
template <int format, int group, int form>
W4 void hold_stage(const struct lane &l, const struct slot &s, struct held *h)
{
	constexpr int cell = format == CAIRN_W4_INT ? 3 * ROWS : ROWS;

	ptx_mbarrier_wait(s.full, s.parity);
#pragma unroll
	for (int i = 0; i < (form == A_BY_GROUP ? 32 : STAGE_K) / group; i++) {
		if (format == CAIRN_W4_INT) {
			h->zeros[i] = ptx_ld_shared_b16(l.zeros + s.from + i * cell);
			h->scales[i] = ptx_ld_shared_b32(l.scales + s.from + i * cell);
		} else {
			h->zeros[i] = 0;
			h->scales[i] = ptx_ld_shared_b16(l.scales + s.from + i * cell);
		}
	}
#pragma unroll
	for (int i = 0; i < TILES; i++)
		h->codes[i] = ptx_ld_shared_v4(l.codes + s.from + i * CAIRN_W4_TILE_BYTES);
}

/*
 * Gives a slot back when the stage in it has been read, and goes on to the next one. An arrival does not wait
 * for the lane's loads that are still on their way: without the fence, the next copy may overwrite what they
 * are to read.
 */
W4 void give_back(const struct sizes &z, const struct lane &l, struct slot *s)
{
	ptx_fence_proxy_async_shared_cta();
	arrive_from(l.lane, empty_of(*s));
	next_slot(z, s);
}

/*
 * Loads operand B of the products of a tile, with zeros past k. at: its first element of k. s_a: with
 * A_SHARED, where a lies
 */
template <int form>
W4 void load_a(const struct cairn_gemm_w4_args &g, uint32_t s_a, int at, uint32_t x[4][2])
{
	if (form == A_SHARED) {
		const uint4 u = ptx_ld_shared_v4(s_a), v = ptx_ld_shared_v4(s_a + 16);

		x[0][0] = u.x;
		x[0][1] = u.y;
		x[1][0] = u.z;
		x[1][1] = u.w;
		x[2][0] = v.x;
		x[2][1] = v.y;
		x[3][0] = v.z;
		x[3][1] = v.w;
		return;
	}
	const int lane = threadIdx.x & 31;
	const int row = min(lane / 4, g.m - 1);
	const uint16_t *from = (const uint16_t *)g.a + (int64_t)row * g.k + at + lane % 4 * 2;

#pragma unroll
	for (int i = 0; i < 4; i++) {
		x[i][0] = at + i * 16 < g.k ? *(const uint32_t *)(from + i * 16) : 0;
		x[i][1] = at + i * 16 < g.k ? *(const uint32_t *)(from + i * 16 + 8) : 0;
	}
}

template <int dtype> W4 void multiply_16(float sum[4], const uint32_t w[4], const uint32_t x[2])
{
	if (dtype == CAIRN_BF16)
		ptx_mma_m16n8k16_bf16(sum, w, x);
	else
		ptx_mma_m16n8k16_f16(sum, w, x);
}

/* Totals that a lane has for an element of out: with e2m1, one for each 32 elements of a stage */
#define TOTALS(format)	((format) == CAIRN_W4_INT ? 1 : 4)

/*
 * Adds the scaled products of a stage to total. s_a: shared address of the lane's part of a; at: the stage's
 * first element of k; whole: k does not end within the stage
 */
template <int format, int dtype, int group, int form, bool whole>
W4 void multiply_stage(const struct cairn_gemm_w4_args &g, const struct held &h, uint32_t s_a, int at,
		       float (*total)[4])
{
	constexpr int share = group / 16;	/* products of 16 along k that share a scale */
	struct w4_scales s;
	uint32_t x[4][2];
	float part[4];

#pragma unroll
	for (int i = 0; i < STEPS; i++) {
		uint32_t w[4];

		if (!whole && at + i * 16 >= g.k)
			break;
		if (i % 4 == 0)
			load_a<form>(g, s_a + i / 4 * 128, at + i * 16, x);
		if (i % share == 0) {
			s = w4_decode_scales<format, dtype>(h.scales[i / share], h.zeros[i / share]);
#pragma unroll
			for (int e = 0; e < 4; e++)
				part[e] = 0;
		}
		if (format != CAIRN_W4_INT && dtype == CAIRN_F16)
			decode_small<dtype>(w4_word(h.codes[i / 4], i % 4), w);
		else
			w4_decode<format, dtype>(w4_word(h.codes[i / 4], i % 4), s, w);
		multiply_16<dtype>(part, w, x[i % 4]);
		if (i % share == share - 1 || (!whole && at + (i + 1) * 16 >= g.k)) {
#pragma unroll
			for (int e = 0; e < 4; e++)
				total[i / 2 % TOTALS(format)][e] += s.s[e / 2] * part[e];
		}
	}
}

/* Loads operand B of a pair of products, if it is the lane's pair `mine`; if not, x stays 0. */
template <int pair> W4 void load_pair(uint32_t mine, uint32_t s_a, uint32_t x[2][2])
{
	asm volatile("{.reg .pred p;\n\t"
		     "setp.eq.u32 p, %5, %6;\n\t"
		     "@p ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];}"
		     : "+r"(x[0][0]), "+r"(x[0][1]), "+r"(x[1][0]), "+r"(x[1][1])
		     : "r"(s_a), "r"(mine), "n"(pair) : "memory");
}

/*
 * Adds the scaled products of a stage to total, as multiply_stage() does, in the form A_BY_GROUP: columns 2 p
 * and 2 p + 1 of operand B have rows 0 and 1 of a for elements 32 p to 32 p + 31 of the stage, and 0 for the
 * others. So the sums of all groups lie side by side, and a lane scales those of one group, or with NVFP4 of
 * two: the sums of even and of odd products. x: operand B; a lane loads only its pair of products
 */
template <int format, int dtype, bool whole>
W4 void multiply_groups(const struct cairn_gemm_w4_args &g, const struct held &h, uint32_t s_a, int at,
			uint32_t pair, uint32_t x[STEPS][2], float total[4])
{
	constexpr int sums = format == CAIRN_W4_NV ? 2 : 1;
	float part[sums][4] = {};

	load_pair<0>(pair, s_a, x);
	load_pair<1>(pair, s_a, x + 2);
	load_pair<2>(pair, s_a, x + 4);
	load_pair<3>(pair, s_a, x + 6);
#pragma unroll
	for (int i = 0; i < STEPS; i++) {
		uint32_t w[4];

		decode_small<dtype>(w4_word(h.codes[i / 4], i % 4), w);
		multiply_16<dtype>(part[i % sums], w, x[i]);
	}
	/* scales of groups past k may be NaN */
	if (!whole && at + (int)threadIdx.x % 4 * 32 >= g.k)
		return;
#pragma unroll
	for (int i = 0; i < sums; i++) {
		const struct w4_scales s = w4_decode_scales<format, dtype>(h.scales[i], 0);

#pragma unroll
		for (int e = 0; e < 4; e++)
			total[e] += s.s[e / 2] * part[i][e];
	}
}

/* Puts a warp's totals into its place `to` of a buffer, and sets them to 0. */
template <int format>
W4 void put_totals(const struct cairn_gemm_w4_args &g, float *to, float (*total)[4])
{
	const int quad = threadIdx.x % 32 / 4, t = threadIdx.x & 3;

#pragma unroll
	for (int e = 0; e < 4; e++) {
		float sum = total[0][e];

		if (format != CAIRN_W4_INT)
			sum = (sum + total[1][e]) + (total[2][e] + total[3][e]);
		if (2 * t + e % 2 < g.m)
			to[(2 * t + e % 2) * ROWS + e / 2 * 8 + quad] = sum;
#pragma unroll
		for (int i = 0; i < TOTALS(format); i++)
			total[i][e] = 0;
	}
}

/* Keeps one of two sums, gives the other to lane ^ mask, and adds to the kept one what that lane gives. */
W4 float with_other(float first, float second, bool keeps_second, int mask)
{
	const float give = keeps_second ? first : second, keep = keeps_second ? second : first;

	return keep + __shfl_xor_sync(0xffffffff, give, mask);
}

/*
 * Does the same for A_BY_GROUP, and adds up the totals of four lanes in the same order as put_totals(). Each
 * lane then has the sum of one row of a and one row of b.
 */
W4 void put_groups(const struct cairn_gemm_w4_args &g, float *to, float total[4])
{
	const int quad = threadIdx.x % 32 / 4, row = threadIdx.x & 1, half = threadIdx.x >> 1 & 1;
	const float low = with_other(total[0], total[1], row, 1);
	const float high = with_other(total[2], total[3], row, 1);
	const float sum = with_other(low, high, half, 2);

	if (row < g.m)
		to[row * ROWS + half * 8 + quad] = sum;
#pragma unroll
	for (int e = 0; e < 4; e++)
		total[e] = 0;
}

/* A_BY_GROUP: what a lane keeps of operand B between stages; see multiply_groups() */
struct operand {
	uint32_t pair, x[STEPS][2];
};

/* Adds the scaled products of a stage to total. */
template <int format, int dtype, int group, int form, bool whole>
W4 void add_stage(const struct cairn_gemm_w4_args &g, const struct held &h, uint32_t s_a, int at,
		  struct operand *o, float (*total)[4])
{
	if constexpr (form == A_BY_GROUP)
		multiply_groups<format, dtype, whole>(g, h, s_a, at, o->pair, o->x, total[0]);
	else
		multiply_stage<format, dtype, group, form, whole>(g, h, s_a, at, total);
}

#endif
