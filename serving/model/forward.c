// SPDX-License-Identifier: Apache-2.0
/*
 * forward - runs a decoder layer's lists of operations (forward_lists.h)
 *
 * The walk has two modes: it runs the operations, or it asks each for its workspace.
 *
 * The residual stream is kept in ACT_RES only. Each norm of it first adds what the previous block left in
 * ACT_X: a layer needs no launch for its two additions. `pending` says that there is something to add; the
 * embedding and the result of moe are written straight to ACT_RES. (moe takes the residual stream itself and
 * has its own norm; the norm before it is there for its addition.)
 *
 * Only rows whose logits are wanted go through the last norm and the output matrix. The embedding
 * operation gathers them, as rows of a table.
 */
#include "serving/model/forward_lists.h"

#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "primitives/base/dtype.h"
#include "primitives/base/error.h"

#define ALIGNMENT	256

struct cairn_scratch {
	const struct cairn_model *model;
	int32_t max_rows, max_logits;
	char *base, *act[NUM_ACTS];
	void *workspace, *moe_workspace;	/* moe_workspace holds counters from call to call */
	size_t workspace_bytes, moe_bytes;
};

struct walk {
	const struct cairn_model *m;
	struct cairn_scratch *s;
	const struct cairn_kv_store *kv;
	const struct cairn_batch *b;
	void *stream;
	int32_t layer;
	int pending;		/* ACT_X must still be added to ACT_RES */
	int asking;		/* query workspaces; launch nothing */
	size_t workspace_bytes, moe_bytes;	/* the largest answers so far */
};

int cairn_forward_supported(const struct cairn_model *m)
{
	const struct cairn_impl *impl = m->impl;
	const struct cairn_model_config *c = &m->config;
	int has = impl->gemm && impl->rmsnorm && impl->embedding;

	if (c->latent.kv_lora_rank)
		has = has && impl->mla_append && impl->mla_paged;
	else
		has = has && impl->rope && impl->kv_append && impl->attn_paged;
	if (c->experts.num_experts)
		has = has && impl->moe;
	if (!c->experts.num_experts || c->experts.dense_layers)
		has = has && impl->silu_mul;
	return has && (!(c->logit_softcap > 0) || impl->penalize);
}

/* Marks the activations that the lists of any layer use. */
static void find_used(const struct cairn_model_config *c, int *used)
{
	const struct op_list lists[] = { attention_of(c), mlp_of(c, 0), mlp_of(c, c->num_hidden_layers - 1) };

	used[ACT_RES] = used[ACT_PICKED_X] = used[ACT_PICKED_RES] = 1;
	for (int l = 0; l < COUNT(lists); l++)
		for (int i = 0; i < lists[l].count; i++)
			used[lists[l].ops[i].out] = used[lists[l].ops[i].in] = 1;
}

