// SPDX-License-Identifier: Apache-2.0
/* token_counts_ref - the reference; counters have no error. exact() speaks of bytes, two for each counter. */
#include "primitives/draw/token_counts.h"

#include <stdlib.h>

#include "primitives/base/dtype.h"
#include "primitives/base/error.h"

int cairn_token_counts_check(const struct cairn_token_counts_args *a)
{
	if (!a || a->size < sizeof(*a))
		return cairn_error(EINVAL, "token_counts: args: null or too short");
	if (a->num_slots < 0 || a->vocab < 1)
		return cairn_error(EINVAL, "token_counts: num_slots %d, vocab %d: must be >= 0, >= 1",
				   a->num_slots, a->vocab);
	if (a->num_copies < 0 || a->num_tokens < 0 || a->num_segments < 0)
		return cairn_error(EINVAL,
				   "token_counts: num_copies %d, num_tokens %d, num_segments %d: must be "
				   ">= 0", a->num_copies, a->num_tokens, a->num_segments);
	if (a->prompt < 0 || a->prompt > 1)
		return cairn_error(EINVAL, "token_counts: prompt: is %d, must be 0 or 1", a->prompt);
	if (a->vocab > 1 << 20)
		return cairn_error(EOPNOTSUPP, "token_counts: vocab: %d is more than %d", a->vocab, 1 << 20);
	if (!a->indptr && a->num_tokens != a->num_segments)
		return cairn_error(EINVAL,
				   "token_counts: indptr: is null, but there are %d tokens for %d segments",
				   a->num_tokens, a->num_segments);
	if (!a->num_copies && !a->num_tokens)
		return 0;
	if (!a->counts || (a->num_copies && (!a->copy_to || !a->copy_from)) ||
	    (a->num_tokens && !a->tokens) || (a->num_segments && !a->slots))
		return cairn_error(EINVAL,
				   "token_counts: counts, copy_to, copy_from, tokens, slots: must not be "
				   "null");
	if ((uintptr_t)a->counts & 15)
		return cairn_error(EINVAL, "token_counts: counts: must be 16-byte aligned");
	return 0;
}

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
