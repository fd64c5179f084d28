// SPDX-License-Identifier: Apache-2.0
/*
 * serve_tools_test - tool calls and reasoning of a checkpoint that says fixed texts
 * (tools/scripted_model.py), whole and streamed
 */
#include <sys/un.h>

#include "conformance/harness.h"
#include "conformance/tables/program.h"
#include "serving/api/api_response.h"
#include "serving/grammar/grammar.h"
#include "serving/serve/tests/serve_test.h"

#define ASK(what) "\"messages\":[{\"role\":\"user\",\"content\":\"x ask:" what "\"}]"
#define TOOLS                                                                                      \
	"\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"weather\",\"description\":\"<" \
	"|"                                                                                        \
	"unused|>\","                                                                              \
	"\"parameters\":{\"type\":\"object\",\"properties\":{\"city\":{\"type\":\"string\"}}}}}]"
#define ONLY                                                                                       \
	"\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"only\",\"parameters\":{"       \
	"\"type\":"                                                                                \
	"\"object\","                                                                              \
	"\"properties\":{\"a\":{\"enum\":[\"x\"]}},\"required\":[\"a\"],\"additionalProperties\":" \
	"false}"                                                                                   \
	"}}]"
#define CALL(city) "[weather|{\"city\": \"" city "\", \"days\": 3}]"

/* Its text shows the format of calls, so that no option need name it. */
static const char template[] =
	"{% if tools %}<tool_call>{{ tools | tojson }}</tool_call>{% endif %}{% for m in messages "
	"%}"
	"{% if m.tool_calls %}{{ m.tool_calls[0].function.arguments.city }}{% endif %}|{{ "
	"m.content }}{% "
	"endfor %}"
	"{% if enable_thinking is defined and not enable_thinking %}<think></think>{% endif %}";

static bool start(struct cairn_test *t, struct server *s, const char *option, const char *value)
{
	char path[PATH_MAX], model[PATH_MAX];
	const char *args[] = { "--model",	  model, "--impl", "cpu", "--batch", "4", "--quiet",
			       "--chat-template", path,	 option,   value, NULL };

	snprintf(model, sizeof(model), "%.3000s/serving/golden/scripted", cairn_data_dir());
	cairn_tmpfile(t, path, sizeof(path), "tools.jinja", template, sizeof(template) - 1);
	return start_server(t, s, args) && EXPECT(t, wait_ready(s));
}

static const char *text_at(json_t *v, const char *path)
{
	const char *s = json_string_value(at_path(v, path));

	return s ? s : "";
}

/* Writes a message as content, (reasoning), [name|arguments], {finish reason}. */
static void show(json_t *choice, char *text, size_t len)
{
	size_t n = (size_t)snprintf(text, len, "%s", text_at(choice, "message.content")), i;
	json_t *call;

	if (*text_at(choice, "message.reasoning"))
		n += (size_t)snprintf(text + n, len - n, "(%s)",
				      text_at(choice, "message.reasoning"));
	json_array_foreach (at_path(choice, "message.tool_calls"), i, call)
		n += (size_t)snprintf(text + n, len - n, "[%s|%s]", text_at(call, "function.name"),
				      text_at(call, "function.arguments"));
	snprintf(text + n, len - n, "{%s}", text_at(choice, "finish_reason"));
}

