// SPDX-License-Identifier: Apache-2.0
/* http_test - valid requests: what handlers receive, what clients get, keep-alive, keys and addresses */
#include "conformance/harness.h"
#include "serving/http/http_test.h"

/* Answers with the request's method, path, query, peer and body. */
static void echo(void *ctx, struct cairn_http_exchange *x, const struct cairn_http_request *req)
{
	const char *note = cairn_http_header(req, "X-NOTE");
	struct cairn_http_field extra = { "X-Seen", note ? note : "none" };
	char text[8192];
	int n = snprintf(text, sizeof(text), "%s|%s|%s|%s|%zu|%.*s", req->method, req->path, req->query,
			 req->peer, req->body_bytes, (int)req->body_bytes, req->body);

	(void)ctx;
	if (cairn_http_answer(x, 200, "text/plain", &extra, 1, text, (size_t)n))
		cairn_http_abort(x);
}

static void *answer_later(void *arg)
{
	struct cairn_http_exchange *x = arg;

	nap_ms(30);
	cairn_http_error(x, 429, "rate_limit_error", "n", "slow_down", "\"\x01\xff\xc3\xa9\" is %d", 7);
	return NULL;
}

static void later(void *ctx, struct cairn_http_exchange *x, const struct cairn_http_request *req)
{
	pthread_t thread;

	(void)ctx;
	(void)req;
	pthread_create(&thread, NULL, answer_later, x);
	pthread_detach(thread);
}

static void refused_answers(void *ctx, struct cairn_http_exchange *x, const struct cairn_http_request *req)
{
	struct cairn_http_field split = { "X-A", "b\r\nX-B: c" }, name = { "X A", "b" };
	struct cairn_test *t = ctx;

	(void)req;
	EXPECT(t, cairn_http_answer(x, 200, NULL, &split, 1, "", 0) == -EINVAL);
	EXPECT_CONTAINS(t, cairn_last_error(), "X-A");
	EXPECT(t, cairn_http_answer(x, 200, NULL, &name, 1, "", 0) == -EINVAL);
	EXPECT(t, cairn_http_answer(x, 99, NULL, NULL, 0, "", 0) == -EINVAL);
	EXPECT(t, cairn_http_answer(x, 200, "text/plain\n", NULL, 0, "", 0) == -EINVAL);
	EXPECT(t, cairn_http_push(x, "a", 1) == -EINVAL);
	EXPECT(t, !cairn_http_answer(x, 204, NULL, NULL, 0, NULL, 0));
}

static struct cairn_http_route routes[] = {
	{ "GET", "/health", CAIRN_HTTP_OPEN, 0, echo, NULL },
	{ "GET", "/echo", 0, 0, echo, NULL },
	{ "POST", "/echo", 0, 100, echo, NULL },
	{ "POST", "/json", CAIRN_HTTP_JSON, 0, echo, NULL },
	{ "GET", "/models/*", 0, 0, echo, NULL },
	{ "GET", "/later", 0, 0, later, NULL },
	{ "GET", "/refused", 0, 0, refused_answers, NULL },
};

static struct cairn_http *start(struct cairn_test *t, const struct cairn_http_options *o)
{
	routes[ARRAY_SIZE(routes) - 1].ctx = t;
	return serve(t, o, routes, ARRAY_SIZE(routes));
}

