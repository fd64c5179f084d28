// SPDX-License-Identifier: Apache-2.0
/* disagg_mutants_test - checks that the tests of the simulation detect every fault of disagg_fault.h */
#include "serving/disagg/disagg_mutants.h"

#include "conformance/harness.h"
#include "serving/disagg/disagg_fault.h"
#include "serving/disagg/disagg_test.h"

extern int cairn_disagg_fault;

static void notice(struct cairn_test *t, const char *(*check)(void), int first, int last)
{
	cairn_disagg_fault = FAULT_NONE;
	EXPECT(t, check() == NULL);
	for (int fault = first; fault <= last; fault++) {
		cairn_disagg_fault = fault;
		if (!EXPECT(t, check() != NULL))
			cairn_note(t, "fault %d is not noticed", fault);
	}
	cairn_disagg_fault = FAULT_NONE;
}

static void lanes(struct cairn_test *t)
{
	notice(t, lanes_follow_formula, FAULT_NO_QUEUE, FAULT_OUTPUT_FREE);
}

static void engine(struct cairn_test *t)
{
	notice(t, replay_is_the_loop, FAULT_PROMPT_ONLY, FAULT_ONE_TOKEN_LESS);
	notice(t, replay_is_the_loop, FAULT_BATCH_UNBOUNDED, FAULT_WEIGHTS_FREE);
}

static void shares(struct cairn_test *t)
{
	notice(t, replay_shares_out, FAULT_FIRST_LANE, FAULT_NO_BOUND);
}

static void costs(struct cairn_test *t)
{
	notice(t, costs_are_closed_forms, FAULT_HEADS_DIVIDE, FAULT_APART_FREE);
}

static void advice(struct cairn_test *t)
{
	notice(t, advice_follows_prices, FAULT_PRICE_IGNORED, FAULT_TP_NEVER);
}

#define UNIT(name)	{ #name, name }
static const struct cairn_unit units[] = {
	UNIT(lanes), UNIT(engine), UNIT(shares), UNIT(costs), UNIT(advice),
};

const struct cairn_family cairn_disagg_mutants_family = {
	.stage = "serving",
	.name = "disagg_mutants",
	.units = units,
	.num_units = ARRAY_SIZE(units),
};
