/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cudnn_attn - attn_dense and attn_bwd by cuDNN, for the table of peers
 *
 * The contracts are those of attn_dense.h and attn_bwd.h, with these exceptions.
 *
 *   Not supported: softcap; sms below all of the device's SMs; calls without query rows or without keys; lse
 *   where max_qo_len is 1 (the library's may be NaN); gradients where heads share K and V (the library rounds
 *   each head's part to 16 bits before it adds those of a group, which our bound does not allow) or where
 *   qk_dim is 256 and v_dim between 64 and 192 (the library's dq and dk are wrong).
 *   Equal lengths: a large call in which nnz_qo is batch * max_qo_len and nnz_kv is batch * max_kv_len uses
 *   the library's graph for equal lengths, its fastest. Outside of a capture such a call reads the index
 *   arrays, and uses the graph for different lengths if they differ. A captured call uses the graph that the
 *   latest call of the shape used; it is then valid for these lengths only.
 *   First calls: the first call of a shape, or of its workspace query, makes plans, which takes a second and
 *   is refused in a capture. If the library lists several plans for a large shape, the first call runs each
 *   of them a few times on its own arguments, and the fastest is kept.
 *   Determinism: the gradients differ in their last bits from call to call, because the library adds dq in
 *   the order in which its CTAs finish.
 */
#ifndef CAIRN_CUDNN_ATTN_H
#define CAIRN_CUDNN_ATTN_H

#include "fused/attention/backward/attn_bwd.h"
#include "fused/attention/dense/attn_dense.h"

int cairn_attn_dense_cudnn(const struct cairn_attn_dense_args *args, void *stream);
int cairn_attn_dense_cudnn_workspace(const struct cairn_attn_dense_args *args, size_t *bytes);
int cairn_attn_bwd_cudnn(const struct cairn_attn_bwd_args *args, void *stream);
int cairn_attn_bwd_cudnn_workspace(const struct cairn_attn_bwd_args *args, size_t *bytes);

/* Writes the library's name and version: "cudnn 9.19.1". */
void cairn_cudnn_describe(char *text, size_t bytes);

#endif
