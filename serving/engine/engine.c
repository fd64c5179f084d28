// SPDX-License-Identifier: Apache-2.0
/*
 * engine - submits, finds and ends requests
 *
 * Invariants
 *   1. A request is in a slot and in a bucket exactly while one of its answers is live. Only during that time
 *      does the scheduler have sequences of it, or unread events that report their ends.
 *   2. An answer is given tokens while it is live and its request is not cancelled. on_finish is called once
 *      per answer; the call for the last answer comes after the request has left its slot and bucket, so that
 *      the callback may reuse the id.
 */
#include "serving/engine/engine_impl.h"

#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "primitives/base/dtype.h"

#define MAX_SEQS	1024		/* maximum answers of one request */
#define REPEAT_CHUNK	512		/* rows of a prompt per pass, with repeatable */
#define MAX_LIST	4096		/* maximum stop ids or biases of one request */

static void destroy_request(struct cairn_engine *e, struct request *r);

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
	if (o->cache_grain < -1)
		return cairn_error(EINVAL, "engine: cache_grain: is %d, must be >= -1", o->cache_grain);
	if (o->repeatable && o->max_rows < o->page_size)
		return cairn_error(EINVAL, "engine: max_rows: is %d, must be at least page_size %d to be "
				   "repeatable", o->max_rows, o->page_size);
	if (o->repeatable && o->cache_grain == 1 && o->page_size > 1)
		return cairn_error(EINVAL, "engine: cache_grain: 1 does not go with repeatable, which shares "
				   "whole chunks");
	if (o->repeatable && o->nano && o->nano->pick)
		return cairn_error(EINVAL, "engine: nano: plans that depend on the pass do not go with "
				   "repeatable");
	o->cache_grain = !o->cache_grain ? o->page_size : o->cache_grain < 0 ? 0 : o->cache_grain;
	return 0;
}

/*
 * Estimates the costs of preemption when the caller gives no measured values: recomputing a token takes two
 * operations per weight at 400 TFLOP/s; a page is copied at 50 GB/s. Only their ratio matters.
 */
static void estimate_costs(struct cairn_scheduler_options *so, const struct cairn_model *m)
{
	double token = (double)cairn_model_key_bytes(m) * (cairn_model_is_latent(m) ? 1 : 2) *
		       m->config.num_hidden_layers;

	so->recompute_ns = 1 + (int64_t)((double)m->bytes / 4e5);
	so->swap_ns = 1 + (int64_t)(token * so->page_size / 50);
}

/* Returns the chunk size of prompts, in whole pages; 0 if not repeatable. */
static int32_t repeat_chunk(const struct cairn_engine_options *o)
{
	int32_t rows = REPEAT_CHUNK < o->max_rows ? REPEAT_CHUNK : o->max_rows;

	if (rows < o->page_size)
		rows = o->page_size;
	return o->repeatable ? rows - rows % o->page_size : 0;
}

static int check_repeatable(const struct cairn_engine *e)
{
	if (!e->can_score)
		return cairn_error(EOPNOTSUPP, "engine: repeatable: %s has no operation list for this model",
				   e->impl->name);
	return 0;
}

static int check_adapters(const struct cairn_engine_options *o)
{
	const char *other = o->tap ? "tap" : o->nano ? "nano" : o->slices ? "slices" : o->attention ?
			    "attention" : NULL;

	return other ? cairn_error(EOPNOTSUPP, "engine: %s: is not supported with adapters", other) : 0;
}

