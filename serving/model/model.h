/* SPDX-License-Identifier: Apache-2.0 */
/*
 * model - loads a checkpoint into a table's memory
 *
 * Weights are packed as the operations need them: q, k and v in one matrix [q + 2 kv, hidden], gate and up in
 * one [2 intermediate, hidden], the experts of a layer in two matrices (moe.h), and tied embeddings once. All
 * weights are in one allocation; a weight of layer l + 1 is layer_bytes after that of layer l.
 *
 * On request the matrices of attention and MLP are quantised to 8 bits (e4m3, quant_fp8w.h) when they are
 * loaded, each packed matrix as a whole: QKV, O, GATE_UP and DOWN; with latent attention Q_A, Q and KV_A;
 * GATE_UP and DOWN of each expert and of the shared experts. gemm_fp8w, and moe with fp8w, read them.
 * Embeddings, norms, biases, routers and the output matrix are not quantised. Neither is KV_B, which
 * mla_paged applies to queries and results, and mla_prefill to latents. If the table's moe does not support
 * fp8w, a model with experts is refused before any weight is read.
 *
 * Data type: that of the config if it is f16 or bf16, else bf16. Tensors stored in another float type, such
 * as f32, are rounded to it once, on load. A tensor with a finite value that overflows the data type is
 * refused. The bias of a router's scores stays in f32.
 *
 * Block fp8: if config.json announces it (quant_method fp8, weight_block_size 128 x 128), a matrix X.weight
 * may be stored as F8_E4M3 with X.weight_scale_inv, a factor for each block. Each element is widened to code
 * times factor and rounded once to the model's dtype. Only the matrices named above and KV_B may be stored
 * this way. For fp8-blocks a weight keeps its codes, and its factors in f32, if all matrices packed in it are
 * stored this way and each begins at a multiple of 128 rows. Otherwise the weight is quantised again like any
 * other, because the last rows of one matrix share a block, and so a scale, with the first rows of the next.
 * This happens to QKV if q or k has a number of rows that is not a multiple of 128, and to GATE_UP (also of
 * experts) if the intermediate size is not. With a scale per row (fp8) every such weight is quantised again.
 *
 * Row fp8: if config.json announces it (quant_method compressed-tensors, format float-quantized), X.weight
 * may be stored as F8_E4M3 with X.weight_scale, a scale for each row [rows, 1] or one for the matrix [1]. The
 * same holds as for block fp8, except that the form fp8 keeps codes and scales, if all matrices packed in the
 * weight are stored this way, and fp8-blocks quantises again.
 *
 * w8a8 and w8a8-blocks load what fp8 and fp8-blocks load. Besides, every product of a pass except those of
 * experts quantises its activations (quant_fp8w.h): with one scale for each row, or for each 128 elements of
 * a row. gemm_fp8 computes it for one row as for many, so a row's result does not depend on its batch. In the
 * other forms activations keep the model's dtype, whatever the checkpoint says of them.
 *
 * gpt-oss: all experts of a layer are one tensor, in which gates and ups alternate; they are separated when
 * they are loaded. If config.json announces it (quant_method mxfp4), the tensor may be stored as MXFP4
 * (stacked/model_stacked.c). If that of layer 0 is, all must be, and they stay in 4 bits; but if a table's
 * moe does not take them, or an expert has fewer groups of 32 than there are ranks, they are widened to the
 * model's dtype. Experts with biases have no 8-bit weights.
 *
 * 4 bits: a checkpoint of quant_method awq or gptq, or of compressed-tensors in the format pack-quantized or
 * nvfp4-pack-quantized (enum cairn_stored_w4), keeps its codes, scales and zero points: the form of its
 * weights is w4, whether w4 or plain was asked for, and an 8-bit form is refused. All of QKV, O, GATE_UP and
 * DOWN, and those of all experts, must be stored in 4 bits; gemm_w4 and moe read them. Loading brings codes
 * into the layout of gemm_w4; scales that are not f16 are rounded to it, except those of NVFP4, which are
 * e4m3. Matrices of NVFP4 that are packed in one weight must have the same factor, except those of experts.
 * Latent attention and shared experts are refused, and so are groups in another order than that of the
 * elements (desc_act). No weight is quantised to 4 bits here.
 *
 * On request the KV cache, too, holds e4m3, in half the bytes (kv_append.h, attn_paged.h). A layer's scales
 * come from the checkpoint if it has them: the tensor model.layers.N.self_attn.X, where X is k_scale,
 * attn.k_scale or k_proj.k_scale, and the same for v, with one number or one for each KV head. A layer
 * without such a tensor has the scale 1. Models with latent attention support no 8-bit cache and are refused.
 *
 * Before any weight is loaded, each operation of the model is asked whether it supports the sizes
 * (cairn_forward_check() in forward.h), so that a model that cannot run is refused here and not at its first
 * request.
 *
 * Errors: -EINVAL (bad checkpoint or argument, or more layers stored than num_hidden_layers; the text names
 * file and field), -EOPNOTSUPP (a size that the operations do not support, and the text names the key of
 * config.json; or the table lacks an operation), -ENOMEM, -EIO.
 * A failed call leaves nothing allocated.
 */
