// SPDX-License-Identifier: Apache-2.0
/*
 * worker - allocates the memory of passes, builds passes and collects their tokens
 *
 * Index arrays and sampling parameters of a pass are one block, built in host memory and copied by one call
 * to fixed addresses on the device. Drawn tokens are written to drawn[0..n-1]. Rows of the next pass that
 * follow a draw read them there; the host gets a copy after the pass.
 *
 *   host    build 1, launch | build 2, launch | collect 1, build 3, launch | collect 2, ...
 *   device          [-------- pass 1 --------][-------- pass 2 --------][-------- pass 3 ...
 *
 * Invariants
 *   1. A host block and its tokens belong to one flight and are not written again before its event has
 *      completed. The device has one block: copies and passes are ordered on one stream.
 *   2. A captured pass depends only on its shape and on addresses that live as long as the worker. When the
 *      workspace moves, all captured passes are dropped.
 */
#include "serving/engine/worker/worker_impl.h"

#include <stdlib.h>
#include <string.h>

#include "serving/base/clock.h"

#define PACKED_ROWS	16	/* most rows of a task of attn_paged whose keys SMs divide (attn_tile.h) */
#define FEW_ROWS_PAST	256	/* only parts with at least so many earlier keys become several requests */
#define MOST_OF_PART	4	/* most requests that a part becomes */

int32_t cairn_worker_padded(int32_t batch)
{
	int32_t step = batch <= 8 ? 1 : batch <= 64 ? 8 : batch <= 256 ? 16 : batch <= 512 ? 32 : 64;

	return (batch + step - 1) / step * step;
}

void *worker_carve(char **cursor, size_t bytes)
{
	char *p = *cursor;

	*cursor += (bytes + 15) / 16 * 16;
	return p;
}

/* Lays out the arrays in memory at base; returns their size in bytes. */
static size_t lay_out(const struct cairn_worker *w, struct arrays *a, char *base)
{
	size_t batch = (size_t)w->opt.max_batch + WORKER_SLICES, rows = (size_t)w->opt.max_rows;
	/* Sequences share pages, so their page tables together can be longer than the pool. */
	size_t pages = (size_t)((w->opt.max_context + w->opt.page_size - 1) / w->opt.page_size);
	size_t nanos = (size_t)worker_nano_batches(w);
	char *at = base;

	a->seed = worker_carve(&at, batch * sizeof(*a->seed));
	a->offset = worker_carve(&at, batch * sizeof(*a->offset));
	a->temperature = worker_carve(&at, batch * sizeof(*a->temperature));
	a->top_p = worker_carve(&at, batch * sizeof(*a->top_p));
	a->min_p = worker_carve(&at, batch * sizeof(*a->min_p));
	a->top_k = worker_carve(&at, batch * sizeof(*a->top_k));
	a->logit_rows = worker_carve(&at, batch * sizeof(*a->logit_rows));
	a->last_page_len = worker_carve(&at, batch * sizeof(*a->last_page_len));
	a->slots = worker_carve(&at, batch * sizeof(*a->slots));
	a->bias_at = worker_carve(&at, batch * sizeof(*a->bias_at));
	a->num_bias = worker_carve(&at, batch * sizeof(*a->num_bias));
	a->forbidden_at = worker_carve(&at, batch * sizeof(*a->forbidden_at));
	a->num_forbidden = worker_carve(&at, batch * sizeof(*a->num_forbidden));
	a->wanted = worker_carve(&at, batch * sizeof(*a->wanted));
	a->wanted_late = worker_carve(&at, batch * sizeof(*a->wanted_late));
	a->mask = worker_carve(&at, batch * sizeof(*a->mask));
	a->targets = worker_carve(&at, batch * sizeof(*a->targets));
	a->repetition = worker_carve(&at, batch * sizeof(*a->repetition));
	a->frequency = worker_carve(&at, batch * sizeof(*a->frequency));
	a->presence = worker_carve(&at, batch * sizeof(*a->presence));
	a->qo_indptr = worker_carve(&at, (batch + 1) * sizeof(*a->qo_indptr));
	a->kv_indptr = worker_carve(&at, (batch + 1) * sizeof(*a->kv_indptr));
	a->positions = worker_carve(&at, rows * sizeof(*a->positions));
	a->ids = worker_carve(&at, rows * sizeof(*a->ids));
	a->from = worker_carve(&at, rows * sizeof(*a->from));
	a->adapters = worker_carve(&at, rows * sizeof(*a->adapters));
	for (size_t i = 0; i < nanos; i++) {
		a->nano[i].qo_indptr = worker_carve(&at, (batch + 1) * sizeof(*a->nano[i].qo_indptr));
		a->nano[i].kv_indptr = worker_carve(&at, (batch + 1) * sizeof(*a->nano[i].kv_indptr));
		a->nano[i].last_page_len = worker_carve(&at, batch * sizeof(*a->nano[i].last_page_len));
	}
	/* Each cut may lie inside a sequence, whose pages are then listed twice. */
	a->kv_indices = worker_carve(&at, (batch + nanos) * pages * sizeof(*a->kv_indices));
	return (size_t)(at - base);
}

