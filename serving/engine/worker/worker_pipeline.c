// SPDX-License-Identifier: Apache-2.0
/*
 * worker_pipeline - passes of a stage of the model (serving/pipeline/pipeline.h)
 *
 * A pass with prompts that has more rows than a chunk may have is cut. The index arrays of its chunks are a
 * block of their own, one in each flight and one on the device. Any other pass is one chunk with the arrays
 * of the pass, so that decoding passes can be captured. The workers of all stages cut equal passes in the
 * same way, since their devices are alike.
 */
#include "serving/engine/worker/worker_impl.h"

#include <stdlib.h>

/* Returns the most rows of a chunk of a pass that is cut: whole pages. */
static int32_t chunk_rows(const struct cairn_worker *w)
{
	const int32_t page = w->opt.page_size;
	const int32_t asked = w->opt.chunk_rows ? w->opt.chunk_rows : CAIRN_PIPELINE_ROWS;

	return (asked + page - 1) / page * page;
}

int32_t worker_pipeline_rows(const struct cairn_worker *w)
{
	const int32_t rows = chunk_rows(w) > w->opt.max_batch ? chunk_rows(w) : w->opt.max_batch;

	return w->model->config.stages > 1 && rows < w->opt.max_rows ? rows : w->opt.max_rows;
}

static int check(const struct cairn_worker *w, const struct cairn_worker_options *o)
{
	const char *excluded = o->nano ? "nano" : o->slices ? "slices" : o->attention ? "attention" :
			       o->trees ? "trees" : NULL;

	return excluded ? cairn_error(EINVAL, "worker: %s: does not go with stages of the model", excluded) :
	       w->model->lora ? cairn_error(EINVAL, "worker: stages of the model have no adapters") : 0;
}

int worker_pipeline_create(struct cairn_worker *w, const struct cairn_worker_options *o)
{
	const size_t room = cairn_pipeline_index_room(w->opt.max_batch, w->opt.max_rows);
	struct cairn_device_info info = { .size = sizeof(info) };
	void *p;

	if (w->model->config.stages <= 1)
		return 0;
	CAIRN_TRY(check(w, o));
	if (!(w->model->impl->flags & CAIRN_IMPL_HOST_MEM))
		CAIRN_TRY(TABLE(w, device_info, &info));
	w->chunk_sizes = cairn_pipeline_sizes(w->model, chunk_rows(w), info.num_sms);
	for (int i = 0; i < CAIRN_WORKER_FLIGHTS; i++) {
		CAIRN_TRY(worker_host_alloc(w, room * sizeof(*w->flights[i].chunk_index), &p));
		w->flights[i].chunk_index = p;
	}
	CAIRN_TRY(TABLE(w, mem_alloc, &p, room * sizeof(*w->chunk_index)));
	w->chunk_index = p;
	w->chunk_ends = malloc((size_t)w->opt.max_rows * sizeof(*w->chunk_ends));
	if (!w->chunk_ends)
		return cairn_error(ENOMEM, "worker: no memory for %d rows", w->opt.max_rows);
	return cairn_pipeline_create(&w->pipeline, w->scratch, w->opt.max_rows,
				     (size_t)w->opt.max_batch * sizeof(*w->drawn) +
				     worker_logprobs_bytes(w, CAIRN_LOGPROBS_MAX));
}

void worker_pipeline_destroy(struct cairn_worker *w)
{
	cairn_pipeline_destroy(w->pipeline);
	for (int i = 0; i < CAIRN_WORKER_FLIGHTS; i++)
		worker_host_free(w, w->flights[i].chunk_index);
	if (w->chunk_index)
		w->impl->mem_free(w->chunk_index);
	free(w->chunk_ends);
	free(w->chunks);
	free(w->chunk_calls);
}

static int grow_chunks(struct cairn_worker *w, int32_t num)
{
	struct cairn_batch *chunks;
	struct chunk_call *calls;

	if (num <= w->room_chunks)
		return 0;
	chunks = realloc(w->chunks, (size_t)num * sizeof(*chunks));
	if (chunks)
		w->chunks = chunks;
	calls = chunks ? realloc(w->chunk_calls, (size_t)num * sizeof(*calls)) : NULL;
	if (!calls)
		return cairn_error(ENOMEM, "worker: no memory for %d chunks", num);
	w->chunk_calls = calls;
	w->room_chunks = num;
	return 0;
}

static int call(void *ctx, int32_t layer, void *stream)
{
	const struct chunk_call *c = ctx;

	return c->w->on_chunk(c->w->on_chunk_ctx, c->first, c->end, layer, stream);
}

/* Sets the callback of chunk c: on_chunk if given, else the pass's on_layer for the last chunk alone. */
static void set_call(struct cairn_worker *w, int32_t c, int32_t first, int is_last)
{
	if (w->on_chunk) {
		w->chunk_calls[c] = (struct chunk_call){ w, first, w->chunk_ends[c] };
		w->chunks[c].on_layer = call;
		w->chunks[c].on_layer_ctx = &w->chunk_calls[c];
	} else if (!is_last) {
		w->chunks[c].on_layer = NULL;
	}
}

int worker_pipeline_split(struct cairn_worker *w, int decode)
{
	const struct arrays *a = &w->flight->host;
	const struct cairn_batch *b = &w->batch;
	const struct cairn_pipeline_host host = {
		.qo_indptr = a->qo_indptr, .kv_indptr = a->kv_indptr, .positions = a->positions,
		.num_rows = b->num_rows, .batch = b->batch, .page_size = w->opt.page_size,
	};
	const struct cairn_pipeline_sizes *sizes = &w->chunk_sizes;
	int32_t *index = w->flight->chunk_index, num = 1, first = 0, used = 0;

	if (!w->pipeline)
		return 0;
	if (b->num_rows > sizes->most && !decode)
		num = cairn_pipeline_cut(&host, cairn_pipeline_row_keys(w->model), sizes, w->chunk_ends);
	CAIRN_TRY(grow_chunks(w, num));
	w->pipeline_pass = (struct cairn_pipeline_pass){ *b, w->chunks, num };
	if (num == 1) {
		w->chunks[0] = *b;
		w->chunks[0].logit_rows = NULL;
		w->chunks[0].num_logits = 0;
		return 0;
	}
	for (int32_t c = 0; c < num; first = w->chunk_ends[c++]) {
		used += cairn_pipeline_chunk(&w->chunks[c], &host, b, first, w->chunk_ends[c], index + used,
					     w->chunk_index + used);
		set_call(w, c, first, c == num - 1);
	}
	return TABLE(w, mem_copy, w->chunk_index, index, (size_t)used * sizeof(*index), CAIRN_COPY_TO_DEVICE,
		     w->stream);
}

int worker_pipeline_draws(const struct cairn_worker *w)
{
	return !w->pipeline || cairn_stage_is_last(w->model);
}

int worker_pipeline_share(struct cairn_worker *w)
{
	const struct cairn_pipeline_span spans[] = {
		{ w->drawn, (size_t)w->batch.num_logits * sizeof(*w->drawn) },
		{ w->logprobs, worker_logprobs_bytes(w, w->kind.k) },
	};

	return w->pipeline ? cairn_pipeline_share(w->pipeline, spans,
						  w->kind.logprobs || w->kind.late ? 2 : 1, w->stream) : 0;
}
