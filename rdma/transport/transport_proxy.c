// SPDX-License-Identifier: Apache-2.0
/*
 * transport_proxy.c - the thread that posts a queue's descriptors, and the host functions that write them
 *
 * For each channel, `taken` descriptors have been posted in full, and `bytes_at` bytes of the next one. A
 * request's wr_id says what its completion retires: descriptor index << 9 | last << 8 | requests since the
 * previous signalled one.
 */
#include <string.h>

#include "rdma/transport/transport_cuda.h"
#include "rdma/transport/transport_queue.h"
#include "rdma/transport/transport_verbs.h"

#define WR_LAST		(1u << 8)
#define WR_PROBE	UINT64_MAX
#define BATCH		16
#define PROBE_EVERY_NS	20000000

static void fail(struct verbs_channel *c, int err, const char *what, uint64_t index, const char *status)
{
	transport_fail(&c->base, err, "%s%s %llu: %s", err == ECONNRESET ? "the peer is gone: " : "", what,
		       (unsigned long long)index, status);
	atomic_store_explicit(&c->done[1], (uint64_t)err, memory_order_release);
}

static int errno_of(enum ibv_wc_status status)
{
	switch (status) {
	case IBV_WC_RETRY_EXC_ERR: case IBV_WC_RNR_RETRY_EXC_ERR: case IBV_WC_REM_ABORT_ERR:
		return ECONNRESET;
	case IBV_WC_REM_ACCESS_ERR: case IBV_WC_REM_INV_REQ_ERR:
		return EACCES;
	default:
		return EIO;
	}
}

static int collect(struct verbs_channel *c)
{
	const struct verbs *v = (const struct verbs *)c->base.t;
	struct ibv_wc wc[BATCH];
	int n = c->cq->context->ops.poll_cq(c->cq, BATCH, wc), i;

	for (i = 0; i < n; i++) {
		uint64_t id = wc[i].wr_id;

		if (wc[i].status) {
			fail(c, errno_of(wc[i].status), id == WR_PROBE ? "probe" : "put",
			     id == WR_PROBE ? 0 : id >> 9, v->lib->wc_status_str(wc[i].status));
			return 1;
		}
		if (id == WR_PROBE) {
			c->requests--;
			atomic_store(&c->probe, 0);
			continue;
		}
		c->requests -= (uint32_t)id & 0xff;
		if (id & WR_LAST)
			atomic_store_explicit(&c->done[0], (id >> 9) + 1, memory_order_release);
	}
	if (n < 0)
		fail(c, EIO, "put", c->done[0], "ibv_poll_cq failed");
	return n != 0;
}

struct list {
	struct ibv_send_wr wr[3];
	struct ibv_sge sge[3];
	uint64_t bytes[3];			/* data sent inline */
	int num;
};

static void add(struct list *l, uint64_t to, uint32_t rkey, uint64_t from, uint32_t bytes, uint32_t lkey)
{
	struct ibv_send_wr *wr = &l->wr[l->num];

	l->sge[l->num] = (struct ibv_sge) { from, bytes, lkey };
	memset(wr, 0, sizeof(*wr));
	wr->sg_list = &l->sge[l->num];
	wr->num_sge = 1;
	wr->opcode = IBV_WR_RDMA_WRITE;
	wr->wr.rdma.remote_addr = to;
	wr->wr.rdma.rkey = rkey;
	if (l->num)
		l->wr[l->num - 1].next = wr;
	l->num++;
}

static void add_inline(struct list *l, uint64_t to, uint32_t rkey, uint64_t word)
{
	l->bytes[l->num] = word;
	add(l, to, rkey, (uintptr_t)&l->bytes[l->num], sizeof(word), 0);
	l->wr[l->num - 1].send_flags = IBV_SEND_INLINE;
}

