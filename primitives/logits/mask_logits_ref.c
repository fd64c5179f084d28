// SPDX-License-Identifier: Apache-2.0
/* mask_logits_ref - the reference; nothing is rounded, so every bound is 0 */
#include "primitives/logits/mask_logits.h"

#include "primitives/base/dtype.h"
#include "primitives/base/error.h"

static int is_allowed(const struct cairn_mask_logits_args *a, int32_t i, int32_t j)
{
	int64_t words = ((int64_t)a->vocab + 31) / 32;

	if (a->slot[i] < 0)
		return 1;
	if (a->slot[i] >= a->num_slots)
		return 0;
	return a->bits[a->slot[i] * words + j / 32] >> (j % 32) & 1;
}

int cairn_mask_logits_exact(const struct cairn_mask_logits_args *a, struct cairn_exact *exact)
{
	CAIRN_TRY(cairn_mask_logits_check(a));
	for (int32_t i = 0; i < a->rows; i++)
		for (int32_t j = 0; a->slot[i] >= 0 && j < a->vocab; j++) {
			int64_t e = (int64_t)i * a->vocab + j;

			if (is_allowed(a, i, j))
				continue;	/* the logit must keep its bits */
			exact->val[e] = -(double)INFINITY;
			exact->bound[e] = 0;
		}
	return 0;
}

int cairn_mask_logits_ref(const struct cairn_mask_logits_args *a, void *stream)
{
	(void)stream;
	CAIRN_TRY(cairn_mask_logits_check(a));
	for (int32_t i = 0; i < a->rows; i++)
		for (int32_t j = 0; a->slot[i] >= 0 && j < a->vocab; j++)
			if (!is_allowed(a, i, j))
				a->logits[(int64_t)i * a->vocab + j] = -INFINITY;
	return 0;
}
