/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gemm_w4_skinny_a.cuh - rows of a for gemm_w4_skinny: copied to shared memory, and scaled
 *
 * A code of e2m1 that is only moved to its place in a bf16 reads as 2^-126 of its value (gemm_w4.cuh). To
 * multiply codes by 2^126 would cost half as many instructions as to decode them. So each row of a is
 * multiplied by 2^(126 - r) instead, which is exact: r is the exponent of its largest magnitude, but 0 to
 * 126. The sums are then 2^-r of what they should be, and are multiplied by 2^r at the end. With f16, codes
 * read as 2^-14 of their values; a stays as it is, and the sums are multiplied by 2^14.
 */
#ifndef CAIRN_GEMM_W4_SKINNY_A_CUH
#define CAIRN_GEMM_W4_SKINNY_A_CUH

#include "primitives/gemm/w4/gemm_w4_skinny_sizes.cuh"

/* Whether rows of a are scaled */
__host__ __device__ constexpr bool a_is_scaled(int format, int dtype)
{
	return format != CAIRN_W4_INT && dtype == CAIRN_BF16;
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
template <int format, int dtype> W4 float missing_in(int row)
{
	if (format == CAIRN_W4_INT)
		return 1;
	return dtype == CAIRN_F16 ? 0x1p14f : __uint_as_float((uint32_t)(exponent_of(row) + 127) << 23);
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

/* Runs in the warps that multiply: finds the largest magnitudes of a in global memory. */
W4 void find_most(const struct cairn_gemm_w4_args &g)
{
	for (int i = 0; i < g.m; i++) {
		const uint16_t *row = (const uint16_t *)g.a + (int64_t)i * g.k;
		uint32_t most = 0;

#pragma unroll 4
		for (int at = threadIdx.x * 8; at < g.k; at += WARPS * 32 * 8)
			most = __vmaxu2(most, largest(*(const uint4 *)(row + at)));
		put_most(i, most);
	}
}

/* Returns 2^(126 - r) of a row of a, as two bf16. */
W4 uint32_t scale_of_a(int row)
{
	return (253 - exponent_of(row)) * 0x00800080u;
}

/*
 * Copies stages `first`, first + 16, ... of a to shared memory at s_a, with zeros past k. Half a warp copies
 * a stage; a lane moves 8 elements, which are those of four lanes, and has four loads on their way at once.
 * scaled: finds the largest magnitudes
 */
template <bool scaled>
W4 void keep_a(const struct cairn_gemm_w4_args &g, const struct sizes &z, uint32_t s_a, int first)
{
	const int half = threadIdx.x / 16 % 2, c = threadIdx.x % 16;

	for (int i = 0; i < g.m; i++) {
		const uint16_t *row = (const uint16_t *)g.a + (int64_t)i * g.k;
		uint32_t most = 0;

		for (int stage = first + half * WARPS; stage < z.stages; stage += 8 * WARPS) {
			uint4 x[4];

#pragma unroll
			for (int n = 0; n < 4; n++) {
				const int at = (stage + n * 2 * WARPS) * STAGE_K + c * 8;

				x[n] = make_uint4(0, 0, 0, 0);
				if (at < g.k)
					x[n] = *(const uint4 *)(row + at);
			}
#pragma unroll
			for (int n = 0; n < 4; n++) {
				const int nth = stage + n * 2 * WARPS, tile = nth * TILES + c / 8;
				const uint32_t to = s_a + i * z.pitch + tile * 128 + c % 8 * 4;

				if (nth >= z.stages)
					break;
				ptx_st_shared_b32(to, x[n].x);
				ptx_st_shared_b32(to + 32, x[n].y);
				ptx_st_shared_b32(to + 64, x[n].z);
				ptx_st_shared_b32(to + 96, x[n].w);
				if (scaled)
					most = __vmaxu2(most, largest(x[n]));
			}
		}
		if (scaled)
			put_most(i, most);
	}
}

/* Scales what the lane has copied, when all have found the largest magnitudes. */
W4 void scale_a(const struct cairn_gemm_w4_args &g, const struct sizes &z, uint32_t s_a, int first)
{
	const int half = threadIdx.x / 16 % 2, c = threadIdx.x % 16;

	for (int i = 0; i < g.m; i++) {
		const uint32_t by = scale_of_a(i);

		for (int stage = first + half * WARPS; stage < z.stages; stage += 2 * WARPS) {
			const uint32_t at = s_a + i * z.pitch + (stage * TILES + c / 8) * 128 + c % 8 * 4;

#pragma unroll
			for (int n = 0; n < 4; n++)
				ptx_st_shared_b32(at + 32 * n, mul2<CAIRN_BF16>(
							  ptx_ld_shared_b32(at + 32 * n), by));
		}
	}
}

#endif
