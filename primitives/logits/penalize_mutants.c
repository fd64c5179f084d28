// SPDX-License-Identifier: Apache-2.0
/* penalize_mutants - wrong versions of penalize, one defect each */
#include <stdlib.h>
#include <string.h>

#include "conformance/harness.h"
#include "primitives/base/bend.h"
#include "primitives/logits/penalize.h"
#include "primitives/base/cut_off.h"
#include "primitives/base/nudge.h"
#include "primitives/base/kept.h"

enum penalize_bend {
	penalize_bend_cap_last, penalize_bend_cap_without_tanh, penalize_bend_bias_after_penalties,
	penalize_bend_repetition_divides, penalize_bend_repetition_multiplies,
	penalize_bend_repetition_of_answer_alone, penalize_bend_prompt_is_counted,
	penalize_bend_frequency_is_presence, penalize_bend_presence_is_frequency,
	penalize_bend_presence_of_prompt, penalize_bend_row_for_slot, penalize_bend_first_bias_missing,
	penalize_bend_list_of_row_0, penalize_bend_forbidden_is_large, penalize_bend_bias_revives,
	penalize_bend_last_token_missing, penalize_bend_penalties_added, penalize_bend_slot_beyond_read,
	penalize_bend_count_of_8_bits, penalize_bend_presence_needs_frequency,
	penalize_bend_repetition_below_1_ignored, penalize_bend_bias_lost_with_counts,
	penalize_bend_nan_is_capped, penalize_bend_nan_not_forbidden, penalize_bend_tf32_bias,
	penalize_bend_empty_bias_skips_forbidden, penalize_bend_infinity_not_capped,
	penalize_bend_idle_rows_rewritten, penalize_bend_neutral_rows_rewritten,
	penalize_bend_nan_payload_lost, penalize_bend_first_forbidden_missing,
	penalize_bend_last_bias_missing, penalize_bend_one_slot_is_none, penalize_bend_256_forbidden,
	penalize_bend_bias_in_bf16, penalize_bend_bias_of_100, penalize_bend_frequency_of_2,
};

static int bent_find(const int32_t *ids, int32_t at, int32_t num, int32_t j)
{
	for (int32_t k = at; k < at + num; k++)
		if (ids[k] == j)
			return k;
	return -1;
}

static double bent_bias(double bias, enum penalize_bend bend)
{
	if (bend == penalize_bend_bias_in_bf16)
		return rounded(CAIRN_BF16, bias);
	return bend == penalize_bend_bias_of_100 ? fmax(-100, fmin(100, bias)) : bias;
}

/* x capped by softcap > 0 */
static double bent_cap(double x, double cap, enum penalize_bend bend)
{
	if ((bend == penalize_bend_nan_is_capped && isnan(x)) || bend == penalize_bend_cap_without_tanh)
		return fmax(-cap, fmin(cap, x));
	return bend == penalize_bend_infinity_not_capped && isinf(x) ? x : cap * tanh(x / cap);
}

/* Returns whether token j of row i has a counter that is not 0. */
static int in_history(const struct cairn_penalize_args *a, int32_t i, int32_t j)
{
	return a->counts && a->slots[i] >= 0 && a->slots[i] < a->num_slots &&
	       a->counts[(int64_t)a->slots[i] * a->vocab + j];
}

static double bent_history(const struct cairn_penalize_args *a, int32_t i, int32_t j, double x,
			   enum penalize_bend bend)
{
	int32_t slot = a->counts ? a->slots[i] : -1, c, n;
	double r, f, p;

