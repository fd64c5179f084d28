// SPDX-License-Identifier: Apache-2.0
/*
 * decode_step_mutants - defects of a decode step that occur when operations are chained
 *
 * The mutants are one plain step, made of the reference's parts, with a switch for each defect. The attention
 * block has mutants of its own for the defects inside it; here it gets wrong arguments.
 */
#include <stdlib.h>
#include <string.h>

#include "conformance/harness.h"
#include "primitives/base/kept.h"
#include "fused/cluster_attn/block_attn_ref.h"
#include "fused/latent/cluster_mla_ref.h"
#include "fused/moe/moe_ref.h"
#include "fused/decode_step/decode_step_parts.h"
#include "primitives/base/nudge.h"

#define MAX_BATCH	8

#define DEFECTS(D) \
	D(residual_of_attention_missing, "the output of attention replaces x instead of being added to it") \
	D(residual_of_mlp_missing, "the output of the MLP replaces x instead of being added to it") \
	D(residual_before_attention, "the second residual sum uses the stale x from before attention") \
	D(mlp_reads_stale_norm, "the MLP reads the n of attention") \
	D(gate_and_up_swapped, "silu is applied to the up instead of the gate") \
	D(gate_up_interleaved, "gates and ups are read as alternating rows") \
	D(silu_missing, "gate times up without silu") \
	D(silu_is_sigmoid, "the sigmoid replaces silu") \
	D(down_in_tiles_of_128, "elements past the last whole 128 of intermediate are left out") \
	D(last_layer_skipped, "the last layer is not run") \
	D(layer_0_for_all, "all layers use the weights of layer 0") \
	D(layer_stride_off, "the weights of layer i are read 32 i bytes too early") \
	D(biases_of_layer_0, "all layers use layer 0's b_qkv") \
	D(bias_missing, "b_qkv is not added") \
	D(bias_of_output_missing, "b_o is not added") \
	D(kv_of_layer_0, "all layers append to and read the pages of layer 0") \
	D(kv_stride_is_pool, "the pages of layers are taken to be contiguous") \
	D(append_missing_in_last_layer, "the last layer does not write its new keys and values") \
	D(position_late, "positions are one too high") \
	D(position_of_request_0, "all requests have the position of the first") \
	D(norms_swapped, "attention and MLP use each other's norm weights") \
	D(eps_missing, "eps is not added") \
	D(final_norm_missing, "logits are computed from x without the norm") \
	D(final_norm_weight_missing, "final_norm is not applied") \
	D(head_row_off, "logit i is the one of row i + 1") \
	D(head_is_embed, "embed is used as lm_head") \
	D(head_last_rows_missing, "the last 8 logits are not written") \
	D(logits_in_dtype, "logits are rounded to dtype") \
	D(embed_row_of_request_0, "all requests start with the id of the first") \
	D(embed_id_off, "the embedding row before that of the id is read") \
	D(token_of_request_0, "all requests get the token of the first") \
	D(token_missing, "tokens is not written") \
	D(token_second_best, "the second largest logit is chosen") \
	D(greedy_always, "sampling parameters are ignored") \
	D(sampled_as_request_0, "all requests are sampled with the seed of the first") \
	D(latent_append_missing, "latent attention does not write the new token's latent") \
	D(latent_of_layer_0, "all layers append to and read the latents of layer 0") \
	D(latent_position_late, "positions are one too high in latent attention") \
	D(q_rank_ignored, "q is computed from n without its low-rank projection") \
	D(experts_of_first_layer, "all layers use the experts of the first layer that has experts") \
	D(experts_of_next_layer, "each layer uses the next layer's experts") \
	D(experts_norm_from_0, "mlp_norm starts at layer dense_layers, as the experts do") \
	D(experts_read_stale_x, "the experts read the stale x from before attention") \
	D(residual_of_experts_missing, "the output of the experts replaces x instead of being added to it") \
	D(shared_expert_missing, "the shared expert is left out") \
	D(shared_expert_alone, "only the shared expert is added") \
	D(router_of_first_layer, "all layers use the first router") \
	D(top_expert_alone, "experts_per_token is taken to be 1") \
	D(expert_scaling_missing, "expert_scaling is not applied") \
	D(normalize_experts_missing, "normalize_experts is ignored") \
	D(normalize_experts_always, "the experts' weights are always normalised") \
	D(dense_layers_one_less, "the MLP of the last dense layer is left out") \
	D(size_ignored, "an argument struct that is too small is accepted") \
	D(eps_at_least_1e_30, "eps is raised to 1e-30") \
	D(eps_at_least_1e_6, "eps is raised to 1e-6") \
	D(eps_at_most_1e_4, "eps is lowered to 1e-4") \
	D(page_48_as_32, "the page size is rounded down to a power of two") \
	D(bias_lost_without_tokens, "b_o is left out where tokens is NULL") \
	D(nan_reaches_next_request, "a NaN in one request's logits spreads to the next request") \
	D(not_repeatable, "every other call differs in the last bit of a logit") \
	D(layer_stride_32_bits, "the offset of a layer's weights is cut to 32 bits") \
	D(kv_stride_32_bits, "the offset of a layer's pages is cut to 32 bits") \
	D(id_16_bits, "ids are kept in 16 bits") \
	D(inter_past_16384, "elements of the MLP past the first 16384 are not computed") \
	D(hidden_past_8192, "elements of x past the first 8192 are 0 in the last norm") \
	D(silu_overflows, "silu is computed from exp of the gate, which overflows") \
	D(top_k_256, "at most 256 tokens are kept for a draw with top_k") \
	D(offset_32_bits, "the offsets of draws are kept in 32 bits") \
	D(last_of_equals, "of equal logits the last one is chosen") \
	D(experts_past_128, "experts past the first 128 are not chosen") \
	D(more_than_6_experts, "experts_per_token is at most 6") \
	D(heads_past_32, "with more than 32 heads the result of attention is not added") \
	D(layers_past_3, "layers past the third are not run") \
	D(silu_0_below_20, "silu is 0 for gates below -20") \
	D(eight_of_16384, "with hidden above 8192 the last 8 elements are 0 in the last norm") \
	D(logits_within_f16, "logits are limited to the range of f16") \
	D(scale_in_dtype, "sm_scale is rounded to dtype") \
	D(layers_past_5, "layers past the fifth are not run") \
	D(vocab_past_131072, "logits past the first 131072 are 0") \
	D(nothing, "returns success without doing anything")

