// SPDX-License-Identifier: Apache-2.0
/*
 * tool_grammar - writes the grammar of a forced call from the pattern of its format
 *
 *   start: reasoning calls           each part is a rule of its own
 *   call0: "<tool_call>\n{\"name\": \"f\", \"arguments\": " args0 "}\n</tool_call>"
 *   args0: %json {"type": "object", ...}
 *
 * llguidance does not match special tokens as text, so those of a pattern are written by their ids: <[7]>.
 * What a client has named is always text. Arguments have the white space that Python's json.dumps writes,
 * because models have learned it, and unlimited white space would let them write for ever.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "primitives/base/error.h"
#include "serving/formats/output_parser_impl.h"
#include "serving/grammar/grammar.h"

static void puts_to(struct cairn_api_out *out, const char *s)
{
	cairn_api_put(out, s, strlen(s));
}

static void print_to(struct cairn_api_out *out, const char *fmt, int a, int b)
{
	char text[64];

	snprintf(text, sizeof(text), fmt, a, b);
	puts_to(out, text);
}

/* Writes the text of a client. */
static void put_text(struct cairn_api_out *out, const char *s, size_t n)
{
	puts_to(out, " ");
	cairn_api_put_string(out, s, n);
}

/* Fails if the grammar is longer than the engine accepts. Called often: a request may have many parts. */
static int check_size(const struct cairn_api_out *out)
{
	if (out->len > CAIRN_GRAMMAR_MAX_TEXT)
		return cairn_error(EINVAL, "their grammar is too long, at most %d bytes are accepted",
				   CAIRN_GRAMMAR_MAX_TEXT);
	return 0;
}

/* Returns the length of the special token that s begins with, or 0. Looks up every prefix of s. */
static size_t special_at(const struct cairn_tool_grammar *g, const char *s, size_t n, int32_t *id)
{
	if (*s != '<' && *s != '[')
		return 0;
	for (size_t len = n; len > 1; len--) {
		*id = g->token(g->ctx, s, len);
		if (*id >= 0)
			return len;
	}
	return 0;
}

/* Writes the literal text of a pattern: strings and special tokens. */
static void put_literal(const struct cairn_tool_grammar *g, struct cairn_api_out *out, const char *s,
			size_t n)
{
	size_t begin = 0, len;
	int32_t id;

	for (size_t i = 0; i <= n; i += len ? len : 1) {
		len = i < n ? special_at(g, s + i, n - i, &id) : 0;
		if (begin < i && (len || i == n))
			put_text(out, s + begin, i - begin);
		if (len) {
			print_to(out, " <[%d]>", (int)id, 0);
			begin = i + len;
		}
	}
}

/* Writes the rule of free text up to a mark and of the mark. */
static void put_text_rule(const struct cairn_tool_grammar *g, struct cairn_api_out *out, const char *name,
			  const char *mark, size_t len)
{
	int32_t id;

	puts_to(out, name);
	if (special_at(g, mark, len, &id) == len) {
		puts_to(out, ": /(?s:.*)/");
		put_literal(g, out, mark, len);
	} else {
		puts_to(out, "[suffix=");
		cairn_api_put_string(out, mark, len);
		puts_to(out, "]: /(?s:.*)/");
	}
	puts_to(out, "\n");
}

/* Writes a schema as a rule. root: what its references may point into, or NULL. */
static int put_schema(struct cairn_api_out *out, const json_t *schema, const json_t *root)
{
	static const char *const shared[] = { "$defs", "definitions" };
	json_t *copy = json_is_object(schema) ? json_copy((json_t *)schema) : json_object();
	json_t *style = json_pack("{s:b,s:s,s:s}", "whitespace_flexible", 0, "item_separator", ", ",
				  "key_separator", ": ");
	char *text = NULL;
	int ret = copy && style ? json_object_set(copy, "x-guidance", style) : -1;

	if (!ret && !root && !json_object_get(copy, "type"))
		ret = json_object_set_new(copy, "type", json_string("object"));
	for (int i = 0; i < 2 && !ret && root; i++) {
		json_t *defs = json_object_get(root, shared[i]);

		ret = defs ? json_object_set(copy, shared[i], defs) : 0;
	}
	text = ret ? NULL : json_dumps(copy, JSON_COMPACT | JSON_ENCODE_ANY);
	json_decref(copy);
	json_decref(style);
	if (!text)
		return cairn_error(ENOMEM, "tool_grammar: no memory");
	puts_to(out, "%json ");
	puts_to(out, text);
	free(text);
	return 0;
}

