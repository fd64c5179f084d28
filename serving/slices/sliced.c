// SPDX-License-Identifier: Apache-2.0
/* sliced - runs a pass of a model slice by slice (sliced.h) */
#include "serving/slices/sliced_impl.h"

#include <stdlib.h>

#include "primitives/base/dtype.h"
#include "primitives/base/error.h"
#include "serving/base/json.h"

_Static_assert((int)FORWARD_ALL == (int)CAIRN_PART_ALL && (int)FORWARD_Q == (int)CAIRN_PART_Q &&
	       (int)FORWARD_KV == (int)CAIRN_PART_KV, "parts of steps are parts of walks");

#define MAX_FILE	((size_t)64 << 20)

int cairn_sliced_load(struct cairn_slices **out, const struct cairn_model *m, const char *path)
{
	const struct cairn_pass_sizes sizes = forward_sizes(m, 1, 1);	/* of one token, as in the file */
	size_t num_bytes;
	char *text;
	int ret;

	CAIRN_TRY(cairn_read_file(path, MAX_FILE, &text, &num_bytes));
	ret = cairn_slices_read(out, m->graph, &sizes, text, num_bytes, path);
	free(text);
	return ret;
}

/* ---- placement ---- */

/* Returns the seam of the attention whose result step `step` of slice `slice` merges, or NULL. */
static const struct cairn_seam *merged_seam(const struct cairn_slices *s, int32_t slice,
					    const struct cairn_slice_step *step)
{
	return step->kind == CAIRN_STEP_MERGE && slice > 0 ? &s->seams[slice - 1] : NULL;
}

static void use(struct cairn_life *lives, const struct cairn_op_graph *g, int32_t value, int32_t step)
{
	struct cairn_life *l = &lives[g->values[value].storage];

	if (!l->end[0])
		l->begin[0] = step;
	l->end[0] = step + 1;
}

void sliced_lives(struct cairn_life *lives, const struct cairn_slices *s, const struct cairn_op_graph *g)
{
	int32_t slice = 0;

	for (int32_t i = 0; i < s->num_steps; i++) {
		const struct cairn_slice_step *step = &s->steps[i];
		const struct cairn_graph_op *op = &g->ops[step->op];
		const struct cairn_seam *merged;

		while (i >= s->slices[slice].first_step + s->slices[slice].num_steps)
			slice++;
		merged = merged_seam(s, slice, step);
		if (step->kind == CAIRN_STEP_SEND_Q || step->kind == CAIRN_STEP_SEND_KV)
			use(lives, g, s->seams[slice].q, i);
		if (step->kind == CAIRN_STEP_SEND_KV)
			use(lives, g, s->seams[slice].kv, i);
		if (merged) {	/* a merge may attend to own keys */
			use(lives, g, merged->q, i);
			use(lives, g, merged->kv, i);
		}
		for (int32_t k = 0; step->kind == CAIRN_STEP_OP && k < op->num_in; k++)
			use(lives, g, op->in[k], i);
		for (int32_t k = 0; k < op->num_out && (step->kind == CAIRN_STEP_OP ||
							step->kind == CAIRN_STEP_MERGE); k++)
			use(lives, g, op->out[k], i);
	}
	for (int32_t i = s->num_steps - 1; i >= 0; i--) {
		const struct cairn_graph_op *op = &g->ops[s->steps[i].op];
		struct cairn_life *in, *out;

		if (s->steps[i].kind != CAIRN_STEP_OP || !op->forwards)
			continue;
		in = &lives[g->values[op->in[0]].storage];
		out = &lives[g->values[op->out[0]].storage];
		if (out->end[0] > in->end[0])
			in->end[0] = out->end[0];
	}
}

/* Places the activations, and grows the scratch if they need more memory. */
static int place(struct cairn_sliced *s)
{
	struct cairn_scratch *c = s->scratch;
	const struct cairn_op_graph *g = c->model->graph;
	struct cairn_pass_sizes sizes = forward_sizes(c->model, c->max_rows, c->max_logits);
	struct cairn_life *lives = calloc((size_t)g->num_values + 1, sizeof(*lives));
	void *more;
	int ret;

	if (!lives)
		return cairn_error(ENOMEM, "sliced: no memory");
	sliced_lives(lives, s->slices, g);
	ret = cairn_buffers_place_lives(&s->buffers, g, &sizes, lives, 1, NULL);
	free(lives);
	if (ret || (size_t)s->buffers.bytes <= c->bytes)
		return ret;
	CAIRN_TRY(CAIRN_TABLE(c->model->impl, mem_alloc, &more, (size_t)s->buffers.bytes));
	c->model->impl->mem_free(c->base);
	c->base = more;
	c->bytes = (size_t)s->buffers.bytes;
	return 0;
}

