// SPDX-License-Identifier: Apache-2.0
/*
 * transport_loop.c - both ends in one process, a carrier thread, and seeded faults
 *
 * The thread of a transport processes its channels' puts in windows. It cuts the payloads of several puts
 * into pieces, shuffles the pieces across the puts and delivers them one by one, some of them twice and some
 * torn (half first, the whole later). It sets a put's signal when the put's last piece and all earlier puts
 * have arrived. So everything that the contract leaves open can happen, and nothing that it forbids.
 *
 * options.faults: NAME=VALUE, separated by commas. In parentheses: range and default; otherwise 0:
 *   delay_us   delay of up to this long per piece      pieces    a payload is cut into this many (1..64; 4)
 *   window     most puts in flight (1..64; 8)          torn      percent of pieces that arrive torn first
 *   again      percent of pieces that arrive twice     lost_at   number (from 1) of the put that
 *   error_at   number of the put that fails with -EIO             finds no peer, counted per channel
 *
 * Ends find each other by number in a list of the process. The thread holds the list's lock while it delivers
 * a piece, so that memory cannot be freed during a copy.
 */
#include "rdma/transport/transport_impl.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_WINDOW	64
#define MAX_PIECES	64

struct faults {
	uint32_t delay_us, pieces, window, torn, again, lost_at, error_at;
};

struct loop {
	struct cairn_transport base;
	struct faults faults;
	uint64_t rng;
	pthread_t thread;
	int has_thread;
	atomic_int stop;
	/* protects the thread's list of channels; the thread holds it during a window */
	struct transport_work work;
	struct loop_channel *first;
};


struct loop_region {
	struct cairn_region base;
	uint64_t id;
	struct loop_region *next_of_all;
};

struct loop_remote {
	struct cairn_remote base;
	uint64_t id;
};

struct loop_put {
	const uint8_t *from;
	uint64_t region, offset, bytes, value, word;
	uint32_t slot, pieces_left;
};

struct loop_channel {
	struct cairn_channel base;
	uint64_t id, peer_id;		/* ids are never reused; 0: none */
	struct loop_channel *next_of_all, *next_of_loop;
	struct cairn_signal *slots;
	struct loop_put *ring;		/* [depth] */
	_Atomic uint64_t posted, done;
};

struct piece {
	uint32_t put;
	uint64_t offset, bytes;
	int first_half, wanted;		/* wanted: not a duplicate, so it counts towards the put */
};

static pthread_mutex_t all_lock = PTHREAD_MUTEX_INITIALIZER;
static struct loop_channel *all_channels;
static struct loop_region *all_regions;
static uint64_t last_id;

static int parse(struct faults *f, const char *text)
{
	static const struct {
		const char *name;
		size_t at;
		uint32_t max;
	} names[] = {
		{ "delay_us", offsetof(struct faults, delay_us), 1000000 },
		{ "pieces", offsetof(struct faults, pieces), MAX_PIECES },
		{ "window", offsetof(struct faults, window), MAX_WINDOW },
		{ "torn", offsetof(struct faults, torn), 100 },
		{ "again", offsetof(struct faults, again), 100 },
		{ "lost_at", offsetof(struct faults, lost_at), UINT32_MAX },
		{ "error_at", offsetof(struct faults, error_at), UINT32_MAX },
	};
	size_t i, n;

	while (text && *text) {
		unsigned long long v;
		char *end;

		n = strcspn(text, "=");
		for (i = 0; i < sizeof(names) / sizeof(names[0]); i++)
			if (strlen(names[i].name) == n && !strncmp(text, names[i].name, n))
				break;
		if (i == sizeof(names) / sizeof(names[0]) || text[n] != '=')
			return cairn_error(EINVAL, "faults: unknown fault '%.*s'", (int)n, text);
		v = strtoull(text + n + 1, &end, 10);
		if (end == text + n + 1 || (*end && *end != ',') || v > names[i].max)
			return cairn_error(EINVAL, "faults: %s: not a number of at most %u", names[i].name,
					   names[i].max);
		*(uint32_t *)((char *)f + names[i].at) = (uint32_t)v;
		text = *end ? end + 1 : end;
	}
	if (!f->pieces || !f->window)
		return cairn_error(EINVAL, "faults: %s: 0", f->pieces ? "window" : "pieces");
	return 0;
}

