/* SPDX-License-Identifier: Apache-2.0 */
/*
 * transport - moves memory between two ends, the payload before its signal, over any back end
 *
 *   put(channel, local region + offset, remote region + offset, bytes, slot, value)
 *
 * stores the bytes at the other end and, once all of them are visible there, sets signal slot `slot` of
 * that channel to `value` at the other end. A waiter that sees the value therefore sees the whole
 * payload. The other end's CPU and GPU take no part in a put: memory is registered beforehand, and the
 * key that names it is exchanged by other means.
 *
 *   back end  carried by                                      kernels may put           ends
 *   loop      a thread of this process, with seeded faults    no                        one process
 *   tcp       TCP connections between host memories, for    no                        anywhere
 *             machines without GPU or RDMA device
 *   verbs     RC queue pairs of any RDMA device, posted by    through a queue of        anywhere
 *             a proxy thread, for kernels as well             descriptors
 *   nvlink    stores to peer memory (CUDA IPC), copy engine   yes                       one host
 *   nccl      ncclSend and ncclRecv, for comparison           no                        anywhere
 *   fhbn      work requests built by the GPU (fhbn.h)         yes, without a CPU        anywhere
 *
 * Set-up, at both ends (blobs are plain bytes and are exchanged by any means, such as a socket):
 *   open(options, &t);  region_register(t, addr, bytes, memory, &r);  channel_create(t, &c)
 *   channel_address(c, &mine)  ... exchange ...  channel_connect(c, &peers, timeout_ms)
 *   region_key(r, &key)        ... exchange ...  remote_import(t, &peers_key, &remote)
 *   The first put must come after both ends have connected, which takes one more exchange.
 *
 * Rules
 * - Slots: each channel has num_slots slots of 64 bits in each direction, zero at connect. The values
 *   sent to a slot must ascend in the order of the puts. wait(slot, value) ends when the slot holds `value`
 *   or a later one: (int64_t)(have - value) >= 0, so that counters may wrap. Slot CAIRN_NO_SIGNAL:
 *   payload only. bytes 0: signal only.
 * - Word: 8 bytes that arrive with the signal, in the slot itself: the fast path for small payloads. A
 *   wait that finds a value returns the word that came with it, or a later word if the slot was signalled
 *   again meanwhile.
 * - Order: a channel's signals appear in the order of its puts, and the signal of a put implies that the
 *   payloads of all earlier puts of that channel are visible. There is no order between channels. A
 *   second put to the same bytes must wait for the arrival of the first; otherwise either may win.
 * - The source of a put must not change until a later flush has returned, or until the other end has
 *   confirmed the arrival. flush: all earlier puts are complete here and visible there.
 * - Bounds and keys are always checked at this end; with CAIRN_TRANSPORT_CHECKS also at the other end.
 * - Time-outs are in ms. Every wait ends with -ETIMEDOUT after its time-out; the text says which end
 *   waited for what. A time-out of 0 polls once. A wait that timed out may be repeated.
 * - Errors of a channel are final: the channel keeps the first one (channel_error), and every later put and
 *   flush returns it, as does a wait whose signal has not arrived. Data in flight may be lost or may arrive,
 *   but a signal never arrives without its payload. channel_reset makes the channel as new: empty, slots
 *   zero, with a new address. Both ends must reset and then connect again.
 * - Threads: one thread at a time calls put and flush on a channel; another may wait on it concurrently.
 *   Channels are independent. Any thread may make the other calls; the caller of close or destroy
 *   must make sure that no call on that object is in progress. At any time either the host or kernels put
 *   on a channel, not both.
 *
 * Errors: -EINVAL a bad argument, which the text names; -EACCES the other end refused key or bounds;
 * -ECONNRESET the peer is gone; -ETIMEDOUT; -ENODEV no such device or library; -EOPNOTSUPP not supported by
 * this back end; -ENOMEM; -EIO. Nothing is printed; cairn_last_error() has the text. Out parameters are
 * written on success only.
 */
