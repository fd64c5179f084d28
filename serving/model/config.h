/* SPDX-License-Identifier: Apache-2.0 */
/*
 * config - what config.json and generation_config.json of a checkpoint say about the model
 *
 * Read by the rules of Hugging Face transformers, versions 4 and 5: absent keys take the defaults
 * of the architecture, rope parameters are accepted under rope_theta + rope_scaling as well as
 * under rope_parameters (rope_scaling counts where both say something), the kind of scaling under
 * "rope_type" as well as "type", the dtype under "dtype" as well as "torch_dtype". What would change the
 * result and is not implemented is refused with -EOPNOTSUPP, never ignored: another architecture,
 * quantized weights, other kinds of rope scaling, partial rotation, attention that is not causal, other
 * activations, other ways to choose experts. Keys that only concern training or the Python library are
 * ignored.
 *
 * After success these hold, and later arithmetic relies on them:
 *   - every size lies within the limits below; num_attention_heads is a multiple of
 *     num_key_value_heads; head_dim is even; num_attention_heads * head_dim <= CAIRN_MAX_HIDDEN;
 *     with latent attention rope_dim is even, and heads times nope_dim + v_dim is no larger either;
 *   - with experts 1 <= per_token <= num_experts, and 0 <= dense_layers < num_hidden_layers;
 *   - window is 0, or less than max_position_embeddings and some layer has it;
 *   - all token ids are in [0, vocab_size);
 *   - all floating-point fields that apply are finite and positive.
 *
 * eos_token_ids is generation_config.json's list when that file has one, else config.json's: models
 * that end turns with their own token often say so only there.
 *
 * Errors: -EINVAL, -EOPNOTSUPP, -EIO (no config.json, or it cannot be read), -ENOMEM; the text is
 *         one line that names file and field.
 */
#ifndef CAIRN_CONFIG_H
#define CAIRN_CONFIG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "primitives/base/dtype.h"

#define CAIRN_MAX_HIDDEN	131072	/* hidden_size, num_attention_heads * head_dim */
#define CAIRN_MAX_INTERMEDIATE	1048576
#define CAIRN_MAX_LAYERS	1024
#define CAIRN_MAX_HEADS		1024
#define CAIRN_MAX_HEAD_DIM	1024
#define CAIRN_MAX_EXPERTS	4096
#define CAIRN_MAX_VOCAB		4194304
#define CAIRN_MAX_POSITIONS	(1 << 28)
#define CAIRN_MAX_EOS		16

enum cairn_arch {
	CAIRN_ARCH_LLAMA,	/* Llama 1, 2, 3 */
	CAIRN_ARCH_QWEN2,	/* Qwen2, Qwen2.5 */
	CAIRN_ARCH_DEEPSEEK_V2,	/* DeepSeek-V2-Lite */
	CAIRN_ARCH_MISTRAL,
	CAIRN_ARCH_QWEN3,	/* the dense ones */
	CAIRN_ARCH_GEMMA2,
	CAIRN_ARCH_MIXTRAL,
	CAIRN_NUM_ARCHS
};

enum cairn_activation {
	CAIRN_ACT_SILU,
	CAIRN_ACT_GELU_TANH,	/* gelu by its approximation with tanh */
};

enum cairn_rope_scaling {
	CAIRN_ROPE_NONE,
	CAIRN_ROPE_LINEAR, /* inv_freq / factor */
	CAIRN_ROPE_LLAMA3, /* long wavelengths / factor, short ones unchanged, a blend between */
	CAIRN_ROPE_YARN,   /* the same with a ramp over the elements, and another softmax scale */
};

struct cairn_rope_config {
	double theta;		/* inv_freq[i] = theta^(-2 i / rotated elements), before scaling */
	enum cairn_rope_scaling scaling;
	double factor;		/* > 0; 1 with CAIRN_ROPE_NONE */
	/* CAIRN_ROPE_LLAMA3 alone; low_freq_factor < high_freq_factor */
	double low_freq_factor, high_freq_factor;
	int32_t original_max_position_embeddings;	/* and CAIRN_ROPE_YARN */
	/* CAIRN_ROPE_YARN alone; beta_slow < beta_fast */
	double beta_fast, beta_slow;
	/* of cos and sin; 1 with all other kinds, and with latent attention */
	double attention_factor;
	double mscale_all_dim;		/* 0: none */
};