/* ---- delivery ---- */

static struct loop_channel *find_channel(uint64_t id)
{
	struct loop_channel *c;

	for (c = all_channels; c && c->id != id; c = c->next_of_all)
		;
	return c;
}

static struct loop_region *find_region(uint64_t id)
{
	struct loop_region *r;

	for (r = all_regions; r && r->id != id; r = r->next_of_all)
		;
	return r;
}

static struct loop_put *put_at(struct loop_channel *c, uint64_t index)
{
	return &c->ring[index & (c->base.t->options.depth - 1)];
}

/* Delivers a piece of put `index`; nonzero: the channel has failed. Checks the far end's key and bounds
 * each time. */
static int deliver(struct loop_channel *c, uint64_t index, const struct piece *p)
{
	struct loop_put *put = put_at(c, index);
	struct loop_region *r;
	uint64_t bytes = p->first_half ? p->bytes / 2 : p->bytes;
	int failed = 1;

	pthread_mutex_lock(&all_lock);
	r = find_region(put->region);
	if (!find_channel(c->peer_id))
		transport_fail(&c->base, ECONNRESET, "the peer is gone: put %llu was not answered",
			       (unsigned long long)index);
	else if (!r)
		transport_fail(&c->base, EACCES, "put %llu: the peer has no region with this key",
			       (unsigned long long)index);
	else if (put->offset > r->base.bytes || put->bytes > r->base.bytes - put->offset)
		transport_fail(&c->base, EACCES,
			       "put %llu: the peer refused bytes %llu..+%llu of a region of %llu",
			       (unsigned long long)index, (unsigned long long)put->offset,
			       (unsigned long long)put->bytes, (unsigned long long)r->base.bytes);
	else
		failed = 0;
	if (!failed)
		memcpy(r->base.addr + put->offset + p->offset, put->from + p->offset, bytes);
	pthread_mutex_unlock(&all_lock);
	return failed;
}

/* Sets the signals of puts whose pieces have all arrived, in order. Returns the first incomplete put. */
static uint64_t complete(struct loop_channel *c, uint64_t end)
{
	uint64_t index = atomic_load(&c->done);
	struct loop_channel *peer;

	while (index < end && !put_at(c, index)->pieces_left) {
		struct loop_put *put = put_at(c, index);

		pthread_mutex_lock(&all_lock);
		peer = find_channel(c->peer_id);
		if (peer && put->slot != CAIRN_NO_SIGNAL) {
			__atomic_store_n(&peer->slots[put->slot].word, put->word, __ATOMIC_RELAXED);
			__atomic_store_n(&peer->slots[put->slot].value, put->value, __ATOMIC_RELEASE);
		}
		pthread_mutex_unlock(&all_lock);
		if (!peer) {
			transport_fail(&c->base, ECONNRESET, "the peer is gone: put %llu was not answered",
				       (unsigned long long)index);
			break;
		}
		atomic_store_explicit(&c->done, ++index, memory_order_release);
	}
	return index;
}

static int chance(struct loop *l, uint32_t percent)
{
	return percent && transport_random(&l->rng) % 100 < percent;
}

static uint32_t cut(struct loop *l, struct loop_channel *c, uint64_t begin, uint64_t end,
		    struct piece *pieces)
{
	uint32_t n = 0, i, k, num;
	uint64_t index;