static int create_scheduler(struct cairn_engine *e, const struct cairn_model *m)
{
	const struct cairn_engine_options *o = &e->opt;
	struct cairn_scheduler_options so = {
		.dense_rows = o->max_rows, .max_seqs = o->max_batch,
		.max_chunk = cairn_forward_supported(m) ? 0 : 1, .repeat_chunk = repeat_chunk(o),
		.separate = o->stripes,
		.max_context = o->max_context, .page_size = o->page_size, .num_pages = o->num_pages,
		.host_pages = o->host_pages, .disk_pages = o->disk_pages, .grain = o->cache_grain,
		.listener = o->listener,
		.ahead = !o->in_turn, .lanes = e->num_lanes, .max_queued = o->max_queued,
		.max_queued_tokens = o->max_queued_tokens, .max_passes = o->max_passes,
		.expected_new = o->expected_new, .recompute_ns = o->recompute_ns, .swap_ns = o->swap_ns,
	};

	engine_spec_options(e, &so);
	engine_pull_options(e, &so);
	if (!o->recompute_ns && !o->swap_ns)
		estimate_costs(&so, m);
	return cairn_scheduler_create(&e->scheduler, &so);
}

static int create_tiers(struct cairn_engine *e, const struct cairn_model *model,
			const struct cairn_worker_options *worker)
{
	struct cairn_tiers_options to = {
		.host_pages = e->opt.host_pages, .disk_pages = e->opt.disk_pages, .disk_dir = e->opt.disk_dir,
		.features = engine_spec_taps(e) ? cairn_worker_features(e->worker) : NULL,
	};

	CAIRN_TRY(cairn_tiers_create(&e->tiers, model, cairn_worker_kv(e->worker),
				     cairn_worker_stream(e->worker), &to));
	return e->opt.tap ? e->opt.tap->create(e->opt.tap->worker.ctx, worker, &to) : 0;
}

/* Other processes have no slices and masks, and plans of nano-batches only if these can be compared. */
static int check_tap(const struct cairn_engine_options *o)
{
	const char *other = o->host_pages ? "host_pages" : o->repeatable ? "repeatable" :
			    o->nano ? "nano" : NULL;

	if (o->stripes && other)
		return cairn_error(EINVAL, "engine: stripes: excludes %s", other);
	if (o->nano && !o->nano->digest)
		return cairn_error(EINVAL, "engine: tap: nano: the plans have no digest");
	return o->slices || o->masks ? cairn_error(EINVAL, "engine: tap: excludes slices and masks") : 0;
}

