// SPDX-License-Identifier: Apache-2.0
/* spec_tree - trees of drafts (spec_tree.h) */
#include "serving/engine/spec/spec_tree.h"

static int32_t children(const struct cairn_spec_tree *t, int32_t row, int32_t before)
{
	int32_t n = 0;

	for (int32_t k = 0; k < before; k++)
		n += t->parents[k] == row;
	return n;
}

int32_t cairn_spec_tree_add(struct cairn_spec_tree *t, int32_t row, int32_t id)
{
	for (int32_t k = row; k < t->num; k++) {
		if (t->parents[k] == row && t->ids[k] == id)
			return k + 1;
	}
	if (t->num == t->room || children(t, row, t->num) >= t->branches)
		return 0;
	t->ids[t->num] = id;
	t->parents[t->num] = row;
	return ++t->num;
}

int32_t cairn_spec_tree_valid(const struct cairn_spec_tree *t, int32_t max_depth, int32_t *depths)
{
	for (int32_t k = 0; k < t->num; k++) {
		int32_t parent = t->parents[k];

		if (parent < 0 || parent > k || children(t, parent, k) >= t->branches)
			return k;
		depths[k] = 1 + (parent ? depths[parent - 1] : 0);
		if (depths[k] > max_depth)
			return k;
	}
	return t->num;
}

int cairn_spec_tree_is_chain(const int32_t *parents, int32_t num)
{
	for (int32_t k = 0; k < num; k++) {
		if (parents[k] != k)
			return 0;
	}
	return 1;
}
