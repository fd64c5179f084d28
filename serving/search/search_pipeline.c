// SPDX-License-Identifier: Apache-2.0
/* search_pipeline - derives the pipeline of one layer from a model's graph */
#include "serving/search/search_pipeline.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "primitives/base/error.h"
#include "serving/graph/op_cost.h"
#include "serving/model/model_graph.h"

static int is_heavy(const struct cairn_graph_op *op)
{
	return op->kind == CAIRN_OP_GEMM || op->kind == CAIRN_OP_ATTN || op->kind == CAIRN_OP_MLA ||
	       op->kind == CAIRN_OP_MOE || op->collective;
}

static int is_norm(enum cairn_op_kind kind)
{
	return kind == CAIRN_OP_NORM || kind == CAIRN_OP_ADD_NORM;
}

/* Returns the name of a graph's operation without its layer: "qkv_proj". */
static const char *short_name(const struct cairn_graph_op *op)
{
	return strrchr(op->name, '.') + 1;
}

static int add_op(struct cairn_search_pipeline *p, const struct cairn_graph_op *op, int32_t id)
{
	struct cairn_search_op *to = &p->ops[p->num_ops];
	char *suffix;

	if (p->num_ops == CAIRN_SEARCH_MOST_OPS)
		return cairn_error(EOPNOTSUPP, "pipeline: a layer has more than %d heavy operations",
				   CAIRN_SEARCH_MOST_OPS);
	memset(to, 0, sizeof(*to));
	snprintf(to->name, sizeof(to->name), "%s", short_name(op));
	suffix = strstr(to->name, "_proj");
	if (suffix)
		*suffix = 0;
	to->attention = op->kind == CAIRN_OP_ATTN || op->kind == CAIRN_OP_MLA;
	to->whole = op->kind == CAIRN_OP_MOE;
	to->network = op->collective;
	to->layer_op = id;
	p->num_ops++;
	return 0;
}

static void cover(struct cairn_search_op *to, const struct cairn_graph_op *op)
{
	size_t at = strlen(to->covers);

	snprintf(to->covers + at, sizeof(to->covers) - at, "%s%s", at ? " " : "", short_name(op));
}

/*
 * Adds the heavy operations of a layer and sets owner[op] to the operation of the pipeline that covers each
 * of the layer's operations. The operations of a layer are neighbours in the graph's order.
 */
static int add_layer(struct cairn_search_pipeline *p, const struct cairn_op_graph *g, int32_t layer,
		     int32_t *owner)
{
	int32_t last = -1;

	for (int32_t i = 0; i < g->num_ops; i++)
		if (g->ops[i].layer == layer && is_heavy(&g->ops[i])) {
			owner[i] = p->num_ops;
			CAIRN_TRY(add_op(p, &g->ops[i], i));
		}
	if (!p->num_ops)
		return cairn_error(EOPNOTSUPP, "pipeline: layer %d has no product", layer);
	for (int32_t i = 0; i < g->num_ops; i++) {
		if (g->ops[i].layer != layer)
			continue;
		if (is_heavy(&g->ops[i]))
			last = owner[i];
		else if (is_norm(g->ops[i].kind))
			owner[i] = last + 1 < p->num_ops ? last + 1 : last;
		else
			owner[i] = last < 0 ? 0 : last;
		cover(&p->ops[owner[i]], &g->ops[i]);
	}
	return 0;
}

static int add_edge(struct cairn_search_pipeline *p, int32_t from, int32_t to, int32_t lag,
		    enum cairn_search_edge_kind kind)
{
	if (from == to && !lag)
		return 0;
	for (int32_t i = 0; i < p->num_edges; i++) {
		struct cairn_search_edge *e = &p->edges[i];

		if (e->from == from && e->to == to && e->lag == lag) {
			if (kind == CAIRN_SEARCH_CACHE)
				e->kind = kind;
			return 0;
		}
	}
	if (p->num_edges == CAIRN_SEARCH_MOST_EDGES)
		return cairn_error(EOPNOTSUPP, "pipeline: a layer has more than %d dependencies",
				   CAIRN_SEARCH_MOST_EDGES);
	p->edges[p->num_edges++] = (struct cairn_search_edge){ from, to, lag, kind };
	return 0;
}

/* Returns the operation of a layer that has the name of operation i of another one, or -1. */
static int32_t namesake(const struct cairn_op_graph *g, int32_t i, int32_t layer)
{
	for (int32_t o = 0; o < g->num_ops; o++)
		if (g->ops[o].layer == layer && !strcmp(short_name(&g->ops[o]), short_name(&g->ops[i])))
			return o;
	return -1;
}

/* The first layer's norm sums nothing, so that layers with the same operations may have other collectives. */
static int check_layers(const struct cairn_op_graph *g, int32_t layer)
{
	int32_t num = 0;

	for (int32_t i = 0; i < g->num_ops; i++) {
		num += (g->ops[i].layer == layer) - (g->ops[i].layer == layer - 1);
		if (g->ops[i].layer == layer - 1 && namesake(g, i, layer) < 0)
			num = INT32_MIN / 2;
	}
	return num ? cairn_error(EOPNOTSUPP, "pipeline: the last two layers have different operations") : 0;
}

