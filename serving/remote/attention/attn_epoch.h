/* SPDX-License-Identifier: Apache-2.0 */
/*
 * attn_epoch - what an attention worker does between two assignments; private to the worker and its tests
 *
 *   create    starts the epoch's thread (epoch_life.h), which takes memory and opens the transport: PREPARED;
 *             with the model worker's blob it connects: CONNECTED; then it carries out plans
 *   plan      queues a plan; the model worker sends the next one when it has all results of the last
 *   destroy   stops the thread if need be, waits for its end and frees everything
 *
 * All calls but destroy return at once, so the main thread keeps sending heartbeats whatever the epoch's
 * thread does. That thread also ends when the model worker closes its end of the transport. This is not a
 * failure: the lead decides what follows.
 */
#ifndef CAIRN_REMOTE_ATTN_EPOCH_H
#define CAIRN_REMOTE_ATTN_EPOCH_H

#include "rdma/transport/transport.h"
#include "serving/remote/attention/share.h"
#include "serving/remote/member/member.h"

#define CAIRN_EPOCH_PLANS	2		/* plans that wait */
#define CAIRN_EPOCH_LOOK_MS	20		/* between two looks at whether to stop */
#ifndef CAIRN_EPOCH_LAYER_MS			/* shorter for mutants */
#define CAIRN_EPOCH_LAYER_MS	60000		/* for what a pass under way must send next */
#endif
#define CAIRN_EPOCH_CONNECT_MS	10000

/* Signal slots: the worker's end has Q and KV, the model worker's end has the result. */
enum { CAIRN_SLOT_Q, CAIRN_SLOT_KV, CAIRN_NUM_ATTN_SLOTS };
enum { CAIRN_SLOT_RESULT };

/* The addresses that the ends exchange, of the channel and of the buffers. */
struct cairn_attn_blob {
	struct cairn_blob channel;
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
