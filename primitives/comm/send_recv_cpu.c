// SPDX-License-Identifier: Apache-2.0
/* send_recv_cpu - each rank posts what it sends, mailbox by mailbox, and reads the mailbox of `from` */
#include <string.h>

#include "primitives/base/error.h"
#include "primitives/comm/comm_host.h"
#include "primitives/comm/send_recv.h"

static int one_round(const struct cairn_send_recv_args *a, int64_t first, size_t bytes)
{
	const void *mail;
	void *mine;

	CAIRN_TRY(comm_host_begin(&a->comm, "send_recv", &mine));
	if (a->to >= 0)
		memcpy(mine, (const char *)a->x + first, bytes);
	comm_host_post(&a->comm);
	/* all ranks are awaited, so that mailboxes are free in time (comm_host.h) */
	for (int32_t r = 0; r < a->comm.ranks; r++) {
		mail = mine;
		if (r != a->comm.rank)
			CAIRN_TRY(comm_host_await(&a->comm, r, "send_recv", &mail));
		if (r == a->from)
			memcpy((char *)a->out + first, mail, bytes);
	}
	return 0;
}

int cairn_send_recv_cpu(const struct cairn_send_recv_args *a, void *stream)
{
	const int64_t most = (int64_t)COMM_HOST_MAIL;

	(void)stream;
	CAIRN_TRY(cairn_send_recv_check(a));
	for (int64_t first = 0; first < a->bytes; first += most)
		CAIRN_TRY(one_round(a, first, (size_t)(a->bytes - first < most ? a->bytes - first : most)));
	return 0;
}
