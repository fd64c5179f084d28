/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kv_events_fault - fault injection for KV events
 *
 * In the normal build FAULT() is 0 and costs nothing. kv_events_mutants.c compiles the modules a second time,
 * under other names, with fault injection; the tests must detect each fault (kv_events_mutants_test.c).
 */
#ifndef CAIRN_KV_EVENTS_FAULT_H
#define CAIRN_KV_EVENTS_FAULT_H

enum cairn_kv_events_fault {
	FAULT_NONE,
	FAULT_NOT_CLEARED,		/* the first batch does not say that the cache is empty */
	FAULT_HASH_OF_PAGE,		/* a hash does not depend on what comes before the page */
	FAULT_PARENT_NIL,		/* every block is said to start a prompt */
	FAULT_REMOVED_LAST,		/* only the last page of a run is removed */
	FAULT_NUMBER_REUSED,		/* a dropped batch leaves its number to the next one */
	FAULT_NUMBER_LITTLE,		/* numbers are sent with the lowest byte first */
	FAULT_ENDLESS_QUEUE,		/* nothing is ever dropped */
	FAULT_LOST_UNCOUNTED,
	FAULT_KEPT_FOR_EVER,		/* the replay buffer is not bounded by number */
	FAULT_REPLAY_AFTER,		/* a replay begins behind the number that was asked for */
	NUM_FAULTS
};

#ifdef CAIRN_KV_EVENTS_MUTANTS
extern int cairn_kv_events_fault;
#define FAULT(name)	(cairn_kv_events_fault == FAULT_##name)
#else
#define FAULT(name)	0
#endif

#endif
