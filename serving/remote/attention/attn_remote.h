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
 * If each request has one row, the merge attends to the own keys (sliced.c).
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
 * has computed. There are no stripes so far.
 *
 * There, calls of the link can be captured, and replayed for later passes of the lane with as many rows, as
 * long as the epoch lasts. What differs between passes is in memory of the device, where number() puts it.
 *
 * With several model workers (lead.h), number i > 0 computes the passes of lane i, whole. This end begins its
 * passes for it, as for the other lanes, has it run them, and waits for what it has drawn. In the model
 * worker, the link of follow() sends its Q, K and V to the same attention workers; the plans come from the
 * lead, and a call of begin() only says what the pass is.
 *
 * Errors: -EINVAL, -EOPNOTSUPP, naming the option or the key of the config; -ECONNRESET; those of lead.h.
 */
#ifndef CAIRN_ATTN_REMOTE_H
#define CAIRN_ATTN_REMOTE_H

#include <stdatomic.h>

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
 * Gives a pass that has begun the numbers which its puts and waits use, by a copy enqueued on the stream.
 * num_rows: rows of the link, padding included. The first call of the link does so itself, unless the pass is
 * captured or replayed: then call this first. Does nothing if calls of the link wait.
 */
int cairn_attn_remote_number(struct cairn_attn_remote *r, int32_t lane, int32_t num_rows, void *stream);
/*
 * Returns which buffers the lane's next pass uses. Bit 0: which of the two buffers of keys and values its
 * first layer takes. Bit 1: which of the lane's two journal buffers it takes; 0 without a journal. A captured
 * pass can be replayed only for passes for which this number is the same. Without a journal and with an even
 * number of layers it is always 0.
 */
int cairn_attn_remote_side(const struct cairn_attn_remote *r, int32_t lane);
/* Returns whether all workers have replayed a graph for the lane's last pass, which finish() has ended. */
int cairn_attn_remote_replayed(const struct cairn_attn_remote *r, int32_t lane);
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
/* ---- with several model workers: the lead's end ---- */

/* Declares model worker `number` lost, because it has not ended a pass in time. Returns -ECONNRESET. */
int cairn_attn_remote_overdue(struct cairn_attn_remote *r, int32_t number);

/*
 * The result that a model worker writes into the lead's memory: this struct, then int32 tokens [num_tokens],
 * then three arrays with num = num_tokens + num_scored entries, those of the draws first: log-probabilities,
 * float [num]; the k most likely tokens, int32 [num, k]; their log-probabilities, float [num, k] (worker.h).
 * Entries that a draw did not ask for are undefined.
 */
struct cairn_attn_result {
	uint64_t pass;			/* as in its RUN */
	int32_t num_tokens, num_scored, k, reserved;
};

/* Most bytes of a result. most_k: the largest k */
static inline size_t cairn_attn_result_bytes(int32_t max_batch, int32_t most_k)
{
	return sizeof(struct cairn_attn_result) + (size_t)max_batch * (8 + 8 * (size_t)most_k);
}

/* Has model worker `number` run a pass of its lane that has begun: the bytes of a plan (worker/plan.h). */
int cairn_attn_remote_run(struct cairn_attn_remote *r, int32_t number, const void *plan, size_t bytes);
/* What a pass asks a model worker for. */
struct cairn_attn_wants {
	int32_t num_tokens, num_scored, vocab;
	const int32_t *rows;		/* [num_tokens]: index of each draw in `wanted` and `late` */
	const int32_t *wanted, *late;	/* != 0: log-probabilities of raw, of treated logits are wanted */
};

/*
 * Checks what has come from another process: the numbers of draws, and that each token which the pass asked
 * for is below vocab, also those in the lists of the most likely ones. What it did not ask for may be stale.
 * -EIO, naming the draw.
 */
int cairn_attn_result_check(const struct cairn_attn_result *r, const struct cairn_attn_wants *wants);
/*
 * Waits until it has put its result. *result is a copy, which it cannot change, and is valid until its next
 * run. -ETIMEDOUT: not yet; wait_ms 0 only looks. A worker whose result does not pass the check is lost.
 */
int cairn_attn_remote_result(struct cairn_attn_remote *r, int32_t number, int wait_ms,
			     const struct cairn_attn_wants *wants, const struct cairn_attn_result **result);

/* ---- the end of a model worker of its own process ---- */

struct cairn_model_blob;

/*
 * assign: the lead's message to it; address: numeric, of this end; both must outlive it. Ends all waits when
 * *stop is set. Then blob() gives this end's addresses, and connect() takes those of the others.
 */
int cairn_attn_remote_follow(struct cairn_attn_remote **out, const struct cairn_model *model,
			     const struct cairn_control_assign *assign, const char *address,
			     const atomic_int *stop);
int cairn_attn_remote_blob(struct cairn_attn_remote *r, struct cairn_model_blob *mine);
int cairn_attn_remote_connect(struct cairn_attn_remote *r, const struct cairn_model_blob *theirs);
/* Puts a result to the lead. */
int cairn_attn_remote_answer(struct cairn_attn_remote *r, const struct cairn_attn_result *result,
			     size_t bytes);

void cairn_attn_remote_stats(const struct cairn_attn_remote *r, struct cairn_attn_remote_stats *stats);

#endif
