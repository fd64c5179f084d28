/* SPDX-License-Identifier: Apache-2.0 */
/* qkv_append_steps - the arguments of the three operations that qkv_append stands for */
#ifndef CAIRN_QKV_APPEND_STEPS_H
#define CAIRN_QKV_APPEND_STEPS_H

#include "fused/cache/kv_append.h"
#include "fused/qkv/qkv_append.h"
#include "primitives/gemm/gemm.h"
#include "primitives/rows/rope.h"

struct qkv_steps {
	struct cairn_gemm_args gemm;
	struct cairn_rope_args rope;
	struct cairn_kv_append_args append;
};

/* Returns the bytes of the packed rows of q, k and v. */
static inline size_t qkv_steps_bytes(const struct cairn_qkv_append_args *a)
{
	return (size_t)a->m * (size_t)cairn_qkv_append_n(a) * 2;
}

/* y: memory of qkv_steps_bytes(), 16-byte aligned, where the queries are at the end */
static inline struct qkv_steps qkv_steps_of(const struct cairn_qkv_append_args *a, void *y)
{
	const int32_t n = cairn_qkv_append_n(a);
	char *k = (char *)y + (size_t)a->num_qo_heads * (size_t)a->head_dim * 2;
	char *v = k + (size_t)a->num_kv_heads * (size_t)a->head_dim * 2;

	return (struct qkv_steps){
		.gemm = {
			.size = sizeof(struct cairn_gemm_args), .out = y, .a = a->a, .b = a->b,
			.bias = a->bias, .m = a->m, .n = n, .k = a->k, .dtype = a->dtype,
			.out_dtype = a->dtype,
		},
		.rope = {
			.size = sizeof(struct cairn_rope_args), .q = y, .k = k, .inv_freq = a->inv_freq,
			.positions = a->positions, .q_stride = n, .k_stride = n, .nnz = a->m,
			.num_qo_heads = a->num_qo_heads, .num_kv_heads = a->num_kv_heads,
			.head_dim = a->head_dim, .rotary_dim = a->head_dim, .dtype = a->dtype, .scale = 1,
		},
		.append = {
			.size = sizeof(struct cairn_kv_append_args), .k = k, .v = v,
			.qo_indptr = a->qo_indptr, .kv = a->kv, .k_stride = n, .v_stride = n,
			.nnz_qo = a->m, .num_kv_heads = a->num_kv_heads, .head_dim = a->head_dim,
			.dtype = a->dtype, .k_scale = a->k_scale, .v_scale = a->v_scale,
			.kv_fp8 = a->kv_fp8,
		},
	};
}

#endif
