/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cudnn_sdpa - attention and its gradients as graphs of cuDNN operations
 *
 * The graphs are the patterns that the library's fused engines know: two or five products with the softmax
 * between them spelled out as pointwise operations and reductions. They are those of cudnn-frontend's
 * composite nodes.
 */
#ifndef CAIRN_CUDNN_SDPA_H
#define CAIRN_CUDNN_SDPA_H

#include "conformance/peers/cudnn_graph.h"

/* Numbers of the tensors in memory. Offsets: int64 [batch + 1] elements; lengths: int32 [batch]. */
enum cudnn_sdpa_tensor {
	SDPA_Q = 1, SDPA_K, SDPA_V, SDPA_OUT, SDPA_LSE, SDPA_DOUT, SDPA_DQ, SDPA_DK, SDPA_DV,
	SDPA_OFFSETS,			/* the offsets of tensor t are SDPA_OFFSETS + t */
	SDPA_LEN_Q = SDPA_OFFSETS + SDPA_OFFSETS, SDPA_LEN_KV,
	SDPA_DELTA,			/* f32 [batch, heads, len_q]: rows' sums of dout * out */
	SDPA_DQ_SUM,			/* f32 [batch, heads, len_q, qk_dim] */
};

/* A problem. memcmp() compares it, so the struct must be zeroed first. Strides are in elements. */
struct cudnn_sdpa {
	int64_t q_stride, k_stride, v_stride, k_head_stride, v_head_stride;
	int32_t batch, heads, kv_heads, len_q, len_kv, qk_dim, v_dim;	/* lengths: the largest */
	int32_t bf16, causal, window;
	/*
	 * 0: every request has len_q rows and len_kv keys, one request after the other; 1: the tensors of
	 * offsets and lengths say where the requests lie
	 */
	int32_t ragged;
	float scale;
};

/* Elements from one row to the next of a tensor that has offsets: SDPA_Q .. SDPA_DV. */
int64_t cairn_cudnn_row_stride(const struct cudnn_sdpa *s, int tensor);
void cairn_cudnn_sdpa(struct cudnn_graph *g, const struct cudnn_sdpa *s);
/*
 * heads must equal kv_heads: the library would round the gradients of a group's heads to 16 bits before
 * adding them.
 */
void cairn_cudnn_sdpa_bwd(struct cudnn_graph *g, const struct cudnn_sdpa *s);

#endif
