/* SPDX-License-Identifier: Apache-2.0 */
/*
 * op_graph - the operations of a forward pass as a graph of named values
 *
 * An operation reads values and weights and writes values. Every value is written once: an operation that
 * works in place reads one value and writes another one in the same storage. Values have symbolic shapes,
 * because one graph serves passes of any number of tokens. The graph says what is computed from what; it
 * holds no data, calls nothing, and knows no table of operations.
 *
 * Building: create the graph, declare values, append operations in an order in which they can run, then call
 * finish. Once a declaration or an append has failed, all later calls and finish return the same error, so a
 * builder needs to check only finish. After finish the graph is read-only. Its arrays may be read directly;
 * ids are indices into them.
 *
 * kind of operation   reads                                    writes
 * EMBEDDING           ids                                      x
 * NORM                x                                        y, in its own storage or in x's
 * ADD_NORM            x, residual                              y, and residual + x in residual's storage
 * GEMM, LM_HEAD       x                                        y
 * ROPE                qkv, positions                           qkv with q and k rotated, in place
 * KV_APPEND           qkv, cache, paging                       cache, in place
 * ATTN                qkv, cache, paging                       y; with sinks also lse, for itself
 * SILU_MUL, GELU_MUL  gate_up                                  y
 * MOE                 x                                        x + experts, in place; experts alone, if not
 * MLA_APPEND          q, latents, cache, positions, paging     q rotated, and cache, both in place
 * MLA                 q, cache, paging                         y
 * PICK_ROWS           x, logit_rows                            the rows picked; x itself if all are wanted
 * SOFTCAP             logits                                   logits, in place
 * GATHER              logits of a rank's share                 logits of the whole vocabulary, on all ranks
 *
 * Weights: NORM and ADD_NORM read a norm; GEMM and LM_HEAD a matrix and optionally a bias; EMBEDDING,
 * MLA_APPEND and MLA one weight each; ROPE optionally the head norms of q and k; ATTN optionally sinks; MOE a
 * norm, a router with an optional bias, two matrices of the experts, each with an optional bias, and two of
 * the shared experts if there are any.
 *
 * Errors: -EINVAL; the text names the value or the operation. -ENOMEM.
 */
#ifndef CAIRN_OP_GRAPH_H
#define CAIRN_OP_GRAPH_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "serving/graph/symbols.h"

#define CAIRN_GRAPH_NAME	48	/* bytes of a name, including its NUL */
#define CAIRN_OP_MAX_IN		5
#define CAIRN_OP_MAX_OUT	2
#define CAIRN_OP_MAX_WEIGHTS	7

enum cairn_value_kind {
	CAIRN_VALUE_INPUT,	/* given by the caller of the pass */
	CAIRN_VALUE_WEIGHT,
	CAIRN_VALUE_CACHE,	/* of one layer, before or after this pass's tokens are appended */
	CAIRN_VALUE_ACTIVATION,	/* written and read within the pass */
	CAIRN_VALUE_SCRATCH,	/* written by an operation and read by none */
	CAIRN_VALUE_OUTPUT,	/* the result, in the caller's memory */
	CAIRN_NUM_VALUE_KINDS
};

/* The role decides the size of an element: a pass gives the bytes of each role (op_cost.h). */
enum cairn_value_role {
	CAIRN_ROLE_ACTIVATION,	/* the model's dtype */
	CAIRN_ROLE_WEIGHT,	/* the model's dtype; CAIRN_W_ROUTE_BIAS and _SINKS are f32 */
	CAIRN_ROLE_MATRIX,	/* the model's dtype, or 8 bits if the model is quantised */
	CAIRN_ROLE_CACHE,
	CAIRN_ROLE_LOGITS,	/* f32 */
	CAIRN_ROLE_INDEX,	/* int32 */
	CAIRN_NUM_ROLES
};

