// SPDX-License-Identifier: Apache-2.0
/*
 * qkv_append_test - cases of qkv_append.h
 *
 * Named cases lie at the limits of the kernels (one row, one row more than the kernel for few rows takes and
 * than a tile has, heads that do not fill a tile, k of one vector) and of the cache. In the pair cases any
 * two features occur together. POISON has NaN in some rows of a and b. The bench rows are a layer of
 * Llama-3-8B in a decode step and in a pass of drafts.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "conformance/harness.h"
#include "conformance/suite/draw.h"
#include "conformance/suite/pairs.h"
#include "fused/cache/paged_test.h"
#include "fused/qkv/qkv_append.h"

#define FIELD(f)	offsetof(struct cairn_qkv_append_args, f)

enum {
	F16 = PAGED_FLAGS, BIAS = F16 << 1, FP8 = F16 << 2, K_SCALE = F16 << 3, V_SCALE = F16 << 4,
	SCALES = FP8 | K_SCALE | V_SCALE, BENCH = F16 << 5, DEVICE = F16 << 6,
	FAR_POSITIONS = F16 << 7,	/* up to 1000000 */
};

struct shape {
	const char *name;	/* NULL: derived from the shape */
	int batch, qo, kv, page, qo_heads, kv_heads, dim, k;
	unsigned flags;
	int gap;		/* elements between rows of q */
	int sms;
	const int *qo_lens, *kv_lens;
	int pair;		/* number of a pair case, or 0 */
};

#define LENS(...) (const int[]){ __VA_ARGS__ }
#define N(name_, batch_, qo_, kv_, page_, qo_heads_, kv_heads_, dim_, k_) \
	.name = name_, .batch = batch_, .qo = qo_, .kv = kv_, .page = page_, .qo_heads = qo_heads_, \
	.kv_heads = kv_heads_, .dim = dim_, .k = k_

