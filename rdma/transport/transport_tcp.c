// SPDX-License-Identifier: Apache-2.0
/*
 * transport_tcp.c - the tcp back end: regions, channels, puts; transport_tcp_net.c has the thread
 *
 * put() writes its frame and payload to the socket itself, straight from the source, as far as the socket
 * takes them; the network thread sends the rest. The receiver acknowledges only puts that ask for it: one in
 * every quarter of the ring, and the last one before a flush. So a small put costs one send and one receive.
 *
 * options.device: the numeric IPv4 or IPv6 address of this host at which the transport listens, and which its
 * peers dial (127.0.0.1). The port is chosen by the system. Payloads are not encrypted: addresses and keys
 * must be exchanged over a channel that strangers cannot read, and so must the data if it is secret.
 */
#include "rdma/transport/transport_tcp.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#define POLLS		10		/* rounds of polling before a sleep, as of a wait */
#define PUT_BUDGET	(4u << 20)	/* bytes that a put sends itself, to hold out_lock only briefly */

union address {
	struct sockaddr any;
	struct sockaddr_in v4;
	struct sockaddr_in6 v6;
};

static socklen_t unpack(const struct tcp_address *a, union address *to)
{
	memset(to, 0, sizeof(*to));
	if (a->is_ipv6) {
		to->v6 = (struct sockaddr_in6) { .sin6_family = AF_INET6, .sin6_port = htons(a->port) };
		memcpy(&to->v6.sin6_addr, a->ip, 16);
		return sizeof(to->v6);
	}
	to->v4 = (struct sockaddr_in) { .sin_family = AF_INET, .sin_port = htons(a->port) };
	memcpy(&to->v4.sin_addr, a->ip, 4);
	return sizeof(to->v4);
}

static const char *text_of(const struct tcp_address *a, char text[64])
{
	char ip[INET6_ADDRSTRLEN] = "?";

	inet_ntop(a->is_ipv6 ? AF_INET6 : AF_INET, a->ip, ip, sizeof(ip));
	snprintf(text, 64, a->is_ipv6 ? "[%s]:%u" : "%s:%u", ip, a->port);
	return text;
}

/* ---- the transport ---- */

