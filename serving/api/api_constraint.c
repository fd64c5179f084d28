// SPDX-License-Identifier: Apache-2.0
/*
 * api_constraint - response_format and structured_outputs: which texts an answer may be
 *
 * The text of a constraint is not read here: the grammar process compiles it (serving/grammar), and the
 * server refuses the request with that process's reason.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "primitives/base/error.h"
#include "serving/api/api_request_impl.h"
#include "serving/base/json.h"

static int unsupported(struct parse *p, const char *name, const char *member)
{
	char param[96], quoted[CAIRN_QUOTE_LEN];

	cairn_quote(member, strlen(member), quoted);
	snprintf(param, sizeof(param), "%s.%.*s", name, (int)strlen(quoted) - 2, quoted + 1);
	return cairn_api_refuse(p->error, 400, "unsupported_parameter", param, "%s is not supported", param);
}

/* Sets the constraint; text: owned by the body, or NULL for that of `value` as JSON. */
static int set(struct parse *p, const char *param, enum cairn_constraint_kind kind, const char *text,
	       const json_t *value)
{
	struct cairn_api_request *r = p->req;

	if (r->constraint.kind)
		return cairn_api_refuse(p->error, 400, "invalid_value", param, "%s does not go with %s",
					param, r->constraint_param);
	if (!text)
		text = r->constraint_text = json_dumps(value, JSON_COMPACT | JSON_ENCODE_ANY);
	if (!text)
		return cairn_api_no_memory(p);
	r->constraint_param = param;
	r->constraint = (struct cairn_constraint){ .kind = kind, .text = text, .num_bytes = strlen(text) };
	if (r->constraint.num_bytes > CAIRN_GRAMMAR_MAX_TEXT)
		return cairn_api_refuse(p->error, 400, "invalid_value", param, "%s has %zu bytes, at most %d "
					"are accepted", param, r->constraint.num_bytes,
					CAIRN_GRAMMAR_MAX_TEXT);
	return 0;
}

static int missing(struct parse *p, const char *param)
{
	return cairn_api_refuse(p->error, 400, "missing_parameter", param, "%s is missing", param);
}

int cairn_api_take_schema(struct parse *p, const char *where, const char *schema, json_t *holder)
{
	json_t *value = json_object_get(holder, "schema"), *one;
	char param[96];
	const char *key;

	if (!json_is_object(holder))
		return holder ? cairn_api_wrong_type(p, where, "an object", holder) : missing(p, where);
	json_object_foreach(holder, key, one)
	{
		cairn_api_member(param, where, key);
		if (!strcmp(key, "name") || !strcmp(key, "description")) {
			if (!json_is_string(one) && !json_is_null(one))
				return cairn_api_wrong_type(p, param, "a string", one);
		} else if (!strcmp(key, "strict")) {	/* a schema is always followed to the letter */
			if (!json_is_boolean(one) && !json_is_null(one))
				return cairn_api_wrong_type(p, param, "true or false", one);
		} else if (strcmp(key, "schema") != 0) {
			return unsupported(p, where, key);
		}
	}
	if (!value)
		return missing(p, schema);
	if (!json_is_object(value) && !json_is_boolean(value))
		return cairn_api_wrong_type(p, schema, "an object", value);
	return set(p, schema, CAIRN_CONSTRAINT_JSON, NULL, value);
}

int cairn_api_take_response_format(struct parse *p, const char *name, json_t *value)
{
	const char *type = json_string_value(json_object_get(value, "type")), *key;
	char param[96];
	json_t *one;

	if (!json_is_object(value))
		return cairn_api_wrong_type(p, name, "an object", value);
	cairn_api_member(param, name, "type");
	if (!type)
		return missing(p, param);
	json_object_foreach(value, key, one)
		if (strcmp(key, "type") != 0 && !(!strcmp(key, "json_schema") && !strcmp(type, key)))
			return unsupported(p, name, key);
	if (!strcmp(type, "text"))
		return 0;
	if (!strcmp(type, "json_object"))
		return set(p, name, CAIRN_CONSTRAINT_JSON, "{\"type\":\"object\"}", NULL);
	if (!strcmp(type, "json_schema"))
		return cairn_api_take_schema(p, "response_format.json_schema",
					     "response_format.json_schema.schema",
					     json_object_get(value, "json_schema"));
	return cairn_api_refuse(p->error, 400, "unsupported_parameter", param,
				"%s must be text, json_object or json_schema", param);
}

static int take_choice(struct parse *p, const char *param, json_t *value)
{
	json_t *one;
	size_t i;

	if (!json_is_array(value) || !json_array_size(value))
		return cairn_api_wrong_type(p, param, "a list of strings", value);
	json_array_foreach(value, i, one)
		if (!json_string_length(one))
			return cairn_api_refuse(p->error, 400, "invalid_type", param,
						"%s: entry %zu is no string, or empty", param, i);
	return set(p, param, CAIRN_CONSTRAINT_CHOICE, NULL, value);
}

int cairn_api_take_structured_outputs(struct parse *p, const char *name, json_t *value)
{
	const char *key;
	json_t *one;

	if (!json_is_object(value))
		return cairn_api_wrong_type(p, name, "an object", value);
	json_object_foreach(value, key, one)
	{
		if (json_is_null(one) || !strcmp(key, "disable_fallback"))	/* there is no fallback */
			continue;
		if (!strcmp(key, "json")) {
			const char *text = json_string_value(one);

			if (!text && !json_is_object(one) && !json_is_boolean(one))
				return cairn_api_wrong_type(p, "structured_outputs.json", "an object", one);
			CAIRN_TRY(set(p, "structured_outputs.json", CAIRN_CONSTRAINT_JSON, text, one));
		} else if (!strcmp(key, "json_object") && json_is_boolean(one)) {
			if (json_is_true(one))
				CAIRN_TRY(set(p, "structured_outputs.json_object", CAIRN_CONSTRAINT_JSON,
					      "{\"type\":\"object\"}", NULL));
		} else if (!strcmp(key, "regex") || !strcmp(key, "grammar")) {
			int is_regex = key[0] == 'r';
			const char *param = is_regex ? "structured_outputs.regex" :
					    "structured_outputs.grammar";

			if (!json_string_length(one))
				return cairn_api_wrong_type(p, param, "a string that is not empty", one);
			CAIRN_TRY(set(p, param, is_regex ? CAIRN_CONSTRAINT_REGEX : CAIRN_CONSTRAINT_LARK,
				      json_string_value(one), NULL));
		} else if (!strcmp(key, "choice")) {
			CAIRN_TRY(take_choice(p, "structured_outputs.choice", one));
		} else {
			return unsupported(p, name, key);
		}
	}
	return 0;
}

int cairn_api_check_constraint(struct parse *p)
{
	const struct cairn_api_request *r = p->req;
	const char *with = r->use_beam_search ? "use_beam_search" : r->ignore_eos ? "ignore_eos" :
			   r->min_tokens ? "min_tokens" : r->echo ? "echo" :
			   r->no_answer ? "max_tokens 0" : NULL;

	if (!r->constraint.kind || !with)
		return 0;
	return cairn_api_refuse(p->error, 400, "invalid_value", r->constraint_param, "%s does not go with %s",
				r->constraint_param, with);
}
