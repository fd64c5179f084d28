// SPDX-License-Identifier: Apache-2.0
/* mask_logits - argument checks shared by all of our tables */
#include "primitives/logits/mask_logits.h"

#include "primitives/base/args.h"
#include "primitives/base/error.h"

int cairn_mask_logits_check(const struct cairn_mask_logits_args *a)
{
	CAIRN_TRY(cairn_check_args(a, sizeof(*a), "mask_logits"));
	if (a->rows < 0 || a->vocab < 1 || a->num_slots < 0)
		return cairn_error(EINVAL,
				   "mask_logits: rows %d, vocab %d, num_slots %d: must be >= 0, >= 1, >= 0",
				   a->rows, a->vocab, a->num_slots);
	if (a->vocab > 1 << 20)
		return cairn_error(EOPNOTSUPP, "mask_logits: vocab: %d is more than %d", a->vocab, 1 << 20);
	if (a->rows == 0)
		return 0;
	if (!a->logits || !a->slot || (a->num_slots && !a->bits))
		return cairn_error(EINVAL, "mask_logits: logits, bits, slot: must not be null");
	if ((uintptr_t)a->logits & 15)
		return cairn_error(EINVAL, "mask_logits: logits: must be 16-byte aligned");
	if ((uintptr_t)a->bits & 3)
		return cairn_error(EINVAL, "mask_logits: bits: must be 4-byte aligned");
	return 0;
}
