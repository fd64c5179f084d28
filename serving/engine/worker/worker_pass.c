// SPDX-License-Identifier: Apache-2.0
/*
 * worker_pass - launches a pass
 *
 * A decoding pass has a draw after each row, and without drafts one row per sequence. If the table has a
 * decode_step that supports it (decode.h), the pass is one call of it, draw included. Every other pass is the
 * operation list followed by a draw.
 *
 * For a model without an operation list every pass is a decode_step: one row per sequence, prompt rows
 * included. A token is then drawn after each row, and the host drops the unwanted ones.
 *
 * A repeatable decoding pass also draws after each row: it may recompute rows of an answer, whose draws are
 * dropped.
 *
 * A pass with masked draws is two: its logits, which launch enqueues, and its draw (cairn_worker_draw). So is
 * a pass whose attention is remote and queued: its draw comes when it has ended (worker_sliced.c).
 *
 * Graphs: a pass is captured when its shape (rows, sequences, draws, bounds on qo_len and kv_len, kind of
 * draws) occurs for the second time, or before that when the worker has nothing to do. The first time warms
 * up the operations, which may load code. Passes with rows of prompts have graphs up to MIXED_ROWS rows;
 * longer ones hide the host's time for a launch. The bound on kv_len is a power of two, so that a shape stays
 * valid for long. An operation list of more than 8 rows is padded to a multiple of 8 up to 64, 16 up to 256,
 * 32 up to 512 and 64 beyond: 35 sizes up to 512. The padding wastes at most an eighth of the computation and
 * less of the time, since up to some 100 rows a step spends most of its time reading weights. Padding rows
 * come after qo_indptr[batch] and belong to sequences without rows or keys: they append nothing, attention
 * skips them, all other operations work row by row, and their draws are not read. With bounds from 256 on and
 * both kinds of draw there are some hundreds of shapes; the 256 most recently used are kept. Passes without a
 * graph have the same bounds and padding, so that both ways launch the same kernels and give the same bits.
 *
 * Chained parts: a part with drafted rows sees keys of other parts of the pass. The operation list appends
 * all keys of a layer before it attends, so such a pass needs nothing else; decode_step, whose requests may
 * share old keys only, never runs it.
 *
 * Token trees: the keys of a tree's rows lie behind those of the sequence, in the order of rows, and
 * attention is attn_bsr with bits (worker_tree.c).
 *
 * Nano-batches: passes of the operation list for which there is a plan (nano_plan.h) run as nano-batches,
 * whose index arrays are part of the uploaded block (worker_nano.c).
 */
#include <string.h>

#include "serving/engine/worker/worker_impl.h"

/*
 * A request expands its keys (mla_prefill.h) if it has PROMPT_ROWS rows, or PROMPT_FEW_ROWS and at most
 * PROMPT_PAST times as many keys before them.
 */
#define PROMPT_ROWS		128
#define PROMPT_FEW_ROWS		16
#define PROMPT_PAST		8

#define MIXED_ROWS		256	/* most rows of a graph's pass with rows of prompts */

struct cairn_sample_args worker_sample_args(const struct cairn_worker *w, int32_t rows)
{
	return (struct cairn_sample_args){
		.size = sizeof(struct cairn_sample_args), .out = w->drawn, .logits = w->logits,
		.temperature = w->dev.temperature, .top_k = w->dev.top_k, .top_p = w->dev.top_p,
		.min_p = w->dev.min_p, .seed = w->dev.seed, .offset = w->dev.offset,
		.workspace = w->sample_workspace, .workspace_bytes = w->sample_workspace_bytes,
		.rows = rows, .vocab = w->vocab,
	};
}

static void drop_graph(struct cairn_worker *w, struct graph *g)
{
	if (g->exec)
		w->impl->graph_destroy(g->exec);
	if (g->draw)
		w->impl->graph_destroy(g->draw);
}

void worker_drop_graphs(struct cairn_worker *w)
{
	for (int i = 0; i < MAX_GRAPHS; i++)
		drop_graph(w, &w->graphs[i]);
	memset(w->graphs, 0, sizeof(w->graphs));
}

