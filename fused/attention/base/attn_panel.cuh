/* SPDX-License-Identifier: Apache-2.0 */
/* attn_panel - tiles of shared memory in panels of 128 bytes a row, as wgmma reads them (wgmma.cuh) */
#ifndef CAIRN_ATTN_PANEL_CUH
#define CAIRN_ATTN_PANEL_CUH

#include "fused/attention/base/attn_softmax.cuh"
#include "fused/attention/base/attn_tile.h"

#define ATTN_PANEL	128		/* bytes of a row of a panel */

/* Returns the byte offset of the 16-byte piece `chunk` of a row in a tile of `rows` rows. */
template <int rows> ATTN_DEV uint32_t attn_panel_at(int row, int chunk)
{
	return chunk / 8 * rows * ATTN_PANEL + attn_swizzle(row, chunk % 8, ATTN_PANEL);
}

#endif
