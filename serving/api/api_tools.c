// SPDX-License-Identifier: Apache-2.0
/* api_tools - parses the definitions of tools and the choice among them */
#include <stdio.h>
#include <string.h>

#include "primitives/base/error.h"
#include "serving/api/api_request_impl.h"
#include "serving/base/json.h"

#define MAX_NAME 64

static bool is_name(const json_t *value)
{
	const char *s = json_string_value(value);

	return s && *s && json_string_length(value) <= MAX_NAME &&
	       strspn(s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.") ==
		       json_string_length(value);
}

/* Checks one member of a function. Sets *keep to whether the template is given it. */
static int function_member(struct parse *p, const char *param, const char *name, const json_t *value,
			   bool *keep)
{
	*keep = !json_is_null(value) && strcmp(name, "strict");
	if (json_is_null(value))
		return 0;
	if (!strcmp(name, "name")) {
		if (is_name(value))
			return 0;
		return cairn_api_refuse(p->error, 400, "invalid_value", param,
					"%s must have 1 to %d letters, digits, dots, _ or -", param,
					MAX_NAME);
	}
	if (!strcmp(name, "description"))
		return json_is_string(value) ? 0 : cairn_api_wrong_type(p, param, "a string", value);
	if (!strcmp(name, "parameters"))
		return json_is_object(value) ? 0 : cairn_api_wrong_type(p, param, "an object", value);
	/* concerns the server, not the model: arguments are checked against the schema only if forced */
	if (!strcmp(name, "strict"))
		return json_is_boolean(value) ? 0 : cairn_api_wrong_type(p, param, "true or false", value);
	return cairn_api_refuse(p->error, 400, "unsupported_parameter", param, "%s is not supported", param);
}

int cairn_api_add_tool(struct parse *p, const char *where, json_t *from)
{
	json_t *tool = json_object(), *function = json_object(), *value, *other;
	char param[96];
	const char *name;
	bool keep;
	size_t i;

	if (!p->req->tools)
		p->req->tools = json_array();
	/* the array owns both from here on */
	if (!tool || !function || json_object_set_new(tool, "type", json_string("function")) ||
	    json_object_set_new(tool, "function", function) || json_array_append_new(p->req->tools, tool))
		return cairn_api_no_memory(p);
	if (!json_is_object(from))
		return cairn_api_wrong_type(p, where, "an object", from);
	json_object_foreach (from, name, value) {
		cairn_api_member(param, where, name);
		CAIRN_TRY(function_member(p, param, name, value, &keep));
		if (keep && json_object_set(function, name, value))
			return cairn_api_no_memory(p);
	}
	cairn_api_member(param, where, "name");
	value = json_object_get(function, "name");
	if (!value)
		return cairn_api_refuse(p->error, 400, "missing_parameter", param, "%s is missing", param);
	json_array_foreach (p->req->tools, i, other) {
		if (other != tool &&
		    json_equal(value, json_object_get(json_object_get(other, "function"), "name")))
			return cairn_api_invalid(p, param, "is the name of an earlier tool");
	}
	return 0;
}

int cairn_api_check_tools(struct parse *p, const char *name, const json_t *value)
{
	if (!json_is_array(value))
		return cairn_api_wrong_type(p, name, "an array", value);
	if (json_array_size(value) > CAIRN_API_MAX_TOOLS)
		return cairn_api_refuse(p->error, 400, "invalid_value", name,
					"%s has %zu tools, at most %d are accepted", name,
					json_array_size(value), CAIRN_API_MAX_TOOLS);
	return 0;
}

int cairn_api_take_tools(struct parse *p, const char *name, json_t *value)
{
	char param[64];
	json_t *one;
	size_t i;

	CAIRN_TRY(cairn_api_check_tools(p, name, value));
	json_array_foreach (value, i, one) {
		const char *type = json_string_value(json_object_get(one, "type"));

		snprintf(param, sizeof(param), "tools[%zu]", i);
		if (!json_is_object(one))
			return cairn_api_wrong_type(p, param, "an object", one);
		if (!type || strcmp(type, "function") || json_object_size(one) != 2)
			return cairn_api_refuse(p->error, 400, "unsupported_parameter", param,
						"%s: only {\"type\": \"function\", \"function\": {...}} is "
						"supported",
						param);
		snprintf(param, sizeof(param), "tools[%zu].function", i);
		CAIRN_TRY(cairn_api_add_tool(p, param, json_object_get(one, "function")));
	}
	return 0;
}

int cairn_api_take_tool_choice(struct parse *p, const char *name, json_t *value)
{
	static const char *const words[] = { "auto", "none", "required" };
	const char *type = json_string_value(json_object_get(value, "type"));
	const json_t *function = json_object_get(value, "function");

	for (int i = 0; json_is_string(value) && i < 3; i++) {
		if (strcmp(json_string_value(value), words[i]))
			continue;
		p->req->tool_choice = (enum cairn_api_tool_choice)i;
		return 0;
	}
	if (!type || strcmp(type, "function") || !json_is_string(json_object_get(function, "name")))
		return cairn_api_refuse(p->error, 400, "invalid_value", name,
					"%s must be \"auto\", \"none\", \"required\" or name a function",
					name);
	p->req->tool_choice = CAIRN_API_TOOL_NAMED;
	p->req->tool_name = json_string_value(json_object_get(function, "name"));
	return 0;
}

static bool is_defined(const struct parse *p, const char *name)
{
	json_t *tool;
	size_t i;

	json_array_foreach (p->req->tools, i, tool) {
		if (!strcmp(json_string_value(json_object_get(json_object_get(tool, "function"), "name")),
			    name))
			return true;
	}
	return false;
}

int cairn_api_check_tool_rules(struct parse *p)
{
	struct cairn_api_request *r = p->req;
	bool forced = r->tool_choice == CAIRN_API_TOOL_REQUIRED || r->tool_choice == CAIRN_API_TOOL_NAMED;

	if (!json_array_size(r->tools)) {
		json_decref(r->tools);
		r->tools = NULL;
		return forced ? cairn_api_invalid(p, "tool_choice", "needs tools") : 0;
	}
	if (r->tool_choice == CAIRN_API_TOOL_NONE)
		return 0;
	if (!p->limits->has_tools)
		return cairn_api_refuse(
			p->error, 400, "unsupported_parameter", "tools",
			"tools is not supported: the chat template shows no known format of calls; "
			"the server's option --tool-call-parser can name one");
	if (r->tool_choice == CAIRN_API_TOOL_NAMED && !is_defined(p, r->tool_name))
		return cairn_api_invalid(p, "tool_choice", "names a function that is not among tools");
	if (forced && !p->limits->has_grammar)
		return cairn_api_refuse(
			p->error, 400, "unsupported_parameter", "tool_choice",
			"tool_choice: only \"auto\" and \"none\" are supported without the library "
			"that constrains answers: tools/setup.sh grammar installs it");
	if (forced && r->constraint.kind)
		return cairn_api_refuse(p->error, 400, "invalid_value", "tool_choice",
					"tool_choice: a call cannot be forced together with %s",
					r->constraint_param);
	return 0;
}
