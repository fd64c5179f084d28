// SPDX-License-Identifier: Apache-2.0
/*
 * attn_paged_test - named edge cases, two grids of small shapes, ends of tiles, large shapes, bench rows
 *
 * The grids cross batch (or query rows), keys and page size; heads, head_dim and flags rotate through lists.
 * EXACT has equal logits (out is the mean of small integers) or one key that outweighs all others (out is
 * its V); EXTREME changes logits or values in one of six ways. In these the exact answer is known by
 * construction and the bound stays tight.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "conformance/harness.h"
#include "conformance/suite/draw.h"
#include "conformance/suite/pairs.h"
#include "fused/attention/base/attn_inputs.h"
#include "fused/attention/paged/attn_paged.h"
#include "fused/attention/base/attn_lengths.h"
#include "fused/cache/paged_test.h"
#include "fused/attention/paged/attn_paged_cases.h"

static void shape_at(int index, struct shape *s)
{
	static const int heads[][2] = { { 4, 4 }, { 8, 2 }, { 6, 1 }, { 14, 2 }, { 32, 8 }, { 8, 1 },
					{ 32, 4 }, { 28, 4 } };
	static const int dims[] = { 128, 64, 256, 128, 64 };
	int i = index - NUM_NAMED, h;

	if (i < 0) {
		*s = named[index];
		return;
	}
	if (index >= NUM_CASES) {
		cairn_draw_shape(&draws, index - NUM_CASES, s);
		return;
	}
	if (index >= FIRST_DECODES) {
		decodes_at(index - FIRST_DECODES, s);
		return;
	}
	if (index >= FIRST_ENDS) {
		ends_at(index - FIRST_ENDS, s);
		return;
	}
	if (index >= NUM_WITH_FP8) {
		*s = windows[index - NUM_WITH_FP8];
		return;
	}
	if (index >= NUM_16BIT) {
		fp8_shape_at(index - NUM_16BIT, s);
		return;
	}
	if (index >= NUM_FIRST + NUM_LATER + NUM_PAIRS) {
		*s = last[index - NUM_FIRST - NUM_LATER - NUM_PAIRS];
		return;
	}
	if (index >= NUM_FIRST + NUM_LATER) {
		pair_at(index - NUM_FIRST - NUM_LATER, s);
		return;
	}
	if (index >= NUM_FIRST) {
		*s = later[index - NUM_FIRST];
		return;
	}
	if (i >= NUM_DECODE + NUM_PREFILL) {
		*s = with_sms[i - NUM_DECODE - NUM_PREFILL];
		return;
	}
	memset(s, 0, sizeof(*s));
	if (i < NUM_DECODE) {
		s->batch = decode_batch[i % 4];
		s->qo = 1;
		s->kv = decode_kv[i / 4 % 7];
		s->page = pages[i / 28];
		h = (i + i / 28) % 8;
	} else {
		i -= NUM_DECODE;
		s->qo = prefill_qo[i % 5];
		s->kv = prefill_kv[i / 5 % 4];
		s->page = pages[i / 20];
		s->batch = 1 + i % 3;
		h = (i + i / 20) % (s->qo * s->kv > 10000 ? 3 : 8);
		s->flags = i % 3 != 1 ? CAUSAL : 0;
	}
	s->hq = heads[h][0];
	s->hkv = heads[h][1];
	s->dim = dims[(i + i / 5) % 5];
	s->flags |= (i % 2 ? F16 : 0) | (i % 5 < 3 ? LSE : 0) | (i % 7 < 3 ? PACKED : 0) |
		    (i % 3 ? PAGED_RAGGED : 0) | (i % 11 < 3 ? PAGED_PADDED : 0);
}

static void describe(int index, struct cairn_case *c)
{
	struct shape s;
	double pairs, kv;

	shape_at(index, &s);
	if (s.pair)
		pair_name(&s, c->name, sizeof(c->name));
	else if (s.ends)
		ends_name(&s, c->name, sizeof(c->name));
	else if (s.name)
		snprintf(c->name, sizeof(c->name), "%s", s.name);
	else
		snprintf(c->name, sizeof(c->name), "b%d_qo%d_kv%d_p%d_h%d_%d_d%d_%s%s%s%s%s%s", s.batch, s.qo,
			 s.kv, s.page, s.hq, s.hkv, s.dim, s.flags & F16 ? "f16" : "bf16",
			 s.flags & CAUSAL ? "_causal" : "", s.flags & LSE ? "_lse" : "",
			 s.flags & PACKED ? "_packed" : "", s.flags & PAGED_RAGGED ? "_ragged" : "",
			 s.flags & PAGED_PADDED ? "_padded" : "");
	c->bench = !!(s.flags & BENCH);
	c->device_only = !!(s.flags & DEVICE);
	c->roundings = s.roundings;
	c->far = !!(s.flags & (PAGED_FAR | FAR_ROWS | FAR_OUT));
	if (s.name && s.logits)
		c->kinds = CAIRN_KIND_BIT(CAIRN_KIND_EXTREME);
	else if (s.ends || s.roundings || s.flags & (BENCH | DEVICE | PAGED_FAR | FAR_ROWS | FAR_OUT))
		c->kinds = CAIRN_KIND_BIT(CAIRN_KIND_NORMAL);
	else if (index >= NUM_CASES)
		c->kinds = CAIRN_ALL_KINDS & ~CAIRN_KIND_BIT(CAIRN_KIND_EXTREME);
	else if (s.pair)
		c->kinds = CAIRN_KIND_BIT(CAIRN_KIND_EXACT) | CAIRN_KIND_BIT(CAIRN_KIND_POISON);
	else if (s.name)
		c->kinds = CAIRN_KIND_BIT(CAIRN_KIND_NORMAL) | CAIRN_KIND_BIT(CAIRN_KIND_POISON);
	else
		c->kinds = CAIRN_KIND_BIT(index % 3) |
			   CAIRN_KIND_BIT(index / 3 % 2 ? CAIRN_KIND_POISON : CAIRN_KIND_NORMAL);
	/* keys that at least one row sees */
	kv = s.window && s.window <= s.kv - s.qo ? s.window + s.qo - 1 : s.kv;
	pairs = (double)s.qo * s.kv;
	if (s.flags & CAUSAL)
		pairs = s.qo > s.kv ? 0.5 * s.kv * (s.kv + 1.0) : pairs - 0.5 * s.qo * (s.qo - 1.0);
	if (s.window && s.window < s.kv - s.qo)		/* in bench rows each row has a whole window */
		pairs = (double)s.qo * s.window;
	if (s.flags & BENCH && s.kv_lens) {		/* decodes; their mean */
		kv = 0;
		for (int b = 0; b < s.batch; b++)
			kv += (double)s.kv_lens[b] / s.batch;
		pairs = kv;
	}
	c->flops = 4.0 * s.batch * pairs * s.hq * s.dim;
	kv *= s.flags & FP8 ? 0.5 : 1;		/* from here on, in keys of 16 bits */
	c->bytes = 4.0 * s.batch * s.dim * (kv * s.hkv + (double)s.qo * s.hq);
	if (s.flags & DECODES) {
		c->flops = 4.0 * s.hq * s.dim * (pairs + (s.batch - 1.0) * s.kv);
		c->bytes = 4.0 * s.dim * (s.batch * kv * s.hkv + (s.batch - 1.0 + s.qo) * s.hq);
	}
}

