// SPDX-License-Identifier: Apache-2.0
/*
 * cluster_attn_test - makes the inputs for cluster_attn_cases.h
 *
 * The terms of a sum are scaled so that each affects the result: x is small compared with a w_o^T, and the
 * weights make q and k about normal. EXACT has small integers in n, q and v; in the sums_* cases
 * partial sums on the way to them have 18 to 23 bits. EXTREME distorts x, the logits or the values in one of
 * several ways. To fix the logits, one channel of q and k comes from the biases alone and is not rotated, so
 * the logits are known by construction.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "conformance/harness.h"
#include "conformance/suite/draw.h"
#include "conformance/suite/pairs.h"
#include "fused/cluster_attn/cluster_attn.h"
#include "fused/cluster_attn/cluster_attn_schedule.h"
#include "fused/attention/base/attn_stairs.h"
#include "fused/cache/paged_test.h"
#include "primitives/rows/rmsnorm.h"
#include "fused/cluster_attn/cluster_attn_cases.h"
#include "fused/cluster_attn/cluster_attn_pairs.h"
#include "fused/cluster_attn/cluster_attn_sums.h"

static void describe(int index, struct cairn_case *c)
{
	static const char *const names[] = { "auto", "token", "head" };
	double weights, keys;
	struct shape s;

	shape_at(index, &s);
	if (s.pair)
		pair_name(&s, c->name, sizeof(c->name));
	else if (s.name)
		snprintf(c->name, sizeof(c->name), "%s", s.name);
	else
		snprintf(c->name, sizeof(c->name), "%s%s_c%d%s_b%d_kv%d_p%d_h%d_%d_d%d_w%d_%s%s%s%s%s%s",
			 s.ends ? "ends_" : "", names[s.dataflow], s.cluster,
			 s.flags & OFFCHIP ? "_offchip" : "", s.batch, s.kv, s.page, s.hq, s.hkv, s.dim,
			 s.hidden, s.flags & F16 ? "f16" : "bf16",
			 s.flags & BIAS ? "_bias" : "",
			 s.flags & PAGED_RAGGED ? "_ragged" : "", s.flags & PAGED_PADDED ? "_padded" : "",
			 s.flags & LARGE_EPS ? "_eps" : "", s.flags & ALIAS ? "_in_place" : "");
	c->bench = !!(s.flags & BENCH);
	c->device_only = !!(s.flags & DEVICE);
	c->far = !!(s.flags & PAGED_FAR);
	if (s.flags & SUMS)
		c->kinds = CAIRN_KIND_BIT(CAIRN_KIND_EXACT);
	else if (s.bent)
		c->kinds = CAIRN_KIND_BIT(CAIRN_KIND_EXTREME);
	else if (s.pair)
		c->kinds = CAIRN_KIND_BIT(CAIRN_KIND_POISON);
	else if (s.ends || s.flags & (DEVICE | MEAN | PAGED_FAR) || s.positions || s.eps > 0)
		c->kinds = CAIRN_KIND_BIT(CAIRN_KIND_NORMAL);
	else if (s.name)
		c->kinds = CAIRN_KIND_BIT(CAIRN_KIND_EXACT) | CAIRN_KIND_BIT(CAIRN_KIND_POISON);
	else
		c->kinds = CAIRN_KIND_BIT(index % 3) |
			   CAIRN_KIND_BIT(index / 3 % 2 ? CAIRN_KIND_POISON : CAIRN_KIND_NORMAL);
	/* bytes that must be moved: weights once, the keys of all requests once, x and out */
	weights = (2.0 * s.hq + 2.0 * s.hkv) * s.dim * s.hidden;
	keys = (double)s.batch * s.kv;
	c->flops = 2 * s.batch * weights + 4 * keys * s.hq * s.dim;
	c->bytes = 2 * (weights + 2 * keys * s.hkv * s.dim + s.hidden * (2.0 * s.batch + 1));
}

