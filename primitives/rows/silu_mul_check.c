// SPDX-License-Identifier: Apache-2.0
/* silu_mul - argument checks shared by all of our tables */
#include "primitives/rows/silu_mul.h"

#include "primitives/base/args.h"
#include "primitives/base/dtype.h"
#include "primitives/base/error.h"
#include "primitives/rows/quant_fp8w.h"

static int check_q(const struct cairn_silu_mul_args *a)
{
	const struct cairn_quant_fp8w_args q = {
		.b = a->q, .scale = a->q_scale, .n = a->rows, .k = a->dim, .dtype = a->dtype,
		.scale_kind = a->q_kind,
	};

	return cairn_quant_fp8w_check_out(&q, CAIRN_SILU_MUL_MOST_Q, "silu_mul");
}

int cairn_silu_mul_check(const struct cairn_silu_mul_args *a)
{
	int has_q;

	if (!a || a->size != CAIRN_SILU_MUL_FIRST_BYTES)
		CAIRN_TRY(cairn_check_args(a, sizeof(*a), "silu_mul"));
	has_q = a->size >= sizeof(*a) && a->q;
	if (a->rows < 0 || a->dim < 1)
		return cairn_error(EINVAL, "silu_mul: rows %d, dim %d: must be >= 0, >= 1", a->rows, a->dim);
	if (!cairn_dtype_is_float(a->dtype))
		return cairn_error(EOPNOTSUPP, "silu_mul: dtype: %d is not supported", a->dtype);
	if (a->dim % 8)
		return cairn_error(EOPNOTSUPP, "silu_mul: dim: %d is not a multiple of 8", a->dim);
	if (a->activation != 0 && a->activation != 1)
		return cairn_error(EOPNOTSUPP, "silu_mul: activation: %d is neither silu (0) nor gelu (1)",
				   a->activation);
	if (has_q)
		CAIRN_TRY(check_q(a));
	if (a->rows == 0)
		return 0;
	if ((!a->out && !has_q) || !a->x)
		return cairn_error(EINVAL, "silu_mul: out without q, x: must not be null");
	if (((uintptr_t)a->out | (uintptr_t)a->x) & 15)
		return cairn_error(EINVAL, "silu_mul: out, x: must be 16-byte aligned");
	return 0;
}
