// SPDX-License-Identifier: Apache-2.0
/*
 * api_responses - turns the body of /v1/responses into that of a chat
 *
 * The server keeps no answers, so every request brings its whole conversation: previous_response_id,
 * conversation, background and store true are refused by name. Items of the input become messages;
 * reasoning and calls join the assistant's message that they belong to.
 *
 * Errors name the members that the client has sent. So a member that a chat has under another name, or in
 * another member, goes to the function that parses the chat's with the name and index that it has here.
 */
#include <stdio.h>
#include <string.h>

#include "primitives/base/error.h"
#include "serving/api/api_request_impl.h"

struct convert {
	struct parse *p;
	json_t *chat;
	json_t *messages, *places; /* places: the member that each message comes from, "input[2]" */
	json_t *reasoning;	   /* text of a reasoning item that waits for its message; or NULL */
	char where[48];		   /* the place that is being converted */
};

static int no_memory_if(struct convert *c, int failed)
{
	return failed ? cairn_api_no_memory(c->p) : 0;
}

static int unsupported(struct convert *c, const char *param, const char *what)
{
	return cairn_api_refuse(c->p->error, 400, "unsupported_parameter", param, "%s is not supported%s",
				param, what);
}

/* Copies the texts of a content or output, whose parts have other types than a chat's. */
static int convert_content(struct convert *c, const char *name, json_t *from, json_t **to)
{
	json_t *part, *copy;
	char where[96], param[96];
	size_t i;

	cairn_api_member(where, c->where, name);
	*to = NULL;
	if (!json_is_array(from)) {
		*to = json_incref(from);
		return 0;
	}
	*to = json_array();
	json_array_foreach (from, i, part) {
		const char *type = json_string_value(json_object_get(part, "type"));

		snprintf(param, sizeof(param), "%.60s[%zu]", where, i);
		if (!type ||
		    (strcmp(type, "input_text") && strcmp(type, "output_text") && strcmp(type, "text")))
			return unsupported(c, param, ": only the types input_text and output_text are");
		if (!json_is_string(json_object_get(part, "text")))
			return cairn_api_invalid(c->p, param, "must have a text");
		copy = json_pack("{s:s,s:O}", "type", "text", "text", json_object_get(part, "text"));
		CAIRN_TRY(no_memory_if(c, !copy || json_array_append_new(*to, copy)));
	}
	return 0;
}

/*
 * Appends a message of this role and returns it; NULL: no memory. content may be NULL. A message of the
 * assistant takes the reasoning that waits for it.
 */
static json_t *add_message(struct convert *c, const char *role, json_t *content)
{
	json_t *message = json_pack("{s:s,s:O*}", "role", role, "content", content);
	int failed = json_array_append_new(c->messages, message) ||
		     json_array_append_new(c->places, json_string(c->where));

	if (c->reasoning && !strcmp(role, "assistant")) {
		failed |= json_object_set_new(message, "reasoning_content", c->reasoning);
		c->reasoning = NULL;
	}
	return failed ? NULL : message;
}

/* A text that the item must have. */
static int need_text(struct convert *c, json_t *item, const char *name, json_t **text)
{
	char param[96];

	cairn_api_member(param, c->where, name);
	*text = json_object_get(item, name);
	return json_is_string(*text) ? 0 : cairn_api_invalid(c->p, param, "must be a string");
}

static int convert_message(struct convert *c, json_t *item)
{
	json_t *role, *content;
	int ret;

	CAIRN_TRY(need_text(c, item, "role", &role));
	ret = convert_content(c, "content", json_object_get(item, "content"), &content);
	if (!ret)
		ret = no_memory_if(c, !add_message(c, json_string_value(role), content));
	json_decref(content);
	return ret;
}

/* A call joins the assistant's message before it, unless reasoning comes between them. */
static int convert_call(struct convert *c, json_t *item)
{
	json_t *message = json_array_get(c->messages, json_array_size(c->messages) - 1);
	json_t *id, *name, *arguments, *calls, *call;
	const char *role = json_string_value(json_object_get(message, "role"));

	CAIRN_TRY(need_text(c, item, "call_id", &id));
	CAIRN_TRY(need_text(c, item, "name", &name));
	CAIRN_TRY(need_text(c, item, "arguments", &arguments));
	if (!role || strcmp(role, "assistant") || c->reasoning)
		message = add_message(c, "assistant", NULL);
	calls = json_object_get(message, "tool_calls");
	if (message && !calls) {
		calls = json_array();
		CAIRN_TRY(no_memory_if(c, json_object_set_new(message, "tool_calls", calls)));
	}
	if (json_array_size(calls) == CAIRN_API_MAX_TOOLS)
		return cairn_api_refuse(c->p->error, 400, "invalid_value", c->where,
					"%s: at most %d calls in a row are accepted", c->where,
					CAIRN_API_MAX_TOOLS);
	call = json_pack("{s:O,s:s,s:{s:O,s:O}}", "id", id, "type", "function", "function", "name", name,
			 "arguments", arguments);
	return no_memory_if(c, !message || !call || json_array_append_new(calls, call));
}

