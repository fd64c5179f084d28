// SPDX-License-Identifier: Apache-2.0
/*
 * transport_fhbn.c - puts as work requests that kernels post themselves (fhbn.h), or the same poster on a CPU
 *
 * A queue's counters are in its poster's memory. A channel therefore has a queue pair for the host and, with
 * a GPU, another one for kernels, each connected to the peer's queue pair of the same kind. Both write the
 * same slots, which are in host memory mapped for the GPU. A put is one batch: a WRITE of the payload
 * (several above 1 GiB), an inline WRITE of the word if it differs from the host's last one, and an inline
 * WRITE of the value. The queue pair keeps the order.
 *
 * options.device is a libmlx5 device (NULL: the first) or "bare". With "bare", rings are laid out by hand on
 * the NIC model, within this process and without libibverbs; they are in GPU memory if there is a GPU, and
 * regions may be GPU memory.
 */
#include "rdma/transport/transport_fhbn.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "rdma/card/card.h"
#include "rdma/fhbn/fhbn_host.h"
#include "rdma/transport/transport_cuda.h"
#include "rdma/transport/transport_impl.h"

#define PIECE		(1ull << 30)
#define MAX_REQUESTS	3		/* maximum requests per batch */
#define TURN_NS		10000000000ull	/* time-out of waits for posters of this process */
#define PROBE_EVERY_NS	20000000

enum { BY_HOST, BY_KERNEL, NUM_QUEUES };

struct fhbn_address {
	struct cairn_fhbn_address queue[NUM_QUEUES];
	uint64_t slots, pid;
	uint32_t slots_rkey, num_slots, num_queues, bare;
};

struct fhbn {
	struct cairn_transport base;
	struct cairn_fhbn_nic *nic;
	int bare;
};

struct fhbn_region {
	struct cairn_region base;
	uint32_t lkey, rkey;
	int mapped;
};

struct fhbn_remote {
	struct cairn_remote base;
	uint64_t addr;
	uint32_t rkey;
};

struct fhbn_channel {
	struct cairn_channel base;
	struct cairn_fhbn_queue *queue[NUM_QUEUES];
	struct cairn_signal *slots;		/* [num_slots + 1]; the last one is for probes */
	uint32_t slots_lkey, slots_rkey;
	int has_key;
	uint64_t *words;			/* [num_slots], the last value sent by the host */
	struct transport_fhbn_poster *poster;	/* in device memory */
	int kernels_put;			/* kernels may put, so their queue may fail as well */
	struct fhbn_address peer;
	_Atomic uint64_t probed;		/* time in ns */
};

static int fhbn_start(struct cairn_transport *t)
{
	struct fhbn *f = (struct fhbn *)t;
	const char *device = t->options.device;
	struct cairn_fhbn_open_args args = { .provider = CAIRN_FHBN_VERBS, .device = device, .seed = 1 };

	args.gid_index = cairn_card_gid_index();
	f->bare = device && !strcmp(device, "bare");
	if (f->bare)
		args = (struct cairn_fhbn_open_args) { .provider = CAIRN_FHBN_BARE, .seed = 1 };
	return cairn_fhbn_open(&args, &f->nic);
}

static void fhbn_stop(struct cairn_transport *t)
{
	cairn_fhbn_close(((struct fhbn *)t)->nic);
}

/* ---- regions ---- */

static int fhbn_add_region(struct cairn_region *base)
{
	struct fhbn_region *r = (struct fhbn_region *)base;
	int gpu = base->t->options.gpu, ret;

	if (base->memory == CAIRN_MEMORY_HOST)
		CAIRN_TRY(transport_host_map(gpu, base->addr, base->bytes, &r->mapped));
	ret = cairn_fhbn_register(((struct fhbn *)base->t)->nic, base->addr, base->bytes, &r->lkey, &r->rkey);
	if (ret && r->mapped)
		transport_host_unmap(gpu, base->addr);
	return ret;
}

