// SPDX-License-Identifier: Apache-2.0
/*
 * decode_step_moe - a chain of launches with programmatic dependent launch, two a layer
 *
 *   embedding     rows of the table -> x, where cluster_mla begins; the grid kernel looks them up itself
 *   each layer    cluster_mla, or the grid kernel's phases QKV, ATTN, OUT
 *                 moe, or in the first dense_layers layers the grid kernel's phases GATE_UP, DOWN
 *   head          the grid kernel's last phase
 *
 * Each of these kernels takes all SMs, all of their shared memory, and starts when its predecessor's CTA leaves an SM: its
 * first weights, 175 KB an SM of moe's, are on their way before the predecessor's last CTA has written its result.
 * x goes to and fro between two buffers.
 *
 * The workspace: moe's and cluster_mla's parts, as large as the largest batch needs, then the grid kernel's. These hold
 * words with numbers, over which nothing else must ever be laid, and so their places do not depend on the batch.
 */
#include "decode_step_moe.h"

#include "../primitives/embedding.h"
#include "../primitives/launch.h"
#include "cluster_mla.h"
#include "grid.h"
#include "moe.h"

#define CHAIN_BATCH	8		/* the largest there is */

struct chain {
	struct grid_args g;
	struct cairn_cluster_mla_args mla;
	struct cairn_moe_args moe;
	char *x[2];
	size_t bytes;
};

/* The grid kernel with these arguments; of latent attention it needs to know nothing, but divides by its numbers. */
static void fill_grid(struct grid_args *g, const struct cairn_decode_step_args *args)
{
	g->s = *args;
	if (!args->kv_lora_rank)
		return;
	g->s.num_qo_heads = g->s.num_kv_heads = 1;
	g->s.head_dim = 64;		/* inv_freq has as many elements as if that were rotated */
	g->s.w_qkv = g->s.w_o = args->lm_head;
	g->s.b_qkv = g->s.b_o = NULL;
}

static void fill_mla(struct cairn_cluster_mla_args *m, const struct cairn_decode_step_args *args)
{
	m->size = sizeof(*m);
	m->inv_freq = args->inv_freq;
	m->positions = args->positions;
	m->kv_indptr = args->kv_indptr;
	m->kv_indices = args->kv_indices;
	m->kv_last_page_len = args->kv_last_page_len;
	m->batch = args->batch;
	m->max_kv_len = args->max_kv_len;
	m->num_pages = args->num_pages;
	m->page_size = args->page_size;
	m->hidden = args->hidden;
	m->num_heads = args->num_qo_heads;
	m->q_lora_rank = args->q_lora_rank;
	m->kv_lora_rank = args->kv_lora_rank;
	m->nope_dim = args->nope_dim;
	m->rope_dim = args->rope_dim;
	m->v_dim = args->v_dim;
	m->dtype = args->dtype;
	m->eps = args->eps;
	m->sm_scale = args->sm_scale;
}

static void fill_moe(struct cairn_moe_args *m, const struct cairn_decode_step_args *args)
{
	m->size = sizeof(*m);
	m->batch = args->batch;
	m->hidden = args->hidden;
	m->num_experts = args->num_experts;
	m->experts_per_token = args->experts_per_token;
	m->intermediate = args->expert_intermediate;
	m->shared_intermediate = args->shared_intermediate;
	m->dtype = args->dtype;
	m->normalize = args->normalize_experts;
	m->eps = args->eps;
	m->scaling = args->expert_scaling;
}

static size_t padded(size_t bytes)
{
	return (bytes + 255) / 256 * 256;
}

/* ws: may be NULL */
static int plan(struct chain *c, const struct cairn_decode_step_args *args, char *ws)
{
	size_t x_bytes = padded((size_t)CHAIN_BATCH * args->hidden * 2), at = 0, bytes;

	if (args->form == CAIRN_DECODE_STEP_PERSISTENT)
		return cairn_error(EOPNOTSUPP, "decode_step: form: latent attention and experts have no persistent form");
	fill_grid(&c->g, args);
	fill_mla(&c->mla, args);
	fill_moe(&c->moe, args);
	if (args->num_experts) {
		c->moe.batch = CHAIN_BATCH * args->hidden <= 32768 ? CHAIN_BATCH : 32768 / args->hidden;
		CAIRN_TRY(cairn_moe_workspace(&c->moe, &bytes));
		c->moe.batch = args->batch;
		c->moe.workspace = ws + at;
		c->moe.workspace_bytes = bytes;
		at += padded(bytes);
	}
	if (args->kv_lora_rank) {
		c->mla.batch = CHAIN_BATCH;
		CAIRN_TRY(cairn_cluster_mla_workspace(&c->mla, &bytes));
		c->mla.batch = args->batch;
		c->mla.workspace = ws + at;
		c->mla.workspace_bytes = bytes;
		at += padded(bytes);
	}
	for (int i = 0; i < 2; i++, at += x_bytes)
		c->x[i] = ws + at;
	CAIRN_TRY(grid_plan(&c->g, ws + at, &bytes));
	c->bytes = at + bytes;
	return 0;
}