static int convert_result(struct convert *c, json_t *item)
{
	json_t *id, *output = json_object_get(item, "output"), *content, *message;
	char param[96];
	int ret;

	CAIRN_TRY(need_text(c, item, "call_id", &id));
	cairn_api_member(param, c->where, "output");
	if (!json_is_string(output) && !json_array_size(output))
		return cairn_api_invalid(c->p, param, "must be a string or a list of texts");
	ret = convert_content(c, "output", output, &content);
	if (!ret) {
		message = add_message(c, "tool", content);
		ret = no_memory_if(c, !message || json_object_set(message, "tool_call_id", id));
	}
	json_decref(content);
	return ret;
}

/* Keeps the text of a reasoning item; one without text, which other servers encrypt, says nothing here.
 */
static int convert_reasoning(struct convert *c, json_t *item)
{
	const json_t *text = json_object_get(json_array_get(json_object_get(item, "content"), 0), "text");

	if (!json_string_length(text))
		return 0;
	json_decref(c->reasoning);
	c->reasoning = json_copy((json_t *)text);
	return no_memory_if(c, !c->reasoning);
}

static int convert_item(struct convert *c, size_t i, json_t *item)
{
	const char *type = json_string_value(json_object_get(item, "type"));
	char param[96];

	snprintf(c->where, sizeof(c->where), "input[%zu]", i);
	if (!json_is_object(item))
		return cairn_api_wrong_type(c->p, c->where, "an object", item);
	if (!type || !strcmp(type, "message"))
		return convert_message(c, item);
	if (!strcmp(type, "function_call"))
		return convert_call(c, item);
	if (!strcmp(type, "function_call_output"))
		return convert_result(c, item);
	if (!strcmp(type, "reasoning"))
		return convert_reasoning(c, item);
	cairn_api_member(param, c->where, "type");
	return unsupported(c, param,
			   ": only message, function_call, function_call_output and reasoning are");
}

static int convert_input(struct convert *c, json_t *input)
{
	json_t *item;
	size_t i;

	if (json_is_string(input)) {
		strcpy(c->where, "input");
		return no_memory_if(c, !add_message(c, "user", input));
	}
	if (!json_is_array(input))
		return cairn_api_wrong_type(c->p, "input", "a string or a list of items", input);
	json_array_foreach (input, i, item)
		CAIRN_TRY(convert_item(c, i, item));
	return 0;
}

/* Copies an object without its type, which a chat has one level higher than the other members. */
static json_t *without_type(json_t *flat)
{
	json_t *copy = json_copy(flat);

	json_object_del(copy, "type");
	return copy;
}

static int convert_tools(struct convert *c, const char *name, json_t *tools)
{
	json_t *tool, *function;
	char param[48];
	size_t i;
	int ret;

	CAIRN_TRY(cairn_api_check_tools(c->p, name, tools));
	json_array_foreach (tools, i, tool) {
		const char *type = json_string_value(json_object_get(tool, "type"));

		snprintf(param, sizeof(param), "%s[%zu]", name, i);
		if (!type || strcmp(type, "function"))
			return unsupported(c, param, ": only the type function is");
		function = without_type(tool);
		ret = function ? cairn_api_add_tool(c->p, param, function) : cairn_api_no_memory(c->p);
		json_decref(function);
		CAIRN_TRY(ret);
	}
	return 0;
}

static int convert_text(struct convert *c, const char *name, json_t *text)
{
	json_t *format = json_object_get(text, "format"), *schema;
	const char *type = json_string_value(json_object_get(format, "type")), *key;
	json_t *value;
	int ret;

	if (!json_is_object(text))
		return cairn_api_wrong_type(c->p, name, "an object", text);
	json_object_foreach (text, key, value) {
		if (strcmp(key, "format") && !json_is_null(value) &&
		    (strcmp(key, "verbosity") ||
		     strcmp(json_string_value(value) ? json_string_value(value) : "", "medium")))
			return unsupported(c, "text", ": only text.format is");
	}
	if (!format || json_is_null(format) || (type && !strcmp(type, "text")))
		return 0;
	if (!type || strcmp(type, "json_schema"))
		return cairn_api_take_response_format(c->p, "text.format", format);
	schema = without_type(format);
	ret = schema ? cairn_api_take_schema(c->p, "text.format", "text.format.schema", schema)
		     : cairn_api_no_memory(c->p);
	json_decref(schema);
	return ret;
}

static int convert_reason(struct convert *c, json_t *value)
{
	json_t *effort = json_object_get(value, "effort");

	if (!json_is_object(value))
		return cairn_api_wrong_type(c->p, "reasoning", "an object", value);
	/* a summary of the reasoning is optional: the reasoning itself is sent */
	return effort && !json_is_null(effort) ? cairn_api_take_effort(c->p, "reasoning.effort", effort) : 0;
}

