/* SPDX-License-Identifier: Apache-2.0 */
/*
 * attn_variant - attention over contiguous keys, changed by a few lines of C that the caller supplies
 *
 *   s[j] = sm_scale * dot(q'[i,h,:], k'[j,g,:]) + head_slope() * (j - position of i),   z[j] = logit(s[j])
 *   p    = softmax_j(z[j]), over the keys that the row sees and the row's sink
 *   out  = output(sum_j p[j] * v[j,g,:]),   lse = ln (sum_j exp(z[j]) + exp(sink))
 *
 * Requests, positions, causal, layouts, strides, bounds and rows are those of attn_dense.h. A variant is a
 * text in C with any of these hooks (attn_variant_text.h has struct attn_x and a few functions for them):
 *
 *   real head_slope(const struct attn_x *x)               the slope of a query head; called once a row
 *   real logit(const struct attn_x *x, real s)            z of a logit s
 *   real logit_cap(const struct attn_x *x)                c > 0 bends z to c tanh(z / c); called once a row
 *   int  keep(const struct attn_x *x)                     whether the query sees the key
 *   void range(const struct attn_x *x, int *lo, int *hi)  narrows the keys *lo .. *hi - 1 of a query, as
 *                                                         causal leaves them. Neither bound may be lower
 *                                                         for a later query of the request, nor depend on
 *                                                         the head. Key tiles outside are not fetched.
 *   void query(const struct attn_x *x, real *a, real *b, int pair)   rotates a pair of elements of q into
 *   void key(const struct attn_x *x, real *a, real *b, int pair)     q', of k into k'
 *   real sink(const struct attn_x *x)                     a logit without a value; -infinity: none
 *   real weight(const struct attn_x *x, real s)           p[j] = weight(z[j]): no softmax, no lse
 *   real output(const struct attn_x *x, real o, int c)    element c of out
 *
 * A hook that a text lacks changes nothing. `real` is float in kernels, double in the reference. Hooks must
 * be pure, and logit and weight must be smooth. They are also called for keys that the row does not see;
 * these results are not used. Pair n has elements n and n + head_dim / 2 or, if interleaved, 2 n and 2 n + 1.
 *
 * The built-in variants of `variant`:
 *   CAIRN_VARIANT_PLAIN    a window of p[0] keys, the row's own included (0: none), and sinks t[0]
 *                          [num_qo_heads] (NULL: none)
 *   CAIRN_VARIANT_ROPE     q and k rotated by the angle position * t[0][pair], t[0] [head_dim / 2]; the
 *                          angle is the fp32 product, at most 2^20
 *   CAIRN_VARIANT_ALIBI    s + t[0][head] * (k_pos - q_pos), t[0] [num_qo_heads]
 *   CAIRN_VARIANT_SOFTCAP  p[0] * tanh(s / p[0]), p[0] > 0
 *   CAIRN_VARIANT_SIGMOID  weights 1 / (1 + exp(-(s + p[0])))
 *   CAIRN_VARIANT_BITS     bit k_pos of line `row` of t[0], which has p[0] words of 32 bits for each row of
 *                          q, least significant bit first
 * Other values are those that cairn_attn_variant_create() gave for a text.
 *
 *   argument          dtype  shape                              notes
 *   out               dtype  [nnz_qo, num_qo_heads, head_dim]   out, may not alias an input
 *   lse               f32    [nnz_qo, num_qo_heads]             out, optional (NULL); with weight() NULL
 *   q, k, v                                                     in, as in attn_dense.h
 *   t                 f32    4 arrays                           in, each optional, 4-byte aligned
 *   qo_indptr, kv_indptr                                        in, as in attn_dense.h
 *   workspace                [workspace_bytes]                  256-byte aligned; with few rows and many
 *                                                               keys, holds results of slices of the keys,
 *                                                               in fp32; with key(), also a copy of K, but
 *                                                               not if there are slices and max_qo_len, times
 *                                                               the query heads of a KV head rounded up to a
 *                                                               power of two, is at most 64
 *
 * Supported:   dtype f16, bf16; head_dim 64, 128; num_qo_heads any multiple of num_kv_heads; sm_scale from
 *              2^-64.
 *              batch 0 and nnz_qo 0 are legal and do nothing.
 * Numerics:    as in attn_paged.h. q' and k' are rounded to dtype, like the output of rope.h; so are the p[j]
 *              of weight(), which must be numbers of dtype. Hooks compute in fp32.
 * Tolerance:   attn_variant_ref.c. The reference evaluates a hook on both sides of a logit to find how much
 *              the hook amplifies its error.
 * Rows without a key: out is output(0), and lse the sink or -infinity.
 * Determinism: bitwise repeatable for equal arguments. A row's result depends on its own request only, but
 *              the grouping of its sums may depend on batch, max_qo_len, max_kv_len and sms.
 * Unused memory: as in attn_dense.h, where range() takes the place of the window. Keys that keep() hides must
 *              be numbers.
 * Errors:      -EINVAL, -EOPNOTSUPP (dims, dtype; a variant that this table does not have, or that was not
 *              compiled for these dimensions), -EIO.
 * Source:      Ye et al. 2025 (FlashInfer), section 3.2.3; Dong et al. 2024 (FlexAttention); Su et al. 2021
 *              (rotation); Press et al. 2022 (ALiBi); Xiao et al. 2024 (sinks); Ramapuram et al. 2024
 *              (sigmoid).
 */
