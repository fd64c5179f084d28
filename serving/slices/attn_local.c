// SPDX-License-Identifier: Apache-2.0
/* attn_local - an attention worker in the process of the model (attn_local.h) */
#include "serving/slices/attn_local.h"

#include <stdlib.h>

#include "primitives/base/dtype.h"
#include "primitives/base/error.h"
#include "serving/model/forward/forward_impl.h"

struct cairn_attn_local {
	struct cairn_attn_link link;
	const struct cairn_model *m;
	const struct cairn_kv_store *kv;
	struct cairn_batch b;
	struct cairn_attn_past past[CAIRN_ATTN_STRIPES];
	int32_t max_rows;
	void *stream;
	struct cairn_attn_rows q;	/* of the layer between send_q and send_kv */
	/* of the batch's rows, one after the other: */
	char *o;			/* [stripes, rows, attn] */
	float *lse;			/* [stripes, rows, num_attention_heads] with `previous`, or NULL */
	struct room room;		/* the operators' workspace; holds the plan that layers share */
	int has_plan;
	int32_t plan_window;
	int asking;			/* query workspaces; launch nothing */
	size_t asked;			/* the largest answer */
};

/* bytes is a pointer because the query in the argument ret must run before it is read. */
static int ask(struct cairn_attn_local *w, int ret, const size_t *bytes, const char *what)
{
	if (!ret && *bytes > w->asked)
		w->asked = *bytes;
	return cairn_table_ret(w->m->impl, ret, what);
}

/*
 * Returns whether the workspace holds the plan of this window, and notes that it does from now on. Stripes
 * have different lists, and thus different plans.
 */
static int take_plan(struct cairn_attn_local *w, int32_t window)
{
	int has = w->m->impl->attn_plan && w->has_plan && w->plan_window == window && w->link.previous < 2;

	if (!w->asking) {
		w->has_plan = 1;
		w->plan_window = window;
	}
	return has;
}

#define WORKSPACE(w)	.workspace = (w)->room.at, .workspace_bytes = (w)->room.bytes
#define HEADS(c)	.num_qo_heads = (c)->num_attention_heads, \
			.num_kv_heads = (c)->num_key_value_heads, .head_dim = (c)->head_dim
#define SCORES(c, rows)	.sm_scale = (float)cairn_softmax_scale(c), .window = (rows)->window, \
			.softcap = (float)(c)->attn_softcap

/* ---- heads ---- */

static int append(const struct cairn_attn_local *w, const struct cairn_attn_rows *rows)
{
	const struct cairn_model *m = w->m;
	struct cairn_kv_append_args args = {
		.size = sizeof(args), .k = rows->k, .v = rows->v, .qo_indptr = w->b.qo_indptr,
		.kv = cairn_batch_kv(&w->b, w->kv, rows->layer),
		.k_stride = rows->kv_stride, .v_stride = rows->kv_stride, .nnz_qo = rows->num_rows,
		.num_kv_heads = m->config.num_key_value_heads, .head_dim = m->config.head_dim,
		.dtype = m->dtype, .kv_fp8 = m->kv == CAIRN_KV_FP8,
		.k_scale = cairn_model_kv_scale(m, rows->layer, 0),
		.v_scale = cairn_model_kv_scale(m, rows->layer, 1),
	};

	return w->asking ? 0 : CAIRN_TABLE(m->impl, kv_append, &args, w->stream);
}

/* Attends to the keys of these lists, of which the request's last rows are the last ones if causal. */
static int attend_lists(struct cairn_attn_local *w, const struct cairn_attn_rows *rows, void *o, float *lse,
			const int32_t *qo_indptr, const struct cairn_kv_view *kv, int causal)
{
	const struct cairn_model *m = w->m;
	struct cairn_attn_paged_args args = {
		.size = sizeof(args), .out = o, .lse = lse, .q = rows->q, .qo_indptr = qo_indptr,
		.kv = *kv, WORKSPACE(w),
		.q_stride = rows->q_stride, .nnz_qo = rows->num_rows, .max_qo_len = w->b.max_qo_len,
		HEADS(&m->config), .dtype = m->dtype, .causal = causal, SCORES(&m->config, rows),
		.kv_fp8 = m->kv == CAIRN_KV_FP8, .k_scale = cairn_model_kv_scale(m, rows->layer, 0),
		.v_scale = cairn_model_kv_scale(m, rows->layer, 1),
		.planned = take_plan(w, rows->window),
	};
	size_t bytes = 0;

	if (!w->asking)
		return CAIRN_TABLE(m->impl, attn_paged, &args, w->stream);
	return m->impl->attn_paged_workspace ?
	       ask(w, m->impl->attn_paged_workspace(&args, &bytes), &bytes, "attn_paged_workspace") : 0;
}

