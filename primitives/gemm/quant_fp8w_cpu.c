// SPDX-License-Identifier: Apache-2.0
/*
 * quant_fp8w_cpu - quantises rows, or rows of blocks, in parallel; narrows by arithmetic that vectorises
 *
 * Adding 2^23 times the spacing of e4m3 at x to x rounds x to that spacing, to nearest even. The spacing is
 * a power of two, at least 2^-9, that depends on the exponent of x only.
 */
#include <math.h>
#include <string.h>

#include "primitives/base/dtype.h"
#include "primitives/base/error.h"
#include "primitives/gemm/quant_fp8w.h"

#define CHUNK	CAIRN_FP8_BLOCK

static inline uint8_t narrow(float x)
{
	uint32_t bits, exponent, code;
	float magic, a = fabsf(x);

	a = a < 448 ? a : 448;
	memcpy(&bits, &a, sizeof(bits));
	exponent = bits >> 23;
	exponent = exponent > 121 ? exponent : 121;	/* 2^-6 */
	bits = (exponent - 3 + 23) << 23;
	memcpy(&magic, &bits, sizeof(magic));
	a = a + magic;
	memcpy(&bits, &a, sizeof(bits));		/* the low bits are a multiple of the spacing */
	code = (bits & 0x7fffff) + ((exponent - 121) << 3);
	memcpy(&bits, &x, sizeof(bits));
	return (uint8_t)(code | bits >> 31 << 7);
}

static float largest(const struct cairn_quant_fp8w_args *a, int64_t first, int32_t n)
{
	float x[CHUNK], max = 0;

	cairn_load_row(x, a->w, a->dtype, first, n);
	for (int32_t j = 0; j < n; j++)
		max = fabsf(x[j]) > max ? fabsf(x[j]) : max;
	return max;
}

static float scale_of(float max)
{
	float scale = max / (float)CAIRN_FP8_MAX;

	return scale == 0 ? 1 : scale;
}

static void narrow_chunk(const struct cairn_quant_fp8w_args *a, int64_t first, int32_t n, float scale)
{
	float x[CHUNK];

	cairn_load_row(x, a->w, a->dtype, first, n);
	for (int32_t j = 0; j < n; j++)
		a->b[first + j] = narrow(x[j] / scale);
}

static int32_t chunk_at(const struct cairn_quant_fp8w_args *a, int32_t j)
{
	return a->k - j < CHUNK ? a->k - j : CHUNK;
}

int cairn_quant_fp8w_cpu(const struct cairn_quant_fp8w_args *a, void *stream)
{
	int32_t high, tiles;

	(void)stream;
	CAIRN_TRY(cairn_quant_fp8w_check(a));
	high = a->scale_kind ? CAIRN_FP8_BLOCK : 1;
	tiles = (a->n + high - 1) / high;
	#pragma omp parallel for schedule(static) if ((int64_t)a->n * a->k > 1 << 16)
	for (int32_t t = 0; t < tiles; t++) {
		int64_t i0 = (int64_t)t * high, i1 = i0 + high < a->n ? i0 + high : a->n;
		int64_t blocks = (a->k + CHUNK - 1) / CHUNK;
		float scale = 1, max = 0;

		for (int32_t j = 0; j < a->k; j += CHUNK) {
			for (int64_t i = i0; i < i1; i++)
				max = fmaxf(max, largest(a, i * a->k + j, chunk_at(a, j)));
			if (!a->scale_kind)
				continue;
			scale = a->scale[t * blocks + j / CHUNK] = scale_of(max);
			max = 0;
			for (int64_t i = i0; i < i1; i++)
				narrow_chunk(a, i * a->k + j, chunk_at(a, j), scale);
		}
		if (a->scale_kind)
			continue;
		a->scale[t] = scale = scale_of(max);
		for (int32_t j = 0; j < a->k; j += CHUNK)
			narrow_chunk(a, i0 * a->k + j, chunk_at(a, j), scale);
	}
	return 0;
}
