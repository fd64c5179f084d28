// SPDX-License-Identifier: Apache-2.0
/*
 * token_counts_cpu - copies slots by memcpy, in parallel; adds tokens one after the other
 *
 * Several segments may add to the same counter, so parallel additions would need synchronisation. That would
 * not pay off: a prompt of 100000 tokens takes well under a millisecond on one thread.
 */
#include <string.h>

#include "primitives/base/error.h"
#include "primitives/logits/token_counts.h"

int cairn_token_counts_cpu(const struct cairn_token_counts_args *a, void *stream)
{
	size_t bytes;

	(void)stream;
	CAIRN_TRY(cairn_token_counts_check(a));
	bytes = (size_t)a->vocab * sizeof(*a->counts);
	#pragma omp parallel for schedule(static) if (a->num_copies > 1)
	for (int32_t c = 0; c < a->num_copies; c++) {
		int32_t to = a->copy_to[c], from = a->copy_from[c];

		if ((uint32_t)to >= (uint32_t)a->num_slots || from >= a->num_slots)
			continue;
		if (from < 0)
			memset((char *)a->counts + (size_t)to * bytes, 0, bytes);
		else if (from != to)
			memcpy((char *)a->counts + (size_t)to * bytes,
			       (char *)a->counts + (size_t)from * bytes, bytes);
	}
	for (int32_t s = 0; s < a->num_segments; s++) {
		int32_t first = a->indptr ? a->indptr[s] : s, end = a->indptr ? a->indptr[s + 1] : s + 1;
		uint16_t *row = a->counts + (int64_t)a->slots[s] * a->vocab;

		if ((uint32_t)a->slots[s] >= (uint32_t)a->num_slots)
			continue;
		for (int32_t i = first; i < end; i++) {
			int32_t token = a->tokens[i];

			if ((uint32_t)token >= (uint32_t)a->vocab)
				continue;
			if (a->prompt)
				row[token] |= CAIRN_TOKEN_IN_PROMPT;
			else
				row[token] += (row[token] & CAIRN_TOKEN_COUNT) != CAIRN_TOKEN_COUNT;
		}
	}
	return 0;
}
