/* SPDX-License-Identifier: Apache-2.0 */
/*
 * attn_dense_inputs - the inputs that attn_dense and attn_bwd share: lengths, layouts of K and V, patterns
 *
 * The two tests include conformance/harness.h first and define ARGS, the struct of the arguments. Its members
 * have the same names in both operations.
 */
#ifndef CAIRN_ATTN_DENSE_INPUTS_H
#define CAIRN_ATTN_DENSE_INPUTS_H

#include "fused/attention/base/attn_inputs.h"
#include "fused/cache/paged_test.h"

enum {
	CAUSAL = PAGED_FLAGS, LSE = CAUSAL << 1, F16 = CAUSAL << 2, BENCH = CAUSAL << 3, DEVICE = CAUSAL << 4,
	FAR_Q = CAUSAL << 5,		/* rows of q begin past 2^31 and 2^32 elements */
	FAR_K = CAUSAL << 6,		/* so do the rows of K */
	FAR_V = CAUSAL << 7,
	FAR_OUT = CAUSAL << 8,		/* q and out have more than 2^31 elements, in many rows */
};

/* Layouts of K and V. */
enum {
	CONTIGUOUS,		/* strides 0 */
	ROW_GAPS,		/* gaps between rows, of different lengths in K and V */
	HEAD_GAPS,		/* heads of K lie between those of V, as in one buffer of both */
	HEADS_FIRST,		/* all rows of a head follow each other */
	NUM_LAYOUTS,
	/* only one stride is not 0; never chosen by the case index */
	LONE_K = NUM_LAYOUTS, LONE_V, LONE_K_HEAD, LONE_V_HEAD,
	/* K and V share a buffer: each row has its heads of K, then those of V; or V is K */
	JOINED, SAME,
};

static const char *const layout_names[] = { "contiguous", "row_gaps", "head_gaps", "heads_first", "lone_k",
					    "lone_v", "lone_k_head", "lone_v_head", "joined", "same" };

struct shape {
	const char *name;			/* NULL: derived from the shape */
	/* query rows and keys of each request, query heads, KV heads, qk_dim, v_dim */
	int batch, qo, kv, hq, hkv, qk, v;
	unsigned flags;
	int logits;				/* with kind EXTREME; 0: chosen by the case index */
	const int *qo_lens, *kv_lens;		/* [batch], replaces qo and kv; may be NULL */
	int window;
	float cap;
	int layout, sms;
	/* number of the case among the pairs of features, or 0 */
	int pair;
	float scale;				/* sm_scale; 0: the usual one, or by the case index */
	int q_gap, explicit_stride;		/* elements between rows of q; q_stride is not 0 */
	int equal;				/* EXACT has equal logits */
	int roundings;				/* cairn_case.roundings */
	int ends;				/* number of the case among the ends of tiles, or 0 */
};

#define FIELD(f)	offsetof(ARGS, f)
#define FAR_STRIDE	(((int64_t)1 << 31) + 64)

/* Where the rows and heads of K or of V lie; strides are never 0. */
struct place {
	void *x;
	int64_t stride, head_stride, count;	/* count: elements of the buffer */
};

struct places {
	struct place k, v;
	const int32_t *indptr;
};

static int64_t k_at(const void *of, int b, int j, int g)
{
	const struct places *p = of;

	return (p->indptr[b] + j) * p->k.stride + g * p->k.head_stride;
}

static int64_t v_at(const void *of, int b, int j, int g)
{
	const struct places *p = of;

	return (p->indptr[b] + j) * p->v.stride + g * p->v.head_stride;
}

/* Sets the two strides, which are 0 only with CONTIGUOUS. other: the dimension of the other array. */
static struct place lay_out(const struct shape *s, int is_v, int dim, int other, int64_t rows, int far)
{
	struct place p = { .stride = (int64_t)s->hkv * dim, .head_stride = dim };

	if (s->layout == ROW_GAPS)
		p.stride += dim > 100 ? 8 : 24;
	if (s->layout == HEAD_GAPS) {
		p.head_stride = dim + other;
		p.stride = s->hkv * p.head_stride;
	}
	if (s->layout == JOINED)
		p.stride += (int64_t)s->hkv * other;
	if (s->layout == LONE_K + is_v)
		p.stride += 24;
	if (s->layout == LONE_K_HEAD + is_v) {
		p.head_stride += 16;
		p.stride = s->hkv * p.head_stride;
	}
	if (s->layout == HEADS_FIRST) {
		p.stride = dim;
		p.head_stride = far ? FAR_STRIDE : rows * dim + 8;
	} else if (far) {
		p.stride = FAR_STRIDE;
	}
	return p;
}

