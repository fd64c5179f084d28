/* SPDX-License-Identifier: Apache-2.0 */
/*
 * model - a checkpoint in a table's memory
 *
 * Weights are kept as the operations want them: q, k and v in one matrix [q + 2 kv, hidden], gate and up
 * in one [2 intermediate, hidden], the experts of a layer in two (moe.h), tied embeddings once. All of them
 * lie in one allocation, a weight of one layer layer_bytes behind that of the layer before.
 *
 * Asked to, the matrices of attention and MLP are quantised to 8 bits (e4m3, quant_fp8w.h) as they are
 * loaded, each as it is packed: QKV, O, GATE_UP and DOWN, with latent attention Q_A, Q and KV_A, and of each
 * expert, as of the shared ones, GATE_UP and DOWN. What reads them is then gemm_fp8w, and moe with fp8w;
 * embeddings, norms, biases, routers and the output matrix stay what they are, and so does KV_B, which
 * mla_paged multiplies queries and results with. A table whose moe does not take fp8w refuses models with
 * experts, before anything is read.
 *
 * Data type: that of the config if it is f16 or bf16, else bf16. Tensors stored in another float type,
 * f32 among them, are rounded to it once, on load; one with finite values that overflow it is refused.
 *
 * Errors: -EINVAL (checkpoint or argument; the text names file and field), -EOPNOTSUPP (a size the
 * operations do not take, or the table lacks an operation), -ENOMEM, -EIO. What fails leaves nothing behind.
 */
#ifndef CAIRN_MODEL_H
#define CAIRN_MODEL_H

#include <stddef.h>
#include <stdint.h>

#include "conformance/abi.h"
#include "serving/model/config.h"

enum cairn_dim {
	CAIRN_D_ONE,
	CAIRN_D_HIDDEN,
	CAIRN_D_HEAD,
	CAIRN_D_Q, CAIRN_D_KV,		/* heads * head_dim */
	CAIRN_D_QKV,			/* q + 2 kv */
	CAIRN_D_ATTN,			/* what w_o reads: q, or heads * v_dim */
	CAIRN_D_INTER, CAIRN_D_GATE_UP,	/* intermediate_size, and twice that */
	CAIRN_D_Q_LORA,
	CAIRN_D_LATENT, CAIRN_D_KV_LORA,	/* kv_lora_rank with and without rope_dim */
	CAIRN_D_KV_B,			/* heads * (nope_dim + v_dim) */
	CAIRN_D_EXPERTS, CAIRN_D_EXPERT_INTER, CAIRN_D_SHARED_INTER,
	CAIRN_D_VOCAB,
	CAIRN_NUM_DIMS
};

enum cairn_weight {
	CAIRN_W_NONE,
	/* of each layer */
	CAIRN_W_ATTN_NORM, CAIRN_W_QKV, CAIRN_W_QKV_BIAS, CAIRN_W_O, CAIRN_W_O_BIAS,
	CAIRN_W_Q, CAIRN_W_Q_A, CAIRN_W_Q_NORM, CAIRN_W_KV_A, CAIRN_W_KV_NORM, CAIRN_W_KV_B,
	CAIRN_W_Q_HEAD_NORM, CAIRN_W_K_HEAD_NORM,	/* of each head */
	CAIRN_W_ATTN_OUT_NORM, CAIRN_W_MLP_OUT_NORM,	/* of what attention and MLP give */
	CAIRN_W_MLP_NORM, CAIRN_W_GATE_UP, CAIRN_W_GATE_UP_BIAS, CAIRN_W_DOWN, CAIRN_W_DOWN_BIAS,
	CAIRN_W_ROUTER, CAIRN_W_EXPERTS_GATE_UP, CAIRN_W_EXPERTS_DOWN,
	CAIRN_W_SHARED_GATE_UP, CAIRN_W_SHARED_DOWN,
	/* of the model */
	CAIRN_W_EMBED, CAIRN_W_FINAL_NORM, CAIRN_W_LM_HEAD,
	CAIRN_NUM_WEIGHTS
};

