/* SPDX-License-Identifier: Apache-2.0 */
/*
 * http_impl - structures shared by the source files of the HTTP server
 *
 *   http.c		options, creation and destruction of a server; its event loop
 *   http_conn.c	one connection: receive, send, time-outs
 *   http_request.c	checks of a request, routes
 *   http_exchange.c	the producer's side of an exchange, callable from any thread
 *   http_error.c	errors as JSON
 *   http_origin.c	Host and Origin: DNS rebinding, CORS
 *   http_listen.c	the listening socket, TCP or Unix
 *   http_peers.c	connections per client address
 *
 * Threads and locks. Only the loop's thread uses a connection. An exchange has two holders: the loop, until
 * the answer is sent or the client is gone, and the producer, until it has finished the exchange. Each holds
 * a reference; dropping the last one calls watch.done. The exchange's lock protects what both write: `out`
 * and the progress flags. A producer that has changed one of these puts the exchange on the server's ready
 * list, which also holds a reference, and wakes the loop. While a lock is held, no other lock is taken and no
 * callback runs.
 */
#ifndef CAIRN_HTTP_IMPL_H
#define CAIRN_HTTP_IMPL_H

#include <netinet/in.h>
#include <pthread.h>
#include <stdatomic.h>

#include "serving/http/http_parse.h"

#define HTTP_FIRST_BUFFER	2048
#define HTTP_LINGER_MS		2000	/* time for a client to read an error before the reset */
#define HTTP_RETRY_AFTER_S	1
#define HTTP_SHORT_ANSWER	65536	/* bytes; longer ones count for max_answer_total */
#define HTTP_ID_LEN		64
#define HTTP_END_BYTES		5	/* length of the last chunk; every stream buffer reserves it */

/* Send queue: the bytes [begin, end) of data are not yet sent. */
struct http_fifo {
	char *data;
	size_t begin, end, room;
};

struct cairn_http_exchange {
	struct cairn_http *http;
	struct http_conn *conn;			/* loop only; NULL once the client is gone or all is sent */
	struct cairn_http_exchange *next_ready;	/* under the server's lock */
	bool ready;				/* under the server's lock: on its ready list */
	atomic_int refs;
	atomic_bool gone;			/* written by the loop */

	pthread_mutex_t lock;
	struct http_fifo out;			/* under lock */
	bool started, chunked, finished, aborted;	/* under lock; written by the producer */
	int status;				/* under lock */

	/* the request; constant once the handler is called */
	struct cairn_http_request req;
	struct http_head head;
	const char *cors;			/* value of Access-Control-Allow-Origin; NULL: none */
	const struct cairn_http_route *route;	/* NULL: none matches */
	char *text;				/* the head; fields and req point into it */
	struct cairn_http_field *fields;
	char id[HTTP_ID_LEN + 1], peer[INET6_ADDRSTRLEN];
	char *body;
	size_t body_bytes, body_room;
	size_t answer_bytes;			/* counted in answer_bytes of the server */
	bool close;				/* after the answer; loop only, under lock once handled */
	bool counted;				/* counted in num_exchanges */
	struct cairn_http_watch watch;
	uint64_t begin_ns, first_ns, bytes_out;	/* loop only: request's first byte; answer's first byte */
};

enum http_phase {
	HTTP_IDLE,		/* no byte of the next request received yet */
	HTTP_IN_HEAD,
	HTTP_IN_BODY,
	HTTP_ANSWER,		/* the request is complete or refused; its answer is not yet sent */
	HTTP_LINGER,		/* the last answer is sent; discards input until the client closes */
	HTTP_DEAD,
};

struct http_conn {
	struct cairn_http *http;
	struct http_conn *prev, *next;
	int fd;
	enum http_phase phase;
	uint32_t events;		/* registered with epoll */
	bool waits_to_write;
	int64_t deadline_ms;		/* end of this phase; in HTTP_ANSWER: for the next byte to be sent */
	int64_t end_ms;			/* in HTTP_ANSWER: for the last byte */
	struct http_peer *peer;
	struct in6_addr address;
	char *in;			/* received, not yet consumed; NULL while empty */
	size_t in_len, in_room;
	struct http_scan scan;
	struct http_chunks chunks;
	uint64_t begin_ns;
	struct cairn_http_exchange *x;
};

