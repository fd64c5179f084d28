/* SPDX-License-Identifier: Apache-2.0 */
/*
 * spec_reject - tries drafts that were drawn at random, so that the outcome has the target's distribution
 *
 * p is the target's distribution of the token at a place, q the drafter's, from which each of the drafts for
 * the place (one in a chain, siblings in a tree) was drawn independently. In order, draft x is accepted with
 * the chance min(1, p(x) / q(x)); if it is rejected, p becomes the residual max(p - q, 0), normalised. If no
 * draft is accepted, the token is drawn from the last p. So the outcome is x with the chance p(x), whatever q
 * is.
 *
 * Drafts of this engine are not random: they are what is most likely, or what occurred before. For these
 * it is as good to draw from p and compare (engine_spec_rows.c), which gives the very tokens of a request
 * without drafts; so the engine does not call this.
 *
 * Source: Leviathan et al. 2023, theorem 3.5; Miao et al. 2024 (SpecInfer), section 4.3, for siblings.
 */
#ifndef CAIRN_SPEC_REJECT_H
#define CAIRN_SPEC_REJECT_H

#include <stdint.h>

#include "serving/engine/worker/sampling.h"

/*
 * Sets p to the distribution from which `sample` draws, after temperature, top_k, top_p and min_p. Errors:
 * -EINVAL (all logits are NaN or -INFINITY), -ENOMEM.
 */
int cairn_spec_distribution(const float *logits, int32_t vocab, const struct cairn_sampling *sampling,
			    double *p);

/*
 * Tries drafts[0 .. num), each below vocab. Returns the number of the accepted one, or num if none is; *token
 * is the outcome. p and q are [vocab] and sum to 1; p is overwritten. u, [num + 1], are independent random
 * numbers in [0, 1) that nothing else was drawn with: one for each draft, and one for the draw from p.
 */
int32_t cairn_spec_reject(double *p, const double *q, int32_t vocab, const int32_t *drafts, int32_t num,
			  const double *u, int32_t *token);

#endif
