// SPDX-License-Identifier: Apache-2.0
/*
 * kv_append_test - named edge cases, a grid of small shapes, pairs of features, ends of tiles, bench rows
 *
 * Results are compared bit by bit. With kind EXTREME the new rows have signalling NaNs with payloads, or, for
 * pages of e4m3, quotients that are hard to round.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "conformance/harness.h"
#include "conformance/suite/draw.h"
#include "conformance/suite/pairs.h"
#include "fused/cache/kv_append.h"
#include "fused/cache/paged_test.h"

enum {
	F16 = PAGED_FLAGS, F32 = F16 << 1,
	PACKED = F16 << 2,		/* k and v are slices of one packed row of q, k and v */
	BENCH = F16 << 3,
	DEVICE = F16 << 4,		/* too large for host tables */
	EXTREME = F16 << 5,		/* kind EXTREME too */
	FAR_ROWS = F16 << 6,		/* rows of k and v begin past 2^31 and 2^32 elements */
	FP8 = F16 << 7,			/* e4m3 pages, with the scales that follow */
	K_SCALE = F16 << 8, V_SCALE = F16 << 9, SCALES = FP8 | K_SCALE | V_SCALE,
	TINY = F16 << 10,		/* scales so small that they divide subnormal numbers */
	SAME = F16 << 11,		/* v is k */
	NEAR = F16 << 12,		/* quotients lie 2^-14 beside the middle between two codes */
};

#define FAR_STRIDE	(((int64_t)1 << 31) + 64)

struct shape {
	const char *name;		/* NULL: derived from the shape */
	/* new rows and keys of each request, slots of a page, KV heads, head_dim */
	int batch, qo, kv, page, heads, dim;
	unsigned flags;
	const int *qo_lens, *kv_lens;	/* [batch], instead of qo and kv for all; may be NULL */
	int pool;			/* pages with PAGED_HIGH; 0: 3000 */
	/* of a pair case: its number, or 0; and the strides */
	int pair;
	int k_stride, v_stride;
	int ends;			/* kv_append_ends.h: number of the case, or 0 */
};

#define LENS(...) (const int[]){ __VA_ARGS__ }
#define N(name_, batch_, qo_, kv_, page_, heads_, dim_) \
	.name = name_, .batch = batch_, .qo = qo_, .kv = kv_, .page = page_, .heads = heads_, .dim = dim_

static const struct shape named[] = {
	/* N(name, batch, new rows, keys, page size, KV heads, head_dim), other members */
	{ N("one_key_one_slot", 1, 1, 1, 1, 2, 64) },
	{ N("batch_0", 0, 1, 1, 16, 2, 64) },
	{ N("no_rows", 3, 0, 20, 16, 2, 64) },
	{ N("fills_a_page", 1, 1, 16, 16, 2, 64) },
	{ N("begins_a_page", 1, 1, 17, 16, 2, 64) },
	{ N("crosses_pages", 1, 40, 57, 16, 2, 64) },
	{ N("whole_prompt", 2, 33, 33, 16, 2, 64) },
	{ N("empty_requests", 6, 1, 1, 8, 2, 64),
	  .qo_lens = LENS(0, 1, 0, 0, 9, 0), .kv_lens = LENS(0, 1, 0, 5, 20, 8) },
	{ N("leading_empty_requests", 4, 1, 1, 8, 2, 64),
	  .qo_lens = LENS(0, 0, 0, 3), .kv_lens = LENS(4, 0, 9, 11) },
	{ N("mixed_prefill_decode", 5, 1, 1, 16, 4, 128),
	  .qo_lens = LENS(1, 70, 1, 17, 1), .kv_lens = LENS(33, 70, 1, 40, 512) },
	{ N("padded_graph", 6, 1, 1, 16, 2, 128), .flags = PAGED_PADDED,
	  .qo_lens = LENS(1, 1, 1, 0, 0, 0), .kv_lens = LENS(31, 32, 33, 0, 0, 1) },
	{ N("high_page_ids", 3, 2, 9, 4, 1, 64), .flags = PAGED_HIGH },
	{ N("no_spare_page", 3, 2, 9, 4, 1, 64), .flags = PAGED_FULL },
	{ N("odd_row_8", 3, 2, 9, 4, 1, 8), .flags = PACKED },
	{ N("odd_row_40", 3, 2, 9, 4, 3, 40), .flags = PACKED },
	{ N("batch_129", 129, 1, 20, 16, 1, 64), .flags = PAGED_RAGGED },
	{ N("batch_160_long", 160, 3, 40, 1, 1, 64), .flags = PAGED_RAGGED | PACKED },
	/* bench rows */
	{ N("decode_b64_h8_d128_bf16", 64, 1, 64, 16, 8, 128), .flags = BENCH | PACKED },
	{ N("prefill_b1_s4096_h8_d128_bf16", 1, 4096, 4096, 16, 8, 128), .flags = BENCH | PACKED | DEVICE },
	{ N("prefill_b4_s4096_h8_d128_bf16", 4, 4096, 4096, 16, 8, 128), .flags = BENCH | PACKED | DEVICE },
	/* the last pages, of 2048 elements, begin past 2^32 elements */
	{ N("far_pages", 2, 3, 40, 16, 2, 64), .flags = PAGED_FAR },
};