static void request_and_answer(struct cairn_test *t)
{
	struct cairn_http *http = start(t, &(struct cairn_http_options){ 0 });
	static struct reply r;

	EXPECT(t, ask(http, "GET /echo?a=%20b HTTP/1.1\r\nHost: a\r\nx-note:  \t two words \r\n\r\n",
		      &r) == 200);
	EXPECT(t, !strcmp(r.body, "GET|/echo|a=%20b|127.0.0.1|0|"));
	EXPECT_CONTAINS(t, r.text, "\r\nX-Seen: two words\r\n");
	EXPECT_CONTAINS(t, r.text, "\r\nDate: ");
	EXPECT_CONTAINS(t, r.text, "\r\nX-Request-Id: req_");
	EXPECT(t, ask(http, "POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n"
		      "X-Request-Id: my.id-1\r\n\r\nhello", &r) == 200);
	EXPECT(t, !strcmp(r.body, "POST|/echo||127.0.0.1|5|hello"));
	EXPECT_CONTAINS(t, r.text, "\r\nX-Request-Id: my.id-1\r\n");
	EXPECT(t, ask(http, "GET http://a:80/models/meta%2dllama/L%c3%a9 HTTP/1.1\r\nHost: a\r\n\r\n",
		      &r) == 200);
	EXPECT_CONTAINS(t, r.body, "GET|/models/meta-llama/L\xc3\xa9|");
	EXPECT(t, ask(http, "POST /json HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n"
		      "Content-Type: Application/JSON; charset=\"UTF-8\"\r\n\r\n{}", &r) == 200);
	EXPECT(t, ask(http, "GET /later HTTP/1.1\r\nHost: a\r\n\r\n", &r) == 429);
	EXPECT(t, is_error(&r));
	EXPECT_CONTAINS(t, r.body, "\"message\":\"\\\"\\u0001\xef\xbf\xbd\xc3\xa9\\\" is 7\"");
	EXPECT_CONTAINS(t, r.body, "\"param\":\"n\",\"code\":\"slow_down\"");
	EXPECT_CONTAINS(t, r.text, "\r\nRetry-After: 1\r\n");
	EXPECT(t, ask(http, "GET /refused HTTP/1.1\r\nHost: a\r\n\r\n", &r) == 204);
	EXPECT(t, !strstr(r.text, "Content-Length") && !strstr(r.text, "X-B"));
	cairn_http_destroy(http);
}

/*
 * An answer to HEAD has a length and no body; the next answer follows directly. GET routes serve
 * HEAD; no route serves OPTIONS.
 */
static void head_and_options(struct cairn_test *t)
{
	struct cairn_http *http = start(t, &(struct cairn_http_options){ 0 });
	static struct reply r;
	int fd = dial(http);

	say(fd, "HEAD /echo HTTP/1.1\r\nHost: a\r\n\r\n");
	EXPECT(t, read_reply_of(fd, &r, 5000, false) == 200);
	EXPECT_CONTAINS(t, r.text, "\r\nContent-Length: 24\r\n");
	say(fd, "HEAD /health HTTP/1.1\r\nHost: a\r\n\r\n");
	EXPECT(t, read_reply_of(fd, &r, 5000, false) == 200);
	say(fd, "HEAD /json HTTP/1.1\r\nHost: a\r\n\r\n");
	EXPECT(t, read_reply_of(fd, &r, 5000, false) == 405);
	EXPECT_CONTAINS(t, r.text, "\r\nAllow: POST\r\n");
	say(fd, "OPTIONS /echo HTTP/1.1\r\nHost: a\r\n\r\n");
	EXPECT(t, read_reply(fd, &r) == 405 && is_error(&r));
	EXPECT_CONTAINS(t, r.text, "\r\nAllow: GET, HEAD, POST\r\n");
	say(fd, "OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n");
	EXPECT(t, read_reply(fd, &r) == 404);
	close(fd);
	cairn_http_destroy(http);
}

/* Returns the status of a request with this Host and Origin (NULL: none). */
static int ask_as(const struct cairn_http *http, const char *first, const char *host, const char *origin,
		  struct reply *r)
{
	char text[1024];

	snprintf(text, sizeof(text), "%s HTTP/1.1\r\nHost: %s\r\n%s%s%s\r\n", first, host,
		 origin ? "Origin: " : "", origin ? origin : "", origin ? "\r\n" : "");
	return ask(http, text, r);
}

/* On a loopback address without a key, other hosts and pages of other hosts are refused on every path. */
static void rebinding(struct cairn_test *t)
{
	static const char *const good[] = { "localhost", "LOCALHOST:80", "127.0.0.1:8000", "[::1]:1" };
	static const char *const bad[] = { "evil.example", "localhost.evil.example:8000", "127.0.0.1.evil",
		"[::2]", "localhost:x", "[::1]x", "127.0.0.8", "10.0.0.1:80", "" };
	static const char *const pages[] = { "null", "http://evil.example", "https://localhost.evil",
		"localhost", "http://", "file://", "http://evil/localhost" };
	struct cairn_http *http = start(t, &(struct cairn_http_options){ .check_host = true });
	static struct reply r;

	for (size_t i = 0; i < ARRAY_SIZE(good); i++)
		EXPECT(t, ask_as(http, "GET /health", good[i], NULL, &r) == 200);
	for (size_t i = 0; i < ARRAY_SIZE(bad); i++) {
		if (!EXPECT(t, ask_as(http, "GET /health", bad[i], NULL, &r) == 403 && is_error(&r)))
			cairn_note(t, "%s: %.300s", bad[i], r.text);
		EXPECT_CONTAINS(t, r.body, "Host: ");
		EXPECT(t, ask_as(http, "GET /none", bad[i], NULL, &r) == 403);
	}
	for (size_t i = 0; i < ARRAY_SIZE(pages); i++) {
		EXPECT(t, ask_as(http, "GET /echo", "localhost", pages[i], &r) == 403 && is_error(&r));
		EXPECT_CONTAINS(t, r.body, "Origin: ");
		EXPECT(t, !strstr(r.text, "Access-Control"));
	}
	EXPECT(t, ask_as(http, "GET /echo", "127.0.0.1:8000", "http://127.0.0.1:8000", &r) == 200);
	EXPECT(t, ask_as(http, "GET /echo", "localhost", "https://localhost:3000", &r) == 200);
	EXPECT(t, !strstr(r.text, "Access-Control"));
	cairn_http_destroy(http);
	/* a key is protection enough */
	http = start(t, &(struct cairn_http_options){ .check_host = true, .api_key = "k" });
	EXPECT(t, ask_as(http, "GET /health", "evil.example", "http://evil.example", &r) == 200);
	cairn_http_destroy(http);
}

