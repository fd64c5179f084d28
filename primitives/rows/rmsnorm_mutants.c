// SPDX-License-Identifier: Apache-2.0
/* rmsnorm_mutants - wrong versions of rmsnorm, one defect each */
#include <stdlib.h>

#include <math.h>

#include "conformance/harness.h"
#include "primitives/base/args.h"
#include "primitives/base/bend.h"
#include "primitives/base/cut_off.h"
#include "primitives/rows/quant_out/quant_out_mutants.h"
#include "primitives/rows/rmsnorm.h"
#include "primitives/base/nudge.h"

enum rmsnorm_bend {
	rmsnorm_bend_eps_outside_root, rmsnorm_bend_eps_before_mean, rmsnorm_bend_dim_minus_1,
	rmsnorm_bend_mean_of_whole_vectors_bf16,
	rmsnorm_bend_mean_subtracted, rmsnorm_bend_sum_in_f16, rmsnorm_bend_residual_not_rounded,
	rmsnorm_bend_residual_not_written, rmsnorm_bend_squares_of_x, rmsnorm_bend_offset_ignored,
	rmsnorm_bend_previous_row, rmsnorm_bend_last_8_skipped, rmsnorm_bend_rounded_before_weight,
	rmsnorm_bend_past_the_end, rmsnorm_bend_cut_off, rmsnorm_bend_tf32_sum, rmsnorm_bend_squares_in_bf16,
	rmsnorm_bend_eps_at_least_1e_6, rmsnorm_bend_eps_in_f16, rmsnorm_bend_offset_lost_with_residual,
	rmsnorm_bend_tail_lost_with_residual, rmsnorm_bend_nan_is_0, rmsnorm_bend_nan_spreads,
	rmsnorm_bend_weight_0_without_offset, rmsnorm_bend_eps_at_least_1e_12, rmsnorm_bend_eps_at_most_1,
	rmsnorm_bend_eps_at_least_1e_30, rmsnorm_bend_squares_flushed, rmsnorm_bend_sum_saturates,
	rmsnorm_bend_out_saturates,
};

/* Returns the sum after the square of element j has been added. */
static double bent_sum(const struct cairn_rmsnorm_args *a, enum rmsnorm_bend bend, double sum, double x,
		       int32_t j)
{
	double square = x * x;

	if ((bend == rmsnorm_bend_nan_is_0 && isnan(x)) ||
	    (bend == rmsnorm_bend_tail_lost_with_residual && a->residual && a->dim > 64 &&
	     j >= a->dim / 64 * 64))
		return sum;
	if (bend == rmsnorm_bend_squares_in_bf16)
		square = rounded(CAIRN_BF16, square);
	if (bend == rmsnorm_bend_squares_flushed && square < 0x1p-126)
		square = 0;
	sum += square;
	return bend == rmsnorm_bend_sum_in_f16 ? rounded(CAIRN_F16, sum) :
	       bend == rmsnorm_bend_tf32_sum ? tf32(sum) : sum;
}

static double bent_eps(const struct cairn_rmsnorm_args *a, enum rmsnorm_bend bend)
{
	double eps = (double)a->eps;

	return bend == rmsnorm_bend_eps_at_least_1e_6 ? fmax(eps, 1e-6) :
	       bend == rmsnorm_bend_eps_at_least_1e_12 ? fmax(eps, 1e-12) :
	       bend == rmsnorm_bend_eps_at_least_1e_30 ? fmax(eps, 1e-30) :
	       bend == rmsnorm_bend_eps_at_most_1 ? fmin(eps, 1) :
	       bend == rmsnorm_bend_eps_in_f16 ? rounded(CAIRN_F16, eps) : eps;
}

/*
 * Returns whether the call asks for e4m3. Mutants that spoil out do nothing in such a call, so a case without
 * e4m3 must catch them. The mutants of e4m3 come last in the list.
 */
static int asks_for_q(const struct cairn_rmsnorm_args *a)
{
	return a->size >= sizeof(*a) && a->q;
}

