/* SPDX-License-Identifier: Apache-2.0 */
/*
 * attn_widen - 8-bit keys on their way to wgmma: copied as codes to a ring, then converted to a 16-bit tile
 *
 * Each warp of the producer warpgroup of a prefill kernel copies and converts a quarter of a tile.
 */
#ifndef CAIRN_ATTN_WIDEN_CUH
#define CAIRN_ATTN_WIDEN_CUH

#include "fused/attention/base/attn_panel.cuh"
#include "primitives/ptx/fp8.cuh"

/* Every second row of the ring has its halves exchanged: a quarter warp's two rows are in different banks. */
template <int dim> ATTN_CONST attn_raw_swizzle(void) { return dim > 64 ? 0x40 : 0; }

template <int dim> ATTN_DEV uint32_t attn_raw_at(int row, int piece)
{
	return row * dim + (piece * 16 ^ (row << 6 & attn_raw_swizzle<dim>()));
}

/*
 * Converts the warp's share of a tile of `keys` keys and writes it to where wgmma reads it. Groups of eight
 * lanes read and write two rows of a panel, without bank conflicts. thread: in the warpgroup.
 */
template <int dtype, int keys, int dim>
ATTN_DEV void attn_convert_8bit(uint32_t s_tile, uint32_t s_raw, int thread)
{
	constexpr int share = keys / 4, panels = dim / 64;
	const int lane = thread % 32, first = thread / 32 * share + lane / 4;

#pragma unroll 4
	for (int i = 0; i < share / 8 * panels; i++) {
		int row = first + i / panels * 8, piece = i % panels * 4 + lane % 4;
		uint4 raw = ptx_ld_shared_v4(s_raw + attn_raw_at<dim>(row, piece)), lo, hi;

		fp8_widen<dtype>(raw.x, &lo.x, &lo.y);
		fp8_widen<dtype>(raw.y, &lo.z, &lo.w);
		fp8_widen<dtype>(raw.z, &hi.x, &hi.y);
		fp8_widen<dtype>(raw.w, &hi.z, &hi.w);
		ptx_st_shared_v4(s_tile + attn_panel_at<keys>(row, 2 * piece), lo);
		ptx_st_shared_v4(s_tile + attn_panel_at<keys>(row, 2 * piece + 1), hi);
	}
}

#endif