static int listen_at(struct tcp *n)
{
	const char *want = n->base.options.device ? n->base.options.device : "127.0.0.1";
	static const uint8_t any[16];
	union address at;
	socklen_t len;

	n->here.version = TCP_VERSION;
	n->here.is_ipv6 = inet_pton(AF_INET6, want, n->here.ip) == 1;
	if (!n->here.is_ipv6 && inet_pton(AF_INET, want, n->here.ip) != 1)
		return cairn_error(EINVAL, "options: device: '%s' is no numeric IPv4 or IPv6 address", want);
	if (!memcmp(n->here.ip, any, n->here.is_ipv6 ? 16 : 4))
		return cairn_error(EINVAL, "options: device: '%s': peers cannot dial this address", want);
	len = unpack(&n->here, &at);
	n->listener = socket(at.any.sa_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	if (n->listener < 0 || bind(n->listener, &at.any, len))
		return cairn_error(errno == EADDRNOTAVAIL || errno == EAFNOSUPPORT ? ENODEV : EIO,
				   "options: device: cannot listen at %s: %s", want, strerror(errno));
	if (listen(n->listener, 64) || getsockname(n->listener, &at.any, &len))
		return cairn_error(EIO, "listen: %s", strerror(errno));
	n->here.port = ntohs(n->here.is_ipv6 ? at.v6.sin6_port : at.v4.sin_port);
	n->here.num_slots = n->base.options.num_slots;
	n->here.pid = (uint64_t)getpid();
	return 0;
}

static int tcp_start(struct cairn_transport *t)
{
	struct tcp *n = (struct tcp *)t;

	transport_work_init(&n->work);
	n->listener = n->epoll = n->wake = -1;
	CAIRN_TRY(transport_pace_read("CAIRN_TCP_PACE", &n->pace));
	CAIRN_TRY(listen_at(n));
	return tcp_net_start(n);
}

static void tcp_stop(struct cairn_transport *t)
{
	struct tcp *n = (struct tcp *)t;

	tcp_net_stop(n);
	if (n->listener >= 0)
		close(n->listener);
	transport_work_destroy(&n->work);
}

/* ---- regions ---- */

static int tcp_add_region(struct cairn_region *base)
{
	struct tcp_region *r = (struct tcp_region *)base;
	struct tcp *n = (struct tcp *)base->t;

	if (base->memory != CAIRN_MEMORY_HOST)
		return cairn_error(EOPNOTSUPP, "memory: tcp supports host memory only");
	CAIRN_TRY(tcp_random(&r->key, sizeof(r->key)));
	transport_work_stop(&n->work);
	r->next_of_all = n->regions;
	n->regions = r;
	transport_work_go(&n->work);
	return 0;
}

static int tcp_key(const struct cairn_region *base, void *key)
{
	struct tcp_key k = { ((const struct tcp_region *)base)->key, base->bytes };

	memcpy(key, &k, sizeof(k));
	return 0;
}

static void tcp_remove_region(struct cairn_region *base)
{
	struct tcp_region *r = (struct tcp_region *)base, **at;
	struct tcp *n = (struct tcp *)base->t;

	transport_work_stop(&n->work);
	for (at = &n->regions; *at && *at != r; at = &(*at)->next_of_all)
		;
	if (*at)
		*at = r->next_of_all;
	transport_work_go(&n->work);
}

struct tcp_remote {
	struct cairn_remote base;
	uint64_t key;
};

static int tcp_import(struct cairn_remote *base, const void *key)
{
	struct tcp_key k;

	memcpy(&k, key, sizeof(k));
	((struct tcp_remote *)base)->key = k.key;
	base->bytes = k.bytes;
	return 0;
}

/* ---- channels ---- */

static int tcp_create(struct cairn_channel *base)
{
	struct tcp_channel *c = (struct tcp_channel *)base;
	struct tcp *n = (struct tcp *)base->t;

	pthread_mutex_init(&c->out_lock, NULL);
	pthread_mutex_init(&c->paced_lock, NULL);
	c->paced = transport_is_paced(&n->pace) ? calloc(TCP_PACED, sizeof(*c->paced)) : NULL;
	c->slots = calloc(base->t->options.num_slots, sizeof(*c->slots));
	c->ring = calloc(base->t->options.depth, sizeof(*c->ring));
	if (!c->slots || !c->ring || (transport_is_paced(&n->pace) && !c->paced))
		return cairn_error(ENOMEM, "no memory for slots and ring");
	CAIRN_TRY(tcp_random(c->token, sizeof(c->token)));
	CAIRN_TRY(tcp_random(c->reply, sizeof(c->reply)));
	transport_work_stop(&n->work);
	c->next_of_all = n->channels;
	n->channels = c;
	transport_work_go(&n->work);
	return 0;
}

static void tcp_destroy(struct cairn_channel *base)
{
	struct tcp_channel *c = (struct tcp_channel *)base, **at;
	struct tcp *n = (struct tcp *)base->t;

	transport_work_stop(&n->work);
	for (at = &n->channels; *at && *at != c; at = &(*at)->next_of_all)
		;
	if (*at)
		*at = c->next_of_all;
	tcp_conn_cut(n, c->in);
	tcp_conn_cut(n, c->out);
	transport_work_go(&n->work);
	pthread_mutex_destroy(&c->out_lock);
	pthread_mutex_destroy(&c->paced_lock);
	free(c->paced);
	free(c->slots);
	free(c->ring);
}

static int tcp_address(struct cairn_channel *base, void *address)
{
	const struct tcp_channel *c = (const struct tcp_channel *)base;
	struct tcp_address a = ((const struct tcp *)base->t)->here;

	memcpy(a.token, c->token, sizeof(a.token));
	memcpy(a.reply, c->reply, sizeof(a.reply));
	memcpy(address, &a, sizeof(a));
	return 0;
}

/* The new token makes this a new channel to the network: an old address finds none. */
static int tcp_reset(struct cairn_channel *base)
{
	struct tcp_channel *c = (struct tcp_channel *)base;
	uint8_t secrets[2 * TCP_SECRET];
	struct tcp *n = (struct tcp *)base->t;

	CAIRN_TRY(tcp_random(secrets, sizeof(secrets)));
	transport_work_stop(&n->work);
	if (TCP_DEFECT(late_bytes))
		c->in = NULL;
	tcp_conn_cut(n, c->in);
	tcp_conn_cut(n, c->out);
	if (!TCP_DEFECT(old_token)) {
		memcpy(c->token, secrets, TCP_SECRET);
		memcpy(c->reply, secrets + TCP_SECRET, TCP_SECRET);
	}
	memset(c->slots, 0, base->t->options.num_slots * sizeof(*c->slots));
	c->arrived = c->posted = c->sent = c->sent_bytes = c->done = 0;
	c->paced_begin = c->paced_end = c->carried = 0;
	transport_work_go(&n->work);
	return 0;
}

/* ---- connecting ---- */

/* Waits until the socket is ready. Returns 0, or -ETIMEDOUT. */
static int ready(int fd, short events, uint64_t deadline)
{
	struct pollfd f = { .fd = fd, .events = events };

	for (;;) {
		uint64_t now = transport_now();
		int ms = now < deadline ? (int)((deadline - now) / 1000000) + 1 : 0;
		int ret = poll(&f, 1, ms);

		if (ret > 0)
			return 0;
		if (transport_now() >= deadline)
			return cairn_error(ETIMEDOUT, "the peer does not answer");
	}
}

static int dial(int fd, const struct tcp_address *a, uint64_t deadline)
{
	struct tcp_greeting g = { .magic = TCP_HELLO, .version = TCP_VERSION };
	union address at;
	socklen_t len = unpack(a, &at), size = sizeof(int);
	uint32_t have = 0;
	int err = 0;

	if (connect(fd, &at.any, len) && errno != EINPROGRESS)
		return cairn_error(ECONNRESET, "the peer is gone: %s", strerror(errno));
	CAIRN_TRY(ready(fd, POLLOUT, deadline));
	if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &err, &size) || err)
		return cairn_error(ECONNRESET, "the peer is gone: %s", strerror(err));
	memcpy(g.secret, a->token, sizeof(g.secret));
	if (send(fd, &g, sizeof(g), MSG_NOSIGNAL) != sizeof(g))
		return cairn_error(ECONNRESET, "the peer is gone: %s", strerror(errno));
	while (have < sizeof(g)) {
		ssize_t got;

		CAIRN_TRY(ready(fd, POLLIN, deadline));
		got = recv(fd, (uint8_t *)&g + have, sizeof(g) - have, 0);
		if (got < 0 && (errno == EAGAIN || errno == EINTR))
			continue;
		if (got <= 0)
			return cairn_error(ECONNRESET, "the peer has no channel with this address, or it has "
					   "a connection already");
		have += (uint32_t)got;
	}
	if (g.magic != TCP_WELCOME || g.version != TCP_VERSION ||
	    memcmp(g.secret, a->reply, sizeof(g.secret)))
		return cairn_error(ECONNRESET, "another program answers at the peer's address");
	return 0;
}

