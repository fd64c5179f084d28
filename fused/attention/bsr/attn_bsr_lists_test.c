// SPDX-License-Identifier: Apache-2.0
/*
 * attn_bsr_lists_test - different descriptions of the same attention (pages, parts, trees, shuffled tokens)
 * must give the same bits in the reference; and cairn_attn_bsr_valid() must reject wrong arrays
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "conformance/harness.h"
#include "fused/attention/paged/attn_paged.h"
#include "fused/attention/bsr/attn_bsr.h"

#define HEADS	2
#define DIM	64
#define ROW	(HEADS * DIM)
#define TOKENS	12
#define PAGE	4
#define PAGES	16
#define SLOTS	(PAGES * PAGE)

/* Three requests of 5, 1 and 6 tokens, with 17, 9 and 6 keys on pages that are not in order. */
static const int32_t qo_indptr[] = { 0, 5, 6, 12 }, kv_indptr[] = { 0, 5, 8, 10 };
static const int32_t kv_indices[] = { 3, 9, 0, 15, 7, 1, 4, 12, 2, 8 }, last_len[] = { 1, 1, 2 };

struct data {
	uint16_t q[TOKENS * ROW], k[SLOTS * ROW], v[SLOTS * ROW];
	uint16_t out[2][TOKENS * ROW];
	float lse[2][TOKENS * HEADS];
};

static struct data *new_data(void)
{
	struct data *d = calloc(1, sizeof(*d));
	uint32_t x = 12345;

	for (int i = 0; d && i < TOKENS * ROW + 2 * SLOTS * ROW; i++) {
		uint16_t *to = i < TOKENS * ROW ? d->q + i : d->k + (i - TOKENS * ROW);

		x = x * 1664525 + 1013904223;
		cairn_store(to, CAIRN_BF16, 0, (double)(int32_t)x * 0x1p-30);
	}
	return d;
}

static struct cairn_attn_bsr_args call_of(struct data *d, int which)
{
	struct cairn_attn_bsr_args a = {
		.size = sizeof(a), .out = d->out[which], .lse = d->lse[which], .q = d->q, .num_parts = 1,
		.nnz_qo = TOKENS, .num_qo_heads = HEADS, .num_kv_heads = HEADS, .head_dim = DIM,
		.dtype = CAIRN_BF16, .sm_scale = 0.125f,
		.part[0] = {
			.k = d->k, .v = d->v, .row_indptr = qo_indptr, .blk_indptr = kv_indptr,
			.blk_indices = kv_indices, .last_len = last_len, .rows = 3, .block_m = 1,
			.block_n = PAGE, .index_heads = 1, .num_blocks = PAGES, .max_keys = 17,
			.mask_mode = CAIRN_ATTN_CAUSAL,
		},
	};

	return a;
}

static void expect_same(struct cairn_test *t, const struct data *d)
{
	EXPECT(t, !memcmp(d->out[0], d->out[1], sizeof(d->out[0])));
	EXPECT(t, !memcmp(d->lse[0], d->lse[1], sizeof(d->lse[0])));
	EXPECT(t, d->lse[0][0] != 0 && d->lse[0][TOKENS * HEADS - 1] != 0);
}

static void pages(struct cairn_test *t)
{
	struct data *d = new_data();
	struct cairn_attn_bsr_args a;
	struct cairn_attn_paged_args p = {
		.size = sizeof(p), .qo_indptr = qo_indptr, .nnz_qo = TOKENS, .max_qo_len = 6,
		.num_qo_heads = HEADS, .num_kv_heads = HEADS, .head_dim = DIM, .dtype = CAIRN_BF16,
		.causal = 1, .sm_scale = 0.125f,
		.kv = { .indptr = kv_indptr, .indices = kv_indices, .last_page_len = last_len, .batch = 3,
			.page_size = PAGE, .num_pages = PAGES, .max_len = 17 },
	};

	if (!EXPECT(t, d))
		return;
	for (int window = 0; window < 8; window += 3) {
		a = call_of(d, 0);
		p.out = d->out[1];
		p.lse = d->lse[1];
		p.q = d->q;
		p.kv.k_pages = d->k;
		p.kv.v_pages = d->v;
		a.window = p.window = window;
		a.softcap = p.softcap = window ? 2 : 0;
		EXPECT(t, cairn_attn_bsr_ref(&a, NULL) == 0 && cairn_attn_paged_ref(&p, NULL) == 0);
		expect_same(t, d);
	}
	free(d);
}

/* Pages that two rows share: once in a part of their own, once at the beginning of each row's list. */
static void prefix(struct cairn_test *t)
{
	static const int32_t all[] = { 0, TOKENS }, two[] = { 0, 2 }, both[] = { 5, 6 };
	static const int32_t long_indptr[] = { 0, 7, 12, 16 };
	static const int32_t long_indices[] = { 5, 6, 3, 9, 0, 15, 7, 5, 6, 1, 4, 12, 5, 6, 2, 8 };
	static const int32_t pos0[] = { 8, 8, 8 };
	int32_t q_pos[TOKENS];
	struct cairn_attn_bsr_args a, b;
	struct data *d = new_data();

	if (!EXPECT(t, d))
		return;
	for (int i = 0; i < TOKENS; i++)
		q_pos[i] = i < 5 ? 20 + i : i < 6 ? 16 : 2 + i;
	a = call_of(d, 0);
	a.part[0].blk_indptr = long_indptr;
	a.part[0].blk_indices = long_indices;
	a.part[0].max_keys = 25;
	b = call_of(d, 1);
	b.num_parts = 2;
	b.part[1] = b.part[0];
	b.part[1].kv_pos0 = pos0;
	b.part[0].row_indptr = all;
	b.part[0].rows = 1;
	b.part[0].blk_indptr = two;
	b.part[0].blk_indices = both;
	b.part[0].last_len = NULL;
	b.part[0].max_keys = 8;
	b.part[0].mask_mode = CAIRN_ATTN_ALL;
	a.q_pos = b.q_pos = q_pos;
	EXPECT(t, cairn_attn_bsr_ref(&a, NULL) == 0 && cairn_attn_bsr_ref(&b, NULL) == 0);
	expect_same(t, d);
	free(d);
}

