// SPDX-License-Identifier: Apache-2.0
/*
 * cluster_attn - argument checks shared by all of our tables
 */
#include "fused/cluster_attn/cluster_attn.h"

#include <math.h>

#include "primitives/base/args.h"
#include "primitives/base/dtype.h"
#include "primitives/base/error.h"
#include "primitives/rows/rmsnorm.h"

static int misaligned(const void *p, uintptr_t to)
{
	return ((uintptr_t)p & (to - 1)) != 0;
}

static int check_pointers(const struct cairn_cluster_attn_args *a)
{
	if (!a->out || !a->x)
		return cairn_error(EINVAL, "cluster_attn: out, x: must not be null");
	if (!a->kv.k_pages || !a->kv.v_pages)
		return cairn_error(EINVAL, "cluster_attn: kv.k_pages, kv.v_pages: must not be null");
	if (!a->norm_weight || !a->w_qkv || !a->w_o)
		return cairn_error(EINVAL, "cluster_attn: norm_weight, w_qkv, w_o: must not be null");
	if (!a->inv_freq || !a->positions)
		return cairn_error(EINVAL, "cluster_attn: inv_freq, positions: must not be null");
	if (!a->kv.indptr || !a->kv.indices || !a->kv.last_page_len)
		return cairn_error(EINVAL, "cluster_attn: kv.indptr, kv.indices, kv.last_page_len: must not "
				   "be null");
	if (misaligned(a->out, 16) || misaligned(a->x, 16) || misaligned(a->kv.k_pages, 16) ||
	    misaligned(a->kv.v_pages, 16))
		return cairn_error(EINVAL, "cluster_attn: out, x, kv.k_pages, kv.v_pages: must be "
				   "16-byte aligned");
	if (misaligned(a->norm_weight, 16) || misaligned(a->w_qkv, 16) || misaligned(a->b_qkv, 16) ||
	    misaligned(a->w_o, 16) || misaligned(a->b_o, 16))
		return cairn_error(EINVAL, "cluster_attn: norm_weight, w_qkv, b_qkv, w_o, b_o: must be "
				   "16-byte aligned");
	if (misaligned(a->workspace, 256))
		return cairn_error(EINVAL, "cluster_attn: workspace: must be 256-byte aligned");
	return 0;
}

static int check_dataflow(const struct cairn_cluster_attn_args *a)
{
	if (a->dataflow < CAIRN_CLUSTER_ATTN_AUTO || a->dataflow > CAIRN_CLUSTER_ATTN_SPLIT_HEAD)
		return cairn_error(EINVAL, "cluster_attn: dataflow: there is no %d", a->dataflow);
	if (a->cluster_size < 0)
		return cairn_error(EINVAL, "cluster_attn: cluster_size: must be >= 0");
	if (a->dataflow == CAIRN_CLUSTER_ATTN_AUTO && (a->cluster_size || a->offchip))
		return cairn_error(EINVAL, "cluster_attn: cluster_size, offchip: must be 0 where dataflow "
				   "is AUTO");
	if (a->cluster_size > 16)
		return cairn_error(EOPNOTSUPP, "cluster_attn: cluster_size: %d is above 16", a->cluster_size);
	if (a->dataflow == CAIRN_CLUSTER_ATTN_SPLIT_HEAD && a->cluster_size &&
	    a->head_dim / 8 % a->cluster_size)
		return cairn_error(EOPNOTSUPP, "cluster_attn: cluster_size: %d does not divide head_dim / 8",
				   a->cluster_size);
	return 0;
}

int cairn_cluster_attn_check(const struct cairn_cluster_attn_args *a)
{
	CAIRN_TRY(cairn_check_args(a, sizeof(*a), "cluster_attn"));
	CAIRN_TRY(check_pointers(a));
	return cairn_cluster_attn_check_shape(a);
}

int cairn_cluster_attn_check_shape(const struct cairn_cluster_attn_args *a)
{
	CAIRN_TRY(cairn_check_args(a, sizeof(*a), "cluster_attn"));
	if (a->kv.batch < 0 || a->kv.max_len < 0 || a->kv.num_pages < 0)
		return cairn_error(EINVAL, "cluster_attn: kv.batch, kv.max_len, kv.num_pages: must be >= 0");
	if (a->kv.page_size < 1 || a->hidden < 1)
		return cairn_error(EINVAL, "cluster_attn: kv.page_size, hidden: must be >= 1");
	if (a->sms < 0)
		return cairn_error(EINVAL, "cluster_attn: sms: must be >= 0");
	if (a->num_qo_heads < 1 || a->num_kv_heads < 1 || a->head_dim < 1)
		return cairn_error(EINVAL, "cluster_attn: num_qo_heads, num_kv_heads, head_dim: must be "
				   ">= 1");
	if (!cairn_is_eps(a->eps))
		return cairn_error(EINVAL, "cluster_attn: eps: must be finite and at least 2^-126");
	if (!(a->sm_scale > 0) || isinf(a->sm_scale))
		return cairn_error(EINVAL, "cluster_attn: sm_scale: must be finite and > 0");
	if (a->dtype != CAIRN_F16 && a->dtype != CAIRN_BF16)
		return cairn_error(EOPNOTSUPP, "cluster_attn: dtype: %s", cairn_dtype_name(a->dtype));
	if (a->head_dim != 64 && a->head_dim != 128)
		return cairn_error(EOPNOTSUPP, "cluster_attn: head_dim: %d is not 64 or 128", a->head_dim);
	if (a->hidden % 64 || a->hidden > 16384)
		return cairn_error(EOPNOTSUPP, "cluster_attn: hidden: %d is not a multiple of 64 up to 16384",
				   a->hidden);
	if (a->num_qo_heads % a->num_kv_heads)
		return cairn_error(EOPNOTSUPP, "cluster_attn: num_qo_heads: %d is not a multiple of %d",
				   a->num_qo_heads, a->num_kv_heads);
	if (a->num_qo_heads / a->num_kv_heads > 16)
		return cairn_error(EOPNOTSUPP, "cluster_attn: num_qo_heads: more than 16 for a KV head");
	if (a->kv.batch > 16)
		return cairn_error(EOPNOTSUPP, "cluster_attn: kv.batch: %d is above 16", a->kv.batch);
	return check_dataflow(a);
}
