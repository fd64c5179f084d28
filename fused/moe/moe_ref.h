/* SPDX-License-Identifier: Apache-2.0 */
/*
 * moe_ref - one request's computation of a mixture of experts in double: moe_ref.c computes it, moe_bounds.c
 * derives bounds from it
 */
#ifndef CAIRN_MOE_REF_H
#define CAIRN_MOE_REF_H

#include "fused/block/block_ref.h"
#include "fused/moe/moe.h"

/*
 * The runs of a chain are results that the contract allows: run 0 is the definition; in MOE_RUN_LATE the
 * weight comes after the product with w_down; in MOE_RUN_UNROUNDED h keeps all its bits; those from
 * MOE_RUN_AT_RANDOM on round n and h up or down at random, the odd ones with late weights. Where the contract
 * lets 4-bit weights be rounded, these runs round them at random, too.
 */
enum { MOE_RUN_LATE = 1, MOE_RUN_UNROUNDED, MOE_RUN_AT_RANDOM };
#define MOE_MAX_RUNS	16

/*
 * All runs have rows x, n, logits, gate_up, y, out. Run 0 alone has n_error and error (error bounds of n and
 * the logits) and squares and parts (sums over the terms of out).
 */
struct moe_chain {
	const struct cairn_moe_args *a;
	struct cairn_moe_choice how;
	struct cairn_moe_between between;
	int runs, experts[256];		/* best first, and those that may not be chosen last */
	int groups[CAIRN_MOE_MAX_GROUPS];	/* best first */
	double *memory, *x, *n, *gate_up, *y, *out, *logits, *n_error, *error, *squares, *parts;
};

/* Returns -ENOMEM without memory. The caller frees c->memory. */
int moe_chain_open(struct moe_chain *c, const struct cairn_moe_args *a, int runs);
/* Set x from request b; then n, the logits and the order of the experts; then y and out. */
void moe_chain_load(struct moe_chain *c, int b);
void moe_chain_route(struct moe_chain *c);
void moe_chain_run(struct moe_chain *c);

/* Returns an expert's c (moe.h) in run 0; with score 0 and no groups, its logit, which has the same order. */
double moe_chain_score(const struct moe_chain *c, int expert);
/* Returns the score of a group in run 0. */
double moe_chain_group(const struct moe_chain *c, int group);

/*
 * Computes a mixture of experts on one row of x, values only: out [hidden], rounded, and the logits
 * [num_experts] that select the experts. Does not access a->x, a->out and a->experts. Returns -ENOMEM without
 * memory.
 */
int cairn_block_moe(const struct cairn_moe_args *a, const double *x, double *out, double *logits);

/*
 * Writes request b's experts; returns whether both the selection and its order are certain within the error
 * bounds.
 */
int cairn_block_moe_choice(const struct cairn_moe_args *a, int b, int32_t *experts);

#endif