static int bent_rmsnorm(const struct cairn_rmsnorm_args *a, enum rmsnorm_bend bend)
{
	double previous = 1, *r;

	CAIRN_TRY(cairn_rmsnorm_check(a));
	if (asks_for_q(a))
		return cairn_rmsnorm_ref(a, NULL);
	r = malloc((size_t)a->dim * sizeof(*r));
	if (!r)
		return cairn_error(ENOMEM, "no memory");
	for (int64_t i = 0; i < a->rows; i++) {
		double squares = 0, mean = 0, s;
		int32_t n = bend == rmsnorm_bend_last_8_skipped ? a->dim - 8 : a->dim;

		for (int32_t j = 0; j < a->dim; j++) {
			double x = cairn_load(a->x, a->dtype, i * a->dim + j);

			r[j] = x;
			if (a->residual)
				r[j] += cairn_load(a->residual, a->dtype, i * a->dim + j);
			if (a->residual && bend == rmsnorm_bend_sum_saturates)
				r[j] = saturated(a->dtype, r[j]);
			if (a->residual && bend != rmsnorm_bend_residual_not_written)
				cairn_store(a->residual, a->dtype, i * a->dim + j, r[j]);
			if (bend != rmsnorm_bend_residual_not_rounded)
				r[j] = rounded(a->dtype, r[j]);
			mean += r[j] / a->dim;
			squares = bent_sum(a, bend, squares, bend == rmsnorm_bend_squares_of_x ? x : r[j], j);
		}
		if (bend == rmsnorm_bend_mean_subtracted)
			squares -= a->dim * mean * mean;
		squares /= bend == rmsnorm_bend_dim_minus_1 ? a->dim - 1 :
			   bend == rmsnorm_bend_mean_of_whole_vectors_bf16 && a->dim > 8192 &&
			   a->dtype == CAIRN_BF16 ? (a->dim + 15) / 16 * 16 : a->dim;
		s = 1 / sqrt(squares + bent_eps(a, bend));
		if (bend == rmsnorm_bend_nan_spreads && isnan(previous))
			s = previous;
		if (bend == rmsnorm_bend_eps_outside_root)
			s = 1 / (sqrt(squares) + (double)a->eps);
		if (bend == rmsnorm_bend_eps_before_mean)
			s = 1 / sqrt(squares + (double)a->eps / a->dim);
		for (int32_t j = 0; j < n; j++) {
			double w = cairn_load(a->weight, a->dtype, j), v;

			if (bend != rmsnorm_bend_offset_ignored &&
			    !(bend == rmsnorm_bend_weight_0_without_offset && w == 0) &&
			    !(bend == rmsnorm_bend_offset_lost_with_residual && a->residual))
				w += (double)a->weight_offset;
			v = r[j] - (bend == rmsnorm_bend_mean_subtracted ? mean : 0);
			v *= bend == rmsnorm_bend_previous_row && i ? previous : s;
			if (bend == rmsnorm_bend_rounded_before_weight)
				v = rounded(a->dtype, v);
			v *= w;
			if (bend == rmsnorm_bend_out_saturates)
				v = saturated(a->dtype, v);
			cairn_store(a->out, a->dtype, i * a->dim + j,
				    bend == rmsnorm_bend_cut_off ? cut_off(a->dtype, v) : v);
		}
		previous = s;
	}
	if (a->rows && bend == rmsnorm_bend_past_the_end)
		cairn_store(a->out, a->dtype, (int64_t)a->rows * a->dim, 1);
	free(r);
	return 0;
}

