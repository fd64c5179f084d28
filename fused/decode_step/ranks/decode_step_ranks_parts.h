/* SPDX-License-Identifier: Apache-2.0 */
/* decode_step_ranks_parts - the step that one rank computes, as arguments of decode_step */
#ifndef CAIRN_DECODE_STEP_RANKS_PARTS_H
#define CAIRN_DECODE_STEP_RANKS_PARTS_H

#include "fused/decode_step/ranks/decode_step_ranks.h"

/* The struct must have passed the check of its size. */
static inline struct cairn_decode_step_args
decode_step_ranks_step(const struct cairn_decode_step_ranks_args *a)
{
	struct cairn_decode_step_args step = a->step;

	step.size = sizeof(step);
	return step;
}

#endif
