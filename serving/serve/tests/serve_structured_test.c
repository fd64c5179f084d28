// SPDX-License-Identifier: Apache-2.0
/*
 * serve_structured_test - response_format and structured_outputs through the server
 *
 * Answers that end by "stop" must be what was asked for. When the grammar process dies or hangs, requests
 * with a constraint fail, others do not, and later ones succeed.
 */
#include <dirent.h>
#include <regex.h>

#include "conformance/harness.h"
#include "serving/grammar/grammar.h"
#include "serving/serve/tests/serve_test.h"

#define C	"/v1/completions"
#define CHAT	"/v1/chat/completions"
#define ASK	"{\"prompt\":\"The cat\",\"max_tokens\":60,\"temperature\":1,\"seed\":%d,\"n\":2,"
#define SAY	"{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}],\"max_tokens\":60,\"temperature\":1," \
		"\"seed\":%d,"
#define SCHEMA	"{\"type\":\"object\",\"properties\":{" \
		"\"id\":{\"type\":\"integer\",\"minimum\":1,\"maximum\":99}," \
		"\"ok\":{\"type\":\"boolean\"}},\"required\":[\"id\",\"ok\"],\"additionalProperties\":false}"
#define WS	"[ \t\r\n]*"
#define SCHEMA_REGEX	"^\\{" WS "\"id\"" WS ":" WS "[1-9][0-9]?" WS "," WS "\"ok\"" WS ":" WS \
			"(true|false)" WS "\\}$"

static bool has_library(struct cairn_test *t)
{
	if (!cairn_grammar_library())
		return true;
	cairn_skip(t, "%s", cairn_last_error());
	return false;
}

static const struct {
	const char *path, *body, *regex;
} good[] = {
	{ C, ASK "\"structured_outputs\":{\"choice\":[\"yes\",\"no\"]}}", "^(yes|no)$" },
	{ C, ASK "\"structured_outputs\":{\"regex\":\"[a-c]{2,5} [0-9]+\"},\"logprobs\":2}",
	  "^[a-c]{2,5} [0-9]+$" },
	{ C, ASK "\"structured_outputs\":{\"grammar\":\"start: \\\"<\\\" /[a-z]+/ \\\">\\\"\"}}",
	  "^<[a-z]+>$" },
	{ C, ASK "\"structured_outputs\":{\"json\":" SCHEMA "}}", SCHEMA_REGEX },
	{ C, ASK "\"structured_outputs\":{\"json\":\"{\\\"enum\\\":[1,\\\"x\\\"]}\"},\"presence_penalty\":1}",
	  "^(1|\"x\")$" },
	{ C, ASK "\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{\"name\":\"x\","
	  "\"strict\":true,\"schema\":" SCHEMA "}}}", SCHEMA_REGEX },
	{ C, ASK "\"response_format\":{\"type\":\"json_object\"},\"logit_bias\":{\"92\":8}}", "^\\{.*\\}$" },
	{ CHAT, SAY "\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{\"schema\":" SCHEMA "}}}",
	  SCHEMA_REGEX },
	{ CHAT, SAY "\"structured_outputs\":{\"choice\":[\"one\",\"two\"]}}", "^(one|two)$" },
	{ CHAT, SAY "\"response_format\":{\"type\":\"text\"},\"structured_outputs\":{\"json_object\":false}}",
	  "" },
};

/* Returns how many choices ended by "stop"; each of them must match. */
static int check_choices(struct cairn_test *t, const json_t *root, const char *pattern)
{
	json_t *choices = json_object_get(root, "choices"), *one;
	regex_t re;
	size_t i;
	int num = 0;

	EXPECT(t, !regcomp(&re, pattern, REG_EXTENDED | REG_NOSUB));
	json_array_foreach(choices, i, one)
	{
		const char *text = json_string_value(json_object_get(one, "text"));

		if (!text)
			text = json_string_value(json_object_get(json_object_get(one, "message"), "content"));
		if (!EXPECT(t, text) ||
		    strcmp(json_string_value(json_object_get(one, "finish_reason")), "stop") != 0)
			continue;
		num++;
		if (!EXPECT(t, !regexec(&re, text, 0, NULL, 0)))
			cairn_note(t, "%s: %.200s", pattern, text);
	}
	regfree(&re);
	return num;
}

