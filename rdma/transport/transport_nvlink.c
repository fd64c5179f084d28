// SPDX-License-Identifier: Apache-2.0
/*
 * transport_nvlink.c - peer memory: kernels store, and the copy engine copies, into another GPU's memory
 *
 * Works between two GPUs of a host, two processes on one GPU, or within one process. A channel's slots are in
 * device memory of the receiving end. The sender has mapped them (CUDA IPC, or peer access in one process)
 * and writes them itself: kernels with transport.cuh, the host with the copy engine. The host's copies are in
 * order on a stream of the channel: payload, word (unless the slot has it already), value.
 *
 * The other end checks nothing, because an imported region is mapped memory. A region's memory must therefore
 * outlive its peers' puts; the slots have a reference count of the ends that have mapped them. Next to the
 * slots is a state word, which the peer sets when it closes. If the peer's process dies without closing, this
 * end learns it from the system, because both are on one host.
 *
 * Reset: a channel has two sets of slots and uses them alternately, so that the peer's writes in flight go to
 * the old set.
 *
 * With a pace (CAIRN_NVLINK_PACE, transport_pace.h), puts in the order of a stream are paced, and waits of a
 * stream and of the host see it. Both ends must have the same one. Puts of the host are not paced: they are
 * for setting up. Other kernels are refused (channel_device).
 */
#include <cuda_runtime_api.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "primitives/base/launch.h"
#include "rdma/transport/transport_clock.h"
#include "rdma/transport/transport_cuda.h"
#include "rdma/transport/transport_ipc.h"
#include "rdma/transport/transport_stream.h"

#define PROBE_EVERY_NS	5000000
#define LOOKED_DUES	4
#define DUES_BYTES	(TRANSPORT_DUES * sizeof(struct cairn_signal))	/* of a slot */

struct nvlink {
	struct cairn_transport base;
	struct ipc_self self;
	struct transport_pace pace;
	struct transport_clock *clock;	/* NULL: no pace */
};

struct nvlink_region {
	struct cairn_region base;
	int mapped;
};

struct nvlink_remote {
	struct cairn_remote base;
	uint8_t *addr;
	void *opened;			/* IPC mapping to be closed, or NULL */
};

struct nvlink_channel {
	struct cairn_channel base;
	struct ipc_block *mine, *theirs;
	struct cairn_signal *slots;	/* the set in use */
	uint32_t half;
	struct cairn_signal *peer_slots, *peer_dues;
	uint64_t *peer_state;
	struct transport_identity peer;
	cudaStream_t out, in;
	cudaEvent_t *events;		/* [depth], one recorded after each put */
	struct cairn_signal *staged;	/* [depth], pinned: source of the copy engine's signal copies */
	uint64_t *words;		/* [num_slots], last sent */
	/* pinned copies: the signal read by nvlink_look(), the channel's state, the failure that a wait in a
	 * stream recorded and, from LOOKED_DUES on, the slot's due times */
	struct cairn_signal *looked;
	uint64_t *shown;		/* [num_slots], with a pace: what nvlink_look() has found */
	uint64_t posted, done, probed;
	pthread_mutex_t probing;	/* held during a probe, by waiting and putting threads */
};

/* ---- transport and regions ---- */

static int nvlink_start(struct cairn_transport *t)
{
	struct nvlink *n = (struct nvlink *)t;
	int previous, ret;

	CAIRN_TRY(transport_pace_read("CAIRN_NVLINK_PACE", &n->pace));
	if (t->options.gpu == CAIRN_GPU_OF_THREAD)
		CAIRN_CUDA(cudaGetDevice(&t->options.gpu));
	if (t->options.gpu < 0)
		return cairn_error(EINVAL, "options: gpu: %d: this back end needs a GPU", t->options.gpu);
	CAIRN_TRY(transport_enter_gpu(t->options.gpu, &previous));
	ret = transport_stream_load();
	transport_leave_gpu(previous);
	CAIRN_TRY(ret);
	if (transport_is_paced(&n->pace))
		CAIRN_TRY(transport_clock_start(t->options.gpu, &n->clock));
	return ipc_identify(&n->self, t->options.gpu);
}

