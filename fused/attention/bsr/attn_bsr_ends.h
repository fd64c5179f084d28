/* SPDX-License-Identifier: Apache-2.0 */
/*
 * attn_bsr_ends - cases of attn_bsr at the ends of tiles and blocks (conformance/suite/ends.h)
 *
 * Include pairs.h and attn_bsr_inputs.h first. All lists of a case ends_* have the number of keys of the
 * shape. Those of a case lists_* differ in length, so that each length meets every other feature in a few
 * cases. A case blocks_* has one token more than a tile of 64, and one key more or less than whole blocks.
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

#define NUM_BLOCKS	60

enum { BLOCKS_N, BLOCKS_ROWS, BLOCKS_PART, BLOCKS_DIM, BLOCKS_TYPE, BLOCKS_MODE, BLOCKS_HEADS,
       NUM_BLOCKS_FACTORS };

static struct cairn_pairs blocks_table = {
	.num_factors = NUM_BLOCKS_FACTORS, .levels = { 10, 6, 3, 3, 4, 2, 2 },
};

static void blocks_at(int i, struct shape *s)
{
	static const int n[] = { 16, 64, 128, 8, 3 }, keys[] = { 64, 64, 128, 72, 27 };
	static const int m[] = { 1, 64, 16 }, dims[] = { 64, 128, 256 };
	const int8_t *level = cairn_pairs_row(&blocks_table, i);
	const int nth = level[BLOCKS_N] / 2;

	*s = (struct shape){
		.ends = NUM_ENDS + 1 + i, .tokens = 65, .hkv = 1 + level[BLOCKS_HEADS],
		.dim = dims[level[BLOCKS_DIM]], .layout = i % NUM_LAYOUTS,
		.flags = LSE | WHOLE | Q_POS | (level[BLOCKS_TYPE] / 2 ? FP8 | SCALES : 0) |
			 (level[BLOCKS_TYPE] % 2 ? F16 : 0),
	};
	s->hq = s->hkv * (level[BLOCKS_ROWS] % 2 ? 3 : 1);
	s->part[0].m = m[level[BLOCKS_ROWS] / 2];
	s->part[0].n = n[nth];
	s->part[0].keys = keys[nth] + (level[BLOCKS_N] % 2 ? 1 : -1);
	s->part[0].mode = level[BLOCKS_MODE] ? CAIRN_ATTN_CAUSAL : 0;
	if (!level[BLOCKS_PART])
		return;
	s->part[1].m = level[BLOCKS_PART] == 1 ? 65 : 1;
	s->part[1].n = level[BLOCKS_PART] == 1 ? 8 : 16;
	s->part[1].keys = level[BLOCKS_PART] == 1 ? 9 : 15;
}

static void ends_name(const struct shape *s, char *name, size_t len)
{
	const char *series = s->part[0].lens ? "lists" : s->ends > NUM_ENDS ? "blocks" : "ends";

	snprintf(name, len, "%s_t%d_keys%d_block_%dx%d_h%d_%d_d%d_w%d_%s%s%s", series, s->tokens,
		 s->part[0].lens ? s->part[0].lens[0] : s->part[0].keys, s->part[0].m,
		 s->part[0].n, s->hq, s->hkv, s->dim, s->window,
		 s->flags & FP8 ? "fp8_" : "", s->flags & F16 ? "f16" : "bf16",
		 s->part[0].mode ? "_causal" : "");
	if (s->part[1].m)
		snprintf(name + strlen(name), len - strlen(name), "_and_%dx%d", s->part[1].m, s->part[1].n);
}

#endif
