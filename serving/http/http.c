// SPDX-License-Identifier: Apache-2.0
/*
 * http - creates, runs and destroys an HTTP server: options, event loop, accept, drain
 *
 * llhttp, a library that does no input or output, parses requests (http_parse.c). This server handles
 * connections itself because no packaged C library has all that it needs: answers before a body is read,
 * bounded streams that any thread can feed, detection of a disconnected client while nothing is being sent,
 * stall time-outs and a drain. The closest, libmicrohttpd, hides folded lines, NUL and bare line feeds from
 * its callbacks and sends errors as HTML; evhttp grows its buffers without bound.
 */
#include "serving/http/http.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <time.h>
#include <unistd.h>

#include "primitives/base/error.h"
#include "serving/http/http_impl.h"

#define MAX_EVENTS	256
#define SPARE_CONNS	64	/* connections beyond max_connections that still get a 503 */
#define SWEEP_MS	100

uint64_t http_now_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (uint64_t)ts.tv_sec * 1000000000 + (uint64_t)ts.tv_nsec;
}

int64_t http_now_ms(void)
{
	return (int64_t)(http_now_ns() / 1000000);
}

static void wake(struct cairn_http *http)
{
	uint64_t one = 1;
	ssize_t n = write(http->wake_fd, &one, sizeof(one));

	(void)n;	/* the write fails only if the counter is full, so a wake-up is pending anyway */
}

/* Puts x on the ready list and wakes the loop. Does nothing once the loop has ended. */
void http_mark_ready(struct cairn_http_exchange *x)
{
	struct cairn_http *http = x->http;
	bool first = false;

	pthread_mutex_lock(&http->lock);
	if (!x->ready && !http->is_over) {
		first = !http->ready;
		x->ready = true;
		x->next_ready = NULL;
		*http->ready_tail = x;
		http->ready_tail = &x->next_ready;
		atomic_fetch_add(&x->refs, 1);
	}
	pthread_mutex_unlock(&http->lock);
	if (first && !pthread_equal(pthread_self(), http->thread))
		wake(http);
}

static struct cairn_http_exchange *take_ready(struct cairn_http *http)
{
	struct cairn_http_exchange *x;

	pthread_mutex_lock(&http->lock);
	x = http->ready;
	if (x) {
		http->ready = x->next_ready;
		if (!http->ready)
			http->ready_tail = &http->ready;
		x->ready = false;
	}
	pthread_mutex_unlock(&http->lock);
	return x;
}

/* Serves a bounded number of ready exchanges, so that producers cannot starve the sockets. Returns whether
 * there may be more. */
static bool serve_ready(struct cairn_http *http)
{
	for (int i = 0; i < 4 * MAX_EVENTS; i++) {
		struct cairn_http_exchange *x = take_ready(http);

		if (!x)
			return false;
		if (x->conn)
			http_conn_ready(x->conn);
		http_exchange_put(x);
	}
	return true;
}

static void welcome(struct cairn_http *http, int fd, const struct sockaddr_storage *ss)
{
	const struct cairn_http_options *o = &http->opt;
	struct in6_addr address;
	struct http_peer *peer;
	bool full;

	http_address_of(ss, &address);
	full = atomic_load(&http->num_conns) >= o->max_connections;
	peer = atomic_load(&http->num_conns) < o->max_connections + SPARE_CONNS ?
	       http_peer_get(http, &address) : NULL;
	if (!peer) {
		atomic_fetch_add(&http->refused, 1);
		close(fd);
		return;
	}
	full |= o->max_per_address && !o->unix_path && peer->connections > o->max_per_address;
	if (http_conn_open(http, fd, &address, peer)) {
		http_peer_put(http, peer);
		close(fd);
		return;
	}
	atomic_fetch_add(full ? &http->refused : &http->accepted, 1);
	if (full) {
		http->conns->begin_ns = http_now_ns();
		http_conn_refuse(http->conns, 503, "too many connections");
	}
}

