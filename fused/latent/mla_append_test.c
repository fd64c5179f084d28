// SPDX-License-Identifier: Apache-2.0
/* mla_append_test - named edge cases, a grid of small shapes, bench rows, 8-bit keys */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "conformance/harness.h"
#include "conformance/suite/draw.h"
#include "conformance/suite/pairs.h"
#include "fused/latent/mla_append.h"
#include "fused/latent/mla_append_fp8_test.h"
#include "primitives/rows/rmsnorm.h"
#include "fused/cache/paged_test.h"

enum {
	F16 = PAGED_FLAGS, BENCH = F16 << 1, DEVICE = F16 << 2,
	FAR = F16 << 3,			/* large positions */
	FAR_Q = F16 << 4,		/* the last rows of q begin past 2^32 elements */
	/* the last rows of latent begin past 2^31 elements, and pages are in the order of the rows */
	FAR_LATENT = F16 << 5,
	FP8 = F16 << 6,			/* keys of 656 bytes */
	/* rows of zeros, rows with one large element or a NaN; weights that are 0 or too small for a scale */
	EDGES = F16 << 7,
};

struct shape {
	const char *name;		/* NULL: derived from the shape */
	/* new rows and keys of each request, slots of a page, heads, kv_lora_rank, nope_dim, rope_dim */
	int batch, qo, kv, page, heads, rank, nope, rope;
	unsigned flags;
	const int *qo_lens, *kv_lens;	/* [batch], replaces qo and kv; may be NULL */
	/* number of a pair case, or 0; eps (0: 1e-6), deviation of latent (0: 1) */
	int pair;
	double eps, size;
	int far;			/* of a pair case: largest position */
	int ends;			/* number of the case among the ends of tiles, or 0 */
};

#define LENS(...) (const int[]){ __VA_ARGS__ }
#define N(name_, batch_, qo_, kv_, page_, heads_, rank_, nope_, rope_) \
	.name = name_, .batch = batch_, .qo = qo_, .kv = kv_, .page = page_, .heads = heads_, \
	.rank = rank_, .nope = nope_, .rope = rope_
#define LITE	512, 128, 64		/* DeepSeek-V2-Lite */
#define OF(...)	N(__VA_ARGS__)		/* expands LITE to three arguments of N */

static const struct shape named[] = {
	/* N(name, batch, new rows, keys, page size, heads, kv_lora_rank, nope_dim, rope_dim), others */
	{ OF("one_key", 1, 1, 1, 1, 2, LITE) },		/* reject() changes the arguments of this case */
	{ OF("batch_0", 0, 1, 1, 16, 2, LITE) },
	{ OF("no_rows", 3, 0, 20, 16, 2, LITE) },
	{ OF("crosses_pages", 1, 40, 57, 16, 2, LITE) },
	{ OF("empty_requests", 6, 1, 1, 8, 2, LITE),
	  .qo_lens = LENS(0, 1, 0, 0, 9, 0), .kv_lens = LENS(0, 1, 0, 5, 20, 8) },
	{ OF("mixed_prefill_decode", 5, 1, 1, 16, 16, LITE),
	  .qo_lens = LENS(1, 70, 1, 17, 1), .kv_lens = LENS(33, 70, 1, 40, 512) },
	{ OF("padded_graph", 6, 1, 1, 16, 16, LITE), .flags = PAGED_PADDED,
	  .qo_lens = LENS(1, 1, 1, 0, 0, 0), .kv_lens = LENS(31, 32, 33, 0, 0, 1) },
	{ OF("far_positions", 2, 9, 30, 16, 4, LITE), .flags = FAR },
	{ OF("far_positions_f16", 2, 9, 30, 16, 4, LITE), .flags = FAR | F16 },
	{ N("no_nope", 2, 5, 9, 16, 3, 64, 0, 16) },
	{ N("largest", 2, 3, 9, 16, 2, 1024, 1024, 256) },
	{ N("odd_widths", 2, 7, 30, 5, 5, 192, 48, 80), .flags = F16 },
	{ N("odd_rope", 2, 3, 9, 16, 3, 576, 64, 176) },
	{ OF("high_page_ids", 3, 2, 9, 4, 1, LITE), .flags = PAGED_HIGH },
	{ OF("batch_129", 129, 1, 20, 16, 1, LITE), .flags = PAGED_RAGGED },
	{ OF("heads_128", 2, 3, 20, 16, 128, LITE) },
	{ N("heads_130", 1, 2, 5, 16, 130, 64, 16, 16) },
	{ N("batch_300", 300, 1, 5, 4, 1, 64, 16, 16), .flags = PAGED_RAGGED },
	/* bench rows */
	{ OF("decode_b64_h16_bf16", 64, 1, 64, 16, 16, LITE), .flags = BENCH },
	{ OF("prefill_b1_s4096_h16_bf16", 1, 4096, 4096, 16, 16, LITE), .flags = BENCH | DEVICE },
	/* the last pages begin past 2^32 elements */
	{ OF("far_pages", 2, 3, 40, 16, 2, LITE), .flags = PAGED_FAR },
};

