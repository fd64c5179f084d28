// SPDX-License-Identifier: Apache-2.0
/*
 * forward - runs the graph of a model's forward pass (model_graph.h), operation by operation
 *
 * The walk has two modes: it runs the operations, or it asks each for its workspace.
 *
 * The residual stream stays at one address. Each of its norms (ADD_NORM) first adds the output of the
 * previous half layer, so that a layer needs no launches for its two additions. Before moe only the addition
 * is needed, and the norm's result is scratch.
 *
 * Only rows whose logits are wanted go through the last norm and the output matrix. The embedding operation
 * gathers them, as rows of a table; if all rows are wanted, nothing is copied.
 *
 * With 8-bit activations, a norm or a gated activation gives its output as codes alone where a product is the
 * only reader, if the table's operation can (rmsnorm.h, silu_mul.h); else the product quantises its input.
 *
 * With few rows and 16-bit weights, the product for gate and up computes the activation after it, too, and
 * the product for q, k and v rotates them and appends k and v to the cache.
 *
 * Activations share memory where their lifetimes allow it (buffers.h).
 */
#include "serving/model/forward/forward_impl.h"

#include <math.h>
#include <stdlib.h>

#include "primitives/base/dtype.h"
#include "primitives/base/error.h"

#define MOE_FEW_ELEMENTS	32768	/* moe.h: rows times hidden, up to CAIRN_MOE_FEW rows */

const char *cairn_forward_missing(const struct cairn_impl *impl, const struct cairn_op_graph *g)
{
	const struct { const char *name; int have; } needs[CAIRN_NUM_OP_KINDS] = {
		[CAIRN_OP_EMBEDDING] = { "embedding", impl->embedding != NULL },
		[CAIRN_OP_NORM] = { "rmsnorm", impl->rmsnorm != NULL },
		[CAIRN_OP_ADD_NORM] = { "rmsnorm", impl->rmsnorm != NULL },
		[CAIRN_OP_GEMM] = { "gemm", impl->gemm != NULL },
		[CAIRN_OP_LM_HEAD] = { "gemm", impl->gemm != NULL },
		[CAIRN_OP_ROPE] = { "rope", impl->rope != NULL },
		[CAIRN_OP_KV_APPEND] = { "kv_append", impl->kv_append != NULL },
		[CAIRN_OP_ATTN] = { "attn_paged", impl->attn_paged != NULL },
		[CAIRN_OP_SILU_MUL] = { "silu_mul", impl->silu_mul != NULL },
		[CAIRN_OP_GELU_MUL] = { "silu_mul", impl->silu_mul != NULL },
		[CAIRN_OP_MOE] = { "moe", impl->moe != NULL },
		[CAIRN_OP_MLA_APPEND] = { "mla_append", impl->mla_append != NULL },
		[CAIRN_OP_MLA] = { "mla_paged", impl->mla_paged != NULL },
		[CAIRN_OP_PICK_ROWS] = { "embedding", impl->embedding != NULL },
		[CAIRN_OP_SOFTCAP] = { "penalize, which caps logits", impl->penalize != NULL },
		[CAIRN_OP_GATHER] = { "all_to_all", impl->all_to_all != NULL },
	};

	for (int32_t o = 0; o < g->num_ops; o++) {
		if (!needs[g->ops[o].kind].have)
			return needs[g->ops[o].kind].name;
		if (g->ops[o].kind == CAIRN_OP_ATTN && g->ops[o].num_weights && !impl->attn_merge)
			return "attn_merge, which adds sinks";
	}
	return NULL;
}

int cairn_forward_supported(const struct cairn_model *m)
{
	return !cairn_forward_missing(m->impl, m->graph);
}

struct cairn_pass_sizes forward_sizes(const struct cairn_model *m, int32_t max_rows, int32_t max_logits)
{
	uint8_t element = (uint8_t)cairn_dtype_bytes(m->dtype);

	return (struct cairn_pass_sizes){
		.dims = m->dims, .num_tokens = max_rows, .num_logits = max_logits,
		.element = { [CAIRN_ROLE_ACTIVATION] = element, [CAIRN_ROLE_LOGITS] = sizeof(float) },
	};
}

