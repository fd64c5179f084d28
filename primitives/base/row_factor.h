/* SPDX-License-Identifier: Apache-2.0 */
/*
 * row_factor - lets all elements of a row share a rounding error, for mutants that stay within every bound
 *
 * The error is that of a normaliser which is rounded to dtype. Its bits come from the row's lse, so that it
 * differs from row to row.
 */
#ifndef CAIRN_ROW_FACTOR_H
#define CAIRN_ROW_FACTOR_H

#include <math.h>
#include <stdint.h>

#include "primitives/base/dtype.h"

/*
 * Multiplies each row of `dim` elements, which has its lse, by the relative error of its rounded
 * normaliser.
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
