// SPDX-License-Identifier: Apache-2.0
/*
 * lora_ref - the reference in double, and the error bound
 *
 * A sum of k products of f16 or bf16 in fp32 has an error of at most k 2^-24 times the sum of magnitudes,
 * because the products are exact; t therefore has that error, relative to sum_l |x a|. The sum over r adds
 * rank + 1 roundings, the factor and the addition of y two more, with some room for terms of second order.
 * Each of these may also lose half the smallest subnormal of fp32, which the factors after it multiply.
 */
#include "primitives/gemm/lora/lora.h"

#include <math.h>
#include <stdlib.h>

#include "primitives/base/dtype.h"
#include "primitives/base/error.h"

#define MOST_T	(CAIRN_LORA_MAX_PARTS * CAIRN_LORA_MAX_RANK)

/* Computes t and its sum of magnitudes for a row. */
static void shrink(const struct cairn_lora_args *a, int64_t i, double t[MOST_T], double mag[MOST_T])
{
	const int64_t all = (int64_t)a->num_parts * a->rank;

	for (int64_t q = 0; q < all; q++) {
		t[q] = mag[q] = 0;
		for (int64_t l = 0; l < a->k; l++) {
			double v = cairn_load(a->x, a->dtype, i * a->k + l) *
				   cairn_load(a->a, a->dtype, (a->slot[i] * all + q) * a->k + l);

			t[q] += v;
			mag[q] += fabs(v);
		}
	}
}

static int32_t part_of(const struct cairn_lora_args *a, int64_t j)
{
	int32_t p = 0;

	while (j >= a->part_end[p])
		p++;
	return p;
}

/* Sets element [i, j]. exact NULL: writes the rounded result to y. */
static void element(const struct cairn_lora_args *a, int64_t i, int64_t j, const double *t, const double *mag,
		    struct cairn_exact *exact)
{
	const double scale = (double)a->scale[a->slot[i]], u = cairn_dtype_roundoff(a->dtype);
	const int64_t row = a->slot[i] * (int64_t)a->n + j, e = i * a->n + j;
	const int32_t first = part_of(a, j) * a->rank;
	double y = cairn_load(a->y, a->dtype, e), sum = 0, size = 0, weight = 0;

	for (int32_t r = 0; r < a->rank; r++) {
		double b = cairn_load(a->b, a->dtype, row * a->rank + r);

		sum += t[first + r] * b;
		size += mag[first + r] * fabs(b);
		weight += fabs(b);
	}
	if (!exact) {
		cairn_store(a->y, a->dtype, e, y + scale * sum);
		return;
	}
	exact->val[e] = y + scale * sum;
	exact->bound[e] = !isfinite(exact->val[e]) ? 0 :
			  (a->k + a->rank + 8) * 0x1p-24 * (fabs(scale) * size + fabs(y)) +
			  u * fabs(exact->val[e]) + cairn_dtype_tiny(a->dtype) +
			  (a->k + a->rank) * 0x1p-149 * (1 + fabs(scale) * (1 + weight));
}

static int walk(const struct cairn_lora_args *a, struct cairn_exact *exact)
{
	#pragma omp parallel for schedule(dynamic)
	for (int64_t i = 0; i < a->m; i++) {
		double t[MOST_T], mag[MOST_T];

		if (a->slot[i] < 0 || a->slot[i] >= a->num_slots ||
		    (exact && !cairn_is_wanted(exact, i * a->n, a->n)))
			continue;	/* y must keep its bits, or is not judged */
		shrink(a, i, t, mag);
		for (int64_t j = 0; j < a->n; j++)
			element(a, i, j, t, mag, exact);
	}
	return 0;
}

int cairn_lora_ref(const struct cairn_lora_args *a, void *stream)
{
	(void)stream;
	CAIRN_TRY(cairn_lora_check(a));
	return walk(a, NULL);
}

int cairn_lora_exact(const struct cairn_lora_args *a, struct cairn_exact *exact)
{
	CAIRN_TRY(cairn_lora_check(a));
	return walk(a, exact);
}
