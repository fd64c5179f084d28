/* SPDX-License-Identifier: Apache-2.0 */
/*
 * socket_queue - bytes on their way to and from a stream socket that never blocks
 *
 * Two processes exchange messages over such a socket: the front of the server and its worker, the engine and
 * the grammar process. What the socket does not take waits in memory.
 */
#ifndef CAIRN_SOCKET_QUEUE_H
#define CAIRN_SOCKET_QUEUE_H

#include <stddef.h>

/* Bytes [begin, end) of data are still to be sent. failed: a message was lost for lack of memory. */
struct cairn_out_queue {
	char *data;
	size_t begin, end, room;
	int failed;
};

/* Appends n bytes and returns where to write them. Returns NULL and sets `failed` if there is no memory. */
char *cairn_out_append(struct cairn_out_queue *q, size_t n);
/*
 * Sends what the socket takes. Returns 0 if that was all, 1 if some is left, -EPIPE if there is no peer,
 * -ENOMEM if a message was lost. who: begins the texts of errors.
 */
int cairn_out_flush(struct cairn_out_queue *q, int fd, const char *who);

static inline size_t cairn_out_waiting(const struct cairn_out_queue *q)
{
	return q->end - q->begin;
}

/*
 * Moves bytes [*begin, *end) to the beginning of data, and reads after them what has arrived and fits in
 * `size` bytes. Returns 1 if data was read or is full, 0 if nothing has arrived, -EPIPE if the peer has
 * closed.
 */
int cairn_in_fill(char *data, size_t size, size_t *begin, size_t *end, int fd, const char *who);

#endif
