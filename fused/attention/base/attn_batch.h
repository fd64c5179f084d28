/* SPDX-License-Identifier: Apache-2.0 */
/*
 * attn_batch - attention on the host over a batch of requests, for any layout of keys
 *
 * The references and the CPU tables of the attention families share this code. A family describes its call:
 * request b owns the query rows qo_indptr[b] .. qo_indptr[b+1]-1 and num_keys(args, b) keys in the order of
 * their positions; key() returns where each key lies. Masks, numerics and rows without a key are those of
 * attn_paged.h.
 */
#ifndef CAIRN_ATTN_BATCH_H
#define CAIRN_ATTN_BATCH_H

#include <stdint.h>

#include "fused/attention/base/attn_exact.h"

struct cairn_exact;
struct cairn_attn_dense_args;
struct cairn_attn_paged_args;

enum attn_operand { ATTN_Q, ATTN_K, ATTN_V };

struct attn_batch {
	const char *name;		/* of the family, in error texts */
	const void *q;			/* row i at element i * q_stride */
	void *out;			/* [rows, num_qo_heads, v_dim] */
	float *lse;			/* [rows, num_qo_heads], or NULL */
	const int32_t *qo_indptr;	/* [batch + 1] */
	int64_t q_stride;		/* never 0 */
	int32_t batch, num_qo_heads, num_kv_heads, qk_dim, v_dim;
	int32_t dtype, kv_fp8, causal, window;	/* kv_fp8: keys and values are e4m3 */
	float sm_scale, softcap;
	const float *k_scale, *v_scale;	/* [num_kv_heads] scales of keys and values; NULL: 1 */
	int32_t merges;			/* attn_exact.h */
	int32_t head_step;		/* n > 1: with exact, every nth KV head and the last are computed */
	const void *args;		/* passed to the functions below */
	int32_t (*num_keys)(const void *args, int32_t b);
	/* ignored in the result: k_scale and v_scale, since the batch has its own */
	struct attn_key (*key)(const void *args, int32_t b, int32_t j, int32_t kv_head);
	/*
	 * These two functions replace q and key() if the operands are not of dtype; else both are NULL.
	 * load() sets x to row j of request b of an operand; head is a query head for ATTN_Q, else a KV head.
	 * exact_row() sets the results of row i of request b, head h, which sees the first n keys.
	 */
	void (*load)(const void *args, enum attn_operand operand, int32_t b, int32_t j, int32_t head,
		     float *x);
	void (*exact_row)(const void *args, int32_t b, int32_t i, int32_t h, int32_t n,
			  struct attn_exact_row *r);
};

/* Describe the calls of two families. The arguments must outlive the result. */
struct attn_batch attn_paged_batch(const struct cairn_attn_paged_args *a);
struct attn_batch attn_dense_batch(const struct cairn_attn_dense_args *a);

/*
 * Computes one row after the other, in double. If exact is NULL, writes the rounded results to out and lse;
 * otherwise sets the values and bounds of exact[0] for out and of exact[1] for lse (if not NULL). Rows past
 * qo_indptr[batch] keep their values. With exact and more than 2^30 products in q.k, it computes only a fixed
 * sample of the rows. Rows and heads that it leaves out have an infinite bound.
 */
int attn_batch_exact(const struct attn_batch *b, struct cairn_exact *exact);
/* Returns whether attn_batch_exact() computes the rows of a KV head, which head_step may leave out. */
int attn_batch_has_head(const struct attn_batch *b, int kv_head);
/* Computes in fp32, by online softmax, on all cores. A row's bits depend on its own request only. */
void attn_batch_cpu(const struct attn_batch *b);

#endif
