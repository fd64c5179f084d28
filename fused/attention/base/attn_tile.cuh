/* SPDX-License-Identifier: Apache-2.0 */
/*
 * attn_tile - operand fragments for the kernels that use mma.sync
 *
 * A warp owns one or more m-tiles of 16 packed rows (attn_tile.h).
 */
#ifndef CAIRN_ATTN_TILE_CUH
#define CAIRN_ATTN_TILE_CUH

#include "fused/attention/base/attn_softmax.cuh"
#include "fused/attention/base/attn_tile.h"
#include "primitives/ptx/ptx_copy.cuh"

template <int dtype>
ATTN_DEV void attn_mma(float d[4], const uint32_t a[4], const uint32_t b[2])
{
	if (dtype == CAIRN_F16)
		ptx_mma_m16n8k16_f16(d, a, b);
	else
		ptx_mma_m16n8k16_bf16(d, a, b);
}

/*
 * These return the byte offset of a lane's ldmatrix.x4 in a tile. Operand A is 16 rows and 16 columns of Q.
 * Operand B is two n-tiles: 16 keys and 16 columns of K, or 16 keys and 16 columns of V, which ldmatrix
 * transposes because V is stored [key][dim] and B is [dim][key]. The next 16 columns are at ^ 32, the next 16
 * rows at + 16 * head_dim * 2.
 */
template <int head_dim>
ATTN_DEV uint32_t attn_q_at(int lane)
{
	return attn_swizzle(lane % 16, lane / 16, head_dim * 2);
}

template <int head_dim>
ATTN_DEV uint32_t attn_k_at(int lane)
{
	return attn_swizzle(lane / 16 * 8 + lane % 8, lane / 8 % 2, head_dim * 2);
}

template <int head_dim>
ATTN_DEV uint32_t attn_v_at(int lane)
{
	return attn_swizzle(lane / 8 % 2 * 8 + lane % 8, lane / 16, head_dim * 2);
}

#endif