int cairn_scratch_create(struct cairn_scratch **out, const struct cairn_model *m, int32_t max_rows,
			 int32_t max_logits)
{
	struct cairn_pass_sizes sizes = forward_sizes(m, max_rows, max_logits);
	struct cairn_scratch *s;
	int64_t bytes;
	void *p;
	int ret;

	if (!cairn_forward_supported(m))
		return cairn_error(EOPNOTSUPP, "%s: forward: the table has no operation %s", m->impl->name,
				   cairn_forward_missing(m->impl, m->graph));
	s = calloc(1, sizeof(*s));
	if (!s)
		return cairn_error(ENOMEM, "scratch: no memory");
	s->model = m;
	s->max_rows = max_rows;
	s->max_logits = max_logits;
	ret = cairn_buffers_place(&s->buffers, m->graph, &sizes);
	bytes = s->buffers.bytes;
	if (!ret && m->context_ranks > 1)
		ret = (m->exchange == CAIRN_EXCHANGE_HEADS ? forward_context_create : forward_ring_create)
		      (s, &bytes);
	if (!ret)
		ret = CAIRN_TABLE(m->impl, mem_alloc, &p, (size_t)bytes);
	if (ret) {
		forward_context_destroy(s);
		forward_ring_destroy(s);
		cairn_buffers_free(&s->buffers);
		free(s);
		return ret;
	}
	s->base = p;
	s->bytes = (size_t)bytes;
	*out = s;
	return 0;
}

size_t cairn_scratch_bytes(const struct cairn_scratch *s)
{
	return s->bytes;
}

static void free_room(const struct cairn_scratch *s, const struct room *room)
{
	if (room->at)
		s->model->impl->mem_free(room->at);
}

void cairn_scratch_destroy(struct cairn_scratch *s)
{
	if (!s)
		return;
	for (int i = 0; i < FORWARD_LANES; i++)
		free_room(s, &s->lane[i]);
	for (int i = 0; i < FORWARD_SPLITS; i++)
		free_room(s, &s->attn[i]);
	free_room(s, &s->moe);
	free_room(s, &s->pages);
	s->model->impl->mem_free(s->base);
	forward_context_destroy(s);
	forward_ring_destroy(s);
	cairn_buffers_free(&s->buffers);
	free(s);
}

/* Returns the bytes of a row of an activation. */
static size_t row_bytes(const struct walk *w, const struct cairn_graph_value *v)
{
	return (size_t)w->m->dims[v->shape.width] *
	       (v->role == CAIRN_ROLE_LOGITS ? sizeof(float) : cairn_dtype_bytes(w->m->dtype));
}

char *forward_at(const struct walk *w, int32_t value)
{
	const struct cairn_graph_value *v = &w->g->values[w->g->values[value].storage];
	size_t skipped;

	/* If all rows are wanted, PICK_ROWS copies nothing: its result is its input. */
	while (v->producer >= 0 && w->g->ops[v->producer].forwards && !w->b->logit_rows)
		v = &w->g->values[w->g->values[w->g->ops[v->producer].in[0]].storage];
	if (w->own && w->own->offset[v - w->g->values] >= 0)
		return w->s->base + w->own_at + w->own->offset[v - w->g->values] * w->b->num_rows;
	if (w->buffers->offset[v - w->g->values] < 0)
		return (char *)w->b->logits;
	skipped = v->shape.rows == CAIRN_ROWS_TOKENS ? (size_t)w->first_row * row_bytes(w, v) : 0;
	return w->s->base + w->buffers->offset[v - w->g->values] + skipped;
}

/* Returns how many rows one call may have: moe.h limits rows times hidden of calls with few rows. */
static int32_t moe_rows_at_once(const struct cairn_moe_args *args)
{
	const int32_t most = MOE_FEW_ELEMENTS / args->hidden;

	return args->batch > CAIRN_MOE_FEW || args->batch < most ? args->batch : most;
}

