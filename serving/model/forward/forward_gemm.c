// SPDX-License-Identifier: Apache-2.0
/*
 * forward_gemm - products of a pass: with weights of 16, 8 or 4 bits, whole or by parts, and with adapters
 */
#include "serving/model/forward/forward_impl.h"

#include "primitives/base/dtype.h"
#include "primitives/base/error.h"
#include "primitives/gemm/w4/gemm_w4_pack.h"
#include "serving/lora/lora.h"
#include "serving/model/weight_w4.h"

/* Returns n rounded up to what operations want their workspaces and arrays aligned to. */
static size_t aligned(size_t n)
{
	return (n + CAIRN_BUFFER_ALIGNMENT - 1) / CAIRN_BUFFER_ALIGNMENT * CAIRN_BUFFER_ALIGNMENT;
}

/*
 * The workspace of a product of 8-bit activations holds their codes, then their scales, then gemm_fp8's own.
 * Sets *quant to the first two, for m rows of k elements at `room`, and returns their bytes.
 */
static size_t place_codes(const struct cairn_model *model, char *room, int32_t m, int32_t k,
			  struct cairn_quant_fp8w_args *quant)
{
	const int by_rows = cairn_weights_scale_kind(model->weights) == CAIRN_FP8_SCALE_ROWS;
	const size_t codes = aligned((size_t)m * (size_t)k);
	const size_t pieces = by_rows ? 1 : ((size_t)k + CAIRN_FP8_BLOCK - 1) / CAIRN_FP8_BLOCK;

	*quant = (struct cairn_quant_fp8w_args){
		.size = sizeof(*quant), .b = (uint8_t *)room, .scale = (float *)(room + codes),
		.n = m, .k = k, .dtype = model->dtype,
		.scale_kind = by_rows ? CAIRN_FP8_SCALE_ROWS : CAIRN_FP8_SCALE_PIECES,
	};
	return codes + aligned(pieces * (size_t)m * sizeof(float));
}

/* A product of 8-bit activations, which the operation before it may have quantised already. */
static int run_gemm_w8a8(struct walk *w, const struct cairn_graph_op *op, const struct cairn_gemm_args *plain,
			 const float *scale)
{
	const struct cairn_model *m = w->m;
	struct cairn_quant_fp8w_args quant;
	const size_t own = place_codes(m, plain->workspace, plain->m, plain->k, &quant);
	struct cairn_gemm_fp8_args args = {
		.size = sizeof(args), .out = plain->out, .a = quant.b, .b = plain->b, .a_scale = quant.scale,
		.b_scale = scale, .bias = plain->bias, .m = plain->m, .n = plain->n, .k = plain->k,
		.dtype = plain->dtype, .out_dtype = plain->out_dtype,
		.scale_kind = cairn_weights_scale_kind(m->weights),
	};
	const int has_codes = w->quantised_for == op;
	size_t bytes = 0;

	if (!w->asking) {
		if (plain->workspace_bytes < own)
			return cairn_error(EINVAL, "forward: a workspace of %zu bytes, the product needs %zu",
					   plain->workspace_bytes, own);
		args.workspace = (char *)plain->workspace + own;
		args.workspace_bytes = plain->workspace_bytes - own;
		quant.w = plain->a;
		w->quantised_for = NULL;
		if (!has_codes)
			CAIRN_TRY(CAIRN_TABLE(m->impl, quant_fp8w, &quant, w->stream));
		return CAIRN_TABLE(m->impl, gemm_fp8, &args, w->stream);
	}
	if (m->impl->gemm_fp8_workspace)
		CAIRN_TRY(CAIRN_TABLE(m->impl, gemm_fp8_workspace, &args, &bytes));
	bytes += own;
	return forward_ask(w, 0, &bytes, "gemm_fp8_workspace");
}

int forward_may_quantise(const struct walk *w, const struct cairn_graph_op *op,
			 struct cairn_quant_fp8w_args *quant)
{
	const struct cairn_graph_op *next = op + 1;
	const struct room *room = &w->s->lane[w->lane];
	enum cairn_weight weight;

	if (!w->in_order || w->asking || w->part != FORWARD_ALL || (w->s->no_codes & 1u << op->kind) ||
	    !cairn_weights_are_w8a8(w->m->weights) || next == w->g->ops + w->g->num_ops ||
	    (next->kind != CAIRN_OP_GEMM && next->kind != CAIRN_OP_LM_HEAD) || next->in[0] != op->out[0] ||
	    w->g->values[op->out[0]].num_consumers != 1)
		return 0;
	weight = w->g->values[next->weights[0]].weight;
	if (!forward_scale(w, next, weight) ||
	    (w->m->lora && w->b->adapters && cairn_lora_place(weight) >= 0))	/* adapters read 16 bits */
		return 0;
	return place_codes(w->m, room->at, forward_rows(w, next->out[0]), forward_width(w, next->in[0]),
			   quant) <= room->bytes;
}