static void nvlink_stop(struct cairn_transport *t)
{
	transport_clock_stop(((struct nvlink *)t)->clock);
}

static int nvlink_add_region(struct cairn_region *base)
{
	struct nvlink_region *r = (struct nvlink_region *)base;
	struct cudaPointerAttributes a;
	int gpu = base->t->options.gpu;

	if (base->memory == CAIRN_MEMORY_HOST)	/* it can only be a source of the host's puts */
		return transport_host_map(gpu, base->addr, base->bytes, &r->mapped);
	CAIRN_CUDA(cudaPointerGetAttributes(&a, base->addr));
	if (a.type != cudaMemoryTypeDevice || a.device != gpu)
		return cairn_error(EINVAL, "addr: not memory of GPU %d", gpu);
	return 0;
}

static int nvlink_key(const struct cairn_region *r, void *key)
{
	struct ipc_key k;

	if (r->memory != CAIRN_MEMORY_DEVICE)
		return cairn_error(EOPNOTSUPP,
				   "region_key: peers cannot write host memory with this back end");
	CAIRN_TRY(ipc_fill(&((const struct nvlink *)r->t)->self, r->addr, r->bytes, &k));
	memcpy(key, &k, sizeof(k));
	return 0;
}

static void nvlink_remove_region(struct cairn_region *base)
{
	if (((struct nvlink_region *)base)->mapped)
		transport_host_unmap(base->t->options.gpu, base->addr);
}

static int nvlink_import(struct cairn_remote *base, const void *key)
{
	struct nvlink_remote *remote = (struct nvlink_remote *)base;
	struct ipc_key k;
	uint8_t *p = NULL;

	memcpy(&k, key, sizeof(k));
	CAIRN_TRY(ipc_map(&((const struct nvlink *)base->t)->self, &k, &p, &remote->opened));
	remote->addr = p + k.offset;
	base->bytes = k.bytes;
	return 0;
}

static void nvlink_drop(struct cairn_remote *base)
{
	struct nvlink_remote *remote = (struct nvlink_remote *)base;

	if (remote->opened)
		cudaIpcCloseMemHandle(remote->opened);
}

/* ---- channels ---- */

/*
 * A block holds, in this order: the slots of both sets; the states of both sets; this end's counters for puts
 * in the order of a stream (per slot, the CTAs that have arrived; per slot, the paced puts; then the time at
 * which the link has carried them all); and the due times of both sets.
 */
static uint64_t slots_bytes(const struct nvlink_channel *c)
{
	return c->base.t->options.num_slots * sizeof(struct cairn_signal);
}

static struct cairn_signal *slots_at(const struct nvlink_channel *c, uint8_t *base, uint32_t half)
{
	return (struct cairn_signal *)(void *)(base + half * slots_bytes(c));
}

static uint64_t *state_at(const struct nvlink_channel *c, uint8_t *base, uint32_t half)
{
	return (uint64_t *)(void *)(base + 2 * slots_bytes(c) + half * sizeof(uint64_t));
}

static uint64_t *counts_at(const struct nvlink_channel *c)
{
	return (uint64_t *)(void *)(c->mine->base + 2 * slots_bytes(c) + 64);
}

static uint64_t counts_bytes(const struct nvlink_channel *c)
{
	return 2 * c->base.t->options.num_slots * sizeof(uint64_t) + 64;
}

static struct cairn_signal *dues_at(const struct nvlink_channel *c, uint8_t *base, uint32_t half)
{
	return (struct cairn_signal *)(void *)(base + 2 * slots_bytes(c) + 64 + counts_bytes(c) +
					       half * TRANSPORT_DUES * slots_bytes(c));
}

static uint64_t block_bytes(const struct nvlink_channel *c)
{
	return 2 * slots_bytes(c) + 64 + counts_bytes(c) + 2 * TRANSPORT_DUES * slots_bytes(c);
}