static int run_moe_parts(struct walk *w, struct cairn_moe_args args)
{
	const int64_t row = (int64_t)args.hidden * (int64_t)cairn_dtype_bytes(args.dtype);
	const int32_t rows = args.batch, most = moe_rows_at_once(&args);

	if (most == rows || most == 0)
		return CAIRN_TABLE(w->m->impl, moe, &args, w->stream);
	for (int32_t first = 0; first < rows; first += most) {
		args.batch = rows - first < most ? rows - first : most;
		CAIRN_TRY(CAIRN_TABLE(w->m->impl, moe, &args, w->stream));
		args.x = (const char *)args.x + most * row;
		args.out = (char *)args.out + most * row;
	}
	return 0;
}

/* Returns the scales of experts in 8 bits, or those in bytes of experts in 4 bits, or NULL. */
static const float *expert_scale(const struct walk *w, const struct cairn_graph_op *op,
				 enum cairn_weight weight)
{
	const void *scale_w4 = cairn_model_scale_w4(w->m, op->layer, weight);

	return scale_w4 ? scale_w4 : forward_scale(w, op, weight);
}

static int run_moe(struct walk *w, const struct cairn_graph_op *op)
{
	const struct cairn_model *m = w->m;
	const struct cairn_experts_config *x = &m->config.experts;
	const float *route_bias = forward_weight(w, op, CAIRN_W_ROUTE_BIAS);
	struct cairn_moe_args args = {
		.size = sizeof(args), .out = forward_at(w, op->out[0]), .x = forward_at(w, op->in[0]),
		.norm_weight = forward_weight_at(w, op, 0),
		.w_router = forward_weight(w, op, CAIRN_W_ROUTER),
		.w_gate_up = forward_weight(w, op, CAIRN_W_EXPERTS_GATE_UP),
		.w_down = forward_weight(w, op, CAIRN_W_EXPERTS_DOWN),
		.w_shared_gate_up = forward_weight(w, op, CAIRN_W_SHARED_GATE_UP),
		.w_shared_down = forward_weight(w, op, CAIRN_W_SHARED_DOWN),
		FORWARD_WORKSPACE(w->s->moe),
		.batch = w->b->num_rows, .hidden = forward_width(w, op->in[0]), .num_experts = x->num_experts,
		.experts_per_token = x->per_token, .intermediate = x->intermediate_size,
		.shared_intermediate = x->shared_intermediate_size, .dtype = m->dtype,
		.normalize = x->normalize, .eps = (float)m->config.rms_norm_eps, .scaling = (float)x->scaling,
		.w_gate_up_scale = expert_scale(w, op, CAIRN_W_EXPERTS_GATE_UP),
		.w_down_scale = expert_scale(w, op, CAIRN_W_EXPERTS_DOWN), .w4 = cairn_model_experts_w4(m),
		.gate_up_factor = cairn_model_expert_factors(m, op->layer, CAIRN_W_EXPERTS_GATE_UP),
		.down_factor = cairn_model_expert_factors(m, op->layer, CAIRN_W_EXPERTS_DOWN),
		.w_shared_gate_up_scale = forward_scale(w, op, CAIRN_W_SHARED_GATE_UP),
		.w_shared_down_scale = forward_scale(w, op, CAIRN_W_SHARED_DOWN),
		.fp8w = cairn_weights_are_fp8(m->weights), .scale_kind = cairn_weights_scale_kind(m->weights),
		.route_bias = x->sigmoid ? route_bias : NULL, .logit_bias = x->sigmoid ? NULL : route_bias,
		.gate_up_bias = forward_weight(w, op, CAIRN_W_EXPERTS_GATE_UP_BIAS),
		.down_bias = forward_weight(w, op, CAIRN_W_EXPERTS_DOWN_BIAS),
		.activation = x->clamp_limit > 0 ? CAIRN_MOE_CLAMPED : CAIRN_MOE_SILU,
		.alpha = (float)x->clamp_alpha, .limit = (float)x->clamp_limit,
		.score = x->sigmoid ? CAIRN_MOE_SIGMOID : CAIRN_MOE_SOFTMAX, .num_groups = x->num_groups,
		.groups_per_token = x->groups_per_token, .no_residual = !op->overwrites[0],
	};
	size_t bytes = 0;

	/* no_residual: the output is a partial sum of this rank, to which the next norm adds x */
	if (!w->asking)
		return run_moe_parts(w, args);
	if (!m->impl->moe_workspace)
		return 0;
	args.batch = moe_rows_at_once(&args);
	return forward_ask_into(w, &w->moe_bytes, m->impl->moe_workspace(&args, &bytes), &bytes,
				"moe_workspace");
}