int cairn_sliced_create(struct cairn_sliced **out, struct cairn_scratch *scratch,
			const struct cairn_slices *slices, enum cairn_sliced_form form)
{
	struct cairn_sliced *s;
	int ret;

	if (slices->num_slices != scratch->model->graph->num_attn + 1)
		return cairn_error(EINVAL, "sliced: num_slices is %d, of a model with %d attention operators",
				   slices->num_slices, scratch->model->graph->num_attn);
	if (scratch->model->config.sinks)
		return cairn_error(EOPNOTSUPP, "sliced: attention sinks are not supported in slices, which "
				   "attention workers need");
	s = calloc(1, sizeof(*s));
	if (!s)
		return cairn_error(ENOMEM, "sliced: no memory");
	s->scratch = scratch;
	s->slices = slices;
	s->form = form;
	ret = place(s);
	if (ret)
		cairn_sliced_destroy(s);
	else
		*out = s;
	return ret;
}

static void free_room(const struct cairn_sliced *s, const struct room *room)
{
	if (room->at)
		s->scratch->model->impl->mem_free(room->at);
}

void cairn_sliced_destroy(struct cairn_sliced *s)
{
	if (!s)
		return;
	free_room(s, &s->o);
	free_room(s, &s->lse);
	free_room(s, &s->keys);
	free_room(s, &s->lists);
	free_room(s, &s->own);
	cairn_buffers_free(&s->buffers);
	free(s);
}

/* ---- attention ---- */

/* Returns the rows that a seam sends. */
static struct cairn_attn_rows rows_of(struct sliced_pass *p, const struct cairn_seam *seam)
{
	const struct cairn_model *m = p->w.m;
	const int32_t *dims = m->dims;
	const struct cairn_graph_op *attn = &p->w.g->ops[seam->attn];
	const size_t element = cairn_dtype_bytes(m->dtype);
	char *q = forward_at(&p->w, seam->q);
	struct cairn_attn_rows rows = {
		.layer = attn->layer, .num_rows = p->w.b->num_rows, .window = attn->window, .q = q,
		.q_stride = dims[CAIRN_D_Q], .k = forward_at(&p->w, seam->kv),
		.kv_stride = dims[CAIRN_D_LATENT],
	};

	if (seam->q != seam->kv)
		return rows;
	if (p->s->form == CAIRN_SLICED_ROWS) {
		rows.q_stride = rows.kv_stride = dims[CAIRN_D_QKV];
		rows.k = q + (size_t)dims[CAIRN_D_Q] * element;
	} else {
		rows.kv_stride = 2 * (int64_t)dims[CAIRN_D_KV];
		rows.k = q + (size_t)rows.num_rows * (size_t)dims[CAIRN_D_Q] * element;
	}
	rows.v = (const char *)rows.k + (size_t)dims[CAIRN_D_KV] * element;
	return rows;
}

static int64_t state_bytes(const struct cairn_model *m, int32_t num_rows)
{
	return (int64_t)num_rows * m->dims[CAIRN_D_ATTN] * (int64_t)cairn_dtype_bytes(m->dtype);
}

/* Returns where the states are: in the link's memory if it has some. */
static void *states_of(const struct sliced_pass *p, float **lse)
{
	void *o = p->s->o.at;

	*lse = p->s->lse.at;
	if (p->link->states)
		p->link->states(p->link->ctx, &o, lse);
	return o;
}

/* The result for the pass's own keys, unless merges_own(), lies behind those of the stripes. */
static char *own_state(const struct sliced_pass *p, float **lse)
{
	char *o = states_of(p, lse);

	*lse += (int64_t)p->link->previous * p->w.b->num_rows * p->w.m->config.num_attention_heads;
	return o + p->link->previous * state_bytes(p->w.m, p->w.b->num_rows);
}

