/* SPDX-License-Identifier: Apache-2.0 */
/*
 * mla_decode - attention of absorbed queries over a paged latent cache, one token for each request
 *
 *   s[h,j]    = sm_scale * (dot(q_latent[b,h], key[j,:512]) + dot(q_rope[b,h], key[j,512:])),  j < kv_len[b]
 *   out[b,h]  = sum_j softmax_j(s)[h,j] key[j,:512]
 *
 *   argument          dtype  shape                             notes
 *   out               dtype  [batch, num_heads, 512]           out, may not alias an input
 *   q_latent          dtype  [batch, num_heads, 512]           in
 *   q_rope            dtype  [batch, num_heads, 64]            in, row (b, h) is row b * num_heads + h, rows
 *                                                              are q_rope_stride apart
 *   pages             dtype  [num_pages, page_size, 576]       in
 *   kv_indptr, kv_indices, kv_last_page_len                    as in attn_paged.h
 *   workspace                [workspace_bytes]                 256-byte aligned, contents undefined
 *
 * Pointers of dtype are 16-byte aligned, q_rope_stride a multiple of 8. max_kv_len is an upper bound over the
 * batch.
 *
 * Supported:   dtype f16, bf16; num_heads 1..128; batch 0..16; any page_size.
 * Numerics:    products exact, sums in fp32, P rounded to dtype, out rounded once. kv_len 0 gives zeros.
 * Determinism: bitwise repeatable; the grouping of sums depends on batch, num_heads, max_kv_len and the
 *              device.
 * Errors:      -EIO. The arguments are not checked.
 */
#ifndef CAIRN_MLA_DECODE_H
#define CAIRN_MLA_DECODE_H

#include <stddef.h>
#include <stdint.h>

struct mla_decode_args {
	void *out;
	const void *q_latent, *q_rope, *pages;
	const int32_t *kv_indptr, *kv_indices, *kv_last_page_len;
	void *workspace;
	int64_t q_rope_stride;		/* elements */
	int32_t batch, max_kv_len, page_size, num_heads;
	int32_t dtype;
	float sm_scale;
};

#ifdef __cplusplus
extern "C" {
#endif

int mla_decode(const struct mla_decode_args *args, void *stream);
/* Reads only batch, max_kv_len and num_heads. */
int mla_decode_workspace(const struct mla_decode_args *args, size_t *bytes);

#ifdef __cplusplus
}
#endif
#endif