/* cases after the grid */
static const struct shape later[] = {
	{ N("page_ids_past_2e16", 2, 2, 30, 1, 1, 8), .flags = PAGED_HIGH, .pool = 66000 },
	{ N("keys_past_2e16", 2, 3, 66100, 64, 1, 8) },
	{ N("rows_past_2e16", 1, 65600, 65601, 64, 1, 8) },
	{ N("batch_300", 300, 1, 5, 4, 1, 8), .flags = PAGED_RAGGED },
};

/* the last cases: last pages that are full or have one slot, with page sizes that are no powers of two */
static const struct shape last[] = {
	{ N("fills_pages_of_24", 4, 1, 1, 24, 2, 64), .flags = EXTREME,
	  .qo_lens = LENS(1, 1, 50, 24), .kv_lens = LENS(24, 48, 72, 24) },
	{ N("begins_pages_of_24", 4, 1, 1, 24, 2, 64), .flags = EXTREME | F16 | PACKED,
	  .qo_lens = LENS(1, 1, 50, 25), .kv_lens = LENS(25, 49, 73, 25) },
	{ N("fills_pages_of_40_f32", 3, 1, 1, 40, 3, 40), .flags = EXTREME | F32 | PACKED | PAGED_FULL,
	  .qo_lens = LENS(1, 40, 79), .kv_lens = LENS(80, 120, 80) },
	/* rows of more than 16 and 32 KiB */
	{ N("row_of_40_heads", 2, 3, 9, 4, 40, 256) },
	{ N("row_of_65_heads_f16", 2, 3, 9, 4, 65, 136), .flags = F16 | PACKED },
	{ N("row_of_33_heads_f32", 2, 3, 9, 4, 33, 256), .flags = F32 },
	/* sizes whose reciprocal, as a float, is a little too small */
	{ N("pages_of_41", 2, 85, 85, 41, 1, 8) },
	{ N("pages_of_55", 2, 113, 113, 55, 1, 8), .flags = F32 },
	{ N("pages_of_83", 2, 170, 170, 83, 1, 8), .flags = F16 },
	{ N("pages_of_97", 2, 197, 197, 97, 1, 8) },
	/* as many rows as requests, but not one for each */
	{ N("two_rows_and_none", 2, 1, 1, 4, 2, 64), .qo_lens = LENS(2, 0), .kv_lens = LENS(2, 3) },
	{ N("none_two_and_one", 3, 1, 1, 4, 1, 64), .flags = F16,
	  .qo_lens = LENS(0, 2, 1), .kv_lens = LENS(5, 7, 9) },
	/* v_stride alone is given */
	{ N("v_stride_alone", 2, 5, 30, 16, 2, 64), .v_stride = 2 * 2 * 64 },
	{ N("k_stride_alone", 2, 5, 30, 16, 2, 64), .k_stride = 2 * 64 + 8 },
	{ N("v_stride_alone_decode", 5, 1, 30, 16, 2, 64), .v_stride = 2 * 2 * 64 },
	{ N("k_stride_alone_decode", 5, 1, 30, 16, 2, 64), .k_stride = 2 * 64 + 8 },
	{ N("batch_2100", 2100, 2, 5, 4, 1, 8), .flags = PAGED_RAGGED },
	{ N("far_rows", 3, 1, 9, 16, 2, 64), .flags = FAR_ROWS },
	/* rows of no request: nothing is written */
	{ N("batch_0_padded", 0, 1, 1, 16, 2, 64), .flags = PAGED_PADDED },
};

