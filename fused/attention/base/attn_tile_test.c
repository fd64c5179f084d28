// SPDX-License-Identifier: Apache-2.0
/*
 * attn_tile_test - the index arithmetic of the attention kernels, and properties that need no reference
 *
 * The properties hold for every implementation of attn_paged; here the cpu table is tested.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "conformance/harness.h"
#include "fused/attention/paged/attn_paged.h"
#include "fused/attention/base/attn_tile.h"

/* ---- index arithmetic ---- */

static void shares_cover_all_tiles(struct cairn_test *t)
{
	for (int ranks = 1; ranks <= ATTN_MAX_CLUSTER; ranks++) {
		for (int total = 0; total < 300; total++) {
			int largest = 0, smallest = total;

			EXPECT(t, attn_share(total, ranks, 0) == 0);
			EXPECT(t, attn_share(total, ranks, ranks) == total);
			for (int r = 0; r < ranks; r++) {
				int n = attn_share(total, ranks, r + 1) - attn_share(total, ranks, r);

				largest = n > largest ? n : largest;
				smallest = n < smallest ? n : smallest;
			}
			EXPECT(t, smallest >= 0 && largest - smallest <= 1);
		}
	}
	EXPECT(t, attn_share((1 << 28) - 1, 16, 16) == (1 << 28) - 1);
}

static void shares_need_no_division(struct cairn_test *t)
{
	for (int ranks = 1; ranks <= ATTN_MAX_CLUSTER; ranks++) {
		const uint32_t magic = attn_magic((uint32_t)ranks);
		const int most = (int)(((1ull << 32) - 1) / (unsigned int)(ranks * ranks) >> (ranks == 1));

		for (int total = 0; total < 300; total++)
			for (int r = 0; r <= ranks; r++) {
				const int large = (most < 1 << 28 ? most : 1 << 27) - total;

				EXPECT(t, attn_share_by(total, magic, r) == attn_share(total, ranks, r));
				EXPECT(t, attn_share_by(large, magic, r) == attn_share(large, ranks, r));
			}
	}
}

static void swizzle_is_a_permutation_without_conflicts(struct cairn_test *t)
{
	for (uint32_t row_bytes = 128; row_bytes <= 512; row_bytes *= 2) {
		uint32_t chunks = row_bytes / 16;
		uint8_t seen[64 * 32] = { 0 };

		for (uint32_t row = 0; row < 64; row++)
			for (uint32_t c = 0; c < chunks; c++)
				seen[attn_swizzle(row, c, row_bytes) / 16]++;
		for (uint32_t i = 0; i < 64 * chunks; i++)
			EXPECT(t, seen[i] == 1);
		/* the steps that attn_swizzle() promises: address ^ constant, and + row_bytes */
		for (uint32_t row = 0; row < 64; row++)
			for (uint32_t c = 0; c < chunks; c++)
				EXPECT(t, attn_swizzle(row, c, row_bytes) ==
					  (attn_swizzle(row, c & 1, row_bytes) ^ (c >> 1 << 5)) &&
					  attn_swizzle(row, c, row_bytes) ==
					  (attn_swizzle(row & ~7u, c, row_bytes) ^ (row & 7) << 4) +
					  (row & 7) * row_bytes);
		/* one ldmatrix: eight rows at one column; one cp.async quarter: eight chunks of one row */
		for (uint32_t first = 0; first < 64; first += 8) {
			for (uint32_t c = 0; c < chunks; c++) {
				uint32_t by_row = 0, by_chunk = 0;

				for (uint32_t k = 0; k < 8; k++) {
					by_row |= 1u << attn_swizzle(first + k, c, row_bytes) / 16 % 8;
					by_chunk |= 1u << attn_swizzle(first, c / 8 * 8 + k,
								       row_bytes) / 16 % 8;
				}
				EXPECT(t, by_row == 0xff && by_chunk == 0xff);
			}
		}
	}
}