/* Adds the edges of the values that the operations of `layer` read, from that layer and the one before. */
static int add_edges(struct cairn_search_pipeline *p, const struct cairn_op_graph *g, int32_t layer,
		     const int32_t *owner)
{
	for (int32_t i = 0; i < g->num_ops; i++) {
		const struct cairn_graph_op *op = &g->ops[i];

		for (int32_t k = 0; op->layer == layer && k < op->num_in; k++) {
			const struct cairn_graph_value *v = &g->values[op->in[k]];
			int32_t from = v->producer, lag = v->layer != layer;

			if (from < 0 || v->layer < 0)
				continue;
			CAIRN_TRY(add_edge(p, owner[lag ? namesake(g, from, layer) : from], owner[i], lag,
					   v->kind == CAIRN_VALUE_CACHE ?
						   CAIRN_SEARCH_CACHE : CAIRN_SEARCH_DATA));
		}
	}
	return 0;
}

/* Returns whether a path of other edges leads from e's start to its end with at most its lag. */
static int is_implied(const struct cairn_search_pipeline *p, int32_t e)
{
	enum { FAR = 1 << 20 };
	int32_t lag[CAIRN_SEARCH_MOST_OPS];

	for (int32_t i = 0; i < p->num_ops; i++)
		lag[i] = FAR;
	for (int32_t i = 0; i < p->num_edges; i++)
		if (i != e && p->edges[i].from == p->edges[e].from)
			lag[p->edges[i].to] = p->edges[i].lag;
	for (int32_t round = 0; round < p->num_ops; round++)
		for (int32_t i = 0; i < p->num_edges; i++)
			if (i != e && lag[p->edges[i].from] + p->edges[i].lag < lag[p->edges[i].to])
				lag[p->edges[i].to] = lag[p->edges[i].from] + p->edges[i].lag;
	return lag[p->edges[e].to] <= p->edges[e].lag;
}

static void drop_implied(struct cairn_search_pipeline *p)
{
	for (int32_t e = p->num_edges - 1; e >= 0; e--) {
		if (p->edges[e].kind == CAIRN_SEARCH_CACHE || !is_implied(p, e))
			continue;
		memmove(&p->edges[e], &p->edges[e + 1], (size_t)(--p->num_edges - e) * sizeof(*p->edges));
	}
}

static void name_shape(struct cairn_search_pipeline *p, const struct cairn_model_config *config)
{
	int32_t dims[CAIRN_NUM_DIMS];
	uint64_t hash = 14695981039346656037u;		/* FNV-1a */

	cairn_model_dims(config, dims);
	for (size_t i = 0; i < sizeof(dims); i++)
		hash = (hash ^ ((const unsigned char *)dims)[i]) * 1099511628211u;
	snprintf(p->shape, sizeof(p->shape), "%dx%d-%08x", config->num_hidden_layers, config->hidden_size,
		 (unsigned)(hash ^ hash >> 32));
}

static int derive(struct cairn_search_pipeline *p, const struct cairn_op_graph *g, int32_t layer)
{
	int32_t *owner;
	int ret;

	CAIRN_TRY(check_layers(g, layer));
	owner = calloc((size_t)g->num_ops + 1, sizeof(*owner));
	if (!owner)
		return cairn_error(ENOMEM, "pipeline: out of memory");
	ret = add_layer(p, g, layer, owner);
	if (!ret)
		ret = add_edges(p, g, layer, owner);
	free(owner);
	return ret;
}

int cairn_search_pipeline(struct cairn_search_pipeline *out, const struct cairn_model_config *config)
{
	struct cairn_op_graph *g;
	int32_t last = config->num_hidden_layers - 1;
	int ret;

	memset(out, 0, sizeof(*out));
	if (last < 1)
		return cairn_error(EOPNOTSUPP, "pipeline: a model of one layer repeats nothing");
	for (int32_t i = 0; i < last; i++)
		if (cairn_layer_window(config, i) != cairn_layer_window(config, last))
			return cairn_error(EOPNOTSUPP, "pipeline: layers with different attention windows");
	CAIRN_TRY(cairn_model_graph(&g, config));
	ret = derive(out, g, last);
	cairn_op_graph_destroy(g);
	drop_implied(out);
	out->num_layers = last + 1;
	out->ranks = config->shares > 1 ? config->shares : 1;
	name_shape(out, config);
	return ret;
}

int cairn_search_kinds(const struct cairn_search_pipeline *p, const struct cairn_model_config *config,
		       const struct cairn_search_pass *pass, double tflops, double gbps,
		       enum cairn_search_kind *kinds)
{
	int32_t dims[CAIRN_NUM_DIMS], prompt = pass->rows - pass->decode, num = pass->decode + (prompt > 0);
	struct cairn_pass_sizes sizes = { .dims = dims, .num_requests = num, .num_tokens = pass->rows,
					  .element = { 2, 2, 2, 2, 4, 4 } };
	int32_t *lens = calloc((size_t)num * 2, sizeof(*lens));
	struct cairn_op_graph *g;
	int ret = lens ? cairn_model_graph(&g, config) : cairn_error(ENOMEM, "pipeline: out of memory");

	if (ret) {
		free(lens);
		return ret;
	}
	cairn_model_dims(config, dims);
	for (int32_t i = 0; i < num; i++) {
		lens[i] = i < pass->decode ? 1 : prompt;
		lens[num + i] = i < pass->decode ? pass->context : prompt;
	}
	sizes.qo_len = lens;
	sizes.kv_len = lens + num;
	for (int32_t i = 0; i < p->num_ops; i++) {
		struct cairn_op_cost cost;

		kinds[i] = CAIRN_SEARCH_NETWORK;
		if (p->ops[i].network)
			continue;
		cost = cairn_op_cost(g, p->ops[i].layer_op, &sizes);
		kinds[i] = (double)cost.bytes * tflops * 1e3 > (double)cost.flops * gbps ?
			   CAIRN_SEARCH_MEMORY : CAIRN_SEARCH_COMPUTE;
	}
	cairn_op_graph_destroy(g);
	free(lens);
	return 0;
}
