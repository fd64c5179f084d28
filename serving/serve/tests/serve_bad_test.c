// SPDX-License-Identifier: Apache-2.0
/*
 * serve_bad_test - an invalid request gets an error that names the field, before any 200 is sent, and other
 * requests are unaffected
 */
#include <math.h>

#include "conformance/harness.h"
#include "serving/serve/tests/serve_test.h"

#define C	"/v1/completions"
#define STOPS8	"\"a\",\"a\",\"a\",\"a\",\"a\",\"a\",\"a\",\"a\","
#define STOPS33	"[" STOPS8 STOPS8 STOPS8 STOPS8 "\"a\"]"
#define M	"/v1/chat/completions"
#define P	"{\"prompt\":\"a\","
#define U	"{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}],"
#define R	"{\"messages\":[{\"role\":"

/* The expected error. param "": null; param ending in *: a prefix. */
static const struct row {
	const char *path, *body;
	int status;
	const char *param, *code;
} rows[] = {
	/* not JSON, or malformed strings */
	{ C, "{\"prompt\":\"a\"", 400, "", NULL },
	{ C, "nonsense", 400, "", NULL },
	{ C, " ", 400, "", NULL },
	{ C, "[]", 400, "", NULL },
	{ C, "\"a\"", 400, "", NULL },
	{ C, P "\"n\":1} x", 400, "", NULL },
	{ C, P "\"n\":1,\"n\":2}", 400, "", NULL },
	{ C, "{\"prompt\":\"\xff\"}", 400, "", NULL },
	{ C, "{\"prompt\":\"\\u0000\"}", 400, "", NULL },
	{ C, "{\"prompt\":\"\\ud800\"}", 400, "", NULL },
	/* unknown path or model */
	{ "/v1/none", P "\"n\":1}", 404, "", "unknown_url" },
	{ C, P "\"model\":\"gpt-9\"}", 404, "model", "model_not_found" },
	/* prompt or messages missing or of the wrong type */
	{ C, "{}", 400, "prompt", NULL },
	{ C, "{\"prompt\":[]}", 400, "prompt", NULL },
	{ C, "{\"prompt\":[[]]}", 400, "prompt", NULL },
	{ C, "{\"prompt\":[1.5]}", 400, "prompt", NULL },
	{ C, "{\"prompt\":{}}", 400, "prompt", NULL },
	{ C, "{\"prompt\":[\"a\",1]}", 400, "prompt", NULL },
	{ C, "{\"prompt\":[\"\"],\"add_special_tokens\":false}", 400, "prompt", NULL },
	{ M, "{}", 400, "messages", NULL },
	{ M, "{\"messages\":[]}", 400, "messages", NULL },
	{ M, R "\"nobody\",\"content\":\"a\"}]}", 400, "messages*", NULL },
	{ M, R "\"user\",\"content\":5}]}", 400, "messages*", NULL },
	{ M, R "\"user\"}]}", 400, "messages*", NULL },
	{ M, "{\"messages\":\"a\"}", 400, "messages", NULL },
	/* too long for the context */
	{ C, P "\"max_tokens\":2047}", 400, "prompt", "context_length_exceeded" },
	{ C, P "\"stream\":true,\"max_tokens\":9999}", 400, "prompt", "context_length_exceeded" },
	{ M, U "\"max_tokens\":2048}", 400, "messages", "context_length_exceeded" },
	/* values out of range or of the wrong type */
	{ C, P "\"max_tokens\":0}", 400, "max_tokens", NULL },
	{ C, P "\"max_tokens\":-1}", 400, "max_tokens", NULL },
	{ C, P "\"max_tokens\":1.5}", 400, "max_tokens", NULL },
	{ C, P "\"max_tokens\":\"5\"}", 400, "max_tokens", NULL },
	{ C, P "\"max_tokens\":9223372036854775808}", 400, "max_tokens", NULL },
	{ C, P "\"n\":0}", 400, "n", NULL },
	{ C, P "\"n\":129}", 400, "n", NULL },
	{ C, P "\"n\":2147483648}", 400, "n", NULL },
	{ C, P "\"n\":9}", 400, "n", NULL },
	{ C, P "\"temperature\":-1}", 400, "temperature", NULL },
	{ C, P "\"temperature\":3}", 400, "temperature", NULL },
	{ C, P "\"temperature\":1e999}", 400, "temperature", NULL },
	{ C, P "\"temperature\":NaN}", 400, "temperature", NULL },
	{ C, P "\"temperature\":\"1\"}", 400, "temperature", NULL },
	{ C, P "\"top_p\":0}", 400, "top_p", NULL },
	{ C, P "\"top_p\":1.1}", 400, "top_p", NULL },
	{ C, P "\"top_k\":-2}", 400, "top_k", NULL },
	{ C, P "\"min_p\":2}", 400, "min_p", NULL },
	{ C, P "\"seed\":18446744073709551616}", 400, "seed", NULL },
	{ C, P "\"logprobs\":21}", 400, "logprobs", NULL },
	{ M, U "\"logprobs\":true,\"top_logprobs\":21}", 400, "top_logprobs", NULL },
	{ C, P "\"stop\":" STOPS33 "}", 400, "stop", NULL },
	{ C, P "\"stop\":\"\"}", 400, "stop", NULL },
	{ C, P "\"logit_bias\":{\"512\":1}}", 400, "logit_bias*", NULL },
	{ C, P "\"logit_bias\":{\"a\":1}}", 400, "logit_bias*", NULL },
	{ C, "{\"prompt\":[512]}", 400, "prompt", NULL },
	{ C, "{\"prompt\":[-1]}", 400, "prompt", NULL },
	{ "/detokenize", "{\"tokens\":[-1]}", 400, "tokens", NULL },
	{ "/detokenize", "{\"tokens\":[100000]}", 400, "tokens", NULL },
	/* members that are not supported */
	{ C, P "\"best_of\":2}", 400, "best_of", NULL },
	{ C, P "\"suffix\":\"a\"}", 400, "suffix", NULL },
	{ M, U "\"echo\":true}", 400, "echo", NULL },
	{ M, U "\"tools\":[{}]}", 400, "tools[0]", NULL },
	{ M, U "\"response_format\":{\"type\":\"xml\"}}", 400, "response_format.type", NULL },
	{ C, P "\"no_such_thing\":1}", 400, "no_such_thing", NULL },
	{ C, P "\"priority\":1}", 400, "priority", NULL },
};