static int attend_all(struct cairn_attn_local *w, const struct cairn_attn_rows *rows)
{
	const struct cairn_kv_view kv = cairn_batch_kv(&w->b, w->kv, rows->layer);

	return attend_lists(w, rows, w->o, NULL, w->b.qo_indptr, &kv, 1);
}

/* The results of a stripe. */
static char *o_of(const struct cairn_attn_local *w, int stripe)
{
	return w->o + (size_t)stripe * (size_t)w->b.num_rows * (size_t)w->m->dims[CAIRN_D_ATTN] *
	       cairn_dtype_bytes(w->m->dtype);
}

static float *lse_of(const struct cairn_attn_local *w, int stripe)
{
	return w->lse + (size_t)stripe * (size_t)w->b.num_rows * (size_t)w->m->config.num_attention_heads;
}

/* With a window, each request is a block row whose list is the pages of its previous keys. */
static int attend_windowed(struct cairn_attn_local *w, const struct cairn_attn_rows *rows, int stripe)
{
	const struct cairn_model *m = w->m;
	const struct cairn_attn_past *past = &w->past[stripe];
	const struct cairn_kv_view kv = cairn_batch_kv(&w->b, w->kv, rows->layer);
	struct cairn_attn_bsr_args args = {
		.size = sizeof(args), .out = o_of(w, stripe), .lse = lse_of(w, stripe), .q = rows->q,
		.q_pos = w->b.positions,
		WORKSPACE(w), .q_stride = rows->q_stride, .num_parts = 1, .nnz_qo = rows->num_rows,
		HEADS(&m->config), .dtype = m->dtype, .kv_fp8 = m->kv == CAIRN_KV_FP8,
		SCORES(&m->config, rows), .planned = take_plan(w, rows->window),
		.part[0] = {
			.k = kv.k_pages, .v = kv.v_pages, .row_indptr = past->qo_indptr,
			.k_scale = cairn_model_kv_scale(m, rows->layer, 0),
			.v_scale = cairn_model_kv_scale(m, rows->layer, 1),
			.blk_indptr = past->indptr, .blk_indices = past->indices,
			.last_len = past->last_page_len, .key_pos = past->key_pos,
			.rows = past->num_lists, .block_m = 1,
			.block_n = kv.page_size, .index_heads = 1, .num_blocks = kv.num_pages,
			.max_keys = kv.max_len, .mask_mode = CAIRN_ATTN_ALL,
		},
	};
	size_t bytes = 0;

	if (!w->asking)
		return CAIRN_TABLE(m->impl, attn_bsr, &args, w->stream);
	return m->impl->attn_bsr_workspace ?
	       ask(w, m->impl->attn_bsr_workspace(&args, &bytes), &bytes, "attn_bsr_workspace") : 0;
}

/* Without a window, rows see all previous keys, wherever they are. */
static int attend_past(struct cairn_attn_local *w, const struct cairn_attn_rows *rows, int stripe)
{
	const struct cairn_attn_past *past = &w->past[stripe];
	struct cairn_kv_view kv = cairn_batch_kv(&w->b, w->kv, rows->layer);

	if (rows->window || !w->m->impl->attn_paged)
		return attend_windowed(w, rows, stripe);
	kv.indptr = past->indptr;
	kv.indices = past->indices;
	kv.last_page_len = past->last_page_len;
	kv.batch = past->num_lists;
	return attend_lists(w, rows, o_of(w, stripe), lse_of(w, stripe), past->qo_indptr, &kv, 0);
}

/* ---- latent attention ---- */

/* Copies finished keys to the cache: to kv_append, they are one head of keys and, again, of values. */
static int append_keys(const struct cairn_attn_local *w, const struct cairn_attn_rows *rows)
{
	struct cairn_kv_append_args args = {
		.size = sizeof(args), .k = rows->k, .v = rows->k, .qo_indptr = w->b.qo_indptr,
		.kv = cairn_batch_kv(&w->b, w->kv, rows->layer), .k_stride = rows->kv_stride,
		.v_stride = rows->kv_stride, .nnz_qo = rows->num_rows, .num_kv_heads = 1,
		.head_dim = w->m->dims[CAIRN_D_LATENT], .dtype = w->m->dtype,
	};

	args.kv.v_pages = args.kv.k_pages;
	return w->asking ? 0 : CAIRN_TABLE(w->m->impl, kv_append, &args, w->stream);
}

