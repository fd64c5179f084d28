// SPDX-License-Identifier: Apache-2.0
/* sample_mutants - wrong versions of sample, one defect each */
#include <float.h>
#include <stdlib.h>

#include "conformance/harness.h"
#include "primitives/base/bend.h"
#include "primitives/draw/philox.h"
#include "primitives/draw/sample.h"

enum sample_bend {
	sample_bend_top_p_before_top_k, sample_bend_top_p_of_whole, sample_bend_top_p_by_index,
	sample_bend_top_p_exclusive, sample_bend_k_plus_1, sample_bend_ties_dropped,
	sample_bend_ties_kept, sample_bend_ties_backwards, sample_bend_min_p_absolute,
	sample_bend_min_p_first, sample_bend_drawn_by_rank, sample_bend_offset_ignored,
	sample_bend_seed_ignored, sample_bend_half_uniform, sample_bend_other_words,
	sample_bend_temperature_ignored, sample_bend_temperature_inverted,
	sample_bend_greedy_draws, sample_bend_nan_wins, sample_bend_empty_is_0,
	sample_bend_first_32k,
	sample_bend_top_p_ignored_with_top_k, sample_bend_top_p_ignored_with_top_4,
	sample_bend_min_p_ignored_with_top_p,
	sample_bend_top_k_of_greedy_last, sample_bend_infinity_is_nan, sample_bend_nan_row_spreads,
	sample_bend_weights_in_f16, sample_bend_top_k_of_vocab, sample_bend_temperature_after_min_p,
};

struct ranked {
	double logit, weight;
	int32_t index;
};

static int falling(const void *pa, const void *pb)
{
	const struct ranked *a = pa, *b = pb;

	return a->logit != b->logit ? (a->logit < b->logit) - (a->logit > b->logit) : a->index - b->index;
}

static int rising(const void *pa, const void *pb)
{
	return ((const struct ranked *)pa)->index - ((const struct ranked *)pb)->index;
}

static double sum_of(const struct ranked *t, int32_t n)
{
	double sum = 0;

	for (int32_t k = 0; k < n; k++)
		sum += t[k].weight;
	return sum;
}

static int32_t cut_top_k(const struct ranked *t, int32_t n, int32_t k, enum sample_bend bend)
{
	int32_t m = k + (bend == sample_bend_k_plus_1);

	if (k <= 0 || m >= n)
		return n;
	while (bend == sample_bend_ties_kept && m < n && t[m].logit == t[m - 1].logit)
		m++;
	while (bend == sample_bend_ties_dropped && m > 1 && t[m - 1].logit == t[m].logit)
		m--;
	return m;
}

static int32_t cut_top_p(struct ranked *t, int32_t n, double top_p, double total, enum sample_bend bend)
{
	double sum = 0;
	int32_t m = 0;

	if (top_p >= 1)
		return n;
	if (bend == sample_bend_top_p_by_index)
		qsort(t, n, sizeof(*t), rising);
	while (m < n && sum < top_p * total)
		sum += t[m++].weight;
	return bend == sample_bend_top_p_exclusive && m > 1 ? m - 1 : m;
}

static int32_t cut_min_p(const struct ranked *t, int32_t n, double min_p, double total, enum sample_bend bend)
{
	int32_t m = 1;

	if (bend == sample_bend_min_p_absolute)
		min_p *= total;
	while (m < n && t[m].weight >= min_p)
		m++;
	return m < n ? m : n;
}

static double bent_uniform(uint64_t seed, uint64_t offset, enum sample_bend bend)
{
	uint32_t counter[4] = { (uint32_t)offset, (uint32_t)(offset >> 32), 0, 0 }, x[4];
	uint32_t key[2] = { (uint32_t)seed, (uint32_t)(seed >> 32) };

	if (bend == sample_bend_offset_ignored)
		counter[0] = counter[1] = 0;
	if (bend == sample_bend_seed_ignored)
		key[0] = key[1] = 0;
	cairn_philox4x32_10(counter, key, x);
	if (bend == sample_bend_other_words)
		return x[2] * 0x1p-32 + x[3] * 0x1p-64;
	return (x[0] * 0x1p-32 + x[1] * 0x1p-64) * (bend == sample_bend_half_uniform ? 0.5 : 1);
}

