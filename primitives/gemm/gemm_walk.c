// SPDX-License-Identifier: Apache-2.0
#include "primitives/gemm/gemm_walk.h"

#include <math.h>
#include <stdlib.h>

#include "primitives/base/dtype.h"
#include "primitives/base/error.h"
#include "primitives/base/rows.h"

#define BLOCK	32		/* rows of a by which a widened row of b is multiplied */

static int left_out(const struct cairn_gemm_walk *w, int64_t e)
{
	return (double)w->m * w->n * w->k > 0x1p31 && ((uint64_t)e * 0x9e3779b97f4a7c15u >> 20) % 1021;
}

/* Visits the elements of row block nth and column j. b: room for two rows */
static void block(const struct cairn_gemm_walk *w, int64_t nth, int64_t j, const double *a, double *b,
		  struct cairn_exact *exact)
{
	int64_t end = (nth + 1) * BLOCK < w->m ? (nth + 1) * BLOCK : w->m;
	int loaded = 0;

	for (int64_t i = nth * BLOCK; i < end; i++) {
		if (exact && left_out(w, i * w->n + j)) {
			exact->val[i * w->n + j] = 0;
			exact->bound[i * w->n + j] = INFINITY;
			continue;
		}
		if (!loaded++)
			w->load_row(w->args, j, b);
		w->element(w->args, i, j, a + i * w->k, b, exact);
	}
}

static int all_elements(const struct cairn_gemm_walk *w, struct cairn_exact *exact)
{
	int64_t blocks = ((int64_t)w->m + BLOCK - 1) / BLOCK;
	double *a = malloc(sizeof(*a) * ((size_t)w->m * (size_t)w->k + 1));
	int no_memory = !a;

	#pragma omp parallel reduction(|:no_memory) if ((int64_t)w->m * w->n * w->k > 1 << 17)
	{
		double *b = malloc(sizeof(*b) * (2 * (size_t)w->k + 1));

		no_memory |= !b;
		#pragma omp for
		for (int64_t i = 0; i < w->m; i++)
			if (a)
				cairn_widen(a + i * w->k, w->a, w->dtype, i * w->k, w->k);
		#pragma omp for collapse(2)
		for (int64_t nth = 0; nth < blocks; nth++)
			for (int64_t j = 0; j < w->n; j++)
				if (a && b)
					block(w, nth, j, a, b, exact);
		free(b);
	}
	free(a);
	return no_memory ? cairn_error(ENOMEM, "%s: no memory for %d rows of %d", w->name, w->m, w->k) : 0;
}

/* Visits only the elements that the case names. */
static int wanted_elements(const struct cairn_gemm_walk *w, struct cairn_exact *exact)
{
	int no_memory = 0;

	#pragma omp parallel reduction(|:no_memory)
	{
		double *a = malloc(sizeof(*a) * 3 * (size_t)w->k);

		no_memory |= !a;
		for (int r = 0; r < exact->num_wanted; r++) {
			const struct cairn_range *range = &exact->wanted[r];

			#pragma omp for
			for (int64_t e = range->first; e < range->first + range->count; e++) {
				if (!a)
					continue;
				cairn_widen(a, w->a, w->dtype, e / w->n * w->k, w->k);
				w->load_row(w->args, e % w->n, a + w->k);
				w->element(w->args, e / w->n, e % w->n, a, a + w->k, exact);
			}
		}
		free(a);
	}
	return no_memory ? cairn_error(ENOMEM, "%s: no memory for rows of %d", w->name, w->k) : 0;
}

int cairn_gemm_walk(const struct cairn_gemm_walk *w, struct cairn_exact *exact)
{
	return exact && exact->num_wanted ? wanted_elements(w, exact) : all_elements(w, exact);
}
