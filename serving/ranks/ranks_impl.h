/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ranks_impl - the state of a rank, shared by the files ranks*.c
 *
 * A message is a frame (kind, length) and its bytes. Rank 0 sends OPTIONS for each worker, PLAN and COLLECT
 * as passes are launched, BEAT while there are none, and END. A rank answers OPTIONS with READY, COLLECT with
 * TOKENS and BEAT with BEAT; instead of any answer it may send FAILED, with the reason as text, and end.
 * Before that, the ranks tell rank 0 who they are (IDENTITY), and EXCHANGE gathers bytes for comm_open(),
 * through rank 0. Within a node the bytes go over a socketpair, between nodes as messages of a channel.
 */
#ifndef CAIRN_RANKS_IMPL_H
#define CAIRN_RANKS_IMPL_H

#include <pthread.h>
#include <stdatomic.h>
#include <sys/types.h>

#include "primitives/base/error.h"
#include "serving/base/clock.h"
#include "serving/engine/worker/plan.h"
#include "serving/ranks/ranks.h"

#define MAX	CAIRN_COMM_MAX_RANKS
#define TEXT	480			/* bytes of a reason */

enum kind { IDENTITY = 1, EXCHANGE, OPTIONS, READY, PLAN, COLLECT, TOKENS, BEAT, END, FAILED };

struct frame {
	uint32_t kind, len;
};

/* The options of worker and tiers that rank 0 sends. */
struct options {
	uint64_t plans;			/* digest of the plans of nano-batches; 0: there are none */
	int64_t context_keys;
	int32_t max_batch, max_rows, max_context, num_pages, page_size, repeatable, no_graphs;
	int32_t chunk_rows, context_rows, host_pages, disk_pages, stripes;
	int32_t decode;			/* enum cairn_decode_path: all ranks make the same collective calls */
	int32_t taps, tap_layers[CAIRN_MAX_TAPS];	/* taps: there are such */
	char disk_dir[996];		/* "": the default; no padding follows */
};

/* Values that must be equal on all ranks. */
struct identity {
	char table[32], device[256], model[64], host[48];
};

/* Bytes of a channel's message that have not been read yet. */
struct rest {
	unsigned char *bytes;		/* [len] */
	size_t at, len, room;
};

/* Precedes the tokens of a pass. */
struct drawn {
	uint64_t pass;
	int32_t num, unused;
};

struct cairn_tp {
	int32_t rank, ranks, timeout_ms;
	int32_t first, end;		/* the ranks of this node */
	int fd[MAX];			/* rank 0: to rank r; else fd[0]: to rank 0; -1: none */
	/* the same, to another node: fd is that of the channel */
	struct cairn_control_channel *channel[MAX];
	struct rest rest[MAX];
	pid_t pid[MAX];			/* child processes; 0: none, or reaped */
	int reaped[MAX], status[MAX];	/* status: of a rank that was reaped */
	uint64_t plans, passes, collected;	/* plans and passes launched */
	int failed;			/* an error has occurred; the others are not waited for */
	int told;			/* a rank has sent the reason of its end, which is the last error */

	pthread_t watcher;
	int watches, stop_fd;		/* an eventfd that ends the watcher */
	pid_t watched[MAX];		/* processes that the watcher looks at; 0: none */
	_Atomic int32_t lost;		/* the first rank that the watcher has seen end or stop; -1: none */
	_Atomic int stopped;		/* that rank has been stopped */
	const struct cairn_tp_watch *watch;	/* NULL: none */

	/* rank 0 */
	struct cairn_engine_tap tap;
	struct cairn_plan_out plan;
	int in_plan;			/* the plan has been begun */
};

/* The table of this process, whose operations find the communicator here. */
struct tp_table {
	struct cairn_impl base;
	struct cairn_comm comm;
	struct cairn_tp *tp;
};
extern struct tp_table tp_table;

static inline int64_t tp_deadline(int64_t ms)
{
	return cairn_clock_ns() + ms * 1000000;
}

/* The peer of a socket: rank r for rank 0, rank 0 for the others. */
int tp_send(struct cairn_tp *tp, int32_t r, enum kind kind, const void *bytes, size_t len);
int tp_send_to_all(struct cairn_tp *tp, enum kind kind, const void *bytes, size_t len);
/* Receives a frame, then the bytes that it announces. A FAILED is returned as the error that it tells of. */
int tp_receive_frame(struct cairn_tp *tp, int32_t r, struct frame *f, int64_t deadline);
int tp_receive_bytes(struct cairn_tp *tp, int32_t r, void *bytes, size_t len, int64_t deadline);
/* Receives a message of this kind and exactly this length. */
int tp_receive(struct cairn_tp *tp, int32_t r, enum kind kind, void *bytes, size_t len, int64_t ms);

/*
 * Completes the error of an operation: prepends pass (0: none) and operation, and if a rank has ended, names
 * it and how it ended instead of what noticed it. Returns 0 if ret is 0, or the error.
 */
int tp_explain(struct cairn_tp *tp, int ret, uint64_t pass, const char *op);
/* Returns the error for a rank whose socket has closed, or which has been stopped. */
int tp_ended(struct cairn_tp *tp, int32_t r);

/* Returns whether a process has been stopped by a signal, and not by a debugger. */
int tp_is_stopped(pid_t pid);
int tp_start_watcher(struct cairn_tp *tp);
void tp_stop_watcher(struct cairn_tp *tp);
/* Returns the error of collectives that a device has reported, or 0. */
int tp_check_comm(struct cairn_tp *tp);

#endif