static bool is_so(const struct reply *r, const struct row *row)
{
	json_t *root = json_of(r), *param = at_path(root, "error.param");
	const char *name = json_string_value(param);
	size_t n = strcspn(row->param, "*");
	bool ok = r->status == row->status && is_error(r) && (!row->code || says(r, "error.code", row->code));

	if (ok && *row->param)
		ok = name && !strncmp(name, row->param, n) && (row->param[n] || !name[n]);
	json_decref(root);
	return ok;
}

static const char chat_template[] =
	"{% if messages[0].content == 'raise' %}{{ raise_exception('as asked') }}{% endif %}"
	"{% if messages[0].content == 'loop' %}{% for a in range(100000) %}{% for b in range(100000) %}"
	"{% endfor %}{% endfor %}{% endif %}"
	"{% if messages[0].content == 'flood' %}{% for a in range(100000) %}{{ 'x' * 10000 }}{% endfor "
	"%}{% endif %}"
	"{{ messages[0].content }}";

static bool start_with_chat(struct cairn_test *t, struct server *s)
{
	char path[PATH_MAX];

	cairn_tmpfile(t, path, sizeof(path), "chat.jinja", chat_template, sizeof(chat_template) - 1);
	return start_server(t, s, (const char *const[]){ "--impl", "cpu", "--batch", "8", "--quiet",
							 "--chat-template", path, NULL }) &&
	       EXPECT(t, wait_ready(s));
}

