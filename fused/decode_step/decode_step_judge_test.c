// SPDX-License-Identifier: Apache-2.0
/*
 * decode_step_judge_test - judges results and lists arguments that must be rejected
 *
 * Where a layer's experts are not decided, the rest of a request is only checked to be finite
 * (decode_step_bounds.c). decode_step_weights_test.c makes models whose experts are decided, and a case fails
 * if less than half of its requests can be judged. Tokens are also checked against the implementation's own
 * logits, for which argmax and sample are exact.
 */
#include <math.h>
#include <stdio.h>

#include "conformance/harness.h"
#include "fused/cache/paged_test.h"
#include "fused/decode_step/decode_step_test.h"

/* Checks the tokens, which are exact functions of the call's own logits. */
int step_judge(const struct cairn_op *op, const void *got, char *why, size_t len)
{
	const struct cairn_decode_step_args *a = got;
	int32_t want[PAGED_MAX_BATCH];
	struct cairn_argmax_args argmax = {
		.size = sizeof(argmax), .out = want, .logits = a->logits, .rows = a->kv.batch,
		.vocab = a->vocab, .dtype = CAIRN_F32,
	};
	struct cairn_sample_args sample = {
		.size = sizeof(sample), .out = want, .logits = a->logits, .temperature = a->temperature,
		.top_k = a->top_k, .top_p = a->top_p, .min_p = a->min_p, .seed = a->seed, .offset = a->offset,
		.rows = a->kv.batch, .vocab = a->vocab,
	};

	(void)op;
	if (!a->tokens || cairn_argmax_ref(&argmax, NULL))
		return 0;
	for (int b = 0; b < a->kv.batch; b++) {
		char text[256] = "";

		if (a->kv.indptr[b + 1] == a->kv.indptr[b] || !a->kv.last_page_len[b])
			continue;		/* the request is undefined */
		if (a->temperature && a->temperature[b] > 0) {
			if (cairn_sample_judge(&sample, b, a->tokens[b], text, sizeof(text))) {
				snprintf(why, len, "request %d: token %d: %s", b, a->tokens[b], text);
				return 1;
			}
		} else if (a->tokens[b] != want[b]) {
			snprintf(why, len, "request %d: token %d, but logit %d is the largest", b,
				 a->tokens[b], want[b]);
			return 1;
		}
	}
	return 0;
}

/* Sets arguments of a model with experts; a rejected call reads no array. */
static void some_experts(struct cairn_decode_step_args *a)
{
	a->w_router = a->w_experts_gate_up = a->w_experts_down = a->w_gate_up;
	a->num_experts = 2;
	a->experts_per_token = 1;
	a->expert_intermediate = 64;
	a->expert_scaling = 1;
}