static int32_t bent_draw(const struct cairn_sample_args *a, int64_t row, struct ranked *t,
			 enum sample_bend bend)
{
	double temperature = a->temperature[row], top_p = a->top_p[row], min_p = a->min_p[row], total, mark,
	       run = 0;
	int32_t n = 0, top_k = a->top_k[row], vocab = a->vocab;

	if (bend == sample_bend_first_32k && vocab > 32768)
		vocab = 32768;
	for (int32_t j = 0; j < vocab; j++) {
		double v = fmin(a->logits[row * a->vocab + j],
				bend == sample_bend_nan_wins ? INFINITY : FLT_MAX);

		if (isnan(a->logits[row * a->vocab + j]))
			v = bend == sample_bend_nan_wins ? FLT_MAX : -INFINITY;
		if (v > -INFINITY)
			t[n++] = (struct ranked) { v, 0,
						   bend == sample_bend_ties_backwards ? vocab - 1 - j : j };
	}
	if (n == 0)
		return bend == sample_bend_empty_is_0 ? 0 : -1;
	if (bend == sample_bend_nan_row_spreads && row && isnan(a->logits[(row - 1) * a->vocab]) &&
	    isnan(a->logits[(row - 1) * a->vocab + a->vocab / 2]))
		return -1;
	if (bend == sample_bend_top_p_ignored_with_top_k && top_k > 0)
		top_p = 1;
	if (bend == sample_bend_top_p_ignored_with_top_4 && top_k > 0 && top_k <= 4)
		top_p = 1;
	if (bend == sample_bend_min_p_ignored_with_top_p && top_p < 1)
		min_p = 0;
	if (bend == sample_bend_top_k_of_vocab && top_k >= 16)
		top_k = 0;
	qsort(t, n, sizeof(*t), falling);
	for (int32_t k = 0; bend == sample_bend_ties_backwards && k < n; k++)
		t[k].index = vocab - 1 - t[k].index;
	if (bend == sample_bend_infinity_is_nan && t[0].logit == (double)FLT_MAX && temperature > 0)
		return -1;
	for (int32_t k = 1; bend == sample_bend_top_k_of_greedy_last && temperature == 0 && k < n; k++)
		if (t[k].logit == t[0].logit)
			t[0].index = t[k].index;
	if (temperature == 0 && bend != sample_bend_greedy_draws)
		return t[0].index;
	if (temperature == 0 || bend == sample_bend_temperature_ignored)
		temperature = 1;
	if (bend == sample_bend_temperature_inverted)
		temperature = 1 / temperature;
	for (int32_t k = n - 1; k >= 0; k--)
		t[k].weight = exp((t[k].logit - t[0].logit) / temperature);
	for (int32_t k = 0; bend == sample_bend_weights_in_f16 && k < n; k++)
		t[k].weight = rounded(CAIRN_F16, t[k].weight);
	if (bend == sample_bend_temperature_after_min_p)
		min_p = pow(min_p, 1 / temperature);
	if (bend == sample_bend_top_p_before_top_k)
		n = cut_top_p(t, n, top_p, sum_of(t, n), bend);
	if (bend == sample_bend_min_p_first)
		n = cut_min_p(t, n, min_p, 0, bend);
	total = sum_of(t, n);
	n = cut_top_k(t, n, top_k, bend);
	if (bend != sample_bend_top_p_of_whole)
		total = sum_of(t, n);
	if (bend != sample_bend_top_p_before_top_k)
		n = cut_top_p(t, n, top_p, total, bend);
	if (bend != sample_bend_min_p_first && bend != sample_bend_top_p_by_index)
		n = cut_min_p(t, n, min_p, sum_of(t, n), bend);
	if (bend != sample_bend_drawn_by_rank)
		qsort(t, n, sizeof(*t), rising);
	mark = bent_uniform(a->seed[row], a->offset[row], bend) * sum_of(t, n);
	for (int32_t k = 0; k < n; k++) {
		run += t[k].weight;
		if (run > mark)
			return t[k].index;
	}
	return t[n - 1].index;
}