static int make_streams(struct nvlink_channel *c)
{
	const struct cairn_transport_options *o = &c->base.t->options;
	uint32_t i;

	CAIRN_CUDA(cudaStreamCreateWithFlags(&c->out, cudaStreamNonBlocking));
	CAIRN_CUDA(cudaStreamCreateWithFlags(&c->in, cudaStreamNonBlocking));
	for (i = 0; i < o->depth; i++)
		CAIRN_CUDA(cudaEventCreateWithFlags(&c->events[i], cudaEventDisableTiming));
	return 0;
}

static int nvlink_create(struct cairn_channel *base)
{
	struct nvlink_channel *c = (struct nvlink_channel *)base;
	const struct cairn_transport_options *o = &base->t->options;
	int previous, ret;
	void *p;

	pthread_mutex_init(&c->probing, NULL);
	c->events = calloc(o->depth, sizeof(*c->events));
	c->words = calloc(o->num_slots, sizeof(*c->words));
	c->shown = calloc(o->num_slots, sizeof(*c->shown));
	base->link.pace = ((const struct nvlink *)base->t)->pace;
	if (!c->events || !c->words || !c->shown)
		return cairn_error(ENOMEM, "no memory for %u puts", o->depth);
	CAIRN_TRY(transport_host_alloc(o->gpu, o->depth * sizeof(*c->staged), (void **)&c->staged));
	CAIRN_TRY(transport_host_alloc(o->gpu, 64 + DUES_BYTES, (void **)&c->looked));
	CAIRN_TRY(transport_device_alloc(o->gpu, block_bytes(c), &p));
	c->mine = ipc_new_block(p, o->gpu, 0);
	if (!c->mine) {
		transport_device_free(o->gpu, p);
		return cairn_error(ENOMEM, "no memory for a block");
	}
	c->slots = slots_at(c, p, 0);
	CAIRN_TRY(transport_enter_gpu(o->gpu, &previous));
	ret = make_streams(c);
	transport_leave_gpu(previous);
	return ret;
}

/* Tells the peer that this end is closed. Has no effect if the peer is gone. */
static void announce_close(struct nvlink_channel *c)
{
	static const uint64_t gone = ECONNRESET;

	if (c->peer_state && c->out) {
		cudaMemcpyAsync(c->peer_state, &gone, sizeof(gone), cudaMemcpyDefault, c->out);
		cudaStreamSynchronize(c->out);
	}
	c->peer_state = NULL;
	c->peer_slots = c->peer_dues = NULL;
	ipc_let_go(c->theirs);
	c->theirs = NULL;
}

static void nvlink_destroy(struct cairn_channel *base)
{
	struct nvlink_channel *c = (struct nvlink_channel *)base;
	const struct cairn_transport_options *o = &base->t->options;
	uint32_t i;

	if (c->out)
		cudaStreamSynchronize(c->out);
	announce_close(c);
	for (i = 0; c->events && i < o->depth && c->events[i]; i++)
		cudaEventDestroy(c->events[i]);
	if (c->out)
		cudaStreamDestroy(c->out);
	if (c->in)
		cudaStreamDestroy(c->in);
	ipc_let_go(c->mine);
	transport_host_free(o->gpu, c->staged, 0);
	transport_host_free(o->gpu, c->looked, 0);
	free(c->events);
	free(c->words);
	free(c->shown);
	pthread_mutex_destroy(&c->probing);
}

static int nvlink_address(struct cairn_channel *base, void *address)
{
	struct nvlink_channel *c = (struct nvlink_channel *)base;
	struct ipc_key k;

	CAIRN_TRY(ipc_fill(&((const struct nvlink *)base->t)->self, c->mine->base, c->half, &k));
	k.num_slots = (int32_t)base->t->options.num_slots;
	k.pace = base->link.pace;
	memcpy(address, &k, sizeof(k));
	return 0;
}