static const int grid_qo[] = { 1, 3, 19 }, grid_page[] = { 1, 5, 16, 64 };
/* added later: the cases before them keep their numbers */
static const struct shape last[] = {
	/* heads of 1040 elements, of which 16 are rotated */
	{ N("far_q", 1, 16140, 16140, 64, 256, 64, 1024, 16), .flags = FAR_Q },
	{ N("batch_2100", 2100, 2, 5, 4, 1, 64, 16, 16), .flags = PAGED_RAGGED },
	{ N("rows_past_4096", 3, 1, 1, 64, 1, 64, 0, 16),
	  .qo_lens = LENS(3000, 1, 2000), .kv_lens = LENS(3005, 9, 2000) },
	/* rows of no request: nothing is written */
	{ OF("batch_0_padded", 0, 1, 1, 16, 2, LITE), .flags = PAGED_PADDED },
	{ N("far_latent", 1, 2064960, 2064960, 64, 1, 1024, 0, 16),
	  .flags = FAR_LATENT | FAR_Q | PAGED_FULL | DEVICE },
	/* latents of the size of the root of the smallest eps; that of the first row is 0 */
	{ OF("eps_smallest", 2, 9, 30, 16, 4, LITE), .eps = CAIRN_EPS_MIN, .size = 0x1p-63 },
	{ N("eps_smallest_rank_64", 1, 5, 9, 16, 3, 64, 16, 16), .eps = CAIRN_EPS_MIN, .size = 0x1p-64 },
};

/* keys of 656 bytes */
static const struct shape fp8_named[] = {
	{ OF("fp8_one_key", 1, 1, 1, 1, 2, LITE), .flags = FP8 },
	{ OF("fp8_batch_0_padded", 0, 1, 1, 16, 2, LITE), .flags = FP8 | PAGED_PADDED },
	{ OF("fp8_no_rows", 3, 0, 20, 16, 2, LITE), .flags = FP8 },
	{ OF("fp8_crosses_pages", 1, 40, 57, 16, 2, LITE), .flags = FP8 },
	{ OF("fp8_crosses_pages_f16", 1, 40, 57, 16, 2, LITE), .flags = FP8 | F16 },
	{ OF("fp8_edges", 2, 9, 30, 5, 1, LITE), .flags = FP8 | EDGES },
	{ OF("fp8_edges_f16", 2, 9, 30, 64, 1, LITE), .flags = FP8 | EDGES | F16 },
	{ OF("fp8_empty_requests", 6, 1, 1, 8, 2, LITE), .flags = FP8,
	  .qo_lens = LENS(0, 1, 0, 0, 9, 0), .kv_lens = LENS(0, 1, 0, 5, 20, 8) },
	{ OF("fp8_padded_graph", 6, 1, 1, 16, 16, LITE), .flags = FP8 | PAGED_PADDED,
	  .qo_lens = LENS(1, 1, 1, 0, 0, 0), .kv_lens = LENS(31, 32, 33, 0, 0, 1) },
	{ OF("fp8_page_1_f16", 3, 4, 9, 1, 3, LITE), .flags = FP8 | F16 | PAGED_RAGGED },
	{ N("fp8_no_nope", 2, 5, 9, 16, 3, 512, 0, 64), .flags = FP8, .eps = 1e-3, .size = 0x1p-5 },
	{ OF("fp8_far_positions", 2, 9, 30, 16, 4, LITE), .flags = FP8 | FAR },
	{ OF("fp8_heads_128", 2, 3, 20, 64, 128, LITE), .flags = FP8 },
	{ OF("fp8_batch_300", 300, 1, 5, 4, 1, LITE), .flags = FP8 | PAGED_RAGGED },
	{ OF("fp8_far_pages", 2, 3, 40, 16, 2, LITE), .flags = FP8 | PAGED_FAR },
	{ OF("decode_b64_h16_fp8_bf16", 64, 1, 64, 64, 16, LITE), .flags = FP8 | BENCH },
	{ OF("prefill_b1_s4096_h16_fp8_bf16", 1, 4096, 4096, 64, 16, LITE), .flags = FP8 | BENCH | DEVICE },
};