/*
 * Fills a long buffer by repeating a short one of prime length, so that no two rows are alike. Drawing every
 * number would take longer than the rest of the test.
 */
static void fill(struct cairn_op *op, void *p, int dtype, int64_t count, double scale)
{
	int64_t some = count < 16381 ? count : 16381;
	size_t esize = cairn_dtype_bytes(dtype);

	cairn_fill(op, p, dtype, some, scale);
	for (int64_t i = some; i < count; i += some)
		memcpy((char *)p + i * esize, p, (size_t)(count - i < some ? count - i : some) * esize);
}

/* Sets eight elements of each row of w to 1 or -1, so that products of small integers stay small integers. */
static void fill_sparse(struct cairn_op *op, void *w, int dtype, int64_t rows, int64_t cols)
{
	memset(w, 0, (size_t)(rows * cols) * cairn_dtype_bytes(dtype));
	for (int64_t i = 0; i < rows * 8; i++)
		cairn_store(w, dtype, i / 8 * cols + cairn_op_range(op, 0, cols - 1), i % 3 ? 1 : -1);
}

static void fill_x(struct cairn_op *op, const struct shape *s, void *x, int dtype, int bent)
{
	for (int64_t i = 0; i < (int64_t)s->batch * s->hidden; i++) {
		int b = (int)(i / s->hidden);
		double sign = cairn_op_range(op, 0, 1) ? 1 : -1, v = (double)cairn_op_range(op, -16, 16) / 16;

		if (op->kind == CAIRN_KIND_EXACT)
			cairn_store(x, dtype, i, sign * (1 << b % 4));
		if (bent == LARGE_X)
			cairn_store(x, dtype, i, v * (dtype == CAIRN_F16 ? 6e4 : 0x1p50));
		if (bent == TINY_X)	/* one request is all zeros */
			cairn_store(x, dtype, i, b == 1 ? 0 : v * (dtype == CAIRN_F16 ? 0x1p-20 : 0x1p-100));
	}
	if (op->kind == CAIRN_KIND_POISON && s->batch > 2)
		cairn_fill_nan(x, dtype, s->hidden + cairn_op_range(op, 0, s->hidden - 1), 1);
}

static void scale_by(void *p, int dtype, int64_t i, double factor)
{
	cairn_store(p, dtype, i, factor * cairn_load(p, dtype, i));
}

/*
 * Sets channel c0 of q and k: q's and the new key's come from the bias, those of cached keys are stored here.
 * The channel has frequency 0, so positions do not change it.
 */
