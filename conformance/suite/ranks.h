/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ranks - judges collectives: runs a case in one process a rank
 *
 * The process that judges a family of collectives forks ranks (ranks.c) and gives them one case after the
 * other. Each rank opens a communicator and judges its own outputs as any other operation's (ranks_case.c):
 * because the seed makes the inputs of all ranks, it knows those of the others. All ranks make the same
 * further calls. Then outputs that the contract promises to be equal are compared between the ranks, and
 * calls with different inputs are made back to back, while one rank is slow. On host memory the memory of one
 * rank is also held (guard.h): at its first access to each page the rank waits until the others, which go on
 * calling, get no further without it. If it signals before a copy is done, the others see the old contents.
 *
 * On a table with devices, rank r takes device r. Two ranks may share a device, so that a machine with one
 * runs the cases of one and two ranks; cases with more are skipped there.
 *
 * In a case of trouble the last rank does not call, aborts, or is killed. The calls of all others must end
 * within the time-out with -ETIMEDOUT, or with -ECANCELED after an abort, and so must their next calls.
 */
#ifndef CAIRN_RANKS_H
#define CAIRN_RANKS_H

#include "conformance/suite/op_side.h"

#define CAIRN_RANKS_TIMEOUT_MS	250	/* of communicators in cases of trouble */

/* What the ranks of a case do. */
struct cairn_ranks_work {
	struct cairn_impl impl;
	const struct cairn_family *f;
	int case_index;			/* of the case, or of the refused call */
	int is_reject;
	enum cairn_kind kind;
	uint64_t seed;
	int32_t ranks;
	enum cairn_trouble trouble;
};

/* In the judging process. They fill o from the outcomes of all ranks. */
void cairn_ranks_verify(const struct cairn_family *f, const struct cairn_op *op,
			const struct cairn_impl *impl, struct cairn_outcome *o);
void cairn_ranks_reject(const struct cairn_family *f, int i, const struct cairn_impl *impl, uint64_t seed,
			struct cairn_outcome *o);

/* Returns whether this process is a rank. */
int cairn_ranks_inside(void);
/* Gathers bytes of all ranks of the case, as the callback of comm_open() does. Returns 0 or -ETIMEDOUT. */
int cairn_ranks_exchange(void *arg, const void *mine, void *all, size_t bytes);
/* In a rank: starts to count calls from 0, and counts one. */
void cairn_ranks_count_from_0(void);
void cairn_ranks_count_call(void);
/*
 * In a rank, also in a signal handler: waits until every other rank has made `calls` calls, or has computed
 * for a while without ending one, as ranks do that wait for this one.
 */
void cairn_ranks_hold(uint32_t calls);
/* Called in each rank's process. */
void cairn_ranks_run(const struct cairn_ranks_work *w, int32_t rank, struct cairn_outcome *o);

/* Prepares the op of a collective before its setup: its rank and its communicator. */
void cairn_ranks_place(struct cairn_op *op, const struct cairn_family *f);
/* Calls f->exact_ranks with the arguments of all ranks. */
int cairn_ranks_exact(const struct cairn_family *f, const struct cairn_op *op, struct cairn_exact *exact);
/*
 * In a rank: if its verdict is PASS but another rank's is not, makes it SKIP if that one skips, else FAIL, so
 * that either all ranks go on or none.
 */
void cairn_ranks_settle(const struct cairn_family *f, struct cairn_outcome *o);
/* In a rank: compares outputs between ranks, and makes the calls back to back. */
void cairn_ranks_further(const struct cairn_more *m);

#endif
