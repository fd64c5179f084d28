/* SPDX-License-Identifier: Apache-2.0 */
/* nano_impl - shared by nano.c and its mutants */
#ifndef CAIRN_NANO_IMPL_H
#define CAIRN_NANO_IMPL_H

#include "serving/nano/nano.h"
#include "serving/nano/nano_schedule.h"

struct cairn_nano {
	struct cairn_scratch *scratch;
	struct cairn_nano_plan plan;		/* its places are gone */
	struct nano_schedule schedule;
	/* Placement in the scratch's memory: shared activations, then one row of the split ones. */
	struct cairn_buffers shared, split;
	void *streams[CAIRN_NANO_LANES];	/* [0] is not used */
	void *forked, *joined[CAIRN_NANO_LANES];	/* events */
	void **events;				/* [schedule.num_events] */
};

#endif