int worker_host_alloc(struct cairn_worker *w, size_t bytes, void **out)
{
	void *p;

	if (w->impl->host_alloc) {
		CAIRN_TRY(TABLE(w, host_alloc, &p, bytes));
	} else {
		p = malloc(bytes);	/* pageable memory: a copy may wait for the device */
		if (!p)
			return cairn_error(ENOMEM, "worker: no memory for %zu bytes", bytes);
	}
	memset(p, 0, bytes);
	*out = p;
	return 0;
}

void worker_host_free(struct cairn_worker *w, void *p)
{
	if (p)
		(w->impl->host_alloc ? w->impl->host_free : free)(p);
}

static int create_flights(struct cairn_worker *w, size_t block)
{
	size_t tokens = (size_t)w->opt.max_batch * sizeof(*w->drawn);
	void *p;

	for (int i = 0; i < CAIRN_WORKER_FLIGHTS; i++) {
		struct flight *f = &w->flights[i];

		CAIRN_TRY(worker_host_alloc(w, block, &p));
		f->block = p;
		lay_out(w, &f->host, p);
		CAIRN_TRY(worker_host_alloc(w, tokens, &p));
		f->tokens = p;
		CAIRN_TRY(worker_host_alloc(w, worker_logprobs_bytes(w, CAIRN_LOGPROBS_MAX), &p));
		f->logprobs = p;
		f->rows = malloc(tokens);
		f->begins.treats = calloc((size_t)w->opt.max_batch, sizeof(*f->begins.treats));
		f->forks.treats = calloc((size_t)w->opt.max_batch, sizeof(*f->forks.treats));
		f->scored = malloc((size_t)w->opt.max_batch * sizeof(*f->scored));
		if (!f->rows || !f->begins.treats || !f->forks.treats || !f->scored)
			return cairn_error(ENOMEM, "worker: no memory for %d requests", w->opt.max_batch);
		CAIRN_TRY(TABLE(w, event_create, &f->event));
	}
	for (int i = 0; w->opt.timeline && i < NUM_TIMES; i++) {
		CAIRN_TRY(TABLE(w, event_create, &w->times[i].begin));
		CAIRN_TRY(TABLE(w, event_create, &w->times[i].end));
	}
	return 0;
}

/* Takes the maximum over all row counts, because fewer rows may need more than the most do. */
static int create_sample_workspace(struct cairn_worker *w)
{
	for (int32_t rows = 1; w->impl->sample_workspace && rows <= w->opt.max_batch; rows++) {
		struct cairn_sample_args sample = worker_sample_args(w, rows);
		size_t bytes;

		CAIRN_TRY(TABLE(w, sample_workspace, &sample, &bytes));
		if (bytes > w->sample_workspace_bytes)
			w->sample_workspace_bytes = bytes;
	}
	return w->sample_workspace_bytes ?
		TABLE(w, mem_alloc, &w->sample_workspace, w->sample_workspace_bytes) : 0;
}

