// SPDX-License-Identifier: Apache-2.0
/* transport_detour.c - a relay thread between an end and the address that it dials over tcp */
#include "rdma/transport_cases/transport_detour.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "rdma/transport/transport_tcp.h"

#define PAUSE_US	300

struct detour {
	struct detour *next;
	pthread_t thread;
	struct cairn_blob to;
	enum detour_kind kind;
	uint64_t number, rng;
	int listener;
};

int detour_listen(struct cairn_blob *address)
{
	struct sockaddr_in at = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	struct tcp_address a;
	socklen_t len = sizeof(at);

	if (fd < 0 || bind(fd, (struct sockaddr *)&at, len) || listen(fd, 4) ||
	    getsockname(fd, (struct sockaddr *)&at, &len))
		abort();
	memcpy(&a, address->bytes, sizeof(a));
	memset(a.ip, 0, sizeof(a.ip));
	memcpy(a.ip, &at.sin_addr, 4);
	a.is_ipv6 = 0;
	a.port = ntohs(at.sin_port);
	memcpy(address->bytes, &a, sizeof(a));
	address->check = transport_blob_check(address);
	return fd;
}

int detour_dial(const struct cairn_blob *address)
{
	struct sockaddr_in v4 = { .sin_family = AF_INET };
	struct sockaddr_in6 v6 = { .sin6_family = AF_INET6 };
	struct tcp_address a;
	int fd, ret, one = 1;

	memcpy(&a, address->bytes, sizeof(a));
	memcpy(&v4.sin_addr, a.ip, 4);
	memcpy(&v6.sin6_addr, a.ip, 16);
	v4.sin_port = v6.sin6_port = htons(a.port);
	fd = socket(a.is_ipv6 ? AF_INET6 : AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	ret = a.is_ipv6 ? connect(fd, (struct sockaddr *)&v6, sizeof(v6)) :
	      connect(fd, (struct sockaddr *)&v4, sizeof(v4));
	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
	if (!ret)
		return fd;
	close(fd);
	return -1;
}

static void pause_us(uint64_t us)
{
	struct timespec ts = { .tv_nsec = (long)us * 1000 };

	nanosleep(&ts, NULL);
}

/* Passes on one piece of at most `most` bytes. Returns its size; 0 at the end of the connection. */
static size_t relay(struct detour *d, int from, int to, uint64_t most)
{
	static const uint32_t pieces[] = { 1, 3, 16, 24, 63, 64, 65, 1000, 16384, 65536, 65536, 65536 };
	uint64_t limit = pieces[transport_random(&d->rng) % (sizeof(pieces) / sizeof(pieces[0]))];
	uint64_t want = 1 + transport_random(&d->rng) % limit;
	static __thread uint8_t buf[65536];
	ssize_t got, at, n;

	got = recv(from, buf, want < most ? want : most, 0);
	for (at = 0; at < got; at += n) {
		n = send(to, buf + at, (size_t)(got - at), MSG_NOSIGNAL);
		if (n <= 0)
			return 0;
	}
	if (transport_random(&d->rng) % 8 == 0)
		pause_us(transport_random(&d->rng) % PAUSE_US);
	return got > 0 ? (size_t)got : 0;
}

static void *relays(void *arg)
{
	struct detour *d = arg;
	int near = accept(d->listener, NULL, NULL), far = near >= 0 ? detour_dial(&d->to) : -1, one = 1;
	struct pollfd f[2] = { { .fd = near, .events = POLLIN }, { .fd = far, .events = POLLIN } };
	uint64_t sent = 0, first = sizeof(struct tcp_greeting), n = 1;

	setsockopt(near, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
	while (near >= 0 && far >= 0 && n && (d->kind != DETOUR_CUT || sent < d->number) &&
	       poll(f, 2, -1) > 0) {
		if (f[1].revents)
			n = relay(d, far, near, UINT64_MAX);
		if (n && f[0].revents) {
			if (d->kind == DETOUR_HOLD && sent == first)
				end_nap((long)d->number);
			n = relay(d, near, far, sent < first ? first - sent :
				  d->kind == DETOUR_CUT ? d->number - sent : UINT64_MAX);
			sent += n;
		}
	}
	if (near >= 0)
		close(near);
	if (far >= 0)
		close(far);
	return NULL;
}

int detour(struct end *e, struct cairn_blob *address, enum detour_kind kind, uint64_t number)
{
	struct detour *d = calloc(1, sizeof(*d));

	if (!d)
		abort();
	*d = (struct detour) { .next = e->detours, .to = *address, .kind = kind, .number = number,
		.rng = e->rng + (unsigned)e->rank };
	d->listener = detour_listen(address);
	if (pthread_create(&d->thread, NULL, relays, d))
		abort();
	e->detours = d;
	return 0;
}

void detour_end(struct end *e)
{
	struct detour *d;

	while ((d = e->detours)) {
		e->detours = d->next;
		shutdown(d->listener, SHUT_RDWR);
		pthread_join(d->thread, NULL);
		close(d->listener);
		free(d);
	}
}
