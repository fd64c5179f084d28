// SPDX-License-Identifier: Apache-2.0
/* model_check - refuses, before any weight is loaded, what a table or the checkpoint itself cannot serve */
#include "serving/model/load/model_impl.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "primitives/base/error.h"
#include "serving/model/forward/forward.h"

#define COUNT(a)	((int)(sizeof(a) / sizeof((a)[0])))
#define LAYERS		"model.layers."

static int check_table(const struct cairn_impl *impl, const struct cairn_model_config *c,
		       const struct cairn_op_graph *graph, enum cairn_weights weights)
{
	const char *missing = impl->mem_alloc ? cairn_forward_missing(impl, graph) : "mem_alloc";

	/*
	 * decode_step can run every pass, token by token if need be. It supports neither 8-bit weights, nor
	 * routers other than a softmax without groups, nor norms with different eps, nor ranks or stages.
	 */
	if (c->latent.kv_lora_rank && c->shares <= 1 && c->stages <= 1 && cairn_config_has_one_eps(c) &&
	    !c->experts.sigmoid && !c->experts.num_groups && impl->decode_step && impl->mem_alloc &&
	    weights == CAIRN_WEIGHTS_PLAIN)
		return 0;
	if (missing)
		return cairn_error(EOPNOTSUPP, "%s: the table has no operation %s", impl->name, missing);
	if (c->stages > 1 && !(impl->send_recv && impl->all_to_all))
		return cairn_error(EOPNOTSUPP, "%s: the table has no operation %s", impl->name,
				   impl->send_recv ? "all_to_all" : "send_recv");
	return 0;
}

/* Checks before anything is loaded that the table's moe supports 8-bit weights. */
static int check_fp8_experts(const struct cairn_impl *impl, const struct cairn_model_config *c,
			     enum cairn_weights weights)
{
	const struct cairn_experts_config *x = &c->experts;
	struct cairn_moe_args args = {
		.size = sizeof(args), .batch = 1, .hidden = c->hidden_size, .num_experts = x->num_experts,
		.experts_per_token = x->per_token, .intermediate = x->intermediate_size,
		.shared_intermediate = x->shared_intermediate_size, .normalize = x->normalize,
		.dtype = c->dtype == CAIRN_F16 ? CAIRN_F16 : CAIRN_BF16, .eps = (float)c->rms_norm_eps,
		.scaling = (float)x->scaling, .fp8w = 1, .scale_kind = cairn_weights_scale_kind(weights),
		.score = x->sigmoid ? CAIRN_MOE_SIGMOID : CAIRN_MOE_SOFTMAX, .num_groups = x->num_groups,
		.groups_per_token = x->groups_per_token,
	};
	size_t bytes;

	if (!x->num_experts || !impl->moe_workspace)
		return 0;
	return cairn_table_ret(impl, impl->moe_workspace(&args, &bytes), "moe_workspace");
}

int cairn_model_moe_has_mxfp4(const struct cairn_impl *impl, const struct cairn_model_config *c)
{
	const struct cairn_experts_config *x = &c->experts;
	void *nowhere = (void *)(uintptr_t)256;		/* aligned, and never accessed */
	const struct cairn_moe_args args = {
		.size = sizeof(args), .out = nowhere, .x = nowhere, .norm_weight = nowhere,
		.w_router = nowhere, .w_gate_up = nowhere, .w_down = nowhere, .w_gate_up_scale = nowhere,
		.w_down_scale = nowhere, .hidden = c->hidden_size, .num_experts = x->num_experts,
		.experts_per_token = x->per_token, .intermediate = x->intermediate_size,
		.normalize = x->normalize, .dtype = c->dtype == CAIRN_F16 ? CAIRN_F16 : CAIRN_BF16,
		.eps = (float)c->rms_norm_eps, .scaling = (float)x->scaling, .w4 = CAIRN_MOE_W4_MX,
	};
	int has = impl->moe && !impl->moe(&args, NULL);

	cairn_clear_error();
	return has;
}

static int check_fp8(const struct cairn_impl *impl, const char *dir, const struct cairn_model_config *c,
		     enum cairn_weights weights)
{
	const struct { const char *name; int32_t size; } sizes[] = {
		{ "hidden_size", c->hidden_size }, { "intermediate_size", c->intermediate_size },
		{ "q_lora_rank", c->latent.q_lora_rank },
		{ "num_attention_heads times v_head_dim", c->num_attention_heads * c->latent.v_dim },
		{ "moe_intermediate_size", c->experts.intermediate_size },
	};
	char share[48] = "";

