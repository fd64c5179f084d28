// SPDX-License-Identifier: Apache-2.0
/* api_fields - parses the members of a request that are not a single number or string */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "primitives/base/error.h"
#include "serving/api/api_request_impl.h"
#include "serving/base/json.h"

int cairn_api_take_model(struct parse *p, const char *name, json_t *value)
{
	char quoted[CAIRN_QUOTE_LEN];

	if (!json_is_string(value))
		return cairn_api_wrong_type(p, name, "a string", value);
	for (int i = 0; i < p->limits->num_models; i++) {
		if (strcmp(p->limits->models[i], json_string_value(value)))
			continue;
		p->req->model = p->limits->models[i];
		return 0;
	}
	return cairn_api_refuse(p->error, 404, "model_not_found", name, "the model %s does not exist",
				cairn_quote(json_string_value(value), json_string_length(value), quoted));
}

static int take_id(struct parse *p, const char *name, const char *want, const json_t *value, int32_t *id)
{
	int64_t i;

	if (!cairn_api_integer(value, &i))
		return cairn_api_wrong_type(p, name, want, value);
	if (i < 0 || i >= p->limits->vocab_size)
		return cairn_api_refuse(p->error, 400, "invalid_value", name,
					"%s: token id %lld is not 0 to %d", name, (long long)i,
					p->limits->vocab_size - 1);
	*id = (int32_t)i;
	return 0;
}

/* Appends the token ids of an array to the request's ids. */
static int add_ids(struct parse *p, const char *name, const json_t *array)
{
	size_t num = json_array_size(array), i;
	int32_t *grown;
	json_t *one;

	grown = realloc(p->req->ids, (p->req->num_ids + num + 1) * sizeof(*grown));
	if (!grown)
		return cairn_api_no_memory(p);
	p->req->ids = grown;
	json_array_foreach(array, i, one)
	{
		CAIRN_TRY(take_id(p, name, "a list of token ids alone", one, &grown[p->req->num_ids]));
		p->req->num_ids++;
	}
	return 0;
}

int cairn_api_take_tokens(struct parse *p, const char *name, json_t *value)
{
	if (!json_is_array(value))
		return cairn_api_wrong_type(p, name, "an array", value);
	return add_ids(p, name, value);
}

static int text_prompt(struct parse *p, struct cairn_api_prompt *prompt, const json_t *value)
{
	if (!json_is_string(value))
		return cairn_api_wrong_type(p, "prompt", "of one kind: texts, or lists of token ids", value);
	prompt->text = json_string_value(value);
	prompt->num_bytes = json_string_length(value);
	return 0;
}

/* Parses [texts] or, if ids is set, [[ids]]. */
static int batch(struct parse *p, const json_t *value, bool ids)
{
	struct cairn_api_request *r = p->req;
	size_t num = json_array_size(value), i, done = 0;
	json_t *one;

	if (num > CAIRN_API_MAX_PROMPTS)
		return cairn_api_refuse(p->error, 400, "invalid_value", "prompt",
					"prompt has %zu prompts, at most %d are accepted", num,
					CAIRN_API_MAX_PROMPTS);
	r->num_prompts = (int32_t)num;
	json_array_foreach(value, i, one)
	{
		if (!ids) {
			CAIRN_TRY(text_prompt(p, &r->prompts[i], one));
			continue;
		}
		if (!json_is_array(one))
			return cairn_api_wrong_type(p, "prompt", "of one kind: texts, or lists of token ids",
						    one);
		if (!json_array_size(one))
			return cairn_api_invalid(p, "prompt", "has an empty list of token ids");
		CAIRN_TRY(add_ids(p, "prompt", one));
		r->prompts[i].num_ids = (int32_t)json_array_size(one);
	}
	/* r->ids is complete, so it does not move any more */
	for (i = 0; ids && i < num; i++) {
		r->prompts[i].ids = r->ids + done;
		done += (size_t)r->prompts[i].num_ids;
	}
	return 0;
}

int cairn_api_take_prompt(struct parse *p, const char *name, json_t *value)
{
	struct cairn_api_request *r = p->req;
	const json_t *first;

	r->prompts = calloc(CAIRN_API_MAX_PROMPTS, sizeof(*r->prompts));
	if (!r->prompts)
		return cairn_api_no_memory(p);
	r->num_prompts = 1;
	if (json_is_string(value))
		return text_prompt(p, r->prompts, value);
	if (!json_is_array(value))
		return cairn_api_wrong_type(p, name, "a string or an array", value);
	if (!json_array_size(value))
		return cairn_api_invalid(p, name, "is empty");
	first = json_array_get(value, 0);
	if (json_is_string(first) || json_is_array(first))
		return batch(p, value, json_is_array(first));
	CAIRN_TRY(add_ids(p, name, value));
	r->prompts->ids = r->ids;
	r->prompts->num_ids = (int32_t)r->num_ids;
	return 0;
}

