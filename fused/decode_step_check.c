// SPDX-License-Identifier: Apache-2.0
/*
 * decode_step_check - which arguments are legal: what ref, cpu and cuda all refuse, with the same words
 */
#include "decode_step.h"

#include <math.h>

#include "../primitives/dtype.h"
#include "../primitives/error.h"

static int check_strides(const struct cairn_decode_step_args *a)
{
	int64_t pool = (int64_t)a->num_pages * a->page_size * a->num_kv_heads * a->head_dim *
		       (int64_t)cairn_dtype_bytes(a->dtype);

	if (a->layer_stride_bytes < 0 || a->layer_stride_bytes % 16)
		return cairn_error(EINVAL, "decode_step: layer_stride_bytes: must be a multiple of 16");
	if (a->kv_stride_bytes < 0 || a->kv_stride_bytes % 16)
		return cairn_error(EINVAL, "decode_step: kv_stride_bytes: must be a multiple of 16");
	if (a->num_layers > 1 && a->kv_stride_bytes < pool)
		return cairn_error(EINVAL, "decode_step: kv_stride_bytes: %lld, a layer's pages have %lld",
				   (long long)a->kv_stride_bytes, (long long)pool);
	return 0;
}

int cairn_decode_step_check_shape(const struct cairn_decode_step_args *a)
{
	if (!a || a->size < sizeof(*a))
		return cairn_error(EINVAL, "decode_step: size: smaller than the argument struct");
	if (a->batch < 0 || a->max_kv_len < 0 || a->num_pages < 0)
		return cairn_error(EINVAL, "decode_step: batch, max_kv_len, num_pages: must be >= 0");
	if (a->page_size < 1 || a->num_layers < 1 || a->hidden < 1 || a->intermediate < 1 ||
	    a->num_qo_heads < 1 || a->num_kv_heads < 1 || a->head_dim < 1 || a->vocab < 1)
		return cairn_error(EINVAL,
				   "decode_step: page_size, num_layers, hidden, intermediate, heads, "
				   "head_dim, vocab: must be >= 1");
	if (a->form < CAIRN_DECODE_STEP_AUTO || a->form > CAIRN_DECODE_STEP_PERSISTENT)
		return cairn_error(EINVAL, "decode_step: form: there is no form %d", a->form);
	if (!(a->eps > 0) || isinf(a->eps))
		return cairn_error(EINVAL, "decode_step: eps: must be finite and > 0");
	if (!(a->sm_scale > 0) || isinf(a->sm_scale))
		return cairn_error(EINVAL, "decode_step: sm_scale: must be finite and > 0");
	if (a->dtype != CAIRN_F16 && a->dtype != CAIRN_BF16)
		return cairn_error(EOPNOTSUPP, "decode_step: dtype: %s", cairn_dtype_name(a->dtype));
	CAIRN_TRY(check_strides(a));
	if (a->batch > 8)
		return cairn_error(EOPNOTSUPP, "decode_step: batch: %d is over 8", a->batch);
	if (a->head_dim != 64 && a->head_dim != 128)
		return cairn_error(EOPNOTSUPP, "decode_step: head_dim: %d is not 64 or 128", a->head_dim);
	if (a->hidden % 64 || a->hidden > 16384)
		return cairn_error(EOPNOTSUPP, "decode_step: hidden: %d is not a multiple of 64 up to 16384",
				   a->hidden);
	if (a->intermediate % 64 || a->intermediate > 65536)
		return cairn_error(EOPNOTSUPP,
				   "decode_step: intermediate: %d is not a multiple of 64 up to 65536",
				   a->intermediate);
	if (a->num_qo_heads % a->num_kv_heads || a->num_qo_heads / a->num_kv_heads > 8)
		return cairn_error(EOPNOTSUPP, "decode_step: num_qo_heads: %d is not 1 to 8 times %d",
				   a->num_qo_heads, a->num_kv_heads);
	if (a->vocab % 8)
		return cairn_error(EOPNOTSUPP, "decode_step: vocab: %d is not a multiple of 8", a->vocab);
	return 0;
}

static int check_pointers(const struct cairn_decode_step_args *a)
{
	const void *needed[] = {
		a->logits, a->k_pages, a->v_pages, a->ids, a->embed, a->lm_head, a->final_norm, a->attn_norm,
		a->w_qkv, a->w_o, a->mlp_norm, a->w_gate_up, a->w_down, a->inv_freq, a->positions,
		a->kv_indptr, a->kv_indices, a->kv_last_page_len,
	};
	const void *aligned[] = {
		a->logits, a->k_pages, a->v_pages, a->embed, a->lm_head, a->final_norm, a->attn_norm,
		a->w_qkv, a->b_qkv, a->w_o, a->b_o, a->mlp_norm, a->w_gate_up, a->w_down,
	};
	const void *sampling[] = { a->temperature, a->top_p, a->min_p, a->top_k, a->seed, a->offset };
	int given = 0;

	for (size_t i = 0; i < sizeof(needed) / sizeof(needed[0]); i++)
		if (!needed[i])
			return cairn_error(EINVAL, "decode_step: null pointer");
	for (size_t i = 0; i < sizeof(aligned) / sizeof(aligned[0]); i++)
		if ((uintptr_t)aligned[i] & 15)
			return cairn_error(EINVAL,
					   "decode_step: logits, weights and pages must be 16-byte aligned");
	for (size_t i = 0; i < sizeof(sampling) / sizeof(sampling[0]); i++)
		given += sampling[i] != NULL;
	if (given != 0 && given != 6)
		return cairn_error(EINVAL,
				   "decode_step: temperature, top_p, min_p, top_k, seed, offset: all or "
				   "none");
	if ((uintptr_t)a->workspace & 255)
		return cairn_error(EINVAL, "decode_step: workspace must be 256-byte aligned");
	return 0;
}

int cairn_decode_step_check(const struct cairn_decode_step_args *a)
{
	CAIRN_TRY(cairn_decode_step_check_shape(a));
	return check_pointers(a);
}
