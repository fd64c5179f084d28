// SPDX-License-Identifier: Apache-2.0
/* transport.c - the common functions of transport.h's table: objects, argument checks, errors, waits */
#include "rdma/transport/transport_impl.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define MAGIC		0x6e726163u	/* "carn" */
#define ADDRESS		1
#define KEY		2
#define DOZE_ROUND	10		/* rounds of polling before a waiter sleeps; see NOTES.md */
#define PROBE_NS	2000000		/* interval at which a waiter checks that its peer lives */

uint64_t transport_now(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

static uint64_t deadline_of(uint32_t timeout_ms)
{
	return transport_now() + timeout_ms * 1000000ull;
}

/* Hints to the core that this is a polling loop. */
static void spin_once(void)
{
#if defined(__x86_64__)
	__builtin_ia32_pause();
#elif defined(__aarch64__)
	__asm__ volatile("yield");
#endif
}

void transport_pause(uint32_t round)
{
	struct timespec ts = { .tv_nsec = 50000 };

	if (round < 200)
		spin_once();
	else if (round < 2000)
		sched_yield();
	else
		nanosleep(&ts, NULL);
}

void transport_work_init(struct transport_work *w)
{
	pthread_mutex_init(&w->lock, NULL);
	atomic_store(&w->visitors, 0);
}

void transport_work_destroy(struct transport_work *w)
{
	pthread_mutex_destroy(&w->lock);
}

void transport_work_stop(struct transport_work *w)
{
	atomic_fetch_add(&w->visitors, 1);
	pthread_mutex_lock(&w->lock);
	atomic_fetch_sub(&w->visitors, 1);
}

void transport_work_go(struct transport_work *w)
{
	pthread_mutex_unlock(&w->lock);
}

void transport_work_yield(struct transport_work *w)
{
	while (atomic_load(&w->visitors))
		sched_yield();
}

uint64_t transport_random(uint64_t *state)
{
	uint64_t z = (*state += 0x9e3779b97f4a7c15u);

	z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
	z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
	return z ^ (z >> 31);
}

static uint64_t hash(uint64_t h, const void *p, size_t bytes)
{
	const uint8_t *b = p;

	while (bytes--)
		h = (h ^ *b++) * 0x100000001b3u;
	return h;
}

/* ---- processes ---- */

static uint64_t start_of(uint64_t pid)
{
	char path[64], text[1024], *p;
	uint64_t start = 0;
	size_t n;
	FILE *f;
	int i;

	snprintf(path, sizeof(path), "/proc/%llu/stat", (unsigned long long)pid);
	f = fopen(path, "re");
	if (!f)
		return 0;
	n = fread(text, 1, sizeof(text) - 1, f);
	fclose(f);
	text[n] = 0;
	p = strrchr(text, ')');		/* the process name before it may contain any character */
	if (!p || p[1] != ' ' || p[2] == 'Z' || p[2] == 'X')
		return 0;		/* a zombie or dead process */
	for (i = 0; p && i < 20; i++)
		p = strchr(p + 1, ' ');	/* skip to field 22 */
	if (p)
		start = strtoull(p + 1, NULL, 10);
	return start;
}

static uint64_t host_of(void)
{
	char boot[64] = "";
	FILE *f = fopen("/proc/sys/kernel/random/boot_id", "re");
	struct stat st;
	uint64_t h;

	if (f && !fgets(boot, sizeof(boot), f))
		boot[0] = 0;
	if (f)
		fclose(f);
	h = hash(0xcbf29ce484222325u, boot, strlen(boot));
	if (!stat("/proc/self/ns/pid", &st))
		h = hash(h, &st.st_ino, sizeof(st.st_ino));
	return h;
}

void transport_identify(struct transport_identity *self)
{
	self->pid = (uint64_t)getpid();
	self->start = start_of(self->pid);
	self->host = host_of();
}

int transport_lives(const struct transport_identity *id)
{
	if (!id->start || id->host != host_of())
		return -1;
	return start_of(id->pid) == id->start;
}

/* ---- blobs ---- */

uint64_t transport_blob_check(const struct cairn_blob *b)
{
	struct cairn_blob copy = *b;

	copy.check = 0;
	return hash(0xcbf29ce484222325u, &copy, sizeof(copy));
}

static void seal(struct cairn_blob *b, uint32_t what, const char *kind)
{
	b->magic = MAGIC;
	b->what = what;
	snprintf(b->kind, sizeof(b->kind), "%s", kind);
	b->check = transport_blob_check(b);
}

static int open_blob(const struct cairn_blob *b, uint32_t what, const char *kind)
{
	const char *name = what == KEY ? "key" : "peer's address";

	if (!b)
		return cairn_error(EINVAL, "%s: null", name);
	if (b->magic != MAGIC)
		return cairn_error(EINVAL, "%s: magic: 0x%08x, not 0x%08x: not a transport's blob", name,
				   b->magic,
				   MAGIC);
	if (b->check != transport_blob_check(b))
		return cairn_error(EINVAL, "%s: check: the blob is damaged", name);
	if (b->what != what)
		return cairn_error(EINVAL, "%s: what: this blob is %s", name,
				   b->what == KEY ? "a key" : "an address");
	if (strcmp(b->kind, kind))
		return cairn_error(EINVAL, "%s: kind: made by back end '%.15s', not '%s'", name, b->kind,
				   kind);
	return 0;
}

/* ---- a transport and its lists ---- */

static int check_options(const struct cairn_transport_options *o)
{
	if (!o || o->size != sizeof(*o))
		return cairn_error(EINVAL, "options: size: %zu, not %zu", o ? o->size : 0, sizeof(*o));
	if ((o->depth & (o->depth - 1)) || o->depth > CAIRN_MAX_DEPTH || o->depth == 1)
		return cairn_error(EINVAL, "options: depth: %u is not a power of two in 2..%u", o->depth,
				   CAIRN_MAX_DEPTH);
	if (o->num_slots > CAIRN_MAX_SLOTS)
		return cairn_error(EINVAL, "options: num_slots: %u is more than %u", o->num_slots,
				   CAIRN_MAX_SLOTS);
	return 0;
}

int transport_open(const struct transport_ops *ops, const struct cairn_transport_options *o,
		   struct cairn_transport **out)
{
	struct cairn_transport *t;
	int ret;

	if (!out)
		return cairn_error(EINVAL, "open: null pointer");
	CAIRN_TRY(check_options(o));
	t = calloc(1, ops->transport_bytes);
	if (!t)
		return cairn_error(ENOMEM, "open: cannot allocate %zu bytes", ops->transport_bytes);
	t->ops = ops;
	t->options = *o;
	if (!t->options.depth)
		t->options.depth = 1024;
	if (!t->options.num_slots)
		t->options.num_slots = 64;
	pthread_mutex_init(&t->lock, NULL);
	ret = ops->start(t);
	if (ret) {
		if (ops->stop)
			ops->stop(t);
		pthread_mutex_destroy(&t->lock);
		free(t);
		return cairn_error_prefix(ret, "transport %s", ops->name);
	}
	*out = t;
	return 0;
}

void transport_close(struct cairn_transport *t)
{
	if (!t)
		return;
	while (t->channels)
		transport_destroy(t->channels);
	while (t->remotes)
		transport_drop(t->remotes);
	while (t->regions)
		transport_release(t->regions);
	if (t->ops->stop)
		t->ops->stop(t);
	transport_sum_forget(t);
	pthread_mutex_destroy(&t->lock);
	free(t);
}

/* Objects of all three kinds are linked in lists by their second member. */
#define LINK(head, obj) do {						\
		pthread_mutex_lock(&(obj)->t->lock);			\
		(obj)->next = (head);					\
		(head) = (obj);						\
		pthread_mutex_unlock(&(obj)->t->lock);			\
	} while (0)
