/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gemm_w4 - chooses the kernel for a shape; b widened to 16 bits in memory for many rows of a
 *
 *   m             kernel
 *   1..8          gemm_w4_skinny.cu, limited by memory
 *   9..256        gemm_w4_tile.cu: codes are decoded on their way to wgmma
 *   above         widen_kernel writes b to the workspace, then gemm_fixed; if out is small, the tile kernel
 *                 (cairn_gemm_w4_widens())
 *
 * The product is gemm_fixed's, which is as fast as cuBLASLt's, needs neither that library nor its workspace,
 * rounds only once for odd n with a bias, too, and gives a row the same bits for every m.
 *
 * widen_kernel. A CTA takes 16 rows of b, 512 along k; each warp has a tile of 16 by 64. Its lanes load codes
 * and scales before griddepcontrol.wait, since these are weights. They scale in fp32, round once, and bring
 * the tile into rows by stmatrix, so that the warp stores whole lines of 128 bytes.
 *
 * Shared memory: [8 warps][16 rows] of 128 bytes and 16 more, against bank conflicts.
 * Floor of widen_kernel: reading the codes and writing 2 bytes an element.
 */
#include "primitives/gemm/w4/gemm_w4.cuh"

#include "primitives/base/launch.h"
#include "primitives/gemm/fixed/gemm_fixed.h"
#include "primitives/gemm/w4/gemm_w4_widen.h"
#include "primitives/ptx/ptx_copy.cuh"

#define WARPS		8
#define PITCH		(CAIRN_W4_TILE_K * 2 + 16)
#define PIECES		(CAIRN_W4_TILE_K / 8)	/* of 16 bytes in a row of a tile */
#define STORE_ROWS	(32 / PIECES)		/* rows that a warp stores at once */

/* Groups, tiles and CTAs along k; a group has 2^shift elements. */
struct sizes {
	int groups, shift, tiles, ctas;
};

/* Loads the scales of a tile, in which each row has `num`. The last tile may end behind the last group. */
template <int format, int dtype, int num>
W4 void load_scales(const struct cairn_gemm_w4_args &g, const struct sizes &z, int unit, int tile,
		    struct w4_scales s[num])
{
	const int bytes = cairn_w4_cell_bytes(format);
	const uint8_t *cells = g.b_scale + (int64_t)unit * z.groups * bytes;

#pragma unroll
	for (int i = 0; i < num; i++) {
		const int nth = tile * CAIRN_W4_TILE_K + i * (CAIRN_W4_TILE_K / num) >> z.shift;

		s[i] = w4_load_scales<format, dtype>(cells + (int64_t)min(nth, z.groups - 1) * bytes,
						     threadIdx.x % 32 / 4);
	}
}

template <int format, int dtype, int num> static __global__ void __launch_bounds__(WARPS * 32)
widen_kernel(const __grid_constant__ struct cairn_gemm_w4_args g, const __grid_constant__ struct sizes z,
	     uint16_t *out)
{
	__shared__ __align__(16) char s_tiles[WARPS][CAIRN_W4_ROWS * PITCH];
	const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
	const int unit = blockIdx.x / (unsigned int)z.ctas;
	const int tile = (blockIdx.x - unit * z.ctas) * WARPS + warp;
	const int row = unit * CAIRN_W4_ROWS + lane / PIECES, at = tile * CAIRN_W4_TILE_K + lane % PIECES * 8;
	const int rows = at < g.k ? g.n - row : 0;
	/* x[0] to x[3] of w4_decode(): rows 0 to 7 and 8 to 15, first and second eight along k */
	const uint32_t to = ptx_smem(s_tiles[warp]) + lane % 16 * PITCH + lane / 16 * 16;
	const uint32_t from = ptx_smem(s_tiles[warp]) + lane / PIECES * PITCH + lane % PIECES * 16;
	uint16_t *dst = out + (int64_t)row * g.k + at;
	struct w4_scales s[num];
	uint4 codes;

	if (tile >= z.tiles)
		return;
	codes = __ldcs((const uint4 *)g.b + ((int64_t)unit * z.tiles + tile) * 32 + lane);
	load_scales<format, dtype, num>(g, z, unit, tile, s);
#pragma unroll
	for (int i = 0; i < 4; i++) {
		uint32_t x[4];

		w4_decode<format, dtype>(w4_word(codes, i), s[i * num / 4], x);
#pragma unroll
		for (int e = 0; e < 4; e++) {
			const float by = s[i * num / 4].s[e % 2] * g.scale;
			float c[2];

			row_unpack2<dtype>(x[e], c);
			x[e] = row_pack2<dtype>(c[0] * by, c[1] * by);
		}
		ptx_stmatrix_x4(to + i * 32, x);
	}
	__syncwarp();
	ptx_griddepcontrol_wait();	/* the preceding kernel may use the workspace */
#pragma unroll
	for (int r = 0; r < CAIRN_W4_ROWS; r += STORE_ROWS) {
		const uint4 v = ptx_ld_shared_v4(from + r * PITCH);

		if (r < rows)
			__stcg((uint4 *)(dst + (int64_t)r * g.k), v);
	}
}

