// SPDX-License-Identifier: Apache-2.0
/* api_request - parses the body of a request: size checks, simple members */
#include "serving/api/api_request.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "primitives/base/error.h"
#include "serving/api/api_request_impl.h"
#include "serving/base/json.h"
#include "serving/base/utf8.h"

#define MAX_BODY (8u << 20)
#define DEFAULT_TOKENS 16 /* max_tokens of a completion by default, as in OpenAI's API */

int cairn_api_refuse(struct cairn_api_error *error, int status, const char *code, const char *param,
		     const char *fmt, ...)
{
	va_list ap;

	*error = (struct cairn_api_error) { .status = status, .code = code };
	error->type = status == 429   ? "rate_limit_error"
		      : status >= 500 ? "server_error"
				      : "invalid_request_error";
	snprintf(error->param, sizeof(error->param), "%s", param ? param : "");
	va_start(ap, fmt);
	vsnprintf(error->message, sizeof(error->message), fmt, ap);
	va_end(ap);
	return status == 500 ? -ENOMEM : -EINVAL;
}

int cairn_api_no_memory(struct parse *p)
{
	return cairn_api_refuse(p->error, 500, NULL, NULL, "no memory for this request");
}

int cairn_api_wrong_type(struct parse *p, const char *name, const char *want, const json_t *value)
{
	return cairn_api_refuse(p->error, 400, "invalid_type", name, "%s must be %s, is %s", name, want,
				cairn_json_type_name(value));
}

int cairn_api_invalid(struct parse *p, const char *param, const char *what)
{
	return cairn_api_refuse(p->error, 400, "invalid_value", param, "%s %s", param, what);
}

void cairn_api_member(char param[96], const char *where, const char *name)
{
	char quoted[CAIRN_QUOTE_LEN];

	cairn_quote(name, strlen(name), quoted);
	snprintf(param, 96, "%.60s.%.*s", where, (int)strlen(quoted) - 2, quoted + 1);
}

enum type { BOOL, INT, NUMBER, TEXT, OTHER };

#define COMPLETION (1u << CAIRN_API_COMPLETION)
#define CHAT (1u << CAIRN_API_CHAT)
#define TOKENIZE (1u << CAIRN_API_TOKENIZE)
#define DETOKENIZE (1u << CAIRN_API_DETOKENIZE)
#define GENERATE (COMPLETION | CHAT)
#define AT(member) offsetof(struct cairn_api_request, member)

#define OPEN 1 /* lo itself is excluded */

