/* SPDX-License-Identifier: Apache-2.0 */
/*
 * attn_merge - merges partial results of attention: splits of the keys, shared prefixes, steps of a ring
 *
 *   out[i,h,:]   = sum_s w[s] * o[s,i,h,:] / sum_s w[s],   w[s] = exp(lse[s,i,h] - max)
 *   lse_out[i,h] = max + ln sum_s w[s],                    max  = max_s lse[s,i,h]
 *
 * A state is the out and lse that attn_paged writes for some of the keys. Merging the states of disjoint sets
 * of keys gives the state of their union, so merges can be nested.
 *
 *   argument  dtype      shape                                    notes
 *   out       out_dtype  [rows, num_heads, head_dim]              out, 16-byte aligned
 *   lse_out   f32        [rows, num_heads]                        out, optional (NULL)
 *   o         dtype      [num_states, rows, num_heads, head_dim]  in, strides below, 16-byte aligned
 *   lse       f32        [num_states, rows, num_heads]            in, state s at s * lse_stride
 *   counts    int32      [rows]                                   in, optional (NULL): states of a row
 *   sink      f32        [num_heads]                              in, optional (NULL): attention sinks
 *   q         dtype      [rows, num_heads, head_dim]              in, optional (NULL): with own keys
 *   k, v      dtype      [rows, num_kv_heads, head_dim]           in, with q; all three 16-byte aligned
 *
 * o[s,i,h,0] lies at element s * state_stride + i * row_stride + h * head_stride, so states need no copy.
 * A stride of 0 means packed: head_dim, num_heads * head_stride, rows * row_stride; lse_stride 0 means
 * rows * num_heads. Other strides of o are multiples of 8 and at least head_dim; another lse_stride is at
 * least rows * num_heads. Row i of q lies at element i * q_stride, row i of k and v at i * kv_stride; 0 means
 * packed, other values are multiples of 8 and at least the length of a row.
 *
 * Used states: row i uses its first counts[i] states, clamped to 0..num_states; without counts it uses all. A
 *              state with lse -INFINITY saw no key and has no weight. A state whose lse - max, rounded to
 *              fp32, is below CAIRN_ATTN_MERGE_CUTOFF has no weight either. o of a state without weight and
 *              lse of states past counts may hold NaN, but the memory of all num_states states must be
 *              readable.
 * Sinks:       sink[h] is the logit of a key whose value is 0 and which every row of head h sees. It acts as
 *              one more state behind the others, with lse sink[h] and o 0, whatever counts says: max covers
 *              it, and its weight enters both sums of weights, so lse_out contains it. With num_states 1 the
 *              operation adds sinks to finished attention. Where states are merged several times, only one of
 *              the merges may have sinks. `sink` was added later: a caller whose `size` ends before it has
 *              none.
 * Own keys:    a row of a decoding pass also sees its own key, which may be in none of the states. With q,
 *              each row and head has one more state, behind the others and before the sink, whatever counts
 *              says: its o is v[i,g,:] and its lse the logit x = sm_scale * dot(q[i,h,:], k[i,g,:]), or,
 *              with a softcap, softcap * tanh(x / softcap); g = h / (num_heads / num_kv_heads). Products are
 *              exact, sums are in fp32, in any order, and the absolute error of tanh is at most 4 * 2^-23.
 *              The sum of |q k|, before and after the scale, must fit fp32. A row's q, k and v are used for
 *              that row only, so padding rows may hold anything, but the memory of every row must be
 *              readable. sm_scale is finite and > 0; softcap is finite and >= 0 (0: none). The members from q
 *              on were added last: a caller whose `size` ends before q has none of them.
 * Supported:   dtype and out_dtype f32, f16, bf16, in any combination; head_dim a multiple of 8, 8..512;
 *              num_states 1..64; rows * num_heads below 2^31. With q: dtype f16 or bf16, head_dim up to 256,
 *              num_heads a multiple of num_kv_heads. Anything else -EOPNOTSUPP. rows 0 is legal and does
 *              nothing.
 * In place:    out may be o, that is, state 0, if both dtypes agree, state 0 is packed and state_stride is at
 *              least rows * num_heads * head_dim (or num_states is 1); lse_out may be lse. No other overlap.
 * Numerics:    fp32, states added in increasing order of s, one rounding at the end. exp(0) is 1: if only one
 *              state has weight, out is that state rounded to out_dtype and lse_out its lse, exactly (an own
 *              key's lse as computed). If no state has weight, out is 0 and lse_out -INFINITY. If lse of a
 *              used state, that of the own key, or a sink, is NaN or +INFINITY, out and lse_out of that row
 *              and head are NaN. A state that lies as near to the cut-off as the error of the own key's lse
 *              may or may not have weight. An infinity or a NaN in o of a state with weight gives what the
 *              formula gives in IEEE arithmetic. num_states * max |o| must fit fp32. A zero of out keeps its
 *              sign if only one state, not a sink, has weight; other zeros, and lse_out 0, may have either
 *              sign.
 * Tolerance:   derived in attn_merge_ref.c: |error of out| is about (4 |lse - max| + n + 9) 2^-24 of
 *              sum_s p[s] |o[s]|, p = w / sum w, plus one rounding to out_dtype. With q, the error of the own
 *              key's lse is added, at most about head_dim * 2^-24 * sm_scale * sum |q k|, times its
 *              p (|v| + |out|).
 * Determinism: bitwise repeatable. The bits of a row and head depend on its own states, sink, q, k and v
 *              only.
 * Stream:      asynchronous, no workspace. A captured graph reads counts again at each launch.
 * Errors:      -EINVAL (null pointer, misaligned, bad size, stride or overlap), -EOPNOTSUPP, -EIO.
 * Source:      Dao et al. 2022 (FlashAttention), section 3.1; Ye et al. 2025 (FlashInfer), section 2.2;
 *              transformers' GptOssAttention (learned sinks).
 */
