// SPDX-License-Identifier: Apache-2.0
/* model_graph - builds the graph of a model's forward pass from its config */
#include "serving/model/model_graph.h"

#include <stdio.h>

#include "primitives/base/error.h"

/* GATHER moves pieces of 16 bytes: four logits. */
int32_t cairn_model_head_shares(const struct cairn_model_config *c)
{
	return c->shares > 1 && c->vocab_size % (4 * c->shares) == 0 ? c->shares : 1;
}

void cairn_model_dims(const struct cairn_model_config *c, int32_t *dims)
{
	const struct cairn_latent_config *l = &c->latent;
	int32_t heads = c->num_attention_heads;

	dims[CAIRN_D_ONE] = 1;
	dims[CAIRN_D_HIDDEN] = c->hidden_size;
	dims[CAIRN_D_HEAD] = c->head_dim;
	dims[CAIRN_D_Q] = heads * c->head_dim;
	dims[CAIRN_D_KV] = l->kv_lora_rank ? 0 : c->num_key_value_heads * c->head_dim;
	dims[CAIRN_D_QKV] = dims[CAIRN_D_Q] + 2 * dims[CAIRN_D_KV];
	dims[CAIRN_D_ATTN] = l->kv_lora_rank ? heads * l->v_dim : dims[CAIRN_D_Q];
	dims[CAIRN_D_INTER] = c->intermediate_size;
	dims[CAIRN_D_GATE_UP] = 2 * c->intermediate_size;
	dims[CAIRN_D_Q_LORA] = l->q_lora_rank;
	dims[CAIRN_D_LATENT] = l->kv_lora_rank + l->rope_dim;
	dims[CAIRN_D_KV_LORA] = l->kv_lora_rank;
	dims[CAIRN_D_KV_B] = heads * (l->nope_dim + l->v_dim);
	dims[CAIRN_D_EXPERTS] = c->experts.num_experts;
	dims[CAIRN_D_EXPERT_INTER] = c->experts.intermediate_size;
	dims[CAIRN_D_SHARED_INTER] = c->experts.shared_intermediate_size;
	dims[CAIRN_D_VOCAB] = c->vocab_size;
	dims[CAIRN_D_HEADS] = heads;
	dims[CAIRN_D_CACHE] = l->kv_lora_rank ? dims[CAIRN_D_LATENT] : 2 * dims[CAIRN_D_KV];
	dims[CAIRN_D_EXPERT_GATE_UP] = 2 * c->experts.intermediate_size;
	dims[CAIRN_D_SHARED_GATE_UP] = 2 * c->experts.shared_intermediate_size;
	dims[CAIRN_D_PER_TOKEN] = c->experts.per_token;
	dims[CAIRN_D_TWO_HIDDEN] = 2 * c->hidden_size;
	dims[CAIRN_D_HEAD_VOCAB] = c->vocab_size / cairn_model_head_shares(c);
}