int cairn_engine_create(struct cairn_engine **out, struct cairn_model *model,
			const struct cairn_engine_options *options)
{
	struct cairn_worker_options wo;
	struct cairn_engine *e;
	int ret;

	if (!out || !model || !options)
		return cairn_error(EINVAL, "engine: null pointer");
	e = calloc(1, sizeof(*e));
	if (!e)
		return cairn_error(ENOMEM, "engine: no memory");
	e->impl = model->impl;
	e->config = &model->config;
	e->lora = model->lora;
	e->can_score = cairn_forward_supported(model);
	e->opt = *options;
	ret = check_options(&e->opt, e->config);
	if (!ret && e->opt.repeatable)
		ret = check_repeatable(e);
	if (!ret && e->opt.tap)
		ret = check_tap(&e->opt);
	if (!ret && e->lora)
		ret = check_adapters(&e->opt);
	if (!ret && e->opt.attention)
		ret = engine_remote_check(&e->opt, model);
	if (!ret)
		ret = engine_lanes_check(&e->opt);
	e->num_lanes = e->opt.lanes == CAIRN_LANES_AUTO ? CAIRN_MAX_LANES : e->opt.lanes ? e->opt.lanes : 1;
	e->used_lanes = e->opt.lanes == CAIRN_LANES_AUTO ? 1 : e->num_lanes;
	e->num_models = e->opt.attention ? cairn_lead_models(e->opt.attention) : 1;
	if (!ret && e->opt.prefill)
		ret = engine_pull_check(&e->opt);
	if (!ret)
		ret = engine_spec_create(e);
	if (!ret)
		ret = create_scheduler(e, model);
	if (ret)
		goto out_destroy;
	wo = (struct cairn_worker_options){
		.max_batch = e->max_draws, .max_rows = e->opt.max_rows,
		.max_context = e->opt.max_context, .num_pages = e->opt.num_pages,
		.page_size = e->opt.page_size, .chunk_rows = e->opt.chunk_rows,
		.no_graphs = e->opt.no_graphs, .decode = e->opt.decode,
		.timeline = e->opt.timeline, .repeatable = e->opt.repeatable,
		.context_rows = e->opt.context_rows, .context = e->opt.context,
		.context_keys = e->opt.context_keys, .stripes = e->opt.stripes, .nano = e->opt.nano,
		.slices = e->opt.slices, .tap = e->opt.tap ? &e->opt.tap->worker : NULL,
		.trees = engine_spec_trees(e),
		.taps = engine_spec_taps(e),
		.attention = e->opt.attention, .attends_all = e->opt.attends_all,
		.kv_journal = e->opt.kv_journal,
	};
	e->opt.nano = NULL;		/* the worker has a copy */
	ret = engine_lanes_create(e, model, &wo);
	if (!ret)
		ret = engine_spec_create_model(e, &wo);
	if (!ret)
		ret = create_tiers(e, model, &wo);
	if (!ret)
		ret = engine_pull_create(e, model);
	if (ret)
		goto out_destroy;
	ret = engine_treat_create(e);
	if (!ret)
		ret = engine_mask_create(e);
	if (ret)
		goto out_destroy;
	ret = -ENOMEM;
	e->stops = calloc((size_t)e->max_draws, sizeof(*e->stops));
	if (!e->stops)
		goto out_nomem;
	for (int i = 0; i < ENGINE_FLIGHTS; i++) {
		e->flights[i].draws = calloc((size_t)e->max_draws, sizeof(struct draw));
		e->flights[i].scored = calloc((size_t)e->opt.max_batch, sizeof(struct draw));
		if (!e->flights[i].draws || !e->flights[i].scored)
			goto out_nomem;
	}
	*out = e;
	return 0;

out_nomem:
	cairn_error(ENOMEM, "engine: no memory for %d sequences", e->opt.max_batch);
out_destroy:
	cairn_engine_destroy(e);
	return ret;
}

void cairn_engine_destroy(struct cairn_engine *e)
{
	if (!e)
		return;
	if (e->lanes[0])
		e->impl->stream_sync(cairn_worker_stream(e->lanes[0]));
	engine_pull_destroy(e);		/* writes to pages of the worker */
	cairn_tiers_destroy(e->tiers);
	engine_lanes_destroy(e);
	cairn_scheduler_destroy(e->scheduler);
	for (int i = 0; i < ENGINE_FLIGHTS; i++) {
		free(e->flights[i].draws);
		free(e->flights[i].scored);
	}
	for (int32_t i = 0; i < e->num_slots; i++) {
		if (e->slots[i].r)
			destroy_request(NULL, e->slots[i].r);
	}
	engine_spec_destroy(e->spec);
	free(e->treats);
	free(e->mask_items);
	free(e->count_slots);
	free(e->paths);
	free(e->moves_from);
	free(e->moves_to);
	free(e->slots);
	free(e->free_slots);
	free(e->events);
	free(e->stops);
	free(e);
}

/* ---- lookup ---- */

static struct request **bucket(struct cairn_engine *e, uint64_t id)
{
	return &e->buckets[(id * 0x9e3779b97f4a7c15u) >> 52 & (NUM_BUCKETS - 1)];
}

static struct request *find_id(struct cairn_engine *e, uint64_t id)
{
	struct request *r = *bucket(e, id);

	while (r && r->req.id != id)
		r = r->next;
	return r;
}

struct request *engine_find(struct cairn_engine *e, uint64_t handle)
{
	uint32_t slot = (uint32_t)handle;

	return e->slots[slot].generation == (uint32_t)(handle >> 32) ? e->slots[slot].r : NULL;
}

