/* SPDX-License-Identifier: Apache-2.0 */
/*
 * channel_test - two ends of a channel, and a relay between them
 *
 * The member runs in a thread. The relay may change, repeat, drop or swap what one side sends.
 *
 * Include conformance/harness.h first.
 */
#ifndef CAIRN_CHANNEL_TEST_H
#define CAIRN_CHANNEL_TEST_H

#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "serving/remote/control/control.h"
#include "serving/remote/control/sodium_test.h"

#define PATIENCE	5000		/* ms */

/* Makes two connected sockets; over TCP on a loopback address, or a pair of Unix sockets. */
static inline int connect_two(int fd[2], int over_tcp)
{
	struct sockaddr_in a = { .sin_family = AF_INET, .sin_addr = { htonl(INADDR_LOOPBACK) } };
	socklen_t len = sizeof(a);
	int listener;

	if (!over_tcp)
		return socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fd);
	listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	fd[0] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	fd[1] = -1;
	if (!bind(listener, (struct sockaddr *)&a, len) && !listen(listener, 1) &&
	    !getsockname(listener, (struct sockaddr *)&a, &len) &&
	    !connect(fd[0], (struct sockaddr *)&a, len))
		fd[1] = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
	close(listener);
	return fd[1] < 0 ? -1 : 0;
}

/* The member: opens the channel, then sends back what it gets, until an error. */
struct member {
	pthread_t thread;
	int fd;
	const uint8_t *secret;
	int opened, ended;		/* results of open(), and of the call that ended it */
	int timeout_ms;
	char text[256];			/* of the error */
	int received;
};

static inline void *run_member(void *arg)
{
	struct member *x = arg;
	struct cairn_channel_message m;
	struct cairn_control_channel *c = NULL;

	x->opened = x->ended = cairn_channel_open(&c, x->fd, CAIRN_CHANNEL_MEMBER, x->secret, x->timeout_ms);
	while (!x->ended) {
		x->ended = cairn_channel_receive(c, &m, x->timeout_ms);
		if (!x->ended) {
			x->received++;
			x->ended = cairn_channel_send(c, m.kind + 1, m.data, m.num_bytes, x->timeout_ms);
		}
	}
	snprintf(x->text, sizeof(x->text), "%s", cairn_last_error());
	cairn_channel_close(c);
	return NULL;
}

static inline void start_member(struct member *x, int fd, const uint8_t *secret, int timeout_ms)
{
	*x = (struct member){ .fd = fd, .secret = secret, .timeout_ms = timeout_ms };
	pthread_create(&x->thread, NULL, run_member, x);
}

static inline void join_member(struct member *x)
{
	pthread_join(x->thread, NULL);
}

#endif
