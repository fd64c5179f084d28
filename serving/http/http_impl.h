/* SPDX-License-Identifier: Apache-2.0 */
/*
 * http_impl - what the parts of the HTTP server share
 *
 *   http.c		options, life and end of a server; its thread
 *   http_conn.c	a connection: bytes in, bytes out, time-outs
 *   http_request.c	checks of a request, routes
 *   http_exchange.c	what producers call, from any thread
 *   http_error.c	errors as JSON
 *   http_peers.c	connections by address
 *
 * Who may touch what. A connection belongs to the loop's thread alone. An exchange has two holders, the loop
 * (until its bytes are sent or its client is gone) and the producer (until it finished it); each holds a
 * reference, and the last one out calls watch.done. What both write, `out` and the flags of its progress,
 * is under the exchange's lock. A producer that changed something puts the exchange on the server's list of
 * ready ones and wakes the loop; the list holds a reference too. Locks are leaves: nothing is called with one
 * held, and a server's is never taken together with an exchange's.
 */
#ifndef CAIRN_HTTP_IMPL_H
#define CAIRN_HTTP_IMPL_H

#include <netinet/in.h>
#include <pthread.h>
#include <stdatomic.h>

#include "serving/http/http_parse.h"

#define HTTP_FIRST_BUFFER	2048
#define HTTP_LINGER_MS		2000	/* for a client to read an error before the connection is reset */
#define HTTP_RETRY_AFTER_S	1
#define HTTP_ID_LEN		64
#define HTTP_END_BYTES		5	/* of the last chunk: stream buffers keep room for it */

/* Bytes on their way out: [begin, end) of data. */
struct http_fifo {
	char *data;
	size_t begin, end, room;
};

struct cairn_http_exchange {
	struct cairn_http *http;
	struct http_conn *conn;			/* loop's; NULL once the client is gone or all is sent */
	struct cairn_http_exchange *next_ready;	/* server's lock */
	bool ready;				/* server's lock: on its list */
	atomic_int refs;
	atomic_bool gone;			/* loop writes */

	pthread_mutex_t lock;
	struct http_fifo out;
	bool started, chunked, finished, aborted;	/* lock; by the producer */
	int status;				/* lock */

	/* of the request: fixed before the handler is called */
	struct cairn_http_request req;
	struct http_head head;
	const struct cairn_http_route *route;	/* NULL: none was found */
	char *text;				/* the head's bytes */
	struct cairn_http_field *fields;
	char id[HTTP_ID_LEN + 1], peer[INET6_ADDRSTRLEN];
	char *body;
	size_t body_bytes, body_room;
	bool close;				/* after the answer; the loop's, from the handler on lock */
	bool counted;				/* among the requests being handled */
	bool told;				/* loop's: watch.gone was called */
	struct cairn_http_watch watch;
	enum cairn_http_outcome outcome;	/* loop's */
	uint64_t begin_ns, first_ns, bytes_out;	/* loop's */
};

enum http_phase {
	HTTP_IDLE,		/* no byte of a request yet */
	HTTP_IN_HEAD,
	HTTP_IN_BODY,
	HTTP_ANSWER,		/* a handler has it */
	HTTP_LINGER,		/* all is said; reads until the client closes */
	HTTP_DEAD,
};

struct http_conn {
	struct cairn_http *http;
	struct http_conn *prev, *next;
	int fd;
	enum http_phase phase;
	uint32_t events;		/* as epoll knows them */
	bool waits_to_write, read_closed;
	int64_t deadline_ms;		/* of this phase; HTTP_ANSWER: of progress */
	struct http_peer *peer;
	struct in6_addr address;
	char *in;			/* NULL while there is nothing in it */
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
	size_t key_bytes;
	atomic_int refs;		/* the owner, and each exchange */

	/* loop's */
	int listen_fd, epoll_fd, spare_fd;
	struct http_conn *conns, *dead;
	atomic_int num_conns;
	bool draining;
	int64_t drain_deadline_ms, next_sweep_ms;
	struct http_peer *peers[HTTP_PEER_BUCKETS];
	uint64_t id_seed, id_count;

	pthread_t thread;
	int wake_fd;			/* eventfd: something is ready, or asked for */
	atomic_int drain_calls, drain_ms;
	atomic_int num_exchanges;
	atomic_size_t body_bytes;
	atomic_ullong accepted, refused, requests, stalled;
	pthread_mutex_t lock;		/* of the list, and of what follows */
	pthread_cond_t over;
	struct cairn_http_exchange *ready, **ready_tail;
	bool is_over;
};

/* http.c */
int64_t http_now_ms(void);
uint64_t http_now_ns(void);
void http_put(struct cairn_http *http);
void http_mark_ready(struct cairn_http_exchange *x);

/* http_peers.c */
struct http_peer *http_peer_get(struct cairn_http *http, const struct in6_addr *address);
void http_peer_put(struct cairn_http *http, struct http_peer *peer);
void http_address_of(const struct sockaddr_storage *ss, struct in6_addr *address);
void http_address_text(const struct in6_addr *address, char text[INET6_ADDRSTRLEN]);

/* http_conn.c */
/* Takes fd and peer, on success only. The new one is http->conns. */
int http_conn_open(struct cairn_http *http, int fd, const struct in6_addr *address, struct http_peer *peer);
void http_conn_event(struct http_conn *c, uint32_t events);
void http_conn_ready(struct http_conn *c);
void http_conn_sweep(struct http_conn *c, int64_t now);
void http_conn_drop(struct http_conn *c, enum cairn_http_outcome why);
void http_conn_drain(struct http_conn *c);
void http_conn_refuse(struct http_conn *c, int status, const char *why);

/* http_request.c: the head in c->in is whole. An exchange is made, or -ENOMEM. An error is answered. */
int http_request_begin(struct http_conn *c, size_t head_bytes);
void http_request_handle(struct cairn_http_exchange *x);
/* Answers for a request that was not understood, or not in time; closes afterwards. */
void http_refuse(struct http_conn *c, int status, const char *why);
bool http_body_append(struct cairn_http_exchange *x, const char *data, size_t n);
void http_body_free(struct cairn_http_exchange *x);

/* http_exchange.c */
struct cairn_http_exchange *http_exchange_new(struct http_conn *c);
void http_exchange_put(struct cairn_http_exchange *x);
const char *http_reason(int status);

#endif
