// SPDX-License-Identifier: Apache-2.0
/*
 * config_arch - reads the keys other than sizes for architectures without latent attention
 *
 * Defaults are those of transformers, but keys whose default fits only one published model (KV heads,
 * experts) are required. All layers that have a window have the same one. Mistral and Mixtral have it in all
 * layers, Qwen from layer max_window_layers on (with experts in all), Gemma 2 and gpt-oss in every other
 * layer; layer_types, if present, decides for each layer.
 */
#include "serving/model/checkpoint/config_impl.h"

#include <string.h>

#include "primitives/base/error.h"

static void set_window(struct cairn_model_config *c, int32_t layer)
{
	c->windowed[layer / 8] |= (uint8_t)(1 << layer % 8);
}

int32_t cairn_layer_window(const struct cairn_model_config *c, int32_t layer)
{
	return c->windowed[layer / 8] >> layer % 8 & 1 ? c->window : 0;
}

/* Reads layer_types. Sets *given if the key is present and so decides which layers have a window. */
static int get_layer_types(const json_t *root, struct cairn_json_at at, struct cairn_model_config *c,
			   bool *given)
{
	static const char *const kinds[] = { "full_attention", "sliding_attention" };
	json_t *layers = NULL;
	int kind;

	CAIRN_TRY(cairn_json_child(root, at, "layer_types", false, JSON_ARRAY, &layers));
	*given = layers != NULL;
	if (layers && json_array_size(layers) != (size_t)c->num_hidden_layers)
		return cairn_error(EINVAL, "%s: layer_types: has %zu entries for %d layers", at.file,
				   json_array_size(layers), c->num_hidden_layers);
	for (size_t i = 0; i < json_array_size(layers); i++) {
		const char *name = json_string_value(json_array_get(layers, i));

		if (!name)
			return cairn_error(EINVAL, "%s: layer_types[%zu]: must be a string, is %s", at.file,
					   i, cairn_json_type_name(json_array_get(layers, i)));
		CAIRN_TRY(cairn_config_find(name, at, "layer_types", kinds, 2, &kind));
		if (kind && !c->window)
			return cairn_error(EINVAL, "%s: layer_types[%zu]: sliding_attention, but there is no "
					   "sliding_window", at.file, i);
		if (kind)
			set_window(c, (int32_t)i);
	}
	return 0;
}

/* Reads sliding_window: null means no window, an absent key means `otherwise`. */
static int get_window(const json_t *root, struct cairn_json_at at, struct cairn_model_config *c,
		      int32_t otherwise)
{
	const json_t *v = json_object_get(root, "sliding_window");

	c->window = v && json_is_null(v) ? 0 : otherwise;
	return cairn_config_size(root, at, "sliding_window", CAIRN_MAX_POSITIONS, &c->window);
}

/* Removes a window that no layer has or that no context can exceed, so that the model can use operations
 * without window support. */
static void drop_window(struct cairn_model_config *c)
{
	bool some = false;

	for (size_t i = 0; i < sizeof(c->windowed); i++)
		some |= c->windowed[i] != 0;
	if (some && c->window < c->max_position_embeddings)
		return;
	c->window = 0;
	memset(c->windowed, 0, sizeof(c->windowed));
}

/* Mistral and Mixtral: a window in every layer. */
static int get_window_of_all(const json_t *root, struct cairn_json_at at, struct cairn_model_config *c,
			     int32_t otherwise)
{
	if (json_object_get(root, "layer_types"))	/* transformers ignores it for these models */
		return cairn_error(EOPNOTSUPP, "%s: layer_types: is not supported with this model_type",
				   at.file);
	CAIRN_TRY(get_window(root, at, c, otherwise));
	for (int32_t i = 0; c->window && i < c->num_hidden_layers; i++)
		set_window(c, i);
	drop_window(c);
	return 0;
}

