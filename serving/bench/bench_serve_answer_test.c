// SPDX-License-Identifier: Apache-2.0
/* bench_serve_answer_test - the load generator's outcome for answers given as bytes and times */
#include <stdlib.h>
#include <string.h>

#include "conformance/harness.h"
#include "serving/bench/bench_serve.h"

#define HEAD "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\n"
#define TO_END HEAD "\r\n"
#define TOKEN(s) "data: {\"choices\":[{\"index\":0,\"text\":\"" s "\",\"finish_reason\":null}]}\n\n"
#define LAST "data: {\"choices\":[{\"index\":0,\"text\":\"\",\"finish_reason\":\"length\"}]}\n\n"
#define USAGE(n)                                                                                             \
	"data: {\"choices\":[],\"usage\":{\"prompt_tokens\":7,\"completion_tokens\":" #n                     \
	",\"prompt_tokens_details\":{\"cached_tokens\":4}}}\n\n"
#define DONE "data: [DONE]\n\n"
#define COUNTED(list) "data: {\"choices\":[{\"text\":\"x\",\"logprobs\":{\"tokens\":" list "}}]}\n\n"

static void begin(struct bench_answer *a, struct bench_request *r, struct bench_samples *itl, int max_tokens)
{
	memset(a, 0, sizeof(*a));
	memset(r, 0, sizeof(*r));
	if (itl)
		memset(itl, 0, sizeof(*itl));
	a->itl = itl;
	a->exact_length = true;
	r->max_tokens = max_tokens;
	bench_answer_begin(a, r);
}

static void exact_times(struct cairn_test *t)
{
	static const struct {
		const char *bytes;
		int64_t at;
	} pieces[] = {
		{ TO_END, 900 },
		{ ": waiting\n\n", 950 },
		{ "data: {\"choices\":[{\"text\":\"a\"", 1000 },
		{ ",\"finish_reason\":null}]}\n", 1010 },
		{ "\n", 1017 },
		{ TOKEN("b") TOKEN("c"), 1100 },
		{ TOKEN(""), 1107 },
		{ LAST, 1200 },
		{ USAGE(4), 1300 },
		{ DONE, 1301 },
	};
	struct bench_answer a;
	struct bench_request r;
	struct bench_samples itl;

	begin(&a, &r, &itl, 4);
	a.start_ns = 500;
	for (size_t i = 0; i < ARRAY_SIZE(pieces); i++)
		EXPECT(t, !bench_answer_push(&a, pieces[i].bytes, strlen(pieces[i].bytes), pieces[i].at));
	bench_answer_eof(&a, 1400);
	EXPECT(t, r.outcome == BENCH_OK && !a.keep_alive && a.complete);
	EXPECT(t, r.first_ns == 517 && r.last_ns == 607 && r.end_ns == 900);
	EXPECT(t, r.counted == 4 && r.output_tokens == 4 && r.used_prompt == 7 && r.used_cached == 4);
	if (EXPECT(t, itl.n == 3))
		EXPECT(t, itl.v[0] == 83 && itl.v[1] == 0 && itl.v[2] == 7);
	bench_answer_free(&a);
	free(itl.v);
}

/*
 * Answers and their outcomes. Each is fed whole, in two pieces for every split, and byte by byte. A row is:
 * name, bytes, closes, outcome, status, counted, keep_alive, why
 */
