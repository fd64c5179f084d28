// SPDX-License-Identifier: Apache-2.0
/*
 * gemm_fp8w_cpu - widens each row of b, a block at a time, and multiplies it with up to 16 rows of a
 *
 * There are eight partial sums per row of a. They are folded at the end of each block of 128 and multiplied
 * with its scale.
 */
#include <string.h>

#include "primitives/base/dtype.h"
#include "primitives/base/error.h"
#include "primitives/base/fp8.h"
#include "primitives/base/wide.h"
#include "primitives/gemm/fp8w/gemm_fp8w.h"

#define LANES	8
#define ROWS	16	/* rows of a at a time */
#define CHUNK	CAIRN_FP8_BLOCK

/* may_alias: it stands for eight floats of an array */
typedef float vec __attribute__((vector_size(LANES * 4), aligned(4), may_alias));

static CAIRN_WIDE void one_row_of_b(const struct cairn_gemm_fp8w_args *g, const float *wide, int64_t j,
				    int32_t i0, int32_t rows)
{
	int64_t blocks = (g->k + CHUNK - 1) / CHUNK;
	float total[ROWS] = { 0 };

	for (int32_t l0 = 0; l0 < g->k; l0 += CHUNK) {
		int32_t n = g->k - l0 < CHUNK ? g->k - l0 : CHUNK;
		float s = g->scale_kind ? g->b_scale[j / CHUNK * blocks + l0 / CHUNK] : 1, b[CHUNK];

		for (int32_t l = 0; l < n; l++)
			b[l] = wide[g->b[j * g->k + l0 + l]];
		for (int32_t i = 0; i < rows; i++) {
			float a[CHUNK];
			vec sum = { 0 };

			cairn_load_row(a, g->a, g->dtype, (int64_t)(i0 + i) * g->k + l0, n);
			for (int32_t l = 0; l < n; l += LANES)
				sum += *(const vec *)(a + l) * *(const vec *)(b + l);
			for (int step = LANES / 2; step; step /= 2)
				for (int v = 0; v < step; v++)
					sum[v] += sum[v + step];
			total[i] += s * sum[0];
		}
	}
	for (int32_t i = 0; i < rows; i++) {
		float v = g->scale_kind ? total[i] : total[i] * g->b_scale[j];

		if (g->bias)
			v += (float)cairn_load(g->bias, g->dtype, j);
		cairn_store(g->out, g->out_dtype, (int64_t)(i0 + i) * g->n + j, (double)v);
	}
}

int cairn_gemm_fp8w_cpu(const struct cairn_gemm_fp8w_args *g, void *stream)
{
	float wide[256];

	(void)stream;
	CAIRN_TRY(cairn_gemm_fp8w_check(g));
	for (int v = 0; v < 256; v++)
		wide[v] = cairn_e4m3_to_float((uint8_t)v);
	#pragma omp parallel for schedule(static) if ((double)g->m * g->n * g->k > 1e6)
	for (int64_t j = 0; j < g->n; j++)
		for (int32_t i0 = 0; i0 < g->m; i0 += ROWS)
			one_row_of_b(g, wide, j, i0, g->m - i0 < ROWS ? g->m - i0 : ROWS);
	return 0;
}
