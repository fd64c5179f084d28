/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gemm - chooses the kernel for a shape; the memory-bound kernel for up to 8 rows of a
 *
 * The first two kernels also compute gemm_gated; a unit or tile then has as many rows of gate as of up.
 *
 *   m          dtype        kernel
 *   1..8       f16, bf16    gemm_skinny_kernel: as fast as b can be read
 *   9..64      f16, bf16    gemm_tile_kernel (gemm_tile.cu), above 48 only if k is at least twice n
 *   any        any          cuBLASLt. If it is missing or rejects the shape, gemm_plain_kernel, which is
 *                           slow. That also computes products of odd n with bias: see rounds_twice().
 *
 * Floor of the skinny kernel: reading b once, 2 n k bytes at the rate of stream READ. Arithmetic does not
 * limit it: 18 bytes per clock and SM need one mma.m16n8k16 every 14 clocks.
 *
 * Schedule. Each SM runs one CTA of 16 warps, persistent over units of 16 rows of b. A unit is divided along
 * k into stages of 128 (16 rows x 256 bytes = 4 KiB), which the warps take in turn. Every warp is an
 * independent pipeline: it fills a private ring of 2 stages by cp.async, waits for its oldest stage,
 * multiplies and refills it, without barriers other than __syncwarp; 128 KiB are in flight per SM. The ring
 * already fetches the next unit while this unit is reduced: the 16 partial sums go to shared memory (two
 * buffers, one __syncthreads per unit), and 128 threads add them in warp order. The order of all sums depends
 * only on n and k.
 *
 * mma takes a as its 16 x 16 operand (rows 8..15 are zero) and 8 rows of b as the other. The k index within
 * a stage is permuted in the same way for both: lane 4 g + t takes elements 8 t .. 8 t + 7 of each 32 of row
 * g, 16 bytes, for two mma. a is loaded from global memory when needed, 16 bytes per lane, and stays in the
 * L1 if it fits (m k 2 bytes in about 100 KiB), which is why the ring is not larger.
 *
 * Programmatic dependent launch: the ring is filled before griddepcontrol.wait; a is read and out written
 * after.
 *
 * Shared memory (dynamic):
 *	0		16 rings of 2 stages of 16 rows of 256 bytes; 16-byte piece i of row r lies at
 *			i ^ 4 (r & 1), so that the reads of eight lanes (two rows, four pieces) are free of
 *			bank conflicts
 *	131072		float [2][16 warps][8 rows of a][16 rows of b], the partial sums
 * Registers: 83 of 128; one CTA per SM. Figures and optimisation history: NOTES.md.
 */
#include "primitives/gemm/gemm.cuh"
#include "primitives/gemm/gemm_lt.h"
#include "primitives/base/launch.h"
#include "primitives/ptx/ptx_copy.cuh"

#define WARPS		16
#define STAGES		2	/* in a warp's ring */
#define ROWS		16	/* rows of b in a unit */
#define STAGE_K		128
#define ROW_BYTES	(STAGE_K * 2)
#define PIECES		(ROW_BYTES / 16)
#define STAGE_BYTES	(ROWS * ROW_BYTES)
#define RING_BYTES	(WARPS * STAGES * STAGE_BYTES)
#define SKINNY_M	8
#define SUMS		(SKINNY_M * ROWS)

/* d += a b for rows 0..7 of a; rows 8..15 are zero. */
template <int dtype>
static __device__ __forceinline__ void mma(float d[4], uint32_t a0, uint32_t a2, uint32_t b0, uint32_t b1)
{
	const uint32_t a[4] = { a0, 0, a2, 0 }, b[2] = { b0, b1 };

	if (dtype == CAIRN_BF16)
		ptx_mma_m16n8k16_bf16(d, a, b);
	else
		ptx_mma_m16n8k16_f16(d, a, b);
}

static __device__ __forceinline__ const char *element(const void *p, int64_t row, int k, int at)
{
	return (const char *)p + (row * k + at) * 2;
}

static __device__ __forceinline__ uint4 load_a(const struct cairn_gemm_args &g, int row, int at)
{
	return row < g.m && at < g.k ? *(const uint4 *)element(g.a, row, g.k, at) : make_uint4(0, 0, 0, 0);
}

