// SPDX-License-Identifier: Apache-2.0
/*
 * engine - which requests take part in which pass
 *
 *   QUEUED --admit--> PROMPT --last chunk--> DECODING --read the last token--> FINISHED --retire--> gone
 *
 * A pass takes the running requests in order: one row for each that is decoding, then prompt chunks until
 * max_rows is reached; where attention is latent, one row of each prompt (decode.h). While the same requests
 * go on decoding, pass n+1 needs nothing from the host that depends on the tokens of pass n: it is launched
 * before they are read (it follows, see worker.h). Passes that draw nothing, parts of prompts, are not waited
 * for either. When the set of requests changes (one has finished, one is admitted, a prompt is still being
 * read beside others that decode) the host first reads all that is in flight; the device idles for the tens
 * of microseconds this takes.
 * That a request has drawn its end-of-sequence token is seen one pass late: the row it still has in the
 * pass after is computed and thrown away.
 *
 * Invariants
 *   1. Pages of a request go back to the pool only when no flight holds the request: retire() runs when
 *      nothing is in flight.
 *   2. drawn - read <= flights; a request whose drawn == max_new_tokens takes part in no later pass.
 *   3. From admission on a request is sure of the pages for prompt and answer: the sum of what running ones
 *      may need fits in the pool, so that growing never fails.
 */
#include "engine.h"

#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "../primitives/error.h"
#include "kv_pool.h"

struct seq {
	struct seq *next;		/* in the queue */
	struct cairn_request req;
	int32_t handle;			/* in the pool */
	int32_t promised;		/* the most pages it may need */
	int32_t computed;		/* keys appended by the passes launched so far */
	int32_t drawn, read;		/* tokens drawn by them, and those the host has seen */
	int32_t last;			/* the last token read */
	int finished;
	int32_t prompt[];
};

/* Whose tokens a flight of the worker draws. */
struct flight {
	struct seq **seqs;
	int32_t num_seqs;
};

struct cairn_engine {
	const struct cairn_impl *impl;
	const struct cairn_model_config *config;
	struct cairn_engine_options opt;
	struct cairn_kv_pool *pool;
	struct cairn_worker *worker;
	struct flight flights[CAIRN_WORKER_FLIGHTS];
	int first_flight;
	struct seq **running, *queue, **queue_end;
	int32_t num_running;
	int64_t promised;		/* pages, over the running requests */
	int latent, failed;
	struct cairn_engine_stats stats;
};

static int check_options(struct cairn_engine_options *o, const struct cairn_model_config *c)
{
	int64_t pages;

	if (!o->max_context)
		o->max_context = c->max_position_embeddings;
	if (!o->max_rows)
		o->max_rows = o->max_batch > 1024 ? o->max_batch : 1024;
	if (!o->page_size)
		o->page_size = 16;
	if (o->max_batch < 1 || o->max_batch > 65536)
		return cairn_error(EINVAL, "engine: max_batch: %d is not in 1..65536", o->max_batch);
	if (o->max_context < 2 || o->max_context > c->max_position_embeddings)
		return cairn_error(EINVAL, "engine: max_context: %d is not in 2..%d "
				   "(max_position_embeddings)", o->max_context, c->max_position_embeddings);
	if (o->max_rows < o->max_batch || o->max_rows > 1 << 20)
		return cairn_error(EINVAL, "engine: max_rows: %d is not in %d (max_batch)..%d", o->max_rows,
				   o->max_batch, 1 << 20);
	if (o->page_size < 1 || o->page_size > 1 << 16)
		return cairn_error(EINVAL, "engine: page_size: %d is not in 1..65536", o->page_size);
	pages = o->num_pages;
	if (!pages)
		pages = ((int64_t)o->max_context + o->page_size - 1) / o->page_size * o->max_batch;
	if (pages < 1 || pages > INT_MAX / o->page_size)
		return cairn_error(EINVAL, "engine: num_pages: %lld pages of %d tokens are out of range",
				   (long long)pages, o->page_size);
	o->num_pages = (int32_t)pages;
	return 0;
}

