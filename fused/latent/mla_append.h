/* SPDX-License-Identifier: Apache-2.0 */
/*
 * mla_append - adds new tokens to a cache of latents (cluster_mla.h), and rotates their queries
 *
 *   c            = latent[i,:kv_lora_rank] / sqrt(mean of its squares + eps) * norm_weight      (rmsnorm.h)
 *   r            = latent[i,kv_lora_rank:] rotated by positions[i]                     (rope.h, interleaved)
 *   cache        : (c, r) becomes the key of row i, whose number and slot are those of kv_append.h
 *   q[i,h,nope_dim:] is rotated in place by positions[i]
 *
 *   argument          dtype  shape                                             notes
 *   q                 dtype  [nnz_qo, num_heads, nope_dim + rope_dim]          in and out
 *   latent            dtype  [nnz_qo, kv_lora_rank + rope_dim]                 in
 *   norm_weight       dtype  [kv_lora_rank]                                    in
 *   inv_freq          f32    [rope_dim / 2]                                    in
 *   positions         int32  [nnz_qo]                                          in, >= 0
 *   qo_indptr         int32  [kv.batch + 1]                                    as in kv_append.h
 *   kv                struct cairn_kv_view                                     as in kv_append.h
 *     k_pages         dtype  [num_pages, page_size, kv_lora_rank + rope_dim]   out (new rows only), unless
 *                                                                              kv_fp8
 *     k_pages         bytes  [num_pages, page_size, 656]                       out (new rows only), if kv_fp8
 *     v_pages                                                                  NULL
 *
 * The call serves prompts and decoding alike. Arrays are row-major without gaps; pointers of dtype are
 * 16-byte aligned. nnz_qo is an upper bound: rows past qo_indptr[kv.batch] are not written. The preconditions
 * that kv_append.h does not check are not checked here, either.
 *
 * kv_fp8: a key has the 656 bytes that mla_decode.h describes. r is stored in dtype. c, before it is rounded
 * to dtype, is stored as codes and scales, in four groups of 128 elements:
 *
 *   max   = the largest |c| of the group among its elements that are finite
 *   scale = max / 448, rounded to f32; 1 if max < 2^-100
 *   code  = c / scale, rounded to f32, then to e4m3, both to nearest even, at most 448 in magnitude; 0x7f if
 *           c is not finite
 *
 * Supported:   dtype f16, bf16; kv_lora_rank a multiple of 64, 64..1024; rope_dim and nope_dim multiples of
 *              16, rope_dim 16..256, nope_dim 0..1024; any page_size >= 1; kv_fp8 0, or 1 with kv_lora_rank
 *              512 and rope_dim 64. Anything else -EOPNOTSUPP. kv.batch 0 and nnz_qo 0 do nothing.
 * Numerics:    as in rmsnorm.h and rope.h, each result rounded once. eps is as there. A NaN in the first
 *              kv_lora_rank elements of a row of latent makes the row's c NaN; a NaN in the other elements
 *              makes only its own pair of r NaN. A NaN in q makes only its own pair NaN.
 * Tolerance:   as in rmsnorm.h and rope.h (mla_append_ref.c). With kv_fp8, scales and codes follow from c,
 *              which has the error of rmsnorm.h in f32: a scale may be off by as much, and a code by as much
 *              plus half the distance between two codes (mla_append_fp8_test.h).
 * Determinism: bitwise repeatable; a row does not depend on the other rows.
 * Weights:     norm_weight and inv_freq are constant, as b in gemm.h ("Constant b").
 * Errors:      -EINVAL, -EOPNOTSUPP, -EIO.
 * Source:      DeepSeek-V2 2024, section 2.1.
 */
#ifndef CAIRN_MLA_APPEND_H
#define CAIRN_MLA_APPEND_H

#include <stddef.h>
#include <stdint.h>

#include "fused/cache/kv_view.h"

#define CAIRN_MLA_APPEND_LEAST	0x1p-100f	/* groups with a smaller maximum have scale 1 */

struct cairn_exact;

struct cairn_mla_append_args {
	size_t size;
	void *q;
	const void *latent, *norm_weight;
	const float *inv_freq;
	const int32_t *positions, *qo_indptr;
	struct cairn_kv_view kv;
	int32_t nnz_qo;
	int32_t num_heads, kv_lora_rank, nope_dim, rope_dim;
	int32_t dtype;
	float eps;
	int32_t kv_fp8;			/* 1: keys of 656 bytes */
};

#ifdef __cplusplus
extern "C" {
#endif

int cairn_mla_append(const struct cairn_mla_append_args *args, void *stream);
int cairn_mla_append_cpu(const struct cairn_mla_append_args *args, void *stream);
int cairn_mla_append_ref(const struct cairn_mla_append_args *args, void *stream);
/*
 * Sets exact[0] for q and exact[1] for kv.k_pages; entries that are not written keep their values. With
 * kv_fp8 the bytes of new keys get no bound.
 */
int cairn_mla_append_exact(const struct cairn_mla_append_args *args, struct cairn_exact *exact);
/* Returns 0, or the error that all of our tables return for these arguments; reads no array. */
int cairn_mla_append_check(const struct cairn_mla_append_args *args);

#ifdef __cplusplus
}
#endif
#endif
