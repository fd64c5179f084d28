/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cluster_mla_cases - the shapes that cluster_mla_test.c runs: named edge cases, clusters of all sizes, a
 * grid, ends of tiles, bench rows, and what may be drawn
 *
 * Include conformance/harness.h, conformance/suite/draw.h, conformance/suite/pairs.h, cluster_mla.h and
 * paged_test.h first.
 */
#ifndef CAIRN_CLUSTER_MLA_CASES_H
#define CAIRN_CLUSTER_MLA_CASES_H

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

#endif