#define ENUM(name, what)	STEP_##name,
enum defect { DEFECTS(ENUM) };

struct state {
	const struct cairn_decode_step_args *a;
	enum defect d;
	struct block_row x, n, stale, g, k, v, logits;
	double router[256];
};

static struct block_row new_row(int64_t n)
{
	double *p = calloc(2 * (size_t)n, sizeof(*p));

	if (!p)
		abort();
	return (struct block_row){ p, p + n };	/* values() drops err where no bounds are wanted */
}

static struct block_row values(struct block_row r)
{
	return (struct block_row){ r.val, NULL };
}

static const void *of_layer(const struct state *s, const void *p, int layer)
{
	if (s->d == STEP_layer_0_for_all || (s->d == STEP_biases_of_layer_0 && p == s->a->b_qkv))
		layer = 0;
	if (s->d == STEP_layer_stride_off && p)
		p = (const char *)p - 32 * layer;
	if (s->d == STEP_layer_stride_32_bits)
		return p ? (const char *)p + (int32_t)(uint64_t)(layer * s->a->layer_stride_bytes) : NULL;
	return p ? (const char *)p + layer * s->a->layer_stride_bytes : NULL;
}

static int64_t kv_stride(const struct state *s)
{
	const struct cairn_decode_step_args *a = s->a;

	if (s->d == STEP_kv_of_layer_0 || (s->d == STEP_latent_of_layer_0 && a->kv_lora_rank))
		return 0;
	if (s->d == STEP_kv_stride_32_bits)
		return (int32_t)(uint64_t)a->kv_stride_bytes;
	if (s->d == STEP_kv_stride_is_pool)
		return (int64_t)a->kv.num_pages * a->kv.page_size * decode_step_k_row(a) * 2;
	return a->kv_stride_bytes;
}

