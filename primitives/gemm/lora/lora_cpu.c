// SPDX-License-Identifier: Apache-2.0
/* lora_cpu - a row at a time: t, then the columns; eight partial sums let the compiler use vectors */
#include "primitives/base/dtype.h"
#include "primitives/base/error.h"
#include "primitives/gemm/lora/lora.h"

#define LANES	8
#define MOST_T	(CAIRN_LORA_MAX_PARTS * CAIRN_LORA_MAX_RANK)
#define PIECE	256		/* elements widened at a time; a multiple of LANES */

/* Adds the products of n elements of x and of a row of `of`, from element `at` of it, to lanes of sums. */
static void add_products(float sum[LANES], const float *x, const void *of, int dtype, int64_t at, int32_t n)
{
	float row[PIECE];

	cairn_load_row(row, of, dtype, at, n);
	for (int32_t l = 0; l < n; l += LANES)
		for (int v = 0; v < LANES; v++)
			sum[v] += x[l + v] * row[l + v];
}

static float fold(float sum[LANES])
{
	for (int step = LANES / 2; step; step /= 2)
		for (int v = 0; v < step; v++)
			sum[v] += sum[v + step];
	return sum[0];
}

static void one_row(const struct cairn_lora_args *a, int64_t i)
{
	const int32_t all = a->num_parts * a->rank;
	const int64_t slot = a->slot[i];
	float t[MOST_T], sums[MOST_T][LANES] = { { 0 } }, x[PIECE];

	for (int32_t l = 0, n; l < a->k; l += n) {
		n = a->k - l < PIECE ? a->k - l : PIECE;
		cairn_load_row(x, a->x, a->dtype, i * a->k + l, n);
		for (int32_t q = 0; q < all; q++)
			add_products(sums[q], x, a->a, a->dtype, (slot * all + q) * a->k + l, n);
	}
	for (int32_t q = 0; q < all; q++)
		t[q] = fold(sums[q]);
	for (int32_t j = 0, p = 0; j < a->n; j++) {
		float sum[LANES] = { 0 }, v;

		p += j == a->part_end[p];
		add_products(sum, t + p * a->rank, a->b, a->dtype, (slot * a->n + j) * a->rank, a->rank);
		v = (float)cairn_load(a->y, a->dtype, i * a->n + j) + a->scale[slot] * fold(sum);
		cairn_store(a->y, a->dtype, i * a->n + j, (double)v);
	}
}

int cairn_lora_cpu(const struct cairn_lora_args *a, void *stream)
{
	(void)stream;
	CAIRN_TRY(cairn_lora_check(a));
	#pragma omp parallel for schedule(dynamic) if (a->m > 1)
	for (int64_t i = 0; i < a->m; i++)
		if (a->slot[i] >= 0 && a->slot[i] < a->num_slots)
			one_row(a, i);
	return 0;
}