static int32_t kv_bound(const struct cairn_worker *w, int32_t len)
{
	int32_t bound = MIN_KV_BOUND;

	while (bound < len && bound < w->opt.max_context)
		bound *= 2;
	return bound < w->opt.max_context ? bound : w->opt.max_context;
}

/*
 * Returns a bound on the keys of all requests together that holds for many passes: a sixteenth or a quarter
 * of batch * max_kv_len. Returns 0 (no bound) if there is only one request, if max_kv_len is small, or if the
 * mean number of keys exceeds a quarter of it. requests: those of the pass without padding. Repeatable passes
 * have no bound, because it decides how a request's keys are divided.
 */
static int64_t keys_bound(const struct cairn_worker *w, int64_t requests)
{
	const struct cairn_batch *b = &w->batch;
	const int64_t most = (int64_t)b->batch * b->max_kv_len;

	if (w->opt.repeatable || requests < 2 || b->max_kv_len <= MIN_KV_BOUND ||
	    b->nnz_kv > requests * b->max_kv_len / 4)
		return 0;
	return b->nnz_kv > requests * b->max_kv_len / 16 ? most / 4 : most / 16;
}

/* Returns how decode_step draws. If logits are treated, its draw is unused and the real one follows it. */
static struct cairn_draw make_draw(const struct cairn_worker *w)
{
	if (w->kind.greedy || worker_redraws(w))
		return (struct cairn_draw){ .tokens = w->drawn };
	return (struct cairn_draw){
		.tokens = w->drawn, .temperature = w->dev.temperature, .top_p = w->dev.top_p,
		.min_p = w->dev.min_p, .top_k = w->dev.top_k, .seed = w->dev.seed, .offset = w->dev.offset,
	};
}

static int draw_tokens(struct cairn_worker *w, int32_t rows)
{
	struct cairn_argmax_args argmax = {
		.size = sizeof(argmax), .out = w->drawn, .logits = w->logits, .rows = rows, .vocab = w->vocab,
		.dtype = CAIRN_F32,
	};
	struct cairn_sample_args sample = worker_sample_args(w, rows);

	if (w->kind.greedy)
		return TABLE(w, argmax, &argmax, w->stream);
	return TABLE(w, sample, &sample, w->stream);
}

/* Replaces the unused draws of the scored rows by the tokens whose log-probabilities are wanted. */
static int set_targets(struct cairn_worker *w)
{
	const struct flight *f = w->flight;

	return !f->num_scored ? 0 :
	       TABLE(w, mem_copy, w->drawn + f->num_tokens, w->dev.targets,
		     (size_t)f->num_scored * sizeof(*w->drawn), CAIRN_COPY_ON_DEVICE, w->stream);
}

/* Returns the memory of the keys that the pass appends and attends to. */
static const struct cairn_kv_store *pass_kv(const struct cairn_worker *w)
{
	return w->batch.stripes ? &w->gathered : &w->kv;
}

static int reserve(struct cairn_worker *w, int *moved)
{
	CAIRN_TRY(worker_taps_reserve(w, moved));
	if (w->pipeline)
		return cairn_pipeline_reserve(w->pipeline, &w->kv, &w->pipeline_pass, w->stream, moved);
	if (w->as_nano)
		return cairn_nano_reserve(w->nanos[w->as_nano - 1], &w->kv, &w->nano_pass, w->stream, moved);
	return w->sliced ? worker_sliced_reserve(w, moved) :
	       cairn_scratch_reserve(worker_pass_scratch(w), pass_kv(w), &w->batch, w->stream, moved);
}

static int forward(struct cairn_worker *w)
{
	if (w->pipeline)
		return cairn_pipeline_forward(w->pipeline, &w->kv, &w->pipeline_pass, w->stream);
	if (w->as_nano)
		return cairn_nano_forward(w->nanos[w->as_nano - 1], &w->kv, &w->nano_pass, w->stream);
	return w->sliced ? worker_sliced_forward(w) :
	       cairn_forward(worker_pass_scratch(w), pass_kv(w), &w->batch, w->stream);
}