static int bent_sample(const struct cairn_sample_args *a, enum sample_bend bend)
{
	struct ranked *t;

	CAIRN_TRY(cairn_sample_check(a));
	t = malloc((size_t)a->vocab * sizeof(*t));
	if (!t)
		return cairn_error(ENOMEM, "no memory");
	for (int64_t i = 0; i < a->rows; i++)
		a->out[i] = bent_draw(a, i, t, bend);
	free(t);
	return 0;
}

BENT(sample, top_p_before_top_k)
BENT(sample, top_p_of_whole)
BENT(sample, top_p_by_index)
BENT(sample, top_p_exclusive)
BENT(sample, k_plus_1)
BENT(sample, ties_dropped)
BENT(sample, ties_kept)
BENT(sample, ties_backwards)
BENT(sample, min_p_absolute)
BENT(sample, min_p_first)
BENT(sample, drawn_by_rank)
BENT(sample, offset_ignored)
BENT(sample, seed_ignored)
BENT(sample, half_uniform)
BENT(sample, other_words)
BENT(sample, temperature_ignored)
BENT(sample, temperature_inverted)
BENT(sample, greedy_draws)
BENT(sample, nan_wins)
BENT(sample, empty_is_0)
BENT(sample, first_32k)
BENT(sample, top_p_ignored_with_top_k)
BENT(sample, top_p_ignored_with_top_4)
BENT(sample, min_p_ignored_with_top_p)
BENT(sample, top_k_of_greedy_last)
BENT(sample, infinity_is_nan)
BENT(sample, nan_row_spreads)
BENT(sample, weights_in_f16)
BENT(sample, top_k_of_vocab)
BENT(sample, temperature_after_min_p)

/* Calls the reference for one row at a time, with parameters and logits that a mutant has changed. */
static int changed_rows(const struct cairn_sample_args *a, void *stream,
			void (*change)(struct cairn_sample_args *one, float *logits))
{
	float *logits = NULL, temperature, top_p;
	int ret = cairn_sample_check(a);
	int32_t top_k;

	if (!ret && !(logits = aligned_alloc(16, ((size_t)a->vocab + 4) / 4 * 16)))
		ret = cairn_error(ENOMEM, "no memory");
	for (int64_t i = 0; !ret && i < a->rows; i++) {
		struct cairn_sample_args one = *a;

		one.size = sizeof(one);
		memcpy(logits, a->logits + i * a->vocab, (size_t)a->vocab * sizeof(*logits));
		temperature = a->temperature[i];
		top_k = a->top_k[i];
		top_p = a->top_p[i];
		one.rows = 1;
		one.out += i;
		one.logits = logits;
		one.temperature = &temperature;
		one.top_k = &top_k;
		one.top_p = &top_p;
		one.min_p += i;
		one.seed += i;
		one.offset += i;
		change(&one, logits);
		ret = cairn_sample_ref(&one, stream);
	}
	free(logits);
	return ret;
}

static void minus_is_1(struct cairn_sample_args *one, float *logits)
{
	(void)logits;
	if (*one->top_k < 0)
		*(int32_t *)one->top_k = 1;
}

static void not_so_cold(struct cairn_sample_args *one, float *logits)
{
	(void)logits;
	if (*one->temperature > 0)
		*(float *)one->temperature = fmaxf(*one->temperature, 1e-10f);
}

