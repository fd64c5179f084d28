// SPDX-License-Identifier: Apache-2.0
/* lora_mutants - wrong versions of lora that the suite must catch */
#include <math.h>

#include "conformance/harness.h"
#include "primitives/base/bend.h"
#include "primitives/base/cut_off.h"
#include "primitives/gemm/lora/lora.h"

enum lora_bend {
	lora_bend_y_replaced, lora_bend_scale_ignored, lora_bend_scale_squared, lora_bend_scale_of_slot_0,
	lora_bend_slot_0, lora_bend_slot_of_group, lora_bend_next_slot, lora_bend_minus_1_is_0,
	lora_bend_past_the_end_is_last, lora_bend_minimum_is_0, lora_bend_parts_share_a, lora_bend_part_edge,
	lora_bend_b_transposed, lora_bend_a_transposed, lora_bend_last_r_missing, lora_bend_rank_16,
	lora_bend_k_tail, lora_bend_n_tail, lora_bend_t_in_dtype, lora_bend_sum_in_dtype, lora_bend_nan_is_0,
	lora_bend_nan_y_is_0, lora_bend_idle_rows_read, lora_bend_rows_by_8,
	lora_bend_scale_0_skips, lora_bend_scale_magnitude, lora_bend_saturates,
};

static int64_t bent_slot(const struct cairn_lora_args *a, int64_t i, enum lora_bend bend)
{
	int64_t slot = a->slot[i];

	if (bend == lora_bend_slot_of_group && slot >= 0 && slot < a->num_slots)
		slot = a->slot[i / 8 * 8];
	if (bend == lora_bend_minus_1_is_0 && slot == -1)
		slot = 0;
	if (bend == lora_bend_minimum_is_0 && slot == INT32_MIN)
		slot = 0;
	if (bend == lora_bend_past_the_end_is_last && slot >= a->num_slots)
		slot = a->num_slots - 1;
	if (slot < 0 || slot >= a->num_slots)
		return -1;
	if (bend == lora_bend_slot_0)
		return 0;
	return bend == lora_bend_next_slot ? (slot + 1) % a->num_slots : slot;
}

/* t[i, q] */
static double bent_t(const struct cairn_lora_args *a, int64_t i, int64_t slot, int64_t q, enum lora_bend bend)
{
	const int64_t all = (int64_t)a->num_parts * a->rank;
	const int64_t k = bend == lora_bend_k_tail && a->k > 256 ? a->k / 256 * 256 : a->k;
	double t = 0;

	for (int64_t l = 0; l < k; l++) {
		int64_t at = bend == lora_bend_a_transposed ? l * all + q : q * a->k + l;
		double x = cairn_load(a->x, a->dtype, i * a->k + l);

		if (bend != lora_bend_nan_is_0 || !isnan(x))
			t += x * cairn_load(a->a, a->dtype, slot * all * a->k + at);
	}
	return bend == lora_bend_t_in_dtype ? rounded(a->dtype, t) : t;
}

static int64_t bent_part(const struct cairn_lora_args *a, int64_t j, enum lora_bend bend)
{
	int64_t p = 0;

	if (bend == lora_bend_parts_share_a)
		return 0;
	while (j >= a->part_end[p] + (bend == lora_bend_part_edge && p < a->num_parts - 1))
		p++;
	return p;
}