/* Qwen2 and Qwen3: a window in the last layers. */
static int get_window_of_last(const json_t *root, struct cairn_json_at at, struct cairn_model_config *c)
{
	bool used = false, given;
	int64_t first = 28;

	CAIRN_TRY(cairn_json_bool(root, at, "use_sliding_window", false, &used));
	if (used)
		CAIRN_TRY(get_window(root, at, c, 4096));
	CAIRN_TRY(cairn_json_int(root, at, "max_window_layers", false, 0, CAIRN_MAX_LAYERS, &first));
	CAIRN_TRY(get_layer_types(root, at, c, &given));
	for (int64_t i = first; c->window && !given && i < c->num_hidden_layers; i++)
		set_window(c, (int32_t)i);
	drop_window(c);
	return 0;
}

static int get_biases(const json_t *root, struct cairn_json_at at, struct cairn_model_config *c)
{
	CAIRN_TRY(cairn_json_bool(root, at, "attention_bias", false, &c->qkv_bias));
	c->o_bias = c->qkv_bias;
	return 0;
}

/* Gemma 2 and gpt-oss: a window in every other layer, the first one included. */
static int get_window_of_every_other(const json_t *root, struct cairn_json_at at,
				     struct cairn_model_config *c, int32_t otherwise)
{
	bool given;

	CAIRN_TRY(get_window(root, at, c, otherwise));
	CAIRN_TRY(get_layer_types(root, at, c, &given));
	for (int32_t i = 0; c->window && !given && i < c->num_hidden_layers; i += 2)
		set_window(c, i);
	drop_window(c);
	return 0;
}

static int get_gemma2(const json_t *root, struct cairn_json_at at, struct cairn_model_config *c)
{
	static const char *const acts[] = { "gelu_pytorch_tanh" };
	const json_t *attn = json_object_get(root, "attn_logit_softcapping");
	const json_t *final = json_object_get(root, "final_logit_softcapping");
	int only;

	CAIRN_TRY(get_biases(root, at, c));
	CAIRN_TRY(cairn_config_choice(root, at, "hidden_activation", acts, 1, &only));
	CAIRN_TRY(cairn_config_refuse(root, at, "use_bidirectional_attention", true));
	c->hidden_act = CAIRN_ACT_GELU_TANH;
	c->block_norms = true;
	c->norm_offset = 1;
	c->embed_scale = true;
	c->query_scalar = 256;
	CAIRN_TRY(cairn_json_number(root, at, "query_pre_attn_scalar", false, 0, 1e6, &c->query_scalar));
	c->attn_softcap = attn && json_is_null(attn) ? 0 : 50;
	c->logit_softcap = final && json_is_null(final) ? 0 : 30;
	CAIRN_TRY(cairn_json_number(root, at, "attn_logit_softcapping", false, 0, 1e6, &c->attn_softcap));
	CAIRN_TRY(cairn_json_number(root, at, "final_logit_softcapping", false, 0, 1e6, &c->logit_softcap));
	return get_window_of_every_other(root, at, c, 4096);
}

static int get_mixtral(const json_t *root, struct cairn_json_at at, struct cairn_model_config *c)
{
	struct cairn_experts_config *x = &c->experts;

	x->num_experts = x->per_token = -1;
	CAIRN_TRY(cairn_config_size(root, at, "num_local_experts", CAIRN_MAX_EXPERTS, &x->num_experts));
	CAIRN_TRY(cairn_config_size(root, at, "num_experts_per_tok", x->num_experts, &x->per_token));
	x->intermediate_size = c->intermediate_size;
	x->normalize = true;
	x->scaling = 1;
	return get_window_of_all(root, at, c, 0);
}

/* Reads mlp_only_layers: the layers without experts, which must be the first ones. */
static int get_dense_layers(const json_t *root, struct cairn_json_at at, struct cairn_model_config *c)
{
	json_t *list = NULL;

	CAIRN_TRY(cairn_json_child(root, at, "mlp_only_layers", false, JSON_ARRAY, &list));
	for (size_t i = 0; i < json_array_size(list); i++) {
		const json_t *layer = json_array_get(list, i);

		if (!json_is_integer(layer) || json_integer_value(layer) != (json_int_t)i)
			return cairn_error(EOPNOTSUPP, "%s: mlp_only_layers[%zu]: only the first layers may "
					   "lack experts: 0, 1, ...", at.file, i);
	}
	if (json_array_size(list) >= (size_t)c->num_hidden_layers)
		return cairn_error(EOPNOTSUPP, "%s: mlp_only_layers: no layer has experts", at.file);
	c->experts.dense_layers = (int32_t)json_array_size(list);
	return 0;
}