static int fhbn_key(const struct cairn_region *base, void *key)
{
	uint64_t words[3] = { (uintptr_t)base->addr, base->bytes, ((const struct fhbn_region *)base)->rkey };

	memcpy(key, words, sizeof(words));
	return 0;
}

static void fhbn_remove_region(struct cairn_region *base)
{
	struct fhbn_region *r = (struct fhbn_region *)base;

	cairn_fhbn_unregister(((struct fhbn *)base->t)->nic, r->lkey);
	if (r->mapped)
		transport_host_unmap(base->t->options.gpu, base->addr);
}

static int fhbn_import(struct cairn_remote *base, const void *key)
{
	struct fhbn_remote *remote = (struct fhbn_remote *)base;
	uint64_t words[3];

	memcpy(words, key, sizeof(words));
	remote->addr = words[0];
	base->bytes = words[1];
	remote->rkey = (uint32_t)words[2];
	return 0;
}

/* ---- channels ---- */

static int num_queues(const struct cairn_channel *c)
{
	return c->t->options.gpu < 0 ? 1 : NUM_QUEUES;
}

static uint64_t slots_bytes(const struct fhbn_channel *c)
{
	return (c->base.t->options.num_slots + 1) * sizeof(*c->slots);
}

static int make_queues(struct fhbn_channel *c)
{
	struct fhbn *f = (struct fhbn *)c->base.t;
	uint32_t blocks = c->base.t->options.depth;
	/* SYS: a payload written by a kernel may be in host memory, wherever the ring is */
	struct cairn_fhbn_qp_args args = {
		.mode = CAIRN_FHBN_SHARED | CAIRN_FHBN_SYS, .timeout_ns = TURN_NS,
	};
	int i;

	while (blocks < MAX_REQUESTS * c->base.t->options.depth || blocks < CAIRN_FHBN_MIN_BLOCKS)
		blocks *= 2;
	args.num_blocks = blocks < 32768 ? blocks : 32768;
	for (i = 0; i < num_queues(&c->base); i++) {
		args.poster = i == BY_HOST ? CAIRN_FHBN_BY_CPU :
			f->bare ? CAIRN_FHBN_BY_GPU_LOCAL : CAIRN_FHBN_BY_GPU;
		CAIRN_TRY(cairn_fhbn_queue_create(f->nic, &args, &c->queue[i]));
	}
	return 0;
}

static void drop_queues(struct fhbn_channel *c)
{
	int i;

	for (i = 0; i < NUM_QUEUES; i++) {
		cairn_fhbn_queue_destroy(c->queue[i]);
		c->queue[i] = NULL;
	}
}

static int fhbn_create(struct cairn_channel *base)
{
	struct fhbn_channel *c = (struct fhbn_channel *)base;
	const struct cairn_transport_options *o = &base->t->options;

	c->words = calloc(o->num_slots, sizeof(*c->words));
	if (!c->words)
		return cairn_error(ENOMEM, "no memory for %u slots", o->num_slots);
	CAIRN_TRY(transport_host_alloc(o->gpu, slots_bytes(c), (void **)&c->slots));
	CAIRN_TRY(cairn_fhbn_register(((struct fhbn *)base->t)->nic, c->slots, slots_bytes(c), &c->slots_lkey,
				      &c->slots_rkey));
	c->has_key = 1;
#ifdef CONFIG_CUDA
	if (o->gpu >= 0)
		CAIRN_TRY(transport_device_alloc(o->gpu, sizeof(*c->poster), (void **)&c->poster));
#endif
	return make_queues(c);
}

static void fhbn_destroy(struct cairn_channel *base)
{
	struct fhbn_channel *c = (struct fhbn_channel *)base;

	drop_queues(c);
	if (c->has_key)
		cairn_fhbn_unregister(((struct fhbn *)base->t)->nic, c->slots_lkey);
	transport_host_free(base->t->options.gpu, c->slots, slots_bytes(c));
#ifdef CONFIG_CUDA
	if (c->poster)
		transport_device_free(base->t->options.gpu, c->poster);
#endif
	free(c->words);
}

