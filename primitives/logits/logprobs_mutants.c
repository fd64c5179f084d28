// SPDX-License-Identifier: Apache-2.0
/* logprobs_mutants - wrong versions of logprobs, one defect each */
#include <float.h>
#include <stdlib.h>
#include <string.h>

#include "conformance/harness.h"
#include "primitives/base/bend.h"
#include "primitives/logits/logprobs.h"
#include "primitives/base/cut_off.h"
#include "primitives/base/nudge.h"
#include "primitives/base/kept.h"

enum logprobs_bend {
	logprobs_bend_base_2, logprobs_bend_ties_to_the_last, logprobs_bend_rising, logprobs_bend_no_maximum,
	logprobs_bend_nan_spreads, logprobs_bend_last_token_missing, logprobs_bend_chosen_excluded,
	logprobs_bend_unwanted_written, logprobs_bend_logits_themselves, logprobs_bend_probabilities,
	logprobs_bend_sum_of_top, logprobs_bend_small_vocab_repeats, logprobs_bend_sum_in_bf16,
	logprobs_bend_row_of_nothing_is_nan, logprobs_bend_tf32_results, logprobs_bend_weights_in_f16,
	logprobs_bend_nan_row_spreads, logprobs_bend_tie_across_vectors, logprobs_bend_infinity_is_nan,
	logprobs_bend_top_of_16, logprobs_bend_minus_zero_less, logprobs_bend_wanted_is_0_or_1,
};

struct bent_token {
	double logit;
	int32_t id;
};

static int bent_order(const void *pa, const void *pb)
{
	const struct bent_token *a = pa, *b = pb;

	return a->logit != b->logit ? (a->logit < b->logit) - (a->logit > b->logit) : a->id - b->id;
}

static int bent_ties(const void *pa, const void *pb)
{
	const struct bent_token *a = pa, *b = pb;

	return a->logit == b->logit && a->id / 4 != b->id / 4 ? b->id - a->id : bent_order(pa, pb);
}

static int bent_zeros(const void *pa, const void *pb)
{
	const struct bent_token *a = pa, *b = pb;

	return a->logit == b->logit && !signbit(a->logit) != !signbit(b->logit) ?
	       !!signbit(a->logit) - !!signbit(b->logit) : bent_order(pa, pb);
}

/* log(sum(exp(logit - m))) with m the largest logit, or 0 for the defect no_maximum. */
static double bent_lse(const struct bent_token *t, int32_t n, enum logprobs_bend bend)
{
	double max = bend == logprobs_bend_no_maximum ? 0 : t[0].logit, sum = 0;

	for (int32_t j = 0; j < n; j++) {
		double w = bend == logprobs_bend_no_maximum ? (double)expf((float)t[j].logit) :
			   exp(t[j].logit - max);

		sum += bend == logprobs_bend_weights_in_f16 ? rounded(CAIRN_F16, w) : w;
		if (bend == logprobs_bend_sum_in_bf16)
			sum = cairn_bf16_to_float(cairn_double_to_bf16(sum));
	}
	return bend == logprobs_bend_no_maximum ? (double)logf((float)sum) : log(sum);
}

static float bent_value(double logit, double max, double lse, enum logprobs_bend bend)
{
	double p = isinf(max) && bend != logprobs_bend_row_of_nothing_is_nan ? max :
		   logit - (bend == logprobs_bend_no_maximum ? 0 : max) - lse;

	if (bend == logprobs_bend_logits_themselves)
		return (float)logit;
	if (bend == logprobs_bend_tf32_results && isfinite(p))
		return tf32(p);
	if (bend == logprobs_bend_infinity_is_nan && max == (double)FLT_MAX)
		return NAN;
	if (bend == logprobs_bend_probabilities)
		return (float)exp(p);
	return (float)(bend == logprobs_bend_base_2 ? p / log(2) : p);
}

