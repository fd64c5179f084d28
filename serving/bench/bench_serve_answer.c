// SPDX-License-Identifier: Apache-2.0
/*
 * bench_serve_answer - turns the bytes of an answer into times and token counts
 *
 * llhttp parses HTTP, this file splits the event stream into lines, and jansson parses each event's data. All
 * bytes of one read() count as received when it returned.
 */
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "primitives/base/error.h"
#include "serving/bench/bench_serve.h"
#include "serving/base/json.h"

#define MAX_KEPT (64 << 20) /* maximum bytes of an event or of a plain body */

static void fail(struct bench_answer *a, enum bench_outcome outcome, const char *why)
{
	if (a->req->outcome != BENCH_UNSENT)
		return; /* the first failure counts */
	a->req->outcome = outcome;
	snprintf(a->why, sizeof(a->why), "%s", why);
}

static void keep(struct bench_answer *a, const char *bytes, size_t n)
{
	if (a->len + n + 1 > a->cap) {
		size_t cap = a->cap ? a->cap : 4096;
		char *grown;

		while (cap < a->len + n + 1)
			cap *= 2;
		grown = cap <= MAX_KEPT ? realloc(a->buf, cap) : NULL;
		if (!grown) {
			fail(a, BENCH_BAD_EVENT, "an event is too long, or no memory");
			return;
		}
		a->buf = grown;
		a->cap = cap;
	}
	memcpy(a->buf + a->len, bytes, n);
	a->len += n;
	a->buf[a->len] = 0;
}

/* Fails with the message from an error object. */
static void tell_error(struct bench_answer *a, enum bench_outcome outcome, const json_t *error)
{
	const char *message =
		json_string_value(json_is_string(error) ? error : json_object_get(error, "message"));

	fail(a, outcome, message ? message : "an error without a message");
}

static void take_tokens(struct bench_answer *a, int64_t num)
{
	struct bench_request *r = a->req;

	if (r->first_ns < 0)
		r->first_ns = a->now_ns;
	else if (a->itl && bench_sample(a->itl, (double)(a->now_ns - r->last_ns)))
		fail(a, BENCH_BAD_EVENT, "no memory");
	r->last_ns = a->now_ns;
	r->counted += num;
}

/*
 * Returns the number of tokens in a choice. A chunk with empty text before the end stands for a token that
 * ends inside a character.
 */
static int64_t tokens_of(const struct bench_answer *a, const json_t *choice)
{
	const json_t *delta = json_object_get(choice, "delta");
	const json_t *text = delta ? json_object_get(delta, "content") : json_object_get(choice, "text");
	const json_t *logprobs = json_object_get(choice, "logprobs");
	const json_t *list = json_object_get(logprobs, delta ? "content" : "tokens");

	if (a->count_tokens)
		return (int64_t)json_array_size(list);
	if (delta && !json_string_length(text))
		text = json_object_get(delta, "reasoning_content");
	if (json_string_length(text))
		return 1;
	return !json_is_string(json_object_get(choice, "finish_reason")) && !json_object_get(delta, "role");
}

static void take_usage(struct bench_request *r, const json_t *usage)
{
	const json_t *details = json_object_get(usage, "prompt_tokens_details");

	r->output_tokens = json_integer_value(json_object_get(usage, "completion_tokens"));
	r->used_prompt = json_integer_value(json_object_get(usage, "prompt_tokens"));
	r->used_cached = json_integer_value(json_object_get(details, "cached_tokens"));
}

static void take_event(struct bench_answer *a)
{
	json_t *root, *choice, *error;
	size_t i;

	if (a->len == 6 && !memcmp(a->buf, "[DONE]", 6)) {
		a->done = true;
		return;
	}
	if (a->done) {
		fail(a, BENCH_BAD_EVENT, "an event after [DONE]");
		return;
	}
	root = json_loadb(a->buf, a->len, JSON_ALLOW_NUL, NULL);
	error = json_object_get(root, "error");
	if (!json_is_object(root)) {
		char quoted[CAIRN_QUOTE_LEN], why[sizeof(a->why)];

		snprintf(why, sizeof(why), "an event is no JSON object: %s",
			 cairn_quote(a->buf, a->len, quoted));
		fail(a, BENCH_BAD_EVENT, why);
	} else if (error && !json_is_null(error)) {
		tell_error(a, BENCH_EVENT, error);
	} else {
		int64_t num = 0;

		json_array_foreach(json_object_get(root, "choices"), i, choice) num += tokens_of(a, choice);
		if (num)
			take_tokens(a, num);
		if (json_is_object(json_object_get(root, "usage")))
			take_usage(a->req, json_object_get(root, "usage"));
	}
	json_decref(root);
}

