/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gemm_sum - sums of a product with their errors, for the references of operations that go on with them
 *
 * gemm_ref.c derives the bound of a sum.
 */
#ifndef CAIRN_GEMM_SUM_H
#define CAIRN_GEMM_SUM_H

#include <math.h>

#include "primitives/base/dtype.h"
#include "primitives/base/rows.h"

struct gemm_sum {
	double val, error;
	int undefined;		/* the value is not judged */
};

/* Returns the sum of k products of numbers of dtype, and its bias, before it is rounded. */
static inline struct gemm_sum gemm_sum_of(int dtype, int32_t k, const double *a, const double *b, double bias)
{
	const double normal = dtype == CAIRN_F16 ? 0x1p-14 : 0x1p-126;
	double mag;
	struct gemm_sum s = { .val = cairn_dot_bounded(a, b, k, normal, normal, &mag) + bias };

	if (isfinite(s.val))
		s.error = (k + 2) * 0x1p-24 * (mag + fabs(bias)) + k * 0x1p-150;
	return s;
}

/* Adds the error of rounding s to dtype. If s may become infinite by that, it is undefined. */
static inline struct gemm_sum gemm_sum_rounded(int dtype, struct gemm_sum s)
{
	if (!isfinite(s.val))
		return s;
	s.undefined |= fabs(s.val) + s.error >= (dtype == CAIRN_F16 ? 65520 : 0x1.ffp127);
	s.error += cairn_dtype_roundoff(dtype) * fabs(s.val) + cairn_dtype_tiny(dtype);
	return s;
}

#endif
