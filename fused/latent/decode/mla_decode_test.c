// SPDX-License-Identifier: Apache-2.0
/*
 * mla_decode_test - a grid of ragged batches, named edges, large shapes, bench, every two features
 *
 * EXACT has integers with sums of up to 24 bits that cancel: elements of q_latent and of a key come in pairs,
 * half a vector apart, whose products are opposite. The logits that remain are 0, or so large for one key
 * that it has all the weight.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "conformance/harness.h"
#include "conformance/suite/draw.h"
#include "conformance/suite/pairs.h"
#include "fused/latent/decode/mla_decode.h"
#include "fused/attention/base/attn_lengths.h"
#include "fused/cache/paged_test.h"
#include "primitives/base/fp8.h"
#include "fused/latent/base/mla_draws.h"
#include "fused/latent/base/mla_ends.h"
#include "fused/latent/base/mla_inputs.h"
#include "fused/latent/base/mla_shapes.h"

#define FIELD(f)	offsetof(struct cairn_mla_decode_args, f)
#define DRAWN		1601	/* keys of 656 bytes that differ */
#define RANK		MLA_RANK
#define DIM		MLA_DIM

static const struct shape named[] = {
	/* N(name, batch, query rows, keys, page size, heads), other members */
	{ N("one_key", 1, 1, 1, 1, 2), .flags = LSE },	/* reject() changes the arguments of this case */
	{ N("batch_0", 0, 1, 1, 16, 2) },
	{ N("batch_0_padded", 0, 1, 1, 16, 2), .flags = PAGED_PADDED },	/* nothing is written */
	{ N("no_rows", 3, 0, 20, 16, 2) },
	{ N("padded_without_rows", 3, 0, 20, 16, 2), .flags = PAGED_PADDED | LSE },
	{ N("empty_requests", 6, 1, 1, 8, 2), .flags = LSE,
	  .qo_lens = LENS(0, 1, 2, 0, 4, 0), .kv_lens = LENS(9, 0, 33, 0, 47, 5) },
	{ N("more_queries_than_keys", 2, 4, 2, 16, 4), .flags = LSE },
	{ N("few_rows_of_many_heads", 3, 1, 1, 64, 128), .flags = LSE,
	  .qo_lens = LENS(4, 1, 3), .kv_lens = LENS(130, 64, 1) },
	{ N("padded_graph", 6, 1, 1, 16, 16), .flags = PAGED_PADDED | LSE,
	  .qo_lens = LENS(1, 4, 1, 0, 0, 0), .kv_lens = LENS(31, 32, 33, 0, 0, 1) },
	{ N("kv_63", 1, 2, 63, 64, 16) }, { N("kv_64", 1, 2, 64, 64, 16) }, { N("kv_65", 1, 2, 65, 64, 16) },
	{ N("kv_127_f16", 1, 1, 127, 16, 64), .flags = F16 }, { N("kv_128", 1, 1, 128, 16, 64) },
	{ N("kv_129", 1, 1, 129, 16, 128) }, { N("kv_191", 1, 1, 191, 8, 20) },
	{ N("kv_192", 1, 1, 192, 32, 20) }, { N("kv_193_f16", 1, 1, 193, 128, 20), .flags = F16 },
	{ N("kv_1000", 1, 3, 1000, 16, 3), .flags = LSE },
	{ N("sharp", 2, 2, 90, 16, 4), .flags = SHARP },
	{ N("sharp_f16", 2, 2, 90, 64, 4), .flags = SHARP | F16 | LSE },
	{ N("logits_of_minus_120", 2, 1, 192, 64, 16), .flags = UNDER | LSE, .scale = 0.0714f },
	{ N("logits_of_minus_120_f16", 2, 1, 65, 64, 16), .flags = UNDER | LSE | F16, .scale = 0.0714f },
	{ N("duplicate_pages", 2, 3, 90, 8, 4), .flags = PAGED_DUPLICATE },
	{ N("high_page_ids", 2, 3, 20, 4, 2), .flags = PAGED_HIGH },
	{ N("high_page_ids_64", 2, 3, 100, 64, 2), .flags = PAGED_HIGH },
	{ N("no_spare_page", 3, 3, 40, 8, 4), .flags = PAGED_FULL },
	{ N("page_100", 2, 3, 203, 100, 4) }, { N("page_24", 2, 2, 203, 24, 4) },
	{ N("pages_of_41", 2, 3, 85, 41, 2) }, { N("page_256", 2, 1, 300, 256, 16) },
	{ N("heads_1", 3, 4, 70, 16, 1) }, { N("heads_7", 2, 4, 70, 64, 7) },
	{ N("heads_65", 2, 2, 20, 16, 65) }, { N("heads_96", 1, 4, 45, 16, 96) },
	{ N("heads_128", 2, 3, 20, 64, 128) }, { N("heads_127_page_1", 1, 2, 70, 1, 127) },
	{ N("long_rows", 2, 40, 70, 64, 5), .flags = LSE },
	{ N("joined", 2, 2, 90, 64, 16), .flags = JOINED | LSE },
	{ N("joined_heads_128_f16", 2, 2, 90, 64, 128), .flags = JOINED | F16 },
	{ N("heads_20_without_keys", 2, 2, 0, 16, 20), .kv_lens = LENS(0, 17), .flags = LSE },
	{ N("batch_96_with_holes", 96, 1, 130, 16, 1), .kv_lens = LENS(ATTN_HOLES_96) },
	{ N("batch_2100", 2100, 1, 3, 4, 1), .flags = PAGED_RAGGED },
	{ N("keys_past_2e16", 1, 1, 65600, 64, 1), .flags = LATE | PAGED_CYCLE },
	{ N("last_key_decides_4097", 2, 1, 4097, 16, 1), .flags = LATE | LSE },
	{ N("last_key_decides_4161", 1, 1, 4161, 64, 2), .flags = LATE | F16 },
	{ N("small_weights", 3, 2, 200, 16, 3), .flags = STEPS | LSE, .scale = 1 },
	{ N("small_weights_f16", 3, 2, 200, 64, 3), .flags = STEPS | F16, .scale = 1 },
	{ N("far_pages", 2, 3, 40, 16, 2), .flags = PAGED_FAR },	/* begin past 2^32 elements */
	{ N("sms_1", 2, 3, 200, 16, 4), .sms = 1 }, { N("sms_1_heads_128", 2, 2, 200, 64, 128), .sms = 1 },
	{ N("sms_24", 2, 4, 300, 16, 8), .sms = 24, .flags = F16 | PAGED_RAGGED },
	{ N("sms_64_padded", 2, 3, 500, 64, 128), .sms = 64, .flags = PAGED_PADDED },
	/* not numbers */
	{ N("nan_in_a_query", 3, 2, 40, 16, 3), .nan = MLA_NAN_Q, .flags = LSE },
	{ N("nan_in_a_query_heads_128_f16", 3, 1, 40, 64, 128), .nan = MLA_NAN_Q, .flags = F16 },
	{ N("nan_in_a_latent", 3, 1, 70, 16, 2), .nan = MLA_NAN_LATENT, .flags = LSE },
	{ N("nan_in_a_latent_heads_128_f16", 3, 1, 40, 64, 128), .nan = MLA_NAN_LATENT, .flags = F16 },
	{ N("nan_in_a_rotated_key", 3, 2, 40, 16, 3), .nan = MLA_NAN_ROTATED },
	/* 8-bit keys */
	{ N("fp8", 2, 2, 90, 64, 16), .flags = FP8 | LSE },
	{ N("fp8_f16", 2, 1, 190, 16, 20), .flags = FP8 | F16 },
	{ N("fp8_kv_1000", 1, 1, 1000, 64, 4), .flags = FP8 | LSE },
	{ N("fp8_heads_128", 2, 1, 130, 64, 128), .flags = FP8 },
	{ N("fp8_page_1", 3, 3, 70, 1, 3), .flags = FP8 | PAGED_RAGGED },
	{ N("fp8_padded", 6, 1, 1, 16, 16), .flags = PAGED_PADDED | LSE | FP8,
	  .qo_lens = LENS(1, 4, 1, 0, 0, 0), .kv_lens = LENS(31, 32, 33, 0, 0, 1) },
	/* lists of slots */
	{ N("slots_1", 2, 1, 90, 64, 16), .slots = 1 },
	{ N("slots_63", 2, 2, 90, 64, 16), .slots = 63, .flags = LSE },
	{ N("slots_64_f16", 2, 1, 190, 16, 64), .slots = 64, .flags = F16 },
	{ N("slots_65_heads_128", 2, 1, 190, 64, 128), .slots = 65, .flags = LSE },
	{ N("slots_200_page_1", 3, 2, 300, 1, 3), .slots = 200 },
	{ N("slots_600", 1, 2, 300, 64, 20), .slots = 600, .flags = LSE },
	{ N("slots_of_no_key", 2, 2, 0, 64, 4), .slots = 70, .kv_lens = LENS(0, 90), .flags = LSE },
	{ N("slots_padded", 6, 1, 1, 16, 16), .flags = PAGED_PADDED | LSE, .slots = 40,
	  .qo_lens = LENS(1, 4, 1, 0, 0, 0), .kv_lens = LENS(31, 32, 33, 0, 0, 1) },
	{ N("slots_fp8", 2, 2, 190, 64, 16), .slots = 130, .flags = FP8 | LSE },
	{ N("slots_fp8_heads_128_f16", 2, 1, 90, 1, 128), .slots = 70, .flags = FP8 | F16 },
	{ N("slots_nan_in_a_query", 3, 2, 40, 16, 3), .nan = MLA_NAN_Q, .flags = LSE, .slots = 20 },
	{ N("slots_sms_3", 3, 2, 40, 16, 70), .sms = 3, .slots = 100 },
	/* too large for host implementations */
	{ N("large_h16", 3, 2, 5000, 64, 16), .flags = DEVICE | PAGED_RAGGED | LSE },
	{ N("large_h64_f16", 5, 1, 3000, 16, 64), .flags = DEVICE | PAGED_RAGGED | F16 },
	{ N("large_h128", 9, 3, 3000, 64, 128), .flags = DEVICE | PAGED_RAGGED | LSE },
	{ N("large_h128_rows", 2, 300, 2000, 16, 128), .flags = DEVICE | PAGED_RAGGED },
	{ N("large_b150_h128", 150, 1, 700, 64, 128), .flags = DEVICE | PAGED_RAGGED },
	{ N("large_fp8", 3, 2, 5000, 64, 16), .flags = DEVICE | PAGED_RAGGED | FP8 | LSE },
	{ N("large_slots", 3, 2, 5000, 64, 128), .flags = DEVICE | PAGED_RAGGED, .slots = 2048 },
	{ N("large_slots_fp8", 3, 2, 5000, 64, 16), .flags = DEVICE | PAGED_RAGGED | FP8, .slots = 2048 },
	/* bench rows */
	{ N("decode_h16_b1_kv1024_bf16", 1, 1, 1024, 64, 16), .flags = BENCH | DEVICE },
	{ N("decode_h16_b1_kv16384_bf16", 1, 1, 16384, 64, 16), .flags = BENCH | DEVICE },
	{ N("decode_h16_b16_kv4096_bf16", 16, 1, 4096, 64, 16), .flags = BENCH | DEVICE },
	{ N("decode_h16_b64_kv16384_bf16", 64, 1, 16384, 64, 16), .flags = BENCH | DEVICE },
	{ N("decode_h16_b64_kv16384_p16_bf16", 64, 1, 16384, 16, 16), .flags = BENCH | DEVICE },
	{ N("decode_h64_b64_kv16384_bf16", 64, 1, 16384, 64, 64), .flags = BENCH | DEVICE },
	{ N("decode_h128_b1_kv4096_bf16", 1, 1, 4096, 64, 128), .flags = BENCH | DEVICE },
	{ N("decode_h128_b16_kv4096_bf16", 16, 1, 4096, 64, 128), .flags = BENCH | DEVICE },
	{ N("decode_h128_b128_kv16384_bf16", 128, 1, 16384, 64, 128), .flags = BENCH | DEVICE },
	{ N("decode_h128_b128_kv16384_p16_bf16", 128, 1, 16384, 16, 128), .flags = BENCH | DEVICE },
	{ N("decode_h16_b64_qo2_kv4096_bf16", 64, 2, 4096, 64, 16), .flags = BENCH | DEVICE },
	{ N("decode_h16_b1_kv1024_fp8_bf16", 1, 1, 1024, 64, 16), .flags = BENCH | DEVICE | FP8 },
	{ N("decode_h16_b64_kv16384_fp8_bf16", 64, 1, 16384, 64, 16), .flags = BENCH | DEVICE | FP8 },
	{ N("decode_h128_b128_kv16384_fp8_bf16", 128, 1, 16384, 64, 128), .flags = BENCH | DEVICE | FP8 },
	{ N("slots_h128_b128_k2048_bf16", 128, 1, 4096, 64, 128), .flags = BENCH | DEVICE, .slots = 2048 },
	{ N("slots_h128_b128_k2048_fp8_bf16", 128, 1, 4096, 64, 128), .flags = BENCH | DEVICE | FP8,
	  .slots = 2048 },
	{ N("slots_h16_b8_k2048_bf16", 8, 1, 16384, 64, 16), .flags = BENCH | DEVICE, .slots = 2048 },
};