/* The last cases. */
static const struct shape more[] = {
	/* ranks that are odd multiples of 64, and other sizes that are no powers of two */
	{ N("rank_960", 2, 3, 9, 16, 3, 960, 80, 112) },
	{ N("rank_704_f16", 2, 3, 9, 16, 3, 704, 1008, 240), .flags = F16 },
	{ N("rank_320", 2, 3, 9, 16, 3, 320, 16, 32) },
	/* results that are subnormal in f16 */
	{ OF("subnormal_f16", 2, 5, 9, 16, 3, LITE), .flags = F16, .size = 0x1p-16 },
	{ OF("fp8_subnormal_f16", 2, 5, 9, 16, 3, LITE), .flags = F16 | FP8, .size = 0x1p-16 },
	{ OF("pages_of_256", 2, 40, 530, 256, 1, LITE) },
	{ OF("fp8_pages_of_512", 2, 3, 1030, 512, 1, LITE), .flags = FP8 },
};

#define NUM_GRID	24
#define NUM_MORE	((int)ARRAY_SIZE(more))
#define NUM_LAST	((int)ARRAY_SIZE(last))
#define NUM_FP8		((int)ARRAY_SIZE(fp8_named))
#define NUM_PAIRS	34

/* Every two features occur together in at least one case. */
enum {
	PAIR_PAGE, PAIR_ROPE, PAIR_HEADS, PAIR_RANK, PAIR_NOPE, PAIR_EPS, PAIR_LENGTHS, PAIR_TABLES,
	PAIR_SIZE, PAIR_FAR, PAIR_DTYPE
};

static struct cairn_pairs pair_table = {
	.num_factors = 11, .levels = { 6, 5, 4, 4, 4, 4, 4, 3, 3, 3, 2 },
};

static void pair_at(int i, struct shape *s)
{
	static const int pages[] = { 16, 1, 32, 48, 64, 128 }, ropes[] = { 64, 16, 48, 128, 256 };
	static const int heads[] = { 1, 3, 5, 16 }, ranks[] = { 512, 64, 192, 1024 };
	static const int nopes[] = { 128, 0, 16, 48 };
	static const double eps[] = { 1e-6, 1e-12, 1e-3, 1 };
	static const unsigned tables[] = { 0, PAGED_PADDED, PAGED_SPARE };
	/* decode, mixed, whole prompts, new rows that cross pages and requests without any */
	static const struct {
		int batch, qo[5], kv[5];
	} lengths[] = {
		{ 5, { 1, 1, 1, 1, 1 }, { 1, 97, 33, 128, 65 } },
		{ 4, { 1, 9, 2, 5 }, { 130, 64, 49, 6 } },
		{ 2, { 17, 3 }, { 17, 3 } },
		{ 4, { 0, 12, 0, 3 }, { 9, 140, 0, 34 } },
	};
	const int8_t *level = cairn_pairs_row(&pair_table, i);

	*s = (struct shape){
		.pair = i + 1, .page = pages[level[PAIR_PAGE]], .heads = heads[level[PAIR_HEADS]],
		.rank = ranks[level[PAIR_RANK]], .nope = nopes[level[PAIR_NOPE]],
		.rope = ropes[level[PAIR_ROPE]], .batch = lengths[level[PAIR_LENGTHS]].batch,
		.qo_lens = lengths[level[PAIR_LENGTHS]].qo, .kv_lens = lengths[level[PAIR_LENGTHS]].kv };
	s->flags = tables[level[PAIR_TABLES]] | (level[PAIR_DTYPE] ? F16 : 0);
	s->qo = s->qo_lens[0];
	s->eps = eps[level[PAIR_EPS]];
	/* so small that eps dominates, or so large that squares exceed the range of f16 */
	s->size = (double[]){ 1, sqrt(s->eps), 3000 }[level[PAIR_SIZE]];
	s->far = (int[]){ 4000, 0, 1000000 }[level[PAIR_FAR]];
}

