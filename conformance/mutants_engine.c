// SPDX-License-Identifier: Apache-2.0
/*
 * mutants_engine - wrong versions of what an engine does around a pass: pick_ids, kv_move, token_counts,
 * penalize, logprobs
 */
#include <float.h>
#include <stdlib.h>

#include "conformance/harness.h"

#define BENT(family, defect) \
	static int family##_##defect(const struct cairn_##family##_args *a, void *stream) \
	{ \
		(void)stream; \
		return bent_##family(a, family##_bend_##defect); \
	}

/* ---- pick_ids ---- */

enum pick_ids_bend {
	pick_ids_bend_zero_is_host, pick_ids_bend_row_for_from, pick_ids_bend_host_by_from,
	pick_ids_bend_beyond_reads_on, pick_ids_bend_beyond_is_host, pick_ids_bend_last_row_missing,
	pick_ids_bend_failed_draw_is_0,
};

static int bent_pick_ids(const struct cairn_pick_ids_args *a, enum pick_ids_bend bend)
{
	CAIRN_TRY(cairn_pick_ids_check(a));
	for (int32_t i = 0; i < a->rows - (bend == pick_ids_bend_last_row_missing); i++) {
		int32_t from = a->from[i], host = a->host_ids ? a->host_ids[i] : -1, id = host;

		if (bend == pick_ids_bend_host_by_from && a->host_ids && from > -a->rows && from < 0)
			id = a->host_ids[-1 - from];
		if (from >= (bend == pick_ids_bend_zero_is_host)) {
			id = bend == pick_ids_bend_beyond_is_host ? host : -1;
			if (from < a->num_drawn)
				id = a->drawn[from];
			if (bend == pick_ids_bend_row_for_from && i < a->num_drawn)
				id = a->drawn[i];
			if (bend == pick_ids_bend_beyond_reads_on && from >= a->num_drawn && a->num_drawn)
				id = a->drawn[a->num_drawn - 1];
		}
		a->ids[i] = bend == pick_ids_bend_failed_draw_is_0 && id == -1 ? 0 : id;
	}
	return 0;
}

BENT(pick_ids, zero_is_host)
BENT(pick_ids, row_for_from)
BENT(pick_ids, host_by_from)
BENT(pick_ids, beyond_reads_on)
BENT(pick_ids, beyond_is_host)
BENT(pick_ids, last_row_missing)
BENT(pick_ids, failed_draw_is_0)

/* ---- kv_move ---- */

enum kv_move_bend {
	kv_move_bend_k_alone, kv_move_bend_layer_0_alone, kv_move_bend_last_layer_missing,
	kv_move_bend_slots_by_layer, kv_move_bend_sides_of_slots_swapped, kv_move_bend_from_and_to_swapped,
	kv_move_bend_slot_is_minus_place, kv_move_bend_last_move_missing, kv_move_bend_last_16_bytes_missing,
	kv_move_bend_gaps_ignored, kv_move_bend_v_at_half_a_layer, kv_move_bend_a_page_too_many,
};

static char *kv_place(const struct cairn_kv_move_args *a, int32_t place, int32_t layer, int32_t side,
		      enum kv_move_bend bend)
{
	int64_t sides = a->v_offset ? 2 : 1, v = a->v_offset, all = a->layer_bytes;

	if (bend == kv_move_bend_gaps_ignored)
		all = sides * a->num_pages * a->page_bytes;
	if (bend == kv_move_bend_v_at_half_a_layer)
		v = a->layer_bytes / 32 * 16;
	if (place >= 0)
		return (char *)a->base + layer * all + side * v + place * a->page_bytes;
	place = bend == kv_move_bend_slot_is_minus_place ? (-place) % a->num_slots : ~place;
	if (bend == kv_move_bend_sides_of_slots_swapped && sides == 2)
		side = !side;
	if (bend == kv_move_bend_slots_by_layer)
		return (char *)a->slots +
		       (((int64_t)layer * a->num_slots + place) * sides + side) * a->page_bytes;
	return (char *)a->slots + (((int64_t)place * a->num_layers + layer) * sides + side) * a->page_bytes;
}

