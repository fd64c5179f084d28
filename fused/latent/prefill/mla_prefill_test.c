// SPDX-License-Identifier: Apache-2.0
/*
 * mla_prefill_test - a grid of ragged batches, named edges, chunks, large shapes, bench, every two features
 *
 * EXACT has integers, and the weights that make values are in sixteenths, with sums of up to 19 bits: some
 * cancel, the others add up. The logits that remain are 0, or so large for one key that it has all the
 * weight.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "conformance/harness.h"
#include "conformance/suite/draw.h"
#include "conformance/suite/pairs.h"
#include "fused/cache/paged_test.h"
#include "fused/latent/base/mla_draws.h"
#include "fused/latent/base/mla_ends.h"
#include "fused/latent/base/mla_inputs.h"
#include "fused/latent/prefill/mla_prefill.h"

enum { F16 = PAGED_FLAGS, BENCH = F16 << 1, DEVICE = F16 << 2, SHARP = F16 << 3, RANDOM = F16 << 4,
       LATE = F16 << 5,		/* keys from 2^16 on have all the weight */
       STEPS = F16 << 6,	/* weights down to e^-30 of the largest, with values as much larger */
       LSE = F16 << 7,
       LAST = F16 << 8,		/* the last requests of a batch: qo_indptr does not begin at 0 */
       ROTATED = F16 << 9,	/* the rotated part alone gives one key of each row all the weight */
       LIMITS = F16 << 11,	/* the last key that a row sees, and the one behind it, decide */
       NO_PAST = F16 << 10,	/* nnz_past is 0, also where the other bounds are larger than needed */
};

struct shape {
	const char *name;		/* NULL: derived from the shape */
	int batch, qo, kv, page, heads;	/* query rows and keys of each request, slots of a page, heads */
	int chunk;			/* chunk_keys */
	unsigned flags;			/* SHARP: a few keys have all the weight; RANDOM: not EXACT */
	const int *qo_lens, *kv_lens;	/* [batch], replaces qo and kv; may be NULL */
	int sms;
	int pair, equal;		/* number of a pair case, or 0; EXACT has equal logits */
	float scale;			/* sm_scale; 0: the usual one */
	enum mla_nan nan;		/* where the second request has a NaN */
	int roundings;			/* cairn_case.roundings */
	int ends;			/* number of the case among the ends of tiles, or 0 */
};

#define LENS(...) (const int[]){ __VA_ARGS__ }
#define N(name_, batch_, qo_, kv_, page_, heads_) \
	.name = (name_), .batch = (batch_), .qo = (qo_), .kv = (kv_), .page = (page_), .heads = (heads_)

