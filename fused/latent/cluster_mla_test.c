// SPDX-License-Identifier: Apache-2.0
/*
 * cluster_mla_test - every cluster size on and off chip, a grid of shapes, named edge cases, bench rows
 *
 * EXACT makes every rounding exact: x of one magnitude, sparse weights of small integers, rotation by 0, and
 * logits so far apart that the softmax selects the largest; sums have up to 22 bits. EXTREME changes logits
 * or values in one of seven ways. A large part common to all logits comes from one exact element of q and of
 * r, so that it cancels exactly. Positions are independent of lengths. The slot of the new token holds old
 * numbers, or NaN with POISON.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "conformance/harness.h"
#include "conformance/suite/draw.h"
#include "conformance/suite/pairs.h"
#include "fused/latent/cluster_mla.h"
#include "fused/attention/base/attn_stairs.h"
#include "fused/cache/paged_test.h"
#include "primitives/rows/rmsnorm.h"

enum {
	F16 = PAGED_FLAGS, OFFCHIP = F16 << 1, IN_PLACE = F16 << 2,
	PREFIX = F16 << 3,		/* all requests share the first pages of request 0 */
	BENCH = F16 << 4, DEVICE = F16 << 5,
	MEAN = F16 << 6,		/* kind NORMAL, with enough elements for bias.c */
	ROTATED = F16 << 7,		/* kind EXACT, but one key is rotated, so that its r is not exact */
};

/* The ways in which EXTREME changes logits or values. */
enum { BY_INDEX, EQUAL, DOMINANT, NEGATIVE, POSITIVE, LARGE, TINY, NUM_BENDS, MINOR = NUM_BENDS, STAIRS };

struct shape {
	const char *name;		/* NULL: derived from the shape */
	/* lora: q_lora_rank; kv: keys of each request; page: slots of a page; cluster: cluster_size */
	int heads, hidden, lora, batch, kv, page, cluster;
	unsigned flags;
	int bend;			/* with kind EXTREME; BY_INDEX: chosen by the case index */
	const int *kv_lens;		/* [batch], replaces kv; may be NULL */
	int sms;
	int pair;			/* number of a pair case, or 0 */
	int ends;			/* number of the case among the ends of tiles, or 0 */
	double eps, size;		/* eps, or 0 for 1e-6; deviation of x, or 0 for 1 */
	float scale;			/* sm_scale, or 0 for that of heads of 192 */
};

#define FIELD(f)	offsetof(struct cairn_cluster_mla_args, f)
#define LENS(...)	(const int[]){ __VA_ARGS__ }
#define N(name_, heads_, hidden_, lora_, batch_, kv_, page_, cluster_) \
	.name = name_, .heads = heads_, .hidden = hidden_, .lora = lora_, .batch = batch_, .kv = kv_, \
	.page = page_, .cluster = cluster_