struct http_peer {
	struct http_peer *next;
	struct in6_addr address;
	int connections;
};
#define HTTP_PEER_BUCKETS	1024

struct cairn_http {
	struct cairn_http_options opt;
	struct http_limits limits;
	struct cairn_http_route *routes;
	int num_routes, port;
	bool local;			/* Host and Origin must name this machine */
	size_t key_bytes;
	atomic_int refs;		/* one for the owner and one per exchange */

	/* used by the loop's thread only */
	int listen_fd, epoll_fd, spare_fd;
	struct http_conn *conns, *dead;
	atomic_int num_conns;
	bool draining;
	int64_t drain_deadline_ms, next_sweep_ms;
	struct http_peer *peers[HTTP_PEER_BUCKETS];
	uint64_t id_seed, id_count;
	char *unix_path;		/* a copy; opt.unix_path points to it */
	dev_t unix_dev;			/* identity of the Unix socket's file */
	ino_t unix_ino;

	pthread_t thread;
	int wake_fd;			/* eventfd: an exchange is ready or a drain was requested */
	atomic_int drain_calls, drain_ms;
	atomic_int num_exchanges;
	atomic_size_t body_bytes, answer_bytes;
	atomic_ullong accepted, refused, requests, stalled;
	pthread_mutex_t lock;		/* protects every member below */
	pthread_cond_t over;
	struct cairn_http_exchange *ready, **ready_tail;
	bool is_over;
};

/* http.c */
int64_t http_now_ms(void);
uint64_t http_now_ns(void);
void http_put(struct cairn_http *http);
void http_mark_ready(struct cairn_http_exchange *x);

/* http_listen.c */
int http_listen(struct cairn_http *http);
void http_close_listener(struct cairn_http *http);	/* does nothing if it is closed already */

/* http_peers.c */
struct http_peer *http_peer_get(struct cairn_http *http, const struct in6_addr *address);
void http_peer_put(struct cairn_http *http, struct http_peer *peer);
void http_address_of(const struct sockaddr_storage *ss, struct in6_addr *address);
void http_address_text(const struct in6_addr *address, char text[INET6_ADDRSTRLEN]);

/* http_origin.c */
int http_origins_check(const char *list);	/* -EINVAL: an element is not an origin; NULL is legal */
bool http_is_loopback(const char *address);
/* Returns false if Host or Origin is refused; the exchange has then been answered. Sets x->cors. */
bool http_origin_ok(struct cairn_http_exchange *x);
/* If x is the preflight of an allowed origin, answers it with the path's methods. Returns false otherwise. */
bool http_preflight(struct cairn_http_exchange *x, const char *methods);

/* http_conn.c */
/* Takes ownership of fd and peer, but only on success. The new connection is http->conns. */
int http_conn_open(struct cairn_http *http, int fd, const struct in6_addr *address, struct http_peer *peer);
void http_conn_event(struct http_conn *c, uint32_t events);
void http_conn_ready(struct http_conn *c);
void http_conn_sweep(struct http_conn *c, int64_t now);
void http_conn_drop(struct http_conn *c, enum cairn_http_outcome why);
void http_conn_drain(struct http_conn *c);
void http_conn_refuse(struct http_conn *c, int status, const char *why);

/*
 * http_request.c: c->in must hold a complete head. Creates the exchange c->x, or returns -ENOMEM. A request
 * that fails a check has been answered on return.
 */
int http_request_begin(struct http_conn *c, size_t head_bytes);
void http_request_handle(struct cairn_http_exchange *x);
/* Answers a request whose head is malformed or late, or a connection beyond the limit, and closes. */
void http_refuse(struct http_conn *c, int status, const char *why);
/* Returns false if the body exceeds its limit or max_body_total; the exchange has then been answered. */
bool http_body_append(struct cairn_http_exchange *x, const char *data, size_t n);
/* Returns false if `more` announced bytes would exceed max_body; the exchange has then been answered. */
bool http_body_fits(struct cairn_http_exchange *x, uint64_t more);
void http_body_free(struct cairn_http_exchange *x);

/* http_exchange.c */
struct cairn_http_exchange *http_exchange_new(struct http_conn *c);
void http_exchange_put(struct cairn_http_exchange *x);
const char *http_reason(int status);

#endif