static const struct row {
	const char *name, *bytes;
	int closes; /* the connection ends after the bytes */
	enum bench_outcome outcome;
	int status, counted, keep_alive;
	const char *why;
} rows[] = {
	{ "to the end", TO_END TOKEN("a") TOKEN("b") LAST USAGE(2) DONE, 1, BENCH_OK, 200, 2, 0, "" },
	{ "chunked",
	  HEAD "Transfer-Encoding: chunked\r\n\r\n1a\r\ndata: {\"choices\":[{\"text\":\r\n"
	       "14\r\n\"ab\"},{\"text\":\"\"}]}\n\r\n1\r\n\n\r\nf\r\ndata: [DONE]\n\n \r\n0\r\n\r\n",
	  0, BENCH_OK, 200, 2, 1, "" },
	{ "length",
	  HEAD "Content-Length: 59\r\n\r\ndata:{\"choices\":[{\"text\":\"a\"},{\"text\":\"b\"}]}\n\n"
	       "data:[DONE]\n\n",
	  0, BENCH_OK, 200, 2, 1, "" },
	{ "a byte 0", TO_END TOKEN("a\\u0000b") TOKEN("\\u0000") USAGE(2) DONE, 1, BENCH_OK, 200, 2, 0, "" },
	{ "other ends of lines",
	  TO_END "event: x\r\ndata: {\"choices\":[\r\ndata: {\"text\":\"a\"},{\"text\":\"b\"}]}\r\n"
		 "id: 5\r\n\r\n:c\r\rdata: [DONE]\r\r",
	  1, BENCH_OK, 200, 2, 0, "" },
	{ "after 100 Continue", "HTTP/1.1 100 Continue\r\n\r\n" TO_END TOKEN("a") TOKEN("b") DONE, 1,
	  BENCH_OK, 200, 2, 0, "" },
	{ "chat",
	  TO_END "data: {\"choices\":[{\"delta\":{\"role\":\"assistant\",\"content\":\"\"}}]}\n\n"
		 "data: {\"choices\":[{\"delta\":{\"content\":\"a\"}}]}\n\ndata: {\"choices\":[{\"delta\":"
		 "{\"reasoning_content\":\"b\"}}]}\n\ndata: "
		 "{\"choices\":[{\"delta\":{},\"finish_reason\":\"stop\"}]}\n\n" USAGE(2) DONE,
	  1, BENCH_OK, 200, 2, 0, "" },
	{ "refused",
	  "HTTP/1.1 429 Too Many Requests\r\nContent-Length: 43\r\nRetry-After: 1\r\n\r\n"
	  "{\"error\":{\"message\":\"queue full\",\"code\":1}}",
	  0, BENCH_STATUS, 429, 0, 1, "queue full" },
	{ "refused in HTML", "HTTP/1.1 502 Bad\r\nContent-Length: 6\r\n\r\n<html>", 0, BENCH_STATUS, 502, 0,
	  1, "without a message" },
	{ "error event", TO_END TOKEN("a") "data: {\"error\":{\"message\":\"worker died\"}}\n\n", 1,
	  BENCH_EVENT, 200, 1, 0, "worker died" },
	{ "cut in the head", "HTTP/1.1 200 O", 1, BENCH_CUT, 0, 0, 0, "ended" },
	{ "cut in a chunk", HEAD "Transfer-Encoding: chunked\r\n\r\n80\r\n" TOKEN("a"), 1, BENCH_CUT, 200, 1,
	  0, "ended" },
	{ "short body", HEAD "Content-Length: 5000\r\n\r\n" TOKEN("a") DONE, 1, BENCH_CUT, 200, 1, 0,
	  "ended" },
	{ "no [DONE]", TO_END TOKEN("a") TOKEN("b") LAST USAGE(2), 1, BENCH_NO_DONE, 200, 2, 0, "[DONE]" },
	{ "event cut off", TO_END TOKEN("a") "data: {\"choices\":[", 1, BENCH_NO_DONE, 200, 1, 0, "[DONE]" },
	{ "not JSON", TO_END TOKEN("a") "data: {\"choices\":]\n\n" DONE, 1, BENCH_BAD_EVENT, 200, 1, 0,
	  "no JSON object: \"{\\\"choices\\\":]\"" },
	{ "no object", TO_END "data: 5\n\n" DONE, 1, BENCH_BAD_EVENT, 200, 0, 0, "no JSON" },
	{ "after the end", TO_END TOKEN("a") DONE TOKEN("b"), 1, BENCH_BAD_EVENT, 200, 1, 0, "after [DONE]" },
	{ "not a stream", "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}",
	  0, BENCH_BAD_EVENT, 200, 0, 1, "no event stream" },
	{ "not HTTP", "SSH-2.0-x\r\n", 0, BENCH_BAD_HTTP, 0, 0, 0, "no HTTP" },
	{ "bad chunk", HEAD "Transfer-Encoding: chunked\r\n\r\nzz\r\n", 0, BENCH_BAD_HTTP, 200, 0, 0,
	  "no HTTP" },
	{ "nothing", "", 1, BENCH_CUT, 0, 0, 0, "ended" },
	{ "no token", TO_END LAST DONE, 1, BENCH_EMPTY, 200, 0, 0, "without a token" },
	{ "short answer", TO_END TOKEN("a") LAST USAGE(1) DONE, 1, BENCH_LOST, 200, 1, 0, "2 asked for" },
	{ "bytes after it",
	  HEAD "Content-Length: 59\r\n\r\ndata:{\"choices\":[{\"text\":\"a\"},{\"text\":\"b\"}]}\n\n"
	       "data:[DONE]\n\nHTTP",
	  0, BENCH_OK, 200, 2, 0, "" },
};