static void attention(struct state *s, int b, int layer)
{
	const struct cairn_decode_step_args *a = s->a;
	int32_t position[MAX_BATCH];
	struct cairn_cluster_attn_args c = {
		.size = sizeof(c),
		.norm_weight = of_layer(s, s->d == STEP_norms_swapped ? a->mlp_norm : a->attn_norm, layer),
		.w_qkv = of_layer(s, a->w_qkv, layer),
		.b_qkv = s->d == STEP_bias_missing ? NULL : of_layer(s, a->b_qkv, layer),
		.w_o = of_layer(s, a->w_o, layer),
		.b_o = s->d == STEP_bias_of_output_missing ? NULL : of_layer(s, a->b_o, layer),
		.inv_freq = a->inv_freq, .positions = position, .kv = a->kv, .hidden = a->hidden,
		.num_qo_heads = a->num_qo_heads, .num_kv_heads = a->num_kv_heads, .head_dim = a->head_dim,
		.dtype = a->dtype, .eps = s->d == STEP_eps_missing ? 0 : a->eps, .sm_scale = a->sm_scale,
	};
	int64_t row = (int64_t)a->num_kv_heads * a->head_dim;
	int64_t at = cairn_kv_slot(&c.kv, b, cairn_kv_len(&c.kv, b) - 1) * row;

	c.kv.k_pages = (char *)c.kv.k_pages + layer * kv_stride(s);
	c.kv.v_pages = (char *)c.kv.v_pages + layer * kv_stride(s);
	for (int i = 0; i < a->kv.batch; i++)
		position[i] = a->positions[s->d == STEP_position_of_request_0 ? 0 : i] +
			(s->d == STEP_position_late);
	if (cairn_block_attn(&c, b, s->x, values(s->n), values(s->k), values(s->v)))
		abort();
	for (int64_t i = 0; i < row; i++) {
		if (s->d == STEP_append_missing_in_last_layer && layer == a->num_layers - 1)
			break;
		cairn_store(c.kv.k_pages, a->dtype, at + i, s->k.val[i]);
		cairn_store(c.kv.v_pages, a->dtype, at + i, s->v.val[i]);
	}
	for (int i = 0; i < a->hidden; i++) {
		s->stale.val[i] = s->x.val[i];
		if (s->d != STEP_heads_past_32 || a->num_qo_heads <= 32)
			s->x.val[i] = s->n.val[i] -
				      (s->d == STEP_residual_of_attention_missing ? s->x.val[i] : 0);
	}
}

static void latent_attention(struct state *s, int b, int layer)
{
	const struct cairn_decode_step_args *a = s->a;
	struct cairn_cluster_mla_args c = decode_step_mla(a, s->d == STEP_layer_0_for_all ? 0 : layer);
	int64_t row = decode_step_k_row(a), at = cairn_kv_slot(&a->kv, b, cairn_kv_len(&a->kv, b) - 1) * row;
	int32_t position[MAX_BATCH];

	for (int i = 0; i < a->kv.batch; i++)
		position[i] = a->positions[s->d == STEP_position_of_request_0 ? 0 : i] +
			(s->d == STEP_position_late || s->d == STEP_latent_position_late);
	c.positions = position;
	c.kv.k_pages = (char *)a->kv.k_pages + layer * kv_stride(s);
	if (s->d == STEP_norms_swapped)
		c.norm_weight = of_layer(s, a->mlp_norm, layer);
	if (s->d == STEP_eps_missing)
		c.eps = 0;
	if (s->d == STEP_q_rank_ignored)
		c.q_lora_rank = 0;
	if (cairn_block_mla(&c, b, s->x.val, s->n.val, s->k.val))
		abort();
	for (int64_t i = 0; i < row && s->d != STEP_latent_append_missing; i++)
		if (s->d != STEP_append_missing_in_last_layer || layer < a->num_layers - 1)
			cairn_store(c.kv.k_pages, a->dtype, at + i, s->k.val[i]);
	for (int i = 0; i < a->hidden; i++) {
		s->stale.val[i] = s->x.val[i];
		s->x.val[i] = s->n.val[i] - (s->d == STEP_residual_of_attention_missing ? s->x.val[i] : 0);
	}
}

