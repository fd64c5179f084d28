// SPDX-License-Identifier: Apache-2.0
/*
 * mla_paged_test - a grid of ragged batches, named edges, large shapes, bench, every two features,
 * ends of tiles
 *
 * EXACT has integers with sums of up to 24 bits that cancel: elements of q, of a key and of the weights come
 * in pairs, half a vector apart, whose products are opposite. The logits that remain are 0, or so large for
 * one key that it has all the weight.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "conformance/harness.h"
#include "conformance/suite/draw.h"
#include "conformance/suite/pairs.h"
#include "fused/latent/mla_paged.h"
#include "fused/attention/base/attn_lengths.h"
#include "fused/cache/paged_test.h"
#include "fused/latent/base/mla_draws.h"
#include "fused/latent/base/mla_ends.h"
#include "fused/latent/base/mla_inputs.h"
#include "fused/latent/base/mla_shapes.h"

static const struct shape named[] = {
	/* N(name, batch, query rows, keys, page size, heads), other members */
	{ N("one_key", 1, 1, 1, 1, 2) },		/* reject() changes the arguments of this case */
	{ N("batch_0", 0, 1, 1, 16, 2) },
	{ N("no_rows", 3, 0, 20, 16, 2) },
	{ N("empty_requests", 6, 1, 1, 8, 2),
	  .qo_lens = LENS(0, 1, 2, 0, 40, 0), .kv_lens = LENS(9, 0, 33, 0, 47, 5) },
	{ N("more_queries_than_keys", 2, 9, 3, 16, 4) },
	{ N("whole_prompt", 1, 70, 70, 16, 4) },
	{ N("mixed_prefill_decode", 5, 1, 1, 16, 8),
	  .qo_lens = LENS(1, 37, 1, 17, 1), .kv_lens = LENS(33, 37, 1, 40, 212) },
	{ N("padded_graph", 6, 1, 1, 16, 16), .flags = PAGED_PADDED,
	  .qo_lens = LENS(1, 5, 1, 0, 0, 0), .kv_lens = LENS(31, 32, 33, 0, 0, 1) },
	{ N("kv_63", 1, 2, 63, 16, 4) }, { N("kv_64", 1, 2, 64, 16, 4) }, { N("kv_65", 1, 2, 65, 16, 4) },
	{ N("kv_1000", 1, 3, 1000, 16, 2) },
	{ N("sharp", 2, 20, 90, 16, 4), .flags = SHARP },
	{ N("sharp_f16", 2, 20, 90, 16, 4), .flags = SHARP | F16 },
	{ N("duplicate_pages", 2, 20, 90, 8, 4), .flags = PAGED_DUPLICATE },
	{ N("high_page_ids", 2, 3, 20, 4, 2), .flags = PAGED_HIGH },
	{ N("no_spare_page", 3, 5, 40, 8, 4), .flags = PAGED_FULL },
	{ N("page_100", 2, 5, 203, 100, 4) },
	{ N("heads_1", 2, 40, 70, 16, 1) }, { N("heads_3", 2, 40, 70, 16, 3) },
	{ N("heads_7", 2, 9, 70, 16, 7) },
	{ N("heads_16", 2, 9, 70, 16, 16) }, { N("heads_20", 2, 9, 70, 16, 20) },
	{ N("heads_65", 2, 2, 20, 16, 65) }, { N("heads_128", 2, 3, 20, 16, 128) },
	/* too large for host implementations */
	{ N("large_qo577_kv2048", 3, 577, 2048, 16, 16), .flags = DEVICE | PAGED_RAGGED },
	{ N("large_qo1024_f16", 1, 1024, 1024, 16, 16), .flags = DEVICE | F16 },
	{ N("large_mixed_h128", 9, 40, 3000, 16, 128), .flags = DEVICE | PAGED_RAGGED },
	/* bench rows */
	{ N("prefill_h16_b1_s1024_bf16", 1, 1024, 1024, 16, 16), .flags = BENCH | DEVICE },
	{ N("prefill_h16_b1_s4096_bf16", 1, 4096, 4096, 16, 16), .flags = BENCH | DEVICE },
	{ N("append_h16_b4_qo512_kv8192_bf16", 4, 512, 8192, 16, 16), .flags = BENCH | DEVICE },
	/* the last pages begin past 2^32 elements */
	{ N("far_pages", 2, 3, 40, 16, 2), .flags = PAGED_FAR },
};