static int run_norm(struct walk *w, const struct cairn_graph_op *op)
{
	struct cairn_rmsnorm_args args = {
		.size = sizeof(args), .out = forward_at(w, op->out[0]),
		.residual = op->kind == CAIRN_OP_ADD_NORM ? forward_at(w, op->out[1]) : NULL,
		.x = forward_at(w, op->in[0]),
		.weight = forward_weight_at(w, op, 0), .rows = forward_rows(w, op->in[0]),
		.dim = forward_width(w, op->in[0]),
		.dtype = w->m->dtype,
		.eps = (float)(forward_weight(w, op, CAIRN_W_Q_NORM) ? CAIRN_LATENT_NORM_EPS :
			       w->m->config.rms_norm_eps),
		.weight_offset = (float)w->m->config.norm_offset,
	};
	struct cairn_quant_fp8w_args quant;

	if (op->collective)
		return forward_sum_norm(w, &args);
	if (forward_may_quantise(w, op, &quant)) {
		struct cairn_rmsnorm_args fused = args;
		int ret;

		fused.out = NULL;
		fused.q = quant.b;
		fused.q_scale = quant.scale;
		fused.q_kind = quant.scale_kind;
		ret = CAIRN_TABLE(w->m->impl, rmsnorm, &fused, w->stream);
		if (forward_has_quantised(w, op, ret))
			return ret;
	}
	return CAIRN_TABLE(w->m->impl, rmsnorm, &args, w->stream);
}

static int run_rope(struct walk *w, const struct cairn_graph_op *op)
{
	const struct cairn_model *m = w->m;
	const struct cairn_model_config *c = &m->config;
	char *q = forward_at(w, op->out[0]);
	struct cairn_rope_args args = {
		.size = sizeof(args), .q = q,
		.k = q + (size_t)m->dims[CAIRN_D_Q] * cairn_dtype_bytes(m->dtype),
		.inv_freq = m->inv_freq, .positions = w->b->positions,
		.q_stride = forward_width(w, op->out[0]), .k_stride = forward_width(w, op->out[0]),
		.nnz = w->b->num_rows,
		.num_qo_heads = c->num_attention_heads, .num_kv_heads = c->num_key_value_heads,
		.head_dim = c->head_dim, .rotary_dim = c->head_dim, .dtype = m->dtype, .scale = 1,
		.q_norm = forward_weight(w, op, CAIRN_W_Q_HEAD_NORM),
		.k_norm = forward_weight(w, op, CAIRN_W_K_HEAD_NORM),
		.norm_eps = (float)c->rms_norm_eps,
	};

	if (w->part != FORWARD_ALL) {
		args.k = NULL;
		args.q_stride = m->dims[CAIRN_D_Q];
	}
	if (w->part == FORWARD_KV) {
		args.q = q + (int64_t)args.nnz * m->dims[CAIRN_D_Q] * (int64_t)cairn_dtype_bytes(m->dtype);
		args.q_stride = 2 * (int64_t)m->dims[CAIRN_D_KV];
		args.num_qo_heads = c->num_key_value_heads;
		args.q_norm = args.k_norm;
	}
	return CAIRN_TABLE(m->impl, rope, &args, w->stream);
}

static int run_activation(struct walk *w, const struct cairn_graph_op *op)
{
	struct cairn_silu_mul_args args = {
		.size = sizeof(args), .out = forward_at(w, op->out[0]), .x = forward_at(w, op->in[0]),
		.rows = w->b->num_rows,
		.dim = forward_width(w, op->out[0]), .dtype = w->m->dtype,
		.activation = op->kind == CAIRN_OP_GELU_MUL,
	};
	struct cairn_quant_fp8w_args quant;

	if (forward_may_quantise(w, op, &quant)) {
		struct cairn_silu_mul_args fused = args;
		int ret;

		fused.out = NULL;
		fused.q = quant.b;
		fused.q_scale = quant.scale;
		fused.q_kind = quant.scale_kind;
		ret = CAIRN_TABLE(w->m->impl, silu_mul, &fused, w->stream);
		if (forward_has_quantised(w, op, ret))
			return ret;
	}
	return CAIRN_TABLE(w->m->impl, silu_mul, &args, w->stream);
}