/* A token replaces the last of 20 only if it is larger by 1e-4. */
static int logprobs_near_is_equal(const struct cairn_logprobs_args *a, void *stream)
{
	CAIRN_TRY(cairn_logprobs_ref(a, stream));
	for (int32_t i = 0; a->k == 20 && a->vocab > 20 && i < a->rows; i++) {
		int32_t *last = &a->top_ids[(int64_t)i * 20 + 19];
		const float *x = a->logits + (int64_t)i * a->vocab;

		for (int32_t j = *last - 1; (!a->wanted || a->wanted[i]) && j >= 20; j--)
			if (x[j] < x[*last] && x[j] + 1e-4f > x[*last])
				*last = j;
	}
	return 0;
}

static int logprobs_top_of_none(const struct cairn_logprobs_args *a, void *stream)
{
	CAIRN_TRY(cairn_logprobs_ref(a, stream));
	if (a->rows && !a->k && a->top)
		a->top[0] = 0;
	return 0;
}

static int bent_logprobs(const struct cairn_logprobs_args *a, enum logprobs_bend bend)
{
	double largest = 0;	/* logit of the row before */

	CAIRN_TRY(cairn_logprobs_check(a));
	for (int32_t i = 0; i < a->rows; i++) {
		int32_t n = a->vocab - (bend == logprobs_bend_last_token_missing && a->vocab > 1);
		struct bent_token *t = calloc((size_t)a->vocab + 1, sizeof(*t));
		double chosen = -(double)INFINITY, lse;
		int32_t first = 0, token = a->tokens[i];

		if (!t)
			return cairn_error(ENOMEM, "no memory");
		for (int32_t j = 0; j < n; j++) {
			float x = a->logits[(int64_t)i * a->vocab + j];

			if (bend != logprobs_bend_nan_spreads || !isnan(x))
				x = isnan(x) ? -INFINITY : fminf(x, FLT_MAX);
			t[j].logit = (double)x;
			t[j].id = bend == logprobs_bend_ties_to_the_last ? -j : j;
			if (j == token)
				chosen = (double)x;
			if (bend == logprobs_bend_rising)
				t[j].logit = -t[j].logit;
		}
		qsort(t, n, sizeof(*t), bend == logprobs_bend_tie_across_vectors ? bent_ties :
		      bend == logprobs_bend_minus_zero_less ? bent_zeros : bent_order);
		lse = bent_lse(t, bend == logprobs_bend_sum_of_top && a->k && a->k < n ? a->k : n, bend);
		if (bend == logprobs_bend_chosen_excluded && t[0].id == token)
			first = 1;
		if (bend == logprobs_bend_nan_row_spreads && i && isinf(largest))
			lse = NAN;
		largest = t[0].logit;
		if (bend == logprobs_bend_wanted_is_0_or_1 && a->wanted && a->wanted[i] != 1) {
			free(t);
			continue;
		}
		if (!a->wanted || a->wanted[i] || bend == logprobs_bend_unwanted_written) {
			a->chosen[i] = bent_value(chosen, t[0].logit, lse, bend);
			for (int32_t k = 0; k < a->k; k++) {
				int32_t at = k + first < n ? k + first : n - 1;
				int limited = bend == logprobs_bend_top_of_16 && at > 15;
				int there = k + first < n || bend == logprobs_bend_small_vocab_repeats;

				at = limited ? 15 : at;
				a->top_ids[(int64_t)i * a->k + k] = there ? abs(t[at].id) : -1;
				a->top[(int64_t)i * a->k + k] = there ?
					bent_value(t[at].logit, t[0].logit, lse, bend) : -INFINITY;
			}
		}
		free(t);
	}
	return 0;
}

BENT(logprobs, base_2)
BENT(logprobs, ties_to_the_last)
BENT(logprobs, rising)
BENT(logprobs, no_maximum)
BENT(logprobs, nan_spreads)
BENT(logprobs, last_token_missing)
BENT(logprobs, chosen_excluded)
BENT(logprobs, unwanted_written)
BENT(logprobs, logits_themselves)
BENT(logprobs, probabilities)
BENT(logprobs, sum_of_top)
BENT(logprobs, small_vocab_repeats)
BENT(logprobs, sum_in_bf16)
BENT(logprobs, row_of_nothing_is_nan)
BENT(logprobs, tf32_results)
BENT(logprobs, weights_in_f16)
BENT(logprobs, nan_row_spreads)
BENT(logprobs, tie_across_vectors)
BENT(logprobs, infinity_is_nan)
BENT(logprobs, top_of_16)
BENT(logprobs, minus_zero_less)
BENT(logprobs, wanted_is_0_or_1)