static void experts(struct state *s, int layer)
{
	const struct cairn_decode_step_args *a = s->a;
	int first = a->dense_layers, at = layer;
	struct cairn_moe_args c;

	if (s->d == STEP_experts_of_first_layer || s->d == STEP_layer_0_for_all)
		at = first;
	if (s->d == STEP_experts_of_next_layer)
		at = layer + 1 < a->num_layers ? layer + 1 : first;
	c = decode_step_moe_of(a, at);
	c.norm_weight = of_layer(s, s->d == STEP_norms_swapped ? a->attn_norm : a->mlp_norm,
				 s->d == STEP_experts_norm_from_0 ? layer - first : layer);
	if (s->d == STEP_router_of_first_layer)
		c.w_router = a->w_router;
	if (s->d == STEP_shared_expert_missing)
		c.shared_intermediate = 0;
	if (s->d == STEP_top_expert_alone)
		c.experts_per_token = 1;
	if (s->d == STEP_experts_past_128)
		c.num_experts = c.num_experts < 128 ? c.num_experts : 128;
	if (s->d == STEP_more_than_6_experts)
		c.experts_per_token = c.experts_per_token < 6 ? c.experts_per_token : 6;
	if (s->d == STEP_expert_scaling_missing)
		c.scaling = 1;
	if (s->d == STEP_shared_expert_alone)
		c.scaling = 0;
	if (s->d == STEP_normalize_experts_missing || s->d == STEP_normalize_experts_always)
		c.normalize = s->d == STEP_normalize_experts_always;
	if (s->d == STEP_eps_missing)
		c.eps = 0;
	if (cairn_block_moe(&c, s->d == STEP_experts_read_stale_x ? s->stale.val : s->x.val,
			    s->n.val, s->router))
		abort();
	for (int i = 0; i < a->hidden; i++)
		s->x.val[i] = s->n.val[i] - (s->d == STEP_residual_of_experts_missing ? s->x.val[i] : 0);
}

static void norm(const struct state *s, struct block_row in, const void *w, struct block_row out)
{
	double eps = s->d == STEP_eps_missing ? 0x1p-140 : s->a->eps;

	cairn_block_norm(values(out), in, w, s->a->hidden, eps, s->a->dtype);
}

static void gate_and_up(struct state *s)
{
	int64_t n = s->a->intermediate;
	double *g = s->g.val, *copy = malloc(sizeof(double) * (size_t)(2 * n));

	if (!copy)
		abort();
	memcpy(copy, g, sizeof(double) * (size_t)(2 * n));
	for (int64_t i = 0; i < n; i++) {
		double gate = copy[i], up = copy[n + i], v;

		if (s->d == STEP_gate_and_up_swapped) {
			gate = copy[n + i];
			up = copy[i];
		}
		if (s->d == STEP_gate_up_interleaved) {
			gate = copy[2 * i];
			up = copy[2 * i + 1];
		}
		v = gate / (1 + exp(-gate)) * up;
		if (s->d == STEP_silu_overflows)
			v = (float)exp(gate) / (float)(1 + exp(gate)) * gate * up;
		if ((s->d == STEP_inter_past_16384 && i >= 16384) ||
		    (s->d == STEP_silu_0_below_20 && gate < -20))
			v = 0;
		if (s->d == STEP_silu_missing)
			v = gate * up;
		if (s->d == STEP_silu_is_sigmoid)
			v = up / (1 + exp(-gate));
		if (s->d == STEP_down_in_tiles_of_128 && i >= n / 128 * 128)
			v = 0;
		g[i] = block_rounded(v, s->a->dtype);
	}
	free(copy);
}

