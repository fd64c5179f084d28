// SPDX-License-Identifier: Apache-2.0
/* http_limit_test - connections, requests and bytes beyond the limits; the log; the parser without sockets */
#include <sys/resource.h>
#include <sys/wait.h>

#include "conformance/harness.h"
#include "serving/http/http_parse.h"
#include "serving/http/http_stream_test.h"

#define GET(path)	"GET " path " HTTP/1.1\r\nHost: a\r\n\r\n"

/* Connections within the limit are served, the next one gets a 503, and closing one admits another. */
static void connections(struct cairn_test *t)
{
	for (int by_address = 0; by_address < 2; by_address++) {
		struct cairn_http *http = start(t, by_address ?
			(struct cairn_http_options){ .max_per_address = 3 } :
			(struct cairn_http_options){ .max_connections = 3 });
		int fds[3], fd;
		struct cairn_http_stats stats;
		static struct reply r;

		for (int i = 0; i < 3; i++) {
			fds[i] = dial(http);
			say(fds[i], GET("/none"));
			EXPECT(t, read_reply(fds[i], &r) == 404);
		}
		fd = dial(http);
		EXPECT(t, read_reply(fd, &r) == 503 && is_error(&r) && r.closed);
		close(fd);
		for (int i = 0; i < 3; i++) {
			say(fds[i], GET("/none"));
			EXPECT(t, read_reply(fds[i], &r) == 404);
		}
		close(fds[0]);
		EXPECT(t, WAIT_FOR((cairn_http_stats(http, &stats), stats.connections == 2), 5000));
		EXPECT(t, ask(http, GET("/none"), &r) == 404);
		cairn_http_stats(http, &stats);
		EXPECT(t, stats.refused == 1 && stats.accepted == 4);
		close(fds[1]);
		close(fds[2]);
		cairn_http_destroy(http);
	}
}

/* Returns how many of 40 connections are served. Runs in a child: RLIMIT_NOFILE holds for a whole process. */
static int count_served(struct cairn_http *http)
{
	static struct reply r;
	int fds[40], num = 0;

	for (int i = 0; i < 40; i++)
		fds[i] = dial(http);
	for (int i = 0; i < 40; i++) {
		say(fds[i], GET("/none"));
		num += read_reply_of(fds[i], &r, 5000, true) == 404;
	}
	return num;
}

/* New connections are closed while no descriptor is free; earlier and later ones are served. */
static void descriptors(struct cairn_test *t)
{
	struct cairn_http *http = start(t, (struct cairn_http_options){ 0 });
	struct rlimit old, few;
	struct cairn_http_stats stats;
	int probe = dup(0), num = -1, pipes[2];
	static struct reply r;
	pid_t child;

	getrlimit(RLIMIT_NOFILE, &old);
	few = old;
	few.rlim_cur = (rlim_t)probe + 20;
	close(probe);
	if (!EXPECT(t, !pipe(pipes)))
		return;
	setrlimit(RLIMIT_NOFILE, &few);
	child = fork();
	if (!child) {
		setrlimit(RLIMIT_NOFILE, &old);
		num = count_served(http);
		_exit(write(pipes[1], &num, sizeof(num)) != sizeof(num));
	}
	EXPECT(t, read(pipes[0], &num, sizeof(num)) == sizeof(num));
	waitpid(child, NULL, 0);
	setrlimit(RLIMIT_NOFILE, &old);
	if (!EXPECT(t, num >= 10 && num < 25))
		cairn_note(t, "%d of 40 served", num);
	EXPECT(t, WAIT_FOR((cairn_http_stats(http, &stats), stats.accepted + stats.refused == 40), 5000));
	EXPECT(t, stats.accepted == (uint64_t)num);
	EXPECT(t, ask(http, GET("/none"), &r) == 404);
	close(pipes[0]);
	close(pipes[1]);
	cairn_http_destroy(http);
}

static void requests(struct cairn_test *t)
{
	struct cairn_http *http = start(t, (struct cairn_http_options){ .max_requests = 2 });
	int a = dial(http), b = dial(http), c = dial(http);
	struct cairn_http_exchange *x = open_stream(t, a, 0, 1), *y = open_stream(t, b, 1, 1);
	struct cairn_http_stats stats;
	static struct reply r;

	say(c, GET("/a"));
	EXPECT(t, read_reply(c, &r) == 503 && is_error(&r) && !r.closed);
	EXPECT_CONTAINS(t, r.text, "\r\nRetry-After: 1\r\n");
	cairn_http_error(x, 500, "server_error", NULL, NULL, "no");
	EXPECT(t, read_reply(a, &r) == 500);
	EXPECT(t, WAIT_FOR((cairn_http_stats(http, &stats), stats.exchanges == 1), 5000));
	x = open_stream(t, c, 0, 1);
	cairn_http_abort(x);
	cairn_http_abort(y);
	close(a);
	close(b);
	close(c);
	cairn_http_destroy(http);
}

