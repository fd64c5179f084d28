/* SPDX-License-Identifier: Apache-2.0 */
/*
 * config - reads config.json and generation_config.json of a checkpoint
 *
 * The rules are those of Hugging Face transformers, versions 4 and 5: absent keys take the defaults of the
 * architecture; rope parameters are accepted as rope_theta + rope_scaling or as rope_parameters (rope_scaling
 * wins if both are given); the kind of scaling as "rope_type" or "type"; the dtype as "dtype" or
 * "torch_dtype". A key that would change the result but is not implemented is refused with -EOPNOTSUPP, never
 * ignored: another architecture, weights quantized other than to fp8 or 4 bits, other kinds of rope scaling,
 * partial rotation, non-causal attention, other activations, other ways to choose experts. Keys that only
 * concern training or the Python library are ignored.
 *
 * After success these hold, and later arithmetic relies on them:
 *   - every size is within the limits below; num_attention_heads is a multiple of num_key_value_heads;
 *     head_dim is even; num_attention_heads * head_dim <= CAIRN_MAX_HIDDEN; with latent attention rope_dim is
 *     even, and num_attention_heads * (nope_dim + v_dim) <= CAIRN_MAX_HIDDEN;
 *   - with experts 1 <= per_token <= num_experts, and 0 <= dense_layers < num_hidden_layers; with groups
 *     num_groups > 1 divides num_experts, 1 <= groups_per_token <= num_groups, and the experts of that many
 *     groups are at least per_token;
 *   - window is 0, or it is less than max_position_embeddings and at least one layer has it;
 *   - all token ids are in [0, vocab_size);
 *   - all floating-point members that apply are finite and positive.
 *
 * eos_token_ids is the list of generation_config.json if that file has one, else that of config.json. Many
 * chat models name the token that ends a turn only in generation_config.json.
 *
 * Errors: -EINVAL, -EOPNOTSUPP, -EIO (no config.json, or it cannot be read), -ENOMEM; the
 * text is one line that names file and key.
 */
#ifndef CAIRN_CONFIG_H
#define CAIRN_CONFIG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "primitives/base/dtype.h"

#define CAIRN_MAX_HIDDEN	131072	/* limit of hidden_size and of num_attention_heads * head_dim */
#define CAIRN_MAX_INTERMEDIATE	1048576
#define CAIRN_MAX_LAYERS	1024
#define CAIRN_MAX_HEADS		1024
#define CAIRN_MAX_HEAD_DIM	1024
#define CAIRN_MAX_EXPERTS	4096
#define CAIRN_MAX_VOCAB		4194304
#define CAIRN_MAX_POSITIONS	(1 << 28)
#define CAIRN_MAX_TAPS		3
#define CAIRN_MAX_EOS		16

enum cairn_arch {
	CAIRN_ARCH_LLAMA,	/* Llama 1, 2, 3 */
	CAIRN_ARCH_QWEN2,	/* Qwen2, Qwen2.5 */
	CAIRN_ARCH_DEEPSEEK_V2,	/* DeepSeek-V2 and V2-Lite */
	CAIRN_ARCH_MISTRAL,
	CAIRN_ARCH_QWEN3,
	CAIRN_ARCH_GEMMA2,
	CAIRN_ARCH_MIXTRAL,
	CAIRN_ARCH_QWEN3_MOE,
	CAIRN_ARCH_DEEPSEEK_V3,	/* DeepSeek-V3 and R1 */
	CAIRN_ARCH_GPT_OSS,
	CAIRN_NUM_ARCHS
};

enum cairn_activation {
	CAIRN_ACT_SILU,
	CAIRN_ACT_GELU_TANH,	/* the tanh approximation of GELU */
};

enum cairn_rope_scaling {
	CAIRN_ROPE_NONE,
	CAIRN_ROPE_LINEAR, /* inv_freq / factor */
	CAIRN_ROPE_LLAMA3, /* long wavelengths: inv_freq / factor; short: unchanged; a blend between */
	CAIRN_ROPE_YARN,   /* as LLAMA3, with a ramp over the elements; also changes the softmax scale */
	CAIRN_ROPE_LONGROPE, /* inv_freq / a divisor for each element; also changes the softmax scale */
};

