// SPDX-License-Identifier: Apache-2.0
/* decode - calls decode_step: builds its arguments, keeps its workspace, and decides when it is supported */
#include "serving/model/forward/decode.h"

#include <stdlib.h>

#include "primitives/base/dtype.h"
#include "primitives/base/error.h"
#include "serving/model/model_graph.h"

const char *const cairn_decode_path_names[] = { "auto", "graph", "persistent", "unfused", NULL };

/* The properties of a pass that determine the size of the workspace. */
struct shape {
	int32_t batch, max_kv_len;
	int sampled;
};

struct cairn_decoder {
	const struct cairn_model *model;
	enum cairn_decode_path path;
	int there;			/* the table has decode_step, and it supports the model */
	int32_t too_many;		/* the smallest batch that a call has refused; 0: none */
	struct shape last;		/* the last pass prepared */
	int last_fits;			/* decode_step supports that pass */
	void *workspace;
	size_t workspace_bytes;
};

static struct cairn_decode_step_args make_args(const struct cairn_decoder *d, const struct cairn_kv_store *kv,
					       const struct cairn_batch *b, const struct cairn_draw *draw)
{
	static const int forms[] = {
		[CAIRN_DECODE_AUTO] = CAIRN_DECODE_STEP_AUTO, [CAIRN_DECODE_GRAPH] = CAIRN_DECODE_STEP_GRAPH,
		[CAIRN_DECODE_PERSISTENT] = CAIRN_DECODE_STEP_PERSISTENT, [CAIRN_DECODE_UNFUSED] = -1,
	};
	const struct cairn_model *m = d->model;
	const struct cairn_model_config *c = &m->config;
	const struct cairn_latent_config *l = &c->latent;
	const struct cairn_experts_config *x = &c->experts;
	const char *head = cairn_model_weight(m, 0, CAIRN_W_LM_HEAD);

	return (struct cairn_decode_step_args){
		.size = sizeof(struct cairn_decode_step_args), .logits = b->logits, .tokens = draw->tokens,
		.ids = b->ids,
		.embed = cairn_model_weight(m, 0, CAIRN_W_EMBED),
		.lm_head = head + cairn_model_head_at(m),
		.final_norm = cairn_model_weight(m, 0, CAIRN_W_FINAL_NORM),
		.attn_norm = cairn_model_weight(m, 0, CAIRN_W_ATTN_NORM),
		.w_qkv = cairn_model_weight(m, 0, CAIRN_W_QKV),
		.b_qkv = cairn_model_weight(m, 0, CAIRN_W_QKV_BIAS),
		.w_o = cairn_model_weight(m, 0, CAIRN_W_O),
		.b_o = m->rank ? NULL : cairn_model_weight(m, 0, CAIRN_W_O_BIAS),
		.mlp_norm = cairn_model_weight(m, 0, CAIRN_W_MLP_NORM),
		.w_gate_up = cairn_model_weight(m, 0, CAIRN_W_GATE_UP),
		.w_down = cairn_model_weight(m, 0, CAIRN_W_DOWN), .inv_freq = m->inv_freq,
		.positions = b->positions, .kv = cairn_batch_kv(b, kv, 0), .temperature = draw->temperature,
		.top_p = draw->top_p, .min_p = draw->min_p, .top_k = draw->top_k, .seed = draw->seed,
		.offset = draw->offset, .workspace = d->workspace, .workspace_bytes = d->workspace_bytes,
		.layer_stride_bytes = (int64_t)m->layer_bytes,
		.kv_stride_bytes = (int64_t)kv->layer_bytes,
		.num_layers = c->num_hidden_layers, .hidden = c->hidden_size,
		.intermediate = c->intermediate_size, .num_qo_heads = c->num_attention_heads,
		.num_kv_heads = l->kv_lora_rank ? 1 : c->num_key_value_heads, .head_dim = c->head_dim,
		.vocab = c->vocab_size, .dtype = m->dtype, .form = forms[d->path],
		.eps = (float)c->rms_norm_eps, .sm_scale = (float)cairn_softmax_scale(c),
		.w_q = cairn_model_weight(m, 0, CAIRN_W_Q), .w_q_a = cairn_model_weight(m, 0, CAIRN_W_Q_A),
		.q_norm = cairn_model_weight(m, 0, CAIRN_W_Q_NORM),
		.w_kv_a = cairn_model_weight(m, 0, CAIRN_W_KV_A),
		.kv_norm = cairn_model_weight(m, 0, CAIRN_W_KV_NORM),
		.w_kv_b = cairn_model_weight(m, 0, CAIRN_W_KV_B),
		.w_router = cairn_model_weight(m, x->dense_layers, CAIRN_W_ROUTER),
		.w_experts_gate_up = cairn_model_weight(m, x->dense_layers, CAIRN_W_EXPERTS_GATE_UP),
		.w_experts_down = cairn_model_weight(m, x->dense_layers, CAIRN_W_EXPERTS_DOWN),
		.w_shared_gate_up = cairn_model_weight(m, x->dense_layers, CAIRN_W_SHARED_GATE_UP),
		.w_shared_down = cairn_model_weight(m, x->dense_layers, CAIRN_W_SHARED_DOWN),
		.q_lora_rank = l->q_lora_rank, .kv_lora_rank = l->kv_lora_rank, .nope_dim = l->nope_dim,
		.rope_dim = l->rope_dim, .v_dim = l->v_dim, .num_experts = x->num_experts,
		.experts_per_token = x->per_token, .expert_intermediate = x->intermediate_size,
		.shared_intermediate = x->shared_intermediate_size, .dense_layers = x->dense_layers,
		.normalize_experts = x->normalize, .expert_scaling = (float)x->scaling,
	};
}

