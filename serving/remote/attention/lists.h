/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lists - what a pass means to one attention worker: which keys its rows see, and where its new keys go
 *
 * Pages are divided into stripes by their numbers: stripe s of n holds the pages p with p % n == s, as its
 * pages p / n. So a worker needs memory for its own pages only, and a page that sequences share has one
 * owner. A list that leaves out the pages of others has other positions than the request, so windows need
 * key_pos.
 *
 * A worker of one of several stripes gets keys and values of the rows that it is to store, in the order of
 * the pass. For kv_append, each of its pages with new rows is a request whose last key is the page's last
 * one.
 */
#ifndef CAIRN_REMOTE_LISTS_H
#define CAIRN_REMOTE_LISTS_H

#include "serving/remote/attention/share.h"
#include "serving/slices/attn_local.h"

/* Returns how many of the pages a stripe holds; at least 1, so that there is memory. */
static inline int32_t cairn_stripe_pages(int32_t num_pages, int32_t stripe, int32_t stripes)
{
	const int32_t num = (num_pages - stripe + stripes - 1) / stripes;

	return num > 0 ? num : 1;
}

/*
 * Returns a bound of the keys of a request that many passes share. It decides how a device divides the work,
 * and how much workspace that takes.
 */
static inline int32_t cairn_lists_bound(int32_t keys, int32_t max_context)
{
	int32_t bound = 256;

	while (bound < keys)
		bound *= 2;
	return bound < max_context ? bound : max_context;
}

/*
 * Returns a bound of the rows of a pass with one row for each request, which are padded to it, so that a
 * captured pass serves many others; at most `most`.
 */
static inline int32_t cairn_lists_rows(int32_t rows, int32_t most)
{
	int32_t step = 8, bound = 1;

	while (bound < rows && bound < step)
		bound *= 2;
	while (step * 8 < rows)
		step *= 2;
	if (rows > bound)
		bound = (rows + step - 1) / step * step;
	return bound < most ? bound : most;
}

struct cairn_lists {
	struct cairn_control_assign a;
	int32_t *room;
	/* past: as in attn_local.h; one list for each request or, with latent attention, for each row */
	int32_t *qo_indptr, *indptr, *indices, *last_page_len, *key_pos;
	int32_t *positions;
	/* append: of stripes */
	int32_t *new_qo_indptr, *new_indptr, *new_indices, *new_last_page_len;
	/* of the last pass: */
	int32_t num_lists, num_new;	/* num_new: rows whose keys the worker stores */
};

int cairn_lists_create(struct cairn_lists *l, const struct cairn_control_assign *a);
void cairn_lists_free(struct cairn_lists *l);	/* does nothing if *l is zeroed */
/* Lists a checked pass. The results point into *l and *p. */
void cairn_lists_make(struct cairn_lists *l, const struct cairn_remote_pass *p, struct cairn_batch *batch,
		      struct cairn_attn_past *past);
/* Sets pages[i] to the page of row i of a pass. */
void cairn_lists_row_pages(const struct cairn_remote_pass *p, int32_t page_size, int32_t *pages);

#endif
