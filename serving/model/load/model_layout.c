// SPDX-License-Identifier: Apache-2.0
/*
 * model_layout - places every weight in the model's memory
 *
 * parts[] maps each tensor of a checkpoint to its part of a weight, with its shape; the rest of the file
 * walks this table. A new architecture needs only a few more lines.
 *
 * A layer is a block of layer_bytes. Layers are contiguous; weights outside the layers follow the last one.
 * decode_step needs one stride for all weights, but layers with experts are ten times as large as dense ones,
 * which come first. Dense and expert weights therefore share the front of a block, each ending where the
 * attention weights start, and the memory before the first block's dense weights is not allocated.
 *
 *   no experts   [attention, dense]                    [attention, dense]          ...
 *   experts               [dense, attention]  [experts        , attention]  [experts        , attention] ...
 */
#include "serving/model/load/model_impl.h"

#include <math.h>
#include <stdio.h>

#include "primitives/base/dtype.h"
#include "primitives/base/error.h"
#include "primitives/gemm/w4/gemm_w4_pack.h"
#include "serving/model/model_graph.h"

#define COUNT(a)	((int)(sizeof(a) / sizeof((a)[0])))
#define ALIGNMENT	256

static const struct cairn_part parts[] = {
	{ "model.embed_tokens.weight", CAIRN_W_EMBED, CAIRN_D_VOCAB, CAIRN_D_HIDDEN, CAIRN_EMBEDS },
	{ "embed_tokens.weight", CAIRN_W_EMBED, CAIRN_D_VOCAB, CAIRN_D_HIDDEN, CAIRN_MTP },
	{ "enorm.weight", CAIRN_W_E_NORM, CAIRN_D_HIDDEN, CAIRN_D_ONE, CAIRN_MTP },
	{ "hnorm.weight", CAIRN_W_H_NORM, CAIRN_D_HIDDEN, CAIRN_D_ONE, CAIRN_MTP },
	{ "eh_proj.weight", CAIRN_W_EH_PROJ, CAIRN_D_HIDDEN, CAIRN_D_TWO_HIDDEN, CAIRN_MTP },
	{ "input_layernorm.weight", CAIRN_W_ATTN_NORM, CAIRN_D_HIDDEN, CAIRN_D_ONE, CAIRN_ALWAYS },
	{ "self_attn.q_proj.weight", CAIRN_W_QKV, CAIRN_D_Q, CAIRN_D_HIDDEN, CAIRN_HEADS },
	{ "self_attn.k_proj.weight", CAIRN_W_QKV, CAIRN_D_KV, CAIRN_D_HIDDEN, CAIRN_HEADS },
	{ "self_attn.v_proj.weight", CAIRN_W_QKV, CAIRN_D_KV, CAIRN_D_HIDDEN, CAIRN_HEADS },
	{ "self_attn.q_proj.bias", CAIRN_W_QKV_BIAS, CAIRN_D_Q, CAIRN_D_ONE, CAIRN_QKV_BIAS },
	{ "self_attn.k_proj.bias", CAIRN_W_QKV_BIAS, CAIRN_D_KV, CAIRN_D_ONE, CAIRN_QKV_BIAS },
	{ "self_attn.v_proj.bias", CAIRN_W_QKV_BIAS, CAIRN_D_KV, CAIRN_D_ONE, CAIRN_QKV_BIAS },
	{ "self_attn.q_proj.weight", CAIRN_W_Q, CAIRN_D_Q, CAIRN_D_HIDDEN, CAIRN_Q_WHOLE },
	{ "self_attn.q_a_proj.weight", CAIRN_W_Q_A, CAIRN_D_Q_LORA, CAIRN_D_HIDDEN, CAIRN_Q_COMPRESSED },
	{ "self_attn.q_a_layernorm.weight", CAIRN_W_Q_NORM, CAIRN_D_Q_LORA, CAIRN_D_ONE, CAIRN_Q_COMPRESSED },
	{ "self_attn.q_b_proj.weight", CAIRN_W_Q, CAIRN_D_Q, CAIRN_D_Q_LORA, CAIRN_Q_COMPRESSED },
	{ "self_attn.kv_a_proj_with_mqa.weight", CAIRN_W_KV_A, CAIRN_D_LATENT, CAIRN_D_HIDDEN, CAIRN_LATENT },
	{ "self_attn.kv_a_layernorm.weight", CAIRN_W_KV_NORM, CAIRN_D_KV_LORA, CAIRN_D_ONE, CAIRN_LATENT },
	{ "self_attn.kv_b_proj.weight", CAIRN_W_KV_B, CAIRN_D_KV_B, CAIRN_D_KV_LORA, CAIRN_LATENT },
	{ "self_attn.o_proj.weight", CAIRN_W_O, CAIRN_D_HIDDEN, CAIRN_D_ATTN, CAIRN_ALWAYS },
	{ "self_attn.o_proj.bias", CAIRN_W_O_BIAS, CAIRN_D_HIDDEN, CAIRN_D_ONE, CAIRN_O_BIAS },
	{ "self_attn.q_norm.weight", CAIRN_W_Q_HEAD_NORM, CAIRN_D_HEAD, CAIRN_D_ONE, CAIRN_HEAD_NORMS },
	{ "self_attn.k_norm.weight", CAIRN_W_K_HEAD_NORM, CAIRN_D_HEAD, CAIRN_D_ONE, CAIRN_HEAD_NORMS },
	{ "self_attn.sinks", CAIRN_W_SINKS, CAIRN_D_HEADS, CAIRN_D_ONE, CAIRN_SINKS },
	{ "post_attention_layernorm.weight", CAIRN_W_MLP_NORM, CAIRN_D_HIDDEN, CAIRN_D_ONE, CAIRN_TWO_NORMS },
	{ "post_attention_layernorm.weight", CAIRN_W_ATTN_OUT_NORM, CAIRN_D_HIDDEN, CAIRN_D_ONE,
	  CAIRN_FOUR_NORMS },
	{ "pre_feedforward_layernorm.weight", CAIRN_W_MLP_NORM, CAIRN_D_HIDDEN, CAIRN_D_ONE,
	  CAIRN_FOUR_NORMS },
	{ "post_feedforward_layernorm.weight", CAIRN_W_MLP_OUT_NORM, CAIRN_D_HIDDEN, CAIRN_D_ONE,
	  CAIRN_FOUR_NORMS },
	{ "mlp.gate_proj.weight", CAIRN_W_GATE_UP, CAIRN_D_INTER, CAIRN_D_HIDDEN, CAIRN_DENSE },
	{ "mlp.up_proj.weight", CAIRN_W_GATE_UP, CAIRN_D_INTER, CAIRN_D_HIDDEN, CAIRN_DENSE },
	{ "mlp.gate_proj.bias", CAIRN_W_GATE_UP_BIAS, CAIRN_D_INTER, CAIRN_D_ONE, CAIRN_MLP_BIAS },
	{ "mlp.up_proj.bias", CAIRN_W_GATE_UP_BIAS, CAIRN_D_INTER, CAIRN_D_ONE, CAIRN_MLP_BIAS },
	{ "mlp.down_proj.weight", CAIRN_W_DOWN, CAIRN_D_HIDDEN, CAIRN_D_INTER, CAIRN_DENSE },
	{ "mlp.down_proj.bias", CAIRN_W_DOWN_BIAS, CAIRN_D_HIDDEN, CAIRN_D_ONE, CAIRN_MLP_BIAS },
	{ "mlp.gate.weight", CAIRN_W_ROUTER, CAIRN_D_EXPERTS, CAIRN_D_HIDDEN, CAIRN_EXPERTS },
	{ "mlp.gate.e_score_correction_bias", CAIRN_W_ROUTE_BIAS, CAIRN_D_EXPERTS, CAIRN_D_ONE,
	  CAIRN_ROUTE_BIAS },
	{ "mlp.experts.%d.gate_proj.weight", CAIRN_W_EXPERTS_GATE_UP, CAIRN_D_EXPERT_INTER, CAIRN_D_HIDDEN,
	  CAIRN_EACH_EXPERT },
	{ "mlp.experts.%d.up_proj.weight", CAIRN_W_EXPERTS_GATE_UP, CAIRN_D_EXPERT_INTER, CAIRN_D_HIDDEN,
	  CAIRN_EACH_EXPERT },
	{ "mlp.experts.%d.down_proj.weight", CAIRN_W_EXPERTS_DOWN, CAIRN_D_HIDDEN, CAIRN_D_EXPERT_INTER,
	  CAIRN_EACH_EXPERT },
	{ "block_sparse_moe.gate.weight", CAIRN_W_ROUTER, CAIRN_D_EXPERTS, CAIRN_D_HIDDEN, CAIRN_MIXTRAL },
	{ "block_sparse_moe.experts.%d.w1.weight", CAIRN_W_EXPERTS_GATE_UP, CAIRN_D_EXPERT_INTER,
	  CAIRN_D_HIDDEN, CAIRN_EACH_OF_MIXTRAL },
	{ "block_sparse_moe.experts.%d.w3.weight", CAIRN_W_EXPERTS_GATE_UP, CAIRN_D_EXPERT_INTER,
	  CAIRN_D_HIDDEN, CAIRN_EACH_OF_MIXTRAL },
	{ "block_sparse_moe.experts.%d.w2.weight", CAIRN_W_EXPERTS_DOWN, CAIRN_D_HIDDEN, CAIRN_D_EXPERT_INTER,
	  CAIRN_EACH_OF_MIXTRAL },
	{ "mlp.router.weight", CAIRN_W_ROUTER, CAIRN_D_EXPERTS, CAIRN_D_HIDDEN, CAIRN_GPT_OSS },
	{ "mlp.router.bias", CAIRN_W_ROUTE_BIAS, CAIRN_D_EXPERTS, CAIRN_D_ONE, CAIRN_GPT_OSS },
	{ "mlp.experts.gate_up_proj", CAIRN_W_EXPERTS_GATE_UP, CAIRN_D_EXPERT_GATE_UP, CAIRN_D_HIDDEN,
	  CAIRN_STACKED },
	{ "mlp.experts.gate_up_proj_bias", CAIRN_W_EXPERTS_GATE_UP_BIAS, CAIRN_D_EXPERT_GATE_UP, CAIRN_D_ONE,
	  CAIRN_STACKED },
	{ "mlp.experts.down_proj", CAIRN_W_EXPERTS_DOWN, CAIRN_D_HIDDEN, CAIRN_D_EXPERT_INTER,
	  CAIRN_STACKED },
	{ "mlp.experts.down_proj_bias", CAIRN_W_EXPERTS_DOWN_BIAS, CAIRN_D_HIDDEN, CAIRN_D_ONE,
	  CAIRN_STACKED },
	{ "mlp.shared_experts.gate_proj.weight", CAIRN_W_SHARED_GATE_UP, CAIRN_D_SHARED_INTER, CAIRN_D_HIDDEN,
	  CAIRN_SHARED },
	{ "mlp.shared_experts.up_proj.weight", CAIRN_W_SHARED_GATE_UP, CAIRN_D_SHARED_INTER, CAIRN_D_HIDDEN,
	  CAIRN_SHARED },
	{ "mlp.shared_experts.down_proj.weight", CAIRN_W_SHARED_DOWN, CAIRN_D_HIDDEN, CAIRN_D_SHARED_INTER,
	  CAIRN_SHARED },
	{ "model.norm.weight", CAIRN_W_FINAL_NORM, CAIRN_D_HIDDEN, CAIRN_D_ONE, CAIRN_ENDS },
	{ "lm_head.weight", CAIRN_W_LM_HEAD, CAIRN_D_HEAD_VOCAB, CAIRN_D_HIDDEN, CAIRN_UNTIED },
	{ "shared_head.norm.weight", CAIRN_W_FINAL_NORM, CAIRN_D_HIDDEN, CAIRN_D_ONE, CAIRN_MTP },
	{ "shared_head.head.weight", CAIRN_W_LM_HEAD, CAIRN_D_HEAD_VOCAB, CAIRN_D_HIDDEN, CAIRN_MTP },
};

