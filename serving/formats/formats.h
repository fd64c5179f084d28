/* SPDX-License-Identifier: Apache-2.0 */
/*
 * formats - how models write tool calls and reasoning into their answers
 *
 * One table describes every format. Its patterns are used in both directions: output_parser.c reads answers
 * with them, and tool_grammar.c makes from them the grammar that a forced call must match.
 *
 * In a pattern:
 *   %n     the tool's name
 *   %d     a number
 *   %i     an id of letters and digits
 *   %a     the arguments, a JSON object
 *   %o     a JSON object with the members "name" and "arguments" (or "parameters")
 *   %p     any number of parameters, each in the form of `parameter`
 *   %k %v  in `parameter`: name and value of a parameter
 *   white space    reading: any run of white space, even an empty one; grammar: this very text
 * Everything else is literal.
 *
 * Names, as vLLM has them:
 *   tools      hermes (Qwen2.5, Qwen3), qwen3_coder (qwen3_xml), llama3_json, mistral, deepseek_v3,
 *              deepseek_v31, glm45, kimi_k2, openai (gpt-oss)
 *   reasoning  qwen3, deepseek_r1 (everything before </think>), deepseek_v3, glm45, kimi_k2, mistral,
 *              openai_gptoss
 */
#ifndef CAIRN_FORMATS_H
#define CAIRN_FORMATS_H

#include "serving/api/api_response.h"

#define CAIRN_TOOL_FORMS 4

/* The form that the id of a call must have, because the chat template checks it or prints it. */
enum cairn_call_id {
	CAIRN_CALL_ID,	       /* call_ and 24 hexadecimal digits */
	CAIRN_CALL_ID_MISTRAL, /* nine letters and digits */
	CAIRN_CALL_ID_KIMI,    /* functions.NAME:NUMBER, as the model wrote it */
};

/* One way to write calls. A form that begins with no literal is read only where the answer begins. */
struct cairn_tool_form {
	const char *begin; /* before the first call; NULL: this and the following forms do not exist */
	const char *call;
	const char *between, *end; /* between two calls; after the last */
	const char *needs;	   /* grammar: this form is written only if the tokenizer has this token */
};

struct cairn_tool_format {
	const char *name, *alias; /* alias may be NULL */
	const char *hints[3];	  /* a chat template that contains all of these teaches this format */
	const char *arguments;	  /* grammar: the member of %o with the arguments */
	const char *parameter;	  /* of %p */
	enum cairn_call_id id;
	bool harmony; /* read by harmony.c: messages in channels */
	struct cairn_tool_form forms[CAIRN_TOOL_FORMS];
};

struct cairn_reasoning_format {
	const char *name;
	const char *begin, *end;
	bool begun; /* the answer begins inside the reasoning, even without the mark */
	bool harmony;
	const char *hint; /* a chat template that contains this uses the format; NULL: none does */
};

extern const struct cairn_tool_format cairn_tool_formats[]; /* ends with a row without a name */
extern const struct cairn_reasoning_format cairn_reasoning_formats[];

/*
 * Finds the format by its name. "auto" detects it from the source of the chat template (NULL: there is
 * none), which may fail to show any. "none" finds none. Returns 0 and the format or NULL, or -EINVAL with an
 * error that lists the names.
 */
int cairn_tool_format_find(const char *name, const char *source, const struct cairn_tool_format **out);
int cairn_reasoning_format_find(const char *name, const char *source,
				const struct cairn_reasoning_format **out);

/* Returns whether a special token is part of a mark of these formats, each of which may be NULL. */
bool cairn_formats_have(const struct cairn_tool_format *tools,
			const struct cairn_reasoning_format *reasoning, const char *token);

/* Tool names that requests may use: letters, digits, _ - and dots, 1 to CAIRN_MAX_TOOL_NAME bytes. */
#define CAIRN_MAX_TOOL_NAME 64
size_t cairn_tool_name_len(const char *s, size_t n); /* length of the name that s begins with */

/* Returns the definition of a function, {"name", "parameters", ...}, in a request's tools, or NULL. */
const json_t *cairn_tool_find(const json_t *tools, const char *name, size_t len);

/*
 * Writes a parameter's value, given as bare text, as JSON: as what the tool's schema allows, or if this is
 * no such JSON, as a string.
 */
void cairn_parameter_json(struct cairn_api_out *out, const json_t *function, const char *key, size_t key_len,
			  const char *value, size_t len);

/*
 * Returns a new list with what a parser of answers needs of a request's tools: their names and, if the
 * format writes parameters as text, the types of parameters and the texts among their choices, up to
 * CAIRN_MAX_TYPED together; all other parameters may have any type. NULL: no memory.
 */
#define CAIRN_MAX_TYPED 4096
json_t *cairn_tool_outline(const struct cairn_tool_format *format, const json_t *tools);

/*
 * Writes the Lark grammar, in llguidance's dialect, of an answer that calls at least one tool, after its
 * reasoning if there is any. Fails with -EOPNOTSUPP if the format has no form for this tokenizer, -ENOENT if
 * no tool has this name, -EINVAL if it would be longer than CAIRN_GRAMMAR_MAX_TEXT, -ENOMEM.
 */
struct cairn_tool_grammar {
	const struct cairn_tool_format *format;
	const struct cairn_reasoning_format *reasoning; /* or NULL */
	bool reasons;					/* the prompt leaves the model in its reasoning */
	const json_t *tools;
	const char *name; /* the only tool that may be called; NULL: any */
	bool parallel;	  /* several calls may follow each other */
	/* Returns the id of the special token with this spelling, or -1. */
	int32_t (*token)(void *ctx, const char *s, size_t n);
	void *ctx;
};
int cairn_tool_grammar(const struct cairn_tool_grammar *g, struct cairn_api_out *out);

#endif
