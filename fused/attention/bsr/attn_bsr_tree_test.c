// SPDX-License-Identifier: Apache-2.0
/*
 * attn_bsr_tree_test - on host tables, a row of a token tree gets the bits of attn_paged for its path
 *
 * The engine relies on it: answers with token trees are those without, bit for bit.
 */
#include <string.h>

#include "conformance/harness.h"
#include "conformance/tables/tables.h"
#include "primitives/base/dtype.h"

enum { ROWS = 5, HEADS = 4, KV_HEADS = 2, DIM = 64, MOST = 1200 };

static const int32_t parents[ROWS] = { -1, 0, 0, 1, 3 };

struct cache {
	uint16_t k[(MOST + ROWS) * KV_HEADS * DIM], v[(MOST + ROWS) * KV_HEADS * DIM];
	uint16_t q[ROWS * HEADS * DIM], got[ROWS * HEADS * DIM], want[ROWS * HEADS * DIM];
	int32_t slots[MOST + ROWS];		/* of the context, then of the tree; not in order */
};

static void fill(struct cairn_test *t, uint16_t *x, size_t n, int kv_fp8)
{
	for (size_t i = 0; i < n; i++) {
		if (kv_fp8)	/* two codes of e4m3, no NaN */
			x[i] = (uint16_t)(cairn_rand(t) & 0xbfbf);
		else
			cairn_store(x, CAIRN_BF16, (int64_t)i, (double)(cairn_rand(t) % 2001) / 500 - 2);
	}
}

/* Row i by attn_paged: pages of one key, those of the context and of the rows from the root to row i. */
static int by_path(const struct cairn_impl *impl, struct cache *c, const struct cairn_attn_bsr_args *tree,
		   int32_t context, int i)
{
	int32_t list[MOST + ROWS], path[ROWS], depth = 0;
	int32_t qo_indptr[2] = { 0, 1 }, indptr[2] = { 0 }, last = 1;
	struct cairn_attn_paged_args args = {
		.size = sizeof(args), .out = c->want + i * HEADS * DIM, .q = c->q + i * HEADS * DIM,
		.qo_indptr = qo_indptr, .nnz_qo = 1, .max_qo_len = 1, .num_qo_heads = HEADS,
		.num_kv_heads = KV_HEADS, .head_dim = DIM, .dtype = CAIRN_BF16, .causal = 1,
		.sm_scale = tree->sm_scale, .window = tree->window, .softcap = tree->softcap,
		.kv_fp8 = tree->kv_fp8, .k_scale = tree->part[0].k_scale, .v_scale = tree->part[0].v_scale,
		.kv = { .k_pages = c->k, .v_pages = c->v, .indptr = indptr, .indices = list,
			.last_page_len = &last, .num_pages = MOST + ROWS, .page_size = 1, .batch = 1 },
	};

	for (int row = i; row >= 0; row = parents[row])
		path[depth++] = row;
	memcpy(list, c->slots, (size_t)context * sizeof(*list));
	for (int k = 0; k < depth; k++)
		list[context + k] = c->slots[context + path[depth - 1 - k]];
	indptr[1] = args.kv.max_len = context + depth;
	return impl->attn_paged(&args, NULL);
}

static int all_rows(const struct cairn_impl *impl, struct cache *c, struct cairn_attn_bsr_args *args,
		    int32_t context)
{
	const int32_t past[2] = { 0, context }, own[2] = { 0, ROWS }, places[2] = { 0, ROWS };
	const int32_t far = context + ROWS;
	const int64_t begin = 0;
	int32_t positions[ROWS];
	uint8_t mask[ROWS];

	for (int i = 0; i < ROWS; i++) {
		positions[i] = i ? positions[parents[i]] + 1 : context;
		mask[i] = (uint8_t)((i ? mask[parents[i]] : 0) | 1 << i);
	}
	args->q_pos = positions;
	for (int k = 0; k < 2; k++) {
		struct cairn_attn_part *p = &args->part[k];

		p->k = c->k;
		p->v = c->v;
		p->row_indptr = places;
		p->rows = p->block_n = p->index_heads = 1;
		p->block_m = ROWS;
		p->num_blocks = p->max_keys = MOST + ROWS;
		p->blk_indptr = k ? own : past;
		p->blk_indices = k ? c->slots + context : c->slots;
		p->mask_mode = k ? CAIRN_ATTN_BITS : CAIRN_ATTN_CAUSAL;
	}
	args->part[1].kv_pos0 = &far;
	args->part[1].mask = mask;
	args->part[1].mask_indptr = &begin;
	return impl->attn_bsr(args, NULL);
}

static void same_bits(struct cairn_test *t, const char *table)
{
	static const int32_t contexts[] = { 1, 31, 32, 100, 510, 511, 512, 1100 };
	static const float scales[] = { 0.75f, 1.5f };
	static struct cache c;
	struct cairn_impl impl;

	if (!EXPECT(t, cairn_impl_open(table, &impl) == 0))
		return;
	for (size_t i = 0; i < ARRAY_SIZE(contexts) * 4; i++) {
		int32_t context = contexts[i / 4];
		struct cairn_attn_bsr_args args = {
			.size = sizeof(args), .out = c.got, .q = c.q, .num_parts = 2, .nnz_qo = ROWS,
			.num_qo_heads = HEADS, .num_kv_heads = KV_HEADS, .head_dim = DIM, .dtype = CAIRN_BF16,
			.sm_scale = 0.125f, .window = i % 4 == 1 ? 45 : 0, .softcap = i % 4 == 2 ? 9 : 0,
			.kv_fp8 = i % 4 == 3,
		};

		for (int k = 0; k < 2 && args.kv_fp8; k++)
			args.part[k].k_scale = args.part[k].v_scale = scales;
		fill(t, c.k, ARRAY_SIZE(c.k), args.kv_fp8);
		fill(t, c.v, ARRAY_SIZE(c.v), args.kv_fp8);
		fill(t, c.q, ARRAY_SIZE(c.q), 0);
		for (int32_t k = 0; k < MOST + ROWS; k++)
			c.slots[k] = (k * 7 + 3) % (MOST + ROWS);
		EXPECT(t, all_rows(&impl, &c, &args, context) == 0);
		for (int row = 0; row < ROWS; row++)
			EXPECT(t, by_path(&impl, &c, &args, context, row) == 0);
		if (!EXPECT(t, !memcmp(c.got, c.want, sizeof(c.got))))
			cairn_note(t, "context %d, form %zu", context, i % 4);
	}
}

static void cpu(struct cairn_test *t)
{
	same_bits(t, "cpu");
}

static void ref(struct cairn_test *t)
{
	same_bits(t, "ref");
}

static const struct cairn_unit units[] = {
	{ "cpu", cpu }, { "ref", ref },
};

const struct cairn_family cairn_attn_bsr_tree_family = {
	.stage = "fused",
	.name = "attn_bsr_tree",
	.units = units,
	.num_units = ARRAY_SIZE(units),
};