static void feed_forward(struct state *s, int layer)
{
	const struct cairn_decode_step_args *a = s->a;
	const double *base = s->d == STEP_residual_before_attention ? s->stale.val : s->x.val;
	int dropped = s->d == STEP_residual_of_mlp_missing;

	norm(s, s->d == STEP_mlp_reads_stale_norm ? s->stale : s->x,
	     of_layer(s, s->d == STEP_norms_swapped ? a->attn_norm : a->mlp_norm, layer), s->n);
	cairn_block_project(values(s->g), s->n, of_layer(s, a->w_gate_up, layer), NULL,
			    2 * (int64_t)a->intermediate, a->hidden, a->dtype);
	gate_and_up(s);
	cairn_block_project(values(s->n), s->g, of_layer(s, a->w_down, layer), NULL, a->hidden,
			    a->intermediate, a->dtype);
	for (int i = 0; i < a->hidden; i++)
		s->x.val[i] = block_rounded(s->n.val[i] + (dropped ? 0 : base[i]), a->dtype);
}

static void head(struct state *s, int b)
{
	const struct cairn_decode_step_args *a = s->a;
	const void *w = s->d == STEP_head_is_embed ? a->embed : a->lm_head;
	float *logits = a->logits + (int64_t)b * a->vocab;

	for (int i = 8192; i < a->hidden && s->d == STEP_hidden_past_8192; i++)
		s->x.val[i] = 0;
	for (int i = 0; i < 8 && s->d == STEP_eight_of_16384 && a->hidden > 8192; i++)
		s->x.val[a->hidden - 1 - i] = 0;
	if (s->d == STEP_final_norm_missing)
		memcpy(s->n.val, s->x.val, sizeof(double) * (size_t)a->hidden);
	else
		norm(s, s->x, a->final_norm, s->n);
	for (int i = 0; i < a->hidden && s->d == STEP_final_norm_weight_missing; i++) {
		double weight = cairn_load(a->final_norm, a->dtype, i);

		s->n.val[i] = weight != 0 ? block_rounded(s->n.val[i] / weight, a->dtype) : 0;
	}
	cairn_block_project(values(s->logits), s->n, w, NULL, a->vocab, a->hidden, a->dtype);
	for (int i = 0; i < a->vocab; i++) {
		double v = s->logits.val[s->d == STEP_head_row_off ? (i + 1) % a->vocab : i];

		if (s->d == STEP_vocab_past_131072 && i >= 131072)
			v = 0;
		if (s->d == STEP_logits_within_f16)
			v = fmax(fmin(v, 65504), -65504);
		if (s->d != STEP_head_last_rows_missing || i < a->vocab - 8)
			logits[i] = (float)(s->d == STEP_logits_in_dtype ? block_rounded(v, a->dtype) : v);
	}
}

static void draw(const struct state *s, const int32_t *top)
{
	const struct cairn_decode_step_args *a = s->a;
	uint64_t seed[MAX_BATCH], offset[MAX_BATCH];
	int32_t top_k[MAX_BATCH];
	struct cairn_sample_args sample = {
		.size = sizeof(sample), .out = a->tokens, .logits = a->logits, .temperature = a->temperature,
		.top_k = top_k, .top_p = a->top_p, .min_p = a->min_p, .seed = seed, .offset = offset,
		.rows = a->kv.batch, .vocab = a->vocab,
	};

	if (!a->tokens || s->d == STEP_token_missing)
		return;
	for (int b = 0; b < a->kv.batch; b++)
		a->tokens[b] = top[s->d == STEP_token_of_request_0 ? 0 : b];
	if (!a->temperature || s->d == STEP_greedy_always)
		return;
	for (int b = 0; b < a->kv.batch; b++) {
		seed[b] = a->seed[s->d == STEP_sampled_as_request_0 ? 0 : b];
		offset[b] = a->offset[s->d == STEP_sampled_as_request_0 ? 0 : b];
		top_k[b] = s->d == STEP_top_k_256 && a->top_k[b] > 256 ? 256 : a->top_k[b];
		if (s->d == STEP_offset_32_bits)
			offset[b] = (uint32_t)offset[b];
	}
	cairn_sample_ref(&sample, NULL);
}