struct cairn_rope_config {
	double theta;		/* inv_freq[i] = theta^(-2 i / rotated elements), before scaling */
	enum cairn_rope_scaling scaling;
	double factor;		/* > 0; 1 with CAIRN_ROPE_NONE */
	/* CAIRN_ROPE_LLAMA3 only; low_freq_factor < high_freq_factor */
	double low_freq_factor, high_freq_factor;
	int32_t original_max_position_embeddings;	/* LLAMA3, YARN and LONGROPE */
	/* CAIRN_ROPE_YARN only; beta_slow < beta_fast */
	double beta_fast, beta_slow;
	bool untruncated;	/* YARN: the ends of the ramp are not rounded to whole elements */
	/* YARN and LONGROPE: factor of cos and sin; 1 for all other kinds and with latent attention. */
	double attention_factor;
	double mscale_all_dim;		/* changes the softmax scale; 0: does not */
	float divisors[CAIRN_MAX_HEAD_DIM / 2];	/* CAIRN_ROPE_LONGROPE only; > 0 */
};

/*
 * Multi-head latent attention (MLA; cluster_mla.h). The norms of compressed queries and of latents have this
 * eps, whatever rms_norm_eps is: DeepSeek's code and transformers create them without the config's value.
 */
#define CAIRN_LATENT_NORM_EPS	1e-6
struct cairn_latent_config {
	int32_t q_lora_rank;		/* 0: q is not compressed */
	int32_t kv_lora_rank;		/* 0: no latent attention; the other members are 0, too */
	int32_t nope_dim, rope_dim, v_dim;	/* per head: unrotated and rotated part of q, k; v */
};

/* Mixture of experts (moe.h), in all layers except the first dense_layers. */
struct cairn_experts_config {
	int32_t num_experts;		/* 0: no experts; the other members are 0, too */
	int32_t per_token, intermediate_size;	/* experts chosen per token; size of each */
	int32_t shared_intermediate_size;	/* 0: no shared experts */
	int32_t dense_layers;		/* leading layers without experts */
	bool normalize;			/* weights of the chosen experts are scaled to sum 1 */
	double scaling;			/* factor of the routed experts' sum; not of the shared ones */
	bool sigmoid;			/* scores are sigmoids and have a bias (DeepSeek-V3), not a softmax */
	int32_t num_groups, groups_per_token;	/* moe.h; num_groups 0: no groups */
	/* gpt-oss: router, gate, up and down have biases, and all experts of a layer are one tensor */
	bool biases;
	double clamp_alpha, clamp_limit;	/* of moe.h's activation 1; 0: silu(gate) * up */
};

/* Whether matrices may be stored as e4m3, and how many elements share a scale. */
enum cairn_stored_fp8 {
	CAIRN_STORED_PLAIN,		/* no matrix is stored as e4m3 */
	CAIRN_STORED_BLOCKS,		/* 128 x 128 elements; scales of X.weight: X.weight_scale_inv */
	CAIRN_STORED_ROWS,		/* a row; X.weight_scale [rows, 1] */
	CAIRN_STORED_TENSOR		/* all; X.weight_scale [1] */
};

/*
 * How matrices X.weight [n, k] are stored in 4 bits. A code minus a zero point, times a scale, is an element;
 * `group` elements along k share zero point and scale. Words of 8 codes are int32.
 */
enum cairn_stored_w4 {
	CAIRN_STORED_NO_W4,
	CAIRN_STORED_AWQ,	/* X.qweight [k, n / 8], X.qzeros [groups, n / 8], X.scales [groups, n] */
	CAIRN_STORED_GPTQ,	/* X.qweight [k / 8, n], X.qzeros less 1, X.scales, optional X.g_idx [k] */
	CAIRN_STORED_GPTQ_V2,	/* the same with X.qzeros as they are */
	CAIRN_STORED_PACKED,	/* X.weight_packed [n, k / 8], X.weight_scale [n, groups] */
	/* e2m1: bytes X.weight_packed [n, k / 2], X.weight_scale [n, k / 16] over X.weight_global_scale */
	CAIRN_STORED_NVFP4
};

struct cairn_w4_config {
	enum cairn_stored_w4 stored;
	int32_t group;		/* 32, 64, 128, or 0: all of k; NVFP4: 16 */
	bool has_zeros;		/* PACKED: with X.weight_zero_point [n / 8, groups]; else all are 8 */
	bool has_order;		/* GPTQ: desc_act: X.g_idx is required, and shows the order of groups */
};

