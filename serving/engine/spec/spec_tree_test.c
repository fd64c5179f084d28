// SPDX-License-Identifier: Apache-2.0
/* spec_tree_test - trees of drafts: what is valid, and which drafts count */
#include <string.h>

#include "conformance/harness.h"
#include "serving/engine/spec/spec_tree.h"
#include "serving/scheduler/scheduler.h"

enum { MOST = 20 };

/* The definition of cairn_drafts_accepted(), child by child. mutant: a wrong one. */
static int32_t follow(const int32_t *ids, const int32_t *parents, const int32_t *tokens, int32_t num,
		      int32_t *path, int mutant)
{
	int32_t row = 0, n = 0;

	for (;;) {
		int32_t child = 0;

		for (int32_t k = num; k > 0; k--) {		/* the first child of several equal ones */
			int32_t token = mutant == 1 ? tokens[k] : tokens[row];

			if ((mutant == 2 || parents[k - 1] == row) && ids[k - 1] == token && k > row)
				child = k;
		}
		if (!child)
			return mutant == 3 && num > n ? n + 1 : n;
		path[n++] = row = child;
	}
}

static void accepted(struct cairn_test *t)
{
	int32_t ids[MOST], parents[MOST], tokens[MOST + 1], want[MOST + 1], got[MOST + 1], n, num;
	int64_t caught[4] = { 0 }, total = 0;

	for (int i = 0; i < 20000; i++) {
		num = (int32_t)(cairn_rand(t) % (MOST + 1));
		for (int32_t k = 0; k < num; k++) {
			ids[k] = (int32_t)(cairn_rand(t) % 3);
			parents[k] = (int32_t)(cairn_rand(t) % (uint64_t)(k + 1));
		}
		for (int32_t k = 0; k <= num; k++)
			tokens[k] = (int32_t)(cairn_rand(t) % 3);
		n = cairn_drafts_accepted(ids, parents, tokens, num, got);
		total += n;
		for (int mutant = 0; mutant < 4; mutant++) {
			int32_t m = follow(ids, parents, tokens, num, want, mutant);
			int same = m == n && !memcmp(want, got, (size_t)n * sizeof(*got));

			caught[mutant] += !same;
		}
	}
	cairn_note(t, "%lld drafts count", (long long)total);
	EXPECT(t, total > 10000 && !caught[0]);
	/* the draw after the draft itself; a child of another row; one draft too many */
	EXPECT(t, caught[1] > 100 && caught[2] > 100 && caught[3] > 100);
}

static void valid(struct cairn_test *t)
{
	static const struct { int32_t parents[6], num, valid; } rows[] = {
		{ { 0, 1, 2 }, 3, 3 }, { { 0, 0, 1, 2, 1 }, 5, 5 },
		{ { 0, 0, 0 }, 3, 2 },		/* three children */
		{ { 0, 2 }, 2, 1 }, { { -1 }, 1, 0 }, { { 1 }, 1, 0 },
		{ { 0, 1, 2, 3 }, 4, 3 },	/* too deep */
	};
	int32_t depths[6];

	for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
		struct cairn_spec_tree tree = {
			.parents = (int32_t *)rows[i].parents, .num = rows[i].num, .branches = 2,
		};

		EXPECT(t, cairn_spec_tree_valid(&tree, 3, depths) == rows[i].valid);
		if (i == 1)
			EXPECT(t, depths[0] == 1 && depths[1] == 1 && depths[2] == 2 && depths[3] == 2 &&
				  depths[4] == 2);
	}
	EXPECT(t, cairn_spec_tree_is_chain((const int32_t[]){ 0, 1, 2 }, 3));
	EXPECT(t, !cairn_spec_tree_is_chain((const int32_t[]){ 0, 0 }, 2));
}

static void adds(struct cairn_test *t)
{
	int32_t ids[4], parents[4];
	struct cairn_spec_tree tree = { .ids = ids, .parents = parents, .room = 4, .branches = 2 };

	EXPECT(t, cairn_spec_tree_add(&tree, 0, 7) == 1 && cairn_spec_tree_add(&tree, 1, 8) == 2);
	EXPECT(t, cairn_spec_tree_add(&tree, 0, 7) == 1 && tree.num == 2);	/* shared */
	EXPECT(t, cairn_spec_tree_add(&tree, 0, 9) == 3 && cairn_spec_tree_add(&tree, 0, 5) == 0);
	EXPECT(t, cairn_spec_tree_add(&tree, 3, 8) == 4 && parents[3] == 3);	/* another place */
	EXPECT(t, cairn_spec_tree_add(&tree, 2, 1) == 0 && tree.num == 4);	/* no room */
}

static const struct cairn_unit units[] = {
	{ "accepted", accepted }, { "valid", valid }, { "adds", adds },
};

const struct cairn_family cairn_spec_tree_family = {
	.stage = "serving",
	.name = "spec_tree",
	.units = units,
	.num_units = ARRAY_SIZE(units),
};
