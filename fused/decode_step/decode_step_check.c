// SPDX-License-Identifier: Apache-2.0
/*
 * decode_step - argument checks shared by all of our tables
 */
#include "fused/decode_step/decode_step_parts.h"

#include <math.h>

#include "primitives/base/args.h"
#include "primitives/base/dtype.h"
#include "primitives/base/error.h"
#include "primitives/rows/rmsnorm.h"

static int check_strides(const struct cairn_decode_step_args *a)
{
	int64_t pool = (int64_t)a->kv.num_pages * a->kv.page_size * decode_step_k_row(a) *
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

/* Returns whether there are layers with a dense MLP. */
static int has_dense(const struct cairn_decode_step_args *a)
{
	return !a->num_experts || a->dense_layers > 0;
}

static int check_attention(const struct cairn_decode_step_args *a)
{
	struct cairn_cluster_mla_args mla;

	if (!a->kv_lora_rank && a->head_dim != 64 && a->head_dim != 128)
		return cairn_error(EOPNOTSUPP, "decode_step: head_dim: %d is not 64 or 128", a->head_dim);
	if (!a->kv_lora_rank &&
	    (a->num_qo_heads % a->num_kv_heads || a->num_qo_heads / a->num_kv_heads > 8))
		return cairn_error(EOPNOTSUPP, "decode_step: num_qo_heads: %d is not 1 to 8 times %d",
				   a->num_qo_heads, a->num_kv_heads);
	if (!a->kv_lora_rank)
		return 0;
	if (a->num_kv_heads != 1 || a->head_dim != (int64_t)a->nope_dim + a->rope_dim)
		return cairn_error(EINVAL, "decode_step: num_kv_heads, head_dim: must be 1 and "
				   "nope_dim + rope_dim with kv_lora_rank");
	mla = decode_step_mla(a, 0);
	return cairn_cluster_mla_check_shape(&mla);
}

static int check_experts(const struct cairn_decode_step_args *a)
{
	struct cairn_moe_args moe;

	if (!a->num_experts)
		return 0;
	if (a->dense_layers < 0 || a->dense_layers > a->num_layers)
		return cairn_error(EINVAL, "decode_step: dense_layers: %d is not 0..num_layers",
				   a->dense_layers);
	moe = decode_step_moe_of(a, a->dense_layers);
	return cairn_moe_check_shape(&moe);
}

int cairn_decode_step_check_shape(const struct cairn_decode_step_args *a)
{
	CAIRN_TRY(cairn_check_args(a, sizeof(*a), "decode_step"));
	if (a->kv.batch < 0 || a->kv.max_len < 0 || a->kv.num_pages < 0)
		return cairn_error(EINVAL, "decode_step: kv.batch, kv.max_len, kv.num_pages: must be >= 0");
	if (a->sms < 0)
		return cairn_error(EINVAL, "decode_step: sms: must be >= 0");
	if (a->q_lora_rank < 0 || a->kv_lora_rank < 0 || a->num_experts < 0)
		return cairn_error(EINVAL,
				   "decode_step: q_lora_rank, kv_lora_rank, num_experts: must be >= 0");
	if (a->kv.page_size < 1 || a->num_layers < 1 || a->hidden < 1 || a->num_qo_heads < 1 ||
	    a->num_kv_heads < 1 || a->head_dim < 1 || a->vocab < 1 || a->intermediate < has_dense(a))
		return cairn_error(EINVAL,
				   "decode_step: kv.page_size, num_layers, hidden, intermediate, heads, "
				   "head_dim, vocab: must be >= 1");
	if (a->form < CAIRN_DECODE_STEP_AUTO || a->form > CAIRN_DECODE_STEP_PERSISTENT)
		return cairn_error(EINVAL, "decode_step: form: there is no form %d", a->form);
	if (!cairn_is_eps(a->eps))
		return cairn_error(EINVAL, "decode_step: eps: must be finite and at least 2^-126");
	if (!(a->sm_scale > 0) || isinf(a->sm_scale))
		return cairn_error(EINVAL, "decode_step: sm_scale: must be finite and > 0");
	if (a->dtype != CAIRN_F16 && a->dtype != CAIRN_BF16)
		return cairn_error(EOPNOTSUPP, "decode_step: dtype: %s", cairn_dtype_name(a->dtype));
	CAIRN_TRY(check_strides(a));
	if (a->kv.batch > 8)
		return cairn_error(EOPNOTSUPP, "decode_step: kv.batch: %d is over 8", a->kv.batch);
	if (a->hidden % 64 || a->hidden > 16384)
		return cairn_error(EOPNOTSUPP, "decode_step: hidden: %d is not a multiple of 64 up to 16384",
				   a->hidden);
	if (a->kv.batch * a->hidden > 32768)
		return cairn_error(EOPNOTSUPP, "decode_step: kv.batch * hidden: %d is over 32768",
				   a->kv.batch * a->hidden);
	if (has_dense(a) && (a->intermediate % 64 || a->intermediate > 65536))
		return cairn_error(EOPNOTSUPP,
				   "decode_step: intermediate: %d is not a multiple of 64 up to 65536",
				   a->intermediate);
	if (a->vocab % 8)
		return cairn_error(EOPNOTSUPP, "decode_step: vocab: %d is not a multiple of 8", a->vocab);
	CAIRN_TRY(check_attention(a));
	return check_experts(a);
}

/* Checks that all pointers are set if `needed`, and with `not_else` that they are NULL otherwise. */
static int check_needed(const char *names, const void *const *p, size_t count, int needed, int not_else)
{
	for (size_t i = 0; i < count; i++)
		if ((needed && !p[i]) || (not_else && !needed && p[i]))
			return cairn_error(EINVAL, "decode_step: %s: %s", names,
					   needed ? "null pointer" : "must be NULL for this model");
	return 0;
}

#define CHECK_NEEDED(names, needed, not_else, ...) \
	CAIRN_TRY(check_needed(names, (const void *const[]){ __VA_ARGS__ }, \
			       sizeof((const void *const[]){ __VA_ARGS__ }) / sizeof(void *), \
			       needed, not_else))

static int check_pointers(const struct cairn_decode_step_args *a)
{
	const void *aligned[] = {
		a->logits, a->kv.k_pages, a->kv.v_pages, a->embed, a->lm_head, a->final_norm, a->attn_norm,
		a->w_qkv, a->b_qkv, a->w_o, a->b_o, a->mlp_norm, a->w_gate_up, a->w_down, a->w_q, a->w_q_a,
		a->q_norm, a->w_kv_a, a->kv_norm, a->w_kv_b, a->w_router, a->w_experts_gate_up,
		a->w_experts_down, a->w_shared_gate_up, a->w_shared_down,
	};
	const void *sampling[] = { a->temperature, a->top_p, a->min_p, a->top_k, a->seed, a->offset };
	int latent = a->kv_lora_rank > 0, experts = a->num_experts > 0, given = 0;

	CHECK_NEEDED("logits, ids, embed, lm_head, final_norm, attn_norm, w_o, mlp_norm, inv_freq, positions",
		     1, 0, a->logits, a->ids, a->embed, a->lm_head, a->final_norm, a->attn_norm, a->w_o,
		     a->mlp_norm, a->inv_freq, a->positions);
	CHECK_NEEDED("kv.k_pages, kv.indptr, kv.indices, kv.last_page_len", 1, 0, a->kv.k_pages, a->kv.indptr,
		     a->kv.indices, a->kv.last_page_len);
	CHECK_NEEDED("w_gate_up, w_down", has_dense(a), 0, a->w_gate_up, a->w_down);
	CHECK_NEEDED("kv.v_pages, w_qkv", !latent, 1, a->kv.v_pages, a->w_qkv);
	if (latent)
		CHECK_NEEDED("b_qkv, b_o", 0, 1, a->b_qkv, a->b_o);
	CHECK_NEEDED("w_q, w_kv_a, kv_norm, w_kv_b", latent, 1, a->w_q, a->w_kv_a, a->kv_norm, a->w_kv_b);
	CHECK_NEEDED("w_q_a, q_norm", latent && a->q_lora_rank, 1, a->w_q_a, a->q_norm);
	CHECK_NEEDED("w_router, w_experts_gate_up, w_experts_down", experts, 1, a->w_router,
		     a->w_experts_gate_up, a->w_experts_down);
	CHECK_NEEDED("w_shared_gate_up, w_shared_down", experts && a->shared_intermediate, 1,
		     a->w_shared_gate_up, a->w_shared_down);
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
