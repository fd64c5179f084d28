// SPDX-License-Identifier: Apache-2.0
/*
 * ranks_ring - a pass whose rows several ranks share out, with ring attention
 *
 * The new keys of each request are cut into 2n pieces of whole pages. A rank computes the rows of piece r
 * and of piece 2n - 1 - r (zig-zag, ranks_pieces.c), so that causal attention is as much work for each rank.
 * In each layer
 *
 *   main    append own keys | own pages to slots | attend to own keys   | slots to pages | attend | merge
 *   side                                         | all keys travel      |
 *
 * where each rank sends its keys to the next one, then those that it has just received, and so on. The first
 * call of attention, which hides this, also has the keys that the pass found. Every rank keeps all keys in
 * its cache, so passes with few rows, which gain nothing here, are computed whole by each rank, without any
 * exchange. In stripes (ranks_stripes.c), the cache of the pass is one layer that all ranks have gathered.
 *
 * A call is one attn_bsr that gives a state: o of the model's dtype and lse in fp32. One attn_merge makes the
 * result of both, in fp32 and with one more rounding. All keys of a request are one list, and no mask needs
 * positions: the list of own keys ends with the request's last row, and all rows see all keys of the other
 * list. So a call has a single part, whose results need no merge of their own, and attn_bsr computes masks
 * only for the tiles on the diagonal. Windows need positions; each run of consecutive ones is then a part.
 * Layers share the plans of both calls.
 *
 * Latent attention has no operation for keys that all rows see, and its keys are few bytes: they only travel,
 * and then the rows attend to whole texts.
 *
 * Collectives run on the side stream, except the last one of the pass, which the main stream makes after it
 * has waited for the side: so no two of them overlap.
 *
 * Source: Liu et al. 2023 (Ring Attention), section 3; pieces as in Dubey et al. 2024 (Llama 3), section
 * 3.3.2.
 */
#include "serving/model/forward/forward_impl.h"
#include "serving/model/load/model_impl.h"

#include <stdlib.h>
#include <string.h>

#include "primitives/base/dtype.h"
#include "primitives/base/error.h"

struct ring_room {
	struct cairn_buffers all, head;	/* own memory: embeddings of all rows; rows whose logits are wanted */
	int64_t at, picked_at;		/* of that memory, and of this rank's wanted rows, in the scratch's */
	struct room states, lse, slots;
	void *side, *ready, *arrived;	/* stream and events; NULL without stream_wait */
};

enum { OWN, OTHERS, CALLS };	/* calls of attention in a layer */

struct ring {
	const struct cairn_model *m;
	struct ring_room *room;
	const struct cairn_batch_ring *b;
	struct cairn_batch wanted;	/* the gathered rows */
	struct walk rows, all, head;
	/* of each call of attention: whether its workspace holds a plan, and for which window */
	int has_plan[CALLS];
	int32_t plan_window[CALLS];
	size_t attn_bytes[CALLS];	/* the largest answers of workspace queries so far */
};

/* ---- the scratch ---- */

static void place(struct ring_room *room, const struct cairn_model *m)
{
	const struct cairn_op_graph *g = m->graph;
	const struct cairn_graph_op *first = forward_first_of_head(g);
	const int adds = forward_head_adds(first);

	for (int32_t v = 0; v < g->num_values; v++)
		room->all.offset[v] = room->head.offset[v] = -1;
	room->all.offset[g->values[g->ops[0].out[0]].storage] = 0;
	room->head.offset[g->values[first[adds].in[0]].storage] = 0;
	if (adds)
		room->head.offset[g->values[first->in[0]].storage] = forward_row_bytes(m, CAIRN_D_HIDDEN);
}

static int create_side(struct ring_room *room, const struct cairn_impl *impl)
{
	if (!impl->stream_wait)
		return 0;
	CAIRN_TRY(CAIRN_TABLE(impl, stream_create, &room->side));
	CAIRN_TRY(CAIRN_TABLE(impl, event_create, &room->ready));
	return CAIRN_TABLE(impl, event_create, &room->arrived);
}

