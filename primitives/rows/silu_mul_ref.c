// SPDX-License-Identifier: Apache-2.0
/*
 * silu_mul_ref - the reference, in double, and the bound
 *
 * With u32 = 2^-24 and g, up exact: exp(-g) computed as 2^(-g log2 e) has a relative error of |g| 2 u32 from
 * its rounded argument (for g > 20 the exponential no longer matters) and a few ulp of its own; the sum, the
 * quotient and the products add one rounding each. 16 u32 (1 + |g|) |ref| covers all of these. For g > 0, the
 * error of exp(-g) counts only in proportion to the share of exp(-g) in 1 + exp(-g), so g exp(-g) < 1 takes
 * the place of |g|. The rounding to dtype adds half the distance between its numbers there. A subnormal
 * intermediate value (error 2^-150) may still be multiplied by a g of up to 17, beyond which the sigmoid is 1
 * in fp32.
 *
 * gelu is g sigmoid(z) with z = 2 y. The relative error of z is at most 5 u32 (g^2, the sum of two terms of
 * one sign, two products), which the exponential turns into a relative error of 5 u32 |z|: 16 (1 + |z|)
 * covers it.
 */
#include "primitives/rows/silu_mul.h"

#include <math.h>

#include "primitives/base/dtype.h"
#include "primitives/base/error.h"
#include "primitives/base/rows.h"

/* The argument z of the sigmoid. */
static double inner(const struct cairn_silu_mul_args *a, double g)
{
	return a->activation ? 2 * sqrt(2 / acos(-1)) * (g + 0.044715 * g * g * g) : g;
}

static double act(const struct cairn_silu_mul_args *a, double g)
{
	return g == -INFINITY ? 0 : g / (1 + exp(-inner(a, g)));
}

/* Returns the factor by which the sigmoid enlarges the error of its argument. */
static double steepness(const struct cairn_silu_mul_args *a, double g)
{
	double z = inner(a, g);

	return z < 0 ? fmin(-z, 1000) : fmin(z, 1);
}

int cairn_silu_mul_exact(const struct cairn_silu_mul_args *a, struct cairn_exact *exact)
{
	const double tiny = 20 * 0x1p-150;

	CAIRN_TRY(cairn_silu_mul_check(a));
	#pragma omp parallel for
	for (int64_t i = 0; i < a->rows; i++)
		for (int64_t j = 0; cairn_is_wanted(exact, i * a->dim, a->dim) && j < a->dim; j++) {
			double g = cairn_load(a->x, a->dtype, 2 * i * a->dim + j);
			double up = cairn_load(a->x, a->dtype, (2 * i + 1) * a->dim + j);
			double val = act(a, g) * up;
			double error = 16 * 0x1p-24 * (1 + steepness(a, g)) * fabs(val) + tiny;
			int lost = isinf(up) && g < (a->activation ? -9 : -80);

			/* NaN with an infinite bound: any result passes */
			exact->val[i * a->dim + j] = lost ? NAN : val;
			exact->bound[i * a->dim + j] = lost ? INFINITY : !isfinite(val) ? 0 :
				error + cairn_rounding(a->dtype, fabs(val) + error);
		}
	return 0;
}

int cairn_silu_mul_ref(const struct cairn_silu_mul_args *a, void *stream)
{
	(void)stream;
	CAIRN_TRY(cairn_silu_mul_check(a));
	for (int64_t i = 0; i < a->rows; i++)
		for (int64_t j = 0; j < a->dim; j++) {
			double g = cairn_load(a->x, a->dtype, 2 * i * a->dim + j);
			double up = cairn_load(a->x, a->dtype, (2 * i + 1) * a->dim + j);

			cairn_store(a->out, a->dtype, i * a->dim + j, act(a, g) * up);
		}
	return 0;
}
