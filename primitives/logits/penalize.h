/* SPDX-License-Identifier: Apache-2.0 */
/*
 * penalize - applies soft cap, bias, penalties and forbidden tokens to logits, in place, before sampling
 *
 * For each row i and token j, with c the counter counts[slots[i], j] of token_counts.h (0 without a slot) and
 * n = c & 0x7fff the number of occurrences of token j in the answer so far:
 *
 *   1. softcap > 0:      x = softcap * tanh(x / softcap)
 *   2. j has a bias:     x = x + bias of j
 *   3. c != 0:           x = x > 0 ? x / repetition[i] : x * repetition[i]
 *   4. n > 0:            x = x - frequency[i] * n - presence[i]
 *   5. j is forbidden:   x = -INFINITY
 *
 * The result equals that of vLLM's sampler. There the cap belongs to the model and comes first, and the bias
 * precedes the penalties. vLLM sets a forbidden token (an end-of-sequence or stop token before min_tokens) to
 * -INFINITY before both, which gives the same logits.
 *
 * The biases of row i are entries bias_at[i] .. bias_at[i] + num_bias[i] - 1 of bias_ids and bias; its
 * forbidden tokens are entries forbidden_at[i] .. forbidden_at[i] + num_forbidden[i] - 1 of forbidden_ids.
 * The caller uploads these lists when a request begins, and all sequences of the request share them.
 * num_forbidden[i] becomes 0 once the answer has min_tokens tokens.
 *
 *   argument                         dtype   shape               notes
 *   logits                           f32     [rows, vocab]       in and out, 16-byte aligned
 *   counts                           uint16  [num_slots, vocab]  in, 16-byte aligned; NULL: no steps 3, 4
 *   slots                            int32   [rows]              in; outside 0..num_slots-1: no counters;
 *                                                                may be NULL if counts is NULL
 *   repetition, frequency, presence  f32     [rows]              in, repetition > 0; 1, 0, 0: off; may be
 *                                                                NULL if counts is NULL
 *   num_bias                         int32   [rows]              in; NULL: step 2 is off
 *   bias_at                          int32   [rows]              in, may be NULL if num_bias is NULL
 *   bias_ids                         int32   [...]               in, distinct within a list; ids outside
 *                                                                0..vocab-1 are ignored
 *   bias                             f32     [...]               in, parallel to bias_ids
 *   num_forbidden                    int32   [rows]              in; NULL: step 5 is off
 *   forbidden_at                     int32   [rows]              in, may be NULL if num_forbidden is NULL
 *   forbidden_ids                    int32   [...]               in, may repeat; ids outside 0..vocab-1 are
 *                                                                ignored
 *
 * The per-row arrays lie in device memory, and their values are not checked. If softcap is 0, the logits of a
 * row with every step off are neither read nor written. Every step is off if the row's lists are empty and it
 * either has no counters or has repetition 1, frequency 0 and presence 0.
 *
 * Supported:   vocab 1..2^20, any; rows 0 is legal and does nothing. softcap is finite and >= 0.
 * Numerics:    fp32 or better, each step rounded once or not at all; tanh to 4 ulps. NaN stays NaN,
 *              unless it is forbidden; infinities follow IEEE arithmetic, and softcap makes them +-softcap.
 * Tolerance:   derived in penalize_ref.c; a logit to which no step applies keeps its bits, a NaN its payload
 *              too.
 * Determinism: bitwise repeatable; a row does not depend on the others.
 * Errors:      -EINVAL, -EOPNOTSUPP, -EIO.
 */
#ifndef CAIRN_PENALIZE_H
#define CAIRN_PENALIZE_H

#include <stddef.h>
#include <stdint.h>

struct cairn_exact;

struct cairn_penalize_args {
	size_t size;
	float *logits;
	const uint16_t *counts;
	const int32_t *slots;
	const float *repetition, *frequency, *presence;
	const int32_t *bias_at, *num_bias, *bias_ids;
	const float *bias;
	const int32_t *forbidden_at, *num_forbidden, *forbidden_ids;
	int32_t rows, vocab, num_slots;
	float softcap;
};

#ifdef __cplusplus
extern "C" {
#endif

int cairn_penalize(const struct cairn_penalize_args *args, void *stream);
int cairn_penalize_cpu(const struct cairn_penalize_args *args, void *stream);
int cairn_penalize_ref(const struct cairn_penalize_args *args, void *stream);
/* The argument checks that all of our tables run first: 0, -EINVAL or -EOPNOTSUPP. */
int cairn_penalize_check(const struct cairn_penalize_args *args);
int cairn_penalize_exact(const struct cairn_penalize_args *args,
			 struct cairn_exact *exact);    /* [0]: logits */

#ifdef __cplusplus
}
#endif
#endif
