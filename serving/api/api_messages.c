// SPDX-License-Identifier: Apache-2.0
/* api_messages - parses the messages of a chat, with the calls of tools and their results */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "primitives/base/error.h"
#include "serving/api/api_request_impl.h"
#include "serving/base/json.h"

/* Joins the texts of a content given as parts with newlines, as vLLM does. */
static int join_parts(struct parse *p, const char *where, const json_t *parts, json_t **text)
{
	size_t i, len = 0, num = json_array_size(parts);
	char param[96], *buf;
	json_t *part;

	json_array_foreach(parts, i, part)
	{
		const char *type = json_string_value(json_object_get(part, "type"));
		const json_t *t = json_object_get(part, "text");

		snprintf(param, sizeof(param), "%.60s[%zu]", where, i);
		if (!json_is_object(part) || !type)
			return cairn_api_invalid(p, param, "must be an object with a type");
		if (strcmp(type, "text"))
			return cairn_api_refuse(p->error, 400, "unsupported_parameter", param,
						"%s: only the type \"text\" is supported", param);
		if (!json_is_string(t))
			return cairn_api_invalid(p, param, "must have a text");
		if (json_object_size(part) != 2)
			return cairn_api_invalid(p, param, "must have only a type and a text");
		len += json_string_length(t) + 1;
	}
	if (!num)
		return cairn_api_invalid(p, where, "is empty");
	buf = malloc(len);
	if (!buf)
		return cairn_api_no_memory(p);
	len = 0;
	json_array_foreach(parts, i, part)
	{
		const json_t *t = json_object_get(part, "text");

		memcpy(buf + len, json_string_value(t), json_string_length(t));
		len += json_string_length(t);
		buf[len++] = '\n';
	}
	*text = json_stringn_nocheck(buf, len - 1);
	free(buf);
	return *text ? 0 : cairn_api_no_memory(p);
}

/* OpenAI's newer models call the role system "developer". */
static int take_role(struct parse *p, const char *param, const json_t *value, json_t **role)
{
	static const char *const roles[] = { "system", "user", "assistant", "developer", "tool" };
	char quoted[CAIRN_QUOTE_LEN];

	if (!json_is_string(value))
		return cairn_api_wrong_type(p, param, "a string", value);
	for (size_t i = 0; i < sizeof(roles) / sizeof(*roles); i++)
		if (!strcmp(roles[i], json_string_value(value))) {
			*role = json_string(roles[i == 3 ? 0 : i]);
			return *role ? 0 : cairn_api_no_memory(p);
		}
	return cairn_api_refuse(p->error, 400, "invalid_value", param,
				"%s must be system, user, assistant or tool, is %s", param,
				cairn_quote(json_string_value(value), json_string_length(value), quoted));
}

/* An answer that a client sends back may still have its empty list of annotations. lm-eval
 * also puts the type of the content into each message. */
static bool asks_for_nothing(const char *name, const json_t *value)
{
	if (!strcmp(name, "type"))
		return json_is_string(value) && !strcmp(json_string_value(value), "text");
	return !strcmp(name, "annotations") && json_is_array(value) && !json_array_size(value);
}

/* Checks one member of a call: text, or for the type "function" alone. */
static int call_text(struct parse *p, const char *param, const char *name, const json_t *value)
{
	if (!json_is_string(value))
		return cairn_api_wrong_type(p, param, "a string", value);
	if (!strcmp(name, "type") && strcmp(json_string_value(value), "function"))
		return cairn_api_invalid(p, param, "must be \"function\"");
	return 0;
}

/*
 * Copies the function of a call. Its arguments are a text with JSON, which templates expect as an object. A
 * text that is no object, which a model may have written, stays a text.
 */