static int fhbn_address(struct cairn_channel *base, void *address)
{
	struct fhbn_channel *c = (struct fhbn_channel *)base;
	struct fhbn_address a = {
		.slots = (uintptr_t)c->slots, .pid = (uint64_t)getpid(), .slots_rkey = c->slots_rkey,
		.num_slots = base->t->options.num_slots, .num_queues = (uint32_t)num_queues(base),
		.bare = (uint32_t)((struct fhbn *)base->t)->bare,
	};
	int i;

	for (i = 0; i < num_queues(base); i++)
		CAIRN_TRY(cairn_fhbn_queue_address(c->queue[i], &a.queue[i]));
	memcpy(address, &a, sizeof(a));
	return 0;
}

static int fhbn_connect(struct cairn_channel *base, const void *address, uint64_t deadline)
{
	struct fhbn_channel *c = (struct fhbn_channel *)base;
	int i;

	(void)deadline;
	memcpy(&c->peer, address, sizeof(c->peer));
	if (c->peer.num_slots != base->t->options.num_slots)
		return cairn_error(EINVAL, "num_slots: the peer has %u, this end %u", c->peer.num_slots,
				   base->t->options.num_slots);
	if (c->peer.num_queues != (uint32_t)num_queues(base))
		return cairn_error(EINVAL, "gpu: one end has a GPU, the other has none");
	if (c->peer.bare != (uint32_t)((struct fhbn *)base->t)->bare ||
	    (c->peer.bare && c->peer.pid != (uint64_t)getpid()))
		return cairn_error(EINVAL, "device: bare: both ends must be bare and in one process");
	for (i = 0; i < num_queues(base); i++)
		CAIRN_TRY(cairn_fhbn_queue_connect(c->queue[i], &c->peer.queue[i]));
	snprintf(base->peer, sizeof(base->peer), "qp 0x%x of process %llu", c->peer.queue[BY_HOST].qpn,
		 (unsigned long long)c->peer.pid);
	return 0;
}

static int fhbn_reset(struct cairn_channel *base)
{
	struct fhbn_channel *c = (struct fhbn_channel *)base;

	drop_queues(c);
	memset(c->slots, 0, slots_bytes(c));
	memset(c->words, 0, base->t->options.num_slots * sizeof(*c->words));
	c->kernels_put = 0;
	c->probed = 0;
	return make_queues(c);
}

/* ---- puts by the host ---- */

static int failed(struct fhbn_channel *c, int queue)
{
	struct cairn_fhbn_state s;
	int err = EIO;

	CAIRN_TRY(cairn_fhbn_queue_state(c->queue[queue], &s));
	if (!s.fault.kind)
		return 0;
	if (s.fault.syndrome == CAIRN_CQE_TRANSPORT_RETRY || s.fault.syndrome == CAIRN_CQE_RNR_RETRY)
		err = ECONNRESET;
	if (s.fault.syndrome == CAIRN_CQE_REMOTE_ACCESS || s.fault.syndrome == CAIRN_CQE_REMOTE_INVALID)
		err = EACCES;
	cairn_fhbn_fault_error(&s.fault);
	transport_fail(&c->base, err, "%s%s", err == ECONNRESET ? "the peer is gone: " : "",
		       cairn_last_error());
	return transport_error(&c->base);
}

static int check_kernels(struct fhbn_channel *c)
{
	if (!c->kernels_put)
		return 0;
	c->kernels_put = 0;
	return failed(c, BY_KERNEL);
}

/* Waits until the queue is retired up to index `end`, less `slack`. */
static int drain(struct fhbn_channel *c, const char *what, uint64_t end, uint64_t slack, uint64_t deadline)
{
	const struct cairn_fhbn_qp *q = cairn_fhbn_queue_view(c->queue[BY_HOST]);
	uint32_t round = 0;
	uint64_t retired;

	while ((retired = fhbn_retired(q, q->mode)) + slack < end) {
		if (fhbn_reap(q, q->mode))
			return failed(c, BY_HOST);
		CAIRN_TRY(transport_error(&c->base));
		if (transport_now() >= deadline && fhbn_retired(q, q->mode) + slack < end)
			return cairn_error(ETIMEDOUT,
					   "%s: channel %u: %llu requests to %s are still in flight", what,
					   c->base.number, (unsigned long long)(end - retired), c->base.peer);
		transport_pause(round++);
	}
	return 0;
}

