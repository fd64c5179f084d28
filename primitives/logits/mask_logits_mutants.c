// SPDX-License-Identifier: Apache-2.0
/* mask_logits_mutants - wrong versions of mask_logits, one defect each */
#include <stdlib.h>
#include <string.h>

#include "conformance/harness.h"
#include "primitives/base/bend.h"
#include "primitives/base/kept.h"
#include "primitives/logits/mask_logits.h"

enum mask_logits_bend {
	mask_logits_bend_bits_reversed, mask_logits_bend_bytes_reversed, mask_logits_bend_clear_is_allowed,
	mask_logits_bend_last_word_missing, mask_logits_bend_last_token_missing, mask_logits_bend_words_cut,
	mask_logits_bend_row_for_slot, mask_logits_bend_slot_of_row_0, mask_logits_bend_slot_before,
	mask_logits_bend_beyond_is_none, mask_logits_bend_beyond_is_last, mask_logits_bend_none_is_all,
	mask_logits_bend_minus_one_alone_is_none, mask_logits_bend_large_for_infinity,
	mask_logits_bend_nan_left, mask_logits_bend_infinity_left, mask_logits_bend_adds,
	mask_logits_bend_rows_of_1024, mask_logits_bend_empty_mask_ignored, mask_logits_bend_slots_16_bits,
	mask_logits_bend_words_32_bits, mask_logits_bend_bytes_32_bits, mask_logits_bend_none_rewritten,
	mask_logits_bend_no_slots_is_none, mask_logits_bend_vocab_of_131072,
};

/* Returns the first word of a slot. */
static int64_t bent_first(int32_t slot, int64_t words, enum mask_logits_bend bend)
{
	if (bend == mask_logits_bend_slots_16_bits)
		return (slot & 0xffff) * words;
	if (bend == mask_logits_bend_words_32_bits)
		return (int64_t)((uint64_t)slot * (uint64_t)words & UINT32_MAX);
	if (bend == mask_logits_bend_bytes_32_bits)
		return (int64_t)((uint64_t)slot * (uint64_t)words * 4 & UINT32_MAX) / 4;
	return slot * words;
}

static int bent_bit(uint32_t word, int32_t j, enum mask_logits_bend bend)
{
	if (bend == mask_logits_bend_bits_reversed)
		return word >> (31 - j % 32) & 1;
	if (bend == mask_logits_bend_bytes_reversed)
		return word >> (24 - j % 32 / 8 * 8 + j % 8) & 1;
	return (word >> j % 32 & 1) ^ (bend == mask_logits_bend_clear_is_allowed);
}

static int bent_allowed(const struct cairn_mask_logits_args *a, int32_t slot, int32_t j,
			enum mask_logits_bend bend)
{
	int64_t words = ((int64_t)a->vocab + 31) / 32;

	if (bend == mask_logits_bend_words_cut)
		words = a->vocab / 32 ? a->vocab / 32 : 1;
	if ((bend == mask_logits_bend_last_word_missing && j / 32 == (a->vocab - 1) / 32) ||
	    (bend == mask_logits_bend_last_token_missing && j == a->vocab - 1) ||
	    (bend == mask_logits_bend_vocab_of_131072 && j >= 131072))
		return 1;
	if (slot >= a->num_slots && bend == mask_logits_bend_beyond_is_last)
		slot = a->num_slots - 1;
	if (slot >= a->num_slots)
		return bend == mask_logits_bend_beyond_is_none ||
		       (bend == mask_logits_bend_no_slots_is_none && !a->num_slots);
	return slot < 0 || bent_bit(a->bits[bent_first(slot, words, bend) + j / 32], j, bend);
}

static int32_t bent_slot(const struct cairn_mask_logits_args *a, int32_t i, enum mask_logits_bend bend)
{
	int32_t slot = a->slot[bend == mask_logits_bend_slot_of_row_0 ? 0 : i];

	if (slot < 0 && bend == mask_logits_bend_none_is_all)
		return a->num_slots;
	if (slot < -1 && bend == mask_logits_bend_minus_one_alone_is_none)
		return a->num_slots;
	if (slot >= 0 && slot < a->num_slots && bend == mask_logits_bend_row_for_slot)
		return i;
	if (slot > 0 && slot < a->num_slots && bend == mask_logits_bend_slot_before)
		return slot - 1;
	return slot;
}

/* Returns whether slot has a mask of zeros alone. */
static int is_empty(const struct cairn_mask_logits_args *a, int32_t slot)
{
	int64_t words = ((int64_t)a->vocab + 31) / 32;

	for (int64_t w = 0; w < words; w++)
		if (a->bits[slot * words + w])
			return 0;
	return 1;
}

static void bent_exclude(float *x, enum mask_logits_bend bend)
{
	if ((bend == mask_logits_bend_nan_left && isnan(*x)) ||
	    (bend == mask_logits_bend_infinity_left && *x == INFINITY))
		return;
	*x = bend == mask_logits_bend_large_for_infinity ? -1e9f :
	     bend == mask_logits_bend_adds ? *x - INFINITY : -INFINITY;
}