	if (bend == penalize_bend_row_for_slot && slot >= 0)
		slot = i;
	if (bend == penalize_bend_one_slot_is_none && a->num_slots == 1)
		return x;
	if (bend == penalize_bend_slot_beyond_read && slot >= a->num_slots)
		slot = a->num_slots - 1;
	if (slot < 0 || slot >= a->num_slots || (bend == penalize_bend_last_token_missing &&
						 j == a->vocab - 1))
		return x;
	c = a->counts[(int64_t)slot * a->vocab + j];
	n = c & CAIRN_TOKEN_COUNT;
	if (bend == penalize_bend_count_of_8_bits)
		n &= 0xff;
	r = (double)a->repetition[i];
	f = (double)a->frequency[i];
	p = (double)a->presence[i];
	if (bend == penalize_bend_presence_needs_frequency && f == 0)
		p = 0;
	if (bend == penalize_bend_repetition_below_1_ignored && r < 1)
		r = 1;
	if (bend == penalize_bend_frequency_of_2)
		f = fmax(-2, fmin(2, f));
	if (bend == penalize_bend_prompt_is_counted)
		n += c >> 15;
	if (bend == penalize_bend_frequency_is_presence)
		f = p;
	if (bend == penalize_bend_penalties_added) {
		f = -f;
		p = -p;
	}
	if (bend == penalize_bend_repetition_of_answer_alone ? n : c) {
		int divides = bend == penalize_bend_repetition_divides ||
			      (x > 0 && bend != penalize_bend_repetition_multiplies);

		x = divides ? x / r : x * r;
	}
	if (n > 0 || (bend == penalize_bend_presence_of_prompt && c))
		x -= f * n + p * (bend == penalize_bend_presence_is_frequency ? n : 1);
	return x;
}

/* Returns whether every step is off in row i. */
static int is_idle(const struct cairn_penalize_args *a, int32_t i, int neutral_is_on)
{
	int counted = a->counts && a->slots[i] >= 0 && a->slots[i] < a->num_slots;

	return !(a->softcap > 0) && !(a->num_bias && a->num_bias[i] > 0) &&
	       !(a->num_forbidden && a->num_forbidden[i] > 0) &&
	       (!counted || (a->repetition[i] == 1 && a->frequency[i] == 0 && a->presence[i] == 0 &&
			     !neutral_is_on));
}

/* Stores x. If both x and the old value are NaN, keeps the old one with its payload. */
static void bent_store(float *at, double x, enum penalize_bend bend)
{
	if (bend == penalize_bend_nan_payload_lost || !isnan(x) || !isnan(*at))
		*at = (float)x;
}

static int bent_penalize(const struct cairn_penalize_args *a, enum penalize_bend bend)
{
	double cap = (double)a->softcap;

	CAIRN_TRY(cairn_penalize_check(a));
	for (int32_t i = 0; i < a->rows; i++) {
		int32_t list = bend == penalize_bend_list_of_row_0 ? 0 : i;
		int32_t skip = bend == penalize_bend_first_bias_missing;
		int32_t short_by = skip || bend == penalize_bend_last_bias_missing;
		int32_t skip_forbidden = bend == penalize_bend_first_forbidden_missing;

		if (bend != penalize_bend_idle_rows_rewritten &&
		    is_idle(a, i, bend == penalize_bend_neutral_rows_rewritten))
			continue;
		for (int32_t j = 0; j < a->vocab; j++) {
			float *at = &a->logits[(int64_t)i * a->vocab + j];
			double x = (double)*at, bias = -0.0;	/* -0 changes no x */
			int32_t k = -1, forbidden = 0;

			if (cap > 0 && bend != penalize_bend_cap_last)
				x = bent_cap(x, cap, bend);
			if (a->num_bias)
				k = bent_find(a->bias_ids, a->bias_at[list] + skip,
					      a->num_bias[list] - short_by, j);
			if (k >= 0)
				bias = bent_bias((double)a->bias[k], bend);
			if (bend == penalize_bend_bias_lost_with_counts && in_history(a, i, j))
				bias = -0.0;
			if (bend != penalize_bend_bias_after_penalties)
				x += bias;
			if (bend == penalize_bend_tf32_bias && k >= 0 && isfinite(x))
				x = tf32(x);
			x = bent_history(a, i, j, x, bend);
			if (bend == penalize_bend_bias_after_penalties)
				x += bias;
			if (cap > 0 && bend == penalize_bend_cap_last)
				x = cap * tanh(x / cap);
			k = -1;
			if (a->num_forbidden)
				forbidden = a->num_forbidden[list] - skip_forbidden;
			if (bend == penalize_bend_256_forbidden && forbidden > 256)
				forbidden = 256;
			if (a->num_forbidden)
				k = bent_find(a->forbidden_ids, a->forbidden_at[list] + skip_forbidden,
					      forbidden, j);
			if ((bend == penalize_bend_nan_not_forbidden && isnan(x)) ||
			    (bend == penalize_bend_empty_bias_skips_forbidden && a->num_bias &&
			     !a->num_bias[i]))
				k = -1;
			if (k >= 0 && !(bend == penalize_bend_bias_revives && bias > 0))
				x = bend == penalize_bend_forbidden_is_large ? -1e9 : -(double)INFINITY;
			bent_store(at, x, bend);
		}
	}
	return 0;
}