static void visible_keys(struct cairn_test *t)
{
	EXPECT(t, attn_visible(0, 1, 97, 1) == 97);
	EXPECT(t, attn_visible(0, 5, 5, 1) == 1);
	EXPECT(t, attn_visible(4, 5, 5, 1) == 5);
	EXPECT(t, attn_visible(0, 9, 3, 1) == 0);
	EXPECT(t, attn_visible(6, 9, 3, 1) == 1);
	EXPECT(t, attn_visible(100, 9, 3, 1) == 3);
	EXPECT(t, attn_visible(0, 9, 3, 0) == 3);
	EXPECT(t, kv_walk_len(0, 7, 16) == 0);
	EXPECT(t, kv_walk_len(1, 16, 16) == 16);
	EXPECT(t, kv_walk_len(3, 1, 16) == 33);
	EXPECT(t, kv_walk_len(1, 0, 16) == 0);
	for (int qo = 1; qo < 40; qo++)
		for (int kv = 0; kv < 40; kv++)
			for (int i = 1; i < qo; i++)
				EXPECT(t, attn_visible(i, qo, kv, 1) >= attn_visible(i - 1, qo, kv, 1));
}

static void first_keys(struct cairn_test *t)
{
	EXPECT(t, attn_first_key(0, 1, 97, 0) == 0);
	EXPECT(t, attn_first_key(0, 1, 97, 1) == 96);
	EXPECT(t, attn_first_key(0, 1, 97, 97) == 0);
	EXPECT(t, attn_first_key(0, 1, 97, 96) == 1);
	EXPECT(t, attn_first_key(0, 1, 97, 0x7fffffff) == 0);
	EXPECT(t, attn_first_key(0, 0x7fffffff, 0, 0x7fffffff) == 0);
	for (int qo = 1; qo < 30; qo++)
		for (int kv = 0; kv < 30; kv++)
			for (int window = 1; window < 35; window++)
				for (int i = 0; i < qo; i++) {
					int first = attn_first_key(i, qo, kv, window);
					int seen = attn_visible(i, qo, kv, 1) - first, position = i + kv - qo;

					/* the row sees a whole window, or all keys up to its own */
					EXPECT(t, position < 0 ? first == 0 && seen == 0 :
					       seen == (position + 1 < window ? position + 1 : window));
					EXPECT(t, !i || first >= attn_first_key(i - 1, qo, kv, window));
				}
}

static void token_of_a_row(struct cairn_test *t)
{
	for (uint32_t group = 1; group <= 300; group++) {
		uint32_t magic = attn_magic(group), limit = 0x7fffffffu / (group / 2 + 1) - 1;

		for (int i = 0; i < 1000; i++) {
			uint32_t row = i < 500 ? (uint32_t)i : (uint32_t)cairn_rand(t) % limit;

			EXPECT(t, attn_token((int32_t)row, magic) == (int32_t)(row / group));
		}
		/* the largest row that is the last of its token and for which the division is exact */
		limit = limit / group * group - 1;
		EXPECT(t, attn_token((int32_t)limit, magic) == (int32_t)(limit / group));
	}
}

static void page_shift(struct cairn_test *t)
{
	for (int page_size = 1; page_size < 5000; page_size++) {
		int shift = kv_page_shift(page_size), power = !(page_size & (page_size - 1));

		EXPECT(t, power ? 1 << shift == page_size : shift == -1);
	}
}

/*
 * Number of CTAs that an H200 holds at once, by width and cluster size. cudaOccupancyMaxActiveClusters() gave
 * the rows for half an SM and for a whole one. That for a quarter is twice that for half an SM, and
 * 12 CTAs of one warp fit an SM.
 */
static const int32_t h200[ATTN_WIDTHS][ATTN_MAX_CLUSTER + 1] = {
	{ 0, 1584 },
	{ 0, 528, 528, 474, 496, 470, 468, 448, 480, 414, 420, 352, 384, 364, 392, 420, 448 },
	{ 0, 264, 264, 237, 248, 235, 234, 224, 240, 207, 210, 176, 192, 182, 196, 210, 224 },
	{ 0, 132, 132, 117, 120, 110, 102, 105, 120, 81, 70, 77, 84, 91, 98, 105, 112 },
};