/* The factor of a value's shape that depends on the pass. */
enum cairn_rows {
	CAIRN_ROWS_ONE,		/* does not depend on the pass, as for weights */
	CAIRN_ROWS_TOKENS,
	CAIRN_ROWS_LOGITS,	/* tokens whose logits are wanted */
	CAIRN_ROWS_REQUESTS,
	CAIRN_ROWS_CACHE,	/* cached tokens of all requests, this pass's tokens included */
	CAIRN_NUM_ROWS
};

/* A value has rows * num * height * width elements; a member left at 0 counts as one. */
struct cairn_shape {
	enum cairn_rows rows;
	enum cairn_dim num, height, width;
};

struct cairn_graph_value {
	char name[CAIRN_GRAPH_NAME];	/* "layers.3.qkv" */
	enum cairn_value_kind kind;
	enum cairn_value_role role;
	struct cairn_shape shape;
	int32_t layer;			/* -1: outside the layers */
	enum cairn_weight weight;	/* only for CAIRN_VALUE_WEIGHT */
	/* Written by finish. */
	int32_t producer;		/* operation; -1: the value exists before the pass */
	int32_t first_consumer, num_consumers;	/* graph->consumers[first_consumer ...], ascending */
	int32_t last_use;		/* last operation that writes or reads it; -1: none */
	int32_t storage;		/* the value at the start of its in-place chain */
	int32_t storage_last;		/* last operation that uses the storage; valid in that value */
};

enum cairn_op_kind {
	CAIRN_OP_EMBEDDING, CAIRN_OP_NORM, CAIRN_OP_ADD_NORM, CAIRN_OP_GEMM, CAIRN_OP_LM_HEAD,
	CAIRN_OP_ROPE, CAIRN_OP_KV_APPEND, CAIRN_OP_ATTN, CAIRN_OP_SILU_MUL, CAIRN_OP_GELU_MUL,
	CAIRN_OP_MOE, CAIRN_OP_MLA_APPEND, CAIRN_OP_MLA, CAIRN_OP_PICK_ROWS, CAIRN_OP_SOFTCAP,
	CAIRN_OP_GATHER,
	CAIRN_NUM_OP_KINDS
};

enum cairn_op_block {
	CAIRN_BLOCK_START,		/* the embedding */
	CAIRN_BLOCK_ATTN, CAIRN_BLOCK_MLP,	/* the two halves of a layer */
	CAIRN_BLOCK_HEAD,		/* from the last layer to the logits; skipped if none are wanted */
	CAIRN_NUM_BLOCKS
};

struct cairn_graph_op {
	char name[CAIRN_GRAPH_NAME];	/* "layers.3.qkv_proj" */
	enum cairn_op_kind kind;
	enum cairn_op_block block;
	int32_t layer;			/* -1: outside the layers */
	int32_t window;			/* ATTN: keys that a token attends to, itself included; 0: all */
	int32_t num_in, num_out, num_weights;
	int32_t in[CAIRN_OP_MAX_IN], out[CAIRN_OP_MAX_OUT], weights[CAIRN_OP_MAX_WEIGHTS];
	/* out[i] takes the storage of in[overwrites[i] - 1]; 0: out[i] has storage of its own */
	int32_t overwrites[CAIRN_OP_MAX_OUT];
	bool forwards;		/* out[0] may be in[0] itself, so in[0]'s storage lasts as long as out[0]'s */
	bool collective;	/* in[0] is what one of several ranks has; all of them run it together */
};

struct cairn_op_graph {
	struct cairn_graph_value *values;
	struct cairn_graph_op *ops;	/* in an order in which they can run */
	int32_t *consumers;
	int32_t *attn;			/* the attention operators, ATTN and MLA, in order */
	int32_t num_values, num_ops, num_attn;
	/* Private */
	int32_t *table;			/* hash table of names: value + 1 */
	int32_t value_room, op_room, table_size;
	int error;
};

