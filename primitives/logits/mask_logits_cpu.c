// SPDX-License-Identifier: Apache-2.0
/* mask_logits_cpu - a word at a time; full and empty words, which are nearly all, need no test per token */
#include <math.h>

#include "primitives/base/error.h"
#include "primitives/logits/mask_logits.h"

static void one_row(const struct cairn_mask_logits_args *a, int32_t i)
{
	int32_t words = (a->vocab + 31) / 32, slot = a->slot[i];
	float *x = a->logits + (int64_t)i * a->vocab;

	if (slot < 0)
		return;
	for (int32_t w = 0; w < words; w++, x += 32) {
		uint32_t allowed = slot < a->num_slots ? a->bits[(int64_t)slot * words + w] : 0;
		int32_t n = a->vocab - 32 * w < 32 ? a->vocab - 32 * w : 32;

		if (allowed == UINT32_MAX)
			continue;
		for (int32_t k = 0; k < n; k++)
			if (!(allowed >> k & 1))
				x[k] = -INFINITY;
	}
}

int cairn_mask_logits_cpu(const struct cairn_mask_logits_args *a, void *stream)
{
	(void)stream;
	CAIRN_TRY(cairn_mask_logits_check(a));
	#pragma omp parallel for schedule(dynamic) if (a->rows > 1)
	for (int32_t i = 0; i < a->rows; i++)
		one_row(a, i);
	return 0;
}