static void split_fits_the_device(struct cairn_test *t)
{
	const int32_t bare[ATTN_WIDTHS][ATTN_MAX_CLUSTER + 1] = {
		{ 0, 1584 }, { 0, 528 }, { 0, 264 }, { 0, 132 },
	};
	const int32_t none[ATTN_WIDTHS][ATTN_MAX_CLUSTER + 1] = { { 0 } };

	EXPECT(t, attn_decode_split(8, 16384, 128, 0, bare).cluster_size == 1);
	EXPECT(t, attn_decode_split(8, 16384, 128, 0, none).cluster_size == 1);
	EXPECT(t, attn_decode_warps(256, 1, attn_decode_split(8, 16384, 256, 1, none).width) > 0);
	EXPECT(t, attn_decode_split(0, 0, 128, 0, h200).cluster_size == 1);
	EXPECT(t, attn_decode_split(4096, 4096, 128, 0, h200).cluster_size == 1);
	EXPECT(t, attn_decode_split(4096, 4096, 128, 0, h200).width == ATTN_HALF);
	for (int i = 0; i < 1000; i++) {
		int64_t tasks = (int64_t)(cairn_rand(t) % 5000);
		int32_t kv = (int32_t)(cairn_rand(t) % 100000), dim = 64 << i % 3, fp8 = i / 3 % 2;
		struct attn_split s = attn_decode_split(tasks, kv, dim, fp8, h200);

		EXPECT(t, s.width >= 0 && s.width < ATTN_WIDTHS && attn_decode_warps(dim, fp8, s.width) > 0);
		EXPECT(t, s.cluster_size >= 1 && s.cluster_size <= ATTN_MAX_CLUSTER);
	}
}

/* Sizes with 8 KV heads of 128, each with the fastest split that was measured on an H200. */
static void split_is_the_fastest_one_known(struct cairn_test *t)
{
	static const struct {
		int32_t batch, kv_len, kv_fp8, cluster_size, width;
	} known[] = {
		{ 1, 1024, 0, 8, ATTN_HALF }, { 1, 4096, 0, 9, ATTN_WHOLE }, { 1, 16384, 0, 9, ATTN_WHOLE },
		{ 16, 4096, 0, 1, ATTN_WHOLE }, { 64, 4096, 0, 1, ATTN_HALF }, { 128, 4096, 0, 1, ATTN_HALF },
		{ 16, 16384, 1, 1, ATTN_WHOLE }, { 64, 4096, 1, 1, ATTN_QUARTER },
		{ 128, 4096, 1, 1, ATTN_ONE },
	};

	for (int i = 0; i < (int)ARRAY_SIZE(known); i++) {
		struct attn_split s = attn_decode_split(known[i].batch * 8, known[i].kv_len, 128,
							known[i].kv_fp8, h200);

		EXPECT(t, s.cluster_size == known[i].cluster_size && s.width == known[i].width);
	}
}

/* The same for tasks of uneven lengths; most is 1 where the kernel for one length is as fast. */
static void teams_are_the_fastest_known(struct cairn_test *t)
{
	static const struct {
		int32_t batch, longest, mean, kv_fp8, most, width, least_share, most_share;
	} known[] = {
		{ 16, 4846, 1024, 0, 8, ATTN_HALF, 700, 1000 },
		{ 8, 32768, 4992, 0, 8, ATTN_WHOLE, 4096, 4096 },
		{ 64, 4846, 1024, 0, 2, ATTN_HALF, 2423, 4000 },
		{ 256, 4846, 1024, 0, 1, ATTN_HALF, 4846, 4846 },
		{ 16, 4846, 1024, 1, 8, ATTN_HALF, 700, 1000 },
		{ 16, 1024, 1024, 0, 1, ATTN_HALF, 1024, 1024 },
	};

	for (int i = 0; i < (int)ARRAY_SIZE(known); i++) {
		struct attn_teams s = attn_decode_teams(known[i].batch * 8, known[i].longest, known[i].mean,
							128, known[i].kv_fp8, h200);

		EXPECT(t, s.most == known[i].most && s.width == known[i].width);
		EXPECT(t, s.share >= known[i].least_share && s.share <= known[i].most_share);
	}
}

