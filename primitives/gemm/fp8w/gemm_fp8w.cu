/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gemm_fp8w - chooses the kernel for a shape
 *
 *   m             kernel
 *   1..8          gemm_skinny_kernel (gemm_skinny.cuh): as fast as b can be read
 *   9..512        gemm_fp8w_tile_kernel (gemm_fp8w_tile.cu): tiles of b are widened on their way to wgmma;
 *                 with block scales only up to 256, where the contract demands exact products
 *   above         b is widened and scaled into the workspace, then cuBLASLt: 5 n k more bytes of traffic
 *
 * Figures: NOTES.md.
 */
#include "primitives/base/dtype.h"
#include "primitives/gemm/fp8w/gemm_fp8w.cuh"
#include "primitives/gemm/gemm_skinny.cuh"
#include "primitives/ptx/fp8.cuh"

#define TILE_M		512

/* The product; the scales of rows of b are applied to its sums. */
struct fp8w_rows : gemm_plain {
	const float *scales;

	template <int dtype>
	GEMM_METHOD void store(const struct cairn_gemm_args &g, int i, int j, float sum) const
	{
		gemm_store(g, i, j, sum * scales[j], NULL);
	}
};

/* ---- b widened in memory ---- */

#define WIDEN_THREADS	256

/* Each thread widens 16 elements, which lie in one row and one block because k is a multiple of 16. */
template <int dtype> __global__ void __launch_bounds__(WIDEN_THREADS)
widen_kernel(const __grid_constant__ struct cairn_gemm_fp8w_args g, void *to)
{
	int64_t e = ((int64_t)blockIdx.x * WIDEN_THREADS + threadIdx.x) * 16;
	int row = (int)(e / g.k), at = (int)(e - (int64_t)row * g.k);
	int num_blocks = (g.k + CAIRN_FP8_BLOCK - 1) / CAIRN_FP8_BLOCK;
	uint32_t out[8];
	float scale;
	uint4 b;

	ptx_griddepcontrol_wait();
	if (row >= g.n)
		return;
	scale = g.b_scale[g.scale_kind ? row / CAIRN_FP8_BLOCK * num_blocks + at / CAIRN_FP8_BLOCK : row];
	b = ptx_ld_global_nc_no_allocate_v4(g.b + e);
	fp8_widen<dtype>(b.x, out, out + 1);
	fp8_widen<dtype>(b.y, out + 2, out + 3);
	fp8_widen<dtype>(b.z, out + 4, out + 5);
	fp8_widen<dtype>(b.w, out + 6, out + 7);
#pragma unroll
	for (int i = 0; i < 8; i++) {
		float f[2];

		row_unpack2<dtype>(out[i], f);
		out[i] = row_pack2<dtype>(f[0] * scale, f[1] * scale);
	}
	((uint4 *)to)[e / 8] = make_uint4(out[0], out[1], out[2], out[3]);
	((uint4 *)to)[e / 8 + 1] = make_uint4(out[4], out[5], out[6], out[7]);
}

static size_t widened_bytes(const struct cairn_gemm_fp8w_args *g)
{
	return ((size_t)g->n * g->k * 2 + 255) / 256 * 256;
}

static struct cairn_gemm_args widened(const struct cairn_gemm_fp8w_args *g, char *workspace)
{
	struct cairn_gemm_args args = {
		.size = sizeof(args), .out = g->out, .a = g->a, .b = workspace, .bias = g->bias,
		.workspace = workspace + widened_bytes(g),
		.workspace_bytes = g->workspace_bytes - widened_bytes(g), .m = g->m, .n = g->n, .k = g->k,
		.dtype = g->dtype, .out_dtype = g->out_dtype, .sms = g->sms,
	};

	return args;
}

static int launch_widened(const struct cairn_gemm_fp8w_args *g, void *stream)
{
	struct cairn_launch l = { .block = { WIDEN_THREADS }, .pdl = !g->sms, .stream = stream };
	struct cairn_gemm_args args = widened(g, (char *)g->workspace);
	void *to = g->workspace, *params[] = { (void *)g, &to };
	int64_t ctas = ((int64_t)g->n * g->k / 16 + WIDEN_THREADS - 1) / WIDEN_THREADS;

	if (!g->workspace || g->workspace_bytes < widened_bytes(g))
		return cairn_error(EINVAL, "gemm_fp8w: workspace_bytes: %zu is less than %zu",
				   g->workspace_bytes, widened_bytes(g));
	if (ctas > INT32_MAX)
		return cairn_error(EOPNOTSUPP, "gemm_fp8w: n %d, k %d: too large", g->n, g->k);
	l.grid[0] = (unsigned int)ctas;
	CAIRN_TRY(cairn_launch(g->dtype == CAIRN_BF16 ? (const void *)widen_kernel<CAIRN_BF16> :
			       (const void *)widen_kernel<CAIRN_F16>, &l, params));
	return cairn_gemm(&args, stream);
}

/*
 * Block scales need a second set of sums in the tile kernel; widening b first is faster for every m at which
 * the contract allows it.
 */
static int by_tile(const struct cairn_gemm_fp8w_args *g)
{
	return g->m > SKINNY_M && g->m <= (g->scale_kind ? CAIRN_GEMM_FP8W_EXACT_M : TILE_M);
}

static int launch_skinny(const struct cairn_gemm_fp8w_args *g, void *stream)
{
	const struct cairn_gemm_args product = {
		.size = sizeof(product), .out = g->out, .a = g->a, .b = g->b, .bias = g->bias, .m = g->m,
		.n = g->n, .k = g->k, .dtype = g->dtype, .out_dtype = g->out_dtype, .sms = g->sms,
	};
	struct gemm_weight_e4m3_blocks blocks;
	struct fp8w_rows rows;

	if (g->scale_kind) {
		blocks.scales = g->b_scale;
		blocks.num_blocks = (g->k + CAIRN_FP8_BLOCK - 1) / CAIRN_FP8_BLOCK;
		return gemm_skinny(&product, gemm_plain{ NULL }, blocks, stream);
	}
	rows.residual = NULL;
	rows.scales = g->b_scale;
	return gemm_skinny(&product, rows, gemm_weight_e4m3{}, stream);
}

extern "C" int cairn_gemm_fp8w(const struct cairn_gemm_fp8w_args *g, void *stream)
{
	CAIRN_TRY(cairn_gemm_fp8w_check(g));
	if (g->m <= SKINNY_M)
		return launch_skinny(g, stream);
	if (by_tile(g))
		return cairn_gemm_fp8w_tile(g, stream);
	return launch_widened(g, stream);
}

extern "C" int cairn_gemm_fp8w_workspace(const struct cairn_gemm_fp8w_args *g, size_t *bytes)
{
	struct cairn_gemm_fp8w_args shape;
	struct cairn_gemm_args args;
	void *somewhere = (void *)256;	/* aligned and not null; never dereferenced */

	if (!g || !bytes)
		return cairn_error(EINVAL, "gemm_fp8w_workspace: null pointer");
	CAIRN_TRY(cairn_gemm_fp8w_check_shape(g));
	shape = *g;
	shape.out = somewhere;
	shape.a = somewhere;
	*bytes = by_tile(g) ? cairn_gemm_fp8w_tile_workspace(g) : 0;
	if (g->m <= SKINNY_M || by_tile(g))
		return 0;
	args = widened(&shape, (char *)somewhere);
	CAIRN_TRY(cairn_gemm_workspace(&args, bytes));
	*bytes += widened_bytes(g);
	return 0;
}
