// SPDX-License-Identifier: Apache-2.0
/* lora - argument checks shared by all of our tables */
#include "primitives/gemm/lora/lora.h"

#include "primitives/base/args.h"
#include "primitives/base/dtype.h"
#include "primitives/base/error.h"

static int check_parts(const struct cairn_lora_args *a)
{
	int32_t end = 0;

	if (a->num_parts < 1)
		return cairn_error(EINVAL, "lora: num_parts: must be >= 1");
	if (a->num_parts > CAIRN_LORA_MAX_PARTS)
		return cairn_error(EOPNOTSUPP, "lora: num_parts: %d is above %d", a->num_parts,
				   CAIRN_LORA_MAX_PARTS);
	for (int32_t p = 0; p < a->num_parts; p++) {
		if (a->part_end[p] <= end)
			return cairn_error(EINVAL, "lora: part_end: %d is not above %d", a->part_end[p], end);
		end = a->part_end[p];
	}
	if (end != a->n)
		return cairn_error(EINVAL, "lora: part_end: the last one is %d, not n, which is %d", end,
				   a->n);
	return 0;
}

int cairn_lora_check_shape(const struct cairn_lora_args *a)
{
	CAIRN_TRY(cairn_check_args(a, sizeof(*a), "lora"));
	if (a->m < 0 || a->n < 1 || a->k < 1)
		return cairn_error(EINVAL, "lora: m %d, n %d, k %d: must be >= 0, >= 1, >= 1", a->m, a->n,
				   a->k);
	if (a->num_slots < 1 || a->rank < 1)
		return cairn_error(EINVAL, "lora: num_slots %d, rank %d: must be >= 1", a->num_slots,
				   a->rank);
	CAIRN_TRY(check_parts(a));
	if (a->rank % 8 || a->rank > CAIRN_LORA_MAX_RANK)
		return cairn_error(EOPNOTSUPP, "lora: rank: %d is not a multiple of 8 up to %d", a->rank,
				   CAIRN_LORA_MAX_RANK);
	if (a->k % 8)
		return cairn_error(EOPNOTSUPP, "lora: k: %d is not a multiple of 8", a->k);
	if (a->dtype != CAIRN_BF16 && a->dtype != CAIRN_F16)
		return cairn_error(EOPNOTSUPP, "lora: dtype: %d is not supported", a->dtype);
	return 0;
}

int cairn_lora_check(const struct cairn_lora_args *a)
{
	CAIRN_TRY(cairn_lora_check_shape(a));
	if (!a->m)
		return 0;
	if (!a->y || !a->x || !a->a || !a->b || !a->scale || !a->slot)
		return cairn_error(EINVAL, "lora: y, x, a, b, scale, slot: must not be null");
	if (((uintptr_t)a->y | (uintptr_t)a->x | (uintptr_t)a->a | (uintptr_t)a->b) & 15)
		return cairn_error(EINVAL, "lora: y, x, a, b: must be 16-byte aligned");
	return 0;
}
