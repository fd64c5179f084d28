// SPDX-License-Identifier: Apache-2.0
/*
 * gemm_fp8w_ref - the reference in double, and the error bound
 *
 * The bound is that of gemm_ref.c; the products, a times e4m3, are exact in fp32 here, too. A scale adds one
 * rounding for the sum of the block that a term is part of and one for the product with the scale; k + 8
 * covers these. An e4m3 value is never subnormal in f16 or bf16, so only a counts as at least the smallest
 * normal number. Above EXACT_M, rounding b s to dtype changes it by at most u |b s|, or by half the spacing
 * of dtype's subnormals, which scales of the usual size reach in f16; b s then counts as at least the
 * smallest normal number, too.
 */
#include "primitives/gemm/gemm_fp8w.h"

#include "primitives/base/dtype.h"
#include "primitives/base/error.h"
#include "primitives/base/fp8.h"

/* Returns element e of out in row-major order; *bound: largest error of the sum before the last rounding. */
static double element(const struct cairn_gemm_fp8w_args *g, int64_t e, double *bound)
{
	int rounds = g->m > CAIRN_GEMM_FP8W_EXACT_M;
	double u = cairn_dtype_roundoff(g->dtype), tiny = cairn_dtype_tiny(g->dtype), moved = 0;
	int64_t i = e / g->n, j = e % g->n, blocks = (g->k + CAIRN_FP8_BLOCK - 1) / CAIRN_FP8_BLOCK;
	double normal = g->dtype == CAIRN_F16 ? 0x1p-14 : 0x1p-126, sum = 0, mag = 0;

	for (int64_t l0 = 0; l0 < g->k; l0 += CAIRN_FP8_BLOCK) {
		int64_t end = l0 + CAIRN_FP8_BLOCK < g->k ? l0 + CAIRN_FP8_BLOCK : g->k;
		double s = (double)(g->scale_kind ?
				    g->b_scale[j / CAIRN_FP8_BLOCK * blocks + l0 / CAIRN_FP8_BLOCK] :
				    g->b_scale[j]);

		for (int64_t l = l0; l < end; l++) {
			double x = cairn_load(g->a, g->dtype, i * g->k + l);
			double y = (double)cairn_e4m3_to_float(g->b[j * g->k + l]) * s;

			sum += x * y;
			if (x == 0 || y == 0)
				continue;
			mag += fmax(fabs(x), normal) * fmax(fabs(y), rounds ? normal : 0);
			moved += fabs(x) * (u * fabs(y) + tiny);
		}
	}
	if (g->bias) {
		sum += cairn_load(g->bias, g->dtype, j);
		mag += fabs(cairn_load(g->bias, g->dtype, j));
	}
	*bound = (g->k + 8) * 0x1p-24 * mag + g->k * 0x1p-150 + (rounds ? moved : 0);
	return sum;
}

int cairn_gemm_fp8w_ref(const struct cairn_gemm_fp8w_args *g, void *stream)
{
	(void)stream;
	CAIRN_TRY(cairn_gemm_fp8w_check(g));
	#pragma omp parallel for schedule(static)
	for (int64_t e = 0; e < (int64_t)g->m * g->n; e++) {
		double bound;

		cairn_store(g->out, g->out_dtype, e, element(g, e, &bound));
	}
	return 0;
}

int cairn_gemm_fp8w_exact(const struct cairn_gemm_fp8w_args *g, struct cairn_exact *exact)
{
	int sampled = (double)g->m * g->n * g->k > 0x1p31;
	double u = cairn_dtype_roundoff(g->out_dtype), tiny = cairn_dtype_tiny(g->out_dtype);

	CAIRN_TRY(cairn_gemm_fp8w_check(g));
	#pragma omp parallel for schedule(static)
	for (int64_t e = 0; e < (int64_t)g->m * g->n; e++) {
		double bound;

		exact->val[e] = 0;
		exact->bound[e] = INFINITY;
		if (sampled && ((uint64_t)e * 0x9e3779b97f4a7c15u >> 20) % 1021)
			continue;
		exact->val[e] = element(g, e, &bound);
		exact->bound[e] = bound + u * fabs(exact->val[e]) + tiny;
	}
	return 0;
}