/*
 * The pass's own latents as a cache: row i is page i, which has one slot. So a request's first page is its
 * first row, and qo_indptr lists the pages of requests, too.
 */
static struct cairn_kv_view own_latents(const struct sliced_pass *p)
{
	const struct cairn_batch *b = p->w.b;
	const int32_t *lists = p->s->lists.at, rows = p->s->scratch->max_rows;

	return (struct cairn_kv_view){
		.k_pages = p->s->keys.at, .indptr = b->qo_indptr, .indices = lists,
		.last_page_len = lists + rows, .num_pages = rows, .page_size = 1, .batch = b->batch,
		.max_len = b->max_qo_len,
	};
}

/*
 * Returns whether the merge attends to the pass's own keys: each request has one row, and so each row one own
 * key. The tiles of attn_dense are for many rows, so they would take longer. No window leaves out a row's own
 * key.
 */
static int merges_own(const struct sliced_pass *p)
{
	return p->link->previous && p->w.b->max_qo_len == 1 && !cairn_model_is_latent(p->w.m);
}

/*
 * Attends to the pass's own keys and values, which are in the same rows as its queries. If w.asking, only
 * sets *bytes to the workspace that this needs.
 */
static int attend_own_heads(struct sliced_pass *p, const struct cairn_attn_rows *rows, size_t *bytes)
{
	const struct cairn_model *m = p->w.m;
	const struct cairn_model_config *c = &m->config;
	const struct cairn_batch *b = p->w.b;
	struct cairn_sliced *s = p->s;
	float *lse;
	void *o = own_state(p, &lse);
	struct cairn_attn_dense_args args = {
		.size = sizeof(args), .out = o, .lse = lse,
		.q = rows->q, .k = rows->k, .v = rows->v, .qo_indptr = b->qo_indptr,
		.kv_indptr = b->qo_indptr, .workspace = s->own.at, .workspace_bytes = s->own.bytes,
		.q_stride = rows->q_stride, .k_stride = rows->kv_stride, .v_stride = rows->kv_stride,
		.batch = b->batch, .nnz_qo = rows->num_rows, .nnz_kv = rows->num_rows,
		.max_qo_len = b->max_qo_len, .max_kv_len = b->max_qo_len,
		.num_qo_heads = c->num_attention_heads, .num_kv_heads = c->num_key_value_heads,
		.qk_dim = c->head_dim, .v_dim = c->head_dim, .dtype = m->dtype, .causal = 1,
		.sm_scale = (float)cairn_softmax_scale(c), .window = rows->window,
		.softcap = (float)c->attn_softcap,
	};

	if (!p->w.asking)
		return CAIRN_TABLE(m->impl, attn_dense, &args, p->w.stream);
	if (!m->impl->attn_dense_workspace)
		return 0;
	return cairn_table_ret(m->impl, m->impl->attn_dense_workspace(&args, bytes), "attn_dense_workspace");
}

static int attend_own_latents(struct sliced_pass *p, const struct cairn_attn_rows *rows, size_t *bytes)
{
	const struct cairn_model *m = p->w.m;
	const struct cairn_latent_config *l = &m->config.latent;
	float *lse;
	void *o = own_state(p, &lse);
	struct cairn_mla_paged_args args = {
		.size = sizeof(args), .out = o, .lse = lse, .q = rows->q,
		.w_kv_b = cairn_model_weight(m, rows->layer, CAIRN_W_KV_B), .qo_indptr = p->w.b->qo_indptr,
		.kv = own_latents(p), .workspace = p->s->own.at,
		.workspace_bytes = p->s->own.bytes,
		.nnz_qo = rows->num_rows, .max_qo_len = p->w.b->max_qo_len,
		.num_heads = m->config.num_attention_heads, .kv_lora_rank = l->kv_lora_rank,
		.nope_dim = l->nope_dim, .rope_dim = l->rope_dim, .v_dim = l->v_dim, .dtype = m->dtype,
		.sm_scale = (float)cairn_softmax_scale(&m->config),
	};

	if (!p->w.asking)
		return CAIRN_TABLE(m->impl, mla_paged, &args, p->w.stream);
	if (!m->impl->mla_paged_workspace)
		return 0;
	return cairn_table_ret(m->impl, m->impl->mla_paged_workspace(&args, bytes), "mla_paged_workspace");
}

