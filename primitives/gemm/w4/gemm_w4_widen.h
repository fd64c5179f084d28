/* SPDX-License-Identifier: Apache-2.0 */
/* gemm_w4_widen - the weight of gemm_w4 in 16 bits, and the shapes for which cuda multiplies with that */
#ifndef CAIRN_GEMM_W4_WIDEN_H
#define CAIRN_GEMM_W4_WIDEN_H

#include "primitives/gemm/w4/gemm_w4.h"

/*
 * Returns whether cairn_gemm_w4() widens b first. If it does so for some m, then for all greater ones, too.
 *
 * m: the tile kernel decodes b again for every 128 rows and multiplies at 370 TFLOP/s on an H200, gemm_fixed
 * at 750. Widening moves 2.5 bytes an element of b at 3 to 4 TB/s. So both ways take equally long at 230 to
 * 310 rows, and at 257 rows the tile kernel decodes b for the third time.
 *
 * m n: gemm_fixed does not divide k, and 2^20 elements of out are a tile of 128 by 64 for each of 128 SMs.
 * For less, the tile kernel is faster, which lets up to eight SMs share a tile.
 */
static inline int cairn_gemm_w4_widens(int32_t m, int32_t n)
{
	return m > 256 && (int64_t)m * n >= 1 << 20;
}

#ifdef __cplusplus
extern "C" {
#endif

/*
 * Writes scale c s to out [n, k], 16-byte aligned, rounded once to dtype. The arguments are not checked. The
 * kernel may read b and b_scale before the preceding kernels of the stream have ended, but writes out only
 * afterwards. It never starts its successor early: whatever is not launched as a programmatic dependent finds
 * all of out written.
 */
int cairn_gemm_w4_widen(const struct cairn_gemm_w4_args *args, void *out, void *stream);

#ifdef __cplusplus
}
#endif
#endif