static int post(struct fhbn_channel *c, const struct cairn_fhbn_request *r, uint32_t num, uint64_t deadline)
{
	const struct cairn_fhbn_qp *q = cairn_fhbn_queue_view(c->queue[BY_HOST]);
	/* + 1 keeps one place free for a probe */
	uint64_t end = fhbn_load_acquire(&q->state->reserved) + num + 1;

	CAIRN_TRY(drain(c, "put", end, q->sq.num_blocks, deadline));
	return cairn_fhbn_host_post(q, r, num, NULL) ? failed(c, BY_HOST) : 0;
}

static int fhbn_put(struct cairn_channel *base, const struct cairn_put *p, uint64_t deadline)
{
	struct fhbn_channel *c = (struct fhbn_channel *)base;
	const struct fhbn_region *local = (const struct fhbn_region *)p->local;
	const struct fhbn_remote *remote = (const struct fhbn_remote *)p->remote;
	uint64_t slot = c->peer.slots + (uint64_t)p->slot * sizeof(struct cairn_signal), at = 0;
	struct cairn_fhbn_request r[MAX_REQUESTS];
	uint32_t num;

	CAIRN_TRY(check_kernels(c));
	/* If a later piece of a huge payload times out, the earlier ones have no visible effect. */
	for (; p->bytes - at > PIECE; at += PIECE) {
		r[0] = cairn_fhbn_write(remote->addr + p->remote_offset + at, remote->rkey,
					(uintptr_t)local->base.addr + p->local_offset + at, local->lkey,
					PIECE);
		CAIRN_TRY(post(c, r, 1, deadline));
	}
	num = 0;
	if (p->bytes)
		r[num++] = cairn_fhbn_write(remote->addr + p->remote_offset + at, remote->rkey,
					    (uintptr_t)local->base.addr + p->local_offset + at, local->lkey,
					    (uint32_t)(p->bytes - at));
	if (p->slot != CAIRN_NO_SIGNAL) {
		if (c->words[p->slot] != p->word)
			r[num++] = cairn_fhbn_write_u64(slot + offsetof(struct cairn_signal, word),
							c->peer.slots_rkey,
							p->word);
		r[num++] = cairn_fhbn_write_u64(slot, c->peer.slots_rkey, p->value);
	}
	CAIRN_TRY(post(c, r, num, deadline));
	if (p->slot != CAIRN_NO_SIGNAL)
		c->words[p->slot] = p->word;
	return 0;
}

static int fhbn_flush(struct cairn_channel *base, uint64_t deadline)
{
	struct fhbn_channel *c = (struct fhbn_channel *)base;
	const struct cairn_fhbn_qp *q = cairn_fhbn_queue_view(c->queue[BY_HOST]);

	CAIRN_TRY(check_kernels(c));
	return drain(c, "flush", fhbn_load_acquire(&q->state->ready), 0, deadline);
}

static int fhbn_look(struct cairn_channel *base, uint32_t slot, struct cairn_signal *found)
{
	struct cairn_signal *s = &((struct fhbn_channel *)base)->slots[slot];

	found->value = __atomic_load_n(&s->value, __ATOMIC_ACQUIRE);
	found->word = __atomic_load_n(&s->word, __ATOMIC_RELAXED);
	return 0;
}

/* Writes a word into the peer's spare slot if there is room. The next probe, at the latest, reads the
 * completion. */