/* A unit and one of its stages. */
struct place {
	int unit, stage;
};

/* num_stages is a multiple of WARPS, so that all warps have equally many; stages past k are zeros. */
static __device__ __forceinline__ struct place next_place(struct place p, int num_stages)
{
	p.stage += WARPS;
	if (p.stage >= num_stages) {
		p.stage -= num_stages;
		p.unit += gridDim.x;
	}
	return p;
}

/*
 * Each load instruction of the warp fetches two rows. Outside the matrix it stores zeros and reads nothing.
 * gated: a unit is eight rows of gate and the same eight of up.
 */
template <bool gated>
static __device__ __forceinline__ void fetch_stage(const struct cairn_gemm_args &g, struct place p,
						   int num_units, uint32_t ring, uint64_t policy)
{
	int lane = threadIdx.x & 31, piece = lane % PIECES, at = p.stage * STAGE_K + piece * 8;
	int first = lane / PIECES, row = p.unit * (gated ? ROWS / 2 : ROWS) + first;

	if (p.unit < num_units) {
		const char *src = element(g.b, row, g.k, at);
		/* first is the parity of all rows of this lane, because rows advance by two */
		uint32_t dst = ring + first * ROW_BYTES + (piece ^ first << 2) * 16;

#pragma unroll
		for (int i = 0; i < ROWS; i += 32 / PIECES) {
			int skipped = gated && i >= ROWS / 2 ? g.n / 2 - ROWS / 2 : 0;
			int valid = (gated || row + i < g.n) && at < g.k;

			ptx_cp_async_cg_hint(dst + i * ROW_BYTES,
					     valid ? src + (int64_t)(i + skipped) * g.k * 2 :
						     (const char *)g.b,
					     valid ? 16 : 0, policy);
		}
	}
	ptx_cp_async_commit_group();
}

template <int dtype, bool gated> __global__ void __launch_bounds__(WARPS * 32, 1)
gemm_skinny_kernel(const __grid_constant__ struct cairn_gemm_args g, const void *residual)
{
	extern __shared__ __align__(128) unsigned char s_mem[];
	int lane = threadIdx.x & 31, warp = threadIdx.x / 32, quad = lane / 4, t = lane & 3;
	float *s_sum = (float *)(s_mem + RING_BYTES);
	uint32_t ring = ptx_smem(s_mem) + warp * STAGES * STAGE_BYTES;
	uint32_t mine = ring + quad * ROW_BYTES, swap = (quad & 1) << 2;
	uint64_t policy = ptx_createpolicy_evict_first();
	int num_units = (g.n + ROWS - 1) / ROWS,
	    num_stages = (g.k + STAGE_K * WARPS - 1) / (STAGE_K * WARPS) * WARPS;
	struct place here = { (int)blockIdx.x, warp }, ahead = here;
	float sum[2][2][4] = { { { 0 } } };	/* [group of 8 rows of b][mma of a pair][element] */
	int slot = 0, buf = 0;

	ptx_griddepcontrol_launch_dependents();
	for (int i = 0; i < STAGES; i++) {
		fetch_stage<gated>(g, ahead, num_units, ring + i * STAGE_BYTES, policy);
		ahead = next_place(ahead, num_stages);
	}
	ptx_griddepcontrol_wait();
	while (here.unit < num_units) {
		struct place next = next_place(here, num_stages);
		uint4 x[STAGE_K / 32];

#pragma unroll
		for (int c = 0; c < STAGE_K / 32; c++)
			x[c] = load_a(g, quad, here.stage * STAGE_K + c * 32 + t * 8);
		ptx_cp_async_wait_group<STAGES - 1>();
		__syncwarp();
#pragma unroll
		for (int c = 0; c < STAGE_K / 32; c++)
#pragma unroll
			for (int i = 0; i < 2; i++) {
				uint4 w = ptx_ld_shared_v4(mine + slot * STAGE_BYTES + i * 8 * ROW_BYTES +
							   ((c * 4 + t) ^ swap) * 16);

				mma<dtype>(sum[i][0], x[c].x, x[c].y, w.x, w.y);
				mma<dtype>(sum[i][1], x[c].z, x[c].w, w.z, w.w);
			}
		__syncwarp();	/* all lanes have read the stage that is refilled next */
		fetch_stage<gated>(g, ahead, num_units, ring + slot * STAGE_BYTES, policy);
		ahead = next_place(ahead, num_stages);
		slot ^= 1;
		if (next.unit != here.unit) {
			float *to = s_sum + (buf * WARPS + warp) * SUMS + quad * ROWS + 2 * t;

#pragma unroll
			for (int i = 0; i < 2; i++) {
				*(float2 *)(to + 8 * i) = make_float2(sum[i][0][0] + sum[i][1][0],
								      sum[i][0][1] + sum[i][1][1]);
#pragma unroll
				for (int k = 0; k < 4; k++)
					sum[i][0][k] = sum[i][1][k] = 0;
			}
			__syncthreads();
			if (threadIdx.x < SUMS) {
				int i = threadIdx.x / ROWS, j = here.unit * ROWS + threadIdx.x % ROWS;
				float total = 0;

#pragma unroll
				for (int w = 0; w < WARPS; w++)
					total += s_sum[(buf * WARPS + w) * SUMS + threadIdx.x];
				if (gated) {
					const float up = __shfl_xor_sync(~0u, total, ROWS / 2);

					if (i < g.m && threadIdx.x % ROWS < ROWS / 2)
						gemm_store_gated<dtype>(g, i, here.unit * (ROWS / 2) +
									threadIdx.x % ROWS, total, up);
				} else if (i < g.m && j < g.n) {
					gemm_store(g, i, j, total, residual);
				}
			}
			buf ^= 1;
		}
		here = next;
	}
}

