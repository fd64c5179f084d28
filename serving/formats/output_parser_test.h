/* SPDX-License-Identifier: Apache-2.0 */
/* output_parser_test - parses a text in pieces, for the tests of the formats; include after the harness */
#ifndef CAIRN_OUTPUT_PARSER_TEST_H
#define CAIRN_OUTPUT_PARSER_TEST_H

#include <stdlib.h>
#include <string.h>

#include "serving/formats/output_parser.h"

/* Definitions of the tools f and weather(city: string, days: integer). The caller calls json_decref(). */
static inline json_t *test_tools(void)
{
	return json_loads(
		"[{\"type\": \"function\", \"function\": {\"name\": \"f\"}},"
		"{\"type\": \"function\", \"function\": {\"name\": \"weather\", \"parameters\": "
		"{\"type\": \"object\", \"properties\": {\"city\": {\"type\": \"string\"}, \"days\": "
		"{\"type\": \"integer\"}}, \"required\": [\"city\"]}}}]",
		0, NULL);
}

/* Returns a function whose only parameter, k, has this schema. */
static inline json_t *function_with(json_t *schema)
{
	static const char shared[] = "{\"color\": {\"enum\": [\"red\", \"7\"]}, \"point\": {\"type\": "
				     "\"object\"}, \"itself\": {\"$ref\": \"#/$defs/itself\"}}";

	return json_pack("{s:s,s:{s:o,s:o,s:{s:O}}}", "name", "f", "parameters", "$defs",
			 json_loads(shared, 0, NULL), "definitions", json_loads(shared, 0, NULL),
			 "properties", "k", schema);
}

/* Writes pieces as text, in which each piece has a letter and parentheses. The caller frees it. */
static inline char *show_output(const struct cairn_output *o)
{
	struct cairn_api_out text = { 0 };
	char number[16];
	size_t at = 0;

	cairn_api_put(&text, "", 0);
	for (size_t i = 0; i < o->num; i++) {
		const struct cairn_piece *p = &o->v[i];

		cairn_api_put(&text, &"CRNA"[p->kind], 1);
		cairn_api_put(&text, "(", 1);
		cairn_api_put(&text, o->text.s + at, p->num_bytes);
		snprintf(number, sizeof(number), ":%d", (int)p->number);
		if (p->kind == CAIRN_PIECE_NAME && p->number >= 0)
			cairn_api_put(&text, number, strlen(number));
		cairn_api_put(&text, ")", 1);
		/* a call that was cut before its arguments */
		if (p->kind == CAIRN_PIECE_NAME && (i + 1 == o->num || p[1].kind != CAIRN_PIECE_ARGUMENTS))
			cairn_api_put(&text, "A()", 3);
		at += p->num_bytes;
	}
	return text.s;
}

/* Pushes text[0..first), then the rest in pieces of `step` bytes, each in memory of its own. */
static inline char *parse_cut(struct cairn_test *t, const struct cairn_output_rules *rules, const char *text,
			      size_t n, size_t first, size_t step)
{
	struct cairn_output_parser *p;
	struct cairn_output out = { 0 };
	char *shown = NULL;

	if (!EXPECT(t, !cairn_output_parser_new(rules, &p)))
		return NULL;
	for (size_t at = 0, len = first ? first : step; at < n; len = step) {
		char *piece;

		len = len < n - at ? len : n - at;
		piece = malloc(len + 1);
		memcpy(piece, text + at, len);
		cairn_output_parser_push(p, piece, len, &out);
		free(piece);
		at += len;
	}
	cairn_output_parser_finish(p, &out);
	if (EXPECT(t, !out.text.failed))
		shown = show_output(&out);
	cairn_output_parser_free(p);
	cairn_output_free(&out);
	return shown;
}

#endif
