// SPDX-License-Identifier: Apache-2.0
/*
 * gemm_w4_cpu - decodes each row of b, a tile at a time, and multiplies it with up to 16 rows of a
 *
 * There are eight partial sums per row of a. They are folded at the end of each group, or after 64 elements
 * if groups are longer, multiplied with the group's scale and added to a total.
 */
#include "primitives/base/error.h"
#include "primitives/gemm/w4/gemm_w4.h"
#include "primitives/gemm/w4/gemm_w4_value.h"

#define LANES	8
#define ROWS	16	/* rows of a at a time */
#define TILE	CAIRN_W4_TILE_K

/* Decodes n elements of row j of b, without scales; first and n are multiples of 16, all in one tile. */
static void decode(const struct cairn_gemm_w4_args *g, int64_t j, int32_t first, int32_t n, float *b)
{
	static const uint8_t offset[16] = { 0, 2, 16, 18, 32, 34, 48, 50, 1, 3, 17, 19, 33, 35, 49, 51 };
	const uint8_t *from = g->b + cairn_w4_nibble(g->k, j, first) / 2;
	int shift = (int)(j / 8 % 2) * 4;
	float values[16];

	cairn_w4_values(g, j, g->group ? first / g->group : 0, values);
	for (int32_t l = 0; l < n; l += 16, from += 4)
		for (int e = 0; e < 16; e++)
			b[l + e] = values[from[offset[e]] >> shift & 15];
}

static float sum_of_products(const float *a, const float *b, int32_t n)
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

static void one_row_of_b(const struct cairn_gemm_w4_args *g, int64_t j, int32_t i0, int32_t rows)
{
	int32_t piece = g->group && g->group < TILE ? g->group : TILE;
	float total[ROWS] = { 0 };

	for (int32_t l0 = 0; l0 < g->k; l0 += piece) {
		int32_t n = g->k - l0 < piece ? g->k - l0 : piece;
		float s = cairn_w4_scale(g, j, g->group ? l0 / g->group : 0), a[TILE], b[TILE];

		decode(g, j, l0, n, b);
		for (int32_t i = 0; i < rows; i++) {
			cairn_load_row(a, g->a, g->dtype, (int64_t)(i0 + i) * g->k + l0, n);
			total[i] += s * sum_of_products(a, b, n);
		}
	}
	for (int32_t i = 0; i < rows; i++) {
		float v = total[i] * g->scale;

		if (g->bias)
			v += (float)cairn_load(g->bias, g->dtype, j);
		cairn_store(g->out, g->out_dtype, (int64_t)(i0 + i) * g->n + j, (double)v);
	}
}

int cairn_gemm_w4_cpu(const struct cairn_gemm_w4_args *g, void *stream)
{
	(void)stream;
	CAIRN_TRY(cairn_gemm_w4_check(g));
	#pragma omp parallel for schedule(static) if ((double)g->m * g->n * g->k > 1e6)
	for (int64_t j = 0; j < g->n; j++)
		for (int32_t i0 = 0; i0 < g->m; i0 += ROWS)
			one_row_of_b(g, j, i0, g->m - i0 < ROWS ? g->m - i0 : ROWS);
	return 0;
}