static int nvlink_connect(struct cairn_channel *base, const void *address, uint64_t deadline)
{
	struct nvlink_channel *c = (struct nvlink_channel *)base;
	struct nvlink *n = (struct nvlink *)base->t;
	void *opened = NULL;
	struct ipc_key k;
	uint8_t *p = NULL;

	(void)deadline;
	memcpy(&k, address, sizeof(k));
	if (k.num_slots != (int32_t)base->t->options.num_slots)
		return cairn_error(EINVAL, "num_slots: the peer has %d, this end %u", k.num_slots,
				   base->t->options.num_slots);
	if (memcmp(&k.pace, &base->link.pace, sizeof(k.pace)))
		return cairn_error(EINVAL, "CAIRN_NVLINK_PACE: the peer has another pace, or only one "
				   "end has one");
	if (transport_lives(&k.owner) == 0)
		return cairn_error(ECONNRESET, "process %llu is gone", (unsigned long long)k.owner.pid);
	CAIRN_TRY(ipc_map(&n->self, &k, &p, &opened));
	c->theirs = opened ? ipc_new_block(opened, base->t->options.gpu, 1) : ipc_find_block(p + k.offset);
	if (!c->theirs) {
		if (opened)
			cudaIpcCloseMemHandle(opened);
		return cairn_error(ECONNRESET, "the peer's channel is gone");
	}
	c->peer_slots = slots_at(c, p + k.offset, (uint32_t)k.bytes);
	c->peer_dues = dues_at(c, p + k.offset, (uint32_t)k.bytes);
	c->peer_state = state_at(c, p + k.offset, (uint32_t)k.bytes);
	c->peer = k.owner;
	snprintf(base->peer, sizeof(base->peer), "GPU %s of process %llu", k.bus,
		 (unsigned long long)k.owner.pid);
	return 0;
}

static int nvlink_reset(struct cairn_channel *base)
{
	struct nvlink_channel *c = (struct nvlink_channel *)base;
	int previous, ret = 0;
	cudaError_t err;

	CAIRN_TRY(transport_enter_gpu(base->t->options.gpu, &previous));
	cudaStreamSynchronize(c->out);		/* no earlier write may come after the state written below */
	announce_close(c);
	c->half ^= 1;
	c->slots = slots_at(c, c->mine->base, c->half);
	err = cudaMemsetAsync(c->slots, 0, slots_bytes(c), c->in);
	if (err == cudaSuccess)
		err = cudaMemsetAsync(state_at(c, c->mine->base, c->half), 0, sizeof(uint64_t), c->in);
	if (err == cudaSuccess)		/* a put that a failure has cut off may have left some counts */
		err = cudaMemsetAsync(counts_at(c), 0, counts_bytes(c), c->in);
	if (err == cudaSuccess)
		err = cudaMemsetAsync(dues_at(c, c->mine->base, c->half), 0, TRANSPORT_DUES * slots_bytes(c),
				      c->in);
	if (err == cudaSuccess)
		err = cudaStreamSynchronize(c->in);
	if (err != cudaSuccess)
		ret = cairn_cuda_error(err, "cudaMemsetAsync", __FILE__, __LINE__);
	transport_leave_gpu(previous);
	memset(c->looked + 2, 0, sizeof(*c->looked));
	c->posted = c->done = c->probed = 0;
	memset(c->words, 0, base->t->options.num_slots * sizeof(*c->words));
	memset(c->shown, 0, base->t->options.num_slots * sizeof(*c->shown));
	return ret;
}

static void check_peer(struct nvlink_channel *c)
{
	uint64_t *state = (uint64_t *)(void *)(c->looked + 1);

	if (transport_lives(&c->peer) == 0)
		transport_fail(&c->base, ECONNRESET, "the peer is gone: its process has ended");
	else if (cudaMemcpyAsync(state, state_at(c, c->mine->base, c->half), sizeof(*state),
				 cudaMemcpyDefault,
				 c->in) != cudaSuccess || cudaStreamSynchronize(c->in) != cudaSuccess)
		transport_fail(&c->base, EIO, "CUDA: %s", cudaGetErrorString(cudaGetLastError()));
	else if (*state)
		transport_fail(&c->base, (int)*state, "the peer is gone: its end was closed");
}

static void nvlink_probe(struct cairn_channel *base)
{
	struct nvlink_channel *c = (struct nvlink_channel *)base;
	uint64_t now = transport_now();

	if (pthread_mutex_trylock(&c->probing))
		return;
	if (now - c->probed >= PROBE_EVERY_NS) {
		c->probed = now;
		check_peer(c);
	}
	pthread_mutex_unlock(&c->probing);
}

