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
		return cairn_error(EOPNOTSUPP,
				   "quant_fp8w: dtype %d is not supported, or k %d is not a multiple of 16",
				   a->dtype, a->k);
	if (a->n == 0)
		return 0;
	if (!a->b || !a->scale || !a->w)
		return cairn_error(EINVAL, "quant_fp8w: b, scale, w: must not be null");
	if (((uintptr_t)a->b | (uintptr_t)a->w) & 15)
		return cairn_error(EINVAL, "quant_fp8w: b, w: must be 16-byte aligned");
	return 0;
}

int cairn_quant_fp8w_check_out(const struct cairn_quant_fp8w_args *a, int32_t most, const char *op)
{
	if (a->scale_kind != CAIRN_FP8_SCALE_ROWS && a->scale_kind != CAIRN_FP8_SCALE_PIECES)
		return cairn_error(EINVAL, "%s: q_kind: %d is not 0 or 2", op, a->scale_kind);
	if (a->dtype != CAIRN_F16 && a->dtype != CAIRN_BF16)
		return cairn_error(EOPNOTSUPP, "%s: q: dtype %s is not supported", op,
				   cairn_dtype_name(a->dtype));
	if (a->k % 16 || a->k > most)
		return cairn_error(EOPNOTSUPP, "%s: q: dim %d is not a multiple of 16 up to %d", op, a->k,
				   most);
	if (a->n == 0)
		return 0;
	if (!a->scale)
		return cairn_error(EINVAL, "%s: q_scale: must not be null with q", op);
	if ((uintptr_t)a->b & 15 || (uintptr_t)a->scale & 3)
		return cairn_error(EINVAL, "%s: q, q_scale: must be 16-byte and 4-byte aligned", op);
	return 0;
}
