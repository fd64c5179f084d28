/* SPDX-License-Identifier: Apache-2.0 */
/*
 * attn_ends - sizes of attention calls at the ends of tiles (conformance/suite/ends.h)
 *
 * The tests of the attention families build their cases ends_* from these sizes. Both requests of such a case
 * have the same lengths, so that an access behind the first request finds plausible numbers, and an access
 * behind the second one leaves the buffer. A tile of a kernel may hold the query rows of one head, or the
 * rows of all query heads of a KV head; therefore both numbers, and their product, lie at ends of tiles.
 */
#ifndef CAIRN_ATTN_ENDS_H
#define CAIRN_ATTN_ENDS_H

#include <stdint.h>

/*
 * The first factors of a family's array; the family appends its own. ENDS_FEATURES combines three features,
 * the third of which is the family's choice.
 */
enum { ENDS_ROWS, ENDS_KEYS, ENDS_WINDOW, ENDS_HEADS, ENDS_FEATURES, ATTN_ENDS_FACTORS };
enum { ENDS_NOT_CAUSAL = 1, ENDS_F16 = 2, ENDS_THIRD = 4 };
#define ATTN_ENDS_LEVELS	13, 10, 6, 3, 8

/* query rows of a request, and query heads of a KV head */
static const struct {
	int qo, group;
} attn_ends_rows[] = {
	{ 1, 1 }, { 1, 7 }, { 1, 17 }, { 2, 8 }, { 11, 3 }, { 17, 1 }, { 9, 7 }, { 13, 5 }, { 63, 1 },
	{ 65, 1 }, { 43, 3 }, { 127, 1 }, { 129, 1 },
};
static const int attn_ends_keys[] = { 1, 15, 17, 63, 64, 65, 127, 129, 191, 257 };
static const int attn_ends_windows[] = { 0, 65, 1, 17, 15, 63 };

static inline int attn_ends_kv_heads(const int8_t *level)
{
	return 1 + level[ENDS_HEADS];
}

static inline int attn_ends_qo_heads(const int8_t *level)
{
	return attn_ends_kv_heads(level) * attn_ends_rows[level[ENDS_ROWS]].group;
}

/* Returns the number of logits of a request, or 0 if it is not known yet. */
static inline int attn_ends_logits(const int8_t *level)
{
	const int r = level[ENDS_ROWS], k = level[ENDS_KEYS], h = level[ENDS_HEADS];

	return r < 0 || k < 0 || h < 0 ? 0 :
	       attn_ends_rows[r].qo * attn_ends_qo_heads(level) * attn_ends_keys[k];
}

/* Forbids cases that would cost more than many others together. */
static inline int attn_ends_forbidden(const int8_t *level)
{
	return attn_ends_logits(level) > 34000;
}

#endif