static int append_latents(const struct cairn_attn_local *w, const struct cairn_attn_rows *rows)
{
	const struct cairn_model *m = w->m;
	const struct cairn_latent_config *l = &m->config.latent;
	struct cairn_mla_append_args args = {
		.size = sizeof(args), .q = w->q.q, .latent = rows->k,
		.norm_weight = cairn_model_weight(m, rows->layer, CAIRN_W_KV_NORM), .inv_freq = m->inv_freq,
		.positions = w->b.positions, .qo_indptr = w->b.qo_indptr,
		.kv = cairn_batch_kv(&w->b, w->kv, rows->layer), .nnz_qo = rows->num_rows,
		.num_heads = m->config.num_attention_heads, .nope_dim = l->nope_dim,
		.rope_dim = l->rope_dim, .kv_lora_rank = l->kv_lora_rank, .dtype = m->dtype,
		.eps = (float)CAIRN_LATENT_NORM_EPS,
	};

	return w->asking ? 0 : CAIRN_TABLE(m->impl, mla_append, &args, w->stream);
}

#define LATENT_HEADS(m)	.num_heads = (m)->config.num_attention_heads, \
	.kv_lora_rank = (m)->config.latent.kv_lora_rank, .nope_dim = (m)->config.latent.nope_dim, \
	.rope_dim = (m)->config.latent.rope_dim, .v_dim = (m)->config.latent.v_dim, \
	.dtype = (m)->dtype, .sm_scale = (float)cairn_softmax_scale(&(m)->config)

/* Attends for the first `requests` requests, which have num_rows rows. */
static int attend_latents(struct cairn_attn_local *w, int32_t layer, int32_t requests, int32_t num_rows)
{
	const struct cairn_model *m = w->m;
	struct cairn_mla_paged_args args = {
		.size = sizeof(args), .out = w->o, .q = w->q.q,
		.w_kv_b = cairn_model_weight(m, layer, CAIRN_W_KV_B), .qo_indptr = w->b.qo_indptr,
		.kv = cairn_batch_kv(&w->b, w->kv, layer), WORKSPACE(w), .nnz_qo = num_rows,
		.max_qo_len = w->b.max_qo_len, LATENT_HEADS(m),
	};
	size_t bytes = 0;

	args.kv.batch = requests;
	if (!w->asking)
		return CAIRN_TABLE(m->impl, mla_paged, &args, w->stream);
	return m->impl->mla_paged_workspace ?
	       ask(w, m->impl->mla_paged_workspace(&args, &bytes), &bytes, "mla_paged_workspace") : 0;
}

/* Each row is a request of its own, which sees all keys of its list. */
static int attend_past_latents(struct cairn_attn_local *w, const struct cairn_attn_rows *rows, int stripe)
{
	const struct cairn_model *m = w->m;
	const struct cairn_attn_past *past = &w->past[stripe];
	struct cairn_mla_paged_args args = {
		.size = sizeof(args), .out = o_of(w, stripe), .lse = lse_of(w, stripe), .q = rows->q,
		.w_kv_b = cairn_model_weight(m, rows->layer, CAIRN_W_KV_B), .qo_indptr = past->qo_indptr,
		.kv = cairn_batch_kv(&w->b, w->kv, rows->layer), WORKSPACE(w), .nnz_qo = rows->num_rows,
		.max_qo_len = 1, LATENT_HEADS(m),
	};
	size_t bytes = 0;

	args.kv.indptr = past->indptr;
	args.kv.indices = past->indices;
	args.kv.last_page_len = past->last_page_len;
	args.kv.batch = past->num_lists;
	if (!w->asking)
		return CAIRN_TABLE(m->impl, mla_paged, &args, w->stream);
	return m->impl->mla_paged_workspace ?
	       ask(w, m->impl->mla_paged_workspace(&args, &bytes), &bytes, "mla_paged_workspace") : 0;
}

