// SPDX-License-Identifier: Apache-2.0
/*
 * ranks_pages - the attention of a decoding pass whose ranks share out the pages of each request
 *
 *   q of this rank's heads          (tensor parallelism; else a rank has all)
 *        | all_to_all: the queries of all heads
 *   o, lse of all heads, over the keys of page j of a request if j mod ranks is this rank
 *        | all_to_all: of this rank's heads, or of all, the states of all ranks
 *   attn_merge
 *
 * For caches that are whole on each rank, as latents are: otherwise every rank would read all of them in
 * every step. The one row of a request sees all its keys, so there is nothing to mask, and any page may be
 * left out. A rank that attends to no page of a request contributes a state without weight.
 *
 * Source: decode context parallelism of vLLM and SGLang.
 */
#include "serving/model/forward/forward_impl.h"
#include "serving/model/load/model_impl.h"

#include "primitives/base/dtype.h"
#include "primitives/base/error.h"

/* Sizes in bytes of a row: of queries, results and lse, of all heads; and of this rank's share. */
struct sizes {
	int64_t q, o, lse, share_o, share_lse;
	int32_t ranks, rows, heads, v_dim;	/* heads: all; v_dim: of a result */
};

/* Memory of a call. */
struct places {
	char *q, *o, *lse, *states, *state_lse;
};

static struct sizes sizes_of(const struct walk *w)
{
	const struct cairn_model *whole = w->b->pages->whole;
	const int64_t element = (int64_t)cairn_dtype_bytes(whole->dtype);
	struct sizes s = { .ranks = whole->context_ranks, .rows = w->b->num_rows,
			   .heads = whole->config.num_attention_heads };

	s.v_dim = whole->dims[CAIRN_D_ATTN] / s.heads;
	s.q = whole->dims[CAIRN_D_Q] * element;
	s.o = whole->dims[CAIRN_D_ATTN] * element;
	s.lse = s.heads * (int64_t)sizeof(float);
	s.share_o = s.o / w->m->ranks;
	s.share_lse = s.lse / w->m->ranks;
	return s;
}

/* Lays the arrays out from base on, and returns how many bytes they take. */
static size_t lay_out(const struct sizes *s, struct places *p, char *base)
{
	const int64_t bytes[] = {
		s->rows * s->q, s->rows * s->o, s->rows * s->lse, s->ranks * s->rows * s->share_o,
		s->ranks * s->rows * s->share_lse,
	};
	char **const to[] = { &p->q, &p->o, &p->lse, &p->states, &p->state_lse };
	size_t at = 0;

	for (size_t i = 0; i < sizeof(to) / sizeof(to[0]); i++) {
		*to[i] = base ? base + at : NULL;
		at += ((size_t)bytes[i] + CAIRN_BUFFER_ALIGNMENT - 1) / CAIRN_BUFFER_ALIGNMENT *
		      CAIRN_BUFFER_ALIGNMENT;
	}
	return at;
}

int forward_pages_supported(const struct cairn_model *m, const struct cairn_model *whole)
{
	const struct cairn_op_graph *g = m->graph;

	for (int32_t o = 0; o < g->num_ops; o++)
		if (g->ops[o].window)	/* counts keys from the last one, which may be another rank's */
			return 0;
	/* rows of lse are exchanged, and all_to_all moves multiples of 16 bytes */
	return m->impl->attn_merge && !(whole->config.num_attention_heads / m->ranks % 4);
}

/* The keys of this rank's pages. */
static struct cairn_kv_view view_of(const struct walk *w, int32_t layer)
{
	struct cairn_kv_view kv = cairn_batch_kv(w->b, w->kv, layer);

	kv.indptr = w->b->pages->indptr;
	kv.indices = w->b->pages->indices;
	kv.last_page_len = w->b->pages->last_page_len;
	return kv;
}

static struct cairn_mla_paged_args mla_args(const struct walk *w, const struct cairn_graph_op *op,
					    const struct places *p)
{
	const struct cairn_model *whole = w->b->pages->whole;
	const struct cairn_latent_config *l = &whole->config.latent;

	return (struct cairn_mla_paged_args){
		.size = sizeof(struct cairn_mla_paged_args), .out = p->o, .lse = (float *)p->lse,
		.q = w->m->ranks > 1 ? p->q : forward_at(w, op->in[0]),
		.w_kv_b = cairn_model_weight(whole, op->layer, CAIRN_W_KV_B), .qo_indptr = w->b->qo_indptr,
		.kv = view_of(w, op->layer), FORWARD_WORKSPACE(w->s->lane[w->lane]),
		.nnz_qo = w->b->num_rows, .max_qo_len = w->b->max_qo_len,
		.num_heads = whole->config.num_attention_heads, .kv_lora_rank = l->kv_lora_rank,
		.nope_dim = l->nope_dim, .rope_dim = l->rope_dim, .v_dim = l->v_dim, .dtype = whole->dtype,
		.sm_scale = (float)cairn_softmax_scale(&whole->config),
	};
}

