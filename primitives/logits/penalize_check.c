// SPDX-License-Identifier: Apache-2.0
/* penalize - argument checks shared by all of our tables */
#include "primitives/logits/penalize.h"

#include <math.h>

#include "primitives/base/args.h"
#include "primitives/base/error.h"

int cairn_penalize_check(const struct cairn_penalize_args *a)
{
	CAIRN_TRY(cairn_check_args(a, sizeof(*a), "penalize"));
	if (a->rows < 0 || a->vocab < 1 || a->num_slots < 0)
		return cairn_error(EINVAL,
				   "penalize: rows %d, vocab %d, num_slots %d: must be >= 0, >= 1, >= 0",
				   a->rows, a->vocab, a->num_slots);
	if (!(a->softcap >= 0) || isinf(a->softcap))
		return cairn_error(EINVAL, "penalize: softcap: is %g, must be finite and >= 0",
				   (double)a->softcap);
	if (a->vocab > 1 << 20)
		return cairn_error(EOPNOTSUPP, "penalize: vocab: %d is more than %d", a->vocab, 1 << 20);
	if (a->rows == 0)
		return 0;
	if (!a->logits)
		return cairn_error(EINVAL, "penalize: logits: must not be null");
	if (a->counts && (!a->slots || !a->repetition || !a->frequency || !a->presence))
		return cairn_error(EINVAL,
				   "penalize: slots, repetition, frequency, presence: must not be null with "
				   "counts");
	if (a->num_bias && (!a->bias_at || !a->bias_ids || !a->bias))
		return cairn_error(EINVAL,
				   "penalize: bias_at, bias_ids, bias: must not be null with num_bias");
	if (a->num_forbidden && (!a->forbidden_at || !a->forbidden_ids))
		return cairn_error(EINVAL, "penalize: forbidden_at, forbidden_ids: must not be null with "
				   "num_forbidden");
	if (((uintptr_t)a->logits | (uintptr_t)a->counts) & 15)
		return cairn_error(EINVAL, "penalize: logits, counts: must be 16-byte aligned");
	return 0;
}
