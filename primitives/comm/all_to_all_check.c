// SPDX-License-Identifier: Apache-2.0
/* all_to_all - argument checks shared by all of our tables */
#include "primitives/comm/all_to_all.h"

#include "primitives/base/args.h"
#include "primitives/base/error.h"

static int check_layout(int64_t block, int64_t stride, int32_t row_bytes, const char *name)
{
	if (block < 0 || stride < row_bytes)
		return cairn_error(EINVAL, "all_to_all: %s_block, %s_stride: %lld, %lld: must be >= 0, >= %d",
				   name, name, (long long)block, (long long)stride, row_bytes);
	if ((block | stride) & 15)
		return cairn_error(EINVAL, "all_to_all: %s_block, %s_stride: must be multiples of 16", name,
				   name);
	return 0;
}

int cairn_all_to_all_check(const struct cairn_all_to_all_args *a)
{
	CAIRN_TRY(cairn_check_args(a, sizeof(*a), "all_to_all"));
	CAIRN_TRY(cairn_comm_check(&a->comm, "all_to_all"));
	if (a->rows < 0 || a->row_bytes < 1)
		return cairn_error(EINVAL, "all_to_all: rows %d, row_bytes %d: must be >= 0, >= 1", a->rows,
				   a->row_bytes);
	if (a->row_bytes % 16)
		return cairn_error(EINVAL, "all_to_all: row_bytes: %d is not a multiple of 16", a->row_bytes);
	if (a->row_bytes > 65536)
		return cairn_error(EOPNOTSUPP, "all_to_all: row_bytes: %d, at most 65536", a->row_bytes);
	CAIRN_TRY(check_layout(a->out_block, a->out_stride, a->row_bytes, "out"));
	CAIRN_TRY(check_layout(a->x_block, a->x_stride, a->row_bytes, "x"));
	if (a->rows == 0)
		return 0;
	if (!a->out || !a->x)
		return cairn_error(EINVAL, "all_to_all: out, x: must not be null");
	if (((uintptr_t)a->out | (uintptr_t)a->x) & 15)
		return cairn_error(EINVAL, "all_to_all: out, x: must be 16-byte aligned");
	return 0;
}
