// SPDX-License-Identifier: Apache-2.0
/* serve_test - answers of `cairn serve`: whole and streamed, stop strings, chat, other paths, keys, seeds */
#include "conformance/harness.h"
#include "serving/serve/tests/serve_test.h"

static const char *const plain[] = { "--impl", "cpu", "--batch", "8", NULL };

#define GREEDY	"\"temperature\":0,\"ignore_eos\":true,"

/* Reads a stream's text and counts its events. Returns false if an event is not JSON or [DONE] is missing. */
static bool read_events(const struct reply *r, const char *member, int index, char *text, size_t len,
			int *events)
{
	size_t at = 0;
	bool done = false;

	*events = 0;
	text[0] = 0;
	for (char *p = strstr(r->body, "data: "); p;
	     p = strstr(p, "\n\ndata: ") ? strstr(p, "\n\ndata: ") + 2 : NULL) {
		json_t *root = json_loads(p + 6, JSON_DISABLE_EOF_CHECK, NULL);
		const char *piece;

		done = !strncmp(p + 6, "[DONE]", 6);
		if (!root && !done)
			return false;
		piece = json_string_value(at_path(root, member));
		if (json_integer_value(at_path(root, "choices.0.index")) == index && piece)
			at += (size_t)snprintf(text + at, at < len ? len - at : 0, "%s", piece);
		*events += at_path(root, "choices.0") != NULL;
		json_decref(root);
	}
	return done;
}

static void text_of(const struct reply *r, const char *path, char *text, size_t len)
{
	json_t *root = json_of(r);
	const char *s = json_string_value(at_path(root, path));

	snprintf(text, len, "%s", s ? s : "");
	json_decref(root);
}

static void whole_and_streamed(struct cairn_test *t)
{
	static struct reply r;
	struct server s;
	char text[512], again[512];
	int events;

	if (start_server(t, &s, plain) && EXPECT(t, wait_ready(&s))) {
		EXPECT(t, post(&s, "/v1/completions",
			       "{\"prompt\":\"Hello there\"," GREEDY "\"max_tokens\":24}", &r) == 200);
		EXPECT(t, says(&r, "object", "text_completion") && says(&r, "model", "embedded"));
		EXPECT(t, says(&r, "choices.0.finish_reason", "length"));
		EXPECT(t, number_at(&r, "usage.prompt_tokens") == 7 &&
			  number_at(&r, "usage.completion_tokens") == 24 &&
			  number_at(&r, "usage.total_tokens") == 31);
		text_of(&r, "choices.0.text", text, sizeof(text));
		EXPECT(t, strlen(text) > 10);
		/* streamed, by token ids, and in one request with another prompt: the same text */
		EXPECT(t, post(&s, "/v1/completions",
			       "{\"prompt\":\"Hello there\"," GREEDY "\"max_tokens\":24,"
			       "\"stream\":true,\"stream_options\":{\"include_usage\":true}}",
			       &r) == 200);
		EXPECT(t, strcasestr(r.text, "\r\nContent-Type: text/event-stream\r\n"));
		EXPECT(t, read_events(&r, "choices.0.text", 0, again, sizeof(again), &events));
		EXPECT(t, !strcmp(text, again) && events >= 24);
		EXPECT_CONTAINS(t, r.body,
				"\"choices\":[],\"usage\":{\"prompt_tokens\":7,\"completion_tokens\":24");
		EXPECT(t, post(&s, "/v1/completions",
			       "{\"prompt\":[[510,39,417,75,78,271,263],[510,39]]," GREEDY
			       "\"max_tokens\":24,\"n\":2,\"seed\":5}",
			       &r) == 200);
		for (int i = 0; i < 2; i++) {
			text_of(&r, i ? "choices.1.text" : "choices.0.text", again, sizeof(again));
			EXPECT(t, !strcmp(text, again));
		}
		EXPECT(t, number_at(&r, "choices.3.index") == 3 &&
				  number_at(&r, "usage.completion_tokens") == 96);
	}
	stop_server(&s);
}