static const struct shape named[] = {
	/* N(name, heads, hidden, q_lora_rank, batch, keys, page size, cluster_size), other members */
	{ N("one_key", 8, 64, 0, 1, 1, 1, 0) },
	{ N("one_key_lora", 8, 64, 64, 2, 1, 16, 3), .flags = F16 },
	{ N("batch_0", 8, 64, 0, 0, 1, 16, 0) },
	{ N("two_keys_page_1", 8, 64, 0, 1, 2, 1, 0) },
	{ N("v2_lite_heads", 16, 256, 0, 1, 500, 16, 0) },
	{ N("v2_lite_hidden", 16, 2048, 0, 1, 17, 16, 0) },
	{ N("v2_lite_batch_16", 16, 128, 0, 16, 17, 16, 0), .flags = PAGED_RAGGED },
	{ N("v3_heads", 128, 64, 192, 1, 17, 16, 0) },
	{ N("v3_heads_f16_batch_2", 128, 64, 64, 2, 15, 64, 0), .flags = F16 },
	{ N("v3_heads_cluster_2", 128, 64, 64, 1, 33, 16, 2) },
	{ N("lora_1536", 8, 64, 1536, 1, 17, 16, 0) },
	{ N("lora_1088_hidden_1088", 8, 1088, 1088, 2, 17, 16, 0) },
	{ N("heads_24", 24, 192, 0, 2, 17, 16, 0) },
	{ N("heads_40_hidden_320", 40, 320, 64, 1, 33, 16, 0) },
	{ N("hidden_64_cluster_16", 8, 64, 64, 3, 65, 16, 16), .flags = PAGED_RAGGED },
	{ N("in_place", 8, 128, 0, 3, 65, 16, 0), .flags = PAGED_RAGGED | IN_PLACE },
	{ N("in_place_f16_offchip", 16, 128, 64, 2, 65, 16, 4), .flags = IN_PLACE | OFFCHIP | F16 },
	{ N("shared_prefix", 8, 128, 0, 3, 65, 16, 0), .flags = PREFIX, .kv_lens = LENS(60, 65, 49) },
	{ N("padded_graph", 8, 128, 0, 5, 1, 16, 0), .flags = PAGED_PADDED | IN_PLACE,
		.kv_lens = LENS(33, 0, 1, 17, 0) },
	{ N("padded_first_request_empty", 16, 64, 64, 3, 1, 16, 5), .flags = PAGED_PADDED | IN_PLACE | F16,
		.kv_lens = LENS(0, 33, 16) },
	{ N("lengths_around_pages", 8, 64, 0, 8, 1, 16, 0), .kv_lens = LENS(1, 2, 15, 16, 17, 63, 64, 65) },
	{ N("lengths_around_pages_f16", 8, 64, 64, 8, 1, 64, 6),
		.kv_lens = LENS(65, 64, 63, 17, 16, 15, 2, 1), .flags = F16 },
	{ N("no_spare_page", 8, 64, 0, 3, 40, 8, 0), .flags = PAGED_FULL },
	{ N("page_1000", 8, 64, 0, 2, 500, 1000, 0) },
	{ N("high_page_ids", 8, 64, 0, 2, 40, 4, 0), .flags = PAGED_HIGH },
	{ N("kv_500_f16", 8, 128, 0, 2, 500, 16, 0), .flags = F16 },
	{ N("kv_500_page_1", 8, 128, 0, 1, 500, 1, 8) },
	{ N("kv_500_page_3_offchip", 8, 128, 64, 1, 500, 3, 0), .flags = OFFCHIP },
	{ N("logits_equal", 8, 64, 0, 2, 500, 16, 0), .bend = EQUAL },
	{ N("logits_equal_f16", 8, 64, 64, 1, 500, 16, 0), .bend = EQUAL, .flags = F16 },
	{ N("logits_one_dominates", 8, 64, 64, 2, 97, 16, 0), .bend = DOMINANT },
	{ N("logits_below_minus_200", 8, 64, 0, 2, 97, 16, 0), .bend = NEGATIVE },
	{ N("logits_below_minus_200_f16", 16, 64, 64, 2, 97, 16, 7), .bend = NEGATIVE, .flags = F16 },
	{ N("logits_above_200", 8, 64, 0, 2, 97, 16, 0), .bend = POSITIVE },
	{ N("values_near_largest", 8, 64, 0, 2, 97, 16, 0), .bend = LARGE },
	{ N("values_near_largest_f16", 8, 64, 64, 2, 97, 16, 0), .bend = LARGE, .flags = F16 },
	{ N("values_tiny", 8, 64, 0, 2, 97, 16, 0), .bend = TINY },
	{ N("values_subnormal_f16", 8, 64, 64, 2, 97, 16, 0), .bend = TINY, .flags = F16 },
	/* batches of 9 to 16, which have a separate kernel: teams, unused rows, n that does not fit */
	{ N("batch_9_cluster_3", 16, 128, 0, 9, 300, 16, 3), .flags = PAGED_RAGGED },
	{ N("batch_13_hidden_1088", 8, 1088, 64, 13, 33, 16, 0), .flags = F16 },
	{ N("batch_16_hidden_2112", 8, 2112, 0, 16, 17, 16, 0) },
	{ N("padded_batch_10", 16, 64, 0, 10, 1, 16, 0), .flags = PAGED_PADDED | IN_PLACE,
		.kv_lens = LENS(33, 0, 1, 17, 0, 97, 64, 65, 0, 2) },
	/* too large for host implementations */
	{ N("large_batch_12_cluster_2", 16, 1088, 0, 12, 3000, 64, 2), .flags = DEVICE | PAGED_RAGGED },
	{ N("large_v3_heads_batch_16", 128, 1024, 512, 16, 1500, 64, 0), .flags = DEVICE },
	{ N("large_v3_heads_batch_16_cluster_4", 128, 1024, 512, 16, 700, 16, 4), .flags = DEVICE | F16 },
	{ N("large_v2_lite_b3_kv4099", 16, 2048, 0, 3, 4099, 16, 0), .flags = DEVICE | PAGED_RAGGED },
	{ N("large_v2_lite_b16_page_1_f16", 16, 2048, 0, 16, 999, 1, 0),
		.flags = DEVICE | PAGED_RAGGED | F16 },
	{ N("large_kv_33000", 16, 512, 0, 1, 33000, 64, 0), .flags = DEVICE },
	{ N("large_kv_131072", 16, 512, 0, 1, 131072, 16, 0), .flags = DEVICE },
	{ N("large_v3_b8", 128, 7168, 1536, 8, 777, 16, 0), .flags = DEVICE | PAGED_RAGGED },
	{ N("large_hidden_16384_lora_4096", 8, 16384, 4096, 2, 65, 16, 0), .flags = DEVICE },
	{ N("large_v3_offchip_cluster_4", 128, 1024, 512, 16, 200, 16, 4), .flags = DEVICE | OFFCHIP },
	/* bench rows: bytes are those of the weights and of the latent cache, read once */
	{ N("dsv2lite_b1_kv1024", 16, 2048, 0, 1, 1024, 16, 0), .flags = BENCH | DEVICE },
	{ N("dsv2lite_b1_kv2048", 16, 2048, 0, 1, 2048, 16, 0), .flags = BENCH | DEVICE },
	{ N("dsv2lite_b1_kv4096", 16, 2048, 0, 1, 4096, 16, 0), .flags = BENCH | DEVICE },
	{ N("dsv2lite_b1_kv8192", 16, 2048, 0, 1, 8192, 16, 0), .flags = BENCH | DEVICE },
	{ N("dsv2lite_b1_kv16384", 16, 2048, 0, 1, 16384, 16, 0), .flags = BENCH | DEVICE },
	{ N("dsv2lite_b16_kv4096", 16, 2048, 0, 16, 4096, 16, 0), .flags = BENCH | DEVICE },
	{ N("dsv3_b1_kv1024", 128, 7168, 1536, 1, 1024, 16, 0), .flags = BENCH | DEVICE },
	{ N("dsv3_b1_kv4096", 128, 7168, 1536, 1, 4096, 16, 0), .flags = BENCH | DEVICE },
};

/* a share of the device, and other cases that were added later */
static const struct shape with_sms[] = {
	{ N("sms_1", 8, 64, 0, 2, 33, 16, 0), .sms = 1 },
	{ N("sms_24_lora", 16, 128, 64, 3, 65, 16, 0), .sms = 24, .flags = F16 },
	{ N("sms_64_batch_16", 16, 128, 0, 16, 17, 16, 0), .sms = 64, .flags = PAGED_RAGGED },
	{ N("sms_24_cluster_5", 8, 64, 0, 2, 200, 16, 5), .sms = 24 },
	/* the last pages begin past 2^32 elements */
	{ N("far_pages", 8, 64, 0, 2, 40, 16, 0), .flags = PAGED_FAR },
	/* x is so small that the mean error of out is the error of a */
	{ N("mean_error_batch_16", 8, 512, 0, 16, 3, 16, 0), .flags = MEAN, .size = 0.05 },
};

