/* SPDX-License-Identifier: Apache-2.0 */
/*
 * attn_bsr_pairs - cases in which every two features of attn_bsr occur together (pairs.h)
 *
 * Include pairs.h and attn_bsr_inputs.h first. Each further part of a case takes the next block sizes and the
 * next mask in the lists.
 */
#ifndef CAIRN_ATTN_BSR_PAIRS_H
#define CAIRN_ATTN_BSR_PAIRS_H

enum {
	PAIR_M, PAIR_N, PAIR_PARTS, PAIR_MASK, PAIR_POSITIONS, PAIR_WINDOW, PAIR_GROUP, PAIR_HEADS, PAIR_DIM,
	PAIR_LAYOUT, PAIR_FP8, PAIR_Q_STRIDE, PAIR_LISTS, PAIR_ROWS, PAIR_PLACES, PAIR_LAST, PAIR_REPEATED,
	PAIR_PADDED, PAIR_CAP, PAIR_DTYPE, PAIR_LSE, PAIR_LOGITS, PAIR_SMS, NUM_PAIR_FACTORS
};

static const int pair_m[] = { 1, 3, 16, 5 }, pair_n[] = { 1, 3, 16, 64, 128 };
static const int pair_window[] = { 0, 1, 7, 40 }, pair_group[] = { 1, 2, 3, 7 };
static const int pair_dim[] = { 64, 128, 256 };
static const unsigned pair_fp8[] = { 0, FP8, FP8 | SCALES, FP8 | K_SCALE, FP8 | V_SCALE };
static const unsigned pair_positions[] = { 0, POS0, Q_POS, Q_POS | KEY_POS, Q_POS | POS0 };

/* With more than one part, a window needs q_pos. */
static int pair_forbidden(const int8_t *level)
{
	return level[PAIR_PARTS] > 0 && level[PAIR_WINDOW] > 0 && level[PAIR_POSITIONS] >= 0 &&
	       level[PAIR_POSITIONS] < 2;
}

static struct cairn_pairs pair_table = {
	.num_factors = NUM_PAIR_FACTORS,
	.levels = { 4, 5, 4, 4, 5, 4, 4, 3, 3, NUM_LAYOUTS, 5, 3, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2 },
	.forbidden = pair_forbidden,
};

static void pair_at(int i, struct shape *s)
{
	const int8_t *level = cairn_pairs_row(&pair_table, i);

	memset(s, 0, sizeof(*s));
	s->pair = i + 1;
	s->tokens = 17;
	for (int k = 0; k <= level[PAIR_PARTS]; k++) {
		s->part[k].m = pair_m[(level[PAIR_M] + k) % 4];
		s->part[k].n = pair_n[(level[PAIR_N] + k) % 5];
		s->part[k].keys = k % 2 ? 21 : 70;
		s->part[k].mode = (level[PAIR_MASK] + k) % CAIRN_ATTN_NUM_MASKS;
	}
	s->hkv = level[PAIR_HEADS] + 1;
	s->hq = s->hkv * pair_group[level[PAIR_GROUP]];
	s->dim = pair_dim[level[PAIR_DIM]];
	s->window = pair_window[level[PAIR_WINDOW]];
	s->cap = level[PAIR_CAP] ? 3 : 0;
	s->layout = level[PAIR_LAYOUT];
	s->q_gap = level[PAIR_Q_STRIDE] == 2 ? 8 : 0;
	s->explicit_stride = level[PAIR_Q_STRIDE] == 1;
	s->equal = level[PAIR_LOGITS] == 0;
	s->sms = level[PAIR_SMS] ? 2 : 0;
	s->flags = pair_positions[level[PAIR_POSITIONS]] | pair_fp8[level[PAIR_FP8]] |
		   (level[PAIR_LISTS] ? HEAD_LISTS : 0) |
		   (level[PAIR_ROWS] ? RAGGED : 0) | (level[PAIR_PLACES] ? SHUFFLED : 0) |
		   (level[PAIR_LAST] ? FULL_BLOCKS : 0) | (level[PAIR_REPEATED] ? REPEATED : 0) |
		   (level[PAIR_PADDED] ? PADDED : 0) | (level[PAIR_DTYPE] ? F16 : 0) |
		   (level[PAIR_LSE] ? LSE : 0);
}

static void pair_name(const struct shape *s, char *name, size_t len)
{
	snprintf(name, len, "pair_%d_block_%dx%d_parts%d_mask%d_h%d_%d_d%d_%s%s%s%s", s->pair, s->part[0].m,
		 s->part[0].n, s->part[3].m ? 4 : s->part[2].m ? 3 : s->part[1].m ? 2 : 1, s->part[0].mode,
		 s->hq, s->hkv, s->dim, s->flags & FP8 ? "fp8_" : "", s->flags & F16 ? "f16" : "bf16",
		 s->window ? "_window" : "", s->cap > 0 ? "_cap" : "");
}

#endif