/* Name and shape of each weight of a graph. Only weights with the role MATRIX are quantised. */
static const struct {
	const char *name;
	enum cairn_dim num, height, width;
	enum cairn_value_role role;
} weights[CAIRN_NUM_WEIGHTS] = {
#define VECTOR(width)			CAIRN_D_ONE, CAIRN_D_ONE, width, CAIRN_ROLE_WEIGHT
#define PLAIN(height, width)		CAIRN_D_ONE, height, width, CAIRN_ROLE_WEIGHT
#define MATRIX(height, width)		CAIRN_D_ONE, height, width, CAIRN_ROLE_MATRIX
#define MATRICES(num, height, width)	num, height, width, CAIRN_ROLE_MATRIX
	[CAIRN_W_ATTN_NORM] = { "attn_norm", VECTOR(CAIRN_D_HIDDEN) },
	[CAIRN_W_QKV] = { "qkv", MATRIX(CAIRN_D_QKV, CAIRN_D_HIDDEN) },
	[CAIRN_W_QKV_BIAS] = { "qkv_bias", VECTOR(CAIRN_D_QKV) },
	[CAIRN_W_O] = { "o", MATRIX(CAIRN_D_HIDDEN, CAIRN_D_ATTN) },
	[CAIRN_W_O_BIAS] = { "o_bias", VECTOR(CAIRN_D_HIDDEN) },
	[CAIRN_W_Q] = { "q", MATRIX(CAIRN_D_Q, CAIRN_D_HIDDEN) },	/* from q_a, if there is one */
	[CAIRN_W_Q_A] = { "q_a", MATRIX(CAIRN_D_Q_LORA, CAIRN_D_HIDDEN) },
	[CAIRN_W_Q_NORM] = { "q_norm", VECTOR(CAIRN_D_Q_LORA) },
	[CAIRN_W_KV_A] = { "kv_a", MATRIX(CAIRN_D_LATENT, CAIRN_D_HIDDEN) },
	[CAIRN_W_KV_NORM] = { "kv_norm", VECTOR(CAIRN_D_KV_LORA) },
	[CAIRN_W_KV_B] = { "kv_b", PLAIN(CAIRN_D_KV_B, CAIRN_D_KV_LORA) },
	[CAIRN_W_Q_HEAD_NORM] = { "q_head_norm", VECTOR(CAIRN_D_HEAD) },
	[CAIRN_W_K_HEAD_NORM] = { "k_head_norm", VECTOR(CAIRN_D_HEAD) },
	[CAIRN_W_SINKS] = { "sinks", VECTOR(CAIRN_D_HEADS) },
	[CAIRN_W_ATTN_OUT_NORM] = { "attn_out_norm", VECTOR(CAIRN_D_HIDDEN) },
	[CAIRN_W_MLP_OUT_NORM] = { "mlp_out_norm", VECTOR(CAIRN_D_HIDDEN) },
	[CAIRN_W_MLP_NORM] = { "mlp_norm", VECTOR(CAIRN_D_HIDDEN) },
	[CAIRN_W_GATE_UP] = { "gate_up", MATRIX(CAIRN_D_GATE_UP, CAIRN_D_HIDDEN) },
	[CAIRN_W_GATE_UP_BIAS] = { "gate_up_bias", VECTOR(CAIRN_D_GATE_UP) },
	[CAIRN_W_DOWN] = { "down", MATRIX(CAIRN_D_HIDDEN, CAIRN_D_INTER) },
	[CAIRN_W_DOWN_BIAS] = { "down_bias", VECTOR(CAIRN_D_HIDDEN) },
	[CAIRN_W_ROUTER] = { "router", PLAIN(CAIRN_D_EXPERTS, CAIRN_D_HIDDEN) },
	[CAIRN_W_ROUTE_BIAS] = { "route_bias", VECTOR(CAIRN_D_EXPERTS) },
	[CAIRN_W_EXPERTS_GATE_UP] = { "experts_gate_up",
				      MATRICES(CAIRN_D_EXPERTS, CAIRN_D_EXPERT_GATE_UP, CAIRN_D_HIDDEN) },
	[CAIRN_W_EXPERTS_DOWN] = { "experts_down",
				   MATRICES(CAIRN_D_EXPERTS, CAIRN_D_HIDDEN, CAIRN_D_EXPERT_INTER) },
	[CAIRN_W_EXPERTS_GATE_UP_BIAS] = { "experts_gate_up_bias",
					   PLAIN(CAIRN_D_EXPERTS, CAIRN_D_EXPERT_GATE_UP) },
	[CAIRN_W_EXPERTS_DOWN_BIAS] = { "experts_down_bias", PLAIN(CAIRN_D_EXPERTS, CAIRN_D_HIDDEN) },
	[CAIRN_W_SHARED_GATE_UP] = { "shared_gate_up", MATRIX(CAIRN_D_SHARED_GATE_UP, CAIRN_D_HIDDEN) },
	[CAIRN_W_SHARED_DOWN] = { "shared_down", MATRIX(CAIRN_D_HIDDEN, CAIRN_D_SHARED_INTER) },
	[CAIRN_W_EMBED] = { "embed", PLAIN(CAIRN_D_VOCAB, CAIRN_D_HIDDEN) },
	[CAIRN_W_FINAL_NORM] = { "final_norm", VECTOR(CAIRN_D_HIDDEN) },
	[CAIRN_W_LM_HEAD] = { "lm_head", PLAIN(CAIRN_D_HEAD_VOCAB, CAIRN_D_HIDDEN) },
};

struct builder {
	struct cairn_op_graph *g;
	const struct cairn_model_config *c;
	int32_t layer;			/* -1: outside the layers */
	enum cairn_op_block block;
	int32_t ids, positions, paging, logit_rows;
	int32_t x, residual;		/* x -1: nothing must be added to the residual stream */
};

