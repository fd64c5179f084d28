/* SPDX-License-Identifier: Apache-2.0 */
/*
 * attn_quant - rotates q and k, and quantises q, k and v to e4m3 in the blocks that attn_fp8 reads
 *
 * A block is 128 rows of one head of one request, or fewer at the request's end; attn_fp8_blocks.h numbers
 * the blocks. Each block is computed in fp32, and every operation rounds to nearest even:
 *
 *   y      = the rows. Rows of q and k are rotated if signs is not NULL: element c of each row is negated
 *            where bit c of signs is 1; then, for b = 1, 2, 4, .. head_dim / 2 and every c with c & b == 0,
 *            y[c], y[c + b] = y[c] + y[c + b], y[c] - y[c + b]       (a Walsh-Hadamard transform)
 *   max    = the largest |y| of the block
 *   scale  = max * n, where n is 1 / 448 rounded, or 1 / (448 sqrt(head_dim)) rounded if the rows are rotated
 *   code   = y * (448 / max) as e4m3
 *
 * A block with max < 2^-100 has scale 1, and its codes are zeros with the signs of y. So code * scale
 * approximates the rotated row. The rotation is orthogonal and leaves q k unchanged, but it spreads an
 * outlier in one channel over all channels, so that the outlier alone no longer sets the scale of the block.
 * v is not rotated, because out would have to be rotated back.
 *
 *   argument   dtype  shape                                         notes
 *   q8         e4m3   [num_qo_heads, q_blocks, 128, head_dim]       out, one byte each
 *   k8         e4m3   [num_kv_heads, kv_blocks, 128, head_dim]      out
 *   v8         e4m3   [num_kv_heads, kv_blocks, head_dim, 128]      out, transposed; key j of a block lies at
 *                                                                   place attn_fp8_place(j)
 *   q_scale    f32    [num_qo_heads, q_blocks]                      out
 *   k_scale    f32    [num_kv_heads, kv_blocks]                     out
 *   v_scale    f32    [num_kv_heads, kv_blocks]                     out
 *   q          dtype  [nnz_qo, num_qo_heads, head_dim]              in, row i at i * q_stride
 *   k, v       dtype  [nnz_kv, num_kv_heads, head_dim]              in, row j, head g at j * k_stride +
 *                                                                   g * k_head_stride; v alike
 *   qo_indptr  int32  [batch + 1]                                   in, ascending from 0
 *   kv_indptr  int32  [batch + 1]                                   in, ascending from 0
 *   signs      uint8  [head_dim / 8]                                in, bit c % 8 of byte c / 8; NULL: q and
 *                                                                   k are not rotated
 *
 * q_blocks = nnz_qo / 128 + batch, kv_blocks = nnz_kv / 128 + batch (attn_fp8_blocks()). Rows of q8 and k8,
 * and places of v8, past a request's end in its last block are written as zeros. Blocks that belong to no
 * request are not written. q8, k8, v8, q, k and v are 16-byte aligned; strides are as in attn_dense.h. nnz_qo
 * and nnz_kv are upper bounds, and only the device reads the index arrays, as in attn_dense.h.
 *
 * Supported:   dtype f16, bf16; head_dim 64, 128; anything else -EOPNOTSUPP. batch 0 does nothing.
 * Numerics:    exact, as above: all implementations give the same bits. The code of a zero keeps its sign.
 * Not numbers: a block with a NaN, an infinity, or a y that overflows fp32 is undefined. Other blocks are
 *              unaffected.
 * Determinism: bitwise repeatable.
 * Unused memory: rows past the last request and gaps may hold NaN and never reach a result.
 * Errors:      -EINVAL (null pointer, misaligned, negative or contradictory size), -EOPNOTSUPP, -EIO.
 * Source:      Shah et al. 2024 (FlashAttention-3), section 3.3: block quantisation and incoherent
 *              processing. In the paper, q also has one scale for each row tile, but the forward kernel
 *              transposes v.
 */
#ifndef CAIRN_ATTN_QUANT_H
#define CAIRN_ATTN_QUANT_H

#include <stddef.h>
#include <stdint.h>

#include "fused/attention/fp8/attn_fp8_blocks.h"

struct cairn_exact;

#define ATTN_QUANT_MAX	448
#define ATTN_QUANT_LEAST 0x1p-100f	/* blocks with a smaller maximum count as zeros */

struct cairn_attn_quant_args {
	size_t size;
	uint8_t *q8, *k8, *v8;
	float *q_scale, *k_scale, *v_scale;
	const void *q, *k, *v;
	const int32_t *qo_indptr, *kv_indptr;
	const uint8_t *signs;
	int64_t q_stride, k_stride, v_stride;
	int64_t k_head_stride, v_head_stride;
	int32_t batch, nnz_qo, nnz_kv;
	int32_t num_qo_heads, num_kv_heads, head_dim;
	int32_t dtype;
};

#ifdef __cplusplus
extern "C" {
#endif

int cairn_attn_quant(const struct cairn_attn_quant_args *args, void *stream);
int cairn_attn_quant_cpu(const struct cairn_attn_quant_args *args, void *stream);
int cairn_attn_quant_ref(const struct cairn_attn_quant_args *args, void *stream);
/* Sets exact[0..5] for q8, k8, v8 (as bytes), q_scale, k_scale, v_scale. */
int cairn_attn_quant_exact(const struct cairn_attn_quant_args *args, struct cairn_exact *exact);
/* Returns 0, or the error that all of our tables return for these arguments; reads no array. */
int cairn_attn_quant_check(const struct cairn_attn_quant_args *args);

#ifdef __cplusplus
}
#endif

/* Returns n of the contract, the factor from a block's maximum to its scale. */
static inline float attn_quant_norm(int32_t head_dim, int rotated)
{
	double root = head_dim == 64 ? 8 : 11.313708498984761;	/* sqrt(128) */

	return (float)(1 / (ATTN_QUANT_MAX * (rotated ? root : 1)));
}

/* These return strides in elements, with 0 replaced by the value it stands for. */
static inline int64_t attn_quant_q_stride(const struct cairn_attn_quant_args *a)
{
	return a->q_stride ? a->q_stride : (int64_t)a->num_qo_heads * a->head_dim;
}

static inline int64_t attn_quant_k_head_stride(const struct cairn_attn_quant_args *a)
{
	return a->k_head_stride ? a->k_head_stride : a->head_dim;
}

static inline int64_t attn_quant_v_head_stride(const struct cairn_attn_quant_args *a)
{
	return a->v_head_stride ? a->v_head_stride : a->head_dim;
}

static inline int64_t attn_quant_k_stride(const struct cairn_attn_quant_args *a)
{
	return a->k_stride ? a->k_stride : a->num_kv_heads * attn_quant_k_head_stride(a);
}

static inline int64_t attn_quant_v_stride(const struct cairn_attn_quant_args *a)
{
	return a->v_stride ? a->v_stride : a->num_kv_heads * attn_quant_v_head_stride(a);
}

#endif
