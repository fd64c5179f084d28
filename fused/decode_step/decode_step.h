/* SPDX-License-Identifier: Apache-2.0 */
/*
 * decode_step - one token for each request: embedding, all decoder layers, logits, the chosen token
 *
 *   x      = embed[ids[b],:]
 *   each layer:
 *     x    = cluster_attn(x)                              (cluster_attn.h: norm ... residual)
 *            or with kv_lora_rank > 0 cluster_mla(x)      (cluster_mla.h)
 *     n    = x / sqrt(mean(x^2) + eps) * mlp_norm         dense layers: all, or with num_experts > 0 the
 *     g,u  = n w_gate_up^T, halves of `intermediate`      first dense_layers layers
 *     x    = x + (silu(g) * u) w_down^T
 *            or moe(x)                                    the other layers (moe.h)
 *   logits = (x / sqrt(mean(x^2) + eps) * final_norm) lm_head^T
 *   tokens = argmax (argmax.h), or sampled as in sample.h if temperature is given
 *
 *   argument            dtype  shape                                           notes
 *   logits              f32    [kv.batch, vocab]                               out
 *   tokens              int32  [kv.batch]                                      out, optional; may alias ids
 *   ids                 int32  [kv.batch]                                      in, 0 <= id < vocab
 *   embed, lm_head      dtype  [vocab, hidden]                                 in, may be the same
 *   final_norm          dtype  [hidden]                                        in
 *   attn_norm           dtype  [hidden]                                        in, of layer 0
 *   w_qkv, b_qkv        dtype  as in cluster_attn.h                            in, of layer 0; b_qkv optional
 *   w_o, b_o            dtype  as in cluster_attn.h                            in, of layer 0; b_o optional
 *   mlp_norm            dtype  [hidden]                                        in, of layer 0
 *   w_gate_up           dtype  [2 intermediate, hidden]                        in, of layer 0; gates, ups
 *   w_down              dtype  [hidden, intermediate]                          in, of layer 0
 *   inv_freq            f32    [head_dim / 2]                                  in, as in cluster_attn.h
 *   positions           int32  as in cluster_attn.h                            in
 *   kv                  struct cairn_kv_view                                   in; of layer 0, as in
 *                                                                              cluster_attn.h
 *   w_q, w_q_a, q_norm  dtype  as in cluster_mla.h                             in, with kv_lora_rank
 *   w_kv_a, kv_norm     dtype  as in cluster_mla.h                             in, with kv_lora_rank
 *   w_kv_b              dtype  as in cluster_mla.h                             in, with kv_lora_rank
 *   w_router            dtype  as in moe.h                                     in, with num_experts
 *   w_experts_*         dtype  as w_gate_up and w_down in moe.h                in, with num_experts
 *   w_shared_*          dtype  as in moe.h                                     in, with num_experts
 *   temperature         f32    [kv.batch]                                      in, optional
 *   top_p, min_p        f32    [kv.batch]                                      in, with temperature
 *   top_k               int32  [kv.batch]                                      in, with temperature
 *   seed, offset        uint64 [kv.batch]                                      in, with temperature
 *   workspace                  [workspace_bytes]                               256-byte aligned, zeroed once
 *
 * The weights of layer i are at layer_stride_bytes * i from those of layer 0, its pages at kv_stride_bytes *
 * i; both strides are multiples of 16. The weights of experts named in moe.h start at layer dense_layers;
 * w_gate_up and w_down start at layer 0, and every layer has an mlp_norm. With kv_lora_rank, w_qkv, b_qkv,
 * b_o and kv.v_pages are NULL, kv.k_pages holds the latents, num_kv_heads is 1, head_dim is nope_dim +
 * rope_dim, and inv_freq is as in cluster_mla.h. Pointers of dtype and logits are 16-byte aligned.
 *
 * form
 *   AUTO        the faster form for the shape
 *   GRAPH       a kernel for each part between two exchanges, for a CUDA graph; each kernel loads its first
 *               weights before it waits for the preceding one (programmatic dependent launch)
 *   PERSISTENT  one kernel on all SMs, with an exchange or grid barrier where the other form has a launch;
 *               the next weights arrive meanwhile
 * Both forms give the same bits. If an implementation lacks a form for a shape or a model, the workspace
 * query and the call return -EOPNOTSUPP; AUTO takes every supported shape. Our CUDA table has no PERSISTENT
 * form for experts without latent attention.
 *
 * A request without a key (cluster_attn.h) appends nothing; its logits and its token are undefined. If an old
 * key or value of a request, or the embedding of its id, holds a NaN, then its logits and what it appends in
 * later layers are undefined; its token follows from these logits (argmax.h, sample.h). Other requests are
 * not affected.
 * cluster_attn.h says what "zeroed once" means for the workspace, what sms is, and which such calls may run
 * on a device at the same time. Two calls may do so if each has its own stream and workspace, both have sms >
 * 0, and their sms add up to at most the number of SMs: then all CTAs of both are resident at once. The
 * kernels that draw tokens and look up rows of the embedding are short and take any SM that is free.
 *
 * Supported:   dtype f16, bf16; head_dim 64, 128; hidden and intermediate multiples of 64, hidden ..16384,
 *              intermediate ..65536; group 1..8; kv.batch 0..8, kv.batch * hidden up to 32768; vocab a
 *              multiple of 8; any page_size. With kv_lora_rank, attention is as in cluster_mla.h; experts are
 *              as in moe.h; if all layers have experts, intermediate may be 0. Anything else -EOPNOTSUPP.
 *              kv.batch 0 does nothing.
 * Numerics:    as cluster_attn.h; n and silu(g) * u rounded to dtype, x after each of the two residual sums;
 *              g, u and logits stay fp32; silu(g), for g above -80, has the precision of silu_mul.h, in
 *              experts that of moe.h.
 * Tolerance:   derived in decode_step_bounds.c; a token is judged where the logits differ by more than their
 *              bounds.
 * Determinism: bitwise repeatable, and the same in both forms. A request does not depend on the others, but
 *              the grouping of its sums may depend on kv.batch, kv.max_len, sms and the device.
 * Unused memory: as cluster_attn.h.
 * Weights:     matrices, biases, norms and inv_freq are constant, as b in gemm.h ("Constant b").
 * Errors:      -EINVAL, -EOPNOTSUPP, -EIO, as cluster_attn.h, for eps and sm_scale, too; with experts,
 *              expert_scaling is finite and > 0.
 * Source:      Luo et al. 2025, section 3; Touvron et al. 2023 (the architecture).
 */