/* The last cases. */
static const struct shape last[] = {
	{ N("page_without_a_key", 8, 64, 0, 4, 1, 8, 0), .flags = PAGED_HELD, .kv_lens = LENS(0, 17, 0, 1) },
	{ N("page_without_a_key_f16", 8, 64, 64, 3, 1, 16, 4), .flags = PAGED_HELD | IN_PLACE | F16,
		.kv_lens = LENS(33, 0, 0) },
	{ N("no_request_has_a_key", 8, 64, 0, 2, 1, 8, 0), .kv_lens = LENS(0, 0) },
	{ N("padded_one_request", 8, 64, 0, 1, 33, 16, 0), .flags = PAGED_PADDED },
	{ N("padded_one_request_cluster_3", 8, 64, 64, 1, 50, 16, 3), .flags = PAGED_PADDED | F16 },
	{ N("lengths_around_tiles", 8, 64, 0, 6, 1, 16, 0), .kv_lens = LENS(128, 129, 256, 257, 512, 513) },
	{ N("lengths_around_tiles_f16", 8, 64, 0, 3, 1, 64, 4), .flags = F16,
		.kv_lens = LENS(1024, 1025, 384) },
	{ N("lora_4096", 8, 64, 4096, 1, 17, 16, 0) },
	{ N("hidden_16384", 8, 16384, 64, 1, 3, 16, 0) },
	/* many P, each 1e-3 of the largest or subnormal in f16, whose sum matters */
	{ N("logits_minor", 8, 64, 0, 2, 500, 16, 0), .bend = MINOR },
	{ N("logits_minor_f16", 8, 64, 64, 2, 500, 16, 2), .bend = MINOR, .flags = F16 },
	{ N("rotated_exact", 8, 64, 0, 16, 1, 16, 0), .flags = ROTATED },
	{ N("rotated_exact_f16", 8, 128, 64, 8, 1, 16, 3), .flags = ROTATED | F16 },
	/*
	 * So many keys that a common error of all logits becomes visible. The scale lies nearly half an ulp
	 * of dtype above a power of two.
	 */
	{ N("mean_error_of_logits", 8, 1024, 0, 8, 200, 16, 0), .flags = MEAN, .size = 0.05,
		.scale = 0.0625f * 1.0038f },
	{ N("mean_error_of_logits_f16", 8, 1024, 64, 8, 200, 16, 0), .flags = MEAN | F16, .size = 0.05,
		.scale = 0.0625f * 1.00048f },
	/* so many keys of nearly equal P that a common error of all P becomes visible */
	{ N("mean_error_of_p", 8, 1024, 0, 16, 40, 16, 0), .flags = MEAN, .size = 0.01, .scale = 0.01f },
	{ N("mean_error_of_p_f16", 8, 1024, 0, 16, 40, 16, 0), .flags = MEAN | F16, .size = 0.01,
		.scale = 0.01f },
	{ N("stairs", 8, 64, 0, 8, 300, 16, 0), .bend = STAIRS },
	{ N("stairs_f16_cluster_2", 8, 64, 64, 8, 300, 16, 2), .bend = STAIRS, .flags = F16 },
	{ N("stairs_batch_16", 8, 64, 0, 16, 200, 16, 0), .bend = STAIRS },
	{ N("v3_heads_batch_16", 128, 64, 64, 16, 5, 16, 0), .flags = PAGED_RAGGED },
	/* x has the size of the root of the smallest eps; that of the first request is 0 */
	{ N("eps_smallest", 8, 64, 0, 3, 20, 16, 0), .eps = CAIRN_EPS_MIN, .size = 0x1p-63 },
	{ N("eps_smallest_lora", 8, 128, 64, 2, 20, 16, 2), .eps = CAIRN_EPS_MIN, .size = 0x1p-64 },
};

#define NUM_LAST	((int)ARRAY_SIZE(last))
#define NUM_SMS		((int)ARRAY_SIZE(with_sms))
#define NUM_NAMED	((int)ARRAY_SIZE(named))
#define NUM_CLUSTERS	32	/* cluster sizes 1..16, on and off chip */
#define NUM_GRID	36
#define NUM_PAIRS	30

/* Every two features occur together in at least one case. */
enum {
	PAIR_PAGE, PAIR_CLUSTER, PAIR_EPS, PAIR_LENGTHS, PAIR_HIDDEN, PAIR_LORA, PAIR_HEADS, PAIR_TABLES,
	PAIR_SIZE, PAIR_PLACE, PAIR_DTYPE, PAIR_CHIP
};

static struct cairn_pairs pair_table = {
	.num_factors = 12, .levels = { 6, 5, 4, 3, 3, 3, 2, 3, 2, 2, 2, 2 },
};

static void pair_at(int i, struct shape *s)
{
	static const int pages[] = { 16, 1, 32, 48, 64, 128 }, clusters[] = { 0, 1, 3, 5, 16 };
	static const int widths[] = { 64, 128, 448 }, ranks[] = { 0, 64, 192 };
	static const double eps[] = { 1e-6, 1e-12, 1e-3, 1 };
	static const unsigned tables[] = { 0, PAGED_PADDED, PAGED_FULL };
	static const struct {
		int batch, kv[10];
	} lengths[] = {
		{ 2, { 33, 65 } },
		{ 3, { 17, 0, 1 } },
		{ 9, { 2, 5, 1, 3, 1, 17, 1, 1, 4 } },
	};
	const int8_t *level = cairn_pairs_row(&pair_table, i);

	*s = (struct shape){
		.pair = i + 1, .page = pages[level[PAIR_PAGE]], .cluster = clusters[level[PAIR_CLUSTER]],
		.hidden = widths[level[PAIR_HIDDEN]], .lora = ranks[level[PAIR_LORA]],
		.heads = level[PAIR_HEADS] ? 16 : 8, .batch = lengths[level[PAIR_LENGTHS]].batch,
		.kv_lens = lengths[level[PAIR_LENGTHS]].kv, .eps = eps[level[PAIR_EPS]],
	};
	s->kv = s->kv_lens[0];
	s->size = level[PAIR_SIZE] ? sqrt(s->eps) : 1;		/* so small that eps decides */
	s->flags = tables[level[PAIR_TABLES]] | (level[PAIR_DTYPE] ? F16 : 0) |
		   (level[PAIR_PLACE] ? IN_PLACE : 0) | (level[PAIR_CHIP] ? OFFCHIP : 0);
}

#define FIRST_ENDS	(NUM_NAMED + NUM_CLUSTERS + NUM_GRID + NUM_SMS + NUM_PAIRS + NUM_LAST)
#define NUM_ENDS	30

/* sizes at the ends of tiles (ends.h): requests, keys, page size, q_lora_rank, cluster_size, type */
static struct cairn_pairs ends_table = { .num_factors = 6, .levels = { 5, 6, 4, 2, 4, 2 } };

static void ends_at(int i, struct shape *s)
{
	static const int batches[] = { 1, 3, 8, 9, 16 }, keys[] = { 17, 33, 63, 65, 127, 129 };
	static const int pages[] = { 16, 64, 1, 32 }, clusters[] = { 0, 1, 3, 16 };
	const int8_t *level = cairn_pairs_row(&ends_table, i);

	*s = (struct shape){
		.ends = i + 1, .batch = batches[level[0]], .kv = keys[level[1]], .page = pages[level[2]],
		.heads = 8, .hidden = 64, .lora = level[3] ? 64 : 0, .cluster = clusters[level[4]],
		.flags = level[5] ? F16 : 0,
	};
}

