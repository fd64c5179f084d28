// SPDX-License-Identifier: Apache-2.0
/*
 * http_gone_test - exchanges that do not complete: the client closes, the handler aborts, the server drains
 */
#include "conformance/harness.h"
#include "serving/http/http_stream_test.h"

/* For each kind of close in each phase: gone is called once, within 50 ms, and done only after the
 * exchange ends. */
static void disconnects(struct cairn_test *t)
{
	static const char *const phases[] = { "unanswered", "a request behind it", "stream", "stream, full" };
	static const char *const ways[] = { "close", "half-close", "reset" };
	struct cairn_http *http = start(t, (struct cairn_http_options){ .stream_buffer = 65536 });
	static char junk[4000];
	double worst_ms = 0, took_ms;
	int tries = 0;

	for (int i = 0; i < 12; i++) {
		int fd = dial(http), phase = i / 3, full = 0;
		struct cairn_http_exchange *x = open_stream(t, fd, 0, 1);
		struct linger reset = { 1, 0 };
		double start_s;

		if (phase == 1)
			say(fd, "GET /b HTTP/1.1\r\nHost: a\r\n\r\n");
		if (phase >= 2)
			begin(t, x);
		if (phase == 2)
			EXPECT(t, !cairn_http_push(x, junk, 10));
		while (phase == 3 && full < 20) {
			full = cairn_http_push(x, junk, sizeof(junk)) ? full + 1 : 0;
			nap_ms(full ? 1 : 0);
		}
		nap_ms(5);
		EXPECT(t, !cairn_http_gone(x));
		start_s = now_s();
		if (i % 3 == 2)
			setsockopt(fd, SOL_SOCKET, SO_LINGER, &reset, sizeof(reset));
		if (i % 3 == 1)
			shutdown(fd, SHUT_WR);
		else
			close(fd);
		if (!EXPECT(t, WAIT_FOR(atomic_load(&kept[0].num_gone), 5000)))
			cairn_note(t, "%s, %s", phases[phase], ways[i % 3]);
		took_ms = (atomic_load(&kept[0].gone_s) - start_s) * 1e3;
		EXPECT(t, cairn_http_gone(x) && !atomic_load(&kept[0].num_done));
		if (phase >= 2)
			EXPECT(t, cairn_http_push(x, junk, 1) == -EPIPE);
		cairn_http_end(x);
		EXPECT(t, WAIT_FOR(atomic_load(&kept[0].num_done) == 1, 5000));
		EXPECT(t, atomic_load(&kept[0].num_gone) == 1 && last_outcome == CAIRN_HTTP_GONE);
		if (i % 3 == 1)
			close(fd);
		/* retry up to 50 times, because a loaded machine may be slow: one success is enough */
		if (took_ms >= 50 && tries++ < 50) {
			i--;
			continue;
		}
		if (!EXPECT(t, took_ms < 50))
			cairn_note(t, "%s, %s: %.0f ms", phases[phase], ways[i % 3], took_ms);
		worst_ms = took_ms > worst_ms ? took_ms : worst_ms;
		tries = 0;
	}
	cairn_note(t, "gone was called within %.2f ms", worst_ms);
	cairn_http_destroy(http);
}

/* A gone callback may finish its exchange. */
static void end_when_gone(void *ctx)
{
	on_gone(ctx);
	cairn_http_end(atomic_load(&((struct kept *)ctx)->x));
}

static void hold(void *ctx, struct cairn_http_exchange *x, const struct cairn_http_request *req)
{
	(void)req;
	cairn_http_watch(x, &(struct cairn_http_watch){ end_when_gone, on_done, ctx });
	cairn_http_stream(x, 200, "text/plain", NULL, 0);
	atomic_store(&((struct kept *)ctx)->x, x);
}

static void ended_by_callback(struct cairn_test *t)
{
	static const struct cairn_http_route route = { "GET", "/a", 0, 0, hold, &kept[0] };
	struct cairn_http *http = serve(t, &(struct cairn_http_options){ 0 }, &route, 1);

	for (int i = 0; i < 20; i++) {
		int fd = dial(http);

		open_stream(t, fd, 0, 1);
		close(fd);
		EXPECT(t, WAIT_FOR(atomic_load(&kept[0].num_done), 5000));
		EXPECT(t, atomic_load(&kept[0].num_gone) == 1 && atomic_load(&kept[0].num_done) == 1);
	}
	cairn_http_destroy(http);
}