/* Attends for the requests from number `first` on, whose rows begin at `row`, with expanded keys. */
static int attend_expanded(struct cairn_attn_local *w, int32_t layer, int32_t first, int32_t row)
{
	const struct cairn_model *m = w->m;
	const int64_t row_bytes = row * (int64_t)cairn_dtype_bytes(m->dtype);
	struct cairn_mla_prefill_args args = {
		.size = sizeof(args), .out = w->o + row_bytes * m->dims[CAIRN_D_ATTN],
		.q = (char *)w->q.q + row_bytes * m->dims[CAIRN_D_Q],
		.w_kv_b = cairn_model_weight(m, layer, CAIRN_W_KV_B), .qo_indptr = w->b.qo_indptr + first,
		.kv = cairn_batch_kv(&w->b, w->kv, layer), WORKSPACE(w), .nnz_qo = w->b.num_rows - row,
		.max_qo_len = w->b.max_qo_len, .nnz_past = w->b.prompt_past, LATENT_HEADS(m),
	};
	size_t bytes = 0;

	args.kv.indptr += first;
	args.kv.last_page_len += first;
	args.kv.batch -= first;
	if (!w->asking)
		return CAIRN_TABLE(m->impl, mla_prefill, &args, w->stream);
	return m->impl->mla_prefill_workspace ?
	       ask(w, m->impl->mla_prefill_workspace(&args, &bytes), &bytes, "mla_prefill_workspace") : 0;
}

/* As in cairn_forward(): requests with many rows at the end of the batch get expanded keys. */
static int attend_latent(struct cairn_attn_local *w, int32_t layer)
{
	const struct cairn_batch *b = &w->b;
	int expands = w->m->impl->mla_prefill && b->num_prompts;
	int32_t first = b->batch - (expands ? b->num_prompts : 0);
	int32_t row = b->num_rows - (expands ? b->prompt_rows : 0);

	if (first || !expands)
		CAIRN_TRY(attend_latents(w, layer, first, row));
	return expands ? attend_expanded(w, layer, first, row) : 0;
}

/* ---- the link ---- */

/* Attends to the previous keys of all stripes. */
static int attend_stripes(struct cairn_attn_local *w, const struct cairn_attn_rows *rows)
{
	for (int i = 0; i < w->link.previous; i++)
		CAIRN_TRY(cairn_model_is_latent(w->m) ? attend_past_latents(w, rows, i) :
			  attend_past(w, rows, i));
	return 0;
}

static int send_q(void *ctx, const struct cairn_attn_rows *rows, void *stream)
{
	struct cairn_attn_local *w = ctx;

	if (rows->num_rows != w->b.num_rows)
		return cairn_error(EINVAL, "attn_local: num_rows is %d, of a batch of %d", rows->num_rows,
				   w->b.num_rows);
	w->q = *rows;
	w->stream = stream;
	if (rows->layer == 0)
		w->has_plan = 0;	/* another pass: its lists may differ */
	return attend_stripes(w, rows);
}

static int send_kv(void *ctx, const struct cairn_attn_rows *rows, void *stream)
{
	struct cairn_attn_local *w = ctx;

	if (rows->layer != w->q.layer || rows->num_rows != w->q.num_rows)
		return cairn_error(EINVAL, "attn_local: k and v of layer %d after q of layer %d", rows->layer,
				   w->q.layer);
	w->stream = stream;
	if (cairn_model_is_latent(w->m) && w->link.previous)
		return append_keys(w, rows);
	if (cairn_model_is_latent(w->m)) {
		CAIRN_TRY(append_latents(w, rows));
		return attend_latent(w, rows->layer);
	}
	CAIRN_TRY(append(w, rows));
	return w->link.previous ? 0 : attend_all(w, &w->q);
}

static int receive(void *ctx, int32_t layer, void *o, float *lse, void *stream)
{
	struct cairn_attn_local *w = ctx;
	const struct cairn_impl *impl = w->m->impl;
	const size_t heads = (size_t)w->m->config.num_attention_heads;
	const size_t rows = (size_t)w->b.num_rows * (size_t)(w->link.previous ? w->link.previous : 1);

	if (layer != w->q.layer || !lse != !w->link.previous)
		return cairn_error(EINVAL, "attn_local: layer %d%s received, layer %d%s sent", layer,
				   lse ? " with lse" : "", w->q.layer, w->link.previous ? " with lse" : "");
	CAIRN_TRY(CAIRN_TABLE(impl, mem_copy, o, w->o, rows * (size_t)w->m->dims[CAIRN_D_ATTN] *
			      cairn_dtype_bytes(w->m->dtype), CAIRN_COPY_ON_DEVICE, stream));
	return lse ? CAIRN_TABLE(impl, mem_copy, lse, w->lse, rows * heads * sizeof(*lse),
				 CAIRN_COPY_ON_DEVICE, stream) : 0;
}

