/* SPDX-License-Identifier: Apache-2.0 */
/*
 * decode_step_parts - makes the argument structs of the operations that a decode step consists of
 *
 * The functions fill the arguments of layer `layer`; the caller sets x, out and workspace.
 */
#ifndef CAIRN_DECODE_STEP_PARTS_H
#define CAIRN_DECODE_STEP_PARTS_H

#include "fused/cluster_attn/cluster_attn.h"
#include "fused/latent/cluster_mla.h"
#include "fused/decode_step/decode_step.h"
#include "fused/moe/moe.h"

static inline int decode_step_has_experts(const struct cairn_decode_step_args *a, int layer)
{
	return a->num_experts > 0 && layer >= a->dense_layers;
}

/* Elements of a token in kv.k_pages, and in kv.v_pages */
static inline int64_t decode_step_k_row(const struct cairn_decode_step_args *a)
{
	return a->kv_lora_rank ? a->kv_lora_rank + a->rope_dim : (int64_t)a->num_kv_heads * a->head_dim;
}

static inline int64_t decode_step_v_row(const struct cairn_decode_step_args *a)
{
	return a->kv_lora_rank ? 0 : (int64_t)a->num_kv_heads * a->head_dim;
}

/* p: address for layer 0 */
static inline const void *decode_step_weight(const struct cairn_decode_step_args *a, const void *p, int layer)
{
	return p ? (const char *)p + layer * a->layer_stride_bytes : NULL;
}

/* The pages of layer `layer` */
static inline struct cairn_kv_view decode_step_kv(const struct cairn_decode_step_args *a, int layer)
{
	struct cairn_kv_view kv = a->kv;

	kv.k_pages = kv.k_pages ? (char *)kv.k_pages + layer * a->kv_stride_bytes : NULL;
	kv.v_pages = kv.v_pages ? (char *)kv.v_pages + layer * a->kv_stride_bytes : NULL;
	return kv;
}

static inline struct cairn_cluster_attn_args decode_step_attn(const struct cairn_decode_step_args *a,
							      int layer)
{
	return (struct cairn_cluster_attn_args){
		.size = sizeof(struct cairn_cluster_attn_args),
		.norm_weight = decode_step_weight(a, a->attn_norm, layer),
		.w_qkv = decode_step_weight(a, a->w_qkv, layer),
		.b_qkv = decode_step_weight(a, a->b_qkv, layer),
		.w_o = decode_step_weight(a, a->w_o, layer), .b_o = decode_step_weight(a, a->b_o, layer),
		.inv_freq = a->inv_freq, .positions = a->positions, .kv = decode_step_kv(a, layer),
		.hidden = a->hidden, .num_qo_heads = a->num_qo_heads, .num_kv_heads = a->num_kv_heads,
		.head_dim = a->head_dim, .dtype = a->dtype, .eps = a->eps, .sm_scale = a->sm_scale,
		.sms = a->sms,
	};
}

static inline struct cairn_cluster_mla_args decode_step_mla(const struct cairn_decode_step_args *a, int layer)
{
	return (struct cairn_cluster_mla_args){
		.size = sizeof(struct cairn_cluster_mla_args),
		.norm_weight = decode_step_weight(a, a->attn_norm, layer),
		.w_q_a = decode_step_weight(a, a->w_q_a, layer),
		.q_norm = decode_step_weight(a, a->q_norm, layer),
		.w_q = decode_step_weight(a, a->w_q, layer),
		.w_kv_a = decode_step_weight(a, a->w_kv_a, layer),
		.kv_norm = decode_step_weight(a, a->kv_norm, layer),
		.w_kv_b = decode_step_weight(a, a->w_kv_b, layer),
		.w_o = decode_step_weight(a, a->w_o, layer),
		.inv_freq = a->inv_freq, .positions = a->positions, .kv = decode_step_kv(a, layer),
		.hidden = a->hidden, .num_heads = a->num_qo_heads,
		.q_lora_rank = a->q_lora_rank, .kv_lora_rank = a->kv_lora_rank, .nope_dim = a->nope_dim,
		.rope_dim = a->rope_dim, .v_dim = a->v_dim, .dtype = a->dtype, .eps = a->eps,
		.sm_scale = a->sm_scale, .sms = a->sms,
	};
}

/* layer >= dense_layers, where the experts' weights start */
static inline struct cairn_moe_args decode_step_moe_of(const struct cairn_decode_step_args *a, int layer)
{
	int at = layer - a->dense_layers;

	return (struct cairn_moe_args){
		.size = sizeof(struct cairn_moe_args),
		.norm_weight = decode_step_weight(a, a->mlp_norm, layer),
		.w_router = decode_step_weight(a, a->w_router, at),
		.w_gate_up = decode_step_weight(a, a->w_experts_gate_up, at),
		.w_down = decode_step_weight(a, a->w_experts_down, at),
		.w_shared_gate_up = decode_step_weight(a, a->w_shared_gate_up, at),
		.w_shared_down = decode_step_weight(a, a->w_shared_down, at), .batch = a->kv.batch,
		.hidden = a->hidden, .num_experts = a->num_experts, .experts_per_token = a->experts_per_token,
		.intermediate = a->expert_intermediate, .shared_intermediate = a->shared_intermediate,
		.dtype = a->dtype, .normalize = a->normalize_experts,
		.eps = a->eps, .scaling = a->expert_scaling, .sms = a->sms,
	};
}

/* A dense layer's MLP as a mixture that has only a shared expert */
static inline struct cairn_moe_args decode_step_dense_of(const struct cairn_decode_step_args *a, int layer)
{
	return (struct cairn_moe_args){
		.size = sizeof(struct cairn_moe_args),
		.norm_weight = decode_step_weight(a, a->mlp_norm, layer),
		.w_shared_gate_up = decode_step_weight(a, a->w_gate_up, layer),
		.w_shared_down = decode_step_weight(a, a->w_down, layer), .batch = a->kv.batch,
		.hidden = a->hidden, .shared_intermediate = a->intermediate, .dtype = a->dtype, .eps = a->eps,
		.sms = a->sms,
	};
}

#endif