#define NUM_CASES	(FIRST_ENDS + NUM_ENDS)

static const struct cairn_draw_axis axes[] = {
	CAIRN_DRAW_SIZE(struct shape, batch, 1, 16, 1),
	CAIRN_DRAW_SIZE(struct shape, kv, 1, 2000, 1),
	CAIRN_DRAW_SIZE(struct shape, page, 1, 300, 1),
	CAIRN_DRAW_SIZE(struct shape, heads, 8, 128, 8),
	CAIRN_DRAW_SIZE(struct shape, hidden, 64, 1024, 64),
	CAIRN_DRAW_SIZE(struct shape, lora, 0, 512, 64),
	CAIRN_DRAW_SIZE(struct shape, cluster, 0, 16, 1),
	CAIRN_DRAW_ONE_OF(struct shape, sms, 0, 0, 0, 24),
	CAIRN_DRAW_ONE_OF(struct shape, flags, 0, F16),
	CAIRN_DRAW_ONE_OF(struct shape, flags, 0, 0, IN_PLACE),
	CAIRN_DRAW_ONE_OF(struct shape, flags, 0, OFFCHIP),
	CAIRN_DRAW_ONE_OF(struct shape, flags, 0, PAGED_RAGGED),
	CAIRN_DRAW_ONE_OF(struct shape, flags, 0, PAGED_PADDED, PAGED_FULL),
};

static int allowed(void *shape, int room)
{
	const struct shape *s = shape;

	return s->heads * (s->hidden + s->lora + 256) <= room * 8000 &&
	       (int64_t)s->batch * s->kv * s->heads <= room * 8000 &&
	       (int64_t)s->batch * (s->kv / s->page + 1) * s->page <= room * 1000;
}

static const struct cairn_draw draws = {
	.shape_bytes = sizeof(struct shape), .axes = axes, .num_axes = ARRAY_SIZE(axes),
	.allowed = allowed, .many = 500,
};

static void shape_at(int index, struct shape *s)
{
	static const int heads[] = { 8, 16, 8, 32, 8 }, hidden[] = { 64, 128, 256, 192, 64, 448, 128 };
	static const int batch[] = { 1, 2, 3, 1, 8, 2, 1, 16 }, kv[] = { 1, 2, 15, 16, 17, 63, 64, 65, 97 };
	static const int pages[] = { 16, 1, 64, 3 };
	int i = index - NUM_NAMED;

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
	if (i >= NUM_CLUSTERS + NUM_GRID + NUM_SMS + NUM_PAIRS) {
		*s = last[i - NUM_CLUSTERS - NUM_GRID - NUM_SMS - NUM_PAIRS];
		return;
	}
	if (i >= NUM_CLUSTERS + NUM_GRID + NUM_SMS) {
		pair_at(i - NUM_CLUSTERS - NUM_GRID - NUM_SMS, s);
		return;
	}
	if (i >= NUM_CLUSTERS + NUM_GRID) {
		*s = with_sms[i - NUM_CLUSTERS - NUM_GRID];
		return;
	}
	memset(s, 0, sizeof(*s));
	s->page = pages[i % 4];
	if (i < NUM_CLUSTERS) {
		s->heads = i % 2 ? 8 : 16;
		s->hidden = hidden[i % 2];
		s->lora = i % 3 ? 0 : 64 * (1 + i % 2);
		s->batch = 1 + i % 3;
		s->kv = 60 + i;
		s->cluster = 1 + i / 2;
		s->flags = (i % 2 ? OFFCHIP : 0) | (i % 4 < 2 ? F16 : 0);
	} else {
		i -= NUM_CLUSTERS;
		s->heads = heads[i % 5];
		s->hidden = hidden[i % 7];
		s->lora = i % 4 == 1 ? 64 : i % 4 == 2 ? 192 : 0;
		s->batch = batch[(i + i / 8) % 8];
		s->kv = kv[i % 9];
		s->flags = (i / 2 % 2 ? F16 : 0) | (i % 7 == 3 ? IN_PLACE : 0) | (i % 6 == 5 ? OFFCHIP : 0);
	}
	s->flags |= i % 3 ? PAGED_RAGGED : 0;
}

static void describe(int index, struct cairn_case *c)
{
	double weights, keys;
	struct shape s;

	shape_at(index, &s);
	if (s.pair)
		snprintf(c->name, sizeof(c->name), "pair_%d_p%d_h%d_w%d_r%d_c%d_%s%s", s.pair, s.page,
			 s.heads, s.hidden, s.lora, s.cluster, s.flags & F16 ? "f16" : "bf16",
			 s.flags & OFFCHIP ? "_offchip" : "");
	else if (s.name)
		snprintf(c->name, sizeof(c->name), "%s", s.name);
	else
		snprintf(c->name, sizeof(c->name), "%sh%d_hidden%d_lora%d_b%d_kv%d_p%d_c%d_%s%s%s%s",
			 s.ends ? "ends_" : "", s.heads, s.hidden, s.lora, s.batch, s.kv, s.page, s.cluster,
			 s.flags & F16 ? "f16" : "bf16",
			 s.flags & PAGED_RAGGED ? "_ragged" : "", s.flags & OFFCHIP ? "_offchip" : "",
			 s.flags & IN_PLACE ? "_in_place" : "");
	c->bench = !!(s.flags & BENCH);
	c->device_only = !!(s.flags & DEVICE);
	c->far = !!(s.flags & PAGED_FAR);
	if (s.bend)
		c->kinds = CAIRN_KIND_BIT(CAIRN_KIND_EXTREME);
	else if (s.ends || s.flags & (DEVICE | PAGED_FAR | MEAN) || (s.eps > 0 && !s.pair))
		c->kinds = CAIRN_KIND_BIT(CAIRN_KIND_NORMAL);
	else if (s.flags & ROTATED)
		c->kinds = CAIRN_KIND_BIT(CAIRN_KIND_EXACT);
	else if (s.pair)
		c->kinds = CAIRN_KIND_BIT(CAIRN_KIND_POISON);
	else if (s.name)
		c->kinds = CAIRN_KIND_BIT(index % 2 ? CAIRN_KIND_EXACT : CAIRN_KIND_NORMAL) |
			   CAIRN_KIND_BIT(CAIRN_KIND_POISON);
	else
		c->kinds = CAIRN_KIND_BIT(index % 3) |
			   CAIRN_KIND_BIT(index / 3 % 2 ? CAIRN_KIND_POISON : CAIRN_KIND_NORMAL);
	weights = (double)s.lora * s.hidden + s.heads * 192.0 * (s.lora ? s.lora : s.hidden) +
		  576.0 * s.hidden + s.heads * 256.0 * 512 + s.heads * 128.0 * s.hidden;
	keys = (double)s.batch * s.kv;
	c->bytes = 2 * weights + keys * 576 * 2;
	c->flops = 2 * weights * s.batch + 2 * keys * s.heads * (576 + 512);
}

