// SPDX-License-Identifier: Apache-2.0
/*
 * http_conn - one connection: receive, send, time-outs; runs in the loop's thread only
 *
 *	IDLE -> HEAD -> BODY -> ANSWER -> IDLE		kept alive
 *			 |	 |  \---> LINGER	to be closed, after time for the client to read
 *			 \-------+------> DEAD		client gone, stalled or cut
 *
 * Nothing is read in ANSWER: a pipelined request stays in the socket, and EPOLLRDHUP reports the client's
 * close even if unread bytes precede it. EPOLLIN is unregistered only when it fires in that phase. Most
 * answers are sent before the next request arrives, so this saves two system calls per request. An idle
 * connection holds no buffer.
 */
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "primitives/base/error.h"
#include "serving/http/http_impl.h"

#define BIG_BUFFER	65536
#define MAX_TURN	(1 << 20)	/* bytes sent on one connection before others are served */

static void want(struct http_conn *c, uint32_t events)
{
	struct epoll_event e = { .events = events, .data.ptr = c };

	if (c->events == events)
		return;
	c->events = events;
	epoll_ctl(c->http->epoll_fd, EPOLL_CTL_MOD, c->fd, &e);
}

int http_conn_open(struct cairn_http *http, int fd, const struct in6_addr *address, struct http_peer *peer)
{
	struct http_conn *c = calloc(1, sizeof(*c));
	struct epoll_event e = { .events = EPOLLIN | EPOLLRDHUP, .data.ptr = c };

	if (!c)
		return cairn_error(ENOMEM, "http: no memory for a connection");
	if (epoll_ctl(http->epoll_fd, EPOLL_CTL_ADD, fd, &e)) {
		free(c);
		return cairn_error(EIO, "http: epoll_ctl: %s", strerror(errno));
	}
	c->http = http;
	c->fd = fd;
	c->events = e.events;
	c->address = *address;
	c->peer = peer;
	c->deadline_ms = http_now_ms() + http->opt.idle_timeout_ms;
	c->next = http->conns;
	if (c->next)
		c->next->prev = c;
	http->conns = c;
	atomic_fetch_add(&http->num_conns, 1);
	return 0;
}

static void escape_path(const char *path, char *to, size_t len)
{
	static const char digits[] = "0123456789abcdef";
	size_t at = 0;

	for (; *path && at + 5 < len; path++) {
		unsigned char b = (unsigned char)*path;

		if (b > 0x20 && b < 0x7f && b != '"' && b != '\\') {
			to[at++] = (char)b;
			continue;
		}
		to[at++] = '\\';
		to[at++] = 'x';
		to[at++] = digits[b >> 4];
		to[at++] = digits[b & 15];
	}
	to[at] = 0;
}

/* Detaches and logs the exchange, calls watch.gone if it is unfinished, and drops the loop's reference. */
static void let_go(struct http_conn *c, enum cairn_http_outcome why)
{
	const struct cairn_http_options *o = &c->http->opt;
	struct cairn_http_exchange *x = c->x;
	bool finished;
	int status;

	pthread_mutex_lock(&x->lock);
	finished = x->finished;
	status = x->bytes_out ? x->status : 0;
	pthread_mutex_unlock(&x->lock);
	x->conn = NULL;
	c->x = NULL;
	if (why != CAIRN_HTTP_COMPLETE)
		atomic_store(&x->gone, true);
	if (!finished && x->watch.gone)
		x->watch.gone(x->watch.ctx);
	if (o->log) {
		uint64_t now = http_now_ns();
		char path[512];
		struct cairn_http_log entry = {
			.peer = x->peer, .id = x->id, .method = x->head.method, .path = path,
			.status = status, .outcome = why,
			.bytes_in = x->body_bytes, .bytes_out = x->bytes_out,
			.first_us = x->first_ns ? (x->first_ns - x->begin_ns) / 1000 : 0,
			.total_us = (now - x->begin_ns) / 1000,
		};

		escape_path(x->head.path, path, sizeof(path));
		o->log(o->log_ctx, &entry);
	}
	http_exchange_put(x);
}