static const struct shape named[] = {
	/* N(name, batch, query rows, keys, page size, heads), other members */
	{ N("one_key", 1, 1, 1, 1, 2), .flags = LSE },	/* reject() changes the arguments of this case */
	{ N("batch_0", 0, 1, 1, 16, 2) },
	{ N("no_rows", 3, 0, 20, 16, 2) },
	{ N("empty_requests", 6, 1, 1, 8, 2), .flags = LSE,
	  .qo_lens = LENS(0, 1, 2, 0, 40, 0), .kv_lens = LENS(9, 0, 33, 0, 47, 5) },
	{ N("empty_requests_in_chunks", 6, 1, 1, 8, 2), .chunk = 16, .flags = LSE,
	  .qo_lens = LENS(0, 1, 2, 0, 40, 0), .kv_lens = LENS(9, 0, 33, 0, 47, 5) },
	{ N("more_queries_than_keys", 2, 9, 3, 16, 4), .flags = LSE },
	{ N("more_queries_than_keys_in_chunks", 3, 9, 3, 16, 4), .chunk = 7,
	  .qo_lens = LENS(9, 4, 8), .kv_lens = LENS(3, 40, 5) },
	{ N("whole_prompt", 1, 70, 70, 16, 4), .flags = LSE },
	{ N("mixed_prefill_decode", 5, 1, 1, 16, 8),
	  .qo_lens = LENS(1, 37, 1, 17, 1), .kv_lens = LENS(33, 37, 1, 40, 212) },
	{ N("padded_graph", 6, 1, 1, 16, 16), .flags = PAGED_PADDED | LSE,
	  .qo_lens = LENS(1, 5, 1, 0, 0, 0), .kv_lens = LENS(31, 32, 33, 0, 0, 1) },
	{ N("padded_graph_in_chunks", 6, 1, 1, 16, 6), .chunk = 32, .flags = PAGED_PADDED | LSE,
	  .qo_lens = LENS(1, 5, 1, 0, 0, 0), .kv_lens = LENS(31, 32, 33, 0, 0, 1) },
	{ N("last_requests", 3, 5, 21, 16, 3), .flags = LAST | LSE },
	{ N("last_requests_in_chunks_f16", 3, 5, 21, 16, 3), .chunk = 10, .flags = LAST | LSE | F16 },
	/* a boundary between chunks before, at and after a request's first and last past key */
	{ N("chunk_of_past", 2, 3, 35, 16, 3), .chunk = 32, .flags = LSE },
	{ N("chunk_of_past_and_1", 2, 3, 35, 16, 3), .chunk = 33, .flags = LSE },
	{ N("chunk_of_past_less_1", 2, 3, 35, 16, 3), .chunk = 31, .flags = LSE },
	{ N("chunk_of_all_past", 2, 3, 35, 16, 3), .chunk = 64 },
	{ N("chunk_of_1", 2, 2, 8, 4, 2), .chunk = 1, .flags = LSE },
	{ N("chunks_of_128", 1, 40, 600, 16, 2), .chunk = 128 },
	/* more chunks than places for their results */
	{ N("chunks_75", 1, 3, 78, 16, 2), .chunk = 1, .flags = LSE },
	{ N("chunks_150_f16", 2, 2, 152, 16, 1), .chunk = 2, .flags = LSE | F16 },
	{ N("kv_127", 1, 2, 127, 16, 4) }, { N("kv_128", 1, 2, 128, 16, 4) },
	{ N("kv_129", 1, 2, 129, 16, 4) },
	{ N("kv_1000", 1, 3, 1000, 16, 2) },
	{ N("sharp", 2, 20, 90, 16, 4), .flags = SHARP },
	{ N("sharp_f16", 2, 20, 90, 16, 4), .flags = SHARP | F16 },
	{ N("sharp_in_chunks", 2, 20, 90, 16, 4), .chunk = 40, .flags = SHARP | LSE },
	{ N("duplicate_pages", 2, 20, 90, 8, 4), .flags = PAGED_DUPLICATE },
	{ N("high_page_ids", 2, 3, 20, 4, 2), .flags = PAGED_HIGH },
	{ N("no_spare_page", 3, 5, 40, 8, 4), .flags = PAGED_FULL },
	{ N("page_100", 2, 5, 203, 100, 4) }, { N("pages_of_41", 2, 3, 85, 41, 2) },
	{ N("heads_1", 2, 140, 170, 16, 1) }, { N("heads_3", 2, 40, 70, 16, 3) },
	{ N("heads_7", 2, 9, 70, 16, 7) },
	{ N("heads_16", 2, 9, 70, 16, 16) }, { N("heads_20", 2, 9, 70, 16, 20) },
	{ N("heads_65", 2, 2, 20, 16, 65) }, { N("heads_128", 2, 3, 20, 16, 128) },
	/* a share of the device; and not numbers */
	{ N("sms_1", 2, 5, 200, 16, 4), .sms = 1 },
	{ N("sms_24_in_chunks", 2, 17, 300, 16, 8), .chunk = 100, .sms = 24, .flags = F16 | PAGED_RAGGED },
	{ N("nan_in_a_query", 3, 2, 40, 16, 3), .nan = MLA_NAN_Q },
	{ N("nan_in_a_query_in_chunks_f16", 3, 9, 20, 16, 2), .chunk = 8, .nan = MLA_NAN_Q, .flags = F16 },
	{ N("nan_in_a_latent", 3, 1, 70, 16, 2), .nan = MLA_NAN_LATENT },
	{ N("nan_in_a_latent_in_chunks_f16", 3, 9, 20, 16, 2), .chunk = 8, .nan = MLA_NAN_LATENT,
	  .flags = F16 },
	{ N("nan_in_a_rotated_key", 3, 2, 40, 16, 3), .nan = MLA_NAN_ROTATED },
	{ N("keys_past_2e16", 1, 1, 65600, 64, 1), .flags = LATE | PAGED_CYCLE },
	{ N("rotated_parts", 1, 23, 1100, 16, 1), .flags = ROTATED },
	{ N("small_weights", 3, 2, 200, 16, 3), .flags = STEPS, .scale = 1 },
	{ N("small_weights_f16", 3, 2, 200, 16, 3), .flags = STEPS | F16, .scale = 1 },
	{ N("small_weights_in_chunks", 3, 2, 200, 16, 3), .chunk = 50, .flags = STEPS | LSE, .scale = 1 },
	{ N("padded_without_rows", 3, 0, 20, 16, 2), .flags = PAGED_PADDED },
	/* the last pages begin past 2^31 elements */
	{ N("far_pages", 2, 3, 40, 16, 2), .flags = PAGED_FAR },
	/* too large for host implementations */
	{ N("large_qo577_kv2048", 3, 577, 2048, 16, 16), .flags = DEVICE | PAGED_RAGGED | LSE },
	{ N("large_in_chunks", 3, 577, 2048, 16, 16), .chunk = 1024, .flags = DEVICE | PAGED_RAGGED | LSE },
	{ N("large_qo1024_f16", 1, 1024, 1024, 16, 16), .flags = DEVICE | F16 },
	{ N("large_mixed_h128", 9, 40, 3000, 16, 128), .flags = DEVICE | PAGED_RAGGED },
	/* bench rows */
	{ N("prefill_h16_b1_s1024_bf16", 1, 1024, 1024, 16, 16), .flags = BENCH | DEVICE },
	{ N("prefill_h16_b1_s4096_bf16", 1, 4096, 4096, 16, 16), .flags = BENCH | DEVICE },
	{ N("prefill_h16_b1_s8192_bf16", 1, 8192, 8192, 16, 16), .flags = BENCH | DEVICE },
	{ N("prefill_h128_b1_s4096_bf16", 1, 4096, 4096, 16, 128), .flags = BENCH | DEVICE },
	{ N("append_h16_b4_qo512_kv8192_bf16", 4, 512, 8192, 16, 16), .flags = BENCH | DEVICE },
	{ N("append_h16_b1_qo2048_kv32768_chunk8192_bf16", 1, 2048, 32768, 16, 16), .chunk = 8192,
	  .flags = BENCH | DEVICE },
};

