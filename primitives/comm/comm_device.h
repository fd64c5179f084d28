/* SPDX-License-Identifier: Apache-2.0 */
/*
 * comm_device - what the kernels of collectives need of a communicator
 *
 * segment   control words (COMM_CONTROL bytes) | mailboxes, 2 sets of one for each sender | boxes, as many |
 *           2 stages | heap
 *
 * A mailbox has COMM_WORDS LL words of 128 bits: three 32-bit units of payload and the number of the call
 * that wrote them. Calls are numbered in the segment, over all calls of the communicator, so that captured
 * calls can be replayed. Call n writes its messages into set n & 1 of each peer, which call n - 2 has used.
 * No peer reads that set any more: this rank has ended call n - 1, for which it needed a message from every
 * peer, and a peer sends its messages of call n - 1 only after it has ended call n - 2. Every call must
 * therefore await a word of every rank.
 *
 * Mailboxes are filled with 1 bits at first, and their memory never holds anything else, so a word cannot
 * hold the number of a future call, unless it was written 2^32 calls ago.
 *
 * Long messages of all_reduce_norm and all_to_all: the mailbox holds only flags, one for each row or piece,
 * in the last 32 bits of a word. The bytes are in the box of the same sender and set, which is reused by the
 * same rule. A flag is stored after a fence, which waits until the bytes before it have been acknowledged. In
 * return, every byte on the link is payload, whereas an LL word of 16 bytes carries only 12.
 *
 * Long messages of send_recv: copy engines move the bytes to a stage of the receiver, which reads it after a
 * barrier of all ranks (send_recv.cu). The two stages are used in turn, counted by the host. A rank may write
 * message k to a stage after the barrier of message k - 1: before that barrier, the receiver has copied
 * message k - 2 out of the same stage.
 */
#ifndef CAIRN_COMM_DEVICE_H
#define CAIRN_COMM_DEVICE_H

#include "primitives/comm/comm.h"

#define COMM_CONTROL	4096
#define COMM_WORDS	(1 << 20)	/* of a mailbox */
#define COMM_BOX	(16 << 20)	/* bytes of a box */
#define COMM_STAGE	(16 << 20)	/* bytes of a stage */

/* Describes the first wait that failed. The kernel writes it to host memory, with code last. */
struct comm_record {
	uint32_t rank, number, op, code;	/* code: 0, or an errno */
};

/* The operations that a record can name. */
enum comm_op {
	COMM_ALL_REDUCE_NORM, COMM_ALL_TO_ALL, COMM_SEND_RECV, COMM_DECODE_STEP_RANKS, COMM_NUM_OPS
};

/* In the segment; numbers start at all ones. */
struct comm_words {
	uint32_t number;	/* of the latest call */
	uint32_t entered;	/* CTAs of the call under way that have read its number, less 1 */
	uint32_t aborted;	/* ~0: no; other ranks write it */
	uint32_t failed;	/* ~0: no; a wait has failed, and all later waits end at once */
};

struct comm_device {
	char *mail[CAIRN_COMM_MAX_RANKS];	/* mailboxes in the segment of each rank */
	struct comm_words *words;		/* of this rank */
	struct comm_record *record;
	uint64_t timeout_ns;
	int32_t rank, ranks;
};

#ifdef __cplusplus
extern "C" {
#endif

/* Fills *d for a call of `op`, or returns the communicator's error if it is known. */
int comm_cuda_device(const struct cairn_comm *comm, const char *op, struct comm_device *d);
/* Sets the stages of this rank and of rank `to` (-1: none) for the next message of all ranks. */
void comm_cuda_stage(const struct cairn_comm *comm, int32_t to, char **mine, char **theirs);

#ifdef __cplusplus
}
#endif
#endif
