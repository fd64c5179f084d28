/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gemm_w4_skinny_a.cuh - rows of a for gemm_w4_skinny: copied to shared memory, and scaled
 *
 * A code of e2m1 that is only moved to its place in a bf16 reads as 2^-126 of its value (gemm_w4.cuh). To
 * multiply codes by 2^126 costs half as many instructions as to decode them. So for one or two rows (the
 * form A_BY_GROUP), each row of a is multiplied by 2^(126 - r) instead, which is exact: r is the exponent of
 * its largest magnitude, but 0 to 126. The sums are then 2^-r of what they should be, and are multiplied by
 * 2^r at the end. More rows take longer to scale than that saves: codes are multiplied. With f16, codes read
 * as 2^-14 of their values; a and codes stay as they are, and the sums are multiplied by 2^14.
 */
#ifndef CAIRN_GEMM_W4_SKINNY_A_CUH
#define CAIRN_GEMM_W4_SKINNY_A_CUH

#include "primitives/gemm/w4/gemm_w4_skinny_sizes.cuh"

/* Where a lies during the products, and what the columns of the products are */
enum form {
	A_GLOBAL,	/* in global memory; rows of a */
	A_SHARED,	/* in shared memory; rows of a */
	A_BY_GROUP,	/* in shared memory; up to 2 rows of a for each 32 elements of a stage */
};

#define HELD	4	/* stages of which a lane holds its part at a time, while it copies a */

/* Returns how many stages of a row a lane copies a part of. */
__host__ __device__ constexpr int lane_stages(int stages)
{
	return (stages + 2 * WARPS - 1) / (2 * WARPS);
}

/* Whether rows of a are scaled */
__host__ __device__ constexpr bool a_is_scaled(int dtype, int form)
{
	return form == A_BY_GROUP && dtype == CAIRN_BF16;
}

/* Shared address of the bits of the largest magnitude of a row of a, if a_is_scaled() */
W4 uint32_t most_of(int row)
{
	return ptx_smem(s_mem) + MOST_AT + row * 4;
}

/* Returns r of a row of a. All warps that multiply have met since they looked for its largest magnitude. */
W4 int exponent_of(int row)
{
	return min(max((int)(ptx_ld_shared_b32(most_of(row)) >> 7) - 127, 0), 126);
}

/* Returns by what factor sums of a row of a are too small. */
template <int format, int dtype, int form> W4 float missing_in(int row)
{
	if (a_is_scaled(dtype, form))
		return __uint_as_float((uint32_t)(exponent_of(row) + 127) << 23);
	return format != CAIRN_W4_INT && dtype == CAIRN_F16 ? 0x1p14f : 1;
}

/*
 * Brings a to L2; each thread that multiplies takes a line. The preceding kernel may still write a, but
 * nothing of it is read here.
 */
W4 void warm_a(const struct cairn_gemm_w4_args &g)
{
	const int threads = WARPS * 32, step = gridDim.x * threads * 128;

	for (int i = (blockIdx.x * threads + threadIdx.x) * 128; i < g.m * g.k * 2; i += step)
		ptx_prefetch_global_L2((const char *)g.a + i);
}

/* Returns the larger magnitudes of those in both halves of most and of x. */
W4 uint32_t larger(uint32_t most, uint32_t x)
{
	return __vmaxu2(most, x & 0x7fff7fff);
}

W4 uint32_t largest(const uint4 &x)
{
	return larger(larger(larger(x.x & 0x7fff7fff, x.y), x.z), x.w);
}

/* Runs in a warp: puts the largest of all lanes' magnitudes to those of a row of a. */
W4 void put_most(int row, uint32_t most)
{
	const uint32_t all = __reduce_max_sync(0xffffffff, max(most >> 16, most & 0xffff));

	if (threadIdx.x % 32 == 0)
		atomicMax((uint32_t *)(s_mem + MOST_AT) + row, all);
}