/* {"type": "function", "name"} becomes {"type": "function", "function": {"name"}}. */
static int convert_choice(struct convert *c, json_t *value)
{
	json_t *copy = json_is_object(value) ? json_pack("{s:s,s:o}", "type", "function", "function",
							 without_type(value))
					     : json_incref(value);

	return no_memory_if(c, !copy || json_object_set_new(c->chat, "tool_choice", copy));
}

static int convert_limit(struct convert *c, const char *name, json_t *value)
{
	int64_t max;

	if (!cairn_api_integer(value, &max))
		return cairn_api_wrong_type(c->p, name, "an integer", value);
	if (max < 1 || max > INT32_MAX)
		return cairn_api_refuse(c->p->error, 400, "invalid_value", name,
					"%s must be 1 to %d, is %lld", name, INT32_MAX, (long long)max);
	c->p->req->max_tokens = max;
	return 0;
}

/* Members that ask for nothing with this value, as JSON text; null always does. */
static int neutral(struct convert *c, const char *name, const json_t *value)
{
	static const char *const members[][2] = {
		{ "previous_response_id", "" },
		{ "conversation", "" },
		{ "prompt", "" },
		{ "max_tool_calls", "" },
		{ "background", "false" },
		{ "store", "false" },
		{ "truncation", "\"disabled\"" },
		{ "include", "[]" },
		{ "include", "[\"reasoning.encrypted_content\"]" },
	};
	bool known = false;

	for (size_t i = 0; i < sizeof(members) / sizeof(*members); i++) {
		json_t *want;
		bool same;

		if (strcmp(members[i][0], name))
			continue;
		known = true;
		want = json_loads(members[i][1], JSON_DECODE_ANY, NULL);
		same = want && json_equal(want, value);
		json_decref(want);
		if (same)
			return 0;
	}
	return known ? unsupported(c, name, ": the server keeps no answers") : 1;
}

static int convert_member(struct convert *c, const char *name, json_t *value)
{
	static const char *const same[] = { "model",
					    "temperature",
					    "top_p",
					    "stream",
					    "user",
					    "metadata",
					    "seed",
					    "top_k",
					    "min_p",
					    "parallel_tool_calls",
					    "service_tier",
					    "prompt_cache_key",
					    "safety_identifier",
					    "stream_options",
					    "cache_salt",
					    "chat_template_kwargs",
					    "repetition_penalty",
					    "include_reasoning",
					    "presence_penalty",
					    "frequency_penalty",
					    "prompt_cache_retention" };
	int ret;

	if (json_is_null(value) || !strcmp(name, "input") || !strcmp(name, "instructions"))
		return 0;
	if (!strcmp(name, "tools"))
		return convert_tools(c, name, value);
	if (!strcmp(name, "text"))
		return convert_text(c, name, value);
	if (!strcmp(name, "reasoning"))
		return convert_reason(c, value);
	if (!strcmp(name, "tool_choice"))
		return convert_choice(c, value);
	if (!strcmp(name, "max_output_tokens"))
		return convert_limit(c, name, value);
	if (!strcmp(name, "top_logprobs") && json_is_integer(value) && !json_integer_value(value))
		return 0;
	for (size_t i = 0; i < sizeof(same) / sizeof(*same); i++) {
		if (!strcmp(name, same[i]))
			return no_memory_if(c, json_object_set(c->chat, name, value));
	}
	ret = neutral(c, name, value);
	return ret <= 0 ? ret
			: cairn_api_refuse(c->p->error, 400, "unknown_parameter", name,
					   "%.80s is not a parameter of this endpoint", name);
}

static int convert_all(struct convert *c)
{
	json_t *given = c->p->req->given, *value, *instructions = json_object_get(given, "instructions");
	const char *name;
	size_t i;

	if (!c->chat || !c->messages || !c->places)
		return cairn_api_no_memory(c->p);
	json_object_foreach (given, name, value)
		CAIRN_TRY(convert_member(c, name, value));
	if (instructions && !json_is_null(instructions)) {
		strcpy(c->where, "instructions");
		if (!json_is_string(instructions))
			return cairn_api_wrong_type(c->p, c->where, "a string", instructions);
		CAIRN_TRY(no_memory_if(c, !add_message(c, "system", instructions)));
	}
	if (!json_object_get(given, "input"))
		return cairn_api_refuse(c->p->error, 400, "missing_parameter", "input",
					"input is missing");
	CAIRN_TRY(convert_input(c, json_object_get(given, "input")));
	CAIRN_TRY(cairn_api_check_messages(c->p, "input", c->messages));
	json_array_foreach (c->messages, i, value) {
		const char *where = json_string_value(json_array_get(c->places, i));

		CAIRN_TRY(cairn_api_add_message(c->p, where, value));
	}
	return 0;
}

int cairn_api_convert_responses(struct parse *p)
{
	struct convert c = {
		.p = p, .chat = json_object(), .messages = json_array(), .places = json_array()
	};
	int ret;

	p->req->given = p->req->root;
	p->req->root = c.chat;
	ret = convert_all(&c);
	json_decref(c.reasoning);
	json_decref(c.messages);
	json_decref(c.places);
	return ret;
}