/* Returns whether the model has the part, in any layer or outside the layers. */
static int is_present(const struct cairn_model_config *c, enum cairn_present present)
{
	const int is_last = c->stages <= 1 || c->stage == c->stages - 1;

	switch (present) {
	case CAIRN_EMBEDS:
		return !c->mtp_layer && (!c->stage || (is_last && c->tie_word_embeddings));
	case CAIRN_ENDS:
		return !c->mtp_layer && is_last;
	case CAIRN_MTP:
		return c->mtp_layer > 0;
	case CAIRN_UNTIED:
		return !c->tie_word_embeddings && !c->mtp_layer && is_last;
	case CAIRN_HEADS:
		return !c->latent.kv_lora_rank;
	case CAIRN_QKV_BIAS:
		return c->qkv_bias;
	case CAIRN_O_BIAS:
		return c->o_bias;
	case CAIRN_HEAD_NORMS:
		return c->head_norms;
	case CAIRN_TWO_NORMS:
		return !c->block_norms;
	case CAIRN_FOUR_NORMS:
		return c->block_norms;
	case CAIRN_LATENT:
		return c->latent.kv_lora_rank > 0;
	case CAIRN_Q_WHOLE:
		return c->latent.kv_lora_rank && !c->latent.q_lora_rank;
	case CAIRN_Q_COMPRESSED:
		return c->latent.q_lora_rank > 0;
	case CAIRN_DENSE:
		return !c->experts.num_experts || c->experts.dense_layers;
	case CAIRN_MLP_BIAS:
		return c->mlp_bias;
	case CAIRN_SHARED:
		return c->experts.shared_intermediate_size > 0;
	case CAIRN_ROUTE_BIAS:
		return c->experts.sigmoid;
	case CAIRN_EXPERTS:
	case CAIRN_EACH_EXPERT:
		return c->experts.num_experts > 0 && c->arch != CAIRN_ARCH_MIXTRAL &&
		       c->arch != CAIRN_ARCH_GPT_OSS;
	case CAIRN_SINKS:
		return c->sinks;
	case CAIRN_GPT_OSS:
	case CAIRN_STACKED:
		return c->arch == CAIRN_ARCH_GPT_OSS;
	case CAIRN_MIXTRAL:
	case CAIRN_EACH_OF_MIXTRAL:
		return c->experts.num_experts > 0 && c->arch == CAIRN_ARCH_MIXTRAL;
	default:
		return 1;
	}
}