/* As cairn_fill(), but repeats one block of random numbers, whose prime length does not align with rows. */
static void fill(struct cairn_op *op, void *p, int64_t count, double scale)
{
	const struct cairn_cluster_mla_args *a = op->args;
	const int64_t block = 16411;

	cairn_fill(op, p, a->dtype, count < block ? count : block, scale);
	for (int64_t i = block; i < count; i += block)
		memcpy((uint16_t *)p + i, p, 2 * (size_t)(count - i < block ? count - i : block));
}

static void fill_about_1(struct cairn_op *op, void *p, int64_t count, double spread)
{
	const struct cairn_cluster_mla_args *a = op->args;

	cairn_fill(op, p, a->dtype, count, spread);
	for (int64_t i = 0; i < count; i++)
		cairn_store(p, a->dtype, i, 1 + cairn_load(p, a->dtype, i));
}

/* Fills p with `scale` times random integers of -most..most except 0; with most 1 only the sign is random. */
static void fill_signs(struct cairn_op *op, void *p, int64_t count, int most, double scale)
{
	const struct cairn_cluster_mla_args *a = op->args;

	for (int64_t i = 0; i < count; i++) {
		uint64_t r = cairn_op_rand(op);

		cairn_store(p, a->dtype, i,
			    (r & 1 ? scale : -scale) * (1 + (double)(r / 2 % (uint64_t)most)));
	}
}

/* Fills rows of k elements with zeros, and sets `some` random elements of each row to +-1..most. */
static void fill_sparse(struct cairn_op *op, void *p, int64_t rows, int64_t k, int some, int most)
{
	memset(p, 0, (size_t)(rows * k) * 2);
	for (int64_t i = 0; i < rows * some; i++)
		fill_signs(op, (uint16_t *)p + i / some * k + cairn_op_range(op, 0, k - 1), 1, most, 1);
}

struct operands {
	void *x, *norm, *q_a, *q_norm, *q, *kv_a, *kv_norm, *kv_b, *o, *pages;
	float *inv_freq;
};

static void fill_normal(struct cairn_op *op, const struct shape *s, const struct operands *p)
{
	int64_t nq = s->heads * 192, k = s->lora ? s->lora : s->hidden;
	double base;

	fill(op, p->x, (int64_t)s->batch * s->hidden, s->size > 0 ? s->size : 1);
	if (s->eps > 0 && !s->pair)
		memset(p->x, 0, (size_t)s->hidden * 2);
	fill_about_1(op, p->norm, s->hidden, 0.25);
	if (s->lora) {
		fill(op, p->q_a, (int64_t)s->lora * s->hidden, 1 / sqrt(s->hidden));
		fill_about_1(op, p->q_norm, s->lora, 0.25);
	}
	fill(op, p->q, nq * k, 1 / sqrt((double)k));
	fill(op, p->kv_a, 576 * (int64_t)s->hidden, 1 / sqrt(s->hidden));
	fill_about_1(op, p->kv_norm, 512, 0.25);
	fill(op, p->kv_b, s->heads * 256 * 512, 1 / sqrt(192));
	fill(op, p->o, (int64_t)s->hidden * s->heads * 128, 1 / sqrt(s->heads * 128));
	base = cairn_op_range(op, 0, 1) ? 10000 : 500000;	/* other calls have other frequencies */
	for (int i = 0; i < 32; i++)
		p->inv_freq[i] = (float)pow(base, -i / 32.0);
}

static void copy_half(void *p, int64_t half)
{
	memcpy((uint16_t *)p + half, p, (size_t)half * 2);
}

/* Adds a large number at element `at` and its opposite at element `twin`, if both are 0. */
static void add_opposite(struct cairn_op *op, void *p, int64_t at, int64_t twin, int shift)
{
	const struct cairn_cluster_mla_args *a = op->args;
	double v = ldexp((double)cairn_op_range(op, 16, 31), shift) * (cairn_op_rand(op) & 1 ? 1 : -1);

	if (cairn_load(p, a->dtype, at) != 0 || cairn_load(p, a->dtype, twin) != 0)
		return;
	cairn_store(p, a->dtype, at, v);
	cairn_store(p, a->dtype, twin, -v);
}

/* Adds 16 opposite pairs to each row, half a row apart. */
static void add_opposites(struct cairn_op *op, void *p, int64_t rows, int64_t k, int shift)
{
	for (int64_t i = 0; i < rows * 16; i++) {
		int64_t at = i / 16 * k + cairn_op_range(op, 0, k / 2 - 1);

		add_opposite(op, p, at, at + k / 2, shift);
	}
}

/*
 * Widens the partial sums of the EXACT inputs to up to 22 bits without changing the results: the halves of n,
 * of the compressed q and of each latent become equal, as do q[d] and q[d + 64] of each head, and weights
 * that multiply equal elements get opposite large numbers. Columns 5, 37, 69 ... of ql are large, and
 * opposite to those half a latent further, so that the products of a logit cancel, too.
 */