#define UNLINK(head, obj) do {						\
		__typeof__(&(head)) at_ = &(head);			\
		pthread_mutex_lock(&(obj)->t->lock);			\
		while (*at_ && *at_ != (obj))				\
			at_ = &(*at_)->next;				\
		if (*at_)						\
			*at_ = (obj)->next;				\
		pthread_mutex_unlock(&(obj)->t->lock);			\
	} while (0)

int transport_register(struct cairn_transport *t, void *addr, uint64_t bytes, int memory,
		       struct cairn_region **out)
{
	struct cairn_region *r;
	int ret;

	if (!t || !addr || !out)
		return cairn_error(EINVAL, "region_register: null pointer");
	if (!bytes || bytes > UINT64_MAX - (uintptr_t)addr)
		return cairn_error(EINVAL, "region_register: bytes: %llu", (unsigned long long)bytes);
	if (memory != CAIRN_MEMORY_HOST && memory != CAIRN_MEMORY_DEVICE)
		return cairn_error(EINVAL, "region_register: memory: %d is neither host nor device", memory);
	r = calloc(1, t->ops->region_bytes);
	if (!r)
		return cairn_error(ENOMEM, "region_register: no memory");
	r->t = t;
	r->addr = addr;
	r->bytes = bytes;
	r->memory = memory;
	ret = t->ops->add_region(r);
	if (ret) {
		free(r);
		return cairn_error_prefix(ret, "region_register");
	}
	LINK(t->regions, r);
	*out = r;
	return 0;
}