int forward_ring_create(struct cairn_scratch *s, int64_t *bytes)
{
	const struct cairn_model *m = s->model;
	const size_t values = (size_t)m->graph->num_values;
	const int64_t hidden = forward_row_bytes(m, CAIRN_D_HIDDEN), all = s->max_rows * hidden;
	const int64_t head = (int64_t)m->context_ranks * s->max_logits * 2 * hidden;
	struct ring_room *room = calloc(1, sizeof(*room));

	s->ring = room;
	if (!room)
		return cairn_error(ENOMEM, "scratch: no memory");
	room->all.offset = malloc(values * sizeof(*room->all.offset));
	room->head.offset = malloc(values * sizeof(*room->head.offset));
	if (!room->all.offset || !room->head.offset)
		return cairn_error(ENOMEM, "scratch: no memory");
	place(room, m);
	room->at = (*bytes + CAIRN_BUFFER_ALIGNMENT - 1) / CAIRN_BUFFER_ALIGNMENT * CAIRN_BUFFER_ALIGNMENT;
	room->picked_at = room->at + (all > head ? all : head);
	*bytes = room->picked_at + s->max_logits * hidden;
	return create_side(room, m->impl);
}

void forward_ring_destroy(struct cairn_scratch *s)
{
	const struct cairn_impl *impl = s->model->impl;
	struct ring_room *room = s->ring;

	if (!room)
		return;
	if (room->states.at)
		impl->mem_free(room->states.at);
	if (room->lse.at)
		impl->mem_free(room->lse.at);
	if (room->slots.at)
		impl->mem_free(room->slots.at);
	if (room->ready)
		impl->event_destroy(room->ready);
	if (room->arrived)
		impl->event_destroy(room->arrived);
	if (room->side)
		impl->stream_destroy(room->side);
	cairn_buffers_free(&room->all);
	cairn_buffers_free(&room->head);
	free(room);
}

/* ---- keys travel ---- */

/* Returns the bytes of a page of one layer, K and V. */
static int64_t page_bytes(const struct ring *r)
{
	return (r->rows.kv->v_offset ? 2 : 1) * r->rows.kv->page_size * (int64_t)cairn_model_key_bytes(r->m);
}

/* Copies the keys of pages to slots, or those of slots to pages. */
static int move_keys(const struct ring *r, int32_t layer, const int32_t *from, const int32_t *to, int32_t num)
{
	const struct cairn_kv_store *kv = r->rows.kv;
	const struct cairn_kv_move_args args = {
		.size = sizeof(args), .base = kv->base + (size_t)layer * kv->layer_bytes,
		.slots = r->room->slots.at, .from = from, .to = to, .layer_bytes = (int64_t)kv->layer_bytes,
		.v_offset = (int64_t)kv->v_offset,
		.page_bytes = kv->page_size * (int64_t)cairn_model_key_bytes(r->m),
		.num_moves = num, .num_layers = 1, .num_pages = kv->num_pages,
		.num_slots = r->m->context_ranks * r->b->most_pages,
	};

	return CAIRN_TABLE(r->m->impl, kv_move, &args, r->rows.stream);
}

/* Sends the keys of all ranks around the ring. */
static int send_all(const struct ring *r, void *stream)
{
	const int32_t rank = r->m->context_rank, ranks = r->m->context_ranks;
	const int64_t bytes = r->b->most_pages * page_bytes(r);
	char *slots = r->room->slots.at;

	for (int32_t t = 1; t < ranks; t++) {
		const struct cairn_send_recv_args args = {
			.size = sizeof(args), .out = slots + t * bytes, .x = slots + (t - 1) * bytes,
			.bytes = bytes, .to = (rank + 1) % ranks, .from = (rank + ranks - 1) % ranks,
		};

		CAIRN_TRY(CAIRN_TABLE(r->m->impl, send_recv, &args, stream));
	}
	return 0;
}

static int start_sending(const struct ring *r)
{
	const struct cairn_impl *impl = r->m->impl;

	if (!r->room->side)
		return send_all(r, r->rows.stream);
	CAIRN_TRY(CAIRN_TABLE(impl, event_record, r->room->ready, r->rows.stream));
	CAIRN_TRY(CAIRN_TABLE(impl, stream_wait, r->room->side, r->room->ready));
	CAIRN_TRY(send_all(r, r->room->side));
	return CAIRN_TABLE(impl, event_record, r->room->arrived, r->room->side);
}