BENT(rmsnorm, eps_outside_root)
BENT(rmsnorm, eps_before_mean)
BENT(rmsnorm, dim_minus_1)
BENT(rmsnorm, mean_of_whole_vectors_bf16)
BENT(rmsnorm, mean_subtracted)
BENT(rmsnorm, sum_in_f16)
BENT(rmsnorm, residual_not_rounded)
BENT(rmsnorm, residual_not_written)
BENT(rmsnorm, squares_of_x)
BENT(rmsnorm, offset_ignored)
BENT(rmsnorm, previous_row)
BENT(rmsnorm, last_8_skipped)
BENT(rmsnorm, rounded_before_weight)
BENT(rmsnorm, past_the_end)
BENT(rmsnorm, cut_off)
BENT(rmsnorm, tf32_sum)
BENT(rmsnorm, squares_in_bf16)
BENT(rmsnorm, eps_at_least_1e_6)
BENT(rmsnorm, eps_in_f16)
BENT(rmsnorm, weight_0_without_offset)
BENT(rmsnorm, eps_at_least_1e_12)
BENT(rmsnorm, eps_at_most_1)
BENT(rmsnorm, eps_at_least_1e_30)
BENT(rmsnorm, squares_flushed)
BENT(rmsnorm, sum_saturates)
BENT(rmsnorm, out_saturates)
BENT(rmsnorm, offset_lost_with_residual)
BENT(rmsnorm, tail_lost_with_residual)
BENT(rmsnorm, nan_is_0)
BENT(rmsnorm, nan_spreads)

/* If there are few rows, sums in another order, which changes the last bit. */
static int rmsnorm_few_rows(const struct cairn_rmsnorm_args *a, void *stream)
{
	CAIRN_TRY(cairn_rmsnorm_ref(a, stream));
	if (asks_for_q(a))
		return 0;
	if (a->dtype == CAIRN_F32 && a->dim >= 64 && a->rows > 0 && a->rows < 4)
		nudge(a->out, a->dim);
	return 0;
}

static int rmsnorm_in_place(const struct cairn_rmsnorm_args *a, void *stream)
{
	if (!cairn_rmsnorm_check(a) && a->out == a->x && a->rows)
		cairn_store(a->out, a->dtype, a->dim - 1, 0);
	return cairn_rmsnorm_ref(a, stream);
}

static int rmsnorm_offset_magnitude(const struct cairn_rmsnorm_args *a, void *stream)
{
	struct cairn_rmsnorm_args other;

	CAIRN_TRY(cairn_rmsnorm_check(a));
	cairn_copy_args(&other, a, sizeof(other));
	other.weight_offset = fabsf(a->weight_offset);
	return cairn_rmsnorm_ref(&other, stream);
}

static int rmsnorm_rows_16_bits(const struct cairn_rmsnorm_args *a, void *stream)
{
	struct cairn_rmsnorm_args other;

	CAIRN_TRY(cairn_rmsnorm_check(a));
	cairn_copy_args(&other, a, sizeof(other));
	other.rows &= 0xffff;
	return cairn_rmsnorm_ref(&other, stream);
}

/* Keeps only 32 bits of the byte offset of a row. Computes only the rows that a far case judges. */
static int rmsnorm_offset_32_bits(const struct cairn_rmsnorm_args *a, void *stream)
{
	int64_t row = (int64_t)a->dim * (int64_t)cairn_dtype_bytes(a->dtype), i;
	struct cairn_rmsnorm_args one;

	if (cairn_rmsnorm_check(a) || (a->rows - 1) * row <= UINT32_MAX)
		return cairn_rmsnorm_ref(a, stream);
	cairn_copy_args(&one, a, sizeof(one));
	one.rows = 1;
	for (int k = 0; (i = cairn_far_row(a->rows, k)) >= 0; k++) {
		uint32_t at = (uint32_t)(i * row);

		one.out = (char *)a->out + at;
		one.x = (const char *)a->x + at;
		one.residual = a->residual ? (char *)a->residual + at : NULL;
		CAIRN_TRY(cairn_rmsnorm_cpu(&one, stream));
	}
	return 0;
}

/* Loads vectors of 32 bytes from addresses that are aligned only to 16. */
static int rmsnorm_vectors_of_32(const struct cairn_rmsnorm_args *a, void *stream)
{
	struct cairn_rmsnorm_args other;

	CAIRN_TRY(cairn_rmsnorm_check(a));
	cairn_copy_args(&other, a, sizeof(other));
	other.x = (const char *)a->x - (uintptr_t)a->x % 32;
	return cairn_rmsnorm_ref(&other, stream);
}

