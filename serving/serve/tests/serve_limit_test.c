// SPDX-License-Identifier: Apache-2.0
/* serve_limit_test - full queues, clients that leave or do not read, shortage of KV pages */
#include "conformance/harness.h"
#include "serving/serve/tests/serve_test.h"

#define LONG	"{\"prompt\":\"a\",\"ignore_eos\":true,\"max_tokens\":1500"
#define SHORT	"{\"prompt\":\"a\",\"max_tokens\":2}"
#define PATH	"/v1/completions"

/* Returns a request body with a prompt of n tokens and the members `more`; the caller frees it. */
static char *prompt_of(int n, const char *more)
{
	char *body = malloc((size_t)n * 4 + 256), *p = body + sprintf(body, "{\"prompt\":[510");

	for (int i = 1; i < n; i++)
		p += sprintf(p, ",%d", 100 + i * 7 % 300);
	sprintf(p, "]%s}", more);
	return body;
}

/* While one request runs, --max-queued others are queued; the next one gets 429 with Retry-After. */
static void queue(struct cairn_test *t)
{
	char path[PATH_MAX], *big = prompt_of(600, ",\"max_tokens\":2");
	static struct reply r;
	struct server s;
	int fds[4];

	if (beside(t, "fault_plugin.so", path, sizeof(path)) &&
	    start_server(t, &s, FAULT_ARGS(path, "--batch", "1", "--max-queued", "3", "--max-queued-tokens",
					   "500")) && EXPECT(t, wait_ready(&s))) {
		tell_fault(&s, "slow 3");
		fds[0] = ask_stream(&s, PATH, LONG "}");
		EXPECT(t, WAIT_FOR(metric_of(&s, "vllm:num_requests_running", "") == 1, 30000));
		for (int i = 1; i < 3; i++)
			fds[i] = ask_stream(&s, PATH, SHORT);
		EXPECT(t, WAIT_FOR(metric_of(&s, "vllm:num_requests_waiting", "") == 2, 30000));
		EXPECT(t, post(&s, PATH, big, &r) == 429 && is_error(&r));
		EXPECT(t, strcasestr(r.text, "\r\nRetry-After: ") &&
				  says(&r, "error.type", "rate_limit_error"));
		EXPECT(t, post(&s, PATH, "{\"prompt\":[\"a\",\"b\"],\"max_tokens\":2}", &r) == 429);
		fds[3] = ask_stream(&s, PATH, SHORT);
		EXPECT(t, WAIT_FOR(metric_of(&s, "vllm:num_requests_waiting", "") == 3, 30000));
		EXPECT(t, post(&s, PATH, SHORT, &r) == 429 && is_error(&r));
		EXPECT(t, metric_of(&s, "cairn:requests_refused_total", "queue") == 3);
		EXPECT(t, get(&s, "/health", &r) == 200);
		close(fds[0]);	/* once the running request's client leaves, the queued ones are served */
		for (int i = 1; i < 4; i++) {
			EXPECT(t, read_reply_of(fds[i], &r, 60000, true) == 200);
			close(fds[i]);
		}
		EXPECT(t, post(&s, PATH, big, &r) == 200);
		/* more prompts in one request than the queue holds: 400, since a retry cannot succeed */
		EXPECT(t, post(&s, PATH, "{\"prompt\":[\"a\",\"b\",\"c\",\"d\"]}", &r) == 400 &&
				  says(&r, "error.param", "prompt"));
		EXPECT(t, WAIT_FOR(is_quiet(&s), 30000));
		stop_server(&s);
	}
	free(big);
}

