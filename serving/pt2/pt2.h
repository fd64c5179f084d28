/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pt2 - reads the graph of a program that torch.export.save() wrote (.pt2)
 *
 * The archive is a zip (zip.h) with the graph as JSON and each weight as raw bytes. Pickled files inside it
 * are never opened. Two layouts of schema version 8 are supported: models/NAME.json with weights in
 * data/weights (PyTorch 2.8 and later), and serialized_exported_program.json (before). The weights of the
 * older layout are pickled, so only the graph of such a file can be read.
 *
 * Programs for inference are supported if all their operations are in pt2_ops.h. Refused by name: other
 * operations; programs that write to their inputs or buffers (in-place caches); control flow and custom
 * objects; tensors of more than 8 dimensions. Sizes may be symbolic (pt2_expr.h). An operation whose results
 * are only symbolic sizes, or that only asserts something, is dropped: sizes are known by their expressions.
 *
 * Errors: -EINVAL (the text names file and member), -EIO, -ENOMEM.
 * Source: torch/_export/serde/schema.py, 8.20. Any minor version of 8 is accepted; 8.2 and 8.20 were tried.
 */
#ifndef CAIRN_PT2_H
#define CAIRN_PT2_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "serving/pt2/pt2_expr.h"
#include "serving/pt2/pt2_ops.h"

#define CAIRN_PT2_RANK	8

/* The values of torch's ScalarType as the schema numbers them. */
enum cairn_pt2_dtype {
	CAIRN_PT2_U8 = 1, CAIRN_PT2_I8, CAIRN_PT2_I16, CAIRN_PT2_I32, CAIRN_PT2_I64,
	CAIRN_PT2_F16, CAIRN_PT2_F32, CAIRN_PT2_F64, CAIRN_PT2_BOOL = 12, CAIRN_PT2_BF16
};

enum cairn_pt2_kind {
	CAIRN_PT2_INPUT,		/* given by the caller */
	CAIRN_PT2_WEIGHT,		/* a parameter */
	CAIRN_PT2_CONSTANT,		/* a buffer or another constant tensor */
	CAIRN_PT2_RESULT		/* of a node */
};

struct cairn_pt2_value {
	const char *name;
	enum cairn_pt2_kind kind;
	enum cairn_pt2_dtype dtype;
	int32_t rank;
	int32_t size[CAIRN_PT2_RANK];	/* expressions */
	const char *weight;		/* name of the parameter or constant; NULL for others */
	int32_t producer;		/* node, or -1 */
	bool is_output;
};

struct cairn_pt2_node {
	const char *name, *target;
	const struct cairn_pt2_op *op;
	const json_t *args;		/* the list of named arguments */
	int32_t first_in, num_in;	/* tensors among its arguments: pt2->ids[first_in ...] */
	int32_t first_out, num_out;
};

struct cairn_pt2 {
	struct cairn_pt2_exprs exprs;
	struct cairn_pt2_value *values;
	struct cairn_pt2_node *nodes;	/* in an order in which they can run */
	int32_t *ids;
	int32_t *inputs, *outputs;	/* values */
	int32_t num_values, num_nodes, num_ids, num_inputs, num_outputs;
	/* Private */
	struct cairn_zip *zip;
	json_t *root, *weights[2];	/* weights: the configs of weights and constants; NULL: not there */
	json_t *syms;			/* expressions of symbolic integers, by name */
	char *path, *prefix;
	struct cairn_pt2_names *names;
};

int cairn_pt2_open(struct cairn_pt2 **out, const char *path);
/* name: for error texts. The bytes must outlive the program. */
int cairn_pt2_open_mem(struct cairn_pt2 **out, const void *bytes, size_t num_bytes, const char *name);
void cairn_pt2_close(struct cairn_pt2 *p);	/* NULL is legal */

/* Returns the id of a value, or -1. */
int32_t cairn_pt2_find(const struct cairn_pt2 *p, const char *name);
/* Returns the bytes of an element. */
int64_t cairn_pt2_dtype_bytes(enum cairn_pt2_dtype dtype);
const char *cairn_pt2_dtype_name(enum cairn_pt2_dtype dtype);	/* "bf16" */
/* Computes the sizes of a value for these values of the symbols, and its number of elements. -EINVAL: one is
 * negative, or the bytes do not fit 62 bits. */
int cairn_pt2_shape(const struct cairn_pt2 *p, int32_t value, const int64_t *symbols,
		    int64_t size[CAIRN_PT2_RANK], int64_t *num);
/* Finds the bytes of a parameter or a constant, which are those that its shape needs. */
int cairn_pt2_weight(const struct cairn_pt2 *p, int32_t value, const void **data, size_t *num_bytes);
/* Computes a symbolic integer that arguments name. */
int cairn_pt2_sym(const struct cairn_pt2 *p, const char *name, const int64_t *symbols, int64_t *value);
/* Returns the argument of this name as the schema's union ({"as_int": 1}), or NULL if it is absent. */
const json_t *cairn_pt2_arg(const struct cairn_pt2_node *n, const char *name);

#endif