static void try_pieces(struct cairn_test *t, const struct row *row, size_t step, size_t first)
{
	struct bench_answer a;
	struct bench_request r;
	size_t n = strlen(row->bytes), at = 0;
	int ok;

	begin(&a, &r, NULL, 2);
	while (at < n && !a.complete) {
		size_t k = at || !first ? step : first;
		char *copy;

		k = k < n - at ? k : n - at;
		copy = malloc(k); /* exact size, so that a sanitizer sees reads past its end */
		memcpy(copy, row->bytes + at, k);
		bench_answer_push(&a, copy, k, 1);
		free(copy);
		at += k;
	}
	if (row->closes)
		bench_answer_eof(&a, 2);
	ok = a.complete && r.outcome == row->outcome && r.status == row->status &&
	     r.counted == row->counted && a.keep_alive == !!row->keep_alive && strstr(a.why, row->why);
	/* surplus bytes in a later piece are not read, so they cannot mark the connection as unusable */
	ok |= !strcmp(row->name, "bytes after it") && a.complete && r.outcome == BENCH_OK;
	if (!EXPECT(t, ok))
		cairn_note(t, "%s, pieces of %zu and %zu: %s (%s), status %d, %lld tokens, keep %d",
			   row->name, first, step, bench_outcome_names[r.outcome], a.why, r.status,
			   (long long)r.counted, a.keep_alive);
	bench_answer_free(&a);
}

static void every_split(struct cairn_test *t)
{
	for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
		size_t n = strlen(rows[i].bytes);

		try_pieces(t, &rows[i], 1, 0);
		for (size_t first = 0; first < n; first++)
			try_pieces(t, &rows[i], n, first);
	}
}

static void trailing_bytes(struct cairn_test *t)
{
	const struct row *row = &rows[ARRAY_SIZE(rows) - 1];
	struct bench_answer a;
	struct bench_request r;

	begin(&a, &r, NULL, 2);
	EXPECT(t, bench_answer_push(&a, row->bytes, strlen(row->bytes), 1) && r.outcome == BENCH_OK);
	EXPECT(t, !a.keep_alive);
	bench_answer_free(&a);
}

static void counted_tokens(struct cairn_test *t)
{
	static const struct {
		const char *bytes;
		enum bench_outcome outcome;
		int counted;
	} all[] = {
		{ TO_END COUNTED("[\"a\",\"b\"]") COUNTED("[\"c\"]") LAST USAGE(3) DONE, BENCH_OK, 3 },
		{ TO_END COUNTED("[\"a\",\"b\"]") LAST USAGE(3) DONE, BENCH_LOST, 2 },
		{ TO_END COUNTED("[\"a\",\"b\"]") COUNTED("[\"c\"]") LAST DONE, BENCH_LOST, 3 },
		{ TO_END TOKEN("a") TOKEN("b") TOKEN("c") LAST USAGE(3) DONE, BENCH_EMPTY, 0 },
	};

	for (size_t i = 0; i < ARRAY_SIZE(all); i++) {
		struct bench_answer a;
		struct bench_request r;

		begin(&a, &r, NULL, 3);
		a.count_tokens = true;
		bench_answer_push(&a, all[i].bytes, strlen(all[i].bytes), 1);
		bench_answer_eof(&a, 2);
		EXPECT(t, r.outcome == all[i].outcome && r.counted == all[i].counted);
		bench_answer_free(&a);
	}
}

/* Uses one struct for many answers, as a connection does. */
static void one_after_another(struct cairn_test *t)
{
	struct bench_answer a = { .exact_length = true };

	for (int round = 0; round < 3; round++) {
		for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
			struct bench_request r = { .max_tokens = 2 };

			bench_answer_begin(&a, &r);
			bench_answer_push(&a, rows[i].bytes, strlen(rows[i].bytes), 1);
			bench_answer_eof(&a, 2);
			if (!EXPECT(t, r.outcome == rows[i].outcome && r.counted == rows[i].counted))
				cairn_note(t, "%s: %s", rows[i].name, bench_outcome_names[r.outcome]);
		}
	}
	bench_answer_free(&a);
}

static const struct cairn_unit units[] = {
	{ "exact_times", exact_times },
	{ "every_split", every_split },
	{ "trailing_bytes", trailing_bytes },
	{ "counted_tokens", counted_tokens },
	{ "one_after_another", one_after_another },
};

const struct cairn_family cairn_bench_serve_answer_family = {
	.stage = "serving",
	.name = "bench_serve_answer",
	.units = units,
	.num_units = ARRAY_SIZE(units),
};
