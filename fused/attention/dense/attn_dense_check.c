// SPDX-License-Identifier: Apache-2.0
/* attn_dense - argument checks shared by all of our tables */
#include "fused/attention/dense/attn_dense.h"

#include <math.h>

#include "primitives/base/args.h"
#include "primitives/base/dtype.h"
#include "primitives/base/error.h"

static int misaligned(const void *p)
{
	return ((uintptr_t)p & 15) != 0;
}

static int bad_stride(int64_t stride, int64_t least)
{
	return stride != 0 && (stride < least || stride % 8 != 0);
}

static int bad_dim(int32_t dim)
{
	return dim != 64 && dim != 80 && dim != 96 && dim != 112 && dim != 128 && dim != 192 && dim != 256;
}

static int check_strides(const struct cairn_attn_dense_args *a, const char *name)
{
	if (bad_stride(a->q_stride, (int64_t)a->num_qo_heads * a->qk_dim))
		return cairn_error(EINVAL, "%s: q_stride: must be 0 or a multiple of 8, at least "
				   "num_qo_heads * qk_dim", name);
	if (bad_stride(a->k_stride, a->qk_dim) || bad_stride(a->k_head_stride, a->qk_dim))
		return cairn_error(EINVAL, "%s: k_stride, k_head_stride: must be 0 or a multiple of "
				   "8, at least qk_dim", name);
	if (bad_stride(a->v_stride, a->v_dim) || bad_stride(a->v_head_stride, a->v_dim))
		return cairn_error(EINVAL, "%s: v_stride, v_head_stride: must be 0 or a multiple of "
				   "8, at least v_dim", name);
	return 0;
}

int attn_dense_check_named(const struct cairn_attn_dense_args *a, const char *name)
{
	if (a->batch < 0 || a->nnz_qo < 0 || a->nnz_kv < 0 || a->max_qo_len < 0 || a->max_kv_len < 0)
		return cairn_error(EINVAL, "%s: batch, nnz_qo, nnz_kv, max_qo_len, max_kv_len: must "
				   "be >= 0", name);
	if (a->num_qo_heads < 1 || a->num_kv_heads < 1 || a->qk_dim < 1 || a->v_dim < 1)
		return cairn_error(EINVAL, "%s: heads, qk_dim, v_dim: must be >= 1", name);
	if (a->sms < 0)
		return cairn_error(EINVAL, "%s: sms: must be >= 0", name);
	if (!(a->sm_scale > 0) || isinf(a->sm_scale))
		return cairn_error(EINVAL, "%s: sm_scale: must be finite and > 0", name);
	if (a->window < 0 || !(a->softcap >= 0) || isinf(a->softcap))
		return cairn_error(EINVAL, "%s: window, softcap: must be >= 0, and softcap finite", name);
	CAIRN_TRY(check_strides(a, name));
	if (a->dtype != CAIRN_F16 && a->dtype != CAIRN_BF16)
		return cairn_error(EOPNOTSUPP, "%s: dtype: %s", name, cairn_dtype_name(a->dtype));
	if (bad_dim(a->qk_dim) || bad_dim(a->v_dim))
		return cairn_error(EOPNOTSUPP, "%s: qk_dim, v_dim: %d, %d: not among 64, 80, 96, "
				   "112, 128, 192, 256", name, a->qk_dim, a->v_dim);
	if (a->num_qo_heads % a->num_kv_heads)
		return cairn_error(EOPNOTSUPP, "%s: num_qo_heads: %d is not a multiple of %d", name,
				   a->num_qo_heads, a->num_kv_heads);
	return 0;
}

int cairn_attn_dense_check_shape(const struct cairn_attn_dense_args *a)
{
	CAIRN_TRY(cairn_check_args(a, sizeof(*a), "attn_dense"));
	return attn_dense_check_named(a, "attn_dense");
}

int cairn_attn_dense_check(const struct cairn_attn_dense_args *a)
{
	CAIRN_TRY(cairn_check_args(a, sizeof(*a), "attn_dense"));
	if (!a->out || !a->q || !a->k || !a->v || !a->qo_indptr || !a->kv_indptr)
		return cairn_error(EINVAL, "attn_dense: null pointer");
	if (misaligned(a->out) || misaligned(a->q) || misaligned(a->k) || misaligned(a->v))
		return cairn_error(EINVAL, "attn_dense: out, q, k, v: must be 16-byte aligned");
	return cairn_attn_dense_check_shape(a);
}