static void bend_logits(struct cairn_op *op, const struct shape *s, const struct paged *p, int bent)
{
	struct cairn_cluster_attn_args *a = op->args;
	double large = a->dtype == CAIRN_F16 ? 16384 : 0x1p60, steps = a->dtype == CAIRN_F16 ? 9 : 40;
	double q = bent == HUGE_LOGITS ? large : bent == DEEP ? 64 : 16;
	double fresh = bent == NEW_TOP || bent == LATE ? 64 : bent == NEGATIVE || bent == BALANCE ? -128 :
		       bent == DEEP ? -1280 : bent == HUGE_LOGITS ? -large / 2 : 0;
	int c0 = (int)cairn_op_range(op, 0, s->dim - 1), rows = s->hq + s->hkv;
	size_t esize = cairn_dtype_bytes(a->dtype);
	int f16 = a->dtype == CAIRN_F16;

	((float *)a->inv_freq)[c0 % (s->dim / 2)] = 0;
	for (int h = 0; h < rows; h++) {
		int64_t row = (int64_t)h * s->dim + c0;

		memset((char *)a->w_qkv + row * s->hidden * esize, 0, (size_t)s->hidden * esize);
		cairn_store((void *)a->b_qkv, a->dtype, row, h < s->hq ? q : fresh);
	}
	for (int b = 0; b < s->batch; b++) {
		int64_t slot;
		int old = p->kv_len[b] - 1, top = old > 0 ? (int)cairn_op_range(op, 0, old - 1) : 0;

		for (int j = 0; j < old; j++) {
			double v = bent == TOP && j == top ? 64 : 0;

			if ((bent == LATE && j >= 65536) || (bent == EARLY && !j))
				v = 64;
			if (bent == STAIRS)
				v = attn_stair(b, attn_stretch(j, old), f16) / (q * (double)a->sm_scale);
			if (bent == DEEP)
				v = -1280;
			if (bent == BALANCE)
				v = j == top ? 0 : -steps / 2;
			if (bent == NEGATIVE)
				v = -128 - (double)cairn_op_range(op, 0, 3);
			if (bent == HUGE_LOGITS)
				v = j == top ? large : large * (double)cairn_op_range(op, -8, 6) / 8;
			slot = paged_slot(p, b, j);
			for (int g = 0; g < s->hkv; g++)
				cairn_store(a->kv.k_pages, a->dtype, (slot * s->hkv + g) * s->dim + c0, v);
			for (int64_t i = 0; i < s->hkv * s->dim && bent == BALANCE; i++)
				cairn_store(a->kv.v_pages, a->dtype, slot * s->hkv * s->dim + i,
					    j == top ? 1 : -exp(steps) / (old - 1));
			for (int64_t i = 0; i < s->hkv * s->dim && bent == STAIRS; i++)
				scale_by(a->kv.v_pages, a->dtype, slot * s->hkv * s->dim + i,
					 attn_stair_weight(b, attn_stretch(j, old), f16, 0));
		}
	}
}

/*
 * sm_scale is 1/8 plus nearly half an ulp of dtype. With 1/8, each of the many keys would have e^-40 times
 * the weight of the one key (f16: e^-9). q comes from the bias alone, which is 0 except in channel c0; an
 * element of out is that of x plus one element of a.
 */
static void balance(struct cairn_op *op, const struct shape *s)
{
	struct cairn_cluster_attn_args *a = op->args;
	int64_t nq = (int64_t)s->hq * s->dim;

	a->sm_scale = 0.125f * (1 + 0.97f * (a->dtype == CAIRN_F16 ? 0x1p-11f : 0x1p-8f));
	memset((void *)a->w_qkv, 0, (size_t)(nq * s->hidden) * 2);
	memset((void *)a->b_qkv, 0, (size_t)nq * 2);
	memset((void *)a->w_o, 0, (size_t)(s->hidden * nq) * 2);
	for (int64_t i = 0; i < s->hidden; i++)
		cairn_store((void *)a->w_o, a->dtype, i * nq + i * 5 % nq, 1);
}

/* With kind POISON only old keys hold numbers. */
static void fill_pages(struct cairn_op *op, const struct paged *p, void *pages, int dtype, int64_t row,
		       double scale)
{
	size_t esize = cairn_dtype_bytes(dtype);

	if (op->kind != CAIRN_KIND_POISON) {
		fill(op, pages, dtype, (int64_t)p->num_pages * p->page_size * row, scale);
		return;
	}
	cairn_fill_nan(pages, dtype, 0, (int64_t)p->num_pages * p->page_size * row);
	for (int b = 0; b < p->batch; b++)
		for (int j = 0; j < p->kv_len[b] - 1; j++)
			cairn_fill(op, (char *)pages + paged_slot(p, b, j) * row * esize, dtype, row, scale);
}