/* With drafts, too: these are cut where the constraint excludes them. */
static void answers(struct cairn_test *t)
{
	static const char chat[] = "{% for m in messages %}{{ m.content }}{% endfor %}";
	char path[PATH_MAX];

	if (!has_library(t))
		return;
	cairn_tmpfile(t, path, sizeof(path), "chat.jinja", chat, sizeof(chat) - 1);
	for (int drafts = 0; drafts < 2; drafts++) {
		struct server s;
		int ended = 0;

		if (!start_server(t, &s, (const char *const[]){
				"--impl", "cpu", "--batch", "4", "--quiet", "--chat-template", path,
				"--speculative", drafts ? "ngram" : "off", NULL }) ||
		    !EXPECT(t, wait_ready(&s)))
			return;
		for (size_t i = 0; i < ARRAY_SIZE(good); i++)
			for (int seed = 0; seed < 2; seed++) {
				char body[2048];
				json_t *root;

				snprintf(body, sizeof(body), good[i].body, seed);
				root = answer_of(t, &s, good[i].path, body);
				if (root)
					ended += check_choices(t, root, good[i].regex);
				json_decref(root);
			}
		EXPECT(t, ended > 15);
		EXPECT(t, WAIT_FOR(metric_of(&s, "cairn:constraints_compiled_total", "") >= 7, 5000));
		EXPECT(t, metric_of(&s, "cairn:constraint_cache_hits_total", "") >= 10);
		EXPECT(t, metric_of(&s, "cairn:masks_total", "") > 100);
		EXPECT(t, metric_of(&s, "cairn:grammar_restarts_total", "") == 0);
		EXPECT(t, WAIT_FOR(is_quiet(&s), 5000));
		stop_server(&s);
	}
}

#define P	"{\"prompt\":\"a\",\"max_tokens\":8,"

/* What cannot be done is refused by name, before the answer begins, also that of a stream. */
static void refusals(struct cairn_test *t)
{
	static const struct { const char *body, *param, *message; } bad[] = {
		{ P "\"guided_json\":{}}", "guided_json", "structured_outputs.json" },
		{ P "\"stream\":true,\"structured_outputs\":{\"json\":{\"$ref\":\"#\"}}}",
		  "structured_outputs.json", "json: no text satisfies it" },
		{ P "\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{\"schema\":"
		    "{\"not\":{}}}}}",
		  "response_format.json_schema.schema", "not" },
		{ P "\"structured_outputs\":{\"regex\":\"((\"}}", "structured_outputs.regex", "regex: " },
		{ P "\"structured_outputs\":{\"grammar\":\"x\"}}", "structured_outputs.grammar",
		  "grammar: " },
		{ P "\"structured_outputs\":{\"regex\":\"a\"},\"use_beam_search\":true}",
		  "structured_outputs.regex", "use_beam_search" },
	};
	static struct reply r;
	struct server s;

	if (!has_library(t) ||
	    !start_server(t, &s, (const char *const[]){ "--impl", "cpu", "--quiet", NULL }) ||
	    !EXPECT(t, wait_ready(&s)))
		return;
	for (size_t i = 0; i < ARRAY_SIZE(bad); i++) {
		EXPECT(t, post(&s, C, bad[i].body, &r) == 400);
		if (!EXPECT(t, is_error(&r) && says(&r, "error.param", bad[i].param)))
			cairn_note(t, "%.300s", r.body);
		EXPECT_CONTAINS(t, r.body, bad[i].message);
	}
	EXPECT(t, post(&s, C, P "\"structured_outputs\":{\"choice\":[\"a\"]}}", &r) == 200);
	EXPECT(t, WAIT_FOR(metric_of(&s, "cairn:constraints_refused_total", "") == 4, 5000));
	stop_server(&s);
}

/* Returns the number of the grammar process: a child of the worker, which is a child of the server. */
static int find_grammar(const struct server *s)
{
	struct dirent *d;
	DIR *dir = opendir("/proc");
	int pids[1024][2], num = 0, found = -1;

	while (dir && (d = readdir(dir)) && num < 1024) {
		char path[300], text[512] = "";
		int pid = atoi(d->d_name), parent = 0;
		FILE *f;

		snprintf(path, sizeof(path), "/proc/%d/stat", pid);
		f = pid > 0 ? fopen(path, "r") : NULL;
		if (!f)
			continue;
		if (fgets(text, sizeof(text), f) && strrchr(text, ')'))	/* "PID (NAME) STATE PARENT ..." */
			parent = atoi(strrchr(text, ')') + 4);
		fclose(f);
		if (parent > 1) {
			pids[num][0] = pid;
			pids[num++][1] = parent;
		}
	}
	if (dir)
		closedir(dir);
	for (int i = 0; i < num; i++)
		for (int k = 0; k < num; k++)
			if (pids[i][1] == s->pid && pids[k][1] == pids[i][0])
				found = pids[k][0];
	return found;
}