/* ---- puts by the host ---- */

/* Waits until at most `left` puts are in flight. */
static int drain(struct nvlink_channel *c, const char *what, uint64_t left, uint64_t deadline)
{
	uint32_t mask = c->base.t->options.depth - 1, round = 0;
	cudaError_t err = cudaSuccess;

	for (;;) {
		while (c->done < c->posted &&
		       (err = cudaEventQuery(c->events[c->done & mask])) == cudaSuccess)
			c->done++;
		if (c->done < c->posted && err != cudaErrorNotReady) {
			transport_fail(&c->base, EIO, "put %llu: %s", (unsigned long long)c->done,
				       cudaGetErrorString(err));
			cudaGetLastError();
		}
		CAIRN_TRY(transport_error(&c->base));
		if (c->posted - c->done <= left)
			return 0;
		if (transport_now() >= deadline)
			return cairn_error(ETIMEDOUT,
					   "%s: channel %u: %llu puts to %s are still in flight", what,
					   c->base.number, (unsigned long long)(c->posted - c->done),
					   c->base.peer);
		transport_pause(round++);
	}
}

static int copy(void *to, const void *from, uint64_t bytes, cudaStream_t stream)
{
	CAIRN_CUDA(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream));
	return 0;
}

static int enqueue(struct nvlink_channel *c, const struct cairn_put *p)
{
	uint64_t at = c->posted & (c->base.t->options.depth - 1);
	struct cairn_signal *s = &c->staged[at];

	if (p->bytes)
		CAIRN_TRY(copy(((const struct nvlink_remote *)p->remote)->addr + p->remote_offset,
			       p->local->addr + p->local_offset, p->bytes, c->out));
	if (p->slot != CAIRN_NO_SIGNAL) {
		s->value = p->value;
		s->word = p->word;
		if (c->words[p->slot] != p->word)
			CAIRN_TRY(copy(&c->peer_slots[p->slot].word, &s->word, sizeof(s->word), c->out));
		CAIRN_TRY(copy(&c->peer_slots[p->slot].value, &s->value, sizeof(s->value), c->out));
		c->words[p->slot] = p->word;
	}
	CAIRN_CUDA(cudaEventRecord(c->events[at], c->out));
	return 0;
}

static int nvlink_put(struct cairn_channel *base, const struct cairn_put *p, uint64_t deadline)
{
	struct nvlink_channel *c = (struct nvlink_channel *)base;
	int gpu = base->t->options.gpu, previous, ret;

	nvlink_probe(base);
	CAIRN_TRY(transport_error(base));
	CAIRN_TRY(drain(c, "put", base->t->options.depth - 1, deadline));
	CAIRN_TRY(transport_enter_gpu(gpu, &previous));
	ret = enqueue(c, p);
	transport_leave_gpu(previous);
	if (ret) {
		transport_fail(base, EIO, "put %llu: %s", (unsigned long long)c->posted, cairn_last_error());
		return transport_error(base);
	}
	c->posted++;
	return 0;
}

static int nvlink_flush(struct cairn_channel *base, uint64_t deadline)
{
	return drain((struct nvlink_channel *)base, "flush", 0, deadline);
}

/*
 * Reads the value before the word, so that the word belongs to this value or to a later one. The due times
 * are read last, so that those of this value and of all earlier ones are complete.
 */
static int nvlink_look(struct cairn_channel *base, uint32_t slot, struct cairn_signal *found)
{
	struct nvlink_channel *c = (struct nvlink_channel *)base;
	const int is_paced = transport_is_paced(&base->link.pace);

	CAIRN_TRY(copy(&c->looked->value, &c->slots[slot].value, sizeof(uint64_t), c->in));
	CAIRN_TRY(copy(&c->looked->word, &c->slots[slot].word, sizeof(uint64_t), c->in));
	if (is_paced)
		CAIRN_TRY(copy(c->looked + LOOKED_DUES, dues_at(c, c->mine->base, c->half) +
			       (size_t)slot * TRANSPORT_DUES, DUES_BYTES, c->in));
	CAIRN_CUDA(cudaStreamSynchronize(c->in));
	*found = *c->looked;
	if (is_paced)
		found->value = c->shown[slot] = transport_pace_shown(c->looked + LOOKED_DUES, found->value,
								     c->shown[slot], transport_now());
	return 0;
}

