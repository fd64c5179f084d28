/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pt2_run - computes an exported program naively, in double precision, whole or in slices
 *
 * This is the reference for the converter: the slices of a program must give the bits that the program gives,
 * although at each cut all values are forgotten but those that it saves, and each attention worker knows only
 * what it is sent.
 *
 * Every tensor is an array of doubles, row-major; integers are exact below 2^53. A conversion to an integer
 * dtype truncates, and one to f32 rounds to it. Results in f16 and bf16 are not rounded.
 *
 * Errors: -EINVAL (arguments that the operation's result does not fit, in files that PyTorch did not write;
 * variants of operations that are not implemented; an index out of range; a value that does not exist), the
 * text names the node; -ENOMEM.
 */
#ifndef CAIRN_PT2_RUN_H
#define CAIRN_PT2_RUN_H

#include "serving/pt2/pt2_slices.h"

struct cairn_pt2_tensor {
	int32_t rank;
	int64_t size[CAIRN_PT2_RANK], num;
	double *data;			/* NULL: the tensor does not exist */
};

/* The outputs of a program. */
struct cairn_pt2_results {
	struct cairn_pt2_tensor *outputs;
	int32_t num;
};

/*
 * Sets the symbols so that the inputs have these sizes; other symbols are as in cairn_pt2_symbols(). inputs:
 * [num_inputs]. -EINVAL: the sizes do not fit the program.
 */
int cairn_pt2_fit(const struct cairn_pt2 *p, const struct cairn_pt2_tensor *inputs, int64_t *symbols);
/* slices: NULL runs the program as a whole. */
int cairn_pt2_run(struct cairn_pt2_results *r, const struct cairn_pt2 *p,
		  const struct cairn_pt2_slices *slices, const struct cairn_pt2_tensor *inputs,
		  const int64_t *symbols);
/* Does nothing if *r is zeroed. */
void cairn_pt2_results_free(struct cairn_pt2_results *r);

#endif