/* a share of the device; and not numbers */
static const struct shape later[] = {
	{ N("sms_1", 2, 5, 200, 16, 4), .sms = 1 },
	{ N("sms_24", 2, 17, 300, 16, 8), .sms = 24, .flags = F16 | PAGED_RAGGED },
	{ N("sms_64_padded", 2, 3, 500, 16, 8), .sms = 64, .flags = PAGED_PADDED },
	{ N("nan_in_a_query", 3, 2, 40, 16, 3), .nan = MLA_NAN_Q },
	{ N("nan_in_a_query_prefill_f16", 3, 9, 20, 16, 2), .nan = MLA_NAN_Q, .flags = F16 },
	{ N("nan_in_a_latent", 3, 1, 70, 16, 2), .nan = MLA_NAN_LATENT },
	{ N("nan_in_a_latent_prefill_f16", 3, 9, 20, 16, 2), .nan = MLA_NAN_LATENT, .flags = F16 },
	{ N("nan_in_a_rotated_key", 3, 2, 40, 16, 3), .nan = MLA_NAN_ROTATED },
};

/* the last cases */
static const struct shape last[] = {
	{ N("keys_past_2e16", 1, 1, 65600, 64, 1), .flags = LATE | PAGED_CYCLE },
	{ N("small_weights", 3, 2, 200, 16, 3), .flags = STEPS, .scale = 1 },
	{ N("small_weights_f16", 3, 2, 200, 16, 3), .flags = STEPS | F16, .scale = 1 },
	{ N("padded_without_rows", 3, 0, 20, 16, 2), .flags = PAGED_PADDED },
	{ N("heads_20_without_keys", 2, 2, 0, 16, 20), .kv_lens = LENS(0, 17) },
	/* so many rows that dividing them by the heads needs a magic number of full length */
	{ N("heads_96", 1, 40, 45, 16, 96) },
	{ N("heads_20_long_prompt", 1, 140, 141, 16, 20) },
	{ N("pages_of_41", 2, 3, 85, 41, 2) },
	{ N("last_key_decides_4097", 2, 1, 4097, 16, 1), .flags = LATE },
	{ N("last_key_decides_4161", 1, 1, 4161, 64, 2), .flags = LATE | F16 },
	{ N("batch_96_with_holes", 96, 1, 130, 16, 1), .kv_lens = LENS(ATTN_HOLES_96) },
	{ N("batch_2100", 2100, 1, 3, 4, 1), .flags = PAGED_RAGGED },
	{ N("lse_prefill", 2, 40, 90, 16, 4), .flags = LSE | PAGED_RAGGED },
	{ N("lse_sharp_f16", 2, 20, 90, 16, 4), .flags = LSE | SHARP | F16 },
	{ N("lse_small_weights", 3, 2, 200, 16, 3), .flags = LSE | STEPS, .scale = 1 },
	{ N("lse_padded", 6, 1, 1, 16, 16), .flags = LSE | PAGED_PADDED,
	  .qo_lens = LENS(1, 5, 1, 0, 0, 0), .kv_lens = LENS(31, 32, 33, 0, 0, 1) },
	{ N("lse_without_keys", 5, 1, 1, 8, 2), .flags = LSE,
	  .qo_lens = LENS(0, 1, 2, 9, 40), .kv_lens = LENS(9, 0, 33, 3, 47) },
	{ N("lse_kv_1000", 1, 3, 1000, 16, 2), .flags = LSE },
	{ N("lse_nan_in_a_query", 3, 2, 40, 16, 3), .nan = MLA_NAN_Q, .flags = LSE },
	{ N("lse_nan_in_a_latent", 3, 2, 40, 16, 3), .nan = MLA_NAN_LATENT, .flags = LSE },
	{ N("lse_large", 3, 577, 2048, 16, 16), .flags = LSE | DEVICE | PAGED_RAGGED },
	/* rows of no request: nothing is written */
	{ N("batch_0_padded", 0, 1, 1, 16, 2), .flags = PAGED_PADDED },
	{ N("decode_h16_b1_kv1024_bf16", 1, 1, 1024, 16, 16), .flags = BENCH | DEVICE },
	{ N("decode_h16_b1_kv16384_bf16", 1, 1, 16384, 16, 16), .flags = BENCH | DEVICE },
	{ N("decode_h16_b16_kv4096_bf16", 16, 1, 4096, 16, 16), .flags = BENCH | DEVICE },
	{ N("decode_h16_b64_kv4096_bf16", 64, 1, 4096, 16, 16), .flags = BENCH | DEVICE },
	{ N("decode_h128_b1_kv4096_bf16", 1, 1, 4096, 16, 128), .flags = BENCH | DEVICE },
	{ N("decode_h128_b16_kv4096_bf16", 16, 1, 4096, 16, 128), .flags = BENCH | DEVICE },
	{ N("pages_of_256", 1, 2, 600, 256, 2), .flags = LSE },
	{ N("pages_of_512_f16", 1, 2, 1030, 512, 1), .flags = F16 },
	{ N("lse_heads_20_without_keys", 2, 2, 0, 16, 20), .flags = LSE, .kv_lens = LENS(0, 17) },
	/* whole tiles of rows and of keys, whatever their size */
	{ N("rows_16_kv_512", 1, 16, 512, 16, 1), .flags = LSE },
	{ N("rows_32_kv_256", 1, 32, 256, 16, 1), .flags = LSE | F16 },
	{ N("sms_3", 1, 3, 70, 16, 7), .flags = LSE, .sms = 3 },
	/* many keys of similar weight: errors of independent roundings cancel, others do not (bias.c) */
	{ N("even_weights", 8, 2, 500, 16, 4), .flags = LSE, .scale = 0.01f, .roundings = 5 },
	{ N("even_weights_prefill", 1, 50, 600, 16, 1), .flags = LSE | F16, .scale = 0.01f, .roundings = 5 },
	{ N("limits_2100", 1, 18, 2100, 16, 1), .flags = LSE | LIMITS },
};