/* Enqueues a draw, and what changes logits before it. Of several stages, the last one draws for all. */
static int enqueue_draw(struct cairn_worker *w)
{
	if (!w->batch.num_logits)
		return 0;
	if (worker_pipeline_draws(w)) {
		CAIRN_TRY(worker_treat_before(w, w->batch.num_logits));
		CAIRN_TRY(draw_tokens(w, w->batch.num_logits));
		CAIRN_TRY(set_targets(w));
		CAIRN_TRY(worker_treat_after(w, w->batch.num_logits));
	}
	return worker_pipeline_share(w);
}

/* Enqueues everything that a graph contains; of a masked pass, its logits. */
static int enqueue(struct cairn_worker *w)
{
	struct cairn_draw draw = make_draw(w);
	int done = 0, moved = 0;

	if (w->fused)
		CAIRN_TRY(cairn_decoder_run(w->decoder, &w->kv, &w->batch, &draw, w->stream, &done));
	if (done && !worker_redraws(w))
		return worker_treat_after(w, w->batch.num_logits);
	if (done)
		return w->kind.masked ? 0 : enqueue_draw(w);
	/* The call may refuse the shape, but not while it is captured: it has run once then. */
	if (w->fused) {
		w->fused = 0;
		CAIRN_TRY(reserve(w, &moved));
		if (moved)
			worker_drop_graphs(w);
	}
	CAIRN_TRY(forward(w));
	/* cairn_worker_turn() runs the other slices, or worker_sliced_end() waits for them; then they draw */
	if (w->slices_left || worker_is_queued(w))
		return 0;
	CAIRN_TRY(worker_taps_after(w));
	return w->kind.masked ? 0 : enqueue_draw(w);
}

static int32_t prompt_logits(const struct cairn_worker *w)
{
	return w->batch.logit_rows ? 1 + w->batch.num_logits : 0;
}

/* Returns the entry of this shape, or a free one, or the emptied least recently used one. */
static struct graph *find_graph(struct cairn_worker *w)
{
	struct graph *g, *oldest = &w->graphs[0];

	for (int i = 0; i < MAX_GRAPHS; i++) {
		g = &w->graphs[i];
		if (g->used && g->rows == w->batch.num_rows && g->kv_bound == w->batch.max_kv_len &&
		    g->keys_bound == w->batch.nnz_kv && g->prompt_logits == prompt_logits(w) &&
		    g->batch == w->batch.batch && g->qo_bound == w->batch.max_qo_len &&
		    g->as_nano == w->as_nano && g->fused == w->fused && g->trees == (w->num_trees > 0) &&
		    g->pages == (w->batch.pages != NULL) && g->side == worker_sliced_side(w) &&
		    !memcmp(&g->kind, &w->kind, sizeof(g->kind)))
			return g;
		if (g->used < oldest->used)
			oldest = g;
	}
	g = oldest;
	drop_graph(w, g);
	*g = (struct graph){
		.rows = w->batch.num_rows, .batch = w->batch.batch, .qo_bound = w->batch.max_qo_len,
		.kv_bound = w->batch.max_kv_len, .keys_bound = w->batch.nnz_kv, .kind = w->kind,
		.prompt_logits = prompt_logits(w),
		.as_nano = w->as_nano, .fused = w->fused, .trees = w->num_trees > 0,
		.pages = w->batch.pages != NULL, .side = worker_sliced_side(w), .pass = w->batch,
	};
	return g;
}

/* Captures what `part` enqueues; *to stays NULL if the table has no graphs after all. */
static int capture(struct cairn_worker *w, int (*part)(struct cairn_worker *), void **to)
{
	void *exec = NULL;
	int ret, end;

	ret = w->impl->graph_begin(w->stream);
	if (ret == -EOPNOTSUPP) {
		w->have_graphs = 0;
		return 0;
	}
	CAIRN_TRY(cairn_table_ret(w->impl, ret, "graph_begin"));
	ret = part(w);
	end = w->impl->graph_end(w->stream, &exec);	/* a failed capture must be ended, too */
	if (ret) {
		if (!end)
			w->impl->graph_destroy(exec);
		return ret;
	}
	CAIRN_TRY(cairn_table_ret(w->impl, end, "graph_end"));
	*to = exec;
	w->stats.captures++;
	return 0;
}