struct cairn_model_config {
	enum cairn_arch arch;
	enum cairn_activation hidden_act;
	int dtype;			/* enum cairn_dtype that the config gives; -1: none */
	enum cairn_stored_fp8 stored_fp8;
	bool stored_mxfp4;		/* experts X may be stored as X_blocks and X_scales */
	struct cairn_w4_config w4;	/* group also applies to random weights in 4 bits */

	int32_t hidden_size;
	int32_t intermediate_size;
	int32_t num_hidden_layers;
	/*
	 * An EAGLE-3 head, which is no model of its own, has draft_vocab_size > 0. It sees num_taps hidden
	 * states of its target, those that enter the layers `taps`; num_taps 0: not given.
	 */
	int32_t draft_vocab_size, target_hidden_size, num_taps, taps[CAIRN_MAX_TAPS];
	int32_t num_nextn_layers;	/* num_nextn_predict_layers: stored after the others */
	/* Above 0: this is the config of the layer of that number alone (cairn_model_config_mtp()). */
	int32_t mtp_layer;
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
	bool qkv_bias, o_bias;		/* the projections have biases */
	bool mlp_bias;			/* gate, up and down have biases */

	int32_t window;			/* keys a token attends to, itself included; 0: no window */
	uint8_t windowed[CAIRN_MAX_LAYERS / 8];	/* one bit per layer: set if it has the window */
	bool sinks;			/* every head has a learned attention sink (attn_merge.h) */
	bool head_norms;		/* each head of q and k is normalised before rotation */
	bool block_norms;		/* outputs of attention and MLP are normalised */
	/* embeddings are multiplied by sqrt(hidden_size), rounded to the dtype */
	bool embed_scale;
	double norm_offset;		/* added to every norm weight */
	/* softmax scale: 1 / sqrt(query_scalar); 0: 1 / sqrt(head_dim) */
	double query_scalar;
	double attn_softcap, logit_softcap;	/* x becomes cap * tanh(x / cap); 0: none */

	/* above 1: the sizes are those of the share of one of so many ranks (cairn_model_load_rank()) */
	int32_t shares;
	/*
	 * stages above 1: the config is that of stage number `stage` of so many (cairn_model_load_stage()),
	 * whose layer 0 is layer first_layer of the whole model, which has whole_layers.
	 */
	int32_t stage, stages, first_layer, whole_layers;

	int32_t bos_token_id;		/* -1: none */
	int32_t num_eos;
	int32_t eos_token_ids[CAIRN_MAX_EOS];
};

/* Reads the config of a checkpoint directory. */
int cairn_model_config_load(const char *dir, struct cairn_model_config *config);
/* Parses the two files from memory; generation may be NULL. dir: prefix of the file names in messages. */
int cairn_model_config_parse(const char *json, size_t num_bytes, const char *generation,
			     size_t generation_bytes, const char *dir,
			     struct cairn_model_config *config);

/*
 * Turns *c, the config of a model, into that of its layer for multi-token prediction, as a model of one
 * layer. -EINVAL: the checkpoint in `dir` has no such layer; -EOPNOTSUPP: it has several, or another
 * architecture than DeepSeek-V3's.
 */
int cairn_model_config_mtp(const char *dir, struct cairn_model_config *c);

/* Returns whether all norms have the same eps, as decode_step requires. */
static inline int cairn_config_has_one_eps(const struct cairn_model_config *config)
{
	return !config->latent.kv_lora_rank || (float)config->rms_norm_eps == (float)CAIRN_LATENT_NORM_EPS;
}

/* Returns the window of a layer, or 0. */
int32_t cairn_layer_window(const struct cairn_model_config *config, int32_t layer);

/* Returns the published shape of that name ("llama3-8b"). -EINVAL: unknown name; the text lists the names. */
int cairn_model_shape(const char *name, struct cairn_model_config *config);

/* Returns the number of rotated elements of a head, or of a latent key. */
int32_t cairn_rope_dim(const struct cairn_model_config *config);
/* Writes the frequencies of the rotary embedding, [cairn_rope_dim() / 2], with scaling applied,
 * in fp32 as transformers computes them. */
void cairn_rope_frequencies(const struct cairn_model_config *config, float *inv_freq);
/*
 * Returns the factor of the attention scores. If all elements are rotated, it includes the square of the
 * factor of cos and sin (q and k each have that factor). Rotations therefore do not apply it, and the cache
 * holds keys without it.
 */
double cairn_softmax_scale(const struct cairn_model_config *config);

#endif
