// SPDX-License-Identifier: Apache-2.0
/* serve_answer - turns tokens into text and text into events or a body; runs in the link's thread */
#include <stdlib.h>
#include <string.h>

#include "primitives/base/error.h"
#include "serving/serve/front/serve_front.h"

#define MAX_CHUNK_TEXT		8192	/* bytes per event; even escaped they fit every --stream-buffer */
#define MAX_CHUNK_LOGPROBS	4
#define MAX_TURN		32	/* events of one stream before other requests have their turn */

int64_t serve_count_chars(const char *s, size_t n)
{
	int64_t chars = 0;

	for (size_t i = 0; i < n; i++)
		chars += (s[i] & 0xc0) != 0x80;
	return chars;
}

static void add_text(struct serve_choice *c, const struct cairn_stop_text *t, const char *text)
{
	serve_add_text(c, t->held ? t->held : "", t->num_held);
	serve_add_text(c, text, t->num_text);
	if (t->stop >= 0) {
		c->finish = CAIRN_API_STOP;
		c->stop = t->stop;
	}
}

void serve_usage_of(const struct serve_job *job, struct cairn_api_usage *u)
{
	*u = (struct cairn_api_usage){ .prompt_tokens = job->num_prompt_tokens };
	for (int32_t i = 0; i < job->num_choices; i++) {
		u->completion_tokens += job->choices[i].num_tokens;
		u->reasoning_tokens += job->choices[i].num_reasoning;
	}
	for (int32_t i = 0; i < job->num_parts; i++)
		u->cached_tokens += job->parts[i].cached;
}

/* Fills *out, but for its message, with the first num_logprobs log-probabilities not yet sent. */
int serve_fill_choice(const struct serve_job *job, struct cairn_token_stream *speller,
		      const struct serve_choice *c, size_t num_logprobs, struct serve_spelled *sp,
		      struct cairn_api_choice *out)
{
	bool wanted = job->req.logprobs >= 0;

	*sp = (struct serve_spelled){ 0 };
	*out = (struct cairn_api_choice){
		.index = (int32_t)(c - job->choices), .stop_id = c->stop_id,
		.stop = c->stop >= 0 ? &job->req.stop[c->stop] : NULL,
	};
	if (!wanted)
		return 0;
	CAIRN_TRY(serve_spell(job, speller, c, num_logprobs, sp));
	out->logprobs = sp->v;
	out->num_logprobs = num_logprobs;
	return 0;
}

void serve_fail_memory(struct serve_job *job)
{
	struct cairn_api_error e;

	cairn_api_refuse(&e, 500, NULL, NULL, "no memory for this answer");
	serve_fail(job, &e);
}

/* Sends one event of a choice. Returns 0, -EAGAIN if the client must read first, -EPIPE or -ENOMEM. */
static int push_chunk(struct serve_job *job, struct serve_choice *c)
{
	size_t unsent = serve_unsent_logprobs(c);
	size_t logprobs = unsent < MAX_CHUNK_LOGPROBS ? unsent : MAX_CHUNK_LOGPROBS;
	struct cairn_api_out *out = &job->s->event;
	struct cairn_api_choice choice;
	struct cairn_api_usage usage;
	struct serve_chunk chunk;
	struct serve_spelled sp;
	int ret = serve_fill_choice(job, job->s->speller, c, logprobs, &sp, &choice);
	size_t bytes = serve_next_chunk(job, c, MAX_CHUNK_TEXT, &chunk, &choice);
	bool last = c->finish && bytes == c->out.text.len && logprobs == unsent;

	if (!ret) {
		choice.finish = last ? c->finish : CAIRN_API_GOES_ON;
		serve_usage_of(job, &usage);
		out->len = 0;
		out->failed = false;
		cairn_api_chunk(out, &job->answer, &choice, !c->began, &usage);
		ret = out->failed || c->out.text.failed ? -ENOMEM : cairn_http_push(job->x, out->s, out->len);
	}
	serve_free_spelled(&sp);
	if (ret)
		return ret;
	c->began = true;
	c->new_tokens = 0;
	serve_drop_chunk(c, bytes);
	serve_drop_logprobs(c, logprobs);
	c->ended = last;
	return 0;
}

static int begin_stream(struct serve_job *job)
{
	static const struct cairn_http_field fields[] = {
		{ "Cache-Control", "no-cache" }, { "X-Accel-Buffering", "no" },
	};

	if (job->streaming)
		return 0;
	CAIRN_TRY(cairn_http_stream(job->x, 200, "text/event-stream", fields, 2));
	job->streaming = true;
	return 0;
}

bool serve_keep_alive(struct serve_job *job)
{
	struct cairn_api_out out = { 0 };
	bool ok;

	cairn_api_keep_alive(&out);
	ok = !out.failed && !begin_stream(job) && !cairn_http_push(job->x, out.s, out.len);
	cairn_api_out_free(&out);
	return ok;
}

/* Sends the usage and [DONE] after all choices have ended. */
static int push_end(struct serve_job *job)
{
	struct cairn_api_out out = { 0 };
	struct cairn_api_usage usage;
	int ret;

	if (job->answer.include_usage) {
		serve_usage_of(job, &usage);
		cairn_api_usage_chunk(&out, &job->answer, &usage);
	}
	cairn_api_done(&out);
	ret = out.failed ? -ENOMEM : cairn_http_push(job->x, out.s, out.len);
	cairn_api_out_free(&out);
	return ret;
}