int transport_key(const struct cairn_region *r, struct cairn_blob *key)
{
	struct cairn_blob b = { 0 };

	if (!r || !key)
		return cairn_error(EINVAL, "region_key: null pointer");
	CAIRN_TRY(r->t->ops->key(r, b.bytes));
	seal(&b, KEY, r->t->ops->name);
	*key = b;
	return 0;
}

void transport_release(struct cairn_region *r)
{
	if (!r)
		return;
	UNLINK(r->t->regions, r);
	if (r->t->ops->remove_region)
		r->t->ops->remove_region(r);
	free(r);
}

int transport_import(struct cairn_transport *t, const struct cairn_blob *key, struct cairn_remote **out)
{
	struct cairn_remote *remote;
	int ret;

	if (!t || !out)
		return cairn_error(EINVAL, "remote_import: null pointer");
	CAIRN_TRY(open_blob(key, KEY, t->ops->name));
	remote = calloc(1, t->ops->remote_bytes);
	if (!remote)
		return cairn_error(ENOMEM, "remote_import: no memory");
	remote->t = t;
	ret = t->ops->import(remote, key->bytes);
	if (ret) {
		free(remote);
		return cairn_error_prefix(ret, "remote_import");
	}
	LINK(t->remotes, remote);
	*out = remote;
	return 0;
}

void transport_drop(struct cairn_remote *remote)
{
	if (!remote)
		return;
	UNLINK(remote->t->remotes, remote);
	if (remote->t->ops->drop)
		remote->t->ops->drop(remote);
	free(remote);
}

/* ---- channels ---- */

int transport_channel(struct cairn_transport *t, struct cairn_channel **out)
{
	struct cairn_channel *c;
	int ret;

	if (!t || !out)
		return cairn_error(EINVAL, "channel_create: null pointer");
	c = calloc(1, t->ops->channel_bytes);
	if (!c)
		return cairn_error(ENOMEM, "channel_create: no memory");
	c->t = t;
	pthread_mutex_lock(&t->lock);
	c->number = t->num_created++;
	pthread_mutex_unlock(&t->lock);
	snprintf(c->peer, sizeof(c->peer), "no peer");
	ret = t->ops->create(c);
	if (ret) {
		t->ops->destroy(c);
		free(c);
		return cairn_error_prefix(ret, "channel_create");
	}
	LINK(t->channels, c);
	*out = c;
	return 0;
}

void transport_destroy(struct cairn_channel *c)
{
	if (!c)
		return;
	UNLINK(c->t->channels, c);
	c->t->ops->destroy(c);
	transport_stream_forget(c);
	free(c);
}