/* Returns the shape that occurred last of those without a graph; NULL: there is none. */
static struct graph *uncaptured(struct cairn_worker *w)
{
	struct graph *best = NULL;

	for (int i = 0; i < MAX_GRAPHS; i++) {
		struct graph *g = &w->graphs[i];

		if (g->used && !g->exec && !g->as_nano && (!best || g->used > best->used))
			best = g;
	}
	return best;
}

int cairn_worker_idle(struct cairn_worker *w)
{
	struct graph *g = w->have_graphs && worker_is_plain(w) && !w->num_flights ? uncaptured(w) : NULL;
	struct cairn_draw draw;
	int moved = 0;

	if (!g)
		return 0;
	cairn_worker_begin(w);
	w->batch = g->pass;
	w->kind = g->kind;
	w->as_nano = 0;
	w->fused = 0;
	draw = make_draw(w);
	if (g->fused)
		CAIRN_TRY(cairn_decoder_prepare(w->decoder, &w->kv, &w->batch, &draw, w->stream, &w->fused,
						&moved));
	if (moved)
		worker_drop_graphs(w);
	else if (w->fused != g->fused)	/* decode_step has refused the shape since */
		memset(g, 0, sizeof(*g));
	if (moved || !g->used)
		return 0;
	CAIRN_TRY(capture(w, enqueue, &g->exec));
	return g->exec && w->kind.masked ? capture(w, enqueue_draw, &g->draw) : 0;
}

static int run(struct cairn_worker *w)
{
	int by_layer = w->batch.on_layer && !w->fused;
	struct graph *g = w->has_shape && w->have_graphs && !by_layer ? find_graph(w) : NULL;
	int moved = 0;

	w->graph = g;
	if (w->remote)
		CAIRN_TRY(worker_sliced_begin(w));
	if (g && g->used && !g->exec)
		CAIRN_TRY(capture(w, enqueue, &g->exec));
	if (g && g->exec) {
		g->used = w->stats.passes;
		w->stats.graph_passes++;
		w->stats.fused_passes += w->fused;
		CAIRN_TRY(TABLE(w, graph_launch, g->exec, w->stream));
		return worker_sliced_end(w);
	}
	if (!w->fused)
		CAIRN_TRY(reserve(w, &moved));
	if (moved)
		worker_drop_graphs(w);
	else if (g)
		g->used = w->stats.passes;
	CAIRN_TRY(enqueue(w));
	w->stats.fused_passes += w->fused;
	return worker_sliced_end(w);
}

/* Gives row n of the logits a greedy draw that is not used. */
static void draw_nothing(struct arrays *a, int32_t n)
{
	a->temperature[n] = 0;
	a->top_k[n] = 0;
	a->top_p[n] = 1;
	a->min_p[n] = 0;
	a->seed[n] = a->offset[n] = 0;
	worker_treat_nothing(a, n);
}

/* Adds the scored rows of logits, after those of the draws. */
static void add_scored(struct cairn_worker *w)
{
	struct flight *f = w->flight;
	struct arrays *a = &f->host;

	for (int32_t i = 0; i < f->num_scored; i++) {
		int32_t n = f->num_tokens + i;

		draw_nothing(a, n);
		a->logit_rows[n] = f->scored[i].row;
		a->targets[i] = f->scored[i].target;
		a->wanted[n] = 1;
	}
	w->kind.logprobs |= f->num_scored > 0;
}

/* Adds sequences that have neither rows nor keys. */
static void pad_batch(struct arrays *a, struct cairn_batch *b, int32_t batch)
{
	for (; b->batch < batch; b->batch++) {
		a->qo_indptr[b->batch + 1] = a->qo_indptr[b->batch];
		a->kv_indptr[b->batch + 1] = a->kv_indptr[b->batch];
		a->last_page_len[b->batch] = 0;
	}
}

