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
 *
 * Other libraries normalise the sum before it is rounded (cairn_rmsnorm_peer_exact()): each r then differs by
 * one rounding to dtype, and s by the mean of these errors, which is at most one more.
 *
 * q is exact for the out of one implementation, so its bounds are those of out: cairn_quant_fp8w_exact_row().
 */
#include "primitives/rows/rmsnorm.h"

#include <math.h>
#include <stdlib.h>

#include "primitives/base/args.h"
#include "primitives/base/dtype.h"
#include "primitives/base/error.h"
#include "primitives/base/rows.h"
#include "primitives/rows/quant_fp8w.h"

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

static struct cairn_quant_fp8w_args quant_of(const struct cairn_rmsnorm_args *a, const void *out)
{
	return (struct cairn_quant_fp8w_args){
		.size = sizeof(struct cairn_quant_fp8w_args), .b = a->q, .scale = a->q_scale, .w = out,
		.n = a->rows, .k = a->dim, .dtype = a->dtype, .scale_kind = a->q_kind,
	};
}

/* Computes row i of out with its bounds, and fills the exacts: of out, residual, or NULL, and of q. */
static void exact_row(const struct cairn_rmsnorm_args *a, int32_t i, double *val, double *bound,
		      struct cairn_exact *out, struct cairn_exact *residual, struct cairn_exact *q)
{
	const struct cairn_quant_fp8w_args quant = quant_of(a, NULL);
	double s = inverse_rms(a, i), steps = 16 + 0.5 * roundings(a, i);

	for (int32_t j = 0; j < a->dim; j++) {
		int64_t k = (int64_t)i * a->dim + j;
		double w = (double)a->weight_offset + cairn_load(a->weight, a->dtype, j);
		double r = term(a, k), error;

		val[j] = r * s * w;
		error = steps * 0x1p-24 * fabs(val[j]) + 0x1p-149 * fabs(w);
		bound[j] = isfinite(val[j]) ? error + cairn_rounding(a->dtype, fabs(val[j]) + error) : 0;
		if (out) {
			out->val[k] = val[j];
			out->bound[k] = bound[j];
		}
		if (residual) {
			residual->val[k] = r;
			residual->bound[k] = 0;
		}
	}
	if (a->q)
		cairn_quant_fp8w_exact_row(&quant, i, val, bound, q);
}

int cairn_rmsnorm_exact(const struct cairn_rmsnorm_args *args, struct cairn_exact *exact)
{
	struct cairn_exact *out, *residual, *q = exact;
	struct cairn_rmsnorm_args a;
	int failed = 0;

	CAIRN_TRY(cairn_rmsnorm_check(args));
	cairn_copy_args(&a, args, sizeof(a));
	out = a.out ? q++ : NULL;
	residual = a.residual ? q++ : NULL;
	#pragma omp parallel for reduction(|:failed)
	for (int32_t i = 0; i < a.rows; i++) {
		double *row;

		if (!cairn_is_wanted(exact, (int64_t)i * a.dim, a.dim))
			continue;
		row = malloc(2 * (size_t)a.dim * sizeof(*row));
		if (row)
			exact_row(&a, i, row, row + a.dim, out, residual, q);
		failed |= !row;
		free(row);
	}
	return failed ? cairn_error(ENOMEM, "rmsnorm: no memory") : 0;
}

int cairn_rmsnorm_peer_exact(const struct cairn_rmsnorm_args *args, struct cairn_exact *exact)
{
	/* half the distance of two numbers of dtype, relative to them: the largest relative rounding error */
	const double u = args->dtype == CAIRN_BF16 ? 0x1p-8 : args->dtype == CAIRN_F16 ? 0x1p-11 : 0x1p-24;

	CAIRN_TRY(cairn_rmsnorm_exact(args, exact));
	for (int64_t k = 0; args->residual && args->out && k < (int64_t)args->rows * args->dim; k++)
		if (cairn_is_wanted(exact, k, 1))
			exact->bound[k] += 2.1 * u * fabs(exact->val[k]);
	return 0;
}

int cairn_rmsnorm_ref(const struct cairn_rmsnorm_args *args, void *stream)
{
	struct cairn_quant_fp8w_args quant;
	struct cairn_rmsnorm_args a;
	void *out;
	int ret;

	CAIRN_TRY(cairn_rmsnorm_check(args));
	cairn_copy_args(&a, args, sizeof(a));
	out = a.out ? a.out : calloc((size_t)a.rows + 1, (size_t)a.dim * cairn_dtype_bytes(a.dtype));
	if (!out)
		return cairn_error(ENOMEM, "rmsnorm: no memory");
	for (int32_t i = 0; i < a.rows; i++) {
		double s = inverse_rms(&a, i);

		for (int32_t j = 0; j < a.dim; j++) {
			int64_t k = (int64_t)i * a.dim + j;
			double w = (double)a.weight_offset + cairn_load(a.weight, a.dtype, j);
			double r = term(&a, k);

			if (a.residual)
				cairn_store(a.residual, a.dtype, k, r);
			cairn_store(out, a.dtype, k, r * s * w);
		}
	}
	quant = quant_of(&a, out);
	ret = a.q ? cairn_quant_fp8w_ref(&quant, stream) : 0;
	if (!a.out)
		free(out);
	return ret;
}
