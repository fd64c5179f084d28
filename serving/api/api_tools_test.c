// SPDX-License-Identifier: Apache-2.0
/* api_tools_test - tools in requests and answers; the JSON here uses ' for " */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "conformance/harness.h"
#include "serving/api/api_test.h"
#include "serving/base/json_test.h"

static const char *const models[] = { "m" };
static const struct cairn_api_limits limits = {
	.vocab_size = 1000,
	.max_context = 4096,
	.models = models,
	.num_models = 1,
	.has_template = true,
	.has_tools = true,
};

static int parse_with(const struct cairn_api_limits *l, const char *body, struct cairn_api_request *r,
		      struct cairn_api_error *e)
{
	char *text = cairn_json_text(body, NULL, body);
	int ret;

	*e = (struct cairn_api_error){ 0 };
	ret = text ? cairn_api_request_parse(CAIRN_API_CHAT, text, strlen(text), l, r, e) : -ENOMEM;
	/* the result must not point into the body */
	if (text)
		memset(text, 'x', strlen(text));
	free(text);
	return ret;
}

#define USER "{'role':'user','content':'a'}"
#define F(name) "{'type':'function','function':{'name':'" name "'}}"
#define BODY(members) "{'messages':[" USER "]," members "}"
#define TOOLS(tools) BODY("'tools':[" tools "]")
#define CALLS(calls) "{'messages':[" USER ",{'role':'assistant','tool_calls':[" calls "]}]}"

static const struct {
	const char *body, *param, *message;
} bad[] = {
	{ BODY("'tools':{}"), "tools", "an array" },
	{ TOOLS("5"), "tools[0]", "an object" },
	{ TOOLS("{'type':'web_search'}"), "tools[0]", "only {" },
	{ TOOLS("{'type':'function','name':'f'}"), "tools[0].function", "an object" },
	{ TOOLS("{'type':'function','function':5}"), "tools[0].function", "an object" },
	{ TOOLS("{'type':'function','function':{}}"), "tools[0].function.name", "missing" },
	{ TOOLS(F("")), "tools[0].function.name", "1 to 64" },
	{ TOOLS(F("a b")), "tools[0].function.name", "1 to 64" },
	{ TOOLS(F("<|im_end|>")), "tools[0].function.name", "1 to 64" },
	{ TOOLS(F("aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa")),
	  "tools[0].function.name", "1 to 64" },
	{ TOOLS(F("f") "," F("f")), "tools[1].function.name", "earlier" },
	{ TOOLS("{'type':'function','function':{'name':'f','x\\n':1}}"), "tools[0].function.x\\x0a",
	  "not supported" },
	{ TOOLS("{'type':'function','function':{'name':'f','parameters':[]}}"),
	  "tools[0].function.parameters", "an object" },
	{ TOOLS("{'type':'function','function':{'name':'f','strict':1}}"), "tools[0].function.strict",
	  "true" },
	{ BODY("'tool_choice':'often','tools':[" F("f") "]"), "tool_choice", "must be" },
	{ BODY("'tool_choice':{'type':'function'},'tools':[" F("f") "]"), "tool_choice", "must be" },
	{ BODY("'tool_choice':{'type':'function','function':{'name':'g'}},'tools':[" F("f") "]"),
	  "tool_choice", "not among tools" },
	{ BODY("'tool_choice':'required','tools':[]"), "tool_choice", "needs tools" },
	{ BODY("'tool_choice':'required','tools':[" F("f") "]"), "tool_choice",
	  "only \"auto\" and \"none\"" },
	{ BODY("'parallel_tool_calls':1,'tools':[" F("f") "]"), "parallel_tool_calls", "true or false" },
	{ BODY("'reasoning_effort':'much'"), "reasoning_effort", "must be none" },
	{ BODY("'reasoning_effort':'low'"), "reasoning_effort", "does not use it" },
	{ CALLS("5"), "messages[1].tool_calls[0]", "an object" },
	{ CALLS("{}"), "messages[1].tool_calls[0].function", "missing" },
	{ CALLS("{'function':[]}"), "messages[1].tool_calls[0].function", "an object" },
	{ CALLS("{'function':{'name':'f'}}"), "messages[1].tool_calls[0].function.arguments", "missing" },
	{ CALLS("{'function':{'arguments':''}}"), "messages[1].tool_calls[0].function.name", "missing" },
	{ CALLS("{'function':{'name':'f','arguments':{}}}"),
	  "messages[1].tool_calls[0].function.arguments", "a string" },
	{ CALLS("{'type':'custom','function':{'name':'f','arguments':''}}"),
	  "messages[1].tool_calls[0].type", "must be \"function\"" },
	{ CALLS("{'x':1}"), "messages[1].tool_calls[0].x", "not supported" },
	{ "{'messages':[{'role':'tool','content':'a','tool_calls':[{}]}]}", "messages[0].tool_calls",
	  "not supported" },
	{ "{'messages':[{'role':'user','content':'a','tool_call_id':'x'}]}", "messages[0].tool_call_id",
	  "not supported" },
	{ "{'messages':[{'role':'assistant','tool_calls':[]}]}", "messages[0].content", "is missing" },
	{ "{'messages':[{'role':'tool','tool_call_id':'x'}]}", "messages[0].content", "is missing" },
};

