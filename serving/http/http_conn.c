// SPDX-License-Identifier: Apache-2.0
/*
 * http_conn - a connection: bytes in, bytes out, time-outs; the loop's thread only
 *
 *	IDLE -> HEAD -> BODY -> ANSWER -> IDLE		kept alive
 *			 |	 |  \---> LINGER	to be closed: the client may read on for a while
 *			 \-------+------> DEAD		gone, stalled, cut
 *
 * In ANSWER nothing is read: what a client sends ahead waits in the socket, and its end shows as EPOLLRDHUP,
 * bytes before it or not. EPOLLIN stays asked for until it comes there, since most answers are faster than
 * the next request: that saves two system calls for each. A connection with nothing to say holds no buffer.
 */
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "primitives/base/error.h"
#include "serving/http/http_impl.h"

#define BIG_BUFFER	65536
#define MAX_TURN	(1 << 20)	/* bytes sent to one before others are looked at */

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

/* The loop's part in c->x is over. */
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
	/* what the kernel still holds for one who does not read goes at once */
	if (why == CAIRN_HTTP_STALLED || why == CAIRN_HTTP_CUT)
		setsockopt(c->fd, SOL_SOCKET, SO_LINGER, &reset, sizeof(reset));
	if (why == CAIRN_HTTP_STALLED)
		atomic_fetch_add(&http->stalled, 1);
	/* a process that is being started may hold a copy of fd for a moment: close() alone would leave the
	 * entry, and c with it */
	epoll_ctl(http->epoll_fd, EPOLL_CTL_DEL, c->fd, NULL);
	close(c->fd);
	/* no handler has seen it: the producer's part is given back here */
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
	/* events of this round may still name it: freed after them */
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

/* No time-out but that of a client which does not read. */
static void await_answer(struct http_conn *c)
{
	c->phase = HTTP_ANSWER;
	c->deadline_ms = INT64_MAX;
}

void http_conn_refuse(struct http_conn *c, int status, const char *why)
{
	await_answer(c);
	http_refuse(c, status, why);
	if (!c->x)
		http_conn_drop(c, CAIRN_HTTP_CUT);
}

/* The exchange is made and nothing of its request is missing. */
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

/* Bytes of the body that have come. */
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
	if (x->started || x->aborted) {		/* refused; no other thread knows it */
		await_answer(c);
		return;
	}
	if (!x->head.chunked && !x->head.length) {
		handle(c);
		return;
	}
	c->phase = HTTP_IN_BODY;
	memset(&c->chunks, 0, sizeof(c->chunks));
	/* all before it is sent, so that these few bytes find room */
	if (x->head.expect_continue && !c->in_len &&
	    send(c->fd, go_on, sizeof(go_on) - 1, MSG_NOSIGNAL) != (ssize_t)sizeof(go_on) - 1)
		http_conn_drop(c, CAIRN_HTTP_GONE);
}

/* Goes on with what is in c->in, until more is needed or an answer is due. */
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
	for (int turn = 0; turn < 16; turn++) {	/* others wait, too */
		char scrap[4096];
		bool discard = c->phase == HTTP_LINGER;
		size_t room;
		ssize_t n;

		/* a long body comes in long pieces; the buffer is empty between them */
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

/* The answer is with the kernel, whole. */
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
 * Under the exchange's lock: sends what it can. 1: nothing is left, 0: the socket is full, or it is
 * the turn of others, < 0: broken.
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
		c->deadline_ms = INT64_MAX;	/* progress */
	}
	f->begin = f->end = 0;
	if (f->room > BIG_BUFFER) {	/* grown while the client was slow */
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
	if (now < c->deadline_ms)
		return;
	switch (c->phase) {
	case HTTP_IN_HEAD:
		if (c->in_len > c->scan.skip) {
			http_conn_refuse(c, 408, "the request's header did not come in time");
			return;
		}
		break;
	case HTTP_IN_BODY:
		c->x->close = true;
		cairn_http_error(c->x, 408, "invalid_request_error", NULL, NULL,
				 "the request's body did not come in time");
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