/* The last cases. */
static const struct shape last[] = {
	{ N("whole_prompts_padded", 3, 1, 1, 16, 3), .flags = PAGED_PADDED | LSE | NO_PAST,
	  .qo_lens = LENS(9, 20, 1), .kv_lens = LENS(9, 20, 1) },
	{ N("heads_20_without_keys", 2, 2, 0, 16, 20), .flags = LSE, .kv_lens = LENS(0, 17) },
	{ N("batch_300", 300, 1, 2, 4, 1), .flags = PAGED_RAGGED | LSE },
	{ N("batch_300_in_chunks", 300, 1, 2, 4, 1), .chunk = 40, .flags = PAGED_RAGGED },
	{ N("lse_kv_1100", 1, 3, 1100, 16, 1), .flags = LSE },
	{ N("page_256", 1, 2, 300, 256, 1), .flags = LSE },
	{ N("rows_16_kv_512", 1, 16, 512, 16, 1), .flags = LSE },
	{ N("rows_64_kv_256_f16", 1, 64, 256, 16, 1), .flags = LSE | F16 },
	{ N("sms_3", 1, 3, 70, 16, 5), .flags = LSE, .sms = 3 },
	/* many keys of similar weight: errors of independent roundings cancel, others do not (bias.c) */
	{ N("even_weights", 1, 60, 700, 16, 1), .flags = LSE, .scale = 0.01f, .roundings = 5 },
	{ N("even_weights_in_chunks", 1, 60, 500, 16, 1), .flags = LSE | F16, .scale = 0.01f, .chunk = 200,
	  .roundings = 8 },
	{ N("limits_in_chunks", 1, 70, 570, 16, 1), .flags = LSE | F16 | LIMITS, .chunk = 200 },
};

