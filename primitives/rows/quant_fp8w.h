/* SPDX-License-Identifier: Apache-2.0 */
/*
 * quant_fp8w - quantises weights, or rows of activations, to e4m3 with fp32 scales, in the layouts of
 *              gemm_fp8w.h and gemm_fp8.h
 *
 *   scale = max |w| / 448, the maximum over a row, a block of 128 x 128 or a piece of 1 x 128; 1 if the
 *           quotient rounds to 0
 *   b     = w / scale as e4m3, rounded to nearest even, at most 448 in magnitude
 *
 * Both quotients are first rounded to fp32, so that every implementation gives the same bits.
 *
 *   argument  dtype   shape                                        notes
 *   b         e4m3    [n, k]                                       out, 16-byte aligned, one byte each
 *   scale     f32     scale_kind 0: [n]                            out, one per row (output channel)
 *                     scale_kind 1: [ceil(n/128), ceil(k/128)]     out, one per block; the last block of a
 *                                                                  row or column of blocks may be smaller
 *                     scale_kind 2: [ceil(k/128), n]               out, one per piece; the scales of one
 *                                                                  place in all rows are contiguous
 *   w         dtype   [n, k]                                       in, 16-byte aligned, finite
 *
 * Supported:   dtype bf16, f16, f32; k a multiple of 16; anything else -EOPNOTSUPP. n 0 is legal and does
 *              nothing. If w is not finite, the row, block or piece that contains it is undefined; the others
 *              are valid.
 * Numerics:    exact, as above.
 * Determinism: bitwise repeatable.
 * Errors:      -EINVAL, -EOPNOTSUPP, -EIO.
 */
#ifndef CAIRN_QUANT_FP8W_H
#define CAIRN_QUANT_FP8W_H

#include <stddef.h>
#include <stdint.h>

struct cairn_exact;

enum cairn_fp8_scale {
	CAIRN_FP8_SCALE_ROWS = 0,
	CAIRN_FP8_SCALE_BLOCKS = 1,	/* blocks of CAIRN_FP8_BLOCK x CAIRN_FP8_BLOCK */
	CAIRN_FP8_SCALE_PIECES = 2,	/* pieces of 1 x CAIRN_FP8_BLOCK; not in gemm_fp8w */
	CAIRN_FP8_SCALE_TENSOR = 3,	/* one for the whole matrix; only in gemm_fp8 */
};
#define CAIRN_FP8_BLOCK	128
#define CAIRN_FP8_MAX	448

struct cairn_quant_fp8w_args {
	size_t size;			/* sizeof(struct cairn_quant_fp8w_args) */
	uint8_t *b;
	float *scale;
	const void *w;
	int32_t n, k;
	int32_t dtype, scale_kind;	/* enum cairn_dtype; enum cairn_fp8_scale */
};

#ifdef __cplusplus
extern "C" {
#endif

int cairn_quant_fp8w(const struct cairn_quant_fp8w_args *args, void *stream);
int cairn_quant_fp8w_cpu(const struct cairn_quant_fp8w_args *args, void *stream);
int cairn_quant_fp8w_ref(const struct cairn_quant_fp8w_args *args, void *stream);
/* Checks args for every implementation here: 0, -EINVAL or -EOPNOTSUPP with the error text set. */
int cairn_quant_fp8w_check(const struct cairn_quant_fp8w_args *args);
/* Fills exact[0] for b, as bytes, and exact[1] for scale. */
int cairn_quant_fp8w_exact(const struct cairn_quant_fp8w_args *args, struct cairn_exact *exact);

/* ---- for operations that quantise the rows that they compute; scale_kind is ROWS or PIECES ---- */

/*
 * Checks the members q, q_scale and q_kind of operation `op`: 0, -EINVAL or -EOPNOTSUPP. args->w is not read,
 * and dim may be at most `most`. `op` checks for itself that n and k are not negative.
 */
int cairn_quant_fp8w_check_out(const struct cairn_quant_fp8w_args *args, int32_t most, const char *op);
/* Quantises row i. args->w holds this row only; the other arguments describe all rows. */
void cairn_quant_fp8w_cpu_row(const struct cairn_quant_fp8w_args *args, int64_t i);
/*
 * Fills exact[0] and exact[1] for row i, whose elements are within bound[] of val[]; args->w is not read. An
 * element that may have either sign within its bound may have any code.
 */
void cairn_quant_fp8w_exact_row(const struct cairn_quant_fp8w_args *args, int64_t i, const double *val,
				const double *bound, struct cairn_exact *exact);

#ifdef __cplusplus
}
#endif
#endif
