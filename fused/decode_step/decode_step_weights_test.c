// SPDX-License-Identifier: Apache-2.0
/* decode_step_weights_test - makes the weights of the models and lays them out in memory */
#include <math.h>
#include <string.h>

#include "conformance/harness.h"
#include "fused/cache/paged_test.h"
#include "fused/decode_step/decode_step_test.h"

#define BLOCK	16381

/* Copies the first block to the rest of p. */
static void repeat(void *p, int dtype, int64_t count)
{
	size_t esize = cairn_dtype_bytes(dtype);

	for (int64_t i = BLOCK; i < count; i += BLOCK)
		memcpy((char *)p + (size_t)i * esize, p,
		       (size_t)(count - i < BLOCK ? count - i : BLOCK) * esize);
}

void step_repeat(struct cairn_op *op, void *p, int dtype, int64_t count, double scale)
{
	cairn_fill(op, p, dtype, count < BLOCK ? count : BLOCK, scale);
	repeat(p, dtype, count);
}

void step_fill(struct cairn_op *op, void *p, int dtype, int64_t count, double scale)
{
	int64_t some = count < BLOCK ? count : BLOCK;
	int exponent = (int)lround(log2(scale / 2.6));
	enum cairn_kind kind = op->kind;

	if (kind == CAIRN_KIND_EXTREME) /* in this kind the residual stream is extreme, not the weights */
		op->kind = CAIRN_KIND_NORMAL;
	cairn_fill(op, p, dtype, some, scale);
	op->kind = kind;
	for (int64_t i = 0; i < some && kind == CAIRN_KIND_EXACT; i++)
		cairn_store(p, dtype, i, ldexp(cairn_load(p, dtype, i), exponent));
	repeat(p, dtype, count);
}

/*
 * The weights of layers: each kind in a buffer of its own with NaN between layers, or all kinds in one buffer
 * (POOL). A measuring pass adds up their sizes and declares nothing.
 */
struct weights {
	struct cairn_op *op;
	const struct step_shape *s;
	int measuring;
	int64_t at, largest;		/* elements */
	uint16_t *pool;
};

/* Gives every other layer the first layer's weights, rotated a little. */
static void fill_others(uint16_t *p, int layers, int64_t stride, int64_t count)
{
	for (int i = 1; i < layers; i++) {
		int64_t from = i * 4099 % count;

		memcpy(p + i * stride, p + from, (size_t)(count - from) * 2);
		memcpy(p + i * stride + count - from, p, (size_t)from * 2);
	}
}

#define weight(w, field, ...)	add_weight(w, field, #field, __VA_ARGS__)
static void add_weight(struct weights *w, size_t field, const char *name, int layers, int64_t count,
		       double scale)
{
	struct cairn_decode_step_args *a = w->op->args;
	int64_t stride = a->layer_stride_bytes / 2, at = w->at;
	uint16_t *p;

	w->at += count;
	w->largest = count > w->largest ? count : w->largest;
	if (w->measuring)
		return;
	if (w->pool) {
		p = w->pool + at;
		if (at)
			cairn_within(w->op, field, STEP_FIELD(attn_norm), (size_t)at * 2);
		step_fill(w->op, p, a->dtype, count, scale);
		fill_others(p, layers, stride, count);
		return;
	}
	p = cairn_in(w->op, field, a->dtype, (layers - 1) * stride + count);
	cairn_name(w->op, field, name);
	for (int i = 0; i < layers; i++)
		step_fill(w->op, p + i * stride, a->dtype, count, scale);
}

/*
 * Returns the scale of what is added to the residual stream. It is smaller for many layers, so that the
 * stream does not grow until rounding errors dominate, and for many ranks, because their sums are added.
 */
static double gain(const struct weights *w)
{
	double one = w->s->layers > 3 ? sqrt(3.0 / w->s->layers) : 2;

	return w->op->ranks ? one / sqrt(w->op->ranks) : one;
}

static int layers_with_experts(const struct step_shape *s)
{
	return s->experts && s->layers > s->dense ? s->layers - s->dense : 1;
}

/* Declares all weights except the widest; attn_norm is the first of them. */
static void layer_weights(struct weights *w)
{
	const struct step_shape *s = w->s;
	int64_t h = s->hidden, q = (int64_t)s->hq * s->dim, kv = (int64_t)s->hkv * s->dim, v = q;
	int n = s->layers, latent = !!(s->flags & LATENT);

	weight(w, STEP_FIELD(attn_norm), n, h, 1);
	step_apart(w->op);
	if (latent) {
		v = s->hq * 128;
		if (s->lora) {
			weight(w, STEP_FIELD(w_q_a), n, s->lora * h, 1 / sqrt((double)h));
			weight(w, STEP_FIELD(q_norm), n, s->lora, 1);
		}
		weight(w, STEP_FIELD(w_q), n, q * (s->lora ? s->lora : h),
		       1 / sqrt(s->lora ? s->lora : (double)h));
		weight(w, STEP_FIELD(w_kv_a), n, 576 * h, 1 / sqrt((double)h));
		weight(w, STEP_FIELD(kv_norm), n, 512, 1);
		weight(w, STEP_FIELD(w_kv_b), n, s->hq * 256 * 512, 1 / sqrt(192));
	} else {
		weight(w, STEP_FIELD(w_qkv), n, h * (q + 2 * kv), 1 / sqrt((double)h));
	}
	if (s->flags & BIAS)
		weight(w, STEP_FIELD(b_qkv), n, q + 2 * kv, 1);
	weight(w, STEP_FIELD(w_o), n, h * v, gain(w) / sqrt((double)v));
	if (s->flags & BIAS_O && w->op->rank == 0)
		weight(w, STEP_FIELD(b_o), n, h, 1);
	step_together(w->op);
	weight(w, STEP_FIELD(mlp_norm), n, h, 1);
	if (s->experts)
		weight(w, STEP_FIELD(w_router), layers_with_experts(s), s->experts * h,
		       0.15 / sqrt((double)h));
	if (s->experts && s->shared) {
		weight(w, STEP_FIELD(w_shared_gate_up), layers_with_experts(s), 2 * s->shared * h,
		       1 / sqrt((double)h));
		weight(w, STEP_FIELD(w_shared_down), layers_with_experts(s), s->shared * h,
		       gain(w) / sqrt(s->shared));
	}
}

