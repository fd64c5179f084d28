// SPDX-License-Identifier: Apache-2.0
/*
 * mla_heads - a CTA multiplies one head's rows with 16 KiB of its weights
 *
 * The copy of the weights starts before griddepcontrol.wait; after it only the latency of loading a and eight
 * mma steps remain. A CTA has 4 warps. b_kn: a CTA has 128 x 64 of b, and each warp 16 columns. Otherwise a
 * CTA has 16 x 512 of b, and each warp 128 of k; the partial sums are added through shared memory in warp
 * order.
 *
 * Shared memory   b [128][128 bytes] or [16][1024 bytes], 16-byte chunk i of row r at i ^ (r & 7)
 *                 afterwards, if not b_kn: float [4 warps][16][16]
 * Barriers        __syncthreads() once; three times if not b_kn
 */
#include "primitives/base/launch.h"
#include "fused/attention/base/attn_tile.cuh"
#include "conformance/tables/mla_heads.h"

#define THREADS		128
#define WARPS		4
#define TILE_BYTES	16384
#define STEPS		8	/* steps of 16 along k that a warp takes */
#define MAX_M		16

struct heads {
	uint16_t *out;
	const uint16_t *a, *b;
	int64_t out_head, a_head, b_head, out_row, a_row, b_row;
	int32_t m;
};

template <int kn> ATTN_DEV void fetch(const struct heads &p, uint32_t s_b)
{
	constexpr int row_bytes = kn ? 128 : 1024, chunks = row_bytes / 16;
	const uint16_t *b = p.b + blockIdx.y * p.b_head + (kn ? blockIdx.x * 64 : blockIdx.x * 16 * p.b_row);

#pragma unroll
	for (int i = 0; i < TILE_BYTES / 16; i += THREADS) {
		int row = (i + (int)threadIdx.x) / chunks, chunk = (i + (int)threadIdx.x) % chunks;

		ptx_cp_async_cg(s_b + attn_swizzle(row, chunk, row_bytes), b + row * p.b_row + chunk * 8, 16);
	}
	ptx_cp_async_commit_group();
}

/* Loads rows 0..15 of a, zeros past row m, and the 16 columns from `column` on. */
ATTN_DEV void load_a(uint32_t a[4], const struct heads &p, int column)
{
	int lane = threadIdx.x % 32;

#pragma unroll
	for (int i = 0; i < 4; i++) {
		int row = lane / 4 + i % 2 * 8, at = column + i / 2 * 8 + lane % 4 * 2;

		a[i] = row < p.m ? *(const uint32_t *)(p.a + row * p.a_row + blockIdx.y * p.a_head + at) : 0;
	}
}

ATTN_DEV void store(const struct heads &p, int row, int column, uint32_t pair)
{
	if (row < p.m)
		*(uint32_t *)(p.out + row * p.out_row + blockIdx.y * p.out_head + column) = pair;
}

template <int dtype, int kn> static __global__ void __launch_bounds__(THREADS)
mla_heads_kernel(const __grid_constant__ struct heads p)
{
	__shared__ __align__(1024) uint8_t s_mem[TILE_BYTES];
	const uint32_t s_b = ptx_smem(s_mem);
	const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, t = threadIdx.x;
	float sum[2][4] = {}, (*s_sum)[16][16] = (float (*)[16][16])s_mem;
	uint32_t a[STEPS][4];

	fetch<kn>(p, s_b);
	ptx_griddepcontrol_wait();
	ptx_griddepcontrol_launch_dependents();
#pragma unroll
	for (int k = 0; k < STEPS; k++)
		load_a(a[k], p, (kn ? 0 : warp * STEPS * 16) + k * 16);
	ptx_cp_async_wait_group<0>();
	__syncthreads();
#pragma unroll
	for (int k = 0; k < STEPS; k++) {
		uint32_t b[4];

		if (kn)
			ptx_ldmatrix_x4_trans(b, s_b + attn_swizzle(k * 16 + lane / 8 % 2 * 8 + lane % 8,
								    warp * 2 + lane / 16, 128));
		else
			ptx_ldmatrix_x4(b, s_b + attn_swizzle(lane / 16 * 8 + lane % 8,
							      (warp * STEPS + k) * 2 + lane / 8 % 2, 1024));
		attn_mma<dtype>(sum[0], a[k], b);
		attn_mma<dtype>(sum[1], a[k], b + 2);
	}
	if (kn) {
#pragma unroll
		for (int i = 0; i < 4; i++)
			store(p, lane / 4 + i % 2 * 8, blockIdx.x * 64 + warp * 16 + i / 2 * 8 + lane % 4 * 2,
			      attn_pack<dtype>(sum[i / 2][i % 2 * 2], sum[i / 2][i % 2 * 2 + 1]));
		return;
	}
	__syncthreads();
#pragma unroll
	for (int i = 0; i < 4; i++)
		*(float2 *)&s_sum[warp][lane / 4 + i % 2 * 8][i / 2 * 8 + lane % 4 * 2] =
			make_float2(sum[i / 2][i % 2 * 2], sum[i / 2][i % 2 * 2 + 1]);
	__syncthreads();
	float2 total = make_float2(0, 0);
#pragma unroll
	for (int w = 0; w < WARPS; w++) {
		float2 part = *(float2 *)&s_sum[w][t / 8][t % 8 * 2];

		total.x += part.x;
		total.y += part.y;
	}
	store(p, t / 8, blockIdx.x * 16 + t % 8 * 2, attn_pack<dtype>(total.x, total.y));
}

extern "C" int mla_heads(const struct cairn_gemm_lt *args, void *stream)
{
	const struct cairn_gemm_args *g = &args->gemm;
	struct cairn_launch l = { .pdl = 1, .stream = stream };
	int f16 = g->dtype == CAIRN_F16;
	struct heads p = {
		(uint16_t *)g->out, (const uint16_t *)g->a, (const uint16_t *)g->b,
		args->out_head, args->a_head, args->b_head,
		args->out_row ? args->out_row : g->n, args->a_row ? args->a_row : g->k,
		args->b_row ? args->b_row : args->b_kn ? g->n : g->k, g->m,
	};
	void *params[] = { &p };

	if (g->m > MAX_M || g->bias || args->residual || g->dtype == CAIRN_F32 || g->out_dtype != g->dtype ||
	    (args->b_kn ? g->k != 128 || g->n % 64 : g->k != 512 || g->n % 16))
		return cairn_error(EOPNOTSUPP, "mla_heads: m %d n %d k %d", g->m, g->n, g->k);
	l.grid[0] = g->n / (args->b_kn ? 64 : 16);
	l.grid[1] = args->heads > 1 ? args->heads : 1;
	l.block[0] = THREADS;
	if (args->b_kn)
		return cairn_launch(f16 ? (const void *)mla_heads_kernel<CAIRN_F16, 1> :
				    (const void *)mla_heads_kernel<CAIRN_BF16, 1>, &l, params);
	return cairn_launch(f16 ? (const void *)mla_heads_kernel<CAIRN_F16, 0> :
			    (const void *)mla_heads_kernel<CAIRN_BF16, 0>, &l, params);
}