/* The arguments of key_at(): the page tables, and the elements of a slot and of a head. */
struct slots {
	const struct paged *p;
	int64_t row, dim;
};

/* Sets the keys that no row's window reaches to NaN. */
static void poison_outside(struct cairn_attn_paged_args *a, const struct paged *p, int64_t row)
{
	for (int b = 0; b < p->batch; b++)
		for (int j = 0; j <= p->kv_len[b] - p->qo_len[b] - a->window; j++) {
			int dtype = a->kv_fp8 ? CAIRN_U8 : a->dtype;

			cairn_fill_nan(a->kv.k_pages, dtype, paged_slot(p, b, j) * row, row);
			cairn_fill_nan(a->kv.v_pages, dtype, paged_slot(p, b, j) * row, row);
		}
}

static int64_t key_at(const void *of, int b, int j, int kv_head)
{
	const struct slots *s = of;

	return paged_slot(s->p, b, j) * s->row + kv_head * s->dim;
}

static void declare_out(struct cairn_op *op, const struct shape *s, int64_t rows)
{
	const size_t out = offsetof(struct cairn_attn_paged_args, out);
	const size_t lse = offsetof(struct cairn_attn_paged_args, lse);
	int dtype = s->flags & F16 ? CAIRN_F16 : CAIRN_BF16;
	int64_t row = (int64_t)s->hq * s->dim;

	if (s->flags & FAR_OUT)
		cairn_out_rows(op, out, dtype, (int32_t)rows, row);
	else
		cairn_out(op, out, dtype, rows * row);
	cairn_name(op, out, "out");
	cairn_shape(op, out, { "row", rows }, { "head", s->hq }, { "dim", s->dim });
	if (!(s->flags & LSE))
		return;
	if (s->flags & FAR_OUT)
		cairn_out_rows(op, lse, CAIRN_F32, (int32_t)rows, s->hq);
	else
		cairn_out(op, lse, CAIRN_F32, rows * s->hq);
	cairn_name(op, lse, "lse");
	cairn_shape(op, lse, { "row", rows }, { "head", s->hq });
}

