/* SPDX-License-Identifier: Apache-2.0 */
/*
 * attn_fp8 - attention over 8-bit q, k and v as attn_quant writes them (FlashAttention-3 in fp8)
 *
 *   out[i,h,:] = sum_j p[j] * V[j,g,:],   p = softmax_j(s[j])
 *   lse[i,h]   = ln sum_j exp(s[j])
 *   s[j]       = sm_scale * dot(Q[i,h,:], K[j,g,:])
 *   g          = h / (num_qo_heads / num_kv_heads)
 *
 * Q, K and V are the codes in q, k and v, each times the scale of its block (attn_quant.h,
 * attn_fp8_blocks.h). Requests, positions and the causal mask are those of attn_dense.h.
 *
 *   argument          dtype  shape                                       notes
 *   out               dtype  [nnz_qo, num_qo_heads, head_dim]            out
 *   lse               f32    [nnz_qo, num_qo_heads]                      out, optional (NULL)
 *   q                 e4m3   [num_qo_heads, q_blocks, 128, head_dim]     in
 *   k                 e4m3   [num_kv_heads, kv_blocks, 128, head_dim]    in
 *   v                 e4m3   [num_kv_heads, kv_blocks, head_dim, 128]    in, keys at attn_fp8_place()
 *   q_scale           f32    [num_qo_heads, q_blocks]                    in, > 0
 *   k_scale, v_scale  f32    [num_kv_heads, kv_blocks]                   in, > 0
 *   qo_indptr         int32  [batch + 1]                                 in, ascending from 0
 *   kv_indptr         int32  [batch + 1]                                 in, ascending from 0
 *   workspace                [workspace_bytes]                           256-byte aligned
 *
 * out, q, k and v are 16-byte aligned. nnz_qo, nnz_kv and batch must be those of the attn_quant call, because
 * they determine q_blocks and kv_blocks. Places of v past a request's last key must not hold NaN; rows of q
 * and k past a request's end may hold anything. Bounds, index arrays, captured graphs, requests without
 * queries or keys and workspace_bytes are as in attn_dense.h.
 *
 * sms:         as in gemm.h.
 * Supported:   dtype (of out) f16, bf16; head_dim 64, 128; num_qo_heads any multiple of num_kv_heads; causal
 *              or not. Anything else -EOPNOTSUPP. batch 0 and nnz_qo 0 are legal and do nothing.
 * Numerics:    the sum q k has fewer than 24 bits: Hopper's tensor cores align the 32 products of a step and
 *              the sum so far to the largest exponent among them, and truncate what lies below 2^-13 of it.
 *              P is e4m3(256 exp(s - m)), where m is the row's maximum over the keys so far, or over all of
 *              them, so that weights down to 2^-18 count; the sum of p takes unrounded p. The product of P
 *              and V over 128 keys is a sum of the same kind; these sums are scaled and added in fp32. out is
 *              rounded once.
 *              For every pair of blocks, each product of two or of all three of q_scale, k_scale and sm_scale
 *              must lie between 2^-100 and 2^100. Logits must be at most 2^20 in magnitude: each block has
 *              its own scale, so logits are scaled before their maximum is subtracted. Scales of v may have
 *              any value for which the results and each block's sum fit fp32. Otherwise as in attn_paged.h.
 * Not numbers: a NaN in a code or a scale that some row sees leaves the rows of its request undefined, in
 *              the heads that share the KV head.
 * Tolerance:   derived in attn_fp8_ref.c from the above. A logit may be wrong by about 2^-11 of the scaled
 *              sum |q| |k|; out by 2^-4 p + 2^-18 for each p, and by about 2^-11 sum p |v|.
 * Determinism: bitwise repeatable for equal arguments. A row's result depends on its own request only.
 * Unused memory: blocks that belong to no request are not read.
 * Errors:      -EINVAL (null pointer, misaligned, negative or contradictory size), -EOPNOTSUPP, -EIO.
 * Source:      Shah et al. 2024 (FlashAttention-3), section 3.3.
 */
#ifndef CAIRN_ATTN_FP8_H
#define CAIRN_ATTN_FP8_H

#include <stddef.h>
#include <stdint.h>

#include "fused/attention/fp8/attn_fp8_blocks.h"

struct cairn_exact;

struct cairn_attn_fp8_args {
	size_t size;
	void *out;
	float *lse;
	const uint8_t *q, *k, *v;
	const float *q_scale, *k_scale, *v_scale;
	const int32_t *qo_indptr, *kv_indptr;
	void *workspace;
	size_t workspace_bytes;
	int32_t batch, nnz_qo, nnz_kv, max_qo_len, max_kv_len;
	int32_t num_qo_heads, num_kv_heads, head_dim;
	int32_t dtype, causal;
	float sm_scale;
	int32_t sms;			/* SMs that the call may use at a time; 0: all */
};

#ifdef __cplusplus
extern "C" {
#endif

int cairn_attn_fp8(const struct cairn_attn_fp8_args *args, void *stream);
int cairn_attn_fp8_workspace(const struct cairn_attn_fp8_args *args, size_t *bytes);
int cairn_attn_fp8_cpu(const struct cairn_attn_fp8_args *args, void *stream);
int cairn_attn_fp8_ref(const struct cairn_attn_fp8_args *args, void *stream);
/* Sets exact[0] for out and exact[1] for lse (if not NULL); otherwise as cairn_attn_paged_exact(). */
int cairn_attn_fp8_exact(const struct cairn_attn_fp8_args *args, struct cairn_exact *exact);
/* Returns 0, or the error that all of our tables return for these arguments; reads no array. */
int cairn_attn_fp8_check(const struct cairn_attn_fp8_args *args);
/* The part of cairn_attn_fp8_check() that reads only the scalars, for workspace queries. */
int cairn_attn_fp8_check_shape(const struct cairn_attn_fp8_args *args);

#ifdef __cplusplus
}
#endif
#endif
