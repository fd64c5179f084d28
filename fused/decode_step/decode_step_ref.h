/* SPDX-License-Identifier: Apache-2.0 */
/*
 * decode_step_ref - one request's decode step in double: decode_step_ref.c computes it, decode_step_bounds.c
 * derives bounds from it
 */
#ifndef CAIRN_DECODE_STEP_REF_H
#define CAIRN_DECODE_STEP_REF_H

#include "fused/block/block_ref.h"
#include "fused/cluster_attn/block_attn_ref.h"
#include "fused/decode_step/decode_step_parts.h"
#include "fused/latent/cluster_mla_ref.h"
#include "fused/moe/moe_ref.h"

struct step_run {
	double *memory;
	struct block_row x, n, gate_up, k, v, logits, router;	/* k, v, router: of all layers */
};

/*
 * bounded: the run also carries errors (those of x stay 0). Returns -ENOMEM without memory. The caller frees
 * r->memory.
 */
int step_run_open(struct step_run *r, const struct cairn_decode_step_args *a, int bounded);

/*
 * seed 0: rounds as the contract says. Otherwise each element of the residual stream is off by up to u of
 * itself, at random, wherever it is rounded. The request must have a key. Returns -ENOMEM without memory.
 */
int step_run_request(struct step_run *r, const struct cairn_decode_step_args *a, int b, uint64_t seed);

/*
 * Returns the element, counted in the pages of layer 0, at which the key or value that request b appends in
 * `layer` begins; row: elements of a token.
 */
int64_t step_slot(const struct cairn_decode_step_args *a, int b, int layer, int64_t row);

#endif
