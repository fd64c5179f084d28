/* SPDX-License-Identifier: Apache-2.0 */
/* http_test - an HTTP client that sends raw bytes, for the server's tests */
#ifndef CAIRN_HTTP_TEST_H
#define CAIRN_HTTP_TEST_H

#include <arpa/inet.h>
#include <jansson.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "primitives/base/error.h"
#include "serving/http/http.h"

/* Measurements of family http, in http_load_test.c and http_rate_test.c. */
void http_measure_mixed(struct cairn_test *t);
void http_measure_requests(struct cairn_test *t);
void http_measure_events(struct cairn_test *t);

static inline double now_s(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (double)ts.tv_sec + (double)ts.tv_nsec * 1e-9;
}

static inline void nap_ms(int ms)
{
	poll(NULL, 0, ms);
}

static inline int dial_port(int port)
{
	struct sockaddr_in a = { .sin_family = AF_INET, .sin_port = htons((uint16_t)port),
				 .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), one = 1;

	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));	/* send each piece as written */
	if (fd >= 0 && connect(fd, (struct sockaddr *)&a, sizeof(a))) {
		close(fd);
		fd = -1;
	}
	return fd;
}

static inline int dial(const struct cairn_http *http)
{
	return dial_port(cairn_http_port(http));
}

/* Sends n bytes. A closed connection is no failure: the server's earlier answer counts. */
static inline void say_n(int fd, const char *bytes, size_t n)
{
	while (n) {
		ssize_t k = send(fd, bytes, n, MSG_NOSIGNAL);

		if (k <= 0)
			return;
		bytes += k;
		n -= (size_t)k;
	}
}

static inline void say(int fd, const char *text)
{
	say_n(fd, text, strlen(text));
}

struct reply {
	int status;		/* 0: no answer, or a truncated one */
	bool closed;		/* the answer says "Connection: close" and an orderly close followed */
	size_t body_bytes, text_bytes;
	char *body;		/* within text, NUL-terminated; chunks are joined */
	char text[1 << 16];	/* head and body */
};

/* Reads at least one byte within ms. 0: orderly close, -1: nothing arrived, -2: the connection was reset. */
static inline ssize_t read_more(int fd, char *to, size_t room, int ms)
{
	struct pollfd p = { fd, POLLIN, 0 };
	ssize_t n;

	if (poll(&p, 1, ms) != 1)
		return -1;
	n = recv(fd, to, room, 0);
	return n < 0 ? -2 : n;
}

static inline bool read_bytes(int fd, struct reply *r, size_t upto, int ms)
{
	while (r->text_bytes < upto) {
		ssize_t n = upto < sizeof(r->text) ?
			    read_more(fd, r->text + r->text_bytes, upto - r->text_bytes, ms) : -1;

		if (n <= 0)
			return false;
		r->text_bytes += (size_t)n;
		r->text[r->text_bytes] = 0;
	}
	return true;
}

static inline bool read_until(int fd, struct reply *r, size_t from, const char *end, int ms)
{
	while (r->text_bytes < from + strlen(end) || !strstr(r->text + from, end)) {
		if (!read_bytes(fd, r, r->text_bytes + 1, ms))
			return false;
	}
	return true;
}

static inline bool read_chunks(int fd, struct reply *r, int ms)
{
	for (;;) {
		size_t at = r->text_bytes, size;

		if (!read_until(fd, r, at, "\r\n", ms))
			return false;
		size = strtoul(r->text + at, NULL, 16);
		r->text_bytes = at;	/* the chunk's data overwrites its size line */
		if (!read_bytes(fd, r, at + size + 2, ms))
			return false;
		r->text_bytes -= 2;
		r->text[r->text_bytes] = 0;
		if (!size)
			return true;
	}
}

/* Reads the next answer of this connection; has_body: false for an answer to HEAD. Returns its status. */
static inline int read_reply_of(int fd, struct reply *r, int ms, bool has_body)
{
	const char *length;
	bool ok;

	r->status = 0;
	r->closed = false;
	r->text_bytes = r->body_bytes = 0;
	r->text[0] = 0;
	if (!read_until(fd, r, 0, "\r\n\r\n", ms))
		return 0;
	r->body = r->text + r->text_bytes;
	length = strcasestr(r->text, "\r\nContent-Length: ");
	if (!has_body)
		ok = true;
	else if (strcasestr(r->text, "\r\nTransfer-Encoding: chunked"))
		ok = read_chunks(fd, r, ms);
	else
		ok = !length || read_bytes(fd, r, r->text_bytes + strtoul(length + 18, NULL, 10), ms);
	r->body_bytes = (size_t)(r->text + r->text_bytes - r->body);
	if (ok && sscanf(r->text, "HTTP/1.1 %d ", &r->status) != 1)
		r->status = 0;
	if (strcasestr(r->text, "\r\nConnection: close")) {
		char c;

		r->closed = read_more(fd, &c, 1, ms) == 0;
	}
	return r->status;
}

static inline int read_reply(int fd, struct reply *r)
{
	return read_reply_of(fd, r, 5000, true);
}

/* Sends one request on a new connection and returns the answer's status. */
static inline int ask_n(const struct cairn_http *http, const char *bytes, size_t n, struct reply *r)
{
	int fd = dial(http);

	say_n(fd, bytes, n);
	read_reply(fd, r);
	close(fd);
	return r->status;
}

static inline int ask(const struct cairn_http *http, const char *text, struct reply *r)
{
	return ask_n(http, text, strlen(text), r);
}

/* Returns whether the answer is an error in OpenAI's format with all four members. */
static inline bool is_error(const struct reply *r)
{
	json_t *root = json_loadb(r->body, r->body_bytes, JSON_REJECT_DUPLICATES, NULL);
	json_t *e = json_object_get(root, "error"), *param = json_object_get(e, "param");
	json_t *code = json_object_get(e, "code");
	bool ok = json_object_size(root) == 1 && json_object_size(e) == 4 &&
		  json_string_length(json_object_get(e, "message")) &&
		  json_string_length(json_object_get(e, "type")) &&
		  (json_is_null(param) || json_is_string(param)) &&
		  (json_is_null(code) || json_is_string(code)) &&
		  strcasestr(r->text, "\r\nContent-Type: application/json\r\n");

	json_decref(root);
	return ok;
}

/* Waits up to ms for a condition that another thread makes true; returns whether it holds. */
#define WAIT_FOR(cond, ms) ({					\
	double end_ = now_s() + (ms) * 1e-3;			\
	bool is_met_;						\
	while (!(is_met_ = (cond)) && now_s() < end_)		\
		nap_ms(1);					\
	is_met_; })

/* Starts a server or ends the test. */
static inline struct cairn_http *serve(struct cairn_test *t, const struct cairn_http_options *o,
				       const struct cairn_http_route *routes, int num_routes)
{
	struct cairn_http *http = NULL;

	if (!EXPECT(t, !cairn_http_create(&http, o, routes, num_routes))) {
		cairn_note(t, "%s", cairn_last_error());
		exit(3);
	}
	return http;
}

#endif
