// SPDX-License-Identifier: Apache-2.0
/*
 * worker - how a pass gets to the device and its tokens back
 *
 * Index arrays and sampling parameters of a pass are one block: built in host memory, copied by one
 * call, at fixed addresses on the device. Drawn tokens land in ids[0..n-1], where the embedding of the next
 * pass may read them, and are copied to the host behind the pass.
 *
 *   host    build 1, launch | build 2, launch | collect 1, build 3, launch | collect 2, ...
 *   device          [-------- pass 1 --------][-------- pass 2 --------][-------- pass 3 ...
 *
 * Invariants
 *   1. A host block and its tokens belong to one flight and are not written again before its event has
 *      happened. The device has one block: copies and passes on one stream keep their order.
 *   2. A captured pass depends on the shape it was captured for and on addresses that live as long as
 *      the worker; when the workspace moves, all captured passes are dropped.
 *
 * A decoding pass (one row and one draw for each request) is one call of decode_step where there is one that
 * takes it, draw included (decode.h); else, as all others, it is the list of operations and a draw.
 *
 * Of a model with latent attention every pass is decode_step: one row for each request, of its prompt or not.
 * A token is drawn after each row then, and those nobody asked for are dropped on the host.
 *
 * Graphs: a decoding pass is captured when its shape, that is rows, bound on kv_len, greedy or not, is met
 * for the second time; the first time warms the operations up, which may load code. The bound on kv_len is
 * a power of two, so that a shape lasts. Passes that run without a graph have the same bounds: both ways
 * launch the same kernels and give the same bits.
 */
#include "worker.h"

#include <stdlib.h>
#include <string.h>

#include "../primitives/error.h"

#define MAX_GRAPHS	64
#define MIN_KV_BOUND	256

struct arrays {
	uint64_t *seed, *offset;			/* [max_batch], as the following */
	float *temperature, *top_p, *min_p;
	int32_t *top_k, *logit_rows, *last_page_len;
	int32_t *qo_indptr, *kv_indptr;			/* [max_batch + 1] */
	int32_t *positions;				/* [max_rows] */
	int32_t *kv_indices;				/* [num_pages] */
	int32_t *ids; /* [max_rows]; not in the block's copy: goes to worker->ids */
};

struct flight {
	struct arrays host;
	char *block;
	int32_t *tokens;
	int32_t *rows;			/* [num_tokens]: where among the tokens on the device; ascending */
	int32_t num_tokens;
	void *event;
};

struct graph {
	int32_t rows, kv_bound;
	int greedy;
	int64_t used;			/* number of the last pass of this shape; 0: a free entry */
	void *exec;			/* NULL until the second pass */
};

struct cairn_worker {
	struct cairn_model *model;
	const struct cairn_impl *impl;
	struct cairn_worker_options opt;
	int32_t vocab;
	int latent;			/* every pass is decode_step */
	struct cairn_kv_store kv;
	struct cairn_scratch *scratch;	/* NULL: latent */
	struct cairn_decoder *decoder;
	void *stream;

	struct arrays dev;
	char *dev_block;
	int32_t *ids;			/* [max_rows] */
	float *logits;			/* [max_batch, vocab] */
	void *sample_workspace;
	size_t sample_workspace_bytes;

	struct flight flights[CAIRN_WORKER_FLIGHTS];
	int first_flight, num_flights;
	struct graph graphs[MAX_GRAPHS];
	int have_graphs;
	struct cairn_worker_stats stats;

	/* the pass being built */
	struct flight *flight;
	struct cairn_batch batch;
	int greedy, fused;
};

#define TABLE(w, fn, ...) CAIRN_TABLE((w)->impl, fn, __VA_ARGS__)

static void *carve(char **cursor, size_t bytes)
{
	char *p = *cursor;

	*cursor += (bytes + 15) / 16 * 16;
	return p;
}

