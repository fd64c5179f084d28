/* SPDX-License-Identifier: Apache-2.0 */
/* gemm_walk - visits the elements of a product for its reference; for gemm, gemm_fp8w and gemm_w4 */
#ifndef CAIRN_GEMM_WALK_H
#define CAIRN_GEMM_WALK_H

#include <stdint.h>

struct cairn_exact;

struct cairn_gemm_walk {
	const char *name;		/* of the operation, for errors */
	const void *args;		/* for both functions */
	const void *a;			/* [m, k] of dtype */
	int32_t m, n, k, dtype;		/* n: columns of out */
	/* Widens row j of the weights, or the two rows of which column j of out consists, to 2 k elements. */
	void (*load_row)(const void *args, int64_t j, double *b);
	/*
	 * Sets element [i, j] from a widened row of a and what load_row() has widened. exact NULL: writes the
	 * rounded result to out.
	 */
	void (*element)(const void *args, int64_t i, int64_t j, const double *a, const double *b,
			struct cairn_exact *exact);
};

/*
 * Visits all elements if exact is NULL. Otherwise visits those that are judged: all, the ranges that exact
 * names, or above 2^31 products a fixed pseudo-random 1 in 1021. Returns 0 or -ENOMEM.
 */
int cairn_gemm_walk(const struct cairn_gemm_walk *w, struct cairn_exact *exact);

#endif