void cairn_attn_local_results(const struct cairn_attn_local *w, const void **o, const float **lse)
{
	*o = w->o;
	*lse = w->lse;
}

const struct cairn_attn_link *cairn_attn_local_link(struct cairn_attn_local *w)
{
	return &w->link;
}

/* ---- creation ---- */

static int check_table(const struct cairn_model *m, int previous)
{
	const struct cairn_impl *impl = m->impl;
	const char *missing = NULL;

	if (cairn_model_is_latent(m)) {
		missing = !impl->mla_paged ? "mla_paged" : previous && !impl->kv_append ? "kv_append" :
			  !previous && !impl->mla_append ? "mla_append" : NULL;
	} else {
		missing = !impl->kv_append ? "kv_append" : previous && !impl->attn_bsr ? "attn_bsr" :
			  !previous && !impl->attn_paged ? "attn_paged" : NULL;
	}
	return missing ? cairn_error(EOPNOTSUPP, "%s: attn_local: the table has no operation %s", impl->name,
				     missing) : 0;
}

int cairn_attn_local_create(struct cairn_attn_local **out, const struct cairn_model *m,
			    const struct cairn_kv_store *kv, int32_t max_rows, int previous)
{
	const size_t element = cairn_dtype_bytes(m->dtype);
	const size_t rows = (size_t)max_rows * (size_t)(previous ? previous : 1);
	struct cairn_attn_local *w;
	void *p;
	int ret;

	if (max_rows < 1)
		return cairn_error(EINVAL, "attn_local: max_rows is %d", max_rows);
	if (previous < 0 || previous > CAIRN_ATTN_STRIPES)
		return cairn_error(EINVAL, "attn_local: previous is %d", previous);
	CAIRN_TRY(check_table(m, previous));
	w = calloc(1, sizeof(*w));
	if (!w)
		return cairn_error(ENOMEM, "attn_local: no memory");
	w->link = (struct cairn_attn_link){ previous, send_q, send_kv, receive, w, NULL };
	w->m = m;
	w->kv = kv;
	w->max_rows = max_rows;
	ret = CAIRN_TABLE(m->impl, mem_alloc, &p, rows * (size_t)m->dims[CAIRN_D_ATTN] * element);
	if (!ret)
		w->o = p;
	if (!ret && previous)
		ret = CAIRN_TABLE(m->impl, mem_alloc, &p,
				  rows * (size_t)m->config.num_attention_heads * sizeof(*w->lse));
	if (!ret && previous)
		w->lse = p;
	if (ret)
		cairn_attn_local_destroy(w);
	else
		*out = w;
	return ret;
}

void cairn_attn_local_destroy(struct cairn_attn_local *w)
{
	if (!w)
		return;
	if (w->room.at)
		w->m->impl->mem_free(w->room.at);
	if (w->lse)
		w->m->impl->mem_free(w->lse);
	if (w->o)
		w->m->impl->mem_free(w->o);
	free(w);
}

/* Queries the workspace of every window; layers differ in nothing else. */
static int query(struct cairn_attn_local *w)
{
	const struct cairn_model_config *c = &w->m->config;

	for (int32_t i = 0; i < c->num_hidden_layers; i++) {
		const struct cairn_attn_rows rows = {
			.layer = i, .num_rows = w->b.num_rows, .window = cairn_layer_window(c, i),
		};

		if (i && rows.window == cairn_layer_window(c, i - 1))
			continue;
		if (w->link.previous)
			CAIRN_TRY(attend_stripes(w, &rows));
		else
			CAIRN_TRY(cairn_model_is_latent(w->m) ? attend_latent(w, rows.layer) :
				  attend_all(w, &rows));
	}
	return 0;
}

int cairn_attn_local_begin(struct cairn_attn_local *w, const struct cairn_batch *b,
			   const struct cairn_attn_past *past, void *stream, int *moved)
{
	int ret;

	if (b->num_rows < 1 || b->num_rows > w->max_rows || b->batch < !w->link.previous)
		return cairn_error(EINVAL, "attn_local: %d rows of %d requests, at most %d rows", b->num_rows,
				   b->batch, w->max_rows);
	if (w->link.previous && !past)
		return cairn_error(EINVAL, "attn_local: past: null pointer");
	w->b = *b;
	for (int i = 0; i < w->link.previous; i++)
		w->past[i] = past[i];
	w->asking = 1;
	w->asked = 0;
	ret = query(w);
	w->asking = 0;
	return ret ? ret : forward_reserve(w->m->impl, &w->room, w->asked, stream, moved);
}