#define NUM_GRID	24
#define NUM_PAIRS	35

/* Every two features occur together in at least one case. */
enum { PAIR_PAGE, PAIR_HEADS, PAIR_LENGTHS, PAIR_TABLES, PAIR_CHUNK, PAIR_SCALE, PAIR_DTYPE, PAIR_SMS,
       PAIR_LSE, PAIR_LAST, PAIR_EXACT };

static struct cairn_pairs pair_table = {
	.num_factors = 11, .levels = { 6, 5, 5, 4, 5, 3, 2, 2, 2, 2, 3 },
};

static void pair_at(int i, struct shape *s)
{
	static const int pages[] = { 16, 1, 32, 48, 64, 128 }, heads[] = { 1, 3, 5, 2, 6 };
	static const int chunks[] = { 0, 32, 7, 64, 1 };
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
		.kv_lens = lengths[level[PAIR_LENGTHS]].kv, .chunk = chunks[level[PAIR_CHUNK]],
		.equal = level[PAIR_EXACT] == 1 };
	s->flags = tables[level[PAIR_TABLES]] | (level[PAIR_DTYPE] ? F16 : 0) |
		   (level[PAIR_EXACT] == 0 ? RANDOM : 0) | (level[PAIR_LSE] ? LSE : 0) |
		   (level[PAIR_LAST] ? LAST : 0);
	s->scale = (float[]){ 0, 0.25f, 0.03f }[level[PAIR_SCALE]];
	s->sms = level[PAIR_SMS] ? 2 : 0;
}

#define FIRST_ENDS	((int)ARRAY_SIZE(named) + NUM_GRID + NUM_PAIRS + (int)ARRAY_SIZE(last))
#define NUM_ENDS	67

static const int ends_chunks[] = { 0, 63, 64, 65, 17 };

/* Keys are expanded for all heads, which costs most. */
static int ends_forbidden(const int8_t *level)
{
	const int k = level[ENDS_KEYS], h = level[ENDS_HEADS];

	return mla_ends_forbidden(level) || (k >= 0 && h >= 0 && mla_ends_keys[k] * mla_ends_heads[h] > 1100);
}

static struct cairn_pairs ends_table = {
	.num_factors = MLA_ENDS_FACTORS + 1, .levels = { MLA_ENDS_LEVELS, 5 },
	.forbidden = ends_forbidden,
};

#define FIRST_WIDE	(FIRST_ENDS + NUM_ENDS)
#define NUM_WIDE	12

/* more than a tile of rows of several heads: rows, heads, keys, type */
static struct cairn_pairs wide_table = { .num_factors = 4, .levels = { 4, 3, 3, 2 } };

static void wide_at(int i, struct shape *s)
{
	static const int rows[] = { 33, 63, 65, 129 }, heads[] = { 2, 3, 5 }, older[] = { 0, 16, 1 };
	const int8_t *level = cairn_pairs_row(&wide_table, i);

	*s = (struct shape){
		.ends = i + 1, .batch = 2, .qo = rows[level[0]], .kv = rows[level[0]] + older[level[2]],
		.heads = heads[level[1]], .page = 16, .flags = LSE | (level[3] ? F16 : 0),
	};
}

#define NUM_CASES	(FIRST_WIDE + NUM_WIDE)

static const struct cairn_draw_axis axes[] = {
	MLA_DRAW_SIZES,
	CAIRN_DRAW_SIZE(struct shape, chunk, 0, 1000, 1),
	MLA_DRAW_FORMS,
	CAIRN_DRAW_ONE_OF(struct shape, flags, 0, 0, LAST),
};

