/* SPDX-License-Identifier: Apache-2.0 */
/*
 * transport_impl - code shared by the back ends of transport.h: objects, checks, errors, waits
 *
 * transport.c implements every function of the table except open(). It keeps the lists, checks arguments,
 * adds and checks the checksums of blobs, keeps a channel's first error and runs the waits. A back end
 * provides struct transport_ops. Its objects begin with the structures below; transport.c allocates them,
 * zeroed, with the sizes that the back end gives.
 */
#ifndef CAIRN_TRANSPORT_IMPL_H
#define CAIRN_TRANSPORT_IMPL_H

#include <pthread.h>
#include <stdatomic.h>

#include "primitives/base/error.h"
#include "rdma/transport/transport.h"
#include "rdma/transport/transport_pace.h"

struct cairn_region {
	struct cairn_transport *t;
	struct cairn_region *next;
	uint8_t *addr;
	uint64_t bytes;
	int memory;
};

struct cairn_remote {
	struct cairn_transport *t;
	struct cairn_remote *next;
	uint64_t bytes;			/* set by ops->import */
};

struct cairn_channel {
	struct cairn_transport *t;
	struct cairn_channel *next;
	uint32_t number;		/* used in texts */
	atomic_int connected;
	atomic_int error;		/* errno, or 0; error_text is complete once this is set */
	char error_text[320];
	char peer[64];			/* used in texts; set by ops->connect */
	/* puts in the order of a stream (transport_stream.c): */
	struct cairn_device_channel device;	/* kind 0: not asked for yet */
	struct transport_link link;		/* its pace: set by ops->create; the rest: with device */
	struct cairn_region *gathered;	/* without a GPU: rows of the last put, or NULL */
};

struct transport_ops {
	const char *name;
	uint32_t features;
	size_t transport_bytes, region_bytes, remote_bytes, channel_bytes;

	/* stop, remove_region, drop, probe, doze and the functions for kernels may be NULL */
	int (*start)(struct cairn_transport *t);
	void (*stop)(struct cairn_transport *t);		/* also called if start failed */
	int (*add_region)(struct cairn_region *r);
	int (*key)(const struct cairn_region *r, void *key);		/* key: the blob's bytes, zeroed */
	void (*remove_region)(struct cairn_region *r);
	int (*import)(struct cairn_remote *remote, const void *key);
	void (*drop)(struct cairn_remote *remote);
	int (*create)(struct cairn_channel *c);
	int (*address)(struct cairn_channel *c, void *address);
	int (*connect)(struct cairn_channel *c, const void *address, uint64_t deadline);
	int (*reset)(struct cairn_channel *c);
	void (*destroy)(struct cairn_channel *c);		/* also called if create failed */
	/* The functions below are called only with checked arguments, on a connected channel that has no
	 * error. */
	int (*put)(struct cairn_channel *c, const struct cairn_put *p, uint64_t deadline);
	int (*flush)(struct cairn_channel *c, uint64_t deadline);
	/* Reads the slot's current value and word. */
	int (*look)(struct cairn_channel *c, uint32_t slot, struct cairn_signal *found);
	/* Called periodically during a wait: calls transport_fail() if the peer is dead; may be NULL. */
	void (*probe)(struct cairn_channel *c);
	/*
	 * Sleeps while the slot's value is `have`, at most until the deadline and at most 2 ms. A wait calls
	 * it after some rounds of transport_pause(); NULL: it goes on with those.
	 */
	void (*doze)(struct cairn_channel *c, uint32_t slot, uint64_t have, uint64_t deadline);
	int (*channel_device)(struct cairn_channel *c, struct cairn_device_channel *d);
	int (*region_device)(const struct cairn_region *r, struct cairn_device_region *d);
	int (*remote_device)(const struct cairn_remote *remote, struct cairn_device_region *d);
	int (*stream_stop)(struct cairn_channel *c);	/* ends waits of kernels; NULL: there are none */
};

/* The common functions of a table. The back end provides open, which calls transport_open(&its_ops, o, t). */
int transport_open(const struct transport_ops *ops, const struct cairn_transport_options *o,
		   struct cairn_transport **t);
#define TRANSPORT_TABLE(name_, features_, open_) {					\
	.size = sizeof(struct cairn_transport_table), .name = name_, .features = features_,	\
	.open = open_, .close = transport_close,					\
	.region_register = transport_register, .region_key = transport_key,		\
	.region_release = transport_release, .remote_import = transport_import,	\
	.remote_release = transport_drop, .channel_create = transport_channel,		\
	.channel_address = transport_address, .channel_connect = transport_connect,	\
	.channel_reset = transport_reset, .channel_destroy = transport_destroy,	\
	.put = transport_put, .wait = transport_wait, .flush = transport_flush,	\
	.channel_error = transport_error, .channel_device = transport_channel_device,	\
	.region_device = transport_region_device, .remote_device = transport_remote_device,	\
	.stream_put = transport_stream_put, .stream_wait = transport_stream_wait,	\
	.stream_error = transport_stream_error, .stream_stop = transport_stream_stop,	\
	.sum = transport_sum,							\
}

