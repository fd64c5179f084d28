// SPDX-License-Identifier: Apache-2.0
/*
 * kv_model_test - a million random operations on pool, prefix tree and scheduler
 *
 * The whole state is checked after each operation. A failing list is shrunk and printed.
 */
#include <stdlib.h>

#include "conformance/harness.h"
#include "serving/kv/kv_model.h"

enum { LIST = 2000 };

static void check(struct cairn_test *t, const struct kv_model *m, int num_ops)
{
	static struct kv_op ops[LIST];
	static char text[65536];
	char why[512];
	uint64_t seed = cairn_rand(t);

	for (int done = 0; done < num_ops; done += LIST) {
		int at;

		kv_model_draw(m, ops, LIST, &seed);
		at = m->run(ops, LIST, why, sizeof(why));
		if (EXPECT(t, at == LIST))
			continue;
		cairn_note(t, "operation %d: %s; shrunk to:", done + at, why);
		kv_model_print(m, ops, kv_model_shrink(m, ops, at + 1), text, sizeof(text));
		cairn_note(t, "%s", text);
		return;
	}
	cairn_note(t, "%s: %d operations in lists of %d", m->name, num_ops, LIST);
}

static void pool(struct cairn_test *t)
{
	check(t, &kv_model_pool, 300000);
}

static void tree(struct cairn_test *t)
{
	check(t, &kv_model_tree, 300000);
}

static void scheduler(struct cairn_test *t)
{
	check(t, &kv_model_scheduler, 400000);
}

static const struct cairn_unit units[] = {
	{ "pool", pool },
	{ "tree", tree },
	{ "scheduler", scheduler },
};

const struct cairn_family cairn_kv_model_family = {
	.stage = "serving",
	.name = "kv_model",
	.units = units,
	.num_units = ARRAY_SIZE(units),
};
