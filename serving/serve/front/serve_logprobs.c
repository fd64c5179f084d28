// SPDX-License-Identifier: Apache-2.0
/*
 * serve_logprobs - log-probabilities of prompts and answers, and echoed prompts
 *
 * The answers to a prompt share its text and its log-probabilities: with n answers, a copy for each would
 * make gigabytes of a few short requests. The text is written by the preparing thread and copied to an answer
 * when the answer begins. The list of log-probabilities is allocated when the first one arrives, so that a
 * request in the queue has none.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "primitives/base/error.h"
#include "serving/serve/front/serve_front.h"

static struct serve_part *part_of(const struct serve_job *job, const struct serve_choice *c)
{
	return &job->parts[(c - job->choices) / job->req.n];
}

bool serve_is_scored(const struct serve_part *p)
{
	const struct cairn_api_request *r = &p->job->req;

	return (r->echo && r->logprobs >= 0) || r->prompt_logprobs >= 0;
}

/*
 * Makes the list of an echoed prompt's log-probabilities, if it is wanted and there is none. The first token,
 * which has no context, keeps NAN, which is written as null. Returns 0 or -ENOMEM.
 */
static int open_list(struct serve_part *p)
{
	if (!p->offsets || p->scored)
		return 0;
	p->scored = calloc(p->num_ids, sizeof(*p->scored));
	if (!p->scored)
		return cairn_error(ENOMEM, "serve: no memory for log-probabilities");
	for (size_t i = 0; i < p->num_ids; i++)
		p->scored[i] = (struct serve_logprob){ .id = p->ids[i], .logprob = NAN,
						       .text_offset = p->offsets[i] };
	return 0;
}

int serve_echo(const struct serve_job *job, struct serve_choice *c)
{
	struct serve_part *p = part_of(job, c);

	if (!job->req.echo || c->echoed)
		return 0;
	CAIRN_TRY(open_list(p));
	cairn_output_add(&c->out, CAIRN_PIECE_CONTENT, p->echo.s ? p->echo.s : "", p->echo.len);
	c->num_chars = p->num_chars;
	c->num_prompt = p->scored ? p->num_ids : 0;
	c->echoed = true;
	return 0;
}

static void put_ranked(struct serve *s, struct cairn_api_out *out, int32_t id, int32_t rank, float logprob)
{
	struct cairn_api_token token = { .logprob = logprob };

	if (cairn_token_stream_bytes(s->speller, id, &token.bytes, &token.num_bytes))
		out->failed = true;
	else
		cairn_api_put_ranked(out, id, rank, &token);
}

/* Appends the next token of a prompt to the JSON of its log-probabilities. */
static void put_prompt(struct serve_part *p, const struct serve_logprob *token)
{
	struct cairn_api_out *out = &p->prompt_logprobs;
	struct serve *s = p->job->s;

	cairn_api_put(out, ",{", 2);
	put_ranked(s, out, token->id, token->rank, token->logprob);
	for (int32_t k = 0; k < token->num_top && k < p->job->req.prompt_logprobs; k++) {
		if (token->top[k].id == token->id)
			continue;
		cairn_api_put(out, ",", 1);
		put_ranked(s, out, token->top[k].id, k + 1, token->top[k].value);
	}
	cairn_api_put(out, "}", 1);
}

int serve_score_prompt(struct serve_part *p, const struct serve_logprob *token)
{
	const struct cairn_api_request *r = &p->job->req;
	size_t at = ++p->num_scored;
	struct serve_logprob *to;

	CAIRN_TRY(open_list(p));
	if (r->prompt_logprobs >= 0)
		put_prompt(p, token);
	if (!p->scored)
		return 0;
	to = &p->scored[at];
	*to = *token;
	to->text_offset = p->offsets[at];
	if (to->num_top > r->logprobs)
		to->num_top = (int32_t)r->logprobs;
	return 0;
}