/* Subtracts the maximum of all rows from each row, which changes the last bits of the other rows. */
static int logprobs_maximum_of_all_rows(const struct cairn_logprobs_args *a, void *stream)
{
	int32_t best = 0;

	CAIRN_TRY(cairn_logprobs_ref(a, stream));
	for (int32_t i = 1; i < a->rows; i++)
		if (a->logits[(int64_t)i * a->vocab] > a->logits[(int64_t)best * a->vocab])
			best = i;
	for (int32_t i = 0; i < a->rows; i++)
		if (i != best && (!a->wanted || a->wanted[i]))
			nudge(&a->chosen[i], 1);
	return 0;
}

/* Runs the wanted rows one by one and keeps only 32 bits of each row's offset, in units of `unit` bytes. */
static int by_short_offset(const struct cairn_logprobs_args *a, void *stream, uint32_t unit)
{
	CAIRN_TRY(cairn_logprobs_check(a));
	for (int32_t i = 0; i < a->rows; i++) {
		struct cairn_logprobs_args one = *a;

		if (a->wanted && !a->wanted[i])
			continue;
		one.size = sizeof(one);
		one.rows = 1;
		one.wanted = NULL;
		one.logits += (uint64_t)(uint32_t)((int64_t)i * a->vocab * 4 / unit) * unit / 4;
		one.tokens += i;
		one.chosen += i;
		if (a->k) {
			one.top_ids += (int64_t)i * a->k;
			one.top += (int64_t)i * a->k;
		}
		if ((uintptr_t)one.logits % 16 == 0)
			CAIRN_TRY(cairn_logprobs_ref(&one, stream));
		else
			return cairn_logprobs_ref(a, stream);
	}
	return 0;
}

static int logprobs_far_rows_32_bits(const struct cairn_logprobs_args *a, void *stream)
{
	return by_short_offset(a, stream, 1);
}

static int logprobs_far_elements_32_bits(const struct cairn_logprobs_args *a, void *stream)
{
	return by_short_offset(a, stream, 4);
}

static float bent_logit(const struct cairn_logprobs_args *a, int64_t at)
{
	return isnan(a->logits[at]) ? -INFINITY : fminf(a->logits[at], FLT_MAX);
}

/*
 * A full list of 2 to 16 tokens, which would fit into registers, accepts a later token with an equal logit.
 */
static int logprobs_late_tie_taken(const struct cairn_logprobs_args *a, void *stream)
{
	CAIRN_TRY(cairn_logprobs_ref(a, stream));
	for (int32_t i = 0; i < a->rows && a->k && a->k <= a->vocab; i++) {
		int32_t *last = a->top_ids + (int64_t)i * a->k + a->k - 1;
		int64_t row = (int64_t)i * a->vocab;

		if (a->k < 2 || a->k > 16 || (a->wanted && !a->wanted[i]))
			continue;
		for (int32_t j = *last + 40000; j < a->vocab; j++)
			if (bent_logit(a, row + j) == bent_logit(a, row + *last))
				*last = j;
	}
	return 0;
}

