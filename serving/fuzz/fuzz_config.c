// SPDX-License-Identifier: Apache-2.0
/*
 * fuzz_config - parses arbitrary bytes as config.json
 *
 * An accepted file must satisfy the guarantees of config.h, and it must be possible to lay out its model.
 *
 * Input: config.json, optionally followed by a NUL and generation_config.json.
 */
#include <math.h>
#include <string.h>

#include "serving/model/checkpoint/config.h"
#include "serving/fuzz/fuzz.h"
#include "serving/model/load/model_impl.h"

static int in(int64_t v, int64_t lo, int64_t hi)
{
	return v >= lo && v <= hi;
}

static int is_positive(double v)
{
	return isfinite(v) && v > 0;
}

static void check_sizes(const struct cairn_model_config *c)
{
	const struct cairn_latent_config *l = &c->latent;
	const struct cairn_experts_config *x = &c->experts;
	int64_t heads = c->num_attention_heads;

	FUZZ_HOLDS(in(c->hidden_size, 1, CAIRN_MAX_HIDDEN) && in(c->vocab_size, 1, CAIRN_MAX_VOCAB));
	FUZZ_HOLDS(in(c->intermediate_size, 1, CAIRN_MAX_INTERMEDIATE));
	FUZZ_HOLDS(in(c->num_hidden_layers, 1, CAIRN_MAX_LAYERS) && in(heads, 1, CAIRN_MAX_HEADS));
	FUZZ_HOLDS(in(c->num_key_value_heads, 1, heads) && heads % c->num_key_value_heads == 0);
	FUZZ_HOLDS(in(c->head_dim, 2, CAIRN_MAX_HEAD_DIM) && c->head_dim % 2 == 0);
	FUZZ_HOLDS(heads * c->head_dim <= CAIRN_MAX_HIDDEN);
	FUZZ_HOLDS(in(c->max_position_embeddings, 1, CAIRN_MAX_POSITIONS));
	if (l->kv_lora_rank) {
		FUZZ_HOLDS(in(l->kv_lora_rank, 1, CAIRN_MAX_HIDDEN));
		FUZZ_HOLDS(in(l->q_lora_rank, 0, CAIRN_MAX_HIDDEN));
		FUZZ_HOLDS(in(l->rope_dim, 2, CAIRN_MAX_HEAD_DIM) && l->rope_dim % 2 == 0);
		FUZZ_HOLDS(l->nope_dim + l->rope_dim == c->head_dim && l->v_dim > 0);
		FUZZ_HOLDS(heads * ((int64_t)l->nope_dim + l->v_dim) <= CAIRN_MAX_HIDDEN);
	}
	if (x->num_experts) {
		FUZZ_HOLDS(in(x->num_experts, 1, CAIRN_MAX_EXPERTS) && in(x->per_token, 1, x->num_experts));
		FUZZ_HOLDS(in(x->intermediate_size, 1, CAIRN_MAX_INTERMEDIATE) && is_positive(x->scaling));
		FUZZ_HOLDS(in(x->shared_intermediate_size, 0, CAIRN_MAX_INTERMEDIATE));
		FUZZ_HOLDS(in(x->dense_layers, 0, c->num_hidden_layers - 1));
		if (x->num_groups)
			FUZZ_HOLDS(in(x->num_groups, 2, x->num_experts) &&
				   x->num_experts % x->num_groups == 0 &&
				   in(x->groups_per_token, 1, x->num_groups) &&
				   x->num_experts / x->num_groups * x->groups_per_token >= x->per_token);
	}
}

