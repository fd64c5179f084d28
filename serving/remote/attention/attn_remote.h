/* SPDX-License-Identifier: Apache-2.0 */
/*
 * attn_remote - the link of a sliced pass (attn_link.h) to attention workers in other processes
 *
 * Each worker holds some heads of every page (share.h), under the same page numbers. begin() tells all
 * workers the requests and pages of a pass. Then, for each layer, the pass sends Q, sends K and V, and
 * receives O and the log-sum-exps. These data move by rdma/transport, directly between buffers of the two
 * ends; only plans go through the lead's channels.
 *
 *   model worker   Q(l) -->      K, V(l) -->   own keys ...      <-- O, lse(l)       merge, next layer
 *   worker j             --> attention to previous keys ...      -->          append K, V(l)
 *
 * With `previous`, K and V are off the critical path. Without it, the worker appends first and attends to all
 * keys: the result then has the bits of a pass without workers.
 *
 * With several lanes, the passes of several batches are under way: while the workers attend for one, the
 * caller computes another. A lane has one pass at a time. In each layer, passes must send in the order in
 * which they began; a pass that has begun later never overtakes (on a device, workers see to this). Then the
 * workers carry plans out as if one came after the other, layer by layer, and what a plan says about pages
 * needs to hold in this order only.
 *
 * When a worker is lost, every call returns -ECONNRESET and cairn_attn_remote_lost() returns 1, until
 * restart() has begun a new epoch with a complete set of workers. Their caches are empty, so the caller must
 * compute again all keys that it still needs. With a journal, they hold the keys of all passes that have
 * ended, and the caller must only begin the others again, in their order and with their copies of pages.
 *
 * With a table whose memory is host memory, calls of the link wait. With one of a device they only enqueue,
 * on the stream of the pass: puts into the workers' memory, and waits for their results
 * (attn_remote_stream.c). A loss then shows in finish(), which the caller makes before it uses what the pass
 * has computed. There are no stripes and no journal so far.
 *
 * Errors: -EINVAL, -EOPNOTSUPP, naming the option or the key of the config; -ECONNRESET; those of lead.h.
 */
#ifndef CAIRN_ATTN_REMOTE_H
#define CAIRN_ATTN_REMOTE_H

#include "serving/remote/lead/lead.h"
#include "serving/remote/attention/journal.h"
#include "serving/remote/attention/share.h"
#include "serving/slices/attn_link.h"

struct cairn_attn_remote;

struct cairn_attn_remote_stats {
	int64_t passes, layers, bytes;	/* bytes: sent and received */
	int64_t wait_ns;		/* for results */
	int64_t attn_ns;		/* the slowest worker's attention, summed over the layers */
	int64_t restarts;		/* epochs after the first */
	int64_t restored_bytes, restore_ns;	/* from the journal */
	struct cairn_journal_stats journal;
};

/*
 * The lead and the model must outlive it. Waits until the workers are ready. journal_bytes: most memory of a
 * journal of all keys and values (journal.h), from which restart() restores them; 0: none.
 */
int cairn_attn_remote_create(struct cairn_attn_remote **out, struct cairn_lead *lead,
			     const struct cairn_model *model, const struct cairn_remote_limits *limits,
			     int previous, int64_t journal_bytes);
int cairn_attn_remote_has_journal(const struct cairn_attn_remote *r);
void cairn_attn_remote_destroy(struct cairn_attn_remote *r);	/* NULL is legal */
/*
 * Begins a pass of a lane, 0 .. limits.lanes - 1. Its arrays are copied. Rows of the link beyond
 * p->num_rows are padding: they are not sent, and their results are 0, with a log-sum-exp
 * of -INFINITY.
 */
int cairn_attn_remote_begin(struct cairn_attn_remote *r, int32_t lane, const struct cairn_remote_pass *p);
const struct cairn_attn_link *cairn_attn_remote_link(struct cairn_attn_remote *r, int32_t lane);
/*
 * Waits until the pass has ended, whose last result the lane has received on this stream. Returns at once if
 * calls of the link wait.
 */
int cairn_attn_remote_finish(struct cairn_attn_remote *r, int32_t lane, void *stream);
/* Says that the stream of the lane's pass is empty, and will be destroyed. */
void cairn_attn_remote_settled(struct cairn_attn_remote *r, int32_t lane);
int cairn_attn_remote_lost(const struct cairn_attn_remote *r);
/* Begins a new epoch; tries again while workers are lost, but a few times at most. */
int cairn_attn_remote_restart(struct cairn_attn_remote *r);
void cairn_attn_remote_stats(const struct cairn_attn_remote *r, struct cairn_attn_remote_stats *stats);

#endif