static const struct field {
	const char *name;
	unsigned kinds;
	enum type type;
	size_t at;
	double lo, hi; /* bounds of the value; TEXT: of its length in bytes */
	int open;
	take_fn *take;
} fields[] = {
	{ "model", GENERATE | TOKENIZE | DETOKENIZE, OTHER, 0, 0, 0, 0, cairn_api_take_model },
	{ "prompt", COMPLETION | TOKENIZE, OTHER, 0, 0, 0, 0, cairn_api_take_prompt },
	{ "messages", CHAT | TOKENIZE, OTHER, 0, 0, 0, 0, cairn_api_take_messages },
	{ "tokens", DETOKENIZE, OTHER, 0, 0, 0, 0, cairn_api_take_tokens },
	{ "chat_template_kwargs", CHAT | TOKENIZE, OTHER, 0, 0, 0, 0, cairn_api_take_template_args },
	{ "add_generation_prompt", CHAT | TOKENIZE, BOOL, AT(add_generation_prompt), 0, 0, 0, NULL },
	{ "add_special_tokens", GENERATE | TOKENIZE, BOOL, AT(add_special_tokens), 0, 0, 0, NULL },
	{ "return_token_strs", TOKENIZE, BOOL, AT(return_token_strs), 0, 0, 0, NULL },
	{ "n", GENERATE, INT, AT(n), 1, CAIRN_API_MAX_N, 0, NULL },
	{ "max_tokens", GENERATE, INT, AT(max_tokens), 0, INT32_MAX, 0, NULL },
	{ "max_completion_tokens", GENERATE, INT, AT(max_tokens), 0, INT32_MAX, 0, NULL },
	{ "min_tokens", GENERATE, INT, AT(min_tokens), 0, INT32_MAX, 0, NULL },
	{ "temperature", GENERATE, NUMBER, AT(temperature), 0, 2, 0, NULL },
	{ "top_p", GENERATE, NUMBER, AT(top_p), 0, 1, OPEN, NULL },
	{ "top_k", GENERATE, INT, AT(top_k), -1, INT32_MAX, 0, NULL },
	{ "min_p", GENERATE, NUMBER, AT(min_p), 0, 1, 0, NULL },
	{ "seed", GENERATE, INT, AT(seed), (double)INT64_MIN, (double)INT64_MAX, 0, NULL },
	{ "presence_penalty", GENERATE, NUMBER, AT(presence_penalty), -2, 2, 0, NULL },
	{ "frequency_penalty", GENERATE, NUMBER, AT(frequency_penalty), -2, 2, 0, NULL },
	{ "repetition_penalty", GENERATE, NUMBER, AT(repetition_penalty), 0, 10, OPEN, NULL },
	{ "logit_bias", GENERATE, OTHER, 0, 0, 0, 0, cairn_api_take_bias },
	{ "logprobs", GENERATE, OTHER, 0, 0, 0, 0, cairn_api_take_logprobs },
	{ "top_logprobs", CHAT, OTHER, 0, 0, 0, 0, cairn_api_take_logprobs },
	{ "echo", GENERATE, BOOL, AT(echo), 0, 0, 0, NULL },
	{ "prompt_logprobs", GENERATE, INT, AT(prompt_logprobs), 0, CAIRN_API_MAX_LOGPROBS, 0, NULL },
	{ "tools", CHAT | TOKENIZE, OTHER, 0, 0, 0, 0, cairn_api_take_tools },
	{ "tool_choice", CHAT, OTHER, 0, 0, 0, 0, cairn_api_take_tool_choice },
	{ "parallel_tool_calls", CHAT, BOOL, AT(parallel_tool_calls), 0, 0, 0, NULL },
	{ "include_reasoning", CHAT, BOOL, AT(include_reasoning), 0, 0, 0, NULL },
	{ "reasoning_effort", CHAT, OTHER, 0, 0, 0, 0, cairn_api_take_effort },
	{ "stop", GENERATE, OTHER, 0, 0, 0, 0, cairn_api_take_stop },
	{ "stop_token_ids", GENERATE, OTHER, 0, 0, 0, 0, cairn_api_take_stop_ids },
	{ "ignore_eos", GENERATE, BOOL, AT(ignore_eos), 0, 0, 0, NULL },
	{ "include_stop_str_in_output", GENERATE, BOOL, AT(include_stop), 0, 0, 0, NULL },
	{ "skip_special_tokens", GENERATE, BOOL, AT(skip_special_tokens), 0, 0, 0, NULL },
	{ "stream", GENERATE, BOOL, AT(stream), 0, 0, 0, NULL },
	{ "stream_options", GENERATE, OTHER, 0, 0, 0, 0, cairn_api_take_stream_options },
	{ "use_beam_search", GENERATE, BOOL, AT(use_beam_search), 0, 0, 0, NULL },
	{ "length_penalty", GENERATE, NUMBER, AT(length_penalty), -10, 10, 0, NULL },
	{ "user", GENERATE, TEXT, AT(user), 0, 1024, 0, NULL },
	{ "cache_salt", GENERATE, TEXT, AT(cache_salt), 1, 1024, 0, NULL },
	{ "best_of", GENERATE, INT, AT(best_of), 1, INT32_MAX, 0, NULL },
	{ "metadata", GENERATE, OTHER, 0, 0, 0, 0, cairn_api_take_metadata },
	{ "safety_identifier", GENERATE, OTHER, 0, 0, 0, 0, cairn_api_take_identifier },
	{ "response_format", GENERATE, OTHER, 0, 0, 0, 0, cairn_api_take_response_format },
	{ "structured_outputs", GENERATE, OTHER, 0, 0, 0, 0, cairn_api_take_structured_outputs },
	{ "prompt_cache_key", GENERATE, OTHER, 0, 0, 0, 0, cairn_api_take_identifier },
};