/* Makes row n a padding row, which belongs to no sequence. */
static void pad_row(struct arrays *a, int32_t n)
{
	a->positions[n] = 0;
	a->ids[n] = 0;
	a->from[n] = -1;
	a->adapters[n] = -1;
}

/* Makes the bound on rows of a sequence one that holds for many passes. */
static void round_bound(struct cairn_batch *b)
{
	while (b->max_qo_len & (b->max_qo_len - 1))
		b->max_qo_len++;
}

/*
 * Pads the pass with sequences that have neither rows nor keys, and with rows of none; to max_batch if
 * repeatable. With chained parts there are more rows than sequences.
 */
static void pad(struct cairn_worker *w)
{
	struct cairn_batch *b = &w->batch;
	struct arrays *a = &w->flight->host;
	int32_t rows = w->opt.repeatable ? w->opt.max_batch : cairn_worker_padded(b->num_rows);
	int32_t batch = w->opt.repeatable ? w->opt.max_batch : cairn_worker_padded(b->batch);

	pad_batch(a, b, batch);
	for (; b->num_rows < rows; b->num_rows++) {
		pad_row(a, b->num_rows);
		draw_nothing(a, b->num_rows);
	}
	b->num_logits = b->num_rows;
	round_bound(b);
}

/* The same for a pass with rows of prompts, whose draws are padded, too. Returns 0 if it has too many. */
static int pad_mixed(struct cairn_worker *w)
{
	const int32_t most = w->opt.max_batch;
	struct cairn_batch *b = &w->batch;
	struct arrays *a = &w->flight->host;
	int32_t rows = cairn_worker_padded(b->num_rows), batch = cairn_worker_padded(b->batch);
	int32_t logits = cairn_worker_padded(b->num_logits);

	if (w->impl->flags & CAIRN_IMPL_HOST_MEM || !w->impl->graph_begin || !worker_is_plain(w) ||
	    w->flight->num_scored || b->num_rows > MIXED_ROWS || rows > w->opt.max_rows)
		return 0;
	pad_batch(a, b, batch < most + WORKER_SLICES ? batch : most + WORKER_SLICES);
	for (; b->num_rows < rows; b->num_rows++)
		pad_row(a, b->num_rows);
	for (; b->num_logits < (logits < most ? logits : most); b->num_logits++) {
		draw_nothing(a, b->num_logits);
		a->logit_rows[b->num_logits] = 0;
	}
	round_bound(b);
	return 1;
}

/* Gathers the ids of the pass from the host's ids and the tokens of the previous pass. */
static int gather_ids(struct cairn_worker *w)
{
	const int32_t *from = w->flight->host.from;
	int32_t rows = w->batch.num_rows;
	struct cairn_pick_ids_args pick = {
		.size = sizeof(pick), .ids = w->ids, .drawn = w->drawn, .from = w->dev.from,
		.host_ids = w->dev.ids, .rows = rows, .num_drawn = w->opt.max_batch,
	};

	if (w->impl->pick_ids)
		return TABLE(w, pick_ids, &pick, w->stream);
	/* For tables built before pick_ids existed: one copy per run of consecutive draws. */
	if (w->follows < rows)
		CAIRN_TRY(TABLE(w, mem_copy, w->ids, w->dev.ids, (size_t)rows * sizeof(*w->ids),
				CAIRN_COPY_ON_DEVICE, w->stream));
	for (int32_t i = 0, n; w->follows && i < rows; i += n) {
		for (n = 1; from[i] >= 0 && i + n < rows && from[i + n] == from[i] + n;)
			n++;
		if (from[i] >= 0)
			CAIRN_TRY(TABLE(w, mem_copy, w->ids + i, w->drawn + from[i],
					(size_t)n * sizeof(*w->ids), CAIRN_COPY_ON_DEVICE, w->stream));
	}
	return 0;
}

/* Returns whether expanding its keys is faster for a request with this many rows and this many keys before
 * them. */
static int expands(int32_t rows, int32_t past)
{
	return rows >= PROMPT_ROWS || (rows >= PROMPT_FEW_ROWS && past / PROMPT_PAST <= rows);
}

