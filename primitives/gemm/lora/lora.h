/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lora - adds low-rank adapters to the result of a product, in place; each row may have another adapter
 *
 *   y[i,j] += scale[s] * sum_r t[i, p rank + r] * b[s,j,r],   t[i,q] = sum_l x[i,l] * a[s,q,l],   s = slot[i]
 *
 * A packed product has several parts, such as q, k and v, each with matrices of its own: column j belongs to
 * part p if part_end[p - 1] <= j < part_end[p]. If slot[i] is not in 0..num_slots - 1, row i has no adapter,
 * and is neither read nor written.
 *
 *   argument   dtype  shape                            notes
 *   y          dtype  [m, n]                           in and out, 16-byte aligned
 *   x          dtype  [m, k]                           in, 16-byte aligned, may not alias y
 *   a          dtype  [num_slots, num_parts * rank, k] in, 16-byte aligned
 *   b          dtype  [num_slots, n, rank]             in, 16-byte aligned
 *   scale      f32    [num_slots]                      in
 *   slot       int32  [m]                              in; its values are not checked
 *   workspace         bytes                            lora_workspace() bytes, 256-byte aligned, undefined
 *
 * Supported:   dtype f16, bf16; n, num_slots >= 1; k >= 8, a multiple of 8; rank 8 to 64, a multiple of 8 (an
 *              adapter of a smaller rank is filled up with zeros); num_parts 1 to 3, part_end ascending, no
 *              two equal, the last one n. m 0 is legal and does nothing. Anything else -EOPNOTSUPP.
 * Numerics:    t and the sum in fp32, in any fixed order; one rounding to dtype at the end.
 * Tolerance:   |y - ref| <= (k + rank + 8) 2^-24 (|scale| sum_r |b| sum_l |x a| + |y before|) + u |ref| +
 *              half the smallest subnormal of dtype + (k + rank) 2^-149 (1 + |scale| (1 + sum_r |b|)); u is
 *              the unit roundoff of dtype (derivation in lora_ref.c).
 * Range:       an element is defined if sum_l |x a|, sum_r |b| sum_l |x a| and that times |scale| are below
 *              2^127.
 * NaN:         a NaN in a factor of an element makes it NaN, even if another factor is 0. scale is a factor
 *              too: a row whose adapter has a scale of 0 is computed like any other row.
 * Determinism: bitwise repeatable; a row depends neither on the others nor on m.
 * Errors:      -EINVAL (null pointer, size < 1, part_end), -EOPNOTSUPP, -EIO.
 * Source:      Hu et al., LoRA: Low-Rank Adaptation of Large Language Models, 2021.
 */
#ifndef CAIRN_LORA_H
#define CAIRN_LORA_H

#include <stddef.h>
#include <stdint.h>

struct cairn_exact;

#define CAIRN_LORA_MAX_RANK	64
#define CAIRN_LORA_MAX_PARTS	3

struct cairn_lora_args {
	size_t size;			/* sizeof(struct cairn_lora_args) */
	void *y;
	const void *x;
	const void *a;
	const void *b;
	const float *scale;
	const int32_t *slot;
	void *workspace;
	size_t workspace_bytes;
	int32_t m, n, k;
	int32_t rank, num_slots, num_parts;
	int32_t part_end[CAIRN_LORA_MAX_PARTS];	/* those from num_parts on are ignored */
	int32_t dtype;			/* enum cairn_dtype */
};

#ifdef __cplusplus
extern "C" {
#endif

int cairn_lora(const struct cairn_lora_args *args, void *stream);
/* Writes the workspace that args need to *bytes, as cairn_gemm_fp8w_workspace() does. */
int cairn_lora_workspace(const struct cairn_lora_args *args, size_t *bytes);
int cairn_lora_cpu(const struct cairn_lora_args *args, void *stream);
int cairn_lora_ref(const struct cairn_lora_args *args, void *stream);
/* Checks args for every implementation here: 0, -EINVAL or -EOPNOTSUPP with the error text set. */
int cairn_lora_check(const struct cairn_lora_args *args);
/* The part of cairn_lora_check() that reads only the scalars, for workspace queries. */
int cairn_lora_check_shape(const struct cairn_lora_args *args);
int cairn_lora_exact(const struct cairn_lora_args *args, struct cairn_exact *exact);	/* [0]: y */

#ifdef __cplusplus
}
#endif
#endif
