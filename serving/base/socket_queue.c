// SPDX-License-Identifier: Apache-2.0
#include "serving/base/socket_queue.h"

#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "primitives/base/error.h"

#define FIRST_ROOM	4096
#define MOST_KEPT	((size_t)1 << 20)	/* a larger buffer has grown while the peer was slow */

char *cairn_out_append(struct cairn_out_queue *q, size_t n)
{
	size_t held = q->end - q->begin, room = q->room ? q->room : FIRST_ROOM;
	char *data = q->data;

	if (q->failed)
		return NULL;
	if (q->room - q->end < n) {
		/* half of the room is free after a move, so that bytes are moved rarely */
		while (room < 2 * (held + n))
			room *= 2;
		if (room != q->room)
			data = malloc(room);
		if (!data) {
			q->failed = 1;
			return NULL;
		}
		if (held)
			memmove(data, q->data + q->begin, held);
		if (data != q->data)
			free(q->data);
		*q = (struct cairn_out_queue){ .data = data, .end = held, .room = room };
	}
	q->end += n;
	return q->data + q->end - n;
}

int cairn_out_flush(struct cairn_out_queue *q, int fd, const char *who)
{
	if (q->failed)
		return cairn_error(ENOMEM, "%s: no memory for messages", who);
	while (q->begin < q->end) {
		ssize_t n = send(fd, q->data + q->begin, q->end - q->begin, MSG_NOSIGNAL | MSG_DONTWAIT);

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0 && errno == EAGAIN)
			return 1;
		if (n < 0)
			return cairn_error(EPIPE, "%s: the other process is gone: %s", who, strerror(errno));
		q->begin += (size_t)n;
	}
	q->begin = q->end = 0;
	if (q->room > MOST_KEPT) {
		free(q->data);
		*q = (struct cairn_out_queue){ 0 };
	}
	return 0;
}

int cairn_in_fill(char *data, size_t size, size_t *begin, size_t *end, int fd, const char *who)
{
	size_t held = *end - *begin;
	ssize_t n;

	if (*begin)
		memmove(data, data + *begin, held);
	*begin = 0;
	*end = held;
	if (held == size)
		return 1;
	do {
		n = recv(fd, data + held, size - held, MSG_DONTWAIT);
	} while (n < 0 && errno == EINTR);
	if (n < 0 && errno == EAGAIN)
		return 0;
	if (n <= 0)
		return cairn_error(EPIPE, "%s: the other process is gone", who);
	*end += (size_t)n;
	return 1;
}