#ifndef CAIRN_ATTN_MERGE_H
#define CAIRN_ATTN_MERGE_H

#include <stddef.h>
#include <stdint.h>

#define CAIRN_ATTN_MERGE_STATES	64
/* exp(CAIRN_ATTN_MERGE_CUTOFF) is still a normal number in fp32 */
#define CAIRN_ATTN_MERGE_CUTOFF	(-87.0f)

struct cairn_exact;

struct cairn_attn_merge_args {
	size_t size;
	void *out;
	float *lse_out;
	const void *o;
	const float *lse;
	const int32_t *counts;
	int64_t state_stride, row_stride, head_stride, lse_stride;
	int32_t num_states, rows, num_heads, head_dim;
	int32_t dtype, out_dtype;
	const float *sink;		/* a later member: NULL if `size` ends before it */
	const void *q, *k, *v;		/* these and all others are still later: 0 if `size` ends before q */
	int64_t q_stride, kv_stride;
	int32_t num_kv_heads;
	float sm_scale, softcap;
	int32_t reserved;		/* 0 */
};

/* the `size` that callers from before `sink`, and from before q, pass */
#define CAIRN_ATTN_MERGE_FIRST_BYTES	offsetof(struct cairn_attn_merge_args, sink)
#define CAIRN_ATTN_MERGE_SECOND_BYTES	offsetof(struct cairn_attn_merge_args, q)
/* the largest head_dim with q */
#define CAIRN_ATTN_MERGE_OWN_DIM	256

#ifdef __cplusplus
extern "C" {
#endif

int cairn_attn_merge(const struct cairn_attn_merge_args *args, void *stream);
int cairn_attn_merge_cpu(const struct cairn_attn_merge_args *args, void *stream);
int cairn_attn_merge_ref(const struct cairn_attn_merge_args *args, void *stream);
/* Sets exact[0] for out and exact[1] for lse_out (if not NULL). */
int cairn_attn_merge_exact(const struct cairn_attn_merge_args *args, struct cairn_exact *exact);
/* Returns 0, or the error that all of our tables return for these arguments; reads no array. */
int cairn_attn_merge_check(const struct cairn_attn_merge_args *args);
/* Returns checked arguments with every stride of 0 replaced by its packed value, and all members present. */
struct cairn_attn_merge_args cairn_attn_merge_strides(const struct cairn_attn_merge_args *args);

#ifdef __cplusplus
}
#endif
#endif
