/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gemm_fp8w_tile - m 9..256: tiles of b as bytes in shared memory, widened on their way to the tensor cores
 *
 * A CTA of 8 warps makes 16 MT rows by 128 columns of out: a warp 16 columns (rows of b) and all rows, so
 * that each byte of b is widened by one warp, once. Stages of 128 along k, STAGES of them in flight by
 * cp.async. Within 64 elements of k lane 4 g + t takes 16 t .. 16 t + 15 of its rows on both sides, as in
 * gemm_fp8w.cu. A stage is one block of scales: its sums begin at 0 and are added, scaled, to the others
 * (where registers are short and scales those of rows, they do not begin afresh).
 *
 * Where there are fewer tiles than multiprocessors a cluster shares a tile: each CTA takes a part of k, and
 * at the end a part of the rows, of which it adds up what all have, in the order of their ranks.
 *
 * Shared memory (dynamic):
 *	STAGES x	128 rows of b of 128 bytes; 16-byte piece i of row r lies at i ^ 4 (r & 1)
 *			16 MT rows of a of 256 bytes; piece i of row r at i ^ (r & 1)
 *	at the end	float [16 MT][PITCH], this CTA's sums, in the same place
 *
 * Floor: b once, n k bytes, as long as that takes longer than 2 m n k operations at the rate of mma.sync,
 * about 60% of wgmma's: to m = 64 or so. Tried and lost: see the header of gemm_fp8w.cu for the numbers.
 */
#include "gemm_fp8w.cuh"
#include "launch.h"

#define THREADS		256
#define TILE_N		128
#define STAGE_K		128
#define STAGES		3
#define B_BYTES		(TILE_N * STAGE_K)
#define PITCH		(TILE_N + 8)
#define MAX_CLUSTER	8

#define STAGE_BYTES(mt)	(B_BYTES + 16 * (mt) * STAGE_K * 2)

struct tile {
	int row0, col0;		/* of out */
	int first, end;		/* stages */
};

template <int mt>
FP8 void fetch_stage(const struct cairn_gemm_fp8w_args &g, const struct tile &tile, int stage, uint32_t to)
{
	const int t = threadIdx.x;

	if (stage < tile.end) {
#pragma unroll
		for (int i = 0; i < TILE_N / 32; i++) {
			int row = i * 32 + t / 8, piece = t % 8, at = stage * STAGE_K + piece * 16;
			int valid = tile.col0 + row < g.n && at < g.k;

			ptx_cp_async_cg(to + row * STAGE_K + (piece ^ (row & 1) << 2) * 16,
					valid ? g.b + (int64_t)(tile.col0 + row) * g.k + at : g.b,
					valid ? 16 : 0);
		}
#pragma unroll
		for (int i = 0; i < mt; i++) {
			int row = i * 16 + t / 16, piece = t % 16, at = stage * STAGE_K + piece * 8;
			int valid = tile.row0 + row < g.m && at < g.k;
			const uint16_t *a = (const uint16_t *)g.a;

			ptx_cp_async_cg(to + B_BYTES + row * STAGE_K * 2 + (piece ^ (row & 1)) * 16,
					valid ? a + (int64_t)(tile.row0 + row) * g.k + at : a,
					valid ? 16 : 0);
		}
	}
	ptx_cp_async_commit_group();
}

/* part += a b over a stage. */
template <int dtype, int mt> FP8 void multiply(float part[mt][2][4], uint32_t stage)
{
	const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, quad = lane / 4, t = lane % 4;
	const uint32_t b = stage + (warp * 16 + quad) * STAGE_K, a = stage + B_BYTES + quad * STAGE_K * 2;
	const uint32_t swap_b = (quad & 1) << 2, swap_a = quad & 1;

#pragma unroll
	for (int c = 0; c < STAGE_K / 64; c++) {
		uint32_t w[2][8];

#pragma unroll
		for (int i = 0; i < 2; i++) {
			uint4 raw = ptx_ld_shared_v4(b + i * 8 * STAGE_K + ((c * 4 + t) ^ swap_b) * 16);

			fp8_widen<dtype>(raw.x, &w[i][0], &w[i][1]);
			fp8_widen<dtype>(raw.y, &w[i][2], &w[i][3]);
			fp8_widen<dtype>(raw.z, &w[i][4], &w[i][5]);
			fp8_widen<dtype>(raw.w, &w[i][6], &w[i][7]);
		}
#pragma unroll
		for (int r = 0; r < mt; r++)
#pragma unroll
			for (int h = 0; h < 2; h++) {
				uint32_t at = a + r * 16 * STAGE_K * 2 + ((c * 8 + 2 * t + h) ^ swap_a) * 16;
				uint4 x = ptx_ld_shared_v4(at), y = ptx_ld_shared_v4(at + 8 * STAGE_K * 2);

#pragma unroll
				for (int i = 0; i < 2; i++) {
					fp8w_mma_wide<dtype>(part[r][i], x.x, y.x, x.y, y.y, w[i][4 * h],
							     w[i][4 * h + 1]);
					fp8w_mma_wide<dtype>(part[r][i], x.z, y.z, x.w, y.w, w[i][4 * h + 2],
							     w[i][4 * h + 3]);
				}
			}
	}
}