struct cairn_transport {
	const struct transport_ops *ops;
	struct cairn_transport_options options;		/* defaults filled in */
	pthread_mutex_t lock;				/* protects the lists */
	struct cairn_channel *channels;
	struct cairn_region *regions;
	struct cairn_remote *remotes;
	uint32_t num_created;
	uint64_t *partial;				/* sums of CTAs (transport_stream.c), or NULL */
};

void transport_close(struct cairn_transport *t);
int transport_register(struct cairn_transport *t, void *addr, uint64_t bytes, int memory,
		       struct cairn_region **r);
int transport_key(const struct cairn_region *r, struct cairn_blob *key);
void transport_release(struct cairn_region *r);
int transport_import(struct cairn_transport *t, const struct cairn_blob *key, struct cairn_remote **remote);
void transport_drop(struct cairn_remote *remote);
int transport_channel(struct cairn_transport *t, struct cairn_channel **c);
int transport_address(struct cairn_channel *c, struct cairn_blob *address);
int transport_connect(struct cairn_channel *c, const struct cairn_blob *peer, uint32_t timeout_ms);
int transport_reset(struct cairn_channel *c);
void transport_destroy(struct cairn_channel *c);
int transport_put(struct cairn_channel *c, const struct cairn_put *p, uint32_t timeout_ms);
int transport_wait(struct cairn_channel *c, uint32_t slot, uint64_t value, uint32_t timeout_ms,
		   struct cairn_signal *found);
int transport_flush(struct cairn_channel *c, uint32_t timeout_ms);
int transport_error(struct cairn_channel *c);
int transport_channel_device(struct cairn_channel *c, struct cairn_device_channel *d);
int transport_region_device(const struct cairn_region *r, struct cairn_device_region *d);
int transport_remote_device(const struct cairn_remote *remote, struct cairn_device_region *d);
int transport_usable(struct cairn_channel *c, const char *what);	/* checks that it is connected */

/* transport_stream.c */
int transport_stream_put(struct cairn_channel *c, const struct cairn_stream_put *p, void *stream);
int transport_stream_wait(struct cairn_channel *c, const struct cairn_stream_wait *w, void *stream);
int transport_stream_error(struct cairn_channel *c);
int transport_stream_stop(struct cairn_channel *c);
int transport_sum(struct cairn_transport *t, const void *addr, uint64_t bytes, uint64_t key, uint64_t *sum);
void transport_sum_forget(struct cairn_transport *t);
void transport_stream_forget(struct cairn_channel *c);	/* frees what puts have left */

/* Records an error if it is the channel's first; any thread may call it. "channel 3 to PEER: " precedes
 * the text. */
void transport_fail(struct cairn_channel *c, int err, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));

uint64_t transport_now(void);					/* ns */
/* Call it in a polling loop: first spins, then yields, then sleeps for some microseconds. */
void transport_pause(uint32_t round);
extern const struct cairn_transport_table cairn_transport_loop, cairn_transport_tcp, cairn_transport_verbs,
	cairn_transport_nvlink, cairn_transport_nccl, cairn_transport_fhbn;

uint64_t transport_blob_check(const struct cairn_blob *b);	/* the value of its member check */

/* splitmix64; any initial state is valid */
uint64_t transport_random(uint64_t *state);

/* The lock of a thread that works in rounds and holds it nearly all the time. Other threads announce
 * themselves first, and the thread yields to them. */
struct transport_work {
	pthread_mutex_t lock;
	atomic_int visitors;
};
void transport_work_init(struct transport_work *w);
void transport_work_destroy(struct transport_work *w);
/* stops the thread until transport_work_go() */
void transport_work_stop(struct transport_work *w);
void transport_work_go(struct transport_work *w);
void transport_work_yield(struct transport_work *w);		/* called by the thread before each round */

/* Identifies a process, so that its peer can check whether it still lives on this host although pids are
 * reused. */
struct transport_identity {
	uint64_t pid, start;		/* start: the process's start time in ticks since boot */
	uint64_t host;			/* hash of boot id and PID namespace */
};
void transport_identify(struct transport_identity *self);
/* Returns 1 if it lives, 0 if it is gone, -1 if it is on another host and thus unknown. */
int transport_lives(const struct transport_identity *id);

#endif