#ifndef CAIRN_DECODE_STEP_H
#define CAIRN_DECODE_STEP_H

#include <stddef.h>
#include <stdint.h>

#include "fused/cache/kv_view.h"

struct cairn_exact;

enum cairn_decode_step_form {
	CAIRN_DECODE_STEP_AUTO,
	CAIRN_DECODE_STEP_GRAPH,
	CAIRN_DECODE_STEP_PERSISTENT,
};

struct cairn_decode_step_args {
	size_t size;
	float *logits;
	int32_t *tokens;
	const int32_t *ids;
	const void *embed, *lm_head, *final_norm;
	const void *attn_norm, *w_qkv, *b_qkv, *w_o, *b_o, *mlp_norm, *w_gate_up, *w_down;
	/* latent attention and experts; NULL without them */
	const void *w_q, *w_q_a, *q_norm, *w_kv_a, *kv_norm, *w_kv_b;
	const void *w_router, *w_experts_gate_up, *w_experts_down, *w_shared_gate_up, *w_shared_down;
	const float *inv_freq;
	const int32_t *positions;
	const float *temperature, *top_p, *min_p;
	const int32_t *top_k;
	const uint64_t *seed, *offset;
	struct cairn_kv_view kv;
	void *workspace;
	size_t workspace_bytes;
	int64_t layer_stride_bytes, kv_stride_bytes;
	int32_t num_layers, hidden, intermediate, num_qo_heads, num_kv_heads, head_dim, vocab;
	/* latent attention and experts; 0 without them */
	int32_t q_lora_rank, kv_lora_rank, nope_dim, rope_dim, v_dim;
	int32_t num_experts, experts_per_token, expert_intermediate, shared_intermediate, dense_layers;
	int32_t normalize_experts;
	int32_t dtype, form;
	float eps, sm_scale, expert_scaling;
	int32_t sms;			/* SMs that the call may use at a time; 0: all */
};

#ifdef __cplusplus
extern "C" {
#endif

int cairn_decode_step(const struct cairn_decode_step_args *args, void *stream);
int cairn_decode_step_workspace(const struct cairn_decode_step_args *args, size_t *bytes);
int cairn_decode_step_cpu(const struct cairn_decode_step_args *args, void *stream);
int cairn_decode_step_cpu_workspace(const struct cairn_decode_step_args *args, size_t *bytes);
int cairn_decode_step_ref(const struct cairn_decode_step_args *args, void *stream);
/* exact[0]: logits, exact[1]: kv.k_pages, then kv.v_pages (without kv_lora_rank), tokens (when given) */
int cairn_decode_step_exact(const struct cairn_decode_step_args *args, struct cairn_exact *exact);
/* Returns 0, or the error that all our tables return for these arguments. Reads no array. */
int cairn_decode_step_check(const struct cairn_decode_step_args *args);
/* As cairn_decode_step_check(), for the scalars alone. For workspace queries. */
int cairn_decode_step_check_shape(const struct cairn_decode_step_args *args);

#ifdef __cplusplus
}
#endif
#endif