static void *declare_q(struct cairn_op *op, const struct shape *s, int64_t rows, int64_t stride)
{
	const size_t field = offsetof(struct cairn_attn_paged_args, q);
	int dtype = s->flags & F16 ? CAIRN_F16 : CAIRN_BF16;
	int64_t row = (int64_t)s->hq * s->dim;
	void *q;

	q = s->flags & FAR_ROWS ? cairn_in_far(op, field, dtype, (rows - 1) * stride + row) :
	    s->flags & FAR_OUT ? cairn_in_rows(op, field, dtype, (int32_t)rows, row, 1) :
	    cairn_in(op, field, dtype, rows * stride);
	cairn_name(op, field, "q");
	for (int64_t i = 0; i < rows && s->flags & FAR_ROWS; i++)
		cairn_touch(op, q, i * stride, row);
	return q;
}

/* Declares and draws the scales of the KV heads. */
static void declare_scales(struct cairn_op *op, const struct shape *s)
{
	for (int side = 0; side < 2; side++) {
		const size_t field = side ? offsetof(struct cairn_attn_paged_args, v_scale) :
					    offsetof(struct cairn_attn_paged_args, k_scale);
		float *scale;

		if (!(s->flags & (side ? V_SCALE : K_SCALE)))
			continue;
		scale = cairn_in(op, field, CAIRN_F32, s->hkv);
		cairn_name(op, field, side ? "v_scale" : "k_scale");
		for (int g = 0; g < s->hkv; g++)
			scale[g] = (float)cairn_op_range(op, 3, 40) / 16;
	}
}

/* Declares the pages of K, or of V, and fills them. */
static void *declare_pages(struct cairn_op *op, const struct shape *s, const struct paged *p, int of_v)
{
	const struct cairn_attn_paged_args *a = op->args;
	const size_t field = of_v ? offsetof(struct cairn_attn_paged_args, kv.v_pages) :
				    offsetof(struct cairn_attn_paged_args, kv.k_pages);
	int dtype = s->flags & FP8 ? CAIRN_U8 : a->dtype;
	int64_t row = (int64_t)s->hkv * s->dim;
	void *x;

	x = s->flags & PAGED_FAR ? paged_far(op, p, field, dtype, row, 0) :
	    cairn_in(op, field, dtype, p->num_pages * (int64_t)s->page * row);
	cairn_name(op, field, of_v ? "kv.v_pages" : "kv.k_pages");
	if (s->flags & PAGED_FAR)	/* paged_far() has filled them */
		return x;
	if (s->flags & FP8)
		paged_fill_codes(op, p, x, row);
	else
		paged_fill(op, p, x, a->dtype, row);
	return x;
}