/* Places the arrays in memory at base. Returns the bytes they take. */
static size_t lay_out(const struct cairn_worker *w, struct arrays *a, char *base)
{
	size_t batch = (size_t)w->opt.max_batch, rows = (size_t)w->opt.max_rows;
	char *at = base;

	a->seed = carve(&at, batch * sizeof(*a->seed));
	a->offset = carve(&at, batch * sizeof(*a->offset));
	a->temperature = carve(&at, batch * sizeof(*a->temperature));
	a->top_p = carve(&at, batch * sizeof(*a->top_p));
	a->min_p = carve(&at, batch * sizeof(*a->min_p));
	a->top_k = carve(&at, batch * sizeof(*a->top_k));
	a->logit_rows = carve(&at, batch * sizeof(*a->logit_rows));
	a->last_page_len = carve(&at, batch * sizeof(*a->last_page_len));
	a->qo_indptr = carve(&at, (batch + 1) * sizeof(*a->qo_indptr));
	a->kv_indptr = carve(&at, (batch + 1) * sizeof(*a->kv_indptr));
	a->positions = carve(&at, rows * sizeof(*a->positions));
	a->kv_indices = carve(&at, (size_t)w->opt.num_pages * sizeof(*a->kv_indices));
	a->ids = carve(&at, rows * sizeof(*a->ids));
	return (size_t)(at - base);
}

static int host_alloc(struct cairn_worker *w, size_t bytes, void **out)
{
	void *p;

	if (w->impl->host_alloc) {
		CAIRN_TRY(TABLE(w, host_alloc, &p, bytes));
	} else {
		p = malloc(bytes);	/* copies may then wait for the device: slower, not wrong */
		if (!p)
			return cairn_error(ENOMEM, "worker: no memory for %zu bytes", bytes);
	}
	memset(p, 0, bytes);
	*out = p;
	return 0;
}

static void host_free(struct cairn_worker *w, void *p)
{
	if (p)
		(w->impl->host_alloc ? w->impl->host_free : free)(p);
}

static struct cairn_sample_args sample_args(const struct cairn_worker *w, int32_t rows)
{
	return (struct cairn_sample_args){
		.size = sizeof(struct cairn_sample_args), .out = w->ids, .logits = w->logits,
		.temperature = w->dev.temperature, .top_k = w->dev.top_k, .top_p = w->dev.top_p,
		.min_p = w->dev.min_p, .seed = w->dev.seed, .offset = w->dev.offset,
		.workspace = w->sample_workspace, .workspace_bytes = w->sample_workspace_bytes,
		.rows = rows, .vocab = w->vocab,
	};
}

static int create_device(struct cairn_worker *w)
{
	struct cairn_sample_args sample;
	size_t logits = (size_t)w->opt.max_batch * (size_t)w->vocab * sizeof(*w->logits);
	size_t ids = (size_t)w->opt.max_rows * sizeof(*w->ids);
	size_t tokens = (size_t)w->opt.max_batch * sizeof(*w->ids), block;
	void *p;

	block = lay_out(w, &w->dev, NULL);
	CAIRN_TRY(TABLE(w, stream_create, &w->stream));
	CAIRN_TRY(TABLE(w, mem_alloc, &p, block));
	w->dev_block = p;
	lay_out(w, &w->dev, p);
	CAIRN_TRY(TABLE(w, mem_alloc, &p, ids));
	w->ids = p;
	CAIRN_TRY(TABLE(w, mem_alloc, &p, logits));
	w->logits = p;
	sample = sample_args(w, w->opt.max_batch);
	if (w->impl->sample_workspace)
		CAIRN_TRY(TABLE(w, sample_workspace, &sample, &w->sample_workspace_bytes));
	if (w->sample_workspace_bytes)
		CAIRN_TRY(TABLE(w, mem_alloc, &w->sample_workspace, w->sample_workspace_bytes));
	for (int i = 0; i < CAIRN_WORKER_FLIGHTS; i++) {
		struct flight *f = &w->flights[i];

		CAIRN_TRY(host_alloc(w, block, &p));
		f->block = p;
		lay_out(w, &f->host, p);
		CAIRN_TRY(host_alloc(w, tokens, &p));
		f->tokens = p;
		f->rows = malloc(tokens);
		if (!f->rows)
			return cairn_error(ENOMEM, "worker: no memory for %d requests", w->opt.max_batch);
		CAIRN_TRY(TABLE(w, event_create, &f->event));
	}
	return 0;
}