BENT(penalize, cap_last)
BENT(penalize, cap_without_tanh)
BENT(penalize, bias_after_penalties)
BENT(penalize, repetition_divides)
BENT(penalize, repetition_multiplies)
BENT(penalize, repetition_of_answer_alone)
BENT(penalize, prompt_is_counted)
BENT(penalize, frequency_is_presence)
BENT(penalize, presence_is_frequency)
BENT(penalize, presence_of_prompt)
BENT(penalize, row_for_slot)
BENT(penalize, first_bias_missing)
BENT(penalize, list_of_row_0)
BENT(penalize, forbidden_is_large)
BENT(penalize, bias_revives)
BENT(penalize, last_token_missing)
BENT(penalize, penalties_added)
BENT(penalize, slot_beyond_read)
BENT(penalize, count_of_8_bits)
BENT(penalize, presence_needs_frequency)
BENT(penalize, repetition_below_1_ignored)
BENT(penalize, bias_lost_with_counts)
BENT(penalize, nan_is_capped)
BENT(penalize, nan_not_forbidden)
BENT(penalize, tf32_bias)
BENT(penalize, empty_bias_skips_forbidden)
BENT(penalize, infinity_not_capped)
BENT(penalize, idle_rows_rewritten)
BENT(penalize, neutral_rows_rewritten)
BENT(penalize, nan_payload_lost)
BENT(penalize, first_forbidden_missing)
BENT(penalize, last_bias_missing)
BENT(penalize, one_slot_is_none)
BENT(penalize, 256_forbidden)
BENT(penalize, bias_in_bf16)
BENT(penalize, bias_of_100)
BENT(penalize, frequency_of_2)

static int penalize_forbids_before_the_row(const struct cairn_penalize_args *a, void *stream)
{
	CAIRN_TRY(cairn_penalize_ref(a, stream));
	for (int32_t i = 1; a->num_forbidden && i < a->rows; i++)
		for (int32_t k = a->forbidden_at[i]; k < a->forbidden_at[i] + a->num_forbidden[i]; k++)
			if (a->forbidden_ids[k] < 0)
				a->logits[(int64_t)i * a->vocab + a->forbidden_ids[k]] = -INFINITY;
	return 0;
}

static int penalize_few_rows(const struct cairn_penalize_args *a, void *stream)
{
	CAIRN_TRY(cairn_penalize_ref(a, stream));
	if (a->softcap > 0 && a->rows > 0 && a->rows < 4)
		nudge(a->logits, a->vocab);
	return 0;
}

/* Runs one row after the other, with a wrong slot. */
static int penalize_cut(const struct cairn_penalize_args *a, uint64_t slot_bytes)
{
	CAIRN_TRY(cairn_penalize_check(a));
	if (!a->counts || a->num_bias || a->num_forbidden || a->vocab % 4)
		return cairn_penalize_ref(a, NULL);
	for (int32_t i = 0; i < a->rows; i++) {
		struct cairn_penalize_args one = *a;
		int32_t slot = a->slots[i];

		if (slot >= 0 && slot < a->num_slots)
			slot = slot_bytes ? (int32_t)((uint32_t)((uint64_t)slot * slot_bytes) / slot_bytes) :
			       slot & 0xffff;
		one.size = sizeof(one);
		one.rows = 1;
		one.logits += (int64_t)i * a->vocab;
		one.slots = &slot;
		one.repetition += i;
		one.frequency += i;
		one.presence += i;
		CAIRN_TRY(cairn_penalize_ref(&one, NULL));
	}
	return 0;
}

/* Treats a row with repetition 1 and frequency 0 as one without penalties. */
static int penalize_lone_presence(const struct cairn_penalize_args *a, void *stream)
{
	struct cairn_penalize_args other;
	float *presence;
	int ret;

	CAIRN_TRY(cairn_penalize_check(a));
	if (!a->counts || a->rows < 1)
		return cairn_penalize_ref(a, stream);
	presence = malloc((size_t)a->rows * sizeof(*presence));
	if (!presence)
		return -ENOMEM;
	for (int32_t i = 0; i < a->rows; i++)
		presence[i] = a->repetition[i] == 1 && a->frequency[i] == 0 ? 0 : a->presence[i];
	other = *a;
	other.size = sizeof(other);
	other.presence = presence;
	ret = cairn_penalize_ref(&other, stream);
	free(presence);
	return ret;
}

