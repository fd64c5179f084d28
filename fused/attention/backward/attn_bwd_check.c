// SPDX-License-Identifier: Apache-2.0
/* attn_bwd - argument checks shared by all of our tables */
#include "fused/attention/backward/attn_bwd.h"

#include "primitives/base/args.h"
#include "primitives/base/error.h"

static int misaligned(const void *p)
{
	return ((uintptr_t)p & 15) != 0;
}

struct cairn_attn_dense_args cairn_attn_bwd_forward(const struct cairn_attn_bwd_args *a)
{
	return (struct cairn_attn_dense_args){
		.size = sizeof(struct cairn_attn_dense_args), .q = a->q, .k = a->k, .v = a->v,
		.qo_indptr = a->qo_indptr, .kv_indptr = a->kv_indptr, .q_stride = a->q_stride,
		.k_stride = a->k_stride, .v_stride = a->v_stride, .k_head_stride = a->k_head_stride,
		.v_head_stride = a->v_head_stride, .batch = a->batch, .nnz_qo = a->nnz_qo,
		.nnz_kv = a->nnz_kv, .max_qo_len = a->max_qo_len, .max_kv_len = a->max_kv_len,
		.num_qo_heads = a->num_qo_heads, .num_kv_heads = a->num_kv_heads, .qk_dim = a->qk_dim,
		.v_dim = a->v_dim, .dtype = a->dtype, .causal = a->causal, .sm_scale = a->sm_scale,
		.window = a->window, .softcap = a->softcap, .sms = a->sms,
	};
}

int cairn_attn_bwd_check_shape(const struct cairn_attn_bwd_args *a)
{
	struct cairn_attn_dense_args forward;

	CAIRN_TRY(cairn_check_args(a, sizeof(*a), "attn_bwd"));
	forward = cairn_attn_bwd_forward(a);
	return attn_dense_check_named(&forward, "attn_bwd");
}

int cairn_attn_bwd_check(const struct cairn_attn_bwd_args *a)
{
	CAIRN_TRY(cairn_check_args(a, sizeof(*a), "attn_bwd"));
	if (!a->dq || !a->dk || !a->dv || !a->q || !a->k || !a->v || !a->out || !a->dout || !a->lse ||
	    !a->qo_indptr || !a->kv_indptr)
		return cairn_error(EINVAL, "attn_bwd: null pointer");
	if (misaligned(a->dq) || misaligned(a->dk) || misaligned(a->dv))
		return cairn_error(EINVAL, "attn_bwd: dq, dk, dv: must be 16-byte aligned");
	if (misaligned(a->q) || misaligned(a->k) || misaligned(a->v) || misaligned(a->out) ||
	    misaligned(a->dout))
		return cairn_error(EINVAL, "attn_bwd: q, k, v, out, dout: must be 16-byte aligned");
	return cairn_attn_bwd_check_shape(a);
}