/* Rows of this CTA's share: what all CTAs have of them, added up, finished and written. */
template <int mt>
FP8 void write_out(const struct cairn_gemm_fp8w_args &g, const struct tile &tile, uint32_t sums, int rank,
		   int size)
{
	const int rows = 16 * mt / size, quad = threadIdx.x % 32 * 4, j = tile.col0 + quad;

	for (int r = rank * rows + threadIdx.x / 32; r < (rank + 1) * rows; r += THREADS / 32) {
		float v[4] = { 0, 0, 0, 0 };
		int i = tile.row0 + r;

		if (i >= g.m)
			break;
		for (int peer = 0; peer < size; peer++) {
			uint4 x = ptx_ld_shared_cluster_v4(ptx_mapa(sums + (r * PITCH + quad) * 4, peer));

			v[0] += __uint_as_float(x.x);
			v[1] += __uint_as_float(x.y);
			v[2] += __uint_as_float(x.z);
			v[3] += __uint_as_float(x.w);
		}
#pragma unroll
		for (int c = 0; c < 4; c++)
			v[c] = j + c < g.n ? fp8w_finish(g, j + c, v[c]) : 0;
		if (g.n % 4 == 0 && j < g.n) {
			int64_t at = (int64_t)i * g.n + j;

			if (g.out_dtype == CAIRN_F32)
				*(float4 *)((float *)g.out + at) = make_float4(v[0], v[1], v[2], v[3]);
			else if (g.out_dtype == CAIRN_F16)
				*(uint2 *)((uint16_t *)g.out + at) =
					make_uint2(row_pack2<CAIRN_F16>(v[0], v[1]),
						   row_pack2<CAIRN_F16>(v[2], v[3]));
			else
				*(uint2 *)((uint16_t *)g.out + at) =
					make_uint2(row_pack2<CAIRN_BF16>(v[0], v[1]),
						   row_pack2<CAIRN_BF16>(v[2], v[3]));
			continue;
		}
#pragma unroll
		for (int c = 0; c < 4; c++)
			if (j + c < g.n)
				fp8w_store(g, i, j + c, v[c]);
	}
}

