/* SPDX-License-Identifier: Apache-2.0 */
/*
 * http - an HTTP/1.1 server: one epoll thread, strict requests, answers from any thread
 *
 * The loop's thread reads and checks requests and hands whole ones to a route's handler. A handler answers
 * at once, or keeps the exchange and answers later from any thread: with one text, or with a stream.
 *
 *	static void completions(void *ctx, struct cairn_http_exchange *x,
 *				const struct cairn_http_request *req)
 *	{
 *		struct job *job = job_parse(req->body, req->body_bytes);
 *
 *		if (!job) {
 *			cairn_http_error(x, 400, "invalid_request_error", "prompt", NULL, "prompt: missing");
 *			return;
 *		}
 *		job->x = x;
 *		cairn_http_watch(x, &(struct cairn_http_watch){ job_client_gone, job_free, job });
 *		scheduler_submit(ctx, job);	// another thread goes on from here:
 *	}
 *				//   cairn_http_stream(x, 200, "text/event-stream", NULL, 0);
 *				//   cairn_http_push(x, "data: {...}\n\n", n);	-EAGAIN, -EPIPE
 *				//   cairn_http_end(x);
 *	static const struct cairn_http_route routes[] = {
 *		{ "GET", "/health", CAIRN_HTTP_OPEN, 0, health, NULL },
 *		{ "POST", "/v1/completions", CAIRN_HTTP_JSON, 0, completions, &scheduler },
 *	};
 *	struct cairn_http_options options = { .port = 8000, .api_key = key, .log = access_log };
 *
 *	CAIRN_TRY(cairn_http_create(&http, &options, routes, ARRAY_SIZE(routes)));
 *	...						// SIGTERM:
 *	cairn_http_drain(http, 30000);			// again: cuts at once
 *	cairn_http_wait(http, -1);
 *	cairn_http_destroy(http);
 *
 * Each exchange must be finished by exactly one of cairn_http_answer(), cairn_http_error(),
 * cairn_http_end() and cairn_http_abort(); until then the pointer is good, whatever became of the client and
 * of the server. One producer at a time may call for an exchange.
 *
 * Checks before any handler, in this order; errors are always {"error":{"message","type","param","code"}}:
 *   400 (and close)	a request line or header that RFC 9112 forbids: controls, NUL, bare LF or CR, folding,
 *			"Host :", no Host or two, two Content-Length (even alike) or one not of digits alone,
 *			it and Transfer-Encoding, chunked not last, bad chunks, bad %xx
 *   414, 431, 505	long target; long header or too many fields; a version other than 1.x
 *   501, 417		unknown method, transfer coding other than chunked; an Expect other than 100-continue
 *   503		draining, more than max_requests at once, bodies beyond max_body_total; Retry-After
 *   401		no, or the wrong key, where one is set and the route is not open: unknown paths too
 *   404, 405, 415, 413	no such path; not with this method (Allow); not JSON; the body is, or grows, too long
 *   408		head and body took longer than request_timeout_ms
 * A connection is kept only where its state is beyond doubt: after an error that left a body unread it is
 * closed, once the client had time to read the answer.
 *
 * A client that closes, or half-closes, while its answer is not written is gone: there is nobody to
 * generate for. HEAD and OPTIONS are served where a route names them. No TLS: that is a proxy's task.
 *
 * Errors: -EINVAL, -ENOMEM, -EIO (the system refused; the text says what).
 */
#ifndef CAIRN_HTTP_H
#define CAIRN_HTTP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct cairn_http;
struct cairn_http_exchange;
struct cairn_http_field {
	const char *name, *value;
};

struct cairn_http_request {
	const char *method;
	const char *path;		/* %xx decoded; no control bytes */
	const char *query;		/* as sent, after the '?'; "" where none */
	const char *peer;		/* numeric address */
	const char *id;			/* the client's X-Request-Id if it is a plain one, else made here */
	const struct cairn_http_field *headers;
	int num_headers;
	const char *body;		/* until the answer or stream begins; a NUL after it */
	size_t body_bytes;
};

#define CAIRN_HTTP_OPEN		(1u << 0)	/* without the key, while draining, beyond max_requests */
#define CAIRN_HTTP_JSON		(1u << 1)	/* 415 unless the body is said to be application/json */

/* Called in the loop's thread: must not block. */
typedef void cairn_http_handler(void *ctx, struct cairn_http_exchange *x,
				const struct cairn_http_request *req);

struct cairn_http_route {
	const char *method, *path;	/* a path that ends in a star after a slash: all that begins so */
	unsigned flags;
	size_t max_body;		/* 0: the options' */
	cairn_http_handler *handler;
	void *ctx;
};

/* Why an exchange is over. */
enum cairn_http_outcome {
	CAIRN_HTTP_COMPLETE,
	CAIRN_HTTP_GONE,		/* the client closed */
	CAIRN_HTTP_STALLED,		/* it did not read for stall_timeout_ms: cut */
	CAIRN_HTTP_CUT,			/* aborted, or by the end of the drain */
};
extern const char *const cairn_http_outcome_names[];

