// SPDX-License-Identifier: Apache-2.0
/* cluster_mla - argument checks shared by all of our tables */
#include "fused/latent/cluster_mla.h"

#include <math.h>

#include "primitives/base/args.h"
#include "primitives/base/dtype.h"
#include "primitives/base/error.h"
#include "primitives/rows/rmsnorm.h"

static int misaligned(const void *p)
{
	return ((uintptr_t)p & 15) != 0;
}

int cairn_cluster_mla_check_shape(const struct cairn_cluster_mla_args *a)
{
	CAIRN_TRY(cairn_check_args(a, sizeof(*a), "cluster_mla"));
	if (a->kv.batch < 0 || a->kv.max_len < 0 || a->kv.num_pages < 0 || a->q_lora_rank < 0)
		return cairn_error(EINVAL,
				   "cluster_mla: kv.batch, kv.max_len, kv.num_pages, q_lora_rank: must be "
				   ">= 0");
	if (a->kv.page_size < 1 || a->hidden < 1 || a->num_heads < 1 || a->kv_lora_rank < 1 ||
	    a->nope_dim < 1 || a->rope_dim < 1 || a->v_dim < 1)
		return cairn_error(EINVAL, "cluster_mla: kv.page_size, hidden, num_heads, dims: must be "
				   ">= 1");
	if (a->sms < 0)
		return cairn_error(EINVAL, "cluster_mla: sms: must be >= 0");
	if (!cairn_is_eps(a->eps))
		return cairn_error(EINVAL, "cluster_mla: eps: must be finite and at least 2^-126");
	if (!(a->sm_scale > 0) || isinf(a->sm_scale))
		return cairn_error(EINVAL, "cluster_mla: sm_scale: must be finite and > 0");
	if (a->cluster_size < 0 || a->cluster_size > 16)
		return cairn_error(EINVAL, "cluster_mla: cluster_size: %d is not 0..16", a->cluster_size);
	if (a->dtype != CAIRN_F16 && a->dtype != CAIRN_BF16)
		return cairn_error(EOPNOTSUPP, "cluster_mla: dtype: %s", cairn_dtype_name(a->dtype));
	if (a->kv_lora_rank != 512 || a->rope_dim != 64 || a->nope_dim != 128 || a->v_dim != 128)
		return cairn_error(EOPNOTSUPP, "cluster_mla: kv_lora_rank, rope_dim, nope_dim, v_dim: "
				   "are not 512, 64, 128, 128");
	if (a->num_heads % 8 || a->num_heads > 128)
		return cairn_error(EOPNOTSUPP, "cluster_mla: num_heads: %d is not a multiple of 8 up to 128",
				   a->num_heads);
	if (a->hidden % 64 || a->hidden > 16384)
		return cairn_error(EOPNOTSUPP, "cluster_mla: hidden: %d is not a multiple of 64 up to 16384",
				   a->hidden);
	if (a->q_lora_rank % 64 || a->q_lora_rank > 4096)
		return cairn_error(EOPNOTSUPP,
				   "cluster_mla: q_lora_rank: %d is not a multiple of 64 up to 4096",
				   a->q_lora_rank);
	if (a->kv.batch > 16)
		return cairn_error(EOPNOTSUPP, "cluster_mla: kv.batch: %d is above 16", a->kv.batch);
	return 0;
}

int cairn_cluster_mla_check(const struct cairn_cluster_mla_args *a)
{
	CAIRN_TRY(cairn_cluster_mla_check_shape(a));
	if (!a->out || !a->kv.k_pages || !a->x || !a->norm_weight || !a->w_q || !a->w_kv_a || !a->kv_norm ||
	    !a->w_kv_b || !a->w_o || !a->inv_freq || !a->positions || !a->kv.indptr || !a->kv.indices ||
	    !a->kv.last_page_len)
		return cairn_error(EINVAL, "cluster_mla: null pointer");
	if (!a->w_q_a != !a->q_lora_rank || !a->q_norm != !a->q_lora_rank)
		return cairn_error(EINVAL,
				   "cluster_mla: w_q_a, q_norm: needed with q_lora_rank > 0, NULL with 0");
	if (misaligned(a->out) || misaligned(a->kv.k_pages) || misaligned(a->x) ||
	    misaligned(a->norm_weight) || misaligned(a->w_q_a) || misaligned(a->q_norm) ||
	    misaligned(a->w_q) || misaligned(a->w_kv_a) || misaligned(a->kv_norm) ||
	    misaligned(a->w_kv_b) || misaligned(a->w_o))
		return cairn_error(EINVAL, "cluster_mla: pointers of dtype must be 16-byte aligned");
	return 0;
}