enum cairn_weights {
	CAIRN_WEIGHTS_PLAIN,
	CAIRN_WEIGHTS_FP8,		/* a scale for each row */
	CAIRN_WEIGHTS_FP8_BLOCKS,	/* for each block of 128 x 128 */
	CAIRN_NUM_WEIGHT_FORMS
};

/* Of weights of 8 bits: what operations call it. */
static inline int32_t cairn_weights_scale_kind(enum cairn_weights weights)
{
	return weights == CAIRN_WEIGHTS_FP8_BLOCKS ? CAIRN_FP8_SCALE_BLOCKS : CAIRN_FP8_SCALE_ROWS;
}

/* Names for people, in the order above: "plain", "fp8", "fp8-blocks", NULL. */
extern const char *const cairn_weights_names[];

/* Read-only for others than model.c and model_layout.c. */
struct cairn_model {
	const struct cairn_impl *impl;
	struct cairn_model_config config;
	int dtype;
	enum cairn_weights weights;
	int32_t dims[CAIRN_NUM_DIMS];
	float *inv_freq;	/* [cairn_rope_dim() / 2], in the table's memory, as the weights */
	/* where a weight lies: base + offset, and layer * layer_bytes for those of a layer; elements 0: not
	 * there; offset < 0: not in layer 0 */
	char *base;
	size_t bytes, layer_bytes;
	int64_t offset[CAIRN_NUM_WEIGHTS];
	size_t elements[CAIRN_NUM_WEIGHTS];
};

/* Called now and then while weights load; done == total once, at the end. */
typedef void (*cairn_progress)(void *ctx, int64_t done_bytes, int64_t total_bytes);

/* dir: config.json and safetensors. The table must have been started, and outlives the model. */
int cairn_model_load(struct cairn_model **out, const struct cairn_impl *impl, const char *dir,
		     cairn_progress progress, void *ctx);
int cairn_model_load_as(struct cairn_model **out, const struct cairn_impl *impl, const char *dir,
			enum cairn_weights weights, cairn_progress progress, void *ctx);
/*
 * For benchmarks: weights about normal with deviation 0.02, norms 1, biases 0, the same for the same seed.
 * A block of random values is repeated; its length is prime, so that no two rows of a matrix are equal.
 */
int cairn_model_random(struct cairn_model **out, const struct cairn_impl *impl,
		       const struct cairn_model_config *config, uint64_t seed);
int cairn_model_random_as(struct cairn_model **out, const struct cairn_impl *impl,
			  const struct cairn_model_config *config, enum cairn_weights weights, uint64_t seed);
void cairn_model_free(struct cairn_model *model);	/* NULL is legal */

/* NULL: the model has no such weight. Which layers have which: dense and expert layers differ. */
void *cairn_model_weight(const struct cairn_model *model, int32_t layer, enum cairn_weight weight);

/* Of a matrix of 8 bits, or of all experts' one after the other; NULL: it is of the model's dtype. */
const float *cairn_model_scale(const struct cairn_model *model, int32_t layer, enum cairn_weight weight);

/* Latent attention: the cache holds latents. */
static inline int cairn_model_is_latent(const struct cairn_model *model)
{
	return model->config.latent.kv_lora_rank > 0;
}

/*
 * Bytes that a decode step must read: each weight once (of the embedding only `rows` rows; of the experts as
 * many as `rows` tokens choose on average if each chooses evenly), and keys and values of kv_tokens tokens
 * in all.
 */
int64_t cairn_model_step_bytes(const struct cairn_model *model, int32_t rows, int64_t kv_tokens);

/* Makes the table's own text behind ret this thread's last error: "cuda: gemm: ...". Returns ret. */
int cairn_table_error(const struct cairn_impl *impl, int ret, const char *what);

/* Calls an operation of a table: CAIRN_TABLE(impl, gemm, &args, stream) is 0 or -errno with the text set. */
#define CAIRN_TABLE(impl, fn, ...) cairn_table_ret(impl, (impl)->fn(__VA_ARGS__), #fn)

static inline int cairn_table_ret(const struct cairn_impl *impl, int ret, const char *what)
{
	return ret ? cairn_table_error(impl, ret, what) : 0;
}

#endif