/* Clients leave while queued, during the prefill, and during decoding. */
static void leavers(struct cairn_test *t)
{
	char path[PATH_MAX], *big = prompt_of(1900, ",\"max_tokens\":100,\"ignore_eos\":true");
	static struct reply r;
	struct server s;
	double tokens, after;

	if (beside(t, "fault_plugin.so", path, sizeof(path)) &&
	    start_server(t, &s, FAULT_ARGS(path, "--batch", "2", "--rows", "16")) &&
	    EXPECT(t, wait_ready(&s))) {
		int streams[3], fd, waiting;

		tell_fault(&s, "slow 5");
		/* two decode, one streamed and one not; the third is queued */
		streams[0] = ask_stream(&s, PATH, LONG ",\"stream\":true}");
		streams[1] = ask_stream(&s, PATH, LONG "}");
		waiting = ask_stream(&s, PATH, LONG "}");
		EXPECT(t, WAIT_FOR(metric_of(&s, "vllm:generation_tokens_total", "") > 20 &&
				   metric_of(&s, "vllm:num_requests_waiting", "") == 1, 30000));
		EXPECT(t, metric_of(&s, "vllm:kv_cache_usage_perc", "") > 0);
		close(waiting);
		EXPECT(t, WAIT_FOR(metric_of(&s, "vllm:num_requests_waiting", "") == 0, 60000));
		EXPECT(t, metric_of(&s, "vllm:num_requests_running", "") == 2);
		close(streams[0]);
		close(streams[1]);
		EXPECT(t, WAIT_FOR(is_quiet(&s), 60000));
		tokens = metric_of(&s, "vllm:generation_tokens_total", "");
		EXPECT(t, tokens < 1500);	/* far fewer than the 3000 of the two running requests */
		/* a prompt that takes 119 passes; its client leaves before the first token */
		fd = dial_port(s.port);
		dprintf(fd, "POST " PATH " HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
			"Content-Length: %zu\r\n\r\n%s", strlen(big), big);
		EXPECT(t, WAIT_FOR(metric_of(&s, "vllm:num_requests_running", "") == 1, 30000));
		close(fd);
		EXPECT(t, WAIT_FOR(is_quiet(&s), 60000));
		after = metric_of(&s, "vllm:generation_tokens_total", "");
		if (!EXPECT(t, after == tokens))
			cairn_note(t, "%g tokens, then %g", tokens, after);
		EXPECT(t, metric_of(&s, "vllm:request_success_total", "abort") == 4);
		EXPECT(t, post(&s, PATH, SHORT, &r) == 200);
		stop_server(&s);
	}
	free(big);
}

/* 12 clients do not read their streams. Other requests continue. The stalled connections are closed, which
 * frees their pages. */
static void stalled(struct cairn_test *t)
{
	static struct reply r;
	struct server s;
	int fds[12], small = 2048;
	double start, slowest = 0;

	if (start_server(t, &s,
			 (const char *const[]){ "--impl", "cpu", "--batch", "16", "--quiet",
						"--stall-timeout", "2", "--stream-buffer", "65536",
						NULL }) &&
	    EXPECT(t, wait_ready(&s))) {
		start = now_s();
		for (int i = 0; i < 12; i++) {
			fds[i] = ask_stream(&s, PATH, LONG ",\"n\":1,\"stream\":true,\"logprobs\":20}");
			setsockopt(fds[i], SOL_SOCKET, SO_RCVBUF, &small, sizeof(small));
		}
		for (int i = 0; i < 20; i++) {
			double begin = now_s();

			EXPECT(t, post(&s, PATH, SHORT, &r) == 200);
			slowest = now_s() - begin > slowest ? now_s() - begin : slowest;
			nap_ms(20);
		}
		cairn_note(t, "slowest of the other requests: %.1f ms", slowest * 1e3);
		EXPECT(t, WAIT_FOR(is_quiet(&s), 60000));
		EXPECT(t, WAIT_FOR(metric_of(&s, "vllm:request_success_total", "abort") == 12, 60000));
		EXPECT(t, now_s() - start > 2);
		for (int i = 0; i < 12; i++)
			close(fds[i]);
	}
	stop_server(&s);
}

/*
 * A slow reader gets its whole answer in fewer events. Log-probabilities make the events long, so that few
 * tokens fill all buffers.
 */
