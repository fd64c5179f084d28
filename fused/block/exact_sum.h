/* SPDX-License-Identifier: Apache-2.0 */
/*
 * exact_sum - sums that fp32 computes without error, in any order; for the references of fused operations
 *
 * If all terms are multiples of 2^g and their magnitudes add up to at most 2^(24+g), every partial sum is a
 * multiple of 2^g with at most 24 bits.
 */
#ifndef CAIRN_EXACT_SUM_H
#define CAIRN_EXACT_SUM_H

#include <math.h>
#include <stdint.h>

#include "primitives/base/dtype.h"

/* Returns the smallest 2^g with size < 2^(24+g), or 0 if size is 0. size: sum of the terms' magnitudes. */
static inline double exact_sum_step(double size)
{
	return size > 0 ? ldexp(1, ilogb(size) + 1 - 24) : 0;
}

/* step: from exact_sum_step() */
static inline int is_multiple(double term, double step)
{
	double n = step > 0 ? term / step : 0;

	return n == rint(n) && (step >= 0x1p-149 || step == 0);
}

/* Returns whether sum_j x[j] w[at + j] of k products is exact; size: sum of their magnitudes, or more. */
static inline int is_exact_dot(const double *x, const void *w, int64_t at, int64_t k, int dtype, double size)
{
	double step = exact_sum_step(size);
	float row[32];

	for (int64_t j = 0; j < k; j += 32) {
		int n = k - j < 32 ? (int)(k - j) : 32;

		cairn_load_row(row, w, dtype, at + j, n);
		for (int i = 0; i < n; i++)
			if (!is_multiple(x[j + i] * (double)row[i], step))
				return 0;
	}
	return 1;
}

#endif