	if (c->shares > 1)
		snprintf(share, sizeof(share), " in the share of one of %d ranks", c->shares);
	if (!impl->quant_fp8w || !(cairn_weights_are_w8a8(weights) ? impl->gemm_fp8 != NULL :
				   impl->gemm_fp8w != NULL))
		return cairn_error(EOPNOTSUPP, "%s: the table has no operation %s", impl->name,
				   !impl->quant_fp8w ? "quant_fp8w" :
				   cairn_weights_are_w8a8(weights) ? "gemm_fp8" : "gemm_fp8w");
	for (int i = 0; i < COUNT(sizes); i++) {
		if (sizes[i].size % 16)
			return cairn_error(EOPNOTSUPP,
					   "%s/config.json: %s: is %d%s, must be a multiple of 16 for "
					   "8-bit weights", dir, sizes[i].name, sizes[i].size, share);
	}
	return check_fp8_experts(impl, c, weights);
}

static int check_sizes(const char *dir, const struct cairn_model_config *c)
{
	const struct { const char *name; int32_t size, multiple; } sizes[] = {
		{ "hidden_size", c->hidden_size, 8 }, { "intermediate_size", c->intermediate_size, 8 },
		{ "head_dim", c->head_dim, 16 }, { "q_lora_rank", c->latent.q_lora_rank, 8 },
		{ "kv_lora_rank", c->latent.kv_lora_rank, 8 }, { "v_head_dim", c->latent.v_dim, 8 },
		{ "moe_intermediate_size", c->experts.intermediate_size, 8 },
	};

	for (int i = 0; i < COUNT(sizes); i++) {
		if (sizes[i].size % sizes[i].multiple)
			return cairn_error(EOPNOTSUPP, "%s/config.json: %s: is %d, must be a multiple of %d",
					   dir, sizes[i].name, sizes[i].size, sizes[i].multiple);
	}
	return 0;
}

int cairn_model_check_form(const struct cairn_model *m, const char *dir)
{
	const struct cairn_experts_config *x = &m->config.experts;
	const char *with = cairn_model_is_latent(m) ? "latent attention" :
			   x->shared_intermediate_size ? "shared experts" : NULL;

	if (m->weights == CAIRN_WEIGHTS_W4 && with)
		return cairn_error(EOPNOTSUPP, "%s/config.json: weights in 4 bits are not supported with %s",
				   dir, with);
	return 0;
}

int cairn_model_check_table(const struct cairn_model *m, const char *dir)
{
	CAIRN_TRY(check_table(m->impl, &m->config, m->graph, m->weights));
	if (cairn_weights_are_fp8(m->weights) && m->config.experts.biases)
		return cairn_error(EOPNOTSUPP, "%s/config.json: model_type: experts with biases have no "
				   "8-bit weights", dir);
	if (m->kv != CAIRN_KV_PLAIN && cairn_model_is_latent(m))
		return cairn_error(EOPNOTSUPP, "%s/config.json: kv_lora_rank: latent attention has no 8-bit "
				   "KV cache", dir);
	if (m->weights == CAIRN_WEIGHTS_W4 && !m->impl->gemm_w4)
		return cairn_error(EOPNOTSUPP, "%s: the table has no operation gemm_w4", m->impl->name);
	if (cairn_weights_are_fp8(m->weights))
		CAIRN_TRY(check_fp8(m->impl, dir, &m->config, m->weights));
	return check_sizes(dir, &m->config);
}

/* Returns the number of the layer that a tensor belongs to, or -1. */
static long layer_of(const char *name)
{
	const char *digits = name + strlen(LAYERS);
	char *end;
	long layer;

	if (strncmp(name, LAYERS, strlen(LAYERS)) || *digits < '0' || *digits > '9')
		return -1;
	layer = strtol(digits, &end, 10);
	return *end == '.' ? layer : -1;
}

int cairn_model_check_layers(const struct cairn_model_config *c, const char *dir,
			     const struct cairn_safetensors *st)
{
	const struct cairn_tensor *last = NULL;
	long most = c->num_hidden_layers + c->num_nextn_layers - 1;

	for (size_t i = 0; i < cairn_safetensors_count(st); i++) {
		const struct cairn_tensor *t = cairn_safetensors_at(st, i);

		/* old checkpoints store the frequencies of the rotary embedding, which are computed here */
		if (layer_of(t->name) <= most || strstr(t->name, ".rotary_emb."))
			continue;
		most = layer_of(t->name);
		last = t;
	}
	if (last)
		return cairn_error(EINVAL, "%s/config.json: num_hidden_layers: is %d, but %s stores layer "
				   "%ld (%s)", dir, c->num_hidden_layers, last->file, most, last->name);
	return 0;
}
