// SPDX-License-Identifier: Apache-2.0
/* logprobs - argument checks shared by all of our tables */
#include "primitives/logits/logprobs.h"

#include "primitives/base/args.h"
#include "primitives/base/error.h"

int cairn_logprobs_check(const struct cairn_logprobs_args *a)
{
	CAIRN_TRY(cairn_check_args(a, sizeof(*a), "logprobs"));
	if (a->rows < 0 || a->vocab < 1 || a->k < 0)
		return cairn_error(EINVAL, "logprobs: rows %d, vocab %d, k %d: must be >= 0, >= 1, >= 0",
				   a->rows,
				   a->vocab, a->k);
	if (a->vocab > 1 << 20 || a->k > CAIRN_LOGPROBS_MAX)
		return cairn_error(EOPNOTSUPP, "logprobs: vocab %d, k %d: more than %d, %d", a->vocab, a->k,
				   1 << 20, CAIRN_LOGPROBS_MAX);
	if (a->rows == 0)
		return 0;
	if (!a->chosen || !a->logits || !a->tokens || (a->k && (!a->top_ids || !a->top)))
		return cairn_error(EINVAL,
				   "logprobs: chosen, logits, tokens, top_ids, top: must not be null");
	if ((uintptr_t)a->logits & 15)
		return cairn_error(EINVAL, "logprobs: logits: must be 16-byte aligned");
	return 0;
}