static void subnormal_is_0(struct cairn_sample_args *one, float *logits)
{
	(void)logits;
	if (*one->temperature < 0x1p-126f)
		*(float *)one->temperature = 0;
}

static void nothing_is_all(struct cairn_sample_args *one, float *logits)
{
	(void)logits;
	if (*one->top_p < 1e-12f)
		*(float *)one->top_p = 1;
}

static void infinity_above(struct cairn_sample_args *one, float *logits)
{
	int any = 0;

	for (int32_t j = 0; j < one->vocab; j++)
		any |= logits[j] == INFINITY;
	for (int32_t j = 0; any && j < one->vocab; j++)
		logits[j] = logits[j] == FLT_MAX ? FLT_MAX / 2 : logits[j];
}

static void large_is_off(struct cairn_sample_args *one, float *logits)
{
	(void)logits;
	if (*one->top_k > 65536)
		*(int32_t *)one->top_k = 0;
}

static void most_256(struct cairn_sample_args *one, float *logits)
{
	(void)logits;
	if (*one->top_k > 256)
		*(int32_t *)one->top_k = 256;
}

static void at_least_1e_4(struct cairn_sample_args *one, float *logits)
{
	(void)logits;
	*(float *)one->top_p = fmaxf(*one->top_p, 1e-4f);
}

static void just_64_is_off(struct cairn_sample_args *one, float *logits)
{
	(void)logits;
	if (*one->top_k == 64)
		*(int32_t *)one->top_k = 0;
}

static void in_64ths(struct cairn_sample_args *one, float *logits)
{
	(void)logits;
	if (*one->top_p > 0.5f && *one->top_p < 0.8f)
		*(float *)one->top_p = rintf(*one->top_p * 64) / 64;
}

static void most_7(struct cairn_sample_args *one, float *logits)
{
	(void)logits;
	if (*one->temperature < 50)
		*(float *)one->temperature = fminf(*one->temperature, 7);
}

static void almost_1_is_off(struct cairn_sample_args *one, float *logits)
{
	(void)logits;
	if (*one->top_p > 0.9995f)
		*(float *)one->top_p = 1;
}

static void tiny_is_off(struct cairn_sample_args *one, float *logits)
{
	static const float off = 0;

	(void)logits;
	if (*one->min_p < 1e-3f)
		one->min_p = &off;
}

static void seed_0_is_1(struct cairn_sample_args *one, float *logits)
{
	static const uint64_t first = 1;

	(void)logits;
	if (!*one->seed)
		one->seed = &first;
}

static void not_so_hot(struct cairn_sample_args *one, float *logits)
{
	(void)logits;
	*(float *)one->temperature = fminf(*one->temperature, 100);
}

/*
 * Lists the tokens that reach the top_k-th largest maximum of 1024 blocks, and drops those that do not fit
 * the list.
 */
static void full_list(struct cairn_sample_args *one, float *logits)
{
	int32_t len = (one->vocab + 1023) / 1024, k = *one->top_k, listed = 0;
	float tops[1024], bound = 0;

	if (k < 1 || k > 256 || one->vocab < 1024)
		return;
	for (int b = 0; b < 1024; b++) {
		tops[b] = -INFINITY;
		for (int32_t j = b * len; j < (b + 1) * len && j < one->vocab; j++)
			tops[b] = fmaxf(tops[b], logits[j]);
	}
	for (int b = 0; b < 1024; b++) {
		int above = 0, reach = 0;

		for (int c = 0; c < 1024; c++) {
			above += tops[c] > tops[b];
			reach += tops[c] >= tops[b];
		}
		if (above < k && k <= reach)
			bound = tops[b];
	}
	for (int32_t j = 0; j < one->vocab; j++)
		if (!(logits[j] >= bound) || listed++ >= 4096)
			logits[j] = -INFINITY;
}