static int take_one_stop(struct parse *p, const json_t *value)
{
	struct cairn_stop_string *s = &p->req->stop[p->req->num_stop];

	if (!json_is_string(value))
		return cairn_api_wrong_type(p, "stop", "a string or a list of strings", value);
	*s = (struct cairn_stop_string) { json_string_value(value), json_string_length(value) };
	if (!s->num_bytes || s->num_bytes > CAIRN_MAX_STOP_BYTES)
		return cairn_api_refuse(p->error, 400, "invalid_value", "stop",
					"stop: a string of %zu bytes, 1 to %d are accepted", s->num_bytes,
					CAIRN_MAX_STOP_BYTES);
	p->req->num_stop++;
	return 0;
}

int cairn_api_take_stop(struct parse *p, const char *name, json_t *value)
{
	size_t i;
	json_t *one;

	if (!json_is_array(value))
		return take_one_stop(p, value);
	if (json_array_size(value) > CAIRN_MAX_STOPS)
		return cairn_api_refuse(p->error, 400, "invalid_value", name,
					"stop has %zu strings, at most %d are accepted",
					json_array_size(value), CAIRN_MAX_STOPS);
	json_array_foreach(value, i, one) CAIRN_TRY(take_one_stop(p, one));
	return 0;
}

int cairn_api_take_stop_ids(struct parse *p, const char *name, json_t *value)
{
	struct cairn_api_request *r = p->req;
	size_t i;
	json_t *one;

	if (!json_is_array(value))
		return cairn_api_wrong_type(p, name, "an array", value);
	if (json_array_size(value) > CAIRN_API_MAX_STOP_IDS)
		return cairn_api_refuse(p->error, 400, "invalid_value", name,
					"%s has %zu ids, at most %d are accepted", name,
					json_array_size(value), CAIRN_API_MAX_STOP_IDS);
	json_array_foreach(value, i, one)
	{
		CAIRN_TRY(take_id(p, name, "a list of token ids", one, &r->stop_ids[r->num_stop_ids]));
		r->num_stop_ids++;
	}
	return 0;
}

int cairn_api_take_bias(struct parse *p, const char *name, json_t *value)
{
	struct cairn_api_request *r = p->req;
	char quoted[CAIRN_QUOTE_LEN];
	const char *key;
	json_t *one;

	if (!json_is_object(value))
		return cairn_api_wrong_type(p, name, "an object", value);
	if (json_object_size(value) > CAIRN_API_MAX_BIAS)
		return cairn_api_refuse(p->error, 400, "invalid_value", name,
					"logit_bias has %zu ids, at most %d are accepted",
					json_object_size(value), CAIRN_API_MAX_BIAS);
	r->bias = calloc(json_object_size(value) + 1, sizeof(*r->bias));
	if (!r->bias)
		return cairn_api_no_memory(p);
	json_object_foreach(value, key, one)
	{
		size_t digits = strspn(key, "0123456789");
		long id = digits && digits < 10 ? strtol(key, NULL, 10) : -1;
		double bias = json_number_value(one);

		/* each id has one accepted spelling, so that no id occurs twice */
		if (key[digits] || id < 0 || id >= p->limits->vocab_size || (digits > 1 && *key == '0'))
			return cairn_api_refuse(p->error, 400, "invalid_value", name,
						"logit_bias: %s is not a token id of 0 to %d",
						cairn_quote(key, strlen(key), quoted),
						p->limits->vocab_size - 1);
		if (!json_is_number(one) || !(bias >= -100 && bias <= 100))
			return cairn_api_refuse(p->error, 400, "invalid_value", name,
						"logit_bias: the bias of %ld must be a number of -100 to 100",
						id);
		r->bias[r->num_bias++] = (struct cairn_api_bias) { (int32_t)id, (float)bias };
	}
	return 0;
}

/* logprobs is a number for completions; for chat it is a boolean that enables top_logprobs. */
int cairn_api_take_logprobs(struct parse *p, const char *name, json_t *value)
{
	bool number = p->req->kind == CAIRN_API_COMPLETION || !strcmp(name, "top_logprobs");
	int64_t i;

	if (!number) {
		if (!json_is_boolean(value))
			return cairn_api_wrong_type(p, name, "true or false", value);
		if (json_is_true(value) && p->req->logprobs < 0)
			p->req->logprobs = 0;
		return 0;
	}
	if (!cairn_api_integer(value, &i))
		return cairn_api_wrong_type(p, name, "an integer", value);
	if (i < 0 || i > CAIRN_API_MAX_LOGPROBS)
		return cairn_api_refuse(p->error, 400, "invalid_value", name, "%s must be 0 to %d, is %lld",
					name, CAIRN_API_MAX_LOGPROBS, (long long)i);
	p->req->logprobs = i;
	return 0;
}

