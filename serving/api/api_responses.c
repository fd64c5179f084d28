// SPDX-License-Identifier: Apache-2.0
/*
 * api_responses - turns the body of /v1/responses into that of a chat
 *
 * The server keeps no answers, so every request brings its whole conversation: previous_response_id,
 * conversation, background and store true are refused by name. Items of the input become messages;
 * reasoning and calls join the assistant's message that they belong to.
 */
#include <stdio.h>
#include <string.h>

#include "primitives/base/error.h"
#include "serving/api/api_request_impl.h"

struct convert {
	struct parse *p;
	json_t *chat, *messages;
	json_t *reasoning; /* text of a reasoning item that waits for its message; or NULL */
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
static int convert_content(struct convert *c, const char *where, json_t *from, json_t **to)
{
	json_t *part, *copy;
	char param[96];
	size_t i;

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
 * Returns the last message if it is the assistant's and can be extended, else a new one; NULL: no memory.
 * says: the caller adds a content. A message that already has a content or calls is then not extended,
 * because the content comes before the calls.
 */
static json_t *assistant(struct convert *c, bool says)
{
	json_t *last = json_array_get(c->messages, json_array_size(c->messages) - 1);
	const char *role = json_string_value(json_object_get(last, "role"));

	if (role && !strcmp(role, "assistant") && !c->reasoning &&
	    !(says && (json_object_get(last, "content") || json_object_get(last, "tool_calls"))))
		return last;
	last = json_pack("{s:s}", "role", "assistant");
	if (c->reasoning && json_object_set_new(last, "reasoning_content", c->reasoning))
		last = NULL;
	c->reasoning = NULL;
	return last && !json_array_append_new(c->messages, last) ? last : NULL;
}

static int convert_message(struct convert *c, const char *where, json_t *item)
{
	const char *role = json_string_value(json_object_get(item, "role"));
	char param[96];
	json_t *message, *content;
	int ret;

	cairn_api_member(param, where, "content");
	ret = convert_content(c, param, json_object_get(item, "content"), &content);
	message = ret ? NULL : role && !strcmp(role, "assistant") ? assistant(c, true) : json_object();
	if (!ret && (!message || (content && json_object_set(message, "content", content))))
		ret = cairn_api_no_memory(c->p);
	json_decref(content);
	if (ret || (role && !strcmp(role, "assistant")))
		return ret;
	if (json_object_get(item, "role") &&
	    json_object_set(message, "role", json_object_get(item, "role"))) {
		json_decref(message);
		return cairn_api_no_memory(c->p);
	}
	return no_memory_if(c, json_array_append_new(c->messages, message));
}

/* A text that the item must have. */
static int need_text(struct convert *c, const char *where, json_t *item, const char *name, json_t **text)
{
	char param[96];

	cairn_api_member(param, where, name);
	*text = json_object_get(item, name);
	return json_is_string(*text) ? 0 : cairn_api_invalid(c->p, param, "must be a string");
}

static int convert_call(struct convert *c, const char *where, json_t *item)
{
	json_t *id, *name, *arguments, *message, *calls, *call;

	CAIRN_TRY(need_text(c, where, item, "call_id", &id));
	CAIRN_TRY(need_text(c, where, item, "name", &name));
	CAIRN_TRY(need_text(c, where, item, "arguments", &arguments));
	message = assistant(c, false);
	calls = json_object_get(message, "tool_calls");
	if (message && !calls) {
		calls = json_array();
		CAIRN_TRY(no_memory_if(c, json_object_set_new(message, "tool_calls", calls)));
	}
	call = json_pack("{s:O,s:s,s:{s:O,s:O}}", "id", id, "type", "function", "function", "name", name,
			 "arguments", arguments);
	return no_memory_if(c, !message || !call || json_array_append_new(calls, call));
}

static int convert_result(struct convert *c, const char *where, json_t *item)
{
	json_t *id, *content, *message;
	char param[96];
	int ret;

	CAIRN_TRY(need_text(c, where, item, "call_id", &id));
	cairn_api_member(param, where, "output");
	ret = convert_content(c, param, json_object_get(item, "output"), &content);
	message =
		ret ? NULL
		    : json_pack("{s:s,s:O,s:O*}", "role", "tool", "tool_call_id", id, "content", content);
	json_decref(content);
	return ret ? ret : no_memory_if(c, !message || json_array_append_new(c->messages, message));
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
	char where[48], param[96];

	snprintf(where, sizeof(where), "input[%zu]", i);
	if (!json_is_object(item))
		return cairn_api_wrong_type(c->p, where, "an object", item);
	if (!type || !strcmp(type, "message"))
		return convert_message(c, where, item);
	if (!strcmp(type, "function_call"))
		return convert_call(c, where, item);
	if (!strcmp(type, "function_call_output"))
		return convert_result(c, where, item);
	if (!strcmp(type, "reasoning"))
		return convert_reasoning(c, item);
	cairn_api_member(param, where, "type");
	return unsupported(c, param,
			   ": only message, function_call, function_call_output and reasoning are");
}

static int convert_input(struct convert *c, json_t *input)
{
	json_t *item;
	size_t i;

	if (json_is_string(input))
		return no_memory_if(
			c, json_array_append_new(c->messages, json_pack("{s:s,s:O}", "role", "user",
									"content", input)));
	if (!json_is_array(input))
		return cairn_api_wrong_type(c->p, "input", "a string or a list of items", input);
	json_array_foreach (input, i, item)
		CAIRN_TRY(convert_item(c, i, item));
	return 0;
}

/* {"type": "function", "name", ...} becomes {"type": "function", "function": {"name", ...}}. */
static json_t *wrap_function(const json_t *flat)
{
	json_t *function = json_copy((json_t *)flat), *whole;

	json_object_del(function, "type");
	whole = json_pack("{s:s,s:o}", "type", "function", "function", function);
	return whole;
}

static int convert_tools(struct convert *c, json_t *tools)
{
	json_t *list = json_array(), *tool;
	char param[48];
	size_t i;

	if (json_object_set_new(c->chat, "tools", list))
		return cairn_api_no_memory(c->p);
	if (!json_is_array(tools))
		return cairn_api_wrong_type(c->p, "tools", "an array", tools);
	json_array_foreach (tools, i, tool) {
		const char *type = json_string_value(json_object_get(tool, "type"));

		snprintf(param, sizeof(param), "tools[%zu]", i);
		if (!type || strcmp(type, "function"))
			return unsupported(c, param, ": only the type function is");
		CAIRN_TRY(no_memory_if(c, json_array_append_new(list, wrap_function(tool))));
	}
	return 0;
}

static int convert_text(struct convert *c, const char *name, json_t *text)
{
	json_t *format = json_object_get(text, "format"), *schema, *whole;
	const char *type = json_string_value(json_object_get(format, "type")), *key;
	json_t *value;

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
		return no_memory_if(c, json_object_set(c->chat, "response_format", format));
	schema = json_copy(format);
	json_object_del(schema, "type");
	whole = json_pack("{s:s,s:o}", "type", "json_schema", "json_schema", schema);
	return no_memory_if(c, !whole || json_object_set_new(c->chat, "response_format", whole));
}

static int convert_reason(struct convert *c, json_t *value)
{
	json_t *effort = json_object_get(value, "effort");

	if (!json_is_object(value))
		return cairn_api_wrong_type(c->p, "reasoning", "an object", value);
	/* a summary of the reasoning is optional: the reasoning itself is sent */
	return effort ? no_memory_if(c, json_object_set(c->chat, "reasoning_effort", effort)) : 0;
}

static int convert_choice(struct convert *c, json_t *value)
{
	json_t *copy = json_is_object(value) ? wrap_function(value) : json_incref(value);

	return no_memory_if(c, !copy || json_object_set_new(c->chat, "tool_choice", copy));
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
		return convert_tools(c, value);
	if (!strcmp(name, "text"))
		return convert_text(c, name, value);
	if (!strcmp(name, "reasoning"))
		return convert_reason(c, value);
	if (!strcmp(name, "tool_choice"))
		return convert_choice(c, value);
	if (!strcmp(name, "max_output_tokens"))
		return no_memory_if(c, json_object_set(c->chat, "max_completion_tokens", value));
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

	if (!c->chat || !c->messages || json_object_set_new(c->chat, "messages", c->messages))
		return cairn_api_no_memory(c->p);
	json_object_foreach (given, name, value)
		CAIRN_TRY(convert_member(c, name, value));
	if (instructions && !json_is_null(instructions)) {
		if (!json_is_string(instructions))
			return cairn_api_wrong_type(c->p, "instructions", "a string", instructions);
		CAIRN_TRY(no_memory_if(
			c, json_array_append_new(c->messages, json_pack("{s:s,s:O}", "role", "system",
									"content", instructions))));
	}
	if (!json_object_get(given, "input"))
		return cairn_api_refuse(c->p->error, 400, "missing_parameter", "input",
					"input is missing");
	return convert_input(c, json_object_get(given, "input"));
}

int cairn_api_convert_responses(struct parse *p)
{
	struct convert c = { .p = p, .chat = json_object(), .messages = json_array() };
	int ret;

	p->req->given = p->req->root;
	p->req->root = c.chat;
	ret = convert_all(&c);
	json_decref(c.reasoning);
	return ret;
}