#define FIRST_ENDS	((int)ARRAY_SIZE(named) + NUM_GRID + NUM_PAIRS + NUM_LAST + NUM_FP8 + NUM_MORE)
#define NUM_ENDS	57

/* sizes at the ends of tiles and pages (ends.h): rows, older keys, heads, pages, rank, rope_dim, type */
static struct cairn_pairs ends_table = { .num_factors = 7, .levels = { 7, 8, 6, 5, 4, 4, 2 } };

static void ends_at(int i, struct shape *s)
{
	static const int rows[] = { 1, 15, 17, 33, 63, 65, 129 }, old[] = { 0, 1, 15, 16, 17, 63, 64, 127 };
	static const int heads[] = { 1, 3, 7, 9, 16, 17 }, pages[] = { 16, 1, 64, 32, 128 };
	static const int ranks[] = { 64, 512, 192, 256 }, ropes[] = { 64, 16, 48, 128 };
	const int8_t *level = cairn_pairs_row(&ends_table, i);

	*s = (struct shape){
		.ends = i + 1, .batch = 2, .qo = rows[level[0]], .kv = rows[level[0]] + old[level[1]],
		.heads = heads[level[2]], .page = pages[level[3]], .rank = ranks[level[4]], .nope = 32,
		.rope = ropes[level[5]], .flags = level[6] ? F16 : 0,
	};
}

#define FIRST_FP8_ENDS	(FIRST_ENDS + NUM_ENDS)
#define NUM_FP8_ENDS	56

/* the same for keys of 8 bits: older keys, rows, heads, pages, type */
static struct cairn_pairs fp8_ends_table = { .num_factors = 5, .levels = { 8, 7, 6, 5, 2 } };

static void fp8_ends_at(int i, struct shape *s)
{
	static const int rows[] = { 1, 15, 17, 33, 63, 65, 129 }, old[] = { 0, 1, 15, 16, 17, 63, 64, 127 };
	static const int heads[] = { 1, 3, 7, 9, 16, 17 }, pages[] = { 16, 1, 64, 32, 128 };
	const int8_t *level = cairn_pairs_row(&fp8_ends_table, i);

	*s = (struct shape){
		.ends = i + 1, .batch = 2, .qo = rows[level[1]], .kv = rows[level[1]] + old[level[0]],
		.heads = heads[level[2]], .page = pages[level[3]], .rank = 512, .nope = 32, .rope = 64,
		.flags = FP8 | (level[4] ? F16 : 0),
	};
}

#define NUM_CASES	(FIRST_FP8_ENDS + NUM_FP8_ENDS)

static const struct cairn_draw_axis axes[] = {
	CAIRN_DRAW_SIZE(struct shape, batch, 1, 140, 1),
	CAIRN_DRAW_SIZE(struct shape, qo, 1, 300, 1),
	CAIRN_DRAW_SIZE(struct shape, kv, 1, 4000, 1),
	CAIRN_DRAW_SIZE(struct shape, page, 1, 600, 1),
	CAIRN_DRAW_SIZE(struct shape, heads, 1, 128, 1),
	CAIRN_DRAW_SIZE(struct shape, rank, 64, 1024, 64),
	CAIRN_DRAW_SIZE(struct shape, nope, 0, 1024, 16),
	CAIRN_DRAW_SIZE(struct shape, rope, 16, 256, 16),
	CAIRN_DRAW_ONE_OF(struct shape, eps, 0, 0, 1e-12, 1e-3, 1),
	CAIRN_DRAW_ONE_OF(struct shape, flags, 0, 0, FP8),
	CAIRN_DRAW_ONE_OF(struct shape, flags, 0, F16),
	CAIRN_DRAW_ONE_OF(struct shape, flags, 0, 0, FAR),
	CAIRN_DRAW_ONE_OF(struct shape, flags, 0, PAGED_RAGGED),
	CAIRN_DRAW_ONE_OF(struct shape, flags, 0, 0, PAGED_PADDED, PAGED_SPARE, PAGED_HELD),
};