static const int grid_batch[] = { 1, 2, 17 }, grid_qo[] = { 1, 3, 19 }, grid_page[] = { 1, 5, 8, 16, 64 };
#define NUM_GRID	(3 * 3 * 5)
#define NUM_LATER	((int)ARRAY_SIZE(later))
#define NUM_PAIRS	33
#define NUM_LAST	((int)ARRAY_SIZE(last))

/* Any two features occur together in some case. */
enum { PAIR_PAGE, PAIR_HEADS, PAIR_DIM, PAIR_K_STRIDE, PAIR_V_STRIDE, PAIR_LENGTHS, PAIR_DTYPE, PAIR_TABLES };

static struct cairn_pairs pair_table = { .num_factors = 8, .levels = { 6, 5, 5, 4, 4, 4, 3, 3 } };

/* Sets *s from levels of the first eight factors. */
static void pair_shape(const int8_t *level, struct shape *s)
{
	static const int pages[] = { 16, 1, 32, 48, 64, 128 }, heads[] = { 1, 2, 3, 5, 8 };
	static const int dims[] = { 64, 8, 128, 40, 256 };
	static const unsigned tables[] = { 0, PAGED_PADDED, PAGED_SPARE };
	static const unsigned dtypes[] = { 0, F16, F32 };
	/* decode, mixed, whole prompts, new rows that cross pages and requests without any */
	static const struct {
		int batch, qo[5], kv[5];
	} lengths[] = {
		{ 5, { 1, 1, 1, 1, 1 }, { 1, 97, 33, 128, 65 } },
		{ 4, { 1, 19, 2, 5 }, { 130, 64, 49, 6 } },
		{ 2, { 33, 70 }, { 33, 70 } },
		{ 4, { 0, 50, 0, 3 }, { 9, 140, 0, 34 } },
	};
	int row;

	*s = (struct shape){
		.page = pages[level[PAIR_PAGE]], .heads = heads[level[PAIR_HEADS]],
		.dim = dims[level[PAIR_DIM]], .batch = lengths[level[PAIR_LENGTHS]].batch,
		.qo_lens = lengths[level[PAIR_LENGTHS]].qo, .kv_lens = lengths[level[PAIR_LENGTHS]].kv,
	};
	s->flags = tables[level[PAIR_TABLES]] | dtypes[level[PAIR_DTYPE]];
	s->qo = s->qo_lens[0];
	row = s->heads * s->dim;
	s->k_stride = (int[]){ 0, row, row + 8, 3 * row }[level[PAIR_K_STRIDE]];
	s->v_stride = (int[]){ 0, row, row + 16, 2 * row }[level[PAIR_V_STRIDE]];
}

static void pair_at(int i, struct shape *s)
{
	pair_shape(cairn_pairs_row(&pair_table, i), s);
	s->pair = i + 1;
}

#include "fused/cache/kv_append_fp8_cases.h"

#include "fused/cache/kv_append_ends.h"

#define FIRST_ENDS	((int)ARRAY_SIZE(named) + NUM_GRID + NUM_LATER + NUM_PAIRS + NUM_LAST + NUM_FP8 + \
			 NUM_FP8_PAIRS + NUM_MORE)

#define NUM_CASES	(FIRST_ENDS + NUM_ENDS)

static const struct cairn_draw_axis axes[] = {
	CAIRN_DRAW_SIZE(struct shape, batch, 1, 140, 1),
	CAIRN_DRAW_SIZE(struct shape, qo, 0, 700, 1),
	CAIRN_DRAW_SIZE(struct shape, kv, 0, 5000, 1),
	CAIRN_DRAW_SIZE(struct shape, page, 1, 600, 1),
	CAIRN_DRAW_SIZE(struct shape, heads, 1, 70, 1),
	CAIRN_DRAW_SIZE(struct shape, dim, 8, 512, 8),
	/* numbers of strides, see allowed() */
	CAIRN_DRAW_ONE_OF(struct shape, k_stride, 0, 0, 1, 2, 3),
	CAIRN_DRAW_ONE_OF(struct shape, v_stride, 0, 0, 1, 2, 3),
	CAIRN_DRAW_ONE_OF(struct shape, flags, 0, F16, F32, FP8, SCALES, FP8 | K_SCALE, FP8 | V_SCALE,
			  SCALES | F16, SCALES | F32, SCALES | TINY, SCALES | NEAR),
	CAIRN_DRAW_ONE_OF(struct shape, flags, PAGED_RAGGED, PAGED_RAGGED, 0),
	CAIRN_DRAW_ONE_OF(struct shape, flags, 0, PAGED_PADDED, PAGED_SPARE),
	CAIRN_DRAW_ONE_OF(struct shape, flags, 0, 0, 0, PACKED, SAME),
	CAIRN_DRAW_ONE_OF(struct shape, flags, 0, EXTREME),
};