static int attend_own(struct sliced_pass *p, const struct cairn_attn_rows *rows, size_t *bytes)
{
	if (merges_own(p))
		return 0;
	return cairn_model_is_latent(p->w.m) ? attend_own_latents(p, rows, bytes) :
	       attend_own_heads(p, rows, bytes);
}

/* Rotates the queries, and makes the pass's own keys. */
static int make_own_latents(struct sliced_pass *p, const struct cairn_attn_rows *rows)
{
	const struct cairn_model *m = p->w.m;
	const struct cairn_latent_config *l = &m->config.latent;
	struct cairn_mla_append_args args = {
		.size = sizeof(args), .q = rows->q, .latent = rows->k,
		.norm_weight = cairn_model_weight(m, rows->layer, CAIRN_W_KV_NORM), .inv_freq = m->inv_freq,
		.positions = p->w.b->positions, .qo_indptr = p->w.b->qo_indptr,
		.kv = own_latents(p),
		.nnz_qo = rows->num_rows, .num_heads = m->config.num_attention_heads,
		.nope_dim = l->nope_dim, .rope_dim = l->rope_dim, .kv_lora_rank = l->kv_lora_rank,
		.dtype = m->dtype, .eps = (float)CAIRN_LATENT_NORM_EPS,
	};

	return CAIRN_TABLE(m->impl, mla_append, &args, p->w.stream);
}

/* Returns the arguments of the merge behind a seam, of the first num_rows rows. */
static struct cairn_attn_merge_args merge_args(struct sliced_pass *p, const struct cairn_seam *seam,
					       int32_t num_rows)
{
	const struct cairn_model *m = p->w.m;
	const struct cairn_model_config *c = &m->config;
	const struct cairn_attn_rows rows = rows_of(p, seam);
	float *lse;
	void *o = states_of(p, &lse);
	struct cairn_attn_merge_args args = {
		.size = sizeof(args), .out = forward_at(&p->w, p->w.g->ops[seam->attn].out[0]), .o = o,
		.lse = lse, .num_states = p->link->previous + !merges_own(p), .rows = num_rows,
		.num_heads = c->num_attention_heads,
		.head_dim = m->dims[CAIRN_D_ATTN] / c->num_attention_heads, .dtype = m->dtype,
		.out_dtype = m->dtype,
	};

	if (merges_own(p)) {
		args.q = rows.q;
		args.k = rows.k;
		args.v = rows.v;
		args.q_stride = rows.q_stride;
		args.kv_stride = rows.kv_stride;
		args.num_kv_heads = c->num_key_value_heads;
		args.sm_scale = (float)cairn_softmax_scale(c);
		args.softcap = (float)c->attn_softcap;
	}
	return args;
}

static int merge(struct sliced_pass *p, const struct cairn_seam *seam)
{
	const struct cairn_attn_merge_args args = merge_args(p, seam, p->w.b->num_rows);
	const int32_t layer = p->w.g->ops[seam->attn].layer;

	if (!p->link->previous)
		return p->link->receive(p->link->ctx, layer, args.out, NULL, p->w.stream);
	CAIRN_TRY(p->link->receive(p->link->ctx, layer, (void *)args.o, (float *)args.lse, p->w.stream));
	return CAIRN_TABLE(p->w.m->impl, attn_merge, &args, p->w.stream);
}

/* Queries of latent attention for previous keys are rotated first, which needs the latents. */
static int waits_for_latents(const struct sliced_pass *p)
{
	return p->link->previous && cairn_model_is_latent(p->w.m);
}

static int send_q(struct sliced_pass *p, const struct cairn_seam *seam)
{
	const struct cairn_attn_rows rows = rows_of(p, seam);

	return waits_for_latents(p) ? 0 : p->link->send_q(p->link->ctx, &rows, p->w.stream);
}

static int send_kv(struct sliced_pass *p, const struct cairn_seam *seam)
{
	struct cairn_attn_rows rows = rows_of(p, seam);

	if (waits_for_latents(p)) {
		CAIRN_TRY(make_own_latents(p, &rows));
		rows.k = p->s->keys.at;
		CAIRN_TRY(p->link->send_q(p->link->ctx, &rows, p->w.stream));
	}
	CAIRN_TRY(p->link->send_kv(p->link->ctx, &rows, p->w.stream));
	return p->link->previous ? attend_own(p, &rows, NULL) : 0;
}

