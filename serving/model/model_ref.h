/* SPDX-License-Identifier: Apache-2.0 */
/*
 * model_ref - a checkpoint computed the plain way, in double precision
 *
 * No pages, no packing, no operation table: what the engine's logits are judged by. It also says how far
 * off they may be. Every value the engine rounds to bf16 (or f16) is off by at most u times itself; here each
 * of them is multiplied by 1 + u * r with r uniform in [-1, 1]. The spread of the logits over such runs is
 * the error that rounding causes, carried through the real network rather than through worst cases,
 * which after a few layers exceed the logits themselves.
 */
#ifndef CAIRN_MODEL_REF_H
#define CAIRN_MODEL_REF_H

#include <stdint.h>

#include "serving/model/model.h"

/* logits: [num_ids, vocab_size]. noise: u above, 0 for the exact result; seed: of r. */
int cairn_model_ref(const char *dir, const int32_t *ids, int num_ids, double noise, uint64_t seed,
		     double *logits);

/*
 * exact: [num_ids, vocab_size] without noise; bound, the same shape: how far off the logits of an engine
 * with this dtype may be. It is six standard deviations over CAIRN_MODEL_REF_RUNS noisy runs; a logit's own
 * deviation is not taken smaller than the root mean square of its row. Errors of many roundings add up to
 * something normal, and of 20,000 normal values none is beyond six deviations; nor does the noise
 * flatter: rounding to nearest is off by u on powers of two and by half as much just below the next.
 */
#define CAIRN_MODEL_REF_RUNS 24
int cairn_model_ref_bound(const char *dir, const int32_t *ids, int num_ids, int dtype, double *exact,
			   double *bound);
/*
 * The same of a model whose matrices are kept in 8 bits: exact is with these as they then are, each packed
 * one quantised as it is loaded.
 */
int cairn_model_ref_bound_as(const char *dir, enum cairn_weights weights, const int32_t *ids, int num_ids,
			     int dtype, double *exact, double *bound);
/*
 * How far quantising the matrices may move logits: each of their elements is off by at most 2^-4 of itself
 * and 2^-10 of its scale (e4m3 has four bits, and steps of 2^-9 at the bottom). bound as above, with that as
 * noise.
 */
int cairn_model_ref_fp8_bound(const char *dir, const int32_t *ids, int num_ids, double *exact, double *bound);

#endif
