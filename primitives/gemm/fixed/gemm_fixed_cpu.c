// SPDX-License-Identifier: Apache-2.0
/*
 * gemm_fixed_cpu - blocks of 32 x 32 results, whose sums gemm_cpu computes in fp32
 *
 * An element's sum in gemm_cpu depends neither on its block nor on the number of rows, so that the blocks
 * keep the promise of gemm_fixed.h. silu_mul_cpu applies the activation to the sums.
 */
#include "primitives/gemm/fixed/gemm_fixed.h"

#include <string.h>

#include "primitives/base/dtype.h"
#include "primitives/base/error.h"
#include "primitives/gemm/gemm.h"
#include "primitives/rows/silu_mul.h"

#define BLOCK		32
#define MIN_PARALLEL	262144	/* m n k below which waking threads costs more than it saves */

/* Computes the sums of `rows` rows of a from i on with `cols` rows of b from j on, packed. */
static int sums_of(const struct cairn_gemm_fixed_args *g, int64_t i, int rows, int64_t j, int cols,
		   float *sums)
{
	const int64_t bytes = (int64_t)cairn_dtype_bytes(g->dtype), step = cairn_gemm_fixed_a_stride(g);
	const int at_once = step == g->k ? rows : 1;	/* gemm has no gaps between rows */
	struct cairn_gemm_args part = {
		.size = sizeof(part), .m = at_once, .n = cols, .k = g->k, .dtype = g->dtype,
		.out_dtype = CAIRN_F32, .b = (const char *)g->b + j * g->k * bytes,
		.bias = g->bias ? (const char *)g->bias + j * bytes : NULL,
	};

	for (int r = 0; r < rows; r += at_once) {
		part.a = (const char *)g->a + (i + r) * step * bytes;
		part.out = sums + r * cols;
		CAIRN_TRY(cairn_gemm_cpu(&part, NULL));
	}
	return 0;
}

/* Applies silu_mul to packed sums; the results are in gate. */
static int gated(float *gate, const float *up, int rows, int cols)
{
	float x[BLOCK][2][BLOCK] = { { { 0 } } }, out[BLOCK][BLOCK];
	const struct cairn_silu_mul_args act = {
		.size = sizeof(act), .out = out, .x = x, .rows = rows, .dim = BLOCK, .dtype = CAIRN_F32,
	};

	for (int r = 0; r < rows; r++) {
		memcpy(x[r][0], gate + r * cols, (size_t)cols * sizeof(float));
		memcpy(x[r][1], up + r * cols, (size_t)cols * sizeof(float));
	}
	CAIRN_TRY(cairn_silu_mul_cpu(&act, NULL));
	for (int r = 0; r < rows; r++)
		memcpy(gate + r * cols, out[r], (size_t)cols * sizeof(float));
	return 0;
}

static int block(const struct cairn_gemm_fixed_args *g, int64_t i, int64_t j)
{
	const int32_t width = cairn_gemm_fixed_width(g);
	const int rows = g->m - i < BLOCK ? (int)(g->m - i) : BLOCK;
	const int cols = width - j < BLOCK ? (int)(width - j) : BLOCK;
	float sums[BLOCK * BLOCK], up[BLOCK * BLOCK];

	CAIRN_TRY(sums_of(g, i, rows, j, cols, sums));
	if (g->epilogue == CAIRN_GEMM_FIXED_SILU_MUL) {
		CAIRN_TRY(sums_of(g, i, rows, width + j, cols, up));
		CAIRN_TRY(gated(sums, up, rows, cols));
	}
	for (int r = 0; r < rows; r++)
		cairn_store_row(g->out, g->out_dtype, (i + r) * cairn_gemm_fixed_out_stride(g) + j,
				sums + r * cols, cols);
	return 0;
}

int cairn_gemm_fixed_cpu(const struct cairn_gemm_fixed_args *g, void *stream)
{
	int64_t blocks_n, blocks_m;
	int ret = 0;

	(void)stream;
	CAIRN_TRY(cairn_gemm_fixed_check(g));
	blocks_n = (cairn_gemm_fixed_width(g) + BLOCK - 1) / BLOCK;
	blocks_m = ((int64_t)g->m + BLOCK - 1) / BLOCK;
#pragma omp parallel for schedule(static) reduction(min:ret) if ((double)g->m * g->n * g->k > MIN_PARALLEL)
	for (int64_t t = 0; t < blocks_n * blocks_m; t++) {
		int one = block(g, t % blocks_m * BLOCK, t / blocks_m * BLOCK);

		ret = one < ret ? one : ret;
	}
	return ret;
}