#define REGEX(r)	"{\"prompt\":\"a\",\"structured_outputs\":{\"regex\":\"" r "\"},"
#define LONG	"\"max_tokens\":1200,\"stream\":true}"

/* The process is killed while one request has a constraint and another has none. */
static void process_dies(struct cairn_test *t)
{
	static struct reply r;
	char path[PATH_MAX];
	struct server s;
	int fds[2], pid;

	if (!has_library(t) || !beside(t, "fault_plugin.so", path, sizeof(path)) ||
	    !start_server(t, &s, FAULT_ARGS(path, "--batch", "2")) || !EXPECT(t, wait_ready(&s)))
		return;
	for (int round = 0; round < 2; round++) {
		double before = metric_of(&s, "cairn:masks_total", "");

		tell_fault(&s, "slow 2");
		fds[0] = ask_stream(&s, C, REGEX("[a-z ]{1500}") LONG);
		fds[1] = ask_stream(&s, C, "{\"prompt\":\"a\",\"ignore_eos\":true," LONG);
		EXPECT(t, WAIT_FOR(metric_of(&s, "cairn:masks_total", "") > before + 5, 30000));
		pid = find_grammar(&s);
		if (EXPECT(t, pid > 0))
			kill(pid, SIGKILL);
		EXPECT(t, read_reply_of(fds[0], &r, 60000, true) == 200);
		EXPECT_CONTAINS(t, r.body, "\"code\":\"constraint_failed\"");
		EXPECT(t, !strstr(r.body, "[DONE]") && !strstr(r.body, "\"finish_reason\":\"stop\""));
		tell_fault(&s, "");
		/* the other answer is longer than the test's buffer, so it is not read */
		EXPECT(t, WAIT_FOR(is_quiet(&s), 60000));
		EXPECT(t, metric_of(&s, "cairn:worker_restarts_total", "") <= 0);
		close(fds[0]);
		close(fds[1]);
		EXPECT(t, post(&s, C, P "\"structured_outputs\":{\"choice\":[\"ab\"]}}", &r) == 200);
		EXPECT_CONTAINS(t, r.body, "\"text\":\"ab\"");
		EXPECT(t, WAIT_FOR(metric_of(&s, "cairn:grammar_restarts_total", "") == round + 1, 5000));
	}
	/* a client that leaves while its constraint waits for a process that hangs */
	pid = find_grammar(&s);
	if (EXPECT(t, pid > 0)) {
		kill(pid, SIGSTOP);
		fds[0] = ask_stream(&s, C, REGEX("[0-9]") LONG);
		EXPECT(t, post(&s, C, P "\"temperature\":0}", &r) == 200);
		close(fds[0]);
		EXPECT(t, WAIT_FOR(is_quiet(&s), 30000));
		kill(pid, SIGCONT);
		EXPECT(t, post(&s, C, P "\"structured_outputs\":{\"regex\":\"[0-9]\"}}", &r) == 200);
	}
	stop_server(&s);
}

/* Without the library, or with another version of it, such requests are refused with what to type. */
static void without_library(struct cairn_test *t)
{
	static struct reply r;
	char path[PATH_MAX];
	struct server s;

	if (!beside(t, "other_llguidance.so", path, sizeof(path)))
		return;
	for (int i = 0; i < 2; i++) {
		setenv("CAIRN_LLGUIDANCE", i ? "/nowhere" : path, 1);
		if (!start_server(t, &s, (const char *const[]){ "--impl", "cpu", "--quiet", NULL }) ||
		    !EXPECT(t, wait_ready(&s)))
			return;
		EXPECT(t, post(&s, C, P "\"structured_outputs\":{\"choice\":[\"a\"]}}", &r) == 400);
		EXPECT(t, is_error(&r) && says(&r, "error.code", "unsupported_value"));
		EXPECT_CONTAINS(t, r.body, i ? "/nowhere" : "tools/setup.sh grammar");
		EXPECT(t, post(&s, C, P "\"temperature\":0}", &r) == 200);
		stop_server(&s);
	}
	unsetenv("CAIRN_LLGUIDANCE");
}

static const struct cairn_unit units[] = {
	{ "answers", answers }, { "refusals", refusals }, { "process_dies", process_dies },
	{ "without_library", without_library },
};

const struct cairn_family cairn_serve_structured_family = {
	.stage = "serving", .name = "serve_structured", .units = units, .num_units = ARRAY_SIZE(units),
	.timeout_s = 180, .cost_s = 8, .waits = 1,
};