static int allowed(void *shape, int room)
{
	struct shape *s = shape;
	const int64_t listed = s->batch * ((int64_t)(s->qo > s->kv ? s->qo : s->kv) / s->page + 1);

	if (s->flags & FP8) {
		s->rank = 512;
		s->rope = 64;
	}
	return listed * s->page * (s->rank + s->rope) <= room * 1500000 &&
	       (int64_t)s->batch * s->qo * s->heads * (s->nope + s->rope) <= room * 300000;
}

static const struct cairn_draw draws = {
	.shape_bytes = sizeof(struct shape), .axes = axes, .num_axes = ARRAY_SIZE(axes),
	.allowed = allowed, .many = 3000,
};

static void shape_at(int index, struct shape *s)
{
	static const int heads[] = { 1, 8, 16, 3 }, rank[] = { 512, 64, 256 }, rope[] = { 64, 32, 16, 128 };
	int i = index - (int)ARRAY_SIZE(named);

	if (i < 0) {
		*s = named[index];
		return;
	}
	if (index >= NUM_CASES) {
		cairn_draw_shape(&draws, index - NUM_CASES, s);
		return;
	}
	if (index >= FIRST_FP8_ENDS) {
		fp8_ends_at(index - FIRST_FP8_ENDS, s);
		return;
	}
	if (index >= FIRST_ENDS) {
		ends_at(index - FIRST_ENDS, s);
		return;
	}
	if (i >= NUM_GRID + NUM_PAIRS + NUM_LAST + NUM_FP8) {
		*s = more[i - NUM_GRID - NUM_PAIRS - NUM_LAST - NUM_FP8];
		return;
	}
	if (i >= NUM_GRID + NUM_PAIRS + NUM_LAST) {
		*s = fp8_named[i - NUM_GRID - NUM_PAIRS - NUM_LAST];
		return;
	}
	if (i >= NUM_GRID + NUM_PAIRS) {
		*s = last[i - NUM_GRID - NUM_PAIRS];
		return;
	}
	if (i >= NUM_GRID) {
		pair_at(i - NUM_GRID, s);
		return;
	}
	*s = (struct shape){
		.batch = 1 + i % 4, .qo = grid_qo[i % 3], .page = grid_page[i % 4], .heads = heads[i / 2 % 4],
		.rank = rank[i / 3 % 3], .nope = i % 5 * 32, .rope = rope[(i + i / 4) % 4],
		.flags = (i % 2 ? F16 : 0) | (i % 3 == 1 ? PAGED_RAGGED : 0) |
			 (i % 5 == 2 ? PAGED_PADDED : 0),
	};
	s->kv = s->qo + i * 7 % 70;
}