int cairn_api_take_stream_options(struct parse *p, const char *name, json_t *value)
{
	const char *key;
	char param[96], quoted[CAIRN_QUOTE_LEN];
	json_t *one;

	if (!json_is_object(value))
		return cairn_api_wrong_type(p, name, "an object", value);
	json_object_foreach(value, key, one)
	{
		cairn_quote(key, strlen(key), quoted);
		snprintf(param, sizeof(param), "stream_options.%.*s", (int)strlen(quoted) - 2, quoted + 1);
		/* OpenAI pads events with random characters unless this is false; this server never does */
		if (!strcmp(key, "include_obfuscation") && json_is_false(one))
			continue;
		if (strcmp(key, "include_usage") && strcmp(key, "continuous_usage_stats"))
			return cairn_api_refuse(p->error, 400, "unsupported_parameter", param,
						"%s is not supported", param);
		if (!json_is_boolean(one) && !json_is_null(one))
			return cairn_api_wrong_type(p, param, "true or false", one);
		if (*key == 'i')
			p->req->include_usage = json_is_true(one);
		else
			p->req->continuous_usage = json_is_true(one);
	}
	return 0;
}

/* Checks the variables for the template: scalar values under names that the template does not reserve. */
int cairn_api_take_template_args(struct parse *p, const char *name, json_t *value)
{
	static const char *const reserved[] = { "messages",        "add_generation_prompt",
						"tools",           "documents",
						"bos_token",       "eos_token",
						"unk_token",       "sep_token",
						"pad_token",       "cls_token",
						"mask_token",      "range",
						"namespace",       "dict",
						"raise_exception", "strftime_now" };
	char param[96], quoted[CAIRN_QUOTE_LEN];
	const char *key;
	json_t *one;

	if (!json_is_object(value))
		return cairn_api_wrong_type(p, name, "an object", value);
	if (json_object_size(value) > 16)
		return cairn_api_invalid(p, name, "has more than 16 members");
	json_object_foreach(value, key, one)
	{
		cairn_quote(key, strlen(key), quoted);
		snprintf(param, sizeof(param), "%s.%.*s", name, (int)strlen(quoted) - 2, quoted + 1);
		for (size_t i = 0; i < sizeof(reserved) / sizeof(*reserved); i++)
			if (!strcmp(key, reserved[i]))
				return cairn_api_refuse(p->error, 400, "unsupported_parameter", param,
							"%s is not supported", param);
		if (json_is_array(one) || json_is_object(one))
			return cairn_api_wrong_type(p, param, "a text, a number, true, false or null", one);
	}
	/* reasoning_effort is one of them and may have come first */
	if (!p->req->template_args)
		p->req->template_args = json_object();
	return p->req->template_args && !json_object_update(p->req->template_args, value) ?
		       0 : cairn_api_no_memory(p);
}

/* Hands the effort to the template, as the variable that gpt-oss and others read. */
int cairn_api_take_effort(struct parse *p, const char *name, json_t *value)
{
	static const char *const efforts[] = { "none", "minimal", "low", "medium", "high", "xhigh" };
	const char *effort = json_string_value(value);
	int known = 0;

	if (!effort)
		return cairn_api_wrong_type(p, name, "a string", value);
	for (size_t i = 0; i < sizeof(efforts) / sizeof(*efforts); i++)
		known |= !strcmp(effort, efforts[i]);
	if (!known)
		return cairn_api_invalid(p, name, "must be none, minimal, low, medium, high or xhigh");
	if (!p->limits->takes_effort)
		return strcmp(effort, "none") ?
			       cairn_api_refuse(p->error, 400, "unsupported_parameter", name,
						"%s is not supported: the chat template of this model "
						"does not use it; only \"none\" is accepted", name) : 0;
	if (!p->req->template_args)
		p->req->template_args = json_object();
	return p->req->template_args && !json_object_set(p->req->template_args, "reasoning_effort", value) ?
		       0 : cairn_api_no_memory(p);
}

/* These identify the user for the provider's statistics or hint at its prefix cache. They do not change
 * the answer. */
int cairn_api_take_identifier(struct parse *p, const char *name, json_t *value)
{
	return json_is_string(value) ? 0 : cairn_api_wrong_type(p, name, "a string", value);
}

/* OpenAI stores metadata with the answer. This server stores no answers, so metadata has no effect. */
int cairn_api_take_metadata(struct parse *p, const char *name, json_t *value)
{
	return json_is_object(value) ? 0 : cairn_api_wrong_type(p, name, "an object", value);
}
