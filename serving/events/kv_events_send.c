// SPDX-License-Identifier: Apache-2.0
/*
 * kv_events_send - the thread that owns the sockets of KV events: sends batches, keeps them, answers replays
 *
 * A PUB or ROUTER socket never blocks: for a peer whose queue is full it drops the message. Messages from
 * strangers are bounded: libzmq closes a connection that sends a frame of more than MOST_FRAME bytes.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "primitives/base/error.h"
#include "serving/events/kv_events_fault.h"
#include "serving/events/kv_events_impl.h"

enum { MOST_FRAME = 256, PUB_QUEUE = 1000, REPLAY_QUEUE = CAIRN_KV_EVENTS_BATCHES + 1, POLL_MS = 1000,
       LINGER_MS = 100 };

void cairn_kv_batch_release(struct kv_batch *b)
{
	if (atomic_fetch_sub(&b->refs, 1) > 1)
		return;
	free(b->data);
	free(b);
}

static void on_released(void *data, void *hint)
{
	(void)data;
	cairn_kv_batch_release(hint);
}

/* Sends the last two frames of a message: number and batch. b NULL: the end of a replay. */
static void send_batch(struct cairn_kv_events *e, void *socket, struct kv_batch *b)
{
	uint64_t number = b ? b->number : UINT64_MAX;
	struct zeromq_msg msg;
	uint8_t bytes[8];

	for (int i = 0; i < 8; i++)
		bytes[i] = (uint8_t)(number >> 8 * (FAULT(NUMBER_LITTLE) ? i : 7 - i));
	e->zmq->zmq_send(socket, bytes, sizeof(bytes), ZEROMQ_SNDMORE | ZEROMQ_DONTWAIT);
	if (!b) {
		e->zmq->zmq_send(socket, "", 0, ZEROMQ_DONTWAIT);
		return;
	}
	atomic_fetch_add(&b->refs, 1);
	if (e->zmq->zmq_msg_init_data(&msg, b->data, b->len, on_released, b)) {
		cairn_kv_batch_release(b);
		e->zmq->zmq_send(socket, "", 0, ZEROMQ_DONTWAIT);	/* no memory: ends the message */
	} else if (e->zmq->zmq_msg_send(&msg, socket, ZEROMQ_DONTWAIT) < 0) {
		e->zmq->zmq_msg_close(&msg);
	}
}

/* Drops the oldest batches that are kept beyond the bounds. */
static void forget(struct cairn_kv_events *e)
{
	while (e->first < e->sent && ((e->sent - e->first > CAIRN_KV_EVENTS_BATCHES &&
				       !FAULT(KEPT_FOR_EVER)) ||
				      e->kept_bytes > CAIRN_KV_EVENTS_BYTES)) {
		struct kv_batch *b = e->ring[e->first % KV_EVENTS_RING];

		e->kept_bytes -= b->len;
		e->first++;
		cairn_kv_batch_release(b);
	}
}

/* Sends what waits. Returns false once that is all and the thread is to end. */
static bool send_waiting(struct cairn_kv_events *e)
{
	for (;;) {
		struct kv_batch *b = NULL;
		bool quit;

		pthread_mutex_lock(&e->lock);
		quit = e->quit;
		if (e->sent < e->end) {
			b = e->ring[e->sent++ % KV_EVENTS_RING];
			e->waiting_bytes -= b->len;
		}
		pthread_mutex_unlock(&e->lock);
		if (!b)
			return !quit;
		e->kept_bytes += b->len;
		e->zmq->zmq_send(e->pub, e->topic, strlen(e->topic), ZEROMQ_SNDMORE | ZEROMQ_DONTWAIT);
		send_batch(e, e->pub, b);
		forget(e);
	}
}

/* Reads a message of up to three frames, and what is behind them. Returns the number of frames, 0: none. */
static int read_request(struct cairn_kv_events *e, uint8_t frames[3][MOST_FRAME], int lens[3])
{
	int more = 1, num = 0;
	size_t size = sizeof(more);

	for (; more; num++) {
		uint8_t rest[MOST_FRAME];
		int n = e->zmq->zmq_recv(e->router, num < 3 ? frames[num] : rest, MOST_FRAME,
					 ZEROMQ_DONTWAIT);

		if (n < 0)
			return 0;
		if (num < 3)
			lens[num] = n;
		if (e->zmq->zmq_getsockopt(e->router, ZEROMQ_RCVMORE, &more, &size))
			return 0;
	}
	return num;
}

/* Answers one request: (peer, empty, first number). Anything else gets no answer. */
static void answer_replay(struct cairn_kv_events *e)
{
	uint8_t frames[3][MOST_FRAME];
	uint64_t first = 0;
	int lens[3];

	if (read_request(e, frames, lens) != 3 || lens[1] || lens[2] != 8 || lens[0] > MOST_FRAME)
		return;
	for (int i = 0; i < 8; i++)
		first = first << 8 | frames[2][i];
	for (uint64_t i = e->first; i <= e->sent; i++) {
		struct kv_batch *b = i < e->sent ? e->ring[i % KV_EVENTS_RING] : NULL;

		if (b && b->number < first + FAULT(REPLAY_AFTER))
			continue;
		if (e->zmq->zmq_send(e->router, frames[0], (size_t)lens[0],
				     ZEROMQ_SNDMORE | ZEROMQ_DONTWAIT) < 0)
			return;		/* the peer is gone */
		e->zmq->zmq_send(e->router, "", 0, ZEROMQ_SNDMORE | ZEROMQ_DONTWAIT);
		send_batch(e, e->router, b);
	}
}