#ifndef CAIRN_TRANSPORT_H
#define CAIRN_TRANSPORT_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum {
	CAIRN_TRANSPORT_HOST_MEMORY	= 1 << 0,	/* regions may be host memory, at both ends */
	CAIRN_TRANSPORT_DEVICE_MEMORY	= 1 << 1,	/* regions may be CUDA memory, at both ends */
	CAIRN_TRANSPORT_DEVICE_PUT	= 1 << 2,	/* channel_device works; see transport.cuh */
	CAIRN_TRANSPORT_PROCESSES	= 1 << 3,	/* the ends may be in two processes */
	CAIRN_TRANSPORT_ONE_PROCESS	= 1 << 4,	/* the ends may be in one process */
	CAIRN_TRANSPORT_ONE_DEVICE	= 1 << 5,	/* the ends may be on the same GPU */
	CAIRN_TRANSPORT_PEER_DEATH	= 1 << 6,	/* waits for a dead peer also return -ECONNRESET */
	CAIRN_TRANSPORT_CHECKS		= 1 << 7,	/* the other end checks keys and bounds */
	/*
	 * Puts progress whatever the other end does. Without this flag they progress only while the other end
	 * waits, and a flush means only that the sources may be changed.
	 */
	CAIRN_TRANSPORT_ONE_SIDED	= 1 << 8,
};

enum { CAIRN_MEMORY_HOST, CAIRN_MEMORY_DEVICE };

#define CAIRN_NO_SIGNAL		0xffffffffu
#define CAIRN_MAX_SLOTS		4096u
#define CAIRN_MAX_DEPTH		65536u

struct cairn_transport;			/* one end's device, thread or GPU */
struct cairn_channel;			/* one connection */
struct cairn_region;			/* local memory that puts may read and peers may write */
struct cairn_remote;			/* memory of a peer */

struct cairn_transport_options {
	size_t size;			/* sizeof(struct cairn_transport_options) */
	/*
	 * verbs, fhbn: name of the RDMA device; NULL: the first. tcp: the numeric IPv4 or IPv6 address of
	 * this host that its peers dial; NULL: 127.0.0.1.
	 */
	const char *device;
	const char *faults;		/* loop: NAME=VALUE,... (transport_loop.c); NULL otherwise */
	uint64_t seed;			/* seed of the faults */
	uint32_t depth;			/* maximum outstanding puts of a channel, a power of two; 0: 1024 */
	uint32_t num_slots;		/* slots per channel, equal at both ends; 0: 64 */
	/* CUDA device whose kernels or memory are used; -1: none; nvlink: also CAIRN_GPU_OF_THREAD */
	int gpu;
};
#define CAIRN_GPU_OF_THREAD	(-2)	/* the current device of the thread that opens the transport */

/* What an end sends to the other: a channel's address or a region's key. The receiver checks it. */
struct cairn_blob {
	uint32_t magic, what;		/* what: 1 address, 2 key */
	char kind[16];			/* the back end's name */
	uint64_t check;			/* checksum of all other bytes */
	uint8_t bytes[352];
};

struct cairn_put {
	const struct cairn_region *local;	/* NULL if bytes is 0 */
	uint64_t local_offset;
	const struct cairn_remote *remote;	/* NULL if bytes is 0 */
	uint64_t remote_offset;
	uint64_t bytes;
	uint64_t value, word;			/* the signal's value and word */
	uint32_t slot;				/* < num_slots, or CAIRN_NO_SIGNAL */
};

/*
 * One block of rows of a put in the order of a stream. Such a put copies up to two blocks and then sets its
 * signal. Row i has `bytes` bytes. It is read at from + i * from_stride, in any memory of the stream's
 * device, and written at byte to + i * to_stride of the remote memory. rows 0: the block is absent. All puts
 * to the same slot must be on one stream.
 */
struct cairn_stream_rows {
	const void *from;
	uint64_t from_stride, to, to_stride, bytes;
	uint32_t rows;
};
#define CAIRN_STREAM_PARTS	2

