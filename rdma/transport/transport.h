/* SPDX-License-Identifier: Apache-2.0 */
/*
 * transport - memory to memory between two ends, payload before signal, over whatever joins them
 *
 *   put(channel, local region + offset, remote region + offset, bytes, slot, value)
 *
 * stores the bytes at the other end and then, when all of them are visible there, sets signal slot `slot`
 * of that channel there to `value`. Who waits for the slot finds the payload whole. Nobody at the other
 * end takes part: memory is registered beforehand, the key that names it is carried over by other means.
 *
 *   back end  carried by                                       a kernel may put    ends
 *   loop      a thread of this process, with seeded trouble    no                  one process
 *   verbs     RC queue pairs of any RDMA device, posted by a   through a queue     anywhere
 *             thread that also takes what kernels ask for      of descriptors
 *   nvlink    stores to peer memory (CUDA IPC), copy engine    yes                 one host
 *   nccl      ncclSend and ncclRecv: the yardstick             no                  anywhere
 *   fhbn      work requests built by the GPU (fhbn.h)          yes, alone          anywhere
 *
 * Setting up, at both ends (blobs are exchanged by any means, say a socket; they are plain bytes):
 *   open(options, &t);  region_register(t, addr, bytes, memory, &r);  channel_create(t, &c)
 *   channel_address(c, &mine)  ... exchange ...  channel_connect(c, &peers, timeout_ms)
 *   region_key(r, &key)        ... exchange ...  remote_import(t, &peers_key, &remote)
 *   The first put comes after both ends have connected: one more exchange.
 *
 * Rules
 * - Slots: num_slots of 64 bits for each channel, each way, zero at connect. The values given to a slot
 *   ascend in the order of the puts; wait(slot, value) ends when the slot's value is `value` or later:
 *   (int64_t) (have - value) >= 0, so that counters may wrap. Slot CAIRN_NO_SIGNAL: payload alone. bytes
 *   0: signal alone.
 * - Word: 8 bytes that come with the signal, in the slot itself; the fast way for small payloads. A wait
 *   that finds a value gives the word that came with it, or a later one when the slot was signalled again
 *   meanwhile.
 * - Order: a channel's puts take effect in the order given as far as signals can tell: the signal of one
 *   means that all earlier payloads of that channel are visible too. Channels are not ordered among each
 *   other. Of two puts to the same bytes the second is given after the first is known to have arrived;
 *   else either may win.
 * - The source of a put is left alone until a flush after it has returned, or until the other end has said
 *   that it has it. flush: all puts so far are complete here and visible there.
 * - Bounds and keys are checked at both ends where CAIRN_TRANSPORT_CHECKS is set, at this end always.
 * - Time-outs are in ms. Every wait ends by it: -ETIMEDOUT, and the text says who waited for what. 0:
 *   looks once. What timed out may be waited for again.
 * - Errors of a channel are final: the first is kept (channel_error) and returned by every later put and
 *   flush, and by a wait whose signal is not there. What was under way is lost or arrives, but never a
 *   signal without its payload. channel_reset gives a fresh channel: empty, slots zero, a new address;
 *   both ends reset, then connect again.
 * - Threads: one at a time gives puts and flushes on a channel, another may wait on it meanwhile;
 *   channels are independent. The other calls may come from any thread; who closes or destroys sees to it
 *   that no call on it is under way. On one channel either the host or kernels put at one time, not both.
 *
 * Errors: -EINVAL a bad argument, named; -EACCES the other end refused key or bounds; -ECONNRESET the peer is
 * gone; -ETIMEDOUT; -ENODEV no such device or library; -EOPNOTSUPP this back end cannot; -ENOMEM; -EIO.
 * Nothing is printed; texts by cairn_last_error(). Out parameters are written on success only.
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
	CAIRN_TRANSPORT_DEVICE_PUT	= 1 << 2,	/* channel_device works: transport.cuh */
	CAIRN_TRANSPORT_PROCESSES	= 1 << 3,	/* the ends may be in two processes */
	CAIRN_TRANSPORT_ONE_PROCESS	= 1 << 4,	/* ... in one */
	CAIRN_TRANSPORT_ONE_DEVICE	= 1 << 5,	/* ... on one and the same GPU */
	CAIRN_TRANSPORT_PEER_DEATH	= 1 << 6,	/* a waiter, too, is told that the peer is gone */
	CAIRN_TRANSPORT_CHECKS		= 1 << 7,	/* the other end checks keys and bounds */
	/* Puts progress whatever the other end does. Without it only while that waits,
		and a flush says no more than
	 * that the sources are free. */
	CAIRN_TRANSPORT_ONE_SIDED	= 1 << 8,
};