/* Inserts a larger logit into a full list in place of the first of its smallest ones, not of the last. */
static int logprobs_first_of_smallest_dropped(const struct cairn_logprobs_args *a, void *stream)
{
	struct bent_token list[CAIRN_LOGPROBS_MAX];

	CAIRN_TRY(cairn_logprobs_ref(a, stream));
	for (int32_t i = 0; i < a->rows && a->k && a->k <= a->vocab; i++) {
		int64_t row = (int64_t)i * a->vocab;
		int32_t num = 0, least;

		for (int32_t j = 0; j < a->vocab; j++) {
			struct bent_token x = { (double)bent_logit(a, row + j), j };

			if (num < a->k) {
				list[num++] = x;
				continue;
			}
			least = 0;
			for (int32_t n = 1; n < num; n++)
				if (list[n].logit < list[least].logit)
					least = n;
			if (x.logit <= list[least].logit)
				continue;
			memmove(list + least, list + least + 1,
				(size_t)(num - 1 - least) * sizeof(*list));
			list[num - 1] = x;
		}
		qsort(list, (size_t)num, sizeof(*list), bent_order);
		for (int32_t n = 0; n < num && (!a->wanted || a->wanted[i]); n++)
			a->top_ids[(int64_t)i * a->k + n] = list[n].id;
	}
	return 0;
}

static int logprobs_wanted_below_0(const struct cairn_logprobs_args *a, void *stream)
{
	struct cairn_logprobs_args other = *a;
	int32_t *wanted;
	int ret;

	CAIRN_TRY(cairn_logprobs_check(a));
	other.size = sizeof(other);
	wanted = malloc(((size_t)a->rows + 1) * sizeof(*wanted));
	if (!wanted)
		return cairn_error(ENOMEM, "no memory");
	for (int32_t i = 0; i < a->rows; i++)
		wanted[i] = !a->wanted || a->wanted[i] > 0;
	other.wanted = wanted;
	ret = cairn_logprobs_ref(&other, stream);
	free(wanted);
	return ret;
}

/* Reads the logit of the drawn token before it compares the token with vocab. */
static int logprobs_reads_past_vocab(const struct cairn_logprobs_args *a, void *stream)
{
	volatile float read = 0;

	CAIRN_TRY(cairn_logprobs_ref(a, stream));
	for (int32_t i = 0; i < a->rows; i++)
		if (a->tokens[i] >= 0 && a->tokens[i] <= a->vocab && (!a->wanted || a->wanted[i]))
			read = a->logits[(int64_t)i * a->vocab + a->tokens[i]];
	(void)read;
	return 0;
}

/* Compares a token only with -1 and vocab, and treats any other negative one as 0. */
static int logprobs_minus_1_alone(const struct cairn_logprobs_args *a, void *stream)
{
	struct cairn_logprobs_args other = *a;
	int32_t *tokens;
	int ret;

	CAIRN_TRY(cairn_logprobs_check(a));
	other.size = sizeof(other);
	tokens = malloc(((size_t)a->rows + 1) * sizeof(*tokens));
	if (!tokens)
		return cairn_error(ENOMEM, "no memory");
	for (int32_t i = 0; i < a->rows; i++)
		tokens[i] = a->tokens[i] < -1 ? 0 : a->tokens[i];
	other.tokens = tokens;
	ret = cairn_logprobs_ref(&other, stream);
	free(tokens);
	return ret;
}

static int logprobs_keeps_wanted(const struct cairn_logprobs_args *a, void *stream)
{
	struct cairn_logprobs_args other = *a;

	CAIRN_TRY(cairn_logprobs_check(a));
	other.size = sizeof(other);
	if (a->wanted)
		other.wanted = kept(a->wanted, a->rows);
	return cairn_logprobs_ref(&other, stream);
}

/* In the last of 63 rows, one token past whole blocks of 256 is lost. */
static int logprobs_row_63_of_257(const struct cairn_logprobs_args *a, void *stream)
{
	CAIRN_TRY(cairn_logprobs_ref(a, stream));
	if (a->rows % 64 == 63 && a->vocab % 256 == 1 && a->vocab > 1 &&
	    (!a->wanted || a->wanted[a->rows - 1]))
		a->chosen[a->rows - 1] -= 1;
	return 0;
}

/* Without k, weighs a NaN of rows of more than 2^16 logits as a 0 if `wanted` is given. */
static int logprobs_nan_of_long_rows(const struct cairn_logprobs_args *a, void *stream)
{
	CAIRN_TRY(cairn_logprobs_ref(a, stream));
	for (int32_t i = 0; a->wanted && !a->k && a->vocab > 65536 && i < a->rows; i++)
		for (int32_t j = 0; a->wanted[i] && i % 2 && j < a->vocab; j++)
			if (isnan(a->logits[(int64_t)i * a->vocab + j]))
				a->chosen[i] -= 1 / (float)a->vocab;
	return 0;
}

