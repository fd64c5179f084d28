// SPDX-License-Identifier: Apache-2.0
/* mla_decode - argument checks shared by all of our tables */
#include "fused/latent/decode/mla_decode.h"

#include <math.h>

#include "primitives/base/args.h"
#include "primitives/base/dtype.h"
#include "primitives/base/error.h"

int cairn_mla_decode_check_shape(const struct cairn_mla_decode_args *a)
{
	CAIRN_TRY(cairn_check_args(a, sizeof(*a), "mla_decode"));
	if (a->kv.batch < 0 || a->nnz_qo < 0 || a->max_qo_len < 0 || a->kv.max_len < 0 ||
	    a->kv.num_pages < 0 || a->num_slots < 0)
		return cairn_error(EINVAL, "mla_decode: kv.batch, nnz_qo, max_qo_len, kv.max_len, "
				   "kv.num_pages, num_slots: must be >= 0");
	if (a->kv.page_size < 1 || a->num_heads < 1)
		return cairn_error(EINVAL, "mla_decode: kv.page_size, num_heads: must be >= 1");
	if (a->q_latent_stride < 0 || a->q_latent_stride % 8 || a->q_rope_stride < 0 || a->q_rope_stride % 8)
		return cairn_error(EINVAL, "mla_decode: q_latent_stride, q_rope_stride: must be multiples of "
				   "8, >= 0");
	if (a->sms < 0)
		return cairn_error(EINVAL, "mla_decode: sms: must be >= 0");
	if (!(a->sm_scale > 0) || isinf(a->sm_scale))
		return cairn_error(EINVAL, "mla_decode: sm_scale: must be finite and > 0");
	if (a->kv_fp8 != 0 && a->kv_fp8 != 1)
		return cairn_error(EINVAL, "mla_decode: kv_fp8: must be 0 or 1");
	if (a->dtype != CAIRN_F16 && a->dtype != CAIRN_BF16)
		return cairn_error(EOPNOTSUPP, "mla_decode: dtype: %s", cairn_dtype_name(a->dtype));
	if (a->kv_lora_rank != 512 || a->rope_dim != 64)
		return cairn_error(EOPNOTSUPP, "mla_decode: kv_lora_rank %d, rope_dim %d: are not 512, 64",
				   a->kv_lora_rank, a->rope_dim);
	if (a->num_heads > 128)
		return cairn_error(EOPNOTSUPP, "mla_decode: num_heads: %d is above 128", a->num_heads);
	if (a->num_slots > CAIRN_MLA_MAX_SLOTS)
		return cairn_error(EOPNOTSUPP, "mla_decode: num_slots: %d is above 2^20", a->num_slots);
	if ((a->q_latent_stride && a->q_latent_stride < 512) || (a->q_rope_stride && a->q_rope_stride < 64))
		return cairn_error(EINVAL, "mla_decode: q_latent_stride, q_rope_stride: rows overlap");
	return 0;
}

int cairn_mla_decode_check(const struct cairn_mla_decode_args *a)
{
	uintptr_t words;

	CAIRN_TRY(cairn_mla_decode_check_shape(a));
	if (!a->out || !a->q_latent || !a->q_rope || !a->qo_indptr || !a->kv.k_pages ||
	    (a->num_slots ? !a->slots : !a->kv.indptr || !a->kv.indices || !a->kv.last_page_len))
		return cairn_error(EINVAL, "mla_decode: null pointer");
	if (((uintptr_t)a->out | (uintptr_t)a->q_latent | (uintptr_t)a->q_rope | (uintptr_t)a->kv.k_pages) &
	    15)
		return cairn_error(EINVAL, "mla_decode: out, q_latent, q_rope, kv.k_pages: must be 16-byte "
				   "aligned");
	words = (uintptr_t)a->lse | (uintptr_t)a->qo_indptr;
	if (a->num_slots)
		words |= (uintptr_t)a->slots;
	else
		words |= (uintptr_t)a->kv.indptr | (uintptr_t)a->kv.indices | (uintptr_t)a->kv.last_page_len;
	if (words & 3)
		return cairn_error(EINVAL, "mla_decode: lse, qo_indptr, slots, kv.indptr, kv.indices, "
				   "kv.last_page_len: must be 4-byte aligned");
	if ((uintptr_t)a->workspace & 255)
		return cairn_error(EINVAL, "mla_decode: workspace: must be 256-byte aligned");
	return 0;
}
