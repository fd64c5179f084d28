/* SPDX-License-Identifier: Apache-2.0 */
/*
 * widen_w4 - the weight of gemm_w4 in 16 bits, for the unfused chain
 *
 * A warp takes a tile of 16 rows by 64 along k at a time. A lane decodes its 16 bytes of codes, scales them
 * in fp32 and puts the results into shared memory, from where the warp stores whole rows of 128 bytes.
 *
 * Shared memory: [8 warps][16 rows] of 128 bytes and 16 more, against bank conflicts.
 * Floor: reading the codes and writing 16 bits an element.
 */
#include "conformance/tables/widen_w4.h"

#include "primitives/base/launch.h"
#include "primitives/gemm/w4/gemm_w4.cuh"

#define WARPS		8
#define CTAS_PER_SM	8
#define PITCH		(CAIRN_W4_TILE_K * 2 + 16)
#define VECS		(CAIRN_W4_TILE_K / 8)	/* of 16 bytes in a row of a tile */

/* Decodes the lane's words of a tile, and puts them to their places in s_tile. shift: of the group's size */
template <int format, int dtype>
W4 void decode_tile(const struct cairn_gemm_w4_args &g, int unit, int tile, int shift, char *s_tile)
{
	const int lane = threadIdx.x % 32, groups = cairn_w4_groups(g.k, g.group);
	const int64_t at = (int64_t)unit * cairn_w4_tiles(g.k) + tile;
	const uint4 codes = __ldcs((const uint4 *)g.b + at * 32 + lane);
	const uint8_t *cells = g.b_scale + (int64_t)unit * groups * cairn_w4_cell_bytes(format);
	char *to = s_tile + lane / 4 * PITCH + lane % 4 * 4;

#pragma unroll
	for (int i = 0; i < 4; i++) {
		const int nth = g.group ? min(tile * CAIRN_W4_TILE_K + i * 16 >> shift, groups - 1) : 0;
		const struct w4_scales s =
			w4_load_scales<format, dtype>(cells + nth * cairn_w4_cell_bytes(format), lane / 4);
		uint32_t x[4];

		w4_decode<format, dtype>(w4_word(codes, i), s, x);
#pragma unroll
		for (int e = 0; e < 4; e++) {
			const float scale = s.s[e % 2] * g.scale;
			float c[2];

			row_unpack2<dtype>(x[e], c);
			*(uint32_t *)(to + e % 2 * 8 * PITCH + i * 32 + e / 2 * 16) =
				row_pack2<dtype>(c[0] * scale, c[1] * scale);
		}
	}
}

template <int dtype>
W4 void store_tile(const struct cairn_gemm_w4_args &g, int unit, int tile, const char *s_tile, uint16_t *out)
{
	for (int v = threadIdx.x % 32; v < CAIRN_W4_ROWS * VECS; v += 32) {
		const int row = unit * CAIRN_W4_ROWS + v / VECS, at = tile * CAIRN_W4_TILE_K + v % VECS * 8;

		if (row < g.n && at < g.k)
			*(uint4 *)(out + (int64_t)row * g.k + at) =
				*(const uint4 *)(s_tile + v / VECS * PITCH + v % VECS * 16);
	}
}

template <int format, int dtype> static __global__ void __launch_bounds__(WARPS * 32)
widen_w4_kernel(const __grid_constant__ struct cairn_gemm_w4_args g, int shift, uint16_t *out)
{
	__shared__ __align__(16) char s_tiles[WARPS][CAIRN_W4_ROWS * PITCH];
	const int warp = threadIdx.x / 32, tiles = cairn_w4_tiles(g.k);
	const int64_t all = (int64_t)cairn_w4_units(g.n) * tiles;

	for (int64_t i = (int64_t)blockIdx.x * WARPS + warp; i < all; i += gridDim.x * WARPS) {
		const int unit = (int)(i / tiles), tile = (int)(i - (int64_t)unit * tiles);

		decode_tile<format, dtype>(g, unit, tile, shift, s_tiles[warp]);
		__syncwarp();
		store_tile<dtype>(g, unit, tile, s_tiles[warp], out);
		__syncwarp();
	}
}

extern "C" int widen_w4(const struct cairn_gemm_w4_args *args, void *out, void *stream)
{
#define KERNELS(format) \
	{ (const void *)widen_w4_kernel<format, CAIRN_BF16>, \
	  (const void *)widen_w4_kernel<format, CAIRN_F16> }
	static const void *const kernels[3][2] = {
		KERNELS(CAIRN_W4_INT), KERNELS(CAIRN_W4_MX), KERNELS(CAIRN_W4_NV),
	};
	const int num_sms = cairn_num_sms();
	int shift = cairn_w4_shift(args->group);
	void *params[] = { (void *)args, &shift, &out };
	struct cairn_launch l = {};

	if (num_sms < 0)
		return num_sms;
	l.grid[0] = (unsigned int)(num_sms * CTAS_PER_SM);
	l.block[0] = WARPS * 32;
	l.stream = stream;
	return cairn_launch(kernels[args->format][args->dtype == CAIRN_F16], &l, params);
}