int transport_address(struct cairn_channel *c, struct cairn_blob *address)
{
	struct cairn_blob b = { 0 };

	if (!c || !address)
		return cairn_error(EINVAL, "channel_address: null pointer");
	CAIRN_TRY(c->t->ops->address(c, b.bytes));
	seal(&b, ADDRESS, c->t->ops->name);
	*address = b;
	return 0;
}

int transport_connect(struct cairn_channel *c, const struct cairn_blob *peer, uint32_t timeout_ms)
{
	int ret;

	if (!c)
		return cairn_error(EINVAL, "channel_connect: null pointer");
	if (c->connected)
		return cairn_error(EINVAL, "channel %u is connected to %s already: reset it first", c->number,
				   c->peer);
	CAIRN_TRY(open_blob(peer, ADDRESS, c->t->ops->name));
	ret = c->t->ops->connect(c, peer->bytes, deadline_of(timeout_ms));
	if (ret)
		return cairn_error_prefix(ret, "channel %u: connect", c->number);
	atomic_store(&c->connected, 1);
	return 0;
}

int transport_reset(struct cairn_channel *c)
{
	int ret;

	if (!c)
		return cairn_error(EINVAL, "channel_reset: null pointer");
	atomic_store(&c->connected, 0);
	ret = c->t->ops->reset(c);
	if (ret)
		return cairn_error_prefix(ret, "channel %u: reset", c->number);
	transport_stream_forget(c);
	atomic_store(&c->error, 0);
	snprintf(c->peer, sizeof(c->peer), "no peer");
	return 0;
}

void transport_fail(struct cairn_channel *c, int err, const char *fmt, ...)
{
	static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
	va_list ap;
	int n;

	pthread_mutex_lock(&lock);
	if (!atomic_load(&c->error)) {
		n = snprintf(c->error_text, sizeof(c->error_text), "channel %u to %s: ", c->number, c->peer);
		va_start(ap, fmt);
		vsnprintf(c->error_text + n, sizeof(c->error_text) - (size_t)n, fmt, ap);
		va_end(ap);
		atomic_store(&c->error, err);
	}
	pthread_mutex_unlock(&lock);
}

int transport_error(struct cairn_channel *c)
{
	int err;

	if (!c)
		return cairn_error(EINVAL, "channel_error: null pointer");
	err = atomic_load(&c->error);
	return err ? cairn_error(err, "%s", c->error_text) : 0;
}

int transport_usable(struct cairn_channel *c, const char *what)
{
	if (!c)
		return cairn_error(EINVAL, "%s: channel: null", what);
	if (!atomic_load(&c->connected))
		return cairn_error(EINVAL, "%s: channel %u is not connected", what, c->number);
	return 0;
}

static int within(const char *what, uint64_t offset, uint64_t bytes, uint64_t size)
{
	if (offset > size || bytes > size - offset)
		return cairn_error(EINVAL, "put: %s: bytes %llu..+%llu exceed a region of %llu", what,
				   (unsigned long long)offset, (unsigned long long)bytes,
				   (unsigned long long)size);
	return 0;
}

static int check_put(const struct cairn_channel *c, const struct cairn_put *p)
{
	if (!p)
		return cairn_error(EINVAL, "put: null pointer");
	if (p->slot != CAIRN_NO_SIGNAL && p->slot >= c->t->options.num_slots)
		return cairn_error(EINVAL, "put: slot: %u of %u", p->slot, c->t->options.num_slots);
	if (!p->bytes)
		return p->slot != CAIRN_NO_SIGNAL ? 0 :
			cairn_error(EINVAL, "put: neither payload nor signal");
	if (!p->local || !p->remote)
		return cairn_error(EINVAL, "put: %s: null, with %llu bytes to move",
				   p->local ? "remote" : "local",
				   (unsigned long long)p->bytes);
	if (p->local->t != c->t || p->remote->t != c->t)
		return cairn_error(EINVAL, "put: %s: belongs to another transport than the channel",
				   p->local->t != c->t ? "local" : "remote");
	CAIRN_TRY(within("local_offset", p->local_offset, p->bytes, p->local->bytes));
	return within("remote_offset", p->remote_offset, p->bytes, p->remote->bytes);
}