extern "C" int cairn_gemm_w4_widen(const struct cairn_gemm_w4_args *g, void *out, void *stream)
{
#define WIDEN(format, num)	{ (const void *)widen_kernel<format, CAIRN_BF16, num>, \
				  (const void *)widen_kernel<format, CAIRN_F16, num> }
	static const void *const kernels[4][2] = {
		WIDEN(CAIRN_W4_INT, 1), WIDEN(CAIRN_W4_MX, 2), WIDEN(CAIRN_W4_NV, 4), WIDEN(CAIRN_W4_INT, 2),
	};
	const int kind = g->format == CAIRN_W4_INT && g->group == 32 ? 3 : g->format;
	struct cairn_launch l = { .block = { WARPS * 32 }, .pdl = !g->sms, .stream = stream };
	struct sizes z = { .groups = cairn_w4_groups(g->k, g->group), .shift = cairn_w4_shift(g->group) };
	void *params[] = { (void *)g, &z, &out };
	int64_t ctas;

	z.tiles = cairn_w4_tiles(g->k);
	z.ctas = (z.tiles + WARPS - 1) / WARPS;
	ctas = (int64_t)cairn_w4_units(g->n) * z.ctas;
	if (ctas > INT32_MAX)
		return cairn_error(EOPNOTSUPP, "gemm_w4: n %d, k %d: too large", g->n, g->k);
	l.grid[0] = (unsigned int)ctas;
	return cairn_launch(kernels[kind][g->dtype == CAIRN_F16], &l, params);
}

static size_t widened_bytes(const struct cairn_gemm_w4_args *g)
{
	return ((size_t)g->n * g->k * 2 + 255) / 256 * 256;
}

static int multiply_widened(const struct cairn_gemm_w4_args *g, void *stream)
{
	struct cairn_gemm_fixed_args product = {
		.size = sizeof(product), .out = g->out, .a = g->a, .b = g->workspace, .bias = g->bias,
		.m = g->m, .n = g->n, .k = g->k, .dtype = g->dtype, .out_dtype = g->out_dtype,
	};

	if (!g->workspace || g->workspace_bytes < widened_bytes(g))
		return cairn_error(EINVAL, "gemm_w4: workspace_bytes: %zu is less than %zu",
				   g->workspace_bytes, widened_bytes(g));
	/* with sms = 0, gemm_fixed would read b before widen_kernel has ended */
	product.sms = cairn_sms_of(g->sms);
	if (product.sms < 0)
		return product.sms;
	CAIRN_TRY(cairn_gemm_w4_widen(g, g->workspace, stream));
	return cairn_gemm_fixed(&product, stream);
}

extern "C" int cairn_gemm_w4(const struct cairn_gemm_w4_args *g, void *stream)
{
	CAIRN_TRY(cairn_gemm_w4_check(g));
	if (g->m <= CAIRN_GEMM_W4_EXACT_M)
		return cairn_gemm_w4_skinny(g, stream);
	return cairn_gemm_w4_widens(g->m, g->n) ? multiply_widened(g, stream) : cairn_gemm_w4_tile(g, stream);
}

extern "C" int cairn_gemm_w4_workspace(const struct cairn_gemm_w4_args *g, size_t *bytes)
{
	if (!g || !bytes)
		return cairn_error(EINVAL, "gemm_w4_workspace: null pointer");
	CAIRN_TRY(cairn_gemm_w4_check_shape(g));
	*bytes = cairn_gemm_w4_widens(g->m, g->n) ? widened_bytes(g) : 0;
	return 0;
}
