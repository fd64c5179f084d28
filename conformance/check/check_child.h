/* SPDX-License-Identifier: Apache-2.0 */
/*
 * check_child - one of the processes that share the cases of a family; for check.c alone
 *
 * All processes of a family take cases from one counter in shared memory. A process opens a case, computes
 * its reference once, and judges every table against it. It reports lines that begin with a letter, the
 * number of the table and the number of the item:
 *
 *   B k item                        the case begins on table k
 *   P k item RATIO JUDGED SECONDS   passed; RATIO is the largest error over its bound
 *   F k item SECONDS                failed
 *   S k item REASON                 skipped
 *   D TEXT                          diagnostic of the case under way
 *   T item                          the process has taken the item
 *   I k TEXT                        a call of table k outside the cases, named by TEXT, begins; k -1: it ends
 *   E k TEXT                        no process calls table k again: it does not start, or has lost its device
 *   W                               waits for another process; keeps the time-out from striking
 */
#ifndef CAIRN_CHECK_CHILD_H
#define CAIRN_CHECK_CHILD_H

#include <pthread.h>
#include <stdatomic.h>

#include "conformance/suite/runner.h"

#define CAIRN_CHECK_MAX_WORKERS	512

/* What all processes of a run share. */
struct cairn_check_shared {
	pthread_mutex_t memory;		/* guards claims */
	/*
	 * host bytes that each process has claimed for its large case; 0: it runs none. The parent clears
	 * the claim of a process that has ended.
	 */
	long long claims[CAIRN_CHECK_MAX_WORKERS];
	atomic_int working;		/* processes that compute; each uses its share of the processors */
};

/* What the processes of one family share. */
struct cairn_check_counter {
	atomic_int next;		/* the next item to take */
	atomic_int dead[CAIRN_MAX_IMPLS];	/* tables that no process calls any more */
};

struct cairn_check_work {
	const struct cairn_options *opt;
	const struct cairn_family *f;
	const struct cairn_impl *impls;
	int num_impls;			/* 1 for a family of units */
	const struct cairn_selected *cases;	/* [num_cases] */
	int num_cases;
	const uint8_t *takes;		/* --sanitize: 1 for each case that runs; else NULL */
	const int *order;		/* [num_cases] */
	struct cairn_check_counter *counter;
	struct cairn_check_shared *shared;
	int slot;			/* index of the process in claims[] */
	int resume_item, resume_impl;	/* continues with this item and table; item -1: takes the next item */
};

/*
 * Returns the number of items of a family. Item i, in the counter's order, is case order[i % num_cases] with
 * seed opt->seed + i / num_cases.
 */
static inline int cairn_check_items(const struct cairn_check_work *w)
{
	return w->num_cases * w->opt->repeat;
}

static inline uint64_t cairn_check_seed(const struct cairn_check_work *w, int item)
{
	return w->opt->seed + (uint64_t)(item / w->num_cases);
}

void cairn_check_child(FILE *out, struct cairn_check_work *w);

#endif
