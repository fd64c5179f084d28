// SPDX-License-Identifier: Apache-2.0
/* attn_dense_ref - the reference: attn_batch_exact.c over rows of K and V */
#include "fused/attention/dense/attn_dense.h"

#include "primitives/base/dtype.h"
#include "primitives/base/error.h"
#include "fused/attention/base/attn_batch.h"

static int32_t num_keys(const void *args, int32_t b)
{
	const struct cairn_attn_dense_args *a = args;

	return a->kv_indptr[b + 1] - a->kv_indptr[b];
}

static struct attn_key key(const void *args, int32_t b, int32_t j, int32_t kv_head)
{
	const struct cairn_attn_dense_args *a = args;
	int64_t bytes = (int64_t)cairn_dtype_bytes(a->dtype), row = (int64_t)a->kv_indptr[b] + j;
	int64_t k = row * cairn_attn_dense_k_stride(a) + kv_head * cairn_attn_dense_k_head_stride(a);
	int64_t v = row * cairn_attn_dense_v_stride(a) + kv_head * cairn_attn_dense_v_head_stride(a);

	return (struct attn_key){
		.k = (const char *)a->k + k * bytes, .v = (const char *)a->v + v * bytes,
		.k_scale = 1, .v_scale = 1,
	};
}

struct attn_batch attn_dense_batch(const struct cairn_attn_dense_args *a)
{
	return (struct attn_batch){
		.name = "attn_dense", .q = a->q, .out = a->out, .lse = a->lse, .qo_indptr = a->qo_indptr,
		.q_stride = cairn_attn_dense_q_stride(a), .batch = a->batch,
		.num_qo_heads = a->num_qo_heads, .num_kv_heads = a->num_kv_heads,
		.qk_dim = a->qk_dim, .v_dim = a->v_dim, .dtype = a->dtype, .causal = a->causal,
		.window = a->window, .sm_scale = a->sm_scale, .softcap = a->softcap,
		.args = a, .num_keys = num_keys, .key = key,
	};
}

int cairn_attn_dense_ref(const struct cairn_attn_dense_args *a, void *stream)
{
	struct attn_batch b;

	(void)stream;
	CAIRN_TRY(cairn_attn_dense_check(a));
	b = attn_dense_batch(a);
	return attn_batch_exact(&b, NULL);
}

int cairn_attn_dense_exact(const struct cairn_attn_dense_args *a, struct cairn_exact *exact)
{
	struct attn_batch b;

	CAIRN_TRY(cairn_attn_dense_check(a));
	b = attn_dense_batch(a);
	return attn_batch_exact(&b, exact);
}
