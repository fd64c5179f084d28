// SPDX-License-Identifier: Apache-2.0
/* http_bad_test - malformed requests, sent as raw bytes through a real socket */
#include "conformance/harness.h"
#include "serving/http/http_test.h"

static atomic_int num_handled;

static void handle(void *ctx, struct cairn_http_exchange *x, const struct cairn_http_request *req)
{
	(void)ctx;
	atomic_fetch_add(&num_handled, 1);
	if (cairn_http_answer(x, 200, "text/plain", NULL, 0, req->body, req->body_bytes))
		cairn_http_abort(x);
}

static const struct cairn_http_route routes[] = {
	{ "GET", "/", 0, 0, handle, NULL },
	{ "POST", "/", 0, 1000, handle, NULL },
	{ "POST", "/short", 0, 10, handle, NULL },
	{ "POST", "/json", CAIRN_HTTP_JSON, 0, handle, NULL },
};

#define H	" HTTP/1.1\r\nHost: a\r\n"
#define CHUNKED	"Transfer-Encoding: chunked\r\n"
#define JSON	"Content-Type: application/json"

/*
 * n: length of bytes if they contain a NUL, otherwise 0. Each request must get this status and a JSON error,
 * and its connection is closed unless is_kept.
 */
static const struct row {
	const char *name, *bytes;
	int status;
	size_t n;
	int is_kept;
} rows[] = {
	{ "host_missing", "GET / HTTP/1.1\r\n\r\n", 400, 0, 0 },
	{ "host_twice", "GET /" H "Host: a\r\n\r\n", 400, 0, 0 },
	{ "host_bad", "GET / HTTP/1.1\r\nHost: a/b\r\n\r\n", 400, 0, 0 },
	{ "host_blank_before_colon", "GET / HTTP/1.1\r\nHost : a\r\n\r\n", 400, 0, 0 },
	{ "blank_in_name", "GET /" H "X A: b\r\n\r\n", 400, 0, 0 },
	{ "name_empty", "GET /" H ": b\r\n\r\n", 400, 0, 0 },
	{ "no_colon", "GET /" H "nothing\r\n\r\n", 400, 0, 0 },
	{ "folded", "GET /" H "X: a\r\n b\r\n\r\n", 400, 0, 0 },
	{ "folded_tab", "GET /" H "X: a\r\n\tb\r\n\r\n", 400, 0, 0 },
	{ "folded_first", "GET / HTTP/1.1\r\n Host: a\r\n\r\n", 400, 0, 0 },
	{ "nul_in_value", "GET /" H "X: a\0b\r\n\r\n", 400, 33, 0 },
	{ "nul_in_name", "GET /" H "X\0: a\r\n\r\n", 400, 32, 0 },
	{ "nul_in_target", "GET /\0" H "\r\n", 400, 28, 0 },
	{ "control_in_value", "GET /" H "X: a\x1b[2J\r\n\r\n", 400, 0, 0 },
	{ "delete_in_value", "GET /" H "X: a\x7f\r\n\r\n", 400, 0, 0 },
	{ "bare_lf", "GET / HTTP/1.1\nHost: a\n\n", 400, 0, 0 },
	{ "bare_lf_in_header", "GET /" H "X: a\nY: b\r\n\r\n", 400, 0, 0 },
	{ "bare_lf_at_end", "GET /" H "\n", 400, 0, 0 },
	{ "bare_cr", "GET /" H "X: a\rb\r\n\r\n", 400, 0, 0 },
	{ "two_lengths", "POST /" H "Content-Length: 3\r\nContent-Length: 4\r\n\r\nabcd", 400, 0, 0 },
	{ "two_lengths_alike", "POST /" H "Content-Length: 3\r\nContent-Length: 3\r\n\r\nabc", 400, 0, 0 },
	{ "length_list", "POST /" H "Content-Length: 3, 3\r\n\r\nabc", 400, 0, 0 },
	{ "length_negative", "POST /" H "Content-Length: -1\r\n\r\n", 400, 0, 0 },
	{ "length_plus", "POST /" H "Content-Length: +1\r\n\r\na", 400, 0, 0 },
	{ "length_word", "POST /" H "Content-Length: abc\r\n\r\n", 400, 0, 0 },
	{ "length_hex", "POST /" H "Content-Length: 0x10\r\n\r\n", 400, 0, 0 },
	{ "length_empty", "POST /" H "Content-Length:\r\n\r\n", 400, 0, 0 },
	{ "length_over_limit", "POST /" H "Content-Length: 1001\r\n\r\n", 413, 0, 0 },
	{ "length_over_63_bits", "POST /" H "Content-Length: 9999999999999999999999\r\n\r\n", 413, 0, 0 },
	{ "coding_and_length", "POST /" H CHUNKED "Content-Length: 3\r\n\r\n0\r\n\r\n", 400, 0, 0 },
	{ "length_and_coding", "POST /" H "Content-Length: 3\r\n" CHUNKED "\r\n0\r\n\r\n", 400, 0, 0 },
	{ "coding_gzip", "POST /" H "Transfer-Encoding: gzip\r\n\r\n", 400, 0, 0 },
	{ "coding_gzip_chunked", "POST /" H "Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", 501, 0, 0 },
	{ "coding_chunked_gzip", "POST /" H "Transfer-Encoding: chunked, gzip\r\n\r\n", 400, 0, 0 },
	{ "coding_identity", "POST /" H "Transfer-Encoding: identity\r\n\r\n", 400, 0, 0 },
	{ "coding_xchunked", "POST /" H "Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n", 501, 0, 0 },
	{ "coding_twice", "POST /" H CHUNKED CHUNKED "\r\n", 400, 0, 0 },
	{ "coding_with_tab", "POST /" H "Transfer-Encoding: chunked\t\r\n\r\n0\r\n\r\n", 400, 0, 0 },
	{ "coding_in_1_0", "POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400, 0, 0 },
	{ "chunk_not_hex", "POST /" H CHUNKED "\r\nxyz\r\n", 400, 0, 0 },
	{ "chunk_size_empty", "POST /" H CHUNKED "\r\n\r\n", 400, 0, 0 },
	{ "chunk_size_negative", "POST /" H CHUNKED "\r\n-1\r\n", 400, 0, 0 },
	{ "chunk_size_blank", "POST /" H CHUNKED "\r\n1 \r\na\r\n", 400, 0, 0 },
	{ "chunk_bare_lf", "POST /" H CHUNKED "\r\n1\na\n0\n\n", 400, 0, 0 },
	{ "chunk_bare_cr", "POST /" H CHUNKED "\r\n1\rX\r\na\r\n0\r\n\r\n", 400, 0, 0 },
	{ "chunk_bare_cr_behind", "POST /" H CHUNKED "\r\n1\r\na\rX0\r\n\r\n", 400, 0, 0 },
	{ "chunk_too_long", "POST /" H CHUNKED "\r\n1\r\nab\r\n0\r\n\r\n", 400, 0, 0 },
	{ "chunk_2_64", "POST /" H CHUNKED "\r\n10000000000000001\r\n", 413, 0, 0 },
	{ "chunk_2_64_less_1", "POST /" H CHUNKED "\r\nffffffffffffffff\r\n", 413, 0, 0 },
	{ "chunk_announced", "POST /short" H CHUNKED "\r\n2\r\nab\r\n9\r\n", 413, 0, 0 },
	{ "chunk_over_limit", "POST /short" H CHUNKED "\r\n1\r\na\r\nA\r\n0123456789\r\n",
	  413, 0, 0 },
	{ "trailer_bad", "POST /" H CHUNKED "\r\n0\r\nX Y: a\r\n\r\n", 400, 0, 0 },
	{ "trailer_folded", "POST /" H CHUNKED "\r\n0\r\nX: a\r\n b\r\n\r\n", 400, 0, 0 },
	{ "version_9", "GET / HTTP/9.9\r\nHost: a\r\n\r\n", 505, 0, 0 },
	{ "version_2_preface", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505, 0, 0 },
	{ "version_0_9", "GET /\r\n\r\n", 400, 0, 0 },
	{ "version_word", "GET / HTTP/x.y\r\nHost: a\r\n\r\n", 400, 0, 0 },
	{ "version_lower", "GET / http/1.1\r\nHost: a\r\n\r\n", 400, 0, 0 },
	{ "method_unknown", "BREW /" H "\r\n", 501, 0, 0 },
	{ "method_lower", "get /" H "\r\n", 501, 0, 0 },
	{ "method_not_here", "DELETE /" H "\r\n", 405, 0, 1 },
	{ "method_long", "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA /" H "\r\n", 400, 0, 0 },
	{ "connect", "CONNECT a:443" H "\r\n", 400, 0, 0 },
	{ "two_blanks", "GET  /" H "\r\n", 400, 0, 0 },
	{ "blank_in_target", "GET /a b" H "\r\n", 400, 0, 0 },
	{ "blank_first", " GET /" H "\r\n", 400, 0, 0 },
	{ "two_empty_lines", "\r\n\r\nGET /" H "\r\n", 400, 0, 0 },
	{ "target_relative", "GET a" H "\r\n", 400, 0, 0 },
	{ "target_fragment", "GET /#a" H "\r\n", 400, 0, 0 },
	{ "target_utf8", "GET /\xc3\xa9" H "\r\n", 400, 0, 0 },
	{ "target_percent", "GET /%g0" H "\r\n", 400, 0, 0 },
	{ "target_percent_nul", "GET /%00" H "\r\n", 400, 0, 0 },
	{ "target_percent_lf", "GET /a%0Ab" H "\r\n", 400, 0, 0 },
	{ "target_percent_end", "GET /%2" H "\r\n", 400, 0, 0 },
	{ "tls", "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 400, 11, 0 },
	{ "unknown_path", "GET /../etc/passwd" H "\r\n", 404, 0, 1 },
	{ "expect_other", "POST /" H "Expect: gold\r\nContent-Length: 1\r\n\r\na", 417, 0, 0 },
	{ "type_missing", "POST /json" H "Content-Length: 2\r\n\r\n{}", 415, 0, 0 },
	{ "type_other", "POST /json" H "Content-Type: text/plain\r\nContent-Length: 2\r\n\r\n{}", 415, 0, 0 },
	{ "type_charset", "POST /json" H JSON "; charset=latin1\r\nContent-Length: 2\r\n\r\n{}",
	  415, 0, 0 },
	{ "type_gzip", "POST /json" H JSON "\r\nContent-Encoding: gzip\r\n\r\n", 415, 0, 1 },
};

/* Sends every row at once and byte by byte; the result must be the same. */
static void bad_rows(struct cairn_test *t)
{
	struct cairn_http *http = serve(t, &(struct cairn_http_options){ 0 }, routes, ARRAY_SIZE(routes));
	static struct reply r;

	atomic_store(&num_handled, 0);
	for (size_t i = 0; i < 2 * ARRAY_SIZE(rows); i++) {
		const struct row *row = &rows[i / 2];
		size_t n = row->n ? row->n : strlen(row->bytes);
		bool split = i % 2 && n < 150;
		int fd = dial(http);

		for (size_t k = 0; split && k < n; k++)
			say_n(fd, row->bytes + k, 1);
		if (!split)
			say_n(fd, row->bytes, n);
		read_reply(fd, &r);
		close(fd);
		if (!EXPECT(t, r.status == row->status) || !EXPECT(t, is_error(&r)) ||
		    !EXPECT(t, r.closed == !row->is_kept))
			cairn_note(t, "%s%s: %d, closed %d: %.400s", row->name,
				   split ? " (byte by byte)" : "", r.status, r.closed, r.text);
	}
	EXPECT(t, !atomic_load(&num_handled));
	EXPECT(t, ask(http, "GET /" H "\r\n", &r) == 200);
	cairn_http_destroy(http);
}

/* Sends head, then text `count` times. Returns the status of the answer, even if it came before the last
 * write. */
static int flood(struct cairn_http *http, const char *head, const char *text, int count, struct reply *r)
{
	size_t n = strlen(text), at = strlen(head), all = at + n * (size_t)count;
	char *bytes = malloc(all + 5);

	memcpy(bytes, head, at);
	for (int i = 0; i < count; i++)
		memcpy(bytes + at + n * (size_t)i, text, n);
	memcpy(bytes + all, "\r\n\r\n", 4);
	ask_n(http, bytes, all + 4, r);
	free(bytes);
	return r->status;
}

/* The client keeps writing after the refusal and must still be able to read the error. */
static void too_long(struct cairn_test *t)
{
	struct cairn_http *http = serve(t, &(struct cairn_http_options){ 0 }, routes, ARRAY_SIZE(routes));
	struct cairn_http_stats stats;
	static struct reply r;

	EXPECT(t, flood(http, "GET /", "aaaaaaaa", 8192, &r) == 414 && is_error(&r) && r.closed);
	EXPECT(t, flood(http, "GET /?", "%41", 1400, &r) == 414 && is_error(&r) && r.closed);
	EXPECT(t, flood(http, "GET /" H "X: ", "aaaaaaaa", 8192, &r) == 431 && is_error(&r) && r.closed);
	EXPECT(t, flood(http, "GET /" H "A: a", "\r\nX: y", 5000, &r) == 431 && is_error(&r) && r.closed);
	EXPECT(t, flood(http, "GET /" H "A: a", "\r\nX: y", 98, &r) == 200);
	EXPECT(t, flood(http, "GET /" H "A: a", "\r\nX: y", 99, &r) == 431);
	EXPECT(t, flood(http, "POST /" H "Content-Length: 8388608\r\n\r\n", "0123456789abcdef", 524288,
			&r) == 413 && is_error(&r));
	EXPECT(t, flood(http, "POST /" H CHUNKED "\r\n", "10\r\n0123456789abcdef\r\n", 30000,
			&r) == 413 && is_error(&r));
	EXPECT(t, flood(http, "POST /" H CHUNKED "\r\n1;", "aaaaaaaa", 1000, &r) == 400);
	EXPECT(t, flood(http, "POST /" H CHUNKED "\r\n0\r\nX: ", "aaaaaaaa", 2000, &r) == 431);
	EXPECT(t, ask(http, "GET /" H "\r\n", &r) == 200);
	EXPECT(t, WAIT_FOR((cairn_http_stats(http, &stats), !stats.body_bytes && !stats.exchanges), 5000));
	cairn_http_destroy(http);
}

/* Sends one byte every 20 ms in the header and in the body, or stops in the middle of each: 408. */
static void slow(struct cairn_test *t)
{
	static const char *const texts[] = { "GET /" H "X: aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
		"POST /" H "Content-Length: 40\r\n\r\naaaaaaaaaaaaaaaaaaaaaaaaa",
		"POST /" H CHUNKED "\r\n3f\r\naaaaaaaaaaaaaaaaaaaaaaaaa" };
	struct cairn_http *http = serve(t, &(struct cairn_http_options){ .request_timeout_ms = 300,
					.idle_timeout_ms = 300 }, routes, ARRAY_SIZE(routes));
	static struct reply r;

	for (int i = 0; i < 6; i++) {
		const char *text = texts[i / 2];
		size_t n = strlen(text), sent = i % 2 ? n : n - 24;
		double start_s = now_s();
		int fd = dial(http);

		say_n(fd, text, sent);
		for (; sent < n && now_s() - start_s < 0.6; sent++) {
			say_n(fd, text + sent, 1);
			nap_ms(20);
		}
		EXPECT(t, read_reply(fd, &r) == 408 && is_error(&r) && r.closed);
		EXPECT(t, now_s() - start_s > 0.25 && now_s() - start_s < 15)	/* not the default of 30 s */;
		close(fd);
	}
	for (int i = 0; i < 2; i++) {	/* without a request there is no answer */
		int fd = dial(http);

		say(fd, i ? "\r\n" : "");
		EXPECT(t, !read_reply(fd, &r) && !r.text_bytes);
		close(fd);
	}
	cairn_http_destroy(http);
}

/*
 * The refusal of a late request is sent when its time is over, not after the loop's next sleep of 100 ms. The
 * loop looks every 100 ms, that is 50 ms after the deadline. Only the fastest of some tries is judged, since
 * the machine may be busy.
 */
static void late_at_once(struct cairn_test *t)
{
	struct cairn_http *http = serve(t, &(struct cairn_http_options){ .request_timeout_ms = 150 },
					routes, ARRAY_SIZE(routes));
	static struct reply r;
	double fastest = 1e9;

	for (int i = 0; i < 20 && fastest > 0.245; i++) {
		double start_s = now_s();
		int fd = dial(http);

		say(fd, "GET /");
		EXPECT(t, read_reply_of(fd, &r, 60000, true) == 408);
		fastest = now_s() - start_s < fastest ? now_s() - start_s : fastest;
		close(fd);
		nap_ms(150);	/* without a connection the loop sleeps, and looks when the next one comes */
	}
	if (!EXPECT(t, fastest <= 0.245))
		cairn_note(t, "the fastest refusal came after %.0f ms", fastest * 1e3);
	cairn_http_destroy(http);
}

/* Clients disconnect after each byte of a request, with each kind of close. */
static void cut_short(struct cairn_test *t)
{
	static const char text[] = "POST /" H CHUNKED "\r\n3\r\nabc\r\n0\r\n\r\n";
	static const char plain[] = "POST /" H "Content-Length: 20\r\n\r\n0123456789abcdefghij";
	struct cairn_http *http = serve(t, &(struct cairn_http_options){ 0 }, routes, ARRAY_SIZE(routes));
	struct cairn_http_stats stats;

	for (size_t i = 0; i < 3 * (sizeof(text) + sizeof(plain)) - 6; i++) {
		size_t n = i / 3;
		struct linger reset = { 1, 0 };
		int fd = dial(http);

		say_n(fd, n < sizeof(text) ? text : plain, n < sizeof(text) ? n : n - sizeof(text));
		if (i % 3)
			nap_ms(1);
		if (i % 3 == 2)
			setsockopt(fd, SOL_SOCKET, SO_LINGER, &reset, sizeof(reset));
		close(fd);
	}
	EXPECT(t, WAIT_FOR((cairn_http_stats(http, &stats), !stats.connections && !stats.exchanges &&
			    !stats.body_bytes), 5000));
	cairn_http_destroy(http);
}

/*
 * Sends requests with bytes changed, removed or doubled. The server may answer, close or wait, but not crash.
 */
static void fuzz(struct cairn_test *t)
{
	static const char *const seeds[] = { "GET /" H "Connection: close\r\nX-A: b\r\n\r\n",
		"POST /" H "Content-Length: 5\r\nExpect: 100-continue\r\n\r\nhello",
		"POST /json" H "Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
		"3;a=b\r\n{}a\r\n0\r\nT: x\r\n\r\n" };
	static const char bytes[] = "\r\n\r\n\0 \t:;,=%/0123456789abcdefXYZ\x7f\x80\xff";
	struct cairn_http *http = serve(t, &(struct cairn_http_options){ .request_timeout_ms = 500,
					.max_header = 400 }, routes, ARRAY_SIZE(routes));
	struct cairn_http_stats stats;
	static struct reply r;
	static char text[4096];

	for (int i = 0; i < 4000; i++) {
		size_t n = 0;
		int fd = dial(http);

		for (uint64_t k = cairn_rand(t) % 3 + 1; k; k--) {
			const char *seed = seeds[cairn_rand(t) % ARRAY_SIZE(seeds)];

			memcpy(text + n, seed, strlen(seed));
			n += strlen(seed);
		}
		for (uint64_t k = cairn_rand(t) % 6; k; k--) {
			size_t at = cairn_rand(t) % n, len = cairn_rand(t) % 9 % (n - at + 1);

			if (cairn_rand(t) % 4)
				text[at] = bytes[cairn_rand(t) % (sizeof(bytes) - 1)];
			else if (cairn_rand(t) % 2 && n > len + 1)
				memmove(text + at, text + at + len, n -= len);
			else
				memcpy(text + n, text + at, len), n += len;
		}
		say_n(fd, text, n);
		if (i % 8 == 0)
			while (read_reply_of(fd, &r, 2, true) && !r.closed)
				EXPECT(t, r.status >= 100 && r.status <= 505);
		close(fd);
	}
	EXPECT(t, ask(http, "GET /" H "\r\n", &r) == 200);
	EXPECT(t, WAIT_FOR((cairn_http_stats(http, &stats), !stats.connections && !stats.exchanges &&
			    !stats.body_bytes), 5000));
	cairn_note(t, "%llu requests seen", (unsigned long long)stats.requests);
	EXPECT(t, stats.requests > 2000);
	cairn_http_destroy(http);
}

static const struct cairn_unit units[] = {
	{ "rows", bad_rows }, { "too_long", too_long }, { "slow", slow },
	{ "late_at_once", late_at_once },
	{ "cut_short", cut_short }, { "fuzz", fuzz },
};

const struct cairn_family cairn_http_bad_family = {
	.stage = "serving", .name = "http_bad", .units = units, .num_units = ARRAY_SIZE(units),
	.waits = 1,
};
