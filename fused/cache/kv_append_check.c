// SPDX-License-Identifier: Apache-2.0
/* kv_append - argument checks shared by all of our tables */
#include "fused/cache/kv_append.h"

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

int cairn_kv_append_check(const struct cairn_kv_append_args *a)
{
	int64_t row;

	CAIRN_TRY(cairn_check_args(a, sizeof(*a), "kv_append"));
	if (!a->kv.k_pages || !a->kv.v_pages || !a->k || !a->v || !a->qo_indptr || !a->kv.indptr ||
	    !a->kv.indices || !a->kv.last_page_len)
		return cairn_error(EINVAL, "kv_append: null pointer");
	if (misaligned(a->kv.k_pages) || misaligned(a->kv.v_pages) || misaligned(a->k) || misaligned(a->v))
		return cairn_error(EINVAL, "kv_append: k, v, kv.k_pages, kv.v_pages: must be 16-byte "
				   "aligned");
	if (a->kv.batch < 0 || a->nnz_qo < 0 || a->kv.num_pages < 0)
		return cairn_error(EINVAL, "kv_append: kv.batch, nnz_qo, kv.num_pages: must be >= 0");
	if (a->kv.page_size < 1 || a->num_kv_heads < 1 || a->head_dim < 1)
		return cairn_error(EINVAL, "kv_append: kv.page_size, num_kv_heads, head_dim: must be >= 1");
	if (a->kv_fp8 < 0 || a->kv_fp8 > 1)
		return cairn_error(EINVAL, "kv_append: kv_fp8: must be 0 or 1");
	if ((a->k_scale || a->v_scale) && !a->kv_fp8)
		return cairn_error(EINVAL, "kv_append: k_scale, v_scale: only with kv_fp8");
	row = (int64_t)a->num_kv_heads * a->head_dim;
	if (!cairn_dtype_is_float(a->dtype))
		return cairn_error(EOPNOTSUPP, "kv_append: dtype: %s", cairn_dtype_name(a->dtype));
	if (a->head_dim % 8)
		return cairn_error(EOPNOTSUPP, "kv_append: head_dim: %d is not a multiple of 8", a->head_dim);
	if (bad_stride(a->k_stride, row) || bad_stride(a->v_stride, row))
		return cairn_error(EINVAL, "kv_append: k_stride, v_stride: must be 0 or a multiple of 8, "
				   "at least num_kv_heads * head_dim");
	return 0;
}
