// SPDX-License-Identifier: Apache-2.0
/*
 * decode_step_inputs_test - makes the inputs of the cases
 *
 * Kinds: EXACT has small integers in the residual stream, weights that are integers times a power of two, and
 * with one layer attention logits so far apart that one key has all the weight. EXTREME has a residual stream
 * of zeros, tiny, huge and very unequal numbers, row by row. Gaps between layers hold NaN in all kinds.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "conformance/harness.h"
#include "fused/cache/paged_test.h"
#include "fused/decode_step/decode_step_test.h"

/* Fills rows of the embedding, the first residual stream. */
static void fill_embed(struct cairn_op *op, const struct step_shape *s, void *embed)
{
	static const double sizes[] = { 0, 0x1p-22, 2e-3, 1, 700, 12000 };
	struct cairn_decode_step_args *a = op->args;
	enum cairn_kind kind = op->kind;

	if (kind == CAIRN_KIND_EXTREME)
		op->kind = CAIRN_KIND_NORMAL;
	step_repeat(op, embed, a->dtype, (int64_t)s->vocab * s->hidden, s->size > 0 ? s->size : 1);
	if (s->eps > 0 && !s->pair)	/* the row of the first request */
		memset((uint16_t *)embed + (int64_t)(s->vocab - 1) * s->hidden, 0, (size_t)s->hidden * 2);
	op->kind = kind;
	for (int64_t i = 0; kind == CAIRN_KIND_EXTREME && i < (int64_t)s->vocab * s->hidden; i++) {
		double size = sizes[i / s->hidden % 6];
		double v = cairn_load(embed, a->dtype, i) * size * (i % 61 == 7 ? 40 : 1);

		if (a->dtype == CAIRN_BF16 && size == 12000)
			v *= 1e9;
		cairn_store(embed, a->dtype, i, a->dtype == CAIRN_F16 ? fmax(fmin(v, 6e4), -6e4) : v);
	}
}

static int64_t cache_row(const struct step_shape *s)
{
	return s->flags & LATENT ? 576 : (int64_t)s->hkv * s->dim;
}

static void fill_pages(struct cairn_op *op, const struct step_shape *s, const struct paged *p, size_t field)
{
	struct cairn_decode_step_args *a = op->args;
	int64_t row = cache_row(s), stride = a->kv_stride_bytes / 2;
	int64_t pool = p->num_pages * (int64_t)s->page * row, count = (s->layers - 1) * stride + pool;
	enum cairn_kind kind = op->kind;
	uint16_t *pages;

	if (s->flags & PAGED_FAR)
		pages = paged_far(op, p, field, a->dtype, row, 1);
	else if (s->flags & FAR_LAYERS)
		pages = cairn_inout_far(op, field, a->dtype, count);
	else
		pages = cairn_inout(op, field, a->dtype, count);
	cairn_name(op, field, field == STEP_FIELD(kv.k_pages) ? "kv.k_pages" : "kv.v_pages");
	cairn_shape(op, field, { "layer", s->layers }, { "page", p->num_pages }, { "slot", s->page },
		    { "head", s->flags & LATENT ? 1 : s->hkv }, { "dim", s->flags & LATENT ? row : s->dim });
	cairn_stride(op, field, "layer", stride);
	if (kind == CAIRN_KIND_EXTREME)
		op->kind = CAIRN_KIND_NORMAL;
	for (int i = 0; i < s->layers; i++) {
		if (s->flags & FAR_LAYERS)
			cairn_touch(op, pages, i * stride, pool);
		if (!(s->flags & PAGED_FAR))
			paged_fill(op, p, pages + i * stride, a->dtype, row);
		for (int b = 0; b < s->batch; b++)	/* written, not read */
			if (p->kv_len[b])
				cairn_fill_nan(pages + i * stride, a->dtype,
					       paged_slot(p, b, p->kv_len[b] - 1) * row, row);
	}
	op->kind = kind;
}