static const struct shape named[] = {
	/* N(name, batch, new rows, keys, page size, heads of q, KV heads, head_dim, k), other members */
	{ N("smallest", 1, 1, 1, 1, 1, 1, 16, 8) },
	{ N("one_row", 1, 1, 33, 16, 4, 2, 64, 136), .flags = BIAS },
	{ N("decode_of_8", 8, 1, 20, 16, 4, 1, 128, 264), .flags = PAGED_RAGGED },
	{ N("drafts_of_8", 1, 8, 30, 16, 8, 2, 128, 520), .flags = F16, .gap = 512 },
	{ N("drafts_of_9", 1, 9, 30, 16, 8, 2, 128, 520), .gap = 512 },
	{ N("rows_16", 2, 8, 33, 16, 3, 1, 128, 136), .flags = F16 | BIAS },
	{ N("rows_17", 17, 1, 40, 16, 2, 1, 64, 72), .flags = PAGED_RAGGED },
	{ N("rows_32", 4, 8, 100, 16, 2, 2, 128, 200), .gap = 8 },
	{ N("rows_33", 33, 1, 17, 16, 2, 1, 64, 200), .flags = F16 },
	{ N("rows_48", 3, 16, 16, 16, 2, 1, 128, 72), .flags = BIAS },
	{ N("batch_0", 0, 1, 1, 16, 2, 1, 64, 72), .flags = PAGED_PADDED },
	{ N("batch_0_fp8", 0, 1, 1, 16, 2, 1, 64, 72), .flags = PAGED_PADDED | SCALES },
	{ N("padded_graph", 6, 1, 1, 16, 2, 2, 64, 72), .flags = PAGED_PADDED,
	  .qo_lens = LENS(1, 1, 1, 0, 0, 0), .kv_lens = LENS(31, 32, 33, 0, 0, 1) },
	{ N("padded_graph_of_20", 6, 1, 1, 16, 2, 2, 64, 72), .flags = PAGED_PADDED | F16,
	  .qo_lens = LENS(1, 7, 1, 0, 8, 0), .kv_lens = LENS(31, 32, 33, 0, 40, 1) },
	{ N("empty_requests", 6, 1, 1, 8, 2, 1, 64, 72), .flags = BIAS,
	  .qo_lens = LENS(0, 1, 0, 0, 9, 0), .kv_lens = LENS(0, 1, 0, 5, 20, 8) },
	{ N("batch_of_100_for_5_rows", 100, 0, 3, 4, 2, 1, 32, 72),
	  .qo_lens = LENS([3] = 1, [64] = 3, [99] = 1), .kv_lens = LENS([3] = 5, [64] = 9, [99] = 4) },
	{ N("high_page_ids", 3, 2, 9, 4, 2, 1, 64, 72), .flags = PAGED_HIGH },
	{ N("no_spare_page", 3, 2, 9, 4, 2, 1, 64, 72), .flags = PAGED_FULL },
	{ N("pages_of_41", 2, 4, 85, 41, 2, 1, 48, 72) },
	{ N("pages_of_256_f16", 2, 4, 530, 256, 1, 1, 32, 72), .flags = F16 },
	{ N("far_positions", 2, 4, 30, 16, 2, 1, 128, 72), .flags = FAR_POSITIONS },
	{ N("heads_of_512", 2, 3, 9, 4, 2, 1, 512, 72) },
	{ N("heads_of_48_f16", 2, 9, 9, 4, 5, 1, 48, 72), .flags = F16 },
	{ N("heads_of_16_rows_40", 5, 8, 9, 4, 13, 3, 16, 264) },
	{ N("more_kv_heads", 2, 3, 9, 4, 1, 4, 64, 72) },
	{ N("long_k", 2, 4, 30, 16, 1, 1, 32, 16392), .flags = F16 },
	{ N("long_k_rows_12", 4, 3, 30, 16, 1, 1, 32, 16392) },
	{ N("wide", 1, 5, 30, 16, 64, 8, 128, 72) },
	{ N("wide_rows_24", 3, 8, 30, 16, 64, 8, 128, 72), .flags = F16 | BIAS },
	{ N("fp8", 3, 2, 33, 16, 4, 2, 64, 136), .flags = SCALES | BIAS },
	{ N("fp8_f16_rows_12", 3, 4, 33, 16, 4, 3, 128, 136), .flags = SCALES | F16 },
	{ N("fp8_k_scale_alone", 2, 3, 33, 16, 3, 3, 64, 72), .flags = FP8 | K_SCALE },
	{ N("fp8_v_scale_alone", 2, 6, 33, 16, 3, 3, 64, 72), .flags = FP8 | V_SCALE },
	{ N("fp8_no_scales_rows_40", 5, 8, 33, 16, 2, 2, 64, 72), .flags = FP8 },
	{ N("sms_1", 2, 3, 33, 16, 4, 2, 64, 72), .sms = 1 },
	{ N("sms_3", 2, 4, 33, 16, 8, 2, 128, 264), .sms = 3 },
	{ N("sms_2_rows_16", 2, 8, 33, 16, 8, 2, 128, 72), .sms = 2 },
	{ N("sms_24_rows_48", 6, 8, 33, 16, 16, 2, 128, 520), .flags = F16, .sms = 24 },
	/* bench rows */
	{ N("llama3_8b_b1", 1, 1, 1024, 16, 32, 8, 128, 4096), .flags = BENCH | DEVICE, .gap = 2048 },
	{ N("llama3_8b_b8", 8, 1, 1024, 16, 32, 8, 128, 4096), .flags = BENCH | DEVICE, .gap = 2048 },
	{ N("llama3_8b_drafts_8", 1, 8, 1024, 16, 32, 8, 128, 4096), .flags = BENCH | DEVICE, .gap = 2048 },
	{ N("llama3_8b_drafts_16", 1, 16, 1024, 16, 32, 8, 128, 4096), .flags = BENCH | DEVICE, .gap = 2048 },
	{ N("llama3_8b_b32", 32, 1, 1024, 16, 32, 8, 128, 4096), .flags = BENCH | DEVICE, .gap = 2048 },
	{ N("llama3_8b_b48", 48, 1, 1024, 16, 32, 8, 128, 4096), .flags = BENCH | DEVICE, .gap = 2048 },
	{ N("llama3_8b_b32_fp8", 32, 1, 1024, 16, 32, 8, 128, 4096), .flags = BENCH | DEVICE | SCALES,
	  .gap = 2048 },
};

