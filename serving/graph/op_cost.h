/* SPDX-License-Identifier: Apache-2.0 */
/*
 * op_cost - bytes and flops of an operation in a pass of given sizes
 *
 * bytes: what the operation must read and write if it reads each element of its inputs and weights once and
 * writes each element of its outputs once; a value updated in place counts twice. Only elements that the
 * operation needs count: the parts of a packed q, k, v row that it reads; the cached tokens that the pass
 * attends to; the embedding rows of the tokens; and as many experts as the tokens choose on average if each
 * chooses uniformly. The scales of 8-bit matrices (less than 1% of the matrices) and the operation's
 * workspace do not count.
 *
 * flops: two per multiply-add of matrix products and attention. Attention counts the keys that each token
 * attends to under the causal mask and the window. MLA counts the absorbed form: queries are multiplied by
 * kv_b, and scores and sums run over latents. Elementwise operations count as 0: they are memory-bound.
 *
 * In a pass that wants no logits the operations of the head are skipped and cost nothing.
 */
#ifndef CAIRN_OP_COST_H
#define CAIRN_OP_COST_H

#include <stddef.h>
#include <stdint.h>

#include "serving/graph/op_graph.h"

struct cairn_pass_sizes {
	const int32_t *dims;		/* [CAIRN_NUM_DIMS] */
	/* [num_requests]: tokens in the pass; tokens in the cache, including those of the pass */
	const int32_t *qo_len, *kv_len;
	int32_t num_requests;
	int64_t num_tokens, num_logits;	/* num_tokens: sum of qo_len */
	uint8_t element[CAIRN_NUM_ROLES];	/* bytes of an element of each role */
};

struct cairn_op_cost {
	int64_t bytes, flops;
};

/* Returns the bytes of a value. kv_len may be NULL if the value is not the cache. */
int64_t cairn_value_bytes(const struct cairn_graph_value *value, const struct cairn_pass_sizes *sizes);
struct cairn_op_cost cairn_op_cost(const struct cairn_op_graph *g, int32_t op,
				   const struct cairn_pass_sizes *sizes);

#endif
