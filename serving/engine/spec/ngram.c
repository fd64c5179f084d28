// SPDX-License-Identifier: Apache-2.0
/*
 * ngram - drafts by prompt lookup (Saxena 2023)
 *
 * One scan from the end towards the start, which ends when enough occurrences are long enough. At half a
 * nanosecond a token even 128K tokens without a match cost little beside a step that attends to them.
 */
#include "serving/engine/speculate.h"

#include "serving/engine/spec/spec_tree.h"

/* An occurrence: its length, and the place after it. */
struct match {
	int32_t len, at;
};

/* Puts a match into the list of the `most` longest; among equally long ones, those found first stay. */
static int32_t insert(struct match *best, int32_t num, int32_t most, struct match m)
{
	int32_t i = num < most ? num++ : most;

	for (; i > 0 && best[i - 1].len < m.len; i--) {
		if (i < most)
			best[i] = best[i - 1];
	}
	if (i < most)
		best[i] = m;
	return num;
}

int32_t cairn_ngram_draft(const struct cairn_speculation *s, const int32_t *tokens, int32_t num,
			  int32_t *drafts, int32_t *parents, int32_t room, int32_t depth)
{
	int32_t last = tokens[num - 1], most = s->branches > 1 ? s->branches : 1, found = 0;
	struct cairn_spec_tree t = { .ids = drafts, .parents = parents, .room = room, .branches = most };
	struct match best[CAIRN_MAX_BRANCHES];

	for (int32_t j = num - 2; j >= 0; j--) {
		int32_t n = 1, longest = j + 1 < s->lookup_max ? j + 1 : s->lookup_max;

		if (found == most && best[most - 1].len == s->lookup_max)
			break;
		if (tokens[j] != last)
			continue;
		while (n < longest && tokens[j - n] == tokens[num - 1 - n])
			n++;
		if (n >= s->lookup_min)
			found = insert(best, found, most, (struct match){ n, j + 1 });
	}
	for (int32_t i = 0; i < found; i++) {
		int32_t path[CAIRN_MAX_DRAFTS], row = 0;

		for (int32_t k = 0; k < depth; k++) {
			path[k] = best[i].at + k < num ? tokens[best[i].at + k] : path[best[i].at + k - num];
			row = cairn_spec_tree_add(&t, row, path[k]);
			if (!row)
				break;
		}
	}
	return t.num;
}
