// SPDX-License-Identifier: Apache-2.0
/*
 * config_deepseek - reads latent attention and experts of DeepSeek-V2 and V3
 *
 * These keys are required, because the defaults of transformers (q_lora_rank 1536, 64 experts, ...) fit at
 * most one published model.
 */
#include "serving/model/checkpoint/config_impl.h"

#include "primitives/base/error.h"

static int get_latent(const json_t *root, struct cairn_json_at at, struct cairn_model_config *c)
{
	struct cairn_latent_config *l = &c->latent;
	const int32_t heads = c->num_attention_heads;

	l->kv_lora_rank = l->nope_dim = l->rope_dim = l->v_dim = -1;
	if (!json_object_get(root, "q_lora_rank"))
		return cairn_error(EINVAL, "%s: q_lora_rank: is missing", at.file);
	CAIRN_TRY(cairn_config_size(root, at, "q_lora_rank", CAIRN_MAX_HIDDEN, &l->q_lora_rank));
	CAIRN_TRY(cairn_config_size(root, at, "kv_lora_rank", CAIRN_MAX_HIDDEN, &l->kv_lora_rank));
	CAIRN_TRY(cairn_config_size(root, at, "qk_nope_head_dim", CAIRN_MAX_HEAD_DIM, &l->nope_dim));
	CAIRN_TRY(cairn_config_size(root, at, "qk_rope_head_dim", CAIRN_MAX_HEAD_DIM, &l->rope_dim));
	CAIRN_TRY(cairn_config_size(root, at, "v_head_dim", CAIRN_MAX_HEAD_DIM, &l->v_dim));
	if (l->rope_dim % 2 || l->nope_dim % 2)
		return cairn_error(EINVAL, "%s: qk_rope_head_dim, qk_nope_head_dim: must be even, are %d, %d",
				   at.file, l->rope_dim, l->nope_dim);
	if (l->nope_dim + l->rope_dim > CAIRN_MAX_HEAD_DIM)
		return cairn_error(EINVAL, "%s: qk_nope_head_dim, qk_rope_head_dim: %d + %d exceed %d",
				   at.file, l->nope_dim, l->rope_dim, CAIRN_MAX_HEAD_DIM);
	if (heads * (l->nope_dim + l->rope_dim) > CAIRN_MAX_HIDDEN ||
	    heads * (l->nope_dim + l->v_dim) > CAIRN_MAX_HIDDEN)
		return cairn_error(EINVAL, "%s: num_attention_heads: %d heads of %d + %d and %d exceed %d",
				   at.file, heads, l->nope_dim, l->rope_dim, l->v_dim, CAIRN_MAX_HIDDEN);
	c->head_dim = l->nope_dim + l->rope_dim;
	c->num_key_value_heads = heads;
	CAIRN_TRY(cairn_config_size(root, at, "num_key_value_heads", CAIRN_MAX_HEADS,
				    &c->num_key_value_heads));
	if (c->num_key_value_heads != heads)
		return cairn_error(EINVAL, "%s: num_key_value_heads: must be num_attention_heads %d, is %d",
				   at.file, heads, c->num_key_value_heads);
	CAIRN_TRY(cairn_config_refuse(root, at, "rope_interleave", false));
	CAIRN_TRY(cairn_config_refuse(root, at, "attention_bias", true));
	return cairn_config_refuse(root, at, "mlp_bias", true);
}

/* Reads the groups of experts. A group is ranked by its `best` largest scores. n_group 1 means no groups. */
static int get_groups(const json_t *root, struct cairn_json_at at, struct cairn_experts_config *x, int best)
{
	int32_t groups = -1, per_token = -1;

	CAIRN_TRY(cairn_config_size(root, at, "n_group", x->num_experts, &groups));
	CAIRN_TRY(cairn_config_size(root, at, "topk_group", groups, &per_token));
	if (x->num_experts % groups)
		return cairn_error(EINVAL, "%s: n_group: %d does not divide n_routed_experts %d", at.file,
				   groups, x->num_experts);
	if (groups > 1 && x->num_experts / groups < best)
		return cairn_error(EINVAL, "%s: n_group: %d groups have fewer than %d experts each", at.file,
				   groups, best);
	if (x->num_experts / groups * per_token < x->per_token)
		return cairn_error(EINVAL, "%s: topk_group: %d groups of %d experts are fewer than "
				   "num_experts_per_tok %d", at.file, per_token, x->num_experts / groups,
				   x->per_token);
	x->num_groups = groups > 1 ? groups : 0;
	x->groups_per_token = groups > 1 ? per_token : 0;
	return 0;
}

static int get_moe_layers(const json_t *root, struct cairn_json_at at)
{
	int64_t every = 1;

	CAIRN_TRY(cairn_json_int(root, at, "moe_layer_freq", false, 1, CAIRN_MAX_LAYERS, &every));
	if (every != 1)
		return cairn_error(EOPNOTSUPP, "%s: moe_layer_freq: %lld is not supported (1 is)", at.file,
				   (long long)every);
	return 0;
}

