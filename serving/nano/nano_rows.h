/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nano_rows - cuts a pass into nano-batches and computes their index arrays
 *
 * Nano-batch i has the rows row[i] .. row[i + 1] - 1 of a pass. A cut may lie inside a request: the earlier
 * nano-batch then has a request with the earlier rows, whose keys end at its last row, and the later one has
 * a request with the other rows and all keys. Each nano-batch has index arrays of its own, over one list of
 * pages. They are computed on the host; the caller copies them to fixed addresses on the device, so that a
 * captured pass can be replayed with other contents.
 *
 * Decoding rows are the first rows of a pass, one for each of its first requests. A plan may give each
 * nano-batch its share of them. They then go to the front of their nano-batch, and the other rows keep their
 * order: row r of the pass becomes row cairn_nano_row(r).
 *
 * All functions are pure. Errors: -EINVAL; the text names the argument.
 */
#ifndef CAIRN_NANO_ROWS_H
#define CAIRN_NANO_ROWS_H

#include "serving/model/forward/forward.h"
#include "serving/nano/nano_plan.h"

#define CAIRN_NANO_SEEK		64	/* a cut moves by at most so many rows to the edge of a request */

/* Where the rows of a pass go. */
struct cairn_nano_cuts {
	int32_t num_batches;
	int32_t row[CAIRN_NANO_BATCHES + 1];	/* nano-batch i has the rows row[i] .. row[i + 1] - 1 */
	/* Decoding rows decode[i] .. decode[i + 1] - 1 of the pass are the first ones of nano-batch i. */
	int32_t decode[CAIRN_NANO_BATCHES + 1];
};

/*
 * Cuts a pass in the proportions of the plan. A cut moves to the nearest edge of a request if there is one
 * within CAIRN_NANO_SEEK rows. qo_indptr: [batch + 1]; num_decodes: how many of the first requests have one
 * row each and may change places. Rows after the last request belong to none (padding). -ERANGE: fewer rows
 * than nano-batches.
 */
int cairn_nano_cut(struct cairn_nano_cuts *cuts, const struct cairn_nano_plan *plan, const int32_t *qo_indptr,
		   int32_t batch, int32_t num_rows, int32_t num_decodes);
/* Returns the place of row r of the pass, which must have it, among the rows in the order of nano-batches. */
int32_t cairn_nano_row(const struct cairn_nano_cuts *cuts, int32_t r);

/* The index arrays of one nano-batch, with room for as many requests as the pass has. */
struct cairn_nano_index {
	int32_t *qo_indptr, *kv_indptr, *last_page_len;
};

/* A pass as nano-batches. */
struct cairn_nano_pass {
	struct cairn_batch whole;	/* the arrays of its requests are not used */
	int32_t num_batches, num_pages;	/* num_pages: length of the list of pages */
	int32_t first_row[CAIRN_NANO_BATCHES];
	struct cairn_batch batch[CAIRN_NANO_BATCHES];
};

/* A pass in host memory, before its rows change places. */
struct cairn_nano_host {
	const int32_t *qo_indptr, *kv_indptr, *last_page_len, *kv_indices;
	int32_t page_size;
};

/*
 * Fills host[i], the arrays of nano-batch i, and pages, the list of pages of all of them, which needs room
 * for that of the pass and num_batches - 1 times that of the longest request.
 *
 * whole: the pass with its rows in their new places; kv_indices is where `pages` will be. dev[i]: where
 * host[i] will be. *pass gets these pointers.
 *
 * If max_qo_len is 1, a nano-batch has as many requests as rows, the last ones perhaps without rows and keys,
 * so that its shape depends on the cuts alone.
 */
int cairn_nano_split(struct cairn_nano_pass *pass, const struct cairn_nano_index *host, int32_t *pages,
		     const struct cairn_nano_index *dev, const struct cairn_nano_host *in,
		     const struct cairn_batch *whole, const struct cairn_nano_cuts *cuts);

#endif