/*
 * What puts and waits read from memory of the stream's device when they run, so that a captured graph can be
 * replayed with other numbers. It must not change while they may run.
 */
struct cairn_stream_now {
	uint64_t number;		/* added to the value of a signal */
	uint64_t rows;			/* most rows of a block that are put */
	uint64_t turn, unused;		/* of waits */
};

/*
 * A ticket lock among the streams of one device. It lies in the device's memory and is zero at first. A wait
 * takes it, a later put of the same stream releases it, and streams get it in the order in which they ask.
 * The work in between shares the device only with streams that do not use the lock. It should not contain a
 * wait for a peer.
 *
 * On a GPU the lock takes effect only in captured calls, such as those of a whole pass in a graph. Without a
 * graph, the host enqueues the work between the wait and the put, and while it does so it may block on work
 * that waits for the lock. The first launch of a kernel, for example, loads that kernel's code, which waits
 * until no other kernel runs.
 */
struct cairn_stream_lock {
	uint64_t next, serving;		/* tickets */
};

struct cairn_stream_put {
	const struct cairn_stream_now *now;	/* NULL: value and rows are as they are here */
	const struct cairn_remote *remote;	/* NULL if there are no rows */
	struct cairn_stream_rows part[CAIRN_STREAM_PARTS];
	struct cairn_stream_lock *unlock;	/* given up when the put is reached; NULL: none */
	uint64_t value, word;
	uint32_t slot;				/* < num_slots */
};

/*
 * A wait in the order of a stream. When the stream reaches it, it sets *ended to its turn, now->turn, which
 * tells other streams that all earlier work of this stream is done. It ends when *order, such a word of
 * another stream, is at least now->turn - 1, the peer's signal has arrived, and it has taken the lock, in
 * this order. timeout_ms limits each of the three separately.
 */
struct cairn_stream_wait {
	const struct cairn_stream_now *now;	/* NULL: ended and order must be NULL, too */
	uint64_t value;
	uint64_t *ended, *order;		/* NULL: none */
	struct cairn_stream_lock *lock;		/* NULL: none */
	uint32_t slot;				/* CAIRN_NO_SIGNAL: waits for no signal */
	uint32_t timeout_ms;
};

/* Arguments of transport.cuh; plain data, passed to kernels by value. */
struct cairn_device_region {
	uint64_t addr, bytes;
	uint32_t key, unused;
};
struct cairn_device_channel {
	uint32_t kind;			/* CAIRN_DEVICE_* */
	uint32_t num_slots;
	uint32_t depth, unused;
	struct cairn_signal *mine;	/* [num_slots], written by the peer */
	struct cairn_signal *theirs;	/* nvlink: the peer's slots */
	uint64_t *state;		/* nvlink: 0, or an error number once the peer is gone */
	uint64_t *queue;		/* verbs: descriptors of 8 words (transport_queue.h) */
	/* verbs, in device memory: [0] index of the next descriptor, [1] descriptors seen completed */
	uint64_t *next;
	const uint64_t *done;		/* verbs: descriptors completed; [1]: error number */
	void *poster;			/* fhbn: its queue pair */
	/* nvlink, for puts and waits in the order of a stream: counters of CTAs, [num_slots], zero between
	 * two puts; host memory for the error number and the slot of a wait that has failed */
	uint64_t *arrived;
	struct cairn_signal *failed;
};
enum { CAIRN_DEVICE_NVLINK = 1, CAIRN_DEVICE_QUEUE, CAIRN_DEVICE_FHBN };

struct cairn_signal {
	uint64_t value, word;
};

/* The operation table of a back end. */
struct cairn_transport_table {
	size_t size;
	const char *name;
	uint32_t features;

	int (*open)(const struct cairn_transport_options *o, struct cairn_transport **t);
	/*
	 * Also frees the remaining regions, remotes and channels. Puts that were not flushed may be lost. The
	 * peers of its channels see this end as gone.
	 */
	void (*close)(struct cairn_transport *t);

