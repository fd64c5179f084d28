// SPDX-License-Identifier: Apache-2.0
/* validate_mutants_test - checks that the checks of the judges notice every fault of validate_fault.h */
#include "conformance/validate/validate_mutants.h"

#include "conformance/harness.h"
#include "conformance/validate/links_judge_test.h"
#include "conformance/validate/validate_fault.h"

static const char *all(void)
{
	const char *(*const checks[])(void) = {
		names_the_unit, weighs_evidence, wants_a_majority, counts_what_ran, exit_follows_verdicts,
		finds_the_slow, tells_the_unmeasured, judges_growth, spares_the_equal,
		levels_the_groups, separates_pairs, compares_with_ranges, finds_slow_links, finds_slow_ways,
	};

	for (size_t i = 0; i < ARRAY_SIZE(checks); i++) {
		const char *wrong = checks[i]();

		if (wrong)
			return wrong;
	}
	return NULL;
}

static void judges(struct cairn_test *t)
{
	validate_fault = FAULT_NONE;
	EXPECT(t, !all());
	EXPECT(t, !passes_the_sound());
	for (int fault = FAULT_NONE + 1; fault < NUM_FAULTS; fault++) {
		validate_fault = fault;
		if (!EXPECT(t, all() != NULL))
			cairn_note(t, "fault %d is not noticed", fault);
	}
	validate_fault = FAULT_NONE;
}

static const struct cairn_unit units[] = { { "judges", judges } };

const struct cairn_family cairn_validate_mutants_family = {
	.stage = "conformance", .name = "validate_mutants", .units = units, .num_units = ARRAY_SIZE(units),
};
