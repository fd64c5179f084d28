// SPDX-License-Identifier: Apache-2.0
/* http_exchange - the producer's side of an exchange: answers and streams, from any thread */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>

#include "primitives/base/error.h"
#include "serving/http/http_impl.h"

const char *const cairn_http_outcome_names[] = { "complete", "gone", "stalled", "cut" };

const char *http_reason(int status)
{
	static const struct {
		int status;
		const char *text;
	} reasons[] = {
		{ 200, "OK" }, { 201, "Created" }, { 202, "Accepted" }, { 204, "No Content" },
		{ 301, "Moved Permanently" }, { 302, "Found" }, { 304, "Not Modified" },
		{ 400, "Bad Request" }, { 401, "Unauthorized" }, { 403, "Forbidden" }, { 404, "Not Found" },
		{ 405, "Method Not Allowed" }, { 406, "Not Acceptable" }, { 408, "Request Timeout" },
		{ 409, "Conflict" }, { 413, "Content Too Large" }, { 414, "URI Too Long" },
		{ 415, "Unsupported Media Type" }, { 417, "Expectation Failed" },
		{ 422, "Unprocessable Content" }, { 429, "Too Many Requests" },
		{ 431, "Request Header Fields Too Large" }, { 500, "Internal Server Error" },
		{ 501, "Not Implemented" }, { 503, "Service Unavailable" }, { 504, "Gateway Timeout" },
		{ 505, "HTTP Version Not Supported" },
	};

	for (size_t i = 0; i < sizeof(reasons) / sizeof(reasons[0]); i++) {
		if (reasons[i].status == status)
			return reasons[i].text;
	}
	return "Status";
}

/* Makes room for n more bytes. Grows only as needed, so that an idle stream costs little memory. */
static bool fifo_reserve(struct http_fifo *f, size_t n)
{
	size_t held = f->end - f->begin, room = f->room ? f->room : 512;
	char *data;

	if (f->room - f->end >= n)
		return true;
	if (f->begin && f->room - held >= n && f->begin >= held) {
		memcpy(f->data, f->data + f->begin, held);	/* no overlap, amortised O(1) */
		f->begin = 0;
		f->end = held;
		return true;
	}
	while (room - held < n && n < HTTP_SHORT_ANSWER)
		room *= 2;
	if (room - held < n)	/* a long answer gets its exact size: nothing is added after it */
		room = held + n;
	data = malloc(room);
	if (!data)
		return false;
	if (held)
		memcpy(data, f->data + f->begin, held);
	free(f->data);
	*f = (struct http_fifo){ data, 0, held, room };
	return true;
}

static bool fifo_add(struct http_fifo *f, const void *data, size_t n)
{
	if (!fifo_reserve(f, n))
		return false;
	if (n)
		memcpy(f->data + f->end, data, n);
	f->end += n;
	return true;
}