int forward_has_quantised(struct walk *w, const struct cairn_graph_op *op, int ret)
{
	if (ret == -EOPNOTSUPP) {
		w->s->no_codes |= 1u << op->kind;
		cairn_clear_error();
		return 0;
	}
	w->quantised_for = ret ? NULL : op + 1;
	return 1;
}

static int run_gemm_fp8(struct walk *w, const struct cairn_gemm_args *plain, const float *scale)
{
	const struct cairn_model *m = w->m;
	struct cairn_gemm_fp8w_args args = {
		.size = sizeof(args), .out = plain->out, .a = plain->a, .b = plain->b, .b_scale = scale,
		.bias = plain->bias, .workspace = plain->workspace, .workspace_bytes = plain->workspace_bytes,
		.m = plain->m, .n = plain->n, .k = plain->k, .dtype = plain->dtype,
		.out_dtype = plain->out_dtype, .scale_kind = cairn_weights_scale_kind(m->weights),
	};
	size_t bytes = 0;

	if (!w->asking)
		return CAIRN_TABLE(m->impl, gemm_fp8w, &args, w->stream);
	if (!m->impl->gemm_fp8w_workspace)
		return 0;
	return forward_ask(w, m->impl->gemm_fp8w_workspace(&args, &bytes), &bytes, "gemm_fp8w_workspace");
}

static int run_gemm_w4(struct walk *w, const struct cairn_graph_op *op, const struct cairn_gemm_args *plain,
		       const uint8_t *scale)
{
	const struct cairn_model *m = w->m;
	const enum cairn_weight weight = w->g->values[op->weights[0]].weight;
	const struct cairn_weight_w4 four = cairn_weight_w4(m, weight);
	struct cairn_gemm_w4_args args = {
		.size = sizeof(args), .out = plain->out, .a = plain->a, .b = plain->b, .b_scale = scale,
		.bias = plain->bias, .workspace = plain->workspace, .workspace_bytes = plain->workspace_bytes,
		.m = plain->m, .n = plain->n, .k = plain->k, .dtype = plain->dtype,
		.out_dtype = plain->out_dtype, .format = four.format, .group = four.group,
		.scale = cairn_model_factor_w4(m, op->layer, weight),
	};
	size_t bytes = 0;

	if (!w->asking)
		return CAIRN_TABLE(m->impl, gemm_w4, &args, w->stream);
	if (!m->impl->gemm_w4_workspace)
		return 0;
	return forward_ask(w, m->impl->gemm_w4_workspace(&args, &bytes), &bytes, "gemm_w4_workspace");
}

/*
 * Restricts the product to the columns of q, or to those of k and v. scale, scale_w4: of an 8-bit or a 4-bit
 * weight, else NULL.
 */
static int take_part(const struct walk *w, const struct cairn_graph_op *op, struct cairn_gemm_args *a,
		     const float **scale, const uint8_t **scale_w4)
{
	const struct cairn_weight_w4 four = cairn_weight_w4(w->m, w->g->values[op->weights[0]].weight);
	const int32_t q = w->m->dims[CAIRN_D_Q];
	const int64_t element = (int64_t)cairn_dtype_bytes(w->m->dtype);

	if (w->part == FORWARD_Q) {
		a->n = q;
		return 0;
	}
	if (*scale_w4)
		*scale_w4 += cairn_w4_scale_bytes(four.format, q, a->k, four.group);
	if (*scale && cairn_weights_scale_kind(w->m->weights) == CAIRN_FP8_SCALE_BLOCKS) {
		if (q % 128)
			return cairn_error(EOPNOTSUPP, "forward: q has %d columns, no multiple of the "
					   "128 that share a scale", q);
		*scale += (int64_t)(q / 128) * ((a->k + 127) / 128);
	} else if (*scale) {
		*scale += q;
	}
	a->n -= q;
	a->out = (char *)a->out + (int64_t)a->m * q * element;
	a->b = (const char *)a->b + (*scale_w4 ? cairn_w4_code_bytes(q, a->k) :
				     (int64_t)q * a->k * (*scale ? 1 : element));
	a->bias = a->bias ? (const char *)a->bias + q * element : NULL;
	return 0;
}

/* Adds the adapters of the rows to a product. */
static int run_lora(struct walk *w, const struct cairn_graph_op *op, const struct cairn_gemm_args *product)
{
	const int place = cairn_lora_place(w->g->values[op->weights[0]].weight);
	const struct cairn_lora *lora = w->m->lora;
	const struct cairn_lora_weight *of;
	struct cairn_lora_args args;
	size_t bytes = 0;
	char *layer;

	if (!lora || !w->b->adapters || place < 0)
		return 0;
	of = &lora->of[place];
	layer = lora->base + (size_t)op->layer * lora->layer_bytes;
	args = (struct cairn_lora_args){
		.size = sizeof(args), .y = product->out, .x = product->a, .a = layer + of->a,
		.b = layer + of->b, .scale = lora->scale, .slot = w->b->adapters + w->first_row,
		.workspace = product->workspace, .workspace_bytes = product->workspace_bytes,
		.m = product->m, .n = of->n, .k = of->k, .rank = lora->rank, .num_slots = lora->num,
		.num_parts = of->num_parts, .part_end = { of->part_end[0], of->part_end[1], of->part_end[2] },
		.dtype = w->m->dtype,
	};
	if (w->part != FORWARD_ALL)
		return cairn_error(EOPNOTSUPP, "forward: parts of a product cannot have adapters");
	if (!w->asking)
		return CAIRN_TABLE(w->m->impl, lora, &args, w->stream);
	if (!w->m->impl->lora_workspace)
		return 0;
	return forward_ask(w, w->m->impl->lora_workspace(&args, &bytes), &bytes, "lora_workspace");
}

