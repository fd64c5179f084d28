// SPDX-License-Identifier: Apache-2.0
/*
 * gemm_fixed_ref - the reference in double, and the error bound
 *
 * A sum has the bound that gemm_ref.c derives, and SILU_MUL that of gated_sum.h.
 */
#include "primitives/gemm/fixed/gemm_fixed.h"

#include <stdlib.h>

#include "primitives/base/dtype.h"
#include "primitives/base/error.h"
#include "primitives/base/rows.h"
#include "primitives/gemm/gated/gated_sum.h"

/* Above 2^31 products only a sample of the elements is judged. */
static int left_out(const struct cairn_gemm_fixed_args *g, int64_t e)
{
	return (double)g->m * g->n * g->k > 0x1p31 && ((uint64_t)e * 0x9e3779b97f4a7c15u >> 20) % 1021;
}

/* Returns the sum of row a and row j of b, with its bias. b: room for a row */
static struct gemm_sum sum_of(const struct cairn_gemm_fixed_args *g, const double *a, int64_t j, double *b)
{
	cairn_widen(b, g->b, g->dtype, j * g->k, g->k);
	return gemm_sum_of(g->dtype, g->k, a, b, g->bias ? cairn_load(g->bias, g->dtype, j) : 0);
}

static struct gemm_sum element(const struct cairn_gemm_fixed_args *g, const double *a, int64_t j, double *b)
{
	struct gemm_sum s = sum_of(g, a, j, b);

	return g->epilogue == CAIRN_GEMM_FIXED_SILU_MUL ? gated_product(s, sum_of(g, a, g->n / 2 + j, b)) : s;
}

static void set(const struct cairn_gemm_fixed_args *g, int64_t e, struct gemm_sum s,
		struct cairn_exact *exact)
{
	exact->val[e] = s.undefined ? NAN : s.val;
	exact->bound[e] = s.undefined ? INFINITY : !isfinite(s.val) ? 0 : s.error +
			  cairn_dtype_roundoff(g->out_dtype) * fabs(s.val) + cairn_dtype_tiny(g->out_dtype);
}

/* Judges row i, or writes it if exact is NULL. a, b: room for a row */
static void one_row(const struct cairn_gemm_fixed_args *g, int64_t i, double *a, double *b,
		    struct cairn_exact *exact)
{
	int64_t first = i * cairn_gemm_fixed_out_stride(g), width = cairn_gemm_fixed_width(g);

	cairn_widen(a, g->a, g->dtype, i * cairn_gemm_fixed_a_stride(g), g->k);
	for (int64_t j = 0; j < width; j++) {
		if (!exact)
			cairn_store(g->out, g->out_dtype, first + j, element(g, a, j, b).val);
		else if (left_out(g, first + j))
			set(g, first + j, (struct gemm_sum){ 0, INFINITY, 0 }, exact);
		else
			set(g, first + j, element(g, a, j, b), exact);
	}
	for (int64_t j = width; exact && j < cairn_gemm_fixed_out_stride(g); j++)
		exact->bound[first + j] = NAN;	/* between rows: must keep its bits */
}

static int all_rows(const struct cairn_gemm_fixed_args *g, struct cairn_exact *exact)
{
	int no_memory = 0;

	#pragma omp parallel reduction(|:no_memory) if ((int64_t)g->m * g->n * g->k > 1 << 17)
	{
		double *a = malloc(sizeof(*a) * 2 * (size_t)g->k);

		no_memory |= !a;
		#pragma omp for
		for (int64_t i = 0; i < g->m; i++)
			if (a)
				one_row(g, i, a, a + g->k, exact);
		free(a);
	}
	return no_memory ? cairn_error(ENOMEM, "gemm_fixed: no memory for rows of %d", g->k) : 0;
}

/* Judges only the elements that the case names; their rows are packed. */
static int wanted_elements(const struct cairn_gemm_fixed_args *g, struct cairn_exact *exact)
{
	int64_t width = cairn_gemm_fixed_width(g);
	double *a = malloc(sizeof(*a) * 2 * (size_t)g->k);

	if (!a)
		return cairn_error(ENOMEM, "gemm_fixed: no memory for rows of %d", g->k);
	for (int r = 0; r < exact->num_wanted; r++) {
		const struct cairn_range *w = &exact->wanted[r];

		for (int64_t e = w->first; e < w->first + w->count; e++) {
			cairn_widen(a, g->a, g->dtype, e / width * cairn_gemm_fixed_a_stride(g), g->k);
			set(g, e, element(g, a, e % width, a + g->k), exact);
		}
	}
	free(a);
	return 0;
}

int cairn_gemm_fixed_ref(const struct cairn_gemm_fixed_args *g, void *stream)
{
	(void)stream;
	CAIRN_TRY(cairn_gemm_fixed_check(g));
	return all_rows(g, NULL);
}

int cairn_gemm_fixed_exact(const struct cairn_gemm_fixed_args *g, struct cairn_exact *exact)
{
	CAIRN_TRY(cairn_gemm_fixed_check(g));
	return exact->num_wanted ? wanted_elements(g, exact) : all_rows(g, exact);
}