/* Handles the end of a line. `line` has its first bytes; if it is a data line, buf already has its data. */
static void end_line(struct bench_answer *a)
{
	if (a->in_data) {
		keep(a, "\n", 1); /* separates the data lines of an event */
	} else if (!a->line_len && a->len) {
		a->len--;
		take_event(a);
		a->len = 0;
	}
	a->line_len = 0;
	a->in_data = false;
}

/* Lines end with CR LF, LF or CR. Only the field `data` matters; one space after its colon is dropped. */
static void take_stream(struct bench_answer *a, const char *bytes, size_t n)
{
	const char *end = bytes + n;

	while (bytes < end) {
		const char *stop = bytes;

		if (a->cr && *bytes == '\n') { /* the second half of CR LF */
			a->cr = false;
			bytes++;
			continue;
		}
		a->cr = false;
		if (*bytes == '\n' || *bytes == '\r') {
			a->cr = *bytes++ == '\r';
			if (a->line_len == 4 && !memcmp(a->line, "data", 4))
				a->in_data = true; /* a field without a colon is empty */
			end_line(a);
			continue;
		}
		if (!a->in_data) {
			if (a->line_len < (int)sizeof(a->line))
				a->line[a->line_len++] = *bytes;
			bytes++;
			a->in_data = a->line_len == 5 && !memcmp(a->line, "data:", 5);
			continue;
		}
		if (a->line_len == 5) {
			a->line_len++;
			if (*bytes == ' ') {
				bytes++;
				continue;
			}
		}
		while (stop < end && *stop != '\n' && *stop != '\r')
			stop++;
		keep(a, bytes, (size_t)(stop - bytes));
		bytes = stop;
	}
}

/* Names and values may arrive in pieces; only the beginning of one value matters. */
static int on_field(llhttp_t *p, const char *at, size_t n)
{
	struct bench_answer *a = p->data;

	if (a->named)
		a->field_len = a->value_len = 0;
	a->named = false;
	for (; n && a->field_len < (int)sizeof(a->field) - 1; n--)
		a->field[a->field_len++] = *at++;
	a->field[a->field_len] = 0;
	return 0;
}

static int on_value(llhttp_t *p, const char *at, size_t n)
{
	static const char events[] = "text/event-stream";
	struct bench_answer *a = p->data;

	a->named = true;
	if (strcasecmp(a->field, "content-type"))
		return 0;
	for (; n && a->value_len < (int)sizeof(events) - 1; n--)
		a->value[a->value_len++] = *at++;
	if (a->value_len == (int)sizeof(events) - 1)
		a->is_events = !strncasecmp(a->value, events, sizeof(events) - 1);
	return 0;
}

static int on_headers(llhttp_t *p)
{
	struct bench_answer *a = p->data;

	if (p->status_code < 200)
		return 0;
	a->req->status = p->status_code;
	if (!a->plain && p->status_code == 200 && !a->is_events)
		fail(a, BENCH_BAD_EVENT, "status 200, but no event stream");
	return 0;
}

static int on_body(llhttp_t *p, const char *at, size_t n)
{
	struct bench_answer *a = p->data;

	if (a->plain || p->status_code != 200)
		keep(a, at, n);
	else if (a->is_events)
		take_stream(a, at, n);
	return 0;
}

static int on_complete(llhttp_t *p)
{
	struct bench_answer *a = p->data;

	if (p->status_code < 200) /* 1xx, such as 100 Continue: the final answer follows */
		return 0;
	a->complete = true;
	a->keep_alive = llhttp_should_keep_alive(p);
	return HPE_PAUSED;
}

