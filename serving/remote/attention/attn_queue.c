// SPDX-License-Identifier: Apache-2.0
/*
 * attn_queue - the turns of an attention worker in the order of streams, for tables of a device
 *
 *   stream of a lane   lists | wait Q(0), attention, put O(0), wait KV(0), append | wait Q(1), ...
 *
 * When a plan comes, all its layers are enqueued at once. Each is behind a wait for the signal of its
 * queries, so the hosts take no part between two GPUs. Lanes have streams of their own: in each layer, a plan
 * waits until the plan before it has stored its keys, so that plans are carried out in their order, layer by
 * layer, as by a worker that takes turns. Words on the device, one for each layer, say which plan has. Lanes
 * attend one at a time, in the order in which their queries come. If two shared the GPU, both would get their
 * results late, and together; then both would compute, and then wait together again.
 *
 * What operations read of a plan is packed into one block of pinned memory and copied to the device, in the
 * order of the stream. The block is written again when that copy is done.
 *
 * Graphs: the layers of a plan with one row for each request are captured when their shape (rows, bound of
 * keys, buffer of the first layer) occurs for the second time; the first time warms up the operations. Such
 * plans are padded to few numbers of rows, with requests that have neither keys nor new rows, also when they
 * run without a graph, so that both give the same bits. A plan that copies pages is never captured.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "primitives/base/error.h"
#include "serving/remote/attention/attn_epoch_impl.h"
#include "serving/remote/remote_fault.h"

#define ALIGNMENT	16

/* ---- creation ---- */

/* Numbers of entries of the arrays in the block. */
struct places {
	size_t rows, batch, pages, lists, past;
};

static struct places places_of(const struct cairn_control_assign *a)
{
	const size_t batch = (size_t)a->max_batch, rows = (size_t)a->max_rows;
	const size_t lists = a->kv_lora_rank ? rows : batch;
	const size_t pages = ((size_t)a->max_context + (size_t)a->page_size - 1) / (size_t)a->page_size;

	return (struct places){ rows, batch, batch * pages, lists, lists * pages };
}

/* See pack_lists(). */
static size_t most_bytes(const struct cairn_control_assign *a)
{
	const struct places n = places_of(a);

	return sizeof(int32_t) * (n.rows + 3 * n.batch + 2 + n.pages + 3 * n.lists + 2 + n.past) +
	       sizeof(struct cairn_stream_now) + 10 * ALIGNMENT;
}

/* The words by which lanes take turns are made with the first lane that needs them. */
static int create_words(struct cairn_attn_epoch *e)
{
	const struct cairn_impl *impl = e->model.impl;
	const size_t words = (size_t)e->a.num_layers, bytes = words * sizeof(*e->stored) + sizeof(*e->lock);
	void *p;

	if (e->num_lanes == 1 || e->stored)
		return 0;
	CAIRN_TRY(CAIRN_TABLE(impl, mem_alloc, &p, bytes));
	e->stored = p;
	e->lock = (struct cairn_stream_lock *)(void *)(e->stored + words);
	return CAIRN_TABLE(impl, mem_set, e->stored, 0, bytes, e->stream);
}

int attn_queue_create(struct cairn_attn_epoch *e, struct attn_lane *l)
{
	const struct cairn_impl *impl = e->model.impl;
	void *p;

	l->stream = NULL;
	CAIRN_TRY(CAIRN_TABLE(impl, stream_create, &l->stream));
	l->packed.room = most_bytes(&e->a);
	CAIRN_TRY(CAIRN_TABLE(impl, mem_alloc, &p, l->packed.room));
	l->packed.device = p;
	CAIRN_TRY(CAIRN_TABLE(impl, host_alloc, &p, l->packed.room));
	l->packed.host = p;
	CAIRN_TRY(CAIRN_TABLE(impl, event_create, &l->packed.copied));
	CAIRN_TRY(CAIRN_TABLE(impl, event_record, l->packed.copied, l->stream));
	e->no_graphs |= !impl->graph_begin;
	return create_words(e);
}