static int penalize_far_slots_16_bits(const struct cairn_penalize_args *a, void *stream)
{
	(void)stream;
	return penalize_cut(a, 0);
}

static int penalize_far_bytes_32_bits(const struct cairn_penalize_args *a, void *stream)
{
	(void)stream;
	return penalize_cut(a, 2 * (uint64_t)a->vocab);
}

static int penalize_far_elements_32_bits(const struct cairn_penalize_args *a, void *stream)
{
	(void)stream;
	return penalize_cut(a, (uint64_t)a->vocab);
}

static int penalize_keeps_bias_at(const struct cairn_penalize_args *a, void *stream)
{
	struct cairn_penalize_args other = *a;

	CAIRN_TRY(cairn_penalize_check(a));
	other.size = sizeof(other);
	if (a->bias_at)
		other.bias_at = kept(a->bias_at, a->rows);
	return cairn_penalize_ref(&other, stream);
}

/* Stages a list in a buffer of 1024 entries and drops the rest. */
static int penalize_bias_past_1024_lost(const struct cairn_penalize_args *a, void *stream)
{
	struct cairn_penalize_args other = *a;
	int32_t *num;
	int ret;

	CAIRN_TRY(cairn_penalize_check(a));
	if (!a->num_bias)
		return cairn_penalize_ref(a, stream);
	num = malloc(((size_t)a->rows + 1) * sizeof(*num));
	if (!num)
		return cairn_error(ENOMEM, "no memory");
	for (int32_t i = 0; i < a->rows; i++)
		num[i] = a->num_bias[i] < 1024 ? a->num_bias[i] : 1024;
	other.size = sizeof(other);
	other.num_bias = num;
	ret = cairn_penalize_ref(&other, stream);
	free(num);
	return ret;
}

/* With a cap, forbids at most 128 tokens of a list. */
static int penalize_forbidden_of_128(const struct cairn_penalize_args *a, void *stream)
{
	struct cairn_penalize_args b = *a;
	int32_t *num;
	int ret;

	CAIRN_TRY(cairn_penalize_check(a));
	if (!a->num_forbidden || !(a->softcap > 0))
		return cairn_penalize_ref(a, stream);
	num = malloc(((size_t)a->rows + 1) * sizeof(*num));
	if (!num)
		return cairn_error(ENOMEM, "no memory");
	for (int32_t i = 0; i < a->rows; i++)
		num[i] = a->num_forbidden[i] < 128 ? a->num_forbidden[i] : 128;
	b.size = sizeof(b);
	b.num_forbidden = num;
	ret = cairn_penalize_ref(&b, stream);
	free(num);
	return ret;
}

/* Does not see the counters of a slot that is alone behind whole blocks of 16. */
static int penalize_lone_last_slot(const struct cairn_penalize_args *a, void *stream)
{
	struct cairn_penalize_args b = *a;
	int32_t *slots;
	int ret;

	CAIRN_TRY(cairn_penalize_check(a));
	if (!a->counts || a->num_slots < 16 || a->num_slots % 16 != 1)
		return cairn_penalize_ref(a, stream);
	slots = malloc(((size_t)a->rows + 1) * sizeof(*slots));
	if (!slots)
		return cairn_error(ENOMEM, "no memory");
	for (int32_t i = 0; i < a->rows; i++)
		slots[i] = a->slots[i] == a->num_slots - 1 ? -1 : a->slots[i];
	b.size = sizeof(b);
	b.slots = slots;
	ret = cairn_penalize_ref(&b, stream);
	free(slots);
	return ret;
}