/* With min_p alone, compares tokens of a large vocabulary with a largest weight that is not the row's. */
static void lower_alone(struct cairn_sample_args *one, float *logits)
{
	static float min_p;

	(void)logits;
	if (one->vocab <= 131072 || *one->top_k > 0 || *one->top_p < 1)
		return;
	min_p = *one->min_p * 0.9f;
	one->min_p = &min_p;
}

#define CHANGED(defect, change) \
	static int sample_##defect(const struct cairn_sample_args *a, void *stream) \
	{ \
		return changed_rows(a, stream, change); \
	}
CHANGED(top_k_minus_is_1, minus_is_1)
CHANGED(temperature_100, not_so_hot)
CHANGED(top_k_65536, large_is_off)
CHANGED(top_k_256, most_256)
CHANGED(top_p_1e_4, at_least_1e_4)
CHANGED(top_p_almost_1, almost_1_is_off)
CHANGED(min_p_1e_3, tiny_is_off)
CHANGED(min_p_alone_of_2e17, lower_alone)
CHANGED(top_k_64, just_64_is_off)
CHANGED(top_p_64ths, in_64ths)
CHANGED(temperature_7, most_7)
CHANGED(seed_0, seed_0_is_1)
CHANGED(list_of_4096, full_list)
CHANGED(temperature_1e_10, not_so_cold)
CHANGED(temperature_flushed, subnormal_is_0)
CHANGED(top_p_rounds_to_none, nothing_is_all)
CHANGED(infinity_above_largest, infinity_above)

static int sample_min_p_of_row_63(const struct cairn_sample_args *a, void *stream)
{
	struct cairn_sample_args b = *a;
	float *min_p;
	int ret;

	CAIRN_TRY(cairn_sample_check(a));
	min_p = malloc(((size_t)a->rows + 1) * sizeof(*min_p));
	if (!min_p)
		return cairn_error(ENOMEM, "no memory");
	for (int32_t i = 0; i < a->rows; i++)
		min_p[i] = a->min_p[i > 63 ? 63 : i];
	b.size = sizeof(b);
	b.min_p = min_p;
	ret = cairn_sample_ref(&b, stream);
	free(min_p);
	return ret;
}

/*
 * Truncates the element offset of a row of logits to 31 bits. Computes only the rows that a far case judges.
 */
static int sample_offset_31_bits(const struct cairn_sample_args *a, void *stream)
{
	struct cairn_sample_args one = *a;
	int64_t i;

	one.size = sizeof(one);
	if (cairn_sample_check(a) || (a->rows - 1) * (int64_t)a->vocab <= INT32_MAX)
		return cairn_sample_ref(a, stream);
	one.rows = 1;
	for (int k = 0; (i = cairn_far_row(a->rows, k)) >= 0; k++) {
		one.out = a->out + i;
		one.logits = a->logits + (i * a->vocab & INT32_MAX & ~3);
		one.temperature = a->temperature + i;
		one.top_k = a->top_k + i;
		one.top_p = a->top_p + i;
		one.min_p = a->min_p + i;
		one.seed = a->seed + i;
		one.offset = a->offset + i;
		CAIRN_TRY(cairn_sample_cpu(&one, stream));
	}
	return 0;
}