struct cairn_http_log {
	const char *peer, *id, *method;	/* "-" where the request was not understood so far */
	const char *path;		/* controls, quotes and non-ASCII as \xHH: safe to print */
	int status;			/* 0: none was sent */
	enum cairn_http_outcome outcome;
	uint64_t bytes_in, bytes_out;	/* of the request's body; of the answer with its head */
	uint64_t first_us, total_us;	/* from the request's first byte to the answer's first, and last */
};

struct cairn_http_options {		/* a number that is 0: the default named */
	const char *address;		/* numeric, IPv4 or IPv6; NULL: 127.0.0.1 */
	int port;			/* 0: the system picks one, cairn_http_port() tells */
	int backlog;			/* 1024 */
	const char *api_key;		/* NULL: none needed */
	int max_connections;		/* 4096; beyond: 503 and close */
	int max_per_address;		/* 0: no limit; an IPv6 address counts by its /64 */
	int max_requests;		/* 1024 being handled at once; beyond: 503 */
	int max_fields;			/* 100 */
	size_t max_target;		/* 4096 */
	size_t max_header;		/* 16 KiB, request line and all */
	size_t max_body;		/* 8 MiB */
	size_t max_body_total;		/* 256 MiB, of all connections */
	size_t stream_buffer;		/* 256 KiB */
	int sockbuf;			/* 64 KiB each way; left alone the system grows them to megabytes */
	int idle_timeout_ms;		/* 75 s without a request: closed */
	int request_timeout_ms;		/* 30 s from a request's first byte to its last: 408 */
	int stall_timeout_ms;		/* 30 s in which no byte of an answer was taken: cut */
	void (*log)(void *ctx, const struct cairn_http_log *entry);	/* loop's thread; NULL: none */
	void *log_ctx;
};

struct cairn_http_stats {
	int connections, exchanges;	/* open now; handed to handlers and not finished */
	uint64_t accepted, refused, requests, stalled;
	size_t body_bytes;		/* of requests, held now */
};

/* Routes are copied, strings are not. The socket listens when this returns. */
int cairn_http_create(struct cairn_http **out, const struct cairn_http_options *options,
		      const struct cairn_http_route *routes, int num_routes);
int cairn_http_port(const struct cairn_http *http);
void cairn_http_stats(struct cairn_http *http, struct cairn_http_stats *stats);

/*
 * No new connections, idle ones closed, new requests on others 503; what is in flight has so long. The second
 * call cuts at once. Any thread; a signal handler too.
 */
void cairn_http_drain(struct cairn_http *http, int deadline_ms);
/* Until the drain is over: 0, or -ETIMEDOUT. timeout_ms < 0: for ever. */
int cairn_http_wait(struct cairn_http *http, int timeout_ms);
/* Cuts what is left. Exchanges not finished stay good, their clients gone. NULL is legal. */
void cairn_http_destroy(struct cairn_http *http);

/*
 * gone: in the loop's thread, at most once, when the client is gone and the exchange not finished; it may be
 * finished there. done: once and last, from any thread, when it is finished and nothing of it is left to
 * send: frees ctx. Both are called without locks held here. To be set within the handler.
 */
struct cairn_http_watch {
	void (*gone)(void *ctx);
	void (*done)(void *ctx);
	void *ctx;
};
void cairn_http_watch(struct cairn_http_exchange *x, const struct cairn_http_watch *watch);
bool cairn_http_gone(const struct cairn_http_exchange *x);

/* Whole answers. content_type NULL: none. After a failure the exchange is still to be finished. */
int cairn_http_answer(struct cairn_http_exchange *x, int status, const char *content_type,
		      const struct cairn_http_field *headers, int num_headers,
		      const void *body, size_t bytes);
/* param, code: NULL is null. Never fails: what cannot be sent is aborted. */
void cairn_http_error(struct cairn_http_exchange *x, int status, const char *type, const char *param,
		      const char *code, const char *fmt, ...) __attribute__((format(printf, 6, 7)));
/* The same object as text for a stream's event. Cut at len; returns the length. */
size_t cairn_http_error_text(char *buf, size_t len, const char *type, const char *param, const char *code,
			     const char *message);

/* Begins a stream: the head is sent at once. */
int cairn_http_stream(struct cairn_http_exchange *x, int status, const char *content_type,
		      const struct cairn_http_field *headers, int num_headers);
/*
 * All of it or nothing. -EAGAIN: the buffer is full, the client does not read; -EPIPE: it is gone;
 * -EMSGSIZE: would not fit into an empty buffer; -ENOMEM.
 */
int cairn_http_push(struct cairn_http_exchange *x, const void *data, size_t bytes);
size_t cairn_http_unsent(struct cairn_http_exchange *x);
void cairn_http_end(struct cairn_http_exchange *x);
/* Closes the connection as it is: the client sees an answer cut short. Legal at any time. */
void cairn_http_abort(struct cairn_http_exchange *x);

/* Value of the first header so named, NULL where there is none. */
const char *cairn_http_header(const struct cairn_http_request *req, const char *name);

#endif