bool cairn_api_integer(const json_t *value, int64_t *integer)
{
	double d = json_real_value(value);

	if (json_is_integer(value)) {
		*integer = json_integer_value(value);
		return true;
	}
	if (!json_is_real(value) || !(d >= -0x1p63 && d < 0x1p63) || d != trunc(d))
		return false;
	*integer = (int64_t)d;
	return true;
}

static int take_int(struct parse *p, const struct field *f, json_t *value)
{
	int64_t *to = (int64_t *)((char *)p->req + f->at), i;

	if (!cairn_api_integer(value, &i))
		return cairn_api_wrong_type(p, f->name, "an integer", value);
	/* a double cannot represent the 64-bit bounds exactly, but no int64_t exceeds them */
	if ((double)i < f->lo || (double)i > f->hi)
		return cairn_api_refuse(p->error, 400, "invalid_value", f->name,
					"%s must be %.0f to %.0f, is %lld", f->name, f->lo, f->hi,
					(long long)i);
	*to = i;
	return 0;
}

static int take_number(struct parse *p, const struct field *f, json_t *value)
{
	double *to = (double *)((char *)p->req + f->at), d;

	if (!json_is_number(value))
		return cairn_api_wrong_type(p, f->name, "a number", value);
	d = json_number_value(value);
	if (!(d >= f->lo && d <= f->hi) || (f->open && d == f->lo))
		return cairn_api_refuse(p->error, 400, "invalid_value", f->name,
					"%s must be %s %g and at most %g, is %g", f->name,
					f->open ? "above" : "at least", f->lo, f->hi, d);
	*to = d;
	return 0;
}

static int take(struct parse *p, const struct field *f, json_t *value)
{
	switch (f->type) {
	case BOOL:
		if (!json_is_boolean(value))
			return cairn_api_wrong_type(p, f->name, "true or false", value);
		*(bool *)((char *)p->req + f->at) = json_is_true(value);
		return 0;
	case INT:
		return take_int(p, f, value);
	case NUMBER:
		return take_number(p, f, value);
	case TEXT:
		if (!json_is_string(value))
			return cairn_api_wrong_type(p, f->name, "a string", value);
		if ((double)json_string_length(value) < f->lo || (double)json_string_length(value) > f->hi)
			return cairn_api_refuse(p->error, 400, "invalid_value", f->name,
						"%s must have %.0f to %.0f bytes, has %zu", f->name, f->lo,
						f->hi, json_string_length(value));
		*(const char **)((char *)p->req + f->at) = json_string_value(value);
		return 0;
	default:
		return f->take(p, f->name, value);
	}
}

static int take_member(struct parse *p, const char *name, json_t *value)
{
	char quoted[CAIRN_QUOTE_LEN];
	int ret;

	for (size_t i = 0; i < sizeof(fields) / sizeof(*fields); i++) {
		if (strcmp(fields[i].name, name))
			continue;
		if (!(fields[i].kinds & 1u << p->req->kind)) {
			ret = cairn_api_take_neutral(p, name, value);
			if (ret <= 0)
				return ret;
			return cairn_api_refuse(p->error, 400, "unsupported_parameter", name,
						"%s is not supported by this endpoint", name);
		}
		return json_is_null(value) ? 0 : take(p, &fields[i], value);
	}
	ret = cairn_api_take_neutral(p, name, value);
	if (ret <= 0)
		return ret;
	cairn_quote(name, strlen(name), quoted);
	cairn_api_refuse(p->error, 400, "unknown_parameter", NULL, "%s is not a parameter of this endpoint",
			 quoted);
	/* the name without quotes, truncated like the quoted one */
	snprintf(p->error->param, sizeof(p->error->param), "%.*s", (int)strlen(quoted) - 2, quoted + 1);
	return -EINVAL;
}

