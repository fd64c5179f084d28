/* SPDX-License-Identifier: Apache-2.0 */
/* attn_epoch_impl - the state of an epoch, shared by attn_epoch.c and attn_turn.c */
#ifndef CAIRN_REMOTE_ATTN_EPOCH_IMPL_H
#define CAIRN_REMOTE_ATTN_EPOCH_IMPL_H

#include "serving/remote/attention/attn_epoch.h"
#include "serving/remote/attention/lists.h"
#include "serving/remote/attention/relay.h"
#include "serving/slices/attn_local.h"

struct attn_plan {
	uint64_t pass;
	uint32_t lane, num_bytes;
	int32_t *bytes;
};

/* Lists of a pass in one block of pinned memory, and its copy on the device. */
struct attn_packed {
	char *host, *device;
	size_t room, bytes;
	void *copied;			/* event: the block on the host may be written again */
};

struct attn_lane {
	int32_t index;
	struct cairn_attn_local *local;
	struct cairn_lists lists;	/* of a pass */
	struct attn_plan plan;		/* under way; bytes NULL: none */
	struct cairn_remote_pass p;	/* what it says */
	int32_t layer;			/* the next one of it */
	uint64_t layers;		/* completed, of all passes */
	void *stream;
	/* in the order of streams (attn_queue.c): */
	struct attn_packed packed;	/* the lists, in memory of the device */
	void **done;			/* [num_layers] events: keys of the layer are stored; with lanes */
};

struct cairn_attn_epoch {
	struct cairn_epoch_life life;	/* its lock protects plans and last_pass */
	struct cairn_control_assign a;
	struct cairn_share_sizes sizes;
	struct cairn_model model;
	struct cairn_kv_store kv;
	void *stream;
	/* buffers of all lanes: Q; K and V, twice; the result */
	char *q, *pages, *result;
	int32_t num_lanes;
	struct attn_lane lanes[CAIRN_MAX_LANES];
	int by_stream;
	int32_t last_lane;		/* by_stream: of the last plan; -1: none */
	uint64_t turn;			/* the last one taken */
	int64_t waited_ns;		/* for signals */

	const struct cairn_transport_table *table;
	struct cairn_transport *t;
	struct cairn_channel *c;
	struct cairn_region *q_region, *kv_region, *result_region, *weights_region;
	struct cairn_remote *to;	/* the model worker's buffer for results */
	struct cairn_relay relay;	/* of pages, with stripes */
	char address[64];
	void *scales;

	struct attn_plan plans[CAIRN_EPOCH_PLANS];
	int num_plans;
	uint64_t last_pass;		/* queued */
};

/* attn_turn.c: waits for a signal of the relay; ctx is the epoch. */
int attn_epoch_await_page(void *ctx, uint32_t slot, uint64_t number);

/* attn_turn.c: carries out the layer whose queries come next, whichever lane it is of. */
int attn_epoch_turn(struct cairn_attn_epoch *e);
/* The parts of turns that attn_queue.c has, too: the next layer of a lane; the end of its pass. */
int attn_epoch_layer(struct cairn_attn_epoch *e, struct attn_lane *l, uint64_t number);
void attn_epoch_end_pass(struct cairn_attn_epoch *e, struct attn_lane *l);

/* attn_queue.c: the same, in the order of streams */
int attn_queue_create(struct cairn_attn_epoch *e, struct attn_lane *l);
void attn_queue_destroy(struct cairn_attn_epoch *e, struct attn_lane *l);
int attn_queue_plan(struct cairn_attn_epoch *e);	/* enqueues the next plan */
void attn_queue_stop(struct cairn_attn_epoch *e);	/* ends what is enqueued, and waits for it */

#endif
