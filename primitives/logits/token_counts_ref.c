// SPDX-License-Identifier: Apache-2.0
/*
 * token_counts_ref - the reference; counters have no rounding error, so every bound is 0
 *
 * cairn_token_counts_exact() gives one value per byte, two for each counter.
 */
#include "primitives/logits/token_counts.h"

#include <stdlib.h>

#include "primitives/base/dtype.h"
#include "primitives/base/error.h"

static int outside(int32_t i, int32_t n)
{
	return i < 0 || i >= n;
}

int cairn_token_counts_ref(const struct cairn_token_counts_args *a, void *stream)
{
	(void)stream;
	CAIRN_TRY(cairn_token_counts_check(a));
	for (int32_t c = 0; c < a->num_copies; c++) {
		int32_t to = a->copy_to[c], from = a->copy_from[c];

		if (outside(to, a->num_slots) || from >= a->num_slots)
			continue;
		for (int64_t j = 0; j < a->vocab; j++)
			a->counts[(int64_t)to * a->vocab + j] =
				from < 0 ? 0 : a->counts[(int64_t)from * a->vocab + j];
	}
	for (int32_t s = 0; s < a->num_segments; s++) {
		int32_t first = a->indptr ? a->indptr[s] : s, end = a->indptr ? a->indptr[s + 1] : s + 1;

		for (int32_t i = first; i < end; i++) {
			uint16_t *c;

			if (outside(a->slots[s], a->num_slots) || outside(a->tokens[i], a->vocab))
				continue;
			c = &a->counts[(int64_t)a->slots[s] * a->vocab + a->tokens[i]];
			if (a->prompt)
				*c |= CAIRN_TOKEN_IN_PROMPT;
			else if ((*c & CAIRN_TOKEN_COUNT) != CAIRN_TOKEN_COUNT)
				(*c)++;
		}
	}
	return 0;
}

int cairn_token_counts_exact(const struct cairn_token_counts_args *a, struct cairn_exact *exact)
{
	size_t bytes = (size_t)a->num_slots * a->vocab * sizeof(*a->counts);
	struct cairn_token_counts_args mine = *a;
	int ret;

	CAIRN_TRY(cairn_token_counts_check(a));
	mine.counts = aligned_alloc(16, (bytes + 16) / 16 * 16);
	if (!mine.counts)
		return cairn_error(ENOMEM, "token_counts: no memory");
	if (bytes)
		memcpy(mine.counts, a->counts, bytes);
	ret = cairn_token_counts_ref(&mine, NULL);
	for (size_t i = 0; !ret && i < bytes; i++) {
		exact->val[i] = ((const uint8_t *)mine.counts)[i];
		exact->bound[i] = 0;
	}
	free(mine.counts);
	return ret;
}
