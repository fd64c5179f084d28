/* SPDX-License-Identifier: Apache-2.0 */
/* widen_w4 - the weight of gemm_w4 in 16 bits, for the unfused chain */
#ifndef CAIRN_WIDEN_W4_H
#define CAIRN_WIDEN_W4_H

#include "primitives/gemm/w4/gemm_w4.h"

#ifdef __cplusplus
extern "C" {
#endif

/*
 * Writes scale c s to out [n, k], 16-byte aligned, rounded once to dtype. The arguments are not checked.
 * Both ends are full ordering points: not a programmatic dependent launch.
 */
int widen_w4(const struct cairn_gemm_w4_args *args, void *out, void *stream);

#ifdef __cplusplus
}
#endif
#endif