enum kind { OF_LAYERS, OF_DENSE_LAYERS, OF_EXPERT_LAYERS, OF_MODEL, NUM_KINDS };

static enum kind kind_of(enum cairn_weight w)
{
	if (w >= CAIRN_W_EMBED)
		return OF_MODEL;
	if (w >= CAIRN_W_ROUTER)
		return OF_EXPERT_LAYERS;
	return w > CAIRN_W_MLP_NORM ? OF_DENSE_LAYERS : OF_LAYERS;
}

void cairn_weight_layers(const struct cairn_model *m, enum cairn_weight w, int32_t *first, int32_t *end)
{
	enum kind kind = kind_of(w);
	int32_t all = m->config.num_hidden_layers;
	int32_t dense = m->config.experts.num_experts ? m->config.experts.dense_layers : all;

	*first = kind == OF_EXPERT_LAYERS ? dense : 0;
	*end = kind == OF_MODEL ? 1 : kind == OF_DENSE_LAYERS ? dense : all;
}

int cairn_weight_is_bias(enum cairn_weight w)
{
	return w == CAIRN_W_QKV_BIAS || w == CAIRN_W_O_BIAS || w == CAIRN_W_GATE_UP_BIAS ||
	       w == CAIRN_W_DOWN_BIAS || w == CAIRN_W_ROUTE_BIAS || w == CAIRN_W_SINKS ||
	       w == CAIRN_W_EXPERTS_GATE_UP_BIAS || w == CAIRN_W_EXPERTS_DOWN_BIAS;
}