const struct cairn_mutant cairn_penalize_mutants[] = {
	MUTANT_BARE(penalize, cap_last, "applies the cap last"),
	MUTANT_BARE(penalize, cap_without_tanh, "clamps instead of capping by tanh"),
	MUTANT_BARE(penalize, bias_after_penalties, "adds the bias after the penalties"),
	MUTANT_BARE(penalize, repetition_divides, "divides negative logits too"),
	MUTANT_BARE(penalize, repetition_multiplies, "multiplies positive logits too"),
	MUTANT_BARE(penalize, repetition_of_answer_alone, "applies repetition to tokens of the answer only"),
	MUTANT_BARE(penalize, prompt_is_counted, "counts the prompt bit as one occurrence in the answer"),
	MUTANT_BARE(penalize, frequency_is_presence, "uses presence instead of frequency"),
	MUTANT_BARE(penalize, presence_is_frequency, "multiplies presence by the count"),
	MUTANT_BARE(penalize, presence_of_prompt, "applies presence to tokens of the prompt too"),
	MUTANT_BARE(penalize, row_for_slot, "uses slot i for row i"),
	MUTANT_BARE(penalize, first_bias_missing, "skips the first entry of each bias list"),
	MUTANT_BARE(penalize, list_of_row_0, "uses the lists of row 0 for all rows"),
	MUTANT_BARE(penalize, forbidden_is_large, "uses -1e9 instead of -INFINITY"),
	MUTANT_BARE(penalize, bias_revives, "lets a bias override a forbidden token"),
	MUTANT_BARE(penalize, last_token_missing, "ignores the counter of the last token"),
	MUTANT_BARE(penalize, penalties_added, "adds the penalties instead of subtracting them"),
	MUTANT_BARE(penalize, slot_beyond_read, "clamps a slot beyond the last one"),
	MUTANT_BARE(penalize, count_of_8_bits, "takes counts modulo 256"),
	MUTANT(penalize, presence_needs_frequency, "applies presence only if frequency is given"),
	MUTANT(penalize, repetition_below_1_ignored, "ignores a repetition below 1"),
	MUTANT(penalize, bias_lost_with_counts, "adds no bias to a token of the history"),
	MUTANT(penalize, nan_is_capped, "caps a NaN to the softcap"),
	MUTANT(penalize, nan_not_forbidden, "leaves a NaN that is forbidden"),
	MUTANT(penalize, tf32_bias, "cuts the sum with the bias to TF32"),
	MUTANT(penalize, empty_bias_skips_forbidden,
	       "forbids nothing in a row whose list of biases is empty"),
	MUTANT(penalize, infinity_not_capped, "leaves infinities uncapped"),
	MUTANT(penalize, idle_rows_rewritten, "reads and writes rows without any step"),
	MUTANT(penalize, neutral_rows_rewritten, "reads and writes rows whose penalties are neutral"),
	MUTANT(penalize, nan_payload_lost, "quiets NaNs to which no step applies"),
	MUTANT(penalize, first_forbidden_missing, "skips the first entry of each list of forbidden tokens"),
	MUTANT(penalize, last_bias_missing, "skips the last entry of each bias list"),
	MUTANT(penalize, one_slot_is_none, "ignores counters of a single slot"),
	MUTANT(penalize, 256_forbidden, "reads only the first 256 forbidden tokens of a row"),
	MUTANT(penalize, bias_in_bf16, "rounds biases to bf16"),
	MUTANT(penalize, bias_of_100, "clamps biases to -100..100"),
	MUTANT(penalize, frequency_of_2, "clamps frequencies to -2..2"),
	MUTANT(penalize, forbids_before_the_row, "forbids a token whose id is below 0 in the row before"),
	MUTANT(penalize, lone_presence, "ignores presence with a repetition of 1 and a frequency of 0"),
	MUTANT(penalize, far_slots_16_bits, "cuts slots to 16 bits"),
	MUTANT(penalize, far_elements_32_bits, "cuts the number of a slot's first counter to 32 bits"),
	MUTANT(penalize, far_bytes_32_bits, "cuts the offset of a slot to 32 bits"),
	MUTANT_BARE(penalize, few_rows, "gives other bits if there are fewer than 4 rows"),
	MUTANT(penalize, keeps_bias_at, "reads bias_at once for each address"),
	MUTANT_BARE(penalize, bias_past_1024_lost, "leaves out the bias past 1024 entries of a list"),
	{ "penalize_forbidden_of_128", offsetof(struct cairn_impl, penalize),
	  (void *)penalize_forbidden_of_128,
	  "with a cap, at most 128 tokens of a list are forbidden" },
	{ "penalize_lone_last_slot", offsetof(struct cairn_impl, penalize), (void *)penalize_lone_last_slot,
	  "the counters of a single slot past whole blocks of 16 are not seen" },
	{ 0 }
};
