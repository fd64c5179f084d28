// SPDX-License-Identifier: Apache-2.0
/* api_rules - checks the rules that involve more than one member of a request */
#include <string.h>

#include "primitives/base/error.h"
#include "serving/api/api_request_impl.h"

static int need(struct parse *p, const char *name)
{
	return cairn_api_refuse(p->error, 400, "missing_parameter", name, "%s is missing", name);
}

static bool given(const struct parse *p, const char *name)
{
	const json_t *v = json_object_get(p->req->root, name);

	return v && !json_is_null(v);
}

/* Returns false if both are integers and differ. */
static bool same_integer(const json_t *a, const json_t *b)
{
	int64_t x, y;

	return !cairn_api_integer(a, &x) || !cairn_api_integer(b, &y) || x == y;
}

static int clash(struct parse *p, const char *name, const char *with)
{
	return cairn_api_refuse(p->error, 400, "invalid_value", name, "%s does not go with %s", name, with);
}

static int check_beams(struct parse *p)
{
	static const char *const sampling[] = { "top_p",
						"top_k",
						"min_p",
						"seed",
						"presence_penalty",
						"frequency_penalty",
						"repetition_penalty",
						"logit_bias",
						"temperature",
						"min_tokens" };
	struct cairn_api_request *r = p->req;

	if (!r->use_beam_search)
		return given(p, "length_penalty") && r->length_penalty != 1
			       ? cairn_api_refuse(p->error, 400, "invalid_value", "length_penalty",
						  "length_penalty needs use_beam_search")
			       : 0;
	for (size_t i = 0; i < sizeof(sampling) / sizeof(*sampling); i++)
		if (given(p, sampling[i]) && !(!strcmp(sampling[i], "temperature") && r->temperature == 0))
			return clash(p, sampling[i], "use_beam_search");
	if (r->stream)
		return clash(p, "stream", "use_beam_search");
	if (r->logprobs > 0)
		return cairn_api_refuse(p->error, 400, "invalid_value",
					given(p, "top_logprobs") ? "top_logprobs" : "logprobs",
					"log-probabilities above 0 do not go with use_beam_search");
	if (r->n > CAIRN_API_MAX_BEAMS)
		return cairn_api_refuse(p->error, 400, "invalid_value", "n",
					"n must be 1 to %d with use_beam_search, is %lld",
					CAIRN_API_MAX_BEAMS, (long long)r->n);
	/* the sampling defaults of the checkpoint do not apply either */
	r->temperature = r->min_p = 0;
	r->top_k = 0;
	r->top_p = r->repetition_penalty = 1;
	return 0;
}

/* max_tokens 0 needs echo or prompt_logprobs: without them the answer would be empty. */
static int check_echo(struct parse *p)
{
	static const char *const names[] = { "max_tokens", "max_completion_tokens" };
	struct cairn_api_request *r = p->req;
	int64_t max;

	if (r->echo && r->kind == CAIRN_API_CHAT)
		return cairn_api_refuse(p->error, 400, "unsupported_parameter", "echo",
					"echo is not supported by this endpoint");
	for (int i = 0; i < 2; i++) {
		if (!cairn_api_integer(json_object_get(r->root, names[i]), &max) || max)
			continue;
		if (!r->echo && r->prompt_logprobs < 0)
			return cairn_api_refuse(p->error, 400, "invalid_value", names[i],
						"%s must be 1 to %d, is 0 (0 needs echo or prompt_logprobs)",
						names[i], INT32_MAX);
		r->no_answer = true;
		r->max_tokens = 1;	/* the engine draws one token, which is dropped */
	}
	if (r->prompt_logprobs >= 0 && r->stream)
		return clash(p, "prompt_logprobs", "stream");
	if (r->prompt_logprobs >= 0 && r->use_beam_search)
		return clash(p, "prompt_logprobs", "use_beam_search");
	return r->echo && r->logprobs >= 0 && r->use_beam_search ?
		       clash(p, "logprobs", "echo and use_beam_search") : 0;
}

int cairn_api_check_rules(struct parse *p)
{
	struct cairn_api_request *r = p->req;
	const bool chat = r->messages != NULL;

	if (r->kind == CAIRN_API_DETOKENIZE)
		return given(p, "tokens") ? 0 : need(p, "tokens");
	if (r->kind == CAIRN_API_CHAT && !chat)
		return need(p, "messages");
	if (r->kind == CAIRN_API_TOKENIZE && chat && r->prompts)
		return clash(p, "messages", "prompt");
	if (!chat && !r->prompts)
		return need(p, "prompt");
	if (r->kind == CAIRN_API_TOKENIZE && !chat && (r->num_prompts != 1 || !r->prompts->text))
		return cairn_api_refuse(p->error, 400, "invalid_type", "prompt", "prompt must be one text");
	if (chat && !p->limits->has_template)
		return cairn_api_refuse(p->error, 400, "no_chat_template", cairn_api_prompt_name(r),
					"this model has no chat template");
	if (!chat && (given(p, "add_generation_prompt") || given(p, "chat_template_kwargs")))
		return clash(p,
			     given(p, "add_generation_prompt") ? "add_generation_prompt"
							       : "chat_template_kwargs",
			     "prompt");
	if (!given(p, "add_special_tokens"))
		r->add_special_tokens = !chat;
	for (int32_t i = 0; i < r->num_prompts; i++)
		if (r->kind == CAIRN_API_COMPLETION && r->prompts[i].text && !r->prompts[i].num_bytes &&
		    !(p->limits->adds_bos && r->add_special_tokens))
			return cairn_api_refuse(p->error, 400, "invalid_value", "prompt",
						"prompt %d is empty", (int)i);
	if (r->n * (r->num_prompts ? r->num_prompts : 1) > CAIRN_API_MAX_SEQUENCES)
		return cairn_api_refuse(p->error, 400, "invalid_value", "n",
					"%d prompts times n %lld are more than %d sequences",
					(int)r->num_prompts, (long long)r->n, CAIRN_API_MAX_SEQUENCES);
	if (r->best_of && r->best_of != r->n)
		return cairn_api_refuse(p->error, 400, "unsupported_parameter", "best_of",
					"best_of is not supported: only n, %lld, is accepted",
					(long long)r->n);
	if (!same_integer(json_object_get(r->root, "max_tokens"),
			  json_object_get(r->root, "max_completion_tokens")))
		return clash(p, "max_tokens", "another max_completion_tokens");
	CAIRN_TRY(check_echo(p));
	if (r->max_tokens && r->min_tokens > r->max_tokens)
		return cairn_api_refuse(p->error, 400, "invalid_value", "min_tokens",
					"min_tokens %lld is above max_tokens %lld", (long long)r->min_tokens,
					(long long)r->max_tokens);
	if (given(p, "stream_options") && !r->stream)
		return cairn_api_refuse(p->error, 400, "invalid_value", "stream_options",
					"stream_options needs stream");
	if (r->kind == CAIRN_API_CHAT && !json_is_true(json_object_get(r->root, "logprobs"))) {
		if (r->logprobs > 0)
			return cairn_api_refuse(p->error, 400, "invalid_value", "top_logprobs",
						"top_logprobs needs logprobs");
		r->logprobs = -1;
	}
	CAIRN_TRY(cairn_api_check_tool_rules(p));
	r->has_seed = given(p, "seed");
	r->top_k = r->top_k < 0 ? 0 : r->top_k;
	CAIRN_TRY(cairn_api_check_constraint(p));
	return check_beams(p);
}
