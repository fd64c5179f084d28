/* SPDX-License-Identifier: Apache-2.0 */
/*
 * comm - the ranks of a collective call, one rank a GPU, within one host
 *
 * A communicator is opened by all ranks together, one process a rank (several ranks may share a process, each
 * with its own communicator). It gives every rank a segment of memory that all ranks have mapped: control
 * words, mailboxes that the collectives share, and a heap for the caller. struct cairn_comm is embedded in
 * the arguments of every collective.
 *
 * Rules for all collectives
 *   - All ranks make the same calls, with the same shapes, in the same order, and each rank makes its calls
 *     on one stream. Calls that differ are not detected; they end in -ETIMEDOUT or in wrong results.
 *   - A call may be captured in a graph: its number is counted in the segment, not by the host.
 *   - Every wait is bounded. A wait that exceeds timeout_ms, or that finds the communicator aborted, ends
 *     the call; its outputs are then undefined. A call of a host table returns the error itself. A call of a
 *     device table returns 0, and comm_error() reports the error once the stream has been synchronised.
 *   - After an error the communicator is useless: every later call on it fails, or does nothing. All ranks
 *     close it and open another.
 *   - An open communicator is not used by two threads at a time, except by comm_error() and comm_abort().
 *
 * comm_open(args, comm)     collective. Fills *comm. Returns 0 or -errno; if one rank fails, all do.
 *                           -EINVAL: bad arguments, or ranks that disagree on ranks, heap_bytes or the table.
 *                           -ENODEV: a GPU cannot reach another rank's memory. -ENOMEM. -EIO.
 * comm_heap(comm, r, base)  sets *base to this process's address of the heap of rank r. A heap has heap_bytes
 *                           bytes, is zeroed at first and 256-byte aligned; equal offsets from the bases of
 *                           two ranks name corresponding memory.
 * comm_error(comm)          0, or the error that has ended a call: -ETIMEDOUT, -ECANCELED (aborted). The
 *                           text names the operation, the number of the call and the rank waited for.
 * comm_abort(comm)          makes all ranks' present and later waits fail with -ECANCELED. Does not wait.
 * comm_close(comm)          not collective: a rank that closes waits for its own stream first, and closes
 *                           only when no other rank has a call under way. Zeroes *comm.
 */
#ifndef CAIRN_COMM_H
#define CAIRN_COMM_H

#include <stddef.h>
#include <stdint.h>

#define CAIRN_COMM_MAX_RANKS	8
#define CAIRN_COMM_TIMEOUT_MS	5000
/* the most that one exchange moves for each rank */
#define CAIRN_COMM_EXCHANGE	256

/* The ranks of a call; comm_open() fills it. */
struct cairn_comm {
	void *handle;			/* belongs to the table that has opened it */
	int32_t rank, ranks;		/* 0 <= rank < ranks <= CAIRN_COMM_MAX_RANKS */
};

struct cairn_comm_args {
	size_t size;
	/*
	 * Gathers `bytes` bytes (at most CAIRN_COMM_EXCHANGE) of every rank: all[r * bytes] are those of
	 * rank r. Returns 0, or -errno if a rank does not answer in time. Only comm_open() calls it, and all
	 * ranks call it equally often.
	 */
	int (*exchange)(void *arg, const void *mine, void *all, size_t bytes);
	void *arg;
	size_t heap_bytes;
	int32_t rank, ranks;
	int32_t timeout_ms;		/* of waits in collectives; 0: CAIRN_COMM_TIMEOUT_MS */
};

#ifdef __cplusplus
extern "C" {
#endif

int cairn_comm_open(const struct cairn_comm_args *args, struct cairn_comm *comm);
int cairn_comm_heap(const struct cairn_comm *comm, int32_t rank, void **base);
int cairn_comm_error(const struct cairn_comm *comm);
void cairn_comm_abort(const struct cairn_comm *comm);
void cairn_comm_close(struct cairn_comm *comm);

/* The same for host memory: the ref and cpu tables share it. */
int cairn_comm_open_cpu(const struct cairn_comm_args *args, struct cairn_comm *comm);
int cairn_comm_heap_cpu(const struct cairn_comm *comm, int32_t rank, void **base);
int cairn_comm_error_cpu(const struct cairn_comm *comm);
void cairn_comm_abort_cpu(const struct cairn_comm *comm);
void cairn_comm_close_cpu(struct cairn_comm *comm);

/* The argument checks of all tables. name: the operation, for the text. */
int cairn_comm_check_open(const struct cairn_comm_args *args, const struct cairn_comm *comm);
int cairn_comm_check(const struct cairn_comm *comm, const char *name);
/* Checks rank and ranks alone; handle may be NULL. For workspace queries. */
int cairn_comm_check_ranks(const struct cairn_comm *comm, const char *name);

#ifdef __cplusplus
}
#endif
#endif
