// SPDX-License-Identifier: Apache-2.0
/*
 * ranks_context - context parallelism: a pass whose rows are shared out among ranks that have all weights
 *
 *   rows of a rank, all heads      embedding, norms, products, rotation, MLP or experts
 *        | all_to_all: q, k and v of the rank's heads, of all rows
 *   all rows, heads of a rank      kv_append, attention; or mla_append, latent attention
 *        | all_to_all back
 *   rows of a rank, all heads      the output product, and so on
 *        | all_to_all: the hidden states of all rows, after the last layer
 *   all rows, on every rank        the last norm and the logits of the rows that want them
 *
 * This is the head exchange of DeepSpeed Ulysses (Jacobs et al. 2023, section 3). Rank r has rows r * each ..
 * of the pass, where each = rows / ranks, rounded up; the last ranks may have fewer rows, or none, and send
 * what is in their memory in the place of missing rows. A rank's cache holds the keys and values of its heads
 * of all tokens, so every rank attends to whole texts and has as much work as the others, causal or not. With
 * more ranks than KV heads several ranks have the same KV head, and keys and values of all heads are
 * gathered; latents are gathered, too, and cached by every rank.
 *
 * No sum crosses ranks: on tables whose operations compute rows and heads independently of each other, all
 * bits are those of one rank.
 */
#include "serving/model/forward/forward_impl.h"
#include "serving/model/load/model_impl.h"

#include <stdlib.h>
#include <string.h>

#include "primitives/base/dtype.h"
#include "primitives/base/error.h"

#define MOST_BYTES	65536	/* all_to_all moves rows of at most so many bytes */

/* What a scratch has in addition. */
struct context_room {
	struct cairn_model share;	/* the model with the heads of this rank */
	int repeats;			/* there are more ranks than KV heads */
	/* own memory of the activations of all rows: before and after attention, and before the last norm */
	struct cairn_buffers heads, head;
	int64_t at;			/* of that memory, in the scratch's */
};

struct context {
	const struct cairn_model *m;
	const struct context_room *room;
	struct cairn_batch mine;	/* the rows of this rank */
	struct walk rows, heads, head;
	int32_t each;			/* rows of a rank; some have fewer */
};

static int heads_fit(const struct cairn_model *m)
{
	return !(m->config.num_key_value_heads % m->context_ranks) && !m->config.sinks &&
	       !cairn_model_is_latent(m);
}

/* Refuses what the exchange of heads does not support. */
static int check_heads(const struct cairn_model_config *c, const char *dir, int32_t ranks)
{
	const int32_t kv_heads = c->num_key_value_heads;

	if (c->num_attention_heads % ranks)
		return cairn_error(EOPNOTSUPP, "%s/config.json: num_attention_heads: %d is not divisible "
				   "among %d ranks of context parallelism", dir, c->num_attention_heads,
				   ranks);
	if (kv_heads % ranks && ranks % kv_heads)
		return cairn_error(EOPNOTSUPP, "%s/config.json: num_key_value_heads: %d heads are neither "
				   "divisible nor repeatable among %d ranks of context parallelism", dir,
				   kv_heads, ranks);
	if (c->sinks)
		return cairn_error(EOPNOTSUPP, "%s/config.json: model_type: attention sinks are not "
				   "supported with context parallelism by heads", dir);
	return 0;
}

static int check_operations(const struct cairn_model *m)
{
	const struct cairn_impl *impl = m->impl;
	const int rings = m->exchange != CAIRN_EXCHANGE_HEADS, merges = rings && !cairn_model_is_latent(m);
	const struct { const char *name; int have; } needs[] = {
		{ "all_to_all", impl->all_to_all != NULL },
		{ "send_recv", impl->send_recv || !rings },
		{ "kv_move", impl->kv_move || !rings },
		{ "attn_bsr", impl->attn_bsr || !merges },
		{ "attn_merge", impl->attn_merge || !merges },
	};

	for (size_t i = 0; i < sizeof(needs) / sizeof(needs[0]); i++)
		if (!needs[i].have)
			return cairn_error(EOPNOTSUPP, "%s: the table has no operation %s, which context "
					   "parallelism needs", impl->name, needs[i].name);
	return 0;
}

