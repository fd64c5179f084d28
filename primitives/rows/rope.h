/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rope - rotary position embedding of queries and keys, in place, optionally with a norm of each head first
 *
 *   1. Norm (Qwen3). If q_norm is given, for each head of q, over all of head_dim; k_norm likewise for k:
 *        x[j] = x[j] / sqrt(mean_j(x[j]^2) + norm_eps) * q_norm[j]
 *   2. Rotation of the unrounded result, for each row i, head h and pair p < rotary_dim / 2, with
 *      angle = positions[i] * inv_freq[p]:
 *        x'[a] = (x[a] cos(angle) - x[b] sin(angle)) * scale
 *        x'[b] = (x[b] cos(angle) + x[a] sin(angle)) * scale
 *      interleaved 0: a = p, b = p + rotary_dim / 2 (Llama in Hugging Face form); 1: a = 2p, b = 2p + 1.
 *   Elements from rotary_dim on are not rotated: they keep their value, normalised if there is a norm.
 *
 *   argument   dtype  shape                          notes
 *   q          dtype  [nnz, num_qo_heads, head_dim]  in and out; row i starts at q + i * q_stride elements
 *   k          dtype  [nnz, num_kv_heads, head_dim]  in and out, optional (NULL); rows k_stride apart
 *   inv_freq   f32    [rotary_dim / 2]               in, finite; model scaling (linear, llama3, ...) already
 *                                                    applied; 0 only scales the pair
 *   positions  int32  [nnz]                          in, >= 0
 *   q_norm     dtype  [head_dim]                     in, optional (NULL: no norm), 16-byte aligned
 *   k_norm     dtype  [head_dim]                     in, optional (NULL: no norm), 16-byte aligned; ignored
 *                                                    if k is NULL
 *
 * Strides are in elements, multiples of 8, 0 for contiguous rows; q and k are 16-byte aligned and do
 * not overlap (they may be slices of one packed row). Gaps between rows are neither read nor written.
 * Supported:   dtype f16, bf16, f32; head_dim and rotary_dim multiples of 16, rotary_dim <= head_dim <= 512.
 * Numerics:    the angle is the fp32 product; its cos and sin are accurate to fp32 at any size (position
 *              1000000 may be a million radians); one rounding at the end. scale is finite, and 0 or not
 *              subnormal; for finite x[a], x[b], (|x[a]| + |x[b]|) max(1, |scale|) must fit fp32.
 *              With a norm: norm_eps is as in rmsnorm.h; the squares of a head are summed in fp32, and their
 *              sum must fit fp32. A head with an infinity or a NaN gets the formula's values in IEEE
 *              arithmetic. Hugging Face rounds to dtype after the norm, the weight and each product and sum;
 *              this operation rounds once.
 * Tolerance:   8 * 2^-24 (|x[a]| + |x[b]|) |scale|, and half the distance between numbers of dtype there.
 *              With a norm, x[a] and x[b] are its results and the factor is head_dim / 2 + 24 instead of 8
 *              (rope_ref.c).
 * NaN:         without a norm, a NaN makes its pair NaN and changes nothing else, and a pair with an infinity
 *              gets the formula's values in IEEE arithmetic; with a norm, see Numerics.
 * Determinism: bitwise repeatable; a row does not depend on the others.
 * Weights:     inv_freq, q_norm and k_norm are constant, as b in gemm.h ("Constant b").
 * Errors:      -EINVAL, -EOPNOTSUPP, -EIO. nnz 0 is legal and does nothing.
 * Source:      Su et al. 2021, equation 34; Henry et al. 2020 (the norm).
 */
#ifndef CAIRN_ROPE_H
#define CAIRN_ROPE_H

#include <stddef.h>
#include <stdint.h>

struct cairn_exact;

struct cairn_rope_args {
	size_t size;
	void *q, *k;
	const float *inv_freq;
	const int32_t *positions;
	int64_t q_stride, k_stride;
	int32_t nnz, num_qo_heads, num_kv_heads, head_dim, rotary_dim;
	int32_t dtype, interleaved;
	float scale;
	const void *q_norm, *k_norm;
	float norm_eps;
};

#ifdef __cplusplus
extern "C" {
#endif

int cairn_rope(const struct cairn_rope_args *args, void *stream);
int cairn_rope_cpu(const struct cairn_rope_args *args, void *stream);
int cairn_rope_ref(const struct cairn_rope_args *args, void *stream);
/* The argument checks that all of our tables run first: 0, -EINVAL or -EOPNOTSUPP. */
int cairn_rope_check(const struct cairn_rope_args *args);
/* exact[0]: q, exact[1]: k (if given), each over the whole strided buffer; entries of elements that the
 * operation does not write stay unset */
int cairn_rope_exact(const struct cairn_rope_args *args, struct cairn_exact *exact);

#ifdef __cplusplus
}
#endif
#endif