static int await_arrival(const struct ring *r)
{
	return !r->room->side ? 0 :
	       CAIRN_TABLE(r->m->impl, stream_wait, r->rows.stream, r->room->arrived);
}

/* ---- attention ---- */

/* pos0: NULL if no mask needs positions */
static void add_part(const struct ring *r, struct cairn_attn_bsr_args *a, const struct cairn_ring_keys *keys,
		     const int32_t *pos0, int mask_mode, int32_t layer)
{
	const struct cairn_kv_view kv = cairn_batch_kv(&r->b->mine, r->rows.kv, layer);

	if (!keys->max_keys)
		return;
	a->part[a->num_parts++] = (struct cairn_attn_part){
		.k = kv.k_pages, .v = kv.v_pages, .k_scale = cairn_model_kv_scale(r->m, layer, 0),
		.v_scale = cairn_model_kv_scale(r->m, layer, 1), .row_indptr = r->b->mine.qo_indptr,
		.blk_indptr = keys->indptr, .blk_indices = keys->pages, .last_len = keys->last_len,
		.kv_pos0 = pos0, .rows = r->b->mine.batch, .block_m = r->b->mine.max_qo_len,
		.block_n = kv.page_size, .index_heads = 1, .num_blocks = kv.num_pages,
		.max_keys = keys->max_keys, .mask_mode = mask_mode,
	};
}

/* Describes a call of attention of this rank's rows; num_parts 0: they see none of its keys. */
static struct cairn_attn_bsr_args describe(const struct ring *r, const struct cairn_graph_op *op, int call,
					   int32_t state)
{
	const struct cairn_ring_call *keys = call == OWN ? &r->b->own : &r->b->others;
	const struct cairn_model_config *c = &r->m->config;
	const int64_t rows = r->b->mine.num_rows;
	struct cairn_attn_bsr_args args = {
		.size = sizeof(args),
		.out = (char *)r->room->states.at + state * rows * forward_row_bytes(r->m, CAIRN_D_ATTN),
		.lse = (float *)r->room->lse.at + state * rows * c->num_attention_heads,
		.q = forward_at(&r->rows, op->in[0]), FORWARD_WORKSPACE(r->rows.s->attn[call]),
		.q_stride = forward_width(&r->rows, op->in[0]),
		.nnz_qo = r->b->mine.num_rows, .num_qo_heads = c->num_attention_heads,
		.num_kv_heads = c->num_key_value_heads, .head_dim = c->head_dim, .dtype = r->m->dtype,
		.kv_fp8 = r->m->kv == CAIRN_KV_FP8, .sm_scale = (float)cairn_softmax_scale(c),
		.window = op->window, .softcap = (float)c->attn_softcap,
		.planned = r->m->impl->attn_plan && r->has_plan[call] && r->plan_window[call] == op->window,
	};

	if (!op->window) {
		add_part(r, &args, &keys->all, NULL, call == OWN ? CAIRN_ATTN_CAUSAL : CAIRN_ATTN_ALL,
			 op->layer);
		return args;
	}
	args.q_pos = r->b->mine.positions;
	for (int i = 0; i < CAIRN_RING_RUNS; i++)
		add_part(r, &args, &keys->run[i], keys->run[i].pos0, CAIRN_ATTN_CAUSAL, op->layer);
	return args;
}

/* Attends to the keys of a call, and counts the state. */
static int attend(struct ring *r, const struct cairn_graph_op *op, int call, int32_t *states)
{
	const struct cairn_attn_bsr_args args = describe(r, op, call, *states);

	if (op->kind == CAIRN_OP_MLA || !args.num_parts)
		return 0;
	++*states;
	r->has_plan[call] = 1;
	r->plan_window[call] = op->window;
	return CAIRN_TABLE(r->m->impl, attn_bsr, &args, r->rows.stream);
}

static int merge(const struct ring *r, const struct cairn_graph_op *op, int32_t states)
{
	const struct cairn_attn_merge_args args = {
		.size = sizeof(args), .out = forward_at(&r->rows, op->out[0]), .o = r->room->states.at,
		.lse = r->room->lse.at, .num_states = states, .rows = r->b->mine.num_rows,
		.num_heads = r->m->config.num_attention_heads, .head_dim = r->m->config.head_dim,
		.dtype = r->m->dtype, .out_dtype = r->m->dtype,
		.sink = forward_weight(&r->rows, op, CAIRN_W_SINKS),
	};

	return CAIRN_TABLE(r->m->impl, attn_merge, &args, r->rows.stream);
}

