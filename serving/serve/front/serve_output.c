// SPDX-License-Identifier: Apache-2.0
/* serve_output - the text of an answer as content, reasoning and calls */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "primitives/base/error.h"
#include "serving/serve/front/serve_front.h"

int serve_open_parser(struct serve_job *job, struct serve_choice *c)
{
	const struct cairn_api_request *r = &job->req;
	struct cairn_output_rules rules = {
		.tool_format = r->tools && r->tool_choice != CAIRN_API_TOOL_NONE ? job->s->tool_format : NULL,
		.reasoning = r->messages ? job->s->reasoning : NULL, .prompt_end = job->prompt_end,
		.tools = job->tools, .one_call = !r->parallel_tool_calls,
		.no_reasoning = !r->include_reasoning,
	};

	if (!rules.tool_format && !rules.reasoning)
		return 0;
	return cairn_output_parser_new(&rules, &c->parser);
}

bool serve_is_hidden(const struct serve_job *job, const struct serve_choice *c, int32_t token)
{
	const struct cairn_tokenizer *tokenizer = job->s->tokenizer;
	const char *spelled;

	if (!c->parser || !job->req.skip_special_tokens || !cairn_tokenizer_is_special(tokenizer, token))
		return false;
	spelled = cairn_tokenizer_token(tokenizer, token, NULL);
	return !spelled || !cairn_formats_have(job->s->tool_format, job->s->reasoning, spelled);
}

bool serve_reasons(const struct serve_choice *c)
{
	return c->parser && cairn_output_parser_reasons(c->parser);
}

void serve_add_text(struct serve_choice *c, const char *text, size_t n)
{
	if (!c->parser)
		cairn_output_add(&c->out, CAIRN_PIECE_CONTENT, text, n);
	else if (cairn_output_parser_push(c->parser, text, n, &c->out) && !c->finish)
		c->finish = CAIRN_API_STOP;
}

void serve_end_text(struct serve_job *job, struct serve_choice *c)
{
	if (!c->parser)
		return;
	cairn_output_parser_finish(c->parser, &c->out);
	/* as in OpenAI's API, a call that the client itself has chosen is no reason to end */
	if (c->finish == CAIRN_API_STOP && cairn_output_parser_calls(c->parser) &&
	    job->req.tool_choice != CAIRN_API_TOOL_NAMED)
		c->finish = CAIRN_API_CALLS;
}

static int32_t special_token(void *ctx, const char *s, size_t n)
{
	const struct cairn_tokenizer *tokenizer = ctx;
	int32_t id = cairn_tokenizer_id(tokenizer, s, n);

	return id >= 0 && cairn_tokenizer_is_special(tokenizer, id) ? id : -1;
}

/* Makes the grammar of forced calls the request's constraint. */
static int force_calls(struct serve_job *job, struct cairn_api_error *e)
{
	struct cairn_api_request *r = &job->req;
	const struct cairn_reasoning_format *f = job->s->reasoning;
	struct cairn_tool_grammar g = {
		.format = job->s->tool_format, .tools = r->tools, .name = r->tool_name,
		.reasoning = job->prompt_end == CAIRN_PROMPT_REASONED ? NULL : f,
		.reasons = f && (f->begun || job->prompt_end == CAIRN_PROMPT_REASONS),
		.parallel = r->parallel_tool_calls && r->tool_choice == CAIRN_API_TOOL_REQUIRED,
		.token = special_token, .ctx = job->s->tokenizer,
	};
	struct cairn_api_out text = { 0 };
	int ret = cairn_tool_grammar(&g, &text);

	if (ret) {
		cairn_api_out_free(&text);
		return ret == -ENOMEM ? cairn_api_refuse(e, 500, NULL, NULL, "no memory for this request") :
		       cairn_api_refuse(e, 400, "invalid_value", "tools", "tools: %s", cairn_last_error());
	}
	r->constraint_text = text.s;
	r->constraint_param = "tool_choice";
	r->constraint = (struct cairn_constraint){ .kind = CAIRN_CONSTRAINT_LARK, .text = text.s,
						   .num_bytes = text.len };
	return 0;
}

int serve_constrain(struct serve_job *job, struct cairn_api_error *e)
{
	struct cairn_api_request *r = &job->req;
	const struct cairn_reasoning_format *f = job->s->reasoning;

	if (r->tool_choice == CAIRN_API_TOOL_REQUIRED || r->tool_choice == CAIRN_API_TOOL_NAMED)
		return force_calls(job, e);
	if (!r->constraint.kind || !r->messages || !f || job->prompt_end == CAIRN_PROMPT_REASONED)
		return 0;
	r->constraint.after = f->harmony ? "<|channel|>final<|message|>" : f->end;
	r->constraint.num_after = strlen(r->constraint.after);
	return 0;
}

/* Mixes the bits of a number; a bijection (the finalizer of SplitMix64). */
static uint64_t mix(uint64_t x)
{
	x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9;
	x = (x ^ x >> 27) * 0x94d049bb133111eb;
	return x ^ x >> 31;
}

