/* SPDX-License-Identifier: Apache-2.0 */
/*
 * model_graph - the forward pass of a model, from token ids to logits, as a graph (op_graph.h)
 *
 * One graph serves prompts and decoding. Two values carry the state between the halves of a layer: the
 * residual stream, and the output of the previous half, which the next norm adds to the stream (ADD_NORM).
 * The embedding and the result of MOE are the residual stream itself, so nothing has to be added after them.
 * MOE contains a norm; the ADD_NORM before it only does the addition, and its normalised result is scratch.
 *
 * Names: the inputs are ids, positions, paging (the page lists of all requests) and logit_rows. A value of
 * layer 3 is "layers.3." and: normed, qkv, qkv_rotated, attn, o, o_normed; with latent attention q_a,
 * q_a_normed, q, latents, q_rotated instead of qkv; residual_attn and residual_mlp after the additions;
 * mlp_normed, gate_up, mlp, down, down_normed, or experts; kv_before and kv, the cache without and with the
 * tokens of this pass. Weights are w_ and the weight, as in "layers.3.w_gate_up". After the last layer:
 * picked_x, picked_residual, final_normed, logits_raw (with a softcap) and logits, the output.
 *
 * The graph of a rank's share has partial sums where the outputs of o, down and the experts are. Its experts
 * are not the residual stream, so the next norm adds their output. Its output matrix is cut by vocabulary if
 * that is divisible by four times the ranks; logits_share then precedes the gathered logits.
 */
#ifndef CAIRN_MODEL_GRAPH_H
#define CAIRN_MODEL_GRAPH_H

#include "serving/graph/op_graph.h"
#include "serving/model/checkpoint/config.h"

/* The config must be one that cairn_model_config_load() or cairn_model_shape() accepts. -ENOMEM. */
int cairn_model_graph(struct cairn_op_graph **out, const struct cairn_model_config *config);
/* Returns among how many ranks the output matrix is cut; 1: it is whole. */
int32_t cairn_model_head_shares(const struct cairn_model_config *config);
/*
 * Turns *c, the config of the whole model in dir, into that of one rank's share
 * (serving/ranks/ranks_share.c); *kv_shares: see struct cairn_model. together: how many columns of an expert
 * stay on one rank; 0: all ranks have equal shares. -EOPNOTSUPP: the model cannot be shared in this way; the
 * text names the member.
 */
int cairn_model_share_config(struct cairn_model_config *c, const char *dir, int32_t ranks, int32_t together,
			     int32_t *kv_shares);
/* Computes dims[CAIRN_NUM_DIMS]; a dimension that the model lacks is 0. */
void cairn_model_dims(const struct cairn_model_config *config, int32_t *dims);

#endif
