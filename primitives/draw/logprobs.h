/* SPDX-License-Identifier: Apache-2.0 */
/*
 * logprobs - log-softmax of the token that was drawn and of the likeliest ones
 *
 *   logprob(j) = logits[i,j] - log(sum_l exp(logits[i,l]))
 *
 *   argument   dtype  shape          notes
 *   chosen     f32    [rows]         out, logprob(tokens[i]); -INFINITY for a token outside 0..vocab-1
 *   top_ids    int32  [rows, k]      out, NULL with k 0: the k likeliest, falling; of equals the lower
 *                                    index first
 *   top        f32    [rows, k]      out, NULL with k 0: their logprobs
 *   logits     f32    [rows, vocab]  in, 16-byte aligned
 *   tokens     int32  [rows]         in
 *   wanted     int32  [rows]         in, optional (NULL: all): a row with 0 is passed over, outputs untouched
 *
 * Which logits, those of the model or those after penalize.h, is the caller's choice (vLLM's default are the
 * first). NaN counts as -INFINITY, +INFINITY as the largest finite float, -0 equals +0, as in sample.h. A
 * logit of -INFINITY has logprob -INFINITY and may be among the likeliest when nothing better is left; in a
 * row of nothing else all logprobs are -INFINITY. Where vocab < k the last ids are -1, their logprobs
 * -INFINITY.
 *
 * Supported:   k 0..32; vocab 1..2^20, any; rows 0 is legal and does nothing.
 * Numerics:    fp32 or better; a chain of additions is at most 256 long.
 * Tolerance:   ids exact; logprobs within 2^-15 + 2^-22 |ref| + 2^-23 (largest logit - logit); derived in
 *              logprobs_ref.c.
 * Determinism: bitwise repeatable.
 * Errors:      -EINVAL, -EOPNOTSUPP, -EIO.
 */
#ifndef CAIRN_LOGPROBS_H
#define CAIRN_LOGPROBS_H

#include <stddef.h>
#include <stdint.h>

struct cairn_exact;

#define CAIRN_LOGPROBS_MAX	32

struct cairn_logprobs_args {
	size_t size;
	float *chosen;
	int32_t *top_ids;
	float *top;
	const float *logits;
	const int32_t *tokens, *wanted;
	int32_t rows, vocab, k;
};

#ifdef __cplusplus
extern "C" {
#endif

int cairn_logprobs(const struct cairn_logprobs_args *args, void *stream);
int cairn_logprobs_cpu(const struct cairn_logprobs_args *args, void *stream);
int cairn_logprobs_ref(const struct cairn_logprobs_args *args, void *stream);
/* What each of ours does first: 0, -EINVAL or -EOPNOTSUPP. */
int cairn_logprobs_check(const struct cairn_logprobs_args *args);
/* [0]: chosen; with k [1]: top_ids, [2]: top */
int cairn_logprobs_exact(const struct cairn_logprobs_args *args, struct cairn_exact *exact);

#ifdef __cplusplus
}
#endif
#endif
