/* SPDX-License-Identifier: Apache-2.0 */
/*
 * attn_bwd - the gradients of attn_dense (FlashAttention, backward)
 *
 * q, k, v, the masks and s are as in attn_dense.h, out and lse are its results, and dout is the gradient of
 * out. i is a query row, h a query head of KV head g, j a key that the row sees:
 *
 *   p[i,h,j]  = exp(s[i,h,j] - lse[i,h])
 *   delta     = sum_c dout[i,h,c] * out[i,h,c]
 *   ds        = p * (sum_c dout[i,h,c] * v[j,g,c] - delta) * f
 *   f         = 1 without a softcap, 1 - (s / softcap)^2 with one
 *   dq[i,h,:] = sm_scale * sum_j ds * k[j,g,:]
 *   dk[j,g,:] = sm_scale * sum_i,h ds * q[i,h,:]
 *   dv[j,g,:] = sum_i,h p * dout[i,h,:]
 *
 *   argument          dtype  shape                              notes
 *   dq                dtype  [nnz_qo, num_qo_heads, qk_dim]     out, may not alias an input
 *   dk                dtype  [nnz_kv, num_kv_heads, qk_dim]     out, may not alias an input
 *   dv                dtype  [nnz_kv, num_kv_heads, v_dim]      out, may not alias an input
 *   q, k, v                                                     in, as in attn_dense.h
 *   out               dtype  [nnz_qo, num_qo_heads, v_dim]      in
 *   dout              dtype  [nnz_qo, num_qo_heads, v_dim]      in
 *   lse               f32    [nnz_qo, num_qo_heads]             in
 *   qo_indptr         int32  [batch + 1]                        in, ascending from 0
 *   kv_indptr         int32  [batch + 1]                        in, ascending from 0
 *   workspace                [workspace_bytes]                  256-byte aligned
 *
 * The workspace holds lse, delta and, up to 128 dimensions, dq in fp32. That is about 8 + 4 dim bytes for
 * each row of each query head, where dim is 64 or 128, and the rows of each request are rounded up to a
 * multiple of 64 or 128.
 *
 * The arrays of dtype are 16-byte aligned. Strides, bounds and supported values are those of attn_dense.h.
 * Rows of dq past qo_indptr[batch] and of dk and dv past kv_indptr[batch] are not written. A row that sees no
 * key has dq 0, whatever its lse; a key that no row sees has dk and dv 0. out and lse need not be results of
 * attn_dense: the formulas hold for any values for which p, ds and all sums fit fp32, and p and ds fit dtype.
 *
 * Numerics:    products exact, sums in fp32. p may be rounded to dtype before it is multiplied by dout, and
 *              ds before it is multiplied by k and q. Each result is rounded once. Magnitudes below 2^-126
 *              may be flushed to 0.
 * Not numbers: a NaN or an infinity in an input of a request leaves its gradients undefined, in the heads
 *              that share the KV head. All other results are unaffected.
 * Tolerance:   derived in attn_bwd_ref.c from the above.
 * Determinism: bitwise repeatable for equal arguments. A gradient depends on its own request only, but the
 *              grouping of its sums may depend on the four bounds, on batch and on sms.
 * Unused memory: rows past the last request, gaps between rows and heads, and keys outside every row's window
 *              may hold NaN and never reach a result.
 * Errors:      -EINVAL (null pointer, misaligned, negative or contradictory size), -EOPNOTSUPP, -EIO.
 * Source:      Dao et al. 2022 (FlashAttention), algorithm 4; Dao 2023 (FlashAttention-2), algorithm 2.
 */
#ifndef CAIRN_ATTN_BWD_H
#define CAIRN_ATTN_BWD_H

#include <stddef.h>
#include <stdint.h>

#include "fused/attention/dense/attn_dense.h"

struct cairn_attn_bwd_args {
	size_t size;
	void *dq, *dk, *dv;
	const void *q, *k, *v, *out, *dout;
	const float *lse;
	const int32_t *qo_indptr, *kv_indptr;
	void *workspace;
	size_t workspace_bytes;
	int64_t q_stride, k_stride, v_stride;
	int64_t k_head_stride, v_head_stride;
	int32_t batch, nnz_qo, nnz_kv, max_qo_len, max_kv_len;
	int32_t num_qo_heads, num_kv_heads, qk_dim, v_dim;
	int32_t dtype, causal;
	float sm_scale;
	int32_t window;			/* keys that a row may see, its own included; 0: all */
	float softcap;			/* in units of a logit; 0: none */
	int32_t sms;			/* SMs that the call may use at a time; 0: all */
};

#ifdef __cplusplus
extern "C" {
#endif

int cairn_attn_bwd(const struct cairn_attn_bwd_args *args, void *stream);
int cairn_attn_bwd_workspace(const struct cairn_attn_bwd_args *args, size_t *bytes);
int cairn_attn_bwd_cpu(const struct cairn_attn_bwd_args *args, void *stream);
int cairn_attn_bwd_ref(const struct cairn_attn_bwd_args *args, void *stream);
/*
 * Sets exact[0] for dq, exact[1] for dk, exact[2] for dv. Above 2^30 products in q.k it computes only a fixed
 * sample of the rows and keys.
 */
int cairn_attn_bwd_exact(const struct cairn_attn_bwd_args *args, struct cairn_exact *exact);
/* Returns 0, or the error that all of our tables return for these arguments; reads no array. */
int cairn_attn_bwd_check(const struct cairn_attn_bwd_args *args);
/* The part of cairn_attn_bwd_check() that reads only the scalars, for workspace queries. */
int cairn_attn_bwd_check_shape(const struct cairn_attn_bwd_args *args);
/* Returns the arguments of the forward pass, without out and lse. */
struct cairn_attn_dense_args cairn_attn_bwd_forward(const struct cairn_attn_bwd_args *args);

#ifdef __cplusplus
}
#endif
#endif