static void check_numbers(const struct cairn_model_config *c)
{
	int has_window = 0;

	FUZZ_HOLDS(is_positive(c->rms_norm_eps) && is_positive(c->rope.theta) && is_positive(c->rope.factor));
	FUZZ_HOLDS(is_positive(cairn_softmax_scale(c)) && is_positive(c->rope.attention_factor));
	FUZZ_HOLDS(isfinite(c->norm_offset) && isfinite(c->attn_softcap) && isfinite(c->logit_softcap));
	FUZZ_HOLDS(c->attn_softcap >= 0 && c->logit_softcap >= 0 && c->query_scalar >= 0);
	FUZZ_HOLDS(!c->experts.biases || (is_positive(c->experts.clamp_alpha) &&
					  is_positive(c->experts.clamp_limit)));
	FUZZ_HOLDS(in(c->num_nextn_layers, 0, CAIRN_MAX_LAYERS));
	FUZZ_HOLDS(in(c->draft_vocab_size, 0, CAIRN_MAX_VOCAB) && in(c->num_taps, 0, CAIRN_MAX_TAPS));
	for (int32_t i = 0; i < c->num_taps; i++)
		FUZZ_HOLDS(in(c->taps[i], 1, CAIRN_MAX_LAYERS - 1));
	FUZZ_HOLDS(in(c->window, 0, c->max_position_embeddings - 1));
	for (int32_t i = 0; i < c->num_hidden_layers; i++) {
		FUZZ_HOLDS(in(cairn_layer_window(c, i), 0, c->window));
		has_window |= cairn_layer_window(c, i) != 0;
	}
	FUZZ_HOLDS(has_window == (c->window != 0));
	FUZZ_HOLDS(in(c->bos_token_id, -1, c->vocab_size - 1) && in(c->num_eos, 0, CAIRN_MAX_EOS));
	for (int32_t i = 0; i < c->num_eos; i++)
		FUZZ_HOLDS(in(c->eos_token_ids[i], 0, c->vocab_size - 1));
}

static void check_rope(const struct cairn_model_config *c)
{
	static float frequencies[CAIRN_MAX_HEAD_DIM / 2];
	const int32_t dim = cairn_rope_dim(c);

	FUZZ_HOLDS(in(dim, 2, CAIRN_MAX_HEAD_DIM) && dim % 2 == 0);
	cairn_rope_frequencies(c, frequencies);
	for (int32_t i = 0; i < dim / 2; i++)
		FUZZ_HOLDS(isfinite(frequencies[i]) && frequencies[i] >= 0);
}

static void lay_out(const struct cairn_model_config *c, int dtype, enum cairn_weights weights)
{
	static struct cairn_model m;

	memset(&m, 0, sizeof(m));
	m.config = *c;
	m.dtype = dtype;
	m.weights = weights;
	cairn_model_lay_out(&m);
	FUZZ_HOLDS(cairn_model_bytes(&m) > 0 && (size_t)cairn_model_bytes(&m) <= m.bytes);
	FUZZ_HOLDS(cairn_model_step_bytes(&m, 1, c->max_position_embeddings) > 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	const char *text = (const char *)data;
	size_t n = strnlen(text, size);
	const char *generation = n < size ? text + n + 1 : NULL;
	struct cairn_model_config c;

	if (cairn_model_config_parse(text, n, generation, generation ? size - n - 1 : 0, "fuzz", &c))
		return 0;
	check_sizes(&c);
	check_numbers(&c);
	check_rope(&c);
	lay_out(&c, CAIRN_F32, CAIRN_WEIGHTS_PLAIN);
	lay_out(&c, CAIRN_BF16, CAIRN_WEIGHTS_FP8);
	lay_out(&c, CAIRN_BF16, CAIRN_WEIGHTS_FP8_BLOCKS);
	FUZZ_HOLDS(!c.w4.group || c.w4.group == 32 || c.w4.group == 64 || c.w4.group == 128);
	if (!c.latent.kv_lora_rank && !c.experts.num_experts)
		lay_out(&c, CAIRN_F16, CAIRN_WEIGHTS_W4);
	if (!cairn_model_config_mtp("fuzz", &c)) {
		FUZZ_HOLDS(c.num_hidden_layers == 1 && c.mtp_layer > 0 && !c.experts.dense_layers);
		lay_out(&c, CAIRN_BF16, CAIRN_WEIGHTS_FP8);
	}
	return 0;
}
