// SPDX-License-Identifier: Apache-2.0
/* api_responses_test - bodies of /v1/responses and the events of its answers; the JSON here uses ' for "
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "conformance/harness.h"
#include "serving/api/api_items.h"
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
	.has_grammar = true,
};

static int parse(const char *body, struct cairn_api_request *r, struct cairn_api_error *e)
{
	char *text = cairn_json_text(body, NULL, body);
	int ret;

	*e = (struct cairn_api_error){ 0 };
	ret = text ? cairn_api_request_parse(CAIRN_API_RESPONSES, text, strlen(text), &limits, r, e)
		   : -ENOMEM;
	free(text);
	return ret;
}

#define IN(items) "{'input':[" items "]}"
#define WITH(member) "{'input':'a'," member "}"
#define CALL "{'type':'function_call','name':'f','call_id':'c','arguments':'{}'}"
#define AFTER_CALL(item) "'input':[{'type':'reasoning','content':[{'text':'hm'}]}," CALL "," CALL \
	",{'type':'function_call_output','call_id':'c','output':'x'}," item "]}"

static const struct {
	const char *body, *param, *message;
} bad[] = {
	{ "{}", "input", "missing" },
	{ "{'input':5}", "input", "a string or a list" },
	{ IN("5"), "input[0]", "an object" },
	{ IN("{'type':'item_reference','id':'x'}"), "input[0].type", "not supported" },
	{ IN("{'role':'user','content':[{'type':'input_image'}]}"), "input[0].content[0]", "input_text" },
	{ IN("{'role':'user','content':[{'type':'input_text'}]}"), "input[0].content[0]",
	  "must have a text" },
	{ IN("{'type':'function_call','name':'f','arguments':'{}'}"), "input[0].call_id",
	  "must be a string" },
	{ IN("{'type':'function_call','name':'f','call_id':'c','arguments':{}}"), "input[0].arguments",
	  "a string" },
	{ IN("{'type':'function_call_output','output':'x'}"), "input[0].call_id", "must be a string" },
	{ IN("{'type':'function_call_output','call_id':'c'}"), "input[0].output", "a string or a list" },
	{ IN("{'type':'function_call_output','call_id':'c','output':[]}"), "input[0].output",
	  "a string or a list" },
	{ IN(""), "input", "1 to" },
	/* an error of a message names the item that it comes from: reasoning and calls join another one's */
	{ "{'instructions':'s'," AFTER_CALL("{'role':'bogus','content':'x'}"), "input[4].role",
	  "must be system" },
	{ "{" AFTER_CALL("{'role':5,'content':'x'}"), "input[4].role", "must be a string" },
	{ "{" AFTER_CALL("{'role':'user','content':[]}"), "input[4].content", "is empty" },
	{ "{" AFTER_CALL("{'role':'user','content':5}"), "input[4].content", "must be a string" },
	{ "{" AFTER_CALL("{'role':'user'}"), "input[4].content", "is missing" },
	{ "{" AFTER_CALL("{'content':'x'}"), "input[4].role", "must be a string" },
	{ "{" AFTER_CALL("{'role':'assistant'},{'role':'assistant','content':5}"), "input[4].content",
	  "is missing" },
	{ WITH("'instructions':5"), "instructions", "a string" },
	{ WITH("'previous_response_id':'resp_1'"), "previous_response_id", "keeps no answers" },
	{ WITH("'conversation':'c'"), "conversation", "keeps no answers" },
	{ WITH("'store':true"), "store", "keeps no answers" },
	{ WITH("'background':true"), "background", "not supported" },
	{ WITH("'truncation':'auto'"), "truncation", "not supported" },
	{ WITH("'include':['message.output_text.logprobs']"), "include", "not supported" },
	{ WITH("'tools':[{'type':'web_search'}]"), "tools[0]", "only the type function" },
	{ WITH("'tools':[5]"), "tools[0]", "only the type function" },
	{ WITH("'tools':5"), "tools", "an array" },
	{ WITH("'text':5"), "text", "an object" },
	{ WITH("'text':{'x':1}"), "text", "only text.format" },
	{ WITH("'tools':[{'type':'function','name':'a b'}]"), "tools[0].name", "1 to 64 letters" },
	{ WITH("'tools':[{'type':'function','name':'a','x':1}]"), "tools[0].x", "is not supported" },
	{ WITH("'tools':[{'type':'function'}]"), "tools[0].name", "is missing" },
	{ WITH("'tool_choice':{'type':'function','name':'f'}"), "tool_choice", "needs tools" },
	{ WITH("'text':{'format':5}"), "text.format", "an object" },
	{ WITH("'text':{'format':{}}"), "text.format.type", "is missing" },
	{ WITH("'text':{'format':{'type':'x'}}"), "text.format.type", "must be text" },
	{ WITH("'text':{'format':{'type':'json_object','x':1}}"), "text.format.x", "is not supported" },
	{ WITH("'text':{'format':{'type':'json_schema','name':'n'}}"), "text.format.schema", "is missing" },
	{ WITH("'text':{'format':{'type':'json_schema','name':5}}"), "text.format.name", "a string" },
	{ WITH("'text':{'format':{'type':'json_schema','strict':5}}"), "text.format.strict", "true or" },
	{ WITH("'text':{'format':{'type':'json_schema','schema':5}}"), "text.format.schema", "an object" },
	{ WITH("'text':{'format':{'type':'json_schema','schema':{},'x':1}}"), "text.format.x",
	  "is not supported" },
	{ WITH("'tools':[{'type':'function','name':'f'}],'tool_choice':'required','text':{'format':{'type':"
	       "'json_schema','schema':{}}}"),
	  "tool_choice", "together with text.format.schema" },
	{ WITH("'reasoning':5"), "reasoning", "an object" },
	{ WITH("'reasoning':{'effort':5}"), "reasoning.effort", "a string" },
	{ WITH("'reasoning':{'effort':'much'}"), "reasoning.effort", "must be none" },
	{ WITH("'reasoning':{'effort':'high'}"), "reasoning.effort", "is not supported" },
	{ WITH("'max_output_tokens':'7'"), "max_output_tokens", "an integer" },
	{ WITH("'max_output_tokens':-1"), "max_output_tokens", "must be 1 to 2147483647, is -1" },
	{ WITH("'max_output_tokens':0"), "max_output_tokens", "must be 1 to 2147483647, is 0" },
	{ WITH("'messages':[]"), "messages", "not a parameter" },
	{ WITH("'n':2"), "n", "not a parameter" },
	{ WITH("'top_logprobs':2"), "top_logprobs", "not a parameter" },
	{ WITH("'temperature':9"), "temperature", "at most 2" },
};