int cairn_engine_create(struct cairn_engine **out, struct cairn_model *model,
			const struct cairn_engine_options *options)
{
	struct cairn_worker_options ro;
	struct cairn_engine *e;
	int ret;

	if (!out || !model || !options)
		return cairn_error(EINVAL, "engine: null pointer");
	e = calloc(1, sizeof(*e));
	if (!e)
		return cairn_error(ENOMEM, "engine: no memory");
	e->impl = model->impl;
	e->config = &model->config;
	e->latent = cairn_model_is_latent(model);
	e->opt = *options;
	e->queue_end = &e->queue;
	ret = check_options(&e->opt, e->config);
	if (ret)
		goto out_destroy;
	ro = (struct cairn_worker_options){
		.max_batch = e->opt.max_batch, .max_rows = e->opt.max_rows,
		.max_context = e->opt.max_context, .num_pages = e->opt.num_pages,
		.page_size = e->opt.page_size, .no_graphs = e->opt.no_graphs, .decode = e->opt.decode,
	};
	ret = cairn_kv_pool_create(&e->pool, e->opt.num_pages, e->opt.page_size, e->opt.max_batch);
	if (ret)
		goto out_destroy;
	ret = cairn_worker_create(&e->worker, model, &ro);
	if (ret)
		goto out_destroy;
	ret = -ENOMEM;
	e->running = calloc((size_t)e->opt.max_batch, sizeof(struct seq *));
	if (!e->running)
		goto out_nomem;
	for (int i = 0; i < CAIRN_WORKER_FLIGHTS; i++) {
		e->flights[i].seqs = calloc((size_t)e->opt.max_batch, sizeof(struct seq *));
		if (!e->flights[i].seqs)
			goto out_nomem;
	}
	*out = e;
	return 0;

out_nomem:
	cairn_error(ENOMEM, "engine: no memory for %d requests", e->opt.max_batch);
out_destroy:
	cairn_engine_destroy(e);
	return ret;
}

void cairn_engine_destroy(struct cairn_engine *e)
{
	if (!e)
		return;
	cairn_worker_destroy(e->worker);
	for (int i = 0; i < CAIRN_WORKER_FLIGHTS; i++)
		free(e->flights[i].seqs);
	for (int32_t i = 0; i < e->num_running; i++)
		free(e->running[i]);
	free(e->running);
	while (e->queue) {
		struct seq *s = e->queue;

		e->queue = s->next;
		free(s);
	}
	cairn_kv_pool_destroy(e->pool);
	free(e);
}

static int check_request(const struct cairn_engine *e, const struct cairn_request *r)
{
	const struct cairn_sampling *s = &r->sampling;
	int64_t room = (int64_t)e->opt.num_pages * e->opt.page_size;

	if (!r->prompt || r->num_prompt < 1)
		return cairn_error(EINVAL, "prompt: is empty, at least one token is needed");
	if (r->max_new_tokens < 1)
		return cairn_error(EINVAL, "max_new_tokens: is %d, must be >= 1", r->max_new_tokens);
	if (room > e->opt.max_context)
		room = e->opt.max_context;
	if ((int64_t)r->num_prompt + r->max_new_tokens > room)
		return cairn_error(EINVAL, "prompt: %d tokens and max_new_tokens %d together exceed the "
				   "context of %lld", r->num_prompt, r->max_new_tokens, (long long)room);
	for (int32_t i = 0; i < r->num_prompt; i++) {
		if (r->prompt[i] < 0 || r->prompt[i] >= e->config->vocab_size)
			return cairn_error(EINVAL, "prompt: token %d is %d, the vocabulary has %d", i,
					   r->prompt[i], e->config->vocab_size);
	}
	if (!(s->temperature >= 0) || isinf(s->temperature))
		return cairn_error(EINVAL, "temperature: is %g, must be >= 0", (double)s->temperature);
	if (s->temperature == 0)
		return 0;
	if (s->top_k < 0)
		return cairn_error(EINVAL, "top_k: is %d, must be >= 0", s->top_k);
	if (!(s->top_p > 0 && s->top_p <= 1))
		return cairn_error(EINVAL, "top_p: is %g, must be > 0 and <= 1", (double)s->top_p);
	if (!(s->min_p >= 0 && s->min_p < 1))
		return cairn_error(EINVAL, "min_p: is %g, must be >= 0 and < 1", (double)s->min_p);
	return 0;
}