static int bent_kv_move(const struct cairn_kv_move_args *a, enum kv_move_bend bend)
{
	int32_t sides = a->v_offset && bend != kv_move_bend_k_alone ? 2 : 1, layers = a->num_layers;
	int64_t bytes = a->page_bytes - (bend == kv_move_bend_last_16_bytes_missing ? 16 : 0);

	CAIRN_TRY(cairn_kv_move_check(a));
	if (bend == kv_move_bend_layer_0_alone)
		layers = 1;
	layers -= bend == kv_move_bend_last_layer_missing;
	for (int32_t i = 0; i < a->num_moves - (bend == kv_move_bend_last_move_missing); i++) {
		int32_t from = a->from[i], to = a->to[i];

		if (bend == kv_move_bend_from_and_to_swapped) {
			from = a->to[i];
			to = a->from[i];
		}
		for (int32_t k = 0; from != to && k < layers * sides; k++)
			memmove(kv_place(a, to, k / sides, k % sides, bend),
				kv_place(a, from, k / sides, k % sides, bend), (size_t)bytes);
		if (bend == kv_move_bend_a_page_too_many && from != to && to >= 0 && to + 1 < a->num_pages)
			memset(kv_place(a, to + 1, 0, 0, bend), 0, 16);
	}
	return 0;
}

BENT(kv_move, k_alone)
BENT(kv_move, layer_0_alone)
BENT(kv_move, last_layer_missing)
BENT(kv_move, slots_by_layer)
BENT(kv_move, sides_of_slots_swapped)
BENT(kv_move, from_and_to_swapped)
BENT(kv_move, slot_is_minus_place)
BENT(kv_move, last_move_missing)
BENT(kv_move, last_16_bytes_missing)
BENT(kv_move, gaps_ignored)
BENT(kv_move, v_at_half_a_layer)
BENT(kv_move, a_page_too_many)

/* ---- token_counts ---- */

enum token_counts_bend {
	token_counts_bend_wraps_into_prompt, token_counts_bend_prompt_is_counted,
	token_counts_bend_answer_sets_prompt, token_counts_bend_added_before_copies,
	token_counts_bend_clear_keeps_prompt, token_counts_bend_clears_nothing,
	token_counts_bend_token_added_once, token_counts_bend_segment_of_token,
	token_counts_bend_last_token_missing, token_counts_bend_outside_wraps,
	token_counts_bend_behind_the_last_segment, token_counts_bend_copy_adds,
};

static void bent_copies(const struct cairn_token_counts_args *a, enum token_counts_bend bend)
{
	for (int32_t c = 0; c < a->num_copies; c++) {
		int32_t to = a->copy_to[c], from = a->copy_from[c];

		if (to < 0 || to >= a->num_slots || from >= a->num_slots)
			continue;
		if (bend == token_counts_bend_clears_nothing && from < 0)
			continue;
		for (int64_t j = 0; j < a->vocab; j++) {
			uint16_t *old = &a->counts[(int64_t)to * a->vocab + j], v = 0;

			if (from >= 0)
				v = a->counts[(int64_t)from * a->vocab + j];
			else if (bend == token_counts_bend_clear_keeps_prompt)
				v = *old & CAIRN_TOKEN_IN_PROMPT;
			*old = bend == token_counts_bend_copy_adds ? *old + v : v;
		}
	}
}

static void bent_add(const struct cairn_token_counts_args *a, uint16_t *c, enum token_counts_bend bend)
{
	if (a->prompt && bend == token_counts_bend_prompt_is_counted)
		++*c;
	if (a->prompt || bend == token_counts_bend_answer_sets_prompt)
		*c |= CAIRN_TOKEN_IN_PROMPT;
	if (!a->prompt && (bend == token_counts_bend_wraps_into_prompt ||
			   (*c & CAIRN_TOKEN_COUNT) != CAIRN_TOKEN_COUNT))
		++*c;
}

