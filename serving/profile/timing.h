/* SPDX-License-Identifier: Apache-2.0 */
/*
 * timing - times one task alone, or two tasks that run at the same time
 *
 * Some calls of a task, of about 2 ms together, are captured in a graph if the table has graphs, and launched
 * again and again without waiting; an event after each launch says when it ended. Times count from the second
 * quarter of a measurement on, when the clocks have settled, and in a pair only where both tasks run. So both
 * tasks may have calls of very different lengths.
 *
 * Several ranks measure the same tasks together. All get the times of rank 0 (lockstep.h); energy is that of
 * each rank's own device.
 */
#ifndef CAIRN_PROFILE_TIMING_H
#define CAIRN_PROFILE_TIMING_H

#include "conformance/tables/energy.h"
#include "serving/profile/lockstep.h"
#include "serving/profile/task.h"

#define TIMING_PARTS	64		/* most kinds of streams */

/* Where a task runs (abi.h, stream_create_part). sms and priority 0: a plain stream. */
struct part {
	int32_t sms, priority;
};

struct timing {
	const struct cairn_impl *impl;
	struct cairn_nvml *card;	/* NULL: no energy */
	struct {
		struct part part;
		void *stream;
	} streams[PROFILE_SIDES][TIMING_PARTS];
	int num_streams[PROFILE_SIDES];
	void *begin, **ends[PROFILE_SIDES];	/* events */
	struct cairn_energy no_card;
	struct lockstep lockstep;
};

int timing_open(struct timing *timing, const struct cairn_impl *impl, int32_t ranks);
void timing_close(struct timing *timing);	/* does nothing if *timing is zeroed */

/* A measurement shorter than 2 CAIRN_ENERGY_NS has no energy. */
struct timed {
	double ns[PROFILE_SIDES];	/* of a call of each task; alone: [0] */
	struct cairn_energy energy;
};

/* Errors: those of the table. */
int time_alone(struct timing *timing, struct task *task, const struct part *part, double seconds,
	       struct timed *out);
/*
 * tasks[i] is of side i and runs on parts[i]. likely_ns: about how long their calls take alone. -ERANGE: one
 * task kept the other one from running.
 */
int time_pair(struct timing *timing, struct task *const tasks[2], const struct part parts[2],
	      const double likely_ns[2], double seconds, struct timed *out);

#endif
