// SPDX-License-Identifier: Apache-2.0
/* forward_attn - attention of a pass, latent or not, and what it appends to the KV cache */
#include "serving/model/forward/forward_impl.h"

#include "primitives/base/dtype.h"
#include "primitives/base/error.h"

/* Members of the kv_append and attn_paged arguments that say what a layer's pages hold. */
#define STORED_AS(m, layer) \
	.kv_fp8 = (m)->kv == CAIRN_KV_FP8, .k_scale = cairn_model_kv_scale(m, layer, 0), \
	.v_scale = cairn_model_kv_scale(m, layer, 1)

/* Members that describe the KV cache of the operation's layer and the rows of the batch. */
#define PAGING(w, op) \
	.qo_indptr = (w)->b->qo_indptr, .nnz_qo = (w)->b->num_rows, \
	.kv = cairn_batch_kv((w)->b, (w)->kv, (op)->layer)

/* Returns where attention writes lse, which only sinks need. */
static float *lse_at(const struct walk *w, const struct cairn_graph_op *op)
{
	return op->num_out > 1 ? (float *)forward_at(w, op->out[1]) : NULL;
}

/* Adds the sinks of a layer that has them to finished attention. */
static int run_sinks(const struct walk *w, const struct cairn_graph_op *op)
{
	struct cairn_attn_merge_args args = {
		.size = sizeof(args), .out = forward_at(w, op->out[0]), .o = forward_at(w, op->out[0]),
		.lse = lse_at(w, op),
		.num_states = 1, .rows = w->b->num_rows, .num_heads = w->m->config.num_attention_heads,
		.head_dim = w->m->config.head_dim, .dtype = w->m->dtype, .out_dtype = w->m->dtype,
		.sink = forward_weight(w, op, CAIRN_W_SINKS),
	};

	return args.sink ? CAIRN_TABLE(w->m->impl, attn_merge, &args, w->stream) : 0;
}

/*
 * Attention of a pass with token trees: part 0 has the keys before the rows of a tree, or all keys of another
 * request; part 1 has the rows of trees as keys. Their positions are not consecutive, so slot_pos0 gives
 * positions that every row's window admits, and the mask bits decide what a row sees.
 */
static int run_tree_attn(struct walk *w, const struct cairn_graph_op *op)
{
	const struct cairn_model_config *c = &w->m->config;
	const struct cairn_batch_trees *t = w->b->trees;
	const struct cairn_kv_view kv = cairn_batch_kv(w->b, w->kv, op->layer);
	const struct cairn_attn_part both = {
		.k = kv.k_pages, .v = kv.v_pages, .k_scale = cairn_model_kv_scale(w->m, op->layer, 0),
		.v_scale = cairn_model_kv_scale(w->m, op->layer, 1), .row_indptr = w->b->qo_indptr,
		.rows = kv.batch, .block_m = CAIRN_TREE_ROWS, .index_heads = 1,
	};
	struct cairn_attn_bsr_args args = {
		.size = sizeof(args), .out = forward_at(w, op->out[0]), .lse = lse_at(w, op),
		.q = forward_at(w, op->in[0]),
		.q_pos = w->b->positions, FORWARD_WORKSPACE(w->s->attn[w->split]), .part = { both, both },
		.planned = w->m->impl->attn_plan && w->has_plan && w->plan_window == op->window,
		.q_stride = forward_width(w, op->in[0]), .num_parts = 2, .nnz_qo = w->b->num_rows,
		.num_qo_heads = c->num_attention_heads, .num_kv_heads = c->num_key_value_heads,
		.head_dim = c->head_dim, .dtype = w->m->dtype, .kv_fp8 = w->m->kv == CAIRN_KV_FP8,
		.sm_scale = (float)cairn_softmax_scale(c),
		.window = op->window, .softcap = (float)c->attn_softcap,
	};
	struct cairn_attn_part *past = &args.part[0], *own = &args.part[1];
	size_t bytes = 0;

	past->blk_indptr = t->past_indptr;
	past->blk_indices = t->past_indices;
	past->last_len = t->past_last_page_len;
	past->block_n = kv.page_size;
	past->num_blocks = kv.num_pages;
	past->max_keys = kv.max_len;
	past->mask_mode = CAIRN_ATTN_CAUSAL;
	own->blk_indptr = t->slot_indptr;
	own->blk_indices = t->slots;
	own->kv_pos0 = t->slot_pos0;
	own->mask = t->mask;
	own->mask_indptr = t->mask_indptr;
	own->block_n = 1;
	own->num_blocks = kv.num_pages * kv.page_size;
	own->max_keys = CAIRN_TREE_ROWS;
	own->mask_mode = CAIRN_ATTN_BITS;
	if (!w->asking) {
		w->has_plan = 1;
		w->plan_window = op->window;
		CAIRN_TRY(CAIRN_TABLE(w->m->impl, attn_bsr, &args, w->stream));
		return run_sinks(w, op);
	}
	if (!w->m->impl->attn_bsr_workspace)
		return 0;
	return forward_ask_into(w, &w->attn_bytes, w->m->impl->attn_bsr_workspace(&args, &bytes), &bytes,
			"attn_bsr_workspace");
}

