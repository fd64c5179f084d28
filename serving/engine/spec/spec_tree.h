/* SPDX-License-Identifier: Apache-2.0 */
/*
 * spec_tree - trees of drafts
 *
 * Row 0 is the row that is due, and draft k is row k + 1. Each draft follows a row before it, its parent.
 */
#ifndef CAIRN_SPEC_TREE_H
#define CAIRN_SPEC_TREE_H

#include <stdint.h>

struct cairn_spec_tree {
	int32_t *ids, *parents;		/* [num] */
	int32_t num, room;
	int32_t branches;		/* maximum drafts that follow one row */
};

/* Returns the row of the draft `id` that follows `row`; adds it if it is missing; 0: there is no room. */
int32_t cairn_spec_tree_add(struct cairn_spec_tree *t, int32_t row, int32_t id);

/*
 * Sets depths[k] to the number of drafts on the path to draft k, itself included. Returns how many drafts,
 * from the first on, are a tree no deeper than max_depth in which at most `branches` drafts follow one row.
 */
int32_t cairn_spec_tree_valid(const struct cairn_spec_tree *t, int32_t max_depth, int32_t *depths);

/* Returns whether each draft follows the row before it. */
int cairn_spec_tree_is_chain(const int32_t *parents, int32_t num);

#endif
