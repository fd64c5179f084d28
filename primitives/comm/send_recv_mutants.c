// SPDX-License-Identifier: Apache-2.0
/* send_recv_mutants - wrong versions of send_recv, one defect each */
#include <string.h>
#include <unistd.h>

#include "conformance/harness.h"
#include "primitives/base/bend.h"
#include "primitives/comm/comm_host.h"
#include "primitives/comm/send_recv.h"

enum send_recv_bend {
	send_recv_bend_from_is_to, send_recv_bend_always_a_ring, send_recv_bend_own_not_copied,
	send_recv_bend_last_16_bytes_lost, send_recv_bend_old_mailbox, send_recv_bend_no_wait,
	send_recv_bend_flag_before_payload, send_recv_bend_only_from_awaited, send_recv_bend_offset_lost,
	send_recv_bend_out_without_from, send_recv_bend_impatient, send_recv_bend_flag_before_end,
	send_recv_bend_released_before_copy, send_recv_bend_idle_does_not_wait,
};
#define IS(defect)	(bend == send_recv_bend_##defect)

static void bent_send(const struct cairn_send_recv_args *a, enum send_recv_bend bend, int64_t first,
		      size_t bytes, void *mine)
{
	if (IS(flag_before_payload)) {
		comm_host_post(&a->comm);
		usleep(300);
	}
	if (a->to >= 0 && !IS(flag_before_end))
		memcpy(mine, (const char *)a->x + first, bytes);
	else if (a->to >= 0)
		memcpy(mine, (const char *)a->x + first, bytes - 16);
	if (!IS(flag_before_payload))
		comm_host_post(&a->comm);
	if (a->to >= 0 && IS(flag_before_end))
		memcpy((char *)mine + bytes - 16, (const char *)a->x + first + bytes - 16, 16);
}

/* Posts in a further round that it has read mailbox 0, before it has, so that it is reused too early. */
static int release_early(const struct cairn_send_recv_args *a)
{
	const void *mail;
	void *mine;

	CAIRN_TRY(comm_host_begin(&a->comm, "send_recv", &mine));
	comm_host_post(&a->comm);
	for (int32_t r = 0; r < a->comm.ranks; r++)
		if (r != a->comm.rank)
			CAIRN_TRY(comm_host_await(&a->comm, r, "send_recv", &mail));
	return 0;
}

static int bent_await(const struct cairn_send_recv_args *a, enum send_recv_bend bend, int32_t r,
		      const void **mail)
{
	struct comm_host *h = a->comm.handle;

	*mail = comm_host_mail(h, r, h->number);
	if (r == h->rank || IS(no_wait) || (IS(idle_does_not_wait) && a->to < 0 && a->from < 0) ||
	     (IS(only_from_awaited) && r != a->from))
		return 0;
	for (int i = 0; IS(impatient) && i < 10; i++) {
		if ((int32_t)(atomic_load(&h->segment[r]->posted) - h->number) >= 0)
			break;
		usleep(20);
		if (i == 9)
			return 0;
	}
	CAIRN_TRY(comm_host_await(&a->comm, r, "send_recv", mail));
	if (IS(old_mailbox))
		*mail = comm_host_mail(h, r, h->number - 1);
	return 0;
}

