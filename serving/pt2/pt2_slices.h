/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pt2_slices - cuts an exported program at its attention operators, as slices.h does for our own graphs
 *
 * The cuts and the programs of slices are those of slices.h, with these differences:
 *
 * - Values that depend on no parameter (positions, rotary tables, masks) cost nothing: each slice and each
 *   attention worker that reads one computes it. The mask of attention must be such a value.
 * - If the query, the key or the value of attention is only an arrangement of a smaller tensor (heads that
 *   are repeated, say), the smaller one is sent, and the attention worker arranges it.
 * - There is no cache: a program has as many keys as queries.
 *
 * Errors: -EINVAL (the text names the node or the value), -ENOMEM.
 */
#ifndef CAIRN_PT2_SLICES_H
#define CAIRN_PT2_SLICES_H

#include <stdio.h>

#include "serving/pt2/pt2.h"
#include "serving/slices/slices.h"

struct cairn_pt2_seam {
	int32_t attn;			/* node */
	int32_t q, k, v;		/* values that are sent */
	int32_t first_op, num_ops;	/* nodes that the attention worker runs before: slices->far[] */
};

/* Steps are as in slices.h, with nodes as operations; no step is in parts. */
struct cairn_pt2_slices {
	struct cairn_slice *slices;	/* [num_slices] */
	struct cairn_pt2_seam *seams;	/* [num_slices - 1] */
	struct cairn_slice_step *steps;
	int32_t *saves;			/* values, ascending within a slice */
	int32_t *far;			/* nodes */
	int32_t num_slices, num_steps, num_saves, num_far;
	int32_t step_room, save_room, far_room;
};

/* Sets the symbols to those of the exported example, or to their least value, at least 2. */
void cairn_pt2_symbols(const struct cairn_pt2 *p, int64_t *symbols);

/*
 * Finds the first cut that saves other values if one symbol has its least value, or its largest of at most
 * 4096, and the others are as in `symbols`. Sets *cut to it, or to -1 if all cuts are the same, and *symbol
 * and *at to the symbol and its value.
 */
int cairn_pt2_slices_vary(const struct cairn_pt2_slices *s, const struct cairn_pt2 *p, const int64_t *symbols,
			  int32_t *cut, int32_t *symbol, int64_t *at);
/* symbols: the sizes at which bytes are compared. -EINVAL if the program has no attention operator. */
int cairn_pt2_slices_create(struct cairn_pt2_slices **out, const struct cairn_pt2 *p, const int64_t *symbols);
void cairn_pt2_slices_destroy(struct cairn_pt2_slices *s);	/* NULL is legal */
/* Checks that the slices compute the program, as cairn_slices_check() does. */
int cairn_pt2_slices_check(const struct cairn_pt2_slices *s, const struct cairn_pt2 *p);
/* Writes the format "cairn-slices 1", for programs (README.md). */
int cairn_pt2_slices_write(const struct cairn_pt2_slices *s, const struct cairn_pt2 *p,
			   const int64_t *symbols, FILE *file);

#endif
