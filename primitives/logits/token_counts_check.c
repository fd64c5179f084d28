// SPDX-License-Identifier: Apache-2.0
/* token_counts - argument checks shared by all of our tables */
#include "primitives/logits/token_counts.h"

#include "primitives/base/args.h"
#include "primitives/base/error.h"

int cairn_token_counts_check(const struct cairn_token_counts_args *a)
{
	CAIRN_TRY(cairn_check_args(a, sizeof(*a), "token_counts"));
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
	if (!a->num_copies && !a->num_tokens && !a->num_segments)
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