static int create_device(struct cairn_worker *w)
{
	size_t logits = (size_t)w->opt.max_batch * (size_t)w->vocab * sizeof(*w->logits);
	size_t ids = (size_t)w->opt.max_rows * sizeof(*w->ids);
	size_t tokens = (size_t)w->opt.max_batch * sizeof(*w->drawn), block;
	void *p;

	block = lay_out(w, &w->dev, NULL);
	CAIRN_TRY(TABLE(w, stream_create, &w->stream));
	CAIRN_TRY(TABLE(w, mem_alloc, &p, block));
	w->dev_block = p;
	lay_out(w, &w->dev, p);
	CAIRN_TRY(TABLE(w, mem_alloc, &p, ids));
	w->ids = p;
	CAIRN_TRY(TABLE(w, mem_alloc, &p, tokens));
	w->drawn = p;
	CAIRN_TRY(TABLE(w, mem_alloc, &p, worker_logprobs_bytes(w, CAIRN_LOGPROBS_MAX)));
	w->logprobs = p;
	CAIRN_TRY(TABLE(w, mem_alloc, &p, logits));
	w->logits = p;
	/* A padded pass reads rows that were never written. The results are unused, but the memory must be
	 * initialized. */
	CAIRN_TRY(TABLE(w, mem_set, w->ids, 0, ids, w->stream));
	CAIRN_TRY(TABLE(w, mem_set, w->drawn, 0, tokens, w->stream));
	CAIRN_TRY(TABLE(w, mem_set, w->logprobs, 0, worker_logprobs_bytes(w, CAIRN_LOGPROBS_MAX),
			w->stream));
	CAIRN_TRY(create_sample_workspace(w));
	return create_flights(w, block);
}

/* Queries the largest possible pass, so that an unsupported shape is reported at creation instead of in a
 * run. */
static int probe(struct cairn_worker *w)
{
	struct cairn_batch largest = {
		.num_rows = w->opt.max_batch, .batch = w->opt.max_batch, .num_logits = w->opt.max_batch,
		.max_qo_len = 1, .max_kv_len = w->opt.max_context,
	};
	struct cairn_draw greedy = { .tokens = w->drawn };
	int fits, moved;

	return cairn_decoder_prepare(w->decoder, &w->kv, &largest, &greedy, w->stream, &fits, &moved);
}

int cairn_worker_create(struct cairn_worker **out, struct cairn_model *model,
			const struct cairn_worker_options *options)
{
	struct cairn_worker *w = calloc(1, sizeof(*w));
	int ret;

	if (!w)
		return cairn_error(ENOMEM, "worker: no memory");
	w->model = model;
	w->impl = model->impl;
	w->opt = *options;
	w->opt.nano = NULL;
	w->vocab = model->config.vocab_size;
	w->by_steps = !cairn_forward_supported(model);
	w->have_graphs = !w->opt.no_graphs && w->impl->graph_begin &&
			 !(w->impl->flags & CAIRN_IMPL_HOST_MEM) &&
			 (!worker_is_remote(w) || cairn_share_by_stream(w->impl));
	if (!w->by_steps)
		w->opt.max_batch = cairn_worker_padded(w->opt.max_batch);
	if (w->opt.max_rows < w->opt.max_batch)
		w->opt.max_rows = w->opt.max_batch;
	if (!w->impl->argmax || !w->impl->sample) {
		ret = cairn_error(EOPNOTSUPP, "%s: the table has no operation %s", w->impl->name,
				  w->impl->argmax ? "sample" : "argmax");
		goto out_destroy;
	}
	/* with remote attention, no operation here reads or writes the cache */
	ret = cairn_kv_store_create(&w->kv, model, worker_is_remote(w) ? 1 : worker_held_pages(w),
				    w->opt.page_size);
	if (ret)
		goto out_destroy;
	if (!w->by_steps && !w->opt.model)
		ret = cairn_scratch_create(&w->scratch, model, worker_pipeline_rows(w), w->opt.max_batch);
	if (!ret)
		ret = worker_context_create(w);
	if (ret)
		goto out_destroy;
	if (worker_is_remote(w))
		w->opt.decode = CAIRN_DECODE_UNFUSED;
	ret = cairn_decoder_create(&w->decoder, model, w->opt.decode);
	if (!ret && options->nano && !w->by_steps)
		ret = worker_nano_create(w, options->nano);
	if (!ret && worker_is_remote(w) && w->by_steps)
		ret = cairn_error(EOPNOTSUPP, "attention_workers: %s has no operation list for this model",
				  w->impl->name);
	if (!ret && (options->slices || worker_is_remote(w)) && !w->by_steps)
		ret = options->nano ? cairn_error(EINVAL, "worker: nano and slices exclude each other") :
		      worker_sliced_create(w);
	if (ret)
		goto out_destroy;
	ret = create_device(w);
	if (!ret)
		ret = worker_pipeline_create(w, options);
	if (!ret && w->opt.trees)
		ret = worker_tree_create(w);
	if (!ret && w->opt.taps)
		ret = worker_taps_create(w);
	if (!ret && w->by_steps)
		ret = probe(w);
	if (ret)
		goto out_destroy;
	*out = w;
	return 0;

out_destroy:
	cairn_worker_destroy(w);
	return ret;
}

