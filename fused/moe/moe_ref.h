/* SPDX-License-Identifier: Apache-2.0 */
/*
 * moe_ref - one request's way through a mixture of experts in double:
 * what moe_ref.c computes and moe_bounds.c judges
 */
#ifndef CAIRN_MOE_REF_H
#define CAIRN_MOE_REF_H

#include "fused/block/block_ref.h"

/*
 * Run 0 rounds to nearest, the others up or down at random. Rows of all runs: x, n, logits, gate_up, y, out;
 * of run 0 alone: n_error and error, how far off n and the logits may be; squares and parts, what the terms
 * of out add up to.
 */
struct moe_chain {
	const struct cairn_moe_args *a;
	int runs, experts[256];		/* all of them, the most probable first */
	double *memory, *x, *n, *gate_up, *y, *out, *logits, *n_error, *error, *squares, *parts;
};

/* -ENOMEM; memory is to be freed. */
int moe_chain_open(struct moe_chain *c, const struct cairn_moe_args *a, int runs);
/* x from request b; then n, the logits, and the order of the experts; then y and out */
void moe_chain_load(struct moe_chain *c, int b);
void moe_chain_route(struct moe_chain *c);
void moe_chain_run(struct moe_chain *c);

#endif