/* added later: the cases before them keep their numbers; up to 32 rows a request, products are transposed */
static const struct shape last[] = {
	{ N("heads_32", 2, 1, 130, 64, 32), .flags = LSE },
	{ N("heads_33", 2, 1, 130, 64, 33), .flags = LSE },
	{ N("heads_16_rows_2", 3, 2, 200, 16, 16), .flags = LSE | F16 },
	{ N("heads_16_rows_3", 3, 3, 200, 16, 16), .flags = LSE },
	{ N("heads_8_rows_4", 2, 4, 129, 8, 8) }, { N("heads_31_page_5", 2, 1, 150, 5, 31), .flags = LSE },
	{ N("heads_32_sharp", 2, 1, 90, 64, 32), .flags = SHARP | LSE },
	{ N("heads_32_small_weights", 3, 1, 200, 16, 32), .flags = STEPS | LSE, .scale = 1 },
	{ N("heads_32_under", 2, 1, 193, 64, 32), .flags = UNDER | LSE, .scale = 0.0714f },
	{ N("heads_32_nan_in_a_query", 3, 1, 70, 16, 32), .nan = MLA_NAN_Q, .flags = LSE },
	{ N("heads_32_fp8", 2, 1, 190, 64, 32), .flags = FP8 | LSE },
	{ N("heads_32_slots", 2, 3, 190, 64, 32), .slots = 100, .flags = LSE },
	{ N("large_h32", 5, 1, 3000, 64, 32), .flags = DEVICE | PAGED_RAGGED | LSE },
	{ N("large_h16_b150", 150, 1, 700, 64, 16), .flags = DEVICE | PAGED_RAGGED | LSE },
	{ N("decode_h32_b64_kv16384_bf16", 64, 1, 16384, 64, 32), .flags = BENCH | DEVICE },
	{ N("latent_stride_alone", 2, 2, 70, 16, 5), .flags = LATENT_GAP | LSE },
	{ N("rope_stride_alone", 2, 2, 70, 16, 5), .flags = ROPE_GAP | LSE },
	{ N("unequal_strides_f16", 2, 1, 70, 64, 16), .flags = LATENT_GAP | ROPE_GAP | F16 },
	{ N("unequal_strides_fp8_heads_128", 1, 2, 70, 64, 128), .flags = LATENT_GAP | ROPE_GAP | FP8 },
	{ N("slots_one_row", 1, 1, 90, 64, 3), .slots = 40, .flags = LSE },
	{ N("slots_without_lists", 2, 1, 90, 64, 3), .slots = 20, .flags = LSE | NO_LISTS },
	{ N("slots_far_pages", 2, 1, 40, 16, 2), .slots = 20, .flags = PAGED_FAR },
	{ N("fp8_far_pages", 2, 2, 40, 16, 2), .flags = PAGED_FAR | FP8 | LSE },
	{ N("far_rows", 1, 1, 40, 16, 3), .flags = FAR_ROWS | LSE },
	{ N("page_512", 1, 2, 600, 512, 2), .flags = LSE },
	/* many keys of similar weight: errors of independent roundings cancel, others do not (bias.c) */
	{ N("even_weights", 3, 1, 1100, 64, 16), .flags = LSE, .scale = 0.01f, .roundings = 4 },
	{ N("fp8_even_weights_f16", 3, 1, 700, 64, 16), .flags = LSE | F16 | FP8, .scale = 0.01f,
	  .roundings = 4 },
	{ N("limits_4133", 1, 2, 4133, 64, 4), .flags = LSE | LIMITS },
	{ N("limits_2117_fp8", 1, 1, 2117, 64, 4), .flags = LSE | F16 | FP8 | LIMITS },
	{ N("slots_2056", 1, 2, 500, 64, 2), .slots = 2056, .flags = LSE },
	/* as many requests as SMs have room for in pairs, and keys for two tasks that share them */
	{ N("large_b66_h65", 66, 1, 513, 64, 65), .flags = DEVICE | PAGED_RAGGED | PAGED_PADDED | LSE },
	{ N("large_b66_h128_f16", 66, 1, 640, 128, 128), .flags = DEVICE | F16 | STEPS, .scale = 1 },
	/* pairs of CTAs convert the keys for each other */
	{ N("large_fp8_b66_h65", 66, 1, 600, 16, 65),
	  .flags = DEVICE | PAGED_RAGGED | PAGED_PADDED | LSE | FP8 },
	{ N("large_fp8_b66_h128_f16", 66, 1, 577, 64, 128), .flags = DEVICE | F16 | FP8 | LSE },
	{ N("large_slots_fp8_b66_h128", 66, 1, 700, 64, 128), .slots = 600,
	  .flags = DEVICE | PAGED_RAGGED | FP8 | LSE },
	{ N("large_slots_fp8_b40_rows_2_h128_f16", 40, 2, 700, 1, 128), .slots = 513,
	  .flags = DEVICE | F16 | FP8 },
	/* up to 16 rows, the products have half as many columns */
	{ N("heads_15_page_7", 2, 1, 260, 7, 15), .flags = LSE },
	{ N("heads_17", 2, 1, 130, 64, 17), .flags = LSE },
	{ N("heads_4_rows_4_f16", 2, 4, 390, 16, 4), .flags = LSE | F16 },
	{ N("heads_16_fp8", 2, 1, 330, 16, 16), .flags = FP8 | LSE },
	{ N("heads_17_fp8_f16", 2, 1, 190, 64, 17), .flags = FP8 | F16 | LSE },
	{ N("slots_fp8_heads_16", 2, 3, 190, 1, 16), .slots = 77, .flags = FP8 | LSE },
};