	for (index = begin; index < end; index++) {
		struct loop_put *put = put_at(c, index);
		uint64_t at = 0;

		num = put->bytes < l->faults.pieces ? (uint32_t)put->bytes : l->faults.pieces;
		put->pieces_left = num;
		for (i = 0; i < num; i++) {
			struct piece p = { (uint32_t)(index - begin), at, (put->bytes - at) / (num - i),
				0, 1 };

			at += p.bytes;
			pieces[n++] = p;
			p.wanted = 0;
			p.first_half = chance(l, l->faults.torn);
			if (p.first_half || chance(l, l->faults.again))
				pieces[n++] = p;
		}
	}
	for (i = n; i > 1; i--) {	/* Fisher-Yates shuffle */
		struct piece tmp = pieces[i - 1];

		k = (uint32_t)(transport_random(&l->rng) % i);
		pieces[i - 1] = pieces[k];
		pieces[k] = tmp;
	}
	return n;
}

static void nap(uint64_t us)
{
	struct timespec ts = { (time_t)(us / 1000000), (long)(us % 1000000) * 1000 };

	nanosleep(&ts, NULL);
}

/* Processes a window; returns 1 if there was work. Pieces of a put that is already complete are dropped. */
static int carry(struct loop *l, struct loop_channel *c, struct piece *pieces)
{
	uint64_t begin = atomic_load(&c->done), end = atomic_load_explicit(&c->posted, memory_order_acquire);
	uint32_t window = 1 + (uint32_t)(transport_random(&l->rng) % l->faults.window), n, i;

	if (begin == end || atomic_load(&c->base.error))
		return 0;
	if (end - begin > window)
		end = begin + window;
	n = cut(l, c, begin, end, pieces);
	complete(c, end);
	for (i = 0; i < n && !atomic_load(&c->base.error) && !atomic_load(&l->stop); i++) {
		uint64_t index = begin + pieces[i].put;

		if (l->faults.delay_us)
			nap(transport_random(&l->rng) % l->faults.delay_us);
		if (l->faults.lost_at && index + 1 >= l->faults.lost_at)
			transport_fail(&c->base, ECONNRESET, "the peer is gone: put %llu was not answered",
				       (unsigned long long)index);
		else if (l->faults.error_at && index + 1 >= l->faults.error_at)
			transport_fail(&c->base, EIO, "put %llu failed", (unsigned long long)index);
		else if (put_at(c, index)->pieces_left && !deliver(c, index, &pieces[i]) &&
			 pieces[i].wanted) {
			put_at(c, index)->pieces_left--;
			complete(c, end);
		}
	}
	return 1;
}

static void *carrier(void *arg)
{
	struct piece *pieces = malloc(2 * MAX_WINDOW * MAX_PIECES * sizeof(*pieces));
	struct loop *l = arg;
	uint32_t idle = 0;

	while (!atomic_load(&l->stop)) {
		struct loop_channel *c;
		int busy = 0;

		transport_work_yield(&l->work);
		pthread_mutex_lock(&l->work.lock);
		for (c = l->first; c && pieces; c = c->next_of_loop)
			busy |= carry(l, c, pieces);
		pthread_mutex_unlock(&l->work.lock);
		idle = busy ? 0 : idle + 1;
		transport_pause(idle);
	}
	free(pieces);
	return NULL;
}

/* ---- the back end ---- */

static int loop_start(struct cairn_transport *t)
{
	struct loop *l = (struct loop *)t;

	transport_work_init(&l->work);
	l->rng = t->options.seed;
	l->faults = (struct faults) { .pieces = 4, .window = 8 };
	CAIRN_TRY(parse(&l->faults, t->options.faults));
	if (pthread_create(&l->thread, NULL, carrier, l))
		return cairn_error(ENOMEM, "cannot create the carrier thread");
	l->has_thread = 1;
	return 0;
}

static void loop_stop(struct cairn_transport *t)
{
	struct loop *l = (struct loop *)t;

	atomic_store(&l->stop, 1);
	if (l->has_thread)
		pthread_join(l->thread, NULL);
	transport_work_destroy(&l->work);
}

static int loop_add_region(struct cairn_region *base)
{
	struct loop_region *r = (struct loop_region *)base;

	if (base->memory != CAIRN_MEMORY_HOST)
		return cairn_error(EOPNOTSUPP, "memory: the loop supports host memory only");
	pthread_mutex_lock(&all_lock);
	r->id = ++last_id;
	r->next_of_all = all_regions;
	all_regions = r;
	pthread_mutex_unlock(&all_lock);
	return 0;
}