static void widen_sums(struct cairn_op *op, const struct shape *s, const struct operands *p,
		       const struct paged *pg)
{
	const struct cairn_cluster_mla_args *a = op->args;
	int64_t k = s->lora ? s->lora : s->hidden;
	int shift = a->dtype == CAIRN_F16 ? 11 : 13;

	for (int b = 0; b < s->batch; b++)
		copy_half((uint16_t *)p->x + (int64_t)b * s->hidden, s->hidden / 2);
	copy_half(p->norm, s->hidden / 2);
	if (s->lora) {
		add_opposites(op, p->q_a, s->lora / 2, s->hidden, shift);
		copy_half(p->q_a, (int64_t)s->lora / 2 * s->hidden);
		copy_half(p->q_norm, s->lora / 2);
	}
	add_opposites(op, p->q, s->heads * 192, k, shift);
	for (int h = 0; h < s->heads; h++)
		copy_half((uint16_t *)p->q + h * 192 * k, 64 * k);
	add_opposites(op, p->kv_a, 576, s->hidden, shift);
	copy_half(p->kv_a, 256 * (int64_t)s->hidden);
	copy_half(p->kv_norm, 256);
	for (int b = 0; b < s->batch; b++)
		for (int j = 0; j < pg->kv_len[b]; j++)
			copy_half((uint16_t *)p->pages + paged_slot(pg, b, j) * 576, 256);
	for (int h = 0; h < s->heads; h++) {
		uint16_t *w = (uint16_t *)p->kv_b + h * 256 * 512;

		for (int i = 0; i < 128 * 16; i++)	/* columns 5, 37, 69 ... */
			w[i / 16 * 512 + 5 + i % 16 * 32] = 0;
		for (int i = 0; i < 8; i++)
			add_opposite(op, w, 20 * 512 + 5 + i * 32, 20 * 512 + 261 + i * 32, 8);
		for (int i = 0; i < 128; i++) {
			int64_t at = i / 16 * 512 + cairn_op_range(op, 0, 511);

			if (at % 32 != 5)
				add_opposite(op, w, at, at + 64 * 512, 11);
			at = (128 + i) * 512 + cairn_op_range(op, 0, 255);
			add_opposite(op, w, at, at + 256, 11);
		}
	}
}

static void fill_exact(struct cairn_op *op, const struct shape *s, const struct operands *p,
		       const struct paged *pg)
{
	struct cairn_cluster_mla_args *a = op->args;

	a->sm_scale = 64;
	a->eps = 1e-12f;
	fill_signs(op, p->x, (int64_t)s->batch * s->hidden, 1, 16);
	fill_signs(op, p->norm, s->hidden, 1, 1);
	if (s->lora) {
		fill_sparse(op, p->q_a, s->lora, s->hidden, 1, 1);
		fill_signs(op, p->q_norm, s->lora, 2, 1);
	}
	fill_sparse(op, p->q, s->heads * 192, s->lora ? s->lora : s->hidden, 2, 2);
	fill_sparse(op, p->kv_a, 576, s->hidden, 1, 1);
	fill_signs(op, p->kv_norm, 512, 3, 1);
	fill_sparse(op, p->kv_b, s->heads * 256, 512, 4, 2);
	/*
	 * Gives a w_o^T more bits than dtype has, so that rounding the sum before x is added becomes visible.
	 */
	fill_sparse(op, p->o, s->hidden, s->heads * 128, 4, 255);
	for (int i = 0; i < 32; i++)
		p->inv_freq[i] = s->flags & ROTATED ? (float)pow(10000, -i / 32.0) : 0;
	widen_sums(op, s, p, pg);
}

/* Adds q0 r0 sm_scale to all logits, and q0 (r_top - r0) sm_scale more to one random key of each request. */
static void common_logit(struct cairn_op *op, const struct shape *s, const struct operands *p,
			 const struct paged *pg, double q0, double r0, double r_top)
{
	int64_t k = s->lora ? s->lora : s->hidden;
	int dtype = s->flags & F16 ? CAIRN_F16 : CAIRN_BF16;

	p->inv_freq[0] = 0;
	fill_signs(op, p->x, (int64_t)s->batch * s->hidden, 1, 16);
	for (int b = 0; b < s->batch; b++)
		cairn_store(p->x, dtype, (int64_t)b * s->hidden, 16);
	for (int i = 0; i < s->hidden; i++)
		cairn_store(p->norm, dtype, i, 1);
	if (s->lora) {
		fill_sparse(op, p->q_a, s->lora, s->hidden, 1, 1);
		memset(p->q_a, 0, (size_t)s->hidden * 2);
		cairn_store(p->q_a, dtype, 0, 1);
		for (int i = 0; i < s->lora; i++)
			cairn_store(p->q_norm, dtype, i, 1);
	}
	for (int h = 0; h < s->heads; h++) {
		memset((uint16_t *)p->q + (h * 192 + 128) * k, 0, (size_t)k * 4);
		cairn_store(p->q, dtype, (h * 192 + 128) * k, q0);
	}
	memset((uint16_t *)p->kv_a + 512 * s->hidden, 0, (size_t)s->hidden * 4);
	cairn_store(p->kv_a, dtype, 512 * (int64_t)s->hidden, r0);
	for (int b = 0; b < s->batch; b++) {
		int top = pg->kv_len[b] > 1 ? (int)cairn_op_range(op, 0, pg->kv_len[b] - 2) : 0;

		for (int j = 0; j < pg->kv_len[b]; j++)
			cairn_store(p->pages, dtype, paged_slot(pg, b, j) * 576 + 512, j == top ? r_top : r0);
	}
}

/* The key whose logit common_logit() has raised has the opposite values of all other keys. */
static void minor_logits(struct cairn_op *op, const struct shape *s, const struct operands *p,
			 const struct paged *pg)
{
	int f16 = !!(s->flags & F16), dtype = f16 ? CAIRN_F16 : CAIRN_BF16;
	double r_top = f16 ? 1.125 : 0.75;	/* the others' P are about 3e-5, or 1e-3 */

	fill_about_1(op, p->pages, pg->num_pages * (int64_t)s->page * 576, 0.1);
	for (int h = 0; h < s->heads; h++)	/* no latent part of the logits */
		memset((uint16_t *)p->kv_b + h * 256 * 512, 0, 128 * 512 * 2);
	common_logit(op, s, p, pg, 128, 0, r_top);
	for (int b = 0; b < s->batch; b++)
		for (int j = 0; j < pg->kv_len[b]; j++) {
			uint16_t *key = (uint16_t *)p->pages + paged_slot(pg, b, j) * 576;

			for (int i = 0; cairn_load(key, dtype, 512) == r_top && i < 512; i++)
				cairn_store(key, dtype, i, -cairn_load(key, dtype, i));
		}
}

/* Makes the logits of each request's old keys a staircase (attn_stairs.h). */
static void stair_logits(struct cairn_op *op, const struct shape *s, const struct operands *p,
			 const struct paged *pg)
{
	const struct cairn_cluster_mla_args *a = op->args;
	int f16 = a->dtype == CAIRN_F16;

	fill_about_1(op, p->pages, pg->num_pages * (int64_t)s->page * 576, 0.1);
	for (int h = 0; h < s->heads; h++)	/* no latent part of the logits */
		memset((uint16_t *)p->kv_b + h * 256 * 512, 0, 128 * 512 * 2);
	common_logit(op, s, p, pg, 128, 0, 0);
	for (int b = 0; b < s->batch; b++)
		for (int j = 0; j < pg->kv_len[b] - 1; j++) {
			uint16_t *key = (uint16_t *)p->pages + paged_slot(pg, b, j) * 576;
			int t = attn_stretch(j, pg->kv_len[b] - 1);
			double weight = attn_stair_weight(b, t, f16, 0);

			cairn_store(key, a->dtype, 512, attn_stair(b, t, f16) / (128 * (double)a->sm_scale));
			for (int i = 0; i < 512; i++)
				cairn_store(key, a->dtype, i, weight * cairn_load(key, a->dtype, i));
		}
}

