// SPDX-License-Identifier: Apache-2.0
/*
 * ngram - drafts by prompt lookup (Saxena 2023)
 *
 * One scan from the end towards the start, which ends at the first occurrence that is long enough. At half a
 * nanosecond a token even 128K tokens without a match cost little beside a step that attends to them.
 */
#include "serving/engine/speculate.h"

int32_t cairn_ngram_draft(const struct cairn_speculation *s, const int32_t *tokens, int32_t num,
			  int32_t *drafts, int32_t room)
{
	int32_t last = tokens[num - 1], best = 0, at = -1;

	for (int32_t j = num - 2; j >= 0 && best < s->lookup_max; j--) {
		int32_t n = 1, most = j + 1 < s->lookup_max ? j + 1 : s->lookup_max;

		if (tokens[j] != last)
			continue;
		while (n < most && tokens[j - n] == tokens[num - 1 - n])
			n++;
		if (n > best) {
			best = n;
			at = j + 1;
		}
	}
	if (best < s->lookup_min)
		return 0;
	for (int32_t k = 0; k < room; k++)
		drafts[k] = at + k < num ? tokens[at + k] : drafts[at + k - num];
	return room;
}
