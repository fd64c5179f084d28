/* SPDX-License-Identifier: Apache-2.0 */
/*
 * moe_ends - cases of moe at the ends of tiles (conformance/suite/ends.h)
 *
 * Include pairs.h and moe_test.h first. The tiles of an expert hold the rows that chose it; with one or two
 * experts these are all rows, or about half of them.
 */
#ifndef CAIRN_MOE_ENDS_H
#define CAIRN_MOE_ENDS_H

#define NUM_ENDS	51

static const int ends_batch[] = { 1, 7, 9, 15, 17, 31, 33, 63, 65, 129 };
static const int ends_experts[][2] = { { 1, 1 }, { 2, 2 }, { 3, 2 }, { 8, 3 }, { 17, 5 } };
static const int ends_hidden[] = { 64, 128, 192, 320 }, ends_inter[] = { 64, 128, 192, 320 };
static const int ends_shared[] = { 0, 64, 192 };
static const unsigned ends_fp8[] = { 0, FP8, FP8 | BLOCKS };

enum {
	ENDS_BATCH, ENDS_EXPERTS, ENDS_HIDDEN, ENDS_INTER, ENDS_SHARED, ENDS_FP8, ENDS_DTYPE, ENDS_NORMALIZE,
	NUM_ENDS_FACTORS
};

/* Forbids cases that would cost more than many others together. */
static int ends_forbidden(const int8_t *level)
{
	const int b = level[ENDS_BATCH], e = level[ENDS_EXPERTS], h = level[ENDS_HIDDEN];

	return b >= 0 && e >= 0 && h >= 0 && ends_batch[b] * ends_experts[e][1] * ends_hidden[h] > 17000;
}

static struct cairn_pairs ends_table = {
	.num_factors = NUM_ENDS_FACTORS, .levels = { 10, 5, 4, 4, 3, 3, 2, 2 }, .forbidden = ends_forbidden,
};

static void ends_at(int i, struct moe_shape *s)
{
	const int8_t *level = cairn_pairs_row(&ends_table, i);

	*s = (struct moe_shape){
		.ends = i + 1, .batch = ends_batch[level[ENDS_BATCH]],
		.experts = ends_experts[level[ENDS_EXPERTS]][0], .top = ends_experts[level[ENDS_EXPERTS]][1],
		.hidden = ends_hidden[level[ENDS_HIDDEN]], .inter = ends_inter[level[ENDS_INTER]],
		.shared = ends_shared[level[ENDS_SHARED]],
		.flags = ends_fp8[level[ENDS_FP8]] | (level[ENDS_DTYPE] ? F16 : 0) |
			 (level[ENDS_NORMALIZE] ? NORMALIZE : 0),
	};
}

#endif