static void times(void *p, int dtype, int64_t count, double factor)
{
	for (int64_t i = 0; i < count; i++)
		cairn_store(p, dtype, i, cairn_load(p, dtype, i) * factor);
}

static void bend(struct cairn_op *op, const struct shape *s, const struct operands *p,
		 const struct paged *pg, int how)
{
	struct cairn_cluster_mla_args *a = op->args;
	int64_t slots = pg->num_pages * (int64_t)s->page * 576, k = s->lora ? s->lora : s->hidden;
	int f16 = !!(s->flags & F16);

	switch (how) {
	case DOMINANT:
		common_logit(op, s, p, pg, 128, 0, 8);
		return;
	case NEGATIVE:
		common_logit(op, s, p, pg, 128, -24, -24);
		return;
	case POSITIVE:
		common_logit(op, s, p, pg, 128, 24, 24);
		return;
	case MINOR:
		minor_logits(op, s, p, pg);
		return;
	case STAIRS:
		stair_logits(op, s, p, pg);
		return;
	}
	memset(p->q, 0, (size_t)(s->heads * 192 * k) * 2);
	if (how == EQUAL)	/* values near 1, so that sums grow with the number of keys */
		fill_about_1(op, p->pages, slots, 0.1);
	if (how == LARGE)
		times(p->pages, a->dtype, slots, f16 ? 1000 : 1e15);
	if (how == TINY) {
		times(p->pages, a->dtype, slots, f16 ? 0x1p-22 : 0x1p-116);
		times(p->x, a->dtype, (int64_t)s->batch * s->hidden, f16 ? 0x1p-14 : 0x1p-110);
		times(p->kv_norm, a->dtype, 512, f16 ? 0x1p-20 : 0x1p-10);
	}
}

static void lengths(struct cairn_op *op, const struct shape *s, struct paged *p)
{
	for (int b = 0; b < s->batch; b++) {
		p->kv_len[b] = s->kv_lens ? s->kv_lens[b] :
			       b && s->flags & PAGED_RAGGED ? (int)cairn_op_range(op, 1, s->kv) : s->kv;
		p->max_kv = p->kv_len[b] > p->max_kv ? p->kv_len[b] : p->max_kv;
	}
}

static void setup(struct cairn_op *op)
{
	struct cairn_cluster_mla_args *a = op->args;
	enum cairn_kind kind = op->kind;
	struct paged pg = { 0 };
	struct operands p = { 0 };
	int32_t *positions, *indices;
	int64_t count;
	struct shape s;

	shape_at(op->case_index, &s);
	a->dtype = s.flags & F16 ? CAIRN_F16 : CAIRN_BF16;
	a->kv.batch = s.batch;
	a->hidden = s.hidden;
	a->num_heads = s.heads;
	a->q_lora_rank = s.lora;
	a->kv_lora_rank = 512;
	a->nope_dim = a->v_dim = 128;
	a->rope_dim = 64;
	a->cluster_size = s.cluster;
	a->offchip = !!(s.flags & OFFCHIP);
	a->sms = s.sms;
	a->eps = s.eps > 0 ? (float)s.eps : 1e-6f;
	a->sm_scale = s.scale > 0 ? s.scale : (float)(1 / sqrt(192));
	pg.batch = s.batch;
	pg.page_size = a->kv.page_size = s.page;
	pg.flags = s.flags;
	pg.pool = s.flags & PAGED_FAR ? (int)(((int64_t)1 << 32) / 576 / s.page) + 40 : 3000;
	lengths(op, &s, &pg);
	paged_tables(op, &pg, FIELD(positions), FIELD(kv));
	cairn_name(op, FIELD(positions), "positions");
	a->kv.num_pages = pg.num_pages;
	a->kv.max_len = pg.max_kv * (s.flags & PAGED_PADDED ? 3 : 1);
	positions = (int32_t *)a->positions;
	indices = (int32_t *)a->kv.indices;
	for (int b = 0; b <= s.batch; b++)
		positions[b] = (int32_t)cairn_op_range(op, 0, b % 3 == 2 ? 160000 : 5000);
	for (int b = 1; s.flags & PREFIX && b < s.batch; b++)
		for (int j = 0; j < paged_pages(&pg, b) - 1 && j < paged_pages(&pg, 0) - 1; j++)
			indices[pg.kv_indptr[b] + j] = indices[j];

	count = (int64_t)s.batch * s.hidden;
	if (s.flags & IN_PLACE) {
		p.x = cairn_inout(op, FIELD(out), a->dtype, count);
		cairn_alias(op, FIELD(x), FIELD(out));
	} else {
		cairn_out(op, FIELD(out), a->dtype, count);
		p.x = cairn_in(op, FIELD(x), a->dtype, count);
	}
	cairn_shape(op, FIELD(out), { "row", s.batch }, { "dim", s.hidden });
	p.pages = s.flags & PAGED_FAR ? paged_far(op, &pg, FIELD(kv.k_pages), a->dtype, 576, 1) :
		  cairn_inout(op, FIELD(kv.k_pages), a->dtype, pg.num_pages * (int64_t)s.page * 576);
	cairn_shape(op, FIELD(kv.k_pages), { "page", pg.num_pages }, { "slot", s.page }, { "dim", 576 });
	p.norm = cairn_in(op, FIELD(norm_weight), a->dtype, s.hidden);
	if (s.lora) {
		p.q_a = cairn_in(op, FIELD(w_q_a), a->dtype, (int64_t)s.lora * s.hidden);
		p.q_norm = cairn_in(op, FIELD(q_norm), a->dtype, s.lora);
	}
	p.q = cairn_in(op, FIELD(w_q), a->dtype, s.heads * 192 * (int64_t)(s.lora ? s.lora : s.hidden));
	p.kv_a = cairn_in(op, FIELD(w_kv_a), a->dtype, 576 * (int64_t)s.hidden);
	p.kv_norm = cairn_in(op, FIELD(kv_norm), a->dtype, 512);
	p.kv_b = cairn_in(op, FIELD(w_kv_b), a->dtype, s.heads * 256 * 512);
	p.o = cairn_in(op, FIELD(w_o), a->dtype, s.hidden * (int64_t)s.heads * 128);
	p.inv_freq = cairn_in(op, FIELD(inv_freq), CAIRN_F32, 32);

	if (kind == CAIRN_KIND_EXTREME)
		op->kind = CAIRN_KIND_NORMAL;	/* for elements that bend() does not change */

	if (!(s.flags & PAGED_FAR))
		paged_fill(op, &pg, p.pages, a->dtype, 576);
	if (kind == CAIRN_KIND_EXACT)
		fill_exact(op, &s, &p, &pg);
	else
		fill_normal(op, &s, &p);
	if (kind == CAIRN_KIND_EXTREME)
		bend(op, &s, &p, &pg, s.bend ? s.bend : 1 + op->case_index / 3 % (NUM_BENDS - 1));
	op->kind = kind;
	if (s.pair) {
		/*
		 * a NaN in the oldest key of a request (in its latent or rotated part), and one in x of
		 * another request
		 */
		int b = s.batch == 2 ? 1 : s.batch == 3 ? 0 : 5, nan_x = s.batch == 3 ? 2 : 1;

		cairn_fill_nan(p.pages, a->dtype, paged_slot(&pg, b, 0) * 576 + (s.pair % 2 ? 511 : 575),
			       1);
		if (s.batch > 2)
			cairn_fill_nan(p.x, a->dtype, nan_x * (int64_t)s.hidden + s.hidden - 1, 1);
	}
	for (int b = 0; kind == CAIRN_KIND_POISON && b < s.batch; b++)
		if (pg.kv_len[b])
			cairn_fill_nan(p.pages, a->dtype, paged_slot(&pg, b, pg.kv_len[b] - 1) * 576, 576);
}

