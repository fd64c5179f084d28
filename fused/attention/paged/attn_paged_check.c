// SPDX-License-Identifier: Apache-2.0
/* attn_paged - argument checks shared by all of our tables */
#include "fused/attention/paged/attn_paged.h"

#include <math.h>

#include "primitives/base/args.h"
#include "primitives/base/dtype.h"
#include "primitives/base/error.h"

static int misaligned(const void *p)
{
	return ((uintptr_t)p & 15) != 0;
}

static int bad_stride(int64_t stride, int64_t row)
{
	return stride != 0 && (stride < row || stride % 8 != 0);
}

int cairn_attn_paged_check_shape(const struct cairn_attn_paged_args *a)
{
	CAIRN_TRY(cairn_check_args(a, sizeof(*a), "attn_paged"));
	if (a->kv.batch < 0 || a->nnz_qo < 0 || a->max_qo_len < 0 || a->kv.max_len < 0 || a->kv.num_pages < 0)
		return cairn_error(EINVAL, "attn_paged: kv.batch, nnz_qo, max_qo_len, kv.max_len, "
				   "kv.num_pages: must be >= 0");
	if (a->kv.page_size < 1 || a->num_qo_heads < 1 || a->num_kv_heads < 1 || a->head_dim < 1)
		return cairn_error(EINVAL, "attn_paged: kv.page_size, heads, head_dim: must be >= 1");
	if (a->sms < 0 || a->nnz_kv < 0)
		return cairn_error(EINVAL, "attn_paged: sms, nnz_kv: must be >= 0");
	if (!(a->sm_scale > 0) || isinf(a->sm_scale))
		return cairn_error(EINVAL, "attn_paged: sm_scale: must be finite and > 0");
	if (a->window < 0 || !(a->softcap >= 0) || isinf(a->softcap))
		return cairn_error(EINVAL, "attn_paged: window, softcap: must be >= 0, and softcap finite");
	if (bad_stride(a->q_stride, (int64_t)a->num_qo_heads * a->head_dim))
		return cairn_error(EINVAL, "attn_paged: q_stride: must be 0 or a multiple of 8, at least "
				   "num_qo_heads * head_dim");
	if (a->kv_fp8 < 0 || a->kv_fp8 > 1 || a->planned < 0 || a->planned > 1)
		return cairn_error(EINVAL, "attn_paged: kv_fp8, planned: must be 0 or 1");
	if (a->dtype != CAIRN_F16 && a->dtype != CAIRN_BF16)
		return cairn_error(EOPNOTSUPP, "attn_paged: dtype: %s", cairn_dtype_name(a->dtype));
	if (a->head_dim != 64 && a->head_dim != 128 && a->head_dim != 256)
		return cairn_error(EOPNOTSUPP, "attn_paged: head_dim: %d is not 64, 128 or 256", a->head_dim);
	if (a->num_qo_heads % a->num_kv_heads)
		return cairn_error(EOPNOTSUPP, "attn_paged: num_qo_heads: %d is not a multiple of %d",
				   a->num_qo_heads, a->num_kv_heads);
	return 0;
}

int cairn_attn_paged_check(const struct cairn_attn_paged_args *a)
{
	CAIRN_TRY(cairn_check_args(a, sizeof(*a), "attn_paged"));
	if (!a->out || !a->q || !a->kv.k_pages || !a->kv.v_pages || !a->qo_indptr || !a->kv.indptr ||
	    !a->kv.indices || !a->kv.last_page_len)
		return cairn_error(EINVAL, "attn_paged: null pointer");
	if (misaligned(a->out) || misaligned(a->q) || misaligned(a->kv.k_pages) || misaligned(a->kv.v_pages))
		return cairn_error(EINVAL, "attn_paged: out, q, kv.k_pages, kv.v_pages: must be 16-byte "
				   "aligned");
	if ((a->k_scale || a->v_scale) && !a->kv_fp8)
		return cairn_error(EINVAL, "attn_paged: k_scale, v_scale: only with kv_fp8");
	return cairn_attn_paged_check_shape(a);
}