int cairn_engine_submit(struct cairn_engine *e, const struct cairn_request *request)
{
	size_t prompt_bytes;
	struct seq *s;

	CAIRN_TRY(check_request(e, request));
	prompt_bytes = (size_t)request->num_prompt * sizeof(*s->prompt);
	s = calloc(1, sizeof(*s) + prompt_bytes);
	if (!s)
		return cairn_error(ENOMEM, "engine: no memory for a request of %d tokens",
				   request->num_prompt);
	s->req = *request;
	memcpy(s->prompt, request->prompt, prompt_bytes);
	s->req.prompt = s->prompt;
	s->handle = -1;
	*e->queue_end = s;
	e->queue_end = &s->next;
	return 0;
}

/* In order of submission, as long as the pool has pages for all that they may ever need. */
static int admit(struct cairn_engine *e)
{
	while (e->queue && e->num_running < e->opt.max_batch) {
		struct seq *s = e->queue;
		int64_t max_len = (int64_t)s->req.num_prompt + s->req.max_new_tokens;

		s->promised = (int32_t)((max_len + e->opt.page_size - 1) / e->opt.page_size);
		if (e->promised + s->promised > e->opt.num_pages)
			return 0;
		CAIRN_TRY(cairn_kv_pool_open(e->pool, &s->handle));
		e->promised += s->promised;
		e->queue = s->next;
		if (!e->queue)
			e->queue_end = &e->queue;
		e->running[e->num_running++] = s;
	}
	return 0;
}

static void retire(struct cairn_engine *e)
{
	int32_t kept = 0;

	for (int32_t i = 0; i < e->num_running; i++) {
		struct seq *s = e->running[i];

		if (!s->finished) {
			e->running[kept++] = s;
			continue;
		}
		cairn_kv_pool_close(e->pool, s->handle);
		e->promised -= s->promised;
		free(s);
	}
	e->num_running = kept;
}

static int is_eos(const struct cairn_model_config *c, int32_t token)
{
	for (int32_t i = 0; i < c->num_eos; i++) {
		if (c->eos_token_ids[i] == token)
			return 1;
	}
	return 0;
}

static void finish(struct seq *s, enum cairn_finish why)
{
	s->finished = 1;
	if (s->req.on_finish)
		s->req.on_finish(s->req.ctx, why);
}

/* Waits for the oldest flight and hands its tokens out. */
static int collect(struct cairn_engine *e)
{
	struct flight *f = &e->flights[e->first_flight];
	const int32_t *tokens;
	int32_t num_tokens;

	CAIRN_TRY(cairn_worker_collect(e->worker, &tokens, &num_tokens));
	e->first_flight = (e->first_flight + 1) % CAIRN_WORKER_FLIGHTS;
	for (int32_t i = 0; i < num_tokens; i++) {
		struct seq *s = f->seqs[i];

		if (s->finished)
			continue;	/* drawn after the end */
		if (tokens[i] < 0 || tokens[i] >= e->config->vocab_size)
			return cairn_error(EIO, "%s: no token to be drawn at position %d: no logit is finite",
					   e->impl->name, s->req.num_prompt + s->read);
		s->last = tokens[i];
		s->read++;
		e->stats.new_tokens++;
		if (!s->req.ignore_eos && is_eos(e->config, s->last))
			finish(s, CAIRN_FINISH_STOP);
		else if (s->req.on_token && s->req.on_token(s->req.ctx, s->last))
			finish(s, CAIRN_FINISH_CANCELLED);
		else if (s->read == s->req.max_new_tokens)
			finish(s, CAIRN_FINISH_LENGTH);
	}
	return 0;
}

/* Are the tokens that the running requests need next, and no others, those that the last pass draws? */
static int can_follow(const struct cairn_engine *e)
{
	int num_flights = cairn_worker_in_flight(e->worker);
	const struct flight *f;

	if (!num_flights)
		return 0;
	f = &e->flights[(e->first_flight + num_flights - 1) % CAIRN_WORKER_FLIGHTS];
	if (f->num_seqs != e->num_running)
		return 0;
	for (int32_t i = 0; i < e->num_running; i++) {
		const struct seq *s = e->running[i];

		if (f->seqs[i] != s || s->finished || s->drawn == s->req.max_new_tokens)
			return 0;
	}
	return 1;
}