void http_conn_drop(struct http_conn *c, enum cairn_http_outcome why)
{
	struct cairn_http *http = c->http;
	struct linger reset = { 1, 0 };

	if (c->phase == HTTP_DEAD)
		return;
	/* reset, so that the kernel drops the bytes the client has not read */
	if (why == CAIRN_HTTP_STALLED || why == CAIRN_HTTP_CUT)
		setsockopt(c->fd, SOL_SOCKET, SO_LINGER, &reset, sizeof(reset));
	if (why == CAIRN_HTTP_STALLED)
		atomic_fetch_add(&http->stalled, 1);
	/* A process being started may hold a copy of fd for a moment; close() alone would then leave the
	 * epoll entry, which points to c. */
	epoll_ctl(http->epoll_fd, EPOLL_CTL_DEL, c->fd, NULL);
	close(c->fd);
	/* no handler was called, so the producer's reference is dropped here */
	if (c->phase == HTTP_IN_BODY)
		cairn_http_abort(c->x);
	c->phase = HTTP_DEAD;
	if (c->x)
		let_go(c, why);
	if (c->prev)
		c->prev->next = c->next;
	else
		http->conns = c->next;
	if (c->next)
		c->next->prev = c->prev;
	http_peer_put(http, c->peer);
	free(c->in);
	c->in = NULL;
	/* events of this round may still point to c, so it is freed after they are handled */
	c->next = http->dead;
	http->dead = c;
	atomic_fetch_sub(&http->num_conns, 1);
}

static void linger(struct http_conn *c)
{
	c->phase = HTTP_LINGER;
	free(c->in);
	c->in = NULL;
	c->in_len = c->in_room = 0;
	c->deadline_ms = http_now_ms() + HTTP_LINGER_MS;
	shutdown(c->fd, SHUT_WR);
	want(c, EPOLLIN | EPOLLRDHUP);
}

/* Enters ANSWER. The stall time-out starts when the socket is full, that of the whole answer now. */
static void await_answer(struct http_conn *c)
{
	int ms = c->http->opt.answer_timeout_ms;

	c->phase = HTTP_ANSWER;
	c->deadline_ms = INT64_MAX;
	c->end_ms = ms ? http_now_ms() + ms : INT64_MAX;
}

void http_conn_refuse(struct http_conn *c, int status, const char *why)
{
	await_answer(c);
	http_refuse(c, status, why);
	if (!c->x)
		http_conn_drop(c, CAIRN_HTTP_CUT);
}

/* Passes the complete request to its handler. */
static void handle(struct http_conn *c)
{
	await_answer(c);
	http_request_handle(c->x);
}

static void consumed(struct http_conn *c, size_t n)
{
	c->in_len -= n;
	memmove(c->in, c->in + n, c->in_len);
}

/* Moves received bytes of the body from c->in to the exchange. */
static void take_body(struct http_conn *c)
{
	struct cairn_http_exchange *x = c->x;
	const char *data = c->in, *why = NULL;
	size_t at = 0, used, len;
	int ret = 0;

	if (!x->head.chunked) {
		used = x->head.length - x->body_bytes;
		used = used < c->in_len ? used : c->in_len;
		if (!http_body_append(x, c->in, used))
			goto answered;
		consumed(c, used);
		if (x->body_bytes == x->head.length)
			handle(c);
		return;
	}
	while (at < c->in_len && !ret) {
		ret = http_unchunk(&c->chunks, c->in + at, c->in_len - at, &used, &data, &len, &why);
		at += used;
		if (ret >= 0 && len && !http_body_append(x, data, len))
			goto answered;
		if (ret >= 0 && !http_body_fits(x, c->chunks.left))
			goto answered;
	}
	if (ret < 0) {
		x->close = true;
		cairn_http_error(x, -ret, "invalid_request_error", NULL, NULL, "%s", why);
		goto answered;
	}
	consumed(c, at);
	if (ret)
		handle(c);
	return;
answered:
	await_answer(c);
}

