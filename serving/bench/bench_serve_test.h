/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench_serve_test - a scripted server for the tests of the load generator
 *
 * One thread per connection reads complete requests and calls the test's function with each request's number.
 * Before the next server starts, the threads of the previous one must have ended.
 */
#ifndef CAIRN_BENCH_SERVE_TEST_H
#define CAIRN_BENCH_SERVE_TEST_H

#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "serving/bench/bench_serve.h"

#define HEAD "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
#define TOKEN "2d\r\ndata: {\"choices\":[{\"index\":0,\"text\":\"ab\"}]}\n\n\r\n"
#define DONE "e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n"

enum then { STAY, CLOSE, RESET }; /* what to do with the connection after an answer */

static struct server {
	int fd, port;
	atomic_int num_requests, num_connections, num_closed;
	enum then (*serve)(int fd, int request);
	_Atomic int64_t first_ns[8], last_ns[8]; /* first and last token of the first 8 requests */
	pthread_t listener;
	char last_body[4096]; /* under body_lock */
} server;
static pthread_mutex_t body_lock = PTHREAD_MUTEX_INITIALIZER;

static inline int64_t now_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (int64_t)ts.tv_sec * 1000000000 + ts.tv_nsec;
}

static inline void say(int fd, const char *text)
{
	send(fd, text, strlen(text), MSG_NOSIGNAL);
}

/* Reads a head and the body announced by its Content-Length. Returns 0 if the client has closed. */
static inline int read_request(int fd, char *text, size_t room)
{
	size_t n = 0, need = 0;
	const char *head_end = NULL;

	while (!head_end || n < need) {
		ssize_t k = n + 1 < room ? recv(fd, text + n, room - n - 1, 0) : 0;

		if (k <= 0)
			return 0;
		n += (size_t)k;
		text[n] = 0;
		head_end = strstr(text, "\r\n\r\n");
		if (head_end) {
			const char *length = strcasestr(text, "Content-Length: ");

			need = (size_t)(head_end - text) + 4 + (length ? strtoul(length + 16, NULL, 10) : 0);
		}
	}
	pthread_mutex_lock(&body_lock);
	snprintf(server.last_body, sizeof(server.last_body), "%s", head_end + 4);
	pthread_mutex_unlock(&body_lock);
	return 1;
}

static inline void *connection(void *arg)
{
	static const struct linger at_once = { 1, 0 };
	int fd = (int)(intptr_t)arg;
	char *text = malloc(1 << 16);
	enum then then = STAY;

	while (then == STAY && read_request(fd, text, 1 << 16))
		then = server.serve(fd, atomic_fetch_add(&server.num_requests, 1));
	if (then == RESET)
		setsockopt(fd, SOL_SOCKET, SO_LINGER, &at_once, sizeof(at_once));
	close(fd);
	free(text);
	atomic_fetch_add(&server.num_closed, 1); /* this thread's last access to the server */
	return NULL;
}

static inline void *listener(void *arg)
{
	int fd, one = 1;
	pthread_t thread;

	(void)arg;
	while ((fd = accept(server.fd, NULL, NULL)) >= 0) {
		setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
		atomic_fetch_add(&server.num_connections, 1);
		if (!pthread_create(&thread, NULL, connection, (void *)(intptr_t)fd)) {
			pthread_detach(thread);
		} else {
			close(fd);
			atomic_fetch_add(&server.num_closed, 1);
		}
	}
	return NULL;
}

/* Stops the server. Its clients must have closed their connections, so that its threads end soon. */
static inline void stop(void)
{
	shutdown(server.fd, SHUT_RDWR);
	pthread_join(server.listener, NULL);
	close(server.fd);
	while (atomic_load(&server.num_closed) < atomic_load(&server.num_connections))
		poll(NULL, 0, 1);
}

/*
 * Stops the previous server and starts a new one, which listens until the next start or the process's end.
 */
static inline void start(struct cairn_test *t, enum then (*serve)(int fd, int request))
{
	struct sockaddr_in a = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	socklen_t len = sizeof(a);

	if (server.fd)
		stop();
	memset(&server, 0, sizeof(server));
	server.serve = serve;
	server.fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (!EXPECT(t, !bind(server.fd, (struct sockaddr *)&a, len) && !listen(server.fd, 2048) &&
			       !getsockname(server.fd, (struct sockaddr *)&a, &len) &&
			       !pthread_create(&server.listener, NULL, listener, NULL)))
		exit(3);
	server.port = ntohs(a.sin_port);
}

struct trial {
	struct bench_target target;
	struct bench_load load;
	struct bench_run run;
	struct bench_report report;
};

static inline void prepare(struct trial *l, int num, int concurrency, double rate)
{
	char url[64];

	memset(l, 0, sizeof(*l));
	snprintf(url, sizeof(url), "http://127.0.0.1:%d", server.port);
	bench_target_parse(url, &l->target);
	l->load = (struct bench_load) { .num = num,
					.input_len = 4,
					.output_len = 3,
					.vocab = 9,
					.seed = 1,
					.rate = rate,
					.respect_eos = true };
	l->run = (struct bench_run) { .target = &l->target,
				      .load = &l->load,
				      .num = (size_t)num,
				      .concurrency = concurrency,
				      .timeout_ns = 20000000000 };
}

static inline int go(struct cairn_test *t, struct trial *l)
{
	return EXPECT(t, !bench_load_plan(&l->load, &l->run.reqs)) && EXPECT(t, !bench_run(&l->run)) &&
	       EXPECT(t, !bench_report_make(&l->run, &l->report));
}

static inline void done(struct trial *l)
{
	free(l->run.reqs);
	free(l->run.itl.v);
}

#endif
