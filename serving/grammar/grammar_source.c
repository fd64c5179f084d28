// SPDX-License-Identifier: Apache-2.0
/*
 * grammar_source - the text of a constraint, in the library's words
 *
 * White space may stand only where JSON allows it, and at most MAX_SPACE characters at a time: without a
 * limit, a model may write line feeds until max_tokens. Settings of the library that a schema contains are
 * dropped, because one of them makes the library ignore unsupported keywords.
 */
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "primitives/base/error.h"
#include "serving/grammar/grammar_process.h"

#define MAX_SPACE	"8"
#define MAX_DEPTH	64

const char *grammar_kind_name(enum cairn_constraint_kind kind)
{
	static const char *const names[] = { "none", "json", "regex", "choice", "grammar" };

	return names[kind];
}

/* Returns the deepest nesting of brackets outside strings. */
static int depth_of(const char *text, size_t num_bytes)
{
	int depth = 0, most = 0, quoted = 0;

	for (size_t i = 0; i < num_bytes; i++) {
		if (quoted && text[i] == '\\')
			i++;
		else if (text[i] == '"')
			quoted = !quoted;
		else if (!quoted && (text[i] == '[' || text[i] == '{'))
			most = ++depth > most ? depth : most;
		else if (!quoted && (text[i] == ']' || text[i] == '}'))
			depth--;
	}
	return most;
}

static int parse(enum cairn_constraint_kind kind, const char *text, size_t num_bytes, json_t **root)
{
	const char *name = grammar_kind_name(kind);
	json_error_t e;

	if (depth_of(text, num_bytes) > MAX_DEPTH)
		return cairn_error(EINVAL, "%s: is nested more than %d deep", name, MAX_DEPTH);
	*root = json_loadb(text, num_bytes, JSON_REJECT_DUPLICATES | JSON_DECODE_ANY, &e);
	return *root ? 0 : cairn_error(EINVAL, "%s: is no JSON: %s", name, e.text);
}

static int take_schema(const char *text, size_t num_bytes, char **source)
{
	json_t *root, *settings;
	int failed;

	CAIRN_TRY(parse(CAIRN_CONSTRAINT_JSON, text, num_bytes, &root));
	if (json_is_true(root)) {
		json_decref(root);
		root = json_object();
	}
	if (!json_is_object(root)) {
		failed = !json_is_false(root);
		json_decref(root);
		return cairn_error(EINVAL, failed ? "json: a schema must be an object" :
				   "json: the schema false allows nothing");
	}
	settings = json_pack("{s:s}", "whitespace_pattern", "[\\x20\\x0A\\x0D\\x09]{1," MAX_SPACE "}");
	failed = !settings || json_object_set_new(root, "x-guidance", settings);
	*source = failed ? NULL : json_dumps(root, JSON_COMPACT);
	json_decref(root);
	return *source ? 0 : cairn_error(ENOMEM, "json: no memory");
}

/* Joins the texts to `start: "a" | "b"`. The library reads a text in quotes as JSON does. */
static int take_choice(const char *text, size_t num_bytes, char **source)
{
	json_t *root, *one;
	size_t i, used;

	CAIRN_TRY(parse(CAIRN_CONSTRAINT_CHOICE, text, num_bytes, &root));
	/* a character may become \u00XX, and each text brings 5 bytes more */
	*source = malloc(6 * num_bytes + 5 * json_array_size(root) + 32);
	if (!*source) {
		json_decref(root);
		return cairn_error(ENOMEM, "choice: no memory");
	}
	used = (size_t)sprintf(*source, "start: ");
	json_array_foreach(root, i, one)
	{
		char *quoted = json_is_string(one) && json_string_length(one) ?
			       json_dumps(one, JSON_ENCODE_ANY) : NULL;

		if (!quoted)
			break;
		used += (size_t)sprintf(*source + used, "%s%s", i ? " | " : "", quoted);
		free(quoted);
	}
	if (json_is_array(root) && i && i == json_array_size(root)) {
		json_decref(root);
		return 0;
	}
	json_decref(root);
	free(*source);
	return cairn_error(EINVAL, "choice: must be a list of texts that are not empty");
}

static int take_text(enum cairn_constraint_kind kind, const char *text, size_t num_bytes, char **source)
{
	if (!num_bytes)
		return cairn_error(EINVAL, "%s: is empty", grammar_kind_name(kind));
	*source = strndup(text, num_bytes);
	return *source ? 0 : cairn_error(ENOMEM, "%s: no memory", grammar_kind_name(kind));
}

int grammar_source(enum cairn_constraint_kind kind, const char *text, size_t num_bytes, const char **word,
		   char **source)
{
	static const char *const words[] = { "", "json_schema", "regex", "lark", "lark" };

	*word = words[kind];
	if (memchr(text, 0, num_bytes))
		return cairn_error(EINVAL, "%s: has a NUL", grammar_kind_name(kind));
	return kind == CAIRN_CONSTRAINT_JSON ? take_schema(text, num_bytes, source) :
	       kind == CAIRN_CONSTRAINT_CHOICE ? take_choice(text, num_bytes, source) :
	       take_text(kind, text, num_bytes, source);
}
