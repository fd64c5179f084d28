/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rmsnorm - root-mean-square normalisation, optionally fused with the residual addition and followed by
 *           quantisation to e4m3
 *
 *   residual given:  r[i,:] = x[i,:] + residual[i,:], rounded to dtype, stored back to residual
 *   no residual:     r = x
 *   out[i,j] = r[i,j] / sqrt(mean_j(r[i,j]^2) + eps) * (weight_offset + weight[j])
 *
 *   q, q_scale       = what quant_fp8w (quant_fp8w.h) makes of out with scale_kind q_kind, bit by bit
 *
 *   argument   dtype  shape        notes
 *   out        dtype  [rows, dim]  out, 16-byte aligned; may be x itself; optional (NULL) with q
 *   q          e4m3   [rows, dim]  out, optional (NULL), 16-byte aligned, one byte each, overlaps nothing
 *   q_scale    f32    q_kind 0: [rows]                   out, with q, overlaps nothing
 *                     q_kind 2: [ceil(dim/128), rows]
 *   residual   dtype  [rows, dim]  in and out, optional (NULL), 16-byte aligned, overlaps nothing
 *   x          dtype  [rows, dim]  in, 16-byte aligned
 *   weight     dtype  [dim]        in, 16-byte aligned
 *
 * Supported:   dtype f16, bf16, f32; dim a multiple of 8, 8..16384. Anything else -EOPNOTSUPP.
 *              With q: dtype f16 or bf16, dim a multiple of 16, q_kind 0 (one scale for a row) or 2 (one for
 *              128 elements). Without q, q_scale and q_kind are not read. rows 0 is legal and does nothing.
 *              eps is finite and at least CAIRN_EPS_MIN, weight_offset finite.
 * Numerics:    sums in fp32; the sum of squares uses r after rounding; one rounding at the end.
 *              weight_offset: 0 for Llama, 1 for Gemma. The sum of squares must fit fp32. For a row with an
 *              infinity or a NaN, out is the formula's value in IEEE arithmetic.
 *              q: exact, of the numbers that this implementation writes to out, or would write. out has the
 *              same bits with and without q. If out is not finite, the row or piece of q, and its scale, are
 *              undefined; the others are valid.
 * Tolerance:   residual: none; it is the exact sum rounded to nearest even (an fp32 addition and one
 *              narrowing give exactly this). out: (n/2 + 16) 2^-24 |ref|, and half the distance between
 *              numbers of dtype there (rmsnorm_ref.c), n the number of squares of the row that are not 0. The
 *              term n/2 comes from the sum of squares; it is dropped if dim is a power of two and fp32 holds
 *              the squares and their sum exactly in any order.
 * Determinism: bitwise repeatable; a row does not depend on the others.
 * Weights:     weight is constant, as b in gemm.h ("Constant b").
 * Errors:      -EINVAL, -EOPNOTSUPP, -EIO. A q_kind that is neither 0 nor 2 is -EINVAL.
 * Source:      Zhang and Sennrich 2019, equation 4.
 */
#ifndef CAIRN_RMSNORM_H
#define CAIRN_RMSNORM_H

#include <float.h>
#include <stddef.h>
#include <stdint.h>

struct cairn_exact;

/*
 * The smallest eps of a norm, here and in all operations that contain a norm: the smallest normal number.
 * With it, the mean plus eps is never subnormal. With a smaller eps, squares of that size would be subnormal
 * and lose bits.
 */
#define CAIRN_EPS_MIN	FLT_MIN

/* Returns whether a norm may have this eps. */
static inline int cairn_is_eps(float eps)
{
	return eps >= CAIRN_EPS_MIN && eps <= FLT_MAX;
}

struct cairn_rmsnorm_args {
	size_t size;
	void *out, *residual;
	const void *x, *weight;
	int32_t rows, dim;
	int32_t dtype;
	float eps, weight_offset;
	/* later members: NULL and 0 if `size` ends before them */
	uint8_t *q;
	float *q_scale;
	int32_t q_kind;			/* enum cairn_fp8_scale: ROWS or PIECES */
};

/* the `size` that callers from before q pass */
#define CAIRN_RMSNORM_FIRST_BYTES	offsetof(struct cairn_rmsnorm_args, q)

#ifdef __cplusplus
extern "C" {
#endif

int cairn_rmsnorm(const struct cairn_rmsnorm_args *args, void *stream);
int cairn_rmsnorm_cpu(const struct cairn_rmsnorm_args *args, void *stream);
int cairn_rmsnorm_ref(const struct cairn_rmsnorm_args *args, void *stream);
/* The argument checks that all of our tables run first: 0, -EINVAL or -EOPNOTSUPP. */
int cairn_rmsnorm_check(const struct cairn_rmsnorm_args *args);
/* Fills one exact for each of out, residual, q and q_scale that is given, in this order. */
int cairn_rmsnorm_exact(const struct cairn_rmsnorm_args *args, struct cairn_exact *exact);
/* The same for a library that normalises the residual sum before it rounds it: two more roundings of out. */
int cairn_rmsnorm_peer_exact(const struct cairn_rmsnorm_args *args, struct cairn_exact *exact);

#ifdef __cplusplus
}
#endif
#endif
