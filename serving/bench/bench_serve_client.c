// SPDX-License-Identifier: Apache-2.0
/*
 * bench_serve_client - sends the requests on schedule and receives the answers, in one thread with epoll
 *
 * A timerfd with nanosecond resolution fires when a request is due. The request is sent on an idle connection
 * or a new one; its body is prepared earlier, while nothing is due. A connection is reused if the previous
 * answer left it in a known state. If the server closes a reused connection before the first byte of the
 * answer, the request is sent once more on a new one, as HTTP clients do.
 */
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

#include "primitives/base/error.h"
#include "serving/bench/bench_serve.h"

#define MAX_EVENTS 256

enum role { TIMER, WORKER, IDLE, STALLED };

struct conn {
	enum role role;
	int fd; /* -1: closed; the structure is kept for reuse */
	bool connected, busy, reused;
	char *out; /* head and body; freed when all is sent */
	size_t out_len, out_at;
	int64_t deadline_ns;
	struct bench_answer answer;
	struct conn *next;          /* in the list of idle or of closed connections */
	struct conn *older, *newer; /* in the list of connections in flight, by deadline */
};

struct client {
	struct bench_run *run;
	int epoll_fd, timer_fd;
	struct conn timer, *idle, *closed, *oldest, *newest;
	struct conn *side; /* [idle + stalled] connections that yield no samples */
	struct conn **all; /* every connection, freed at the end */
	size_t num_all, cap_all;
	size_t next, num_done;
	int in_flight;
	int64_t start_ns, *slots; /* closed loop: times when slots became free, a queue of [concurrency] */
	int first_slot, num_slots;
	char *body, *stalled_body; /* body: that of request `next`, made ahead of time */
	size_t body_len, stalled_len;
};

static int64_t now_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (int64_t)ts.tv_sec * 1000000000 + ts.tv_nsec;
}

static int watch(const struct client *c, struct conn *conn, uint32_t events, int op)
{
	struct epoll_event e = { .events = events, .data.ptr = conn };

	return epoll_ctl(c->epoll_fd, op, conn->fd, &e) ? -errno : 0;
}