static int run_attn(struct ring *r, const struct cairn_graph_op *op)
{
	const struct cairn_batch_ring *b = r->b;
	int32_t states = 0;

	CAIRN_TRY(move_keys(r, op->layer, b->own_pages, b->own_slots, b->num_own));
	CAIRN_TRY(start_sending(r));
	CAIRN_TRY(attend(r, op, OWN, &states));
	CAIRN_TRY(await_arrival(r));
	CAIRN_TRY(move_keys(r, op->layer, b->arrived_slots, b->arrived_pages, b->num_arrived));
	CAIRN_TRY(attend(r, op, OTHERS, &states));
	if (!b->mine.num_rows)
		return 0;
	return op->kind == CAIRN_OP_MLA ? forward_run_op(&r->rows, op) : merge(r, op, states);
}

/* ---- the pass ---- */

/* Computes out[i] = table[ids[i]], for rows of the residual stream's width. */
static int pick_rows(const struct ring *r, char *out, const char *table, int32_t table_rows,
		     const int32_t *ids, int32_t rows)
{
	const struct cairn_embedding_args args = {
		.size = sizeof(args), .out = out, .table = table, .ids = ids, .rows = rows,
		.dim = r->m->dims[CAIRN_D_HIDDEN], .vocab = table_rows, .dtype = r->m->dtype,
	};

	return !table_rows ? 0 : CAIRN_TABLE(r->m->impl, embedding, &args, r->rows.stream);
}

/* Ids may be known to the device alone, so each rank looks all of them up, and picks its own rows. */
static int run_embedding(struct ring *r, const struct cairn_graph_op *op)
{
	CAIRN_TRY(forward_run_op(&r->all, op));
	return pick_rows(r, forward_at(&r->rows, op->out[0]), forward_at(&r->all, op->out[0]),
			 r->all.b->num_rows, r->b->rows, r->b->mine.num_rows);
}

static int gather_value(const struct ring *r, int32_t value)
{
	const int64_t row = forward_row_bytes(r->m, CAIRN_D_HIDDEN);
	char *picked = r->rows.s->base + r->room->picked_at;

	CAIRN_TRY(pick_rows(r, picked, forward_at(&r->rows, value), r->b->mine.num_rows, r->b->wanted,
			    r->b->most_wanted));
	return forward_gather_rows(&r->rows, forward_at(&r->head, value), picked, r->b->most_wanted, row,
				   row);
}

/* Gives every rank the hidden states of the rows whose logits are wanted. */
static int gather_states(const struct ring *r)
{
	const struct cairn_graph_op *first = forward_first_of_head(r->m->graph);
	const int adds = forward_head_adds(first);

	CAIRN_TRY(gather_value(r, first[adds].in[0]));
	return adds ? gather_value(r, first->in[0]) : 0;
}

static int run_op(struct ring *r, const struct cairn_graph_op *op)
{
	if (op->kind == CAIRN_OP_EMBEDDING)
		return run_embedding(r, op);
	if (op->kind == CAIRN_OP_ATTN || op->kind == CAIRN_OP_MLA)
		return run_attn(r, op);
	if (op->block == CAIRN_BLOCK_HEAD)
		return forward_run_op(&r->head, op);
	return r->b->mine.num_rows ? forward_run_op(&r->rows, op) : 0;
}

static void begin(struct ring *r, struct cairn_scratch *s, const struct cairn_kv_store *kv,
		  const struct cairn_batch *b, void *stream, int asking)
{
	const struct walk w = {
		.m = s->model, .g = s->model->graph, .s = s, .kv = kv, .buffers = &s->buffers, .b = b,
		.own_at = s->ring->at, .stream = stream, .asking = asking,
	};

	*r = (struct ring){ .m = s->model, .room = s->ring, .b = b->ring, .wanted = *b };
	r->wanted.num_rows = s->model->context_ranks * b->ring->most_wanted;
	r->wanted.logit_rows = b->ring->logit_rows;
	r->rows = r->all = r->head = w;
	r->rows.b = &b->ring->mine;
	r->all.own = &s->ring->all;
	r->head.own = &s->ring->head;
	r->head.b = &r->wanted;
}

