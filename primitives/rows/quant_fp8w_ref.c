// SPDX-License-Identifier: Apache-2.0
/* quant_fp8w_ref - the reference; quant_fp8w.h defines every bit of the result */
#include "primitives/rows/quant_fp8w.h"

#include <math.h>

#include "primitives/base/dtype.h"
#include "primitives/base/error.h"
#include "primitives/base/fp8.h"

/*
 * Quantises rows [i0, i1), columns [j0, j1) with one scale, scale[at]; writes to exact, or to args if it is
 * NULL.
 */
static void tile(const struct cairn_quant_fp8w_args *a, int64_t at, int32_t i0, int32_t i1, int32_t j0,
		 int32_t j1, struct cairn_exact *exact)
{
	float max = 0, scale;
	int finite = 1;

	for (int64_t i = i0; i < i1; i++)
		for (int32_t j = j0; j < j1; j++) {
			float w = (float)cairn_load(a->w, a->dtype, i * a->k + j);

			finite &= isfinite(w) != 0;
			max = fmaxf(max, fabsf(w));
		}
	scale = max / (float)CAIRN_FP8_MAX;
	if (scale == 0)
		scale = 1;
	if (exact) {
		exact[1].val[at] = finite ? (double)scale : NAN;	/* undefined: not judged */
		exact[1].bound[at] = finite ? 0 : INFINITY;
	} else {
		a->scale[at] = scale;
	}
	for (int64_t i = i0; i < i1; i++)
		for (int32_t j = j0; j < j1; j++) {
			int64_t e = i * a->k + j;
			uint8_t v = cairn_float_to_e4m3((float)cairn_load(a->w, a->dtype, e) / scale);

			if (exact) {
				exact[0].val[e] = finite ? v : NAN;
				exact[0].bound[e] = finite ? 0 : INFINITY;
			} else {
				a->b[e] = v;
			}
		}
}

static int32_t lesser(int32_t a, int32_t b)
{
	return a < b ? a : b;
}

static int quantise(const struct cairn_quant_fp8w_args *a, struct cairn_exact *exact)
{
	int32_t high = a->scale_kind == CAIRN_FP8_SCALE_BLOCKS ? CAIRN_FP8_BLOCK : 1;
	int32_t wide = a->scale_kind == CAIRN_FP8_SCALE_ROWS ? a->k : CAIRN_FP8_BLOCK;
	int pieces = a->scale_kind == CAIRN_FP8_SCALE_PIECES;
	int32_t tiles_n = (a->n + high - 1) / high, tiles_k = (a->k + wide - 1) / wide;
	int64_t row = (int64_t)high * a->k;

	#pragma omp parallel for schedule(static)
	for (int32_t i = 0; i < tiles_n; i++)
		for (int32_t j = 0; j < tiles_k && (!exact || cairn_is_wanted(exact, i * row, row)); j++) {
			int64_t at = pieces ? (int64_t)j * a->n + i : (int64_t)i * tiles_k + j;

			tile(a, at, i * high, lesser(a->n, (i + 1) * high), j * wide,
			     lesser(a->k, (j + 1) * wide), exact);
		}
	return 0;
}

int cairn_quant_fp8w_ref(const struct cairn_quant_fp8w_args *a, void *stream)
{
	(void)stream;
	CAIRN_TRY(cairn_quant_fp8w_check(a));
	return quantise(a, NULL);
}

int cairn_quant_fp8w_exact(const struct cairn_quant_fp8w_args *a, struct cairn_exact *exact)
{
	CAIRN_TRY(cairn_quant_fp8w_check(a));
	return quantise(a, exact);
}
