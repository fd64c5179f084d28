/* SPDX-License-Identifier: Apache-2.0 */
/* api_request_impl - declarations shared by the files that parse requests */
#ifndef CAIRN_API_REQUEST_IMPL_H
#define CAIRN_API_REQUEST_IMPL_H

#include "serving/api/api_request.h"

struct parse {
	struct cairn_api_request *req;
	const struct cairn_api_limits *limits;
	struct cairn_api_error *error;
};

typedef int take_fn(struct parse *p, const char *name, json_t *value);

/* Parsers of members that are not a single number or string. */
take_fn cairn_api_take_prompt, cairn_api_take_messages, cairn_api_take_stop, cairn_api_take_stop_ids,
	cairn_api_take_bias, cairn_api_take_stream_options, cairn_api_take_template_args,
	cairn_api_take_tokens, cairn_api_take_logprobs, cairn_api_take_model, cairn_api_take_metadata,
	cairn_api_take_identifier, cairn_api_take_tools, cairn_api_take_tool_choice, cairn_api_take_effort,
	cairn_api_take_response_format, cairn_api_take_structured_outputs;

int cairn_api_wrong_type(struct parse *p, const char *name, const char *want, const json_t *value);
int cairn_api_no_memory(struct parse *p);
int cairn_api_invalid(struct parse *p, const char *param, const char *what);
/* Writes where.name, safe to print, for errors about a member of an object within the body. */
void cairn_api_member(char param[96], const char *where, const char *name);

/*
 * Takes the members of /v1/responses that a chat has under other names, and makes the body of a chat of the
 * others: req->root, which becomes req->given.
 */
int cairn_api_convert_responses(struct parse *p);

/*
 * Append a message to the request's messages, a function to its tools. where: its place in the body, for
 * errors. The checks are those of the whole lists.
 */
int cairn_api_add_message(struct parse *p, const char *where, json_t *message);
int cairn_api_check_messages(struct parse *p, const char *name, const json_t *value);
int cairn_api_add_tool(struct parse *p, const char *where, json_t *function);
int cairn_api_check_tools(struct parse *p, const char *name, const json_t *value);
int cairn_api_check_tool_rules(struct parse *p);

/* Accepts integers spelled as floats (16.0). Returns false if value is no integer or exceeds 64 bits. */
bool cairn_api_integer(const json_t *value, int64_t *integer);

/*
 * Parses a schema with its name, description and strict. where: the place of these in the body, for errors;
 * schema: that of the schema, a literal, which becomes req->constraint_param.
 */
int cairn_api_take_schema(struct parse *p, const char *where, const char *schema, json_t *holder);

/* Checks the rules between members, all of which have been parsed (api_rules.c). */
int cairn_api_check_rules(struct parse *p);

/* The same for those that involve a constraint (api_constraint.c). */
int cairn_api_check_constraint(struct parse *p);

/* Accepts or refuses a member of api_neutral.c's list. Returns 1 if the list lacks it. */
int cairn_api_take_neutral(struct parse *p, const char *name, const json_t *value);

#endif