/* Reads how DeepSeek-V2 chooses and weights a token's experts. */
static int get_routing(const json_t *root, struct cairn_json_at at, struct cairn_experts_config *x)
{
	static const char *const methods[] = { "greedy", "group_limited_greedy" };
	static const char *const scores[] = { "softmax" };
	int grouped = 0, only;

	CAIRN_TRY(cairn_config_choice(root, at, "topk_method", methods, 2, &grouped));
	CAIRN_TRY(cairn_config_choice(root, at, "scoring_func", scores, 1, &only));
	CAIRN_TRY(cairn_json_bool(root, at, "norm_topk_prob", false, &x->normalize));
	x->scaling = 1;
	CAIRN_TRY(cairn_json_number(root, at, "routed_scaling_factor", false, 0, 1e6, &x->scaling));
	/* Implementations disagree: DeepSeek's own code does not scale normalised weights, others do. */
	if (x->normalize && x->scaling != 1)
		return cairn_error(EOPNOTSUPP, "%s: routed_scaling_factor: %g is not supported together with "
				   "norm_topk_prob (1 is)", at.file, x->scaling);
	return grouped ? get_groups(root, at, x, 1) : 0;
}

/* The same for DeepSeek-V3. transformers ignores the first two keys: it has only the method named here. */
static int get_sigmoid_routing(const json_t *root, struct cairn_json_at at, struct cairn_experts_config *x)
{
	static const char *const methods[] = { "noaux_tc" }, *const scores[] = { "sigmoid" };
	int only;

	CAIRN_TRY(cairn_config_choice(root, at, "topk_method", methods, 1, &only));
	CAIRN_TRY(cairn_config_choice(root, at, "scoring_func", scores, 1, &only));
	x->sigmoid = true;
	x->normalize = true;
	CAIRN_TRY(cairn_json_bool(root, at, "norm_topk_prob", false, &x->normalize));
	x->scaling = 2.5;
	CAIRN_TRY(cairn_json_number(root, at, "routed_scaling_factor", false, 0, 1e6, &x->scaling));
	return get_groups(root, at, x, 2);
}

static int get_experts(const json_t *root, struct cairn_json_at at, struct cairn_model_config *c)
{
	struct cairn_experts_config *x = &c->experts;
	int v3 = c->arch == CAIRN_ARCH_DEEPSEEK_V3;
	int64_t shared = 0, dense = v3 ? 3 : 0;

	x->num_experts = x->per_token = x->intermediate_size = -1;
	CAIRN_TRY(cairn_config_size(root, at, "n_routed_experts", CAIRN_MAX_EXPERTS, &x->num_experts));
	CAIRN_TRY(cairn_config_size(root, at, "num_experts_per_tok", x->num_experts, &x->per_token));
	CAIRN_TRY(cairn_config_size(root, at, "moe_intermediate_size", CAIRN_MAX_INTERMEDIATE,
				    &x->intermediate_size));
	if (!json_object_get(root, "n_shared_experts"))
		return cairn_error(EINVAL, "%s: n_shared_experts: is missing", at.file);
	CAIRN_TRY(cairn_json_int(root, at, "n_shared_experts", false, 0,
				 CAIRN_MAX_INTERMEDIATE / x->intermediate_size, &shared));
	CAIRN_TRY(cairn_json_int(root, at, "first_k_dense_replace", false, 0, c->num_hidden_layers - 1,
				 &dense));
	x->shared_intermediate_size = (int32_t)shared * x->intermediate_size;
	if (dense >= c->num_hidden_layers)
		return cairn_error(EINVAL, "%s: first_k_dense_replace: is missing, and its default %lld "
				   "leaves no layer with experts", at.file, (long long)dense);
	x->dense_layers = (int32_t)dense;
	CAIRN_TRY(get_moe_layers(root, at));
	return v3 ? get_sigmoid_routing(root, at, x) : get_routing(root, at, x);
}

int cairn_model_config_mtp(const char *dir, struct cairn_model_config *c)
{
	if (c->arch != CAIRN_ARCH_DEEPSEEK_V3)
		return cairn_error(EOPNOTSUPP, "%s/config.json: architectures: multi-token prediction is "
				   "supported for DeepseekV3ForCausalLM only", dir);
	if (c->num_nextn_layers != 1)
		return cairn_error(c->num_nextn_layers ? EOPNOTSUPP : EINVAL, "%s/config.json: "
				   "num_nextn_predict_layers: is %d, must be 1 for multi-token "
				   "prediction", dir, c->num_nextn_layers);
	c->mtp_layer = c->num_hidden_layers;
	c->num_hidden_layers = 1;
	c->num_nextn_layers = 0;
	c->experts.dense_layers = 0;
	c->tie_word_embeddings = false;
	return 0;
}

int cairn_config_deepseek(const json_t *root, struct cairn_json_at at, struct cairn_model_config *c)
{
	CAIRN_TRY(get_latent(root, at, c));
	return get_experts(root, at, c);
}