/* Declares K or V and fills the first `used` rows; the other rows and all gaps are NaN. */
static void declare_kv(struct cairn_op *op, const struct shape *s, size_t field, const char *name, int dtype,
		       int dim, struct place *p, int64_t rows, int64_t used, int far)
{
	int64_t count = rows ? (rows - 1) * p->stride + (s->hkv - 1) * p->head_stride + dim : 0;
	size_t esize = cairn_dtype_bytes(dtype);

	if (s->layout == JOINED)
		count = rows * p->stride;
	p->count = count;
	p->x = far ? cairn_in_far(op, field, dtype, count) : cairn_in(op, field, dtype, count);
	cairn_name(op, field, name);
	for (int64_t i = 0; far && i < rows * s->hkv; i++)
		cairn_touch(op, p->x, i / s->hkv * p->stride + i % s->hkv * p->head_stride, dim);
	if (!far)
		cairn_fill_nan(p->x, dtype, 0, count);
	for (int64_t i = 0; i < used * s->hkv; i++) {
		int64_t at = i / s->hkv * p->stride + i % s->hkv * p->head_stride;

		cairn_fill(op, (char *)p->x + at * (int64_t)esize, dtype, dim, 1);
	}
}

/* With JOINED and SAME: places V in the buffer of K, and with JOINED fills it. */
static void share_kv(struct cairn_op *op, const struct shape *s, int dtype, struct places *at, int64_t used)
{
	const int64_t esize = (int64_t)cairn_dtype_bytes(dtype);
	const int64_t from = s->layout == JOINED ? (int64_t)s->hkv * s->qk : 0;

	cairn_within(op, FIELD(v), FIELD(k), (size_t)(from * esize));
	at->v.x = (char *)at->k.x + from * esize;
	at->v.count = at->k.count - from;
	for (int64_t i = 0; i < used && s->layout == JOINED; i++)
		cairn_fill(op, (char *)at->v.x + i * at->v.stride * esize, dtype, (int64_t)s->hkv * s->v, 1);
}

/* Sets the keys that no row's window reaches to NaN. */
static void poison_outside(const struct shape *s, const struct paged *p, const struct places *at, int dtype)
{
	for (int b = 0; b < p->batch; b++)
		for (int j = 0; j <= p->kv_len[b] - p->qo_len[b] - s->window; j++)
			for (int g = 0; g < s->hkv; g++) {
				cairn_fill_nan(at->k.x, dtype, k_at(at, b, j, g), s->qk);
				cairn_fill_nan(at->v.x, dtype, v_at(at, b, j, g), s->v);
			}
}

/* Declares q and fills its rows, except the last `pad` rows, which are NaN like the gaps. */
static void *declare_q(struct cairn_op *op, const struct shape *s, int dtype, int64_t rows, int64_t pad,
		       int64_t stride)
{
	int64_t row = (int64_t)s->hq * s->qk;
	void *q;

	if (s->flags & FAR_OUT)
		return cairn_in_rows(op, FIELD(q), dtype, (int32_t)rows, row, 1);
	if (s->flags & FAR_Q)
		q = cairn_in_far(op, FIELD(q), dtype, (rows - 1) * stride + row);
	else
		q = cairn_in(op, FIELD(q), dtype, rows * stride);
	for (int64_t i = 0; i < rows && s->flags & FAR_Q; i++)
		cairn_touch(op, q, i * stride, row);
	if (!(s->flags & FAR_Q))
		cairn_fill_nan(q, dtype, 0, rows * stride);
	for (int64_t i = 0; i < rows - pad; i++)
		cairn_fill(op, (char *)q + i * stride * (int64_t)cairn_dtype_bytes(dtype), dtype, row, 1);
	return q;
}

static void set_scalars(ARGS *a, const struct shape *s, const struct paged *p,
			const struct places *at, int pad, int case_index)
{
	int zero = s->layout == CONTIGUOUS && !(s->flags & (FAR_K | FAR_V));

	a->batch = s->batch;
	a->max_qo_len = p->max_qo + pad * 10;
	a->max_kv_len = p->max_kv * (pad ? 3 : 1) + pad;
	a->num_qo_heads = s->hq;
	a->num_kv_heads = s->hkv;
	a->qk_dim = s->qk;
	a->v_dim = s->v;
	a->dtype = s->flags & F16 ? CAIRN_F16 : CAIRN_BF16;
	a->causal = !!(s->flags & CAUSAL);
	a->window = s->window;
	a->softcap = s->cap;
	a->sms = s->sms;
	a->sm_scale = case_index % 4 == 1 && !s->name ? 0.3f : (float)(1 / sqrt(s->qk));
	if (s->pair || s->scale > 0)
		a->sm_scale = s->scale > 0 ? s->scale : (float)(1 / sqrt(s->qk));
	if (s->layout >= NUM_LAYOUTS) {
		a->k_stride = s->layout == LONE_K || s->layout == JOINED ? at->k.stride : 0;
		a->v_stride = s->layout == LONE_V || s->layout == JOINED ? at->v.stride : 0;
		a->k_head_stride = s->layout == LONE_K_HEAD || s->layout == JOINED ? at->k.head_stride : 0;
		a->v_head_stride = s->layout == LONE_V_HEAD ? at->v.head_stride : 0;
		return;
	}
	/* with gaps between heads only, the strides of rows follow from those of heads */
	a->k_stride = zero || (s->layout == HEAD_GAPS && case_index % 2) ? 0 : at->k.stride;
	a->v_stride = zero || (s->layout == HEAD_GAPS && case_index % 2) ? 0 : at->v.stride;
	a->k_head_stride = zero || s->layout == ROW_GAPS ? 0 : at->k.head_stride;
	a->v_head_stride = zero || s->layout == ROW_GAPS ? 0 : at->v.head_stride;
}

