// SPDX-License-Identifier: Apache-2.0
/* sample - argument checks shared by all of our tables */
#include "primitives/draw/sample.h"

#include "primitives/base/args.h"
#include "primitives/base/error.h"
#include "primitives/draw/sample_select.h"

int cairn_sample_check_shape(const struct cairn_sample_args *a)
{
	CAIRN_TRY(cairn_check_args(a, sizeof(*a), "sample"));
	if (a->rows < 0 || a->vocab < 1)
		return cairn_error(EINVAL, "sample: rows %d, vocab %d: must be >= 0, >= 1", a->rows,
				   a->vocab);
	if (a->vocab > SAMPLE_MAX_VOCAB)
		return cairn_error(EOPNOTSUPP, "sample: vocab: %d is more than %d", a->vocab,
				   SAMPLE_MAX_VOCAB);
	return 0;
}

int cairn_sample_check(const struct cairn_sample_args *a)
{
	CAIRN_TRY(cairn_sample_check_shape(a));
	if (a->rows == 0)
		return 0;
	if (!a->out || !a->logits || !a->temperature || !a->top_k || !a->top_p || !a->min_p || !a->seed ||
	    !a->offset)
		return cairn_error(EINVAL, "sample: out, logits, per-row parameters: must not be null");
	if ((uintptr_t)a->logits & 15)
		return cairn_error(EINVAL, "sample: logits: must be 16-byte aligned");
	return 0;
}