static void drop_graphs(const struct cairn_attn_epoch *e, struct attn_lane *l)
{
	for (int i = 0; i < ATTN_GRAPHS; i++)
		if (l->graphs[i].exec)
			e->model.impl->graph_destroy(l->graphs[i].exec);
	memset(l->graphs, 0, sizeof(l->graphs));
}

void attn_queue_destroy(struct cairn_attn_epoch *e, struct attn_lane *l)
{
	const struct cairn_impl *impl = e->model.impl;

	if (!e->by_stream)
		return;
	drop_graphs(e, l);
	if (e->stored)
		impl->mem_free(e->stored);
	e->stored = NULL;
	e->lock = NULL;
	if (l->packed.copied)
		impl->event_destroy(l->packed.copied);
	if (l->packed.host)
		impl->host_free(l->packed.host);
	if (l->packed.device)
		impl->mem_free(l->packed.device);
	if (l->stream && l->stream != e->stream)
		impl->stream_destroy(l->stream);
}

/* ---- lists ---- */

/* Takes the next place of the block, for so many bytes. */
static size_t take_place(struct attn_packed *p, size_t bytes)
{
	const size_t at = p->at;

	p->at += (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
	return at;
}

/*
 * Writes an array to its place, which has room for `most` entries, and makes it point to where its copy will
 * be. `more` entries of padding follow: zeros or, if the array ends each request's part, its last entry plus
 * `rows` for each.
 */
static void pack(struct attn_packed *p, const int32_t **array, int32_t num, int32_t more, int is_end,
		 int32_t rows, size_t most)
{
	const size_t at = take_place(p, most * sizeof(**array));
	int32_t *to = (int32_t *)(void *)(p->host + at);

	memcpy(to, *array, (size_t)num * sizeof(*to));
	for (int32_t i = num; i < num + more; i++)
		to[i] = is_end ? to[i - 1] + rows : 0;
	*array = (const int32_t *)(const void *)(p->device + at);
}

static int copy_to_device(const struct cairn_attn_epoch *e, const struct attn_lane *l, size_t from,
			  size_t bytes)
{
	const struct attn_packed *p = &l->packed;

	return CAIRN_TABLE(e->model.impl, mem_copy, p->device + from, p->host + from, bytes,
			   CAIRN_COPY_TO_DEVICE, l->stream);
}

/*
 * Makes all lists of a pass those on the device, with `more` requests of padding, which have a row each that
 * sees no key and is not stored. Stripes, whose lists have positions, are not supported.
 */
static int pack_lists(struct cairn_attn_epoch *e, struct attn_lane *l, struct cairn_batch *b,
		      struct cairn_attn_past *past, int32_t more)
{
	const int32_t num_pages = b->kv_indptr[b->batch], num_past = past->indptr[past->num_lists];
	const struct places n = places_of(&e->a);
	struct attn_packed *p = &l->packed;
	struct cairn_stream_now *now;
	size_t skipped, at, indices;

	CAIRN_TRY(CAIRN_TABLE(e->model.impl, event_sync, p->copied));
	p->at = 0;
	pack(p, &b->positions, b->num_rows, more, 0, 0, n.rows);
	skipped = FAULT(POSITIONS_OF_BEFORE) && l->layers ? p->at : 0;
	at = take_place(p, sizeof(*now));
	now = (struct cairn_stream_now *)(void *)(p->host + at);
	p->now = (const struct cairn_stream_now *)(const void *)(p->device + at);
	*now = (struct cairn_stream_now){
		.number = cairn_share_number(e->a.epoch, FAULT(NUMBER_OF_CAPTURE) ? 0 : l->layers),
		.rows = (uint64_t)l->p.num_rows, .turn = e->num_begun,
	};
	pack(p, &b->qo_indptr, b->batch + 1, more, 1, 0, n.batch + 1);
	pack(p, &b->kv_indptr, b->batch + 1, more, 1, 0, n.batch + 1);
	pack(p, &b->kv_last_page_len, b->batch, more, 0, 0, n.batch);
	pack(p, &past->qo_indptr, past->num_lists + 1, more, 1, 1, n.lists + 1);
	pack(p, &past->indptr, past->num_lists + 1, more, 1, 0, n.lists + 1);
	pack(p, &past->last_page_len, past->num_lists, more, 0, 0, n.lists);
	at = p->at;
	pack(p, &b->kv_indices, num_pages, 0, 0, 0, n.pages);
	indices = p->at;
	pack(p, &past->indices, num_past, 0, 0, 0, n.past);
	b->num_rows += more;
	b->batch += more;
	past->num_lists += more;
	CAIRN_TRY(copy_to_device(e, l, skipped, at + (size_t)num_pages * sizeof(int32_t) - skipped));
	CAIRN_TRY(copy_to_device(e, l, indices, (size_t)num_past * sizeof(int32_t)));
	return CAIRN_TABLE(e->model.impl, event_record, p->copied, l->stream);
}

/* ---- plans ---- */

static int take_plan(struct cairn_attn_epoch *e, struct attn_plan *plan)
{
	*plan = (struct attn_plan){ 0 };
	pthread_mutex_lock(&e->life.lock);
	if (e->num_plans) {
		*plan = e->plans[0];
		e->num_plans--;
		memmove(e->plans, e->plans + 1, (size_t)e->num_plans * sizeof(*plan));
	}
	pthread_mutex_unlock(&e->life.lock);
	return plan->bytes ? 0 : -ECANCELED;
}

/* Returns whether the pass may run as a graph: one row for each request, and no pages to copy. */
static int is_regular(const struct cairn_attn_epoch *e, const struct attn_lane *l,
		      const struct cairn_batch *b)
{
	return b->max_qo_len == 1 && !l->p.num_moves && !e->no_graphs;
}

/* Returns the entry of this shape, or a free one, or the emptied least recently used one. */
static struct attn_graph *find_graph(const struct cairn_attn_epoch *e, struct attn_lane *l, int32_t kv_bound)
{
	const int32_t side = (int32_t)(l->layers % 2);
	struct attn_graph *g = l->graphs;

	for (int i = 0; i < ATTN_GRAPHS; i++) {
		struct attn_graph *x = &l->graphs[i];

		if (x->used && (x->rows == l->num_rows || FAULT(GRAPH_OF_ANY_ROWS)) &&
		    x->kv_bound == kv_bound && (x->side == side || FAULT(GRAPH_OF_ANY_SIDE)))
			return x;
		if (x->used < g->used)
			g = x;
	}
	if (g->exec)
		e->model.impl->graph_destroy(g->exec);
	*g = (struct attn_graph){ .rows = l->num_rows, .kv_bound = kv_bound, .side = side };
	return g;
}

/* Prepares the lane for its plan. *graph: of its shape; NULL: it runs without. */
static int begin_pass(struct cairn_attn_epoch *e, struct attn_lane *l, struct attn_graph **graph)
{
	const struct cairn_remote_limits limits = cairn_share_limits(&e->a);
	const int32_t most = e->a.max_batch < e->a.max_rows ? e->a.max_batch : e->a.max_rows;
	struct cairn_attn_past past;
	struct cairn_batch b;
	int moved = 0;

	CAIRN_TRY(cairn_remote_pass_read(&l->p, l->plan.bytes, l->plan.num_bytes, &limits));
	cairn_lists_make(&l->lists, &l->p, &b, &past);
	b.max_kv_len = cairn_lists_bound(b.max_kv_len, e->a.max_context);
	l->num_rows = b.max_qo_len == 1 ? cairn_lists_rows(b.num_rows, most) : b.num_rows;
	CAIRN_TRY(pack_lists(e, l, &b, &past, l->num_rows - b.num_rows));
	CAIRN_TRY(cairn_attn_local_begin(l->local, &b, e->a.previous ? &past : NULL, l->stream, &moved));
	if (moved)
		drop_graphs(e, l);
	*graph = is_regular(e, l, &b) ? find_graph(e, l, b.max_kv_len) : NULL;
	return 0;
}

/*
 * With several lanes: publishes that the keys of layer `stored` are stored, then waits until the plan before
 * this one has stored those of layer `next`. Negative: no layer.
 */
static int take_turn(struct cairn_attn_epoch *e, const struct attn_lane *l, int32_t stored, int32_t next)
{
	const struct cairn_stream_wait w = {
		.now = l->packed.now, .ended = stored < 0 ? NULL : e->stored + stored,
		.order = next < 0 || FAULT(LANES_UNORDERED) ? NULL : e->stored + next,
		.slot = CAIRN_NO_SIGNAL, .timeout_ms = CAIRN_EPOCH_STREAM_MS,
	};

	return e->stored ? e->table->stream_wait(e->sources[0].c, &w, l->stream) : 0;
}

static int enqueue_layers(struct cairn_attn_epoch *e, struct attn_lane *l)
{
	for (l->layer = 0; l->layer < e->a.num_layers; l->layer++) {
		CAIRN_TRY(take_turn(e, l, l->layer - 1, l->layer));
		CAIRN_TRY(attn_epoch_layer(&e->sources[0], l, (uint64_t)l->layer + 1));
	}
	return take_turn(e, l, l->layer - 1, -1);
}

/* Captures the layers; g->exec stays NULL if the table has no graphs after all. */
static int capture(struct cairn_attn_epoch *e, struct attn_lane *l, struct attn_graph *g)
{
	const struct cairn_impl *impl = e->model.impl;
	void *exec = NULL;
	int ret = impl->graph_begin(l->stream), end;

	if (ret == -EOPNOTSUPP) {
		e->no_graphs = 1;
		return 0;
	}
	CAIRN_TRY(cairn_table_ret(impl, ret, "graph_begin"));
	l->is_replayed = 1;
	ret = enqueue_layers(e, l);
	l->is_replayed = 0;
	end = impl->graph_end(l->stream, &exec);	/* a failed capture must be ended, too */
	if (ret) {
		if (!end)
			impl->graph_destroy(exec);
		return ret;
	}
	CAIRN_TRY(cairn_table_ret(impl, end, "graph_end"));
	g->exec = exec;
	return 0;
}

int attn_queue_plan(struct cairn_attn_epoch *e)
{
	struct attn_graph *g;
	struct attn_plan plan;
	struct attn_lane *l;

	CAIRN_TRY(take_plan(e, &plan));
	if (plan.lane >= (uint32_t)e->num_lanes) {
		free(plan.bytes);
		return cairn_error(EINVAL, "the lead sends a plan of lane %u, of %d", plan.lane,
				   e->num_lanes);
	}
	l = &e->lanes[plan.lane];
	l->plan = plan;
	e->num_begun++;
	CAIRN_TRY(begin_pass(e, l, &g));
	if (g && g->used && !g->exec)
		CAIRN_TRY(capture(e, l, g));
	if (g && g->exec)
		CAIRN_TRY(CAIRN_TABLE(e->model.impl, graph_launch, g->exec, l->stream));
	else
		CAIRN_TRY(enqueue_layers(e, l));
	if (g)
		g->used = e->num_begun;
	l->layers += (uint64_t)e->a.num_layers;
	free(l->plan.bytes);
	l->plan.bytes = NULL;
	cairn_epoch_passed(&e->life);
	return 0;
}

void attn_queue_stop(struct cairn_attn_epoch *e)
{
	if (e->sources[0].c)
		e->table->stream_stop(e->sources[0].c);
	for (int32_t i = 0; i < e->num_lanes; i++)
		if (e->lanes[i].stream)
			e->model.impl->stream_sync(e->lanes[i].stream);
}