static int post(struct verbs_channel *c, struct list *l, uint64_t wr_id)
{
	struct ibv_send_wr *bad, *last = &l->wr[l->num - 1];
	int ret;

	c->unsignalled += (uint32_t)l->num;
	c->requests += (uint32_t)l->num;
	last->send_flags |= IBV_SEND_SIGNALED;
	last->wr_id = wr_id == WR_PROBE ? wr_id : wr_id | c->unsignalled;
	c->unsignalled = 0;
	ret = c->qp->context->ops.post_send(c->qp, l->wr, &bad);
	if (ret)
		fail(c, EIO, "put", c->taken, strerror(ret));
	return ret;
}

/* Posts the next message of this descriptor, with the signal after the last one. */
static void post_some(struct verbs_channel *c, const struct queue_entry *e)
{
	const struct verbs *v = (const struct verbs *)c->base.t;
	uint64_t left = e->bytes - c->bytes_at, n = left < v->max_message ? left : v->max_message;
	uint64_t slot = c->peer.slots + e->slot * sizeof(struct cairn_signal);
	struct list l = { .num = 0 };
	int last = n == left;

	if (n)
		add(&l, e->remote + c->bytes_at, e->rkey, e->local + c->bytes_at, (uint32_t)n, e->lkey);
	if (last && e->slot != QUEUE_NO_SLOT) {
		if (c->words[e->slot] != e->word)
			add_inline(&l, slot + offsetof(struct cairn_signal, word), c->peer.slots_rkey,
				   e->word);
		c->words[e->slot] = e->word;
		add_inline(&l, slot + offsetof(struct cairn_signal, value), c->peer.slots_rkey, e->value);
	}
	if (post(c, &l, c->taken << 9 | (last ? WR_LAST : 0)))
		return;
	c->bytes_at = last ? 0 : c->bytes_at + n;
	c->taken += (unsigned)last;
}

static int take(struct verbs_channel *c)
{
	uint32_t depth = c->base.t->options.depth;
	const uint64_t *at = c->queue + (c->taken & (depth - 1)) * QUEUE_WORDS;
	uint64_t w[QUEUE_WORDS];
	struct queue_entry e;
	int i, there;

	if (c->requests + 3 > c->max_requests)
		return 0;
	for (i = QUEUE_WORDS - 1; i >= 0; i--) {
		w[i] = __atomic_load_n(&at[i], __ATOMIC_ACQUIRE);
		if ((w[i] ^ queue_phase(c->taken, depth)) >> 63)
			return 0;
	}
	there = queue_unpack(w, c->taken, depth, &e);
	if (there != 1 || (e.slot != QUEUE_NO_SLOT && e.slot >= c->base.t->options.num_slots) ||
	    (!e.bytes && e.slot == QUEUE_NO_SLOT))
		fail(c, EIO, "put", c->taken, "its descriptor is malformed");
	else
		post_some(c, &e);
	return 1;
}

static void post_probe(struct verbs_channel *c)
{
	uint64_t pad = c->peer.slots + c->peer.num_slots * sizeof(struct cairn_signal);
	struct list l = { .num = 0 };
	int asked = 1;

	if (c->requests + 1 > c->max_requests || !atomic_compare_exchange_strong(&c->probe, &asked, 2))
		return;
	add_inline(&l, pad, c->peer.slots_rkey, 1);
	post(c, &l, WR_PROBE);
}

static void *proxy(void *arg)
{
	struct verbs *v = arg;
	uint32_t idle = 0;

	while (!atomic_load(&v->stop)) {
		struct verbs_channel *c;
		int busy = 0, n;

		transport_work_yield(&v->work);
		pthread_mutex_lock(&v->work.lock);
		for (c = v->first; c; c = c->next_of_all) {
			if (!atomic_load(&c->base.connected) || atomic_load(&c->base.error))
				continue;
			if (c->requests)
				busy |= collect(c);
			for (n = 0; n < BATCH && !atomic_load(&c->base.error) && take(c); n++)
				busy = 1;
			if (atomic_load(&c->probe) == 1 && !atomic_load(&c->base.error))
				post_probe(c);
		}
		pthread_mutex_unlock(&v->work.lock);
		idle = busy ? 0 : idle + 1;
		transport_pause(idle);
	}
	return NULL;
}