static void fill_sampling(struct cairn_op *op, const struct step_shape *s)
{
	const int batch = s->batch;
	float *temperature = cairn_in(op, STEP_FIELD(temperature), CAIRN_F32, batch);
	float *top_p = cairn_in(op, STEP_FIELD(top_p), CAIRN_F32, batch);
	float *min_p = cairn_in(op, STEP_FIELD(min_p), CAIRN_F32, batch);
	int32_t *top_k = cairn_in(op, STEP_FIELD(top_k), CAIRN_I32, batch);
	uint64_t *seed = cairn_in(op, STEP_FIELD(seed), CAIRN_I64, batch);
	uint64_t *offset = cairn_in(op, STEP_FIELD(offset), CAIRN_I64, batch);

	for (int b = 0; b < batch; b++) {
		/* which requests are greedy differs between cases */
		temperature[b] = (b + op->case_index) % 3 == 1 ? 0 : 0.7f + 0.3f * (float)b;
		top_p[b] = b % 2 ? 1 : 0.9f;
		min_p[b] = b % 4 == 2 ? 0.25f : 0;
		top_k[b] = b % 4 == 3 ? 5 : 0;
		if (s->top_k) {
			temperature[b] = 16;
			top_p[b] = 1;
			min_p[b] = 0;
			top_k[b] = s->top_k[b];
		}
		seed[b] = cairn_op_rand(op);
		offset[b] = cairn_op_rand(op) >> (b % 2 ? 54 : 20);	/* below 1024, or above 2^32 */
	}
}

static void set_lengths(struct cairn_op *op, const struct step_shape *s, struct paged *p)
{
	p->batch = s->batch;
	p->page_size = s->page;
	p->flags = s->flags;
	p->pool = s->flags & PAGED_FAR ? (int)(((int64_t)1 << 32) / cache_row(s) / s->page) + 40 : 0;
	p->max_kv = 1;
	for (int b = 0; b < s->batch; b++) {
		p->qo_len[b] = 1;
		p->kv_len[b] = s->kv_lens ? s->kv_lens[b] :
			       b && s->flags & PAGED_RAGGED ? (int)cairn_op_range(op, 1, s->kv) : s->kv;
		p->max_kv = p->kv_len[b] > p->max_kv ? p->kv_len[b] : p->max_kv;
	}
}

static void set_scalars(struct cairn_op *op, const struct step_shape *s, const struct paged *p)
{
	struct cairn_decode_step_args *a = op->args;
	int pad = s->flags & PAGED_PADDED ? 5 : 0, gap = s->flags & GAPS ? 24 : 0;

	a->kv_stride_bytes = 2 * ((int64_t)p->num_pages * s->page * cache_row(s) + 3 * gap);
	if (s->flags & FAR_LAYERS)
		a->kv_stride_bytes += (int64_t)1 << 33;
	a->kv.batch = s->batch;
	a->kv.max_len = p->max_kv * (pad ? 3 : 1) + pad;
	a->kv.num_pages = p->num_pages;
	a->kv.page_size = s->page;
	a->num_layers = s->layers;
	a->hidden = s->hidden;
	a->intermediate = s->inter;
	a->num_qo_heads = s->hq;
	a->num_kv_heads = s->hkv;
	a->head_dim = s->dim;
	a->vocab = s->vocab;
	a->dtype = s->flags & F16 ? CAIRN_F16 : CAIRN_BF16;
	a->sms = s->sms;
	a->form = s->flags & GRAPH ? CAIRN_DECODE_STEP_GRAPH :
		  s->flags & PERSISTENT ? CAIRN_DECODE_STEP_PERSISTENT : CAIRN_DECODE_STEP_AUTO;
	a->eps = s->eps > 0 ? (float)s->eps : op->case_index % 3 ? 1e-5f : 1e-6f;
	/*
	 * In the first layer the key with all the weight does not depend on rounding; in later layers it may.
	 */
	a->sm_scale = (float)((op->kind == CAIRN_KIND_EXACT && s->layers == 1 && !(s->flags & LATENT) ?
			       64 : 1) / sqrt(s->dim));
	if (s->scale > 0)
		a->sm_scale = s->scale;
	if (s->flags & LATENT) {
		a->q_lora_rank = s->lora;
		a->kv_lora_rank = 512;
		a->nope_dim = a->v_dim = 128;
		a->rope_dim = 64;
	}
	if (s->experts) {
		a->num_experts = s->experts;
		a->experts_per_token = s->top;
		a->expert_intermediate = s->expert_inter;
		a->shared_intermediate = s->shared;
		a->dense_layers = s->dense;
		a->normalize_experts = !!(s->flags & NORMED);
		a->expert_scaling = s->scaling > 0 ? s->scaling : 1;
	}
}