static void *run(void *arg)
{
	struct cairn_kv_events *e = arg;
	struct zeromq_pollitem items[2] = { { NULL, e->wake, ZEROMQ_POLLIN, 0 },
					    { e->router, 0, ZEROMQ_POLLIN, 0 } };
	uint64_t count;

	do {
		if (e->zmq->zmq_poll(items, e->router ? 2 : 1, POLL_MS) < 0)
			continue;	/* a signal */
		if (items[0].revents & ZEROMQ_POLLIN) {
			ssize_t n = read(e->wake, &count, sizeof(count));

			(void)n;
		}
		if (e->router && items[1].revents & ZEROMQ_POLLIN)
			answer_replay(e);
	} while (send_waiting(e));
	return NULL;
}

/* Returns whether text is "tcp://HOST:PORT", PORT a number or *. */
static bool is_address(const char *text)
{
	const char *host = text + 6, *colon;

	if (strncmp(text, "tcp://", 6))
		return false;
	colon = strrchr(host, ':');
	if (!colon || colon == host || strlen(text) >= CAIRN_KV_EVENTS_ADDRESS)
		return false;
	if (!strcmp(colon + 1, "*"))
		return true;
	return colon[1] && strlen(colon + 1) <= 5 && !colon[1 + strspn(colon + 1, "0123456789")];
}

bool cairn_kv_events_is_local(const char *address)
{
	return !strncmp(address, "tcp://127.", 10) || !strncmp(address, "tcp://[::1]:", 12) ||
	       !strncmp(address, "tcp://localhost:", 16);
}

static int bind_to(struct cairn_kv_events *e, int type, int queue, const char *field, const char *address,
		   void **socket, char *bound)
{
	int linger = LINGER_MS, is_ipv6 = strchr(address, '[') != NULL;
	int64_t most = MOST_FRAME;
	size_t len = CAIRN_KV_EVENTS_ADDRESS;
	const struct zeromq *z = e->zmq;

	if (!is_address(address))
		return cairn_error(EINVAL, "%s: is not tcp://HOST:PORT", field);
	*socket = z->zmq_socket(e->ctx, type);
	if (!*socket)
		return cairn_error(EIO, "%s: %s", field, z->zmq_strerror(z->zmq_errno()));
	z->zmq_setsockopt(*socket, ZEROMQ_LINGER, &linger, sizeof(linger));
	z->zmq_setsockopt(*socket, ZEROMQ_IPV6, &is_ipv6, sizeof(is_ipv6));
	z->zmq_setsockopt(*socket, ZEROMQ_MAXMSGSIZE, &most, sizeof(most));
	z->zmq_setsockopt(*socket, ZEROMQ_SNDHWM, &queue, sizeof(queue));
	if (z->zmq_bind(*socket, address) || z->zmq_getsockopt(*socket, ZEROMQ_LAST_ENDPOINT, bound, &len))
		return cairn_error(EIO, "%s: %s: %s", field, address, z->zmq_strerror(z->zmq_errno()));
	return 0;
}

int cairn_kv_events_start(struct cairn_kv_events *e, const struct cairn_kv_events_options *o)
{
	if (o->topic && strlen(o->topic) >= sizeof(e->topic))
		return cairn_error(EINVAL, "topic: has over %zu bytes", sizeof(e->topic) - 1);
	snprintf(e->topic, sizeof(e->topic), "%s", o->topic ? o->topic : "");
	CAIRN_TRY(zeromq_load(&e->zmq));
	e->ctx = e->zmq->zmq_ctx_new();
	e->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (!e->ctx || e->wake < 0)
		return cairn_error(EIO, "kv_events: %s", strerror(errno));
	CAIRN_TRY(bind_to(e, ZEROMQ_PUB, PUB_QUEUE, "address", o->address, &e->pub, e->address));
	if (o->replay)
		CAIRN_TRY(bind_to(e, ZEROMQ_ROUTER, REPLAY_QUEUE, "replay", o->replay, &e->router,
				  e->replay));
	if (pthread_create(&e->thread, NULL, run, e)) {
		e->thread = 0;
		return cairn_error(EIO, "kv_events: no thread");
	}
	return 0;
}

void cairn_kv_events_stop(struct cairn_kv_events *e)
{
	static const uint64_t one = 1;

	if (e->thread) {
		ssize_t n;

		pthread_mutex_lock(&e->lock);
		e->quit = true;
		pthread_mutex_unlock(&e->lock);
		n = write(e->wake, &one, sizeof(one));
		(void)n;
		pthread_join(e->thread, NULL);
	}
	if (e->pub)
		e->zmq->zmq_close(e->pub);
	if (e->router)
		e->zmq->zmq_close(e->router);
	if (e->ctx)
		e->zmq->zmq_ctx_term(e->ctx);	/* returns within LINGER_MS */
	if (e->wake >= 0)
		close(e->wake);
}
