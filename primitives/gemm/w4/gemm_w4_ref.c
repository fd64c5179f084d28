// SPDX-License-Identifier: Apache-2.0
/*
 * gemm_w4_ref - the reference in double, and the error bound
 *
 * The bound is that of gemm_ref.c; the products, a times a code's value, are also exact in fp32. A term's sum
 * is multiplied by the scale of its group and by `scale`, and is added to a total; k + 12 covers these
 * roundings. Above EXACT_M, rounding s, c s and scale c s to dtype changes each by at most v of it, or by w,
 * half the spacing of dtype's subnormals. The change of s is multiplied by c, at most 16 in magnitude, and
 * both that and the change of c s by `scale`.
 */
#include "primitives/gemm/w4/gemm_w4.h"

#include <stdlib.h>

#include "primitives/base/dtype.h"
#include "primitives/base/error.h"
#include "primitives/base/rows.h"
#include "primitives/gemm/w4/gemm_w4_value.h"

#define BLOCK	32		/* rows of a by which a decoded row of b is multiplied */

/* Above 2^31 products only a sample of the elements is judged. */
static int left_out(const struct cairn_gemm_w4_args *g, int64_t e)
{
	return (double)g->m * g->n * g->k > 0x1p31 && ((uint64_t)e * 0x9e3779b97f4a7c15u >> 20) % 1021;
}

/* scale c s of row j of b */
static void load_row(const struct cairn_gemm_w4_args *g, int64_t j, double *b)
{
	int64_t group = g->group ? g->group : g->k;
	float values[16];

	for (int64_t l = 0; l < g->k; l++) {
		if (l % group == 0)
			cairn_w4_values(g, j, l / group, values);
		b[l] = (double)g->scale * (double)cairn_w4_scale(g, j, l / group) *
		       (double)values[cairn_w4_code(g->b, g->k, j, l)];
	}
}

/* The largest change of the sum when weights are rounded to dtype */
static double moved_by(const struct cairn_gemm_w4_args *g, const double *a, const double *b)
{
	double v = cairn_dtype_roundoff(g->dtype), w = cairn_dtype_tiny(g->dtype), moved = 0;
	double relative = (1 + v) * (1 + v) * (1 + v) - 1, absolute = (1 + 17 * fabs((double)g->scale)) * w;

	for (int l = 0; l < g->k; l++)
		moved += b[l] == 0 ? 0 : fabs(a[l]) * (relative * fabs(b[l]) + absolute);
	return moved;
}

/* Sets element [i, j] from rows a of g->a and b of g->b. exact NULL: writes the rounded result to out. */
static void element(const struct cairn_gemm_w4_args *g, int64_t i, int64_t j, const double *a,
		    const double *b, struct cairn_exact *exact)
{
	int rounds = g->m > CAIRN_GEMM_W4_EXACT_M;
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
			  (g->k + 12) * 0x1p-24 * (mag + fabs(bias)) + g->k * 0x1p-150 + moved +
			  u * fabs(exact->val[e]) + tiny;
}

/* Sets the elements of row block nth and column j. b: room for a row */
static void block(const struct cairn_gemm_w4_args *g, int64_t nth, int64_t j, const double *a, double *b,
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
			load_row(g, j, b);
		element(g, i, j, a + i * g->k, b, exact);
	}
}

static int all_elements(const struct cairn_gemm_w4_args *g, struct cairn_exact *exact)
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
	return no_memory ? cairn_error(ENOMEM, "gemm_w4: no memory for %d rows of %d", g->m, g->k) : 0;
}

/* Sets only the elements that are judged. */
static int wanted_elements(const struct cairn_gemm_w4_args *g, struct cairn_exact *exact)
{
	double *a = malloc(sizeof(*a) * 2 * (size_t)g->k);

	if (!a)
		return cairn_error(ENOMEM, "gemm_w4: no memory for rows of %d", g->k);
	for (int r = 0; r < exact->num_wanted; r++)
		for (int64_t i = 0; i < exact->wanted[r].count; i++) {
			int64_t e = exact->wanted[r].first + i;

			cairn_widen(a, g->a, g->dtype, e / g->n * g->k, g->k);
			load_row(g, e % g->n, a + g->k);
			element(g, e / g->n, e % g->n, a, a + g->k, exact);
		}
	free(a);
	return 0;
}

int cairn_gemm_w4_ref(const struct cairn_gemm_w4_args *g, void *stream)
{
	(void)stream;
	CAIRN_TRY(cairn_gemm_w4_check(g));
	return all_elements(g, NULL);
}

int cairn_gemm_w4_exact(const struct cairn_gemm_w4_args *g, struct cairn_exact *exact)
{
	CAIRN_TRY(cairn_gemm_w4_check(g));
	return exact->num_wanted ? wanted_elements(g, exact) : all_elements(g, exact);
}