static void fill_index(struct cairn_op *op, const struct step_shape *s, const struct paged *p)
{
	int rotated = s->flags & LATENT ? 64 : s->dim;
	/* frequencies differ between calls */
	double base = cairn_op_range(op, 0, 1) ? 10000 : 500000;
	float *inv_freq = cairn_in(op, STEP_FIELD(inv_freq), CAIRN_F32, rotated / 2);
	int32_t *positions = cairn_in(op, STEP_FIELD(positions), CAIRN_I32, s->batch), *ids;

	for (int i = 0; i < rotated / 2; i++)
		inv_freq[i] = (float)pow(base, -2.0 * i / rotated);
	for (int b = 0; b < s->batch; b++)
		positions[b] = s->flags & FAR ? (int32_t)cairn_op_range(op, 0, 100000) : p->kv_len[b] - 1;
	if (s->flags & ALIAS) {
		ids = cairn_inout(op, STEP_FIELD(ids), CAIRN_I32, s->batch);
		cairn_shape(op, STEP_FIELD(ids), { "row", s->batch });
		cairn_alias(op, STEP_FIELD(tokens), STEP_FIELD(ids));
	} else {
		ids = cairn_in(op, STEP_FIELD(ids), CAIRN_I32, s->batch);
		if (!(s->flags & NO_TOKENS)) {
			cairn_out(op, STEP_FIELD(tokens), CAIRN_I32, s->batch);
			cairn_shape(op, STEP_FIELD(tokens), { "row", s->batch });
		}
	}
	for (int b = 0; b < s->batch; b++)	/* the last row and the first, and sometimes equal ones */
		ids[b] = s->pair ? s->vocab - 1 - b : b == 0 ? s->vocab - 1 : b == 5 ? 0 :
			 (int32_t)cairn_op_range(op, 0, s->vocab - 1);
}

/* Puts a NaN into the third request: into its oldest key or value of some layer, or into its embedding. */
static void fill_one_nan(struct cairn_op *op, const struct step_shape *s, const struct paged *p, void *embed)
{
	struct cairn_decode_step_args *a = op->args;
	int64_t row = cache_row(s), layer = s->pair / 3 % s->layers * (a->kv_stride_bytes / 2);

	if (s->batch < 3)
		return;
	if (s->pair % 3 == 2 && !(s->flags & TIED))
		cairn_fill_nan(embed, a->dtype, a->ids[2] * (int64_t)s->hidden + s->hidden - 1, 1);
	else
		cairn_fill_nan(s->pair % 3 && !(s->flags & LATENT) ? a->kv.v_pages : a->kv.k_pages, a->dtype,
			       layer + paged_slot(p, 2, 0) * row + row - 1, 1);
}

/*
 * Sets channel 0 of q and k, which is not rotated. In q and the new key it comes from the bias alone; in
 * cached keys it is stored here. This lowers all logits by the same number, which cancels in the softmax.
 */
static void lower_logits(struct cairn_op *op, const struct step_shape *s, const struct paged *p)
{
	struct cairn_decode_step_args *a = op->args;

	((float *)a->inv_freq)[0] = 0;
	for (int h = 0; h < s->hq + s->hkv; h++) {
		int64_t row = (int64_t)h * s->dim;

		memset((uint16_t *)a->w_qkv + row * s->hidden, 0, (size_t)s->hidden * 2);
		cairn_store((void *)a->b_qkv, a->dtype, row, h < s->hq ? 64 : -1280);
	}
	for (int b = 0; b < s->batch; b++)
		for (int j = 0; j < p->kv_len[b] - 1; j++)
			for (int g = 0; g < s->hkv; g++)
				cairn_store(a->kv.k_pages, a->dtype,
					    (paged_slot(p, b, j) * s->hkv + g) * s->dim, -1280);
}

/*
 * sm_scale lies between two numbers of dtype. With it the first key of a request has e^9 times the weight of
 * each other old key, and its values are smaller by that factor. q comes from channel 0 of the bias alone.
 */
static void balance_values(struct cairn_op *op, const struct step_shape *s, const struct paged *p)
{
	struct cairn_decode_step_args *a = op->args;
	int64_t nq = (int64_t)s->hq * s->dim, row = (int64_t)s->hkv * s->dim;

	a->sm_scale = 0.125f * (1 + 0.97f * (a->dtype == CAIRN_F16 ? 0x1p-11f : 0x1p-8f));
	((float *)a->inv_freq)[0] = 0;
	memset((void *)a->w_qkv, 0, (size_t)((nq + row) * s->hidden) * 2);
	memset((void *)a->b_qkv, 0, (size_t)(nq + row) * 2);
	for (int h = 0; h < s->hq + s->hkv; h++)
		cairn_store((void *)a->b_qkv, a->dtype, (int64_t)h * s->dim, h < s->hq ? 16 : -128);
	for (int b = 0; b < s->batch; b++)
		for (int j = 0; j < p->kv_len[b] - 1; j++)
			for (int64_t i = 0; i < row; i++) {
				int64_t at = paged_slot(p, b, j) * row + i;

				if (i % s->dim == 0)
					cairn_store(a->kv.k_pages, a->dtype, at, j ? -4.5 : 0);
				cairn_store(a->kv.v_pages, a->dtype, at,
					    j ? -exp(9) / (p->kv_len[b] - 2) : 1);
			}
}