static void ends(struct cairn_test *t)
{
	struct cairn_http *http = start(t, (struct cairn_http_options){ 0 });
	struct cairn_http_exchange *x;
	static struct reply r;
	char all[512];
	ssize_t n = 0, k;
	int fd = dial(http);

	x = open_stream(t, fd, 0, 0);	/* HTTP/1.0: the stream ends when the connection closes */
	begin(t, x);
	EXPECT(t, !cairn_http_push(x, "data: 1\n\n", 9) && !cairn_http_push(x, "", 0));
	cairn_http_end(x);
	while ((k = read_more(fd, all + n, sizeof(all) - 1 - (size_t)n, 5000)) > 0)
		n += k;
	all[n] = 0;
	EXPECT(t, k == 0 && !strstr(all, "chunked") && strstr(all, "\r\nConnection: close\r\n"));
	EXPECT_CONTAINS(t, all, "\r\n\r\ndata: 1\n\n");
	EXPECT(t, WAIT_FOR(atomic_load(&kept[0].num_done) == 1, 5000));
	close(fd);
	for (int phase = 0; phase < 3; phase++) {	/* end unanswered, abort, abort a stream */
		fd = dial(http);
		x = open_stream(t, fd, 0, 1);
		if (phase == 2) {
			begin(t, x);
			EXPECT(t, cairn_http_stream(x, 200, NULL, NULL, 0) == -EINVAL);
			EXPECT(t, cairn_http_answer(x, 200, NULL, NULL, 0, NULL, 0) == -EINVAL);
			EXPECT_CONTAINS(t, cairn_last_error(), "answered twice");
		}
		if (phase == 0)
			cairn_http_end(x);
		else
			cairn_http_abort(x);
		EXPECT(t, !read_reply(fd, &r));
		EXPECT(t, WAIT_FOR(atomic_load(&kept[0].num_done) == 1, 5000));
		EXPECT(t, !atomic_load(&kept[0].num_gone));
		EXPECT(t, last_outcome == CAIRN_HTTP_CUT);
		close(fd);
	}
	cairn_http_destroy(http);
}

/* Exchanges in flight complete, new requests are refused, and then the drain ends. */
static void drain_in_peace(struct cairn_test *t)
{
	struct cairn_http *http = start(t, (struct cairn_http_options){ 0 });
	int fd = dial(http), idle = dial(http), half = dial(http);
	struct cairn_http_exchange *x = open_stream(t, fd, 0, 1);
	static struct reply r;
	char c;

	say(half, "GET /b HTTP/1.1\r\n");
	/* the loop serves sockets in order of arrival, so after this answer it has seen the bytes above */
	EXPECT(t, ask(http, "GET /none HTTP/1.1\r\nHost: a\r\n\r\n", &r) == 404);
	begin(t, x);
	EXPECT(t, !cairn_http_push(x, "one", 3));
	cairn_http_drain(http, 5000);
	EXPECT(t, cairn_http_wait(http, 100) == -ETIMEDOUT);
	EXPECT(t, read_more(idle, &c, 1, 5000) == 0);
	EXPECT(t, dial(http) < 0);
	say(half, "Host: a\r\n\r\n");
	EXPECT(t, read_reply(half, &r) == 503 && is_error(&r) && r.closed);
	EXPECT_CONTAINS(t, r.text, "\r\nRetry-After: 1\r\n");
	EXPECT(t, !cairn_http_gone(x) && !cairn_http_push(x, "two", 3));
	cairn_http_end(x);
	EXPECT(t, read_reply(fd, &r) == 200 && !strcmp(r.body, "onetwo"));
	EXPECT(t, read_more(fd, &c, 1, 5000) == 0);
	EXPECT(t, !cairn_http_wait(http, 5000));
	EXPECT(t, atomic_load(&kept[0].num_done) == 1 && !atomic_load(&kept[0].num_gone));
	cairn_http_destroy(http);
	close(fd);
	close(idle);
	close(half);
}

/* The deadline, a second call and destroy each cut the client; the exchange stays valid. */
static void drain_by_force(struct cairn_test *t)
{
	for (int way = 0; way < 3; way++) {
		struct cairn_http *http = start(t, (struct cairn_http_options){ 0 });
		int fd = dial(http);
		struct cairn_http_exchange *x = open_stream(t, fd, 0, 1);
		double start_s = now_s();
		static struct reply r;

		begin(t, x);
		if (way < 2) {
			cairn_http_drain(http, way ? 60000 : 200);
			EXPECT(t, cairn_http_wait(http, 50) == -ETIMEDOUT && !cairn_http_gone(x));
			if (way)
				cairn_http_drain(http, 60000);
			EXPECT(t, !cairn_http_wait(http, -1));
			EXPECT(t, way || now_s() - start_s > 0.19);
		} else {
			cairn_http_destroy(http);
		}
		EXPECT(t, now_s() - start_s < 30);
		EXPECT(t, cairn_http_gone(x) && atomic_load(&kept[0].num_gone) == 1);
		EXPECT(t, !read_reply(fd, &r));
		EXPECT(t, cairn_http_push(x, "a", 1) == -EPIPE && last_outcome == CAIRN_HTTP_CUT);
		if (way < 2)
			cairn_http_destroy(http);
		EXPECT(t, !atomic_load(&kept[0].num_done));
		cairn_http_end(x);
		EXPECT(t, atomic_load(&kept[0].num_done) == 1);
		close(fd);
	}
}

static const struct cairn_unit units[] = {
	{ "disconnects", disconnects }, { "ended_by_callback", ended_by_callback }, { "ends", ends },
	{ "drain_in_peace", drain_in_peace },
	{ "drain_by_force", drain_by_force },
};

const struct cairn_family cairn_http_gone_family = {
	.stage = "serving", .name = "http_gone", .units = units, .num_units = ARRAY_SIZE(units),
	.waits = 1,
};
