/* SPDX-License-Identifier: Apache-2.0 */
/*
 * decode_step_pairs - cases that combine any two features of decode_step (pairs.h)
 *
 * Include pairs.h, paged_test.h and decode_step_test.h first. Lengths and ids are fixed, so that a defect
 * shows with every seed or with none. The embedding is of the usual size, or so small that eps dominates in
 * the first layer; eps goes from 1e-12 to 1. A third request holds a NaN, which must not reach other
 * requests.
 */
#ifndef CAIRN_DECODE_STEP_PAIRS_H
#define CAIRN_DECODE_STEP_PAIRS_H

#include <math.h>
#include <string.h>

#define NUM_PAIRS	49

enum {
	PAIR_GROUP, PAIR_PAGE, PAIR_MODEL, PAIR_TOKENS, PAIR_LENGTHS, PAIR_BIAS, PAIR_EPS, PAIR_FORM,
	PAIR_HEADS, PAIR_HIDDEN, PAIR_INTER, PAIR_LAYERS, PAIR_VOCAB, PAIR_TABLES, PAIR_SIZE, PAIR_DIM,
	PAIR_TIED, PAIR_GAPS, PAIR_SCALE, PAIR_FAR, PAIR_DTYPE, PAIR_SMS, NUM_PAIR_FACTORS
};

static const int pair_group[] = { 1, 2, 3, 5, 7, 8 }, pair_heads[] = { 1, 2, 3 };

static const struct {
	int latent, lora, experts, top, expert_inter, shared, dense;
	unsigned flags;
	float scaling;
} pair_model[] = {
	{ 0 },
	{ .experts = 8, .top = 2, .expert_inter = 64, .shared = 128, .dense = 1, .scaling = 1 },
	{ .latent = 1 },
	{ .experts = 7, .top = 3, .expert_inter = 128, .flags = NORMED, .scaling = 1.5f },
	{ .latent = 1, .lora = 64, .experts = 4, .top = 1, .expert_inter = 64, .dense = 1, .scaling = 2.5f },
};

/*
 * Excludes the persistent form, which is optional, for experts without latent attention; biases and choices
 * of heads for latent attention, which has neither; a small embedding with experts, because it would leave
 * the choice of experts undecided; and more than 16 heads, which would only cost time.
 */
static int pair_forbidden(const int8_t *level)
{
	int model = level[PAIR_MODEL] < 0 ? 0 : level[PAIR_MODEL];
	int latent = pair_model[model].latent, experts = pair_model[model].experts;

	if (level[PAIR_GROUP] >= 0 && level[PAIR_HEADS] >= 0 &&
	    pair_group[level[PAIR_GROUP]] * pair_heads[level[PAIR_HEADS]] > 16)
		return 1;
	if (experts && !latent && level[PAIR_FORM] == 2)
		return 1;
	return (experts && level[PAIR_SIZE] == 1) ||
	       (latent && (level[PAIR_GROUP] > 0 || level[PAIR_HEADS] > 0 || level[PAIR_BIAS] > 0 ||
			   level[PAIR_DIM] > 0));
}

static struct cairn_pairs pair_table = {
	.num_factors = NUM_PAIR_FACTORS,
	.levels = { 6, 6, 5, 5, 4, 4, 4, 3, 3, 3, 3, 3, 3, 3, 2, 2, 2, 2, 2, 2, 2, 2 },
	.forbidden = pair_forbidden,
};

static void pair_at(int i, struct step_shape *s)
{
	static const int pages[] = { 16, 32, 1, 48, 128, 64 }, hiddens[] = { 64, 192, 256 },
			 inters[] = { 64, 320, 192 }, vocabs[] = { 72, 8, 200 };
	static const double eps[] = { 1e-5, 1e-12, 1e-3, 1 };
	static const unsigned tables[] = { 0, PAGED_PADDED, PAGED_FULL }, forms[] = { 0, GRAPH, PERSISTENT },
			      tokens[] = { 0, ALIAS, SAMPLE, NO_TOKENS, SAMPLE | ALIAS };
	static const struct {
		int batch, kv[8];
	} lengths[] = {
		{ 3, { 33, 1, 34 } },
		{ 1, { 50 } },
		{ 4, { 17, 0, 40, 16 } },
		{ 8, { 2, 17, 3, 5, 1, 20, 9, 33 } },
	};
	const int8_t *level = cairn_pairs_row(&pair_table, i);
	int model = level[PAIR_MODEL];

	*s = (struct step_shape){
		.pair = i + 1, .batch = lengths[level[PAIR_LENGTHS]].batch,
		.kv_lens = lengths[level[PAIR_LENGTHS]].kv, .page = pages[level[PAIR_PAGE]],
		.hkv = pair_heads[level[PAIR_HEADS]], .dim = level[PAIR_DIM] ? 128 : 64,
		.hidden = hiddens[level[PAIR_HIDDEN]], .inter = inters[level[PAIR_INTER]],
		.layers = 1 + level[PAIR_LAYERS], .vocab = vocabs[level[PAIR_VOCAB]],
		.eps = eps[level[PAIR_EPS]], .sms = level[PAIR_SMS] ? 24 : 0,
		.lora = pair_model[model].lora, .experts = pair_model[model].experts,
		.top = pair_model[model].top, .expert_inter = pair_model[model].expert_inter,
		.shared = pair_model[model].shared, .dense = pair_model[model].dense,
		.scaling = pair_model[model].scaling,
	};
	s->kv = s->kv_lens[0];
	s->hq = s->hkv * pair_group[level[PAIR_GROUP]];
	if (pair_model[model].latent) {
		s->hq = 8;
		s->hkv = 1;
		s->dim = 192;
	}
	s->size = level[PAIR_SIZE] ? sqrt(s->eps) / 2 : 1;
	s->scale = level[PAIR_SCALE] ? 0.2f : 0;
	s->flags = tables[level[PAIR_TABLES]] | forms[level[PAIR_FORM]] | tokens[level[PAIR_TOKENS]] |
		   pair_model[model].flags | (pair_model[model].latent ? LATENT : 0) |
		   (level[PAIR_BIAS] % 2 ? BIAS : 0) | (level[PAIR_BIAS] / 2 ? BIAS_O : 0) |
		   (level[PAIR_TIED] ? TIED : 0) | (level[PAIR_GAPS] ? GAPS : 0) |
		   (level[PAIR_FAR] ? FAR : 0) | (level[PAIR_DTYPE] ? F16 : 0);
}

static void pair_name(const struct step_shape *s, char *name, size_t len)
{
	snprintf(name, len, "pair_%d_l%d_p%d_q%d_%d_d%d_w%d_v%d_%s%s%s", s->pair, s->layers, s->page, s->hq,
		 s->hkv, s->dim, s->hidden, s->vocab, s->flags & F16 ? "f16" : "bf16",
		 s->flags & GRAPH ? "_graph" : s->flags & PERSISTENT ? "_persistent" : "",
		 s->experts ? "_experts" : "");
}

#endif
