// SPDX-License-Identifier: Apache-2.0
/*
 * transport_tcp_net.c - the network thread of the tcp back end: connections, strangers, sleeping waiters
 *
 * One thread serves all connections of a transport with epoll; transport_tcp_move.c moves the bytes. It
 * never blocks in a send, and takes a limited number of bytes from a connection before the next one has its
 * turn, so a large payload delays no other channel for long. Connections are named by number in epoll's
 * events, because another thread may cut one between the event and its handling.
 */
#include "rdma/transport/transport_tcp.h"

#include <linux/futex.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define MAX_EVENTS	64
#define LAST_ROUNDS	64		/* of receiving from a lost peer */

int tcp_random(void *p, size_t bytes)
{
	return getrandom(p, bytes, 0) == (ssize_t)bytes ? 0 :
		cairn_error(EIO, "getrandom: %s", strerror(errno));
}

/* A peer that dies closes its sockets; a host that vanishes does not, so the kernel asks it. */
void tcp_tune(int fd)
{
	static const struct {
		int level, name, value;
	} options[] = {
		{ IPPROTO_TCP, TCP_NODELAY, 1 }, { SOL_SOCKET, SO_KEEPALIVE, 1 },
		{ IPPROTO_TCP, TCP_KEEPIDLE, 1 }, { IPPROTO_TCP, TCP_KEEPINTVL, 1 },
		{ IPPROTO_TCP, TCP_KEEPCNT, TCP_VANISHED_MS / 1000 - 1 },
		{ IPPROTO_TCP, TCP_USER_TIMEOUT, TCP_VANISHED_MS },
	};
	size_t i;

	for (i = 0; i < sizeof(options) / sizeof(options[0]); i++)
		setsockopt(fd, options[i].level, options[i].name, &options[i].value, sizeof(int));
}

/* ---- sleeping ---- */

static void futex(const uint64_t *word, int op, uint32_t value, const struct timespec *limit)
{
	const uint32_t *low = (const uint32_t *)word + (__BYTE_ORDER__ == __ORDER_BIG_ENDIAN__);

	syscall(SYS_futex, low, op | FUTEX_PRIVATE_FLAG, value, limit, NULL, 0);
}

void tcp_sleep(struct tcp_channel *c, const uint64_t *word, uint64_t have, uint64_t deadline)
{
	struct timespec limit = { .tv_nsec = 2000000 };
	uint64_t now = transport_now();

	if (now >= deadline)
		return;
	if (deadline - now < 2000000)
		limit.tv_nsec = (long)(deadline - now);
	/* Either the kernel sees the new word and returns at once, or tcp_set() sees the sleeper. */
	__atomic_fetch_add(&c->sleepers, 1, __ATOMIC_SEQ_CST);
	futex(word, FUTEX_WAIT, (uint32_t)have, &limit);
	__atomic_fetch_sub(&c->sleepers, 1, __ATOMIC_SEQ_CST);
}

void tcp_set(struct tcp_channel *c, uint64_t *word, uint64_t value)
{
	__atomic_store_n(word, value, __ATOMIC_SEQ_CST);
	if (__atomic_load_n(&c->sleepers, __ATOMIC_SEQ_CST))
		futex(word, FUTEX_WAKE, INT32_MAX, NULL);
}

/* ---- connections ---- */

void tcp_watch(struct tcp *n, struct tcp_conn *k, uint32_t events)
{
	struct epoll_event e = { .events = events, .data.u64 = k->id };

	if (k->events != events && !epoll_ctl(n->epoll, EPOLL_CTL_MOD, k->fd, &e))
		k->events = events;
}

int tcp_conn_add(struct tcp *n, int fd, enum tcp_kind kind, struct tcp_channel *c, struct tcp_conn **out)
{
	struct tcp_conn *k = calloc(1, sizeof(*k));
	struct epoll_event e = { .events = EPOLLIN };

	if (!k)
		return cairn_error(ENOMEM, "no memory for a connection");
	*k = (struct tcp_conn) {
		.next = n->conns, .id = ++n->last_id, .fd = fd, .kind = kind, .c = c, .events = EPOLLIN,
		.deadline = transport_now() + TCP_HELLO_MS * 1000000ull, .ack_at = sizeof(struct tcp_ack),
	};
	k->buf = k->small;
	k->room = kind == TCP_STRANGER ? sizeof(struct tcp_greeting) : sizeof(k->small);
	e.data.u64 = k->id;
	if (epoll_ctl(n->epoll, EPOLL_CTL_ADD, fd, &e)) {
		free(k);
		return cairn_error(EIO, "epoll_ctl: %s", strerror(errno));
	}
	n->conns = k;
	if (out)
		*out = k;
	return 0;
}