#define FAR_STRIDE	(((int64_t)1 << 31) + 64)
#define NUM_GRID	36
#define NUM_PAIRS	36

/* Every two features occur together in at least one case. */
enum { PAIR_PAGE, PAIR_HEADS, PAIR_LENGTHS, PAIR_TABLES, PAIR_SCALE, PAIR_DTYPE, PAIR_SMS, PAIR_DATA,
       PAIR_FP8, PAIR_SLOTS, PAIR_LSE, PAIR_JOINED };

/* 8-bit keys cannot hold these integers. */
static int no_pair(const int8_t *level)
{
	return level[PAIR_FP8] == 1 && level[PAIR_DATA] > 0;
}

static struct cairn_pairs pair_table = {
	.num_factors = 12, .levels = { 6, 6, 5, 4, 3, 2, 2, 3, 2, 3, 2, 2 }, .forbidden = no_pair,
};

static void pair_at(int i, struct shape *s)
{
	static const int pages[] = { 64, 16, 1, 8, 48, 128 }, heads[] = { 16, 1, 64, 3, 20, 128 };
	static const unsigned tables[] = { 0, PAGED_PADDED, PAGED_SPARE, PAGED_DUPLICATE };
	/* decode, speculative decode, mixed, append, requests with more queries than keys */
	static const struct {
		int batch, qo[4], kv[4];
	} lengths[] = {
		{ 4, { 1, 1, 1, 1 }, { 1, 97, 0, 65 } },
		{ 3, { 2, 4, 3 }, { 34, 64, 130 } },
		{ 3, { 1, 5, 1 }, { 130, 37, 17 } },
		{ 1, { 11 }, { 49 } },
		{ 4, { 3, 0, 2, 1 }, { 2, 9, 0, 65 } },
	};
	const int8_t *level = cairn_pairs_row(&pair_table, i);

	*s = (struct shape){
		.pair = i + 1, .page = pages[level[PAIR_PAGE]], .heads = heads[level[PAIR_HEADS]],
		.batch = lengths[level[PAIR_LENGTHS]].batch, .qo_lens = lengths[level[PAIR_LENGTHS]].qo,
		.kv_lens = lengths[level[PAIR_LENGTHS]].kv, .equal = level[PAIR_DATA] == 1 };
	s->flags = tables[level[PAIR_TABLES]] | (level[PAIR_DTYPE] ? F16 : 0) |
		   (level[PAIR_DATA] == 0 ? RANDOM : 0) | (level[PAIR_FP8] ? FP8 : 0) |
		   (level[PAIR_LSE] ? LSE : 0) | (level[PAIR_JOINED] ? JOINED : 0);
	s->scale = (float[]){ 0, 0.25f, 0.03f }[level[PAIR_SCALE]];
	s->slots = (int[]){ 0, 17, 75 }[level[PAIR_SLOTS]];
	s->sms = level[PAIR_SMS] ? 2 : 0;
}

