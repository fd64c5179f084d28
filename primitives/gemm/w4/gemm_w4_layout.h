/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gemm_w4_layout - where the codes and scales of a packed 4-bit weight lie
 *
 * Codes. The weight [n, k] is cut into tiles of 16 rows by 64 along k; the tiles of 16 rows follow each other
 * along k. A tile has 512 bytes, 16 for each lane of a warp: four little-endian words, one for each 16
 * elements along k. Lane 4 g + t holds rows g and g + 8. Nibble p of its word (bits 4 p .. 4 p + 3) belongs
 * to row g + 8 (p % 2) and to element 2 t + p / 4 + 8 (p / 2 % 2) of the 16. These are the eight elements
 * that the lane provides as operand A of mma.m16n8k16 and of wgmma, so that a kernel loads 16 bytes per lane
 * and masks pairs of codes out of a word: nibbles p and p + 4 are neighbours along k.
 *
 * Scales. Every 16 rows and group have a cell; the cells of 16 rows follow each other along k. A cell holds
 * the 16 scales, one byte each or, with CAIRN_W4_INT, f16, and then, only with CAIRN_W4_INT, the 16 zero
 * points, one byte each. Rows g and g + 8 lie side by side: row r of the 16 comes at place 2 (r % 8) + r / 8.
 */
#ifndef CAIRN_GEMM_W4_LAYOUT_H
#define CAIRN_GEMM_W4_LAYOUT_H

#include <stdint.h>

#include "primitives/gemm/w4/gemm_w4.h"

#define CAIRN_W4_ROWS		16	/* rows of a tile or cell */
#define CAIRN_W4_TILE_K		64
#define CAIRN_W4_TILE_BYTES	512

#ifdef __CUDACC__
#define CAIRN_W4_BOTH	static __host__ __device__ inline
#else
#define CAIRN_W4_BOTH	static inline
#endif

/* Tiles along k */
CAIRN_W4_BOTH int32_t cairn_w4_tiles(int32_t k)
{
	return (int32_t)(((int64_t)k + CAIRN_W4_TILE_K - 1) / CAIRN_W4_TILE_K);
}

/* Groups along k */
CAIRN_W4_BOTH int32_t cairn_w4_groups(int32_t k, int32_t group)
{
	return group ? (int32_t)(((int64_t)k + group - 1) / group) : 1;
}

CAIRN_W4_BOTH int32_t cairn_w4_cell_bytes(int32_t format)
{
	return format == CAIRN_W4_INT ? 3 * CAIRN_W4_ROWS : CAIRN_W4_ROWS;
}

/* Blocks of 16 rows */
CAIRN_W4_BOTH int32_t cairn_w4_units(int32_t n)
{
	return (int32_t)(((int64_t)n + CAIRN_W4_ROWS - 1) / CAIRN_W4_ROWS);
}

static inline int64_t cairn_w4_code_bytes(int32_t n, int32_t k)
{
	return (int64_t)cairn_w4_units(n) * cairn_w4_tiles(k) * CAIRN_W4_TILE_BYTES;
}

static inline int64_t cairn_w4_scale_bytes(int32_t format, int32_t n, int32_t k, int32_t group)
{
	return (int64_t)cairn_w4_units(n) * cairn_w4_groups(k, group) * cairn_w4_cell_bytes(format);
}

/* Returns the number of the nibble of element l of row j; nibble 0 is the low half of byte 0. */
static inline int64_t cairn_w4_nibble(int32_t k, int64_t j, int64_t l)
{
	int64_t tile = j / CAIRN_W4_ROWS * cairn_w4_tiles(k) + l / CAIRN_W4_TILE_K;
	int64_t row = j % CAIRN_W4_ROWS, step = l % CAIRN_W4_TILE_K / 16, e = l % 16;
	int64_t lane = row % 8 * 4 + e % 8 / 2, p = e % 2 * 4 + e / 8 * 2 + row / 8;

	return tile * 2 * CAIRN_W4_TILE_BYTES + lane * 32 + step * 8 + p;
}

static inline int cairn_w4_code(const uint8_t *b, int32_t k, int64_t j, int64_t l)
{
	int64_t at = cairn_w4_nibble(k, j, l);

	return b[at / 2] >> at % 2 * 4 & 15;
}

/* Returns the offset of the cell of row j and a group. */
static inline int64_t cairn_w4_cell(int32_t format, int32_t k, int32_t group, int64_t j, int64_t nth)
{
	return (j / CAIRN_W4_ROWS * cairn_w4_groups(k, group) + nth) * cairn_w4_cell_bytes(format);
}

/* Returns the place of row j in its cell. */
static inline int64_t cairn_w4_place(int64_t j)
{
	return j % 8 * 2 + j % CAIRN_W4_ROWS / 8;
}

#endif