static const json_t *properties_of(const json_t *function)
{
	return json_object_get(json_object_get(function, "parameters"), "properties");
}

/* Returns an object whose keys are the names of the required properties, or NULL without memory. */
static json_t *required_of(const json_t *function)
{
	json_t *names = json_object();
	const json_t *one;
	size_t i;

	json_array_foreach (json_object_get(json_object_get(function, "parameters"), "required"), i, one) {
		if (json_is_string(one) && json_object_set_new(names, json_string_value(one), json_true())) {
			json_decref(names);
			return NULL;
		}
	}
	return names;
}

/* Writes the values that a parameter may have: strings as bare text, other values as JSON. */
static int put_choices(struct cairn_api_out *out, const json_t *choices)
{
	const json_t *one;
	size_t i;

	puts_to(out, ":");
	json_array_foreach (choices, i, one) {
		char *json;

		puts_to(out, i ? " |" : "");
		if (json_is_string(one)) {
			put_text(out, json_string_value(one), json_string_length(one));
			continue;
		}
		json = json_dumps(one, JSON_ENCODE_ANY);
		if (!json)
			return cairn_error(ENOMEM, "tool_grammar: no memory");
		put_text(out, json, strlen(json));
		free(json);
	}
	return 0;
}

/* Writes the rule of one parameter: head, value, closing mark. */
static int put_parameter_rule(const struct cairn_tool_grammar *g, struct cairn_api_out *out,
			      const json_t *function, const char *key, const json_t *schema, int tool,
			      int index)
{
	const char *pattern = g->format->parameter, *k = strstr(pattern, "%k"), *v = strstr(pattern, "%v");
	const json_t *parameters = json_object_get(function, "parameters");
	bool text = parameter_is_text(parameters, schema);
	const char *close = v + 2;
	json_t *choices = NULL;
	char name[32];
	size_t end = strlen(close);
	int ret;

	if (text && parameter_choices(parameters, schema, &choices))
		return cairn_error(ENOMEM, "tool_grammar: no memory");
	while (end && is_space(close[end - 1]))
		end--;
	print_to(out, "p%d_%d:", tool, index);
	put_literal(g, out, pattern, (size_t)(k - pattern));
	put_text(out, key, strlen(key));
	put_literal(g, out, k + 2, (size_t)(v - k) - 2);
	snprintf(name, sizeof(name), "v%d_%d", tool, index);
	print_to(out, " v%d_%d", tool, index);
	if (!text || choices)
		put_literal(g, out, close, end);
	put_literal(g, out, close + end, strlen(close + end));
	puts_to(out, "\n");
	if (text && !choices) {
		put_text_rule(g, out, name, close, end);
		return 0;
	}
	puts_to(out, name);
	if (text) {
		ret = put_choices(out, choices);
	} else {
		puts_to(out, ": ");
		ret = put_schema(out, schema, parameters);
	}
	json_decref(choices);
	puts_to(out, "\n");
	return ret;
}

/* Writes the rule of a tool's parameters, each of which may be left out unless it is required. */
static int put_list(struct cairn_api_out *out, json_t *properties, const json_t *required, int tool)
{
	const char *key;
	json_t *schema;
	int index = 0;

	print_to(out, "args%d:", tool, 0);
	json_object_foreach (properties, key, schema) {
		print_to(out, " p%d_%d", tool, index++);
		puts_to(out, json_object_get(required, key) ? "" : "?");
		CAIRN_TRY(check_size(out));
	}
	puts_to(out, index ? "\n" : " \"\"\n");
	return 0;
}

static int put_parameters(const struct cairn_tool_grammar *g, struct cairn_api_out *out,
			  const json_t *function, int tool)
{
	json_t *properties = (json_t *)properties_of(function), *required = required_of(function), *schema;
	const char *key;
	int index = 0, ret;

	if (!required)
		return cairn_error(ENOMEM, "tool_grammar: no memory");
	ret = put_list(out, properties, required, tool);
	json_decref(required);
	CAIRN_TRY(ret);
	json_object_foreach (properties, key, schema) {
		CAIRN_TRY(put_parameter_rule(g, out, function, key, schema, tool, index++));
		CAIRN_TRY(check_size(out));
	}
	return 0;
}

