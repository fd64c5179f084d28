// SPDX-License-Identifier: Apache-2.0
/*
 * gemm_fp8w_ref - the reference in double, and the error bound
 *
 * The bound is that of gemm_ref.c; the products, a times e4m3, are also exact in fp32. A scale adds two
 * roundings: one for the sum of the term's block and one for the product with the scale; k + 8 covers these.
 * An e4m3 value is never subnormal in f16 or bf16, so only a counts as at least the smallest normal number.
 * Above EXACT_M, rounding b s to dtype changes it by at most u |b s|, or by half the spacing of dtype's
 * subnormals, which scales of the usual size reach in f16. b s then also counts as at least the smallest
 * normal number.
 */
#include "primitives/gemm/fp8w/gemm_fp8w.h"

#include "primitives/base/dtype.h"
#include "primitives/base/error.h"
#include "primitives/base/fp8.h"
#include "primitives/base/rows.h"
#include "primitives/base/wide.h"
#include "primitives/gemm/gemm_walk.h"

/* b s of row j of b */
static void load_row(const void *args, int64_t j, double *b)
{
	const struct cairn_gemm_fp8w_args *g = args;
	int64_t blocks = (g->k + CAIRN_FP8_BLOCK - 1) / CAIRN_FP8_BLOCK;

	for (int64_t l = 0; l < g->k; l += CAIRN_FP8_BLOCK) {
		int64_t n = g->k - l < CAIRN_FP8_BLOCK ? g->k - l : CAIRN_FP8_BLOCK;
		float scale = g->scale_kind ?
			      g->b_scale[j / CAIRN_FP8_BLOCK * blocks + l / CAIRN_FP8_BLOCK] : g->b_scale[j];

		cairn_widen_e4m3(b + l, g->b + j * g->k + l, (double)scale, n);
	}
}

/* The largest change of the sum when b s is rounded to dtype */
static CAIRN_WIDE double moved_by(const struct cairn_gemm_fp8w_args *g, const double *a, const double *b)
{
	double u = cairn_dtype_roundoff(g->dtype), tiny = cairn_dtype_tiny(g->dtype), moved = 0;

	#pragma omp simd reduction(+:moved)
	for (int l = 0; l < g->k; l++)
		moved += b[l] == 0 ? 0 : fabs(a[l]) * (u * fabs(b[l]) + tiny);
	return moved;
}

/* Sets element [i, j] from rows a of g->a and b of g->b. exact NULL: writes the rounded result to out. */
static void element(const void *args, int64_t i, int64_t j, const double *a, const double *b,
		    struct cairn_exact *exact)
{
	const struct cairn_gemm_fp8w_args *g = args;
	int rounds = g->m > CAIRN_GEMM_FP8W_EXACT_M;
	double normal = g->dtype == CAIRN_F16 ? 0x1p-14 : 0x1p-126, mag, moved = 0;
	double bias = g->bias ? cairn_load(g->bias, g->dtype, j) : 0;
	double u = cairn_dtype_roundoff(g->out_dtype), tiny = cairn_dtype_tiny(g->out_dtype);
	int64_t e = i * g->n + j;

	if (!exact) {
		cairn_store(g->out, g->out_dtype, e, cairn_dot(a, b, g->k) + bias);
		return;
	}
	exact->val[e] = cairn_dot_bounded(a, b, g->k, normal, rounds ? normal : 0, &mag) + bias;
	if (rounds)
		moved = moved_by(g, a, b);
	exact->bound[e] = !isfinite(exact->val[e]) ? 0 :
			  (g->k + 8) * 0x1p-24 * (mag + fabs(bias)) + g->k * 0x1p-150 + moved +
			  u * fabs(exact->val[e]) + tiny;
}

static int walk(const struct cairn_gemm_fp8w_args *g, struct cairn_exact *exact)
{
	const struct cairn_gemm_walk w = {
		"gemm_fp8w", g, g->a, g->m, g->n, g->k, g->dtype, load_row, element,
	};

	return cairn_gemm_walk(&w, exact);
}

int cairn_gemm_fp8w_ref(const struct cairn_gemm_fp8w_args *g, void *stream)
{
	(void)stream;
	CAIRN_TRY(cairn_gemm_fp8w_check(g));
	return walk(g, NULL);
}

int cairn_gemm_fp8w_exact(const struct cairn_gemm_fp8w_args *g, struct cairn_exact *exact)
{
	CAIRN_TRY(cairn_gemm_fp8w_check(g));
	return walk(g, exact);
}