static void describe(int index, struct cairn_case *c)
{
	struct shape s;

	shape_at(index, &s);
	if (s.pair)
		snprintf(c->name, sizeof(c->name), "pair_%d_p%d_h%d_r%d_n%d_r%d_%s", s.pair, s.page, s.heads,
			 s.rank, s.nope, s.rope, s.flags & F16 ? "f16" : "bf16");
	else if (s.ends)
		snprintf(c->name, sizeof(c->name), "ends_qo%d_kv%d_p%d_h%d_r%d_r%d_%s%s", s.qo, s.kv, s.page,
			 s.heads, s.rank, s.rope, s.flags & F16 ? "f16" : "bf16",
			 s.flags & FP8 ? "_fp8" : "");
	else if (s.name)
		snprintf(c->name, sizeof(c->name), "%s", s.name);
	else
		snprintf(c->name, sizeof(c->name), "b%d_qo%d_kv%d_p%d_h%d_r%d_n%d_r%d_%s%s%s", s.batch,
			 s.qo, s.kv, s.page, s.heads, s.rank, s.nope, s.rope, s.flags & F16 ? "f16" : "bf16",
			 s.flags & PAGED_RAGGED ? "_ragged" : "", s.flags & PAGED_PADDED ? "_padded" : "");
	c->kinds = CAIRN_KIND_BIT(CAIRN_KIND_NORMAL) | CAIRN_KIND_BIT(CAIRN_KIND_POISON);
	if (s.pair)
		c->kinds = CAIRN_KIND_BIT(CAIRN_KIND_POISON);
	c->bench = !!(s.flags & BENCH);
	c->device_only = !!(s.flags & DEVICE);
	c->far = !!(s.flags & (PAGED_FAR | FAR_Q | FAR_LATENT));
	if (c->far || s.ends)
		c->kinds = CAIRN_KIND_BIT(CAIRN_KIND_NORMAL);
	c->bytes = 4.0 * s.batch * s.qo * (s.rank + s.rope + s.heads * s.rope);
	if (s.flags & FP8)
		c->bytes -= (double)s.batch * s.qo * (2 * (s.rank + s.rope) - CAIRN_MLA_FP8_BYTES);
}

/* Declares and fills the pages. Slots that are not written must keep their contents, NaN included. */
static void set_up_pages(struct cairn_op *op, const struct shape *s, const struct paged *p)
{
	struct cairn_mla_append_args *a = op->args;
	const size_t field = offsetof(struct cairn_mla_append_args, kv.k_pages);
	int64_t row = s->flags & FP8 ? CAIRN_MLA_FP8_BYTES : s->rank + s->rope;
	int64_t slots = (int64_t)p->num_pages * s->page * row;
	int dtype = s->flags & FP8 ? CAIRN_U8 : a->dtype;
	void *x;

	a->kv_fp8 = !!(s->flags & FP8);
	if (s->flags & FAR_LATENT)
		x = cairn_inout_rows(op, field, dtype, s->qo, row, 1);
	else if (s->flags & PAGED_FAR)
		x = paged_far(op, p, field, dtype, row, 1);
	else
		x = cairn_inout(op, field, dtype, slots);
	cairn_name(op, field, "kv.k_pages");
	cairn_shape(op, field, { "page", p->num_pages }, { "slot", s->page },
		    { s->flags & FP8 ? "byte" : "dim", row });
	if (s->flags & (PAGED_FAR | FAR_LATENT) || op->only_sizes)
		return;
	if (s->flags & FP8)
		for (int64_t i = 0; i < slots; i++)
			((uint8_t *)x)[i] = op->kind == CAIRN_KIND_POISON ? 0xff : (uint8_t)cairn_op_rand(op);
	else if (op->kind == CAIRN_KIND_POISON)
		cairn_fill_nan(x, a->dtype, 0, slots);
	else
		cairn_fill(op, x, a->dtype, slots, 1);
}

/*
 * See EDGES. The group of weights that are too small has c below 2^-100 in bf16, and zeros in f16. The last
 * group has c that is small, but has a scale.
 */
static void set_up_edges(struct cairn_mla_append_args *a, int rows)
{
	void *w = (void *)a->norm_weight, *x = (void *)a->latent;

	for (int j = 0; j < 128; j++) {
		cairn_store(w, a->dtype, 128 + j, j % 2 ? -0.0 : 0);
		cairn_store(w, a->dtype, 256 + j, 0x1p-110);
		cairn_store(w, a->dtype, 384 + j, a->dtype == CAIRN_F16 ? 0x1p-23 : 0x1p-94);
	}
	cairn_store(w, a->dtype, 7, INFINITY);
	for (int j = 0; j < 512; j++)
		cairn_store(x, a->dtype, 576 + j, 0);
	for (int i = 3; i < rows; i += 4)
		cairn_store(x, a->dtype, i * 576 + 37 * i % 512, i % 8 == 3 ? 3000 : -3000);
	cairn_fill_nan(x, a->dtype, (rows - 2) * 576 + 400, 1);
}

