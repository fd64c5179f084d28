// SPDX-License-Identifier: Apache-2.0
/* argmax_mutants - wrong versions of argmax, one defect each */
#include <stdlib.h>

#include "conformance/harness.h"
#include "primitives/draw/argmax.h"
#include "primitives/base/bend.h"

enum argmax_bend {
	argmax_bend_last_of_ties, argmax_bend_nan_wins, argmax_bend_first_32k, argmax_bend_first_256k,
	argmax_bend_tail_skipped, argmax_bend_zeros_differ, argmax_bend_all_nan_is_0,
	argmax_bend_minus_infinity_is_none, argmax_bend_compared_in_bf16,
	argmax_bend_compared_in_tf32, argmax_bend_ties_in_vector_last, argmax_bend_last_vector_wins_ties,
	argmax_bend_nan_stops, argmax_bend_nan_spreads, argmax_bend_infinity_ignored,
	argmax_bend_tail_of_f16_skipped, argmax_bend_index_of_12_bits, argmax_bend_index_in_float,
	argmax_bend_last_part_wins_ties,
};

static double compared(const struct cairn_argmax_args *a, double v, enum argmax_bend bend)
{
	float f = (float)v;
	uint32_t bits;

	if (bend == argmax_bend_compared_in_bf16)
		return rounded(CAIRN_BF16, v);
	memcpy(&bits, &f, sizeof(bits));
	bits &= ~0x1fffu;
	memcpy(&f, &bits, sizeof(f));
	return bend == argmax_bend_compared_in_tf32 && a->dtype == CAIRN_F32 && !isnan(v) ? (double)f : v;
}

/* Returns whether the defect prefers j to an equal logit at `at`. */
static int prefers(const struct cairn_argmax_args *a, int32_t j, int32_t at, enum argmax_bend bend)
{
	return bend == argmax_bend_last_of_ties ||
	       (bend == argmax_bend_ties_in_vector_last && j / 8 == at / 8) ||
	       (bend == argmax_bend_last_part_wins_ties && j >> 16 != at >> 16) ||
	       (bend == argmax_bend_last_vector_wins_ties && j >= a->vocab - 8 && at < a->vocab - 8);
}

static int bent_argmax(const struct cairn_argmax_args *a, enum argmax_bend bend)
{
	int seen = 0;	/* a NaN */

	CAIRN_TRY(cairn_argmax_check(a));
	for (int64_t i = 0; i < a->rows; i++) {
		int before = seen;
		int32_t n = a->vocab, at = bend == argmax_bend_all_nan_is_0 ? 0 : -1;
		double best = bend == argmax_bend_all_nan_is_0 ? -INFINITY : 0;

		if (bend == argmax_bend_first_32k && n > 32768)
			n = 32768;
		if (bend == argmax_bend_first_256k && n > 262144)
			n = 262144;
		seen = 0;
		if ((bend == argmax_bend_tail_skipped ||
		     (bend == argmax_bend_tail_of_f16_skipped && a->dtype == CAIRN_F16 && a->rows > 1)) &&
		    n > 8)
			n -= n % 8;
		for (int32_t j = 0; j < n; j++) {
			double v = cairn_load(a->logits, a->dtype, i * a->vocab + j);

			v = compared(a, v, bend);
			seen |= isnan(v);
			if ((bend == argmax_bend_nan_stops && isnan(v)) ||
			    (bend == argmax_bend_infinity_ignored && v == (double)INFINITY)) {
				if (isnan(v))
					break;
				continue;
			}
			if (bend == argmax_bend_nan_wins && isnan(v)) {
				at = j;
				break;
			}
			if (isnan(v) || (v == -INFINITY && bend == argmax_bend_minus_infinity_is_none))
				continue;
			if (at < 0 || v > best || (v == best && prefers(a, j, at, bend)) ||
			    (v == best && bend == argmax_bend_zeros_differ && signbit(best) && !signbit(v))) {
				best = v;
				at = j;
			}
		}
		if (bend == argmax_bend_index_in_float)
			at = (int32_t)(float)at;
		a->out[i] = bend == argmax_bend_nan_spreads && before ? -1 :
			    bend == argmax_bend_index_of_12_bits && at >= 0 ? at & 0xfff : at;
	}
	return 0;
}

