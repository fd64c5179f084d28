/* SPDX-License-Identifier: Apache-2.0 */
/*
 * decode_step_ref - one request's way through a decode step in double: what decode_step_ref.c computes and
 * decode_step_bounds.c judges
 */
#ifndef CAIRN_DECODE_STEP_REF_H
#define CAIRN_DECODE_STEP_REF_H

#include "fused/block/block_ref.h"
#include "fused/decode_step/decode_step_parts.h"

struct step_run {
	double *memory;
	struct block_row x, n, gate_up, k, v, logits, router;	/* k, v, router: of all layers */
};

/* bounded: with errors, not values alone (those of x stay 0). -ENOMEM; memory is to be freed. */
int step_run_open(struct step_run *r, const struct cairn_decode_step_args *a, int bounded);

/*
 * seed 0: as the contract says. Else each element of the residual stream is off by up to u of itself, at
 * random, wherever it is rounded. Not for a request without a key. -ENOMEM.
 */
int step_run_request(struct step_run *r, const struct cairn_decode_step_args *a, int b, uint64_t seed);

int step_has_keys(const struct cairn_decode_step_args *a, int b);

/*
 * Element of the pages of layer 0, `row` for each token, at which what request b appends to `layer` begins.
 */
int64_t step_slot(const struct cairn_decode_step_args *a, int b, int layer, int64_t row);

#endif
