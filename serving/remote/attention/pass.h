/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pass - what a plan tells attention workers about a pass: requests, their pages, and pages to copy first
 *
 * The bytes of a PLAN (control.h) are
 *
 *   int32 num_rows, batch, num_pages, num_moves,
 *         qo_indptr [batch + 1], kv_indptr [batch + 1], last_page_len [batch], kv_indices [num_pages],
 *         moves [num_moves, 2]
 *
 * in the byte order of the machine. The arrays are those of kv_view.h; the keys of a request include those
 * of this pass. A move copies page moves[i][0] to page moves[i][1] in all layers, one after the other.
 *
 * The reader does not trust the sender: it checks sizes, order and range of every number before it uses any.
 * Errors: -EINVAL; the text names the array.
 */
#ifndef CAIRN_REMOTE_PASS_H
#define CAIRN_REMOTE_PASS_H

#include <stddef.h>
#include <stdint.h>

struct cairn_remote_pass {
	int32_t num_rows, batch, num_pages, num_moves;
	const int32_t *qo_indptr, *kv_indptr, *last_page_len, *kv_indices;
	const int32_t (*moves)[2];
};

struct cairn_remote_limits {
	int32_t max_rows, max_batch, max_context;	/* of one pass; keys of one request */
	int32_t num_pages, page_size;
	int32_t lanes;			/* passes in flight together; 0: 1 */
	int repeatable;			/* as of the worker (worker.h); only for other model workers */
};

static inline size_t cairn_remote_pass_bytes(const struct cairn_remote_pass *p)
{
	return sizeof(int32_t) * (4 + 3 * (size_t)p->batch + 2 + (size_t)p->num_pages +
				  2 * (size_t)p->num_moves);
}

/* Returns the bytes of the largest pass with at most max_moves moves. */
size_t cairn_remote_pass_most(const struct cairn_remote_limits *limits, int32_t max_moves);
/* Writes the pass to `to`, which has cairn_remote_pass_bytes(). */
void cairn_remote_pass_write(void *to, const struct cairn_remote_pass *p);
/* Reads a pass; its arrays point into the bytes, which must be 4-byte aligned. */
int cairn_remote_pass_read(struct cairn_remote_pass *p, const void *bytes, size_t num_bytes,
			   const struct cairn_remote_limits *limits);

#endif