/* The largest pass there will be: what the table does not take is told now, not in the middle of a run. */
static int probe(struct cairn_worker *w)
{
	struct cairn_batch largest = {
		.num_rows = w->opt.max_batch, .batch = w->opt.max_batch, .num_logits = w->opt.max_batch,
		.max_qo_len = 1, .max_kv_len = w->opt.max_context,
	};
	struct cairn_draw greedy = { .tokens = w->ids };
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
	w->vocab = model->config.vocab_size;
	w->latent = cairn_model_is_latent(model);
	w->have_graphs = !w->opt.no_graphs && w->impl->graph_begin;
	if (!w->impl->argmax || !w->impl->sample) {
		ret = cairn_error(EOPNOTSUPP, "%s: the table has no operation %s", w->impl->name,
				  w->impl->argmax ? "sample" : "argmax");
		goto out_destroy;
	}
	ret = cairn_kv_store_create(&w->kv, model, w->opt.num_pages, w->opt.page_size);
	if (ret)
		goto out_destroy;
	if (!w->latent)
		ret = cairn_scratch_create(&w->scratch, model, w->opt.max_rows, w->opt.max_batch);
	if (ret)
		goto out_destroy;
	ret = cairn_decoder_create(&w->decoder, model, w->opt.decode);
	if (ret)
		goto out_destroy;
	ret = create_device(w);
	if (!ret && w->latent)
		ret = probe(w);
	if (ret)
		goto out_destroy;
	*out = w;
	return 0;

out_destroy:
	cairn_worker_destroy(w);
	return ret;
}

static void drop_graphs(struct cairn_worker *w)
{
	for (int i = 0; i < MAX_GRAPHS; i++) {
		if (w->graphs[i].exec)
			w->impl->graph_destroy(w->graphs[i].exec);
	}
	memset(w->graphs, 0, sizeof(w->graphs));
}

void cairn_worker_destroy(struct cairn_worker *w)
{
	void *const memory[] = {
		w ? w->sample_workspace : NULL, w ? w->logits : NULL, w ? w->ids : NULL,
		w ? w->dev_block : NULL,
	};

	if (!w)
		return;
	if (w->stream)
		w->impl->stream_sync(w->stream);
	drop_graphs(w);
	for (int i = 0; i < CAIRN_WORKER_FLIGHTS; i++) {
		struct flight *f = &w->flights[i];

		if (f->event)
			w->impl->event_destroy(f->event);
		free(f->rows);
		host_free(w, f->tokens);
		host_free(w, f->block);
	}
	for (size_t i = 0; i < sizeof(memory) / sizeof(memory[0]); i++) {
		if (memory[i])
			w->impl->mem_free(memory[i]);
	}
	if (w->stream)
		w->impl->stream_destroy(w->stream);
	cairn_decoder_destroy(w->decoder);
	cairn_scratch_destroy(w->scratch);
	cairn_kv_store_destroy(&w->kv, w->model);
	free(w);
}

void cairn_worker_begin(struct cairn_worker *w)
{
	int next = (w->first_flight + w->num_flights) % CAIRN_WORKER_FLIGHTS;

	w->flight = &w->flights[next];
	w->flight->num_tokens = 0;
	w->flight->host.qo_indptr[0] = 0;
	w->flight->host.kv_indptr[0] = 0;
	memset(&w->batch, 0, sizeof(w->batch));
	w->greedy = 1;
}

void cairn_worker_add(struct cairn_worker *w, const struct cairn_worker_part *part)
{
	struct cairn_batch *b = &w->batch;
	struct flight *f = w->flight;
	struct arrays *a = &f->host;
	int32_t len = part->position + part->num_rows, n = w->latent ? b->batch : f->num_tokens;
	const struct cairn_sampling dropped = { .top_p = 1 }, *draw = part->draw ? part->draw : &dropped;
	int32_t num_pages = (len + w->opt.page_size - 1) / w->opt.page_size;
	int32_t used = a->kv_indptr[b->batch];

	memcpy(a->kv_indices + used, part->pages, (size_t)num_pages * sizeof(*part->pages));
	memcpy(a->ids + b->num_rows, part->ids, (size_t)part->num_rows * sizeof(*part->ids));
	for (int32_t i = 0; i < part->num_rows; i++)
		a->positions[b->num_rows + i] = part->position + i;
	a->last_page_len[b->batch] = (len - 1) % w->opt.page_size + 1;
	b->num_rows += part->num_rows;
	b->batch++;
	a->kv_indptr[b->batch] = used + num_pages;
	a->qo_indptr[b->batch] = b->num_rows;
	if (part->num_rows > b->max_qo_len)
		b->max_qo_len = part->num_rows;
	if (len > b->max_kv_len)
		b->max_kv_len = len;
	if (!part->draw && !w->latent)
		return;

	a->logit_rows[n] = b->num_rows - 1;
	a->temperature[n] = draw->temperature;
	a->top_k[n] = draw->top_k;
	a->top_p[n] = draw->top_p;
	a->min_p[n] = draw->min_p;
	a->seed[n] = draw->seed;
	a->offset[n] = part->offset;
	w->greedy &= draw->temperature == 0;
	if (part->draw)
		f->rows[f->num_tokens++] = n;
}

