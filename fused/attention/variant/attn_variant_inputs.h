/* SPDX-License-Identifier: Apache-2.0 */
/*
 * attn_variant_inputs - the cases of attn_variant and attn_variant_text: shapes, names and inputs
 *
 * The tests include conformance/harness.h first.
 */
#ifndef CAIRN_ATTN_VARIANT_INPUTS_H
#define CAIRN_ATTN_VARIANT_INPUTS_H

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "fused/attention/variant/attn_variant.h"
#include "fused/cache/paged_test.h"

enum {
	CAUSAL = PAGED_FLAGS, LSE = CAUSAL << 1, F16 = CAUSAL << 2, BENCH = CAUSAL << 3, DEVICE = CAUSAL << 4,
	INTERLEAVED = CAUSAL << 5,
	SINK = CAUSAL << 6,		/* plain: with sinks */
	SINK_NONE = CAUSAL << 7,	/* half of the sinks are -infinity, the others 40 */
	TEXT = CAUSAL << 8,		/* a caller's text: 4 arrays of TEXT_ARRAY numbers, and all of p */
	SINK_HUGE = CAUSAL << 9,	/* with SINK: sinks beyond the range of exp() in fp32 */
	/* rows of q, and rows (HEADS_FIRST: heads) of K and V, begin past 2^31 and 2^32 elements */
	FAR = CAUSAL << 10,
};

#define FAR_STRIDE	(((int64_t)1 << 31) + 64)

#define TEXT_ARRAY	4096

/* Layouts of K and V. */
enum { CONTIGUOUS, ROW_GAPS, HEADS_FIRST, NUM_LAYOUTS };

struct shape {
	const char *name;
	int variant, batch, qo, kv, hq, hkv, dim;
	unsigned flags;
	float p0;
	const float *p;				/* [8] of a text */
	const int *qo_lens, *kv_lens;		/* [batch], replaces qo and kv; may be NULL */
	int layout, q_gap, sms, pair, ends;
	float scale;				/* sm_scale; 0: the usual one */
	int roundings;				/* cairn_case.roundings */
};

#define FIELD(f)	offsetof(struct cairn_attn_variant_args, f)

/* Fills rows of an operand; gaps, and the rows after the first `used` ones, are NaN. */
static void *declare_rows(struct cairn_op *op, size_t field, const char *name, int dtype, int heads, int dim,
			  int64_t rows, int64_t used, int64_t stride, int64_t head_stride, int far)
{
	int64_t count = rows ? (rows - 1) * stride + (heads - 1) * head_stride + dim : 0;
	char *x = far ? cairn_in_far(op, field, dtype, count) : cairn_in(op, field, dtype, count);

	cairn_name(op, field, name);
	for (int64_t i = 0; far && i < rows * heads; i++)
		cairn_touch(op, x, i / heads * stride + i % heads * head_stride, dim);
	if (!far)
		cairn_fill_nan(x, dtype, 0, count);
	for (int64_t i = 0; i < used * heads; i++)
		cairn_fill(op, x + (i / heads * stride + i % heads * head_stride) * 2, dtype, dim, 1);
	return x;
}

/* Sets the keys that no query's window reaches to NaN. */
static void poison_outside(const struct cairn_attn_variant_args *a, const struct paged *p, void *k, void *v,
			   int64_t stride, int64_t head_stride)
{
	for (int b = 0; b < p->batch; b++)
		for (int j = 0; j <= p->kv_len[b] - p->qo_len[b] - (int)a->p[0]; j++)
			for (int g = 0; g < a->num_kv_heads; g++) {
				int64_t at = (a->kv_indptr[b] + j) * stride + g * head_stride;

				cairn_fill_nan(k, a->dtype, at, a->head_dim);
				cairn_fill_nan(v, a->dtype, at, a->head_dim);
			}
}