/* Returns whether a product of 16-bit weights may compute operations after it, too. */
static int may_cover(const struct walk *w, const struct cairn_graph_op *op, const struct cairn_gemm_args *a)
{
	return w->in_order && !w->asking && w->part == FORWARD_ALL && a->dtype != CAIRN_F32 &&
	       a->k % 8 == 0 &&
	       !(w->m->lora && w->b->adapters &&
		 cairn_lora_place(w->g->values[op->weights[0]].weight) >= 0);
}

/* Returns whether the product computes the activation after it, too: the bits are the same (gemm_gated.h). */
static int may_activate(const struct walk *w, const struct cairn_graph_op *op,
			const struct cairn_gemm_args *a)
{
	return w->m->impl->gemm_gated && a->m <= CAIRN_GEMM_GATED_M && a->n % 16 == 0 &&
	       cairn_op_may_activate(w->g, (int32_t)(op - w->g->ops)) && may_cover(w, op, a);
}

/* Returns whether it rotates and appends, too: the bits are the same (qkv_append.h). */
static int may_append(const struct walk *w, const struct cairn_graph_op *op, const struct cairn_gemm_args *a)
{
	return w->m->impl->qkv_append && a->m <= CAIRN_QKV_APPEND_M && w->m->config.head_dim % 16 == 0 &&
	       !w->b->stripes && cairn_op_may_append(w->g, (int32_t)(op - w->g->ops)) && may_cover(w, op, a);
}

static int run_gated(struct walk *w, const struct cairn_graph_op *op, const struct cairn_gemm_args *a)
{
	const struct cairn_gemm_gated_args args = {
		.size = sizeof(args), .out = forward_at(w, op[1].out[0]), .a = a->a, .b = a->b,
		.bias = a->bias, .m = a->m, .n = a->n / 2, .k = a->k, .dtype = a->dtype,
	};

	w->covered = op + 1;
	return CAIRN_TABLE(w->m->impl, gemm_gated, &args, w->stream);
}

/* Runs or asks the operation that multiplies with a weight in its form. */
static int run_product(struct walk *w, const struct cairn_graph_op *op, const struct cairn_gemm_args *args,
		       const float *scale, const uint8_t *scale_w4)
{
	const struct cairn_model *m = w->m;
	size_t bytes = 0;

	if (scale && cairn_weights_are_w8a8(m->weights))
		return run_gemm_w8a8(w, op, args, scale);
	if (scale)
		return run_gemm_fp8(w, args, scale);
	if (scale_w4)
		return run_gemm_w4(w, op, args, scale_w4);
	if (may_activate(w, op, args))
		return run_gated(w, op, args);
	if (may_append(w, op, args))
		return forward_qkv(w, op, args);
	if (!w->asking)
		return CAIRN_TABLE(m->impl, gemm, args, w->stream);
	if (!m->impl->gemm_workspace)
		return 0;
	return forward_ask(w, m->impl->gemm_workspace(args, &bytes), &bytes, "gemm_workspace");
}

int forward_gemm(struct walk *w, const struct cairn_graph_op *op)
{
	const struct cairn_model *m = w->m;
	const enum cairn_weight weight = w->g->values[op->weights[0]].weight;
	const float *scale = forward_scale(w, op, weight);
	const uint8_t *scale_w4 = cairn_model_scale_w4(m, op->layer, weight);
	struct cairn_gemm_args args = {
		.size = sizeof(args), .out = forward_at(w, op->out[0]), .a = forward_at(w, op->in[0]),
		.b = forward_weight_at(w, op, 0), .bias = forward_weight_at(w, op, 1),
		FORWARD_WORKSPACE(w->s->lane[w->lane]),
		.m = forward_rows(w, op->out[0]), .n = forward_width(w, op->out[0]),
		.k = forward_width(w, op->in[0]),
		.dtype = m->dtype, .out_dtype = op->kind == CAIRN_OP_LM_HEAD ? CAIRN_F32 : m->dtype,
	};

	if (op->kind == CAIRN_OP_LM_HEAD)
		args.b = (const char *)args.b + cairn_model_head_at(w->m);
	if (w->part != FORWARD_ALL)
		CAIRN_TRY(take_part(w, op, &args, &scale, &scale_w4));
	CAIRN_TRY(run_product(w, op, &args, scale, scale_w4));
	return run_lora(w, op, &args);
}
