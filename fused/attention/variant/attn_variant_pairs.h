/* SPDX-License-Identifier: Apache-2.0 */
/*
 * attn_variant_pairs - cases in which every two features of attn_variant occur together
 *
 * The test includes conformance/suite/pairs.h first.
 */
#ifndef CAIRN_ATTN_VARIANT_PAIRS_H
#define CAIRN_ATTN_VARIANT_PAIRS_H

#include "fused/attention/base/attn_lengths.h"

enum {
	PAIR_VARIANT, PAIR_GROUP, PAIR_LENGTHS, PAIR_HEADS, PAIR_LAYOUT, PAIR_DIM, PAIR_Q_GAP, PAIR_PADDED,
	PAIR_DTYPE, PAIR_CAUSAL, PAIR_LSE, PAIR_SMS, NUM_PAIR_FACTORS
};

static const struct pair_variant {
	const char *name;
	int variant;
	unsigned flags;
	float p0;
} pair_variant[] = {
	{ "plain", CAIRN_VARIANT_PLAIN, 0, 0 }, { "window", CAIRN_VARIANT_PLAIN, 0, 33 },
	{ "window_sink", CAIRN_VARIANT_PLAIN, SINK, 1 }, { "sink", CAIRN_VARIANT_PLAIN, SINK, 0 },
	{ "rope", CAIRN_VARIANT_ROPE, 0, 0 }, { "rope_interleaved", CAIRN_VARIANT_ROPE, INTERLEAVED, 0 },
	{ "alibi", CAIRN_VARIANT_ALIBI, 0, 0 }, { "softcap", CAIRN_VARIANT_SOFTCAP, 0, 0.7f },
	{ "sigmoid", CAIRN_VARIANT_SIGMOID, 0, -3 }, { "bits", CAIRN_VARIANT_BITS, 0, 0 },
};
static const int pair_group[] = { 1, 2, 3, 4, 5, 7, 8 }, pair_heads[] = { 1, 2, 3 };

/*
 * Forbids lse with sigmoid, and more than 16 query heads in a prefill, which would cost more than the rest.
 */
static int pair_forbidden(const int8_t *level)
{
	if (level[PAIR_VARIANT] >= 0 && pair_variant[level[PAIR_VARIANT]].variant == CAIRN_VARIANT_SIGMOID &&
	    level[PAIR_LSE] == 1)
		return 1;
	return level[PAIR_LENGTHS] == 3 && level[PAIR_GROUP] >= 0 && level[PAIR_HEADS] >= 0 &&
	       pair_group[level[PAIR_GROUP]] * pair_heads[level[PAIR_HEADS]] > 16;
}

static struct cairn_pairs pair_table = {
	.num_factors = NUM_PAIR_FACTORS,
	.levels = { ARRAY_SIZE(pair_variant), 7, 5, 3, NUM_LAYOUTS, 2, 2, 2, 2, 2, 2, 2 },
	.forbidden = pair_forbidden,
};

static void pair_at(int i, struct shape *s)
{
	const int8_t *level = cairn_pairs_row(&pair_table, i);
	const struct pair_variant *v = &pair_variant[level[PAIR_VARIANT]];

	memset(s, 0, sizeof(*s));
	s->pair = i + 1;
	s->name = v->name;
	s->variant = v->variant;
	s->p0 = v->p0;
	s->batch = attn_lengths[level[PAIR_LENGTHS]].batch;
	s->qo_lens = attn_lengths[level[PAIR_LENGTHS]].qo;
	s->kv_lens = attn_lengths[level[PAIR_LENGTHS]].kv;
	s->qo = s->qo_lens[0];
	s->kv = s->kv_lens[0];
	s->hkv = pair_heads[level[PAIR_HEADS]];
	s->hq = s->hkv * pair_group[level[PAIR_GROUP]];
	s->dim = level[PAIR_DIM] ? 128 : 64;
	s->layout = level[PAIR_LAYOUT];
	s->q_gap = level[PAIR_Q_GAP] ? 8 : 0;
	s->sms = level[PAIR_SMS] ? 2 : 0;
	s->flags = v->flags | (level[PAIR_PADDED] ? PAGED_PADDED : 0) | (level[PAIR_DTYPE] ? F16 : 0) |
		   (level[PAIR_CAUSAL] ? CAUSAL : 0) | (level[PAIR_LSE] ? LSE : 0);
}

static void pair_name(const struct shape *s, char *name, size_t len)
{
	snprintf(name, len, "pair_%d_%s_h%d_%d_d%d_%s%s%s", s->pair, s->name, s->hq, s->hkv, s->dim,
		 s->flags & F16 ? "f16" : "bf16", s->flags & CAUSAL ? "_causal" : "",
		 s->flags & LSE ? "_lse" : "");
}

#endif