int cairn_model_check_context(struct cairn_model *m, const char *dir)
{
	if (m->exchange == CAIRN_EXCHANGE_AUTO)
		m->exchange = heads_fit(m) ? CAIRN_EXCHANGE_HEADS : CAIRN_EXCHANGE_RING;
	if (m->exchange == CAIRN_EXCHANGE_HEADS)
		CAIRN_TRY(check_heads(&m->config, dir, m->context_ranks));
	return m->impl ? check_operations(m) : 0;
}

/* ---- the scratch ---- */

static int32_t rows_of_each(const struct cairn_model *m, int32_t rows)
{
	return (rows + m->context_ranks - 1) / m->context_ranks;
}

static void make_share(struct context_room *room, const struct cairn_model *m)
{
	struct cairn_model *share = &room->share;
	const int32_t ranks = m->context_ranks;

	room->repeats = m->config.num_key_value_heads < ranks;
	*share = *m;
	share->context_ranks = 1;
	share->config.num_attention_heads /= ranks;
	share->config.num_key_value_heads = cairn_model_cached_heads(m);
	share->dims[CAIRN_D_Q] /= ranks;
	share->dims[CAIRN_D_KV] = cairn_model_is_latent(m) ? 0 :
				  cairn_model_cached_heads(m) * m->config.head_dim;
	/* gathered keys and values are not beside q */
	share->dims[CAIRN_D_QKV] = share->dims[CAIRN_D_Q] + (room->repeats ? 0 : 2 * share->dims[CAIRN_D_KV]);
	share->dims[CAIRN_D_ATTN] /= ranks;
	/* the rows of this rank's heads, in every layer */
	share->dims[CAIRN_D_KV_B] /= ranks;
	share->offset[CAIRN_W_KV_B] += m->context_rank * (int64_t)share->dims[CAIRN_D_KV_B] *
				       forward_row_bytes(m, CAIRN_D_KV_LORA);
}

/* Returns the bytes of a row of all that attention and the cache need: q, k and v; or q and a latent. */
static int64_t appended_bytes(const struct context_room *room, const struct cairn_model *m)
{
	const int64_t beside_q = cairn_model_is_latent(m) ? forward_row_bytes(m, CAIRN_D_LATENT) :
				 room->repeats ? 2 * forward_row_bytes(m, CAIRN_D_KV) : 0;

	return forward_row_bytes(&room->share, CAIRN_D_QKV) + beside_q;
}

static void place(struct context_room *room, const struct cairn_model *m)
{
	const struct cairn_op_graph *g = m->graph;
	const struct cairn_graph_op *first = forward_first_of_head(g);
	const int adds = forward_head_adds(first);

	for (int32_t v = 0; v < g->num_values; v++)
		room->heads.offset[v] = room->head.offset[v] = -1;
	for (int32_t o = 0; o < g->num_ops; o++) {
		const struct cairn_graph_op *op = &g->ops[o];
		const int is_attn = op->kind == CAIRN_OP_ATTN || op->kind == CAIRN_OP_MLA;

		if (is_attn)
			room->heads.offset[g->values[op->in[0]].storage] = 0;
		if (is_attn)
			room->heads.offset[g->values[op->out[0]].storage] = appended_bytes(room, m);
		if (op->kind == CAIRN_OP_MLA_APPEND)
			room->heads.offset[g->values[op->in[1]].storage] = forward_row_bytes(&room->share,
										     CAIRN_D_Q);
	}
	room->head.offset[g->values[first[adds].in[0]].storage] = 0;
	if (adds)
		room->head.offset[g->values[first->in[0]].storage] = forward_row_bytes(m, CAIRN_D_HIDDEN);
}