static int take_slot(struct cairn_engine *e, struct request *r)
{
	int32_t slot, num = e->num_slots ? 2 * e->num_slots : 64;

	if (!e->num_free) {
		void *slots = realloc(e->slots, (size_t)num * sizeof(*e->slots));
		void *places = slots ? realloc(e->free_slots, (size_t)num * sizeof(*e->free_slots)) : NULL;

		if (slots)
			e->slots = slots;
		if (!places)
			return cairn_error(ENOMEM, "engine: no memory for %d requests", num);
		e->free_slots = places;
		memset(e->slots + e->num_slots, 0, (size_t)(num - e->num_slots) * sizeof(*e->slots));
		for (int32_t i = num; i-- > e->num_slots;)
			e->free_slots[e->num_free++] = i;
		e->num_slots = num;
	}
	slot = e->free_slots[--e->num_free];
	e->slots[slot].r = r;
	r->handle = (uint64_t)++e->slots[slot].generation << 32 | (uint32_t)slot;
	return 0;
}

static void leave(struct cairn_engine *e, struct request *r)
{
	uint32_t slot = (uint32_t)r->handle;
	struct request **at = bucket(e, r->req.id);

	while (*at && *at != r)
		at = &(*at)->next;
	if (*at)
		*at = r->next;
	e->slots[slot].r = NULL;
	e->free_slots[e->num_free++] = (int32_t)slot;
}

/* ---- submission ---- */

static int check_request(struct cairn_engine *e, const struct cairn_request *r)
{
	int64_t room = (int64_t)e->opt.num_pages * e->opt.page_size;
	int32_t vocab = e->config->vocab_size, num_seqs = r->num_seqs ? r->num_seqs : 1;

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
		if (r->prompt[i] < 0 || r->prompt[i] >= vocab)
			return cairn_error(EINVAL, "prompt: token %d is %d, the vocabulary has %d", i,
					   r->prompt[i], vocab);
	}
	if (num_seqs < 1 || num_seqs > e->opt.max_batch || num_seqs > MAX_SEQS)
		return cairn_error(EINVAL, "num_seqs: is %d, must be in 1..%d", num_seqs,
				   e->opt.max_batch < MAX_SEQS ? e->opt.max_batch : MAX_SEQS);
	if (r->num_stop_ids < 0 || r->num_stop_ids > MAX_LIST || (r->num_stop_ids && !r->stop_ids))
		return cairn_error(EINVAL, "stop_ids: %d ids, must be 0 to %d", r->num_stop_ids, MAX_LIST);
	for (int32_t i = 0; i < r->num_stop_ids; i++) {
		if (r->stop_ids[i] < 0 || r->stop_ids[i] >= vocab)
			return cairn_error(EINVAL, "stop_ids: id %d is %d, the vocabulary has %d", i,
					   r->stop_ids[i], vocab);
	}
	if (r->adapter < 0 || r->adapter > (e->lora ? e->lora->num : 0))
		return cairn_error(EINVAL, "adapter: is %d, the model has %d", r->adapter,
				   e->lora ? e->lora->num : 0);
	if (r->deadline_ns < 0)
		return cairn_error(EINVAL, "deadline_ns: is %lld, must be >= 0", (long long)r->deadline_ns);
	if (find_id(e, r->id))
		return cairn_error(EINVAL, "id: request %llu already exists", (unsigned long long)r->id);
	if (r->num_given < 0 || r->num_given >= r->num_prompt)
		return cairn_error(EINVAL, "num_given: is %d, must be in 0..%d", r->num_given,
				   r->num_prompt - 1);
	if (r->num_given && (num_seqs > 1 || r->beam_width || r->prompt_logprobs))
		return cairn_error(EINVAL, "num_given: does not go with %s", num_seqs > 1 ? "num_seqs" :
				   r->beam_width ? "beam_width" : "prompt_logprobs");
	CAIRN_TRY(engine_check_sampling(e, r));
	if (r->constraint)
		CAIRN_TRY(engine_mask_check(e, r));
	return r->beam_width ? engine_check_beams(e, r) : 0;
}