static void begin(struct http_conn *c, size_t head_bytes)
{
	static const char go_on[] = "HTTP/1.1 100 Continue\r\n\r\n";
	struct cairn_http_exchange *x;

	if (http_request_begin(c, head_bytes)) {
		http_conn_drop(c, CAIRN_HTTP_CUT);
		return;
	}
	x = c->x;
	if (x->started || x->aborted) {		/* refused; no other thread has x, so no lock is needed */
		await_answer(c);
		return;
	}
	if (!x->head.chunked && !x->head.length) {
		handle(c);
		return;
	}
	c->phase = HTTP_IN_BODY;
	memset(&c->chunks, 0, sizeof(c->chunks));
	/* every earlier answer has left the socket's queue, so these few bytes fit */
	if (x->head.expect_continue && !c->in_len &&
	    send(c->fd, go_on, sizeof(go_on) - 1, MSG_NOSIGNAL) != (ssize_t)sizeof(go_on) - 1)
		http_conn_drop(c, CAIRN_HTTP_GONE);
}

/* Processes c->in until more bytes are needed or an answer is due. */
static void consume(struct http_conn *c)
{
	while (c->phase < HTTP_ANSWER && c->in_len) {
		const char *why = NULL;
		int ret;

		if (c->phase == HTTP_IN_BODY) {
			take_body(c);
			continue;
		}
		if (c->phase == HTTP_IDLE) {
			c->phase = HTTP_IN_HEAD;
			memset(&c->scan, 0, sizeof(c->scan));
			c->begin_ns = http_now_ns();
			c->deadline_ms = http_now_ms() + c->http->opt.request_timeout_ms;
		}
		ret = http_scan(&c->scan, c->in, c->in_len, &c->http->limits, &why);
		if (!ret)
			break;
		if (ret < 0)
			http_conn_refuse(c, -ret, why);
		else
			begin(c, (size_t)ret);
	}
	if (!c->in_len) {
		free(c->in);
		c->in = NULL;
		c->in_room = 0;
	}
}

static bool make_room(struct http_conn *c)
{
	size_t room = c->in_room ? 2 * c->in_room : HTTP_FIRST_BUFFER;
	char *in;

	if (c->in_len < c->in_room)
		return true;
	in = realloc(c->in, room);
	if (!in)
		return false;
	c->in = in;
	c->in_room = room;
	return true;
}

static void take_input(struct http_conn *c)
{
	for (int turn = 0; turn < 16; turn++) {	/* bounded, so that other connections get their turn */
		char scrap[4096];
		bool discard = c->phase == HTTP_LINGER;
		size_t room;
		ssize_t n;

		/* a body is received in large pieces; take_body() empties the buffer after each */
		if (c->phase == HTTP_IN_BODY && !c->in && (c->in = malloc(BIG_BUFFER)))
			c->in_room = BIG_BUFFER;
		if (!discard && !make_room(c)) {
			http_conn_drop(c, CAIRN_HTTP_CUT);
			return;
		}
		room = discard ? sizeof(scrap) : c->in_room - c->in_len;
		n = recv(c->fd, discard ? scrap : c->in + c->in_len, room, 0);
		if (n < 0 && (errno == EAGAIN || errno == EINTR))
			break;
		if (n <= 0) {
			http_conn_drop(c, CAIRN_HTTP_GONE);
			return;
		}
		if (!discard) {
			c->in_len += (size_t)n;
			consume(c);
		}
		if (c->phase >= HTTP_ANSWER || (size_t)n < room)
			break;
	}
	if (c->phase < HTTP_ANSWER && !c->in_len) {
		free(c->in);
		c->in = NULL;
		c->in_room = 0;
	}
}

/* Called when the kernel has accepted the whole answer. */
static void complete(struct http_conn *c, bool close_it)
{
	let_go(c, CAIRN_HTTP_COMPLETE);
	if (close_it) {
		linger(c);
		return;
	}
	c->phase = HTTP_IDLE;
	c->waits_to_write = false;
	c->deadline_ms = http_now_ms() + c->http->opt.idle_timeout_ms;
	want(c, EPOLLIN | EPOLLRDHUP);
	consume(c);
}

