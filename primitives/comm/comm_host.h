/* SPDX-License-Identifier: Apache-2.0 */
/*
 * comm_host - mailboxes in shared host memory, for the collectives of the ref and cpu tables
 *
 * A collective makes one or more rounds. In a round, a rank writes a message into its own mailbox, posts it,
 * and reads the messages of all other ranks:
 *
 *   CAIRN_TRY(comm_host_begin(&a->comm, "op", &mine));       my message goes to `mine`
 *   comm_host_post(&a->comm);
 *   CAIRN_TRY(comm_host_await(&a->comm, r, "op", &theirs));  for every other rank r
 *
 * Every round must await all ranks. Two mailboxes in turn then suffice: a rank that posts round k has
 * finished reading those of round k - 1, so when all have posted round k, those of round k - 1 are free.
 *
 * Numbers of rounds are 32 bits and may wrap around. They begin shortly before that, so that tests see it.
 */
#ifndef CAIRN_COMM_HOST_H
#define CAIRN_COMM_HOST_H

#include <stdatomic.h>

#include "primitives/comm/comm.h"

#define COMM_HOST_MAIL		((size_t)1 << 20)	/* bytes of a mailbox */
#define COMM_HOST_FIRST		0xfffffff4u		/* the number before that of the first round */

/* What a segment begins with. */
struct comm_host_control {
	_Alignas(256) _Atomic uint32_t posted;	/* the latest round whose message is in the mailbox */
	_Alignas(64) _Atomic uint32_t aborted;
	_Alignas(64) _Atomic int32_t users;	/* ranks of the owner's process that use its mapping */
	uint64_t key;				/* of the owner; shows that the right memory was mapped */
};

struct comm_host {
	struct comm_host_control *segment[CAIRN_COMM_MAX_RANKS];
	int shared[CAIRN_COMM_MAX_RANKS];	/* 1: a mapping of this process; its last user removes it */
	size_t bytes;				/* of a segment */
	int32_t rank, ranks;
	uint32_t number;			/* of the round under way */
	uint64_t timeout_ns;
	_Atomic int error;			/* 0 or -errno; text is complete once it is set */
	char text[160];
};

/* Returns mailbox `which` (0 or 1) of a rank. */
static inline uint8_t *comm_host_mail(const struct comm_host *h, int32_t rank, uint32_t which)
{
	return (uint8_t *)(h->segment[rank] + 1) + (which & 1) * COMM_HOST_MAIL;
}

/*
 * Returns the communicator's error if it has one, or -EINVAL if rank or ranks are not those of the handle.
 * op: the operation, for the text.
 */
int comm_host_check(const struct cairn_comm *comm, const char *op);
/* Begins a round, after the same check, and sets *mine to this rank's mailbox. */
int comm_host_begin(const struct cairn_comm *comm, const char *op, void **mine);
void comm_host_post(const struct cairn_comm *comm);
/*
 * Waits for rank's message of this round. Returns 0, -ETIMEDOUT or -ECANCELED; an error is kept as the
 * communicator's.
 */
int comm_host_await(const struct cairn_comm *comm, int32_t rank, const char *op, const void **mail);

#endif
