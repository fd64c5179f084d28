/* SPDX-License-Identifier: Apache-2.0 */
/*
 * logprobs - log-softmax of the drawn token and of the k likeliest tokens
 *
 *   logprob(j) = logits[i,j] - log(sum_l exp(logits[i,l]))
 *
 *   argument   dtype  shape          notes
 *   chosen     f32    [rows]         out, logprob(tokens[i]); -INFINITY for a token outside 0..vocab-1
 *   top_ids    int32  [rows, k]      out, may be NULL if k is 0; the k likeliest tokens in falling order,
 *                                    the lower index first among equal logits
 *   top        f32    [rows, k]      out, may be NULL if k is 0; logprobs of top_ids
 *   logits     f32    [rows, vocab]  in, 16-byte aligned
 *   tokens     int32  [rows]         in, the drawn tokens
 *   wanted     int32  [rows]         in, optional (NULL: all rows); 0: outputs of that row are not written
 *
 * The caller may pass the model's logits (vLLM's default) or those after penalize.h. NaN counts as -INFINITY,
 * +INFINITY as the largest finite float, and -0 equals +0, as in sample.h. A logit of -INFINITY has logprob
 * -INFINITY and is among the k likeliest only if fewer than k better ones exist. In a row with nothing but
 * -INFINITY, all logprobs are -INFINITY. If vocab < k, the last k - vocab ids are -1 and their logprobs
 * -INFINITY.
 *
 * Supported:   k 0..32; vocab 1..2^20, any; rows 0 is legal and does nothing.
 * Numerics:    fp32 or better; no chain of dependent additions is longer than 256.
 * Tolerance:   ids exact; logprobs within 2^-15 + 2^-22 |ref| + 2^-23 (largest logit - logit); derived in
 *              logprobs_ref.c.
 * Determinism: bitwise repeatable. A row does not depend on the contents of the others, but the grouping of
 *              its sums may depend on rows.
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
/* The argument checks that all of our tables run first: 0, -EINVAL or -EOPNOTSUPP. */
int cairn_logprobs_check(const struct cairn_logprobs_args *args);
/* exact[0]: chosen; if k > 0, exact[1]: top_ids, exact[2]: top */
int cairn_logprobs_exact(const struct cairn_logprobs_args *args, struct cairn_exact *exact);

#ifdef __cplusplus
}
#endif
#endif
