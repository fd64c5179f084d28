// SPDX-License-Identifier: Apache-2.0
/* attn_fp8, attn_quant - argument checks shared by all of our tables */
#include <math.h>

#include "primitives/base/args.h"
#include "primitives/base/dtype.h"
#include "primitives/base/error.h"
#include "fused/attention/fp8/attn_fp8.h"
#include "fused/attention/fp8/attn_quant.h"

static int misaligned(const void *p)
{
	return ((uintptr_t)p & 15) != 0;
}

static int bad_stride(int64_t stride, int64_t least)
{
	return stride != 0 && (stride < least || stride % 8 != 0);
}

/* Checks the numbers of heads, head_dim and dtype for both operations. */
static int check_heads(int32_t num_qo_heads, int32_t num_kv_heads, int32_t head_dim, int32_t dtype,
		       const char *name)
{
	if (dtype != CAIRN_F16 && dtype != CAIRN_BF16)
		return cairn_error(EOPNOTSUPP, "%s: dtype: %s", name, cairn_dtype_name(dtype));
	if (head_dim != 64 && head_dim != 128)
		return cairn_error(EOPNOTSUPP, "%s: head_dim: %d: neither 64 nor 128", name, head_dim);
	if (num_qo_heads % num_kv_heads)
		return cairn_error(EOPNOTSUPP, "%s: num_qo_heads: %d is not a multiple of %d", name,
				   num_qo_heads, num_kv_heads);
	return 0;
}

int cairn_attn_quant_check(const struct cairn_attn_quant_args *a)
{
	CAIRN_TRY(cairn_check_args(a, sizeof(*a), "attn_quant"));
	if (!a->q8 || !a->k8 || !a->v8 || !a->q_scale || !a->k_scale || !a->v_scale || !a->q || !a->k ||
	    !a->v || !a->qo_indptr || !a->kv_indptr)
		return cairn_error(EINVAL, "attn_quant: null pointer");
	if (misaligned(a->q8) || misaligned(a->k8) || misaligned(a->v8) || misaligned(a->q) ||
	    misaligned(a->k) || misaligned(a->v))
		return cairn_error(EINVAL, "attn_quant: q8, k8, v8, q, k, v: must be 16-byte aligned");
	if (a->batch < 0 || a->nnz_qo < 0 || a->nnz_kv < 0)
		return cairn_error(EINVAL, "attn_quant: batch, nnz_qo, nnz_kv: must be >= 0");
	if (a->num_qo_heads < 1 || a->num_kv_heads < 1 || a->head_dim < 1)
		return cairn_error(EINVAL, "attn_quant: heads, head_dim: must be >= 1");
	if (bad_stride(a->q_stride, (int64_t)a->num_qo_heads * a->head_dim))
		return cairn_error(EINVAL, "attn_quant: q_stride: must be 0 or a multiple of 8, at least "
				   "num_qo_heads * head_dim");
	if (bad_stride(a->k_stride, a->head_dim) || bad_stride(a->k_head_stride, a->head_dim) ||
	    bad_stride(a->v_stride, a->head_dim) || bad_stride(a->v_head_stride, a->head_dim))
		return cairn_error(EINVAL, "attn_quant: k_stride, k_head_stride, v_stride, v_head_stride: "
				   "must be 0 or a multiple of 8, at least head_dim");
	return check_heads(a->num_qo_heads, a->num_kv_heads, a->head_dim, a->dtype, "attn_quant");
}

int cairn_attn_fp8_check_shape(const struct cairn_attn_fp8_args *a)
{
	CAIRN_TRY(cairn_check_args(a, sizeof(*a), "attn_fp8"));
	if (a->batch < 0 || a->nnz_qo < 0 || a->nnz_kv < 0 || a->max_qo_len < 0 || a->max_kv_len < 0)
		return cairn_error(EINVAL, "attn_fp8: batch, nnz_qo, nnz_kv, max_qo_len, max_kv_len: must "
				   "be >= 0");
	if (a->num_qo_heads < 1 || a->num_kv_heads < 1 || a->head_dim < 1)
		return cairn_error(EINVAL, "attn_fp8: heads, head_dim: must be >= 1");
	if (a->sms < 0)
		return cairn_error(EINVAL, "attn_fp8: sms: must be >= 0");
	if (!(a->sm_scale > 0) || isinf(a->sm_scale))
		return cairn_error(EINVAL, "attn_fp8: sm_scale: must be finite and > 0");
	return check_heads(a->num_qo_heads, a->num_kv_heads, a->head_dim, a->dtype, "attn_fp8");
}

int cairn_attn_fp8_check(const struct cairn_attn_fp8_args *a)
{
	CAIRN_TRY(cairn_check_args(a, sizeof(*a), "attn_fp8"));
	if (!a->out || !a->q || !a->k || !a->v || !a->q_scale || !a->k_scale || !a->v_scale ||
	    !a->qo_indptr || !a->kv_indptr)
		return cairn_error(EINVAL, "attn_fp8: null pointer");
	if (misaligned(a->out) || misaligned(a->q) || misaligned(a->k) || misaligned(a->v))
		return cairn_error(EINVAL, "attn_fp8: out, q, k, v: must be 16-byte aligned");
	return cairn_attn_fp8_check_shape(a);
}