static void accept_some(struct cairn_http *http)
{
	for (int i = 0; i < MAX_EVENTS; i++) {
		struct sockaddr_storage ss;
		socklen_t len = sizeof(ss);
		int fd = accept4(http->listen_fd, (struct sockaddr *)&ss, &len, SOCK_NONBLOCK | SOCK_CLOEXEC);

		if (fd >= 0) {
			welcome(http, fd, &ss);
			continue;
		}
		if (errno == EINTR || errno == ECONNABORTED)
			continue;
		if (errno == EAGAIN)
			return;
		if ((errno != EMFILE && errno != ENFILE) || http->spare_fd < 0) {
			poll(NULL, 0, 1);	/* back off for 1 ms: accept4() may keep failing like this */
			return;
		}
		/* Out of descriptors: free the spare one to accept the client and close its connection. */
		close(http->spare_fd);
		fd = accept(http->listen_fd, NULL, NULL);
		if (fd >= 0)
			close(fd);
		atomic_fetch_add(&http->refused, fd >= 0);
		http->spare_fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
	}
}

static void sweep(struct cairn_http *http, int64_t now)
{
	struct http_conn *c = http->conns, *next;

	for (; c; c = next) {
		next = c->next;
		http_conn_sweep(c, now);
	}
	http->next_sweep_ms = now + SWEEP_MS;
}

static void free_dead(struct cairn_http *http)
{
	while (http->dead) {
		struct http_conn *c = http->dead;

		http->dead = c->next;
		free(c);
	}
}

/* Advances the drain; returns whether it has ended. */
static bool drain(struct cairn_http *http, int64_t now)
{
	int calls = atomic_load(&http->drain_calls);
	bool busy = false, cut;

	if (!calls)
		return false;
	if (!http->draining) {
		http->draining = true;
		http->drain_deadline_ms = now + atomic_load(&http->drain_ms);
		epoll_ctl(http->epoll_fd, EPOLL_CTL_DEL, http->listen_fd, NULL);
		http_close_listener(http);
		for (struct http_conn *c = http->conns; c; c = c->next)
			http_conn_drain(c);
	}
	cut = calls > 1 || now >= http->drain_deadline_ms;
	for (struct http_conn *c = http->conns, *next; c; c = next) {
		next = c->next;
		if (cut)
			http_conn_drop(c, CAIRN_HTTP_CUT);
		else
			busy |= c->phase != HTTP_LINGER;
	}
	return !busy;
}

static void finish(struct cairn_http *http)
{
	struct cairn_http_exchange *x;

	while (http->conns)
		http_conn_drop(http->conns, CAIRN_HTTP_GONE);
	free_dead(http);
	pthread_mutex_lock(&http->lock);
	http->is_over = true;	/* from here on http_mark_ready() adds nothing to the list */
	pthread_mutex_unlock(&http->lock);
	while ((x = take_ready(http)))
		http_exchange_put(x);
	pthread_mutex_lock(&http->lock);
	pthread_cond_broadcast(&http->over);
	pthread_mutex_unlock(&http->lock);
}

static void *loop(void *arg)
{
	struct cairn_http *http = arg;
	struct epoll_event events[MAX_EVENTS];
	bool more = false;
	int64_t now;

	do {
		int timeout = more ? 0 : atomic_load(&http->num_conns) || http->draining ? SWEEP_MS : -1;
		int n = epoll_wait(http->epoll_fd, events, MAX_EVENTS, timeout);

		for (int i = 0; i < n; i++) {
			uint64_t count;
			ssize_t got = 0;

			if (events[i].data.ptr == &http->wake_fd)
				got = read(http->wake_fd, &count, sizeof(count));
			else if (events[i].data.ptr == &http->listen_fd)
				accept_some(http);
			else
				http_conn_event(events[i].data.ptr, events[i].events);
			(void)got;	/* the count is irrelevant: ready list and drain_calls are checked */
		}
		now = http_now_ms();
		if (now >= http->next_sweep_ms)
			sweep(http, now);
		/* after the sweep, whose refusals are on the ready list and wake nobody */
		more = serve_ready(http);
		free_dead(http);
	} while (!drain(http, now));
	finish(http);
	return NULL;
}

void http_put(struct cairn_http *http)
{
	if (atomic_fetch_sub(&http->refs, 1) != 1)
		return;
	pthread_cond_destroy(&http->over);
	pthread_mutex_destroy(&http->lock);
	if (http->wake_fd >= 0)
		close(http->wake_fd);
	if (http->epoll_fd >= 0)
		close(http->epoll_fd);
	http_close_listener(http);
	if (http->spare_fd >= 0)
		close(http->spare_fd);
	free(http->routes);
	free(http->unix_path);
	free(http);
}