int decode_step_moe_workspace(const struct cairn_decode_step_args *args, size_t *bytes)
{
	struct chain c = {};

	CAIRN_TRY(plan(&c, args, NULL));
	*bytes = c.bytes;
	return 0;
}

static const void *behind(const void *p, int64_t bytes)
{
	return p ? (const char *)p + bytes : NULL;
}

static int run_mla(struct chain *c, const struct cairn_decode_step_args *args, int layer, const void *x, void *out,
		   void *stream)
{
	struct cairn_cluster_mla_args *m = &c->mla;
	int64_t at = layer * args->layer_stride_bytes;

	m->x = x;
	m->out = out;
	m->pages = (char *)args->k_pages + layer * args->kv_stride_bytes;
	m->norm_weight = behind(args->attn_norm, at);
	m->w_q_a = behind(args->w_q_a, at);
	m->q_norm = behind(args->q_norm, at);
	m->w_q = behind(args->w_q, at);
	m->w_kv_a = behind(args->w_kv_a, at);
	m->kv_norm = behind(args->kv_norm, at);
	m->w_kv_b = behind(args->w_kv_b, at);
	m->w_o = behind(args->w_o, at);
	return cairn_cluster_mla(m, stream);
}

static int run_moe(struct chain *c, const struct cairn_decode_step_args *args, int layer, const void *x, void *out,
		   void *stream)
{
	struct cairn_moe_args *m = &c->moe;
	int64_t at = (layer - args->dense_layers) * args->layer_stride_bytes;

	m->x = x;
	m->out = out;
	m->norm_weight = behind(args->mlp_norm, layer * args->layer_stride_bytes);
	m->w_router = behind(args->w_router, at);
	m->w_gate_up = behind(args->w_experts_gate_up, at);
	m->w_down = behind(args->w_experts_down, at);
	m->w_shared_gate_up = behind(args->w_shared_gate_up, at);
	m->w_shared_down = behind(args->w_shared_down, at);
	return cairn_moe(m, stream);
}

/* Phases [first, end) as one launch; x: NULL: rows of the table of embeddings; out: NULL: the logits */
static int run_grid(struct chain *c, int first, int end, const void *x, void *out, void *stream)
{
	c->g.x = x;
	c->g.out = out;
	return grid_launch(&c->g, first, end, 1, stream);
}

int decode_step_moe(const struct cairn_decode_step_args *args, void *stream)
{
	struct chain c = {};
	const char *x = NULL;
	int to = 0;

	CAIRN_TRY(plan(&c, args, (char *)args->workspace));
	if (args->kv_lora_rank) {
		struct cairn_embedding_args e = {};

		e.size = sizeof(e);
		e.out = c.x[to];
		e.table = args->embed;
		e.ids = args->ids;
		e.rows = args->batch;
		e.dim = args->hidden;
		e.vocab = args->vocab;
		e.dtype = args->dtype;
		CAIRN_TRY(cairn_embedding(&e, stream));
		x = c.x[to];
		to ^= 1;
	}
	for (int layer = 0; layer < args->num_layers; layer++) {
		const int phase = layer * GRID_KINDS;

		if (args->kv_lora_rank)
			CAIRN_TRY(run_mla(&c, args, layer, x, c.x[to], stream));
		else
			CAIRN_TRY(run_grid(&c, phase + GRID_QKV, phase + GRID_OUT + 1, x, c.x[to], stream));
		x = c.x[to];
		to ^= 1;
		if (args->num_experts && layer >= args->dense_layers)
			CAIRN_TRY(run_moe(&c, args, layer, x, c.x[to], stream));
		else
			CAIRN_TRY(run_grid(&c, phase + GRID_GATE_UP, phase + GRID_DOWN + 1, x, c.x[to], stream));
		x = c.x[to];
		to ^= 1;
	}
	return run_grid(&c, args->num_layers * GRID_KINDS, args->num_layers * GRID_KINDS + 1, x, NULL, stream);
}
