// SPDX-License-Identifier: Apache-2.0
/*
 * transport_stream.c - puts and waits in the order of a stream, and sums, for every back end (transport.h)
 *
 * With a GPU they are kernels of transport_stream.cu, for back ends whose peers' memory kernels can write.
 * Without one they are host puts and waits: rows are gathered in memory of the channel first, because a put
 * needs a registered source.
 */
#include <sched.h>
#include <stdlib.h>
#include <string.h>

#include "rdma/transport/transport_cuda.h"
#include "rdma/transport/transport_impl.h"
#include "rdma/transport/transport_stream.h"

#define PUT_MS		5000
#define MAX_UNITS	(1u << 30)	/* of a block, so that the kernel's indices never wrap */

static int check_rows(const struct cairn_stream_put *p, const struct cairn_stream_rows *r)
{
	const uint64_t size = p->remote ? p->remote->bytes : 0, rows = r->rows;

	if (!rows)
		return 0;
	if (!p->remote || !r->from)
		return cairn_error(EINVAL, "stream_put: %s: null pointer", r->from ? "remote" : "from");
	if (!r->bytes || (rows > 1 && (r->from_stride < r->bytes || r->to_stride < r->bytes)))
		return cairn_error(EINVAL, "stream_put: rows of %llu bytes, %llu and %llu bytes apart",
				   (unsigned long long)r->bytes, (unsigned long long)r->from_stride,
				   (unsigned long long)r->to_stride);
	if (r->bytes > size || r->to > size - r->bytes || r->bytes > MAX_UNITS / rows ||
	    (rows > 1 && r->to_stride > (size - r->bytes - r->to) / (rows - 1)))
		return cairn_error(EINVAL, "stream_put: %llu rows of %llu bytes from byte %llu on exceed a "
				   "region of %llu", (unsigned long long)rows, (unsigned long long)r->bytes,
				   (unsigned long long)r->to, (unsigned long long)size);
	return 0;
}

static int check(struct cairn_channel *c, const struct cairn_stream_put *p)
{
	if (!p)
		return cairn_error(EINVAL, "stream_put: null pointer");
	if (p->slot >= c->t->options.num_slots)
		return cairn_error(EINVAL, "stream_put: slot: %u of %u", p->slot, c->t->options.num_slots);
	if (p->remote && p->remote->t != c->t)
		return cairn_error(EINVAL, "stream_put: remote: is of another transport than the channel");
	for (int i = 0; i < CAIRN_STREAM_PARTS; i++)
		CAIRN_TRY(check_rows(p, &p->part[i]));
	return 0;
}

/* ---- with a GPU ---- */

#ifdef CONFIG_CUDA

/* Sets *in_graph to the lock, or to NULL if calls on this stream are not captured (transport.h). */
static int find_lock(struct cairn_stream_lock *lock, void *stream, struct cairn_stream_lock **in_graph)
{
	const int captured = lock ? transport_stream_captured(stream) : 0;

	*in_graph = captured > 0 ? lock : NULL;
	return captured < 0 ? captured : 0;
}

/* Fills in the channel's arguments, which are asked for once for each connection. */
static int for_kernels(struct cairn_channel *c)
{
	const struct transport_ops *ops = c->t->ops;

	if (!c->device.kind && ops->channel_device)
		CAIRN_TRY(ops->channel_device(c, &c->device));
	if (c->device.kind == CAIRN_DEVICE_NVLINK)
		return 0;
	c->device.kind = 0;
	return cairn_error(EOPNOTSUPP, "transport %s: no puts in the order of a stream", ops->name);
}

static struct transport_stream_part part_of(const struct cairn_stream_rows *r, uint64_t remote)
{
	const uint64_t to = remote + r->to, from = (uintptr_t)r->from;
	const uint64_t all = to | from | r->bytes | (r->rows > 1 ? r->to_stride | r->from_stride : 0);
	const uint32_t unit = all % 16 == 0 ? 16 : all % 4 == 0 ? 4 : 1;

