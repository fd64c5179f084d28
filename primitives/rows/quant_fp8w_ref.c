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

/* Returns the largest finite number of dtype. */
static double largest_of(int dtype)
{
	return dtype == CAIRN_F16 ? 65504 : dtype == CAIRN_BF16 ? 0x1.fep127 : 0x1.fffffep127;
}

#define ANY_CODE	1000	/* a bound that all codes keep */

/*
 * Fills exact[0] for the code of an element within bound of val, whose scale is between lo and hi. Both
 * quotients are rounded outwards; a code grows with the quotient's magnitude. Codes are integers, so half a
 * code more lets no other code pass.
 */
static void code_between(double val, double bound, float lo, float hi, struct cairn_exact *exact, int64_t e)
{
	double least = fabs(val) - bound, most = fabs(val) + bound;
	int code, last;

	if (!(least > 0)) {
		exact->val[e] = 0;
		exact->bound[e] = ANY_CODE;
		return;
	}
	code = cairn_float_to_e4m3(nextafterf((float)(least / (double)hi), 0));
	last = cairn_float_to_e4m3(nextafterf((float)(most / (double)lo), INFINITY));
	exact->val[e] = (code + last) / 2.0 + (val < 0 ? 0x80 : 0);
	exact->bound[e] = (last - code) / 2.0 + 0.49;
}

void cairn_quant_fp8w_exact_row(const struct cairn_quant_fp8w_args *a, int64_t i, const double *val,
				const double *bound, struct cairn_exact *exact)
{
	int pieces = a->scale_kind == CAIRN_FP8_SCALE_PIECES;
	int32_t wide = pieces ? CAIRN_FP8_BLOCK : a->k;

	for (int32_t j0 = 0; j0 < a->k; j0 += wide) {
		int64_t at = pieces ? (int64_t)(j0 / wide) * a->n + i : i;
		int32_t j1 = lesser(a->k, j0 + wide);
		double least = 0, most = 0;
		float lo, hi;
		int known = 1;

		for (int32_t j = j0; j < j1; j++) {
			known &= fabs(val[j]) + bound[j] <= largest_of(a->dtype);
			least = fmax(least, fabs(val[j]) - bound[j]);
			most = fmax(most, fabs(val[j]) + bound[j]);
		}
		lo = nextafterf((float)(least / CAIRN_FP8_MAX), 0);
		hi = nextafterf((float)(most / CAIRN_FP8_MAX), INFINITY);
		if (known && !(lo > 0))		/* a quotient of 0 makes the scale 1 */
			hi = fmaxf(hi, 1);
		exact[1].val[at] = known ? ((double)lo + (double)hi) / 2 : NAN;
		exact[1].bound[at] = known ? ((double)hi - (double)lo) / 2 : INFINITY;
		for (int32_t j = j0; j < j1; j++) {
			if (known && lo > 0) {
				code_between(val[j], bound[j], lo, hi, &exact[0], i * a->k + j);
				continue;
			}
			exact[0].val[i * a->k + j] = known ? 0 : NAN;
			exact[0].bound[i * a->k + j] = known ? ANY_CODE : INFINITY;
		}
	}
}