int cairn_scratch_create(struct cairn_scratch **out, const struct cairn_model *m, int32_t max_rows,
			 int32_t max_logits)
{
	size_t offset[NUM_ACTS], bytes = 0;
	struct cairn_scratch *s;
	int used[NUM_ACTS] = { 0 }, ret;
	void *p;

	if (!cairn_forward_supported(m))
		return cairn_error(EOPNOTSUPP, "%s: forward: the table lacks operations of this model's list",
				   m->impl->name);
	find_used(&m->config, used);
	for (int a = 0; a < NUM_ACTS; a++) {
		size_t rows = (size_t)(a == ACT_PICKED_X || a == ACT_PICKED_RES ? max_logits : max_rows);
		size_t width = a == ACT_NONE || !used[a] ? 0 : (size_t)m->dims[widths[a]];

		offset[a] = bytes;
		bytes += rows * width * cairn_dtype_bytes(m->dtype);
		bytes = (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
	}
	s = calloc(1, sizeof(*s));
	if (!s)
		return cairn_error(ENOMEM, "scratch: no memory");
	ret = CAIRN_TABLE(m->impl, mem_alloc, &p, bytes);
	if (ret) {
		free(s);
		return ret;
	}
	s->model = m;
	s->max_rows = max_rows;
	s->max_logits = max_logits;
	s->base = p;
	for (int a = 0; a < NUM_ACTS; a++)
		s->act[a] = s->base + offset[a];
	*out = s;
	return 0;
}

void cairn_scratch_destroy(struct cairn_scratch *s)
{
	if (!s)
		return;
	if (s->workspace)
		s->model->impl->mem_free(s->workspace);
	if (s->moe_workspace)
		s->model->impl->mem_free(s->moe_workspace);
	s->model->impl->mem_free(s->base);
	free(s);
}

/* bytes is a pointer because the query in the argument ret must run before it is read. */
static int ask(struct walk *w, int ret, const size_t *bytes, const char *what)
{
	if (!ret && *bytes > w->workspace_bytes)
		w->workspace_bytes = *bytes;
	return cairn_table_ret(w->m->impl, ret, what);
}

static int run_gemm(struct walk *w, const struct cairn_gemm_args *args)
{
	size_t bytes = 0;

	if (!w->asking)
		return CAIRN_TABLE(w->m->impl, gemm, args, w->stream);
	if (!w->m->impl->gemm_workspace)
		return 0;
	return ask(w, w->m->impl->gemm_workspace(args, &bytes), &bytes, "gemm_workspace");
}

static int layer_gemm_fp8(struct walk *w, const struct layer_op *op, const float *scale)
{
	const struct cairn_model *m = w->m;
	struct cairn_gemm_fp8w_args args = {
		.size = sizeof(args), .out = w->s->act[op->out], .a = w->s->act[op->in],
		.b = cairn_model_weight(m, w->layer, op->weight), .b_scale = scale,
		.bias = cairn_model_weight(m, w->layer, op->bias),
		.workspace = w->s->workspace, .workspace_bytes = w->s->workspace_bytes,
		.m = w->b->num_rows, .n = m->dims[widths[op->out]], .k = m->dims[widths[op->in]],
		.dtype = m->dtype, .out_dtype = m->dtype,
		.scale_kind = m->weights == CAIRN_WEIGHTS_FP8 ? CAIRN_FP8_SCALE_ROWS : CAIRN_FP8_SCALE_BLOCKS,
	};
	size_t bytes = 0;

	if (!w->asking)
		return CAIRN_TABLE(m->impl, gemm_fp8w, &args, w->stream);
	if (!m->impl->gemm_fp8w_workspace)
		return 0;
	return ask(w, m->impl->gemm_fp8w_workspace(&args, &bytes), &bytes, "gemm_fp8w_workspace");
}

static int layer_gemm(struct walk *w, const struct layer_op *op)
{
	const struct cairn_model *m = w->m;
	const float *scale = cairn_model_scale(m, w->layer, op->weight);
	struct cairn_gemm_args args = {
		.size = sizeof(args),
		.out = w->s->act[op->out],
		.a = w->s->act[op->in],
		.b = cairn_model_weight(m, w->layer, op->weight),
		.bias = cairn_model_weight(m, w->layer, op->bias),
		.workspace = w->s->workspace, .workspace_bytes = w->s->workspace_bytes,
		.m = w->b->num_rows, .n = m->dims[widths[op->out]], .k = m->dims[widths[op->in]],
		.dtype = m->dtype, .out_dtype = m->dtype,
	};

	return scale ? layer_gemm_fp8(w, op, scale) : run_gemm(w, &args);
}

static int run_attn(struct walk *w, const struct layer_op *op)
{
	const struct cairn_model_config *c = &w->m->config;
	struct cairn_attn_paged_args args = {
		.size = sizeof(args),
		.out = w->s->act[op->out], .q = w->s->act[op->in],
		.qo_indptr = w->b->qo_indptr, .kv = cairn_batch_kv(w->b, w->kv, w->layer),
		.workspace = w->s->workspace, .workspace_bytes = w->s->workspace_bytes,
		.q_stride = w->m->dims[CAIRN_D_QKV],
		.nnz_qo = w->b->num_rows, .max_qo_len = w->b->max_qo_len,
		.num_qo_heads = c->num_attention_heads, .num_kv_heads = c->num_key_value_heads,
		.head_dim = c->head_dim, .dtype = w->m->dtype, .causal = 1,
		.sm_scale = (float)cairn_softmax_scale(c),
		.window = cairn_layer_window(c, w->layer), .softcap = (float)c->attn_softcap,
	};
	size_t bytes = 0;

	if (!w->asking)
		return CAIRN_TABLE(w->m->impl, attn_paged, &args, w->stream);
	if (!w->m->impl->attn_paged_workspace)
		return 0;
	return ask(w, w->m->impl->attn_paged_workspace(&args, &bytes), &bytes, "attn_paged_workspace");
}

static int run_mla(struct walk *w, const struct layer_op *op)
{
	const struct cairn_latent_config *l = &w->m->config.latent;
	struct cairn_mla_paged_args args = {
		.size = sizeof(args), .out = w->s->act[op->out], .q = w->s->act[op->in],
		.w_kv_b = cairn_model_weight(w->m, w->layer, op->weight), .qo_indptr = w->b->qo_indptr,
		.kv = cairn_batch_kv(w->b, w->kv, w->layer), .nnz_qo = w->b->num_rows,
		.workspace = w->s->workspace, .workspace_bytes = w->s->workspace_bytes,
		.max_qo_len = w->b->max_qo_len,
		.num_heads = w->m->config.num_attention_heads, .kv_lora_rank = l->kv_lora_rank,
		.nope_dim = l->nope_dim, .rope_dim = l->rope_dim, .v_dim = l->v_dim, .dtype = w->m->dtype,
		.sm_scale = (float)cairn_softmax_scale(&w->m->config),
	};
	size_t bytes = 0;

	if (!w->asking)
		return CAIRN_TABLE(w->m->impl, mla_paged, &args, w->stream);
	if (!w->m->impl->mla_paged_workspace)
		return 0;
	return ask(w, w->m->impl->mla_paged_workspace(&args, &bytes), &bytes, "mla_paged_workspace");
}

static int run_mla_append(struct walk *w, const struct layer_op *op)
{
	const struct cairn_model *m = w->m;
	const struct cairn_latent_config *l = &m->config.latent;
	struct cairn_mla_append_args args = {
		.size = sizeof(args), .q = w->s->act[op->out], .latent = w->s->act[op->in],
		.norm_weight = cairn_model_weight(m, w->layer, op->weight), .inv_freq = m->inv_freq,
		.positions = w->b->positions, .qo_indptr = w->b->qo_indptr,
		.kv = cairn_batch_kv(w->b, w->kv, w->layer), .nnz_qo = w->b->num_rows,
		.num_heads = m->config.num_attention_heads, .nope_dim = l->nope_dim, .rope_dim = l->rope_dim,
		.kv_lora_rank = l->kv_lora_rank, .dtype = m->dtype, .eps = (float)m->config.rms_norm_eps,
	};

	return CAIRN_TABLE(m->impl, mla_append, &args, w->stream);
}

static int run_moe(struct walk *w, const struct layer_op *op)
{
	const struct cairn_model *m = w->m;
	const struct cairn_experts_config *x = &m->config.experts;
	struct cairn_moe_args args = {
		.size = sizeof(args), .out = w->s->act[op->out], .x = w->s->act[op->in],
		.norm_weight = cairn_model_weight(m, w->layer, op->weight),
		.w_router = cairn_model_weight(m, w->layer, CAIRN_W_ROUTER),
		.w_gate_up = cairn_model_weight(m, w->layer, CAIRN_W_EXPERTS_GATE_UP),
		.w_down = cairn_model_weight(m, w->layer, CAIRN_W_EXPERTS_DOWN),
		.w_shared_gate_up = cairn_model_weight(m, w->layer, CAIRN_W_SHARED_GATE_UP),
		.w_shared_down = cairn_model_weight(m, w->layer, CAIRN_W_SHARED_DOWN),
		.workspace = w->s->moe_workspace, .workspace_bytes = w->s->moe_bytes,
		.batch = w->b->num_rows, .hidden = m->dims[CAIRN_D_HIDDEN], .num_experts = x->num_experts,
		.experts_per_token = x->per_token, .intermediate = x->intermediate_size,
		.shared_intermediate = x->shared_intermediate_size, .dtype = m->dtype,
		.normalize = x->normalize, .eps = (float)m->config.rms_norm_eps, .scaling = (float)x->scaling,
		.w_gate_up_scale = cairn_model_scale(m, w->layer, CAIRN_W_EXPERTS_GATE_UP),
		.w_down_scale = cairn_model_scale(m, w->layer, CAIRN_W_EXPERTS_DOWN),
		.w_shared_gate_up_scale = cairn_model_scale(m, w->layer, CAIRN_W_SHARED_GATE_UP),
		.w_shared_down_scale = cairn_model_scale(m, w->layer, CAIRN_W_SHARED_DOWN),
		.fp8w = m->weights != CAIRN_WEIGHTS_PLAIN, .scale_kind = cairn_weights_scale_kind(m->weights),
	};
	size_t bytes = 0;
	int ret;

	if (!w->asking)
		return CAIRN_TABLE(m->impl, moe, &args, w->stream);
	if (!m->impl->moe_workspace)
		return 0;
	ret = m->impl->moe_workspace(&args, &bytes);
	if (!ret && bytes > w->moe_bytes)
		w->moe_bytes = bytes;
	return cairn_table_ret(m->impl, ret, "moe_workspace");
}

static int run_norm(struct walk *w, void *out, void *residual, const void *x, const void *weight,
		    int32_t rows, int32_t dim)
{
	struct cairn_rmsnorm_args args = {
		.size = sizeof(args), .out = out, .residual = residual, .x = x, .weight = weight,
		.rows = rows, .dim = dim, .dtype = w->m->dtype, .eps = (float)w->m->config.rms_norm_eps,
		.weight_offset = (float)w->m->config.norm_offset,
	};

	return CAIRN_TABLE(w->m->impl, rmsnorm, &args, w->stream);
}

static int run_rope(struct walk *w, char *q, char *k)
{
	const struct cairn_model *m = w->m;
	const struct cairn_model_config *c = &m->config;
	struct cairn_rope_args args = {
		.size = sizeof(args), .q = q, .k = k, .inv_freq = m->inv_freq, .positions = w->b->positions,
		.q_stride = m->dims[CAIRN_D_QKV], .k_stride = m->dims[CAIRN_D_QKV], .nnz = w->b->num_rows,
		.num_qo_heads = c->num_attention_heads, .num_kv_heads = c->num_key_value_heads,
		.head_dim = c->head_dim, .rotary_dim = c->head_dim, .dtype = m->dtype, .scale = 1,
		.q_norm = cairn_model_weight(m, w->layer, CAIRN_W_Q_HEAD_NORM),
		.k_norm = cairn_model_weight(m, w->layer, CAIRN_W_K_HEAD_NORM),
		.norm_eps = (float)c->rms_norm_eps,
	};

	return CAIRN_TABLE(m->impl, rope, &args, w->stream);
}

static int run_layer_op(struct walk *w, const struct layer_op *op)
{
	const struct cairn_model *m = w->m;
	const struct cairn_model_config *c = &m->config;
	const struct cairn_batch *b = w->b;
	size_t element = cairn_dtype_bytes(m->dtype);
	char *in = w->s->act[op->in], *out = w->s->act[op->out], *res = w->s->act[ACT_RES];
	char *k = in + (size_t)m->dims[CAIRN_D_Q] * element;	/* if `in` is a packed row of q, k and v */
	char *v = k + (size_t)m->dims[CAIRN_D_KV] * element;

	switch (op->op) {
	case OP_GEMM:
		w->pending |= op->out == ACT_X;
		return layer_gemm(w, op);
	case OP_ATTN:
		return run_attn(w, op);
	case OP_MLA:
		return run_mla(w, op);
	case OP_MOE:
		return run_moe(w, op);
	default:
		break;
	}
	if (w->asking)		/* the operations below have no workspace */
		return 0;
	switch (op->op) {
	case OP_NORM:
		CAIRN_TRY(run_norm(w, out, w->pending ? res : NULL, w->pending ? in : res,
				   cairn_model_weight(m, w->layer, op->weight), b->num_rows,
				   m->dims[CAIRN_D_HIDDEN]));
		w->pending = 0;
		return 0;
	case OP_NORM_ALONE:
		return run_norm(w, out, NULL, in, cairn_model_weight(m, w->layer, op->weight), b->num_rows,
				m->dims[widths[op->in]]);
	case OP_ROPE:
		return run_rope(w, in, k);
	case OP_MLA_APPEND:
		return run_mla_append(w, op);
	case OP_KV_APPEND: {
		struct cairn_kv_append_args args = {
			.size = sizeof(args), .k = k, .v = v, .qo_indptr = b->qo_indptr,
			.kv = cairn_batch_kv(b, w->kv, w->layer), .nnz_qo = b->num_rows,
			.k_stride = m->dims[CAIRN_D_QKV], .v_stride = m->dims[CAIRN_D_QKV],
			.num_kv_heads = c->num_key_value_heads, .head_dim = c->head_dim, .dtype = m->dtype,
		};

		return CAIRN_TABLE(m->impl, kv_append, &args, w->stream);
	}
	default: {
		struct cairn_silu_mul_args args = {
			.size = sizeof(args), .out = out, .x = in, .rows = b->num_rows,
			.dim = c->intermediate_size, .dtype = m->dtype,
			.activation = c->hidden_act == CAIRN_ACT_GELU_TANH,
		};

		return CAIRN_TABLE(m->impl, silu_mul, &args, w->stream);
	}
	}
}

static int run_list(struct walk *w, struct op_list list)
{
	for (int i = 0; i < list.count; i++)
		CAIRN_TRY(run_layer_op(w, &list.ops[i]));
	return 0;
}

/* out[i] = table[ids[i]] * scale, rows of hidden_size; scale 0: no scaling. */
static int run_rows(struct walk *w, void *out, const void *table, const int32_t *ids, int32_t rows,
		    int32_t table_rows, float scale)
{
	struct cairn_embedding_args args = {
		.size = sizeof(args), .out = out, .table = table, .ids = ids, .rows = rows,
		.dim = w->m->dims[CAIRN_D_HIDDEN], .vocab = table_rows, .dtype = w->m->dtype, .scale = scale,
	};

	return CAIRN_TABLE(w->m->impl, embedding, &args, w->stream);
}

static int run_softcap(struct walk *w)
{
	struct cairn_penalize_args args = {
		.size = sizeof(args), .logits = w->b->logits, .rows = w->b->num_logits,
		.vocab = w->m->dims[CAIRN_D_VOCAB], .softcap = (float)w->m->config.logit_softcap,
	};

	return args.softcap > 0 ? CAIRN_TABLE(w->m->impl, penalize, &args, w->stream) : 0;
}

static int run_head(struct walk *w)
{
	const struct cairn_model *m = w->m;
	const struct cairn_batch *b = w->b;
	char *x = w->s->act[ACT_X], *res = w->s->act[ACT_RES];
	struct cairn_gemm_args args = {
		.size = sizeof(args), .out = b->logits, .a = w->s->act[ACT_NORMED],
		.b = cairn_model_weight(m, 0, CAIRN_W_LM_HEAD),
		.workspace = w->s->workspace, .workspace_bytes = w->s->workspace_bytes,
		.m = b->num_logits, .n = m->dims[CAIRN_D_VOCAB], .k = m->dims[CAIRN_D_HIDDEN],
		.dtype = m->dtype, .out_dtype = CAIRN_F32,
	};

	if (w->asking)
		return run_gemm(w, &args);
	if (b->logit_rows) {
		char *px = w->s->act[ACT_PICKED_X], *pres = w->s->act[ACT_PICKED_RES];

		if (w->pending)
			CAIRN_TRY(run_rows(w, px, x, b->logit_rows, b->num_logits, b->num_rows, 0));
		CAIRN_TRY(run_rows(w, pres, res, b->logit_rows, b->num_logits, b->num_rows, 0));
		x = px;
		res = pres;
	}
	CAIRN_TRY(run_norm(w, w->s->act[ACT_NORMED], w->pending ? res : NULL, w->pending ? x : res,
			   cairn_model_weight(m, 0, CAIRN_W_FINAL_NORM), b->num_logits,
			   m->dims[CAIRN_D_HIDDEN]));
	CAIRN_TRY(run_gemm(w, &args));
	return run_softcap(w);
}

static int check_batch(const struct cairn_scratch *s, const struct cairn_batch *b)
{
	if (b->num_rows < 1 || b->num_rows > s->max_rows || b->batch < 1)
		return cairn_error(EINVAL, "forward: %d rows of %d requests, at most %d rows", b->num_rows,
				   b->batch, s->max_rows);
	if (b->num_logits < 0 || b->num_logits > s->max_logits ||
	    (!b->logit_rows && b->num_logits && b->num_logits != b->num_rows))
		return cairn_error(EINVAL, "forward: %d rows of logits from %d rows, at most %d",
				   b->num_logits, b->num_rows, s->max_logits);
	return 0;
}

/* Grows *p to at least `bytes` bytes. */
static int reserve(const struct cairn_impl *impl, void **p, size_t *have, size_t bytes, void *stream,
		   int *moved)
{
	void *more;

	if (bytes <= *have)
		return 0;
	CAIRN_TRY(CAIRN_TABLE(impl, stream_sync, stream));
	CAIRN_TRY(CAIRN_TABLE(impl, mem_alloc, &more, bytes));
	if (*p)
		impl->mem_free(*p);
	*p = more;
	*have = bytes;
	*moved = 1;
	return 0;
}

int cairn_scratch_reserve(struct cairn_scratch *s, const struct cairn_kv_store *kv,
			  const struct cairn_batch *b, void *stream, int *moved)
{
	const struct cairn_model_config *c = &s->model->config;
	struct walk w = { .m = s->model, .s = s, .kv = kv, .b = b, .asking = 1 };

	CAIRN_TRY(check_batch(s, b));
	/* Layers differ only in windows and experts: the first two and the last cover all kinds. */
	for (w.layer = 0; w.layer < c->num_hidden_layers; w.layer++) {
		if (w.layer == 2)
			w.layer = c->num_hidden_layers - 1;
		CAIRN_TRY(run_list(&w, attention_of(c)));
		CAIRN_TRY(run_list(&w, mlp_of(c, w.layer)));
	}
	if (b->num_logits)
		CAIRN_TRY(run_head(&w));
	CAIRN_TRY(reserve(s->model->impl, &s->workspace, &s->workspace_bytes, w.workspace_bytes, stream,
			  moved));
	return reserve(s->model->impl, &s->moe_workspace, &s->moe_bytes, w.moe_bytes, stream, moved);
}

/* moe leaves its counters ready for the next layer, but not for a different number of rows. */
static int zero_counters(const struct walk *w)
{
	struct walk asking = *w;

	if (!w->m->config.experts.num_experts || w->b->num_rows > CAIRN_MOE_FEW)
		return 0;
	asking.asking = 1;
	CAIRN_TRY(run_list(&asking, LIST(experts_mlp)));
	if (!asking.moe_bytes)
		return 0;
	return CAIRN_TABLE(w->m->impl, mem_set, w->s->moe_workspace, 0, asking.moe_bytes, w->stream);
}

int cairn_forward(struct cairn_scratch *s, const struct cairn_kv_store *kv, const struct cairn_batch *b,
		  void *stream)
{
	const struct cairn_model *m = s->model;
	const struct cairn_model_config *c = &m->config;
	struct walk w = { .m = m, .s = s, .kv = kv, .b = b, .stream = stream };
	uint64_t scale = 0;	/* wide enough for any dtype */

	CAIRN_TRY(check_batch(s, b));
	cairn_store(&scale, m->dtype, 0, c->embed_scale ? sqrt(c->hidden_size) : 0);
	CAIRN_TRY(zero_counters(&w));
	CAIRN_TRY(run_rows(&w, s->act[ACT_RES], cairn_model_weight(m, 0, CAIRN_W_EMBED), b->ids, b->num_rows,
			   c->vocab_size, (float)cairn_load(&scale, m->dtype, 0)));
	for (w.layer = 0; w.layer < c->num_hidden_layers; w.layer++) {
		CAIRN_TRY(run_list(&w, attention_of(c)));
		if (b->on_layer)
			CAIRN_TRY(b->on_layer(b->on_layer_ctx, w.layer, stream));
		CAIRN_TRY(run_list(&w, mlp_of(c, w.layer)));
	}
	return b->num_logits ? run_head(&w) : 0;
}