/* Computes out[i] = table[ids[i]] * scale, with rows as wide as those of out; scale 0: no scaling. */
static int run_rows(struct walk *w, const struct cairn_graph_op *op, const void *table, int32_t table_rows,
		    const int32_t *ids, float scale)
{
	struct cairn_embedding_args args = {
		.size = sizeof(args), .out = forward_at(w, op->out[0]), .table = table, .ids = ids,
		.rows = forward_rows(w, op->out[0]), .dim = forward_width(w, op->out[0]), .vocab = table_rows,
		.dtype = w->m->dtype, .scale = scale,
	};

	return CAIRN_TABLE(w->m->impl, embedding, &args, w->stream);
}

static int run_embedding(struct walk *w, const struct cairn_graph_op *op)
{
	const struct cairn_model_config *c = &w->m->config;
	uint64_t scale = 0;	/* wide enough for any dtype */

	if (w->b->inputs)
		return CAIRN_TABLE(w->m->impl, mem_copy, forward_at(w, op->out[0]), w->b->inputs,
				   (size_t)w->b->num_rows * row_bytes(w, &w->g->values[op->out[0]]),
				   CAIRN_COPY_ON_DEVICE, w->stream);
	cairn_store(&scale, w->m->dtype, 0, c->embed_scale ? sqrt(c->hidden_size) : 0);
	return run_rows(w, op, forward_weight_at(w, op, 0), c->vocab_size, w->b->ids,
			(float)cairn_load(&scale, w->m->dtype, 0));
}

static int run_softcap(struct walk *w, const struct cairn_graph_op *op)
{
	struct cairn_penalize_args args = {
		.size = sizeof(args), .logits = w->b->logits, .rows = forward_rows(w, op->out[0]),
		.vocab = forward_width(w, op->out[0]), .softcap = (float)w->m->config.logit_softcap,
	};

	return CAIRN_TABLE(w->m->impl, penalize, &args, w->stream);
}

int forward_run_op(struct walk *w, const struct cairn_graph_op *op)
{
	if (w->covered && op <= w->covered)
		return 0;
	if (w->b->pages && (op->kind == CAIRN_OP_ATTN || op->kind == CAIRN_OP_MLA))
		return forward_pages(w, op);
	switch (op->kind) {
	case CAIRN_OP_GEMM:
	case CAIRN_OP_LM_HEAD:
		return forward_gemm(w, op);
	case CAIRN_OP_ATTN:
		return forward_attn(w, op);
	case CAIRN_OP_MLA:
		return forward_mla(w, op);
	case CAIRN_OP_MOE:
		return run_moe(w, op);
	default:
		break;
	}
	if (w->asking)		/* the operations below have no workspace */
		return 0;
	switch (op->kind) {
	case CAIRN_OP_EMBEDDING:
		return run_embedding(w, op);
	case CAIRN_OP_NORM:
	case CAIRN_OP_ADD_NORM:
		return run_norm(w, op);
	case CAIRN_OP_ROPE:
		return run_rope(w, op);
	case CAIRN_OP_KV_APPEND:
		return forward_kv_append(w, op);
	case CAIRN_OP_MLA_APPEND:
		return forward_mla_append(w, op);
	case CAIRN_OP_SILU_MUL:
	case CAIRN_OP_GELU_MUL:
		return run_activation(w, op);
	case CAIRN_OP_PICK_ROWS:
		return w->b->logit_rows ? run_rows(w, op, forward_at(w, op->in[0]), w->b->num_rows,
						   w->b->logit_rows, 0) : 0;
	case CAIRN_OP_SOFTCAP:
		return run_softcap(w, op);
	case CAIRN_OP_GATHER:
		return forward_gather(w, op);
	default:
		return cairn_error(EINVAL, "forward: '%s' has the unknown kind %d", op->name, (int)op->kind);
	}
}

