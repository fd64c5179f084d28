// SPDX-License-Identifier: Apache-2.0
/*
 * all_to_all_cpu - each rank posts its blocks for all ranks, and reads its own from the others
 *
 * A round has as many rows of each block as fit a mailbox, in the order of the ranks that get them.
 */
#include <string.h>

#include "primitives/base/error.h"
#include "primitives/comm/all_to_all.h"
#include "primitives/comm/comm_host.h"

static void copy_rows(char *to, int64_t to_stride, const char *from, int64_t from_stride, int32_t rows,
		      int32_t bytes)
{
	for (int32_t i = 0; i < rows; i++)
		memcpy(to + i * to_stride, from + i * from_stride, (size_t)bytes);
}

static int one_round(const struct cairn_all_to_all_args *a, int32_t first, int32_t rows)
{
	const int64_t block = (int64_t)rows * a->row_bytes;
	char *mine, *out = (char *)a->out + first * a->out_stride;
	const char *x = (const char *)a->x + first * a->x_stride;

	CAIRN_TRY(comm_host_begin(&a->comm, "all_to_all", (void **)&mine));
	for (int32_t r = 0; r < a->comm.ranks; r++)
		copy_rows(mine + r * block, a->row_bytes, x + r * a->x_block, a->x_stride, rows,
			  a->row_bytes);
	comm_host_post(&a->comm);
	for (int32_t r = 0; r < a->comm.ranks; r++) {
		const void *mail = mine;

		if (r != a->comm.rank)
			CAIRN_TRY(comm_host_await(&a->comm, r, "all_to_all", &mail));
		copy_rows(out + r * a->out_block, a->out_stride, (const char *)mail + a->comm.rank * block,
			  a->row_bytes, rows, a->row_bytes);
	}
	return 0;
}

int cairn_all_to_all_cpu(const struct cairn_all_to_all_args *a, void *stream)
{
	int32_t most;

	(void)stream;
	CAIRN_TRY(cairn_all_to_all_check(a));
	most = (int32_t)(COMM_HOST_MAIL / ((size_t)a->row_bytes * (size_t)a->comm.ranks));
	for (int32_t first = 0; first < a->rows; first += most)
		CAIRN_TRY(one_round(a, first, a->rows - first < most ? a->rows - first : most));
	return 0;
}
