/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gemm_w4 - chooses the kernel for a shape; b decoded in memory for many rows of a
 *
 *   m             kernel
 *   1..8          gemm_w4_skinny.cu, limited by memory
 *   9..512        gemm_w4_tile.cu: codes are decoded on their way to wgmma
 *   above         b is decoded and scaled into the workspace, then gemm: 4 n k more bytes of traffic
 */
#include "primitives/gemm/w4/gemm_w4.cuh"

#include "primitives/base/launch.h"
#include "primitives/gemm/gemm.h"
#include "primitives/ptx/ptx_copy.cuh"

#define ROWS		CAIRN_W4_ROWS
#define TILE_M		512
#define WIDEN_THREADS	256

/* Sizes along k: tiles and bytes of the cells of a unit of 16 rows; a group has 2^shift elements. */
struct sizes {
	int tiles, cells, shift;
};

/* A warp decodes a tile; a lane reads 16 bytes and writes 16 pairs. */
template <int format, int dtype> __global__ void __launch_bounds__(WIDEN_THREADS)
widen_kernel(const __grid_constant__ struct cairn_gemm_w4_args g, const __grid_constant__ struct sizes z,
	     uint32_t *to)
{
	const int64_t tile = ((int64_t)blockIdx.x * WIDEN_THREADS + threadIdx.x) / 32;
	const int lane = threadIdx.x & 31, unit = (int)(tile / z.tiles), row = unit * ROWS + lane / 4;
	const int at = (int)(tile - (int64_t)unit * z.tiles) * CAIRN_W4_TILE_K;
	uint4 four;

	ptx_griddepcontrol_wait();
	if (unit >= cairn_w4_units(g.n))
		return;
	four = ptx_ld_global_nc_no_allocate_v4(g.b + tile * CAIRN_W4_TILE_BYTES + lane * 16);
#pragma unroll
	for (int h = 0; h < 4; h++) {
		const uint32_t w = h == 0 ? four.x : h == 1 ? four.y : h == 2 ? four.z : four.w;
		const int first = at + h * 16;
		const unsigned char *cell = g.b_scale + (int64_t)unit * z.cells +
					    (first >> z.shift) * cairn_w4_cell_bytes(format);
		struct w4_scales s;
		uint32_t codes[4];

		if (first >= g.k)
			break;
		s = w4_load_scales<format, dtype>(cell, lane / 4);
		w4_decode<format, dtype>(w, s, codes);
#pragma unroll
		for (int i = 0; i < 4; i++) {
			const int j = row + i % 2 * 8, l = first + i / 2 * 8 + lane % 4 * 2;
			const float by = s.s[i % 2];
			float f[2];

			row_unpack2<dtype>(codes[i], f);
			if (j < g.n)
				to[((int64_t)j * g.k + l) / 2] =
					row_pack2<dtype>(f[0] * by * g.scale, f[1] * by * g.scale);
		}
	}
}

static size_t widened_bytes(const struct cairn_gemm_w4_args *g)
{
	return ((size_t)g->n * g->k * 2 + 255) / 256 * 256;
}

static struct cairn_gemm_args widened(const struct cairn_gemm_w4_args *g, char *workspace)
{
	struct cairn_gemm_args args = {
		.size = sizeof(args), .out = g->out, .a = g->a, .b = workspace, .bias = g->bias,
		.workspace = workspace + widened_bytes(g),
		.workspace_bytes = g->workspace_bytes - widened_bytes(g), .m = g->m, .n = g->n, .k = g->k,
		.dtype = g->dtype, .out_dtype = g->out_dtype, .sms = g->sms,
	};

	return args;
}

static struct sizes sizes_of(const struct cairn_gemm_w4_args *g)
{
	struct sizes z = { cairn_w4_tiles(g->k), cairn_w4_groups(g->k, g->group) *
			   cairn_w4_cell_bytes(g->format), cairn_w4_shift(g->group) };

	return z;
}

static int launch_widened(const struct cairn_gemm_w4_args *g, void *stream)
{
#define WIDEN(format)	{ (const void *)widen_kernel<format, CAIRN_BF16>, \
			  (const void *)widen_kernel<format, CAIRN_F16> }
	static const void *const kernels[3][2] = {
		WIDEN(CAIRN_W4_INT), WIDEN(CAIRN_W4_MX), WIDEN(CAIRN_W4_NV),
	};
	struct cairn_launch l = { .block = { WIDEN_THREADS }, .pdl = !g->sms, .stream = stream };
	struct cairn_gemm_args args = widened(g, (char *)g->workspace);
	struct sizes z = sizes_of(g);
	void *to = g->workspace, *params[] = { (void *)g, &z, &to };
	int64_t ctas = ((int64_t)cairn_w4_units(g->n) * z.tiles * 32 + WIDEN_THREADS - 1) / WIDEN_THREADS;

	if (!g->workspace || g->workspace_bytes < widened_bytes(g))
		return cairn_error(EINVAL, "gemm_w4: workspace_bytes: %zu is less than %zu",
				   g->workspace_bytes, widened_bytes(g));
	if (ctas > INT32_MAX)
		return cairn_error(EOPNOTSUPP, "gemm_w4: n %d, k %d: too large", g->n, g->k);
	l.grid[0] = (unsigned int)ctas;
	CAIRN_TRY(cairn_launch(kernels[g->format][g->dtype == CAIRN_F16], &l, params));
	return cairn_gemm(&args, stream);
}

extern "C" int cairn_gemm_w4(const struct cairn_gemm_w4_args *g, void *stream)
{
	CAIRN_TRY(cairn_gemm_w4_check(g));
	if (g->m <= CAIRN_GEMM_W4_EXACT_M)
		return cairn_gemm_w4_skinny(g, stream);
	return g->m <= TILE_M ? cairn_gemm_w4_tile(g, stream) : launch_widened(g, stream);
}

extern "C" int cairn_gemm_w4_workspace(const struct cairn_gemm_w4_args *g, size_t *bytes)
{
	struct cairn_gemm_w4_args shape;
	struct cairn_gemm_args args;
	void *somewhere = (void *)256;	/* aligned and not null; never dereferenced */

	if (!g || !bytes)
		return cairn_error(EINVAL, "gemm_w4_workspace: null pointer");
	CAIRN_TRY(cairn_gemm_w4_check_shape(g));
	*bytes = 0;
	if (g->m <= TILE_M)
		return 0;
	shape = *g;
	shape.out = somewhere;
	shape.a = somewhere;
	args = widened(&shape, (char *)somewhere);
	CAIRN_TRY(cairn_gemm_workspace(&args, bytes));
	*bytes += widened_bytes(g);
	return 0;
}