/* Bits that admit all keys up to a token's own position must equal a causal mask, in any order of tokens. */
static void bits_and_places(struct cairn_test *t)
{
	static const int32_t index[TOKENS] = { 4, 3, 2, 1, 0, 5, 11, 10, 9, 8, 7, 6 };
	static const int64_t mask_indptr[] = { 0, 5 * 3, 5 * 3 + 2 };
	static const int lens[] = { 17, 9, 6 };
	uint8_t mask[5 * 3 + 2 + 6] = { 0 };
	struct cairn_attn_bsr_args a, b;
	struct data *d = new_data();

	if (!EXPECT(t, d))
		return;
	for (int r = 0; r < 3; r++)
		for (int i = qo_indptr[r]; i < qo_indptr[r + 1]; i++)
			for (int n = 0; n <= index[i] - qo_indptr[r + 1] + lens[r]; n++)
				mask[mask_indptr[r] + (i - qo_indptr[r]) * ((lens[r] + 7) / 8) + n / 8] |=
					(uint8_t)(1 << n % 8);
	a = call_of(d, 0);
	b = call_of(d, 1);
	b.part[0].q_index = index;
	b.part[0].mask = mask;
	b.part[0].mask_indptr = mask_indptr;
	b.part[0].mask_mode = CAIRN_ATTN_BITS;
	EXPECT(t, cairn_attn_bsr_valid(&b) == 0);
	EXPECT(t, cairn_attn_bsr_ref(&a, NULL) == 0 && cairn_attn_bsr_ref(&b, NULL) == 0);
	expect_same(t, d);
	free(d);
}

static void expect_refused(struct cairn_test *t, const struct cairn_attn_bsr_args *a, const char *what)
{
	EXPECT(t, cairn_attn_bsr_check(a) == 0);
	EXPECT(t, cairn_attn_bsr_valid(a) == -EINVAL);
	EXPECT_CONTAINS(t, cairn_last_error(), what);
}

static void wrong_arrays(struct cairn_test *t)
{
	static const int32_t falls[] = { 0, 5, 4, 12 }, starts_late[] = { 1, 5, 6, 12 };
	static const int32_t too_many[] = { 0, 5, 6, 13 };
	static const int32_t twice[TOKENS] = { 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 10 };
	static const int32_t no_token[TOKENS] = { 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12 };
	static const int32_t no_block[] = { 3, 9, 0, 15, 7, 1, 4, 16, 2, 8 };
	static const int32_t lists_fall[] = { 0, 5, 3, 10 }, empty[] = { 1, 0, 2 }, over[] = { 1, 5, 2 };
	static const int64_t before[] = { 0, -1, 3 };
	struct data *d = new_data();
	struct cairn_attn_bsr_args a;

	if (!EXPECT(t, d))
		return;
	a = call_of(d, 0);
	EXPECT(t, cairn_attn_bsr_valid(&a) == 0);
#define REFUSED(member, array, what) \
	a = call_of(d, 0); \
	a.part[0].member = array; \
	expect_refused(t, &a, what)
	REFUSED(row_indptr, falls, "part[0].row_indptr[2]: 4 is below the one before it");
	REFUSED(row_indptr, starts_late, "part[0].row_indptr: must begin with 0");
	REFUSED(row_indptr, too_many, "end with at most nnz_qo, 12");
	REFUSED(q_index, twice, "part[0].q_index[11]: 10 is no token, or occurs twice");
	REFUSED(q_index, no_token, "part[0].q_index[11]: 12 is no token");
	REFUSED(blk_indices, no_block, "part[0].blk_indices[7]: 16 is not among 16 blocks");
	REFUSED(blk_indptr, lists_fall, "part[0].blk_indptr[2]: 3 is below");
	REFUSED(last_len, empty, "part[0].last_len[1]: 0 is not 1 .. 4");
	REFUSED(last_len, over, "part[0].last_len[1]: 5 is not 1 .. 4");
	REFUSED(max_keys, 16, "part[0].max_keys: row 0 has more");
	a = call_of(d, 0);
	a.part[0].mask_mode = CAIRN_ATTN_BITS;
	a.part[0].mask = (const uint8_t *)d->q;
	a.part[0].mask_indptr = before;
	expect_refused(t, &a, "part[0].mask_indptr[1]: must be >= 0");
	free(d);
}

static const struct cairn_unit units[] = {
	{ "pages", pages },
	{ "prefix", prefix },
	{ "bits_and_places", bits_and_places },
	{ "wrong_arrays", wrong_arrays },
};

const struct cairn_family cairn_attn_bsr_lists_family = {
	.stage = "fused", .name = "attn_bsr_lists", .units = units, .num_units = ARRAY_SIZE(units),
};