/* Pages of allowed origins may read answers and errors, also on a server with a key, which preflights do
 * not send. */
static void cors(struct cairn_test *t)
{
	static const char preflight[] = "OPTIONS /echo HTTP/1.1\r\nHost: localhost\r\n"
		"Origin: http://b:81\r\n"
		"Access-Control-Request-Method: POST\r\n"
		"Access-Control-Request-Headers: authorization,content-type\r\n\r\n";
	struct cairn_http_options o = { .check_host = true,
					.allow_origin = "https://a.example, http://b:81" };
	struct cairn_http *http;
	static struct reply r;

	for (int key = 0; key < 2; key++) {
		o.api_key = key ? "k" : NULL;
		http = start(t, &o);
		EXPECT(t, ask_as(http, "GET /echo", "localhost", "https://a.example", &r) ==
				  (key ? 401 : 200));
		EXPECT_CONTAINS(t, r.text, "\r\nAccess-Control-Allow-Origin: https://a.example\r\n");
		EXPECT_CONTAINS(t, r.text, "\r\nVary: Origin\r\n");
		EXPECT(t, ask(http, preflight, &r) == 204);
		EXPECT_CONTAINS(t, r.text, "\r\nAccess-Control-Allow-Origin: http://b:81\r\n");
		EXPECT_CONTAINS(t, r.text, "\r\nAccess-Control-Allow-Methods: GET, HEAD, POST\r\n");
		EXPECT_CONTAINS(t, r.text, "\r\nAccess-Control-Allow-Headers: authorization,content-type");
		EXPECT(t, ask_as(http, "GET /echo", "localhost", "http://b:82", &r) == (key ? 401 : 403));
		EXPECT(t, !strstr(r.text, "Access-Control"));
		EXPECT(t, ask_as(http, "GET /health", "a.example", NULL, &r) == 200);
		cairn_http_destroy(http);
	}
	o = (struct cairn_http_options){ .check_host = true, .allow_origin = "*" };
	http = start(t, &o);
	EXPECT(t, ask_as(http, "GET /none", "any.example", "http://x", &r) == 404);
	EXPECT_CONTAINS(t, r.text, "\r\nAccess-Control-Allow-Origin: *\r\n");
	cairn_http_destroy(http);
	for (int i = 0; i < 3; i++) {
		o.allow_origin = i ? i > 1 ? "http://a/" : "http://" : "http://a,b";
		EXPECT(t, cairn_http_create(&http, &o, NULL, 0) == -EINVAL);
		EXPECT_CONTAINS(t, cairn_last_error(), "allow_origin");
	}
}

