// SPDX-License-Identifier: Apache-2.0
/*
 * gemm_gated_ref - the reference in double, and the error bound
 *
 * A sum has the bound that gemm_ref.c derives, to which its rounding to dtype adds half an ulp; gated_sum.h
 * derives that of the activation, whose rounding adds half an ulp again.
 */
#include "primitives/gemm/gated/gemm_gated.h"

#include "primitives/base/dtype.h"
#include "primitives/base/error.h"
#include "primitives/base/rows.h"
#include "primitives/gemm/gated/gated_sum.h"
#include "primitives/gemm/gemm_walk.h"

/* Widens row j of gate and row j of up. */
static void load_rows(const void *args, int64_t j, double *b)
{
	const struct cairn_gemm_gated_args *g = args;

	cairn_widen(b, g->b, g->dtype, j * g->k, g->k);
	cairn_widen(b + g->k, g->b, g->dtype, (g->n + j) * g->k, g->k);
}

/* Returns the sum of a and b, which is row j of g->b, with its bias, rounded to dtype. */
static struct gemm_sum sum_of(const struct cairn_gemm_gated_args *g, int64_t j, const double *a,
			      const double *b)
{
	const double bias = g->bias ? cairn_load(g->bias, g->dtype, j) : 0;

	return gemm_sum_rounded(g->dtype, gemm_sum_of(g->dtype, g->k, a, b, bias));
}

/* The same sum as the tables have it: rounded to dtype. */
static double plain_sum(const struct cairn_gemm_gated_args *g, int64_t j, const double *a, const double *b)
{
	const double bias = g->bias ? cairn_load(g->bias, g->dtype, j) : 0;
	uint64_t box = 0;	/* wide enough for any dtype */

	cairn_store(&box, g->dtype, 0, cairn_dot(a, b, g->k) + bias);
	return cairn_load(&box, g->dtype, 0);
}

/* Judges element [i, j], or writes it with the bits of gemm_ref.c and silu_mul_ref.c. */
static void element(const void *args, int64_t i, int64_t j, const double *a, const double *b,
		    struct cairn_exact *exact)
{
	const struct cairn_gemm_gated_args *g = args;
	const int64_t e = i * g->n + j;
	struct gemm_sum gate, up, s;
	int undefined;

	if (!exact) {
		cairn_store(g->out, g->dtype, e, gated_silu(plain_sum(g, j, a, b)) *
			    plain_sum(g, g->n + j, a, b + g->k));
		return;
	}
	gate = sum_of(g, j, a, b);
	up = sum_of(g, g->n + j, a, b + g->k);
	s = gated_product(gate, up);
	undefined = gate.undefined || up.undefined || s.undefined;
	exact->val[e] = undefined ? NAN : s.val;
	exact->bound[e] = undefined ? INFINITY : isfinite(s.val) ? gemm_sum_rounded(g->dtype, s).error : 0;
}

static int walk(const struct cairn_gemm_gated_args *g, struct cairn_exact *exact)
{
	const struct cairn_gemm_walk w = { "gemm_gated", g, g->a, g->m, g->n, g->k, g->dtype, load_rows,
					   element };

	return cairn_gemm_walk(&w, exact);
}

int cairn_gemm_gated_ref(const struct cairn_gemm_gated_args *g, void *stream)
{
	(void)stream;
	CAIRN_TRY(cairn_gemm_gated_check(g));
	return walk(g, NULL);
}

int cairn_gemm_gated_exact(const struct cairn_gemm_gated_args *g, struct cairn_exact *exact)
{
	CAIRN_TRY(cairn_gemm_gated_check(g));
	return walk(g, exact);
}