static int take_function(struct parse *p, const char *where, json_t *from, json_t *to)
{
	json_t *value, *arguments;
	const char *name;
	char param[96];

	if (!json_is_object(from))
		return cairn_api_wrong_type(p, where, "an object", from);
	json_object_foreach(from, name, value)
	{
		bool is_name = !strcmp(name, "name");

		cairn_api_member(param, where, name);
		if (!is_name && strcmp(name, "arguments"))
			return cairn_api_refuse(p->error, 400, "unsupported_parameter", param,
						"%s is not supported", param);
		CAIRN_TRY(call_text(p, param, "", value));
		arguments = is_name ? NULL :
			    json_loadb(json_string_value(value), json_string_length(value),
				       JSON_REJECT_DUPLICATES, NULL);
		if (!is_name && !json_string_length(value))
			arguments = json_object();
		if (arguments && !json_is_object(arguments)) {
			json_decref(arguments);
			arguments = NULL;
		}
		if (arguments ? json_object_set_new(to, name, arguments) : json_object_set(to, name, value))
			return cairn_api_no_memory(p);
	}
	for (int i = 0; i < 2; i++) {
		cairn_api_member(param, where, i ? "arguments" : "name");
		if (!json_object_get(to, i ? "arguments" : "name"))
			return cairn_api_refuse(p->error, 400, "missing_parameter", param, "%s is missing",
						param);
	}
	return 0;
}

static int take_call(struct parse *p, const char *where, json_t *from, json_t *to)
{
	const char *name;
	char param[96];
	json_t *value;

	if (!json_is_object(from))
		return cairn_api_wrong_type(p, where, "an object", from);
	json_object_foreach(from, name, value)
	{
		cairn_api_member(param, where, name);
		if (!strcmp(name, "function")) {
			json_t *function = json_object();

			if (!function || json_object_set_new(to, name, function))
				return cairn_api_no_memory(p);
			CAIRN_TRY(take_function(p, param, value, function));
		} else if (!strcmp(name, "id") || !strcmp(name, "type")) {
			CAIRN_TRY(call_text(p, param, name, value));
			if (json_object_set(to, name, value))
				return cairn_api_no_memory(p);
		} else if (strcmp(name, "index")) {	/* which a chunk has, and clients keep */
			return cairn_api_refuse(p->error, 400, "unsupported_parameter", param,
						"%s is not supported", param);
		}
	}
	cairn_api_member(param, where, "function");
	return json_object_get(to, "function") ? 0 :
	       cairn_api_refuse(p->error, 400, "missing_parameter", param, "%s is missing", param);
}

static int take_calls(struct parse *p, const char *param, const json_t *value, json_t **calls)
{
	size_t i, num = json_array_size(value);
	char where[96];
	json_t *one, *to;

	*calls = NULL;
	if (!json_is_array(value))
		return cairn_api_wrong_type(p, param, "an array", value);
	if (num > CAIRN_API_MAX_TOOLS)
		return cairn_api_refuse(p->error, 400, "invalid_value", param,
					"%s has %zu calls, at most %d are accepted", param, num,
					CAIRN_API_MAX_TOOLS);
	if (!num)
		return 0;
	*calls = json_array();
	json_array_foreach(value, i, one)
	{
		int ret;

		to = json_object();
		snprintf(where, sizeof(where), "%.60s[%zu]", param, i);
		ret = !*calls || !to || json_array_append_new(*calls, to) ? cairn_api_no_memory(p) :
									     take_call(p, where, one, to);
		if (ret) {
			json_decref(*calls);
			return ret;
		}
	}
	return 0;
}

/* Whether a message of this role may have the member. */
static bool has_member(const char *role, const char *name)
{
	static const struct {
		const char *name, *role;	/* role NULL: any */
	} members[] = { { "name", NULL }, { "reasoning_content", NULL }, { "reasoning", NULL },
			{ "tool_calls", "assistant" }, { "tool_call_id", "tool" } };

	for (size_t i = 0; i < sizeof(members) / sizeof(*members); i++) {
		if (!strcmp(members[i].name, name))
			return !members[i].role || !strcmp(members[i].role, role);
	}
	return false;
}