static void make_tables(struct cairn_op *op, const struct shape *s, struct paged *p)
{
	struct cairn_cluster_attn_args *a = op->args;
	int lens[PAGED_MAX_BATCH], full;
	int32_t *ids;

	p->batch = s->batch;
	p->page_size = s->page;
	p->flags = s->flags & ~(unsigned)PAGED_RAGGED;
	p->pool = s->flags & PAGED_FAR ? (1 << 21) + 40 : s->flags & PAGED_CYCLE ? 37 : 70000 / s->page + 9;
	for (int b = 0; b < s->batch; b++)
		lens[b] = b && s->flags & PAGED_RAGGED ? (int)cairn_op_range(op, 1, s->kv) : s->kv;
	paged_lengths(op, p, 1, 0, NULL, s->kv_lens ? s->kv_lens : lens, 0);
	/* paged_tables() fills positions as its qo_indptr, which has one element more than needed */
	paged_tables(op, p, offsetof(struct cairn_cluster_attn_args, positions),
		     offsetof(struct cairn_cluster_attn_args, kv));
	for (int b = 0; b <= s->batch; b++)
		((int32_t *)a->positions)[b] = s->near || (op->kind == CAIRN_KIND_EXACT &&
							   op->case_index % 2) ? 0 :
					       (int32_t)cairn_op_range(op, 0, 8191);
	if (s->positions)
		memcpy((int32_t *)a->positions, s->positions, (size_t)s->batch * sizeof(*s->positions));
	ids = (int32_t *)p->kv_indices;
	for (int b = 1; b < s->batch && s->flags & SHARED; b++) {
		full = (p->kv_len[b] < p->kv_len[0] ? p->kv_len[b] : p->kv_len[0]) - 1;
		for (int i = 0; i < full / s->page; i++)
			ids[p->kv_indptr[b] + i] = ids[i];
	}
	if (s->flags & ZERO_LAST)
		((int32_t *)a->kv.last_page_len)[1] = p->kv_len[1] = 0;
	a->kv.batch = s->batch;
	a->kv.num_pages = p->num_pages;
	a->kv.page_size = s->page;
	a->kv.max_len = p->max_kv;
	if (s->flags & PAGED_PADDED)
		a->kv.max_len = p->flags & PAGED_HIGH ? 131072 : p->max_kv * 3 + 5;
}

#define FIELD(f)	offsetof(struct cairn_cluster_attn_args, f)

static void fill_weights(struct cairn_op *op, const struct shape *s, int dtype, int bent)
{
	int64_t nq = (int64_t)s->hq * s->dim, rows = nq + 2 * (int64_t)s->hkv * s->dim;
	void *norm = cairn_in(op, FIELD(norm_weight), dtype, s->hidden);
	void *w_qkv = cairn_in(op, FIELD(w_qkv), dtype, rows * s->hidden);
	void *w_o = cairn_in(op, FIELD(w_o), dtype, s->hidden * nq);

	for (int j = 0; j < s->hidden; j++)	/* magnitude about 1, some negative */
		cairn_store(norm, dtype, j, op->kind == CAIRN_KIND_EXACT ? (j % 5 ? 1 : -2) :
			    (double)cairn_op_range(op, 50, 150) / 100 * (j % 5 ? 1 : -1));
	fill(op, w_o, dtype, s->hidden * nq, op->kind == CAIRN_KIND_EXACT ? 1 : 2 / sqrt((double)nq));
	if (op->kind == CAIRN_KIND_EXACT)
		fill_sparse(op, w_qkv, dtype, rows, s->hidden);
	else
		fill(op, w_qkv, dtype, rows * s->hidden, 1 / sqrt((double)s->hidden));
	if (bent == EQUAL)
		memset(w_qkv, 0, (size_t)(nq * s->hidden) * cairn_dtype_bytes(dtype));
	if (s->flags & (BIAS | BIAS_QKV))
		cairn_fill(op, cairn_in(op, FIELD(b_qkv), dtype, rows), dtype, rows, 0.5);
	if (s->flags & (BIAS | BIAS_OUT))
		cairn_fill(op, cairn_in(op, FIELD(b_o), dtype, s->hidden), dtype, s->hidden, 0.5);
}