/*
 * Layers with the same window share the plan of the first of them, as long as no other window intervenes. A
 * table that has attn_plan knows what `planned` means.
 */
int forward_attn(struct walk *w, const struct cairn_graph_op *op)
{
	const struct cairn_model_config *c = &w->m->config;
	struct cairn_attn_paged_args args = {
		.size = sizeof(args), .out = forward_at(w, op->out[0]), .lse = lse_at(w, op),
		.q = forward_at(w, op->in[0]),
		PAGING(w, op),
		FORWARD_WORKSPACE(w->s->attn[w->split]),
		.planned = w->m->impl->attn_plan && w->has_plan && w->plan_window == op->window,
		.q_stride = forward_width(w, op->in[0]),
		.max_qo_len = w->b->max_qo_len, .nnz_kv = w->b->nnz_kv,
		.num_qo_heads = c->num_attention_heads, .num_kv_heads = c->num_key_value_heads,
		.head_dim = c->head_dim, .dtype = w->m->dtype, .causal = 1,
		.sm_scale = (float)cairn_softmax_scale(c),
		.window = op->window, .softcap = (float)c->attn_softcap, STORED_AS(w->m, op->layer),
	};
	size_t bytes = 0;

	if (w->b->trees)
		return run_tree_attn(w, op);
	if (!w->asking) {
		w->has_plan = 1;
		w->plan_window = op->window;
		CAIRN_TRY(CAIRN_TABLE(w->m->impl, attn_paged, &args, w->stream));
		return run_sinks(w, op);
	}
	if (!w->m->impl->attn_paged_workspace)
		return 0;
	return forward_ask_into(w, &w->attn_bytes, w->m->impl->attn_paged_workspace(&args, &bytes), &bytes,
			"attn_paged_workspace");
}

/* Runs mla_paged for the first `requests` requests of the batch, which have `rows` rows. */
static int run_mla_paged(struct walk *w, const struct cairn_graph_op *op, int32_t requests, int32_t rows)
{
	const struct cairn_latent_config *l = &w->m->config.latent;
	struct cairn_mla_paged_args args = {
		.size = sizeof(args), .out = forward_at(w, op->out[0]), .q = forward_at(w, op->in[0]),
		.w_kv_b = forward_weight_at(w, op, 0), PAGING(w, op),
		FORWARD_WORKSPACE(w->s->lane[w->lane]),
		.max_qo_len = w->b->max_qo_len,
		.num_heads = w->m->config.num_attention_heads, .kv_lora_rank = l->kv_lora_rank,
		.nope_dim = l->nope_dim, .rope_dim = l->rope_dim, .v_dim = l->v_dim, .dtype = w->m->dtype,
		.sm_scale = (float)cairn_softmax_scale(&w->m->config),
	};
	size_t bytes = 0;

	args.kv.batch = requests;
	args.nnz_qo = rows;
	if (!w->asking)
		return CAIRN_TABLE(w->m->impl, mla_paged, &args, w->stream);
	if (!w->m->impl->mla_paged_workspace)
		return 0;
	return forward_ask(w, w->m->impl->mla_paged_workspace(&args, &bytes), &bytes, "mla_paged_workspace");
}

