/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kv_append - writes new keys and values into a paged KV cache
 *
 * Request b owns the rows qo_indptr[b] .. qo_indptr[b+1]-1 and, after the append, the kv_len[b] keys of
 * kv_view.h. Its i-th new row becomes key kv_len - qo_len + i.
 *
 *   argument          dtype  shape                                           notes
 *   k, v              dtype  [nnz_qo, num_kv_heads, head_dim]                in, row i at i * stride
 *   qo_indptr         int32  [kv.batch + 1]                                  in, ascending from 0
 *   kv                struct cairn_kv_view                                   in, kv_view.h; max_len ignored
 *     k_pages, v_pages  of dtype, or e4m3 with kv_fp8                        out (new rows only)
 *   k_scale, v_scale  f32    [num_kv_heads]                                  in, optional (1), > 0, finite;
 *                                                                            with kv_fp8
 *
 * k, v and the pages are 16-byte aligned. Strides are in elements, multiples of 8 and at least
 * num_kv_heads * head_dim; 0 means exactly num_kv_heads * head_dim. nnz_qo is an upper bound: rows past
 * qo_indptr[kv.batch] are ignored, so a captured graph also serves smaller batches. Not checked: the contents
 * of the index arrays; qo_len <= kv_len; that no slot is written twice (page ids may repeat as long as only
 * old keys are shared).
 *
 * Supported:   dtype f16, bf16, f32; head_dim a multiple of 8; any page_size >= 1; kv_fp8 0 or 1. Anything
 *              else -EOPNOTSUPP. kv.batch 0 and nnz_qo 0 are legal and do nothing.
 * Numerics:    an exact copy of all bits, signalling NaNs and payloads included; nothing else in the pages
 *              is read or changed. Elements between the rows of k or v never affect a result, and there may
 *              be no memory after the last row. With kv_fp8, element x of head g becomes the code of x /
 *              k_scale[g] or x / v_scale[g]: the quotient is rounded to fp32, then to e4m3, both to nearest
 *              even. The sign of a zero is kept, magnitudes above 448 and infinities become 448, and a NaN
 *              becomes 0x7f.
 * Determinism: bitwise repeatable.
 * Errors:      -EINVAL (null pointer, misaligned, negative or contradictory size), -EOPNOTSUPP, -EIO.
 */
#ifndef CAIRN_KV_APPEND_H
#define CAIRN_KV_APPEND_H

#include <stddef.h>
#include <stdint.h>

#include "fused/cache/kv_view.h"

struct cairn_exact;

struct cairn_kv_append_args {
	size_t size;
	const void *k, *v;
	const int32_t *qo_indptr;
	struct cairn_kv_view kv;
	int64_t k_stride, v_stride;
	int32_t nnz_qo, num_kv_heads, head_dim;
	int32_t dtype;			/* of k and v */
	const float *k_scale, *v_scale;
	int32_t kv_fp8;			/* 1: the pages hold e4m3 */
};

#ifdef __cplusplus
extern "C" {
#endif

int cairn_kv_append(const struct cairn_kv_append_args *args, void *stream);
int cairn_kv_append_cpu(const struct cairn_kv_append_args *args, void *stream);
int cairn_kv_append_ref(const struct cairn_kv_append_args *args, void *stream);
/*
 * exact[0]: kv.k_pages, exact[1]: kv.v_pages, with kv_fp8 as numbers of codes. Entries of slots that are not
 * written keep their values.
 */
int cairn_kv_append_exact(const struct cairn_kv_append_args *args, struct cairn_exact *exact);
/* Returns 0, or the error that all of our tables return for these arguments; reads no array. */
int cairn_kv_append_check(const struct cairn_kv_append_args *args);

#ifdef __cplusplus
}
#endif
#endif
