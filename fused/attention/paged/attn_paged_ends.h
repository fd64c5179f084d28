/* SPDX-License-Identifier: Apache-2.0 */
/*
 * attn_paged_ends - cases of attn_paged at the ends of tiles and of pages (attn_ends.h)
 *
 * attn_paged_test.c includes pairs.h first, and this file after struct shape.
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

static void ends_name(const struct shape *s, char *name, size_t len)
{
	snprintf(name, len, "ends_qo%d_kv%d_p%d_h%d_%d_d%d_w%d_%s%s%s%s", s->qo, s->kv, s->page, s->hq,
		 s->hkv, s->dim, s->window, s->flags & F16 ? "f16" : "bf16", s->flags & FP8 ? "_fp8" : "",
		 s->flags & CAUSAL ? "_causal" : "", s->cap > 0 ? "_cap" : "");
}

#endif