const struct cairn_mutant cairn_logprobs_mutants[] = {
	MUTANT(logprobs, near_is_equal, "keeps the last of 20 tokens unless another is larger by 1e-4"),
	MUTANT(logprobs, top_of_none, "writes the likeliest token even if k is 0"),
	MUTANT_BARE(logprobs, base_2, "takes logarithms to base 2"),
	MUTANT_BARE(logprobs, ties_to_the_last, "orders equal logits by falling index"),
	MUTANT_BARE(logprobs, rising, "orders the least likely tokens first"),
	MUTANT_BARE(logprobs, no_maximum, "lets exp overflow"),
	MUTANT_BARE(logprobs, nan_spreads, "lets a NaN make the row NaN"),
	MUTANT_BARE(logprobs, last_token_missing, "reads vocab - 1 tokens"),
	MUTANT_BARE(logprobs, chosen_excluded, "excludes the chosen token from the likeliest"),
	MUTANT_BARE(logprobs, unwanted_written, "writes rows that are not wanted"),
	MUTANT_BARE(logprobs, logits_themselves, "does not normalise"),
	MUTANT_BARE(logprobs, probabilities, "gives probabilities instead of their logarithms"),
	MUTANT_BARE(logprobs, sum_of_top, "normalises over the k likeliest only"),
	MUTANT_BARE(logprobs, small_vocab_repeats, "repeats the last token of a small vocabulary"),
	MUTANT_BARE(logprobs, sum_in_bf16, "keeps the sum in bf16"),
	MUTANT_BARE(logprobs, row_of_nothing_is_nan, "gives NaN for a row of -INFINITY"),
	MUTANT(logprobs, tf32_results, "cuts results to TF32"),
	MUTANT(logprobs, weights_in_f16, "rounds the weights of the sum to f16"),
	MUTANT(logprobs, nan_row_spreads, "gives NaN for a row after one of NaN"),
	MUTANT(logprobs, tie_across_vectors,
	       "orders equal logits by falling index where they are 4 and more apart"),
	MUTANT(logprobs, infinity_is_nan, "subtracts infinities: NaN for a row with +INFINITY"),
	MUTANT(logprobs, top_of_16, "finds only the 16 likeliest and repeats the last"),
	MUTANT(logprobs, minus_zero_less, "orders -0 below +0"),
	MUTANT(logprobs, wanted_is_0_or_1, "takes a wanted other than 1 for 0"),
	MUTANT_BARE(logprobs, far_rows_32_bits, "cuts the offset of a row to 32 bits"),
	MUTANT(logprobs, far_elements_32_bits, "cuts the number of a row's first element to 32 bits"),
	MUTANT_BARE(logprobs, maximum_of_all_rows, "uses one maximum for all rows"),
	MUTANT(logprobs, late_tie_taken,
	       "replaces the last of 2 to 16 tokens by a later one that is as likely"),
	MUTANT(logprobs, first_of_smallest_dropped,
	       "drops the first of equal logits where a larger one follows"),
	MUTANT(logprobs, wanted_below_0, "takes a negative wanted for 0"),
	MUTANT(logprobs, minus_1_alone, "takes a token below -1 for token 0"),
	MUTANT(logprobs, reads_past_vocab, "reads the logit of a token that is vocab itself"),
	MUTANT(logprobs, keeps_wanted, "reads wanted once for each address"),
	MUTANT(logprobs, nan_of_long_rows,
	       "without k, weighs a NaN of long rows as a 0 if `wanted` is given"),
	{ "logprobs_row_63_of_257", offsetof(struct cairn_impl, logprobs), (void *)logprobs_row_63_of_257,
	  "in the last of 63 rows, the sum over 257 tokens is wrong" },
	{ 0 }
};