int cairn_weight_dtype(const struct cairn_model *m, enum cairn_weight w)
{
	return w == CAIRN_W_ROUTE_BIAS || w == CAIRN_W_SINKS ? CAIRN_F32 : m->dtype;
}

static int64_t element_bytes(const struct cairn_model *m, enum cairn_weight w)
{
	return (int64_t)cairn_dtype_bytes(cairn_weight_dtype(m, w));
}

void *cairn_model_weight(const struct cairn_model *m, int32_t layer, enum cairn_weight w)
{
	if (w == CAIRN_W_LM_HEAD && m->config.tie_word_embeddings)
		w = CAIRN_W_EMBED;
	if (!m->elements[w])
		return NULL;
	return m->base + (m->offset[w] + (kind_of(w) == OF_MODEL ? 0 : layer * (int64_t)m->layer_bytes));
}

static int64_t part_elements(const struct cairn_model *m, const struct cairn_part *p)
{
	return (int64_t)m->dims[p->rows] * m->dims[p->cols];
}

static int32_t copies(const struct cairn_model *m, const struct cairn_part *p)
{
	int each = p->present == CAIRN_EACH_EXPERT || p->present == CAIRN_EACH_OF_MIXTRAL ||
		   p->present == CAIRN_STACKED;

	return each ? m->config.experts.num_experts : 1;
}

