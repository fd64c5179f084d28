/* SPDX-License-Identifier: Apache-2.0 */
/*
 * task - an operation of a layer that can be called again and again, to be timed
 *
 * A bed holds what the calls need: a few layers with random weights, keys and values, and activations of two
 * sides, so that two tasks can run at the same time. A task is an operation of the pipeline
 * (search_pipeline.h) with the light operations that it covers, for the rows of one batch. Call i takes the
 * weights and the cache of layer i modulo the number of layers, so that a call finds its inputs in memory and
 * not in a cache.
 *
 * Errors: -EINVAL, naming the operation; those of the table's operations; -ENOMEM.
 */
#ifndef CAIRN_PROFILE_TASK_H
#define CAIRN_PROFILE_TASK_H

#include "serving/model/forward/forward_impl.h"
#include "serving/search/search_pipeline.h"

#define PROFILE_SIDES	2
#define PROFILE_LAYERS	8		/* most layers of a bed */
#define PROFILE_COVERS	8		/* most operations that a task consists of */

struct bed {
	const struct cairn_impl *impl;
	struct cairn_model_config config;	/* that of the whole model, with fewer layers */
	struct cairn_search_pipeline pipeline;
	struct cairn_model *model;
	struct cairn_kv_store kv;
	struct cairn_scratch *scratch[PROFILE_SIDES];
	int32_t first_layer;			/* of those that the tasks use */
	void *stream;
};

struct bed_sizes {
	int32_t layers, max_rows, page_size;
	int32_t max_batch;			/* requests of a task of attention */
	int64_t tokens;				/* keys that such a task reads */
	int64_t mem_bytes;			/* of the device or the host; 0: unknown */
	int32_t ranks;				/* above 1: the bed is that of a rank's share */
};

int bed_open(struct bed *bed, const struct cairn_impl *impl, const struct cairn_model_config *config,
	     const struct bed_sizes *sizes);
void bed_close(struct bed *bed);		/* does nothing if *bed is zeroed */

/* A batch of equal requests: `requests` of them, each with `rows` rows and `keys` keys, its rows included. */
struct task_shape {
	int32_t requests, rows, keys;
};

struct task {
	struct bed *bed;
	int32_t side;
	struct walk walk;
	struct cairn_batch batch;
	void *arrays;
	int32_t ops[PROFILE_LAYERS][PROFILE_COVERS];	/* of the graph */
	int32_t num_ops, num_layers;
	double bytes, flops;		/* of a call (op_cost.h) */
	int attends;
	int waits;			/* its CTAs wait for each other, so it needs all SMs */
};

/* op: a name of the pipeline, such as "gate_up" or "attn". Its first calls are made here. */
int task_open(struct task *task, struct bed *bed, int32_t side, const char *op,
	      const struct task_shape *shape);
void task_close(struct task *task);		/* does nothing if *task is zeroed; waits for no stream */
/* Enqueues call i. */
int task_call(struct task *task, int i, void *stream);

#endif