static int check_options(const struct cairn_http_options *o)
{
	const struct {
		const char *name;
		long long value, max;
	} numbers[] = {
		{ "port", o->port, 65535 }, { "backlog", o->backlog, 1 << 20 },
		{ "max_connections", o->max_connections, 1 << 24 },
		{ "max_per_address", o->max_per_address, 1 << 24 },
		{ "max_requests", o->max_requests, 1 << 24 }, { "max_fields", o->max_fields, 65536 },
		{ "max_target", (long long)o->max_target, 1 << 24 },
		{ "max_header", (long long)o->max_header, 1 << 24 },
		{ "max_body", (long long)o->max_body, 1ll << 40 },
		{ "max_body_total", (long long)o->max_body_total, 1ll << 50 },
		{ "max_answer_total", (long long)o->max_answer_total, 1ll << 50 },
		{ "stream_buffer", (long long)o->stream_buffer, 1ll << 30 },
		{ "sockbuf", o->sockbuf, 1 << 30 },
		{ "idle_timeout_ms", o->idle_timeout_ms, 1 << 30 },
		{ "request_timeout_ms", o->request_timeout_ms, 1 << 30 },
		{ "stall_timeout_ms", o->stall_timeout_ms, 1 << 30 },
		{ "answer_timeout_ms", o->answer_timeout_ms, 1 << 30 },
	};

	for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++) {
		if (numbers[i].value < 0 || numbers[i].value > numbers[i].max)
			return cairn_error(EINVAL, "http: %s: %lld is not from 0 to %lld", numbers[i].name,
					   numbers[i].value, numbers[i].max);
	}
	if (o->stream_buffer && o->stream_buffer < 1024)
		return cairn_error(EINVAL, "http: stream_buffer: %zu is less than 1024", o->stream_buffer);
	if (o->api_key && (!*o->api_key || strspn(o->api_key, " ")))
		return cairn_error(EINVAL, "http: api_key: is empty or begins with a blank");
	return http_origins_check(o->allow_origin);
}

static int check_routes(const struct cairn_http_route *r, int n)
{
	for (int i = 0; i < n; i++) {
		if (!r[i].method || !http_is_token(r[i].method) || !r[i].path || *r[i].path != '/' ||
		    !r[i].handler)
			return cairn_error(EINVAL, "http: route %d: method, path or handler is missing", i);
	}
	return 0;
}

#define DEFAULT(field, value) (o->field = o->field ? o->field : (value))

static void set_defaults(struct cairn_http *http)
{
	struct cairn_http_options *o = &http->opt;

	DEFAULT(address, "127.0.0.1");
	DEFAULT(backlog, 1024);
	DEFAULT(max_connections, 4096);
	DEFAULT(max_requests, 1024);
	DEFAULT(max_fields, 100);
	DEFAULT(max_target, 4096);
	DEFAULT(max_header, 16 << 10);
	DEFAULT(max_body, 8 << 20);
	DEFAULT(max_body_total, 256 << 20);
	DEFAULT(max_answer_total, 256 << 20);
	DEFAULT(stream_buffer, 256 << 10);
	DEFAULT(sockbuf, 64 << 10);
	DEFAULT(idle_timeout_ms, 75000);
	DEFAULT(request_timeout_ms, 30000);
	DEFAULT(stall_timeout_ms, 30000);
	/* no web page can reach a Unix socket */
	http->local = o->check_host && !o->api_key && !o->unix_path && http_is_loopback(o->address);
	http->key_bytes = o->api_key ? strlen(o->api_key) : 0;
	http->limits = (struct http_limits){ o->max_target, o->max_header, o->max_fields };
}

static int set_up_epoll(struct cairn_http *http)
{
	struct epoll_event e = { .events = EPOLLIN };

	http->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
	http->wake_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
	http->spare_fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
	e.data.ptr = &http->wake_fd;
	if (http->epoll_fd < 0 || http->wake_fd < 0 || http->spare_fd < 0 ||
	    epoll_ctl(http->epoll_fd, EPOLL_CTL_ADD, http->wake_fd, &e))
		return cairn_error(EIO, "http: epoll: %s", strerror(errno));
	e.data.ptr = &http->listen_fd;
	if (epoll_ctl(http->epoll_fd, EPOLL_CTL_ADD, http->listen_fd, &e))
		return cairn_error(EIO, "http: epoll: %s", strerror(errno));
	return 0;
}