#ifndef CAIRN_MODEL_H
#define CAIRN_MODEL_H

#include <stddef.h>
#include <stdint.h>

#include "conformance/abi.h"
#include "serving/graph/op_graph.h"
#include "serving/model/checkpoint/config.h"

#ifdef __cplusplus
extern "C" {
#endif

enum cairn_weights {
	CAIRN_WEIGHTS_PLAIN,
	CAIRN_WEIGHTS_FP8,		/* one scale per row */
	CAIRN_WEIGHTS_FP8_BLOCKS,	/* one scale per block of 128 x 128 */
	CAIRN_WEIGHTS_W4,		/* 4 bits, as the checkpoint stores them */
	CAIRN_WEIGHTS_W8A8,		/* FP8, and products quantise their activations row by row */
	CAIRN_WEIGHTS_W8A8_BLOCKS,	/* FP8_BLOCKS, and activations by pieces of 1 x 128 */
	CAIRN_NUM_WEIGHT_FORMS
};

static inline int cairn_weights_are_fp8(enum cairn_weights weights)
{
	return weights != CAIRN_WEIGHTS_PLAIN && weights != CAIRN_WEIGHTS_W4;
}

/* Returns whether products take activations in 8 bits, too. */
static inline int cairn_weights_are_w8a8(enum cairn_weights weights)
{
	return weights == CAIRN_WEIGHTS_W8A8 || weights == CAIRN_WEIGHTS_W8A8_BLOCKS;
}

/* Returns the scale_kind that operations take for 8-bit weights in this form. */
static inline int32_t cairn_weights_scale_kind(enum cairn_weights weights)
{
	return weights == CAIRN_WEIGHTS_FP8_BLOCKS || weights == CAIRN_WEIGHTS_W8A8_BLOCKS ?
	       CAIRN_FP8_SCALE_BLOCKS : CAIRN_FP8_SCALE_ROWS;
}

/* Names of the forms, in the order above: "plain", "fp8", "fp8-blocks", "w4", "w8a8", "w8a8-blocks", NULL. */
extern const char *const cairn_weights_names[];

/* What the KV cache holds. */
enum cairn_kv_form {
	CAIRN_KV_PLAIN,			/* the model's dtype */
	CAIRN_KV_FP8,			/* e4m3 */
	CAIRN_NUM_KV_FORMS
};

/* Names of the forms, in the order above: "plain", "fp8", NULL. */
extern const char *const cairn_kv_names[];

/* How ranks of context parallelism attend (serving/ranks/ranks_context.c, ranks_ring.c). */
enum cairn_exchange {
	CAIRN_EXCHANGE_AUTO,		/* heads if each rank then has its own KV heads, else ring */
	CAIRN_EXCHANGE_HEADS,
	CAIRN_EXCHANGE_RING,
	CAIRN_EXCHANGE_BLOCKS		/* a ring whose ranks have consecutive rows: for measurements */
};

/* Names, in the order above: "auto", "heads", "ring", "blocks", NULL. */
extern const char *const cairn_exchange_names[];

/* Only the files of serving/model/load write to it. */
struct cairn_model {
	const struct cairn_impl *impl;
	struct cairn_model_config config;
	int dtype;
	enum cairn_weights weights;
	enum cairn_kv_form kv;
	/* config and dims are those of this rank's share; ranks 1: of the whole model */
	int32_t rank, ranks;
	int32_t kv_shares;		/* of the KV heads; fewer than ranks: some ranks have the same */
	/* context parallelism: this rank's number among those that share heads and rows; 0, 1: none */
	int32_t context_rank, context_ranks;
	int32_t dims[CAIRN_NUM_DIMS];
	int32_t whole[CAIRN_NUM_DIMS];	/* dims of the whole model */
	struct cairn_op_graph *graph;	/* its forward pass (model_graph.h) */
	struct cairn_lora *lora;	/* adapters (lora.h); NULL: none */
	float *inv_freq;	/* [cairn_rope_dim() / 2], in the table's memory like the weights */
	/* [2, num_hidden_layers, heads in the cache], of K, then of V, in the table's memory; NULL: all 1 */
	float *kv_scales;
	/* A weight is at base + offset, plus layer * layer_bytes if it is per layer. elements 0: the model
	 * does not have the weight; offset < 0: layer 0 does not. */
	char *base;
	size_t bytes, layer_bytes;
	int64_t offset[CAIRN_NUM_WEIGHTS];
	size_t elements[CAIRN_NUM_WEIGHTS];
	enum cairn_exchange exchange;	/* of ranks of context parallelism; never AUTO */
	int keeps_mxfp4;	/* the experts are MXFP4, as they are stored */
	/* NVFP4, without experts: [num_hidden_layers, CAIRN_NUM_WEIGHTS]; NULL: all are 1 */
	float *factors_w4;
};

/* Called repeatedly while weights load; done == total exactly once, at the end. */
typedef void (*cairn_progress)(void *ctx, int64_t done_bytes, int64_t total_bytes);

/* Loads config.json and safetensors from dir. The table must be started and must outlive the model. */
int cairn_model_load(struct cairn_model **out, const struct cairn_impl *impl, const char *dir,
		     cairn_progress progress, void *ctx);
int cairn_model_load_as(struct cairn_model **out, const struct cairn_impl *impl, const char *dir,
			enum cairn_weights weights, enum cairn_kv_form kv, cairn_progress progress,
			void *ctx);
/*
 * Loads the share of one of `ranks` ranks for tensor parallelism. A rank reads its own rows of q, k, v, gate
 * and up, and its own columns of o and down; all else is whole, except that the biases of o and down are 0 on
 * all ranks but rank 0. If there are more ranks than KV heads, several ranks have the same KV head. The
 * config of the model is that of the share: it has num_attention_heads / ranks heads and so on. The outputs
 * of o and down are then partial sums, and the forward pass calls all_reduce_norm (primitives/comm) instead
 * of the rmsnorm that follows them, without a communicator: the table must put it in (ranks.h). -EOPNOTSUPP,
 * naming the key of config.json: a size is not divisible by ranks.
 *
 * Experts: every rank has the router, chooses the same experts, and has its columns of each of them, routed
 * or shared, padded with zeros to a multiple of 64. Latent attention: a rank has its heads of q and KV_B,
 * while the compressed queries and the cached latents are whole on every rank.
 *
 * 4-bit weights: codes, scales and zero points are those of the whole matrix. A share of the columns of o or
 * down must consist of whole groups. Experts are divided in whole groups, so that some ranks may have one
 * group more than others; -EOPNOTSUPP if an expert has fewer groups than there are ranks.
 *
 * 8-bit weights: with scales of rows, codes and scales are those of the whole matrix, which is quantised
 * first if the rank has only columns of it. Blocks are those of the whole matrix if shares are multiples of
 * 128; otherwise a rank has blocks of its own, and quantises a checkpoint in block fp8 again.
 *
 * The output matrix is cut by vocabulary if that is divisible by 4 * ranks, and whole otherwise. A rank then
 * computes the logits of its own tokens, and all_to_all gathers those of all ranks. Tied embeddings are
 * whole, but as the output matrix a rank reads its share of them only.
 */
int cairn_model_load_rank(struct cairn_model **out, const struct cairn_impl *impl, const char *dir,
			  int32_t rank, int32_t ranks, enum cairn_weights weights, enum cairn_kv_form kv,
			  cairn_progress progress, void *ctx);
/*
 * Loads the whole model for one of `ranks` ranks of context parallelism, which share out the rows of a pass.
 * With the exchange of heads (serving/ranks/ranks_context.c), a rank attends with its share of the heads, and
 * the cache has the keys and values of these heads, or all latents; if there are more ranks than KV heads,
 * several ranks have the same one. In a ring (ranks_ring.c), a rank attends with all heads, and the cache has
 * all heads. The forward pass calls all_to_all and send_recv without a communicator: the table must put it in
 * (ranks.h). -EOPNOTSUPP, naming the key of config.json: heads are exchanged, and ranks does not divide the
 * query heads, or neither divides the KV heads nor is divisible by their number.
 */
int cairn_model_load_context(struct cairn_model **out, const struct cairn_impl *impl, const char *dir,
			     int32_t rank, int32_t ranks, enum cairn_exchange exchange,
			     enum cairn_weights weights, enum cairn_kv_form kv, cairn_progress progress,
			     void *ctx);
/*
 * Loads one of `stages` stages of a pipeline (serving/pipeline/pipeline.h): consecutive layers, in the first
 * stage also the embeddings, in the last one the last norm and the output matrix, which is the embeddings if
 * these are tied. The config of the model is that of the stage: it has the stage's number of layers, and
 * dense_layers, windows and scales are theirs. -EOPNOTSUPP, naming num_hidden_layers: there are more stages
 * than layers.
 */
int cairn_model_load_stage(struct cairn_model **out, const struct cairn_impl *impl, const char *dir,
			   int32_t stage, int32_t stages, enum cairn_weights weights, enum cairn_kv_form kv,
			   cairn_progress progress, void *ctx);
/*
 * Loads the layer for multi-token prediction of a DeepSeek-V3 checkpoint, model.layers.N after the last one,
 * as a model of one layer: its embeddings are embed_tokens of the layer, its last norm and its output matrix
 * those of shared_head, and EH_PROJ, E_NORM and H_NORM are eh_proj, enorm and hnorm. All these tensors must
 * be there. serving/engine/spec/mtp_head.h runs it.
 */
int cairn_model_load_mtp(struct cairn_model **out, const struct cairn_impl *impl, const char *dir,
			 enum cairn_weights weights, cairn_progress progress, void *ctx);
/*
 * Checks without a table that a checkpoint is complete and fits its config.json: each tensor is present with
 * the right shape and a supported type, and no layers beyond those of the config are stored. Does not read
 * values.
 */
int cairn_model_verify(const char *dir);
/*
 * Makes a model for benchmarks: weights are roughly normal with standard deviation 0.02, norms are 1, biases
 * are 0; equal seeds give equal weights. One block of random values is repeated; its length is prime, so that
 * no two rows of a matrix are equal.
 */
int cairn_model_random(struct cairn_model **out, const struct cairn_impl *impl,
		       const struct cairn_model_config *config, uint64_t seed);
int cairn_model_random_as(struct cairn_model **out, const struct cairn_impl *impl,
			  const struct cairn_model_config *config, enum cairn_weights weights,
			  enum cairn_kv_form kv, uint64_t seed);
/* The share of one of `ranks` ranks, for measurements: all ranks get the same random weights. */
int cairn_model_random_rank(struct cairn_model **out, const struct cairn_impl *impl,
			    const struct cairn_model_config *config, int32_t ranks,
			    enum cairn_weights weights, enum cairn_kv_form kv, uint64_t seed);
/* One of `ranks` ranks of context parallelism, for measurements. */
int cairn_model_random_context(struct cairn_model **out, const struct cairn_impl *impl,
			       const struct cairn_model_config *config, int32_t rank, int32_t ranks,
			       enum cairn_exchange exchange, enum cairn_weights weights,
			       enum cairn_kv_form kv, uint64_t seed);
/* One of `stages` stages of cairn_model_random_as(), with its weights. */
int cairn_model_random_stage(struct cairn_model **out, const struct cairn_impl *impl,
			     const struct cairn_model_config *config, int32_t stage, int32_t stages,
			     enum cairn_weights weights, enum cairn_kv_form kv, uint64_t seed);
void cairn_model_free(struct cairn_model *model);	/* NULL is legal */

/* Returns a weight, or NULL if the model has no such weight. The caller must know which layers
 * have it: dense and expert layers differ. */
void *cairn_model_weight(const struct cairn_model *model, int32_t layer, enum cairn_weight weight);
/* Returns at which byte of the output matrix (CAIRN_W_LM_HEAD) this rank's rows begin. */
size_t cairn_model_head_at(const struct cairn_model *model);

/* Returns the scales of an 8-bit weight, those of all experts in order; NULL: the weight is not 8-bit. */
const float *cairn_model_scale(const struct cairn_model *model, int32_t layer, enum cairn_weight weight);

/*
 * Returns the scales and zero points of a 4-bit weight, as gemm_w4 or moe takes them, those of all experts in
 * order; NULL: it is not 4-bit.
 */
const uint8_t *cairn_model_scale_w4(const struct cairn_model *model, int32_t layer, enum cairn_weight weight);
/* Returns the factor of all elements of a 4-bit weight of a layer, unless it is one of experts. */
float cairn_model_factor_w4(const struct cairn_model *model, int32_t layer, enum cairn_weight weight);
/*
 * Returns the factors of GATE_UP or DOWN of experts in NVFP4, as moe takes them, in the table's memory;
 * NULL: it has none.
 */
const float *cairn_model_expert_factors(const struct cairn_model *model, int32_t layer,
					enum cairn_weight weight);
/* Returns how the experts are kept in 4 bits, as moe takes it (enum cairn_moe_w4). */
int32_t cairn_model_experts_w4(const struct cairn_model *model);

/* Returns a layer's scales of K or V, of the heads in the cache, in the table's memory; NULL: all are 1. */
const float *cairn_model_kv_scale(const struct cairn_model *model, int32_t layer, int of_v);
/*
 * Returns the bytes of one token's keys in one layer's cache of this rank (its values take as many), or of
 * its latent.
 */
size_t cairn_model_key_bytes(const struct cairn_model *model);

/* Returns whether the cache holds latents (latent attention). */
static inline int cairn_model_is_latent(const struct cairn_model *model)
{
	return model->config.latent.kv_lora_rank > 0;
}

/*
 * Returns the bytes that a decode step must read: each weight once (but only `rows` rows of the embedding,
 * and as many experts as `rows` tokens choose on average if each chooses uniformly), and the keys and values
 * of kv_tokens tokens in total.
 */
int64_t cairn_model_step_bytes(const struct cairn_model *model, int32_t rows, int64_t kv_tokens);

/* Sets this thread's last error to the table's own text for ret, as "cuda: gemm: ...". Returns ret. */
int cairn_table_error(const struct cairn_impl *impl, int ret, const char *what);

/* Calls an operation: CAIRN_TABLE(impl, gemm, &args, stream) returns 0, or -errno with the text set. */
#define CAIRN_TABLE(impl, fn, ...) cairn_table_ret(impl, (impl)->fn(__VA_ARGS__), #fn)

static inline int cairn_table_ret(const struct cairn_impl *impl, int ret, const char *what)
{
	return ret ? cairn_table_error(impl, ret, what) : 0;
}

#ifdef __cplusplus
}
#endif

#endif