/* Copies a member name for an error's param; name is "" if it is long or has unusual characters. */
static void take_name(const char *s, size_t n, char name[96])
{
	bool plain = n < 96;

	for (size_t i = 0; i < n && plain; i++)
		plain = (s[i] >= 'a' && s[i] <= 'z') || s[i] == '_';
	snprintf(name, 96, "%.*s", plain ? (int)n : 0, s);
}

/*
 * Finds the member of the outermost object that contains byte `at`, for errors about invalid JSON. is_key:
 * the member's name ends at that byte. name is "" if no member contains it.
 */
static void member_at(const char *s, size_t at, bool is_key, char name[96])
{
	size_t begin = 0, end = 0;
	int depth = 0;

	name[0] = 0;
	for (size_t i = 0; i < at; i++) {
		if (s[i] == '"') {
			begin = i + 1;
			for (i++; i < at && s[i] != '"'; i++)
				i += s[i] == '\\';
			end = i < at ? i : at;
		} else if (s[i] == '{' || s[i] == '[') {
			depth++;
		} else if (s[i] == '}' || s[i] == ']') {
			depth--;
		} else if (s[i] == ':' && depth == 1) {
			take_name(s + begin, end - begin, name);
		}
		if (depth == 0 || (depth == 1 && i < at && s[i] == ','))
			name[0] = 0;
	}
	if (is_key && depth == 1)
		take_name(s + begin, end - begin, name);
}

/*
 * Checks the depth and the number of values before the body is parsed: the JSON parser would allow a depth of
 * 2048, and it needs a hundred bytes of memory or more for a value of two bytes. An array or object that is
 * not empty has one value more than commas, so every comma counts as a value, and so does every bracket that
 * opens one.
 */
static int check_size(struct parse *p, const char *s, size_t n)
{
	int depth = 0, values = 1;

	for (size_t i = 0; i < n; i++) {
		if (s[i] == '"') {
			for (i++; i < n && s[i] != '"'; i++)
				i += s[i] == '\\';
		} else if (s[i] == '{' || s[i] == '[') {
			depth++;
			values++;
		} else if (s[i] == '}' || s[i] == ']') {
			depth--;
		} else if (s[i] == ',') {
			values++;
		}
		if (depth > CAIRN_API_MAX_DEPTH)
			return cairn_api_refuse(p->error, 400, "invalid_json", NULL,
						"the body is nested deeper than %d", CAIRN_API_MAX_DEPTH);
		if (values > CAIRN_API_MAX_VALUES)
			return cairn_api_refuse(p->error, 413, "request_too_large", NULL,
						"the body has more than %d values", CAIRN_API_MAX_VALUES);
	}
	return 0;
}

static int parse_body(struct parse *p, const char *body, size_t num_bytes)
{
	size_t max = p->limits->max_body ? p->limits->max_body : MAX_BODY;
	char quoted[CAIRN_QUOTE_LEN], name[96];
	json_error_t e;

	if (num_bytes > max)
		return cairn_api_refuse(p->error, 413, "request_too_large", NULL,
					"a body of %zu bytes, at most %zu are accepted", num_bytes, max);
	CAIRN_TRY(check_size(p, body, num_bytes));
	p->req->root = json_loadb(body, num_bytes, JSON_REJECT_DUPLICATES, &e);
	if (!p->req->root) {
		size_t at = e.position > 0 ? (size_t)e.position : 0;

		if (json_error_code(&e) == json_error_out_of_memory)
			return cairn_api_no_memory(p);
		member_at(body, at < num_bytes ? at : num_bytes,
			  json_error_code(&e) == json_error_duplicate_key, name);
		return cairn_api_refuse(p->error, 400, "invalid_json", name,
					"the body is not JSON: line %d, column %d: %s", e.line, e.column,
					cairn_quote(e.text, strlen(e.text), quoted));
	}
	if (!json_is_object(p->req->root))
		return cairn_api_refuse(p->error, 400, "invalid_json", NULL,
					"the body must be an object, is %s",
					cairn_json_type_name(p->req->root));
	return 0;
}