static int allowed(void *shape, int room)
{
	struct shape *s = shape;
	const int row = s->heads * s->dim, strides[] = { 0, row, row + 8, 3 * row };
	const int64_t pages = (s->qo > s->kv ? s->qo : s->kv) / s->page + 1;

	if (s->flags & SAME)
		s->v_stride = s->k_stride;
	s->k_stride = strides[s->k_stride];
	s->v_stride = strides[s->v_stride];
	return s->batch * pages * s->page * row <= room * 1000000 &&
	       (int64_t)s->batch * s->qo * row <= room * 100000;
}

static const struct cairn_draw draws = {
	.shape_bytes = sizeof(struct shape), .axes = axes, .num_axes = ARRAY_SIZE(axes),
	.allowed = allowed, .many = 2800,
};

static void shape_at(int index, struct shape *s)
{
	static const int heads[] = { 1, 2, 4, 8, 3 }, dims[] = { 128, 64, 256, 96 };
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
		ends_at(index - FIRST_ENDS, s);
		return;
	}
	if (i >= NUM_GRID + NUM_LATER + NUM_PAIRS + NUM_LAST) {
		fp8_shape_at(i - NUM_GRID - NUM_LATER - NUM_PAIRS - NUM_LAST, s);
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
	*s = (struct shape){ .batch = grid_batch[i % 3], .qo = grid_qo[i / 3 % 3], .page = grid_page[i / 9],
		.heads = heads[(i + i / 9) % 5], .dim = dims[(i + i / 3) % 4] };
	s->kv = s->qo + i * 7 % 70;
	s->flags = (i % 2 ? PACKED : 0) | (i % 3 == 1 ? PAGED_RAGGED : 0) | (i % 5 == 2 ? PAGED_PADDED : 0) |
		   (i % 4 == 1 ? F16 : i % 4 == 3 ? F32 : 0);
}

static int dtype_of(const struct shape *s)
{
	return s->flags & F16 ? CAIRN_F16 : s->flags & F32 ? CAIRN_F32 : CAIRN_BF16;
}

static void describe(int index, struct cairn_case *c)
{
	struct shape s;

	shape_at(index, &s);
	if (s.ends)
		snprintf(c->name, sizeof(c->name), "ends_qo%d_kv%d_p%d_h%d_d%d_%s%s%s%s", s.qo, s.kv, s.page,
			 s.heads, s.dim, s.flags & FP8 ? "fp8_" : "", cairn_dtype_name(dtype_of(&s)),
			 s.k_stride ? "_k_stride" : "", s.v_stride ? "_v_stride" : "");
	else if (s.pair)
		snprintf(c->name, sizeof(c->name), "%spair_%d_p%d_h%d_d%d_%s%s%s",
			 s.flags & FP8 ? "fp8_" : "", s.pair, s.page, s.heads, s.dim,
			 cairn_dtype_name(dtype_of(&s)), s.k_stride ? "_k_stride" : "",
			 s.v_stride ? "_v_stride" : "");
	else if (s.name)
		snprintf(c->name, sizeof(c->name), "%s", s.name);
	else
		snprintf(c->name, sizeof(c->name), "b%d_qo%d_kv%d_p%d_h%d_d%d_%s%s%s%s", s.batch, s.qo,
			 s.kv, s.page, s.heads, s.dim, cairn_dtype_name(dtype_of(&s)),
			 s.flags & PACKED ? "_packed" : "", s.flags & PAGED_RAGGED ? "_ragged" : "",
			 s.flags & PAGED_PADDED ? "_padded" : "");
	c->kinds = CAIRN_KIND_BIT(CAIRN_KIND_NORMAL) | CAIRN_KIND_BIT(CAIRN_KIND_POISON);
	if (s.flags & EXTREME)
		c->kinds |= CAIRN_KIND_BIT(CAIRN_KIND_EXTREME);
	if (s.pair)
		c->kinds = CAIRN_KIND_BIT(CAIRN_KIND_EXTREME) | CAIRN_KIND_BIT(CAIRN_KIND_POISON);
	c->bench = !!(s.flags & BENCH);
	c->device_only = !!(s.flags & DEVICE);
	c->far = !!(s.flags & (PAGED_FAR | FAR_ROWS));
	if (c->far || s.ends)
		c->kinds = CAIRN_KIND_BIT(CAIRN_KIND_NORMAL);
	/* every new row is read once and written once */
	c->bytes = 2.0 * s.batch * s.qo * s.heads * s.dim * (double)cairn_dtype_bytes(dtype_of(&s)) *
		   (s.flags & FP8 ? 1.5 : 2);
}

