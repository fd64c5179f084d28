/* SPDX-License-Identifier: Apache-2.0 */
/*
 * mla_ends - sizes of latent attention at the ends of tiles (conformance/suite/ends.h)
 *
 * The tests of mla_paged, mla_decode and mla_prefill build their cases ends_* from these sizes. Both requests
 * of such a case have the same lengths.
 */
#ifndef CAIRN_MLA_ENDS_H
#define CAIRN_MLA_ENDS_H

#include <stdint.h>

/* the first factors of a family's array; the family appends its own */
enum { ENDS_ROWS, ENDS_KEYS, ENDS_HEADS, ENDS_PAGE, ENDS_DTYPE, ENDS_LSE, MLA_ENDS_FACTORS };
#define MLA_ENDS_LEVELS	7, 8, 5, 5, 2, 2

static const int mla_ends_rows[] = { 1, 2, 15, 17, 33, 63, 65 };
static const int mla_ends_keys[] = { 1, 15, 17, 63, 65, 127, 129, 257 };
static const int mla_ends_heads[] = { 1, 3, 5, 15, 17 };
static const int mla_ends_pages[] = { 16, 64, 1, 32, 128 };

/* Forbids cases that would cost more than many others together. */
static inline int mla_ends_forbidden(const int8_t *level)
{
	const int r = level[ENDS_ROWS], h = level[ENDS_HEADS];

	return r >= 0 && h >= 0 && mla_ends_rows[r] * mla_ends_heads[h] > 68;
}

/* The members of struct shape that all three tests have. */
#define MLA_ENDS_SHAPE(level) \
	.batch = 2, .qo = mla_ends_rows[(level)[ENDS_ROWS]], .kv = mla_ends_keys[(level)[ENDS_KEYS]], \
	.heads = mla_ends_heads[(level)[ENDS_HEADS]], .page = mla_ends_pages[(level)[ENDS_PAGE]], \
	.flags = ((level)[ENDS_DTYPE] ? F16 : 0) | ((level)[ENDS_LSE] ? LSE : 0)

#endif