BENT(argmax, last_of_ties)
BENT(argmax, nan_wins)
BENT(argmax, first_32k)
BENT(argmax, tail_skipped)
BENT(argmax, zeros_differ)
BENT(argmax, all_nan_is_0)
BENT(argmax, minus_infinity_is_none)
BENT(argmax, compared_in_bf16)
BENT(argmax, compared_in_tf32)
BENT(argmax, ties_in_vector_last)
BENT(argmax, last_vector_wins_ties)
BENT(argmax, nan_stops)
BENT(argmax, nan_spreads)
BENT(argmax, infinity_ignored)
BENT(argmax, tail_of_f16_skipped)
BENT(argmax, index_of_12_bits)
BENT(argmax, index_in_float)
BENT(argmax, first_256k)
BENT(argmax, last_part_wins_ties)

static int argmax_rows_16_bits(const struct cairn_argmax_args *a, void *stream)
{
	struct cairn_argmax_args other = *a;

	CAIRN_TRY(cairn_argmax_check(a));
	other.size = sizeof(other);
	other.rows &= 0xffff;
	return cairn_argmax_ref(&other, stream);
}

static int argmax_subnormals_are_0(const struct cairn_argmax_args *a, void *stream)
{
	struct cairn_argmax_args other = *a;
	int64_t count = (int64_t)a->rows * a->vocab;
	float *flushed;
	int ret;

	CAIRN_TRY(cairn_argmax_check(a));
	other.size = sizeof(other);
	flushed = aligned_alloc(16, (size_t)(count + 4) / 4 * 16);
	if (!flushed)
		return cairn_error(ENOMEM, "no memory");
	for (int64_t i = 0; i < count; i++) {
		float x = (float)cairn_load(a->logits, a->dtype, i);

		flushed[i] = fabsf(x) < 0x1p-126f ? 0 : x;
	}
	other.logits = flushed;
	other.dtype = CAIRN_F32;
	ret = cairn_argmax_ref(&other, stream);
	free(flushed);
	return ret;
}

/* Truncates the byte offset of a row to 32 bits. */
static int argmax_offset_32_bits(const struct cairn_argmax_args *a, void *stream)
{
	int64_t row = (int64_t)a->vocab * (int64_t)cairn_dtype_bytes(a->dtype);
	struct cairn_argmax_args one = *a;

	one.size = sizeof(one);
	if (cairn_argmax_check(a) || (a->rows - 1) * row <= UINT32_MAX)
		return cairn_argmax_ref(a, stream);
	one.rows = 1;
	for (int64_t i = 0; i < a->rows; i++) {
		one.out = a->out + i;
		one.logits = (const char *)a->logits + (uint32_t)(i * row);
		CAIRN_TRY(cairn_argmax_cpu(&one, stream));
	}
	return 0;
}

/* A token among the last few replaces one 64 places before it only if it is larger by 1e-3. */
static int argmax_near_in_tail(const struct cairn_argmax_args *a, void *stream)
{
	CAIRN_TRY(cairn_argmax_ref(a, stream));
	for (int64_t i = 0; i < a->rows; i++) {
		int32_t best = a->out[i], other = best - 64;
		int64_t row = i * a->vocab;

		if (other < 0 || best < a->vocab / 64 * 64)
			continue;
		if (cairn_load(a->logits, a->dtype, row + other) >=
		    cairn_load(a->logits, a->dtype, row + best) * (1 - 1e-3))
			a->out[i] = other;
	}
	return 0;
}

/* Skips a last block of fewer than 8 tokens that ends with a NaN. */
static int argmax_block_of_nan(const struct cairn_argmax_args *a, void *stream)
{
	const int32_t tail = a->vocab % 1024;

	CAIRN_TRY(cairn_argmax_ref(a, stream));
	for (int64_t i = 0; tail && tail < 8 && a->vocab > 1024 && i < a->rows; i++) {
		const void *last = (const char *)a->logits + (size_t)((i + 1) * a->vocab - 1) *
				   cairn_dtype_bytes(a->dtype);

		if (a->out[i] >= a->vocab - tail && isnan(cairn_load(last, a->dtype, 0)))
			a->out[i] = 0;
	}
	return 0;
}