/* Makes one in eleven of the elements a signalling NaN, of either sign and with a payload of its own. */
static void fill_signalling(void *x, int dtype, int64_t first, int64_t count)
{
	for (int64_t i = first; i < first + count; i++) {
		uint32_t payload = 1 + (uint32_t)i % 61, sign = (uint32_t)i % 2;

		if (i % 11 != 3)
			continue;
		if (dtype == CAIRN_F32)
			((uint32_t *)x)[i] = sign << 31 | 0x7f800000 | payload << 9 | payload;
		else
			((uint16_t *)x)[i] = (uint16_t)(sign << 15 | (dtype == CAIRN_F16 ? 0x7c00 : 0x7f80) |
							payload);
	}
}

static void setup(struct cairn_op *op)
{
	struct cairn_kv_append_args *a = op->args;
	int64_t row, stride, strides[2], count;
	struct paged p = { 0 };
	struct shape s;
	size_t esize;
	uint8_t *x;
	int pad;

	shape_at(op->case_index, &s);
	p.batch = s.batch;
	p.page_size = s.page;
	p.flags = s.flags;
	p.pool = s.flags & PAGED_FAR ? (1 << 21) + 40 : s.pool ? s.pool : 3000;
	pad = s.flags & PAGED_PADDED ? 3 : 0;
	paged_lengths(op, &p, s.qo, s.kv, s.qo_lens, s.kv_lens, 1);
	paged_tables(op, &p, offsetof(struct cairn_kv_append_args, qo_indptr),
		     offsetof(struct cairn_kv_append_args, kv));
	a->kv.batch = s.batch;
	a->nnz_qo = p.nnz + pad;
	a->kv.num_pages = p.num_pages;
	a->kv.page_size = s.page;
	a->num_kv_heads = s.heads;
	a->head_dim = s.dim;
	a->dtype = dtype_of(&s);
	a->kv_fp8 = !!(s.flags & FP8);
	declare_scales(op, &s);
	esize = cairn_dtype_bytes(a->dtype);
	row = (int64_t)s.heads * s.dim;
	stride = s.flags & PACKED ? 5 * row : row;
	a->k_stride = s.flags & FAR_ROWS ? FAR_STRIDE : s.flags & PACKED ? stride : s.k_stride;
	a->v_stride = s.flags & FAR_ROWS ? FAR_STRIDE : s.flags & PACKED ? stride : s.v_stride;
	strides[0] = a->k_stride ? a->k_stride : row;
	strides[1] = a->v_stride ? a->v_stride : row;

	/* padding rows and gaps between rows hold NaN */
	for (int side = 0; side < 2; side++) {
		size_t field = side ? offsetof(struct cairn_kv_append_args, v) :
				      offsetof(struct cairn_kv_append_args, k);

		stride = strides[side];
		count = a->nnz_qo ? (a->nnz_qo - 1) * stride + row : 0;	/* ends with the last row */
		if (side && s.flags & SAME) {
			cairn_alias(op, field, offsetof(struct cairn_kv_append_args, k));
			continue;
		}
		x = s.flags & FAR_ROWS ? cairn_in_far(op, field, a->dtype, count) :
		    cairn_in(op, field, a->dtype, count);
		cairn_name(op, field, side ? "v" : "k");
		for (int i = 0; i < p.nnz && s.flags & FAR_ROWS; i++)
			cairn_touch(op, x, i * stride, row);
		if (!(s.flags & FAR_ROWS))
			cairn_fill_nan(x, a->dtype, 0, count);
		for (int i = 0; i < p.nnz; i++) {
			cairn_fill(op, x + i * stride * esize, a->dtype, row, 1);
			if (op->kind == CAIRN_KIND_EXTREME && s.flags & FP8)
				fill_edges(op, &s, x, a->dtype, i * stride, side ? a->v_scale : a->k_scale);
			else if (op->kind == CAIRN_KIND_EXTREME)
				fill_signalling(x, a->dtype, i * stride, row);
			/* a NaN in a new row must be copied like any other value */
			if (op->kind == CAIRN_KIND_POISON)
				cairn_fill_nan(x, a->dtype, i * stride + cairn_op_range(op, 0, row - 1), 1);
		}
	}
	/* slots that are not written must keep their contents, NaN included */
	for (int side = 0; side < 2; side++) {
		size_t field = side ? offsetof(struct cairn_kv_append_args, kv.v_pages) :
				      offsetof(struct cairn_kv_append_args, kv.k_pages);

		int dtype = s.flags & FP8 ? CAIRN_U8 : a->dtype;

		if (s.flags & PAGED_FAR)
			paged_far(op, &p, field, dtype, row, 1);
		else
			x = cairn_inout(op, field, dtype, (int64_t)p.num_pages * s.page * row);
		cairn_name(op, field, side ? "kv.v_pages" : "kv.k_pages");
		paged_shape(op, &p, field, s.heads, s.dim);
		if (s.flags & PAGED_FAR)
			continue;
		if (op->kind == CAIRN_KIND_POISON)
			cairn_fill_nan(x, dtype, 0, (int64_t)p.num_pages * s.page * row);
		else
			cairn_fill(op, x, dtype, (int64_t)p.num_pages * s.page * row, 1);
	}
}