static int loop_key(const struct cairn_region *base, void *key)
{
	const struct loop_region *r = (const struct loop_region *)base;
	uint64_t words[2] = { r->id, base->bytes };

	memcpy(key, words, sizeof(words));
	return 0;
}

static void loop_remove_region(struct cairn_region *base)
{
	struct loop_region *r = (struct loop_region *)base, **at;

	pthread_mutex_lock(&all_lock);
	for (at = &all_regions; *at && *at != r; at = &(*at)->next_of_all)
		;
	if (*at)
		*at = r->next_of_all;
	pthread_mutex_unlock(&all_lock);
}

static int loop_import(struct cairn_remote *base, const void *key)
{
	struct loop_remote *remote = (struct loop_remote *)base;
	uint64_t words[2];

	memcpy(words, key, sizeof(words));
	remote->id = words[0];
	base->bytes = words[1];
	return 0;
}

static void enter(struct loop_channel *c)
{
	pthread_mutex_lock(&all_lock);
	c->id = ++last_id;
	c->next_of_all = all_channels;
	all_channels = c;
	pthread_mutex_unlock(&all_lock);
}

static void leave(struct loop_channel *c)
{
	struct loop_channel **at;

	pthread_mutex_lock(&all_lock);
	for (at = &all_channels; *at && *at != c; at = &(*at)->next_of_all)
		;
	if (*at)
		*at = c->next_of_all;
	pthread_mutex_unlock(&all_lock);
}

static int loop_create(struct cairn_channel *base)
{
	struct loop_channel *c = (struct loop_channel *)base;
	struct loop *l = (struct loop *)base->t;

	c->slots = calloc(base->t->options.num_slots, sizeof(*c->slots));
	c->ring = calloc(base->t->options.depth, sizeof(*c->ring));
	if (!c->slots || !c->ring)
		return cairn_error(ENOMEM, "no memory for slots and ring");
	enter(c);
	transport_work_stop(&l->work);
	c->next_of_loop = l->first;
	l->first = c;
	transport_work_go(&l->work);
	return 0;
}

static void loop_destroy(struct cairn_channel *base)
{
	struct loop_channel *c = (struct loop_channel *)base, **at;
	struct loop *l = (struct loop *)base->t;

	transport_work_stop(&l->work);
	for (at = &l->first; *at && *at != c; at = &(*at)->next_of_loop)
		;
	if (*at)
		*at = c->next_of_loop;
	transport_work_go(&l->work);
	leave(c);
	free(c->slots);
	free(c->ring);
}

static int loop_address(struct cairn_channel *base, void *address)
{
	uint64_t words[2] = { ((struct loop_channel *)base)->id, base->t->options.num_slots };

	memcpy(address, words, sizeof(words));
	return 0;
}

static int loop_connect(struct cairn_channel *base, const void *address, uint64_t deadline)
{
	struct loop_channel *c = (struct loop_channel *)base;
	uint64_t words[2];
	int there;

	(void)deadline;
	memcpy(words, address, sizeof(words));
	if (words[1] != base->t->options.num_slots)
		return cairn_error(EINVAL, "num_slots: the peer has %llu, this end %u",
				   (unsigned long long)words[1], base->t->options.num_slots);
	pthread_mutex_lock(&all_lock);
	there = !!find_channel(words[0]);
	pthread_mutex_unlock(&all_lock);
	if (!there)
		return cairn_error(ECONNRESET, "this process has no channel with that address");
	c->peer_id = words[0];
	snprintf(base->peer, sizeof(base->peer), "loop channel id %llu", (unsigned long long)words[0]);
	return 0;
}

/* The channel gets a new id, so that late pieces sent to the old id are dropped. */
static int loop_reset(struct cairn_channel *base)
{
	struct loop_channel *c = (struct loop_channel *)base;
	struct loop *l = (struct loop *)base->t;

	transport_work_stop(&l->work);
	leave(c);
	memset(c->slots, 0, base->t->options.num_slots * sizeof(*c->slots));
	c->posted = c->done = 0;
	c->peer_id = 0;
	enter(c);
	transport_work_go(&l->work);
	return 0;
}

