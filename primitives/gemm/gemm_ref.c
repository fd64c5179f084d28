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

#include "primitives/base/dtype.h"
#include "primitives/base/error.h"
#include "primitives/base/rows.h"
#include "primitives/gemm/gemm_walk.h"

static void load_row(const void *args, int64_t j, double *b)
{
	const struct cairn_gemm_args *g = args;

	cairn_widen(b, g->b, g->dtype, j * g->k, g->k);
}

/* Sets element [i, j] from rows a of g->a and b of g->b. exact NULL: writes the rounded result to out. */
static void element(const void *args, int64_t i, int64_t j, const double *a, const double *b,
		    struct cairn_exact *exact)
{
	const struct cairn_gemm_args *g = args;
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

static int walk(const struct cairn_gemm_args *g, struct cairn_exact *exact)
{
	const struct cairn_gemm_walk w = { "gemm", g, g->a, g->m, g->n, g->k, g->dtype, load_row, element };

	return cairn_gemm_walk(&w, exact);
}

int cairn_gemm_ref(const struct cairn_gemm_args *g, void *stream)
{
	(void)stream;
	CAIRN_TRY(cairn_gemm_check(g));
	return walk(g, NULL);
}

int cairn_gemm_exact(const struct cairn_gemm_args *g, struct cairn_exact *exact)
{
	CAIRN_TRY(cairn_gemm_check(g));
	return walk(g, exact);
}
