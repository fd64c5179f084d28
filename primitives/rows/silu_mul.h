/* SPDX-License-Identifier: Apache-2.0 */
/*
 * silu_mul - the gated activation of a feed-forward block: silu (Llama) or gelu (Gemma), optionally followed
 *            by quantisation to e4m3
 *
 *   out[i,j] = act(x[i,j]) * x[i,dim+j]
 *   activation 0: silu(g) = g / (1 + exp(-g))
 *              1: tanh form of gelu, g (1 + tanh(y)) / 2 = g / (1 + exp(-2 y)),
 *                 y = sqrt(2 / pi) (g + 0.044715 g^3)
 *
 *   q, q_scale = what quant_fp8w (quant_fp8w.h) makes of out with scale_kind q_kind, bit by bit
 *
 *   argument   dtype  shape            notes
 *   out        dtype  [rows, dim]      out, 16-byte aligned, may not alias x; optional (NULL) with q
 *   q          e4m3   [rows, dim]      out, optional (NULL), 16-byte aligned, one byte each, overlaps nothing
 *   q_scale    f32    q_kind 0: [rows]                   out, with q, overlaps nothing
 *                     q_kind 2: [ceil(dim/128), rows]
 *   x          dtype  [rows, 2 * dim]  in, each row gate [dim], then up [dim]; 16-byte aligned
 *
 * Supported:   dtype f16, bf16, f32; dim a multiple of 8; activation 0, 1. rows 0 is legal and does nothing.
 *              With q: dtype f16 or bf16, dim a multiple of 16 up to 32768, q_kind 0 (one scale for a row) or
 *              2 (one for 128 elements). Without q, q_scale and q_kind are not read.
 * Numerics:    fp32 throughout, one rounding at the end; no intermediate value may overflow or underflow
 *              unless the result does: g = -100 and up = 1e30 give -3.7e-12. silu(-inf) and gelu(-inf) are
 *              0, not NaN. An infinite up with a gate below -80 (gelu: -9) has no defined result.
 *              q: exact, of the numbers that this implementation writes to out, or would write. out has the
 *              same bits with and without q. If out is not finite, the row or piece of q, and its scale, are
 *              undefined; the others are valid.
 * Tolerance:   16 * 2^-24 (1 + |z|) |ref|, half the distance between numbers of dtype there, and a few of
 *              the smallest subnormals; z is g for silu and 2 y for gelu, but z counts as at most 1 (the
 *              error of exp(-z) grows with |z| and matters only below 1, see silu_mul_ref.c).
 * NaN:         a NaN in the gate or in up gives NaN, even if the gate is -INFINITY or up is 0. A gate of
 *              INFINITY with an up of 0 gives NaN.
 * Determinism: bitwise repeatable; an element of out does not depend on the others.
 * Errors:      -EINVAL, -EOPNOTSUPP, -EIO. A q_kind that is neither 0 nor 2 is -EINVAL.
 */
#ifndef CAIRN_SILU_MUL_H
#define CAIRN_SILU_MUL_H

#include <stddef.h>
#include <stdint.h>

struct cairn_exact;

struct cairn_silu_mul_args {
	size_t size;
	void *out;
	const void *x;
	int32_t rows, dim;
	int32_t dtype;
	int32_t activation;		/* 0: silu, 1: gelu with tanh */
	/* later members: NULL and 0 if `size` ends before them */
	uint8_t *q;
	float *q_scale;
	int32_t q_kind;			/* enum cairn_fp8_scale: ROWS or PIECES */
};

/* the `size` that callers from before q pass */
#define CAIRN_SILU_MUL_FIRST_BYTES	offsetof(struct cairn_silu_mul_args, q)
#define CAIRN_SILU_MUL_MOST_Q		32768	/* the largest dim with q */

#ifdef __cplusplus
extern "C" {
#endif

int cairn_silu_mul(const struct cairn_silu_mul_args *args, void *stream);
int cairn_silu_mul_cpu(const struct cairn_silu_mul_args *args, void *stream);
int cairn_silu_mul_ref(const struct cairn_silu_mul_args *args, void *stream);
/* The argument checks that all of our tables run first: 0, -EINVAL or -EOPNOTSUPP. */
int cairn_silu_mul_check(const struct cairn_silu_mul_args *args);
/* Fills one exact for each of out, q and q_scale that is given, in this order. */
int cairn_silu_mul_exact(const struct cairn_silu_mul_args *args, struct cairn_exact *exact);

#ifdef __cplusplus
}
#endif
#endif