static int bent_token_counts(const struct cairn_token_counts_args *a, enum token_counts_bend bend)
{
	int32_t last = -1;

	CAIRN_TRY(cairn_token_counts_check(a));
	if (bend != token_counts_bend_added_before_copies)
		bent_copies(a, bend);
	for (int32_t s = 0; s < a->num_segments; s++) {
		int32_t first = a->indptr ? a->indptr[s] : s, end = a->indptr ? a->indptr[s + 1] : s + 1;

		if (bend == token_counts_bend_behind_the_last_segment && s == a->num_segments - 1)
			end = a->num_tokens;
		end -= bend == token_counts_bend_last_token_missing && s == a->num_segments - 1;
		for (int32_t i = first; i < end; i++) {
			int32_t slot = a->slots[bend == token_counts_bend_segment_of_token ?
						i % a->num_segments : s];
			int32_t token = a->tokens[i];

			if (bend == token_counts_bend_outside_wraps && token >= a->vocab)
				token -= a->vocab;
			if (slot < 0 || slot >= a->num_slots || token < 0 || token >= a->vocab)
				continue;
			if (bend == token_counts_bend_token_added_once && token == last)
				continue;
			last = token;
			bent_add(a, &a->counts[(int64_t)slot * a->vocab + token], bend);
		}
	}
	if (bend == token_counts_bend_added_before_copies)
		bent_copies(a, bend);
	return 0;
}

BENT(token_counts, wraps_into_prompt)
BENT(token_counts, prompt_is_counted)
BENT(token_counts, answer_sets_prompt)
BENT(token_counts, added_before_copies)
BENT(token_counts, clear_keeps_prompt)
BENT(token_counts, clears_nothing)
BENT(token_counts, token_added_once)
BENT(token_counts, segment_of_token)
BENT(token_counts, last_token_missing)
BENT(token_counts, outside_wraps)
BENT(token_counts, behind_the_last_segment)
BENT(token_counts, copy_adds)

/* ---- penalize ---- */

enum penalize_bend {
	penalize_bend_cap_last, penalize_bend_cap_without_tanh, penalize_bend_bias_after_penalties,
	penalize_bend_repetition_divides, penalize_bend_repetition_multiplies,
	penalize_bend_repetition_of_answer_alone, penalize_bend_prompt_is_counted,
	penalize_bend_frequency_is_presence, penalize_bend_presence_is_frequency,
	penalize_bend_presence_of_prompt, penalize_bend_row_for_slot, penalize_bend_first_bias_missing,
	penalize_bend_list_of_row_0, penalize_bend_forbidden_is_large, penalize_bend_bias_revives,
	penalize_bend_last_token_missing, penalize_bend_penalties_added, penalize_bend_slot_beyond_read,
	penalize_bend_count_of_8_bits,
};

static int bent_find(const int32_t *ids, int32_t at, int32_t num, int32_t j)
{
	for (int32_t k = at; k < at + num; k++)
		if (ids[k] == j)
			return k;
	return -1;
}

static double bent_history(const struct cairn_penalize_args *a, int32_t i, int32_t j, double x,
			   enum penalize_bend bend)
{
	int32_t slot = a->counts ? a->slots[i] : -1, c, n;
	double r, f, p;

