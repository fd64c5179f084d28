/* SPDX-License-Identifier: Apache-2.0 */
/*
 * attn_standard - standard attention: a product, a softmax and a second product, with S and P in memory
 *
 * This is how table "unfused" computes attn_dense. For each request it computes S = q k^T of all heads by
 * cuBLASLt, P = softmax(S) by one kernel, and P v by cuBLASLt. S is fp32, because S in dtype would exceed the
 * tolerance of attn_dense.h; P has dtype.
 *
 * Supported:  requests of equal lengths (nnz_qo = batch * max_qo_len, nnz_kv = batch * max_kv_len),
 *             num_kv_heads = num_qo_heads, max_kv_len a multiple of 8 and at most ATTN_STANDARD_KEYS, no
 *             window, no softcap, all SMs, and S of a request of at most 4 GiB; anything else -EOPNOTSUPP.
 *             A call outside of a capture reads both indptr and returns -EOPNOTSUPP if the lengths differ.
 * A call allocates and synchronises as cairn_gemm_trial() does.
 */
#ifndef CAIRN_ATTN_STANDARD_H
#define CAIRN_ATTN_STANDARD_H

#include "fused/attention/dense/attn_dense.h"
#include "primitives/gemm/gemm_lt.h"

#define ATTN_STANDARD_KEYS	16384

/* One softmax over the rows of all heads of a request. Row i of head h is row h * rows + i of s and p. */
struct attn_softmax_args {
	void *p;			/* dtype [heads, rows, keys] */
	float *lse;			/* row i, head h at i * heads + h; NULL: not wanted */
	const float *s;			/* [heads, rows, keys], not scaled */
	int32_t heads, rows, keys;
	int32_t dtype, causal;		/* causal: as in attn_dense.h */
	float sm_scale;
};

#ifdef __cplusplus
extern "C" {
#endif

int attn_standard(const struct cairn_attn_dense_args *args,
		  int (*product)(const char *name, const struct cairn_gemm_lt *p, void *stream),
		  void *stream);
int attn_standard_workspace(const struct cairn_attn_dense_args *args, size_t *bytes);
int attn_softmax(const struct attn_softmax_args *args, void *stream);

#ifdef __cplusplus
}
#endif
#endif
