/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cluster_attn - the attention block of a decode step in one call: RMSNorm, QKV projection, rotary
 * embedding, append to the paged KV cache, attention, output projection, residual
 *
 *   n      = x[b,:] / sqrt(mean(x[b,:]^2) + eps) * norm_weight
 *   q,k,v  = n w_qkv^T + b_qkv, split into num_qo_heads, num_kv_heads, num_kv_heads of head_dim
 *   q,k    = rotated by positions[b] (rope.h, halves, rotary_dim = head_dim)
 *   cache  : k and v become key kv_len[b] - 1 of request b
 *   a[h,:] = sum_j p[j] * v[j,g,:],  p = softmax_j(sm_scale * dot(q[h,:], k[j,g,:])), j < kv_len[b]
 *   out    = x + a w_o^T + b_o
 *
 * Each request has one new token. attn_paged.h defines g, and kv_view.h kv_len and the page walk; the
 * lengths count the new token, so kv_len >= 1.
 *
 *   argument          dtype  shape                                           notes
 *   out               dtype  [kv.batch, hidden]                              out, may alias x exactly
 *   x                 dtype  [kv.batch, hidden]                              in, the residual stream
 *   norm_weight       dtype  [hidden]                                        in
 *   w_qkv             dtype  [num_qkv_rows, hidden]                          in, rows of q, then k, then v
 *   b_qkv             dtype  [num_qkv_rows]                                  in, optional (NULL)
 *   w_o               dtype  [hidden, num_qo_heads * head_dim]               in
 *   b_o               dtype  [hidden]                                        in, optional (NULL)
 *   inv_freq          f32    [head_dim / 2]                                  in
 *   positions         int32  [kv.batch]                                      in, >= 0
 *   kv                struct cairn_kv_view                                   in, kv_view.h
 *     k_pages, v_pages  of dtype                                             in and out
 *     last_page_len                                                          1..page_size;
 *                                                                            0 with one page: no key
 *   workspace                [workspace_bytes]                               256-byte aligned; see below
 *
 * num_qkv_rows = (num_qo_heads + 2 num_kv_heads) * head_dim. Pointers of dtype are 16-byte aligned.
 * A request without a page, or with kv_len 0 (one page and last_page_len 0), is skipped: it appends nothing,
 * and its row of out is undefined. A NaN in an old key or value leaves its request's row of out undefined; a
 * NaN in x also makes what the request appends NaN. Other requests are not affected.
 * No two requests may write the same slot, and no request may read a slot that another one writes.
 *
 * The caller zeroes workspace once before its first use. It holds counters and LL words, which each call
 * leaves ready for the next call with the same scalars. The caller must zero it again when a scalar changes
 * (kv.batch and kv.max_len included) and after a failed launch. A workspace serves one stream at a time.
 *
 * sms is the largest number of SMs that the call may use at a time (gemm.h). Some kernels spread their work
 * over these SMs (here AUTO; also cluster_mla, moe and decode_step). Their CTAs wait for each other, so all
 * of them must be resident at once. Such calls may run on a device at the same time only under three
 * conditions: each has sms > 0 and a workspace of its own; their sms add up to at most the number of the
 * device's SMs; and if CTAs of any of them form clusters (batch above 8, cluster_size above 1), all clusters
 * fit wherever the other CTAs are placed, even if that leaves an unusable SM in each GPC. All other such
 * calls must be on one stream or ordered by events, or they deadlock (a DEBUG build traps when a wait exceeds
 * its time limit and prints which thread waits). Kernels that end without waiting for another kernel may run
 * concurrently. AUTO needs 2 SMs above batch 8; SPLIT_TOKEN and SPLIT_HEAD need num_kv_heads * cluster_size.
 *
 * dataflow
 *   AUTO         the fastest for the shape; cluster_size and offchip must be 0
 *   SPLIT_TOKEN  algorithm 3: a cluster for each KV head; its CTAs split the rows of w_qkv, the keys and
 *                the rows of w_o; q, k, v are gathered and (m, l, o) merged over DSMEM
 *   SPLIT_HEAD   algorithm 5: its CTAs split head_dim; the logits are summed over DSMEM
 * cluster_size is 1..16, or 0 to let the library choose. For SPLIT_HEAD it must divide head_dim / 8; for
 * SPLIT_TOKEN any size that the device grants is legal. With offchip set, exchanges go through global memory
 * instead of DSMEM (the ablation).
 *
 * Supported:   dtype f16, bf16; head_dim 64, 128; hidden a multiple of 64, 64..16384; num_qo_heads a
 *              multiple of num_kv_heads, group (their ratio) 1..16; kv.batch 0..16; any page_size >= 1.
 *              Anything else -EOPNOTSUPP. kv.batch 0 does nothing.
 * Numerics:    n, q, k, v, a and P are rounded to dtype, q and k before and after the rotation; products
 *              exact, sums in fp32; out is rounded once. The weights are read once for the whole batch.
 * Tolerance:   derived in cluster_attn_ref.c.
 * Determinism: bitwise repeatable; no floating-point atomics. With equal dataflow and cluster_size a row does
 *              not depend on the other requests, but the grouping of its sums may depend on
 *              kv.batch, kv.max_len, sms and the device.
 * Unused memory: slots past last_page_len and unlisted pages may hold NaN and never reach a result; the
 *              slot of the new token is written, not read.
 * Weights:     norm_weight, w_*, b_* and inv_freq are constant, as b in gemm.h ("Constant b").
 * Errors:      -EINVAL (null pointer, misaligned, workspace too small, a size that is negative or contradicts
 *              another; sm_scale not finite or not > 0; eps not as in rmsnorm.h), -EOPNOTSUPP (legal, but not
 *              Supported, or the device has no room), -EIO (the launch failed).
 * Source:      Luo et al. 2025 (ClusterFusion), algorithms 3 and 5. Differs: GQA, paged cache, batches, norm
 *              and residual inside, no atomics on sums.
 */