/* Declares and fills all inputs that both operations have, and sets the scalars. */
static void declare_inputs(struct cairn_op *op, const struct shape *s)
{
	ARGS *a = op->args;
	enum cairn_kind kind = op->kind;
	int pad, dtype, logits = PLAIN, used = 0;
	struct paged p = { 0 };
	struct places at;
	struct attn_inputs in;
	int32_t *qo_indptr, *kv_indptr;
	int64_t stride;
	void *q;

	if (kind == CAIRN_KIND_EXACT)
		logits = op->case_index / 3 % 2 ? TOP : EQUAL;
	if (kind == CAIRN_KIND_EXTREME)
		logits = s->logits ? s->logits : 1 + op->case_index / 6 % (NUM_LOGITS - 1);
	else if (kind != CAIRN_KIND_EXACT && s->logits == LIMITS)
		logits = LIMITS;
	p.batch = s->batch;
	p.flags = s->flags;
	pad = s->flags & PAGED_PADDED ? 5 : 0;
	dtype = s->flags & F16 ? CAIRN_F16 : CAIRN_BF16;
	paged_lengths(op, &p, s->qo, s->kv, s->qo_lens, s->kv_lens, 0);
	qo_indptr = cairn_in(op, FIELD(qo_indptr), CAIRN_I32, s->batch + 1);
	kv_indptr = cairn_in(op, FIELD(kv_indptr), CAIRN_I32, s->batch + 1);
	qo_indptr[0] = kv_indptr[0] = 0;
	for (int b = 0; b < s->batch; b++) {
		qo_indptr[b + 1] = qo_indptr[b] + p.qo_len[b];
		kv_indptr[b + 1] = used += p.kv_len[b];
	}
	a->nnz_qo = p.nnz + pad;
	a->nnz_kv = used + 2 * pad;
	at.k = lay_out(s, 0, s->qk, s->v, a->nnz_kv, s->flags & FAR_K);
	at.v = lay_out(s, 1, s->v, s->qk, a->nnz_kv, s->flags & FAR_V);
	at.indptr = kv_indptr;
	set_scalars(a, s, &p, &at, pad, op->case_index);
	stride = s->flags & FAR_Q ? FAR_STRIDE : (int64_t)s->hq * s->qk + s->q_gap;
	a->q_stride = s->flags & FAR_Q || s->q_gap || s->explicit_stride ? stride : 0;
	if (logits != PLAIN && logits != ANY && kind == CAIRN_KIND_EXTREME)
		op->kind = CAIRN_KIND_NORMAL;	/* for elements that the pattern does not overwrite */
	q = declare_q(op, s, dtype, a->nnz_qo, pad, stride);
	declare_kv(op, s, FIELD(k), "k", dtype, s->qk, &at.k, a->nnz_kv, used, s->flags & FAR_K);
	if (s->layout == JOINED || s->layout == SAME)
		share_kv(op, s, dtype, &at, used);
	else
		declare_kv(op, s, FIELD(v), "v", dtype, s->v, &at.v, a->nnz_kv, used, s->flags & FAR_V);
	if (kind == CAIRN_KIND_POISON && s->window)
		poison_outside(s, &p, &at, dtype);
	in = (struct attn_inputs){
		.op = op, .q = q, .k = at.k.x, .v = at.v.x, .q_stride = stride, .dtype = dtype,
		.rows = p.nnz, .batch = s->batch, .heads = s->hq, .kv_heads = s->hkv, .qk_dim = s->qk,
		.v_dim = s->v, .qo_len = p.qo_len, .kv_len = p.kv_len, .of = &at, .k_at = k_at, .v_at = v_at,
	};
	if (s->pair && kind == CAIRN_KIND_EXACT) {
		attn_fill_exact(&in, s->equal);
		if (!s->equal)
			a->sm_scale = 0.25f;
	} else if (logits == LIMITS) {
		attn_fill_limits(&in, a->causal, a->window, &a->sm_scale);
	} else if (logits == STAIRS || logits == EDGES) {
		a->sm_scale = 1;
		if (logits == STAIRS)
			attn_fill_stairs(&in, s->cap);
		else
			attn_fill_edges(&in);
	} else if (logits >= NAN_Q) {
		attn_add_nan(&in, logits);
	} else if (logits >= LARGE_V) {
		attn_scale_values(&in, at.v.count, logits);
	} else if (logits >= EQUAL) {
		a->sm_scale = 1;
		attn_fill_logits(&in, logits);
	}
	op->kind = kind;
}

#endif