/* ---- a pass ---- */

static int run_op(struct sliced_pass *p, const struct cairn_slice_step *step)
{
	const struct cairn_graph_op *op = &p->w.g->ops[step->op];

	if (op->block == CAIRN_BLOCK_HEAD && !p->w.b->num_logits)
		return 0;
	p->w.part = (enum forward_part)step->part;
	if (p->s->form == CAIRN_SLICED_ROWS && step->part == CAIRN_PART_KV)
		return 0;	/* they came with the columns of q */
	if (p->s->form == CAIRN_SLICED_ROWS)
		p->w.part = FORWARD_ALL;
	return forward_run_op(&p->w, op);
}

/* Reports to the pass's caller that a layer's attention is complete, before the layer's MLP. */
static int tell_layer(struct sliced_pass *p, const struct cairn_slice_step *step)
{
	const struct cairn_graph_op *op = &p->w.g->ops[step->op];
	const struct cairn_batch *b = p->w.b;
	int was = p->in_attention;

	if (step->kind != CAIRN_STEP_OP && step->kind != CAIRN_STEP_MERGE)
		return 0;
	p->in_attention = op->block == CAIRN_BLOCK_ATTN;
	return was && op->block == CAIRN_BLOCK_MLP && b->on_layer ?
	       b->on_layer(b->on_layer_ctx, op->layer, p->w.stream) : 0;
}

static int run_slice(struct sliced_pass *p, int32_t index)
{
	const struct cairn_slices *all = p->s->slices;
	const struct cairn_slice *slice = &all->slices[index];

	for (int32_t i = 0; i < slice->num_steps; i++) {
		const struct cairn_slice_step *step = &all->steps[slice->first_step + i];
		const struct cairn_seam *seam = &all->seams[index];

		CAIRN_TRY(tell_layer(p, step));
		switch (step->kind) {
		case CAIRN_STEP_OP:
			CAIRN_TRY(run_op(p, step));
			break;
		case CAIRN_STEP_SEND_Q:
			CAIRN_TRY(send_q(p, seam));
			break;
		case CAIRN_STEP_SEND_KV:
			CAIRN_TRY(send_kv(p, seam));
			break;
		case CAIRN_STEP_MERGE:
			CAIRN_TRY(merge(p, merged_seam(all, index, step)));
			break;
		}
	}
	return 0;
}

static struct sliced_pass begin_pass(struct cairn_sliced *s, const struct cairn_batch *b,
			      const struct cairn_attn_link *link, void *stream)
{
	return (struct sliced_pass){
		.s = s, .link = link,
		.w = { .m = s->scratch->model, .g = s->scratch->model->graph, .s = s->scratch, .b = b,
		       .buffers = &s->buffers, .stream = stream },
	};
}

static int check_link(const struct sliced_pass *p)
{
	const struct cairn_impl *impl = p->w.m->impl;
	const char *missing;

	if (!p->link->previous)
		return 0;
	if (cairn_model_is_latent(p->w.m))
		missing = !impl->mla_append ? "mla_append" : !impl->mla_paged ? "mla_paged" : NULL;
	else
		missing = impl->attn_dense ? NULL : "attn_dense";
	if (!missing && !impl->attn_merge)
		missing = "attn_merge";
	return missing ? cairn_error(EOPNOTSUPP, "%s: sliced: the table has no operation %s", impl->name,
				     missing) : 0;
}

/* Lists the own latents as pages: all numbers in order, then a 1 for each request. */
static int reserve_lists(struct sliced_pass *p, int *moved)
{
	const struct cairn_impl *impl = p->w.m->impl;
	struct cairn_sliced *s = p->s;
	const size_t rows = (size_t)s->scratch->max_rows, bytes = 2 * rows * sizeof(int32_t);
	int32_t *lists;
	int ret;

	if (s->lists.at)
		return 0;
	CAIRN_TRY(forward_reserve(impl, &s->lists, bytes, p->w.stream, moved));
	lists = malloc(bytes);
	if (!lists)
		return cairn_error(ENOMEM, "sliced: no memory");
	for (size_t i = 0; i < rows; i++) {
		lists[i] = (int32_t)i;
		lists[rows + i] = 1;
	}
	ret = CAIRN_TABLE(impl, mem_copy, s->lists.at, lists, bytes, CAIRN_COPY_TO_DEVICE, p->w.stream);
	if (!ret)
		ret = CAIRN_TABLE(impl, stream_sync, p->w.stream);
	free(lists);
	return ret;
}

