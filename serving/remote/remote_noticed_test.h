/* SPDX-License-Identifier: Apache-2.0 */
/*
 * remote_noticed_test - every fault of a list is noticed by its test, which without a fault notices none
 *
 * Include conformance/harness.h first.
 */
#ifndef CAIRN_REMOTE_NOTICED_TEST_H
#define CAIRN_REMOTE_NOTICED_TEST_H

#include "serving/remote/control/sodium.h"
#include "serving/remote/remote_fault.h"

struct remote_mutant {
	const char *name;
	int fault;				/* of remote_fault.h */
	int (*notices)(struct cairn_test *t);
};

#define MUTANT(fault, by)	{ #fault, FAULT_##fault, by }

static inline void all_noticed(struct cairn_test *t, const struct remote_mutant *mutants, size_t num)
{
	const struct sodium *s;

	if (sodium_load(&s))
		return cairn_skip(t, "%s", cairn_last_error());
	for (size_t i = 0; i < num; i++) {
		if (!i || mutants[i].notices != mutants[i - 1].notices)	/* without the fault, nothing is */
			EXPECT(t, !mutants[i].notices(t));
		cairn_remote_fault = mutants[i].fault;
		if (!EXPECT(t, mutants[i].notices(t)))
			cairn_note(t, "%s", mutants[i].name);
		cairn_remote_fault = FAULT_NONE;
	}
}

#endif