static void teams_fit_the_device(struct cairn_test *t)
{
	const int32_t bare[ATTN_WIDTHS][ATTN_MAX_CLUSTER + 1] = {
		{ 0, 1584 }, { 0, 528 }, { 0, 264 }, { 0, 132 },
	};

	EXPECT(t, attn_decode_teams(8, 16384, 100, 128, 0, bare).most == 1);
	EXPECT(t, attn_decode_teams(0, 0, 0, 128, 0, h200).most == 1);
	for (int i = 0; i < 1000; i++) {
		int64_t tasks = (int64_t)(cairn_rand(t) % 5000);
		int32_t kv = (int32_t)(cairn_rand(t) % 100000), dim = 64 << i % 3, fp8 = i / 3 % 2;
		struct attn_teams s = attn_decode_teams(tasks, kv, (double)(cairn_rand(t) % 1000) / 2000 * kv,
							dim, fp8, h200);

		EXPECT(t, s.most >= 1 && s.most <= ATTN_MAX_CLUSTER && !(s.most & (s.most - 1)));
		EXPECT(t, s.width == ATTN_HALF || s.width == ATTN_WHOLE);
		EXPECT(t, s.share <= kv && (kv == 0 || s.share > 0) && (int64_t)s.share * s.most >= kv);
	}
}

/* Whether equal shares of all keys are faster than teams, as measured on an H200. */
static void shares_where_they_pay(struct cairn_test *t)
{
	static const struct {
		int32_t batch, longest, mean, kv_fp8, shares;
	} known[] = {
		{ 16, 4846, 1024, 0, 0 }, { 16, 4846, 1024, 1, 0 }, { 8, 32768, 4992, 0, 0 },
		{ 17, 8192, 1822, 0, 0 }, { 33, 8192, 1629, 0, 1 }, { 64, 4846, 1024, 0, 1 },
		{ 64, 16384, 1264, 0, 1 }, { 64, 4846, 1024, 1, 1 }, { 256, 4846, 1024, 0, 0 },
		{ 64, 1024, 1024, 0, 0 }, { 0, 0, 0, 0, 0 },
	};

	for (int i = 0; i < (int)ARRAY_SIZE(known); i++)
		EXPECT(t, attn_wants_shares(known[i].batch * 8, known[i].longest, known[i].mean, 128,
					    known[i].kv_fp8, h200[ATTN_HALF][1]) == known[i].shares);
}

/* Every tile is in one share, none of which is empty, and their sizes differ by one at most. */
static void equal_shares_cover_all_tiles(struct cairn_test *t)
{
	for (int i = 0; i < 200; i++) {
		const uint32_t total = 1 + (uint32_t)(cairn_rand(t) % (i % 2 ? 500 : INT32_MAX));
		const struct attn_shares s = attn_shares_of(total, 1 + (uint32_t)(cairn_rand(t) % 300));
		uint32_t end = 0;

		for (uint32_t k = 0; k < s.num; k++) {
			const uint32_t begin = attn_share_begin(s, k);

			EXPECT(t, begin == end);
			end = attn_share_begin(s, k + 1);
			EXPECT(t, end > begin && (end - begin == s.tiles || end - begin == s.tiles + 1));
			EXPECT(t, attn_share_at(s, begin) == k && attn_share_at(s, end - 1) == k);
		}
		EXPECT(t, end == total);
	}
}

/* ---- properties ---- */

#define HEADS	6
#define KV_HEADS 2
#define DIM	64
#define PAGE	8
#define ROW	(HEADS * DIM)
#define MAX_REQ	4
#define MAX_QO	12
#define MAX_KV	120
#define PAGES	(MAX_REQ * MAX_KV / PAGE)
#define SLOT	(KV_HEADS * DIM)

/* A batch and its memory, which a test can rearrange. */
struct batch {
	struct cairn_attn_paged_args a;
	int32_t qo_indptr[MAX_REQ + 1], kv_indptr[MAX_REQ + 1], indices[PAGES], last[MAX_REQ];
	_Alignas(16) uint16_t q[MAX_REQ * MAX_QO * ROW];
	_Alignas(16) uint16_t k[PAGES * PAGE * SLOT];
	_Alignas(16) uint16_t v[PAGES * PAGE * SLOT];
	_Alignas(16) uint16_t out[MAX_REQ * MAX_QO * ROW];
	float lse[MAX_REQ * MAX_QO * HEADS];
};

static double gauss(struct cairn_test *t)
{
	double s = -6;

	for (int i = 0; i < 12; i++)
		s += (double)(cairn_rand(t) >> 11) * 0x1p-53;
	return s;
}

static struct batch *make_batch(struct cairn_test *t)
{
	struct batch *x = calloc(1, sizeof(*x));
	int n = 0;

