// SPDX-License-Identifier: Apache-2.0
/* mla_append - argument checks shared by all of our tables */
#include "fused/latent/mla_append.h"

#include "primitives/base/args.h"
#include "primitives/base/dtype.h"
#include "primitives/base/error.h"
#include "primitives/rows/rmsnorm.h"

int cairn_mla_append_check(const struct cairn_mla_append_args *a)
{
	CAIRN_TRY(cairn_check_args(a, sizeof(*a), "mla_append"));
	if (!a->q || !a->latent || !a->norm_weight || !a->inv_freq || !a->positions || !a->qo_indptr ||
	    !a->kv.k_pages || !a->kv.indptr || !a->kv.indices || !a->kv.last_page_len)
		return cairn_error(EINVAL, "mla_append: null pointer");
	if (((uintptr_t)a->q | (uintptr_t)a->kv.k_pages | (uintptr_t)a->latent |
	     (uintptr_t)a->norm_weight) & 15)
		return cairn_error(EINVAL,
				   "mla_append: q, kv.k_pages, latent, norm_weight: must be 16-byte aligned");
	if (a->kv.batch < 0 || a->nnz_qo < 0 || a->kv.num_pages < 0 || a->nope_dim < 0)
		return cairn_error(EINVAL, "mla_append: kv.batch, nnz_qo, kv.num_pages, nope_dim: must be "
				   ">= 0");
	if (a->kv.page_size < 1 || a->num_heads < 1 || a->kv_lora_rank < 1 || a->rope_dim < 1)
		return cairn_error(EINVAL,
				   "mla_append: kv.page_size, num_heads, kv_lora_rank, rope_dim: must be "
				   ">= 1");
	if (!cairn_is_eps(a->eps))
		return cairn_error(EINVAL, "mla_append: eps: must be finite and at least 2^-126");
	if (a->dtype != CAIRN_F16 && a->dtype != CAIRN_BF16)
		return cairn_error(EOPNOTSUPP, "mla_append: dtype: %s", cairn_dtype_name(a->dtype));
	if (a->kv_lora_rank % 64 || a->kv_lora_rank > 1024)
		return cairn_error(EOPNOTSUPP,
				   "mla_append: kv_lora_rank: %d is not a multiple of 64 up to 1024",
				   a->kv_lora_rank);
	if (a->rope_dim % 16 || a->rope_dim > 256 || a->nope_dim % 16 || a->nope_dim > 1024)
		return cairn_error(EOPNOTSUPP,
				   "mla_append: rope_dim %d, nope_dim %d: not multiples of 16 up to "
				   "256, 1024", a->rope_dim, a->nope_dim);
	if (a->kv_fp8 != 0 && a->kv_fp8 != 1)
		return cairn_error(EINVAL, "mla_append: kv_fp8: must be 0 or 1");
	if (a->kv_fp8 && (a->kv_lora_rank != 512 || a->rope_dim != 64))
		return cairn_error(EOPNOTSUPP,
				   "mla_append: kv_fp8: kv_lora_rank %d, rope_dim %d: must be 512, 64",
				   a->kv_lora_rank, a->rope_dim);
	return 0;
}