void cairn_worker_destroy(struct cairn_worker *w)
{
	void *const memory[] = {
		w ? w->sample_workspace : NULL, w ? w->logits : NULL, w ? w->drawn : NULL,
		w ? w->ids : NULL, w ? w->dev_block : NULL, w ? w->logprobs : NULL,
	};

	if (!w)
		return;
	if (w->stream)
		w->impl->stream_sync(w->stream);
	if (w->remote)
		cairn_attn_remote_settled(w->remote, w->opt.lane);
	worker_drop_graphs(w);
	worker_treat_destroy(w);
	worker_mask_destroy(w);
	worker_tree_destroy(w);
	worker_context_destroy(w);
	worker_taps_destroy(w);
	worker_pipeline_destroy(w);
	for (int i = 0; i < CAIRN_WORKER_FLIGHTS; i++) {
		struct flight *f = &w->flights[i];

		if (f->event)
			w->impl->event_destroy(f->event);
		free(f->rows);
		free(f->scored);
		free(f->begins.treats);
		free(f->forks.treats);
		worker_host_free(w, f->logprobs);
		worker_host_free(w, f->tokens);
		worker_host_free(w, f->block);
	}
	for (int i = 0; i < NUM_TIMES; i++) {
		if (w->times[i].begin)
			w->impl->event_destroy(w->times[i].begin);
		if (w->times[i].end)
			w->impl->event_destroy(w->times[i].end);
	}
	for (size_t i = 0; i < sizeof(memory) / sizeof(memory[0]); i++) {
		if (memory[i])
			w->impl->mem_free(memory[i]);
	}
	if (w->stream)
		w->impl->stream_destroy(w->stream);
	cairn_decoder_destroy(w->decoder);
	worker_sliced_destroy(w);
	worker_nano_destroy(w);
	cairn_plan_out_free(&w->plan);
	cairn_scratch_destroy(w->scratch);
	cairn_kv_store_destroy(&w->kv, w->model);
	free(w);
}

void cairn_worker_begin(struct cairn_worker *w)
{
	int next = (w->first_flight + w->num_flights) % CAIRN_WORKER_FLIGHTS;

	w->flight = &w->flights[next];
	w->flight->num_tokens = w->flight->num_scored = w->flight->num_masks = 0;
	w->flight->begins.num = w->flight->begins.num_tokens = 0;
	w->flight->forks.num = w->flight->forks.num_tokens = 0;
	w->flight->host.qo_indptr[0] = 0;
	w->flight->host.kv_indptr[0] = 0;
	memset(&w->batch, 0, sizeof(w->batch));
	w->kind = (struct kind){ .greedy = 1 };
	w->follows = w->chained = w->num_trees = w->num_slices = 0;
	w->on_chunk = NULL;
	w->flight->draws_all = w->by_steps;
}

/* Makes row n of the logits those of a row of the pass. */
static void put_draw(struct cairn_worker *w, int32_t n, int32_t row, const struct cairn_worker_part *part)
{
	static const struct cairn_sampling dropped = { .top_p = 1 };
	const struct cairn_sampling *draw = part->draw ? part->draw : &dropped;
	struct flight *f = w->flight;
	struct arrays *a = &f->host;

	a->logit_rows[n] = row;
	a->temperature[n] = draw->temperature;
	a->top_k[n] = draw->top_k;
	a->top_p[n] = draw->top_p;
	a->min_p[n] = draw->min_p;
	a->seed[n] = part->seed;
	a->offset[n] = part->offset;
	w->kind.greedy &= draw->temperature == 0;
	worker_treat_part(w, n, part->treat);
	if (part->draw)
		f->rows[f->num_tokens++] = n;
}