static struct request *make_request(const struct cairn_request *from)
{
	int32_t num_answers = from->num_seqs ? from->num_seqs : 1;
	size_t answers = (size_t)num_answers * sizeof(struct answer);
	size_t stop_ids = (size_t)from->num_stop_ids * sizeof(int32_t);
	struct request *r = calloc(1, sizeof(*r) + answers + stop_ids);
	int32_t *list;

	if (!r)
		return NULL;
	r->req = *from;
	r->num_answers = r->num_live = num_answers;
	list = (int32_t *)(r->answers + num_answers);
	if (stop_ids)
		memcpy(list, from->stop_ids, stop_ids);
	r->req.stop_ids = list;
	r->req.prompt = NULL;		/* the scheduler has its own copy */
	for (int32_t i = 0; i < num_answers; i++)
		r->answers[i] = (struct answer){ .live = 1, .end_token = -1, .slot = -1,
						 .num_given = from->num_given };
	return r;
}

static void destroy_request(struct cairn_engine *e, struct request *r)
{
	if (e)
		engine_treat_end(e, r);
	engine_beams_destroy(r->beams);
	free(r->scored_prompt);
	free(r->prompt);
	free(r->given);
	free(r);
}

/*
 * Returns the salt of a request and its adapter, because adapters must not share keys and values. For equal
 * salts of requests it differs from adapter to adapter; other salts are digests, which do not collide.
 */
static struct cairn_cache_salt salt_of(const struct cairn_request *request)
{
	struct cairn_cache_salt salt = request->salt;

	salt.hi ^= (uint64_t)request->adapter * 0x9e3779b97f4a7c15;
	return salt;
}

static int enter(struct cairn_engine *e, struct request *r, const struct cairn_request *request)
{
	struct request **at = bucket(e, request->id);
	struct cairn_scheduler_request sr = {
		.prompt = request->prompt, .num_prompt = request->num_prompt,
		.max_new_tokens = request->max_new_tokens,
		.num_seqs = request->beam_width ? request->beam_width : r->num_answers,
		.salt = salt_of(request), .deadline_ns = request->deadline_ns, .keep = request->keep,
		.lockstep = request->beam_width > 0,
	};
	int ret;

	CAIRN_TRY(engine_treat_begin(e, r, request));
	sr.movable = !r->counts;	/* its token counters are in the memory of one lane */
	/* other model workers have neither counters nor lists, so they keep nothing that could be lost */
	sr.in_first_lane = e->num_models > 1 && (r->counts || r->num_forbidden || r->req.sampling.num_bias);
	if (request->beam_width)
		CAIRN_TRY(engine_beams_create(e, r));
	sr.speculates = engine_spec_begin(e, r);
	CAIRN_TRY(take_slot(e, r));
	r->next = *at;
	*at = r;
	sr.id = r->handle;
	if (r->scored_prompt) {		/* its own salt: finds no cached prefix */
		sr.salt = (struct cairn_cache_salt){ 0x636169726e2d7363, r->handle };
		sr.scored = 1;
		sr.keep = 0;
	}
	if (request->num_given && request->constraint) {
		ret = engine_mask_resume(e, r, request->prompt + request->num_prompt - request->num_given);
		if (ret) {
			leave(e, r);
			return ret;
		}
	}
	sr.pulled = engine_pull_wants(e, r, request);
	ret = cairn_scheduler_submit(e->scheduler, &sr);
	if (ret)
		leave(e, r);
	else if (sr.pulled)
		engine_pull_begin(e, r, request);
	return ret;
}