#ifndef CAIRN_ATTN_VARIANT_H
#define CAIRN_ATTN_VARIANT_H

#include <stddef.h>
#include <stdint.h>

#include "fused/attention/dense/attn_dense.h"

struct cairn_exact;

enum cairn_attn_variant {
	CAIRN_VARIANT_PLAIN, CAIRN_VARIANT_ROPE, CAIRN_VARIANT_ALIBI, CAIRN_VARIANT_SOFTCAP,
	CAIRN_VARIANT_SIGMOID, CAIRN_VARIANT_BITS,
	CAIRN_VARIANT_BUILT_IN		/* number of built-in variants */
};

struct cairn_attn_variant_args {
	size_t size;
	void *out;
	float *lse;
	const void *q, *k, *v;
	const float *t[4];
	const int32_t *qo_indptr, *kv_indptr;
	void *workspace;
	size_t workspace_bytes;
	int64_t q_stride, k_stride, v_stride;
	int64_t k_head_stride, v_head_stride;
	int32_t batch, nnz_qo, nnz_kv, max_qo_len, max_kv_len;
	int32_t num_qo_heads, num_kv_heads, head_dim;
	int32_t dtype, causal;
	float sm_scale;
	int32_t sms;			/* SMs that the call may use at a time; 0: all */
	int32_t variant, interleaved;
	float p[8];			/* finite */
};

#ifdef __cplusplus
extern "C" {
#endif

int cairn_attn_variant(const struct cairn_attn_variant_args *args, void *stream);
int cairn_attn_variant_workspace(const struct cairn_attn_variant_args *args, size_t *bytes);
int cairn_attn_variant_cpu(const struct cairn_attn_variant_args *args, void *stream);
int cairn_attn_variant_ref(const struct cairn_attn_variant_args *args, void *stream);
/* Sets exact[0] for out and exact[1] for lse (if not NULL), as cairn_attn_paged_exact(). */
int cairn_attn_variant_exact(const struct cairn_attn_variant_args *args, struct cairn_exact *exact);
/* Returns 0, or the error that all of our tables return for these arguments; reads no array. */
int cairn_attn_variant_check(const struct cairn_attn_variant_args *args);
/* The part of cairn_attn_variant_check() that reads only the scalars, for workspace queries. */
int cairn_attn_variant_check_shape(const struct cairn_attn_variant_args *args);
/* Returns the call of attn_dense with the same members. Without a hook, both calls give the same results. */
struct cairn_attn_dense_args attn_variant_as_dense(const struct cairn_attn_variant_args *args);

#ifdef __cplusplus
}
#endif
#endif
