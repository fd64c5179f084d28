// SPDX-License-Identifier: Apache-2.0
/*
 * send_recv_ref - the reference: 16 KiB at a time, so that most cases take several rounds
 *
 * The result is a copy, so the bound is 0. Elements are int32_t: every value is exact in double.
 */
#include "primitives/comm/send_recv.h"

#include <string.h>

#include "primitives/base/dtype.h"
#include "primitives/base/error.h"
#include "primitives/comm/comm_host.h"

#define ROUND	16384

int cairn_send_recv_exact(const struct cairn_send_recv_args *const *all, int32_t rank,
			  struct cairn_exact *exact)
{
	const struct cairn_send_recv_args *a = all[rank];

	for (int32_t r = 0; r < a->comm.ranks; r++)
		CAIRN_TRY(cairn_send_recv_check(all[r]));
	for (int64_t i = 0; i < a->bytes / 4 && a->from >= 0; i++) {
		exact[0].val[i] = cairn_load(all[a->from]->x, CAIRN_I32, i);
		exact[0].bound[i] = 0;
	}
	return 0;
}

int cairn_send_recv_ref(const struct cairn_send_recv_args *a, void *stream)
{
	(void)stream;
	CAIRN_TRY(cairn_send_recv_check(a));
	for (int64_t at = 0; at < a->bytes; at += ROUND) {
		const size_t bytes = (size_t)(a->bytes - at < ROUND ? a->bytes - at : ROUND);
		const void *mail[CAIRN_COMM_MAX_RANKS];
		void *mine;

		CAIRN_TRY(comm_host_begin(&a->comm, "send_recv", &mine));
		if (a->to >= 0)
			memcpy(mine, (const char *)a->x + at, bytes);
		comm_host_post(&a->comm);
		mail[a->comm.rank] = mine;
		for (int32_t r = 0; r < a->comm.ranks; r++)
			if (r != a->comm.rank)
				CAIRN_TRY(comm_host_await(&a->comm, r, "send_recv", &mail[r]));
		if (a->from >= 0)
			memcpy((char *)a->out + at, mail[a->from], bytes);
	}
	return 0;
}