int cairn_engine_submit(struct cairn_engine *e, const struct cairn_request *request)
{
	struct request *r;
	int ret;

	if (e->failed)
		return cairn_error(EINVAL, "engine: an earlier step has failed");
	CAIRN_TRY(check_request(e, request));
	r = make_request(request);
	if (!r)
		return cairn_error(ENOMEM, "engine: no memory for a request");
	ret = enter(e, r, request);
	if (ret) {
		destroy_request(e, r);
		return ret;
	}
	e->num_requests++;
	return 0;
}

/* ---- end ---- */

void engine_finish(struct cairn_engine *e, struct request *r, int32_t index, enum cairn_finish why,
		   int32_t token)
{
	int last = --r->num_live == 0;

	r->answers[index].live = 0;
	engine_treat_end_answer(e, &r->answers[index]);
	engine_spec_end(e, r, index);
	if (last) {
		engine_pull_end(e, r);
		leave(e, r);
		e->num_requests--;
	}
	if (r->req.on_finish)
		r->req.on_finish(r->req.ctx, index, why, token);
	if (last)
		destroy_request(e, r);
}

int cairn_engine_cancel(struct cairn_engine *e, uint64_t id)
{
	struct request *r = find_id(e, id);
	int ret;

	if (!r || r->cancelled)
		return cairn_error(ENOENT, "there is no request %llu", (unsigned long long)id);
	ret = cairn_scheduler_cancel(e->scheduler, r->handle);
	if (ret == -ENOENT)	/* its sequences have ended, and so it ends without being cancelled */
		return cairn_error(ENOENT, "request %llu ends in this step", (unsigned long long)id);
	r->cancelled = !ret;
	return ret;
}

int cairn_engine_stop(struct cairn_engine *e, uint64_t id, int32_t index)
{
	struct request *r = find_id(e, id);
	struct answer *a = r && index >= 0 && index < r->num_answers ? &r->answers[index] : NULL;
	int ret;

	if (!a || !a->live || a->stopping || r->cancelled)
		return cairn_error(ENOENT, "there is no request %llu with answer %d", (unsigned long long)id,
				   index);
	if (r->beams)
		return cairn_error(EINVAL, "request %llu: an answer of a beam search cannot be stopped",
				   (unsigned long long)id);
	a->stopping = 1;
	/* An answer without a sequence of its own ends at the first token it draws. */
	ret = cairn_scheduler_stop(e->scheduler, r->handle, index);
	return ret == -ENOENT || ret == -EAGAIN ? 0 : ret;
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
	struct cairn_worker_stats ws, lane;

	cairn_worker_stats(e->lanes[0], &ws);
	for (int32_t i = 1; i < e->num_lanes; i++) {
		cairn_worker_stats(e->lanes[i], &lane);
		ws.sliced_passes += lane.sliced_passes;
	}
	*stats = e->stats;
	stats->lanes = e->used_lanes;
	stats->journal_bytes = ws.journal_bytes;
	stats->journal_ns = ws.journal_ns;
	stats->restored_bytes = ws.restored_bytes;
	stats->restore_ns = ws.restore_ns;
	stats->graph_steps = ws.graph_passes;
	stats->captures = ws.captures;
	stats->fused_steps = ws.fused_passes;
	stats->nano_steps = ws.nano_passes;
	stats->context_steps = ws.context_passes;
	stats->pages_steps = ws.pages_passes;
	stats->stripes_steps = ws.stripes_passes;
	stats->sliced_steps = ws.sliced_passes;
	stats->layer_offloads = cairn_tiers_num_by_layer(e->tiers);
	stats->wait_ns = ws.wait_ns;
	stats->host_ns -= ws.wait_ns;
	stats->busy_ns = ws.busy_ns;
	stats->idle_ns = ws.idle_ns;
	stats->max_idle_ns = ws.max_idle_ns;
	engine_spec_stats(e, &stats->speculation);
	engine_pull_stats(e, stats);
	cairn_scheduler_stats(e->scheduler, &stats->scheduler);
}

int cairn_engine_verify(const struct cairn_engine *e)
{
	return cairn_scheduler_verify(e->scheduler);
}