static void setup(struct cairn_op *op)
{
	struct cairn_mla_append_args *a = op->args;
	struct paged p = { 0 };
	int64_t row, head;
	int32_t *positions;
	struct shape s;
	float *freq, base;
	char *x;

	shape_at(op->case_index, &s);
	p.batch = s.batch;
	p.page_size = s.page;
	p.flags = s.flags;
	p.pool = s.flags & PAGED_FAR ? (int)(((int64_t)1 << 32) / 576 / s.page) + 40 : 3000;
	paged_lengths(op, &p, s.qo, s.kv, s.qo_lens, s.kv_lens, 1);
	paged_tables(op, &p, offsetof(struct cairn_mla_append_args, qo_indptr),
		     offsetof(struct cairn_mla_append_args, kv));
	for (int32_t i = 0; i < p.num_pages && s.flags & FAR_LATENT; i++)
		((int32_t *)(uintptr_t)p.kv_indices)[i] = i;
	a->kv.batch = s.batch;
	a->nnz_qo = p.nnz + (s.flags & PAGED_PADDED ? 3 : 0);
	a->kv.num_pages = p.num_pages;
	a->kv.page_size = s.page;
	a->num_heads = s.heads;
	a->kv_lora_rank = s.rank;
	a->nope_dim = s.nope;
	a->rope_dim = s.rope;
	a->dtype = s.flags & F16 ? CAIRN_F16 : CAIRN_BF16;
	a->eps = s.eps > 0 ? (float)s.eps : 1e-6f;
	row = s.rank + s.rope;
	head = (int64_t)s.heads * (s.nope + s.rope);
	cairn_fill(op, cairn_in(op, offsetof(struct cairn_mla_append_args, norm_weight), a->dtype, s.rank),
		   a->dtype,
		   s.rank, 1);
	freq = cairn_in(op, offsetof(struct cairn_mla_append_args, inv_freq), CAIRN_F32, s.rope / 2);
	base = cairn_op_range(op, 0, 1) ? 10000 : 500000;	/* other calls have other frequencies */
	for (int i = 0; i < s.rope / 2; i++)
		freq[i] = powf(base, -2 * (float)i / (float)s.rope);
	positions = cairn_in(op, offsetof(struct cairn_mla_append_args, positions), CAIRN_I32, a->nnz_qo);
	for (int i = 0; i < a->nnz_qo; i++)
		positions[i] = (int32_t)cairn_op_range(op, 0, s.pair ? s.far :
							      !(s.flags & FAR) ? 4000 :
							      i % 2 ? INT32_MAX : 1000000);
	/* padding rows hold NaN and must stay unchanged */
	if (s.flags & FAR_LATENT) {
		cairn_in_rows(op, offsetof(struct cairn_mla_append_args, latent), a->dtype, a->nnz_qo, row,
			      1);
	} else {
		x = cairn_in(op, offsetof(struct cairn_mla_append_args, latent), a->dtype, a->nnz_qo * row);
		cairn_fill_nan(x, a->dtype, 0, a->nnz_qo * row);
		cairn_fill(op, x, a->dtype, p.nnz * row, s.size > 0 ? s.size : 1);
		if (s.eps > 0 && !s.pair)
			memset(x, 0, (size_t)row * 2);
		if (s.pair)	/* in the last row's c or r */
			cairn_fill_nan(x, a->dtype, (p.nnz - 1) * row + (s.pair % 2 ? 5 : s.rank + 5), 1);
	}
	if (s.flags & FAR_Q)
		x = cairn_inout_rows(op, offsetof(struct cairn_mla_append_args, q), a->dtype, a->nnz_qo,
				     head, 1);
	else
		x = cairn_inout(op, offsetof(struct cairn_mla_append_args, q), a->dtype, a->nnz_qo * head);
	cairn_shape(op, offsetof(struct cairn_mla_append_args, q), { "row", a->nnz_qo }, { "head", s.heads },
		    { "dim", s.nope + s.rope });
	if (!(s.flags & FAR_Q)) {
		cairn_fill_nan(x, a->dtype, 0, a->nnz_qo * head);
		cairn_fill(op, x, a->dtype, p.nnz * head, 1);
	}
	if (s.pair)	/* in the first row's last pair */
		cairn_fill_nan(x, a->dtype, head - 1, 1);
	set_up_pages(op, &s, &p);
	if (s.flags & EDGES && !op->only_sizes)
		set_up_edges(a, p.nnz);
}