/* Clears row r of lm_head outside the r-th part of its columns. */
static void cut_windows(const struct step_shape *s, uint16_t *head)
{
	int64_t window = s->hidden / s->vocab;

	for (int64_t i = 0; i < (int64_t)s->vocab * s->hidden; i++)
		if (i % s->hidden / window != i / s->hidden)
			head[i] = 0;
}

/* x is 1 and -1 up to the MLP, whose gates and ups come from its first element, 1. */
static void shut_gates(struct cairn_op *op, const struct step_shape *s, void *embed)
{
	struct cairn_decode_step_args *a = op->args;
	int64_t v = s->hq * (s->flags & LATENT ? 128 : s->dim);

	memset((void *)a->w_o, 0, (size_t)(s->hidden * v) * 2);
	for (int64_t i = 0; i < (int64_t)s->vocab * s->hidden; i++)
		cairn_store(embed, a->dtype, i, i % s->hidden && cairn_op_rand(op) & 1 ? -1 : 1);
	for (int i = 0; i < s->hidden; i++)
		cairn_store((void *)a->mlp_norm, a->dtype, i, 1);
	memset((void *)a->w_gate_up, 0, (size_t)(2 * s->inter * s->hidden) * 2);
	for (int64_t i = 0; i < 2 * s->inter; i++)
		cairn_store((void *)a->w_gate_up, a->dtype, i * s->hidden, i < s->inter ? -24 : 0x1p30);
}

/* Declares lm_head, of which a rank has its part of the rows, and fills it. Returns NULL if it is embed. */
static uint16_t *fill_head(struct cairn_op *op, const struct step_shape *s)
{
	const struct cairn_decode_step_args *a = op->args;
	int64_t count = (int64_t)s->vocab / (op->ranks ? op->ranks : 1) * s->hidden;
	uint16_t *head;

	if (s->flags & TIED) {
		cairn_within(op, STEP_FIELD(lm_head), STEP_FIELD(embed), (size_t)(op->rank * count) * 2);
		return NULL;
	}
	head = cairn_in(op, STEP_FIELD(lm_head), a->dtype, count);
	/* logits past the range of f16 */
	step_fill(op, head, a->dtype, count,
		  (s->flags & SHUT ? 0x1p20 : s->flags & STEEP && s->flags & F16 ? 0x1p15 : 1) /
		  sqrt(s->hidden));
	return head;
}

void step_setup_shape(struct cairn_op *op, const struct step_shape *s)
{
	struct cairn_decode_step_args *a = op->args;
	struct paged p = { 0 };
	uint16_t *embed, *head;

	set_lengths(op, s, &p);
	step_apart(op);
	paged_kv_tables(op, &p, STEP_FIELD(kv));
	step_together(op);
	set_scalars(op, s, &p);
	cairn_out(op, STEP_FIELD(logits), CAIRN_F32, (int64_t)s->batch * s->vocab);
	cairn_shape(op, STEP_FIELD(logits), { "row", s->batch }, { "token", s->vocab });
	step_apart(op);
	fill_pages(op, s, &p, STEP_FIELD(kv.k_pages));
	if (!(s->flags & LATENT))
		fill_pages(op, s, &p, STEP_FIELD(kv.v_pages));
	step_together(op);
	fill_index(op, s, &p);
	embed = cairn_in(op, STEP_FIELD(embed), a->dtype, (int64_t)s->vocab * s->hidden);
	fill_embed(op, s, embed);
	step_apart(op);
	head = fill_head(op, s);
	step_together(op);
	if (s->flags & WINDOWS)
		cut_windows(s, head);
	for (int i = 0; s->flags & TIES && i < s->vocab; i += 2)
		memcpy(head + (i + 1) * s->hidden, head + i * s->hidden, (size_t)s->hidden * 2);
	step_fill(op, cairn_in(op, STEP_FIELD(final_norm), a->dtype, s->hidden), a->dtype, s->hidden, 1);
	step_weights(op, s);
	if (s->flags & DEEP)
		lower_logits(op, s, &p);
	if (s->flags & BALANCE)
		balance_values(op, s, &p);
	if (s->flags & SHUT)
		shut_gates(op, s, embed);
	step_decide_experts(op, s, embed);
	if (s->flags & SAMPLE)
		fill_sampling(op, s);
	if (s->pair)
		fill_one_nan(op, s, &p, embed);
}

void step_setup(struct cairn_op *op)
{
	struct step_shape s;

	step_shape_at(op->case_index, &s);
	step_setup_shape(op, &s);
}