#define NUM_LATER	((int)ARRAY_SIZE(later))
#define NUM_GRID	30
#define NUM_PAIRS	31
#define NUM_LAST	((int)ARRAY_SIZE(last))

/* Every two features occur together in at least one case. */
enum { PAIR_PAGE, PAIR_HEADS, PAIR_LENGTHS, PAIR_TABLES, PAIR_SCALE, PAIR_DTYPE, PAIR_SMS, PAIR_EXACT };

static struct cairn_pairs pair_table = { .num_factors = 8, .levels = { 6, 5, 5, 4, 3, 2, 2, 3 } };

static void pair_at(int i, struct shape *s)
{
	static const int pages[] = { 16, 1, 32, 48, 64, 128 }, heads[] = { 1, 3, 5, 2, 6 };
	static const unsigned tables[] = { 0, PAGED_PADDED, PAGED_SPARE, PAGED_DUPLICATE };
	/* decode, mixed, append, prefill, requests with more queries than keys */
	static const struct {
		int batch, qo[4], kv[4];
	} lengths[] = {
		{ 4, { 1, 1, 1, 1 }, { 1, 97, 0, 65 } },
		{ 3, { 1, 5, 1 }, { 34, 64, 17 } },
		{ 2, { 2, 3 }, { 130, 37 } },
		{ 1, { 11 }, { 49 } },
		{ 4, { 3, 0, 2, 1 }, { 2, 9, 0, 65 } },
	};
	const int8_t *level = cairn_pairs_row(&pair_table, i);

	*s = (struct shape){
		.pair = i + 1, .page = pages[level[PAIR_PAGE]], .heads = heads[level[PAIR_HEADS]],
		.batch = lengths[level[PAIR_LENGTHS]].batch, .qo_lens = lengths[level[PAIR_LENGTHS]].qo,
		.kv_lens = lengths[level[PAIR_LENGTHS]].kv, .equal = level[PAIR_EXACT] == 1 };
	s->flags = tables[level[PAIR_TABLES]] | (level[PAIR_DTYPE] ? F16 : 0) |
		   (level[PAIR_EXACT] == 0 ? RANDOM : 0);
	s->scale = (float[]){ 0, 0.25f, 0.03f }[level[PAIR_SCALE]];
	s->sms = level[PAIR_SMS] ? 2 : 0;
}

#define FIRST_ENDS	((int)ARRAY_SIZE(named) + NUM_GRID + NUM_LATER + NUM_PAIRS + NUM_LAST)
#define NUM_ENDS	70

static struct cairn_pairs ends_table = {
	.num_factors = MLA_ENDS_FACTORS, .levels = { MLA_ENDS_LEVELS }, .forbidden = mla_ends_forbidden,
};

