// SPDX-License-Identifier: Apache-2.0
/* lockstep - gathers the values of all ranks and takes those of rank 0 (lockstep.h) */
#include "serving/profile/lockstep.h"

#include <string.h>

#include "primitives/base/error.h"

int lockstep_open(struct lockstep *l, const struct cairn_impl *impl, int32_t ranks)
{
	const size_t bytes = LOCKSTEP_VALUES * sizeof(*l->mem) * (1 + (size_t)ranks);
	void *p;

	memset(l, 0, sizeof(*l));
	l->impl = impl;
	l->ranks = ranks;
	if (ranks < 2)
		return 0;
	if (!impl->all_to_all)
		return cairn_error(EOPNOTSUPP, "%s: the table has no all_to_all", impl->name);
	CAIRN_TRY(CAIRN_TABLE(impl, stream_create, &l->stream));
	CAIRN_TRY(CAIRN_TABLE(impl, mem_alloc, &p, bytes));
	l->mem = p;
	return 0;
}

void lockstep_close(struct lockstep *l)
{
	if (l->mem)
		l->impl->mem_free(l->mem);
	if (l->stream)
		l->impl->stream_destroy(l->stream);
	memset(l, 0, sizeof(*l));
}

int lockstep_agree(struct lockstep *l, double *values, int num)
{
	const int32_t row = LOCKSTEP_VALUES * (int32_t)sizeof(*values);
	const struct cairn_all_to_all_args gather = {
		.size = sizeof(gather), .out = l->mem + LOCKSTEP_VALUES, .x = l->mem, .out_block = row,
		.out_stride = row, .x_stride = row, .rows = 1, .row_bytes = row,
	};
	double mine[LOCKSTEP_VALUES] = { 0 };

	if (l->ranks < 2)
		return 0;
	memcpy(mine, values, (size_t)num * sizeof(*values));
	CAIRN_TRY(CAIRN_TABLE(l->impl, mem_copy, l->mem, mine, sizeof(mine), CAIRN_COPY_TO_DEVICE,
			      l->stream));
	CAIRN_TRY(CAIRN_TABLE(l->impl, all_to_all, &gather, l->stream));
	CAIRN_TRY(CAIRN_TABLE(l->impl, mem_copy, mine, gather.out, sizeof(mine), CAIRN_COPY_TO_HOST,
			      l->stream));
	CAIRN_TRY(CAIRN_TABLE(l->impl, stream_sync, l->stream));
	memcpy(values, mine, (size_t)num * sizeof(*values));
	return 0;
}
