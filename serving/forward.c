// SPDX-License-Identifier: Apache-2.0
/*
 * forward - a decoder layer as a list of operations, and the walk over it
 *
 * llama_layer[] says what a layer does, widths[] how wide the activations are; another architecture is
 * another list. The walk has two modes: it runs the operations, or it asks each for its workspace.
 *
 * The residual stream lives in ACT_RES alone. Each norm adds to it what the block before left in ACT_X, and
 * normalises the sum: a layer has no launch for its two additions. The embedding is written straight to
 * ACT_RES, so the very first norm adds nothing.
 *
 * Only rows whose logits are wanted go through the last norm and the output matrix. The embedding
 * operation picks them: they are rows of a table.
 */
#include "forward.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "../primitives/dtype.h"
#include "../primitives/error.h"

#define COUNT(a)	((int)(sizeof(a) / sizeof((a)[0])))
#define ALIGNMENT	256

enum act {
	ACT_NONE,
	ACT_X, ACT_RES, ACT_NORMED, ACT_QKV, ACT_ATTN, ACT_GATE_UP, ACT_MLP,
	ACT_PICKED_X, ACT_PICKED_RES,		/* rows whose logits are wanted */
	NUM_ACTS
};

static const enum cairn_dim widths[NUM_ACTS] = {
	[ACT_X] = CAIRN_D_HIDDEN, [ACT_RES] = CAIRN_D_HIDDEN, [ACT_NORMED] = CAIRN_D_HIDDEN,
	[ACT_QKV] = CAIRN_D_QKV, [ACT_ATTN] = CAIRN_D_ATTN, [ACT_GATE_UP] = CAIRN_D_GATE_UP,
	[ACT_MLP] = CAIRN_D_INTER, [ACT_PICKED_X] = CAIRN_D_HIDDEN, [ACT_PICKED_RES] = CAIRN_D_HIDDEN,
};

enum op { OP_NORM, OP_GEMM, OP_ROPE, OP_KV_APPEND, OP_ATTN, OP_SILU_MUL };

static const struct layer_op {
	enum op op;
	enum act out, in;
	enum cairn_weight weight, bias;
} llama_layer[] = {
	{ OP_NORM, ACT_NORMED, ACT_X, CAIRN_W_ATTN_NORM, CAIRN_W_NONE },
	{ OP_GEMM, ACT_QKV, ACT_NORMED, CAIRN_W_QKV, CAIRN_W_QKV_BIAS },
	{ OP_ROPE, ACT_QKV, ACT_QKV, CAIRN_W_NONE, CAIRN_W_NONE },
	{ OP_KV_APPEND, ACT_NONE, ACT_QKV, CAIRN_W_NONE, CAIRN_W_NONE },
	{ OP_ATTN, ACT_ATTN, ACT_QKV, CAIRN_W_NONE, CAIRN_W_NONE },
	{ OP_GEMM, ACT_X, ACT_ATTN, CAIRN_W_O, CAIRN_W_O_BIAS },
	{ OP_NORM, ACT_NORMED, ACT_X, CAIRN_W_MLP_NORM, CAIRN_W_NONE },
	{ OP_GEMM, ACT_GATE_UP, ACT_NORMED, CAIRN_W_GATE_UP, CAIRN_W_GATE_UP_BIAS },
	{ OP_SILU_MUL, ACT_MLP, ACT_GATE_UP, CAIRN_W_NONE, CAIRN_W_NONE },
	{ OP_GEMM, ACT_X, ACT_MLP, CAIRN_W_DOWN, CAIRN_W_DOWN_BIAS },
};

struct cairn_scratch {
	const struct cairn_model *model;
	int32_t max_rows, max_logits;
	char *base, *act[NUM_ACTS];
	void *workspace;
	size_t workspace_bytes;
};

struct walk {
	const struct cairn_model *m;
	struct cairn_scratch *s;
	const struct cairn_kv_store *kv;
	const struct cairn_batch *b;
	void *stream;
	int32_t layer;
	int asking;		/* for workspace; nothing is launched */
	size_t workspace_bytes;	/* the largest asked for */
};