static void setup(struct cairn_op *op)
{
	struct cairn_attn_paged_args *a = op->args;
	int64_t row, stride, nnz;
	struct paged p = { 0 };
	enum cairn_kind kind = op->kind;
	struct attn_inputs in;
	struct slots slots;
	struct shape s;
	int pad, logits = PLAIN, qo_lens[PAGED_MAX_BATCH];
	void *k, *v;
	uint8_t *q;
	size_t esize;

	shape_at(op->case_index, &s);
	if (kind == CAIRN_KIND_EXACT)
		logits = op->case_index / 3 % 2 ? TOP : EQUAL;
	if (kind == CAIRN_KIND_EXTREME)
		logits = s.logits ? s.logits : 1 + op->case_index / 6 % (NUM_LOGITS - 1);
	else if (kind != CAIRN_KIND_EXACT && s.logits == LIMITS)
		logits = LIMITS;
	p.batch = s.batch;
	p.page_size = s.page;
	p.flags = s.flags;
	p.pool = s.flags & DEVICE ? 0x7fffffff / 64 / s.page + 9 : s.flags & PAGED_FAR ? FAR_POOL :
		 s.pool ? s.pool : 5000;
	pad = s.flags & PAGED_PADDED ? 5 : 0;
	for (int b = 0; b < s.batch && s.flags & DECODES; b++)
		qo_lens[b] = b ? 1 : s.qo;
	paged_lengths(op, &p, s.qo, s.kv, s.flags & DECODES ? qo_lens : s.qo_lens, s.kv_lens, 0);
	paged_tables(op, &p, offsetof(struct cairn_attn_paged_args, qo_indptr),
		     offsetof(struct cairn_attn_paged_args, kv));
	a->kv.batch = s.batch;
	a->nnz_qo = p.nnz + pad;
	a->max_qo_len = p.max_qo + pad * 10;
	a->kv.max_len = p.max_kv * (pad ? 3 : 1) + pad;
	a->kv.num_pages = p.num_pages;
	a->kv.page_size = s.page;
	a->num_qo_heads = s.hq;
	a->num_kv_heads = s.hkv;
	a->head_dim = s.dim;
	a->dtype = s.flags & F16 ? CAIRN_F16 : CAIRN_BF16;
	a->causal = !!(s.flags & CAUSAL);
	a->window = s.window;
	a->softcap = s.cap;
	a->sms = s.sms;
	for (int b = 0; b < s.batch && s.flags & KEYS_KNOWN; b++)
		a->nnz_kv += p.kv_len[b] + (pad ? 100 : 0);
	a->kv_fp8 = !!(s.flags & FP8);
	a->sm_scale = op->case_index % 4 == 1 && !s.name ? 0.3f : (float)(1 / sqrt(s.dim));
	if (s.pair || s.scale > 0)
		a->sm_scale = s.scale > 0 ? s.scale : (float)(1 / sqrt(s.dim));
	row = (int64_t)s.hkv * s.dim;
	stride = (int64_t)s.hq * s.dim + (s.flags & PACKED ? 2 * row : 0) + s.gap;
	if (s.flags & FAR_ROWS)
		stride = ((int64_t)1 << 31) + 64;
	a->q_stride = s.flags & (PACKED | FAR_ROWS) || s.gap || s.explicit_stride ? stride : 0;
	nnz = a->nnz_qo;
	esize = cairn_dtype_bytes(a->dtype);

	declare_out(op, &s, nnz);
	q = declare_q(op, &s, nnz, stride);
	if (logits != PLAIN && logits != ANY && kind == CAIRN_KIND_EXTREME)
		op->kind = CAIRN_KIND_NORMAL;	/* for elements that the pattern does not overwrite */
	if (!(s.flags & (FAR_ROWS | FAR_OUT)))
		cairn_fill_nan(q, a->dtype, 0, nnz * stride);	/* padding rows and gaps stay NaN */

	if (s.flags & FAR_OUT)
		;	/* declare_q() has filled it */
	else if (stride == (int64_t)s.hq * s.dim)
		cairn_fill(op, q, a->dtype, p.nnz * stride, 1);
	else
		for (int i = 0; i < p.nnz; i++)
			cairn_fill(op, q + i * stride * esize, a->dtype, (int64_t)s.hq * s.dim, 1);
	declare_scales(op, &s);
	k = declare_pages(op, &s, &p, 0);
	v = declare_pages(op, &s, &p, 1);
	if (s.flags & PAGED_FAR)
		return;
	if (kind == CAIRN_KIND_POISON && s.window && !(s.flags & (PAGED_DUPLICATE | PAGED_SAME)))
		poison_outside(a, &p, row);
	slots = (struct slots){ &p, row, s.dim };
	in = (struct attn_inputs){
		.op = op, .q = q, .k = k, .v = v, .q_stride = stride, .dtype = a->dtype,
		.kv_fp8 = a->kv_fp8, .rows = p.nnz,
		.batch = s.batch, .heads = s.hq, .kv_heads = s.hkv, .qk_dim = s.dim, .v_dim = s.dim,
		.qo_len = p.qo_len, .kv_len = p.kv_len, .of = &slots, .k_at = key_at, .v_at = key_at,
	};
	if (s.pair && kind == CAIRN_KIND_EXACT) {
		attn_fill_exact(&in, s.equal);
		if (!s.equal)
			a->sm_scale = 0.25f;
	} else if (logits == LIMITS) {
		attn_fill_limits(&in, a->causal, a->window, &a->sm_scale);
	} else if (logits == STAIRS || logits == EDGES) {
		a->sm_scale = 1;
		if (logits == STAIRS)
			attn_fill_stairs(&in, s.cap);
		else
			attn_fill_edges(&in);
	} else if (logits >= NAN_Q) {
		attn_add_nan(&in, logits);
	} else if (logits >= LARGE_V) {
		attn_scale_values(&in, p.num_pages * (int64_t)p.page_size * row, logits);
	} else if (logits >= EQUAL) {
		a->sm_scale = 1;
		attn_fill_logits(&in, logits);
	}
	op->kind = kind;
}