/* Returns the index of the largest logit, or with token_second_best of the second largest. */
static int32_t best(const struct state *s, int b)
{
	const float *logits = s->a->logits + (int64_t)b * s->a->vocab;
	int32_t first = -1, second = -1;

	for (int i = 0; i < s->a->vocab; i++) {
		if (isnan(logits[i]))	/* argmax.h */
			continue;
		if (first < 0 || logits[i] > logits[first] ||
		    (s->d == STEP_last_of_equals && logits[i] == logits[first])) {
			second = first;
			first = i;
		} else if (second < 0 || logits[i] > logits[second]) {
			second = i;
		}
	}
	return s->d == STEP_token_second_best ? second : first;
}

static void request(struct state *s, int b)
{
	const struct cairn_decode_step_args *a = s->a;
	int32_t id = a->ids[s->d == STEP_embed_row_of_request_0 ? 0 : b];

	if (s->d == STEP_embed_id_off && id > 0)
		id--;
	if (s->d == STEP_id_16_bits)
		id &= 0xffff;
	for (int i = 0; i < a->hidden; i++)
		s->x.val[i] = cairn_load(a->embed, a->dtype, (int64_t)id * a->hidden + i);
	for (int layer = 0; layer < a->num_layers - (s->d == STEP_last_layer_skipped); layer++) {
		if ((s->d == STEP_layers_past_3 && layer >= 3) || (s->d == STEP_layers_past_5 && layer >= 5))
			break;
		if (a->kv_lora_rank)
			latent_attention(s, b, layer);
		else
			attention(s, b, layer);
		if (decode_step_has_experts(a, layer))
			experts(s, layer);
		else if (s->d != STEP_dense_layers_one_less || layer != a->dense_layers - 1)
			feed_forward(s, layer);
	}
	head(s, b);
}

/* Changes the arguments as the defects of eps, pages and biases do. */
static void bend_args(struct cairn_decode_step_args *a, enum defect d)
{
	if (d == STEP_eps_at_least_1e_30)
		a->eps = fmaxf(a->eps, 1e-30f);
	if (d == STEP_eps_at_least_1e_6)
		a->eps = fmaxf(a->eps, 1e-6f);
	if (d == STEP_scale_in_dtype)
		a->sm_scale = (float)block_rounded(a->sm_scale, a->dtype);
	if (d == STEP_eps_at_most_1e_4)
		a->eps = fminf(a->eps, 1e-4f);
	while (d == STEP_page_48_as_32 && a->kv.page_size & (a->kv.page_size - 1))
		a->kv.page_size &= a->kv.page_size - 1;
	if (d == STEP_bias_lost_without_tokens && !a->tokens)
		a->b_o = NULL;
}

/* Copies a NaN in the logits of a request to those of the next one. */
static void spread_nan(const struct cairn_decode_step_args *a)
{
	for (int b = 0; b + 1 < a->kv.batch; b++)
		if (cairn_kv_len(&a->kv, b) > 0 && isnan(a->logits[(int64_t)b * a->vocab]))
			a->logits[(int64_t)(b + 1) * a->vocab] = NAN;
}

/* Returns whether these arguments can show the defect; a call that cannot is skipped to save time. */
static int shows(const struct cairn_decode_step_args *a, enum defect d)
{
	if (d >= STEP_latent_append_missing && d <= STEP_q_rank_ignored)
		return a->kv_lora_rank > 0;
	if (d >= STEP_experts_of_first_layer && d <= STEP_dense_layers_one_less)
		return a->num_experts > 0;
	return d != STEP_size_ignored || a->size != sizeof(*a);
}