static void name_it(const struct builder *b, char *to, const char *prefix, const char *name)
{
	if (b->layer < 0)
		snprintf(to, CAIRN_GRAPH_NAME, "%s%s", prefix, name);
	else
		snprintf(to, CAIRN_GRAPH_NAME, "layers.%d.%s%s", b->layer, prefix, name);
}

static int32_t value(struct builder *b, const char *name, enum cairn_value_kind kind,
		     enum cairn_value_role role, enum cairn_rows rows, enum cairn_dim width)
{
	struct cairn_graph_value v = {
		.kind = kind, .role = role, .shape = { .rows = rows, .width = width }, .layer = b->layer,
	};

	name_it(b, v.name, "", name);
	return cairn_op_graph_value(b->g, &v);
}

static int32_t activation(struct builder *b, const char *name, enum cairn_dim width)
{
	return value(b, name, CAIRN_VALUE_ACTIVATION, CAIRN_ROLE_ACTIVATION,
		     b->block == CAIRN_BLOCK_HEAD ? CAIRN_ROWS_LOGITS : CAIRN_ROWS_TOKENS, width);
}

static int32_t weight(struct builder *b, enum cairn_weight w)
{
	struct cairn_graph_value v = {
		.kind = CAIRN_VALUE_WEIGHT, .role = weights[w].role, .weight = w, .layer = b->layer,
		.shape = { .num = weights[w].num, .height = weights[w].height, .width = weights[w].width },
	};

	if (w == CAIRN_W_Q && b->c->latent.q_lora_rank)
		v.shape.width = CAIRN_D_Q_LORA;
	name_it(b, v.name, "w_", weights[w].name);
	return cairn_op_graph_value(b->g, &v);
}

static void add(struct builder *b, const char *name, struct cairn_graph_op op)
{
	op.layer = b->layer;
	op.block = b->block;
	name_it(b, op.name, "", name);
	cairn_op_graph_op(b->g, &op);
}

/* Appends y = x W^T + bias; CAIRN_W_NONE: no bias. */
static int32_t gemm(struct builder *b, const char *op, const char *y, int32_t x, enum cairn_dim width,
		    enum cairn_weight w, enum cairn_weight bias)
{
	int32_t matrix = weight(b, w), out = activation(b, y, width);

	add(b, op, (struct cairn_graph_op){
		.kind = CAIRN_OP_GEMM, .num_in = 1, .in = { x }, .num_out = 1, .out = { out },
		.num_weights = 1 + (bias != CAIRN_W_NONE),
		.weights = { matrix, bias ? weight(b, bias) : 0 },
	});
	return out;
}

/* sums: x is a partial sum if several ranks share the model. */
static int32_t norm_in_place(struct builder *b, const char *op, const char *y, int32_t x,
			     enum cairn_dim width, enum cairn_weight w, int sums)
{
	int32_t vector = weight(b, w), out = activation(b, y, width);

	add(b, op, (struct cairn_graph_op){
		.kind = CAIRN_OP_NORM, .num_in = 1, .in = { x }, .num_out = 1, .out = { out },
		.overwrites = { 1 }, .num_weights = 1, .weights = { vector },
		.collective = sums && b->c->shares > 1,
	});
	return out;
}

/*
 * Appends the norm of the residual stream, which first adds the previous half's output, x. kind: that of the
 * result. last: nothing reads the stream afterwards. If ranks share the model, x is a partial sum, unless a
 * norm of the block has summed it.
 */
static int32_t stream_norm(struct builder *b, const char *op, const char *y, const char *residual,
			   int32_t vector, enum cairn_value_kind kind, int last)
{
	enum cairn_rows rows = b->block == CAIRN_BLOCK_HEAD ? CAIRN_ROWS_LOGITS : CAIRN_ROWS_TOKENS;
	int32_t out = value(b, y, kind, CAIRN_ROLE_ACTIVATION, rows, CAIRN_D_HIDDEN), added;

	if (b->x < 0) {
		add(b, op, (struct cairn_graph_op){
			.kind = CAIRN_OP_NORM, .num_in = 1, .in = { b->residual }, .num_out = 1,
			.out = { out }, .num_weights = 1, .weights = { vector },
		});
		return out;
	}
	added = value(b, residual, last ? CAIRN_VALUE_SCRATCH : CAIRN_VALUE_ACTIVATION, CAIRN_ROLE_ACTIVATION,
		      rows, CAIRN_D_HIDDEN);
	add(b, op, (struct cairn_graph_op){
		.kind = CAIRN_OP_ADD_NORM, .num_in = 2, .in = { b->x, b->residual }, .num_out = 2,
		.out = { out, added }, .overwrites = { 0, 2 }, .num_weights = 1, .weights = { vector },
		.collective = b->c->shares > 1 && !b->c->block_norms,
	});
	b->residual = added;
	b->x = -1;
	return out;
}

