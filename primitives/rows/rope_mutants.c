// SPDX-License-Identifier: Apache-2.0
/* rope_mutants - wrong versions of rope, one defect each */
#include "conformance/harness.h"
#include "primitives/base/bend.h"
#include "primitives/base/cut_off.h"
#include "primitives/rows/rope.h"
#include "primitives/base/nudge.h"

enum rope_bend {
	rope_bend_order_swapped, rope_bend_position_plus_1, rope_bend_position_is_row,
	rope_bend_rotates_tail, rope_bend_sine_sign, rope_bend_k_not_rotated,
	rope_bend_stride_ignored, rope_bend_scale_ignored, rope_bend_angle_in_bf16,
	rope_bend_reduced_in_f32, rope_bend_frequency_shifted, rope_bend_scale_twice,
	rope_bend_norm_ignored, rope_bend_norm_twice, rope_bend_norm_after_rotation,
	rope_bend_norm_of_rotated, rope_bend_norm_over_all_heads, rope_bend_norm_eps_ignored,
	rope_bend_norm_eps_outside,
	rope_bend_norm_weight_offset, rope_bend_norm_weights_swapped, rope_bend_norm_rounded,
	rope_bend_norm_tail_left, rope_bend_norm_weight_missing, rope_bend_cut_off,
	rope_bend_k_stride_of_q, rope_bend_k_norm_needs_q_norm, rope_bend_norm_loses_scale,
	rope_bend_norm_loses_order, rope_bend_eps_at_least_1e_6, rope_bend_position_of_16_bits,
	rope_bend_eps_at_least_1e_30,
	rope_bend_nan_spreads, rope_bend_tf32, rope_bend_frequency_magnitude, rope_bend_frequency_0_is_1,
	rope_bend_infinity_clamped, rope_bend_saturates,
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
				double ya, yb;
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
				if (bend == rope_bend_frequency_magnitude)
					angle = fabsf(angle);
				if (bend == rope_bend_frequency_0_is_1 && a->inv_freq[f] == 0)
					angle = (float)position;
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
				if (bend == rope_bend_infinity_clamped && isinf(xa))
					xa = copysign(60000, xa);
				ya = (xa * c - xb * s) * scale;
				yb = (xb * c + xa * s) * scale;
				if (bend == rope_bend_cut_off) {
					ya = cut_off(a->dtype, ya);
					yb = cut_off(a->dtype, yb);
				}
				if (bend == rope_bend_saturates) {
					ya = saturated(a->dtype, ya);
					yb = saturated(a->dtype, yb);
				}
				cairn_store(x, a->dtype, ia, ya);
				cairn_store(x, a->dtype, ib, yb);
			}
}

/* Normalises one head of doubles in place; mean: its mean square. */
static void bent_norm(const struct cairn_rope_args *a, const void *norm, double *x, double mean,
		      enum rope_bend bend)
{
	double eps = bend == rope_bend_norm_eps_ignored ? 0 :
		     fmax((double)a->norm_eps, bend == rope_bend_eps_at_least_1e_6 ? 1e-6 :
		     bend == rope_bend_eps_at_least_1e_30 ? 1e-30 : 0);
	double s = 1 / sqrt(mean + eps);

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

/* Rotates one head of doubles in place. */
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

/* Normalises and rotates all heads of a tensor. */
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

/* Truncates a tensor to TF32, or spreads a NaN over its head. */
static void bent_input(const struct cairn_rope_args *a, void *x, int32_t heads, int64_t stride,
		       enum rope_bend bend)
{
	int64_t dim = a->head_dim, row = stride ? stride : heads * dim;

