/* SPDX-License-Identifier: Apache-2.0 */
/*
 * moe - the mixture-of-experts block in one call: norm, router, experts, residual; for the few rows of a
 * decode step or the many of a prompt
 *
 *   n       = x / sqrt(mean(x^2) + eps) * norm_weight                  (rmsnorm.h)
 *   p[b,:]  = softmax(n w_router^T)                                    over all num_experts, fp32
 *   e[b,i]  = the experts_per_token largest of p[b,:], descending; among equals the lower number first
 *   w[b,i]  = p[b,e[b,i]] * scaling, with `normalize` first divided by their sum
 *   h[b,i]  = silu(n w_gate[e]^T) * (n w_up[e]^T) * w[b,i]
 *   s[b]    = silu(n w_shared_gate^T) * (n w_shared_up^T)              with shared_intermediate > 0
 *   out     = x + sum_i h[b,i] w_down[e]^T + s[b] w_shared_down^T
 *
 *   argument          dtype  shape                                   notes
 *   out               dtype  [batch, hidden]                         out, may alias x exactly
 *   experts           int32  [batch, experts_per_token]              out, optional (NULL): e
 *   x                 dtype  [batch, hidden]                         in
 *   norm_weight       dtype  [hidden]                                in
 *   w_router          dtype  [num_experts, hidden]                   in
 *   w_gate_up         dtype  [num_experts, 2 intermediate, hidden]   in; per expert all gates, then all ups
 *   w_down            dtype  [num_experts, hidden, intermediate]     in
 *   w_shared_gate_up  dtype  [2 shared_intermediate, hidden]         in; NULL with shared_intermediate 0
 *   w_shared_down     dtype  [hidden, shared_intermediate]           in; NULL with shared_intermediate 0
 *   *_scale           f32    see below                               in, one array for each matrix; NULL with
 *                                                                    fp8w 0, or where the matrix is NULL
 *   workspace                [workspace_bytes]                       256-byte aligned; zeroed once, above
 *                                                                    CAIRN_MOE_FEW rows contents undefined
 *
 * All arrays are row-major without gaps, all pointers of dtype 16-byte aligned. Up to CAIRN_MOE_FEW rows
 * (batch) run as one launch that spreads over `sms` SMs (0: all): cluster_attn.h says what "zeroed once"
 * means, and which such calls may run on a device at the same time. More rows run as a chain of launches
 * without such conditions, in which sms limits the products (gemm.h). eps and scaling are finite and > 0,
 * normalize is 0 or 1.
 *
 * Weights of 8 bits: with fp8w 1 the experts' four matrices are e4m3, a byte each, 16-byte aligned, without
 * NaN (0x7f, 0xff), and the value of an element is the code times its scale. w_gate_up and w_down have
 * num_experts times the scales of one matrix [n, k], which are those of gemm_fp8w.h: with scale_kind 0 [n],
 * one for each row; with 1 [ceil(n / 128), ceil(k / 128)], one for each block. With fp8w 0 scale_kind is 0.
 *
 * Supported:   dtype f16, bf16; hidden a multiple of 64, 64..8192; intermediate a multiple of 64, 64..16384;
 *              shared_intermediate a multiple of 64, 0..16384; num_experts 1..256; experts_per_token
 *              1..min(16, num_experts); batch 0..65536; up to CAIRN_MOE_FEW rows batch * hidden up to
 *              32768. Anything else -EOPNOTSUPP. batch 0 does nothing. A row of x that is not finite has
 *              undefined out and e, and does not affect other rows.
 * Numerics:    n, h and s are rounded to dtype (h and s may keep more bits); products exact, sums, softmax
 *              and weights in fp32; out is rounded once. Scales are applied in fp32, to weights or to sums.
 *              w[b,i] may instead multiply, in fp32, the product of an unweighted h with w_down[e]; where h
 *              overflows dtype, with its weight or without, out is undefined.
 * Tolerance:   derived in moe_bounds.c; where the logits' bounds do not decide the choice of experts, a
 *              request is only checked to be finite.
 * Determinism: bitwise repeatable; row b does not depend on the other rows, as long as batch stays up to
 *              CAIRN_MOE_FEW or stays above it. Above CAIRN_MOE_FEW the grouping of the router's sums may
 *              depend on sms.
 * Errors:      -EINVAL, -EOPNOTSUPP, -EIO, as cluster_attn.h; experts_per_token above num_experts is
 *              -EOPNOTSUPP.
 * Source:      DeepSeek-V2 2024, section 2.2; Jiang et al. 2024 (Mixtral: normalize, no shared experts).
 */
#ifndef CAIRN_MOE_H
#define CAIRN_MOE_H

#include <stddef.h>
#include <stdint.h>

#include "primitives/gemm/quant_fp8w.h"

#define CAIRN_MOE_FEW	8

struct cairn_moe_args {
	size_t size;
	void *out;
	int32_t *experts;
	const void *x, *norm_weight, *w_router, *w_gate_up, *w_down, *w_shared_gate_up, *w_shared_down;
	void *workspace;
	size_t workspace_bytes;
	int32_t batch, hidden, num_experts, experts_per_token, intermediate, shared_intermediate;
	int32_t dtype, normalize;
	float eps, scaling;
	/* scales of weights of 8 bits; otherwise 0 and NULL */
	const float *w_gate_up_scale, *w_down_scale, *w_shared_gate_up_scale, *w_shared_down_scale;
	int32_t fp8w, scale_kind;
	int32_t sms;			/* SMs that the call may use at a time; 0: all */
};

/* Returns the number of scales of a matrix [n, k]. */
static inline int64_t cairn_moe_scales(int32_t scale_kind, int64_t n, int64_t k)
{
	const int64_t block = CAIRN_FP8_BLOCK;

	return scale_kind == CAIRN_FP8_SCALE_ROWS ? n : ((n + block - 1) / block) * ((k + block - 1) / block);
}

#ifdef __cplusplus
extern "C" {
#endif

int cairn_moe(const struct cairn_moe_args *args, void *stream);
int cairn_moe_workspace(const struct cairn_moe_args *args, size_t *bytes);
int cairn_moe_cpu(const struct cairn_moe_args *args, void *stream);
int cairn_moe_ref(const struct cairn_moe_args *args, void *stream);
/* exact[0]: out, exact[1]: experts (when given) */
int cairn_moe_exact(const struct cairn_moe_args *args, struct cairn_exact *exact);
/*
 * Returns whether cairn_moe_exact() gives bounds for this request; of large batches it samples some, and only
 * checks that the others are finite.
 */
int cairn_moe_is_judged(const struct cairn_moe_args *args, int32_t request);
/* Returns 0, or the error that all our tables return for these arguments. Reads no array. */
int cairn_moe_check(const struct cairn_moe_args *args);
/* The same check for the scalars alone. */
int cairn_moe_check_shape(const struct cairn_moe_args *args);

#ifdef __cplusplus
}
#endif
#endif