	return (struct transport_stream_part){
		.from = from, .to = to, .from_stride = r->from_stride, .to_stride = r->to_stride,
		.row_units = (uint32_t)(r->bytes / unit), .rows = r->rows, .unit = unit,
	};
}

static int enqueue_put(struct cairn_channel *c, const struct cairn_stream_put *p, void *stream)
{
	struct transport_stream_args a = {
		.now = p->now, .value = p->value, .word = p->word, .slot = p->slot,
	};
	struct cairn_device_region remote = { 0 };

	CAIRN_TRY(for_kernels(c));
	CAIRN_TRY(find_lock(p->unlock, stream, &a.lock));
	if (p->remote)
		CAIRN_TRY(transport_remote_device(p->remote, &remote));
	a.c = c->device;
	a.link = c->link;
	for (int i = 0; i < CAIRN_STREAM_PARTS; i++)
		if (p->part[i].rows)
			a.part[i] = part_of(&p->part[i], remote.addr);
	return transport_stream_launch_put(&a, stream);
}

static int enqueue_wait(struct cairn_channel *c, const struct cairn_stream_wait *w, void *stream)
{
	struct transport_stream_args a = {
		.now = w->now, .ended = w->ended, .order = w->order, .value = w->value, .slot = w->slot,
		.timeout_ns = w->timeout_ms * 1000000ull,
	};

	CAIRN_TRY(for_kernels(c));
	CAIRN_TRY(find_lock(w->lock, stream, &a.lock));
	a.c = c->device;
	a.link = c->link;
	return transport_stream_launch_wait(&a, stream);
}

static int sum_words(struct cairn_transport *t, const void *addr, uint64_t bytes, uint64_t key,
		     uint64_t *sum)
{
	const size_t room = TRANSPORT_SUM_CTAS * sizeof(*t->partial);

	if (!t->partial)
		CAIRN_TRY(transport_host_alloc(t->options.gpu, room, (void **)&t->partial));
	CAIRN_TRY(transport_stream_sum(t->options.gpu, addr, bytes, key, t->partial));
	for (int i = 0; i < TRANSPORT_SUM_CTAS; i++)
		*sum += t->partial[i];
	return 0;
}

static int last_bytes(const struct cairn_transport *t, uint64_t *word, const void *from, uint64_t bytes)
{
	return transport_device_copy(t->options.gpu, word, from, bytes);
}

#else

static int sum_words(struct cairn_transport *t, const void *addr, uint64_t bytes, uint64_t key,
		     uint64_t *sum)
{
	(void)addr;
	(void)bytes;
	(void)key;
	(void)sum;
	return cairn_error(EOPNOTSUPP, "transport %s: this build has no CUDA", t->ops->name);
}

static int last_bytes(const struct cairn_transport *t, uint64_t *word, const void *from, uint64_t bytes)
{
	(void)word;
	return sum_words((struct cairn_transport *)t, from, bytes, 0, NULL);
}

static int enqueue_put(struct cairn_channel *c, const struct cairn_stream_put *p, void *stream)
{
	(void)p;
	(void)stream;
	return cairn_error(EOPNOTSUPP, "transport %s: this build has no CUDA", c->t->ops->name);
}

static int enqueue_wait(struct cairn_channel *c, const struct cairn_stream_wait *w, void *stream)
{
	(void)w;
	return enqueue_put(c, NULL, stream);
}

#endif

/* ---- without a GPU ---- */

void transport_stream_forget(struct cairn_channel *c)
{
	void *room = c->gathered ? c->gathered->addr : NULL;

	transport_release(c->gathered);
	free(room);
	c->gathered = NULL;
	c->device.kind = 0;
}

