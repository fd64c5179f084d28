/* SPDX-License-Identifier: Apache-2.0 */
/*
 * attn_remote_impl - the state of the model worker's end, shared by attn_remote.c, attn_remote_epoch.c,
 * attn_remote_stream.c and models/attn_models.c
 */
#ifndef CAIRN_REMOTE_ATTN_REMOTE_IMPL_H
#define CAIRN_REMOTE_ATTN_REMOTE_IMPL_H

#include <errno.h>
#include <pthread.h>

#include "primitives/base/error.h"
#include "serving/remote/attention/attn_remote.h"
#include "serving/remote/attention/attn_epoch.h"
#include "serving/remote/attention/lists.h"
#include "serving/remote/attention/relay.h"

#define PUT_MS		5000

struct remote_peer {
	struct cairn_control_assign a;
	float *scales;
	struct cairn_share_sizes sizes;
	char *q, *kv, *result;		/* buffers for all lanes; kv: two for each lane */
	/* made anew in each epoch: */
	struct cairn_region *q_region, *kv_region, *result_region;
	struct cairn_remote *to_q, *to_kv, *to_weights;
	struct cairn_channel *c;
	struct cairn_relay relay;	/* with stripes: passes pages on; its buffer serves all epochs */
	struct cairn_attn_remote *r;
};

struct remote_lane {
	struct cairn_attn_link link;
	struct cairn_attn_remote *r;
	struct cairn_remote_pass p;	/* its arrays are the caller's, and not used after begin() */
	int32_t *row_pages;		/* [max_rows]: the page of each row */
	int32_t (*moves)[2], max_moves;	/* with stripes: a copy of p's moves */
	uint64_t turn;			/* number of the lane's last turn */
	uint64_t layers;		/* completed in this epoch; by_stream: those before this pass */
	/* used only by_stream: */
	void *stream;			/* of the pass under way; NULL: none yet */
	char *results;			/* of all workers (share.h) */
	float *lse;
	uint64_t next_layers;		/* value of `layers` for the next pass */
	int is_numbered;		/* number() has been called for the pass */
	/* the pass's number and rows: on the device, where puts and waits read them; in pinned memory */
	struct cairn_stream_now *now, *now_host;
	int32_t index, layer, num_rows;	/* of the last send_q; rows of padding included */
	int64_t sent_ns;		/* time of the last send_q */
};

/*
 * One end of the connection between the lead and a further model worker. The lead has models[i] for model
 * worker i > 0; a model worker of its own process has only models[0], for itself.
 */
struct remote_model {
	char *result;			/* [result_bytes]: what it has drawn; the lead's can be put to */
	char *copy;			/* [result_bytes], at the lead's end: where no peer can write */
	uint64_t pass;			/* the last one that it was given, counted in this epoch */
	/* made anew in each epoch: */
	struct cairn_channel *c;
	struct cairn_blob address;	/* of the other end's channel */
	struct cairn_region *region;	/* at its end */
	struct cairn_remote *to;
};

struct cairn_attn_remote {
	struct remote_lane lanes[CAIRN_MAX_LANES];
	struct cairn_lead *lead;	/* NULL: in a model worker of its own process */
	const atomic_int *stop;		/* if lead is NULL: set when the epoch ends */
	const char *address;		/* if lead is NULL: address of this end of the transport */
	const struct cairn_model *m;
	struct cairn_remote_limits limits;
	size_t element;
	/*
	 * In the order of streams (attn_remote_stream.c): results of all lanes; log-sum-exps of rows that see
	 * no key, [max_rows, heads]; the lock of the lane that computes, NULL with one lane; the thread that
	 * stops waits when a worker is lost.
	 */
	int by_stream;
	char *results;
	float *empty;
	struct cairn_stream_lock *lock;
	struct cairn_region *results_region;
	pthread_t watch;
	int has_watch;
	pthread_mutex_t watch_lock;	/* protects watch_ends */
	pthread_cond_t watch_changed;
	int watch_ends;
	const struct cairn_transport_table *table;
	uint32_t transport;
	struct cairn_transport *t;	/* NULL: between two epochs */
	uint32_t epoch;
	uint64_t pass, turn;		/* of this epoch, over all lanes */
	struct cairn_journal *journal;	/* NULL: none */
	int is_restoring;		/* passes are those of attn_restore.c */
	struct remote_model models[CAIRN_MAX_LANES];
	int32_t num_models;		/* the lead's process included */
	size_t result_bytes;
	void *plan;			/* scratch */
	size_t plan_bytes;
	struct cairn_attn_remote_stats stats;
	int32_t num_peers;
	struct remote_peer peers[];
};

/* Tells the lead that a worker is lost, unless the call has succeeded. */
static inline int attn_remote_blame(struct cairn_attn_remote *r, int32_t i, int ret)
{
	return ret && r->lead ? cairn_lead_report(r->lead, i + 1) : ret;
}

/* attn_remote.c: waits for a signal of the relay; ctx is the peer. */
int attn_remote_await_page(void *ctx, uint32_t slot, uint64_t number);

/* Returns the loss, if a worker is lost. */
static inline int attn_remote_is_lost(const struct cairn_attn_remote *r)
{
	if (!cairn_attn_remote_lost(r))
		return 0;
	return r->lead ? cairn_lead_why(r->lead) : cairn_error(ECONNRESET, "the epoch ends");
}

/* attn_remote_stream.c; these do nothing if !r->by_stream */
int attn_stream_create(struct cairn_attn_remote *r);
void attn_stream_destroy(struct cairn_attn_remote *r);
int attn_stream_begin(struct cairn_attn_remote *r);	/* of an epoch whose transport is open */
int attn_stream_watch(struct cairn_attn_remote *r);	/* of one whose workers are connected */
void attn_stream_end(struct cairn_attn_remote *r);	/* ends what is enqueued, and waits for it */
/* attn_remote.c: makes all that lasts for all epochs, with num workers, but no journal */
int attn_remote_make(struct cairn_attn_remote **out, struct cairn_lead *lead, const struct cairn_model *m,
		     const struct cairn_remote_limits *limits, int previous, int32_t num);

/* models/attn_models.c: the other model workers of an epoch; without any, these do nothing */
int attn_models_open(struct cairn_attn_remote *r);
int attn_models_assign(struct cairn_attn_remote *r);
/* Exchanges the blobs of model workers and attention workers, mine[i] and theirs[i] of the i-th. */
int attn_models_introduce(struct cairn_attn_remote *r, struct cairn_attn_blob *mine,
			  const struct cairn_attn_blob *theirs);
int attn_models_connect(struct cairn_attn_remote *r);

/* attn_remote_epoch.c */
int attn_remote_open_peer(struct cairn_attn_remote *r, struct remote_peer *p, struct cairn_attn_blob *blob);
int attn_remote_connect_peer(struct cairn_attn_remote *r, struct remote_peer *p,
			     const struct cairn_attn_blob *theirs);
void attn_remote_close(struct cairn_attn_remote *r);	/* the transport */
/* Begins an epoch. Workers may be lost while they prepare, or refuse their share; others then take their
 * place. */
int attn_remote_epoch(struct cairn_attn_remote *r);

#endif