static int relist(void *args)
{
	const struct cairn_attn_paged_args *a = args;
	int changed = paged_relist(&a->kv, a->qo_indptr);

	return paged_drop_row(a->qo_indptr, a->kv.batch) || changed;
}

static const char *reject(void *args, int i, int *want)
{
	struct cairn_attn_paged_args *a = args;

	*want = i < 20 || i > 25 ? -EINVAL : -EOPNOTSUPP;
	switch (i) {
	case 0: a->size = 8; return "size_too_small";
	case 1: a->out = NULL; return "out_null";
	case 2: a->q = NULL; return "q_null";
	case 3: a->kv.k_pages = NULL; return "k_pages_null";
	case 4: a->kv.v_pages = NULL; return "v_pages_null";
	case 5: a->qo_indptr = NULL; return "qo_indptr_null";
	case 6: a->kv.indptr = NULL; return "kv_indptr_null";
	case 7: a->kv.indices = NULL; return "kv_indices_null";
	case 8: a->kv.last_page_len = NULL; return "kv_last_page_len_null";
	case 9: a->q = (const char *)a->q + 8; return "q_misaligned";
	case 10: a->out = (char *)a->out + 4; return "out_misaligned";
	case 11: a->kv.batch = -1; return "batch_negative";
	case 12: a->kv.max_len = -1; return "max_kv_len_negative";
	case 13: a->kv.page_size = 0; return "page_size_0";
	case 14: a->num_kv_heads = 0; return "num_kv_heads_0";
	case 15: a->sm_scale = 0; return "sm_scale_0";
	case 16: a->sm_scale = NAN; return "sm_scale_nan";
	case 17: a->sm_scale = INFINITY; return "sm_scale_inf";
	case 18: a->q_stride = 56; return "q_stride_short";
	case 19: a->q_stride = 68; return "q_stride_odd";
	case 20: a->dtype = CAIRN_F32; return "dtype_f32";
	case 21: a->head_dim = 56; return "head_dim_56";
	case 22: a->head_dim = 80; return "head_dim_80";
	case 23: a->head_dim = 96; return "head_dim_96";
	case 24: a->head_dim = 224; return "head_dim_224";
	case 25: a->num_qo_heads = 5; a->num_kv_heads = 2; return "heads_5_over_2";
	case 26: a->window = -1; return "window_negative";
	case 27: a->softcap = -1; return "softcap_negative";
	case 28: a->softcap = NAN; return "softcap_nan";
	case 29: a->softcap = INFINITY; return "softcap_inf";
	case 30: a->sms = -1; return "sms_negative";
	case 31: a->kv_fp8 = 2; return "kv_fp8_2";
	case 32: a->kv_fp8 = -1; return "kv_fp8_negative";
	case 33: a->kv_fp8 = 0; a->v_scale = (const float *)a->out; return "v_scale_without_fp8";
	case 34: a->kv_fp8 = 0; a->k_scale = (const float *)a->out; return "k_scale_without_fp8";
	case 35: a->planned = 2; return "planned_2";
	case 36: a->nnz_kv = -1; return "nnz_kv_negative";
	}
	return NULL;
}

