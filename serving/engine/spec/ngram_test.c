// SPDX-License-Identifier: Apache-2.0
/* ngram_test - prompt lookup, and the options of speculation that an engine refuses */
#include <string.h>

#include "conformance/harness.h"
#include "serving/engine/engine_test.h"
#include "serving/engine/spec/spec_tree.h"

#define BY_NGRAM	CAIRN_SPECULATE_NGRAM

/* The definition: the longest match, and of these the latest. */
static int32_t lookup(const struct cairn_speculation *s, const int32_t *tokens, int32_t num, int32_t *drafts,
		      int32_t room)
{
	int32_t all[64];

	memcpy(all, tokens, (size_t)num * sizeof(*all));
	for (int32_t n = s->lookup_max; n >= s->lookup_min; n--) {
		for (int32_t at = num - n - 1; at >= 0; at--) {
			if (memcmp(tokens + at, tokens + num - n, (size_t)n * sizeof(*all)))
				continue;
			for (int32_t k = 0; k < room; k++)
				drafts[k] = all[num + k] = all[at + n + k];
			return room;
		}
	}
	return 0;
}

static void longest_and_latest(struct cairn_test *t)
{
	int32_t tokens[40], want[8], got[8], parents[8], found = 0;

	for (int i = 0; i < 20000; i++) {
		struct cairn_speculation s = { .lookup_min = 1 + (int32_t)(cairn_rand(t) % 3) };
		int32_t num = 1 + (int32_t)(cairn_rand(t) % 40), room = 1 + (int32_t)(cairn_rand(t) % 8), n;

		s.lookup_max = s.lookup_min + (int32_t)(cairn_rand(t) % 3);
		for (int k = 0; k < num; k++)
			tokens[k] = (int32_t)(cairn_rand(t) % 4);
		n = lookup(&s, tokens, num, want, room);
		found += n > 0;
		if (!EXPECT(t, cairn_ngram_draft(&s, tokens, num, got, parents, room, room) == n &&
			       !memcmp(want, got, (size_t)n * sizeof(*got))))
			return;
	}
	EXPECT(t, found > 5000 && found < 19000);
}

/* Each path is what followed an occurrence; that of the longest match comes first, as without branches. */
static void branches(struct cairn_test *t)
{
	int32_t tokens[80], ids[32], parents[32], chain[8], depths[32], wide = 0;
	struct cairn_speculation one = { .lookup_min = 1, .lookup_max = 3 }, s = one;

	s.branches = 3;
	for (int i = 0; i < 2000; i++) {
		int32_t num = 10 + (int32_t)(cairn_rand(t) % 70), n, m;
		int32_t depth = 1 + (int32_t)(cairn_rand(t) % 6);
		struct cairn_spec_tree tree = { .ids = ids, .parents = parents, .branches = 3 };

		for (int k = 0; k < num; k++)
			tokens[k] = (int32_t)(cairn_rand(t) % 5);
		n = cairn_ngram_draft(&s, tokens, num, ids, parents, 32, depth);
		tree.num = n;
		EXPECT(t, cairn_spec_tree_valid(&tree, depth, depths) == n);
		m = cairn_ngram_draft(&one, tokens, num, chain, parents + 24, depth, depth);
		EXPECT(t, m <= n && !memcmp(chain, ids, (size_t)m * sizeof(*ids)));
		wide += !cairn_spec_tree_is_chain(parents, n);
		for (int32_t k = 0; k < n; k++) {	/* a draft of depth 1 has followed the last token */
			int found = depths[k] > 1;

			for (int32_t j = 0; j + 1 < num; j++)
				found |= tokens[j] == tokens[num - 1] && tokens[j + 1] == ids[k];
			EXPECT(t, found);
		}
	}
	EXPECT(t, wide > 1000);
}

static void refused(struct cairn_test *t)
{
	static const struct { struct cairn_engine_options opt; const char *text; } rows[] = {
		{ { .max_batch = 1, .speculation = { .method = 7 } }, "speculative: there is no" },
		{ { .max_batch = 1, .speculation = { BY_NGRAM, 17 } }, "num_speculative_tokens" },
		{ { .max_batch = 1, .speculation = { BY_NGRAM, 4, -1 } }, "prompt_lookup_min" },
		{ { .max_batch = 1, .speculation = { BY_NGRAM, 4, 5, 3 } },
		  "prompt_lookup_min: 5" },
		{ { .max_batch = 1, .speculation = { BY_NGRAM, 4, 1, 1025 } },
		  "prompt_lookup_max: 1025" },
		{ { .max_batch = 1, .speculation = { CAIRN_SPECULATE_CALLER } }, "has no function" },
		{ { .max_batch = 8, .max_rows = 8, .speculation = { BY_NGRAM } },
		  "max_rows: is 8" },
		{ { .max_batch = 1, .speculation = { BY_NGRAM, .branches = 17 } },
		  "speculative_branches: 17" },
		{ { .max_batch = 1, .speculation = { BY_NGRAM, .branches = 2, .tree_rows = 64 } },
		  "speculative_tree_rows: 64" },
		{ { .max_batch = 1, .repeatable = 1, .speculation = { BY_NGRAM, .branches = 2 } },
		  "speculative_branches: does not go with repeatable" },
		{ { .max_batch = 1, .decode = CAIRN_DECODE_GRAPH, .speculation = { BY_NGRAM } },
		  "decode: graph" },
	};
	struct cairn_engine *e = NULL;
	struct cairn_model *m;
	struct cairn_impl impl;
	struct golden g;

	if (open_model(t, "cpu", "llama3_tiny", &impl, &g, &m))
		return;
	for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
		EXPECT(t, cairn_engine_create(&e, m, &rows[i].opt) == -EINVAL);
		EXPECT_CONTAINS(t, cairn_last_error(), rows[i].text);
	}
	close_model(m, &g);
}

static const struct cairn_unit units[] = {
	{ "longest_and_latest", longest_and_latest }, { "branches", branches },
	{ "refused", refused },
};

const struct cairn_family cairn_ngram_family = {
	.stage = "serving",
	.name = "ngram",
	.units = units,
	.num_units = ARRAY_SIZE(units),
};
