/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kv_append_ends - cases of kv_append at the ends of tiles and pages (conformance/suite/ends.h)
 *
 * kv_append_test.c includes pairs.h first, and this file after struct shape.
 */
#ifndef CAIRN_KV_APPEND_ENDS_H
#define CAIRN_KV_APPEND_ENDS_H

#define NUM_ENDS	58

enum { ENDS_ROWS, ENDS_OLD, ENDS_PAGE, ENDS_HEADS, ENDS_DIM, ENDS_K_STRIDE, ENDS_V_STRIDE, ENDS_DTYPE };

static struct cairn_pairs ends_table = { .num_factors = 8, .levels = { 7, 8, 6, 5, 5, 3, 3, 4 } };

static void ends_at(int i, struct shape *s)
{
	static const int rows[] = { 1, 15, 17, 33, 63, 65, 129 }, old[] = { 0, 1, 15, 16, 17, 63, 64, 127 };
	static const int pages[] = { 16, 1, 32, 64, 128, 48 }, heads[] = { 1, 2, 3, 5, 8 };
	static const int dims[] = { 64, 128, 40, 96, 256 };
	static const unsigned dtypes[] = { 0, F16, F32, SCALES };
	const int8_t *level = cairn_pairs_row(&ends_table, i);
	int row;

	*s = (struct shape){
		.ends = i + 1, .batch = 2, .qo = rows[level[ENDS_ROWS]],
		.kv = rows[level[ENDS_ROWS]] + old[level[ENDS_OLD]], .page = pages[level[ENDS_PAGE]],
		.heads = heads[level[ENDS_HEADS]], .dim = dims[level[ENDS_DIM]],
		.flags = dtypes[level[ENDS_DTYPE]],
	};
	row = s->heads * s->dim;
	s->k_stride = (int[]){ 0, row + 8, 3 * row }[level[ENDS_K_STRIDE]];
	s->v_stride = (int[]){ 0, row + 16, 2 * row }[level[ENDS_V_STRIDE]];
}

#endif