static int bent_round(const struct cairn_send_recv_args *a, enum send_recv_bend bend, int64_t first,
		      size_t bytes)
{
	const int32_t n = a->comm.ranks;
	int32_t from = IS(from_is_to) ? a->to : IS(always_a_ring) && a->from >= 0 ?
		       (a->comm.rank + n - 1) % n : a->from;
	const void *mails[CAIRN_COMM_MAX_RANKS];
	void *mine;

	CAIRN_TRY(comm_host_begin(&a->comm, "send_recv", &mine));
	if (IS(released_before_copy))
		mine = comm_host_mail(a->comm.handle, a->comm.rank, 0);
	bent_send(a, bend, first, bytes, mine);
	if (IS(out_without_from) && a->from < 0 && a->out)
		memset((char *)a->out + first, 0, bytes);
	for (int32_t r = 0; r < n; r++)
		CAIRN_TRY(bent_await(a, bend, r, &mails[r]));
	if (IS(released_before_copy))
		CAIRN_TRY(release_early(a));
	for (int32_t r = 0; r < n; r++) {
		const void *mail = IS(released_before_copy) ? comm_host_mail(a->comm.handle, r, 0) : mails[r];

		if (r != from || (IS(own_not_copied) && r == a->comm.rank))
			continue;
		memcpy((char *)a->out + (IS(offset_lost) ? 0 : first), mail,
		       IS(last_16_bytes_lost) && bytes > 16 ? bytes - 16 : bytes);
	}
	return 0;
}

static int bent_send_recv(const struct cairn_send_recv_args *a, enum send_recv_bend bend)
{
	const int64_t most = (int64_t)COMM_HOST_MAIL;

	CAIRN_TRY(cairn_send_recv_check(a));
	for (int64_t first = 0; first < a->bytes; first += most)
		CAIRN_TRY(bent_round(a, bend, first,
				     (size_t)(a->bytes - first < most ? a->bytes - first : most)));
	return 0;
}

BENT(send_recv, from_is_to)
BENT(send_recv, always_a_ring)
BENT(send_recv, own_not_copied)
BENT(send_recv, last_16_bytes_lost)
BENT(send_recv, old_mailbox)
BENT(send_recv, no_wait)
BENT(send_recv, flag_before_payload)
BENT(send_recv, only_from_awaited)
BENT(send_recv, offset_lost)
BENT(send_recv, out_without_from)
BENT(send_recv, impatient)
BENT(send_recv, flag_before_end)
BENT(send_recv, released_before_copy)
BENT(send_recv, idle_does_not_wait)

/* Among four or more ranks, what follows the first mailbox loses its first bytes. */
static int send_recv_second_mailbox_of_4(const struct cairn_send_recv_args *a, void *stream)
{
	CAIRN_TRY(cairn_send_recv_ref(a, stream));
	if (a->from >= 0 && a->comm.ranks > 3 && a->bytes > (int64_t)COMM_HOST_MAIL)
		memset((char *)a->out + COMM_HOST_MAIL, 0, 16);
	return 0;
}

const struct cairn_mutant cairn_send_recv_mutants[] = {
	MUTANT(send_recv, from_is_to, "receives from the rank that it sends to"),
	MUTANT(send_recv, always_a_ring, "receives from the rank below, whatever `from` is"),
	MUTANT(send_recv, own_not_copied, "copies nothing if it sends to itself"),
	MUTANT(send_recv, last_16_bytes_lost, "loses the last 16 bytes"),
	MUTANT(send_recv, old_mailbox, "reads the mailbox of the call before"),
	MUTANT(send_recv, no_wait, "does not wait for messages"),
	MUTANT(send_recv, flag_before_payload, "posts a message before it is written"),
	MUTANT(send_recv, flag_before_end, "posts a message before its last 16 bytes are written"),
	MUTANT(send_recv, released_before_copy, "lets mailboxes be overwritten before it has read them"),
	MUTANT(send_recv, only_from_awaited, "waits only for the rank that sends to it"),
	MUTANT(send_recv, idle_does_not_wait, "does not wait if it neither sends nor receives"),
	MUTANT(send_recv, offset_lost, "stores later rounds over the first one"),
	MUTANT(send_recv, out_without_from, "writes out although nothing is sent to it"),
	MUTANT(send_recv, impatient, "goes on without a rank that is late"),
	{ "send_recv_second_mailbox_of_4", offsetof(struct cairn_impl, send_recv),
	  (void *)send_recv_second_mailbox_of_4,
	  "among four or more ranks, the second round loses its first bytes" },
	{ 0 }
};