int forward_context_create(struct cairn_scratch *s, int64_t *bytes)
{
	const struct cairn_model *m = s->model;
	const size_t values = (size_t)m->graph->num_values;
	struct context_room *room = calloc(1, sizeof(*room));
	int64_t heads, head;

	s->context = room;
	if (!room)
		return cairn_error(ENOMEM, "scratch: no memory");
	room->heads.offset = malloc(values * sizeof(*room->heads.offset));
	room->head.offset = malloc(values * sizeof(*room->head.offset));
	if (!room->heads.offset || !room->head.offset)
		return cairn_error(ENOMEM, "scratch: no memory");
	make_share(room, m);
	place(room, m);
	heads = appended_bytes(room, m) + forward_row_bytes(&room->share, CAIRN_D_ATTN);
	head = 2 * forward_row_bytes(m, CAIRN_D_HIDDEN);
	room->at = (*bytes + CAIRN_BUFFER_ALIGNMENT - 1) / CAIRN_BUFFER_ALIGNMENT * CAIRN_BUFFER_ALIGNMENT;
	*bytes = room->at + m->context_ranks * rows_of_each(m, s->max_rows) * (heads > head ? heads : head);
	return 0;
}

void forward_context_destroy(struct cairn_scratch *s)
{
	if (!s->context)
		return;
	cairn_buffers_free(&s->context->heads);
	cairn_buffers_free(&s->context->head);
	free(s->context);
}

/* ---- exchanges ---- */

/* Gives every rank its heads of `width` of this rank's rows, which begin *at bytes after a row of shares. */
static int to_heads(const struct context *c, const struct cairn_graph_op *op, enum cairn_dim width,
		    int64_t *at)
{
	const int64_t share = forward_row_bytes(&c->room->share, width);
	const int64_t stride = forward_row_bytes(&c->room->share, CAIRN_D_QKV);
	const struct cairn_all_to_all_args args = {
		.size = sizeof(args), .out = forward_at(&c->heads, op->in[0]) + *at,
		.x = forward_at(&c->rows, op->in[0]) + *at * c->m->context_ranks,
		.out_block = c->each * stride, .out_stride = stride, .x_block = share,
		.x_stride = forward_row_bytes(c->m, CAIRN_D_QKV), .rows = c->each,
		.row_bytes = (int32_t)share,
	};

	*at += share;
	return CAIRN_TABLE(c->m->impl, all_to_all, &args, c->rows.stream);
}

int forward_gather_rows(const struct walk *w, char *out, const char *x, int32_t rows, int64_t row,
			int64_t stride)
{
	struct cairn_all_to_all_args args = {
		.size = sizeof(args), .out_block = rows * row, .out_stride = row, .x_stride = stride,
		.rows = rows,
	};

	for (int64_t first = 0; first < row; first += MOST_BYTES) {
		args.out = out + first;
		args.x = x + first;
		args.row_bytes = (int32_t)(row - first < MOST_BYTES ? row - first : MOST_BYTES);
		CAIRN_TRY(CAIRN_TABLE(w->m->impl, all_to_all, &args, w->stream));
	}
	return 0;
}

/* Gathers the rows of a pass. */
static int gather(const struct context *c, char *out, const char *x, int64_t row, int64_t stride)
{
	return forward_gather_rows(&c->rows, out, x, c->each, row, stride);
}

/* The same for a whole value, to the memory of the walk `to`. */
static int gather_value(const struct context *c, const struct walk *to, int32_t value, enum cairn_dim width)
{
	const int64_t row = forward_row_bytes(c->m, width);

	return gather(c, forward_at(to, value), forward_at(&c->rows, value), row, row);
}

/* Returns where keys and values of all heads are gathered: behind q. */
static char *gathered(const struct context *c, const struct cairn_graph_op *op)
{
	return forward_at(&c->heads, op->in[0]) +
	       c->heads.b->num_rows * forward_row_bytes(&c->room->share, CAIRN_D_Q);
}

/*
 * Gathers what an append needs of all rows. Every rank sends `each` rows, even if it has fewer, so a gather
 * may write past the end of its value. The values are therefore gathered in the order of their addresses:
 * each gather overwrites the surplus rows of the previous one.
 */
