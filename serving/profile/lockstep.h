/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lockstep - ranks that measure together decide alike
 *
 * Collectives need the same calls from all ranks. How many calls a measurement makes, and which measurements
 * follow, depends on times, which differ from rank to rank. So all ranks take the times of rank 0, by a
 * collective, before they decide anything.
 *
 * Errors: those of the table.
 */
#ifndef CAIRN_PROFILE_LOCKSTEP_H
#define CAIRN_PROFILE_LOCKSTEP_H

#include "serving/model/model.h"

#define LOCKSTEP_VALUES	4

struct lockstep {
	const struct cairn_impl *impl;
	int32_t ranks;			/* 1: nothing is exchanged */
	void *stream;
	double *mem;			/* of the device: [LOCKSTEP_VALUES, 1 + ranks] */
};

/* ranks above 1: all_to_all of the table is that of a rank (serving/ranks/ranks.h). */
int lockstep_open(struct lockstep *l, const struct cairn_impl *impl, int32_t ranks);
void lockstep_close(struct lockstep *l);	/* does nothing if *l is zeroed */
/* Replaces values[num] by those of rank 0. All collectives enqueued so far must have ended on this rank. */
int lockstep_agree(struct lockstep *l, double *values, int num);

#endif