/*
 * Returns whether decode_step, or decode_step_ranks, supports the model; windows are checked for each pass. A
 * rank of a ring has all weights and keys.
 */
static int expressible(const struct cairn_model *m)
{
	const struct cairn_model_config *c = &m->config;

	if (m->ranks > 1 && (c->latent.kv_lora_rank || c->experts.num_experts ||
			     cairn_model_head_shares(c) != m->ranks))
		return 0;
	return (m->context_ranks <= 1 || m->exchange != CAIRN_EXCHANGE_HEADS) &&
	       c->stages <= 1 && !m->lora &&
	       !m->elements[CAIRN_W_GATE_UP_BIAS] && !m->elements[CAIRN_W_DOWN_BIAS] && !c->head_norms &&
	       !c->block_norms && !c->embed_scale && !(c->norm_offset > 0) && !(c->attn_softcap > 0) &&
	       !(c->logit_softcap > 0) && !c->sinks && !c->experts.biases && !c->experts.sigmoid &&
	       !c->experts.num_groups &&
	       c->hidden_act == CAIRN_ACT_SILU && cairn_config_has_one_eps(c) &&
	       m->weights == CAIRN_WEIGHTS_PLAIN && m->kv == CAIRN_KV_PLAIN;
}

static int has_operation(const struct cairn_model *m)
{
	return m->ranks > 1 ? m->impl->decode_step_ranks != NULL : m->impl->decode_step != NULL;
}

static int ask_workspace(const struct cairn_model *m, const struct cairn_decode_step_args *step,
			 size_t *bytes)
{
	const struct cairn_impl *impl = m->impl;
	struct cairn_decode_step_ranks_args args = { .step = *step };

	if (m->ranks <= 1)
		return impl->decode_step_workspace ? impl->decode_step_workspace(step, bytes) : 0;
	args.step.size = sizeof(args);
	return impl->decode_step_ranks_workspace ? impl->decode_step_ranks_workspace(&args, bytes) : 0;
}

/* Names no communicator: the table adds it (serving/ranks/ranks.h). */
static int call(const struct cairn_model *m, const struct cairn_decode_step_args *step, void *stream)
{
	struct cairn_decode_step_ranks_args args = { .step = *step };

	if (m->ranks <= 1)
		return m->impl->decode_step(step, stream);
	args.step.size = sizeof(args);
	return m->impl->decode_step_ranks(&args, stream);
}

static const char *name_of(const struct cairn_model *m)
{
	return m->ranks > 1 ? "decode_step_ranks" : "decode_step";
}