const char *step_reject(void *args, int i, int *want)
{
	struct cairn_decode_step_args *a = args;

	*want = i < 42 || i > 53 ? -EINVAL : -EOPNOTSUPP;
	switch (i) {
	case 0: a->size = 8; return "size_too_small";
	case 1: a->logits = NULL; return "logits_null";
	case 2: a->kv.k_pages = NULL; return "k_pages_null";
	case 3: a->kv.v_pages = NULL; return "v_pages_null";
	case 4: a->ids = NULL; return "ids_null";
	case 5: a->embed = NULL; return "embed_null";
	case 6: a->lm_head = NULL; return "lm_head_null";
	case 7: a->final_norm = NULL; return "final_norm_null";
	case 8: a->attn_norm = NULL; return "attn_norm_null";
	case 9: a->w_qkv = NULL; return "w_qkv_null";
	case 10: a->w_o = NULL; return "w_o_null";
	case 11: a->mlp_norm = NULL; return "mlp_norm_null";
	case 12: a->w_gate_up = NULL; return "w_gate_up_null";
	case 13: a->w_down = NULL; return "w_down_null";
	case 14: a->inv_freq = NULL; return "inv_freq_null";
	case 15: a->positions = NULL; return "positions_null";
	case 16: a->kv.indptr = NULL; return "kv_indptr_null";
	case 17: a->kv.indices = NULL; return "kv_indices_null";
	case 18: a->kv.last_page_len = NULL; return "kv_last_page_len_null";
	case 19: a->logits = (float *)((char *)a->logits + 4); return "logits_misaligned";
	case 20: a->kv.k_pages = (char *)a->kv.k_pages + 8; return "k_pages_misaligned";
	case 21: a->w_qkv = (const char *)a->w_qkv + 2; return "w_qkv_misaligned";
	case 22: a->lm_head = (const char *)a->lm_head + 8; return "lm_head_misaligned";
	case 23: a->b_o = (const char *)a->w_o + 4; return "b_o_misaligned";
	case 24: a->kv.batch = -1; return "batch_negative";
	case 25: a->kv.max_len = -1; return "max_kv_len_negative";
	case 26: a->kv.num_pages = -1; return "num_pages_negative";
	case 27: a->kv.page_size = 0; return "page_size_0";
	case 28: a->num_layers = 0; return "num_layers_0";
	case 29: a->num_kv_heads = 0; return "num_kv_heads_0";
	case 30: a->hidden = 0; return "hidden_0";
	case 31: a->vocab = 0; return "vocab_0";
	case 32: a->form = 3; return "form_3";
	case 33: a->form = -1; return "form_negative";
	case 34: a->eps = 0; return "eps_0";
	case 35: a->sm_scale = NAN; return "sm_scale_nan";
	case 36: a->layer_stride_bytes += 8; return "layer_stride_not_16";
	case 37: a->layer_stride_bytes = -16; return "layer_stride_negative";
	case 38: a->num_layers = 2; a->kv_stride_bytes = 16; return "kv_stride_short";
	case 39: a->kv_stride_bytes += 8; return "kv_stride_not_16";
	case 40: a->temperature = a->inv_freq; return "temperature_alone";
	case 41: a->workspace = (char *)a->workspace + 16; return "workspace_misaligned";
	case 42: a->dtype = CAIRN_F32; return "dtype_f32";
	case 43: a->kv.batch = 9; return "batch_9";
	case 44: a->head_dim = 96; return "head_dim_96";
	case 45: a->head_dim = 256; return "head_dim_256";
	case 46: a->hidden = 96; return "hidden_96";
	case 47: a->hidden = 16448; return "hidden_16448";
	case 48: a->intermediate = 96; return "intermediate_96";
	case 49: a->intermediate = 65600; return "intermediate_65600";
	case 50: a->num_qo_heads = 5; a->num_kv_heads = 2; return "heads_5_over_2";
	case 51: a->num_qo_heads = 9 * a->num_kv_heads; return "group_9";
	case 52: a->vocab = 12; return "vocab_12";
	case 53: a->kv.batch = 8; a->hidden = 8192; return "batch_8_hidden_8192";
	case 54: a->kv_lora_rank = 512; return "kv_lora_rank_alone";
	case 55: a->kv_lora_rank = -512; return "kv_lora_rank_negative";
	case 56: a->q_lora_rank = -64; return "q_lora_rank_negative";
	case 57: a->w_q = a->w_qkv; return "w_q_without_a_rank";
	case 58: a->w_kv_b = a->w_qkv; return "w_kv_b_without_a_rank";
	case 59: a->num_experts = -1; return "num_experts_negative";
	case 60: a->num_experts = 4; return "num_experts_alone";
	case 61: a->w_router = a->w_down; return "w_router_without_experts";
	case 62: a->w_shared_down = a->w_down; return "w_shared_down_without_experts";
	case 63: some_experts(a); a->dense_layers = 2; return "dense_layers_2_of_1";
	case 64: some_experts(a); a->dense_layers = -1; return "dense_layers_negative";
	case 65: some_experts(a); a->w_experts_down = NULL; return "w_experts_down_null";
	case 66: some_experts(a); a->shared_intermediate = 64; return "w_shared_null_with_a_width";
	case 67: some_experts(a); a->expert_scaling = NAN; return "expert_scaling_nan";
	case 68: a->size = sizeof(*a) - 8; return "size_8_too_small";
	case 69: a->eps = NAN; return "eps_nan";
	case 70: a->eps = INFINITY; return "eps_inf";
	case 71: a->eps = -1; return "eps_negative";
	case 72: a->sm_scale = 0; return "sm_scale_0";
	case 73: a->sm_scale = INFINITY; return "sm_scale_inf";
	case 74: a->sm_scale = -1; return "sm_scale_negative";
	case 75: a->sms = -1; return "sms_negative";
	case 76: a->eps = 1e-39f; return "eps_subnormal";
	}
	return NULL;
}

int step_exact(const void *args, struct cairn_exact *e)
{
	const struct cairn_decode_step_args *a = args;
	int keys = 0, judged = 0;

	CAIRN_TRY(cairn_decode_step_exact(args, e));
	for (int b = 0; b < a->kv.batch; b++) {
		keys += !isnan(e[0].val[(int64_t)b * a->vocab]);
		judged += isfinite(e[0].bound[(int64_t)b * a->vocab]);
	}
	if (2 * judged < keys)
		return cairn_error(EINVAL, "decode_step: experts are decided for %d of %d requests: "
				   "too few to judge", judged, keys);
	return 0;
}