int cairn_kv_store_create(struct cairn_kv_store *kv, const struct cairn_model *m, int32_t num_pages,
			  int32_t page_size)
{
	int latent = cairn_model_is_latent(m);
	size_t token = (size_t)m->dims[latent ? CAIRN_D_LATENT : CAIRN_D_KV] * cairn_dtype_bytes(m->dtype);
	size_t half = ((size_t)num_pages * (size_t)page_size * token + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
	size_t layers = (size_t)m->config.num_hidden_layers;
	void *p;

	if (half > SIZE_MAX / 2 / layers)
		return cairn_error(EINVAL, "kv: %d pages of %d tokens are out of range", num_pages,
				   page_size);
	*kv = (struct cairn_kv_store){
		.layer_bytes = latent ? half : 2 * half, .v_offset = latent ? 0 : half,
		.num_pages = num_pages, .page_size = page_size,
	};
	CAIRN_TRY(CAIRN_TABLE(m->impl, mem_alloc, &p, layers * kv->layer_bytes));
	kv->base = p;
	return 0;
}

void cairn_kv_store_destroy(struct cairn_kv_store *kv, const struct cairn_model *m)
{
	if (kv->base)
		m->impl->mem_free(kv->base);
	memset(kv, 0, sizeof(*kv));
}

int cairn_scratch_create(struct cairn_scratch **out, const struct cairn_model *m, int32_t max_rows,
			 int32_t max_logits)
{
	size_t offset[NUM_ACTS], bytes = 0;
	struct cairn_scratch *s;
	void *p;
	int ret;

	if (cairn_model_is_latent(m))
		return cairn_error(EOPNOTSUPP, "forward: latent attention is no list of operations");
	for (int a = 0; a < NUM_ACTS; a++) {
		size_t rows = (size_t)(a == ACT_PICKED_X || a == ACT_PICKED_RES ? max_logits : max_rows);
		size_t width = a == ACT_NONE ? 0 : (size_t)m->dims[widths[a]];

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
	s->model->impl->mem_free(s->base);
	free(s);
}

static int ask(struct walk *w, int ret, size_t bytes, const char *what)
{
	if (!ret && bytes > w->workspace_bytes)
		w->workspace_bytes = bytes;
	return cairn_table_ret(w->m->impl, ret, what);
}

static int run_gemm(struct walk *w, const struct cairn_gemm_args *args)
{
	size_t bytes = 0;

	if (!w->asking)
		return CAIRN_TABLE(w->m->impl, gemm, args, w->stream);
	if (!w->m->impl->gemm_workspace)
		return 0;
	return ask(w, w->m->impl->gemm_workspace(args, &bytes), bytes, "gemm_workspace");
}

static int layer_gemm(struct walk *w, const struct layer_op *op)
{
	const struct cairn_model *m = w->m;
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

	return run_gemm(w, &args);
}

static int run_attn(struct walk *w, const struct layer_op *op, char *k_pages, char *v_pages)
{
	const struct cairn_model_config *c = &w->m->config;
	struct cairn_attn_paged_args args = {
		.size = sizeof(args),
		.out = w->s->act[op->out], .q = w->s->act[op->in],
		.k_pages = k_pages, .v_pages = v_pages,
		.qo_indptr = w->b->qo_indptr, .kv_indptr = w->b->kv_indptr,
		.kv_indices = w->b->kv_indices, .kv_last_page_len = w->b->kv_last_page_len,
		.workspace = w->s->workspace, .workspace_bytes = w->s->workspace_bytes,
		.q_stride = w->m->dims[CAIRN_D_QKV],
		.batch = w->b->batch, .nnz_qo = w->b->num_rows,
		.max_qo_len = w->b->max_qo_len, .max_kv_len = w->b->max_kv_len,
		.num_pages = w->kv->num_pages, .page_size = w->kv->page_size,
		.num_qo_heads = c->num_attention_heads, .num_kv_heads = c->num_key_value_heads,
		.head_dim = c->head_dim, .dtype = w->m->dtype, .causal = 1,
		.sm_scale = (float)cairn_softmax_scale(c),
	};
	size_t bytes = 0;

	if (!w->asking)
		return CAIRN_TABLE(w->m->impl, attn_paged, &args, w->stream);
	if (!w->m->impl->attn_paged_workspace)
		return 0;
	return ask(w, w->m->impl->attn_paged_workspace(&args, &bytes), bytes, "attn_paged_workspace");
}

static int run_norm(struct walk *w, void *out, void *residual, const void *x, const void *weight,
		    int32_t rows)
{
	struct cairn_rmsnorm_args args = {
		.size = sizeof(args), .out = out, .residual = residual, .x = x, .weight = weight,
		.rows = rows, .dim = w->m->dims[CAIRN_D_HIDDEN], .dtype = w->m->dtype,
		.eps = (float)w->m->config.rms_norm_eps,
	};

	return CAIRN_TABLE(w->m->impl, rmsnorm, &args, w->stream);
}

static int run_layer_op(struct walk *w, const struct layer_op *op, int first)
{
	const struct cairn_model *m = w->m;
	const struct cairn_model_config *c = &m->config;
	const struct cairn_batch *b = w->b;
	size_t element = cairn_dtype_bytes(m->dtype);
	char *k_pages = w->kv->base + (size_t)w->layer * w->kv->layer_bytes;
	char *v_pages = k_pages + w->kv->v_offset;
	char *in = w->s->act[op->in];
	char *k = in + (size_t)m->dims[CAIRN_D_Q] * element;	/* where in is a packed row of q, k and v */
	char *v = k + (size_t)m->dims[CAIRN_D_KV] * element;
	int64_t stride = m->dims[CAIRN_D_QKV];

	if (op->op == OP_GEMM)
		return layer_gemm(w, op);
	if (op->op == OP_ATTN)
		return run_attn(w, op, k_pages, v_pages);
	if (w->asking)
		return 0;
	if (op->op == OP_NORM) {
		char *res = w->s->act[ACT_RES];

		return run_norm(w, w->s->act[op->out], first ? NULL : res, first ? res : in,
				cairn_model_weight(m, w->layer, op->weight), b->num_rows);
	}
	if (op->op == OP_ROPE) {
		struct cairn_rope_args args = {
			.size = sizeof(args), .q = in, .k = k,
			.inv_freq = m->inv_freq, .positions = b->positions,
			.q_stride = stride, .k_stride = stride, .nnz = b->num_rows,
			.num_qo_heads = c->num_attention_heads, .num_kv_heads = c->num_key_value_heads,
			.head_dim = c->head_dim, .rotary_dim = c->head_dim, .dtype = m->dtype, .scale = 1,
		};

		return CAIRN_TABLE(m->impl, rope, &args, w->stream);
	}
	if (op->op == OP_KV_APPEND) {
		struct cairn_kv_append_args args = {
			.size = sizeof(args), .k_pages = k_pages, .v_pages = v_pages, .k = k, .v = v,
			.qo_indptr = b->qo_indptr, .kv_indptr = b->kv_indptr, .kv_indices = b->kv_indices,
			.kv_last_page_len = b->kv_last_page_len, .k_stride = stride, .v_stride = stride,
			.batch = b->batch, .nnz_qo = b->num_rows,
			.num_pages = w->kv->num_pages, .page_size = w->kv->page_size,
			.num_kv_heads = c->num_key_value_heads, .head_dim = c->head_dim, .dtype = m->dtype,
		};

		return CAIRN_TABLE(m->impl, kv_append, &args, w->stream);
	}
	{
		struct cairn_silu_mul_args args = {
			.size = sizeof(args), .out = w->s->act[op->out], .x = in, .rows = b->num_rows,
			.dim = c->intermediate_size, .dtype = m->dtype,
		};

		return CAIRN_TABLE(m->impl, silu_mul, &args, w->stream);
	}
}

/* out[i] = table[ids[i]], rows of hidden_size. */
static int run_rows(struct walk *w, void *out, const void *table, const int32_t *ids, int32_t rows,
		    int32_t table_rows)
{
	struct cairn_embedding_args args = {
		.size = sizeof(args), .out = out, .table = table, .ids = ids, .rows = rows,
		.dim = w->m->dims[CAIRN_D_HIDDEN], .vocab = table_rows, .dtype = w->m->dtype,
	};

	return CAIRN_TABLE(w->m->impl, embedding, &args, w->stream);
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

		CAIRN_TRY(run_rows(w, px, x, b->logit_rows, b->num_logits, b->num_rows));
		CAIRN_TRY(run_rows(w, pres, res, b->logit_rows, b->num_logits, b->num_rows));
		x = px;
		res = pres;
	}
	CAIRN_TRY(run_norm(w, w->s->act[ACT_NORMED], res, x, cairn_model_weight(m, 0, CAIRN_W_FINAL_NORM),
			   b->num_logits));
	return run_gemm(w, &args);
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

int cairn_scratch_reserve(struct cairn_scratch *s, const struct cairn_kv_store *kv,
			  const struct cairn_batch *b, void *stream, int *moved)
{
	const struct cairn_impl *impl = s->model->impl;
	struct walk w = { .m = s->model, .s = s, .kv = kv, .b = b, .asking = 1 };
	void *p;

	CAIRN_TRY(check_batch(s, b));
	for (int i = 0; i < COUNT(llama_layer); i++)	/* all layers are alike */
		CAIRN_TRY(run_layer_op(&w, &llama_layer[i], 0));
	if (b->num_logits)
		CAIRN_TRY(run_head(&w));
	if (w.workspace_bytes <= s->workspace_bytes)
		return 0;
	CAIRN_TRY(CAIRN_TABLE(impl, stream_sync, stream));
	CAIRN_TRY(CAIRN_TABLE(impl, mem_alloc, &p, w.workspace_bytes));
	if (s->workspace)
		impl->mem_free(s->workspace);
	s->workspace = p;
	s->workspace_bytes = w.workspace_bytes;
	*moved = 1;
	return 0;
}

int cairn_forward(struct cairn_scratch *s, const struct cairn_kv_store *kv, const struct cairn_batch *b,
		  void *stream)
{
	const struct cairn_model *m = s->model;
	struct walk w = { .m = m, .s = s, .kv = kv, .b = b, .stream = stream };

	CAIRN_TRY(check_batch(s, b));
	CAIRN_TRY(run_rows(&w, s->act[ACT_RES], cairn_model_weight(m, 0, CAIRN_W_EMBED), b->ids, b->num_rows,
			   m->config.vocab_size));
	for (w.layer = 0; w.layer < m->config.num_hidden_layers; w.layer++) {
		for (int i = 0; i < COUNT(llama_layer); i++)
			CAIRN_TRY(run_layer_op(&w, &llama_layer[i], w.layer == 0 && i == 0));
	}
	return b->num_logits ? run_head(&w) : 0;
}