static void bent_row(const struct cairn_lora_args *a, int64_t i, int64_t slot, enum lora_bend bend)
{
	const int64_t n = bend == lora_bend_n_tail && a->n > 256 ? a->n / 256 * 256 : a->n;
	int64_t rank = a->rank - (bend == lora_bend_last_r_missing);
	double t[CAIRN_LORA_MAX_PARTS * CAIRN_LORA_MAX_RANK], scale = (double)a->scale[slot];

	if (bend == lora_bend_rank_16 && rank > 16)
		rank = 16;
	if (bend == lora_bend_scale_of_slot_0)
		scale = (double)a->scale[0];
	if (bend == lora_bend_scale_magnitude)
		scale = fabs(scale);
	if (bend == lora_bend_scale_squared)
		scale *= scale;
	for (int64_t q = 0; q < (int64_t)a->num_parts * a->rank; q++)
		t[q] = bent_t(a, i, slot, q, bend);
	for (int64_t j = 0; j < n; j++) {
		const int64_t first = bent_part(a, j, bend) * a->rank;
		double y = cairn_load(a->y, a->dtype, i * a->n + j), sum = 0;

		for (int64_t r = 0; r < rank; r++) {
			int64_t at = bend == lora_bend_b_transposed ? r * a->n + j : j * a->rank + r;

			sum += t[first + r] * cairn_load(a->b, a->dtype, slot * a->n * a->rank + at);
		}
		if (bend == lora_bend_sum_in_dtype)
			sum = rounded(a->dtype, sum);
		if (bend != lora_bend_scale_ignored)
			sum *= scale;
		if (bend == lora_bend_y_replaced || (bend == lora_bend_nan_y_is_0 && isnan(y)))
			y = 0;
		cairn_store(a->y, a->dtype, i * a->n + j,
			    bend == lora_bend_saturates ? saturated(a->dtype, y + sum) : y + sum);
	}
}

static int bent_lora(const struct cairn_lora_args *a, enum lora_bend bend)
{
	int64_t rows;

	CAIRN_TRY(cairn_lora_check(a));
	rows = bend == lora_bend_rows_by_8 && a->m > 8 ? a->m / 8 * 8 : a->m;
	for (int64_t i = 0; i < rows; i++) {
		int64_t slot = bent_slot(a, i, bend);

		if (slot >= 0 && !(bend == lora_bend_scale_0_skips && a->scale[slot] == 0))
			bent_row(a, i, slot, bend);
		for (int64_t j = 0; bend == lora_bend_idle_rows_read && slot < 0 && j < a->n; j++)
			cairn_store(a->y, a->dtype, i * a->n + j,
				    cairn_load(a->y, a->dtype, i * a->n + j) +
				    0 * cairn_load(a->x, a->dtype, i * a->k));
	}
	return 0;
}

BENT(lora, y_replaced)
BENT(lora, scale_ignored)
BENT(lora, scale_squared)
BENT(lora, scale_of_slot_0)
BENT(lora, slot_0)
BENT(lora, slot_of_group)
BENT(lora, next_slot)
BENT(lora, minus_1_is_0)
BENT(lora, past_the_end_is_last)
BENT(lora, minimum_is_0)
BENT(lora, parts_share_a)
BENT(lora, part_edge)
BENT(lora, b_transposed)
BENT(lora, a_transposed)
BENT(lora, last_r_missing)
BENT(lora, rank_16)
BENT(lora, k_tail)
BENT(lora, n_tail)
BENT(lora, t_in_dtype)
BENT(lora, sum_in_dtype)
BENT(lora, nan_is_0)
BENT(lora, nan_y_is_0)
BENT(lora, idle_rows_read)
BENT(lora, rows_by_8)
BENT(lora, scale_0_skips)
BENT(lora, scale_magnitude)
BENT(lora, saturates)

/* With three parts, one row and one column past whole tiles of 64, the last element is lost. */
static int lora_corner_of_three_parts(const struct cairn_lora_args *a, void *stream)
{
	CAIRN_TRY(cairn_lora_ref(a, stream));
	if (a->num_parts == 3 && a->m % 64 == 1 && a->n % 64 == 3 && a->m)
		cairn_store(a->y, a->dtype, (int64_t)a->m * a->n - 1, 0);
	return 0;
}

