/* SPDX-License-Identifier: Apache-2.0 */
/*
 * http - an HTTP/1.1 server: one epoll thread, strict requests, answers from any thread
 *
 * The event loop's thread reads and checks requests and passes each complete one to its route's handler. A
 * handler either answers at once or keeps the exchange (one request and its answer) and answers later, from
 * any thread. An answer is one body or a stream.
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
 *		scheduler_submit(ctx, job);	// another thread continues with:
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
 *	cairn_http_drain(http, 30000);			// a second call cuts every connection at once
 *	cairn_http_wait(http, -1);
 *	cairn_http_destroy(http);
 *
 * Each exchange must be finished by exactly one successful cairn_http_answer(), cairn_http_error(),
 * cairn_http_end() or cairn_http_abort(). Until then its pointer stays valid, even if the client has
 * disconnected or the server was destroyed. The producer is the thread that answers; an exchange has one at a
 * time.
 *
 * Checks made before any handler, in this order; errors are always
 * {"error":{"message","type","param","code"}}:
 *   400 (and close)	the request line or a header violates RFC 9112: a control byte, NUL, a bare LF or CR,
 *			a folded line, "Host :", no Host or two, two Content-Length (even equal ones) or one
 *			with anything but digits, Content-Length together with Transfer-Encoding, chunked not
 *			the last coding, malformed chunks, malformed %xx
 *   414, 431, 505	target too long; header too long or too many fields; a version other than 1.x
 *   501, 417		unknown method, transfer coding other than chunked; an Expect other than 100-continue
 *   403		a server without a key: Host or Origin is not this machine (check_host)
 *   401		a key is set, the route is not open, the key is missing or wrong; unknown paths too
 *   503		draining; sends Retry-After
 *   404, 405, 415	unknown path; wrong method for the path (sends Allow); not JSON
 *   413		the body is too long: either its announced length or, later, what has arrived
 *   503		max_requests reached, or bodies beyond max_body_total; sends Retry-After
 *   408		head and body took longer than request_timeout_ms
 * A connection is kept alive only if the server knows where the next request begins. After an error that left
 * a body unread, the server closes the connection once the client has had time to read the answer.
 *
 * A client that closes or half-closes its connection before its answer is sent counts as gone. Routes of GET
 * serve HEAD too. OPTIONS is served only if a route names it, or as the preflight of an allowed origin. There
 * is no TLS: put a proxy in front.
 *
 * Errors: -EINVAL, -ENOMEM, -EIO (a system call failed; cairn_last_error() says which).
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
	const char *query;		/* after the '?', not decoded; "" if there is none */
	const char *peer;		/* the client's numeric address, or "unix" */
	const char *id;			/* the client's X-Request-Id if well-formed, else generated */
	const struct cairn_http_field *headers;
	int num_headers;
	const char *body;		/* NUL-terminated; valid until the answer or stream begins */
	size_t body_bytes;
};

/* OPEN: served without the key, while draining and beyond max_requests */
#define CAIRN_HTTP_OPEN		(1u << 0)
#define CAIRN_HTTP_JSON		(1u << 1)	/* 415 unless Content-Type is application/json */

/* Called in the event loop's thread; must not block. */
typedef void cairn_http_handler(void *ctx, struct cairn_http_exchange *x,
				const struct cairn_http_request *req);

struct cairn_http_route {
	const char *method, *path;	/* a path that ends in slash and star matches as a prefix */
	unsigned flags;			/* CAIRN_HTTP_OPEN, CAIRN_HTTP_JSON */
	size_t max_body;		/* bytes; 0: max_body of the options */
	cairn_http_handler *handler;
	void *ctx;
};

/* How an exchange ended. */
enum cairn_http_outcome {
	CAIRN_HTTP_COMPLETE,
	CAIRN_HTTP_GONE,		/* the client closed the connection */
	CAIRN_HTTP_STALLED,		/* the client read nothing for stall_timeout_ms; connection reset */
	CAIRN_HTTP_CUT,			/* aborted by the producer, too late, or cut when the drain ended */
};
extern const char *const cairn_http_outcome_names[];

struct cairn_http_log {
	const char *peer, *id, *method;	/* id and method: "-" if they could not be parsed */
	const char *path;		/* controls, quotes and non-ASCII as \xHH: safe to print */
	int status;			/* 0: no status was sent */
	enum cairn_http_outcome outcome;
	uint64_t bytes_in, bytes_out;	/* request body; answer with its head */
	uint64_t first_us, total_us;	/* from the request's first byte to the answer's first; to its end */
};

