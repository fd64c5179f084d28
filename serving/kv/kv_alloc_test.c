// SPDX-License-Identifier: Apache-2.0
/*
 * kv_alloc_test - every allocation of pool, tree and scheduler fails once
 *
 * The copies of the modules with faults compiled in (kv_mutants.h) allocate through the functions below. Call
 * n fails, for n = 1, 2, ... until a whole run makes fewer than n calls. A failing operation must return
 * -ENOMEM and leave a usable state: a submission can be repeated; after a plan or a report the scheduler can
 * be destroyed. The sanitizers check that nothing leaks.
 */
#include <stdlib.h>
#include <string.h>

#include "conformance/harness.h"
#include "serving/kv/kv_mutants.h"

#include "serving/scheduler/scheduler.h"

#undef malloc
#undef calloc
#undef realloc

static long calls, failing;

static int fails(void)
{
	return ++calls == failing;
}

void *cairn_kv_malloc(size_t bytes)
{
	return fails() ? NULL : malloc(bytes);
}

void *cairn_kv_calloc(size_t num, size_t bytes)
{
	return fails() ? NULL : calloc(num, bytes);
}

void *cairn_kv_realloc(void *p, size_t bytes)
{
	return fails() ? NULL : realloc(p, bytes);
}

/* Runs six conversations, one of them with three answers, through all tiers. Returns 0, or the error of
 * the first failing call, which must be -ENOMEM. */
static int run(struct cairn_test *t)
{
	struct cairn_scheduler_options opt = {
		.dense_rows = 12,
		.max_seqs = 6,
		.max_context = 64,
		.page_size = 4,
		.num_pages = 16,
		.host_pages = 12,
		.disk_pages = 24,
		.grain = 1,
		.ahead = 1,
		.max_passes = 4,
		.expected_new = 2,
		.recompute_ns = 10,
		.swap_ns = 1,
	};
	int32_t prompt[32], tokens[8] = { 1, 2, 3, 4, 5, 6, 7, 8 };
	struct cairn_scheduler *s = NULL;
	const struct cairn_step_plan *p;
	int ret = cairn_scheduler_create(&s, &opt), flights = 0, again;

	if (ret)
		return ret;
	for (uint64_t id = 1; id <= 6; id++) {
		struct cairn_scheduler_request r = {
			.id = id, .prompt = prompt, .num_prompt = 20 + (int32_t)id, .max_new_tokens = 16,
			.num_seqs = id == 2 ? 3 : 1, .keep = 1,
		};

		for (int32_t i = 0; i < r.num_prompt; i++)
			prompt[i] = i < 9 ? i : (int32_t)(id % 3) * 100 + i;
		ret = cairn_scheduler_submit(s, &r);
		if (ret == -ENOMEM) {
			EXPECT(t, cairn_scheduler_verify(s) == 0);
			again = cairn_scheduler_submit(s, &r);
			EXPECT(t, again == 0);
		} else if (ret) {
			goto out;
		}
	}
	for (int k = 0; k < 300; k++) {
		if (flights > 1) {
			ret = cairn_scheduler_report(s, tokens, NULL);
			flights--;
			if (ret)
				goto out;
		}
		ret = cairn_scheduler_plan(s, 0, &p);
		if (ret)
			goto out;
		flights += p->num_items > 0;
		if (!p->num_items && flights) {
			ret = cairn_scheduler_report(s, tokens, NULL);
			flights--;
			if (ret)
				goto out;
		}
		for (uint64_t id = 1; id <= 6; id++)
			cairn_scheduler_fetched(s, id);
	}
out:
	cairn_scheduler_destroy(s);
	return ret;
}

static void every_allocation_fails_once(struct cairn_test *t)
{
	long least;

	calls = failing = 0;
	EXPECT(t, run(t) == 0);
	least = calls;
	for (failing = 1; failing <= least; failing++) {
		int ret;

		calls = 0;
		ret = run(t);
		/* Some failures do not fail the run: a split is skipped, or KV is not kept. */
		if (!EXPECT(t, ret == -ENOMEM || ret == 0)) {
			cairn_note(t, "allocation %ld of %ld: %d", failing, least, ret);
			break;
		}
	}
	failing = 0;
	cairn_note(t, "%ld allocations", least);
	EXPECT(t, least > 100);
}

static const struct cairn_unit units[] = {
	{ "every_allocation_fails_once", every_allocation_fails_once },
};

const struct cairn_family cairn_kv_alloc_family = {
	.stage = "serving",
	.name = "kv_alloc",
	.units = units,
	.num_units = ARRAY_SIZE(units),
};
