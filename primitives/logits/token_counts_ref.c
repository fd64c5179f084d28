// SPDX-License-Identifier: Apache-2.0
/*
 * token_counts_ref - the reference; counters have no rounding error, so every bound is 0
 *
 * cairn_token_counts_exact() gives one value per byte, two for each counter.
 */
#include "primitives/logits/token_counts.h"

#include <math.h>
#include <string.h>

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

/* Returns the counter at index `at` before the next step: as an earlier step has left it, or unchanged. */
static uint16_t counter(const struct cairn_token_counts_args *a, const struct cairn_exact *e, int64_t at)
{
	uint8_t bytes[2];
	uint16_t c;

	if (isnan(e->bound[2 * at]))
		return a->counts[at];
	for (int k = 0; k < 2; k++)
		bytes[k] = (uint8_t)e->val[2 * at + k];
	memcpy(&c, bytes, sizeof(c));
	return c;
}

static void set_counter(struct cairn_exact *e, int64_t at, uint16_t c)
{
	uint8_t bytes[2];

	memcpy(bytes, &c, sizeof(c));
	for (int k = 0; k < 2; k++) {
		e->val[2 * at + k] = bytes[k];
		e->bound[2 * at + k] = 0;
	}
}

/* Visits only the slots that a step names, because slots may lie far apart. */
int cairn_token_counts_exact(const struct cairn_token_counts_args *a, struct cairn_exact *exact)
{
	CAIRN_TRY(cairn_token_counts_check(a));
	for (int32_t c = 0; c < a->num_copies; c++) {
		int64_t to = a->copy_to[c], from = a->copy_from[c];

		if (outside(a->copy_to[c], a->num_slots) || from >= a->num_slots)
			continue;
		for (int64_t j = 0; j < a->vocab; j++)
			set_counter(exact, to * a->vocab + j,
				    from < 0 ? 0 : counter(a, exact, from * a->vocab + j));
	}
	for (int32_t s = 0; s < a->num_segments; s++) {
		int32_t first = a->indptr ? a->indptr[s] : s, end = a->indptr ? a->indptr[s + 1] : s + 1;

		for (int32_t i = first; i < end; i++) {
			int64_t at = (int64_t)a->slots[s] * a->vocab + a->tokens[i];
			uint16_t c;

			if (outside(a->slots[s], a->num_slots) || outside(a->tokens[i], a->vocab))
				continue;
			c = counter(a, exact, at);
			if (a->prompt)
				c |= CAIRN_TOKEN_IN_PROMPT;
			else if ((c & CAIRN_TOKEN_COUNT) != CAIRN_TOKEN_COUNT)
				c++;
			set_counter(exact, at, c);
		}
	}
	return 0;
}