#define FIRST_ENDS	((int)ARRAY_SIZE(named) + NUM_GRID + NUM_PAIRS + (int)ARRAY_SIZE(last))
#define NUM_ENDS	70

enum { ENDS_FP8 = MLA_ENDS_FACTORS, ENDS_PLACE };

/* Keys of 8 bits cost several times as much. */
static int ends_forbidden(const int8_t *level)
{
	const int r = level[ENDS_ROWS], k = level[ENDS_KEYS];

	return mla_ends_forbidden(level) ||
	       (level[ENDS_FP8] == 1 && r >= 0 && k >= 0 && mla_ends_rows[r] * mla_ends_keys[k] > 1500);
}

static struct cairn_pairs ends_table = {
	.num_factors = MLA_ENDS_FACTORS + 2, .levels = { MLA_ENDS_LEVELS, 2, 4 },
	.forbidden = ends_forbidden,
};

static void ends_at(int i, struct shape *s)
{
	static const unsigned places[] = { 0, JOINED, LATENT_GAP, ROPE_GAP };
	const int8_t *level = cairn_pairs_row(&ends_table, i);

	*s = (struct shape){ .ends = i + 1, MLA_ENDS_SHAPE(level) };
	s->flags |= (level[ENDS_FP8] ? FP8 : 0) | places[level[ENDS_PLACE]];
}

#define FIRST_SLOTS	(FIRST_ENDS + NUM_ENDS)
#define NUM_SLOTS	40

/* lists of slots at the ends of tiles: length; heads; type of keys and of queries; query rows; page size */
static struct cairn_pairs slots_table = { .num_factors = 5, .levels = { 8, 5, 4, 3, 3 } };

static void slots_at(int i, struct shape *s)
{
	static const int slots[] = { 1, 15, 17, 63, 65, 127, 129, 191 };
	const int8_t *level = cairn_pairs_row(&slots_table, i);

	*s = (struct shape){
		.ends = i + 1, .batch = 2, .qo = 1 + level[3], .kv = 140, .slots = slots[level[0]],
		.heads = mla_ends_heads[level[1]], .page = mla_ends_pages[level[4]],
		.flags = LSE | (level[2] % 2 ? F16 : 0) | (level[2] / 2 ? FP8 : 0),
	};
}

#define NUM_CASES	(FIRST_SLOTS + NUM_SLOTS)

static const struct cairn_draw_axis axes[] = {
	MLA_DRAW_SIZES,
	CAIRN_DRAW_SIZE(struct shape, slots, 0, 5000, 1),
	MLA_DRAW_FORMS,
	CAIRN_DRAW_ONE_OF(struct shape, flags, 0, 0, FP8),
	CAIRN_DRAW_ONE_OF(struct shape, flags, 0, 0, JOINED, LATENT_GAP, ROPE_GAP, LATENT_GAP | ROPE_GAP),
};

