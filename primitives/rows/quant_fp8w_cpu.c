// SPDX-License-Identifier: Apache-2.0
/* quant_fp8w_cpu - quantises rows, or rows of blocks, in parallel */
#include <math.h>

#include "primitives/base/dtype.h"
#include "primitives/base/error.h"
#include "primitives/base/fp8.h"
#include "primitives/base/wide.h"
#include "primitives/rows/quant_fp8w.h"

#define CHUNK	CAIRN_FP8_BLOCK
#define LANES	32

CAIRN_WIDE static float largest(const struct cairn_quant_fp8w_args *a, int64_t first, int32_t n)
{
	float x[CHUNK] = { 0 }, part[LANES] = { 0 }, max = 0;

	cairn_load_row(x, a->w, a->dtype, first, n);
	/* the lanes let compilers vectorise without reordering */
	for (int32_t j = 0; j < CHUNK; j += LANES)
		for (int k = 0; k < LANES; k++)
			part[k] = fabsf(x[j + k]) > part[k] ? fabsf(x[j + k]) : part[k];
	for (int k = 0; k < LANES; k++)
		max = part[k] > max ? part[k] : max;
	return max;
}

static float scale_of(float max)
{
	float scale = max / (float)CAIRN_FP8_MAX;

	return scale == 0 ? 1 : scale;
}

CAIRN_WIDE static void narrow_chunk(const struct cairn_quant_fp8w_args *a, int64_t first, int32_t n,
				    float scale)
{
	float x[CHUNK];

	cairn_load_row(x, a->w, a->dtype, first, n);
	for (int32_t j = 0; j < n; j++)
		a->b[first + j] = cairn_narrow_e4m3(x[j] / scale);
}

/* Returns where the scale of chunk `chunk` of row, or of row of blocks, t lies. */
static float *scale_at(const struct cairn_quant_fp8w_args *a, int64_t t, int64_t chunk)
{
	int64_t blocks = (a->k + CHUNK - 1) / CHUNK;

	return a->scale + (a->scale_kind == CAIRN_FP8_SCALE_PIECES ? chunk * a->n + t : t * blocks + chunk);
}

static int32_t chunk_at(const struct cairn_quant_fp8w_args *a, int32_t j)
{
	return a->k - j < CHUNK ? a->k - j : CHUNK;
}

/* Quantises row t or, with blocks, row t of blocks. */
static void quantise(const struct cairn_quant_fp8w_args *a, int64_t t)
{
	int64_t high = a->scale_kind == CAIRN_FP8_SCALE_BLOCKS ? CAIRN_FP8_BLOCK : 1;
	int64_t i0 = t * high, i1 = i0 + high < a->n ? i0 + high : a->n;
	float scale = 1, max = 0;

	for (int32_t j = 0; j < a->k; j += CHUNK) {
		for (int64_t i = i0; i < i1; i++)
			max = fmaxf(max, largest(a, i * a->k + j, chunk_at(a, j)));
		if (!a->scale_kind)
			continue;
		*scale_at(a, t, j / CHUNK) = scale = scale_of(max);
		max = 0;
		for (int64_t i = i0; i < i1; i++)
			narrow_chunk(a, i * a->k + j, chunk_at(a, j), scale);
	}
	if (a->scale_kind)
		return;
	a->scale[t] = scale = scale_of(max);
	for (int32_t j = 0; j < a->k; j += CHUNK)
		narrow_chunk(a, i0 * a->k + j, chunk_at(a, j), scale);
}

int cairn_quant_fp8w_cpu(const struct cairn_quant_fp8w_args *a, void *stream)
{
	int32_t high, tiles;

	(void)stream;
	CAIRN_TRY(cairn_quant_fp8w_check(a));
	high = a->scale_kind == CAIRN_FP8_SCALE_BLOCKS ? CAIRN_FP8_BLOCK : 1;
	tiles = (a->n + high - 1) / high;
	#pragma omp parallel for schedule(static) if ((int64_t)a->n * a->k > 1 << 16)
	for (int32_t t = 0; t < tiles; t++)
		quantise(a, t);
	return 0;
}

void cairn_quant_fp8w_cpu_row(const struct cairn_quant_fp8w_args *args, int64_t i)
{
	struct cairn_quant_fp8w_args row = *args;

	row.b += i * row.k;
	row.scale += i;		/* n still says how far the scales of its pieces are apart */
	quantise(&row, 0);
}