static void kept_connections(struct cairn_test *t)
{
	struct cairn_http *http = start(t, &(struct cairn_http_options){ 0 });
	struct cairn_http_stats stats;
	static struct reply r;
	int fd = dial(http);
	double start_s;
	char c;

	for (int i = 0; i < 50; i++) {
		say(fd, "POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nok");
		EXPECT(t, read_reply(fd, &r) == 200 && !strstr(r.text, "Connection:"));
	}
	say(fd, "GET /echo HTTP/1.0\r\nConnection: Keep-Alive\r\n\r\n");
	EXPECT(t, read_reply(fd, &r) == 200);
	EXPECT_CONTAINS(t, r.text, "\r\nConnection: keep-alive\r\n");
	/* an error that left nothing unread keeps the connection alive */
	say(fd, "GET /nowhere HTTP/1.1\r\nHost: a\r\n\r\n");
	EXPECT(t, read_reply(fd, &r) == 404 && !r.closed);
	close(fd);
	cairn_http_stats(http, &stats);
	EXPECT(t, stats.accepted == 1 && stats.requests == 52 && !stats.exchanges && !stats.body_bytes);
	EXPECT(t, ask(http, "GET /echo HTTP/1.1\r\nHost: a\r\nConnection: x, Close\r\n\r\n", &r) == 200);
	EXPECT(t, r.closed);
	EXPECT(t, ask(http, "GET /echo HTTP/1.0\r\n\r\n", &r) == 200 && r.closed);
	cairn_http_destroy(http);
	http = start(t, &(struct cairn_http_options){ .idle_timeout_ms = 200 });
	fd = dial(http);
	start_s = now_s();
	say(fd, "GET /nowhere HTTP/1.1\r\nHost: a\r\n\r\n");
	EXPECT(t, read_reply(fd, &r) == 404 && !r.closed);
	EXPECT(t, read_more(fd, &c, 1, 30000) == 0);
	EXPECT(t, now_s() - start_s > 0.2 && now_s() - start_s < 30);
	close(fd);
	cairn_http_destroy(http);
}

/* 200 requests in one write, one of them with a delayed answer: all are answered in order. */
static void pipelined(struct cairn_test *t)
{
	struct cairn_http *http = start(t, &(struct cairn_http_options){ 0 });
	static struct reply r;
	static char all[1 << 16];
	size_t at = 0;
	int fd = dial(http);

	for (int i = 0; i < 200; i++)
		at += (size_t)snprintf(all + at, sizeof(all) - at, i == 100 ?
				       "GET /later HTTP/1.1\r\nHost: a\r\n\r\n" :
				       "POST /echo?%d HTTP/1.1\r\nHost: a\r\n"
				       "Content-Length: 3\r\n\r\nabc\r\n",
				       i);
	say_n(fd, all, at);
	for (int i = 0; i < 200; i++) {
		char want[64];

		snprintf(want, sizeof(want), "POST|/echo|%d|127.0.0.1|3|abc", i);
		if (!EXPECT(t, read_reply(fd, &r) == (i == 100 ? 429 : 200)) ||
		    !EXPECT(t, i == 100 || !strcmp(r.body, want)))
			break;
	}
	close(fd);
	cairn_http_destroy(http);
}

/* A chunked request with an extension and a trailer, split into two writes at every byte. */
static void chunked_split(struct cairn_test *t)
{
	static const char text[] = "POST /echo HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
		"3\r\nabc\r\n0A;x=\"y\"\r\n0123456789\r\n1\r\n\n\r\n000\r\nX-Sum: 1\r\n\r\n";
	struct cairn_http *http = start(t, &(struct cairn_http_options){ 0 });
	static struct reply r;
	int fd = dial(http);

	for (size_t i = 1; i <= sizeof(text) - 1; i++) {
		say_n(fd, text, i);
		if (i % 4 == 0)		/* otherwise the pieces may arrive as one, which must work too */
			nap_ms(1);
		say(fd, text + i);
		if (!EXPECT(t, read_reply(fd, &r) == 200) ||
		    !EXPECT(t, !strcmp(r.body, "POST|/echo||127.0.0.1|14|abc0123456789\n"))) {
			cairn_note(t, "split at %zu", i);
			break;
		}
	}
	close(fd);
	cairn_http_destroy(http);
}

static void expect_continue(struct cairn_test *t)
{
	struct cairn_http *http = start(t, &(struct cairn_http_options){ 0 });
	static struct reply r;
	int fd = dial(http);

	say(fd, "POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\nExpect: 100-continue\r\n\r\n");
	EXPECT(t, read_reply(fd, &r) == 100);
	say(fd, "ok");
	EXPECT(t, read_reply(fd, &r) == 200);
	EXPECT_CONTAINS(t, r.body, "|2|ok");
	/* too long: refused before the client sends the body */
	say(fd, "POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 101\r\nExpect: 100-continue\r\n\r\n");
	EXPECT(t, read_reply(fd, &r) == 413 && is_error(&r) && r.closed);
	close(fd);
	cairn_http_destroy(http);
}

