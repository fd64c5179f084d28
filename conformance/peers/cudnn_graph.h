/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cudnn_graph - describes a graph of operations to cuDNN, gets plans for it, and runs one of them
 *
 * The building functions return nothing but descriptors: the first failure is kept in graph->ret, later calls
 * do nothing, and cairn_cudnn_plan() returns it. Tensors have four dimensions. A descriptor may be used until
 * its graph is freed.
 */
#ifndef CAIRN_CUDNN_GRAPH_H
#define CAIRN_CUDNN_GRAPH_H

#include <stddef.h>
#include <stdint.h>

#include "conformance/peers/cudnn_api.h"

#define CUDNN_MAX_DESCS		160
#define CUDNN_MAX_OPS		48
#define CUDNN_MAX_VALUES	8
#define CUDNN_MAX_POINTERS	32	/* tensors in memory, by number, and values */
#define CUDNN_MAX_PLANS		8

struct cudnn_value {
	int64_t uid;
	union {
		float f;
		int32_t i;
	};
};

struct cudnn_graph {
	const char *op;			/* the operation's name, for messages */
	int ret;			/* 0, or the first error */
	void *descs[CUDNN_MAX_DESCS];	/* all descriptors of the graph, destroyed with it */
	void *ops[CUDNN_MAX_OPS];
	struct cudnn_value values[CUDNN_MAX_VALUES];
	int64_t uids[CUDNN_MAX_POINTERS];	/* numbers of the tensors in memory */
	int num_descs, num_ops, num_values, num_uids;
	int64_t next_uid;		/* number of the next virtual tensor or value */
	void *plans[CUDNN_MAX_PLANS];	/* best first according to the library's heuristics */
	int num_plans;
	int64_t workspace_bytes;	/* enough for each of the plans */
};

struct cudnn_shape {
	int64_t dim[4], stride[4];	/* in elements */
	int dtype, align;		/* align: bytes; 0: 16 */
};

/*
 * Finds the library. If $CAIRN_CUDNN is set, only that path is tried; else the first library of version 9.16
 * or newer is taken from the folder peers beside the program (tools/peers.sh), the Python environments on the
 * path, and the loader, in this order. -EOPNOTSUPP: there is none. `op` begins the error text.
 */
int cairn_cudnn_load(const char *op);
/* Returns the version of the library that has been loaded, 91901 for 9.19.1; 0: none has. */
int cairn_cudnn_version(void);

/* A tensor in memory. uid: 1..CUDNN_MAX_POINTERS-1, by which cairn_cudnn_run() finds its pointer. */
void *cairn_cudnn_tensor(struct cudnn_graph *g, int64_t uid, const struct cudnn_shape *shape, void *ragged);
/* A virtual tensor: an intermediate that is not in memory. */
void *cairn_cudnn_virtual(struct cudnn_graph *g, const struct cudnn_shape *shape, void *ragged);
void *cairn_cudnn_float(struct cudnn_graph *g, float value);
void *cairn_cudnn_int(struct cudnn_graph *g, int32_t value);

/* c = a b, in fp32; m, n, k: tensors of the sizes of each batch, or NULL. */
struct cudnn_matmul {
	void *a, *b, *c, *m, *n, *k;
};
void cairn_cudnn_matmul(struct cudnn_graph *g, const struct cudnn_matmul *op);

/* y = mode(x, b); with BINARY_SELECT: t ? x : b; with GEN_INDEX: the index along `axis`. NULL: absent. */
struct cudnn_pointwise {
	int mode, compute;		/* compute: enum cudnn_dtype */
	void *x, *b, *t, *y;
	int64_t axis;
};
void cairn_cudnn_pointwise(struct cudnn_graph *g, const struct cudnn_pointwise *op);
void cairn_cudnn_reduce(struct cudnn_graph *g, int mode, void *x, void *y);
/* y: x with other dimensions and strides. */
void cairn_cudnn_reshape(struct cudnn_graph *g, void *x, void *y);

/*
 * Makes at most `most` plans of the complete graph for the current device. -EOPNOTSUPP: the library has no
 * plan for it.
 */
int cairn_cudnn_plan(struct cudnn_graph *g, int most);
/* Runs a plan. pointers[uid] of the tensors in memory; workspace: workspace_bytes, 256-byte aligned. */
int cairn_cudnn_run(const struct cudnn_graph *g, int plan, void *const pointers[CUDNN_MAX_POINTERS],
		    void *workspace, void *stream);
void cairn_cudnn_free(struct cudnn_graph *g);

#endif