#define NUM_NAMED	((int)ARRAY_SIZE(named))
#define NUM_PAIRS	52
#define NUM_CASES	(NUM_NAMED + NUM_PAIRS)

enum { PAIR_LENGTHS, PAIR_HEADS, PAIR_PAGE, PAIR_DIM, PAIR_K, PAIR_TYPE, PAIR_GAP, PAIR_TABLES, PAIR_BIAS,
       PAIR_SMS };

static struct cairn_pairs pairs = { .num_factors = 10, .levels = { 7, 5, 6, 6, 5, 5, 3, 3, 2, 3 } };

static void pair_at(int i, struct shape *s)
{
	static const int heads[][2] = { { 1, 1 }, { 4, 1 }, { 3, 3 }, { 8, 2 }, { 5, 5 } };
	static const int pages[] = { 16, 1, 32, 48, 64, 128 }, dims[] = { 64, 16, 128, 48, 96, 256 };
	static const int ks[] = { 8, 72, 136, 264, 520 };
	static const unsigned types[] = { 0, F16, SCALES, SCALES | F16, FP8 | K_SCALE };
	static const unsigned tables[] = { 0, PAGED_PADDED, PAGED_SPARE };
	static const struct {
		int batch, qo[5], kv[5];
	} lengths[] = {
		{ 1, { 1 }, { 97 } },
		{ 5, { 1, 1, 1, 1, 1 }, { 1, 97, 33, 128, 65 } },
		{ 1, { 8 }, { 130 } },
		{ 4, { 0, 5, 0, 3 }, { 9, 140, 0, 34 } },
		{ 4, { 1, 9, 2, 5 }, { 130, 64, 49, 6 } },
		{ 2, { 13, 11 }, { 13, 70 } },
		{ 3, { 20, 1, 19 }, { 64, 128, 19 } },
	};
	const int8_t *level = cairn_pairs_row(&pairs, i);

	*s = (struct shape){
		.pair = i + 1, .batch = lengths[level[PAIR_LENGTHS]].batch,
		.qo_lens = lengths[level[PAIR_LENGTHS]].qo, .kv_lens = lengths[level[PAIR_LENGTHS]].kv,
		.qo_heads = heads[level[PAIR_HEADS]][0], .kv_heads = heads[level[PAIR_HEADS]][1],
		.page = pages[level[PAIR_PAGE]], .dim = dims[level[PAIR_DIM]], .k = ks[level[PAIR_K]],
		.flags = types[level[PAIR_TYPE]] | tables[level[PAIR_TABLES]] | (level[PAIR_BIAS] ? BIAS : 0),
		.sms = (int[]){ 0, 2, 5 }[level[PAIR_SMS]],
	};
	s->gap = (int[]){ 0, 8, 2 * s->kv_heads * s->dim }[level[PAIR_GAP]];
}

static const struct cairn_draw_axis axes[] = {
	CAIRN_DRAW_SIZE(struct shape, batch, 1, 48, 1),
	CAIRN_DRAW_SIZE(struct shape, qo, 0, 20, 1),
	CAIRN_DRAW_SIZE(struct shape, kv, 0, 3000, 1),
	CAIRN_DRAW_SIZE(struct shape, page, 1, 300, 1),
	CAIRN_DRAW_SIZE(struct shape, qo_heads, 1, 64, 1),
	CAIRN_DRAW_SIZE(struct shape, kv_heads, 1, 16, 1),
	CAIRN_DRAW_SIZE(struct shape, dim, 16, 512, 16),
	CAIRN_DRAW_SIZE(struct shape, k, 8, 9000, 8),
	CAIRN_DRAW_ONE_OF(struct shape, sms, 0, 0, 0, 0, 2, 3, 24, 64),
	CAIRN_DRAW_ONE_OF(struct shape, gap, 0, 0, 8, 1024),
	CAIRN_DRAW_ONE_OF(struct shape, flags, 0, F16, SCALES, SCALES | F16, FP8 | K_SCALE, FP8 | V_SCALE,
			  FP8),
	CAIRN_DRAW_ONE_OF(struct shape, flags, 0, BIAS),
	CAIRN_DRAW_ONE_OF(struct shape, flags, 0, FAR_POSITIONS),
	CAIRN_DRAW_ONE_OF(struct shape, flags, PAGED_RAGGED, PAGED_RAGGED, 0),
	CAIRN_DRAW_ONE_OF(struct shape, flags, 0, PAGED_PADDED, PAGED_SPARE),
};