static int32_t cache(struct builder *b, const char *name)
{
	return value(b, name, CAIRN_VALUE_CACHE, CAIRN_ROLE_CACHE, CAIRN_ROWS_CACHE, CAIRN_D_CACHE);
}

static int32_t attend(struct builder *b, enum cairn_op_kind kind, int32_t q, int32_t kv)
{
	int32_t out = activation(b, "attn", CAIRN_D_ATTN);
	struct cairn_graph_op op = {
		.kind = kind, .window = cairn_layer_window(b->c, b->layer),
		.num_in = 3, .in = { q, kv, b->paging }, .num_out = 1, .out = { out },
	};

	if (kind == CAIRN_OP_MLA || b->c->sinks)
		op.weights[op.num_weights++] = weight(b, b->c->sinks ? CAIRN_W_SINKS : CAIRN_W_KV_B);
	if (b->c->sinks)
		op.out[op.num_out++] = value(b, "lse", CAIRN_VALUE_SCRATCH, CAIRN_ROLE_LOGITS,
					     CAIRN_ROWS_TOKENS, CAIRN_D_HEADS);
	add(b, "attn", op);
	return out;
}

static int32_t heads_attn(struct builder *b, int32_t normed)
{
	int32_t qkv = gemm(b, "qkv_proj", "qkv", normed, CAIRN_D_QKV, CAIRN_W_QKV,
			   b->c->qkv_bias ? CAIRN_W_QKV_BIAS : CAIRN_W_NONE);
	int32_t rotated = activation(b, "qkv_rotated", CAIRN_D_QKV);
	int32_t before = cache(b, "kv_before"), after = cache(b, "kv");
	struct cairn_graph_op rope = {
		.kind = CAIRN_OP_ROPE, .num_in = 2, .in = { qkv, b->positions },
		.num_out = 1, .out = { rotated }, .overwrites = { 1 },
	};

	if (b->c->head_norms) {
		rope.weights[rope.num_weights++] = weight(b, CAIRN_W_Q_HEAD_NORM);
		rope.weights[rope.num_weights++] = weight(b, CAIRN_W_K_HEAD_NORM);
	}
	add(b, "rope", rope);
	add(b, "kv_append", (struct cairn_graph_op){
		.kind = CAIRN_OP_KV_APPEND, .num_in = 3, .in = { rotated, before, b->paging },
		.num_out = 1, .out = { after }, .overwrites = { 2 },
	});
	return attend(b, CAIRN_OP_ATTN, rotated, after);
}

static int32_t latent_attn(struct builder *b, int32_t normed)
{
	int32_t from = normed, q, latents, rotated, before, after;

	if (b->c->latent.q_lora_rank) {
		from = gemm(b, "q_a_proj", "q_a", normed, CAIRN_D_Q_LORA, CAIRN_W_Q_A, CAIRN_W_NONE);
		from = norm_in_place(b, "q_norm", "q_a_normed", from, CAIRN_D_Q_LORA, CAIRN_W_Q_NORM, 0);
	}
	q = gemm(b, "q_proj", "q", from, CAIRN_D_Q, CAIRN_W_Q, CAIRN_W_NONE);
	latents = gemm(b, "kv_a_proj", "latents", normed, CAIRN_D_LATENT, CAIRN_W_KV_A, CAIRN_W_NONE);
	rotated = activation(b, "q_rotated", CAIRN_D_Q);
	before = cache(b, "kv_before");
	after = cache(b, "kv");
	add(b, "mla_append", (struct cairn_graph_op){
		.kind = CAIRN_OP_MLA_APPEND, .num_in = 5,
		.in = { q, latents, before, b->positions, b->paging },
		.num_out = 2, .out = { rotated, after }, .overwrites = { 1, 3 },
		.num_weights = 1, .weights = { weight(b, CAIRN_W_KV_NORM) },
	});
	return attend(b, CAIRN_OP_MLA, rotated, after);
}