int serve_keep_logprob(struct serve_choice *c, const struct serve_logprob *token)
{
	size_t end = c->first_logprob + c->num_logprobs;

	if (end == c->room_logprobs && c->first_logprob > c->num_logprobs) {
		memcpy(c->logprobs, c->logprobs + c->first_logprob, c->num_logprobs * sizeof(*c->logprobs));
		c->first_logprob = 0;
		end = c->num_logprobs;
	}
	if (end == c->room_logprobs) {
		size_t room = c->room_logprobs ? 2 * c->room_logprobs : 8;
		struct serve_logprob *grown = realloc(c->logprobs, room * sizeof(*grown));

		if (!grown)
			return cairn_error(ENOMEM, "serve: no memory for log-probabilities");
		c->logprobs = grown;
		c->room_logprobs = room;
	}
	c->logprobs[end] = *token;
	c->logprobs[end].text_offset = c->num_chars;
	c->num_logprobs++;
	return 0;
}

size_t serve_unsent_logprobs(const struct serve_choice *c)
{
	return c->num_prompt + c->num_logprobs;
}

/* Returns log-probability i of those not sent, of which the last num_prompt of the prompt come first. */
static const struct serve_logprob *logprob_at(const struct serve_part *p, const struct serve_choice *c,
					      size_t i)
{
	return i < c->num_prompt ? &p->scored[p->num_ids - c->num_prompt + i] :
				   &c->logprobs[c->first_logprob + i - c->num_prompt];
}

void serve_drop_logprobs(struct serve_choice *c, size_t num)
{
	size_t prompt = num < c->num_prompt ? num : c->num_prompt;

	c->num_prompt -= prompt;
	num -= prompt;
	c->num_logprobs -= num;
	c->first_logprob = c->num_logprobs ? c->first_logprob + num : 0;
}

void serve_free_spelled(struct serve_spelled *sp)
{
	free(sp->v);
	free(sp->top);
	cairn_api_out_free(&sp->arena);
}

static int spell_token(struct cairn_token_stream *speller, struct serve_spelled *sp, int32_t id,
		       float logprob, struct cairn_api_token *to)
{
	const char *bytes;

	CAIRN_TRY(cairn_token_stream_bytes(speller, id, &bytes, &to->num_bytes));
	cairn_api_put(&sp->arena, bytes, to->num_bytes);
	to->logprob = logprob;
	return 0;
}

int serve_spell(const struct serve_job *job, struct cairn_token_stream *speller, const struct serve_choice *c,
		size_t num, struct serve_spelled *sp)
{
	const struct serve_part *p = part_of(job, c);
	size_t at = 0;

	*sp = (struct serve_spelled){ .v = calloc(num + 1, sizeof(*sp->v)),
				      .top = calloc(num * CAIRN_API_MAX_LOGPROBS + 1, sizeof(*sp->top)) };
	for (size_t i = 0; sp->v && sp->top && i < num; i++) {
		const struct serve_logprob *l = logprob_at(p, c, i);
		struct cairn_api_token *top = sp->top + i * CAIRN_API_MAX_LOGPROBS;

		sp->v[i] = (struct cairn_api_logprob){ .top = top, .num_top = l->num_top,
						       .text_offset = l->text_offset };
		CAIRN_TRY(spell_token(speller, sp, l->id, l->logprob, &sp->v[i].token));
		for (int32_t k = 0; k < l->num_top; k++)
			CAIRN_TRY(spell_token(speller, sp, l->top[k].id, l->top[k].value, &top[k]));
	}
	if (!sp->v || !sp->top || sp->arena.failed)
		return cairn_error(ENOMEM, "serve: no memory for log-probabilities");
	for (size_t i = 0; i < num; i++) {
		struct cairn_api_token *top = sp->top + i * CAIRN_API_MAX_LOGPROBS;

		sp->v[i].token.bytes = sp->arena.s ? sp->arena.s + at : "";
		at += sp->v[i].token.num_bytes;
		for (int32_t k = 0; k < sp->v[i].num_top; k++) {
			top[k].bytes = sp->arena.s ? sp->arena.s + at : "";
			at += top[k].num_bytes;
		}
	}
	return 0;
}