static int64_t aligned(int64_t bytes)
{
	return (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

/* Returns how many matrices [n, k] a weight of quantised models consists of; 0: it is never quantised. */
static int32_t matrices_of(const struct cairn_model *m, enum cairn_weight w, int32_t *n, int32_t *k)
{
	/* Matrices of n * pairs rows (pairs 2: up below gate) and k columns, num of them per layer. */
	static const struct {
		enum cairn_weight weight;
		int pairs;
		enum cairn_dim n, k, num;
	} matrices[] = {
		{ CAIRN_W_QKV, 1, CAIRN_D_QKV, CAIRN_D_HIDDEN, CAIRN_D_ONE },
		{ CAIRN_W_Q, 1, CAIRN_D_Q, CAIRN_D_HIDDEN, CAIRN_D_ONE },
		{ CAIRN_W_Q_A, 1, CAIRN_D_Q_LORA, CAIRN_D_HIDDEN, CAIRN_D_ONE },
		{ CAIRN_W_KV_A, 1, CAIRN_D_LATENT, CAIRN_D_HIDDEN, CAIRN_D_ONE },
		{ CAIRN_W_O, 1, CAIRN_D_HIDDEN, CAIRN_D_ATTN, CAIRN_D_ONE },
		{ CAIRN_W_GATE_UP, 1, CAIRN_D_GATE_UP, CAIRN_D_HIDDEN, CAIRN_D_ONE },
		{ CAIRN_W_DOWN, 1, CAIRN_D_HIDDEN, CAIRN_D_INTER, CAIRN_D_ONE },
		{ CAIRN_W_EXPERTS_GATE_UP, 2, CAIRN_D_EXPERT_INTER, CAIRN_D_HIDDEN, CAIRN_D_EXPERTS },
		{ CAIRN_W_EXPERTS_DOWN, 1, CAIRN_D_HIDDEN, CAIRN_D_EXPERT_INTER, CAIRN_D_EXPERTS },
		{ CAIRN_W_SHARED_GATE_UP, 2, CAIRN_D_SHARED_INTER, CAIRN_D_HIDDEN, CAIRN_D_ONE },
		{ CAIRN_W_SHARED_DOWN, 1, CAIRN_D_HIDDEN, CAIRN_D_SHARED_INTER, CAIRN_D_ONE },
	};

	for (int i = 0; i < COUNT(matrices); i++) {
		if (matrices[i].weight != w || !m->elements[w])
			continue;
		*n = m->dims[matrices[i].n] * matrices[i].pairs;
		*k = m->dims[w == CAIRN_W_Q && m->dims[CAIRN_D_Q_LORA] ? CAIRN_D_Q_LORA : matrices[i].k];
		return m->dims[matrices[i].num];
	}
	return 0;
}

int32_t cairn_weight_fp8(const struct cairn_model *m, enum cairn_weight w, int32_t *n, int32_t *k)
{
	return cairn_weights_are_fp8(m->weights) ? matrices_of(m, w, n, k) : 0;
}

struct cairn_weight_w4 cairn_weight_w4(const struct cairn_model *m, enum cairn_weight w)
{
	const int is_expert = w == CAIRN_W_EXPERTS_GATE_UP || w == CAIRN_W_EXPERTS_DOWN;
	struct cairn_weight_w4 four = { .format = CAIRN_W4_INT, .group = m->config.w4.group };

	if (m->config.w4.stored == CAIRN_STORED_NVFP4)
		four.format = CAIRN_W4_NV;

	if (m->keeps_mxfp4 && is_expert) {
		four.format = CAIRN_W4_MX;
		four.group = CAIRN_MX_GROUP;
	} else if (m->weights != CAIRN_WEIGHTS_W4) {
		return four;
	}
	four.num = matrices_of(m, w, &four.n, &four.k);
	return four;
}

float cairn_model_factor_w4(const struct cairn_model *m, int32_t layer, enum cairn_weight w)
{
	return m->factors_w4 ? m->factors_w4[layer * CAIRN_NUM_WEIGHTS + (int32_t)w] : 1;
}

int32_t cairn_model_experts_w4(const struct cairn_model *m)
{
	const struct cairn_weight_w4 four = cairn_weight_w4(m, CAIRN_W_EXPERTS_GATE_UP);

	if (!four.num)
		return CAIRN_MOE_W4_NONE;
	if (four.format == CAIRN_W4_MX)
		return CAIRN_MOE_W4_MX;
	if (four.format == CAIRN_W4_NV)
		return CAIRN_MOE_W4_NV;
	return four.group == 32 ? CAIRN_MOE_W4_INT_32 : four.group == 64 ? CAIRN_MOE_W4_INT_64 :
	       four.group == 128 ? CAIRN_MOE_W4_INT_128 : CAIRN_MOE_W4_INT_ROW;
}

static int64_t blocks(int32_t n)
{
	return (n + CAIRN_FP8_BLOCK - 1) / CAIRN_FP8_BLOCK;
}

int64_t cairn_weight_scales(const struct cairn_model *m, int32_t n, int32_t k)
{
	return cairn_weights_scale_kind(m->weights) == CAIRN_FP8_SCALE_ROWS ? n : blocks(n) * blocks(k);
}

/* Returns how many factors a weight of experts in NVFP4 has, which follow its scales (moe.h). */
static int64_t num_factors(const struct cairn_weight_w4 *four, enum cairn_weight w)
{
	const int of_expert = w == CAIRN_W_EXPERTS_GATE_UP ? 2 : w == CAIRN_W_EXPERTS_DOWN ? 1 : 0;

	return four->format == CAIRN_W4_NV ? four->num * of_expert : 0;
}

/* Returns the bytes of a weight; a quantised weight is its matrices followed by their scales. */
int64_t cairn_weight_bytes(const struct cairn_model *m, enum cairn_weight w)
{
	const struct cairn_weight_w4 four = cairn_weight_w4(m, w);
	int32_t n, k, num = cairn_weight_fp8(m, w, &n, &k);

	if (four.num)
		return aligned(four.num * cairn_w4_code_bytes(four.n, four.k)) +
		       four.num * cairn_w4_scale_bytes(four.format, four.n, four.k, four.group) +
		       num_factors(&four, w) * (int64_t)sizeof(float);
	if (!num)
		return (int64_t)m->elements[w] * element_bytes(m, w);
	return aligned((int64_t)num * n * k) + 4 * num * cairn_weight_scales(m, n, k);
}

const float *cairn_model_scale(const struct cairn_model *m, int32_t layer, enum cairn_weight w)
{
	int32_t n, k, num = cairn_weight_fp8(m, w, &n, &k);

	if (!num)
		return NULL;
	return (const float *)((const char *)cairn_model_weight(m, layer, w) + aligned((int64_t)num * n * k));
}

const uint8_t *cairn_model_scale_w4(const struct cairn_model *m, int32_t layer, enum cairn_weight w)
{
	const struct cairn_weight_w4 four = cairn_weight_w4(m, w);

	if (!four.num)
		return NULL;
	return (const uint8_t *)cairn_model_weight(m, layer, w) +
	       aligned(four.num * cairn_w4_code_bytes(four.n, four.k));
}

const float *cairn_model_expert_factors(const struct cairn_model *m, int32_t layer, enum cairn_weight w)
{
	const struct cairn_weight_w4 four = cairn_weight_w4(m, w);

	if (!num_factors(&four, w))
		return NULL;
	return (const float *)(cairn_model_scale_w4(m, layer, w) +
			       four.num * cairn_w4_scale_bytes(four.format, four.n, four.k, four.group));
}

static int64_t padded(const struct cairn_model *m, int w)
{
	return aligned(cairn_weight_bytes(m, (enum cairn_weight)w));
}

void cairn_model_lay_out(struct cairn_model *m)
{
	const struct cairn_experts_config *x = &m->config.experts;
	int64_t bytes[NUM_KINDS] = { 0 }, at[NUM_KINDS], missing = 0, front = 0, end;

	cairn_model_dims(&m->config, m->dims);
	for (int i = 0; i < COUNT(parts); i++) {
		const struct cairn_part *p = &parts[i];

		if (is_present(&m->config, p->present))
			m->elements[p->weight] += (size_t)(copies(m, p) * part_elements(m, p));
	}
	for (int w = 0; w < CAIRN_NUM_WEIGHTS; w++)
		bytes[kind_of((enum cairn_weight)w)] += padded(m, w);
	at[OF_LAYERS] = 0;
	at[OF_DENSE_LAYERS] = at[OF_EXPERT_LAYERS] = bytes[OF_LAYERS];
	m->layer_bytes = (size_t)(bytes[OF_LAYERS] + bytes[OF_DENSE_LAYERS]);
	if (x->num_experts) {
		front = bytes[OF_EXPERT_LAYERS] > bytes[OF_DENSE_LAYERS] ? bytes[OF_EXPERT_LAYERS] :
			bytes[OF_DENSE_LAYERS];
		missing = x->dense_layers ? front - bytes[OF_DENSE_LAYERS] : 0;
		at[OF_LAYERS] = front - missing;
		at[OF_DENSE_LAYERS] = at[OF_LAYERS] - bytes[OF_DENSE_LAYERS];
		at[OF_EXPERT_LAYERS] = at[OF_LAYERS] - bytes[OF_EXPERT_LAYERS];
		m->layer_bytes = (size_t)(front + bytes[OF_LAYERS]);
	}
	end = (int64_t)m->layer_bytes * m->config.num_hidden_layers - missing;
	at[OF_MODEL] = end;
	for (int w = 0; w < CAIRN_NUM_WEIGHTS; w++) {
		m->offset[w] = at[kind_of((enum cairn_weight)w)];
		at[kind_of((enum cairn_weight)w)] += padded(m, w);
	}
	m->bytes = (size_t)(end + bytes[OF_MODEL]);
}

int64_t cairn_model_bytes(const struct cairn_model *m)
{
	int32_t first, end;
	int64_t bytes = 0;

	for (int w = 0; w < CAIRN_NUM_WEIGHTS; w++) {
		cairn_weight_layers(m, (enum cairn_weight)w, &first, &end);
		bytes += cairn_weight_bytes(m, (enum cairn_weight)w) * (end - first);
	}
	return bytes;
}

size_t cairn_model_key_bytes(const struct cairn_model *m)
{
	if (cairn_model_is_latent(m))
		return (size_t)m->dims[CAIRN_D_LATENT] * cairn_dtype_bytes(m->dtype);
	return (size_t)cairn_model_cached_heads(m) * (size_t)m->config.head_dim *
	       (m->kv == CAIRN_KV_FP8 ? 1 : cairn_dtype_bytes(m->dtype));
}

int64_t cairn_model_step_bytes(const struct cairn_model *m, int32_t rows, int64_t kv_tokens)
{
	const struct cairn_experts_config *x = &m->config.experts;
	int64_t layers = m->config.num_hidden_layers, element = (int64_t)cairn_dtype_bytes(m->dtype);
	int64_t token = (int64_t)cairn_model_key_bytes(m) * (cairn_model_is_latent(m) ? 1 : 2);
	double bytes = (double)element * (double)rows * m->dims[CAIRN_D_HIDDEN] +
		       (double)(kv_tokens * layers * token);
	/* `other`: the probability that no token chooses a given expert, for at least one token */
	double share = x->num_experts ? (double)x->per_token / x->num_experts : 1;
	double other = pow(1 - share, rows > 1 ? rows : 1);
	int32_t first, end;

	for (int w = 0; w < CAIRN_NUM_WEIGHTS; w++) {
		double part = w == CAIRN_W_EXPERTS_GATE_UP || w == CAIRN_W_EXPERTS_DOWN ? 1 - other : 1;

		if (w == CAIRN_W_EMBED && !m->config.tie_word_embeddings)
			continue;	/* only looked up; its rows are counted above */
		if (w == CAIRN_W_EMBED)
			part = (double)m->dims[CAIRN_D_HEAD_VOCAB] / m->dims[CAIRN_D_VOCAB];
		cairn_weight_layers(m, (enum cairn_weight)w, &first, &end);
		bytes += part * (double)cairn_weight_bytes(m, (enum cairn_weight)w) * (end - first);
	}
	return llround(bytes / (double)element) * element;
}

/* Calls fn for one part, once per expert if it is per expert. `place` is that of the first
 * copy; place.last applies to the last one. */
static int each_copy(struct cairn_model *m, const struct cairn_part *p, struct cairn_place place,
		     cairn_part_fn fn, void *ctx)
{
	int64_t element = element_bytes(m, p->weight);
	int64_t apart = (int64_t)m->elements[p->weight] / copies(m, p) * element;
	const int last = place.last;
	char name[64], full[96];

	for (int32_t k = 0; k < copies(m, p); k++) {
		place.last = last && k == copies(m, p) - 1;
		place.copy = k;
		snprintf(name, sizeof(name), p->name, k);
		if (kind_of(p->weight) == OF_MODEL && !m->config.mtp_layer)
			snprintf(full, sizeof(full), "%s", name);
		else
			snprintf(full, sizeof(full), "model.layers.%d.%s", m->config.mtp_layer +
				 m->config.first_layer + place.layer, name);
		CAIRN_TRY(fn(m, p, full, place, ctx));
		place.first += apart;
	}
	return 0;
}

int cairn_model_each_part(struct cairn_model *m, cairn_part_fn fn, void *ctx)
{
	int32_t first, end;

	for (int32_t layer = 0; layer < m->config.num_hidden_layers; layer++) {
		int64_t filled[CAIRN_NUM_WEIGHTS] = { 0 };

		for (int i = 0; i < COUNT(parts); i++) {
			const struct cairn_part *p = &parts[i];
			struct cairn_place place = { .layer = layer, .first = filled[p->weight] };
			int64_t element = element_bytes(m, p->weight);

			cairn_weight_layers(m, p->weight, &first, &end);
			if (!is_present(&m->config, p->present) || layer < first || layer >= end)
				continue;
			filled[p->weight] += part_elements(m, p) * element;
			place.last = filled[p->weight] * copies(m, p) ==
				     (int64_t)m->elements[p->weight] * element;
			CAIRN_TRY(each_copy(m, p, place, fn, ctx));
		}
	}
	return 0;
}