/* Returns 0 at the end of the stream, 1 if more is to come, or an error; -EINPROGRESS: its turn is over. */
static int push_all(struct serve_job *job)
{
	int32_t ended = 0, num = 0;

	if (job->kind == CAIRN_API_RESPONSES) {
		CAIRN_TRY(begin_stream(job));
		return serve_push_items(job);
	}
	for (int32_t i = 0; i < job->num_choices; i++) {
		const struct serve_part *p = &job->parts[i / job->req.n];
		struct serve_choice *c = &job->choices[i];

		if (serve_is_scored(p) && p->num_scored + 1 < p->num_ids)
			continue;	/* the prompt comes first and is not complete yet */
		while (!c->ended && (c->new_tokens || c->out.text.len || serve_unsent_logprobs(c) ||
				     c->finish)) {
			if (num++ == MAX_TURN)
				return -EINPROGRESS;
			CAIRN_TRY(begin_stream(job));
			CAIRN_TRY(push_chunk(job, c));
			job->said_ns = job->last_ns;
		}
		ended += c->ended;
	}
	return ended == job->num_choices ? push_end(job) : 1;
}

bool serve_flush(struct serve_job *job)
{
	int ret = push_all(job);

	job->paused = ret == -EINPROGRESS;
	job->blocked = ret == -EAGAIN || job->paused;
	if (ret == -ENOMEM || ret == -EINVAL || ret == -EMSGSIZE) {
		serve_fail_memory(job);
		return true;
	}
	if (ret)
		return false;	/* more tokens will come, or the client is slow or gone, which HTTP handles */
	cairn_http_end(job->x);
	return true;
}

static bool update(struct serve_job *job)
{
	if (job->req.stream)
		return serve_flush(job);
	for (int32_t i = 0; i < job->num_choices; i++) {
		if (!job->choices[i].finish)
			return false;
	}
	job->unwritten = serve_is_long_body(job);
	if (!job->unwritten)
		serve_send_body(job, job->s->speller);
	return true;
}

/* A worker that takes the place of a failed one is told the tokens. */
static int keep_token(struct serve_choice *c, int32_t id)
{
	if (c->num_taken == c->room_taken) {
		const size_t room = c->room_taken ? 2 * c->room_taken : 64;
		int32_t *taken = realloc(c->taken, room * sizeof(*taken));

		if (!taken)
			return -ENOMEM;
		c->taken = taken;
		c->room_taken = room;
	}
	c->taken[c->num_taken++] = id;
	return 0;
}

bool serve_take_prompt(struct serve_part *p, const struct serve_logprob *token)
{
	if (!serve_score_prompt(p, token))
		return false;
	serve_fail_memory(p->job);
	return true;
}

bool serve_take_token(struct serve_job *job, int32_t choice, const struct serve_logprob *token, bool *stopped)
{
	struct serve_choice *c = &job->choices[choice];
	const bool reasoned = serve_reasons(c);
	struct cairn_stop_text t;
	const char *text = "";
	size_t n = 0;

	*stopped = false;
	if (c->finish || job->req.no_answer)
		return false;	/* the token was in flight when a stop string ended the text */
	if (serve_echo(job, c) || keep_token(c, token->id)) {
		serve_fail_memory(job);
		return true;
	}
	job->futile = 0;
	c->num_tokens++;
	c->new_tokens++;
	if ((job->req.logprobs >= 0 && serve_keep_logprob(c, token)) ||
	    (!serve_is_hidden(job, c, token->id) &&
	     cairn_token_stream_push(c->stream, token->id, &text, &n))) {
		serve_fail_memory(job);
		return true;
	}
	c->num_chars += serve_count_chars(text, n);
	if (c->num_tokens > job->req.min_tokens)
		t = cairn_stop_match_push(&c->match, text, n);
	else	/* before min_tokens nothing may end the answer, so skip the stop strings */
		t = (struct cairn_stop_text){ .num_text = n, .stop = -1 };
	add_text(c, &t, text);
	/* the opening mark begins the reasoning, and the closing one ends it: both count */
	c->num_reasoning += reasoned || serve_reasons(c);
	*stopped = c->finish != CAIRN_API_GOES_ON;
	if (*stopped)
		serve_end_text(job, c);
	return update(job);
}

bool serve_take_finish(struct serve_job *job, int32_t choice, enum cairn_api_finish why, int32_t token)
{
	struct serve_choice *c = &job->choices[choice];
	struct cairn_stop_text t;
	const char *text;
	size_t n;

	if (c->finish)
		return false;
	if (serve_echo(job, c) || cairn_token_stream_finish(c->stream, &text, &n)) {
		serve_fail_memory(job);
		return true;
	}
	c->num_tokens += token >= 0 && !job->req.no_answer;
	t = cairn_stop_match_push(&c->match, text, n);
	add_text(c, &t, text);
	if (!c->finish) {
		t = cairn_stop_match_finish(&c->match);
		add_text(c, &t, "");
		c->finish = job->req.no_answer && why == CAIRN_API_STOP ? CAIRN_API_LENGTH : why;
		for (int32_t i = 0; i < job->req.num_stop_ids; i++) {
			if (job->req.stop_ids[i] == token)
				c->stop_id = token;
		}
	}
	serve_end_text(job, c);
	return update(job);
}

void serve_fail(struct serve_job *job, const struct cairn_api_error *e)
{
	struct cairn_api_out out = { 0 };

	if (!job->streaming) {
		serve_refuse(job->x, e);
		return;
	}
	cairn_api_error_event(&out, e);
	/* the stream ends without [DONE], which marks the answer as incomplete */
	if (out.failed || cairn_http_push(job->x, out.s, out.len))
		cairn_http_abort(job->x);
	else
		cairn_http_end(job->x);
	cairn_api_out_free(&out);
}
