// SPDX-License-Identifier: Apache-2.0
/* quant_fp8w - argument checks shared by all of our tables */
#include "primitives/rows/quant_fp8w.h"

#include "primitives/base/args.h"
#include "primitives/base/dtype.h"
#include "primitives/base/error.h"

int cairn_quant_fp8w_check(const struct cairn_quant_fp8w_args *a)
{
	CAIRN_TRY(cairn_check_args(a, sizeof(*a), "quant_fp8w"));
	if (a->n < 0 || a->k < 1)
		return cairn_error(EINVAL, "quant_fp8w: n %d, k %d: must be >= 0, >= 1", a->n, a->k);
	if (a->scale_kind < CAIRN_FP8_SCALE_ROWS || a->scale_kind > CAIRN_FP8_SCALE_PIECES)
		return cairn_error(EINVAL, "quant_fp8w: scale_kind: %d is not 0, 1 or 2", a->scale_kind);
	if (!cairn_dtype_is_float(a->dtype) || a->k % 16)
		return cairn_error(EOPNOTSUPP, "quant_fp8w: dtype %d, k %d (must be a multiple of 16)",
				   a->dtype,
				   a->k);
	if (a->n == 0)
		return 0;
	if (!a->b || !a->scale || !a->w)
		return cairn_error(EINVAL, "quant_fp8w: b, scale, w: must not be null");
	if (((uintptr_t)a->b | (uintptr_t)a->w) & 15)
		return cairn_error(EINVAL, "quant_fp8w: b, w: must be 16-byte aligned");
	return 0;
}