/* Half of the cases have lists of slots. Keys of 8 bits cannot hold the integers of EXACT. */
static int allowed(void *shape, int room)
{
	struct shape *s = shape;
	const int64_t listed = s->batch * ((int64_t)s->kv / s->page + 1);

	/* EXACT has integers that stay exact up to so many keys */
	s->slots = s->slots % 2 ? s->slots : 0;
	s->pair &= s->kv <= 800 && !(s->flags & FP8);
	s->equal &= s->pair;
	return listed * s->page * DIM <= room * 1000000 &&
	       (int64_t)s->batch * s->qo * s->heads * ((s->slots ? s->slots : s->kv) + 64) <= room * 20000;
}

static const struct cairn_draw draws = {
	.shape_bytes = sizeof(struct shape), .axes = axes, .num_axes = ARRAY_SIZE(axes),
	.allowed = allowed, .many = 2300,
};

static void shape_at(int index, struct shape *s)
{
	static const int heads[] = { 16, 1, 8, 64, 2 }, page[] = { 64, 16, 1, 5 }, qo[] = { 1, 3, 2, 4 };
	int i = index - (int)ARRAY_SIZE(named);

	if (i < 0) {
		*s = named[index];
		return;
	}
	if (index >= NUM_CASES) {
		cairn_draw_shape(&draws, index - NUM_CASES, s);
		return;
	}
	if (index >= FIRST_SLOTS) {
		slots_at(index - FIRST_SLOTS, s);
		return;
	}
	if (index >= FIRST_ENDS) {
		ends_at(index - FIRST_ENDS, s);
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
	shape_grid(s, i, heads, page, qo);
	s->flags |= i % 4 == 1 ? LSE : 0;
}

static void name_of(const struct shape *s, char *name, size_t len)
{
	char slots[16] = "";

	if (s->slots)
		snprintf(slots, sizeof(slots), "_s%d", s->slots);
	if (s->pair)
		snprintf(name, len, "pair_%d_p%d_h%d_%s%s%s%s%s", s->pair, s->page, s->heads,
			 s->flags & F16 ? "f16" : "bf16", s->flags & FP8 ? "_fp8" : "", slots,
			 s->flags & LSE ? "_lse" : "", s->equal ? "_equal" : "");
	else if (s->ends)
		snprintf(name, len, "ends_qo%d_kv%d_p%d_h%d_%s%s%s%s", s->qo, s->kv, s->page, s->heads,
			 s->flags & F16 ? "f16" : "bf16", s->flags & FP8 ? "_fp8" : "", slots,
			 s->flags & LSE ? "_lse" : "");
	else
		shape_name(s, name, len);
}

static void describe(int index, struct cairn_case *c)
{
	double keys, seen;
	struct shape s;

	shape_at(index, &s);
	name_of(&s, c->name, sizeof(c->name));
	shape_kinds(&s, c);
	seen = s.slots ? s.slots : s.kv - 0.5 * (s.qo - 1.0);
	keys = s.slots ? (double)s.slots * s.qo : s.kv;		/* read from memory */
	c->flops = 2.0 * s.batch * s.qo * s.heads * seen * (DIM + RANK);
	c->bytes = s.batch * (keys * (s.flags & FP8 ? CAIRN_MLA_FP8_BYTES : 2 * DIM) +
			      2.0 * s.qo * s.heads * (DIM + RANK) + 4.0 * s.slots * s.qo);
	c->sparse = s.slots > 0;
}

/*
 * q c is +-c[0] alone, since the other products cancel in pairs. It is the same for all keys, or largest for
 * one of them.
 */
static void fill_exact(struct cairn_op *op, const struct shape *s, const struct paged *p)
{
	struct cairn_mla_decode_args *a = op->args;
	void *latent = (void *)a->q_latent, *rope = (void *)a->q_rope, *keys = a->kv.k_pages;

	for (int64_t i = 0; i < (int64_t)p->nnz * s->heads; i++) {
		mla_fill_mirrored(op, latent, a->dtype, i * cairn_mla_latent_stride(a), RANK, 1, 4);
		mla_set_pair(latent, a->dtype, i * cairn_mla_latent_stride(a), RANK, 1);
		mla_fill_mirrored(op, rope, a->dtype, i * cairn_mla_rope_stride(a), 64, 1, 4);
	}
	for (int b = 0; b < s->batch; b++)
		for (int j = 0; j < p->kv_len[b]; j++) {
			int64_t at = paged_slot(p, b, j) * DIM;

			mla_fill_mirrored(op, keys, a->dtype, at, RANK, -1, s->equal ? 32 : 4);
			mla_set_pair(keys, a->dtype, at, RANK,
				     s->equal ? 0 : j % 7 == 3 ? 120 - j / 7 * 2 : -100);
			mla_fill_mirrored(op, keys, a->dtype, at + RANK, 64, -1, 4);
		}
	if (!s->equal)
		a->sm_scale = 64;
}

/* Makes the product of the rotated parts -1680, so that all logits are about -120. */
static void fill_under(const struct shape *s, const struct paged *p, struct cairn_mla_decode_args *a)
{
	for (int64_t i = 0; i < (int64_t)p->nnz * s->heads; i++)
		for (int c = 0; c < 64; c++)
			cairn_store((void *)a->q_rope, a->dtype, i * cairn_mla_rope_stride(a) + c, 5.125);
	for (int b = 0; b < s->batch; b++)
		for (int j = 0; j < p->kv_len[b]; j++)
			for (int c = 0; c < 64; c++)
				cairn_store(a->kv.k_pages, a->dtype, paged_slot(p, b, j) * DIM + RANK + c,
					    -5.125);
}

/*
 * Fills a key of 656 bytes. Its 512 elements are about normally distributed, and each group has another
 * scale.
 */
static void fill_8bit_key(struct cairn_op *op, uint8_t *key, int dtype)
{
	float x[RANK], scale;

	cairn_fill(op, x, CAIRN_F32, RANK, 1);
	for (int g = 0; g < 4; g++) {
		scale = (float)cairn_op_range(op, 100, 1000) * (g == 1 ? -0.0001f : 0.0001f);
		memcpy(key + RANK + 4 * g, &scale, sizeof(scale));
		for (int l = g * CAIRN_MLA_FP8_GROUP; l < (g + 1) * CAIRN_MLA_FP8_GROUP; l++)
			key[l] = cairn_narrow_e4m3(x[l] / scale);
	}
	cairn_fill(op, key + RANK + 16, dtype, 64, 1);
}

/* Fills the key with this number. As in cairn_fill(), there are DRAWN different ones, which repeat. */
static void fill_8bit_nth(struct cairn_op *op, uint8_t *drawn, int64_t n, uint8_t *key, int dtype)
{
	uint8_t *from = drawn + n % DRAWN * CAIRN_MLA_FP8_BYTES;

	if (n < DRAWN)
		fill_8bit_key(op, from, dtype);
	memcpy(key, from, CAIRN_MLA_FP8_BYTES);
}

static void fill_8bit(struct cairn_op *op, const struct paged *p, uint8_t *pages, int dtype)
{
	int64_t slots = (int64_t)p->num_pages * p->page_size, n = 0;
	uint8_t *drawn = malloc((size_t)DRAWN * CAIRN_MLA_FP8_BYTES);

	if (!drawn)
		abort();
	memset(pages, 0xff, (size_t)slots * CAIRN_MLA_FP8_BYTES);	/* NaN in each part of a key */
	for (int64_t i = 0; i < slots && op->kind != CAIRN_KIND_POISON && slots < 100000; i++)
		fill_8bit_nth(op, drawn, n++, pages + i * CAIRN_MLA_FP8_BYTES, dtype);
	for (int b = 0; b < p->batch; b++)
		for (int j = 0; j < p->kv_len[b]; j++)
			fill_8bit_nth(op, drawn, n++, pages + paged_slot(p, b, j) * CAIRN_MLA_FP8_BYTES,
				      dtype);
	free(drawn);
}

/* Declares the pages of PAGED_FAR, with keys of 656 bytes in the listed ones. */
static void far_8bit(struct cairn_op *op, const struct paged *p)
{
	struct cairn_mla_decode_args *a = op->args;
	const int64_t page = (int64_t)p->page_size * CAIRN_MLA_FP8_BYTES;
	uint8_t *x = cairn_in_far(op, FIELD(kv.k_pages), CAIRN_U8, p->num_pages * page);

	cairn_touch(op, x, 0, page);
	for (int i = p->kv_indptr[0]; i < p->kv_indptr[p->batch]; i++) {
		int64_t at = p->kv_indices[i] * page;

		cairn_touch(op, x, at, page);
		for (int j = 0; j < p->page_size; j++)
			fill_8bit_key(op, x + at + (int64_t)j * CAIRN_MLA_FP8_BYTES, a->dtype);
	}
}

/*
 * Lists, for each row, slots of its request's keys, with repetitions if there are too few keys. About one
 * number in eight stands for no key, as do all numbers of a request without keys.
 */
static void fill_slots(struct cairn_op *op, const struct shape *s, const struct paged *p)
{
	struct cairn_mla_decode_args *a = op->args;
	int32_t *slots = cairn_in(op, FIELD(slots), CAIRN_I32, (int64_t)a->nnz_qo * s->slots);
	int64_t row = 0;

	a->num_slots = s->slots;
	for (int64_t i = 0; i < (int64_t)a->nnz_qo * s->slots; i++)
		slots[i] = -1;
	for (int b = 0; b < p->batch; b++)
		for (int i = 0; i < p->qo_len[b]; i++, row++)
			for (int j = 0; j < s->slots && p->kv_len[b]; j++) {
				int key = (int)cairn_op_range(op, 0, p->kv_len[b] - 1);

				if (s->flags & NO_LISTS)
					slots[row * s->slots + j] = key;
				else if (cairn_op_range(op, 0, 7) || s->slots == 1)
					slots[row * s->slots + j] = (int32_t)paged_slot(p, b, key);
				else if (j % 2)
					slots[row * s->slots + j] = -1 - (int32_t)cairn_op_range(op, 0, 9);
			}
}

/* Declares and fills one of the two parts of the queries with a stride beyond 2^31. */
static void far_queries(struct cairn_op *op, size_t field, const char *name, int dtype, int64_t rows, int dim)
{
	char *x = cairn_far_buffer(op, field, name, CAIRN_ROLE_IN, dtype, (rows - 1) * FAR_STRIDE + dim);

	for (int64_t i = 0; i < rows; i++) {
		cairn_touch(op, x, i * FAR_STRIDE, dim);
		cairn_fill(op, x + i * FAR_STRIDE * 2, dtype, dim, 1);
	}
}

static void set_up_queries(struct cairn_op *op, const struct shape *s, const struct paged *p)
{
	struct cairn_mla_decode_args *a = op->args;
	int64_t heads = (int64_t)a->nnz_qo * s->heads, own = (int64_t)p->nnz * s->heads;
	int width = s->flags & JOINED ? DIM : RANK + (s->flags & LATENT_GAP ? 16 : 0);
	int rope = 64 + (s->flags & ROPE_GAP ? 24 : 0);
	void *x;

	if (s->flags & FAR_ROWS) {
		far_queries(op, FIELD(q_latent), "q_latent", a->dtype, heads, RANK);
		far_queries(op, FIELD(q_rope), "q_rope", a->dtype, heads, 64);
		a->q_latent_stride = a->q_rope_stride = FAR_STRIDE;
		return;
	}
	x = cairn_in(op, FIELD(q_latent), a->dtype, heads * width);
	cairn_fill_nan(x, a->dtype, 0, heads * width);		/* padding rows stay NaN */
	cairn_fill(op, x, a->dtype, own * width, 1);
	if (s->flags & JOINED) {
		cairn_within(op, FIELD(q_rope), FIELD(q_latent), RANK * 2);
		a->q_latent_stride = a->q_rope_stride = DIM;
		return;
	}
	for (int64_t i = 0; i < own; i++)
		cairn_fill_nan(x, a->dtype, i * width + RANK, width - RANK);
	x = cairn_in(op, FIELD(q_rope), a->dtype, heads * rope);
	cairn_fill_nan(x, a->dtype, 0, heads * rope);
	cairn_fill(op, x, a->dtype, own * rope, 1);
	for (int64_t i = 0; i < own; i++)
		cairn_fill_nan(x, a->dtype, i * rope + 64, rope - 64);
	a->q_latent_stride = s->flags & LATENT_GAP ? width : 0;
	a->q_rope_stride = s->flags & ROPE_GAP ? rope : 0;
}

static void set_up_keys(struct cairn_op *op, const struct shape *s, const struct paged *p)
{
	struct cairn_mla_decode_args *a = op->args;
	int64_t slots = (int64_t)p->num_pages * s->page;
	void *x;

	if (s->flags & PAGED_FAR && s->flags & FP8) {
		far_8bit(op, p);
	} else if (s->flags & PAGED_FAR) {
		paged_far(op, p, FIELD(kv.k_pages), a->dtype, DIM, 0);
	} else if (s->flags & FP8) {
		x = cairn_in(op, FIELD(kv.k_pages), CAIRN_U8, slots * CAIRN_MLA_FP8_BYTES);
		if (!op->only_sizes)
			fill_8bit(op, p, x, a->dtype);
	} else {
		x = cairn_in(op, FIELD(kv.k_pages), a->dtype, slots * DIM);
		paged_fill(op, p, x, a->dtype, DIM);
	}
}

/* Sets an element of the second request to NaN. */
static void add_nan(const struct shape *s, const struct paged *p, struct cairn_mla_decode_args *a)
{
	int64_t head = (int64_t)(p->qo_len[0] + p->qo_len[1]) * s->heads - 1;
	int64_t key = paged_slot(p, 1, p->kv_len[1] - 1) * DIM;

	if (s->nan == MLA_NAN_Q)
		cairn_fill_nan((void *)a->q_rope, a->dtype, head * cairn_mla_rope_stride(a) + 63, 1);
	else
		cairn_fill_nan(a->kv.k_pages, a->dtype, key + (s->nan == MLA_NAN_LATENT ? 511 : 575), 1);
}

/* LATE: aligns keys from 2^16 on, or the last key, with the query. STEPS: as mla_fill_steps(). */
static void bend_keys(struct cairn_op *op, const struct shape *s, const struct paged *p)
{
	struct cairn_mla_decode_args *a = op->args;
	int most = a->dtype == CAIRN_F16 ? 9 : 30;
	int late = p->kv_len[0] > 65536 ? 65536 : p->kv_len[0] - 1;

	for (int j = late; s->flags & LATE && j < p->kv_len[0]; j++)
		for (int c = 0; c < 64; c++)
			cairn_store(a->kv.k_pages, a->dtype, paged_slot(p, 0, j) * DIM + RANK + c,
				    4 * cairn_load(a->q_rope, a->dtype, c));
	if (!(s->flags & STEPS))
		return;
	for (int64_t i = 0; i < (int64_t)p->nnz * s->heads; i++) {
		for (int c = 0; c < RANK; c++)
			cairn_store((void *)a->q_latent, a->dtype, i * RANK + c, 0);
		for (int c = 0; c < 64; c++)
			cairn_store((void *)a->q_rope, a->dtype, i * 64 + c, c == 0);
	}
	for (int b = 0; b < p->batch; b++)
		for (int j = 0; j < p->kv_len[b]; j++) {
			int64_t at = paged_slot(p, b, j) * DIM;
			int step = mla_step_of(op, b, j, p->kv_len[b], most);

			for (int c = 0; c < RANK; c++)
				cairn_store(a->kv.k_pages, a->dtype, at + c,
					    exp(step) * cairn_load(a->kv.k_pages, a->dtype, at + c));
			cairn_store(a->kv.k_pages, a->dtype, at + RANK, -step);
		}
}

static void set_up_scalars(struct cairn_mla_decode_args *a, const struct shape *s, const struct paged *p)
{
	shape_view(s, p, &a->kv);
	a->nnz_qo = p->nnz + shape_pad(s);
	a->max_qo_len = p->max_qo + shape_pad(s);
	a->num_heads = s->heads;
	a->sms = s->sms;
	a->kv_lora_rank = RANK;
	a->rope_dim = 64;
	a->dtype = s->flags & F16 ? CAIRN_F16 : CAIRN_BF16;
	a->kv_fp8 = !!(s->flags & FP8);
	a->sm_scale = shape_scale(s);
	if (s->flags & NO_LISTS)
		a->kv.max_len = 0;
}

/* Declares qo_indptr and a pool without lists of pages. */
static void rows_alone(struct cairn_op *op, struct paged *p)
{
	int32_t *qo_indptr = cairn_in(op, FIELD(qo_indptr), CAIRN_I32, p->batch + 1);

	qo_indptr[0] = 0;
	for (int b = 0; b < p->batch; b++)
		qo_indptr[b + 1] = qo_indptr[b] + p->qo_len[b];
	p->num_pages = (p->max_kv + p->page_size - 1) / p->page_size;
}

static void setup(struct cairn_op *op)
{
	struct cairn_mla_decode_args *a = op->args;
	struct paged p;
	struct shape s;

	shape_at(op->case_index, &s);
	shape_lengths(op, &s, &p);
	if (s.flags & NO_LISTS)
		rows_alone(op, &p);
	else
		paged_tables(op, &p, FIELD(qo_indptr), FIELD(kv));
	set_up_scalars(a, &s, &p);
	set_up_queries(op, &s, &p);
	set_up_keys(op, &s, &p);
	if (s.slots)
		fill_slots(op, &s, &p);
	if (op->kind == CAIRN_KIND_EXACT)
		fill_exact(op, &s, &p);
	else if (s.flags & LIMITS && !s.slots)
		mla_fill_limits(&p, s.heads, a->dtype, (void *)a->q_rope, cairn_mla_rope_stride(a),
				(char *)a->kv.k_pages + (s.flags & FP8 ? RANK + 16 : RANK * 2),
				s.flags & FP8 ? CAIRN_MLA_FP8_BYTES : DIM * 2);
	if (s.flags & UNDER)
		fill_under(&s, &p, a);
	if (s.flags & (LATE | STEPS))
		bend_keys(op, &s, &p);
	if (s.nan)
		add_nan(&s, &p, a);
	cairn_out(op, FIELD(out), a->dtype, (int64_t)a->nnz_qo * s.heads * RANK);
	cairn_shape(op, FIELD(out), { "row", a->nnz_qo }, { "head", s.heads }, { "dim", RANK });
	if (s.flags & LSE) {
		cairn_out(op, FIELD(lse), CAIRN_F32, (int64_t)a->nnz_qo * s.heads);
		cairn_shape(op, FIELD(lse), { "row", a->nnz_qo }, { "head", s.heads });
	}
}

static int relist(void *args)
{
	const struct cairn_mla_decode_args *a = args;
	int32_t *slots = (int32_t *)(uintptr_t)a->slots;
	int changed = 0;

	if (!slots)
		changed = paged_relist(&a->kv, a->qo_indptr);
	for (int64_t i = 0; slots && i < a->nnz_qo; i++) {
		changed |= slots[i * a->num_slots] >= 0;
		slots[i * a->num_slots] = -1;
	}
	return paged_drop_row(a->qo_indptr, a->kv.batch) || changed;
}

static const char *reject(void *args, int i, int *want)
{
	struct cairn_mla_decode_args *a = args;

	*want = i < 21 ? -EINVAL : -EOPNOTSUPP;
	switch (i) {
	case 0: a->size = 8; return "size_too_small";
	case 1: a->out = NULL; return "out_null";
	case 2: a->q_latent = NULL; return "q_latent_null";
	case 3: a->q_rope = NULL; return "q_rope_null";
	case 4: a->kv.k_pages = NULL; return "pages_null";
	case 5: a->qo_indptr = NULL; return "qo_indptr_null";
	case 6: a->kv.indptr = NULL; return "kv_indptr_null";
	case 7: a->kv.indices = NULL; return "kv_indices_null";
	case 8: a->kv.last_page_len = NULL; return "kv_last_page_len_null";
	case 9: a->out = (char *)a->out + 2; return "out_misaligned";
	case 10: a->lse = (float *)((char *)a->lse + 2); return "lse_misaligned";
	case 11: a->kv.batch = -1; return "batch_negative";
	case 12: a->nnz_qo = -1; return "nnz_qo_negative";
	case 13: a->kv.max_len = -1; return "max_kv_len_negative";
	case 14: a->kv.page_size = 0; return "page_size_0";
	case 15: a->num_heads = 0; return "num_heads_0";
	case 16: a->sm_scale = INFINITY; return "sm_scale_inf";
	case 17: a->sms = -1; return "sms_negative";
	case 18: a->q_latent_stride = 516; return "q_latent_stride_not_a_multiple_of_8";
	case 19: a->q_rope_stride = 32; return "rows_of_q_rope_overlap";
	case 20: a->kv_fp8 = 2; return "kv_fp8_2";
	case 21: a->dtype = CAIRN_F32; return "dtype_f32";
	case 22: a->kv_lora_rank = 256; return "kv_lora_rank_256";
	case 23: a->rope_dim = 32; return "rope_dim_32";
	case 24: a->num_heads = 129; return "num_heads_129";
	case 25: a->num_slots = CAIRN_MLA_MAX_SLOTS + 1; return "num_slots_above_2e20";
	}
	return NULL;
}

static int exact(const void *args, struct cairn_exact *e)
{
	return cairn_mla_decode_exact(args, e);
}

static int peer_exact(const void *args, struct cairn_exact *e)
{
	return cairn_mla_decode_peer_exact(args, e);
}

static void pair_rows(struct cairn_test *t)
{
	cairn_pairs_check(t, &pair_table, NUM_PAIRS);
	cairn_pairs_check(t, &ends_table, NUM_ENDS);
	cairn_pairs_check(t, &slots_table, NUM_SLOTS);
}

/* Two keys of equal weight with latents 1 and -1: a peer that rounds parts of them may err by u more. */
static void peer_bound(struct cairn_test *t)
{
	static uint16_t pages[2 * DIM], q[DIM];
	static double val[2][RANK], bound[2][RANK];
	const int32_t qo[] = { 0, 1 }, pages_of[] = { 0, 1 }, page = 0, len = 2;
	struct cairn_exact ours = { .val = val[0], .bound = bound[0] };
	struct cairn_exact peer = { .val = val[1], .bound = bound[1] };
	const struct cairn_mla_decode_args a = {
		.size = sizeof(a), .out = val, .q_latent = q, .q_rope = q + RANK, .qo_indptr = qo,
		.kv = { .k_pages = pages, .indptr = pages_of, .indices = &page, .last_page_len = &len,
			.batch = 1, .num_pages = 1, .page_size = 2, .max_len = 2 },
		.nnz_qo = 1, .max_qo_len = 1, .num_heads = 1, .kv_lora_rank = RANK, .rope_dim = DIM - RANK,
		.dtype = CAIRN_BF16, .sm_scale = 1,
	};

	for (int l = 0; l < RANK; l++) {
		pages[l] = cairn_double_to_bf16(1);
		pages[DIM + l] = cairn_double_to_bf16(-1);
	}
	EXPECT(t, cairn_mla_decode_exact(&a, &ours) == 0);
	EXPECT(t, cairn_mla_decode_peer_exact(&a, &peer) == 0);
	for (int l = 0; l < RANK; l++) {
		EXPECT(t, val[0][l] == 0 && val[1][l] == 0);
		EXPECT(t, fabs(bound[1][l] - bound[0][l] - cairn_dtype_roundoff(CAIRN_BF16)) < 1e-12);
	}
}

static const struct cairn_unit units[] = { { "pair_rows", pair_rows }, { "peer_bound", peer_bound } };

const struct cairn_family cairn_mla_decode_family = {
	.stage = "fused", .name = "mla_decode",
	.op = offsetof(struct cairn_impl, mla_decode),
	.workspace_op = offsetof(struct cairn_impl, mla_decode_workspace),
	.args_size = sizeof(struct cairn_mla_decode_args),
	.sms_field = FIELD(sms), .workspace_field = FIELD(workspace),
	.num_cases = NUM_CASES, .draw = &draws,
	.units = units, .num_units = ARRAY_SIZE(units),
	.company = {
		.rows = FIELD(nnz_qo), .requests = FIELD(kv.batch), .indptr = FIELD(qo_indptr),
		.in = { FIELD(q_latent), FIELD(q_rope) }, .out = { FIELD(out), FIELD(lse) },
		.keys = FIELD(kv.indptr),
	},
	.describe = describe, .setup = setup, .relist = relist, .exact = exact,
	.peer_exact = peer_exact, .reject = reject,
	.cost_s = 60, .cheap_factor = 8,	/* a key of one head costs 1088 products */
};