int cairn_op_graph_create(struct cairn_op_graph **out);
void cairn_op_graph_destroy(struct cairn_op_graph *g);	/* NULL is legal */

/* Declares a value; the members that finish writes are ignored. Returns its id, or -errno. */
int32_t cairn_op_graph_value(struct cairn_op_graph *g, const struct cairn_graph_value *value);
/* Appends an operation. Returns its id, or -errno. */
int32_t cairn_op_graph_op(struct cairn_op_graph *g, const struct cairn_graph_op *op);
/*
 * Checks the graph and completes it; may be called once. It refuses a value that is declared or written
 * twice, read before it is written, never written, never read, part of a cycle, or overwritten before its
 * last reader; a result in place whose role or shape differs from that of the value it overwrites; a weight
 * given as a value, or the reverse; a result that is an input of the pass or a weight; and an operation with
 * the wrong number of values or weights.
 */
int cairn_op_graph_finish(struct cairn_op_graph *g);

/* The functions below need a finished graph, except for the first. */

/* Returns the id of a value. -EINVAL: unknown; the text names it. */
int32_t cairn_op_graph_find(const struct cairn_op_graph *g, const char *name);
/*
 * Checks that the operations can run in the order order[0 .. num_ops - 1]: each appears once, after the
 * producers of its inputs, and before any other operation that overwrites one of its inputs.
 */
int cairn_op_graph_check_order(const struct cairn_op_graph *g, const int32_t *order);
/* Sets reached[op], [num_ops], to 1 if the operation depends on the value, directly or not, and else to 0. */
void cairn_op_graph_reach(const struct cairn_op_graph *g, int32_t value, uint8_t *reached);
/*
 * Returns the operations first .. last during which a value's storage is in use: from the first write to the
 * last use of any value of its in-place chain. first is -1 if the storage exists before the pass.
 */
void cairn_op_graph_lifetime(const struct cairn_op_graph *g, int32_t value, int32_t *first, int32_t *last);
/* Returns whether operation o is a product whose only reader is the activation after it. */
static inline int cairn_op_may_activate(const struct cairn_op_graph *g, int32_t o)
{
	const struct cairn_graph_op *op = &g->ops[o];

	return o + 1 < g->num_ops && op->kind == CAIRN_OP_GEMM && op[1].kind == CAIRN_OP_SILU_MUL &&
	       op[1].in[0] == op->out[0] && g->values[op->out[0]].num_consumers == 1;
}

/* Returns whether operation o is a product whose rows are only rotated, without norms, and appended next. */
static inline int cairn_op_may_append(const struct cairn_op_graph *g, int32_t o)
{
	const struct cairn_graph_op *op = &g->ops[o];

	return o + 2 < g->num_ops && op->kind == CAIRN_OP_GEMM && op[1].kind == CAIRN_OP_ROPE &&
	       op[1].in[0] == op->out[0] && op[1].num_weights == 0 && op[2].kind == CAIRN_OP_KV_APPEND &&
	       op[2].in[0] == op[1].out[0] && g->values[op->out[0]].num_consumers == 1;
}

/* Returns the weight of this kind that the operation reads, or -1. */
int32_t cairn_op_weight(const struct cairn_op_graph *g, const struct cairn_graph_op *op,
			enum cairn_weight weight);

/* Return names such as "norm" and "attn"; "activation"; "hidden" and "one"; "tokens", or "" for one row. */
const char *cairn_op_kind_name(enum cairn_op_kind kind);
const char *cairn_value_kind_name(enum cairn_value_kind kind);
const char *cairn_value_role_name(enum cairn_value_role role);
const char *cairn_dim_name(enum cairn_dim dim);
const char *cairn_rows_name(enum cairn_rows rows);
/* Writes one line per value, then one per operation; equal graphs give equal text. */
void cairn_op_graph_print(const struct cairn_op_graph *g, FILE *file);

#endif