static void setup(struct cairn_op *op)
{
	struct cairn_cluster_attn_args *a = op->args;
	enum cairn_kind kind = op->kind;
	struct paged p = { 0 };
	int64_t row, slots;
	int bent = PLAIN;
	double v_scale;
	struct shape s;
	float *freq;
	double base;
	void *x;

	shape_at(op->case_index, &s);
	if (kind == CAIRN_KIND_EXTREME) {
		bent = s.bent ? s.bent : 1 + op->case_index / 3 % ((s.flags & BIAS ? NUM_BENT : TOP) - 1);
		op->kind = CAIRN_KIND_NORMAL;	/* the rest of the memory is filled as for NORMAL */
	}
	make_tables(op, &s, &p);
	a->hidden = s.hidden;
	a->num_qo_heads = s.hq;
	a->num_kv_heads = s.hkv;
	a->head_dim = s.dim;
	a->dtype = s.flags & F16 ? CAIRN_F16 : CAIRN_BF16;
	a->dataflow = s.dataflow;
	a->cluster_size = s.cluster;
	a->offchip = !!(s.flags & OFFCHIP);
	a->sms = s.sms;
	a->eps = s.flags & LARGE_EPS ? 0.5f : op->case_index % 2 ? 1e-6f : 1e-5f;
	a->sm_scale = op->case_index % 4 == 1 && !s.name ? 0.2f : (float)(1 / sqrt(s.dim));
	if (s.eps > 0)
		a->eps = (float)s.eps;
	if (s.pair) {
		a->sm_scale = s.scale > 0 ? s.scale : (float)(1 / sqrt(s.dim));
	}

	if (s.flags & ALIAS) {
		x = cairn_inout(op, FIELD(out), a->dtype, (int64_t)s.batch * s.hidden);
		cairn_alias(op, FIELD(x), FIELD(out));
	} else {
		cairn_out(op, FIELD(out), a->dtype, (int64_t)s.batch * s.hidden);
		x = cairn_in(op, FIELD(x), a->dtype, (int64_t)s.batch * s.hidden);
	}
	cairn_shape(op, FIELD(out), { "row", s.batch }, { "dim", s.hidden });
	cairn_fill(op, x, a->dtype, (int64_t)s.batch * s.hidden, s.size > 0 ? s.size : 0.25);
	if (s.eps > 0 && !s.pair)
		memset(x, 0, (size_t)s.hidden * 2);
	fill_x(op, &s, x, a->dtype, bent);
	freq = cairn_in(op, FIELD(inv_freq), CAIRN_F32, s.dim / 2);
	base = cairn_op_range(op, 0, 1) ? 10000 : 500000;	/* frequencies differ between calls */
	for (int i = 0; i < s.dim / 2; i++)
		freq[i] = (float)pow(base, -2.0 * i / s.dim);
	fill_weights(op, &s, a->dtype, bent);
	row = (int64_t)s.hkv * s.dim;
	if (s.flags & PAGED_FAR) {
		paged_far(op, &p, FIELD(kv.k_pages), a->dtype, row, 1);
		paged_far(op, &p, FIELD(kv.v_pages), a->dtype, row, 1);
		paged_shape(op, &p, FIELD(kv.k_pages), s.hkv, s.dim);
		paged_shape(op, &p, FIELD(kv.v_pages), s.hkv, s.dim);
		return;
	}
	slots = (int64_t)p.num_pages * s.page;
	v_scale = bent == LARGE_V ? (a->dtype == CAIRN_F16 ? 2000 : 1e10) :
		  bent == TINY_V ? (a->dtype == CAIRN_F16 ? 0x1p-22 : 0x1p-120) : 1;
	fill_pages(op, &p, cairn_inout(op, FIELD(kv.k_pages), a->dtype, slots * row), a->dtype, row, 1);
	fill_pages(op, &p, cairn_inout(op, FIELD(kv.v_pages), a->dtype, slots * row), a->dtype, row, v_scale);
	paged_shape(op, &p, FIELD(kv.k_pages), s.hkv, s.dim);
	paged_shape(op, &p, FIELD(kv.v_pages), s.hkv, s.dim);
	if (bent == BALANCE)
		balance(op, &s);
	if (bent >= TOP)
		bend_logits(op, &s, &p, bent);
	if (s.flags & SUMS)
		fill_sums(op, &s, &p, x);
	if (s.pair && p.kv_len[2] > 1)	/* in the third request's oldest key or value */
		cairn_fill_nan(s.pair % 2 ? a->kv.k_pages : a->kv.v_pages, a->dtype,
			       paged_slot(&p, 2, 0) * row + row - 1, 1);
	op->kind = kind;
}