struct cairn_http_options {		/* a zero number means the default given with the member */
	const char *address;		/* numeric, IPv4 or IPv6; NULL: 127.0.0.1 */
	/*
	 * A Unix socket at this path instead of TCP, with mode 0660. A socket file that nobody listens on is
	 * replaced. Peers have no addresses: all are called "unix", and max_per_address does not apply.
	 */
	const char *unix_path;
	int port;			/* 0: chosen by the system, see cairn_http_port() */
	int backlog;			/* 1024; argument of listen() */
	const char *api_key;		/* NULL: no key is required */
	/*
	 * With a loopback address and no key: 403 unless Host, and Origin if there is one, are localhost,
	 * 127.0.0.1, [::1] or the address; or Origin is allowed, or Host is that of an allowed origin.
	 */
	bool check_host;
	const char *allow_origin;	/* CORS: "https://a.b, http://c:80" or "*"; NULL: none */
	int max_connections;		/* 4096; beyond: 503 and close */
	int max_per_address;		/* connections; 0: no limit; IPv6 is counted per /64 */
	int max_requests;		/* 1024 in progress at once; beyond: 503 */
	int max_fields;			/* 100 header fields */
	size_t max_target;		/* 4096 bytes */
	size_t max_header;		/* 16 KiB including the request line */
	size_t max_body;		/* 8 MiB */
	size_t max_body_total;		/* 256 MiB over all connections */
	size_t max_answer_total;	/* 256 MiB of unsent answers; only answers over 64 KiB are counted */
	size_t stream_buffer;		/* 256 KiB per stream; at least 1024 bytes */
	int sockbuf;			/* 64 KiB each way; the system's auto-tuning would reach megabytes */
	int idle_timeout_ms;		/* 75 s; a connection without a request for this long is closed */
	int request_timeout_ms;		/* 30 s from a request's first byte to its last; then 408 */
	int stall_timeout_ms;		/* 30 s; a client that reads nothing for this long is reset */
	/*
	 * From a request's last byte to the time when the system has taken the last byte of its answer; then
	 * the client is reset, however the exchange stands. 0: no limit.
	 */
	int answer_timeout_ms;
	void (*log)(void *ctx, const struct cairn_http_log *entry);	/* loop's thread; NULL: no log */
	void *log_ctx;
};

struct cairn_http_stats {
	int connections, exchanges;	/* connections open now; exchanges passed to handlers, not finished */
	uint64_t accepted, refused, requests, stalled;
	size_t body_bytes;		/* memory held for request bodies now */
	size_t answer_bytes;		/* answers over 64 KiB that are not sent yet */
};

/* Copies the routes but not their strings. The socket is listening when this returns. */
int cairn_http_create(struct cairn_http **out, const struct cairn_http_options *options,
		      const struct cairn_http_route *routes, int num_routes);
int cairn_http_port(const struct cairn_http *http);	/* 0 with unix_path */
void cairn_http_stats(struct cairn_http *http, struct cairn_http_stats *stats);

/*
 * Stops accepting connections, closes idle ones and answers new requests with 503. Exchanges in flight have
 * deadline_ms to finish. A second call cuts them at once. May be called from any thread and from a signal
 * handler.
 */
void cairn_http_drain(struct cairn_http *http, int deadline_ms);
/* Waits until the drain is over. Returns 0 or -ETIMEDOUT. timeout_ms < 0: no time-out. */
int cairn_http_wait(struct cairn_http *http, int timeout_ms);
/* Cuts every connection. Unfinished exchanges stay valid; their clients count as gone. NULL is legal. */
void cairn_http_destroy(struct cairn_http *http);

/*
 * gone: called in the loop's thread, at most once, if the client leaves before the exchange is finished. It
 * may finish the exchange. done: the last callback, called exactly once, from any thread, when the exchange
 * is finished and nothing of it is left to send. It may free ctx. Neither is called with a lock of the server
 * held. The watch must be set within the handler.
 */
struct cairn_http_watch {
	void (*gone)(void *ctx);
	void (*done)(void *ctx);
	void *ctx;
};
void cairn_http_watch(struct cairn_http_exchange *x, const struct cairn_http_watch *watch);
bool cairn_http_gone(const struct cairn_http_exchange *x);

/*
 * Sends a complete answer. content_type NULL: no such header. On failure the exchange is not finished;
 * -EAGAIN: the answer is longer than 64 KiB and would exceed max_answer_total.
 */
int cairn_http_answer(struct cairn_http_exchange *x, int status, const char *content_type,
		      const struct cairn_http_field *headers, int num_headers,
		      const void *body, size_t bytes);
/* param, code: NULL is sent as null. Always finishes the exchange; aborts it if the error cannot be sent. */
void cairn_http_error(struct cairn_http_exchange *x, int status, const char *type, const char *param,
		      const char *code, const char *fmt, ...) __attribute__((format(printf, 6, 7)));
/*
 * Writes the same error object to buf, for an event of a stream. Shortens the message if len is too small.
 * Returns the length without the NUL.
 */
size_t cairn_http_error_text(char *buf, size_t len, const char *type, const char *param, const char *code,
			     const char *message);

/* Begins a stream; its head is sent at once. */
int cairn_http_stream(struct cairn_http_exchange *x, int status, const char *content_type,
		      const struct cairn_http_field *headers, int num_headers);
/*
 * Queues all of data or nothing. -EAGAIN: the stream's buffer is full because the client reads too slowly;
 * -EPIPE: the client is gone; -EMSGSIZE: data does not fit even an empty buffer; -ENOMEM.
 */
int cairn_http_push(struct cairn_http_exchange *x, const void *data, size_t bytes);
size_t cairn_http_unsent(struct cairn_http_exchange *x);
void cairn_http_end(struct cairn_http_exchange *x);
/* Finishes the exchange by closing its connection; the client sees a truncated answer. Legal at any time. */
void cairn_http_abort(struct cairn_http_exchange *x);

/* Returns the value of the first header with this name (case-insensitive), or NULL. */
const char *cairn_http_header(const struct cairn_http_request *req, const char *name);

#endif