/* The names that a chat has for members of other names here; no message may have them. */
static bool names_chat(const char *message)
{
	static const char *const names[] = { "messages", "max_completion_tokens", "reasoning_effort",
					     "response_format", "function.", "echo" };

	for (size_t i = 0; i < ARRAY_SIZE(names); i++) {
		if (strstr(message, names[i]))
			return true;
	}
	return false;
}

static void refused(struct cairn_test *t)
{
	struct cairn_api_request r;
	struct cairn_api_error e;

	for (size_t i = 0; i < ARRAY_SIZE(bad); i++) {
		bool own = strstr(bad[i].body, "'messages'"); /* the client has sent that name */

		if (!EXPECT(t, parse(bad[i].body, &r, &e) < 0 && e.status == 400 &&
				       !strcmp(e.param, bad[i].param) &&
				       strstr(e.message, bad[i].message) && (own || !names_chat(e.message))))
			cairn_note(t, "%s: %s: %s", bad[i].body, e.param, e.message);
	}
}

/* What is wrong with the prompt as a whole is wrong with the input. */
static void too_long(struct cairn_test *t)
{
	struct cairn_api_limits bare = limits;
	struct cairn_api_request r;
	struct cairn_api_error e;
	int32_t max_tokens;

	if (!EXPECT(t, !parse(WITH("'max_output_tokens':4000"), &r, &e)))
		return;
	EXPECT(t, cairn_api_fit(&r, &limits, 0, &max_tokens, &e) < 0 && !strcmp(e.param, "input"));
	EXPECT(t, cairn_api_fit(&r, &limits, 97, &max_tokens, &e) < 0 && !strcmp(e.param, "input"));
	EXPECT_CONTAINS(t, e.message, "97 tokens of input and 4000 to be generated");
	cairn_api_request_free(&r);
	bare.has_template = false;
	EXPECT(t, cairn_api_request_parse(CAIRN_API_RESPONSES, "{\"input\":\"a\"}", 13, &bare, &r, &e) < 0 &&
			  !strcmp(e.code, "no_chat_template") && !strcmp(e.param, "input"));
}

/* One call more in a row than a message may have; the item at fault is the last one. */
static void many_calls(struct cairn_test *t)
{
	char body[(CAIRN_API_MAX_TOOLS + 1) * sizeof(CALL ",") + 32];
	struct cairn_api_request r;
	struct cairn_api_error e;
	size_t n = 0;

	n += (size_t)sprintf(body, "{'input':[");
	for (int i = 0; i <= CAIRN_API_MAX_TOOLS; i++)
		n += (size_t)sprintf(body + n, "%s" CALL, i ? "," : "");
	sprintf(body + n, "]}");
	EXPECT(t, parse(body, &r, &e) < 0 && !strcmp(e.param, "input[128]"));
	EXPECT_CONTAINS(t, e.message, "at most 128");
}