/*
 * Finds the requests that expand their keys. An operation takes consecutive requests, so all requests from
 * the first one that is faster this way expand theirs. The scheduler puts all decoding requests before them.
 */
void worker_find_prompts(struct cairn_batch *b, const int32_t *rows, const int32_t *positions)
{
	int32_t first = 0;

	while (first < b->batch && (rows[first + 1] == rows[first] ||
				    !expands(rows[first + 1] - rows[first], positions[rows[first]])))
		first++;
	b->num_prompts = b->batch - first;
	b->prompt_rows = b->num_rows - rows[first];
	for (int32_t i = first; i < b->batch; i++)
		b->prompt_past += rows[i + 1] > rows[i] ? positions[rows[i]] : 0;
}

/* Decides whether decode_step runs the pass, pads it and sets its bounds. */
static int prepare(struct cairn_worker *w, int *decode)
{
	struct cairn_batch *b = &w->batch;
	struct flight *f = w->flight;
	struct cairn_draw draw = make_draw(w);
	const int64_t requests = b->batch;
	int moved = 0;

	/* each row has a draw, so rows and logits coincide */
	*decode = f->draws_all ? b->num_rows == b->batch :
		  !w->opt.repeatable && f->num_tokens == b->num_rows;
	if (f->num_tokens + f->num_scored > w->opt.max_batch || (f->num_scored && (w->by_steps || *decode)))
		return cairn_error(EINVAL, "worker: %d draws and %d scored rows do not fit a pass",
				   f->num_tokens, f->num_scored);
	add_scored(w);
	if (w->by_steps && !*decode)
		return cairn_error(EINVAL, "worker: without an operation list a request must have one row");
	b->logits = w->logits;
	b->ids = w->ids;
	b->positions = w->dev.positions;
	b->adapters = w->model->lora ? w->dev.adapters : NULL;
	b->qo_indptr = w->dev.qo_indptr;
	b->kv_indptr = w->dev.kv_indptr;
	b->kv_indices = w->dev.kv_indices;
	b->kv_last_page_len = w->dev.last_page_len;
	b->logit_rows = *decode ? NULL : w->dev.logit_rows;
	b->num_logits = w->by_steps ? b->batch : f->num_tokens + f->num_scored;
	b->max_kv_len = kv_bound(w, w->opt.repeatable && *decode ? w->opt.max_context : b->max_kv_len);
	w->fused = 0;
	worker_taps_prepare(w);
	worker_find_prompts(b, f->host.qo_indptr, f->host.positions);
	if (*decode && !w->opt.repeatable && !w->chained && !w->num_trees && !w->opt.taps &&
	    b->num_rows == b->batch && !worker_shares_pages(w))
		CAIRN_TRY(cairn_decoder_prepare(w->decoder, &w->kv, b, &draw, w->stream, &w->fused, &moved));
	if (moved)
		worker_drop_graphs(w);
	w->has_shape = *decode || pad_mixed(w);
	if (*decode && !w->fused)
		pad(w);
	b->nnz_kv = keys_bound(w, requests);
	w->shares = 0;
	CAIRN_TRY(!*decode ? worker_context_prepare(w) : !w->fused ? worker_pages_prepare(w) : 0);
	CAIRN_TRY(worker_pipeline_split(w, *decode));
	return worker_nano_split(w, *decode);
}

void cairn_worker_on_layer(struct cairn_worker *w, int (*fn)(void *ctx, int32_t layer, void *stream),
			   void *ctx)
{
	w->batch.on_layer = fn;
	w->batch.on_layer_ctx = ctx;
}

/* The pass is one chunk, unless a pipeline cuts it (worker_pipeline.c). */
static int call_once(void *ctx, int32_t layer, void *stream)
{
	const struct cairn_worker *w = ctx;

	return w->on_chunk(w->on_chunk_ctx, 0, w->batch.num_rows, layer, stream);
}

void cairn_worker_on_chunk(struct cairn_worker *w, int (*fn)(void *ctx, int32_t first, int32_t end,
							     int32_t layer, void *stream), void *ctx)
{
	w->on_chunk = fn;
	w->on_chunk_ctx = ctx;
	cairn_worker_on_layer(w, call_once, w);
}

