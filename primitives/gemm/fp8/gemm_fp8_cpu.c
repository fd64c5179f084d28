// SPDX-License-Identifier: Apache-2.0
/*
 * gemm_fp8_cpu - widens each row of b, a chunk of 128 at a time, and multiplies it with up to 16 rows of a
 *
 * A chunk has eight partial sums, which are folded and scaled. So each result has the same order of sums,
 * whatever the other rows are.
 */
#include "primitives/gemm/fp8/gemm_fp8.h"

#include "primitives/base/dtype.h"
#include "primitives/base/error.h"
#include "primitives/base/fp8.h"

#define LANES	8
#define ROWS	16	/* rows of a at a time */
#define CHUNK	CAIRN_GEMM_FP8_CHUNK

/* Returns the sum of n products, n a multiple of LANES. */
static float dot(const float *wide, const uint8_t *a, const float *b, int32_t n)
{
	float sum[LANES] = { 0 };

	for (int32_t l = 0; l < n; l += LANES)
		for (int v = 0; v < LANES; v++)
			sum[v] += wide[a[l + v]] * b[l + v];
	for (int step = LANES / 2; step; step /= 2)
		for (int v = 0; v < step; v++)
			sum[v] += sum[v + step];
	return sum[0];
}

static void one_row_of_b(const struct cairn_gemm_fp8_args *g, const float *wide, int64_t j, int64_t i0,
			 int32_t rows)
{
	int blocks = g->scale_kind == CAIRN_FP8_SCALE_BLOCKS;
	float total[ROWS] = { 0 }, b[CHUNK];

	for (int32_t l = 0; l < g->k; l += CHUNK) {
		int32_t n = g->k - l < CHUNK ? g->k - l : CHUNK;

		for (int32_t c = 0; c < n; c++)
			b[c] = wide[g->b[j * g->k + l + c]];
		for (int32_t i = 0; i < rows; i++) {
			float scale = blocks ? cairn_gemm_fp8_a_scale(g, i0 + i, l) *
				      cairn_gemm_fp8_b_scale(g, j, l) : 1;

			total[i] += scale * dot(wide, g->a + (i0 + i) * g->k + l, b, n);
		}
	}
	for (int32_t i = 0; i < rows; i++) {
		if (!blocks)
			total[i] *= cairn_gemm_fp8_a_scale(g, i0 + i, 0) * cairn_gemm_fp8_b_scale(g, j, 0);
		if (g->bias)
			total[i] += (float)cairn_load(g->bias, g->dtype, j);
		cairn_store(g->out, g->out_dtype, (i0 + i) * g->n + j, (double)total[i]);
	}
}

int cairn_gemm_fp8_cpu(const struct cairn_gemm_fp8_args *g, void *stream)
{
	float wide[256];

	(void)stream;
	CAIRN_TRY(cairn_gemm_fp8_check(g));
	for (int v = 0; v < 256; v++)
		wide[v] = cairn_e4m3_to_float((uint8_t)v);
	#pragma omp parallel for schedule(static) if ((double)g->m * g->n * g->k > 1e6)
	for (int64_t j = 0; j < g->n; j++)
		for (int64_t i0 = 0; i0 < g->m; i0 += ROWS)
			one_row_of_b(g, wide, j, i0, g->m - i0 < ROWS ? (int32_t)(g->m - i0) : ROWS);
	return 0;
}
