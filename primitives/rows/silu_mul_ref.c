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
 *
 * q is exact for the out of one implementation, so its bounds are those of out: cairn_quant_fp8w_exact_row().
 */
#include "primitives/rows/silu_mul.h"

#include <math.h>
#include <stdlib.h>

#include "primitives/base/args.h"
#include "primitives/base/dtype.h"
#include "primitives/base/error.h"
#include "primitives/base/rows.h"
#include "primitives/rows/quant_fp8w.h"

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

static struct cairn_quant_fp8w_args quant_of(const struct cairn_silu_mul_args *a, const void *out)
{
	return (struct cairn_quant_fp8w_args){
		.size = sizeof(struct cairn_quant_fp8w_args), .b = a->q, .scale = a->q_scale, .w = out,
		.n = a->rows, .k = a->dim, .dtype = a->dtype, .scale_kind = a->q_kind,
	};
}

/* Computes row i of out with its bounds, and fills the exacts: of out, or NULL, and of q. */
static void exact_row(const struct cairn_silu_mul_args *a, int64_t i, double *val, double *bound,
		      struct cairn_exact *out, struct cairn_exact *q)
{
	const struct cairn_quant_fp8w_args quant = quant_of(a, NULL);
	const double tiny = 20 * 0x1p-150;

	for (int64_t j = 0; j < a->dim; j++) {
		double g = cairn_load(a->x, a->dtype, 2 * i * a->dim + j);
		double up = cairn_load(a->x, a->dtype, (2 * i + 1) * a->dim + j);
		double exact = act(a, g) * up;
		double error = 16 * 0x1p-24 * (1 + steepness(a, g)) * fabs(exact) + tiny;
		int lost = isinf(up) && g < (a->activation ? -9 : -80);

		/* NaN with an infinite bound: any result passes */
		val[j] = lost ? NAN : exact;
		bound[j] = lost ? INFINITY : !isfinite(exact) ? 0 :
			error + cairn_rounding(a->dtype, fabs(exact) + error);
		if (out) {
			out->val[i * a->dim + j] = val[j];
			out->bound[i * a->dim + j] = bound[j];
		}
	}
	if (a->q)
		cairn_quant_fp8w_exact_row(&quant, i, val, bound, q);
}

int cairn_silu_mul_exact(const struct cairn_silu_mul_args *args, struct cairn_exact *exact)
{
	struct cairn_silu_mul_args a;
	int failed = 0;

	CAIRN_TRY(cairn_silu_mul_check(args));
	cairn_copy_args(&a, args, sizeof(a));
	#pragma omp parallel for reduction(|:failed)
	for (int64_t i = 0; i < a.rows; i++) {
		double *row;

		if (!cairn_is_wanted(exact, i * a.dim, a.dim))
			continue;
		row = malloc(2 * (size_t)a.dim * sizeof(*row));
		if (row)
			exact_row(&a, i, row, row + a.dim, a.out ? exact : NULL, exact + (a.out != NULL));
		failed |= !row;
		free(row);
	}
	return failed ? cairn_error(ENOMEM, "silu_mul: no memory") : 0;
}

int cairn_silu_mul_ref(const struct cairn_silu_mul_args *args, void *stream)
{
	struct cairn_quant_fp8w_args quant;
	struct cairn_silu_mul_args a;
	void *out;
	int ret;

	CAIRN_TRY(cairn_silu_mul_check(args));
	cairn_copy_args(&a, args, sizeof(a));
	out = a.out ? a.out : calloc((size_t)a.rows + 1, (size_t)a.dim * cairn_dtype_bytes(a.dtype));
	if (!out)
		return cairn_error(ENOMEM, "silu_mul: no memory");
	for (int64_t i = 0; i < a.rows; i++)
		for (int64_t j = 0; j < a.dim; j++) {
			double g = cairn_load(a.x, a.dtype, 2 * i * a.dim + j);
			double up = cairn_load(a.x, a.dtype, (2 * i + 1) * a.dim + j);

			cairn_store(out, a.dtype, i * a.dim + j, act(&a, g) * up);
		}
	quant = quant_of(&a, out);
	ret = a.q ? cairn_quant_fp8w_ref(&quant, stream) : 0;
	if (!a.out)
		free(out);
	return ret;
}