	if (!x)
		abort();
	x->a = (struct cairn_attn_paged_args){
		.size = sizeof(x->a), .out = x->out, .lse = x->lse, .q = x->q,
		.qo_indptr = x->qo_indptr,
		.kv = { .k_pages = x->k, .v_pages = x->v, .indptr = x->kv_indptr, .indices = x->indices,
			.last_page_len = x->last, .num_pages = PAGES, .page_size = PAGE, .batch = MAX_REQ,
			.max_len = MAX_KV },
		.max_qo_len = MAX_QO, .num_qo_heads = HEADS, .num_kv_heads = KV_HEADS, .head_dim = DIM,
		.dtype = CAIRN_BF16, .causal = 1, .sm_scale = 0.125f,
	};
	for (int b = 0; b < MAX_REQ; b++) {
		int qo = (int)(cairn_rand(t) % (MAX_QO + 1)), kv = (int)(cairn_rand(t) % (MAX_KV + 1));
		int pages = (kv + PAGE - 1) / PAGE;

		x->qo_indptr[b + 1] = x->qo_indptr[b] + qo;
		x->kv_indptr[b + 1] = x->kv_indptr[b] + pages;
		x->last[b] = pages ? kv - (pages - 1) * PAGE : 0;
	}
	for (int i = 0; i < PAGES; i++)
		x->indices[i] = i;
	x->a.nnz_qo = x->qo_indptr[MAX_REQ];
	for (n = 0; n < (int)ARRAY_SIZE(x->q); n++)
		cairn_store(x->q, CAIRN_BF16, n, gauss(t));
	for (n = 0; n < (int)ARRAY_SIZE(x->k); n++) {
		cairn_store(x->k, CAIRN_BF16, n, gauss(t));
		cairn_store(x->v, CAIRN_BF16, n, gauss(t));
	}
	return x;
}

/* Copies a batch; the copy's pointers refer to its own arrays. */
static struct batch *copy_batch(const struct batch *x)
{
	struct batch *y = malloc(sizeof(*y));

	if (!y)
		abort();
	*y = *x;
	y->a.out = y->out;
	y->a.lse = y->lse;
	y->a.q = y->q;
	y->a.kv.k_pages = y->k;
	y->a.kv.v_pages = y->v;
	y->a.qo_indptr = y->qo_indptr;
	y->a.kv.indptr = y->kv_indptr;
	y->a.kv.indices = y->indices;
	y->a.kv.last_page_len = y->last;
	return y;
}

static void permuted_pages_change_no_bit(struct cairn_test *t)
{
	struct batch *x = make_batch(t), *y = copy_batch(x);

	for (int i = PAGES - 1; i > 0; i--) {
		int k = (int)(cairn_rand(t) % (uint64_t)(i + 1)), id = y->indices[i];

		y->indices[i] = y->indices[k];
		y->indices[k] = id;
	}
	for (int i = 0; i < PAGES; i++) {
		memcpy(y->k + y->indices[i] * PAGE * SLOT, x->k + i * PAGE * SLOT,
		       sizeof(*x->k) * PAGE * SLOT);
		memcpy(y->v + y->indices[i] * PAGE * SLOT, x->v + i * PAGE * SLOT,
		       sizeof(*x->v) * PAGE * SLOT);
	}
	EXPECT(t, cairn_attn_paged_cpu(&x->a, NULL) == 0);
	EXPECT(t, cairn_attn_paged_cpu(&y->a, NULL) == 0);
	EXPECT(t, !memcmp(x->out, y->out, sizeof(x->out)));
	EXPECT(t, !memcmp(x->lse, y->lse, sizeof(x->lse)));
	free(x);
	free(y);
}

/*
 * The pages are in order here, so each request can also be computed alone, with all its keys in one long
 * page.
 */