/* In long rows, divides the sum by the number of elements rounded up to a multiple of 64. */
static int rmsnorm_mean_of_whole_tiles(const struct cairn_rmsnorm_args *a, void *stream)
{
	float factor = sqrtf((float)((a->dim + 63) / 64 * 64) / (float)a->dim);

	CAIRN_TRY(cairn_rmsnorm_ref(a, stream));
	if (asks_for_q(a))
		return 0;
	for (int64_t i = 0; a->dim > 4096 && i < (int64_t)a->rows * a->dim; i++)
		cairn_store(a->out, a->dtype, i, cairn_load(a->out, a->dtype, i) * (double)factor);
	return 0;
}

/* The same in the longest rows and up to a multiple of 16, so that little is added. */
static int rmsnorm_mean_of_whole_vectors(const struct cairn_rmsnorm_args *a, void *stream)
{
	float factor = sqrtf((float)((a->dim + 15) / 16 * 16) / (float)a->dim);

	CAIRN_TRY(cairn_rmsnorm_ref(a, stream));
	if (asks_for_q(a))
		return 0;
	for (int64_t i = 0; a->dim > 8192 && i < (int64_t)a->rows * a->dim; i++)
		cairn_store(a->out, a->dtype, i, cairn_load(a->out, a->dtype, i) * (double)factor);
	return 0;
}

/* Repeats the first 512 bytes of the previous out if x has the same address and the same first 8 bytes. */
static int rmsnorm_keeps_first_row(const struct cairn_rmsnorm_args *a, void *stream)
{
	static struct {
		const void *x;
		uint64_t begin, out[64];
	} kept;
	size_t bytes = sizeof(kept.out);
	uint64_t begin;

	CAIRN_TRY(cairn_rmsnorm_check(a));
	if (!a->rows || a->residual || (size_t)a->dim * cairn_dtype_bytes(a->dtype) < bytes)
		return cairn_rmsnorm_ref(a, stream);
	memcpy(&begin, a->x, sizeof(begin));
	CAIRN_TRY(cairn_rmsnorm_ref(a, stream));
	if (asks_for_q(a))
		return 0;
	if (kept.x == a->x && kept.begin == begin)
		memcpy(a->out, kept.out, bytes);
	kept.x = a->x;
	kept.begin = begin;
	memcpy(kept.out, a->out, bytes);
	return 0;
}

static int rmsnorm_any_eps(const struct cairn_rmsnorm_args *a, void *stream)
{
	struct cairn_rmsnorm_args other = *a;

	if (a->eps > 0 && a->eps < CAIRN_EPS_MIN)
		other.eps = CAIRN_EPS_MIN;
	return cairn_rmsnorm_ref(&other, stream);
}

/* One row past whole tiles of 64, and 8 elements past whole tiles of 128. */
static int rmsnorm_corner_of_65_by_8(const struct cairn_rmsnorm_args *a, void *stream)
{
	CAIRN_TRY(cairn_rmsnorm_ref(a, stream));
	if (asks_for_q(a))
		return 0;
	if (a->rows > 64 && a->rows % 64 == 1 && a->dim % 128 == 8)
		cairn_store(a->out, a->dtype, (int64_t)a->rows * a->dim - 1, 0);
	return 0;
}

/* With an offset of the weights, row 64 of f16 loses its first element. */
static int rmsnorm_row_65_of_offset(const struct cairn_rmsnorm_args *a, void *stream)
{
	CAIRN_TRY(cairn_rmsnorm_ref(a, stream));
	if (asks_for_q(a))
		return 0;
	if (a->weight_offset != 0 && a->dtype == CAIRN_F16 && a->rows > 64)
		cairn_store(a->out, a->dtype, (int64_t)64 * a->dim, 0);
	return 0;
}

QUANT_OUT_MUTANTS(rmsnorm)