int forward_check_batch(const struct cairn_scratch *s, const struct cairn_batch *b)
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

int forward_reserve(const struct cairn_impl *impl, struct room *room, size_t bytes, void *stream, int *moved)
{
	void *more;

	if (bytes <= room->bytes)
		return 0;
	CAIRN_TRY(CAIRN_TABLE(impl, stream_sync, stream));
	CAIRN_TRY(CAIRN_TABLE(impl, mem_alloc, &more, bytes));
	if (room->at)
		impl->mem_free(room->at);
	*room = (struct room){ .at = more, .bytes = bytes };
	*moved = 1;
	return 0;
}

/*
 * Layers differ only in whether they have experts, for which layers 0, 1 and the last one stand for all, and
 * in their windows, so the attention of every layer is asked.
 */
int forward_may_skip_query(const struct cairn_model *m, const struct cairn_graph_op *op)
{
	return op->layer > 1 && op->layer < m->config.num_hidden_layers - 1 && op->kind != CAIRN_OP_ATTN;
}

/*
 * The first workspace of attention, on a table whose attn_paged has one: as much as any decoding pass of the
 * table `cuda` needs. If the workspace grew when requests become uneven for the first time, captured passes
 * would be dropped in the middle of serving.
 */
#define FIRST_ATTN_BYTES	(16u << 20)

int cairn_scratch_reserve(struct cairn_scratch *s, const struct cairn_kv_store *kv,
			  const struct cairn_batch *b, void *stream, int *moved)
{
	const struct cairn_op_graph *g = s->model->graph;
	struct walk w = {
		.m = s->model, .g = g, .s = s, .buffers = &s->buffers, .kv = kv, .b = b, .asking = 1,
	};

	CAIRN_TRY(forward_check_batch(s, b));
	if (s->context)
		return forward_context_reserve(s, kv, b, stream, moved);
	if (b->ring)
		return forward_ring_reserve(s, kv, b, stream, moved);
	for (int32_t o = 0; o < g->num_ops; o++) {
		const struct cairn_graph_op *op = &g->ops[o];

		if (forward_may_skip_query(s->model, op))
			continue;
		if (op->block != CAIRN_BLOCK_HEAD || b->num_logits)
			CAIRN_TRY(forward_run_op(&w, op));
		if (op->kind == CAIRN_OP_ATTN && s->model->impl->attn_paged_workspace &&
		    w.attn_bytes < FIRST_ATTN_BYTES)
			w.attn_bytes = FIRST_ATTN_BYTES;
	}
	if (b->pages)
		CAIRN_TRY(forward_pages_reserve(s, b, stream, moved));
	CAIRN_TRY(forward_reserve(s->model->impl, &s->lane[0], w.workspace_bytes, stream, moved));
	CAIRN_TRY(forward_reserve(s->model->impl, &s->attn[0], w.attn_bytes, stream, moved));
	return forward_reserve(s->model->impl, &s->moe, w.moe_bytes, stream, moved);
}

int forward_zero_counters(const struct walk *w)
{
	struct walk asking = *w;
	int32_t o = 0;

	while (o < w->g->num_ops && w->g->ops[o].kind != CAIRN_OP_MOE)
		o++;
	if (o == w->g->num_ops || w->b->num_rows > CAIRN_MOE_FEW || cairn_model_experts_w4(w->m))
		return 0;		/* calls without counters (moe.h) */
	asking.asking = 1;
	CAIRN_TRY(forward_run_op(&asking, &w->g->ops[o]));
	if (!asking.moe_bytes)
		return 0;
	return CAIRN_TABLE(w->m->impl, mem_set, w->s->moe.at, 0, asking.moe_bytes, w->stream);
}

/*
 * Copies the residual stream to the taps of a layer, after the layer's first norm has completed it; in front
 * of layer 0, as it has come from another stage.
 */