	if (bend == penalize_bend_row_for_slot && slot >= 0)
		slot = i;
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

static int bent_penalize(const struct cairn_penalize_args *a, enum penalize_bend bend)
{
	double cap = (double)a->softcap;

	CAIRN_TRY(cairn_penalize_check(a));
	for (int32_t i = 0; i < a->rows; i++) {
		int32_t list = bend == penalize_bend_list_of_row_0 ? 0 : i;
		int32_t skip = bend == penalize_bend_first_bias_missing;

		for (int32_t j = 0; j < a->vocab; j++) {
			float *at = &a->logits[(int64_t)i * a->vocab + j];
			double x = (double)*at, bias = 0;
			int k = -1;

			if (cap > 0 && bend != penalize_bend_cap_last)
				x = bend == penalize_bend_cap_without_tanh ? fmax(-cap, fmin(cap, x)) :
					cap * tanh(x / cap);
			if (a->num_bias)
				k = bent_find(a->bias_ids, a->bias_at[list] + skip, a->num_bias[list] - skip,
					      j);
			if (k >= 0)
				bias = (double)a->bias[k];
			if (bend != penalize_bend_bias_after_penalties)
				x += bias;
			x = bent_history(a, i, j, x, bend);
			if (bend == penalize_bend_bias_after_penalties)
				x += bias;
			if (cap > 0 && bend == penalize_bend_cap_last)
				x = cap * tanh(x / cap);
			k = -1;
			if (a->num_forbidden)
				k = bent_find(a->forbidden_ids, a->forbidden_at[list], a->num_forbidden[list],
					      j);
			if (k >= 0 && !(bend == penalize_bend_bias_revives && bias > 0))
				x = bend == penalize_bend_forbidden_is_large ? -1e9 : -(double)INFINITY;
			*at = (float)x;
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

/* ---- logprobs ---- */

enum logprobs_bend {
	logprobs_bend_base_2, logprobs_bend_ties_to_the_last, logprobs_bend_rising, logprobs_bend_no_maximum,
	logprobs_bend_nan_spreads, logprobs_bend_last_token_missing, logprobs_bend_chosen_excluded,
	logprobs_bend_unwanted_written, logprobs_bend_logits_themselves, logprobs_bend_probabilities,
	logprobs_bend_sum_of_top, logprobs_bend_small_vocab_repeats, logprobs_bend_sum_in_bf16,
	logprobs_bend_row_of_nothing_is_nan,
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

/* About the largest logit, or about 0. */
static double bent_lse(const struct bent_token *t, int32_t n, enum logprobs_bend bend)
{
	double max = bend == logprobs_bend_no_maximum ? 0 : t[0].logit, sum = 0;

	for (int32_t j = 0; j < n; j++) {
		double w = bend == logprobs_bend_no_maximum ? (double)expf((float)t[j].logit) :
			   exp(t[j].logit - max);

		sum += w;
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
	if (bend == logprobs_bend_probabilities)
		return (float)exp(p);
	return (float)(bend == logprobs_bend_base_2 ? p / log(2) : p);
}

static int bent_logprobs(const struct cairn_logprobs_args *a, enum logprobs_bend bend)
{
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
		qsort(t, n, sizeof(*t), bent_order);
		lse = bent_lse(t, bend == logprobs_bend_sum_of_top && a->k && a->k < n ? a->k : n, bend);
		if (bend == logprobs_bend_chosen_excluded && t[0].id == token)
			first = 1;
		if (!a->wanted || a->wanted[i] || bend == logprobs_bend_unwanted_written) {
			a->chosen[i] = bent_value(chosen, t[0].logit, lse, bend);
			for (int32_t k = 0; k < a->k; k++) {
				int32_t at = k + first < n ? k + first : n - 1;
				int there = k + first < n || bend == logprobs_bend_small_vocab_repeats;

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

#define MUTANT(family, defect, what) \
	{ #defect, offsetof(struct cairn_impl, family), (void *)family##_##defect, what }

const struct cairn_mutant cairn_engine_mutants[] = {
	MUTANT(pick_ids, zero_is_host, "the first drawn token counts as none"),
	MUTANT(pick_ids, row_for_from, "row i takes draw i"),
	MUTANT(pick_ids, host_by_from, "from picks among the host's ids, too"),
	MUTANT(pick_ids, beyond_reads_on, "beyond num_drawn the last token stands"),
	MUTANT(pick_ids, beyond_is_host, "beyond num_drawn the host's id stands"),
	MUTANT(pick_ids, last_row_missing, "rows - 1 rows"),
	MUTANT(pick_ids, failed_draw_is_0, "a failed draw becomes token 0"),
	MUTANT(kv_move, k_alone, "values stay behind"),
	MUTANT(kv_move, layer_0_alone, "one layer is moved"),
	MUTANT(kv_move, last_layer_missing, "the last layer is not moved"),
	MUTANT(kv_move, slots_by_layer, "slots as [layer][slot]"),
	MUTANT(kv_move, sides_of_slots_swapped, "V lies before K in a slot"),
	MUTANT(kv_move, from_and_to_swapped, "copies the other way"),
	MUTANT(kv_move, slot_is_minus_place, "slot s is -s, not ~s"),
	MUTANT(kv_move, last_move_missing, "num_moves - 1 moves"),
	MUTANT(kv_move, last_16_bytes_missing, "a page's last vector stays behind"),
	MUTANT(kv_move, gaps_ignored, "layers taken to lie without gaps"),
	MUTANT(kv_move, v_at_half_a_layer, "V taken to begin at half a layer"),
	MUTANT(kv_move, a_page_too_many, "the next page is touched"),
	MUTANT(token_counts, wraps_into_prompt, "count 32767 + 1 becomes the prompt's bit"),
	MUTANT(token_counts, prompt_is_counted, "a prompt's tokens are counted"),
	MUTANT(token_counts, answer_sets_prompt, "an answer's tokens get the prompt's bit"),
	MUTANT(token_counts, added_before_copies, "additions, then copies"),
	MUTANT(token_counts, clear_keeps_prompt, "a cleared slot keeps the prompt's bits"),
	MUTANT(token_counts, clears_nothing, "copy_from -1 is passed over"),
	MUTANT(token_counts, token_added_once, "the same token twice in a row is one"),
	MUTANT(token_counts, segment_of_token, "slots is indexed by token"),
	MUTANT(token_counts, last_token_missing, "the last token is not added"),
	MUTANT(token_counts, outside_wraps, "a token beyond vocab wraps around"),
	MUTANT(token_counts, behind_the_last_segment, "all num_tokens are added, segments or not"),
	MUTANT(token_counts, copy_adds, "a copy adds to what was there"),
	MUTANT(penalize, cap_last, "the cap comes last"),
	MUTANT(penalize, cap_without_tanh, "clamped instead of capped"),
	MUTANT(penalize, bias_after_penalties, "bias after penalties"),
	MUTANT(penalize, repetition_divides, "a negative logit is divided, too"),
	MUTANT(penalize, repetition_multiplies, "a positive logit is multiplied, too"),
	MUTANT(penalize, repetition_of_answer_alone, "repetition does not see the prompt"),
	MUTANT(penalize, prompt_is_counted, "the prompt's bit counts as once in the answer"),
	MUTANT(penalize, frequency_is_presence, "presence in place of frequency"),
	MUTANT(penalize, presence_is_frequency, "presence times the count"),
	MUTANT(penalize, presence_of_prompt, "presence sees the prompt"),
	MUTANT(penalize, row_for_slot, "row i has slot i"),
	MUTANT(penalize, first_bias_missing, "lists begin one late"),
	MUTANT(penalize, list_of_row_0, "all rows have the lists of the first"),
	MUTANT(penalize, forbidden_is_large, "-1e9 for -INFINITY"),
	MUTANT(penalize, bias_revives, "a bias overrules what is forbidden"),
	MUTANT(penalize, last_token_missing, "the last token's counter is not looked at"),
	MUTANT(penalize, penalties_added, "penalties with the other sign"),
	MUTANT(penalize, slot_beyond_read, "a slot beyond the last one is clamped"),
	MUTANT(penalize, count_of_8_bits, "counts modulo 256"),
	MUTANT(logprobs, base_2, "logarithms to base 2"),
	MUTANT(logprobs, ties_to_the_last, "of equals the higher index first"),
	MUTANT(logprobs, rising, "the unlikeliest first"),
	MUTANT(logprobs, no_maximum, "exp overflows"),
	MUTANT(logprobs, nan_spreads, "a NaN makes the row NaN"),
	MUTANT(logprobs, last_token_missing, "vocab - 1 tokens"),
	MUTANT(logprobs, chosen_excluded, "the chosen token is not among the likeliest"),
	MUTANT(logprobs, unwanted_written, "rows nobody wants are written"),
	MUTANT(logprobs, logits_themselves, "not normalised"),
	MUTANT(logprobs, probabilities, "probabilities for their logarithms"),
	MUTANT(logprobs, sum_of_top, "normalised over the likeliest alone"),
	MUTANT(logprobs, small_vocab_repeats, "a small vocabulary's last token fills the list"),
	MUTANT(logprobs, sum_in_bf16, "the sum is kept in bf16"),
	MUTANT(logprobs, row_of_nothing_is_nan, "a row of -INFINITY gives NaN"),
	{ 0 }
};
