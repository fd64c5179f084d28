/* SPDX-License-Identifier: Apache-2.0 */
/*
 * attn_paged_ends - cases of attn_paged at the ends of tiles and of pages (attn_ends.h)
 *
 * attn_paged_test.c includes pairs.h first, and this file after struct shape. The requests of a case
 * decodes_* have one query row each and all lengths, so that every length occurs with any two other features.
 */
#ifndef CAIRN_ATTN_PAGED_ENDS_H
#define CAIRN_ATTN_PAGED_ENDS_H

#include "fused/attention/base/attn_ends.h"

#define NUM_ENDS	132

enum { ENDS_PAGE = ATTN_ENDS_FACTORS, ENDS_DIM, ENDS_CAP, ENDS_STRIDE, NUM_ENDS_FACTORS };

static const int ends_pages[] = { 16, 64, 1, 32, 128 }, ends_dims[] = { 64, 128, 256 };

static struct cairn_pairs ends_table = {
	.num_factors = NUM_ENDS_FACTORS, .levels = { ATTN_ENDS_LEVELS, 5, 3, 2, 3 },
	.forbidden = attn_ends_forbidden,
};

static void ends_at(int i, struct shape *s)
{
	const int8_t *level = cairn_pairs_row(&ends_table, i);

	*s = (struct shape){
		.ends = i + 1, .batch = 2, .qo = attn_ends_rows[level[ENDS_ROWS]].qo,
		.kv = attn_ends_keys[level[ENDS_KEYS]], .window = attn_ends_windows[level[ENDS_WINDOW]],
		.hq = attn_ends_qo_heads(level), .hkv = attn_ends_kv_heads(level),
		.dim = ends_dims[level[ENDS_DIM]], .page = ends_pages[level[ENDS_PAGE]],
		.cap = level[ENDS_CAP] ? 5 : 0, .gap = level[ENDS_STRIDE] == 1 ? 8 : 0,
		.flags = (level[ENDS_FEATURES] & ENDS_NOT_CAUSAL ? 0 : CAUSAL) |
			 (level[ENDS_FEATURES] & ENDS_F16 ? F16 : 0) | LSE |
			 (level[ENDS_STRIDE] == 2 ? PACKED : 0) |
			 (level[ENDS_FEATURES] & ENDS_THIRD ? SCALES : 0),
	};
}

#define NUM_DECODES	34

enum {
	DECODES_HEADS, DECODES_GROUP, DECODES_PAGE, DECODES_WINDOW, DECODES_DIM, DECODES_STRIDE, DECODES_CAP,
	DECODES_DTYPE, NUM_DECODES_FACTORS
};

static const int decodes_group[] = { 1, 3, 7, 8, 17 };

static int decodes_forbidden(const int8_t *level)
{
	const int h = level[DECODES_HEADS], g = level[DECODES_GROUP];

	return h >= 0 && g >= 0 && (1 + h / 2) * decodes_group[g] > 24;
}

/* the first factor combines 1, 2 or 3 KV heads with keys of 16 or of 8 bits */
static struct cairn_pairs decodes_table = {
	.num_factors = NUM_DECODES_FACTORS, .levels = { 6, 5, 5, 4, 3, 3, 2, 2 },
	.forbidden = decodes_forbidden,
};

static void decodes_at(int i, struct shape *s)
{
	static const int lens[] = { 1, 15, 16, 17, 63, 64, 65, 127, 128, 129, 191, 255 };
	static const int window[] = { 0, 17, 64, 63 };
	const int8_t *level = cairn_pairs_row(&decodes_table, i);

	*s = (struct shape){
		.ends = NUM_ENDS + 1 + i, .batch = sizeof(lens) / sizeof(lens[0]), .qo = 1, .kv = 255,
		.kv_lens = lens, .window = window[level[DECODES_WINDOW]],
		.hkv = 1 + level[DECODES_HEADS] / 2, .dim = ends_dims[level[DECODES_DIM]],
		.page = ends_pages[level[DECODES_PAGE]], .cap = level[DECODES_CAP] ? 5 : 0,
		.gap = level[DECODES_STRIDE] == 1 ? 8 : 0,
		.flags = CAUSAL | LSE | (level[DECODES_DTYPE] ? F16 : 0) |
			 (level[DECODES_STRIDE] == 2 ? PACKED : 0) | (level[DECODES_HEADS] % 2 ? SCALES : 0),
	};
	s->hq = s->hkv * decodes_group[level[DECODES_GROUP]];
}

static void ends_name(const struct shape *s, char *name, size_t len)
{
	snprintf(name, len, "%s_qo%d_kv%d_p%d_h%d_%d_d%d_w%d_%s%s%s%s", s->kv_lens ? "decodes" : "ends",
		 s->qo, s->kv, s->page, s->hq, s->hkv, s->dim, s->window, s->flags & F16 ? "f16" : "bf16",
		 s->flags & FP8 ? "_fp8" : "", s->flags & CAUSAL ? "_causal" : "", s->cap > 0 ? "_cap" : "");
}

#endif