void tcp_conn_cut(struct tcp *n, struct tcp_conn *k)
{
	struct tcp_conn **at;

	if (!k)
		return;
	for (at = &n->conns; *at != k; at = &(*at)->next)
		;
	*at = k->next;
	if (k->kind == TCP_IN)
		k->c->in = NULL;
	if (k->kind == TCP_OUT) {
		pthread_mutex_lock(&k->c->out_lock);
		k->c->out = NULL;
		pthread_mutex_unlock(&k->c->out_lock);
	}
	close(k->fd);
	if (k->buf != k->small)
		free(k->buf);
	free(k);
}

void tcp_end(struct tcp *n, struct tcp_channel *c, int err, const char *text)
{
	transport_fail(&c->base, err, "%s", text);
	tcp_conn_cut(n, c->in);
	tcp_conn_cut(n, c->out);
}

static int receive(struct tcp *n, struct tcp_conn *k);

/* Ends the channel of a lost connection, after receiving what the peer had sent on the other connection. */
static void lost(struct tcp *n, struct tcp_conn *k, int err)
{
	struct tcp_channel *c = k->c;
	char text[128];
	int i;

	tcp_conn_cut(n, k);
	if (!c)
		return;
	snprintf(text, sizeof(text), "the peer is gone: %s",
		 err ? strerror(err) : "it closed the connection");
	for (i = 0; i < LAST_ROUNDS && (c->in || c->out); i++)
		if (receive(n, c->in ? c->in : c->out) <= 0)
			break;
	tcp_end(n, c, ECONNRESET, text);
}

ssize_t tcp_take(struct tcp *n, struct tcp_conn *k, void *to, size_t bytes)
{
	ssize_t got = recv(k->fd, to, bytes, MSG_DONTWAIT);

	if (got > 0)
		return got;
	if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR))
		return 0;
	lost(n, k, got ? errno : 0);
	return -1;
}

/* ---- strangers ---- */

static int same(const uint8_t *a, const uint8_t *b)
{
	uint8_t differ = 0;
	size_t i;

	for (i = 0; i < TCP_SECRET; i++)	/* takes the same time wherever they differ */
		differ |= a[i] ^ b[i];
	return !differ;
}

/* Makes a connection the incoming one of the channel whose token it presents, if that has none yet. */
static int on_stranger(struct tcp *n, struct tcp_conn *k)
{
	struct tcp_greeting g;
	struct tcp_channel *c, *found = NULL;
	ssize_t got = tcp_take(n, k, k->buf + k->have, k->room - k->have);
	uint8_t *buf;

	if (got <= 0)
		return (int)got;
	k->have += (uint32_t)got;
	if (k->have < sizeof(g))
		return 0;
	memcpy(&g, k->buf, sizeof(g));
	for (c = n->channels; c; c = c->next_of_all)
		if (same(c->token, g.secret) || (TCP_DEFECT(token) && !found && !c->in))
			found = c;
	if (g.magic != TCP_HELLO || g.version != TCP_VERSION || (found && found->in))
		found = NULL;
	buf = found ? malloc(TCP_ROOM) : NULL;
	if (!buf) {
		tcp_conn_cut(n, k);
		return -1;
	}
	k->kind = TCP_IN;
	k->c = found;
	k->buf = buf;
	k->room = TCP_ROOM;
	k->have = 0;
	found->in = k;
	tcp_tune(k->fd);
	g.magic = TCP_WELCOME;
	memcpy(g.secret, found->reply, sizeof(g.secret));
	if (send(k->fd, &g, sizeof(g), MSG_DONTWAIT | MSG_NOSIGNAL) != sizeof(g))
		lost(n, k, errno);
	return 0;
}

