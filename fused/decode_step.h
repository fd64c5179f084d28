/* SPDX-License-Identifier: Apache-2.0 */
/*
 * decode_step - one token for each request: embedding, all decoder layers, logits, the drawn token
 *
 *   x      = embed[ids[b],:]
 *   each layer:
 *     x    = cluster_attn(x)                              (cluster_attn.h: norm ... residual)
 *     n    = x / sqrt(mean(x^2) + eps) * mlp_norm
 *     g,u  = n w_gate_up^T, split in two halves of `intermediate`
 *     x    = x + (silu(g) * u) w_down^T
 *   logits = (x / sqrt(mean(x^2) + eps) * final_norm) lm_head^T
 *   tokens = argmax (argmax.h), or drawn as sample.h does where temperature is given
 *
 *   argument           dtype  shape                                           notes
 *   logits             f32    [batch, vocab]                                  out
 *   tokens             int32  [batch]                                         out, optional (NULL); may alias ids
 *   k_pages, v_pages   dtype  [num_pages, page_size, num_kv_heads, head_dim]  in and out, of layer 0
 *   ids                int32  [batch]                                         in, 0 <= id < vocab
 *   embed, lm_head     dtype  [vocab, hidden]                                 in, may be the same
 *   final_norm         dtype  [hidden]                                        in
 *   attn_norm, w_qkv, b_qkv, w_o, b_o, mlp_norm                               in, of layer 0; as in cluster_attn.h
 *   w_gate_up          dtype  [2 intermediate, hidden]                        in, of layer 0: all gates, all ups
 *   w_down             dtype  [hidden, intermediate]                          in, of layer 0
 *   inv_freq, positions, kv_indptr, kv_indices, kv_last_page_len              as in cluster_attn.h
 *   temperature, top_p, min_p  f32, top_k  int32, seed, offset  uint64  [batch]  in, optional, all or none
 *   workspace                 [workspace_bytes]                               256-byte aligned, see cluster_attn.h
 *
 * The weights of layer i lie layer_stride_bytes * i behind those of layer 0, its pages kv_stride_bytes * i;
 * both are multiples of 16. Pointers of dtype are 16-byte aligned, logits 16-byte.
 *
 * form
 *   AUTO        the faster one for the shape
 *   GRAPH       a kernel for each stretch between two exchanges, for a CUDA graph; each asks for its weights
 *               before it waits for its predecessor (programmatic dependent launch)
 *   PERSISTENT  one kernel: all SMs stay, and meet at each exchange while the weights of what follows flow in
 * Both forms give the same bits.
 *
 * Supported:   dtype f16, bf16; head_dim 64, 128; hidden and intermediate multiples of 64, hidden ..16384,
 *              intermediate ..65536; group 1..8; batch 0..8, batch * hidden up to 32768; vocab a multiple of 8;
 *              any page_size. Anything else -EOPNOTSUPP. batch 0 does nothing.
 * Numerics:    as cluster_attn.h; n and silu(g) * u rounded to dtype, x after each of the two residual sums;
 *              g, u and logits stay fp32.
 * Tolerance:   derived in decode_step_ref.c; a token is judged where the logits decide it beyond their bounds.
 * Determinism: bitwise repeatable, and the same in both forms.
 * Errors:      -EINVAL, -EOPNOTSUPP, -EIO.
 * Source:      Luo et al. 2025, section 3; Touvron et al. 2023 (the architecture).
 */
#ifndef CAIRN_DECODE_STEP_H
#define CAIRN_DECODE_STEP_H

#include <stddef.h>
#include <stdint.h>

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
	void *k_pages, *v_pages;
	const int32_t *ids;
	const void *embed, *lm_head, *final_norm;
	const void *attn_norm, *w_qkv, *b_qkv, *w_o, *b_o, *mlp_norm, *w_gate_up, *w_down;
	const float *inv_freq;
	const int32_t *positions, *kv_indptr, *kv_indices, *kv_last_page_len;
	const float *temperature, *top_p, *min_p;
	const int32_t *top_k;
	const uint64_t *seed, *offset;
	void *workspace;
	size_t workspace_bytes;
	int64_t layer_stride_bytes, kv_stride_bytes;
	int32_t batch, max_kv_len, num_pages, page_size;
	int32_t num_layers, hidden, intermediate, num_qo_heads, num_kv_heads, head_dim, vocab;
	int32_t dtype, form;
	float eps, sm_scale;
};

#ifdef __cplusplus
extern "C" {
#endif

int cairn_decode_step(const struct cairn_decode_step_args *args, void *stream);
int cairn_decode_step_workspace(const struct cairn_decode_step_args *args, size_t *bytes);
int cairn_decode_step_cpu(const struct cairn_decode_step_args *args, void *stream);
int cairn_decode_step_cpu_workspace(const struct cairn_decode_step_args *args, size_t *bytes);
int cairn_decode_step_ref(const struct cairn_decode_step_args *args, void *stream);
/* exact[0]: logits, exact[1]: k_pages, exact[2]: v_pages, exact[3]: tokens (when given) */
int cairn_decode_step_exact(const struct cairn_decode_step_args *args, struct cairn_exact *exact);
/* 0, or the error that every one of ours returns for these arguments; reads no array. */
int cairn_decode_step_check(const struct cairn_decode_step_args *args);
/* The same for the scalars alone, which is all that a workspace query reads. */
int cairn_decode_step_check_shape(const struct cairn_decode_step_args *args);

#ifdef __cplusplus
}
#endif
#endif