/* Checks one member of a message and stores it in *to; NULL: the member counts as absent. */
static int message_member(struct parse *p, const char *where, const char *role, const char *name,
			  json_t *value, json_t **to)
{
	char param[96];

	cairn_api_member(param, where, name);
	*to = NULL;
	if (!strcmp(name, "role")) {
		return take_role(p, param, value, to);
	} else if (json_is_null(value) || asks_for_nothing(name, value)) {
		return 0;
	} else if (!strcmp(name, "content")) {
		if (json_is_array(value))
			return join_parts(p, param, value, to);
		if (!json_is_string(value))
			return cairn_api_wrong_type(p, param, "a string or a list of texts", value);
	} else if (!strcmp(name, "tool_calls") && json_is_array(value) && !json_array_size(value)) {
		return 0;
	} else if (!has_member(role, name)) {
		return cairn_api_refuse(p->error, 400, "unsupported_parameter", param, "%s is not supported",
					param);
	} else if (!strcmp(name, "tool_calls")) {
		return take_calls(p, param, value, to);
	} else if (!json_is_string(value)) {
		return cairn_api_wrong_type(p, param, "a string", value);
	}
	*to = json_incref(value);
	return 0;
}

int cairn_api_add_message(struct parse *p, const char *where, json_t *from)
{
	static const char *const needed[] = { "role", "content" };
	const char *name, *role = json_string_value(json_object_get(from, "role"));
	json_t *to = json_object(), *value, *copy;
	char param[96];

	if (!p->req->messages)
		p->req->messages = json_array();
	/* the array owns it from here on */
	if (json_array_append_new(p->req->messages, to))
		return cairn_api_no_memory(p);
	if (!json_is_object(from))
		return cairn_api_wrong_type(p, where, "an object", from);
	json_object_foreach(from, name, value)
	{
		CAIRN_TRY(message_member(p, where, role ? role : "", name, value, &copy));
		/* templates know the older one of the two names */
		if (copy && json_object_set_new(to, strcmp(name, "reasoning") ? name : "reasoning_content",
						copy))
			return cairn_api_no_memory(p);
	}
	/* an assistant that calls tools need not say anything */
	if (json_object_get(to, "tool_calls") && !json_object_get(to, "content") &&
	    json_object_set_new(to, "content", json_null()))
		return cairn_api_no_memory(p);
	for (size_t i = 0; i < 2; i++) {
		if (json_object_get(to, needed[i]))
			continue;
		cairn_api_member(param, where, needed[i]);
		if (json_object_get(from, needed[i]))
			return cairn_api_wrong_type(p, param, "a string or a list of texts",
						    json_object_get(from, needed[i]));
		return cairn_api_refuse(p->error, 400, "missing_parameter", param, "%s is missing", param);
	}
	return 0;
}

int cairn_api_check_messages(struct parse *p, const char *name, const json_t *value)
{
	size_t num = json_array_size(value);

	if (!json_is_array(value))
		return cairn_api_wrong_type(p, name, "an array", value);
	if (!num || num > CAIRN_API_MAX_MESSAGES)
		return cairn_api_refuse(p->error, 400, "invalid_value", name,
					"%s must have 1 to %d entries, has %zu", name,
					CAIRN_API_MAX_MESSAGES, num);
	return 0;
}

int cairn_api_take_messages(struct parse *p, const char *name, json_t *value)
{
	char where[96];
	json_t *one;
	size_t i;

	CAIRN_TRY(cairn_api_check_messages(p, name, value));
	json_array_foreach(value, i, one)
	{
		snprintf(where, sizeof(where), "%s[%zu]", name, i);
		CAIRN_TRY(cairn_api_add_message(p, where, one));
	}
	return 0;
}

int cairn_api_arguments_as_text(struct cairn_api_request *r)
{
	json_t *message, *call;
	size_t i, k;
	int num = 0;

	json_array_foreach(r->messages, i, message)
	{
		json_array_foreach(json_object_get(message, "tool_calls"), k, call)
		{
			json_t *function = json_object_get(call, "function"), *text = NULL;
			json_t *arguments = json_object_get(function, "arguments");
			char *dump = json_is_object(arguments) ? json_dumps(arguments, 0) : NULL;

			if (!json_is_object(arguments))
				continue;
			if (dump)
				text = json_string(dump);
			free(dump);
			if (!text || json_object_set_new(function, "arguments", text))
				return -ENOMEM;
			num++;
		}
	}
	return num;
}