static int allowed(void *shape, int room)
{
	struct shape *s = shape;
	const int64_t listed = s->batch * ((int64_t)s->kv / s->page + 1);

	/* EXACT has integers that stay exact up to so many keys */
	s->pair &= s->kv <= 800;
	s->equal &= s->pair;
	s->chunk = s->chunk % 2 ? s->chunk : 0;
	return listed * s->page * 576 <= room * 500000 && s->heads <= 20 &&
	       (int64_t)s->batch * s->heads * (s->qo * (int64_t)(s->kv + 64) + 1000L * s->kv / 20) <=
	       room * 100000;
}

static const struct cairn_draw draws = {
	.shape_bytes = sizeof(struct shape), .axes = axes, .num_axes = ARRAY_SIZE(axes),
	.allowed = allowed, .many = 900,
};

static void shape_at(int index, struct shape *s)
{
	static const int heads[] = { 1, 8, 4, 16, 2 }, page[] = { 16, 1, 5, 64 }, qo[] = { 1, 3, 17, 33 };
	static const int chunk[] = { 0, 60, 23 };
	int i = index - (int)ARRAY_SIZE(named);

	if (i < 0) {
		*s = named[index];
		return;
	}
	if (index >= NUM_CASES) {
		cairn_draw_shape(&draws, index - NUM_CASES, s);
		return;
	}
	if (index >= FIRST_WIDE) {
		wide_at(index - FIRST_WIDE, s);
		return;
	}
	if (index >= FIRST_ENDS) {
		const int8_t *level = cairn_pairs_row(&ends_table, index - FIRST_ENDS);

		*s = (struct shape){ .ends = index - FIRST_ENDS + 1, MLA_ENDS_SHAPE(level),
				     .chunk = ends_chunks[level[MLA_ENDS_FACTORS]] };
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
		.batch = 1 + i % 3, .qo = qo[i % 4], .page = page[(i + i / 4) % 4], .heads = heads[i % 5],
		.chunk = chunk[i / 2 % 3],
		.flags = (i % 2 ? F16 : 0) | (i % 3 == 1 ? PAGED_RAGGED : 0) |
			 (i % 5 == 2 ? PAGED_PADDED : 0) | (i % 4 == 1 ? LSE : 0) |
			 (i % 7 == 3 ? SHARP : 0),
	};
	s->kv = s->qo + i * 17 % 150;
}

static void describe(int index, struct cairn_case *c)
{
	double pairs;
	struct shape s;

	shape_at(index, &s);
	if (s.pair)
		snprintf(c->name, sizeof(c->name), "pair_%d_p%d_h%d_c%d_%s%s%s", s.pair, s.page, s.heads,
			 s.chunk, s.flags & F16 ? "f16" : "bf16", s.flags & LSE ? "_lse" : "",
			 s.equal ? "_equal" : "");
	else if (s.ends)
		snprintf(c->name, sizeof(c->name), "ends_qo%d_kv%d_p%d_h%d_c%d_%s%s", s.qo, s.kv, s.page,
			 s.heads, s.chunk, s.flags & F16 ? "f16" : "bf16", s.flags & LSE ? "_lse" : "");
	else if (s.name)
		snprintf(c->name, sizeof(c->name), "%s", s.name);
	else
		snprintf(c->name, sizeof(c->name), "b%d_qo%d_kv%d_p%d_h%d_c%d_%s%s%s%s%s", s.batch, s.qo,
			 s.kv, s.page, s.heads, s.chunk, s.flags & F16 ? "f16" : "bf16",
			 s.flags & SHARP ? "_sharp" : "", s.flags & LSE ? "_lse" : "",
			 s.flags & PAGED_RAGGED ? "_ragged" : "", s.flags & PAGED_PADDED ? "_padded" : "");
	c->kinds = CAIRN_KIND_BIT(CAIRN_KIND_NORMAL);
	if (!(s.flags & DEVICE) && s.batch * s.qo * s.heads <= 300)	/* larger ones show no more */
		c->kinds |= CAIRN_KIND_BIT(CAIRN_KIND_POISON);
	if (s.pair)
		c->kinds = CAIRN_KIND_BIT(s.flags & RANDOM ? CAIRN_KIND_POISON : CAIRN_KIND_EXACT);
	c->bench = !!(s.flags & BENCH);
	c->device_only = !!(s.flags & DEVICE);
	c->roundings = s.roundings;
	c->far = !!(s.flags & PAGED_FAR);
	if (c->far || s.nan || s.ends || s.roundings || s.flags & (LATE | ROTATED) ||
	    (s.name && s.flags & LIMITS))
		c->kinds = CAIRN_KIND_BIT(CAIRN_KIND_NORMAL);
	/*
	 * operations of the attention only, as for mla_paged and attn_dense, without the product that makes
	 * keys
	 */
	pairs = (double)s.qo * s.kv - 0.5 * s.qo * (s.qo - 1.0);
	c->flops = 2.0 * s.batch * s.heads * pairs * (128 + 64 + 128);
	c->bytes = 2.0 * (s.batch * (s.kv * 576.0 + s.qo * s.heads * 320.0) + s.heads * 256.0 * 512);
}

