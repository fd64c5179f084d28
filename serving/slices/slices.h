/* SPDX-License-Identifier: Apache-2.0 */
/*
 * slices - cuts a forward pass at its attention operators, so that attention can run elsewhere
 *
 * A pass with n attention operators becomes n + 1 slices, which run one after the other on a model worker.
 * Between slices k and k + 1 an attention worker runs attention operator k together with the operation that
 * appends to its cache. A slice gets the result of the attention before it, and sends the queries, keys and
 * values of the attention after it. All else that a later slice reads must be saved across the cut, in the
 * request's context: cut k saves the values that operations before it write and operations after it read.
 *
 * Each cut is a minimum cut: its values have the fewest bytes, of these cuts the fewest values, and of these
 * cuts it has the most operations before it, because they can run while attention is under way. An
 * operation that needs the result of attention k is after cut k; a value that several operations read counts
 * once; weights and what the caller gives to the pass count nothing. The capacity of every cut is proven by
 * a flow (min_cut.h).
 *
 * Program of a slice: MERGE takes the result of the attention before it; then come the operations that the
 * queries need, SEND_Q, those that keys and values need, SEND_KV, and the operations that no message waits
 * for. If q, k and v are columns of one value, the operations that write such rows run twice, first for the
 * columns of q, then for those of k and v.
 *
 * Source: the automated model converter of Lamina (Chen et al. 2024). There, edges have weights; here each
 * value is a node, so that a value with two readers is not counted twice.
 *
 * Errors: -EINVAL, the text names the operation or the value; -ENOMEM.
 */
#ifndef CAIRN_SLICES_H
#define CAIRN_SLICES_H

#include <stdio.h>

#include "serving/graph/op_cost.h"

enum cairn_step_kind {
	CAIRN_STEP_OP,
	CAIRN_STEP_SEND_Q,
	CAIRN_STEP_SEND_KV,
	CAIRN_STEP_MERGE
};

enum cairn_step_part {
	CAIRN_PART_ALL,
	CAIRN_PART_Q,		/* only the columns of q */
	CAIRN_PART_KV		/* only the columns of k and v */
};

struct cairn_slice_step {
	enum cairn_step_kind kind;
	enum cairn_step_part part;	/* for CAIRN_STEP_OP */
	int32_t op;			/* for the other kinds: the attention operator */
};

struct cairn_slice {
	int32_t first_step, num_steps;
	int32_t first_save, num_saves;	/* values that the cut at the end of the slice saves */
	int64_t save_bytes;
};

/* What runs on the attention worker: the attention operator and the operation that appends to its cache. */
struct cairn_seam {
	int32_t attn, append;
	int32_t q, kv;			/* values that are sent; the same one if q, k and v share rows */
};

struct cairn_slices {
	struct cairn_slice *slices;	/* [num_slices] */
	struct cairn_seam *seams;	/* [num_slices - 1] */
	struct cairn_slice_step *steps;
	int32_t *saves;			/* values, ascending within a slice */
	int32_t num_slices, num_steps, num_saves;
};

/* The sizes decide the bytes of the values; a graph whose values all grow with the tokens has the same cuts
 * for any number of tokens. */
int cairn_slices_create(struct cairn_slices **out, const struct cairn_op_graph *g,
			const struct cairn_pass_sizes *sizes);
void cairn_slices_destroy(struct cairn_slices *s);	/* NULL is legal */
/*
 * Checks, without the code that made them, that the slices compute the graph: every operation runs once,
 * after its inputs exist, and between slices only saved values last.
 */
int cairn_slices_check(const struct cairn_slices *s, const struct cairn_op_graph *g);
/*
 * Reads what cairn_slices_write() wrote, and checks it: the symbols, the values and the operations must be
 * those of the graph, and `tokens` and the bytes those of the sizes. file: the name for error texts, each of
 * which names the member. -EINVAL, -ENOMEM.
 */
int cairn_slices_read(struct cairn_slices **out, const struct cairn_op_graph *g,
		      const struct cairn_pass_sizes *sizes, const char *text, size_t num_bytes,
		      const char *file);
/* Writes the format "cairn-slices 1" (README.md): equal slices give equal text. */
int cairn_slices_write(const struct cairn_slices *s, const struct cairn_op_graph *g,
		       const struct cairn_pass_sizes *sizes, FILE *file);

#endif