/* Nothing in flight draws a token: what comes next does not depend on it. */
static int draws_nothing(const struct cairn_engine *e)
{
	int num_flights = cairn_worker_in_flight(e->worker);

	for (int i = 0; i < num_flights; i++) {
		if (e->flights[(e->first_flight + i) % CAIRN_WORKER_FLIGHTS].num_seqs)
			return 0;
	}
	return num_flights > 0;
}

static int add_part(struct cairn_engine *e, struct flight *f, struct seq *s, int32_t num_rows)
{
	struct cairn_worker_part part = {
		.ids = s->drawn ? &s->last : s->prompt + s->computed, .num_rows = num_rows,
		.position = s->computed, .draw = NULL, .offset = (uint64_t)s->drawn,
	};

	if (!s->drawn)
		e->stats.prompt_tokens += num_rows;
	s->computed += num_rows;
	CAIRN_TRY(cairn_kv_pool_resize(e->pool, s->handle, s->computed, NULL));
	part.pages = cairn_kv_pool_pages(e->pool, s->handle, &part.num_pages);
	if (s->computed >= s->req.num_prompt) {
		part.draw = &s->req.sampling;
		s->drawn++;
		f->seqs[f->num_seqs++] = s;
	}
	cairn_worker_add(e->worker, &part);
	return 0;
}

static int launch(struct cairn_engine *e, int follow)
{
	int in_flight = cairn_worker_in_flight(e->worker);
	struct flight *f = &e->flights[(e->first_flight + in_flight) % CAIRN_WORKER_FLIGHTS];
	int32_t room = e->opt.max_rows;

	f->num_seqs = 0;
	cairn_worker_begin(e->worker);
	for (int32_t i = 0; i < e->num_running; i++)	/* each decoding request is sure of its row */
		room -= e->running[i]->drawn > 0;
	for (int32_t i = 0; i < e->num_running; i++) {
		struct seq *s = e->running[i];
		int32_t rows = 1;

		if (!s->drawn) {
			rows = s->req.num_prompt - s->computed;
			if (rows > room)
				rows = room;
			if (e->latent && rows > 1)
				rows = 1;
			room -= rows;
		}
		if (rows)
			CAIRN_TRY(add_part(e, f, s, rows));
	}
	e->stats.steps++;
	return cairn_worker_launch(e->worker, follow);
}

static int step(struct cairn_engine *e, int *busy)
{
	int follow;

	CAIRN_TRY(admit(e));
	follow = can_follow(e);
	if (!follow && !draws_nothing(e)) {
		while (cairn_worker_in_flight(e->worker))
			CAIRN_TRY(collect(e));
		retire(e);
		CAIRN_TRY(admit(e));
		if (!e->num_running) {
			*busy = 0;
			return 0;
		}
	}
	CAIRN_TRY(launch(e, follow));
	if (cairn_worker_in_flight(e->worker) == CAIRN_WORKER_FLIGHTS)
		CAIRN_TRY(collect(e));
	*busy = 1;
	return 0;
}

int cairn_engine_step(struct cairn_engine *e, int *busy)
{
	int ret;

	if (e->failed)
		return cairn_error(EINVAL, "engine: an earlier step has failed");
	ret = step(e, busy);
	e->failed = ret != 0;
	return ret;
}

int cairn_engine_run(struct cairn_engine *e)
{
	int busy = 1;

	while (busy)
		CAIRN_TRY(cairn_engine_step(e, &busy));
	return 0;
}

void cairn_engine_stats(const struct cairn_engine *e, struct cairn_engine_stats *stats)
{
	struct cairn_worker_stats rs;

	cairn_worker_stats(e->worker, &rs);
	*stats = e->stats;
	stats->graph_steps = rs.graph_passes;
	stats->captures = rs.captures;
	stats->fused_steps = rs.fused_passes;
}