/* Returns 1 if bytes were received, 0 if none are there now, -1 if the connection is gone. */
static int receive(struct tcp *n, struct tcp_conn *k)
{
	return k->kind == TCP_STRANGER ? on_stranger(n, k) : k->kind == TCP_IN ? tcp_frames(n, k) :
		tcp_acks(n, k);
}

/* ---- the thread ---- */

static void accept_all(struct tcp *n)
{
	struct tcp_conn *k, *oldest;
	int fd, strangers;

	while ((fd = accept4(n->listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC)) >= 0) {
		for (k = n->conns, oldest = NULL, strangers = 0; k; k = k->next)
			if (k->kind == TCP_STRANGER) {
				oldest = k;
				strangers++;
			}
		if (strangers >= TCP_STRANGERS)
			tcp_conn_cut(n, oldest);
		if (tcp_conn_add(n, fd, TCP_STRANGER, NULL, NULL))
			close(fd);
	}
	if (errno != EAGAIN && errno != EWOULDBLOCK)	/* such as EMFILE: accept() keeps failing */
		nanosleep(&(struct timespec) { .tv_nsec = 1000000 }, NULL);
}

static void on_event(struct tcp *n, const struct epoll_event *e)
{
	struct tcp_conn *k;

	if (e->data.u64 <= 1) {
		if (e->data.u64 == 1)
			accept_all(n);
		return;
	}
	for (k = n->conns; k && k->id != e->data.u64; k = k->next)
		;
	if (!k)
		return;		/* cut since epoll_wait returned */
	if (e->events & EPOLLOUT && k->kind == TCP_OUT) {
		pthread_mutex_lock(&k->c->out_lock);
		tcp_push(k->c, TCP_PIECE);
		pthread_mutex_unlock(&k->c->out_lock);
	} else if (e->events & EPOLLOUT && k->kind == TCP_IN) {
		tcp_acknowledge(n, k);
	}
	if (e->events & ~(uint32_t)EPOLLOUT)
		receive(n, k);
}

/* Disconnects strangers whose time is over. Returns the ms until the next one's is; -1: there is none. */
static int late_strangers(struct tcp *n)
{
	uint64_t now = transport_now(), first = UINT64_MAX;
	struct tcp_conn *k, *next;

	for (k = n->conns; k; k = next) {
		next = k->next;
		if (k->kind == TCP_STRANGER && k->deadline <= now)
			tcp_conn_cut(n, k);
		else if (k->kind == TCP_STRANGER && k->deadline < first)
			first = k->deadline;
	}
	return first == UINT64_MAX ? -1 : (int)((first - now) / 1000000) + 1;
}

static void *network(void *arg)
{
	struct epoll_event events[MAX_EVENTS];
	struct tcp *n = arg;
	int num, i, limit = -1;

	while (!atomic_load(&n->stop)) {
		num = epoll_wait(n->epoll, events, MAX_EVENTS, limit);
		transport_work_yield(&n->work);
		pthread_mutex_lock(&n->work.lock);
		for (i = 0; i < num; i++)
			on_event(n, &events[i]);
		limit = late_strangers(n);
		pthread_mutex_unlock(&n->work.lock);
	}
	return NULL;
}

int tcp_net_start(struct tcp *n)
{
	struct epoll_event wake = { .events = EPOLLIN, .data.u64 = 0 };
	struct epoll_event listener = { .events = EPOLLIN, .data.u64 = 1 };

	n->last_id = 1;
	n->epoll = epoll_create1(EPOLL_CLOEXEC);
	n->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (n->epoll < 0 || n->wake < 0 || epoll_ctl(n->epoll, EPOLL_CTL_ADD, n->wake, &wake) ||
	    epoll_ctl(n->epoll, EPOLL_CTL_ADD, n->listener, &listener))
		return cairn_error(EIO, "epoll: %s", strerror(errno));
	if (pthread_create(&n->thread, NULL, network, n))
		return cairn_error(ENOMEM, "cannot create the network thread");
	n->has_thread = 1;
	return 0;
}

void tcp_net_stop(struct tcp *n)
{
	atomic_store(&n->stop, 1);
	if (n->has_thread && !eventfd_write(n->wake, 1))
		pthread_join(n->thread, NULL);
	while (n->conns)
		tcp_conn_cut(n, n->conns);
	if (n->epoll >= 0)
		close(n->epoll);
	if (n->wake >= 0)
		close(n->wake);
}