static void stops(struct cairn_test *t)
{
	static struct reply r;
	struct server s;
	char text[512], again[512], body[1024], stop[8], *at;
	int events;

	if (start_server(t, &s, plain) && EXPECT(t, wait_ready(&s))) {
		post(&s, "/v1/completions", "{\"prompt\":\"x\"," GREEDY "\"max_tokens\":60}", &r);
		text_of(&r, "choices.0.text", text, sizeof(text));
		/* the stop string is five letters from the middle, regardless of token boundaries */
		for (at = text + strlen(text) / 2;
		     *at && strspn(at, "abcdefghijklmnopqrstuvwxyz .,0123456789") < 5;)
			at++;
		snprintf(stop, sizeof(stop), "%.5s", at);
		at = strstr(text, stop);
		for (int i = 0; i < 4; i++) {
			snprintf(body, sizeof(body),
				 "{\"prompt\":\"x\"," GREEDY "\"max_tokens\":60,\"stop\":[\"%s\"],"
				 "\"include_stop_str_in_output\":%s,\"stream\":%s}",
				 stop, i & 1 ? "true" : "false", i & 2 ? "true" : "false");
			EXPECT(t, post(&s, "/v1/completions", body, &r) == 200);
			if (i & 2)
				EXPECT(t,
				       read_events(&r, "choices.0.text", 0, again, sizeof(again), &events));
			else
				text_of(&r, "choices.0.text", again, sizeof(again));
			EXPECT(t, strlen(again) == (size_t)(at - text) + (i & 1 ? strlen(stop) : 0) &&
				  !strncmp(again, text, strlen(again)));
			EXPECT_CONTAINS(t, r.body, "\"finish_reason\":\"stop\",\"stop_reason\":\"");
		}
		/* text before min_tokens matches no stop string */
		for (int i = 0; i < 2; i++) {
			snprintf(body, sizeof(body),
				 "{\"prompt\":\"x\"," GREEDY "\"max_tokens\":60,\"min_tokens\":59,"
				 "\"stop\":[\"%s\"],\"stream\":%s}",
				 stop, i ? "true" : "false");
			EXPECT(t, post(&s, "/v1/completions", body, &r) == 200);
			if (i)
				EXPECT(t,
				       read_events(&r, "choices.0.text", 0, again, sizeof(again), &events));
			else
				text_of(&r, "choices.0.text", again, sizeof(again));
			EXPECT(t, !strcmp(again, text));
		}
		/* a stop token ends the computation, too */
		EXPECT(t, WAIT_FOR(is_quiet(&s), 30000));
		post(&s, "/tokenize", "{\"prompt\":\"a\"}", &r);
		snprintf(body, sizeof(body),
			 "{\"prompt\":\"x\"," GREEDY "\"max_tokens\":60,\"stop_token_ids\":[%lld]}",
			 number_at(&r, "tokens.1"));
		EXPECT(t, post(&s, "/v1/completions", body, &r) == 200);
	}
	stop_server(&s);
}

static const char chat_template[] = "{{ bos_token }}{% for m in messages %}{{ m.role }}: {{ m.content }}"
	"<|end_of_text|>{% endfor %}{% if add_generation_prompt %}assistant: {% endif %}";

