/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nudge - changes results by less than any bound, for mutants that are wrong only in their bits
 */
#ifndef CAIRN_NUDGE_H
#define CAIRN_NUDGE_H

#include <math.h>
#include <stdint.h>

/*
 * Replaces the first of n values that is not an integer and has magnitude 0.001 to 1000 by an adjacent float.
 */
static inline void nudge(float *x, int64_t n)
{
	for (int64_t i = 0; i < n; i++)
		if (fabsf(x[i]) > 1e-3f && fabsf(x[i]) < 1e3f && x[i] != rintf(x[i])) {
			x[i] = nextafterf(x[i], 0);
			return;
		}
}

#endif
