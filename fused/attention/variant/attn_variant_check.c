// SPDX-License-Identifier: Apache-2.0
/* attn_variant - argument checks shared by all of our tables */
#include "fused/attention/variant/attn_variant.h"

#include <math.h>

#include "fused/attention/variant/attn_variant_known.h"
#include "primitives/base/args.h"
#include "primitives/base/error.h"

struct cairn_attn_dense_args attn_variant_as_dense(const struct cairn_attn_variant_args *a)
{
	return (struct cairn_attn_dense_args){
		.size = sizeof(struct cairn_attn_dense_args), .out = a->out, .lse = a->lse, .q = a->q,
		.k = a->k, .v = a->v, .qo_indptr = a->qo_indptr, .kv_indptr = a->kv_indptr,
		.workspace = a->workspace, .workspace_bytes = a->workspace_bytes, .q_stride = a->q_stride,
		.k_stride = a->k_stride, .v_stride = a->v_stride, .k_head_stride = a->k_head_stride,
		.v_head_stride = a->v_head_stride, .batch = a->batch, .nnz_qo = a->nnz_qo,
		.nnz_kv = a->nnz_kv, .max_qo_len = a->max_qo_len, .max_kv_len = a->max_kv_len,
		.num_qo_heads = a->num_qo_heads, .num_kv_heads = a->num_kv_heads, .qk_dim = a->head_dim,
		.v_dim = a->head_dim, .dtype = a->dtype, .causal = a->causal, .sm_scale = a->sm_scale,
		.sms = a->sms,
	};
}

static int misaligned(const void *p, uintptr_t bytes)
{
	return (uintptr_t)p % bytes != 0;
}

int cairn_attn_variant_check_shape(const struct cairn_attn_variant_args *a)
{
	struct cairn_attn_dense_args dense;

	CAIRN_TRY(cairn_check_args(a, sizeof(*a), "attn_variant"));
	dense = attn_variant_as_dense(a);
	CAIRN_TRY(attn_dense_check_named(&dense, "attn_variant"));
	for (int i = 0; i < 8; i++)
		if (!isfinite(a->p[i]))
			return cairn_error(EINVAL, "attn_variant: p[%d]: must be finite", i);
	if (a->head_dim != 64 && a->head_dim != 128)
		return cairn_error(EOPNOTSUPP, "attn_variant: head_dim: %d is neither 64 nor 128",
				   a->head_dim);
	if (a->sm_scale < 0x1p-64f)	/* slopes are divided by it */
		return cairn_error(EOPNOTSUPP, "attn_variant: sm_scale: %g is less than 2^-64",
				   (double)a->sm_scale);
	if (a->variant < 0)
		return cairn_error(EINVAL, "attn_variant: variant: must be >= 0");
	if (!attn_variant_known(a->variant))
		return cairn_error(EOPNOTSUPP, "attn_variant: variant: %d is unknown", a->variant);
	if (a->variant == CAIRN_VARIANT_SOFTCAP && !(a->p[0] > 0))
		return cairn_error(EINVAL, "attn_variant: p[0]: a softcap must be > 0");
	if ((a->variant == CAIRN_VARIANT_PLAIN || a->variant == CAIRN_VARIANT_BITS) &&
	    !(a->p[0] >= 0 && a->p[0] <= 0x1p24f))
		return cairn_error(EINVAL, "attn_variant: p[0]: must be from 0 to 2^24");
	return 0;
}

int cairn_attn_variant_check(const struct cairn_attn_variant_args *a)
{
	int32_t v;

	CAIRN_TRY(cairn_check_args(a, sizeof(*a), "attn_variant"));
	v = a->variant;
	if (!a->out || !a->q || !a->k || !a->v || !a->qo_indptr || !a->kv_indptr)
		return cairn_error(EINVAL, "attn_variant: null pointer");
	if (misaligned(a->out, 16) || misaligned(a->q, 16) || misaligned(a->k, 16) || misaligned(a->v, 16))
		return cairn_error(EINVAL, "attn_variant: out, q, k, v: must be 16-byte aligned");
	for (int i = 0; i < 4; i++)
		if (misaligned(a->t[i], 4))
			return cairn_error(EINVAL, "attn_variant: t[%d]: must be 4-byte aligned", i);
	if ((v == CAIRN_VARIANT_ROPE || v == CAIRN_VARIANT_ALIBI || v == CAIRN_VARIANT_BITS) && !a->t[0])
		return cairn_error(EINVAL, "attn_variant: t[0]: null pointer");
	CAIRN_TRY(cairn_attn_variant_check_shape(a));
	if (a->lse && attn_variant_weighs(v))
		return cairn_error(EINVAL, "attn_variant: lse: must be NULL, because the variant has no "
				   "softmax");
	return 0;
}
