// SPDX-License-Identifier: Apache-2.0
/*
 * gemm_ref - the reference in double, and the error bound
 *
 * Bound. Let s = sum_l |a b| + |bias|, where subnormal factors count as the smallest normal number, and u =
 * 2^-24. In any order of summation a term incurs at most one rounding as a product (none for f16 and bf16,
 * whose products fit a float) and k + 1 roundings of the sums it is part of, bias included. The error before
 * the last rounding is therefore at most (k + 2) u s to first order. Tensor cores truncate when they align
 * addends, which is an error of one ulp instead of half an ulp, but they add 8 products or more at a time, so
 * the bound holds. They align by the exponents of the factors, and a subnormal has the smallest normal
 * exponent: on an H200, -33408 x -2^-20 + 0.0896 in f16 (exact 0.121486214) gave 0.121486306. Hence the rule
 * for subnormals. Products below the normal range of fp32 may lose another 2^-150 each. The last rounding
 * adds half an ulp of out_dtype.
 */
#include "primitives/gemm/gemm.h"

#include <math.h>
#include <stdlib.h>

#include "primitives/base/dtype.h"
#include "primitives/base/error.h"
#include "primitives/base/rows.h"

#define BLOCK	32		/* rows of a by which a converted row of b is multiplied */

/* Above 2^31 products only a sample of the elements is judged. */
static int left_out(const struct cairn_gemm_args *g, int64_t e)
{
	return (double)g->m * g->n * g->k > 0x1p31 && ((uint64_t)e * 0x9e3779b97f4a7c15u >> 20) % 1021;
}

/* Sets element [i, j] from rows a of g->a and b of g->b. exact NULL: writes the rounded result to out. */
static void element(const struct cairn_gemm_args *g, int64_t i, int64_t j, const double *a, const double *b,
		    struct cairn_exact *exact)
{
	double normal = g->dtype == CAIRN_F16 ? 0x1p-14 : 0x1p-126, mag;
	double bias = g->bias ? cairn_load(g->bias, g->dtype, j) : 0;
	double u = cairn_dtype_roundoff(g->out_dtype), tiny = cairn_dtype_tiny(g->out_dtype);
	int64_t e = i * g->n + j;

	if (!exact) {
		cairn_store(g->out, g->out_dtype, e, cairn_dot(a, b, g->k) + bias);
		return;
	}
	exact->val[e] = cairn_dot_bounded(a, b, g->k, normal, normal, &mag) + bias;
	exact->bound[e] = !isfinite(exact->val[e]) ? 0 :
			  (g->k + 2) * 0x1p-24 * (mag + fabs(bias)) + g->k * 0x1p-150 +
			  u * fabs(exact->val[e]) + tiny;
}

/* Sets the elements of row block nth and column j. b: room for a row */
static void block(const struct cairn_gemm_args *g, int64_t nth, int64_t j, const double *a, double *b,
		  struct cairn_exact *exact)
{
	int64_t end = (nth + 1) * BLOCK < g->m ? (nth + 1) * BLOCK : g->m;
	int loaded = 0;

	for (int64_t i = nth * BLOCK; i < end; i++) {
		if (exact && left_out(g, i * g->n + j)) {
			exact->val[i * g->n + j] = 0;
			exact->bound[i * g->n + j] = INFINITY;
			continue;
		}
		if (!loaded++)
			cairn_widen(b, g->b, g->dtype, j * g->k, g->k);
		element(g, i, j, a + i * g->k, b, exact);
	}
}

static int all_elements(const struct cairn_gemm_args *g, struct cairn_exact *exact)
{
	int64_t blocks = ((int64_t)g->m + BLOCK - 1) / BLOCK;
	double *a = malloc(sizeof(*a) * ((size_t)g->m * (size_t)g->k + 1));
	int no_memory = !a;

	#pragma omp parallel reduction(|:no_memory) if ((int64_t)g->m * g->n * g->k > 1 << 17)
	{
		double *b = malloc(sizeof(*b) * ((size_t)g->k + 1));

		no_memory |= !b;
		#pragma omp for
		for (int64_t i = 0; i < g->m; i++)
			if (a)
				cairn_widen(a + i * g->k, g->a, g->dtype, i * g->k, g->k);
		#pragma omp for collapse(2)
		for (int64_t nth = 0; nth < blocks; nth++)
			for (int64_t j = 0; j < g->n; j++)
				if (a && b)
					block(g, nth, j, a, b, exact);
		free(b);
	}
	free(a);
	return no_memory ? cairn_error(ENOMEM, "gemm: no memory for %d rows of %d", g->m, g->k) : 0;
}

/* Sets only the elements that are judged. */
static int wanted_elements(const struct cairn_gemm_args *g, struct cairn_exact *exact)
{
	int no_memory = 0;

	#pragma omp parallel reduction(|:no_memory)
	{
		double *a = malloc(sizeof(*a) * 2 * (size_t)g->k);

		no_memory |= !a;
		for (int r = 0; a && r < exact->num_wanted; r++) {
			const struct cairn_range *w = &exact->wanted[r];

			#pragma omp for
			for (int64_t e = w->first; e < w->first + w->count; e++) {
				cairn_widen(a, g->a, g->dtype, e / g->n * g->k, g->k);
				cairn_widen(a + g->k, g->b, g->dtype, e % g->n * g->k, g->k);
				element(g, e / g->n, e % g->n, a, a + g->k, exact);
			}
		}
		free(a);
	}
	return no_memory ? cairn_error(ENOMEM, "gemm: no memory for rows of %d", g->k) : 0;
}

int cairn_gemm_ref(const struct cairn_gemm_args *g, void *stream)
{
	(void)stream;
	CAIRN_TRY(cairn_gemm_check(g));
	return all_elements(g, NULL);
}

int cairn_gemm_exact(const struct cairn_gemm_args *g, struct cairn_exact *exact)
{
	CAIRN_TRY(cairn_gemm_check(g));
	return exact->num_wanted ? wanted_elements(g, exact) : all_elements(g, exact);
}