static int run_taps(const struct walk *w, int32_t o)
{
	const struct cairn_graph_op *op = &w->g->ops[o];
	const int enters = op->kind == CAIRN_OP_EMBEDDING && w->b->inputs;
	const int32_t layer = enters ? 0 : op->layer, value = op->out[!enters];

	if (!enters && (op->kind != CAIRN_OP_ADD_NORM || op->layer < 1 ||
			w->g->ops[o - 1].layer == op->layer))
		return 0;
	for (int32_t k = 0; k < w->b->num_taps; k++) {
		if (w->b->tap_layers[k] == layer)
			CAIRN_TRY(CAIRN_TABLE(w->m->impl, mem_copy, w->b->taps + (size_t)k * w->b->tap_bytes,
					      forward_at(w, value), (size_t)w->b->num_rows *
					      row_bytes(w, &w->g->values[value]), CAIRN_COPY_ON_DEVICE,
					      w->stream));
	}
	return 0;
}

/* A stage that is not the last one has no last norm. Nobody reads its norms, so any other weight will do. */
static const void *last_norm(const struct cairn_model *m)
{
	const void *weight = cairn_model_weight(m, 0, CAIRN_W_FINAL_NORM);

	return weight ? weight : cairn_model_weight(m, 0, CAIRN_W_ATTN_NORM);
}

/*
 * Copies the residual stream of all rows to the caller's memory, and normalises it as for the output matrix.
 * o: the first operation of the head. If the last half layer's output must still be added to the stream, o
 * picks rows of that output, and o + 1 picks rows of the stream; otherwise o picks rows of the stream.
 */
static int keep_states(const struct walk *w, int32_t o)
{
	const struct cairn_graph_op *op = &w->g->ops[o];
	const int adds = op[1].kind == CAIRN_OP_PICK_ROWS;
	const int32_t stream = op[adds].in[0];
	struct cairn_rmsnorm_args args = {
		.size = sizeof(args), .out = w->b->normed, .residual = adds ? w->b->states : NULL,
		.x = adds ? forward_at(w, op->in[0]) : w->b->states,
		.weight = last_norm(w->m), .rows = w->b->num_rows,
		.dim = forward_width(w, stream), .dtype = w->m->dtype,
		.eps = (float)w->m->config.rms_norm_eps,
		.weight_offset = (float)w->m->config.norm_offset,
	};

	CAIRN_TRY(CAIRN_TABLE(w->m->impl, mem_copy, w->b->states, forward_at(w, stream),
			      (size_t)w->b->num_rows * row_bytes(w, &w->g->values[stream]),
			      CAIRN_COPY_ON_DEVICE, w->stream));
	return CAIRN_TABLE(w->m->impl, rmsnorm, &args, w->stream);
}

int cairn_forward(struct cairn_scratch *s, const struct cairn_kv_store *kv, const struct cairn_batch *b,
		  void *stream)
{
	const struct cairn_op_graph *g = s->model->graph;
	struct walk w = {
		.m = s->model, .g = g, .s = s, .buffers = &s->buffers, .kv = kv, .b = b, .stream = stream,
		.in_order = 1,
	};

	CAIRN_TRY(forward_check_batch(s, b));
	if (s->context)
		return forward_context(s, kv, b, stream);
	if (b->ring)
		return forward_ring(s, kv, b, stream);
	CAIRN_TRY(forward_zero_counters(&w));
	for (int32_t o = 0; o < g->num_ops; o++) {
		const struct cairn_graph_op *op = &g->ops[o];

		if (b->states && op->block == CAIRN_BLOCK_HEAD && g->ops[o - 1].block != CAIRN_BLOCK_HEAD)
			CAIRN_TRY(keep_states(&w, o));
		if (op->block == CAIRN_BLOCK_HEAD && !b->num_logits)
			break;
		if (b->on_layer && op->block == CAIRN_BLOCK_MLP && g->ops[o - 1].block == CAIRN_BLOCK_ATTN)
			CAIRN_TRY(b->on_layer(b->on_layer_ctx, op->layer, stream));
		CAIRN_TRY(forward_stripes_before(&w, op));
		CAIRN_TRY(forward_run_op(&w, op));
		CAIRN_TRY(forward_stripes_after(&w, op));
		if (b->num_taps)
			CAIRN_TRY(run_taps(&w, o));
	}
	return 0;
}
