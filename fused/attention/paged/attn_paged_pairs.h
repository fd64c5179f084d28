/* SPDX-License-Identifier: Apache-2.0 */
/*
 * attn_paged_pairs - cases in which every two features of attn_paged occur together (pairs.h)
 *
 * attn_paged_test.c includes pairs.h first, and this file after struct shape. The lengths are the fixed ones
 * of attn_lengths.h, so that whether a defect is found does not depend on the seed.
 */
#ifndef CAIRN_ATTN_PAGED_PAIRS_H
#define CAIRN_ATTN_PAGED_PAIRS_H

#include "fused/attention/base/attn_lengths.h"

enum {
	PAIR_GROUP, PAIR_HEADS, PAIR_PAGE, PAIR_WINDOW, PAIR_DIM, PAIR_LENGTHS, PAIR_TABLES, PAIR_STRIDE,
	PAIR_CAP, PAIR_SCALE, PAIR_DTYPE, PAIR_CAUSAL, PAIR_LSE, PAIR_LOGITS, PAIR_SMS, NUM_PAIR_FACTORS
};

static const int pair_group[] = { 1, 2, 3, 4, 5, 6, 7, 8 }, pair_heads[] = { 1, 2, 3, 5 };
static const int pair_page[] = { 16, 128, 32, 1, 48, 64 }, pair_window[] = { 0, 16, 1, 33, 5, 64, 100 };
static const int pair_dim[] = { 64, 128, 256 };
static const float pair_cap[] = { 0, 30, 0.7f }, pair_scale[] = { 0, 0.3f, 1.3f };

static const unsigned pair_tables[] = { 0, PAGED_PADDED, PAGED_SPARE, PAGED_DUPLICATE };

/* Forbids more than 40 query heads in a prefill: such a case would cost more than all others together. */
static int pair_forbidden(const int8_t *level)
{
	return level[PAIR_LENGTHS] == 3 && level[PAIR_GROUP] >= 0 && level[PAIR_HEADS] >= 0 &&
	       pair_group[level[PAIR_GROUP]] * pair_heads[level[PAIR_HEADS]] > 16;
}

static struct cairn_pairs pair_table = {
	.num_factors = NUM_PAIR_FACTORS,
	.levels = { 8, 4, 6, 7, 3, 5, 4, 4, 3, 3, 2, 2, 2, 2, 2 },
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
	s->page = pair_page[level[PAIR_PAGE]];
	s->hkv = pair_heads[level[PAIR_HEADS]];
	s->hq = s->hkv * pair_group[level[PAIR_GROUP]];
	s->dim = pair_dim[level[PAIR_DIM]];
	s->window = pair_window[level[PAIR_WINDOW]];
	s->cap = pair_cap[level[PAIR_CAP]];
	s->scale = pair_scale[level[PAIR_SCALE]];
	s->gap = level[PAIR_STRIDE] == 2 ? 8 : 0;
	s->explicit_stride = level[PAIR_STRIDE] == 1;
	s->equal = level[PAIR_LOGITS] == 0;
	s->sms = level[PAIR_SMS] ? 2 : 0;
	s->flags = pair_tables[level[PAIR_TABLES]] | (level[PAIR_STRIDE] == 3 ? PACKED : 0) |
		   (level[PAIR_DTYPE] ? F16 : 0) | (level[PAIR_CAUSAL] ? CAUSAL : 0) |
		   (level[PAIR_LSE] ? LSE : 0);
}

static void pair_name(const struct shape *s, char *name, size_t len)
{
	snprintf(name, len, "%spair_%d_h%d_%d_d%d_p%d_%s%s%s%s", s->flags & FP8 ? "fp8_" : "", s->pair,
		 s->hq, s->hkv, s->dim, s->page, s->flags & F16 ? "f16" : "bf16",
		 s->flags & CAUSAL ? "_causal" : "", s->window ? "_window" : "", s->cap > 0 ? "_cap" : "");
}

#endif
