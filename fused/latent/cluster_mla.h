/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cluster_mla - the multi-head latent attention block of a decode step in one call, with absorbed weights
 *
 *   n      = rmsnorm(x[b,:]) * norm_weight                      (rmsnorm.h)
 *   q      = n w_q^T                                            without q compression (q_lora_rank 0)
 *   q      = (rmsnorm(n w_q_a^T) * q_norm) w_q^T                with q compression
 *   c, r   = n w_kv_a^T, split into kv_lora_rank and rope_dim;  c = rmsnorm(c) * kv_norm
 *   r, and the last rope_dim elements of each head of q, are rotated by positions[b] (rope.h, interleaved)
 *   cache  : (c, r) becomes key kv_len[b] - 1 of request b
 *   ql[h]  = q[h,:nope_dim] w_kv_b[h,:nope_dim,:]               absorption: nope_dim -> kv_lora_rank
 *   s[h,j] = sm_scale * (dot(ql[h], c[j]) + dot(q[h,nope_dim:], r[j])),  j < kv_len[b]
 *   a[h]   = w_kv_b[h,nope_dim:,:] (sum_j softmax_j(s)[h,j] c[j])        kv_lora_rank -> v_dim
 *   out    = x + a w_o^T
 *
 * Each request has one new token. kv_len and the page walk are as in kv_view.h. Lengths include the new
 * token, so kv_len >= 1.
 *
 *   argument          dtype  shape                                              notes
 *   out               dtype  [kv.batch, hidden]                                 out, may alias x exactly
 *   x                 dtype  [kv.batch, hidden]                                 in
 *   norm_weight       dtype  [hidden]                                           in
 *   w_q_a             dtype  [q_lora_rank, hidden]                              in; NULL if q_lora_rank is 0
 *   q_norm            dtype  [q_lora_rank]                                      in; NULL if q_lora_rank is 0
 *   w_q               dtype  [num_heads * (nope_dim + rope_dim), k]             in; k: q_lora_rank, or hidden
 *   w_kv_a            dtype  [kv_lora_rank + rope_dim, hidden]                  in
 *   kv_norm           dtype  [kv_lora_rank]                                     in
 *   w_kv_b            dtype  [num_heads, nope_dim + v_dim, kv_lora_rank]        in
 *   w_o               dtype  [hidden, num_heads * v_dim]                        in
 *   inv_freq          f32    [rope_dim / 2]                                     in
 *   positions, workspace                                                        as in cluster_attn.h
 *   kv                struct cairn_kv_view                                      as in cluster_attn.h
 *     k_pages         dtype  [num_pages, page_size, kv_lora_rank + rope_dim]    in and out; v_pages is NULL
 *
 * Pointers of dtype are 16-byte aligned.
 *
 * cluster_size is 1..16, or 0 to let the kernel choose. That many CTAs share the keys of 16 heads of a
 * request and merge their results over DSMEM, or, with offchip, through global memory. All SMs, or as many as
 * `sms` allows, share the other work. cluster_attn.h defines sms, what must not run at the same time, what
 * happens to requests without a key, and the effect of a NaN in an old key or in x. sms must be at least
 * cluster_size.
 *
 * Supported:   dtype f16, bf16; kv_lora_rank 512, rope_dim 64, nope_dim 128, v_dim 128; num_heads a multiple
 *              of 8, 8..128; hidden and q_lora_rank multiples of 64, hidden 64..16384, q_lora_rank 0..4096;
 *              kv.batch 0..16; any page_size >= 1. Anything else -EOPNOTSUPP. kv.batch 0 does nothing.
 * Numerics:    n, the compressed vectors before and after their norm, q (before and after the rotation), ql,
 *              P, the weighted sum of c, and a are rounded to dtype; products are exact, sums in fp32; out is
 *              rounded once. eps is as in rmsnorm.h, sm_scale finite and > 0.
 * Tolerance:   derived in cluster_mla_ref.c.
 * Determinism, constant weights, unused memory, workspace, errors: as in cluster_attn.h.
 * Source:      DeepSeek-V2 2024, section 2.1; Luo et al. 2025, algorithm 4. Differs from the latter: the rope
 *              part is in the score, the cache is paged and appended to, and batches are supported.
 */
#ifndef CAIRN_CLUSTER_MLA_H
#define CAIRN_CLUSTER_MLA_H

#include <stddef.h>
#include <stdint.h>

#include "fused/cache/kv_view.h"

struct cairn_exact;

struct cairn_cluster_mla_args {
	size_t size;
	void *out;
	const void *x, *norm_weight, *w_q_a, *q_norm, *w_q, *w_kv_a, *kv_norm, *w_kv_b, *w_o;
	const float *inv_freq;
	const int32_t *positions;
	struct cairn_kv_view kv;
	void *workspace;
	size_t workspace_bytes;
	int32_t hidden, num_heads, q_lora_rank, kv_lora_rank, nope_dim, rope_dim, v_dim;
	int32_t dtype, cluster_size, offchip;
	float eps, sm_scale;
	int32_t sms;			/* SMs that the call may use at a time; 0: all */
};

#ifdef __cplusplus
extern "C" {
#endif

int cairn_cluster_mla(const struct cairn_cluster_mla_args *args, void *stream);
int cairn_cluster_mla_workspace(const struct cairn_cluster_mla_args *args, size_t *bytes);
int cairn_cluster_mla_cpu(const struct cairn_cluster_mla_args *args, void *stream);
int cairn_cluster_mla_ref(const struct cairn_cluster_mla_args *args, void *stream);
/* Sets exact[0] for out and exact[1] for kv.k_pages. */
int cairn_cluster_mla_exact(const struct cairn_cluster_mla_args *args, struct cairn_exact *exact);
/* Returns 0, or the error that all of our tables return for these arguments; reads no array. */
int cairn_cluster_mla_check(const struct cairn_cluster_mla_args *args);
/* The part of cairn_cluster_mla_check() that reads only the scalars. */
int cairn_cluster_mla_check_shape(const struct cairn_cluster_mla_args *args);

#ifdef __cplusplus
}
#endif
#endif