void cairn_worker_add_draw(struct cairn_worker *w, int32_t row, const struct cairn_worker_part *part)
{
	int32_t first = w->flight->host.qo_indptr[w->batch.batch - 1];

	if (w->opt.tap)
		w->opt.tap->add_draw(w->opt.tap->ctx, row, part);
	put_draw(w, w->flight->num_tokens, first + row, part);
}

/* Adds rows [first, end) of a part, as a request of the batch. */
static void add_rows(struct cairn_worker *w, const struct cairn_worker_part *part, int32_t first, int32_t end)
{
	struct cairn_batch *b = &w->batch;
	struct arrays *a = &w->flight->host;
	const int32_t len = part->position + end, num = end - first;
	const int32_t num_pages = (len + w->opt.page_size - 1) / w->opt.page_size;
	const int32_t used = a->kv_indptr[b->batch];

	memcpy(a->kv_indices + used, part->pages, (size_t)num_pages * sizeof(*part->pages));
	for (int32_t i = 0; i < num; i++) {
		a->ids[b->num_rows + i] = part->follows < 0 ? part->ids[first + i] : 0;
		a->from[b->num_rows + i] = part->follows < 0 ? -1 : w->last->rows[part->follows];
		a->positions[b->num_rows + i] = part->position + first + i;
		a->adapters[b->num_rows + i] = part->adapter - 1;
	}
	a->last_page_len[b->batch] = (len - 1) % w->opt.page_size + 1;
	b->num_rows += num;
	b->batch++;
	a->kv_indptr[b->batch] = used + num_pages;
	a->qo_indptr[b->batch] = b->num_rows;
	if (num > b->max_qo_len)
		b->max_qo_len = num;
	if (len > b->max_kv_len)
		b->max_kv_len = len;
	b->nnz_kv += len;
}

int worker_is_plain(const struct cairn_worker *w)
{
	return !w->by_steps && !w->sliced && !w->remote && !w->pipeline && !w->nanos && !w->opt.repeatable &&
	       !w->opt.trees && !w->opt.taps && !w->opt.stripes && w->model->ranks < 2 &&
	       w->model->context_ranks < 2 && !cairn_model_is_latent(w->model);
}

/*
 * Returns how many rows of a part become one request of the batch. attn_paged splits the keys of a request
 * among SMs only if its rows times the query heads of a KV head are at most PACKED_ROWS. With a few more
 * rows, one SM for each KV head would read all the keys, since a row's bits must not depend on other
 * requests. So a few rows of a prompt behind a long past become several requests, which see each other's keys
 * like chained parts (worker_pass.c). Passes that are not plain (worker_is_plain()) have a request per part.
 */
static int32_t rows_of_request(const struct cairn_worker *w, const struct cairn_worker_part *part)
{
	const struct cairn_model_config *c = &w->model->config;
	int32_t rows, more;

	if (!worker_is_plain(w) || part->decodes || part->num_rows < 2 || part->position < FEW_ROWS_PAST)
		return part->num_rows;
	rows = PACKED_ROWS * c->num_key_value_heads / c->num_attention_heads;
	rows = rows < 1 ? 1 : rows;
	more = (part->num_rows - 1) / rows;
	return more < MOST_OF_PART && w->num_slices + more <= WORKER_SLICES ? rows : part->num_rows;
}

