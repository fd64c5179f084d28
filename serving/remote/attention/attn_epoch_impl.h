/* SPDX-License-Identifier: Apache-2.0 */
/* attn_epoch_impl - the state of an epoch, shared by attn_epoch.c, attn_turn.c and attn_queue.c */
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

/*
 * What operations read of a pass, in one block of pinned memory, and its copy on the device. Every array has
 * a place of its own, so that a captured pass can be replayed.
 */
struct attn_packed {
	char *host, *device;
	size_t room, at;		/* at: place of the next array */
	void *copied;			/* event: the block on the host may be written again */
	const struct cairn_stream_now *now;	/* its copy on the device */
};

/* The captured layers of a pass with one row for each request. */
struct attn_graph {
	int32_t rows, kv_bound, side;	/* side: which buffer K and V of layer 0 are in */
	uint64_t used;			/* number of the last such pass; 0: a free entry */
	void *exec;			/* NULL until the second one */
};
#define ATTN_GRAPHS	64

struct attn_lane {
	int32_t index;
	struct cairn_attn_local *local;
	struct cairn_lists lists;	/* of the pass under way */
	struct attn_plan plan;		/* of the pass under way; bytes NULL: there is none */
	struct cairn_remote_pass p;	/* the plan, decoded */
	int32_t num_rows;		/* rows that operations compute: those of p, and padding */
	int32_t layer;			/* the pass's next layer */
	uint64_t layers;		/* layers of all earlier passes of the lane */
	void *stream;
	/* used only in the order of streams (attn_queue.c): */
	struct attn_packed packed;
	struct attn_graph graphs[ATTN_GRAPHS];
	int is_replayed;		/* the layers being enqueued are captured */
};

/* A model worker, which sends turns. */
struct attn_source {
	struct cairn_attn_epoch *e;
	struct cairn_channel *c;
	struct cairn_remote *to;	/* the model worker's buffer for results */
	uint64_t turn;			/* number of the last turn taken */
	int64_t waited_ns;		/* time spent waiting for signals */
	pthread_t thread;		/* sources[0] has none: the epoch's thread serves it */
	int has_thread;
};

struct cairn_attn_epoch {
	/* its lock protects plans, last_pass, is_busy, and each lane's members plan and layer */
	struct cairn_epoch_life life;
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
	/* by_stream: plans that have begun; [num_layers] on the device: the last one whose keys are stored */
	uint64_t num_begun;
	uint64_t *stored;		/* NULL with one lane */
	struct cairn_stream_lock *lock;	/* behind `stored`: one lane attends at a time */
	int no_graphs;
	struct attn_source sources[CAIRN_MAX_LANES];
	int32_t num_sources;
	int is_busy;			/* a turn is carried out */

	const struct cairn_transport_table *table;
	struct cairn_transport *t;
	struct cairn_region *q_region, *kv_region, *result_region, *weights_region;
	struct cairn_relay relay;	/* of pages, with stripes */
	char address[64];
	void *scales;

	struct attn_plan plans[CAIRN_EPOCH_PLANS];
	int num_plans;
	uint64_t last_pass;		/* queued */
};

/* Returns the source of a lane's turns: further model workers have one lane each, the first all others. */
static inline struct attn_source *attn_source_of(struct cairn_attn_epoch *e, int32_t lane)
{
	return &e->sources[lane < e->num_sources ? lane : 0];
}

/* attn_turn.c: waits for a signal of the relay; ctx is the first source. */
int attn_epoch_await_page(void *ctx, uint32_t slot, uint64_t number);

/* attn_turn.c: carries out the layer whose queries come next from a source, whichever lane it is of. */
int attn_epoch_turn(struct attn_source *s);
/*
 * The next layer of a lane, which attn_queue.c enqueues; its caller counts l->layer. number: of its signals;
 * in the order of streams, counted from the pass's first layer.
 */
int attn_epoch_layer(struct attn_source *s, struct attn_lane *l, uint64_t number);

/* attn_queue.c: turns in the order of streams */
int attn_queue_create(struct cairn_attn_epoch *e, struct attn_lane *l);
void attn_queue_destroy(struct cairn_attn_epoch *e, struct attn_lane *l);
int attn_queue_plan(struct cairn_attn_epoch *e);	/* enqueues the next plan */
void attn_queue_stop(struct cairn_attn_epoch *e);	/* ends what is enqueued, and waits for it */

#endif