/* Joins the deltas of a stream to one message, as clients do; checks their order. */
static json_t *join(struct cairn_test *t, const struct reply *r)
{
	json_t *choice = json_pack("{s:{s:s,s:s,s:[]}}", "message", "content", "", "reasoning", "",
				   "tool_calls");
	struct cairn_api_out content = { 0 }, reasoning = { 0 }, arguments = { 0 };
	json_t *calls = at_path(choice, "message.tool_calls");
	bool done = false;

	for (char *p = strstr(r->body, "data: "); p;
	     p = strstr(p, "\n\ndata: ") ? strstr(p, "\n\ndata: ") + 2 : NULL) {
		json_t *v = json_loads(p + 6, JSON_DISABLE_EOF_CHECK, NULL),
		       *part = at_path(v, "choices.0");
		const char *said = text_at(part, "delta.content"),
			   *thought = text_at(part, "delta.reasoning");
		json_t *call = at_path(part, "delta.tool_calls.0");

		done = !strncmp(p + 6, "[DONE]", 6);
		cairn_api_put(&content, said, strlen(said));
		cairn_api_put(&reasoning, thought, strlen(thought));
		EXPECT(t, !strcmp(thought, text_at(part, "delta.reasoning_content")));
		if (call && json_object_get(call, "id")) {
			EXPECT(t, (size_t)json_integer_value(json_object_get(call, "index")) ==
					  json_array_size(calls));
			EXPECT(t, *text_at(call, "function.name") &&
					  !*text_at(call, "function.arguments") &&
					  !strcmp(text_at(call, "type"), "function"));
			json_array_append(calls, call);
			arguments.len = 0;
		} else if (call) {
			const char *more = text_at(call, "function.arguments");
			json_t *last = json_array_get(calls, json_array_size(calls) - 1);

			EXPECT(t, (size_t)json_integer_value(json_object_get(call, "index")) ==
					  json_array_size(calls) - 1);
			cairn_api_put(&arguments, more, strlen(more));
			json_object_set_new(json_object_get(last, "function"), "arguments",
					    json_string(arguments.s));
		}
		if (json_is_string(json_object_get(part, "finish_reason")))
			json_object_set(choice, "finish_reason",
					json_object_get(part, "finish_reason"));
		json_decref(v);
	}
	EXPECT(t, done);
	json_object_set_new(at_path(choice, "message"), "content",
			    json_string(content.len ? content.s : ""));
	json_object_set_new(at_path(choice, "message"), "reasoning",
			    json_string(reasoning.len ? reasoning.s : ""));
	cairn_api_out_free(&content);
	cairn_api_out_free(&reasoning);
	cairn_api_out_free(&arguments);
	return choice;
}

struct row {
	const char *members, *want;
};

static void ask_all(struct cairn_test *t, const struct server *s, const struct row *rows,
		    size_t num)
{
	static struct reply r;
	char body[2048], got[2048];

	for (size_t i = 0; i < 2 * num; i++) {
		json_t *v;

		snprintf(body, sizeof(body), "{%s,\"temperature\":0%s}", rows[i / 2].members,
			 i % 2 ? ",\"stream\":true" : "");
		if (!EXPECT(t, post(s, "/v1/chat/completions", body, &r) == 200)) {
			cairn_note(t, "%s: %.500s", body, r.body);
			continue;
		}
		v = i % 2 ? join(t, &r) : json_of(&r);
		show(i % 2 ? v : at_path(v, "choices.0"), got, sizeof(got));
		if (!EXPECT(t, !strcmp(got, rows[i / 2].want)))
			cairn_note(t, "%s: got %s, want %s", body, got, rows[i / 2].want);
		json_decref(v);
	}
}

/* The marks of the reasoning count. The first one is written as "<thin" and "k>", which begins it. */
static void reasoning_tokens(struct cairn_test *t, const struct server *s)
{
	static const struct { const char *members; double want; } rows[] = {
		{ "\"input\":\"x ask:think\"", 7 },
		{ "\"input\":\"x ask:think\",\"include_reasoning\":false", 7 },
		{ "\"input\":\"x ask:think\",\"max_output_tokens\":4", 3 },
		{ "\"input\":\"x ask:plain\"", 0 },
	};
	static struct reply r;
	char body[256], usage[128];

	for (size_t i = 0; i < 2 * ARRAY_SIZE(rows); i++) {
		snprintf(body, sizeof(body), "{%s,\"temperature\":0%s}", rows[i / 2].members,
			 i % 2 ? ",\"stream\":true" : "");
		snprintf(usage, sizeof(usage), "\"output_tokens_details\":{\"reasoning_tokens\":%.0f}",
			 rows[i / 2].want);
		if (!EXPECT(t, post(s, "/v1/responses", body, &r) == 200 && strstr(r.body, usage)))
			cairn_note(t, "%s: %s", body, r.body);
	}
}

/* Calls are forced by the grammar of the format, or refused by name where no library can constrain
 * answers. */