static const llhttp_settings_t settings = {
	.on_header_field = on_field,
	.on_header_value = on_value,
	.on_headers_complete = on_headers,
	.on_body = on_body,
	.on_message_complete = on_complete,
};

void bench_answer_begin(struct bench_answer *a, struct bench_request *req)
{
	llhttp_init(&a->parser, HTTP_RESPONSE, &settings);
	a->parser.data = a;
	a->req = req;
	a->complete = a->keep_alive = a->any_byte = false;
	a->in_data = a->cr = a->done = a->named = a->is_events = false;
	a->line_len = a->field_len = a->value_len = 0;
	a->len = 0;
	a->why[0] = 0;
	req->first_ns = req->last_ns = req->end_ns = -1;
	req->used_prompt = req->used_cached = req->output_tokens = -1;
	req->counted = 0;
	req->status = 0;
	req->outcome = BENCH_UNSENT;
}

static void judge_tokens(struct bench_answer *a)
{
	struct bench_request *r = a->req;
	char why[100];

	snprintf(why, sizeof(why), "%lld tokens received, %lld by the server's count, %d asked for",
		 (long long)r->counted, (long long)r->output_tokens, r->max_tokens);
	if (!r->counted)
		fail(a, BENCH_EMPTY, "a stream without a token");
	else if (a->count_tokens && r->counted != r->output_tokens)
		fail(a, BENCH_LOST, why);
	else if (a->exact_length && r->output_tokens >= 0 && r->output_tokens != r->max_tokens)
		fail(a, BENCH_LOST, why);
	if (r->output_tokens < 0)
		r->output_tokens = r->counted;
}

static void judge(struct bench_answer *a)
{
	struct bench_request *r = a->req;

	if (a->plain) {
		fail(a, r->status == 200 ? BENCH_OK : BENCH_STATUS, "");
		return;
	}
	if (r->status != 200) {
		json_t *root = a->len ? json_loadb(a->buf, a->len, JSON_ALLOW_NUL, NULL) : NULL;

		tell_error(a, BENCH_STATUS, json_object_get(root, "error"));
		json_decref(root);
		return;
	}
	if (!a->done)
		fail(a, BENCH_NO_DONE, "the stream ended without [DONE]");
	judge_tokens(a);
	fail(a, BENCH_OK, "");
}

bool bench_answer_push(struct bench_answer *a, const char *bytes, size_t n, int64_t now_ns)
{
	llhttp_errno_t err;

	if (a->complete || !n)
		return a->complete;
	a->any_byte = true;
	a->now_ns = now_ns - a->start_ns;
	err = llhttp_execute(&a->parser, bytes, n);
	if (!a->complete && err != HPE_OK) {
		char why[160];

		snprintf(why, sizeof(why), "no HTTP response: %s", llhttp_get_error_reason(&a->parser));
		fail(a, BENCH_BAD_HTTP, why);
		a->complete = true;
		a->keep_alive = false;
	} else if (a->complete) {
		/* after surplus bytes the connection cannot be reused safely */
		if (llhttp_get_error_pos(&a->parser) != bytes + n)
			a->keep_alive = false;
		judge(a);
	}
	if (a->complete)
		a->req->end_ns = a->now_ns;
	return a->complete;
}

void bench_answer_eof(struct bench_answer *a, int64_t now_ns)
{
	if (a->complete)
		return;
	a->now_ns = now_ns - a->start_ns;
	/* a body without a length ends with its connection */
	if (a->any_byte && llhttp_message_needs_eof(&a->parser) && a->req->status)
		llhttp_finish(&a->parser);
	if (a->complete) {
		judge(a);
	} else {
		fail(a, BENCH_CUT, "the connection ended before the answer did");
		if (a->req->output_tokens < 0)
			a->req->output_tokens = a->req->counted;
	}
	a->complete = true;
	a->keep_alive = false;
	a->req->end_ns = a->now_ns;
}

void bench_answer_free(struct bench_answer *a)
{
	free(a->buf);
	a->buf = NULL;
	a->cap = a->len = 0;
}