/*
 * Row 0 of w passes on c[0], which chooses a key. Rows 48..63 make integers of a few terms that add up, and
 * rows 112..127 their opposites; equal elements of q make both cancel in the logit. The sums of all other key
 * rows cancel, and so do those of most value rows; the sums of a fourth of the value rows add up.
 */
static void fill_weights(struct cairn_op *op, int64_t heads, void *w, int dtype)
{
	for (int64_t h = 0; h < heads; h++)
		for (int r = 0; r < 256; r++) {
			int64_t at = (h * 256 + r) * 512;

			mla_fill_mirrored(op, w, dtype, at, 512, r >= 128 && r % 4 == 3 ? -1 : 1, 0x1p-4);
			if (r < 128)
				mla_set_pair(w, dtype, at, 512, r ? 0 : 1);
			for (int c = 0; r % 64 >= 48 && r < 128 && c < 512; c++) {
				int few = c % 256 >= 1 && c % 256 < 33;
				int sign = (c % 256 % 3 ? 1 : -1) * (c < 256 ? 1 : -1);
				double v = r < 64 ? (double)cairn_op_range(op, 1, 3) * sign :
						    -cairn_load(w, dtype, at - 64 * 512 + c);

				cairn_store(w, dtype, at + c, few ? v : 0);
			}
			for (int c = 1; r == 0 && c < 512; c++)
				cairn_store(w, dtype, at + c, 0);
		}
}

static void fill_exact(struct cairn_op *op, const struct shape *s, const struct paged *p)
{
	struct cairn_mla_prefill_args *a = op->args;
	void *q = (void *)a->q, *keys = a->kv.k_pages;

	for (int64_t i = 0; i < (int64_t)p->nnz * s->heads; i++) {
		mla_fill_mirrored(op, q, a->dtype, i * 192, 128, 1, 1);
		mla_set_pair(q, a->dtype, i * 192, 128, 1);
		mla_fill_mirrored(op, q, a->dtype, i * 192 + 128, 64, 1, 1);
	}
	fill_weights(op, s->heads, (void *)a->w_kv_b, a->dtype);
	for (int b = 0; b < s->batch; b++)
		for (int j = 0; j < p->kv_len[b]; j++) {
			int64_t at = paged_slot(p, b, j) * 576;

			mla_fill_mirrored(op, keys, a->dtype, at, 512, -1, 1);
			mla_set_pair(keys, a->dtype, at, 512,
				     s->equal ? 0 : j % 7 == 3 ? 120 - j / 7 * 2 : -100);
			mla_fill_mirrored(op, keys, a->dtype, at + 512, 64, -1, 1);
		}
	if (!s->equal)
		a->sm_scale = 64;
}

/*
 * Each row of the first request chooses another key: the first, the last, and those beside powers of two
 * from 16 on, where tiles, pages and chunks end. The rotated part of that key is 6 times that of the row's
 * query, a vector of signs; all other rotated parts are 0.
 */