static int tcp_connect(struct cairn_channel *base, const void *address, uint64_t deadline)
{
	struct tcp_channel *c = (struct tcp_channel *)base;
	struct tcp *n = (struct tcp *)base->t;
	struct tcp_address a;
	struct tcp_conn *k;
	char text[64];
	int fd, ret;

	memcpy(&a, address, sizeof(a));
	if (a.version != TCP_VERSION)
		return cairn_error(EINVAL, "version: the peer has %u, this end %u", a.version, TCP_VERSION);
	if (a.num_slots != base->t->options.num_slots)
		return cairn_error(EINVAL, "num_slots: the peer has %u, this end %u", a.num_slots,
				   base->t->options.num_slots);
	fd = socket(a.is_ipv6 ? AF_INET6 : AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	if (fd < 0)
		return cairn_error(EIO, "socket: %s", strerror(errno));
	tcp_tune(fd);
	ret = dial(fd, &a, deadline);
	if (ret) {
		close(fd);
		return cairn_error_prefix(ret, "%s", text_of(&a, text));
	}
	transport_work_stop(&n->work);
	ret = tcp_conn_add(n, fd, TCP_OUT, c, &k);
	if (!ret) {
		c->out = k;
		snprintf(base->peer, sizeof(base->peer), "%.40s of process %llu", text_of(&a, text),
			 (unsigned long long)a.pid);
	}
	transport_work_go(&n->work);
	if (ret)
		close(fd);
	return ret;
}

/* ---- puts ---- */

/* Waits until at most `most` of the puts before `index` are unacknowledged. */
static int settle(struct tcp_channel *c, uint64_t index, uint64_t most, uint64_t deadline, const char *what)
{
	uint32_t round = 0;
	uint64_t done;

	while (index - (done = __atomic_load_n(&c->done, __ATOMIC_ACQUIRE)) > most) {
		CAIRN_TRY(transport_error(&c->base));
		if (transport_now() >= deadline)
			return cairn_error(ETIMEDOUT, "%s: channel %u: %llu puts to %s are still in flight",
					   what, c->base.number, (unsigned long long)(index - done),
					   c->base.peer);
		if (round++ < POLLS)
			transport_pause(round);
		else
			tcp_sleep(c, &c->done, done, deadline);
	}
	return 0;
}

static int post(struct tcp_channel *c, struct tcp_put *p, uint64_t deadline, const char *what)
{
	uint32_t depth = c->base.t->options.depth, step = depth < 4 ? 1 : depth / 4;

	CAIRN_TRY(settle(c, c->posted, depth - 1, deadline, what));
	pthread_mutex_lock(&c->out_lock);
	p->frame.magic = TCP_PUT;
	p->frame.index = c->posted;
	if ((c->posted + 1) % step == 0)
		p->frame.flags = TCP_ASK;
	if (TCP_DEFECT(swap) && c->posted % 2)
		p->frame.index--;
	c->ring[c->posted++ & (depth - 1)] = *p;
	if (c->out && !(c->out->events & EPOLLOUT))
		tcp_push(c, PUT_BUDGET);
	pthread_mutex_unlock(&c->out_lock);
	return 0;
}

static int tcp_put(struct cairn_channel *base, const struct cairn_put *p, uint64_t deadline)
{
	struct tcp_put put = {
		.from = p->bytes ? p->local->addr + p->local_offset : NULL,
		.frame = {
			.slot = p->slot, .key = p->bytes ? ((const struct tcp_remote *)p->remote)->key : 0,
			.offset = p->bytes ? p->remote_offset : 0, .bytes = p->bytes,
			.value = p->value, .word = p->word,
		},
	};

	return post((struct tcp_channel *)base, &put, deadline, "put");
}

/* An empty put asks for the acknowledgement unless the last put did. */
static int tcp_flush(struct cairn_channel *base, uint64_t deadline)
{
	struct tcp_channel *c = (struct tcp_channel *)base;
	struct tcp_put ask = { .frame = { .slot = CAIRN_NO_SIGNAL, .flags = TCP_ASK } };

	if (!c->posted)
		return 0;
	if (!(c->ring[(c->posted - 1) & (base->t->options.depth - 1)].frame.flags & TCP_ASK))
		CAIRN_TRY(post(c, &ask, deadline, "flush"));
	return settle(c, c->posted, 0, deadline, "flush");
}

static int tcp_look(struct cairn_channel *base, uint32_t slot, struct cairn_signal *found)
{
	struct cairn_signal *s = &((struct tcp_channel *)base)->slots[slot];

	if (transport_is_paced(&((const struct tcp *)base->t)->pace))
		tcp_pace_show((struct tcp_channel *)base);
	found->value = __atomic_load_n(&s->value, __ATOMIC_ACQUIRE);
	found->word = __atomic_load_n(&s->word, __ATOMIC_RELAXED);
	return 0;
}

static void tcp_doze(struct cairn_channel *base, uint32_t slot, uint64_t have, uint64_t deadline)
{
	struct tcp_channel *c = (struct tcp_channel *)base;
	const struct transport_pace *pace = &((const struct tcp *)base->t)->pace;
	const uint64_t due = transport_is_paced(pace) ? tcp_pace_show(c) : UINT64_MAX;

	deadline = due < deadline ? due : deadline;
	tcp_sleep(c, &c->slots[slot].value, have, deadline);
}

#define FEATURES (CAIRN_TRANSPORT_HOST_MEMORY | CAIRN_TRANSPORT_PROCESSES | CAIRN_TRANSPORT_ONE_PROCESS | \
		  CAIRN_TRANSPORT_PEER_DEATH | CAIRN_TRANSPORT_CHECKS | CAIRN_TRANSPORT_ONE_SIDED)

static const struct transport_ops tcp_ops = {
	.name = "tcp", .features = FEATURES,
	.transport_bytes = sizeof(struct tcp), .region_bytes = sizeof(struct tcp_region),
	.remote_bytes = sizeof(struct tcp_remote), .channel_bytes = sizeof(struct tcp_channel),
	.start = tcp_start, .stop = tcp_stop,
	.add_region = tcp_add_region, .key = tcp_key, .remove_region = tcp_remove_region,
	.import = tcp_import,
	.create = tcp_create, .address = tcp_address, .connect = tcp_connect, .reset = tcp_reset,
	.destroy = tcp_destroy, .put = tcp_put, .flush = tcp_flush, .look = tcp_look, .doze = tcp_doze,
};

static int tcp_open(const struct cairn_transport_options *o, struct cairn_transport **t)
{
	return transport_open(&tcp_ops, o, t);
}

const struct cairn_transport_table cairn_transport_tcp = TRANSPORT_TABLE("tcp", FEATURES, tcp_open);
