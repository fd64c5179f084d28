/* SPDX-License-Identifier: Apache-2.0 */
/*
 * forward_lists - a decoder layer as two lists of operations: attention and MLP
 *
 * The lists say what a layer does, widths[] how wide the activations are; another architecture
 * is another list. Private to forward.c.
 */
#ifndef CAIRN_FORWARD_LISTS_H
#define CAIRN_FORWARD_LISTS_H

#include "serving/model/forward.h"

#define COUNT(a)	((int)(sizeof(a) / sizeof((a)[0])))

enum act {
	ACT_NONE,
	ACT_X, ACT_RES, ACT_NORMED, ACT_QKV, ACT_Q_A, ACT_Q, ACT_KV_A, ACT_ATTN, ACT_GATE_UP, ACT_MLP,
	ACT_PICKED_X, ACT_PICKED_RES,		/* only the rows whose logits are wanted */
	NUM_ACTS
};

static const enum cairn_dim widths[NUM_ACTS] = {
	[ACT_X] = CAIRN_D_HIDDEN, [ACT_RES] = CAIRN_D_HIDDEN, [ACT_NORMED] = CAIRN_D_HIDDEN,
	[ACT_QKV] = CAIRN_D_QKV, [ACT_Q_A] = CAIRN_D_Q_LORA, [ACT_Q] = CAIRN_D_Q, [ACT_KV_A] = CAIRN_D_LATENT,
	[ACT_ATTN] = CAIRN_D_ATTN, [ACT_GATE_UP] = CAIRN_D_GATE_UP, [ACT_MLP] = CAIRN_D_INTER,
	[ACT_PICKED_X] = CAIRN_D_HIDDEN, [ACT_PICKED_RES] = CAIRN_D_HIDDEN,
};

enum op {
	OP_NORM,		/* norm of the residual stream, after adding what is pending */
	OP_NORM_ALONE,		/* norm of an activation, in place */
	OP_GEMM, OP_ROPE, OP_KV_APPEND, OP_ATTN, OP_ACTIVATION, OP_MLA_APPEND, OP_MLA, OP_MOE
};

struct layer_op {
	enum op op;
	enum act out, in;
	enum cairn_weight weight, bias;
};

#define HEADS_ATTN \
	{ OP_NORM, ACT_NORMED, ACT_X, CAIRN_W_ATTN_NORM, CAIRN_W_NONE }, \
	{ OP_GEMM, ACT_QKV, ACT_NORMED, CAIRN_W_QKV, CAIRN_W_QKV_BIAS }, \
	{ OP_ROPE, ACT_QKV, ACT_QKV, CAIRN_W_NONE, CAIRN_W_NONE }, \
	{ OP_KV_APPEND, ACT_NONE, ACT_QKV, CAIRN_W_NONE, CAIRN_W_NONE }, \
	{ OP_ATTN, ACT_ATTN, ACT_QKV, CAIRN_W_NONE, CAIRN_W_NONE }, \
	{ OP_GEMM, ACT_X, ACT_ATTN, CAIRN_W_O, CAIRN_W_O_BIAS }
#define DENSE_MLP \
	{ OP_NORM, ACT_NORMED, ACT_X, CAIRN_W_MLP_NORM, CAIRN_W_NONE }, \
	{ OP_GEMM, ACT_GATE_UP, ACT_NORMED, CAIRN_W_GATE_UP, CAIRN_W_GATE_UP_BIAS }, \
	{ OP_ACTIVATION, ACT_MLP, ACT_GATE_UP, CAIRN_W_NONE, CAIRN_W_NONE }, \
	{ OP_GEMM, ACT_X, ACT_MLP, CAIRN_W_DOWN, CAIRN_W_DOWN_BIAS }
#define LATENT_ATTN \
	{ OP_GEMM, ACT_KV_A, ACT_NORMED, CAIRN_W_KV_A, CAIRN_W_NONE }, \
	{ OP_MLA_APPEND, ACT_Q, ACT_KV_A, CAIRN_W_KV_NORM, CAIRN_W_NONE }, \
	{ OP_MLA, ACT_ATTN, ACT_Q, CAIRN_W_KV_B, CAIRN_W_NONE }, \
	{ OP_GEMM, ACT_X, ACT_ATTN, CAIRN_W_O, CAIRN_W_NONE }

static const struct layer_op heads_attn[] = { HEADS_ATTN };
static const struct layer_op gemma_attn[] = {
	HEADS_ATTN,
	{ OP_NORM_ALONE, ACT_X, ACT_X, CAIRN_W_ATTN_OUT_NORM, CAIRN_W_NONE },
};
static const struct layer_op latent_attn[] = {
	{ OP_NORM, ACT_NORMED, ACT_X, CAIRN_W_ATTN_NORM, CAIRN_W_NONE },
	{ OP_GEMM, ACT_Q, ACT_NORMED, CAIRN_W_Q, CAIRN_W_NONE },
	LATENT_ATTN,
};
static const struct layer_op compressed_attn[] = {
	{ OP_NORM, ACT_NORMED, ACT_X, CAIRN_W_ATTN_NORM, CAIRN_W_NONE },
	{ OP_GEMM, ACT_Q_A, ACT_NORMED, CAIRN_W_Q_A, CAIRN_W_NONE },
	{ OP_NORM_ALONE, ACT_Q_A, ACT_Q_A, CAIRN_W_Q_NORM, CAIRN_W_NONE },
	{ OP_GEMM, ACT_Q, ACT_Q_A, CAIRN_W_Q, CAIRN_W_NONE },
	LATENT_ATTN,
};
static const struct layer_op dense_mlp[] = { DENSE_MLP };
static const struct layer_op gemma_mlp[] = {
	DENSE_MLP,
	{ OP_NORM_ALONE, ACT_X, ACT_X, CAIRN_W_MLP_OUT_NORM, CAIRN_W_NONE },
};
static const struct layer_op experts_mlp[] = {
	{ OP_NORM, ACT_NORMED, ACT_X, CAIRN_W_MLP_NORM, CAIRN_W_NONE },
	{ OP_MOE, ACT_RES, ACT_RES, CAIRN_W_MLP_NORM, CAIRN_W_NONE },
};

struct op_list {
	const struct layer_op *ops;
	int count;
};
#define LIST(list)	((struct op_list){ list, COUNT(list) })

static struct op_list attention_of(const struct cairn_model_config *c)
{
	if (c->latent.kv_lora_rank)
		return c->latent.q_lora_rank ? LIST(compressed_attn) : LIST(latent_attn);
	return c->block_norms ? LIST(gemma_attn) : LIST(heads_attn);
}

static struct op_list mlp_of(const struct cairn_model_config *c, int32_t layer)
{
	if (c->experts.num_experts && layer >= c->experts.dense_layers)
		return LIST(experts_mlp);
	return c->block_norms ? LIST(gemma_mlp) : LIST(dense_mlp);
}

#endif