int verbs_proxy_start(struct verbs *v)
{
	if (pthread_create(&v->thread, NULL, proxy, v))
		return cairn_error(ENOMEM, "cannot create the proxy thread");
	v->has_thread = 1;
	return 0;
}

void verbs_proxy_stop(struct verbs *v)
{
	atomic_store(&v->stop, 1);
	if (v->has_thread)
		pthread_join(v->thread, NULL);
}

/* ---- the host's side ---- */

static int fetch_posted(struct verbs_channel *c)
{
#ifdef CONFIG_CUDA
	uint64_t next;

	if (!c->kernels_put)
		return 0;
	CAIRN_TRY(transport_device_copy(c->base.t->options.gpu, &next, c->next, sizeof(next)));
	c->posted = next;
	c->kernels_put = 0;
#else
	(void)c;
#endif
	return 0;
}

/* Waits until at most `left` descriptors are in flight. */
static int drain(struct verbs_channel *c, const char *what, uint64_t left, uint64_t deadline)
{
	uint32_t round = 0;
	uint64_t under_way;

	for (;;) {
		under_way = c->posted - atomic_load_explicit(&c->done[0], memory_order_acquire);
		if (under_way <= left)
			return 0;
		CAIRN_TRY(transport_error(&c->base));
		if (transport_now() >= deadline)
			return cairn_error(ETIMEDOUT,
					   "%s: channel %u: %llu puts to %s are still in flight", what,
					   c->base.number, (unsigned long long)under_way, c->base.peer);
		transport_pause(round++);
	}
}

int verbs_put(struct cairn_channel *base, const struct cairn_put *p, uint64_t deadline)
{
	struct verbs_channel *c = (struct verbs_channel *)base;
	const struct verbs_region *local = (const struct verbs_region *)p->local;
	const struct verbs_remote *remote = (const struct verbs_remote *)p->remote;
	struct queue_entry e = {
		.bytes = p->bytes, .value = p->value, .word = p->word, .op = QUEUE_PUT,
		.slot = p->slot == CAIRN_NO_SIGNAL ? QUEUE_NO_SLOT : p->slot,
	};
	uint64_t w[QUEUE_WORDS], *at;
	int i;

	if (p->bytes) {
		e.local = (uintptr_t)local->base.addr + p->local_offset;
		e.lkey = local->mr->lkey;
		e.remote = remote->addr + p->remote_offset;
		e.rkey = remote->rkey;
	}
	CAIRN_TRY(fetch_posted(c));
	CAIRN_TRY(drain(c, "put", base->t->options.depth - 1, deadline));
	queue_pack(&e, c->posted, base->t->options.depth, w);
	at = c->queue + (c->posted & (base->t->options.depth - 1)) * QUEUE_WORDS;
	for (i = 0; i < QUEUE_WORDS; i++)
		__atomic_store_n(&at[i], w[i], __ATOMIC_RELEASE);
	c->posted++;
	return 0;
}

int verbs_flush(struct cairn_channel *base, uint64_t deadline)
{
	struct verbs_channel *c = (struct verbs_channel *)base;

	CAIRN_TRY(fetch_posted(c));
	return drain(c, "flush", 0, deadline);
}

/* Writes a word into the peer's spare slot. Its acknowledgement proves that the peer lives. */
void verbs_probe(struct cairn_channel *base)
{
	struct verbs_channel *c = (struct verbs_channel *)base;
	uint64_t now = transport_now();
	int none = 0;

	if (now - c->probed < PROBE_EVERY_NS)
		return;
	c->probed = now;
	atomic_compare_exchange_strong(&c->probe, &none, 1);
}