static int heads_of_all(const struct context *c, const struct cairn_graph_op *op)
{
	int64_t at = 0;

	CAIRN_TRY(to_heads(c, op, CAIRN_D_Q, &at));
	if (op->kind == CAIRN_OP_MLA_APPEND)
		return gather_value(c, &c->heads, op->in[1], CAIRN_D_LATENT);
	if (c->room->repeats)
		return gather(c, gathered(c, op),
			      forward_at(&c->rows, op->in[0]) + forward_row_bytes(c->m, CAIRN_D_Q),
			      2 * forward_row_bytes(c->m, CAIRN_D_KV), forward_row_bytes(c->m, CAIRN_D_QKV));
	CAIRN_TRY(to_heads(c, op, CAIRN_D_KV, &at));
	return to_heads(c, op, CAIRN_D_KV, &at);
}

/* The way back: every rank gets all heads of its rows. */
static int rows_of_all(const struct context *c, const struct cairn_graph_op *op)
{
	const int64_t share = forward_row_bytes(&c->room->share, CAIRN_D_ATTN);
	const struct cairn_all_to_all_args args = {
		.size = sizeof(args), .out = forward_at(&c->rows, op->out[0]),
		.x = forward_at(&c->heads, op->out[0]), .out_block = share,
		.out_stride = share * c->m->context_ranks, .x_block = c->each * share, .x_stride = share,
		.rows = c->each, .row_bytes = (int32_t)share,
	};

	return CAIRN_TABLE(c->m->impl, all_to_all, &args, c->rows.stream);
}

/*
 * A gather may write surplus rows past the end of its value, where the value of the second one begins: the
 * order matters.
 */
static int gather_states(const struct context *c)
{
	const struct cairn_graph_op *first = forward_first_of_head(c->m->graph);
	const int adds = forward_head_adds(first);

	CAIRN_TRY(gather_value(c, &c->head, first[adds].in[0], CAIRN_D_HIDDEN));
	return adds ? gather_value(c, &c->head, first->in[0], CAIRN_D_HIDDEN) : 0;
}

/* ---- the pass ---- */

/* Appends the one head of this rank from the keys and values of all heads. */
static int append_gathered(const struct context *c, const struct cairn_graph_op *op)
{
	const struct cairn_model *share = &c->room->share;
	const struct cairn_batch *b = c->heads.b;
	const int64_t stride = 2 * (int64_t)c->m->dims[CAIRN_D_KV];
	const char *k = gathered(c, op) + cairn_model_first_head(c->m) * forward_row_bytes(share, CAIRN_D_KV);
	const struct cairn_kv_append_args args = {
		.size = sizeof(args), .k = k, .v = k + forward_row_bytes(c->m, CAIRN_D_KV),
		.qo_indptr = b->qo_indptr,
		.kv = cairn_batch_kv(b, c->heads.kv, op->layer),
		.k_stride = stride, .v_stride = stride, .nnz_qo = b->num_rows,
		.num_kv_heads = share->config.num_key_value_heads, .head_dim = share->config.head_dim,
		.dtype = share->dtype, .kv_fp8 = share->kv == CAIRN_KV_FP8,
		.k_scale = cairn_model_kv_scale(share, op->layer, 0),
		.v_scale = cairn_model_kv_scale(share, op->layer, 1),
	};

	return CAIRN_TABLE(c->m->impl, kv_append, &args, c->heads.stream);
}

static int run_op(struct context *c, const struct cairn_graph_op *op)
{
	const int asking = c->rows.asking;

	switch (op->kind) {
	case CAIRN_OP_KV_APPEND:
	case CAIRN_OP_MLA_APPEND:
		if (!asking)
			CAIRN_TRY(heads_of_all(c, op));
		return op->kind == CAIRN_OP_KV_APPEND && c->room->repeats && !asking ?
		       append_gathered(c, op) : forward_run_op(&c->heads, op);
	case CAIRN_OP_ATTN:
	case CAIRN_OP_MLA:
		CAIRN_TRY(forward_run_op(&c->heads, op));
		return asking ? 0 : rows_of_all(c, op);
	default:
		break;
	}
	if (op->block == CAIRN_BLOCK_HEAD)
		return forward_run_op(&c->head, op);
	return c->mine.num_rows ? forward_run_op(&c->rows, op) : 0;
}

