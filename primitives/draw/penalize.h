/* SPDX-License-Identifier: Apache-2.0 */
/*
 * penalize - what is done to logits before a token is drawn, in place
 *
 * For each row i and token j, with c the counter counts[slots[i], j] of token_counts.h (0 without a slot) and
 * n = c & 0x7fff the number of times the answer so far has the token:
 *
 *   1. softcap > 0:      x = softcap * tanh(x / softcap)
 *   2. j in row's bias:  x = x + bias of j
 *   3. c != 0:           x = x > 0 ? x / repetition[i] : x * repetition[i]
 *   4. n > 0:            x = x - frequency[i] * n - presence[i]
 *   5. j forbidden:      x = -INFINITY
 *
 * This is the order of vLLM's sampler, whose cap belongs to the model and comes first, whose bias precedes
 * penalties, and in which a forbidden token (an end-of-sequence or stop token before min_tokens) becomes
 * -INFINITY before both, which comes to the same.
 *
 * Row i's bias is bias_ids, bias [bias_at[i] .. + num_bias[i]) and what is forbidden to it forbidden_ids
 * [forbidden_at[i] .. + num_forbidden[i]): lists that were uploaded when a request began and that its
 * sequences share. num_forbidden is 0 once there are min_tokens.
 *
 *   argument                         dtype   shape               notes
 *   logits                           f32     [rows, vocab]       in and out, 16-byte aligned
 *   counts                           uint16  [num_slots, vocab]  in, 16-byte aligned; NULL: 3, 4 are off
 *   slots                            int32   [rows]              in, outside 0..num_slots-1: no counters;
 *                                                                NULL with counts
 *   repetition, frequency, presence  f32     [rows]              in, NULL with counts; repetition > 0;
 *                                                                1, 0, 0: off
 *   bias_at, num_bias                int32   [rows]              in, NULL: 2 is off
 *   bias_ids, bias                   int32, f32  [...]           in, ids distinct within a list; outside
 *                                                                0..vocab-1: passed over
 *   forbidden_at, num_forbidden      int32   [rows]              in, NULL: 5 is off
 *   forbidden_ids                    int32   [...]               in, may repeat; outside 0..vocab-1: passed
 *                                                                over
 *
 * The values of the per-row arrays lie where the device is and are not checked. A row whose values are all
 * off is neither read nor written (softcap apart).
 *
 * Supported:   vocab 1..2^20, any; rows 0 is legal and does nothing. softcap is finite and >= 0.
 * Numerics:    fp32 or better, each step rounded once or not at all; tanh to 4 ulps. NaN stays NaN.
 * Tolerance:   derived in penalize_ref.c; where no step applies the bits stay what they are.
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
/* What each of ours does first: 0, -EINVAL or -EOPNOTSUPP. */
int cairn_penalize_check(const struct cairn_penalize_args *args);
int cairn_penalize_exact(const struct cairn_penalize_args *args,
			 struct cairn_exact *exact);    /* [0]: logits */

#ifdef __cplusplus
}
#endif
#endif