/* Starts a non-blocking connect and adds it to epoll. An immediate refusal is handled like a later one. */
static int dial(struct client *c, struct conn *conn)
{
	const struct bench_target *t = c->run->target;
	int one = 1, small = 4096;

	conn->fd = socket(t->addr.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	if (conn->fd < 0)
		return cairn_error(errno, "socket: %s", strerror(errno));
	setsockopt(conn->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
	if (conn->role == STALLED)
		setsockopt(conn->fd, SOL_SOCKET, SO_RCVBUF, &small, sizeof(small));
	conn->connected = conn->reused = false;
	c->run->connections++;
	if (connect(conn->fd, (const struct sockaddr *)&t->addr, t->addr_len) && errno != EINPROGRESS) {
		int err = errno;

		close(conn->fd);
		conn->fd = -1;
		return cairn_error(err, "connect: %s", strerror(err));
	}
	return watch(c, conn, EPOLLIN | EPOLLOUT | EPOLLRDHUP, EPOLL_CTL_ADD);
}

static void hang_up(struct conn *conn)
{
	if (conn->fd >= 0)
		close(conn->fd); /* also removes it from epoll */
	conn->fd = -1;
}

static void drop_idle(struct client *c, struct conn *conn)
{
	struct conn **at = &c->idle;

	while (*at && *at != conn)
		at = &(*at)->next;
	if (*at)
		*at = conn->next;
	hang_up(conn);
	conn->next = c->closed;
	c->closed = conn;
}

static void unlink_busy(struct client *c, struct conn *conn)
{
	*(conn->older ? &conn->older->newer : &c->oldest) = conn->newer;
	*(conn->newer ? &conn->newer->older : &c->newest) = conn->older;
	conn->older = conn->newer = NULL;
}

static void finish(struct client *c, struct conn *conn)
{
	struct bench_run *run = c->run;
	struct bench_answer *a = &conn->answer;

	unlink_busy(c, conn);
	conn->busy = false;
	free(conn->out);
	conn->out = NULL;
	if (a->req->outcome != BENCH_OK && !run->first_error[0])
		snprintf(run->first_error, sizeof(run->first_error), "%s%.0d%s%s",
			 a->req->outcome == BENCH_STATUS ? "status " : bench_outcome_names[a->req->outcome],
			 a->req->outcome == BENCH_STATUS ? a->req->status : 0, a->why[0] ? ": " : "", a->why);
	if (a->req->end_ns > run->end_ns)
		run->end_ns = a->req->end_ns;
	if (c->slots) {
		c->slots[(c->first_slot + c->num_slots) % run->concurrency] = a->req->end_ns;
		c->num_slots++;
	}
	c->in_flight--;
	c->num_done++;
	if (a->keep_alive && conn->out_at == conn->out_len) {
		conn->next = c->idle;
		c->idle = conn;
	} else {
		hang_up(conn);
		conn->next = c->closed;
		c->closed = conn;
	}
}

static void give_up(struct client *c, struct conn *conn, enum bench_outcome outcome, const char *why)
{
	struct bench_answer *a = &conn->answer;

	if (a->req->outcome == BENCH_UNSENT) {
		a->req->outcome = outcome;
		snprintf(a->why, sizeof(a->why), "%s", why);
	}
	if (a->req->output_tokens < 0)
		a->req->output_tokens = a->req->counted;
	a->req->end_ns = now_ns() - c->start_ns;
	a->keep_alive = false;
	finish(c, conn);
}

/* Handles the end of a connection: an orderly close (err 0) or an error. */
static void ended(struct client *c, struct conn *conn, int err)
{
	struct bench_answer *a = &conn->answer;
	char why[120];

	if (!conn->connected) {
		snprintf(why, sizeof(why), "%s", strerror(err ? err : ECONNREFUSED));
		give_up(c, conn, BENCH_CONNECT, why);
		return;
	}
	if (conn->reused && !a->any_byte) { /* the server closed it before the request arrived */
		hang_up(conn);
		conn->out_at = 0;
		if (dial(c, conn))
			give_up(c, conn, BENCH_CONNECT, cairn_last_error());
		return;
	}
	bench_answer_eof(a, now_ns());
	finish(c, conn);
}

static void send_more(struct client *c, struct conn *conn)
{
	if (!conn->out_at && !conn->reused && conn->busy)
		conn->answer.req->sent_ns = now_ns() - c->start_ns;
	while (conn->out_at < conn->out_len) {
		ssize_t n =
			send(conn->fd, conn->out + conn->out_at, conn->out_len - conn->out_at, MSG_NOSIGNAL);

		if (n < 0 && (errno == EAGAIN || errno == EINTR))
			return; /* the rest is sent on EPOLLOUT */
		if (n < 0)
			return; /* the next read reports the error */
		conn->out_at += (size_t)n;
	}
	watch(c, conn, EPOLLIN | EPOLLRDHUP, EPOLL_CTL_MOD);
}

static void read_more(struct client *c, struct conn *conn)
{
	static char bytes[1 << 16];
	ssize_t n = recv(conn->fd, bytes, sizeof(bytes), 0);

	if (n < 0 && (errno == EAGAIN || errno == EINTR))
		return;
	if (n <= 0)
		ended(c, conn, n < 0 ? errno : 0);
	else if (bench_answer_push(&conn->answer, bytes, (size_t)n, now_ns()))
		finish(c, conn);
}

static void worker_event(struct client *c, struct conn *conn, uint32_t events)
{
	int err = 0;
	socklen_t len = sizeof(err);

	if (!conn->busy) { /* the server closed the idle connection or sent unsolicited bytes */
		drop_idle(c, conn);
		return;
	}
	if (!conn->connected) {
		if (getsockopt(conn->fd, SOL_SOCKET, SO_ERROR, &err, &len) || err) {
			ended(c, conn, err);
			return;
		}
		if (!(events & EPOLLOUT))
			return;
		conn->connected = true;
	}
	if (events & EPOLLOUT && conn->out_at < conn->out_len)
		send_more(c, conn);
	if (events & (EPOLLIN | EPOLLRDHUP | EPOLLHUP | EPOLLERR))
		read_more(c, conn);
}

/* Handles an event of an idle or stalled connection. If the server has closed it, it is reopened. */
static void side_event(struct client *c, struct conn *conn, uint32_t events)
{
	char byte;

	if (events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR) ||
	    (conn->role == IDLE && events & EPOLLIN && recv(conn->fd, &byte, 1, 0) <= 0)) {
		*(conn->role == IDLE ? &c->run->idle_closed : &c->run->stalled_closed) += 1;
		hang_up(conn);
		conn->out_at = 0;
		if (c->next < c->run->num && conn->connected)
			dial(c, conn);
		return;
	}
	if (events & EPOLLOUT) {
		conn->connected = true;
		send_more(c, conn);
		if (conn->out_at == conn->out_len)
			watch(c, conn, EPOLLRDHUP, EPOLL_CTL_MOD);
	}
}

static const char *path_of(const struct bench_load *load)
{
	return load->chat ? "/v1/chat/completions" : "/v1/completions";
}

static int prepare(struct client *c)
{
	struct bench_run *run = c->run;
	char *body;
	size_t n;

	if (c->body || c->next >= run->num)
		return 0;
	CAIRN_TRY(bench_load_body(run->load, &run->reqs[c->next], c->next, &body, &n));
	c->body = bench_request_text(run->target, path_of(run->load), body, n, &c->body_len);
	free(body);
	return c->body ? 0 : cairn_error(ENOMEM, "bench serve: no memory");
}

static struct conn *new_conn(struct client *c)
{
	struct conn *conn = c->closed;

	if (conn) {
		c->closed = conn->next;
		return conn;
	}
	if (c->num_all == c->cap_all) {
		size_t cap = c->cap_all ? 2 * c->cap_all : 64;
		struct conn **grown = realloc(c->all, cap * sizeof(*grown));

		if (!grown)
			return NULL;
		c->all = grown;
		c->cap_all = cap;
	}
	conn = calloc(1, sizeof(*conn));
	if (!conn)
		return NULL;
	conn->role = WORKER;
	conn->fd = -1;
	c->all[c->num_all++] = conn;
	return conn;
}

static int start_request(struct client *c)
{
	struct bench_run *run = c->run;
	struct bench_request *req = &run->reqs[c->next];
	struct conn *conn = c->idle;

	CAIRN_TRY(prepare(c));
	if (c->slots) {
		req->due_ns = c->slots[c->first_slot];
		c->first_slot = (c->first_slot + 1) % run->concurrency;
		c->num_slots--;
	}
	if (conn)
		c->idle = conn->next;
	else
		conn = new_conn(c);
	if (!conn)
		return cairn_error(ENOMEM, "bench serve: no memory");
	conn->next = NULL;
	conn->answer.itl = &run->itl;
	conn->answer.count_tokens = run->load->count_tokens;
	conn->answer.exact_length = !run->load->respect_eos;
	conn->answer.start_ns = c->start_ns;
	bench_answer_begin(&conn->answer, req);
	req->sent_ns = now_ns() - c->start_ns;
	conn->out = c->body;
	conn->out_len = c->body_len;
	conn->out_at = 0;
	c->body = NULL;
	c->next++;
	conn->busy = true;
	conn->deadline_ns = req->sent_ns + run->timeout_ns;
	conn->older = c->newest;
	conn->newer = NULL;
	*(c->newest ? &c->newest->newer : &c->oldest) = conn;
	c->newest = conn;
	if (++c->in_flight > run->max_in_flight)
		run->max_in_flight = c->in_flight;
	if (conn->fd >= 0) {
		conn->reused = true;
		watch(c, conn, EPOLLIN | EPOLLOUT | EPOLLRDHUP, EPOLL_CTL_MOD);
		send_more(c, conn);
	} else if (dial(c, conn)) {
		give_up(c, conn, BENCH_CONNECT, cairn_last_error());
	}
	return 0;
}

/* Returns the time when the next request may be sent; INT64_MAX: not before another one ends, or never. */
static int64_t next_due(const struct client *c)
{
	const struct bench_run *run = c->run;
	int64_t due;

	if (c->next >= run->num || (run->stop && atomic_load(run->stop)) ||
	    (run->concurrency && c->in_flight >= run->concurrency))
		return INT64_MAX;
	due = c->slots ? c->slots[c->first_slot] : run->reqs[c->next].due_ns;
	return run->duration_ns && due >= run->duration_ns ? INT64_MAX : due;
}

static void set_timer(struct client *c)
{
	int64_t at = next_due(c);
	struct itimerspec spec = { { 0, 0 }, { 0, 0 } };

	if (c->oldest && c->oldest->deadline_ns < at)
		at = c->oldest->deadline_ns;
	if (at == INT64_MAX)
		at = (int64_t)3600 * 1000000000;
	at += c->start_ns;
	spec.it_value.tv_sec = at / 1000000000;
	spec.it_value.tv_nsec = at % 1000000000;
	timerfd_settime(c->timer_fd, TFD_TIMER_ABSTIME, &spec, NULL);
}

static int open_sides(struct client *c)
{
	struct bench_run *run = c->run;
	struct bench_request hog = { .prompt_tokens = 16, .max_tokens = (int32_t)run->stalled_len };
	int n = run->idle + run->stalled;
	char *body;
	size_t len;

	if (!n)
		return 0;
	CAIRN_TRY(bench_load_body(run->load, &hog, SIZE_MAX, &body, &len));
	c->stalled_body = bench_request_text(run->target, path_of(run->load), body, len, &c->stalled_len);
	free(body);
	c->side = calloc((size_t)n, sizeof(*c->side));
	if (!c->side || !c->stalled_body)
		return cairn_error(ENOMEM, "bench serve: no memory");
	for (int i = 0; i < n; i++)
		c->side[i] = (struct conn) { .role = i < run->idle ? IDLE : STALLED, .fd = -1 };
	for (int i = 0; i < n; i++) {
		if (i >= run->idle) {
			c->side[i].out = c->stalled_body;
			c->side[i].out_len = c->stalled_len;
		}
		CAIRN_TRY(dial(c, &c->side[i]));
	}
	return 0;
}

static int begin(struct client *c)
{
	struct rlimit limit;

	if (!getrlimit(RLIMIT_NOFILE, &limit)) {
		limit.rlim_cur = limit.rlim_max;
		setrlimit(RLIMIT_NOFILE, &limit);
	}
	c->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
	c->timer_fd = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
	if (c->epoll_fd < 0 || c->timer_fd < 0)
		return cairn_error(errno, "bench serve: %s", strerror(errno));
	c->timer = (struct conn) { .role = TIMER, .fd = c->timer_fd };
	CAIRN_TRY(watch(c, &c->timer, EPOLLIN, EPOLL_CTL_ADD));
	if (!c->run->load->rate) {
		c->slots = calloc((size_t)c->run->concurrency, sizeof(*c->slots));
		if (!c->slots)
			return cairn_error(ENOMEM, "bench serve: no memory");
		c->num_slots = c->run->concurrency;
	}
	CAIRN_TRY(open_sides(c));
	CAIRN_TRY(prepare(c));
	c->start_ns = now_ns();
	return 0;
}

static void end(struct client *c)
{
	for (size_t i = 0; i < c->num_all; i++) {
		hang_up(c->all[i]);
		free(c->all[i]->out);
		bench_answer_free(&c->all[i]->answer);
		free(c->all[i]);
	}
	for (int i = 0; c->side && i < c->run->idle + c->run->stalled; i++)
		hang_up(&c->side[i]);
	free(c->all);
	free(c->side);
	free(c->slots);
	free(c->body);
	free(c->stalled_body);
	if (c->timer_fd >= 0)
		close(c->timer_fd);
	if (c->epoll_fd >= 0)
		close(c->epoll_fd);
}

static int turn(struct client *c)
{
	struct epoll_event events[MAX_EVENTS];
	uint64_t ticks;
	int n;

	while (next_due(c) <= now_ns() - c->start_ns)
		CAIRN_TRY(start_request(c));
	while (c->oldest && c->oldest->deadline_ns <= now_ns() - c->start_ns)
		give_up(c, c->oldest, BENCH_TIMEOUT, "the answer did not end in time");
	CAIRN_TRY(prepare(c));
	if (!c->in_flight && next_due(c) == INT64_MAX)
		return 1;
	set_timer(c);
	n = epoll_wait(c->epoll_fd, events, MAX_EVENTS, -1);
	for (int i = 0; i < n; i++) {
		struct conn *conn = events[i].data.ptr;

		if (conn->role == TIMER) {
			if (read(c->timer_fd, &ticks, sizeof(ticks)) < 0)
				continue;
		} else if (conn->fd >= 0 && conn->role == WORKER) {
			worker_event(c, conn, events[i].events);
		} else if (conn->fd >= 0) {
			side_event(c, conn, events[i].events);
		}
	}
	return 0;
}

int bench_run(struct bench_run *run)
{
	struct client c = { .run = run, .epoll_fd = -1, .timer_fd = -1 };
	int ret = begin(&c);

	while (!ret)
		ret = turn(&c);
	end(&c);
	return ret > 0 ? 0 : ret;
}
