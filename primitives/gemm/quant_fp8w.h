/* SPDX-License-Identifier: Apache-2.0 */
/*
 * quant_fp8w - weights to e4m3 with fp32 scales, as gemm_fp8w.h reads them
 *
 *   scale = max |w| / 448 over a row, or over a block of 128 x 128; 1 where that is 0
 *   b     = w / scale, to e4m3: nearest, ties to even, at most 448 in magnitude
 *
 * with both quotients rounded to fp32 first: every implementation gives the same bits.
 *
 *   argument  dtype   shape           notes
 *   b         e4m3    [n, k]          out, 16-byte aligned, a byte each
 *   scale     f32     scale_kind 0:   out; [n], one for each row (output channel)
 *                     scale_kind 1:   out; [ceil(n / 128), ceil(k / 128)], one for each block; the last ones
 *                                     may be smaller
 *   w         dtype   [n, k]          in, 16-byte aligned, finite
 *
 * Supported:   dtype bf16, f16, f32; k a multiple of 16; anything else -EOPNOTSUPP. n 0 is legal and does
 *              nothing. Where w is not finite its row or block is undefined, the others are not.
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
	CAIRN_FP8_SCALE_BLOCKS = 1,	/* of CAIRN_FP8_BLOCK x CAIRN_FP8_BLOCK */
};
#define CAIRN_FP8_BLOCK	128
#define CAIRN_FP8_MAX	448

struct cairn_quant_fp8w_args {
	size_t size;
	uint8_t *b;
	float *scale;
	const void *w;
	int32_t n, k;
	int32_t dtype, scale_kind;
};

#ifdef __cplusplus
extern "C" {
#endif

int cairn_quant_fp8w(const struct cairn_quant_fp8w_args *args, void *stream);
int cairn_quant_fp8w_cpu(const struct cairn_quant_fp8w_args *args, void *stream);
int cairn_quant_fp8w_ref(const struct cairn_quant_fp8w_args *args, void *stream);
/* What each of ours does first: 0, -EINVAL or -EOPNOTSUPP. */
int cairn_quant_fp8w_check(const struct cairn_quant_fp8w_args *args);
/* [0]: b, as bytes; [1]: scale */
int cairn_quant_fp8w_exact(const struct cairn_quant_fp8w_args *args, struct cairn_exact *exact);

#ifdef __cplusplus
}
#endif
#endif
