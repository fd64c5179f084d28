/* SPDX-License-Identifier: Apache-2.0 */
/*
 * attn_dense_ends - cases of attn_dense and attn_bwd at the ends of tiles (attn_ends.h)
 *
 * The tests of both include pairs.h and attn_dense_inputs.h first.
 */
#ifndef CAIRN_ATTN_DENSE_ENDS_H
#define CAIRN_ATTN_DENSE_ENDS_H

#include "fused/attention/base/attn_ends.h"

#define NUM_ENDS	131

enum { ENDS_DIM = ATTN_ENDS_FACTORS, ENDS_LAYOUT, ENDS_GAP, NUM_ENDS_FACTORS };

static const int ends_dims[][2] = { { 64, 64 }, { 80, 112 }, { 128, 128 }, { 192, 128 } };

static struct cairn_pairs ends_table = {
	.num_factors = NUM_ENDS_FACTORS, .levels = { ATTN_ENDS_LEVELS, 4, NUM_LAYOUTS, 3 },
	.forbidden = attn_ends_forbidden,
};

static void ends_at(int i, struct shape *s)
{
	const int8_t *level = cairn_pairs_row(&ends_table, i);

	*s = (struct shape){
		.ends = i + 1, .batch = 2, .qo = attn_ends_rows[level[ENDS_ROWS]].qo,
		.kv = attn_ends_keys[level[ENDS_KEYS]], .window = attn_ends_windows[level[ENDS_WINDOW]],
		.hq = attn_ends_qo_heads(level), .hkv = attn_ends_kv_heads(level),
		.qk = ends_dims[level[ENDS_DIM]][0], .v = ends_dims[level[ENDS_DIM]][1],
		.layout = level[ENDS_LAYOUT], .cap = level[ENDS_FEATURES] & ENDS_THIRD ? 5 : 0,
		.q_gap = 8 * level[ENDS_GAP],
		.flags = (level[ENDS_FEATURES] & ENDS_NOT_CAUSAL ? 0 : CAUSAL) |
			 (level[ENDS_FEATURES] & ENDS_F16 ? F16 : 0) | LSE,
	};
}

static void ends_name(const struct shape *s, char *name, size_t len)
{
	snprintf(name, len, "ends_qo%d_kv%d_h%d_%d_d%d_%d_w%d_%s_%s%s%s%s", s->qo, s->kv, s->hq, s->hkv,
		 s->qk, s->v, s->window, layout_names[s->layout], s->flags & F16 ? "f16" : "bf16",
		 s->flags & CAUSAL ? "_causal" : "", s->cap > 0 ? "_cap" : "", s->q_gap ? "_gaps" : "");
}

#endif
