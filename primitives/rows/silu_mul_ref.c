// SPDX-License-Identifier: Apache-2.0
/*
 * silu_mul_ref - the reference, in double, and the bound
 *
 * With u32 = 2^-24 and g, up exact: exp(-g) computed as 2^(-g log2 e) has a relative error of
 * |g| 2 u32 from its rounded argument (for g > 20 the exponential no longer matters) and a few ulp of its
 * own; sum, quotient and products add a rounding each. 16 u32 (1 + |g|) |ref| covers them. Then the
 * rounding to dtype, u |ref|, and subnormals: an intermediate one (error 2^-150) may still be multiplied
 * by a g of up to 17, beyond which the sigmoid is 1 to fp32.
 *
 * gelu is g sigmoid(z) with z = 2 y: g^2, the sum of two terms of one sign and two products err by 5 u32 of
 * z at most, which the exponent turns into 5 u32 |z| more of the result: 16 (1 + |z|) covers these as well.
 */
#include "primitives/rows/silu_mul.h"

#include <math.h>

#include "primitives/base/dtype.h"
#include "primitives/base/error.h"

int cairn_silu_mul_check(const struct cairn_silu_mul_args *a)
{
	if (!a || a->size < sizeof(*a))
		return cairn_error(EINVAL, "silu_mul: args: null or too short");
	if (a->rows < 0 || a->dim < 1)
		return cairn_error(EINVAL, "silu_mul: rows %d, dim %d: must be >= 0, >= 1", a->rows, a->dim);
	if (!cairn_dtype_is_float(a->dtype))
		return cairn_error(EOPNOTSUPP, "silu_mul: dtype: %d is not supported", a->dtype);
	if (a->dim % 8)
		return cairn_error(EOPNOTSUPP, "silu_mul: dim: %d is not a multiple of 8", a->dim);
	if (a->activation != 0 && a->activation != 1)
		return cairn_error(EOPNOTSUPP, "silu_mul: activation: %d is neither silu (0) nor gelu (1)",
				   a->activation);
	if (a->rows == 0)
		return 0;
	if (!a->out || !a->x)
		return cairn_error(EINVAL, "silu_mul: out, x: must not be null");
	if (((uintptr_t)a->out | (uintptr_t)a->x) & 15)
		return cairn_error(EINVAL, "silu_mul: out, x: must be 16-byte aligned");
	return 0;
}

/* The argument of the sigmoid. */
static double inner(const struct cairn_silu_mul_args *a, double g)
{
	return a->activation ? 2 * sqrt(2 / acos(-1)) * (g + 0.044715 * g * g * g) : g;
}

static double act(const struct cairn_silu_mul_args *a, double g)
{
	return g == -INFINITY ? 0 : g / (1 + exp(-inner(a, g)));
}

int cairn_silu_mul_exact(const struct cairn_silu_mul_args *a, struct cairn_exact *exact)
{
	const double u = cairn_dtype_roundoff(a->dtype);
	const double tiny = cairn_dtype_tiny(a->dtype) + 20 * 0x1p-150;

	CAIRN_TRY(cairn_silu_mul_check(a));
	#pragma omp parallel for
	for (int64_t i = 0; i < a->rows; i++)
		for (int64_t j = 0; j < a->dim; j++) {
			double g = cairn_load(a->x, a->dtype, 2 * i * a->dim + j);
			double up = cairn_load(a->x, a->dtype, (2 * i + 1) * a->dim + j);
			double val = act(a, g) * up;
			int lost = isinf(up) && g < (a->activation ? -9 : -80);

			/* of NaN with an infinite bound nothing is asked */
			exact->val[i * a->dim + j] = lost ? NAN : val;
			exact->bound[i * a->dim + j] = lost ? INFINITY : !isfinite(val) ? 0 :
				(16 * 0x1p-24 * (1 + fmin(fabs(inner(a, g)), 1000)) + u) * fabs(val) +
				tiny;
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
