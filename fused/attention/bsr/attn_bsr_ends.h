/* SPDX-License-Identifier: Apache-2.0 */
/*
 * attn_bsr_ends - cases of attn_bsr at the ends of tiles and blocks (conformance/suite/ends.h)
 *
 * Include pairs.h and attn_bsr_inputs.h first. All lists of a case ends_* have the number of keys of the
 * shape. Those of a case lists_* differ in length, so that each length meets every other feature in a few
 * cases.
 */
#ifndef CAIRN_ATTN_BSR_ENDS_H
#define CAIRN_ATTN_BSR_ENDS_H

#define NUM_ENDS	47

static const int ends_tokens[] = { 1, 15, 17, 63, 65 }, ends_keys[] = { 1, 15, 17, 63, 65, 127, 129, 257 };
static const int ends_m[] = { 1, 16, 3, 64, 5 }, ends_n[] = { 16, 1, 64, 128, 3 };
static const int ends_group[] = { 1, 3, 7, 17 };

enum {
	ENDS_TOKENS, ENDS_KEYS, ENDS_M, ENDS_N, ENDS_GROUP, ENDS_HEADS, ENDS_DIM, ENDS_MODE, ENDS_WINDOW,
	ENDS_FP8, ENDS_DTYPE, NUM_ENDS_FACTORS
};

/* Forbids cases that would cost more than many others together. */
static int ends_forbidden(const int8_t *level)
{
	const int t = level[ENDS_TOKENS], k = level[ENDS_KEYS], g = level[ENDS_GROUP];

	return t >= 0 && k >= 0 && g >= 0 && ends_tokens[t] * ends_keys[k] * ends_group[g] > 18000;
}

static struct cairn_pairs ends_table = {
	.num_factors = NUM_ENDS_FACTORS, .levels = { 5, 8, 5, 5, 4, 2, 3, 2, 3, 2, 2 },
	.forbidden = ends_forbidden,
};

static void ends_at(int i, struct shape *s)
{
	static const int windows[] = { 0, 17, 63 }, dims[] = { 64, 128, 256 };
	const int8_t *level = cairn_pairs_row(&ends_table, i);

	*s = (struct shape){
		.ends = i + 1, .tokens = ends_tokens[level[ENDS_TOKENS]], .hkv = 1 + 2 * level[ENDS_HEADS],
		.dim = dims[level[ENDS_DIM]], .window = windows[level[ENDS_WINDOW]],
		.layout = i % NUM_LAYOUTS,
		.flags = LSE | WHOLE | Q_POS | (level[ENDS_FP8] ? FP8 | SCALES : 0) |
			 (level[ENDS_DTYPE] ? F16 : 0),
	};
	s->hq = s->hkv * ends_group[level[ENDS_GROUP]];
	s->part[0].m = ends_m[level[ENDS_M]];
	s->part[0].n = ends_n[level[ENDS_N]];
	s->part[0].keys = ends_keys[level[ENDS_KEYS]];
	s->part[0].mode = level[ENDS_MODE] ? CAIRN_ATTN_CAUSAL : 0;
}

#define NUM_LISTS	52

enum {
	LISTS_N, LISTS_SHIFT, LISTS_M, LISTS_GROUP, LISTS_HEADS, LISTS_DIM, LISTS_MODE, LISTS_WINDOW,
	LISTS_TYPE, NUM_LISTS_FACTORS
};

static const int lists_m[] = { 1, 16, 64, 3 }, lists_rows[] = { 11, 3, 2, 8 };	/* tokens and block rows */

static int lists_forbidden(const int8_t *level)
{
	return level[LISTS_M] == 2 && level[LISTS_GROUP] > 0;	/* 128 tokens */
}

static struct cairn_pairs lists_table = {
	.num_factors = NUM_LISTS_FACTORS, .levels = { 5, 10, 4, 4, 2, 3, 2, 3, 4 },
	.forbidden = lists_forbidden,
};

static void lists_at(int i, struct shape *s)
{
	static const int windows[] = { 0, 17, 63 }, dims[] = { 64, 128, 256 };
	/* a list of lengths begins anywhere in the first half */
	static const int lens[] = { 1, 15, 17, 63, 65, 127, 129, 64, 191, 31, 1, 15, 17, 63, 65, 127, 129, 64,
				    191, 31, 255 };
	const int8_t *level = cairn_pairs_row(&lists_table, i);
	const int m = lists_m[level[LISTS_M]], rows = lists_rows[level[LISTS_M]];

	*s = (struct shape){
		.ends = i + 1, .tokens = m * rows, .hkv = 1 + 2 * level[LISTS_HEADS],
		.dim = dims[level[LISTS_DIM]], .window = windows[level[LISTS_WINDOW]],
		.layout = i % NUM_LAYOUTS,
		.flags = LSE | WHOLE | Q_POS | (level[LISTS_TYPE] / 2 ? FP8 | SCALES : 0) |
			 (level[LISTS_TYPE] % 2 ? F16 : 0),
	};
	s->hq = s->hkv * ends_group[level[LISTS_GROUP]];
	s->part[0].m = m;
	s->part[0].n = ends_n[level[LISTS_N]];
	s->part[0].keys = 191;
	s->part[0].lens = lens + level[LISTS_SHIFT];
	s->part[0].mode = level[LISTS_MODE] ? CAIRN_ATTN_CAUSAL : 0;
}

static void ends_name(const struct shape *s, char *name, size_t len)
{
	snprintf(name, len, "%s_t%d_keys%d_block_%dx%d_h%d_%d_d%d_w%d_%s%s%s",
		 s->part[0].lens ? "lists" : "ends", s->tokens,
		 s->part[0].lens ? s->part[0].lens[0] : s->part[0].keys, s->part[0].m,
		 s->part[0].n, s->hq, s->hkv, s->dim, s->window,
		 s->flags & FP8 ? "fp8_" : "", s->flags & F16 ? "f16" : "bf16",
		 s->part[0].mode ? "_causal" : "");
}

#endif
