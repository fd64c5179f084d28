// SPDX-License-Identifier: Apache-2.0
/*
 * gemm_w4_cpu - decodes 16 rows of b, a tile of 64 columns at a time, and multiplies it with rows of a
 *
 * There are eight partial sums per element of out. They are folded at the end of each group, or after 64
 * elements if groups are longer, multiplied with the group's scale and added to a total.
 *
 * In the order of INT, the bytes of lanes 4 g to 4 g + 3 of a tile hold the codes of row g in their low and
 * those of row g + 8 in their high halves, so that one permutation of 64 bytes brings the codes of two rows
 * into order. Words of the other formats are brought to that order first.
 */
#include "primitives/base/error.h"
#include "primitives/base/wide.h"
#include "primitives/gemm/w4/gemm_w4.h"
#include "primitives/gemm/w4/gemm_w4_value.h"

#define LANES	8
#define ROWS	16	/* rows of a at a time */
#define TILE	CAIRN_W4_TILE_K
#define UNIT	CAIRN_W4_ROWS
#define INLINE	static inline __attribute__((always_inline))	/* compiled with the vectors of its caller */

/* A tile of b: codes without scales, and the scales of its groups. */
struct tile {
	float b[UNIT][TILE], scale[UNIT][TILE / 16];
	int32_t piece, n;	/* columns that share a scale; columns */
};

/* Returns the byte, of the 64 of rows g and g + 8, that holds the codes of column l. */
static int byte_of(int l)
{
	int e = l % 16;

	return e % 8 / 2 * 16 + l / 16 * 4 + e % 2 * 2 + e / 8;
}

/* Widens the codes of row j in one group to values; code: n of them. */
INLINE void widen(const struct cairn_gemm_w4_args *g, int64_t j, int64_t nth, const uint8_t *code, int32_t n,
		  float *to)
{
	const uint8_t *cell = g->b_scale + cairn_w4_cell(g->format, g->k, g->group, j, nth);
	float values[16];

	if (g->format == CAIRN_W4_INT) {	/* needs no table */
		const int zero = cell[2 * CAIRN_W4_ROWS + cairn_w4_place(j)];

		for (int32_t l = 0; l < n; l++)
			to[l] = (float)(code[l] - zero);
		return;
	}
	cairn_w4_values(g, j, nth, values);
	for (int32_t l = 0; l < n; l++)
		to[l] = values[code[l]];
}

/* Decodes the columns from l0 on of the rows from j0 on; num of these exist. */
INLINE void decode(const struct cairn_gemm_w4_args *g, int64_t j0, int32_t num, int32_t l0,
		   const uint8_t order[TILE], struct tile *t)
{
	const uint8_t *from = g->b + cairn_w4_nibble(g->k, j0, l0) / 2;

	t->n = g->k - l0 < TILE ? g->k - l0 : TILE;
	t->piece = g->group && g->group < TILE ? g->group : TILE;
	for (int r = 0; r < UNIT / 2 && r < num; r++, from += TILE) {
		uint8_t code[2][TILE], words[TILE];

		for (int l = 0; l < TILE; l += 4)
			cairn_w4_store_word(words + l, cairn_w4_nibbles(g->format,
									cairn_w4_load_word(from + l)));
		for (int l = 0; l < TILE; l++)
			code[0][l] = words[order[l]];
		for (int l = 0; l < TILE; l++)
			code[1][l] = code[0][l] >> 4;
		for (int l = 0; l < TILE; l++)
			code[0][l] &= 15;
		for (int half = 0; half < 2 && r + 8 * half < num; half++)
			for (int32_t l = 0; l < t->n; l += t->piece) {
				int64_t j = j0 + r + 8 * half, nth = g->group ? (l0 + l) / g->group : 0;
				int32_t n = t->n - l < t->piece ? t->n - l : t->piece;

				t->scale[r + 8 * half][l / t->piece] = cairn_w4_scale(g, j, nth);
				widen(g, j, nth, code[half] + l, n, t->b[r + 8 * half] + l);
			}
	}
}

INLINE float sum_of_products(const float *a, const float *b, int32_t n)
{
	float sum[LANES] = { 0 };

	for (int32_t l = 0; l < n; l += LANES)
		for (int v = 0; v < LANES; v++)
			sum[v] += a[l + v] * b[l + v];
	for (int step = LANES / 2; step; step /= 2)
		for (int v = 0; v < step; v++)
			sum[v] += sum[v + step];
	return sum[0];
}

/* Adds the products of a row of a with a tile. */
INLINE void add_tile(const struct tile *t, const float *a, int32_t num, float total[UNIT])
{
	for (int r = 0; r < num; r++)
		for (int32_t l = 0; l < t->n; l += t->piece) {
			int32_t n = t->n - l < t->piece ? t->n - l : t->piece;

			total[r] += t->scale[r][l / t->piece] * sum_of_products(a + l, t->b[r] + l, n);
		}
}

/* Computes the columns from j0 on of `rows` rows of out. */
CAIRN_WIDE static void one_unit(const struct cairn_gemm_w4_args *g, int64_t j0, int32_t i0, int32_t rows)
{
	const int32_t num = g->n - j0 < UNIT ? (int32_t)(g->n - j0) : UNIT;
	float total[ROWS][UNIT] = { { 0 } }, a[TILE];
	uint8_t order[TILE];
	struct tile t;

	for (int l = 0; l < TILE; l++)
		order[l] = (uint8_t)byte_of(l);
	for (int32_t l0 = 0; l0 < g->k; l0 += TILE) {
		decode(g, j0, num, l0, order, &t);
		for (int32_t i = 0; i < rows; i++) {
			cairn_load_row(a, g->a, g->dtype, (int64_t)(i0 + i) * g->k + l0, t.n);
			add_tile(&t, a, num, total[i]);
		}
	}
	for (int32_t i = 0; i < rows; i++)
		for (int32_t r = 0; r < num; r++) {
			float v = total[i][r] * g->scale;

			if (g->bias)
				v += (float)cairn_load(g->bias, g->dtype, j0 + r);
			cairn_store(g->out, g->out_dtype, (int64_t)(i0 + i) * g->n + j0 + r, (double)v);
		}
}

int cairn_gemm_w4_cpu(const struct cairn_gemm_w4_args *g, void *stream)
{
	(void)stream;
	CAIRN_TRY(cairn_gemm_w4_check(g));
	#pragma omp parallel for schedule(static) if ((double)g->m * g->n * g->k > 1e6)
	for (int64_t unit = 0; unit < cairn_w4_units(g->n); unit++)
		for (int32_t i0 = 0; i0 < g->m; i0 += ROWS)
			one_unit(g, unit * UNIT, i0, g->m - i0 < ROWS ? g->m - i0 : ROWS);
	return 0;
}