static int bent_mask_logits(const struct cairn_mask_logits_args *a, enum mask_logits_bend bend)
{
	CAIRN_TRY(cairn_mask_logits_check(a));
	for (int32_t i = 0; i < a->rows; i++) {
		int32_t slot = bent_slot(a, i, bend);

		if (slot < 0 && bend != mask_logits_bend_none_rewritten)
			continue;
		if (bend == mask_logits_bend_rows_of_1024 && i >= 1024)
			continue;
		if (bend == mask_logits_bend_empty_mask_ignored && slot < a->num_slots && is_empty(a, slot))
			continue;
		for (int32_t j = 0; j < a->vocab; j++) {
			volatile float *x = a->logits + (int64_t)i * a->vocab + j;

			*x = *x;
			if (!bent_allowed(a, slot, j, bend))
				bent_exclude((float *)x, bend);
		}
	}
	return 0;
}

BENT(mask_logits, bits_reversed)
BENT(mask_logits, bytes_reversed)
BENT(mask_logits, clear_is_allowed)
BENT(mask_logits, last_word_missing)
BENT(mask_logits, last_token_missing)
BENT(mask_logits, words_cut)
BENT(mask_logits, row_for_slot)
BENT(mask_logits, slot_of_row_0)
BENT(mask_logits, slot_before)
BENT(mask_logits, beyond_is_none)
BENT(mask_logits, beyond_is_last)
BENT(mask_logits, none_is_all)
BENT(mask_logits, minus_one_alone_is_none)
BENT(mask_logits, large_for_infinity)
BENT(mask_logits, nan_left)
BENT(mask_logits, infinity_left)
BENT(mask_logits, adds)
BENT(mask_logits, rows_of_1024)
BENT(mask_logits, empty_mask_ignored)
BENT(mask_logits, slots_16_bits)
BENT(mask_logits, words_32_bits)
BENT(mask_logits, bytes_32_bits)
BENT(mask_logits, none_rewritten)
BENT(mask_logits, no_slots_is_none)
BENT(mask_logits, vocab_of_131072)

static int mask_logits_keeps_slots(const struct cairn_mask_logits_args *a, void *stream)
{
	struct cairn_mask_logits_args other = *a;

	CAIRN_TRY(cairn_mask_logits_check(a));
	other.size = sizeof(other);
	if (a->slot)
		other.slot = kept(a->slot, a->rows);
	return cairn_mask_logits_ref(&other, stream);
}

const struct cairn_mutant cairn_mask_logits_mutants[] = {
	MUTANT(mask_logits, bits_reversed, "reads the most significant bit first"),
	MUTANT(mask_logits, bytes_reversed, "reads the bytes of a word in the other order"),
	MUTANT(mask_logits, clear_is_allowed, "excludes the tokens whose bit is set"),
	MUTANT(mask_logits, last_word_missing, "allows all tokens of the last word"),
	MUTANT(mask_logits, last_token_missing, "allows the last token"),
	MUTANT(mask_logits, words_cut, "places slots vocab / 32 words apart, rounded down"),
	MUTANT(mask_logits, row_for_slot, "uses slot i for row i"),
	MUTANT(mask_logits, slot_of_row_0, "uses the slot of row 0 for all rows"),
	MUTANT(mask_logits, slot_before, "uses the mask of the slot before"),
	MUTANT(mask_logits, beyond_is_none, "allows everything in a row whose slot is past the last one"),
	MUTANT(mask_logits, beyond_is_last, "clamps a slot past the last one"),
	MUTANT(mask_logits, none_is_all, "excludes all tokens of a row without a mask"),
	MUTANT(mask_logits, minus_one_alone_is_none, "takes only slot -1 for none"),
	MUTANT(mask_logits, large_for_infinity, "uses -1e9 instead of -INFINITY"),
	MUTANT(mask_logits, nan_left, "leaves a NaN that is excluded"),
	MUTANT(mask_logits, infinity_left, "leaves an infinity that is excluded"),
	MUTANT(mask_logits, adds, "adds -INFINITY to an excluded logit"),
	MUTANT(mask_logits, rows_of_1024, "masks the first 1024 rows only"),
	MUTANT(mask_logits, empty_mask_ignored, "ignores a mask that allows nothing"),
	MUTANT(mask_logits, slots_16_bits, "cuts slots to 16 bits"),
	MUTANT(mask_logits, words_32_bits, "cuts the number of a slot's first word to 32 bits"),
	MUTANT(mask_logits, bytes_32_bits, "cuts the offset of a slot to 32 bits"),
	MUTANT(mask_logits, none_rewritten, "reads and writes rows without a mask"),
	MUTANT(mask_logits, no_slots_is_none, "allows everything without slots"),
	MUTANT(mask_logits, vocab_of_131072, "allows the tokens from 131072 on"),
	MUTANT(mask_logits, keeps_slots, "reads the slots once for each address"),
	{ 0 }
};
