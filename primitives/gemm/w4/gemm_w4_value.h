/* SPDX-License-Identifier: Apache-2.0 */
/* gemm_w4_value - the values of codes and scales of the 4-bit formats, for the host */
#ifndef CAIRN_GEMM_W4_VALUE_H
#define CAIRN_GEMM_W4_VALUE_H

#include <math.h>
#include <string.h>

#include "primitives/base/dtype.h"
#include "primitives/base/fp4.h"
#include "primitives/base/fp8.h"
#include "primitives/gemm/w4/gemm_w4_layout.h"

/* Returns the scale of row j and a group. */
static inline float cairn_w4_scale(const struct cairn_gemm_w4_args *g, int64_t j, int64_t nth)
{
	const uint8_t *cell = g->b_scale + cairn_w4_cell(g->format, g->k, g->group, j, nth);
	int64_t at = cairn_w4_place(j);

	if (g->format == CAIRN_W4_INT)
		return (float)cairn_load(cell, CAIRN_F16, at);
	return g->format == CAIRN_W4_MX ? cairn_e8m0_to_float(cell[at]) : cairn_e4m3_to_float(cell[at]);
}

/* Fills values[code] for row j and a group, before the scale. */
static inline void cairn_w4_values(const struct cairn_gemm_w4_args *g, int64_t j, int64_t nth,
				   float values[16])
{
	const uint8_t *cell = g->b_scale + cairn_w4_cell(g->format, g->k, g->group, j, nth);

	for (int code = 0; code < 16; code++)
		values[code] = g->format == CAIRN_W4_INT ?
			       (float)(code - cell[2 * CAIRN_W4_ROWS + cairn_w4_place(j)]) :
			       cairn_e2m1_to_float(code);
}

/*
 * Writes row j, each value times its scale, but without g->scale. The products are exact in fp32. Elements
 * lie where cairn_w4_nibble() says; 16 elements along k lie in one word of each of four lanes.
 */
static inline void cairn_w4_row(const struct cairn_gemm_w4_args *g, int64_t j, float *row)
{
	const uint8_t *unit = g->b + j / CAIRN_W4_ROWS * cairn_w4_tiles(g->k) * CAIRN_W4_TILE_BYTES;
	const int odd = j % CAIRN_W4_ROWS / 8;
	const int32_t group = g->group ? g->group : g->k;
	float values[16] = { 0 };

	for (int32_t l = 0; l < g->k; l += 16) {
		const uint8_t *words = unit + (int64_t)(l / CAIRN_W4_TILE_K) * CAIRN_W4_TILE_BYTES +
				       j % 8 * 64 + l % CAIRN_W4_TILE_K / 16 * 4;

		if (l % group == 0) {
			const float scale = cairn_w4_scale(g, j, l / group);

			cairn_w4_values(g, j, l / group, values);
			for (int i = 0; i < 16; i++)
				values[i] *= scale;
		}
		for (int t = 0; t < 4; t++) {
			const uint32_t w = cairn_w4_nibbles(g->format, cairn_w4_load_word(words + t * 16));

			for (int i = 0; i < 4; i++)
				row[l + 2 * t + i % 2 + i / 2 * 8] =
					values[w >> (i % 2 * 16 + i / 2 * 8 + odd * 4) & 15];
		}
	}
}

#endif