static int32_t kv_bound(const struct cairn_worker *w, int32_t len)
{
	int32_t bound = MIN_KV_BOUND;

	while (bound < len && bound < w->opt.max_context)
		bound *= 2;
	return bound < w->opt.max_context ? bound : w->opt.max_context;
}

static struct cairn_draw make_draw(const struct cairn_worker *w)
{
	if (w->greedy)
		return (struct cairn_draw){ .tokens = w->ids };
	return (struct cairn_draw){
		.tokens = w->ids, .temperature = w->dev.temperature, .top_p = w->dev.top_p,
		.min_p = w->dev.min_p, .top_k = w->dev.top_k, .seed = w->dev.seed, .offset = w->dev.offset,
	};
}

/* The operations of a pass that is not one operation. */
static int enqueue_list(struct cairn_worker *w)
{
	int32_t rows = w->batch.num_logits;
	struct cairn_argmax_args argmax = {
		.size = sizeof(argmax), .out = w->ids, .logits = w->logits, .rows = rows, .vocab = w->vocab,
		.dtype = CAIRN_F32,
	};
	struct cairn_sample_args sample = sample_args(w, rows);

	CAIRN_TRY(cairn_forward(w->scratch, &w->kv, &w->batch, w->stream));
	if (!rows)
		return 0;
	if (w->greedy)
		return TABLE(w, argmax, &argmax, w->stream);
	return TABLE(w, sample, &sample, w->stream);
}

/* What a graph holds. */
static int enqueue(struct cairn_worker *w)
{
	struct cairn_draw draw = make_draw(w);
	int done = 0, moved = 0;

	if (w->fused)
		CAIRN_TRY(cairn_decoder_run(w->decoder, &w->kv, &w->batch, &draw, w->stream, &done));
	if (done)
		return 0;
	/* refused only now; this is no capture, which is the second pass of a shape */
	if (w->fused) {
		w->fused = 0;
		CAIRN_TRY(cairn_scratch_reserve(w->scratch, &w->kv, &w->batch, w->stream, &moved));
		if (moved)
			drop_graphs(w);
	}
	return enqueue_list(w);
}

/* The entry of this shape; or a free one; or the one unused for longest, emptied. */
static struct graph *find_graph(struct cairn_worker *w)
{
	struct graph *g, *oldest = &w->graphs[0];

	for (int i = 0; i < MAX_GRAPHS; i++) {
		g = &w->graphs[i];
		if (g->used && g->rows == w->batch.num_rows && g->kv_bound == w->batch.max_kv_len &&
		    g->greedy == w->greedy)
			return g;
		if (g->used < oldest->used)
			oldest = g;
	}
	g = oldest;
	if (g->exec)
		w->impl->graph_destroy(g->exec);
	*g = (struct graph){
		.rows = w->batch.num_rows, .kv_bound = w->batch.max_kv_len, .greedy = w->greedy,
	};
	return g;
}

static int capture(struct cairn_worker *w, struct graph *g)
{
	void *exec = NULL;
	int ret, end;

	ret = w->impl->graph_begin(w->stream);
	if (ret == -EOPNOTSUPP) {
		w->have_graphs = 0;
		return 0;
	}
	CAIRN_TRY(cairn_table_ret(w->impl, ret, "graph_begin"));
	ret = enqueue(w);
	end = w->impl->graph_end(w->stream, &exec);	/* a capture must be ended, also one that failed */
	if (ret) {
		if (!end)
			w->impl->graph_destroy(exec);
		return ret;
	}
	CAIRN_TRY(cairn_table_ret(w->impl, end, "graph_end"));
	g->exec = exec;
	w->stats.captures++;
	return 0;
}

