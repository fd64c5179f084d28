/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gemm - chooses the kernel for a shape
 *
 *   m          dtype        kernel
 *   1..8       f16, bf16    gemm_skinny_kernel (gemm_skinny.cuh): as fast as b can be read; above 4 only if a
 *                           has at most 160 KiB
 *   5..64      f16, bf16    gemm_tile_kernel (gemm_tile.cuh), above 48 only if k is at least twice n
 *   any        any          cuBLASLt. If it is missing or rejects the shape, gemm_plain_kernel, which is
 *                           slow. That also computes products of odd n with bias: see rounds_twice().
 */
#include "primitives/gemm/gemm_lt.h"
#include "primitives/gemm/gemm_skinny.cuh"

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

static int is_skinny(const struct cairn_gemm_args *g)
{
	return g->dtype != CAIRN_F32 && gemm_is_skinny(g);
}

/* The limits are measured (gemm_tile.cuh). */
static int is_tile(const struct cairn_gemm_args *g)
{
	return g->dtype != CAIRN_F32 && g->m <= (g->k / 2 >= g->n ? CAIRN_GEMM_OWN_M : 48);
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
		return gemm_skinny(args, gemm_plain{ NULL }, gemm_weight_16{}, stream);
	if (is_tile(args))
		return cairn_gemm_tile(args, NULL, stream);
	if (rounds_twice(args))
		return launch_plain(args, stream);
	ret = cairn_gemm_cublaslt(args, stream);
	return ret == -EOPNOTSUPP ? launch_plain(args, stream) : ret;
}

extern "C" int cairn_gemm_own(const struct cairn_gemm_args *args, const void *residual, void *stream)
{
	CAIRN_TRY(cairn_gemm_check(args));
	if (is_skinny(args))
		return gemm_skinny(args, gemm_plain{ residual }, gemm_weight_16{}, stream);
	if (args->dtype == CAIRN_F32 || args->m > CAIRN_GEMM_OWN_M)
		return cairn_error(EOPNOTSUPP, "gemm: m %d %s: only cuBLASLt supports it", args->m,
				   cairn_dtype_name(args->dtype));
	return cairn_gemm_tile(args, residual, stream);
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
