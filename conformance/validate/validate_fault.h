/* SPDX-License-Identifier: Apache-2.0 */
/*
 * validate_fault - fault injection for the judges of `cairn validate`
 *
 * In the normal build FAULT() is 0 and costs nothing. validate_mutants.c compiles the judges a second time,
 * under other names, with fault injection; the tests must detect each fault (validate_mutants_test.c). The
 * comment on a fault says what the faulty judge wrongly assumes or does.
 */
#ifndef CAIRN_VALIDATE_FAULT_H
#define CAIRN_VALIDATE_FAULT_H

enum validate_fault {
	FAULT_NONE,
	/* bits */
	FAULT_FIRST_IS_GOLDEN,		/* the first unit is right, whatever the others say */
	FAULT_TIE_PASSES,		/* a round without a majority is no fault */
	FAULT_NAMES_SWAPPED,		/* a unit is named by its index, not by its place */
	FAULT_ONE_PART,			/* only part 0 is compared */
	FAULT_FIRST_SUM,		/* only the first sum of a digest is compared */
	FAULT_DROPPED_COUNT,		/* the exposure counts rounds that were dropped */
	FAULT_REPLAY_IGNORED,		/* what a replay repeats is no evidence */
	FAULT_SINGLE_FAILS,		/* one upset that does not recur fails */
	FAULT_PROGRAMS_APART,		/* mismatches of a unit in two programs are each a single one */
	FAULT_PARTS_INDEPENDENT,	/* two parts of one round are two independent mismatches */
	FAULT_WEAK_PASSES,		/* a majority under 90% is enough */
	FAULT_EXPOSURE_TOTAL,		/* the exposure is that of all units together */
	FAULT_UNSEEN_PASSES,		/* a unit that never ran does not count as untested */
	FAULT_TIE_OF_TWO_PASSES,	/* two devices that differ both pass */
	FAULT_FINDS_ONE,		/* one error is taken to be enough for a fault */
	/* verdicts */
	FAULT_NOT_RUN_PASSES,		/* a test that did not run counts as passed */
	FAULT_WARN_FAILS,		/* a warning sets the exit status even without --strict */
	FAULT_FAIL_AFTER_NOT_RUN,	/* what did not run hides a fault in the exit status */
	/* rates */
	FAULT_MEAN,			/* means for medians */
	FAULT_NAN_COMPARES,		/* a rate that is not a number is a fast one */
	FAULT_ONE_ROUND,		/* one round makes a finding */
	FAULT_NO_GROUPS,		/* groups are not levelled */
	FAULT_ANY_Z,			/* 2% is enough, however much the others scatter */
	FAULT_ANY_SIZE,			/* z is enough, however small the difference */
	FAULT_BOTH_SIDES,		/* a fast unit is slow */
	FAULT_TOGETHER,			/* three rounds at once are as good as three apart in time */
	FAULT_ONE_SIDE,			/* what the second part of a pair adds is not taken out */
	FAULT_RANGE_BOTH_WAYS,		/* a figure of which more is better is compared like one of cycles */
	FAULT_RANGE_SPREAD,		/* the scatter between GPUs of a model is ignored */
	FAULT_RANGE_PROVISIONAL,	/* a range of few GPUs makes a fault */
	/* links */
	FAULT_ONE_KIND,			/* links of all kinds are compared with each other */
	FAULT_LACKING_IGNORED,		/* a link of a slower kind than its siblings is fine */
	FAULT_LINK_NAMES_SWAPPED,	/* the way back is named */
	FAULT_TWO_SCATTER,		/* of two links the slower one is slow, however much both scatter */
	FAULT_TWO_TOGETHER,		/* of two links three rounds at once are enough */
	FAULT_DOWN_ALONE_PASSES,	/* two devices that do not reach each other are no fault */
	FAULT_ANY_LINK_FAILS,		/* a link that is no NVLink fails, too */
	/* health */
	FAULT_TOTALS,			/* totals for deltas */
	FAULT_CAP_IS_FAULT,		/* a power cap is a fault */
	FAULT_PENDING_IGNORED,		/* a pending remap is fine */
	NUM_FAULTS
};

#ifdef CAIRN_VALIDATE_MUTANTS
extern int validate_fault;
#define FAULT(name)	(validate_fault == FAULT_##name)
#else
#define FAULT(name)	0
#endif

#endif