/* ---- for kernels ---- */

static int nvlink_channel_device(struct cairn_channel *base, struct cairn_device_channel *d)
{
	struct nvlink_channel *c = (struct nvlink_channel *)base;
	const struct nvlink *n = (const struct nvlink *)base->t;

	*d = (struct cairn_device_channel) {
		.kind = CAIRN_DEVICE_NVLINK, .num_slots = base->t->options.num_slots,
		.depth = base->t->options.depth, .mine = c->slots, .theirs = c->peer_slots,
		.state = state_at(c, c->mine->base, c->half),
		.arrived = counts_at(c), .failed = c->looked + 2,
	};
	if (!n->clock)
		return 0;
	base->link = (struct transport_link) {
		.pace = n->pace, .clock = transport_clock_at(n->clock),
		.clock_error_ns = transport_clock_error(n->clock),
		.puts = counts_at(c) + base->t->options.num_slots,
		.carried = counts_at(c) + 2 * base->t->options.num_slots,
		.mine = dues_at(c, c->mine->base, c->half), .theirs = c->peer_dues,
	};
	return 0;
}

static int nvlink_region_device(const struct cairn_region *r, struct cairn_device_region *d)
{
	*d = (struct cairn_device_region) { .addr = (uintptr_t)r->addr, .bytes = r->bytes };
	return 0;
}

static int nvlink_remote_device(const struct cairn_remote *remote, struct cairn_device_region *d)
{
	*d = (struct cairn_device_region) {
		.addr = (uintptr_t)((const struct nvlink_remote *)remote)->addr, .bytes = remote->bytes,
	};
	return 0;
}

/* Kernels poll the channel's state, which the copy engine sets while they run. */
static int nvlink_stream_stop(struct cairn_channel *base)
{
	static const uint64_t stopped = ECANCELED;
	struct nvlink_channel *c = (struct nvlink_channel *)base;

	CAIRN_TRY(copy(state_at(c, c->mine->base, c->half), &stopped, sizeof(stopped), c->in));
	CAIRN_CUDA(cudaStreamSynchronize(c->in));
	return 0;
}

#define FEATURES (CAIRN_TRANSPORT_DEVICE_MEMORY | CAIRN_TRANSPORT_DEVICE_PUT | CAIRN_TRANSPORT_PROCESSES | \
		  CAIRN_TRANSPORT_ONE_PROCESS | CAIRN_TRANSPORT_ONE_DEVICE | CAIRN_TRANSPORT_PEER_DEATH | \
		  CAIRN_TRANSPORT_ONE_SIDED)

static const struct transport_ops nvlink_ops = {
	.name = "nvlink", .features = FEATURES,
	.transport_bytes = sizeof(struct nvlink), .region_bytes = sizeof(struct nvlink_region),
	.remote_bytes = sizeof(struct nvlink_remote), .channel_bytes = sizeof(struct nvlink_channel),
	.start = nvlink_start, .stop = nvlink_stop,
	.add_region = nvlink_add_region, .key = nvlink_key, .remove_region = nvlink_remove_region,
	.import = nvlink_import, .drop = nvlink_drop,
	.create = nvlink_create, .address = nvlink_address, .connect = nvlink_connect, .reset = nvlink_reset,
	.destroy = nvlink_destroy,
	.put = nvlink_put, .flush = nvlink_flush, .look = nvlink_look, .probe = nvlink_probe,
	.channel_device = nvlink_channel_device, .region_device = nvlink_region_device,
	.remote_device = nvlink_remote_device, .stream_stop = nvlink_stream_stop,
};

static int nvlink_open(const struct cairn_transport_options *o, struct cairn_transport **t)
{
	return transport_open(&nvlink_ops, o, t);
}

const struct cairn_transport_table cairn_transport_nvlink = TRANSPORT_TABLE("nvlink", FEATURES, nvlink_open);