static void a_request_alone_in_one_long_page_changes_no_bit(struct cairn_test *t)
{
	struct batch *x = make_batch(t), *y = copy_batch(x);

	EXPECT(t, cairn_attn_paged_cpu(&x->a, NULL) == 0);
	y->a.kv.batch = 1;
	y->a.kv.page_size = PAGE * PAGES;
	y->a.kv.num_pages = 1;
	for (int b = 0; b < MAX_REQ; b++) {
		int pages = x->kv_indptr[b + 1] - x->kv_indptr[b];
		int rows = x->qo_indptr[b + 1] - x->qo_indptr[b];

		y->kv_indptr[1] = pages > 0;
		y->last[0] = kv_walk_len(pages, x->last[b], PAGE);
		y->qo_indptr[1] = y->a.nnz_qo = rows;
		y->a.q = x->q + x->qo_indptr[b] * ROW;
		y->a.kv.k_pages = x->k + x->kv_indptr[b] * PAGE * SLOT;
		y->a.kv.v_pages = x->v + x->kv_indptr[b] * PAGE * SLOT;
		EXPECT(t, cairn_attn_paged_cpu(&y->a, NULL) == 0);
		EXPECT(t, !memcmp(y->out, x->out + x->qo_indptr[b] * ROW, sizeof(*y->out) * rows * ROW));
		EXPECT(t, !memcmp(y->lse, x->lse + x->qo_indptr[b] * HEADS, sizeof(*y->lse) * rows * HEADS));
	}
	free(x);
	free(y);
}

/*
 * A chunk of a prompt must equal its tokens one by one, over several parts of keys, with or without a
 * window.
 */
static void a_token_alone_changes_no_bit(struct cairn_test *t)
{
	enum { KEYS = 1300, TOKENS = 90, WIDTH = 2 * DIM };	/* two heads over one */
	static const int32_t zero;
	uint16_t *x = malloc(sizeof(*x) * (2 * KEYS * DIM + TOKENS * WIDTH));
	uint16_t *out = malloc(sizeof(*out) * (TOKENS + 1) * WIDTH);
	int32_t qo_indptr[2] = { 0 }, kv_indptr[2] = { 0, 1 }, last;
	struct cairn_attn_paged_args a = {
		.size = sizeof(a), .qo_indptr = qo_indptr,
		.kv = { .k_pages = x, .v_pages = x + KEYS * DIM, .indptr = kv_indptr, .indices = &zero,
			.last_page_len = &last, .num_pages = 1, .page_size = KEYS, .batch = 1,
			.max_len = KEYS },
		.num_qo_heads = 2, .num_kv_heads = 1, .head_dim = DIM, .dtype = CAIRN_BF16, .causal = 1,
		.sm_scale = 0.125f,
	};

	for (int i = 0; i < 2 * KEYS * DIM + TOKENS * WIDTH; i++)
		cairn_store(x, CAIRN_BF16, i, gauss(t));
	for (a.window = 0; a.window <= 700; a.window += 700) {
		a.q = x + 2 * KEYS * DIM;
		a.out = out;
		last = KEYS;
		qo_indptr[1] = a.nnz_qo = a.max_qo_len = TOKENS;
		EXPECT(t, cairn_attn_paged_cpu(&a, NULL) == 0);
		a.out = out + TOKENS * WIDTH;
		qo_indptr[1] = a.nnz_qo = a.max_qo_len = 1;
		for (int i = 0; i < TOKENS; i++) {
			a.q = x + 2 * KEYS * DIM + i * WIDTH;
			last = KEYS - TOKENS + i + 1;
			EXPECT(t, cairn_attn_paged_cpu(&a, NULL) == 0);
			EXPECT(t, !memcmp(a.out, out + i * WIDTH, sizeof(*out) * WIDTH));
		}
	}
	free(x);
	free(out);
}

/* Adding c to a column of K where q is 1 adds sm_scale * c to all logits and to lse; out stays the same. */
static void a_constant_added_to_all_logits(struct cairn_test *t)
{
	struct batch *x = make_batch(t), *y;
	const double c = 2048;

	for (int i = 0; i < MAX_REQ * MAX_QO * HEADS; i++)
		cairn_store(x->q, CAIRN_BF16, (int64_t)i * DIM, 1);
	for (int i = 0; i < PAGES * PAGE * KV_HEADS; i++)
		cairn_store(x->k, CAIRN_BF16, (int64_t)i * DIM, 0);
	y = copy_batch(x);
	for (int i = 0; i < PAGES * PAGE * KV_HEADS; i++)
		cairn_store(y->k, CAIRN_BF16, (int64_t)i * DIM, c);
	EXPECT(t, cairn_attn_paged_cpu(&x->a, NULL) == 0);
	EXPECT(t, cairn_attn_paged_cpu(&y->a, NULL) == 0);
	for (int i = 0; i < x->a.nnz_qo * HEADS; i++) {
		double want = x->lse[i] + (double)x->a.sm_scale * c;

		EXPECT(t, isinf(x->lse[i]) ? y->lse[i] == x->lse[i] : fabs(y->lse[i] - want) <= 1e-4 * c);
	}
	for (int i = 0; i < x->a.nnz_qo * ROW; i++) {
		double a = cairn_load(x->out, CAIRN_BF16, i), b = cairn_load(y->out, CAIRN_BF16, i);

		/* logits near 256 have an error of up to 2^-16 of their value: 0.4% of p; |V| is below 6 */
		EXPECT(t, fabs(a - b) <= 0.05);
	}
	free(x);
	free(y);
}