void cairn_worker_add(struct cairn_worker *w, const struct cairn_worker_part *part)
{
	const int32_t rows = rows_of_request(w, part), row = w->batch.num_rows;
	struct cairn_batch *b = &w->batch;
	struct flight *f = w->flight;
	int32_t n;

	if (w->opt.tap)
		w->opt.tap->add(w->opt.tap->ctx, part);
	f->draws_all |= w->opt.repeatable && part->decodes;
	n = f->draws_all ? b->batch : f->num_tokens;
	w->follows += part->follows >= 0;
	w->chained |= part->chained || rows < part->num_rows;
	for (int32_t i = 0; i < part->num_scored; i++) {
		f->scored[f->num_scored].row = row + part->score_from + i;
		f->scored[f->num_scored++].target = part->targets[i];
		if (part->score_k > w->kind.k)
			w->kind.k = part->score_k;
	}
	for (int32_t first = 0; first < part->num_rows; first += rows)
		add_rows(w, part, first, first + rows < part->num_rows ? first + rows : part->num_rows);
	w->num_slices += (part->num_rows - 1) / rows;
	if (part->parents)
		worker_tree_add(w, part);
	if (part->draw || f->draws_all)
		put_draw(w, n, b->num_rows - 1, part);
}

/* Adds the duration of the collected pass and of the idle gap before it. */
static int take_times(struct cairn_worker *w, int64_t number)
{
	int now = (int)(number % NUM_TIMES), before = (int)((number - 1) % NUM_TIMES);
	float busy = 0, idle = 0;

	CAIRN_TRY(TABLE(w, event_elapsed, &busy, w->times[now].begin, w->times[now].end));
	if (number > 1)
		CAIRN_TRY(TABLE(w, event_elapsed, &idle, w->times[before].end, w->times[now].begin));
	w->stats.busy_ns += (int64_t)((double)busy * 1e6);
	w->stats.idle_ns += (int64_t)((double)idle * 1e6);
	if ((double)idle * 1e6 > (double)w->stats.max_idle_ns)
		w->stats.max_idle_ns = (int64_t)((double)idle * 1e6);
	return 0;
}

/* Drops the draws that were not asked for from a pass that drew after every row. */
static void gather_rows(struct flight *f, const struct cairn_worker_result *r, int32_t max_batch)
{
	int32_t *ids = (int32_t *)f->logprobs + max_batch;
	float *chosen = (float *)f->logprobs, *top = (float *)(ids + (size_t)max_batch * (size_t)r->k);

	for (int32_t i = 0; i < f->num_tokens; i++) {
		f->tokens[i] = f->tokens[f->rows[i]];
		if (!f->wants_logprobs)
			continue;
		chosen[i] = chosen[f->rows[i]];
		memmove(ids + i * r->k, ids + f->rows[i] * r->k, (size_t)r->k * sizeof(*ids));
		memmove(top + i * r->k, top + f->rows[i] * r->k, (size_t)r->k * sizeof(*top));
	}
}

int cairn_worker_collect(struct cairn_worker *w, struct cairn_worker_result *r)
{
	struct flight *f = &w->flights[w->first_flight];
	int64_t start = cairn_clock_ns();

	if (w->impl->event_sync)
		CAIRN_TRY(TABLE(w, event_sync, f->event));
	else
		CAIRN_TRY(TABLE(w, stream_sync, w->stream));
	w->stats.wait_ns += cairn_clock_ns() - start;
	w->first_flight = (w->first_flight + 1) % CAIRN_WORKER_FLIGHTS;
	w->num_flights--;
	if (w->opt.timeline && w->impl->event_elapsed)
		CAIRN_TRY(take_times(w, f->number));
	*r = (struct cairn_worker_result){
		.tokens = f->tokens, .num_tokens = f->num_tokens, .num_scored = f->num_scored, .k = f->k,
		.logprob = (const float *)f->logprobs,
		.top = (const int32_t *)f->logprobs + w->opt.max_batch,
	};
	r->top_logprob = (const float *)(r->top + (size_t)w->opt.max_batch * (size_t)f->k);
	if (f->draws_all)
		gather_rows(f, r, w->opt.max_batch);
	return w->opt.tap ? w->opt.tap->collect(w->opt.tap->ctx, r) : 0;
}

int cairn_worker_in_flight(const struct cairn_worker *w)
{
	return w->num_flights;
}

const struct cairn_kv_store *cairn_worker_kv(const struct cairn_worker *w)
{
	return &w->kv;
}

void *cairn_worker_stream(const struct cairn_worker *w)
{
	return w->stream;
}

void cairn_worker_stats(const struct cairn_worker *w, struct cairn_worker_stats *stats)
{
	*stats = w->stats;
	worker_sliced_stats(w, stats);
}