/* Runs mla_prefill for the requests from number `first` on, whose rows begin at `row`. */
static int run_mla_prefill(struct walk *w, const struct cairn_graph_op *op, int32_t first, int32_t row)
{
	const struct cairn_latent_config *l = &w->m->config.latent;
	const size_t element = cairn_dtype_bytes(w->m->dtype);
	struct cairn_mla_prefill_args args = {
		.size = sizeof(args),
		.out = forward_at(w, op->out[0]) +
		       (size_t)row * (size_t)forward_width(w, op->out[0]) * element,
		.q = forward_at(w, op->in[0]) + (size_t)row * (size_t)forward_width(w, op->in[0]) * element,
		.w_kv_b = forward_weight_at(w, op, 0), PAGING(w, op),
		FORWARD_WORKSPACE(w->s->lane[w->lane]),
		.max_qo_len = w->b->max_qo_len, .nnz_past = w->b->prompt_past,
		.num_heads = w->m->config.num_attention_heads, .kv_lora_rank = l->kv_lora_rank,
		.nope_dim = l->nope_dim, .rope_dim = l->rope_dim, .v_dim = l->v_dim, .dtype = w->m->dtype,
		.sm_scale = (float)cairn_softmax_scale(&w->m->config),
	};
	size_t bytes = 0;

	args.qo_indptr += first;
	args.kv.indptr += first;
	args.kv.last_page_len += first;
	args.kv.batch -= first;
	args.nnz_qo -= row;
	if (!w->asking)
		return CAIRN_TABLE(w->m->impl, mla_prefill, &args, w->stream);
	if (!w->m->impl->mla_prefill_workspace)
		return 0;
	return forward_ask(w, w->m->impl->mla_prefill_workspace(&args, &bytes), &bytes,
			   "mla_prefill_workspace");
}

int forward_mla(struct walk *w, const struct cairn_graph_op *op)
{
	int expands = w->m->impl->mla_prefill && w->b->num_prompts;
	int32_t first = w->b->batch - (expands ? w->b->num_prompts : 0);
	int32_t row = w->b->num_rows - (expands ? w->b->prompt_rows : 0);

	if (first || !expands)
		CAIRN_TRY(run_mla_paged(w, op, first, row));
	return expands ? run_mla_prefill(w, op, first, row) : 0;
}

int forward_mla_append(struct walk *w, const struct cairn_graph_op *op)
{
	const struct cairn_model *m = w->m;
	const struct cairn_latent_config *l = &m->config.latent;
	struct cairn_mla_append_args args = {
		.size = sizeof(args), .q = forward_at(w, op->out[0]), .latent = forward_at(w, op->in[1]),
		.norm_weight = forward_weight_at(w, op, 0), .inv_freq = m->inv_freq,
		.positions = w->b->positions, PAGING(w, op), .num_heads = m->config.num_attention_heads,
		.nope_dim = l->nope_dim, .rope_dim = l->rope_dim, .kv_lora_rank = l->kv_lora_rank,
		.dtype = m->dtype, .eps = (float)CAIRN_LATENT_NORM_EPS,
	};

	return CAIRN_TABLE(m->impl, mla_append, &args, w->stream);
}

int forward_kv_append(struct walk *w, const struct cairn_graph_op *op)
{
	const struct cairn_model *m = w->m;
	size_t element = cairn_dtype_bytes(m->dtype);
	char *k = forward_at(w, op->in[0]) + (size_t)m->dims[CAIRN_D_Q] * element;
	struct cairn_kv_append_args args = {
		.size = sizeof(args),
		.k = k, .v = k + (size_t)m->dims[CAIRN_D_KV] * element, PAGING(w, op),
		.k_stride = forward_width(w, op->in[0]), .v_stride = forward_width(w, op->in[0]),
		.num_kv_heads = m->config.num_key_value_heads, .head_dim = m->config.head_dim,
		.dtype = m->dtype, STORED_AS(m, op->layer),
	};

	return CAIRN_TABLE(m->impl, kv_append, &args, w->stream);
}

int forward_qkv(struct walk *w, const struct cairn_graph_op *op, const struct cairn_gemm_args *product)
{
	const struct cairn_model *m = w->m;
	const struct cairn_model_config *c = &m->config;
	const struct cairn_qkv_append_args args = {
		.size = sizeof(args), .q = forward_at(w, op[1].out[0]), .a = product->a, .b = product->b,
		.bias = product->bias, .inv_freq = m->inv_freq, .positions = w->b->positions,
		.qo_indptr = w->b->qo_indptr, .kv = cairn_batch_kv(w->b, w->kv, op->layer),
		.q_stride = forward_width(w, op[1].out[0]), .m = product->m, .k = product->k,
		.num_qo_heads = c->num_attention_heads, .num_kv_heads = c->num_key_value_heads,
		.head_dim = c->head_dim, .dtype = product->dtype, STORED_AS(m, op->layer),
	};

	w->covered = op + 2;
	return CAIRN_TABLE(m->impl, qkv_append, &args, w->stream);
}