const struct cairn_mutant cairn_rmsnorm_mutants[] = {
	MUTANT(rmsnorm, eps_outside_root, "adds eps to the root instead of under it"),
	MUTANT(rmsnorm, eps_before_mean, "adds eps to the sum instead of the mean"),
	MUTANT(rmsnorm, dim_minus_1, "takes the mean over dim - 1"),
	MUTANT(rmsnorm, mean_of_whole_tiles, "takes the mean of long rows over a multiple of 64"),
	MUTANT(rmsnorm, mean_of_whole_vectors, "takes the mean of the longest rows over a multiple of 16"),
	MUTANT(rmsnorm, mean_of_whole_vectors_bf16,
	       "takes the mean of the longest rows of bf16 over a multiple of 16"),
	MUTANT(rmsnorm, mean_subtracted, "computes a layer norm"),
	MUTANT(rmsnorm, sum_in_f16, "sums the squares in f16"),
	MUTANT(rmsnorm, residual_not_rounded, "normalises the sum before it is rounded to dtype"),
	MUTANT(rmsnorm, residual_not_written, "does not store the new residual"),
	MUTANT(rmsnorm, squares_of_x, "omits the residual from the squares"),
	MUTANT(rmsnorm, offset_ignored, "omits weight_offset: uses weight instead of Gemma's 1 + weight"),
	MUTANT(rmsnorm, previous_row, "scales each row by the norm of the previous row"),
	MUTANT(rmsnorm, last_8_skipped, "does not write the last vector of each row"),
	MUTANT(rmsnorm, rounded_before_weight, "rounds to dtype before and after the weight"),
	MUTANT(rmsnorm, past_the_end, "writes one element past the last row"),
	MUTANT(rmsnorm, cut_off, "cuts the result off instead of rounding it"),
	MUTANT(rmsnorm, tf32_sum, "cuts the sum of squares to TF32 after each term"),
	MUTANT(rmsnorm, squares_in_bf16, "rounds each square to bf16"),
	MUTANT(rmsnorm, eps_at_least_1e_6, "raises eps to 1e-6"),
	MUTANT(rmsnorm, eps_in_f16, "rounds eps to f16"),
	MUTANT(rmsnorm, offset_lost_with_residual, "omits weight_offset if there is a residual"),
	MUTANT(rmsnorm, tail_lost_with_residual,
	       "with a residual leaves out the squares past a multiple of 64"),
	MUTANT(rmsnorm, nan_is_0, "treats NaN as 0 in the sum of squares"),
	MUTANT(rmsnorm, nan_spreads, "makes every row after one with a NaN NaN"),
	MUTANT(rmsnorm, keeps_first_row,
	       "keeps the first row's results for an address whose first 8 bytes are the same"),
	MUTANT(rmsnorm, few_rows, "sums in another order if there are fewer than 4 rows"),
	MUTANT(rmsnorm, in_place, "writes out before x, which may be the same, is read"),
	MUTANT(rmsnorm, offset_magnitude, "ignores the sign of weight_offset"),
	MUTANT(rmsnorm, weight_0_without_offset, "adds no offset to a weight of 0"),
	MUTANT(rmsnorm, eps_at_least_1e_12, "raises eps to 1e-12"),
	MUTANT(rmsnorm, eps_at_least_1e_30, "raises eps to 1e-30"),
	MUTANT(rmsnorm, squares_flushed, "flushes subnormal squares to 0"),
	MUTANT(rmsnorm, sum_saturates, "stores a finite residual sum where it overflows f16 or bf16"),
	MUTANT(rmsnorm, out_saturates, "stores a finite result where it overflows f16 or bf16"),
	MUTANT(rmsnorm, any_eps, "accepts a subnormal eps"),
	MUTANT(rmsnorm, eps_at_most_1, "lowers eps to 1"),
	MUTANT(rmsnorm, rows_16_bits, "cuts the number of rows to 16 bits"),
	MUTANT(rmsnorm, offset_32_bits, "cuts the offset of a row to 32 bits"),
	MUTANT(rmsnorm, vectors_of_32, "takes x to be 32-byte aligned"),
	{ "rmsnorm_corner_of_65_by_8", offsetof(struct cairn_impl, rmsnorm),
	  (void *)rmsnorm_corner_of_65_by_8,
	  "with one row and 8 elements past whole tiles, the last element is 0" },
	{ "rmsnorm_row_65_of_offset", offsetof(struct cairn_impl, rmsnorm), (void *)rmsnorm_row_65_of_offset,
	  "with weight_offset, the row past the first 64 is wrong in f16" },
	QUANT_OUT_LINES(rmsnorm),
	{ 0 }
};