/* Waits until the rows of the last put have left their memory, and makes it large enough. */
static int make_room(struct cairn_channel *c, uint64_t bytes)
{
	void *room;
	int ret;

	if (c->gathered)
		CAIRN_TRY(transport_flush(c, PUT_MS));
	if (c->gathered && c->gathered->bytes >= bytes)
		return 0;
	transport_stream_forget(c);
	room = malloc(bytes);
	if (!room)
		return cairn_error(ENOMEM, "stream_put: no memory for %llu bytes", (unsigned long long)bytes);
	ret = transport_register(c->t, room, bytes, CAIRN_MEMORY_HOST, &c->gathered);
	if (ret)
		free(room);
	return ret;
}

/* The rows of a block that are put now. */
static uint32_t rows_now(const struct cairn_stream_put *p, int part)
{
	const uint32_t rows = p->part[part].rows;

	return p->now && p->now->rows < rows ? (uint32_t)p->now->rows : rows;
}

/* Puts a block, gathered from byte `at` on, in as few pieces as the other end's rows allow. */
static int put_rows(struct cairn_channel *c, const struct cairn_stream_put *p,
		    const struct cairn_stream_rows *r, uint32_t rows, uint64_t at)
{
	const uint32_t pieces = r->to_stride == r->bytes ? 1 : rows;
	const uint64_t bytes = r->bytes * (rows / pieces);

	for (uint32_t i = 0; i < rows; i++)
		memcpy(c->gathered->addr + at + i * r->bytes, (const char *)r->from + i * r->from_stride,
		       r->bytes);
	for (uint32_t i = 0; i < pieces; i++) {
		const struct cairn_put put = {
			.local = c->gathered, .local_offset = at + i * r->bytes, .remote = p->remote,
			.remote_offset = r->to + i * r->to_stride, .bytes = bytes, .slot = CAIRN_NO_SIGNAL,
		};

		CAIRN_TRY(transport_put(c, &put, PUT_MS));
	}
	return 0;
}

static int put_at_once(struct cairn_channel *c, const struct cairn_stream_put *p)
{
	const struct cairn_put signal = {
		.value = p->value + (p->now ? p->now->number : 0), .word = p->word, .slot = p->slot,
	};
	uint64_t bytes = 0, at = 0;

	if (p->unlock)
		__atomic_fetch_add(&p->unlock->serving, 1, __ATOMIC_RELEASE);
	for (int i = 0; i < CAIRN_STREAM_PARTS; i++)
		bytes += rows_now(p, i) * p->part[i].bytes;
	if (bytes)
		CAIRN_TRY(make_room(c, bytes));
	for (int i = 0; i < CAIRN_STREAM_PARTS; i++) {
		if (rows_now(p, i))
			CAIRN_TRY(put_rows(c, p, &p->part[i], rows_now(p, i), at));
		at += rows_now(p, i) * p->part[i].bytes;
	}
	return transport_put(c, &signal, PUT_MS);
}

/* Publishes this stream's turn in *ended, then waits until *order has reached the turn before this one. */
static int take_turn(struct cairn_channel *c, const struct cairn_stream_wait *w)
{
	const uint64_t end = transport_now() + w->timeout_ms * 1000000ull;

	if (w->ended)
		__atomic_store_n(w->ended, w->now->turn, __ATOMIC_RELEASE);
	while (w->order && __atomic_load_n(w->order, __ATOMIC_ACQUIRE) + 1 < w->now->turn) {
		CAIRN_TRY(transport_error(c));
		if (transport_now() > end)
			return -ETIMEDOUT;
		sched_yield();
	}
	return 0;
}

static int take_lock(struct cairn_channel *c, const struct cairn_stream_wait *w)
{
	const uint64_t end = transport_now() + w->timeout_ms * 1000000ull;
	uint64_t ticket;

	if (!w->lock)
		return 0;
	ticket = __atomic_fetch_add(&w->lock->next, 1, __ATOMIC_RELAXED);
	while (__atomic_load_n(&w->lock->serving, __ATOMIC_ACQUIRE) != ticket) {
		CAIRN_TRY(transport_error(c));
		if (transport_now() > end)
			return -ETIMEDOUT;
		sched_yield();
	}
	return 0;
}