static void forced(struct cairn_test *t, const struct server *s)
{
	static const struct row rows[] = {
		{ ASK("two") "," TOOLS ",\"tool_choice\":\"required\"",
		  CALL("Zurich") CALL("Rome") "{tool_calls}" },
		{ ASK("two") "," TOOLS
			     ",\"tool_choice\":\"required\",\"parallel_tool_calls\":false",
		  CALL("Zurich") "{tool_calls}" },
		/* a model that would say something else cannot */
		{ ASK("plain") "," ONLY
			       ",\"tool_choice\":\"required\",\"parallel_tool_calls\":false,"
			       "\"chat_template_kwargs\":{\"enable_thinking\":false}",
		  "[only|{\"a\": \"x\"}]{tool_calls}" },
		{ ASK("plain") "," ONLY
			       ",\"tool_choice\":{\"type\":\"function\",\"function\":{\"name\":"
			       "\"only\"}},"
			       "\"chat_template_kwargs\":{\"enable_thinking\":false}",
		  "[only|{\"a\": \"x\"}]{stop}" },
	};
	static const struct row thinking[] = {
		/* a constraint begins after the reasoning */
		{ ASK("think") ",\"structured_outputs\":{\"choice\":[\"Four.\"]}",
		  "Four.(Two and two.){stop}" },
		{ ASK("think") ",\"structured_outputs\":{\"choice\":[\"Five\"]}",
		  "Five(Two and two.){stop}" },
	};
	static struct reply r;

	if (!cairn_grammar_library()) {
		ask_all(t, s, thinking, ARRAY_SIZE(thinking));
		ask_all(t, s, rows, ARRAY_SIZE(rows));
		return;
	}
	EXPECT(t, post(s, "/v1/chat/completions",
		       "{" ASK("weather") "," TOOLS ",\"tool_choice\":\"required\"}", &r) == 400);
	EXPECT(t, says(&r, "error.param", "tool_choice") && strstr(r.body, "setup.sh grammar"));
}

static void hermes(struct cairn_test *t)
{
	static const struct row rows[] = {
		{ ASK("plain") "," TOOLS, "Hello there.{stop}" },
		{ ASK("weather") "," TOOLS, "Let me see." CALL("Paris") "{tool_calls}" },
		{ ASK("two") "," TOOLS, CALL("Zurich") CALL("Rome") "{tool_calls}" },
		{ ASK("two") "," TOOLS ",\"parallel_tool_calls\":false",
		  CALL("Zurich") "{tool_calls}" },
		{ ASK("bad") "," TOOLS, "<tool_call>\nnot a call at all\n</tool_call>{stop}" },
		{ ASK("think"), "Four.(Two and two.){stop}" },
		{ ASK("think") ",\"include_reasoning\":false", "Four.{stop}" },
		{ ASK("both") "," TOOLS, "(I have to look.)" CALL("Bern") "{tool_calls}" },
		{ ASK("both") "," TOOLS ",\"tool_choice\":\"auto\",\"n\":1,\"logprobs\":true",
		  "(I have to look.)" CALL("Bern") "{tool_calls}" },
		/* without tools, or with none to be called, a call is text */
		{ ASK("bad") "," TOOLS ",\"tool_choice\":\"none\"",
		  "<tool_call>\nnot a call at all\n</tool_call>{stop}" },
		{ "\"messages\":[{\"role\":\"user\",\"content\":\"x\"},{\"role\":\"assistant\","
		  "\"tool_"
		  "calls\":[{\"id\":"
		  "\"a\",\"type\":\"function\",\"function\":{\"name\":\"weather\",\"arguments\":\"{"
		  "\\\"city\\\":1}\"}}]},"
		  "{\"role\":\"tool\",\"tool_call_id\":\"a\",\"content\":\"result:22\"}]," TOOLS,
		  "It is 22 degrees.{stop}" },
	};
	static struct reply r;
	struct server s;

	if (start(t, &s, NULL, NULL)) {
		ask_all(t, &s, rows, ARRAY_SIZE(rows));
		EXPECT(t, post(&s, "/v1/chat/completions",
			       "{" ASK("weather") "," TOOLS ",\"max_tokens\":8}", &r) == 200);
		if (!EXPECT(t, says(&r, "choices.0.finish_reason", "length")))
			cairn_note(t, "%s", r.body);
		forced(t, &s);
		reasoning_tokens(t, &s);
		/* a special token that a tool's definition spells is no special token */
		EXPECT(t, post(&s, "/tokenize", "{" ASK("plain") "," TOOLS "}", &r) == 200);
		EXPECT(t, !strstr(r.body, "259,") && number_at(&r, "count") > 100);
	}
	stop_server(&s);
}

