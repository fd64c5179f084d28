/* SPDX-License-Identifier: Apache-2.0 */
/* kv_events_impl - state shared by kv_events.c (the engine's thread) and kv_events_send.c (the sockets') */
#ifndef CAIRN_KV_EVENTS_IMPL_H
#define CAIRN_KV_EVENTS_IMPL_H

#include <pthread.h>
#include <stdatomic.h>

#include "serving/events/kv_events.h"
#include "serving/events/msgpack.h"
#include "serving/events/zeromq.h"

/* batches that wait, batches that are kept, and the one that is being sent */
#define KV_EVENTS_RING	(2 * CAIRN_KV_EVENTS_BATCHES + 2)

/* A batch; libzmq's queues refer to it, too, so that nothing is copied for a slow subscriber. */
struct kv_batch {
	_Atomic int32_t refs;
	uint64_t number;
	size_t len;
	uint8_t *data;
};

struct cairn_kv_events {
	const struct zeromq *zmq;
	int32_t page_size;
	char topic[CAIRN_KV_EVENTS_ADDRESS];
	char address[CAIRN_KV_EVENTS_ADDRESS], replay[CAIRN_KV_EVENTS_ADDRESS];
	struct cairn_prefix_listener listener;

	/* the engine's thread */
	struct msgpack events;		/* since the last flush */
	uint32_t num_events;
	uint64_t number;		/* of the next batch */
	int64_t published, lost;

	/*
	 * Batches [first, sent) have been sent and are kept for replays; [sent, end) wait. The indices never
	 * wrap. The engine's thread advances end and the sockets' thread sent, both under the lock, which
	 * also protects waiting_bytes, the size of all waiting batches. Only the sockets' thread changes
	 * first and kept_bytes, the size of the kept batches, and it needs no lock for them.
	 */
	pthread_mutex_t lock;
	struct kv_batch *ring[KV_EVENTS_RING];
	uint64_t first, sent, end;
	size_t waiting_bytes, kept_bytes;
	bool quit;

	pthread_t thread;
	int wake;			/* eventfd */
	void *ctx, *pub, *router;	/* router: NULL without replay */
};

/* Creates the sockets and starts the thread; stop ends it and closes them. */
int cairn_kv_events_start(struct cairn_kv_events *e, const struct cairn_kv_events_options *o);
void cairn_kv_events_stop(struct cairn_kv_events *e);
void cairn_kv_batch_release(struct kv_batch *b);

#endif