#define NUM_CASES	(FIRST_ENDS + NUM_ENDS)

static const struct cairn_draw_axis axes[] = {
	MLA_DRAW_SIZES,
	MLA_DRAW_FORMS,
};

static int allowed(void *shape, int room)
{
	struct shape *s = shape;
	const int64_t listed = s->batch * ((int64_t)s->kv / s->page + 1);

	/* EXACT has integers that stay exact up to so many keys */
	s->pair &= s->kv <= 800;
	s->equal &= s->pair;
	return listed * s->page * MLA_DIM <= room * 1000000 && s->heads <= 32 &&
	       (int64_t)s->batch * s->qo * s->heads * (s->kv + 256) <= room * 20000;
}

static const struct cairn_draw draws = {
	.shape_bytes = sizeof(struct shape), .axes = axes, .num_axes = ARRAY_SIZE(axes),
	.allowed = allowed, .many = 1300,
};

static void shape_at(int index, struct shape *s)
{
	static const int heads[] = { 1, 8, 4, 16, 2 }, page[] = { 16, 1, 5, 64 }, qo[] = { 1, 3, 17, 33 };
	int i = index - (int)ARRAY_SIZE(named);

	if (i < 0) {
		*s = named[index];
		return;
	}
	if (index >= NUM_CASES) {
		cairn_draw_shape(&draws, index - NUM_CASES, s);
		return;
	}
	if (index >= FIRST_ENDS) {
		const int8_t *level = cairn_pairs_row(&ends_table, index - FIRST_ENDS);

		*s = (struct shape){ .ends = index - FIRST_ENDS + 1, MLA_ENDS_SHAPE(level) };
		return;
	}
	if (i >= NUM_GRID + NUM_LATER + NUM_PAIRS) {
		*s = last[i - NUM_GRID - NUM_LATER - NUM_PAIRS];
		return;
	}
	if (i >= NUM_GRID + NUM_LATER) {
		pair_at(i - NUM_GRID - NUM_LATER, s);
		return;
	}
	if (i >= NUM_GRID) {
		*s = later[i - NUM_GRID];
		return;
	}
	shape_grid(s, i, heads, page, qo);
}

static void describe(int index, struct cairn_case *c)
{
	double pairs;
	struct shape s;

	shape_at(index, &s);
	if (s.pair)
		snprintf(c->name, sizeof(c->name), "pair_%d_p%d_h%d_%s%s", s.pair, s.page, s.heads,
			 s.flags & F16 ? "f16" : "bf16", s.equal ? "_equal" : "");
	else if (s.ends)
		snprintf(c->name, sizeof(c->name), "ends_qo%d_kv%d_p%d_h%d_%s%s", s.qo, s.kv, s.page, s.heads,
			 s.flags & F16 ? "f16" : "bf16", s.flags & LSE ? "_lse" : "");
	else
		shape_name(&s, c->name, sizeof(c->name));
	shape_kinds(&s, c);
	/* flops of attention over expanded keys and values, as in the published model: a lower bound */
	pairs = (double)s.qo * s.kv - 0.5 * s.qo * (s.qo - 1.0);
	c->flops = 2.0 * s.batch * s.heads * pairs * (128 + 64 + 128);
	c->bytes = 2.0 * (s.batch * (s.kv * 576.0 + s.qo * s.heads * 320.0) + s.heads * 256.0 * 512);
}

/*
 * ql = q[0] w[0,:] = +-w[0,:], since the other products of q and w cancel in pairs. dot(ql, c) is +-c[0]
 * alone, which is the same for all keys, or largest for one of them. In the rows of w that compute out, a
 * fourth add up the products that cancel in the others.
 */
