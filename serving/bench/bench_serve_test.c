// SPDX-License-Identifier: Apache-2.0
/* bench_serve_test - the load generator against a scripted server */
#include <jansson.h>
#include <math.h>

#include "conformance/harness.h"
#include "conformance/suite/spawn.h"
#include "serving/bench/bench_serve_test.h"

static enum then three_tokens(int fd, int request)
{
	say(fd, HEAD);
	poll(NULL, 0, 40);
	atomic_store(&server.first_ns[request & 7], now_ns());
	say(fd, TOKEN);
	poll(NULL, 0, 70);
	say(fd, TOKEN);
	poll(NULL, 0, 25);
	atomic_store(&server.last_ns[request & 7], now_ns());
	say(fd, TOKEN DONE);
	return STAY;
}

/* Measured times are never shorter than the script's pauses. For at least one of five requests they agree
 * with the server's times; scheduling may delay the others. */
static void times(struct cairn_test *t)
{
	double here, there, closest = 1e18;
	struct trial l;

	start(t, three_tokens);
	prepare(&l, 5, 1, 0);
	if (!go(t, &l))
		return;
	EXPECT(t, l.report.ok == 5 && server.num_connections == 1 && l.run.connections == 1);
	EXPECT(t, l.report.ttft_sent.min >= 40e6 && l.report.e2e_sent.min >= 135e6);
	/* a gap looks shorter if its first chunk was read late */
	EXPECT(t, l.report.itl.n == 10 && l.report.itl.p50 > 15e6 && l.report.itl.max > 50e6);
	EXPECT(t, l.report.tpot.n == 5 && fabs(l.report.tpot.mean - l.report.itl.mean) < 1);
	for (int i = 1; i < 5; i++)
		EXPECT(t, l.run.reqs[i].due_ns == l.run.reqs[i - 1].end_ns);
	/* time from the first to the last token, by both clocks */
	for (int i = 0; i < 5; i++) {
		here = (double)(l.run.reqs[i].last_ns - l.run.reqs[i].first_ns);
		there = (double)(server.last_ns[i] - server.first_ns[i]);
		closest = fmin(closest, fabs(here - there));
	}
	EXPECT(t, closest < 50e6);
	cairn_note(t, "TTFT %.2f ms, TPOT %.2f ms; smallest difference of the clocks %.3f ms",
		   l.report.ttft.mean * 1e-6, l.report.tpot.mean * 1e-6, closest * 1e-6);
	done(&l);
}

static enum then ten_ways(int fd, int request)
{
	static const char full[] = "HTTP/1.1 429 Too Many Requests\r\nContent-Length: 2\r\n\r\n{}";

