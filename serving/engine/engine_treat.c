// SPDX-License-Identifier: Apache-2.0
/*
 * engine_treat - treatment of logits: penalties, biases, forbidden tokens and log-probabilities
 *
 * Lists (biases, and end tokens that are still forbidden) belong to a request; submission uploads them. Token
 * counters belong to an answer from its first draw until its end. They stay allocated while it is preempted,
 * because they count what it has drawn.
 */
#include "serving/engine/engine_impl.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define MAX_BIAS	4096

static int has_repetition(const struct cairn_sampling *s)
{
	return s->repetition_penalty != 0 && s->repetition_penalty != 1;
}

static int has_counts(const struct cairn_sampling *s)
{
	return s->presence_penalty != 0 || s->frequency_penalty != 0 || has_repetition(s);
}

static int check_bias(const struct cairn_engine *e, const struct cairn_sampling *s)
{
	if (s->num_bias < 0 || s->num_bias > MAX_BIAS || (s->num_bias && !s->bias))
		return cairn_error(EINVAL, "bias: %d entries, must be 0 to %d", s->num_bias, MAX_BIAS);
	for (int32_t i = 0; i < s->num_bias; i++) {
		if (s->bias[i].token < 0 || s->bias[i].token >= e->config->vocab_size)
			return cairn_error(EINVAL, "bias: token %d, the vocabulary has %d", s->bias[i].token,
					   e->config->vocab_size);
		if (!isfinite(s->bias[i].bias))
			return cairn_error(EINVAL, "bias: the value of token %d is not finite",
					   s->bias[i].token);
		for (int32_t k = 0; k < i; k++) {
			if (s->bias[k].token == s->bias[i].token)
				return cairn_error(EINVAL, "bias: token %d occurs twice", s->bias[i].token);
		}
	}
	return 0;
}

static int check_table(const struct cairn_engine *e, const struct cairn_request *r)
{
	const struct cairn_sampling *s = &r->sampling;
	const char *field = s->num_bias ? "bias" : s->min_new_tokens ? "min_new_tokens" :
		has_repetition(s) ? "repetition_penalty" : s->frequency_penalty != 0 ? "frequency_penalty" :
		s->presence_penalty != 0 ? "presence_penalty" : NULL;

	if (field && !e->impl->penalize)
		return cairn_error(EOPNOTSUPP, "%s: %s: the table has no operation penalize", field,
				   e->impl->name);
	if (has_counts(s) && !e->impl->token_counts)
		return cairn_error(EOPNOTSUPP, "%s: %s: the table has no operation token_counts", field,
				   e->impl->name);
	if (r->prompt_logprobs && (!e->can_score || !e->impl->logprobs))
		return cairn_error(EOPNOTSUPP, "prompt_logprobs: %s: the table has no %s", e->impl->name,
				   e->can_score ? "operation logprobs" : "list of operations for prompts");
	if ((s->num_logprobs || r->beam_width) && !e->impl->logprobs)
		return cairn_error(EOPNOTSUPP, "%s: %s: the table has no operation logprobs",
				   r->beam_width ? "beam_width" : "num_logprobs", e->impl->name);
	return 0;
}