static int allowed(void *shape, int room)
{
	const struct shape *s = shape;
	const int64_t n = (int64_t)(s->qo_heads + 2 * s->kv_heads) * s->dim, rows = s->batch * s->qo + 3;
	const int64_t slots = (int64_t)s->batch * ((s->kv > s->qo ? s->kv : s->qo) + s->page);

	return rows <= CAIRN_QKV_APPEND_M && rows * n * s->k <= room * (1 << 24) &&
	       slots * s->kv_heads * s->dim <= room * 1000000;
}

static const struct cairn_draw draws = {
	.shape_bytes = sizeof(struct shape), .axes = axes, .num_axes = ARRAY_SIZE(axes), .allowed = allowed,
	.many = 400,
};

static void shape_at(int i, struct shape *s)
{
	if (i >= NUM_CASES)
		cairn_draw_shape(&draws, i - NUM_CASES, s);
	else if (i >= NUM_NAMED)
		pair_at(i - NUM_NAMED, s);
	else
		*s = named[i];
}

static int rows_of(const struct shape *s)
{
	int rows = 0;

	for (int b = 0; b < s->batch; b++)
		rows += s->qo_lens ? s->qo_lens[b] : s->qo;
	return rows;
}

static void describe(int i, struct cairn_case *c)
{
	struct shape s;
	double m, n;

	shape_at(i, &s);
	m = rows_of(&s);
	n = (s.qo_heads + 2 * s.kv_heads) * s.dim;
	if (s.name)
		snprintf(c->name, sizeof(c->name), "%s", s.name);
	else
		snprintf(c->name, sizeof(c->name), "%s%d_m%d_p%d_h%d_%d_d%d_k%d_%s%s%s",
			 s.pair ? "pair_" : "b", s.pair ? s.pair : s.batch, (int)m, s.page, s.qo_heads,
			 s.kv_heads, s.dim, s.k, s.flags & F16 ? "f16" : "bf16", s.flags & FP8 ? "_fp8" : "",
			 s.flags & BIAS ? "_bias" : "");
	c->kinds = CAIRN_KIND_BIT(CAIRN_KIND_NORMAL);
	if (!(s.flags & BENCH) && m * n * s.k <= 1 << 22)
		c->kinds |= CAIRN_KIND_BIT(CAIRN_KIND_EXTREME) | CAIRN_KIND_BIT(CAIRN_KIND_POISON);
	c->bench = !!(s.flags & BENCH);
	c->device_only = !!(s.flags & DEVICE);
	c->sparse = c->bench;		/* of the pages only the new rows are touched */
	c->bytes = (m * s.k + n * s.k + m * n) * 2;
	c->flops = 2 * m * n * s.k;
}

static void poison(struct cairn_op *op, void *p, int dtype, int64_t rows, int64_t k)
{
	for (int64_t i = op->case_index % 3; i < rows; i += cairn_op_range(op, 2, 6))
		cairn_store(p, dtype, i * k + cairn_op_range(op, 0, k - 1), NAN);
}

/* Inputs of the product. Its results have a standard deviation of about 1. */
static void setup_product(struct cairn_op *op, const struct shape *s)
{
	struct cairn_qkv_append_args *a = op->args;
	const int64_t m = a->m, n = cairn_qkv_append_n(a), k = s->k;
	void *x = cairn_in(op, FIELD(a), a->dtype, m * k), *b = cairn_in(op, FIELD(b), a->dtype, n * k);

	cairn_fill(op, x, a->dtype, m * k, 1);
	cairn_fill(op, b, a->dtype, n * k, 1 / sqrt((double)k));
	if (s->flags & BIAS)
		cairn_fill(op, cairn_in(op, FIELD(bias), a->dtype, n), a->dtype, n, 1);
	if (op->kind != CAIRN_KIND_POISON)
		return;
	poison(op, x, a->dtype, m, k);
	poison(op, b, a->dtype, n, k);
}