static int late(struct loop_channel *c, const char *what, uint64_t left)
{
	return cairn_error(ETIMEDOUT, "%s: channel %u: %llu puts to %s are still in flight", what,
			   c->base.number, (unsigned long long)left, c->base.peer);
}

static int loop_put(struct cairn_channel *base, const struct cairn_put *p, uint64_t deadline)
{
	struct loop_channel *c = (struct loop_channel *)base;
	uint64_t index = atomic_load(&c->posted);
	uint32_t round = 0;

	while (index - atomic_load_explicit(&c->done, memory_order_acquire) >= base->t->options.depth) {
		CAIRN_TRY(transport_error(base));
		if (transport_now() >= deadline)
			return late(c, "put", index - atomic_load(&c->done));
		transport_pause(round++);
	}
	*put_at(c, index) = (struct loop_put) {
		.from = p->bytes ? p->local->addr + p->local_offset : NULL,
		.region = p->bytes ? ((const struct loop_remote *)p->remote)->id : 0,
		.offset = p->remote_offset, .bytes = p->bytes,
		.value = p->value, .word = p->word, .slot = p->slot,
	};
	atomic_store_explicit(&c->posted, index + 1, memory_order_release);
	return 0;
}

static int loop_flush(struct cairn_channel *base, uint64_t deadline)
{
	struct loop_channel *c = (struct loop_channel *)base;
	uint64_t want = atomic_load(&c->posted);
	uint32_t round = 0;

	while (atomic_load_explicit(&c->done, memory_order_acquire) < want) {
		CAIRN_TRY(transport_error(base));
		if (transport_now() >= deadline)
			return late(c, "flush", want - atomic_load(&c->done));
		transport_pause(round++);
	}
	return 0;
}

static int loop_look(struct cairn_channel *base, uint32_t slot, struct cairn_signal *found)
{
	struct cairn_signal *s = &((struct loop_channel *)base)->slots[slot];

	found->value = __atomic_load_n(&s->value, __ATOMIC_ACQUIRE);
	found->word = __atomic_load_n(&s->word, __ATOMIC_RELAXED);
	return 0;
}

static void loop_probe(struct cairn_channel *base)
{
	struct loop_channel *c = (struct loop_channel *)base;
	int there;

	pthread_mutex_lock(&all_lock);
	there = !!find_channel(c->peer_id);
	pthread_mutex_unlock(&all_lock);
	if (!there)
		transport_fail(base, ECONNRESET, "the peer is gone: its end was closed");
}

#define FEATURES (CAIRN_TRANSPORT_HOST_MEMORY | CAIRN_TRANSPORT_ONE_PROCESS | CAIRN_TRANSPORT_PEER_DEATH | \
		  CAIRN_TRANSPORT_CHECKS | CAIRN_TRANSPORT_ONE_SIDED)

static const struct transport_ops loop_ops = {
	.name = "loop", .features = FEATURES,
	.transport_bytes = sizeof(struct loop), .region_bytes = sizeof(struct loop_region),
	.remote_bytes = sizeof(struct loop_remote), .channel_bytes = sizeof(struct loop_channel),
	.start = loop_start, .stop = loop_stop,
	.add_region = loop_add_region, .key = loop_key, .remove_region = loop_remove_region,
	.import = loop_import,
	.create = loop_create, .address = loop_address, .connect = loop_connect, .reset = loop_reset,
	.destroy = loop_destroy, .put = loop_put, .flush = loop_flush, .look = loop_look, .probe = loop_probe,
};

static int loop_open(const struct cairn_transport_options *o, struct cairn_transport **t)
{
	return transport_open(&loop_ops, o, t);
}

const struct cairn_transport_table cairn_transport_loop = TRANSPORT_TABLE("loop", FEATURES, loop_open);