int engine_check_sampling(const struct cairn_engine *e, const struct cairn_request *r)
{
	const struct cairn_sampling *s = &r->sampling;

	if (!(s->temperature >= 0) || isinf(s->temperature))
		return cairn_error(EINVAL, "temperature: is %g, must be >= 0", (double)s->temperature);
	if (s->temperature > 0 && s->top_k < 0)
		return cairn_error(EINVAL, "top_k: is %d, must be >= 0", s->top_k);
	if (s->temperature > 0 && !(s->top_p > 0 && s->top_p <= 1))
		return cairn_error(EINVAL, "top_p: is %g, must be > 0 and <= 1", (double)s->top_p);
	if (s->temperature > 0 && !(s->min_p >= 0 && s->min_p < 1))
		return cairn_error(EINVAL, "min_p: is %g, must be >= 0 and < 1", (double)s->min_p);
	if (!isfinite(s->presence_penalty))
		return cairn_error(EINVAL, "presence_penalty: is not finite");
	if (!isfinite(s->frequency_penalty))
		return cairn_error(EINVAL, "frequency_penalty: is not finite");
	if (!(s->repetition_penalty >= 0) || isinf(s->repetition_penalty))
		return cairn_error(EINVAL, "repetition_penalty: is %g, must be > 0 (or 0: off)",
				   (double)s->repetition_penalty);
	if (s->min_new_tokens < 0 || s->min_new_tokens > r->max_new_tokens + r->num_given)
		return cairn_error(EINVAL, "min_new_tokens: is %d, must be in 0..%d (max_new_tokens)",
				   s->min_new_tokens, r->max_new_tokens + r->num_given);
	if (s->num_logprobs < 0 || s->num_logprobs > 1 + CAIRN_MAX_LOGPROBS)
		return cairn_error(EINVAL, "num_logprobs: is %d, must be in 0..%d", s->num_logprobs,
				   1 + CAIRN_MAX_LOGPROBS);
	if (r->prompt_logprobs < 0 || r->prompt_logprobs > 1 + CAIRN_MAX_LOGPROBS)
		return cairn_error(EINVAL, "prompt_logprobs: is %d, must be in 0..%d", r->prompt_logprobs,
				   1 + CAIRN_MAX_LOGPROBS);
	if (r->prompt_logprobs && e->opt.repeatable)
		return cairn_error(EINVAL, "prompt_logprobs: does not go with repeatable");
	if (r->prompt_logprobs && r->beam_width)
		return cairn_error(EINVAL, "prompt_logprobs: does not go with beam_width");
	CAIRN_TRY(check_bias(e, s));
	return check_table(e, r);
}

int engine_treat_create(struct cairn_engine *e)
{
	int32_t num = CAIRN_WORKER_SLOTS(e->max_draws);

	e->treats = calloc((size_t)e->max_draws, sizeof(*e->treats));
	e->count_slots = calloc((size_t)num, sizeof(*e->count_slots));
	e->paths = calloc((size_t)e->max_draws, sizeof(*e->paths));
	e->moves_from = calloc((size_t)e->max_draws, sizeof(*e->moves_from));
	e->moves_to = calloc((size_t)e->max_draws, sizeof(*e->moves_to));
	if (!e->treats || !e->count_slots || !e->paths || !e->moves_from || !e->moves_to)
		return cairn_error(ENOMEM, "engine: no memory for %d sequences", e->opt.max_batch);
	for (int32_t i = num; i-- > 0;)
		e->count_slots[e->num_count_slots++] = i;
	return 0;
}

/* Uploads the biases, and the end tokens that may not be drawn before min_new_tokens. */
static int add_lists(struct cairn_engine *e, struct request *r, const struct cairn_request *from)
{
	int32_t num = 0, eos = from->ignore_eos ? 0 : e->config->num_eos;
	int32_t *forbidden;
	int ret = 0;

	if (!from->sampling.num_bias && !from->sampling.min_new_tokens)
		return 0;
	forbidden = malloc(((size_t)eos + (size_t)from->num_stop_ids + 1) * sizeof(*forbidden));
	if (!forbidden)
		return cairn_error(ENOMEM, "engine: no memory for a request");
	if (from->sampling.min_new_tokens) {
		for (int32_t i = 0; i < eos; i++)
			forbidden[num++] = e->config->eos_token_ids[i];
		for (int32_t i = 0; i < from->num_stop_ids; i++)
			forbidden[num++] = from->stop_ids[i];
	}
	/* the lists have the same places at all lanes, because these get the same calls */
	for (int32_t i = 0; i < e->num_lanes && !ret; i++)
		ret = cairn_worker_add_lists(e->lanes[i], from->sampling.bias, from->sampling.num_bias,
					     forbidden, num, &r->bias_at, &r->forbidden_at);
	free(forbidden);
	if (ret) {
		r->req.sampling.num_bias = 0;	/* no lists to remove */
		return ret;
	}
	r->num_forbidden = num;
	return 0;
}