static int run(struct cairn_worker *w, int decode)
{
	struct cairn_draw draw = make_draw(w);
	struct graph *g;
	int moved = 0;

	w->fused = 0;
	if (decode)
		CAIRN_TRY(cairn_decoder_prepare(w->decoder, &w->kv, &w->batch, &draw, w->stream, &w->fused,
						&moved));
	if (moved)
		drop_graphs(w);
	moved = 0;
	g = decode && w->have_graphs ? find_graph(w) : NULL;
	if (g && g->used && !g->exec)
		CAIRN_TRY(capture(w, g));
	if (g && g->exec) {
		g->used = w->stats.passes;
		w->stats.graph_passes++;
		w->stats.fused_passes += w->fused;
		return TABLE(w, graph_launch, g->exec, w->stream);
	}
	if (!w->fused)
		CAIRN_TRY(cairn_scratch_reserve(w->scratch, &w->kv, &w->batch, w->stream, &moved));
	if (moved)
		drop_graphs(w);
	else if (g)
		g->used = w->stats.passes;
	CAIRN_TRY(enqueue(w));
	w->stats.fused_passes += w->fused;
	return 0;
}

int cairn_worker_launch(struct cairn_worker *w, int follow)
{
	struct cairn_batch *b = &w->batch;
	struct flight *f = w->flight;
	/* each request one row and one token: rows and logits are the same */
	int decode = b->num_rows == b->batch && (w->latent || f->num_tokens == b->batch);
	int32_t drawn = w->latent ? b->batch : f->num_tokens;
	size_t bytes = (size_t)((char *)(f->host.kv_indices + f->host.kv_indptr[b->batch]) - f->block);
	size_t ids = (size_t)b->num_rows * sizeof(*w->ids);
	size_t tokens = (size_t)drawn * sizeof(*w->ids);

	if (w->latent && !decode)
		return cairn_error(EINVAL, "worker: latent attention takes one row of each request");
	b->logits = w->logits;
	b->ids = w->ids;
	b->positions = w->dev.positions;
	b->qo_indptr = w->dev.qo_indptr;
	b->kv_indptr = w->dev.kv_indptr;
	b->kv_indices = w->dev.kv_indices;
	b->kv_last_page_len = w->dev.last_page_len;
	b->logit_rows = decode ? NULL : w->dev.logit_rows;
	b->num_logits = drawn;
	b->max_kv_len = kv_bound(w, b->max_kv_len);

	w->stats.passes++;
	CAIRN_TRY(TABLE(w, mem_copy, w->dev_block, f->block, bytes, CAIRN_COPY_TO_DEVICE, w->stream));
	if (!follow)
		CAIRN_TRY(TABLE(w, mem_copy, w->ids, f->host.ids, ids, CAIRN_COPY_TO_DEVICE, w->stream));
	CAIRN_TRY(run(w, decode));
	if (tokens)
		CAIRN_TRY(TABLE(w, mem_copy, f->tokens, w->ids, tokens, CAIRN_COPY_TO_HOST, w->stream));
	CAIRN_TRY(TABLE(w, event_record, f->event, w->stream));
	w->num_flights++;
	return 0;
}

int cairn_worker_collect(struct cairn_worker *w, const int32_t **tokens, int32_t *num_tokens)
{
	struct flight *f = &w->flights[w->first_flight];

	if (w->impl->event_sync)
		CAIRN_TRY(TABLE(w, event_sync, f->event));
	else
		CAIRN_TRY(TABLE(w, stream_sync, w->stream));
	w->first_flight = (w->first_flight + 1) % CAIRN_WORKER_FLIGHTS;
	w->num_flights--;
	for (int32_t i = 0; i < f->num_tokens; i++)
		f->tokens[i] = f->tokens[f->rows[i]];
	*tokens = f->tokens;
	*num_tokens = f->num_tokens;
	return 0;
}

int cairn_worker_in_flight(const struct cairn_worker *w)
{
	return w->num_flights;
}

void cairn_worker_stats(const struct cairn_worker *w, struct cairn_worker_stats *stats)
{
	*stats = w->stats;
}