static bool fifo_print(struct http_fifo *f, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

static bool fifo_print(struct http_fifo *f, const char *fmt, ...)
{
	va_list ap, again;
	int n;

	va_start(ap, fmt);
	va_copy(again, ap);
	n = vsnprintf(NULL, 0, fmt, ap);
	va_end(ap);
	if (n >= 0 && fifo_reserve(f, (size_t)n + 1)) {
		vsnprintf(f->data + f->end, (size_t)n + 1, fmt, again);
		f->end += (size_t)n;
	} else {
		n = -1;
	}
	va_end(again);
	return n >= 0;
}

struct cairn_http_exchange *http_exchange_new(struct http_conn *c)
{
	struct cairn_http_exchange *x = calloc(1, sizeof(*x));

	if (!x)
		return NULL;
	x->http = c->http;
	atomic_fetch_add(&c->http->refs, 1);
	pthread_mutex_init(&x->lock, NULL);
	atomic_init(&x->refs, 2);	/* the loop and the producer */
	atomic_init(&x->gone, false);
	x->conn = c;
	x->begin_ns = c->begin_ns;
	x->head.method = x->head.path = (char *)"-";
	x->head.query = (char *)"";
	strcpy(x->id, "-");
	http_address_text(&c->address, x->peer);
	return x;
}

void http_body_free(struct cairn_http_exchange *x)
{
	atomic_fetch_sub(&x->http->body_bytes, x->body_room);
	free(x->body);
	x->body = NULL;
	x->body_room = 0;
	x->req.body = NULL;
}

void http_exchange_put(struct cairn_http_exchange *x)
{
	struct cairn_http *http = x->http;

	if (atomic_fetch_sub(&x->refs, 1) != 1)
		return;
	http_body_free(x);
	atomic_fetch_sub(&http->answer_bytes, x->answer_bytes);
	if (x->counted)
		atomic_fetch_sub(&http->num_exchanges, 1);
	if (x->watch.done)
		x->watch.done(x->watch.ctx);
	pthread_mutex_destroy(&x->lock);
	free(x->out.data);
	free(x->fields);
	free(x->text);
	free(x);
	http_put(http);
}

void cairn_http_watch(struct cairn_http_exchange *x, const struct cairn_http_watch *watch)
{
	x->watch = *watch;
}

bool cairn_http_gone(const struct cairn_http_exchange *x)
{
	return atomic_load(&x->gone);
}

const char *cairn_http_header(const struct cairn_http_request *req, const char *name)
{
	for (int i = 0; i < req->num_headers; i++) {
		if (!strcasecmp(req->headers[i].name, name))
			return req->headers[i].value;
	}
	return NULL;
}

/* Rejects names and values that would let a caller's text break out of its header line. */
static int check_fields(int status, const char *content_type, const struct cairn_http_field *fields, int n)
{
	if (status < 200 || status > 599)
		return cairn_error(EINVAL, "http: status %d is not from 200 to 599", status);
	for (int i = -1; i < n; i++) {
		const char *value = i < 0 ? content_type : fields[i].value;

		if (i >= 0 && !http_is_token(fields[i].name))
			return cairn_error(EINVAL, "http: header %d: its name is not a token", i);
		for (; value && *value; value++) {
			if (((unsigned char)*value < 0x20 && *value != '\t') || *value == 0x7f)
				return cairn_error(EINVAL, "http: header %s: a control byte",
						   i < 0 ? "Content-Type" : fields[i].name);
		}
	}
	return 0;
}

static bool add_head(struct cairn_http_exchange *x, int status, const char *content_type,
		     const struct cairn_http_field *fields, int num_fields)
{
	struct http_fifo *f = &x->out;
	time_t now = time(NULL);
	char date[40];
	struct tm tm;

	gmtime_r(&now, &tm);
	strftime(date, sizeof(date), "%a, %d %b %Y %H:%M:%S GMT", &tm);
	if (!fifo_print(f, "HTTP/1.1 %d %s\r\nDate: %s\r\n", status, http_reason(status), date))
		return false;
	if (x->id[0] != '-' && !fifo_print(f, "X-Request-Id: %s\r\n", x->id))
		return false;
	if (content_type && !fifo_print(f, "Content-Type: %s\r\n", content_type))
		return false;
	for (int i = 0; i < num_fields; i++) {
		if (!fifo_print(f, "%s: %s\r\n", fields[i].name, fields[i].value))
			return false;
	}
	if (x->cors && !fifo_print(f, "Access-Control-Allow-Origin: %s\r\n%s"
				   "Access-Control-Expose-Headers: X-Request-Id, Retry-After\r\n", x->cors,
				   *x->cors == '*' ? "" : "Vary: Origin\r\n"))
		return false;
	if (x->close || atomic_load(&x->http->drain_calls))
		return fifo_print(f, "Connection: close\r\n");
	return x->head.minor || fifo_print(f, "Connection: keep-alive\r\n");
}

/* Drops the producer's reference after a last wake-up of the loop. */
static void finish(struct cairn_http_exchange *x)
{
	http_mark_ready(x);
	http_exchange_put(x);
}

static bool is_head_only(const struct cairn_http_exchange *x, int status)
{
	return status == 204 || status == 304 || !strcmp(x->head.method, "HEAD");
}

/* Adds a long answer to answer_bytes. Returns false if it would exceed max_answer_total. */
static bool count_answer(struct cairn_http_exchange *x, size_t bytes)
{
	struct cairn_http *http = x->http;

	if (bytes <= HTTP_SHORT_ANSWER || !strcmp(x->head.method, "HEAD"))
		return true;
	if (atomic_fetch_add(&http->answer_bytes, bytes) + bytes > http->opt.max_answer_total) {
		atomic_fetch_sub(&http->answer_bytes, bytes);
		return false;
	}
	x->answer_bytes = bytes;
	return true;
}

int cairn_http_answer(struct cairn_http_exchange *x, int status, const char *content_type,
		      const struct cairn_http_field *headers, int num_headers, const void *body, size_t bytes)
{
	bool ok, bare = status == 204 || status == 304;

	CAIRN_TRY(check_fields(status, content_type, headers, num_headers));
	pthread_mutex_lock(&x->lock);
	if (x->started) {
		pthread_mutex_unlock(&x->lock);
		return cairn_error(EINVAL, "http: answered twice");
	}
	if (!count_answer(x, bytes)) {
		pthread_mutex_unlock(&x->lock);
		return cairn_error(EAGAIN, "http: too many bytes of answers are held");
	}
	ok = add_head(x, status, content_type, headers, num_headers) &&
	     (bare || fifo_print(&x->out, "Content-Length: %zu\r\n", bytes)) &&
	     fifo_add(&x->out, "\r\n", 2) && (is_head_only(x, status) || fifo_add(&x->out, body, bytes));
	if (!ok) {
		x->out.begin = x->out.end = 0;
		pthread_mutex_unlock(&x->lock);
		return cairn_error(ENOMEM, "http: no memory for an answer of %zu bytes", bytes);
	}
	x->started = x->finished = true;
	x->status = status;
	pthread_mutex_unlock(&x->lock);
	http_body_free(x);
	finish(x);
	return 0;
}

int cairn_http_stream(struct cairn_http_exchange *x, int status, const char *content_type,
		      const struct cairn_http_field *headers, int num_headers)
{
	bool ok, chunked = x->head.minor > 0 && !is_head_only(x, status);

	CAIRN_TRY(check_fields(status, content_type, headers, num_headers));
	pthread_mutex_lock(&x->lock);
	if (x->started) {
		pthread_mutex_unlock(&x->lock);
		return cairn_error(EINVAL, "http: answered twice");
	}
	/* in HTTP/1.0 a stream ends when the connection closes */
	x->close |= !x->head.minor;
	ok = add_head(x, status, content_type, headers, num_headers) &&
	     (!chunked || fifo_print(&x->out, "Transfer-Encoding: chunked\r\n")) &&
	     fifo_add(&x->out, "\r\n", 2);
	if (!ok) {
		x->out.begin = x->out.end = 0;
		pthread_mutex_unlock(&x->lock);
		return cairn_error(ENOMEM, "http: no memory for the head of a stream");
	}
	x->started = true;
	x->chunked = chunked;
	x->status = status;
	pthread_mutex_unlock(&x->lock);
	http_body_free(x);
	http_mark_ready(x);
	return 0;
}

static int push_locked(struct cairn_http_exchange *x, const void *data, size_t bytes)
{
	size_t room = x->http->opt.stream_buffer - HTTP_END_BYTES;
	char size[24];
	int n = x->chunked ? snprintf(size, sizeof(size), "%zx\r\n", bytes) : 0;
	size_t need = bytes + (size_t)n + (x->chunked ? 2 : 0);

	if (!x->started || x->finished)
		return cairn_error(EINVAL, "http: push without an open stream");
	if (is_head_only(x, x->status))
		return 0;
	if (need > room)
		return cairn_error(EMSGSIZE, "http: %zu bytes do not fit into a buffer of %zu", bytes,
				   x->http->opt.stream_buffer);
	if (x->out.end - x->out.begin + need > room)
		return -EAGAIN;
	if (!fifo_reserve(&x->out, need))
		return cairn_error(ENOMEM, "http: no memory for a stream");
	fifo_add(&x->out, size, (size_t)n);
	fifo_add(&x->out, data, bytes);
	fifo_add(&x->out, "\r\n", x->chunked ? 2 : 0);
	return 0;
}

int cairn_http_push(struct cairn_http_exchange *x, const void *data, size_t bytes)
{
	int ret;

	if (atomic_load(&x->gone))
		return -EPIPE;
	if (!bytes)
		return 0;	/* an empty chunk would end the stream */
	pthread_mutex_lock(&x->lock);
	ret = push_locked(x, data, bytes);
	pthread_mutex_unlock(&x->lock);
	if (!ret)
		http_mark_ready(x);
	return ret;
}

size_t cairn_http_unsent(struct cairn_http_exchange *x)
{
	size_t n;

	pthread_mutex_lock(&x->lock);
	n = x->out.end - x->out.begin;
	pthread_mutex_unlock(&x->lock);
	return n;
}

void cairn_http_end(struct cairn_http_exchange *x)
{
	pthread_mutex_lock(&x->lock);
	/* abort if the last chunk does not fit: a truncated stream must not look complete */
	x->aborted = !x->started || (x->chunked && !fifo_add(&x->out, "0\r\n\r\n", HTTP_END_BYTES));
	x->finished = true;
	pthread_mutex_unlock(&x->lock);
	finish(x);
}

void cairn_http_abort(struct cairn_http_exchange *x)
{
	pthread_mutex_lock(&x->lock);
	x->aborted = x->finished = true;
	pthread_mutex_unlock(&x->lock);
	finish(x);
}
