// SPDX-License-Identifier: Apache-2.0
/* argmax - argument checks shared by all of our tables */
#include "primitives/draw/argmax.h"

#include "primitives/base/args.h"
#include "primitives/base/dtype.h"
#include "primitives/base/error.h"

int cairn_argmax_check(const struct cairn_argmax_args *a)
{
	CAIRN_TRY(cairn_check_args(a, sizeof(*a), "argmax"));
	if (a->rows < 0 || a->vocab < 1)
		return cairn_error(EINVAL, "argmax: rows %d, vocab %d: must be >= 0, >= 1", a->rows,
				   a->vocab);
	if (!cairn_dtype_is_float(a->dtype))
		return cairn_error(EOPNOTSUPP, "argmax: dtype: %d is not supported", a->dtype);
	if (a->rows == 0)
		return 0;
	if (!a->out || !a->logits)
		return cairn_error(EINVAL, "argmax: out, logits: must not be null");
	if ((uintptr_t)a->logits & 15)
		return cairn_error(EINVAL, "argmax: logits: must be 16-byte aligned");
	return 0;
}