/* An announced body costs no memory. A received one is counted and later released. */
static void bodies(struct cairn_test *t)
{
	static const struct cairn_http_route post = { "POST", "/", 0, 0, keep, &kept[0] };
	struct cairn_http *http = serve(t, &(struct cairn_http_options){ .max_body = 1 << 20,
					.max_body_total = 1500000 }, &post, 1);
	char *mega = calloc(1, 1 << 20);
	struct cairn_http_stats stats;
	static struct reply r;
	int a = dial(http), b = dial(http);

	for (int i = 0; i < 2; i++)
		say(i ? b : a, "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1048576\r\n\r\n");
	EXPECT(t, WAIT_FOR((cairn_http_stats(http, &stats), stats.requests == 2), 5000) && !stats.body_bytes);
	say_n(a, mega, (1 << 20) - 1);
	EXPECT(t, WAIT_FOR((cairn_http_stats(http, &stats), stats.body_bytes > 1000000), 5000));
	EXPECT(t, ask(http, "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 600000\r\n\r\n", &r) == 503);
	say_n(b, mega, 1 << 20);
	EXPECT(t, read_reply(b, &r) == 503 && is_error(&r));
	atomic_store(&kept[0].x, NULL);
	say_n(a, mega, 1);
	EXPECT(t, WAIT_FOR(atomic_load(&kept[0].x), 5000));
	EXPECT(t, !cairn_http_answer(atomic_load(&kept[0].x), 200, NULL, NULL, 0, "ok", 2));
	EXPECT(t, read_reply(a, &r) == 200);
	cairn_http_stats(http, &stats);
	EXPECT(t, !stats.body_bytes);
	close(a);
	close(b);
	free(mega);
	cairn_http_destroy(http);
}

/* Long answers that clients do not read are counted. Beyond the limit a producer can only send an error. */
static void answers(struct cairn_test *t)
{
	struct cairn_http *http = start(t, (struct cairn_http_options){ .max_answer_total = 5 << 20 });
	char *mega = calloc(1, 4 << 20);
	struct cairn_http_stats stats;
	struct cairn_http_exchange *x;
	static struct reply r;
	int a = dial(http), b = dial(http);

	x = open_stream(t, a, 0, 1);
	EXPECT(t, !cairn_http_answer(x, 200, NULL, NULL, 0, mega, 4 << 20));
	cairn_http_stats(http, &stats);
	EXPECT(t, stats.answer_bytes == 4 << 20);
	x = open_stream(t, b, 1, 1);
	EXPECT(t, cairn_http_answer(x, 200, NULL, NULL, 0, mega, 2 << 20) == -EAGAIN);
	cairn_http_error(x, 503, "server_error", NULL, NULL, "no");
	EXPECT(t, read_reply(b, &r) == 503 && is_error(&r));
	x = open_stream(t, b, 1, 1);	/* a short answer is never refused */
	EXPECT(t, !cairn_http_answer(x, 200, NULL, NULL, 0, mega, 32 << 10));
	EXPECT(t, read_reply(b, &r) == 200 && r.body_bytes == 32 << 10);
	close(a);	/* when the client leaves, its answer's memory is freed */
	EXPECT(t, WAIT_FOR((cairn_http_stats(http, &stats), !stats.answer_bytes), 5000));
	x = open_stream(t, b, 1, 1);
	EXPECT(t, !cairn_http_answer(x, 200, NULL, NULL, 0, mega, 4 << 20));
	close(b);
	free(mega);
	cairn_http_destroy(http);
}

struct line {
	char path[512], peer[64], id[80], method[16];
	struct cairn_http_log entry;
	atomic_int count;
};

static void take_line(void *ctx, const struct cairn_http_log *entry)
{
	struct line *l = ctx;

	snprintf(l->path, sizeof(l->path), "%s", entry->path);
	snprintf(l->peer, sizeof(l->peer), "%s", entry->peer);
	snprintf(l->id, sizeof(l->id), "%s", entry->id);
	snprintf(l->method, sizeof(l->method), "%s", entry->method);
	l->entry = *entry;
	atomic_fetch_add(&l->count, 1);
}