/* ---- workspaces ---- */

static int ask_attn(struct ring *r, const struct cairn_graph_op *op)
{
	for (int call = OWN; r->m->impl->attn_bsr_workspace && call < CALLS; call++) {
		const struct cairn_attn_bsr_args args = describe(r, op, call, 0);
		size_t bytes = 0;

		if (args.num_parts)
			CAIRN_TRY(forward_ask_into(&r->rows, &r->attn_bytes[call],
						   r->m->impl->attn_bsr_workspace(&args, &bytes), &bytes,
						   "attn_bsr_workspace"));
	}
	return 0;
}

static int ask(struct ring *r, const struct cairn_graph_op *op)
{
	if (op->block == CAIRN_BLOCK_HEAD)
		return r->wanted.num_logits ? forward_run_op(&r->head, op) : 0;
	if (!r->b->mine.num_rows || forward_may_skip_query(r->m, op))
		return 0;
	return op->kind == CAIRN_OP_ATTN ? ask_attn(r, op) : forward_run_op(&r->rows, op);
}

int forward_ring_reserve(struct cairn_scratch *s, const struct cairn_kv_store *kv,
			 const struct cairn_batch *b, void *stream, int *moved)
{
	const struct cairn_impl *impl = s->model->impl;
	const struct cairn_op_graph *g = s->model->graph;
	const size_t rows = (size_t)b->ring->mine.num_rows * CALLS;
	size_t lane;
	struct ring r;

	begin(&r, s, kv, b, stream, 1);
	for (int32_t o = 0; o < g->num_ops; o++)
		CAIRN_TRY(ask(&r, &g->ops[o]));
	lane = r.rows.workspace_bytes > r.head.workspace_bytes ? r.rows.workspace_bytes :
	       r.head.workspace_bytes;
	CAIRN_TRY(forward_reserve(impl, &s->lane[0], lane, stream, moved));
	for (int call = OWN; call < CALLS; call++)
		CAIRN_TRY(forward_reserve(impl, &s->attn[call], r.attn_bytes[call], stream, moved));
	CAIRN_TRY(forward_reserve(impl, &s->moe, r.rows.moe_bytes, stream, moved));
	CAIRN_TRY(forward_reserve(impl, &s->ring->slots, (size_t)s->model->context_ranks *
				  (size_t)b->ring->most_pages * (size_t)page_bytes(&r), stream, moved));
	if (cairn_model_is_latent(s->model))
		return 0;
	CAIRN_TRY(forward_reserve(impl, &s->ring->states, rows *
				  (size_t)forward_row_bytes(s->model, CAIRN_D_ATTN), stream, moved));
	return forward_reserve(impl, &s->ring->lse, rows * (size_t)s->model->config.num_attention_heads *
			       sizeof(float), stream, moved);
}

int forward_ring(struct cairn_scratch *s, const struct cairn_kv_store *kv, const struct cairn_batch *b,
		 void *stream)
{
	const struct cairn_op_graph *g = s->model->graph;
	struct ring r;

	if (b->trees || b->num_taps || b->states || b->inputs || b->adapters)
		return cairn_error(EINVAL, "forward: a ring has no trees, taps and adapters");
	begin(&r, s, kv, b, stream, 0);
	if (b->ring->mine.num_rows)
		CAIRN_TRY(forward_zero_counters(&r.rows));
	for (int32_t o = 0; o < g->num_ops; o++) {
		const struct cairn_graph_op *op = &g->ops[o];

		if (op->block == CAIRN_BLOCK_HEAD && !b->num_logits)
			break;
		if (op->block == CAIRN_BLOCK_HEAD && g->ops[o - 1].block != CAIRN_BLOCK_HEAD)
			CAIRN_TRY(gather_states(&r));
		if (b->on_layer && op->block == CAIRN_BLOCK_MLP && g->ops[o - 1].block == CAIRN_BLOCK_ATTN)
			CAIRN_TRY(b->on_layer(b->on_layer_ctx, op->layer, stream));
		CAIRN_TRY(forward_stripes_before(&r.all, op));
		CAIRN_TRY(run_op(&r, op));
		CAIRN_TRY(forward_stripes_after(&r.all, op));
	}
	return 0;
}