	switch (request % 10) {
	case 0:
		say(fd, full);
		return STAY;
	case 1:
		say(fd, HEAD TOKEN);
		return CLOSE;
	case 2:
		say(fd, HEAD TOKEN);
		poll(NULL, 0, 50);
		return RESET;
	case 3:
		say(fd, HEAD "24\r\ndata: {\"error\":{\"message\":\"died\"}}\n\n\r\n0\r\n\r\n");
		return STAY;
	case 4:
		say(fd, HEAD TOKEN "0\r\n\r\n");
		return STAY;
	case 5:
		say(fd, "HTTP/1.1 503 No\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
		return CLOSE;
	case 6:
		say(fd, HEAD TOKEN);
		poll(&(struct pollfd) { fd, POLLIN | POLLRDHUP, 0 }, 1, 30000); /* until the client closes */
		return CLOSE;
	case 7:
		say(fd, "+OK hello\r\n");
		return CLOSE;
	case 8:
		say(fd, HEAD "7\r\ndata: \n\r\n1\r\n\n\r\n0\r\n\r\n");
		return STAY;
	default:
		say(fd, HEAD TOKEN TOKEN DONE);
		return STAY;
	}
}

static void failures(struct cairn_test *t)
{
	static const enum bench_outcome want[10] = {
		BENCH_STATUS, BENCH_CUT,     BENCH_CUT,      BENCH_EVENT,     BENCH_NO_DONE,
		BENCH_STATUS, BENCH_TIMEOUT, BENCH_BAD_HTTP, BENCH_BAD_EVENT, BENCH_OK,
	};
	struct trial l;

	start(t, ten_ways);
	prepare(&l, 30, 1, 0);
	l.run.timeout_ns = 1500000000;
	if (!go(t, &l))
		return;
	for (int i = 0; i < 30; i++) {
		if (!EXPECT(t, l.run.reqs[i].outcome == want[i % 10]))
			cairn_note(t, "request %d: %s, status %d", i,
				   bench_outcome_names[l.run.reqs[i].outcome], l.run.reqs[i].status);
	}
	EXPECT(t, l.report.ok == 3 && l.report.sent == 30 && l.report.by_outcome[BENCH_STATUS] == 6);
	EXPECT(t, l.report.num_status == 2 && l.report.by_status[0].status == 429 &&
			  l.report.by_status[0].n == 3 && l.report.by_status[1].status == 503 &&
			  l.report.by_status[1].n == 3);
	EXPECT(t, l.report.ttft.n == 3 && l.report.output_tokens == 6);
	EXPECT(t, !strcmp(l.run.first_error, "status 429: an error without a message"));
	done(&l);
	prepare(&l, 4, 2, 0); /* no server listens on port 1 */
	((struct sockaddr_in *)&l.target.addr)->sin_port = htons(1);
	if (go(t, &l))
		EXPECT(t, l.report.by_outcome[BENCH_CONNECT] == 4 && l.report.ok == 0);
	done(&l);
}

/* Closes after each answer without announcing it, so that the client notices only after it has sent. */
static enum then closes_unsaid(int fd, int request)
{
	(void)request;
	say(fd, HEAD TOKEN DONE);
	return CLOSE;
}

static void closed_between(struct cairn_test *t)
{
	struct trial l;

	start(t, closes_unsaid);
	prepare(&l, 40, 1, 0);
	if (go(t, &l))
		EXPECT(t, l.report.ok == 40 && server.num_requests >= 40);
	done(&l);
}

static enum then first_is_slow(int fd, int request)
{
	poll(NULL, 0, request ? 1 : 400);
	say(fd, HEAD TOKEN TOKEN DONE);
	return STAY;
}

/*
 * With concurrency 1, 100 requests are due per second and the first takes 0.4 s. The delay that this causes
 * to the later ones must be reported.
 */
static void no_omission(struct cairn_test *t)
{
	struct trial l;

	start(t, first_is_slow);
	prepare(&l, 30, 1, 100);
	if (!go(t, &l))
		return;
	EXPECT(t, l.report.ok == 30 && l.run.max_in_flight == 1);
	for (int i = 1; i < 30; i++) {
		const struct bench_request *r = &l.run.reqs[i];

		/* none is sent before its predecessor ends; latency from the due time includes the wait */
		EXPECT(t, r->sent_ns >= l.run.reqs[i - 1].end_ns && r->sent_ns >= r->due_ns);
	}
	EXPECT(t, l.run.reqs[1].first_ns - l.run.reqs[1].due_ns >= 400000000 - l.run.reqs[1].due_ns);
	EXPECT(t, l.report.ttft.p50 > l.report.ttft_sent.p50 + 20e6 && l.report.late.max > 250e6);
	cairn_note(t, "TTFT p50 %.1f ms from due, %.1f ms from sent", l.report.ttft.p50 * 1e-6,
		   l.report.ttft_sent.p50 * 1e-6);
	done(&l);
}

static enum then a_while(int fd, int request)
{
	(void)request;
	say(fd, HEAD TOKEN);
	poll(NULL, 0, 300);
	say(fd, TOKEN DONE);
	return STAY;
}

/* In an open loop, due requests are sent no matter how many are in flight or how many connections stall. */
static void open_loop(struct cairn_test *t)
{
	struct trial l;

	start(t, a_while);
	prepare(&l, 60, 0, 400);
	l.run.idle = 30;
	l.run.stalled = 5;
	l.run.stalled_len = 100;
	if (!go(t, &l))
		return;
	EXPECT(t, l.report.ok == 60 && l.run.max_in_flight > 20);
	EXPECT(t, l.run.connections == (uint64_t)server.num_connections && l.run.connections >= 35 + 20);
	EXPECT(t, server.num_requests == 65);
	/* the achieved rate equals the requested one: the last request was due on schedule */
	EXPECT(t, l.run.reqs[59].sent_ns - l.run.reqs[59].due_ns < 5000000000); /* serially: 18 s */
	done(&l);
	prepare(&l, 1000, 0, 50);
	l.run.duration_ns = 500000000;
	if (go(t, &l))
		EXPECT(t, l.report.sent > 10 && l.report.sent < 50 && l.report.ok == l.report.sent);
	done(&l);
}

static atomic_bool enough;

static enum then until_enough(int fd, int request)
{
	if (request == 20)
		atomic_store(&enough, true);
	return a_while(fd, request);
}

/* An interrupted run waits for the requests in flight. */
static void stopped(struct cairn_test *t)
{
	struct trial l;

	start(t, until_enough);
	prepare(&l, 10000, 0, 200);
	l.run.stop = &enough;
	if (go(t, &l))
		EXPECT(t, l.report.sent > 20 && l.report.sent < 2000 && l.report.ok == l.report.sent);
	done(&l);
}

static enum then with_models(int fd, int request)
{
	if (!request) {
		say(fd, "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 28\r\n\r\n"
			"{\"data\":[{\"id\":\"tiny \\\"q\"}]}");
		return CLOSE;
	}
	return three_tokens(fd, request);
}

static void the_command(struct cairn_test *t)
{
	char url[64], out[8192], json[4200], requests[4200], line[8192] = "";
	json_t *row, *body;
	FILE *f;

	start(t, with_models);
	snprintf(url, sizeof(url), "http://127.0.0.1:%d/v1", server.port);
	snprintf(json, sizeof(json), "%s/rows", cairn_tmpdir(t));
	snprintf(requests, sizeof(requests), "%s/requests", cairn_tmpdir(t));
	if (!EXPECT(t,
		    !cairn_spawn((char *[]) { "cairn", "bench", "serve", "--url", url, "--num-prompts", "4",
					      "--concurrency", "2", "--respect-eos", "--json", json, "--case",
					      "c1", "--requests", requests, "--api-key", "secret", NULL },
				 out, sizeof(out))))
		cairn_note(t, "%s", out);
	EXPECT_CONTAINS(t, out, "4 sent, 4 ok\n");
	EXPECT_CONTAINS(t, out, "12 of answers");
	pthread_mutex_lock(&body_lock);
	body = json_loads(server.last_body, 0, NULL);
	pthread_mutex_unlock(&body_lock);
	EXPECT(t, !strcmp(json_string_value(json_object_get(body, "model")), "tiny \"q"));
	json_decref(body);
	f = fopen(json, "r");
	if (!EXPECT(t, f && fgets(line, sizeof(line), f)))
		return;
	fclose(f);
	row = json_loads(line, JSON_REJECT_DUPLICATES, NULL);
	EXPECT(t, json_is_true(json_object_get(row, "ok")) &&
			  json_integer_value(json_object_get(row, "n")) == 4);
	EXPECT(t, json_integer_value(json_object_get(row, "output_tokens")) == 12);
	/* half of 95 ms, or less where the first token was read late */
	EXPECT(t, json_number_value(json_object_get(row, "median_ns")) > 15e6);
	EXPECT(t, json_number_value(json_object_get(row, "ttft_p99_ns")) >= 40e6);
	json_decref(row);
	f = fopen(requests, "r");
	for (int i = 0; f && i < 4; i++)
		EXPECT(t, fgets(line, sizeof(line), f) && strstr(line, "\"outcome\":\"ok\""));
	if (f)
		fclose(f);
	EXPECT(t, cairn_spawn((char *[]) { "cairn", "bench", "serve", "--url", "http://127.0.0.1:1", NULL },
			      out, sizeof(out)) == 2);
	EXPECT_CONTAINS(t, out, "http://127.0.0.1:1/v1/models: Connection refused");
	EXPECT(t, cairn_spawn((char *[]) { "cairn", "bench", "serve", "--url", "http://127.0.0.1:1",
					   "--model", "m", "--num-prompts", "2", NULL },
			      out, sizeof(out)) == 1);
	EXPECT_CONTAINS(t, out, "2 sent, 0 ok, 2 no connection");
}

static const struct cairn_unit units[] = {
	{ "times", times },
	{ "failures", failures },
	{ "closed_between", closed_between },
	{ "no_omission", no_omission },
	{ "open_loop", open_loop },
	{ "stopped", stopped },
	{ "the_command", the_command },
};

const struct cairn_family cairn_bench_serve_family = {
	.stage = "serving",
	.name = "bench_serve",
	.units = units,
	.num_units = ARRAY_SIZE(units),
	.timeout_s = 60,
	.waits = 1,
};