static void refused(struct cairn_test *t)
{
	static struct reply r;
	struct server s;

	if (start_with_chat(t, &s)) {
		for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
			post(&s, rows[i].path, rows[i].body, &r);
			if (!EXPECT(t, is_so(&r, &rows[i])))
				cairn_note(t, "%s %s: %d %.300s", rows[i].path, rows[i].body, r.status,
					   r.body);
		}
		/* repeated refusals leave the server intact */
		for (int i = 0; i < 300; i++)
			EXPECT(t, post(&s, C, P "\"stream\":true,\"max_tokens\":9999}", &r) == 400);
		EXPECT(t, post(&s, C, P "\"max_tokens\":2}", &r) == 200);
		EXPECT(t, metric_of(&s, "vllm:request_success_total", "error") == 0);
		EXPECT(t, metric_of(&s, "cairn:requests_refused_total", "invalid") >= ARRAY_SIZE(rows));
	}
	stop_server(&s);
}

static void http_rules(struct cairn_test *t)
{
	static struct reply r;
	struct server s;
	char *text = malloc(9 << 20);

	if (start_with_chat(t, &s)) {
		/* one sample of each kind; the family http_bad tests all HTTP rules */
		static const char *const other =
			"POST " C " HTTP/1.1\r\nHost: localhost\r\nContent-Type: text/plain\r\n"
			"Content-Length: 2\r\n\r\n{}";
		static const char evil[] = "GET /health HTTP/1.1\r\nHost: evil.example:8000\r\n\r\n";
		static const char *const both = "POST " C " HTTP/1.1\r\nHost: localhost\r\n"
					"Content-Length: 2\r\n"
						"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n";
		size_t n;

		EXPECT(t, talk(&s, other, strlen(other), &r) == 415 && is_error(&r));
		EXPECT(t, talk(&s, both, strlen(both), &r) == 400 && is_error(&r));
		n = (size_t)sprintf(text,
				    "POST " C " HTTP/1.1\r\nHost: localhost\r\n"
							"Content-Type: application/json\r\n"
				    "Content-Length: %d\r\n\r\n",
				    9 << 20);
		EXPECT(t, talk(&s, text, n, &r) == 413 && is_error(&r));
		memset(text, 'a', 1 << 17);
		memcpy(text, "GET / HTTP/1.1\r\nX: ", 19);
		EXPECT(t, talk(&s, text, 1 << 17, &r) == 431 && is_error(&r));
		memcpy(text, "GET /aaaaaaaaaaaaaa", 19);
		EXPECT(t, talk(&s, text, 1 << 17, &r) == 414 && is_error(&r));
		EXPECT(t, talk(&s, evil, strlen(evil), &r) == 403 && is_error(&r));
		EXPECT(t, get(&s, C, &r) == 405 && strcasestr(r.text, "\r\nAllow: POST\r\n"));
		EXPECT(t, post(&s, "/health", "{}", &r) == 405 && post(&s, "/v1/models", "{}", &r) == 405);
	}
	free(text);
	stop_server(&s);
}

/* No other limit refuses a body that --max-body allows. */
static void longest_body(struct cairn_test *t)
{
	static const char head[] = "POST " C " HTTP/1.1\r\nHost: localhost\r\n"
				"Content-Type: application/json\r\n"
				   "Content-Length: 1000000000\r\nExpect: 100-continue\r\n\r\n";
	char got[64] = "";
	struct server s;
	int fd;

	if (start_server(t, &s, (const char *const[]){ "--impl", "cpu", "--quiet", "--max-body", "1000000000",
						       NULL }) &&
	    EXPECT(t, wait_ready(&s))) {
		fd = dial_port(s.port);
		say_n(fd, head, strlen(head));
		EXPECT(t, recv(fd, got, sizeof(got) - 1, 0) > 0);
		EXPECT_CONTAINS(t, got, "HTTP/1.1 100 Continue\r\n\r\n");
		close(fd);
	}
	stop_server(&s);
}

