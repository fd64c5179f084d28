// SPDX-License-Identifier: Apache-2.0
/* attn_paged_ref - the reference: attn_batch_exact.c over the page walk */
#include "fused/attention/paged/attn_paged.h"

#include "primitives/base/dtype.h"
#include "primitives/base/error.h"
#include "fused/attention/base/attn_batch.h"

static int32_t num_keys(const void *args, int32_t b)
{
	const struct cairn_attn_paged_args *a = args;

	return (int32_t)cairn_kv_len(&a->kv, b);
}

static struct attn_key key(const void *args, int32_t b, int32_t j, int32_t kv_head)
{
	const struct cairn_attn_paged_args *a = args;
	int64_t at = (cairn_kv_slot(&a->kv, b, j) * a->num_kv_heads + kv_head) * a->head_dim;
	size_t bytes = (size_t)at * (a->kv_fp8 ? 1 : cairn_dtype_bytes(a->dtype));

	return (struct attn_key){
		.k = (const char *)a->kv.k_pages + bytes, .v = (const char *)a->kv.v_pages + bytes,
	};
}

struct attn_batch attn_paged_batch(const struct cairn_attn_paged_args *a)
{
	return (struct attn_batch){
		.name = "attn_paged", .q = a->q, .out = a->out, .lse = a->lse, .qo_indptr = a->qo_indptr,
		.q_stride = a->q_stride ? a->q_stride : (int64_t)a->num_qo_heads * a->head_dim,
		.batch = a->kv.batch, .num_qo_heads = a->num_qo_heads, .num_kv_heads = a->num_kv_heads,
		.qk_dim = a->head_dim, .v_dim = a->head_dim, .dtype = a->dtype, .kv_fp8 = a->kv_fp8,
		.causal = a->causal, .window = a->window, .sm_scale = a->sm_scale, .softcap = a->softcap,
		.k_scale = a->k_scale, .v_scale = a->v_scale,
		.args = a, .num_keys = num_keys, .key = key,
	};
}

int cairn_attn_paged_ref(const struct cairn_attn_paged_args *a, void *stream)
{
	struct attn_batch b;

	(void)stream;
	CAIRN_TRY(cairn_attn_paged_check(a));
	b = attn_paged_batch(a);
	return attn_batch_exact(&b, NULL);
}

int cairn_attn_paged_exact(const struct cairn_attn_paged_args *a, struct cairn_exact *exact)
{
	struct attn_batch b;

	CAIRN_TRY(cairn_attn_paged_check(a));
	b = attn_paged_batch(a);
	return attn_batch_exact(&b, exact);
}
