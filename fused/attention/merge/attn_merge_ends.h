/* SPDX-License-Identifier: Apache-2.0 */
/*
 * attn_merge_ends - cases of attn_merge at the ends of tiles (conformance/suite/ends.h)
 *
 * attn_merge_test.c includes pairs.h first, and this file after struct shape.
 */
#ifndef CAIRN_ATTN_MERGE_ENDS_H
#define CAIRN_ATTN_MERGE_ENDS_H

#define NUM_ENDS	124

static const int ends_states[] = { 1, 2, 3, 7, 8, 9, 16, 17, 31, 33, 64 };
static const int ends_dims[] = { 8, 24, 56, 64, 72, 96, 120, 128, 136, 264, 504 };
static const int ends_heads[] = { 1, 3, 5, 7, 17 }, ends_rows[] = { 1, 7, 9, 17, 33 };

enum {
	ENDS_STATES, ENDS_DIM, ENDS_HEADS, ENDS_ROWS, ENDS_LAYOUT, ENDS_DTYPE, ENDS_OUT, ENDS_COUNTS,
	NUM_ENDS_FACTORS
};

/* Forbids cases that would cost more than many others together. */
static int ends_forbidden(const int8_t *level)
{
	const int n = level[ENDS_STATES], d = level[ENDS_DIM], h = level[ENDS_HEADS], r = level[ENDS_ROWS];

	return n >= 0 && d >= 0 && h >= 0 && r >= 0 &&
	       (double)ends_states[n] * ends_dims[d] * ends_heads[h] * ends_rows[r] > 200000;
}

static struct cairn_pairs ends_table = {
	.num_factors = NUM_ENDS_FACTORS, .levels = { 11, 11, 5, 5, 4, 3, 3, 2 }, .forbidden = ends_forbidden,
};

static void ends_at(int i, struct shape *s)
{
	static const unsigned layouts[] = { 0, GAPS, ROWS_FIRST, HEADS_FIRST };
	const int8_t *level = cairn_pairs_row(&ends_table, i);

	*s = (struct shape){
		.name = "ends", .n = ends_states[level[ENDS_STATES]], .dim = ends_dims[level[ENDS_DIM]],
		.heads = ends_heads[level[ENDS_HEADS]], .rows = ends_rows[level[ENDS_ROWS]],
		.dtype = level[ENDS_DTYPE], .out = level[ENDS_OUT],
		.flags = layouts[level[ENDS_LAYOUT]] | (level[ENDS_COUNTS] ? COUNTS : 0) | LSE,
	};
}

#endif