/* ---- any shape, slowly ---- */

#define TILE		64
#define TILE_K		16
#define PLAIN_CTAS	4	/* on an SM */

/* 256 threads compute a tile of 64 x 64, 4 x 4 each; 16 elements of k at a time go through shared memory. */
static __device__ void plain_tile(const struct cairn_gemm_args &g, int64_t row0, int64_t col0)
{
	__shared__ float s_a[TILE_K][TILE + 4], s_b[TILE_K][TILE + 4];
	int tx = threadIdx.x % 16, ty = threadIdx.x / 16;
	float sum[4][4] = { { 0 } };

	for (int k0 = 0; k0 < g.k; k0 += TILE_K) {
		for (int i = threadIdx.x; i < TILE * TILE_K; i += 256) {
			int l = i % TILE_K, r = i / TILE_K;
			bool in_k = k0 + l < g.k;

			s_a[l][r] = in_k && row0 + r < g.m ?
				    row_load(g.a, g.dtype, (row0 + r) * g.k + k0 + l) : 0;
			s_b[l][r] = in_k && col0 + r < g.n ?
				    row_load(g.b, g.dtype, (col0 + r) * g.k + k0 + l) : 0;
		}
		__syncthreads();
#pragma unroll
		for (int l = 0; l < TILE_K; l++)
#pragma unroll
			for (int i = 0; i < 4; i++)
#pragma unroll
				for (int j = 0; j < 4; j++)
					sum[i][j] = fmaf(s_a[l][ty * 4 + i], s_b[l][tx * 4 + j], sum[i][j]);
		__syncthreads();
	}
#pragma unroll
	for (int i = 0; i < 4; i++)
#pragma unroll
		for (int j = 0; j < 4; j++)
			if (row0 + ty * 4 + i < g.m && col0 + tx * 4 + j < g.n)
				gemm_store(g, row0 + ty * 4 + i, col0 + tx * 4 + j, sum[i][j], NULL);
}

/* CTAs take tiles in turn. */
__global__ void __launch_bounds__(256) gemm_plain_kernel(const __grid_constant__ struct cairn_gemm_args g,
							 int64_t across, int64_t tiles)
{
	for (int64_t i = blockIdx.x; i < tiles; i += gridDim.x)
		plain_tile(g, i / across * TILE, i % across * TILE);
}

static int launch_plain(const struct cairn_gemm_args *g, void *stream)
{
	int64_t across = (g->n + TILE - 1) / TILE, tiles = across * ((g->m + TILE - 1) / TILE), most;
	struct cairn_launch launch = { 0 };
	void *params[] = { (void *)g, &across, &tiles };
	int sms = cairn_sms_of(g->sms);

	if (sms < 0)
		return sms;
	most = sms < cairn_num_sms() ? sms : (int64_t)sms * PLAIN_CTAS;
	launch.grid[0] = (unsigned int)(tiles < most ? tiles : most);
	launch.block[0] = 256;
	launch.stream = stream;
	return cairn_launch((const void *)gemm_plain_kernel, &launch, params);
}