static int parse_all(struct parse *p, const char *body, size_t num_bytes)
{
	const char *name;
	json_t *value;

	CAIRN_TRY(parse_body(p, body, num_bytes));
	if (p->req->kind == CAIRN_API_RESPONSES) {
		p->req->kind = CAIRN_API_CHAT;
		CAIRN_TRY(cairn_api_convert_responses(p));
	}
	json_object_foreach(p->req->root, name, value) CAIRN_TRY(take_member(p, name, value));
	return cairn_api_check_rules(p);
}

int cairn_api_request_parse(enum cairn_api_kind kind, const char *body, size_t num_bytes,
			    const struct cairn_api_limits *limits, struct cairn_api_request *out,
			    struct cairn_api_error *error)
{
	struct cairn_api_request r = {
		.kind = kind,
		.n = 1,
		.temperature = 1,
		.top_p = 1,
		.repetition_penalty = 1,
		.length_penalty = 1,
		.logprobs = -1,
		.prompt_logprobs = -1,
		.add_generation_prompt = true,
		.skip_special_tokens = true,
		.parallel_tool_calls = true,
		.include_reasoning = true,
		.model = limits->num_models ? limits->models[0] : NULL,
	};
	struct parse p = { &r, limits, error };
	int ret;

	if (limits->defaults) {
		r.temperature = limits->defaults->temperature;
		r.top_p = limits->defaults->top_p;
		r.top_k = limits->defaults->top_k;
		r.min_p = limits->defaults->min_p;
		r.repetition_penalty = limits->defaults->repetition_penalty;
	}
	ret = parse_all(&p, body, num_bytes);

	if (ret)
		cairn_api_request_free(&r);
	else
		*out = r;
	return ret;
}

void cairn_api_request_free(struct cairn_api_request *r)
{
	json_decref(r->messages);
	json_decref(r->tools);
	json_decref(r->template_args);
	json_decref(r->root);
	json_decref(r->given);
	free(r->prompts);
	free(r->ids);
	free(r->bias);
	free(r->constraint_text);
	*r = (struct cairn_api_request) { 0 };
}

const char *cairn_api_prompt_name(const struct cairn_api_request *r)
{
	return r->given ? "input" : r->kind == CAIRN_API_CHAT || r->messages ? "messages" : "prompt";
}

int cairn_api_fit(const struct cairn_api_request *r, const struct cairn_api_limits *limits, size_t num_tokens,
		  int32_t *max_tokens, struct cairn_api_error *error)
{
	const char *param = cairn_api_prompt_name(r);
	int64_t room = (int64_t)limits->max_context - (int64_t)num_tokens;
	int64_t want = r->max_tokens;

	if (!num_tokens)
		return cairn_api_refuse(error, 400, "invalid_value", param, "%s has no tokens", param);
	if (!want) {
		/* the default must not contradict min_tokens, which the client did give */
		want = r->min_tokens > DEFAULT_TOKENS ? r->min_tokens : DEFAULT_TOKENS;
		if (r->kind == CAIRN_API_CHAT || want > room)
			want = room;
	}
	if (want < 1 || want > room || r->min_tokens > want)
		return cairn_api_refuse(
			error, 400, "context_length_exceeded", param,
			"This model's maximum context length is %d tokens, but %zu tokens of %s and "
			"%lld to be generated were asked for",
			(int)limits->max_context, num_tokens, param,
			(long long)(r->max_tokens       ? r->max_tokens
				    : r->min_tokens > 1 ? r->min_tokens
							: 1));
	*max_tokens = (int32_t)want;
	return 0;
}