/* Starts the loop's thread with all signals blocked, because the program's other threads handle them. */
static int start_thread(struct cairn_http *http)
{
	sigset_t all, old;
	int ret;

	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	/* the lock keeps the loop from comparing with http->thread before it is written */
	pthread_mutex_lock(&http->lock);
	ret = pthread_create(&http->thread, NULL, loop, http);
	pthread_mutex_unlock(&http->lock);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	return ret ? cairn_error(EIO, "http: pthread_create: %s", strerror(ret)) : 0;
}

int cairn_http_create(struct cairn_http **out, const struct cairn_http_options *options,
		      const struct cairn_http_route *routes, int num_routes)
{
	struct cairn_http *http;
	pthread_condattr_t attr;
	int ret;

	CAIRN_TRY(check_options(options));
	CAIRN_TRY(check_routes(routes, num_routes));
	http = calloc(1, sizeof(*http));
	if (!http)
		return cairn_error(ENOMEM, "http: no memory for a server");
	http->opt = *options;
	if (options->unix_path)
		http->opt.unix_path = http->unix_path = strdup(options->unix_path);
	set_defaults(http);
	http->listen_fd = http->epoll_fd = http->spare_fd = http->wake_fd = -1;
	http->ready_tail = &http->ready;
	atomic_init(&http->refs, 1);
	pthread_mutex_init(&http->lock, NULL);
	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	pthread_cond_init(&http->over, &attr);
	pthread_condattr_destroy(&attr);
	if (getrandom(&http->id_seed, sizeof(http->id_seed), 0) != sizeof(http->id_seed))
		http->id_seed = http_now_ns();
	http->routes = malloc((size_t)(num_routes + 1) * sizeof(*routes));
	ret = http->routes && !options->unix_path == !http->unix_path ?
		      0 : cairn_error(ENOMEM, "http: no memory for a server");
	if (!ret && num_routes)
		memcpy(http->routes, routes, (size_t)num_routes * sizeof(*routes));
	http->num_routes = num_routes;
	ret = ret ? ret : http_listen(http);
	ret = ret ? ret : set_up_epoll(http);
	ret = ret ? ret : start_thread(http);
	if (ret)
		http_put(http);
	else
		*out = http;
	return ret;
}

int cairn_http_port(const struct cairn_http *http)
{
	return http->port;
}

void cairn_http_stats(struct cairn_http *http, struct cairn_http_stats *stats)
{
	*stats = (struct cairn_http_stats){
		.connections = atomic_load(&http->num_conns), .exchanges = atomic_load(&http->num_exchanges),
		.accepted = atomic_load(&http->accepted), .refused = atomic_load(&http->refused),
		.requests = atomic_load(&http->requests), .stalled = atomic_load(&http->stalled),
		.body_bytes = atomic_load(&http->body_bytes),
		.answer_bytes = atomic_load(&http->answer_bytes),
	};
}

void cairn_http_drain(struct cairn_http *http, int deadline_ms)
{
	int error = errno;	/* a signal handler must preserve errno */

	if (!atomic_load(&http->drain_calls))
		atomic_store(&http->drain_ms, deadline_ms > 0 ? deadline_ms : 0);
	atomic_fetch_add(&http->drain_calls, 1);
	wake(http);
	errno = error;
}

int cairn_http_wait(struct cairn_http *http, int timeout_ms)
{
	struct timespec end;
	int ret = 0;

	clock_gettime(CLOCK_MONOTONIC, &end);
	end.tv_sec += timeout_ms / 1000 + (end.tv_nsec + timeout_ms % 1000 * 1000000l) / 1000000000;
	end.tv_nsec = (end.tv_nsec + timeout_ms % 1000 * 1000000l) % 1000000000;
	pthread_mutex_lock(&http->lock);
	while (!http->is_over && !ret)
		ret = timeout_ms < 0 ? pthread_cond_wait(&http->over, &http->lock) :
				       pthread_cond_timedwait(&http->over, &http->lock, &end);
	pthread_mutex_unlock(&http->lock);
	return ret ? cairn_error(ETIMEDOUT, "http: still draining after %d ms", timeout_ms) : 0;
}

void cairn_http_destroy(struct cairn_http *http)
{
	if (!http)
		return;
	atomic_fetch_add(&http->drain_calls, 2);
	wake(http);
	pthread_join(http->thread, NULL);
	http_put(http);
}