static int exact(const void *args, struct cairn_exact *e)
{
	return cairn_attn_paged_exact(args, e);
}

#define FIELD(f)	offsetof(struct cairn_attn_paged_args, f)

static void pair_rows(struct cairn_test *t)
{
	cairn_pairs_check(t, &pair_table, NUM_PAIRS);
	cairn_pairs_check(t, &ends_table, NUM_ENDS);
	cairn_pairs_check(t, &decodes_table, NUM_DECODES);
}

static void fp8_pair_rows(struct cairn_test *t)
{
	cairn_pairs_check(t, &fp8_pair_table, NUM_FP8_PAIRS);
}

static const struct cairn_unit units[] = {
	{ "pair_rows", pair_rows }, { "fp8_pair_rows", fp8_pair_rows },
};

const struct cairn_family cairn_attn_paged_family = {
	.stage = "fused", .name = "attn_paged",
	.op = offsetof(struct cairn_impl, attn_paged),
	.workspace_op = offsetof(struct cairn_impl, attn_paged_workspace),
	.args_size = sizeof(struct cairn_attn_paged_args),
	.sms_field = offsetof(struct cairn_attn_paged_args, sms),
	.planned_field = offsetof(struct cairn_attn_paged_args, planned),
	.plan_scalars = { offsetof(struct cairn_attn_paged_args, sm_scale),
			  offsetof(struct cairn_attn_paged_args, softcap) },
	.workspace_field = offsetof(struct cairn_attn_paged_args, workspace),
	.num_cases = NUM_CASES, .draw = &draws,
	.units = units, .num_units = ARRAY_SIZE(units),
	.company = {
		.rows = FIELD(nnz_qo), .requests = FIELD(kv.batch), .indptr = FIELD(qo_indptr),
		.stride = FIELD(q_stride), .in = { FIELD(q) }, .out = { FIELD(out), FIELD(lse) },
		.keys = FIELD(kv.indptr), .nnz_keys = FIELD(nnz_kv),
	},
	.describe = describe,
	.setup = setup,
	.relist = relist,
	.exact = exact,
	.reject = reject,
	.cost_s = 30,
};
