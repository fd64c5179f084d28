/* SPDX-License-Identifier: Apache-2.0 */
/*
 * attn_dense_pairs - cases in which every two features of attn_dense occur together (pairs.h)
 *
 * The tests of attn_dense and of attn_bwd include pairs.h first, and this file after struct shape. The
 * lengths are the fixed ones of attn_lengths.h, so that whether a defect is found does not depend on the
 * seed.
 */
#ifndef CAIRN_ATTN_DENSE_PAIRS_H
#define CAIRN_ATTN_DENSE_PAIRS_H

#include "fused/attention/base/attn_lengths.h"

enum {
	PAIR_QK, PAIR_V, PAIR_GROUP, PAIR_HEADS, PAIR_WINDOW, PAIR_LENGTHS, PAIR_KV_LAYOUT, PAIR_Q_STRIDE,
	PAIR_CAP, PAIR_SCALE, PAIR_PADDED, PAIR_DTYPE, PAIR_CAUSAL, PAIR_LSE, PAIR_LOGITS, PAIR_SMS,
	NUM_PAIR_FACTORS
};

static const int pair_dim[] = { 64, 80, 96, 112, 128, 192, 256 };
static const int pair_group[] = { 1, 2, 3, 4, 5, 7, 8 }, pair_heads[] = { 1, 2, 3, 5 };
static const int pair_window[] = { 0, 16, 1, 33, 5, 64, 100 };
static const float pair_cap[] = { 0, 30, 0.7f }, pair_scale[] = { 0, 0.3f, 1.3f };

/* Forbids more than 16 query heads in a prefill: such a case would cost more than all others together. */
static int pair_forbidden(const int8_t *level)
{
	return level[PAIR_LENGTHS] == 3 && level[PAIR_GROUP] >= 0 && level[PAIR_HEADS] >= 0 &&
	       pair_group[level[PAIR_GROUP]] * pair_heads[level[PAIR_HEADS]] > 16;
}

static struct cairn_pairs pair_table = {
	.num_factors = NUM_PAIR_FACTORS,
	.levels = { 7, 7, 7, 4, 7, 5, NUM_LAYOUTS, 3, 3, 3, 2, 2, 2, 2, 2, 2 },
	.forbidden = pair_forbidden,
};

static void pair_at(int i, struct shape *s)
{
	const int8_t *level = cairn_pairs_row(&pair_table, i);

	memset(s, 0, sizeof(*s));
	s->pair = i + 1;
	s->batch = attn_lengths[level[PAIR_LENGTHS]].batch;
	s->qo_lens = attn_lengths[level[PAIR_LENGTHS]].qo;
	s->kv_lens = attn_lengths[level[PAIR_LENGTHS]].kv;
	s->qo = s->qo_lens[0];
	s->kv = s->kv_lens[0];
	s->hkv = pair_heads[level[PAIR_HEADS]];
	s->hq = s->hkv * pair_group[level[PAIR_GROUP]];
	s->qk = pair_dim[level[PAIR_QK]];
	s->v = pair_dim[level[PAIR_V]];
	s->window = pair_window[level[PAIR_WINDOW]];
	s->cap = pair_cap[level[PAIR_CAP]];
	s->scale = pair_scale[level[PAIR_SCALE]];
	s->layout = level[PAIR_KV_LAYOUT];
	s->q_gap = level[PAIR_Q_STRIDE] == 2 ? 8 : 0;
	s->explicit_stride = level[PAIR_Q_STRIDE] == 1;
	s->equal = level[PAIR_LOGITS] == 0;
	s->sms = level[PAIR_SMS] ? 2 : 0;
	s->flags = (level[PAIR_PADDED] ? PAGED_PADDED : 0) | (level[PAIR_DTYPE] ? F16 : 0) |
		   (level[PAIR_CAUSAL] ? CAUSAL : 0) | (level[PAIR_LSE] ? LSE : 0);
}

static void pair_name(const struct shape *s, char *name, size_t len)
{
	snprintf(name, len, "pair_%d_h%d_%d_d%d_%d_%s_%s%s%s%s", s->pair, s->hq, s->hkv, s->qk, s->v,
		 layout_names[s->layout], s->flags & F16 ? "f16" : "bf16",
		 s->flags & CAUSAL ? "_causal" : "", s->window ? "_window" : "", s->cap > 0 ? "_cap" : "");
}

#endif