/* Multi-head latent attention (cluster_mla.h). */
struct cairn_latent_config {
	int32_t q_lora_rank;		/* 0: q is not compressed */
	int32_t kv_lora_rank;		/* 0: no latent attention, and the rest is 0 too */
	int32_t nope_dim, rope_dim, v_dim;
};

/* Mixture of experts (moe.h) in all layers but the first dense_layers. */
struct cairn_experts_config {
	int32_t num_experts;		/* 0: none, and the rest is 0 too */
	int32_t per_token, intermediate_size;
	int32_t shared_intermediate_size;	/* 0: no shared experts */
	int32_t dense_layers;
	bool normalize;
	double scaling;
};

struct cairn_model_config {
	enum cairn_arch arch;
	enum cairn_activation hidden_act;
	int dtype;			/* enum cairn_dtype the weights claim; -1: not said */

	int32_t hidden_size;
	int32_t intermediate_size;
	int32_t num_hidden_layers;
	int32_t num_attention_heads;
	int32_t num_key_value_heads;
	int32_t head_dim;		/* with latent attention nope_dim + rope_dim */
	int32_t vocab_size;
	int32_t max_position_embeddings;

	double rms_norm_eps;
	struct cairn_rope_config rope;
	struct cairn_latent_config latent;
	struct cairn_experts_config experts;

	bool tie_word_embeddings;	/* lm_head is embed_tokens */
	bool qkv_bias, o_bias;		/* these projections have a bias */
	bool mlp_bias;			/* so have gate, up and down */

	int32_t window;			/* keys that a token sees, itself counted; 0: all, in every layer */
	uint8_t windowed[CAIRN_MAX_LAYERS / 8];	/* a bit for each layer: it has the window */
	bool head_norms;		/* each head of q and k is normalised before it is rotated */
	bool block_norms;		/* what attention and MLP give is normalised before it is added */
	/* embeddings are multiplied with sqrt(hidden_size) rounded to the dtype */
	bool embed_scale;
	double norm_offset;		/* added to every weight of a norm */
	double query_scalar;		/* the softmax scale is 1 / sqrt() of it; 0: of head_dim */
	double attn_softcap, logit_softcap;	/* x becomes cap * tanh(x / cap); 0: none */

	int32_t bos_token_id;		/* -1: none */
	int32_t num_eos;
	int32_t eos_token_ids[CAIRN_MAX_EOS];
};

/* dir: a checkpoint directory. */
int cairn_model_config_load(const char *dir, struct cairn_model_config *config);
/* The two files from memory; generation may be NULL. dir: put before file names in messages. */
int cairn_model_config_parse(const char *json, size_t num_bytes, const char *generation,
			     size_t generation_bytes, const char *dir,
			     struct cairn_model_config *config);

/* The window of a layer, or 0. */
int32_t cairn_layer_window(const struct cairn_model_config *config, int32_t layer);

/* Published shapes by name ("llama3-8b"); -EINVAL lists the names. */
int cairn_model_shape(const char *name, struct cairn_model_config *config);

/* Elements of a head, or of a latent key, that are rotated. */
int32_t cairn_rope_dim(const struct cairn_model_config *config);
/* Frequencies of the rotary embedding, [cairn_rope_dim() / 2], scaling applied; fp32, as transformers
 * computes them. */
void cairn_rope_frequencies(const struct cairn_model_config *config, float *inv_freq);
/*
 * What the scores are multiplied with. Where all elements are rotated it holds the factor of cos and sin
 * (twice: q and k have it), so that no rotation need know of it; the cache then holds keys without it.
 */
double cairn_softmax_scale(const struct cairn_model_config *config);

#endif
