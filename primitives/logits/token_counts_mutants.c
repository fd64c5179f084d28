// SPDX-License-Identifier: Apache-2.0
/* token_counts_mutants - wrong versions of token_counts, one defect each */
#include <stdlib.h>
#include <string.h>

#include "conformance/harness.h"
#include "primitives/base/bend.h"
#include "primitives/base/kept.h"
#include "primitives/logits/token_counts.h"

enum token_counts_bend {
	token_counts_bend_wraps_into_prompt, token_counts_bend_prompt_is_counted,
	token_counts_bend_answer_sets_prompt, token_counts_bend_added_before_copies,
	token_counts_bend_clear_keeps_prompt, token_counts_bend_clears_nothing,
	token_counts_bend_token_added_once, token_counts_bend_segment_of_token,
	token_counts_bend_last_token_missing, token_counts_bend_outside_wraps,
	token_counts_bend_behind_the_last_segment, token_counts_bend_copy_adds,
	token_counts_bend_prompt_needs_indptr, token_counts_bend_last_slot_not_copied,
	token_counts_bend_odd_tail_not_copied, token_counts_bend_segments_of_256,
	token_counts_bend_negative_token_is_0, token_counts_bend_copies_of_1024,
	token_counts_bend_large_copy_alone,
};

static void bent_copies(const struct cairn_token_counts_args *a, enum token_counts_bend bend)
{
	for (int32_t c = 0; c < a->num_copies; c++) {
		int32_t to = a->copy_to[c], from = a->copy_from[c];

		if (to < 0 || to >= a->num_slots || from >= a->num_slots ||
		    (bend == token_counts_bend_large_copy_alone && c && from >= 0 && a->vocab > 1 << 16) ||
		    (bend == token_counts_bend_copies_of_1024 && c >= 1024))
			continue;
		if ((bend == token_counts_bend_clears_nothing && from < 0) ||
		    (bend == token_counts_bend_last_slot_not_copied && to == 0 && a->num_copies > 1))
			continue;
		for (int64_t j = 0; j < a->vocab - (bend == token_counts_bend_odd_tail_not_copied &&
						    a->vocab % 2); j++) {
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
	if ((a->prompt && !(bend == token_counts_bend_prompt_needs_indptr && !a->indptr)) ||
	    bend == token_counts_bend_answer_sets_prompt)
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
			if (bend == token_counts_bend_negative_token_is_0 && token < 0)
				token = 0;
			if (bend == token_counts_bend_segments_of_256 && s >= 256)
				continue;
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
BENT(token_counts, prompt_needs_indptr)
BENT(token_counts, last_slot_not_copied)
BENT(token_counts, odd_tail_not_copied)
BENT(token_counts, segments_of_256)
BENT(token_counts, negative_token_is_0)
BENT(token_counts, copies_of_1024)
BENT(token_counts, large_copy_alone)

/* Leaves out the copy from another slot to the last one if there are more than two copies. */
static int token_counts_last_of_copies(const struct cairn_token_counts_args *a, void *stream)
{
	struct cairn_token_counts_args other;
	int32_t from[64];

	CAIRN_TRY(cairn_token_counts_check(a));
	if (a->num_copies < 3 || a->num_copies > 64)
		return cairn_token_counts_ref(a, stream);
	other = *a;
	other.size = sizeof(other);
	other.copy_from = from;
	for (int32_t c = 0; c < a->num_copies; c++)
		from[c] = a->copy_to[c] == a->num_slots - 1 && a->copy_from[c] >= 0 ? a->num_slots :
			  a->copy_from[c];
	return cairn_token_counts_ref(&other, stream);
}

/* Copies correctly, but adds to slots whose number has 16 bits or (by_counter) whose offset has 32 bits. */
static int add_to_cut_slots(const struct cairn_token_counts_args *a, void *stream, int by_counter)
{
	struct cairn_token_counts_args one = *a;

	CAIRN_TRY(cairn_token_counts_check(a));
	one.size = sizeof(one);
	one.num_segments = one.num_tokens = 0;
	CAIRN_TRY(cairn_token_counts_ref(&one, stream));
	for (int32_t s = 0; s < a->num_segments; s++) {
		int32_t cut = (int32_t)((uint32_t)((int64_t)a->slots[s] * a->vocab) / (uint32_t)a->vocab);
		int32_t slot = a->slots[s] < 0 || a->slots[s] >= a->num_slots ? -1 :
			       by_counter ? cut : a->slots[s] & 0xffff;
		int32_t first = a->indptr ? a->indptr[s] : s, ends[2];

		ends[0] = 0;
		ends[1] = (a->indptr ? a->indptr[s + 1] : s + 1) - first;
		one = *a;
		one.size = sizeof(one);
		one.num_copies = 0;
		one.num_segments = 1;
		one.slots = &slot;
		one.indptr = ends;
		one.tokens = a->tokens + first;
		one.num_tokens = ends[1];
		CAIRN_TRY(cairn_token_counts_ref(&one, stream));
	}
	return 0;
}

static int token_counts_far_slots_16_bits(const struct cairn_token_counts_args *a, void *stream)
{
	return add_to_cut_slots(a, stream, 0);
}

static int token_counts_far_counters_32_bits(const struct cairn_token_counts_args *a, void *stream)
{
	return add_to_cut_slots(a, stream, 1);
}

static int token_counts_keeps_indptr(const struct cairn_token_counts_args *a, void *stream)
{
	struct cairn_token_counts_args other = *a;

	CAIRN_TRY(cairn_token_counts_check(a));
	other.size = sizeof(other);
	if (a->indptr)
		other.indptr = kept(a->indptr, a->num_segments + 1);
	return cairn_token_counts_ref(&other, stream);
}

const struct cairn_mutant cairn_token_counts_mutants[] = {
	MUTANT_BARE(token_counts, wraps_into_prompt, "lets count 32767 + 1 carry into the prompt bit"),
	MUTANT_BARE(token_counts, prompt_is_counted, "counts the tokens of a prompt"),
	MUTANT_BARE(token_counts, answer_sets_prompt, "sets the prompt bit for tokens of an answer"),
	MUTANT_BARE(token_counts, added_before_copies, "adds before it copies"),
	MUTANT_BARE(token_counts, clear_keeps_prompt, "keeps the prompt bits of a cleared slot"),
	MUTANT_BARE(token_counts, clears_nothing, "ignores copy_from -1"),
	MUTANT_BARE(token_counts, token_added_once, "counts a repeated token once"),
	MUTANT_BARE(token_counts, segment_of_token, "indexes slots by token instead of segment"),
	MUTANT_BARE(token_counts, last_token_missing, "does not add the last token"),
	MUTANT_BARE(token_counts, outside_wraps, "wraps a token beyond vocab around"),
	MUTANT_BARE(token_counts, behind_the_last_segment, "adds tokens past the last segment too"),
	MUTANT_BARE(token_counts, far_slots_16_bits, "cuts slots to 16 bits"),
	MUTANT_BARE(token_counts, copy_adds, "adds the copied counters to the old ones"),
	MUTANT(token_counts, far_counters_32_bits, "cuts the number of a slot's first counter to 32 bits"),
	MUTANT(token_counts, prompt_needs_indptr, "takes a prompt without indptr for an answer"),
	MUTANT(token_counts, last_slot_not_copied, "does not copy to slot 0 if there are several copies"),
	MUTANT(token_counts, last_of_copies, "of several copies, leaves out that to the last slot"),
	MUTANT(token_counts, odd_tail_not_copied,
	       "copies pairs of counters: leaves the last one of an odd vocab"),
	MUTANT(token_counts, segments_of_256, "ignores the segments from 256 on"),
	MUTANT(token_counts, large_copy_alone, "copies one slot of a large vocab"),
	MUTANT(token_counts, copies_of_1024, "ignores the copies from 1024 on"),
	MUTANT(token_counts, negative_token_is_0, "adds a negative token to token 0"),
	MUTANT(token_counts, keeps_indptr, "reads indptr once for each address"),
	{ 0 }
};
