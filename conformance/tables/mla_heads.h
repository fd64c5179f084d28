/* SPDX-License-Identifier: Apache-2.0 */
/*
 * mla_heads - the two per-head products of multi-head latent attention, for the unfused chain: absorption
 * (b_kn, k 128) and v_up (k 512)
 *
 * Arguments and result are as in cairn_gemm_lt(), without bias and residual. Supported: m 1..16, f16 and
 * bf16, n a multiple of 64 (b_kn) or 16; anything else returns -EOPNOTSUPP. b counts as weights: it is read
 * before preceding kernels have ended (gemm.h, "Constant b").
 */
#ifndef CAIRN_MLA_HEADS_H
#define CAIRN_MLA_HEADS_H

#include "primitives/gemm/gemm_lt.h"

#ifdef __cplusplus
extern "C" {
#endif

int mla_heads(const struct cairn_gemm_lt *args, void *stream);

#ifdef __cplusplus
}
#endif
#endif