/* Items become messages: reasoning, text and calls of the assistant join in one. */
static void conversation(struct cairn_test *t)
{
	static const char body[] =
		"{'instructions':'Help.','store':false,'max_output_tokens':7,'stream':true,'tool_choice':"
		"{'type':"
		"'function','name':'f'},'tools':[{'type':'function','name':'f','strict':true}],'text':{'"
		"format':"
		"{'type':'text'}},'input':[{'role':'user','content':[{'type':'input_text','text':'hi'}]},"
		"{'type':'reasoning','id':'rs','summary':[],'content':[{'type':'reasoning_text','text':'"
		"hm'}]},"
		"{'type':'message','role':'assistant','id':'m','status':'completed','content':[{'type':"
		"'output_text','text':'so','annotations':[]}]},{'type':'function_call','id':'fc','call_"
		"id':'c1',"
		"'name':'f','arguments':'{}'},{'type':'function_call','call_id':'c2','name':'f','"
		"arguments':'{}'},"
		"{'type':'function_call_output','call_id':'c1','output':'1'},{'type':'function_call_"
		"output',"
		"'call_id':'c2','output':[{'type':'input_text','text':'2'}]},{'type':'reasoning','"
		"summary':[],"
		"'encrypted_content':'x'},{'role':'assistant','content':'a'},{'role':'assistant','"
		"content':'b'}]}";
	static const char want[] =
		"[{'role':'system','content':'Help.'},{'role':'user','content':'hi'},{'role':'assistant',"
		"'reasoning_content':'hm','content':'so','tool_calls':[{'id':'c1','type':'function','"
		"function':"
		"{'name':'f','arguments':{}}},{'id':'c2','type':'function','function':{'name':'f','"
		"arguments':{}}}]},"
		"{'role':'tool','tool_call_id':'c1','content':'1'},{'role':'tool','tool_call_id':'c2','"
		"content':'2'},"
		"{'role':'assistant','content':'a'},{'role':'assistant','content':'b'}]";
	char *text = cairn_json_text(want, NULL, want), *got;
	json_t *wanted = json_loads(text, 0, NULL);
	struct cairn_api_request r;
	struct cairn_api_error e;

	if (EXPECT(t, !parse(body, &r, &e))) {
		if (!EXPECT(t, json_equal(wanted, r.messages))) {
			got = json_dumps(r.messages, 0);
			cairn_note(t, "%s", got);
			free(got);
		}
		EXPECT(t, r.kind == CAIRN_API_CHAT && r.given && r.stream && r.max_tokens == 7);
		EXPECT(t, r.tool_choice == CAIRN_API_TOOL_NAMED && !strcmp(r.tool_name, "f"));
		cairn_api_request_free(&r);
	} else {
		cairn_note(t, "%s: %s", e.param, e.message);
	}
	if (EXPECT(t, !parse(WITH("'text':{'format':{'type':'json_schema','name':'n','schema':{'type':'"
				  "object'}}}"),
			     &r, &e))) {
		EXPECT(t,
		       r.constraint.kind == CAIRN_CONSTRAINT_JSON && strstr(r.constraint.text, "object"));
		cairn_api_request_free(&r);
	}
	json_decref(wanted);
	free(text);
}

/* Writes reasoning, text in two parts and a call; parts: also as a stream. */
static void write_answer(struct cairn_api_items *it, enum cairn_api_finish finish)
{
	const struct cairn_api_call begin = { 0, "call_1", "f", 1, "", 0 };
	const struct cairn_api_call more = { .arguments = "{\"a\": 1}", .num_arguments = 8 };

	cairn_api_items_add(
		it, &(struct cairn_api_choice){ .text = "", .reasoning = "hm", .num_reasoning = 2 });
	cairn_api_items_add(it, &(struct cairn_api_choice){ .text = "so ", .num_bytes = 3 });
	cairn_api_items_add(it, &(struct cairn_api_choice){ .text = "\xff", .num_bytes = 1 });
	cairn_api_items_add(it,
			    &(struct cairn_api_choice){ .text = "", .calls = &begin, .num_calls = 1 });
	cairn_api_items_add(it, &(struct cairn_api_choice){ .text = "", .calls = &more, .num_calls = 1 });
	cairn_api_items_end(it, finish, &(struct cairn_api_usage){ 5, 7, 1, 3 });
}

static const char *string_of(const json_t *v, const char *name)
{
	const char *s = json_string_value(json_object_get(v, name));

	return s ? s : "";
}

