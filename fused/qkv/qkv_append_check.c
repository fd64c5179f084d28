// SPDX-License-Identifier: Apache-2.0
/* qkv_append - argument checks shared by all of our tables */
#include "fused/qkv/qkv_append.h"

#include "primitives/base/args.h"
#include "primitives/base/dtype.h"
#include "primitives/base/error.h"

#define MAX_DIM		512
#define MAX_HEADS	(1 << 16)

static int check_sizes(const struct cairn_qkv_append_args *a)
{
	if (a->m < 1 || a->k < 1 || a->num_qo_heads < 1 || a->num_kv_heads < 1 || a->head_dim < 1)
		return cairn_error(EINVAL, "qkv_append: m, k, num_qo_heads, num_kv_heads, head_dim: must be "
				   ">= 1");
	if (a->kv.batch < 0 || a->kv.num_pages < 0 || a->kv.page_size < 1)
		return cairn_error(EINVAL, "qkv_append: kv.batch, kv.num_pages, kv.page_size: must be >= 0, "
				   ">= 0, >= 1");
	if (a->sms < 0)
		return cairn_error(EINVAL, "qkv_append: sms: must be >= 0");
	if (a->kv_fp8 < 0 || a->kv_fp8 > 1)
		return cairn_error(EINVAL, "qkv_append: kv_fp8: must be 0 or 1");
	if ((a->k_scale || a->v_scale) && !a->kv_fp8)
		return cairn_error(EINVAL, "qkv_append: k_scale, v_scale: only with kv_fp8");
	if (a->dtype != CAIRN_F16 && a->dtype != CAIRN_BF16)
		return cairn_error(EOPNOTSUPP, "qkv_append: dtype: %d is not supported", a->dtype);
	if (a->m > CAIRN_QKV_APPEND_M)
		return cairn_error(EOPNOTSUPP, "qkv_append: m: %d, at most %d", a->m, CAIRN_QKV_APPEND_M);
	if (a->k % 8)
		return cairn_error(EOPNOTSUPP, "qkv_append: k: %d is not a multiple of 8", a->k);
	if (a->head_dim % 16 || a->head_dim > MAX_DIM)
		return cairn_error(EOPNOTSUPP, "qkv_append: head_dim: %d is no multiple of 16 up to %d",
				   a->head_dim, MAX_DIM);
	if (a->num_qo_heads + 2 * (int64_t)a->num_kv_heads > MAX_HEADS)
		return cairn_error(EOPNOTSUPP, "qkv_append: num_qo_heads %d, num_kv_heads %d: more than %d "
				   "heads in all", a->num_qo_heads, a->num_kv_heads, MAX_HEADS);
	if (a->q_stride && (a->q_stride % 8 || a->q_stride < (int64_t)a->num_qo_heads * a->head_dim))
		return cairn_error(EINVAL, "qkv_append: q_stride: must be 0 or a multiple of 8, at least "
				   "num_qo_heads * head_dim");
	return 0;
}

int cairn_qkv_append_check(const struct cairn_qkv_append_args *a)
{
	CAIRN_TRY(cairn_check_args(a, sizeof(*a), "qkv_append"));
	CAIRN_TRY(check_sizes(a));
	if (!a->q || !a->a || !a->b || !a->inv_freq || !a->positions || !a->qo_indptr)
		return cairn_error(EINVAL, "qkv_append: q, a, b, inv_freq, positions, qo_indptr: must not be "
				   "null");
	if (!a->kv.k_pages || !a->kv.v_pages || !a->kv.indptr || !a->kv.indices || !a->kv.last_page_len)
		return cairn_error(EINVAL, "qkv_append: kv.k_pages, kv.v_pages, kv.indptr, kv.indices, "
				   "kv.last_page_len: must not be null");
	if (((uintptr_t)a->q | (uintptr_t)a->a | (uintptr_t)a->b) & 15)
		return cairn_error(EINVAL, "qkv_append: q, a, b: must be 16-byte aligned");
	if (((uintptr_t)a->kv.k_pages | (uintptr_t)a->kv.v_pages) & 15)
		return cairn_error(EINVAL, "qkv_append: kv.k_pages, kv.v_pages: must be 16-byte aligned");
	return 0;
}