static void fill_exact(struct cairn_op *op, const struct shape *s, const struct paged *p)
{
	struct cairn_mla_paged_args *a = op->args;
	void *q = (void *)a->q, *w = (void *)a->w_kv_b, *keys = a->kv.k_pages;

	for (int64_t i = 0; i < (int64_t)p->nnz * s->heads; i++) {
		mla_fill_mirrored(op, q, a->dtype, i * 192, 128, 1, 4);
		mla_set_pair(q, a->dtype, i * 192, 128, 1);
		mla_fill_mirrored(op, q, a->dtype, i * 192 + 128, 64, 1, 4);
	}
	for (int64_t h = 0; h < s->heads; h++)
		for (int r = 0; r < 256; r++) {
			int64_t at = (h * 256 + r) * 512;

			mla_fill_mirrored(op, w, a->dtype, at, 512, r % 4 == 3 ? -1 : 1, 4);
			if (r < 128)
				mla_fill_mirrored(op, w, a->dtype, at, 512, 1, 1);
			if (r < 128)
				mla_set_pair(w, a->dtype, at, 512, r ? 0 : 1);
			for (int c = 0; r >= 64 && r < 128 && c < 512; c++)	/* opposite to row r - 64 */
				cairn_store(w, a->dtype, at + c, r == 64 ? 0 :
					    -cairn_load(w, a->dtype, at - 64 * 512 + c));
		}
	for (int b = 0; b < s->batch; b++)
		for (int j = 0; j < p->kv_len[b]; j++) {
			int64_t at = paged_slot(p, b, j) * 576;

			mla_fill_mirrored(op, keys, a->dtype, at, 512, -1, s->equal ? 32 : 4);
			mla_set_pair(keys, a->dtype, at, 512,
				     s->equal ? 0 : j % 7 == 3 ? 120 - j / 7 * 2 : -100);
			mla_fill_mirrored(op, keys, a->dtype, at + 512, 64, -1, 4);
		}
	if (!s->equal)
		a->sm_scale = 64;
}

static void setup(struct cairn_op *op)
{
	struct cairn_mla_paged_args *a = op->args;
	struct paged p;
	struct mla_inputs inputs;
	int64_t width;
	struct shape s;
	void *x;

	shape_at(op->case_index, &s);
	shape_lengths(op, &s, &p);
	paged_tables(op, &p, offsetof(struct cairn_mla_paged_args, qo_indptr),
		     offsetof(struct cairn_mla_paged_args, kv));
	shape_view(&s, &p, &a->kv);
	a->nnz_qo = p.nnz + shape_pad(&s);
	a->max_qo_len = p.max_qo + shape_pad(&s);
	a->num_heads = s.heads;
	a->sms = s.sms;
	a->kv_lora_rank = 512;
	a->rope_dim = 64;
	a->nope_dim = a->v_dim = 128;
	a->dtype = s.flags & F16 ? CAIRN_F16 : CAIRN_BF16;
	a->sm_scale = shape_scale(&s);
	width = (int64_t)s.heads * 192;
	x = cairn_in(op, offsetof(struct cairn_mla_paged_args, q), a->dtype, a->nnz_qo * width);
	cairn_fill_nan(x, a->dtype, 0, a->nnz_qo * width);	/* padding rows stay NaN */
	cairn_fill(op, x, a->dtype, p.nnz * width, 1);
	if (s.flags & PAGED_FAR) {
		paged_far(op, &p, offsetof(struct cairn_mla_paged_args, kv.k_pages), a->dtype, 576, 0);
	} else {
		x = cairn_in(op, offsetof(struct cairn_mla_paged_args, kv.k_pages), a->dtype,
			     (int64_t)p.num_pages * s.page * 576);
		paged_fill(op, &p, x, a->dtype, 576);
	}
	/* this scale gives keys and values the magnitude of latents */
	width = (int64_t)s.heads * 256 * 512;
	x = cairn_in(op, offsetof(struct cairn_mla_paged_args, w_kv_b), a->dtype, width);
	cairn_fill(op, x, a->dtype, width, 1 / sqrt(512));
	inputs = (struct mla_inputs){ (void *)a->q, a->kv.k_pages, a->dtype, s.heads, &p };
	if (op->kind == CAIRN_KIND_EXACT)
		fill_exact(op, &s, &p);
	else if (s.flags & LIMITS)
		mla_fill_limits(&p, s.heads, a->dtype, (char *)a->q + 128 * 2, 192,
				(char *)a->kv.k_pages + 512 * 2, 576 * 2);
	if (s.flags & LATE)
		mla_fill_late(&inputs);
	if (s.flags & STEPS)
		mla_fill_steps(op, &inputs);
	if (s.nan)
		mla_add_nan(&inputs, (enum mla_nan)s.nan);
	cairn_out(op, offsetof(struct cairn_mla_paged_args, out), a->dtype,
		  (int64_t)a->nnz_qo * s.heads * 128);
	cairn_shape(op, offsetof(struct cairn_mla_paged_args, out), { "row", a->nnz_qo }, { "head", s.heads },
		    { "dim", 128 });
	if (s.flags & LSE) {
		cairn_out(op, offsetof(struct cairn_mla_paged_args, lse), CAIRN_F32,
			  (int64_t)a->nnz_qo * s.heads);
		cairn_shape(op, offsetof(struct cairn_mla_paged_args, lse), { "row", a->nnz_qo },
			    { "head", s.heads });
	}
}

