/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ranks_changed_test - changes to ranks that the comparison with one process must notice
 *
 * Include conformance/harness.h first.
 */
#ifndef CAIRN_RANKS_CHANGED_TEST_H
#define CAIRN_RANKS_CHANGED_TEST_H

#include "serving/ranks/ranks_model_test.h"

/* A change to the model or the table of a rank, after which the results must not be right. */
struct mutant {
	const char *name;
	alter_fn fn;
};

static inline void run_mutants(struct cairn_test *t, const struct shared *s, const struct mutant *all,
			       size_t num)
{
	struct scored whole, got;
	int32_t tokens[NUM];
	char dir[PATH_MAX];

	write_prompt(tokens);
	if (write_model(t, s, dir) || !EXPECT(t, score_whole(s, dir, tokens, &whole) == 0))
		return;
	for (size_t i = 0; i < num; i++) {
		int ret = score_shared(t, s, dir, tokens, all[i].fn, &got);

		if (!EXPECT(t, ret || !is_right(s, &whole, &got)))
			cairn_note(t, "%s was not caught", all[i].name);
	}
}

#endif