/* With ranks above 16, an adapter that is alone past whole blocks of 8 leaves its first row as 0. */
static int lora_lone_last_slot(const struct cairn_lora_args *a, void *stream)
{
	CAIRN_TRY(cairn_lora_ref(a, stream));
	for (int64_t i = 0; a->rank > 16 && a->num_slots > 8 && a->num_slots % 8 == 1 && i < a->m; i++)
		if (a->slot[i] == a->num_slots - 1)
			cairn_store(a->y, a->dtype, i * a->n, 0);
	return 0;
}

/* Row 64 is left out if its adapter is not that of the row before, which has one. */
static int lora_tile_of_other_slot(const struct cairn_lora_args *a, void *stream)
{
	CAIRN_TRY(cairn_lora_ref(a, stream));
	if (a->m > 64 && a->slot[63] >= 0 && a->slot[64] >= 0 && a->slot[63] != a->slot[64] &&
	    a->slot[64] < a->num_slots)
		cairn_store(a->y, a->dtype, 64 * (int64_t)a->n, 0);
	return 0;
}

const struct cairn_mutant cairn_lora_mutants[] = {
	MUTANT(lora, y_replaced, "writes the adapter's part without y"),
	MUTANT(lora, scale_ignored, "does not multiply with the scale"),
	MUTANT(lora, scale_squared, "multiplies with the scale twice"),
	MUTANT(lora, scale_of_slot_0, "uses the scale of the first slot"),
	MUTANT(lora, slot_0, "uses the first adapter for every row that has one"),
	MUTANT(lora, slot_of_group, "uses the adapter of the first of 8 rows"),
	MUTANT(lora, next_slot, "uses the matrices of the next slot"),
	MUTANT(lora, minus_1_is_0, "uses the first adapter for rows without one"),
	MUTANT(lora, past_the_end_is_last, "uses the last adapter for a slot past the end"),
	MUTANT(lora, minimum_is_0, "tests only for -1"),
	MUTANT(lora, parts_share_a, "uses the first part of a for all columns"),
	MUTANT(lora, part_edge, "takes the first column of a part for one of the part before"),
	MUTANT(lora, b_transposed, "reads b as [rank, n]"),
	MUTANT(lora, a_transposed, "reads a as [k, rank]"),
	MUTANT(lora, last_r_missing, "leaves out the last of the rank"),
	MUTANT(lora, rank_16, "takes no more than 16 of the rank"),
	MUTANT(lora, k_tail, "leaves out the last k modulo 256 elements"),
	MUTANT(lora, n_tail, "leaves out the last n modulo 256 columns"),
	MUTANT(lora, t_in_dtype, "rounds t to dtype"),
	MUTANT(lora, sum_in_dtype, "rounds the sum to dtype before the scale"),
	MUTANT(lora, nan_is_0, "skips a NaN of x"),
	MUTANT(lora, nan_y_is_0, "takes a NaN of y for 0"),
	MUTANT(lora, idle_rows_read, "reads x of rows without an adapter"),
	MUTANT(lora, rows_by_8, "leaves out the last rows if there are more than 8"),
	MUTANT(lora, scale_0_skips, "leaves y as it is if the scale is 0, even beside a NaN"),
	MUTANT(lora, scale_magnitude, "ignores the sign of the scale"),
	MUTANT(lora, saturates, "stores a finite result where it overflows f16 or bf16"),
	{ "lora_corner_of_three_parts", offsetof(struct cairn_impl, lora), (void *)lora_corner_of_three_parts,
	  "with three parts, one row and three columns past whole tiles, the last element is 0" },
	{ "lora_tile_of_other_slot", offsetof(struct cairn_impl, lora), (void *)lora_tile_of_other_slot,
	  "the first row of a second tile is wrong if its adapter differs from that of the row before" },
	{ "lora_lone_last_slot", offsetof(struct cairn_impl, lora), (void *)lora_lone_last_slot,
	  "with ranks above 16, an adapter past whole blocks of 8 spoils a row" },
	{ 0 }
};