template <bool gated> static const void *skinny_of(int dtype)
{
	return dtype == CAIRN_BF16 ? (const void *)gemm_skinny_kernel<CAIRN_BF16, gated> :
	       (const void *)gemm_skinny_kernel<CAIRN_F16, gated>;
}

static int launch_skinny(const struct cairn_gemm_args *g, const void *residual, bool gated, void *stream)
{
	int units = (g->n + ROWS - 1) / ROWS, num_sms = cairn_sms_of(g->sms);
	struct cairn_launch launch = { 0 };
	void *params[] = { (void *)g, &residual };

	if (num_sms < 0)
		return num_sms;
	launch.grid[0] = units < num_sms ? units : num_sms;
	launch.block[0] = WARPS * 32;
	launch.smem = RING_BYTES + 2 * WARPS * SUMS * sizeof(float);
	launch.pdl = !g->sms;	/* a dependent launch would take SMs that are not this call's */
	launch.stream = stream;
	return cairn_launch(gated ? skinny_of<true>(g->dtype) : skinny_of<false>(g->dtype),
			    &launch, params);
}

static int is_skinny(const struct cairn_gemm_args *g)
{
	return g->dtype != CAIRN_F32 && g->m <= SKINNY_M;
}

/* The limits are measured (gemm_tile.cu). */
static int is_tile(const struct cairn_gemm_args *g)
{
	return g->dtype != CAIRN_F32 && g->m > SKINNY_M && g->m <= (g->k / 2 >= g->n ? CAIRN_GEMM_OWN_M : 48);
}

/*
 * If n is odd, some of cuBLASLt's kernels round twice, before and after they add the bias (seen on an H200
 * with 96 rows and more). Their list of algorithms does not say which.
 */
static int rounds_twice(const struct cairn_gemm_args *g)
{
	return g->dtype != CAIRN_F32 && g->out_dtype == g->dtype && g->bias && g->n % 2;
}

extern "C" int cairn_gemm(const struct cairn_gemm_args *args, void *stream)
{
	int ret;

	CAIRN_TRY(cairn_gemm_check(args));
	if (is_skinny(args))
		return launch_skinny(args, NULL, false, stream);
	if (is_tile(args))
		return cairn_gemm_tile(args, NULL, false, stream);
	if (rounds_twice(args))
		return launch_plain(args, stream);
	ret = cairn_gemm_cublaslt(args, stream);
	return ret == -EOPNOTSUPP ? launch_plain(args, stream) : ret;
}

extern "C" int cairn_gemm_own(const struct cairn_gemm_args *args, const void *residual, void *stream)
{
	CAIRN_TRY(cairn_gemm_check(args));
	if (is_skinny(args))
		return launch_skinny(args, residual, false, stream);
	if (args->dtype == CAIRN_F32 || args->m > CAIRN_GEMM_OWN_M)
		return cairn_error(EOPNOTSUPP, "gemm: m %d %s: only cuBLASLt supports it", args->m,
				   cairn_dtype_name(args->dtype));
	return cairn_gemm_tile(args, residual, false, stream);
}

extern "C" int cairn_gemm_few_gated(const struct cairn_gemm_args *g, void *stream)
{
	return is_skinny(g) ? launch_skinny(g, NULL, true, stream) : cairn_gemm_tile(g, NULL, true, stream);
}

/* The answer depends only on scalars, although cuBLASLt may refuse a shape because of its bias. */
extern "C" int cairn_gemm_workspace(const struct cairn_gemm_args *args, size_t *bytes)
{
	int ret;

	CAIRN_TRY(cairn_gemm_check_shape(args));
	*bytes = 0;
	if (is_skinny(args) || is_tile(args))
		return 0;
	ret = cairn_gemm_cublaslt_workspace(args, bytes);
	*bytes = CAIRN_GEMM_LT_WORKSPACE;
	return ret == -EOPNOTSUPP ? 0 : ret;
}