static void begin(struct context *c, struct cairn_scratch *s, const struct cairn_kv_store *kv,
		  const struct cairn_batch *b, void *stream, int asking)
{
	const struct context_room *room = s->context;
	const struct cairn_model *m = s->model;
	struct walk w = {
		.m = m, .g = m->graph, .s = s, .kv = kv, .b = b, .buffers = &s->buffers, .own_at = room->at,
		.stream = stream, .asking = asking,
	};
	int32_t first;

	*c = (struct context){ .m = m, .room = room, .mine = *b, .each = rows_of_each(m, b->num_rows) };
	first = m->context_rank * c->each < b->num_rows ? m->context_rank * c->each : b->num_rows;
	c->mine.ids += first;
	c->mine.positions += first;
	c->mine.num_rows = b->num_rows - first < c->each ? b->num_rows - first : c->each;
	c->rows = c->heads = c->head = w;
	c->rows.b = &c->mine;
	c->heads.m = &room->share;
	c->heads.own = &room->heads;
	c->head.own = &room->head;
}

static size_t larger(size_t a, size_t b)
{
	return a > b ? a : b;
}

int forward_context_reserve(struct cairn_scratch *s, const struct cairn_kv_store *kv,
			    const struct cairn_batch *b, void *stream, int *moved)
{
	const struct cairn_op_graph *g = s->model->graph;
	size_t lane, attn, moe;
	struct context c;

	begin(&c, s, kv, b, stream, 1);
	for (int32_t o = 0; o < g->num_ops; o++) {
		if (forward_may_skip_query(s->model, &g->ops[o]) ||
		    (g->ops[o].block == CAIRN_BLOCK_HEAD && !b->num_logits))
			continue;
		CAIRN_TRY(run_op(&c, &g->ops[o]));
	}
	lane = larger(c.rows.workspace_bytes, larger(c.heads.workspace_bytes, c.head.workspace_bytes));
	attn = c.heads.attn_bytes;
	moe = c.rows.moe_bytes;
	CAIRN_TRY(forward_reserve(s->model->impl, &s->lane[0], lane, stream, moved));
	CAIRN_TRY(forward_reserve(s->model->impl, &s->attn[0], attn, stream, moved));
	return forward_reserve(s->model->impl, &s->moe, moe, stream, moved);
}

int forward_context(struct cairn_scratch *s, const struct cairn_kv_store *kv, const struct cairn_batch *b,
		    void *stream)
{
	const struct cairn_op_graph *g = s->model->graph;
	struct context c;

	if (b->trees || b->num_taps || b->states || b->inputs)
		return cairn_error(EINVAL, "forward: context parallelism has no trees and no taps");
	begin(&c, s, kv, b, stream, 0);
	if (c.mine.num_rows)
		CAIRN_TRY(forward_zero_counters(&c.rows));
	for (int32_t o = 0; o < g->num_ops; o++) {
		const struct cairn_graph_op *op = &g->ops[o];

		if (op->block == CAIRN_BLOCK_HEAD && !b->num_logits)
			break;
		if (op->block == CAIRN_BLOCK_HEAD && g->ops[o - 1].block != CAIRN_BLOCK_HEAD)
			CAIRN_TRY(gather_states(&c));
		if (b->on_layer && op->block == CAIRN_BLOCK_MLP && g->ops[o - 1].block == CAIRN_BLOCK_ATTN)
			CAIRN_TRY(b->on_layer(b->on_layer_ctx, op->layer, stream));
		CAIRN_TRY(run_op(&c, op));
	}
	return 0;
}
