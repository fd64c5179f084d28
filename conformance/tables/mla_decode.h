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
 *   kv                struct cairn_kv_view                     in, kv_view.h; k_pages: latents of 576
 *   workspace                [workspace_bytes]                 256-byte aligned, contents undefined
 *
 * Pointers of dtype are 16-byte aligned, q_rope_stride a multiple of 8.
 *
 * Supported:   dtype f16, bf16; num_heads 1..128; kv.batch 0..16; any page_size.
 * Numerics:    products exact, sums in fp32, P rounded to dtype, out rounded once. kv_len 0 gives zeros.
 * Determinism: bitwise repeatable; the grouping of sums depends on kv.batch, num_heads, kv.max_len and the
 *              device.
 * Errors:      -EIO. The arguments are not checked.
 */
#ifndef CAIRN_MLA_DECODE_H
#define CAIRN_MLA_DECODE_H

#include <stddef.h>
#include <stdint.h>

#include "fused/cache/kv_view.h"

struct mla_decode_args {
	void *out;
	const void *q_latent, *q_rope;
	struct cairn_kv_view kv;
	void *workspace;
	int64_t q_rope_stride;		/* elements */
	int32_t num_heads, dtype;
	float sm_scale;
};

#ifdef __cplusplus
extern "C" {
#endif

int mla_decode(const struct mla_decode_args *args, void *stream);
/* Reads only kv.batch, kv.max_len and num_heads. */
int mla_decode_workspace(const struct mla_decode_args *args, size_t *bytes);

#ifdef __cplusplus
}
#endif
#endif
