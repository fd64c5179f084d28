/* SPDX-License-Identifier: Apache-2.0 */
/* pt2_eval - the operations of pt2_run */
#ifndef CAIRN_PT2_EVAL_H
#define CAIRN_PT2_EVAL_H

#include "serving/pt2/pt2_run.h"

/* One node with its tensors. Outputs have their sizes and memory; their contents are still to be computed. */
struct pt2_call {
	const struct cairn_pt2 *p;
	const struct cairn_pt2_node *n;
	const int64_t *symbols;
	const struct cairn_pt2_tensor *values;	/* [num_values] */
	struct cairn_pt2_tensor *out;		/* [num_out] */
	enum cairn_pt2_dtype dtype;		/* of out[0] */
};

typedef int (*pt2_fn)(const struct pt2_call *c);

/* Returns the function of an operation that is not dropped. */
pt2_fn pt2_eval_compute(const char *target);	/* pt2_eval.c; NULL: not there */
pt2_fn pt2_eval_arrange(const char *target);	/* pt2_arrange.c */

int pt2_call_error(const struct pt2_call *c, const char *what);
/* Returns the tensor of an argument; NULL: absent or no tensor. */
const struct cairn_pt2_tensor *pt2_tensor(const struct pt2_call *c, const char *name);
/* Returns tensor i of the node's tensors, in order; NULL if it has fewer. */
const struct cairn_pt2_tensor *pt2_input(const struct pt2_call *c, int32_t i);
/* An absent argument, or none, leaves *value unchanged. -EINVAL: it is no number. */
int pt2_int(const struct pt2_call *c, const char *name, int64_t *value);
int pt2_number(const struct pt2_call *c, const char *name, double *value);
/* Reads at most CAIRN_PT2_RANK integers. */
int pt2_ints(const struct pt2_call *c, const char *name, int64_t *values, int32_t *num);
/* Reads a dimension of a tensor of this rank; a negative one counts from the end. */
int pt2_dim(const struct pt2_call *c, const char *name, int32_t rank, int64_t *dim);

/* Returns the product of size[from .. to - 1]. */
int64_t pt2_product(const struct cairn_pt2_tensor *t, int32_t from, int32_t to);
/* Sets strides in elements, with which index [i] of a result of this shape reads t; -1 if t does not spread
 * to the shape. */
int pt2_spread(const struct cairn_pt2_tensor *t, const struct cairn_pt2_tensor *shape,
	       int64_t stride[CAIRN_PT2_RANK]);
/* Returns the element that strides give for element i of a tensor of this shape. */
int64_t pt2_at(const struct cairn_pt2_tensor *shape, const int64_t *stride, int64_t i);

#endif
