/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kv_fault - places where the KV modules can be broken on purpose
 *
 * The program has none of this: FAULT() is 0 there. kv_mutants_*.c compile the modules a second time, under
 * other names, with the places armed; each defect must be noticed by the model checking
 * (kv_mutants_test.c).
 */
#ifndef CAIRN_KV_FAULT_H
#define CAIRN_KV_FAULT_H

enum cairn_kv_fault {
	FAULT_NONE,
	/* kv_pool */
	FAULT_REF_LEAK,			/* a page's last reference but one is forgotten */
	FAULT_FORK_UNCOUNTED,		/* fork does not count its reference to the last page */
	FAULT_COPY_TARGET,		/* copy-on-write names the old page as its target */
	FAULT_COPY_MISSED,		/* a shared last page is written in place */
	FAULT_GROWTH_HALF_DONE,		/* a resize that fails keeps what it had taken */
	/* prefix_tree */
	FAULT_SPLIT_OFF_BY_ONE,		/* the lower part begins one place too late */
	FAULT_EVICT_PINNED,
	FAULT_EVICT_INNER,		/* the least recent node is taken, leaf or not */
	FAULT_LRU_NOT_TOUCHED,		/* a match does not make its path recent */
	FAULT_SALT_IGNORED,
	FAULT_FIRST_TOKEN_ONLY,		/* an edge is compared by its first place alone */
	/* scheduler */
	FAULT_FULL_HIT,			/* a prompt cached whole: nothing is recomputed */
	FAULT_DOUBLE_ADMISSION,		/* admitted, and left in the queue */
	FAULT_STARVATION,		/* longest prefix first without bound */
	FAULT_LATE_TOKEN_KEPT,		/* what was drawn after the end is handed out */
	FAULT_SWAP_PAGE_LOST,		/* the last page is not swapped out */
	FAULT_OFFLOAD_EARLY,		/* pages leave before the rows that fill them */
	FAULT_SPILL_LATE,		/* and slots after they were given to others */
	FAULT_OVER_COMMIT,		/* the batch takes one row more than it has */
	FAULT_CANCEL_LEAK,		/* cancelled: the pin on the tree stays */
	FAULT_VICTIM_PLANNED,		/* a sequence that has rows in this plan is preempted */
	FAULT_QUEUE_TOKENS,		/* queued tokens are not given back by a cancel */
	FAULT_DEADLINE_LATE,		/* deadlines of running sequences are not looked at */
	NUM_FAULTS
};

#ifdef CAIRN_KV_MUTANTS
extern int cairn_kv_fault;
#define FAULT(name)	(cairn_kv_fault == FAULT_##name)
#else
#define FAULT(name)	0
#endif

#endif