/* Marks that are special tokens are read; the other special tokens stay hidden. */
static void mistral(struct cairn_test *t)
{
	static const struct row rows[] = {
		{ ASK("mistral") "," TOOLS, "Wait.[weather|{\"city\": \"Oslo\"}]{tool_calls}" },
		{ ASK("weather") "," TOOLS, "Let me see.\n<tool_call>\n{\"name\": \"weather\", "
					    "\"arguments\": {\"city\": \"Paris\", \"days\": 3}}\n"
					    "</tool_call>{stop}" },
	};
	static struct reply r;
	struct server s;

	if (start(t, &s, "--tool-call-parser", "mistral")) {
		json_t *v;

		ask_all(t, &s, rows, ARRAY_SIZE(rows));
		EXPECT(t, post(&s, "/v1/chat/completions", "{" ASK("mistral") "," TOOLS "}", &r) ==
				  200);
		v = json_of(&r);
		EXPECT(t, strlen(text_at(v, "choices.0.message.tool_calls.0.id")) == 9);
		json_decref(v);
	}
	stop_server(&s);
}

/* The server on a Unix socket: it says where, answers there, and leaves no file. */
static void unix_socket(struct cairn_test *t)
{
	static struct reply r;
	struct sockaddr_un to = { .sun_family = AF_UNIX };
	char path[PATH_MAX], log[4096];
	struct server s = { .t = t, .pid = -1 };
	int fd = -1;

	cairn_tmpfile(t, path, sizeof(path), "uds", "", 0);
	unlink(path);
	snprintf(to.sun_path, sizeof(to.sun_path), "%.100s", path);
	cairn_tmpfile(t, s.log, sizeof(s.log), "log", "", 0);
	s.pid = fork();
	if (!s.pid) {
		int out = open(s.log, O_WRONLY | O_APPEND);

		prctl(PR_SET_PDEATHSIG, SIGKILL);
		dup2(out, 1);
		dup2(out, 2);
		execl("/proc/self/exe", "cairn", "serve", "--impl", "cpu", "--uds", to.sun_path,
		      NULL);
		_exit(127);
	}
	EXPECT(t, WAIT_FOR(strstr(log_of(&s, log, sizeof(log)), "ready:"), 60000));
	EXPECT_CONTAINS(t, log, "on unix:");
	fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (EXPECT(t, !connect(fd, (struct sockaddr *)&to, sizeof(to)))) {
		say(fd, "GET /version HTTP/1.1\r\nHost: h\r\n\r\n");
		EXPECT(t, read_reply(fd, &r) == 200 && says(&r, "version", CAIRN_VERSION));
		EXPECT(t, WAIT_FOR(strstr(log_of(&s, log, sizeof(log)), "unix req_"), 5000));
	}
	close(fd);
	stop_server(&s);
	EXPECT(t, access(to.sun_path, F_OK));
}

static void none(struct cairn_test *t)
{
	static struct reply r;
	struct server s;

	if (start(t, &s, "--tool-call-parser", "none")) {
		EXPECT(t, post(&s, "/v1/chat/completions", "{" ASK("weather") "," TOOLS "}", &r) ==
				  400);
		EXPECT(t, says(&r, "error.param", "tools") && strstr(r.body, "--tool-call-parser"));
	}
	stop_server(&s);
}

static const struct cairn_unit units[] = {
	{ "hermes", hermes },
	{ "mistral", mistral },
	{ "none", none },
	{ "unix_socket", unix_socket },
};

const struct cairn_family cairn_serve_tools_family = {
	.stage = "serving",
	.name = "serve_tools",
	.units = units,
	.num_units = ARRAY_SIZE(units),
	.cost_s = 4,
};