/* Writes the id of a call; it is the same whenever it is asked for. */
static void write_id(const struct serve_job *job, const struct serve_choice *c, int32_t index,
		     const struct cairn_piece *piece, const char *name, char id[SERVE_CALL_ID_LEN])
{
	static const char digits[] = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
	uint64_t a = mix(job->call_seed + ((uint64_t)(c - job->choices) << 32) + (uint64_t)index);

	switch (job->s->tool_format->id) {
	case CAIRN_CALL_ID_MISTRAL:
		for (int i = 0; i < 9; i++, a /= 62)
			id[i] = digits[a % 62];
		id[9] = 0;
		break;
	case CAIRN_CALL_ID_KIMI:
		snprintf(id, SERVE_CALL_ID_LEN, "functions.%.*s:%d", (int)piece->num_bytes, name,
			 piece->number >= 0 ? (int)piece->number : (int)index);
		break;
	default:
		snprintf(id, SERVE_CALL_ID_LEN, "call_%016llx%08x", (unsigned long long)a,
			 (unsigned)(mix(a) >> 32));
	}
}

void serve_free_message(struct serve_message *m)
{
	cairn_api_out_free(&m->content);
	cairn_api_out_free(&m->reasoning);
	free(m->calls);
	free(m->ids);
	*m = (struct serve_message){ 0 };
}

int serve_whole_message(const struct serve_job *job, const struct serve_choice *c, struct serve_message *m,
			struct cairn_api_choice *out)
{
	const char *s = c->out.text.s;

	*m = (struct serve_message){ .calls = calloc(c->out.num + 1, sizeof(*m->calls)),
				     .ids = calloc(c->out.num + 1, SERVE_CALL_ID_LEN) };
	if (!m->calls || !m->ids || c->out.text.failed)
		return cairn_error(ENOMEM, "serve: no memory for an answer");
	for (size_t i = 0; i < c->out.num; s += c->out.v[i++].num_bytes) {
		const struct cairn_piece *p = &c->out.v[i];
		struct cairn_api_call *call = &m->calls[m->num_calls];

		switch (p->kind) {
		case CAIRN_PIECE_CONTENT:
			cairn_api_put(&m->content, s, p->num_bytes);
			break;
		case CAIRN_PIECE_REASONING:
			cairn_api_put(&m->reasoning, s, p->num_bytes);
			break;
		case CAIRN_PIECE_NAME:
			*call = (struct cairn_api_call){ .index = (int32_t)m->num_calls, .name = s,
							 .id = m->ids + m->num_calls * SERVE_CALL_ID_LEN,
							 .name_len = p->num_bytes, .arguments = "" };
			write_id(job, c, call->index, p, s, m->ids + m->num_calls++ * SERVE_CALL_ID_LEN);
			break;
		case CAIRN_PIECE_ARGUMENTS:
			call[-1].arguments = s;
			call[-1].num_arguments = p->num_bytes;
			break;
		}
	}
	if (m->content.failed || m->reasoning.failed)
		return cairn_error(ENOMEM, "serve: no memory for an answer");
	out->text = m->content.s ? m->content.s : "";
	out->num_bytes = m->content.len;
	out->reasoning = m->reasoning.s;
	out->num_reasoning = m->reasoning.len;
	out->calls = m->calls;
	out->num_calls = m->num_calls;
	return 0;
}

/* Returns the length of the longest prefix of whole characters with at most max bytes. */
static size_t whole_chars(const char *s, size_t n, size_t max)
{
	if (n <= max)
		return n;
	for (n = max; n && (s[n] & 0xc0) == 0x80;)
		n--;
	return n;
}

size_t serve_next_chunk(const struct serve_job *job, const struct serve_choice *c, size_t max,
			struct serve_chunk *chunk, struct cairn_api_choice *out)
{
	const struct cairn_piece *p = c->out.v;
	const char *s = c->out.text.s;
	size_t n;

	out->text = "";
	if (!c->out.num)
		return 0;
	n = p->kind == CAIRN_PIECE_NAME ? p->num_bytes : whole_chars(s, p->num_bytes, max);
	chunk->call = (struct cairn_api_call){ .index = c->sent_calls - 1, .arguments = "" };
	switch (p->kind) {
	case CAIRN_PIECE_CONTENT:
		out->text = s;
		out->num_bytes = n;
		return n;
	case CAIRN_PIECE_REASONING:
		out->reasoning = s;
		out->num_reasoning = n;
		return n;
	case CAIRN_PIECE_NAME:
		chunk->call.index = c->sent_calls;
		chunk->call.id = chunk->id;
		chunk->call.name = s;
		chunk->call.name_len = n;
		write_id(job, c, c->sent_calls, p, s, chunk->id);
		break;
	case CAIRN_PIECE_ARGUMENTS:
		chunk->call.arguments = s;
		chunk->call.num_arguments = n;
		break;
	}
	out->calls = &chunk->call;
	out->num_calls = 1;
	return n;
}

void serve_drop_chunk(struct serve_choice *c, size_t num_bytes)
{
	if (!num_bytes)
		return;
	c->sent_calls += c->out.v->kind == CAIRN_PIECE_NAME;
	cairn_output_drop(&c->out, num_bytes);
}