enum { CAIRN_MEMORY_HOST, CAIRN_MEMORY_DEVICE };

#define CAIRN_NO_SIGNAL		0xffffffffu
#define CAIRN_MAX_SLOTS		4096u
#define CAIRN_MAX_DEPTH		65536u

struct cairn_transport;			/* one end's way out: a device, a thread, a GPU */
struct cairn_channel;			/* one connection */
struct cairn_region;			/* memory here that puts may read, and peers write */
struct cairn_remote;			/* memory of a peer */

struct cairn_transport_options {
	size_t size;			/* sizeof(struct cairn_transport_options) */
	const char *device;		/* verbs, fhbn: name of the RDMA device; NULL: the first */
	const char *faults;		/* loop: NAME=VALUE, commas between (transport_loop.c); else NULL */
	uint64_t seed;			/* of the faults */
	uint32_t depth;			/* puts outstanding on a channel, a power of two; 0: 1024 */
	uint32_t num_slots;		/* of a channel, the same at both ends; 0: 64 */
	int gpu;			/* CUDA device whose kernels or memory take part; -1: none */
};

/* What is carried to the other end: a channel's address or a region's key. Checked when it arrives. */
struct cairn_blob {
	uint32_t magic, what;		/* what: 1 address, 2 key */
	char kind[16];			/* the back end's name */
	uint64_t check;			/* of all other bytes */
	uint8_t bytes[352];
};

struct cairn_put {
	const struct cairn_region *local;	/* NULL with bytes 0 */
	uint64_t local_offset;
	const struct cairn_remote *remote;	/* NULL with bytes 0 */
	uint64_t remote_offset;
	uint64_t bytes;
	uint64_t value, word;			/* of the signal */
	uint32_t slot;				/* < num_slots, or CAIRN_NO_SIGNAL */
};

/* What transport.cuh works on; plain words, given to kernels by value. */
struct cairn_device_region {
	uint64_t addr, bytes;
	uint32_t key, unused;
};
struct cairn_device_channel {
	uint32_t kind;			/* CAIRN_DEVICE_* */
	uint32_t num_slots;
	uint32_t depth, unused;
	struct cairn_signal *mine;	/* [num_slots], written by the peer */
	struct cairn_signal *theirs;	/* nvlink: the peer's */
	uint64_t *state;		/* nvlink: 0, or an error number once the peer is gone */
	uint64_t *queue;		/* verbs: descriptors, 8 words each (transport_queue.h) */
	/* verbs: index of the next descriptor; puts counted, in device memory */
	uint64_t *next;
	const uint64_t *done;		/* verbs: descriptors completed; [1]: error number */
	void *poster;			/* fhbn: its queue pair */
};
enum { CAIRN_DEVICE_NVLINK = 1, CAIRN_DEVICE_QUEUE, CAIRN_DEVICE_FHBN };

struct cairn_signal {
	uint64_t value, word;
};

/* The table: one for each back end. */
struct cairn_transport_table {
	size_t size;
	const char *name;
	uint32_t features;

	int (*open)(const struct cairn_transport_options *o, struct cairn_transport **t);
	/* What is left of regions, remotes and channels goes,
		too. Puts that were not flushed may be lost; the
	 * peers of its channels see them gone. */
	void (*close)(struct cairn_transport *t);

	/* bytes > 0. The memory stays the caller's and outlives the region. */
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

	/* Waits, until the time-out, while `depth` puts are outstanding; the put was not taken then. */
	int (*put)(struct cairn_channel *c, const struct cairn_put *p, uint32_t timeout_ms);
	/* value, word: what the slot holds; either may be NULL */
	int (*wait)(struct cairn_channel *c, uint32_t slot, uint64_t value, uint32_t timeout_ms,
		    struct cairn_signal *found);
	int (*flush)(struct cairn_channel *c, uint32_t timeout_ms);
	int (*channel_error)(struct cairn_channel *c);		/* 0, or the error and its text */

	/* For kernels of options.gpu; -EOPNOTSUPP without CAIRN_TRANSPORT_DEVICE_PUT. */
	int (*channel_device)(struct cairn_channel *c, struct cairn_device_channel *d);
	int (*region_device)(const struct cairn_region *r, struct cairn_device_region *d);
	int (*remote_device)(const struct cairn_remote *remote, struct cairn_device_region *d);
};

/* By name; NULL when there is no such back end in this build. i >= 0: the i-th, NULL after the last. */
const struct cairn_transport_table *cairn_transport_find(const char *name);
const struct cairn_transport_table *cairn_transport_get(int i);

#ifdef __cplusplus
}
#endif

#endif
