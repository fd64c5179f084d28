// SPDX-License-Identifier: Apache-2.0
/*
 * gemm_ref - the definition in double
 *
 * Bound. Let s = sum_l |a b| + |bias|, where subnormal factors count as the smallest normal number, and
 * u = 2^-24. In any order of summation a product meets at most one rounding of its own (none for halves,
 * whose products fit a float) and k + 1 of the sums it is part of, bias included: the error before the last
 * rounding is at most (k + 2) u s to first order. Tensor cores truncate where they align addends, an ulp
 * instead of half of one, but add 8 products or more at a time, which leaves the bound valid. They align by
 * the exponents of the factors as they stand, and a subnormal stands at the least normal exponent: on an
 * H200, -33408 x -2^-20 + 0.0896 in f16 (exact 0.121486214) came out as 0.121486306. Hence the rule for
 * subnormals. Products below the normal range of fp32 may lose 2^-150 each on top. The last rounding adds
 * half an ulp of out_dtype.
 */
#include "primitives/gemm/gemm.h"

#include <math.h>

#include "primitives/base/dtype.h"
#include "primitives/base/error.h"

int cairn_gemm_check(const struct cairn_gemm_args *g)
{
	if (!g->out || !g->a || !g->b)
		return cairn_error(EINVAL, "gemm: null pointer");
	if (g->m < 1 || g->n < 1 || g->k < 1)
		return cairn_error(EINVAL, "gemm: m %d, n %d, k %d", g->m, g->n, g->k);
	if (g->k % 8)
		return cairn_error(EOPNOTSUPP, "gemm: k %d is not a multiple of 8", g->k);
	if (!cairn_dtype_is_float(g->dtype) || (g->out_dtype != g->dtype && g->out_dtype != CAIRN_F32))
		return cairn_error(EOPNOTSUPP, "gemm: dtype %d, out_dtype %d", g->dtype, g->out_dtype);
	return 0;
}

static double at_least_normal(double x, int dtype)
{
	double normal = dtype == CAIRN_F16 ? 0x1p-14 : 0x1p-126;

	x = fabs(x);
	return x > normal ? x : normal;
}

/*
 * Element e of out, counted through rows; *magnitude: s above. Eight sums, because the
 * compiler may not reorder.
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
