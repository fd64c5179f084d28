/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gemm_w4_layout - where the codes and scales of a packed 4-bit weight lie
 *
 * Codes. The weight [n, k] is cut into tiles of 16 rows by 64 along k; the tiles of 16 rows follow each other
 * along k. A tile has 512 bytes, 16 for each lane of a warp: four little-endian words, one for each 16
 * elements along k. Lane 4 g + t holds rows g and g + 8. Code p of its word, 0 to 7, belongs to row
 * g + 8 (p % 2) and to element 2 t + p / 4 + 8 (p / 2 % 2) of the 16. These are the eight elements that the
 * lane provides as operand A of mma.m16n8k16 and of wgmma, so that a kernel loads 16 bytes per lane and masks
 * pairs of codes out of a word: codes p and p + 4 are neighbours along k.
 *
 * With CAIRN_W4_INT, code p is nibble p of the word: bits 4 p to 4 p + 3. With CAIRN_W4_MX and CAIRN_W4_NV,
 * the bits of a code, the lowest first and the sign last, are these bits of the word:
 *
 *	code 0	 0  1  2  9	code 1	26 27 28  3	code 2	 4  5  6 13	code 3	14  7  8 15
 *	code 4	16 17 18 25	code 5	10 11 12 19	code 6	20 21 22 29	code 7	30 23 24 31
 *
 * A shift or rotation of the word then brings a pair to where bf16 has its sign, the lowest two bits of its
 * exponent and the highest bit of its mantissa (cairn_w4_pairs()): 9 instructions for 8 codes.
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

/*
 * Reads pairs out of a word of MX or NV: x[p] has code p in its low and code p + 4 in its high half, the sign
 * in bit 15 and the other bits in bits 6 to 8 of the half.
 */
CAIRN_W4_BOTH void cairn_w4_pairs(uint32_t w, uint32_t x[4])
{
	x[0] = w << 6 & 0x81c081c0;
	x[1] = (w << 12 | w >> 20) & 0x81c081c0;
	x[2] = w << 2 & 0x81c081c0;
	x[3] = (w & 0x81808180) | (w >> 8 & 0x00400040);
}

/* Returns a word in the order of INT, given one of any format. */
static inline uint32_t cairn_w4_nibbles(int32_t format, uint32_t w)
{
	uint32_t x[4], nibbles = 0;

	if (format == CAIRN_W4_INT)
		return w;
	cairn_w4_pairs(w, x);
	for (int p = 0; p < 4; p++)
		nibbles |= ((x[p] >> 6 & 0x00070007) | (x[p] >> 12 & 0x00080008)) << 4 * p;
	return nibbles;
}

/* Returns a word in the order of a format, given one in that of INT. */
static inline uint32_t cairn_w4_ordered(int32_t format, uint32_t nibbles)
{
	uint32_t x[4];

	if (format == CAIRN_W4_INT)
		return nibbles;
	for (int p = 0; p < 4; p++)
		x[p] = (nibbles >> 4 * p & 0x00070007) << 6 | (nibbles >> 4 * p & 0x00080008) << 12;
	return x[0] >> 6 | x[1] >> 12 | x[1] << 20 | x[2] >> 2 | (x[3] & 0x81808180) |
	       (x[3] & 0x00400040) << 8;
}

static inline uint32_t cairn_w4_load_word(const uint8_t *from)
{
	return from[0] | (uint32_t)from[1] << 8 | (uint32_t)from[2] << 16 | (uint32_t)from[3] << 24;
}

static inline void cairn_w4_store_word(uint8_t *to, uint32_t w)
{
	for (int i = 0; i < 4; i++)
		to[i] = (uint8_t)(w >> 8 * i);
}

/* Returns 8 times the number of the word of element l of row j, plus the number of its code in the word. */
static inline int64_t cairn_w4_nibble(int32_t k, int64_t j, int64_t l)
{
	int64_t tile = j / CAIRN_W4_ROWS * cairn_w4_tiles(k) + l / CAIRN_W4_TILE_K;
	int64_t row = j % CAIRN_W4_ROWS, step = l % CAIRN_W4_TILE_K / 16, e = l % 16;
	int64_t lane = row % 8 * 4 + e % 8 / 2, p = e % 2 * 4 + e / 8 * 2 + row / 8;

	return tile * 2 * CAIRN_W4_TILE_BYTES + lane * 32 + step * 8 + p;
}

/* Returns code `at`, as cairn_w4_nibble() counts. */
static inline int cairn_w4_code_at(int32_t format, const uint8_t *b, int64_t at)
{
	return cairn_w4_nibbles(format, cairn_w4_load_word(b + at / 8 * 4)) >> at % 8 * 4 & 15;
}

static inline int cairn_w4_code(int32_t format, const uint8_t *b, int32_t k, int64_t j, int64_t l)
{
	return cairn_w4_code_at(format, b, cairn_w4_nibble(k, j, l));
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