static void fill_rotated(struct cairn_op *op, const struct paged *p)
{
	struct cairn_mla_prefill_args *a = op->args;
	int row = 0;

	for (int j = 0; j < p->kv_len[0]; j++) {
		int64_t at = paged_slot(p, 0, j) * 576 + 512, q = (int64_t)row * 192 + 128;
		int near = 16;

		while (near < j - 1)
			near *= 2;
		for (int r = 0; r < 64; r++)
			cairn_store(a->kv.k_pages, a->dtype, at + r, 0);
		if ((j && j < near - 1 && j + 1 < p->kv_len[0]) || row == p->qo_len[0])
			continue;
		for (int r = 0; r < 64; r++) {
			int sign = cairn_op_range(op, 0, 1) ? 1 : -1;

			cairn_store((void *)a->q, a->dtype, q + r, sign);
			cairn_store(a->kv.k_pages, a->dtype, at + r, 6 * sign);
		}
		row++;
	}
}

/* Returns the past keys of all requests. */
static int past_keys(const struct paged *p)
{
	int sum = 0;

	for (int b = 0; b < p->batch; b++)
		sum += p->kv_len[b] > p->qo_len[b] ? p->kv_len[b] - p->qo_len[b] : 0;
	return sum;
}

#define FIELD(f)	offsetof(struct cairn_mla_prefill_args, f)

static void setup(struct cairn_op *op)
{
	struct cairn_mla_prefill_args *a = op->args;
	struct mla_inputs inputs;
	struct paged p = { 0 };
	int64_t width;
	struct shape s;
	int pad = 0;
	void *x;

	shape_at(op->case_index, &s);
	p.batch = s.batch;
	p.page_size = s.page;
	p.flags = s.flags;
	p.pool = s.flags & PAGED_FAR ? (int)(((int64_t)1 << 31) / 576 / s.page) + 40 :
		 s.flags & PAGED_CYCLE ? 37 : 3000;
	if (s.flags & PAGED_PADDED)
		pad = 3;
	paged_lengths(op, &p, s.qo, s.kv, s.qo_lens, s.kv_lens, 0);
	paged_tables(op, &p, FIELD(qo_indptr), FIELD(kv));
	for (int b = 0; s.flags & LAST && b <= s.batch; b++)
		((int32_t *)a->qo_indptr)[b] += 7;
	a->kv.batch = s.batch;
	a->nnz_qo = p.nnz + pad;
	a->max_qo_len = p.max_qo + pad;
	a->nnz_past = s.flags & NO_PAST ? 0 : past_keys(&p) + 11 * pad;
	a->chunk_keys = s.chunk;
	a->kv.max_len = p.max_kv + 5 * pad;
	a->kv.num_pages = p.num_pages;
	a->kv.page_size = s.page;
	a->num_heads = s.heads;
	a->sms = s.sms;
	a->kv_lora_rank = 512;
	a->rope_dim = 64;
	a->nope_dim = a->v_dim = 128;
	a->dtype = s.flags & F16 ? CAIRN_F16 : CAIRN_BF16;
	a->sm_scale = s.scale > 0 ? s.scale : (s.flags & SHARP ? 4 : 1) * 0.0722f;
	width = (int64_t)s.heads * 192;
	x = cairn_in(op, FIELD(q), a->dtype, a->nnz_qo * width);
	cairn_fill_nan(x, a->dtype, 0, a->nnz_qo * width);	/* padding rows stay NaN */
	cairn_fill(op, x, a->dtype, p.nnz * width, 1);
	if (s.flags & PAGED_FAR) {
		paged_far(op, &p, FIELD(kv.k_pages), a->dtype, 576, 0);
	} else {
		x = cairn_in(op, FIELD(kv.k_pages), a->dtype, (int64_t)p.num_pages * s.page * 576);
		paged_fill(op, &p, x, a->dtype, 576);
	}
	/* this scale gives keys and values the magnitude of latents */
	width = (int64_t)s.heads * 256 * 512;
	x = cairn_in(op, FIELD(w_kv_b), a->dtype, width);
	cairn_fill(op, x, a->dtype, width, 1 / sqrt(512));
	inputs = (struct mla_inputs){ (void *)a->q, a->kv.k_pages, a->dtype, s.heads, &p };
	if (op->kind == CAIRN_KIND_EXACT)
		fill_exact(op, &s, &p);
	else if (s.flags & LIMITS)
		mla_fill_limits(&p, s.heads, a->dtype, (char *)a->q + 128 * 2, 192,
				(char *)a->kv.k_pages + 512 * 2, 576 * 2);
	if (s.flags & LATE)
		mla_fill_late(&inputs);
	if (s.flags & ROTATED)
		fill_rotated(op, &p);
	if (s.flags & STEPS)
		mla_fill_steps(op, &inputs);
	if (s.nan)
		mla_add_nan(&inputs, s.nan);
	cairn_out(op, FIELD(out), a->dtype, (int64_t)a->nnz_qo * s.heads * 128);
	cairn_shape(op, FIELD(out), { "row", a->nnz_qo }, { "head", s.heads }, { "dim", 128 });
	if (s.flags & LSE) {
		cairn_out(op, FIELD(lse), CAIRN_F32, (int64_t)a->nnz_qo * s.heads);
		cairn_shape(op, FIELD(lse), { "row", a->nnz_qo }, { "head", s.heads });
	}
}