static void refused(struct cairn_test *t)
{
	struct cairn_api_limits without = limits;
	struct cairn_api_request r;
	struct cairn_api_error e;

	for (size_t i = 0; i < ARRAY_SIZE(bad); i++) {
		if (!EXPECT(t, parse_with(&limits, bad[i].body, &r, &e) < 0 && e.status == 400 &&
				       !strcmp(e.param, bad[i].param) &&
				       strstr(e.message, bad[i].message)))
			cairn_note(t, "%s: %s: %s", bad[i].body, e.param, e.message);
	}
	without.has_tools = false;
	EXPECT(t, parse_with(&without, TOOLS(F("f")), &r, &e) < 0 &&
			  strstr(e.message, "--tool-call-parser"));
}

static void accepted(struct cairn_test *t)
{
	struct cairn_api_limits with = limits;
	struct cairn_api_request r;
	struct cairn_api_error e;
	const json_t *f;

	if (EXPECT(t,
		   !parse_with(&limits,
			       BODY("'parallel_tool_calls':false,'tool_choice':'auto','tools':[{'type':"
				    "'function','function':{'strict':true,'name':'a-b_c.D','description':"
				    "null,'parameters':{'type':'object'}}}]"),
			       &r, &e))) {
		f = json_object_get(json_array_get(r.tools, 0), "function");
		EXPECT(t, json_object_size(f) == 2 && json_object_get(f, "parameters") &&
				  !r.parallel_tool_calls);
		EXPECT(t, !strcmp(json_string_value(json_object_get(f, "name")), "a-b_c.D"));
		cairn_api_request_free(&r);
	}
	if (EXPECT(t, !parse_with(&limits, BODY("'tools':[],'tool_choice':'auto'"), &r, &e))) {
		EXPECT(t, !r.tools && r.parallel_tool_calls && r.include_reasoning);
		cairn_api_request_free(&r);
	}
	with.has_grammar = with.takes_effort = true;
	if (EXPECT(t, !parse_with(&with,
				  BODY("'reasoning_effort':'low','chat_template_kwargs':{'k':1},"
				       "'include_reasoning':false,'tool_choice':{'type':'function',"
				       "'function':{'name':'f'}},'tools':[" F("f") "]"),
				  &r, &e))) {
		EXPECT(t, r.tool_choice == CAIRN_API_TOOL_NAMED && !strcmp(r.tool_name, "f"));
		EXPECT(t, json_object_size(r.template_args) == 2 && !r.include_reasoning);
		cairn_api_request_free(&r);
	}
}

/* Arguments become objects where they are objects; all of them can be turned into texts again. */
static void calls(struct cairn_test *t)
{
	static const char body[] =
		"{'messages':[" USER ",{'role':'assistant','content':null,'reasoning':'r','tool_calls':["
		"{'id':'1','type':'function','index':0,'function':{'name':'f','arguments':'{\\'a\\': "
		"1}'}},"
		"{'function':{'name':'g','arguments':'oops'}},{'function':{'name':'h','arguments':''}}]},"
		"{'role':'tool','tool_call_id':'1','name':'f','content':[{'type':'text','text':'42'}]}]}";
	struct cairn_api_request r;
	struct cairn_api_error e;
	const json_t *m, *list;

	if (!EXPECT(t, !parse_with(&limits, body, &r, &e))) {
		cairn_note(t, "%s", e.message);
		return;
	}
	m = json_array_get(r.messages, 1);
	list = json_object_get(m, "tool_calls");
#define ARGUMENTS(i) json_object_get(json_object_get(json_array_get(list, i), "function"), "arguments")
	EXPECT(t, json_is_null(json_object_get(m, "content")) && json_object_get(m, "reasoning_content"));
	EXPECT(t, json_array_size(list) == 3 && json_is_object(ARGUMENTS(0)) &&
			  json_is_string(ARGUMENTS(1)));
	EXPECT(t, json_is_object(ARGUMENTS(2)) && !json_object_size(ARGUMENTS(2)));
	EXPECT(t, cairn_api_arguments_as_text(&r) == 2 && cairn_api_arguments_as_text(&r) == 0);
	EXPECT(t, !strcmp(json_string_value(ARGUMENTS(0)), "{\"a\": 1}"));
	m = json_array_get(r.messages, 2);
	EXPECT(t, !strcmp(json_string_value(json_object_get(m, "role")), "tool") &&
			  !strcmp(json_string_value(json_object_get(m, "content")), "42"));
	cairn_api_request_free(&r);
}