static void slow_reader(struct cairn_test *t)
{
	static char text[4 << 20];
	struct server s;
	size_t n = 0;
	ssize_t k;
	int fd, small = 16384, events = 0;

	if (start_server(t, &s,
			 (const char *const[]){ "--impl", "cpu", "--quiet", "--stall-timeout", "900",
						"--stream-buffer", "65536", NULL }) &&
	    EXPECT(t, wait_ready(&s))) {
		fd = ask_stream(&s, PATH,
				"{\"prompt\":\"a\",\"ignore_eos\":true,\"max_tokens\":600,\"stream\":true,"
				"\"logprobs\":20,\"stream_options\":{\"include_usage\":true}}");
		setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &small, sizeof(small));
		EXPECT(t,
		       WAIT_FOR(is_quiet(&s) && metric_of(&s, "vllm:generation_tokens_total", "") == 600,
				120000));
		while (n + 1 < sizeof(text) &&
		       (k = read_more(fd, text + n, sizeof(text) - 1 - n, 60000)) > 0) {
			n += (size_t)k;
			if (n > 5 && !memcmp(text + n - 5, "0\r\n\r\n", 5))
				break;
		}
		text[n] = 0;
		for (char *p = text; (p = strstr(p, "data: ")); p += 6)
			events++;
		EXPECT_CONTAINS(t, text, "\"completion_tokens\":600");
		EXPECT_CONTAINS(t, text, "data: [DONE]");
		EXPECT_CONTAINS(t, text, "\"finish_reason\":\"length\"");
		EXPECT(t, events > 100 && events < 600);
		cairn_note(t, "600 tokens in %d events, %zu bytes", events, n);
		close(fd);
	}
	stop_server(&s);
}

/* Idle connections and a request that stops half-way; the family http_bad tests other slow requests. */
static void idlers(struct cairn_test *t)
{
	static struct reply r;
	struct server s;
	int fds[60], fd;

	if (start_server(t, &s,
			 (const char *const[]){ "--impl", "cpu", "--quiet", "--max-connections", "50",
						"--header-timeout", "1", NULL }) &&
	    EXPECT(t, wait_ready(&s))) {
		fd = dial_port(s.port);
		say(fd, "POST " PATH " HTTP/1.1\r\nHost: localhost\r\nContent-Type: "
				     "application/json\r\nContent-Length: 99\r\n\r\n{");
		EXPECT(t, read_reply(fd, &r) == 408 && is_error(&r));
		close(fd);
		for (int i = 0; i < 60; i++)
			fds[i] = dial_port(s.port);
		EXPECT(t, read_reply(fds[59], &r) == 503);
		say(fds[0], "GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n");
		EXPECT(t, read_reply(fds[0], &r) == 200);
		for (int i = 0; i < 60; i++)
			close(fds[i]);
		EXPECT(t, WAIT_FOR(post(&s, PATH, SHORT, &r) == 200, 30000));
	}
	stop_server(&s);
}

/* Eight sequences share pages for 2.5. A request that can never fit gets 400. Deadlines hold. */
static void short_of_pages(struct cairn_test *t)
{
	static struct reply r;
	char path[PATH_MAX];
	struct server s;
	int fds[8];

	if (start_server(t, &s,
			 (const char *const[]){ "--impl", "cpu", "--quiet", "--batch", "8", "--pages", "40",
						NULL }) &&
	    EXPECT(t, wait_ready(&s))) {
		for (int i = 0; i < 8; i++)
			fds[i] = ask_stream(&s, PATH,
					    "{\"prompt\":\"a\",\"ignore_eos\":true,\"max_tokens\":250}");
		for (int i = 0; i < 8; i++) {
			EXPECT(t, read_reply_of(fds[i], &r, 60000, true) == 200);
			if (!EXPECT(t, number_at(&r, "usage.completion_tokens") == 250))
				cairn_note(t, "%zu bytes: %.600s", r.body_bytes, r.body);
			close(fds[i]);
		}
		EXPECT(t, post(&s, PATH, "{\"prompt\":\"a\",\"max_tokens\":700}", &r) == 400 && is_error(&r));
		EXPECT(t, WAIT_FOR(is_quiet(&s), 30000));
		cairn_note(t, "%g preemptions", metric_of(&s, "vllm:num_preemptions_total", ""));
	}
	stop_server(&s);
	if (beside(t, "fault_plugin.so", path, sizeof(path)) &&
	    start_server(t, &s, FAULT_ARGS(path, "--request-timeout", "1")) && EXPECT(t, wait_ready(&s))) {
		tell_fault(&s, "slow 20");
		EXPECT(t, post(&s, PATH, LONG "}", &r) == 504 && says(&r, "error.code", "deadline_exceeded"));
		EXPECT(t, post(&s, PATH, LONG ",\"stream\":true}", &r) == 200);
		EXPECT_CONTAINS(t, r.body, "data: {\"error\":{");
		EXPECT(t, !strstr(r.body, "[DONE]"));
		EXPECT(t, WAIT_FOR(is_quiet(&s), 30000));
		stop_server(&s);
	}
}

