/* SPDX-License-Identifier: Apache-2.0 */
/* symbols - the dimensions and the weights of a model, by which layouts and graphs name them */
#ifndef CAIRN_SYMBOLS_H
#define CAIRN_SYMBOLS_H

enum cairn_dim {
	CAIRN_D_ONE,
	CAIRN_D_HIDDEN,
	CAIRN_D_HEAD,
	CAIRN_D_Q, CAIRN_D_KV,		/* heads * head_dim */
	CAIRN_D_QKV,			/* q + 2 kv */
	CAIRN_D_ATTN,			/* columns of w_o: q, or heads * v_dim */
	CAIRN_D_INTER, CAIRN_D_GATE_UP,	/* intermediate_size; twice that */
	CAIRN_D_Q_LORA,
	CAIRN_D_LATENT, CAIRN_D_KV_LORA,	/* kv_lora_rank with and without rope_dim */
	CAIRN_D_KV_B,			/* heads * (nope_dim + v_dim) */
	CAIRN_D_EXPERTS, CAIRN_D_EXPERT_INTER, CAIRN_D_SHARED_INTER,
	CAIRN_D_VOCAB,
	CAIRN_D_HEADS,			/* num_attention_heads */
	CAIRN_D_CACHE,			/* elements of one token in a layer's cache: k and v, or a latent */
	CAIRN_D_EXPERT_GATE_UP, CAIRN_D_SHARED_GATE_UP,	/* twice CAIRN_D_EXPERT_INTER, CAIRN_D_SHARED_INTER */
	CAIRN_D_PER_TOKEN,		/* experts chosen per token */
	CAIRN_D_HEAD_VOCAB,		/* rows of the output matrix: the vocabulary, or a rank's share */
	CAIRN_D_TWO_HIDDEN,
	CAIRN_NUM_DIMS
};

enum cairn_weight {
	CAIRN_W_NONE,
	/* per layer */
	CAIRN_W_ATTN_NORM, CAIRN_W_QKV, CAIRN_W_QKV_BIAS, CAIRN_W_O, CAIRN_W_O_BIAS,
	CAIRN_W_Q, CAIRN_W_Q_A, CAIRN_W_Q_NORM, CAIRN_W_KV_A, CAIRN_W_KV_NORM, CAIRN_W_KV_B,
	CAIRN_W_Q_HEAD_NORM, CAIRN_W_K_HEAD_NORM,	/* per head */
	CAIRN_W_SINKS,					/* attention sinks; f32 */
	CAIRN_W_ATTN_OUT_NORM, CAIRN_W_MLP_OUT_NORM,	/* norms of the outputs of attention and MLP */
	CAIRN_W_MLP_NORM, CAIRN_W_GATE_UP, CAIRN_W_GATE_UP_BIAS, CAIRN_W_DOWN, CAIRN_W_DOWN_BIAS,
	CAIRN_W_ROUTER, CAIRN_W_ROUTE_BIAS /* f32 */, CAIRN_W_EXPERTS_GATE_UP, CAIRN_W_EXPERTS_DOWN,
	CAIRN_W_EXPERTS_GATE_UP_BIAS, CAIRN_W_EXPERTS_DOWN_BIAS,
	CAIRN_W_SHARED_GATE_UP, CAIRN_W_SHARED_DOWN,
	/* per model */
	CAIRN_W_EMBED, CAIRN_W_FINAL_NORM, CAIRN_W_LM_HEAD,
	CAIRN_W_EH_PROJ, CAIRN_W_E_NORM, CAIRN_W_H_NORM,	/* of a layer for multi-token prediction */
	CAIRN_NUM_WEIGHTS
};

#endif
