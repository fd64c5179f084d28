// SPDX-License-Identifier: Apache-2.0
/*
 * gemm_cpu - gemm on the host, for running the engine without a GPU
 *
 * A task is a block of BLOCK_N rows of b. Rows of b are converted to float in chunks of CHUNK elements, which
 * stay in the L1 cache. Each chunk is multiplied with up to BLOCK_M rows of a, which are converted once per
 * task. Weights are therefore read from memory once, and m = 1 streams them. Sums are 16 wide in fp32, folded
 * in a fixed order. One thread computes an element, so the result does not depend on the number of threads.
 *
 * The loops are compiled three times (plain x86-64, AVX2, AVX-512) and chosen when the program is loaded, so
 * that one binary is fast on every machine. Results may differ between machines, but not between runs on
 * one.
 */
#include "primitives/gemm/gemm.h"

#include <string.h>

#include "primitives/base/dtype.h"
#include "primitives/base/error.h"
#include "primitives/base/wide.h"

#define CHUNK		512
#define BLOCK_M		32
#define BLOCK_N		32
#define LANES		16
#define MIN_PARALLEL	262144	/* m n k below which waking threads costs more than it saves */

typedef float vec __attribute__((vector_size(LANES * 4), aligned(4), may_alias));

static inline __attribute__((always_inline)) float half_to_float(uint16_t h)
{
	uint32_t bits = (uint32_t)(h & 0x7fff) << 13;
	float f;

	/* read as a float, the exponent is 112 too small; exponent 31 must stay infinity or NaN */
	memcpy(&f, &bits, sizeof(f));
	f *= 0x1p112f;
	memcpy(&bits, &f, sizeof(bits));
	bits |= (uint32_t)(h & 0x8000) << 16 | ((h & 0x7c00) == 0x7c00 ? 0x7f800000u : 0);
	memcpy(&f, &bits, sizeof(f));
	return f;
}

/* Converts by integer arithmetic and a multiplication only, which vectorises on every machine. */
static inline __attribute__((always_inline)) void to_float(float *dst, const void *p, int dtype,
							   int64_t first, int n)
{
	const uint16_t *h = (const uint16_t *)p + first;

	if (dtype == CAIRN_F32) {
		memcpy(dst, (const float *)p + first, n * sizeof(float));
	} else if (dtype == CAIRN_BF16) {
		for (int i = 0; i < n; i++) {
			uint32_t bits = (uint32_t)h[i] << 16;

			memcpy(&dst[i], &bits, sizeof(bits));
		}
	} else {
		for (int i = 0; i < n; i++)
			dst[i] = half_to_float(h[i]);
	}
}

/* sums[i] += a[i] . b over a chunk that is padded with zeros to LANES. rows is a constant from 1 to 4. */
static inline __attribute__((always_inline)) void dots(vec *sums, const float *a, const float *b,
						       int rows, int n)
{
	vec s[4];

	for (int i = 0; i < rows; i++)
		s[i] = sums[i];
	for (int l = 0; l < n; l += LANES)
		for (int i = 0; i < rows; i++)
			s[i] += *(const vec *)(a + i * CHUNK + l) * *(const vec *)(b + l);
	for (int i = 0; i < rows; i++)
		sums[i] = s[i];
}

static float fold(const vec *v)
{
	float sum[LANES];

	memcpy(sum, v, sizeof(sum));
	for (int step = LANES / 2; step; step /= 2)
		for (int i = 0; i < step; i++)
			sum[i] += sum[i + step];
	return sum[0];
}

static CAIRN_WIDE void store_block(const struct cairn_gemm_args *g, int64_t i0, int rows, int64_t j,
				    const vec *sums)
{
	for (int i = 0; i < rows; i++) {
		float v = fold(&sums[i]);

		if (g->bias)
			v += (float)cairn_load(g->bias, g->dtype, j);
		cairn_store(g->out, g->out_dtype, (i0 + i) * g->n + j, v);
	}
}

/* Multiplies `rows` rows of a from i0 on with `cols` rows of b from j0 on. */
static CAIRN_WIDE void gemm_block(const struct cairn_gemm_args *g, int64_t i0, int rows, int64_t j0, int cols)
{
	vec sums[BLOCK_N][BLOCK_M];
	float a[BLOCK_M * CHUNK], b[CHUNK];

	for (int j = 0; j < cols; j++)
		memset(sums[j], 0, rows * sizeof(vec));
	for (int64_t k0 = 0; k0 < g->k; k0 += CHUNK) {
		int n = g->k - k0 < CHUNK ? (int)(g->k - k0) : CHUNK,
		    padded = (n + LANES - 1) / LANES * LANES;

		for (int i = 0; i < rows; i++) {
			to_float(a + i * CHUNK, g->a, g->dtype, (i0 + i) * g->k + k0, n);
			memset(a + i * CHUNK + n, 0, (padded - n) * sizeof(float));
		}
		for (int j = 0; j < cols; j++) {
			to_float(b, g->b, g->dtype, (j0 + j) * g->k + k0, n);
			memset(b + n, 0, (padded - n) * sizeof(float));
			/* constant counts keep the sums in registers */
			for (int i = 0; i < rows; i += 4) {
				const float *r = a + i * CHUNK;

				if (rows - i >= 4)
					dots(&sums[j][i], r, b, 4, padded);
				else if (rows - i == 3)
					dots(&sums[j][i], r, b, 3, padded);
				else if (rows - i == 2)
					dots(&sums[j][i], r, b, 2, padded);
				else
					dots(&sums[j][i], r, b, 1, padded);
			}
		}
	}
	for (int j = 0; j < cols; j++)
		store_block(g, i0, rows, j0 + j, sums[j]);
}

int cairn_gemm_cpu(const struct cairn_gemm_args *g, void *stream)
{
	int64_t blocks_n, blocks_m;

	(void)stream;
	CAIRN_TRY(cairn_gemm_check(g));
	blocks_n = (g->n + BLOCK_N - 1) / BLOCK_N;
	blocks_m = (g->m + BLOCK_M - 1) / BLOCK_M;
#pragma omp parallel for schedule(static) if ((double)g->m * g->n * g->k > MIN_PARALLEL)
	for (int64_t t = 0; t < blocks_n * blocks_m; t++) {
		int64_t j0 = t / blocks_m * BLOCK_N, i0 = t % blocks_m * BLOCK_M;
		int cols = g->n - j0 < BLOCK_N ? (int)(g->n - j0) : BLOCK_N;
		int rows = g->m - i0 < BLOCK_M ? (int)(g->m - i0) : BLOCK_M;

		gemm_block(g, i0, rows, j0, cols);
	}
	return 0;
}
