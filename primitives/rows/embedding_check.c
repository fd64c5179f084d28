// SPDX-License-Identifier: Apache-2.0
/* embedding - argument checks shared by all of our tables */
#include "primitives/rows/embedding.h"

#include <math.h>

#include "primitives/base/args.h"
#include "primitives/base/dtype.h"
#include "primitives/base/error.h"

int cairn_embedding_check(const struct cairn_embedding_args *a)
{
	CAIRN_TRY(cairn_check_args(a, sizeof(*a), "embedding"));
	if (a->rows < 0 || a->dim < 1 || a->vocab < 1)
		return cairn_error(EINVAL, "embedding: rows %d, dim %d, vocab %d: must be >= 0, >= 1, >= 1",
				   a->rows, a->dim, a->vocab);
	if (!cairn_dtype_is_float(a->dtype))
		return cairn_error(EOPNOTSUPP, "embedding: dtype: %d is not supported", a->dtype);
	if (a->dim % 8)
		return cairn_error(EOPNOTSUPP, "embedding: dim: %d is not a multiple of 8", a->dim);
	if (!isfinite(a->scale))
		return cairn_error(EINVAL, "embedding: scale: must be finite");
	if (a->rows == 0)
		return 0;
	if (!a->out || !a->table || !a->ids)
		return cairn_error(EINVAL, "embedding: out, table, ids: must not be null");
	if (((uintptr_t)a->out | (uintptr_t)a->table) & 15)
		return cairn_error(EINVAL, "embedding: out, table: must be 16-byte aligned");
	return 0;
}
