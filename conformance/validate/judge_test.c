// SPDX-License-Identifier: Apache-2.0
/* judge_test - the judges of bits, rates and health on synthetic results */
#include "conformance/harness.h"
#include "conformance/validate/links_judge_test.h"

#define UNIT(name) \
	static void name##_unit(struct cairn_test *t) \
	{ \
		const char *wrong = name(); \
		if (!EXPECT(t, !wrong)) \
			cairn_note(t, "%s", wrong); \
	}
UNIT(names_the_unit)
UNIT(weighs_evidence)
UNIT(wants_a_majority)
UNIT(counts_what_ran)
UNIT(passes_the_sound)
UNIT(exit_follows_verdicts)
UNIT(finds_the_slow)
UNIT(levels_the_groups)
UNIT(separates_pairs)
UNIT(compares_with_ranges)
UNIT(finds_slow_links)
UNIT(finds_slow_ways)
UNIT(spares_the_equal)
UNIT(tells_the_unmeasured)
UNIT(judges_growth)

static const struct cairn_unit units[] = {
	{ "names_the_unit", names_the_unit_unit }, { "weighs_evidence", weighs_evidence_unit },
	{ "wants_a_majority", wants_a_majority_unit }, { "counts_what_ran", counts_what_ran_unit },
	{ "passes_the_sound", passes_the_sound_unit },
	{ "exit_follows_verdicts", exit_follows_verdicts_unit },
	{ "finds_the_slow", finds_the_slow_unit }, { "spares_the_equal", spares_the_equal_unit },
	{ "levels_the_groups", levels_the_groups_unit },
	{ "separates_pairs", separates_pairs_unit },
	{ "finds_slow_links", finds_slow_links_unit }, { "finds_slow_ways", finds_slow_ways_unit },
	{ "compares_with_ranges", compares_with_ranges_unit },
	{ "tells_the_unmeasured", tells_the_unmeasured_unit }, { "judges_growth", judges_growth_unit },
};

const struct cairn_family cairn_judge_family = {
	.stage = "conformance", .name = "judge", .units = units, .num_units = ARRAY_SIZE(units),
};