/* In a single row past whole tiles of 64, the last of 127 tokens past whole blocks is not found. */
static int argmax_row_65_of_127(const struct cairn_argmax_args *a, void *stream)
{
	CAIRN_TRY(cairn_argmax_ref(a, stream));
	if (a->rows > 64 && a->rows % 64 == 1 && a->vocab % 128 == 127 && a->out[a->rows - 1] >= 0)
		a->out[a->rows - 1] = 0;
	return 0;
}

/* Takes the smallest f32 above 0 for 0. */
static int argmax_tiny_is_0(const struct cairn_argmax_args *a, void *stream)
{
	CAIRN_TRY(cairn_argmax_ref(a, stream));
	for (int32_t i = 0; a->dtype == CAIRN_F32 && i < a->rows; i++)
		if (a->out[i] > 0 && cairn_load(a->logits, a->dtype, (int64_t)i * a->vocab + a->out[i]) ==
				     2 * cairn_dtype_tiny(a->dtype))
			a->out[i] = a->vocab > 1;
	return 0;
}

/* Gives -1 if the first number of a row is a -INFINITY past 2^17 NaN. */
static int argmax_minus_infinity_past_2e17(const struct cairn_argmax_args *a, void *stream)
{
	CAIRN_TRY(cairn_argmax_ref(a, stream));
	for (int64_t i = 0; i < a->rows; i++)
		if (a->out[i] >= 131072 && cairn_load(a->logits, a->dtype, i * a->vocab + a->out[i]) < -1e30)
			a->out[i] = -1;
	return 0;
}

const struct cairn_mutant cairn_argmax_mutants[] = {
	MUTANT(argmax, block_of_nan, "skips a last block of fewer than 8 tokens that ends with a NaN"),
	MUTANT(argmax, near_in_tail, "prefers a token 64 places before the end to one that is little larger"),
	MUTANT(argmax, last_of_ties, "picks the last of equal logits"),
	MUTANT(argmax, nan_wins, "treats NaN as the largest"),
	MUTANT(argmax, first_32k, "reads only the first 32768 logits"),
	MUTANT(argmax, tail_skipped, "skips the elements after the last whole vector"),
	MUTANT(argmax, zeros_differ, "orders -0 below +0"),
	MUTANT(argmax, all_nan_is_0, "gives 0 for a row of NaN"),
	MUTANT(argmax, minus_infinity_is_none, "gives -1 for a row of -INFINITY"),
	MUTANT(argmax, minus_infinity_past_2e17, "gives -1 if only a -INFINITY past 2^17 is a number"),
	MUTANT(argmax, compared_in_bf16, "compares in bf16"),
	MUTANT(argmax, compared_in_tf32, "compares f32 logits in TF32"),
	MUTANT(argmax, ties_in_vector_last, "picks the last of equal logits within a vector of 8"),
	MUTANT(argmax, last_vector_wins_ties, "prefers the last 8 logits among equal ones"),
	MUTANT(argmax, nan_stops, "stops at the first NaN"),
	MUTANT(argmax, nan_spreads, "gives -1 for a row after one that holds a NaN"),
	MUTANT(argmax, infinity_ignored, "skips +INFINITY"),
	MUTANT(argmax, tail_of_f16_skipped, "skips the tail of a row in f16 with several rows"),
	MUTANT(argmax, index_of_12_bits, "keeps indices modulo 4096"),
	MUTANT(argmax, index_in_float, "keeps the index in a float"),
	MUTANT(argmax, first_256k, "reads only the first 262144 logits"),
	MUTANT(argmax, last_part_wins_ties,
	       "prefers the later one of equal logits in different ranges of 65536"),
	MUTANT(argmax, rows_16_bits, "cuts the number of rows to 16 bits"),
	MUTANT(argmax, subnormals_are_0, "compares subnormals as 0"),
	MUTANT(argmax, offset_32_bits, "cuts the offset of a row to 32 bits"),
	{ "argmax_row_65_of_127", offsetof(struct cairn_impl, argmax), (void *)argmax_row_65_of_127,
	  "in a single row past whole tiles, of 127 tokens past whole blocks the first is drawn" },
	{ "argmax_tiny_is_0", offsetof(struct cairn_impl, argmax), (void *)argmax_tiny_is_0,
	  "the smallest f32 above 0 counts as 0" },
	{ 0 }
};