static void wide_weights(struct weights *w)
{
	const struct step_shape *s = w->s;
	int64_t h = s->hidden, one = (int64_t)s->expert_inter * s->experts;
	int dense = s->experts ? s->dense : s->layers;

	step_apart(w->op);
	if (dense) {
		weight(w, STEP_FIELD(w_gate_up), dense, 2 * h * s->inter,
		       (s->flags & STEEP ? 64 : 1) / sqrt((double)h));
		weight(w, STEP_FIELD(w_down), dense, h * s->inter, gain(w) / sqrt(s->inter));
	}
	step_together(w->op);
	if (s->experts && !w->pool) {
		weight(w, STEP_FIELD(w_experts_gate_up), layers_with_experts(s), 2 * one * h,
		       1 / sqrt((double)h));
		weight(w, STEP_FIELD(w_experts_down), layers_with_experts(s), one * h,
		       gain(w) / sqrt(s->expert_inter));
	}
}

/*
 * The weights that a layer reads in full form a block. Blocks follow each other, so layer_stride_bytes is the
 * size of a block. After the last block come the dense layer's wide weights, then the experts. The experts of
 * layer i + 1 begin one stride after those of layer i, so the experts of all layers overlap, shifted by a
 * block. The 31 GB of DeepSeek-V2-Lite therefore fit in 5 GB. A step still reads each layer's experts from
 * memory: layers choose different experts, and other data have evicted a byte from the L2 by the time it is
 * read again.
 */
static void weights_in_pool(struct weights *w)
{
	struct cairn_decode_step_args *a = w->op->args;
	const struct step_shape *s = w->s;
	int64_t block = w->at, one = (int64_t)s->expert_inter * s->experts * s->hidden;
	int64_t dense = 3 * (int64_t)s->dense * s->hidden * s->inter;
	int64_t experts = 3 * one + (layers_with_experts(s) - 1) * block, first = s->layers * block + dense;

	a->layer_stride_bytes = block * 2;
	w->pool = cairn_in(w->op, STEP_FIELD(attn_norm), a->dtype, first + experts);
	w->at = 0;
	layer_weights(w);
	w->at = s->layers * block;
	wide_weights(w);
	cairn_within(w->op, STEP_FIELD(w_experts_gate_up), STEP_FIELD(attn_norm), (size_t)first * 2);
	cairn_within(w->op, STEP_FIELD(w_experts_down), STEP_FIELD(attn_norm), (size_t)(first + 2 * one) * 2);
	step_fill(w->op, w->pool + first, a->dtype, experts, 1.3 / sqrt(s->hidden));
}

/* All weights of a layer are in one block, and the second layer's block lies past 2^32 elements. */
static void weights_far_apart(struct weights *w)
{
	struct cairn_decode_step_args *a = w->op->args;
	int64_t block = w->at, stride = ((int64_t)1 << 32) + 64;

	a->layer_stride_bytes = stride * 2;
	w->pool = cairn_in_far(w->op, STEP_FIELD(attn_norm), a->dtype, (w->s->layers - 1) * stride + block);
	for (int i = 0; i < w->s->layers; i++)
		cairn_touch(w->op, w->pool, i * stride, block);
	w->at = 0;
	layer_weights(w);
	wide_weights(w);
}

void step_decide_experts(struct cairn_op *op, const struct step_shape *s, uint16_t *embed)
{
	struct cairn_decode_step_args *a = op->args;
	int64_t stride = a->layer_stride_bytes / 2;
	double size = op->kind == CAIRN_KIND_EXACT ? 128 : 32;	/* integers grow faster from layer to layer */

	for (int id = 0; id < s->vocab && s->experts; id++)
		for (int i = 0; i < s->top; i++)
			cairn_store(embed + (int64_t)id * s->hidden, a->dtype,
				    (i * (s->experts / s->top) + id) % s->experts, size);
	for (int layer = 0; layer < layers_with_experts(s) && s->experts; layer++) {
		int64_t norm_layer = s->dense < s->layers ? s->dense + layer : layer;

		for (int e = 0; e < s->experts; e++) {
			cairn_store((uint16_t *)a->mlp_norm + norm_layer * stride, a->dtype, e, 1);
			cairn_store((uint16_t *)a->w_router + layer * stride + (int64_t)e * s->hidden,
				    a->dtype, (e + 3 * layer) % s->experts, 0.25);
		}
	}
}

void step_weights(struct cairn_op *op, const struct step_shape *s)
{
	struct cairn_decode_step_args *a = op->args;
	struct weights w = { .op = op, .s = s, .measuring = 1 };

	layer_weights(&w);
	if (s->flags & POOL) {
		w.measuring = 0;
		weights_in_pool(&w);
		return;
	}
	wide_weights(&w);
	w.measuring = 0;
	if (s->flags & FAR_LAYERS) {
		weights_far_apart(&w);
		return;
	}
	a->layer_stride_bytes = 2 * (w.largest + (s->flags & GAPS ? 24 : 0));
	layer_weights(&w);
	wide_weights(&w);
}
