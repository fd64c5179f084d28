// SPDX-License-Identifier: Apache-2.0
/*
 * gemm_fp8w_ref - the definition in double
 *
 * Bound: that of gemm_ref.c, whose products are here a times e4m3, exact in fp32 as well; a scale adds one
 * rounding of a sum for each block that a term is part of, one altogether, and one for its product: k + 8
 * leaves room. An e4m3 value is never subnormal in f16 or bf16, only a counts as at least normal. Above
 * EXACT_M rounding b s to dtype moves it by u |b s|, or by half the spacing of dtype's subnormals, which a
 * scale of the usual size reaches in f16; and then b s counts as at least normal, too.
 */
#include "primitives/gemm/gemm_fp8w.h"

#include "primitives/base/dtype.h"
#include "primitives/base/error.h"
#include "primitives/base/fp8.h"

int cairn_gemm_fp8w_check(const struct cairn_gemm_fp8w_args *g)
{
	if (!g || g->size < sizeof(*g))
		return cairn_error(EINVAL, "gemm_fp8w: args: null or too short");
	if (g->m < 1 || g->n < 1 || g->k < 1)
		return cairn_error(EINVAL, "gemm_fp8w: m %d, n %d, k %d: must be >= 1", g->m, g->n, g->k);
	if (g->scale_kind != CAIRN_FP8_SCALE_ROWS && g->scale_kind != CAIRN_FP8_SCALE_BLOCKS)
		return cairn_error(EINVAL, "gemm_fp8w: scale_kind: %d is neither 0 nor 1", g->scale_kind);
	if (g->k % 16)
		return cairn_error(EOPNOTSUPP, "gemm_fp8w: k %d is not a multiple of 16", g->k);
	if ((g->dtype != CAIRN_BF16 && g->dtype != CAIRN_F16) ||
	    (g->out_dtype != g->dtype && g->out_dtype != CAIRN_F32))
		return cairn_error(EOPNOTSUPP, "gemm_fp8w: dtype %d, out_dtype %d", g->dtype, g->out_dtype);
	if (!g->out || !g->a || !g->b || !g->b_scale)
		return cairn_error(EINVAL, "gemm_fp8w: out, a, b, b_scale: must not be null");
	if (((uintptr_t)g->out | (uintptr_t)g->a | (uintptr_t)g->b) & 15)
		return cairn_error(EINVAL, "gemm_fp8w: out, a, b: must be 16-byte aligned");
	return 0;
}

/* Element e of out, counted through rows; *bound: how far the sum may be off before its last rounding. */
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