	/* bytes > 0. The caller keeps ownership of the memory, which must outlive the region. */
	int (*region_register)(struct cairn_transport *t, void *addr, uint64_t bytes, int memory,
			       struct cairn_region **r);
	int (*region_key)(const struct cairn_region *r, struct cairn_blob *key);
	void (*region_release)(struct cairn_region *r);
	int (*remote_import)(struct cairn_transport *t, const struct cairn_blob *key,
			     struct cairn_remote **remote);
	void (*remote_release)(struct cairn_remote *remote);

	int (*channel_create)(struct cairn_transport *t, struct cairn_channel **c);
	int (*channel_address)(struct cairn_channel *c, struct cairn_blob *address);
	int (*channel_connect)(struct cairn_channel *c, const struct cairn_blob *peer, uint32_t timeout_ms);
	int (*channel_reset)(struct cairn_channel *c);
	void (*channel_destroy)(struct cairn_channel *c);

	/* While `depth` puts are outstanding, waits up to the time-out. A put that times out was not
	 * accepted. */
	int (*put)(struct cairn_channel *c, const struct cairn_put *p, uint32_t timeout_ms);
	/* *found: the slot's value and word; may be NULL */
	int (*wait)(struct cairn_channel *c, uint32_t slot, uint64_t value, uint32_t timeout_ms,
		    struct cairn_signal *found);
	int (*flush)(struct cairn_channel *c, uint32_t timeout_ms);
	int (*channel_error)(struct cairn_channel *c);		/* returns 0, or the error with its text */

	/* For kernels on options.gpu; -EOPNOTSUPP without CAIRN_TRANSPORT_DEVICE_PUT. */
	int (*channel_device)(struct cairn_channel *c, struct cairn_device_channel *d);
	int (*region_device)(const struct cairn_region *r, struct cairn_device_region *d);
	int (*remote_device)(const struct cairn_remote *remote, struct cairn_device_region *d);

	/*
	 * Puts and waits in the order of a stream, without the host between two ends. With options.gpu, which
	 * must be the calling thread's device, they enqueue one kernel each: what is enqueued behind a wait
	 * runs when the signal has come. A wait is one CTA, so that waits never fill the GPU. Without a GPU
	 * both happen at once, and `stream` is not used. -EOPNOTSUPP: not supported for memory of a GPU. Both
	 * can be captured; a graph must not run when the channel has been destroyed.
	 *
	 * When a wait fails, the channel's streams go on, but all their later puts and waits do nothing, and
	 * stream_error() returns the error. stream_stop() makes them fail with -ECANCELED, those that are
	 * under way, too; any thread may call it.
	 */
	int (*stream_put)(struct cairn_channel *c, const struct cairn_stream_put *p, void *stream);
	int (*stream_wait)(struct cairn_channel *c, const struct cairn_stream_wait *w, void *stream);
	int (*stream_error)(struct cairn_channel *c);
	int (*stream_stop)(struct cairn_channel *c);
	/*
	 * Sets *sum to a keyed checksum of memory, computed on the GPU if the transport has one. If two
	 * memories differ in a byte or in length, their sums differ for all but about one key in 2^64. All
	 * back ends give the same sum. addr is a multiple of 8. The call waits for the result. One thread at
	 * a time calls it for a transport.
	 */
	int (*sum)(struct cairn_transport *t, const void *addr, uint64_t bytes, uint64_t key, uint64_t *sum);
};

/*
 * find: the back end of that name; NULL if this build has none. get: back end i, counted from 0; NULL after
 * the last.
 */
const struct cairn_transport_table *cairn_transport_find(const char *name);
const struct cairn_transport_table *cairn_transport_get(int i);
int cairn_transport_gpus(void);		/* CUDA devices that this process sees */
/* Returns whether there are at least two devices, and each can access the memory of all others. */
int cairn_transport_gpus_meet(void);
/* Return and set the calling thread's current CUDA device. -1: there is none; use_gpu(-1) does nothing. */
int cairn_transport_gpu(void);
void cairn_transport_use_gpu(int gpu);

#ifdef __cplusplus
}
#endif

#endif
