/* SPDX-License-Identifier: Apache-2.0 */
/*
 * chat_template - renders a conversation as the text its model was trained on
 *
 * Checkpoints carry a Jinja template that turns messages into one text. This module runs the part of Jinja
 * that such templates use, with the settings of transformers (trim_blocks, lstrip_blocks, loop controls, its
 * own tojson); the output is equal to that of transformers byte for byte:
 *
 *   statements  for (if, else, break, continue), if/elif/else, set (names, tuples, namespace members,
 *               blocks), macro, generation (transparent), raw, comments, - and + at tags
 *   operators   + - * / // % ** ~ == != < <= > >= in, not in, and or not, inline if, is, is not, |,
 *               [], slices, .name, calls with keyword arguments, lists, tuples, dicts
 *   functions   range namespace dict raise_exception strftime_now
 *   loop        index index0 revindex revindex0 first last length previtem nextitem depth depth0 cycle()
 *   filters     abs capitalize count d default dictsort first float indent int items join last length list
 *               lower map reject rejectattr replace reverse safe select selectattr string title tojson
 *               trim unique upper
 *   tests       those of Jinja except escaped, filter, test
 *   methods     str: capitalize endswith find count join lower lstrip removeprefix removesuffix replace
 *               rfind rstrip rsplit split splitlines startswith strip title upper isdigit isalpha isspace
 *               dict: get items keys values
 *
 * Any other construct is rejected: unknown statements, filters and tests when the template is opened, the
 * rest when it is evaluated. The error names the line and the construct. A template can reach only the values
 * passed to it, and nothing outside this list is ever executed.
 *
 * upper() and title() map character by character; the only character that becomes two is sharp s.
 *
 * Every render has budgets: steps (one node of the template, or 32 bytes moved or compared), bytes of output,
 * bytes of memory. Opening has its own limits: 1 MiB of source, nesting of 100, 4096 names of 255 bytes.
 *
 * Origin of text: every operation tracks which bytes come from the conversation (messages, tools, extra) and
 * which from the template or its special tokens, and the result lists the former. A tokenizer then encodes
 * "<|eot_id|>" as the end of a turn where the template wrote it, and as ten characters where a user did
 * (cairn_tokenizer_encode_parts()).
 *
 * Errors:  -EINVAL (syntax, a budget, raise_exception, a type error), -EOPNOTSUPP (a construct that is not
 *          supported), -EIO, -ENOMEM. Out parameters are written on success only.
 * Threads: an open template is read-only and may be shared.
 */
#ifndef CAIRN_CHAT_TEMPLATE_H
#define CAIRN_CHAT_TEMPLATE_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>

#include "serving/tokenizer/tokenizer.h"

struct cairn_chat_template;

/*
 * dir: a checkpoint directory. The template is the file chat_template.jinja if it exists, otherwise the
 * member chat_template of tokenizer_config.json: a text, or a list of {"name", "template"} from which `name`
 * (NULL: "default") is chosen. bos_token, eos_token and the other special tokens are read from
 * tokenizer_config.json. -ENOENT: the checkpoint has no template.
 */
int cairn_chat_template_load(const char *dir, const char *name, struct cairn_chat_template **out);
/*
 * Reads tokenizer_config.json of a checkpoint directory, with every number as a real one. Stores NULL if
 * there is no such file. The caller calls json_decref().
 */
int cairn_chat_template_config(const char *dir, json_t **out);
/*
 * source: the template itself. tokens: an object with special tokens, as tokenizer_config.json has them; may
 * be NULL. name: the beginning of error messages.
 */
int cairn_chat_template_open(const char *source, size_t num_bytes, const json_t *tokens, const char *name,
			     struct cairn_chat_template **out);
/* The template itself, NUL-terminated; valid as long as t. */
const char *cairn_chat_template_source(const struct cairn_chat_template *t);
void cairn_chat_template_free(struct cairn_chat_template *t); /* t may be NULL */

struct cairn_chat_budget {
	int64_t max_steps;             /* 0: 4,000,000 */
	size_t max_output, max_memory; /* bytes; 0: 16 MiB, 256 MiB */
};

struct cairn_chat_input {
	const json_t *messages; /* an array */
	const json_t *tools;    /* the variable tools: an array, or NULL */
	const json_t *extra;    /* more variables: an object, or NULL */
	bool add_generation_prompt;
	time_t now; /* the time for strftime_now, shown in local time */
	struct cairn_chat_budget budget;
};

struct cairn_chat_text {
	char *text; /* malloc()ed, NUL-terminated; cairn_chat_text_free() frees it */
	size_t num_bytes;
	struct cairn_text_part *user; /* parts from the conversation: ascending, not adjacent, not empty */
	size_t num_user;
};

int cairn_chat_template_render(const struct cairn_chat_template *t, const struct cairn_chat_input *in,
			       struct cairn_chat_text *out);
void cairn_chat_text_free(struct cairn_chat_text *text);

#endif
