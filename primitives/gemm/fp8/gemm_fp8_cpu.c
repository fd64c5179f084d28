// SPDX-License-Identifier: Apache-2.0
/*
 * gemm_fp8_cpu - widens up to 16 rows of a, and multiplies them with each row of b, a chunk of 128 at a time
 *
 * A chunk has eight partial sums, which are folded and scaled. So each result has the same order of sums,
 * whatever the other rows are.
 */
#include "primitives/gemm/fp8/gemm_fp8.h"

#include <stdlib.h>

#include "primitives/base/dtype.h"
#include "primitives/base/error.h"
#include "primitives/base/fp8.h"
#include "primitives/base/wide.h"

#define LANES	8
#define ROWS	16	/* rows of a at a time */
#define CHUNK	CAIRN_GEMM_FP8_CHUNK

/* may_alias: it stands for eight floats of an array */
typedef float vec __attribute__((vector_size(LANES * 4), aligned(4), may_alias));

/* Returns the sum of n products, n a multiple of LANES. */
static inline float dot(const float *a, const float *b, int32_t n)
{
	vec sum = { 0 };

	for (int32_t l = 0; l < n; l += LANES)
		sum += *(const vec *)(a + l) * *(const vec *)(b + l);
	for (int step = LANES / 2; step; step /= 2)
		for (int v = 0; v < step; v++)
			sum[v] += sum[v + step];
	return sum[0];
}

/* a: the widened rows i0 .. i0 + rows - 1, k apart */
static CAIRN_WIDE void one_row_of_b(const struct cairn_gemm_fp8_args *g, const float *wide, const float *a,
				    int64_t j, int64_t i0, int32_t rows)
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

			total[i] += scale * dot(a + (int64_t)i * g->k + l, b, n);
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
	float wide[256], *a;

	(void)stream;
	CAIRN_TRY(cairn_gemm_fp8_check(g));
	a = malloc(sizeof(*a) * ROWS * (size_t)g->k);
	if (!a)
		return cairn_error(ENOMEM, "gemm_fp8: no memory for rows of %d", g->k);
	for (int v = 0; v < 256; v++)
		wide[v] = cairn_e4m3_to_float((uint8_t)v);
	for (int64_t i0 = 0; i0 < g->m; i0 += ROWS) {
		int32_t rows = g->m - i0 < ROWS ? (int32_t)(g->m - i0) : ROWS;

		for (int64_t l = 0; l < (int64_t)rows * g->k; l++)
			a[l] = wide[g->a[i0 * g->k + l]];
		#pragma omp parallel for schedule(static) if ((double)rows * g->n * g->k > 1e6)
		for (int64_t j = 0; j < g->n; j++)
			one_row_of_b(g, wide, a, j, i0, rows);
	}
	free(a);
	return 0;
}
