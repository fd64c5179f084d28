/* SPDX-License-Identifier: Apache-2.0 */
/*
 * attn_epoch - what an attention worker does between two assignments; private to the worker and its tests
 *
 *   create    starts the epoch's thread (epoch_life.h), which takes memory and opens the transport: PREPARED;
 *             with the model worker's blob it connects: CONNECTED; then it carries out plans
 *   plan      queues a plan; the model worker sends a lane's next one when it has all results of the last
 *   destroy   stops the thread if need be, waits for its end and frees everything
 *
 * The thread takes the turns (share.h) in the order in which the model worker sends them, whichever lanes
 * they are of. So in each layer the plans are carried out in their order, though not pass by pass: what a
 * plan says about pages, and the pages that it copies, holds layer by layer. With several model workers there
 * is a channel and a thread for each. One thread at a time carries out a turn, and a turn waits until all
 * plans before its own have carried out its layer (attn_turn.c), so the same holds.
 *
 * All calls but destroy return at once, so the main thread keeps sending heartbeats whatever the epoch's
 * thread does. That thread also ends when the model worker closes its end of the transport. This is not a
 * failure: the lead decides what follows.
 *
 * With a table of a device (cairn_share_by_stream()), the thread only enqueues: a plan's layers go to the
 * stream of its lane as soon as the plan is there, each behind a wait for its Q (attn_queue.c).
 */
#ifndef CAIRN_REMOTE_ATTN_EPOCH_H
#define CAIRN_REMOTE_ATTN_EPOCH_H

#include "rdma/transport/transport.h"
#include "serving/remote/attention/share.h"
#include "serving/remote/member/member.h"

#define CAIRN_EPOCH_PLANS	(CAIRN_MAX_LANES + 1)	/* plans that wait */
#define CAIRN_EPOCH_LOOK_MS	20		/* between two looks at whether to stop */
#ifndef CAIRN_EPOCH_LAYER_MS			/* shorter for mutants */
#define CAIRN_EPOCH_LAYER_MS	60000		/* for what a pass under way must send next */
#endif
#ifndef CAIRN_EPOCH_STREAM_MS
#define CAIRN_EPOCH_STREAM_MS	20000		/* the same, for a kernel that waits */
#endif
#define CAIRN_EPOCH_CONNECT_MS	10000

/*
 * Signal slots. At the worker's end: CAIRN_SLOT_KV, and CAIRN_SLOT_Q + t % CAIRN_TURN_SLOTS for the Q of turn
 * t, whose word is the lane. At the model worker's end: CAIRN_SLOT_RESULT, whose word is the time, in ns,
 * that the worker has spent on the result; in the order of streams, 1 if it replayed a graph, else 0. A slot
 * of Q is used again only after its word has been read: each lane waits for a result before it sends the next
 * Q, so at most CAIRN_MAX_LANES turns have no result, and the worker gives results in the order of the turns.
 */
#define CAIRN_TURN_SLOTS	(CAIRN_MAX_LANES + 1)
enum { CAIRN_SLOT_KV, CAIRN_SLOT_Q };
enum { CAIRN_SLOT_RESULT };
/* In the order of streams: + the lane, at either end. */
enum { CAIRN_SLOT_LANE_Q = 16, CAIRN_SLOT_LANE_KV = 20, CAIRN_SLOT_LANE_RESULT = 24 };

/* The addresses that the ends exchange, of the channel and of the buffers. */
struct cairn_attn_blob {
	struct cairn_blob channel;
	/* with more model workers: the worker's channels for them; of the lead's end, theirs */
	struct cairn_blob channels[CAIRN_MAX_LANES - 1];
	struct cairn_blob results[CAIRN_MAX_LANES - 1];	/* their buffers for results */
	struct cairn_blob q;		/* of the model worker: the result's buffer */
	struct cairn_blob kv;		/* of the model worker: all 0 */
	struct cairn_blob page;		/* of both, with stripes: for pages from another stripe */
	struct cairn_blob weights;	/* of the worker, with latent attention */
};

struct cairn_attn_epoch;

/* scales: what follows *assign in its message; copied */
int cairn_attn_epoch_create(struct cairn_attn_epoch **out, const struct cairn_impl *impl,
			    const struct cairn_control_assign *assign, const void *scales,
			    const char *address);
struct cairn_epoch_life *cairn_attn_epoch_life(struct cairn_attn_epoch *e);
int cairn_attn_epoch_plan(struct cairn_attn_epoch *e, const struct cairn_control_plan *head,
			  const void *bytes);
void cairn_attn_epoch_destroy(struct cairn_attn_epoch *e);	/* NULL is legal */

#endif