static void setup_angles(struct cairn_op *op, const struct shape *s)
{
	struct cairn_qkv_append_args *a = op->args;
	float *freq = cairn_in(op, FIELD(inv_freq), CAIRN_F32, s->dim / 2);
	int32_t *positions = cairn_in(op, FIELD(positions), CAIRN_I32, a->m);

	for (int p = 0; p < s->dim / 2; p++)
		freq[p] = (float)pow(500000, -2.0 * p / s->dim);
	for (int i = 0; i < a->m; i++)
		positions[i] = (int32_t)cairn_op_range(op, 0, s->flags & FAR_POSITIONS ? 1000000 : 9000);
}

static void setup_scales(struct cairn_op *op, const struct shape *s)
{
	for (int side = 0; side < 2; side++) {
		const size_t field = side ? FIELD(v_scale) : FIELD(k_scale);
		float *scale;

		if (!(s->flags & (side ? V_SCALE : K_SCALE)))
			continue;
		scale = cairn_in(op, field, CAIRN_F32, s->kv_heads);
		cairn_name(op, field, side ? "v_scale" : "k_scale");
		for (int g = 0; g < s->kv_heads; g++)
			scale[g] = (float)cairn_op_range(op, 3, 40) / 16;
	}
}

/* Slots that are not written must keep their contents, NaN included. */
static void setup_pages(struct cairn_op *op, const struct shape *s, const struct paged *p)
{
	const int dtype = s->flags & FP8 ? CAIRN_U8 : s->flags & F16 ? CAIRN_F16 : CAIRN_BF16;
	const int64_t count = (int64_t)p->num_pages * s->page * s->kv_heads * s->dim;

	for (int side = 0; side < 2; side++) {
		const size_t field = side ? FIELD(kv.v_pages) : FIELD(kv.k_pages);
		void *pages = cairn_inout(op, field, dtype, count);

		cairn_name(op, field, side ? "kv.v_pages" : "kv.k_pages");
		paged_shape(op, p, field, s->kv_heads, s->dim);
		if (op->kind == CAIRN_KIND_POISON)
			cairn_fill_nan(pages, dtype, 0, count);
		else
			cairn_fill(op, pages, dtype, count, 1);
	}
}

static void setup(struct cairn_op *op)
{
	struct cairn_qkv_append_args *a = op->args;
	struct paged p = { 0 };
	struct shape s;
	int64_t width;

	shape_at(op->case_index, &s);
	p.batch = s.batch;
	p.page_size = s.page;
	p.flags = s.flags;
	p.pool = 3000;
	paged_lengths(op, &p, s.qo, s.kv, s.qo_lens, s.kv_lens, 1);
	if (!p.nnz && !(s.flags & PAGED_PADDED)) {	/* of a drawn case */
		p.nnz = p.qo_len[0] = 1;
		p.kv_len[0] += !p.kv_len[0];
	}
	paged_tables(op, &p, FIELD(qo_indptr), FIELD(kv));
	a->kv.batch = s.batch;
	a->kv.num_pages = p.num_pages;
	a->kv.page_size = s.page;
	a->m = p.nnz + (s.flags & PAGED_PADDED ? 3 : 0);
	a->k = s.k;
	a->num_qo_heads = s.qo_heads;
	a->num_kv_heads = s.kv_heads;
	a->head_dim = s.dim;
	a->dtype = s.flags & F16 ? CAIRN_F16 : CAIRN_BF16;
	a->kv_fp8 = !!(s.flags & FP8);
	a->sms = s.sms;
	width = (int64_t)s.qo_heads * s.dim;
	a->q_stride = s.gap ? width + s.gap : 0;
	cairn_out(op, FIELD(q), a->dtype, (a->m - 1) * cairn_qkv_append_q_stride(a) + width);
	cairn_shape(op, FIELD(q), { "row", a->m }, { "head", s.qo_heads }, { "dim", s.dim });
	cairn_stride(op, FIELD(q), "row", a->q_stride);
	setup_product(op, &s);
	setup_angles(op, &s);
	setup_scales(op, &s);
	setup_pages(op, &s, &p);
}

static int relist(void *args)
{
	const struct cairn_qkv_append_args *a = args;
	int changed = paged_relist(&a->kv, a->qo_indptr);

	changed |= paged_drop_row(a->qo_indptr, a->kv.batch);
	return paged_move_rows(a->positions, a->m) || changed;
}