static const char *reject(void *args, int i, int *want)
{
	struct cairn_mla_prefill_args *a = args;

	*want = i < 20 || i > 27 ? -EINVAL : -EOPNOTSUPP;
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
	case 17: a->nnz_past = -1; return "nnz_past_negative";
	case 18: a->chunk_keys = -1; return "chunk_keys_negative";
	case 19: a->lse = (float *)((char *)a->lse + 2); return "lse_misaligned";
	case 20: a->dtype = CAIRN_F32; return "dtype_f32";
	case 21: a->kv_lora_rank = 256; return "kv_lora_rank_256";
	case 22: a->rope_dim = 32; return "rope_dim_32";
	case 23: a->nope_dim = 64; return "nope_dim_64";
	case 24: a->v_dim = 64; return "v_dim_64";
	case 25: a->num_heads = 129; return "num_heads_129";
	case 26: a->nnz_past = 1 << 30; return "nnz_past_2e30";
	case 27: a->chunk_keys = 1 << 30; return "chunk_keys_2e30";
	case 28: a->sms = -1; return "sms_negative";
	}
	return NULL;
}

static int exact(const void *args, struct cairn_exact *e)
{
	return cairn_mla_prefill_exact(args, e);
}

static void pair_rows(struct cairn_test *t)
{
	cairn_pairs_check(t, &pair_table, NUM_PAIRS);
	cairn_pairs_check(t, &ends_table, NUM_ENDS);
	cairn_pairs_check(t, &wide_table, NUM_WIDE);
}

static const struct cairn_unit units[] = { { "pair_rows", pair_rows } };

const struct cairn_family cairn_mla_prefill_family = {
	.stage = "fused", .name = "mla_prefill",
	.op = offsetof(struct cairn_impl, mla_prefill),
	.workspace_op = offsetof(struct cairn_impl, mla_prefill_workspace),
	.args_size = sizeof(struct cairn_mla_prefill_args),
	.sms_field = offsetof(struct cairn_mla_prefill_args, sms),
	.workspace_field = FIELD(workspace), .refuses_small_workspace = 1,
	.num_cases = NUM_CASES, .draw = &draws,
	.units = units, .num_units = ARRAY_SIZE(units),
	.company = {
		.rows = FIELD(nnz_qo), .requests = FIELD(kv.batch), .indptr = FIELD(qo_indptr),
		.in = { FIELD(q) }, .out = { FIELD(out), FIELD(lse) }, .keys = FIELD(kv.indptr),
	},
	.describe = describe, .setup = setup, .exact = exact, .reject = reject,
	.cost_s = 180, .cheap_factor = 8,	/* the weights of one head cost more than 1 */
};
