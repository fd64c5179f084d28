// SPDX-License-Identifier: Apache-2.0
/* all_reduce_norm - argument checks shared by all of our tables */
#include "primitives/comm/all_reduce_norm.h"

#include <math.h>

#include "primitives/base/args.h"
#include "primitives/base/dtype.h"
#include "primitives/base/error.h"

int cairn_all_reduce_norm_check(const struct cairn_all_reduce_norm_args *a)
{
	CAIRN_TRY(cairn_check_args(a, sizeof(*a), "all_reduce_norm"));
	CAIRN_TRY(cairn_comm_check(&a->comm, "all_reduce_norm"));
	if (a->rows < 0 || a->dim < 1)
		return cairn_error(EINVAL, "all_reduce_norm: rows %d, dim %d: must be >= 0, >= 1", a->rows,
				   a->dim);
	if (!cairn_dtype_is_float(a->dtype))
		return cairn_error(EOPNOTSUPP, "all_reduce_norm: dtype: %d is not supported", a->dtype);
	if (a->dim % 8 || a->dim > 16384)
		return cairn_error(EOPNOTSUPP, "all_reduce_norm: dim: %d is not a multiple of 8 up to 16384",
				   a->dim);
	if (!cairn_is_eps(a->eps))
		return cairn_error(EINVAL, "all_reduce_norm: eps: must be finite and at least 2^-126");
	if (!isfinite(a->weight_offset))
		return cairn_error(EINVAL, "all_reduce_norm: weight_offset: must be finite");
	if (a->rows == 0)
		return 0;
	if (!a->out || !a->x || !a->weight)
		return cairn_error(EINVAL, "all_reduce_norm: out, x, weight: must not be null");
	if (((uintptr_t)a->out | (uintptr_t)a->x | (uintptr_t)a->weight | (uintptr_t)a->residual) & 15)
		return cairn_error(EINVAL,
				   "all_reduce_norm: out, x, weight, residual: must be 16-byte aligned");
	return 0;
}