static int relist(void *args)
{
	const struct cairn_mla_append_args *a = args;
	int changed = paged_relist(&a->kv, a->qo_indptr) | paged_move_rows(a->positions, a->nnz_qo);

	return paged_drop_row(a->qo_indptr, a->kv.batch) || changed;
}

static const char *reject(void *args, int i, int *want)
{
	struct cairn_mla_append_args *a = args;

	*want = i < 22 || i == 29 ? -EINVAL : -EOPNOTSUPP;
	switch (i) {
	case 0: a->size = 8; return "size_too_small";
	case 1: a->q = NULL; return "q_null";
	case 2: a->kv.k_pages = NULL; return "pages_null";
	case 3: a->latent = NULL; return "latent_null";
	case 4: a->norm_weight = NULL; return "norm_weight_null";
	case 5: a->inv_freq = NULL; return "inv_freq_null";
	case 6: a->positions = NULL; return "positions_null";
	case 7: a->qo_indptr = NULL; return "qo_indptr_null";
	case 8: a->kv.indptr = NULL; return "kv_indptr_null";
	case 9: a->kv.indices = NULL; return "kv_indices_null";
	case 10: a->kv.last_page_len = NULL; return "kv_last_page_len_null";
	case 11: a->q = (char *)a->q + 2; return "q_misaligned";
	case 12: a->kv.k_pages = (char *)a->kv.k_pages + 8; return "pages_misaligned";
	case 13: a->kv.batch = -1; return "batch_negative";
	case 14: a->nnz_qo = -1; return "nnz_qo_negative";
	case 15: a->kv.page_size = 0; return "page_size_0";
	case 16: a->num_heads = 0; return "num_heads_0";
	case 17: a->rope_dim = 0; return "rope_dim_0";
	case 18: a->nope_dim = -16; return "nope_dim_negative";
	case 19: a->eps = 0; return "eps_0";
	case 20: a->eps = NAN; return "eps_nan";
	case 21: a->kv_fp8 = 2; return "kv_fp8_2";
	case 22: a->dtype = CAIRN_F32; return "dtype_f32";
	case 23: a->kv_lora_rank = 96; return "kv_lora_rank_96";
	case 24: a->kv_lora_rank = 1088; return "kv_lora_rank_1088";
	case 25: a->rope_dim = 24; return "rope_dim_24";
	case 26: a->nope_dim = 1040; return "nope_dim_1040";
	case 27: a->kv_fp8 = 1; a->kv_lora_rank = 576; return "kv_fp8_rank_576";
	case 28: a->kv_fp8 = 1; a->rope_dim = 128; return "kv_fp8_rope_128";
	case 29: a->eps = 1e-39f; return "eps_subnormal";
	}
	return NULL;
}

static int exact(const void *args, struct cairn_exact *e)
{
	return cairn_mla_append_exact(args, e);
}

static int judge(const struct cairn_op *op, const void *got, char *why, size_t why_len)
{
	const struct cairn_mla_append_args *a = op->args, *result = got;

	return a->kv_fp8 && fp8_judge(a, result->kv.k_pages, why, why_len);
}

#define FIELD(f)	offsetof(struct cairn_mla_append_args, f)

static void pair_rows(struct cairn_test *t)
{
	cairn_pairs_check(t, &pair_table, NUM_PAIRS);
	cairn_pairs_check(t, &ends_table, NUM_ENDS);
	cairn_pairs_check(t, &fp8_ends_table, NUM_FP8_ENDS);
}

static const struct cairn_unit units[] = { { "pair_rows", pair_rows } };

const struct cairn_family cairn_mla_append_family = {
	.stage = "fused", .name = "mla_append",
	.op = offsetof(struct cairn_impl, mla_append),
	.args_size = sizeof(struct cairn_mla_append_args),
	.num_cases = NUM_CASES, .draw = &draws,
	.units = units, .num_units = ARRAY_SIZE(units),
	.company = { .rows = FIELD(nnz_qo), .in = { FIELD(q), FIELD(latent) }, .out = { FIELD(q) } },
	.describe = describe, .setup = setup, .relist = relist, .exact = exact, .judge = judge,
	.reject = reject,
};