static void attention(struct builder *b)
{
	const struct cairn_model_config *c = b->c;
	int32_t normed, heads;

	b->block = CAIRN_BLOCK_ATTN;
	normed = stream_norm(b, "attn_norm", "normed", "residual_attn", weight(b, CAIRN_W_ATTN_NORM),
			     CAIRN_VALUE_ACTIVATION, 0);
	heads = c->latent.kv_lora_rank ? latent_attn(b, normed) : heads_attn(b, normed);
	b->x = gemm(b, "o_proj", "o", heads, CAIRN_D_HIDDEN, CAIRN_W_O,
		    c->o_bias ? CAIRN_W_O_BIAS : CAIRN_W_NONE);
	if (c->block_norms)
		b->x = norm_in_place(b, "attn_out_norm", "o_normed", b->x, CAIRN_D_HIDDEN,
				     CAIRN_W_ATTN_OUT_NORM, 1);
}

static void dense_mlp(struct builder *b)
{
	const struct cairn_model_config *c = b->c;
	int32_t normed = stream_norm(b, "mlp_norm", "mlp_normed", "residual_mlp", weight(b, CAIRN_W_MLP_NORM),
				     CAIRN_VALUE_ACTIVATION, 0);
	int32_t gate_up = gemm(b, "gate_up_proj", "gate_up", normed, CAIRN_D_GATE_UP, CAIRN_W_GATE_UP,
			       c->mlp_bias ? CAIRN_W_GATE_UP_BIAS : CAIRN_W_NONE);
	int32_t mlp = activation(b, "mlp", CAIRN_D_INTER);

	add(b, "activation", (struct cairn_graph_op){
		.kind = c->hidden_act == CAIRN_ACT_GELU_TANH ? CAIRN_OP_GELU_MUL : CAIRN_OP_SILU_MUL,
		.num_in = 1, .in = { gate_up }, .num_out = 1, .out = { mlp },
	});
	b->x = gemm(b, "down_proj", "down", mlp, CAIRN_D_HIDDEN, CAIRN_W_DOWN,
		    c->mlp_bias ? CAIRN_W_DOWN_BIAS : CAIRN_W_NONE);
	if (c->block_norms)
		b->x = norm_in_place(b, "mlp_out_norm", "down_normed", b->x, CAIRN_D_HIDDEN,
				     CAIRN_W_MLP_OUT_NORM, 1);
}

static void experts_mlp(struct builder *b)
{
	const struct cairn_experts_config *x = &b->c->experts;
	const bool has_shared = x->shared_intermediate_size > 0;
	const struct { enum cairn_weight weight; bool there; } all[] = {
		{ CAIRN_W_ROUTER, true }, { CAIRN_W_EXPERTS_GATE_UP, true }, { CAIRN_W_EXPERTS_DOWN, true },
		{ CAIRN_W_SHARED_GATE_UP, has_shared }, { CAIRN_W_SHARED_DOWN, has_shared },
		{ CAIRN_W_ROUTE_BIAS, x->sigmoid || x->biases }, { CAIRN_W_EXPERTS_GATE_UP_BIAS, x->biases },
		{ CAIRN_W_EXPERTS_DOWN_BIAS, x->biases },
	};
	const int is_share = b->c->shares > 1;
	int32_t vector = weight(b, CAIRN_W_MLP_NORM), out;
	struct cairn_graph_op moe = {
		.kind = CAIRN_OP_MOE, .num_in = 1, .num_out = 1, .overwrites = { !is_share },
		.num_weights = 1, .weights = { vector },
	};

	for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
		if (all[i].there)
			moe.weights[moe.num_weights++] = weight(b, all[i].weight);
	stream_norm(b, "mlp_norm", "mlp_normed", "residual_mlp", vector, CAIRN_VALUE_SCRATCH, 0);
	out = activation(b, "experts", CAIRN_D_HIDDEN);
	moe.in[0] = b->residual;
	moe.out[0] = out;
	add(b, "moe", moe);
	*(is_share ? &b->x : &b->residual) = out;
}