/* Returns 2^(126 - r) of a row of a, as two bf16. */
W4 uint32_t scale_of_a(int row)
{
	return (253 - exponent_of(row)) * 0x00800080u;
}

/* Returns the nth stage that half a warp copies. first: the warp's */
W4 int stage_of(int first, int n)
{
	return first + (threadIdx.x / 16 % 2 + 2 * n) * WARPS;
}

/* Loads the lane's 8 elements of a stage of a row of a, or zeros past k. */
W4 uint4 load_8(const struct cairn_gemm_w4_args &g, int row, int stage)
{
	const int at = stage * STAGE_K + threadIdx.x % 16 * 8;

	if (at >= g.k)
		return make_uint4(0, 0, 0, 0);
	return *(const uint4 *)((const uint16_t *)g.a + (int64_t)row * g.k + at);
}

/* Stores them to the row's place in shared memory, s_row, if k does not end before the stage. */
W4 void store_8(const struct sizes &z, uint32_t s_row, int stage, const uint4 &x)
{
	const int c = threadIdx.x % 16;
	const uint32_t to = s_row + (stage * TILES + c / 8) * 128 + c % 8 * 4;

	if (stage >= z.stages)
		return;
	ptx_st_shared_b32(to, x.x);
	ptx_st_shared_b32(to + 32, x.y);
	ptx_st_shared_b32(to + 64, x.z);
	ptx_st_shared_b32(to + 96, x.w);
}

/*
 * Copies stages `first`, first + 16, ... of a to shared memory at s_a, with zeros past k. Half a warp copies
 * a stage; a lane moves 8 elements, which are those of four lanes, and has four loads on their way at once.
 */
W4 void keep_a(const struct cairn_gemm_w4_args &g, const struct sizes &z, uint32_t s_a, int first)
{
	for (int i = 0; i < g.m; i++) {
		for (int n = 0; n < lane_stages(z.stages); n += HELD) {
			uint4 x[HELD];

#pragma unroll
			for (int e = 0; e < HELD; e++)
				x[e] = load_8(g, i, stage_of(first, n + e));
#pragma unroll
			for (int e = 0; e < HELD; e++)
				store_8(z, s_a + i * z.pitch, stage_of(first, n + e), x[e]);
		}
	}
}

/*
 * Does the same for the form A_BY_GROUP, and multiplies each row of a by 2^(126 - r). A lane has all that it
 * copies in registers until the warps have found the largest magnitudes.
 */
W4 void keep_scaled_a(const struct cairn_gemm_w4_args &g, const struct sizes &z, uint32_t s_a, int first)
{
	const int each = lane_stages(z.stages);
	uint32_t most[2] = { 0, 0 };
	uint4 x[HELD];

#pragma unroll
	for (int e = 0; e < HELD; e++) {
		const int row = e >= each;

		x[e] = load_8(g, row, row < g.m ? stage_of(first, e - row * each) : z.stages);
	}
#pragma unroll
	for (int e = 0; e < HELD; e++) {
		most[0] = __vmaxu2(most[0], e < each ? largest(x[e]) : 0);
		most[1] = __vmaxu2(most[1], e < each ? 0 : largest(x[e]));
	}
	put_most(0, most[0]);
	if (g.m > 1)
		put_most(1, most[1]);
	ptx_bar_sync(1, WARPS * 32);
#pragma unroll
	for (int e = 0; e < HELD; e++) {
		const int row = e >= each;
		const uint32_t by = scale_of_a(row);

		x[e].x = mul2<CAIRN_BF16>(x[e].x, by);
		x[e].y = mul2<CAIRN_BF16>(x[e].y, by);
		x[e].z = mul2<CAIRN_BF16>(x[e].z, by);
		x[e].w = mul2<CAIRN_BF16>(x[e].w, by);
		if (row < g.m)
			store_8(z, s_a + row * z.pitch, stage_of(first, e - row * each), x[e]);
	}
}

#endif
