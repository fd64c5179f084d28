// SPDX-License-Identifier: Apache-2.0
/* mla_prefill - argument checks shared by all of our tables */
#include "fused/latent/prefill/mla_prefill.h"

#include <math.h>

#include "primitives/base/args.h"
#include "primitives/base/dtype.h"
#include "primitives/base/error.h"

#define MOST	(1 << 30)

int cairn_mla_prefill_check_shape(const struct cairn_mla_prefill_args *a)
{
	CAIRN_TRY(cairn_check_args(a, sizeof(*a), "mla_prefill"));
	if (a->kv.batch < 0 || a->nnz_qo < 0 || a->max_qo_len < 0 || a->kv.max_len < 0 || a->kv.num_pages < 0)
		return cairn_error(EINVAL, "mla_prefill: kv.batch, nnz_qo, max_qo_len, kv.max_len, "
				   "kv.num_pages: must be >= 0");
	if (a->nnz_past < 0 || a->chunk_keys < 0)
		return cairn_error(EINVAL, "mla_prefill: nnz_past, chunk_keys: must be >= 0");
	if (a->kv.page_size < 1 || a->num_heads < 1)
		return cairn_error(EINVAL, "mla_prefill: kv.page_size, num_heads: must be >= 1");
	if (a->sms < 0)
		return cairn_error(EINVAL, "mla_prefill: sms: must be >= 0");
	if (!(a->sm_scale > 0) || isinf(a->sm_scale))
		return cairn_error(EINVAL, "mla_prefill: sm_scale: must be finite and > 0");
	if (a->dtype != CAIRN_F16 && a->dtype != CAIRN_BF16)
		return cairn_error(EOPNOTSUPP, "mla_prefill: dtype: %s", cairn_dtype_name(a->dtype));
	if (a->kv_lora_rank != 512 || a->rope_dim != 64 || a->nope_dim != 128 || a->v_dim != 128)
		return cairn_error(EOPNOTSUPP,
				   "mla_prefill: kv_lora_rank %d, rope_dim %d, nope_dim %d, v_dim %d: are "
				   "not 512, 64, 128, 128", a->kv_lora_rank, a->rope_dim, a->nope_dim,
				   a->v_dim);
	if (a->num_heads > 128)
		return cairn_error(EOPNOTSUPP, "mla_prefill: num_heads: %d is above 128", a->num_heads);
	if (a->nnz_qo >= MOST || a->nnz_past >= MOST || a->chunk_keys >= MOST ||
	    (int64_t)a->nnz_qo * a->num_heads > INT32_MAX)
		return cairn_error(EOPNOTSUPP, "mla_prefill: nnz_qo, nnz_past, chunk_keys: not below 2^30, "
				   "or nnz_qo * num_heads not below 2^31");
	return 0;
}

int cairn_mla_prefill_check(const struct cairn_mla_prefill_args *a)
{
	CAIRN_TRY(cairn_mla_prefill_check_shape(a));
	if (!a->out || !a->q || !a->kv.k_pages || !a->w_kv_b || !a->qo_indptr || !a->kv.indptr ||
	    !a->kv.indices || !a->kv.last_page_len)
		return cairn_error(EINVAL, "mla_prefill: null pointer");
	if (((uintptr_t)a->out | (uintptr_t)a->q | (uintptr_t)a->kv.k_pages | (uintptr_t)a->w_kv_b) & 15)
		return cairn_error(EINVAL, "mla_prefill: out, q, kv.k_pages, w_kv_b: must be 16-byte "
				   "aligned");
	if ((uintptr_t)a->lse & 3)
		return cairn_error(EINVAL, "mla_prefill: lse: must be 4-byte aligned");
	if ((uintptr_t)a->workspace & 255)
		return cairn_error(EINVAL, "mla_prefill: workspace: must be 256-byte aligned");
	return 0;
}