static void key(struct cairn_test *t)
{
	static const char *const wrong[] = { "", "Authorization: Bearer\r\n",
		"Authorization: Bearer sesam\r\n", "Authorization: Bearer sesame1\r\n",
		"Authorization: Basic sesame\r\n", "Authorization: sesame\r\n",
		"Authorization: Bearer sesame\r\nAuthorization: Bearer sesame\r\n", "X-Api-Key: sesame\r\n",
		"Authorization: Bearer Sesame\r\n", "Authorization: Bearer sesamesesame\r\n" };
	static const char *const paths[] = { "/echo", "/nowhere", "/metrics" };
	struct cairn_http *http = start(t, &(struct cairn_http_options){ .api_key = "sesame" });
	static struct reply r;
	char text[256];

	for (size_t i = 0; i < ARRAY_SIZE(wrong) * ARRAY_SIZE(paths); i++) {
		snprintf(text, sizeof(text), "GET %s HTTP/1.1\r\nHost: a\r\n%s\r\n", paths[i % 3],
			 wrong[i / 3]);
		EXPECT(t, ask(http, text, &r) == 401 && is_error(&r));
		EXPECT_CONTAINS(t, r.text, "\r\nWWW-Authenticate: Bearer\r\n");
		EXPECT_CONTAINS(t, r.body, "\"code\":\"invalid_api_key\"");
	}
	EXPECT(t, ask(http, "GET /echo HTTP/1.1\r\nHost: a\r\nAuthorization: bearer  sesame\r\n\r\n",
		      &r) == 200);
	EXPECT(t, ask(http, "GET /health HTTP/1.1\r\nHost: a\r\n\r\n", &r) == 200);
	cairn_http_destroy(http);
}

static void addresses(struct cairn_test *t)
{
	struct sockaddr_in6 a = { .sin6_family = AF_INET6, .sin6_addr = IN6ADDR_LOOPBACK_INIT };
	struct cairn_http_options all = { .address = "::" }, second_one, name = { .address = "localhost" };
	struct cairn_http_options port = { .port = 65536 }, body = { .max_body = SIZE_MAX };
	struct cairn_http *http, *second = NULL;
	static struct reply r;
	int fd = socket(AF_INET6, SOCK_STREAM, 0);

	if (cairn_http_create(&http, &all, routes, ARRAY_SIZE(routes))) {
		cairn_skip(t, "no IPv6: %s", cairn_last_error());
		return;
	}
	second_one = (struct cairn_http_options){ .port = cairn_http_port(http) };
	EXPECT(t, cairn_http_create(&second, &second_one, routes, 1) == -EIO && !second);
	EXPECT_CONTAINS(t, cairn_last_error(), "Address already in use");
	a.sin6_port = htons((uint16_t)cairn_http_port(http));
	EXPECT(t, !connect(fd, (struct sockaddr *)&a, sizeof(a)));
	say(fd, "GET /echo HTTP/1.1\r\nHost: [::1]\r\n\r\n");
	EXPECT(t, read_reply(fd, &r) == 200);
	EXPECT_CONTAINS(t, r.body, "|::1|");
	EXPECT(t, ask(http, "GET /echo HTTP/1.1\r\nHost: a\r\n\r\n", &r) == 200);
	EXPECT_CONTAINS(t, r.body, "|127.0.0.1|");
	close(fd);
	cairn_http_destroy(http);
	EXPECT(t, cairn_http_create(&http, &name, NULL, 0) == -EINVAL);
	EXPECT(t, cairn_http_create(&http, &port, NULL, 0) == -EINVAL);
	EXPECT_CONTAINS(t, cairn_last_error(), "port: 65536");
	EXPECT(t, cairn_http_create(&http, &body, NULL, 0) == -EINVAL);
}

static const struct cairn_unit units[] = {
	{ "request_and_answer", request_and_answer }, { "head_and_options", head_and_options },
	{ "rebinding", rebinding }, { "cors", cors },
	{ "kept_connections", kept_connections }, { "pipelined", pipelined },
	{ "chunked_split", chunked_split }, { "expect_continue", expect_continue },
	{ "key", key }, { "addresses", addresses },
};

static const struct cairn_unit measures[] = {
	{ "mixed", http_measure_mixed }, { "requests", http_measure_requests },
	{ "events", http_measure_events },
};

const struct cairn_family cairn_http_family = {
	.stage = "serving", .name = "http", .units = units, .num_units = ARRAY_SIZE(units),
	.measures = measures, .num_measures = ARRAY_SIZE(measures), .timeout_s = 1200,
	.waits = 1,
};
