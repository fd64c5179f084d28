/* SPDX-License-Identifier: Apache-2.0 */
/*
 * check_child - one of the processes that share the cases of a family; for check.c alone
 *
 * All processes of a family take cases from one counter in shared memory. A process opens a case, computes
 * its reference once, and judges every table against it. When its family has no case left, the process asks
 * for another family of operations, because starting a table can take a second (a CUDA context). It reports
 * lines that begin with a letter, the number of the table and the number of the item:
 *
 *   B k item                        the case begins on table k
 *   P k item RATIO JUDGED SECONDS   passed; RATIO is the largest error over its bound
 *   F k item SECONDS                failed
 *   S k item REASON                 skipped
 *   D TEXT                          diagnostic of the case under way
 *   T item                          the process has taken the item
 *   I k TEXT                        a call of table k outside the cases, named by TEXT, begins; k -1: it ends
 *   E k TEXT                        no process calls table k again: it does not start, or has lost its device
 *   N                               asks for another family (cairn_check_shared.next)
 *   W                               waits for another process; keeps the time-out from striking
 */
#ifndef CAIRN_CHECK_CHILD_H
#define CAIRN_CHECK_CHILD_H

#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>

#include "conformance/device/turn.h"
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
	pthread_mutex_t device[CAIRN_TURNS];	/* whose turns it is on the GPU */
	/* the parent's answer to a process that asks for another family */
	struct {
		sem_t given;
		int group;		/* index in cairn_check_run.groups; -1: there is none */
	} next[CAIRN_CHECK_MAX_WORKERS];
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
	const int *order;		/* [num_cases]: item i, in the counter's order, is case order[i] */
	struct cairn_check_counter *counter;
	struct cairn_check_shared *shared;
	int slot;			/* index of the process in claims[] and next[] */
	int resume_item, resume_impl;	/* continues with this item and table; item -1: takes the next item */
};

/*
 * Returns whether a process of this family may run cases of other families that may, too. Units may leave
 * anything behind, the ranks of collectives start tables themselves, and compute-sanitizer keeps what a
 * process has done.
 */
static inline int cairn_check_shares(const struct cairn_check_work *w)
{
	return w->f->num_cases && !w->f->comm_field && !w->opt->sanitize;
}

/*
 * Runs cases of w, and then of other families: by_index() returns what the processes of the family with this
 * index get.
 */
void cairn_check_child(FILE *out, const struct cairn_check_work *w,
		       const struct cairn_check_work *(*by_index)(void *arg, int index), void *arg);

#endif