/* afresh: the sums of each stage begin at 0 and are scaled; else scales are those of rows, for all of k. */
template <int dtype, int mt, bool afresh>
__global__ void __launch_bounds__(THREADS, mt == 4 && afresh ? 1 : 2)
gemm_fp8w_tile_kernel(const __grid_constant__ struct cairn_gemm_fp8w_args g, int tiles_m)
{
	extern __shared__ __align__(128) unsigned char s_mem[];
	const int rank = ptx_cluster_ctarank(), size = ptx_cluster_nctarank(), id = blockIdx.x / size;
	const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
	const int num_stages = (g.k + STAGE_K - 1) / STAGE_K, each = (num_stages + size - 1) / size;
	const uint32_t ring = ptx_smem(s_mem);
	float sum[mt][2][4] = { { { 0 } } };
	struct tile tile;
	int slot = 0;

	tile.row0 = id % tiles_m * (16 * mt);
	tile.col0 = id / tiles_m * TILE_N;
	tile.first = min(rank * each, num_stages);
	tile.end = min(tile.first + each, num_stages);
	ptx_griddepcontrol_launch_dependents();
	ptx_griddepcontrol_wait();
	for (int i = 0; i < STAGES - 1; i++)
		fetch_stage<mt>(g, tile, tile.first + i, ring + i * STAGE_BYTES(mt));
	for (int stage = tile.first; stage < tile.end; stage++) {
		float part[mt][2][4] = { { { 0 } } }, scale = 1;
		int ahead = slot ? slot - 1 : STAGES - 1;

		if (afresh && g.scale_kind)
			scale = g.b_scale[(int64_t)(tile.col0 / CAIRN_FP8_BLOCK) * num_stages + stage];
		ptx_cp_async_wait_group<STAGES - 2>();
		__syncthreads();	/* the stage is here for all, and all are done with the one before */
		fetch_stage<mt>(g, tile, stage + STAGES - 1, ring + ahead * STAGE_BYTES(mt));
		multiply<dtype, mt>(afresh ? part : sum, ring + slot * STAGE_BYTES(mt));
#pragma unroll
		for (int r = 0; afresh && r < mt; r++)
#pragma unroll
			for (int i = 0; i < 8; i++)
				sum[r][i / 4][i % 4] += scale * part[r][i / 4][i % 4];
		slot = slot == STAGES - 1 ? 0 : slot + 1;
	}
	ptx_cp_async_wait_group<0>();
	__syncthreads();
#pragma unroll
	for (int r = 0; r < mt; r++)
#pragma unroll
		for (int i = 0; i < 2; i++) {
			float *to = (float *)s_mem + (r * 16 + lane / 4) * PITCH +
				    warp * 16 + i * 8 + lane % 4 * 2;

			*(float2 *)to = make_float2(sum[r][i][0], sum[r][i][1]);
			*(float2 *)(to + 8 * PITCH) = make_float2(sum[r][i][2], sum[r][i][3]);
		}
	ptx_barrier_cluster_arrive_release();
	ptx_barrier_cluster_wait_acquire();
	write_out<mt>(g, tile, ring, rank, size);
	ptx_barrier_cluster_arrive_relaxed();	/* nobody leaves whose sums are still read */
	ptx_barrier_cluster_wait_acquire();
}

/*
 * CTAs that share a tile: stages one after the other on the fullest multiprocessor, and two more for the
 * exchange.
 */
static int cluster_size(int tiles, int stages, int sms)
{
	int best = 1, least = INT32_MAX;

	for (int size = 1; size <= MAX_CLUSTER && size <= stages; size *= 2) {
		int cost = (tiles * size + sms - 1) / sms * ((stages + size - 1) / size + (size > 1 ? 2 : 0));

		if (cost < least) {
			least = cost;
			best = size;
		}
	}
	return best;
}

extern "C" int cairn_gemm_fp8w_tile(const struct cairn_gemm_fp8w_args *g, void *stream)
{
	static const void *const kernels[2][4] = {
		{ (const void *)gemm_fp8w_tile_kernel<CAIRN_BF16, 1, true>,
		  (const void *)gemm_fp8w_tile_kernel<CAIRN_BF16, 2, true>,
		  (const void *)gemm_fp8w_tile_kernel<CAIRN_BF16, 4, false>,
		  (const void *)gemm_fp8w_tile_kernel<CAIRN_BF16, 4, true> },
		{ (const void *)gemm_fp8w_tile_kernel<CAIRN_F16, 1, true>,
		  (const void *)gemm_fp8w_tile_kernel<CAIRN_F16, 2, true>,
		  (const void *)gemm_fp8w_tile_kernel<CAIRN_F16, 4, false>,
		  (const void *)gemm_fp8w_tile_kernel<CAIRN_F16, 4, true> },
	};
	int pick = g->m <= 16 ? 0 : g->m <= 32 ? 1 : 2, mt = 1 << pick, sms = cairn_num_sms();
	int tiles_m = (g->m + 16 * mt - 1) / (16 * mt), tiles_n = (g->n + TILE_N - 1) / TILE_N;
	struct cairn_launch l = { .block = { THREADS }, .pdl = 1, .stream = stream };
	void *params[] = { (void *)g, &tiles_m };
	size_t sums = (size_t)16 * mt * PITCH * sizeof(float);

	if (sms < 0)
		return sms;
	l.cluster = cluster_size(tiles_m * tiles_n, (g->k + STAGE_K - 1) / STAGE_K, sms);
	l.grid[0] = (unsigned int)(tiles_m * tiles_n * l.cluster);
	l.smem = STAGES * (size_t)STAGE_BYTES(mt);
	if (l.smem < sums)
		l.smem = sums;
	return cairn_launch(kernels[g->dtype == CAIRN_F16][pick + (pick == 2 && g->scale_kind)], &l, params);
}