static int wait_at_once(struct cairn_channel *c, const struct cairn_stream_wait *w)
{
	const uint64_t value = w->value + (w->now ? w->now->number : 0);
	int ret = take_turn(c, w);

	if (!ret && w->slot != CAIRN_NO_SIGNAL)
		ret = transport_wait(c, w->slot, value, w->timeout_ms, NULL);
	if (!ret)
		ret = take_lock(c, w);
	if (ret == -ETIMEDOUT)		/* what follows the wait must not run */
		transport_fail(c, ETIMEDOUT, "waited %u ms for slot %u", w->timeout_ms, w->slot);
	return ret;
}

/* ---- the interface ---- */

int transport_stream_put(struct cairn_channel *c, const struct cairn_stream_put *p, void *stream)
{
	CAIRN_TRY(transport_usable(c, "stream_put"));
	CAIRN_TRY(check(c, p));
	CAIRN_TRY(transport_stream_error(c));
	return c->t->options.gpu < 0 ? put_at_once(c, p) : enqueue_put(c, p, stream);
}

int transport_stream_wait(struct cairn_channel *c, const struct cairn_stream_wait *w, void *stream)
{
	CAIRN_TRY(transport_usable(c, "stream_wait"));
	if (!w || (!w->now && (w->ended || w->order)))
		return cairn_error(EINVAL, "stream_wait: %s: null pointer", w ? "now" : "w");
	if (w->slot >= c->t->options.num_slots && w->slot != CAIRN_NO_SIGNAL)
		return cairn_error(EINVAL, "stream_wait: slot: %u of %u", w->slot, c->t->options.num_slots);
	CAIRN_TRY(transport_stream_error(c));
	return c->t->options.gpu >= 0 ? enqueue_wait(c, w, stream) : wait_at_once(c, w);
}

int transport_stream_error(struct cairn_channel *c)
{
	const struct cairn_signal *failed = c ? c->device.failed : NULL;
	uint64_t error = 0;

	if (failed && c->device.kind)
		error = __atomic_load_n(&failed->value, __ATOMIC_ACQUIRE);
	if (error)
		transport_fail(c, (int)error, "a wait of a stream for slot %llu: %s",
			       (unsigned long long)failed->word, strerror((int)error));
	return transport_error(c);
}

int transport_stream_stop(struct cairn_channel *c)
{
	CAIRN_TRY(transport_usable(c, "stream_stop"));
	transport_fail(c, ECANCELED, "its streams were stopped");
	return c->t->options.gpu >= 0 && c->t->ops->stream_stop ? c->t->ops->stream_stop(c) : 0;
}

int transport_sum(struct cairn_transport *t, const void *addr, uint64_t bytes, uint64_t key, uint64_t *sum)
{
	const uint64_t num = bytes / 8, left = bytes % 8;
	const char *at = addr;
	uint64_t word = 0, all = 0;

	if (!t || !addr || !sum || (uintptr_t)addr % 8)
		return cairn_error(EINVAL, "sum: %s", t && addr && sum ? "addr is not a multiple of 8" :
				   "null pointer");
	if (t->options.gpu >= 0 && num)
		CAIRN_TRY(sum_words(t, addr, 8 * num, key, &all));
	for (uint64_t i = 0; t->options.gpu < 0 && i < num; i++) {
		memcpy(&word, at + 8 * i, 8);
		all += transport_sum_word(word, i, key);
	}
	word = 0;
	if (left && t->options.gpu >= 0)
		CAIRN_TRY(last_bytes(t, &word, at + 8 * num, left));
	else if (left)
		memcpy(&word, at + 8 * num, left);
	if (left)
		all += transport_sum_word(word, num, key);
	*sum = transport_mix(all ^ bytes);
	return 0;
}

void transport_sum_forget(struct cairn_transport *t)
{
	if (t->partial)
		transport_host_free(t->options.gpu, t->partial, 0);
	t->partial = NULL;
}