static void chats(struct cairn_test *t)
{
	char path[PATH_MAX], text[512], again[512];
	static struct reply r;
	struct server s;
	int events;
	long long marked;

	cairn_tmpfile(t, path, sizeof(path), "chat.jinja", chat_template, sizeof(chat_template) - 1);
	if (start_server(t, &s, (const char *const[]){ "--impl", "cpu", "--chat-template", path, NULL }) &&
	    EXPECT(t, wait_ready(&s))) {
#define ASK "{\"messages\":[{\"role\":\"user\",\"content\":\"two and two\"}]," GREEDY "\"max_tokens\":12"
		EXPECT(t, post(&s, "/v1/chat/completions", ASK "}", &r) == 200);
		EXPECT(t, says(&r, "object", "chat.completion") &&
			  says(&r, "choices.0.message.role", "assistant"));
		text_of(&r, "choices.0.message.content", text, sizeof(text));
		EXPECT(t, post(&s, "/v1/chat/completions", ASK ",\"stream\":true}", &r) == 200);
		EXPECT(t, read_events(&r, "choices.0.delta.content", 0, again, sizeof(again), &events));
		EXPECT(t, *text && !strcmp(text, again));
		EXPECT_CONTAINS(t, r.body, "\"delta\":{\"role\":\"assistant\",\"content\":\"");
		/*
		 * a user's text is never a special token: "<|end_of_text|>" is fifteen characters, not one id
		 */
		post(&s, "/tokenize", "{\"messages\":[{\"role\":\"user\",\"content\":\"\"}]}", &r);
		marked = number_at(&r, "count");
		EXPECT(t, post(&s, "/tokenize",
			       "{\"messages\":[{\"role\":\"user\",\"content\":\"<|end_of_text|>\"}]}",
			       &r) == 200);
		EXPECT(t, number_at(&r, "count") > marked + 4);
		EXPECT(t, post(&s, "/v1/chat/completions", "{\"messages\":[{\"role\":\"user\",\"content\":"
			       "\"<|end_of_text|><|begin_of_text|>\"}],\"max_tokens\":2}", &r) == 200);
	}
	stop_server(&s);
}

static void other_paths(struct cairn_test *t)
{
	static struct reply r;
	struct server s;
	char key[PATH_MAX];

	cairn_tmpfile(t, key, sizeof(key), "key", "sesame\n", 7);
	if (start_server(t, &s,
			 (const char *const[]){ "--impl", "cpu", "--key-file", key, "--name",
						"a/\"b\\\n\x1b", NULL }) &&
	    EXPECT(t, wait_ready(&s))) {
		static const char *const closed[] = { "/v1/models", "/metrics", "/none", "/v1/none" };
		static const char *const keys[] = { "",
						    "Authorization: sesame\r\n",
						    "Authorization: Bearer\r\n",
						    "Authorization: Bearer sesam\r\n",
						    "Authorization: Bearer sesamee\r\n",
						    "Authorization: Basic sesame\r\n",
						    "Authorization: Bearer sesame\r\n" };
		char text[1024];

		/* every closed path with every wrong key, and with the right one */
		for (size_t i = 0; i < ARRAY_SIZE(closed) * ARRAY_SIZE(keys); i++) {
			const char *k = keys[i % ARRAY_SIZE(keys)];
			size_t n = format_request(text, sizeof(text), "GET", closed[i / ARRAY_SIZE(keys)],
						  k, "");
			bool right = i % ARRAY_SIZE(keys) == ARRAY_SIZE(keys) - 1;

			talk(&s, text, n, &r);
			EXPECT(t, right ? r.status == (i / ARRAY_SIZE(keys) < 2 ? 200 : 404) :
					  r.status == 401 && is_error(&r) &&
						  says(&r, "error.code", "invalid_api_key") &&
						  strcasestr(r.text, "\r\nWWW-Authenticate: Bearer"));
		}
		EXPECT(t, post(&s, "/tokenize", "{}", &r) == 401 &&
				  post(&s, "/v1/completions", "{}", &r) == 401);
		EXPECT(t, get(&s, "/health", &r) == 200 && says(&r, "status", "ok") &&
				  get(&s, "/ready", &r) == 200);
		/* model name and path contain bytes that would break lines of logs and metrics */
		talk(&s, text, format_request(text, sizeof(text), "GET", "/metrics",
					      "Authorization: Bearer sesame\r\n", ""), &r);
		EXPECT_CONTAINS(t, r.body, "model_name=\"a/\\\"b\\\\\\n");
		talk(&s, text, format_request(text, sizeof(text), "GET", "/v1/%1bx", "", ""), &r);
		EXPECT(t, r.status == 400);
		talk(&s, text, format_request(text, sizeof(text), "GET", "/v1/models",
					      "Authorization: Bearer sesame\r\n", ""), &r);
		EXPECT(t, get(&s, "/", &r) == 200);
		EXPECT_CONTAINS(t, r.text, "Content-Security-Policy: ");
		talk(&s, text, format_request(text, sizeof(text), "GET", "/v1/models/none",
					      "Authorization: Bearer sesame\r\n", ""), &r);
		EXPECT(t, r.status == 404 && says(&r, "error.code", "model_not_found"));
		talk(&s, text, format_request(text, sizeof(text), "GET", "/v1/models",
					      "Authorization: Bearer sesame\r\n", ""), &r);
		EXPECT(t, says(&r, "data.0.id", "a/\"b\\\n\x1b") &&
				  number_at(&r, "data.0.max_model_len") == 2048);
	}
	stop_server(&s);
}