static int relist(void *args)
{
	const struct cairn_kv_append_args *a = args;
	int changed = paged_relist(&a->kv, a->qo_indptr);

	return paged_drop_row(a->qo_indptr, a->kv.batch) || changed;
}

static const char *reject(void *args, int i, int *want)
{
	struct cairn_kv_append_args *a = args;

	*want = -EINVAL;
	switch (i) {
	case 0: a->size = 8; return "size_too_small";
	case 1: a->kv.k_pages = NULL; return "k_pages_null";
	case 2: a->kv.v_pages = NULL; return "v_pages_null";
	case 3: a->k = NULL; return "k_null";
	case 4: a->v = NULL; return "v_null";
	case 5: a->qo_indptr = NULL; return "qo_indptr_null";
	case 6: a->kv.indptr = NULL; return "kv_indptr_null";
	case 7: a->kv.indices = NULL; return "kv_indices_null";
	case 8: a->kv.last_page_len = NULL; return "kv_last_page_len_null";
	case 9: a->k = (const char *)a->k + 2; return "k_misaligned";
	case 10: a->kv.v_pages = (char *)a->kv.v_pages + 8; return "v_pages_misaligned";
	case 11: a->kv.batch = -1; return "batch_negative";
	case 12: a->nnz_qo = -1; return "nnz_qo_negative";
	case 13: a->kv.page_size = 0; return "page_size_0";
	case 14: a->num_kv_heads = 0; return "num_kv_heads_0";
	case 15: a->k_stride = a->head_dim * (int64_t)a->num_kv_heads - 8; return "k_stride_short";
	case 16: a->v_stride = a->head_dim * (int64_t)a->num_kv_heads + 4; return "v_stride_odd";
	case 17: a->head_dim = 12; *want = -EOPNOTSUPP; return "head_dim_12";
	case 18: a->dtype = CAIRN_I32; *want = -EOPNOTSUPP; return "dtype_i32";
	case 19: a->kv_fp8 = 2; return "kv_fp8_2";
	case 20: a->kv_fp8 = 0; a->k_scale = (const float *)a->k; return "k_scale_without_fp8";
	case 21: a->kv_fp8 = 0; a->v_scale = (const float *)a->v; return "v_scale_without_fp8";
	}
	return NULL;
}

static int exact(const void *args, struct cairn_exact *e)
{
	return cairn_kv_append_exact(args, e);
}

/* What a page array must hold. */
struct copied {
	const uint8_t *got, *from;
	const int32_t *row_of;		/* [slots]: the new row, or -1 */
	int64_t row;			/* bytes, as the stride */
	int64_t stride;
	int dtype;
};

