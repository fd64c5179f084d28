/* SPDX-License-Identifier: Apache-2.0 */
/* output_parser_impl - declarations shared by the files of the parser */
#ifndef CAIRN_OUTPUT_PARSER_IMPL_H
#define CAIRN_OUTPUT_PARSER_IMPL_H

#include <string.h>

#include "serving/formats/output_parser.h"

enum parser_state {
	PARSER_BEGIN, /* the answer may begin with the mark of reasoning */
	PARSER_REASONING,
	PARSER_TEXT,
	PARSER_CALL,	   /* another call, or the end of the list of calls */
	PARSER_ARGUMENTS,  /* in the JSON object of %a or %o */
	PARSER_ENVELOPE,   /* after the arguments in the object of %o */
	PARSER_PARAMETERS, /* in %p */
	PARSER_TAIL,	   /* in the rest of the call's pattern */
	PARSER_HEADER,	   /* harmony: before <|message|> */
	PARSER_BODY,	   /* harmony: after it */
	PARSER_DONE,	   /* one_call: the rest is not read */
};

/* Finds the end of a JSON object by its brackets. */
struct json_scan {
	int64_t depth;
	bool in_string, escaped;
};

struct cairn_output_parser {
	struct cairn_output_rules rules;
	enum parser_state state;
	struct cairn_api_out held; /* text not decided yet */
	size_t at;		   /* bytes of held that have been consumed */
	size_t scanned;		   /* bytes after `at` in which the awaited mark does not begin */
	bool skip_space;	   /* white space at the beginning is dropped */
	bool has_content; /* content other than white space was reported; harmony: since a message */
	int32_t num_calls;
	const struct cairn_tool_form *form;
	const char *rest;	/* the rest of the call's pattern */
	const json_t *function; /* definition of the tool that is being called, or NULL */
	int32_t num_parameters;
	bool envelope; /* the arguments are inside %o */
	struct json_scan scan;
	enum cairn_piece_kind body; /* harmony */
	bool body_empty;
};

enum match { MATCH_NO, MATCH_MORE, MATCH_YES };

/* The parts that a pattern has found in a text. */
struct found {
	size_t at;	     /* position in the text: the end of the match */
	const char *pattern; /* where the pattern stopped: at %a, %p, %v or its end */
	const char *name, *key;
	size_t name_len, key_len;
	int32_t number;	       /* of %d, or -1 */
	const char *arguments; /* %o is complete: its arguments, NULL if it has none */
	size_t num_arguments;
	bool envelope, closed; /* in %o at the arguments; after its last bracket */
};

static inline bool is_space(char c)
{
	return c == ' ' || c == '\n' || c == '\t' || c == '\r';
}

/*
 * Matches a text from f->at on with a pattern, until the pattern ends or reaches arguments, parameters or a
 * value. MATCH_MORE: the text is too short to tell.
 */
enum match parser_match(const char *pattern, const char *text, size_t n, struct found *f);
/* Returns the length of the literal that the pattern begins with. */
size_t parser_literal(const char *pattern);
/* Returns how many bytes of text, at most n, belong to the object; sets *ended if it has ended. */
size_t parser_scan(struct json_scan *s, const char *text, size_t n, bool *ended);
/* The end of an object of the form %o, after its arguments. */
enum match parser_envelope_end(const char *text, size_t n, size_t *end);

static inline const char *held(const struct cairn_output_parser *p)
{
	return p->held.s ? p->held.s + p->at : "";
}

static inline size_t num_held(const struct cairn_output_parser *p)
{
	return p->held.len - p->at;
}

static inline void consume(struct cairn_output_parser *p, size_t n)
{
	p->at += n;
	p->scanned = 0;
}

void output_grow(struct cairn_output *p, enum cairn_piece_kind kind, size_t n);

static inline void emit(struct cairn_output_parser *p, enum cairn_piece_kind kind, size_t n,
			struct cairn_output *out)
{
	if (kind != CAIRN_PIECE_REASONING || !p->rules.no_reasoning)
		cairn_output_add(out, kind, held(p), n);
	consume(p, n);
}

void parser_begin_call(struct cairn_output_parser *p, const char *name, size_t len, int32_t number,
		       struct cairn_output *out);
void parser_end_call(struct cairn_output_parser *p, enum parser_state next);

/* Drops white space at the beginning of the held text if it is to be skipped. */
void parser_drop_space(struct cairn_output_parser *p);

/* Schemas of parameters (parameter.c). Returns what a schema refers to, or the schema itself. */
const json_t *parameter_schema(const json_t *parameters, const json_t *schema);
/* Returns whether the value may be a string, which is written as bare text. */
bool parameter_is_text(const json_t *parameters, const json_t *schema);
/*
 * Sets *choices to a new array of all values that the schema allows, or to NULL if it does not list them by
 * enum, const, null, boolean, or unions of these. Returns 0 or -ENOMEM.
 */
int parameter_choices(const json_t *parameters, const json_t *schema, json_t **choices);

/* Steps of a state (parameter.c, harmony.c): return whether something has been consumed or decided. */
bool parser_parameters(struct cairn_output_parser *p, struct cairn_output *out);
bool harmony_step(struct cairn_output_parser *p, struct cairn_output *out);
void harmony_finish(struct cairn_output_parser *p, struct cairn_output *out);

#endif
