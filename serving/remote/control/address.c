// SPDX-License-Identifier: Apache-2.0
/* address - numeric addresses, listening and dialling (address.h) */
#include "serving/remote/control/address.h"

#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "primitives/base/error.h"

static int bad_address(const char *text)
{
	return cairn_error(EINVAL, "'%s' is no address: HOST:PORT with a numeric host, or [HOST]:PORT for "
			   "IPv6", text);
}

int cairn_address_parse(union cairn_address *a, const char *text)
{
	const char *colon = strrchr(text, ':');
	size_t len = colon ? (size_t)(colon - text) : 0;
	const int is_v6 = text[0] == '[';
	char host[INET6_ADDRSTRLEN], *end;
	long port;

	if (is_v6 && (len < 2 || text[len - 1] != ']'))
		return bad_address(text);
	text += is_v6;
	len -= is_v6 ? 2 : 0;
	if (!colon || len < 1 || len >= sizeof(host) || colon[1] < '0' || colon[1] > '9')
		return bad_address(text - is_v6);
	memcpy(host, text, len);
	host[len] = 0;
	port = strtol(colon + 1, &end, 10);
	if (*end || port > 65535)
		return bad_address(text - is_v6);
	memset(a, 0, sizeof(*a));
	if (is_v6) {
		a->v6.sin6_family = AF_INET6;
		a->v6.sin6_port = htons((uint16_t)port);
		return inet_pton(AF_INET6, host, &a->v6.sin6_addr) == 1 ? 0 : bad_address(text - 1);
	}
	a->v4.sin_family = AF_INET;
	a->v4.sin_port = htons((uint16_t)port);
	return inet_pton(AF_INET, host, &a->v4.sin_addr) == 1 ? 0 : bad_address(text);
}

static socklen_t bytes_of(const union cairn_address *a)
{
	return a->any.sa_family == AF_INET6 ? sizeof(a->v6) : sizeof(a->v4);
}

int cairn_address_is_loopback(const union cairn_address *a)
{
	return a->any.sa_family == AF_INET6 ? IN6_IS_ADDR_LOOPBACK(&a->v6.sin6_addr) :
	       ntohl(a->v4.sin_addr.s_addr) >> 24 == 127;
}

int cairn_address_listen(int *out, int *port, const char *text)
{
	union cairn_address a;
	socklen_t len;
	int fd, on = 1, ret;

	CAIRN_TRY(cairn_address_parse(&a, text));
	len = bytes_of(&a);
	fd = socket(a.any.sa_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	if (fd < 0)
		return cairn_error(errno, "%s: %s", text, strerror(errno));
	/* a lead that is started again takes its port again */
	setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
	if (bind(fd, &a.any, len) || listen(fd, 64) || getsockname(fd, &a.any, &len)) {
		ret = cairn_error(errno, "%s: %s", text, strerror(errno));
		close(fd);
		return ret;
	}
	*port = ntohs(a.any.sa_family == AF_INET6 ? a.v6.sin6_port : a.v4.sin_port);
	*out = fd;
	return 0;
}

int cairn_address_dial(int *out, const char *text, int timeout_ms)
{
	union cairn_address a;
	struct pollfd p = { .events = POLLOUT };
	socklen_t size = sizeof(int);
	int err = 0;

	CAIRN_TRY(cairn_address_parse(&a, text));
	p.fd = socket(a.any.sa_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	if (p.fd < 0)
		return cairn_error(errno, "%s: %s", text, strerror(errno));
	if (connect(p.fd, &a.any, bytes_of(&a)) && errno != EINPROGRESS)
		err = errno;
	else if (poll(&p, 1, timeout_ms) < 1)
		err = ETIMEDOUT;
	else if (getsockopt(p.fd, SOL_SOCKET, SO_ERROR, &err, &size))
		err = errno;
	if (err) {
		close(p.fd);
		return cairn_error(err, "%s: %s", text, strerror(err));
	}
	*out = p.fd;
	return 0;
}

int cairn_address_own(int fd, char *host, size_t len)
{
	union cairn_address a;
	socklen_t size = sizeof(a);

	if (getsockname(fd, &a.any, &size) ||
	    !inet_ntop(a.any.sa_family, a.any.sa_family == AF_INET6 ? (void *)&a.v6.sin6_addr :
		       (void *)&a.v4.sin_addr, host, (socklen_t)len))
		return cairn_error(EIO, "getsockname: %s", strerror(errno));
	return 0;
}
