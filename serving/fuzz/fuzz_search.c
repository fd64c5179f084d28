// SPDX-License-Identifier: Apache-2.0
/*
 * fuzz_search - parses arbitrary bytes as a profile and as a plan file
 *
 * An accepted file must satisfy what search_profile.h and plan_file.h promise.
 */
#include <math.h>

#include "serving/fuzz/fuzz.h"
#include "serving/plan/plan_file.h"

static void check_profile(const struct cairn_search_profile *p)
{
	struct cairn_search_level levels[6];
	struct cairn_search_line line;

	for (int32_t i = 0; i < p->num_times; i++)
		FUZZ_HOLDS(p->times[i].ms > 0 && isfinite(p->times[i].ms) && p->times[i].rows > 0 &&
			   p->times[i].sms >= 1 && p->times[i].sms <= p->sms);
	for (int32_t i = 0; i < p->num_pairs; i++)
		FUZZ_HOLDS(p->pairs[i].r > 0 && p->pairs[i].r <= 1 && p->pairs[i].p > 0 &&
			   p->pairs[i].p <= 1 && p->pairs[i].other != CAIRN_SEARCH_COMPUTE &&
			   p->pairs[i].how != CAIRN_SEARCH_ALONE);
	for (int kind = CAIRN_SEARCH_MEMORY; kind < CAIRN_NUM_SEARCH_KINDS; kind++) {
		int32_t num = cairn_search_curve(p, (enum cairn_search_kind)kind, ~0u, levels, 6);

		FUZZ_HOLDS(num >= 1 && num <= 6 && levels[0].r == 1 && levels[0].p == 1);
		for (int32_t i = 2; i < num; i++)
			FUZZ_HOLDS(levels[i].r < levels[i - 1].r && levels[i].p < levels[i - 1].p &&
				   levels[i].p > 0);
	}
	if (!cairn_search_profile_line(p, "dec", &line))
		FUZZ_HOLDS(line.base_ms >= 0 && line.slope_ms > 0 && isfinite(line.worst));
}

static void check_entry(const struct cairn_plan_file *plan, const struct cairn_plan_file_entry *e)
{
	int32_t from = 0;

	FUZZ_HOLDS(e->nanos >= 2 && e->nanos <= CAIRN_SEARCH_MOST_SPLIT && e->num_parts > 0);
	for (int32_t i = 0; i < e->nanos; i++) {
		int32_t to = i + 1 < e->nanos ? e->cuts[i] : e->rows;

		FUZZ_HOLDS(from < to && to <= e->rows && e->decode[i] >= 0 && e->decode[i] <= to - from);
		from = to;
	}
	for (int32_t i = 0; i < e->num_parts; i++)
		FUZZ_HOLDS(e->parts[i].nano >= 0 && e->parts[i].nano < e->nanos && e->parts[i].sms >= 1 &&
			   e->parts[i].sms <= plan->sms && e->parts[i].start >= 0 && e->parts[i].r > 0 &&
			   e->parts[i].r <= 1);
	FUZZ_HOLDS(e->measured_ms > 0 && e->measured_sequential_ms > 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static const struct cairn_plan_file_for want = { "G", "I", "K", "X", 1, true };
	struct cairn_search_profile *profile;
	struct cairn_plan_file *plan;

	if (!cairn_search_profile_parse(&profile, (const char *)data, size, "profile")) {
		check_profile(profile);
		cairn_search_profile_free(profile);
	}
	if (!cairn_plan_file_parse(&plan, (const char *)data, size, "plan", &want)) {
		const struct cairn_plan_file_entry *e = cairn_plan_file_pick(plan, 1024, 384, 1024);

		for (int32_t i = 0; i < plan->num_entries; i++)
			check_entry(plan, &plan->entries[i]);
		FUZZ_HOLDS(!e || (e->rows <= 1024 && e->measured_sequential_ms >= e->measured_ms * 1.02));
		cairn_plan_file_free(plan);
	}
	return 0;
}