static int get_qwen3_moe(const json_t *root, struct cairn_json_at at, struct cairn_model_config *c)
{
	struct cairn_experts_config *x = &c->experts;
	bool used = false;
	int64_t every = 1;

	c->head_norms = true;
	CAIRN_TRY(get_biases(root, at, c));
	x->num_experts = 128;
	x->per_token = 8;
	x->intermediate_size = 768;
	x->scaling = 1;
	CAIRN_TRY(cairn_config_size(root, at, "num_experts", CAIRN_MAX_EXPERTS, &x->num_experts));
	CAIRN_TRY(cairn_config_size(root, at, "num_experts_per_tok", x->num_experts, &x->per_token));
	CAIRN_TRY(cairn_config_size(root, at, "moe_intermediate_size", CAIRN_MAX_INTERMEDIATE,
				    &x->intermediate_size));
	CAIRN_TRY(cairn_json_bool(root, at, "norm_topk_prob", false, &x->normalize));
	CAIRN_TRY(cairn_json_int(root, at, "decoder_sparse_step", false, 1, CAIRN_MAX_LAYERS, &every));
	if (every != 1)
		return cairn_error(EOPNOTSUPP, "%s: decoder_sparse_step: %lld is not supported (1 is)",
				   at.file, (long long)every);
	CAIRN_TRY(get_dense_layers(root, at, c));
	CAIRN_TRY(cairn_json_bool(root, at, "use_sliding_window", false, &used));
	return used ? get_window_of_all(root, at, c, 4096) : 0;
}

static int get_gpt_oss(const json_t *root, struct cairn_json_at at, struct cairn_model_config *c)
{
	struct cairn_experts_config *x = &c->experts;

	if (!json_object_size(json_object_get(root, "rope_scaling")) &&
	    !json_object_size(json_object_get(root, "rope_parameters")))
		return cairn_error(EINVAL, "%s: rope_scaling: is missing, and so is rope_parameters",
				   at.file);
	c->qkv_bias = c->sinks = x->biases = x->normalize = true;
	CAIRN_TRY(get_biases(root, at, c));
	x->num_experts = x->per_token = -1;
	CAIRN_TRY(cairn_config_size(root, at, "num_local_experts", CAIRN_MAX_EXPERTS, &x->num_experts));
	CAIRN_TRY(cairn_config_size(root, at, "num_experts_per_tok", x->num_experts, &x->per_token));
	x->intermediate_size = c->intermediate_size;
	x->scaling = 1;
	x->clamp_alpha = 1.702;
	x->clamp_limit = 7;
	CAIRN_TRY(cairn_json_number(root, at, "swiglu_alpha", false, 0, 1e6, &x->clamp_alpha));
	CAIRN_TRY(cairn_json_number(root, at, "swiglu_limit", false, 0, 1e6, &x->clamp_limit));
	return get_window_of_every_other(root, at, c, 128);
}

int cairn_config_arch(const json_t *root, struct cairn_json_at at, struct cairn_model_config *c)
{
	switch (c->arch) {
	case CAIRN_ARCH_QWEN2:
		c->qkv_bias = true;
		return get_window_of_last(root, at, c);
	case CAIRN_ARCH_QWEN3:
		c->head_norms = true;
		CAIRN_TRY(get_biases(root, at, c));
		return get_window_of_last(root, at, c);
	case CAIRN_ARCH_MISTRAL:
		return get_window_of_all(root, at, c, 4096);
	case CAIRN_ARCH_MIXTRAL:
		return get_mixtral(root, at, c);
	case CAIRN_ARCH_GEMMA2:
		return get_gemma2(root, at, c);
	case CAIRN_ARCH_QWEN3_MOE:
		return get_qwen3_moe(root, at, c);
	case CAIRN_ARCH_GPT_OSS:
		return get_gpt_oss(root, at, c);
	default:
		CAIRN_TRY(get_biases(root, at, c));
		return cairn_json_bool(root, at, "mlp_bias", false, &c->mlp_bias);
	}
}