static int relist(void *args)
{
	const struct cairn_cluster_attn_args *a = args;

	return paged_relist(&a->kv, NULL) | paged_move_rows(a->positions, a->kv.batch);
}

static const char *reject(void *args, int i, int *want)
{
	struct cairn_cluster_attn_args *a = args;

	*want = i < 41 || i > 51 ? -EINVAL : -EOPNOTSUPP;
	switch (i) {
	case 0: a->size = 16; return "size_too_small";
	case 1: a->out = NULL; return "out_null";
	case 2: a->kv.k_pages = NULL; return "k_pages_null";
	case 3: a->kv.v_pages = NULL; return "v_pages_null";
	case 4: a->x = NULL; return "x_null";
	case 5: a->norm_weight = NULL; return "norm_weight_null";
	case 6: a->w_qkv = NULL; return "w_qkv_null";
	case 7: a->w_o = NULL; return "w_o_null";
	case 8: a->inv_freq = NULL; return "inv_freq_null";
	case 9: a->positions = NULL; return "positions_null";
	case 10: a->kv.indptr = NULL; return "kv_indptr_null";
	case 11: a->kv.indices = NULL; return "kv_indices_null";
	case 12: a->kv.last_page_len = NULL; return "kv_last_page_len_null";
	case 13: a->out = (char *)a->out + 8; return "out_misaligned";
	case 14: a->kv.k_pages = (char *)a->kv.k_pages + 2; return "k_pages_misaligned";
	case 15: a->kv.v_pages = (char *)a->kv.v_pages + 4; return "v_pages_misaligned";
	case 16: a->x = (const char *)a->x + 8; return "x_misaligned";
	case 17: a->norm_weight = (const char *)a->norm_weight + 8; return "norm_weight_misaligned";
	case 18: a->w_qkv = (const char *)a->w_qkv + 8; return "w_qkv_misaligned";
	case 19: a->b_qkv = (const char *)a->b_qkv + 8; return "b_qkv_misaligned";
	case 20: a->w_o = (const char *)a->w_o + 2; return "w_o_misaligned";
	case 21: a->b_o = (const char *)a->b_o + 2; return "b_o_misaligned";
	case 22: a->workspace = (char *)a->workspace + 16; return "workspace_misaligned";
	case 23: a->kv.batch = -1; return "batch_negative";
	case 24: a->kv.max_len = -1; return "max_kv_len_negative";
	case 25: a->kv.num_pages = -1; return "num_pages_negative";
	case 26: a->kv.page_size = 0; return "page_size_0";
	case 27: a->hidden = 0; return "hidden_0";
	case 28: a->num_qo_heads = 0; return "num_qo_heads_0";
	case 29: a->num_kv_heads = 0; return "num_kv_heads_0";
	case 30: a->head_dim = -64; return "head_dim_negative";
	case 31: a->eps = 0; return "eps_0";
	case 32: a->eps = NAN; return "eps_nan";
	case 33: a->sm_scale = 0; return "sm_scale_0";
	case 34: a->sm_scale = INFINITY; return "sm_scale_inf";
	case 35: a->dataflow = -1; return "dataflow_negative";
	case 36: a->dataflow = 3; return "dataflow_3";
	case 37: a->cluster_size = -1; return "cluster_size_negative";
	case 38: a->dataflow = AUTO; return "cluster_size_with_auto";
	case 39: a->dataflow = AUTO; a->cluster_size = 0; a->offchip = 1; return "offchip_with_auto";
	case 40: a->sm_scale = -1; return "sm_scale_negative";
	case 41: a->dtype = CAIRN_F32; return "dtype_f32";
	case 42: a->head_dim = 80; return "head_dim_80";
	case 43: a->head_dim = 256; return "head_dim_256";
	case 44: a->hidden = 96; return "hidden_96";
	case 45: a->hidden = 16448; return "hidden_16448";
	case 46: a->num_qo_heads = 5; return "heads_5_over_2";
	case 47: a->num_qo_heads = 34; return "group_17";
	case 48: a->kv.batch = 17; return "batch_17";
	case 49: a->cluster_size = 17; return "cluster_size_17";
	case 50: a->dataflow = HEAD; a->cluster_size = 3; return "head_cluster_size_3";
	case 51: a->dataflow = HEAD; a->cluster_size = 16; return "head_cluster_size_16_of_64";
	case 52: a->sms = -1; return "sms_negative";
	case 53: a->eps = 1e-39f; return "eps_subnormal";
	}
	return NULL;
}