int engine_treat_begin(struct cairn_engine *e, struct request *r, const struct cairn_request *from)
{
	size_t bytes = (size_t)from->num_prompt * sizeof(*r->prompt);

	r->req.sampling.bias = NULL;
	if (from->prompt_logprobs) {
		r->scored_prompt = malloc(bytes);
		if (!r->scored_prompt)
			return cairn_error(ENOMEM, "engine: no memory for a request");
		memcpy(r->scored_prompt, from->prompt, bytes);
	}
	CAIRN_TRY(add_lists(e, r, from));
	r->counts = has_counts(&from->sampling);
	if (r->counts && from->num_given) {
		bytes -= (size_t)from->num_given * sizeof(*r->given);
		r->given = malloc((size_t)from->num_given * sizeof(*r->given));
		if (!r->given)
			return cairn_error(ENOMEM, "engine: no memory for a request");
		memcpy(r->given, from->prompt + from->num_prompt - from->num_given,
		       (size_t)from->num_given * sizeof(*r->given));
	}
	if (!has_repetition(&from->sampling))
		return 0;
	r->prompt = malloc(bytes);
	if (!r->prompt)
		return cairn_error(ENOMEM, "engine: no memory for a request");
	memcpy(r->prompt, from->prompt, bytes);
	return 0;
}

void engine_treat_end(struct cairn_engine *e, struct request *r)
{
	for (int32_t i = 0; i < e->num_lanes; i++)
		cairn_worker_remove_lists(e->lanes[i], r->bias_at, r->req.sampling.num_bias,
					  r->forbidden_at, r->num_forbidden);
}

void engine_treat_end_answer(struct cairn_engine *e, struct answer *a)
{
	if (a->slot >= 0)
		e->count_slots[e->num_count_slots++] = a->slot;
	a->slot = -1;
}

const struct cairn_worker_treat *engine_treat(struct cairn_engine *e, struct request *r, int32_t index,
					      int32_t offset, struct cairn_worker_treat *t)
{
	const struct cairn_sampling *s = &r->req.sampling;
	struct answer *a = r->beams ? NULL : &r->answers[index];
	int begins = 0, resumes;

	if (r->counts && a && a->slot < 0) {
		a->slot = e->count_slots[--e->num_count_slots];
		begins = 1;
	}
	resumes = begins && r->given;
	*t = (struct cairn_worker_treat){
		.slot = a ? a->slot : -1, .begins = begins, .prompt = r->prompt,
		.num_prompt = r->prompt ? r->req.num_prompt - r->req.num_given : 0, .forks = resumes,
		.from = resumes ? a->slot : -1, .drafts = r->given,
		.num_drafts = resumes ? r->req.num_given : 0,
		.repetition = has_repetition(s) ? s->repetition_penalty : 1,
		.frequency = s->frequency_penalty, .presence = s->presence_penalty,
		.bias_at = r->bias_at, .num_bias = s->num_bias, .forbidden_at = r->forbidden_at,
		.num_forbidden = offset < s->min_new_tokens ? r->num_forbidden : 0,
		.num_logprobs = r->beams ? 1 + engine_beams_candidates(r->beams) : s->num_logprobs,
		.late = r->beams != NULL, .masked = r->req.constraint != 0,
	};
	return t->masked || t->slot >= 0 || t->num_bias || t->num_forbidden || t->num_logprobs ? t : NULL;
}

const struct cairn_worker_treat *engine_treat_draft(struct cairn_engine *e, struct request *r,
						    int32_t index, int32_t offset,
						    const int32_t *drafts, int32_t num,
						    struct cairn_worker_treat *t)
{
	const struct cairn_worker_treat *treat = engine_treat(e, r, index, offset, t);

	if (t->slot < 0)
		return treat;
	t->forks = 1;
	t->from = t->slot;
	t->slot = e->count_slots[--e->num_count_slots];
	t->drafts = drafts;
	t->num_drafts = num;
	return t;
}

void engine_treat_drawn(struct cairn_engine *e, struct answer *a, struct draw *d, int32_t num, int32_t last)
{
	/* the slot of row `last` has counted all tokens before its draw */
	if (a && last && d[last].slot >= 0) {
		int32_t slot = a->slot;

		a->slot = d[last].slot;
		d[last].slot = slot;
	}
	for (int32_t k = 1; k <= num; k++) {
		if (d[k].slot >= 0)
			e->count_slots[e->num_count_slots++] = d[k].slot;
	}
}
