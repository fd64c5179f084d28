/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sample - draws the next token: temperature, top-k, top-p, min-p, seeded and counter-based
 *
 * For each row, in the order of Hugging Face's logits warpers:
 *   1. temperature 0: the result is the argmax (the lowest index of equal logits); the other steps are
 *      skipped.
 *   2. p = softmax(logits / temperature).
 *   3. top_k > 0: keeps the top_k most probable tokens.
 *   4. top_p < 1: renormalises the kept tokens and keeps their shortest prefix, in order of falling
 *      probability, whose sum is >= top_p (at least one token).
 *   5. min_p > 0: keeps those of the kept tokens with p >= min_p * max p.
 *   6. u = uniform in [0,1) from Philox4x32-10 with key = seed and counter = (offset, 0). The result is the
 *      first kept token, in rising index order, at which the running sum of p is > u * (sum of all kept p).
 * Tokens of equal probability are ordered by rising index, so the kept set is unique.
 * A logit of -INFINITY is never drawn; a row with no other logits gives -1. NaN counts as -INFINITY,
 * +INFINITY as the largest finite float, and -0 equals +0.
 *
 *   argument      dtype   shape          notes
 *   out           int32   [rows]         out, the token, or -1
 *   logits        f32     [rows, vocab]  in, 16-byte aligned
 *   temperature   f32     [rows]         in, >= 0
 *   top_k         int32   [rows]         in, 0 (or less): off
 *   top_p         f32     [rows]         in, (0, 1]; 1: off
 *   min_p         f32     [rows]         in, [0, 1); 0: off
 *   seed, offset  uint64  [rows]         in; the pair names one draw, equal on every implementation
 *   workspace     bytes   [...]          scratch, 256-byte aligned, contents undefined; its size is that of
 *                                        cairn_sample_workspace() and may be 0
 *
 * The per-row arrays lie in device memory, and their values are not checked.
 *
 * Supported:   vocab 1..2^20, any; rows 0 is legal and does nothing.
 * Numerics:    fp32 or better; the difference of two logits must fit fp32. A token whose probability is below
 *              2^-40 of the largest may count as impossible.
 *              u = ((x0 * 2^32 + x1) >> 11) * 2^-53, x0 and x1 the first two Philox words.
 * Tolerance:   a token passes if some thresholds and some u within the rounding error of the sums give it
 *              (derived in sample_judge.c). Any other token fails.
 * Determinism: bitwise repeatable; a row's token does not depend on the batch or the row's place in it.
 * Errors:      -EINVAL, -EOPNOTSUPP, -EIO.
 * Source:      Salmon et al. 2011 (Philox); Holtzman et al. 2020 (top-p).
 */
#ifndef CAIRN_SAMPLE_H
#define CAIRN_SAMPLE_H

#include <stddef.h>
#include <stdint.h>

struct cairn_sample_args {
	size_t size;
	int32_t *out;
	const float *logits;
	const float *temperature;
	const int32_t *top_k;
	const float *top_p, *min_p;
	const uint64_t *seed, *offset;
	void *workspace;
	size_t workspace_bytes;
	int32_t rows, vocab;
};

#ifdef __cplusplus
extern "C" {
#endif

int cairn_sample(const struct cairn_sample_args *args, void *stream);
int cairn_sample_workspace(const struct cairn_sample_args *args, size_t *bytes);
int cairn_sample_cpu(const struct cairn_sample_args *args, void *stream);
int cairn_sample_ref(const struct cairn_sample_args *args, void *stream);
/* The argument checks that all of our tables run first: 0, -EINVAL or -EOPNOTSUPP. */
int cairn_sample_check(const struct cairn_sample_args *args);
/* The part of cairn_sample_check() that reads only the scalars, for workspace queries. */
int cairn_sample_check_shape(const struct cairn_sample_args *args);
/* Returns 0 if the contract allows this token for this row; 1, with the reason in why[], if it does not; or
 * -errno. All pointers in args are to host memory. */
int cairn_sample_judge(const struct cairn_sample_args *args, int32_t row, int32_t token, char *why,
		       size_t why_len);
/* The same for a library with random numbers of its own: the token must be a kept one, whatever u is. */
int cairn_sample_judge_kept(const struct cairn_sample_args *args, int32_t row, int32_t token, char *why,
			    size_t why_len);

#ifdef __cplusplus
}
#endif
#endif