/* A stream without a token for 10 s gets a comment, so that no proxy closes it as idle. */
static void long_wait(struct cairn_test *t)
{
	static struct reply r;
	char path[PATH_MAX];
	struct server s;
	int fd;

	if (!beside(t, "fault_plugin.so", path, sizeof(path)) ||
	    !start_server(t, &s, FAULT_ARGS(path, "--batch", "1")) || !EXPECT(t, wait_ready(&s)))
		return;
	/* the fault table removes the file of a one-time fault when the pass has begun */
	tell_fault(&s, "late 12000");
	fd = ask_stream(&s, PATH, "{\"prompt\":\"a\",\"max_tokens\":2,\"ignore_eos\":true,\"stream\":true}");
	EXPECT(t, WAIT_FOR(access(s.fault, F_OK), 30000));
	EXPECT(t, read_reply_of(fd, &r, 60000, true) == 200);
	EXPECT(t, !strncmp(r.body, ": waiting\n\ndata: {", 18));
	EXPECT_CONTAINS(t, r.body, "data: [DONE]");
	close(fd);
	stop_server(&s);
}

/*
 * If all KV pages together hold less than the model's context, they limit a request, and /v1/models reports
 * that limit.
 */
static void small_pool(struct cairn_test *t)
{
	static struct reply r;
	struct server s;
	char *body[3] = { prompt_of(60, ",\"ignore_eos\":true"), prompt_of(60, ",\"max_tokens\":5"),
			  prompt_of(64, ",\"stream\":true") };

	if (start_server(t, &s, (const char *const[]){ "--impl", "cpu", "--quiet", "--page-size", "16",
						       "--pages", "4", "--batch", "4", NULL }) &&
	    EXPECT(t, wait_ready(&s))) {
		EXPECT(t, get(&s, "/v1/models", &r) == 200 && number_at(&r, "data.0.max_model_len") == 64);
		EXPECT(t, get(&s, "/v1/models/embedded", &r) == 200 &&
				  number_at(&r, "max_model_len") == 64);
		EXPECT(t, post(&s, "/tokenize", "{\"prompt\":\"a\"}", &r) == 200 &&
				  number_at(&r, "max_model_len") == 64);
		/* without max_tokens, an answer may use all that is left */
		EXPECT(t, post(&s, PATH, body[0], &r) == 200 && number_at(&r, "usage.total_tokens") == 64);
		for (int i = 1; i < 3; i++)
			EXPECT(t, post(&s, PATH, body[i], &r) == 400 &&
					  says(&r, "error.code", "context_length_exceeded"));
	}
	stop_server(&s);
	for (int i = 0; i < 3; i++)
		free(body[i]);
}

/*
 * If nobody reads the server's standard error (a pipe of 64 KiB), requests are still served, a crashed worker
 * is replaced, dropped lines are counted, and SIGTERM ends the server.
 */
