/* SPDX-License-Identifier: Apache-2.0 */
/*
 * row_factor - gives all elements of a row the same rounding error, for mutants that stay within every bound
 *
 * The error is that of rounding a normaliser (a sum of exponentials) to dtype. The normaliser is derived from
 * the row's lse, so the error differs from row to row.
 */
#ifndef CAIRN_ROW_FACTOR_H
#define CAIRN_ROW_FACTOR_H

#include <math.h>
#include <stdint.h>

#include "primitives/base/dtype.h"

/*
 * Multiplies each row of `dim` elements by its normaliser and divides it by the rounded normaliser. lse: one
 * for each row.
 */
static inline void row_factor(void *x, int dtype, int64_t rows, int64_t dim, const float *lse)
{
	for (int64_t i = 0; i < rows; i++) {
		double sum = isfinite(lse[i]) ? exp((double)lse[i] - floor((double)lse[i])) : 1;
		uint64_t box = 0;

		cairn_store(&box, dtype, 0, sum);
		for (int64_t c = i * dim; c < (i + 1) * dim; c++)
			cairn_store(x, dtype, c, cairn_load(x, dtype, c) * sum / cairn_load(&box, dtype, 0));
	}
}

#endif