static int is_bad(const void *arg, int64_t i, char *why, size_t why_len)
{
	const struct copied *c = arg;
	int64_t esize = (int64_t)cairn_dtype_bytes(c->dtype), at = i * esize;
	int32_t row = c->row_of[at / c->row];
	uint32_t got = 0, want = 0;

	if (row < 0)			/* exact() requires that it keeps its bits */
		return 0;
	memcpy(&got, c->got + at, (size_t)esize);
	memcpy(&want, c->from + row * c->stride + at % c->row, (size_t)esize);
	if (why)
		snprintf(why, why_len, "got the bits 0x%x, want 0x%x", got, want);
	return got != want;
}

/* Sets the new row of each slot. Returns whether all rows have the bits that they should have. */
static int find_rows(const struct cairn_kv_append_args *a, const struct copied *k, const struct copied *v,
		     int32_t *row_of)
{
	int same = 1;

	memset(row_of, 0xff, (size_t)a->kv.num_pages * (size_t)a->kv.page_size * sizeof(*row_of));
	for (int b = 0; b < a->kv.batch; b++)
		for (int32_t i = a->qo_indptr[b]; i < a->qo_indptr[b + 1]; i++) {
			int64_t key = cairn_kv_len(&a->kv, b) - a->qo_indptr[b + 1] + i;
			int64_t slot = cairn_kv_slot(&a->kv, b, key);

			row_of[slot] = i;
			same &= !memcmp(k->got + slot * k->row, k->from + i * k->stride, (size_t)k->row) &&
				!memcmp(v->got + slot * v->row, v->from + i * v->stride, (size_t)v->row);
		}
	return same;
}

/* Compares bits, because exact() does not distinguish NaNs. */
static int judge(const struct cairn_op *op, const void *got_args, char *why, size_t why_len)
{
	const struct cairn_kv_append_args *a = op->args, *got = got_args;
	int64_t esize = (int64_t)cairn_dtype_bytes(a->dtype), row = a->num_kv_heads * a->head_dim * esize;
	int64_t slots = (int64_t)a->kv.num_pages * a->kv.page_size;
	struct copied k = { .got = got->kv.k_pages, .from = a->k, .row = row, .dtype = a->dtype,
			    .stride = a->k_stride ? a->k_stride * esize : row };
	struct copied v = { .got = got->kv.v_pages, .from = a->v, .row = row, .dtype = a->dtype,
			    .stride = a->v_stride ? a->v_stride * esize : row };
	int32_t *row_of;
	int bad;

	if (slots > 1 << 22 || a->kv_fp8)	/* far pages, or codes, which exact() gives as numbers */
		return 0;
	row_of = malloc((size_t)(slots + 1) * sizeof(*row_of));
	if (!row_of) {
		snprintf(why, why_len, "no memory");
		return 1;
	}
	k.row_of = v.row_of = row_of;
	bad = !find_rows(a, &k, &v, row_of) &&
	      (cairn_judge_each(op, offsetof(struct cairn_kv_append_args, kv.k_pages), is_bad, &k, why,
				why_len) ||
	       cairn_judge_each(op, offsetof(struct cairn_kv_append_args, kv.v_pages), is_bad, &v, why,
				why_len));
	free(row_of);
	return bad;
}

static void pair_rows(struct cairn_test *t)
{
	cairn_pairs_check(t, &pair_table, NUM_PAIRS);
	cairn_pairs_check(t, &ends_table, NUM_ENDS);
}

static void fp8_pair_rows(struct cairn_test *t)
{
	cairn_pairs_check(t, &fp8_pair_table, NUM_FP8_PAIRS);
}

static const struct cairn_unit units[] = {
	{ "pair_rows", pair_rows }, { "fp8_pair_rows", fp8_pair_rows },
};

const struct cairn_family cairn_kv_append_family = {
	.stage = "fused", .name = "kv_append",
	.op = offsetof(struct cairn_impl, kv_append),
	.args_size = sizeof(struct cairn_kv_append_args),
	.num_cases = NUM_CASES, .draw = &draws,
	.units = units, .num_units = ARRAY_SIZE(units),
	.exact_is_equal = 1,
	.describe = describe,
	.setup = setup,
	.relist = relist,
	.exact = exact,
	.judge = judge,
	.reject = reject,
	.cost_s = 5,
};