static void unread_log(struct cairn_test *t)
{
	static char line[512];
	char path[PATH_MAX];
	static struct reply r;
	struct server s;
	int pipes[2], fd, num = 0;

	memset(line, 'a', sizeof(line) - 1);
	if (!beside(t, "fault_plugin.so", path, sizeof(path)) || !EXPECT(t, !pipe2(pipes, O_CLOEXEC)))
		return;
	if (start_server_at(t, &s, (const char *const[]){ "--impl", path, NULL }, pipes[1]) &&
	    EXPECT(t, wait_ready(&s))) {
		char text[1024];
		int n = snprintf(text, sizeof(text), "GET /%s HTTP/1.1\r\nHost: localhost\r\n\r\n", line);

		fd = dial_port(s.port);
		for (; num < 2000; num++) {
			say_n(fd, text, (size_t)n);
			if (read_reply(fd, &r) != 404)
				break;
		}
		close(fd);
		if (!EXPECT(t, num == 2000))
			cairn_note(t, "%d requests were answered", num);
		EXPECT(t, !(fcntl(pipes[1], F_GETFL) & O_NONBLOCK));
		EXPECT(t, WAIT_FOR(metric_of(&s, "cairn:log_lines_lost_total", "") > 100, 30000));
		tell_fault(&s, "crash");
		EXPECT(t, post(&s, PATH, SHORT, &r) == 200);	/* by the next worker */
		EXPECT(t, WAIT_FOR(metric_of(&s, "cairn:worker_restarts_total", "") == 1, 30000));
		EXPECT(t, wait_ready(&s) && post(&s, PATH, SHORT, &r) == 200);
	}
	stop_server(&s);
	close(pipes[0]);
	close(pipes[1]);
}

/* Eight clients send 2 MB each to be tokenized. A short request that arrives after them is answered before
 * most of them. A completion with an equally long prompt is refused because of its length. */
static void long_bodies(struct cairn_test *t)
{
	enum { LEN = 2 << 20, NUM = 8 };
	char *body = malloc(LEN + 64);
	static struct reply r;
	struct server s;
	int fds[NUM], num = 0, at = sprintf(body, "{\"prompt\":\"");

	for (int i = 0; i < LEN; i++)
		body[at + i] = "one 2 tw3 "[i % 10];
	strcpy(body + at + LEN, "\"}");
	if (start_server(t, &s, (const char *const[]){ "--impl", "cpu", "--quiet", NULL }) &&
	    EXPECT(t, wait_ready(&s))) {
		for (int i = 0; i < NUM; i++) {
			fds[i] = dial_port(s.port);
			dprintf(fds[i], "POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Type: "
				"application/json\r\nContent-Length: %zu\r\n\r\n", strlen(body));
			say_n(fds[i], body, strlen(body));
		}
		EXPECT(t, post(&s, "/tokenize", "{\"prompt\":\"a\"}", &r) == 200);
		for (int i = 0; i < NUM; i++)
			num += poll(&(struct pollfd){ fds[i], POLLIN, 0 }, 1, 0) == 1;
		if (!EXPECT(t, num <= NUM / 2))
			cairn_note(t, "%d of %d long requests came first", num, NUM);
		for (int i = 0; i < NUM; i++)
			close(fds[i]);
		EXPECT(t, post(&s, PATH, body, &r) == 400 && says(&r, "error.param", "prompt") &&
				  says(&r, "error.code", "context_length_exceeded"));
		EXPECT_CONTAINS(t, r.body, "are at least");
	}
	stop_server(&s);
	free(body);
}

static const struct cairn_unit units[] = {
	{ "queue", queue }, { "leavers", leavers }, { "stalled", stalled }, { "slow_reader", slow_reader },
	{ "idlers", idlers }, { "long_wait", long_wait }, { "short_of_pages", short_of_pages },
	{ "small_pool", small_pool }, { "unread_log", unread_log },
	{ "long_bodies", long_bodies },
};

const struct cairn_family cairn_serve_limit_family = {
	.stage = "serving", .name = "serve_limit", .units = units, .num_units = ARRAY_SIZE(units),
	.timeout_s = 180,
	.cost_s = 26, .waits = 1,
};