static void events(struct cairn_test *t)
{
	static const char *const types[] = {
		"response.created",
		"response.in_progress",
		"response.output_item.added",
		"response.content_part.added",
		"response.reasoning_text.delta",
		"response.reasoning_text.done",
		"response.content_part.done",
		"response.output_item.done",
		"response.output_item.added",
		"response.content_part.added",
		"response.output_text.delta",
		"response.output_text.delta",
		"response.output_text.done",
		"response.content_part.done",
		"response.output_item.done",
		"response.output_item.added",
		"response.function_call_arguments.delta",
		"response.function_call_arguments.done",
		"response.output_item.done",
		"response.completed",
	};
	struct cairn_api_items it, whole;
	struct cairn_api_request r;
	struct cairn_api_error e;
	json_t *v, *body = NULL, *last = NULL;
	char *p;

	if (!EXPECT(t, !parse(WITH("'stream':true,'metadata':{'k':'v'}"), &r, &e)))
		return;
	cairn_api_items_begin(&it, &r, "resp_1", 9);
	r.stream = false;
	cairn_api_items_begin(&whole, &r, "resp_1", 9);
	write_answer(&it, CAIRN_API_CALLS);
	write_answer(&whole, CAIRN_API_CALLS);
	EXPECT(t, !cairn_api_items_failed(&it) && !cairn_api_items_failed(&whole));
	p = it.out.s;
	for (size_t i = 0; i < ARRAY_SIZE(types); i++) {
		char *end = strstr(p, "\n\n"), *data = strstr(p, "\ndata: ");

		if (!EXPECT(t, end && data && data < end && !strncmp(p, "event: ", 7)))
			break;
		EXPECT(t,
		       !strncmp(p + 7, types[i], strlen(types[i])) && p + 7 + strlen(types[i]) == data);
		v = read_json(t, data + 7, (size_t)(end - data) - 7);
		EXPECT(t, !strcmp(string_of(v, "type"), types[i]) &&
				  json_integer_value(json_object_get(v, "sequence_number")) ==
					  (json_int_t)i);
		json_decref(last);
		last = v;
		p = end + 2;
	}
	EXPECT(t, !*p);
	/* the final response of the stream is the whole answer */
	body = read_json(t, whole.out.s, whole.out.len);
	EXPECT(t, json_equal(body, json_object_get(last, "response")));
	v = json_object_get(body, "usage");
	EXPECT(t, json_integer_value(json_object_get(v, "output_tokens")) == 7 &&
			  json_integer_value(json_object_get(json_object_get(v, "output_tokens_details"),
							     "reasoning_tokens")) == 3);
	v = json_object_get(body, "output");
	EXPECT(t, json_array_size(v) == 3 && !strcmp(string_of(json_array_get(v, 0), "id"), "rs_1_0") &&
			  !strcmp(string_of(json_array_get(v, 1), "id"), "msg_1_1") &&
			  !strcmp(string_of(json_array_get(v, 2), "call_id"), "call_1"));
	EXPECT(t, !strcmp(string_of(json_array_get(json_object_get(json_array_get(v, 1), "content"), 0),
				    "text"),
			  "so \xef\xbf\xbd"));
	EXPECT(t, !strcmp(string_of(json_array_get(v, 2), "arguments"), "{\"a\": 1}") &&
			  !strcmp(string_of(json_object_get(body, "metadata"), "k"), "v"));
	json_decref(last);
	json_decref(body);
	cairn_api_items_free(&it);
	cairn_api_items_free(&whole);
	/* an answer that is cut, and one without any text */
	cairn_api_items_begin(&whole, &r, "resp_1", 9);
	write_answer(&whole, CAIRN_API_LENGTH);
	EXPECT_CONTAINS(
		t, whole.out.s,
		"\"status\":\"incomplete\",\"incomplete_details\":{\"reason\":\"max_output_tokens\"}");
	cairn_api_items_free(&whole);
	cairn_api_items_begin(&whole, &r, "resp_1", 9);
	cairn_api_items_end(&whole, CAIRN_API_STOP, &(struct cairn_api_usage){ 0 });
	EXPECT_CONTAINS(t, whole.out.s, "\"output\":[]");
	cairn_api_items_free(&whole);
	cairn_api_request_free(&r);
}

static const struct cairn_unit units[] = {
	{ "refused", refused },
	{ "too_long", too_long },
	{ "many_calls", many_calls },
	{ "conversation", conversation },
	{ "events", events },
};

const struct cairn_family cairn_api_responses_family = {
	.stage = "serving",
	.name = "api_responses",
	.units = units,
	.num_units = ARRAY_SIZE(units),
};