	for (int64_t at = 0; at < a->nnz * (int64_t)heads; at++) {
		int64_t first = at / heads * row + at % heads * dim;
		int nan = 0;

		for (int64_t j = first; j < first + dim; j++) {
			nan |= j < first + a->rotary_dim && isnan(cairn_load(x, a->dtype, j));
			if (bend == rope_bend_tf32 && a->dtype == CAIRN_F32)
				((uint32_t *)x)[j] &= ~0x1fffu;
		}
		if (nan && bend == rope_bend_nan_spreads)
			cairn_fill_nan(x, a->dtype, first, dim);
	}
}

static int bent_rope(const struct cairn_rope_args *given, enum rope_bend bend)
{
	struct cairn_rope_args changed = *given, *a = &changed;
	const void *q_norm = a->q_norm, *k_norm = a->k_norm;
	int32_t positions[512];

	CAIRN_TRY(cairn_rope_check(given));
	a->size = sizeof(*a);
	if (bend == rope_bend_tf32 || (bend == rope_bend_nan_spreads && !q_norm)) {
		bent_input(a, a->q, a->num_qo_heads, a->q_stride, bend);
		if (a->k && !k_norm)
			bent_input(a, a->k, a->num_kv_heads, a->k_stride, bend);
	}
	if (bend == rope_bend_position_of_16_bits && a->nnz <= 512) {
		for (int32_t i = 0; i < a->nnz; i++)
			positions[i] = (uint16_t)a->positions[i];
		a->positions = positions;
	}
	if (bend == rope_bend_k_stride_of_q && a->num_kv_heads == a->num_qo_heads)
		a->k_stride = a->q_stride;
	if (bend == rope_bend_k_norm_needs_q_norm && !q_norm)
		k_norm = NULL;
	if (bend == rope_bend_norm_loses_scale && q_norm)
		a->scale = 1;
	if (bend == rope_bend_norm_loses_order && q_norm)
		a->interleaved = 0;
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

BENT(rope, order_swapped)
BENT(rope, cut_off)
BENT(rope, position_plus_1)
BENT(rope, position_is_row)
BENT(rope, rotates_tail)
BENT(rope, sine_sign)
BENT(rope, k_not_rotated)
BENT(rope, stride_ignored)
BENT(rope, scale_ignored)
BENT(rope, scale_twice)
BENT(rope, angle_in_bf16)
BENT(rope, reduced_in_f32)
BENT(rope, frequency_shifted)
BENT(rope, norm_ignored)
BENT(rope, norm_twice)
BENT(rope, norm_after_rotation)
BENT(rope, norm_of_rotated)
BENT(rope, norm_over_all_heads)
BENT(rope, norm_eps_ignored)
BENT(rope, norm_eps_outside)
BENT(rope, norm_weight_offset)
BENT(rope, norm_weights_swapped)
BENT(rope, norm_rounded)
BENT(rope, norm_tail_left)
BENT(rope, norm_weight_missing)
BENT(rope, k_stride_of_q)
BENT(rope, k_norm_needs_q_norm)
BENT(rope, norm_loses_scale)
BENT(rope, norm_loses_order)
BENT(rope, eps_at_least_1e_6)
BENT(rope, eps_at_least_1e_30)
BENT(rope, position_of_16_bits)
BENT(rope, nan_spreads)
BENT(rope, frequency_magnitude)
BENT(rope, frequency_0_is_1)
BENT(rope, infinity_clamped)
BENT(rope, saturates)
BENT(rope, tf32)

static int rope_few_rows(const struct cairn_rope_args *a, void *stream)
{
	CAIRN_TRY(cairn_rope_ref(a, stream));
	if (a->dtype == CAIRN_F32 && a->nnz > 0 && a->nnz < 4 && a->positions[0] > 0)
		nudge(a->q, a->rotary_dim);
	return 0;
}

/* Runs one row after the other, keeping only 32 bits of each byte offset. */
static int rope_far_stride_32_bits(const struct cairn_rope_args *a, void *stream)
{
	int64_t esize = (int64_t)cairn_dtype_bytes(a->dtype), dim = a->head_dim;
	int64_t q = a->q_stride ? a->q_stride : a->num_qo_heads * dim;
	int64_t k = a->k_stride ? a->k_stride : a->num_kv_heads * dim;

	CAIRN_TRY(cairn_rope_check(a));
	for (int32_t i = 0; i < a->nnz; i++) {
		struct cairn_rope_args one = *a;

		one.size = sizeof(one);
		one.nnz = 1;
		one.q = (char *)a->q + (uint32_t)(i * q * esize);
		one.k = a->k ? (char *)a->k + (uint32_t)(i * k * esize) : NULL;
		one.positions = a->positions + i;
		CAIRN_TRY(cairn_rope_ref(&one, stream));
	}
	return 0;
}

static int rope_scale_magnitude(const struct cairn_rope_args *a, void *stream)
{
	struct cairn_rope_args other = *a;

	CAIRN_TRY(cairn_rope_check(a));
	other.size = sizeof(other);
	other.scale = fabsf(a->scale);
	return cairn_rope_ref(&other, stream);
}

static int rope_position_24_bits(const struct cairn_rope_args *a, void *stream)
{
	struct cairn_rope_args one = *a;
	int64_t q = a->q_stride ? a->q_stride : (int64_t)a->num_qo_heads * a->head_dim;
	int64_t k = a->k_stride ? a->k_stride : (int64_t)a->num_kv_heads * a->head_dim;
	int64_t esize = (int64_t)cairn_dtype_bytes(a->dtype);
	int32_t position;

	CAIRN_TRY(cairn_rope_check(a));
	one.size = sizeof(one);
	one.nnz = 1;
	one.positions = &position;
	for (int64_t i = 0; i < a->nnz; i++) {
		position = a->positions[i] & 0xffffff;
		one.q = (char *)a->q + i * q * esize;
		one.k = a->k ? (char *)a->k + i * k * esize : NULL;
		CAIRN_TRY(cairn_rope_ref(&one, stream));
	}
	return 0;
}

/* Keeps the table of the first call with this rotary_dim. */
static int rope_keeps_frequencies(const struct cairn_rope_args *a, void *stream)
{
	static float kept[257][256];
	static int known[257];
	struct cairn_rope_args other = *a;
	int half = a->rotary_dim / 2;

	CAIRN_TRY(cairn_rope_check(a));
	other.size = sizeof(other);
	if (!known[half])
		memcpy(kept[half], a->inv_freq, (size_t)half * sizeof(float));
	known[half] = 1;
	other.inv_freq = kept[half];
	return cairn_rope_ref(&other, stream);
}

static int rope_scale_0_is_none(const struct cairn_rope_args *a, void *stream)
{
	struct cairn_rope_args other = *a;

	CAIRN_TRY(cairn_rope_check(a));
	other.size = sizeof(other);
	other.scale = a->scale == 0 ? 1 : a->scale;
	return cairn_rope_ref(&other, stream);
}

/* Rotates the heads of k in the loop over those of q. */
static int rope_k_past_q(const struct cairn_rope_args *a, void *stream)
{
	struct cairn_rope_args other = *a;

	CAIRN_TRY(cairn_rope_check(a));
	other.size = sizeof(other);
	if (!a->k_stride)
		other.k_stride = (int64_t)a->num_kv_heads * a->head_dim;
	if (a->k && a->num_kv_heads > a->num_qo_heads)
		other.num_kv_heads = a->num_qo_heads;
	return cairn_rope_ref(&other, stream);
}

static int rope_rows_16_bits(const struct cairn_rope_args *a, void *stream)
{
	struct cairn_rope_args other = *a;

	CAIRN_TRY(cairn_rope_check(a));
	other.size = sizeof(other);
	other.nnz &= 0xffff;
	return cairn_rope_ref(&other, stream);
}

static int rope_k_stride_by_32(const struct cairn_rope_args *a, void *stream)
{
	struct cairn_rope_args other = *a;

	CAIRN_TRY(cairn_rope_check(a));
	other.size = sizeof(other);
	if (a->nnz > 256 && a->k_stride > 32)
		other.k_stride -= other.k_stride % 32;
	return cairn_rope_ref(&other, stream);
}

/* Rotates a pair that has the frequency of the one before it the other way round. */
static int rope_equal_frequencies(const struct cairn_rope_args *a, void *stream)
{
	struct cairn_rope_args b;
	float freq[256];

	CAIRN_TRY(cairn_rope_check(a));
	cairn_copy_args(&b, a, sizeof(b));
	for (int32_t p = 0; p < a->rotary_dim / 2; p++)
		freq[p] = p && a->inv_freq[p] == a->inv_freq[p - 1] ? -a->inv_freq[p] : a->inv_freq[p];
	b.inv_freq = freq;
	return cairn_rope_ref(&b, stream);
}

/* Takes the magnitude of the scale where heads have a norm and halves are rotated. */
static int rope_norm_scale_magnitude(const struct cairn_rope_args *a, void *stream)
{
	struct cairn_rope_args b;

	CAIRN_TRY(cairn_rope_check(a));
	cairn_copy_args(&b, a, sizeof(b));
	if ((b.q_norm || b.k_norm) && !b.interleaved)
		b.scale = fabsf(b.scale);
	return cairn_rope_ref(&b, stream);
}

/* In a single row past whole tiles of 64, the last of 7 heads of k is 0. */
static int rope_row_65_of_7_heads(const struct cairn_rope_args *a, void *stream)
{
	CAIRN_TRY(cairn_rope_ref(a, stream));
	if (a->k && a->nnz > 64 && a->nnz % 64 == 1 && a->num_kv_heads == 7) {
		int64_t stride = a->k_stride ? a->k_stride : 7 * (int64_t)a->head_dim;

		cairn_store(a->k, a->dtype, (a->nnz - 1) * stride + 6 * (int64_t)a->head_dim, 0);
	}
	return 0;
}

/* Heads of k are rotated two at a time in long calls. */
static int rope_ninth_head(const struct cairn_rope_args *a, void *stream)
{
	CAIRN_TRY(cairn_rope_ref(a, stream));
	if (a->k && a->nnz > 32 && a->num_kv_heads == 9)
		cairn_store(a->k, a->dtype, 8 * (int64_t)a->head_dim, 0);
	return 0;
}

/* Where only q has gaps and a part of a head is rotated, row 1 of k is taken to begin too early. */
static int rope_k_rows_of_rotary_dim(const struct cairn_rope_args *a, void *stream)
{
	CAIRN_TRY(cairn_rope_ref(a, stream));
	if (a->k && a->q_stride && !a->k_stride && a->rotary_dim < a->head_dim && a->nnz > 1)
		cairn_store(a->k, a->dtype, (int64_t)a->num_kv_heads * a->head_dim, 0);
	return 0;
}

const struct cairn_mutant cairn_rope_mutants[] = {
	MUTANT(rope, order_swapped, "swaps the half-split and the interleaved order of pairs"),
	MUTANT(rope, position_plus_1, "counts positions from 1"),
	MUTANT(rope, position_is_row, "uses the row index as the position"),
	MUTANT(rope, rotates_tail, "rotates past rotary_dim"),
	MUTANT(rope, sine_sign, "rotates backwards"),
	MUTANT(rope, k_not_rotated, "does not rotate the keys"),
	MUTANT(rope, stride_ignored, "treats strided rows as contiguous"),
	MUTANT(rope, scale_ignored, "omits the scale"),
	MUTANT(rope, scale_twice, "applies the scale twice"),
	MUTANT(rope, angle_in_bf16, "rounds the angle to bf16"),
	MUTANT(rope, reduced_in_f32, "reduces large angles with a 24-bit 2 pi"),
	MUTANT(rope, frequency_shifted, "uses the frequency of the previous pair"),
	MUTANT(rope, norm_ignored, "does not normalise heads"),
	MUTANT(rope, norm_twice, "normalises heads twice"),
	MUTANT(rope, norm_after_rotation, "applies the weights after the rotation, to the wrong elements"),
	MUTANT(rope, norm_of_rotated, "takes the mean square over rotary_dim instead of the whole head"),
	MUTANT(rope, norm_over_all_heads, "shares one mean square among all heads of a row"),
	MUTANT(rope, norm_eps_ignored, "omits eps"),
	MUTANT(rope, norm_eps_outside, "adds eps to the root instead of under it"),
	MUTANT(rope, norm_weight_offset, "uses 1 + weight, as Gemma does"),
	MUTANT(rope, norm_weights_swapped, "swaps the weights of q and k"),
	MUTANT(rope, norm_rounded, "rounds the normalised head to dtype before the rotation"),
	MUTANT(rope, norm_tail_left, "does not normalise elements past rotary_dim"),
	MUTANT(rope, norm_weight_missing, "omits the weights"),
	MUTANT(rope, cut_off, "cuts the result off instead of rounding it"),
	MUTANT(rope, k_stride_of_q, "uses the stride of q for k"),
	MUTANT(rope, k_norm_needs_q_norm, "normalises k only if q has a norm"),
	MUTANT(rope, norm_loses_scale, "omits the scale if there is a norm"),
	MUTANT(rope, norm_loses_order, "ignores `interleaved` if there is a norm"),
	MUTANT(rope, eps_at_least_1e_6, "raises eps to 1e-6"),
	MUTANT(rope, eps_at_least_1e_30, "raises eps to 1e-30"),
	MUTANT(rope, position_of_16_bits, "takes positions modulo 65536"),
	MUTANT(rope, nan_spreads, "makes the whole head NaN for a NaN without a norm"),
	MUTANT(rope, tf32, "cuts f32 inputs to TF32"),
	MUTANT(rope, far_stride_32_bits, "cuts the offset of a row to 32 bits"),
	MUTANT(rope, few_rows, "gives other bits if there are fewer than 4 rows"),
	MUTANT(rope, equal_frequencies, "rotates a pair with the frequency of the one before it backwards"),
	MUTANT(rope, norm_scale_magnitude, "ignores the sign of the scale if there is a norm"),
	MUTANT(rope, scale_magnitude, "ignores the sign of the scale"),
	MUTANT(rope, position_24_bits, "takes positions modulo 2^24"),
	MUTANT(rope, frequency_magnitude, "ignores the sign of a frequency"),
	MUTANT(rope, frequency_0_is_1, "takes a frequency of 0 for 1"),
	MUTANT(rope, infinity_clamped, "takes an infinity for a large number"),
	MUTANT(rope, saturates, "stores a finite result where it overflows f16 or bf16"),
	MUTANT(rope, scale_0_is_none, "takes a scale of 0 for none"),
	MUTANT(rope, k_past_q, "rotates no more heads of k than q has"),
	MUTANT(rope, rows_16_bits, "cuts the number of rows to 16 bits"),
	MUTANT(rope, k_stride_by_32, "with more than 256 rows takes k_stride for a multiple of 32"),
	MUTANT(rope, keeps_frequencies, "keeps inv_freq of the first call with the same rotary_dim"),
	{ "rope_row_65_of_7_heads", offsetof(struct cairn_impl, rope), (void *)rope_row_65_of_7_heads,
	  "in a single row past whole tiles, the last of 7 heads of k is wrong" },
	{ "rope_ninth_head", offsetof(struct cairn_impl, rope), (void *)rope_ninth_head,
	  "with more than 32 rows, the ninth of nine heads of k is wrong" },
	{ "rope_k_rows_of_rotary_dim", offsetof(struct cairn_impl, rope), (void *)rope_k_rows_of_rotary_dim,
	  "with gaps in q alone, rows of k that are rotated in part begin at the wrong place" },
	{ 0 }
};