int transport_put(struct cairn_channel *c, const struct cairn_put *p, uint32_t timeout_ms)
{
	CAIRN_TRY(transport_usable(c, "put"));
	CAIRN_TRY(check_put(c, p));
	CAIRN_TRY(transport_error(c));
	return c->t->ops->put(c, p, deadline_of(timeout_ms));
}

int transport_flush(struct cairn_channel *c, uint32_t timeout_ms)
{
	CAIRN_TRY(transport_usable(c, "flush"));
	CAIRN_TRY(transport_error(c));
	return c->t->ops->flush(c, deadline_of(timeout_ms));
}

int transport_wait(struct cairn_channel *c, uint32_t slot, uint64_t value, uint32_t timeout_ms,
		   struct cairn_signal *found)
{
	uint64_t deadline, now, probed;
	struct cairn_signal s;
	uint32_t round = 0;

	CAIRN_TRY(transport_usable(c, "wait"));
	if (slot >= c->t->options.num_slots)
		return cairn_error(EINVAL, "wait: slot: %u of %u", slot, c->t->options.num_slots);
	probed = transport_now();
	deadline = probed + timeout_ms * 1000000ull;
	for (;;) {
		int err = atomic_load(&c->error);

		/* Read the error before the slot, so that a signal that arrived before the error still
		 * counts. */
		CAIRN_TRY(c->t->ops->look(c, slot, &s));
		if ((int64_t)(s.value - value) >= 0)
			break;
		if (err)
			return transport_error(c);
		now = transport_now();
		if (now - probed >= PROBE_NS || now >= deadline) {
			if (c->t->ops->probe)
				c->t->ops->probe(c);
			probed = now;
		}
		if (now >= deadline && !atomic_load(&c->error))
			return cairn_error(ETIMEDOUT,
					   "channel %u: waited %u ms for %s to set slot %u to %llu, "
					   "it is %llu", c->number, timeout_ms, c->peer, slot,
					   (unsigned long long)value,
					   (unsigned long long)s.value);
		if (c->t->ops->doze && round >= DOZE_ROUND)
			c->t->ops->doze(c, slot, s.value, deadline);
		else
			transport_pause(round++);
	}
	if (found)
		*found = s;
	return 0;
}

/* ---- for kernels ---- */

static int no_kernels(const struct cairn_transport *t)
{
	return cairn_error(EOPNOTSUPP, "transport %s: %s", t->ops->name,
			   t->ops->channel_device ? "opened without a GPU (options.gpu)" :
			   "this back end does not support puts by kernels");
}

int transport_channel_device(struct cairn_channel *c, struct cairn_device_channel *d)
{
	CAIRN_TRY(transport_usable(c, "channel_device"));
	if (!d)
		return cairn_error(EINVAL, "channel_device: null pointer");
	if (!c->t->ops->channel_device || c->t->options.gpu < 0)
		return no_kernels(c->t);
	if (transport_is_paced(&c->link.pace))
		return cairn_error(EOPNOTSUPP, "channel_device: a pace (transport_pace.h) holds for puts and "
				   "waits in the order of a stream, not for those of other kernels");
	return c->t->ops->channel_device(c, d);
}

int transport_region_device(const struct cairn_region *r, struct cairn_device_region *d)
{
	if (!r || !d)
		return cairn_error(EINVAL, "region_device: null pointer");
	if (!r->t->ops->region_device || r->t->options.gpu < 0)
		return no_kernels(r->t);
	return r->t->ops->region_device(r, d);
}

int transport_remote_device(const struct cairn_remote *remote, struct cairn_device_region *d)
{
	if (!remote || !d)
		return cairn_error(EINVAL, "remote_device: null pointer");
	if (!remote->t->ops->remote_device || remote->t->options.gpu < 0)
		return no_kernels(remote->t);
	return remote->t->ops->remote_device(remote, d);
}
