/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sample - draws the next token: temperature, top-k, top-p, min-p, seeded and counter-based
 *
 * For each row, in this order (that of Hugging Face's logits warpers):
 *   1. temperature 0: the argmax (ties: lowest index), nothing else applies.
 *   2. p = softmax(logits / temperature).
 *   3. top_k > 0: only the top_k most probable stay.
 *   4. top_p < 1: of these, renormalised, the shortest prefix in falling order whose sum is >= top_p
 *      (at least one token).
 *   5. min_p > 0: of these, those with p >= min_p * max p.
 *   6. u = uniform in [0,1) from Philox4x32-10 with key = seed and counter = (offset, 0); the token is the
 *      first, in rising index order, at which the running sum of what stayed is > u * (its total).
 * "Falling order" is by probability, equal ones by rising index: the kept set is unique.
 * Logits of -INFINITY are never drawn (unless the row has nothing else: then -1); NaN counts as
 * -INFINITY, +INFINITY as the largest finite float, -0 equals +0.
 *
 *   argument      dtype   shape          notes
 *   out           int32   [rows]         out
 *   logits        f32     [rows, vocab]  in, 16-byte aligned
 *   temperature   f32     [rows]         in, >= 0
 *   top_k         int32   [rows]         in, 0 (or less): off
 *   top_p         f32     [rows]         in, (0, 1]; 1: off
 *   min_p         f32     [rows]         in, [0, 1); 0: off
 *   seed, offset  uint64  [rows]         in; one (seed, offset) is one draw, the same on every implementation
 *   workspace             bytes          sample_workspace() bytes (may be 0), 256-byte aligned, contents
 * undefined
 *
 * The values of the per-row arrays lie where the device is and are not checked.
 *
 * Supported:   vocab 1..2^20, any; rows 0 is legal and does nothing.
 * Numerics:    fp32 or better; the difference of two logits must fit fp32. A token less probable than
 *              2^-40 of the most probable may count as impossible.
 *              u = (x0 * 2^32 + x1 >> 11) * 2^-53 of the first two Philox words.
 * Tolerance:   a token is accepted if some threshold within the rounding error of the sums (derived in
 *              sample_judge.c) and some u within it give this token. Everything else fails.
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
/* What each of ours does first: 0, -EINVAL or -EOPNOTSUPP. */
int cairn_sample_check(const struct cairn_sample_args *args);
/* 0: the contract allows this token for this row; 1: it does not, with the reason; < 0: -errno. Host memory.
 */
int cairn_sample_judge(const struct cairn_sample_args *args, int32_t row, int32_t token, char *why,
		       size_t why_len);

#ifdef __cplusplus
}
#endif
#endif