static int relist(void *args)
{
	const struct cairn_mla_paged_args *a = args;
	int changed = paged_relist(&a->kv, a->qo_indptr);

	return paged_drop_row(a->qo_indptr, a->kv.batch) || changed;
}

static const char *reject(void *args, int i, int *want)
{
	struct cairn_mla_paged_args *a = args;

	*want = i < 17 || i > 22 ? -EINVAL : -EOPNOTSUPP;
	switch (i) {
	case 0: a->size = 8; return "size_too_small";
	case 1: a->out = NULL; return "out_null";
	case 2: a->q = NULL; return "q_null";
	case 3: a->kv.k_pages = NULL; return "pages_null";
	case 4: a->w_kv_b = NULL; return "w_kv_b_null";
	case 5: a->qo_indptr = NULL; return "qo_indptr_null";
	case 6: a->kv.indptr = NULL; return "kv_indptr_null";
	case 7: a->kv.indices = NULL; return "kv_indices_null";
	case 8: a->kv.last_page_len = NULL; return "kv_last_page_len_null";
	case 9: a->out = (char *)a->out + 2; return "out_misaligned";
	case 10: a->w_kv_b = (const char *)a->w_kv_b + 8; return "w_kv_b_misaligned";
	case 11: a->kv.batch = -1; return "batch_negative";
	case 12: a->nnz_qo = -1; return "nnz_qo_negative";
	case 13: a->kv.max_len = -1; return "max_kv_len_negative";
	case 14: a->kv.page_size = 0; return "page_size_0";
	case 15: a->num_heads = 0; return "num_heads_0";
	case 16: a->sm_scale = INFINITY; return "sm_scale_inf";
	case 17: a->dtype = CAIRN_F32; return "dtype_f32";
	case 18: a->kv_lora_rank = 256; return "kv_lora_rank_256";
	case 19: a->rope_dim = 32; return "rope_dim_32";
	case 20: a->nope_dim = 64; return "nope_dim_64";
	case 21: a->v_dim = 64; return "v_dim_64";
	case 22: a->num_heads = 129; return "num_heads_129";
	case 23: a->sms = -1; return "sms_negative";
	case 24: a->size = CAIRN_MLA_PAGED_FIRST_BYTES - 1; return "size_within_first_members";
	case 25: a->lse = (float *)((char *)a->out + 2); return "lse_misaligned";
	}
	return NULL;
}

static int exact(const void *args, struct cairn_exact *e)
{
	return cairn_mla_paged_exact(args, e);
}

#define FIELD(f)	offsetof(struct cairn_mla_paged_args, f)

static void pair_rows(struct cairn_test *t)
{
	cairn_pairs_check(t, &pair_table, NUM_PAIRS);
	cairn_pairs_check(t, &ends_table, NUM_ENDS);
}

static const struct cairn_unit units[] = { { "pair_rows", pair_rows } };

const struct cairn_family cairn_mla_paged_family = {
	.stage = "fused", .name = "mla_paged",
	.op = offsetof(struct cairn_impl, mla_paged),
	.workspace_op = offsetof(struct cairn_impl, mla_paged_workspace),
	.args_size = sizeof(struct cairn_mla_paged_args),
	.sms_field = offsetof(struct cairn_mla_paged_args, sms),
	.workspace_field = offsetof(struct cairn_mla_paged_args, workspace),
	.first_bytes = CAIRN_MLA_PAGED_FIRST_BYTES,
	.num_cases = NUM_CASES, .draw = &draws,
	.units = units, .num_units = ARRAY_SIZE(units),
	.company = {
		.rows = FIELD(nnz_qo), .requests = FIELD(kv.batch), .indptr = FIELD(qo_indptr),
		.in = { FIELD(q) }, .out = { FIELD(out), FIELD(lse) }, .keys = FIELD(kv.indptr),
	},
	.describe = describe, .setup = setup, .relist = relist, .exact = exact, .reject = reject,
	.cost_s = 55, .cheap_factor = 8,	/* the weights of one head cost more than 1 */
};