static int exact(const void *args, struct cairn_exact *e)
{
	return cairn_cluster_attn_exact(args, e);
}

/*
 * Reports the bytes that the requested dataflow sends through DSMEM by its formulas, which are a lower bound.
 */
static int extra(const struct cairn_op *op, const void *got, char *json, size_t len)
{
	const struct cairn_cluster_attn_args *a = got;
	int group = a->num_qo_heads / a->num_kv_heads, n = a->cluster_size;
	struct cluster_attn_traffic t = { 0, 0 };
	struct shape s;

	shape_at(op->case_index, &s);
	if (!n)
		return snprintf(json, len, "\"kv_len\":%d", s.kv) >= (int)len;
	if (a->dataflow == HEAD && !a->offchip)
		t = cluster_attn_head_traffic(CAIRN_CLUSTER_TWOSHOT, n, a->kv.batch, group, a->head_dim,
					      (int64_t)s.batch * s.kv, 2);
	else if (!a->offchip)
		t = cluster_attn_token_traffic(n, 1, a->kv.batch, group, a->head_dim, 2);
	return snprintf(json, len, "\"kv_len\":%d,\"dsmem_model_bytes\":%lld", s.kv,
			(long long)(t.gather + t.reduce) * a->num_kv_heads) >= (int)len;
}

/* More than eight requests run a separate kernel. */
static const char *const sanitized[] = {
	"old_length_0_batch_16.exact", "auto_c0_b16_kv17_p16_h32_8_d64_w64_bf16_bias.exact", NULL
};

static void pair_rows(struct cairn_test *t)
{
	cairn_pairs_check(t, &pair_table, NUM_PAIRS);
	cairn_pairs_check(t, &ends_table, NUM_ENDS);
}

static const struct cairn_unit units[] = { { "pair_rows", pair_rows } };

const struct cairn_family cairn_cluster_attn_family = {
	.stage = "fused", .name = "cluster_attn",
	.op = offsetof(struct cairn_impl, cluster_attn),
	.workspace_op = offsetof(struct cairn_impl, cluster_attn_workspace),
	.args_size = sizeof(struct cairn_cluster_attn_args),
	.sms_field = offsetof(struct cairn_cluster_attn_args, sms),
	.workspace_field = FIELD(workspace),
	.zeroed_workspace = 1, .refuses_small_workspace = 1,
	.num_cases = NUM_CASES, .draw = &draws,
	.units = units, .num_units = ARRAY_SIZE(units),
	.may_alias = { { FIELD(out), FIELD(x) } },
	.company = { .rows = FIELD(kv.batch), .in = { FIELD(x) }, .out = { FIELD(out) } },
	.describe = describe,
	.setup = setup,
	.relist = relist,
	.exact = exact,
	.reject = reject,
	.extra = extra,
	.sanitized = sanitized,
	.timeout_s = 900,	/* the full-size models are checked on the host */
	.cost_s = 11,
};