#define CHECK_JSON(t, v, json)                                                                           \
	do {                                                                                             \
		char *want_ = cairn_json_text(json, NULL, json);                                         \
		json_t *w_ = json_loads(want_, 0, NULL);                                                 \
		if (!EXPECT(t, w_ && json_equal(v, w_)))                                                 \
			cairn_note(t, "want %s", want_);                                                 \
		json_decref(w_);                                                                         \
		free(want_);                                                                             \
	} while (0)

/* Writes a body and chunks with reasoning and calls, and reads them as a client does. */
static void answers(struct cairn_test *t)
{
	const struct cairn_api_call whole = { 0, "call_1", "f", 1, "{\"a\": \"\n\"}", 10 };
	const struct cairn_api_call more = { .index = 1, .arguments = "{}", .num_arguments = 2 };
	struct cairn_api_choice c = { .text = "",
				      .stop_id = -1,
				      .reasoning = "r",
				      .num_reasoning = 1,
				      .calls = &whole,
				      .num_calls = 1,
				      .finish = CAIRN_API_CALLS };
	struct cairn_api_request req = request(CAIRN_API_CHAT, false);
	struct cairn_api_out out = { 0 };
	struct cairn_api_answer a;
	size_t at = 0;
	bool done;
	json_t *v, *choice;

	if (!EXPECT(t, !cairn_api_answer_init(&a, &req, "id", 1)))
		return;
	cairn_api_body(&out, &a, &c, 1, &(struct cairn_api_usage){ 0 });
	v = read_json(t, out.s, out.len);
	choice = json_array_get(json_object_get(v, "choices"), 0);
	CHECK_JSON(t, json_object_get(choice, "message"),
		   "{'role':'assistant','refusal':null,'content':null,'reasoning':'r','reasoning_content'"
		   ":'r',"
		   "'tool_calls':[{'id':'call_1','type':'function','function':{'name':'f','arguments':"
		   "'{\\'a\\': \\'\\n\\'}'}}]}");
	EXPECT(t, !strcmp(json_string_value(json_object_get(choice, "finish_reason")), "tool_calls"));
	EXPECT(t, json_is_null(json_object_get(choice, "stop_reason")));
	json_decref(v);
	out.len = 0;
	c.finish = CAIRN_API_GOES_ON;
	c.num_calls = 0;
	cairn_api_chunk(&out, &a, &c, true, NULL);
	c.num_reasoning = 0;
	c.num_calls = 1;
	cairn_api_chunk(&out, &a, &c, false, NULL);
	c.calls = &more;
	cairn_api_chunk(&out, &a, &c, false, NULL);
	cairn_api_chunk(&out, &a, &c, true, NULL);
	for (int i = 0; i < 4; i++) {
		static const char *const want[] = {
			"{'role':'assistant','content':null,'reasoning':'r','reasoning_content':'r'}",
			"{'tool_calls':[{'index':0,'id':'call_1','type':'function','function':{'name':'f'"
			","
			"'arguments':'{\\'a\\': \\'\\n\\'}'}}]}",
			"{'tool_calls':[{'index':1,'function':{'arguments':'{}'}}]}",
			"{'role':'assistant','content':null,'tool_calls':[{'index':1,'function':{'"
			"arguments':'{}'}}]}",
		};

		v = next_event(t, &out, &at, &done);
		CHECK_JSON(t, json_object_get(json_array_get(json_object_get(v, "choices"), 0), "delta"),
			   want[i]);
		json_decref(v);
	}
	cairn_api_answer_free(&a);
	cairn_api_out_free(&out);
}

static const struct cairn_unit units[] = {
	{ "refused", refused },
	{ "accepted", accepted },
	{ "calls", calls },
	{ "answers", answers },
};

const struct cairn_family cairn_api_tools_family = {
	.stage = "serving",
	.name = "api_tools",
	.units = units,
	.num_units = ARRAY_SIZE(units),
};