/* Sends long texts that the pre-tokenizer cannot split, and runs chat templates that do not terminate. */
static void hard_texts(struct cairn_test *t)
{
	static const char *const units_of[] = {
		"a", "^", " ", "\xf0\x9f\x91\xa9\xe2\x80\x8d", "\xe4\xb8\xad", "\\n"
	};
	static const char *const tricks[] = { "raise", "loop", "flood" };
	static struct reply r;
	struct server s;
	char *body = malloc(1 << 20);
	double slowest = 0;

	if (start_with_chat(t, &s)) {
		for (size_t i = 0; i < 2 * ARRAY_SIZE(units_of); i++) {
			const char *u = units_of[i / 2];
			size_t n = (size_t)sprintf(body, "{\"prompt\":\""), k = strlen(u);
			double start = now_s();

			while (n < 512 << 10)
				n += (size_t)sprintf(body + n, "%.*s", (int)k, u);
			sprintf(body + n, "\"}");
			EXPECT(t, post(&s, i % 2 ? "/tokenize" : C, body, &r) == (i % 2 ? 200 : 400) ||
			       /* the list of ids is longer than the test's buffer */
			       (i % 2 && strstr(r.text, "200 OK")));
			slowest = fmax(slowest, now_s() - start);
		}
		cairn_note(t, "slowest of 512 KiB: %.1f ms", slowest * 1e3);
		EXPECT(t, slowest < (IS_SANITIZED ? 10 : 3));
		for (size_t i = 0; i < ARRAY_SIZE(tricks); i++) {
			double start = now_s();

			sprintf(body, R "\"user\",\"content\":\"%s\"}]}", tricks[i]);
			EXPECT(t, post(&s, M, body, &r) == 400 && is_error(&r) &&
					  says(&r, "error.param", "messages"));
			EXPECT(t, now_s() - start < 30);
		}
		EXPECT(t, post(&s, M, U "\"max_tokens\":2}", &r) == 200);
		EXPECT(t, WAIT_FOR(is_quiet(&s), 30000));
	}
	free(body);
	stop_server(&s);
}

/*
 * Answers that would be much longer than their requests are refused: a million spelled tokens, and a text of
 * many long tokens.
 */
static void long_answers(struct cairn_test *t)
{
	char *body = malloc(4 << 20), *p;
	static struct reply r;
	struct server s;
	int n;

	if (start_server(t, &s, (const char *const[]){ "--impl", "cpu", "--quiet", "--max-body",
						       "4194304", NULL }) &&
	    EXPECT(t, wait_ready(&s))) {
		p = body + sprintf(body, "{\"return_token_strs\":true,\"prompt\":\"");
		for (int i = 0; i < 1 << 20; i++)
			p += sprintf(p, "%s", i % 2 ? "7~" : "~");
		strcpy(p, "\"}");
		EXPECT(t, post(&s, "/tokenize", body, &r) == 413 &&
				  says(&r, "error.param", "return_token_strs"));
		p = body + sprintf(body, "{\"tokens\":[511");
		for (n = 1; n < 1000000; n++)
			p += sprintf(p, ",511");
		strcpy(p, "]}");
		EXPECT(t, post(&s, "/detokenize", body, &r) == 413 && says(&r, "error.param", "tokens"));
	}
	stop_server(&s);
	free(body);
}

static const struct cairn_unit units[] = {
	{ "refused", refused }, { "http_rules", http_rules }, { "longest_body", longest_body },
	{ "hard_texts", hard_texts }, { "long_answers", long_answers },
};

const struct cairn_family cairn_serve_bad_family = {
	.stage = "serving", .name = "serve_bad", .units = units, .num_units = ARRAY_SIZE(units),
	.timeout_s = 120,
	.waits = 1,
};