static struct cairn_attn_paged_args attn_args(const struct walk *w, const struct cairn_graph_op *op,
					      const struct places *p)
{
	const struct cairn_model_config *c = &w->m->config;

	return (struct cairn_attn_paged_args){
		.size = sizeof(struct cairn_attn_paged_args), .out = p->o, .lse = (float *)p->lse,
		.q = forward_at(w, op->in[0]), .qo_indptr = w->b->qo_indptr, .kv = view_of(w, op->layer),
		FORWARD_WORKSPACE(w->s->attn[w->split]), .q_stride = forward_width(w, op->in[0]),
		.nnz_qo = w->b->num_rows, .max_qo_len = w->b->max_qo_len,
		.num_qo_heads = c->num_attention_heads, .num_kv_heads = c->num_key_value_heads,
		.head_dim = c->head_dim, .dtype = w->m->dtype, .causal = 1,
		.sm_scale = (float)cairn_softmax_scale(c), .softcap = (float)c->attn_softcap,
		.kv_fp8 = w->m->kv == CAIRN_KV_FP8, .k_scale = cairn_model_kv_scale(w->m, op->layer, 0),
		.v_scale = cairn_model_kv_scale(w->m, op->layer, 1),
	};
}

static int ask(struct walk *w, const struct cairn_graph_op *op, const struct places *p)
{
	const struct cairn_impl *impl = w->m->impl;
	size_t bytes = 0;

	if (op->kind == CAIRN_OP_MLA && impl->mla_paged_workspace) {
		const struct cairn_mla_paged_args args = mla_args(w, op, p);

		return forward_ask(w, impl->mla_paged_workspace(&args, &bytes), &bytes,
				   "mla_paged_workspace");
	}
	if (op->kind == CAIRN_OP_ATTN && impl->attn_paged_workspace) {
		const struct cairn_attn_paged_args args = attn_args(w, op, p);

		return forward_ask_into(w, &w->attn_bytes, impl->attn_paged_workspace(&args, &bytes), &bytes,
					"attn_paged_workspace");
	}
	return 0;
}

/* Gathers the queries of all heads: those of rank r are columns of each row. */
static int gather_queries(const struct walk *w, const struct cairn_graph_op *op, const struct sizes *s,
			  char *to)
{
	const int64_t share = s->q / w->m->ranks;
	const struct cairn_all_to_all_args args = {
		.size = sizeof(args), .out = to, .x = forward_at(w, op->in[0]), .out_block = share,
		.out_stride = s->q, .x_stride = share, .rows = s->rows, .row_bytes = (int32_t)share,
	};

	return CAIRN_TABLE(w->m->impl, all_to_all, &args, w->stream);
}

/*
 * Gives each rank the partial results of all ranks, one after another: only the columns of its own heads,
 * or all columns if every rank has all heads.
 */
static int exchange(const struct walk *w, const struct sizes *s, char *to, const char *from, int64_t row,
		    int64_t share)
{
	const struct cairn_all_to_all_args args = {
		.size = sizeof(args), .out = to, .x = from, .out_block = s->rows * share, .out_stride = share,
		.x_block = share < row ? share : 0, .x_stride = row, .rows = s->rows,
		.row_bytes = (int32_t)share,
	};

	return CAIRN_TABLE(w->m->impl, all_to_all, &args, w->stream);
}

static int attend(const struct walk *w, const struct cairn_graph_op *op, const struct places *p)
{
	if (op->kind == CAIRN_OP_MLA) {
		const struct cairn_mla_paged_args args = mla_args(w, op, p);

		return CAIRN_TABLE(w->m->impl, mla_paged, &args, w->stream);
	} else {
		const struct cairn_attn_paged_args args = attn_args(w, op, p);

		return CAIRN_TABLE(w->m->impl, attn_paged, &args, w->stream);
	}
}

int forward_pages_reserve(struct cairn_scratch *s, const struct cairn_batch *b, void *stream, int *moved)
{
	const struct walk w = { .m = s->model, .b = b };
	const struct sizes sizes = sizes_of(&w);
	struct places unused;

	return forward_reserve(s->model->impl, &s->pages, lay_out(&sizes, &unused, NULL), stream, moved);
}

int forward_pages(struct walk *w, const struct cairn_graph_op *op)
{
	const struct sizes s = sizes_of(w);
	struct places p;
	struct cairn_attn_merge_args merge = {
		.size = sizeof(merge), .out = forward_at(w, op->out[0]), .num_states = s.ranks,
		.rows = s.rows, .num_heads = s.heads / w->m->ranks, .head_dim = s.v_dim,
		.dtype = w->m->dtype, .out_dtype = w->m->dtype,
		.sink = forward_weight(w, op, CAIRN_W_SINKS),
	};

	lay_out(&s, &p, w->s->pages.at);
	if (w->asking)
		return ask(w, op, &p);
	if (w->m->ranks > 1)
		CAIRN_TRY(gather_queries(w, op, &s, p.q));
	CAIRN_TRY(attend(w, op, &p));
	CAIRN_TRY(exchange(w, &s, p.states, p.o, s.o, s.share_o));
	CAIRN_TRY(exchange(w, &s, p.state_lse, p.lse, s.lse, s.share_lse));
	merge.o = p.states;
	merge.lse = (const float *)p.state_lse;
	return CAIRN_TABLE(w->m->impl, attn_merge, &merge, w->stream);
}