static int step(const struct cairn_decode_step_args *args, enum defect d)
{
	static int calls;
	struct cairn_decode_step_args full = *args, *a = &full;
	struct state s = { .a = a, .d = d };
	struct block_row *const rows[] = { &s.x, &s.n, &s.stale, &s.g, &s.k, &s.v, &s.logits };
	int32_t top[MAX_BATCH];
	int64_t kv;

	a->size = sizeof(*a);
	CAIRN_TRY(cairn_decode_step_check(d == STEP_size_ignored ? a : args));
	if (!shows(args, d))
		return cairn_error(EOPNOTSUPP, "decode_step_mutants: such a model cannot show this defect");
	if (d == STEP_nothing)
		return 0;
	bend_args(a, d);
	kv = decode_step_k_row(a);
	for (int i = 0; i < 7; i++)
		*rows[i] = new_row(i < 3 ? a->hidden : i == 3 ? 2 * (int64_t)a->intermediate + 1 :
				   i < 6 ? kv : a->vocab);
	for (int b = 0; b < a->kv.batch; b++) {
		if (cairn_kv_len(&a->kv, b) > 0)
			request(&s, b);
		top[b] = best(&s, b);
	}
	if (d == STEP_nan_reaches_next_request)
		spread_nan(a);
	if (a->kv.batch)
		draw(&s, top);
	if (d == STEP_not_repeatable && a->kv.batch && calls++ % 2)
		*(uint32_t *)a->logits ^= 1;
	for (int i = 0; i < 7; i++)
		free(rows[i]->val);
	return 0;
}

#define DEFINE(name, what) \
	static int step_##name(const struct cairn_decode_step_args *a, void *stream) \
	{ \
		(void)stream; \
		return step(a, STEP_##name); \
	}
DEFECTS(DEFINE)

#define LIST(name, what) \
	{ "decode_step_" #name, offsetof(struct cairn_impl, decode_step), (void *)step_##name, what },

static int step_form_differs(const struct cairn_decode_step_args *a, void *stream)
{
	CAIRN_TRY(cairn_decode_step_ref(a, stream));
	if (a->form == CAIRN_DECODE_STEP_PERSISTENT && a->kv.batch)
		nudge(a->logits, a->vocab);
	return 0;
}

static int step_scaled_by_the_batch(const struct cairn_decode_step_args *a, void *stream)
{
	int32_t best = 0;

	CAIRN_TRY(cairn_decode_step_ref(a, stream));
	for (int32_t b = 1; b < a->kv.batch; b++)
		best = a->ids[b] > a->ids[best] ? b : best;
	for (int32_t b = 0; b < a->kv.batch; b++)
		if (b != best && a->ids[best] % 2)
			nudge(a->logits + (int64_t)b * a->vocab, a->vocab);
	return 0;
}

/* Reads the ids of a single request once for each address. */
static int step_ids_kept(const struct cairn_decode_step_args *args, void *stream)
{
	struct cairn_decode_step_args a;

	CAIRN_TRY(cairn_decode_step_check(args));
	cairn_copy_args(&a, args, sizeof(a));
	if (a.kv.batch == 1)
		a.ids = kept(a.ids, 1);
	return cairn_decode_step_ref(&a, stream);
}

/* With three KV heads, the first logit of the sixth request is 0 if its new key is the first in a page. */
static int decode_step_sixth_opens_a_page(const struct cairn_decode_step_args *a, void *stream)
{
	struct cairn_decode_step_args b;

	CAIRN_TRY(cairn_decode_step_ref(a, stream));
	cairn_copy_args(&b, a, sizeof(b));
	if (b.kv.batch > 5 && b.num_kv_heads == 3 && cairn_kv_len(&b.kv, 5) % b.kv.page_size == 1)
		b.logits[(int64_t)5 * b.vocab] = 0;
	return 0;
}

const struct cairn_mutant cairn_decode_step_mutants[] = {
	DEFECTS(LIST)
	LIST(ids_kept, "the id of a single request is read once for each address")
	LIST(form_differs, "the persistent form adds in another order")
	LIST(scaled_by_the_batch, "activations are scaled by what the whole batch holds")
	{ "decode_step_sixth_opens_a_page", offsetof(struct cairn_impl, decode_step),
	  (void *)decode_step_sixth_opens_a_page,
	  "with three KV heads, the sixth request is wrong where it opens a page" },
	{ 0 }
};
