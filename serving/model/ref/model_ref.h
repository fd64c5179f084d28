/* SPDX-License-Identifier: Apache-2.0 */
/*
 * model_ref - computes a checkpoint's logits the simplest way, in double precision
 *
 * It uses no pages, no packing and no operation table; tests compare the engine's logits with its results. It
 * also computes the error bound. Every value that the engine rounds to bf16 (or f16) has a relative error of
 * at most u; here each such value is multiplied by 1 + u * r with r uniform in [-1, 1]. The spread of the
 * logits over such runs is the error caused by rounding, propagated through the real network. A worst-case
 * bound would exceed the logits themselves after a few layers.
 */
#ifndef CAIRN_MODEL_REF_H
#define CAIRN_MODEL_REF_H

#include <stdint.h>

#include "serving/model/model.h"

/* logits: [num_ids, vocab_size], out. noise: u above, or 0 for the exact result; seed: of the random r. */
int cairn_model_ref(const char *dir, const int32_t *ids, int num_ids, double noise, uint64_t seed,
		     double *logits);

/*
 * exact: [num_ids, vocab_size], out, without noise. bound: same shape, out: the allowed error of the logits
 * of an engine with this dtype. It is six standard deviations over CAIRN_MODEL_REF_RUNS noisy runs; the
 * deviation of a logit is at least the root mean square of its row. The errors of many roundings add up to a
 * nearly normal distribution, and of 20,000 normal values none is expected beyond six deviations. The noise
 * is not too generous either: rounding to nearest has a relative error of up to u at powers of two, and of
 * half that just below the next.
 */
#define CAIRN_MODEL_REF_RUNS 24
int cairn_model_ref_bound(const char *dir, const int32_t *ids, int num_ids, int dtype, double *exact,
			   double *bound);
/*
 * The same for a model with 8-bit matrices: `exact` uses the quantised matrices, quantised after packing as
 * in the engine, and with w8a8 quantises the activations of each product.
 */
int cairn_model_ref_bound_as(const char *dir, enum cairn_weights weights, const int32_t *ids, int num_ids,
			     int dtype, double *exact, double *bound);
/*
 * Computes how far quantisation of the matrices, and with w8a8 of activations, may move the logits. The error
 * of an element is at most 2^-4 of its value or 2^-10 of its scale, whichever is larger (e4m3 has four
 * significant bits, and steps of 2^-9 in the subnormal range). exact: without noise; bound: as above, with
 * that error as noise.
 */
int cairn_model_ref_fp8_bound(const char *dir, enum cairn_weights weights, const int32_t *ids, int num_ids,
			      double *exact, double *bound);

#endif
