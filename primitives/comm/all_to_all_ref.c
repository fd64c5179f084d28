// SPDX-License-Identifier: Apache-2.0
/*
 * all_to_all_ref - the reference: one row of one block at a time
 *
 * The result is a copy, so the bound is 0. Elements are int32_t: every value is exact in double.
 */
#include "primitives/comm/all_to_all.h"

#include <string.h>

#include "primitives/base/dtype.h"
#include "primitives/base/error.h"
#include "primitives/comm/comm_host.h"

int cairn_all_to_all_exact(const struct cairn_all_to_all_args *const *all, int32_t rank,
			   struct cairn_exact *exact)
{
	const struct cairn_all_to_all_args *a = all[rank];

	for (int32_t r = 0; r < a->comm.ranks; r++)
		CAIRN_TRY(cairn_all_to_all_check(all[r]));
	for (int32_t r = 0; r < a->comm.ranks; r++)
		for (int32_t i = 0; i < a->rows; i++) {
			const char *row = (const char *)all[r]->x + rank * all[r]->x_block +
					  i * all[r]->x_stride;
			int64_t at = (r * a->out_block + i * a->out_stride) / 4;

			for (int64_t j = 0; j < a->row_bytes / 4; j++) {
				exact[0].val[at + j] = cairn_load(row, CAIRN_I32, j);
				exact[0].bound[at + j] = 0;
			}
		}
	return 0;
}

int cairn_all_to_all_ref(const struct cairn_all_to_all_args *a, void *stream)
{
	(void)stream;
	CAIRN_TRY(cairn_all_to_all_check(a));
	for (int32_t i = 0; i < a->rows; i++) {
		char *mine;

		CAIRN_TRY(comm_host_begin(&a->comm, "all_to_all", (void **)&mine));
		for (int32_t r = 0; r < a->comm.ranks; r++)
			memcpy(mine + (int64_t)r * a->row_bytes,
			       (const char *)a->x + r * a->x_block + i * a->x_stride, (size_t)a->row_bytes);
		comm_host_post(&a->comm);
		for (int32_t r = 0; r < a->comm.ranks; r++) {
			const void *mail = mine;

			if (r != a->comm.rank)
				CAIRN_TRY(comm_host_await(&a->comm, r, "all_to_all", &mail));
			memcpy((char *)a->out + r * a->out_block + i * a->out_stride,
			       (const char *)mail + (int64_t)a->comm.rank * a->row_bytes,
			       (size_t)a->row_bytes);
		}
	}
	return 0;
}