static int exact(const void *args, struct cairn_exact *e)
{
	return cairn_qkv_append_exact(args, e);
}

static const char *reject_null(struct cairn_qkv_append_args *a, int i)
{
	switch (i) {
	case 0: a->q = NULL; return "q_null";
	case 1: a->a = NULL; return "a_null";
	case 2: a->b = NULL; return "b_null";
	case 3: a->inv_freq = NULL; return "inv_freq_null";
	case 4: a->positions = NULL; return "positions_null";
	case 5: a->qo_indptr = NULL; return "qo_indptr_null";
	case 6: a->kv.k_pages = NULL; return "k_pages_null";
	case 7: a->kv.v_pages = NULL; return "v_pages_null";
	case 8: a->kv.indptr = NULL; return "kv_indptr_null";
	case 9: a->kv.indices = NULL; return "kv_indices_null";
	default: a->kv.last_page_len = NULL; return "kv_last_page_len_null";
	}
}

static const char *reject(void *args, int i, int *want)
{
	struct cairn_qkv_append_args *a = args;

	*want = i < 30 ? -EINVAL : -EOPNOTSUPP;
	if (i < 11)
		return reject_null(a, i);
	switch (i) {
	case 11: a->size = 8; return "size_too_small";
	case 12: a->m = 0; return "m_0";
	case 13: a->k = 0; return "k_0";
	case 14: a->num_qo_heads = 0; return "num_qo_heads_0";
	case 15: a->num_kv_heads = -1; return "num_kv_heads_negative";
	case 16: a->head_dim = 0; return "head_dim_0";
	case 17: a->kv.batch = -1; return "batch_negative";
	case 18: a->kv.num_pages = -1; return "num_pages_negative";
	case 19: a->kv.page_size = 0; return "page_size_0";
	case 20: a->sms = -1; return "sms_negative";
	case 21: a->kv_fp8 = 2; return "kv_fp8_2";
	case 22: a->k_scale = a->inv_freq; return "k_scale_without_fp8";
	case 23: a->v_scale = a->inv_freq; return "v_scale_without_fp8";
	case 24: a->q_stride = 8; return "q_stride_short";
	case 25: a->q_stride = (int64_t)a->num_qo_heads * a->head_dim + 4; return "q_stride_odd";
	case 26: a->q = (char *)a->q + 2; return "q_misaligned";
	case 27: a->b = (const char *)a->b + 8; return "b_misaligned";
	case 28: a->kv.k_pages = (char *)a->kv.k_pages + 8; return "k_pages_misaligned";
	case 29: a->kv.v_pages = (char *)a->kv.v_pages + 2; return "v_pages_misaligned";
	case 30: a->m = CAIRN_QKV_APPEND_M + 1; return "m_49";
	case 31: a->k = 12; return "k_12";
	case 32: a->head_dim = 24; return "head_dim_24";
	case 33: a->head_dim = 528; return "head_dim_528";
	case 34: a->dtype = CAIRN_F32; return "dtype_f32";
	case 35: a->num_kv_heads = 1 << 15; return "heads_65537";
	}
	return NULL;
}

/* The bits depend on sms only above m = 4. */
static int form(void *args, int i)
{
	struct cairn_qkv_append_args *a = args;

	a->sms = a->sms ? 0 : 40;
	return i == 0 && a->m <= 4;
}

static void counts(struct cairn_test *t)
{
	cairn_pairs_check(t, &pairs, NUM_PAIRS);
}

static const struct cairn_unit units[] = { { "counts", counts } };

const struct cairn_family cairn_qkv_append_family = {
	.stage = "fused",
	.name = "qkv_append",
	.units = units,
	.num_units = ARRAY_SIZE(units),
	.op = offsetof(struct cairn_impl, qkv_append),
	.args_size = sizeof(struct cairn_qkv_append_args),
	.sms_field = FIELD(sms),
	.num_cases = NUM_CASES, .draw = &draws,
	.relist = relist,
	.form = form,
	.describe = describe,
	.setup = setup,
	.exact = exact,
	.reject = reject,
	.cost_s = 10,
};
