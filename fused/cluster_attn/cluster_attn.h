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
 * One new token for each request; g, kv_len and the page walk as in attn_paged.h, lengths counting
 * the new token: kv_len >= 1.
 *
 *   argument          dtype  shape                                           notes
 *   out               dtype  [batch, hidden]                                 out, may alias x exactly
 *   k_pages, v_pages  dtype  [num_pages, page_size, num_kv_heads, head_dim]  in and out, NHD
 *   x                 dtype  [batch, hidden]                                 in, the residual stream
 *   norm_weight       dtype  [hidden]                                        in
 *   w_qkv             dtype  [(num_qo_heads + 2 num_kv_heads) * head_dim, hidden]  in, rows q, k, v
 *   b_qkv             dtype  [(num_qo_heads + 2 num_kv_heads) * head_dim]    in, optional (NULL)
 *   w_o               dtype  [hidden, num_qo_heads * head_dim]               in
 *   b_o               dtype  [hidden]                                        in, optional (NULL)
 *   inv_freq          f32    [head_dim / 2]                                  in
 *   positions         int32  [batch]                                         in, >= 0
 *   kv_indptr         int32  [batch + 1]                                     in, ascending, in pages
 *   kv_indices        int32  [kv_indptr[batch]]                              in, 0 <= id < num_pages
 *   kv_last_page_len  int32  [batch]                                         in, 1..page_size;
 *                                                                            0 with one page: no key
 *   workspace                [workspace_bytes]                               256-byte aligned; see below
 *
 * Pointers of dtype are 16-byte aligned. max_kv_len is an upper bound over the batch, read by the host;
 * the index arrays are read on the device only, so a captured graph serves other lengths below it.
 * A request without a page, or with kv_len 0 (one page and kv_last_page_len 0), is passed over: it appends
 * nothing, and its row of out is undefined.
 * Two requests do not write the same slot, and no request reads a slot that another one writes.
 *
 * workspace is zeroed once by the caller before its first use: it holds counters and numbered words, which
 * each call leaves ready for the next one with the same scalars. It is zeroed again for others (batch and
 * max_kv_len among them), and after a launch that failed; it serves one stream at a time.
 *
 * Where a kernel shares out its work over all SMs (here AUTO; cluster_mla, moe, decode_step), its CTAs wait
 * for each other and must all be resident at once. No two such calls may run on a device at the same time: a
 * stream, or events between streams, must keep them apart, or they wait for each other for ever (in a DEBUG
 * build until a spin's budget is spent: the trap says who waits). Other kernels, which end by themselves, may
 * run beside them.
 *
 * dataflow
 *   AUTO         the fastest for the shape; cluster_size and offchip must be 0
 *   SPLIT_TOKEN  algorithm 3: a cluster for each KV head; its CTAs share out the rows of w_qkv, the keys and
 *                the rows of w_o; q, k, v are gathered and (m, l, o) merged over DSMEM
 *   SPLIT_HEAD   algorithm 5: its CTAs share out head_dim; the logits are summed over DSMEM
 * cluster_size is 1..16, 0: chosen. It must divide head_dim / 8 for SPLIT_HEAD; any size for SPLIT_TOKEN
 * that the device grants. offchip: exchanges go through global memory instead of DSMEM (the ablation).
 *
 * Supported:   dtype f16, bf16; head_dim 64, 128; hidden a multiple of 64, 64..16384; num_qo_heads a
 *              multiple of num_kv_heads, group (their ratio) 1..16; batch 0..16; any page_size >= 1. Anything
 *              else -EOPNOTSUPP. batch 0 does nothing.
 * Numerics:    n, q, k, v, a and P are rounded to dtype, q and k before and after the rotation; products
 *              exact, sums in fp32; out is rounded once. One reading of the weights for the whole batch.
 * Tolerance:   derived in cluster_attn_ref.c.
 * Determinism: bitwise repeatable; no floating-point atomics. With equal dataflow and cluster_size a row does
 *              not depend on the other requests, but how its sums are grouped may follow from batch,
 *              max_kv_len and the device.
 * Unused memory: slots past kv_last_page_len and unlisted pages may hold NaN and never reach a result; the
 *              slot of the new token is written, not read.
 * Errors:      -EINVAL (null pointer, misaligned, workspace too small, a size that is negative or contradicts
 *              another; eps or sm_scale not finite or not > 0), -EOPNOTSUPP (legal, but not Supported, or the
 *              device has no room), -EIO (the launch failed).
 * Source:      Luo et al. 2025 (ClusterFusion), algorithms 3 and 5. Differs: GQA, paged cache, batches, norm
 *              and residual inside, no atomics on sums.
 */
#ifndef CAIRN_CLUSTER_ATTN_H
#define CAIRN_CLUSTER_ATTN_H

#include <stddef.h>
#include <stdint.h>

struct cairn_exact;

enum cairn_cluster_attn_dataflow {
	CAIRN_CLUSTER_ATTN_AUTO,
	CAIRN_CLUSTER_ATTN_SPLIT_TOKEN,
	CAIRN_CLUSTER_ATTN_SPLIT_HEAD,
};

struct cairn_cluster_attn_args {
	size_t size;
	void *out, *k_pages, *v_pages;
	const void *x, *norm_weight, *w_qkv, *b_qkv, *w_o, *b_o;
	const float *inv_freq;
	const int32_t *positions, *kv_indptr, *kv_indices, *kv_last_page_len;
	void *workspace;
	size_t workspace_bytes;
	int32_t batch, max_kv_len, num_pages, page_size;
	int32_t hidden, num_qo_heads, num_kv_heads, head_dim;
	int32_t dtype, dataflow, cluster_size, offchip;
	float eps, sm_scale;
};

#ifdef __cplusplus
extern "C" {
#endif

int cairn_cluster_attn(const struct cairn_cluster_attn_args *args, void *stream);
int cairn_cluster_attn_workspace(const struct cairn_cluster_attn_args *args, size_t *bytes);
int cairn_cluster_attn_cpu(const struct cairn_cluster_attn_args *args, void *stream);
int cairn_cluster_attn_cpu_workspace(const struct cairn_cluster_attn_args *args, size_t *bytes);
int cairn_cluster_attn_ref(const struct cairn_cluster_attn_args *args, void *stream);
/* exact[0]: out, exact[1]: k_pages, exact[2]: v_pages */
int cairn_cluster_attn_exact(const struct cairn_cluster_attn_args *args, struct cairn_exact *exact);
/* 0, or the error that every one of ours returns for these arguments; reads no array. */
int cairn_cluster_attn_check(const struct cairn_cluster_attn_args *args);
/* The same of the scalars alone, for workspace queries. */
int cairn_cluster_attn_check_shape(const struct cairn_cluster_attn_args *args);

#ifdef __cplusplus
}
#endif
#endif