/* Writes the rules of one tool's call. */
static int put_call(const struct cairn_tool_grammar *g, struct cairn_api_out *out, const char *pattern,
		    const json_t *function, int tool)
{
	const json_t *name = json_object_get(function, "name");
	bool parameters = strstr(pattern, "%p");

	print_to(out, "call%d:", tool, 0);
	while (*pattern) {
		size_t n = strcspn(pattern, "%");

		put_literal(g, out, pattern, n);
		pattern += n;
		if (!*pattern)
			break;
		switch (pattern[1]) {
		case 'n':
			put_text(out, json_string_value(name), json_string_length(name));
			break;
		case 'd':
			puts_to(out, " /[0-9]{1,3}/");
			break;
		case 'i':
			puts_to(out, " /[a-zA-Z0-9]{9}/");
			break;
		case 'o':
			puts_to(out, " \"{\\\"name\\\": \\\"");
			puts_to(out, json_string_value(name));
			puts_to(out, "\\\", \\\"");
			puts_to(out, g->format->arguments);
			print_to(out, "\\\": \" args%d \"}\"", tool, 0);
			break;
		default:
			print_to(out, " args%d", tool, 0);
		}
		pattern += 2;
	}
	puts_to(out, "\n");
	if (parameters)
		return put_parameters(g, out, function, tool);
	print_to(out, "args%d: ", tool, 0);
	CAIRN_TRY(put_schema(out, json_object_get(function, "parameters"), NULL));
	puts_to(out, "\n");
	return 0;
}

/* Writes the rule of what comes before the first call: the rest of the reasoning, or perhaps a whole one. */
static void put_reasoning(const struct cairn_tool_grammar *g, struct cairn_api_out *out)
{
	const struct cairn_reasoning_format *r = g->reasoning;

	if (g->format->harmony) {
		puts_to(out, "reasoning: (");
		put_literal(g, out, "<|channel|>analysis<|message|>", 30);
		puts_to(out, " think");
		put_literal(g, out, "<|start|>assistant", 18);
		puts_to(out, ")?\n");
		put_text_rule(g, out, "think", "<|end|>", 7);
		return;
	}
	if (!r || r->harmony) {
		puts_to(out, "reasoning: \"\"\n");
		return;
	}
	puts_to(out, "reasoning: ");
	if (!g->reasons) {
		puts_to(out, "(");
		put_literal(g, out, r->begin, strlen(r->begin));
		puts_to(out, " ");
	}
	puts_to(out, "think /[ \\n]{0,4}/");
	puts_to(out, g->reasons ? "\n" : ")?\n");
	put_text_rule(g, out, "think", r->end, strlen(r->end));
}

/* Chooses the first form that this tokenizer can write. */
static const struct cairn_tool_form *choose(const struct cairn_tool_grammar *g)
{
	const struct cairn_tool_form *f = g->format->forms;

	for (int i = 0; i < CAIRN_TOOL_FORMS && f[i].begin; i++) {
		if (!f[i].needs || g->token(g->ctx, f[i].needs, strlen(f[i].needs)) >= 0)
			return &f[i];
	}
	return NULL;
}

int cairn_tool_grammar(const struct cairn_tool_grammar *g, struct cairn_api_out *out)
{
	const struct cairn_tool_form *form = choose(g);
	const json_t *tool, *function;
	const char *name;
	size_t i;
	int num = 0;

	if (!form)
		return cairn_error(EOPNOTSUPP, "tool_grammar: %s: not with this tokenizer", g->format->name);
	puts_to(out, "start: reasoning");
	put_literal(g, out, form->begin, strlen(form->begin));
	puts_to(out, " call");
	if (g->parallel && form->between) {
		puts_to(out, " (");
		put_literal(g, out, form->between, strlen(form->between));
		puts_to(out, " call)*");
	}
	put_literal(g, out, form->end, strlen(form->end));
	puts_to(out, "\n");
	put_reasoning(g, out);
	for (int pass = 0; pass < 2; pass++) {
		json_array_foreach ((json_t *)g->tools, i, tool) {
			function = json_object_get(tool, "function");
			name = json_string_value(json_object_get(function, "name"));
			if (!name || (g->name && strcmp(name, g->name)))
				continue;
			if (pass)
				CAIRN_TRY(put_call(g, out, form->call, function, (int)i));
			else
				print_to(out, num++ ? " | call%d" : "call: call%d", (int)i, 0);
			CAIRN_TRY(check_size(out));
		}
		puts_to(out, "\n");
	}
	if (!num)
		return cairn_error(ENOENT, "tool_grammar: no tool has this name");
	if (out->failed)
		return cairn_error(ENOMEM, "tool_grammar: no memory");
	return check_size(out);
}