/* Declares the arrays of a text, which hold numbers from 1/64 to 1. */
static void declare_text_arrays(struct cairn_op *op, const struct shape *s)
{
	struct cairn_attn_variant_args *a = op->args;

	for (size_t k = 0; k < 4; k++) {
		float *t = cairn_in(op, FIELD(t) + k * sizeof(a->t[0]), CAIRN_F32, TEXT_ARRAY);

		cairn_name(op, FIELD(t) + k * sizeof(a->t[0]), "t");
		for (int i = 0; i < TEXT_ARRAY; i++)
			t[i] = (float)cairn_op_range(op, 1, 64) / 64;
	}
	memcpy(a->p, s->p, sizeof(a->p));
}

/* Declares t[0] as the variant needs it, and sets p[0]. */
static void declare_array(struct cairn_op *op, const struct shape *s, int max_kv)
{
	struct cairn_attn_variant_args *a = op->args;
	int words = (max_kv + 31) / 32;

	a->p[0] = s->variant == CAIRN_VARIANT_BITS ? (float)words : s->p0;
	if (s->variant == CAIRN_VARIANT_ROPE) {
		float *freq = cairn_in(op, FIELD(t[0]), CAIRN_F32, s->dim / 2);

		for (int i = 0; i < s->dim / 2; i++)
			freq[i] = (float)pow(10000, -2.0 * i / s->dim);
	} else if (s->variant == CAIRN_VARIANT_ALIBI) {
		float *slope = cairn_in(op, FIELD(t[0]), CAIRN_F32, s->hq);

		for (int h = 0; h < s->hq; h++)
			slope[h] = (float)pow(2, -8.0 * (h + 1) / s->hq);
	} else if (s->flags & SINK) {
		static const float huge[] = { 100, 200, -200, 3e4f };
		float *sink = cairn_in(op, FIELD(t[0]), CAIRN_F32, s->hq);

		for (int h = 0; h < s->hq; h++)
			sink[h] = s->flags & SINK_HUGE ? huge[h % 4] :
				  s->flags & SINK_NONE ? h % 2 ? -INFINITY : 40 :
				  (float)cairn_op_range(op, -8, 8) / 2;
	} else if (s->variant == CAIRN_VARIANT_BITS) {
		uint32_t *bits = cairn_in(op, FIELD(t[0]), CAIRN_I32, (int64_t)a->nnz_qo * words);

		/* a query in seven sees no key */
		for (int64_t i = 0; i < (int64_t)a->nnz_qo * words; i++)
			bits[i] = i / words % 7 == 3 ? 0 : (uint32_t)cairn_op_rand(op);
	}
}