int cairn_decoder_create(struct cairn_decoder **out, const struct cairn_model *m, enum cairn_decode_path path)
{
	int has_op = has_operation(m);
	struct cairn_decoder *d;

	if (path == CAIRN_DECODE_GRAPH || path == CAIRN_DECODE_PERSISTENT) {
		if (!has_op)
			return cairn_error(EOPNOTSUPP,
					   "%s: decode %s: the table has no operation %s",
					   m->impl->name, cairn_decode_path_names[path], name_of(m));
		if (!expressible(m))
			return cairn_error(EOPNOTSUPP,
					   "%s: decode %s: decode_step does not support this model's "
					   "biases, sinks, norms, rms_norm_eps, caps, router, 8-bit or 4-bit "
					   "weights, 8-bit KV cache, adapters or ranks",
					   m->impl->name, cairn_decode_path_names[path]);
	}
	if (path == CAIRN_DECODE_UNFUSED && !cairn_forward_supported(m))
		return cairn_error(EOPNOTSUPP,
				   "%s: decode unfused: the table lacks operations of this model's graph",
				   m->impl->name);
	d = calloc(1, sizeof(*d));
	if (!d)
		return cairn_error(ENOMEM, "decode: no memory");
	d->model = m;
	d->path = path;
	d->there = has_op && expressible(m) && path != CAIRN_DECODE_UNFUSED;
	*out = d;
	return 0;
}

void cairn_decoder_destroy(struct cairn_decoder *d)
{
	if (!d)
		return;
	if (d->workspace)
		d->model->impl->mem_free(d->workspace);
	free(d);
}

/* Returns whether ret tells AUTO to fall back on the operation list, which the table must have. */
static int refused(const struct cairn_decoder *d, int ret)
{
	return ret == -EOPNOTSUPP && d->path == CAIRN_DECODE_AUTO && cairn_forward_supported(d->model);
}

static int reserve(struct cairn_decoder *d, size_t bytes, void *stream, int *moved)
{
	const struct cairn_impl *impl = d->model->impl;
	void *p;

	if (bytes > d->workspace_bytes) {
		CAIRN_TRY(CAIRN_TABLE(impl, stream_sync, stream));
		CAIRN_TRY(CAIRN_TABLE(impl, mem_alloc, &p, bytes));
		if (d->workspace) {
			impl->mem_free(d->workspace);
			*moved = 1;
		}
		d->workspace = p;
		d->workspace_bytes = bytes;
	}
	/* A call leaves the counters ready for calls of its own shape only; other shapes may place them
	 * elsewhere in the workspace. */
	return d->workspace ? CAIRN_TABLE(impl, mem_set, d->workspace, 0, d->workspace_bytes, stream) : 0;
}

int cairn_decoder_prepare(struct cairn_decoder *d, const struct cairn_kv_store *kv,
			  const struct cairn_batch *b, const struct cairn_draw *draw, void *stream,
			  int *fits, int *moved)
{
	const struct cairn_impl *impl = d->model->impl;
	struct shape now = { b->batch, b->max_kv_len, draw->temperature != NULL };
	const int32_t window = d->model->config.window;
	struct cairn_decode_step_args args;
	size_t bytes = 0;
	int ret;

	*fits = d->there && (!d->too_many || b->batch < d->too_many);
	if (!*fits)
		return 0;
	if (window && b->max_kv_len > window) {	/* decode_step attends to all keys */
		*fits = 0;
		return d->path == CAIRN_DECODE_AUTO ? 0 :
		       cairn_error(EOPNOTSUPP,
				   "%s: decode %s: decode_step has no window, and a request may have %d "
				   "keys", impl->name, cairn_decode_path_names[d->path], b->max_kv_len);
	}
	if (now.batch == d->last.batch && now.max_kv_len == d->last.max_kv_len &&
	    now.sampled == d->last.sampled) {
		*fits = d->last_fits;
		return 0;
	}
	args = make_args(d, kv, b, draw);
	ret = ask_workspace(d->model, &args, &bytes);
	if (refused(d, ret))
		*fits = 0;
	else
		CAIRN_TRY(cairn_table_ret(impl, ret, d->model->ranks > 1 ? "decode_step_ranks_workspace" :
					  "decode_step_workspace"));
	if (*fits)
		CAIRN_TRY(reserve(d, bytes, stream, moved));
	d->last = now;
	d->last_fits = *fits;
	return 0;
}

int cairn_decoder_run(struct cairn_decoder *d, const struct cairn_kv_store *kv, const struct cairn_batch *b,
		      const struct cairn_draw *draw, void *stream, int *done)
{
	struct cairn_decode_step_args args = make_args(d, kv, b, draw);
	int ret = call(d->model, &args, stream);

	*done = !refused(d, ret);
	if (!*done) {
		d->too_many = b->batch;
		return 0;
	}
	return cairn_table_ret(d->model->impl, ret, name_of(d->model));
}