static void fhbn_probe(struct cairn_channel *base)
{
	struct fhbn_channel *c = (struct fhbn_channel *)base;
	const struct cairn_fhbn_qp *q = cairn_fhbn_queue_view(c->queue[BY_HOST]);
	uint64_t now = transport_now(), last = atomic_load(&c->probed);
	struct cairn_fhbn_request r;

	if (fhbn_reap(q, q->mode)) {
		failed(c, BY_HOST);
		return;
	}
	if (now - last < PROBE_EVERY_NS || !atomic_compare_exchange_strong(&c->probed, &last, now))
		return;
	if (fhbn_retired(q, q->mode) != fhbn_load_acquire(&q->state->reserved))
		return;		/* requests in flight will also reveal a dead peer */
	r = cairn_fhbn_write_u64(c->peer.slots + c->peer.num_slots * sizeof(struct cairn_signal),
				 c->peer.slots_rkey, 1);
	if (cairn_fhbn_host_post(q, &r, 1, NULL))
		failed(c, BY_HOST);
}

/* ---- for kernels ---- */

static int fhbn_channel_device(struct cairn_channel *base, struct cairn_device_channel *d)
{
	struct fhbn_channel *c = (struct fhbn_channel *)base;

#ifdef CONFIG_CUDA
	struct transport_fhbn_poster poster = {
		.qp = *cairn_fhbn_queue_view(c->queue[BY_KERNEL]), .slots = c->peer.slots,
		.slots_rkey = c->peer.slots_rkey,
	};

	CAIRN_TRY(failed(c, BY_KERNEL));
	CAIRN_TRY(transport_device_copy(base->t->options.gpu, c->poster, &poster, sizeof(poster)));
	c->kernels_put = 1;
#endif
	*d = (struct cairn_device_channel) {
		.kind = CAIRN_DEVICE_FHBN, .num_slots = base->t->options.num_slots,
		.depth = base->t->options.depth, .mine = c->slots, .poster = c->poster,
	};
	return 0;
}

static int fhbn_region_device(const struct cairn_region *r, struct cairn_device_region *d)
{
	*d = (struct cairn_device_region) {
		.addr = (uintptr_t)r->addr, .bytes = r->bytes, .key = ((const struct fhbn_region *)r)->lkey,
	};
	return 0;
}

static int fhbn_remote_device(const struct cairn_remote *base, struct cairn_device_region *d)
{
	const struct fhbn_remote *remote = (const struct fhbn_remote *)base;

	*d = (struct cairn_device_region) { .addr = remote->addr, .bytes = base->bytes, .key = remote->rkey };
	return 0;
}

#define FEATURES (CAIRN_TRANSPORT_HOST_MEMORY | CAIRN_TRANSPORT_DEVICE_PUT | CAIRN_TRANSPORT_PROCESSES | \
		  CAIRN_TRANSPORT_ONE_PROCESS | CAIRN_TRANSPORT_ONE_DEVICE | CAIRN_TRANSPORT_PEER_DEATH | \
		  CAIRN_TRANSPORT_CHECKS | CAIRN_TRANSPORT_ONE_SIDED)

static const struct transport_ops transport_fhbn_ops = {
	.name = "fhbn", .features = FEATURES,
	.transport_bytes = sizeof(struct fhbn), .region_bytes = sizeof(struct fhbn_region),
	.remote_bytes = sizeof(struct fhbn_remote), .channel_bytes = sizeof(struct fhbn_channel),
	.start = fhbn_start, .stop = fhbn_stop,
	.add_region = fhbn_add_region, .key = fhbn_key, .remove_region = fhbn_remove_region,
	.import = fhbn_import,
	.create = fhbn_create, .address = fhbn_address, .connect = fhbn_connect, .reset = fhbn_reset,
	.destroy = fhbn_destroy, .put = fhbn_put, .flush = fhbn_flush, .look = fhbn_look, .probe = fhbn_probe,
	.channel_device = fhbn_channel_device, .region_device = fhbn_region_device,
	.remote_device = fhbn_remote_device,
};

static int fhbn_open(const struct cairn_transport_options *o, struct cairn_transport **t)
{
	return transport_open(&transport_fhbn_ops, o, t);
}

const struct cairn_transport_table cairn_transport_fhbn = TRANSPORT_TABLE("fhbn", FEATURES, fhbn_open);