/* Refuses a table whose attn_merge does not know own keys before anything is sent; no row is merged. */
static int ask_merge(struct sliced_pass *p)
{
	const struct cairn_attn_merge_args args = merge_args(p, &p->s->slices->seams[0], 0);

	return CAIRN_TABLE(p->w.m->impl, attn_merge, &args, p->w.stream);
}

/* Makes room for all states and for the attention to own keys. */
static int reserve_states(struct sliced_pass *p, int *moved)
{
	const struct cairn_model *m = p->w.m;
	struct cairn_sliced *s = p->s;
	const size_t rows = (size_t)s->scratch->max_rows * (size_t)(p->link->previous + 1);
	size_t most = 0;

	if (!p->link->states) {
		CAIRN_TRY(forward_reserve(m->impl, &s->o, rows * (size_t)state_bytes(m, 1), p->w.stream,
					  moved));
		CAIRN_TRY(forward_reserve(m->impl, &s->lse, rows * (size_t)m->config.num_attention_heads *
					  sizeof(float), p->w.stream, moved));
	}
	if (cairn_model_is_latent(m)) {
		CAIRN_TRY(forward_reserve(m->impl, &s->keys, (size_t)s->scratch->max_rows *
					  cairn_model_key_bytes(m), p->w.stream, moved));
		CAIRN_TRY(reserve_lists(p, moved));
	}
	for (int32_t i = 0; i + 1 < s->slices->num_slices; i++) {
		const struct cairn_attn_rows own = rows_of(p, &s->slices->seams[i]);
		size_t bytes = 0;

		CAIRN_TRY(attend_own(p, &own, &bytes));
		most = bytes > most ? bytes : most;
	}
	CAIRN_TRY(forward_reserve(m->impl, &s->own, most, p->w.stream, moved));
	return merges_own(p) ? ask_merge(p) : 0;
}

int cairn_sliced_reserve(struct cairn_sliced *s, const struct cairn_batch *b,
			 const struct cairn_attn_link *link, void *stream, int *moved)
{
	struct cairn_scratch *c = s->scratch;
	struct sliced_pass p = begin_pass(s, b, link, stream);

	CAIRN_TRY(forward_check_batch(c, b));
	CAIRN_TRY(check_link(&p));
	p.w.asking = 1;
	for (int32_t i = 0; i < s->slices->num_steps; i++) {
		const struct cairn_slice_step *step = &s->slices->steps[i];

		if (step->kind == CAIRN_STEP_OP && !forward_may_skip_query(c->model, &p.w.g->ops[step->op]))
			CAIRN_TRY(run_op(&p, step));
	}
	CAIRN_TRY(forward_reserve(c->model->impl, &c->lane[0], p.w.workspace_bytes, stream, moved));
	CAIRN_TRY(forward_reserve(c->model->impl, &c->moe, p.w.moe_bytes, stream, moved));
	return link->previous ? reserve_states(&p, moved) : 0;
}

int cairn_sliced_begin(struct cairn_sliced *s, const struct cairn_batch *b,
		       const struct cairn_attn_link *link, void *stream, int32_t *left)
{
	s->pass = begin_pass(s, b, link, stream);
	CAIRN_TRY(forward_check_batch(s->scratch, b));
	CAIRN_TRY(check_link(&s->pass));
	CAIRN_TRY(forward_zero_counters(&s->pass.w));
	return cairn_sliced_turn(s, left);
}

int cairn_sliced_turn(struct cairn_sliced *s, int32_t *left)
{
	CAIRN_TRY(run_slice(&s->pass, s->pass.next));
	*left = s->slices->num_slices - ++s->pass.next;
	return 0;
}

int cairn_sliced_forward(struct cairn_sliced *s, const struct cairn_batch *b,
			 const struct cairn_attn_link *link, void *stream)
{
	int32_t left;

	CAIRN_TRY(cairn_sliced_begin(s, b, link, stream, &left));
	while (left)
		CAIRN_TRY(cairn_sliced_turn(s, &left));
	return 0;
}