static int relist(void *args)
{
	const struct cairn_cluster_mla_args *a = args;

	return paged_relist(&a->kv, NULL) | paged_move_rows(a->positions, a->kv.batch);
}

static const char *reject(void *args, int i, int *want)
{
	struct cairn_cluster_mla_args *a = args;

	*want = i < 31 || i > 41 ? -EINVAL : -EOPNOTSUPP;
	switch (i) {
	case 0: a->size = 8; return "size_too_small";
	case 1: a->out = NULL; return "out_null";
	case 2: a->kv.k_pages = NULL; return "pages_null";
	case 3: a->x = NULL; return "x_null";
	case 4: a->norm_weight = NULL; return "norm_weight_null";
	case 5: a->w_q = NULL; return "w_q_null";
	case 6: a->w_kv_a = NULL; return "w_kv_a_null";
	case 7: a->kv_norm = NULL; return "kv_norm_null";
	case 8: a->w_kv_b = NULL; return "w_kv_b_null";
	case 9: a->w_o = NULL; return "w_o_null";
	case 10: a->inv_freq = NULL; return "inv_freq_null";
	case 11: a->positions = NULL; return "positions_null";
	case 12: a->kv.indptr = NULL; return "kv_indptr_null";
	case 13: a->kv.indices = NULL; return "kv_indices_null";
	case 14: a->kv.last_page_len = NULL; return "kv_last_page_len_null";
	case 15: a->q_lora_rank = 64; return "w_q_a_null_with_a_rank";
	case 16: a->w_q_a = a->w_q; return "w_q_a_without_a_rank";
	case 17: a->w_q = (const char *)a->w_q + 8; return "w_q_misaligned";
	case 18: a->out = (char *)a->out + 4; return "out_misaligned";
	case 19: a->kv.k_pages = (char *)a->kv.k_pages + 2; return "pages_misaligned";
	case 20: a->kv.batch = -1; return "batch_negative";
	case 21: a->kv.max_len = -1; return "max_kv_len_negative";
	case 22: a->kv.page_size = 0; return "page_size_0";
	case 23: a->num_heads = 0; return "num_heads_0";
	case 24: a->q_lora_rank = -64; return "q_lora_rank_negative";
	case 25: a->sm_scale = 0; return "sm_scale_0";
	case 26: a->sm_scale = NAN; return "sm_scale_nan";
	case 27: a->eps = 0; return "eps_0";
	case 28: a->eps = INFINITY; return "eps_inf";
	case 29: a->cluster_size = 17; return "cluster_size_17";
	case 30: a->cluster_size = -1; return "cluster_size_negative";
	case 31: a->dtype = CAIRN_F32; return "dtype_f32";
	case 32: a->num_heads = 12; return "heads_12";
	case 33: a->num_heads = 136; return "heads_136";
	case 34: a->hidden = 96; return "hidden_96";
	case 35: a->hidden = 16448; return "hidden_16448";
	case 36: a->q_lora_rank = 4160; return "q_lora_rank_4160";
	case 37: a->kv_lora_rank = 256; return "kv_lora_rank_256";
	case 38: a->rope_dim = 32; return "rope_dim_32";
	case 39: a->nope_dim = 64; return "nope_dim_64";
	case 40: a->v_dim = 64; return "v_dim_64";
	case 41: a->kv.batch = 17; return "batch_17";
	case 42: a->sms = -1; return "sms_negative";
	case 43: a->eps = 1e-39f; return "eps_subnormal";
	}
	return NULL;
}

static int exact(const void *args, struct cairn_exact *e)
{
	return cairn_cluster_mla_exact(args, e);
}

static void pair_rows(struct cairn_test *t)
{
	cairn_pairs_check(t, &pair_table, NUM_PAIRS);
	cairn_pairs_check(t, &ends_table, NUM_ENDS);
}

static const struct cairn_unit units[] = { { "pair_rows", pair_rows } };

/* More than eight requests run a separate kernel. */
static const char *const sanitized[] = {
	"padded_batch_10.exact", "h8_hidden128_lora128_b1_kv69_p1_c5_f16_offchip.exact", NULL
};

const struct cairn_family cairn_cluster_mla_family = {
	.stage = "fused", .name = "cluster_mla",
	.op = offsetof(struct cairn_impl, cluster_mla),
	.workspace_op = offsetof(struct cairn_impl, cluster_mla_workspace),
	.args_size = sizeof(struct cairn_cluster_mla_args),
	.sms_field = offsetof(struct cairn_cluster_mla_args, sms),
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
	.sanitized = sanitized,
	.cost_s = 30, .cheap_factor = 24,
};
