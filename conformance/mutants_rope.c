// SPDX-License-Identifier: Apache-2.0
/*
 * mutants_rope - wrong rotations, and wrong norms before them
 *
 * One plain implementation without a norm and one with it, whose steps can be bent one at a time.
 */
#include <stdlib.h>

#include "conformance/harness.h"

#define BENT(defect) \
	static int rope_##defect(const struct cairn_rope_args *a, void *stream) \
	{ \
		(void)stream; \
		return bent_rope(a, rope_bend_##defect); \
	}

static double rounded(int dtype, double v)
{
	uint64_t bits = 0;

	cairn_store(&bits, dtype, 0, v);
	return cairn_load(&bits, dtype, 0);
}

enum rope_bend {
	rope_bend_order_swapped, rope_bend_position_plus_1, rope_bend_position_is_row,
	rope_bend_rotates_tail, rope_bend_sine_sign, rope_bend_k_not_rotated,
	rope_bend_stride_ignored, rope_bend_scale_ignored, rope_bend_angle_in_bf16,
	rope_bend_reduced_in_f32, rope_bend_frequency_shifted, rope_bend_scale_twice,
	rope_bend_norm_ignored, rope_bend_norm_twice, rope_bend_norm_after_rotation,
	rope_bend_norm_of_rotated, rope_bend_norm_over_all_heads, rope_bend_norm_eps_ignored,
	rope_bend_norm_eps_outside,
	rope_bend_norm_weight_offset, rope_bend_norm_weights_swapped, rope_bend_norm_rounded,
	rope_bend_norm_tail_left, rope_bend_norm_weight_missing,
};

static void bent_rotate(const struct cairn_rope_args *a, void *x, int32_t heads, int64_t stride,
			enum rope_bend bend)
{
	int32_t half = a->rotary_dim / 2, pairs = bend == rope_bend_rotates_tail ? a->head_dim / 2 : half;
	int interleaved = a->interleaved ^ (bend == rope_bend_order_swapped);

	if (!stride || bend == rope_bend_stride_ignored)
		stride = (int64_t)heads * a->head_dim;
	for (int32_t i = 0; i < a->nnz; i++)
		for (int32_t h = 0; h < heads; h++)
			for (int32_t p = 0; p < pairs; p++) {
				int64_t at = i * stride + (int64_t)h * a->head_dim;
				int64_t ia = at + (interleaved ? 2 * p : p);
				int64_t ib = at + (interleaved ? 2 * p + 1
							       : p + (p < half ? half : a->head_dim / 2));
				int32_t position = bend == rope_bend_position_is_row ? i : a->positions[i];
				int32_t f = bend == rope_bend_frequency_shifted && p ? p - 1 : p % half;
				float angle = (float)(position + (bend == rope_bend_position_plus_1)) *
					      a->inv_freq[f];
				double xa, xb, c, s, scale = a->scale;

				if (ib >= at + a->head_dim)
					continue;
				if (bend == rope_bend_reduced_in_f32)
					angle -= floorf(angle / 6.2831855f) * 6.2831855f;
				if (bend == rope_bend_angle_in_bf16)
					angle = (float)rounded(CAIRN_BF16, angle);
				c = cos(angle);
				s = bend == rope_bend_sine_sign ? -sin(angle) : sin(angle);
				if (bend == rope_bend_scale_ignored)
					scale = 1;
				if (bend == rope_bend_scale_twice)
					scale *= scale;
				xa = cairn_load(x, a->dtype, ia);
				xb = cairn_load(x, a->dtype, ib);
				cairn_store(x, a->dtype, ia, (xa * c - xb * s) * scale);
				cairn_store(x, a->dtype, ib, (xb * c + xa * s) * scale);
			}
}

/* The norm of one head, in place, of doubles. */
static void bent_norm(const struct cairn_rope_args *a, const void *norm, double *x, double mean,
		      enum rope_bend bend)
{
	double s = 1 / sqrt(mean + (bend == rope_bend_norm_eps_ignored ? 0 : (double)a->norm_eps));

	if (bend == rope_bend_norm_eps_outside)
		s = 1 / (sqrt(mean) + (double)a->norm_eps);
	for (int32_t j = 0; j < a->head_dim; j++) {
		double w = cairn_load(norm, a->dtype, j) + (bend == rope_bend_norm_weight_offset);

		if (bend == rope_bend_norm_tail_left && j >= a->rotary_dim)
			continue;
		x[j] *= s * (bend == rope_bend_norm_weight_missing ? 1 : w);
		if (bend == rope_bend_norm_rounded)
			x[j] = rounded(a->dtype, x[j]);
	}
}

static double mean_square(const double *x, int64_t n)
{
	double sum = 0;

	for (int64_t j = 0; j < n; j++)
		sum += x[j] * x[j];
	return sum / (double)n;
}

/* Rotates the head x, of doubles. */
static void turn(const struct cairn_rope_args *a, double *x, int32_t position)
{
	int32_t half = a->rotary_dim / 2;

	for (int32_t p = 0; p < half; p++) {
		int32_t ia = a->interleaved ? 2 * p : p, ib = a->interleaved ? 2 * p + 1 : p + half;
		float angle = (float)position * a->inv_freq[p];
		double c = cos(angle), s = sin(angle), xa = x[ia], xb = x[ib];

		x[ia] = (xa * c - xb * s) * (double)a->scale;
		x[ib] = (xb * c + xa * s) * (double)a->scale;
	}
}

/* Heads that are normalised as well. */
static void bent_norm_rotate(const struct cairn_rope_args *a, void *at, const void *norm, int32_t heads,
			     int64_t stride, enum rope_bend bend)
{
	double x[512], row[512];

	if (!stride)
		stride = (int64_t)heads * a->head_dim;
	for (int32_t i = 0; i < a->nnz; i++) {
		double all = 0;

		for (int32_t h = 0; h < heads; h++) {
			for (int32_t j = 0; j < a->head_dim; j++)
				row[j] = cairn_load(at, a->dtype, i * stride + h * a->head_dim + j);
			all += mean_square(row, a->head_dim) / heads;
		}
		for (int32_t h = 0; h < heads; h++) {
			int64_t first = i * stride + (int64_t)h * a->head_dim;
			double mean;

			for (int32_t j = 0; j < a->head_dim; j++)
				x[j] = cairn_load(at, a->dtype, first + j);
			mean = mean_square(x, bend == rope_bend_norm_of_rotated ?
					   a->rotary_dim : a->head_dim);
			if (bend == rope_bend_norm_over_all_heads)
				mean = all;
			if (bend == rope_bend_norm_after_rotation)
				turn(a, x, a->positions[i]);
			bent_norm(a, norm, x, mean, bend);
			if (bend == rope_bend_norm_twice)
				bent_norm(a, norm, x, mean_square(x, a->head_dim), bend);
			if (bend != rope_bend_norm_after_rotation)
				turn(a, x, a->positions[i]);
			for (int32_t j = 0; j < a->head_dim; j++)
				cairn_store(at, a->dtype, first + j, x[j]);
		}
	}
}

static int bent_rope(const struct cairn_rope_args *a, enum rope_bend bend)
{
	const void *q_norm = a->q_norm, *k_norm = a->k_norm;

	CAIRN_TRY(cairn_rope_check(a));
	if (bend == rope_bend_norm_weights_swapped && q_norm && k_norm) {
		q_norm = a->k_norm;
		k_norm = a->q_norm;
	}
	if (bend == rope_bend_norm_ignored)
		q_norm = k_norm = NULL;
	if (q_norm)
		bent_norm_rotate(a, a->q, q_norm, a->num_qo_heads, a->q_stride, bend);
	else
		bent_rotate(a, a->q, a->num_qo_heads, a->q_stride, bend);
	if (!a->k || bend == rope_bend_k_not_rotated)
		return 0;
	if (k_norm)
		bent_norm_rotate(a, a->k, k_norm, a->num_kv_heads, a->k_stride, bend);
	else
		bent_rotate(a, a->k, a->num_kv_heads, a->k_stride, bend);
	return 0;
}

BENT(order_swapped)
BENT(position_plus_1)
BENT(position_is_row)
BENT(rotates_tail)
BENT(sine_sign)
BENT(k_not_rotated)
BENT(stride_ignored)
BENT(scale_ignored)
BENT(scale_twice)
BENT(angle_in_bf16)
BENT(reduced_in_f32)
BENT(frequency_shifted)
BENT(norm_ignored)
BENT(norm_twice)
BENT(norm_after_rotation)
BENT(norm_of_rotated)
BENT(norm_over_all_heads)
BENT(norm_eps_ignored)
BENT(norm_eps_outside)
BENT(norm_weight_offset)
BENT(norm_weights_swapped)
BENT(norm_rounded)
BENT(norm_tail_left)
BENT(norm_weight_missing)

#define MUTANT(defect, what) \
	{ "rope_" #defect, offsetof(struct cairn_impl, rope), (void *)rope_##defect, what }

const struct cairn_mutant cairn_rope_mutants[] = {
	MUTANT(order_swapped, "halves where pairs are meant and the reverse"),
	MUTANT(position_plus_1, "positions start at 1"),
	MUTANT(position_is_row, "takes the row for the position"),
	MUTANT(rotates_tail, "rotates past rotary_dim"),
	MUTANT(sine_sign, "rotates backwards"),
	MUTANT(k_not_rotated, "leaves the keys alone"),
	MUTANT(stride_ignored, "takes strided rows for contiguous ones"),
	MUTANT(scale_ignored, "leaves the scale out"),
	MUTANT(scale_twice, "scales twice"),
	MUTANT(angle_in_bf16, "the angle in bf16"),
	MUTANT(reduced_in_f32, "large angles reduced with a 24-bit 2 pi"),
	MUTANT(frequency_shifted, "the frequency of the pair before"),
	MUTANT(norm_ignored, "heads are not normalised"),
	MUTANT(norm_twice, "heads are normalised twice"),
	MUTANT(norm_after_rotation, "normalised after the rotation: the weights meet other elements"),
	MUTANT(norm_of_rotated, "the mean square of what is rotated, not of the head"),
	MUTANT(norm_over_all_heads, "one mean square for all heads of a row"),
	MUTANT(norm_eps_ignored, "no eps"),
	MUTANT(norm_eps_outside, "eps added to the root instead of under it"),
	MUTANT(norm_weight_offset, "1 + weight, as Gemma has it"),
	MUTANT(norm_weights_swapped, "q by the weights of k and the reverse"),
	MUTANT(norm_rounded, "the normalised head rounded to dtype before it is rotated"),
	MUTANT(norm_tail_left, "past rotary_dim nothing is normalised"),
	MUTANT(norm_weight_missing, "the weights are left out"),
	{ 0 }
};