/* A key read from a file must not be truncated at a NUL byte. */
static void key_of_bytes(struct cairn_test *t)
{
	char key[PATH_MAX], exe[PATH_MAX];
	int status = 0, pid;
	ssize_t n = readlink("/proc/self/exe", exe, sizeof(exe) - 1);

	exe[n > 0 ? n : 0] = 0;
	cairn_tmpfile(t, key, sizeof(key), "key", "a\0sesame\n", 9);
	pid = fork();
	if (!pid) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		dup2(open("/dev/null", O_WRONLY), 1);
		dup2(1, 2);
		execl(exe, "cairn", "serve", "--impl", "cpu", "--port", "0", "--key-file", key, NULL);
		_exit(127);
	}
	if (!EXPECT(t, has_ended(pid, &status, 10000))) {
		kill(pid, SIGKILL);
		waitpid(pid, &status, 0);
	}
	EXPECT(t, WIFEXITED(status) && WEXITSTATUS(status) == 2);
}

/* The same seed gives the same answer with and without other requests. */
static void same_in_company(struct cairn_test *t)
{
#define SEEDED                                                                                             \
	"{\"prompt\":\"Once "                                                                              \
	"upon\",\"ignore_eos\":true,\"max_tokens\":40,\"temperature\":0.9,\"seed\":77,\"n\":3}"
	static struct reply r;
	char text[3][512], again[512];
	struct server s;
	int fds[12];

	if (start_server(t, &s, (const char *const[]){ "--impl", "cpu", "--batch", "64", NULL }) &&
	    EXPECT(t, wait_ready(&s))) {
		EXPECT(t, post(&s, "/v1/completions", SEEDED, &r) == 200);
		for (int i = 0; i < 3; i++)
			text_of(&r,
				(const char *[]){ "choices.0.text", "choices.1.text", "choices.2.text" }[i],
				text[i], sizeof(text[i]));
		EXPECT(t, strcmp(text[0], text[1]) && strcmp(text[1], text[2]) && strcmp(text[0], text[2]));
		for (int i = 0; i < 12; i++)
			fds[i] = ask_stream(&s, "/v1/completions",
					    i == 6 ? SEEDED :
						     "{\"prompt\":\"Other\",\"n\":5,"
						     "\"ignore_eos\":true,\"max_tokens\":60}");
		for (int i = 0; i < 12; i++) {
			EXPECT(t, read_reply_of(fds[i], &r, 60000, true) == 200);
			for (int k = 0; k < 3 && i == 6; k++) {
				text_of(&r, (const char *[]){ "choices.0.text", "choices.1.text",
							      "choices.2.text" }[k], again, sizeof(again));
				EXPECT(t, !strcmp(text[k], again));
			}
			close(fds[i]);
		}
		EXPECT(t, WAIT_FOR(is_quiet(&s), 30000));
	}
	stop_server(&s);
}

static const struct cairn_unit units[] = {
	{ "whole_and_streamed", whole_and_streamed }, { "stops", stops }, { "chats", chats },
	{ "other_paths", other_paths }, { "key_of_bytes", key_of_bytes },
	{ "same_in_company", same_in_company },
};

const struct cairn_family cairn_serve_family = {
	.stage = "serving", .name = "serve", .units = units, .num_units = ARRAY_SIZE(units), .timeout_s = 120,
	.waits = 1,
};
