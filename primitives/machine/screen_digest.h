/* SPDX-License-Identifier: Apache-2.0 */
/*
 * screen_digest - how a lane of a warp computes its share of a digest of screen, by 64-bit additions alone,
 * two instructions a word
 *
 * The contract's second sum weights each word by its index in the step and by the number of the step. These
 * weights come from running sums that are themselves summed: the earlier a word was added, the more often it
 * is counted. All sums are modulo 2^64. The multiplications by constants wait until the end of a round,
 * because a multiply-add of 64 bits costs the tensor cores of the other warps about 7 cycles (NOTES.md).
 *
 * A lane has num_words words in a step, in quads: word 4 k + j is word j of quad k.
 */
#ifndef CAIRN_SCREEN_DIGEST_H
#define CAIRN_SCREEN_DIGEST_H

#include "primitives/machine/screen_words.h"

struct cairn_screen_digest {
	uint64_t low, high, odd;	/* words 0 and 1 of quads; words 2 and 3; words 1 and 3 */
	uint64_t quads, steps;		/* of low + high, as they were after each quad and after each step */
};

/* Returns the index of a lane's word 0; is_tile: words are a fragment of D, 16 rows of 128. */
CAIRN_SCREEN_INLINE uint32_t cairn_screen_first(int is_tile, int lane)
{
	return is_tile ? lane / 4 * CAIRN_SCREEN_ROWS_B + lane % 4 * 2 : lane;
}

/* Returns the distance from a lane's word 0 to its word j. */
CAIRN_SCREEN_INLINE uint32_t cairn_screen_distance(int is_tile, int j)
{
	return is_tile ? (j & 2) * 512 + j / 4 * 8 + (j & 1) : 32 * j;
}

/* Adds the words of a step, the last quad first. */
CAIRN_SCREEN_INLINE void cairn_screen_add(struct cairn_screen_digest *d, const uint32_t *word, int num_words)
{
#pragma unroll
	for (int i = num_words - 4; i >= 0; i -= 4) {
		d->low += (uint64_t)word[i] + word[i + 1];
		d->high += (uint64_t)word[i + 2] + word[i + 3];
		d->odd += (uint64_t)word[i + 1] + word[i + 3];
		d->quads += d->low + d->high;
	}
	d->steps += d->low + d->high;
}

/* Returns the last step of a group of warps, if it has any. */
CAIRN_SCREEN_INLINE int cairn_screen_last_step(int group, int steps)
{
	return group + (steps - 1 - group) / CAIRN_SCREEN_GROUPS * CAIRN_SCREEN_GROUPS;
}

/*
 * Makes the two sums of the contract for a lane that has added its steps up to last_step, every
 * CAIRN_SCREEN_GROUPS-th one. A word of quad k that m steps of the lane follow is m + 1 times in `steps`, and
 * m num_words / 4 + k + 1 times in `quads`.
 */
CAIRN_SCREEN_INLINE void cairn_screen_sums(const struct cairn_screen_digest *d, int is_tile, int lane,
					   int num_words, int last_step, uint64_t sums[2])
{
	uint64_t all = d->low + d->high, later = d->steps - all;
	/* words times their step, and times their index in the step */
	uint64_t by_step = (uint64_t)last_step * all - CAIRN_SCREEN_GROUPS * later;
	uint64_t by_word = cairn_screen_first(is_tile, lane) * all +
			   cairn_screen_distance(is_tile, 1) * d->odd +
			   cairn_screen_distance(is_tile, 2) * d->high +
			   cairn_screen_distance(is_tile, 4) * (d->quads - all - num_words / 4 * later);

	sums[0] = all;
	sums[1] = 2 * (CAIRN_SCREEN_WORDS * by_step + by_word) + all;
}

#endif
