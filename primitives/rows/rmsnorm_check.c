// SPDX-License-Identifier: Apache-2.0
/* rmsnorm - argument checks shared by all of our tables */
#include "primitives/rows/rmsnorm.h"

#include <math.h>

#include "primitives/base/args.h"
#include "primitives/base/dtype.h"
#include "primitives/base/error.h"
#include "primitives/rows/quant_fp8w.h"

static int check_q(const struct cairn_rmsnorm_args *a)
{
	const struct cairn_quant_fp8w_args q = {
		.b = a->q, .scale = a->q_scale, .n = a->rows, .k = a->dim, .dtype = a->dtype,
		.scale_kind = a->q_kind,
	};

	return cairn_quant_fp8w_check_out(&q, INT32_MAX, "rmsnorm");
}

int cairn_rmsnorm_check(const struct cairn_rmsnorm_args *a)
{
	int has_q;

	if (!a || a->size != CAIRN_RMSNORM_FIRST_BYTES)
		CAIRN_TRY(cairn_check_args(a, sizeof(*a), "rmsnorm"));
	has_q = a->size >= sizeof(*a) && a->q;
	if (a->rows < 0 || a->dim < 1)
		return cairn_error(EINVAL, "rmsnorm: rows %d, dim %d: must be >= 0, >= 1", a->rows, a->dim);
	if (!cairn_dtype_is_float(a->dtype))
		return cairn_error(EOPNOTSUPP, "rmsnorm: dtype: %d is not supported", a->dtype);
	if (a->dim % 8 || a->dim > 16384)
		return cairn_error(EOPNOTSUPP, "rmsnorm: dim: %d is not a multiple of 8 up to 16384", a->dim);
	if (!cairn_is_eps(a->eps))
		return cairn_error(EINVAL, "rmsnorm: eps: must be finite and at least 2^-126");
	if (!isfinite(a->weight_offset))
		return cairn_error(EINVAL, "rmsnorm: weight_offset: must be finite");
	if (has_q)
		CAIRN_TRY(check_q(a));
	if (a->rows == 0)
		return 0;
	if ((!a->out && !has_q) || !a->x || !a->weight)
		return cairn_error(EINVAL, "rmsnorm: out without q, x, weight: must not be null");
	if (((uintptr_t)a->out | (uintptr_t)a->x | (uintptr_t)a->weight | (uintptr_t)a->residual) & 15)
		return cairn_error(EINVAL, "rmsnorm: out, x, weight, residual: must be 16-byte aligned");
	return 0;
}
