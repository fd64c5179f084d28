/* SPDX-License-Identifier: Apache-2.0 */
/*
 * decode_step_grid - the arguments of a decode step as the input of the grid's kernel
 */
#ifndef CAIRN_DECODE_STEP_GRID_H
#define CAIRN_DECODE_STEP_GRID_H

#include "fused/decode_step/decode_step.h"
#include "fused/grid/grid.h"

static inline struct grid_step decode_step_grid(const struct cairn_decode_step_args *args)
{
	struct grid_step s = {};

	s.kv = args->kv;
	s.positions = args->positions;
	s.ids = args->ids;
	s.inv_freq = args->inv_freq;
	s.embed = args->embed;
	s.lm_head = args->lm_head;
	s.final_norm = args->final_norm;
	s.attn_norm = args->attn_norm;
	s.w_qkv = args->w_qkv;
	s.b_qkv = args->b_qkv;
	s.w_o = args->w_o;
	s.b_o = args->b_o;
	s.mlp_norm = args->mlp_norm;
	s.w_gate_up = args->w_gate_up;
	s.w_down = args->w_down;
	s.logits = args->logits;
	s.layer_stride_bytes = args->layer_stride_bytes;
	s.kv_stride_bytes = args->kv_stride_bytes;
	s.num_layers = args->num_layers;
	s.hidden = args->hidden;
	s.intermediate = args->intermediate;
	s.num_qo_heads = args->num_qo_heads;
	s.num_kv_heads = args->num_kv_heads;
	s.head_dim = args->head_dim;
	s.vocab = args->vocab;
	s.dtype = args->dtype;
	s.eps = args->eps;
	s.sm_scale = args->sm_scale;
	s.sms = args->sms;
	return s;
}

#endif