/* Copies the tokens to the host and marks the end of the pass. */
static int end_pass(struct cairn_worker *w)
{
	struct flight *f = w->flight;

	if (w->drawn_bytes)
		CAIRN_TRY(TABLE(w, mem_copy, f->tokens, w->drawn, w->drawn_bytes, CAIRN_COPY_TO_HOST,
				w->stream));
	f->k = w->kind.k;
	f->wants_logprobs = w->kind.logprobs || w->kind.late;
	if ((w->drawn_bytes || f->num_scored) && f->wants_logprobs)
		CAIRN_TRY(TABLE(w, mem_copy, f->logprobs, w->logprobs, worker_logprobs_bytes(w, f->k),
				CAIRN_COPY_TO_HOST, w->stream));
	CAIRN_TRY(TABLE(w, event_record, f->event, w->stream));
	if (w->opt.timeline)
		CAIRN_TRY(TABLE(w, event_record, w->times[f->number % NUM_TIMES].end, w->stream));
	return 0;
}

int worker_draw(struct cairn_worker *w)
{
	struct graph *g = w->graph;

	/* a callback may have dropped the graphs since the launch */
	if (g && g->exec && !g->draw)
		CAIRN_TRY(capture(w, enqueue_draw, &g->draw));
	return g && g->draw ? TABLE(w, graph_launch, g->draw, w->stream) : enqueue_draw(w);
}

int worker_end_pass(struct cairn_worker *w)
{
	CAIRN_TRY(worker_draw(w));
	return end_pass(w);
}

int cairn_worker_draw(struct cairn_worker *w)
{
	if (!w->undrawn)
		return cairn_error(EINVAL, "worker: no pass waits for its draw");
	CAIRN_TRY(worker_mask_upload(w));
	CAIRN_TRY(worker_draw(w));
	w->undrawn = 0;
	return end_pass(w);
}

/* Runs the pass whose inputs were uploaded last, for the first time or again: a pass does not change them. */
int cairn_worker_relaunch(struct cairn_worker *w)
{
	CAIRN_TRY(run(w));
	w->undrawn = w->kind.masked;
	if (!w->undrawn && !w->slices_left)
		CAIRN_TRY(end_pass(w));
	w->last = w->flight;
	w->num_flights++;
	w->stats.nano_passes += w->as_nano > 0;
	w->stats.sliced_passes += w->sliced && !w->as_nano && !w->fused;
	return 0;
}

int cairn_worker_launch(struct cairn_worker *w)
{
	struct cairn_batch *b = &w->batch;
	struct flight *f = w->flight;
	int timed = w->opt.timeline, decode;
	int32_t num_pages;
	size_t bytes;

	w->stats.passes++;
	f->number = w->stats.passes;
	if (w->opt.model)
		return worker_model_launch(w);
	if (w->opt.tap)
		CAIRN_TRY(w->opt.tap->launch(w->opt.tap->ctx));
	if (timed)
		CAIRN_TRY(TABLE(w, event_record, w->times[f->number % NUM_TIMES].begin, w->stream));
	CAIRN_TRY(worker_stripes_copies(w));
	CAIRN_TRY(prepare(w, &decode));
	CAIRN_TRY(worker_treat_prepare(w));
	if (w->kind.masked)
		CAIRN_TRY(worker_mask_prepare(w));
	CAIRN_TRY(worker_tree_prepare(w));
	num_pages = w->as_nano ? w->nano_pass.num_pages : f->host.kv_indptr[b->batch];
	bytes = (size_t)((char *)(f->host.kv_indices + num_pages) - f->block);
	w->drawn_bytes = (size_t)(f->draws_all ? b->batch : f->num_tokens) * sizeof(*w->drawn);
	CAIRN_TRY(TABLE(w, mem_copy, w->dev_block, f->block, bytes, CAIRN_COPY_TO_DEVICE, w->stream));
	CAIRN_TRY(gather_ids(w));
	if (w->remote)
		worker_sliced_take_copies(w);
	return cairn_worker_relaunch(w);
}