/* Attention over all keys equals the merge of attention over two parts, weighted by their lse. */
static void two_parts_merge_to_the_whole(struct cairn_test *t)
{
	struct batch *x = make_batch(t), *lo, *hi;

	x->a.causal = 0;
	lo = copy_batch(x);
	hi = copy_batch(x);
	for (int b = 0; b < MAX_REQ; b++) {
		int first = x->kv_indptr[b], pages = x->kv_indptr[b + 1] - first, half = pages / 2;

		for (int i = 0; i < half; i++)
			lo->indices[lo->kv_indptr[b] + i] = x->indices[first + i];
		for (int i = half; i < pages; i++)
			hi->indices[hi->kv_indptr[b] + i - half] = x->indices[first + i];
		lo->kv_indptr[b + 1] = lo->kv_indptr[b] + half;
		hi->kv_indptr[b + 1] = hi->kv_indptr[b] + pages - half;
		lo->last[b] = PAGE;
	}
	EXPECT(t, cairn_attn_paged_cpu(&x->a, NULL) == 0);
	EXPECT(t, cairn_attn_paged_cpu(&lo->a, NULL) == 0);
	EXPECT(t, cairn_attn_paged_cpu(&hi->a, NULL) == 0);
	for (int i = 0; i < x->a.nnz_qo * HEADS; i++) {
		double l = lo->lse[i], h = hi->lse[i], top = fmax(l, h), sum = exp(l - top) + exp(h - top);

		if (isinf(top)) {
			EXPECT(t, x->lse[i] == -INFINITY);
			continue;
		}
		EXPECT(t, fabs(x->lse[i] - top - log(sum)) <= 1e-5);
		for (int c = 0; c < DIM; c++) {
			double want = (exp(l - top) * cairn_load(lo->out, CAIRN_BF16, i * DIM + c) +
				       exp(h - top) * cairn_load(hi->out, CAIRN_BF16, i * DIM + c)) / sum;

			EXPECT(t, fabs(cairn_load(x->out, CAIRN_BF16, i * DIM + c) - want) <= 0x1p-7 * 6);
		}
	}
	free(x);
	free(lo);
	free(hi);
}

static const struct cairn_unit units[] = {
	{ "shares_cover_all_tiles", shares_cover_all_tiles },
	{ "shares_need_no_division", shares_need_no_division },
	{ "swizzle_is_a_permutation_without_conflicts", swizzle_is_a_permutation_without_conflicts },
	{ "visible_keys", visible_keys }, { "first_keys", first_keys },
	{ "token_of_a_row", token_of_a_row },
	{ "page_shift", page_shift },
	{ "split_fits_the_device", split_fits_the_device },
	{ "split_is_the_fastest_one_known", split_is_the_fastest_one_known },
	{ "teams_are_the_fastest_known", teams_are_the_fastest_known },
	{ "teams_fit_the_device", teams_fit_the_device },
	{ "shares_where_they_pay", shares_where_they_pay },
	{ "equal_shares_cover_all_tiles", equal_shares_cover_all_tiles },
	{ "permuted_pages_change_no_bit", permuted_pages_change_no_bit },
	{ "a_request_alone_in_one_long_page_changes_no_bit",
	  a_request_alone_in_one_long_page_changes_no_bit },
	{ "a_token_alone_changes_no_bit", a_token_alone_changes_no_bit },
	{ "a_constant_added_to_all_logits", a_constant_added_to_all_logits },
	{ "two_parts_merge_to_the_whole", two_parts_merge_to_the_whole },
};

const struct cairn_family cairn_attn_tile_family = {
	.stage = "fused", .name = "attn_tile", .units = units, .num_units = ARRAY_SIZE(units),
};