static void log_lines(struct cairn_test *t)
{
	static struct line l;
	struct cairn_http *http = serve(t, &(struct cairn_http_options){ .log = take_line, .log_ctx = &l },
					NULL, 0);
	static struct reply r;

	ask(http, "GET /a%22%5cb%c2%9b%20 HTTP/1.1\r\nHost: a\r\nX-Request-Id: a b\"\r\n\r\n", &r);
	EXPECT(t, WAIT_FOR(atomic_load(&l.count) == 1, 5000));
	EXPECT(t, !strcmp(l.path, "/a\\x22\\x5cb\\xc2\\x9b\\x20") && !strcmp(l.peer, "127.0.0.1"));
	EXPECT(t, !strncmp(l.id, "req_", 4) && !strcmp(l.method, "GET"));
	EXPECT(t, l.entry.status == 404 && l.entry.outcome == CAIRN_HTTP_COMPLETE);
	EXPECT(t, l.entry.bytes_out == r.text_bytes && l.entry.total_us >= l.entry.first_us);
	ask(http, "GET /\x1b[31m\nforged", &r);
	EXPECT(t, WAIT_FOR(atomic_load(&l.count) == 2, 5000));
	EXPECT(t, l.entry.status == 400 && !strcmp(l.path, "-") && !strcmp(l.method, "-"));
	cairn_http_destroy(http);
	EXPECT(t, !strcmp(cairn_http_outcome_names[CAIRN_HTTP_STALLED], "stalled"));
}

/* The text of an error stays valid JSON when it is truncated to any length. */
static void error_text(struct cairn_test *t)
{
	char buf[300], message[300];

	for (size_t len = 200; len < sizeof(buf); len++) {
		json_t *root;
		size_t n;

		memset(message, len % 3 ? len % 3 == 1 ? '\n' : '"' : 'a', sizeof(message) - 1);
		message[sizeof(message) - 1] = 0;
		n = cairn_http_error_text(buf, len, "server_error", len % 2 ? message : NULL, "x", message);
		root = json_loadb(buf, n, 0, NULL);
		if (!EXPECT(t, root && n < len && !buf[n]))
			cairn_note(t, "%zu: %s", len, buf);
		json_decref(root);
	}
}

/* Random bytes give the parser, without a socket, the same result whole and in two pieces. */
static void parser(struct cairn_test *t)
{
	static const char bytes[] = "GET / HTTP/1.1\r\n\r\nHost: a\r\nX: b \t:%20";
	const struct http_limits l = { 64, 256, 8 };
	struct cairn_http_field fields[16];
	int num_whole = 0;

	for (int i = 0; i < 200000; i++) {
		char text[64] = "GET / HTTP/1.1\r\nHost: a\r\nX: b\r\n\r\n", copy[64];
		size_t n = strlen(text), cut = cairn_rand(t) % n;
		struct http_scan one = { 0 }, two = { 0 };
		const char *why = NULL;
		struct http_head h;
		int a, b;

		for (uint64_t k = cairn_rand(t) % 4; k; k--)
			text[cairn_rand(t) % n] = bytes[cairn_rand(t) % sizeof(bytes)];
		a = http_scan(&one, text, n, &l, &why);
		b = http_scan(&two, text, cut, &l, &why);
		if (!b)
			b = http_scan(&two, text, n, &l, &why);
		if (!EXPECT(t, a == b && one.skip == two.skip))
			break;
		if (a <= 0)
			continue;
		memcpy(copy, text + one.skip, (size_t)a - one.skip);
		a = http_parse_head(&h, copy, (size_t)a - one.skip, fields, &l, &why);
		num_whole += !a;
		if (!EXPECT(t, a <= 0 && h.num_fields <= 8 && (a || *h.path)))
			break;
	}
	EXPECT(t, num_whole > 10000);
}

static const struct cairn_unit units[] = {
	{ "connections", connections }, { "descriptors", descriptors }, { "requests", requests },
	{ "bodies", bodies }, { "answers", answers },
	{ "log_lines", log_lines }, { "error_text", error_text }, { "parser", parser },
};

const struct cairn_family cairn_http_limit_family = {
	.stage = "serving", .name = "http_limit", .units = units, .num_units = ARRAY_SIZE(units),
	.waits = 1,
};