/*
 * Sends what the socket takes. The caller holds the exchange's lock. Returns 1 if nothing is left, 0 if the
 * socket is full or MAX_TURN bytes were sent, < 0 if the connection is broken.
 */
static int send_some(struct http_conn *c, struct cairn_http_exchange *x)
{
	struct http_fifo *f = &x->out;
	uint64_t turn_end = x->bytes_out + MAX_TURN;

	while (f->begin < f->end) {
		ssize_t n;

		if (x->bytes_out >= turn_end)
			return 0;
		n = send(c->fd, f->data + f->begin, f->end - f->begin, MSG_NOSIGNAL);

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return errno == EAGAIN ? 0 : -errno;
		if (!x->bytes_out)
			x->first_ns = http_now_ns();
		x->bytes_out += (uint64_t)n;
		f->begin += (size_t)n;
		c->deadline_ms = INT64_MAX;	/* progress stops the stall time-out */
	}
	f->begin = f->end = 0;
	if (f->room > BIG_BUFFER) {	/* it has grown while the client was slow */
		free(f->data);
		*f = (struct http_fifo){ NULL, 0, 0, 0 };
	}
	return 1;
}

void http_conn_ready(struct http_conn *c)
{
	struct cairn_http_exchange *x = c->x;
	bool finished, aborted, close_it;
	int ret = 0;

	if (c->phase != HTTP_ANSWER || !x)
		return;
	pthread_mutex_lock(&x->lock);
	aborted = x->aborted;
	if (!aborted)
		ret = send_some(c, x);
	finished = x->finished;
	close_it = x->close || atomic_load(&c->http->drain_calls);
	pthread_mutex_unlock(&x->lock);
	if (aborted || ret < 0) {
		http_conn_drop(c, aborted ? CAIRN_HTTP_CUT : CAIRN_HTTP_GONE);
		return;
	}
	if (ret && finished) {
		complete(c, close_it);
		return;
	}
	if (!ret && c->deadline_ms == INT64_MAX)
		c->deadline_ms = http_now_ms() + c->http->opt.stall_timeout_ms;
	if (c->waits_to_write != !ret) {
		c->waits_to_write = !ret;
		want(c, ret ? c->events & ~(uint32_t)EPOLLOUT : c->events | EPOLLOUT);
	}
}

void http_conn_event(struct http_conn *c, uint32_t events)
{
	if (c->phase == HTTP_DEAD)
		return;
	if (events & (EPOLLERR | EPOLLHUP)) {
		http_conn_drop(c, CAIRN_HTTP_GONE);
		return;
	}
	if (c->phase == HTTP_ANSWER) {
		if (events & EPOLLRDHUP) {
			http_conn_drop(c, CAIRN_HTTP_GONE);
			return;
		}
		if (events & EPOLLIN)
			want(c, c->events & ~(uint32_t)EPOLLIN);
		if (events & EPOLLOUT)
			http_conn_ready(c);
		return;
	}
	take_input(c);
}

void http_conn_drain(struct http_conn *c)
{
	if (c->phase == HTTP_IDLE)
		linger(c);
}

void http_conn_sweep(struct http_conn *c, int64_t now)
{
	if (c->phase == HTTP_ANSWER && now >= c->end_ms) {
		http_conn_drop(c, CAIRN_HTTP_CUT);
		return;
	}
	if (now < c->deadline_ms)
		return;
	switch (c->phase) {
	case HTTP_IN_HEAD:
		if (c->in_len > c->scan.skip) {
			http_conn_refuse(c, 408, "the request's header did not arrive in time");
			return;
		}
		break;
	case HTTP_IN_BODY:
		c->x->close = true;
		cairn_http_error(c->x, 408, "invalid_request_error", NULL, NULL,
				 "the request's body did not arrive in time");
		await_answer(c);
		return;
	case HTTP_ANSWER:
		http_conn_drop(c, CAIRN_HTTP_STALLED);
		return;
	default:
		break;
	}
	http_conn_drop(c, CAIRN_HTTP_GONE);
}
