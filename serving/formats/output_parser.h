/* SPDX-License-Identifier: Apache-2.0 */
/*
 * output_parser - splits an answer into content, reasoning and tool calls while it arrives
 *
 * The pieces do not depend on how the text was cut into pushes. Text that is not a call in the format is
 * content. A call is reported as soon as its name and the beginning of its arguments have been read; from
 * there on its arguments are passed on as the model writes them, so they may be invalid JSON, which the
 * client must check, as with OpenAI's API. Arguments of the form %p are passed on parameter by parameter, as
 * JSON. White space between content or reasoning and a mark is dropped.
 *
 * A call in a form that has no opening mark (llama3_json) counts only where the content begins, and only if
 * it names one of the request's tools: any JSON answer looks like one.
 *
 * At most CAIRN_PARSER_MAX_HEAD bytes are held back to decide whether a call begins; a parameter of the form
 * %p is held back until its end.
 */
#ifndef CAIRN_OUTPUT_PARSER_H
#define CAIRN_OUTPUT_PARSER_H

#include "serving/formats/formats.h"

#define CAIRN_PARSER_MAX_HEAD 4096

enum cairn_piece_kind {
	CAIRN_PIECE_CONTENT,
	CAIRN_PIECE_REASONING,
	CAIRN_PIECE_NAME, /* begins a call; its arguments follow */
	CAIRN_PIECE_ARGUMENTS,
};

struct cairn_piece {
	enum cairn_piece_kind kind;
	int32_t number; /* of a NAME: the index that the model wrote (%d), else -1 */
	size_t num_bytes;
};

/* The text of all pieces in order, and their lengths. Adjacent pieces of one kind are merged. */
struct cairn_output {
	struct cairn_api_out text;
	struct cairn_piece *v; /* [num] */
	size_t num, room;
};

void cairn_output_add(struct cairn_output *p, enum cairn_piece_kind kind, const char *s, size_t n);
/* Removes the first n bytes, which all belong to the first piece, and that piece if nothing of it is left.
 */
void cairn_output_drop(struct cairn_output *p, size_t n);
void cairn_output_free(struct cairn_output *p);

/* How the prompt leaves the model, by its last mark. */
enum cairn_prompt_end {
	CAIRN_PROMPT_PLAIN,
	CAIRN_PROMPT_REASONS,  /* the prompt ends with the opening mark: the answer begins with reasoning */
	CAIRN_PROMPT_REASONED, /* it ends with the closing mark: the answer has no reasoning */
};
enum cairn_prompt_end cairn_prompt_end(const struct cairn_reasoning_format *f, const char *prompt, size_t n);

struct cairn_output_rules {
	const struct cairn_tool_format *tool_format;	/* NULL: the text is not searched for calls */
	const struct cairn_reasoning_format *reasoning; /* NULL: nor for reasoning */
	enum cairn_prompt_end prompt_end;
	const json_t *tools; /* the request's definitions, which must outlive the parser */
	bool one_call;	     /* the text after the first call is not read */
	bool no_reasoning; /* reasoning is left out */
};

struct cairn_output_parser;

int cairn_output_parser_new(const struct cairn_output_rules *rules, struct cairn_output_parser **out);
void cairn_output_parser_free(struct cairn_output_parser *p); /* p may be NULL */

/* Appends pieces to *out; if memory runs out, sets out->text.failed. Returns whether one_call is fulfilled.
 */
bool cairn_output_parser_push(struct cairn_output_parser *p, const char *text, size_t n,
			      struct cairn_output *out);
/* The text has ended: appends what has been held back. */
void cairn_output_parser_finish(struct cairn_output_parser *p, struct cairn_output *out);
/* Returns whether the model is reasoning at the end of the text so far. */
bool cairn_output_parser_reasons(const struct cairn_output_parser *p);
int32_t cairn_output_parser_calls(const struct cairn_output_parser *p); /* number of calls so far */

#endif
