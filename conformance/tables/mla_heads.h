/* SPDX-License-Identifier: Apache-2.0 */
/*
 * mla_heads - the two products that multi-head latent attention has for each head: absorption (b_kn, k 128)
 * and v_up (k 512), for the unfused chain
 *
 * As cairn_gemm_lt() without bias and residual, m 1..16, f16 and bf16, n a multiple of 64 (b_kn) or 16; else
 * -EOPNOTSUPP. b counts as weights: read before the kernels ahead have ended (gemm.h, "Constant b").
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