static int32_t pick(struct builder *b, const char *op, const char *y, int32_t x)
{
	int32_t out = activation(b, y, CAIRN_D_HIDDEN);

	add(b, op, (struct cairn_graph_op){
		.kind = CAIRN_OP_PICK_ROWS, .num_in = 2, .in = { x, b->logit_rows }, .num_out = 1,
		.out = { out }, .forwards = true,
	});
	return out;
}

static void head(struct builder *b, int32_t embed)
{
	int capped = b->c->logit_softcap > 0, cut = cairn_model_head_shares(b->c) > 1;
	int32_t normed, raw, logits, product;

	b->block = CAIRN_BLOCK_HEAD;
	if (b->x >= 0)
		b->x = pick(b, "pick_x", "picked_x", b->x);
	b->residual = pick(b, "pick_residual", "picked_residual", b->residual);
	normed = stream_norm(b, "final_norm", "final_normed", "final_residual", weight(b, CAIRN_W_FINAL_NORM),
			     CAIRN_VALUE_ACTIVATION, 1);
	logits = value(b, "logits", CAIRN_VALUE_OUTPUT, CAIRN_ROLE_LOGITS, CAIRN_ROWS_LOGITS, CAIRN_D_VOCAB);
	raw = capped ? value(b, "logits_raw", CAIRN_VALUE_ACTIVATION, CAIRN_ROLE_LOGITS, CAIRN_ROWS_LOGITS,
			     CAIRN_D_VOCAB) : logits;
	product = cut ? value(b, "logits_share", CAIRN_VALUE_ACTIVATION, CAIRN_ROLE_LOGITS, CAIRN_ROWS_LOGITS,
			      CAIRN_D_HEAD_VOCAB) : raw;
	add(b, "lm_head", (struct cairn_graph_op){
		.kind = CAIRN_OP_LM_HEAD, .num_in = 1, .in = { normed }, .num_out = 1, .out = { product },
		.num_weights = 1,
		.weights = { b->c->tie_word_embeddings ? embed : weight(b, CAIRN_W_LM_HEAD) },
	});
	if (cut)
		add(b, "gather", (struct cairn_graph_op){
			.kind = CAIRN_OP_GATHER, .num_in = 1, .in = { product }, .num_out = 1, .out = { raw },
			.collective = true,
		});
	if (capped)
		add(b, "softcap", (struct cairn_graph_op){
			.kind = CAIRN_OP_SOFTCAP, .num_in = 1, .in = { raw }, .num_out = 1, .out = { logits },
			.overwrites = { 1 },
		});
}

static int32_t input(struct builder *b, const char *name, enum cairn_rows rows)
{
	return value(b, name, CAIRN_VALUE_INPUT, CAIRN_ROLE_INDEX, rows, CAIRN_D_ONE);
}

static void build(struct builder *b)
{
	const struct cairn_experts_config *x = &b->c->experts;
	int32_t embed;

	b->layer = b->x = -1;
	b->ids = input(b, "ids", CAIRN_ROWS_TOKENS);
	b->positions = input(b, "positions", CAIRN_ROWS_TOKENS);
	b->paging = input(b, "paging", CAIRN_ROWS_REQUESTS);
	b->logit_rows = input(b, "logit_rows", CAIRN_ROWS_LOGITS);
	embed = weight(b, CAIRN_W_EMBED);
	b->residual = activation(b, "embedded", CAIRN_D_HIDDEN);
	add(b, "embedding", (struct cairn_graph_op){
		.kind = CAIRN_OP_EMBEDDING, .num_in = 1, .in = { b->ids }, .num_out = 1,
		.out = { b->residual }, .num_weights = 1, .weights = { embed },
	});
	for (b->layer = 0; b->layer < b->c->num_hidden_layers; b->layer++) {
		attention(b);
		b->block = CAIRN_BLOCK_MLP;
		if (x->num_experts && b->layer >= x->dense_layers)
			experts_mlp(b);
		else
			dense_mlp(b);
	}
	b->layer = -1;
	head(b, embed);
}

int cairn_model_graph(struct cairn_op_graph **out, const struct cairn_model_config *config)
{
	struct builder b = { .c = config, .block = CAIRN_BLOCK_START };
	int ret;

	CAIRN_TRY(cairn_op_graph_create(&b.g));
	build(&b);
	ret = cairn_op_graph_finish(b.g);
	if (ret)
		cairn_op_graph_destroy(b.g);
	else
		*out = b.g;
	return ret;
}