#ifndef CAIRN_CLUSTER_ATTN_H
#define CAIRN_CLUSTER_ATTN_H

#include <stddef.h>
#include <stdint.h>

#include "fused/cache/kv_view.h"

struct cairn_exact;

enum cairn_cluster_attn_dataflow {
	CAIRN_CLUSTER_ATTN_AUTO,
	CAIRN_CLUSTER_ATTN_SPLIT_TOKEN,
	CAIRN_CLUSTER_ATTN_SPLIT_HEAD,
};

struct cairn_cluster_attn_args {
	size_t size;
	void *out;
	const void *x, *norm_weight, *w_qkv, *b_qkv, *w_o, *b_o;
	const float *inv_freq;
	const int32_t *positions;
	struct cairn_kv_view kv;
	void *workspace;
	size_t workspace_bytes;
	int32_t hidden, num_qo_heads, num_kv_heads, head_dim;
	int32_t dtype, dataflow, cluster_size, offchip;
	float eps, sm_scale;
	int32_t sms;			/* SMs that the call may use at a time; 0: all */
};

#ifdef __cplusplus
extern "C" {
#endif

int cairn_cluster_attn(const struct cairn_cluster_attn_args *args, void *stream);
int cairn_cluster_attn_workspace(const struct cairn_cluster_attn_args *args, size_t *bytes);
int cairn_cluster_attn_cpu(const struct cairn_cluster_attn_args *args, void *stream);
int cairn_cluster_attn_cpu_workspace(const struct cairn_cluster_attn_args *args, size_t *bytes);
int cairn_cluster_attn_ref(const struct cairn_cluster_attn_args *args, void *stream);
/* exact[0]: out, exact[1]: kv.k_pages, exact[2]: kv.v_pages */
int cairn_cluster_attn_exact(const struct cairn_cluster_attn_args *args, struct cairn_exact *exact);
/* Returns 0, or the error that all our tables return for these arguments. Reads no array. */
int cairn_cluster_attn_check(const struct cairn_cluster_attn_args *args);
/* As cairn_cluster_attn_check(), for the scalars alone. For workspace queries. */
int cairn_cluster_attn_check_shape(const struct cairn_cluster_attn_args *args);

#ifdef __cplusplus
}
#endif
#endif
