/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gemm_w4_skinny_a.cuh - rows of a for gemm_w4_skinny: copied to shared memory, and scaled
 *
 * A code of e2m1 that is only moved to its place in a bf16 reads as 2^-126 of its value (gemm_w4.cuh). To
 * multiply codes by 2^126 costs half as many instructions as to decode them. So for one or two rows (the form
 * A_BY_GROUP), a is multiplied by 2^100 instead, which is exact for magnitudes below 2^27, and sums by 2^26
 * at the end; a row with larger ones is computed again (gemm_w4_skinny_sum.cuh). More rows take longer to
 * scale than that saves: codes are multiplied. With f16, codes read as 2^-14 of their values; a and codes
 * stay as they are, and the sums are multiplied by 2^14.
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

#define HELD	4	/* parts of a (8 elements of a stage of a row) that a lane copies at a time */

/* Returns the number of stages of each row from which a lane copies a part. */
__host__ __device__ constexpr int lane_stages(int stages)
{
	return (stages + 2 * WARPS - 1) / (2 * WARPS);
}

/* Returns log2 of the number of stages of one row that a lane copies at a time; see find_parts(). */
W4 int held_shift(const struct sizes &z)
{
	const int each = lane_stages(z.stages);

	return each > 2 ? 2 : each - 1;
}

/* Whether a is scaled, and by how much: two bf16 */
__host__ __device__ constexpr bool a_is_scaled(int dtype, int form)
{
	return form == A_BY_GROUP && dtype == CAIRN_BF16;
}

#define A_SCALE		0x71807180u	/* 2^100 */
#define A_LIMIT		0x7f00u		/* 2^127: 2^27, scaled */

/* By what factor sums are too small */
template <int format, int dtype, int form> W4 constexpr float missing()
{
	if (a_is_scaled(dtype, form))
		return 0x1p26f;
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

/* Returns the nth stage that half a warp copies. first: the warp's */
W4 int stage_of(int first, int n)
{
	return first + (threadIdx.x / 16 % 2 + 2 * n) * WARPS;
}

/* A lane's 8 elements of a stage of a row of a: where they are, and their place in shared memory */
struct part {
	int from;			/* bytes from a on; < 0: past k, zeros */
	uint32_t to;			/* 0: no part */
};

/*
 * Finds the parts that the lane copies at a time: HELD >> shift rows from row i on, and 1 << shift stages of
 * each, from the lane's nth on.
 */
W4 void find_parts(const struct cairn_gemm_w4_args &g, const struct sizes &z, uint32_t s_a, int first,
		   int shift, int i, int n, struct part p[HELD])
{
	const int c = threadIdx.x % 16;

#pragma unroll
	for (int e = 0; e < HELD; e++) {
		const int row = i + (e >> shift), stage = stage_of(first, n + (e & ((1 << shift) - 1)));
		const int at = stage * STAGE_K + c * 8;
		const bool present = row < g.m && stage < z.stages;

		p[e].from = present && at < g.k ? (row * g.k + at) * 2 : -1;
		p[e].to = present ? s_a + row * z.pitch + (stage * TILES + c / 8) * 128 + c % 8 * 4 : 0;
	}
}

/* Finds the lane's first parts. Returns what wait_behind() needs to wait until they are found. */
W4 uint32_t find_first_parts(const struct cairn_gemm_w4_args &g, const struct sizes &z, uint32_t s_a,
			     int first, struct part p[HELD])
{
	uint32_t found = 0;

	find_parts(g, z, s_a, first, held_shift(z), 0, 0, p);
#pragma unroll
	for (int e = 0; e < HELD; e++)
		found |= (uint32_t)p[e].from >> 1 | p[e].to;
	return found;
}

W4 void scale_8(uint4 *x)
{
	x->x = mul2<CAIRN_BF16>(x->x, A_SCALE);
	x->y = mul2<CAIRN_BF16>(x->y, A_SCALE);
	x->z = mul2<CAIRN_BF16>(x->z, A_SCALE);
	x->w = mul2<CAIRN_BF16>(x->w, A_SCALE);
}

W4 void store_8(uint32_t to, const uint4 &x)
{
	if (!to)
		return;
	ptx_st_shared_b32(to, x.x);
	ptx_st_shared_b32(to + 32, x.y);
	ptx_st_shared_b32(to + 64, x.z);
	ptx_st_shared_b32(to + 96, x.w);
}

/*
 * Copies stages `first`, first + 16, ... of all rows of a to shared memory at s_a, with zeros past k, and
 * scales them if it should. Half a warp copies a stage; a lane moves 8 elements, which are those of four
 * lanes, and has four loads on their way at once: of a row, or of two or four rows if a lane has one or two
 * stages of each. p: the lane's first parts
 */
template <bool scaled>
W4 void keep_a(const struct cairn_gemm_w4_args &g, const struct sizes &z, uint32_t s_a, int first,
	       struct part p[HELD])
{
	const int shift = held_shift(z);

	for (int i = 0, n = 0;;) {
		uint4 x[HELD];

#pragma unroll
		for (int e = 0; e < HELD; e++)
			x[e] = p[e].from < 0 ? make_uint4(0, 0, 0, 0) :
			       *(const uint4 *)((const char *)g.a + p[e].from);
#pragma unroll
		for (int e = 0; e < HELD; e++) {
			if (scaled)
				scale_8(&x[e]);
			store_8(p[e].to, x[e]);
		}
		n += 1 << shift;
		if (n >= lane_stages(z.stages)) {
			n = 0;
			i += HELD >> shift;
		}
		if (i >= g.m)
			return;
		find_parts(g, z, s_a, first, shift, i, n, p);
	}
}

#endif
