/* SPDX-License-Identifier: Apache-2.0 */
/*
 * search_pipeline - the operations of one layer, as auto-search schedules them
 *
 * The pipeline is derived from the graph of a model (op_graph.h). Layers repeat, so one layer is enough: an
 * edge within a layer has lag 0, and an edge into the next layer lag 1. Embedding and head are no part of it.
 *
 * An operation of the pipeline is a heavy one of the graph (a product, attention, experts, or a collective
 * of several ranks) with its light neighbours: norms belong to the heavy operation after them, and rope,
 * appending to the cache and activations to the one before, whose epilogue they are or can be. At the end of
 * a layer, norms belong to the last heavy operation. Its name is that of the heavy one without layer and
 * "_proj": qkv, attn, o, gate_up, down; q_a, q, kv_a with latent attention; moe.
 *
 * In the share of one of several ranks, the norms that sum the outputs of o, down and the experts over the
 * ranks are collectives: attn_norm and mlp_norm. They are bound by the network.
 *
 * Edges that others imply are left out. Whole operations (experts) run once for all rows: a product that is
 * cut reads its weights once for each part, and each part of the experts' rows reads nearly all experts.
 *
 * Errors: -EOPNOTSUPP (fewer than two layers, layers with different windows), -EINVAL, -ENOMEM.
 */
#ifndef CAIRN_SEARCH_PIPELINE_H
#define CAIRN_SEARCH_PIPELINE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "serving/model/checkpoint/config.h"
#include "serving/search/search_profile.h"

#define CAIRN_SEARCH_MOST_OPS	12
#define CAIRN_SEARCH_MOST_EDGES	40

enum cairn_search_edge_kind {
	CAIRN_SEARCH_DATA,	/* within the rows of a nano-batch */
	CAIRN_SEARCH_CACHE,	/* keys and values: attention also needs those of earlier rows */
};

struct cairn_search_op {
	char name[CAIRN_SEARCH_NAME];
	char covers[128];	/* names of the graph's operations, separated by spaces */
	bool attention;		/* its time depends on requests and keys, not on rows */
	bool whole;
	bool network;
	int32_t layer_op;	/* the heavy operation in the graph */
};

struct cairn_search_edge {
	int32_t from, to, lag;
	enum cairn_search_edge_kind kind;
};

struct cairn_search_pipeline {
	struct cairn_search_op ops[CAIRN_SEARCH_MOST_OPS];
	struct cairn_search_edge edges[CAIRN_SEARCH_MOST_EDGES];
	int32_t num_ops, num_edges;
	int32_t num_layers;
	int32_t ranks;		/* of which the model is one's share; 1: it is whole */
	char shape[64];		/* identifies the model's sizes: "32x4096-" and a digest of all dimensions */
};

int cairn_search_pipeline(struct cairn_search_pipeline *out, const struct cairn_model_config *config);

/* A pass: decode requests of one row and context cached tokens each, and one prompt with the other rows. */
struct cairn_search_pass {
	int32_t rows, decode, context;
};
/*
 * Sets kinds[num_ops]: an operation is bound by memory if its bytes take longer at gbps than its flops at
 * tflops, with all rows at once and 16-bit elements (op_cost.h).
 */
int cairn_search_kinds(const struct cairn_search_pipeline *pipeline, const struct cairn_model_config *config,
		       const struct cairn_search_pass *pass, double tflops, double gbps,
		       enum cairn_search_kind *kinds);

#endif
