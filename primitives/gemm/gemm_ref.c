// SPDX-License-Identifier: Apache-2.0
/*
 * gemm_ref - the reference in double, and the error bound
 *
 * Bound. Let s = sum_l |a b| + |bias|, where subnormal factors count as the smallest normal number, and u =
 * 2^-24. In any order of summation a term incurs at most one rounding as a product (none for f16 and bf16,
 * whose products fit a float) and k + 1 roundings of the sums it is part of, bias included. The error before
 * the last rounding is therefore at most (k + 2) u s to first order. Tensor cores truncate when they align
 * addends, an error of one ulp instead of half an ulp, but add 8 products or more at a time, so that the
 * bound holds. They align by the exponents of the factors, and a subnormal has the smallest normal exponent:
 * on an H200, -33408 x -2^-20 + 0.0896 in f16 (exact 0.121486214) gave 0.121486306. Hence the rule for
 * subnormals. Products below the normal range of fp32 may lose another 2^-150 each. The last rounding adds
 * half an ulp of out_dtype.
 */
#include "primitives/gemm/gemm.h"

#include <math.h>

#include "primitives/base/dtype.h"
#include "primitives/base/error.h"

static double at_least_normal(double x, int dtype)
{
	double normal = dtype == CAIRN_F16 ? 0x1p-14 : 0x1p-126;

	x = fabs(x);
	return x > normal ? x : normal;
}

/*
 * Returns element e of out in row-major order, and in *magnitude the s of the bound above. Uses eight sums,
 * because the compiler must not reorder a single one to vectorise it.
 */
static double element(const struct cairn_gemm_args *g, int64_t e, double *magnitude)
{
	int64_t i = e / g->n, j = e % g->n;
	double sum[8] = { 0 }, mag[8] = { 0 };
	float a[8], b[8];

	for (int64_t l = 0; l < g->k; l += 8) {
		cairn_load_row(a, g->a, g->dtype, i * g->k + l, 8);
		cairn_load_row(b, g->b, g->dtype, j * g->k + l, 8);
		for (int v = 0; v < 8; v++) {
			double x = a[v], y = b[v];

			sum[v] += x * y;
			mag[v] += x == 0 || y == 0 ? 0 :
				  at_least_normal(x, g->dtype) * at_least_normal(y, g->dtype);
		}
	}
	for (int v = 1; v < 8; v++) {
		sum[0] += sum[v];
		mag[0] += mag[v];
	}
	if (g->bias) {
		sum[0] += cairn_load(g->bias, g->dtype, j);
		mag[0] += fabs(cairn_load(g->bias, g->dtype, j));
	}
	*magnitude = mag[0];
	return sum[0];
}

int cairn_gemm_ref(const struct cairn_gemm_args *g, void *stream)
{
	(void)stream;
	CAIRN_TRY(cairn_gemm_check(g));
#pragma omp parallel for schedule(static)
	for (int64_t e = 0; e < (int64_t)g->m * g->n; e++) {
		double mag;

		cairn_store(g->out, g->out_dtype, e, element(g, e, &mag));
	}
	return 0;
}

int cairn_gemm_exact(const struct cairn_gemm_args *g, struct cairn_exact *exact)
{
	int sampled = (double)g->m * g->n * g->k > 0x1p31;
	double u = cairn_dtype_roundoff(g->out_dtype), tiny = cairn_dtype_tiny(g->out_dtype);

	CAIRN_TRY(cairn_gemm_check(g));
#pragma omp parallel for schedule(static)
	for (int64_t e = 0; e < (int64_t)g->m * g->n; e++) {
		double mag;

		exact->val[e] = 0;
		exact->bound[e] = INFINITY;
		if (sampled && ((uint64_t)e * 0x9e3779b97f4a7c15u >> 20) % 1021)
			continue;
		exact->val[e] = element(g, e, &mag);
		exact->bound[e] = (g->k + 2) * 0x1p-24 * mag + g->k * 0x1p-150 +
				  u * fabs(exact->val[e]) + tiny;
	}
	return 0;
}
