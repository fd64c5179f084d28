// SPDX-License-Identifier: Apache-2.0
/*
 * rmsnorm_ref - the reference, in double, and the bound
 *
 * Let u32 = 2^-24. The residual sum: the sum of two floats of 8, 11 or 24 bits is exact in fp32, or one of
 * them is below half an ulp of the other. Either way, an fp32 addition and one narrowing give the correctly
 * rounded sum, so r is the same number in every implementation and its bound is 0.
 *
 * out = r * s * w' with s = 1 / sqrt(mean + eps), w' = weight_offset + weight:
 *   - the sum of the n squares that are not 0, all of one sign, in any order: n u32, which the root halves
 *     (adding 0 is exact). This error is 0 if all squares are multiples of 2^g and their sum is at most
 *     2^(24+g), so that every partial sum is exact, and dim is a power of two, so that even dividing each
 *     square by dim is exact;
 *   - the squares, the division by dim, eps, the root, the inverse (2 ulp allowed), w' and two products: a
 *     few u32 each, 16 together;
 *   - the rounding to dtype: half the distance between its numbers there;
 *   - r * s may be subnormal before w' enlarges it: 2^-149 |w'|.
 */
#include "primitives/rows/rmsnorm.h"

#include <math.h>

#include "primitives/base/dtype.h"
#include "primitives/base/error.h"
#include "primitives/base/rows.h"

static double round_to(int dtype, double v)
{
	uint64_t bits = 0;	/* wide enough for any dtype */

	cairn_store(&bits, dtype, 0, v);
	return cairn_load(&bits, dtype, 0);
}

/* r[i,j]; valid only while residual still holds its old value there */
static double term(const struct cairn_rmsnorm_args *a, int64_t k)
{
	double x = cairn_load(a->x, a->dtype, k);

	return a->residual ? round_to(a->dtype, x + cairn_load(a->residual, a->dtype, k)) : x;
}

/* Returns the roundings of the sum of a row's squares; 0 if it is the same in fp32 in any order. */
static int32_t roundings(const struct cairn_rmsnorm_args *a, int32_t row)
{
	int32_t terms = 0;
	int grid = 1000;
	double sum = 0;

	for (int32_t j = 0; j < a->dim; j++) {
		double square = pow(term(a, (int64_t)row * a->dim + j), 2);

		if (square != 0 && isfinite(square) && cairn_low_bit(square) < grid)
			grid = cairn_low_bit(square);
		sum += square;
		terms += square != 0;
	}
	if (!(a->dim & (a->dim - 1)) && (sum == 0 || (grid >= -140 && sum <= ldexp(1, 24 + grid))))
		return 0;
	return terms;
}

static double inverse_rms(const struct cairn_rmsnorm_args *a, int32_t row)
{
	double sum = 0;

	for (int32_t j = 0; j < a->dim; j++) {
		double r = term(a, (int64_t)row * a->dim + j);

		sum += r * r;
	}
	return 1 / sqrt(sum / a->dim + (double)a->eps);
}

int cairn_rmsnorm_exact(const struct cairn_rmsnorm_args *a, struct cairn_exact *exact)
{
	CAIRN_TRY(cairn_rmsnorm_check(a));
	#pragma omp parallel for
	for (int32_t i = 0; i < a->rows; i++) {
		double s, steps;

		if (!cairn_is_wanted(exact, (int64_t)i * a->dim, a->dim))
			continue;
		s = inverse_rms(a, i);
		steps = 16 + 0.5 * roundings(a, i);
		for (int32_t j = 0; j < a->dim; j++) {
			int64_t k = (int64_t)i * a->dim + j;
			double w = (double)a->weight_offset + cairn_load(a->weight, a->dtype, j);
			double r = term(a, k), val = r * s * w;
			double error = steps * 0x1p-24 * fabs(val) + 0x1p-149 * fabs(w);

			exact[0].val[k] = val;
			exact[0].bound[k] = isfinite(val) ?
				error + cairn_rounding(a->dtype, fabs(val) + error) : 0;
			if (a->residual) {
				exact[1].val[k] = r;
				exact[1].bound[k] = 0;
			}
		}
	}
	return 0;
}

int cairn_rmsnorm_ref(const struct cairn_rmsnorm_args *a, void *stream)
{
	(void)stream;
	CAIRN_TRY(cairn_rmsnorm_check(a));
	for (int32_t i = 0; i < a->rows; i++) {
		double s = inverse_rms(a, i);

		for (int32_t j = 0; j < a->dim; j++) {
			int64_t k = (int64_t)i * a->dim + j;
			double w = (double)a->weight_offset + cairn_load(a->weight, a->dtype, j);
			double r = term(a, k);

			if (a->residual)
				cairn_store(a->residual, a->dtype, k, r);
			cairn_store(a->out, a->dtype, k, r * s * w);
		}
	}
	return 0;
}