const struct cairn_mutant cairn_sample_mutants[] = {
	MUTANT(sample, top_p_before_top_k, "applies top_p before top_k"),
	MUTANT(sample, top_p_of_whole, "takes top_p of the whole softmax instead of the top k"),
	MUTANT(sample, top_p_by_index, "takes the prefix for top_p in index order"),
	MUTANT(sample, top_p_exclusive, "drops the token that reaches top_p"),
	MUTANT(sample, k_plus_1, "keeps top_k + 1 tokens"),
	MUTANT(sample, ties_dropped, "keeps none of the tokens equal to the k-th"),
	MUTANT(sample, ties_kept, "keeps all tokens equal to the k-th"),
	MUTANT(sample, ties_backwards, "keeps the highest indices among equal tokens"),
	MUTANT(sample, min_p_absolute, "compares with min_p times the sum instead of the largest"),
	MUTANT(sample, min_p_first, "applies min_p before top_p"),
	MUTANT(sample, drawn_by_rank, "takes the running sum in falling order instead of by index"),
	MUTANT(sample, offset_ignored, "uses the same number for every draw"),
	MUTANT(sample, seed_ignored, "uses the same number for every seed"),
	MUTANT(sample, half_uniform, "draws numbers below a half only"),
	MUTANT(sample, other_words, "uses the last two words of the generator"),
	MUTANT(sample, temperature_ignored, "uses temperature 1 always"),
	MUTANT(sample, temperature_inverted, "multiplies logits by the temperature"),
	MUTANT(sample, greedy_draws, "draws with temperature 1 if it is 0"),
	MUTANT(sample, nan_wins, "treats NaN as the largest"),
	MUTANT(sample, empty_is_0, "gives token 0 if nothing can be drawn"),
	MUTANT(sample, first_32k, "reads only the first 32768 tokens"),
	MUTANT(sample, top_p_ignored_with_top_k, "ignores top_p if top_k is given"),
	MUTANT(sample, top_p_ignored_with_top_4, "ignores top_p if top_k is at most 4"),
	MUTANT(sample, min_p_ignored_with_top_p, "ignores min_p if top_p is given"),
	MUTANT(sample, top_k_of_greedy_last, "with temperature 0 picks the last of equal logits"),
	MUTANT(sample, infinity_is_nan, "gives -1 for a row with +INFINITY, as exp(inf - inf) is NaN"),
	MUTANT(sample, nan_row_spreads, "gives -1 for a row after one of NaN"),
	MUTANT(sample, weights_in_f16, "rounds the weights to f16"),
	MUTANT(sample, top_k_of_vocab, "ignores a top_k of 16 or more"),
	MUTANT(sample, temperature_after_min_p, "applies min_p to probabilities of temperature 1"),
	MUTANT(sample, top_k_minus_is_1, "takes a negative top_k for 1"),
	MUTANT(sample, top_k_65536, "ignores a top_k above 65536"),
	MUTANT(sample, top_k_256, "takes a top_k above 256 for 256"),
	MUTANT(sample, top_p_1e_4, "raises top_p to 1e-4"),
	MUTANT(sample, top_p_almost_1, "ignores a top_p above 0.9995"),
	MUTANT(sample, min_p_1e_3, "ignores a min_p below 1e-3"),
	MUTANT(sample, min_p_alone_of_2e17, "with min_p alone, lowers it by a tenth in large vocabularies"),
	MUTANT(sample, top_k_64, "ignores a top_k of 64"),
	MUTANT(sample, top_p_64ths, "rounds a top_p between 0.5 and 0.8 to 64ths"),
	MUTANT(sample, temperature_7, "takes a temperature between 7 and 50 for 7"),
	MUTANT(sample, min_p_of_row_63, "takes min_p of rows past 63 from row 63"),
	MUTANT(sample, seed_0, "replaces a seed of 0"),
	MUTANT(sample, temperature_100, "takes a temperature above 100 for 100"),
	MUTANT(sample, list_of_4096, "drops tokens that do not fit a list of 4096 candidates for top_k"),
	MUTANT(sample, temperature_1e_10, "raises temperatures to 1e-10"),
	MUTANT(sample, temperature_flushed, "takes a subnormal temperature for 0"),
	MUTANT(sample, top_p_rounds_to_none, "keeps everything if top_p is too small for its sums"),
	MUTANT(sample, infinity_above_largest, "puts +INFINITY above the largest finite float"),
	MUTANT(sample, offset_31_bits, "cuts the offset of a row to 31 bits"),
	{ 0 }
};