/* Declares and fills all buffers, and sets the scalars. */
static void declare_case(struct cairn_op *op, const struct shape *s)
{
	struct cairn_attn_variant_args *a = op->args;
	int pad = s->flags & PAGED_PADDED ? 5 : 0, far = !!(s->flags & FAR), used = 0;
	int64_t stride = (int64_t)s->hkv * s->dim, head_stride = s->dim, q_stride;
	struct paged p = { .batch = s->batch, .flags = s->flags };
	int32_t *qo_indptr, *kv_indptr;
	void *k, *v;

	paged_lengths(op, &p, s->qo, s->kv, s->qo_lens, s->kv_lens, 0);
	qo_indptr = cairn_in(op, FIELD(qo_indptr), CAIRN_I32, s->batch + 1);
	kv_indptr = cairn_in(op, FIELD(kv_indptr), CAIRN_I32, s->batch + 1);
	qo_indptr[0] = kv_indptr[0] = 0;
	for (int b = 0; b < s->batch; b++) {
		qo_indptr[b + 1] = qo_indptr[b] + p.qo_len[b];
		kv_indptr[b + 1] = used += p.kv_len[b];
	}
	a->batch = s->batch;
	a->nnz_qo = p.nnz + pad;
	a->nnz_kv = used + 2 * pad;
	a->max_qo_len = p.max_qo + 2 * pad;
	a->max_kv_len = p.max_kv + 9 * pad;
	a->num_qo_heads = s->hq;
	a->num_kv_heads = s->hkv;
	a->head_dim = s->dim;
	a->dtype = s->flags & F16 ? CAIRN_F16 : CAIRN_BF16;
	a->causal = !!(s->flags & CAUSAL);
	a->sm_scale = s->scale > 0 ? s->scale : (float)(1 / sqrt(s->dim));
	a->variant = s->variant;
	a->interleaved = !!(s->flags & INTERLEAVED);
	a->sms = s->sms;
	if (s->layout == ROW_GAPS)
		a->k_stride = a->v_stride = stride += 24;
	if (s->layout == HEADS_FIRST) {
		a->k_stride = a->v_stride = stride = s->dim;
		a->k_head_stride = a->v_head_stride = head_stride =
			far ? FAR_STRIDE : (int64_t)a->nnz_kv * s->dim + 8;
	} else if (far) {
		a->k_stride = a->v_stride = stride = FAR_STRIDE;
	}
	q_stride = far ? FAR_STRIDE : (int64_t)s->hq * s->dim + s->q_gap;
	a->q_stride = far || s->q_gap ? q_stride : 0;
	declare_rows(op, FIELD(q), "q", a->dtype, s->hq, s->dim, a->nnz_qo, p.nnz, q_stride, s->dim,
		     far);
	k = declare_rows(op, FIELD(k), "k", a->dtype, s->hkv, s->dim, a->nnz_kv, used, stride, head_stride,
			 far);
	v = declare_rows(op, FIELD(v), "v", a->dtype, s->hkv, s->dim, a->nnz_kv, used, stride, head_stride,
			 far);
	if (s->flags & TEXT)
		declare_text_arrays(op, s);
	else
		declare_array(op, s, p.max_kv);
	if (op->kind == CAIRN_KIND_POISON && s->variant == CAIRN_VARIANT_PLAIN && s->p0 > 0)
		poison_outside(a, &p, k, v, stride, head_stride);
	cairn_out(op, FIELD(out), a->dtype, (int64_t)a->nnz_qo * s->hq * s->dim);
	cairn_shape(op, FIELD(out), { "row", a->nnz_qo }, { "head", s->hq }, { "dim", s->dim });
	if (!(s->flags & LSE))
		return;
	cairn_out(op, FIELD(lse), CAIRN_F32, (int64_t)a->nnz_qo * s->hq);
	cairn_shape(op, FIELD(lse), { "row", a->nnz_qo }, { "head", s->hq });
}

/* Sets the costs of a case, and which kinds it has. */
static void describe_shape(const struct shape *s, struct cairn_case *c)
{
	double pairs = (double)s->qo * s->kv;

	c->bench = !!(s->flags & BENCH);
	c->device_only = !!(s->flags & DEVICE);
	c->kinds = CAIRN_KIND_BIT(CAIRN_KIND_NORMAL);
	c->far = !!(s->flags & FAR);
	c->roundings = s->roundings;
	if (!s->ends && !s->roundings && !(s->flags & (BENCH | DEVICE | FAR)))
		c->kinds |= CAIRN_KIND_BIT(CAIRN_KIND_POISON);
	if (s->flags & CAUSAL)
		pairs = s->qo > s->kv ? 0.5 * s->kv * (s->kv + 1.0) : pairs - 0.5 * s->qo * (s->qo - 1.0);
	c->flops = 4.0 * s->batch * pairs * s->hq * s->dim;
	c->bytes = 4.0 * s->batch * s->dim * ((double)s->kv * s->hkv + (double)s->qo * s->hq);
}

static int relist(void *args)
{
	const struct cairn_attn_variant_args *a = args;

	return paged_drop_key_and_row(a->kv_indptr, a->qo_indptr, a->batch);
}

static int exact(const void *args, struct cairn_exact *e)
{
	return cairn_attn_variant_exact(args, e);
}

#endif
